"""`plrp genomics variants`: what variants do to a prediction, base by base."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from plrp.cli.arguments import EXIT_CODES, RAW, count
from plrp.errors import UsageError, usage

from .genomics_options import add_largest, add_model, add_rules, check_composite, check_out, pruning_of, target

COMMAND = "genomics variants"
"""What has written a folder, as its `run.json` says."""

RECORDED = (
    *("vcf", "genome", "model", "weights", "target", "reverse_target", "width", "strand", "ends"),
    *("redistribution", "sparsity_gain", "unit", "composite"),
)
"""The arguments that `run.json` holds."""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "variants",
        help="scores with either allele of a VCF's variants, and their difference per base",
        formatter_class=RAW,
        description="Explains the sequence around each variant with the reference and with the alternative allele,\n"
        "for the same score. Written into --out: effects.parquet (an allele per row), bases.parquet (a base per\n"
        "row), effects.vcf (yours, with INFO fields PLRP_*), skipped.tsv, and logos of the strongest effects.\n"
        "Positions in all of them count from 1, as in the VCF, so that tables can be joined.\n"
        "Variants that cannot be scored (the reference differs from the genome, N, symbolic alleles, contig\n"
        "ends) are skipped, counted and listed.",
        epilog="example:\n"
        "  plrp genomics variants calls.vcf.gz --genome hg38.fa --model net.py:build --weights w.pt \\\n"
        '      --width 2114 --target "outputs[1][:, 0]" --out effects\n\n' + EXIT_CODES,
    )
    parser.add_argument("vcf", metavar="VCF", help="variants; .gz as well")
    parser.add_argument("--genome", required=True, metavar="FASTA", help="the genome that the variants refer to")
    parser.add_argument("--width", required=True, type=count, metavar="N", help="bases that the model reads")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    add_model(parser)
    add_rules(parser)
    parser.add_argument(
        "--strand",
        choices=["+", "-", "both", "info"],
        default="+",
        help="what the model reads: the genome's strand, the other, the mean of both, or INFO's STRAND (default: +)",
    )
    parser.add_argument(
        "--reverse-target", type=target, metavar="TARGET", help="the target on the other strand, for --strand both"
    )
    parser.add_argument(
        "--ends", choices=["skip", "pad"], default="skip", help="windows past a contig's end: skip, or pad with N"
    )
    parser.add_argument("--logos", type=int, default=10, metavar="N", help="draw the N strongest effects (default: 10)")
    parser.add_argument("--batch-size", type=count, default=64)
    add_largest(parser)
    parser.add_argument("--device", help="such as cuda (default: where the model is)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Explain the variants of a file."""
    import torch

    from plrp.genomics.allele_effects import summary
    from plrp.genomics.jobs import check_fit, load_model
    from plrp.genomics.outputs import target_from_text
    from plrp.genomics.sequences import Genome, encode
    from plrp.genomics.variant_files import explain_variants
    from plrp.genomics.variants import read_vcf
    from plrp.runs.places import Folder, refuse_strangers
    from plrp.tape.refusals import check_device

    folder = Path(arguments.out)
    with usage():
        check_composite(arguments.composite)
        check_out(arguments.out)
        if arguments.device is not None:
            check_device(arguments.device)
        read_vcf(arguments.vcf, largest=arguments.largest_input)
        genome = Genome(arguments.genome, largest=arguments.largest_input)
        targets = [t and target_from_text(t) for t in (arguments.target, arguments.reverse_target)]
        if folder.is_file():
            raise UsageError(f"{folder} is a file: name a folder.")
        if folder.is_dir() and _command(folder) != COMMAND:
            refuse_strangers(Folder(folder))
        pruning = pruning_of(arguments)
        model = load_model(arguments.model, arguments.weights).eval()
        if arguments.device is not None:
            model.to(arguments.device)
        example = torch.from_numpy(encode([("ACGT" * arguments.width)[: arguments.width]]))
        where = next((p.device for p in model.parameters()), example.device)
        asked = [target for target in targets[1:] if target is not None]
        check_fit(
            model, example.to(where), [targets[0], *asked], f"--width {arguments.width}: windows of so many bases"
        )
    explained, skipped = explain_variants(
        arguments.vcf,
        genome,
        model,
        folder,
        width=arguments.width,
        target=targets[0],
        reverse_target=targets[1],
        composite=arguments.composite,
        pruning=pruning,
        strand=arguments.strand,
        ends=arguments.ends,
        logos=arguments.logos,
        batch_size=arguments.batch_size,
        device=arguments.device,
        largest=arguments.largest_input,
        about={
            "command": COMMAND,
            **{name: getattr(arguments, name) for name in RECORDED},
            "p": pruning.p if pruning else 0.0,
        },
    )
    print(f"{summary(explained, skipped)}; results in {folder}")
    if skipped:
        print(f"plrp: which were skipped, and why: {folder / 'skipped.tsv'}", file=sys.stderr)
    return 0


def _command(folder: Path) -> str | None:
    """The command that has written a folder; None if nothing says so."""
    try:
        return dict(json.loads((folder / "run.json").read_text())).get("command")
    except (OSError, ValueError, TypeError):
        return None
