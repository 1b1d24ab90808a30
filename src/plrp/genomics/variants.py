"""What a variant does to a prediction, base by base.

For each variant of a VCF the model sees two sequences of the genome around it, with the reference and with the
alternative allele. Both are explained for the same score, and the difference of their relevance says which bases carry
the change: the broken motif, the new splice site, or a place far away that now reads differently.

Windows have `width` bases and are centred on the variant's first base. The left flank stays in place; an insertion
pushes bases out of the window on the right, a deletion lets bases in. Both sequences are then aligned: columns are
bases of either, with '-' where one of them has none, and a missing base has no relevance. So

Σ difference = Σ relevance of the alternative − Σ relevance of the reference,

which is the difference of the two scores, but for what biases and ε took.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import nn

from plrp.composites import Composite
from plrp.files import new_file
from plrp.health import unwarned
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.runs.inputs import LARGEST

from .attribution import COMPOSITE, _is_classes, explain_sequences
from .logo import plot_logos
from .outputs import target_from_text
from .sequences import Genome, SequenceError, encode, open_text, reverse_complement, tab_line

Strand: TypeAlias = Literal["+", "-", "both", "info"]
Ends: TypeAlias = Literal["skip", "pad"]

NO_ALTERNATIVE = "no alternative allele"
SYMBOLIC = "symbolic allele, breakend or '*'"
LETTERS_OTHER = "letters other than A, C, G, T"
UNKNOWN_CONTIG = "contig not in the genome"
MISMATCH = "reference differs from the genome"
PAST_END = "window past the end of the contig"
TOO_LONG = "allele longer than half the window"


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
    """A variant that was not scored: `reason` is one of the module's, `detail` what was found."""

    variant: Variant
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class VariantEffect:
    """A variant's two predictions, explained.

    Columns are those of the alignment, in the direction of the genome's plus strand: `letters_reference` and
    `letters_alternative` with '-' for missing bases, `relevance_reference` and `relevance_alternative` (column,), 0
    there. `start` is the coordinate of the first column, `anchor` the column of the variant's first base, `target` the
    explained class (−1 where the target is not a class). `problem` is what is wrong with one of the two explanations (a
    value of `plrp.health.Problem`), empty where nothing is.
    """

    variant: Variant
    start: int
    anchor: int
    score_reference: float
    score_alternative: float
    letters_reference: str
    letters_alternative: str
    relevance_reference: npt.NDArray[np.float32]
    relevance_alternative: npt.NDArray[np.float32]
    target: int
    problem: str = ""

    @property
    def effect(self) -> float:
        """Score of the alternative minus score of the reference."""
        return self.score_alternative - self.score_reference

    @property
    def difference(self) -> npt.NDArray[np.float32]:
        """Relevance of the alternative minus that of the reference, (column,)."""
        return self.relevance_alternative - self.relevance_reference

    @property
    def coordinates(self) -> npt.NDArray[np.int64]:
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

    def rows(self) -> dict[str, npt.NDArray[np.float32]]:
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
        title = f"{self.variant}   score {self.score_reference:.3g} → {self.score_alternative:.3g}"
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
    """The effects of many variants, in the order of the file, and those that were skipped, with reasons."""

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


# -- reading


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
            strand = _info(fields[7] if len(fields) > 7 else "").get("STRAND", "+")
            strand = "-" if strand in ("-", "-1") else "+"
            for allele, alternative in enumerate(fields[4].split(",")):
                variants.append(
                    Variant(
                        fields[0],
                        int(fields[1]) - 1,
                        fields[3].upper(),
                        alternative if alternative.startswith("<") else alternative.upper(),
                        fields[2],
                        strand,
                        number,
                        allele,
                    )
                )
    if not variants and not header:
        raise SequenceError(f"{path}, line 1: no header and no variants; this is not VCF.")
    return variants


def _info(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (part.partition("=") for part in text.split(";"))}


def _why_skipped(variant: Variant, genome: Genome, width: int, ends: Ends) -> tuple[str, str] | None:
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
        return PAST_END, f"{variant.chrom} has {length} bases, the window is {start}-{end}"
    return None


@dataclass(frozen=True, slots=True)
class _Window:
    """The two sequences of a variant, and where their bases stand in the alignment."""

    variant: Variant
    start: int
    reference: str
    alternative: str
    columns_reference: npt.NDArray[np.int64]
    columns_alternative: npt.NDArray[np.int64]
    columns: int


