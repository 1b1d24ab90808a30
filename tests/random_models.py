"""Random models, each explained rightly, refused in a sentence, or wrong: `python tests/random_models.py 10000`.

A model is drawn from its seed: clean, or with a step that hides a path, mixes samples, keeps state or is random
(`random_steps.py`, `random_faults.py`). Models of token ids are a family of their own (`random_tokens.py`).
The answer to compare with is a slow LRP of its own in float64.

An explanation is *wrong in silence* if plrp returns it without an error and without a warning of its own (`SAID`), and

- the model has no right explanation: a score depends on another sample, on earlier calls, on chance, or on a number
  that carries relevance and has none to give (a comparison, say); all of this is measured on the bare model; or
- relevance or score differ from the slow LRP; or
- its ledger does not close, a sample alone has other relevance, the plain walk has, or a pruned one (λ, p = 0.2) is
  not finite or does not close.
"""

from __future__ import annotations

import random
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import plrp
from oracles import ledger_gaps
from plrp.errors import BrokenArithmetic, TraceError
from random_faults import FAULTS, MIXED_TARGETS, hidden
from random_steps import (
    SHAPES,
    VECTOR,
    Explained,
    Maker,
    Model,
    Step,
    element,
    follows,
    linear,
    nothing,
    slow_lrp,
    stem,
    to_signal,
    values_of,
    without_rule,
)
from random_tokens import LENGTHS, VOCABULARY, token_ids, tokens

FAMILIES = {"clean": 8, "hidden": 6, "mixed": 4, "stateful": 2}  # how often each is drawn
SAID = "second input to check"  # a step may go unnoticed; and BrokenArithmetic, about numbers that are not finite
NOISE = {torch.float64: 1e-12, torch.float32: 1e-6}  # of a rounding, and more
CLOSE = {torch.float64: 1e-7, torch.float32: 1e-4}  # of the largest Σ|R|
PERTURBATIONS, FAR = 8, 4  # trials of a hidden number, and of other samples
HARDLY = "a hidden number hardly changes"
PRUNED = plrp.Pruning(p=0.2)


# --- drawing ----------------------------------------------------------------------------------------------------------


class Score(NamedTuple):
    """The explained score: as plrp is given it, and as steps on the model's output."""

    target: Any
    steps: Callable[[Maker, int], int]


def class_score(k: int) -> Score:
    run: Any = lambda o: o[:, k]  # noqa: E731
    return Score(k, lambda m, o: m.add(f"class {k}", run, o, rule=follows(run), shape=()))


def contrast(m: Maker, o: int) -> int:
    first, second = class_score(0).steps(m, o), class_score(1).steps(m, o)
    return m.add("difference", torch.sub, first, second, shape=())


def squashed(m: Maker, o: int) -> int:
    return m.add("tanh", torch.tanh, class_score(0).steps(m, o), rule=element(torch.tanh), shape=())


SCORES: tuple[Score, ...] = (
    *map(class_score, range(3)),
    Score(lambda o: o[:, 0] - o[:, 1], contrast),
    Score(lambda o: o[:, 0].tanh(), squashed),
)
HEADS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda o: torch.softmax(o, 1),
    "sigmoid": torch.sigmoid,
    "log_softmax": lambda o: torch.log_softmax(o, 1),
}


class Built(NamedTuple):
    """A model, the steps from its input to the explained scores, and the target that plrp is given."""

    model: Model
    steps: list[Step]
    target: Any


