"""The entries of the tape: values, and the operations between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .maps import LinearMap
from .operations import Family
from .samples import Samples

HALF = (torch.float16, torch.bfloat16)


def version(tensor: Tensor) -> int | None:
    """How often a tensor was written into, as torch counts it; None where it does not (in inference mode)."""
    return None if tensor.is_inference() else tensor._version


class Value:
    """One tensor of the forward pass that depends on the input. `data` is never modified."""

    def __init__(self, data: Tensor, samples: Samples, producer: Op | None = None) -> None:
        self._data: Tensor | None = data
        self._version = version(data)
        self.shape, self.dtype = data.shape, data.dtype
        self.samples = samples
        self.producer = producer
        self.readers: list[Op] = []
        self.nonnegative = False

    @property
    def data(self) -> Tensor:
        """The tensor; recomputed if it was forgotten."""
        if self._data is None:
            assert self.producer is not None
            self._data = self.producer.recompute()[self.producer.outputs.index(self)]
        return self._data

    @data.setter
    def data(self, data: Tensor) -> None:
        self._data = data
        self._version = version(data)

    @property
    def overwritten(self) -> bool:
        """Whether somebody has written into the tensor since it was recorded."""
        return self._data is not None and version(self._data) != self._version

    @property
    def forgotten(self) -> bool:
        """Whether the tensor was let go of."""
        return self._data is None

    def forget(self) -> None:
        """Let go of the tensor: nobody is expected to need it; if somebody does, it is recomputed."""
        self._data = None


@dataclass(eq=False)
class Op:
    """One entry of the tape: a torch function and its arguments, a `Value` where a tensor depends on the input."""

    kind: str
    family: Family
    function: Any
    replay: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[Value]
    outputs: list[Value]
    name: str = ""
    map: LinearMap | None = None  # of a conv or linear layer
    first: bool = False  # a conv or linear layer with none below it
    signal: Value | None = None  # the operand of a product that takes all relevance
    rule: Callable[..., Any] | None = None  # a user's own, see `register_rule`
    reason: str = ""  # why no rule is known
    winners: Tensor | None = None  # of a max_pool2d: the flat position of each output's winner
    folded: list[str] = field(default_factory=list)  # names of BatchNorms folded into this layer

    @property
    def is_layer(self) -> bool:
        """Whether this is a conv or linear layer, whose rule the composite chooses."""
        return self.map is not None

    @property
    def output(self) -> Value:
        """The first (mostly the only) output."""
        return self.outputs[0]

    def release(self) -> None:
        """Let go of all tensors, and of the circle of values and operations, which would outlive its use."""
        for value in self.outputs:
            value.producer = None
            value.readers.clear()
        self.args, self.kwargs, self.inputs, self.outputs = (), {}, [], []
        self.map = self.signal = self.winners = None

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """Call the operation with these tensors in place of its inputs."""
        substitute = dict(zip(map(id, self.inputs), tensors, strict=True))
        args = replaced(self.args, lambda v: substitute[id(v)])
        kwargs = replaced(self.kwargs, lambda v: substitute[id(v)])
        return self.replay(*args, **kwargs)

    def recompute(self) -> list[Tensor]:
        """The outputs, from the inputs."""
        if self.map is not None:
            x = self.inputs[0].data.to(self.map.dtype)  # a folded BatchNorm may be wider than what the layer read
            return [self.map.apply(x, self.map.weight, self.map.bias).to(self.output.dtype)]
        return [t for t in tensors_in(self.call([v.data for v in self.inputs])) if t.is_floating_point()]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or keyword."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)


_TENSORS = frozenset((Tensor, torch.nn.Parameter))
_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size))


def tensors_in(structure: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples, dicts and slices, in order."""
    return iter(gathered(structure))


def gathered(*structures: Any) -> list[Tensor]:
    """The tensors in several nested structures, in order."""
    found: list[Tensor] = []
    _gather(structures, found)
    return found


def _gather(structure: Any, found: list[Tensor]) -> None:
    kind = structure.__class__
    if kind is tuple or kind is list:
        for item in structure:
            kind = item.__class__
            if kind in _TENSORS:
                found.append(item)
            elif kind not in _PLAIN:
                _gather(item, found)
    elif isinstance(structure, dict):
        for item in structure.values():
            _gather((item,), found)
    elif isinstance(structure, Tensor):
        found.append(structure)
    elif isinstance(structure, list | tuple):
        _gather(tuple(structure), found)
    elif isinstance(structure, slice):
        _gather((structure.start, structure.stop, structure.step), found)
    elif hasattr(structure, "__dataclass_fields__") and not isinstance(structure, type | Op | Value):
        for name in structure.__dataclass_fields__:
            _gather((getattr(structure, name),), found)


def replaced(structure: Any, change: Callable[[Any], Any], of: type = Value) -> Any:
    """The same nested structure with every `Value` (or tensor) replaced."""
    kind = structure.__class__
    if kind in _PLAIN:
        return structure
    if kind is tuple:
        return tuple([item if item.__class__ in _PLAIN else replaced(item, change, of) for item in structure])
    if isinstance(structure, of):
        return change(structure)
    if isinstance(structure, dict):
        return {key: replaced(item, change, of) for key, item in structure.items()}
    if isinstance(structure, list):
        return [replaced(item, change, of) for item in structure]
    if isinstance(structure, tuple):
        items = [replaced(item, change, of) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    return structure


def reached(ops: Sequence[Op], start: Sequence[Value]) -> list[Op]:
    """The operations that relevance passes on its way from these values, top down."""
    live = {id(v) for v in start}
    found = []
    for op in reversed(ops):
        if any(id(v) in live for v in op.outputs):
            found.append(op)
            live.update(id(v) for v in ([op.signal] if op.signal is not None else op.inputs))
    return found
