"""Whether an explanation can be believed: how far relevance grew on its way, and how much of the score arrived.

A ledger closes even where relevance is absurd: +10⁹ and −10⁹ can add up to a score of 5 as well as 2 and 3 do. So
‖R‖₁ = Σ|R| is compared with the score. `verdicts` needs the input's relevance alone, and judges every explanation;
`Health` also reads the ledger, and knows where it happened. docs/decisions.md says where the bounds come from.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from .errors import UnhealthyExplanation
from .ledger import Ledger, rows_of
from .pruning import Pruning

__all__ = ["Health"]

EXPLODED = 10.0
"""The largest growth of ‖R‖₁, as a multiple of |score| or of ‖R‖₁ below the network's last layer if that is larger."""

EXPLODED_EPSILON = 1000.0
"""The same where more than `FEW` layers follow the ε-rule, under which relevance grows without anything being wrong."""

FEW = 3
"""The linear layers at the end of a VGG."""

DOUBTFUL = 2.0
"""From this many times the score on, or below 0, the sum of the input's relevance says little about the score."""

NEAR_ZERO = 0.01
"""A contrast's difference is near zero below this share of what it started from."""

MUCH_ATTENTION = 0.1
"""Above this p, agreement with what the network does falls fast in models with attention: docs/truth.md."""

VANISHED = 1e-3
"""The smallest ‖R‖₁ of the input, as a share of |score|."""


class Problem(Enum):
    """Why an explanation should not be believed as it is, the worst first."""

    NOT_FINITE = "not finite"
    EXPLODED = "exploded"
    VANISHED = "vanished"
    NO_SCORE = "without a score"


@dataclass(frozen=True)
class Scale:
    """What growth is measured against: `first`, the ‖R‖₁ that the network's last layer handed down, (batch,), and how
    far it may grow: `bound` times the larger of it and |score|; `least`: the share of |score| that is to arrive, 0
    where a condition may withhold any. `begun` takes the place of |score| where a seed (`plrp.targets`) gives relevance
    to several outputs, which may add up to nothing: their ‖R‖₁.
    """

    first: Tensor | None = None
    bound: float = EXPLODED_EPSILON
    least: float = VANISHED
    begun: Tensor | None = None

    def size(self, score: Tensor) -> Tensor:
        """The reference for masses, (batch,)."""
        return score.abs() if self.begun is None else self.begun

    @property
    def of(self) -> str:
        """The name of `size` in sentences."""
        return "the score" if self.begun is None else "the relevance at the output"


def bound_for(epsilon_layers: int) -> float:
    """How far relevance may grow, given the number of layers on its way under the ε-rule or a rule of the user's."""
    return EXPLODED if epsilon_layers <= FEW else EXPLODED_EPSILON


def verdicts(score: Tensor, scale: Scale, mass: Tensor) -> list[Problem | None]:
    """The problem of each sample's explanation, None where it has none.

    `score` and `mass` are (batch,): the ‖R‖₁ of the input, or the largest on the way.
    """
    size, mass = scale.size(score).detach().cpu().double(), mass.detach().cpu().double()
    first = torch.zeros_like(size) if scale.first is None else scale.first.detach().cpu().double()
    problems: list[Problem | None] = [None] * len(size)
    for problem, has_it in (  # a later one takes the place of an earlier one
        (Problem.VANISHED, mass < scale.least * size),
        (Problem.EXPLODED, mass > scale.bound * torch.maximum(size, first)),
        (Problem.NO_SCORE, size == 0),
        (Problem.NOT_FINITE, ~(size.isfinite() & mass.isfinite())),
    ):
        for sample in has_it.nonzero()[:, 0].tolist():
            problems[sample] = problem
    return problems


def mass_of(inputs: Sequence[Tensor]) -> Tensor:
    """‖R‖₁ of the relevance of all inputs, (batch,)."""
    masses = [torch.linalg.vector_norm(rows_of(relevance), 1, 1) for relevance in inputs]
    return masses[0] if len(masses) == 1 else torch.stack(masses).sum(0)


@dataclass(frozen=True)
class Wording:
    """How a front door (Python, a command) names the settings that advice is about.

    `composites` are the rules to try where contributions cancel: those for images by default.
    """

    redistribution: str = "prune with redistribution='M-sign' or 'lambda'"
    prune_less: str = "prune less"
    composite: str = "composite='{}'"
    composites: tuple[str, ...] = ("epsilon-plus-flat",)


