"""`plrp genomics motifs`, `browser`, `logo` and `export`: the steps after a run of `plrp genomics explain`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp import genomics
from plrp.errors import UsageError, not_installed, usage
from plrp.genomics.sequence_settings import FileSettings, MotifSettings
from plrp.settings import count
from plrp.spelling import plural

from .arguments import PICTURE, Shown, add_options, add_settings, check_out, chosen, say, settings_of, tell

if TYPE_CHECKING:
    from plrp.genomics.motif_search import MotifSearch


OVERLAP: Shown = {
    "--overlap {mean,sum,strongest}": ("relevance of a base that lies in several intervals", str, "mean"),
}
"""How values of overlapping intervals are joined (`plrp.genomics.export.Overlap`)."""


# -- motifs


def add_motifs(commands: Any) -> None:
    """Add `plrp genomics motifs`."""
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
    add_options(parser, {"--truth BED": "sites of motifs, for precision and recall"})
    add_options(parser, {"--database FILE": "MEME or JASPAR file of motifs to match (default: JASPAR's vertebrates)"})
    add_settings(parser, MotifSettings)
    parser.set_defaults(run=run_motifs)


def run_motifs(arguments: argparse.Namespace) -> int:
    """Search a folder for motifs."""
    from plrp.experiments.dna_pages import render_motifs
    from plrp.experiments.pages import write_page
    from plrp.genomics.jobs import matching_note
    from plrp.genomics.motif_search import Truth, find_motifs, run_settings
    from plrp.genomics.network import load_model

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
        if arguments.model:  # wrong settings are named before anything is loaded
            run_settings(arguments.folder, target=arguments.target, reverse_target=arguments.reverse_target)
        if arguments.database is not None and not arguments.match:
            raise UsageError("--database names the motifs for matching: leave --no-match out.")
        database = None if arguments.database is None else genomics.read_motifs(arguments.database)
        truth = Truth(genomics.read_bed(arguments.truth)) if arguments.truth else None
        model = load_model(arguments.model, arguments.weights).eval() if arguments.model else None
    if arguments.match:
        tell(matching_note("patterns"))
    settings = settings_of(MotifSettings, arguments, database=database)
    search = find_motifs(arguments.folder, settings, model=model, truth=truth)
    write_results(out, search)
    known = arguments.database and Path(arguments.database).name
    write_page(out / "index.html", render_motifs(search, arguments.folder, settings.limit, known))
    print_results(search)
    seqlets, patterns = plural(search.seqlet_count, "seqlet"), plural(len(search.patterns), "pattern")
    tell(f"{search.believed} of {seqlets}, {patterns}; {out / 'index.html'}")
    return 0


def write_results(out: Path, search: MotifSearch) -> None:
    """Patterns, seqlets and hits as the files that other tools read."""
    from plrp.genomics.export import write_bed
    from plrp.genomics.seqlets import named_match
    from plrp.genomics.sequences import tsv_line

    out.mkdir(parents=True, exist_ok=True)
    motifs, counts = [p.motif for p in search.patterns], [p.count for p in search.patterns]
    genomics.write_meme(out / "patterns.meme", motifs, counts)
    genomics.write_jaspar(out / "patterns.jaspar", motifs, counts)
    # p and E are those of the nearest motif
    lines, titles = [tsv_line("pattern", "consensus", "seqlets", "match", "id", "p", "e")], []
    for motif, number, matches in zip(motifs, counts, search.matches or [[]] * len(motifs), strict=True):
        named = named_match(motif, matches)
        match = (named.motif.name, named.motif.id or ".") if named else (".", ".")
        nearest = (f"{matches[0].p:.3g}", f"{matches[0].e:.3g}") if matches else (".", ".")
        lines.append(tsv_line(motif.name, motif.consensus, number, *match, *nearest))
        titles.append(named.motif.name if named else motif.name)
    (out / "patterns.tsv").write_text("".join(lines))
    write_bed(out / "seqlets.bed", _seqlet_rows(search))
    write_bed(out / "hits.bed", _hit_rows(search, titles))


def _seqlet_rows(search: MotifSearch) -> Iterator[tuple[Any, ...]]:
    """Seqlets above the null for `write_bed`: `for` or `against`, strength of 1000, relevance, name of the sequence."""
    strongest = max((abs(s.score).max(initial=0) for s, _ in search.seqlets), default=0) or 1.0
    for seqlets, names in search.seqlets:
        for row, start, end, score in zip(seqlets.sequence, seqlets.start, seqlets.end, seqlets.score, strict=True):
            kind, strength = "for" if score > 0 else "against", round(1000 * abs(score) / strongest)
            yield search.intervals[names[row]], start, end, kind, strength, ".", f"{score:.6g}", names[row]


def _hit_rows(search: MotifSearch, titles: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Places of patterns for `write_bed`: the match or the pattern's name, cosine of 1000, pattern, sequence's name."""
    for hits, names in search.hits:
        columns = (hits.pattern, hits.sequence, hits.start, hits.end, hits.reverse, hits.cosine)
        for number, row, start, end, reverse, cosine in zip(*columns, strict=True):
            place, pattern = search.intervals[names[row]], search.patterns[number].motif.name
            score, strand = round(1000 * cosine), "-" if reverse else "+"
            yield place, start, end, titles[number], score, strand, pattern, names[row]


