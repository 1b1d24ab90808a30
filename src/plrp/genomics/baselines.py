"""Other methods for the same score: in-silico mutagenesis (ISM), gradient × input, DeepLIFT; and which to trust.

ISM is the bench of truth: it asks the network itself for its score with another letter, one letter at a time. Where an
explanation disagrees with it on your network, believe ISM. ISM has a blind spot: if a sequence has the same evidence
twice, neither copy alone matters much.

All methods take the score that `explain_sequences` explains: the model's head, a final softmax or exp for example, is
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plrp.metrics.feature_rows import pearson, spearman
from plrp.metrics.verdicts import LEVEL
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.references import shuffled
from plrp.settings import AGAINST
from plrp.tables import render_table
from plrp.tape.head import Headless
from plrp.tape.refusals import device_of
from plrp.tape.trace import record
from plrp.targets import Target, as_target

from .attribution import (
    Attribution,
    Device,
    Model,
    _onehot,
    batch_size_for,
    explain_batches,
    explain_sequences,
    joined,
    pruning_title,
    strand_targets,
)
from .logo import logo_page
from .sequence_settings import COMPOSITE, SHUFFLED, ReferenceSettings
from .sequences import Floats, Ints, OneHot, Values, decode


class ScoreModel(nn.Module):
    """The explained score as a model with a graph: (batch, 4, length), and sequence numbers (batch,), to (batch, 1).

    `example` is one input, from which the model's head is recognised. A target with a class per sequence takes that of
    each number.
    """

    def __init__(self, model: Model, target: Target, example: Tensor) -> None:
        super().__init__()
        trace = record(model, example)
        self.outputs, self.target = Headless(model, trace), target
        self.training = self.outputs.training

    def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
        """The score of every sample, (batch, 1)."""
        return self.target.of(numbers).score(self.outputs(x))[:, None]


class _Task:
    """Sequences in batches, and their score: that of the target, or of the class that wins on each sequence."""

    def __init__(self, model: Model, sequences: Any, target: Any, batch_size: int, device: Any) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: at least one sequence a batch.")
        self.onehot, self.where = _onehot(sequences), device_of(model, device)
        self.batches = [slice(k, k + batch_size) for k in range(0, len(self.onehot), batch_size)]
        asked = as_target(strand_targets(target)[0])
        asked.check_batch(len(self.onehot))
        self.score = ScoreModel(model, asked, self.x(slice(1)))
        self.score.target = asked.fixed(self._winners)

    def x(self, rows: slice) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.onehot[rows])).to(self.where)

    def _winners(self) -> Tensor:
        with torch.no_grad():
            classes = [Target().bound(self.score.outputs(self.x(rows))).given for rows in self.batches]
        return torch.cat(classes or [torch.zeros(0, dtype=torch.long, device=self.where)])

    def scores(self, x: Tensor, first: int) -> Tensor:
        """The scores (sequence,) of sequences with the numbers from `first` on."""
        score: Tensor = self.score(x, torch.arange(first, first + len(x), device=self.where))
        return score[:, 0]

    @property
    def classes(self) -> Ints:
        """The class that is explained of every sequence; −1 where the target is not a class."""
        given = self.score.target.given
        if isinstance(given, Tensor):
            return np.asarray(given.cpu().numpy(), np.int64)
        return np.full(len(self.onehot), given if isinstance(given, int) else -1, np.int64)


def winning_classes(model: nn.Module, onehot: OneHot) -> Ints:
    """The class with the highest score of every sequence, (sequence,)."""
    return _Task(model, onehot, None, batch_size_for(onehot.shape[2]), None).classes


@dataclass(frozen=True)
class Mutations:
    """How the score changes when one base is replaced: `change` (sequence, letter, position), 0 for the present letter.

    `onehot`, `score` (sequence,) and `target` are as in `Attribution`.
    """

    change: Values
    onehot: OneHot
    score: Values
    target: Ints

    def __len__(self) -> int:
        return len(self.change)

    def ceiling(self) -> Floats:
        """The rank correlation with `per_base` that a perfect map can be expected to reach, (sequence,).

        √(3c / (1 + 2c)), where c is the mean rank correlation of the three mutations of a base; 0 where c ≤ 0.
        """
        others = (self.onehot.argmax(1)[:, None] + np.arange(1, 4)[:, None]) % 4
        drops, known = np.take_along_axis(self.change, others, 1), self.onehot.sum(1) == 1
        each = [
            torch.tensor(one[:, k].tolist()) if k.any() else torch.zeros(3, 1)
            for one, k in zip(drops, known, strict=True)
        ]
        c = np.array([float(spearman(one, one.roll(1, 0)).mean().nan_to_num()) for one in each]).clip(0)
        return np.sqrt(3 * c / (1 + 2 * c))

    def per_base(self) -> Values:
        """The worth of a base: the score minus its mean over the three other letters there; 0 for N."""
        known = self.onehot.sum(1) == 1
        return np.where(known, -self.change.sum(1) / 3, 0).astype(np.float32)

    def attribution(self) -> Attribution:
        """The same as the result of other methods: `per_base` at the present letter, 0 at the others."""
        return Attribution(self.onehot * self.per_base()[:, None], self.onehot, self.score, self.target)


def ism(
    model: Model,
    sequences: Any,
    *,
    target: Any = None,
    batch_size: int = 256,
    device: Device = None,
    show_progress: bool | None = False,
) -> Mutations:
    """In-silico mutagenesis, exact: every base of every sequence replaced by each of the three other letters.

    A sequence takes 3 · length forward passes, `batch_size` at a time. All mutants are scored for the class that wins
    on the original sequence, or for `target`, as in `explain_sequences`. For a file of thousands of sequences take
    `explain_file(..., method="ism")`, which resumes where it was interrupted.

    >>> from torch.nn import Conv1d, Flatten, Linear, ReLU, Sequential
    >>> network = Sequential(Conv1d(4, 3, 5), ReLU(), Flatten(), Linear(18, 2)).eval()
    >>> ism(network, ["ACGTACGTAC"]).change.shape
    (1, 4, 10)
    """
    task = _Task(model, sequences, target, batch_size, device)
    onehot = task.onehot
    count = len(onehot)
    change = np.zeros(onehot.shape, np.float32)
    score = np.zeros(count, np.float32)
    with progress("mutating", count, show_progress) as step, torch.no_grad():
        for k in range(count):
            original = task.x(slice(k, k + 1))[0]
            letters, places = np.nonzero(onehot[k] == 0)
            base = float(task.scores(original[None], k))
            score[k] = base
            for begin in range(0, len(letters), batch_size):
                letter, place = letters[begin : begin + batch_size], places[begin : begin + batch_size]
                row = np.arange(len(letter))
                mutants = original.repeat(len(letter), 1, 1)
                mutants[row, :, place] = 0
                mutants[row, letter, place] = 1
                scores = task.score(mutants, torch.full((len(row),), k, device=task.where))[:, 0]
                change[k, letter, place] = (scores - base).float().cpu().numpy()
            step(1)
    return Mutations(change, onehot, score, task.classes)


def gradient_input(
    model: Model, sequences: Any, *, target: Any = None, batch_size: int = 128, device: Device = None
) -> Attribution:
    """The gradient of the score, times the input."""
    task = _Task(model, sequences, target, batch_size, device)

    parts = []
    for rows in task.batches:
        x = task.x(rows).requires_grad_()
        with torch.enable_grad():
            score = task.scores(x, rows.start)
            (gradient,) = torch.autograd.grad(score.sum(), x)
        relevance, scores = (one.detach().float().cpu().numpy() for one in (gradient * x, score))
        parts.append(Attribution(relevance, task.onehot[rows], scores, task.classes[rows]))
    return joined(parts, task.onehot)


def deeplift(model: Model, sequences: Any, *, shuffles: int = 20, seed: int = 0, **settings: Any) -> Attribution:
    """DeepLIFT with dinucleotide-shuffled references: `explain_sequences` against them; `settings` are its keywords.

    It is tangermeme's where tangermeme is right, and knows every operation that has a difference form.
    """
    return explain_sequences(model, sequences, reference=shuffled(shuffles, seed=seed), **settings)


METHODS: dict[str, Callable[..., Attribution]] = {
    "lrp": explain_sequences,
    "ism": lambda *args, **options: ism(*args, **options).attribution(),
    "gradient-input": gradient_input,
    "deeplift": deeplift,
}
"""Attribution by method; all take a model, sequences, `target`, `batch_size` and `device`."""


def attribute_by(
    method: str | None,
    model: Model,
    onehot: OneHot,
    *,
    target: Any = None,
    batch_size: int | None = None,
    device: Device = None,
    step: Callable[[int], None] = lambda count: None,
    **rules: Any,
) -> Attribution:
    """Attribution by one of `METHODS` (None: LRP); `rules`, such as `composite`, are LRP's and DeepLIFT's.

    Methods that work in batches call `step` with the number of sequences of each finished batch.
    """
    options: dict[str, Any] = {"device": device, "batch_size": batch_size}

    def counted(parts: Iterable[Attribution]) -> Iterator[Attribution]:
        for part in parts:
            yield part
            step(len(part))

    if method in (None, "lrp", "deeplift"):
        rules |= {"reference": rules.get("reference") or SHUFFLED} if method == "deeplift" else {}
        return joined(counted(explain_batches(model, onehot, target=target, **options, **rules)), onehot)
    options["batch_size"] = batch_size or batch_size_for(onehot.shape[2])
    if method != "ism":
        return METHODS[method](model, onehot, target=target, **options)
    asked = as_target(strand_targets(target)[0])
    asked.check_batch(len(onehot))
    some = [slice(k, k + 8) for k in range(0, len(onehot), 8)]
    return joined(counted(METHODS[method](model, onehot[r], target=asked.of(r), **options) for r in some), onehot)


# -- all of them, beside each other


@dataclass(frozen=True)
class Comparison:
    """The relevance that several methods give to the same sequences, for the same score.

    `per_base` by method, (sequence, position), ISM first; `refused`: the reasons of methods that could not be used;
    `ceiling`: see `Mutations.ceiling`.
    """

    letters: list[str]
    per_base: dict[str, Values]
    refused: dict[str, str]
    ceiling: Floats

    def correlation(self, method: str, *, ranks: bool = False) -> Floats:
        """Pearson's correlation with ISM over the bases of each sequence, (sequence,); Spearman's with `ranks`.

        NaN where one of them is the same everywhere, or not finite.
        """
        pair = [torch.from_numpy(self.per_base[name].astype(np.float64)) for name in ("ISM", method)]
        usable = (pair[0].isfinite() & pair[1].isfinite()).all(1)
        correlations = np.full(len(usable), np.nan)
        correlations[usable.numpy()] = (spearman if ranks else pearson)(pair[0][usable], pair[1][usable]).numpy()
        return correlations

    def floor(self, method: str) -> Floats:
        """The rank correlation with ISM that 95% of a method's map, shifted along the sequence, stay below.

        (sequence,). Shifted maps are as smooth and as sparse, and know nothing; at most 199 shifts are taken.
        """
        ism, own = (torch.tensor(np.nan_to_num(self.per_base[name])) for name in ("ISM", method))
        steps = np.unique(np.linspace(1, own.shape[1] - 1, 199).astype(int)).tolist()
        shifted = torch.stack([spearman(own.roll(step, 1), ism) for step in steps])
        return np.where(np.isnan(self.correlation(method)), np.nan, shifted.quantile(1 - LEVEL, 0).numpy())

    def table(self) -> list[tuple[str, ...]]:
        """Method, means of Pearson's and of Spearman's correlation with ISM, and of the floor of the latter."""
        rows = []
        for name in list(self.per_base)[1:]:
            numbers = self.correlation(name), self.correlation(name, ranks=True), self.floor(name)
            rows.append((name, *(f"{np.nanmean(one):.3f}" for one in numbers)))
        return rows

    def plot(
        self,
        path: str | Path | None = None,
        *,
        names: Sequence[str] | None = None,
        count: int = 3,
        window: tuple[int, int] | None = None,
    ) -> Any:
        """Logos of the first `count` sequences, a row per method, with its correlation to ISM in that sequence."""
        correlations = {name: self.correlation(name) for name in list(self.per_base)[1:]}
        page = []
        for k, letters in enumerate(self.letters[:count]):
            rows = {
                name if name == "ISM" else f"{name}\nr = {correlations[name][k]:.2f}": values[k]
                for name, values in self.per_base.items()
            }
            page.append((names[k] if names is not None else f"sequence {k}", rows, letters, ()))
        return logo_page(page, window=window, path=path)

    def __repr__(self) -> str:
        count = len(self.letters)
        title = f"correlation with ISM over the bases, mean over {count} sequence{'s' * (count != 1)}"
        refused = "".join(f"\n{name} is left out: {why}" for name, why in self.refused.items())
        table = render_table(("method", "Pearson", "Spearman", "its floor"), self.table())
        beside = "floor: 95% of the method's maps, shifted along the sequence, stay below. As far as the three letters "
        beside += f"of ISM agree with one another, {self.ceiling.mean():.3f} (Spearman) can be expected at most"
        return f"{title}\n{table}\n{beside}{refused}"


def compare_methods(
    model: Model,
    sequences: Any,
    settings: ReferenceSettings | None = None,
    *,
    show_progress: bool | None = False,
    **changes: Any,
) -> Comparison:
    """ISM, LRP, gradient × input and DeepLIFT on the same sequences, to see which to trust on this network.

    LRP and DeepLIFT are pruned, too.

    The fields of `ReferenceSettings` may be given as keywords: `target`, `composite` of LRP, `reference` of DeepLIFT
    (20 shuffles unless given), `pruning` (PLRP-λ with p = 0.05 unless given), `batch_size` and `device`. A method that
    cannot be used on the model is left out, with its reason in `Comparison.refused`.
    """
    settings = ReferenceSettings.of(settings, changes)
    pruning = Pruning() if settings.pruning is None else settings.pruning
    onehot = _onehot(sequences)
    options: dict[str, Any] = {
        "target": settings.target,
        "batch_size": settings.batch_size or batch_size_for(onehot.shape[2]),
        "device": settings.device,
    }
    mutations = ism(model, onehot, **options, show_progress=show_progress)
    if settings.target is None:
        options["target"] = mutations.target.tolist()  # the classes that win, for all methods
    per_base = {"ISM": mutations.per_base()}
    refused: dict[str, str] = {}
    lrp: dict[str, Any] = {"composite": COMPOSITE if settings.composite in AGAINST else settings.composite}
    rescale: dict[str, Any] = {"reference": settings.reference or SHUFFLED}
    rescale |= {"composite": settings.composite} if settings.composite in AGAINST else {}
    against = f"DeepLIFT, {rescale['reference']}"
    methods: list[tuple[str, str, dict[str, Any]]] = [
        ("LRP", "lrp", lrp),
        (pruning_title(pruning), "lrp", {**lrp, "pruning": pruning}),
        ("gradient × input", "gradient-input", {}),
        (against, "lrp", rescale),
        (f"{against}, {pruning_title(pruning)}", "lrp", {**rescale, "pruning": pruning}),
    ]
    for name, method, rules in methods:
        try:
            per_base[name] = attribute_by(method, model, onehot, **options, **rules).per_base()
        except (ImportError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            refused[name] = (str(error).strip() or type(error).__name__).splitlines()[0]
    letters = decode(onehot) if len(onehot) else []
    assert isinstance(letters, list)
    return Comparison(letters, per_base, refused, mutations.ceiling())
