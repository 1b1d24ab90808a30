"""How operations other than conv and linear layers hand relevance down: one function per family."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .composites import Composite
from .errors import TraceError
from .ledger import Booking
from .rules import EPSILON, EPSILON_HALF, Branch, quotient
from .tape.norms import norm_of
from .tape.operations import Family
from .tape.recognition import is_residual, softmax_axis
from .tape.values import HALF, Op, Value, replaced, tensors_in

Relevances = list[Tensor | None]
Total = Callable[[Tensor], Tensor]  # the sum per sample


def pass_on(op: Op, relevance: Relevances, book: Booking, composite: Composite) -> Relevances:
    """The relevance of an operation's inputs, given that of its outputs."""
    if op.rule is not None:
        return _by_registered_rule(op, relevance)
    if composite.products == "taylor" and op.family not in _FOLLOWED:
        assert relevance[0] is not None
        return _expand(op, relevance[0], book)
    if op.family in _OF_SEVERAL_OUTPUTS:
        return _OF_SEVERAL_OUTPUTS[op.family](op, relevance, book, composite)
    assert relevance[0] is not None
    return _OF_ONE_OUTPUT[op.family](op, relevance[0], book, composite)


def epsilon_for(*values: Value, composite: Composite | None = None) -> float:
    """The stabiliser of proportional splits: the composite's, or 1e-6, larger for activations in half precision."""
    if composite is not None and composite.epsilon is not None:
        return composite.epsilon
    return EPSILON_HALF if any(v.dtype in HALF for v in values) else EPSILON


def _divided(op: Op, given: Tensor, d: Tensor, epsilon: float, book: Booking, one_sign: bool = False) -> Tensor:
    """s = R / (d + ε sign d); the share of ε is booked."""
    s = quotient(given, d, epsilon, one_sign)
    if epsilon:
        book_epsilon(book, s, d, epsilon, op.output.samples.sum)
    elif book.active:
        book.epsilon = book.epsilon + op.output.samples.sum(given * (d == 0))
    return s


def sum_to(relevance: Tensor, shape: torch.Size) -> Tensor:
    """Relevance summed over the axes that broadcasting added or widened."""
    return relevance if relevance.shape == shape else relevance.sum_to_size(shape)


