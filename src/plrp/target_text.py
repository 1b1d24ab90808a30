"""Targets that are written as text: one grammar, to which each front door brings its own names.

| text | target | known to |
|---|---|---|
| `3` | class 3 | every door |
| `0,141` | an index tuple into the output | doors to any output |
| `golden retriever` | a class by its name | models whose classes have names |
| `dog at 120,80`, `at 120,80` | a class at a pixel | photographs |
| `outputs[1][:, 0]`, `net.py:score` | a score computed from the output | `plrp.genomics.outputs` |

A text is never run. Tokens are read by their own vocabulary, the tokenizer's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .settings import WrongSetting
from .spelling import close_names

_NUMBERS = re.compile(r"-?[0-9]{1,9}(\s*,\s*-?[0-9]{1,9})*")
_PLACE = re.compile(r"^(?P<name>.*?)\s*(?:\bat\s+(?P<x>\d+)\s*,\s*(?P<y>\d+))?$", re.DOTALL)


class TargetError(WrongSetting):
    """A target that cannot be read, or that the model does not have."""


def read_target(text: str, otherwise: Callable[[str], Any] | None = None) -> Any:
    """The class or index tuple that a text names; `otherwise` reads all other texts.

    >>> read_target("3"), read_target(" 0, 141")
    (3, (0, 141))
    """
    if _NUMBERS.fullmatch(text.strip()):
        numbers = tuple(map(int, text.split(",")))
        return numbers[0] if len(numbers) == 1 else numbers
    if otherwise is None:
        raise TargetError(f"{text!r} is no class: write its number, or an index into the output such as 0,141.")
    return otherwise(text)


class WrittenTarget(NamedTuple):
    """A class and a place as they are written: `dog`, `207`, `dog at 120,80`, `at 120,80`; (x, y) in pixels."""

    name: int | str | None
    at: tuple[int, int] | None = None

    @classmethod
    def read(cls, target: int | str | None) -> WrittenTarget:
        """The two parts of a target."""
        parts = _PLACE.match(target) if isinstance(target, str) else None
        if parts is None:
            return cls(target)
        return cls(parts["name"] or None, None if parts["x"] is None else (int(parts["x"]), int(parts["y"])))


def class_number(target: int | str, names: Sequence[str], *, labels: bool = False) -> int:
    """The number of a class given by number or by name, ignoring case and underscores.

    A name may say more than the class does: `tabby cat` finds `tabby`. A name that fits several classes is refused with
    their numbers. `labels`: the names are a model's own labels. They must be written in full, and a label that is a
    number comes before the number of a class.
    """
    if isinstance(target, bool) or not isinstance(target, int | str):
        raise TypeError(f"a class is given by its name or number, got {type(target).__name__}.")
    if labels and target in names:
        return list(names).index(str(target))
    number = target if isinstance(target, int) else read_target(target, otherwise=str)
    if isinstance(number, int):
        if not 0 <= number < len(names):
            raise TargetError(f"there is no class {number}: the model has 0 to {len(names) - 1}.")
        return number
    wanted, plain = _plain(str(target)), [_plain(name) for name in names]
    fitting = [number for number, name in enumerate(plain) if name == wanted]
    if not fitting and not labels:
        words = set(wanted.split())
        fitting = [number for number, name in enumerate(plain) if name and set(name.split()) < words]
    if len(fitting) == 1:
        return fitting[0]
    close = fitting or [list(names).index(name) for name in close_names(wanted, names, 5)]
    listed = ", ".join(f"{names[number]} ({number})" for number in close)
    if fitting:
        raise TargetError(f"{len(fitting)} classes are called {target!r}: {listed}; give the number of one.")
    hint = f"the nearest are {listed}" if close else f"give a number from 0 to {len(names) - 1}"
    raise TargetError(f"no class is called {target!r}; {hint}.")


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", " ")
