"""Does an explanation depend on the learnt weights? Randomise the layers, from the top, and compare.

The sanity check of Adebayo et al. (2018): a relevance map that stays the same when the weights are noise
explains the input or the architecture, not the model. `efficient_randomization` (eMPRT) and `smooth_randomization`
(sMPRT) are the two forms of Hedström et al. (2024).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from plrp.balance import unwarned
from plrp.tape.trace import record

from .feature_rows import MEASURES, Pooling, as_map, check_finite, flat
from .robustness import Explainer, relevance_of
from .scores import GivenTarget, fix_target
from .seeded import gaussian

Explain: TypeAlias = "Explainer | Callable[[nn.Module, Tensor, GivenTarget], Tensor] | None"


@dataclass(frozen=True)
class Randomization:
    """How similar the relevance is to the original model's after each step of `model_randomization`.

    `layers` names the layer randomised in each step, top down; `similarity[measure]` is float64 (steps, batch).
    """

    layers: tuple[str, ...]
    similarity: dict[str, Tensor]


def model_randomization(
    model: nn.Module,
    inputs: Tensor,
    explain: Explain = None,
    *,
    target: GivenTarget = None,
    layers: Sequence[str] | None = None,
    cascading: bool = True,
    measures: Sequence[Literal["spearman", "pearson", "cosine"]] = ("spearman", "cosine"),
    absolute: bool = False,
    seed: int = 0,
    batch_size: int = 32,
) -> Randomization:
    """Randomise the layers of a copy of the model, output first, and measure how similar its relevance stays.

    Low similarity is good. The model itself is not touched, nor is torch's global random state.

    - `explain`: `explain(model, inputs, target) -> relevance`; an `Explainer` (whose composite and pruning are applied
      to the copies), or None for plain LRP.
    - `target`: stays fixed; None is the winning class of the *original* model.
    - `layers`: the modules to randomise, in this order; None is all with parameters, in reverse order of execution.
    - `cascading`: whether layers stay randomised when the next ones follow; False randomises one at a time.
    - `measures`, `absolute`: how maps are compared, with or without their signs.
    - `seed`: layers with `reset_parameters` are re-initialised with it (batch norm to the identity); the parameters of
      others are redrawn from normal distributions with the same mean and standard deviation.

    Constant or zero maps have no correlation: NaN. NaN in an explanation is a ValueError.
    """
    unknown = set(measures) - set(MEASURES)
    if unknown or not measures:
        raise ValueError(f"unknown measures {sorted(unknown)}: choose from {sorted(MEASURES)}.")
    target = fix_target(model, inputs, target, batch_size)
    names = _top_down(model, inputs[:1]) if layers is None else list(layers)
    if not names:
        raise ValueError("nothing to randomise: no layers were named, and the model runs none with parameters.")
    private = copy.deepcopy(model)
    modules = dict(private.named_modules())
    missing = [name for name in names if name not in modules]
    if missing:
        raise ValueError(f"the model has no modules {missing}: layers are named as in model.named_modules().")

    def relevance() -> Tensor:
        maps = relevance_of(partial(_explain, explain, private), inputs, target, batch_size)
        return maps.abs() if absolute else maps

    original = relevance()
    scores: dict[str, list[Tensor]] = {measure: [] for measure in measures}
    for step, name in enumerate(names):
        before = copy.deepcopy(modules[name].state_dict())
        _randomise(modules[name], seed, step)
        with unwarned():  # networks with random weights are not expected to be explained well
            now = relevance()
        for measure in measures:
            scores[measure].append(MEASURES[measure](original, now))
        if not cascading:
            modules[name].load_state_dict(before)
    return Randomization(tuple(names), {measure: torch.stack(values) for measure, values in scores.items()})


def efficient_randomization(
    model: nn.Module,
    inputs: Tensor,
    explain: Explain = None,
    *,
    target: GivenTarget = None,
    bins: int = 100,
    channels: Pooling | None = None,
    seed: int = 0,
    batch_size: int = 32,
) -> Tensor:
    """eMPRT: by how much the map grows more complex when all layers are randomised (Hedström et al., 2024).

    (ξ(e') − ξ(e)) / ξ(e), with ξ the entropy of the histogram of a map's values over `bins` equal bins from its least
    to its greatest value, e the relevance and e' the relevance of a copy of the model with every layer re-initialised.
    A map of noise is as complex as can be: explanations that depend on the model gain complexity, and the score is
    positive. Needs two explanations where `model_randomization` needs one per layer. Returns float64 (batch,); NaN
    where ξ(e) is 0 (a constant map).
    """
    if bins < 2:
        raise ValueError(f"bins is the number of bins of a histogram, at least 2; got {bins}.")
    target = fix_target(model, inputs, target, batch_size)
    private = copy.deepcopy(model)

    def complexity() -> Tensor:
        maps = flat(as_map(relevance_of(partial(_explain, explain, private), inputs, target, batch_size), channels))
        check_finite(maps.sum(1))
        counts = [np.histogram(one, bins=bins)[0] for one in maps.cpu().double().numpy()]
        shares = [count[count > 0] / count.sum() for count in counts]
        nats = [float(-(share * np.log(share)).sum()) for share in shares]
        return torch.tensor(nats, dtype=torch.float64, device=inputs.device)

    before = complexity()
    for step, name in enumerate(_top_down(model, inputs[:1])):
        _randomise(private.get_submodule(name), seed, step)
    return torch.where(before > 0, (complexity() - before) / before, torch.nan)


def smooth_randomization(
    model: nn.Module,
    inputs: Tensor,
    explain: Explain = None,
    *,
    samples: int = 10,
    noise: float = 0.1,
    seed: int = 0,
    **options: Any,
) -> Randomization:
    """sMPRT: `model_randomization` with relevance averaged over noisy inputs (Hedström et al., 2024).

    Gradients shatter: two noisy maps may look unlike each other for no other reason than noise. The average over
    `samples` inputs removes that noise: the first is the input itself, the others have Gaussian noise of `noise` times
    the input's range. Further options are passed to `model_randomization`.
    """
    if samples < 1 or noise < 0:
        raise ValueError(f"samples must be at least 1 and noise at least 0; got {samples} and {noise}.")

    def smoothed(changed: nn.Module, x: Tensor, target: GivenTarget) -> Tensor:
        spread = noise * (x.flatten(1).amax(1) - x.flatten(1).amin(1)).reshape(-1, *[1] * (x.ndim - 1))
        total = _explain(explain, changed, x, target)
        for index in range(1, samples):
            total = total + _explain(explain, changed, x + spread * gaussian(x, 1.0, seed, index), target)
        return total / samples

    return model_randomization(model, inputs, smoothed, seed=seed, **options)


def _explain(explain: Explain, model: nn.Module, inputs: Tensor, target: GivenTarget) -> Tensor:
    if explain is None:
        return Explainer(model)(inputs, target)
    if isinstance(explain, Explainer):
        return replace(explain, model=model)(inputs, target)
    return explain(model, inputs, target).detach()


def _top_down(model: nn.Module, inputs: Tensor) -> list[str]:
    """Modules that have parameters themselves, last executed first, by the tape of one forward pass."""
    owners = {name for name, module in model.named_modules() if list(module.parameters(recurse=False))}
    executed: dict[str, None] = {}
    for op in record(model, inputs).ops:
        for called in (op.name, *op.folded):
            name = called.split("#")[0]
            if name in owners:
                executed.pop(name, None)  # a module called twice counts where it was called last
                executed[name] = None
    return list(reversed(executed))


def _randomise(module: nn.Module, seed: int, step: int) -> None:
    devices = sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1)[0]))
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
            return
        for parameter in module.parameters(recurse=False):
            spread = parameter.std(unbiased=False) if parameter.is_floating_point() else torch.tensor(0.0)
            parameter.copy_(parameter.mean() + spread * torch.randn_like(parameter))
