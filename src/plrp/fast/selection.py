"""θ by selection: the largest entry up to which an ascending sum stays within a share of the whole.

C(v) is the sum of all entries ≤ v, ties included. To make θ the same whatever the order of the entries, C adds the sums
per binary exponent, in ascending order, in float64: float32 numbers of one exponent are multiples of one unit, so their
sum is exact in any order.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import native
from .switch import fast

# Below this many entries a row is sorted, together with all others; above, each row is counted into a histogram.
_SORT_BELOW = 8192


def threshold(values: Tensor, p: float | Tensor) -> Tensor:
    """θ per row: the largest entry below the row's maximum with C(θ) ≤ p · C(max), 0 if there is none.

    `values` (batch, n) are ≥ 0, `p` is a number in [0, 1) or one per row. Returns (batch,) in the dtype of `values`.
    """
    return thresholds(values, p, 0.0)[0]


def thresholds(rows: Tensor, p: float | Tensor, p_negative: float | Tensor) -> tuple[Tensor, Tensor]:
    """θ of the positive and of the negative part (absolute values) of each row (batch, n)."""
    if rows.numel() == 0:
        return rows.new_zeros(rows.shape[0]), rows.new_zeros(rows.shape[0])
    shares = _per_row(p, rows), _per_row(p_negative, rows)
    if countable(rows):
        found = [select(row, shares[0][i], shares[1][i]).theta for i, row in enumerate(rows.numpy())]
        both = torch.tensor(found, dtype=torch.float32)
        return both[:, 0], both[:, 1]
    parts = rows.clamp(min=0), rows.clamp(max=0).neg()
    positive, negative = (
        _by_sorting(part, torch.from_numpy(share).to(rows.device)) for part, share in zip(parts, shares, strict=True)
    )
    return positive, negative


STATISTICS = 8  # θ⁺ θ⁻, mass before ⁺ ⁻, mass pruned ⁺ ⁻, entries ≠ 0, entries kept


def statistics(values: Tensor, offsets: Tensor, p: float | Tensor, p_negative: float | Tensor) -> Tensor:
    """What is to be cut, per sample: θ of both signs, masses and counts (samples, 8), float64, on the CPU.

    Sample n has the entries offsets[n] … offsets[n + 1] of the flattened `values`; p may be given per sample.
    """
    samples = len(offsets) - 1
    found = torch.zeros(samples, STATISTICS, dtype=torch.float64, device="cpu")
    shares = torch.empty(samples, 2, dtype=torch.float64, device="cpu")
    shares[:, 0], shares[:, 1] = p, p_negative
    if native.available(values):
        native.call("select", values, offsets, samples, shares, found, native.threads())
        return found
    for n, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        row = values.reshape(-1)[begin:end].reshape(1, -1)
        if row.numel() == 0:
            continue
        theta = thresholds(row, *shares[n].tolist())
        signs = row.clamp(min=0).double(), row.clamp(max=0).neg().double()
        pruned = [part * (part <= limit.double()) for part, limit in zip(signs, theta, strict=True)]
        entries, gone = row.count_nonzero(), sum(part.count_nonzero() for part in pruned)
        numbers = (*theta, *(s.sum() for s in signs), *(s.sum() for s in pruned), entries, entries - gone)
        found[n] = torch.tensor([float(x) for x in numbers], dtype=torch.float64)
    return found


def countable(rows: Tensor) -> bool:
    """Whether rows are counted into histograms: large ones of float32 on the CPU. Elsewhere a sort does."""
    return fast() and rows.dtype == torch.float32 and rows.device.type == "cpu" and rows.shape[1] >= _SORT_BELOW


def _per_row(p: float | Tensor, rows: Tensor) -> np.ndarray:
    return torch.as_tensor(p, dtype=torch.float64).cpu().expand(rows.shape[0]).contiguous().numpy()


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


class Selected(NamedTuple):
    """The survivors of one row; per sign where a pair stands: (positive, negative)."""

    theta: tuple[float, float]
    before: tuple[float, float]  # mass
    after: tuple[float, float]
    entries: int  # non-zero ones before
    where: np.ndarray  # positions of the survivors
    values: np.ndarray  # and what they hold


def select(row: np.ndarray, p: float, p_negative: float) -> Selected:
    """θ of both signs from one weighted histogram over the upper 16 bits of the non-zero entries of a float32 row.

    The upper bits are sign, exponent and seven bits of mantissa; read as integers they sort like the absolute values.
    """
    index = np.flatnonzero(row != 0)
    values = row if len(index) == len(row) else row[index]
    upper = np.ascontiguousarray(values.view(np.uint16)[_UPPER::2])
    sums = np.zeros(1 << 16)
    for start in range(0, len(values), _CHUNK):  # pieces that stay in cache; sums per bin are exact, so order is free
        piece = slice(start, start + _CHUNK)
        sums += np.bincount(upper[piece], weights=values[piece], minlength=1 << 16)
    found = [
        _within_bins(values, upper, part, share, sign)
        for sign, (part, share) in enumerate(((sums[: 1 << 15], p), (-sums[1 << 15 :], p_negative)))
    ]
    theta, before, pruned = zip(*found, strict=True)
    where = index
    if pruned[0] or pruned[1]:
        keep = values > np.float32(theta[0])
        if before[1]:
            keep |= values < np.float32(-theta[1])
        where, values = index[keep], values[keep]
    after = tuple(b - c for b, c in zip(before, pruned, strict=True))
    return Selected(theta, before, after, len(index), where, values)


def select_rows(rows: np.ndarray, p: float, p_negative: float) -> Iterable[Selected]:
    """`select` for every row, on as many threads as torch uses: numpy frees the interpreter in its large passes."""
    workers = min(len(rows), torch.get_num_threads())
    if workers < 2:
        return [select(row, p, p_negative) for row in rows]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda row: select(row, p, p_negative), rows))


_UPPER = 1 if sys.byteorder == "little" else 0
_CHUNK = 1 << 19


def _within_bins(
    values: np.ndarray, upper: np.ndarray, sums: np.ndarray, share: float, sign: int
) -> tuple[float, float, float]:
    """Find the bin where C passes the limit, then the entry inside it. Returns θ, C(max) and C(θ)."""
    filled = np.flatnonzero(sums)
    if not len(filled):
        return 0.0, 0.0, 0.0
    first, last = filled[0] >> 7, filled[-1] >> 7  # the exponents that occur
    by_exponent = np.cumsum(sums.reshape(256, 128)[first : last + 1], axis=1)  # exact: one unit per exponent
    lower = np.concatenate([[0.0], np.cumsum(by_exponent[:, -1])[:-1]])
    c = (lower[:, None] + by_exponent).reshape(-1)
    bins, filled = first << 7, filled - (first << 7)  # bins are counted from the first exponent on
    total = float(c[filled[-1]])
    if share == 0:
        return 0.0, total, 0.0
    limit = share * total
    passed = filled[np.searchsorted(c[filled], limit, side="right") :]
    crossing = int(passed[0]) if len(passed) else int(filled[-1])
    exponent, place = divmod(crossing, 128)
    offset = bins + (sign << 15)
    inside = np.sort(np.abs(values[upper == crossing + offset]).astype(np.float64))
    start = by_exponent[exponent, place - 1] if place else 0.0
    running = lower[exponent] + (start + np.cumsum(inside))
    last_of_ties = np.append(inside[1:] != inside[:-1], True)
    largest = inside[-1] if crossing == filled[-1] else np.inf
    fits = np.flatnonzero(last_of_ties & (running <= limit) & (inside < largest))
    if len(fits):
        return float(inside[fits[-1]]), total, float(running[fits[-1]])
    below = filled[filled < crossing]
    if not len(below):
        return 0.0, total, 0.0
    return float(np.abs(values[upper == below[-1] + offset]).max()), total, float(c[below[-1]])
