"""How much an explanation moves when its input moves a little: local Lipschitz estimate and max-sensitivity.

Both take the explanation method as a function, perturb each input `samples` times and keep the worst case. Every sample
gets the same perturbations (see `seeded.py`). At most `batch_size` perturbed inputs exist at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from plrp.composites import Composite
from plrp.explanation import explain as explained
from plrp.pruning import Pruning

from .feature_rows import check_finite, pick, wide_dtype
from .scores import GivenTarget, chunks, fix_target, for_rows
from .seeded import Draws, Noise

Normalisation = Literal["max", "mass", "norm"]


@dataclass(frozen=True)
class Explainer:
    """plrp's relevance of a model as a function `explain(inputs, target) -> relevance`.

    Robustness metrics ask how the explanation *of one decision* moves with the input. Given an `Explainer`, they
    therefore fix the target to the unperturbed input's winning class: otherwise a perturbation that tips the decision
    would compare the explanations of two classes.
    """

    model: nn.Module
    composite: str | Composite = "auto"
    pruning: Pruning | None = None

    def __call__(self, inputs: Tensor, target: GivenTarget = None) -> Tensor:
        """Relevance of `inputs` (batch, ...), same shape; `target=None` is each sample's winner."""
        return explained(self.model, inputs, target=target, composite=self.composite, pruning=self.pruning).relevance


def relevance_of(explain: Callable[..., Tensor], inputs: Tensor, target: GivenTarget, batch_size: int) -> Tensor:
    """Relevance of all inputs, `batch_size` at a time, by `explain(inputs)`, or `explain(inputs, target)` if given."""
    parts = [
        explain(inputs[rows]) if target is None else explain(inputs[rows], for_rows(target, rows))
        for rows in chunks(len(inputs), batch_size, inputs.device)
    ]
    return torch.cat(parts).detach() if parts else torch.zeros_like(inputs)


def local_lipschitz(
    explain: Callable[..., Tensor],
    inputs: Tensor,
    *,
    radius: float = 0.1,
    samples: int = 20,
    noise: Noise = "ball",
    normalise: Normalisation | None = None,
    target: GivenTarget = None,
    seed: int = 0,
    batch_size: int = 32,
) -> Tensor:
    """Estimate of the local Lipschitz constant (Alvarez-Melis & Jaakkola, 2018). Lower is more robust.

    L(x) = max over x' of ‖e(x) − e(x')‖₂ / ‖x − x'‖₂, with `samples` draws of x' around x. The true constant
    is at least the estimate.

    - `explain`: `explain(inputs) -> relevance`, batched; with `target` it is called as `explain(inputs, target)`. An
      `Explainer` explains each sample's unperturbed winning class unless a target is given.
    - `radius`, `noise`: `"ball"`: x' uniform in the Euclidean ball of `radius`. `"box"`: uniform in ±`radius` per
      entry. `"gaussian"`: normal with standard deviation `radius` per entry (the default of Quantus, with 0.1).
    - `normalise`: `None` compares relevance as it is, which is the definition. `"max"`, `"mass"`, `"norm"` first divide
      every map by its own largest absolute value, L1 or L2 norm, so that methods of different scale can be compared.
    - `target`: as in `plrp.explain`.

    A method that always answers zero scores 0. NaN in an explanation, or a radius so small that x' rounds to x, is a
    ValueError.

    >>> local_lipschitz(lambda x: 3 * x, torch.randn(2, 5), radius=0.5)
    tensor([3.0000, 3.0000], dtype=torch.float64)
    """
    draws = Draws(radius, samples, noise, seed)
    return _worst(explain, inputs, draws, normalise, target, batch_size, relative=False)


