"""Asking the network about its input, part by part: the perturbed inputs behind the test of an explanation.

A *part* is a tile of an image, a window of a sequence, a token or a feature. Every question replaces parts, in one of
two ways, and reads the score. `Questions` knows beforehand how many forward passes its answers cost. The answers of
`Questions.occlusions` do not depend on any explanation: many maps of the same samples are judged by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from plrp.references import Reference, References, blur, grey, mean, samples, shuffled, zeros
from plrp.spelling import plural
from plrp.tape.values import replaced
from plrp.targets import Target, as_target

from .faithfulness import ranking
from .feature_rows import as_map, check_finite
from .regions import row_by_row
from .scores import GivenTarget, Model, predict

Kind = Literal["image", "sequence", "signal", "tokens", "table"]
Replacement = Any
"""A reference as `plrp.explain` takes it; for tokens also `"delete"`, and `"drawn"`: other tokens of the same text."""

POINTS = 7
"""Inner points of a flipping curve; both ends are the same for every order, so that they cost nothing."""
SHIFTS = 19
"""Maps that know nothing whose flipping curves are measured with `flip_floor=True`."""
SPARE = 2
"""Passes on unperturbed inputs: for the score, or to recognise the model's head; of tokens one more, for a deletion."""
LEAST = 49
"""Tiles of an image that the budget must allow, 7 x 7, unless the image has fewer pixels."""
DRAWS = 8
"""Shuffles or drawn samples; each part takes its values from the one that differs there most."""

UNITS = {"image": "tile", "sequence": "window", "signal": "window", "tokens": "token", "table": "feature"}


@dataclass(frozen=True)
class Occlusions:
    """By how much the score falls when one part alone is replaced, for every sample and by either replacement.

    - `unit`: the name of a part (`"tile"`); `names`: the two replacements;
    - `score`: f(x), float64 (batch,);
    - `number`: every position's part, int64 (batch, *space), −1 where a position belongs to none;
    - `grid`: the number of parts along each axis, or () where parts have no neighbours: tokens and features;
    - `drops`: of each sample f(x) − f(x with the part replaced), float64 (2, parts).
    """

    unit: str
    names: tuple[str, ...]
    score: Tensor
    number: Tensor
    grid: tuple[int, ...]
    drops: tuple[Tensor, ...]


def relevance_of_parts(relevance: Any, number: Tensor) -> list[Tensor]:
    """The sum over each part, of each sample float64 (parts,); relevance is (batch, *space), or has channels too."""
    values = as_map(relevance, None).cpu().double()
    if values.dim() == number.dim() + 1:
        values = values.sum(1)
    if values.shape != number.shape:
        raise ValueError(
            f"relevance of shape {tuple(relevance.shape)} does not fit parts of shape {tuple(number.shape)}: it needs "
            "the shape of the inputs."
        )
    check_finite(values.flatten(1).sum(1))
    rows = []
    for own, where in zip(values, number.cpu(), strict=True):
        sums = torch.zeros(int(where.max()) + 2, dtype=torch.float64)
        rows.append(sums.index_add(0, where.flatten() + 1, own.flatten())[1:])
    return rows


