"""Seqlets: the stretches of sequence that survive pruning, their common patterns, and the motifs that match.

From single explanations to motifs in three steps: `find_seqlets` cuts out contiguous surviving regions, `find_patterns`
aligns similar ones into position weight matrices, and `match_motifs` finds the JASPAR motifs of matrices (and of single
seqlets) by TOMTOM, with p-values.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from plrp.errors import needed
from plrp.progress import progress

from .motifs import Motif, jaspar_motifs
from .sequences import Bools, Floats, Ints, OneHot

Table = TypeVar("Table", bound="Columns")


@dataclass(frozen=True)
class Columns:
    """A table as a dataclass whose fields are arrays of one length, a row of the table at each index."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def chosen(self: Table, rows: npt.ArrayLike) -> Table:
        """The given `rows` (numbers or a mask), in their order."""
        index = np.asarray(rows)
        return replace(self, **{column.name: getattr(self, column.name)[index] for column in fields(self)})

    @classmethod
    def joined(cls: type[Table], tables: Sequence[Table]) -> Table:
        """The rows of several tables, one table after the other."""
        return cls(*(np.concatenate([getattr(one, column.name) for one in tables]) for column in fields(cls)))


@dataclass(frozen=True)
class Seqlets(Columns):
    """Regions of sequences, by column: `sequence` (row), `start`, `end` (half-open), `score` (relevance)."""

    sequence: Ints
    start: Ints
    end: Ints
    score: Floats


def find_seqlets(
    per_base: npt.ArrayLike, *, max_gap: int = 2, min_length: int = 5, threshold: float = 0.0, smooth: int = 5
) -> Seqlets:
    """Contiguous surviving regions of relevance per base, (sequence, position), in order, each of one sign.

    A base survives where |relevance| > `threshold`; up to `max_gap` bases without relevance inside a region are
    bridged. Evidence for and against the prediction make two seqlets: a region is cut where the relevance, summed over
    the `smooth` bases around each survivor, changes its sign (so a single base of the other sign does not cut a motif).
    Regions under `min_length` bases are left out. Without pruning nearly every base survives, and there is nothing to
    cut out: prune first (`plrp.Pruning(p=0.25)`).

    >>> find_seqlets([[0, 1, 2, 0, 3, 0, 0, 0, 9]], max_gap=1, min_length=3).end.tolist()
    [5]
    >>> find_seqlets([[3, 2, 3, -2, -3, -2]], min_length=3).start.tolist()
    [0, 3]
    """
    values = np.asarray(per_base, np.float64)
    if values.ndim != 2:
        raise ValueError(f"Relevance per base has axes (sequence, position); this one is {values.shape}.")
    if smooth < 1 or smooth % 2 == 0:
        raise ValueError(f"smooth={smooth}: an odd number of bases, as many before a base as after it.")
    row, column = np.nonzero(np.abs(values) > threshold)
    begins = np.ones(row.size, bool)  # survivors at which a region begins
    begins[1:] = (np.diff(row) != 0) | (np.diff(column) > max_gap + 1)
    around = np.pad(values, ((0, 0), (smooth // 2, smooth // 2)))
    sign = np.sign(sum(around[row, column + offset] for offset in range(smooth)))
    # where the smoothed relevance is zero, the sign of the previous survivor counts
    sign = sign[np.maximum.accumulate(np.where((sign != 0) | begins, np.arange(row.size), 0))]
    begins[1:] |= sign[1:] * sign[:-1] < 0
    first = np.flatnonzero(begins)
    last = np.flatnonzero(np.roll(begins, -1))
    sequence, start, end = row[first], column[first], column[last] + 1
    running = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, 1)], 1)
    score = running[sequence, end] - running[sequence, start]
    return Seqlets(sequence, start, end, score).chosen(end - start >= min_length)


@dataclass(frozen=True)
class Pattern:
    """Similar seqlets: their letters as a `motif`, their mean `relevance` (4, width), and their number."""

    motif: Motif
    relevance: Floats
    count: int


