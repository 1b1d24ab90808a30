"""One self-contained HTML page: text, tables and pictures in a single file that needs no network.

Written for a laptop and a phone alike: figures come in a wide and a narrow version where one would not do, tables
turn into cards on narrow screens. No time stamps, so the same results give the same bytes.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plrp.files import new_file

from .findings import METRICS, VARIANTS, Sweep
from .logo import COLOURS, draw_logo

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from plrp.experiments.statements import Statement

    from .seqlets import Match, Pattern

STYLES = {"PLRP-λ": ("#0b6fb8", "-"), "PLRP-λ, gain": ("#0b6fb8", "--"),
          "PLRP-M": ("#d2691e", "-"), "PLRP-M, gain": ("#d2691e", "--")}  # fmt: skip
TITLES = {"gini": "Gini index ↑", "entropy": "Entropy ↓ (nats)", "rma": "Relevance mass accuracy ↑"}

CSS = """
:root { --ink: #1c2430; --soft: #5a6675; --line: #dde3ea; --paper: #fff; --tint: #f5f8fb; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--tint); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 60px; }
header h1 { font-size: 1.9rem; line-height: 1.2; margin: .2em 0 .3em; }
header p { color: var(--soft); max-width: 46em; margin: 0; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 12px;
  padding: 22px 24px; margin-top: 22px; }
h2 { font-size: 1.25rem; margin: 0 0 .5em; }
h3 { font-size: 1rem; margin: 1.3em 0 .4em; }
p, li { max-width: 48em; overflow-wrap: anywhere; }
figure { margin: 14px 0 0; }
figure img { display: block; width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .87rem; margin-top: 4px; max-width: 54em; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 20px; }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 12px; padding: 14px 16px; }
.card b { display: block; font-size: 1.35rem; line-height: 1.25; white-space: nowrap; }
.card span { color: var(--soft); font-size: .85rem; display: block; line-height: 1.35; margin-top: 3px; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(290px, 1fr)); gap: 8px 22px; }
.grid figure { margin: 6px 0 0; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin-top: 10px;
  font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--line);
  padding: 6px 10px 6px 0; }
td { border-bottom: 1px solid var(--line); padding: 7px 10px 7px 0; overflow-wrap: anywhere; }
td img { display: block; width: 100%; max-width: 300px; height: auto; }
.holds, .fails { font-weight: 700; white-space: nowrap; }
.holds { color: #14793a; }
.fails { color: #b3261e; }
.finding { border-top: 1px solid var(--line); padding: 12px 0 8px; }
.finding p { margin: 0 0 6px; }
.finding ul { margin: 4px 0 0; padding-left: 1.2em; color: var(--soft); font-size: .87rem;
  columns: 2; column-gap: 32px; }
.finding li { break-inside: avoid; }
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
  td::before { content: attr(data-label); color: var(--soft); text-align: left; flex: none; max-width: 45%; }
  td.picture { display: block; text-align: left; }
  td.picture::before { display: none; }
}
"""


def escape(text: object) -> str:
    """Text made safe for HTML."""
    return html.escape(str(text))


def data_uri(figure: Figure, kind: str = "svg", dpi: int = 110) -> str:
    """A figure as a `data:` address, without time stamps."""
    import matplotlib

    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "plrp", "svg.fonttype": "path"}):
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    mime = "image/svg+xml" if kind == "svg" else "image/png"
    return f"data:{mime};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def picture(wide: str, alt: str, caption: str = "", narrow: str | None = None) -> str:
    """A figure element; `narrow` replaces the picture on screens under 700 px."""
    source = f'<source media="(max-width: 700px)" srcset="{narrow}">' if narrow else ""
    foot = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure><picture>{source}<img src="{wide}" alt="{escape(alt)}"></picture>{foot}</figure>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of ready-made HTML cells, which turns into cards on narrow screens."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = ""
    for row in rows:
        cells = "".join(
            f'<td data-label="{escape(label)}"{" class=picture" if cell.startswith("<img") else ""}>{cell}</td>'
            for label, cell in zip(head, row, strict=True)
        )
        body += f"<tr>{cells}</tr>\n"
    return f"<table><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table>"


def section(title: str, *parts: str) -> str:
    """A titled block of the page."""
    return f"<section><h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>\n"


def cards(entries: Mapping[str, str]) -> str:
    """The few numbers a reader wants first: label to value."""
    inner = "".join(f'<div class="card"><b>{v}</b><span>{k}</span></div>' for k, v in entries.items())
    return f'<div class="cards">{inner}</div>'


def page(title: str, lead: str, body: str) -> str:
    """The whole document."""
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


# -- parts of a genomics report


def findings_block(found: Sequence[Statement]) -> str:
    """The paper's statements with 'holds' or 'does not hold' and the numbers behind."""
    parts = []
    for one in found:
        verdict = '<span class="holds">holds</span>' if one.holds else '<span class="fails">does not hold</span>'
        numbers = "".join(f"<li>{escape(n)}</li>" for n in one.numbers)
        parts.append(f'<div class="finding"><p>{escape(one.claim)}: {verdict}</p><ul>{numbers}</ul></div>')
    return "".join(parts)


def curves_block(sweeps: Mapping[str, Sweep]) -> str:
    """Metrics over p, on their whole range and zoomed in, as in the paper's appendix B; one group per network."""
    legend = "".join(
        f'<span><i style="border-top-style:{"solid" if line == "-" else "dashed"};border-color:{colour}"></i>{v}</span>'
        for v, (colour, line) in STYLES.items()
    )
    legend += '<span><i style="border-top-style:dotted;border-color:#555"></i>LRP</span>'
    parts = [f'<div class="legend">{legend}</div>']
    for name, one in sweeps.items():
        figures = "".join(
            picture(data_uri(_curves(one, metric)), f"{TITLES[metric]} over p, {name}") for metric in METRICS
        )
        parts.append(f'<h3>{escape(name)}</h3><div class="grid">{figures}</div>')
    return "\n".join(parts)


def _curves(one: Sweep, metric: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.9, 4.3), layout="constrained")
    whole, zoom = figure.subplots(2, 1, sharex=True)
    lowest, highest = np.inf, -np.inf
    for variant in VARIANTS:
        colour, line = STYLES[variant]
        curve = one.mean(metric, variant)
        lowest, highest = min(lowest, curve.min()), max(highest, curve.max())
        for ax in (whole, zoom):
            ax.plot(one.shares, curve, line, color=colour, linewidth=1.6)
    base = one.mean(metric, "PLRP-λ")[0]
    for ax in (whole, zoom):
        ax.axhline(base, color="#555", linestyle=":", linewidth=1.3)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
        ax.set_xlim(0, one.shares[-1])
    whole.set_ylim(0, 1 if metric != "entropy" else max(highest * 1.05, 1))
    margin = 0.06 * (highest - lowest)
    zoom.set_ylim(lowest - margin, highest + margin)
    whole.set_title(TITLES[metric], fontsize=10)
    zoom.set_title("zoom", fontsize=8, color="#555")
    zoom.set_xlabel("pruned share p", fontsize=9)
    return figure


