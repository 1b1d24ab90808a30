"""`plrp demo`, `plrp sweep` and `plrp report`: whole studies. Imports argparse only; the rest when a command runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from plrp.errors import UsageError, usage
from plrp.settings import count, shard

from .arguments import Shown, add_cluster, add_options, chosen, cluster_of, location, say, tell

PRESETS = ("ecssd-vgg16", "ecssd-resnet50", "imagenet-vgg16", "imagenet-resnet50", "genomics-4", "genomics-32")


def add_demo(subparsers: Any) -> None:
    """Add `plrp demo`."""
    parser = subparsers.add_parser(
        "demo",
        help="photographs, and DNA with planted motifs: train, explain, write a report",
        description="Makes scenes of photographs (those that scikit-image ships) and DNA sequences with planted "
        "motifs, trains small CNNs, explains them with LRP and PLRP, and writes a report to read in a browser, where "
        "p is a slider. Nothing is downloaded; the same seed gives the same report.",
        epilog="example:\n  plrp demo --out demo",
    )
    add_options(parser, {"--out DIR": ("folder to write (default: ./demo)", Path, Path("demo"))})
    add_options(parser, {"--seed N": ("seed of everything random", int, 0)})
    parser.set_defaults(run=run_demo)


def run_demo(arguments: argparse.Namespace) -> int:
    """Make the data, train, explain, and write the report."""
    from plrp.experiments import demo_study

    tell(f"written: {demo_study.run(arguments.out, seed=arguments.seed).resolve()}")
    return 0


INPUT: Shown = {
    "--root DATA": ("folder of the preset's photographs", Path),
    "--weights FILE": "your weights instead of the published ones",
    "--out RUN": ("folder of the run, or its URL (default: the config's name)", location),
    "--limit N": ("take the first N samples only; more can follow later", count),
}

WORK: Shown = {
    "--workers N": ("processes (default: one per core)", count),
    "--device DEVICE": "such as cuda (default: cpu; with Ray: GPUs where there are any)",
    "--show-config": "print the config as TOML and stop",
}


def add_sweep(subparsers: Any) -> None:
    """Add `plrp sweep`."""
    parser = subparsers.add_parser(
        "sweep",
        help="measure LRP and PLRP over many samples, variants and p; stop and resume at will",
        description="Explains every sample of a data set with LRP, PLRP-λ and PLRP-M (or PLRP-M±, by --set variants), "
        "with and without sparsity gain, over many p, and measures every map. Results are stored part by part: a sweep "
        "that was stopped, was killed or ran out of disk resumes when it is started again. `plrp report` draws the "
        "figures.",
        epilog="examples:\n"
        "  plrp sweep --preset genomics-4 --out run\n"
        "  plrp sweep --preset ecssd-resnet50 --root ECSSD --limit 30 --set 'p=[0, 0.1, 0.2]' --out run\n"
        '  plrp sweep --preset genomics-4 --set \'variants=["LRP", "M", "M-sign"]\' --out run\n'
        "  plrp sweep run.toml --out run                     your own config\n"
        "  plrp sweep run                                    resume a run\n"
        "  plrp sweep run.toml --out run --shard 2/8         the second of eight processes\n"
        "  plrp sweep run.toml --out s3://bucket/run --engine ray --address auto",
    )
    parser.add_argument("config", nargs="?", type=location, metavar="run.toml", help="a config, or a run to resume")
    parser.add_argument("--preset", choices=PRESETS, metavar="NAME", help=f"a study of the paper: {', '.join(PRESETS)}")
    add_options(parser, INPUT)
    set_help = "change an entry of the config, e.g. 'p=[0, 0.1, 0.2]' or metrics.pixel_flipping.limit=5; repeatable"
    parser.add_argument("--set", action="append", default=[], type=_setting, metavar="ENTRY=VALUE", help=set_help)
    parser.add_argument(
        "--shard", type=shard, default=(1, 1), metavar="i/n", help="make every n-th part, from the i-th on"
    )
    add_options(parser, WORK)
    add_cluster(parser)
    parser.set_defaults(run=run_sweep)


def run_sweep(arguments: argparse.Namespace) -> int:
    """Explain and measure every sample, or print the config."""
    if (arguments.config is None) == (arguments.preset is None):
        raise UsageError("name a config file (plrp sweep run.toml), or a preset (--preset genomics-4).")
    from plrp.experiments.results import broken_sentence
    from plrp.experiments.sweeps import sweep

    with usage():
        config, out = config_of(arguments)
    if arguments.show_config:
        print(config.to_toml(), end="")
        return 0
    with usage():
        engine = cluster_of(arguments)
    asked = chosen(arguments, "shard", "workers", "device")
    results = sweep(config, out, **asked, threads=arguments.threads or 1, engine=engine, say=say)
    missing = f", {len(results.missing)} parts missing" if results.missing else ""
    tell(f"{out}: {len(results.samples)} samples, {len(results.scores):,} scores{missing}")
    if len(results.broken):
        say(f"plrp: {broken_sentence(results)}; `plrp report` lists them")
    return 0


def config_of(arguments: argparse.Namespace) -> tuple[Any, str | Path]:
    """The config that the arguments ask for, and the run's folder or URL."""
    from plrp.experiments.config import Config
    from plrp.experiments.presets import preset
    from plrp.experiments.store import CONFIG, Store

    out: str | Path
    given, changes = arguments.config, {name: _value(text) for name, text in arguments.set}
    if arguments.limit is not None:
        changes["data.limit"] = arguments.limit
    if arguments.preset is not None:
        config, out = preset(arguments.preset, **chosen(arguments, "root", "weights")), Path(arguments.preset)
    else:
        if isinstance(given, str):
            config, out = Store(given).config(), given
        elif given.is_dir():
            config, out = Config.read(given / CONFIG), given
        else:
            config, out = Config.read(given), Path(given.stem)
        if arguments.root is not None:
            config = config.changed(**{"data.root": str(arguments.root.resolve())})
        if arguments.weights is not None:
            config = config.changed(**{"model.weights": arguments.weights})
    return config.changed(**changes).at(Path.cwd()), arguments.out or out


