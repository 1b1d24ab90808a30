"""The recording of a forward pass: a `TorchFunctionMode` that writes one entry per function it sees."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from plrp.errors import TraceError, UnsupportedOperation

from .locating import layouts_of
from .operations import LEAVES, LOOKS, Family, Operation, operation_named, spelled
from .own_rules import RulesInForce, apply_rule, refuse_misfit, rules_in_force
from .recognition import dispensable, foldable, is_nonnegative, recognise, recomputable
from .refusals import refuse_active
from .values import Op, Value, gathered, replaced, tensors_in
from .written_out import written_out


class Recorder(TorchFunctionMode):
    """Appends one `Op` per torch function that touches a tensor depending on the input.

    `frugal`: the outputs of convolutions and sums are not kept where an activation function has been read off them; a
    rule that wants them has them recomputed. `refused`: a list for what would be refused (operation, layer before it,
    sentence), so that the recording goes on; None: the first refusal is raised. `summing`: of every tensor its sums are
    noted, by which a later change of its memory shows.
    """

    def __init__(
        self,
        model: Any,
        frugal: bool = False,
        refused: list[tuple[str, str, str]] | None = None,
        summing: bool = False,
    ) -> None:
        super().__init__()
        self.frugal = frugal
        self.summing = summing
        self.refused = refused
        self.rules = RulesInForce(rules_in_force())
        self.ops: list[Op] = []
        self._known: dict[int, tuple[weakref.ref[Tensor], Value, Any]] = {}  # and the state in which it was recorded
        self._names: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._living: dict[int, weakref.ref[Tensor]] = {}  # tensors that may share their memory with others
        self._calls: dict[str, int] = {}
        self.model = model
        self._keep: list[Any] = []
        self._declared: dict[int, weakref.ref[Tensor]] = {}  # constants because a user's rule says so
        self._numbers_declared = False  # whether such a constant was taken out as a Python number
        self._modules = ModuleCalls(self)
        self.lock = threading.Lock()
        if isinstance(model, nn.Module):
            for prefix, module in model.named_modules():
                self._modules.scripted |= isinstance(module, torch.jit.ScriptModule)
                for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                    if tensor is not None and id(tensor) not in self._names:
                        path = f"{prefix}.{name}" if prefix else name
                        self._names[id(tensor)] = (weakref.ref(tensor), _layer_path(path))

    def __enter__(self) -> Recorder:
        rules = rules_in_force()
        if rules != self.rules.given:  # of a target, computed later
            self.rules = RulesInForce({**self.rules.given, **rules})
        self._modules.watch()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._modules.unwatch()
        super().__exit__(*exception)

    def refuse(self, error: Exception, kind: str) -> None:
        """Raise, or write down where all refusals are wanted."""
        if self.refused is None:
            raise error
        found = (kind, self.layer_before() or "", str(error))
        if found not in self.refused:
            self.refused.append(found)

    @cached_property
    def _storages_of_model(self) -> set[int]:
        """The storages of the model, which nothing may write into."""
        if not isinstance(self.model, nn.Module):
            return set()
        return {_storage(tensor) for tensor in (*self.model.parameters(), *self.model.buffers())}

    def value_of(self, tensor: Any) -> Value | None:
        """The value that a tensor of the forward pass holds now, if it depends on the input."""
        entry = self._known.get(id(tensor))
        if entry is None or entry[0]() is not tensor:
            return None
        assert isinstance(tensor, Tensor)
        value = entry[1]
        if _state(tensor) != entry[2]:
            error = TraceError(
                f"A tensor of shape {tuple(tensor.shape)}{self._after()} was changed in place in a way that plrp does "
                "not see (an in-place function without a rule, `.data = …`, `out=`); write its out-of-place form there."
            )
            self.refuse(error, "in-place change")
            self.know(tensor, value)
        if value.forgotten:
            value.data = _snapshot(tensor)  # somebody reads it after all
        return value

    def _depends(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and self.value_of(tensor) is not None

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
        if function in LOOKS or self._modules.inside is not None:
            return function(*args, **kwargs)
        tensors = gathered(args, kwargs)
        values: list[Value] = []
        for tensor in tensors:
            if id(tensor) in self._known:
                value = self.value_of(tensor)
                if value is not None and value not in values:
                    values.append(value)
        if not values:
            return self._constant(function, args, kwargs, tensors)
        operation = self.rules.lookup(function, kwargs, args)
        if function in LEAVES:
            if operation is not None and operation.family is Family.CONSTANT:
                self._numbers_declared = True
            elif values[0].dtype.is_floating_point:
                self.refuse(self._leaves(function), spelled(function))
            return function(*args, **kwargs)
        steps = None
        if operation is None or not operation.registered:
            steps = written_out(function, args, kwargs, self._depends)
        if steps is not None:
            with self:
                return steps(*args, **kwargs)
        if kwargs.get("out") is not None:
            error = TraceError(f"`{spelled(function)}` writes into `out=`{self._after()}; use its result instead.")
            self.refuse(error, spelled(function))
        if operation is not None and operation.traits.training:
            refuse_active(operation, args, kwargs, self._after)
        if operation is not None and operation.inplace:
            return self._inplace(function, operation, args, kwargs, tensors, values)
        winners = None
        if operation is not None and function is F.max_pool2d and len(args) < 7:
            result, winners = F.max_pool2d(*args, **{**kwargs, "return_indices": True})  # torch finds them anyway
        else:
            result = function(*args, **kwargs)
        entry = self._record(function, operation, args, kwargs, tensors, values, result)
        if entry is not None:
            entry.winners = winners
        return result

    def _constant(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        """Run a function that reads nothing that depends on the input."""
        result = function(*args, **kwargs)
        self._inherit_names(tensors, result)
        if self._declared and any(map(self._is_declared, tensors)):
            self._declare(gathered(result))
        return result

    def _record(
        self,
        function: Any,
        operation: Operation | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        values: list[Value],
        result: Any,
    ) -> Op | None:
        """Write down what a function returned, if relevance can pass through it."""
        moves = operation is not None and operation.family is Family.REARRANGE
        tokens = [v for v in values if not v.dtype.is_floating_point and not v.dtype.is_complex]
        outputs = [
            t for t in gathered(result) if _carries(t) or (moves and len(tokens) == len(values) and _holds_ids(t))
        ]
        if moves and tokens and any(map(_carries, outputs)):
            if _looks_up(operation, args, self):  # weight[ids]
                operation = operation_named("embedding")._replace(replay=function)
            else:  # ids that say where to read are not what is read
                values = [v for v in values if v not in tokens]
                if not values:
                    self._note(outputs)
                    return None
        if operation is None and any(t is a for t in outputs for a in tensors):
            error = TraceError(
                f"`{spelled(function)}`{self._after()} changes a tensor in place, and plrp has no rule for it; write "
                "its out-of-place form there."
            )
            self.refuse(error, spelled(function))
            for tensor in tensors:
                if id(tensor) in self._known:
                    self.know(tensor, self._known[id(tensor)][1])
        if operation is None and not outputs:
            return None  # a shape, a comparison, an index: nothing that relevance could flow through
        if operation is not None and (operation.family is Family.CONSTANT or _reads_shape_only(operation, args, self)):
            self._note(outputs)
            if operation.registered:
                self._declare(outputs)
            return None
        outputs = [t for t in outputs if not any(t is a for a in tensors)]
        if not outputs:
            return None
        self._write(function, operation, args, kwargs, tensors, values, outputs)
        return self.ops[-1]

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
        if operation.traits.training:  # a dropout, inactive, or it would have been refused: nothing happens
            return target
        if self.value_of(target) is None and _storage(target) in self._storages_of_model:
            error = TraceError(
                f"`{spelled(function)}`{self._after()} writes into a parameter or buffer of the model; use a copy."
            )
            self.refuse(error, spelled(function))
            return target
        if self._shared(target):
            error = TraceError(
                f"`{spelled(function)}`{self._after()} changes a tensor in place while another view of the same "
                "memory is in use; use the out-of-place form there."
            )
            self.refuse(error, spelled(function))
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
        return target

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
        if operation is None:
            operation = Operation(spelled(function).rsplit(".", 1)[-1], Family.UNSUPPORTED, function)
        declared = "all" if self._declared and any(map(self._is_declared, tensors)) else ""

        def lift(tensor: Tensor) -> Any:
            """A value for a tensor that is read, an alias for a constant, which may get other data later."""
            entry = self._known.get(id(tensor))
            known = entry is not None and entry[0]() is tensor and any(entry[1] is value for value in inputs)
            return entry[1] if entry is not None and known else tensor.detach()

        op = Op(
            operation=operation,
            family=operation.family,
            function=function,
            args=replaced(args, lift, of=Tensor),
            kwargs=replaced(kwargs, lift, of=Tensor) if kwargs else {},
            inputs=inputs,
            outputs=[],
            rule=operation.rule,
            declared=declared or ("numbers" if self._numbers_declared else ""),
        )
        for tensor in outputs:
            value = Value(_snapshot(tensor), inputs[0].samples, op)
            value.sums = value.add_up() if self.summing else None
            op.outputs.append(value)
            self.know(tensor, value)
        if not operation.registered:
            recognise(op)
        op.name = self._name(op, tensors)
        if op.name in self.rules.names:
            apply_rule(op, self.rules.names[op.name])
        if op.name in self.rules.names or operation.registered:
            refuse_misfit(op)
        for value, layout in zip(op.outputs, layouts_of(op, outputs), strict=True):
            value.samples = layout
            mixes = layout.mixed and not any(v.samples.mixed for v in inputs)
            if mixes and op.family is not Family.UNSUPPORTED:  # else nothing is known of where its samples are
                op.refuse(layout.mixed, mixes=True)
        for value in inputs:
            value.readers.append(op)
        below = op.is_layer or op.family is Family.EMBEDDING
        above_layer = below or any(value.above_layer for value in inputs)
        for value in op.outputs:  # of a user's function only its rule is known
            value.nonnegative = not operation.registered and is_nonnegative(op)
            value.above_layer = above_layer
        self.ops.append(op)
        if foldable(op) or (self.frugal and dispensable(op)):
            op.inputs[0].forget()  # needed by nobody else, unless `value_of` is asked for it later

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
        for op in self.ops if not self.refused else ():  # what was refused is said already
            for value in op.outputs:
                if value.overwritten:
                    error = TraceError(
                        f"What `{op.kind}` ('{op.name}') returned was changed in place later on, in a way that plrp "
                        "does not see; write the out-of-place form there."
                    )
                    self.refuse(error, op.kind)

    def _inherit_names(self, tensors: list[Tensor], result: Any) -> None:
        """What is computed from parameters alone carries their layer's name (weight norm, masks, tied transposes)."""
        name = next((e[1] for t in tensors if (e := self._names.get(id(t))) is not None and e[0]() is t), None)
        for tensor in tensors_in(result):
            alive = self._living[id(tensor)] = weakref.ref(tensor)
            entry = self._names.get(id(tensor))
            if entry is not None and entry[0]() is tensor:
                continue
            if name is not None:
                self._names[id(tensor)] = (alive, name)
            else:
                self._names.pop(id(tensor), None)  # of a tensor that is gone

    def _declare(self, tensors: list[Tensor]) -> None:
        """These tensors are constants because a user's rule says so, whatever they depend on."""
        for tensor in tensors:
            self._declared[id(tensor)] = weakref.ref(tensor)

    def _is_declared(self, tensor: Tensor) -> bool:
        alive = self._declared.get(id(tensor))
        return alive is not None and alive() is tensor

    def _leaves(self, function: Any) -> UnsupportedOperation:
        """The refusal of a function that returns a Python number or array."""
        return UnsupportedOperation(
            f"`{spelled(function)}`{self._after()} takes a value that depends on the input out of the tape, so its "
            f"relevance would be lost; keep it a tensor, or, if it only steers the program, explain with "
            f"`rules={{{spelled(function)}: 'constant'}}`."
        )

    def layer_before(self) -> str | None:
        """The name of the last layer on the tape."""
        return next((op.name for op in reversed(self.ops) if op.name and op.is_layer), None)

    def _after(self) -> str:
        """' after layer … (net.py, line 12, in forward)': where on the tape, and in the model's code, we are."""
        named = self.layer_before()
        return (f" after layer '{named}'" if named else " before the first layer") + _in_code()

    # --- calls of whole modules ---------------------------------------------------------------------------------------

    def depends(self, structure: Any) -> list[Value]:
        """The values in nested arguments, each once."""
        found: list[Value] = []
        with torch._C.DisableTorchFunction():
            for tensor in gathered(structure):
                value = self.value_of(tensor)
                if value is not None and value not in found:
                    found.append(value)
        return found

    def write_module(self, module: nn.Module, operation: Operation, args: Any, kwargs: Any, result: Any) -> None:
        """Write the call of a module with a rule of its own as one entry."""
        values, outputs = self.depends((args, kwargs)), [t for t in gathered(result) if _carries(t)]
        if not values or not outputs:
            return
        if operation.family is Family.CONSTANT:
            self._note(outputs)
            self._declare(outputs)
            return
        self._write(type(module), operation, args, kwargs, gathered(args, kwargs), values, outputs)
        path = self.path_of(module)
        if path and path not in self.rules.names:
            self.ops[-1].name = path

    def path_of(self, module: nn.Module) -> str:
        """Where in the model a module is."""
        if not isinstance(self.model, nn.Module):
            return ""
        return next((name for name, one in self.model.named_modules() if one is module), "")


