"""What is cut in a layer, and where its mass goes (the paper's section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .composites import nearest
from .fast import native
from .fast.neurons import Neurons, Relevance, Rows, at_neurons, dense, rescaling, survivors, thinned
from .fast.propagation import FEWEST, NEURONS_BELOW, Followed, again, follow, mass_of
from .fast.selection import countable, statistics, thresholds
from .fast.switch import fast
from .ledger import Mass, signed_mass
from .rules import ORPHANED, Booking, Handed, quotient
from .tape.samples import Samples

if TYPE_CHECKING:
    from .tape.trace import Trace
    from .tape.values import Op, Value


@dataclass(frozen=True)
class Pruning:
    """How to thin relevance at the input of every conv and linear layer but the first ones.

    - `p`: the share of the relevance mass to prune per layer, sample and sign, in [0, 1); None leaves it to
      `sparsity_gain`.
    - `p_negative`: the same for negative relevance, where it is to differ.
    - `redistribution`: where pruned mass goes: `"lambda"` scales the survivors, `"M"` applies the layer's rule to them
      again.
    - `conserve=False`: the ablations; λ = 1, or M re-applied naively, so that pruned mass is lost.
    - `sparsity_gain`: prune an entry only while it buys at least this much sparsity per share of mass; `measure` is the
      sparsity: the share of `"zeros"`, or the `"gini"` index.
    - `layers`: p for single layers, by name.
    """

    p: float | None = 0.15
    p_negative: float | None = None
    redistribution: str = "lambda"
    conserve: bool = True
    sparsity_gain: float | None = None
    measure: str = "zeros"
    layers: Mapping[str, float] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        given = {"p": self.p, "p_negative": self.p_negative}
        given.update({f"layers['{name}']": p for name, p in (self.layers or {}).items()})
        for name, p in given.items():
            if p is None:
                continue
            if not isinstance(p, int | float) or isinstance(p, bool) or not 0 <= p < 1:
                raise ValueError(f"{name} is the share of mass to prune, 0 ≤ {name} < 1, got {p!r}.")
        if self.redistribution not in ("lambda", "M"):
            raise ValueError(f"redistribution is 'lambda' or 'M', got {self.redistribution!r}.")
        if self.measure not in ("zeros", "gini"):
            raise ValueError(f"measure is 'zeros' or 'gini', got {self.measure!r}.")
        gain = self.sparsity_gain
        if gain is not None and not (isinstance(gain, int | float) and gain > 0 and math.isfinite(gain)):
            raise ValueError(f"sparsity_gain is a number > 0 (1 is a natural choice), got {gain!r}.")
        if self.p is None and gain is None:
            raise ValueError("p=None leaves the choice to sparsity_gain: give one, for example sparsity_gain=1.0.")
        if self.layers is not None:
            object.__setattr__(self, "layers", MappingProxyType(dict(self.layers)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Pruning.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        default = {f.name: f.default for f in fields(self)}
        shown = [f"p={self.p}"]
        shown += [f"{k}={v!r}" for k, v in self.to_dict().items() if k != "p" and v != default[k]]
        return f"Pruning({', '.join(shown)})"

    @property
    def label(self) -> str:
        """How tables call it: PLRP-λ or PLRP-M."""
        name = "PLRP-λ" if self.redistribution == "lambda" else "PLRP-M"
        return name if self.conserve else f"{name} (not conserving)"

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain data."""
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**settings, "layers": None if self.layers is None else dict(self.layers)}

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
        for op in trace.layers:
            if not op.first:
                sites.setdefault(id(op.inputs[0]), Site(op.inputs[0], [], self.p, self.p_negative)).readers.append(op)
        self._apply_layers(trace, sites)
        return sites

    def _apply_layers(self, trace: Trace, sites: dict[int, Site]) -> None:
        layers = {op.name: op for op in trace.layers}
        prunable = [name for name, op in layers.items() if not op.first]
        chosen: dict[int, str] = {}
        for name, p in (self.layers or {}).items():
            if name not in layers:
                raise ValueError(
                    f"Pruning names layer '{name}', which the model does not have{nearest(name, prunable)}."
                )
            if layers[name].first:
                raise ValueError(f"'{name}' is a first layer, whose input is not pruned{nearest(name, prunable)}.")
            value = layers[name].inputs[0]
            other = chosen.setdefault(id(value), name)
            assert self.layers is not None
            if self.layers[other] != p:
                raise ValueError(
                    f"'{other}' and '{name}' read the same tensor, which cannot be pruned with both "
                    f"p = {self.layers[other]} and p = {p}; give one of them, or the same p."
                )
            sites[id(value)].p = sites[id(value)].p_negative = p


