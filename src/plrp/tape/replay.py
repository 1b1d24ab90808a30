"""The tape run again with some values changed: the output of the model, had these neurons been silent.

Everything above a change is recomputed, as the model would have; everything below comes from the tape. Indices, masks
of truth values and Python numbers stay as they were in the recorded pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from .trace import Trace
from .values import Op, Value, replaced, tensors_in

Change = Callable[[Tensor], Tensor]


def replay(ops: Sequence[Op], wanted: Sequence[Value], changes: Mapping[int, Change]) -> list[Tensor]:
    """The tensors of `wanted`, with `changes` made to values, by their id: each is recomputed from the values below it,
    then changed, for all of its readers.
    """
    affected = _affected(ops, wanted, changes)
    unread = Counter(id(value) for op in affected for value in op.inputs)
    last, now = {id(value) for value in wanted}, dict[int, Tensor]()

    def arrive(value: Value, tensor: Tensor) -> Tensor:
        change = changes.get(id(value))
        now[id(value)] = tensor if change is None else change(tensor)
        return now[id(value)]

    def tensor_of(value: Value) -> Tensor:
        return now[id(value)] if id(value) in now else arrive(value, value.data)

    for op in affected:
        results = op.outputs_from([tensor_of(value) for value in op.inputs])
        for value, tensor in zip(op.outputs, results, strict=True):
            arrive(value, tensor)
        for value in op.inputs:  # let go of values that nobody reads any more
            unread[id(value)] -= 1
            if not unread[id(value)] and id(value) not in last:
                del now[id(value)]
    return [tensor_of(value) for value in wanted]


def replayed(trace: Trace, structure: Any, changes: Mapping[int, Change]) -> Any:
    """`trace.output` or `trace.returned` as the pass would have ended with these changes."""
    values = [value for tensor in tensors_in(structure) if (value := trace.value_of(tensor)) is not None]
    now = dict(zip(map(id, values), replay(trace.ops, values, changes), strict=True))

    def renewed(tensor: Tensor) -> Tensor:
        return now.get(id(trace.value_of(tensor)), tensor)

    return replaced(structure, renewed, of=Tensor)


def _affected(ops: Sequence[Op], wanted: Sequence[Value], changes: Mapping[int, Change]) -> list[Op]:
    """The operations between the changes and the wanted values, in order of execution."""
    changed, above = set(changes), []
    for op in ops:
        if any(id(value) in changed for value in op.inputs):
            above.append(op)
            changed.update(id(value) for value in op.outputs)
    needed, between = {id(value) for value in wanted}, []
    for op in reversed(above):
        if any(id(value) in needed for value in op.outputs):
            between.append(op)
            needed.update(id(value) for value in op.inputs)
    return between[::-1]
