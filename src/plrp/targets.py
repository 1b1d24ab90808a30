"""The score that is explained: one `Target` for explanations, circuits, metrics and baselines.

Most targets name one output per sample, or compute a score from the outputs by a callable (`Computed`). A `Seed` gives
relevance to several outputs at once, so that the explanation shows the evidence for one class against others:
`contrast`, `log_odds`, `log_probability`, `clrp`, `sglrp`. Jung et al. (2021) warn that these differences may erase
evidence that classes share: see docs/how-to/targets.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .tape.difference import DifferenceTrace
from .tape.maps import Dense
from .tape.operations import Family
from .tape.refusals import unsupported
from .tape.trace import Trace
from .tape.values import Op, Value, reached, tensors_in
from .tape.verification import verify_target

__all__ = ["Seed", "clrp", "contrast", "log_odds", "log_probability", "sglrp"]

Samples = slice | Tensor | list[int]
COMPUTED = "The target callable must return a tensor computed from the output, one score per sample."


def as_target(given: Any, whole: bool = False) -> Target:
    """The target that a user means: a class, one class per sample, an index tuple, a callable, a seed, or None.

    `whole`: the output has no batch axis. A target that fits no output is refused here, before the model runs.
    """
    if isinstance(given, Target):
        if whole and isinstance(given, Seed):
            raise ValueError(f"{given!r} needs a batch of scores; without a batch axis spell it out with a callable.")
        return given if given.whole == whole else type(given)(given.given, whole)
    return Computed(given, whole) if callable(given) else Target(given, whole)


class Target:
    """A score of each sample that an output (batch, …) holds: by default that of the winning class.

    - `given`: None (the winner), a class, one class per sample as int64 (batch,), or an index tuple into the output
      without its batch axis. Later changes of the user's list or tensor do not reach it.
    - `whole`: the output has no batch axis, and `given` names one score of it.
    """

    def __init__(self, given: Any = None, whole: bool = False) -> None:
        self.given, self.whole = _checked(given), whole

    def check_batch(self, batch: int) -> None:
        """Refuse classes per sample for a batch of another size."""
        if isinstance(self.given, Tensor) and not self.whole and self.given.shape != (batch,):
            raise ValueError(
                f"target has shape {tuple(self.given.shape)} for a batch of {batch}: give one class per sample."
            )

    def of(self, samples: Samples) -> Target:
        """The target of some samples of the batch."""
        if not isinstance(self.given, Tensor):
            return self
        given = self.given.to(samples.device) if isinstance(samples, Tensor) else self.given
        return Target(given[samples])

    def fixed(self, winners: Callable[[], Tensor]) -> Target:
        """The target with these winners, (batch,), where it names no class, so that it follows no other output."""
        return Target(winners()) if self.given is None else self

    def bound(self, output: Tensor) -> Target:
        """The target with every class and place of this output written out."""
        return Target(self._locate(output)[1], self.whole)

    def score(self, output: Any) -> Tensor:
        """The score of every sample, (batch,)."""
        return output[self._locate(output)[0]].reshape(-1)

    def relevance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The relevance of the outputs at the start, and the gradient of the score with respect to them."""
        index = self._locate(output)[0]
        relevance, slope = torch.zeros_like(output), torch.zeros_like(output)
        relevance[index], slope[index] = output[index], 1.0
        return relevance, slope

    def in_words(self, scores: Tensor) -> str:
        """The target and the scores (batch,), for a line of text."""
        if isinstance(self.given, Tensor):
            each = [f"{int(c)} ({float(s):.4g})" for c, s in zip(self.given[:8], scores[:8], strict=True)]
            return f"target (score): {', '.join(each)}{' …' * (len(scores) > 8)}"
        each = [f"{float(s):.4g}" for s in scores[:8]]
        return f"target: {self}, score{'s' * (len(scores) > 1)} {', '.join(each)}{' …' * (len(scores) > 8)}"

    def __repr__(self) -> str:
        return repr(self.given.tolist() if isinstance(self.given, Tensor) else self.given)

    def _locate(self, output: Any) -> tuple[tuple[Any, ...], Any]:
        """The index of each sample's score in the output, and the target with every class and place written out."""
        if not isinstance(output, Tensor):
            raise ValueError(
                f"The model returns a {type(output).__name__}, not a tensor: spell the score out with a callable, for "
                f"example target=lambda output: {_example(output)}."
            )
        if self.whole:
            index = _place_in_whole(output, self.given)
            return index, index
        self.check_batch(len(output))
        rows = torch.arange(len(output), device=output.device)
        if output.dim() == 1:
            if self.given.any() if isinstance(self.given, Tensor) else self.given not in (None, 0, ()):
                shape = tuple(output.shape)
                raise ValueError(f"The output of shape {shape} is one score per sample: leave target out.")
            return (rows,), torch.zeros_like(rows)
        if isinstance(self.given, tuple):
            place = _place(output, self.given, batch_axes=1)
            return (rows, *place), torch.full_like(rows, place[0]) if len(place) == 1 else place
        chosen = _classes(output, self.given)
        return (rows, chosen), chosen


