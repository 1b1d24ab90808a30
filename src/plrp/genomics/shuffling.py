"""Sequences shuffled so that the counts of their dinucleotides stay: the usual null of regulatory genomics."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np


def dinucleotide_shuffle(letters: str | Sequence[str], seed: int = 0) -> list[str]:
    """Each sequence in a random order with the same dinucleotides, first and last letter (Altschul & Erickson 1985).

    A sequence is a walk over its letters, every dinucleotide a step. Each letter's last step out is drawn at random
    until all of these lead to the walk's last letter; the other steps come in random order before it.

    >>> dinucleotide_shuffle("ACGTTGCAACGGT", seed=1)
    ['ACAACGCGGTTGT']
    """
    rng = np.random.default_rng(seed)
    return [_shuffled(one, rng) for one in ([letters] if isinstance(letters, str) else letters)]


def _shuffled(letters: str, rng: np.random.Generator) -> str:
    if len(letters) < 3:
        return letters
    steps: dict[str, list[str]] = {}
    for here, there in pairwise(letters):
        steps.setdefault(here, []).append(there)
    last = letters[-1]
    while True:
        for ways in steps.values():
            order = rng.permutation(len(ways))
            ways[:] = [ways[i] for i in order]
        exits = {here: ways[-1] for here, ways in steps.items() if here != last}
        if all(_leads_to(here, last, exits) for here in exits):
            break
    onward = {here: iter(ways) for here, ways in steps.items()}
    walk = [letters[0]]
    for _ in range(len(letters) - 1):
        walk.append(next(onward[walk[-1]]))
    return "".join(walk)


def _leads_to(here: str, last: str, exits: dict[str, str]) -> bool:
    for _ in range(len(exits) + 1):
        if here == last:
            return True
        here = exits[here]
    return False
