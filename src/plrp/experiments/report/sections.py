"""The page of a report, section by section, for one run or several."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, get_args

import numpy as np

from plrp.experiments import score_figures, statements
from plrp.experiments.aligned_scores import BASELINE, LABELS, LRP, VARIANTS, AlignedScores, Method, plain
from plrp.experiments.config import without_folders, write_toml
from plrp.experiments.intervals import METHOD
from plrp.experiments.pages import cards, escape, folded, note, page, table
from plrp.experiments.results import broken_sentence
from plrp.experiments.statements import Statement
from plrp.progress import progress

from . import examples
from .runs import TitledRun, across, slug
from .sheets import Sheets

PAPER = {
    "ECSSD": ("figure 2", "figure 3"),
    "ImageNet": ("appendix A, first figure", "appendix A, second figure"),
    "Simulated DNA": ("appendix B", ""),
    "DNA": ("appendix B", ""),
}
"""Which figures of the paper show a data set: metrics over p, faithfulness."""

FURTHER = (
    "entropy", "hoyer", "nonzero", "relevance_rank_accuracy", "pointing_game", "max_sensitivity",
    "symmetric_relevance_gain", "score_kept",
)  # fmt: skip
SCORE_KEPT = "Σ R ÷ score: the sum of the input's relevance over the explained score; biases take the rest. "
"""The definition of a metric that `plrp.metrics` does not have."""


def render(runs: Sequence[TitledRun], sheets: Sheets) -> str:
    """The report as one HTML document; figures and tables go to the report's folder on the way."""
    builders: dict[str, tuple[str, Callable[[Sequence[TitledRun], Sheets], str]]] = {
        "figures": ("Figures", _figures),
        "examples": ("Examples", examples.render),
        "best": ("Best p per metric", _best),
        "statements": ("The paper's statements", _statements),
        "tables": ("All means", _tables),
        "runs": ("Runs", _runs),
    }
    measured = any(len(run.results.scores) for run in runs)
    built: dict[str, tuple[str, str]] = {}
    with progress("writing the report", len(builders), sheets.show_progress) as step:
        for name, (heading, build) in builders.items():
            built[name] = heading, build(runs, sheets) if measured or name == "runs" else ""
            step(1, heading)
    title = runs[0].title if len(runs) == 1 else "Pruned relevance: " + joined(sorted({run.dataset for run in runs}))
    variants = dict.fromkeys(name for run in runs for name in run.results.config["variants"])
    lead = (
        f"Layer-wise relevance propagation (LRP) and its pruned versions (PLRP): {escape(joined(list(variants)))}, "
        f"measured by <code>plrp sweep</code>. Bands and brackets are {escape(METHOD)}."
    )
    return page(title, lead, missing_note(runs) + broken_note(runs) + _cards(runs), built)


def joined(words: Sequence[str]) -> str:
    """'A, B and C'."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def missing_note(runs: Sequence[TitledRun]) -> str:
    """The parts that runs lack, and the metrics that no sample has."""
    lines = []
    for run in runs:
        r, gone = run.results, run.results.missing
        if gone:
            lines.append(
                f"{escape(run.title)}: {len(r.samples)} of {r.settings.samples} samples are measured; {len(gone)} of "
                f"{r.settings.parts} parts are missing ({spans(gone)}). Start <code>plrp sweep</code> on it again to "
                "fill them in."
            )
        wanted = [name.replace("pixel_flipping", "pixel_flipping_auc", 1) for name in r.config["metrics"]]
        empty = [f"<code>{escape(name)}</code>" for name in wanted if not run.scores.most(name)]
        if empty and len(r.samples):
            lines.append(f"{escape(run.title)}: no sample has a score of {joined(empty)}.")
    return note("<b>Not everything is there.</b>", lines)


def broken_note(runs: Sequence[TitledRun]) -> str:
    """Explanations whose arithmetic broke, counted by variant and p."""
    lines = []
    for run in runs:
        counts = run.results.broken[["variant", "p", "broken", "explanations"]].itertuples(index=False)
        each = [f"{Method(variant, p)}: {count} of {of}" for variant, p, count, of in counts]
        if each:
            listed = "; ".join(each[:12]) + ("; …" if len(each) > 12 else "")
            lines.append(f"{escape(run.title)}: {escape(broken_sentence(run.results))}: {escape(listed)}.")
    lead = "<b>In some explanations the arithmetic broke.</b> Their scores are part of all means below."
    return note(lead, lines)


def spans(numbers: Sequence[int]) -> str:
    """'0–3, 7': whole numbers, runs of them shortened."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [f"{a}–{b}" if b > a else f"{a}" for a, b in parts]
    return ", ".join(shown) if len(shown) <= 8 else ", ".join(shown[:7]) + ", …"


