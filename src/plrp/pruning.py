"""Pruning: which neurons of a layer are cut, and where their mass goes. Section 3.2 of the paper.

θ is equation (2), the sparsity gain (3), PLRP-λ the pair of formulas after it, PLRP-M equations (4) to (6).
The paper leaves open how to treat ties, signs, biases and orphaned neurons: docs/decisions.md decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .ledger import Booking, Mass, growth, signed_mass
from .rules import ORPHANED, Branch, FirstPass, quotient
from .spelling import nearest
from .tape.samples import Samples
from .tape.trace import Trace
from .tape.values import Op, Value

DEFAULT_P = 0.05  # docs/truth.md: it costs no agreement with the truth on photographs, and little on DNA
EQUAL = 1 - 1e-9  # a gain that is less by rounding alone counts as equal to the asked one
Share = float | tuple[float, float]  # p of one layer, or (p, p_negative)


@dataclass(frozen=True)
class Pruning:
    """How to thin relevance at the input of every conv and linear layer but the first ones.

    - `p`: the share of the relevance mass to prune per layer, sample and sign, in [0, 1); None leaves it to
      `sparsity_gain`. `"auto"` is the p that `plrp.choose_p` finds for the sample: one is explained at a time.
    - `p_negative`: the same for negative relevance, where it is to differ.
    - `redistribution`: where pruned mass goes: `"lambda"` scales the survivors; `"M"` applies the layer's rule to them
      alone; `"M-sign"` does so for positive and negative contributions apart, so that they cannot cancel.
    - `conserve=False`: the ablations; λ = 1, or M re-applied naively, so that pruned mass is lost.
    - `sparsity_gain`: prune an entry only while it buys at least this much sparsity per share of mass; `measure` is the
      sparsity: the share of `"zeros"`, or the `"gini"` index.
    - `unit`: the group that stays or goes as one: single neurons (`"neuron"`), all channels of a place, a base or a
      token (`"position"`), all places of a channel (`"channel"`). `"auto"` is tokens in models with attention, where
      single neurons leave relevance everywhere, and neurons in all others.
    - `layers`: p for single layers, by name, or a pair (p, p_negative); a single number leaves `p_negative` as it is.
    """

    p: float | Literal["auto"] | None = DEFAULT_P
    p_negative: float | None = None
    redistribution: str = "lambda"
    conserve: bool = True
    sparsity_gain: float | None = None
    measure: str = "zeros"
    layers: Mapping[str, Share] | None = field(default=None, hash=False)
    unit: str = "auto"

    def __post_init__(self) -> None:
        if self.layers is not None:
            layers = {name: tuple(p) if isinstance(p, list) else p for name, p in self.layers.items()}
            object.__setattr__(self, "layers", MappingProxyType(layers))
        for name, p in self.shares.items():
            if (name == "p" and self.p in (None, "auto")) or (name == "p_negative" and p is None):
                continue
            if isinstance(p, tuple):
                raise ValueError(f"{name} is p or a pair (p, p_negative), got {p!r}.")
            if not isinstance(p, int | float) or isinstance(p, bool) or not 0 <= p < 1:
                raise ValueError(f"{name} is the share of mass to prune, 0 ≤ {name} < 1, got {p!r}.")
        if self.redistribution not in ("lambda", "M", "M-sign"):
            raise ValueError(f"redistribution is 'lambda', 'M' or 'M-sign', got {self.redistribution!r}.")
        if self.measure not in ("zeros", "gini"):
            raise ValueError(f"measure is 'zeros' or 'gini', got {self.measure!r}.")
        if self.unit not in ("auto", "neuron", "position", "channel"):
            raise ValueError(f"unit is 'auto', 'neuron', 'position' or 'channel', got {self.unit!r}.")
        gain = self.sparsity_gain
        if gain is not None and not (isinstance(gain, int | float) and gain > 0 and math.isfinite(gain)):
            raise ValueError(f"sparsity_gain is a number > 0 (1 is a natural choice), got {gain!r}.")
        if self.p is None and gain is None:
            raise ValueError("p=None leaves the choice to sparsity_gain: give one, for example sparsity_gain=1.0.")

    def __reduce__(self) -> tuple[Any, ...]:
        return Pruning.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        default = {f.name: f.default for f in fields(self)}
        shown = [f"p={self.p}"]
        shown += [f"{k}={v!r}" for k, v in self.to_dict().items() if k != "p" and v != default[k]]
        return f"Pruning({', '.join(shown)})"

    @property
    def label(self) -> str:
        """How tables call it: PLRP-λ, PLRP-M or PLRP-M±, and by what unit."""
        name = {"lambda": "PLRP-λ", "M": "PLRP-M", "M-sign": "PLRP-M±"}[self.redistribution]
        name = name if self.by_neuron else f"{name} by {self.unit}"
        return name if self.conserve else f"{name} (not conserving)"

    @property
    def title(self) -> str:
        """The same with its strength: `PLRP-λ, gain 1, p = 0.15`."""
        gain = "" if self.sparsity_gain is None else f", gain {self.sparsity_gain:g}"
        p = "" if self.p is None else ", p = auto" if self.p == "auto" else f", p = {self.p:g}"
        return f"{self.label}{gain}{p}"

    @property
    def shares(self) -> dict[str, float | None]:
        """Every share of mass by its name: p, p_negative, and those of single layers."""
        named: dict[str, Any] = {"p": self.p, "p_negative": self.p_negative}
        for name, p in (self.layers or {}).items():
            pair = p if isinstance(p, tuple) and len(p) == 2 else (p,)
            named.update(zip((f"layers['{name}']", f"p_negative of layers['{name}']"), pair, strict=False))
        return named

    @property
    def by_neuron(self) -> bool:
        """Whether single neurons stay or go; `"auto"` has become `"position"` where they do not (`for_trace`)."""
        return self.unit in ("auto", "neuron")

    def for_trace(self, trace: Trace) -> Pruning:
        """The same pruning with `"auto"` replaced by its meaning for this model."""
        return replace(self, unit="position") if self.unit == "auto" and any(op.attends for op in trace.ops) else self

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain data."""
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        layers = {name: list(p) if isinstance(p, tuple) else p for name, p in (self.layers or {}).items()}
        return {**settings, "layers": None if self.layers is None else layers}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Pruning:
        """The inverse of `to_dict`."""
        known = [f.name for f in fields(cls)]
        for name in settings:
            if name not in known:
                raise ValueError(f"Pruning has no setting '{name}'{nearest(name, known)}.")
        return cls(**settings)

    def plan(self, trace: Trace) -> dict[int, Site]:
        """The tensors to prune, by the id of their value: inputs of conv and linear layers with a layer below them."""
        sites: dict[int, Site] = {}
        assert self.p != "auto"  # `Request.bound` has chosen one
        for op in trace.layers:
            if not op.first:
                sites.setdefault(id(op.inputs[0]), Site(op.inputs[0], [], self.p, self.p_negative)).readers.append(op)
        for site in sites.values():
            axes = {op.map.channel_axis(len(site.value.shape)) for op in site.readers if op.map is not None}
            site.channel_axis = axes.pop() if len(axes) == 1 else None
        self._apply_layers(trace, sites)
        return sites

    def _apply_layers(self, trace: Trace, sites: dict[int, Site]) -> None:
        layers = {op.name: op for op in trace.layers}
        prunable = [name for name, op in layers.items() if not op.first]
        chosen: dict[int, tuple[str, Any]] = {}
        for name, given in (self.layers or {}).items():
            if name not in layers:
                raise ValueError(
                    f"Pruning names layer '{name}', which the model does not have{nearest(name, prunable)}."
                )
            if layers[name].first:
                raise ValueError(f"'{name}' is a first layer, whose input is not pruned{nearest(name, prunable)}.")
            value = layers[name].inputs[0]
            other, p = chosen.setdefault(id(value), (name, given))
            if p != given:
                raise ValueError(
                    f"'{other}' and '{name}' read the same tensor, which cannot be pruned with both "
                    f"p = {p} and p = {given}; give one of them, or the same p."
                )
            site = sites[id(value)]
            site.p, site.p_negative = p if isinstance(p, tuple) else (p, self.p_negative)


