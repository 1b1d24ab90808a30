"""Passes over whole tensors: the arithmetic between convolutions in one pass.

Large maps are bound by memory: torch takes a pass over the memory for each step, these functions one for all. The
formulas stand in `rules.py` and `passing.py`, whose results these equal to the last bit. Each function returns None
where the compiled loops cannot take its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from plrp.composites import Composite
from plrp.ledger import Booking
from plrp.passing import epsilon_for
from plrp.tape.norms import norm_of
from plrp.tape.operations import Family
from plrp.tape.values import Op

from . import limits, native
from .channels_last import channels_last, empty_last, ordinary
from .neuron_layers import Geometry, pool_geometry, to_winners
from .neurons import Relevance, dense
from .propagation import adds_in_proportion


def compiled(*tensors: Tensor) -> bool:
    """Whether the compiled loops can read these tensors: with channels last or not, but all alike."""
    if not native.available() or not all(t.dtype is torch.float32 and t.is_cpu for t in tensors):
        return False
    return all(t.is_contiguous() for t in tensors) or all(channels_last(t) for t in tensors)


def divide(relevance: Tensor, d: Tensor, epsilon: float, one_sign: bool, out: Tensor | None = None) -> Tensor | None:
    """R / (d + ε sign d), for ε > 0; `out` may be d itself."""
    if relevance.shape != d.shape or not compiled(relevance, d):
        return None
    out = torch.empty_like(d) if out is None else out
    native.call("divide", relevance, d, d.numel(), float(epsilon), one_sign, out, native.threads())
    return out


def split(relevance: Tensor, a: Tensor, b: Tensor, epsilon: float, one_sign: bool) -> tuple[Tensor, Tensor] | None:
    """a R / (z + ε sign z) and b R / (z + ε sign z), z = a + b; laid out as the relevance."""
    last = channels_last(relevance)
    if not native.available(a, b) or not compiled(relevance) or not relevance.shape == a.shape == b.shape:
        return None
    if relevance.dim() < 2 or epsilon == 0:
        return None
    parts = torch.empty_like(relevance), torch.empty_like(relevance)
    sizes = a.shape[0], a.shape[1], a.shape[2:].numel()
    native.call("split", relevance, a, b, *parts, *sizes, last, float(epsilon), one_sign, native.threads())
    return parts


def hand_one_by_one(s: Tensor, weight: Tensor, x: Tensor, padding: int) -> Tensor | None:
    """x_j Σ_k w_jk s_k of a convolution of sequences with stride 1, for an x of mostly zeros: one-hot letters."""
    few_inputs = x.dim() == 3 and x.shape[1] <= limits.FEW_INPUTS and x.shape[0] == s.shape[0]
    if not few_inputs or not compiled(s, x) or not channels_last(s):
        return None
    if x.count_nonzero() > limits.MANY_ZEROS * x.numel():
        return None
    outputs, inputs, taps = weight.shape
    inputs_first = weight.flip(2).permute(1, 2, 0).contiguous()
    received = torch.empty_like(x)
    sizes = x.shape[0], x.shape[2], s.shape[2], inputs, outputs, taps, taps - 1 - padding
    native.call("hand_one_by_one", s, inputs_first, x, received, *sizes, native.threads())
    return received


def hand_to_winners(relevance: Tensor, winners: Tensor, shape: torch.Size) -> Tensor | None:
    """The relevance of a max pool with its channels last, handed to known winners (places in the plane) of `shape`."""
    if not channels_last(relevance) or not compiled(relevance) or not winners.is_contiguous():
        return None
    received = empty_last(shape, relevance).zero_()
    sizes = *relevance.shape[:2], relevance.shape[2:].numel(), shape[2:].numel()
    native.call("hand_to_winners", relevance, winners, received, *sizes, native.threads())
    return received


def through_norm(op: Op, relevance: Tensor, epsilon: float) -> list[Tensor | None] | None:
    """The ε-rule on a norm over the last axes; see `passing._affine`."""
    x = op.inputs[0].data
    if op.kind not in ("layer_norm", "rms_norm") or op.output.dtype != x.dtype or not epsilon:
        return None
    s = divide(relevance, op.output.data, epsilon, one_sign=False)
    if s is None or x.dtype != s.dtype:
        return None
    norm = norm_of(op, x)
    scaled = s.mul_(norm.scale)
    if norm.mean is not None:
        scaled.sub_(norm.mean(scaled))
    return [scaled.mul_(x)]


def through_product(op: Op, relevance: Tensor, composite: Composite) -> list[Tensor | None] | None:
    """A·B, one or both of which receive relevance; see `passing._product`."""
    if op.kind not in ("matmul", "bmm") or list(op.args) != op.inputs or len({v.dtype for v in op.inputs}) > 1:
        return None
    receivers = op.receivers(composite.products)
    epsilon = epsilon_for(op.output, *receivers, composite=composite)
    shapes = {v.shape[:-2] for v in (*op.inputs, op.output)}  # nothing is widened
    if len(shapes) > 1 or len(op.output.shape) < 3 or op.output.dtype != relevance.dtype or not epsilon:
        return None
    n = len(receivers)
    s = divide(relevance.contiguous(), op.output.data.contiguous(), epsilon / n, one_sign=False)
    if s is None:
        return None
    s = s if n == 1 else s.div_(n)
    a, b = (v.data for v in op.inputs)
    handed = {id(v): (s @ b.mT if v is op.inputs[0] else a.mT @ s).mul_(v.data) for v in receivers}
    return [handed.get(id(v)) for v in op.inputs]


# --- operations other than layers -------------------------------------------------------------------------------------


def pass_on(
    op: Op, given: Sequence[Relevance | None], book: Booking, composite: Composite
) -> list[Tensor | None] | None:
    """Norms, products, sums of two and max pools by compiled loops; None where these do not serve."""
    if op.rule is not None or len(given) != 1 or given[0] is None or book.active:
        return None
    relevance = dense(given[0])
    if op.family is Family.AFFINE:
        return through_norm(op, relevance, epsilon_for(op.output, composite=composite))
    if op.family in (Family.PRODUCT, Family.GATE):
        return through_product(op, relevance, composite)
    if adds_in_proportion(op, composite):
        a, b = op.inputs
        if a.dtype == b.dtype == op.output.dtype == relevance.dtype:
            one_sign = a.nonnegative and b.nonnegative
            parts = split(relevance, a.data, b.data, epsilon_for(op.output, a, b), one_sign)
            return None if parts is None else list(parts)
    if op.family is Family.WINNER and (geometry := pool_geometry(op)) is not None:
        received = through_max_pool(op, relevance, geometry)
        return None if received is None else [received]
    return None


def through_max_pool(op: Op, relevance: Tensor, geometry: Geometry) -> Tensor | None:
    """The relevance of a max pool's output handed to the inputs that won."""
    value = op.inputs[0]
    if op.winners is not None:
        received = hand_to_winners(relevance, op.winners, value.shape)
        if received is not None:
            return received
        planes = relevance.new_zeros(*value.shape[:2], value.shape[2:].numel())
        return planes.scatter_add_(2, op.winners.flatten(2), relevance.flatten(2)).view(value.shape)
    if relevance.dtype == value.dtype:
        return to_winners(value.data, geometry, ordinary(relevance).contiguous())
    return None
