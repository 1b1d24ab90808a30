"""One forward pass, recorded as a tape of operations.

The pass runs under a `TorchFunctionMode`, which sees every torch function that touches a tensor depending on the input.
Nothing is attached to the model: no hooks, no swapped modules or parameters.
"""

from __future__ import annotations

import html
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .errors import TraceError, UnsupportedOperation
from .maps import Dense, LinearMap, Replayed, convolution
from .operations import LEAVES, Family, lookup, spelled
from .samples import Samples

if TYPE_CHECKING:
    from .composites import Composite
    from .explain import Explanation
    from .pruning import Pruning

HALF = (torch.float16, torch.bfloat16)


@dataclass(eq=False)
class Value:
    """One tensor of the forward pass that depends on the input. `data` is never modified."""

    data: Tensor
    samples: Samples
    producer: Op | None = None
    readers: list[Op] = field(default_factory=list)
    nonnegative: bool = False

    @property
    def shape(self) -> torch.Size:
        """The tensor's shape."""
        return self.data.shape


@dataclass(eq=False)
class Op:
    """One entry of the tape: a torch function with its arguments, in which a `Value` stands for each tensor that depends
    on the input."""

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
    folded: list[str] = field(default_factory=list)  # names of BatchNorms folded into this layer

    @property
    def is_layer(self) -> bool:
        """Whether this is a conv or linear layer, whose rule the composite chooses."""
        return self.map is not None

    @property
    def output(self) -> Value:
        """The first (mostly the only) output."""
        return self.outputs[0]

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """The operation again, with these tensors in place of its inputs."""
        substitute = dict(zip(map(id, self.inputs), tensors, strict=True))
        args = _replaced(self.args, lambda v: substitute[id(v)])
        kwargs = _replaced(self.kwargs, lambda v: substitute[id(v)])
        return self.replay(*args, **kwargs)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or keyword."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)


class Trace:
    """What happened in one forward pass, ready to be explained any number of times.

    `ops` is the tape in order of execution, `inputs` the values given to the model, `output` what it returned (before a
    softmax or sigmoid at the very end, which `head` then names).
    """

    def __init__(self, recorder: _Recorder, inputs: list[Value], single: bool) -> None:
        self.ops = recorder.ops
        self.inputs = inputs
        self.single = single  # whether the model was given one tensor, not a tuple
        self.batch = inputs[0].shape[0]
        self.output: Any = None
        self.head: str | None = None
        self._recorder = recorder
        self.denominators: dict[Any, Tensor] | None = {}  # kept for the next explanation
        self.consumed = False

    @property
    def layers(self) -> list[Op]:
        """The conv and linear layers, in order of execution."""
        return [op for op in self.ops if op.is_layer]

    @property
    def unsupported(self) -> list[Op]:
        """Operations without a rule that relevance from the output would reach."""
        return [op for op in self.reached() if op.family is Family.UNSUPPORTED]

    def reached(self, start: Sequence[Value] | None = None) -> list[Op]:
        """The operations that relevance passes on its way from the output (or other values), top down."""
        leaves = [self.value_of(t) for t in tensors_in(self.output)] if start is None else start
        live = {id(v) for v in leaves if v is not None}
        found = []
        for op in reversed(self.ops):
            if any(id(v) in live for v in op.outputs):
                found.append(op)
                passes = [op.signal] if op.signal is not None else op.inputs
                live.update(id(v) for v in passes)
        return found

    def forget_after_use(self) -> None:
        """Explain this trace once only: what the walk has passed is freed."""
        self.denominators, self.consumed = None, True

    @contextmanager
    def continued(self) -> Iterator[list[Op]]:
        """Go on recording, on a copy of the tape that is handed out: what a callable target computes."""
        recorder = self._recorder
        with recorder.lock:
            tape, recorder.ops = recorder.ops, list(self.ops)
            try:
                with recorder:
                    yield recorder.ops
                _mark_first_layers(recorder.ops)
            finally:
                recorder.ops = tape

    def value_of(self, tensor: Tensor) -> Value | None:
        """The value that a live tensor of the forward pass holds."""
        return self._recorder.value_of(tensor)

    def explain(
        self,
        *,
        target: Any = None,
        composite: str | Composite = "epsilon-plus-flat",
        pruning: Pruning | None = None,
        layers: bool | Sequence[str] = False,
    ) -> Explanation:
        """Explain this forward pass; see `plrp.explain`. May be called any number of times."""
        from .explain import explain_trace

        return explain_trace(self, target=target, composite=composite, pruning=pruning, layers=layers)

    def sweep(
        self,
        prunings: Sequence[Pruning | None],
        *,
        target: Any = None,
        composite: str | Composite = "epsilon-plus-flat",
        layers: bool | Sequence[str] = False,
    ) -> Iterator[Explanation]:
        """Explain with one pruning after the other; what does not depend on relevance is computed once."""
        for pruning in prunings:
            yield self.explain(target=target, composite=composite, pruning=pruning, layers=layers)

    def rows(self, composite: str | Composite = "epsilon-plus-flat") -> list[tuple[str, str, str, str]]:
        """The tape as a table: layer, operation, output shape, rule."""
        from .composites import resolve

        chosen = resolve(composite)
        return [(op.name, op.kind, _shape(op.output), chosen.rule_name(op)) for op in self.ops if op.outputs]

    def __repr__(self) -> str:
        return render_table(("layer", "op", "output", "rule"), self.rows())

    def _repr_html_(self) -> str:
        return render_html(("layer", "op", "output", "rule"), self.rows())


