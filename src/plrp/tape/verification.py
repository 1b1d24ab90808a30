"""A second look at a model: does the tape hold all that its output depends on?

A path that the recorder cannot see (a scripted function, a detour over integers or numpy, another thread) looks like a
constant on the tape, and an explanation would be wrong without a word. So a model is run a few times more: for each
shape of its inputs, for each way through it, and where a pass reads constants that no other did (`_samples_to_check`).
Once it runs without the recorder: its output must be the same. Then it is recorded with other samples in place of some
(`_plan`): constants of the tape must not change, nor any number of the samples that stayed. And at the end of a pass
every recorded tensor must be as it was recorded.
A target that is a function is checked in the same way, as a model of the output.
"""

from __future__ import annotations

import functools
import itertools
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plrp.errors import TraceError, UnsupportedOperation
from plrp.references import References

from .constants import constants_of, constants_read, digests
from .difference import DifferenceTrace
from .live_tensors import ByName
from .locating import MIXES
from .operations import spelled
from .own_rules import refuse_unused, rules_for, rules_in_force
from .recorder import Recorder
from .refusals import as_batch, check_inputs, unsupported
from .samples import Batch, Groups
from .trace import Trace, record
from .values import HALF, PRODUCTS, Op, Value, reached, replaced, tensors_in

# How far numbers may differ, as a share of each of them and of the largest ordinary one (`_close`).
CLOSE = 1e-4, 1e-4  # the same arithmetic, in another order at most
STAYED = 1e-4, 1e-5  # the same arithmetic in the same order, beside other samples
SAME = 1e-6, 1e-6  # the same, of constants
CLOSE_HALF = 5e-2  # at least, in half precision
FAR_ABOVE = 1e3  # times the median, and an entry is not ordinary
MASK = -1e4  # a summand this negative is a mask
NEARBY = 1e-2  # how far a sample is moved to see whether a factor is a gate, in deviations of its entries
MOST_CONSTANTS = 1 << 16  # that are remembered of a way through a model
DEEPEST = 8  # functions in functions of a target; one with deeper ones is looked at every time
FEW, MORE = 512, 2  # with at most 512 features all may agree by chance: twice as many passes

Move = Callable[[Tensor, torch.Generator], Tensor]  # another sample in place of this one
Nearby = Callable[[float], "Tape | None"]  # the pass with all samples moved a little; 0: with the same input again
Moved = Callable[[Move, int, Sequence[int]], "Tape | None"]  # the pass with these samples moved for the nth time


class Look(NamedTuple):
    """All that was seen of one way through a model, for inputs of one shape."""

    mixing: set[int]  # positions of entries on the tape that mix samples
    constants: set[int]  # hashes of the constants that it read
    batches: set[int]  # how many samples were looked at together


Ways = dict[int, Look]  # the verified ways through a model for inputs of one shape

# By the id of a model, while it lives. (Not a WeakKeyDictionary: a Ctrl-C in one of its callbacks would be lost.)
_verified: dict[int, tuple[weakref.ref[Any], dict[Any, Ways]]] = {}
_targets: set[Any] = set()  # verified targets: functions by content, operations, shapes and constants


def trace(
    model: Callable[..., Any],
    inputs: Any,
    *,
    samples: Any = 0,
    rules: Mapping[Any, Any] | None = None,
    reference: Any = None,
) -> Trace:
    """Record one forward pass of `model` for explaining it any number of times.

    `inputs` is a tensor with the batch on its first axis, or a tuple of such tensors for a model with several inputs;
    with `samples=None` the model has no batch axis, and the trace is of one whole; a vector names the sample of each
    row, see `plrp.explain`. `rules` are your own rules for operations, see `plrp.rules_for`. With a `reference`, as
    `plrp.explain` takes it, the trace is a difference of two passes. The model is not touched. An operation without a
    rule raises `UnsupportedOperation`.
    """
    model, inputs = ByName.of(model, inputs)
    own = inputs.detach().clone() if isinstance(inputs, Tensor) else replaced(inputs, Tensor.clone, of=Tensor)
    with rules_for(rules or {}):  # of a copy: the user may change the tensors later
        samples = as_batch(samples)
        recorded = record_verified(model, own, samples=samples)
        refuse_unused(rules, recorded._recorder.rules.seen)
        if reference is None:
            _refuse(recorded, recorded.unsupported)
        recorded.remember_state()
        if reference is None:
            return recorded
        return DifferenceTrace(recorded, References.given(reference, own, samples != 0)).check_supported()


