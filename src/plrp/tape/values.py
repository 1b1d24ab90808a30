"""The entries of the tape: values, and the operations between them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .maps import LinearMap
from .operations import Family, Operation, Traits
from .samples import Samples

HALF = (torch.float16, torch.bfloat16)
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # as wide as an entry, by its bytes

# How a product of two signals divides: not at all; half to each; all to the one that is not a gate or an activation; or
# by the first-order expansion, which is that of every other operation too.
PRODUCTS = (None, "half", "gated", "taylor")


def version(tensor: Tensor) -> int | None:
    """How often a tensor was written into, as torch counts it; None where it does not (in inference mode)."""
    try:
        return tensor._version
    except RuntimeError:
        return None


def bit_sums(data: Tensor) -> Tensor | None:
    """The sums of a tensor's bits along its last axis, each bit pattern times an odd number of its place, so that a new
    order shows; None where its memory is not laid out by strides.
    """
    if data.layout is not torch.strided or data.is_quantized:
        return None
    data = torch.view_as_real(data.resolve_conj()) if data.is_complex() else data
    bits = data.view(_BITS[data.element_size()])
    if not bits.dim():
        return bits.clone()
    return (bits * (2 * torch.arange(bits.shape[-1], device=bits.device) + 1)).sum(-1)


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
        self.above_layer = False  # whether a conv or linear layer, or an embedding, lies below
        self.sums: Tensor | None = None  # along the last axis when it was recorded, where a second look is taken

    @property
    def data(self) -> Tensor:
        """The tensor; recomputed if it was forgotten."""
        if self._data is None:
            assert self.producer is not None
            tensors = self.producer.outputs_from([value.data for value in self.producer.inputs])
            self._data = tensors[self.producer.outputs.index(self)]
        return self._data

    @data.setter
    def data(self, data: Tensor) -> None:
        self._data = data
        self._version = version(data)

    @property
    def overwritten(self) -> bool:
        """Whether somebody has written into the tensor since it was recorded."""
        return self._data is not None and version(self._data) != self._version

    def add_up(self) -> Tensor | None:
        """The sums of the tensor's bits along its last axis, which any change shows in; None where it was let go of."""
        return None if self._data is None else bit_sums(self._data)

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

    operation: Operation
    family: Family  # of this call, which its operands decide: the operation's own to begin with
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[Value]
    outputs: list[Value]
    name: str = ""
    map: LinearMap | None = None  # of a conv or linear layer, or of a product with a graph's edges
    first: bool = False  # a conv or linear layer with none below it
    signal: Value | None = None  # the operand of a product that takes all relevance
    gated: Value | None = None  # the operand of a product of two signals that is no activation: u of act(g) · u
    rule: Callable[..., Any] | None = None  # a user's own, see `own_rules.py`
    reason: str = ""  # why no rule is known
    mixes: bool = False  # whether the reason is that samples of the batch are mixed or taken apart
    by_difference: bool = False  # whether the reason holds without a reference alone
    fresh: bool = False  # whether it reads a tensor that is neither the input's nor the model's
    suspect: bool = False  # whether such a tensor, or a Python number, may come from the input in a hidden way
    weighs: bool = False  # whether it reads a parameter, or a view of one
    declared: str = ""  # which arguments a user's rule calls constants: 'all', 'numbers' or none
    sums: dict[int, Tensor] = field(default_factory=dict)  # bit sums of its constants as it read them, by address
    winners: Tensor | None = None  # of a max_pool2d: the flat position of each output's winner, see `seam.py`
    folded: list[str] = field(default_factory=list)  # names of BatchNorms folded into this layer

    @property
    def kind(self) -> str:
        """The name of the operation."""
        return self.operation.kind

    @property
    def traits(self) -> Traits:
        """The traits of the operation."""
        return self.operation.traits

    @property
    def is_layer(self) -> bool:
        """Whether this is a conv or linear layer, whose rule the composite chooses."""
        return self.map is not None and self.family is Family.LAYER

    @property
    def output(self) -> Value:
        """The first (mostly the only) output."""
        return self.outputs[0]

    @property
    def terms(self) -> tuple[Any, Any]:
        """The two operands of a sum or product, values or constants."""
        return self.argument(0, "input"), self.argument(1, "other")

    @property
    def attends(self) -> bool:
        """Whether it adds up values with weights that depend on the input, as attention does."""
        return self.family is Family.GATE and self.operation.contracts

    @property
    def operands(self) -> list[Value]:
        """The values among the arguments, as often as they occur."""
        values: list[Value] = []
        replaced((self.args, self.kwargs), values.append)
        return values

    def refuse(self, reason: str, mixes: bool = False, by_difference: bool = False) -> None:
        """From now on this call has no rule, for this reason; `mixes`: the reason is that it mixes samples;
        `by_difference`: it has a rule against a reference.
        """
        self.family, self.reason, self.mixes, self.by_difference = Family.UNSUPPORTED, reason, mixes, by_difference
        self.map = self.rule = None

    def supported(self, products: str | None) -> bool:
        """Whether there is a rule, where products of two signals divide in this way (`PRODUCTS`)."""
        if self.rule is not None or self.family not in (Family.PRODUCT, Family.SOFTMAX):
            return self.family is not Family.UNSUPPORTED
        return products is not None

    def receivers(self, products: str | None) -> list[Value]:
        """The inputs that relevance is handed to, where products of two signals divide in this way (`PRODUCTS`)."""
        if self.signal is not None and products != "taylor":
            return self.inputs if products == "half" and self.attends else [self.signal]
        return [self.gated] if products == "gated" and self.gated is not None else self.inputs

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """Call the operation with these tensors in place of its inputs."""
        substitute = dict(zip(map(id, self.inputs), tensors, strict=True))
        args, kwargs = replaced((self.args, self.kwargs), lambda v: substitute[id(v)])
        wide = tensors[0].dtype
        if self.inputs[0].dtype in HALF and wide.is_floating_point and wide not in HALF:  # constants meet wider tensors
            as_wide = lambda t: t.to(wide) if t.dtype in HALF else t  # noqa: E731
            args, drawn = replaced(args, as_wide, of=Tensor), kwargs.get("_random_samples")
            kwargs = replaced(kwargs, as_wide, of=Tensor)
            if drawn is not None:  # the precision of these numbers decides the windows of a pool
                kwargs["_random_samples"] = drawn
        return self.operation.replay(*args, **kwargs)

    def outputs_from(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The outputs with these tensors in place of the inputs."""
        if self.map is not None:
            x = tensors[0].to(self.map.dtype)  # a folded BatchNorm may be wider than the layer's input
            return [self.map.apply(x, self.map.weight, self.map.bias).to(self.output.dtype)]
        results = gathered(self.call(tensors))
        if len(results) == len(self.outputs):
            return results
        return [t for t in results if t.is_floating_point()]  # and not the places of maxima, say

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or keyword."""
        if len(self.args) > position:
            return self.args[position]
        if name == "dim" and "axis" in self.kwargs:  # as numpy calls it, and torch takes it
            return self.kwargs["axis"]
        return self.kwargs.get(name, default)


class Call(NamedTuple):
    """A torch function at the moment when it is called, with the values of the tape that it reads."""

    function: Any
    operation: Operation
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[Tensor]  # all tensors among the arguments
    values: list[Value]


def carries(tensor: Tensor) -> bool:
    """Whether relevance could flow through a tensor: real or complex numbers, not indices or comparisons."""
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


_TENSORS = frozenset((Tensor, torch.nn.Parameter))
_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size))


