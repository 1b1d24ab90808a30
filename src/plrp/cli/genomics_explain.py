"""`plrp genomics explain`: relevance per base for files of sequences."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from plrp.errors import UsageError, usage
from plrp.genomics.sequence_settings import FileSettings
from plrp.settings import count, shard

from .arguments import add_cluster, add_settings, cluster_of, options_wording, settings_of
from .genomics_options import (
    add_model,
    add_rules,
    add_sequences,
    check_composite,
    check_out,
    is_class_text,
    loaded_model,
    pruning_of,
    refuse_rules,
)


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "explain",
        help="relevance per base for a file of sequences, with your own model",
        description="Explains every sequence of a FASTA file, a BED file (--genome), or a one-hot NPZ. The same\n"
        "command resumes a run that was killed; --shard i/n spreads a run over a job array. Written into --out:\n"
        "attributions.npz and onehot.npz (for TF-MoDISco: give --hypothetical), seqlets.bed, relevance.parquet,\n"
        "scores.tsv (targets and scores), and relevance.bedgraph where coordinates are known.",
        epilog="examples:\n"
        "  plrp genomics explain sim/sequences.fa.gz --model cnn.pt -p 0.05 --out explained\n"
        "  plrp genomics explain seqs.fa --model mymodel.py:build --weights w.pt -p 0.05 --out DIR --html x.html\n"
        "  plrp genomics explain peaks.bed --genome hg38.fa --width 2114 --model net.py:build --weights w.pt "
        "\\\n"
        "      --target 0,500 -p 0.05 --out DIR --shard $SLURM_ARRAY_TASK_ID/100",
    )
    add_sequences(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder, or a URL such as s3://bucket/run")
    add_model(parser)
    add_rules(parser)
    add_settings(parser, FileSettings, "method", "ends", "pooling", "ambiguous", "match", match=None)
    add_settings(parser, FileSettings, "reverse_complement", "reverse_target", "hypothetical")
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N", help="be the I-th of N processes")
    add_settings(parser, FileSettings, "part_size", "batch_size", "device")
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="also write a page in which p is a slider: logos of the first sequences, seqlets, layers and ledger",
    )
    parser.add_argument(
        "--html-sequences", type=count, default=8, metavar="N", help="sequences on that page (default: 8)"
    )
    parser.add_argument("--workers", type=count, metavar="N", help="workers on the cluster (default: as many as fit)")
    add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    """Explain a file."""
    check(arguments)
    from plrp.genomics.jobs import explain_file
    from plrp.runs.work import by_cause

    with usage():
        engine = cluster_of(arguments)
        settings = settings_of(FileSettings, arguments, pruning=pruning_of(arguments))
    if arguments.engine == "local" and arguments.threads is not None:
        import torch

        torch.set_num_threads(arguments.threads)
    if arguments.weights is None and ".py:" in arguments.model:
        say(f"no --weights: {arguments.model}() is taken as it is; if it does not load weights itself, they are random")
    outcome = explain_file(
        arguments.sequences,
        arguments.model,
        arguments.out,
        settings,
        shard=arguments.shard,
        engine=engine,
        say=say,
        about={"model": arguments.model},
    )
    state = f"{outcome.done} of {outcome.parts} parts done"
    if outcome.failures:
        say(f"plrp: {state}. Fix the cause and start again. {by_cause(outcome.failures)}")
        return 3
    if not outcome.complete:
        _say_at_the_end(f"{state}; the other shards write the rest, and the last one gathers the results")
        return 0
    if arguments.html is not None:
        write_page(arguments, settings)
    sequences = f"{outcome.sequences} sequence{'s' * (outcome.sequences != 1)}"
    _say_at_the_end(f"{sequences} explained ({state}); results in {arguments.out}")
    if outcome.unhealthy is not None:
        say(f"plrp: {outcome.unhealthy.words(options_wording('--redistribution'))}")
    return 0


def check(arguments: argparse.Namespace) -> None:
    """Refuse wrong options before anything is loaded."""
    check_composite(arguments.composite)
    check_out(arguments.out)
    if arguments.engine == "local" and arguments.workers is not None:
        raise UsageError("--workers goes with --engine ray; on one machine, share the work with --shard.")
    refuse_rules(arguments)
    if arguments.reverse_complement and arguments.reverse_target is None and not is_class_text(arguments.target):
        raise UsageError(
            "--reverse-complement goes with a class, or --reverse-target: on the other strand a position is another."
        )
    if arguments.html is None:
        return
    if not arguments.html.lower().endswith((".html", ".htm")):
        raise UsageError(f"{arguments.html} should end in .html.")
    if arguments.method != "lrp" or arguments.reverse_complement or arguments.hypothetical:
        raise UsageError("--html goes with --method lrp, without --reverse-complement and --hypothetical.")


def write_page(arguments: argparse.Namespace, settings: FileSettings) -> None:
    """The page of the first sequences, for every p of its slider."""
    from plrp.genomics.jobs import read_sequences, read_target
    from plrp.progress import progress
    from plrp.view import Page, sequence_bundle

    sequences = read_sequences(
        arguments.sequences, settings.genome, settings.width, ends=settings.ends, largest=settings.largest
    )
    model = loaded_model(arguments)
    count = min(arguments.html_sequences, len(sequences))
    bundles = []
    say(f"results are in {arguments.out}; now the page")
    with progress("the page, maps", note=sequences.names[0]) as step:
        drawn, whole = 0, [0] * count  # maps that are drawn, and all maps of each sequence

        def note(row: int, done: int, total: int) -> None:
            nonlocal drawn
            whole[row:] = [total] * (count - row)  # the sequences that follow count as this one
            now = sum(whole[:row]) + done
            step(now - drawn, sequences.names[row], total=sum(whole))
            drawn = now

        for row in range(count):
            bundles.append(
                sequence_bundle(
                    model,
                    sequences,
                    row,
                    target=read_target(settings.target),
                    composite=arguments.composite,
                    pruning=settings.pruning,
                    pooling=settings.pooling,
                    ambiguous=settings.ambiguous,
                    match=settings.match is not False,
                    name=Path(arguments.model).name,
                    device=settings.device,
                    report=partial(note, row),
                )
            )
    Page(bundles).save(arguments.html)
    say(f"saved {arguments.html}")


def say(text: str) -> None:
    """A line about the work itself, on standard error."""
    print(text, file=sys.stderr, flush=True)


def _say_at_the_end(text: str) -> None:
    """On standard output, and on standard error where that is a log file of its own."""
    print(text, flush=True)
    with suppress(OSError, ValueError):  # no files at all
        if os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno()):
            return
    if not sys.stderr.isatty():
        say(text)
