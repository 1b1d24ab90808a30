"""A second look at a model: does the tape hold all that its output depends on?

A path that the recorder cannot see (a scripted function, a detour over integers or numpy, another thread) looks like a
constant on the tape, and an explanation would be wrong without a word. So a model is run twice more, once for each
shape of its inputs: once without the recorder, whose output must be the same; and once recorded with the first sample
replaced by a far one. Where the same operations ran, what the tape holds as a constant must not have changed, nor
anything of the other samples.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plrp.errors import TraceError, UnsupportedOperation

from .operations import spelled
from .own_rules import rules_in_force
from .refusals import check_inputs, unsupported
from .trace import Trace, record
from .values import Op, Value, tensors_in

CLOSE = 1e-4  # relative to the largest entry: the same arithmetic, in another order at most

# By the id of a model, while it lives. (Not a WeakKeyDictionary: a Ctrl-C in one of its callbacks would be lost.)
_verified: dict[int, tuple[weakref.ref[Any], set[Any]]] = {}


def verify(
    model: Callable[..., Any], inputs: Tensor | Sequence[Tensor], *, samples: int | None = 0, always: bool = False
) -> None:
    """Refuse a model of which the tape misses something; once per model, shape and own rules, unless `always`."""
    shapes = tuple(_form(x, samples) for x in (inputs if isinstance(inputs, list | tuple) else (inputs,)))
    own = frozenset((key, rule if isinstance(rule, str) else "function") for key, rule in rules_in_force().items())
    seen = shapes, samples, own
    known = _shapes_of(model)
    if seen in known and not always:
        return
    given = check_inputs(inputs, samples)
    few = given if samples is None else [x[:2] for x in given]  # what depends on others shows in two samples
    if samples is None or given[0].shape[0]:
        try:
            first = record(model, tuple(few), samples=samples)
        except Exception:  # a model made for one size of batch, or one that fails on any
            few, first = given, record(model, tuple(given), samples=samples)
        _look_twice(model, few, first)
    known.add(seen)


def _form(x: Any, samples: int | None) -> Any:
    """What of an input decides which operations run: of a batch, two samples count as many."""
    if not isinstance(x, Tensor) or not x.dim():
        return type(x)
    shape = tuple(x.shape)
    return (shape if samples is None else (min(2, shape[0]), *shape[1:])), x.dtype, x.device


def _shapes_of(model: Any) -> set[Any]:
    """The shapes for which a model has been verified, to be added to."""
    entry = _verified.get(id(model))
    if entry is not None and entry[0]() is model:
        return entry[1]
    try:
        alive, shapes = weakref.ref(model), set[Any]()
    except TypeError:  # what cannot be referred to is looked at every time
        return set()
    for key in [key for key, (other, _) in list(_verified.items()) if other() is None]:
        _verified.pop(key, None)
    _verified[id(model)] = alive, shapes
    return shapes


def _look_twice(model: Callable[..., Any], given: Sequence[Tensor], first: Trace) -> None:
    if isinstance(first.output, Tensor):  # of several outputs, some may not be asked for
        for op in first.unsupported:  # found with two samples though not with many: an axis as long as the batch
            raise unsupported(op, first.ops)
    _compare_output(model, given, first)
    near: list[Trace | None] = []

    def nearby() -> Trace | None:
        if not near:
            near.append(_record_moved(model, given, first, far=False))
        return near[0]

    second = _record_moved(model, given, first, far=True) or nearby()  # far off the model may go another way
    if second is not None:
        _compare(first, second, nearby)


def _record_moved(model: Callable[..., Any], given: Sequence[Tensor], first: Trace, far: bool) -> Trace | None:
    """The pass of inputs of which the first sample was moved; None where the model goes another way, or cannot."""
    try:
        second = record(model, tuple(_moved(given, far, first.samples)), samples=first.samples)
    except Exception:  # whatever the model says to such an input
        return None
    return second if _same_operations(first, second) else None


def _moved(given: Sequence[Tensor], far: bool, samples: int | None) -> list[Tensor]:
    """The inputs with the first sample moved: its own entries in another order and noise of their size, or a little.

    Where there is no batch axis, the whole input is.
    """
    generator = torch.Generator().manual_seed(0)
    moved = []
    for x in given:
        if not x.is_floating_point():
            moved.append(_moved_tokens(x, samples))
            continue
        place: Any = ... if samples is None else 0
        sample = x[place].detach().flatten()
        order = torch.randperm(sample.numel(), generator=generator).to(x.device)
        noise = torch.randn(sample.numel(), generator=generator).to(x) * (sample.float().std(correction=0).to(x) + 1e-2)
        changed = x.detach().clone()
        new = sample[order] + 0.5 * noise if far else sample + 1e-3 * noise * (sample != 0)
        changed[place] = new.view_as(x[place])
        moved.append(changed)
    return moved


def _moved_tokens(ids: Tensor, samples: int | None) -> Tensor:
    """Token ids of which the first sample's were moved: those inside that occur once, each to the place of the next.

    Where there is no batch axis, all of them are one sample.
    Padding and the tokens at both ends mean more than themselves, so they stay.
    """
    changed = ids.detach().clone()
    place: Any = ... if samples is None else 0
    sample = changed[place].flatten()
    counts = (sample[:, None] == sample[None, :]).sum(1)
    places = [n for n in (counts == 1).nonzero().flatten().tolist() if 0 < n < len(sample) - 1]
    sample[places] = sample[places].roll(1)
    changed[place] = sample.view_as(changed[place])
    return changed


def _compare_output(model: Callable[..., Any], given: Sequence[Tensor], first: Trace) -> None:
    """The model by itself must say what it says while it is recorded."""
    with torch.inference_mode(False), torch.no_grad():
        alone = list(tensors_in(model(*(x.detach().clone() for x in given))))
    recorded = list(tensors_in(first.returned))
    if len(alone) == len(recorded) and all(_close(a, b) for a, b in zip(alone, recorded, strict=True)):
        return
    if isinstance(model, nn.Module) and any(isinstance(module, nn.TransformerEncoder) for module in model.modules()):
        raise TraceError(
            "The model gives a different output while being recorded than by itself: torch's fast path of "
            "nn.TransformerEncoder sets padded positions to zero, its ordinary path does not, and the model reads "
            "them. Make the encoder with enable_nested_tensor=False, or leave padded positions out of what is read."
        )
    raise TraceError(
        "The model gives a different output while being recorded than by itself: it writes into memory in a way that "
        "plrp does not see, keeps state between calls, or is random. Write the in-place steps out of place."
    )


def _same_operations(first: Trace, second: Trace) -> bool:
    def form(trace: Trace) -> list[Any]:
        return [(op.kind, op.function, tuple(v.shape for v in op.outputs)) for op in trace.ops]

    return form(first) == form(second)


def _compare(first: Trace, second: Trace, nearby: Callable[[], Trace | None]) -> None:
    """What differs between two passes of the same operations must be on the tape, and the first sample's.

    A factor may differ far off: as a gate it takes no relevance, if it stays the same nearby.
    """
    partner = {id(a): b for a, b in zip(first.ops, second.ops, strict=True)}

    def gates(op: Op) -> bool:
        near = nearby() if op.kind in ("mul", "div") else None
        if near is None:
            return False
        same = near.ops[[id(one) for one in first.ops].index(id(op))]
        return all(map(_unchanged, _constants(op), _constants(same)))

    for op in reversed(first.reached("half")):  # in order of execution, those that relevance comes to
        other = partner[id(op)]
        for a, b in zip(_constants(op), _constants(other), strict=False):
            if not _unchanged(a, b, op.kind in SUMMING) and not gates(op):
                raise UnsupportedOperation(
                    f"`{spelled(op.function)}` ('{op.name}') reads a number that depends on the input but is not on "
                    "the tape, so its relevance would be lost: it comes from comparisons or integers, or from a "
                    "function that hides what it does (scripted, compiled, numpy, another thread). Compute it with "
                    "torch functions on floating-point tensors."
                )
        for a, b in zip(op.outputs, other.outputs, strict=True) if isinstance(first.output, Tensor) else ():
            if not _others_unchanged(a, b):
                raise UnsupportedOperation(
                    f"`{spelled(op.function)}` ('{op.name}') mixes the samples of the batch: what it gives for one "
                    "depends on the others. Explain one sample at a time; if the model has no batch axis (a graph of "
                    "nodes, say), explain it with `samples=None`."
                )


def _constants(op: Op) -> Iterator[Any]:
    """The tensors and numbers among an operation's arguments that do not come from the input."""
    pending = [] if op.declared == "all" else [*op.args, *op.kwargs.values()]
    while pending:
        item = pending.pop(0)
        if op.declared == "numbers" and isinstance(item, int | float | complex):
            continue
        if isinstance(item, Tensor) or (isinstance(item, int | float | complex) and not isinstance(item, bool)):
            yield item
        elif isinstance(item, list | tuple) and not isinstance(item, torch.Size):
            pending = [*item, *pending]
        elif isinstance(item, dict):
            pending = [*item.values(), *pending]


