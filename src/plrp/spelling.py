"""Words of messages: which name a user may have meant, a text shortened or without effects, a number with its noun."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable

_DIRECTION = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def close_names(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The names most like one that does not exist.

    Names that contain it as a word come first, then names that contain its letters, then names spelled alike; of each
    kind, the shorter first.

    >>> close_names("dog", ["hot dog", "cat", "dogsled", "bulldog", "doge"])
    ['hot dog', 'doge', 'dogsled']
    """
    wanted = name.lower()
    known = {known.lower(): known for known in names}
    word = re.compile(rf"(?<![^\W_]){re.escape(wanted)}(?![^\W_])")
    inside = sorted((low for low in known if wanted in low), key=lambda low: (not word.search(low), len(low)))
    close = difflib.get_close_matches(wanted, known, n=count, cutoff=0.5)
    return [known[low] for low in dict.fromkeys([*inside, *close])][:count]


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: '; nearest: …', with three names that exist.

    >>> nearest("epsilon-pluss", ["epsilon", "epsilon-plus", "flat"])
    '; nearest: epsilon-plus, epsilon'
    """
    names = list(names)
    close = close_names(name, names) or names[:3]
    return f"; nearest: {', '.join(close)}" if close else ""


def shortened(text: str, most: int = 26) -> str:
    """A text cut to fit a panel, a label or a line.

    >>> shortened("Madagascar cat", 11)
    'Madagascar…'
    """
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def plural(count: int, noun: str, form: str = "") -> str:
    """A number, in a format such as `,`, with its noun."""
    return f"{count:{form}} {noun}{'s' * (count != 1)}"


def visible(text: str) -> str:
    """A text without effects: control characters as pictures, direction marks and half characters as �.

    >>> visible("a\\x1b[2J")
    'a␛[2J'
    """
    shown = _DIRECTION.sub("�", text).replace("\n", "⏎").replace("\t", "→").replace("\r", "␍")
    return "".join(
        chr(0x2400 + ord(c)) if ord(c) < 32 else "�" if unicodedata.category(c) in ("Cc", "Cs", "Cn") else c
        for c in shown
    )


def printable(text: object) -> str:
    """A message for a terminal: each of its lines `visible`, so that no name in it colours, moves or erases text."""
    return "\n".join(map(visible, str(text).split("\n")))
