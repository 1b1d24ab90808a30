"""The head of a model, a softmax, sigmoid, softplus or exp at its very end: relevance starts at its input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .operations import Family, known_operation
from .values import Op, replaced, tensors_in

if TYPE_CHECKING:
    from .trace import Trace


def without_head(output: Any, trace: Trace) -> Any:
    """The output before its head, with the views after the head redone; the trace notes the head's name."""
    recorder = trace._recorder

    def strip(tensor: Tensor) -> Tensor:
        value = recorder.value_of(tensor)
        views: list[Op] = []
        while value is not None and value.producer is not None:
            op = value.producer
            if op.traits.head and len(op.inputs) == 1:
                trace.head = op.kind
                below = op.inputs[0]
                result = below.data
                recorder.live.know(result, below)
                recorder.anchored.append(result)
                for view in reversed(views):
                    result = view.call([result])
                return result
            if op.family is not Family.REARRANGE or len(op.inputs) != 1 or len(op.outputs) != 1:
                return tensor
            views.append(op)
            value = op.inputs[0]
        return tensor

    return replaced(output, strip, of=Tensor)


class Headless(nn.Module):
    """A model that returns the output of its trace: the scores before its head."""

    def __init__(self, model: Any, trace: Trace) -> None:
        super().__init__()
        self.model, self.head = model, trace.head
        self.training = bool(getattr(model, "training", False))
        self.calls = sum(op.kind == trace.head for op in trace.ops)
        if self.head is None:
            return
        with torch.no_grad():
            output = self(*(value.data for value in trace.inputs))
        pairs = zip(tensors_in(output), tensors_in(trace.output), strict=True)
        if not all(torch.allclose(mine, recorded, atol=1e-5) for mine, recorded in pairs):
            raise ValueError(
                f"The model's final {self.head} cannot be left out for this method: give a model that returns the "
                "scores before it."
            )

    def forward(self, *inputs: Tensor) -> Any:
        """The model's output before its head."""
        if self.head is None:
            return self.model(*inputs)
        with _LeftOut(self.head, self.calls):
            return self.model(*inputs)


class _LeftOut(TorchFunctionMode):
    """Leaves out the last of a model's `calls` of a function: that call hands its input on."""

    def __init__(self, name: str, calls: int) -> None:
        super().__init__()
        self.name, self.calls = name, calls

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = known_operation(function, {}, ())
        if operation is not None and operation.kind == self.name:
            self.calls -= 1
            if self.calls == 0:
                given = args[0] if args else kwargs["input"]
                return given.clone()
        return function(*args, **(kwargs or {}))
