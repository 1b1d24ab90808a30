"""From a folder of `plrp genomics explain` to motifs: the seqlets that are stronger than chance, and their patterns.

A seqlet is believed if seqlets as strong are rare in the *null*: the same sequences with their dinucleotides shuffled,
explained for the same classes. The cut-off is the least strength at which the false discovery rate (seqlets per null
sequence over seqlets per sequence) is within a limit. Each winning class has a cut-off of its own, since the scores of
classes differ in size. Memory holds one batch of sequences at a time, and the sequences of the strongest seqlets.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import nn

from plrp.errors import UsageError
from plrp.progress import progress
from plrp.pruning import Pruning

from .attribution import pool, pruning_title
from .baselines import attribute_by, winning_classes
from .export import count_sequences, read_relevance
from .jobs import LAYOUT, read_target, target_entry
from .outputs import score_file
from .seqlets import Hits, Match, Pattern, Seqlets, compile_tomtom, find_hits, find_patterns, find_seqlets, match_motifs
from .sequence_settings import MotifSettings
from .sequences import Floats, Interval, Ints, Sequences, Values, encode
from .simulation import dinucleotide_shuffle

LEAST_NULL = 50
"""A class with fewer shuffled sequences has no cut-off of its own, but that of all classes together."""

NEARLY_ALL = 0.95
"""If the null removes this share of the seqlets or more, the search says so."""

WORTH_IT = 0.1
"""Share of the seqlets that a looser limit must leave to be advised."""

CUTS = (0.1, 0.3, 0.5, 0.7)
"""Thresholds with which pruning is compared, as shares of a sequence's strongest base."""


def run_settings(folder: str | Path, *, target: Any = None, reverse_target: Any = None) -> dict[str, Any]:
    """How a folder was explained, from its `run.json`, as `explain_as` takes it.

    A target that is a function of a file runs code, and somebody else's folder must not decide to run it. Such a target
    has to be given once more, for example `target="net.py:score"`; other targets may be.
    """
    run = read_run(folder)
    named = ("method", "composite", "reference", "pooling", "ambiguous", "reverse_complement", "hypothetical")
    settings: dict[str, Any] = {name: run[name] for name in named if name in run}
    settings["pruning"] = _pruning(folder, run)
    settings["target"] = _target(folder, "target", run.get("target"), target)
    settings["reverse_target"] = _target(folder, "reverse_target", run.get("reverse_target"), reverse_target)
    return settings


def read_run(folder: str | Path) -> dict[str, Any]:
    """The content of a folder's `run.json`."""
    file = Path(folder) / LAYOUT.description
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{file} cannot be read ({error}): name a folder of `plrp genomics explain`.") from None


def _pruning(folder: str | Path, run: dict[str, Any]) -> Pruning | None:
    entry = run.get("pruning")
    if entry is not None and not isinstance(entry, dict):
        raise UsageError(f"{folder} was explained by an older version of plrp: explain it again.")
    return None if entry is None else Pruning.from_dict(entry)


def _target(folder: str | Path, name: str, entry: Any, given: Any) -> Any:
    """The target of a run, whose `run.json` has `entry`; a file is imported only if it was given, and has that name."""
    option, function = f"--{name.replace('_', '-')}", score_file(entry)
    if given is None and function is not None:
        raise UsageError(
            f"The {name.replace('_', ' ')} of {folder} is a function of a file, {entry}, which would be run: if you "
            f"trust it, name it with {option} path/to/{function[0].name}:{function[1]}."
        )
    given = entry if given is None else given
    if target_entry(given if score_file(given) else read_target(given)) != target_entry(entry):
        raise UsageError(f"{folder} was explained with {name}={entry!r}, not {given!r}: leave {option} out.")
    return read_target(given)


def explain_as(model: nn.Module, letters: Sequence[str], settings: dict[str, Any], **options: Any) -> Values:
    """Relevance per base of sequences of one length, explained with the settings of a run, (sequence, position)."""
    rules = dict(settings)
    onehot = encode(letters, rules.pop("ambiguous", "zero"))
    pooling = rules.pop("pooling", "present")
    return pool(attribute_by(rules.pop("method", None), model, onehot, **rules, **options).relevance, onehot, pooling)


# -- the null