@dataclass
class Site:
    """A tensor that is pruned: the input of these layers."""

    value: Value
    readers: list[Op]
    p: float | Tensor | None  # one per sample where several prunings are stacked
    p_negative: float | Tensor | None

    @property
    def cuts(self) -> bool:
        """Whether any share of the mass is to be cut."""
        return self.p is None or bool(self.p) or bool(self.p_negative)

    @property
    def shares(self) -> tuple[float | Tensor, float | Tensor]:
        """p of the positive and of the negative part."""
        assert self.p is not None
        return self.p, self.p if self.p_negative is None else self.p_negative

    @property
    def name(self) -> str:
        """The names of the layers that read it."""
        return ", ".join(op.name for op in self.readers)


@dataclass
class Arrived:
    """What reached a tensor, kept apart for PLRP-M: over its conv and linear readers, and over all others."""

    layers: list[tuple[Samples, Sequence[Handed | Followed]]] = field(default_factory=list)  # and their outputs
    other: Relevance | None = None

    def dense(self) -> Arrived:
        """The same as ordinary tensors."""
        layers: list[tuple[Samples, Sequence[Handed | Followed]]] = [
            (samples, [h.dense() if isinstance(h, Followed) else h for h in branches])
            for samples, branches in self.layers
        ]
        return Arrived(layers, None if self.other is None else dense(self.other))

    @property
    def followed(self) -> bool:
        """Whether all that arrived is relevance of few neurons, or can be handed to few again in compiled loops."""
        handed = [one for _, branches in self.layers for one in branches]
        if not isinstance(self.other, Tensor) and all(isinstance(one, Followed) for one in handed):
            return True
        return all(_compiled(one) for one in handed)


def _compiled(one: Handed | Followed) -> bool:
    """Whether the compiled second pass takes it: contributions ≥ 0, so that rounding is not amplified either."""
    geometry = one.plan.geometry if isinstance(one, Followed) else one.geometry
    if geometry is None or geometry.groups > 1 or not native.available(one.given):
        return False
    return one.branch.one_sign and len(one.branch.parts) == 1


@dataclass
class Cut:
    """Which neurons of a tensor survive, per sample: rows (batch, n)."""

    theta: Mass  # per sign, (batch,)
    survivors: Tensor  # the relevance of those kept, zero elsewhere
    before: Mass
    after: Mass
    counts: tuple[Tensor, Tensor]  # non-zero neurons before and after, (batch,)

    @classmethod
    def of(cls, stats: Tensor, survivors: Tensor) -> Cut:
        """From the statistics of the selection, one row per sample."""
        up, down, before_up, before_down, pruned_up, pruned_down, entries, kept = stats.unbind(1)
        return cls(
            theta=(up, down),
            survivors=survivors,
            before=(before_up, before_down),
            after=(before_up - pruned_up, before_down - pruned_down),
            counts=(entries.long(), kept.long()),
        )

    @property
    def pruned(self) -> Tensor:
        """(batch,): whether any non-zero entry goes."""
        return self.counts[0] != self.counts[1]

    @property
    def reached(self) -> Mass:
        """The share of mass that was pruned, per sign."""
        positive, negative = (
            torch.where(b > 0, (b - a) / torch.where(b > 0, b, torch.ones_like(b)), torch.zeros_like(b)).clamp(min=0)
            for b, a in zip(self.before, self.after, strict=True)
        )
        return positive, negative

    def columns(self) -> dict[str, Tensor]:
        """What the ledger shows of it."""
        names = ("neurons_before", "neurons_after", "theta_positive", "theta_negative", "p_positive", "p_negative")
        return dict(zip(names, (*self.counts, *self.theta, *self.reached), strict=True))

    @property
    def scales(self) -> Mass:
        """λ per sign: mass before / mass after; 1 where nothing was pruned or nothing is left to scale."""
        positive, negative = (_ratio(b, a, self.pruned) for b, a in zip(self.before, self.after, strict=True))
        return positive, negative