def _cards(runs: Sequence[TitledRun]) -> str:
    judged = [s for run in runs for s in run.statements if s.holds is not None]
    total = sum(len(run.results.samples) for run in runs)
    entries = {f"sample{'s' * (total != 1)}{f' in {len(runs)} runs' if len(runs) > 1 else ''}": f"{total:,}"}
    if judged:
        entries["statements of the paper hold"] = f"{sum(bool(s.holds) for s in judged)} of {len(judged)}"
    for run in runs[:2]:
        if run.gain_metric and run.example:
            m = run.scores
            values = f"{m.mean(run.gain_metric):.2f} → {m.mean(run.gain_metric, run.example):.2f}"
            about = escape(score_figures.metric(run.gain_metric).title)
            entries[f"{about}, LRP → PLRP-λ, p&nbsp;=&nbsp;{run.example.p:g}<br>{escape(run.title)}"] = values
    return cards(entries)


# -- statements


def verdict(statement: Statement | None) -> str:
    """'holds', 'does not hold', 'not measured' or 'too few samples', coloured; with a word where the intervals do not
    decide it.
    """
    if statement is None or statement.holds is None:
        return f'<span class="unknown">{statements.UNMEASURED if statement is None else statement.verdict}</span>'
    kind = "holds" if statement.holds else "fails"
    unsure = ' <span class="unsure">within the error</span>' if statement.sure is False else ""
    return f'<span class="{kind}">{statement.verdict}</span>{unsure}'


def _statements(runs: Sequence[TitledRun], sheets: Sheets) -> str:
    common = across(runs)
    judged_by = {run.title: run.statements for run in runs} | {network: [s] for network, s in common.items()}
    by_claim: dict[tuple[str, str], dict[str, Statement]] = {}
    for title, said in judged_by.items():
        for s in said:
            by_claim.setdefault((s.section, s.claim), {})[title] = s
    order = {name: k for k, name in enumerate(get_args(statements.Section))}
    alike = len({run.dataset for run in runs}) == 1
    shorter = {title: title for title in judged_by} | {run.title: run.network for run in runs if alike}
    parts, before = [], ""
    for (about, claim), judged in sorted(by_claim.items(), key=lambda item: order[item[0][0]]):
        if about != before:
            parts.append(f"<h3>{about.capitalize()}</h3>")
            before = about
        first = next(iter(judged.values()))
        words, inner = verdict(first), [f"<p>Rule: {escape(first.rule)}.</p>"]
        if len(runs) > 1:
            each = [f"<span>{escape(shorter[title])}: {verdict(s)}</span>" for title, s in judged.items()]
            words = each[0] if len(each) == 1 else f'<br><span class="verdicts">{"".join(each)}</span>'
        for title, statement in judged.items():
            lines = statement.numbers or (f"Not measured: {statement.missing}.",)
            head = f"<p><b>{escape(title)}</b></p>" if len(runs) > 1 else ""
            inner.append(f"{head}<ul>{''.join(f'<li>{unbroken(line)}</li>' for line in lines)}</ul>")
        capital = claim[0].upper() if claim[0].isascii() else claim[0]  # a Greek symbol stays as it is
        parts.append(folded(f"{escape(capital + claim[1:])}: {words}", *inner))
    sheets.json("statements", {title: [asdict(s) for s in said] for title, said in judged_by.items()})
    return (
        "<p>The paper's statements (section 4), judged by the sign (or the named size) of means; open a line for its "
        "rule and numbers: means, and paired differences over samples with their intervals. “Within the error”: some "
        "interval that decides includes zero.</p>" + "".join(parts)
    )


def unbroken(text: str) -> str:
    """As HTML whose lines do not break within 'p = 0.3' and '[+0.1, +0.2]'."""
    unbroken = re.sub(r"\[[^\]]*\]| = ", lambda match: match[0].replace(" ", "\u00a0"), text)
    return escape(unbroken)


# -- figures


def _figures(runs: Sequence[TitledRun], sheets: Sheets) -> str:
    parts = [score_figures.legend([run.scores for run in runs])]
    for dataset in dict.fromkeys(run.dataset for run in runs):
        parts.append(f"<h3>{escape(dataset)}</h3>")
        parts += _figures_of(dataset, [run for run in runs if run.dataset == dataset], sheets)
    return "\n".join(parts)


