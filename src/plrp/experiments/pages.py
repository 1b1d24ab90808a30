"""Self-contained HTML pages: text, tables and pictures in a single file that needs no network.

Written for a laptop and a phone alike, in light and in dark: figures come in a wide and a narrow version where one
would not do, tables turn into cards on narrow screens, drawings change their colours with the reader's theme. No time
stamps, so the same results give the same bytes.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp.files import new_file
from plrp.tables import render_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@cache
def style() -> str:
    """The style sheet of all pages."""
    return (resources.files(__package__) / "front" / "pages.css").read_text(encoding="utf-8")


def escape(text: object) -> str:
    """Text made safe for HTML."""
    return html.escape(str(text))


def data_uri(figure: Figure, kind: str = "svg", dpi: int = 110, dark: Mapping[str, str] | None = None) -> str:
    """A figure as a `data:` address, without time stamps: "svg", "png", or "webp" (small, for photographs).

    dark: for drawings (svg), the colours that change where the reader's theme is dark, "#rrggbb" to "#rrggbb".
    """
    import matplotlib

    buffer = io.BytesIO()
    undated: dict[str, dict[str, Any]] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    options: dict[str, Any] = {"metadata": undated[kind]} if kind in undated else {"pil_kwargs": {"quality": 90}}
    with matplotlib.rc_context({"svg.hashsalt": "plrp", "svg.fonttype": "path"}):
        figure.savefig(buffer, format=kind, dpi=dpi, transparent=dark is not None, **options)
    content = buffer.getvalue()
    if kind == "svg" and dark:
        content = _themed(content.decode(), dark).encode()
    mime = {"svg": "image/svg+xml", "png": "image/png", "webp": "image/webp"}[kind]
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


def _themed(svg: str, dark: Mapping[str, str]) -> str:
    """A drawing whose colours are variables, set by the reader's theme."""
    light_rules, dark_rules = "", ""
    for number, (light, night) in enumerate(dark.items()):
        if light in svg:
            svg = svg.replace(light, f"var(--c{number})")
            light_rules += f"--c{number}:{light};"
            dark_rules += f"--c{number}:{night};"
    style = f"<style>:root{{{light_rules}}}@media (prefers-color-scheme:dark){{:root{{{dark_rules}}}}}</style>"
    return re.sub(r"(<svg\b[^>]*>)", lambda match: match[1] + style, svg, count=1)


def picture(
    wide: str,
    alt: str,
    caption: str = "",
    narrow: str | None = None,
    *,
    plate: bool = False,
    width: int | None = None,
) -> str:
    """A figure element; `narrow` replaces the picture on screens under 700 px.

    plate: keep it on white, whatever the theme. width: pixels it is not to be stretched beyond.
    """
    source = f'<source media="(max-width: 700px)" srcset="{narrow}">' if narrow else ""
    foot = f"<figcaption>{caption}</figcaption>" if caption else ""
    kind = ' class="plate"' if plate else ""
    most = f' style="max-width:{width}px"' if width else ""
    return f'<figure{kind}><picture>{source}<img src="{wide}" alt="{escape(alt)}"{most}></picture>{foot}</figure>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of ready-made HTML cells, which turns into cards on narrow screens."""
    return render_html(head, rows, markup=True)


def section(title: str, *parts: str, name: str = "") -> str:
    """A titled block of the page; `name` is its anchor."""
    anchor = f' id="{escape(name)}"' if name else ""
    return f"<section{anchor}><h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>\n"


def folded(summary: str, *parts: str) -> str:
    """A block that opens when its summary (ready-made HTML) is clicked."""
    return f"<details><summary>{summary}</summary>" + "\n".join(parts) + "</details>\n"


def note(lead: str, lines: Sequence[str]) -> str:
    """A warning with a list of lines, all of them HTML; nothing where there are no lines."""
    items = "".join(f"<li>{line}</li>" for line in lines)
    return f'<div class="note" role="note"><p>{lead}</p><ul>{items}</ul></div>' if lines else ""


def cards(entries: Mapping[str, str]) -> str:
    """The few numbers a reader wants first: label to value."""
    inner = "".join(f'<div class="card"><b>{v}</b><span>{k}</span></div>' for k, v in entries.items())
    return f'<div class="cards">{inner}</div>'


def page(title: str, lead: str, body: str, sections: Mapping[str, tuple[str, str]] | None = None) -> str:
    """The whole document; `lead` and `body` are HTML.

    sections: titles and contents by anchor, to stand below the body; links to them stand above it. Empty contents are
    left out.
    """
    shown = {name: (title, content) for name, (title, content) in (sections or {}).items() if content}
    if sections is not None:
        links = "".join(f'<a href="#{escape(name)}">{escape(title)}</a>' for name, (title, _) in shown.items())
        body = f'<nav aria-label="Contents">{links}</nav>{body}'
    body += "".join(section(title, content, name=name) for name, (title, content) in shown.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style()}</style></head>\n<body><main>\n"
        f"<header><h1>{escape(title)}</h1><p>{lead}</p></header>\n{body}</main></body></html>\n"
    )


def write_page(path: str | Path, document: str) -> None:
    """The document to a file, whole or not at all."""
    with new_file(path) as part:
        part.write_text(document, encoding="utf-8")
