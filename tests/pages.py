"""The code blocks of the README and the documentation, as a reader would run them.

A page is Markdown. Its blocks run in the order they stand, in one namespace per page. Three comments in the
source of a page steer that, all of them invisible to readers and none without a reason:

- `<!-- run first: CODE -->` before a block: what the text takes as given ("your model").
- `<!-- not run: REASON -->` before a block: it cannot run here.
- a block marked `text` right after a `python` block holds what that block prints, to the letter.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HELPERS = [str(ROOT / "tests" / "runs"), str(ROOT / "tests")]  # for the PYTHONPATH of workers that import a test
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(
    r"(?:^[ ]*<!-- (?P<directive>run first|not run):\s*(?P<words>.*?)\s*-->[ ]*\n\s*)?"
    r"^(?P<indent>[ ]*)```(?P<language>\w*)(?P<options>[^\n]*)\n(?P<body>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int  # of its first line of code, counted from 1
    language: str
    code: str
    first: str  # code that the page takes as given; empty for most blocks
    not_run: str | None  # the reason why it does not run, where it does not
    follows: bool  # only blank lines stand between it and the block before


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order, those inside tabs and admonitions too."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    end = 0
    for match in BLOCK.finditer(text):
        directive, words = match["directive"], match["words"] or ""
        found.append(
            Block(
                page=page,
                line=text.count("\n", 0, match.start("body")) + 1,
                language=match["language"],
                code=textwrap.dedent(match["body"]),
                first=textwrap.dedent(words) if directive == "run first" else "",
                not_run=words if directive == "not run" else None,
                follows=bool(found) and not text[end : match.start()].strip(),
            )
        )
        end = match.end()
    return found


def three_lines() -> Block:
    """The README's first Python block: the three-line example."""
    return next(block for block in blocks(ROOT / "README.md") if block.language == "python")