class ModuleCalls:
    """Sees the calls of modules while a recorder is at work: of classes with a rule, and of TorchScript's.

    By torch's hooks for all modules, which only act for the thread that records, and are set only where such a module
    may be called: nothing is attached to the model.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = weakref.ref(recorder)
        self._handles: list[Any] = []
        self._thread = 0
        self._depth = 0  # a recorder enters itself again for functions that are written out in steps
        self._writing = False
        self.scripted = False  # whether the model has TorchScript modules
        self.inside: nn.Module | None = None  # a module whose call is one entry of the tape

    def watch(self) -> None:
        """Begin."""
        self._depth += 1
        if self._depth > 1:
            return
        recorder = self._recorder()
        assert recorder is not None
        self._thread, self.inside = threading.get_ident(), None
        if self.scripted or recorder.rules.modules:
            self._handles = [
                register_module_forward_pre_hook(self._before),
                register_module_forward_hook(self._after, with_kwargs=True, always_call=True),
            ]

    def unwatch(self) -> None:
        """End."""
        self._depth -= 1
        if self._depth:
            return
        for handle in self._handles:
            handle.remove()
        self._handles, self.inside = [], None

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        recorder = self._recorder()
        if recorder is None or threading.get_ident() != self._thread or self.inside is not None:
            return
        if recorder.rules.of_module(module) is not None:
            self.inside = module
        elif isinstance(module, torch.jit.ScriptModule) and recorder.depends(args):
            error = TraceError(
                f"'{recorder.path_of(module)}' is a TorchScript module, which hides its operations; give the Python "
                f"module it was made from, or a rule for the whole of it: "
                f"`rules={{torch.jit.ScriptModule: rule}}`."
            )
            recorder.refuse(error, type(module).__name__)

    def _after(self, module: nn.Module, args: tuple[Any, ...], *more: Any) -> None:
        recorder = self._recorder()
        elsewhere = threading.get_ident() != self._thread or self.inside is not module or self._writing
        if recorder is None or elsewhere:
            return
        try:
            self._writing = True
            operation = recorder.rules.of_module(module)
            if operation is not None and len(more) == 2:  # (keywords, result); where the module failed there is neither
                with torch._C.DisableTorchFunction():
                    recorder.write_module(module, operation, args, *more)
        finally:
            self.inside, self._writing = None, False


def _in_code() -> str:
    """' (net.py, line 12, in forward)': the line that is running, of the innermost code that is not torch's or ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        room = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if room not in ("torch", "plrp"):
            code = frame.f_code
            return f" ({Path(code.co_filename).name}, line {frame.f_lineno}, in {code.co_name})"
        frame = frame.f_back
    return ""