@dataclass
class Site:
    """A tensor that is pruned: the input of these layers."""

    value: Value
    readers: list[Op]
    p: float | None
    p_negative: float | None
    channel_axis: int | None = None  # the one that all readers contract

    @property
    def cuts(self) -> bool:
        """Whether any share of the mass is to be cut."""
        return self.p is None or bool(self.p) or bool(self.p_negative)

    @property
    def shares(self) -> tuple[float, float]:
        """p of the positive and of the negative part."""
        assert self.p is not None
        return self.p, self.p if self.p_negative is None else self.p_negative

    def groups(self, shape: torch.Size, unit: str) -> tuple[Tensor, int] | None:
        """The group of each entry of a sample, (n,), numbered from 0, on the host, and how many there are; None where
        each neuron is its own.

        Where readers disagree about the axis of the channels, or a tensor has none (or has no positions beside it),
        single neurons are pruned.
        """
        samples, axis = self.value.samples, self.channel_axis
        if unit in ("auto", "neuron") or axis is None or axis == samples.axis or samples.batch == 0:
            return None
        along = torch.Size(size if (n == axis) == (unit == "channel") else 1 for n, size in enumerate(shape))
        numbers = torch.arange(along.numel()).view(along).expand(shape)
        groups = samples.rows(numbers)[0]
        if not samples.ordinary:  # a sample's positions need not have the first numbers
            groups = groups.unique(return_inverse=True)[1]
        number = len(groups) and int(groups.max()) + 1
        return (groups, number) if 1 < number < len(groups) else None

    @property
    def activations(self) -> Tensor:
        """The tensor itself, (batch, neurons of a sample)."""
        return self.value.samples.rows(self.value.data)

    @property
    def name(self) -> str:
        """The names of the layers that read it."""
        return ", ".join(op.name for op in self.readers)