def _figures_of(dataset: str, runs: Sequence[TitledRun], sheets: Sheets) -> Iterator[str]:
    """The figures of one data set, a row of panels per network."""
    rows, p = [run.scores for run in runs], runs[0].example_p
    results, faithful = (f" (the paper's {name})" if name else "" for name in PAPER.get(dataset, ("", "")))
    over_p = partial(score_figures.over_p, rows)
    main = score_figures.versions(rows, score_figures.MAIN)
    if main:
        aspects = list(dict.fromkeys(score_figures.MAIN[name.partition(".")[0]] for name in main))
        yield sheets.drawing(
            f"{slug(dataset)}-metrics",
            partial(over_p, main),
            _described(rows, main),
            f"{joined(aspects).capitalize()} over the pruned proportion p{results}. Above: the whole range; "
            f"below: small p, without bands that would fill the panel. {_counts(rows, main)}",
        )
    for name in score_figures.versions(rows, (statements.AUC,)):
        yield sheets.drawing(
            f"{slug(dataset)}-{slug(name.replace('pixel_flipping_auc', 'faithfulness'))}",
            partial(score_figures.faithfulness, rows, name, p),
            _described(rows, [name]) + ". " + _described_flips(rows, name, p),
            f"Faithfulness{faithful}: the area under the flipping curve over p, the curve itself, and "
            f"its beginning. Lower is better. {_counts(rows, [name])}",
        )
    paired = score_figures.versions(rows, (*score_figures.MAIN, statements.AUC))
    if paired and any(m.variants(name) and m.count(name) > 1 for m in rows for name in paired):
        yield sheets.drawing(
            f"{slug(dataset)}-differences",
            partial(over_p, paired, differences=True, zoom=False),
            "; ".join(f"{m.name}: {score_figures.describe(m, name, True)}" for m in rows for name in paired),
            "Differences to LRP, sample by sample: a band that does not touch zero tells a variant from LRP, "
            "where the bands above may overlap because samples differ among themselves.",
        )
    further = score_figures.versions(rows, FURTHER)
    if further:
        yield sheets.drawing(
            f"{slug(dataset)}-further",
            partial(over_p, further, zoom=False),
            _described(rows, further),
            f"Further metrics. {SCORE_KEPT if 'score_kept' in further else ''}{_counts(rows, further)}",
        )


def _described(rows: Sequence[AlignedScores], names: Sequence[str]) -> str:
    return ". ".join(f"{m.name}: " + ". ".join(score_figures.describe(m, name) for name in names) for m in rows)


def _described_flips(rows: Sequence[AlignedScores], name: str, p: float) -> str:
    said = []
    for m in rows:
        for method, flips in score_figures.example_flips(m, name, p).items():
            k = int(np.argmin(np.abs(flips.share - 0.05)))
            left = plain(float(flips.mean[k]))
            said.append(f"{m.name}, {method}: {left} of the score left after {flips.share[k]:.1%}")
    return "; ".join(said)


def _counts(rows: Sequence[AlignedScores], names: Sequence[str]) -> str:
    """How many samples stand behind a figure."""
    lines = []
    for m in rows:
        by_count: dict[int, list[str]] = {}
        for name in names:
            if count := m.most(name):
                by_count.setdefault(count, []).append(score_figures.metric(name).title)
        each = "; ".join(f"{', '.join(titles)} {count:,}" for count, titles in by_count.items())
        if len(by_count) == 1:
            (count,) = by_count
            each = f"{count:,} sample{'s' * (count != 1)}"
        lines += [f"{m.name}: {'samples: ' * (len(by_count) > 1)}{each}"] if each else []
    alone = any(m.count(name) == 1 for m in rows for name in names)
    text = "; ".join(lines) + "." if lines else ""
    return escape(text + (" One sample alone has no interval." if alone else ""))


# -- best p


def _best(runs: Sequence[TitledRun], sheets: Sheets) -> str:
    parts: list[str] = []
    rows: list[list[Any]] = []
    for run in runs:
        m = run.scores
        known = [v for v in VARIANTS if m.has(v)]
        names = [n for n in score_figures.versions([m], score_figures.METRICS) if m.variants(n)]
        lines = [_best_of(run, name, known, rows) for name in names if score_figures.metric(name).better]
        if lines:
            parts += [f"<h3>{escape(run.title)}</h3>"] * (len(runs) > 1)
            parts.append(table(["metric", "LRP", *(LABELS[v] for v in known)], lines))
    if not parts:
        return ""
    head = ["run", "metric", "variant", "p", "mean", "difference_to_lrp", "low", "high", "samples"]
    sheets.table("best", head, rows)
    return (
        "<p>The p above 0 with the best mean of each variant, and below it the paired difference to LRP. In bold the "
        "best of a metric. Sparsity alone always asks for the highest p; weigh it against localization and "
        "faithfulness.</p>" + "\n".join(parts)
    )


