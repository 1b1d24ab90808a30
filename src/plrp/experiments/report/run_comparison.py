"""Two runs compared: their configs, their curves, and the differences sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from plrp.experiments import score_figures
from plrp.experiments.aligned_scores import BASELINE, LABELS, LRP, VARIANTS, Method, difference_of, plain
from plrp.experiments.config import decisive
from plrp.experiments.intervals import METHOD
from plrp.experiments.pages import cards, escape, folded, page, table
from plrp.experiments.statements import UNMEASURED, Statement
from plrp.runs.run import differences, quoted

from .runs import TitledRun
from .sections import missing_note, spans, verdict
from .sheets import Sheets


def render(first: TitledRun, second: TitledRun, sheets: Sheets) -> str:
    """The comparison as one HTML document."""
    built = {
        "config": ("What differs between the runs", _config(first, second)),
        "figures": ("Both over p", _figures(first, second, sheets)),
        "differences": ("B minus A, sample by sample", _differences(first, second, sheets)),
        "statements": ("The paper's statements in both", _statements(first, second, sheets)),
    }
    common, _ = paired(first, second)
    lead = (
        f"A is {escape(first.title)} (<code>{escape(first.results.name)}</code>), B is {escape(second.title)} "
        f"(<code>{escape(second.results.name)}</code>). Bands and brackets are {escape(METHOD)}."
    )
    numbers = {
        "samples of A": f"{len(first.results.samples):,}",
        "samples of B": f"{len(second.results.samples):,}",
        "in both, by name": f"{len(common):,}",
    }
    return page("Two sweeps compared", lead, missing_note([first, second]) + cards(numbers), built)


def paired(first: TitledRun, second: TitledRun) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the samples that both runs measured under the same name, in `AlignedScores.samples` of each."""
    if first.dataset != second.dataset:
        return np.zeros(0, int), np.zeros(0, int)
    rows = []
    for run in (first, second):
        names = run.results.samples.set_index("sample")["name"]
        places = {str(names[s]): k for k, s in enumerate(run.scores.samples) if s in names.index}
        # A name that occurs twice names no sample.
        counts = names.value_counts()
        rows.append({name: k for name, k in places.items() if counts[name] == 1})
    common = [name for name in rows[0] if name in rows[1]]
    return np.array([rows[0][n] for n in common], int), np.array([rows[1][n] for n in common], int)


def _config(first: TitledRun, second: TitledRun) -> str:
    entries = differences(decisive(first.results.settings), decisive(second.results.settings))
    changes = [(name, quoted(a), quoted(b)) for name, (a, b) in entries.items()]
    facts = [(n, first.facts.get(n, "–"), second.facts.get(n, "–")) for n in sorted(first.facts | second.facts)]
    rows = [(name, a, b) for name, a, b in [*changes, *facts] if a != b]
    if not rows:
        return "<p>Nothing that decides results, and no version: B is A measured again.</p>"
    return table(["entry", "A", "B"], [[f"<code>{escape(name)}</code>", escape(a), escape(b)] for name, a, b in rows])


def _metrics(first: TitledRun, second: TitledRun) -> list[str]:
    """The metrics that both runs measured."""
    of_first, of_second = (score_figures.versions([run.scores], score_figures.METRICS) for run in (first, second))
    return [name for name in of_first if name in of_second]


def _figures(first: TitledRun, second: TitledRun, sheets: Sheets) -> str:
    names = _metrics(first, second)
    if not names:
        return "<p>The two runs have no metric in common.</p>"
    main = [n for n in names if n.partition(".")[0] in (*score_figures.MAIN, "pixel_flipping_auc")] or names
    m, n, about = first.scores, second.scores, score_figures.describe
    alt = ". ".join(f"{score_figures.metric(name).title}: A: {about(m, name)}. B: {about(n, name)}" for name in main)
    return sheets.drawing(
        "comparison",
        partial(score_figures.side_by_side, m, n, main),
        alt,
        "Means over all samples of each run: A with full lines and markers, B dashed with open ones, each at the p it "
        "was measured at; p = 0 is LRP.",
    )