@dataclass
class Arrived:
    """The relevance that reached a tensor, split for PLRP-M: over its conv and linear readers, and over all others."""

    layers: list[tuple[Samples, Sequence[Any]]] = field(default_factory=list)  # `FirstPass`es, and their samples
    other: Any = None

    def add(self, above: Samples, relevance: Any, passes: Sequence[Any], add_up: Callable[[Any, Any], Any]) -> None:
        """Add the relevance that one reader handed down; `passes` are those of a conv or linear layer."""
        if passes:
            self.layers.append((above, passes))
        else:
            self.other = relevance if self.other is None else add_up(self.other, relevance)


@dataclass
class Cut:
    """Which neurons of a tensor survive; per sample (batch,), and per sign where a `Mass` stands."""

    theta: Mass
    before: Mass
    after: Mass
    counts: tuple[Tensor, Tensor]  # non-zero neurons before and after
    stays: Tensor | None = None  # where whole groups stay or go: the neurons of groups that stay, (batch, n)
    sums: Mass | None = None  # and the mass of each group, (batch, groups)

    @property
    def pruned(self) -> Tensor:
        """(batch,): whether any non-zero entry goes."""
        return self.counts[0] != self.counts[1]

    @property
    def reached(self) -> Mass:
        """The share of mass that was pruned, per sign."""
        positive, negative = (
            torch.where(b > 0, (b - a) / torch.where(b > 0, b, 1.0), 0.0).clamp(min=0)
            for b, a in zip(self.before, self.after, strict=True)
        )
        return positive, negative

    @property
    def scales(self) -> Mass:
        """λ per sign, as after equation (3): ‖r̃‖₁ / ‖survivors‖₁; 1 where nothing was pruned or is left to scale."""
        positive, negative = (ratio(b, a, self.pruned) for b, a in zip(self.before, self.after, strict=True))
        return positive, negative

    def columns(self) -> dict[str, Any]:
        """The ledger's columns of the cut."""
        names = ("neurons_before", "neurons_after", "theta_positive", "theta_negative", "p_positive", "p_negative")
        return dict(zip(names, (*self.counts, *self.theta, *self.reached), strict=True))


def decide(relevance: Tensor, site: Site, pruning: Pruning) -> Cut:
    """Decide which neurons of a tensor go.

    Where whole groups stay or go, a_g = Σ_{j∈g} |r_j| per sign takes the place of an entry; a group stays if it
    survives for either sign.
    """
    rows, grouped = site.value.samples.rows(relevance), site.groups(relevance.shape, pruning.unit)
    stays = sums = None
    if grouped is None:
        theta = _thetas(signed_parts(rows), pruning, site.p, site.p_negative)
    else:
        groups = grouped[0].to(rows.device)
        sums = group_sums(rows, groups, grouped[1])
        theta = _thetas(sums, pruning, site.p, site.p_negative)
        stays = ((sums[0] > theta[0][:, None]) | (sums[1] > theta[1][:, None]))[:, groups]
    surviving = survivors(rows, theta, stays)
    counts = rows.count_nonzero(1), surviving.count_nonzero(1)
    return Cut(theta, signed_mass(rows), signed_mass(surviving), counts, stays, sums)


