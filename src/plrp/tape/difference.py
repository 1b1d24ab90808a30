"""The difference of two passes as a tape: every value is Δ = a − a⁰, of the explained input and of a reference.

Each operation stands for a linear map J̄ that takes Δ of its inputs to Δ of its outputs exactly; biases and constants
are gone. `plrp/differences.py` states the maps. A reference whose pass takes another way through the model is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from plrp.errors import TraceError, UnsupportedOperation
from plrp.references import References

from .constants import constants_of
from .maps import unbiased
from .operations import Family, spelled
from .own_rules import Slope
from .refusals import unsupported
from .seam import remembered
from .trace import Trace
from .values import HALF, Op, Value, gathered, reached

CHOOSES = ("sort", "topk")  # operations that move elements to places which the elements decide


def difference(a: Tensor, b: Tensor) -> Tensor:
    """a − b; 0 where both are −∞, as under a mask."""
    apart = a - b
    return apart.nan_to_num_(0.0, torch.inf, -torch.inf) if apart.is_floating_point() else apart


class DifferenceValue(Value):
    """Δ of one tensor between the two passes, computed when it is first read; `forget` lets go of it."""

    def __init__(self, now: Value, before: Value, producer: Op | None = None) -> None:
        self.now, self.before, self.producer = now, before, producer
        self.shape, self.dtype = now.shape, torch.float32 if now.dtype in HALF else now.dtype
        self.samples, self.above_layer, self.nonnegative = now.samples, now.above_layer, False
        self.readers, self.sums, self._data, self._version = [], None, None, None

    @property  # type: ignore[misc]  # nobody writes into a difference
    def data(self) -> Tensor:
        """a − a⁰."""
        if self._data is None:
            self._data = difference(*self.pair(self.dtype))
        return self._data

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """a and a⁰."""
        return self.now.data.to(dtype), self.before.data.to(dtype)


@dataclass(eq=False)
class DifferenceOp(Op):
    """One operation, in both passes; its inputs and outputs are differences."""

    inputs: list[DifferenceValue]  # type: ignore[assignment]
    outputs: list[DifferenceValue]  # type: ignore[assignment]
    now: Op = None  # type: ignore[assignment]
    before: Op = None  # type: ignore[assignment]

    @classmethod
    def of(cls, now: Op, before: Op, inputs: list[DifferenceValue]) -> DifferenceOp:
        """The difference of an operation whose inputs have these."""
        same = {field.name: getattr(now, field.name) for field in fields(Op)}
        family, reason = family_of(now)
        changed = {"family": family, "reason": reason, "inputs": inputs, "signal": None, "gated": None, "winners": None}
        op = cls(**{**same, **changed}, now=now, before=before)
        op.outputs = [DifferenceValue(a, b, op) for a, b in zip(now.outputs, before.outputs, strict=True)]
        for value in inputs:
            value.readers.append(op)
        return op

    @property
    def output(self) -> DifferenceValue:
        """The first (mostly the only) output."""
        return self.outputs[0]

    @property
    def two(self) -> tuple[DifferenceValue, DifferenceValue]:
        """Both operands of a sum, product or quotient of two values."""
        first, second = (next(v for v in self.inputs if v.now is term) for term in self.now.terms)
        return first, second


def family_of(op: Op) -> tuple[Family, str]:
    """How the relevance of a difference passes an operation; where it has no form, the reason."""
    family, several = op.family, len(op.inputs) > 1
    if isinstance(op.rule, Slope) or op.is_layer:
        return (Family.PASS if op.rule else family), ""
    if op.rule is not None:
        return Family.UNSUPPORTED, "its own rule is for relevance, not for differences: give it a `plrp.Slope`"
    if family is Family.UNSUPPORTED and not op.by_difference:
        return family, op.reason
    if op.kind in ("softmax", "log_softmax"):
        return (Family.PRODUCT if several else Family.SOFTMAX), ""  # of groups of rows: exp(z) over its sum
    if family is Family.AFFINE:
        fixed = op.kind == "batch_norm" or not (op.kind != "instance_norm" or op.argument(5, "use_input_stats", True))
        return (Family.PASS if fixed else family), ""
    if op.traits.statistic and (op.kind != "normalize" or op.argument(1, "p", 2.0) != 2):
        return Family.UNSUPPORTED, "it has no difference form"
    if op.traits.statistic:
        return Family.AFFINE, ""
    if op.traits.boxes and several:
        return Family.UNSUPPORTED, "boxes that depend on the input"
    if op.operation.contracts and (op.signal is not None or family is Family.PRODUCT):
        bilinear = len(op.operands) == 2
        return (Family.PRODUCT, "") if bilinear else (Family.UNSUPPORTED, "a product of more than two signals")
    if op.operation.multiplies:
        return (Family.PRODUCT if several else Family.PASS), ""
    if op.operation.adds or (op.operation.family is Family.WINNER and op.traits.elementwise):
        return (op.operation.family if several else Family.PASS), ""
    if Family.PASS in (family, op.operation.family) and several:
        return Family.UNSUPPORTED, "several operands that depend on the input"
    return (op.operation.family if family in (Family.OFFSET, Family.UNSUPPORTED) else family), ""


class DifferenceTrace(Trace):
    """The passes on some inputs and on a reference, as a tape of their difference.

    `now` and `before` are the traces of the two passes. Of several `references` this is the tape of the first.
    """

    def __init__(self, now: Trace, references: References) -> None:
        given = references.each[0]
        try:
            before = now.with_inputs(given[0] if now.single else given)
        except (UnsupportedOperation, TraceError, ValueError) as error:
            raise type(error)(f"In the pass on the reference: {error}") from error
        self._now, self.before, self.references = now, before, references
        self.single, self.samples, self.batch = now.single, now.samples, now.batch
        self.output, self.returned, self.head = now.output, now.returned, now.head
        self.memory, self.consumed, self._state, self._recorder = {}, False, now._state, now._recorder
        inputs = [DifferenceValue(a, b) for a, b in zip(now.inputs, before.inputs, strict=True)]
        self.inputs = list[Value](inputs)
        self._values = {id(value.now): value for value in inputs}  # by the id of the value in the pass on the inputs
        self.ops = self._paired(now.ops, before.ops)  # type: ignore[assignment]
        self._check_constants(self.reached("half"))

    @property
    def now(self) -> Trace:
        """The pass on the explained inputs."""
        return self._now

    def value_of(self, tensor: Tensor) -> Value | None:
        """The difference that belongs to a live tensor of the pass on the inputs."""
        return self._values.get(id(self.now.value_of(tensor)))

    def extended(self, compute: Callable[[Any], Tensor]) -> tuple[Tensor, list[Op]]:
        """A tensor that is computed from the output, and the tape with the steps of it at its end."""
        (score, ops), (_, others) = self.now.extended(compute), self.before.extended(compute)
        tail = self._paired(ops[len(self.now.ops) :], others[len(self.before.ops) :])
        value = self.value_of(score)
        self._check_constants(reached(tail, [] if value is None else [value], "half"))
        return score, [*self.ops, *tail]

    def of_sample(self, sample: int) -> Trace:
        """The difference of one of the samples alone."""
        if self.batch == 1:
            return self
        return DifferenceTrace(self.now.of_sample(sample), self.references.of(slice(sample, sample + 1)))

    def with_inputs(self, inputs: Any) -> Trace:
        """Other inputs have other references."""
        raise ValueError("A trace with a reference is of its own inputs alone: trace others with their reference.")

    def _paired(self, ops: Sequence[Op], others: Sequence[Op]) -> list[DifferenceOp]:
        """The operations of both passes, two by two; refused where the passes differ."""
        pairs = []
        for position, now in enumerate(ops):
            before = others[position] if position < len(others) else None
            inputs = [self._values.get(id(value)) for value in now.inputs]
            if before is None or _form(now) != _form(before) or [v and v.before for v in inputs] != before.inputs:
                raise _another_way(now, before, ops)
            pair = DifferenceOp.of(now, before, inputs)  # type: ignore[arg-type]
            if now.map is not None:  # one for all references: with it stay W⁺ and W⁻
                pair.map = remembered(self.now, ("unbiased", id(now)), now, partial(unbiased, now.map))
            self._values.update((id(value.now), value) for value in pair.outputs)
            pairs.append(pair)
        if len(others) > len(ops):
            raise _another_way(None, others[len(ops)], ops)
        return pairs

    def _check_constants(self, ops: Sequence[Op]) -> None:
        """Refuse operations that read other numbers, indices or conditions in the pass on the reference."""
        for op in reversed(ops):
            assert isinstance(op, DifferenceOp)
            read = [list(constants_of(one)) for one in (op.now, op.before)]
            if op.kind in CHOOSES:
                for one, constants in zip((op.now, op.before), read, strict=True):
                    results = gathered(one.call([value.data for value in one.inputs]))
                    constants += [t for t in results if not t.is_floating_point()]
            if len(read[0]) != len(read[1]) or not all(map(_equal, *read)):
                raise UnsupportedOperation(
                    f"`{spelled(op.function)}` ('{op.name}') reads an index, a mask or a number that is another one in "
                    "the pass on the reference, so it has no difference form: take a reference that keeps it."
                )

    def check_supported(self) -> DifferenceTrace:
        """This tape; refused where relevance would reach an operation without a difference form."""
        missing = self.unsupported_under("half")
        if missing and isinstance(self.output, Tensor):
            raise unsupported(missing[0], self.ops)
        return self


def repeated(now: Trace, copies: int) -> Trace:
    """The pass on a batch that holds the inputs so many times, one copy after the other."""
    if copies == 1:
        return now
    given = [torch.cat([value.data] * copies) for value in now.inputs]
    return remembered(now, ("repeated", copies), None, partial(now.with_inputs, given[0] if now.single else given))


def _form(op: Op) -> Any:
    """The form of an operation: two passes that agree in all of them took the same way."""
    return op.kind, op.name, [v.shape for v in op.inputs], [v.shape for v in op.outputs], op.is_layer


def _equal(a: Any, b: Any) -> bool:
    """Whether a constant is the same in both passes."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and (a == b or a != a)
    same = a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
    return same or torch.equal(a, b)


def _another_way(now: Op | None, before: Op | None, ops: Sequence[Op]) -> UnsupportedOperation:
    """The refusal of a reference whose pass runs other operations."""

    def shown(op: Op | None) -> str:
        if op is None:
            return "ends"
        shapes = ", ".join("×".join(map(str, value.shape)) for value in op.outputs)
        return f"runs `{spelled(op.function)}` ('{op.name}', {shapes})"

    below = ops if now is None else ops[: list(ops).index(now)]
    layer = next((op.name for op in reversed(below) if op.is_layer), None)
    where = "Before the first layer" if layer is None else f"After layer '{layer}'"
    return UnsupportedOperation(
        f"The reference takes another way through the model. {where} the input {shown(now)}, the reference "
        f"{shown(before)}: take a reference that the model treats as it treats the input."
    )
