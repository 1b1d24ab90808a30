"""`plrp genomics explain`: relevance per base for files of sequences."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from typing import Any

from plrp.cli.arguments import EXIT_CODES, RAW, add_cluster, cluster_of, count, shard
from plrp.errors import UsageError, usage

from .genomics_options import (
    add_largest,
    add_model,
    add_rules,
    as_options,
    check_composite,
    check_out,
    is_class_text,
    pruning_of,
    refuse_rules,
    target,
)


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "explain",
        help="relevance per base for a file of sequences, with your own model",
        formatter_class=RAW,
        description="Explains every sequence of a FASTA file, a BED file (--genome), or a one-hot NPZ. A run that was\n"
        "killed resumes where it stopped; --shard i/n spreads it over a job array. Written into --out:\n"
        "attributions.npz and onehot.npz (for TF-MoDISco: give --hypothetical), seqlets.bed, relevance.parquet,\n"
        "scores.tsv (what was explained), and relevance.bedgraph where coordinates are known.",
        epilog="examples:\n"
        "  plrp genomics explain sim/sequences.fa.gz --model cnn.pt -p 0.05 --out explained\n"
        "  plrp genomics explain seqs.fa --model mymodel.py:build --weights w.pt -p 0.05 --out DIR --html x.html\n"
        "  plrp genomics explain peaks.bed --genome hg38.fa --width 2114 --model net.py:build --weights w.pt "
        "\\\n"
        "      --target 0,500 -p 0.05 --out DIR --shard $SLURM_ARRAY_TASK_ID/100\n\n" + EXIT_CODES,
    )
    parser.add_argument("sequences", metavar="SEQUENCES", help="FASTA, BED or one-hot NPZ; .gz as well")
    add_model(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder, or a URL such as s3://bucket/run")
    add_rules(parser)
    parser.add_argument(
        "--method",
        choices=["lrp", "ism", "gradient-input", "deeplift"],
        default="lrp",
        help="ism: in-silico mutagenesis, exact and slow; deeplift needs tangermeme (default: lrp)",
    )
    parser.add_argument("--genome", metavar="FASTA", help="genome of a BED file")
    parser.add_argument("--width", type=count, help="recentre intervals to this many bases")
    parser.add_argument(
        "--ends",
        choices=["refuse", "skip", "pad"],
        default="refuse",
        help="intervals past the end of a chromosome: refuse the file, leave them out, or pad with N (default: refuse)",
    )
    parser.add_argument(
        "--pooling",
        choices=["present", "sum"],
        default="present",
        help="relevance of a base: of the letter that is there, or of all four (default: present)",
    )
    parser.add_argument("--reverse-complement", action="store_true", help="average over both strands")
    parser.add_argument(
        "--reverse-target", type=target, metavar="TARGET", help="the target on the other strand, if it is not a class"
    )
    parser.add_argument("--hypothetical", action="store_true", help="score absent letters too (for TF-MoDISco)")
    parser.add_argument(
        "--ambiguous",
        choices=["zero", "share", "error"],
        default="zero",
        help="N and IUPAC codes: an empty column, equal shares of their letters, or refused (default: zero)",
    )
    parser.add_argument(
        "--match",
        action=argparse.BooleanOptionalAction,
        help="match single seqlets to JASPAR (default: in runs of up to 200 sequences: it takes long)",
    )
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N", help="the I-th of N processes")
    parser.add_argument("--part-size", type=count, default=512, help="sequences per part (default: 512)")
    parser.add_argument(
        "--batch-size",
        type=count,
        metavar="N",
        help="sequences explained at once (default: by their length, at most 128; halved where memory is not enough)",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="also a page in which p is a slider: the logos of the first sequences, with seqlets, layers and ledger",
    )
    parser.add_argument("--html-sequences", type=count, default=8, metavar="N", help="on that page (default: 8)")
    add_largest(parser)
    parser.add_argument("--device", help="such as cuda (default: where the model is)")
    parser.add_argument("--workers", type=count, metavar="N", help="workers on the cluster (default: as many as fit)")
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Explain a file."""
    check_composite(arguments.composite)  # what is wrong is said before anything is loaded
    check_out(arguments.out)
    from plrp.genomics.jobs import explain_file
    from plrp.runs.parts import by_cause

    if arguments.engine == "local" and arguments.workers is not None:
        raise UsageError("--workers goes with --engine ray; on one machine, share the work with --shard.")
    if arguments.method != "lrp":
        refuse_rules(arguments, arguments.method)
    if arguments.reverse_complement and arguments.reverse_target is None and not is_class_text(arguments.target):
        raise UsageError(
            "--reverse-complement goes with a class, or --reverse-target: on the other strand a position is another."
        )
    with usage():
        engine = cluster_of(arguments)
    if arguments.html is not None:
        if not arguments.html.lower().endswith((".html", ".htm")):
            raise UsageError(f"{arguments.html} should end in .html.")
        if arguments.method != "lrp" or arguments.reverse_complement or arguments.hypothetical:
            raise UsageError("--html goes with --method lrp, without --reverse-complement and --hypothetical.")
    if arguments.engine == "local" and arguments.threads is not None:
        import torch

        torch.set_num_threads(arguments.threads)
    if arguments.weights is None and ".py:" in arguments.model:
        said = (
            f"no --weights: {arguments.model}() is taken as it is: if it does not load weights itself, they are random"
        )
        print(said, file=sys.stderr, flush=True)
    outcome = explain_file(
        arguments.sequences,
        arguments.model,
        arguments.out,
        weights=arguments.weights,
        genome=arguments.genome,
        width=arguments.width,
        ends=arguments.ends,
        method=arguments.method,
        target=arguments.target,
        composite=arguments.composite,
        pruning=pruning_of(arguments),
        pooling=arguments.pooling,
        reverse_complement=arguments.reverse_complement,
        reverse_target=arguments.reverse_target,
        hypothetical=arguments.hypothetical,
        ambiguous=arguments.ambiguous,
        part_size=arguments.part_size,
        batch_size=arguments.batch_size,
        largest=arguments.largest_input,
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
    if outcome.complete and arguments.html is not None:
        write_page(arguments)
    if outcome.complete:
        sequences = f"{outcome.sequences} sequence{'s' * (outcome.sequences != 1)}"
        _say_at_the_end(f"{sequences} explained ({state}); results in {arguments.out}")
        if outcome.unhealthy:
            print(f"plrp: {as_options(outcome.unhealthy)}", file=sys.stderr)
    else:
        _say_at_the_end(f"{state}; the other shards write the rest, and the last one gathers the results")
    return 0


def write_page(arguments: argparse.Namespace) -> None:
    """The page of the first sequences, for every p of its slider."""
    from functools import partial
    from pathlib import Path

    from plrp.genomics.jobs import load_model, read_sequences, read_target
    from plrp.progress import progress
    from plrp.view import Page, sequence_bundle

    sequences = read_sequences(
        arguments.sequences, arguments.genome, arguments.width, ends=arguments.ends, largest=arguments.largest_input
    )
    model = load_model(arguments.model, arguments.weights).eval()
    count = min(arguments.html_sequences, len(sequences))
    bundles = []
    print(f"results are in {arguments.out}; now the page", file=sys.stderr, flush=True)
    with progress("the page, maps", note=sequences.names[0]) as step:
        drawn, whole = 0, [0] * count  # maps there are, and those of each sequence

        def note(row: int, done: int, total: int) -> None:
            nonlocal drawn
            whole[row:] = [total] * (count - row)  # those that follow are taken for alike
            now = sum(whole[:row]) + done
            step(now - drawn, sequences.names[row], total=sum(whole))
            drawn = now

        for row in range(count):
            bundles.append(
                sequence_bundle(
                    model if arguments.device is None else model.to(arguments.device),
                    sequences,
                    row,
                    target=read_target(arguments.target),
                    composite=arguments.composite,
                    pruning=pruning_of(arguments),
                    pooling=arguments.pooling,
                    ambiguous=arguments.ambiguous,
                    match=arguments.match is not False,
                    name=Path(arguments.model).name,
                    device=arguments.device,
                    report=partial(note, row),
                )
            )
    Page(bundles).save(arguments.html)
    print(f"saved {arguments.html}", file=sys.stderr, flush=True)


def _say_at_the_end(text: str) -> None:
    """On standard output, and in the log, where standard error is one and not the same."""
    print(text, flush=True)
    with suppress(OSError, ValueError):  # no files at all
        if os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno()):
            return
    if not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
