"""The recording of a forward pass: a `TorchFunctionMode` that writes one entry per function it sees."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from plrp.errors import TraceError, UnsupportedOperation

from .operations import LEAVES, LOOKS, Family, Operation, lookup, spelled
from .recognition import dispensable, foldable, is_nonnegative, recognise, recomputable
from .refusals import RANDOM, refuse_active
from .samples import Samples
from .values import Op, Value, gathered, replaced, tensors_in, version


class Recorder(TorchFunctionMode):
    """Appends one `Op` per torch function that touches a tensor depending on the input.

    `frugal`: the outputs of convolutions and sums are not kept where an activation function has been read off them; a
    rule that wants them has them recomputed.
    """

    def __init__(self, model: Any, frugal: bool = False) -> None:
        super().__init__()
        self.frugal = frugal
        self.ops: list[Op] = []
        self._known: dict[int, tuple[weakref.ref[Tensor], Value, Any]] = {}  # and the state in which it was recorded
        self._names: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._living: dict[int, weakref.ref[Tensor]] = {}  # tensors that may share their memory with others
        self._calls: dict[str, int] = {}
        self._model = model
        self._keep: list[Any] = []
        self.lock = threading.Lock()
        if isinstance(model, nn.Module):
            for prefix, module in model.named_modules():
                for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                    if tensor is not None and id(tensor) not in self._names:
                        path = f"{prefix}.{name}" if prefix else name
                        self._names[id(tensor)] = (weakref.ref(tensor), _layer_path(path))

    @cached_property
    def _own(self) -> set[int]:
        """The storages of the model, which nothing may write into."""
        if not isinstance(self._model, nn.Module):
            return set()
        return {_storage(tensor) for tensor in (*self._model.parameters(), *self._model.buffers())}

    def value_of(self, tensor: Any) -> Value | None:
        """The value that a tensor of the forward pass holds now, if it depends on the input."""
        entry = self._known.get(id(tensor))
        if entry is None or entry[0]() is not tensor:
            return None
        assert isinstance(tensor, Tensor)
        value = entry[1]
        if _state(tensor) != entry[2]:
            raise TraceError(
                f"A tensor of shape {tuple(tensor.shape)}{self._after()} was changed in place in a way that plrp does "
                "not see (an in-place function without a rule, `.data = …`, `out=`); write its out-of-place form there."
            )
        if value.forgotten:
            value.data = _snapshot(tensor)  # somebody reads it after all
        return value

    def know(self, tensor: Tensor, value: Value) -> None:
        """From now on, `tensor` holds `value`."""
        alive = self._living[id(tensor)] = weakref.ref(tensor)
        self._known[id(tensor)] = (alive, value, _state(tensor))

    def forget_all_but(self, tensors: Iterator[Tensor]) -> None:
        """Know these tensors only: what else was recorded lives as long as the tape needs it."""
        self._known = {id(t): self._known[id(t)] for t in tensors if id(t) in self._known}

    def _shared(self, target: Tensor) -> bool:
        """Whether another tensor that is in use has the same memory."""
        self._living = {key: alive for key, alive in self._living.items() if alive() is not None}
        others = (t for alive in self._living.values() if (t := alive()) is not None and t is not target)
        storage = _storage(target)
        return target.numel() > 0 and any(_storage(other) == storage for other in others)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function as the user wrote it, and write it down."""
        kwargs = kwargs or {}
        if function in LOOKS:
            return function(*args, **kwargs)
        tensors = gathered(args, kwargs)
        values: list[Value] = []
        for tensor in tensors:
            if id(tensor) in self._known:
                value = self.value_of(tensor)
                if value is not None and value not in values:
                    values.append(value)
        if not values:
            result = function(*args, **kwargs)
            self._inherit_names(tensors, result)
            return result
        if function in LEAVES and not _registered_constant(function, args, kwargs):
            if values[0].dtype.is_floating_point:
                raise UnsupportedOperation(
                    f"`{spelled(function)}`{self._after()} takes a value that depends on the input out of the tape, so "
                    f"its relevance would be lost; keep it a tensor, or call "
                    f"`plrp.register_rule({spelled(function)}, 'constant')` if it only steers the program."
                )
            return function(*args, **kwargs)
        operation = lookup(function, kwargs, args)
        if kwargs.get("out") is not None:
            raise TraceError(f"`{spelled(function)}` writes into `out=`{self._after()}; use its result instead.")
        if operation is not None and operation.kind in RANDOM:
            refuse_active(operation.kind, args, kwargs, self._after)
        if operation is not None and operation.inplace:
            return self._inplace(function, operation, args, kwargs, tensors, values)
        winners = None
        if operation is not None and function is F.max_pool2d and len(args) < 7:
            result, winners = F.max_pool2d(*args, **{**kwargs, "return_indices": True})  # torch finds them anyway
        else:
            result = function(*args, **kwargs)
        outputs = [t for t in gathered(result) if _carries(t)]
        if operation is None and any(t is a for t in outputs for a in tensors):
            raise TraceError(
                f"`{spelled(function)}`{self._after()} changes a tensor in place, and plrp has no rule for it; write "
                "its out-of-place form there."
            )
        if operation is None and not outputs:
            return result  # a shape, a comparison, an index: nothing that relevance could flow through
        if operation is not None and (operation.family is Family.CONSTANT or _reads_shape_only(operation, args, self)):
            self._note(outputs)
            return result
        outputs = [t for t in outputs if not any(t is a for a in tensors)]
        if not outputs:
            return result
        self._write(function, operation, args, kwargs, tensors, values, outputs)
        self.ops[-1].winners = winners
        return result

    def _inplace(
        self,
        function: Any,
        operation: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        values: list[Value],
    ) -> Any:
        """Run an in-place operation on a fresh storage, and let the user's tensor name the new value.

        The tape keeps the old storage, so nothing that was recorded changes.
        """
        target: Tensor = args[0]
        if "dropout" in operation.kind:  # inactive, or it would have been refused: nothing happens
            return target
        if self.value_of(target) is None and _storage(target) in self._own:
            raise TraceError(
                f"`{spelled(function)}`{self._after()} writes into a parameter or buffer of the model; use a copy."
            )
        if self._shared(target):
            raise TraceError(
                f"`{spelled(function)}`{self._after()} changes a tensor in place while another view of the same "
                "memory is in use; use the out-of-place form there."
            )
        if self.frugal and self._overwrites(operation, target, values):
            function(*args, **kwargs)
            self.know(target, values[0])
            self._write(function, operation, args, kwargs, tensors, values, [target])
            values[0].forget()
            return target
        result = operation.replay(*args, **kwargs)
        result = result.to(target.dtype)
        if result.shape != target.shape:
            raise TraceError(f"`{spelled(function)}`{self._after()} changes a tensor's shape in place; use the result.")
        if result.data_ptr() == target.data_ptr() and result.numel():
            result = result.clone()  # e.g. an inactive dropout returns its input
        depends = operation.family is not Family.CONSTANT
        if depends:
            self._write(function, operation, args, kwargs, tensors, values, [result])
        before = self.value_of(target)
        if before is not None and not before.forgotten:
            before.data = (
                before.data.data
            )  # the old memory is the tape's alone: what is written from now on is not there
        target.data = result
        self._living[id(target)] = weakref.ref(target)
        if depends:
            self.know(target, self.ops[-1].output)
        else:
            self._known.pop(id(target), None)
        return None if operation.kind == "setitem" else target

    def _overwrites(self, operation: Operation, target: Tensor, values: list[Value]) -> bool:
        """Whether an in-place activation function may write over what it reads: a fresh output nobody else has read."""
        (value,) = values if len(values) == 1 else (None,)
        return (
            value is not None
            and operation.family is Family.PASS
            and not operation.registered
            and not value.readers
            and value is self.value_of(target)
            and recomputable(value)
            and not target.is_inference()
        )

    def _write(
        self,
        function: Any,
        operation: Operation | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        inputs: list[Value],
        outputs: list[Tensor],
    ) -> None:
        family = Family.UNSUPPORTED if operation is None else operation.family
        kind = spelled(function).rsplit(".", 1)[-1] if operation is None else operation.kind
        op = Op(
            kind=kind,
            family=family,
            function=function,
            replay=function if operation is None else operation.replay,
            args=replaced(args, self._lift, of=Tensor),
            kwargs=replaced(kwargs, self._lift, of=Tensor) if kwargs else {},
            inputs=inputs,
            outputs=[],
            rule=None if operation is None else operation.rule,
        )
        for tensor in outputs:
            value = Value(_snapshot(tensor), inputs[0].samples, op)
            op.outputs.append(value)
            self.know(tensor, value)
        if operation is None or not operation.registered:
            recognise(op)
        for value, layout in zip(op.outputs, Samples.through(op, outputs), strict=True):
            value.samples = layout
            if layout.mixed and not any(v.samples.mixed for v in inputs):
                op.family, op.reason = Family.UNSUPPORTED, "it mixes the samples of the batch; explain one at a time"
                op.map = op.rule = None
        op.name = self._name(op, tensors)
        for value in inputs:
            value.readers.append(op)
        for value in op.outputs:
            value.nonnegative = is_nonnegative(op)
        self.ops.append(op)
        if foldable(op) or (self.frugal and dispensable(op)):
            op.inputs[0].forget()  # needed by nobody else, unless `value_of` is asked for it later

    def _lift(self, tensor: Tensor) -> Any:
        """A value for a tensor that depends on the input, an alias for a constant, which may get other data later."""
        if id(tensor) in self._known and (value := self.value_of(tensor)) is not None:
            return value
        return tensor.detach()

    def _name(self, op: Op, tensors: Sequence[Tensor]) -> str:
        """The path of the parameter the operation uses, `#2` for its second call; else the operation's kind."""
        path = ""
        for tensor in tensors:
            entry = self._names.get(id(tensor))
            if entry is not None and entry[0]() is tensor:
                path = entry[1]
                break
        path = path or op.kind
        self._calls[path] = self._calls.get(path, 0) + 1
        return path if self._calls[path] == 1 else f"{path}#{self._calls[path]}"

    def _note(self, tensors: list[Tensor]) -> None:
        """Remember tensors whose memory others may come to share."""
        for tensor in tensors:
            self._living[id(tensor)] = weakref.ref(tensor)

    def check_unwritten(self) -> None:
        """Refuse a pass in which something that was recorded has been written over since."""
        for op in self.ops:
            for value in op.outputs:
                if value.overwritten:
                    raise TraceError(
                        f"What `{op.kind}` ('{op.name}') returned was changed in place later on, in a way that plrp "
                        "does not see; write the out-of-place form there."
                    )

    def _inherit_names(self, tensors: list[Tensor], result: Any) -> None:
        """What is computed from parameters alone carries their layer's name (weight norm, masks, tied transposes)."""
        name = next((e[1] for t in tensors if (e := self._names.get(id(t))) is not None and e[0]() is t), None)
        for tensor in tensors_in(result):
            self._living[id(tensor)] = weakref.ref(tensor)
            if name is not None and id(tensor) not in self._names:
                self._names[id(tensor)] = (weakref.ref(tensor), name)
            elif (entry := self._names.get(id(tensor))) is not None and entry[0]() is not tensor:
                del self._names[id(tensor)]

    def _after(self) -> str:
        """' after layer …': where on the tape we are."""
        named = next((op.name for op in reversed(self.ops) if op.name and op.is_layer), None)
        return f" after layer '{named}'" if named else " before the first layer"


