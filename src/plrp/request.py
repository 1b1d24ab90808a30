"""The request for an explanation: made once, checked at once, and the same for every way to ask.

A batch may be explained in pieces, so that memory is bounded by a piece and not by the batch: `micro_batch=`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .composites import AGAINST, AUTO, resolve
from .conditions import Condition, checked
from .pruning import Pruning
from .references import References
from .spelling import nearest
from .tape.difference import DifferenceTrace
from .tape.refusals import check_inputs
from .tape.trace import Trace
from .tape.values import replaced, tensors_in
from .targets import Target, as_target

Given = Tensor | Sequence[Tensor]

SMALL_BATCH = 16_000_000
"""Bytes of inputs that are explained at once, where `micro_batch` is not given. A larger batch comes in pieces."""
PIECE = 500_000_000
"""Bytes that the tape of such a piece takes at most, unless two samples take more."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `plrp.explain`, apart from the model and its inputs.

    Making a request refuses every argument that is wrong for any model, and copies the arguments that a user may change
    later. `bound` refuses the arguments that are wrong for one model.
    """

    target: Any = None  # becomes a `Target`
    composite: Any = AUTO  # becomes a `Composite`; "auto" needs a trace
    reference: References | None = None  # of the batch
    pruning: Pruning | None = None
    layers: Any = False  # a bool, or the names of the layers whose relevance is kept, as a frozenset
    condition: Condition | None = None
    only_through: bool = False
    piece: slice | None = None  # the samples, of a larger batch whose masks a condition may hold

    def __post_init__(self) -> None:
        self._set("target", as_target(self.target, isinstance(self.target, Target) and self.target.whole))
        if self.composite != AUTO:
            self._set("composite", resolve(self.composite))
        if self.pruning is not None and not isinstance(self.pruning, Pruning):
            hint = f"; plrp.Pruning(p={self.pruning!r})?" if isinstance(self.pruning, int | float) else "."
            raise TypeError(f"pruning is a plrp.Pruning or None, got {type(self.pruning).__name__}{hint}")
        layers = [self.layers] if isinstance(self.layers, str) else self.layers
        if not isinstance(layers, bool | Sequence | set | frozenset):
            raise TypeError(f"layers is True or a list of layers' names, got {type(layers).__name__}.")
        self._set("layers", layers if isinstance(layers, bool) else frozenset(map(str, layers)))
        self._set("condition", checked(self.condition, None, self.only_through))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def composite_holds_tensors(self) -> bool:
        """Whether a rule has a tensor among its settings, such as bounds of each sample."""
        if self.composite == AUTO:
            return False
        rules = [*(rule for _, rule in self.composite.rules), self.composite.first, *self.composite.layers.values()]
        return any(isinstance(v, Tensor) for rule in rules if rule is not None for v in vars(rule).values())

    def of(self, samples: slice) -> Request:
        """The request for some samples of the batch."""
        reference = None if self.reference is None else self.reference.of(samples)
        return replace(self, target=self.target.of(samples), reference=reference, piece=samples)

    def bound(self, trace: Trace, inputs: Iterable[Tensor] | None = None) -> Request:
        """The request for this trace, with the composite, the pruning and the layers that it means there.

        `inputs`: the whole batch, for `"auto"`, where the trace is of a piece of it.
        """
        looked_at = (value.data for value in trace.inputs) if inputs is None else inputs
        composite = resolve(self.composite, looked_at, trace)
        composite.check(trace)
        if composite.name in AGAINST and not isinstance(trace, DifferenceTrace):
            raise ValueError(
                f"The composite '{composite.name}' explains the difference to a reference: give one, reference=…."
            )
        target = as_target(self.target, trace.samples is None)
        target.check_batch(trace.batch)
        pruning = self.pruning and self.pruning.for_trace(trace)
        if pruning is not None and pruning.p == "auto":
            import plrp

            if trace.batch != 1 or (self.piece is not None and self.piece.start):
                raise ValueError("p='auto' is chosen for each sample: explain one at a time, or give a p for all.")
            p = plrp.choosing.p_of_sample(trace, pruning, target=target, composite=composite)
            pruning = replace(pruning, p=p)
        if pruning is not None and pruning.layers:
            pruning.plan(trace)  # refuses unknown layers
        checked(self.condition, trace, self.only_through)
        return replace(self, target=target, composite=composite, pruning=pruning, layers=self._names(trace))

    def _names(self, trace: Trace) -> frozenset[str]:
        """The names of the layers whose relevance is kept."""
        names = [op.name for op in trace.layers]
        if isinstance(self.layers, bool):
            return frozenset(names if self.layers else ())
        for name in sorted(self.layers.difference(names)):
            if any(op.name == name for op in trace.ops):
                raise ValueError(
                    f"'{name}' is no conv or linear layer; relevance is kept at the inputs of these"
                    f"{nearest(name, names)}."
                )
            raise ValueError(f"The model has no layer '{name}'{nearest(name, names)}.")
        return frozenset(self.layers)


def pieces(inputs: Given, size: int) -> list[tuple[slice, Given]]:
    """The inputs of at most `size` samples each, and which samples these are; an empty batch is one piece."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"micro_batch is a number of samples, 1 or more, got {size!r}.")
    batch = check_inputs(inputs)[0].shape[0]
    parts = [slice(begin, begin + size) for begin in range(0, max(batch, 1), size)]
    return [(part, some(inputs, part)) for part in parts]


def some(inputs: Given, samples: slice | Tensor) -> Given:
    """The inputs of some samples of the batch."""
    return inputs[samples] if isinstance(inputs, Tensor) else tuple(x[samples] for x in inputs)


def joined_structure(parts: Sequence[Any]) -> Any:
    """The same nested structure with each tensor joined along the batch axis."""
    columns = zip(*(tensors_in(part) for part in parts), strict=True)
    tensors = iter([torch.cat(column) if column[0].dim() else column[0] for column in columns])
    return replaced(parts[0], lambda _: next(tensors), of=Tensor)
