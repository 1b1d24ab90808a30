"""Options that several genomics commands share: the model, what is explained, and how."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp.cli import arguments
from plrp.cli.arguments import LARGEST_INPUT, amount, gain, proportion
from plrp.errors import NotWritable, UsageError, usage

if TYPE_CHECKING:
    from plrp.pruning import Pruning


COMPOSITE = "epsilon-gamma"
"""The default, `plrp.genomics.attribution.COMPOSITE`, which is not imported for a help text."""


def add_model(parser: argparse.ArgumentParser) -> None:
    """Which model, and which of its scores."""
    parser.add_argument(
        "--model",
        required=True,
        help="file.py:factory (your network), a checkpoint of `plrp genomics train`, or a Keras model: model.h5, or "
        "model.json with --weights",
    )
    parser.add_argument("--weights", metavar="FILE", help="state dict, or Keras weights (.h5), for file.py:factory")
    parser.add_argument(
        "--target",
        type=target,
        metavar="TARGET",
        help='class 3; track,position 0,141; "outputs[1][:, 0]"; "outputs.counts[:, 2:5].mean()"; '
        '"profile(outputs[0])"; or net.py:score, your function from the output to scores (default: winning class)',
    )


def add_rules(parser: argparse.ArgumentParser, p: float = 0.0) -> None:
    """How relevance is propagated and pruned."""
    default = f"{p:g}" if p else "0, plain LRP"
    parser.add_argument(
        "-p",
        type=proportion,
        metavar="P",
        help=f"share of relevance pruned per layer (default: {default}; with --sparsity-gain, what it allows)",
    )
    parser.set_defaults(default_p=p)
    parser.add_argument(
        "--redistribution",
        choices=["lambda", "M", "M-sign"],
        default="lambda",
        help="where pruned relevance goes: scale the survivors (lambda, default), or redistribute it by the layer's "
        "rule, as the paper does (M), or positive and negative contributions apart (M-sign, PLRP-M±)",
    )
    parser.add_argument(
        "--unit",
        choices=("auto", "neuron", "position", "channel"),
        default="auto",
        help="what is pruned as a whole: single neurons, bases with all their channels (position), or channels "
        "(default: auto: positions in models with attention, else neurons)",
    )
    parser.add_argument("--sparsity-gain", type=gain, metavar="G", help="least sparsity gain of a pruned neuron")
    parser.add_argument(
        "--composite",
        default=COMPOSITE,
        help="rules per layer: a name, or gamma:0.25, alpha-beta:2, epsilon:0.01 (default: epsilon-gamma)",
    )


def add_largest(parser: argparse.ArgumentParser) -> None:
    """The limit of what a file may unpack to."""
    parser.add_argument(
        "--largest-input",
        type=amount,
        default=LARGEST_INPUT,
        metavar="BYTES",
        help="refuse files that unpack to more (default: 4GB)",
    )


PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")
"""The endings of pictures that `plrp.files.save_figure` writes."""


def picture(text: str) -> str:
    """The file of a picture, which its ending has to say."""
    if not text.lower().endswith(PICTURES):
        raise argparse.ArgumentTypeError(f"{text!r}: a picture ends in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")
    return text


def target(text: str) -> Any:
    """The text of a target, if it can be read: see `plrp.genomics.outputs`."""
    from plrp.genomics.outputs import check_target_text

    try:
        return check_target_text(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def is_class_text(text: str | None) -> bool:
    """Whether a target is a class, or left to the model."""
    return text is None or text.strip().lstrip("-").isdecimal()


def pruning_of(given: argparse.Namespace) -> Pruning | None:
    """The pruning that the options ask for; None for plain LRP."""
    from plrp.pruning import Pruning

    if given.sparsity_gain is not None and given.p == 0:
        raise UsageError("-p 0 prunes nothing, whatever the --sparsity-gain: leave -p out, or give a share.")
    p = given.default_p if given.p is None and given.sparsity_gain is None else given.p
    if p == 0:
        return None
    return Pruning(p=p, redistribution=given.redistribution, sparsity_gain=given.sparsity_gain, unit=given.unit)


def refuse_rules(given: argparse.Namespace, method: str) -> None:
    """Refuse options of LRP with another method, which would not use them."""
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
        raise UsageError(f"{', '.join(wrong)} {verb} with --method lrp, not {method}.")


def check_composite(text: str) -> None:
    """Refuse a composite that does not exist, before anything is loaded."""
    if ":" not in text:
        return arguments.check_composite(text)
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


def as_options(text: str) -> str:
    """What the library advises about sequences, with options instead of Python's arguments."""
    text = re.sub(r"composite='([^']+)'", r"--composite \1", text)
    text = text.replace("prune with redistribution='M-sign' or 'lambda'", "take --redistribution M-sign or lambda")
    return text.replace("prune less", "prune less (a smaller -p)")
