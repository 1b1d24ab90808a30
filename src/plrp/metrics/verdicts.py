"""The test of an explanation: the network's own answers beside a map, and beside maps that know nothing.

The parts of the map are compared with the drops of the score when each part alone is replaced (`Occlusions`). The
*floor* are maps as smooth and as sparse that know nothing: the map itself, shifted by whole parts or permuted. The
*ceiling* is the agreement that a perfect map could reach, given how well the two replacements agree with each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plrp.explanation import UNTESTABLE, Explanation
from plrp.progress import progress
from plrp.spelling import plural
from plrp.tape.head import Headless
from plrp.tape.trace import record

from .feature_rows import pearson, spearman
from .questions import SHIFTS, Occlusions, Questions, kind_of, points_of, relevance_of_parts
from .scores import GivenTarget, Model
from .verdict_figures import verdict_figure

BETTER, CHANCE, INVERTED = "better than chance", "not clearly better than chance", "its signs are inverted"
UNDECIDED, UNMOVED = "the network does not decide", "the score does not change"
CONSTANT = "the map is constant"
_MEANING = {
    BETTER: "The map is better than chance",
    CHANCE: "The map is not clearly better than chance",
    INVERTED: "Its signs are inverted: its evidence for the score is evidence against it",
}
_NUMBERS = tuple("rho r percentile chance inverted floor copies blob agreement gain gain_percentile".split())

LEVEL = 0.05
"""At most this share of maps that know nothing is called better than chance."""
PERMUTATIONS = 999


@dataclass(frozen=True, repr=False)
class Verdict:
    """The network's verdict on explanations; printed, it is two sentences per sample. Tensors are float64 (batch,).

    - `rho`, `r`: rank correlation and correlation of the map's parts with the drops, which are the mean over both
      replacements; `each`: rank correlations with either replacement alone, (2, batch);
    - `percentile`: the share of the floor, in percent, that agrees less; ties count half. `floor`: the rank correlation
      that 95% of the floor stay below; `copies`: how many maps the floor has. `blob`: the rank correlation of a centred
      blob, NaN for parts without neighbours;
    - `agreement`: the rank correlation c of the two replacements' drops; `ceiling`: √(2c/(1 + c)), the most that a map
      can be expected to reach; `ceiling_of_one`: √c, for a map judged by one of them;
    - `gain`: symmetric relevance gain in units of the score, the mean over both replacements; `gain_percentile`: beside
      shifted or permuted maps, NaN unless `flip_floor=True`;
    - `relevance`, `drops`: of each sample the map's parts (parts,), and the drops (2, parts);
    - `names`: the two replacements; `own`: which of them is the explanation's own reference, if one is;
    - `passes`: forward passes that the test took, for all samples.
    """

    unit: str
    names: tuple[str, ...]
    grid: tuple[int, ...]
    score: Tensor
    rho: Tensor
    r: Tensor
    each: Tensor
    percentile: Tensor
    chance: Tensor
    inverted: Tensor
    floor: Tensor
    copies: Tensor
    blob: Tensor
    agreement: Tensor
    gain: Tensor
    gain_percentile: Tensor
    relevance: tuple[Tensor, ...]
    drops: tuple[Tensor, ...]
    own: int | None = None
    passes: int = 0

    def __len__(self) -> int:
        return len(self.score)

    @property
    def ceiling(self) -> Tensor:
        """The most that a map can be expected to reach with the mean of both replacements; NaN where c ≤ 0."""
        return (2 * self.ceiling_of_one**2 / (1 + self.agreement)).sqrt()

    @property
    def ceiling_of_one(self) -> Tensor:
        """The most that a map can be expected to reach with one replacement alone; NaN where c ≤ 0."""
        return torch.where(self.agreement > 0, self.agreement, torch.nan).sqrt()

    def judgements(self) -> list[str]:
        """Of each sample one of six: better than chance, not clearly better than chance, its signs are inverted, …"""
        return [self._judgement(sample) for sample in range(len(self))]

    def _judgement(self, sample: int) -> str:
        relevance, drops = self.relevance[sample], self.drops[sample]
        rounding = bool((drops == drops[:, :1]).all()) and float(drops.abs().max()) <= 1e-5 * abs(self.score[sample])
        if rounding or not bool(drops.any()):
            return UNMOVED
        if torch.allclose(relevance, relevance[:1], atol=0):
            return CONSTANT
        if not float(self.agreement[sample]) > 0:
            return UNDECIDED
        if float(self.chance[sample]) <= LEVEL:
            return BETTER
        return INVERTED if float(self.inverted[sample]) <= LEVEL else CHANCE

    def words(self, sample: int = 0) -> str:
        """One sample's verdict, in two sentences."""
        judged, parts = self._judgement(sample), plural(len(self.relevance[sample]), self.unit)
        one, two = self.names
        if judged == UNMOVED:
            return (
                f"The score does not change whichever of the {parts} is replaced ({one}; {two}). Either the model "
                "ignores this input, or the replacements equal it: there is nothing to believe or to doubt."
            )
        if judged == CONSTANT:
            return f"The map gives each of the {parts} the same relevance. There is nothing to compare."
        if judged == UNDECIDED:
            c = float(self.agreement[sample])
            how = "one of the two never changes the score" if math.isnan(c) else f"they agree by {_short(c)}"
            answers = f"its answers to {one} and to {two} do not go together: {how} over {parts}"
            return f"The network does not decide: {answers}. No map can be judged by them."
        n, blob, rank = (float(one[sample]) for one in (self.copies, self.blob, self.gain_percentile))
        copies = "shifted copies" if self.grid and n < PERMUTATIONS else "permutations"
        beside = f"{float(self.percentile[sample]):.0f}% of its {n:.0f} {copies} agree less"
        beside += "" if math.isnan(blob) else f", a centred blob has {_short(blob)}"
        first = f"Agreement with the network over {parts}: {_short(self.rho[sample])} ({beside}; at most "
        first += f"{_short(self.ceiling[sample])} can be expected)"
        if self.own is not None:
            other = 1 - self.own
            first += f", by {self.names[other]}, not its own reference, {_short(self.each[other, sample])}"
        gain = f"flipping by relevance gains {float(self.gain[sample]):.3g} in the score"
        gain += "" if math.isnan(rank) else f", more than {rank:.0f}% of maps that know nothing"
        return f"{first}. {_MEANING[judged]}; {gain}."

    def __repr__(self) -> str:
        shown = [self.words(sample) for sample in range(min(8, len(self)))]
        lines = shown if len(self) == 1 else [f"sample {sample}: {words}" for sample, words in enumerate(shown)]
        return "\n".join(lines + ["…"] * (len(self) > 8))

    def facts(self, sample: int = 0) -> dict[str, Any]:
        """One sample's words and numbers as plain data, for tables, files and pages; None where there is no number."""
        numbers = {name: _plain(getattr(self, name)[sample]) for name in (*_NUMBERS, "ceiling")}
        lists = {name: _plain(getattr(self, name)[sample]) for name in ("relevance", "drops")}
        about = {"unit": self.unit, "names": list(self.names), "grid": list(self.grid)}
        return {"judgement": self._judgement(sample), "words": self.words(sample), **numbers, **about, **lists}

    def figure(self, sample: int = 0, labels: Sequence[str] | None = None, picture: Any = None) -> Any:
        """The map beside the measured drops, part by part, as a matplotlib figure.

        labels: of the parts, such as the texts of tokens. picture: drawn under the tiles, (height, width, 3).
        """
        return verdict_figure(self, sample, labels, picture)