def cut(rows: Tensor, pruning: Pruning, p: float | None, p_negative: float | None) -> Cut:
    """Decide what goes: θ per sample and sign, by share of mass, by sparsity gain, or by both."""
    p_negative = p if p_negative is None else p_negative
    if pruning.sparsity_gain is None and p is not None and p_negative is not None and countable(rows):
        offsets = torch.arange(len(rows) + 1) * rows.shape[1]
        stats = statistics(rows.contiguous(), offsets, p, p_negative)
        up, down = stats[:, :1].float(), -stats[:, 1:2].float()
        return Cut.of(stats, torch.where((rows > up) | (rows < down), rows, 0.0))
    theta = thresholds(rows, p or 0.0, p_negative or 0.0)
    if pruning.sparsity_gain is not None:
        measure = _zeros_gain if pruning.measure == "zeros" else _gini_gain
        parts = rows.clamp(min=0), rows.clamp(max=0).neg()
        by_gain = [measure(part, pruning.sparsity_gain) for part in parts]
        positive, negative = (
            gain if share is None else torch.minimum(mass, gain)
            for mass, gain, share in zip(theta, by_gain, (p, p_negative), strict=True)
        )
        theta = positive, negative
    keep = (rows > theta[0][:, None]) | (rows < -theta[1][:, None])
    survivors = torch.where(keep, rows, torch.zeros_like(rows[:, :1]))
    counts = rows.count_nonzero(1), keep.sum(1)
    return Cut(theta, survivors, signed_mass(rows), signed_mass(survivors), counts)


def _zeros_gain(values: Tensor, gain: float) -> Tensor:
    """θ for s = share of zeros: an entry v gains mean/v, so prune v ≤ mean/g; the largest always survives."""
    if values.shape[1] == 0:
        return values.new_zeros(values.shape[0])
    mean = values.sum(1, dtype=torch.float64) / values.shape[1]
    gains = mean[:, None] / values.double()  # ∞ for zeros, which are pruned already
    fits = (gains >= gain) & (values < values.amax(1, keepdim=True))
    return torch.where(fits, values, torch.zeros_like(values)).amax(1)


def _gini_gain(values: Tensor, gain: float) -> Tensor:
    """θ for s = Gini index: prune tie groups in ascending order while their gain is ≥ g.

    For the group of entries k0 < i ≤ k1 (of n, ascending), with S_k = Σ_{i>k} v_i and T_k = Σ_{i>k} i v_i:
    gain = 2 S_0 (T_k1 − k̄ S_k1) / (n S_k1 S_k0), k̄ the group's mean rank.
    """
    batch, n = values.shape
    if n == 0:
        return values.new_zeros(batch)
    ordered = values.sort(1).values
    v = ordered.double()
    rank = torch.arange(1, n + 1, dtype=torch.float64, device=values.device)
    zero = v.new_zeros(batch, 1)
    # Tails by cumulating from the large end: S[:, k], T[:, k] for k = 0 … n.
    s = torch.cat([v.flip(1).cumsum(1).flip(1), zero], 1)
    t = torch.cat([(rank * v).flip(1).cumsum(1).flip(1), zero], 1)
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    begins = torch.ones_like(last)
    begins[:, 1:] = last[:, :-1]
    position = torch.arange(n, device=values.device).expand(batch, n)
    k0 = torch.where(begins, position, torch.zeros_like(position)).cummax(1).values  # entries before the group
    k1 = position + 1
    s1, t1, s0 = s[:, 1:], t[:, 1:], s.gather(1, k0)
    mean_rank = (k0 + 1 + k1).double() / 2
    denominator = n * s1 * s0
    gains = 2 * s[:, :1] * (t1 - mean_rank * s1) / torch.where(denominator > 0, denominator, torch.ones_like(s1))
    fits = (gains >= gain) | (ordered == 0)  # zeros are pruned already
    fits &= ordered < ordered[:, -1:]
    # Stop at the first group that gains too little.
    stopped = (last & ~fits).int().cummax(1).values.bool()
    return torch.where(last & fits & ~stopped, ordered, torch.zeros_like(ordered)).amax(1)


# --- where pruned mass goes -------------------------------------------------------------------------------------------


