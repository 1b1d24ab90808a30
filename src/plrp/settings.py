"""Settings as frozen dataclasses that Python, the command line and stored runs share.

A field made by `setting` states its default, its help sentence and its check once. Python functions take a `Settings`
object or its fields as keywords, `plrp.cli.arguments.add_settings` makes the options of a command from the fields, and
`Settings.stored` is the part that a run writes beside its results.

>>> @dataclass(frozen=True, kw_only=True)
... class Work(Settings):
...     batch_size: int = setting(8, "samples explained at once", check=count)
>>> Work.of(None, {"batch_size": "3"})
Work(batch_size=3)
>>> Work(batch_size=0)
Traceback (most recent call last):
plrp.settings.WrongSetting: batch_size=0: a whole number from 1 is expected.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, TypeVar

from .errors import UsageError
from .spelling import nearest


class WrongSetting(UsageError, argparse.ArgumentTypeError):
    """A value that a setting cannot have; the message says which values are possible."""


@dataclass(frozen=True)
class Option:
    """How a setting is given, checked and stored: see `setting`."""

    help: str
    flag: str = ""
    metavar: str | tuple[str, ...] | None = None
    choices: tuple[str, ...] = ()
    check: Callable[[Any], Any] | None = None
    action: Any = None
    stored: bool = False


def setting(default: Any = MISSING, help: str = "", **option: Any) -> Any:
    """A field of `Settings`: its default (required without one) and the sentence that `--help` shows.

    - `flag`: the option of the command line where it is not the field's name;
    - `metavar`: the name of the value in `--help`;
    - `choices`: the texts that are allowed;
    - `check`: turns a text of the command line, or a value given in Python, into the value, or raises `WrongSetting`;
    - `action`: argparse's, where a flag takes no value;
    - `stored`: whether the setting decides results, so that a run writes it down.
    """
    return field(default=default, metadata={"option": Option(help, **option)})


SettingsType = TypeVar("SettingsType", bound="Settings")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The base of all settings; values are checked when they are given."""

    def __post_init__(self) -> None:
        for name, option in options(type(self)).items():
            value = getattr(self, name)
            if value is None:
                continue
            if option.check is not None:
                try:
                    value = option.check(value)
                except WrongSetting as error:
                    raise WrongSetting(f"{name}={value!r}: {error}.") from None
                object.__setattr__(self, name, value)
            if option.choices and value not in option.choices:
                raise WrongSetting(f"{name}={value!r}: choose {', '.join(map(repr, option.choices))}.")

    @classmethod
    def of(cls: type[SettingsType], settings: SettingsType | None, changes: Mapping[str, Any]) -> SettingsType:
        """The settings that a function was given, as an object, as keywords, or as an object with changes."""
        return cls(**changes) if settings is None else replace(settings, **changes)

    def stored(self) -> dict[str, Any]:
        """The settings that decide results, by name, as plain data, without settings that are None."""
        values = {name: getattr(self, name) for name, option in options(type(self)).items() if option.stored}
        return {name: value for name, value in values.items() if value is not None}


def options(kind: type[Settings]) -> dict[str, Option]:
    """The options of a class of settings by the names of their fields."""
    return {one.name: one.metadata["option"] for one in fields(kind) if "option" in one.metadata}


def default_of(kind: type[Settings], name: str) -> Any:
    """The default of a field; MISSING where it is required."""
    return next(one.default for one in fields(kind) if one.name == name)


def count(value: str | int) -> int:
    """A whole number from 1."""
    if not str(value).isdecimal() or int(value) < 1:
        raise WrongSetting("a whole number from 1 is expected")
    return int(value)


def proportion(value: str | float) -> float:
    """A share of mass, 0 ≤ p < 1."""
    if not 0 <= (number := _number(value)) < 1:
        raise WrongSetting(f"p is a share of mass, 0 ≤ p < 1, not {value}")
    return number


def share(value: str | float) -> Any:
    """A share of mass, or `auto`."""
    return "auto" if value == "auto" else proportion(value)


def gain(value: str | float) -> float:
    """A sparsity gain, greater than 0."""
    if not 0 < (number := _number(value)) < float("inf"):
        raise WrongSetting(f"the gain is a positive number, not {value}")
    return number