def trace(model: Callable[..., Any], inputs: Tensor | Sequence[Tensor]) -> Trace:
    """Record one forward pass of `model` for explaining it any number of times.

    `inputs` is a tensor with the batch on its first axis, or a tuple of such tensors for a model with several inputs.
    The model is not touched. An operation without a rule raises `UnsupportedOperation`.
    """
    recorded = record(model, inputs)
    if isinstance(recorded.output, Tensor):
        for op in recorded.unsupported:
            raise unsupported(op, recorded)
    return recorded


def record(model: Callable[..., Any], inputs: Tensor | Sequence[Tensor]) -> Trace:
    """Record one forward pass, operations without a rule included."""
    given = check_inputs(inputs)
    if isinstance(model, nn.Module):
        _check_model(model)
    recorder = _Recorder(model)
    batch = given[0].shape[0]
    aliases = [x.detach() for x in given]  # in-place operations on the input never reach the user's tensor
    values = [Value(alias.detach(), Samples.first_axis(batch)) for alias in aliases]
    for alias, value in zip(aliases, values, strict=True):
        value.nonnegative = bool(batch) and bool((value.data >= 0).all())
        recorder.know(alias, value)
    with torch.no_grad(), recorder:
        output = model(*aliases)
        found = Trace(recorder, values, isinstance(inputs, Tensor))
        found.output = _without_head(output, found)
    _check_output(found, output)
    _fold_batch_norms(found)
    _mark_first_layers(found.ops)
    _check_finite(found)
    return found


# --- the recording ----------------------------------------------------------------------------------------------------


