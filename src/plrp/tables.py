"""Tables for terminals and notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned for a terminal."""
    table = [list(header), *[list(map(str, row)) for row in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def render_html(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same table for a notebook."""
    head = "".join(f"<th style='text-align:left'>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