def shard(text: str) -> tuple[int, int]:
    """`2/8`: the second of eight."""
    try:
        index, number = (int(part) for part in text.split("/"))
    except ValueError:
        raise WrongSetting(f"{text!r}: write i/n such as 2/8") from None
    if not 1 <= index <= number:
        raise WrongSetting(f"{text!r}: i runs from 1 to n")
    return index, number


def amount(value: str | int) -> int:
    """Bytes: `8000000000`, `8GB`, `500 MB`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", str(value).strip())
    if match is None or float(match[1]) <= 0:
        raise WrongSetting(f"{value!r}: write bytes such as 8GB")
    return int(float(match[1]) * 1000 ** (" kMGT".index(match[2] or " ")))


LARGEST = 4_000_000_000
"""Bytes that a file may unpack to by default; the human genome has 3.1 billion."""


def _number(value: str | float) -> float:
    try:
        return float(value)
    except ValueError:
        raise WrongSetting(f"{value!r} is not a number") from None


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
"""`"auto"`, and the names of LRP's composites, for commands that answer before torch is imported."""

AGAINST = ("rescale", "rescale-gamma", "rescale-plus")
"""The composites for differences to a reference alone."""


def check_composite(name: str, reference: Any = None) -> None:
    """Refuse an unknown composite, and without a reference one for differences to it."""
    if name not in (*COMPOSITES, *AGAINST):
        raise UsageError(f"No composite named '{name}'; choose one of {', '.join((*COMPOSITES, *AGAINST))}.")
    if name in AGAINST and reference is None:
        raise UsageError(f"The composite '{name}' explains the difference to a reference: give --reference.")


REFERENCES: dict[str, tuple[Callable[[str], Any] | None, str]] = {
    "zeros": (None, "zeros"),
    "grey": (None, "grey"),
    "blur": (gain, "blur:8"),
    "shuffled": (count, "shuffled:20"),
    "mean": (str, "mean:FOLDER"),
    "mask": (int, "mask:103"),
}
"""The names of references: the check of the number or folder that may follow, and an example."""


def read_reference(text: str, names: Collection[str] = tuple(REFERENCES)) -> tuple[str, Any]:
    """A reference as text, `blur:8`: its name, which is one of `names`, and its number or folder, None if it has none.

    >>> read_reference("blur:8")
    ('blur', 8.0)
    """
    name, colon, given = text.strip().partition(":")
    if name not in names:
        examples = ", ".join(REFERENCES[known][1] for known in names)
        raise WrongSetting(f"there is no reference '{text}' here{nearest(name, names)}; possible are {examples}")
    check, example = REFERENCES[name]
    try:
        if (colon and not (check and given)) or (check is str and not given):
            raise ValueError
        return name, check(given) if check and colon else None
    except ValueError:
        takes = "no number" if check is None else f"{'a folder' if check is str else 'a number'}, as in '{example}'"
        raise WrongSetting(f"reference '{text}': {name} takes {takes}") from None


def reference_named(*names: str) -> Callable[[Any], Any]:
    """The check of a setting that takes references of these names as text, or else as a tensor or a callable."""

    def check(value: Any) -> Any:
        if isinstance(value, str):
            read_reference(value, names)
        return value

    return check


@dataclass(frozen=True, kw_only=True)
class PruningSettings(Settings):
    """The settings of `plrp.Pruning` that commands offer."""

    p: Any = setting(
        None, "prune this share of the relevance in every layer, 0 ≤ p < 1", flag="-p", metavar="P", check=share
    )
    redistribution: str = setting(
        "lambda",
        "where pruned relevance goes. lambda scales the survivors. M-sign redistributes it by the rule of the layer, "
        "positive and negative contributions apart (PLRP-M±). M is the paper's form, which does not part them: signs "
        "may flip, and under ε and γ it may divide by almost 0",
        choices=("lambda", "M-sign", "M"),
        check=lambda name: "M" if name == "M-paper" else name,  # an earlier name of M
    )
    unit: str = setting(
        "auto",
        "the unit that is pruned as one: single neurons; positions with all their channels (a place of a map, a base, "
        "a token); or channels with all their positions. auto takes positions in models with attention, else neurons",
        choices=("auto", "neuron", "position", "channel"),
    )
    sparsity_gain: float | None = setting(
        None,
        "prune only while pruning buys at least this much sparsity (1 is natural); without -p the gain decides alone",
        metavar="G",
        check=gain,
    )