def _window(variant: Variant, genome: Genome, width: int) -> _Window:
    before, after = len(variant.reference), len(variant.alternative)
    start = variant.position - width // 2
    left = width // 2
    flanks = genome.padded(variant.chrom, start, start + width + max(0, before - after))
    reference = flanks[:width]
    alternative = (flanks[:left] + variant.alternative + flanks[left + before :])[:width]
    # the first bases of both alleles share columns, the longer allele has the others to itself; then the right flank
    shared, wide = min(before, after), max(before, after)
    columns = np.arange(width + wide - shared)
    alleles = {True: columns[: left + wide], False: columns[: left + shared]}
    right = columns[left + wide :]
    columns_reference = np.concatenate([alleles[before == wide], right])[:width]
    columns_alternative = np.concatenate([alleles[after == wide], right])[:width]
    return _Window(variant, start, reference, alternative, columns_reference, columns_alternative, len(columns))


# -- explaining


def variant_effects(
    model: nn.Module | Callable[..., Any],
    variants: str | Path | Iterable[Variant],
    genome: str | Path | Genome,
    *,
    width: int,
    target: Any = None,
    composite: str | Composite = COMPOSITE,
    pruning: Pruning | None = None,
    strand: Strand = "+",
    reverse_target: Any = None,
    ends: Ends = "skip",
    batch_size: int = 64,
    device: str | None = None,
    show_progress: bool | None = False,
) -> VariantEffects:
    """Scores and relevance with the reference and with the alternative allele of every variant.

    `variants`: a VCF file, or `Variant`s. `width`: bases that the model reads. `target` as in `explain_sequences`, or a
    text as in `plrp.genomics.outputs`; None is the class that wins on the reference, for both alleles. `strand`: what
    the model reads: the genome's strand, the other one, `"both"` (scores and relevance are averaged), or `"info"`, the
    STRAND of each variant's INFO field; results are in the direction of the plus strand always. `ends`: windows that
    reach past their contig are skipped, or padded with N.

    Variants that cannot be scored (the reference differs from the genome, symbolic alleles, N, …) are in
    `VariantEffects.skipped`, each with its reason.
    """
    effects: list[VariantEffect] = []
    skipped: list[Skipped] = []
    for one in each_effect(
        model, variants, genome, width=width, target=target, composite=composite, pruning=pruning, strand=strand,
        reverse_target=reverse_target, ends=ends, batch_size=batch_size, device=device, show_progress=show_progress,
    ):  # fmt: skip
        if isinstance(one, Skipped):
            skipped.append(one)
        else:
            effects.append(one)
    return VariantEffects(effects, skipped)