def prune(
    relevance: Relevance, site: Site, pruning: Pruning, arrived: Arrived | None, book: Booking, sparse: bool = True
) -> tuple[Relevance, dict[str, Any]]:
    """Prune the relevance of one tensor. Returns the new relevance and the ledger's columns; books what was lost."""
    if sparse and by_neurons(relevance, site, pruning, arrived):
        found = prune_neurons(relevance, site, pruning, arrived, book)
        if found is not None:
            return found
    relevance = dense(relevance)
    if arrived is not None:
        arrived = arrived.dense()
    samples = site.value.samples
    rows = samples.rows(relevance)
    assert not isinstance(site.p, Tensor)
    assert not isinstance(site.p_negative, Tensor)
    chosen = cut(rows, pruning, site.p, site.p_negative)
    columns: dict[str, Any] = chosen.columns() if book.active else {}
    if pruning.redistribution == "lambda":
        new = _rescale(rows, chosen, pruning, book, columns)
    else:
        assert arrived is not None
        keep = samples.unrows(chosen.survivors != 0, relevance.shape).to(relevance.dtype)
        if pruning.conserve:
            again = _reapply(relevance, rows, keep, chosen, samples, arrived, columns)
        else:
            again = _reapply_naively(relevance, keep, samples, arrived, chosen.pruned, book)
        new = torch.where(chosen.pruned[:, None], samples.rows(again), rows)
        columns.update(_flipped(new, rows) if book.active else {})
    return samples.unrows(new, relevance.shape), columns


def by_neurons(relevance: Relevance, site: Site, pruning: Pruning, arrived: Arrived | None) -> bool:
    """Whether to keep the survivors as single neurons: tensors (samples, channels, *plane) cut by a share of mass."""
    return (
        fast()
        and pruning.sparsity_gain is None
        and site.value.samples.leads(site.value.shape)
        and len(relevance.shape) > 2
        and relevance.shape.numel() >= FEWEST
        and (not isinstance(relevance, Tensor) or relevance.is_contiguous())
        and (pruning.redistribution == "lambda" or (pruning.conserve and arrived is not None and arrived.followed))
        and pruning.conserve
    )


def prune_neurons(
    relevance: Relevance, site: Site, pruning: Pruning, arrived: Arrived | None, book: Booking
) -> tuple[Relevance, dict[str, Any]] | None:
    """The same for tensors of which few neurons survive, which are all that is looked at from here on.

    None for PLRP-M where they are not few: its second pass is then better made by whole tensors.
    """
    if isinstance(relevance, Neurons):
        relevance = relevance.rows()
    if isinstance(relevance, Rows):
        values, offsets = relevance.values, relevance.offsets * relevance.shape[1]
    else:
        values, offsets = relevance, torch.arange(relevance.shape[0] + 1) * relevance.shape[1:].numel()
    stats = statistics(values, offsets, *site.shares).to(values.device)
    scaled = pruning.redistribution == "lambda"
    if isinstance(relevance, Tensor) and bool((stats[:, 7] > NEURONS_BELOW * relevance.shape[1:].numel()).all()):
        return _many(relevance, stats, book) if scaled else None
    kept = survivors(relevance, stats, rescale=scaled)
    columns: dict[str, Any] = Cut.of(stats, kept.values).columns() if book.active else {}
    if scaled:
        if book.active:
            columns["lambda_positive"], columns["lambda_negative"] = rescaling(stats).unbind(1)
            columns["orphaned"] = columns["flipped"] = columns["flipped_mass"] = 0
        return kept, columns
    assert arrived is not None
    new = kept.holding(_reapply_neurons(kept, stats, arrived, columns))
    if book.active:
        turned = new.values * kept.values < 0
        columns["flipped"] = new.sum(turned).long()
        columns["flipped_mass"] = new.sum(new.values.abs() * turned)
        columns["neurons_after"] = new.sum(new.values != 0).long()
    return new, columns


def _many(relevance: Tensor, stats: Tensor, book: Booking) -> tuple[Tensor, dict[str, Any]]:
    """PLRP-λ of a tensor of which so many neurons survive that they are better kept in place."""
    columns: dict[str, Any] = {}
    if book.active:
        columns |= Cut.of(stats, relevance).columns()
        columns["lambda_positive"], columns["lambda_negative"] = rescaling(stats).unbind(1)
        columns["orphaned"] = columns["flipped"] = columns["flipped_mass"] = 0
    return thinned(relevance, stats), columns