class Questions:
    """The questions to the network about a batch of inputs; nothing is asked before `occlusions` and `gains`.

    - `model`, `target`: as for the other metrics; the target is fixed by the unperturbed inputs;
    - `budget`: forward passes per sample, at most; `passes` is how many it will be;
    - `replacements`: two, each a reference as `plrp.explain` takes it, or for tokens `"delete"`, `"drawn"`. None: blur
      and grey for images and signals; a shuffle and N for one-hot sequences; for tokens the mask token (`mask`:
      `references.mask_token(103)`) and deletion, or drawn tokens in place of either that does not serve; for tables the
      mean and a drawn sample of `data` (samples, features);
    - `parts`: the number of every position's part, integers (*space) or (batch, *space), −1 for none. None: as many
      equal tiles or windows as the budget allows; tokens and features by themselves;
    - `batch_size`: perturbed inputs that exist at a time; None chooses by the size of a sample;
    - `outputs`: the model's outputs for the inputs, where they are known already; `passed`: passes made before.
    """

    def __init__(
        self,
        model: Model,
        inputs: Tensor,
        *,
        target: GivenTarget = None,
        budget: int = 128,
        replacements: Sequence[Replacement] | None = None,
        data: Tensor | None = None,
        mask: Reference | None = None,
        parts: Tensor | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        outputs: Any = None,
        passed: int = 0,
    ) -> None:
        self.kind = kind_of(inputs)
        self.model, self.inputs, self.seed, self.outputs = model, inputs.detach(), seed, outputs
        self.passed = passed  # forward passes so far, of single inputs
        self.step: Callable[[float], object] = lambda passes: None  # hears of them
        self.channels = self.kind in ("image", "sequence", "signal")
        self.target = as_target(target)
        self.target.check_batch(len(inputs))
        size = math.prod(inputs.shape[1:]) * (1000 if self.kind == "tokens" else 1)
        self.batch_size = batch_size or max(1, min(256, 5_000_000 // max(1, size)))
        self.number, self.grid = self._parts(budget, mask, parts)
        self.counts = [int(one.max()) + 1 for one in self.number]
        self._check_parts(budget)
        self.unit = UNITS[self.kind]
        if self.kind == "sequence" and max(self.counts, default=0) == inputs.shape[-1]:
            self.unit = "base"
        self.replacements = self._replacements(replacements, data, mask)
        self.names = tuple(_name(one) for one in self.replacements)
        self.bound: dict[int, tuple[Target, float]] = {}  # of each sample, with f(x), once the model has seen it

    @property
    def passes(self) -> int:
        """Forward passes per sample for occlusions and one flipping curve, at most; in all never above the budget."""
        return max((cost(self.kind, count) for count in self.counts), default=0)

    @property
    def floor_passes(self) -> int:
        """Forward passes per sample that a floor of flipping curves costs besides."""
        return SHIFTS * max((4 * len(points_of(count)) for count in self.counts), default=0)

    # --- parts ---

    def _parts(self, budget: int, mask: Reference | None, given: Tensor | None) -> tuple[Tensor, tuple[int, ...]]:
        """Every position's part, int64 (batch, *space), and the grid that the parts form."""
        space = self.inputs.shape[2 if self.channels else 1 :]
        batch, device = len(self.inputs), self.inputs.device
        if given is not None:
            number = given.to(device, torch.long)
            if number.shape not in (space, (batch, *space)):
                raise ValueError(
                    f"parts are (*space) or (batch, *space), here {tuple(space)}; got {tuple(given.shape)}."
                )
            return number.expand(batch, *space), ()
        most = affordable(self.kind, budget)
        if self.kind == "table":
            return torch.arange(space[0], device=device).expand(batch, *space), ()
        if self.kind == "tokens":
            usable = torch.ones_like(self.inputs, dtype=torch.bool)
            if mask is not None:
                (masked,) = References.given(mask, self.inputs, equal=True).each[0]
                usable = masked != self.inputs
            number = torch.where(usable, usable.cumsum(1) - 1, -1)
            counts = usable.sum(1, keepdim=True)
            return torch.where(usable & (counts > most), number * most // counts.clamp(min=1), number), ()
        grid = grid_of(space, most)
        along = [torch.arange(n, device=device) * k // n for n, k in zip(space, grid, strict=True)]
        return row_by_row(along).expand(batch, *space), grid

    def _check_parts(self, budget: int) -> None:
        unit, fewest = UNITS[self.kind], min(self.counts, default=2)
        image = self.kind == "image" and bool(self.grid)
        needed = max(2, min(LEAST, math.prod(self.inputs.shape[2:]))) if image else 2
        if affordable(self.kind, budget) >= needed and fewest < 2:
            raise ValueError(
                f"Sample {self.counts.index(fewest)} has {plural(max(fewest, 0), unit)} to replace, and a comparison "
                "needs two or more: there is nothing to test."
            )
        needed = max(needed, *self.counts, 2) if affordable(self.kind, budget) >= needed else needed
        if cost(self.kind, needed) > budget:
            price = f"{needed} {unit}s need {cost(self.kind, needed)} forward passes per sample"
            raise ValueError(f"budget={budget} is too small: {price}.")

    # --- replacements ---

    def _replacements(
        self, given: Sequence[Replacement] | None, data: Tensor | None, mask: Reference | None
    ) -> list[Replacement]:
        if given is not None:
            if isinstance(given, str) or len(given) != 2:
                raise ValueError(f"replacements are two, so that the answer does not hang on one; got {given!r}.")
            return list(given)
        if self.kind == "tokens":
            usual: list[Replacement] = [] if mask is None else [mask]
            usual += ["delete"] if self._may_delete() else []
            if not usual:
                raise ValueError(
                    "The model reads texts of this length only, so that no token can be deleted: give a mask token, "
                    "mask=references.mask_token(tokenizer)."
                )
            return [*usual, "drawn"][:2]
        if self.kind == "table":
            if data is None:
                raise ValueError(
                    "The features of a table are replaced by their mean and by a drawn sample: give data=, inputs "
                    "(samples, features) like the explained ones."
                )
            drawn = samples(data, min(DRAWS, len(data)), self.seed)
            return [mean(data), Reference("a drawn sample", drawn.make)]
        if self.kind == "sequence":
            # by single bases: dinucleotides never move the first and the last base
            return [Reference("shuffle", shuffled(DRAWS, False, self.seed).make), Reference("N", zeros().make)]
        space = self.inputs.shape[2:]
        return [blur(max(1.0, min(n / k for n, k in zip(space, self.grid or space, strict=True)) / 4)), grey()]

    def _may_delete(self) -> bool:
        """Whether the model reads a shorter text, and the score names no position; takes one forward pass."""
        try:
            shorter = self.output(self.inputs[:1, 1:])
            return isinstance(shorter, Tensor) and self.inputs.shape[1] - 1 not in shorter.shape[1:-1]
        except Exception:  # the model's own error, whatever it is: it does not read such a text
            return False

    def _baseline(self, sample: int, which: int) -> Tensor | None:
        """The values that replace the parts of a sample, in its shape; None: they are deleted."""
        given, x, number = self.replacements[which], self.inputs[sample], self.number[sample]
        if isinstance(given, str) and given == "delete":
            return None
        if isinstance(given, str) and given == "drawn":
            usable = number >= 0
            random = np.random.default_rng([self.seed, int(usable.sum())])
            stack = x.expand(DRAWS, *x.shape).clone()
            for row in stack:
                row[usable] = x[usable][torch.from_numpy(random.permutation(int(usable.sum()))).to(x.device)]
        else:
            each = isinstance(given, Tensor) and given.shape == self.inputs.shape
            one = given[sample : sample + 1] if each else given
            stack = torch.cat([inputs[0] for inputs in References.given(one, x[None], equal=True).each])
        return _most_different(x, stack, number, self.channels)

    # --- questions and answers ---

    def output(self, inputs: Tensor) -> Any:
        """The model's output; the passes are counted."""
        output = predict(self.model, inputs)
        self.passed += len(inputs)
        self.step(len(inputs))
        return output

    def _output_of(self, one: slice) -> Any:
        if self.outputs is None:
            return self.output(self.inputs[one])
        return replaced(self.outputs, lambda tensor: tensor[one], of=Tensor)

    def scores(self, sample: int, baseline: Tensor | None, missing: Tensor) -> Tensor:
        """The scores, float64 (n,), of a sample whose positions `missing`, bool (n, *space), are replaced."""
        x, result = self.inputs[sample], torch.empty(len(missing), dtype=torch.float64)
        lengths = (~missing).flatten(1).sum(1) if baseline is None else torch.zeros(len(missing), device=missing.device)
        for length in lengths.unique().tolist():
            for rows in (lengths == length).nonzero()[:, 0].split(self.batch_size):
                if baseline is None:
                    changed = x.expand(len(rows), *x.shape)[~missing[rows]].reshape(len(rows), -1)
                else:
                    hole = missing[rows][:, None] if self.channels else missing[rows]
                    changed = torch.where(hole, baseline, x)
                scores = self.asked(sample)[0].of([0] * len(rows)).score(self.output(changed))
                result[rows.cpu()] = scores.detach().double().cpu()
        return result

    def asked(self, sample: int) -> tuple[Target, float]:
        """The target of a sample, held fixed, and its score."""
        if sample not in self.bound:
            output = self._output_of(slice(sample, sample + 1))
            target = self.target.of([sample]).bound(output)
            self.bound[sample] = target, float(target.score(output)[0])
        return self.bound[sample]

    def occlusions(self) -> Occlusions:
        """Replace one part after the other."""
        score, drops = [], []
        for sample, (count, number) in enumerate(zip(self.counts, self.number, strict=True)):
            missing = number == torch.arange(count).reshape(-1, *[1] * number.dim()).to(number)
            score.append(self.asked(sample)[1])
            answers = [self.scores(sample, self._baseline(sample, which), missing) for which in range(2)]
            drops.append(score[-1] - torch.stack(answers))
        totals = torch.tensor(score, dtype=torch.float64)
        return Occlusions(self.unit, self.names, totals, self.number.cpu(), self.grid, tuple(drops))

    def gains(self, sample: int, orders: Tensor) -> Tensor:
        """Symmetric relevance gain of maps of one sample, by either replacement: float64 (2, maps).

        orders: the relevance of the parts, (maps, parts). The gain is the area between the curves with the least and
        with the most relevant parts replaced first, over the share of replaced parts.
        """
        rank, count, number = ranking(orders, "random", self.seed), orders.shape[1], self.number[sample]
        points = torch.tensor(points_of(count))
        at = torch.tensor([0.0, *(points / count).tolist(), 1.0], dtype=torch.float64)
        gains = torch.zeros(2, len(orders), dtype=torch.float64)
        for which in range(2):
            baseline = self._baseline(sample, which)
            for row in range(len(orders)):
                places = torch.stack([rank[order][row] for order in ("least", "most")]).to(number.device)
                ahead = places[:, None] < points.to(number.device)[:, None]  # (order, point, part)
                missing = torch.cat([ahead, torch.zeros_like(ahead[..., :1])], -1)[..., number]  # part −1 stays
                scores = self.scores(sample, baseline, missing.flatten(0, 1)).reshape(2, -1)
                between = torch.nn.functional.pad(scores[0] - scores[1], (1, 1))
                gains[which, row] = torch.trapezoid(between, at)
        return gains


def kind_of(inputs: Any) -> Kind:
    """The kind of an input, by its shape and dtype."""
    if not isinstance(inputs, Tensor):
        raise ValueError(
            f"The test asks about one input, and this model has {len(inputs)}: wrap the model so that the others are "
            "held fixed."
        )
    shape, real = tuple(inputs.shape), inputs.is_floating_point()
    if len(shape) < 2 or (not real and len(shape) > 2):
        raise ValueError(
            f"The test asks about images, sequences (batch, letters, length), token ids (batch, tokens) and tables "
            f"(batch, features); this input is {inputs.dtype}, {shape}."
        )
    if len(shape) == 2:
        return "table" if real else "tokens"
    onehot = len(shape) == 3 and shape[1] > 1 and bool(((inputs == 0) | (inputs == 1)).all())
    if onehot and bool((inputs.sum(1) <= 1).all()):
        return "sequence"
    return "signal" if len(shape) == 3 else "image"


def cost(kind: Kind, count: int) -> int:
    """Forward passes, at most, for the occlusions of so many parts and a flipping curve, both by two replacements."""
    return SPARE + (kind == "tokens") + 2 * count + 4 * len(points_of(count))


def affordable(kind: Kind, budget: int) -> int:
    """The most parts that a budget of forward passes per sample allows."""
    return max((count for count in range(1, budget // 2 + 1) if cost(kind, count) <= budget), default=1)


def grid_of(space: Sequence[int], most: int) -> tuple[int, ...]:
    """At most so many nearly square tiles that cover a space: their number along each axis."""
    longest = max(space)
    grids = (tuple(max(1, round(along * n / longest)) for n in space) for along in range(longest, 0, -1))
    return next((grid for grid in grids if math.prod(grid) <= most), (1,) * len(space))


def points_of(count: int) -> list[int]:
    """How many parts are replaced at the inner points of a flipping curve."""
    return sorted({round(count * k / (POINTS + 1)) for k in range(1, POINTS + 1)} - {0, count})


def _name(replacement: Replacement) -> str:
    if isinstance(replacement, str | Reference):
        return {"delete": "deletion", "drawn": "other tokens"}.get(str(replacement), str(replacement))
    return "a tensor" if isinstance(replacement, Tensor) else str(getattr(replacement, "__name__", "a callable"))


def _most_different(x: Tensor, stack: Tensor, number: Tensor, channels: bool) -> Tensor:
    """For each part the values of that one of several baselines (K, …) which differs from x at most positions there."""
    if len(stack) == 1:
        return stack[0]
    other = (stack != x).any(1) if channels else stack != x
    sums = torch.zeros(len(stack), int(number.max()) + 2, device=x.device)
    sums = sums.index_add(1, number.flatten() + 1, other.flatten(1).float())
    best = torch.from_numpy(sums.cpu().numpy().argmax(0)).to(x.device)[number + 1]  # the first of several
    return stack.gather(0, (best[None] if channels else best).expand_as(x)[None])[0]
