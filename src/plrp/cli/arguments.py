"""Options that several commands share: settings, prunings, clusters; and the meaning of exit codes."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from plrp.errors import NotWritable, UsageError
from plrp.files import PICTURES
from plrp.settings import Option, PruningSettings, Settings, SettingsType, count, default_of, options, proportion, share
from plrp.spelling import printable

if TYPE_CHECKING:
    from plrp.progress import Step
    from plrp.pruning import Pruning
    from plrp.runs.ray import RayCluster

EXIT_CODES = """\
exit codes: 0 finished; 1 failed while working; 2 wrong usage: an option, or the file it names, cannot be used;
3 finished; some parts failed (listed); 130 interrupted
"""

Shown: TypeAlias = dict[str, str | tuple[Any, ...]]
"""Options that are written as `--help` shows them: see `add_options`."""


def picture(text: str) -> str:
    """The file of a picture, which its ending has to say."""
    if not text.lower().endswith(PICTURES):
        raise argparse.ArgumentTypeError(f"{text!r}: a picture ends in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")
    return text


PICTURE: Shown = {"--out FILE": (f"picture to write: {', '.join(PICTURES)}", picture, MISSING)}


def add_settings(
    parser: argparse._ActionsContainer,
    kind: type[Settings],
    *names: str,
    flags: Mapping[str, str] | None = None,
    **defaults: Any,
) -> None:
    """Add an option for each field of a class of settings, or for those named.

    `flags` and `defaults` replace those of the fields. The parsed values have the names of the fields.
    """
    for name, option in options(kind).items():
        if not names or name in names:
            flag = (flags or {}).get(name) or option.flag or f"--{name.replace('_', '-')}"
            _add(parser, [flag], option, defaults.get(name, default_of(kind, name)), dest=name)


def add_options(parser: argparse._ActionsContainer, shown: Shown) -> None:
    """Add options that are written as `--help` shows them.

    A key has the names of an option and the name of its value, `-o --out FILE`; or its choices, `--by {mean,sum}`; a
    switch has neither. The entry is the help sentence, or (sentence, check), or (sentence, check, default).
    """
    for key, entry in shown.items():
        help, check, default = (*([entry] if isinstance(entry, str) else entry), None, None)[:3]
        flags = [word for word in key.split() if word.startswith("-")]
        value = "".join(key.split()[len(flags) :])
        choices = tuple(value[1:-1].split(",")) if value.startswith("{") else ()
        option = Option(help, metavar=None if choices else value, choices=choices, check=check)
        _add(parser, flags, option, default if value else False)


def _add(
    parser: argparse._ActionsContainer, flags: Sequence[str], option: Option, default: Any, **keywords: Any
) -> None:
    """Add an option; a default is named in its help, and a default of False makes it a switch."""
    keywords |= {"help": option.help} | ({"required": True} if default is MISSING else {"default": default})
    if option.action or default is False:
        keywords["action"] = option.action or "store_true"
    else:
        keywords |= {"type": option.check, "choices": option.choices or None, "metavar": option.metavar}
        if default not in (None, MISSING, ()) and "default" not in option.help:
            keywords["help"] += f" (default: {default})"
    parser.add_argument(*flags, **keywords)


def chosen(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Some options of a command by their names, to be given on as keywords."""
    return {name: getattr(arguments, name) for name in names}


def settings_of(kind: type[SettingsType], arguments: argparse.Namespace, **more: Any) -> SettingsType:
    """The settings that the options of a command ask for; `more` are fields without an option."""
    return kind(**{**chosen(arguments, *(name for name in options(kind) if hasattr(arguments, name))), **more})


