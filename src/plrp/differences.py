"""How operations other than conv and linear layers hand down the relevance of a difference: one function per family.

At every value Δ = a − a⁰, of the pass on the input and of the pass on the reference. An operation stands for the linear
map J̄ that takes Δ of its inputs to Δ of its outputs exactly, and R_in = Δ_in ⊙ J̄ᵀ(R_out / Δ_out), with 0 / 0 = 0. So
relevance adds up to f(x) − f(x⁰): nothing goes to biases, constants or an ε. Where a step below is called m, it is
relevance per unit of Δ, which J̄ᵀ hands down.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .composites import Composite
from .ledger import Booking
from .passing import Relevances, _embedding, _rearrange, _winner, sum_to, transposed
from .rules import quotient
from .tape.difference import DifferenceOp, DifferenceValue, difference
from .tape.norms import norm_of
from .tape.operations import Family
from .tape.own_rules import Slope
from .tape.recognition import is_residual, softmax_axis

NEAR = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Within this |Δz| a quotient Δy/Δz of a smooth function has lost digits, and the midpoint's derivative has not."""
LOST = 16  # roundings of z and y that Δy may hold

EXACT = frozenset(
    "relu relu6 leaky_relu rrelu prelu threshold hardtanh clamp clamp_min clamp_max abs neg maximum minimum "
    "hardsigmoid hardshrink softshrink nan_to_num batch_norm instance_norm".split()
)
"""Functions of each element whose differences lose no digits: they are linear, or linear piece by piece."""


def pass_difference(op: DifferenceOp, relevance: Relevances, composite: Composite) -> Relevances:
    """The relevance of an operation's inputs, given that of its outputs."""
    if op.family is Family.REARRANGE:
        return _rearrange(op.now, relevance, Booking(False), composite)
    given = next(r for r in relevance if r is not None)
    if isinstance(op.rule, Slope):
        return _by_slope(op, op.rule, relevance, given.dtype)
    if op.family is Family.SPLIT and op.operation.adds:
        return _sum(op, given, composite.residual_gamma)
    return _BY_FAMILY[op.family](op, given)


def _m(op: DifferenceOp, given: Tensor) -> Tensor:
    """m = R / Δ of the output, and 0 where Δ = 0."""
    return quotient(given, op.output.data.to(given.dtype), 0.0, one_sign=False)


def _delta(value: DifferenceValue, like: Tensor) -> Tensor:
    return value.data.to(like.dtype)


def _middle(value: DifferenceValue, dtype: torch.dtype) -> Tensor:
    """ā = (a + a⁰) / 2."""
    a, a0 = value.pair(dtype)
    return (a + a0) / 2


def _by_slope(op: DifferenceOp, slope: Slope, relevance: Relevances, dtype: torch.dtype) -> Relevances:
    """By the user's own J̄ᵀ."""
    deltas = [value.data.to(dtype) for value in op.outputs]
    given = [torch.zeros_like(d) if r is None else r for r, d in zip(relevance, deltas, strict=True)]
    ms = tuple(quotient(r, d, 0.0, one_sign=False) for r, d in zip(given, deltas, strict=True))
    now, before = zip(*(value.pair(dtype) for value in op.inputs), strict=True)
    back = slope.transpose(ms[0] if len(ms) == 1 else ms, now, before)
    parts = list(back) if isinstance(back, list | tuple) else [back]
    shapes, expected = [tuple(p.shape) for p in parts], [tuple(v.shape) for v in op.inputs]
    if shapes != expected:
        raise ValueError(f"The slope given for {op.kind} returned shapes {shapes}; it must return {expected}.")
    return [value.data.to(dtype) * part for value, part in zip(op.inputs, parts, strict=True)]


def _elementwise(op: DifferenceOp, given: Tensor) -> Relevances:
    """y = φ(z): relevance stays where it is, for the slope is Δy/Δz.

    Where Δz is small and φ is smooth it is φ′ at the midpoint. There Δy holds rounding more than anything else, and so
    would R / Δz below. Whether φ is smooth between z⁰ and z shows in φ′Δz, which then is Δy up to rounding.
    """
    value, dtype = op.inputs[0], given.dtype
    if keeps_digits(op) or value.shape != op.output.shape:
        return [sum_to(given, value.shape)]
    dy, dz = op.output.data.to(dtype), _delta(value, given)
    (slope,) = transposed(op.now, [torch.ones_like(given)], dtype, op.now.inputs, [_middle(value, dtype)])
    size = sum(part.abs() for part in (*value.pair(dtype), *op.output.pair(dtype)))
    smooth = (dz.abs() <= NEAR[dtype]) & ((slope * dz - dy).abs() <= LOST * torch.finfo(dtype).eps * size)
    return [torch.where(smooth & (dy != 0), given * (slope * dz / torch.where(dy == 0, 1.0, dy)), given)]


