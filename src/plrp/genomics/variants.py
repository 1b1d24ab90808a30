"""The variants of a VCF file, and the windows of the genome around them with either allele.

Windows have `width` bases and are centred on the variant's first base. The left flank stays in place; an insertion
pushes bases out of the window on the right, a deletion lets bases in. Both sequences are then aligned: columns are
bases of either, with '-' where one of them has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from plrp.settings import LARGEST

from .sequences import Genome, SequenceError, open_text

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


def why_skipped(variant: Variant, genome: Genome, width: int, ends: Ends) -> tuple[str, str] | None:
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


class Window(NamedTuple):
    """A variant's sequences with the reference and with the alternative allele, and an alignment of `columns` columns.

    `letters` are the two sequences, `places` the columns of their bases.
    """

    variant: Variant
    start: int
    letters: tuple[str, str]
    places: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
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

    def places(allele: int) -> npt.NDArray[np.int64]:
        return np.concatenate([columns[: left + allele], columns[left + wide :]])[:width]

    return Window(variant, start, (flanks[:width], alternative), (places(before), places(after)), len(columns))