def supported(recorded: Trace, products: str | None) -> Trace:
    """The trace itself; refused where relevance from its output would reach an operation without a rule.

    `products`: how the composite divides products of two signals.
    """
    _refuse(recorded, recorded.unsupported_under(products))
    return recorded


def _refuse(recorded: Trace, ops: Sequence[Op]) -> None:
    """Refuse the first of these operations, which have no rule."""
    if ops and isinstance(recorded.output, Tensor):  # of several outputs, some may not be asked for
        raise unsupported(ops[0], recorded.ops)


def record_verified(
    model: Callable[..., Any],
    inputs: Tensor | Sequence[Tensor],
    *,
    frugal: bool = False,
    samples: Batch = 0,
    always: bool = False,
) -> Trace:
    """One forward pass of a model, recorded, once it is known that the tape holds all of it."""
    ways = verify(model, inputs, samples=samples, always=always)
    trace = record(model, inputs, frugal=frugal, samples=samples)
    for last in (False, True):
        chosen, numbers = _samples_to_check(trace, ways)
        if not chosen:
            break
        chosen = list(range(trace.batch)) if last else chosen
        ways.update(verify(model, inputs, samples=samples, chosen=chosen, farther=numbers))
        trace = record(model, inputs, frugal=frugal, samples=samples)
    look = ways.get(_way(trace.ops))
    for position in look.mixing if look is not None else ():
        trace.ops[position].refuse(MIXES, mixes=True)
    return trace


def verify(
    model: Callable[..., Any],
    inputs: Tensor | Sequence[Tensor],
    *,
    samples: Batch = 0,
    always: bool = False,
    chosen: Sequence[int] = (),
    farther: bool = False,
) -> Ways:
    """Refuse a model if the tape misses a step of it; once per model, shape and own rules, unless `always`.

    Two samples are enough to see that one depends on another, in most models; or the `chosen` ones are looked at, and
    moved `farther` where they read other numbers than the samples before.
    """
    shapes = tuple(_form(x, samples) for x in (inputs if isinstance(inputs, list | tuple) else (inputs,)))
    own = frozenset((key, rule if isinstance(rule, str) else "function") for key, rule in rules_in_force().items())
    known, seen = _looked_at(model), (shapes, samples, own)
    if seen in known and not always and not chosen:
        return known[seen]
    given = check_inputs(inputs, samples)
    few = given if samples != 0 else [x[list(chosen)] if chosen else x[:2] for x in given]
    ways = known.get(seen, {})
    if samples != 0 or given[0].shape[0]:
        try:
            first = record(model, tuple(few), samples=samples, summing="all")
        except Exception:  # a model made for one size of batch, or one that fails on any
            few, first = given, record(model, tuple(given), samples=samples, summing="all")
        mixing = _look_twice(model, few, first, farther)
        look = ways.setdefault(_way(first.ops), Look(set(), set(), set()))
        if len(look.constants) > MOST_CONSTANTS:
            look.constants.clear()
        look.mixing.update(mixing)
        look.batches.add(first.batch)
        for constant in constants_read(first.ops, first.batch):
            look.constants.update(constant.keys, constant.values)
    known[seen] = ways
    return ways


def _samples_to_check(trace: Trace, ways: Ways) -> tuple[list[int], bool]:
    """The samples that have to be looked at, since no pass like theirs was, and whether they read other numbers.

    All of them on a new way through the model, and where the model may read samples by their positions: if samples are
    mixed, in a gate say, or a constant is no tensor of the model. Else the samples that read new constants.
    """
    look, everyone = ways.get(_way(trace.ops)), list(range(trace.batch))
    if look is None:
        return everyone, True
    reads = functools.cache(lambda: set(map(id, trace.reached("half"))))
    by_position = _mixes(trace.ops) or any(op.suspect and id(op) in reads() for op in trace.ops)
    if by_position and trace.batch > max(look.batches, default=0):
        return everyone, False
    chosen: set[int] = set()
    for constant in constants_read(trace.ops, trace.batch):
        new = [sample for sample, key in enumerate(constant.keys) if key not in look.constants]
        if not new or id(constant.op) not in reads() or not _is_number(constant.op, constant.data):
            continue
        if _excused(*constant[:3], constant.data, 0, lambda _: None):
            continue
        if (values := constant.values) and values <= look.constants:
            continue
        if len(constant.keys) < trace.batch:
            return everyone, True
        chosen.update(new)
    return sorted({*chosen, 0 if chosen != {0} else everyone[-1]}) if chosen else [], True  # no sample alone


