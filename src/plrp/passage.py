"""Constraints on a walk, and the notes of one walk that a later walk needs.

Pruning is not linear: half of a relevance would be cut elsewhere than the whole. Its effect on each neuron is a factor
r̂_j / r_j: 0 where it cut, λ where it scaled. A walk can record these factors (`Record`), and a later walk can hold
them fixed (`Passage`); parts of a relevance then add up to the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .ledger import signed_mass
from .request import Request
from .tape.samples import Samples
from .tape.values import Value
from .targets import Start


@dataclass
class Mask:
    """The neurons of a tensor that hand relevance down: `keep` is boolean and broadcasts against it.

    `replaced`: or the relevance that takes the place of the whole one, computed from the walk and the whole one.
    """

    name: str  # of the layer
    value: Value
    keep: Tensor
    label: str  # for the ledger
    replaced: Callable[[Any, Tensor], Tensor] | None = None


@dataclass
class Passage:
    """The constraints of a walk, by the id of a value.

    - `masks`: where only some neurons hand relevance down;
    - `factors`: each neuron's factor at the pruned tensors, held fixed;
    - `only_through`: relevance that goes around a masked layer is dropped;
    - `watched`: tensors whose relevance the masks that replace it read from the walk's record.
    """

    masks: dict[int, Mask] = field(default_factory=dict)
    factors: dict[int, Tensor] = field(default_factory=dict)
    only_through: bool = False
    watched: Sequence[Value] = ()


class Case(NamedTuple):
    """One walk of a sweep: its request, and its constraints if it has any."""

    request: Request
    passage: Passage | None = None


class CaseResult(NamedTuple):
    """The results of one case."""

    relevance: list[Tensor]  # of the inputs
    layers: dict[str, Tensor]  # by name, at the inputs of the layers that were wanted
    grown: Tensor | None = None  # the largest factor by which PLRP-M multiplied a tensor's ‖R‖₁, (batch,)
    start: Start | None = None  # where it is not that of the walk


class Record:
    """The notes of a walk, by the id of a value.

    - `relevance`: at the `watched` tensors, after their pruning and their mask;
    - `factors`: r̂_j / r_j at the pruned tensors; None where nobody needs them.
    """

    def __init__(self, watched: Iterable[Value], factors: bool = True) -> None:
        self.watched = {id(value) for value in watched}
        self.relevance: dict[int, Tensor] = {}
        self.factors: dict[int, Tensor] | None = {} if factors else None


def pruning_factor(before: Tensor, after: Tensor, samples: Samples) -> Tensor:
    """r̂_j / r_j. Where r_j = 0: one in samples that pruning left as they were, zero in all others."""
    untouched = (samples.rows(before) == samples.rows(after)).all(1)
    empty = samples.spread(untouched.to(before.dtype), before.dim()).expand_as(before)
    return torch.where(before == 0, empty, after / torch.where(before == 0, 1.0, before))


def held_columns(before: Tensor, after: Tensor, factor: Tensor, samples: Samples) -> dict[str, Any]:
    """The ledger's columns of a tensor whose neurons were multiplied by held factors."""
    rows, cut = samples.rows(before), samples.rows(before * (factor == 0))
    masses = zip(signed_mass(cut), signed_mass(rows), strict=True)
    shares = [lost / torch.where(mass > 0, mass, 1.0) for lost, mass in masses]
    counts = rows.count_nonzero(1), samples.rows(after).count_nonzero(1)
    names = ("neurons_before", "neurons_after", "p_positive", "p_negative")
    return dict(zip(names, (*counts, *shares), strict=True))
