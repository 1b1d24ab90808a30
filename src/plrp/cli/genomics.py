"""`plrp genomics simulate | train | explain | logo`: the command line of the genomics part."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from plrp.errors import UsageError, usage

from .arguments import EXIT_CODES, RAW, add_cluster, cluster_of, count, gain, proportion, shard


def add_parser(subparsers: Any) -> None:
    """Add `genomics` with its own sub-commands; nothing heavier than argparse is imported until one runs."""
    parser = subparsers.add_parser(
        "genomics",
        help="DNA sequences: simulate, train, explain, draw logos",
        description="From DNA sequences to motifs. `plrp genomics COMMAND --help` shows a working example of each.",
    )
    parser.set_defaults(run=lambda arguments: (parser.print_help(), 2)[1])
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_simulate(commands)
    _add_train(commands)
    _add_explain(commands)
    _add_logo(commands)


def _range(text: str) -> int | tuple[int, int]:
    """`3` or `1-3`."""
    try:
        low, _, high = text.partition("-")
        return (int(low), int(high)) if high else int(low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write a number, or least-most such as 1-3") from None


def _window(text: str) -> tuple[int, int]:
    """`60-110`: bases 60 to 109."""
    try:
        start, end = (int(part) for part in text.replace(":", "-").split("-"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write start-end such as 60-110") from None
    if not 0 <= start < end:
        raise argparse.ArgumentTypeError(f"{text!r}: start before end")
    return start, end


def _target(text: str) -> int | tuple[int, ...]:
    """A class `3`, or an index into a dense output `0,141`."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write a class such as 3, or track,position such as 0,141"
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


# -- simulate


def _add_simulate(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate",
        help="random sequences with planted motifs and known answers",
        formatter_class=RAW,
        description="Writes sequences.fa.gz, motifs.bed (where motifs were planted), labels.tsv, motifs.meme and\n"
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
        help="what decides the label (default: classes, one motif per class)",
    )
    parser.add_argument("--count", type=count, default=1000, help="number of sequences (default: 1000)")
    parser.add_argument("--length", type=count, default=250, help="bases per sequence (default: 250)")
    parser.add_argument("--number", type=_range, default=1, metavar="N|N-M", help="copies of a motif (default: 1)")
    parser.add_argument("--spacing", type=_range, metavar="N|N-M", help="bases between A and B (default: any)")
    parser.add_argument("--orientation", choices=["forward", "reverse", "both"], default="forward")
    parser.add_argument(
        "--background",
        nargs=4,
        type=float,
        default=[0.25] * 4,
        metavar=("A", "C", "G", "T"),
        help="base frequencies (default: a quarter each)",
    )
    parser.add_argument("--empty-class", action="store_true", help="one more class without a motif (task classes)")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=_simulate)


def _simulate(arguments: argparse.Namespace) -> int:
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


# -- train


def _add_train(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train a small CNN on simulated or labelled sequences",
        formatter_class=RAW,
        description="Trains a SequenceCNN with early stopping and writes a checkpoint that is safe to load. DATA is a\n"
        "folder of `simulate`, a folder of simdata files, or a FASTA file with --labels.",
        epilog="example:\n"
        "  plrp genomics simulate --motifs TAL1::TCF3 CTCF --count 2000 --number 1-3 --out sim\n"
        "  plrp genomics train sim --filters 32 --out cnn.pt",
    )
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("--out", required=True, metavar="FILE", help="checkpoint to write")
    parser.add_argument("--labels", metavar="TSV", help="table name<TAB>label, for a FASTA file")
    parser.add_argument("--column", help="column of the labels (default: the second)")
    parser.add_argument("--filters", type=count, default=32, help="convolution filters; the paper has 4 and 32")
    parser.add_argument("--hidden", type=int, default=0, help="neurons of a hidden layer; xor needs one, such as 32")
    parser.add_argument("--epochs", type=count, default=30)
    parser.add_argument("--patience", type=count, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=_train)


def _train(arguments: argparse.Namespace) -> int:
    import numpy as np

    from plrp.genomics.network import SequenceCNN

    with usage():
        onehot, labels = _labelled(Path(arguments.data), arguments.labels, arguments.column)
        network = SequenceCNN(arguments.filters, classes=int(labels.max()) + 1, hidden=arguments.hidden)
    order = np.random.default_rng(arguments.seed).permutation(len(labels))
    train, validation, test = np.split(order, [int(0.7 * len(order)), int(0.85 * len(order))])
    history = network.fit(
        onehot[train],
        labels[train],
        validation=(onehot[validation], labels[validation]),
        epochs=arguments.epochs,
        patience=arguments.patience,
        seed=arguments.seed,
    )
    network.save(arguments.out)
    print(
        f"{arguments.out}: {arguments.filters} filters, {len(history.train_loss)} epochs, validation accuracy "
        f"{history.accuracy:.3f}, test accuracy {network.accuracy(onehot[test], labels[test]):.3f}"
    )
    return 0


