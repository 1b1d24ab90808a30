"""`plrp genomics COMMAND`: from DNA sequences to motifs, one file per command."""

from __future__ import annotations

import importlib
from typing import Any

COMMANDS = ("simulate", "train", "explain", "variants", "compare", "motifs", "browser", "logo", "export")


def add_parser(subparsers: Any) -> None:
    """Add `genomics` with its own sub-commands; nothing heavier than argparse is imported until one runs."""
    parser = subparsers.add_parser(
        "genomics",
        help="DNA sequences: explain, variants, motifs, logos; simulate and train",
        description="From DNA sequences to motifs. `plrp genomics COMMAND --help` shows a working example of each.",
    )
    parser.set_defaults(run=lambda arguments: (parser.print_help(), 2)[1])
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        importlib.import_module(f"plrp.cli.genomics.{command}").add_parser(commands)
