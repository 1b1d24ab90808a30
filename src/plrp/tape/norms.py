"""Norms are affine maps to a relevance. Of the statistics of a sample only the spread is held constant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .values import HALF, Op


class Norm(NamedTuple):
    """y = spread · weight · (x − mean(x)) + shift, where `average` averages over the numbers that are normed together.

    `spread` is 1/√(variance + ε), and a constant where `average` is None. `centred`: whether their mean is subtracted;
    else there is none, or it is a constant and part of the shift.
    """

    spread: Tensor
    weight: Tensor | None
    shift: Tensor
    average: Callable[[Tensor], Tensor] | None = None
    centred: bool = False

    @property
    def scale(self) -> Tensor:
        """spread · weight."""
        return self.spread if self.weight is None else self.spread * self.weight

    @property
    def mean(self) -> Callable[[Tensor], Tensor] | None:
        """The mean that is subtracted."""
        return self.average if self.centred else None

    def apply(self, x: Tensor) -> Tensor:
        """The norm at x, with the spread it was made with."""
        return self.scale * (x if self.mean is None else x - self.mean(x)) + self.shift

    def transpose(self, s: Tensor) -> Tensor:
        """Aᵀs of the linear map A = diag(scale) · (1 − mean)."""
        scaled = self.scale * s
        return scaled if self.mean is None else scaled - self.mean(scaled)


def norm_of(op: Op, x: Tensor) -> Norm:
    """The affine map of a norm that read x."""
    channels = (1, -1, *(1,) * (x.dim() - 2))
    if op.kind == "batch_norm":
        scale, shift = batch_norm_affines([op])[0]
        return Norm(scale.to(x.dtype).view(channels), None, shift.to(x.dtype).view(channels))
    if op.kind in ("layer_norm", "rms_norm"):
        return _last_axes(op, x)
    if op.kind == "instance_norm":
        weight, bias, epsilon = op.argument(3, "weight"), op.argument(4, "bias"), op.argument(7, "eps", 1e-5)
        if not op.argument(5, "use_input_stats", True):
            centre, variance = (op.argument(i, n).to(x.dtype) for i, n in ((1, "running_mean"), (2, "running_var")))
            fixed = Norm(*_scaled((variance + epsilon).rsqrt(), weight, bias, channels=(-1,)))
            return Norm(fixed.scale.view(channels), None, (fixed.shift - centre * fixed.scale).view(channels))
        groups = x.shape[1]
    else:
        weight, bias, epsilon = op.argument(2, "weight"), op.argument(3, "bias"), op.argument(4, "eps", 1e-5)
        groups = op.argument(1, "num_groups")

    def mean(t: Tensor) -> Tensor:
        grouped = t.reshape(len(t), groups, t.shape[1:].numel() // groups)
        return grouped.mean(2, keepdim=True).expand_as(grouped).reshape(t.shape)

    spread = (mean((x - mean(x)).square()) + epsilon).rsqrt()
    return Norm(*_scaled(spread, weight, bias, channels), mean, centred=True)


def leading_axes(op: Op) -> int:
    """How many of the first axes a norm treats one position at a time: all, where its statistics are constants."""
    dims = len(op.inputs[0].shape)
    if op.kind == "batch_norm":
        return dims
    if op.kind in ("layer_norm", "rms_norm"):
        return dims - len(op.argument(1, "normalized_shape"))
    return 2 if op.kind == "instance_norm" else 1


def _last_axes(op: Op, x: Tensor) -> Norm:
    """LayerNorm and RMSNorm, over the last axes."""
    shape = op.argument(1, "normalized_shape")
    axes = tuple(range(-len(shape), 0))
    weight = op.argument(2, "weight")
    if op.kind == "rms_norm":
        epsilon = op.argument(3, "eps")
        epsilon = torch.finfo(op.inputs[0].dtype).eps if epsilon is None else epsilon
        spread = (x.square().mean(axes, keepdim=True) + epsilon).rsqrt()
        return Norm(*_scaled(spread, weight, None, tuple(shape)), lambda t: t.mean(axes, keepdim=True))
    bias, epsilon = op.argument(3, "bias"), op.argument(4, "eps", 1e-5)
    _, _, spread = torch.native_layer_norm(x, shape, None, None, epsilon)  # 1/√(variance + ε)
    scaled = _scaled(spread.to(x.dtype), weight, bias, tuple(shape))
    return Norm(*scaled, lambda t: t.mean(axes, keepdim=True), centred=True)


def _scaled(
    spread: Tensor, weight: Tensor | None, bias: Tensor | None, channels: tuple[int, ...]
) -> tuple[Tensor, Tensor | None, Tensor]:
    """1/√(variance + ε), weight and shift of a norm; its parameters in a shape that broadcasts."""
    weight, bias = (None if p is None else p.to(spread.dtype).view(channels) for p in (weight, bias))
    return spread, weight, spread.new_zeros(()) if bias is None else bias


def batch_norm_affines(ops: Sequence[Op]) -> list[tuple[Tensor, Tensor]]:
    """Scale and shift of many BatchNorms. Similar ones are computed together: a network has fifty, each is small."""
    alike: dict[Any, list[tuple[int, list[Tensor]]]] = {}
    for number, op in enumerate(ops):
        names = ("running_mean", "running_var", "weight", "bias")
        parts = [op.argument(position, name) for position, name in enumerate(names, 1)]
        variance, epsilon = parts[1], op.argument(7, "eps", 1e-5)
        dtype = torch.float32 if variance.dtype in HALF else variance.dtype
        key = (dtype, variance.device, epsilon, parts[2] is None, parts[3] is None)
        alike.setdefault(key, []).append((number, [p if p is None or p.dtype == dtype else p.to(dtype) for p in parts]))
    affines: list[Any] = [None] * len(ops)
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
            affines[number] = tuple(pair)
    return affines