def _form(x: Any, samples: Batch) -> Any:
    """A key for inputs that run the same operations: two samples count as many."""
    if not isinstance(x, Tensor) or not x.dim():
        return type(x)
    shape = tuple(x.shape)
    return (shape if samples != 0 else (min(2, shape[0]), *shape[1:])), x.dtype, x.device


def _way(ops: Sequence[Op]) -> int:
    """The way that an input took through a model: which operations ran, and on which parameters."""
    return hash(tuple([(op.kind, op.name) for op in ops]))


def _mixes(ops: Sequence[Op]) -> bool:
    """Whether a value of the tape mixes samples."""
    return any(value.samples.mixed for op in ops for value in op.outputs)


def _looked_at(model: Any) -> dict[Any, Ways]:
    """The verified ways through a model, by the shapes of its inputs; callers add to it."""
    entry = _verified.get(id(model))
    if entry is not None and entry[0]() is model:
        return entry[1]
    ways: dict[Any, Ways] = {}
    try:
        alive = weakref.ref(model)
    except TypeError:  # a model that cannot be referred to is looked at every time
        return ways
    for key in [key for key, (other, _) in list(_verified.items()) if other() is None]:
        _verified.pop(key, None)
    _verified[id(model)] = alive, ways
    return ways


def _look_twice(model: Callable[..., Any], given: Sequence[Tensor], first: Trace, farther: bool) -> list[int]:
    """Refuse a pass that the tape misses a step of; returns positions that mix samples, for outputs not asked for."""
    tape = Tape(first.ops, first.reached("half"), first, list(tensors_in(first.returned)))
    asked = isinstance(first.output, Tensor)  # of several outputs, some may not be asked for
    mixing = []
    # With two samples though not with many: an axis as long as the batch. A reference may give others a rule.
    for op in (op for op in first.unsupported if not op.by_difference):
        if asked:
            raise unsupported(op, first.ops)
        mixing += [first.ops.index(op)] * op.mixes
    _compare_output(model, given, first)
    _check_values(tape)

    def moved(move: Move, number: int, chosen: Sequence[int]) -> Tape | None:
        """The pass with these samples moved; None where the model cannot take them."""
        try:
            others = _moved(given, move, number, chosen, first.samples)
            second = record(model, tuple(others), samples=first.samples, summing="constants")
        except Exception:  # whatever the model says to such an input
            return None
        return Tape(second.ops, [], second, list(tensors_in(second.returned)))

    features = sum(v.samples.rows(v.data).shape[1] for v in first.inputs)
    return mixing + _compare_moved(tape, moved, asked, first.batch, features, farther)


class Tape(NamedTuple):
    """The operations that ran, and the ones that relevance reaches, top down."""

    ops: list[Op]
    reached: list[Op]
    owner: Any = None  # a trace, which lets go of its operations when it dies
    results: Sequence[Tensor] = ()  # the tensors that the model or the target returned


def _compare_moved(
    tape: Tape, moved: Moved, asked: bool, batch: int, features: int, farther: bool = False
) -> list[int]:
    """Compare the tape with tapes of moved inputs: moved far, and where these take another way, less far."""
    everyone = list(range(batch))

    @functools.cache
    def nearby(size: float) -> Tape | None:
        near = moved(functools.partial(_shifted, size=size), 1, everyone if size else [])
        return near if near is not None and _same_shapes(tape, near) else None

    selections, moves = _plan(tape, batch, features, farther)
    moves += _LESS_FAR
    mixing: list[int] = []
    complete = False
    for number, move in enumerate(moves):
        if complete and number >= len(selections):
            break
        chosen = selections[number % len(selections)]
        second = moved(move, number, chosen)
        stayed = [n for n in everyone if n not in chosen]
        if second is None or not _same_operations(tape, second):
            if second is not None and asked:
                _compare_results(tape, second, stayed, batch, nearby)
            continue
        mixing += _compare(tape, second, nearby, asked, stayed)
        complete = complete or _same_shapes(tape, second)
    if not complete:
        warnings.warn(
            "plrp runs a model on a second input to check that it sees every step, and could not do so here: the model "
            "fails, or runs other operations (experts chosen by the input, for example), for every other input tried. "
            "A step that plrp does not see would go unnoticed.",
            stacklevel=2,
        )
    return mixing


