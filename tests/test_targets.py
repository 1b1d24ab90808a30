"""One target, one score: explanations, metrics, circuits and baselines read the same number off an output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp import targets
from plrp.ablation import Ablation
from plrp.genomics import gradient_input, ism
from plrp.genomics.outputs import target_from_text
from plrp.metrics.scores import fix_target, for_rows, score
from plrp.target_text import TargetError, WrittenTarget, class_number, read_target
from plrp.targets import as_target, start

ONE_HOT = torch.eye(4)[torch.randint(4, (3, 9), generator=torch.Generator().manual_seed(3))].mT.contiguous()


def network(kind: str = "classes") -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv1d(4, 6, 3), nn.ReLU()]
    ends = {
        "classes": [nn.Flatten(), nn.Linear(42, 5)],
        "probabilities": [nn.Flatten(), nn.Linear(42, 5), nn.Softmax(1)],
        "dense": [nn.Conv1d(6, 3, 1)],
        "single": [nn.Flatten(), nn.Linear(42, 1), nn.Flatten(0)],
    }
    return nn.Sequential(*body, *ends[kind]).eval()


TARGETS: dict[str, tuple[str, Any]] = {
    "the winner": ("classes", None),
    "a class": ("classes", 3),
    "a class from the end": ("classes", -2),
    "a number of numpy": ("classes", np.int64(3)),
    "a list": ("classes", [0, 4, 2]),
    "an array": ("classes", np.array([0, 4, 2])),
    "a tensor": ("classes", torch.tensor([0, 4, -1], dtype=torch.int32)),
    "an index tuple of one": ("classes", (2,)),
    "an index tuple": ("dense", (2, -1)),
    "a callable": ("dense", lambda output: output[:, 1].mean(-1)),
    "a callable of one column": ("classes", lambda output: output[:, 1:2]),
    "one score": ("single", None),
    "one score by number": ("single", 0),
    "before a softmax": ("probabilities", 2),
    "a contrast": ("classes", targets.contrast([2, 1, 4], None)),
    "a contrast of places": ("dense", targets.contrast((2, 1), (0, 1))),
}
SEEDS = {"log_odds": targets.log_odds(2), "clrp": targets.clrp([3, 1, 4]), "sglrp": targets.sglrp()}


def read_everywhere(model: nn.Module, target: Any) -> dict[str, Tensor]:
    """The score of every sample as each part of plrp reads it."""
    trace = plrp.trace(model, ONE_HOT)
    begin = start(trace, target, torch.float32)
    logits, rows = trace.output, torch.arange(len(ONE_HOT))
    fixed = fix_target(lambda x: logits, ONE_HOT, target, batch_size=8)
    return {
        "target": as_target(target).score(logits),
        "metric": score(logits, fixed, "logit"),
        "metric, sample by sample": torch.cat(
            [score(logits[n : n + 1], for_rows(fixed, rows[n : n + 1]), "logit") for n in rows]
        ),
        "circuit": Ablation(trace, begin, []).whole().score,
        "ism": torch.from_numpy(ism(model, ONE_HOT.numpy(), target=target).score),
        "gradient × input": torch.from_numpy(gradient_input(model, ONE_HOT.numpy(), target=target).score),
    }


@pytest.mark.parametrize("name", TARGETS)
def test_every_part_reads_the_same_score(name: str) -> None:
    kind, target = TARGETS[name]
    explained = plrp.trace(network(kind), ONE_HOT).explain(target=target, composite="epsilon").score
    for where, found in read_everywhere(network(kind), target).items():
        torch.testing.assert_close(found.float(), explained, rtol=1e-5, atol=1e-6, msg=f"{where}: {found}, {explained}")


@pytest.mark.filterwarnings("ignore::plrp.BrokenArithmetic")
@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_hands_down_its_relevance_and_is_measured_by_its_score(name: str) -> None:
    """What these three hand down is not their score: contrastive seeds hand down nothing in sum."""
    model, seed = network(), SEEDS[name]
    explained = plrp.trace(model, ONE_HOT).explain(target=seed, composite="epsilon")
    torch.testing.assert_close(explained.score, seed.relevance(explained.logits)[0].sum(1))
    for where, found in read_everywhere(model, seed).items():
        torch.testing.assert_close(found.float(), seed(explained.logits), rtol=1e-5, atol=1e-6, msg=where)


def test_a_whole_has_one_score() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 5)).eval(), torch.randn(6, 4)
    trace = plrp.trace(model, x, samples=None)
    for target in ((2, -1), lambda output: output[2, 4]):
        begin = start(trace, target, torch.float32)
        expected = model(x)[2, 4].detach()[None]
        for found in (
            begin.score,
            as_target(target, whole=True).score(trace.output).reshape(1),
            begin.score_of(begin.value.data),
        ):
            torch.testing.assert_close(found, expected)


def test_mutagenesis_holds_the_winner_of_a_seed() -> None:
    """The winner of the sequence as it is, not that of each mutant."""
    model = network()
    winners = model(ONE_HOT).argmax(1).tolist()
    followed = ism(model, ONE_HOT.numpy(), target=targets.contrast(None, 1 - min(winners[0], 1)))
    named = ism(model, ONE_HOT.numpy(), target=targets.contrast(winners, 1 - min(winners[0], 1)))
    np.testing.assert_array_equal(followed.change, named.change)


def test_a_target_is_a_copy() -> None:
    classes = [0, 1, 2]
    target = as_target(classes)
    classes[0] = 4
    assert target.given.tolist() == [0, 1, 2]
    tensor = torch.tensor([0, 1, 2])
    target = as_target(tensor)
    tensor[0] = 4
    assert target.given.tolist() == [0, 1, 2]


def test_every_door_reads_numbers_alike_and_names_by_its_own_vocabulary() -> None:
    assert read_target("3") == target_from_text(" 3") == class_number("3", ["a", "b", "c", "d"]) == 3
    assert read_target("0, 141") == target_from_text("0,141") == (0, 141)
    assert WrittenTarget.read("3 at 7,8") == WrittenTarget("3", (7, 8))
    for text in ("٣", "1e9", "3.0", "12345678901"):
        for read in (read_target, target_from_text, lambda text: class_number(text, ["cat", "dog"])):
            with pytest.raises(TargetError):
                read(text)


def test_labels_that_are_numbers_are_names_first() -> None:
    stars = ["1", "2", "3"]
    assert class_number("2", stars, labels=True) == 1
    assert class_number("2", stars) == 2
    assert class_number(2, stars, labels=True) == 2
    with pytest.raises(TargetError, match="no class is called 'not good'"):
        class_number("not good", ["good", "bad"], labels=True)


class RulesOut(nn.Module):
    """Class 1 of the scores is −∞, so its probability is 0."""

    def __init__(self, ends_in: str) -> None:
        super().__init__()
        self.model, self.ends_in = network(), ends_in

    def forward(self, x: Tensor) -> Tensor:
        z = self.model(x).masked_fill(torch.arange(5) == 1, -torch.inf)
        return {"scores": z, "softmax": z.softmax(1), "sigmoid": z.sigmoid()}[self.ends_in]


@pytest.mark.parametrize("ends_in", ["scores", "softmax", "sigmoid"])
@pytest.mark.parametrize(
    "target", [1, [0, 1, 0], (1,), lambda o: o[:, 1], lambda o: o[:, 0] * 3e38 * 3e38, lambda o: o[:, 0] * torch.nan]
)
def test_a_score_that_is_not_finite_is_refused(ends_in: str, target: Any) -> None:
    for explain in (plrp.explain, lambda model, x, **given: list(plrp.trace(model, x).sweep([None], **given))):
        with pytest.raises(ValueError, match=r"^The score to explain is (-?inf|nan), .*: name classes that"):
            explain(RulesOut(ends_in).eval(), ONE_HOT, target=target)


def test_the_winner_beside_a_class_that_is_ruled_out_is_explained() -> None:
    assert plrp.explain(RulesOut("softmax").eval(), ONE_HOT).closing().max() < 1e-5


@pytest.mark.parametrize("head", ["softmax", "log_softmax", "sigmoid", "exp", "softplus"])
def test_a_function_is_given_the_input_of_a_final_softmax(head: str) -> None:
    """As the page on targets says; and of every other end that is left out."""
    ends = {
        "softmax": nn.Softmax(1),
        "log_softmax": nn.LogSoftmax(1),
        "sigmoid": nn.Sigmoid(),
        "softplus": nn.Softplus(),
    }
    logits = network()
    model = nn.Sequential(logits, ends[head]) if head in ends else Exponential(logits)
    explanation = plrp.explain(model.eval(), ONE_HOT, target=lambda output: output[:, 2])
    torch.testing.assert_close(explanation.score, logits(ONE_HOT)[:, 2].detach())


class Exponential(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).exp()
