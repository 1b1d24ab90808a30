"""Several methods on the same sequences, beside each other: which of them to trust on a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from plrp.metrics.similarity import pearson, spearman
from plrp.pruning import Pruning
from plrp.tables import render_table

from .attribution import _onehot, batch_size_for, explain_sequences, pruning_title
from .baselines import deeplift, gradient_input, ism
from .logo import logo_page
from .sequence_settings import ScoreSettings
from .sequences import decode


@dataclass(frozen=True)
class Comparison:
    """What several methods say about the same sequences and the same score.

    `per_base` by method, (sequence, position), ISM first; `refused`: the reasons of methods that could not be used.
    """

    letters: list[str]
    per_base: dict[str, npt.NDArray[np.float32]]
    refused: dict[str, str]

    def correlation(self, method: str, *, ranks: bool = False) -> npt.NDArray[np.float64]:
        """Pearson's correlation with ISM over the bases of each sequence, (sequence,); Spearman's with `ranks`.

        NaN where one of them is the same everywhere, or not finite.
        """
        pair = [torch.from_numpy(self.per_base[name].astype(np.float64)) for name in ("ISM", method)]
        usable = (pair[0].isfinite() & pair[1].isfinite()).all(1)
        correlations = np.full(len(usable), np.nan)
        correlations[usable.numpy()] = (spearman if ranks else pearson)(pair[0][usable], pair[1][usable]).numpy()
        return correlations

    def table(self) -> list[tuple[str, str, str]]:
        """Method, mean of Pearson's and of Spearman's correlation with ISM."""
        rows = []
        for name in list(self.per_base)[1:]:
            pearson, spearman = (np.nanmean(self.correlation(name, ranks=ranks)) for ranks in (False, True))
            rows.append((name, f"{pearson:.3f}", f"{spearman:.3f}"))
        return rows

    def plot(
        self,
        path: str | Path | None = None,
        *,
        names: Sequence[str] | None = None,
        count: int = 3,
        window: tuple[int, int] | None = None,
    ) -> Any:
        """Logos of the first `count` sequences, a row per method, with its correlation to ISM in that sequence."""
        correlations = {name: self.correlation(name) for name in list(self.per_base)[1:]}
        page = []
        for k, letters in enumerate(self.letters[:count]):
            rows = {
                name if name == "ISM" else f"{name}\nr = {correlations[name][k]:.2f}": values[k]
                for name, values in self.per_base.items()
            }
            page.append((names[k] if names is not None else f"sequence {k}", rows, letters, ()))
        return logo_page(page, window=window, path=path)

    def __repr__(self) -> str:
        count = len(self.letters)
        title = f"correlation with ISM over the bases, mean over {count} sequence{'s' * (count != 1)}"
        refused = "".join(f"\n{name} is left out: {why}" for name, why in self.refused.items())
        return f"{title}\n{render_table(('method', 'Pearson', 'Spearman'), self.table())}{refused}"


def compare_methods(
    model: nn.Module | Callable[..., Any],
    sequences: Any,
    settings: ScoreSettings | None = None,
    *,
    show_progress: bool | None = False,
    **changes: Any,
) -> Comparison:
    """ISM, LRP, PLRP, gradient × input and DeepLIFT on the same sequences, to see which to trust on this network.

    The fields of `ScoreSettings` may be given as keywords: `target`, `composite`, `pruning` (PLRP-λ with p = 0.05
    unless given), `batch_size` and `device`. A method that cannot be used on the model (tangermeme is not installed, or
    does not know an operation) is left out, with its reason in `Comparison.refused`.
    """
    settings = ScoreSettings.of(settings, changes)
    pruning = Pruning() if settings.pruning is None else settings.pruning
    onehot = _onehot(sequences)
    options: dict[str, Any] = {
        "target": settings.target,
        "batch_size": settings.batch_size or batch_size_for(onehot.shape[2]),
        "device": settings.device,
    }
    mutations = ism(model, onehot, **options, show_progress=show_progress)
    if settings.target is None:
        options["target"] = mutations.target.tolist()  # the classes that win, for all methods
    per_base = {"ISM": mutations.per_base()}
    refused: dict[str, str] = {}
    ours = {"composite": settings.composite, **options}
    for name, method in {
        "LRP": lambda: explain_sequences(model, onehot, **ours),
        pruning_title(pruning): lambda: explain_sequences(model, onehot, pruning=pruning, **ours),
        "gradient × input": lambda: gradient_input(model, onehot, **options),
        "DeepLIFT": lambda: deeplift(model, onehot, **options),
    }.items():
        try:
            per_base[name] = method().per_base()
        except (ImportError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            refused[name] = (str(error).strip() or type(error).__name__).splitlines()[0]
    letters = decode(onehot) if len(onehot) else []
    assert isinstance(letters, list)
    return Comparison(letters, per_base, refused)