PYTHON = Wording()


def advice(problem: Problem, pruning: Pruning | None, wording: Wording = PYTHON) -> str:
    """The change that helps against a problem, with the names of settings that a front door uses."""
    if problem is Problem.NO_SCORE:
        return "there is nothing to hand down; explain another target"
    if problem is Problem.VANISHED and pruning is not None and not pruning.conserve:
        return "prune with conserve=True"
    if problem is Problem.VANISHED:
        return "check that the network is trained and its BatchNorm statistics are set, or explain another target"
    if pruning is not None and pruning.redistribution == "M":
        return f"{wording.redistribution}, or {wording.prune_less}"
    smaller = "" if pruning is None else f"{wording.prune_less}, or "
    rules = " or ".join(map(wording.composite.format, wording.composites))
    return f"{smaller}take rules whose contributions do not cancel, such as {rules}"


@dataclass(frozen=True)
class Health:
    """The figures by which an explanation is judged: tensors (batch,), float64, and lists of one entry per sample.

    - `amplification`: the largest ‖R‖₁ on the way over |score|; `grew_at`: below the last layer, the entry at which the
      largest ‖R‖₁ so far grew by the largest factor;
    - `mass_at_input`: ‖R‖₁ of the input over |score|;
    - `reached`: Σ R of the input over the score. `to_bias`, `to_constants`, `to_epsilon`, `to_softmax`, `dropped`,
      `withheld` (by a condition) and `created` are shares of the score too: reached + to_bias + to_constants +
      to_epsilon + to_softmax + dropped + withheld − created = 1;
    - `zeros`: the share of the input's features that hold no relevance;
    - `cut`: the share of the pruned tensors in which anything was cut, and `tied`: the largest share of a tensor's
      survivors (of one sign) that equal neurons at the cut hold, which stay or go together; NaN without pruning;
    - `flipped`: the largest share of a tensor's ‖R‖₁ on survivors whose sign PLRP-M has flipped;
    - `problems`: what is wrong with a sample, None where nothing is.

    Where a seed (`plrp.targets`) gave relevance to several outputs, masses are measured against their ‖R‖₁, and so are
    shares, but for a contrast, whose score is the difference: shares are of it unless it is near zero.
    """

    score: Tensor
    amplification: Tensor
    grew_at: list[str]
    mass_at_input: Tensor
    reached: Tensor
    to_bias: Tensor
    to_constants: Tensor
    to_epsilon: Tensor
    to_softmax: Tensor
    dropped: Tensor
    withheld: Tensor
    created: Tensor
    zeros: Tensor
    cut: Tensor
    tied: Tensor
    flipped: Tensor
    problems: list[Problem | None]
    pruning: Pruning | None
    of: str = "the score"
    shares_of: str = "the score"

    @property
    def doubtful(self) -> list[bool]:
        """Which samples have no problem, but relevance whose sum has the other sign than the score, or is far larger.

        Biases, constants or the softmax then hold as much of the other sign: signs and sizes may mean little.
        """
        far = (self.reached < 0) | (self.reached > DOUBTFUL)
        strange = far & ~(self.withheld != 0) & (self.shares_of == "the score")
        return [bool(one) and not problem for one, problem in zip(strange, self.problems, strict=True)]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong with any sample."""
        return not any(self.problems)

    def brief(self, sample: int = 0) -> str | None:
        """What is wrong with a sample, in the few words that fit under a picture."""
        return in_brief(self.problems[sample], float(self.amplification[sample]), self.of)

    def records(self) -> list[dict[str, Any]]:
        """One record per sample, as plain data that pandas and polars take as it is."""
        apart = ("pruning", "problems", "of", "shares_of")
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        table = {name: c.tolist() if isinstance(c, Tensor) else c for name, c in columns.items()}
        table["problem"] = [None if problem is None else problem.value for problem in self.problems]
        return [{"sample": n, **{name: c[n] for name, c in table.items()}} for n in range(len(self.problems))]

    def __repr__(self) -> str:
        return self.words()

    def words(self, wording: Wording = PYTHON) -> str:
        """The verdict in sentences; `wording` names the settings in its advice."""
        if not self.problems:
            return "healthy: no samples"
        if not self.healthy:
            return f"unhealthy: {'; '.join(self._sentence(*c, wording) for c in _counted(self.problems))}"
        if any(self.doubtful):
            some = _of(sum(self.doubtful), len(self.problems))
            others = "other rules, a smaller p" if _prunes(self.pruning) else "other rules"
            return (
                f"doubtful: {some}the input's relevance adds up to less than 0% or more than {DOUBTFUL:.0%} of the "
                f"score: compare with {others} or occlusion. {self._arrived()}"
            )
        return f"healthy: {self._arrived()}{self._note()}"

    def _sentence(self, problem: Problem, count: int, wording: Wording) -> str:
        """What is wrong with some samples: how many, how bad it is in the worst, and what to do."""
        samples = [n for n, one in enumerate(self.problems) if one is problem]
        worst = max(samples, key=lambda n: float(self.amplification[n])) if problem is Problem.EXPLODED else samples[0]
        if problem is Problem.VANISHED:
            worst = min(samples, key=lambda n: float(self.mass_at_input[n]))
        fact = _fact(
            problem,
            f"Σ|R| grew to {float(self.amplification[worst]):.2g} times {self.of}",
            f"Σ|R| of the input is {float(self.mass_at_input[worst]):.1g} of {self.of}, {self._taken(worst)}",
        )
        if problem in (Problem.NOT_FINITE, Problem.EXPLODED):
            fact += f", most at {self.grew_at[worst]}"
        return f"{_of(count, len(self.problems))}{fact}: {advice(problem, self.pruning, wording)}"

    def _takers(self) -> dict[str, Tensor]:
        """The shares of the score that did not arrive, by the name of their taker."""
        names = {"biases": "to_bias", "constants": "to_constants", "ε": "to_epsilon", "softmax": "to_softmax"}
        return {taker: getattr(self, name) for taker, name in names.items()}

    def _taken(self, sample: int) -> str:
        """The taker of most of a sample's score, and its share."""
        takers = {**self._takers(), "pruning": self.dropped}
        name = max(takers, key=lambda taker: float(takers[taker][sample]))
        return f"{name} took {float(takers[name][sample]):.0%}"

    def _arrived(self) -> str:
        """Where the score went, on average over the samples."""
        shares = {f"to {taker}": share for taker, share in self._takers().items()}
        shares |= {"dropped": self.dropped, "withheld": self.withheld, "were created": self.created}
        means = {name: float(share.mean()) for name, share in shares.items()}
        taken = "".join(f", {mean:.0%} {name}" for name, mean in means.items() if round(mean, 2))
        reached, most = float(self.reached.mean()), float(self.amplification.max())
        return f"{reached:.0%} of {self.shares_of} reached the input{taken}; Σ|R| is at most {most:.2g} times {self.of}"

    def _note(self) -> str:
        """What is no fault, but should be known: that nothing could be pruned, or that p is large."""
        stuck = int((self.cut == 0).sum())
        if stuck and _prunes(self.pruning) and not bool(self.withheld.any()):
            tied = bool((self.tied > 0).any())
            why = "equal neurons stay or go together" if tied else "even the weakest holds more than the share p"
            return f". {_of(stuck, len(self.problems))}nothing was pruned, because {why}: this is plain LRP"
        p = (self.pruning.p or 0.0) if self.pruning is not None else 0.0
        if p > MUCH_ATTENTION and bool(self.to_softmax.any()):
            return f". p = {p:g} is large for a model with attention: compare signs and ranks with p = 0.05"
        return ""


