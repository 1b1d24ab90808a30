"""The effects of a VCF file's variants as files: tables, the VCF with more INFO fields, logos of the strongest."""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from plrp.balance import unwarned
from plrp.errors import needed
from plrp.files import new_file
from plrp.settings import LARGEST

from .outputs import target_words
from .sequence_settings import VariantSettings
from .sequences import Genome, open_text, tsv_line
from .variants import Skipped, VariantEffect, each_effect, read_vcf

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
    settings: VariantSettings | None = None,
    *,
    logos: int = 10,
    about: dict[str, Any] | None = None,
    largest: int = LARGEST,
    show_progress: bool | None = None,
    **changes: Any,
) -> tuple[int, Counter[str]]:
    """Explain the variants of a VCF file into a folder; returns how many were explained, and the skipped by reason.

    Written: `effects.parquet` (an allele per row), `bases.parquet` (a base per row: letters and relevance with either
    allele, and their difference), `effects.vcf` (the file itself with the INFO fields `FIELDS`), `skipped.tsv`, and
    logos of the `logos` strongest effects. The fields of `VariantSettings` may be given as keywords, as in
    `variant_effects`. Memory holds one batch at a time.
    """
    settings = VariantSettings.of(settings, changes)
    folder = Path(out)
    known = read_vcf(vcf, largest=largest)
    genome = genome if isinstance(genome, Genome) else Genome(genome, largest=largest)
    folder.mkdir(parents=True, exist_ok=True)
    if about is not None:
        (folder / "run.json").write_text(json.dumps(about, indent=1) + "\n")
    target = target_words(settings.target)
    skipped: list[Skipped] = []
    scores: dict[tuple[int, int], list[str]] = {}
    strongest: list[tuple[float, int, VariantEffect]] = []
    with (
        new_file(folder / "effects.parquet") as effects_path,
        new_file(folder / "bases.parquet") as bases_path,
        _parquet(effects_path, ALLELE_COLUMNS) as add_allele,
        _parquet(bases_path, BASE_COLUMNS) as add_bases,
        unwarned(),  # the table has a column for it
    ):
        for one in each_effect(model, known, genome, settings, show_progress):
            if isinstance(one, Skipped):
                skipped.append(one)
                continue
            variant, number = one.variant, len(scores)
            coordinate = int(one.coordinates[one.strongest])
            values = one.score_reference, one.score_alternative, one.effect
            scores[variant.line, variant.allele] = [*(f"{v:.6g}" for v in values), str(coordinate + 1)]
            add_allele([[value] for value in _allele(one, number, coordinate, target)])
            add_bases(_bases(one, number))
            heapq.heappush(strongest, (abs(one.effect), -number, one))
            if len(strongest) > logos:
                heapq.heappop(strongest)
    _write_skipped(folder / "skipped.tsv", skipped)
    reasons = {(one.variant.line, one.variant.allele): one.reason for one in skipped}
    _annotate(Path(vcf), folder / "effects.vcf", scores, reasons, largest)
    for rank, (_, _, one) in enumerate(sorted(strongest, reverse=True), 1):
        v = one.variant
        name = f"{rank:02d}_{v.chrom}_{v.position + 1}_{v.reference[:8]}_{v.alternative[:8]}.png"
        one.plot(folder / "logos" / name.replace("/", "_"))
    return len(scores), Counter(one.reason for one in skipped)


ALLELE_COLUMNS = (
    "number:int64 chrom:string position:int64 id:string reference:string alternative:string strand:string "
    "target:string score_reference:float32 score_alternative:float32 effect:float32 strongest_position:int64 "
    "unknown_bases:int32 problem:string"
)
"""Positions count from 1, as in the VCF. `unknown_bases` counts the bases of the window other than A, C, G and T.
`target` is the explained class, or the target as it was given. `problem` names the fault in the
arithmetic of an explanation (a value of `plrp.balance.Problem`), or that Σ of the difference has the other sign than
the effect (`plrp.genomics.variants.TURNED`), and is empty otherwise."""

