"""What the package promises about its speed and memory, and whether the measurements keep it.

A goal is a bound on a ratio, once per model; the worst of its measurements (batches, say) decides.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from report import FORWARD, Parts, Table, number, over_hundred, rows, title
from timing import quotients

Found = dict[str, list[float]]  # the quotients of all rounds, by where they were measured


@dataclass(frozen=True)
class Goal:
    """A bound on a ratio: at least (faster) or at most (cheaper), the further aim if any, and where it is measured."""

    what: str
    at_least: bool
    bound: float
    stretch: float | None
    measured: Callable[[Parts], Found]

    def keeps(self, value: float, bound: float) -> bool:
        """Whether a value is on the right side of a bound."""
        return value >= bound if self.at_least else value <= bound

    def words(self, bound: float | None) -> str:
        """A bound as people write it."""
        return "" if bound is None else f"≥ {bound:g} ×" if self.at_least else f"≤ {bound:g}"

    def verdict(self, value: float) -> str:
        """Met, missed and by how much, or met with the further aim."""
        if not self.keeps(value, self.bound):
            return f"missed by {percent(abs(value / self.bound - 1))}"
        return "met, the stretch too" if self.stretch is not None and self.keeps(value, self.stretch) else "met"

    def judge(self, parts: Parts) -> dict[str, Any]:
        """The measurements, and what they say about this goal: the worst of them decides."""
        found = {where: values for where, values in self.measured(parts).items() if values}
        medians = {where: statistics.median(values) for where, values in found.items()}
        worst = (min if self.at_least else max)(medians.values(), default=None)
        return {
            "what": self.what,
            "goal": self.words(self.bound),
            "stretch": self.words(self.stretch),
            "measured": medians,
            "range": {where: [min(values), max(values)] for where, values in found.items()},
            "verdicts": {where: self.verdict(value) for where, value in medians.items()},
            "met": None if worst is None else self.keeps(worst, self.bound),
            "verdict": "not measured" if worst is None else self.verdict(worst),
        }


def percent(share: float) -> str:
    """Of a gap: a digit more where it is small."""
    return f"{share:.0%}" if share >= 0.095 else f"{share:.1%}"


def engine(model: str, name: str, to: str) -> Callable[[Parts], Found]:
    """Time of one method over that of another, by batch."""
    return lambda parts: {
        f"batch {row['batch']}": quotients(row["seconds"], name, to)
        for row in rows(parts, "engine")
        if row["model"] == model
    }


def attention(name: str, to: str) -> Callable[[Parts], Found]:
    """Time of one method (without a name: plrp with LXT's rules) over that of another, by transformer and size."""

    def found(parts: Parts) -> Found:
        return {
            f"{row['model']}, {row['size']}": quotients(row["seconds"], name or f"plrp {row['rules']}", to)
            for row in rows(parts, "attention")
        }

    return found


def sweep(parts: Parts) -> Found:
    """Twenty runs of Zennit over one sweep of twenty values."""
    return {
        f"batch {row['batch']}": [row["count"] * q for q in quotients(row["seconds"], "Zennit", "sweep")]
        for row in rows(parts, "lambda_sweep")
        if row["model"] == "resnet50"
    }


def selection(parts: Parts) -> Found:
    """A sort's time over that of θ and mask, by values and p."""
    return {
        f"{row['values']}, {row['p']}": quotients(row["seconds"], "numpy.sort", "θ and mask")
        for row in rows(parts, "threshold")
    }


def peak(model: str) -> Callable[[Parts], Found]:
    """Peak memory over Zennit's at batch 8, by method."""

    def found(parts: Parts) -> Found:
        peaks = [r["peak"] for r in rows(parts, "memory") if (r["model"], r["batch"]) == (model, 8)]
        numbers = {n: v for one in peaks for n, v in one.items() if isinstance(v, float | int)}
        theirs = numbers.get("Zennit")
        ours = {n.removeprefix("plrp "): v for n, v in numbers.items() if n.startswith("plrp")}
        return {name: [value / theirs] for name, value in ours.items()} if theirs else {}

    return found


def sequences(name: str, to: str) -> Callable[[Parts], Found]:
    """Time of one method on the 1D CNN over that of another."""

    def found(parts: Parts) -> Found:
        part = parts.get("sequences", {})
        if "seconds" not in part:
            return {}
        return {f"{part['count']:,} sequences": quotients(part["seconds"], name, to)}

    return found


def passes(model: str, name: str) -> Callable[[Parts], Found]:
    """Time of the first explanation of a model in a warm process, or of a later one, in its forward passes."""
    return lambda parts: {
        row["model"]: quotients(row["seconds"], name, FORWARD) for row in rows(parts, "checks") if row["model"] == model
    }


def many(what: Sequence[str], name: str) -> Callable[[Parts], Found]:
    """Time of another way over that of plrp, where a row of `many.py` begins with a word of `what`."""
    return lambda parts: {
        row["what"]: quotients(row["seconds"], name, row["ours"])
        for row in rows(parts, "many")
        if any(word in row["what"] for word in what)
    }


def checks(parts: Parts) -> Found:
    """100 explanations of one model and shape, over the same without their checks."""
    return {row["model"]: over_hundred(row["seconds"]) for row in rows(parts, "checks")}


def metric(name: str) -> Callable[[Parts], Found]:
    """Quantus' time over plrp's."""
    return lambda parts: {
        f"{row['samples']} samples": quotients(row["seconds"], "Quantus", "plrp")
        for row in rows(parts, "metrics")
        if row["metric"] == name
    }


def goals() -> Iterator[Goal]:
    """All of them: of speed and memory, then the wider bounds that pruning began with, then the metrics' factors."""
    lrp, prune, half, masked = "plrp LRP", "plrp λ 0.2", "plrp λ 0.5", "plrp M 0.2"
    both = ("vgg16", "resnet50")
    for model, least, stretch in (("vgg16", 2, 2.5), ("resnet50", 4, None)):
        yield Goal(f"{title(model)}: LRP against Zennit", True, least, stretch, engine(model, "Zennit", lrp))
    for model in both:
        yield Goal(f"{title(model)}: LRP / conv floor", False, 1.2, 1.1, engine(model, lrp, "conv floor"))
    for model in both:
        yield Goal(f"{title(model)}: λ p = 0.2 / own LRP", False, 0.85, 0.65, engine(model, prune, lrp))
    for model, most in (("vgg16", 1.7), ("resnet50", 1.9)):
        yield Goal(f"{title(model)}: λ p = 0.5, forward passes", False, most, 1.3, engine(model, half, FORWARD))
    for model in both:
        what = f"{title(model)}: λ p = 0.2 against Zennit's plain LRP"
        yield Goal(what, True, 3, 5, engine(model, "Zennit", prune))
    for model in both:
        yield Goal(f"{title(model)}: M p = 0.2 / own LRP", False, 1.4, 1, engine(model, masked, lrp))
    for model, first, later in (("ResNet-50, batch 1", 6, 2.7), ("1D CNN, 250 bases, batch 64", 10, 5)):
        yield Goal(f"{model}: first explanation, forward passes", False, first, None, passes(model, "first"))
        yield Goal(f"{model}: later ones, forward passes", False, later, None, passes(model, "later"))
    yield Goal("ResNet-50: 20-value λ sweep against 20 runs of Zennit", True, 30, None, sweep)
    whole = ("circuit", "choose_p", "page")
    yield Goal("ResNet-50: circuit, choose_p, page against the plain walk", True, 3, None, many(whole, "plain walk"))
    stacks = ("targets", "conditions")
    yield Goal("1,000 targets or conditions against 1,000 explanations", True, 8, None, many(stacks, "explained"))
    yield Goal("θ and mask, 3.2 M values, against numpy.sort alone", True, 1, 3, selection)
    for model in both:
        yield Goal(f"{title(model)}: peak memory / Zennit's, batch 8", False, 1, 0.7, peak(model))
    yield Goal("1D CNN, 250 bases: LRP against Zennit", True, 5, None, sequences("Zennit", lrp))
    yield Goal("1D CNN, 250 bases: λ p = 0.2 / own LRP", False, 0.8, None, sequences(prune, lrp))
    yield Goal("100 explanations of one model / without their checks", False, 1.03, 1.01, checks)
    yield Goal("transformers: LRP / LXT's efficient form, the same rules", False, 0.95, None, attention("", "LXT"))
    tokens = attention("plrp λ 0.2, tokens", "plrp attnlrp")
    yield Goal("transformers: λ p = 0.2 by token / own LRP", False, 0.8, None, tokens)
    yield Goal("transformers: λ p = 0.2 / own LRP", False, 1, None, attention("plrp λ 0.2", "plrp attnlrp"))
    for model in both:
        what = f"{title(model)}: λ p = 0.2 / own LRP, first bound"
        yield Goal(what, False, 1.2, None, engine(model, prune, lrp))
        what = f"{title(model)}: M p = 0.2 / own LRP, first bound"
        yield Goal(what, False, 2.2, None, engine(model, masked, lrp))
    for name in ("Gini index", "entropy", "relevance mass accuracy"):
        yield Goal(f"{name} against Quantus, 224 × 224, batch 32", True, 10, None, metric(name))
    for name in ("local Lipschitz estimate", "pixel flipping"):
        yield Goal(f"{name} against Quantus", True, 1, None, metric(name))


def verdicts(parts: Parts) -> list[dict[str, Any]]:
    """What the measurements say about every goal."""
    return [goal.judge(parts) for goal in goals()]


def judged(parts: Parts) -> Table:
    """The goals as a table: a line per measurement."""
    records = verdicts(parts)
    found = []
    for r in records:
        if not r["measured"]:
            found.append([r["what"], r["goal"], r["stretch"], "", "–", "", r["verdict"]])
        for i, (where, value) in enumerate(r["measured"].items()):
            low, high = r["range"][where]
            spread = f"{number(low)} to {number(high)}" if low < high else ""
            goal = [r["what"], r["goal"], r["stretch"]] if i == 0 else ["", "", ""]
            found.append([*goal, where, number(value), spread, r["verdicts"][where]])
    count = {met: sum(1 for r in records if r["met"] is met) for met in (True, False, None)}
    sums = f"{count[True]} goals met, {count[False]} missed, {count[None]} not measured"
    note = f"{sums}: the worst measurement of a goal decides. Medians of the rounds, and their range."
    return Table("Goals", ["what", "goal", "stretch", "where", "measured", "range", "verdict"], found, [note])
