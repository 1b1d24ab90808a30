"""`plrp demo`: photographs and DNA; it needs no data but what it makes itself."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add the command; nothing heavier than argparse is imported until it runs."""
    parser = subparsers.add_parser(
        "demo",
        help="photographs, and DNA with planted motifs: train, explain, write a report",
        description="Makes scenes of photographs (those that scikit-image ships) and DNA sequences with planted "
        "motifs, trains small CNNs, explains them with LRP and PLRP, and writes a report to read in a browser, where "
        "p is a slider. Nothing is downloaded; the same seed gives the same report.",
        epilog="example:\n  plrp demo --out demo",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="folder to write (default: ./demo)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of everything random (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """`plrp demo`."""
    from plrp.experiments import demo_study

    print(f"written: {demo_study.run(arguments.out, seed=arguments.seed).resolve()}")
    return 0