def print_results(search: MotifSearch) -> None:
    """Patterns with their matches, agreement with known sites, and advice, a line each."""
    from plrp.genomics.seqlets import e_text, named_match

    for number, pattern in enumerate(search.patterns):
        best = ""
        if search.matches:
            e = e_text(search.matches[number][0].e)
            named = named_match(pattern.motif, search.matches[number])
            best = f": {named.motif}, E = {e}" if named else f": no match (at best E = {e})"
        tell(f"{pattern.motif.name}: {pattern.motif.consensus} ({plural(pattern.count, 'seqlet')}){best}")
    for one in search.agreements:
        figures = f"precision {one.precision:.2f}, recall {one.recall:.2f}, F1 {one.f1:.2f}"
        tell(f"{one.name}: {figures}, {plural(one.seqlets, 'seqlet')}")
    for sentence in filter(None, (*search.verdict, search.advice)):
        tell(sentence)
    if search.cuts and not search.believed:
        tell(f"No seqlet is above the null: seqlets.bed {'is' if search.patterns else 'and hits.bed are'} empty.")
    elif not any(len(hits) for hits, _ in search.hits):
        tell("No place of a pattern was found: hits.bed is empty.")


# -- browser


def add_browser(commands: Any) -> None:
    """Add `plrp genomics browser`."""
    parser = commands.add_parser(
        "browser",
        help="one page with a genome browser: relevance as letters, seqlets, motif hits",
        description="Writes folders of `plrp genomics explain` as one self-contained page with the genome browser\n"
        "igv.js in it, which needs no network: a track of letters per folder (LRP, pruned, ISM), seqlets and\n"
        "motif hits below. Sequences of a FASTA file need no genome.",
        epilog="example:\n"
        "  plrp genomics explain sim/sequences.fa.gz --model cnn.pt --out lrp\n"
        "  plrp genomics explain sim/sequences.fa.gz --model cnn.pt -p 0.05 --out pruned\n"
        "  plrp genomics explain sim/sequences.fa.gz --model cnn.pt --method ism --out ism\n"
        "  plrp genomics motifs pruned --model cnn.pt --out motifs\n"
        "  plrp genomics browser lrp pruned ism --motifs motifs --bed planted=sim/motifs.bed --out browser.html",
    )
    parser.add_argument("folders", metavar="DIR", nargs="+", help="folders of `plrp genomics explain`, a track each")
    parser.add_argument("--out", required=True, metavar="FILE", help="page to write, such as browser.html")
    parser.add_argument("--motifs", metavar="DIR", help="folder of `plrp genomics motifs`: its seqlets and hits")
    bed_help = "one more track of intervals; may be given several times"
    parser.add_argument("--bed", action="append", default=[], type=named_file, metavar="[NAME=]FILE", help=bed_help)
    add_options(parser, {"--count N": ("show the first N sequences (default: all)", count), **OVERLAP})
    add_options(parser, {"--title TITLE": ("title of the page", str, "Relevance per base")})
    parser.set_defaults(run=run_browser)


def named_file(text: str) -> tuple[str, str]:
    """`planted=motifs.bed`: the name of a track, or else that of its file, and the file."""
    name, equals, path = text.partition("=")
    return (name, path) if equals else (Path(text).name, text)


