"""What an entry of the tape is, once it is known which of its operands come from the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .maps import Convolution, Dense, Replayed, convolution
from .operations import Family
from .values import Op, Value, gathered

_INNER_SOFTMAX = "a softmax that is neither the model's last step nor a gate"
MASKED = -100.0  # a constant summand this negative leaves nothing of what it is added to: causal and padding masks


def recognise(op: Op) -> None:
    """Settle what depends on which operands come from the input: layers, shifts and scales, gates."""
    _recognise_family(op)
    if op.family is not Family.UNSUPPORTED and _is_complex(op):
        _refuse(op, "complex numbers, of which relevance knows no imaginary part")
        op.map = op.signal = None


def _is_complex(op: Op) -> bool:
    """Whether an operation returns complex numbers, or real ones by way of a complex constant."""
    for value in op.outputs:
        if value.dtype.is_complex:
            return True
    given = (*op.args, *op.kwargs.values()) if op.kwargs else op.args
    for item in given:
        if isinstance(item, Tensor):
            if item.is_complex():
                return True
        elif isinstance(item, list | tuple | dict) and any(t.is_complex() for t in gathered(item)):
            return True
    return False


def _recognise_family(op: Op) -> None:
    if op.kind in ("max", "min") and isinstance(op.argument(1, "other"), Tensor | Value):
        op.kind += "imum"  # of two tensors, element by element
    if op.kind == "scatter" and "reduce" in op.kwargs:
        _refuse(op, "`reduce=` adds or multiplies values that land on one place, which is not a move of elements")
    elif "roi_" in op.kind:
        if isinstance(op.args[0], Value):
            op.signal = op.args[0]  # boxes say where to read, not what
        else:
            _refuse(op, "boxes that depend on the input, in a map that does not")
    elif op.kind in ("interpolate", "upsample") and str(op.argument(3, "mode", "nearest")).startswith("nearest"):
        op.family = Family.REARRANGE
    elif op.family is Family.LAYER:
        _recognise_layer(op)
    elif shifts(op):
        constant = next((a for a in op.terms if not isinstance(a, Value)), None)
        if not op.inputs[0].above_layer or is_mask(constant):
            op.family = Family.PASS  # normalisation of the input, or a mask; any other constant takes its share
    elif op.kind in ("mul", "div") and len(op.inputs) == 1 and not _twice(op):
        if op.kind == "div" and not isinstance(op.args[0], Value):
            _refuse(op, "a constant divided by a value that depends on the input")
        else:
            op.family = Family.PASS  # a constant scale
    elif op.kind in ("matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "einsum", "tensordot"):
        _recognise_matmul(op)
    elif op.family is Family.GATE:
        _recognise_gate(op)
    elif op.family is Family.SOFTMAX:
        op.reason = _INNER_SOFTMAX
    elif op.family is Family.HEAD:
        _refuse(op, _INNER_SOFTMAX)
    elif op.kind == "pow" and not (op.args and isinstance(op.args[0], Value)):
        _refuse(op, "a constant raised to a power that depends on the input")
    elif op.family is Family.PASS and len(op.inputs) > 1 and op.rule is None and op.kind not in ("prelu",):
        _refuse(op, "several operands that depend on the input")
    elif op.family is Family.AFFINE and len(op.inputs) > 1:
        _refuse(op, "scale or shift that depend on the input")


def shifts(op: Op) -> bool:
    """Whether an operation adds a constant to the one value that it reads, or subtracts one from the other."""
    return op.kind in ("add", "sub", "rsub") and len(op.inputs) == 1 and not _twice(op)


def is_mask(constant: Any) -> bool:
    """Whether adding a constant only masks: every number of it is zero, or so negative that nothing is left."""
    if not isinstance(constant, Tensor):
        return _number(constant) == 0
    return not constant.is_complex() and bool(((constant == 0) | (constant <= MASKED)).all())


def foldable(op: Op) -> bool:
    """Whether this is a BatchNorm that can be folded into the conv or linear before it, whose output it alone reads."""
    if op.kind != "batch_norm" or op.family is not Family.AFFINE or not op.inputs:
        return False
    below = op.inputs[0].producer
    return (
        below is not None
        and isinstance(below.map, Dense | Convolution)
        and len(below.output.readers) == 1
        and (len(below.output.shape) == 2 or below.kind != "linear")
    )


def recomputable(value: Value) -> bool:
    """Whether a value is the output of a convolution (a BatchNorm after it included) or a sum."""
    op = value.producer
    if op is not None and op.kind == "batch_norm" and foldable(op):
        op = op.inputs[0].producer
    return op is not None and (isinstance(op.map, Convolution) or (op.kind == "add" and len(op.inputs) == 2))


def dispensable(op: Op) -> bool:
    """Whether what this operation read need not be kept: an activation function, after something recomputable."""
    return op.family is Family.PASS and op.rule is None and len(op.inputs) == 1 and recomputable(op.inputs[0])


def _refuse(op: Op, reason: str) -> None:
    op.family = Family.UNSUPPORTED
    op.reason = reason


def _twice(op: Op) -> bool:
    return sum(isinstance(a, Value) for a in op.terms) == 2


def _recognise_layer(op: Op) -> None:
    x, weight = op.argument(0, "input"), op.argument(1, "weight")
    bias = op.argument(2, "bias")
    if not isinstance(x, Value) or isinstance(weight, Value) or isinstance(bias, Value):
        _refuse(op, "weights that depend on the input")
        return
    if op.kind == "linear":
        if len(x.shape) < 2 and not x.samples.whole:
            raise _no_batch_axis(x, op.kind)
        op.map = Dense(weight, bias)
        return
    if len(x.shape) != weight.dim():
        raise _no_batch_axis(x, op.kind)
    kwargs = {k: v for k, v in op.kwargs.items() if k != "input"}
    op.map = convolution(op.kind, (x, *op.args[1:]), kwargs)


def _no_batch_axis(x: Value, kind: str) -> ValueError:
    return ValueError(
        f"The input has no batch axis: {kind} read a tensor of shape {tuple(x.shape)}. Add one with `x[None]`."
    )


def _recognise_matmul(op: Op) -> None:
    """A product with one operand from the input is a linear layer; with two, a gate if one is a softmax."""
    operands = list(op.args[1]) if op.kind == "einsum" and isinstance(op.args[1], list | tuple) else list(op.args)
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
    dependent = [isinstance(o, Value) for o in operands]
    if sum(dependent) > 1:
        gates = [_from_gate(v) for v in op.inputs]
        if sum(dependent) == len(gates) == 2 and gates[0] != gates[1]:
            op.signal = op.inputs[gates.index(False)]
        else:
            op.family = Family.PRODUCT
            op.reason = "a matrix product of two values that depend on the input, neither a softmax or sigmoid"
        return
    if op.kind == "einsum" and len(operands) == 1:
        op.family = Family.REARRANGE if _keeps_elements(op.args[0]) else Family.SPLIT
        return
    if len(operands) != 2:
        _refuse(op, "more than two operands")
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
    if len(value.shape) < 2 and not value.samples.whole:
        raise _no_batch_axis(value, op.kind)


def _keeps_elements(equation: str) -> bool:
    """Whether an einsum of one operand only moves elements: no index is summed or taken twice."""
    given, arrow, returned = equation.replace(" ", "").partition("->")
    letters = given.replace("...", "")
    return len(set(letters)) == len(letters) and (not arrow or set(letters) == set(returned.replace("...", "")))


_GATES = ("sigmoid", "hardsigmoid", "softmax", "logsigmoid")


def attends(op: Op) -> bool:
    """Whether an operation adds up values with weights that depend on the input, as attention does."""
    return op.family is Family.GATE and op.kind not in ("mul", "div")


_TRANSPARENT = frozenset(
    """dropout clone contiguous to float double half bfloat16 type type_as detach alias add sub rsub mul div""".split()
)


def _from_gate(value: Value) -> bool:
    """Whether a value is the output of a sigmoid, hardsigmoid or softmax, seen through views, scales and dropout."""
    op = value.producer
    while op is not None and op.kind not in _GATES:
        if op.kind == "div" and op.signal is not None:  # weights divided by their own sum
            op = op.signal.producer
            continue
        if op.family is not Family.REARRANGE and op.kind not in _TRANSPARENT:
            return False
        if len(op.inputs) != 1 or (op.kind in ("mul", "div", "add", "sub", "rsub") and _twice(op)):
            return False
        op = op.inputs[0].producer
    return op is not None


def _sources(value: Value) -> list[Value]:
    """The values of which `value` is an element-wise function, itself first."""
    op = value.producer
    if op is None or any(v.shape != value.shape for v in op.inputs):
        return [value]
    if len(op.inputs) == 1 and (op.family is Family.PASS or shifts(op)):
        return [value, *_sources(op.inputs[0])]
    if op.kind in ("add", "sub", "mul") and op.rule is None:
        first, *others = map(_sources, op.inputs)
        return [value, *(v for v in first if all(any(v is w for w in other) for other in others))]
    return [value]


def _function_of(value: Value, source: Value) -> bool:
    """Whether `value` is an element-wise function of `source`."""
    return any(v is source for v in _sources(value))


def _common_source(a: Value, b: Value) -> bool:
    """Whether both are element-wise functions of one value."""
    others = _sources(b)
    return any(v is w for v in _sources(a) for w in others)


_ACTIVATIONS = frozenset(
    """relu relu6 leaky_relu prelu rrelu elu selu celu gelu silu mish hardswish hardtanh tanh softplus softsign square
    pow threshold sigmoid hardsigmoid""".split()
)


def _from_activation(value: Value) -> bool:
    """Whether a value comes straight from an activation function, also one written out: x · σ(x), x · (1 + tanh x)."""
    op = value.producer
    while op is not None and op.rule is None:
        if op.kind in _ACTIVATIONS:
            return True
        if op.kind == "mul" and op.signal is not None and len(op.inputs) == 2:
            return _common_source(*op.inputs)
        if len(op.inputs) != 1 or not (op.family is Family.REARRANGE or op.kind in _TRANSPARENT) or _twice(op):
            return False
        op = op.inputs[0].producer
    return False


def softmax_axis(op: Op) -> int:
    """The axis along which a softmax sums to one; where it was left out, torch's choice."""
    dim = op.argument(1, "dim")
    if dim is None:
        dim = 0 if len(op.output.shape) in (0, 1, 3) else 1
    return int(dim)


