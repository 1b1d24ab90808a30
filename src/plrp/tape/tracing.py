"""`trace`: a model that the tape can follow, recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from .own_rules import rules_for
from .refusals import unsupported
from .trace import Trace
from .values import Op, replaced
from .verification import record_verified


def trace(
    model: Callable[..., Any],
    inputs: Tensor | Sequence[Tensor],
    *,
    samples: int | None = 0,
    rules: Mapping[Any, Any] | None = None,
) -> Trace:
    """Record one forward pass of `model` for explaining it any number of times.

    `inputs` is a tensor with the batch on its first axis, or a tuple of such tensors for a model with several inputs;
    with `samples=None` the model has no batch axis, and the trace is of one whole. `rules` are your own rules for
    operations, see `plrp.rules_for`. The model is not touched. An operation without a rule raises
    `UnsupportedOperation`.
    """
    own = inputs.detach().clone() if isinstance(inputs, Tensor) else replaced(inputs, Tensor.clone, of=Tensor)
    with rules_for(rules or {}):  # of a copy: the user may change the tensors later
        recorded = record_verified(model, own, samples=samples)
        _refuse(recorded, recorded.unsupported)
    recorded.remember_state()
    return recorded


def supported(recorded: Trace, products: str | None) -> Trace:
    """The trace itself; refused where relevance from its output would reach an operation without a rule.

    `products`: how the composite divides products of two signals.
    """
    _refuse(recorded, recorded.unsupported_under(products))
    return recorded


def _refuse(recorded: Trace, ops: list[Op]) -> None:
    if isinstance(recorded.output, Tensor):  # of several outputs, some may not be asked for
        for op in ops:
            raise unsupported(op, recorded.ops)
