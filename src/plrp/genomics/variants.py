"""The effect of a variant on a prediction, base by base.

For each variant of a VCF file the model sees two sequences of the genome around it, with the reference and with the
alternative allele. Both are explained for the same score, and the difference of their relevance says which bases carry
the change: the broken motif, the new splice site, or a place far away that now reads differently.

Windows have `width` bases and are centred on the variant's first base. The left flank stays in place; an insertion
pushes bases out of the window on the right, a deletion lets bases in. Both sequences are then aligned: columns are
bases of either, with '-' where one of them has none. A missing base has no relevance, so

Σ difference = Σ relevance of the alternative − Σ relevance of the reference,

which is the difference of the two scores, less the shares of biases and ε.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import nn

from plrp.progress import progress
from plrp.settings import LARGEST

from .attribution import Attribution, check_strands, explain_sequences, strand_targets
from .logo import plot_logos
from .sequence_settings import VariantSettings
from .sequences import Genome, Ints, SequenceError, Values, encode, open_text, reverse_complement

NO_ALTERNATIVE = "no alternative allele"
SYMBOLIC = "symbolic allele, breakend or '*'"
LETTERS_OTHER = "letters other than A, C, G, T"
UNKNOWN_CONTIG = "contig not in the genome"
MISMATCH = "reference differs from the genome"
PAST_END = "window past the end of the contig"
TOO_LONG = "allele longer than half the window"
TURNED = "the relevance changes the other way than the score"
SMALL = 1e-3
"""Changes of less than this share of the score have no sign to speak of."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One alternative allele: `position` counts from 0, as in BED; `line` and `allele` are its place in the VCF."""

    chrom: str
    position: int
    reference: str
    alternative: str
    id: str = "."
    strand: str = "+"
    line: int = 0
    allele: int = 0

    def __str__(self) -> str:
        return f"{self.chrom}:{self.position + 1} {self.reference}>{self.alternative}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A variant that was not scored: `reason` is one of the module's, `detail` names the wrong base or contig."""

    variant: Variant
    reason: str
    detail: str = ""


def read_vcf(path: str | Path, *, largest: int = LARGEST) -> list[Variant]:
    """Every alternative allele of a VCF file, plain or gzipped, in order; unusable ones too, which are skipped later.

    Alleles are upper case. `strand` is that of INFO's STRAND (`+`, `-`, `1`, `-1`), '+' where there is none. A file
    that unpacks to more than `largest` bytes is refused.
    """
    variants: list[Variant] = []
    header = False
    with open_text(path, largest=largest) as numbered:
        for number, line in numbered:
            if line.startswith("#"):
                header = True
                continue
            if not line.strip():
                continue
            fields = line.split("\t")
            if len(fields) < 5 or not fields[1].isdecimal():
                raise SequenceError(
                    f"{path}, line {number}: expected 'CHROM POS ID REF ALT …' separated by tabs, found {line[:60]!r}."
                )
            chrom, position, name, reference, alternatives = fields[:5]
            info = dict(part.partition("=")[::2] for part in "".join(fields[7:8]).split(";"))
            strand = "-" if info.get("STRAND") in ("-", "-1") else "+"
            for allele, text in enumerate(alternatives.split(",")):
                alternative = text if text.startswith("<") else text.upper()
                bases = reference.upper(), alternative
                variants.append(Variant(chrom, int(position) - 1, *bases, name, strand, number, allele))
    if not variants and not header:
        raise SequenceError(f"{path}, line 1: no header and no variants; this is not VCF.")
    return variants