@dataclass(frozen=True)
class CutOff:
    """The least strength of a seqlet that is believed.

    `observed` and `expected` are the seqlets per sequence at or above it, in the run and in the null.
    """

    strength: float
    observed: float
    expected: float

    @property
    def fdr(self) -> float:
        """The false discovery rate: `expected` over `observed`."""
        return self.expected / self.observed if self.observed else float("nan")


def cut_off(
    scores: npt.ArrayLike, sequences: int, null_scores: npt.ArrayLike, null_sequences: int, limit: float = 0.05
) -> CutOff:
    """The least strength at which the false discovery rate of the seqlets as strong or stronger is within `limit`.

    Strengths are absolute. As in Benjamini and Hochberg's procedure the largest such set counts, even if the rate
    of a smaller one, in the thin tail, is higher.

    >>> cut_off([1, 2, 3, 4], 1, [1, 2], 1, limit=0.25).strength
    3.0
    """
    strengths = np.sort(np.abs(np.asarray(scores, np.float64)))
    null = np.sort(np.abs(np.asarray(null_scores, np.float64)))
    steps = np.unique(strengths)
    observed = (len(strengths) - np.searchsorted(strengths, steps)) / max(sequences, 1)
    expected = (len(null) - np.searchsorted(null, steps)) / max(null_sequences, 1)
    within = np.flatnonzero(expected <= limit * observed)
    if not within.size:
        return CutOff(float("inf"), 0.0, 0.0)
    first = within[0]
    return CutOff(float(steps[first]), float(observed[first]), float(expected[first]))


def cut_offs(
    seqlets: Sequence[tuple[Seqlets, Ints]], null: Sequence[tuple[Seqlets, Ints]], limit: float = 0.05
) -> dict[int | None, CutOff]:
    """The `cut_off` of every class, and under None that of all together; batches come with the classes of their rows.

    A class with fewer than `LEAST_NULL` sequences in the null has none of its own.
    """

    def strengths(batches: Sequence[tuple[Seqlets, Any]], of: int | None) -> tuple[Floats, int]:
        """Scores of the seqlets of a class, and its number of sequences."""
        chosen = [np.full(len(classes), True) if of is None else classes == of for _, classes in batches]
        scores = [one.score[mask[one.sequence]] for (one, _), mask in zip(batches, chosen, strict=True)]
        return np.concatenate([np.zeros(0), *scores]), int(sum(mask.sum() for mask in chosen))

    names = np.unique(np.concatenate([np.zeros(0, np.int64), *(classes for _, classes in null)]))
    own = [int(name) for name in names if strengths(null, int(name))[1] >= LEAST_NULL] if len(names) > 1 else []
    return {name: cut_off(*strengths(seqlets, name), *strengths(null, name), limit) for name in (None, *own)}


def explain_null(
    model: nn.Module, sample: Iterable[Sequences], settings: dict[str, Any], *, seed: int = 0, **options: Any
) -> list[Values]:
    """Relevance per base of the sample with its dinucleotides shuffled, for the classes of the originals."""
    maps = []
    for sequences in sample:
        classes = settings.get("target")
        if classes is None:
            classes = winning_classes(model, encode(sequences, settings.get("ambiguous", "zero"))).tolist()
        shuffled = dinucleotide_shuffle(sequences.letters, seed)
        maps.append(explain_as(model, shuffled, {**settings, "target": classes}, **options))
    return maps


# -- truth


@dataclass(frozen=True)
class Agreement:
    """How seqlets agree with known sites: `precision` of seqlets, `recall` of sites, and the number of seqlets.

    `by_motif`: recall of the sites of each name; `share`: where relevance was cut for comparison, else None.
    """

    name: str
    seqlets: int
    precision: float
    recall: float
    by_motif: dict[str, float] = field(default_factory=dict)
    share: float | None = None

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


