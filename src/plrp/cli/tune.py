"""`plrp tune`: settings for one's own model, judged by the model. Imports argparse only; the rest when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from plrp.errors import UsageError, usage
from plrp.settings import count, proportion

from .arguments import Shown, add_cluster, add_options, chosen, cluster_of, say, tell
from .explain import NETWORK

EPILOG = """\
examples:
  plrp tune photos/ --model resnet50 --out tuned
  plrp tune seqs.fa --model cnn.pt --keep 0.02 --workers 2
  plrp tune reviews.txt --model my-bert/
  plrp explain cat.jpg --settings tuned/tuned.toml

Of every sample the network is asked part by part: parts are replaced in two ways, and the fall of the score is compared
with the relevance under a dozen settings. One half of the samples chooses the sparsest settings that lose less than
--keep to the best; the other half reports. Written: tuned.toml, candidates.csv and tuned.png. The same command resumes
a run that was killed.
"""

OPTIONS: Shown = {
    "--target N": ("the class to explain, by its number (default: each sample's winner)", int),
    "--out DIR": ("folder of the results", Path, Path("tuned")),
    "--keep K": ("the agreement that sparser settings may lose to the best, with 95%% confidence", proportion, 0.05),
    "--budget N": ("forward passes per sample that ask the network", count, 128),
}
WORK: Shown = {
    "--workers N": ("processes", count, 1),
    "--part-size N": ("samples per part", count, 4),
    "--device DEVICE": "cpu, cuda, mps (default: cpu; with Ray: GPUs where there are any)",
    "-q --quiet": "print nothing but errors",
}


def add_parser(subparsers: Any) -> None:
    """Adds `plrp tune`."""
    parser = subparsers.add_parser(
        "tune",
        help="choose the settings that explain your model best",
        description="Compares a dozen settings by asking your network about your photographs, sequences or texts.",
        epilog=EPILOG,
    )
    data_help = "a folder of photographs, a FASTA file, or a file of texts for a language model, a text a line"
    parser.add_argument("data", metavar="FOLDER|FASTA|TEXTS", help=data_help)
    add_options(parser, NETWORK | OPTIONS)
    add_options(parser.add_argument_group("work"), WORK)
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, choose, and write the settings."""
    data, out, quiet = Path(arguments.data), arguments.out, arguments.quiet
    if not data.exists():
        raise UsageError(f"{data} does not exist: name a folder of photographs, a FASTA file, or a file of texts.")
    if data.is_file() and ".py:" not in arguments.model and not Path(arguments.model).exists():
        raise UsageError(
            f"{data} is a file: name its network, --model cnn.pt, --model net.py:build or --model my-bert/."
        )
    engine = cluster_of(arguments)
    from plrp.experiments.tuning import NamedTuning, tuned_by
    from plrp.files import save_figure, write_csv
    from plrp.runs.work import Execution

    def make(place: str, **more: Any) -> NamedTuning:
        how = chosen(arguments, "target", "budget", "part_size")
        return NamedTuning(arguments.model, arguments.weights, str(data), place, arguments.device, **how, **more)

    show = False if quiet else None
    execution = Execution(arguments.workers, None, 1, engine, show, lambda text: say(f"plrp: {text}", quiet))
    with usage():
        tuned = tuned_by(make, str(out), execution, arguments.keep)
    rows = tuned.table()
    write_csv(out / "candidates.csv", list(rows[0]), [list(row.values()) for row in rows])
    save_figure(tuned.figure(), out / "tuned.png")
    tuned.save(out / "tuned.toml")
    if not quiet:
        tell(tuned)
        tell(f"written: {out}/tuned.toml (--settings of the other commands), candidates.csv, tuned.png")
    return 0