class Case:
    """A random model and its inputs, the same from the same seed; a model that is built again has no history."""

    def __init__(self, seed: int, family: str | None = None) -> None:
        self.seed, draw = seed, random.Random(seed)
        self.family = draw.choices(list(FAMILIES), list(FAMILIES.values()))[0] if family is None else family
        self.kind = draw.choice(["vector", "vector", "vector", "sequence", "image", "tokens"])
        self.shape = draw.choice(SHAPES[self.kind])
        self.batch = draw.choice([1, 1, 2, 2, 3, 4, 5, 6])
        if self.family == "mixed":
            self.batch = max(2, self.batch)
        self.dtype = draw.choice([torch.float64, torch.float64, torch.float32])
        if self.family == "ids":
            self.shape = draw.choice(LENGTHS)
        if self.family in ("stateful", "ids"):  # in float32 other random numbers are drawn
            self.dtype = torch.float64
        self.plain_function = draw.random() < 0.15
        twice = draw.random() < 0.4 and self.family != "stateful"  # a second input meets the state that plrp left
        self.inputs = [self._input(draw, number) for number in range(1 + twice)]

    def _input(self, draw: random.Random, number: int) -> Tensor:
        """Samples of one size, or some of them large."""
        generator = torch.Generator().manual_seed(1000 * self.seed + number)
        if self.family == "ids":
            return token_ids(self.batch, *self.shape, generator, padded=draw.random() < 0.3)
        x = torch.randn(self.batch, *self.shape, generator=generator) * draw.choice([0.3, 1.0, 1.0, 3.0])
        if self.family == "hidden" and draw.random() < 0.4:
            x[draw.randrange(self.batch) :] *= 10
        return x.to(self.dtype)

    def built(self, dtype: torch.dtype) -> Built:
        """The model with weights of this dtype, as it is before its first call."""
        m = Maker(self.seed, dtype, self.shape, self.batch)
        draw = m.draw
        below = self.family == "hidden" and self.kind == "vector" and draw.random() < 0.15  # below the first layer
        h = tokens(m) if self.family == "ids" else stem(m, self.kind, hidden(m, 0) if below else 0)
        blocks = [draw.choice(VECTOR) for _ in range(draw.randint(0, 3))]
        mixing = self.family == "mixed" and draw.random() < 0.15  # in the target alone
        if self.family in FAULTS and not mixing and not below:
            blocks.insert(draw.randint(0, len(blocks)), draw.choice(FAULTS[self.family]))
        elif self.family == "clean" and draw.random() < 0.06:
            blocks.append(without_rule)
        for block in blocks:
            h = block(m, h if m.shapes[h][-1] > 2 else linear(m, h, 4))
        output = linear(m, h, 3)
        score = draw.choice(SCORES)
        head = draw.choice(sorted(HEADS)) if draw.random() < 0.15 and isinstance(score.target, int) else None
        if mixing:
            run = MIXED_TARGETS[draw.choice(sorted(MIXED_TARGETS))]
            score = Score(run, lambda m, o: m.add("mixing target", run, o, rule=_first_column, shape=()))
        steps = list(m.steps)
        score.steps(m, output)
        model_steps = steps if head is None else [*steps, Step(head, HEADS[head], to_signal(), (output,))]
        return Built(Model(model_steps, m), m.steps, score.target)

    def __repr__(self) -> str:
        steps = self.built(torch.float64).steps
        names = [f"{n}: {s.name}({', '.join(map(str, s.sources))})" for n, s in enumerate(steps, 1)]
        return f"seed {self.seed}, {self.family}, {self.batch} × {self.shape}, {self.dtype}\n  " + "\n  ".join(names)