def why_skipped(variant: Variant, genome: Genome, width: int, ends: Literal["skip", "pad"]) -> tuple[str, str] | None:
    """Why a variant cannot be scored: reason and detail."""
    reference, alternative = variant.reference, variant.alternative
    if alternative in (".", "", reference):
        return NO_ALTERNATIVE, ""
    if alternative == "*" or not alternative.isalpha():
        return SYMBOLIC, alternative
    if not set(reference + alternative) <= set("ACGT"):
        return LETTERS_OTHER, f"{reference}>{alternative}"
    if variant.chrom not in genome.lengths:
        other = variant.chrom.removeprefix("chr") if variant.chrom.startswith("chr") else f"chr{variant.chrom}"
        return UNKNOWN_CONTIG, f"the genome has {other}" if other in genome.lengths else variant.chrom
    if max(len(reference), len(alternative)) > width // 2:
        return TOO_LONG, f"{max(len(reference), len(alternative))} bases, the window has {width}"
    length = genome.lengths[variant.chrom]
    if not 0 <= variant.position <= length - len(reference):
        return PAST_END, f"{variant.chrom} has {length} bases"
    there = genome.fetch(variant.chrom, variant.position, variant.position + len(reference))
    if there != reference:
        return (LETTERS_OTHER if set(there) - set("ACGT") else MISMATCH), f"the genome has {there}"
    start = variant.position - width // 2
    end = start + width + max(0, len(reference) - len(alternative))
    if ends == "skip" and (start < 0 or end > length):
        return PAST_END, f"{variant.chrom} has {length} bases, the window is {start + 1}-{end}"
    return None


class Window(NamedTuple):
    """A variant's sequences with the reference and with the alternative allele, and an alignment of `columns` columns.

    `letters` are the two sequences, `places` the columns of their bases.
    """

    variant: Variant
    start: int
    letters: tuple[str, str]
    places: tuple[Ints, Ints]
    columns: int


def window(variant: Variant, genome: Genome, width: int) -> Window:
    """`width` bases around a variant with either allele, aligned."""
    before, after = len(variant.reference), len(variant.alternative)
    left = width // 2
    start = variant.position - left
    flanks = genome.padded(variant.chrom, start, start + width + max(0, before - after))
    alternative = (flanks[:left] + variant.alternative + flanks[left + before :])[:width]
    # the first bases of both alleles share columns, the longer allele has the others to itself; then the right flank
    wide = max(before, after)
    columns = np.arange(width + wide - min(before, after))

    def places(allele: int) -> Ints:
        return np.concatenate([columns[: left + allele], columns[left + wide :]])[:width]

    return Window(variant, start, (flanks[:width], alternative), (places(before), places(after)), len(columns))


@dataclass(frozen=True)
class VariantEffect:
    """A variant's two predictions, explained.

    Columns are those of the alignment, in the direction of the genome's plus strand: `letters_reference` and
    `letters_alternative` with '-' for missing bases, `relevance_reference` and `relevance_alternative` (column,), 0
    there. `start` is the coordinate of the first column, `anchor` the column of the variant's first base, `target` the
    explained class (−1 where the target is not a class). `problem` is the fault in the arithmetic of one of the two
    explanations (a value of `plrp.balance.Problem`), or that Σ of the difference has the other sign than the effect;
    empty where nothing did.
    """

    variant: Variant
    start: int
    anchor: int
    score_reference: float
    score_alternative: float
    letters_reference: str
    letters_alternative: str
    relevance_reference: Values
    relevance_alternative: Values
    target: int
    problem: str = ""

    @property
    def effect(self) -> float:
        """Score of the alternative minus score of the reference."""
        return self.score_alternative - self.score_reference

    @property
    def difference(self) -> Values:
        """Relevance of the alternative minus that of the reference, (column,)."""
        return self.relevance_alternative - self.relevance_reference

    @property
    def coordinates(self) -> Ints:
        """Coordinate of each column, from 0; inserted bases have that of the base before them."""
        gaps = np.frombuffer(self.letters_reference.encode(), np.uint8) == ord("-")
        inserted = gaps & (np.arange(len(gaps)) < self._alleles_end)
        return self.start + np.cumsum(~inserted) - 1

    @property
    def _alleles_end(self) -> int:
        """The column after the alleles; gaps behind it are bases that left or entered the window."""
        return self.anchor + max(len(self.variant.reference), len(self.variant.alternative))

    @property
    def strongest(self) -> int:
        """The column in which the relevance differs most."""
        return int(np.abs(self.difference).argmax())

    def rows(self) -> dict[str, Values]:
        """Reference, alternative and their difference per letter, (4, column) each, as `plot_logos` takes them."""
        reference = encode(self.letters_reference.replace("-", "N")) * self.relevance_reference
        alternative = encode(self.letters_alternative.replace("-", "N")) * self.relevance_alternative
        return {"reference": reference, "alternative": alternative, "difference": alternative - reference}

    def plot(self, path: str | Path | None = None, *, flank: int = 30) -> Any:
        """Logos of reference, alternative and difference, `flank` bases to both sides of the variant.

        The window widens to the column of the strongest difference if that is within a hundred bases.
        """
        places = [self.anchor, self._alleles_end]
        if abs(self.strongest - self.anchor) <= 100:
            places.append(self.strongest)
        window = max(0, min(places) - flank), min(len(self.letters_reference), max(places) + flank)
        name = "" if self.variant.id == "." else f"{self.variant.id}   "
        title = f"{name}{self.variant}   score {self.score_reference:.3g} → {self.score_alternative:.3g}"
        return plot_logos(
            self.rows(),
            self.letters_reference,
            sites=[(self.anchor, self._alleles_end, "variant")],
            window=window,
            title=title,
            path=path,
            same_scale=True,
            first_base=-self.anchor,
        )


