"""The seam between the core and speed. No formula depends on it: a first reading of the core can skip this file.

The core does some things only so that the overlay `plrp.fast` has less to do, or so that memory is free early:

- a max pool notes which inputs won (`run_noting_winners`, `Op.winners`), so that no walk has to look for them again;
- numbers that later explanations of a trace need too stay with the trace (`remembered`);
- a trace that is explained once is freed operation by operation (`explained_once`, `let_go`, `release`);
- a frugal recording (`Recorder.frugal`) forgets values that can be computed again (`Value.forget`);
- Python does not search for garbage while a tape is written or walked (`collection_paused`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from .values import Op, tensors_in

if TYPE_CHECKING:
    from .trace import Trace


def run_noting_winners(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Tensor | None]:
    """Run a torch function; of a `max_pool2d` also the place in the plane of each output's winner."""
    if function is F.max_pool2d and len(args) < 7:
        pooled: tuple[Tensor, Tensor] = F.max_pool2d(*args, **{**kwargs, "return_indices": True})  # torch finds both
        return pooled
    return function(*args, **kwargs), None


def remembered(trace: Trace, key: Any, owners: Any, compute: Callable[[], Any]) -> Any:
    """Something that later explanations of the trace need too, computed once.

    `owners` stay alive with it, so that no other object gets an id that stands in `key`.
    """
    if trace.memory is None:
        return compute()
    if key not in trace.memory:
        trace.memory[key] = owners, compute()
    return trace.memory[key][1]


def explained_once(trace: Trace) -> None:
    """Explain this trace once only: a walk frees each operation behind it."""
    trace.memory, trace.consumed = None, True
    trace._recorder.live.forget_all_but(tensors_in(trace.output))


def let_go(trace: Trace, ops: list[Op], position: int) -> None:
    """Free Δ at the outputs of an operation that a walk has passed; the whole of it if it is explained once only."""
    for value in ops[position].outputs if trace.now is not trace else ():
        value.forget()
    if trace.consumed:
        release(ops.pop())


def tape_bytes(trace: Trace) -> int:
    """The memory that a tape takes for its values; a view counts as a value of its own."""
    values = [value for op in trace.ops for value in op.outputs if not value.forgotten]
    winners = sum(op.winners.nbytes for op in trace.ops if op.winners is not None)
    return winners + sum(value.shape.numel() * value.dtype.itemsize for value in values)


def release(op: Op) -> None:
    """Let go of all tensors of an operation, and of the cycle of values and operations, which would outlive its use."""
    for value in op.outputs:
        value.producer = None
        value.readers.clear()
    op.args, op.kwargs, op.inputs, op.outputs = (), {}, [], []
    op.map = op.signal = op.gated = op.winners = None


@contextmanager
def collection_paused() -> Iterator[None]:
    """Within this context garbage is not searched for, unless the user's code asks for it.

    A tape is thousands of objects, all of them in use, which Python would search again and again while they are made.
    `release` frees by hand the cycles that a tape leaves behind.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
