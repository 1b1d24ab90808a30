"""How good is an explanation? Torch, batched, on any device; every score depends on its own sample only.

- sparsity: `gini`, `entropy`, `hoyer`, `nonzero`
- localization: `relevance_mass_accuracy`, `relevance_rank_accuracy`, `pointing_game`, `top_k_intersection`
- robustness: `local_lipschitz`, `max_sensitivity`, of an `Explainer` or any function from inputs to relevance
- faithfulness: `pixel_flipping` (a `FlippingCurve`), with the preset `INNVESTIGATE`
- randomization: `model_randomization` (a `Randomization`), compared by `spearman`, `pearson`, `cosine`
- all of it in one table: `evaluate`
"""

from .evaluation import evaluate
from .explainer import Explainer
from .faithfulness import INNVESTIGATE, FlippingCurve, pixel_flipping
from .localization import pointing_game, relevance_mass_accuracy, relevance_rank_accuracy, top_k_intersection
from .maps import pool_channels
from .randomization import Randomization, model_randomization
from .robustness import local_lipschitz, max_sensitivity
from .similarity import cosine, pearson, spearman
from .sparsity import entropy, gini, hoyer, nonzero

__all__ = [
    "INNVESTIGATE",
    "Explainer",
    "FlippingCurve",
    "Randomization",
    "cosine",
    "entropy",
    "evaluate",
    "gini",
    "hoyer",
    "local_lipschitz",
    "max_sensitivity",
    "model_randomization",
    "nonzero",
    "pearson",
    "pixel_flipping",
    "pointing_game",
    "pool_channels",
    "relevance_mass_accuracy",
    "relevance_rank_accuracy",
    "spearman",
    "top_k_intersection",
]