def max_sensitivity(
    explain: Callable[..., Tensor],
    inputs: Tensor,
    *,
    radius: float = 0.02,
    samples: int = 20,
    noise: Noise = "box",
    normalise: Normalisation | None = None,
    target: GivenTarget = None,
    seed: int = 0,
    batch_size: int = 32,
) -> Tensor:
    """Largest relative change of the explanation as the input changes a little. Lower is more robust.

    max over x' of ‖e(x) − e(x')‖₂ / ‖e(x)‖₂ (Yeh et al., 2019); the arguments are those of `local_lipschitz`, with
    Yeh's box (‖x − x'‖∞ ≤ `radius`) as default. Where e(x) is a zero map: 0 if every e(x') is zero too, else infinity.

    >>> max_sensitivity(lambda x: torch.ones_like(x), torch.randn(2, 5))
    tensor([0., 0.], dtype=torch.float64)
    """
    draws = Draws(radius, samples, noise, seed)
    return _worst(explain, inputs, draws, normalise, target, batch_size, relative=True)


def _worst(
    explain: Callable[..., Tensor],
    inputs: Tensor,
    draws: Draws,
    normalise: Normalisation | None,
    target: GivenTarget,
    batch_size: int,
    relative: bool,
) -> Tensor:
    """Largest ‖e(x) − e(x')‖ of each sample over its perturbations, divided by ‖e(x)‖ (relative) or ‖x − x'‖."""
    if not inputs.is_floating_point():
        raise ValueError(f"inputs of dtype {inputs.dtype} cannot be perturbed a little: pass a floating tensor.")
    if not draws.radius > 0 or draws.samples < 1 or batch_size < 1:
        values = f"{draws.radius}, {draws.samples}, {batch_size}"
        raise ValueError(f"radius, samples and batch_size must be positive; got {values}.")
    inputs, wide = inputs.detach(), wide_dtype(inputs)
    worst = torch.zeros(len(inputs), device=inputs.device, dtype=wide)
    if not len(inputs):
        return worst
    if target is not None or isinstance(explain, Explainer):
        model = explain.model if isinstance(explain, Explainer) else explain
        target = fix_target(model, inputs, target, batch_size)

    def maps(perturbed: Tensor, target: GivenTarget) -> Tensor:
        return scaled(relevance_of(explain, perturbed, target, batch_size).reshape(len(perturbed), -1), normalise)

    original = maps(inputs, target)
    length = check_finite(torch.linalg.vector_norm(original, dim=1, dtype=wide), "the explanation")
    shifts: dict[int, Tensor] = {}
    # All samples get perturbation 0, then all get perturbation 1: a draw is needed for one stretch only.
    for pairs in chunks(len(inputs) * draws.samples, batch_size, inputs.device):
        rows, index = pairs % len(inputs), pairs // len(inputs)
        needed = range(int(index[0]), int(index[-1]) + 1)
        shifts = {k: shifts[k] if k in shifts else draws.shift(k, inputs) for k in needed}
        here = inputs[rows]
        perturbed = here + torch.stack([shifts[k] for k in needed])[index - needed[0]]
        moved = torch.linalg.vector_norm((perturbed - here).flatten(1), dim=1, dtype=wide)
        if bool((moved == 0).any()):
            raise ValueError(
                f"radius {draws.radius} vanishes in the rounding of {inputs.dtype} inputs: choose a larger one."
            )
        change = maps(perturbed, for_rows(target, rows)) - original[rows]
        changed = torch.linalg.vector_norm(change, dim=1, dtype=wide)
        check_finite(changed, "the explanation of a perturbed input")
        ratio = torch.where(changed > 0, changed / (length[rows] if relative else moved), 0.0)
        worst.scatter_reduce_(0, rows, ratio, "amax")
    return worst


def scaled(relevance: Tensor, normalise: Normalisation | None) -> Tensor:
    """Each map (row) divided by its scale; a zero map stays zero."""
    if normalise is None:
        return relevance
    order = pick("normalise", normalise, {"max": torch.inf, "mass": 1, "norm": 2}, "None")
    scale = torch.linalg.vector_norm(relevance, ord=order, dim=1, keepdim=True)
    return relevance / torch.where(scale > 0, scale, 1.0)
