"""Tables for terminals, notebooks and pages."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from .spelling import visible


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned for a terminal."""
    table = [list(header), *[[visible(str(cell)) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def render_html(header: Sequence[str], rows: Sequence[Sequence[str]], *, markup: bool = False) -> str:
    """The same table in HTML, for a notebook.

    With `markup` it is for a page: cells are HTML already and know their column, so that rows can be shown as cards.
    """
    left = "" if markup else " style='text-align:left'"

    def cell(column: str, content: str) -> str:
        if not markup:
            return f"<td{left}>{html.escape(str(content))}</td>"
        picture = " class=picture" if content.startswith("<img") else ""
        return f'<td data-label="{html.escape(column)}"{picture}>{content}</td>'

    head = "".join(f'<th scope="col"{left}>{html.escape(column)}</th>' for column in header)
    body = "\n".join(f"<tr>{''.join(map(cell, header, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def csv_cell(value: Any) -> Any:
    """A cell of a CSV file: text that a spreadsheet would take for a formula begins with an apostrophe.

    >>> [csv_cell(cell) for cell in ("=1+1", "-0.5", -0.5, "name", "-")]
    ["'=1+1", '-0.5', -0.5, 'name', '-']
    """
    if not isinstance(value, str) or not re.match(r"\s*[=+@-].", value, re.DOTALL):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