def _reapply_neurons(kept: Neurons, stats: Tensor, arrived: Arrived, columns: dict[str, Any]) -> Tensor:
    """PLRP-M for single survivors; see `_reapply`."""
    pruned = stats[:, 6] != stats[:, 7]
    total = torch.zeros_like(kept.values)
    homeless = [kept.values.new_zeros(kept.shape[0], dtype=torch.float64) for _ in range(2)]
    for _, branches in arrived.layers:
        for one in branches:
            above = one if isinstance(one, Followed) else follow(one)
            received, orphaned = again(above, kept)
            total += received
            for sign, part in enumerate((orphaned.clamp(min=0), orphaned.clamp(max=0).neg())):
                homeless[sign] += above.neurons.sum(part)
    columns["orphaned"] = homeless[0] + homeless[1]
    masses = [stats[:, 2] - stats[:, 4], stats[:, 3] - stats[:, 5]]
    if arrived.other is not None:
        other = arrived.other
        held = at_neurons(other, kept)
        before = mass_of(other, Samples.first_axis(kept.shape[0]))
        after = [kept.sum(part) for part in (held.clamp(min=0), held.clamp(max=0).neg())]
        scales = [_each(_ratio(b.double(), a, pruned), kept) for b, a in zip(before, after, strict=True)]
        total += held * torch.where(held > 0, scales[0], scales[1])
        for sign in range(2):
            homeless[sign] += torch.where(after[sign] > 0, 0.0, before[sign].double())
    whole = masses[0] + masses[1]
    for sign, part in enumerate((kept.values.clamp(min=0), kept.values.clamp(max=0))):
        has = masses[sign] > 0
        own = torch.where(has, homeless[sign] / torch.where(has, masses[sign], 1.0), 0.0)
        everyone = torch.where(has, 0.0, homeless[sign] / torch.where(whole > 0, whole, 1.0)) * (1 - 2 * sign)
        if bool(own.any()):
            total += part * _each(own, kept)
        if bool(everyone.any()):
            total += kept.values.abs() * _each(everyone, kept)
    if bool(pruned.all()):
        return total
    return torch.where(pruned[kept.sample], total, kept.values)


def _each(per_sample: Tensor, neurons: Neurons) -> Tensor:
    """A number per sample as one per neuron."""
    per_sample = per_sample.to(neurons.values.dtype)
    return per_sample if len(per_sample) == 1 else per_sample[neurons.sample]


def _flipped(new: Tensor, rows: Tensor) -> dict[str, Any]:
    """The survivors whose sign PLRP-M turned, and how many hold relevance."""
    flipped = ((new > 0) & (rows < 0)) | ((new < 0) & (rows > 0))
    return {
        "flipped": flipped.sum(1),
        "flipped_mass": (new.abs() * flipped).sum(1),
        "neurons_after": new.count_nonzero(1),
    }


def _rescale(rows: Tensor, chosen: Cut, pruning: Pruning, book: Booking, columns: dict[str, Any]) -> Tensor:
    """PLRP-λ: the survivors of each sign times mass before / mass after."""
    scales = chosen.scales
    if not pruning.conserve:
        scales = torch.ones_like(scales[0]), torch.ones_like(scales[1])
        lost = signed_mass(rows - chosen.survivors)
        book.dropped = lost[0] - lost[1]
    columns["lambda_positive"], columns["lambda_negative"] = scales
    columns["orphaned"] = columns["flipped"] = columns["flipped_mass"] = 0
    up, down = (s.to(rows.dtype)[:, None] for s in scales)
    return chosen.survivors.mul_(torch.where(chosen.survivors > 0, up, down))


def _ratio(before: Tensor, after: Tensor, pruned: Tensor) -> Tensor:
    """before / after; exactly 1 for samples of which nothing was pruned, and where nothing is left to scale."""
    scaled = pruned & (after > 0)
    return torch.where(scaled, before / torch.where(scaled, after, torch.ones_like(after)), torch.ones_like(after))