# --- other inputs -----------------------------------------------------------------------------------------------------


def _plan(tape: Tape, batch: int, features: int, farther: bool) -> tuple[list[list[int]], list[Move]]:
    """The samples that are moved in one pass after the other, and how.

    All together go to other sizes, which alone turn a comparison. `farther`: each does too; so it is where a number may
    come from the input.
    Where constants that may do so are additive masks alone, one half of a batch is moved, then the other.
    """
    mixes, suspects = _mixes(tape.ops), [op for op in tape.reached if op.suspect]
    farther = farther or any(map(_reads_suspect_number, suspects))
    masks = bool(suspects) and all(op.operation.adds for op in suspects)
    rounds = (MORE if features <= FEW else 1) * (MORE if mixes else 1)
    selections = _selections(batch, rounds)
    if batch > 2 and masks and not farther and not mixes:
        return selections[:2], [*_FAR]
    moves = [_FAR[number % 2] for number in range(len(selections))]
    if farther:
        selections += selections
        moves += [_FARTHEST[number % 2] for number in range(len(moves))]
    everyone = list(range(batch))  # each alone may be enough for `any`
    return [*selections, everyone, everyone], [*moves, *_FARTHEST]


def _selections(batch: int, rounds: int) -> list[list[int]]:
    """The samples that are moved in one pass after the other: those with a 0 at a digit of their binary number, then
    those with a 1. Two samples are moved one at a time.

    So any sample is moved in a pass in which any other stays, the last and the first for example, and a sample that
    depends on another shows, at the cost of 2 log₂(batch) passes. Each second round goes backwards, so that a sample is
    moved both by low and by high numbers.
    """
    digits = range((batch - 1).bit_length() if batch > 1 else 0)
    halves = [[n for n in range(batch) if n >> digit & 1 == bit] for digit in digits for bit in (0, 1)]
    halves = halves or [list(range(batch))] * 2
    return [chosen for number in range(rounds) for chosen in (halves if number % 2 == 0 else halves[::-1])]


def _moved(given: Sequence[Tensor], move: Move, number: int, chosen: Sequence[int], samples: Batch) -> list[Tensor]:
    """The inputs with the chosen samples moved; without a batch axis, the whole input is."""
    generator = torch.Generator().manual_seed(number)
    inputs = []
    for which, x in enumerate(given):
        changed = x.detach().clone()
        places: list[Any] = [...][: len(chosen)] if samples is None else list(chosen)
        for place in [samples.vectors[which] == n for n in chosen] if isinstance(samples, Groups) else places:
            sample = changed[place]
            if not sample.numel():  # a graph without edges, say
                continue
            if x.is_floating_point():
                changed[place] = move(sample, generator)
            elif len(given) == 1 or not bool((sample <= 1).all()):  # else a mask of 0 and 1, which stays
                changed[place] = _moved_ids(sample, move, generator, number)
        inputs.append(changed)
    return inputs


def _noise(sample: Tensor, generator: torch.Generator) -> Tensor:
    """Noise of the size of a sample's entries."""
    size = sample.float().std(correction=0).to(sample) + 1e-2
    return torch.randn(sample.shape, generator=generator).to(sample) * size


def _drawn(sample: Tensor, generator: torch.Generator, high: bool) -> Tensor:
    """Entries of the sample in other places, the low ones (or the high ones) oftener than it has them, and noise."""
    ordered = sample.flatten().sort(descending=high).values
    places = (torch.rand(sample.numel(), generator=generator) ** 2 * sample.numel()).long().to(sample.device)
    return ordered[places].view(sample.shape) + 0.5 * _noise(sample, generator)


def _shifted(sample: Tensor, generator: torch.Generator, size: float) -> Tensor:
    """The sample with a little noise where it is not zero."""
    return sample + size * _noise(sample, generator) * (sample != 0)