def transposed(
    op: Op,
    cotangents: Sequence[Tensor | None],
    dtype: torch.dtype,
    wanted: Sequence[Value],
    at: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Jᵀ of the operation at its recorded inputs, or at others, for the inputs that are wanted."""
    points = [value.data for value in op.inputs] if at is None else at
    with torch.enable_grad():
        # not `requires_grad_`, which is forbidden within `vmap`: graphs hand many relevances down at once
        receive = [any(value is w for w in wanted) for value in op.inputs]
        leaves = [nn.Parameter(x.detach().to(dtype), taking) for x, taking in zip(points, receive, strict=True)]
        outputs = [t for t in tensors_in(op.call(leaves)) if t.is_floating_point()]
    pairs = [(y, c.to(y.dtype)) for y, c in zip(outputs, cotangents, strict=True) if c is not None and y.requires_grad]
    sources = [leaf for leaf in leaves if leaf.requires_grad]
    if not pairs:
        raise TraceError(f"`{op.kind}` hides its derivative, so relevance cannot follow it; register a rule for it.")
    gradients = torch.autograd.grad([y for y, _ in pairs], sources, [c for _, c in pairs], allow_unused=True)
    return [torch.zeros_like(s) if g is None else g for s, g in zip(sources, gradients, strict=True)]


def _by_registered_rule(op: Op, relevance: Relevances) -> Relevances:
    assert op.rule is not None
    given = relevance[0] if len(op.outputs) == 1 else tuple(relevance)
    output = op.output.data if len(op.outputs) == 1 else tuple(v.data for v in op.outputs)
    handed = op.rule(given, output, *(v.data for v in op.inputs))
    parts = list(handed) if isinstance(handed, list | tuple) else [handed]
    shapes = [None if p is None else tuple(p.shape) for p in parts]
    if not all(p is None or bool(p.isfinite().all()) for p in parts):
        raise ValueError(f"The rule registered for {op.kind} returned NaN or infinite relevance.")
    expected = [tuple(v.shape) for v in op.inputs]
    if len(parts) != len(expected) or any(s not in (None, e) for s, e in zip(shapes, expected, strict=True)):
        raise ValueError(
            f"The rule registered for {op.kind} returned shapes {shapes}; it must return one relevance per input: "
            f"{expected}."
        )
    return parts


def _pass(op: Op, given: Tensor, book: Booking, composite: Composite) -> Relevances:
    return [sum_to(given, op.inputs[0].shape)]


def _offset(op: Op, given: Tensor, book: Booking, composite: Composite) -> Relevances:
    """R (φ(z) − φ(0)) / φ(z); the share of φ(0) is booked as a constant's, and all of R where φ(z) = 0."""
    zeros = torch.zeros(op.inputs[0].shape, dtype=given.dtype, device=given.device)
    y, at_zero = _output(op, given.dtype), next(tensors_in(op.call([zeros])))
    s = quotient(given, y, 0.0, one_sign=False)
    if book.active:
        book.constant = book.constant + op.output.samples.sum(torch.where(y == 0, given, s * at_zero))
    return [sum_to(s * (y - at_zero), op.inputs[0].shape)]


def _expand(op: Op, given: Tensor, book: Booking) -> Relevances:
    """Gradient × input: R = x ⊙ Jᵀ(R / y); of y = Jx + constant the constant is booked."""
    s = quotient(given, _output(op, given.dtype), 0.0, one_sign=False)
    handed: Relevances = []
    for value, back in zip(op.inputs, transposed(op, [s], given.dtype, op.inputs), strict=True):
        handed.append(value.data.to(given.dtype).nan_to_num(neginf=0.0) * back)  # −∞ under a mask
    if book.active:
        shares = sum(v.samples.sum(part) for v, part in zip(op.inputs, handed, strict=True) if part is not None)
        book.constant = book.constant + op.output.samples.sum(given) - shares
    return handed


def _rearrange(op: Op, relevance: Relevances, book: Booking, composite: Composite) -> Relevances:
    """Relevance follows the elements; constants (padding, a constant in a cat) are booked their relevance."""
    first = next(r for r in relevance if r is not None)
    if op.traits.reshapes:
        return [first.reshape(op.inputs[0].shape)]
    if op.kind == "cat" and all(isinstance(t, Value) for t in op.args[0]) and len(op.inputs) == len(op.args[0]):
        dim = op.argument(1, "dim", 0)
        return list(first.split([v.shape[dim] for v in op.inputs], dim))
    if op.kind in ("transpose", "swapaxes", "swapdims") and len(op.args) == 3:
        return [first.transpose(*op.args[1:])]
    if op.kind == "getitem" and op.inputs == [op.args[0]] and _is_basic(op.args[1]):
        whole = first.new_zeros(op.inputs[0].shape)
        whole[op.args[1]] = first
        return [whole]
    if op.kind == "repeat_interleave" and len(op.args) == 3 and type(op.args[1]) is int:
        axis = op.args[2] % first.dim()
        return [first.unflatten(axis, (-1, op.args[1])).sum(axis + 1)]
    if op.traits.constants is not None and book.active:
        _book_constants(op, op.traits.constants, first, book)
    return list(transposed(op, relevance, first.dtype, op.inputs))


def _is_basic(index: Any) -> bool:
    """Whether an index takes each element at most once, by numbers, slices and new axes."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts)


def _book_constants(op: Op, places: Sequence[int], relevance: Tensor, book: Booking) -> None:
    """Book the relevance of elements that do not come from the input: they are 0 where inputs are 1, constants 0."""
    ones = [torch.ones((), dtype=relevance.dtype, device=relevance.device).expand(v.shape) for v in op.inputs]
    args, kwargs = replaced(
        (op.args, op.kwargs), lambda t: torch.zeros_like(t) if t.is_floating_point() else t, of=Tensor
    )
    args = tuple(_zero(a) if n in places else a for n, a in enumerate(args))
    kwargs = {k: 0.0 if k in ("value", "other") and isinstance(v, int | float) else v for k, v in kwargs.items()}
    from_input = dataclasses.replace(op, args=args, kwargs=kwargs).call(ones)
    book.constant = book.constant + op.output.samples.sum(relevance * (1 - from_input))


def _zero(constant: Any) -> Any:
    """A constant, or several, as zeros: integers too."""
    return 0.0 if isinstance(constant, int | float) else replaced(constant, torch.zeros_like, of=Tensor)


def _split(op: Op, given: Tensor, book: Booking, composite: Composite) -> Relevances:
    """In proportion to the contributions: R_i = n_i R / (z + ε sign z)."""
    epsilon = epsilon_for(op.output, *op.inputs, composite=composite)
    if op.operation.adds:
        return _split_sum(op, given, epsilon, book, composite.residual_gamma)
    z = _output(op, given.dtype)
    s = _divided(op, given, z, epsilon, book)
    if op.traits.constants is not None and book.active:  # a summand may be a constant
        zeros = [torch.zeros(v.shape, dtype=given.dtype, device=given.device) for v in op.inputs]
        book.constant = book.constant + op.output.samples.sum(s * op.call(zeros))
    receivers = op.receivers(composite.products)
    back = transposed(op, [s], given.dtype, receivers)
    return _handed(op, receivers, [v.data.to(given.dtype) * b for v, b in zip(receivers, back, strict=True)])


def _handed(op: Op, receivers: Sequence[Value], parts: Sequence[Tensor]) -> Relevances:
    """The relevance of each input of an operation: None where it is no receiver."""
    by_receiver = dict(zip(map(id, receivers), parts, strict=True))
    return [by_receiver.get(id(v)) for v in op.inputs]


def _split_sum(op: Op, given: Tensor, epsilon: float, book: Booking, gamma: float | None) -> Relevances:
    """a + b, a − b; a constant's share is booked. Where it is 0, as beside masked entries, the value takes all.

    With γ, in proportion to w(a) a and w(b) b, where w(u) = 1 + γ if u has the sign of the sum, else 1.
    """
    alpha = op.kwargs.get("alpha", 1)
    signs = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[op.kind]
    z = _output(op, given.dtype)
    data = [v.data if isinstance(v, Value) else v for v in op.terms]
    terms = [torch.as_tensor(v, dtype=given.dtype, device=given.device) for v in data]
    terms = [term if sign == 1 else term * sign for term, sign in zip(terms, signs, strict=True)]
    constant = next((n for n, operand in enumerate(op.terms) if not isinstance(operand, Value)), None)
    if constant is not None:
        masked = terms[constant] == -torch.inf  # the constant takes all
        z = z.masked_fill(masked, 1.0)
        terms[constant] = terms[constant].masked_fill(masked, 1.0)
        terms[1 - constant] = terms[1 - constant] * ~masked
    if gamma and is_residual(op):
        weighted = [torch.where(term * z > 0, (1 + gamma) * term, term) for term in terms]
        s = _divided(op, given, torch.where(z == 0, z, weighted[0] + weighted[1]), 0.0, book)
        parts = [s * term for term in weighted]
    else:
        one_sign = constant is None and all(v.nonnegative for v in op.inputs) and min(signs) > 0
        alone = None if constant is None else terms[constant] == 0
        s = _divided(op, given if alone is None else given.masked_fill(alone, 0.0), z, epsilon, book, one_sign)
        parts = [s * term for term in terms]
        if constant is not None and alone is not None:
            parts[1 - constant] = torch.where(alone, given, parts[1 - constant])
    if book.active:
        total = op.output.samples.sum
        if constant is not None:
            book.constant = book.constant + total(parts[constant])
        book.cancellation = cancellation(terms, z, total)
        book.amplification = ratio(sum(total(part.abs()) for part in parts), total(given.abs()))
    handed: Relevances = []
    for value in op.inputs:  # both terms may be the same value
        arrived = [sum_to(part, value.shape) for term, part in zip(op.terms, parts, strict=True) if term is value]
        handed.append(sum(arrived[1:], arrived[0]) if arrived else None)
    return handed


def cancellation(terms: Sequence[Tensor], z: Tensor, total: Total) -> Tensor:
    """Σ(|a| + |b|) / Σ|a + b| of a sum, per sample."""
    return ratio(sum(total(term.abs().expand_as(z)) for term in terms), total(z.abs()))


def ratio(above: Any, below: Tensor) -> Tensor:
    """above / below, and one where `below` is 0."""
    return torch.where(below == 0, 1.0, above / torch.where(below == 0, 1.0, below))


def _output(op: Op, dtype: torch.dtype) -> Tensor:
    """The operation's output in the precision of the walk: from the tape, or recomputed where the tape is coarser."""
    if op.output.dtype == dtype:
        return op.output.data
    return next(tensors_in(op.call([v.data.to(dtype) for v in op.inputs])))


def book_epsilon(book: Booking, s: Tensor, d: Tensor, epsilon: float, total: Total, one_sign: bool = False) -> None:
    """Book the share of ε: Σ_k s_k · ε sign d_k."""
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
    """Book the shares of bias and ε in one branch of a layer, and the mass that an empty negative branch created.

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


def _winner(op: Op, relevance: Relevances, book: Booking, composite: Composite) -> Relevances:
    """All to the winner. Relevance that a constant wins, padding for example, is booked."""
    first = next(r for r in relevance if r is not None)
    if (pool := op.kind.removesuffix("_with_indices")) in ("max_pool1d", "max_pool2d", "max_pool3d"):
        return [_to_winners(op, getattr(torch.nn.functional, pool), first, book)]
    if not op.kwargs.get("include_self", True) and isinstance(op.args[0], Tensor):
        # torch's derivative counts the tensor that is written into among equal winners, though it takes no part
        least = torch.full_like(op.args[0], torch.inf if op.argument(4, "reduce") == "amin" else -torch.inf)
        op = dataclasses.replace(op, args=(least, *op.args[1:]))
    if (op.traits.elementwise or op.traits.constants is not None) and len(op.inputs) == 1:
        # against a constant, which keeps its share
        (won,) = transposed(op, [first], first.dtype, op.inputs)
        if book.active:
            book.constant = book.constant + op.output.samples.sum(first) - op.inputs[0].samples.sum(won)
        return [won]
    receivers = op.receivers(composite.products)
    return _handed(op, receivers, transposed(op, relevance, first.dtype, receivers))


def _to_winners(op: Op, pool: Callable[..., Any], relevance: Tensor, book: Booking) -> Tensor:
    """Each window's relevance to the place that won it. A window wholly in padding (−∞) has no winner.

    By the places that torch names: its derivative of a max pool writes outside the plane for such windows.
    """
    x = op.inputs[0].data.to(relevance.dtype)
    winners = winners_of(op, pool, x)
    axes = int(pool.__name__[-2])
    empty = op.output.data == -torch.inf
    if book.active:
        book.constant = book.constant + op.output.samples.sum(relevance * empty)
    won, winners = relevance.masked_fill(empty, 0.0), winners.masked_fill(empty, 0)
    handed = relevance.new_zeros(x.shape).flatten(-axes)
    return handed.scatter_add_(-1, winners.flatten(-axes), won.flatten(-axes)).view(x.shape)


def winners_of(op: Op, pool: Callable[..., Any], x: Tensor) -> Tensor:
    """The place in the plane of the winner of each window."""
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    given = {name: op.argument(position, name) for position, name in enumerate(names, 1)}
    places: Tensor = pool(x, return_indices=True, **{name: v for name, v in given.items() if v is not None})[1]
    return places


def _affine(op: Op, given: Tensor, book: Booking, composite: Composite) -> Relevances:
    """ε-rule on y = Ax + shift, the affine map of a norm whose spread is held constant: the shift is bias."""
    x = op.inputs[0].data.to(given.dtype)
    norm = norm_of(op, x)
    z = op.output.data if op.output.dtype == given.dtype else norm.apply(x)
    s = _divided(op, given, z, epsilon_for(op.output, composite=composite), book)
    if book.active:
        book.bias = book.bias + op.output.samples.sum(s * norm.shift)
    return [x * norm.transpose(s)]


def _gate(op: Op, given: Tensor, book: Booking, composite: Composite) -> Relevances:
    """The signal takes all; in a matrix product by the ε-rule, with the gate held constant."""
    if op.operation.multiplies:
        return [sum_to(given, v.shape) if v is op.signal else None for v in op.inputs]
    return _product(op, given, book, composite)


def _product(op: Op, given: Tensor, book: Booking, composite: Composite) -> Relevances:
    """O = A·B, n factors of which receive relevance, mostly both: s = R / (nO + ε sign O), R_A = A ⊙ (s·Bᵀ).

    An element-wise product gives each of them R / n.
    """
    receivers = op.receivers(composite.products)
    n = sum(any(operand is v for v in receivers) for operand in op.operands)
    if op.operation.multiplies:
        each = given if n == 1 else given / n
        return _handed(op, receivers, [sum_to(each, v.shape) for v in receivers])
    s = _divided(op, given, n * _output(op, given.dtype), epsilon_for(op.output, *receivers, composite=composite), book)
    if op.kind in ("matmul", "bmm") and list(op.args) == op.inputs and all(len(v.shape) > 1 for v in op.inputs):
        a, b = (v.data.to(given.dtype).mT for v in op.inputs)
        back = [sum_to(s @ b if v is op.inputs[0] else a @ s, v.shape) for v in receivers]
    else:
        back = transposed(op, [s], given.dtype, receivers)
    return _handed(op, receivers, [v.data.to(given.dtype) * b for v, b in zip(receivers, back, strict=True)])


def _softmax(op: Op, given: Tensor, book: Booking, composite: Composite) -> Relevances:
    """R_i = x_i (R_i − s_i Σ_j R_j) for s = softmax(x), the Taylor expansion of Achtibat et al. (2024).

    Masked entries, s_i = 0, receive nothing. It does not conserve: the difference is booked.
    """
    dim = softmax_axis(op)
    s = _output(op, given.dtype)
    x = op.inputs[0].data.to(given.dtype).masked_fill(s == 0, 0.0)
    if book.active:
        book.softmax = book.softmax + op.output.samples.sum(given * (1 - x + (s * x).sum(dim, keepdim=True)))
    return [x * (given - s * given.sum(dim, keepdim=True))]


def _embedding(op: Op, given: Tensor, book: Booking, composite: Composite) -> Relevances:
    """A token's relevance is the sum over the channels of its row, if it has any."""
    return [given[..., None].flatten(len(op.inputs[0].shape)).sum(-1)]


_FOLLOWED = (Family.REARRANGE, Family.WINNER, Family.EMBEDDING)  # relevance follows elements, whatever the rule
_OF_SEVERAL_OUTPUTS = {Family.REARRANGE: _rearrange, Family.WINNER: _winner}
_OF_ONE_OUTPUT: dict[Family, Callable[[Op, Tensor, Booking, Composite], Relevances]] = {
    Family.PASS: _pass,
    Family.OFFSET: _offset,
    Family.SPLIT: _split,
    Family.AFFINE: _affine,
    Family.GATE: _gate,
    Family.PRODUCT: _product,
    Family.EMBEDDING: _embedding,
    Family.SOFTMAX: _softmax,
}