def _labelled(data: Path, table: str | None, column: str | None) -> tuple[Any, Any]:
    """One-hot sequences and their classes."""
    from plrp.genomics.sequences import read_fasta
    from plrp.genomics.simulation import load_simulated, read_labels, read_simdata

    if data.is_dir():
        simulated = load_simulated(data) if (data / "simulation.json").exists() else read_simdata(data)
        return simulated.onehot(), simulated.labels
    if not data.exists():
        raise UsageError(f"{data} does not exist; give a FASTA file, or a folder that `simulate` wrote.")
    if table is None:
        raise UsageError(f"{data}: sequences of a FASTA file need labels; give --labels labels.tsv.")
    sequences = read_fasta(data)
    labels = read_labels(table, sequences, column)
    if labels.min() < 0:
        raise UsageError(f"{table}: labels are classes 0, 1, 2, ...; found {labels.min()}.")
    return sequences.onehot(), labels


# -- explain


def _add_explain(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="relevance per base for a file of sequences, with your own model",
        formatter_class=RAW,
        description="Explains every sequence of a FASTA file, a BED file (--genome), or a one-hot NPZ. A run that was\n"
        "killed resumes where it stopped; --shard i/n spreads it over a job array. Written into --out:\n"
        "attributions.npz and onehot.npz (for TF-MoDISco), seqlets.bed, relevance.parquet, and "
        "relevance.bedgraph\n"
        "where coordinates are known.",
        epilog="examples:\n"
        "  plrp genomics explain sim/sequences.fa.gz --model cnn.pt -p 0.25 --out explained\n"
        "  plrp genomics explain seqs.fa --model mymodel.py:build --weights w.pt -p 0.25 --out DIR\n"
        "  plrp genomics explain peaks.bed --genome hg38.fa --width 2114 --model net.py:build --weights w.pt "
        "\\\n"
        "      --target 0,500 -p 0.25 --out DIR --shard $SLURM_ARRAY_TASK_ID/100\n\n" + EXIT_CODES,
    )
    parser.add_argument("sequences", metavar="SEQUENCES", help="FASTA, BED or one-hot NPZ; .gz as well")
    parser.add_argument(
        "--model", required=True, help="file.py:factory (your network), or a checkpoint of `plrp genomics train`"
    )
    parser.add_argument("--weights", metavar="FILE", help="state dict for file.py:factory")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder, or a URL such as s3://bucket/run")
    parser.add_argument(
        "-p", type=proportion, default=0.0, metavar="P", help="share of relevance pruned per layer; 0 is LRP"
    )
    parser.add_argument("--redistribution", choices=["lambda", "M"], default="lambda")
    parser.add_argument("--sparsity-gain", type=gain, metavar="G", help="least sparsity gain of a pruned neuron")
    parser.add_argument("--composite", default="epsilon-plus", help="rules per layer (default: epsilon-plus)")
    parser.add_argument("--target", type=_target, help="class, or track,position of a dense output (default: winner)")
    parser.add_argument("--genome", metavar="FASTA", help="genome of a BED file")
    parser.add_argument("--width", type=count, help="recentre intervals to this many bases")
    parser.add_argument(
        "--pooling",
        choices=["present", "sum"],
        default="present",
        help="relevance of a base: of the letter that is there, or of all four (default: present)",
    )
    parser.add_argument("--reverse-complement", action="store_true", help="average over both strands")
    parser.add_argument("--hypothetical", action="store_true", help="score absent letters too (for TF-MoDISco)")
    parser.add_argument(
        "--ambiguous",
        choices=["zero", "share", "error"],
        default="zero",
        help="N and IUPAC codes: an empty column, equal shares of their letters, or refused (default: zero)",
    )
    parser.add_argument("--no-match", dest="match", action="store_false", help="do not match seqlets to JASPAR")
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N", help="the I-th of N processes")
    parser.add_argument("--part-size", type=count, default=512, help="sequences per part (default: 512)")
    parser.add_argument("--batch-size", type=count, default=128)
    parser.add_argument("--device", help="such as cuda (default: where the model is)")
    parser.add_argument("--workers", type=count, metavar="N", help="of a cluster (default: as many as fit)")
    add_cluster(parser)
    parser.set_defaults(run=_explain)


