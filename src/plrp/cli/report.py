"""`plrp report`: figures, tables and statements from sweeps, as one page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .arguments import location


def add_parser(subparsers: Any) -> None:
    """Add the command; nothing heavier than argparse is imported until it runs."""
    parser = subparsers.add_parser(
        "report",
        help="figures, tables and the paper's statements from sweeps, as one page",
        description="Draws the paper's figures from the tables of one or more sweeps and writes one HTML page that "
        "needs nothing else: config, figures, tables, the paper's statements with 'holds' or 'does not hold'.",
        epilog="examples:\n  plrp report run\n  plrp report ecssd-vgg16 ecssd-resnet50 --out report\n"
        "  plrp report --compare before after --out compared",
    )
    parser.add_argument("runs", nargs="+", type=location, metavar="RUN", help="folders or URLs of sweeps")
    parser.add_argument("--compare", action="store_true", help="compare two runs, sample by sample")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder to write (default: `report` in the run; for several runs: ./report)",
    )
    parser.add_argument(
        "--formats",
        nargs="+",
        choices=("png", "svg", "pdf"),
        default=("png", "svg", "pdf"),
        help="formats of the figures",
    )


def run(arguments: argparse.Namespace) -> int:
    """`plrp report`."""
    from plrp.experiments import report

    page = report.write(arguments.runs, arguments.out, formats=tuple(arguments.formats), compare=arguments.compare)
    print(f"written: {page.resolve()}")
    return 0
