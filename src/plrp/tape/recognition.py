"""The family of an entry of the tape, once it is known which of its operands depend on the input."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .constants import constants_of
from .maps import Convolution, Dense, Replayed, convolution
from .operations import Family, Sign, Traits, operation_named
from .values import Op, Value, gathered

_INNER_SOFTMAX = "a softmax that is neither the model's last step nor a gate"
NOT_FINITE = "it is not finite at 0, and relevance counts from its value there"
NEAR_ONE = 1e-3  # rows of a softmax sum to one, up to a small number in the denominator; ten times in half precision
EXPONENTIALS = ("exp", "exp2", "expm1")
MOST_FORMS = 4096
MOST_STEPS = 100  # that are followed down a tape in search of the value that a function is of


def recognise(op: Op) -> None:
    """Settle the family of an entry by its operands: layers, shifts and scales, gates."""
    _recognise_family(op)
    if op.family is not Family.UNSUPPORTED and (
        any(value.dtype.is_complex for value in op.outputs)
        or any(tensor.is_complex() for tensor in gathered(op.args, op.kwargs))  # real numbers by way of a complex one
    ):
        op.refuse("complex numbers, of which relevance knows no imaginary part")
        op.signal = None
    if any(tensor.layout is not torch.strided for tensor in gathered(op.args, op.kwargs)):
        op.refuse("a sparse tensor")


def _recognise_family(op: Op) -> None:
    if _recognise_softmax(op):
        return
    if op.kind in ("max", "min") and isinstance(op.argument(1, "other"), Tensor | Value):
        _become(op, f"{op.kind}imum")  # of two tensors, element by element
    if op.kind in ("scatter_reduce", "index_reduce"):
        _recognise_reduction(op)
    elif op.family is Family.REARRANGE and "reduce" in op.kwargs:
        op.refuse("`reduce=` adds or multiplies values that land on one place, which is not a move of elements")
    elif op.family is Family.REARRANGE and op.traits.constants is not None and _collides(op):
        op.refuse("several elements are written to one place, where only one of them stays")
    elif op.traits.boxes:
        if isinstance(op.args[0], Value):
            op.signal = op.args[0]
        else:
            op.refuse("boxes that depend on the input, in a map that does not")
    elif op.kind == "as_strided" and not _reads_its_own(op.inputs[0].data, op.output.data):
        op.refuse("it may read memory beside its tensor; call `.contiguous()` before it")
    elif op.kind == "interpolate" and str(op.argument(3, "mode", "nearest")).startswith("nearest"):
        op.family = Family.REARRANGE
    elif op.family is Family.LAYER:
        _recognise_layer(op)
    elif _shifts(op):
        constant = next(a for a in op.terms if not isinstance(a, Value))
        if not op.inputs[0].above_layer:
            op.family = Family.PASS  # normalisation of the input; any other constant takes its share
        elif (
            (isinstance(constant, int | float) or constant.numel() == 1)
            and not op.inputs[0].nonnegative
            and _from_activation(op.inputs[0])
        ):
            op.family = Family.OFFSET  # elu(z) + 1 is an activation that is not 0 at 0
    elif op.kind == "div" and op.kwargs.get("rounding_mode"):
        op.refuse("a quotient that is rounded")
    elif op.operation.multiplies and len(op.inputs) == 1 and not _twice(op):
        if op.kind == "div" and not isinstance(op.args[0], Value):
            op.refuse("a constant divided by a value that depends on the input", by_difference=True)
        else:
            op.family = Family.PASS  # a constant scale
    elif op.operation.contracts:
        _recognise_matmul(op)
    elif op.family is Family.GATE:
        _recognise_gate(op)
    elif op.family is Family.SOFTMAX:
        op.reason = _INNER_SOFTMAX
    elif op.family is Family.HEAD:
        op.refuse(_INNER_SOFTMAX, by_difference=op.kind == "log_softmax")
    elif op.kind == "pow" and not (op.args and isinstance(op.args[0], Value)):
        op.refuse("a constant raised to a power that depends on the input", by_difference=True)
    elif op.family is Family.PASS and len(op.inputs) > 1 and op.rule is None and op.kind != "prelu":
        op.refuse("several operands that depend on the input")
    elif op.family is Family.AFFINE and len(op.inputs) > 1:
        op.refuse("scale or shift that depend on the input")
    elif op.family is Family.PASS and len(op.inputs) == 1 and not (op.traits.scales or op.traits.statistic):
        _recognise_activation(op)


_AT_ZERO: dict[Any, float] = {}  # max |φ(0)| by the form of a call


def _recognise_activation(op: Op) -> None:
    """A function φ of each element, replayed at 0: φ(0) is a constant, like a bias."""
    tensors, value = gathered(op.args, op.kwargs), op.inputs[0]
    form = op.kind, value.dtype, *op.args[1:], *(item for item in op.kwargs.items() if item[1] is not value)
    largest = None if tensors else _AT_ZERO.get(form)
    if largest is None:
        shape = (1, *value.shape[1:]) if tensors else ()  # of one sample, so that the tensors fit
        (at_zero,) = gathered(op.call([torch.zeros(shape, dtype=value.dtype, device=op.output.data.device)]))
        largest = float(at_zero.abs().max()) if at_zero.numel() else 0.0
        if not tensors and len(_AT_ZERO) < MOST_FORMS:
            _AT_ZERO[form] = largest
    if not math.isfinite(largest):
        op.refuse(NOT_FINITE, by_difference=True)
    elif largest:
        op.family = Family.OFFSET


def _recognise_softmax(op: Op) -> bool:
    """Whether an operation is the last step of a softmax that is written by hand: then it becomes that softmax.

    The rows tell: exp(z) times a number per row, where every row sums to one, is a softmax and nothing else. Where the
    number is the sum or mean of the row itself, it may also be scaled or shifted.
    """
    if _sums_to_one_by_group(op):
        _become(op, "softmax")
        op.refuse("a softmax over groups of rows (a graph's edges, say) that is no gate", by_difference=True)
        return True
    exponential, axes, by_total = _scaled_exponential(op)
    if exponential is None or not axes:
        return False
    normalised = bool(((op.output.data.float().sum(axes) - 1).abs() < _near_one(op)).all())
    if not normalised and not by_total:
        return False
    shape, z = op.output.shape, exponential.inputs[0]
    if (terms := _difference(z)) is not None and _axes_of_rows(shape, terms[1]) == axes:
        z = terms[0]  # a softmax does not feel a maximum, or log Σ exp z, that is taken from a row
    plain = normalised and exponential.kind == "exp" and exponential.output in (*op.inputs, op.output)
    if plain and len(axes) == 1 and z.shape == shape:
        op.operation = operation_named("softmax")
        op.function, op.args, op.kwargs, op.inputs = op.operation.replay, (z, axes[0]), {}, [z]
        op.family, op.reason = op.operation.family, _INNER_SOFTMAX
    else:
        _become(op, "softmax")
        op.operation = op.operation._replace(traits=op.traits._replace(head=False))
        op.refuse("a softmax written by hand, scaled, over several axes or with a step between exp and the sum")
    return True


def _near_one(op: Op) -> float:
    """How far from one the sum of a softmax may be."""
    return NEAR_ONE if op.output.dtype.itemsize > 2 else 10 * NEAR_ONE


def _sums_to_one_by_group(op: Op) -> bool:
    """Whether exp(z) is divided by its sum over groups of rows: added up as exp(z) was, the quotients are one."""
    if op.kind != "div" or len(op.inputs) != 2 or op.inputs[0].shape != op.inputs[1].shape:
        return False
    exponential, below = map(_untouched, op.terms)
    if exponential is None or below is None or exponential.kind not in EXPONENTIALS or below.family is not Family.SPLIT:
        return False
    if below.inputs != [exponential.output]:
        return False
    groups, members = (below.call([each]) for each in (op.output.data, torch.ones_like(op.output.data)))
    return bool((((groups - 1).abs() < _near_one(op)) | (members == 0)).all())


def _recognise_reduction(op: Op) -> None:
    """Values that land on one place are added up, averaged, or the largest or smallest of them stays."""
    how = op.argument(4, "reduce")
    if how in ("amax", "amin"):
        op.family = Family.WINNER
    elif how not in ("sum", "mean"):
        op.refuse(f"`reduce={how!r}` multiplies values that land on one place")


def _scaled_exponential(op: Op) -> tuple[Op | None, list[int], bool]:
    """The exp(z) that an operation multiplies with a number per row, or divides by it; exp(z − number) does so too.

    With it, the axes of a row, and whether the number is the row's own sum or mean.
    """
    shape = op.output.shape
    if op.kind in EXPONENTIALS and (terms := _difference(op.inputs[0])) is not None:
        source = _untouched(terms[1])
        if source is None or source.family is not Family.WINNER:
            return op, _axes_of_rows(shape, terms[1]), source is not None and source.kind == "logsumexp"
    if op.kind == "normalize" and op.argument(1, "p", 2.0) == 1 and (below := _exponential(op.inputs[0])) is not None:
        return below, [op.argument(2, "dim", 1) % len(shape)], True
    if op.operation.multiplies and len(op.inputs) == 2:
        for value, number in (op.terms, op.terms[::-1])[: 1 if op.kind == "div" else 2]:
            if (below := _exponential(value)) is not None:
                total = _untouched(number)
                adds_up = total is not None and total.family is Family.SPLIT and not total.operation.adds
                summed = _exponential(total.inputs[0]) if total is not None and adds_up else None
                own = summed is not None and summed.inputs[0] is below.inputs[0]
                return below, _axes_of_rows(shape, number), own
    return None, [], False


def _axes_of_rows(shape: torch.Size, number: Value) -> list[int]:
    """The axes of a tensor along which a value has one number."""
    row = (1,) * (len(shape) - len(number.shape)) + number.shape
    return [axis for axis, size in enumerate(shape) if row[axis] == 1 < size]


def _exponential(value: Value) -> Op | None:
    """The exp(z) that a value is, seen through views, scales, shifts and powers."""
    op = _untouched(value)
    while op is not None and op.kind in ("pow", "square", "sqrt") and len(op.inputs) == 1:
        op = _untouched(op.inputs[0])
    return op if op is not None and op.kind in EXPONENTIALS and not op.operation.registered else None


def _untouched(value: Value) -> Op | None:
    """The operation that a value comes from, below views, copies, scales and shifts."""
    op = value.producer
    while op is not None and _transparent(op):
        op = op.inputs[0].producer
    return op


def _difference(value: Value) -> tuple[Value, Value] | None:
    """a and b of a value a − b, both of which depend on the input."""
    op = value.producer
    return op.terms if op is not None and op.kind == "sub" and len(op.inputs) == 2 else None


def _collides(op: Op) -> bool:
    """Whether several elements are written to one place by their indices: each would be handed its relevance."""
    indices = [t for t in gathered(op.args, op.kwargs) if not t.is_floating_point() and t.dtype != torch.bool]
    if not indices or not all(value.dtype.is_floating_point for value in op.inputs):
        return False
    with torch.enable_grad():
        ones = [torch.ones_like(value.data, requires_grad=True) for value in op.inputs]
        arrived = (op.call(ones) - op.call([torch.zeros_like(one) for one in ones])).double().nan_to_num()
        handed = torch.autograd.grad(arrived.sum(), ones, allow_unused=True)
    return float(arrived.sum()) != sum(float(part.double().sum()) for part in handed if part is not None)


def _reads_its_own(tensor: Tensor, view: Tensor) -> bool:
    """Whether a tensor has its memory to itself, and a view by strides stays within it."""

    def last(t: Tensor) -> int:
        return int(t.storage_offset() + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)))

    return int(tensor.storage_offset()) == 0 and last(view) < tensor.numel() == last(tensor) + 1


def _become(op: Op, name: str) -> None:
    """From now on the call is another operation of the table, with the replay that it has."""
    op.operation = operation_named(name)._replace(replay=op.operation.replay)
    op.family = op.operation.family


def _twice(op: Op) -> bool:
    """Whether both terms of a sum or product depend on the input."""
    return all(isinstance(term, Value) for term in op.terms)


def _shifts(op: Op) -> bool:
    """Whether an operation adds a constant to the one value that it reads, or subtracts one from the other."""
    return op.operation.adds and len(op.inputs) == 1 and not _twice(op)


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
    """Whether the input of an operation may be forgotten: an activation function, after a recomputable value."""
    return op.family is Family.PASS and op.rule is None and len(op.inputs) == 1 and recomputable(op.inputs[0])


def _recognise_layer(op: Op) -> None:
    x, weight = op.argument(0, "input"), op.argument(1, "weight")
    bias = op.argument(2, "bias")
    if not isinstance(x, Value) or isinstance(weight, Value) or isinstance(bias, Value):
        op.refuse("weights that depend on the input")
        return
    if op.kind == "linear":
        _check_batch_axis(x, op.kind)
        op.map = Dense(weight, bias)
        return
    if len(x.shape) != weight.dim():
        op.refuse(x.samples.mixed, mixes=True)
        if not x.samples.mixed:
            raise _no_batch_axis(x, op.kind)
        return
    kwargs = {k: v for k, v in op.kwargs.items() if k != "input"}
    op.map = convolution(op.kind, (x, *op.args[1:]), kwargs)


def _check_batch_axis(x: Value, kind: str) -> None:
    """Refuse a vector of one number per sample; it may also be one sample of several, or of one."""
    if len(x.shape) == 1 and x.samples.leads(x.shape) and not x.samples.mixed:
        raise _no_batch_axis(x, kind)


def _no_batch_axis(x: Value, kind: str) -> ValueError:
    return ValueError(
        f"The input has no batch axis: {kind} read a tensor of shape {tuple(x.shape)}. Add one with `x[None]`."
    )


def _recognise_matmul(op: Op) -> None:
    """A product with one operand from the input is a linear layer; with two, a gate if one is a softmax."""
    bias, operands, product = _factors(op)
    if bias is not None and (isinstance(bias, Value) or any(op.kwargs.get(name, 1) != 1 for name in ("beta", "alpha"))):
        op.refuse("a scaled or input-dependent summand")
        return
    dependent = [isinstance(operand, Value) for operand in operands]
    if sum(dependent) > 1:
        gates = [_from_gate(v) for v in op.inputs]
        if sum(dependent) == len(gates) == 2 and gates[0] != gates[1]:
            op.signal = op.inputs[gates.index(False)]
        else:
            op.family = Family.PRODUCT
            op.reason = "a matrix product of two values that depend on the input, neither a softmax or sigmoid"
        return
    if len(operands) == 1:
        op.family = Family.REARRANGE if _keeps_elements(op.args[0]) else Family.SPLIT
        return
    if len(operands) != 2:
        op.refuse("more than two operands")
        return
    first = dependent[0]
    value, weight = operands if first else operands[::-1]
    if product is torch.matmul and first and weight.dim() == 2:
        op.map = Dense(weight.t(), bias)
    else:
        op.map = Replayed(weight, bias, lambda x, w: product(*((x, w) if first else (w, x))))
    if not (first or op.weighs) and bias is None and len(value.shape) > 1:
        op.family = Family.SPLIT  # `edges @ x`: no layer, but sums over rows that are no weights of the model
        return
    _become(op, "linear")
    _check_batch_axis(value, op.kind)


def _factors(op: Op) -> tuple[Any, list[Any], Callable[..., Tensor]]:
    """The summand of a product of matrices (None: it has none), its factors, and the product as their function."""
    if op.kind == "einsum":
        equation, *operands = op.args
        operands = list(operands[0]) if isinstance(operands[0], list | tuple) else operands
        return None, operands, partial(torch.einsum, equation)
    if op.kind == "tensordot":
        return None, list(op.args[:2]), partial(torch.tensordot, dims=op.argument(2, "dims", 2))
    if op.kind in ("addmm", "baddbmm"):
        return op.args[0], list(op.args[1:3]), torch.matmul
    return None, list(op.args[:2]), torch.matmul


def _keeps_elements(equation: str) -> bool:
    """Whether an einsum of one operand only moves elements: no index is summed or taken twice."""
    given, arrow, returned = equation.replace(" ", "").partition("->")
    letters = given.replace("...", "")
    return len(set(letters)) == len(letters) and (not arrow or set(letters) == set(returned.replace("...", "")))


def _from_gate(value: Value) -> bool:
    """Whether a value is the output of a gate such as a sigmoid or a softmax, seen through views, scales, dropout."""
    op = value.producer
    while op is not None and not op.traits.gate:
        if op.kind == "div" and op.signal is not None:  # weights divided by their own sum
            op = op.signal.producer
            continue
        if not _transparent(op):
            return False
        op = op.inputs[0].producer
    return op is not None


def _transparent(op: Op) -> bool:
    """Whether an operation reads one value and hands on its nature: a view, a copy, a constant scale or shift."""
    arithmetic = op.operation.adds or op.operation.multiplies
    return (
        len(op.inputs) == 1
        and (op.family is Family.REARRANGE or op.traits.transparent)
        and not (arithmetic and _twice(op))
    )


def _sources(value: Value, known: dict[Value, list[Value]] | None = None) -> list[Value]:
    """The values of which `value` is an element-wise function, itself first; `known`: those of the values passed."""
    known = {} if known is None else known
    if value not in known:
        known[value] = [value]
        if len(known) <= MOST_STEPS:
            known[value] = [value, *_sources_below(value, known)]
    return known[value]


def _sources_below(value: Value, known: dict[Value, list[Value]]) -> list[Value]:
    op = value.producer
    if op is None or any(v.shape != value.shape for v in op.inputs):
        return []
    if len(op.inputs) == 1 and (Family.PASS in (op.family, op.operation.family) or op.traits.activation or _shifts(op)):
        return _sources(op.inputs[0], known)
    if (op.operation.adds or op.kind == "mul") and op.rule is None:
        first, *others = (_sources(v, known) for v in op.inputs)
        return [v for v in first if all(v in other for other in others)]
    return []


def _common_source(a: Value, b: Value) -> bool:
    """Whether both are element-wise functions of one value."""
    return not set(_sources(a)).isdisjoint(_sources(b))


def _recognise_function(op: Op, a: Value, b: Value) -> bool:
    """Whether a product or quotient of a and b is a function φ of one value h, of factors that are not 0 at h = 0, as
    σ(h) (1 − σ(h)) and exp(−h) relu(h) are.

    Then no factor is a gate. The entry becomes φ, an activation that reads h: φ(0) is a constant, like a bias.
    """
    source = _offset_source(a, b)
    if source is None or not op.output.shape.numel():
        return False
    steps = [*_steps(op.inputs, source), copy.copy(op)]
    if any(step.traits.statistic for step in steps):  # `normalize` reads its neighbours too
        return False
    constants = [constant for step in steps for constant in constants_of(step)]
    shape = source.shape if gathered(constants) else ()
    zeros = torch.zeros(shape, dtype=source.dtype, device=op.output.data.device)
    at_zero = float(_replay_steps(steps, source, zeros).abs().max())
    offsets = any(step.family is Family.OFFSET for step in steps)
    if not math.isfinite(at_zero):
        op.refuse(NOT_FINITE)
    elif at_zero or offsets:
        phi = partial(_replay_steps, steps, source)
        op.operation = op.operation._replace(family=Family.PASS, traits=Traits(activation=True), replay=phi)
        op.family = Family.OFFSET if at_zero else Family.PASS
        op.args, op.kwargs, op.inputs = (source, *constants), {}, [source]
        op.fresh, op.suspect = any(step.fresh for step in steps), any(step.suspect for step in steps)
        op.sums = {place: sums for step in steps for place, sums in step.sums.items()}
    return at_zero != 0 or offsets


def _offset_source(a: Value, b: Value) -> Value | None:
    """The value h of which a and b are functions, below the last step that is not 0 at 0; the nearest if none is so.

    A constant that is added to h takes its own share, and a user's rule is not passed over.
    """
    others = _sources(b) if a.shape == b.shape else []
    common: list[Value] = []
    for value in _sources(a):
        common += [value] if value in others else []
        if value.producer is not None and value.producer.operation.registered:
            break
    while len(common) > 1:
        step = common[-2].producer
        if step is None or len(step.inputs) > 1 or step.family not in (Family.PASS, Family.SPLIT):
            break
        common.pop()
    return common[-1] if common else None


def _steps(values: Sequence[Value], source: Value) -> list[Op]:
    """The operations by which values come from `source`, in order of execution."""
    steps: list[Op] = []

    def visit(value: Value) -> None:
        step = value.producer
        if value is not source and step is not None and step not in steps:
            for below in step.inputs:
                visit(below)
            steps.append(step)

    for value in values:
        visit(value)
    return steps


def _replay_steps(steps: Sequence[Op], source: Value, tensor: Tensor, *_: Any) -> Tensor:
    """The output of the last of these steps, with a tensor in place of the value that they come from."""
    known = {source: tensor}
    for step in steps:
        (known[step.output],) = step.outputs_from([known[value] for value in step.inputs])
    return known[steps[-1].output]


def _from_activation(value: Value) -> bool:
    """Whether a value comes straight from an activation function, also one written out: x · σ(x), x · (1 + tanh x)."""
    op = value.producer
    while op is not None and op.rule is None:
        if op.traits.activation:
            return True
        if op.kind == "mul" and op.signal is not None and len(op.inputs) == 2:
            return _common_source(*op.inputs)
        if not _transparent(op):
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
    if not (op.family is Family.PASS and op.traits.scales) and op.family is not Family.REARRANGE:
        return value
    first, *others = map(_linear_source, op.inputs)
    return first if all(other is first for other in others) else value


def _recognise_gate(op: Op) -> None:
    """A product of two values that both depend on the input: which of them is the signal."""
    operands = [a for a in op.args[:2] if isinstance(a, Value)]
    if len(operands) < 2 or len(op.args) < 2:
        operands = [a for a in (*op.args, *op.kwargs.values()) if isinstance(a, Value)]
    a, b = operands[0], operands[-1]
    if a is b and op.kind != "div":
        op.signal = a  # x · x, as x · f(x)
        return
    gates = [_from_gate(v) for v in (a, b)]
    gated = gates[0] != gates[1] and (a in _sources(b) if gates[1] else b in _sources(a))  # h · σ(h)
    if not gated and _recognise_function(op, a, b):
        return
    if op.kind == "div":
        if b.shape.numel() < a.shape.numel() or (a is not b and a in _sources(b)):
            op.signal = a  # divided by a statistic, held constant
        else:
            op.refuse("a quotient of two values that depend on the input", by_difference=True)
        return
    size = op.output.shape.numel()
    broadcast = [v.shape.numel() < size for v in (a, b)]
    if gates[0] != gates[1]:
        op.signal = b if gates[0] else a
    elif broadcast[0] != broadcast[1]:
        op.signal = b if broadcast[0] else a
    elif b in _sources(a):
        op.signal = b
    elif _common_source(a, b):
        op.signal = a  # a · f(a), or f(x) · g(x): one activation function, written out
    else:
        op.family = Family.PRODUCT
        op.reason = "a product of two values that depend on the input, neither of which is a gate"
        activations = [_from_activation(a), _from_activation(b)]
        if activations[0] != activations[1]:
            op.gated = b if activations[0] else a


def is_nonnegative(op: Op) -> bool:
    """Whether the output is known to be ≥ 0, from the operation and the signs of its inputs. In doubt it is not."""
    traits, inputs = op.traits, all(v.nonnegative for v in op.inputs)
    if traits.divisor is not None and not _number(op.argument(*traits.divisor) or 1) > 0:
        return False
    if traits.bounds is not None:
        low = op.argument(1, "min", op.kwargs.get("min_val", traits.bounds[0]))
        high = op.argument(2, "max", op.kwargs.get("max_val", traits.bounds[1]))
        above = low is not None and _number(low) >= 0
        return (inputs or above) and (high is None or _number(high) >= 0)
    if traits.sign is not Sign.KEEPS:
        return traits.sign is Sign.NONNEGATIVE
    bicubic = op.kind == "interpolate" and op.argument(3, "mode") == "bicubic"  # its weights have both signs
    return inputs and not bicubic and (traits.constants is None or _constants_nonnegative(op, traits.constants))


def _number(value: Any) -> float:
    """The value as a float; NaN, about which nothing is claimed, if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return float("nan")


def _constants_nonnegative(op: Op, places: Sequence[int]) -> bool:
    """Whether no constant among the arguments can put a negative number into the output."""
    names = ("other", "value", "alpha", "input", "self", "tensors", "source", "src")
    given = [op.args[place] for place in places if place < len(op.args)]
    given += [op.kwargs[name] for name in names if name in op.kwargs]
    for constant in given:
        for one in constant if isinstance(constant, list | tuple) else (constant,):
            if one is None or isinstance(one, Value | bool | str | slice):
                continue
            if isinstance(one, Tensor):
                if one.dtype != torch.bool and (one.is_complex() or not bool((one >= 0).all())):
                    return False
            elif not _number(one) >= 0:
                return False
    return True
