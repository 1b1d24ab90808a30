"""`trace`: a model that the tape can follow, recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .refusals import unsupported
from .trace import Trace, record
from .verification import verify


def trace(model: Callable[..., Any], inputs: Tensor | Sequence[Tensor]) -> Trace:
    """Record one forward pass of `model` for explaining it any number of times.

    `inputs` is a tensor with the batch on its first axis, or a tuple of such tensors for a model with several inputs.
    The model is not touched. An operation without a rule raises `UnsupportedOperation`.
    """
    verify(model, inputs)
    found = supported(record(model, inputs))
    found.remember_state()
    return found


def supported(recorded: Trace) -> Trace:
    """The trace itself; refused where relevance from its output would reach an operation without a rule."""
    if isinstance(recorded.output, Tensor):
        for op in recorded.unsupported:
            raise unsupported(op, recorded.ops)
    return recorded