class Truth:
    """Known sites by sequence. A seqlet and a site agree if they share at least half of the shorter one."""

    def __init__(self, sites: Iterable[Interval]) -> None:
        self.sites: dict[str, list[tuple[int, int, str]]] = {}
        for site in sites:
            self.sites.setdefault(site.chrom, []).append((site.start, site.end, site.name))

    def agreement(
        self, name: str, batches: Iterable[tuple[Seqlets, Sequence[str]]], share: float | None = None
    ) -> Agreement:
        """Precision and recall of seqlets; each batch comes with the names of all its sequences."""
        count = right = 0
        sites: Counter[str] = Counter()
        hit: Counter[str] = Counter()
        for seqlets, names in batches:
            places: list[list[tuple[int, int]]] = [[] for _ in names]
            for row, start, end in zip(seqlets.sequence, seqlets.start, seqlets.end, strict=True):
                places[row].append((int(start), int(end)))
            for sequence, here in zip(names, places, strict=True):
                known = self.sites.get(sequence, [])
                count += len(here)
                right += sum(any(_agree(one, site[:2]) for site in known) for one in here)
                for start, end, motif in known:
                    sites[motif] += 1
                    hit[motif] += any(_agree(one, (start, end)) for one in here)
        return Agreement(
            name,
            count,
            right / count if count else 0.0,
            hit.total() / sites.total() if sites else 0.0,
            {motif: hit[motif] / number for motif, number in sorted(sites.items())},
            share,
        )


def verdict(used: Agreement, others: Sequence[Agreement]) -> list[str]:
    """Sentences that say which seqlets agree better with known sites: the `used` ones, or the best of the `others`.

    `others` are seqlets without the null: the whole run, if the null left some out, and plain cuts; without others the
    list is empty. A motif is named if the best of the others finds twice as many of its sites.
    """
    best = max(others, key=lambda one: one.f1, default=None)
    if best is None:
        return []
    if best.f1 > used.f1:
        run = "this run" if best.name.split(",")[0] == used.name.split(",")[0] else "a run without -p"
        cut = f" with --cut {best.share:g}," if best.share else ""
        better = best
        other = f"The patterns found are those of {used.name}, with {used.f1:.2f}. Search {run}{cut} without --model"
    else:
        better, other = used, f"The next best: {best.name}, with {best.f1:.2f}"
    return [
        f"Better here: {better.name}, with an F1 of {better.f1:.2f}. {other}.",
        *(
            f"{recall:.0%} of the {motif} sites are found here, {best.by_motif[motif]:.0%} by {best.name}."
            for motif, recall in used.by_motif.items()
            if best.by_motif.get(motif, 0.0) > 2 * recall
        ),
    ]


def null_advice(count: int, believed: int, limit: float, left: Callable[[], int], share: float) -> str:
    """Advice for a null that removed nearly all of `count` seqlets; empty if it left more of them.

    `left` counts the seqlets that a false discovery rate of `limit` would leave; `share` is the cut that was made.
    """
    if not count or count - believed < NEARLY_ALL * count:
        return ""
    removed = "every seqlet" if not believed else f"{min(0.999, 1 - believed / count):.1%} of the seqlets"
    cut = "" if share else "with --cut 0.3 and "
    more = left()
    looser = f", or with --fdr {limit:g}, which leaves {more:,} of {count:,}" if more >= WORTH_IT * count else ""
    return (
        f"The null removed {removed}: shuffled sequences hold as much relevance. Search {cut}without --model{looser}."
    )


