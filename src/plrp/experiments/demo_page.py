"""Parts of the demo's page: findings, curves, the ledger, motifs. The page itself is made of `pages.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plrp.genomics.logo import COLOURS, draw_logo

from . import figures
from .intervals import METHOD
from .pages import data_uri, escape, picture, table

if TYPE_CHECKING:
    from plrp.genomics.seqlets import Match, Pattern

    from .measured import Measured
    from .statements import Statement


def findings_block(found: Sequence[Statement]) -> str:
    """The paper's statements with 'holds' or 'does not hold' and the numbers behind."""
    parts = []
    for one in found:
        verdict = '<span class="holds">holds</span>' if one.holds else '<span class="fails">does not hold</span>'
        numbers = "".join(f"<li>{escape(n)}</li>" for n in one.numbers)
        parts.append(f'<div class="finding"><p>{escape(one.claim)}: {verdict}</p><ul>{numbers}</ul></div>')
    return "".join(parts)


def curves_block(sweeps: Mapping[str, Measured]) -> str:
    """Metrics over p, on their whole range and zoomed in, as in the paper's appendix B; one group per network."""
    rows = list(sweeps.values())
    metrics = figures.versions(rows, ("gini", "entropy", "relevance_mass_accuracy"))
    wide, narrow = (figures.over_p(rows, metrics, narrow=narrow) for narrow in (False, True))
    alt = ". ".join(f"{m.name}: {figures.describe(m, metric)}" for m in rows for metric in metrics)
    return figures.legend() + picture(
        data_uri(wide, dark=figures.DARK),
        alt,
        f"Bands: {escape(METHOD)}.",
        data_uri(narrow, dark=figures.DARK),
        width=round(figures.PIXELS * wide.get_figwidth()),
    )


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
