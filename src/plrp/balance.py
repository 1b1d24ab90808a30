"""The balance of an explanation: where its score went, in numbers, and a warning where the arithmetic broke.

That a ledger closes says nothing about truth. So the arithmetic alone is looked at: relevance that is not finite, a
ledger that does not close, and PLRP-M dividing by sums that nearly cancel, which multiplies Σ|R|. Under LRP, PLRP-λ and
PLRP-M± no layer hands down more than its contributions would without cancelling (docs/decisions.md).
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from .errors import BrokenArithmetic
from .ledger import Ledger, conservation, growth_by_pruning, rows_of
from .pruning import Pruning
from .spelling import printable

__all__ = ["Balance"]

GROWN = 5.0
"""A tensor whose ‖R‖₁ PLRP-M multiplies by more has grown beyond the cancelling of its contributions."""

CLOSES = 1e-3
"""The largest share of ‖R‖₁ that rounding may hide from the ledger."""

MUCH_ATTENTION = 0.1
"""Above this p, agreement with the network falls fast in models with attention: docs/truth.md."""

NOTHING = "the score is 0: there is nothing to hand down"
REMEDY = "prune with redistribution='M-sign' or 'lambda', or prune less"


class Problem(Enum):
    """Faults in the arithmetic of an explanation, the worst first."""

    NOT_FINITE = "not finite"
    GROWN = "grown by pruning"
    OPEN = "does not close"


def find_problems(mass: Tensor, grown: Tensor | None) -> list[Problem | None]:
    """The fault in each sample, by the ‖R‖₁ of its input (or the largest on the way), (batch,), without a ledger.

    `grown`: the largest factor by which PLRP-M multiplied the ‖R‖₁ of a tensor; None under any other method.
    """
    factors = [1.0] * len(mass) if grown is None else grown.tolist()
    return [
        Problem.NOT_FINITE if not math.isfinite(size) else Problem.GROWN if factor > GROWN else None
        for size, factor in zip(mass.tolist(), factors, strict=True)
    ]


def mass_of(inputs: Sequence[Tensor]) -> Tensor:
    """‖R‖₁ of the relevance of all inputs, (batch,)."""
    masses = [torch.linalg.vector_norm(rows_of(relevance), 1, 1) for relevance in inputs]
    return masses[0] if len(masses) == 1 else torch.stack(masses).sum(0)


@dataclass(frozen=True)
class Balance:
    """Where the score went: tensors (batch,), float64, and lists of one entry per sample.

    All shares and multiples are of `whole`, which `of` names: the score, or ‖R‖₁ at the output under `targets.clrp` and
    `targets.sglrp`, whose relevance adds up to 0 there.

    - `reached`: Σ R of the input. With `to_bias`, `to_constants`, `to_epsilon`, `to_softmax`, `dropped`, `withheld` (by
      a condition) and `created`: reached + to_bias + to_constants + to_epsilon + to_softmax + dropped + withheld −
      created = score / whole;
    - `mass_at_input`: ‖R‖₁ of the input; `amplification`: the largest ‖R‖₁ on the way; `grew_at`: the entry at which
      the largest so far grew by the largest factor;
    - `grown`: the largest factor by which pruning multiplied the ‖R‖₁ of a tensor, 1 for LRP and PLRP-λ, and
      `grown_at`, that tensor;
    - `closing`: the part of the largest ‖R‖₁ that the ledger misses;
    - `zeros`: the share of the input's features that hold no relevance;
    - `cut`: the share of the pruned tensors in which anything was cut, and `tied`: the largest share of a tensor's
      survivors (of one sign) that equal neurons at the cut hold, which stay or go together; NaN without pruning;
    - `flipped`: the largest share of a tensor's ‖R‖₁ on survivors whose sign PLRP-M has flipped;
    - `problems`: the fault in a sample, None where there is none.
    """

    score: Tensor
    whole: Tensor
    reached: Tensor
    to_bias: Tensor
    to_constants: Tensor
    to_epsilon: Tensor
    to_softmax: Tensor
    dropped: Tensor
    withheld: Tensor
    created: Tensor
    mass_at_input: Tensor
    amplification: Tensor
    grew_at: list[str]
    grown: Tensor
    grown_at: list[str]
    closing: Tensor
    zeros: Tensor
    cut: Tensor
    tied: Tensor
    flipped: Tensor
    problems: list[Problem | None]
    pruning: Pruning | None
    of: str = "the score"

    def records(self) -> list[dict[str, Any]]:
        """One record per sample, as plain data that pandas and polars take as it is."""
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("pruning", "problems", "of")}
        table = {name: c.tolist() if isinstance(c, Tensor) else c for name, c in columns.items()}
        table["problem"] = [None if problem is None else problem.value for problem in self.problems]
        return [{"sample": n, **{name: c[n] for name, c in table.items()}} for n in range(len(self.problems))]

    def __repr__(self) -> str:
        return printable(self.words())

    def words(self, remedy: str = REMEDY) -> str:
        """The balance in sentences; `remedy` names the settings to change where PLRP-M broke the arithmetic."""
        no_score, mass = self.whole == 0, self.mass_at_input
        empty, cancelled = no_score & mass.isnan(), no_score & mass.isinf()
        sentences = [self._broken(problem, remedy) for problem in Problem if problem in self.problems]
        for zero, said in ((empty, NOTHING), (cancelled, "the score is 0, so that nothing is a share of it")):
            if bool(zero.any()):
                sentences.append(f"{_in(int(zero.sum()), len(zero))}{said}")
        counted = ~empty & ~cancelled & torch.tensor([problem is None for problem in self.problems], dtype=torch.bool)
        if bool(counted.any()):
            sentences.append(f"conserves; {self._shares(counted)}{self._note()}")
        return ". ".join(sentences) or "no samples"

    def _broken(self, problem: Problem, remedy: str) -> str:
        """The faults in some samples: how many, and how far in the worst."""
        samples = [n for n, one in enumerate(self.problems) if one is problem]
        worst = max(samples, key=lambda n: float(self.closing[n] if problem is Problem.OPEN else self.grown[n]))
        fact = {
            Problem.NOT_FINITE: f"relevance is not finite, first at {self.grew_at[worst]}",
            Problem.GROWN: f"PLRP-M multiplied Σ|R| by {_number(self.grown[worst])} at {self.grown_at[worst]}, and it "
            f"grew to {_number(self.amplification[worst])} times {self.of}: {remedy}",
            Problem.OPEN: f"the ledger misses {float(self.closing[worst]):.1%} of the largest Σ|R|",
        }[problem]
        return f"{_in(len(samples), len(self.problems))}{fact}"

    def _shares(self, samples: Tensor) -> str:
        """Where `whole` went, on average over some samples."""
        values, several = self.whole[samples], int(samples.sum()) > 1
        low, high = (f"{float(value):.3g}" for value in (values.min(), values.max()))
        shares = {
            "went to biases": self.to_bias, "to constants": self.to_constants, "to ε": self.to_epsilon,
            "to the softmax": self.to_softmax, "was dropped": self.dropped, "was withheld": self.withheld,
            "was created": self.created,
        }  # fmt: skip
        means = {name: float(share[samples].mean()) for name, share in shares.items()}
        taken = "".join(f", {mean:.0%} {name}" for name, mean in means.items() if round(mean, 2))
        return (
            f"{'on average ' * several}{float(self.reached[samples].mean()):.0%} of {self.of} "
            f"({f'{low} to {high}' if low != high else low}) reached the input{taken}; Σ|R| is at most "
            f"{float(self.amplification[samples].max()):.2g} times {self.of}"
        )

    def _note(self) -> str:
        """Remarks that name no fault: that nothing could be pruned, or that p is large."""
        stuck = int((self.cut == 0).sum())
        if stuck and _prunes(self.pruning) and not bool(self.withheld.any()):
            tied = bool((self.tied > 0).any())
            why = "equal neurons stay or go together" if tied else "even the weakest holds more than the share p"
            return f". {_in(stuck, len(self.problems))}nothing was pruned, because {why}: this is plain LRP"
        p = float(self.pruning.p or 0.0) if self.pruning is not None else 0.0
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


def balance_of(
    score: Tensor, begun: Tensor | None, inputs: Sequence[Tensor], ledger: Ledger, pruning: Pruning | None
) -> Balance:
    """The balance of an explanation: `inputs` is the relevance of each of the model's inputs.

    `begun`: ‖R‖₁ at the output, where relevance adds up to 0 there.
    """
    score = score.double().cpu()
    whole = score if begun is None else begun.double().cpu()
    rows = torch.cat([rows_of(relevance).double().cpu() for relevance in inputs], 1)
    mass, closing = rows.abs().sum(1), conservation(score, inputs, ledger)
    largest, grew_at = ledger.largest_growth(whole.abs(), mass)
    cut, tied, flipped = ledger.pruned()
    grown, grown_at = growth_by_pruning(ledger)
    problems = find_problems(largest, grown if pruning is not None and pruning.redistribution == "M" else None)

    def share(value: Tensor) -> Tensor:
        return value / whole  # NaN or ∞ where that is 0

    return Balance(
        score=score,
        whole=whole,
        reached=share(rows.sum(1)),
        **{name: share(ledger.total(column)) for name, column in SHARES.items()},
        mass_at_input=share(mass).abs(),
        amplification=share(largest).abs(),
        grew_at=grew_at,
        grown=grown,
        grown_at=grown_at,
        closing=closing,
        zeros=(rows == 0).double().mean(1),
        cut=cut,
        tied=tied,
        flipped=flipped,
        problems=[
            one or (None if missing <= CLOSES else Problem.OPEN)
            for one, missing in zip(problems, closing.tolist(), strict=True)
        ],
        pruning=pruning,
        of="the score" if begun is None else "Σ|R| at the output",
    )


def remarks(score: Tensor, mass: Tensor, grown: Tensor | None) -> list[str | None]:
    """The fault in each sample, or that its score is 0, in the few words that fit under a picture; else None."""
    factors = torch.ones_like(mass) if grown is None else grown
    words = {None: None, Problem.NOT_FINITE: "relevance is not finite"}
    grew = [f"PLRP-M multiplied Σ|R| of a tensor by {_number(factor)}" for factor in factors]
    zero = ((score == 0) & (mass == 0)).tolist()
    found = zip(find_problems(mass, grown), zero, grew, strict=True)
    return [NOTHING if nothing else words.get(problem, large) for problem, nothing, large in found]


def alarm(problems: Sequence[Problem | None]) -> None:
    """Warn of explanations whose arithmetic broke. Samples give the same text: Python shows another one again."""
    facts = {
        Problem.NOT_FINITE: "relevance is not finite",
        Problem.GROWN: f"PLRP-M multiplied Σ|R| of a tensor by more than {GROWN:g}: {REMEDY}",
    }
    said = [f"{_in(problems.count(one), len(problems))}{fact}" for one, fact in facts.items() if one in problems]
    if said:
        text = f"Broken arithmetic: {'; '.join(said)}. explanation.balance says where it happened."
        warnings.warn(text, BrokenArithmetic, stacklevel=_users_level())


@contextmanager
def unwarned() -> Iterator[None]:
    """Within this context no explanation warns: for commands, which count the broken ones and say it once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BrokenArithmetic)
        yield


def _number(value: Tensor | float) -> str:
    return f"{float(value):.2g}".replace("e+", "e")


def _in(count: int, batch: int) -> str:
    return "" if batch == 1 else f"in {count} of {batch} samples " if count < batch else f"in all {batch} samples "


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
