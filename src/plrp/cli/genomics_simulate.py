"""`plrp genomics simulate`: random sequences with planted motifs and known answers."""

from __future__ import annotations

import argparse
from typing import Any

from plrp.errors import usage
from plrp.settings import count


def _range(text: str) -> int | tuple[int, int]:
    """`3` or `1-3`."""
    try:
        low, _, high = text.partition("-")
        return (int(low), int(high)) if high else int(low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write a number, or least-most such as 1-3") from None


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "simulate",
        help="random sequences with planted motifs and known answers",
        description="Writes sequences.fa.gz, motifs.bed (sites of the planted motifs), labels.tsv, motifs.meme and\n"
        "simulation.json into a new folder.",
        epilog="example:\n  plrp genomics simulate --motifs TAL1::TCF3 CTCF SPI1 --count 3000 --number 1-3 --out sim",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write; must not exist")
    parser.add_argument(
        "--motifs",
        nargs="+",
        default=["GATA1", "TAL1::TCF3"],
        metavar="MOTIF",
        help="JASPAR names or ids, or MEME/JASPAR files with one motif each (default: GATA1 TAL1::TCF3)",
    )
    parser.add_argument(
        "--task",
        choices=["classes", "presence", "and", "or", "xor"],
        default="classes",
        help="rule of the labels (default: classes, one motif per class)",
    )
    parser.add_argument("--count", type=count, default=1000, help="number of sequences (default: 1000)")
    parser.add_argument("--length", type=count, default=250, help="bases per sequence (default: 250)")
    parser.add_argument("--number", type=_range, default=1, metavar="N|N-M", help="copies of a motif (default: 1)")
    parser.add_argument("--spacing", type=_range, metavar="N|N-M", help="bases between A and B (default: any)")
    parser.add_argument(
        "--orientation", choices=["forward", "reverse", "both"], default="forward", help="strand of motifs"
    )
    parser.add_argument(
        "--background",
        nargs=4,
        type=float,
        default=[0.25] * 4,
        metavar=("A", "C", "G", "T"),
        help="base frequencies (default: a quarter each)",
    )
    parser.add_argument("--empty-class", action="store_true", help="one more class without a motif (task classes)")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Write a simulated data set."""
    from plrp.genomics.simulation import simulate

    with usage():
        data = simulate(
            arguments.count,
            motifs=arguments.motifs,
            task=arguments.task,
            length=arguments.length,
            background=arguments.background,
            number=arguments.number,
            spacing=arguments.spacing,
            orientation=arguments.orientation,
            empty_class=arguments.empty_class,
            seed=arguments.seed,
        )
        folder = data.save(arguments.out)
    print(f"{len(data)} sequences of {data.length} bases, {len(data.plantings)} planted motifs, in {folder}")
    for number, name in enumerate(data.class_names):
        print(f"  label {number}: {name} ({int((data.labels == number).sum())})")
    return 0
