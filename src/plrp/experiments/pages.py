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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp.files import new_file
from plrp.tables import render_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CSS = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #566273; --line: #dde3ea; --paper: #fff; --tint: #f5f8fb;
  --good: #14793a; --bad: #b3261e; --warn: #8a5a00; --warn-tint: #fff5df; --link: #0b5ea8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf1; --soft: #9fabb9; --line: #2f3946; --paper: #171d25; --tint: #0f141a;
    --good: #5ccb87; --bad: #ff8a7e; --warn: #ffc861; --warn-tint: #2b2412; --link: #7cbcf5; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--tint); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 60px; }
a { color: var(--link); }
header h1 { font-size: 1.9rem; line-height: 1.2; margin: .2em 0 .3em; }
header p { color: var(--soft); max-width: 46em; margin: 0; }
nav { display: flex; flex-wrap: wrap; gap: 2px 18px; margin-top: 14px; font-size: .92rem; }
nav a { text-decoration: none; padding: 4px 0; }
nav a:hover { text-decoration: underline; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 12px;
  padding: 22px 24px; margin-top: 22px; }
h2 { font-size: 1.25rem; margin: 0 0 .5em; }
h3 { font-size: 1rem; margin: 1.5em 0 .4em; }
p, li { max-width: 48em; overflow-wrap: anywhere; }
figure { margin: 14px 0 0; }
figure img { display: block; width: 100%; height: auto; }
figure.plate picture { display: block; background: #fff; border-radius: 8px; padding: 6px; }
figcaption { color: var(--soft); font-size: .87rem; margin-top: 6px; max-width: 62em; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 20px; }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 12px; padding: 14px 16px; }
.card b { display: block; font-size: 1.35rem; line-height: 1.25; white-space: nowrap; }
.card span { color: var(--soft); font-size: .85rem; display: block; line-height: 1.35; margin-top: 3px; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(290px, 1fr)); gap: 8px 22px; }
.grid figure { margin: 6px 0 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin-top: 10px;
  font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--line);
  padding: 6px 10px 6px 0; }
td { border-bottom: 1px solid var(--line); padding: 7px 10px 7px 0; overflow-wrap: anywhere; vertical-align: top; }
td img { display: block; width: 100%; max-width: 300px; height: auto; background: #fff; }
td .number { white-space: nowrap; }
td small { color: var(--soft); white-space: nowrap; }
.holds, .fails, .unknown { font-weight: 700; white-space: nowrap; }
.holds { color: var(--good); }
.fails { color: var(--bad); }
.unknown { color: var(--soft); font-weight: 400; }
.unsure { color: var(--soft); font-size: .85rem; font-weight: 400; }
.verdicts { display: inline-flex; flex-wrap: wrap; gap: 0 22px; font-size: .92rem; color: var(--soft);
  padding-left: 1.1em; }
.finding { border-top: 1px solid var(--line); padding: 12px 0 8px; }
.finding p { margin: 0 0 6px; }
.finding ul { margin: 4px 0 0; padding-left: 1.2em; color: var(--soft); font-size: .87rem;
  columns: 2; column-gap: 32px; }
.finding li { break-inside: avoid; }
.note { border-left: 4px solid var(--warn); background: var(--warn-tint); padding: 10px 14px; border-radius: 6px;
  margin-top: 18px; }
.note p { margin: 0 0 4px; }
.note ul { margin: 4px 0 0; padding-left: 1.2em; }
details { border-top: 1px solid var(--line); padding: 10px 0; }
details[open] { padding-bottom: 14px; }
summary { cursor: pointer; }
summary::marker { color: var(--soft); }
details p, details ul { margin: 6px 0; font-size: .9rem; color: var(--soft); }
details ul { padding-left: 1.2em; }
details li { max-width: 66em; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; font-size: .87rem; color: var(--soft); margin: 4px 0; }
.legend i { display: inline-block; width: 28px; height: 0; vertical-align: middle; margin-right: 6px;
  border-top: 2.5px solid; }
pre { background: #10202f; color: #e6eef6; border-radius: 8px; padding: 12px 14px; font-size: .82rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .92em; }
@media (max-width: 700px) {
  main { padding: 16px 10px 40px; }
  section { padding: 16px 14px; }
  header h1 { font-size: 1.5rem; }
  .cards { grid-template-columns: 1fr 1fr; }
  .card { padding: 12px; }
  .card b { font-size: 1.15rem; }
  .finding ul { columns: 1; }
  .laptop { display: none; }
  table, tbody, tr, td { display: block; width: 100%; }
  thead { display: none; }
  tr { border-bottom: 2px solid var(--line); padding: 8px 0; }
  td { border: 0; padding: 3px 0; display: flex; justify-content: space-between; gap: 14px; text-align: right; }
  td:empty { display: none; }
  td::before { content: attr(data-label); color: var(--soft); text-align: left; flex: none; max-width: 45%; }
  td.picture { display: block; text-align: left; }
  td.picture::before { display: none; }
}
@media print { section { break-inside: avoid-page; border: 0; padding: 0; } nav { display: none; } }
"""


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


def cards(entries: Mapping[str, str]) -> str:
    """The few numbers a reader wants first: label to value."""
    inner = "".join(f'<div class="card"><b>{v}</b><span>{k}</span></div>' for k, v in entries.items())
    return f'<div class="cards">{inner}</div>'


def contents(sections: Mapping[str, str]) -> str:
    """Links to the sections: anchor to title."""
    links = "".join(f'<a href="#{escape(name)}">{escape(title)}</a>' for name, title in sections.items())
    return f'<nav aria-label="Contents">{links}</nav>'


def page(title: str, lead: str, body: str) -> str:
    """The whole document; `lead` and `body` are HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style></head>\n<body><main>\n"
        f"<header><h1>{escape(title)}</h1><p>{lead}</p></header>\n{body}</main></body></html>\n"
    )


def write_page(path: str | Path, document: str) -> None:
    """The document to a file, whole or not at all."""
    with new_file(path) as part:
        part.write_text(document, encoding="utf-8")
