"""One explanation of a trace, recorded, so that parts of its relevance can be walked down again.

Later walks hold the pruning of the whole explanation fixed. So parts add up: the relevance that all neurons of a tensor
send to one neuron below is the relevance of that neuron.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from .conditions import Projection, gradients, label, mask_of
from .contexts import ReadOutput
from .engine import choose_walk, grouped, walk_of
from .passage import Case, Mask, Passage, Record
from .request import Request
from .tape.trace import Trace
from .tape.values import Op, Value, reached
from .walk import Walk

MOST = 256  # parts of a relevance that are sent down at once, where one walk takes so many


class Survey:
    """The facts of one explanation that later walks need: each neuron's factor, and the relevance at some tensors.

    `request` is bound to the trace; `watched` are the tensors whose relevance is recorded.
    """

    def __init__(self, trace: Trace, request: Request, watched: Iterable[Value] = ()) -> None:
        self.trace, self.request, self._watched = trace, request, list(watched)
        self._record = Record(self._watched)
        with torch.inference_mode(False), torch.no_grad():
            walk = choose_walk(trace, request, record=self._record)
            if self._watched or request.pruning is not None:
                walk.run()
        self.start = walk.start
        self.factors = self._record.factors or {}

    @classmethod
    def for_conditions(cls, trace: Trace, requests: Sequence[Request]) -> Survey:
        """The explanation without conditions, with the relevance at the layers that their callables ask about."""
        wanted = [pair for request in requests for pair in (request.condition or {}).items()]
        asked = {name for name, passes in wanted if callable(passes)}
        return cls(trace, requests[0], [op.output for op in trace.layers if op.name in asked])

    def at(self, value: Value) -> Tensor | None:
        """The relevance of a watched tensor, after its pruning; None where the score does not depend on it."""
        return self._record.relevance.get(id(value))

    @cached_property
    def _group(self) -> Sequence[Case]:
        """As many walks as one can take, on which every neuron keeps its factor."""
        return grouped(self.trace, [Case(self.request, Passage(factors=self.factors))] * MOST)[0]

    @cached_property
    def held(self) -> Walk:
        """A walk on which every neuron keeps its factor, of as many parts as `_group` has."""
        with torch.inference_mode(False), torch.no_grad():
            return walk_of(self.trace, self._group)

    def send(self, parts: Iterable[Tensor], upper: Value, ends: Sequence[Value]) -> Iterator[list[Tensor | None]]:
        """Hand parts of the relevance of `upper` down to each of `ends`, where each stops; None: nothing arrives."""
        waiting = iter(parts)
        while some := list(islice(waiting, len(self._group))):
            with torch.inference_mode(False), torch.no_grad():
                sent = self.held.send(some[0] if len(some) == 1 else torch.cat(some), upper, ends)
            for number in range(len(some)):
                yield [None if r is None else r.chunk(len(some))[number] for r in sent]

    def passage(self, request: Request) -> Passage:
        """The constraints that the condition of a request puts on a walk."""
        layers = {op.name: op for op in self.trace.layers}
        masks, watched = {}, list[Value]()
        for name, wanted in (request.condition or {}).items():
            op = layers[name]
            if id(op) not in self._alive:
                raise ValueError(f"No relevance reaches layer '{name}' from this target: leave out its condition.")
            if isinstance(wanted, Projection):
                output = ReadOutput(op, self._alive, self.request.composite.products)
                masks[id(output.value)] = output.mask(wanted)
                watched += output.watched(output.value)
                continue
            keep = self._asked(op, wanted) if callable(wanted) else mask_of(op, wanted, request.piece)
            masks[id(op.output)] = Mask(name, op.output, keep, label(wanted))
        return Passage(masks, self.factors, request.only_through, watched)

    @cached_property
    def _alive(self) -> set[int]:
        """The operations that relevance reaches, by their ids."""
        return {id(op) for op in reached(self.start.ops, [self.start.value], self.request.composite.products)}

    def _asked(self, op: Op, wanted: Callable[..., Any]) -> Tensor:
        """The mask that a callable returns; it may write into its arguments."""
        x, relevance = op.output.data, self.at(op.output)
        relevance = torch.zeros_like(x) if relevance is None else relevance.clone()
        mask = wanted(x.clone(), self._gradients[id(op.output)].clone(), relevance)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            kind = f"{mask.dtype} values" if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
            raise TypeError(
                f"The callable for '{op.name}' returned {kind}: return a boolean tensor, such as gradient > 0."
            )
        return mask_of(op, mask)

    @cached_property
    def _gradients(self) -> dict[int, Tensor]:
        """The gradient of the score with respect to the watched tensors, by the id of their values."""
        with torch.autocast(self.start.relevance.device.type, enabled=False):
            return gradients(self.start, self._watched)