def _setting(text: str) -> tuple[str, str]:
    """`entry=value`."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: write entry=value, such as data.limit=30")
    return name.strip(), value.strip()


def _value(text: str) -> Any:
    """A value as TOML writes it; anything else is text."""
    from plrp.experiments.config import ConfigError, read_toml

    try:
        return read_toml(f"value = {text}")["value"]
    except ConfigError:
        return text


def add_report(subparsers: Any) -> None:
    """Add `plrp report`."""
    parser = subparsers.add_parser(
        "report",
        help="figures, tables and the paper's statements from sweeps, as one page",
        description="Draws the paper's figures from the tables of one or more sweeps and writes one HTML page that "
        "needs nothing else: config, figures, tables, the paper's statements with 'holds' or 'does not hold'.",
        epilog="examples:\n  plrp report run\n  plrp report ecssd-vgg16 ecssd-resnet50 --out report\n"
        "  plrp report --compare before after --out compared",
    )
    parser.add_argument("runs", nargs="+", type=location, metavar="RUN", help="folders or URLs of sweeps")
    out_help = "folder to write (default: `report` in the run; for several runs: ./report)"
    add_options(parser, {"--compare": "compare two runs, sample by sample", "--out DIR": (out_help, Path)})
    formats = ("png", "svg", "pdf")
    parser.add_argument("--formats", nargs="+", choices=formats, default=formats, help="formats of the figures")
    parser.set_defaults(run=run_report)


def run_report(arguments: argparse.Namespace) -> int:
    """Write the page of one or several sweeps."""
    from plrp.experiments import report

    page = report.write(arguments.runs, arguments.out, formats=tuple(arguments.formats), compare=arguments.compare)
    tell(f"written: {page.resolve()}")
    return 0
