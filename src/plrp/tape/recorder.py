"""The recording of a forward pass: a `TorchFunctionMode` that writes one entry per function it sees."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from plrp.errors import TraceError, UnsupportedOperation

from .live_tensors import LayerNames, LiveTensors, probe, snapshot
from .locating import layouts_of
from .module_calls import ModuleCalls
from .operations import (
    LEAVES,
    LOOKS,
    NUMBERS_OUT,
    READS_AT,
    SHAPE_ALONE,
    UNNAMED,
    WRITES_AT,
    Family,
    operation_named,
    spelled,
    unknown_operation,
)
from .own_rules import RulesInForce, apply_rule, refuse_misfit, rules_in_force
from .recognition import dispensable, foldable, is_nonnegative, recognise, recomputable
from .refusals import EXPORTED, refuse_active
from .seam import run_noting_winners
from .values import Call, Op, Value, bit_sums, carries, gathered, replaced
from .written_out import with_draws, written_out

Refusal = tuple[str, str, str]  # the operation, the layer before it, the sentence


class Recorder(TorchFunctionMode):
    """Appends one `Op` per torch function that touches a tensor depending on the input.

    `frugal`: the outputs of convolutions and sums are not kept where an activation function has been read off them; a
    rule that wants them has them recomputed. `refused`: a list that collects refusals, so that the recording goes on;
    None: the first refusal is raised. `summing`: the bit sums of "constants" are noted, or of "all" tensors; they
    show a later change of memory.
    """

    def __init__(
        self, model: Any, frugal: bool = False, refused: list[Refusal] | None = None, summing: str = ""
    ) -> None:
        super().__init__()
        self.model, self.frugal, self.summing, self.refused = model, frugal, summing, refused
        self.rules = RulesInForce(rules_in_force())
        self.ops: list[Op] = []
        self.live = LiveTensors(model)
        self.names = LayerNames(model)
        self.modules = ModuleCalls(self)
        self.anchored: list[Any] = []  # tensors that must outlive the pass, since they are known by their ids
        self.lock = threading.Lock()
        self._numbers_declared = False  # whether a constant by a user's rule was taken out as a Python number
        self._numbers_suspect = False  # whether a Python number was taken out of a tensor that may come from the input

    def __enter__(self) -> Recorder:
        rules = rules_in_force()
        if rules != self.rules.given:  # of a target, computed later
            self.rules = RulesInForce({**self.rules.given, **rules})
        self.modules.watch()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.modules.unwatch()
        super().__exit__(*exception)

    def value_of(self, tensor: Any) -> Value | None:
        """The value that a tensor of the forward pass holds now, if it depends on the input."""
        value = self.live.value(tensor)
        if value is None:
            return None
        if self.live.changed(tensor):
            error = TraceError(
                f"A tensor of shape {tuple(tensor.shape)}{self.after()} was changed in place in a way that plrp does "
                "not see (an in-place function without a rule, `.data = …`, `out=`); write its out-of-place form there."
            )
            self.refuse(error, "in-place change")
            self.live.know(tensor, value)
        if value.forgotten:
            value.data = snapshot(tensor)  # somebody reads it after all
        return value

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function as the user wrote it, and write it down."""
        kwargs = kwargs or {}
        if function in LOOKS or self.modules.inside is not None:
            return function(*args, **kwargs)
        tensors = gathered(args, kwargs)
        values: list[Value] = []
        for tensor in tensors:
            value = self.value_of(tensor)
            if value is not None and value not in values:
                values.append(value)
        if not values:
            return self._constant(function, args, kwargs, tensors)
        kwargs = with_draws(function, args, kwargs)
        operation = self.rules.lookup(function, kwargs, args)
        call = Call(function, operation or UNNAMED, args, kwargs, tensors, values)
        if function in LEAVES:
            return self._leave(call)
        if call.operation.kind in WRITES_AT and not call.operation.registered:
            call = _write_at_ids(call, self.live)
            if not call.values:
                return self._constant(function, args, kwargs, tensors)
        steps = None
        if not call.operation.registered:
            steps = written_out(function, args, kwargs, lambda item: self.value_of(item) is not None)
        if steps is not None:
            with self:
                return steps(*args, **kwargs)
        if any(tensor.layout is not torch.strided for tensor in tensors):
            self.refuse_call(call, "reads a sparse tensor; make it dense with `.to_dense()`.")
        if kwargs.get("out") is not None:
            self.refuse_call(call, "writes into `out=`; use its result instead.")
        if call.operation.traits.training:
            refuse_active(call.operation, args, kwargs, self.after)
        if call.operation.inplace:
            return run_in_place(self, call)
        result, winners = run_noting_winners(function, args, kwargs)
        entry = self._record(call, result)
        if entry is not None:
            entry.winners = winners
        return result

    def _constant(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        """Run a function that reads nothing that depends on the input."""
        result = function(*args, **kwargs)
        self.names.inherit(tensors, result)
        results = gathered(result)
        self.live.note(results)
        if results or function is Tensor.__setitem__ or function in NUMBERS_OUT:
            independent = all(map(self.live.independent, filter(self._alien, tensors)))
            independent &= not any(self.live.value(t) is not None for t in tensors)  # token ids may say where
            self._numbers_suspect |= function in NUMBERS_OUT and not independent
            self.live.mark_independent([*results, *tensors[:1]], independent and not self._numbers_suspect)
        if self.live.declared(tensors):
            self.live.declare(results)
        return result

    def _leave(self, call: Call) -> Any:
        """Run a function that returns a Python number or array; refused where a relevance would be lost by it."""
        name = spelled(call.function)
        self._numbers_suspect |= call.operation.family is not Family.CONSTANT
        if call.operation.family is Family.CONSTANT:
            self._numbers_declared = True
        elif call.values[0].dtype.is_floating_point:
            error = UnsupportedOperation(
                f"`{name}`{self.after()} takes a value that depends on the input out of the tape, so its relevance "
                "would be lost; keep it a tensor, or, if it only steers the program, explain with "
                f"`rules={{{name}: 'constant'}}`."
            )
            self.refuse(error, name)
        return call.function(*call.args, **call.kwargs)

    def _record(self, call: Call, result: Any) -> Op | None:
        """Write down the result of a function, if relevance can pass through it."""
        unknown = call.operation.family is Family.UNSUPPORTED
        moves = call.operation.family is Family.REARRANGE
        copies = call.operation.family is Family.PASS and call.operation.traits.transparent
        tokens = [v for v in call.values if not v.dtype.is_floating_point and not v.dtype.is_complex]
        ids = (torch.int64, torch.int32) if (moves or copies) and len(tokens) == len(call.values) else ()
        order = getattr(result, "indices", None)  # of a sort: these are no ids
        outputs = [t for t in gathered(result) if carries(t) or (t.dtype in ids and t is not order)]
        constant = bool(call.args) and self.live.value(call.args[0]) is None
        if moves and tokens and outputs and call.operation.kind in READS_AT:
            source = call.args[0] if call.args else call.kwargs["input"]
            call = _look_up(call, source, self.live.value(source), outputs[0])
        elif moves and call.operation.traits.like and not constant and len(call.args) > 1 and len(call.values) > 1:
            shape = torch.zeros(call.args[1].shape)  # nothing else of the other tensor is read
            call = call._replace(args=(call.args[0], shape), values=call.values[:1])
        elif moves and tokens and any(map(carries, outputs)):
            call = call._replace(values=[v for v in call.values if v not in tokens])
        if call.operation.traits.like and not moves and not constant and len(call.values) > 1:
            cast = call.operation._replace(replay=Tensor.to)  # h.type_as(x): nothing of x but its dtype is read
            args = call.args[0], call.tensors[1].dtype
            call = call._replace(operation=cast, args=args, kwargs={}, values=call.values[:1])
        if unknown and any(t is a for t in outputs for a in call.tensors):
            self.refuse_call(
                call, "changes a tensor in place, and plrp has no rule for it; write its out-of-place form there."
            )
            for tensor in call.tensors:
                value = self.live.value(tensor)
                if value is not None:
                    self.live.know(tensor, value)
        if unknown and not outputs:
            self._numbers_suspect |= call.function in NUMBERS_OUT
            return None  # a shape, a comparison, an index: nothing that relevance could flow through
        if unknown and call.operation is UNNAMED:
            call = call._replace(operation=unknown_operation(call.function))
        empty = bool(outputs) and not outputs[0].numel() and _leaves_no_row(outputs, call.values)
        like = call.operation.traits.like and constant
        if empty or like or not call.values or call.operation.family is Family.CONSTANT:
            self.live.note(outputs)
            self.live.mark_independent(outputs, call.operation.kind in SHAPE_ALONE and len(call.values) == 1)
            if call.operation.registered:
                self.live.declare(outputs)
            return None
        outputs = [t for t in outputs if not any(t is a for a in call.tensors)]
        return self.write(call, outputs) if outputs else None

    def write(self, call: Call, outputs: list[Tensor]) -> Op | None:
        """Append an entry to the tape; None where a user's rule calls it a constant."""
        operation, inputs = call.operation, call.values
        declared = "all" if self.live.declared(call.tensors) else "numbers" if self._numbers_declared else ""

        def lift(tensor: Tensor) -> Any:
            """A value for a tensor that is read, an alias for a constant, which may get other data later."""
            value = self.live.value(tensor)
            return value if any(value is one for one in inputs) else tensor.detach()

        alien = list(filter(self._alien, call.tensors)) if len(call.tensors) > 1 else []
        op = Op(
            operation=operation,
            family=operation.family,
            function=call.function,
            args=replaced(call.args, lift, of=Tensor),
            kwargs=replaced(call.kwargs, lift, of=Tensor) if call.kwargs else {},
            inputs=inputs,
            outputs=[],
            rule=operation.rule,
            fresh=bool(alien),
            suspect=self._numbers_suspect or not all(map(self.live.independent, alien)),
            weighs=any(isinstance(t if t._base is None else t._base, nn.Parameter) for t in call.tensors),
            declared=declared,
        )
        if self.summing:
            op.sums = _sums_of_constants(call.tensors, self.live)
        for tensor in outputs:
            value = Value(snapshot(tensor), inputs[0].samples, op)
            value.sums = value.add_up() if self.summing == "all" else None
            op.outputs.append(value)
            self.live.know(tensor, value)
        if not operation.registered:
            recognise(op)
        op.name = self.names.name(op.kind, call.tensors)
        self.rules.seen.add(op.name)
        if op.name in self.rules.names:
            apply_rule(op, self.rules.names[op.name])
            if op.family is Family.CONSTANT:
                for tensor in outputs:  # no entry, but a constant
                    self.live.forget(tensor)
                self.live.note(outputs)
                self.live.declare(outputs)
                return None
        if op.name in self.rules.names or operation.registered:
            refuse_misfit(op)
        self._settle(op, outputs)
        self.ops.append(op)
        if foldable(op) or (self.frugal and dispensable(op)):
            op.inputs[0].forget()  # needed by nobody else, unless `value_of` is asked for it later
        return op

    def _alien(self, tensor: Tensor) -> bool:
        """Whether a tensor is neither the input's nor the model's."""
        known = id(tensor) in self.names.own or tensor.__class__ is nn.Parameter or self.live.value(tensor) is not None
        return not known and not self.live.of_model(tensor)

    def _settle(self, op: Op, outputs: list[Tensor]) -> None:
        """Settle where samples lie in an entry's outputs, their sign, and whether a layer lies below."""
        below = op.is_layer or op.family is Family.EMBEDDING or any(value.above_layer for value in op.inputs)
        for value, layout in zip(op.outputs, layouts_of(op, outputs), strict=True):
            value.samples = layout
            mixes = layout.mixed and not any(v.samples.mixed for v in op.receivers(None))
            if mixes and op.family is not Family.UNSUPPORTED:  # else nothing is known of where its samples are
                op.refuse(layout.mixed, mixes=True)
        for value in op.inputs:
            value.readers.append(op)
        for value in op.outputs:  # of a user's function only its rule is known
            value.nonnegative = not op.operation.registered and is_nonnegative(op)
            value.above_layer = below

    def refuse(self, error: Exception, kind: str) -> None:
        """Raise, or write down where all refusals are wanted."""
        if self.refused is None:
            raise error
        refusal = (kind, self.layer_before() or "", str(error))
        if refusal not in self.refused:
            self.refused.append(refusal)

    def refuse_call(self, call: Call, fault: str) -> None:
        """Refuse a call that writes into memory."""
        name = spelled(call.function)
        fault += f" {EXPORTED}" if name.startswith("aten.") else ""
        self.refuse(TraceError(f"`{name}`{self.after()} {fault}"), name)

    def layer_before(self) -> str | None:
        """The name of the last layer on the tape."""
        return next((op.name for op in reversed(self.ops) if op.name and op.is_layer), None)

    def after(self) -> str:
        """' after layer … (net.py, line 12, in forward)': where on the tape, and in the model's code, we are."""
        named = self.layer_before()
        return (f" after layer '{named}'" if named else " before the first layer") + _in_code()


def _sums_of_constants(tensors: list[Tensor], live: LiveTensors) -> dict[int, Tensor]:
    """The bit sums of the constants among these tensors, by address; of a parameter, those of some entries."""
    sums = {}
    for tensor in tensors:
        if live.value(tensor) is None and tensor.layout is torch.strided:
            read = bit_sums(probe(tensor) if tensor.__class__ is nn.Parameter else tensor.detach())
            if read is not None:
                sums[tensor.data_ptr()] = read
    return sums


def _look_up(call: Call, source: Tensor, value: Value | None, output: Tensor) -> Call:
    """A call that reads a source at places that are token ids: an embedding, if the source is a constant and the axes
    of the ids come first; else ids only say where to read.
    """
    if value is not None:
        args, kwargs = replaced((call.args, call.kwargs), lambda t: t if t is source else t.detach(), of=Tensor)
        return call._replace(args=args, kwargs=kwargs, values=[value])
    where = [item for item in (*call.args, *call.kwargs.values()) if item is not source]
    if isinstance(where[0], tuple):  # weight[ids, 0]
        where = list(where[0][:1])
    index = next((item for item in where if isinstance(item, Tensor)), None)
    leads = call.operation.kind != "index_select" or any(type(n) is int and n in (0, -source.dim()) for n in where)
    if leads and index is not None and len(call.tensors) == 2 and output.shape[: index.dim()] == index.shape:
        return call._replace(operation=operation_named("embedding")._replace(replay=call.function))
    return call._replace(values=[])


def _write_at_ids(call: Call, live: LiveTensors) -> Call:
    """A call that writes at places: token ids among these only say where. Ids that are written are numbers."""
    place, replay = WRITES_AT[call.operation.kind], call.operation.replay
    if not any(not carries(t) and live.value(t) is not None for t in call.tensors):
        return call

    def write(*args: Any, **kwargs: Any) -> Any:
        """The same with target and source of one type: relevance of ids, which are whole, is not."""
        numbers = gathered(*args[:place], *args[place + 1 :])
        dtype = next((t.dtype for t in numbers if carries(t)), None)
        changed = [replaced(a, lambda t: t.to(dtype or t.dtype), of=Tensor) for a in args]
        return replay(*changed[:place], *args[place : place + 1], *changed[place + 1 :], **kwargs)

    places, index = replaced((call.args[place : place + 1], call.kwargs.get("index")), Tensor.detach, of=Tensor)
    args = (*call.args[:place], *places, *call.args[place + 1 :])
    kwargs = call.kwargs if index is None else {**call.kwargs, "index": index}
    values = [v for v in call.values if any(live.value(t) is v for t in gathered(args, kwargs))]
    return call._replace(operation=call.operation._replace(replay=write), args=args, kwargs=kwargs, values=values)


def _leaves_no_row(outputs: list[Tensor], values: list[Value]) -> bool:
    """Whether no row is left of values, as for an expert that nobody was sent to: a constant."""
    return not any(t.dim() == 0 or len(t) for t in outputs) and any(v.shape.numel() for v in values)


def run_in_place(recorder: Recorder, call: Call) -> Any:
    """Run an in-place operation on a fresh storage, so that recorded tensors stay as they are.

    The user's tensor names the new value from then on.
    """
    target: Tensor = call.args[0]
    if call.operation.traits.training and call.operation.traits.scales:  # an inactive dropout: nothing happens
        return target
    if recorder.value_of(target) is None and recorder.live.of_model(target):
        recorder.refuse_call(call, "writes into a parameter or buffer of the model; use a copy.")
        return target
    if recorder.live.shares_memory(target):
        fault = "changes a tensor in place while another view of the same memory is in use; use the out-of-place form"
        recorder.refuse_call(call, f"{fault} there.")
    if not carries(target) and any(v.dtype.is_floating_point for v in call.values):
        recorder.refuse_call(call, "rounds values to whole numbers, and their relevance would be lost.")
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


def check_unwritten(recorder: Recorder) -> None:
    """Refuse a pass in which something that was recorded has been written over since."""
    for op in recorder.ops if not recorder.refused else ():  # a refusal has said so already
        for value in op.outputs:
            if value.overwritten:
                error = TraceError(
                    f"The output of `{op.kind}` ('{op.name}') was changed in place later on, in a way that plrp does "
                    "not see; write the out-of-place form there."
                )
                recorder.refuse(error, op.kind)


def _in_code() -> str:
    """' (net.py, line 12, in forward)': the line that is running, of the innermost code that is not torch's or ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        room = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if room not in ("torch", "plrp"):
            code = frame.f_code
            remedy = f", part of {room}: derive a class from the module it is in, and write that step anew there"
            whose = remedy if "site-packages" in code.co_filename else ""
            return f" ({Path(code.co_filename).name}, line {frame.f_lineno}, in {code.co_name}{whose})"
        frame = frame.f_back
    return ""
