"""Options that several commands share: numbers, shares, shards, clusters; and what exit codes mean."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp.errors import UsageError

if TYPE_CHECKING:
    from plrp.health import Wording
    from plrp.runs.ray import RayCluster

RAW = argparse.RawDescriptionHelpFormatter

EXIT_CODES = """\
exit codes: 0 done; 1 failed while working; 2 wrong usage: an option, or what it names, cannot be used;
3 finished; some parts failed (listed); 130 interrupted
"""


COMPOSITES = (
    "auto",
    "epsilon-plus-flat",
    "epsilon-plus",
    "epsilon-alpha2-beta1-flat",
    "epsilon-alpha2-beta1",
    "epsilon-gamma-box",
    "epsilon-gamma",
    "epsilon-gamma-centred",
    "epsilon",
    "attnlrp",
    "cp-lrp",
)
"""`"auto"`, and the names that `plrp.composite` knows, for commands that are to answer before torch is imported."""

LARGEST_INPUT = 4_000_000_000
"""`plrp.runs.unpacking.LARGEST`, which is imported with numpy."""


def count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1")
    return int(text)


def proportion(text: str) -> float:
    """A share of mass, 0 ≤ p < 1."""
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"p is a share of mass, 0 ≤ p < 1, not {text}")
    return value


def options_wording(method: str = "--method") -> Wording:
    """Advice about settings in the words of a command; `method` is its option for the redistribution."""
    from plrp.health import Wording

    return Wording(f"take {method} lambda or M-sign", "prune less (a smaller -p)", "--composite {}")


def check_composite(name: str) -> None:
    """Refuse the name of a composite that there is not."""
    if name not in COMPOSITES:
        raise UsageError(f"No composite named '{name}'; choose one of {', '.join(COMPOSITES)}.")


def gain(text: str) -> float:
    """A sparsity gain, greater than 0."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"the gain is a positive number, not {text}")
    return value


def shard(text: str) -> tuple[int, int]:
    """`2/8`: the second of eight."""
    try:
        index, number = (int(part) for part in text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write i/n such as 2/8") from None
    if not 1 <= index <= number:
        raise argparse.ArgumentTypeError(f"{text!r}: i runs from 1 to n")
    return index, number


def amount(text: str) -> int:
    """Bytes: `8000000000`, `8GB`, `500 MB`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", text.strip())
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: write bytes such as 8GB")
    return int(float(match[1]) * 1000 ** (" kMGT".index(match[2] or " ")))


def location(text: str) -> str | Path:
    """A path, or a URL as it is: a path would lose one of its slashes."""
    return text if "://" in text else Path(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """The options of a command that can work on a cluster."""
    group = parser.add_argument_group("many machines", "docs/many-machines.md has examples")
    group.add_argument("--engine", choices=("local", "ray"), default="local", help="where to work (default: local)")
    group.add_argument(
        "--address", metavar="HOST:PORT", help="of a Ray cluster; auto: this machine's (default: start one)"
    )
    group.add_argument(
        "--gpus-per-worker", type=float, metavar="F", help="such as 0.25 (default: 1, if there are GPUs)"
    )
    group.add_argument("--threads", type=int, metavar="N", help="cores of each worker (default: 1)")
    group.add_argument("--tries", type=int, metavar="N", help="attempts at a part before it is given up (default: 3)")
    group.add_argument("--runtime-env", metavar="FILE", help="Ray's runtime environment, as JSON")


def cluster_of(arguments: argparse.Namespace) -> RayCluster | None:
    """The cluster that the options ask for; None for this machine."""
    if arguments.engine == "local":
        for option in ("address", "gpus_per_worker", "tries", "runtime_env"):
            if getattr(arguments, option) is not None:
                raise UsageError(f"--{option.replace('_', '-')} goes with --engine ray.")
        return None
    import json

    from plrp.runs.ray import RayCluster, ray_module

    ray_module()
    environment: dict[str, Any] = {}
    if arguments.runtime_env is not None:
        try:
            with open(arguments.runtime_env, encoding="utf-8") as stream:
                environment = dict(json.load(stream))
        except ValueError as error:
            raise UsageError(f"{arguments.runtime_env} is not a runtime environment in JSON ({error}).") from None
    options = {
        "address": arguments.address,
        "gpus": arguments.gpus_per_worker,
        "threads": arguments.threads,
        "tries": arguments.tries,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return RayCluster(workers=arguments.workers, runtime_env=environment, **given)
