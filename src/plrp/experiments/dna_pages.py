"""Pages about DNA: the demo (logos, findings, curves, the ledger, motifs), and the page of `plrp genomics motifs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plrp.files import new_figure
from plrp.genomics.logo import COLOURS, draw_logo
from plrp.genomics.motif_search import MotifSearch
from plrp.genomics.seqlets import NAMED, Match, Pattern, e_text, named_match
from plrp.genomics.sequence_settings import COMPOSITE
from plrp.ledger import BOOKED
from plrp.view import Page

from . import score_figures
from .aligned_scores import AlignedScores, Method
from .intervals import METHOD
from .pages import cards, data_uri, escape, page, picture, section, table
from .sample_drawings import SequenceLogo, planted_sites
from .statements import GINI, LOGO_P, MASS, MOTIF_P, NotAThreshold, Statement, findings

if TYPE_CHECKING:
    from .demo_study import Study

NO_PATTERN = "<p>No group of ten seqlets or more looked alike.</p>"


def render(study: Study, *, seed: int, title: str = "", origin: str = "", photographs: str = "") -> str:
    """The report as one HTML document.

    `origin` says where the sequences come from, if they were not simulated here; `photographs` is the section on these.
    """
    statements = findings(study.sweeps, study.example)
    judged = [finding.holds for finding in statements if finding.holds is not None]
    headline = {f"test accuracy, {escape(n)}": f"{one['test_accuracy']:.1%}" for n, one in study.trainings.items()}
    one, example = next(iter(study.sweeps.values())), Method("lambda", LOGO_P)
    for name, metric in (("RMA", MASS), ("Gini", GINI)):
        rise = f"{one.mean(metric):.2f} → {one.mean(metric, example):.2f}"
        headline[f"{name}, LRP → PLRP-λ, p&nbsp;=&nbsp;{LOGO_P}"] = rise
    headline["of the paper's findings hold"] = f"{sum(judged)} of {len(judged)}"
    body = photographs + (section("DNA with planted motifs", cards(headline)) if photographs else cards(headline))
    body += _what_was_done(study, seed, origin)
    body += section("Do the paper's findings hold here?", _findings(statements))
    body += _slides(study)
    body += _logos(study)
    if study.example is not None:
        body += _not_a_threshold(study, study.example)
    body += section(
        "Sparsity and localization over p",
        f"<p>Means over {len(study.shown)} held-out sequences, as in the paper's appendix B: the upper panels show "
        "the whole range, the lower ones the range of the curves. “Gain” stops pruning where a neuron's sparsity gain "
        "falls below 1, so p is only an upper limit there. RMA, relevance mass accuracy, is the share of positive "
        "relevance that lies on planted bases. Gini's coefficient is 0 where all bases have the same relevance, and 1 "
        "where one base has it all.</p>",
        _curves(study.sweeps),
    )
    body += section(
        "Where the relevance went",
        f"<p>The ledger of {escape(study.shown.names[0])} under PLRP-λ, p = {LOGO_P}, from the score down "
        "to the bases. Pruning moves mass between neurons and loses none: mass in and out of its rows are equal. "
        "The absorbed share went to biases and ε.</p>",
        _ledger(study.ledger),
    )
    body += section(
        "Motifs found",
        f"<p>Contiguous surviving regions (PLRP-λ, p = {MOTIF_P}) that speak for the class and look alike were "
        "aligned into patterns, and those compared with the vertebrate CORE motifs of JASPAR by TOMTOM. Planted "
        f"were {escape(', '.join(str(m) for m in study.data.motifs))}.</p>",
        motif_table(study.patterns, study.matches) if study.patterns else NO_PATTERN,
    )
    body += _next_steps(study.data.length)
    inputs = "the pixels of a picture or the bases of a sequence" if photographs else "the bases of a sequence"
    known = "objects were pasted, and motifs planted" if photographs else "the motifs were planted"
    lead = (
        f"LRP traces a network's score back to {inputs}. PLRP prunes the relevance in every layer on its way, so that "
        f"the relevance that arrives is sparser. Here the truth is known: {known}."
    )
    return page(title or f"Pruned relevance on {'photographs and ' if photographs else ''}DNA", lead, body)


def _what_was_done(study: Study, seed: int, origin: str) -> str:
    data = study.data
    classes = ", ".join(escape(name) for name in data.class_names)
    origin = origin or (
        f"{len(data)} random sequences of {data.length} bases were simulated, each with one to three copies of the "
        f"motif of its class ({classes}), drawn from JASPAR's matrices and planted without overlap"
    )
    rows = []
    for name, trained in study.trainings.items():
        accuracies = [f"{trained[f'{part}_accuracy']:.3f}" for part in ("validation", "test")]
        rows.append([escape(name), f"{trained['weights']:,}", f"{trained['epochs']}", *accuracies])
    return section(
        "What was done",
        f"<p>{origin} (seed {seed}). Two small CNNs learned to name the class: 70% of the sequences trained them, 15% "
        "decided when to stop and which epoch's weights to keep (its validation accuracy is below; while training, the "
        f"terminal shows each epoch's own), and the test accuracies are on the {len(study.test)} held out. The first "
        f"{study.explained} of those were explained for the winning class with the composite <code>{COMPOSITE}</code>; "
        "relevance of a base is the relevance of its present letter. The rest of this page is about the "
        f"{len(study.shown)} of them that the larger network labels correctly.</p>",
        table(["network", "weights", "epochs", "validation accuracy, epoch kept", "test accuracy"], rows),
    )


def _logo(study: Study, k: int, *, full: bool) -> SequenceLogo:
    """Sequence number k with its relevance; `full`: with the truth, mutagenesis and PLRP-M as well."""
    shown = study.shown
    rows: dict[str, npt.NDArray[Any]] = {"LRP": study.lrp[k], f"PLRP-λ\np={LOGO_P}": study.plrp[k]}
    if full:
        mutated = {"ISM": study.ism[k]} if k in study.ism else {}
        rows = {"truth": shown.mask[k], **mutated, **rows, f"PLRP-M\np={LOGO_P}": study.plrp_m[k]}
    title = f"{shown.names[k]} ({shown.class_names[int(shown.labels[k])]})"
    return SequenceLogo(title, rows, shown.letters[k], planted_sites(shown, k))


def drawn_sequences(labels: npt.NDArray[np.int64]) -> list[int]:
    """The sequences that are drawn: one of each class, and the next ones up to six."""
    chosen = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)]
    return chosen + [k for k in range(len(labels)) if k not in chosen][: max(0, 6 - len(chosen))]


def _slides(study: Study) -> str:
    return section(
        "Slide p over the logos",
        "<p>The same sequences for every p: move the slider and watch the noise go, choose another sequence, "
        "zoom with the wheel, click a layer to see its filters, and a filter to see what reaches the bases through it. "
        "The planted motifs are marked.</p>",
        Page(study.slides).frame(height=880),
    )


def _logos(study: Study) -> str:
    pictures = []
    for k in drawn_sequences(study.shown.labels):
        logo = _logo(study, k, full=True)
        wide, narrow = data_uri(logo.draw(narrow=False), "png", 120), data_uri(logo.draw(narrow=True), "png", 170)
        pictures.append(picture(wide, f"logos of {logo.title}", "", narrow, plate=True))
    return section(
        "Logos: truth, ISM, LRP, PLRP",
        "<p>Letters as tall as the relevance of their base, planted motifs shaded, one sequence per block; network "
        f"with {escape(next(iter(study.sweeps)))}. On a narrow screen only the stretch around the strongest motif is "
        "drawn.</p>",
        "<p>ISM is in-silico mutagenesis: the loss of the score when a base is replaced, the mean over the three other "
        "letters. A planted copy may be invisible to all methods: the network keeps the best place of each filter "
        "only, so one good copy is enough for it; and a copy drawn from a matrix may be a weak one.</p>",
        *pictures,
    )


def _not_a_threshold(study: Study, example: NotAThreshold) -> str:
    factor = example.lrp_outside / example.lrp_inside
    low, high = sorted((example.inside, example.outside))
    logo, name = _logo(study, example.sequence, full=False), study.shown.names[example.sequence]
    marks = [
        *((start, end, "") for start, end, _ in logo.sites),
        (example.inside, example.inside + 1, "kept ▼"),
        (example.outside, example.outside + 1, "pruned ▼"),
    ]
    wide = replace(logo, sites=marks, row_height=0.95).draw(narrow=False)
    near = replace(logo, title=name, sites=marks)
    # Windows of 44 bases that show both places: one if they are near each other, else one each.
    span, length, windows = 44, study.shown.length, ""
    for middle in [(low + high) // 2] if high - low < span - 8 else [low, high]:
        begin = int(np.clip(middle - span // 2, 0, max(0, length - span)))
        end = min(begin + span, length)
        shown = data_uri(near.close_up((begin, end), 1.0), "png", 150)
        windows += picture(shown, f"{name}, bases {begin} to {end - 1}", plate=True)
    return section(
        "PLRP is not a threshold",
        f"<p>In {escape(name)}, base {example.inside} lies in a planted motif and survives with an LRP "
        f"relevance of {example.lrp_inside:.4f}, while base {example.outside} outside is pruned although LRP gave it "
        f"{example.lrp_outside:.4f}, {factor:.1f} times as much. No threshold on LRP could keep "
        "the one and drop the other. The "
        f"code looked for such pairs and found them in {example.sequences_with_one} of {example.sequences} "
        "sequences.</p>",
        f'<div class="laptop">{picture(data_uri(wide, "png", 120), f"logos of {name}", plate=True)}</div>',
        f'<div class="grid">{windows}</div>',
    )


def _next_steps(length: int) -> str:
    commands = (
        "plrp genomics explain demo/data/sequences.fa.gz --model demo/cnn32.pt -p 0.25 --out explained\n"
        "plrp genomics logo explained --truth demo/data/motifs.bed --out logos.png\n"
        "plrp genomics explain yours.fa --model network.py:build --weights weights.pt -p 0.25 --out results"
    )
    return section(
        "What to try next",
        f"<pre>{escape(commands)}</pre>",
        "<ul><li>Your own network and sequences: the third line; FASTA, BED with a genome, or one-hot "
        "arrays.</li><li>A harder task: <code>plrp genomics simulate --task xor --motifs GATA1 TAL1::TCF3 --out "
        "xor</code>, then <code>train --hidden 32</code> and <code>explain</code>.</li><li>TF-MoDISco on the result: "
        "<code>modisco motifs -s explained/onehot.npz -a explained/attributions.npz -n 2000 "
        f"-w {length} -o modisco.h5</code>.</li><li>The numbers behind the curves: <code>sweep.csv</code>, and more "
        "of them: <code>plrp report demo/genomics-32</code>; the surviving regions: "
        "<code>seqlets.bed</code>.</li></ul>",
    )


# -- its blocks


def _findings(statements: Sequence[Statement]) -> str:
    """The paper's statements with their verdicts and the numbers behind."""
    parts = []
    for one in statements:
        kind = "unknown" if one.holds is None else "holds" if one.holds else "fails"
        verdict = f'<span class="{kind}">{one.verdict}</span>'
        numbers = "".join(f"<li>{escape(n)}</li>" for n in one.numbers)
        parts.append(f'<div class="finding"><p>{escape(one.claim)}: {verdict}</p><ul>{numbers}</ul></div>')
    return "".join(parts)