def is_residual(op: Op) -> bool:
    """Whether a sum adds two signals of one shape, not two parts of a linear map of one value (rotary positions)."""
    a, b = op.terms
    if not isinstance(a, Value) or not isinstance(b, Value) or a.shape != b.shape:
        return False
    return _linear_source(a) is not _linear_source(b)


def _linear_source(value: Value) -> Value:
    """The value that this one is a rearrangement and scaling of."""
    op = value.producer
    if op is None or op.rule is not None:
        return value
    scales = op.family is Family.PASS and op.kind in ("mul", "div", "neg", "to", "clone", "contiguous")
    if not scales and op.family is not Family.REARRANGE:
        return value
    first, *others = map(_linear_source, op.inputs)
    return first if all(other is first for other in others) else value


def _recognise_gate(op: Op) -> None:
    """A product of two values that both depend on the input: which of them is the signal."""
    operands = [a for a in op.args[:2] if isinstance(a, Value)]
    if len(operands) < 2 or len(op.args) < 2:
        operands = [a for a in (*op.args, *op.kwargs.values()) if isinstance(a, Value)]
    a, b = operands[0], operands[-1]
    if op.kind == "div":
        if b.shape.numel() < a.shape.numel() or (a is not b and _function_of(b, a)):
            op.signal = a  # divided by a statistic, held constant
        else:
            _refuse(op, "a quotient of two values that depend on the input")
        return
    if a is b:
        op.signal = a  # x · x, as x · f(x)
        return
    gates = [_from_gate(a), _from_gate(b)]
    size = op.output.shape.numel()
    broadcast = [a.shape.numel() < size, b.shape.numel() < size]
    if gates[0] != gates[1]:
        op.signal = b if gates[0] else a
    elif broadcast[0] != broadcast[1]:
        op.signal = b if broadcast[0] else a
    elif _function_of(b, a):
        op.signal = a
    elif _function_of(a, b):
        op.signal = b
    elif _common_source(a, b):
        op.signal = a  # f(x) · g(x): one activation function, written out
    else:
        op.family = Family.PRODUCT
        op.reason = "a product of two values that depend on the input, neither of which is a gate"
        activations = [_from_activation(a), _from_activation(b)]
        if activations[0] != activations[1]:
            op.gated = b if activations[0] else a