def _differences(first: TitledRun, second: TitledRun, sheets: Sheets) -> str:
    a, b = paired(first, second)
    m, n = first.scores, second.scores
    if not len(a):
        one, other = escape(first.dataset), escape(second.dataset)
        sets = "" if one == other else f" ({one} and {other})"
        return (
            f"<p>The two runs have no sample in common{sets}: nothing can be paired. Read the curves above side by "
            "side.</p>"
        )
    parts, rows = [], []
    unshared: dict[str, set[float]] = {"A": set(), "B": set()}
    for name in _metrics(first, second):
        methods, lines = [LRP], []
        for v in VARIANTS:
            of_a, of_b = m.shares(name, v), n.shares(name, v)
            methods += [Method(v, p) for p in of_a if p in of_b]
            unshared["A"] |= set(of_a) - set(of_b)
            unshared["B"] |= set(of_b) - set(of_a)
        for method in methods:
            apart = difference_of(n.at(name, method)[b] - m.at(name, method)[a])
            if not apart.count:
                continue
            rows.append([name, method.variant, method.p, apart.mean, apart.low, apart.high, apart.count])
            word = {1: "higher", -1: "lower", 0: "no clear difference"}[apart.sign]
            if apart.mean == 0 and apart.low == apart.high == 0:
                word = "the same"
            p = "–" if method.variant == BASELINE else f"{method.p:g}"
            means = [plain(float(np.nanmean(scores))) for scores in (m.at(name, method)[a], n.at(name, method)[b])]
            difference = f"<span>{escape(apart)}</span>"
            lines.append([escape(LABELS[method.variant]), p, *means, difference, word, f"{apart.count:,}"])
        if lines:
            clear = sum(line[5] in ("higher", "lower") for line in lines)
            title = f"{escape(score_figures.metric(name).heading)}: B differs clearly at {clear} of {len(lines)}"
            parts.append(folded(title, table(["variant", "p", "A", "B", "B − A", "B is", "samples"], lines)))
    sheets.table("comparison", ["metric", "variant", "p", "b_minus_a", "low", "high", "samples"], rows)
    lost = [f"{run} alone: p = {', '.join(f'{p:g}' for p in sorted(ps))}" for run, ps in unshared.items() if ps]
    note = f" Scores in one run only, and so not paired: {'; '.join(lost)}." if lost else ""
    numbers = spans(sorted(int(m.samples[k]) for k in a))
    return (
        f"<p>Over the {len(a):,} samples that both have under the same name (numbers {numbers} of A), at the p that "
        f"both have.{note}</p>" + "".join(parts)
    )


def _statements(first: TitledRun, second: TitledRun, sheets: Sheets) -> str:
    judged = [_by_claim(run.statements) for run in (first, second)]
    rows, plain_rows = [], []
    for claim, number in dict.fromkeys([*judged[0], *judged[1]]):
        pair = [by_claim.get((claim, number)) for by_claim in judged]
        words = [UNMEASURED if s is None else s.verdict for s in pair]
        changed = words[0] != words[1] and all(s is not None and s.holds is not None for s in pair)
        verdicts = [f"<span>{verdict(s)}</span>" for s in pair]
        rows.append([escape(claim), *verdicts, "<b>changed</b>" if changed else ""])
        plain_rows.append([claim, *words])
    sheets.table("statements", ["statement", "a", "b"], plain_rows)
    return table(["statement", "A", "B", ""], rows)


def _by_claim(judged: Sequence[Statement]) -> dict[tuple[str, int], Statement]:
    """Statements by claim and number: two versions of a metric may be judged by the same claim."""
    by_claim: dict[tuple[str, int], Statement] = {}
    for statement in judged:
        number = sum(claim == statement.claim for claim, _ in by_claim)
        by_claim[statement.claim, number] = statement
    return by_claim
