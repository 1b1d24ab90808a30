"""Options that several genomics commands share: the model, what is explained, and how."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp.errors import NotWritable, UsageError, usage
from plrp.genomics.sequence_settings import COMPOSITE, FileSettings, ScoreSettings
from plrp.settings import check_composite as known_composite

from . import arguments
from .arguments import PICTURES, add_pruning, add_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from plrp.genomics.sequences import OneHot
    from plrp.pruning import Pruning


def add_model(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Which model, with which weights."""
    parser.add_argument(
        "--model",
        required=required,
        help="file.py:factory (your network), a checkpoint of `plrp genomics train`, or a Keras model: model.h5, or "
        "model.json with --weights",
    )
    add_settings(parser, FileSettings, "weights")


def add_rules(parser: argparse.ArgumentParser, p: float | None = None) -> None:
    """Which score is explained, and how relevance is propagated and pruned."""
    add_settings(parser, ScoreSettings, "target", "composite")
    add_pruning(parser, default=p, flag="--redistribution")


def add_sequences(parser: argparse.ArgumentParser) -> None:
    """A file of sequences, and how intervals of a genome are read."""
    parser.add_argument("sequences", metavar="SEQUENCES", help="FASTA, BED or one-hot NPZ; .gz as well")
    add_settings(parser, FileSettings, "genome", "width", "largest")


def picture(text: str) -> str:
    """The file of a picture, which its ending has to say."""
    if not text.lower().endswith(PICTURES):
        raise argparse.ArgumentTypeError(f"{text!r}: a picture ends in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")
    return text


def is_class_text(text: str | None) -> bool:
    """Whether a target is a class, or left to the model."""
    return text is None or text.strip().lstrip("-").isdecimal()


def pruning_of(given: argparse.Namespace) -> Pruning | None:
    """The pruning that the options ask for; None for plain LRP."""
    if given.sparsity_gain is not None and given.p == 0:
        raise UsageError("-p 0 prunes nothing, whatever the --sparsity-gain: leave -p out, or give a share.")
    return None if given.p == 0 else arguments.pruning_of(given)


def loaded_model(given: argparse.Namespace) -> nn.Module:
    """The model of --model and --weights on the device of --device, which is checked before the model is loaded."""
    from plrp.genomics.jobs import load_model
    from plrp.tape.refusals import check_device

    if given.device is None:
        return load_model(given.model, given.weights).eval()
    check_device(given.device)
    return load_model(given.model, given.weights).eval().to(given.device)


def check_first(model: nn.Module, onehot: OneHot, targets: Sequence[Any], what: str) -> None:
    """Refuse sequences that do not fit the model, and targets that its output does not have, by one sequence."""
    import torch

    from plrp.genomics.jobs import check_fit

    example = torch.from_numpy(onehot[:1])
    device = next((p.device for p in model.parameters()), example.device)
    check_fit(model, example.to(device), targets, what)


def refuse_rules(given: argparse.Namespace) -> None:
    """Refuse options of LRP with another method, which would not use them."""
    if given.method == "lrp":
        return
    options = {
        "-p": given.p,
        "--sparsity-gain": given.sparsity_gain is not None,
        "--unit": given.unit != "auto",
        "--redistribution": given.redistribution != "lambda",
        "--composite": given.composite != COMPOSITE,
        "--reverse-complement": given.reverse_complement,
        "--reverse-target": given.reverse_target is not None,
        "--hypothetical": given.hypothetical,
    }
    wrong = [option for option, is_given in options.items() if is_given]
    if wrong:
        verb = "go" if len(wrong) > 1 else "goes"
        raise UsageError(f"{', '.join(wrong)} {verb} with --method lrp, not {given.method}.")


def check_composite(text: str) -> None:
    """Refuse a composite that does not exist, before anything is loaded."""
    if ":" not in text:
        return known_composite(text)
    from plrp.genomics.attribution import composite_from_text

    with usage():
        composite_from_text(text)


def check_out(out: str) -> None:
    """Refuse a folder for results that cannot be made, before work begins; URLs and what exists are not tried."""
    place = Path(out)
    there = next(path for path in (place, *place.absolute().parents) if os.path.exists(path))
    if "://" in out or there == place or not there.is_dir():
        return
    try:
        tempfile.TemporaryDirectory(prefix=".", dir=there).cleanup()
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise NotWritable(f"{out} cannot be written ({reason}): name another place for the results.") from None