def signed_parts(rows: Tensor) -> Mass:
    """The positive and the negative part of each row, both ≥ 0."""
    return rows.clamp(min=0), rows.clamp(max=0).neg()


def group_sums(rows: Tensor, groups: Tensor, number: int) -> Mass:
    """a_g = Σ_{j∈g} |r_j| of the entries of each row (batch, n), per sign: (batch, groups) in float64."""
    positive, negative = (
        part.new_zeros(len(rows), number, dtype=torch.float64).index_add_(1, groups, part.double())
        for part in signed_parts(rows)
    )
    return positive, negative


def _thetas(parts: Mass, pruning: Pruning, p: float | None, p_negative: float | None) -> Mass:
    """θ per sign (batch,) by share of mass, by sparsity gain, or by both; `parts` are ≥ 0, (batch, n)."""
    gain, thetas = pruning.sparsity_gain, []
    for part, share in zip(parts, (p, p if p_negative is None else p_negative), strict=True):
        theta = threshold(part, share or 0.0)
        if gain is not None:
            by_gain = _zeros_gain(part, gain) if pruning.measure == "zeros" else _gini_gain(part, gain)
            theta = by_gain if share is None else torch.minimum(theta, by_gain)
        thetas.append(theta)
    return thetas[0], thetas[1]


def survivors(rows: Tensor, theta: Mass, stays: Tensor | None = None) -> Tensor:
    """The entries above θ of their sign, or those that `stays` names, zero elsewhere: 1{r̃ > θ} ⊙ r̃."""
    if stays is None:
        up, down = (t.to(rows.dtype)[:, None] for t in theta)
        stays = (rows > up) | (rows < -down)
    return torch.where(stays, rows, 0.0)


def tied(parts: Sequence[Tensor]) -> Tensor:
    """The share of the survivors' mass that equal survivors at the cut hold: the larger of the two signs.

    `parts` are the survivors of each sign, neurons or whole groups, zero elsewhere. Equal ones stay or go together, so
    that less than p may have been cut.
    """
    shares = []
    for part in parts:
        least = torch.where(part > 0, part, torch.inf).amin(1, keepdim=True) if part.shape[1] else part
        count, mass = (part == least).sum(1), part.sum(1)
        shares.append(torch.where((count > 1) & (mass > 0), least.sum(1) * count / mass, 0.0))
    return torch.maximum(*shares)