def _reapply(
    relevance: Tensor,
    rows: Tensor,
    keep: Tensor,
    chosen: Cut,
    samples: Samples,
    arrived: Arrived,
    columns: dict[str, Any],
) -> Tensor:
    """PLRP-M: each neuron k above hands m_k, what it handed down in the first pass, to the survivors alone.

    Nobody to hand it to (orphaned), and mass that came over a skip whose sign has no survivor, goes to the survivors in
    proportion to their relevance of that sign; to all of them if that sign has none.
    """
    again = torch.zeros_like(relevance)
    homeless = [rows.new_zeros(samples.batch) for _ in range(2)]
    for above, branches in arrived.layers:
        for handed in branches:
            assert isinstance(handed, Handed)
            handed = handed.narrowed() if above.ordinary else handed
            branch = handed.branch
            total = handed.denominator if branch.bias is None else handed.denominator - branch.bias
            m = handed.s * total
            reached = branch.contributions(keep)
            if branch.one_sign:
                small = reached <= 0  # contributions ≥ 0 cancel only where there are none
            else:
                small = reached.abs() <= ORPHANED * branch.magnitudes(keep)
            orphaned = torch.where(small, m, torch.zeros_like(m[:1, :1]))
            q = m.div_(reached.masked_fill_(small, torch.inf))  # nothing from the orphaned
            again += branch.hand(q, relevance, keep)
            if orphaned.any():
                for sign, mass in enumerate(signed_mass(above.rows(orphaned))):
                    homeless[sign] = homeless[sign] + mass
    columns["orphaned"] = homeless[0] + homeless[1]
    if isinstance(arrived.other, Tensor):
        other = samples.rows(arrived.other)
        kept = other * (chosen.survivors != 0)
        before, after = signed_mass(other), signed_mass(kept)
        up, down = (_ratio(b, a, chosen.pruned).to(rows.dtype)[:, None] for b, a in zip(before, after, strict=True))
        again += samples.unrows(kept * torch.where(kept > 0, up, down), relevance.shape)
        for sign in range(2):
            homeless[sign] = homeless[sign] + torch.where(after[sign] > 0, torch.zeros_like(before[sign]), before[sign])
    return again + samples.unrows(_housed(chosen.survivors, homeless, chosen.after), relevance.shape)


def _housed(survivors: Tensor, homeless: Sequence[Tensor], masses: Sequence[Tensor]) -> Tensor:
    """Homeless mass of each sign, shared out to the survivors of that sign, or to all if it has none."""
    whole = masses[0] + masses[1]
    found = torch.zeros_like(survivors)
    for sign, part in enumerate((survivors.clamp(min=0), survivors.clamp(max=0))):
        direction = 1.0 if sign == 0 else -1.0
        own = homeless[sign] / torch.where(masses[sign] > 0, masses[sign], torch.ones_like(whole))
        own = torch.where(masses[sign] > 0, own, torch.zeros_like(own))
        everyone = homeless[sign] / torch.where(whole > 0, whole, torch.ones_like(whole)) * direction
        everyone = torch.where(masses[sign] > 0, torch.zeros_like(everyone), everyone)
        found += part * own.to(part.dtype)[:, None] + survivors.abs() * everyone.to(part.dtype)[:, None]
    return found


def _reapply_naively(
    relevance: Tensor, keep: Tensor, samples: Samples, arrived: Arrived, pruned: Tensor, book: Booking
) -> Tensor:
    """The rule again with masked activations, bias and ε in the denominator: the ablation that loses mass to them."""
    again = torch.zeros_like(relevance)
    for above, branches in arrived.layers:
        for handed in branches:
            assert isinstance(handed, Handed)
            branch = handed.branch
            d = branch.contributions(keep)
            d = d if branch.bias is None else d + branch.bias
            s = quotient(handed.given, d, handed.epsilon, branch.one_sign)
            again += branch.hand(s, relevance, keep)
            for sign, (scaled, denominator) in ((1, (s, d)), (-1, (handed.s, handed.denominator))):
                if branch.bias is not None:
                    book.bias = book.bias + sign * above.sum(scaled * branch.bias) * pruned
                taken = handed.given - scaled * denominator  # what ε kept of the relevance given
                book.epsilon = book.epsilon + sign * above.sum(taken) * pruned
    if isinstance(arrived.other, Tensor):
        again += arrived.other * keep
        book.dropped = samples.sum(arrived.other * (1 - keep)) * pruned
    return again