SHARES = {
    "to_bias": "absorbed_bias",
    "to_constants": "absorbed_constant",
    "to_epsilon": "absorbed_epsilon",
    "to_softmax": "softmax",
    **{name: name for name in ("dropped", "withheld", "created")},
}
"""Shares of the score, and the ledger's columns that they are made of."""


def examine(score: Tensor, scale: Scale, inputs: Sequence[Tensor], ledger: Ledger, pruning: Pruning | None) -> Health:
    """The health of an explanation: `inputs` is the relevance of each of the model's inputs."""
    score = score.double().cpu()
    whole = score if scale.begun is None else scale.begun.double().cpu()  # shares are of it
    rows = torch.cat([rows_of(relevance).double().cpu() for relevance in inputs], 1)
    mass = rows.abs().sum(1)
    begun = whole.abs() if scale.first is None else torch.maximum(whole.abs(), scale.first.double().cpu())
    largest, grew_at = ledger.largest_growth(begun, mass)
    problems = [
        at_input or on_the_way
        for at_input, on_the_way in zip(*(verdicts(score, scale, m) for m in (mass, largest)), strict=True)
    ]

    difference = scale.begun is not None and bool((score.abs() >= NEAR_ZERO * whole).all())
    shared = score if difference else whole

    def share(value: Tensor, of: Tensor = shared) -> Tensor:
        return torch.where(of == 0, math.nan, value / of)

    cut, tied, flipped = ledger.pruned()
    return Health(
        score=score,
        amplification=share(largest, whole).abs(),
        grew_at=grew_at,
        mass_at_input=share(mass, whole).abs(),
        reached=share(rows.sum(1)),
        **{name: share(ledger.total(column)) for name, column in SHARES.items()},
        zeros=(rows == 0).double().mean(1),
        cut=cut,
        tied=tied,
        flipped=flipped,
        problems=problems,
        pruning=pruning,
        of=scale.of,
        shares_of="the score" if difference else scale.of,
    )


