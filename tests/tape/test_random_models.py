"""Ten thousand random models are explained rightly or refused: none is wrong in silence.

`tests/random_models.py` says what that means; `python tests/random_models.py 10000` prints how many are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import plrp
import random_models
from plrp.walk import Walk
from random_models import Case, Tally, judged
from random_steps import NOT_ZERO_AT_ZERO, Maker, slow_lrp, values_of

FEW, CHUNK, MODELS = 100, 500, 10_000


def none_is_wrong(seeds: range, record_property: Callable[[str, object], None]) -> None:
    tally = Tally().add(seeds)
    record_property("models", f"\n{tally}")
    assert not tally.faults, "\n".join([*tally.faults, str(tally)])
    assert tally.share("clean", "right") > 0.75
    assert tally.share("hidden", "refused") > 0.4
    assert tally.share("mixed", "refused") > 0.4
    assert tally.share("stateful", "refused") > 0.3
    assert tally.share("clean", "undecided") < 0.1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 2 * FEW, FEW))
def test_two_hundred_models_are_right_or_refused(first: int, record_property: Any) -> None:
    none_is_wrong(range(first, first + FEW), record_property)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, MODELS, CHUNK))
def test_ten_thousand_models_are_right_or_refused(first: int, record_property: Any) -> None:
    none_is_wrong(range(first, first + CHUNK), record_property)


def none_of_token_ids_is_wrong(seeds: range) -> None:
    tally = Tally().add(seeds, "ids")
    assert not tally.faults, "\n".join([*tally.faults, str(tally)])
    assert tally.share("ids", "right") > 0.2
    assert tally.share("ids", "refused") > 0.4


@pytest.mark.filterwarnings("ignore")
def test_some_models_of_token_ids_are_right_or_refused() -> None:
    none_of_token_ids_is_wrong(range(FEW // 2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 2 * CHUNK, CHUNK))
def test_a_thousand_models_of_token_ids_are_right_or_refused(first: int) -> None:
    none_of_token_ids_is_wrong(range(first, first + CHUNK))


# --- the judge --------------------------------------------------------------------------------------------------------


def faults(family: str, seeds: range) -> list[str]:
    """The faults that are seen in models of a family."""
    verdicts = [verdict for seed in seeds for verdict in judged(Case(seed, family))]
    return [verdict.why for verdict in verdicts if verdict.outcome == "wrong"]


@pytest.mark.filterwarnings("ignore")
def test_an_activation_that_is_passed_is_seen() -> None:
    functions = [
        run for runs in NOT_ZERO_AT_ZERO.values() for run in runs if getattr(run, "__name__", "") != "<lambda>"
    ]
    with plrp.rules_for(dict.fromkeys(functions, "pass")):
        assert sum("relevance is off" in fault for fault in faults("clean", range(40))) > 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["hidden", "mixed", "stateful", "ids"])
def test_a_model_that_is_not_looked_at_twice_is_seen(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plrp.tape.verification._look_twice", lambda *_: [])
    assert len(faults(family, range(30))) > 1  # of mixed samples, most are seen while a model is recorded


def changed_relevance(explanation: Any) -> Any:
    explanation.relevance = 1.01 * explanation.relevance
    return explanation


def of_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    explain = plrp.explain
    of_one: Any = lambda model, x, **options: (changed_relevance if len(x) == 1 else lambda e: e)(  # noqa: E731
        explain(model, x, **options)
    )
    monkeypatch.setattr(plrp, "explain", of_one)


def of_the_plain_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    through = Walk.through_layer

    def more(self: Walk, *given: Any) -> Any:
        handed, branches = through(self, *given)
        return (1.01 * handed if type(self) is Walk else handed), branches

    monkeypatch.setattr(Walk, "through_layer", more)


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a sample alone": of_one_sample,
    "the plain walk": of_the_plain_walk,
    "does not close": lambda patch: patch.setattr("plrp.walk.book_branch", lambda *_: None),
    "does not conserve": lambda patch: patch.setattr(random_models, "PRUNED", plrp.Pruning(0.2, conserve=False)),
    "another score": lambda patch: patch.setattr(
        random_models, "SCORES", (random_models.class_score(0)._replace(target=1),)
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", PLANTED)
def test_each_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[fault](monkeypatch)
    assert any(fault in seen for seen in faults("clean", range(12)))


def test_without_constants_the_slow_lrp_is_gradient_times_input() -> None:
    m = Maker(0, torch.float64, (5,), 3)
    w, v = m.normal(4, 5), m.normal(4)
    h = m.add("linear", lambda x: x @ w.T, 0)
    h = m.add("relu", F.relu, h, rule=lambda r, z, inputs: [r])
    m.add("sum", lambda h: h @ v, h, shape=())
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    values = values_of(m.steps, x)
    (slope,) = torch.autograd.grad(values[-1].sum(), x)
    relevance = slow_lrp(m.steps, values, values[-1]).relevance
    torch.testing.assert_close(relevance, x * slope, rtol=1e-4, atol=1e-4)


def test_a_seed_gives_the_same_model_again() -> None:
    for seed in range(20):
        first, second = Case(seed), Case(seed)
        assert repr(first) == repr(second)
        assert all(map(torch.equal, first.inputs, second.inputs))
        assert judged(first) == judged(second)