class Computed(Target):
    """A score that a callable computes from the model's output."""

    given: Callable[[Any], Any]

    def __init__(self, given: Callable[[Any], Any], whole: bool = False) -> None:
        self.given, self.whole = given, whole

    def check_batch(self, batch: int) -> None:
        """A callable serves every batch."""

    def fixed(self, winners: Callable[[], Tensor]) -> Target:
        """The target itself."""
        return self

    def bound(self, output: Any) -> Target:
        """The target itself."""
        return self

    def score(self, output: Any) -> Tensor:
        """The score of every sample, (batch,)."""
        batch = next((len(tensor) for tensor in tensors_in(output) if tensor.dim()), 0)
        score = self.compute(output)
        self.check_score(score, batch)
        return score.reshape(-1)

    def compute(self, output: Any) -> Tensor:
        """The tensor that the callable makes of the output."""
        try:
            score = self.given(output)
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            if isinstance(output, Tensor):
                raise
            size = f"{len(output)} items" if hasattr(output, "__len__") else "no fields"
            parts = ", ".join(map(str, _fields(output))) or size
            raise ValueError(
                f"The target callable failed on the model's output, a {type(output).__name__} ({parts}): "
                f"{type(error).__name__}: {error}. Write, for example, target=lambda output: {_example(output)}."
            ) from error
        if not isinstance(score, Tensor):
            raise TypeError(COMPUTED)
        return score

    def check_score(self, score: Tensor, batch: int) -> None:
        """Refuse a result that is not one score per sample."""
        returned = f"The target callable returned shape {tuple(score.shape)}"
        if self.whole and score.numel() != 1:
            raise ValueError(
                f"{returned}: without a batch axis (samples=None) reduce it to one score, for example with .sum()."
            )
        if not self.whole and tuple(score.shape) not in ((batch,), (batch, 1)):
            raise ValueError(
                f"{returned} for a batch of {batch}: reduce it to one score per sample, for example with "
                ".flatten(1).sum(1)."
            )

    def __repr__(self) -> str:
        return getattr(self.given, "__name__", None) or type(self.given).__name__