def threshold(values: Tensor, p: float | Tensor) -> Tensor:
    """θ per row, equation (2): the largest entry below the row's maximum with C(θ) ≤ p · C(max), 0 if there is none.

    C(v) is the sum of all entries ≤ v, ties included. `values` (batch, n) are ≥ 0, `p` is a number in [0, 1) or one per
    row. Returns (batch,) in the dtype of `values`.
    """
    if values.numel() == 0:
        return values.new_zeros(values.shape[0])
    ordered, c = ascending(values)
    limit = torch.as_tensor(p, dtype=torch.float64, device=values.device) * c[:, -1]
    last_of_ties = torch.ones_like(ordered, dtype=torch.bool)
    last_of_ties[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    fits = last_of_ties & (c <= limit[:, None]) & (ordered < ordered[:, -1:])
    return torch.where(fits, ordered, 0.0).amax(1)


def ascending(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The entries of each row in ascending order, and C at each of them, ties not yet included.

    So that θ is the same whatever the order of the entries, C adds the sums per binary exponent, in ascending order, in
    float64: float32 numbers of one exponent are multiples of one unit, so their sum is exact in any order.
    """
    ordered = rows.sort(1).values
    if rows.dtype != torch.float32:
        return ordered, ordered.double().cumsum(1)
    bits = (ordered + 0.0).view(torch.int32)  # + 0.0: −0.0 becomes 0.0
    exponent = (bits >> 23).clamp(min=1)  # subnormal numbers share the unit of the smallest normal exponent
    mantissa = ((bits & 0x7FFFFF) + ((bits >> 23 > 0).int() << 23)).long()
    running = mantissa.cumsum(1)
    # Units summed within each exponent: the running sum minus its value before the exponent began.
    starts = torch.ones_like(exponent, dtype=torch.bool)
    starts[:, 1:] = exponent[:, 1:] != exponent[:, :-1]
    position = torch.arange(rows.shape[1], device=rows.device).expand_as(running)
    begin = torch.where(starts, position, 0).cummax(1).values
    before = (running - mantissa).gather(1, begin)
    within = torch.ldexp((running - before).double(), exponent - 150)
    sums = torch.zeros(rows.shape[0], 256, dtype=torch.float64, device=rows.device)
    sums.scatter_add_(1, exponent.long(), ordered.double())
    lower = sums.cumsum(1).roll(1, 1)
    lower[:, 0] = 0
    return ordered, lower.gather(1, exponent.long()) + within


def _zeros_gain(values: Tensor, gain: float) -> Tensor:
    """θ by the gain (3) for s = share of zeros: v gains mean/v, so prune v ≤ mean/g; the largest always survives."""
    if values.shape[1] == 0:
        return values.new_zeros(values.shape[0])
    mean = values.sum(1, dtype=torch.float64) / values.shape[1]
    fits = (mean[:, None] >= EQUAL * gain * values.double()) & (values < values.amax(1, keepdim=True))
    return torch.where(fits, values, 0.0).amax(1)


def _gini_gain(values: Tensor, gain: float) -> Tensor:
    """θ by the gain (3) for s = Gini index: prune tie groups in ascending order while their gain is ≥ g.

    For the group of entries k0 < i ≤ k1 (of n, ascending), with S_k = Σ_{i>k} v_i and T_k = Σ_{i>k} i v_i:
    gain = 2 S_0 (T_k1 − k̄ S_k1) / (n S_k1 S_k0), k̄ the group's mean rank. T_k − k S_k = Σ_{j≥k} S_j cancels nothing.
    """
    batch, n = values.shape
    if n == 0:
        return values.new_zeros(batch)
    ordered = values.sort(1).values
    v = ordered.double()
    zero = v.new_zeros(batch, 1)
    # Tails by cumulating from the large end: S[:, k] and Σ_{j≥k} S_j for k = 0 … n.
    s = torch.cat([v.flip(1).cumsum(1).flip(1), zero], 1)
    tails = s.flip(1).cumsum(1).flip(1)
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    begins = torch.ones_like(last)
    begins[:, 1:] = last[:, :-1]
    position = torch.arange(n, device=values.device).expand(batch, n)
    k0 = torch.where(begins, position, 0).cummax(1).values  # entries before the group
    k1 = position + 1
    s1, s0 = s[:, 1:], s.gather(1, k0)
    above = tails[:, 1:] + (k1 - k0 - 1).double() / 2 * s1  # T_k1 − k̄ S_k1
    fits = (2 * s[:, :1] * above >= EQUAL * gain * n * s1 * s0) | (ordered == 0)  # zeros are pruned already
    fits &= ordered < ordered[:, -1:]
    # Stop at the first group that gains too little.
    stopped = (last & ~fits).int().cummax(1).values.bool()
    return torch.where(last & fits & ~stopped, ordered, 0.0).amax(1)


# --- where pruned mass goes -------------------------------------------------------------------------------------------


def prune(
    relevance: Tensor, site: Site, pruning: Pruning, arrived: Arrived | None, book: Booking
) -> tuple[Tensor, dict[str, Any]]:
    """Prune the relevance of one tensor. Returns the new relevance and the ledger's columns; books the lost mass."""
    return hand_over(relevance, decide(relevance, site, pruning), site, pruning, arrived, book)


def hand_over(
    relevance: Tensor, decided: Cut, site: Site, pruning: Pruning, arrived: Arrived | None, book: Booking
) -> tuple[Tensor, dict[str, Any]]:
    """Hand the mass of the neurons that go to the survivors; see `prune`."""
    samples = site.value.samples
    rows = samples.rows(relevance)
    surviving = survivors(rows, decided.theta, decided.stays)
    columns: dict[str, Any] = {}
    if book.active:
        parts: Sequence[Tensor] = signed_parts(surviving)
        if decided.sums is not None:
            pairs = zip(decided.sums, decided.theta, strict=True)
            parts = [torch.where(mass > theta[:, None], mass, 0.0) for mass, theta in pairs]
        columns = {**decided.columns(), "tied": tied(parts)}
    if pruning.redistribution == "lambda":
        new = _rescale(rows, surviving, decided, pruning, book, columns)
    else:
        assert arrived is not None
        stays = surviving != 0 if decided.stays is None else decided.stays
        mask = samples.unrows(stays, relevance.shape).to(relevance.dtype)
        if pruning.conserve:
            by_sign = pruning.redistribution == "M-sign"
            new = _redistribute(relevance, surviving, mask, decided, samples, arrived, columns, by_sign)
        else:
            new = samples.rows(_reapply_naively(relevance, mask, samples, arrived, decided.pruned, book))
        new = torch.where(decided.pruned[:, None], new, rows)
        if pruning.redistribution == "M":
            book.grown = growth(torch.add(*decided.before), torch.linalg.vector_norm(new, 1, 1))
        columns.update(_flipped(new, rows) if book.active else {})
    return samples.unrows(new, relevance.shape), columns


def _rescale(
    rows: Tensor, surviving: Tensor, decided: Cut, pruning: Pruning, book: Booking, columns: dict[str, Any]
) -> Tensor:
    """PLRP-λ: the survivors of each sign times mass before / mass after."""
    scales = decided.scales
    if not pruning.conserve:
        scales = torch.ones_like(scales[0]), torch.ones_like(scales[1])
        lost = signed_mass(rows - surviving)
        book.dropped = lost[0] - lost[1]
    columns.update(lambda_columns(scales))
    up, down = (s.to(rows.dtype)[:, None] for s in scales)
    return surviving * torch.where(surviving > 0, up, down)


def lambda_columns(scales: Mass) -> dict[str, Any]:
    """The ledger's columns of PLRP-λ: it orphans and flips nothing."""
    columns = dict(zip(("lambda_positive", "lambda_negative"), scales, strict=True))
    return {**columns, "orphaned": 0, "flipped": 0, "flipped_mass": 0}


def ratio(before: Tensor, after: Tensor, pruned: Tensor) -> Tensor:
    """before / after; exactly 1 for samples of which nothing was pruned, and where nothing is left to scale."""
    scaled = pruned & (after > 0)
    return torch.where(scaled, before / torch.where(scaled, after, 1.0), 1.0)


def _redistribute(
    relevance: Tensor,
    surviving: Tensor,
    mask: Tensor,
    decided: Cut,
    samples: Samples,
    arrived: Arrived,
    columns: dict[str, Any],
    by_sign: bool,
) -> Tensor:
    """PLRP-M, equations (4) to (6): each neuron k above hands m_k, its mass of the first pass, to the survivors alone.

    `by_sign`: PLRP-M±, which does so for the positive and the negative contributions apart. Returns rows (batch, n).
    """
    received = torch.zeros_like(relevance)
    orphaned_masses = [surviving.new_zeros(samples.batch) for _ in range(2)]
    for above, passes in arrived.layers:
        for first in passes:
            for handed, orphaned in hand_to_survivors(first, mask, relevance, by_sign):
                received = received + handed
                for sign, mass in enumerate(signed_mass(above.rows(orphaned))):
                    orphaned_masses[sign] = orphaned_masses[sign] + mass
    columns["orphaned"] = orphaned_masses[0] + orphaned_masses[1]
    other = None
    if arrived.other is not None:
        rows = samples.rows(arrived.other)
        other = rows * samples.rows(mask), signed_mass(rows)
    dtype = surviving.dtype
    layout = SurvivorLayout(lambda values: values.sum(1), lambda per_sample: per_sample.to(dtype)[:, None])
    return place(samples.rows(received), surviving, orphaned_masses, other, decided, layout)


class SurvivorLayout(NamedTuple):
    """How the values of the survivors are laid out: their sum per sample (batch,), and one number per sample spread."""

    sum: Callable[[Tensor], Tensor]
    spread: Callable[[Tensor], Tensor]


def place(
    received: Tensor,
    surviving: Tensor,
    orphaned: Sequence[Tensor],
    other: tuple[Tensor, Mass] | None,
    decided: Cut,
    layout: SurvivorLayout,
) -> Tensor:
    """Add the rest of the mass to the survivors, who `received` some over conv and linear readers: PLRP-M conserves it.

    `other` is the relevance that came to the survivors over other readers, which is rescaled per sign, and the mass of
    all of it. Mass that finds nobody (orphaned, per sign), and mass of `other` whose sign has no survivor, goes to the
    survivors in proportion to their relevance of that sign; to all of them if that sign has none.
    """
    unplaced = list(orphaned)
    if other is not None:
        values, before = other
        after = layout.sum(values.clamp(min=0)), layout.sum(values.clamp(max=0)).neg()
        up, down = (layout.spread(ratio(b, a, decided.pruned)) for b, a in zip(before, after, strict=True))
        received = received + values * torch.where(values > 0, up, down)
        for sign in range(2):
            unplaced[sign] = unplaced[sign] + torch.where(after[sign] > 0, 0.0, before[sign])
    up, down = (layout.spread(factor) for factor in placing(unplaced, decided.after))
    return received + surviving * torch.where(surviving > 0, up, down)


def hand_to_survivors(first: Any, mask: Any, like: Any, by_sign: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    """PLRP-M's second pass of a branch: the relevance that its neurons k hand to the survivors alone, and the orphaned.

    With `by_sign`, once for its positive and once for its negative contributions. `first` is a `FirstPass`, or its like
    for single neurons.
    """
    for branch, m, magnitudes in _second_pass(first, mask, by_sign):
        q, orphaned = second_quotient(m, branch.contributions(mask), magnitudes)
        yield branch.hand(q, like, mask), orphaned


def _second_pass(first: FirstPass, mask: Tensor, by_sign: bool) -> list[tuple[Branch, Tensor, Tensor | None]]:
    """The branches of the second pass, each with m_k = R_k Σ_j n_jk / d_k and the scale of n̂_k."""
    branch = first.branch
    if by_sign and not branch.one_sign:
        whole = [(part, part.contributions()) for part in branch.by_sign()]
        return [(part, first.s * n, n.abs()) for part, n in whole]
    m = first.s * (first.denominator if branch.bias is None else first.denominator - branch.bias)
    return [(branch, m, None if branch.one_sign else branch.magnitudes(mask))]


def second_quotient(m: Tensor, reached: Tensor, magnitudes: Tensor | None) -> tuple[Tensor, Tensor]:
    """q_k = m_k / n̂_k, and the orphaned mass: m_k where |n̂_k| ≤ 1e-6 · Σ_j mask_j |n_jk| (M±: Σ_j |n_jk|).

    `magnitudes` None: contributions are ≥ 0, and cancel only where there are none.
    """
    orphan = reached <= 0 if magnitudes is None else reached.abs() <= ORPHANED * magnitudes
    return torch.where(orphan, 0.0, m / torch.where(orphan, 1.0, reached)), torch.where(orphan, m, 0.0)


def placing(unplaced: Sequence[Tensor], masses: Mass) -> Mass:
    """Factors, one for the survivors of each sign, that share out mass without a place.

    Mass of a sign goes to the survivors of that sign; if it has none, to all of them in proportion to |r̃|.
    """
    whole = masses[0] + masses[1]
    (up, to_all), (down, from_all) = (
        (
            torch.where(mass > 0, lost / torch.where(mass > 0, mass, 1.0), 0.0),
            torch.where(mass > 0, 0.0, lost / torch.where(whole > 0, whole, 1.0)),
        )
        for mass, lost in zip(masses, unplaced, strict=True)
    )
    return up + to_all - from_all, down - to_all + from_all


def _flipped(new: Tensor, rows: Tensor) -> dict[str, Any]:
    """The survivors whose sign PLRP-M flipped, and how many hold relevance."""
    flipped = ((new > 0) & (rows < 0)) | ((new < 0) & (rows > 0))
    return {
        "flipped": flipped.sum(1),
        "flipped_mass": (new.abs() * flipped).sum(1),
        "neurons_after": new.count_nonzero(1),
    }


def _reapply_naively(
    relevance: Tensor, mask: Tensor, samples: Samples, arrived: Arrived, pruned: Tensor, book: Booking
) -> Tensor:
    """The rule once more on masked activations, bias and ε in the denominator: the ablation that loses mass to them."""
    new = torch.zeros_like(relevance)
    for above, branches in arrived.layers:
        for first in branches:
            branch = first.branch
            d = branch.contributions(mask, bias=branch.bias)
            s = quotient(first.given, d, first.epsilon, branch.one_sign)
            new = new + branch.hand(s, relevance, mask)
            for sign, (scaled, denominator) in ((1, (s, d)), (-1, (first.s, first.denominator))):
                if branch.bias is not None:
                    book.bias = book.bias + sign * above.sum(scaled * branch.bias) * pruned
                by_epsilon = first.given - scaled * denominator  # the relevance that ε took
                book.epsilon = book.epsilon + sign * above.sum(by_epsilon) * pruned
    if arrived.other is not None:
        new = new + arrived.other * mask
        book.dropped = samples.sum(arrived.other * (1 - mask)) * pruned
    return new