_ALWAYS_NONNEGATIVE = frozenset("relu relu6 sigmoid hardsigmoid softmax exp exp2 square abs sqrt".split())
_KEEPS_SIGN = frozenset(
    """leaky_relu silu gelu mish hardswish tanh dropout dropout1d dropout2d dropout3d clone contiguous to float double
    detach alias elu selu celu softsign log1p expm1 erf prelu normalize positive""".split()
)
_MOVES_ONLY = frozenset(
    """view reshape flatten unflatten squeeze unsqueeze permute transpose t swapaxes swapdims movedim moveaxis T mT
    ravel view_as reshape_as expand expand_as broadcast_to repeat repeat_interleave tile flip fliplr flipud roll rot90
    narrow select chunk split split_with_sizes tensor_split hsplit vsplit dsplit unbind getitem pixel_shuffle
    pixel_unshuffle channel_shuffle unfold im2col gather index_select take_along_dim take masked_select tril triu
    diagonal diag sort topk upsample_nearest atleast_1d atleast_2d atleast_3d interpolate""".split()
)
_SELECTS = frozenset(
    """amax amin max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices
    max_pool3d_with_indices adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d""".split()
)
_SUMS = frozenset(
    """mean sum cumsum fold col2im einsum interpolate avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d""".split()
)
_MAY_HOLD_CONSTANTS = frozenset(
    """add mul div cat stack hstack vstack dstack column_stack pad constant_pad_nd masked_fill where setitem
    max maximum min minimum""".split()
)