def _layer_path(parameter: str) -> str:
    """`features.0.weight` → `features.0`; `conv.parametrizations.weight.original0` → `conv`."""
    path = (
        parameter.split(".parametrizations.")[0] if ".parametrizations." in parameter else parameter.rpartition(".")[0]
    )
    return "" if path.startswith("parametrizations.") else path


def _reads_shape_only(operation: Operation, args: tuple[Any, ...], recorder: Recorder) -> bool:
    """Whether a constant takes the shape or dtype of a value and nothing else: `c.expand_as(h)`, `c.to(h)`."""
    return operation.traits.like and bool(args and recorder.value_of(args[0]) is None)


def _carries(tensor: Tensor) -> bool:
    """Whether relevance could flow through a tensor: real or complex numbers, not indices or comparisons."""
    dtype = tensor.dtype
    return dtype.is_floating_point or dtype.is_complex


def _holds_ids(tensor: Tensor) -> bool:
    """Whether a tensor may hold token ids."""
    return tensor.dtype in (torch.int64, torch.int32)


def _looks_up(operation: Operation | None, args: tuple[Any, ...], recorder: Recorder) -> bool:
    """Whether rows of a constant are read at ids that depend on the input: `weight[ids]`."""
    plain = operation is not None and operation.kind == "getitem" and isinstance(args[1], Tensor)
    return plain and recorder.value_of(args[0]) is None


def _snapshot(tensor: Tensor) -> Tensor:
    """The tensor for the tape: an alias, or a copy of one made in inference mode, which autograd would not take."""
    if tensor.is_inference():
        with torch.inference_mode(False):
            return tensor.clone()
    return tensor.detach()


def _state(tensor: Tensor) -> tuple[int, int | None]:
    """Where a tensor's data lies, and how often it was written into."""
    try:
        return tensor.data_ptr(), tensor._version
    except RuntimeError:  # made in inference mode, or without memory, as torch.func makes them
        pass
    try:
        return tensor.data_ptr(), None
    except RuntimeError:
        return 0, None


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