def alarm(score: Tensor, scale: Scale, inputs: Sequence[Tensor], pruning: Pruning | None) -> None:
    """Warn of an explanation that should not be believed as it is; all that is looked at is the input's relevance."""
    mass = mass_of(inputs)
    problems = verdicts(score, scale, mass)
    if not any(problems):
        return
    said, sizes = [], scale.size(score).tolist()
    for problem, count in _counted(problems):
        shares = [m / s for m, s, p in zip(mass.tolist(), sizes, problems, strict=True) if p is problem and s]
        many = f"Σ|R| of the input is over {_power_below(max(shares, default=1.0))} times {scale.of}"
        fact = _fact(problem, many, f"Σ|R| of the input is below {VANISHED:g} of {scale.of}")
        said.append(f"{_of(count, len(problems))}{fact}: {advice(problem, pruning)}")
    text = f"Unhealthy explanation: {'; '.join(said)}. explanation.health says where it happened."
    warnings.warn(text, UnhealthyExplanation, stacklevel=_users_level())


def in_brief(problem: Problem | None, times: float, of: str = "the score") -> str | None:
    """A problem in the few words that fit under a picture; `times`: Σ|R| over `of`."""
    grown = f"Σ|R| grew to {times:.2g} times {of}".replace("e+", "e")
    return None if problem is None else f"unhealthy: {_fact(problem, grown, 'relevance vanished on its way')}"


@contextmanager
def unwarned() -> Iterator[None]:
    """Within this context no explanation warns: for commands, which count the unhealthy ones and say it once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnhealthyExplanation)
        yield


def summary(
    problems: Iterable[Problem | None],
    pruning: Pruning | None,
    things: str = "explanations",
    wording: Wording = PYTHON,
) -> str | None:
    """How many of many explanations are unhealthy, and what to do, in a sentence; None where none is."""
    judged = list(problems)
    counted = _counted(judged)
    if not counted:
        return None
    causes = ", ".join(f"{count} {problem.value}" for problem, count in counted)
    count = sum(count for _, count in counted)
    remedy = advice(counted[0][0], pruning, wording)
    return f"{count:,} of {len(judged):,} {things} are unhealthy ({causes}): {remedy}"


def _fact(problem: Problem, exploded: str, vanished: str) -> str:
    """A problem in words."""
    return {
        Problem.NOT_FINITE: "relevance is not finite",
        Problem.EXPLODED: exploded,
        Problem.VANISHED: vanished,
        Problem.NO_SCORE: "the score is 0",
    }[problem]


def _counted(problems: Sequence[Problem | None]) -> list[tuple[Problem, int]]:
    """How many samples have each problem, the worst problem first."""
    counts = Counter(problems)
    return [(problem, counts[problem]) for problem in Problem if counts[problem]]


def _of(count: int, batch: int) -> str:
    return "" if batch == 1 else f"in {count} of {batch} samples " if count < batch else f"in all {batch} samples "


def _power_below(value: float) -> str:
    """The power of ten below: Python shows a warning again whenever its text differs."""
    return f"{10.0 ** math.floor(math.log10(value)):g}" if math.isfinite(value) and value > 0 else "any number"


def _prunes(pruning: Pruning | None) -> bool:
    """Whether anything is to be pruned at all."""
    if pruning is None:
        return False
    return pruning.p is None or any(pruning.shares.values())


def _users_level() -> int:
    """How far up the stack the code that called plrp stands."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "plrp":
        level, frame = level + 1, frame.f_back
    return level