SUMMING = ("add", "sub", "rsub", "cat", "stack")
"""Operations whose output holds a constant's numbers, where they are not only factors or conditions."""


def _unchanged(a: Any, b: Any, summing: bool = False) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and (a == b or a != a)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    same_memory = a.data_ptr() == b.data_ptr() and a.stride() == b.stride()
    if same_memory:
        return True
    if summing:
        return _close(a, b) or (_forbids(a) and _forbids(b))
    if not (a.is_floating_point() or a.is_complex()):  # masks and indices steer, they add nothing
        return True
    return _close(a, b) or (_steers(a) and _steers(b))


def _forbids(constant: Tensor) -> bool:
    """Whether a constant is an additive mask: 0, and something like −∞."""
    return bool(((constant == 0) | (constant <= -1e4)).all())


def _steers(constant: Tensor) -> bool:
    """Whether a constant is a mask written as numbers: 0 and 1, or 0 and something like −∞."""
    return bool(((constant == 0) | (constant == 1) | (constant <= -1e4)).all())


def _others_unchanged(a: Value, b: Value) -> bool:
    if a.samples.batch < 2 or not a.shape.numel():
        return True
    if a.samples.mixed:  # by a divisor or a gate over the batch, say, which relevance does not reach
        return a.shape[0] != a.samples.batch or _close(a.data[1:], b.data[1:])
    rows, others = (v.samples.rows(v.data)[1:] for v in (a, b))
    return _close(rows, others)


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if torch.equal(a, b) or not a.numel():
        return True
    if not a.is_floating_point():
        return not a.is_complex() and torch.equal(a, b)
    a, b = a.double().nan_to_num(), b.double().nan_to_num()
    return bool(((a - b).abs() <= CLOSE * torch.maximum(a.abs().max(), b.abs().max())).all())