class Seed(Target):
    """Relevance for several outputs at once; called with a model's output it gives the score that is meant.

    `target` and, of a contrast, `against` are given as to `Target`. `axis` is that of the classes, where the output is
    not (batch, classes).
    """

    whole = False
    axis: int | None = None

    def __init__(self, name: str, target: Any = None, against: Any = None, axis: int | None = None) -> None:
        self.name, self.target, self.against = name, _checked(target), _checked(against)
        if axis is not None:  # seeds that 0.2.0 stored have none
            self.axis = axis

    @property
    def sides(self) -> list[Target]:
        """The class that is explained, and the one it is contrasted with."""
        return [Target(self.target), *([Target(self.against)] if self.name == "contrast" else [])]

    def _with(self, sides: list[Any]) -> Seed:
        return Seed(self.name, sides[0], sides[1] if len(sides) > 1 else None, self.axis)

    @property
    def given(self) -> Any:
        """The seed itself: this is how a user gives it."""
        return self

    def check_batch(self, batch: int) -> None:
        """Refuse classes per sample for a batch of another size."""
        for side in self.sides:
            side.check_batch(batch)

    def of(self, samples: Samples) -> Seed:
        """The seed of some samples of the batch."""
        return self._with([side.of(samples).given for side in self.sides])

    def fixed(self, winners: Callable[[], Tensor]) -> Seed:
        """The seed with these winners, (batch,), where it names no class, so that it follows no other output."""
        return self._with([side.fixed(winners).given for side in self.sides])

    def bound(self, output: Tensor) -> Seed:
        """The seed with the winners of this output where it names no class."""
        return self.fixed(lambda: Target().bound(output).given)

    def relevance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The relevance of the outputs at the start, and the gradient of the score with respect to them."""
        chosen, *others = [side.relevance(output)[1] for side in self.sides]
        if others and bool((chosen * others[0]).any()):
            raise ValueError(f"{self!r} contrasts a class with itself: name two.")
        fits = output.dim() == 2 or self.axis is not None
        if not others and not (fits and output.shape[self.axis or 1] > 1):
            raise ValueError(
                f"{self.name} compares a class with all others; the output has shape {tuple(output.shape)}: take "
                "targets.contrast, or name the axis of the classes in targets.log_odds(place, axis=…)."
            )
        return _contrast(output, chosen - others[0]) if others else _SEEDS[self.name][0](output, chosen, self.axis or 1)

    def score(self, output: Any) -> Tensor:
        """The score per sample that stands for the seed while a metric changes the input."""
        if self.name == "contrast":
            chosen, other = (side.score(output) for side in self.sides)
            return chosen - other
        return _SEEDS[self.name][1](output, self.sides[0]._locate(output)[0], self.axis or 1)

    __call__ = score

    def in_words(self, scores: Tensor) -> str:
        """The seed, for a line of text."""
        return f"target: {self}"

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.sides))})"


def contrast(target: Any, against: Any) -> Seed:
    """Why one class rather than another: z_t − z_s. Relevance starts as R_t = z_t and R_s = −z_s.

    Each is a class, one class per sample, or an index tuple into the output; None is the winning class.

    >>> import torch, plrp
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> explanation = plrp.explain(model, torch.randn(2, 4), target=plrp.targets.contrast(2, 0))
    >>> torch.allclose(explanation.score, explanation.logits[:, 2] - explanation.logits[:, 0])
    True
    """
    return Seed("contrast", target, against)


def log_odds(target: Any = None, axis: int | None = None) -> Seed:
    """Why a class rather than the others: log p_t / (1 − p_t), explained on the differences z_t − z_n.

    With w_n = exp(z_n) / Σ_{m≠t} exp(z_m), each difference starts with R_n = w_n (z_t − z_n) (Montavon et al. 2019).
    The rule of a last linear layer is applied to the differences of its weights, w_t − w_n; after any other operation
    they are split in proportion, R_t = z_t and R_n = −w_n z_n. The sum, which is handed down, is z_t − Σ w_n z_n: the
    log-odds plus the entropy of w. In an output with more axes than (batch, classes), `target` is an index tuple and
    `axis` that of the classes; the differences are then split in proportion.
    """
    return Seed("log_odds", target, axis=axis)


def log_probability(target: Any = None, axis: int | None = None) -> Seed:
    """Why a class is probable: log p_t, whose gradient starts as R_n = p_n (z_t − z_n).

    This is (1 − p_t) times the relevance of `log_odds`: the same map, and next to nothing where p_t is near 1. The sum
    is log p_t plus the entropy of p.
    """
    return Seed("log_probability", target, axis=axis)


def clrp(target: Any = None) -> Seed:
    """Contrastive LRP (Gu et al. 2019): R_t = z_t, and −z_t shared out evenly: R_n = −z_t / (N − 1).

    N counts the classes that the model does not rule out by a score of −∞.

    They keep the positive part of the result, `relevance.clamp(min=0)`, and propagate by z⁺: under the ε-rule, a class
    whose score is near zero hands down many times its own relevance.
    """
    return Seed("clrp", target)


def sglrp(target: Any = None) -> Seed:
    """Softmax-gradient LRP (Iwana et al. 2019): the gradient of p_t, R_t = p_t (1 − p_t) and R_n = −p_t p_n.

    As with `clrp` the relevance adds up to 0, and their rule is z⁺.
    """
    return Seed("sglrp", target)


def _contrast(z: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """slope · z; 0 where the slope is, also for the score −∞ of a class that the model rules out. And the slope."""
    return torch.where(slope == 0, 0.0, slope * z), slope


def _log_odds(z: Tensor, chosen: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    slope = chosen - chosen.sum(axis, keepdim=True) * z.masked_fill(chosen.bool(), -torch.inf).softmax(axis)
    return _contrast(z, slope)


def _log_probability(z: Tensor, chosen: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    return _contrast(z, chosen - chosen.sum(axis, keepdim=True) * z.softmax(axis))


def _clrp(z: Tensor, chosen: Tensor, _: int) -> tuple[Tensor, Tensor]:
    others = (1 - chosen) * (z > -torch.inf)
    slope = chosen - others / others.sum(1, keepdim=True)
    return slope * _contrast(z, chosen)[0].sum(1, keepdim=True), slope


def _sglrp(z: Tensor, chosen: Tensor, _: int) -> tuple[Tensor, Tensor]:
    p = z.softmax(1)
    slope = (p * chosen).sum(1, keepdim=True) * (chosen - p)
    return slope, slope


def _log_odds_of(z: Tensor, t: tuple[Tensor, ...], axis: int) -> Tensor:
    places = tuple(torch.as_tensor(place, device=z.device) for place in t)
    others = z.index_put(places, z.new_tensor(-torch.inf)).logsumexp(axis, keepdim=True).expand_as(z)
    return z[t] - others[t]


_SEEDS: dict[str, tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., Tensor]]] = {
    "log_odds": (_log_odds, _log_odds_of),
    "log_probability": (_log_probability, lambda z, t, axis: z.log_softmax(axis)[t]),
    "clrp": (
        _clrp,
        lambda z, t, _: z[t] - z.where(z > -torch.inf, torch.nan).index_put(t, z.new_tensor(torch.nan)).nanmean(1),
    ),
    "sglrp": (_sglrp, lambda z, t, _: (z[t] - z.logsumexp(1)).exp()),
}
"""Of each seed: relevance and gradient, from scores, a one-hot target and the axis; the score, from the place t."""


# --- where in an output -----------------------------------------------------------------------------------------------


def _checked(given: Any) -> Any:
    """A class, one class per sample as int64, an index tuple or None; anything else is refused."""
    if any(isinstance(one, bool | np.bool_) for one in (given if isinstance(given, list | tuple) else (given,))):
        raise TypeError(
            f"target={given} holds truth values, which name no class: give the number of a class, such as 1, or leave "
            "target out to explain the winning one."
        )
    if isinstance(given, tuple):
        if not all(hasattr(place, "__index__") for place in given):
            raise ValueError(f"target={given!r}: an index tuple into the output holds whole numbers.")
        return given
    if isinstance(given, Tensor | np.ndarray) or (isinstance(given, Sequence) and not isinstance(given, str)):
        if isinstance(given, Sequence) and any(not hasattr(one, "__index__") for one in given):
            raise TypeError(f"target={given!r}: one class per sample is a list of integers.")
        empty = not isinstance(given, Tensor) and np.ndim(given) == 1 and len(given) == 0
        classes = torch.zeros(0, dtype=torch.long) if empty else torch.as_tensor(given).detach()
        if classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool:
            raise TypeError(f"target holds {classes.dtype} values; classes are integers.")
        return classes.to(torch.long, copy=True) if classes.dim() else int(classes)
    if given is None or hasattr(given, "__index__"):
        return None if given is None else int(given)
    kind = f"the name {given!r}" if isinstance(given, str) else type(given).__name__
    names = ": a model knows its classes by number; plrp.vision.explain_photograph takes names"
    raise TypeError(
        "target is the number of a class, a sequence of them, an index tuple or a callable, got "
        f"{kind}{names if isinstance(given, str) else ''}."
    )


def _classes(output: Tensor, given: Any) -> Tensor:
    """The class of each sample in an output (batch, classes), (batch,)."""
    shape = tuple(output.shape)
    if output.dim() > 2:
        raise ValueError(
            f"The output has shape {shape}: say which score to explain, by an index tuple ({ranges(shape[1:])}) or a "
            "callable such as target=lambda output: output[:, 2].flatten(1).mean(1)."
        )
    batch, classes = shape
    if given is None and classes == 0:
        raise ValueError("The output has no classes.")
    if given is None:
        return output.argmax(1)
    chosen = given.to(output.device) if isinstance(given, Tensor) else torch.full((batch,), given, device=output.device)
    wrong = (chosen < -classes) | (chosen >= classes)
    if wrong.any():
        raise ValueError(
            f"target {int(chosen[wrong][0])} is out of range: the output has {classes} classes, 0…{classes - 1}."
        )
    return chosen % classes


def _place(output: Tensor, given: tuple[Any, ...], batch_axes: int) -> tuple[int, ...]:
    """An index tuple into the axes of an output after those of the batch, counted from 0."""
    shape = tuple(output.shape)
    sizes = shape[batch_axes:]
    if len(given) != len(sizes):
        axes = "one for each axis after the batch" if batch_axes else "one for each axis (there is no batch axis)"
        hint = " (a list, not a tuple, holds one class per sample)" if batch_axes and len(sizes) == 1 else ""
        raise ValueError(
            f"The index tuple {given} does not fit the output of shape {shape}: it needs {len(sizes)} whole numbers, "
            f"{axes}{hint}."
        )
    if not all(-size <= place < size for place, size in zip(given, sizes, strict=True)):
        raise ValueError(f"target {given} is out of range for an output of shape {shape}.")
    return tuple(int(place) % size for place, size in zip(given, sizes, strict=True))


def _place_in_whole(output: Tensor, given: Any) -> tuple[int, ...]:
    """The index of the one score of an output without a batch axis; the winner of a vector of scores."""
    if isinstance(given, tuple):
        return _place(output, given, batch_axes=0)
    if given is None and output.numel() == 1:
        return (0,) * output.dim()
    if output.dim() == 1 and len(output) and not isinstance(given, Tensor):
        return (int(output.argmax()),) if given is None else _place(output, (given,), batch_axes=0)
    raise ValueError(
        f"The output has shape {tuple(output.shape)} and no batch axis (samples=None): say which score to explain, by "
        f"an index tuple ({ranges(output.shape)}) or a callable such as target=lambda output: output.mean()."
    )


def ranges(sizes: Sequence[int]) -> str:
    """The places along axes of these sizes: `0…2, 0…99`."""
    return ", ".join(f"0…{size - 1}" for size in sizes)


def _example(output: Any) -> str:
    """A score out of an output that is no tensor, as one would write it."""
    first = next(iter(tensors_in(output)), None)
    place = "[:, 0]" if first is None or first.dim() < 3 else "[:, 0].flatten(1).mean(1)"
    if isinstance(output, list | tuple) and not hasattr(output, "_fields"):
        return f"output[0]{place}"
    names = _fields(output)
    name = "logits" if "logits" in names or not names else names[0]
    attributes = hasattr(output, "__dataclass_fields__") or hasattr(output, "_fields")
    return f"output.{name}{place}" if attributes else f"output[{name!r}]{place}"


def _fields(output: Any) -> list[Any]:
    """The names of the parts of an output that is no tensor."""
    if isinstance(output, dict):
        return list(output)
    return list(getattr(output, "__dataclass_fields__", ()) or getattr(output, "_fields", ()))


# --- where relevance starts on the tape -------------------------------------------------------------------------------


@dataclass
class Start:
    """The value at which relevance starts, its relevance there, and the score per sample."""

    value: Value
    relevance: Tensor
    seed: Tensor  # the gradient of the score with respect to the value
    score: Tensor  # the relevance that is handed down, (batch,)
    asked: Target  # with every class written out
    target: Any  # for the user: classes (batch,), an index tuple, a callable or a seed
    ops: list[Op]  # the tape, with the operations of a callable target at its end
    mass: Tensor | None = None  # ‖R‖₁ per sample, where the relevance adds up to 0
    classes: Tensor | None = None  # t of each sample, where relevance starts at the differences z_t − z_n

    def __post_init__(self) -> None:
        """Refuse scores of ±∞ and NaN."""
        if not bool(self.score.isfinite().all()):
            odd = float(self.score[~self.score.isfinite()][0])
            raise ValueError(
                f"The score to explain is {odd}, which cannot be shared out as relevance: name classes that the model "
                "does not rule out by −∞, leave target out for the winning one, or check the range of a callable."
            )

    def score_of(self, tensor: Tensor) -> Tensor:
        """The score of every sample, (batch,), if the value at which relevance starts were this tensor."""
        return tensor.reshape(-1) if isinstance(self.asked, Computed) else self.asked.score(tensor)


def start(trace: Trace, target: Any, dtype: torch.dtype) -> Start:
    """The start of a target's relevance at the output of a trace."""
    asked = as_target(target, whole=trace.samples is None)
    if isinstance(asked, Computed):
        return _from_callable(trace, asked, dtype)
    value = trace.value_of(trace.output) if isinstance(trace.output, Tensor) else None
    bound = asked.bound(trace.output)
    assert value is not None
    _check_order(value)
    output = value.data.to(dtype)
    if isinstance(bound, Seed) and bound.name != "contrast" and isinstance(trace, DifferenceTrace):
        raise ValueError(f"{bound!r} is not linear in the outputs, so it has no difference: take targets.contrast.")
    relevance, slope = bound.relevance(output)
    if isinstance(bound, Seed):
        classes, last = None, value.producer and value.producer.map
        differences = bound.name in ("log_odds", "log_probability") and output.dim() == 2
        if differences and isinstance(last, Dense) and (last.bias is None or last.bias.dim() == 1):
            classes = slope.argmax(1) if len(slope) else None
            relevance = slope * (output - output.gather(1, slope.argmax(1, keepdim=True)))
        rows = relevance.flatten(1)
        mass = rows.abs().sum(1) if bound.name in ("clrp", "sglrp") else None
        return Start(value, relevance, slope, rows.sum(1), bound, asked, trace.ops, mass, classes)
    return Start(value, relevance, slope, bound.score(output), bound, bound.given, trace.ops)