@dataclass(frozen=True)
class VariantEffects:
    """The effects of many variants, in the order of the file, and the skipped variants with reasons."""

    effects: list[VariantEffect]
    skipped: list[Skipped] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.effects)

    def __iter__(self) -> Iterator[VariantEffect]:
        return iter(self.effects)

    def __getitem__(self, index: int) -> VariantEffect:
        return self.effects[index]

    def __repr__(self) -> str:
        return summary(len(self.effects), Counter(one.reason for one in self.skipped))


def summary(count: int, skipped: Counter[str]) -> str:
    """`3 alleles explained, 2 skipped: reference differs from the genome (1), …`."""
    text = f"{count} allele{'s' * (count != 1)} explained"
    if skipped:
        text += f", {skipped.total()} skipped: " + "; ".join(f"{why} ({n})" for why, n in skipped.most_common())
    return text


def variant_effects(
    model: nn.Module | Callable[..., Any],
    variants: str | Path | Iterable[Variant],
    genome: str | Path | Genome,
    settings: VariantSettings | None = None,
    *,
    show_progress: bool | None = False,
    **changes: Any,
) -> VariantEffects:
    """Scores and relevance with the reference and with the alternative allele of every variant.

    `variants`: a VCF file, or `Variant`s. The fields of `VariantSettings` may be given as keywords: `width`, which is
    required, `target`, `composite`, `pruning`, `strand`, `reverse_target`, `ends`, `batch_size`, `device`.

    Variants that cannot be scored (the reference differs from the genome, symbolic alleles, N, …) are in
    `VariantEffects.skipped`, each with its reason.
    """
    settings = VariantSettings.of(settings, changes)
    known = read_vcf(variants) if isinstance(variants, str | Path) else list(variants)
    results = list(each_effect(model, known, genome, settings, show_progress))
    effects = [one for one in results if isinstance(one, VariantEffect)]
    return VariantEffects(effects, [one for one in results if isinstance(one, Skipped)])


