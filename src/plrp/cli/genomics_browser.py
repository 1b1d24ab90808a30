"""`plrp genomics browser`: runs as one page with a genome browser in it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from plrp.errors import UsageError, usage
from plrp.settings import count


def add_parser(commands: Any) -> None:
    """Add the command."""
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
    parser.add_argument(
        "--bed",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="one more track of intervals; may be given several times",
    )
    parser.add_argument("--count", type=count, metavar="N", help="show the first N sequences (default: all)")
    parser.add_argument(
        "--overlap",
        choices=["mean", "sum", "strongest"],
        default="mean",
        help="relevance of a base that lies in several intervals (default: mean)",
    )
    parser.add_argument("--title", default="Relevance per base", help="title of the page (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    from plrp.genomics.browser import write_browser

    out = Path(arguments.out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{out} should end in .html: the page is one file.")
    beds = {}
    for text in arguments.bed:
        name, equals, path = text.partition("=")
        beds[name if equals else Path(text).name] = path if equals else text
    with usage():
        shown = write_browser(
            out,
            arguments.folders,
            motifs=arguments.motifs,
            beds=beds,
            overlap=arguments.overlap,
            count=arguments.count,
            title=arguments.title,
            show_progress=None,
        )
    size = out.stat().st_size / 1e6
    print(f"{out}: {shown:,} sequence{'s' * (shown != 1)}, {size:.1f} MB")
    return 0