def each_effect(
    model: nn.Module | Callable[..., Any],
    variants: str | Path | Iterable[Variant],
    genome: str | Path | Genome,
    *,
    width: int,
    target: Any = None,
    composite: str | Composite = COMPOSITE,
    pruning: Pruning | None = None,
    strand: Strand = "+",
    reverse_target: Any = None,
    ends: Ends = "skip",
    batch_size: int = 64,
    device: str | None = None,
    show_progress: bool | None = False,
) -> Iterator[VariantEffect | Skipped]:
    """`variant_effects` one by one, in order: `batch_size` variants are in memory at a time."""
    if width < 2:
        raise ValueError(f"width={width}: the number of bases that the model reads.")
    if strand not in ("+", "-", "both", "info"):
        raise ValueError(f"strand={strand!r}: choose '+', '-', 'both' or 'info'.")
    target, reverse_target = (target_from_text(t) if isinstance(t, str) else t for t in (target, reverse_target))
    if strand == "both" and reverse_target is None and not _is_classes(target):
        raise ValueError(
            "Averaging over strands with a target that is not a class: give `reverse_target`, the target on the "
            "reverse complement (position p is L − 1 − p there)."
        )
    if isinstance(target, list | np.ndarray):
        raise ValueError("target is one class, index tuple, text or function for all variants.")
    known = read_vcf(variants) if isinstance(variants, str | Path) else list(variants)
    reference = genome if isinstance(genome, Genome) else Genome(genome)

    def explain_strand(letters: list[str], way: str, wanted: Any) -> Any:
        """Scores, classes, relevance in the direction of the plus strand, and problems."""
        read = [reverse_complement(one) for one in letters] if way == "-" else letters
        found = explain_sequences(
            model, read, target=wanted, composite=composite, pruning=pruning, batch_size=batch_size, device=device
        )
        per_base = found.per_base()
        return found.score, found.target, per_base[:, ::-1] if way == "-" else per_base, found.problems

    def batch_effects(windows: Sequence[_Window], way: str) -> list[VariantEffect]:
        distinct = list(dict.fromkeys(window.reference for window in windows))  # alleles of a record share theirs
        rows = [distinct.index(window.reference) for window in windows]
        alternatives = [window.alternative for window in windows]
        ways = ("+", "-") if way == "both" else (way,)
        parts = []
        problems = [""] * len(windows)
        classes: npt.NDArray[np.int64] | None = None
        for one in ways:
            wanted = target
            if one == "-" and way == "both" and reverse_target is not None:
                wanted = reverse_target
            elif target is None and classes is not None:
                wanted = list(classes)
            score, numbers, relevance, wrong = explain_strand(distinct, one, wanted)
            if classes is None:
                classes = numbers
            wanted = [int(classes[row]) for row in rows] if target is None else wanted
            other_score, _, other_relevance, other_wrong = explain_strand(alternatives, one, wanted)
            found_wrong = zip(problems, wrong[rows], other_wrong, strict=True)
            problems = [next((str(problem) for problem in three if problem), "") for three in found_wrong]
            parts.append((score[rows], relevance[rows], other_score, other_relevance))
        assert classes is not None
        means = [sum(column) / len(ways) for column in zip(*parts, strict=True)]
        return [
            _effect(window, problems[k], int(classes[row]), *(column[k] for column in means))
            for k, (window, row) in enumerate(zip(windows, rows, strict=True))
        ]

    with progress("variants", len(known), show_progress) as step:
        for begin in range(0, len(known), batch_size):
            batch = known[begin : begin + batch_size]
            found: dict[int, VariantEffect | Skipped] = {}
            usable: dict[str, list[int]] = {}
            for k, variant in enumerate(batch):
                why = _why_skipped(variant, reference, width, ends)
                if why is not None:
                    found[k] = Skipped(variant, *why)
                else:
                    usable.setdefault(variant.strand if strand == "info" else strand, []).append(k)
            for way, chosen in usable.items():
                windows = [_window(batch[k], reference, width) for k in chosen]
                found.update(zip(chosen, batch_effects(windows, way), strict=True))
            yield from (found[k] for k in range(len(batch)))
            step(len(batch))


def _effect(
    window: _Window,
    problem: str,
    target: int,
    score_reference: float,
    relevance_reference: npt.NDArray[np.float32],
    score_alternative: float,
    relevance_alternative: npt.NDArray[np.float32],
) -> VariantEffect:
    def aligned(
        letters: str, relevance: npt.NDArray[np.float32], columns: npt.NDArray[np.int64]
    ) -> tuple[str, npt.NDArray[np.float32]]:
        text, values = np.full(window.columns, b"-", "S1"), np.zeros(window.columns, np.float32)
        text[columns] = np.frombuffer(letters.encode(), "S1")
        values[columns] = relevance
        return text.tobytes().decode(), values

    before = aligned(window.reference, relevance_reference, window.columns_reference)
    after = aligned(window.alternative, relevance_alternative, window.columns_alternative)
    return VariantEffect(
        window.variant,
        window.start,
        window.variant.position - window.start,
        float(score_reference),
        float(score_alternative),
        before[0],
        after[0],
        before[1],
        after[1],
        target,
        problem,
    )


# -- files


FIELDS = {
    "PLRP_REF": ("A", "Float", "Score with the reference allele"),
    "PLRP_ALT": ("A", "Float", "Score with the alternative allele"),
    "PLRP_EFFECT": ("A", "Float", "PLRP_ALT minus PLRP_REF"),
    "PLRP_STRONGEST": ("A", "Integer", "Position of the base whose relevance changes most"),
    "PLRP_SKIPPED": (".", "String", "Why alleles were not scored"),
}
"""INFO fields of the VCF that is written: number, type, meaning."""