def ledger_block(records: Sequence[Mapping[str, Any]], sample: int = 0) -> str:
    """Where the relevance of one sequence went, from the score down to the bases."""
    rows = []
    for record in records:
        if record["sample"] != sample:
            continue
        net_in = record["mass_in_positive"] - record["mass_in_negative"]
        net_out = record["mass_out_positive"] - record["mass_out_negative"]
        absorbed = record["absorbed_bias"] + record["absorbed_epsilon"]
        neurons = "–"
        if record["op"] == "prune":
            neurons = f"{record['neurons_before']:.0f} → {record['neurons_after']:.0f}"
        where = f"{record['layer']} (pruned)" if record["op"] == "prune" else f"{record['layer'] or record['op']}"
        rows.append(
            [escape(where), escape(record["rule"]), f"{net_in:.4f}", f"{net_out:.4f}", f"{absorbed:.4f}", neurons]
        )
    return table(["layer", "rule", "mass in", "mass out", "absorbed", "neurons kept"], rows)


def motif_logo(values: Any) -> str:
    """A small logo of a matrix (4, width)."""
    from matplotlib.figure import Figure

    array = np.asarray(values)
    figure = Figure(figsize=(0.17 * array.shape[1] + 0.1, 0.62))
    ax = figure.add_axes((0, 0.02, 1, 0.96))
    draw_logo(ax, array, colours=COLOURS)
    ax.axis("off")
    return data_uri(figure)


def motifs_block(patterns: Sequence[Pattern], matches: Sequence[Sequence[Match]]) -> str:
    """Patterns of surviving seqlets beside the JASPAR motifs they resemble most."""
    rows = []
    for pattern, found in zip(patterns, matches, strict=True):
        best = found[0]
        bits = pattern.motif.probabilities * pattern.motif.information
        size = f"max-width:{bits.shape[1] * 13}px"
        others = ", ".join(f"{m.motif.name} ({m.p:.0e})" for m in found[1:3])
        rows.append(
            [
                f'<img src="{motif_logo(bits)}" alt="{escape(pattern.motif.consensus)}" style="{size}">',
                f"{pattern.count}",
                f"<span><b>{escape(best.motif.name)}</b> {escape(best.motif.id)}</span>",
                f"{best.p:.1e}",
                f"{best.e:.1e}",
                escape(others) or "–",
            ]
        )
    return table(["pattern (bits)", "seqlets", "best JASPAR match", "p-value", "E-value", "next best (p)"], rows)
