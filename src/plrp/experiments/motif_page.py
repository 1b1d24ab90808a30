"""The page of `plrp genomics motifs`: patterns with the motifs they match, the null, and agreement with known sites."""

from __future__ import annotations

from pathlib import Path

from plrp.genomics.motif_search import CutOff, MotifSearch
from plrp.genomics.seqlets import NAMED

from .demo_page import motif_table, pattern_logo
from .pages import cards, escape, page, section, table


def render_motifs(search: MotifSearch, folder: str | Path, limit: float, database: str | None = None) -> str:
    """The page as one HTML document. `database`: the name of the motifs that were matched; None: JASPAR's."""
    count = len(search.patterns)
    body = cards(
        {
            "sequences": f"{search.sequences:,}",
            "seqlets": f"{search.seqlet_count:,}",
            "of them above the null" if search.cuts else "used (no null)": f"{search.believed:,}",
            "pattern" if count == 1 else "patterns": f"{count}",
        }
    )
    if search.matches:
        patterns = motif_table(search.patterns, search.matches, named=True, of=database or "JASPAR")
    else:
        rows = [
            [pattern_logo(p), escape(p.motif.name), f"{p.count}", escape(p.motif.consensus)] for p in search.patterns
        ]
        patterns = table(["pattern (bits)", "name", "seqlets", "consensus"], rows)
    body += section(
        "Patterns",
        "<p>Surviving stretches of sequence that look alike, aligned. “For” patterns speak for the explained score, "
        "“against” patterns against it. "
        + (f"The matches are {_motifs_of(database)}, by TOMTOM, where E ≤ {NAMED:g}. " if search.matches else "")
        + "<code>patterns.meme</code> and <code>patterns.jaspar</code> hold the matrices.</p>",
        (f"<p><strong>{escape(search.advice)}</strong></p>" if search.advice else "")
        + (patterns if count else "<p>No group of ten seqlets or more looked alike.</p>"),
    )
    if search.cuts:
        body += _null(search, limit)
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
            "sites. “Cut at” is the simple alternative to pruning: bases below that share of a sequence's strongest "
            "base are left out.</p>"
            + "".join(f"<p><strong>{escape(sentence)}</strong></p>" for sentence in search.verdict),
            table(["seqlets of", "number", "precision", "recall", "F1", *motifs], rows),
        )
    lead = f"Of the run in <code>{escape(Path(folder).name)}</code>."
    return page("Motifs", lead, body)


def _motifs_of(database: str | None) -> str:
    return "JASPAR's vertebrate CORE motifs" if database is None else f"motifs of {escape(database)}"


def _null(search: MotifSearch, limit: float) -> str:
    """The result of the null: the cut-off of each class, or of all together."""
    own = {name: cut for name, cut in search.cuts.items() if name is not None}
    rows = [
        [escape("all" if name is None else f"class {name}"), *_cells(cut)] for name, cut in (own or search.cuts).items()
    ]
    return section(
        "What chance would give",
        "<p>Sequences with their dinucleotides shuffled were explained in the same way. A seqlet counts if, at its "
        f"strength and above, shuffled sequences have at most {limit:.0%} as many (the false discovery rate)"
        + (", by class, since the scores of classes differ in size" if own else "")
        + ". Weaker seqlets were left out.</p>",
        table(
            ["sequences of", "least strength", "seqlets per sequence", "per shuffled one", "false discovery rate"], rows
        ),
    )


def _cells(cut: CutOff) -> list[str]:
    if not cut.observed:
        return ["none is stronger than chance", "0", "–", "–"]
    return [f"{cut.strength:.3g}", f"{cut.observed:.3g}", f"{cut.expected:.3g}", f"{cut.fdr:.1%}"]