def _curves(sweeps: Mapping[str, AlignedScores]) -> str:
    """Metrics over p, on their whole range and zoomed in, as in the paper's appendix B; one group per network."""
    rows = list(sweeps.values())
    metrics = score_figures.versions(rows, ("gini", "entropy", "relevance_mass_accuracy"))
    wide, narrow = (score_figures.over_p(rows, metrics, narrow=narrow) for narrow in (False, True))
    alt = ". ".join(f"{m.name}: {score_figures.describe(m, metric)}" for m in rows for metric in metrics)
    return score_figures.legend(rows) + picture(
        data_uri(wide, dark=score_figures.DARK),
        alt,
        f"Bands: {escape(METHOD)}.",
        data_uri(narrow, dark=score_figures.DARK),
        width=round(score_figures.PIXELS * wide.get_figwidth()),
    )


def _ledger(records: Sequence[Mapping[str, Any]]) -> str:
    """Where the relevance of the first sequence went, from the score down to the bases."""
    rows = []
    for record in (one for one in records if one["sample"] == 0):
        net_in = record["mass_in_positive"] - record["mass_in_negative"]
        net_out = record["mass_out_positive"] - record["mass_out_negative"]
        absorbed = -sum(sign * record[name] for name, sign in BOOKED.items())  # mass in minus mass out
        where, neurons = f"{record['layer'] or record['op']}", "–"
        if record["op"] == "prune":
            where = f"{record['layer']} (pruned)"
            neurons = f"{record['neurons_before']:.0f} → {record['neurons_after']:.0f}"
        masses = [f"{mass:.4f}" for mass in (net_in, net_out, absorbed)]
        rows.append([escape(where), escape(record["rule"]), *masses, neurons])
    return table(["layer", "rule", "mass in", "mass out", "absorbed", "neurons kept"], rows)