def _best_of(run: TitledRun, name: str, variants: Sequence[str], rows: list[list[Any]]) -> list[str]:
    """The cells of one metric; its numbers are added to `rows`."""
    m, about = run.scores, score_figures.metric(name)
    best: dict[str, tuple[float, float]] = {}
    for variant in m.variants(name):
        shares = m.shares(name, variant)
        means = zip(m.means(name, variant, shares), shares, strict=True)
        best[variant] = max(means, key=lambda at: (about.better * at[0], -at[1]))
    top = max(about.better * value for value, _ in best.values())
    cells = dict.fromkeys(variants, "")
    for variant, (value, p) in best.items():
        apart = m.difference(name, Method(variant, p), LRP)
        text = f"{plain(value)} at p = {p:g}"
        text = f"<b>{text}</b>" if about.better * value == top else text
        cells[variant] = f"<span>{text}<br><small>{escape(apart)}</small></span>" if apart.count else text
        rows.append([run.title, name, variant, p, value, apart.mean, apart.low, apart.high, apart.count])
    return [escape(about.heading), f"<span class=number>{plain(m.mean(name))}</span>", *cells.values()]


# -- all means


def _tables(runs: Sequence[TitledRun], sheets: Sheets) -> str:
    parts, rows = [], []
    for run in runs:
        m = run.scores
        unknown = [n for n in m.metrics if n.partition(".")[0] not in score_figures.METRICS and m.count(n)]
        for name in score_figures.versions([m], score_figures.METRICS) + unknown:
            variants = m.variants(name)
            cells: dict[tuple[str, float], str] = {}
            for variant in (BASELINE, *variants):
                at = (0.0,) if variant == BASELINE else m.curve(name, variant)[0]
                for p, mean, low, high in zip(at, *m.band(name, variant), strict=False):
                    if variant != BASELINE and p == 0:
                        continue
                    rows.append([run.title, name, variant, p, mean, low, high, m.count(name, Method(variant, p))])
                    interval = "" if math.isnan(low) else f" <small>[{plain(low)}, {plain(high)}]</small>"
                    cells[variant, p] = f"<span>{plain(mean)}{interval}</span>"
            head = ["p", *(LABELS[v] for v in variants)]
            shares = sorted({p for v in variants for p in m.shares(name, v)})
            body = [[f"{p:g}", *(cells.get((v, p), "") for v in variants)] for p in shares]
            lrp = f"<p>LRP: {cells.get((BASELINE, 0.0), 'not measured')}</p>"
            label = f"{escape(run.title)}: " if len(runs) > 1 else ""
            title = f"{label}{escape(score_figures.metric(name).heading)} <code>{escape(name)}</code>"
            parts.append(folded(title, lrp, table(head, body) if body else ""))
    sheets.table("means", ["run", "metric", "variant", "p", "mean", "low", "high", "samples"], rows)
    return (
        "<p>Means over the samples where a score is defined, with their intervals; the same as "
        "<code>tables/means.csv</code>.</p>" + "".join(parts)
    )


# -- runs


def _runs(runs: Sequence[TitledRun], sheets: Sheets) -> str:
    rows = []
    for run in runs:
        r = run.results
        right = r.samples["correct"].dropna() if len(r.samples) else []
        share = f"{float(np.mean([bool(v) for v in right])):.1%}" if len(right) else "–"
        shares = escape(", ".join(f"{p:g}" for p in r.config["p"]))
        state = f"<span class=number>{'complete' if r.complete else f'{len(r.missing)} parts missing'}</span>"
        samples = f"{len(r.samples):,} of {r.settings.samples:,}"
        rows.append([escape(run.title), samples, share, escape(r.config["composite"]), shares, state])
    parts = [table(["run", "samples", "predicted correctly", "composite", "p", "state"], rows)]
    for run in runs:
        label = f"{escape(run.title)}: " if len(runs) > 1 else ""
        description = escape(write_toml(without_folders(run.results.settings)))
        parts.append(folded(f"{label}config", f"<pre>{description}</pre>"))
        facts = [[escape(k), escape(v)] for k, v in run.facts.items()]
        listed = table(["what", "which"], facts) if facts else "<p>None were recorded.</p>"
        parts.append(folded(f"{label}versions and seeds", listed))
    return "\n".join(parts)