def tensors_in(structure: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples, dicts and slices, in order."""
    return iter(gathered(structure))


def gathered(*structures: Any) -> list[Tensor]:
    """The tensors in several nested structures, in order."""
    tensors: list[Tensor] = []
    _gather(structures, tensors)
    return tensors


def _gather(structure: Any, tensors: list[Tensor]) -> None:
    kind = structure.__class__
    if kind is tuple or kind is list:
        for item in structure:
            kind = item.__class__
            if kind in _TENSORS:
                tensors.append(item)
            elif kind not in _PLAIN:
                _gather(item, tensors)
    elif isinstance(structure, dict):
        for item in structure.values():
            _gather((item,), tensors)
    elif isinstance(structure, Tensor):
        tensors.append(structure)
    elif isinstance(structure, list | tuple):
        _gather(tuple(structure), tensors)
    elif isinstance(structure, slice):
        _gather((structure.start, structure.stop, structure.step), tensors)
    elif hasattr(structure, "__dataclass_fields__") and not isinstance(structure, type | Op | Value):
        for name in structure.__dataclass_fields__:
            _gather((getattr(structure, name),), tensors)


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
        changed = {key: replaced(item, change, of) for key, item in structure.items()}
        return changed if kind is dict else _like(structure, changed)
    if isinstance(structure, list):
        return [replaced(item, change, of) for item in structure]
    if isinstance(structure, tuple):
        items = [replaced(item, change, of) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    if hasattr(structure, "__dataclass_fields__") and not isinstance(structure, type | Op | Value):
        fresh = copy.copy(structure)
        for name in structure.__dataclass_fields__:
            object.__setattr__(fresh, name, replaced(getattr(structure, name), change, of))
        return fresh
    return structure


def _like(structure: dict[Any, Any], items: dict[Any, Any]) -> Any:
    """A dict of the same class with other items, and with its attributes, which an output of transformers has."""
    try:
        fresh = copy.copy(structure)
        for key, item in items.items():
            fresh[key] = item
    except Exception:  # a dict that will not be copied or written into
        return items
    return fresh


def reached(ops: Sequence[Op], start: Sequence[Value], products: str | None = None) -> list[Op]:
    """The operations that relevance passes on its way from these values, top down; `products`: see `PRODUCTS`."""
    live = {id(v) for v in start}
    passed = []
    for op in reversed(ops):
        if any(id(v) in live for v in op.outputs):
            passed.append(op)
            live.update(id(v) for v in op.receivers(products))
    return passed


def below_offsets(ops: Sequence[Op], start: Sequence[Value], products: str | None) -> dict[Op, str]:
    """The layers of which outputs < 0 carry relevance from an activation that is not 0 at 0, each with its kind.

    Other operations may come between: relevance passes them on its way from `start`.
    """
    if not any(op.family is Family.OFFSET for op in ops):
        return {}
    layers, above = dict[Op, str](), dict[int, str]()  # `above`: by the id of a value
    for op in reached(ops, start, products):
        clamped = op.traits.bounds is not None and op.output.nonnegative  # constant where its input is < 0
        kinds = [op.kind] if op.family is Family.OFFSET and not clamped else []
        kinds += [above[id(value)] for value in op.outputs if id(value) in above]
        if kinds and op.is_layer:
            layers[op] = kinds[0]
        elif kinds and not (clamped or op.traits.rectifies):
            above.update((id(value), kinds[0]) for value in op.receivers(products))
    return layers
