"""Parts of an explanation's relevance, sent down the tape with the pruning of the whole held fixed.

So the parts add up: the relevance that all neurons of a tensor send to one neuron below is its relevance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .composites import Composite
from .engine import choose_walk
from .passage import Passage, Record
from .pruning import Pruning
from .tape.trace import Trace
from .tape.values import Value


class PartialRelevance:
    """One explanation of a trace, from whose `watched` tensors any part of the relevance can be sent further down."""

    def __init__(
        self, trace: Trace, target: Any, composite: Composite, pruning: Pruning | None, watched: Iterable[Value]
    ) -> None:
        record = Record(watched)
        with torch.inference_mode(False), torch.no_grad():
            choose_walk(trace, target, composite, pruning, record=record).run()
            self._walk = choose_walk(trace, target, composite, pruning, passage=Passage(factors=record.factors or {}))
        self._relevance = record.relevance
        self.start = self._walk.start

    def at(self, value: Value) -> Tensor | None:
        """The relevance of a watched tensor, after its pruning; None where the score does not depend on it."""
        return self._relevance.get(id(value))

    def send(self, relevance: Tensor, upper: Value, ends: Sequence[Value]) -> list[Tensor | None]:
        """Hand relevance down from `upper` to each of `ends`, where it stops; None where nothing arrives."""
        with torch.inference_mode(False), torch.no_grad():
            return self._walk.send(relevance, upper, ends)
