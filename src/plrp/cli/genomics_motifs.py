"""`plrp genomics motifs`: patterns, matrices, seqlets and matching motifs of a run, as a page and as files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp.errors import UsageError, usage
from plrp.genomics.sequence_settings import FileSettings, MotifSettings

from .arguments import add_settings, settings_of
from .genomics_options import check_out

if TYPE_CHECKING:
    from plrp.genomics.motif_search import MotifSearch


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "motifs",
        help="patterns, matrices and matching motifs of an explained file, as a page",
        description="Finds the patterns that surviving stretches (seqlets) of a run of `plrp genomics explain` share.\n"
        "With --model, sequences with shuffled dinucleotides are explained too, and only seqlets that are stronger\n"
        "than those of the shuffled ones count. Written into --out: index.html, patterns.meme, patterns.jaspar,\n"
        "patterns.tsv, seqlets.bed, and hits.bed (the sites of the patterns).",
        epilog="example:\n"
        "  plrp genomics explain sim/sequences.fa.gz --model cnn.pt -p 0.05 --out explained\n"
        "  plrp genomics motifs explained --model cnn.pt --truth sim/motifs.bed --out motifs",
    )
    parser.add_argument("folder", metavar="DIR", help="folder of `plrp genomics explain`")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--model", help="the model of the run, for the null: file.py:factory, or a checkpoint")
    add_settings(parser, FileSettings, "weights")
    parser.add_argument("--truth", metavar="BED", help="sites of motifs, for precision and recall")
    parser.add_argument(
        "--database", metavar="FILE", help="MEME or JASPAR file of motifs to match (default: JASPAR's vertebrates)"
    )
    add_settings(parser, MotifSettings)


def run(arguments: argparse.Namespace) -> int:
    """Search a folder for motifs."""
    from plrp.experiments.motif_page import render_motifs
    from plrp.experiments.pages import write_page
    from plrp.genomics.jobs import load_model, matching_note
    from plrp.genomics.motif_search import Truth, find_motifs, run_settings
    from plrp.genomics.motifs import read_motifs
    from plrp.genomics.sequences import read_bed

    out = Path(arguments.out)
    with usage():
        check_out(arguments.out)
        if not (Path(arguments.folder) / "run.json").is_file():
            raise UsageError(f"{arguments.folder} is no folder of `plrp genomics explain`: it has no run.json.")
        if out.is_file():
            raise UsageError(f"{out} is a file: name a folder.")
        if (out / "run.json").exists():  # also the folder that is read
            raise UsageError(f"{out} holds a run, whose files would be replaced: name another folder.")
        if arguments.model is None and (arguments.target or arguments.reverse_target):
            raise UsageError("--target and --reverse-target go with --model, which explains the null.")
        if arguments.model:  # what is wrong is said before anything is loaded
            run_settings(arguments.folder, target=arguments.target, reverse_target=arguments.reverse_target)
        if arguments.database is not None and not arguments.match:
            raise UsageError("--database is what patterns are matched to: leave --no-match out.")
        database = None if arguments.database is None else read_motifs(arguments.database)
        truth = Truth(read_bed(arguments.truth)) if arguments.truth else None
        model = load_model(arguments.model, arguments.weights).eval() if arguments.model else None
    if arguments.match:
        print(matching_note("patterns"), flush=True)
    settings = settings_of(MotifSettings, arguments, database=database)
    search = find_motifs(arguments.folder, settings, model=model, truth=truth)
    write_results(out, search)
    known = arguments.database and Path(arguments.database).name
    write_page(out / "index.html", render_motifs(search, arguments.folder, settings.limit, known))
    print_results(search)
    seqlets, patterns = plural(search.seqlet_count, "seqlet"), plural(len(search.patterns), "pattern")
    print(f"{search.believed} of {seqlets}, {patterns}; {out / 'index.html'}")
    return 0


def write_results(out: Path, search: MotifSearch) -> None:
    """Patterns, seqlets and hits as the files that other tools read."""
    from plrp.genomics.motifs import write_jaspar, write_meme

    out.mkdir(parents=True, exist_ok=True)
    motifs, counts = [p.motif for p in search.patterns], [p.count for p in search.patterns]
    write_meme(out / "patterns.meme", motifs, counts)
    write_jaspar(out / "patterns.jaspar", motifs, counts)
    _write_table(out / "patterns.tsv", search)
    _write_seqlets(out / "seqlets.bed", search)
    _write_hits(out / "hits.bed", search)


def print_results(search: MotifSearch) -> None:
    """Patterns with their matches, agreement with known sites, and advice, a line each."""
    for number, pattern in enumerate(search.patterns):
        best = f": {_best_match(search.matches[number])}" if search.matches else ""
        print(f"{pattern.motif.name}: {pattern.motif.consensus} ({plural(pattern.count, 'seqlet')}){best}")
    for one in search.agreements:
        print(
            f"{one.name}: precision {one.precision:.2f}, recall {one.recall:.2f}, F1 {one.f1:.2f}, "
            + plural(one.seqlets, "seqlet")
        )
    for sentence in (*search.verdict, *([search.advice] if search.advice else [])):
        print(sentence)
    if search.cuts and not search.believed:
        print("No seqlet is above the null: seqlets.bed and hits.bed are empty.")
    elif not any(len(hits) for hits, _ in search.hits):
        print("No place of a pattern was found: hits.bed is empty.")


def _best_match(matches: Any) -> str:
    """The match of a pattern, or how far from one it is."""
    from plrp.genomics.seqlets import e_text, named_match

    named = named_match(matches)
    return f"{named.motif}, E = {e_text(named.e)}" if named else f"no match (at best E = {e_text(matches[0].e)})"


def plural(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count} {noun}{'s' * (count != 1)}"


def _write_table(path: Path, search: MotifSearch) -> None:
    """A pattern per row, with its match, if it has one; p and E are those of the nearest motif."""
    from plrp.genomics.seqlets import named_match

    lines = ["pattern\tconsensus\tseqlets\tmatch\tid\tp\te\n"]
    for number, pattern in enumerate(search.patterns):
        matches = search.matches[number] if search.matches else []
        named = named_match(matches)
        match = (
            *((named.motif.name, named.motif.id or ".") if named else (".", ".")),
            *((f"{matches[0].p:.3g}", f"{matches[0].e:.3g}") if matches else (".", ".")),
        )
        lines.append("\t".join((pattern.motif.name, pattern.motif.consensus, str(pattern.count), *match)) + "\n")
    path.write_text("".join(lines))


def _write_seqlets(path: Path, search: MotifSearch) -> None:
    """Seqlets above the null as BED6+2: `for` or `against`, strength of 1000, relevance, the name of the sequence."""
    strongest = max((abs(s.score).max(initial=0) for s, _ in search.seqlets), default=0) or 1.0
    rows = []
    for seqlets, names in search.seqlets:
        for row, start, end, score in zip(seqlets.sequence, seqlets.start, seqlets.end, seqlets.score, strict=True):
            chrom, a, b, strand = _place(search, names[row], start, end, ".")
            kind, strength = "for" if score > 0 else "against", round(1000 * abs(score) / strongest)
            rows.append((chrom, a, b, kind, strength, strand, f"{score:.6g}", names[row]))
    _write_bed(path, rows)


def _write_hits(path: Path, search: MotifSearch) -> None:
    """Places of patterns as BED6+2: the match or the pattern's name, cosine of 1000, pattern, sequence's name."""
    from plrp.genomics.seqlets import named_match

    named = [named_match(matches) for matches in search.matches] or [None] * len(search.patterns)
    titles = [m.motif.name if m else pattern.motif.name for m, pattern in zip(named, search.patterns, strict=True)]
    rows = []
    for hits, names in search.hits:
        columns = (hits.pattern, hits.sequence, hits.start, hits.end, hits.reverse, hits.cosine)
        for number, row, start, end, reverse, cosine in zip(*columns, strict=True):
            chrom, a, b, strand = _place(search, names[row], start, end, "-" if reverse else "+")
            pattern = search.patterns[number].motif.name
            rows.append((chrom, a, b, titles[number], round(1000 * cosine), strand, pattern, names[row]))
    _write_bed(path, rows)


def _place(search: MotifSearch, name: str, start: int, end: int, strand: str) -> tuple[str, int, int, str]:
    """Where a stretch of a sequence is on the genome, where that is known."""
    from plrp.genomics.sequences import on_genome

    interval = search.intervals.get(name)
    return (name, int(start), int(end), strand) if interval is None else on_genome(interval, start, end, strand)


def _write_bed(path: Path, rows: list[tuple[Any, ...]]) -> None:
    from plrp.genomics.sequences import tab_line

    rows.sort(key=lambda row: row[:3])
    path.write_text("".join(tab_line(*row) for row in rows))
