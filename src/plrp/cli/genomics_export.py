"""`plrp genomics export`: a run as bigWig, bedGraph or HDF5, for other tools."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from typing import Any

from plrp.errors import UsageError, not_installed, usage


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "export",
        help="bigWig, bedGraph and HDF5 of a folder of `plrp genomics explain`",
        description="Writes more files from a finished folder of `plrp genomics explain`: tracks for genome browsers\n"
        "(where coordinates are known), and the HDF5 file that TF-MoDISco reads with -i.",
        epilog="example:\n  plrp genomics export explained --genome hg38.fa --bigwig relevance.bw --overlap sum",
    )
    parser.add_argument("folder", metavar="DIR", help="folder of `plrp genomics explain`")
    parser.add_argument("--bigwig", metavar="FILE", help="bigWig file to write; needs --genome, and pyBigWig")
    parser.add_argument(
        "--bedgraph", metavar="FILE", help="bedGraph file to write: sorted, without a header, as UCSC's tools take it"
    )
    parser.add_argument(
        "--h5",
        metavar="FILE",
        help="HDF5 file to write for TF-MoDISco, from a run with --hypothetical and sequences of one length",
    )
    parser.add_argument("--genome", metavar="FASTA", help="genome of the run, for the lengths of chromosomes")
    parser.add_argument(
        "--overlap",
        choices=["mean", "sum", "strongest"],
        default="mean",
        help="relevance of a base that lies in several intervals (default: mean)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Export a folder."""
    from plrp.genomics.motif_search import read_run
    from plrp.genomics.tracks import export_run

    files = {name: getattr(arguments, name) for name in ("bigwig", "bedgraph", "h5")}
    if not any(files.values()):
        raise UsageError("Nothing to write: give --bigwig, --bedgraph or --h5.")
    if arguments.bigwig and find_spec("pyBigWig") is None:
        raise not_installed("bigWig needs pyBigWig", "bigwig")
    with usage():
        written = export_run(arguments.folder, genome=arguments.genome, overlap=arguments.overlap, **files)
    if arguments.h5 and not read_run(arguments.folder).get("hypothetical"):
        print(
            f"plrp: {arguments.folder} has no hypothetical scores, and TF-MoDISco expects them as shap/seq: absent "
            "letters have 0; explain again with --hypothetical.",
            file=sys.stderr,
        )
    for path in written:
        track = path.suffix not in (".h5", ".hdf5")
        print(f"{path}" + (f": {arguments.overlap} where intervals overlap" if track else ""))
    return 0