def check_target(output: Any, target: Any) -> None:
    """Refuse a class or index tuple that an output (batch, …) does not have, before anything is explained."""
    if isinstance(output, Tensor) and output.dim() and (target is None or isinstance(target, int | tuple)):
        as_target(target).bound(output)


def _check_order(value: Value) -> None:
    """Refuse an output that does not hold the samples in the order in which they were given."""
    layout = value.samples
    if layout.batch > 1 and layout.ids is not None and layout.axis == 0 and len(layout.ids) == layout.batch:
        raise ValueError(
            "The model returns the samples of the batch in another order than it was given them, so the score would be "
            "attributed to the wrong sample: explain one at a time, or put them back in order."
        )


def _from_callable(trace: Trace, target: Computed, dtype: torch.dtype) -> Start:
    """Record the callable as if it were the end of the model: relevance then passes it like any operation."""
    score, ops = trace.extended(target.compute)
    value = trace.value_of(score)
    if value is None:
        raise TypeError(COMPUTED)
    _check_order(value)
    target.check_score(score, trace.batch)
    for op in reached(ops, [value]):
        if op.family is Family.UNSUPPORTED:
            raise unsupported(op, ops)
    verify_target(trace.now, target.given, ops[len(trace.ops) :])
    relevance = value.data.to(dtype, copy=True)
    scores = relevance.reshape(trace.batch).clone()
    return Start(value, relevance, torch.ones_like(relevance), scores, target, target.given, ops)
