"""Where relevance starts: the score that is explained.

Most scores are one output, or computed from the outputs by a callable. A `Seed` gives relevance to several outputs at
once, so that the explanation says what speaks for one class and not for others: `contrast`, `log_odds`, `clrp`,
`sglrp`. Jung et al. (2021) warn that such differences may erase what classes share: see docs/how-to/targets.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .tape.operations import Family
from .tape.refusals import unsupported
from .tape.trace import Trace
from .tape.values import Op, Value, reached
from .tape.verification import verify_target


@dataclass
class Start:
    """The value at which relevance starts, its relevance there, and the score per sample."""

    value: Value
    relevance: Tensor
    seed: Tensor  # the gradient of the score with respect to the value
    score: Tensor
    target: Any
    ops: list[Op]  # the tape, with what a callable target computed at its end
    mass: Tensor | None = None  # ‖R‖₁ per sample, where it is not |score|


def snapshot(target: Any) -> Any:
    """The target as it is now: what the user does to it later is not meant for the ledger of this explanation."""
    if isinstance(target, Tensor):
        return target.clone()
    return target.copy() if isinstance(target, np.ndarray | list) else target


@dataclass(frozen=True, eq=False, repr=False)
class Seed:
    """Relevance for several outputs at once; called with a model's output it gives the score that is meant."""

    name: str
    target: Any = None  # a class or one per sample, None is the winner; of a contrast any target that is no callable
    against: Any = None

    def relevance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The relevance of the outputs (batch, …), and the gradient of the score with respect to them."""
        chosen = torch.zeros_like(output)
        chosen[_index(output, self.target)[0]] = 1.0
        if self.name == "contrast":
            other = torch.zeros_like(output)
            other[_index(output, self.against)[0]] = 1.0
            if bool((chosen * other).any()):
                raise ValueError(f"{self!r} contrasts a class with itself: name two.")
            return output * (chosen - other), chosen - other
        if output.dim() != 2 or output.shape[1] < 2:
            raise ValueError(
                f"{self.name} compares a class with all others; the output has shape {tuple(output.shape)}: take "
                "targets.contrast, or a callable."
            )
        return _SEEDS[self.name][0](output, chosen)

    def __call__(self, output: Tensor) -> Tensor:
        """The score per sample: what a metric looks at while it changes the input."""
        index = _index(output, self.target)[0]
        if self.name == "contrast":
            return output[index] - output[_index(output, self.against)[0]]
        return _SEEDS[self.name][1](output, index)

    def fixed(self, winners: Callable[[], Tensor]) -> Seed:
        """The seed with these winners, (batch,), where it names no class: it follows no other output."""
        target = winners() if self.target is None else self.target
        return Seed(self.name, target, winners() if self.name == "contrast" and self.against is None else self.against)

    def of(self, samples: slice | Tensor) -> Seed:
        """The seed of some samples of the batch."""
        each = [self.target, self.against]
        for n, one in enumerate(each):
            if _per_sample(one):
                one = one if isinstance(samples, slice) else torch.as_tensor(one, device=samples.device)
                each[n] = one[samples]
        return Seed(self.name, *each)

    def __repr__(self) -> str:
        given = [_shown(self.target), *([_shown(self.against)] if self.name == "contrast" else [])]
        return f"{self.name}({', '.join(given)})"


def contrast(target: Any, against: Any) -> Seed:
    """Why one class rather than another: z_t − z_s. Relevance starts as R_t = z_t and R_s = −z_s.

    Each is a class, one class per sample, or an index tuple into the output; None is the winning class.

    >>> import torch, plrp
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> explanation = plrp.explain(model, torch.randn(2, 4), target=plrp.targets.contrast(2, 0))
    >>> torch.allclose(explanation.score, explanation.logits[:, 2] - explanation.logits[:, 0])
    True
    """
    return Seed("contrast", snapshot(target), snapshot(against))


def log_odds(target: Any = None) -> Seed:
    """Why a class rather than the others: log p_t / (1 − p_t), explained on the differences z_t − z_n.

    With w_n = exp(z_n) / Σ_{m≠t} exp(z_m), each difference starts with w_n (z_t − z_n), so R_t = z_t and R_n = −w_n z_n
    (Montavon et al. 2019). What is handed down is z_t − Σ w_n z_n: the log-odds are that minus the entropy of w.
    """
    return Seed("log_odds", snapshot(target))


def clrp(target: Any = None) -> Seed:
    """Contrastive LRP (Gu et al. 2019): R_t = z_t, and −z_t shared out evenly: R_n = −z_t / (N − 1).

    They keep the positive part of the result, `relevance.clamp(min=0)`, and propagate by z⁺: under the ε-rule, a class
    whose score is near zero hands down many times what it is given, and the explanation is unhealthy.
    """
    return Seed("clrp", snapshot(target))


def sglrp(target: Any = None) -> Seed:
    """Softmax-gradient LRP (Iwana et al. 2019): the gradient of p_t, R_t = p_t (1 − p_t) and R_n = −p_t p_n.

    As with `clrp` the relevance adds up to 0, and their rule is z⁺.
    """
    return Seed("sglrp", snapshot(target))


def _log_odds(z: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    slope = chosen - z.masked_fill(chosen.bool(), -torch.inf).softmax(1)
    return slope * z, slope


def _clrp(z: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    slope = chosen - (1 - chosen) / (z.shape[1] - 1)
    return slope * (z * chosen).sum(1, keepdim=True), slope


def _sglrp(z: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    p = z.softmax(1)
    slope = (p * chosen).sum(1, keepdim=True) * (chosen - p)
    return slope, slope


_SEEDS: dict[str, tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., Tensor]]] = {
    "log_odds": (_log_odds, lambda z, t: z[t] - z.index_put(t, z.new_tensor(-torch.inf)).logsumexp(1)),
    "clrp": (_clrp, lambda z, t: z[t] - (z.sum(1) - z[t]) / (z.shape[1] - 1)),
    "sglrp": (_sglrp, lambda z, t: (z[t] - z.logsumexp(1)).exp()),
}
"""Of each seed: the relevance and the gradient, from scores and a one-hot target; the score, from scores and t."""


def _per_sample(target: Any) -> bool:
    """Whether a target holds one class per sample."""
    if isinstance(target, Tensor | np.ndarray):
        return target.ndim > 0
    return isinstance(target, Sequence) and not isinstance(target, str | tuple)


def piece_of(target: Any, samples: slice, batch: int) -> Any:
    """The target of some samples of a batch."""
    if isinstance(target, Seed):
        return target.of(samples)
    if _per_sample(target) and len(target) != batch and batch:
        raise ValueError(f"target has {len(target)} entries for a batch of {batch}: give one class per sample.")
    return target[samples] if _per_sample(target) else target


def _shown(target: Any) -> str:
    return repr(target.tolist() if isinstance(target, Tensor | np.ndarray) else target)


def start(trace: Trace, target: Any, dtype: torch.dtype) -> Start:
    """Turn what the user calls a target into relevance at the output."""
    if any(isinstance(one, bool | np.bool_) for one in (target if isinstance(target, list | tuple) else (target,))):
        raise TypeError(
            f"target={target} holds truth values, which name no class: give the number of a class, such as 1, or leave "
            "target out to explain the winning one."
        )
    if callable(target) and not isinstance(target, Seed):
        return _from_callable(trace, target, dtype)
    output = trace.output
    if not isinstance(output, Tensor):
        raise ValueError(
            f"The model returns a {type(output).__name__}, not a tensor: spell the score out with a callable, for "
            f"example target=lambda output: {_example(output)}."
        )
    value = trace.value_of(output)
    assert value is not None
    _check_order(value)
    if isinstance(target, Seed):
        if trace.samples is None:
            raise ValueError(f"{target!r} needs a batch of scores; without a batch axis spell it out with a callable.")
        given, slope = target.relevance(value.data.to(dtype))
        rows = given.flatten(1)
        return Start(value, given, slope, rows.sum(1), target, trace.ops, rows.abs().sum(1))
    index, chosen = _index(output, target) if trace.samples is not None else _index_of_whole(output, target)
    relevance = torch.zeros_like(value.data, dtype=dtype)
    score = value.data[index].to(dtype)
    relevance[index] = score
    seed = torch.zeros_like(relevance)
    seed[index] = 1.0
    return Start(value, relevance, seed, score.reshape(trace.batch), chosen, trace.ops)


def _example(output: Any) -> str:
    """A score out of an output that is no tensor, as one would write it."""
    if isinstance(output, list | tuple) and not hasattr(output, "_fields"):
        return "output[0][:, 3]"
    if hasattr(output, "__dataclass_fields__") or hasattr(output, "_fields"):
        names = list(getattr(output, "__dataclass_fields__", ())) or list(getattr(output, "_fields", ()))
        return f"output.{'logits' if 'logits' in names or not names else names[0]}[:, 3]"
    names = list(output) if isinstance(output, dict) else []
    return f"output[{'logits' if 'logits' in names or not names else names[0]!r}][:, 3]"


def _names(output: Any) -> str:
    """What an output that is no tensor holds, in words."""
    if isinstance(output, dict):
        return ", ".join(map(str, output))
    names = getattr(output, "__dataclass_fields__", None) or getattr(output, "_fields", None)
    return ", ".join(names) if names else f"{len(output)} items" if hasattr(output, "__len__") else "no fields"


def _check_order(value: Value) -> None:
    """Refuse an output that does not hold the samples in the order in which they were given."""
    layout = value.samples
    if layout.batch > 1 and layout.ids is not None and layout.axis == 0 and len(layout.ids) == layout.batch:
        raise ValueError(
            "The model returns the samples of the batch in another order than it was given them, so a score would be "
            "told for another sample: explain one at a time, or put them back in order."
        )


def check_target(output: Any, target: Any) -> None:
    """Refuse a class or index tuple that an output (batch, …) does not have, before anything is explained."""
    if isinstance(output, Tensor) and output.dim() and (target is None or isinstance(target, int | tuple)):
        _index(output, target)


def _index_of_whole(output: Tensor, target: Any) -> tuple[tuple[int, ...], Any]:
    """The index of the one score of an output without a batch axis, in full; the winner of a vector of scores."""
    shape = tuple(output.shape)
    if isinstance(target, Tensor | np.ndarray) and target.ndim == 0:
        target = target.item()
    if target is None and output.numel() == 1:
        places: tuple[Any, ...] = (0,) * output.dim()
    elif target is None and output.dim() == 1 and shape[0]:
        places = (int(output.argmax()),)
    elif isinstance(target, tuple):
        places = target
    elif hasattr(target, "__index__") and output.dim() == 1:
        places = (target,)
    else:
        ranges = ", ".join(f"0…{n - 1}" for n in shape)
        raise ValueError(
            f"The output has shape {shape} and no batch axis (samples=None): say which score to explain, by an index "
            f"tuple ({ranges}) or a callable such as target=lambda output: output.mean()."
        )
    if len(places) != output.dim() or not all(hasattr(i, "__index__") for i in places):
        raise ValueError(
            f"The index tuple {places} does not fit the output of shape {shape}: it needs {output.dim()} whole "
            "numbers, one for each axis (there is no batch axis)."
        )
    for place, size in zip(places, shape, strict=True):
        if not -size <= place < size:
            raise ValueError(f"target {target} is out of range for an output of shape {shape}.")
    index = tuple(int(i) % n for i, n in zip(places, shape, strict=True))
    return index, index


def _index(output: Tensor, target: Any) -> tuple[tuple[Any, ...], Any]:
    """The index of one score per sample into an output (batch, …), and the target in a uniform shape."""
    batch, shape = output.shape[0], tuple(output.shape)
    rows = torch.arange(batch, device=output.device)
    if output.dim() == 1:
        if target is not None and target != 0 and target != ():
            raise ValueError(f"The output of shape {shape} is one score per sample: leave target out.")
        return (rows,), torch.zeros(batch, dtype=torch.long, device=output.device)
    if isinstance(target, tuple):
        return _index_tuple(output, target, rows)
    if output.dim() > 2:
        places = ", ".join(f"0…{n - 1}" for n in shape[1:])
        raise ValueError(
            f"The output has shape {shape}: say which score to explain, by an index tuple ({places}) or a callable "
            "such as target=lambda output: output[:, 2].mean(-1)."
        )
    classes = shape[1]
    if target is None:
        if classes == 0:
            raise ValueError("The output has no classes.")
        chosen = output.argmax(1) if batch else rows
    elif isinstance(target, int):
        chosen = torch.full((batch,), target, dtype=torch.long, device=output.device)
    elif isinstance(target, Tensor | np.ndarray) or (isinstance(target, Sequence) and not isinstance(target, str)):
        if isinstance(target, Sequence) and any(not hasattr(one, "__index__") for one in target):
            raise TypeError(f"target={target!r}: one class per sample is a list of integers.")
        empty = not isinstance(target, Tensor) and len(target) == 0
        chosen = torch.as_tensor(rows if empty else target, device=output.device)
        if chosen.dim() == 0:
            chosen = chosen.expand(batch)
        if chosen.is_floating_point() or chosen.dtype == torch.bool:
            raise TypeError(f"target holds {chosen.dtype} values; classes are integers.")
        if chosen.shape != (batch,):
            raise ValueError(
                f"target has shape {tuple(chosen.shape)} for a batch of {batch}: give one class per sample."
            )
    elif hasattr(target, "__index__"):
        chosen = torch.full((batch,), target.__index__(), dtype=torch.long, device=output.device)
    else:
        found = f"the name {target!r}" if isinstance(target, str) else type(target).__name__
        names = ": a model knows its classes by number; plrp.vision.explain_photograph takes names"
        raise TypeError(
            "target is the number of a class, a sequence of them, an index tuple or a callable, got "
            f"{found}{names if isinstance(target, str) else ''}."
        )
    chosen = chosen.long()
    wrong = (chosen < -classes) | (chosen >= classes)
    if wrong.any():
        raise ValueError(
            f"target {int(chosen[wrong][0])} is out of range: the output has {classes} classes, 0…{classes - 1}."
        )
    chosen = chosen % classes
    return (rows, chosen), chosen


def _index_tuple(output: Tensor, target: tuple[Any, ...], rows: Tensor) -> tuple[tuple[Any, ...], Any]:
    shape = tuple(output.shape)
    if len(target) != output.dim() - 1 or not all(hasattr(i, "__index__") for i in target):
        hint = " (a list, not a tuple, holds one class per sample)" if output.dim() == 2 else ""
        raise ValueError(
            f"The index tuple {target} does not fit the output of shape {shape}: it needs {output.dim() - 1} whole "
            f"numbers, one for each axis after the batch{hint}."
        )
    for place, size in zip(target, shape[1:], strict=True):
        if not -size <= place < size:
            raise ValueError(f"target {target} is out of range for an output of shape {shape}.")
    places = tuple(int(i) % n for i, n in zip(target, shape[1:], strict=True))
    chosen: Any = places
    if len(places) == 1:
        chosen = torch.full((len(rows),), places[0], dtype=torch.long, device=output.device)
    return (rows, *places), chosen


def _from_callable(trace: Trace, target: Callable[[Any], Any], dtype: torch.dtype) -> Start:
    """Record the callable as if it were the end of the model: relevance then passes it like any operation."""
    with trace.continued() as ops, torch.no_grad():
        try:
            score = target(trace.output)
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            if isinstance(trace.output, Tensor):
                raise
            given = f"a {type(trace.output).__name__} ({_names(trace.output)})"
            raise ValueError(
                f"The target callable failed on the model's output, {given}: {type(error).__name__}: {error}. Write, "
                f"for example, target=lambda output: {_example(trace.output)}."
            ) from error
    if not isinstance(score, Tensor) or trace.value_of(score) is None:
        raise TypeError("The target callable must return a tensor computed from the output, one score per sample.")
    value = trace.value_of(score)
    assert value is not None
    _check_order(value)
    if trace.samples is None and score.numel() != 1:
        raise ValueError(
            f"The target callable returned shape {tuple(score.shape)}: without a batch axis (samples=None) reduce it "
            "to one score, for example with .sum()."
        )
    if trace.samples is not None and tuple(score.shape) not in ((trace.batch,), (trace.batch, 1)):
        raise ValueError(
            f"The target callable returned shape {tuple(score.shape)} for a batch of {trace.batch}: reduce it to one "
            "score per sample, for example with .sum(-1)."
        )
    for op in reached(ops, [value]):
        if op.family is Family.UNSUPPORTED:
            raise unsupported(op, ops)
    verify_target(trace, target, ops[len(trace.ops) :])
    relevance = value.data.to(dtype, copy=True)
    return Start(value, relevance, torch.ones_like(relevance), relevance.reshape(trace.batch).clone(), target, ops)