def _first_column(r: Tensor, z: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """All to the score of class 0."""
    return [F.pad(r[:, None], (0, inputs[0].shape[1] - 1))]


# --- what is true of a model ------------------------------------------------------------------------------------------


class Truth(NamedTuple):
    """The slow LRP of an input; why there is no right explanation ("" if there is); whether plrp could notice."""

    expected: Explained
    scores: Tensor
    tolerance: float
    decided: bool
    fault: str
    noticeable: bool


def truth(case: Case, x: Tensor) -> Truth:
    """What the slow LRP says in float64, and how far it moves with roundings of the size of the model's dtype."""
    steps, given = case.built(torch.float64).steps, x.double()
    with torch.no_grad():
        values = values_of(steps, given)
        trials = [values_of(case.built(torch.float64).steps, given, NOISE[case.dtype], seed) for seed in range(2)]
        if case.dtype == torch.float32:
            trials.append(values_of(case.built(torch.float32).steps, x))
    expected = slow_lrp(steps, values, values[-1])
    others = [slow_lrp(case.built(v[0].dtype).steps, v, v[-1]).relevance for v in trials]
    moved = max(float((expected.relevance - other).abs().nan_to_num(torch.inf).max()) for other in others)
    offset = [step._replace(rule=element(step.run)) if step.name == "scalar constant" else step for step in steps]
    without_epsilon = slow_lrp(offset, values, values[-1]).relevance  # as plrp explains elu(z) + 1
    share = float((expected.relevance - without_epsilon).abs().nan_to_num().max())
    tolerance = 50 * moved + CLOSE[case.dtype] * expected.largest + min(share, 1e-5 * expected.largest)
    decided = tolerance <= max(0.05 * float(expected.relevance.abs().max()), 1e-3 * expected.largest)
    fault = _fault(case, given, steps, values, expected)
    noticeable = _noticeable(steps, values, given, expected, ids=case.family == "ids")
    return Truth(expected, values[-1], tolerance, decided, fault, noticeable)


def _fault(case: Case, x: Tensor, steps: list[Step], values: list[Tensor], expected: Explained) -> str:
    """Why a model has no right explanation for this input."""
    if case.family == "stateful" and _keeps_state(case, x):
        return "its output depends on earlier calls, or on chance"
    if case.batch > 1 and case.family in ("mixed", "stateful") and _mixes(case, x, steps, values):
        return "a score depends on another sample"
    for number, r in expected.hidden.items():
        if steps[number - 1].rule is nothing and r.abs().sum() > 1e-3 * expected.largest:
            return f"relevance of '{steps[number - 1].name}' is lost"
    return ""


def _keeps_state(case: Case, x: Tensor) -> bool:
    first, second = (case.built(torch.float64).model for _ in range(2))
    with torch.no_grad():
        outputs = [first(x) for _ in range(5)]
        second(x.flip(-1) + 1.0)
        outputs.append(second(x))
    return not all(torch.allclose(outputs[0], output, rtol=1e-9, atol=0) for output in outputs[1:])


def _mixes(case: Case, x: Tensor, steps: list[Step], values: list[Tensor]) -> bool:
    """Whether a score depends on another sample: relevance reaches that one, or a move of it moves the score.

    A small move must do so; or, where no branch of the program may depend on the batch, all of some large ones.
    """
    scores, generator = values[-1], torch.Generator().manual_seed(1)
    for sample in range(case.batch):
        start = torch.zeros_like(scores)
        start[sample] = scores[sample]
        reached = slow_lrp(steps, values, start)
        own = float(reached.relevance[sample].abs().sum())
        if float(reached.relevance.abs().sum()) - own > 1e-6 * reached.largest:
            return True
        changes = []
        for size in (1e-4, *[1.0] * FAR):
            noise = torch.randn(x.shape, generator=generator).double() * size
            noise[sample] = 0
            with torch.no_grad():
                changes.append(float((values_of(steps, x + noise)[-1] - scores)[sample].abs()))
        far = sum(change > 1e-2 * float(scores[sample].abs()) for change in changes[1:])
        near = changes[0] > 1e-10 * float(scores.abs().max())
        if (near and far) or (far == FAR and case.family == "mixed"):
            return True
    return False


def _noticeable(steps: list[Step], values: list[Tensor], x: Tensor, expected: Explained, ids: bool) -> bool:
    """Whether hidden values that carry relevance change in every trial, when their sample does: plrp has few trials."""
    generator = torch.Generator().manual_seed(2)
    counts: Counter[int] = Counter()
    hidden = {n: r for n, r in expected.hidden.items() if r.abs().sum() > 1e-3 * expected.largest}
    for _ in range(PERTURBATIONS if hidden else 0):
        factors = 0.3 + 1.4 * torch.rand(x.shape, generator=generator).double()
        noise = torch.randn(x.shape, generator=generator).double() * x.abs().mean()
        other = (
            torch.randint(2, VOCABULARY, x.shape, generator=generator).double() if ids else x * factors + 0.3 * noise
        )
        with torch.no_grad():
            moved = values_of(steps, other)
        for n, r in hidden.items():
            change = (moved[n] - values[n]).abs().nan_to_num() * (r.abs() > 1e-3 * r.abs().max())
            counts[n] += bool((change > 1e-3 * values[n].abs().max()).any())
    return all(counts[n] == PERTURBATIONS for n in hidden)


# --- what plrp says ---------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """right, refused, said, undecided, wrong or crashed; and the sentence, or the fault."""

    outcome: str
    why: str = ""


def quietly(call: Callable[[], Any]) -> tuple[Any, str]:
    """The result of a call, and the warning of plrp's own that it gave ("" if none)."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        result = call()
    texts = [str(w.message) for w in given if isinstance(w.message, BrokenArithmetic) or SAID in str(w.message)]
    return result, texts[0] if texts else ""


def refusal(error: Exception) -> Verdict:
    """An error of plrp's own is a refusal; any other is a crash, though not a silent one."""
    innermost = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    ours = isinstance(error, (plrp.UnsupportedOperation, TraceError)) or (
        isinstance(error, (ValueError, TypeError)) and Path(plrp.__file__).parent in innermost.parents
    )
    text = f"{type(error).__name__}: {error}"
    return Verdict("refused" if ours else "crashed", text)


def judged(case: Case) -> list[Verdict]:
    """A verdict for each input of a case, given to one model one after the other."""
    torch.manual_seed(case.seed)
    bare, _, target = case.built(case.dtype)
    model = (lambda x: bare(x)) if case.plain_function else bare
    verdicts = []
    for x in case.inputs:
        try:
            known = truth(case, x)
        except Exception as error:
            if case.family == "stateful" and case.batch == 1:  # BatchNorm of one sample
                return [Verdict("undecided", "the model fails by itself")]
            raise AssertionError(f"the oracle failed: {case}") from error
        if any(verdict.why == HARDLY for verdict in verdicts):  # plrp has taken these numbers for constants
            known = known._replace(noticeable=False)
        verdicts.append(judge(case, model, x, target, known))
    return verdicts


def judge(case: Case, model: Any, x: Tensor, target: Any, known: Truth) -> Verdict:
    options: dict[str, Any] = {"target": target, "composite": "epsilon"}
    try:
        explanation, said = quietly(lambda: plrp.explain(model, x, **options))
    except Exception as error:
        return refusal(error)
    if said:
        return Verdict("said", said)
    if not bool(torch.isfinite(known.expected.relevance).all()):
        return Verdict("undecided", "the slow LRP is not finite")
    fault = known.fault and f"explained, though {known.fault}"
    fault = fault or differs(explanation, known)
    if fault and not known.noticeable:
        return Verdict("undecided", HARDLY)
    try:
        fault = fault or inconsistent(case, model, x, options, explanation, known)
    except Exception as error:
        return Verdict("crashed", refusal(error).why)
    if fault:
        return Verdict("wrong", fault)
    return Verdict("right" if known.decided else "undecided", "" if known.decided else "badly conditioned")


def differs(explanation: Any, known: Truth) -> str:
    """How an explanation differs from the slow LRP."""
    scale = float(known.scores.abs().max())
    if float((explanation.score.double() - known.scores).abs().max()) > max(1e-2 * scale, 1e-6) and known.decided:
        return "another score"
    gap = float((explanation.relevance.double() - known.expected.relevance).abs().max())
    if not gap <= known.tolerance:
        largest = float(known.expected.relevance.abs().max())
        return f"relevance is off by {gap:.2g} where the largest is {largest:.2g}"
    return ""


def inconsistent(case: Case, model: Any, x: Tensor, options: dict[str, Any], explanation: Any, known: Truth) -> str:
    """What of an explanation contradicts itself."""
    close = CLOSE[case.dtype] * known.expected.largest + known.tolerance
    gaps = ledger_gaps(explanation, explanation.score)
    if max(gaps) > 10 * CLOSE[case.dtype]:
        return f"the ledger does not close: {max(gaps):.1e}"
    with plrp.plain_walk():
        plain = plrp.explain(model, x, **options).relevance
    if float((plain - explanation.relevance).abs().max()) > CLOSE[case.dtype] * known.expected.largest:
        return "the plain walk has other relevance"
    pruned, said = quietly(lambda: plrp.explain(model, x, **options, pruning=PRUNED))
    conserves = bool(pruned.relevance.isfinite().all()) and not any(row["dropped"] for row in pruned.ledger)
    if not said and not (conserves and max(ledger_gaps(pruned, pruned.score)) <= 10 * CLOSE[case.dtype]):
        return "pruned, it does not conserve"
    sample = case.seed % case.batch
    if case.batch > 1 and _same_alone(case, x, sample):
        try:
            alone, said = quietly(lambda: plrp.explain(model, x[sample : sample + 1], **options))
        except Exception as error:
            return "" if refusal(error).outcome == "refused" else f"a sample alone: {error}"
        if not said and float((alone.relevance[0] - explanation.relevance[sample]).abs().max()) > close:
            return "a sample alone has other relevance"
    return ""


def _same_alone(case: Case, x: Tensor, sample: int) -> bool:
    """Whether the bare model has the same score for a sample alone."""
    steps, x = case.built(torch.float64).steps, x.double()
    with torch.no_grad():
        try:
            alone = values_of(steps, x[sample : sample + 1])[-1]
        except (RuntimeError, IndexError):  # made for this size of batch
            return False
        return torch.allclose(alone[0], values_of(steps, x)[-1][sample], rtol=1e-9)


# --- many of them -----------------------------------------------------------------------------------------------------

WORST = ("wrong", "crashed", "said", "undecided", "refused", "right")


class Tally:
    """How many models of each family had which outcome, the sentences of plrp, and the models that went wrong."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.sentences: Counter[str] = Counter()
        self.faults: list[str] = []

    def add(self, seeds: Iterable[int], family: str | None = None) -> Tally:
        for seed in seeds:
            case = Case(seed, family)
            verdicts = judged(case)
            worst = min(verdicts, key=lambda verdict: WORST.index(verdict.outcome))
            self.outcomes[case.family, worst.outcome] += 1
            if worst.outcome in ("refused", "said", "undecided"):
                self.sentences[f"{worst.outcome}, {case.family}: {summary(worst.why)}"] += 1
            if worst.outcome in ("wrong", "crashed"):
                self.faults.append(f"{seed}, {case.family}, {worst.outcome}: {worst.why}")
        return self

    def share(self, family: str, outcome: str) -> float:
        """The share of a family's models with this outcome."""
        total = sum(count for (one, _), count in self.outcomes.items() if one == family)
        return self.outcomes[family, outcome] / max(1, total)

    def __str__(self) -> str:
        names = ("right", "refused", "said", "undecided", "wrong", "crashed")
        rows = [f"{'':10}" + "".join(f"{name:>11}" for name in names)]
        families = sorted({family for family, _ in self.outcomes})
        for family in families:
            rows.append(f"{family:10}" + "".join(f"{self.outcomes[family, name]:11}" for name in names))
        totals = [sum(self.outcomes[family, name] for family in families) for name in names]
        rows.append(f"{'all':10}" + "".join(f"{total:11}" for total in totals))
        return "\n".join(rows)


def summary(text: str) -> str:
    """A refusal without the names in it."""
    return re.sub(r"`[^`]*`|'[^']*'|\([^)]*\)|\d[\d.e+-]*", "…", text)[:150]


def main(*words: str) -> None:
    """`10000`: the first so many models; `500 600`: those from 500 to 599; `seed 7`: one of them in full.

    `ids 1000`, `ids seed 7`: models of token ids.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    family, words = ("ids", words[1:]) if words[0] == "ids" else (None, words)
    if words[0] == "seed":
        case = Case(int(words[1]), family)
        print(case, *judged(case), sep="\n")
        return
    tally = Tally().add(range(*map(int, words)), family)
    for sentence, number in tally.sentences.most_common():
        print(f"{number:6}  {sentence}")
    print(*tally.faults, tally, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
