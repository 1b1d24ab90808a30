"""Pruning that keeps the survivors as single neurons, which are all that is looked at from there on.

The formulas are those of `plrp.pruning`; here they run over neurons instead of whole tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from plrp.ledger import Booking, growth
from plrp.pruning import (
    Arrived,
    Pruning,
    Site,
    SurvivorLayout,
    lambda_columns,
    place,
    ratio,
    signed_parts,
    threshold,
    tied,
)
from plrp.rules import Branch, FirstPass
from plrp.tape.maps import Dense, Weight
from plrp.tape.samples import Samples

from . import limits, native
from .neurons import Neurons, Relevance, Rows, at_neurons, dense, mass_of, survivors, thin
from .propagation import DensePass, SparsePass, compiled_second_pass, redistribute
from .selection import cut_of, statistics


def by_neurons(relevance: Relevance, site: Site, pruning: Pruning, arrived: Arrived | None) -> bool:
    """Whether to keep the survivors as single neurons: tensors (samples, channels, *plane) cut by a share of mass.

    By PLRP-λ also tensors (samples, features), which stay tensors.
    """
    return (
        pruning.by_neuron
        and pruning.sparsity_gain is None
        and pruning.conserve
        and site.value.samples.leads(site.value.shape)
        and (len(relevance.shape) > 2 or (len(relevance.shape) == 2 and pruning.redistribution == "lambda"))
        and relevance.shape.numel() >= limits.FEWEST
        and (not isinstance(relevance, Tensor) or relevance.is_contiguous())
        and (pruning.redistribution == "lambda" or (arrived is not None and _followed(arrived, pruning)))
    )


def _followed(arrived: Arrived, pruning: Pruning) -> bool:
    """Whether all that arrived is relevance of few neurons, or can be handed to few in compiled loops."""
    passes = [one for _, branches in arrived.layers for one in branches]
    if pruning.redistribution == "M-sign" and not all(one.branch.one_sign for one in passes):
        return False  # contributions of both signs go by whole tensors; of one sign, M± is M
    if not isinstance(arrived.other, Tensor) and all(isinstance(one, SparsePass) for one in passes):
        return True
    return all(map(compiled_second_pass, passes))


def prune_neurons(
    relevance: Relevance,
    shares: tuple[float | Tensor, float | Tensor],
    pruning: Pruning,
    arrived: Arrived | None,
    book: Booking,
) -> tuple[Relevance, dict[str, Any]] | None:
    """`pruning.prune` for tensors of which few neurons survive; `shares` are p⁺ and p⁻, also per sample.

    None for PLRP-M where they are not few: its second pass is then better made by whole tensors.
    """
    if isinstance(relevance, Neurons):
        relevance = relevance.rows()
    if isinstance(relevance, Rows):
        values, offsets = relevance.values, relevance.offsets * relevance.shape[1]
    else:
        values, offsets = relevance, torch.arange(relevance.shape[0] + 1) * relevance.shape[1:].numel()
    stats = statistics(values, offsets, *shares)
    rescale = pruning.redistribution == "lambda"
    columns: dict[str, Any] = {}
    if book.active:
        columns = cut_of(stats).columns() | (lambda_columns(cut_of(stats).scales) if rescale else {})
    many = stats[:, 7] > limits.NEURONS_BELOW * relevance.shape[1:].numel()
    if isinstance(relevance, Tensor) and (relevance.dim() == 2 or bool(many.all())):
        if not rescale:
            return None
        thinned = thin(relevance, stats)
        if book.active:
            columns["tied"] = tied(signed_parts(thinned.flatten(1)))
        return thinned, columns
    surviving = survivors(relevance, stats, rescale=rescale)
    if book.active:
        columns["tied"] = _tied(surviving)
    if rescale:
        return surviving, columns
    assert arrived is not None
    new = surviving.holding(_redistribute(surviving, stats, arrived, columns))
    if pruning.redistribution == "M":
        book.grown = growth(torch.add(*cut_of(stats).before), new.sum(new.values.abs()))
    if book.active:
        flipped = new.values.sign() * surviving.values.sign() < 0
        columns["flipped"] = new.sum(flipped).long()
        columns["flipped_mass"] = new.sum(new.values.abs() * flipped)
        columns["neurons_after"] = new.sum(new.values != 0).long()
    return new, columns


def prune_positions(relevance: Relevance, site: Site, pruning: Pruning, book: Booking) -> Tensor | None:
    """`pruning.prune` of whole tokens by PLRP-λ: channels last of a tensor, nothing booked; None where it is not so."""
    samples, shape = site.value.samples, relevance.shape
    by_mass = pruning.redistribution == "lambda" and pruning.conserve and pruning.sparsity_gain is None
    if book.active or pruning.unit != "position" or not by_mass or not isinstance(relevance, Tensor):
        return None
    alone = samples.batch == 1
    if not (samples.leads(shape) or alone) or len(shape) < 3 - alone:
        return None
    if site.channel_axis != len(shape) - 1 or site.channel_axis == samples.axis:
        return None
    tokens = relevance.reshape(samples.batch, -1, shape[-1])
    if not (tokens.shape[1] > 1 and shape[-1] > 1):
        return None
    if native.available(tokens):
        out, (count, width) = torch.empty_like(tokens), tokens.shape[1:]
        scratch = native.empty(torch.float64, 2 * samples.batch * count), native.empty(torch.float64, count)
        sizes = samples.batch, count, width
        native.call("prune_tokens", tokens, *sizes, *site.shares, *scratch, out, native.threads())
        return out.view(shape)
    signs = tokens.clamp(min=0), tokens.clamp(max=0)
    sums = [part.sum(2, dtype=torch.float64).abs() for part in signs]
    theta = [threshold(part, p) for part, p in zip(sums, site.shares, strict=True)]
    stays = (sums[0] > theta[0][:, None]) | (sums[1] > theta[1][:, None])
    pruned = ((sums[0] + sums[1] > 0) & ~stays).any(1)
    up, down = (
        (ratio(part.sum(1), (part * stays).sum(1), pruned)[:, None] * stays).to(tokens.dtype)[..., None]
        for part in sums
    )
    return signs[0].mul_(up).add_(signs[1].mul_(down)).view(shape)


def _tied(surviving: Neurons) -> Tensor:
    """`pruning.tied` of single neurons."""
    shares = []
    for part in signed_parts(surviving.values):
        held = torch.where(part > 0, part, torch.inf)
        least = part.new_full((surviving.shape[0],), torch.inf).scatter_reduce_(0, surviving.sample, held, "amin")
        count, mass = surviving.sum((part == least[surviving.sample]) & (part > 0)), surviving.sum(part)
        shares.append(torch.where((count > 1) & (mass > 0), least * count / mass, 0.0))
    return torch.maximum(*shares)


def _redistribute(surviving: Neurons, stats: Tensor, arrived: Arrived, columns: dict[str, Any]) -> Tensor:
    """PLRP-M for single survivors; see `pruning._redistribute`."""
    decided = cut_of(stats)
    received = torch.zeros_like(surviving.values)
    orphaned_masses = [surviving.values.new_zeros(surviving.shape[0], dtype=torch.float64) for _ in range(2)]
    for one in (one for _, passes in arrived.layers for one in passes):
        above = one.sparse() if isinstance(one, DensePass) else one
        handed, orphaned = redistribute(above, surviving)
        received += handed
        for sign, part in enumerate(signed_parts(orphaned)):
            orphaned_masses[sign] += above.neurons.sum(part)
    columns["orphaned"] = orphaned_masses[0] + orphaned_masses[1]
    other = None
    if arrived.other is not None:
        positive, negative = mass_of(arrived.other, Samples.first_axis(surviving.shape[0]))
        other = at_neurons(arrived.other, surviving), (positive.double(), negative.double())

    def spread(per_sample: Tensor) -> Tensor:
        per_sample = per_sample.to(surviving.values.dtype)
        return per_sample if len(per_sample) == 1 else per_sample[surviving.sample]

    layout = SurvivorLayout(surviving.sum, spread)
    new = place(received, surviving.values, orphaned_masses, other, decided, layout)
    if bool(decided.pruned.all()):
        return new
    return torch.where(decided.pruned[surviving.sample], new, surviving.values)


def dense_arrived(arrived: Arrived) -> Arrived:
    """The relevance that arrived as ordinary tensors, for PLRP-M on whole tensors."""
    layers: list[tuple[Samples, Sequence[Any]]] = []
    for samples, branches in arrived.layers:  # without branches that hand nothing down: γ's of negative outputs, say
        handing = [one.dense() if isinstance(one, SparsePass) else one for one in branches if one.given.any()]
        layers.append((samples, [_narrowed(one, samples) for one in handing]))
    return Arrived(layers, None if arrived.other is None else dense(arrived.other))


def _narrowed(one: FirstPass, above: Samples) -> FirstPass:
    """The pass without the neurons of a dense layer that hand nothing down in any sample."""
    branch = one.branch
    if not above.ordinary or not isinstance(branch.map, Dense) or one.s.dim() != 2:
        return one
    live = one.s.ne(0).any(0)
    if live.sum() * 2 > live.numel():
        return one
    parts = tuple(part._replace(weight=Weight(part.weight.full[live])) for part in branch.parts)
    bias = None if branch.bias is None else branch.bias[live]
    narrow: Branch = replace(branch, parts=parts, bias=bias, share=1.0, denominator=None)
    return FirstPass(narrow, one.given[:, live], one.s[:, live], one.denominator[:, live], one.epsilon)