def _explain(arguments: argparse.Namespace) -> int:
    import plrp
    from plrp.genomics.jobs import explain_file
    from plrp.pruning import Pruning
    from plrp.runs.parts import by_cause

    pruning = None
    if arguments.p or arguments.sparsity_gain is not None:
        pruning = Pruning(p=arguments.p, redistribution=arguments.redistribution, sparsity_gain=arguments.sparsity_gain)
    if arguments.engine == "local" and arguments.workers is not None:
        raise UsageError("--workers goes with --engine ray; on one machine, share the work with --shard.")
    if arguments.reverse_complement and isinstance(arguments.target, tuple):
        raise UsageError("--reverse-complement goes with a class: on the other strand a position is another.")
    with usage():
        plrp.composite(arguments.composite)  # what is wrong is said before anything is loaded
        engine = cluster_of(arguments)
    if arguments.engine == "local" and arguments.threads is not None:
        import torch

        torch.set_num_threads(arguments.threads)
    outcome = explain_file(
        arguments.sequences,
        arguments.model,
        arguments.out,
        weights=arguments.weights,
        genome=arguments.genome,
        width=arguments.width,
        target=arguments.target,
        composite=arguments.composite,
        pruning=pruning,
        pooling=arguments.pooling,
        reverse_complement=arguments.reverse_complement,
        hypothetical=arguments.hypothetical,
        ambiguous=arguments.ambiguous,
        part_size=arguments.part_size,
        batch_size=arguments.batch_size,
        shard=arguments.shard,
        match=arguments.match,
        device=arguments.device,
        engine=engine,
        say=lambda text: print(text, file=sys.stderr, flush=True),
        about={"model": arguments.model},
    )
    state = f"{outcome.done} of {outcome.parts} parts done"
    if outcome.failures:
        causes = by_cause(outcome.failures)
        print(f"plrp: {state}. Fix the cause and start again. {causes}", file=sys.stderr)
        return 3
    if outcome.complete:
        _say_at_the_end(f"{outcome.sequences} sequences explained ({state}); results in {arguments.out}")
    else:
        _say_at_the_end(f"{state}; the other shards write the rest, and the last one gathers the results")
    return 0


def _say_at_the_end(text: str) -> None:
    """On standard output, and in the log, where standard error is one and not the same."""
    print(text, flush=True)
    with suppress(OSError, ValueError):  # no files at all
        if os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno()):
            return
    if not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


# -- logo


def _add_logo(commands: Any) -> None:
    parser = commands.add_parser(
        "logo",
        help="draw relevance as sequence logos",
        formatter_class=RAW,
        description="Draws sequences of one or more folders of `plrp genomics explain` under each other, on one axis.",
        epilog="example:\n"
        "  plrp genomics explain sim/sequences.fa.gz --model cnn.pt --out lrp\n"
        "  plrp genomics explain sim/sequences.fa.gz --model cnn.pt -p 0.25 --out plrp25\n"
        "  plrp genomics logo lrp plrp25 --names sim0 sim1 --truth sim/motifs.bed --out logo.png",
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="folders of `plrp genomics explain`, one row each")
    parser.add_argument("--out", required=True, metavar="FILE", help=".png, .svg or .pdf")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="sequences to draw (default: the first three)")
    parser.add_argument("--window", type=_window, metavar="START-END", help="draw these bases only")
    parser.add_argument("--truth", metavar="BED", help="where motifs are: shaded, named, and drawn as a first row")
    parser.add_argument("--same-scale", action="store_true", help="one y-axis for all rows of a sequence")
    parser.set_defaults(run=_logo)


def _logo(arguments: argparse.Namespace) -> int:
    import numpy as np

    from plrp.genomics.logo import logo_page
    from plrp.genomics.sequences import read_bed

    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise ImportError("Reading relevance needs pyarrow: pip install 'plrp[genomics]'") from None
    tables = {}
    for folder in arguments.folders:
        file = Path(folder) / "relevance.parquet"
        if not file.is_file():
            raise UsageError(f"{file} is not there: finish `plrp genomics explain ... --out {folder}` first.")
        tables[Path(folder).name] = file
    names = arguments.names or _first_names(next(iter(tables.values())))
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


def _first_names(file: Any, count: int = 3) -> list[str]:
    import pyarrow.parquet as pq

    names: list[str] = []
    for batch in pq.ParquetFile(file).iter_batches(columns=["name"]):
        for name in batch.column(0).unique().to_pylist():
            if name not in names:
                names.append(name)
        if len(names) >= count:
            break
    return names[:count]
