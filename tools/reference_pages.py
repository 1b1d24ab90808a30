"""For the reference pages: docstrings as Markdown. A griffe extension, named in mkdocs.yml.

`>>>` examples become code, and a list of parameters (a name, then its description indented) becomes a list.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*\n?(?:^(?!\s*$).*\n?)*", re.MULTILINE)
PARAMETERS = re.compile(r"^Parameters\n-+\n((?:^\S.*\n(?:^ +.*(?:\n|\Z)|^\s*\n(?= ))+)+)", re.MULTILINE)
PARAMETER = re.compile(r"^(\S.*)\n((?:^ +.*(?:\n|\Z)|^\s*\n(?= ))+)", re.MULTILINE)


def as_markdown(docstring: str) -> str:
    """The docstring with its examples fenced and its parameters as a list."""
    docstring = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", docstring)
    return PARAMETERS.sub(lambda found: PARAMETER.sub(_item, found[1]), docstring)


def _item(found: re.Match[str]) -> str:
    return f"- `{found[1]}`: {' '.join(found[2].split())}\n"


class ReferencePages(griffe.Extension):
    """Gives griffe's docstrings to the pages as Markdown."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for every object it has read."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
