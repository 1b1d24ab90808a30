"""Operations that write into a tensor: run on fresh memory, so that recorded tensors stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from plrp.errors import TraceError

from .operations import Family, spelled
from .recognition import recomputable
from .values import Call

if TYPE_CHECKING:
    from .recorder import Recorder


def run_in_place(recorder: Recorder, call: Call) -> Any:
    """Run an in-place operation on a fresh storage, and let the user's tensor name the new value."""
    target: Tensor = call.args[0]
    if call.operation.traits.training:  # a dropout, inactive, or it would have been refused: nothing happens
        return target
    if recorder.value_of(target) is None and recorder.live.of_model(target):
        recorder.refuse_call(call, "writes into a parameter or buffer of the model; use a copy.")
        return target
    if recorder.live.shares_memory(target):
        recorder.refuse_call(
            call,
            "changes a tensor in place while another view of the same memory is in use; use the out-of-place form "
            "there.",
        )
    if recorder.frugal and _overwrites(recorder, call):
        call.function(*call.args, **call.kwargs)
        recorder.live.know(target, call.values[0])
        recorder.write(call, [target])
        call.values[0].forget()
        return target
    result = call.operation.replay(*call.args, **call.kwargs).to(target.dtype)
    if result.shape != target.shape:
        raise TraceError(
            f"`{spelled(call.function)}`{recorder.after()} changes a tensor's shape in place; use the result."
        )
    if result.data_ptr() == target.data_ptr() and result.numel():
        result = result.clone()  # e.g. an inactive dropout returns its input
    op = None if call.operation.family is Family.CONSTANT else recorder.write(call, [result])
    before = recorder.value_of(target)
    if before is not None and not before.forgotten:
        before.data = before.data.data  # the old memory is the tape's alone: later writes do not reach it
    target.data = result
    recorder.live.note([target])
    if op is None:
        recorder.live.forget(target)
    else:
        recorder.live.know(target, op.output)
    return target


def _overwrites(recorder: Recorder, call: Call) -> bool:
    """Whether an in-place activation function may write over its input: a fresh output that nobody else has read."""
    (value,) = call.values if len(call.values) == 1 else (None,)
    return (
        value is not None
        and call.operation.family is Family.PASS
        and not call.operation.registered
        and not value.readers
        and value is recorder.value_of(call.args[0])
        and recomputable(value)
        and not call.args[0].is_inference()
    )