def find_patterns(
    seqlets: Seqlets,
    onehot: OneHot,
    per_base: npt.ArrayLike,
    *,
    width: int = 30,
    similarity: float = 0.7,
    min_count: int = 10,
    max_patterns: int = 10,
    max_seqlets: int = 4000,
) -> list[Pattern]:
    """Group similar seqlets, strongest first, and average each group.

    A simple, deterministic relative of TF-MoDISco for a quick look: the strongest remaining seqlet seeds a group, and
    all whose cosine with it, at some shift and on either strand, is at least `similarity` join it, aligned. Then the
    group's mean replaces the seed and the group is formed once more, so that an odd seed does no harm. Matrices are
    trimmed to the positions that hold relevance and information. For a full analysis export to TF-MoDISco
    (`export.save_modisco`).
    """
    strongest = np.argsort(-np.abs(seqlets.score), kind="stable")[:max_seqlets]
    chosen = seqlets.chosen(strongest)
    letters, windows, _ = _windows(chosen, onehot, per_base, width)
    left = np.arange(len(chosen))
    patterns: list[Pattern] = []
    while left.size >= min_count and len(patterns) < max_patterns:
        seed = windows[left[0]]
        for _ in range(2):
            cosine, shift, strand = _align(seed, windows[left])
            members = cosine >= similarity
            members[0] = True
            seed = _aligned(windows[left[members]], shift[members], strand[members]).mean(0)
        joined = left[members]
        if joined.size >= min_count:
            counts = _aligned(letters[joined], shift[members], strand[members]).sum(0)
            patterns.append(_pattern(f"pattern {len(patterns) + 1}", counts, seed, joined.size))
        left = left[~members]
    return patterns


@dataclass(frozen=True)
class Hits(Columns):
    """Where patterns are, by column: `pattern` (number), `sequence` (row), `start`, `end`, `reverse`, and `cosine`.

    `reverse` is True where the reverse complement of the pattern stands; `cosine` is its similarity to the seqlet.
    """

    pattern: Ints
    sequence: Ints
    start: Ints
    end: Ints
    reverse: Bools
    cosine: Floats


def find_hits(
    patterns: Sequence[Pattern],
    seqlets: Seqlets,
    onehot: OneHot,
    per_base: npt.ArrayLike,
    *,
    width: int = 30,
    similarity: float = 0.7,
) -> Hits:
    """The pattern that each seqlet is an instance of, and where exactly: the one with the highest cosine.

    Compared as in `find_patterns`, at every shift and on both strands, on letters times relevance. Seqlets that are
    like no pattern (cosine under `similarity`) are left out, and places that reach over the end of a sequence are cut.
    """
    _, windows, begin = _windows(seqlets, onehot, per_base, width)
    best = np.full(len(seqlets), similarity)
    hits = np.full((4, len(seqlets)), -1)  # pattern, start, end, reverse
    for number, pattern in enumerate(patterns):
        long = min(pattern.relevance.shape[1], width)
        left = (width - long) // 2
        seed = np.zeros((4, width))
        seed[:, left : left + long] = pattern.relevance[:, :long]
        cosine, shift, strand = _align(seed, windows)
        # column c of the pattern is column c − shift of the window, read from the other end on the other strand
        start = begin + np.where(strand, width - (left + long - shift), left - shift)
        better = cosine >= best
        hits = np.where(better, np.broadcast_arrays(number, start, start + long, strand), hits)
        best = np.where(better, cosine, best)
    hit = hits[0] >= 0
    pattern_number, start, end, reverse = hits[:, hit]
    start, end = (place.clip(0, onehot.shape[2]) for place in (start, end))
    return Hits(pattern_number, seqlets.sequence[hit], start, end, reverse > 0, best[hit])