def keeps_digits(op: DifferenceOp) -> bool:
    """Whether Δy/Δz of a function of each element loses no digits."""
    return op.kind in EXACT or op.traits.scales or op.operation.registered


def _sum(op: DifferenceOp, given: Tensor, gamma: float | None) -> Relevances:
    """a ± b: in proportion to Δa and ±Δb; with γ, a summand with the sign of Δ counts 1 + γ times."""
    alpha = op.kwargs.get("alpha", 1)
    signs = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[op.kind]
    dz = op.output.data.to(given.dtype)
    terms = [sign * _delta(value, given) for value, sign in zip(op.two, signs, strict=True)]
    if gamma and is_residual(op.now):
        terms = [torch.where(term * dz > 0, (1 + gamma) * term, term) for term in terms]
        dz = torch.where(dz == 0, dz, terms[0] + terms[1])
    m = quotient(given, dz, 0.0, one_sign=False)
    parts = {id(value): sum_to(m * term, value.shape) for value, term in zip(op.two, terms, strict=True)}
    return [parts[id(value)] for value in op.inputs]


def _bilinear(op: DifferenceOp, given: Tensor) -> Relevances:
    """Δ(ab) = Δa·b̄ + ā·Δb, the Shapley values of two players: J̄ is the derivative at the midpoint, exactly.

    Of a linear map too, at any point.
    """
    if op.kind in ("div", "softmax"):
        return _quotient(op, given)
    m, middle = _m(op, given), [_middle(value, given.dtype) for value in op.inputs]
    if op.operation.multiplies:
        back = [m * middle[1], m * middle[0]]
    elif op.kind in ("matmul", "bmm") and list(op.args) == op.now.inputs and all(len(v.shape) > 1 for v in op.inputs):
        back = [m @ middle[1].mT, middle[0].mT @ m]
    else:
        back = transposed(op.now, [m], given.dtype, op.now.inputs, middle)
    return [_delta(value, given) * sum_to(part, value.shape) for value, part in zip(op.inputs, back, strict=True)]


def _quotient(op: DifferenceOp, given: Tensor) -> Relevances:
    """a / b = a·g, g = 1/b: Δ(ag) = Δa·(the smaller |g|) + Δg·(a of the larger |g|), Δg = −g g⁰ Δb."""
    (a, a0), (b, b0) = (value.pair(given.dtype) for value in op.two)
    m, g, g0 = _m(op, given), 1 / b, 1 / b0
    smaller = g.abs() <= g0.abs()
    to_a = m * torch.where(smaller, g, g0) * difference(a, a0)
    to_b = m * torch.where(smaller, a0, a) * (-g * g0) * difference(b, b0)
    parts = {id(value): sum_to(part, value.shape) for value, part in zip(op.two, (to_a, to_b), strict=True)}
    return [parts[id(value)] for value in op.inputs]


def _norm(op: DifferenceOp, given: Tensor) -> Relevances:
    """y = c·g·w + b, c the centred input and g = 1/spread: Δy = w (Δc·min(g, g⁰) + Δg·c*), c* of the larger g.

    It is bounded, |parts| ≤ |y| + 2|y⁰|. Δg goes on through g = (v + ε)^−½, Δg = −Δv g²g⁰² / (g + g⁰), and through
    v, the mean of c².
    """
    value = op.inputs[0]
    (x, x0), m = value.pair(given.dtype), _m(op, given)
    if op.kind == "normalize":
        return [difference(x, x0) * _back_to_length(op, m, x, x0)]
    one, other = norm_of(op.now, x), norm_of(op.before, x0)
    average, centred = one.average, one.centred
    assert average is not None
    c, c0 = (t - average(t) if centred else t for t in (x, x0))
    m = m if one.weight is None else m * one.weight
    g, g0 = one.spread, other.spread
    m_g = average(m * torch.where(g <= g0, c0, c))  # per entry of the mean
    m_c = m * torch.minimum(g, g0) - m_g * (g * g0).square() / (g + g0) * (c + c0)
    return [difference(x, x0) * (m_c - average(m_c) if centred else m_c)]