class SettingsFile(argparse.Action):
    """`--settings tuned.toml`: the file's entries take the place of defaults; options that are given count more."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, file: Any, *_: Any) -> None:
        """Read the file into the arguments."""
        from plrp.experiments.config import read_toml

        try:
            entries = read_toml(Path(file).read_text("utf-8"))
        except (OSError, ValueError) as error:
            parser.error(f"--settings {file} cannot be read: {getattr(error, 'strerror', None) or error}")
        actions = {action.dest: action for action in parser._actions}
        for name, value in entries.items():
            if name not in actions:
                parser.error(f"--settings {file}: this command has no setting '{name}'")
            if getattr(namespace, name) == parser.get_default(name):
                value = parser._get_value(actions[name], str(value))
                parser._check_value(actions[name], value)
                setattr(namespace, name, value)


def add_pruning(
    group: argparse._ActionsContainer,
    *,
    default: float | None,
    offered: Sequence[str] = ("redistribution", "unit", "sparsity_gain"),
    flag: str = "--method",
    auto: bool = True,
) -> None:
    """-p, and the other options of a pruning that are offered. `flag` is the option for the redistribution.

    `default` is the p without -p and --sparsity-gain; None is plain LRP. `auto`: whether -p may be `auto`.
    """
    text = f"{options(PruningSettings)['p'].help} (default: {default or 'nothing, which is plain LRP'})"
    text += "; auto takes for each input the largest p whose circuit keeps 0.9 of the probability" * auto
    group.add_argument("-p", type=share if auto else proportion, metavar="P", help=text)
    group.add_argument("--settings", action=SettingsFile, metavar="FILE", help="the settings that plrp tune chose")
    group.set_defaults(default_p=default)
    for name in offered:
        add_settings(group, PruningSettings, name, flags={"redistribution": flag})


def pruning_of(arguments: argparse.Namespace) -> Pruning | None:
    """The pruning that the options of `add_pruning` ask for; None where nothing is to be pruned by default."""
    from plrp.pruning import Pruning

    settings = settings_of(PruningSettings, arguments)
    if settings.p is None and settings.sparsity_gain is None:
        if arguments.default_p is None:
            return None
        settings = replace(settings, p=arguments.default_p)
    return Pruning(**vars(settings))


def m_remedy(method: str) -> str:
    """The remedy for broken arithmetic of PLRP-M in the words of a command; `method` is its option for M."""
    return f"take {method} lambda or M-sign, or prune less (a smaller -p)"


def location(text: str) -> str | Path:
    """A path, or a URL as it is: a path would lose one of its slashes."""
    return text if "://" in text else Path(text)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """The options of a command that can work on a cluster."""
    group = parser.add_argument_group("many machines", "docs/many-machines.md has examples")
    shown: Shown = {
        "--engine {local,ray}": ("where to work", str, "local"),
        "--address HOST:PORT": "address of a Ray cluster; auto finds the one on this machine (default: start one)",
        "--gpus-per-worker F": ("GPUs of each worker, such as 0.25 (default: 1, if any)", float),
        "--threads N": ("cores of each worker (default: 1)", int),
        "--tries N": ("attempts at a part before it is given up (default: 3)", int),
        "--runtime-env FILE": "Ray's runtime environment, a JSON file",
    }
    add_options(group, shown)


def cluster_of(arguments: argparse.Namespace) -> RayCluster | None:
    """The cluster that the options ask for; None for this machine."""
    if arguments.engine == "local":
        for option, value in chosen(arguments, "address", "gpus_per_worker", "tries", "runtime_env").items():
            if value is not None:
                raise UsageError(f"--{option.replace('_', '-')} goes with --engine ray.")
        return None
    from plrp.runs.ray import RayCluster, ray_module

    ray_module()
    environment: dict[str, Any] = {}
    if arguments.runtime_env is not None:
        try:
            environment = dict(json.loads(Path(arguments.runtime_env).read_text("utf-8")))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{arguments.runtime_env} is not a runtime environment in JSON ({error}).") from None
    given = chosen(arguments, "address", "threads", "tries") | {"gpus": arguments.gpus_per_worker}
    given = {name: value for name, value in given.items() if value is not None}
    return RayCluster(workers=arguments.workers, runtime_env=environment, **given)


def test_options(of: str) -> Shown:
    """The options that ask the network whether its explanations are true; `of` names the tested things."""
    return {
        "--test": f"ask the network whether {of} is true: replace parts of the input in two ways, and compare (see "
        "--budget)",
        "--budget N": ("forward passes of --test, at most", count, 128),
    }


def say_price(budget: int, quiet: bool, times: int = 1) -> None:
    """State the cost of --test beforehand."""
    each = f"{times} × " if times > 1 else ""
    say(f"plrp: --test asks the network: at most {each}{budget} more forward passes", quiet)


def say(text: str, quiet: bool = False) -> None:
    """Print a line about the work itself, on standard error, unless the command is to be quiet."""
    if not quiet:
        print(printable(text), file=sys.stderr, flush=True)


def tell(text: object) -> None:
    """Print a result, on standard output."""
    print(printable(text), flush=True)


def forwards(step: Step) -> Callable[..., None]:
    """A function that moves a display to an amount, the work before a piece and the work on it, and never back."""
    reached = 0.0

    def move_to(before: float, done: float, note: str, total: float | None = None) -> None:
        nonlocal reached
        step(max(0.0, before + done - reached), note, total=total)
        reached = max(reached, before + done)

    return move_to


def check_out(out: str) -> None:
    """Refuse a folder for results that cannot be made, before work begins; URLs and existing folders are not tried."""
    place = Path(out)
    there = next(path for path in (place, *place.absolute().parents) if os.path.exists(path))
    if "://" in out or there == place or not there.is_dir():
        return
    try:
        tempfile.TemporaryDirectory(prefix=".", dir=there).cleanup()
    except OSError as error:  # whatever it is: nothing has begun
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise NotWritable(f"{out} cannot be written ({reason}): name another place for the results.") from None