BASE_COLUMNS = (
    "number:int64 position:int64 base_reference:string base_alternative:string relevance_reference:float32 "
    "relevance_alternative:float32 difference:float32"
)
"""`number` is the allele's; positions count from 1, as in the VCF and in `strongest_position`."""


def _allele(one: VariantEffect, number: int, strongest: int, words: str) -> tuple[Any, ...]:
    """A row of `ALLELE_COLUMNS`."""
    v, target = one.variant, str(one.target) if one.target >= 0 else words
    place = (v.chrom, v.position + 1, v.id, v.reference, v.alternative, v.strand)
    scores = (one.score_reference, one.score_alternative, one.effect)
    unknown = sum(letter not in "ACGT-" for letter in one.letters_reference)
    return (number, *place, target, *scores, strongest + 1, unknown, one.problem)


def _bases(one: VariantEffect, number: int) -> list[Any]:
    """The columns `BASE_COLUMNS` of a variant."""
    letters = [list(one.letters_reference), list(one.letters_alternative)]
    relevance = one.relevance_reference, one.relevance_alternative, one.difference
    return [np.full(len(letters[0]), number), one.coordinates + 1, *letters, *relevance]


@contextmanager
def _parquet(path: Path, columns: str) -> Iterator[Callable[[Sequence[Any]], None]]:
    """A function that takes rows of a Parquet file, as its columns in order; rows are written in groups."""
    with needed("Parquet tables need pyarrow", "genomics"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    types = dict(column.split(":") for column in columns.split())
    schema = pa.schema([(name, getattr(pa, kind)()) for name, kind in types.items()])
    tables: list[Any] = []
    waiting = 0
    with pq.ParquetWriter(path, schema) as writer:

        def write() -> None:
            nonlocal waiting
            if tables:
                writer.write_table(pa.concat_tables(tables).combine_chunks())
            tables.clear()
            waiting = 0

        def add(rows: Sequence[Any]) -> None:
            nonlocal waiting
            tables.append(pa.table(list(rows), schema=schema))
            waiting += tables[-1].num_rows
            if waiting >= 100_000:
                write()

        yield add
        write()


def _write_skipped(path: Path, skipped: Sequence[Skipped]) -> None:
    with new_file(path) as part, part.open("w") as stream:
        stream.write("chrom\tposition\tid\treference\talternative\treason\tdetail\tline\n")
        for one in skipped:
            v = one.variant
            cells = (v.chrom, v.position + 1, v.id, v.reference, v.alternative, one.reason, one.detail, v.line)
            stream.write(tsv_line(*cells))


def _annotate(
    vcf: Path,
    out: Path,
    scores: Mapping[tuple[int, int], list[str]],
    reasons: Mapping[tuple[int, int], str],
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
    line: str, number: int, scores: Mapping[tuple[int, int], list[str]], reasons: Mapping[tuple[int, int], str]
) -> str:
    """A line of the VCF with our INFO fields in place of older ones."""
    cells = line.split("\t")
    cells += ["."] * (8 - len(cells))
    info = [part for part in cells[7].split(";") if part not in ("", ".") and not part.startswith("PLRP_")]
    places = [(number, allele) for allele in range(len(cells[4].split(",")))]
    if any(place in scores for place in places):
        columns = zip(*(scores.get(place, ["."] * 4) for place in places), strict=True)
        info += [f"{name}={','.join(values)}" for name, values in zip(FIELDS, columns, strict=False)]
    if why := dict.fromkeys(reasons[place] for place in places if place in reasons):
        plain = ",".join(
            re.sub(r",? ", "_", reason).replace("'", "") for reason in why
        )  # without INFO's own characters
        info.append(f"PLRP_SKIPPED={plain}")
    cells[7] = ";".join(info) or "."
    return "\t".join(cells)
