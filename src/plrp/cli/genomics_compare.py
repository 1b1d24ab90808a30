"""`plrp genomics compare`: ISM, LRP, PLRP, gradient × input and DeepLIFT under one another."""

from __future__ import annotations

import argparse
from typing import Any

from plrp.cli.arguments import EXIT_CODES, RAW, count
from plrp.errors import UsageError, usage

from .genomics_logo import window
from .genomics_options import PICTURES, add_largest, add_model, add_rules, check_composite, picture, pruning_of

READABLE = 100
"""Bases whose letters can be read in a picture."""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="draw several methods under one another, with their correlation to ISM",
        formatter_class=RAW,
        description="Asks in-silico mutagenesis (ISM: every base replaced by every other letter), LRP, PLRP,\n"
        "gradient × input and DeepLIFT (with tangermeme, where installed) about the same score, draws them, and\n"
        "prints how far each agrees with ISM. Do this on your own network before you believe any of them.",
        epilog="example:\n"
        "  plrp genomics compare seqs.fa --model net.py:build --weights w.pt --count 20 --out compared.png\n\n"
        + EXIT_CODES,
    )
    parser.add_argument("sequences", metavar="SEQUENCES", help="FASTA, BED or one-hot NPZ; .gz as well")
    parser.add_argument(
        "--out", required=True, type=picture, metavar="FILE", help=f"the picture: {', '.join(PICTURES)}"
    )
    parser.add_argument("--genome", metavar="FASTA", help="genome of a BED file")
    parser.add_argument("--width", type=count, help="recentre intervals to this many bases")
    add_model(parser)
    add_rules(parser, p=0.05)
    parser.add_argument("--count", type=count, default=10, metavar="N", help="the first N sequences (default: 10)")
    parser.add_argument("--draw", type=count, default=3, metavar="N", help="draw the first N (default: 3)")
    parser.add_argument("--window", type=window, metavar="START-END", help="draw these bases only")
    parser.add_argument("--batch-size", type=count, default=128)
    add_largest(parser)
    parser.add_argument("--device", help="such as cuda (default: where the model is)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare methods on the first sequences of a file."""
    import torch

    from plrp.genomics.jobs import check_fit, load_model, read_sequences
    from plrp.genomics.method_comparison import compare_methods
    from plrp.genomics.outputs import target_from_text
    from plrp.tape.refusals import check_device

    with usage():
        check_composite(arguments.composite)
        if arguments.device is not None:
            check_device(arguments.device)
        sequences = read_sequences(
            arguments.sequences, arguments.genome, arguments.width, largest=arguments.largest_input
        )
        sequences = sequences[: arguments.count]
        onehot = sequences.onehot()
        wanted = arguments.target and target_from_text(arguments.target)
        pruning = pruning_of(arguments)
        if pruning is None:
            raise UsageError("-p 0 is LRP, which is compared anyway: give the share to prune, such as -p 0.05.")
        model = load_model(arguments.model, arguments.weights).eval()
        if arguments.device is not None:
            model.to(arguments.device)
        example = torch.from_numpy(onehot[:1])
        where = next((p.device for p in model.parameters()), example.device)
        check_fit(model, example.to(where), [wanted], f"{sequences.where(0)}: its {onehot.shape[2]} bases")
    found = compare_methods(
        model,
        onehot,
        target=wanted,
        composite=arguments.composite,
        pruning=pruning,
        batch_size=arguments.batch_size,
        device=arguments.device,
        show_progress=None,
    )
    print(found)
    found.plot(arguments.out, names=sequences.names, count=arguments.draw, window=arguments.window)
    drawn = min(arguments.draw, len(sequences))
    more = "" if drawn == len(sequences) else f" of {len(sequences)} (--draw N draws more)"
    print(f"{arguments.out}: {drawn} sequence{'s' * (drawn != 1)}{more}")
    if arguments.window is None and onehot.shape[2] > READABLE:
        print(f"letters of {onehot.shape[2]} bases are small: --window 60-110 draws fewer")
    return 0