def pattern_logo(pattern: Pattern) -> str:
    """A small logo of a pattern in bits, all letters of a page equally wide."""
    bits = np.asarray(pattern.motif.probabilities * pattern.motif.information)  # (4, width)
    figure = new_figure((0.17 * bits.shape[1] + 0.1, 0.62))
    ax = figure.add_axes((0, 0.02, 1, 0.96))
    draw_logo(ax, bits, colours=COLOURS)
    ax.axis("off")
    size = f"max-width:{bits.shape[1] * 13}px"
    return f'<img src="{data_uri(figure)}" alt="{escape(pattern.motif.consensus)}" style="{size}">'


def motif_table(
    patterns: Sequence[Pattern], matches: Sequence[Sequence[Match]], *, named: bool = False, of: str = "JASPAR"
) -> str:
    """Patterns of surviving seqlets, with their names if wanted, and the known motifs that they resemble most."""
    rows = []
    for pattern, candidates in zip(patterns, matches, strict=True):
        best, named_one = candidates[0], named_match(pattern.motif, candidates)
        others = ", ".join(f"{m.motif.name} ({m.p:.0e})" for m in candidates[1:3])
        nearest = f"{escape(best.motif.name)} {escape(best.motif.id)}"
        match = f"<b>{nearest}</b>" if named_one else f"no match; nearest: {nearest}"
        name = [escape(pattern.motif.name)] if named else []
        numbers = [f'<span class="number">{e_text(value)}</span>' for value in (best.p, best.e)]
        cells = [f"{pattern.count}", f"<span>{match}</span>", *numbers, escape(others) or "–"]
        rows.append([pattern_logo(pattern), *name, *cells])
    head = ["pattern (bits)", *(["name"] if named else []), "seqlets"]
    return table([*head, f"best match in {escape(of)}", "p-value", "E-value", "next best (p)"], rows)


