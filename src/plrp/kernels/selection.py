"""θ by selection: the largest entry up to which an ascending sum stays within a share of the whole.

C(v) is the sum of all entries ≤ v, ties included. To make θ the same whatever the order of the entries, C adds the sums
per binary exponent, in ascending order, in float64: float32 numbers of one exponent are multiples of one unit, so their
sum is exact in any order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Below this many entries a row is sorted, together with all others; above, each row is counted into a histogram.
_SORT_BELOW = 8192


def threshold(values: Tensor, p: float | Tensor) -> Tensor:
    """θ per row: the largest entry below the row's maximum with C(θ) ≤ p · C(max), 0 if there is none.

    `values` (batch, n) are ≥ 0, `p` is a number in [0, 1) or one per row. Returns (batch,) in the dtype of `values`.
    """
    return thresholds(values, p, None)[0]


def thresholds(rows: Tensor, p: float | Tensor, p_negative: float | Tensor | None) -> tuple[Tensor, Tensor]:
    """θ of the positive and of the negative part (absolute values) of each row, in one pass over the data.

    `rows` (batch, n) of any sign. A `p_negative` of None leaves the negative part alone (θ = 0).
    """
    batch, n = rows.shape
    shares = [_per_row(p, rows), None if p_negative is None else _per_row(p_negative, rows)]
    if batch == 0 or n == 0:
        return rows.new_zeros(batch), rows.new_zeros(batch)
    if rows.dtype == torch.float32 and rows.device.type == "cpu" and n >= _SORT_BELOW:
        found = [_by_histogram(row, [None if s is None else s[i] for s in shares]) for i, row in enumerate(rows)]
        both = torch.tensor(found, dtype=torch.float32)
        return both[:, 0], both[:, 1]
    positive = _by_sorting(rows.clamp(min=0), torch.as_tensor(shares[0], device=rows.device))
    if shares[1] is None:
        return positive, torch.zeros_like(positive)
    return positive, _by_sorting(rows.clamp(max=0).neg(), torch.as_tensor(shares[1], device=rows.device))


def _per_row(p: float | Tensor, rows: Tensor) -> np.ndarray:
    return torch.as_tensor(p, dtype=torch.float64).expand(rows.shape[0]).cpu().numpy()


def ascending(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The entries of each row in ascending order, and C at each of them, ties not yet included."""
    ordered = rows.sort(1).values
    if rows.dtype != torch.float32:
        return ordered, ordered.double().cumsum(1)
    bits = (ordered + 0.0).view(torch.int32)  # + 0.0: −0.0 becomes 0.0
    exponent = (bits >> 23).clamp(min=1)  # subnormal numbers share the unit of the smallest normal exponent
    mantissa = ((bits & 0x7FFFFF) + ((bits >> 23 > 0).int() << 23)).long()
    running = mantissa.cumsum(1)
    # Units summed within each exponent: the running sum minus what it was before the exponent began.
    starts = torch.ones_like(exponent, dtype=torch.bool)
    starts[:, 1:] = exponent[:, 1:] != exponent[:, :-1]
    position = torch.arange(rows.shape[1], device=rows.device).expand_as(running)
    begin = torch.where(starts, position, torch.zeros_like(position)).cummax(1).values
    before = (running - mantissa).gather(1, begin)
    within = torch.ldexp((running - before).double(), exponent - 150)
    sums = torch.zeros(rows.shape[0], 256, dtype=torch.float64, device=rows.device)
    sums.scatter_add_(1, exponent.long(), ordered.double())
    lower = sums.cumsum(1).roll(1, 1)
    lower[:, 0] = 0
    return ordered, lower.gather(1, exponent.long()) + within


def _by_sorting(rows: Tensor, share: Tensor) -> Tensor:
    ordered, c = ascending(rows)
    limit = share * c[:, -1]
    last_of_ties = torch.ones_like(ordered, dtype=torch.bool)
    last_of_ties[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    fits = last_of_ties & (c <= limit[:, None]) & (ordered < ordered[:, -1:])
    return torch.where(fits, ordered, torch.zeros_like(ordered)).amax(1)


def _by_histogram(row: Tensor, shares: list[float | None]) -> tuple[float, float]:
    """θ of both signs from one weighted histogram over the upper 16 bits of the numbers.

    The upper bits are sign, exponent and seven bits of mantissa; read as integers they sort like the absolute values.
    """
    values = row.detach().contiguous().numpy()
    upper = values.view(np.uint16)[1::2] if np.little_endian else values.view(np.uint16)[::2]
    upper = np.ascontiguousarray(upper)
    sums = np.bincount(upper, weights=values, minlength=1 << 16)
    positive, negative = sums[: 1 << 15], -sums[1 << 15 :]
    found = [0.0, 0.0]
    for sign, (counts, share) in enumerate(zip((positive, negative), shares, strict=True)):
        if share is not None:
            found[sign] = _within_bins(values, upper, counts, share, sign)
    return found[0], found[1]


def _within_bins(values: np.ndarray, upper: np.ndarray, sums: np.ndarray, share: float, sign: int) -> float:
    """Find the bin where C passes the limit, then the entry inside it."""
    filled = np.flatnonzero(sums)
    if not len(filled):
        return 0.0
    by_exponent = np.cumsum(sums.reshape(256, 128), axis=1)  # exact: one unit per exponent
    lower = np.concatenate([[0.0], np.cumsum(by_exponent[:, -1])[:-1]])
    c = lower[:, None] + by_exponent
    limit = share * c.reshape(-1)[filled[-1]]
    passed = filled[np.searchsorted(c.reshape(-1)[filled], limit, side="right") :]
    crossing = int(passed[0]) if len(passed) else int(filled[-1])
    exponent, place = divmod(crossing, 128)
    inside = np.sort(np.abs(values[upper == crossing + (sign << 15)]).astype(np.float64))
    start = by_exponent[exponent, place - 1] if place else 0.0
    running = lower[exponent] + (start + np.cumsum(inside))
    last_of_ties = np.append(inside[1:] != inside[:-1], True)
    largest = inside[-1] if crossing == filled[-1] else np.inf
    fits = inside[last_of_ties & (running <= limit) & (inside < largest)]
    if len(fits):
        return float(fits[-1])
    below = filled[filled < crossing]
    return float(np.abs(values[upper == below[-1] + (sign << 15)]).max()) if len(below) else 0.0