def is_nonnegative(op: Op) -> bool:
    """Whether the output is known to be ≥ 0, from the operation and the signs of its inputs. In doubt it is not."""
    if op.kind in _ALWAYS_NONNEGATIVE:
        return True
    if op.kind == "softplus":
        return _number(op.argument(1, "beta", 1)) > 0
    inputs = all(v.nonnegative for v in op.inputs)
    if op.kind in ("clamp", "clamp_min", "hardtanh"):
        low, high = ("min_val", "max_val") if op.kind == "hardtanh" else ("min", "max")
        bottom = op.argument(1, low, -1.0 if op.kind == "hardtanh" else None)
        top = op.argument(2, high, 1.0 if op.kind == "hardtanh" else None)
        above = bottom is not None and _number(bottom) >= 0
        return (inputs or above) and (top is None or _number(top) >= 0)
    if not inputs:
        return False
    if op.kind in _KEEPS_SIGN or op.kind in _MOVES_ONLY:
        return op.kind != "interpolate" or op.argument(3, "mode", "nearest") != "bicubic"
    if op.kind in _MAY_HOLD_CONSTANTS:
        mode = op.argument(2, "mode", "constant") if op.kind == "pad" else None
        return mode not in (None, "constant") or _constants_nonnegative(op)
    if op.kind in _SELECTS:
        return True
    if op.kind in _SUMS:
        divisor = op.kwargs.get("divisor_override", op.args[6] if len(op.args) > 6 and "avg_pool" in op.kind else None)
        bicubic = op.kind == "interpolate" and op.argument(3, "mode") == "bicubic"
        return not bicubic and (divisor is None or _number(divisor) > 0)
    return False


def _number(value: Any) -> float:
    """The value as a float; NaN, about which nothing is claimed, if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return float("nan")


def _constants_nonnegative(op: Op) -> bool:
    """Whether no constant among the arguments can put a negative number into the output."""
    places = {"setitem": (2,), "pad": (3,), "constant_pad_nd": (2,)}.get(op.kind, range(len(op.args)))
    given = [op.args[i] for i in places if i < len(op.args)]
    names = ("other", "value", "alpha", "input", "self", "tensors", "source")
    for constant in [*given, *(op.kwargs[name] for name in names if name in op.kwargs)]:
        for one in constant if isinstance(constant, list | tuple) else (constant,):
            if one is None or isinstance(one, Value | bool | str | slice):
                continue
            if isinstance(one, Tensor):
                if one.dtype != torch.bool and (one.is_complex() or not bool((one >= 0).all())):
                    return False
            elif not _number(one) >= 0:
                return False
    return True
