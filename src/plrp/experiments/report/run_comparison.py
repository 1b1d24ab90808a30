"""Two runs compared: what was asked of them, their curves, and the differences sample by sample."""

from __future__ import annotations

import numpy as np

from plrp.experiments import score_figures
from plrp.experiments.aligned_scores import BASELINE, LABELS, LRP, VARIANTS, Method, difference_of, plain
from plrp.experiments.config import differences
from plrp.experiments.intervals import METHOD
from plrp.experiments.pages import cards, contents, escape, folded, page, section, table

from .runs import TitledRun
from .sections import missing_note, spans, verdict
from .sheets import Sheets

SECTIONS = {
    "config": "What differs between the runs",
    "figures": "Both over p",
    "differences": "B minus A, sample by sample",
    "statements": "The paper's statements in both",
}


def render(first: TitledRun, second: TitledRun, sheets: Sheets) -> str:
    """The comparison as one HTML document."""
    built = {
        "config": _config(first, second),
        "figures": _figures(first, second, sheets),
        "differences": _differences(first, second, sheets),
        "statements": _statements(first, second, sheets),
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
    body = contents({name: SECTIONS[name] for name, content in built.items() if content})
    body += missing_note([first, second]) + cards(numbers)
    body += "".join(section(SECTIONS[name], content, name=name) for name, content in built.items() if content)
    return page("Two sweeps compared", lead, body)


def paired(first: TitledRun, second: TitledRun) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the samples that both runs measured under the same name, in `Measured.samples` of each."""
    if first.dataset != second.dataset:
        return np.zeros(0, int), np.zeros(0, int)
    rows = []
    for run in (first, second):
        names = run.results.samples.set_index("sample")["name"]
        places = {str(names[s]): k for k, s in enumerate(run.measured.samples) if s in names.index}
        # A name that occurs twice names no sample.
        counts = names.value_counts()
        rows.append({name: k for name, k in places.items() if counts[name] == 1})
    common = [name for name in rows[0] if name in rows[1]]
    return np.array([rows[0][n] for n in common], int), np.array([rows[1][n] for n in common], int)


def _config(first: TitledRun, second: TitledRun) -> str:
    found = differences(first.results.settings, second.results.settings)
    rows = []
    for line in found:
        name, _, rest = line.partition(" was ")
        before, _, after = rest.partition(" and is ")
        rows.append([f"<code>{escape(name)}</code>", escape(before), escape(after)])
    for name in sorted({*first.results.versions, *second.results.versions} - {"starts"}):
        versions = [run.results.versions.get(name) for run in (first, second)]
        for key, a, b in _unlike(name, *versions):
            rows.append([f"<code>{escape(key)}</code>", escape(a), escape(b)])
    if not rows:
        return "<p>Nothing that decides results, and no version: B is A measured again.</p>"
    return table(["entry", "A", "B"], rows)


def _unlike(name: str, a: object, b: object) -> list[tuple[str, str, str]]:
    """Entries of nested facts that are not the same."""
    if isinstance(a, dict) and isinstance(b, dict):
        return [line for key in sorted({*a, *b}) for line in _unlike(f"{name} {key}", a.get(key), b.get(key))]
    return [] if a == b else [(name, "–" if a is None else str(a), "–" if b is None else str(b))]


def _metrics(first: TitledRun, second: TitledRun) -> list[str]:
    """What both measured."""
    names = score_figures.versions([first.measured], tuple(score_figures.METRICS))
    return [name for name in names if name in score_figures.versions([second.measured], tuple(score_figures.METRICS))]


def _figures(first: TitledRun, second: TitledRun, sheets: Sheets) -> str:
    names = _metrics(first, second)
    if not names:
        return "<p>The two runs have no metric in common.</p>"
    main = [n for n in names if n.partition(".")[0] in (*score_figures.MAIN, "pixel_flipping_auc")] or names
    m, n = first.measured, second.measured
    about = score_figures.describe
    alt = ". ".join(f"{score_figures.metric(name).title}: A: {about(m, name)}. B: {about(n, name)}" for name in main)
    return sheets.drawing(
        "comparison",
        score_figures.side_by_side(m, n, main),
        alt,
        "Means over all samples of each run: A with full lines and markers, B dashed with open ones, each at the p it "
        "was measured at; p = 0 is LRP.",
        score_figures.side_by_side(m, n, main, narrow=True),
    )


def _differences(first: TitledRun, second: TitledRun, sheets: Sheets) -> str:
    a, b = paired(first, second)
    m, n = first.measured, second.measured
    names = _metrics(first, second)
    if not len(a):
        same = first.dataset == second.dataset
        return (
            "<p>The two runs have no sample in common"
            + ("" if same else f" ({escape(first.dataset)} and {escape(second.dataset)})")
            + ": nothing can be paired. Read the curves above side by side.</p>"
        )
    parts, rows = [], []
    unshared: dict[str, set[float]] = {"A": set(), "B": set()}
    for name in names:
        methods = [LRP] + [Method(v, p) for v in VARIANTS for p in m.shares(name, v) if p in n.shares(name, v)]
        for v in VARIANTS:
            unshared["A"] |= set(m.shares(name, v)) - set(n.shares(name, v))
            unshared["B"] |= set(n.shares(name, v)) - set(m.shares(name, v))
        lines = []
        for method in methods:
            apart = difference_of(n.at(name, method)[b] - m.at(name, method)[a])
            if not apart.count:
                continue
            rows.append([name, method.variant, method.p, apart.mean, apart.low, apart.high, apart.count])
            word = {1: "higher", -1: "lower", 0: "no clear difference"}[apart.sign]
            if apart.mean == 0 and apart.low == apart.high == 0:
                word = "the same"
            lines.append(
                [
                    escape(LABELS[method.variant]),
                    "–" if method.variant == BASELINE else f"{method.p:g}",
                    plain(float(np.nanmean(m.at(name, method)[a]))),
                    plain(float(np.nanmean(n.at(name, method)[b]))),
                    f"<span>{escape(apart)}</span>",
                    word,
                    f"{apart.count:,}",
                ]
            )
        if lines:
            clear = sum(line[5] in ("higher", "lower") for line in lines)
            title = f"{escape(score_figures.metric(name).heading)}: B differs clearly at {clear} of {len(lines)}"
            parts.append(folded(title, table(["variant", "p", "A", "B", "B − A", "B is", "samples"], lines)))
    sheets.table("comparison", ["metric", "variant", "p", "b_minus_a", "low", "high", "samples"], rows)
    lost = [f"{run} alone: p = {', '.join(f'{p:g}' for p in sorted(ps))}" for run, ps in unshared.items() if ps]
    note = f" Measured in one run only, and so not paired: {'; '.join(lost)}." if lost else ""
    some = [int(m.samples[k]) for k in a]
    return (
        f"<p>Over the {len(a):,} samples that both have under the same name (numbers {spans(sorted(some))} of A), at "
        f"the p that both have.{note}</p>" + "".join(parts)
    )


def _statements(first: TitledRun, second: TitledRun, sheets: Sheets) -> str:
    by_claim = {s.claim: s for s in second.statements}
    rows, plain_rows = [], []
    for s in first.statements:
        other = by_claim.pop(s.claim, None)
        rows.append(_line(s.claim, verdict(s), verdict(other), (s.verdict, other.verdict if other else "not measured")))
        plain_rows.append([s.claim, s.verdict, other.verdict if other else "not measured"])
    for claim, other in by_claim.items():
        rows.append(_line(claim, verdict(None), verdict(other), ("not measured", other.verdict)))
        plain_rows.append([claim, "not measured", other.verdict])
    sheets.table("statements", ["statement", "a", "b"], plain_rows)
    return table(["statement", "A", "B", ""], rows)


def _line(claim: str, a: str, b: str, verdicts: tuple[str, str]) -> list[str]:
    changed = verdicts[0] != verdicts[1] and not {"not measured", "too few samples"} & set(verdicts)
    return [escape(claim), f"<span>{a}</span>", f"<span>{b}</span>", "<b>changed</b>" if changed else ""]