def explain_variants(
    vcf: str | Path,
    genome: str | Path | Genome,
    model: nn.Module | Callable[..., Any],
    out: str | Path,
    *,
    logos: int = 10,
    about: dict[str, Any] | None = None,
    largest: int = LARGEST,
    show_progress: bool | None = None,
    **options: Any,
) -> tuple[int, Counter[str]]:
    """Explain the variants of a VCF file into a folder; returns how many were explained, and the skipped by reason.

    Written: `effects.parquet` (an allele per row), `bases.parquet` (a base per row: letters and relevance with either
    allele, and their difference), `effects.vcf` (the file itself with the INFO fields `FIELDS`), `skipped.tsv`, and
    logos of the `logos` strongest effects. `options` are those of `variant_effects`. Memory holds one batch at a time.
    """
    folder = Path(out)
    known = read_vcf(vcf, largest=largest)
    genome = genome if isinstance(genome, Genome) else Genome(genome, largest=largest)
    folder.mkdir(parents=True, exist_ok=True)
    if about is not None:
        (folder / "run.json").write_text(json.dumps(about, indent=1) + "\n")
    skipped: list[Skipped] = []
    scores: dict[tuple[int, int], tuple[float, float, int]] = {}
    strongest: list[tuple[float, int, VariantEffect]] = []
    with new_file(folder / "effects.parquet") as effects_path, new_file(folder / "bases.parquet") as bases_path:
        alleles, bases = _ParquetTable(effects_path, ALLELE_COLUMNS), _ParquetTable(bases_path, BASE_COLUMNS)
        with alleles, bases, unwarned():  # what is unhealthy stands in the table
            for one in each_effect(model, known, genome, show_progress=show_progress, **options):
                if isinstance(one, Skipped):
                    skipped.append(one)
                    continue
                variant, number = one.variant, len(scores)
                coordinate = int(one.coordinates[one.strongest])
                scores[variant.line, variant.allele] = one.score_reference, one.score_alternative, coordinate + 1
                alleles.add(_allele_row(one, number, coordinate))
                bases.add(_base_rows(one, number))
                if logos:
                    heapq.heappush(strongest, (abs(one.effect), -number, one))
                    strongest = heapq.nlargest(logos, strongest) if len(strongest) > 2 * logos else strongest
                    heapq.heapify(strongest)
    _write_skipped(folder / "skipped.tsv", skipped)
    reasons = {(one.variant.line, one.variant.allele): one.reason for one in skipped}
    _annotate(Path(vcf), folder / "effects.vcf", scores, reasons, largest)
    for rank, (_, _, one) in enumerate(heapq.nlargest(logos, strongest), 1):
        variant = one.variant
        name = (
            f"{rank:02d}_{variant.chrom}_{variant.position + 1}_{variant.reference[:8]}_{variant.alternative[:8]}.png"
        )
        one.plot(folder / "logos" / name.replace("/", "_"))
    return len(scores), Counter(one.reason for one in skipped)


ALLELE_COLUMNS = (
    "number:int64 chrom:string position:int64 id:string reference:string alternative:string strand:string "
    "target:int64 score_reference:float32 score_alternative:float32 effect:float32 strongest_position:int64 "
    "unknown_bases:int32 problem:string"
)
"""Positions count from 1, as in the VCF; `unknown_bases` are those of the window that are not A, C, G or T;
`problem` is what is wrong with an explanation (`plrp.health`)."""

BASE_COLUMNS = (
    "number:int64 coordinate:int64 base_reference:string base_alternative:string relevance_reference:float32 "
    "relevance_alternative:float32 difference:float32"
)
"""`number` is the allele's; coordinates count from 0, as in `relevance.parquet`."""


def _allele_row(one: VariantEffect, number: int, strongest: int) -> dict[str, list[Any]]:
    variant = one.variant
    values = (
        number, variant.chrom, variant.position + 1, variant.id, variant.reference, variant.alternative, variant.strand,
        one.target, one.score_reference, one.score_alternative, one.effect, strongest + 1,
        sum(one.letters_reference.count(letter) for letter in set(one.letters_reference) - set("ACGT-")),
        one.problem,
    )  # fmt: skip
    return dict(zip(_names(ALLELE_COLUMNS), ([value] for value in values), strict=True))


