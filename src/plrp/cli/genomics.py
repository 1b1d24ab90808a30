"""`plrp genomics COMMAND`: from DNA sequences to motifs; and its commands `simulate` and `train`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from plrp import genomics
from plrp.errors import UsageError, usage
from plrp.genomics.sequence_settings import FileSettings
from plrp.settings import count

from . import Parser
from .arguments import Shown, add_options, add_settings, chosen, tell
from .genomics_explain import add_compare, add_explain, add_variants
from .genomics_results import add_browser, add_export, add_logo, add_motifs


class Command(Parser):
    """Refuses unknown options itself and points to its own --help; argparse would leave that to `plrp`."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse arguments that are left over."""
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return parsed, rest


def add_parser(subparsers: Any) -> None:
    """Add `genomics` with its own sub-commands; nothing heavier than argparse is imported until one runs."""
    parser = subparsers.add_parser(
        "genomics",
        help="DNA sequences: explain, variants, motifs, logos; simulate and train",
        description="From DNA sequences to motifs. `plrp genomics COMMAND --help` shows a working example of each.",
    )
    parser.set_defaults(run=lambda arguments: (parser.print_help(), 2)[1])
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Command)
    add_simulate(commands)
    add_train(commands)
    for add in (add_explain, add_variants, add_compare, add_motifs, add_browser, add_logo, add_export):
        add(commands)


def _range(text: str) -> int | tuple[int, int]:
    """`3` or `1-3`."""
    try:
        low, _, high = text.partition("-")
        return (int(low), int(high)) if high else int(low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write a number, or least-most such as 1-3") from None


DATA: Shown = {
    "--task {classes,presence,and,or,xor}": (
        "rule of the labels (default: classes, one motif per class)",
        str,
        "classes",
    ),
    "--count COUNT": ("number of sequences", count, 1000),
    "--length LENGTH": ("bases per sequence", count, 250),
    "--number N|N-M": ("copies of a motif", _range, 1),
    "--spacing N|N-M": ("bases between A and B (default: any)", _range),
}


def add_simulate(commands: Any) -> None:
    """Add `plrp genomics simulate`."""
    parser = commands.add_parser(
        "simulate",
        help="random sequences with planted motifs and known answers",
        description="Writes sequences.fa.gz, motifs.bed (sites of the planted motifs), labels.tsv, motifs.meme and\n"
        "simulation.json into a new folder.",
        epilog="example:\n  plrp genomics simulate --motifs TAL1::TCF3 CTCF SPI1 --count 3000 --number 1-3 --out sim",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write; must not exist")
    motifs_help = "JASPAR names or ids, or MEME/JASPAR files with one motif each (default: GATA1 TAL1::TCF3)"
    motifs = ["GATA1", "TAL1::TCF3"]
    parser.add_argument("--motifs", nargs="+", default=motifs, metavar="MOTIF", help=motifs_help)
    add_options(parser, DATA)
    orientations = ["forward", "reverse", "both"]
    parser.add_argument("--orientation", choices=orientations, default="forward", help="strand of motifs")
    background = {"default": [0.25] * 4, "help": "base frequencies (default: a quarter each)"}
    parser.add_argument("--background", nargs=4, type=float, metavar=("A", "C", "G", "T"), **background)
    add_options(parser, {"--empty-class": "one more class without a motif (task classes)"})
    add_options(parser, {"--seed SEED": ("seed of everything random", int, 0)})
    parser.set_defaults(run=run_simulate)


def run_simulate(arguments: argparse.Namespace) -> int:
    """Write a simulated data set."""
    asked = ("motifs", "task", "length", "background", "number", "spacing", "orientation", "empty_class", "seed")
    with usage():
        data = genomics.simulate(arguments.count, **chosen(arguments, *asked))
        folder = data.save(arguments.out)
    tell(f"{len(data)} sequences of {data.length} bases, {len(data.plantings)} planted motifs, in {folder}")
    for number, name in enumerate(data.class_names):
        tell(f"  label {number}: {name} ({int((data.labels == number).sum())})")
    return 0


def add_train(commands: Any) -> None:
    """Add `plrp genomics train`."""
    parser = commands.add_parser(
        "train",
        help="train a small CNN on simulated or labelled sequences",
        description="Trains a SequenceCNN with early stopping and writes a checkpoint that is safe to load. DATA is a\n"
        "folder of `simulate`, a folder of simdata files, or a FASTA file with --labels.",
        epilog="example:\n"
        "  plrp genomics simulate --motifs TAL1::TCF3 CTCF --count 2000 --number 1-3 --out sim\n"
        "  plrp genomics train sim --filters 32 --out cnn.pt",
    )
    parser.add_argument("data", metavar="DATA", help="folder of `simulate` or of simdata files, or a FASTA file")
    parser.add_argument("--out", required=True, metavar="FILE", help="checkpoint to write")
    parser.add_argument("--labels", metavar="TSV", help="table name<TAB>label, for a FASTA file")
    parser.add_argument("--column", help="column of the labels (default: the second)")
    parser.add_argument("--filters", type=count, default=32, help="convolution filters; the paper has 4 and 32")
    parser.add_argument("--hidden", type=int, default=0, help="neurons of a hidden layer; xor needs one, such as 32")
    parser.add_argument("--epochs", type=count, default=30, help="at most this many epochs (default: 30)")
    add_options(parser, {"--patience PATIENCE": ("epochs without progress before it stops", count, 6)})
    add_settings(parser, FileSettings, "largest")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the split (default: 0)")
    parser.set_defaults(run=run_train)


def run_train(arguments: argparse.Namespace) -> int:
    """Train and write a checkpoint."""
    import numpy as np

    with usage():
        onehot, labels = _labelled(Path(arguments.data), arguments.labels, arguments.column, arguments.largest)
        network = genomics.SequenceCNN(arguments.filters, classes=int(labels.max()) + 1, hidden=arguments.hidden)
    order = np.random.default_rng(arguments.seed).permutation(len(labels))
    train, validation, test = np.split(order, [int(0.7 * len(order)), int(0.85 * len(order))])
    held_out = onehot[validation], labels[validation]
    how = chosen(arguments, "epochs", "patience", "seed")
    history = network.fit(onehot[train], labels[train], validation=held_out, **how)
    network.save(arguments.out)
    tell(
        f"{arguments.out}: {arguments.filters} filters, {len(history.train_loss)} epochs, validation accuracy "
        f"{history.accuracy:.3f}, test accuracy {network.accuracy(onehot[test], labels[test]):.3f}"
    )
    return 0


def _labelled(data: Path, table: str | None, column: str | None, largest: int) -> tuple[Any, Any]:
    """One-hot sequences and their classes."""
    if data.is_dir():
        read = genomics.load_simulated if (data / "simulation.json").exists() else genomics.read_simdata
        simulated = read(data)
        return simulated.onehot(), simulated.labels
    if not data.exists():
        raise UsageError(f"{data} does not exist; give a FASTA file, or a folder that `simulate` wrote.")
    if table is None:
        raise UsageError(f"{data}: sequences of a FASTA file need labels; give --labels labels.tsv.")
    sequences = genomics.read_fasta(data, largest=largest)
    labels = genomics.read_labels(table, sequences, column)
    if labels.min() < 0:
        raise UsageError(f"{table}: labels are classes 0, 1, 2, ...; found {labels.min()}.")
    return sequences.onehot(), labels