def _back_to_length(op: DifferenceOp, m: Tensor, x: Tensor, x0: Tensor) -> Tensor:
    """The same for x·g, g = 1/max(n, ε) and n the length of x: Δn = Σ (x + x⁰)Δx / (n + n⁰)."""
    dim, epsilon = op.now.argument(2, "dim", 1), op.now.argument(3, "eps", 1e-12)
    n, n0 = (torch.linalg.vector_norm(t, 2, dim, keepdim=True) for t in (x, x0))
    d, d0 = n.clamp(min=epsilon), n0.clamp(min=epsilon)
    unclamped = torch.where(n == n0, (n >= epsilon).to(n.dtype), (d - d0) / torch.where(n == n0, 1.0, n - n0))
    m_g = (m * torch.where(d >= d0, x0, x)).sum(dim, keepdim=True)
    length = torch.where(n + n0 == 0, 1.0, n + n0)
    return m / torch.maximum(d, d0) - m_g * unclamped / (d * d0) * (x + x0) / length


def _softmax(op: DifferenceOp, given: Tensor) -> Relevances:
    """u = z − max z, e = exp u, S = Σe, r = 1/S, y = e·r; of a log-softmax y = u − log S.

    Each pass has its own maximum, whose relevance goes to the winner of the pass with the larger one.
    """
    dim, m = softmax_axis(op.now), _m(op, given)
    z, z0 = op.inputs[0].pair(given.dtype)
    (top, at), (top0, at0) = (t.max(dim, keepdim=True) for t in (z, z0))
    top, top0 = (t.masked_fill(t == -torch.inf, 0.0) for t in (top, top0))  # of rows that a mask forbids wholly
    e, e0 = (z - top).exp(), (z0 - top0).exp()
    s, s0 = e.sum(dim, keepdim=True), e0.sum(dim, keepdim=True)
    if op.kind == "log_softmax":
        ds = s - s0
        slope = torch.where(ds == 0, 1 / s, torch.log1p(ds / s0) / torch.where(ds == 0, 1.0, ds))
        m_e = -m.sum(dim, keepdim=True) * slope
    else:
        r, r0 = (torch.where(t > 0, 1 / t, 0.0) for t in (s, s0))
        m_e = m * (r + r0) / 2 - r * r0 * (m * (e + e0) / 2).sum(dim, keepdim=True)
    du = difference(z - top, z0 - top0).abs()
    slope = torch.maximum(e, e0) * torch.where(du == 0, 1.0, -torch.expm1(-du) / torch.where(du == 0, 1.0, du))
    m_u = m_e * slope + (m if op.kind == "log_softmax" else 0.0)  # Δe / Δu without cancelling
    to_top = -(top - top0) * m_u.sum(dim, keepdim=True)
    return [(difference(z, z0) * m_u).scatter_add(dim, torch.where(top >= top0, at, at0), to_top)]


def _maximum(op: DifferenceOp, given: Tensor) -> Relevances:
    """The winner of the pass whose output is larger takes all (of a minimum: smaller)."""
    y, y0 = op.output.pair(given.dtype)
    least = op.kind.startswith(("min", "amin")) or op.argument(4, "reduce") == "amin"
    wins = y <= y0 if least else y >= y0
    nobody = Composite([], products="half")
    now, before = (
        _winner(one, [given * mask], Booking(False), nobody) for one, mask in ((op.now, wins), (op.before, ~wins))
    )
    return [a if b is None else b if a is None else a + b for a, b in zip(now, before, strict=True)]


_BY_FAMILY: dict[Family, Callable[[DifferenceOp, Tensor], Relevances]] = {
    Family.PASS: _elementwise,
    Family.SPLIT: _bilinear,
    Family.PRODUCT: _bilinear,
    Family.AFFINE: _norm,
    Family.SOFTMAX: _softmax,
    Family.WINNER: _maximum,
    Family.EMBEDDING: lambda op, given: _embedding(op.now, given, Booking(False), Composite([])),
}
