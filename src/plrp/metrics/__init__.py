"""How good is an explanation? Torch, batched, on any device; every score depends on its own sample only.

Inputs and relevance are (batch, ...). A metric returns float64 (batch,), one score per sample, if it says nothing else.

- sparsity: `gini`, `entropy`, `hoyer`, `nonzero`; `spanning_tree_compactness`
- localization: `relevance_mass_accuracy`, `relevance_rank_accuracy`, `pointing_game`, `top_k_intersection`
- robustness: `local_lipschitz`, `max_sensitivity`, of an `Explainer` or any function from inputs to relevance
- faithfulness: `pixel_flipping` (a `FlippingCurve`) with its `FlippingSettings` and the preset `INNVESTIGATE`;
  `deletion`, `insertion`; `road` and `symmetric_relevance_gain` with their `RemovalSettings`; `infidelity`
- the truth: `occlusion` with its `PerturbationSettings`, `mutagenesis`, and the `agreement` of relevance with either
- randomization: `model_randomization` (a `Randomization`), `efficient_randomization` (eMPRT),
  `smooth_randomization` (sMPRT), compared by `spearman`, `pearson`, `cosine`
- the test of an explanation: `ask` and `ask_about` give a `Verdict`; the answers to `Questions` (`Occlusions`) judge
  many maps by `judged`
- all of it in one table: `evaluate`
"""

from .effects import EffectAgreement, agreement, infidelity, mutagenesis, occlusion
from .evaluation import evaluate
from .faithfulness import (
    INNVESTIGATE,
    FlippingCurve,
    FlippingSettings,
    RemovalSettings,
    deletion,
    insertion,
    pixel_flipping,
    road,
    symmetric_relevance_gain,
)
from .feature_rows import cosine, pearson, pool_channels, spearman
from .localization import pointing_game, relevance_mass_accuracy, relevance_rank_accuracy, top_k_intersection
from .questions import Occlusions, Questions
from .randomization import Randomization, efficient_randomization, model_randomization, smooth_randomization
from .replacements import PerturbationSettings, impute, linear_imputation
from .robustness import Explainer, local_lipschitz, max_sensitivity
from .sparsity import entropy, gini, hoyer, nonzero, spanning_tree_compactness
from .verdicts import Verdict, ask, ask_about, judged

__all__ = [
    "INNVESTIGATE", "EffectAgreement", "Explainer", "FlippingCurve", "FlippingSettings", "Occlusions",
    "PerturbationSettings", "Questions", "Randomization", "RemovalSettings", "Verdict", "agreement", "ask", "ask_about",
    "cosine", "deletion", "efficient_randomization", "entropy", "evaluate", "gini", "hoyer", "impute", "infidelity",
    "insertion", "judged", "linear_imputation", "local_lipschitz", "max_sensitivity", "model_randomization",
    "mutagenesis", "nonzero", "occlusion", "pearson", "pixel_flipping", "pointing_game", "pool_channels",
    "relevance_mass_accuracy", "relevance_rank_accuracy", "road", "smooth_randomization", "spanning_tree_compactness",
    "spearman", "symmetric_relevance_gain", "top_k_intersection",
]  # fmt: skip
