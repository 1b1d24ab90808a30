"""How operations other than conv and linear layers hand relevance down: one function per family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import TraceError
from .ledger import Booking
from .rules import EPSILON, EPSILON_HALF, Branch, quotient
from .tape.norms import batch_norm_affine
from .tape.operations import Family
from .tape.values import HALF, Op, Value, replaced, tensors_in

Relevances = list[Tensor | None]
Total = Callable[[Tensor], Tensor]  # the sum per sample

_RESHAPES = frozenset("view reshape flatten unflatten squeeze unsqueeze ravel view_as reshape_as".split())
_WITH_CONSTANTS = frozenset(
    """pad constant_pad_nd cat stack hstack vstack dstack column_stack setitem masked_fill where index_fill tril triu
    copy scatter index_copy masked_scatter""".split()
)


def pass_on(op: Op, relevance: Relevances, book: Booking) -> Relevances:
    """The relevance of an operation's inputs, given that of its outputs."""
    if op.rule is not None:
        return _by_registered_rule(op, relevance)
    return _FAMILIES[op.family](op, relevance, book)


def epsilon_for(*values: Value) -> float:
    """The stabiliser of proportional splits, larger for activations in half precision."""
    return EPSILON_HALF if any(v.dtype in HALF for v in values) else EPSILON


def sum_to(relevance: Tensor, shape: torch.Size) -> Tensor:
    """Relevance summed over the axes that broadcasting added or widened."""
    return relevance if relevance.shape == shape else relevance.sum_to_size(shape)


def transposed(
    op: Op, cotangents: Sequence[Tensor | None], dtype: torch.dtype, wanted: Sequence[Value]
) -> list[Tensor]:
    """Jᵀ of the operation at its recorded inputs, for the inputs that are wanted."""
    with torch.enable_grad():
        leaves = [v.data.detach().to(dtype).requires_grad_(any(v is w for w in wanted)) for v in op.inputs]
        outputs = [t for t in tensors_in(op.call(leaves)) if t.is_floating_point()]
    pairs = [(y, c.to(y.dtype)) for y, c in zip(outputs, cotangents, strict=True) if c is not None and y.requires_grad]
    sources = [leaf for leaf in leaves if leaf.requires_grad]
    if not pairs:
        raise TraceError(f"`{op.kind}` hides its derivative, so relevance cannot follow it; register a rule for it.")
    found = torch.autograd.grad([y for y, _ in pairs], sources, [c for _, c in pairs], allow_unused=True)
    return [torch.zeros_like(s) if g is None else g for s, g in zip(sources, found, strict=True)]


def _by_registered_rule(op: Op, relevance: Relevances) -> Relevances:
    assert op.rule is not None
    given = relevance[0] if len(op.outputs) == 1 else tuple(relevance)
    output = op.output.data if len(op.outputs) == 1 else tuple(v.data for v in op.outputs)
    handed = op.rule(given, output, *(v.data for v in op.inputs))
    parts = list(handed) if isinstance(handed, list | tuple) else [handed]
    shapes = [None if p is None else tuple(p.shape) for p in parts]
    if not all(p is None or bool(p.isfinite().all()) for p in parts):
        raise ValueError(f"The rule registered for {op.kind} returned NaN or infinite relevance.")
    if len(parts) != len(op.inputs) or any(
        s is not None and s != tuple(v.shape) for s, v in zip(shapes, op.inputs, strict=True)
    ):
        expected = [tuple(v.shape) for v in op.inputs]
        raise ValueError(
            f"The rule registered for {op.kind} returned shapes {shapes}; it must return one relevance per input: "
            f"{expected}."
        )
    return parts


def _pass(op: Op, relevance: Relevances, book: Booking) -> Relevances:
    assert relevance[0] is not None
    return [sum_to(relevance[0], op.inputs[0].shape)]


