"""Fused functions of torch, written out as the operations that they stand for, so that relevance passes each of these.

The recorder runs these functions in place of the fused ones; the results are the same to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .recurrence import STEPS, Depends


def written_out(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], depends: Depends) -> Any:
    """The function that does the same in small steps; None for one that need not be written out."""
    steps = _FUSED.get(function)
    if steps is not None:
        return steps
    if function in _SPARSE and len(args) > 1 and args[0].layout is not torch.strided and not depends(args[0]):
        return sparse_product
    if function in STEPS:
        return partial(STEPS[function], depends)
    product = _PRODUCTS.get(function)
    if product is None:
        return None
    steps, factors = product
    given = dict(enumerate(args)) | kwargs
    if all(any(depends(given.get(key)) for key in keys) for keys in factors):
        return steps
    return None


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q·kᵀ · scale + mask) · v."""
    if dropout_p > 0:
        raise ValueError("The dropout of an attention is active: explanations would be random. Call `model.eval()`.")
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scores = (query * (1 / math.sqrt(query.size(-1)) if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores + _additive(allowed, query)
    if attn_mask is None:
        return scores.softmax(-1) @ value
    scores = scores + (_additive(attn_mask, query) if attn_mask.dtype == torch.bool else attn_mask)
    return torch._safe_softmax(scores, -1) @ value  # 0 where a mask forbids all


def _additive(allowed: Tensor, like: Tensor) -> Tensor:
    """Zero where attention is allowed, −∞ elsewhere."""
    return torch.zeros(allowed.shape, dtype=like.dtype, device=like.device).masked_fill(~allowed, -torch.inf)


def with_draws(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a fractional max pool, with the random numbers that it would draw: so the tape holds them."""
    axes = _DRAWS.get(function)
    if axes is None or kwargs.get("_random_samples") is not None:
        return kwargs
    x = args[0]
    samples = 1 if x.dim() == axes + 1 else len(x)
    return {**kwargs, "_random_samples": torch.rand(samples, x.size(-axes - 1), axes, dtype=x.dtype, device=x.device)}


_DRAWS: dict[Any, int] = {F.fractional_max_pool2d: 2, F.fractional_max_pool3d: 3}  # and the axes of a plane


def _in_steps(function: Any) -> Callable[..., Any]:
    """A function that torch has written in Python, whose steps are seen, not the call itself."""
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    seen = FunctionType(
        function.__code__,
        {**function.__globals__, **dict.fromkeys(names, lambda *_: False)},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    seen.__kwdefaults__ = function.__kwdefaults__
    return seen


def multi_head_attention_forward(*args: Any, **kwargs: Any) -> Any:
    """The function of `nn.MultiheadAttention`, in torch's own steps."""
    return _in_steps(F.multi_head_attention_forward)(*args, **kwargs)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The dot product of two normalised vectors, their lengths held constant."""
    shape = torch.broadcast_shapes(x1.shape, x2.shape)
    unit = partial(F.normalize, dim=dim, eps=eps)
    return (unit(x1.expand(shape)) * unit(x2.expand(shape))).sum(dim)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a · σ(b) of the halves a, b: σ(b) is a gate, so the signal a takes all."""
    a, b = input.chunk(2, dim)
    return a * b.sigmoid()


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x₁ᵀ W_o x₂ + b_o."""
    product = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
    return product if bias is None else product + bias


def sparse_product(a: Tensor, b: Tensor, reduce: str = "sum") -> Tensor:
    """A sparse constant, a graph's edges, times b: the terms of each row added up, or reduced otherwise."""
    entries = a.detach().to_sparse_coo().coalesce()
    terms = entries.values().view(-1, *[1] * (b.dim() - 1)) * b[entries.indices()[1]]
    rows = entries.indices()[0].view(-1, *[1] * (b.dim() - 1)).expand_as(terms)
    how = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    return b.new_zeros(a.shape[0], *b.shape[1:]).scatter_reduce(0, rows, terms, how, include_self=False)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · Wᵀ + b, where W depends on the input."""
    product = input @ weight.transpose(-1, -2)
    return product if bias is None else product + bias


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """β · input + α · A·B."""
    product = mat1 @ mat2
    product = product if alpha == 1 else product * alpha
    return product + (input if beta == 1 else input * beta)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """The same, batch by batch."""
    return addmm(input, batch1, batch2, beta=beta, alpha=alpha)


def grouped_mm(mat_a: Tensor, mat_b: Tensor, *, offs: Tensor, bias: Tensor | None = None, **_: Any) -> Tensor:
    """Rows of A that belong together times the matrix of their group: experts. `offs`: where each group ends."""
    ends = [int(end) for end in offs]
    parts = [mat_a[a:b] @ mat_b[n] for n, (a, b) in enumerate(pairwise([0, *ends])) if b > a]
    product = torch.cat([*parts, mat_a.new_zeros(len(mat_a) - ends[-1], mat_b.shape[-1])])
    return product if bias is None else product + bias


def reversed_division(tensor: Tensor, other: Any) -> Tensor:
    """number / tensor."""
    return tensor.reciprocal() * other


def reversed_power(tensor: Tensor, other: Any) -> Tensor:
    """number ** tensor."""
    return torch.pow(other, tensor)


_FUSED: dict[Any, Callable[..., Any]] = {
    Tensor.__rtruediv__: reversed_division,
    Tensor.__rdiv__: reversed_division,
    Tensor.__rpow__: reversed_power,
    F.scaled_dot_product_attention: scaled_dot_product_attention,
    F.multi_head_attention_forward: multi_head_attention_forward,
    F.cosine_similarity: cosine_similarity,
    torch.cosine_similarity: cosine_similarity,
    F.glu: glu,
    F.bilinear: bilinear,
    torch.bilinear: bilinear,
    **{
        function: grouped_mm
        for place, name in ((F, "grouped_mm"), (torch, "_grouped_mm"))
        if (function := getattr(place, name, None)) is not None
    },
}

_SPARSE = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm, torch.mv, Tensor.mv, torch.sparse.mm)

# Written out where each of these factors (by position or name) depends on the input.
_PRODUCTS: dict[Any, tuple[Callable[..., Any], tuple[tuple[Any, ...], ...]]] = {
    F.linear: (linear, ((0, "input"), (1, "weight"))),
    **dict.fromkeys((torch.addmm, Tensor.addmm), (addmm, ((1, "mat1"), (2, "mat2")))),
    **dict.fromkeys((torch.baddbmm, Tensor.baddbmm), (baddbmm, ((1, "batch1"), (2, "batch2")))),
}
