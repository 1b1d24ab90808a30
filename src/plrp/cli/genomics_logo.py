"""`plrp genomics logo`: relevance as sequence logos."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from plrp.errors import UsageError

from .arguments import PICTURES
from .genomics_options import picture


def window(text: str) -> tuple[int, int]:
    """`60-110`: bases 60 to 109."""
    try:
        start, end = (int(part) for part in text.replace(":", "-").split("-"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write start-end such as 60-110") from None
    if not 0 <= start < end:
        raise argparse.ArgumentTypeError(f"{text!r}: start before end")
    return start, end


def add_parser(commands: Any) -> None:
    """Add the command."""
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
    parser.add_argument(
        "--out", required=True, type=picture, metavar="FILE", help=f"picture to write: {', '.join(PICTURES)}"
    )
    parser.add_argument("--names", nargs="+", metavar="NAME", help="sequences to draw (default: the first three)")
    parser.add_argument("--window", type=window, metavar="START-END", help="draw these bases only")
    parser.add_argument(
        "--truth", metavar="BED", help="sites of motifs, which are shaded, named, and drawn as a first row"
    )
    parser.add_argument("--same-scale", action="store_true", help="one y-axis for all rows of a sequence")


def run(arguments: argparse.Namespace) -> int:
    """Draw sequences of folders."""
    import numpy as np

    from plrp.genomics.browser import run_titles
    from plrp.genomics.export import open_relevance, read_relevance
    from plrp.genomics.logo import logo_page
    from plrp.genomics.sequences import read_bed

    for folder in arguments.folders:
        open_relevance(folder)  # refuses a folder without results
    import pyarrow.parquet as pq

    files = [Path(folder) / "relevance.parquet" for folder in arguments.folders]
    known = all((file.parent / "run.json").is_file() for file in files)
    labels = run_titles(arguments.folders) if known else [Path(folder).name for folder in arguments.folders]
    tables = dict(zip(labels, files, strict=True))
    first = (sequences.names for sequences, _ in read_relevance(arguments.folders[0], count=3))
    names = arguments.names or [name for several in first for name in several]
    sites = read_bed(arguments.truth) if arguments.truth else []
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
    print(f"{arguments.out}: {len(page)} sequence{'s' * (len(page) != 1)}")
    return 0