class _Recorder(TorchFunctionMode):
    """Appends one `Op` per torch function that touches a tensor depending on the input."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self._known: dict[int, tuple[weakref.ref[Tensor], Value]] = {}
        self._names: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._sharing: dict[int, list[weakref.ref[Tensor]]] = {}  # live tensors by storage
        self._calls: dict[str, int] = {}
        self._own: set[int] = set()  # storages of the model
        self._keep: list[Any] = []
        self.lock = threading.Lock()
        if isinstance(model, nn.Module):
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                self._names[id(tensor)] = (weakref.ref(tensor), _layer_path(name))
                self._own.add(_storage(tensor))

    def value_of(self, tensor: Any) -> Value | None:
        """The value that a tensor of the forward pass holds now, if it depends on the input."""
        entry = self._known.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def know(self, tensor: Tensor, value: Value) -> None:
        """From now on, `tensor` holds `value`."""
        self._known[id(tensor)] = (weakref.ref(tensor), value)
        self._share(tensor)

    def _share(self, tensor: Tensor) -> None:
        self._sharing.setdefault(_storage(tensor), []).append(weakref.ref(tensor))

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function as the user wrote it, and write it down."""
        kwargs = kwargs or {}
        tensors = list(tensors_in((args, kwargs)))
        values: list[Value] = []
        for tensor in tensors:
            value = self.value_of(tensor)
            if value is not None and not any(value is v for v in values):
                values.append(value)
        if not values:
            result = function(*args, **kwargs)
            self._inherit_names(tensors, result)
            return result
        if function in LEAVES and not _registered_constant(function, args, kwargs):
            if values[0].data.is_floating_point():
                raise UnsupportedOperation(
                    f"`{spelled(function)}`{self._after()} takes a value that depends on the input out of the tape, so "
                    f"its relevance would be lost; keep it a tensor, or call "
                    f"`plrp.register_rule({spelled(function)}, 'constant')` if it only steers the program."
                )
            return function(*args, **kwargs)
        operation = lookup(function, kwargs, args)
        if kwargs.get("out") is not None:
            raise TraceError(
                f"`{spelled(function)}` writes into `out=`{self._after()}; use its result instead."
            )
        _refuse_active(function, operation, args, kwargs, self._after())
        if operation is not None and operation.inplace:
            return self._inplace(function, operation, args, kwargs, values)
        result = function(*args, **kwargs)
        if operation is None and not any(t.is_floating_point() for t in tensors_in(result)):
            return result  # a shape, a comparison, an index: nothing that relevance could flow through
        if operation is not None and operation.family is Family.CONSTANT:
            return result
        outputs = [
            t for t in tensors_in(result) if t.is_floating_point() and not any(t is a for a in tensors)
        ]
        if not outputs:
            return result
        self._write(function, operation, args, kwargs, values, outputs)
        return result

    def _inplace(
        self,
        function: Any,
        operation: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        values: list[Value],
    ) -> Any:
        """Run an in-place operation on a fresh storage, and let the user's tensor name the new value.

        The tape keeps the old storage, so nothing that was recorded changes.
        """
        target: Tensor = args[0]
        if _storage(target) in self._own:
            raise TraceError(
                f"`{spelled(function)}`{self._after()} writes into a parameter or buffer of the model; use a copy of it."
            )
        for sharer in self._sharing.get(_storage(target), []):
            other = sharer()
            if other is not None and other is not target:
                raise TraceError(
                    f"`{spelled(function)}`{self._after()} changes a tensor in place while another view of the same "
                    "memory is in use; use the out-of-place form there."
                )
        result = operation.replay(*args, **kwargs)
        result = result.to(target.dtype)
        if result.shape != target.shape:
            raise TraceError(
                f"`{spelled(function)}`{self._after()} changes a tensor's shape in place; use the result."
            )
        if result.data_ptr() == target.data_ptr() and result.numel():
            result = result.clone()  # e.g. an inactive dropout returns its input
        depends = operation.family is not Family.CONSTANT
        if depends:
            self._write(function, operation, args, kwargs, values, [result])
        target.data = result
        self._share(target)
        if depends:
            self.know(target, self.ops[-1].output)
        else:
            self._known.pop(id(target), None)
        return None if operation.kind == "setitem" else target

    def _write(
        self,
        function: Any,
        operation: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[Value],
        outputs: list[Tensor],
    ) -> None:
        lifted = _replaced((args, kwargs), self._lift, of=Tensor)
        family = Family.UNSUPPORTED if operation is None else operation.family
        kind = spelled(function).rsplit(".", 1)[-1] if operation is None else operation.kind
        op = Op(
            kind=kind,
            family=family,
            function=function,
            replay=function if operation is None else operation.replay,
            args=lifted[0],
            kwargs=lifted[1],
            inputs=inputs,
            outputs=[],
            rule=None if operation is None else operation.rule,
        )
        samples = Samples.through(op, outputs, self._after())
        for tensor, layout in zip(outputs, samples, strict=True):
            value = Value(tensor.detach(), layout, op)
            op.outputs.append(value)
            self.know(tensor, value)
        if operation is None or not operation.registered:
            _recognise(op)
        op.name = self._name(op, tensors_in((args, kwargs)))
        for value in inputs:
            value.readers.append(op)
        for value in op.outputs:
            value.nonnegative = _nonnegative(op)
        self.ops.append(op)

    def _lift(self, tensor: Tensor) -> Any:
        """A value for a tensor that depends on the input, the tensor itself for a constant."""
        return self.value_of(tensor) or tensor.detach()

    def _name(self, op: Op, tensors: Iterator[Tensor]) -> str:
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

    def _inherit_names(self, tensors: list[Tensor], result: Any) -> None:
        """What is computed from parameters alone carries their layer's name (weight norm, masks, tied transposes)."""
        name = next(
            (e[1] for t in tensors if (e := self._names.get(id(t))) is not None and e[0]() is t), None
        )
        for tensor in tensors_in(result):
            self._share(tensor)
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
        parameter.split(".parametrizations.")[0]
        if ".parametrizations." in parameter
        else parameter.rpartition(".")[0]
    )
    return "" if path.startswith("parametrizations.") else path


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def tensors_in(structure: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples, dicts and slices, in order."""
    if isinstance(structure, Tensor):
        yield structure
    elif isinstance(structure, dict):
        for item in structure.values():
            yield from tensors_in(item)
    elif isinstance(structure, list | tuple):
        for item in structure:
            yield from tensors_in(item)
    elif isinstance(structure, slice):
        yield from tensors_in((structure.start, structure.stop, structure.step))
    elif hasattr(structure, "__dataclass_fields__") and not isinstance(structure, type | Op | Value):
        for name in structure.__dataclass_fields__:
            yield from tensors_in(getattr(structure, name))


def _replaced(structure: Any, change: Callable[[Any], Any], of: type = Value) -> Any:
    """The same nested structure with every `Value` (or tensor) replaced."""
    if isinstance(structure, of):
        return change(structure)
    if isinstance(structure, dict):
        return {key: _replaced(item, change, of) for key, item in structure.items()}
    if isinstance(structure, list):
        return [_replaced(item, change, of) for item in structure]
    if isinstance(structure, tuple):
        items = [_replaced(item, change, of) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    return structure


def _registered_constant(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    operation = lookup(function, kwargs, args)
    return operation is not None and operation.family is Family.CONSTANT


# --- what an entry of the tape is -------------------------------------------------------------------------------------


def _recognise(op: Op) -> None:
    """Settle what depends on which operands come from the input: layers, shifts and scales, gates."""
    if op.kind in ("interpolate", "upsample") and str(op.argument(3, "mode", "nearest")).startswith(
        "nearest"
    ):
        op.family = Family.REARRANGE
    elif op.family is Family.LAYER:
        _recognise_layer(op)
    elif op.kind in ("add", "sub", "rsub") and len(op.inputs) == 1:
        both = [a for a in op.args[:2] if isinstance(a, Value)]
        if len(both) < 2:
            op.family = Family.PASS  # a constant shift
    elif op.kind in ("mul", "div") and len(op.inputs) == 1 and not _twice(op):
        if op.kind == "div" and not isinstance(op.args[0], Value):
            _refuse(op, "a constant divided by a value that depends on the input")
        else:
            op.family = Family.PASS  # a constant scale
    elif op.kind in ("matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "einsum", "tensordot"):
        _recognise_matmul(op)
    elif op.family is Family.GATE:
        _recognise_gate(op)
    elif op.family is Family.HEAD:
        op.family = Family.UNSUPPORTED
        op.reason = "a softmax that is neither the model's last step nor a gate"
    elif op.kind == "pow" and not (op.args and isinstance(op.args[0], Value)):
        _refuse(op, "a constant raised to a power that depends on the input")
    elif op.family is Family.PASS and len(op.inputs) > 1 and op.rule is None and op.kind not in ("prelu",):
        _refuse(op, "several operands that depend on the input")
    elif op.family is Family.AFFINE and len(op.inputs) > 1:
        _refuse(op, "scale or shift that depend on the input")


def _refuse(op: Op, reason: str) -> None:
    op.family = Family.UNSUPPORTED
    op.reason = reason


def _twice(op: Op) -> bool:
    return sum(isinstance(a, Value) for a in op.args[:2]) == 2


def _recognise_layer(op: Op) -> None:
    x, weight = op.argument(0, "input"), op.argument(1, "weight")
    bias = op.argument(2, "bias")
    if not isinstance(x, Value) or isinstance(weight, Value) or isinstance(bias, Value):
        _refuse(op, "weights that depend on the input")
        return
    if op.kind == "linear":
        if x.data.dim() < 2:
            raise _no_batch_axis(x, op.kind)
        op.map = Dense(weight, bias)
        return
    if x.data.dim() != weight.dim():
        raise _no_batch_axis(x, op.kind)
    kwargs = {k: v for k, v in op.kwargs.items() if k != "input"}
    op.map = convolution(op.kind, (x, *op.args[1:]), kwargs)


def _no_batch_axis(x: Value, kind: str) -> ValueError:
    return ValueError(
        f"The input has no batch axis: {kind} read a tensor of shape {tuple(x.shape)}. Add one with `x[None]`."
    )


def _recognise_matmul(op: Op) -> None:
    """A product with one operand from the input is a linear layer; with two, a gate if one is a softmax."""
    operands = (
        list(op.args[1]) if op.kind == "einsum" and isinstance(op.args[1], list | tuple) else list(op.args)
    )
    if op.kind == "einsum" and not isinstance(op.args[1], list | tuple):
        operands = list(op.args[1:])
    if op.kind in ("addmm", "baddbmm"):
        bias, operands = operands[0], operands[1:3]
        if isinstance(bias, Value) or op.kwargs.get("beta", 1) != 1 or op.kwargs.get("alpha", 1) != 1:
            _refuse(op, "a scaled or input-dependent summand")
            return
    else:
        bias = None
    operands = operands[:2] if op.kind != "einsum" else operands
    if len(operands) != 2:
        _refuse(op, "more than two operands")
        return
    dependent = [isinstance(o, Value) for o in operands]
    if dependent == [True, True]:
        if len(op.inputs) == 2:
            gates = [_from_gate(o) for o in operands]
            if gates in ([True, False], [False, True]):
                op.family = Family.GATE
                op.signal = operands[gates.index(False)]
                return
        _refuse(op, "a matrix product of two values that depend on the input, neither a softmax or sigmoid")
        return
    value, weight = (operands[0], operands[1]) if dependent[0] else (operands[1], operands[0])
    first = dependent[0]
    if op.kind == "einsum":
        equation = op.args[0]

        def call(x: Tensor, w: Tensor) -> Tensor:
            return torch.einsum(equation, *((x, w) if first else (w, x)))
    else:
        product: Callable[..., Tensor] = torch.tensordot if op.kind == "tensordot" else torch.matmul
        options = {k: v for k, v in op.kwargs.items() if k == "dims"}
        if op.kind == "tensordot" and len(op.args) > 2:
            options["dims"] = op.args[2]

        def call(x: Tensor, w: Tensor) -> Tensor:
            return product(*((x, w) if first else (w, x)), **options)

    if op.kind in ("matmul", "mm", "addmm") and first and weight.dim() == 2:
        op.map = Dense(weight.t(), bias)
    else:
        op.map = Replayed(weight, bias, call)
    op.kind = "linear"
    op.family = Family.LAYER
    if value.data.dim() < 2:
        raise _no_batch_axis(value, op.kind)


_GATES = ("sigmoid", "hardsigmoid", "softmax", "logsigmoid")


def _from_gate(value: Value) -> bool:
    """Whether a value is the output of a sigmoid, hardsigmoid or softmax, seen through views, scales and dropout."""
    op = value.producer
    while op is not None and op.kind not in _GATES:
        transparent = op.family is Family.REARRANGE or op.kind in (
            "dropout",
            "clone",
            "contiguous",
            "to",
            "float",
            "detach",
            "alias",
            "add",
            "sub",
            "rsub",
            "mul",
            "div",
        )
        if (
            not transparent
            or len(op.inputs) != 1
            or (op.kind in ("mul", "div", "add") and op.family is not Family.PASS)
        ):
            return False
        op = op.inputs[0].producer
    return op is not None


def _function_of(value: Value, source: Value) -> bool:
    """Whether `value` is an element-wise function of `source`."""
    while value is not source:
        op = value.producer
        if op is None or op.family is not Family.PASS or len(op.inputs) != 1:
            return False
        value = op.inputs[0]
    return True


def _recognise_gate(op: Op) -> None:
    """A product of two values that both depend on the input: which of them is the signal."""
    if op.kind == "scaled_dot_product_attention":
        signal = op.argument(2, "value")
        if isinstance(signal, Value):
            op.signal = signal
        else:
            _refuse(op, "attention over constant values")
        return
    operands = [a for a in op.args[:2] if isinstance(a, Value)]
    if len(operands) < 2 or len(op.args) < 2:
        operands = [a for a in (*op.args, *op.kwargs.values()) if isinstance(a, Value)]
    a, b = operands[0], operands[-1]
    if op.kind == "div":
        if b.data.numel() < a.data.numel() or (a is not b and _function_of(b, a)):
            op.signal = a  # divided by a statistic, held constant
        else:
            _refuse(op, "a quotient of two values that depend on the input")
        return
    if a is b:
        op.signal = a  # x · x, as x · f(x)
        return
    gates = [_from_gate(a), _from_gate(b)]
    size = op.output.data.numel()
    broadcast = [a.data.numel() < size, b.data.numel() < size]
    if gates[0] != gates[1]:
        op.signal = b if gates[0] else a
    elif broadcast[0] != broadcast[1]:
        op.signal = b if broadcast[0] else a
    elif _function_of(b, a):
        op.signal = a
    elif _function_of(a, b):
        op.signal = b
    else:
        _refuse(op, "a product of two values that depend on the input, neither of which is a gate")


_ALWAYS_NONNEGATIVE = (
    *("relu", "relu6", "sigmoid", "hardsigmoid", "softmax", "exp", "exp2", "square", "abs", "softplus"),
    "sqrt",
)
_KEEPS_SIGN = (
    *(
        "leaky_relu",
        "silu",
        "gelu",
        "mish",
        "hardswish",
        "tanh",
        "dropout",
        "clone",
        "contiguous",
        "to",
        "float",
    ),
    *(
        "double",
        "detach",
        "alias",
        "elu",
        "selu",
        "celu",
        "softsign",
        "log1p",
        "expm1",
        "erf",
        "prelu",
        "normalize",
    ),
    *("positive", "dropout1d", "dropout2d", "dropout3d"),
)


def _nonnegative(op: Op) -> bool:
    """Whether the output is known to be ≥ 0, from the operation and the signs of its inputs."""
    if op.kind in _ALWAYS_NONNEGATIVE:
        return True
    inputs = all(v.nonnegative for v in op.inputs)
    if op.kind == "hardtanh":
        return op.argument(1, "min_val", -1.0) >= 0 or inputs
    if op.kind in ("clamp", "clamp_min"):
        low = op.argument(1, "min")
        return inputs or (isinstance(low, int | float) and low >= 0)
    if not inputs:
        return False
    if op.kind in _KEEPS_SIGN or op.family is Family.WINNER:
        return True
    constants = [c for c in tensors_in((op.args, op.kwargs)) if c.is_floating_point()]
    plain = all(bool((c >= 0).all()) for c in constants)
    if op.kind in ("pad", "constant_pad_nd"):
        value = op.argument(3, "value", 0.0) if op.kind == "pad" else op.argument(2, "value", 0.0)
        return value is None or not isinstance(value, int | float) or value >= 0
    if op.family is Family.REARRANGE:
        numbers = (
            [a for a in op.args if isinstance(a, float)]
            if op.kind in ("masked_fill", "where", "setitem")
            else []
        )
        return plain and all(n >= 0 for n in numbers)
    if op.kind in ("add", "mul", "div", "mean", "sum") or "avg_pool" in op.kind:
        numbers = [a for a in (*op.args[:2], op.kwargs.get("alpha")) if isinstance(a, int | float)]
        return plain and (op.kind in ("mean", "sum") or "avg_pool" in op.kind or all(n >= 0 for n in numbers))
    return False


# --- after the recording ----------------------------------------------------------------------------------------------


def _without_head(output: Any, found: Trace) -> Any:
    """The output before a softmax, log-softmax or sigmoid at the very end, views after it redone."""
    recorder = found._recorder

    def strip(tensor: Tensor) -> Tensor:
        value, chain = recorder.value_of(tensor), []
        while value is not None and value.producer is not None:
            op = value.producer
            if (
                op.kind in ("softmax", "log_softmax", "sigmoid", "logsigmoid", "softmin")
                and len(op.inputs) == 1
            ):
                if op.kind == "softmin":
                    return tensor
                found.head = op.kind
                below = op.inputs[0]
                result = below.data
                recorder.know(result, below)
                recorder._keep.append(result)
                for step in reversed(chain):
                    result = step.call([result])
                return result
            if op.family is not Family.REARRANGE or len(op.inputs) != 1 or len(op.outputs) != 1:
                return tensor
            chain.append(op)
            value = op.inputs[0]
        return tensor

    return _replaced(output, strip, of=Tensor)


def _fold_batch_norms(found: Trace) -> None:
    """Fold each BatchNorm into the conv or linear before it whose output nobody else reads, in private tensors."""
    outputs = {id(found.value_of(t)) for t in tensors_in(found.output)}
    kept: list[Op] = []
    for op in found.ops:
        below = op.inputs[0].producer if op.inputs else None
        if (
            op.kind == "batch_norm"
            and op.family is Family.AFFINE
            and below is not None
            and below.map is not None
            and len(below.output.readers) == 1
            and id(below.output) not in outputs
            and (below.output.data.dim() == 2 or below.kind != "linear")
        ):
            scale, shift = batch_norm_affine(op)
            folded = below.map.scaled(scale, shift)
            if folded is not None:
                below.map = folded
                below.folded.append(op.name)
                below.outputs = op.outputs
                below.output.producer = below
                continue
        kept.append(op)
    found.ops = found._recorder.ops = kept


def batch_norm_affine(op: Op) -> tuple[Tensor, Tensor]:
    """Scale and shift per channel of a BatchNorm in evaluation mode."""
    mean, variance = op.argument(1, "running_mean"), op.argument(2, "running_var")
    weight, bias = op.argument(3, "weight"), op.argument(4, "bias")
    epsilon = op.argument(7, "eps", 1e-5)
    dtype = torch.float32 if variance.dtype in HALF else variance.dtype
    scale = (variance.to(dtype) + epsilon).rsqrt()
    scale = scale if weight is None else scale * weight.to(dtype)
    shift = -mean.to(dtype) * scale
    return scale, shift if bias is None else shift + bias.to(dtype)


def _mark_first_layers(ops: Sequence[Op]) -> None:
    """First layers are those conv and linear layers that have none below them."""
    above: set[int] = set()  # values with a layer below them
    for op in ops:
        below = any(id(v) in above for v in op.inputs)
        op.first = op.is_layer and not below
        if below or op.is_layer:
            above.update(id(v) for v in op.outputs)


# --- what is refused --------------------------------------------------------------------------------------------------


def check_inputs(inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """The inputs as a list of tensors (batch, ...), refused where relevance would have no meaning."""
    given = (
        [inputs]
        if isinstance(inputs, Tensor)
        else list(inputs)
        if isinstance(inputs, list | tuple)
        else [inputs]
    )
    if not given:
        raise ValueError("No inputs: give a tensor, or a tuple of tensors.")
    for number, x in enumerate(given):
        which = "The input" if len(given) == 1 else f"Input {number}"
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{which} is a {type(x).__name__}, not a tensor; convert it with `torch.as_tensor`."
            )
        if not x.is_floating_point():
            raise TypeError(
                f"{which} is {x.dtype}: relevance is defined for real numbers. Convert it with `.float()` (one-hot or "
                "embedded if it holds indices), or bind it: `lambda x: model(x, indices)`."
            )
        if x.dim() == 0 or (x.dim() == 1 and len(given) == 1):
            raise ValueError(f"{which} has no batch axis (shape {tuple(x.shape)}). Add one with `x[None]`.")
        if x.shape[0] != given[0].shape[0]:
            raise ValueError(
                f"{which} holds {x.shape[0]} samples, the first input {given[0].shape[0]}: the first axis of every input is "
                "the batch."
            )
        if not torch.isfinite(x).all():
            bad = "NaN" if torch.isnan(x).any() else "infinite values"
            sample = int((~torch.isfinite(x)).flatten(1).any(1).nonzero()[0]) if x.dim() > 1 else 0
            raise ValueError(
                f"{which} holds {bad} (sample {sample}): relevance would be NaN. Clean or drop the sample."
            )
    return given


def _check_model(model: nn.Module) -> None:
    for name, module in model.named_modules():
        where = f"'{name}'" if name else "The model"
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                f"{where} is a TorchScript module, which hides its operations; give the Python model it was made from."
            )
        if type(module).__name__ == "OptimizedModule" or hasattr(module, "_orig_mod"):
            raise TraceError(
                f"{where} was made by torch.compile, which hides its operations; give `model._orig_mod` instead."
            )
        if getattr(module, "_compiled_call_impl", None) is not None:
            raise TraceError(
                f"{where} was compiled in place, which hides its operations; explain a model that was not compiled."
            )
        if module.training and isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"{where} is a BatchNorm in training mode: its output would depend on the whole batch. Call `model.eval()`."
            )
        random = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        random = random or (
            type(module).__name__ in ("StochasticDepth", "DropPath") and getattr(module, "p", 1) != 0
        )
        if module.training and random:
            raise ValueError(
                f"{where} is a dropout in training mode: explanations would be random. Call `model.eval()`."
            )


def _refuse_active(
    function: Any, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], after: str
) -> None:
    """Refuse dropout and batch statistics that are active on the functional level."""
    if operation is None:
        return
    kind = operation.kind
    if "dropout" in kind:
        p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        if kwargs.get("training", args[2] if len(args) > 2 else True) and p > 0:
            raise ValueError(f"{kind}{after} is active: explanations would be random. Call `model.eval()`.")
    elif kind == "batch_norm":
        training = kwargs.get("training", args[5] if len(args) > 5 else False)
        mean = kwargs.get("running_mean", args[1] if len(args) > 1 else None)
        if training or mean is None:
            raise ValueError(
                f"batch_norm{after} uses the statistics of the batch: a sample's explanation would depend on the others. "
                "Call `model.eval()`; a BatchNorm without running statistics cannot be explained."
            )


def _check_output(found: Trace, output: Any) -> None:
    tensors = list(tensors_in(found.output))
    if not tensors:
        raise TraceError(f"The model returned {type(output).__name__} with no tensor in it.")
    if all(found.value_of(t) is None for t in tensors):
        raise TraceError(
            "The output does not depend on the input by any operation that torch shows: a scripted or compiled model, "
            "numpy, or a detour through Python numbers hides it. Give the plain Python model."
        )
    if isinstance(found.output, Tensor) and (found.output.dim() == 0 or found.output.shape[0] != found.batch):
        raise ValueError(
            f"The model returned shape {tuple(found.output.shape)} for a batch of {found.batch}: the first axis of the output "
            "must be the batch. Is the batch axis missing (`x[None]`), or does the model average over it?"
        )


def _check_finite(found: Trace) -> None:
    """Refuse NaN and infinite activations, naming the layer."""
    creators = [op for op in found.ops if op.family not in (Family.REARRANGE, Family.WINNER)]
    sums = [
        v.data.sum() for op in creators for v in op.outputs
    ]  # one cheap pass; finite sums prove finite values
    if not sums or bool(torch.isfinite(torch.stack([s.double() for s in sums])).all()):
        return
    for position, op in enumerate(found.ops):
        for value in op.outputs:
            if not torch.isfinite(value.data).all():
                bad = "NaN" if torch.isnan(value.data).any() else "infinite values"
                named = op if op.is_layer else next((o for o in found.ops[position::-1] if o.is_layer), op)
                where = f"layer '{op.name}'" if op is named else f"'{op.name}' after layer '{named.name}'"
                raise ValueError(
                    f"The activations of {where} hold {bad}: check the weights and the range of the input."
                )


def unsupported(op: Op, found: Trace) -> UnsupportedOperation:
    """The refusal of an operation without a rule."""
    return UnsupportedOperation(f"{unsupported_reason(op, found)} {remedy(op)}")


def unsupported_reason(op: Op, found: Trace) -> str:
    """What is not supported, and after which layer."""
    position = found.ops.index(op)
    named = next((o.name for o in reversed(found.ops[:position]) if o.is_layer), None)
    where = f"after layer '{named}'" if named else "before the first layer"
    why = f": {op.reason}" if op.reason else ""
    return f"No rule for `{spelled(op.function)}` {where}{why}."


def remedy(op: Op) -> str:
    """How to register a rule for an operation."""
    return (
        f"Register one with `plrp.register_rule({spelled(op.function)}, rule)`, where rule is 'pass', 'proportional', "
        "'rearrange', 'winner-take-all', 'constant' or a function (relevance, output, *inputs) -> relevance."
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def _shape(value: Value) -> str:
    return "×".join(map(str, value.shape))


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned for a terminal."""
    table = [list(header), *[list(map(str, row)) for row in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def render_html(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same table for a notebook."""
    head = "".join(f"<th style='text-align:left'>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>"
        + "".join(f"<td style='text-align:left'>{html.escape(str(cell))}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