def each_effect(
    model: nn.Module | Callable[..., Any],
    known: Sequence[Variant],
    genome: str | Path | Genome,
    settings: VariantSettings,
    show_progress: bool | None,
) -> Iterator[VariantEffect | Skipped]:
    """`variant_effects` one by one, in order: `batch_size` variants are in memory at a time."""
    width, strand, batch_size = settings.width, settings.strand, settings.batch_size or 64
    if width < 2:
        raise ValueError(f"width={width}: the number of bases that the model reads.")
    target, reverse_target = strand_targets(settings.target, settings.reverse_target)
    if strand == "both":
        check_strands(target, reverse_target)
    if isinstance(target, list | np.ndarray):
        raise ValueError("target is one class, index tuple, text or function for all variants.")
    reference = genome if isinstance(genome, Genome) else Genome(genome)
    rules = {name: getattr(settings, name) for name in ("composite", "pruning", "batch_size", "device")}
    explain = partial(explain_sequences, model, **rules)
    with progress("variants", len(known), show_progress) as step:
        for begin in range(0, len(known), batch_size):
            batch = known[begin : begin + batch_size]
            results: dict[int, VariantEffect | Skipped] = {}
            usable: dict[str, list[int]] = {}
            for k, variant in enumerate(batch):
                why = why_skipped(variant, reference, width, settings.ends)
                if why is not None:
                    results[k] = Skipped(variant, *why)
                else:
                    usable.setdefault(variant.strand if strand == "info" else strand, []).append(k)
            for way, rows in usable.items():
                windows = [window(batch[k], reference, width) for k in rows]
                results.update(zip(rows, _effects(explain, windows, way, target, reverse_target), strict=True))
            yield from (results[k] for k in range(len(batch)))
            step(len(batch))


def _effects(
    explain: Callable[..., Attribution], windows: Sequence[Window], way: str, given: Any, reverse_target: Any
) -> list[VariantEffect]:
    """Both alleles of each window, explained for the `given` target on a strand, or the mean over both strands."""

    def strand(letters: list[str], way: str, target: Any) -> tuple[Attribution, Values]:
        """Sequences explained on one strand, and their relevance per base in the direction of the plus strand."""
        explanation = explain([reverse_complement(one) for one in letters] if way == "-" else letters, target=target)
        return explanation, explanation.per_base()[:, ::-1] if way == "-" else explanation.per_base()

    every, alternatives = map(list, zip(*(window.letters for window in windows), strict=True))
    references = list(dict.fromkeys(every))  # alleles of a record share theirs
    rows = [references.index(letters) for letters in every]
    ways = ("+", "-") if way == "both" else (way,)
    parts = []
    problems = [""] * len(windows)
    classes: Ints | None = None
    for one in ways:
        target = given
        if one == "-" and way == "both" and reverse_target is not None:
            target = reverse_target
        elif given is None and classes is not None:
            target = list(classes)
        before, map_before = strand(references, one, target)
        if classes is None:
            classes = before.target
        if given is None:
            target = [int(classes[row]) for row in rows]
        after, map_after = strand(alternatives, one, target)
        known = zip(problems, before.problems[rows], after.problems, strict=True)
        problems = [next((str(problem) for problem in three if problem), "") for three in known]
        parts.append((before.score[rows], after.score, map_before[rows], map_after))
    assert classes is not None
    means = [sum(column) / len(ways) for column in zip(*parts, strict=True)]
    return [
        _effect(windows[k], [mean[k] for mean in means], int(classes[row]), problems[k]) for k, row in enumerate(rows)
    ]


def _effect(window: Window, means: Sequence[Any], target: int, problem: str) -> VariantEffect:
    """The effect of a variant; `means`: scores with either allele, the reference first, then maps (position,) likewise.

    Letters and relevance go to the columns of the alignment; gaps are '-' and 0.
    """
    letters, relevance = np.full((2, window.columns), b"-", "S1"), np.zeros((2, window.columns), np.float32)
    for allele, places in enumerate(window.places):
        letters[allele, places] = np.frombuffer(window.letters[allele].encode(), "S1")
        relevance[allele, places] = means[2 + allele]
    place = window.variant, window.start, window.variant.position - window.start
    scores = float(means[0]), float(means[1])
    before, after = (row.tobytes().decode() for row in letters)
    total, effect = float(relevance[1].sum() - relevance[0].sum()), scores[1] - scores[0]
    if not problem and total * effect < 0 and min(abs(total), abs(effect)) > SMALL * max(map(abs, scores)):
        problem = TURNED
    return VariantEffect(*place, *scores, before, after, relevance[0], relevance[1], target, problem)