def run_browser(arguments: argparse.Namespace) -> int:
    """Write the page."""
    out = Path(arguments.out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{out} should end in .html: the page is one file.")
    asked = chosen(arguments, "motifs", "overlap", "count", "title")
    with usage():
        shown = genomics.write_browser(out, arguments.folders, beds=dict(arguments.bed), show_progress=None, **asked)
    tell(f"{out}: {plural(shown, 'sequence', ',')}, {out.stat().st_size / 1e6:.1f} MB")
    return 0


# -- logo


def window(text: str) -> tuple[int, int]:
    """`60-110`: bases 60 to 109."""
    try:
        start, end = (int(part) for part in text.replace(":", "-").split("-"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write start-end such as 60-110") from None
    if not 0 <= start < end:
        raise argparse.ArgumentTypeError(f"{text!r}: start before end")
    return start, end


WINDOW: Shown = {"--window START-END": ("draw these bases only", window)}

DRAWING: Shown = {
    **WINDOW,
    "--truth BED": "sites of motifs, which are shaded, named, and drawn as a first row",
    "--same-scale": "one y-axis for all rows of a sequence",
}


def add_logo(commands: Any) -> None:
    """Add `plrp genomics logo`."""
    parser = commands.add_parser(
        "logo",
        help="draw relevance as sequence logos",
        description="Draws sequences of one or more folders of `plrp genomics explain` under each other, on one axis.",
        epilog="example:\n"
        "  plrp genomics explain sim/sequences.fa.gz --model cnn.pt --out lrp\n"
        "  plrp genomics explain sim/sequences.fa.gz --model cnn.pt -p 0.05 --out plrp05\n"
        "  plrp genomics logo lrp plrp05 --names sim0 sim1 --truth sim/motifs.bed --out logo.png",
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="folders of `plrp genomics explain`, one row each")
    add_options(parser, PICTURE)
    parser.add_argument("--names", nargs="+", metavar="NAME", help="sequences to draw (default: the first three)")
    add_options(parser, DRAWING)
    parser.set_defaults(run=run_logo)


def run_logo(arguments: argparse.Namespace) -> int:
    """Draw sequences of folders."""
    import numpy as np

    from plrp.genomics.browser import run_titles
    from plrp.genomics.export import open_relevance, read_relevance
    from plrp.genomics.logo import logo_page

    for folder in arguments.folders:
        open_relevance(folder)  # refuses a folder without results
    import pyarrow.parquet as pq

    files = [Path(folder) / "relevance.parquet" for folder in arguments.folders]
    known = all((file.parent / "run.json").is_file() for file in files)
    labels = run_titles(arguments.folders) if known else [Path(folder).name for folder in arguments.folders]
    tables = dict(zip(labels, files, strict=True))
    first = (sequences.names for sequences, _ in read_relevance(arguments.folders[0], count=3))
    names = arguments.names or [name for several in first for name in several]
    sites = genomics.read_bed(arguments.truth) if arguments.truth else []
    page = []
    for name in names:
        rows: dict[str, Any] = {}
        letters = ""
        for label, file in tables.items():
            table = pq.read_table(file, filters=[("name", "=", name)], columns=["base", "relevance"])
            if not table.num_rows:
                raise UsageError(f"{file} has no sequence {name!r}.")
            letters = "".join(table["base"].to_pylist())
            rows[label] = np.asarray(table["relevance"])
        here = [(site.start, site.end, site.name) for site in sites if site.chrom == name]
        if arguments.truth:
            mask = np.zeros(len(letters), bool)
            for start, end, _ in here:
                mask[start:end] = True
            rows = {"truth": mask, **rows}
        page.append((name, rows, letters, here))
    logo_page(page, window=arguments.window, path=arguments.out, same_scale=arguments.same_scale)
    tell(f"{arguments.out}: {plural(len(page), 'sequence')}")
    return 0


# -- export


EXPORTS: Shown = {
    "--bigwig FILE": "bigWig file to write; needs --genome, and pyBigWig",
    "--bedgraph FILE": "bedGraph file to write: sorted, without a header, as UCSC's tools take it",
    "--h5 FILE": "HDF5 file to write for TF-MoDISco, from a run with --hypothetical and sequences of one length",
    "--genome FASTA": "genome of the run, for the lengths of chromosomes",
    **OVERLAP,
}


def add_export(commands: Any) -> None:
    """Add `plrp genomics export`."""
    parser = commands.add_parser(
        "export",
        help="bigWig, bedGraph and HDF5 of a folder of `plrp genomics explain`",
        description="Writes more files from a finished folder of `plrp genomics explain`: tracks for genome browsers\n"
        "(where coordinates are known), and the HDF5 file that TF-MoDISco reads with -i.",
        epilog="example:\n  plrp genomics export explained --genome hg38.fa --bigwig relevance.bw --overlap sum",
    )
    parser.add_argument("folder", metavar="DIR", help="folder of `plrp genomics explain`")
    add_options(parser, EXPORTS)
    parser.set_defaults(run=run_export)


def run_export(arguments: argparse.Namespace) -> int:
    """Export a folder."""
    from plrp.genomics.motif_search import read_run

    files = chosen(arguments, "bigwig", "bedgraph", "h5")
    if not any(files.values()):
        raise UsageError("Nothing to write: give --bigwig, --bedgraph or --h5.")
    if arguments.bigwig and find_spec("pyBigWig") is None:
        raise not_installed("bigWig needs pyBigWig", "bigwig")
    with usage():
        written = genomics.export_run(arguments.folder, genome=arguments.genome, overlap=arguments.overlap, **files)
    if arguments.h5 and not read_run(arguments.folder).get("hypothetical"):
        say(
            f"plrp: {arguments.folder} has no hypothetical scores, and TF-MoDISco expects them as shap/seq: absent "
            "letters have 0; explain again with --hypothetical."
        )
    for path in written:
        track = path.suffix not in (".h5", ".hdf5")
        tell(f"{path}" + (f": {arguments.overlap} where intervals overlap" if track else ""))
    return 0
