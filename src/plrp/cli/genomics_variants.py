"""`plrp genomics variants`: what variants do to a prediction, base by base."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from plrp.errors import UsageError, usage
from plrp.genomics.sequence_settings import FileSettings, VariantSettings

from .arguments import add_settings, settings_of
from .genomics_options import (
    add_model,
    add_rules,
    check_composite,
    check_first,
    check_out,
    loaded_model,
    pruning_of,
)

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
    add_model(parser)
    add_rules(parser)
    add_settings(parser, VariantSettings, "strand", "reverse_target", "ends")
    parser.add_argument("--logos", type=int, default=10, metavar="N", help="draw the N strongest effects (default: 10)")
    add_settings(parser, VariantSettings, "batch_size", "device")
    add_settings(parser, FileSettings, "largest")


def run(arguments: argparse.Namespace) -> int:
    """Explain the variants of a file."""
    from plrp.genomics.allele_effects import summary
    from plrp.genomics.outputs import target_from_text
    from plrp.genomics.sequences import Genome, encode
    from plrp.genomics.variant_files import explain_variants
    from plrp.genomics.variants import read_vcf
    from plrp.runs.places import Folder, refuse_strangers

    folder, width = Path(arguments.out), arguments.width
    with usage():
        check_composite(arguments.composite)
        check_out(arguments.out)
        read_vcf(arguments.vcf, largest=arguments.largest)
        genome = Genome(arguments.genome, largest=arguments.largest)
        target, reverse = (t and target_from_text(t) for t in (arguments.target, arguments.reverse_target))
        if folder.is_file():
            raise UsageError(f"{folder} is a file: name a folder.")
        if folder.is_dir() and _command(folder) != COMMAND:
            refuse_strangers(Folder(folder))
        pruning = pruning_of(arguments)
        model = loaded_model(arguments)
        targets = [target] if reverse is None else [target, reverse]
        check_first(model, encode([("ACGT" * width)[:width]]), targets, f"--width {width}: windows of this many bases")
        settings = settings_of(VariantSettings, arguments, target=target, reverse_target=reverse, pruning=pruning)
    recorded = {name: getattr(arguments, name) for name in RECORDED}
    explained, skipped = explain_variants(
        arguments.vcf,
        genome,
        model,
        folder,
        settings,
        logos=arguments.logos,
        largest=arguments.largest,
        about={"command": COMMAND, **recorded, "p": pruning.p if pruning else 0.0},
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