def _layer_path(parameter: str) -> str:
    """`features.0.weight` → `features.0`; `conv.parametrizations.weight.original0` → `conv`."""
    path = (
        parameter.split(".parametrizations.")[0] if ".parametrizations." in parameter else parameter.rpartition(".")[0]
    )
    return "" if path.startswith("parametrizations.") else path


def _reads_shape_only(operation: Operation, args: tuple[Any, ...], recorder: Recorder) -> bool:
    """Whether a constant takes the shape or dtype of a value and nothing else: `c.expand_as(h)`, `c.to(h)`."""
    return operation.kind in ("expand_as", "view_as", "reshape_as", "type_as", "to") and bool(
        args and recorder.value_of(args[0]) is None
    )


def _carries(tensor: Tensor) -> bool:
    """Whether relevance could flow through a tensor: real or complex numbers, not indices or comparisons."""
    dtype = tensor.dtype
    return dtype.is_floating_point or dtype.is_complex


def _snapshot(tensor: Tensor) -> Tensor:
    """The tensor for the tape: an alias, or a copy of one made in inference mode, which autograd would not take."""
    if tensor.is_inference():
        with torch.inference_mode(False):
            return tensor.clone()
    return tensor.detach()


def _state(tensor: Tensor) -> tuple[int, int | None]:
    """Where a tensor's data lies, and how often it was written into."""
    try:
        return tensor.data_ptr(), version(tensor)
    except RuntimeError:  # a tensor without memory, as torch.func makes them
        return 0, None


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _registered_constant(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    operation = lookup(function, kwargs, args)
    return operation is not None and operation.family is Family.CONSTANT