def _agree(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return 2 * (min(a[1], b[1]) - max(a[0], b[0])) >= min(a[1] - a[0], b[1] - b[0])


def above(seqlets: Seqlets, classes: Ints, cuts: dict[int | None, CutOff]) -> Seqlets:
    """The seqlets at or above the cut-off of their sequence's class; all seqlets if there are no cut-offs."""
    if not cuts:
        return seqlets
    strength = np.array([cuts.get(int(name), cuts[None]).strength for name in classes])
    return seqlets.chosen(np.abs(seqlets.score) >= strength[seqlets.sequence])


def threshold_seqlets(per_base: Values, cut: float) -> Seqlets:
    """Seqlets of relevance cut at a share of each sequence's strongest base: the plain alternative to pruning.

    A `cut` of 0 leaves all relevance.
    """
    strongest = np.abs(per_base).max(1, keepdims=True)
    return find_seqlets(np.where(np.abs(per_base) > cut * strongest, per_base, 0))


# -- the whole search


SeqletBatch: TypeAlias = tuple[Seqlets, list[str]]
"""Seqlets, and the names of all sequences of their batch."""


@dataclass(frozen=True)
class MotifSearch:
    """The result of searching a run for motifs.

    - `patterns`, and the `matches` of each with known motifs, none if motifs were not compared;
    - `cuts`: the cut-offs (`cut_offs`), empty without a null; `advice`: the next step if the null left next to nothing;
    - `seqlets` above the cut-offs and `hits` of the patterns, by batch, with the names of the batch's sequences;
    - `agreements` with known sites, those of the run first; `verdict`: sentences on which is best;
    - `sequences`, `seqlet_count`, `believed`: the numbers of sequences, of seqlets, and of seqlets above the cut-offs;
    - `intervals`: the places of the sequences by their names (`Sequences.places`).
    """

    patterns: list[Pattern]
    matches: list[list[Match]]
    cuts: dict[int | None, CutOff]
    agreements: list[Agreement]
    seqlets: list[SeqletBatch]
    sequences: int
    seqlet_count: int
    believed: int
    hits: list[tuple[Hits, list[str]]] = field(default_factory=list)
    intervals: dict[str, Interval] = field(default_factory=dict)
    verdict: list[str] = field(default_factory=list)
    advice: str = ""


def find_motifs(
    folder: str | Path,
    settings: MotifSettings | None = None,
    *,
    model: nn.Module | None = None,
    truth: Truth | None = None,
    show_progress: bool | None = None,
    **changes: Any,
) -> MotifSearch:
    """Seqlets, patterns and matching motifs of a folder that `explain_file` wrote.

    With a `model`, a sample of its sequences, evenly spread, is shuffled and explained as the run was, which gives the
    cut-offs; with `truth` too, plain LRP of the sample, cut at thresholds, is compared with pruning. The fields of
    `MotifSettings` may be given as keywords:

    - `limit`: the false discovery rate at the cut-offs; `sample`: sequences that are shuffled, with this `seed`;
    - `share`: relevance below this share of a sequence's strongest base is cut off first, in the null too;
    - `match`: whether patterns are compared with the motifs of `database` (None: JASPAR's vertebrates);
    - `target`, `reverse_target`: those of the run once more, if they are functions of a file (`run_settings`);
    - `max_patterns` for the prediction, and as many against it, of at most `max_seqlets` seqlets each;
    - `batch_size`, `device`: as in `explain_sequences`.
    """
    settings = MotifSettings.of(settings, changes)
    run = _RunSeqlets(Path(folder), settings, model, show_progress)
    cuts = run.cut_offs(settings.limit)
    believed = run.above(cuts)
    advice = run.advice(_count(believed)) if cuts else ""
    agreements, sentences = ([], []) if truth is None else run.compared(truth, believed if cuts else None)
    patterns = run.patterns(believed)
    if advice:  # relevance is spread out: no single seqlet is stronger than chance, but patterns may be more frequent
        patterns, tried = run.enriched(settings.limit)
        advice += f" Of {tried} patterns, {len(patterns)} are more frequent than in the null (FDR {settings.limit:g})."
    return MotifSearch(
        patterns=patterns,
        hits=run.hits(patterns, run.batches if advice else believed),
        matches=run.matches(patterns) if settings.match and patterns else [],
        cuts=cuts,
        agreements=agreements,
        seqlets=believed,
        sequences=run.sequences,
        seqlet_count=_count(run.batches),
        believed=_count(believed),
        intervals=run.intervals,
        verdict=sentences,
        advice=advice,
    )


class _RunSeqlets:
    """The seqlets of a run in batches, the classes of their sequences, and the examples from which the null is made."""

    def __init__(
        self, folder: Path, settings: MotifSettings, model: nn.Module | None, show_progress: bool | None
    ) -> None:
        self.folder, self.settings, self.model, self.show_progress = folder, settings, model, show_progress
        self.options = {"batch_size": settings.batch_size, "device": settings.device}
        self.rules: dict[str, Any] = {}
        if model is not None:
            self.rules = run_settings(folder, target=settings.target, reverse_target=settings.reverse_target)
        self.batches: list[SeqletBatch] = []
        self.classes: list[Ints] = []
        self.examples: list[tuple[Sequences, Values, Ints]] = []
        self.intervals: dict[str, Interval] = {}
        self.sequences = count_sequences(folder)
        sample = min(settings.sample, self.sequences)
        spread = np.unique(np.linspace(0, max(self.sequences - 1, 0), sample, dtype=np.int64))
        seen = 0
        with progress("finding seqlets", self.sequences, show_progress) as step:
            for batch, per_base in read_relevance(folder):
                self.batches.append((threshold_seqlets(per_base, settings.share), batch.names))
                self.intervals.update(zip(batch.names, batch.places, strict=True))
                classes = np.zeros(len(batch), np.int64)
                if model is not None and self.rules.get("target") is None:
                    classes = winning_classes(model, encode(batch, self.rules.get("ambiguous", "zero")))
                self.classes.append(classes)
                rows = spread[(spread >= seen) & (spread < seen + len(batch))] - seen
                if rows.size and model is not None:
                    self.examples.append((batch[rows.tolist()], per_base[rows], classes[rows]))
                seen += len(batch)
                step(len(batch))

    @cached_property
    def null(self) -> list[tuple[Seqlets, Ints]]:
        """The seqlets of the shuffled examples, and the classes of the originals."""
        classes = [of_batch for _, _, of_batch in self.examples]
        return [
            (threshold_seqlets(one, self.settings.share), c) for one, c in zip(self.null_maps, classes, strict=True)
        ]

    @cached_property
    def null_maps(self) -> list[Values]:
        """The relevance of the shuffled examples."""
        assert self.model is not None
        sample = [sequences for sequences, _, _ in self.examples]
        return explain_null(self.model, sample, self.rules, seed=self.settings.seed, **self.options)

    def enriched(self, limit: float) -> tuple[list[Pattern], int]:
        """The patterns that are more frequent than in the null, at a false discovery rate over all, and how many were
        tried.

        They are made of every other sequence and counted in the others, to which they were not fit. Given all sites of
        a pattern, those in the run are binomial if chance alone puts them there.
        """
        pairs = list(enumerate(self.batches))  # of batches of one sequence every other one
        parity = [[(s.chosen((s.sequence + k) % 2 == odd), names) for k, (s, names) in pairs] for odd in (0, 1)]
        patterns = self.patterns(parity[0])
        run, null = np.zeros((2, len(patterns)), np.int64)
        for hits, _ in self.hits(patterns, parity[1]):
            run += np.bincount(hits.pattern, minlength=len(patterns))
        for (sequences, _, _), (seqlets, _), per_base in zip(self.examples, self.null, self.null_maps, strict=True):
            shuffled = encode(dinucleotide_shuffle(sequences.letters, self.settings.seed))
            null += np.bincount(find_hits(patterns, seqlets, shuffled, per_base).pattern, minlength=len(patterns))
        ours = max(1, sum((len(names) + k % 2) // 2 for k, (_, names) in pairs))
        theirs = sum(len(classes) for _, _, classes in self.examples)
        chance = [_tail(int(n), int(n + m), ours / (ours + theirs)) for n, m in zip(run, null, strict=True)]
        order, kept = np.argsort(chance), 0
        for rank, number in enumerate(order, 1):  # Benjamini and Hochberg
            kept = rank if chance[number] <= limit * rank / len(patterns) else kept
        return [patterns[number] for number in sorted(order[:kept])], len(patterns)

    def cut_offs(self, limit: float) -> dict[int | None, CutOff]:
        """The cut-offs at a false discovery rate; none without a model."""
        if self.model is None:
            return {}
        seqlets = [(one, classes) for (one, _), classes in zip(self.batches, self.classes, strict=True)]
        return cut_offs(seqlets, self.null, limit)

    def above(self, cuts: dict[int | None, CutOff]) -> list[SeqletBatch]:
        """The seqlets at or above the cut-offs, by batch."""
        pairs = zip(self.batches, self.classes, strict=True)
        return [(above(seqlets, classes, cuts), names) for (seqlets, names), classes in pairs]

    def advice(self, believed: int) -> str:
        """The advice for a null that removed nearly every seqlet."""
        limit, share = self.settings.limit, self.settings.share
        looser = 0.2 if limit < 0.2 else (1 + limit) / 2
        return null_advice(
            _count(self.batches), believed, looser, lambda: _count(self.above(self.cut_offs(looser))), share
        )

    def compared(self, truth: Truth, believed: list[SeqletBatch] | None) -> tuple[list[Agreement], list[str]]:
        """How the seqlets of the run, those above the null, and plain cuts agree with known sites, and a verdict."""
        run, share = read_run(self.folder), self.settings.share
        pruning = _pruning(self.folder, run)
        label = run.get("method") or (pruning_title(pruning) if pruning else "LRP")
        title = f"{label}, cut at {share:g}" if share else label
        agreements = [truth.agreement(title, self.batches, share)]
        if believed is not None:
            agreements.append(truth.agreement(f"{title}, above the null", believed, share))
        used = agreements[-1]
        if self.model is not None:
            plain = {**self.rules, "pruning": None, "method": None}
            sample, maps_of_run, _ = zip(*self.examples, strict=True)
            maps = {"LRP": [explain_as(self.model, one.letters, plain, **self.options) for one in sample]}
            maps.setdefault(label, list(maps_of_run))
            sampled = sum(map(len, sample))
            of = "" if sampled == self.sequences else f" ({sampled:,} of the sequences)"
            for name, level in itertools.product(maps, CUTS):
                pairs = zip(maps[name], sample, strict=True)
                cut = [(threshold_seqlets(per_base, level), one.names) for per_base, one in pairs]
                agreements.append(truth.agreement(f"{name}, cut at {level:g}{of}", cut, level))
        return agreements, verdict(used, [one for one in agreements if one is not used])

    def patterns(self, batches: Sequence[SeqletBatch]) -> list[Pattern]:
        """Patterns of the strongest seqlets, those for the prediction first, then those against it."""
        limits = {name: getattr(self.settings, name) for name in ("max_patterns", "max_seqlets")}
        patterns: list[Pattern] = []
        for sign, kind in ((1, "for"), (-1, "against")):
            strengths = np.concatenate([np.zeros(0), *(np.maximum(sign * s.score, 0) for s, _ in batches)])
            if not (strengths > 0).any():
                continue
            least = np.sort(strengths)[-self.settings.max_seqlets :][0]
            parts: dict[int, list[tuple[Seqlets, list[str], Values]]] = {}
            for (seqlets, _), (batch, per_base) in zip(batches, read_relevance(self.folder), strict=True):
                chosen = seqlets.chosen((sign * seqlets.score >= least) & (sign * seqlets.score > 0))
                rows, place = np.unique(chosen.sequence, return_inverse=True)
                if rows.size:
                    same_length = parts.setdefault(per_base.shape[1], [])
                    before = sum(len(letters) for _, letters, _ in same_length)
                    renumbered = replace(chosen, sequence=place + before)
                    same_length.append((renumbered, batch[rows.tolist()].letters, per_base[rows]))
            for same_length in parts.values():
                several, letters, maps = zip(*same_length, strict=True)
                onehot, values = encode(list(itertools.chain(*letters))), np.concatenate(maps)
                for pattern in find_patterns(Seqlets.joined(several), onehot, values, **limits):
                    name = f"{kind}_{sum(one.motif.name.startswith(kind) for one in patterns) + 1}"
                    patterns.append(replace(pattern, motif=replace(pattern.motif, name=name)))
        return patterns

    def hits(self, patterns: Sequence[Pattern], batches: Sequence[SeqletBatch]) -> list[tuple[Hits, list[str]]]:
        """Where the patterns are, by batch."""
        hits = []
        with progress("placing patterns", self.sequences, self.show_progress) as step:
            for (seqlets, names), (batch, per_base) in zip(batches, read_relevance(self.folder), strict=True):
                hits.append((find_hits(patterns, seqlets, encode(batch), per_base), names))
                step(len(names))
        return hits

    def matches(self, patterns: Sequence[Pattern]) -> list[list[Match]]:
        """The known motifs nearest to each pattern."""
        compile_tomtom(self.show_progress)
        with progress("comparing with known motifs", None, self.show_progress):
            return match_motifs([pattern.motif for pattern in patterns], self.settings.database)


def _tail(least: int, trials: int, chance: float) -> float:
    """The probability of at least so many successes: the tail of a binomial distribution."""
    log = [math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in range(trials + 1)]
    terms = (log[k] + k * math.log(chance) + (trials - k) * math.log1p(-chance) for k in range(least, trials + 1))
    return min(1.0, math.fsum(map(math.exp, terms)))


def _count(batches: Sequence[SeqletBatch]) -> int:
    return sum(len(seqlets) for seqlets, _ in batches)
