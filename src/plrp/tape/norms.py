"""BatchNorms in evaluation mode as what they are: a scale and a shift per channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .values import HALF, Op


def batch_norm_affine(op: Op) -> tuple[Tensor, Tensor]:
    """Scale and shift per channel of a BatchNorm in evaluation mode."""
    return batch_norm_affines([op])[0]


def batch_norm_affines(ops: Sequence[Op]) -> list[tuple[Tensor, Tensor]]:
    """The same of many: those of a kind in one go, since there are fifty to a network and each is small."""
    alike: dict[Any, list[tuple[int, list[Tensor]]]] = {}
    for number, op in enumerate(ops):
        names = ("running_mean", "running_var", "weight", "bias")
        parts = [op.argument(position, name) for position, name in enumerate(names, 1)]
        variance, epsilon = parts[1], op.argument(7, "eps", 1e-5)
        dtype = torch.float32 if variance.dtype in HALF else variance.dtype
        key = (dtype, variance.device, epsilon, parts[2] is None, parts[3] is None)
        alike.setdefault(key, []).append((number, [p if p is None or p.dtype == dtype else p.to(dtype) for p in parts]))
    found: list[Any] = [None] * len(ops)
    for (_, _, epsilon, _, _), members in alike.items():
        sizes = [len(parts[1]) for _, parts in members]
        together = zip(*(parts for _, parts in members), strict=True)
        mean, variance, weight, bias = (None if ps[0] is None else torch.cat(ps) for ps in together)
        assert mean is not None
        assert variance is not None
        scale = variance.add_(epsilon).rsqrt_()
        scale = scale if weight is None else scale.mul_(weight)
        shift = -mean * scale if bias is None else torch.addcmul(bias, mean, scale, value=-1)
        for (number, _), *pair in zip(members, scale.split(sizes), shift.split(sizes), strict=True):
            found[number] = tuple(pair)
    return found