def _rolled(sample: Tensor, generator: torch.Generator, axis: int) -> Tensor:
    """The sample's own entries in another order along an axis: one-hot letters stay one-hot."""
    return sample.roll(1 + sample.shape[axis] // 3, axis) if sample.dim() else sample


def _scaled(sample: Tensor, generator: torch.Generator, size: float) -> Tensor:
    """A sample of other entries and another size."""
    return size * _drawn(sample, generator, high=True)


_FAR: tuple[Move, ...] = (functools.partial(_drawn, high=False), functools.partial(_drawn, high=True))
_FARTHEST: tuple[Move, ...] = (functools.partial(_scaled, size=0.0), functools.partial(_scaled, size=-8.0))
_LESS_FAR: tuple[Move, ...] = (
    functools.partial(_rolled, axis=-1),
    functools.partial(_rolled, axis=0),
    *(functools.partial(_shifted, size=size) for size in (0.3, 0.1, 0.03, 0.01, 1e-3)),
)


def _moved_ids(ids: Tensor, move: Move, generator: torch.Generator, number: int) -> Tensor:
    """Other token ids, for the nth time: all of a sample's inner ids become ids of their lower half, then of their
    higher half. Then ids at the ends change too, and all become ids between the smallest and the largest.

    So the count of each id changes, every sum, and the largest. Less far, one id becomes another, or ids rotate.
    """
    sample, low = ids.flatten(), number % 2 == 0
    ends = number % 4 > 1 and move not in _LESS_FAR
    places = _places_of_ids(sample.tolist(), ends)
    given = sample[places]
    known = given.unique()
    half = known[: len(known) // 2] if low else known[(len(known) + 1) // 2 :]
    if len(known) == 1:  # neighbours; 0 may be the padding
        half = known + 1 if low or known < 2 else known - 1
    elif ends and len(known) and known[-1] - known[0] > 1:
        half = torch.arange(int(known[0]) + 1, int(known[-1])).to(known)
    if move is _LESS_FAR[1]:
        given = given.roll(1 if low else -1)
    elif move in (*_FAR, *_FARTHEST):
        given = _others(half, given, generator)
    elif places:
        one = int(torch.randint(len(places), (), generator=generator))
        others = known[known != given[one]]
        given[one] = _others(others if len(others) else half, given[one], generator)
    sample[places] = given
    return sample.view_as(ids)


def _others(ids: Tensor, given: Tensor, generator: torch.Generator) -> Tensor:
    """Some of these ids, at random, in place of the given ones; the next one where the same is drawn."""
    count = max(1, len(ids))
    drawn = torch.randint(count, given.shape, generator=generator).to(ids.device)
    return torch.where(ids[drawn] == given, ids[(drawn + 1) % count], ids[drawn])


def _places_of_ids(sample: Sequence[int], ends: bool) -> list[int]:
    """The places of ids that may change. Padding stays: the id that a sample begins or ends with several times.

    With `ends`, 0 and 1 stay too, which may be padding that occurs once. Without, the first and the last id beside the
    padding stay, and others like them. If nothing is left, the inner ids may change.
    """
    runs = [(token, len(list(run))) for token, run in itertools.groupby(sample)]
    stay = {0, 1} if ends else set()
    for side in (runs, runs[::-1]) if runs else ():
        padded = side[0][1] > 1
        stay.update(token for token, _ in side[: padded + (not ends)])
    inside = range(1, len(sample) - 1) if len(sample) > 2 else range(len(sample))
    return [place for place, token in enumerate(sample) if token not in stay] or list(inside)


# --- comparisons ------------------------------------------------------------------------------------------------------


def _compare_output(model: Callable[..., Any], given: Sequence[Tensor], first: Trace) -> None:
    """The model must return the same output with and without the recorder."""
    with torch.inference_mode(False), torch.no_grad():
        alone = list(tensors_in(model(*(x.detach().clone() for x in given))))
    returned = list(tensors_in(first.returned))
    if len(alone) == len(returned) and all(_close(a, b, *CLOSE) for a, b in zip(alone, returned, strict=True)):
        return
    if isinstance(model, nn.Module) and any(isinstance(module, nn.TransformerEncoder) for module in model.modules()):
        raise TraceError(
            "The model gives a different output while being recorded than by itself: torch's fast path of "
            "nn.TransformerEncoder sets padded positions to zero, its ordinary path does not, and the model reads "
            "them. Make the encoder with enable_nested_tensor=False, or leave padded positions out of the output."
        )
    raise TraceError(
        "The model gives a different output while being recorded than by itself: it writes into memory in a way that "
        "plrp does not see, keeps state between calls, or is random. Write in-place steps out of place; leave "
        "chance and state out."
    )


def _check_values(tape: Tape) -> None:
    """Every tensor must be as it was recorded, for memory may be written behind torch's back; and ≥ 0 where it is
    taken for that, for rules leave out terms by it.
    """
    for op in tape.ops:
        for value in op.outputs:
            now = value.add_up()
            if value.sums is not None and now is not None and not torch.equal(value.sums, now):
                raise TraceError(
                    f"The output of `{op.kind}` ('{op.name}') was changed in place later on, in a way that plrp does "
                    "not see (memory shared with numpy or another library); write into a copy."
                )
            if value.nonnegative and now is not None and value.data.numel() and float(value.data.min()) < 0:
                raise TraceError(f"The output of `{op.kind}` ('{op.name}') is taken for ≥ 0 and is not: please report.")


def _same_operations(first: Tape, second: Tape) -> bool:
    def form(tape: Tape) -> list[Any]:
        return [(op.kind, op.function, len(op.outputs)) for op in tape.ops]

    return form(first) == form(second)


def _same_shape(op: Op, other: Op) -> bool:
    pairs = zip((*op.inputs, *op.outputs), (*other.inputs, *other.outputs), strict=False)
    return all(a.shape == b.shape for a, b in pairs)


def _same_shapes(first: Tape, second: Tape) -> bool:
    return _same_operations(first, second) and all(map(_same_shape, first.ops, second.ops))


def _compare_results(first: Tape, second: Tape, stayed: Sequence[int], batch: int, nearby: Nearby) -> None:
    """Refuse a branch that other samples decide: on another way, the samples that stayed must have the same results."""
    for a, b in zip(first.results, second.results, strict=False):
        if stayed and a.shape == b.shape and a.shape[:1] == (batch,) and not _close(a[stayed], b[stayed], *STAYED):
            if nearby(0.0) is None:
                raise UnsupportedOperation("A choice of operations " + _UNSTEADY)
            raise UnsupportedOperation(
                "Other operations run when other samples of the batch change, and the result for a sample changes with "
                "them: a branch is decided by the whole batch. Explain one sample at a time."
            )


_HIDDEN = (
    "depends on the input but is not on the tape, so its relevance would be lost: it comes from comparisons or "
    "integers, or from a function that hides what it does (scripted, compiled, numpy, another thread). Compute it with "
    "torch functions on floating-point tensors."
)
_UNSTEADY = (
    "differs from pass to pass for the same input: it is random, or the model keeps state between calls. Set the seed "
    "in the model's forward, or keep the number as it is while you explain."
)


def _compare(first: Tape, second: Tape, nearby: Nearby, asked: bool, stayed: Sequence[int]) -> list[int]:
    """Refuse a difference between two passes that is not on the tape, or that is in a sample that stayed.

    A factor may differ far off: as a gate it takes no relevance, if it stays the same nearby. Returns the positions of
    entries that mix samples, where it is not known whether they are `asked` for.
    """
    places = {id(op): position for position, op in enumerate(first.ops)}
    mixing: list[int] = []
    mixed: set[int] = set()  # values in which a sample depends on others
    for op in reversed(first.reached):  # in order of execution
        other = second.ops[places[id(op)]]
        if not _same_shape(op, other):
            continue
        for number, (a, b) in enumerate(zip(constants_of(op), constants_of(other), strict=False)):
            if _unchanged(op, other, a, b) or not _is_number(op, a):
                continue
            again = _same_nearby(op, number, a, places[id(op)], nearby(0.0))
            if not again or not _excused(op, number, a, b, places[id(op)], nearby):
                raise UnsupportedOperation(
                    f"`{spelled(op.function)}` ('{op.name}') reads a number that " + (_HIDDEN if again else _UNSTEADY)
                )
        for a, b in zip(op.outputs, other.outputs, strict=True) if stayed else ():
            if _agree_on(a, b, stayed):
                continue
            if not all(any(id(v) in mixed for v in op.receivers(products)) for products in PRODUCTS):
                if asked:
                    raise UnsupportedOperation(
                        f"`{spelled(op.function)}` ('{op.name}') mixes the samples of the batch: its output for one "
                        "depends on the others. Explain one sample at a time; if the model has no batch axis (a graph "
                        "of nodes, say), explain it with `samples=None`."
                    )
                mixing.append(places[id(op)])
            mixed.add(id(a))
    return mixing


def _unchanged(op: Op, other: Op, a: Any, b: Any) -> bool:
    """Whether a constant of an operation is the same in another pass; in memory of both, as each of them read it."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and (a == b or a != a)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.data_ptr() != b.data_ptr() or a.stride() != b.stride():
        return _close(a, b, *SAME)
    sums, others = op.sums.get(a.data_ptr()), other.sums.get(b.data_ptr())
    return sums is None or others is None or torch.equal(sums, others)


def _is_number(op: Op, constant: Any) -> bool:
    """Whether a constant is read as numbers. Indices and conditions steer: in their place there can be no float."""
    if not isinstance(constant, Tensor) or constant.is_floating_point() or constant.is_complex():
        return True

    def as_float(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor is constant else tensor

    args, kwargs = replaced((op.args, op.kwargs), as_float, of=Tensor)
    args, kwargs = replaced((args, kwargs), lambda value: value.data.clone())
    try:
        with torch.inference_mode(False), torch.no_grad():
            op.operation.replay(*args, **kwargs)
    except (RuntimeError, IndexError, TypeError):
        return False
    return True


def _excused(op: Op, number: int, a: Any, b: Any, position: int, nearby: Nearby) -> bool:
    """Whether a constant may differ: an additive mask, or a factor that is a mask, or that stays the same nearby."""
    if op.operation.adds:
        return _masks(a, b, 0) and torch.bool not in (a.dtype, b.dtype)
    bias = None if op.map is None else op.map.bias
    weighs = op.map is not None and isinstance(a, Tensor) and (bias is None or bias.data_ptr() != a.data_ptr())
    if not op.operation.multiplies and not weighs:
        return False
    if _masks(a, b, 1):
        return True
    near = nearby(NEARBY) if op.operation.multiplies else None
    return near is not None and _same_nearby(op, number, a, position, near)


def _same_nearby(op: Op, number: int, constant: Any, position: int, near: Tape | None) -> bool:
    """Whether a constant, the `number`th of an operation, is the same in a pass nearby; also where there is none."""
    return near is None or _unchanged(op, near.ops[position], constant, [*constants_of(near.ops[position])][number])


def _reads_suspect_number(op: Op) -> bool:
    """Whether an operation reads numbers that may come from the input: not an index, a condition or a mask."""
    if not op.suspect:
        return False
    for number, constant in enumerate(constants_of(op)):
        mask = isinstance(constant, Tensor) and (not op.operation.adds or bool((constant <= MASK).any()))
        if _is_number(op, constant) and not (mask and _excused(op, number, constant, constant, 0, lambda _: None)):
            return True  # a summand of zeros alone may be a count
    return False


def _masks(a: Any, b: Any, other: int) -> bool:
    """Whether both constants are masks written as numbers: 0, another number, and something like −∞."""
    return all(isinstance(c, Tensor) and bool(((c == 0) | (c == other) | (c <= MASK)).all()) for c in (a, b))


def _agree_on(a: Value, b: Value, samples: Sequence[int]) -> bool:
    """Whether two passes have the same numbers for these samples."""
    if a.samples.batch < 2 or not a.shape.numel():
        return True
    if a.samples.mixed:  # by a divisor or a gate over the batch, say, which relevance does not reach
        return a.shape[:1] != (a.samples.batch,) or _close(a.data[samples], b.data[samples], *STAYED)
    if b.samples.mixed:  # a moved sample chose no row (a token for an expert, say): the result of the rows is compared
        return True
    rows, others = (v.samples.rows(v.data)[samples] for v in (a, b))
    longest = max(rows.shape[1], others.shape[1])  # samples with fewer rows than another are padded
    rows, others = (nn.functional.pad(one, (0, longest - one.shape[1])) for one in (rows, others))
    return _close(rows, others, *STAYED)


def _close(a: Tensor, b: Tensor, relative: float, absolute: float) -> bool:
    """Whether two tensors agree entry by entry: to a share of the entry, or of the largest ordinary one.

    NaN and infinite entries agree with the same ones only.
    """
    if a.shape != b.shape:
        return False
    if torch.equal(a, b) or not a.numel():
        return True
    if not a.is_floating_point():
        return False
    if a.dtype in HALF or torch.is_autocast_enabled(a.device.type):
        relative, absolute = max(relative, CLOSE_HALF), max(absolute, CLOSE_HALF)
    a, b = a.double(), b.double()
    differ = (a != b) & ~(a.isnan() & b.isnan())
    gap, size = (a - b).abs(), torch.maximum(a.abs(), b.abs())
    filled = ~differ & (size >= -MASK)  # with a large number, in both
    close = gap.isfinite() & (gap <= relative * size + absolute * _ordinary(a[~filled]))
    return bool((close | ~differ).all())


def _ordinary(a: Tensor) -> Tensor:
    """The largest magnitude of a tensor, but for masks and entries far above most: where ordinary entries cancel in a
    sum, rounding is a share of it.
    """
    entries = a[a.isfinite() & (a != 0)]
    size = entries[entries > MASK].abs() if bool((entries > MASK).any()) else entries.abs()
    return size[size <= FAR_ABOVE * size.median()].max() if size.numel() else a.new_zeros(())


# --- targets ----------------------------------------------------------------------------------------------------------


def verify_target(trace: Trace, target: Callable[[Any], Any], ops: Sequence[Op]) -> None:
    """Refuse a function of the output that hides a path or mixes samples; `ops` ran in it."""
    function = target.func if isinstance(target, functools.partial) else target
    if not trace.batch or str(getattr(function, "__module__", "")).partition(".")[0] == "plrp":
        return
    shapes = tuple((t.shape, t.dtype) for t in tensors_in(trace.output))
    read = frozenset(key for constant in constants_read(ops, trace.batch) for key in constant.keys)
    content = _content(target)
    seen = content, tuple(op.kind for op in ops), shapes, read
    if content is not None and seen in _targets:
        return
    first = _target_tape(trace, target, None)
    if first is None:
        return

    def moved(move: Move, number: int, chosen: Sequence[int]) -> Tape | None:
        return _target_tape(trace, target, move, number, chosen)

    features = sum(t.numel() for t in tensors_in(trace.output)) // trace.batch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a target that takes no other output says so nowhere else
        _compare_moved(first, moved, True, trace.batch, features, farther=True)
    if content is not None:
        if len(_targets) > MOST_CONSTANTS:
            _targets.clear()
        _targets.add(seen)


def _content(item: Any, depth: int = 0) -> Any:
    """A key for a function and all that it reads: closure, defaults, arguments, global numbers; None: not known."""
    if isinstance(item, Number | str | bytes | type | None):
        return type(item), item
    if isinstance(item, Tensor) and item.layout is torch.strided:
        return item.shape, item.dtype, *digests(item, 1)
    if isinstance(item, FunctionType):
        cells = [cell.cell_contents for cell in item.__closure__ or () if cell != CellType()]  # but empty ones
        names = [item.__globals__.get(name) for name in item.__code__.co_names]
        numbers = [one for one in names if isinstance(one, Number)]
        held: Any = cells, numbers, item.__defaults__, item.__kwdefaults__
    elif isinstance(item, functools.partial):
        held = item.func, item.args, item.keywords
    else:
        held = tuple(item.items()) if isinstance(item, dict) else item
    if not isinstance(held, list | tuple) or depth > DEEPEST:
        return None
    parts = [_content(part, depth + 1) for part in held]
    return None if None in parts else (type(item), getattr(item, "__code__", None), *parts)


def _target_tape(
    trace: Trace, target: Callable[[Any], Any], move: Move | None, number: int = 0, chosen: Sequence[int] = ()
) -> Tape | None:
    """The tape of a target on the output, with the chosen samples moved; None where the target fails."""
    recorder, generator = Recorder(None, summing="constants"), torch.Generator().manual_seed(number)

    def fresh(tensor: Tensor) -> Tensor:
        value = trace.value_of(tensor)
        if value is None:
            return tensor
        data = value.data.clone()
        if move is not None and data.is_floating_point() and data.numel() and not value.samples.mixed:
            rows = value.samples.rows(data).clone()
            for row in (rows[n] for n in chosen):
                row.copy_(move(row, generator))
            data = value.samples.unrows(rows, data.shape).clone()
        new = Value(data.detach(), value.samples)
        new.nonnegative, new.above_layer = value.nonnegative and move is None, True
        recorder.live.know(data, new)
        return data

    try:
        with torch.inference_mode(False), torch.no_grad():
            output = replaced(trace.output, fresh, of=Tensor)
            with recorder:
                score = target(output)
    except Exception:  # whatever the target says to such an output
        return None
    value = recorder.value_of(score) if isinstance(score, Tensor) else None
    return None if value is None else Tape(recorder.ops, reached(recorder.ops, [value], "half"), recorder, [score])