def _rearrange(op: Op, relevance: Relevances, book: Booking) -> Relevances:
    """Relevance follows the elements; what lands on constants (padding, a constant in a cat) is booked to them."""
    first = next(r for r in relevance if r is not None)
    if op.kind in _RESHAPES:
        return [first.reshape(op.inputs[0].shape)]
    if op.kind == "cat" and all(isinstance(t, Value) for t in op.args[0]) and len(op.inputs) == len(op.args[0]):
        dim = op.argument(1, "dim", 0)
        return list(first.split([v.shape[dim] for v in op.inputs], dim))
    if op.kind == "glu":  # a · σ(b): the signal a takes all
        halves = [first, torch.zeros_like(first)]
        return [torch.cat(halves, op.argument(1, "dim", -1))]
    if op.kind in _WITH_CONSTANTS and book.active:
        _book_constants(op, first, book)
    return list(transposed(op, relevance, first.dtype, op.inputs))


def _book_constants(op: Op, relevance: Tensor, book: Booking) -> None:
    """Book what lands on elements that do not come from the input."""
    ones = [torch.ones((), dtype=relevance.dtype, device=relevance.device).expand(v.shape) for v in op.inputs]
    blank = Op(op.kind, op.family, op.function, op.replay, op.args, op.kwargs, op.inputs, op.outputs)
    args, kwargs = replaced((op.args, op.kwargs), _zeroed, of=Tensor)
    if op.kind in ("pad", "constant_pad_nd"):
        place = 3 if op.kind == "pad" else 2
        args = tuple(0.0 if i == place else a for i, a in enumerate(args))
        kwargs = {k: v for k, v in kwargs.items() if k != "value"}
    elif op.kind in ("masked_fill", "where", "setitem", "index_fill"):
        args = tuple(
            0.0 if isinstance(a, int | float) and i > 0 and not _is_axis(op, i) else a for i, a in enumerate(args)
        )
        kwargs = {k: 0.0 if k in ("value", "other") and isinstance(v, int | float) else v for k, v in kwargs.items()}
    blank.args, blank.kwargs = args, kwargs
    from_input = blank.call(ones)
    book.bias = book.bias + op.output.samples.sum(relevance * (1 - from_input))


def _is_axis(op: Op, position: int) -> bool:
    return (op.kind == "index_fill" or op.kind == "setitem") and position == 1


