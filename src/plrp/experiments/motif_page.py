"""The page of `plrp genomics motifs`: patterns with the motifs they match, the null, and agreement with known sites."""

from __future__ import annotations

from pathlib import Path

from plrp.genomics.motif_search import MotifSearch

from .demo_page import motif_logo, motif_table
from .pages import cards, escape, page, section, table


def render_motifs(search: MotifSearch, folder: str | Path, limit: float) -> str:
    """The page as one HTML document."""
    count = len(search.patterns)
    cut = search.cut
    body = cards(
        {
            "sequences": f"{search.sequences:,}",
            "seqlets": f"{search.found:,}",
            "of them above the null" if cut is not None else "used (no null)": f"{search.believed:,}",
            "pattern" if count == 1 else "patterns": f"{count}",
        }
    )
    if search.matches:
        patterns = motif_table(search.patterns, search.matches)
    else:
        rows = [
            [f'<img src="{motif_logo(p.motif.probabilities * p.motif.information)}" alt="{escape(p.motif.consensus)}">',
             escape(p.motif.name), f"{p.count}", escape(p.motif.consensus)]
            for p in search.patterns
        ]  # fmt: skip
        patterns = table(["pattern (bits)", "name", "seqlets", "consensus"], rows)
    body += section(
        "Patterns",
        "<p>Surviving stretches of sequence that look alike, aligned. “For” patterns speak for the explained score, "
        "“against” patterns against it. "
        + ("The matches are JASPAR's vertebrate CORE motifs, by TOMTOM. " if search.matches else "")
        + "<code>patterns.meme</code> and <code>patterns.jaspar</code> hold the matrices.</p>",
        patterns if count else "<p>No group of ten seqlets or more looked alike.</p>",
    )
    if cut is not None:
        body += section(
            "What chance would give",
            f"<p>Sequences with their dinucleotides shuffled were explained in the same way. At a strength of "
            f"{cut.strength:.3g} and above there are {cut.found:.3g} seqlets per sequence, and {cut.expected:.3g} per "
            f"shuffled one: a false discovery rate of {cut.fdr:.1%} (limit {limit:.0%}). Weaker seqlets were left "
            "out.</p>"
            if cut.found
            else f"<p>No seqlet is stronger than those of shuffled sequences, at a false discovery rate of "
            f"{limit:.0%}.</p>",
        )
    if search.agreements:
        names = list(search.agreements[0].by_motif) if len(search.agreements[0].by_motif) > 1 else []
        motifs = [escape(f"recall of {name}") for name in names]
        rows = [
            [
                escape(a.name), f"{a.seqlets:,}", f"{a.precision:.2f}", f"{a.recall:.2f}", f"{a.f1:.2f}",
                *(f"{a.by_motif.get(name, 0):.2f}" for name in names),
            ]
            for a in search.agreements
        ]  # fmt: skip
        body += section(
            "Agreement with known sites",
            "<p>A seqlet is right if it shares at least half of the shorter one with a known site; recall counts "
            "sites. Below stands the plain alternative to pruning: relevance cut at a share of each sequence's "
            "strongest base, of the sequences that were shuffled.</p>"
            + "".join(f"<p><strong>{escape(sentence)}</strong></p>" for sentence in search.verdict),
            table(["seqlets of", "number", "precision", "recall", "F1", *motifs], rows),
        )
    lead = f"Of the run in <code>{escape(Path(folder).name)}</code>."
    return page("Motifs", lead, body)