def _windows(seqlets: Seqlets, onehot: OneHot, per_base: npt.ArrayLike, width: int) -> tuple[Floats, Floats, Ints]:
    """`width` bases around each seqlet's strongest stretch: letters, and letters times its relevance; (n, 4, width).

    The strongest stretch has a third of `width`: regions can be much longer than a motif. The third array, (n,), says
    where the windows begin.
    """
    values = np.asarray(per_base, np.float64)
    length = onehot.shape[2]
    begin = _strongest_middle(seqlets, values, width // 3) - width // 2
    columns = begin[:, None] + np.arange(width)
    inside = (columns >= 0) & (columns < length)
    clipped = columns.clip(0, length - 1)
    letters = onehot[seqlets.sequence[:, None], :, clipped].transpose(0, 2, 1) * inside[:, None]
    in_seqlet = inside & (columns >= seqlets.start[:, None]) & (columns < seqlets.end[:, None])
    relevance = values[seqlets.sequence[:, None], clipped] * in_seqlet
    return letters.astype(np.float64), letters * relevance[:, None], begin


def _strongest_middle(seqlets: Seqlets, values: Floats, core: int) -> Ints:
    """The middle of the `core` bases with the most relevance in each seqlet."""
    length = values.shape[1]
    reach = np.arange(int((seqlets.end - seqlets.start).max(initial=1)))
    column = seqlets.start[:, None] + reach
    in_seqlet = column < seqlets.end[:, None]
    strength = np.abs(values[seqlets.sequence[:, None], column.clip(0, length - 1)]) * in_seqlet
    running = np.concatenate([np.zeros((len(strength), 1)), strength.cumsum(1)], 1)
    core = min(core, running.shape[1] - 1)
    best = (running[:, core:] - running[:, :-core]).argmax(1)
    return seqlets.start + best + core // 2


def _align(seed: Floats, windows: Floats) -> tuple[Floats, Ints, Bools]:
    """Best cosine of each window with the seed over shifts up to a third of its width and both strands."""
    width = seed.shape[1]
    shifts = np.arange(-(width // 3), width // 3 + 1)
    # moving the seed one way is moving all windows the other
    moved = _aligned(np.repeat(seed[None], len(shifts), 0), -shifts, np.zeros(len(shifts), bool))
    flat_seeds = moved.reshape(len(shifts), -1)
    views = (windows, windows[:, ::-1, ::-1])
    scores = np.stack([flat_seeds @ view.reshape(len(windows), -1).T for view in views])
    norms = np.sqrt((windows**2).sum((1, 2))) * np.sqrt((seed**2).sum())
    flat = scores.reshape(-1, len(windows))
    best = flat.argmax(0)
    cosine = flat.max(0) / np.where(norms > 0, norms, 1)
    return cosine, shifts[best % len(shifts)], best >= len(shifts)


def _aligned(windows: Floats, shift: Ints, strand: Bools) -> Floats:
    """The windows, reversed where `strand` is True, moved to the right by `shift` positions and filled with zeros."""
    oriented = np.where(strand[:, None, None], windows[:, ::-1, ::-1], windows)
    columns = np.arange(windows.shape[2]) - shift[:, None]
    inside = (columns >= 0) & (columns < windows.shape[2])
    shifted = np.take_along_axis(oriented, columns.clip(0, windows.shape[2] - 1)[:, None], 2)
    return shifted * inside[:, None]


def _pattern(name: str, counts: Floats, relevance: Floats, count: int) -> Pattern:
    """Trim to the positions that hold relevance (a tenth of the highest) and information (0.4 bits)."""
    strength = np.abs(relevance).sum(0)
    probabilities = (counts + 0.25) / (counts + 0.25).sum(0)
    informative = Motif(name, probabilities).information >= 0.4
    positions = np.flatnonzero((strength >= 0.1 * strength.max()) & (informative | ~informative.any()))
    window = slice(positions[0], positions[-1] + 1) if positions.size else slice(None)
    probabilities = probabilities[:, window]
    return Pattern(Motif(name, probabilities), relevance[:, window], count)


class Match(NamedTuple):
    """A motif similar to a query, by TOMTOM: `p` per comparison, `e` = p × number of queries × number of targets."""

    motif: Motif
    p: float
    e: float
    offset: int
    overlap: int
    strand: str


NAMED = 0.05
"""The largest E-value at which a pattern gets a motif's name. E is the number of matches that chance makes as similar;
0.05 is p ≤ 0.05 by Bonferroni over all comparisons of patterns with motifs. TOMTOM itself lists matches up to 10."""

LEAST_BITS = 5.0
"""A pattern with less information gets no name: its sites come by chance every 32 bases."""


def named_match(pattern: Motif, matches: Sequence[Match]) -> Match | None:
    """The best of a pattern's matches (best first) if it is closer than chance allows and the pattern is not flat."""
    near = matches and matches[0].e <= NAMED and float(pattern.information.sum()) >= LEAST_BITS
    return matches[0] if near else None


def e_text(value: float) -> str:
    """An E- or p-value for people.

    >>> e_text(1.56), e_text(0.043), e_text(2.34e-7), e_text(640.2)
    ('1.6', '0.043', '2.3e-07', '640')
    """
    return f"{value:.1e}" if value < 0.001 else f"{value:.2g}" if value < 100 else f"{value:.0f}"


def match_motifs(
    queries: Sequence[Motif | Floats], targets: Sequence[Motif] | None = None, *, top: int = 5
) -> list[list[Match]]:
    """The `top` most similar motifs of each query, best first, by TOMTOM (memelite) on both strands.

    `targets` are by default the vertebrate CORE motifs of JASPAR. The first time on a machine, memelite compiles its
    code, which takes a minute or two.
    """
    if not queries:
        return []
    with needed("Matching motifs needs memelite", "genomics"):
        from memelite import tomtom
    known = jaspar_motifs() if targets is None else targets
    tried = len(queries) * len(known)
    matrices = [q.probabilities if isinstance(q, Motif) else np.asarray(q, np.float64) for q in queries]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about few targets, which its documentation explains
        p, _, offsets, overlaps, strands, index = tomtom(
            matrices, [m.probabilities for m in known], n_nearest=min(top, len(known)), n_jobs=1
        )
    return [
        [
            Match(known[int(i)], float(p), float(p) * tried, int(offset), int(overlap), "-" if strand else "+")
            for p, offset, overlap, strand, i in zip(*columns, strict=True)
        ]
        for columns in zip(p, offsets, overlaps, strands, index, strict=True)
    ]


def tomtom_is_compiled() -> bool:
    """Whether numba has memelite's outermost loop in its cache, so that matching begins at once."""
    try:
        cache = import_module("memelite.tomtom")._tomtom.stats.cache_path
    except (ImportError, AttributeError):
        return False
    return cache is not None and any(Path(cache).glob("tomtom._tomtom-*.nbi"))


def compile_tomtom(show_progress: bool | None = False) -> None:
    """Let memelite compile its loops if they are not, so that the time left of matching is not that of compiling."""
    if not tomtom_is_compiled():
        with progress("compiling TOMTOM", None, show_progress):
            match_motifs([np.full((4, 6), 0.25)])


def strongest_stretches(seqlets: Seqlets, per_base: npt.ArrayLike, width: int = 24) -> Seqlets:
    """Each seqlet, cut to at most `width` bases around its strongest stretch: the site within a longer region."""
    middle = _strongest_middle(seqlets, np.asarray(per_base, np.float64), width // 3)
    start = np.maximum(seqlets.start, np.minimum(middle - width // 2, seqlets.end - width))
    return replace(seqlets, start=start, end=np.minimum(seqlets.end, start + width))


PSEUDOCOUNT = 1 / 16
"""Added to each letter of a single site: one observation is not certain, and TOMTOM then matches wide motifs better."""


def match_seqlets(
    seqlets: Seqlets,
    onehot: OneHot,
    per_base: npt.ArrayLike,
    targets: Sequence[Motif] | None = None,
    *,
    width: int = 24,
) -> list[Match]:
    """The best JASPAR match of every single seqlet, with TOMTOM's p-value.

    Of a seqlet longer than `width`, the bases around its strongest stretch are compared. A single site says little: it
    cannot tell motifs of one family (the ETS factors, say) apart. For reliable names, match patterns of many seqlets
    (`find_patterns`).
    """
    seqlets = strongest_stretches(seqlets, per_base, width)
    queries = [
        (onehot[s, :, a:b].astype(np.float64) + PSEUDOCOUNT) / (onehot[s, :, a:b].sum(0) + 4 * PSEUDOCOUNT)
        for s, a, b in zip(seqlets.sequence, seqlets.start, seqlets.end, strict=True)
    ]
    return [matches[0] for matches in match_motifs(queries, targets, top=1)]