def _zeroed(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.is_floating_point() else tensor


def _split(op: Op, relevance: Relevances, book: Booking) -> Relevances:
    """In proportion to the contributions: R_i = n_i R / (z + ε sign z)."""
    (given,) = relevance
    assert given is not None
    epsilon = epsilon_for(op.output, *op.inputs)
    if op.kind in ("add", "sub", "rsub"):
        return _split_sum(op, given, epsilon, book)
    z = _output(op, given.dtype)
    s = quotient(given, z, epsilon)
    book_epsilon(book, s, z, epsilon, op.output.samples.sum)
    back = transposed(op, [s], given.dtype, op.inputs)
    return [v.data.to(given.dtype) * b for v, b in zip(op.inputs, back, strict=True)]


def _split_sum(op: Op, given: Tensor, epsilon: float, book: Booking) -> Relevances:
    alpha = op.kwargs.get("alpha", 1)
    signs = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[op.kind]
    z = _output(op, given.dtype)
    s = quotient(given, z, epsilon, all(v.nonnegative for v in op.inputs) and min(signs) > 0)
    book_epsilon(book, s, z, epsilon, op.output.samples.sum)
    handed: list[Tensor | None] = [None] * len(op.inputs)
    for operand, sign in zip(_operands(op), signs, strict=True):
        for position, value in enumerate(op.inputs):
            if operand is value:
                part = s * value.data.to(given.dtype)
                part = sum_to(part if sign == 1 else part * sign, value.shape)
                before = handed[position]
                handed[position] = part if before is None else before + part
    return handed


def _operands(op: Op) -> tuple[Any, Any]:
    return op.argument(0, "input"), op.argument(1, "other")


def _output(op: Op, dtype: torch.dtype) -> Tensor:
    """The operation's output in the precision of the walk: from the tape, or recomputed where the tape is coarser."""
    if op.output.dtype == dtype:
        return op.output.data
    return next(tensors_in(op.call([v.data.to(dtype) for v in op.inputs])))


def book_epsilon(book: Booking, s: Tensor, d: Tensor, epsilon: float, total: Total, one_sign: bool = False) -> None:
    """What ε took: Σ_k s_k · ε sign d_k."""
    if not book.active or not epsilon:
        return
    signed = s if one_sign else s * torch.copysign(torch.ones_like(d), d)
    book.epsilon = book.epsilon + epsilon * total(signed)


def book_branch(
    book: Booking,
    branch: Branch,
    part: Tensor,
    s: Tensor,
    d: Tensor,
    epsilon: float,
    total: Total,
    bias: Tensor | None,
) -> None:
    """What the bias and ε took of a layer's relevance in one branch, and what an empty negative branch created.

    `total` is the sum per sample, `bias` the branch's at each k: over whole tensors, or over some neurons.
    """
    if not book.active:
        return
    if bias is not None:
        book.bias = book.bias + total(s * bias)
    if epsilon == 0:
        book.epsilon = book.epsilon + total(part * (d == 0))
    elif isinstance(branch.share, float) and branch.share < 0:
        empty = d == 0
        book.created = book.created - total(part * empty)
        book_epsilon(book, s * ~empty, d, epsilon, total)
    else:
        book_epsilon(book, s, d, epsilon, total, branch.one_sign)


def book_unshared(book: Booking, branches: Sequence[Branch], unshared_mass: Callable[[Tensor], Tensor]) -> None:
    """Book the share of R_k that no branch hands down: γ hands nothing down where z = 0.

    `unshared_mass` turns that share, a number per k, into mass per sample.
    """
    unshared: Any = 1.0
    for branch in branches:
        unshared = unshared - branch.share
    if isinstance(unshared, Tensor) and book.active:
        book.epsilon = book.epsilon + unshared_mass(unshared)


def _winner(op: Op, relevance: Relevances, book: Booking) -> Relevances:
    """All to the winner. What a constant wins, padding among them, is booked to it."""
    first = next(r for r in relevance if r is not None)
    if (pool := op.kind.removesuffix("_with_indices")) in ("max_pool1d", "max_pool2d", "max_pool3d"):
        return [_to_winners(op, getattr(torch.nn.functional, pool), first, book)]
    if op.kind in ("maximum", "minimum") and len(op.inputs) == 1:  # against a constant, which keeps what it wins
        (won,) = transposed(op, [first], first.dtype, op.inputs)
        if book.active:
            book.bias = book.bias + op.output.samples.sum(first) - op.inputs[0].samples.sum(won)
        return [won]
    return list(transposed(op, relevance, first.dtype, op.inputs))


def _to_winners(op: Op, pool: Callable[..., Any], relevance: Tensor, book: Booking) -> Tensor:
    """Each window's relevance to the place that won it. A window wholly in padding (−∞) has no winner.

    By the places that torch names: its derivative of a max pool writes outside the plane for such windows.
    """
    x = op.inputs[0].data.to(relevance.dtype)
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    given = {name: op.argument(position, name) for position, name in enumerate(names, 1)}
    _, winners = pool(x, return_indices=True, **{name: v for name, v in given.items() if v is not None})
    axes = int(pool.__name__[-2])
    empty = op.output.data == -torch.inf
    if book.active:
        book.bias = book.bias + op.output.samples.sum(relevance * empty)
    won, winners = relevance.masked_fill(empty, 0.0), winners.masked_fill(empty, 0)
    handed = relevance.new_zeros(x.shape).flatten(-axes)
    return handed.scatter_add_(-1, winners.flatten(-axes), won.flatten(-axes)).view(x.shape)


def _affine(op: Op, relevance: Relevances, book: Booking) -> Relevances:
    """ε-rule on y = scale · x + shift, the statistics held constant: the shift is bias."""
    (given,) = relevance
    assert given is not None
    x = op.inputs[0].data.to(given.dtype)
    scale, shift = _scale_and_shift(op, x)
    epsilon = epsilon_for(op.output)
    z = op.output.data if op.output.dtype == given.dtype else x * scale + shift
    s = quotient(given, z, epsilon)
    if book.active:
        book.bias = book.bias + op.output.samples.sum(s * shift)
    book_epsilon(book, s, z, epsilon, op.output.samples.sum)
    return [x * scale * s]


def _scale_and_shift(op: Op, x: Tensor) -> tuple[Tensor, Tensor]:
    channels = (1, -1, *(1,) * (x.dim() - 2))
    if op.kind == "batch_norm":
        scale, shift = batch_norm_affine(op)
        return scale.to(x.dtype).view(channels), shift.to(x.dtype).view(channels)
    if op.kind in ("layer_norm", "rms_norm"):
        shape = op.argument(1, "normalized_shape")
        axes = tuple(range(-len(shape), 0))
        weight, bias = op.argument(2, "weight"), op.argument(3, "bias") if op.kind == "layer_norm" else None
        epsilon = op.argument(4, "eps", 1e-5) if op.kind == "layer_norm" else op.argument(3, "eps")
        if op.kind == "rms_norm":
            epsilon = torch.finfo(x.dtype).eps if epsilon is None else epsilon
            mean, spread = x.new_zeros(()), x.square().mean(axes, keepdim=True)
        else:
            mean, spread = x.mean(axes, keepdim=True), x.var(axes, keepdim=True, unbiased=False)
        scale = (spread + epsilon).rsqrt()
        scale = scale if weight is None else scale * weight.to(x.dtype)
        shift = -mean * scale
        return scale, shift if bias is None else shift + bias.to(x.dtype)
    return _group_scale_and_shift(op, x, channels)


def _group_scale_and_shift(op: Op, x: Tensor, channels: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """GroupNorm, and InstanceNorm as one group per channel."""
    if op.kind == "instance_norm":
        mean, variance = op.argument(1, "running_mean"), op.argument(2, "running_var")
        weight, bias = op.argument(3, "weight"), op.argument(4, "bias")
        own_statistics, epsilon, groups = (
            op.argument(5, "use_input_stats", True),
            op.argument(7, "eps", 1e-5),
            x.shape[1],
        )
    else:
        weight, bias = op.argument(2, "weight"), op.argument(3, "bias")
        own_statistics, epsilon, groups = True, op.argument(4, "eps", 1e-5), op.argument(1, "num_groups")
    if own_statistics:
        per_group = x.shape[1] // groups
        grouped = x.reshape(x.shape[0], groups, per_group * x.shape[2:].numel())
        mean = grouped.mean(2).repeat_interleave(per_group, 1).view(*x.shape[:2], *(1,) * (x.dim() - 2))
        variance = grouped.var(2, unbiased=False).repeat_interleave(per_group, 1).view_as(mean)
    else:
        mean, variance = mean.to(x.dtype).view(channels), variance.to(x.dtype).view(channels)
    scale = (variance + epsilon).rsqrt()
    scale = scale if weight is None else scale * weight.to(x.dtype).view(channels)
    shift = -mean * scale
    return scale, shift if bias is None else shift + bias.to(x.dtype).view(channels)


def _gate(op: Op, relevance: Relevances, book: Booking) -> Relevances:
    """The signal takes all; in a matrix product by the ε-rule, with the gate held constant."""
    (given,) = relevance
    signal = op.signal
    assert given is not None
    assert signal is not None
    if op.kind in ("mul", "div"):
        received = sum_to(given, signal.shape)
    else:
        epsilon = epsilon_for(op.output, signal)
        z = _output(op, given.dtype)
        s = quotient(given, z, epsilon)
        book_epsilon(book, s, z, epsilon, op.output.samples.sum)
        received = signal.data.to(given.dtype) * transposed(op, [s], given.dtype, [signal])[0]
    return [received if v is signal else None for v in op.inputs]


_FAMILIES: dict[Family, Callable[[Op, Relevances, Booking], Relevances]] = {
    Family.PASS: _pass,
    Family.REARRANGE: _rearrange,
    Family.SPLIT: _split,
    Family.WINNER: _winner,
    Family.AFFINE: _affine,
    Family.GATE: _gate,
}