def _base_rows(one: VariantEffect, number: int) -> dict[str, Any]:
    return {
        "number": np.full(len(one.letters_reference), number),
        "coordinate": one.coordinates,
        "base_reference": list(one.letters_reference),
        "base_alternative": list(one.letters_alternative),
        "relevance_reference": one.relevance_reference,
        "relevance_alternative": one.relevance_alternative,
        "difference": one.difference,
    }


def _names(columns: str) -> list[str]:
    return [column.partition(":")[0] for column in columns.split()]


class _ParquetTable:
    """Rows that go to a Parquet file in groups."""

    def __init__(self, path: Path, columns: str) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise ImportError("Parquet tables need pyarrow: pip install 'plrp[genomics]'") from None
        self._pa, types = pa, dict(column.split(":") for column in columns.split())
        self.schema = pa.schema([(name, getattr(pa, kind)()) for name, kind in types.items()])
        self._writer = pq.ParquetWriter(path, self.schema)
        self._tables: list[Any] = []
        self._rows = 0

    def __enter__(self) -> _ParquetTable:
        return self

    def add(self, rows: dict[str, Any]) -> None:
        """Columns of one length each."""
        table = self._pa.table(rows, schema=self.schema)
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows >= 100_000:
            self._flush()

    def _flush(self) -> None:
        if self._tables:
            self._writer.write_table(self._pa.concat_tables(self._tables).combine_chunks())
        self._tables, self._rows = [], 0

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self._flush()
        self._writer.close()


def _write_skipped(path: Path, skipped: Sequence[Skipped]) -> None:
    with new_file(path) as part, part.open("w") as stream:
        stream.write("chrom\tposition\tid\treference\talternative\treason\tdetail\tline\n")
        for one in skipped:
            v = one.variant
            cells = (v.chrom, v.position + 1, v.id, v.reference, v.alternative, one.reason, one.detail, v.line)
            stream.write(tab_line(*cells))


def _annotate(
    vcf: Path,
    out: Path,
    scores: dict[tuple[int, int], tuple[float, float, int]],
    reasons: dict[tuple[int, int], str],
    largest: int,
) -> None:
    """The VCF once more, with our INFO fields; everything else stays as it was."""
    described = "".join(
        f'##INFO=<ID={name},Number={number},Type={kind},Description="{meaning}">\n'
        for name, (number, kind, meaning) in FIELDS.items()
    )
    columns = "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
    begun = False
    with open_text(vcf, largest=largest) as numbered, new_file(out) as part, part.open("w") as stream:
        for number, line in numbered:
            if line.startswith("##INFO=<ID=PLRP_"):
                continue
            if line.startswith("#CHROM"):
                stream.write(described)
                begun = True
            elif not line.startswith("#") and line.strip():
                if not begun:
                    stream.write(f"##fileformat=VCFv4.2\n{described}{columns}")
                    begun = True
                line = _with_fields(line, number, scores, reasons)
            stream.write(f"{line}\n")


def _with_fields(
    line: str,
    number: int,
    scores: dict[tuple[int, int], tuple[float, float, int]],
    reasons: dict[tuple[int, int], str],
) -> str:
    fields = line.split("\t")
    fields += ["."] * (8 - len(fields))
    alleles = range(len(fields[4].split(",")))
    rows = [scores.get((number, allele)) for allele in alleles]
    info = [part for part in fields[7].split(";") if part not in ("", ".") and not part.startswith("PLRP_")]
    if any(row is not None for row in rows):
        for name, value in (
            ("PLRP_REF", lambda row: f"{row[0]:.6g}"),
            ("PLRP_ALT", lambda row: f"{row[1]:.6g}"),
            ("PLRP_EFFECT", lambda row: f"{row[1] - row[0]:.6g}"),
            ("PLRP_STRONGEST", lambda row: f"{row[2]}"),
        ):
            info.append(f"{name}=" + ",".join("." if row is None else value(row) for row in rows))
    why = dict.fromkeys(reasons[number, allele] for allele in alleles if (number, allele) in reasons)
    if why:
        info.append("PLRP_SKIPPED=" + ",".join(_info_word(reason) for reason in why))
    fields[7] = ";".join(info) or "."
    return "\t".join(fields)


def _info_word(reason: str) -> str:
    """A reason without the characters that INFO fields use themselves."""
    return reason.replace(", ", "_").replace(" ", "_").replace("'", "")
