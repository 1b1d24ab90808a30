"""`plrp genomics compare`: ISM, LRP, PLRP, gradient × input and DeepLIFT under one another."""

from __future__ import annotations

import argparse
from typing import Any

from plrp.errors import UsageError, usage
from plrp.genomics.sequence_settings import ScoreSettings
from plrp.settings import count

from .arguments import PICTURES, add_settings, settings_of
from .genomics_logo import window
from .genomics_options import (
    add_model,
    add_rules,
    add_sequences,
    check_composite,
    check_first,
    loaded_model,
    picture,
    pruning_of,
)

READABLE = 100
"""Bases whose letters can be read in a picture."""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="draw several methods under one another, with their correlation to ISM",
        description="Asks in-silico mutagenesis (ISM: every base replaced by every other letter), LRP, PLRP,\n"
        "gradient × input and DeepLIFT (with tangermeme, where installed) about the same score, draws them, and\n"
        "prints how far each agrees with ISM. Do this on your own network before you believe any of them.",
        epilog="example:\n"
        "  plrp genomics compare seqs.fa --model net.py:build --weights w.pt --count 20 --out compared.png",
    )
    add_sequences(parser)
    parser.add_argument(
        "--out", required=True, type=picture, metavar="FILE", help=f"picture to write: {', '.join(PICTURES)}"
    )
    add_model(parser)
    add_rules(parser, p=0.05)
    parser.add_argument("--count", type=count, default=10, metavar="N", help="take the first N sequences (default: 10)")
    parser.add_argument("--draw", type=count, default=3, metavar="N", help="draw the first N sequences (default: 3)")
    parser.add_argument("--window", type=window, metavar="START-END", help="draw these bases only")
    add_settings(parser, ScoreSettings, "batch_size", "device")


def run(arguments: argparse.Namespace) -> int:
    """Compare methods on the first sequences of a file."""
    from plrp.genomics.baselines import compare_methods
    from plrp.genomics.jobs import read_sequences
    from plrp.genomics.outputs import target_from_text

    with usage():
        check_composite(arguments.composite)
        sequences = read_sequences(arguments.sequences, arguments.genome, arguments.width, largest=arguments.largest)
        sequences = sequences[: arguments.count]
        onehot = sequences.onehot()
        target = arguments.target and target_from_text(arguments.target)
        pruning = pruning_of(arguments)
        if pruning is None:
            raise UsageError("-p 0 is LRP, which is compared anyway: give the share to prune, such as -p 0.05.")
        model = loaded_model(arguments)
        check_first(model, onehot, [target], f"{sequences.where(0)}: its {onehot.shape[2]} bases")
        settings = settings_of(ScoreSettings, arguments, target=target, pruning=pruning)
    comparison = compare_methods(model, onehot, settings, show_progress=None)
    print(comparison)
    comparison.plot(arguments.out, names=sequences.names, count=arguments.draw, window=arguments.window)
    drawn = min(arguments.draw, len(sequences))
    more = "" if drawn == len(sequences) else f" of {len(sequences)} (--draw N draws more)"
    print(f"{arguments.out}: {drawn} sequence{'s' * (drawn != 1)}{more}")
    if arguments.window is None and onehot.shape[2] > READABLE:
        print(f"letters of {onehot.shape[2]} bases are small: --window 60-110 draws fewer")
    return 0