def _short(value: Any) -> str:
    """A correlation with two digits, −.12 or .98."""
    number = float(value)
    shown = f"{number:.2f}".replace("0.", ".", 1) if abs(number) < 0.995 else f"{number:.0f}"
    return shown.replace("-", "−")


def _plain(value: Any) -> Any:
    """A tensor or nested lists as plain data, with None for numbers that are not finite."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- floor, and all of it together ------------------------------------------------------------------------------------


def floor_orders(grid: tuple[int, ...], count: int, seed: int = 0) -> Tensor:
    """Which part each part of a map takes its relevance from, in maps that know nothing: int64 (copies, parts).

    All shifts of the grid of parts, each part going round; or, without a grid or with fewer than 19 shifts, random
    permutations.
    """
    if math.prod(grid) == count > SHIFTS:
        parts, axes = torch.arange(count).reshape(grid), tuple(range(len(grid)))
        return torch.stack([parts.roll(shift, axes).flatten() for shift in np.ndindex(*grid)][1:])
    random = np.random.default_rng([seed, count])
    return torch.from_numpy(np.stack([random.permutation(count) for _ in range(PERMUTATIONS)]))


def centred_blob(grid: tuple[int, ...]) -> Tensor:
    """Parts that are the stronger the nearer they are to the middle, (parts,)."""
    along = [((torch.arange(n, dtype=torch.float64) + 0.5) / n - 0.5) ** 2 for n in grid]
    return -torch.cartesian_prod(*along).reshape(math.prod(grid), -1).sum(1)


def rank_among(value: float, others: Tensor) -> tuple[float, float, float]:
    """The share of others below a value in percent, and the chances of such a high, and of such a low value.

    Ties count half. A chance counts the value itself: (1 + others at least as high) / (1 + others).
    """
    equal = torch.isclose(others, torch.tensor(value, dtype=others.dtype), rtol=0, atol=1e-12)
    below, ties = float(((others < value) & ~equal).sum()), float(equal.sum())
    above, n = len(others) - below - ties, len(others)
    return 100 * (below + ties / 2) / n, (1 + above + ties / 2) / (n + 1), (1 + below + ties / 2) / (n + 1)


def judged(relevance: Any, occlusions: Occlusions, seed: int = 0) -> Verdict:
    """The verdict of measured drops on a map (batch, …) of the same inputs; no forward pass, and no flipping gain."""
    parts = relevance_of_parts(relevance, occlusions.number)
    columns: dict[str, list[float]] = {name: [] for name in _NUMBERS}
    each = torch.full((2, len(parts)), torch.nan, dtype=torch.float64)
    for sample, (own, drops) in enumerate(zip(parts, occlusions.drops, strict=True)):
        mean, row = drops.mean(0), dict.fromkeys(_NUMBERS, math.nan)
        row["rho"], row["r"] = float(spearman(own[None], mean[None])), float(pearson(own[None], mean[None]))
        each[:, sample] = spearman(own.repeat(len(drops), 1), drops)
        row["agreement"] = float(spearman(drops[:1], drops[1:]))
        if not math.isnan(row["rho"]):
            copies = own[floor_orders(occlusions.grid, len(own), seed)]
            others = spearman(copies, mean.repeat(len(copies), 1))
            row["percentile"], row["chance"], row["inverted"] = rank_among(row["rho"], others)
            row["floor"], row["copies"] = float(others.quantile(1 - LEVEL)), len(others)
        if math.prod(occlusions.grid) == len(own) > 2:
            row["blob"] = float(spearman(centred_blob(occlusions.grid)[None], mean[None]))
        for name, column in columns.items():
            column.append(row[name])
    numbers: dict[str, Any] = {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}
    about = {name: getattr(occlusions, name) for name in ("unit", "names", "grid", "score", "drops")}
    return Verdict(**about, **numbers, each=each, relevance=tuple(parts))


def flipped(verdict: Verdict, questions: Questions, floor: bool) -> Verdict:
    """The verdict with its flipping gains; `floor`: beside those of maps that know nothing."""
    gain, percentile = torch.full((2, len(verdict)), torch.nan, dtype=torch.float64)
    for sample, own in enumerate(verdict.relevance):
        orders = floor_orders(verdict.grid, len(own), questions.seed)
        some = torch.linspace(0, len(orders) - 1, SHIFTS * floor).round().long()
        gains = questions.gains(sample, torch.cat([own[None], own[orders[some]]])).mean(0)
        gain[sample] = gains[0]
        percentile[sample] = rank_among(float(gains[0]), gains[1:])[0] if floor else torch.nan
    return replace(verdict, gain=gain, gain_percentile=percentile)


def ask(
    model: Model,
    inputs: Tensor,
    relevance: Any,
    *,
    target: GivenTarget = None,
    **settings: Any,
) -> Verdict:
    """Ask the network whether relevance is true: a `Verdict`, two sentences per sample when printed.

    - `model`, `target`: whose score is explained; `inputs`: (batch, …), `relevance` of the same shape;
    - `flip_floor=True`: compare the flipping gain with that of 19 maps that know nothing, for more forward passes than
      all the rest (`Questions.floor_passes`); `show_progress`: None is a bar after two seconds;
    - `reference`: the name of the reference that was explained against, which is then no independent judge;
    - `settings`: those of `Questions`: `budget` (128 forward passes per sample), `replacements`, `data`, `mask`, …

    >>> model, x = torch.nn.Linear(16, 1), torch.arange(1.0, 17.0)[None]
    >>> ask(model, x, x * model.weight.detach(), data=torch.zeros(2, 16)).judgements()
    ['better than chance']
    """
    how = {name: settings.pop(name) for name in ("flip_floor", "reference", "show_progress") if name in settings}
    return _answered(Questions(model, inputs, target=target, **settings), [relevance], **how)[0]


def ask_about(explanation: Explanation, *others: Any, **options: Any) -> list[Verdict]:
    """Ask the model of an explanation whether its relevance is true, and other maps of the same score: see `ask`.

    `Explanation.test` gives the first verdict; each other map costs the passes of its flipping curves alone.
    """
    if explanation._source is None:
        raise ValueError(UNTESTABLE)
    if explanation._whole or explanation._groups is not None:
        raise ValueError("The test asks about samples along the first axis, and this model has no batch axis.")
    how: dict[str, Any] = {name: options.pop(name) for name in ("flip_floor", "show_progress") if name in options}
    model, inputs = explanation._source.asked()
    kind_of(inputs)  # refuses several inputs
    with explanation._source.same_walk():
        whole = model
        if explanation.head is not None:  # two passes
            whole = Headless(model, record(model, inputs[:1]))
        how["reference"] = None if explanation.reference is None else explanation.reference.name
        known = {"target": explanation.target, "outputs": explanation.logits, "passed": 2 * (whole is not model)}
        return _answered(Questions(whole, inputs, **known, **options), [explanation.relevance, *others], **how)


def _answered(
    questions: Questions,
    maps: Sequence[Any],
    flip_floor: bool = False,
    reference: str | None = None,
    show_progress: bool | None = False,
) -> list[Verdict]:
    """Ask all questions, and judge each map by the answers."""
    for relevance in maps:  # refuses a wrong map before anything is asked
        relevance_of_parts(relevance, questions.number)
    flips = max((4 * len(points_of(count)) for count in questions.counts), default=0)
    each = questions.passes + flips * (len(maps) - 1) + questions.floor_passes * len(maps) * flip_floor
    note, total = f"{each} forward passes per sample", each * len(questions.inputs)
    with progress("asking the network", total, show_progress, note=note, transient=True, after=2.0) as questions.step:
        answers = questions.occlusions()
        verdicts = [flipped(judged(one, answers, questions.seed), questions, flip_floor) for one in maps]
    kinds = [reference_kind(name) for name in questions.names]
    kind = None if reference is None else reference_kind(reference)
    own = kinds.index(kind) if kind in kinds else None
    return [replace(verdict, own=own, passes=questions.passed) for verdict in verdicts]


def reference_kind(reference: str) -> str:
    """The kind of a reference by its name: `blur` of `blur:8`."""
    kind = reference.partition(":")[0].split(" of ")[0]
    return {"N": "zeros", "shuffled": "shuffle", "mask": "mask token", "samples": "a drawn sample"}.get(kind, kind)
