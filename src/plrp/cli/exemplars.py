"""`plrp exemplars`: photographs in, for every channel of some layers the patches that stand for it out."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from plrp.errors import UsageError, usage
from plrp.settings import check_composite, count
from plrp.vision.photograph_settings import PhotographSettings

from .arguments import (
    Shown,
    add_cluster,
    add_options,
    add_pruning,
    add_settings,
    chosen,
    cluster_of,
    location,
    pruning_of,
    say,
    tell,
)
from .explain import NETWORK

EPILOG = """\
examples:
  plrp exemplars photos/ --model resnet50 --layers layer3.5.conv2 layer4.2.conv2 --out exemplars
  plrp exemplars photos/ --model resnet50 --layers layer4.2.conv2 --channels 12,40 --out exemplars
  plrp exemplars photos/ --model networks.py:build --weights best.pt --out exemplars --engine ray
  plrp exemplars photos/ --model resnet50 --layers layer4.2.conv2 --subspaces drsa --out subspaces

Channels are those of a layer's output, as in `plrp.explain(condition={layer: [channel]})`. The work is stored part by
part: the same command resumes a search that was killed. Also written: channels.csv (relevance of every channel over all
photographs), a picture per layer (of --channels or of the strongest), and index.html with both, the channels that
classes use, prototypes and outliers. With --subspaces the same for subspaces of one layer, and subspaces.npz with their
bases (subspaces, channels, dimensions).
"""


def numbers(text: str) -> list[int]:
    """Numbers separated by commas."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: write channels such as 12,40")
    return [int(part) for part in parts]


PICTURE: Shown = {
    "--channels N,N,…": ("channels to draw (default: the strongest eight)", numbers),
    "--by {relevance,activation}": ("draw the photographs with most …", str, "relevance"),
    "--no-pictures": "search, and draw nothing",
}

SUBSPACES: Shown = {
    "--subspaces {prca,drsa}": "subspaces of the layer's channels instead, by this method",
    "--count N": ("how many", count, 4),
    "--dimensions N": ("of each", count, 8),
}

WORK: Shown = {
    "--workers N": ("processes", count, 1),
    "--part-size N": ("photographs per part", count, 64),
    "--batch-size N": ("photographs explained at once", count, 8),
    "--device DEVICE": "cpu, cuda, mps (default: cpu; with Ray: GPUs where there are any)",
    "-q --quiet": "print nothing but errors",
}


def add_parser(subparsers: Any) -> None:
    """Adds `plrp exemplars`."""
    parser = subparsers.add_parser(
        "exemplars",
        help="photographs that show what the channels of a layer stand for",
        description="Finds, for each channel, the photographs of a folder that gave it most relevance.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "photographs", metavar="FOLDER", help="folder of photographs; folders inside it are searched too"
    )
    add_options(parser, NETWORK)
    parser.add_argument(
        "--layers", nargs="+", metavar="NAME", help="conv and linear layers to search (default: the last conv)"
    )
    add_options(parser, {"--out DIR": ("folder or URL (default: ./exemplars)", location, Path("exemplars"))})
    how = parser.add_argument_group("explanation")
    add_pruning(how, default=None, offered=(), auto=False)
    add_settings(how, PhotographSettings, "composite")
    add_options(parser.add_argument_group("subspaces"), SUBSPACES)
    add_options(parser.add_argument_group("pictures"), PICTURE)
    add_options(parser.add_argument_group("work"), WORK)
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Search, then draw."""
    check_composite(arguments.composite)
    engine = cluster_of(arguments)
    from plrp.concepts.relevant_subspaces import Subspaces, search_subspaces
    from plrp.concepts.search import POSITIONS, PhotographSearch, gather, run_search
    from plrp.files import write_csv
    from plrp.runs.work import Execution

    pruning = pruning_of(arguments)
    if arguments.out is not None and not isinstance(arguments.out, Path) and not arguments.no_pictures:
        raise UsageError("pictures are written to a folder of this machine: add --no-pictures for a bucket.")
    how = chosen(arguments, "composite", "part_size", "batch_size")
    if arguments.subspaces:
        if len(arguments.layers or [""]) > 1:
            raise UsageError("subspaces are those of one layer: name one with --layers.")
        how["positions"] = POSITIONS
    with usage():
        search = PhotographSearch(
            arguments.model,
            arguments.weights,
            arguments.photographs,
            str(arguments.out),
            arguments.device,
            layers=arguments.layers or [last_layer(arguments)],
            target=None,
            pruning=None if pruning is None else pruning.to_dict(),
            **how,
        )
    quiet = arguments.quiet
    how = {"show_progress": False if quiet else None, "say": lambda text: say(f"plrp: {text}", quiet)}
    made: Subspaces | None = None
    execution = Execution(workers=arguments.workers, engine=engine, **how)
    if arguments.subspaces:
        with usage():
            found = search_subspaces(search, execution, arguments.subspaces, arguments.count, arguments.dimensions)
        made, exemplars = found, found.exemplars
    else:
        exemplars = run_search(search, execution, gather)
    if not quiet:
        tell(made or exemplars)
    if isinstance(arguments.out, Path):
        if made is not None:
            import numpy as np

            np.savez(arguments.out / "subspaces.npz", bases=made.bases, held=made.held)
        rows = exemplars.table()
        write_csv(arguments.out / "channels.csv", list(rows[0]), [list(row.values()) for row in rows])
        if not arguments.no_pictures:
            draw(exemplars, search, arguments)
        if not quiet:
            tell(f"written: {arguments.out}{'' if arguments.no_pictures else '/index.html'}")
    return 0


def last_layer(arguments: argparse.Namespace) -> str:
    """The last convolution of the model, where none was named."""
    from plrp.concepts.numbered_inputs import FromPhotographs
    from plrp.models.loading import load
    from plrp.tape.verification import trace

    loaded = load(arguments.model, weights=arguments.weights, quiet=True)
    traced = trace(loaded.module, FromPhotographs(arguments.photographs, loaded).batch([0]))
    names = [op.name for op in traced.layers if op.kind.startswith("conv")] or [op.name for op in traced.layers]
    return names[-1]


def draw(exemplars: Any, search: Any, arguments: argparse.Namespace) -> None:
    """A picture per layer, and the page."""
    from plrp.concepts.channel_figures import channel_figure
    from plrp.experiments.concept_page import render_concepts
    from plrp.experiments.pages import write_page
    from plrp.files import save_figure
    from plrp.progress import progress

    figures = {}
    rows = {layer: arguments.channels or exemplars.strongest(layer, 8) for layer in exemplars}
    with progress("drawing", sum(map(len, rows.values())), False if arguments.quiet else None) as step:
        for layer, channels in rows.items():
            figure = channel_figure(exemplars, layer, channels, search.model, search.inputs, by=arguments.by, step=step)
            save_figure(figure, arguments.out / f"{layer.replace('/', '-')}.png")
            figures[layer] = figure
    write_page(arguments.out / "index.html", render_concepts(exemplars, search.inputs, figures, search.categories))
