"""`plrp genomics explain`, `variants` and `compare`: they explain sequences, and share options."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp import genomics
from plrp.errors import UsageError, usage
from plrp.genomics.sequence_settings import FileSettings, ReferenceSettings, ScoreSettings, VariantSettings
from plrp.settings import check_composite as check_name
from plrp.settings import count, shard
from plrp.spelling import plural

from . import arguments as shared
from .arguments import (
    PICTURE,
    Shown,
    add_cluster,
    add_options,
    add_pruning,
    add_settings,
    check_out,
    chosen,
    cluster_of,
    forwards,
    m_remedy,
    say,
    say_price,
    settings_of,
    tell,
)
from .genomics_results import WINDOW

if TYPE_CHECKING:
    from torch import nn

    from plrp.pruning import Pruning

COMMAND = "genomics variants"
"""The program that wrote a folder, by its `run.json`."""

RECORDED = (
    *("vcf", "genome", "model", "weights", "target", "reverse_target", "width", "strand", "ends"),
    *("redistribution", "sparsity_gain", "unit", "composite"),
)
"""The arguments that `run.json` holds."""

RULED = ("lrp", "deeplift")
"""The methods that have rules, references and prunings."""

READABLE = 100
"""Bases whose letters can be read in a picture."""


# -- options that these commands share


def add_model(
    parser: argparse.ArgumentParser, p: float | None = None, kind: type[ScoreSettings] = ReferenceSettings
) -> None:
    """Which model, which of its scores is explained, and how relevance is propagated and pruned (by default by `p`)."""
    parser.add_argument(
        "--model",
        required=True,
        help="file.py:factory (your network), a checkpoint of `plrp genomics train`, or a Keras model: model.h5, or "
        "model.json with --weights",
    )
    add_settings(parser, FileSettings, "weights")
    add_settings(parser, kind, "target", "composite", "reference")
    add_pruning(parser, default=p, flag="--redistribution", auto=kind is ReferenceSettings)


def add_sequences(parser: argparse.ArgumentParser) -> None:
    """A file of sequences, and how intervals of a genome are read."""
    parser.add_argument("sequences", metavar="SEQUENCES", help="FASTA, BED or one-hot NPZ; .gz as well")
    add_settings(parser, FileSettings, "genome", "width", "largest")


def pruning_of(given: argparse.Namespace) -> Pruning | None:
    """The pruning that the options ask for; None for plain LRP."""
    if given.sparsity_gain is not None and given.p == 0:
        raise UsageError("-p 0 prunes nothing, whatever the --sparsity-gain: leave -p out, or give a share.")
    return None if given.p == 0 else shared.pruning_of(given)


def loaded_model(given: argparse.Namespace) -> nn.Module:
    """The model of --model and --weights on the device of --device, which is checked before the model is loaded."""
    from plrp.genomics.network import load_model
    from plrp.tape.refusals import check_device

    device = None if given.device is None else check_device(given.device)
    model = load_model(given.model, given.weights).eval()
    return model if device is None else model.to(device)


def check_composite(text: str | None, reference: str | None = None) -> None:
    """Refuse a composite that does not exist, before anything is loaded."""
    if text is None or ":" not in text:
        return None if text is None else check_name(text, reference)
    from plrp.genomics.attribution import composite_from_text

    with usage():
        composite_from_text(text)


# -- explain


PAGE: Shown = {
    "--html FILE": "also write a page in which p is a slider: logos of the first sequences, seqlets, layers and ledger",
    "--html-sequences N": ("sequences on that page", count, 8),
    "--test N": ("ask the network whether the maps of the first N sequences are true: verdicts.tsv", count),
    "--budget N": ("forward passes of --test per sequence, at most", count, 128),
    "--workers N": ("workers on the cluster (default: as many as fit)", count),
}


def add_explain(commands: Any) -> None:
    """Add `plrp genomics explain`."""
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
        "      --target 0,500 -p 0.05 --out DIR --shard $SLURM_ARRAY_TASK_ID/100\n"
        "  plrp genomics explain seqs.fa --model cnn.pt --reference shuffled:20 -p 0.1 --out DIR",
    )
    add_sequences(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder, or a URL such as s3://bucket/run")
    add_model(parser)
    add_settings(parser, FileSettings, "method", "ends", "pooling", "ambiguous", "match", match=None)
    add_settings(parser, FileSettings, "reverse_complement", "reverse_target", "hypothetical")
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N", help="be the I-th of N processes")
    add_settings(parser, FileSettings, "part_size", "batch_size", "device")
    add_options(parser, PAGE)
    add_cluster(parser)
    parser.set_defaults(run=run_explain)


def run_explain(arguments: argparse.Namespace) -> int:
    """Explain a file."""
    check_explain(arguments)
    from plrp.runs.work import by_cause

    with usage():
        engine = cluster_of(arguments)
        settings = settings_of(FileSettings, arguments, pruning=pruning_of(arguments))
    if arguments.engine == "local" and arguments.threads is not None:
        import torch

        torch.set_num_threads(arguments.threads)
    if arguments.weights is None and ".py:" in arguments.model:
        say(f"no --weights: {arguments.model}() is taken as it is; if it does not load weights itself, they are random")
    files = arguments.sequences, arguments.model, arguments.out
    how = {"shard": arguments.shard, "engine": engine, "about": {"model": arguments.model}}
    if arguments.test:
        say_price(arguments.budget, False, arguments.test)
    how |= {"test": arguments.test or 0, "budget": arguments.budget}
    with usage() if arguments.test else nullcontext():
        outcome = genomics.explain_file(*files, settings, say=say, **how)
    state = f"{outcome.done} of {outcome.parts} parts done"
    if outcome.failures:
        say(f"plrp: {state}. Fix the cause and start again. {by_cause(outcome.failures)}")
        return 3
    if not outcome.complete:
        _say_at_the_end(f"{state}; the other shards write the rest, and the last one gathers the results")
        return 0
    if outcome.judgements:
        said = "; ".join(f"{judgement}: {n}" for judgement, n in Counter(outcome.judgements).most_common())
        tell(f"the network says of {plural(len(outcome.judgements), 'map')}: {said} (verdicts.tsv)")
    if arguments.html is not None:
        write_page(arguments, settings)
    _say_at_the_end(f"{plural(outcome.sequences, 'sequence')} explained ({state}); results in {arguments.out}")
    if outcome.broken:
        where = f"{outcome.broken:,} of {plural(outcome.sequences, 'sequence')} (scores.tsv says which)"
        remedy = f": {m_remedy('--redistribution')}" if arguments.redistribution == "M" else ""
        say(f"plrp: the arithmetic broke in {where}{remedy}")
    return 0


def check_explain(arguments: argparse.Namespace) -> None:
    """Refuse wrong options before anything is loaded."""
    check_composite(arguments.composite, arguments.reference or (arguments.method == "deeplift" or None))
    check_out(arguments.out)
    if arguments.engine == "local" and arguments.workers is not None:
        raise UsageError("--workers goes with --engine ray; on one machine, share the work with --shard.")
    refuse_rules(arguments)
    is_class = arguments.target is None or arguments.target.strip().lstrip("-").isdecimal()
    if arguments.reverse_complement and arguments.reverse_target is None and not is_class:
        raise UsageError(
            "--reverse-complement goes with a class, or --reverse-target: on the other strand a position is another."
        )
    if arguments.html is None:
        return
    if not arguments.html.lower().endswith((".html", ".htm")):
        raise UsageError(f"{arguments.html} should end in .html.")
    if arguments.method not in RULED or arguments.reverse_complement or arguments.hypothetical:
        raise UsageError("--html goes with --method lrp or deeplift, without --reverse-complement and --hypothetical.")


def refuse_rules(given: argparse.Namespace) -> None:
    """Refuse options of LRP with another method, which would not use them."""
    if given.method in RULED:
        return
    defaults = {"unit": "auto", "redistribution": "lambda", "composite": None}
    names = ("p", "reference", "sparsity_gain", *defaults, "reverse_complement", "reverse_target", "hypothetical")
    wrong = [name for name, value in chosen(given, *names).items() if value not in (None, False, defaults.get(name))]
    if wrong:
        options = ", ".join("-p" if name == "p" else f"--{name.replace('_', '-')}" for name in wrong)
        raise UsageError(f"{options} {'go' if len(wrong) > 1 else 'goes'} with --method lrp, not {given.method}.")


def write_page(arguments: argparse.Namespace, settings: FileSettings) -> None:
    """The page of the first sequences, for every p of its slider."""
    from plrp.genomics.jobs import read_sequences, read_target
    from plrp.progress import progress
    from plrp.view import Page, sequence_bundle

    reading = chosen(arguments, "genome", "width", "ends", "largest")
    sequences = read_sequences(arguments.sequences, **reading)
    rules: dict[str, Any] = chosen(arguments, "pooling", "ambiguous", "device") | {"pruning": settings.pruning}
    rules |= {"composite": settings.composite, "reference": settings.reference}
    rules |= {"target": read_target(settings.target), "match": settings.match is not False}
    model, name = loaded_model(arguments), Path(arguments.model).name
    count = min(arguments.html_sequences, len(sequences))
    say(f"results are in {arguments.out}; now the page")
    with progress("the page, maps", note=sequences.names[0]) as step:
        move_to, whole = forwards(step), [0] * count  # all maps of each sequence

        def note(row: int, done: int, total: int) -> None:
            whole[row:] = [total] * (count - row)  # the sequences that follow count as this one
            move_to(sum(whole[:row]), done, sequences.names[row], sum(whole))

        bundles = [
            sequence_bundle(model, sequences, row, name=name, report=partial(note, row), **rules)
            for row in range(count)
        ]
    Page(bundles).save(arguments.html)
    say(f"saved {arguments.html}")


def _say_at_the_end(text: str) -> None:
    """On standard output, and on standard error where that is a log file of its own."""
    tell(text)
    with suppress(OSError, ValueError):  # no files at all
        if os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno()):
            return
    if not sys.stderr.isatty():
        say(text)


# -- variants


def add_variants(commands: Any) -> None:
    """Add `plrp genomics variants`."""
    parser = commands.add_parser(
        "variants",
        help="scores with either allele of a VCF's variants, and their difference per base",
        description="Explains the sequence around each variant with the reference and with the alternative allele,\n"
        "for the same score. Written into --out: effects.parquet (an allele per row), bases.parquet (a base per\n"
        "row), effects.vcf (yours, with INFO fields PLRP_*), skipped.tsv, and logos of the strongest effects.\n"
        "Positions in all of them count from 1, as in the VCF, so that tables can be joined.\n"
        "Variants that cannot be scored (the reference differs from the genome, N, symbolic alleles, contig\n"
        "ends) are skipped, counted and listed.",
        epilog="example:\n"
        "  plrp genomics variants calls.vcf.gz --genome hg38.fa --model net.py:build --weights w.pt \\\n"
        '      --width 2114 --target "outputs[1][:, 0]" --out effects',
    )
    parser.add_argument("vcf", metavar="VCF", help="variants; .gz as well")
    parser.add_argument("--genome", required=True, metavar="FASTA", help="the genome that the variants refer to")
    add_settings(parser, VariantSettings, "width")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    add_model(parser, kind=VariantSettings)
    add_settings(parser, VariantSettings, "strand", "reverse_target", "ends")
    parser.add_argument("--logos", type=int, default=10, metavar="N", help="draw the N strongest effects (default: 10)")
    add_settings(parser, VariantSettings, "batch_size", "device")
    add_settings(parser, FileSettings, "largest")
    parser.set_defaults(run=run_variants)


def run_variants(arguments: argparse.Namespace) -> int:
    """Explain the variants of a file."""
    from plrp.genomics.network import check_fit
    from plrp.genomics.outputs import target_from_text
    from plrp.genomics.variants import summary
    from plrp.runs.places import Folder, refuse_strangers

    folder, width = Path(arguments.out), arguments.width
    with usage():
        check_composite(arguments.composite)
        check_out(arguments.out)
        genomics.read_vcf(arguments.vcf, largest=arguments.largest)
        genome = genomics.Genome(arguments.genome, largest=arguments.largest)
        target, reverse = (t and target_from_text(t) for t in (arguments.target, arguments.reverse_target))
        if folder.is_file():
            raise UsageError(f"{folder} is a file: name a folder.")
        if folder.is_dir() and _command(folder) != COMMAND:
            refuse_strangers(Folder(folder))
        pruning = pruning_of(arguments)
        model = loaded_model(arguments)
        targets = [target] if reverse is None else [target, reverse]
        window = genomics.encode([("ACGT" * width)[:width]])
        check_fit(model, window, targets, f"--width {width}: windows of this many bases")
        settings = settings_of(VariantSettings, arguments, target=target, reverse_target=reverse, pruning=pruning)
    about = {"command": COMMAND, **chosen(arguments, *RECORDED), "p": pruning.p if pruning else 0.0}
    how = chosen(arguments, "logos", "largest")
    explained, skipped = genomics.explain_variants(arguments.vcf, genome, model, folder, settings, about=about, **how)
    tell(f"{summary(explained, skipped)}; results in {folder}")
    if skipped:
        say(f"plrp: which were skipped, and why: {folder / 'skipped.tsv'}")
    return 0


def _command(folder: Path) -> str | None:
    """The command that has written a folder; None if nothing says so."""
    try:
        return dict(json.loads((folder / "run.json").read_text())).get("command")
    except (OSError, ValueError, TypeError):
        return None


# -- compare


def add_compare(commands: Any) -> None:
    """Add `plrp genomics compare`."""
    parser = commands.add_parser(
        "compare",
        help="draw several methods under one another, with their correlation to ISM",
        description="Asks in-silico mutagenesis (ISM: every base replaced by every other letter), LRP, PLRP,\n"
        "gradient × input and DeepLIFT (LRP of differences to 20 shuffles or another --reference, also pruned)\n"
        "about the same score, draws them, and prints how far each agrees with ISM. Do this on your own network\n"
        "before you believe any of them.",
        epilog="example:\n"
        "  plrp genomics compare seqs.fa --model net.py:build --weights w.pt --count 20 --out compared.png",
    )
    add_sequences(parser)
    add_options(parser, PICTURE)
    add_model(parser, p=0.05)
    add_options(parser, {"--count N": ("take the first N sequences", count, 10)})
    add_options(parser, {"--draw N": ("draw the first N sequences", count, 3), **WINDOW})
    add_settings(parser, ReferenceSettings, "batch_size", "device")
    parser.set_defaults(run=run_compare)


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare methods on the first sequences of a file."""
    from plrp.genomics.jobs import read_sequences
    from plrp.genomics.network import check_fit
    from plrp.genomics.outputs import target_from_text

    with usage():
        check_composite(arguments.composite, reference="of DeepLIFT")
        reading = chosen(arguments, "genome", "width", "largest")
        sequences = read_sequences(arguments.sequences, **reading)[: arguments.count]
        onehot = sequences.onehot()
        target = arguments.target and target_from_text(arguments.target)
        pruning = pruning_of(arguments)
        if pruning is None:
            raise UsageError("-p 0 is LRP, which is compared anyway: give the share to prune, such as -p 0.05.")
        model = loaded_model(arguments)
        check_fit(model, onehot, [target], f"{sequences.where(0)}: its {onehot.shape[2]} bases")
        settings = settings_of(ReferenceSettings, arguments, target=target, pruning=pruning)
    comparison = genomics.compare_methods(model, onehot, settings, show_progress=None)
    tell(comparison)
    comparison.plot(arguments.out, names=sequences.names, count=arguments.draw, window=arguments.window)
    drawn = min(arguments.draw, len(sequences))
    more = "" if drawn == len(sequences) else f" of {len(sequences)} (--draw N draws more)"
    tell(f"{arguments.out}: {plural(drawn, 'sequence')}{more}")
    if arguments.window is None and onehot.shape[2] > READABLE:
        tell(f"letters of {onehot.shape[2]} bases are small: --window 60-110 draws fewer")
    return 0