# -- the page of `plrp genomics motifs`


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
    matched = ""
    if search.matches:
        of = "JASPAR's vertebrate CORE motifs" if database is None else f"motifs of {escape(database)}"
        matched = f"The matches are {of}, by TOMTOM, where E ≤ {NAMED:g}. "
        patterns = motif_table(search.patterns, search.matches, named=True, of=database or "JASPAR")
    else:
        rows = [
            [pattern_logo(p), escape(p.motif.name), f"{p.count}", escape(p.motif.consensus)] for p in search.patterns
        ]
        patterns = table(["pattern (bits)", "name", "seqlets", "consensus"], rows)
    body += section(
        "Patterns",
        "<p>Surviving stretches of sequence that look alike, aligned. “For” patterns speak for the explained score, "
        f"“against” patterns against it. {matched}<code>patterns.meme</code> and <code>patterns.jaspar</code> hold the "
        "matrices.</p>",
        (f"<p><strong>{escape(search.advice)}</strong></p>" if search.advice else "")
        + (patterns if count else NO_PATTERN),
    )
    if search.cuts:
        body += _null(search, limit)
    if search.agreements:
        names = list(search.agreements[0].by_motif) if len(search.agreements[0].by_motif) > 1 else []
        motifs = [escape(f"recall of {name}") for name in names]
        rows = []
        for a in search.agreements:
            shares = (a.precision, a.recall, a.f1, *(a.by_motif.get(name, 0) for name in names))
            rows.append([escape(a.name), f"{a.seqlets:,}", *(f"{share:.2f}" for share in shares)])
        body += section(
            "Agreement with known sites",
            "<p>A seqlet is right if it shares at least half of the shorter one with a known site; recall counts "
            "sites. “Cut at” is the simple alternative to pruning: bases below that share of a sequence's strongest "
            "base are left out.</p>"
            + "".join(f"<p><strong>{escape(sentence)}</strong></p>" for sentence in search.verdict),
            table(["seqlets of", "number", "precision", "recall", "F1", *motifs], rows),
        )
    return page("Motifs", f"Of the run in <code>{escape(Path(folder).name)}</code>.", body)


def _null(search: MotifSearch, limit: float) -> str:
    """The result of the null: the cut-off of each class, or of all together."""
    own = {name: cut for name, cut in search.cuts.items() if name is not None}
    head = ["sequences of", "least strength", "seqlets per sequence", "per shuffled one", "false discovery rate"]
    rows = []
    for name, cut in (own or search.cuts).items():
        cells = ["none is stronger than chance", "0", "–", "–"]
        if cut.observed:
            cells = [f"{cut.strength:.3g}", f"{cut.observed:.3g}", f"{cut.expected:.3g}", f"{cut.fdr:.1%}"]
        rows.append([escape("all" if name is None else f"class {name}"), *cells])
    by_class = ", by class, since the scores of classes differ in size" if own else ""
    return section(
        "What chance would give",
        "<p>Sequences with their dinucleotides shuffled were explained in the same way. A seqlet counts if, at its "
        f"strength and above, shuffled sequences have at most {limit:.0%} as many (the false discovery "
        f"rate){by_class}. Weaker seqlets were left out.</p>",
        table(head, rows),
    )
