"""The test of an explanation, against a model asked by hand: one perturbed input at a time, in float64."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

import plrp
from plrp import metrics, references, targets
from plrp.metrics.questions import affordable, grid_of
from plrp.metrics.verdicts import BETTER, CHANCE, CONSTANT, INVERTED, UNDECIDED, UNMOVED, floor_orders
from plrp.references import blurred, channel_means

DOUBLE = {"dtype": torch.float64}


class Words(nn.Module):
    """A bag of words behind a hidden layer: token ids of any length to class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.hidden, self.out = nn.Embedding(40, 12), nn.Linear(12, 16), nn.Linear(16, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(self.table(ids))).mean(1))


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "tokens":
        return Words().double().eval()
    body = {
        "image": [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 12 * 10, 3)],
        "sequence": [nn.Conv1d(4, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 26, 3)],
        "signal": [nn.Conv1d(3, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 116, 3)],
        "table": [nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 3)],
    }[kind]
    return nn.Sequential(*body).double().eval()


def inputs(kind: str, batch: int = 2) -> Tensor:
    random = torch.Generator().manual_seed(1)
    if kind == "tokens":
        return torch.randint(4, 40, (batch, 11), generator=random)
    if kind == "sequence":
        return nn.functional.one_hot(torch.randint(4, (batch, 30), generator=random), 4).transpose(1, 2).double()
    shape = {"image": (2, 14, 12), "signal": (3, 120), "table": (9,)}[kind]
    return torch.randn(batch, *shape, generator=random, **DOUBLE)


DATA = torch.randn(30, 9, generator=torch.Generator().manual_seed(2), **DOUBLE)
KINDS = ("image", "sequence", "signal", "tokens", "table")


def explained(kind: str, batch: int = 2, model: nn.Module | None = None, **how: Any) -> plrp.Explanation:
    how = {"composite": "epsilon"} | how
    return plrp.explain(model or network(kind), inputs(kind, batch), **how)


def extras(kind: str) -> dict[str, Any]:
    return {"table": {"data": DATA}, "tokens": {"mask": references.mask_token(3, {5})}}.get(kind, {})


@contextmanager
def counted(model: nn.Module) -> Iterator[list[int]]:
    passes: list[int] = []
    handle = model.register_forward_hook(lambda module, given, output: passes.append(len(given[0])))
    yield passes
    handle.remove()


# --- the drops, by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [None, 1, [2, 0], lambda out: out[:, 0] - out[:, 2], targets.contrast(0, None)])
def test_drops_of_tiles(target: Any) -> None:
    model, x = network("image"), inputs("image")
    verdict = plrp.explain(model, x, target=target, composite="epsilon").test(batch_size=5)
    score = targets.as_target(target).bound(model(x))
    assert verdict.grid == (7, 6)
    assert verdict.names == ("blur:1", "grey")
    rows, columns = np.arange(14) * 7 // 14, np.arange(12) * 6 // 12
    for i in range(2):
        for which, values in enumerate((blurred(x, 1.0), channel_means(x))):
            for tile in range(42):
                inside = torch.from_numpy((rows[:, None] == tile // 6) & (columns == tile % 6))
                changed = torch.where(inside, values[i], x[i])[None]
                drop = score.of([i]).score(model(x[i : i + 1])) - score.of([i]).score(model(changed))
                assert verdict.drops[i][which, tile].item() == pytest.approx(drop.item(), abs=1e-6)
                relevance = plrp.explain(model, x, target=target, composite="epsilon").relevance[i]
                assert verdict.relevance[i][tile].item() == pytest.approx(relevance[:, inside].sum().item(), abs=1e-9)


def drops_by_hand(model: nn.Module, x: Tensor, changed: Callable[[int], Tensor], count: int) -> Tensor:
    """Of the winning class."""
    output = model(x[None])[0]
    return torch.stack([output.max() - model(changed(part)[None])[0, output.argmax()] for part in range(count)])


def test_drops_of_bases() -> None:
    model, x = network("sequence"), inputs("sequence")
    verdict = explained("sequence").test()
    assert verdict.unit == "base"
    shuffles = references.shuffled(8, dinucleotide=False)(x)
    for i in range(2):

        def without(place: int, i: int = i) -> Tensor:
            changed = x[i].clone()
            changed[:, place] = 0
            return changed

        def exchanged(place: int, i: int = i) -> Tensor:
            changed = x[i].clone()
            there = [one[:, place] for one in shuffles[:, i]]
            changed[:, place] = next((one for one in there if not torch.equal(one, x[i, :, place])), there[0])
            return changed

        assert torch.allclose(verdict.drops[i][0], drops_by_hand(model, x[i], exchanged, 30), atol=1e-6)
        assert torch.allclose(verdict.drops[i][1], drops_by_hand(model, x[i], without, 30), atol=1e-6)
        assert (verdict.drops[i][0] != 0).all(), "a shuffle that changes nothing would say nothing"


def test_windows_of_a_longer_sequence() -> None:
    model, x = network("signal"), inputs("signal")
    verdict = explained("signal").test()
    assert verdict.unit == "window"
    assert verdict.grid == (49,)
    where = np.arange(120) * 49 // 120
    width = 120 / 49 / 4
    for i in range(2):
        for which, values in enumerate((blurred(x, max(1.0, width)), channel_means(x))):
            by_hand = drops_by_hand(
                model, x[i], lambda w, i=i, v=values: torch.where(torch.from_numpy(where == w), v[i], x[i]), 49
            )
            assert torch.allclose(verdict.drops[i][which], by_hand, atol=1e-6)


def test_drops_of_tokens() -> None:
    model, x = network("tokens"), inputs("tokens")
    x[0, 4] = 5  # stays, and is no part
    mask = references.mask_token(3, {5})
    verdict = plrp.explain(model, x, composite="epsilon").test(mask=mask)
    assert verdict.names == ("mask token", "deletion")
    for i in range(2):
        places = [n for n in range(11) if x[i, n] != 5]
        masked = drops_by_hand(
            model, x[i], lambda p, i=i, places=places: x[i].index_fill(0, torch.tensor(places[p]), 3), len(places)
        )
        deleted = drops_by_hand(
            model,
            x[i],
            lambda p, i=i, places=places: torch.cat([x[i, : places[p]], x[i, places[p] + 1 :]]),
            len(places),
        )
        assert torch.allclose(verdict.drops[i], torch.stack([masked, deleted]), atol=1e-6)


def test_tokens_without_a_mask_token() -> None:
    verdict = explained("tokens").test()
    assert verdict.names == ("deletion", "other tokens")
    fixed = nn.Sequential(nn.Embedding(40, 4), nn.Flatten(), nn.Linear(44, 2)).double().eval()
    explanation = plrp.explain(fixed, inputs("tokens"), composite="epsilon")
    with pytest.raises(ValueError, match="no token can be deleted: give a mask token"):
        explanation.test()
    assert explanation.test(mask=references.mask_token(3)).names == ("mask token", "other tokens")


def test_drops_of_features() -> None:
    model, x = network("table"), inputs("table")
    verdict = explained("table").test(data=DATA)
    drawn = references.samples(DATA, 8)(x)[0, 0]
    for i in range(2):
        for which, values in enumerate((DATA.mean(0), drawn)):
            by_hand = drops_by_hand(model, x[i], lambda f, i=i, v=values: torch.where(torch.arange(9) == f, v, x[i]), 9)
            assert torch.allclose(verdict.drops[i][which], by_hand, atol=1e-6)


def test_a_drawn_value_that_equals_the_present_one_is_drawn_again() -> None:
    data = torch.randint(2, (40, 9), generator=torch.Generator().manual_seed(0)).double()
    x = data[:3].clone()
    verdict = plrp.explain(network("table"), x, composite="epsilon").test(data=data)
    draws = references.samples(data, 8)(x)[:, 0]
    for one, drops in zip(x, verdict.drops, strict=True):
        assert (drops[1] == 0).tolist() == (draws == one).all(0).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_flipping_gain(kind: str) -> None:
    """Most against least relevant parts first, one input at a time."""
    model, x = network(kind), inputs(kind)
    values = channel_means(x) if kind in ("image", "signal") else torch.zeros_like(x) if kind == "sequence" else None
    values = (torch.full_like(x, 3) if kind == "tokens" else DATA.mean(0).expand_as(x)) if values is None else values
    same = [values, values]
    verdict = explained(kind).test(replacements=[lambda one, v=v: _row(one, x, v) for v in same])
    number = metrics.Questions(model, x, replacements=same).number
    for i in range(2):
        own, output = verdict.relevance[i], model(x[i : i + 1])[0]
        count = len(own)
        points = sorted({round(count * k / 8) for k in range(1, 8)})
        curves = []
        for order in (own.argsort(), own.argsort(descending=True)):
            scores = [output.max().item()]
            for many in [*points, count]:
                gone = torch.isin(number[i], order[:many])
                hole = gone if kind in ("tokens", "table") else gone[None]
                scores.append(model(torch.where(hole, values[i], x[i])[None])[0, output.argmax()].item())
            curves.append(np.trapezoid(scores, [0, *(p / count for p in points), 1]))
        assert verdict.gain[i].item() == pytest.approx(curves[0] - curves[1], abs=1e-6)


def _row(one: Tensor, x: Tensor, values: Tensor) -> Tensor:
    """The values of the sample that was given."""
    row = next(n for n in range(len(x)) if torch.equal(x[n], one[0]))
    return values[row : row + 1]


# --- floor and ceiling ------------------------------------------------------------------------------------------------


def test_floor_and_ceiling_by_hand() -> None:
    verdict = explained("image").test()
    for i in range(2):
        own, drops = verdict.relevance[i].numpy(), verdict.drops[i].numpy()
        mean = drops.mean(0)
        assert verdict.rho[i].item() == pytest.approx(stats.spearmanr(own, mean).statistic)
        assert verdict.r[i].item() == pytest.approx(stats.pearsonr(own, mean).statistic)
        shifted = [
            np.roll(own.reshape(7, 6), (down, right), (0, 1)).ravel()
            for down in range(7)
            for right in range(6)
            if down or right
        ]
        floor = [stats.spearmanr(one, mean).statistic for one in shifted]
        assert verdict.copies[i] == len(floor) == 41
        percentile = stats.percentileofscore(np.round(floor, 12), round(verdict.rho[i].item(), 12), kind="mean")
        assert verdict.percentile[i].item() == pytest.approx(percentile)
        assert verdict.floor[i].item() == pytest.approx(np.quantile(floor, 0.95))
        at_least = sum(one >= verdict.rho[i].item() - 1e-12 for one in floor)
        assert verdict.chance[i].item() == pytest.approx((1 + at_least) / 42)
        c = stats.spearmanr(*drops).statistic
        assert verdict.agreement[i].item() == pytest.approx(c)
        assert verdict.ceiling[i].item() == pytest.approx(math.sqrt(2 * c / (1 + c)))
        assert verdict.ceiling_of_one[i].item() == pytest.approx(math.sqrt(c))
        down, right = np.meshgrid((np.arange(7) + 0.5) / 7 - 0.5, (np.arange(6) + 0.5) / 6 - 0.5, indexing="ij")
        blob = stats.spearmanr(np.round(-(down**2 + right**2), 12).ravel(), mean).statistic  # mirrored tiles are ties
        assert verdict.blob[i].item() == pytest.approx(blob)


def test_ties_count_half() -> None:
    """A map of one tile: its shifts are all other maps of one tile."""
    verdict = explained("image").test()
    drops = verdict.drops[0].mean(0)
    one = torch.zeros(2, 2, 14, 12)
    best = int(drops.argmax())
    one[:, 0, 2 * (best // 6), 2 * (best % 6)] = 1.0
    questions = metrics.Questions(network("image"), inputs("image"))
    again = metrics.judged(one, questions.occlusions())
    assert again.percentile[0] == 100
    tied = torch.cat([torch.ones(1, 2, 14, 6), torch.zeros(1, 2, 14, 6)], 3).expand(2, -1, -1, -1)  # six equal rows
    halves = metrics.judged(tied, questions.occlusions())
    own = float(halves.rho[0])
    others = [
        stats.spearmanr(np.roll(halves.relevance[0].reshape(7, 6), s, (0, 1)).ravel(), drops).statistic
        for s in np.ndindex(7, 6)
    ][1:]
    equal = sum(abs(one - own) < 1e-12 for one in others)
    assert equal >= 6, "shifts down leave this map as it is"
    below = sum(one < own - 1e-12 for one in others)
    assert halves.percentile[0].item() == pytest.approx(100 * (below + equal / 2) / 41)


def test_what_the_floor_is_made_of() -> None:
    assert floor_orders((7, 7), 49).shape == (48, 49)
    assert floor_orders((5, 3), 15).shape == (999, 15), "14 shifts cannot tell one map in twenty"
    assert floor_orders((), 49).shape == (999, 49)
    for orders in (floor_orders((4, 6), 24), floor_orders((), 8)):
        assert bool((orders.sort(1).values == torch.arange(orders.shape[1])).all())
    assert len({tuple(one) for one in floor_orders((4, 6), 24).tolist()}) == 23


def test_a_flipping_floor_is_priced_beforehand() -> None:
    model, x = network("image"), inputs("image")
    explanation = plrp.explain(model, x, composite="epsilon")
    questions = metrics.Questions(model, x)
    assert questions.floor_passes == 19 * 28
    with counted(model) as passes:
        verdict = explanation.test(flip_floor=True)
    assert sum(passes) == verdict.passes <= 2 * (questions.passes + questions.floor_passes)
    assert bool(((verdict.gain_percentile >= 0) & (verdict.gain_percentile <= 100)).all())
    assert "maps that know nothing" in verdict.words()


# --- the budget -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [128, 200, 300])
def test_the_budget_is_kept(kind: str, budget: int) -> None:
    model = nn.Sequential(network(kind), nn.Softmax(1))  # a head costs passes, too
    explanation = explained(kind, 2, model)
    assert explanation.head == "softmax"
    with counted(model) as passes:
        verdict = explanation.test(budget, **extras(kind))
    assert sum(passes) == verdict.passes
    assert verdict.passes <= 2 * budget


@pytest.mark.parametrize("kind", KINDS)
def test_one_sample_keeps_the_budget(kind: str) -> None:
    model = nn.Sequential(network(kind), nn.Softmax(1))
    explanation = explained(kind, 1, model)
    with counted(model) as passes:
        assert explanation.test(**extras(kind)).passes == sum(passes) <= 128


def test_the_head_is_left_out() -> None:
    plain = explained("image").test()
    headed = explained("image", model=nn.Sequential(network("image"), nn.Softmax(1))).test()
    assert torch.allclose(plain.drops[0], headed.drops[0])


def test_forty_nine_tiles_for_128_passes() -> None:
    assert grid_of((224, 224), affordable("image", 128)) == (7, 7)
    assert grid_of((224, 224), affordable("image", 300)) == (11, 11)
    assert grid_of((200,), affordable("sequence", 128)) == (49,)
    assert grid_of((10, 1000), 49)[0] == 1


def test_no_more_inputs_at_once_than_asked_for() -> None:
    model = network("image")
    explanation = plrp.explain(model, inputs("image"), composite="epsilon")
    with counted(model) as passes:
        few = explanation.test(batch_size=4)
    assert max(passes) <= 4
    assert torch.allclose(few.drops[0], explanation.test().drops[0])


def test_stored_answers_judge_many_maps_for_nothing() -> None:
    model, x = network("image"), inputs("image")
    questions = metrics.Questions(model, x)
    answers = questions.occlusions()
    with counted(model) as passes:
        for composite in ("epsilon", "epsilon-plus"):
            explanation = plrp.explain(model, x, composite=composite)
            passes.clear()
            verdict = metrics.judged(explanation.relevance, answers)
            assert not passes
            assert torch.allclose(verdict.rho, explanation.test().rho)


# --- samples and doors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_no_sample_depends_on_the_others(kind: str) -> None:
    whole = explained(kind, 3).test(**extras(kind))
    for i in range(3):
        x = inputs(kind, 3)[i : i + 1]
        alone = plrp.explain(network(kind), x, composite="epsilon").test(**extras(kind))
        assert torch.allclose(alone.drops[0], whole.drops[i], atol=1e-9)
        for name in ("rho", "r", "percentile", "gain", "agreement", "floor"):
            assert torch.allclose(getattr(alone, name)[0], getattr(whole, name)[i], atol=1e-9, equal_nan=True), name


def test_a_trace_and_a_difference_are_tested_alike() -> None:
    model, x = network("image"), inputs("image")
    traced = plrp.trace(model, x).explain(composite="epsilon").test()
    assert torch.allclose(traced.drops[1], explained("image").test().drops[1])
    difference = plrp.explain(model, x, reference="grey")
    verdict = difference.test()
    assert verdict.own == 1
    assert torch.allclose(verdict.drops[0], explained("image").test().drops[0])
    assert "by blur:1, not its own reference," in verdict.words()
    assert plrp.explain(model, x, reference="zeros").test().own is None


def test_parts_and_replacements_of_ones_own() -> None:
    model, x = network("image"), inputs("image")
    corners = torch.full((14, 12), -1)
    corners[:7, :6], corners[7:, 6:], corners[:7, 6:] = 0, 1, 2
    noise = torch.randn(2, 2, 14, 12, **DOUBLE)
    verdict = explained("image").test(parts=corners, replacements=["zeros", noise])
    assert [len(one) for one in verdict.relevance] == [3, 3]
    score = model(x)[0]
    changed = torch.where(corners == 1, noise[0], x[0])[None]
    assert verdict.drops[0][1, 1].item() == pytest.approx((score.max() - model(changed)[0, score.argmax()]).item())
    assert math.isnan(verdict.blob[0])


def test_a_verdict_in_words_and_numbers() -> None:
    verdict = explained("image").test()
    for i in range(2):
        assert verdict.words(i).count(". ") == 1, "two sentences"
        assert verdict.words(i).endswith("in the score.")
        facts = json.loads(json.dumps(verdict.facts(i), allow_nan=False))
        assert facts["rho"] == verdict.rho[i].item()
        assert len(facts["relevance"]) == 42
        assert facts["gain_percentile"] is None
    assert repr(verdict).splitlines() == [f"sample {i}: {verdict.words(i)}" for i in range(2)]
    explanation = explained("image", 1)
    assert explanation.verdict is None
    assert explanation.test() is explanation.verdict


@pytest.mark.parametrize("kind", KINDS)
def test_figures(kind: str) -> None:
    verdict = explained(kind).test(**extras(kind))
    figure = verdict.figure(1)
    titles = [ax.get_title() for ax in figure.axes]
    assert titles[0].startswith("the map")
    assert [f": {name} " in title for name, title in zip(verdict.names, titles[1:], strict=True)] == [True, True]
    shown = figure.axes[1]
    heights = shown.images[-1].get_array().ravel() if kind == "image" else [
        bar.get_width() if kind in ("tokens", "table") else bar.get_height() for bar in shown.patches
    ]  # fmt: skip
    assert np.allclose(heights, verdict.drops[1][0])


# --- verdicts ---------------------------------------------------------------------------------------------------------


def sample_of(kind: str, case: int) -> tuple[nn.Module, Tensor]:
    """A network that looks at a few known pixels or bases only, and an input."""
    random = torch.Generator().manual_seed(case)
    shape = (1, 21, 21) if kind == "image" else (4, 98)
    space = shape[1:]
    seen = torch.zeros(shape, **DOUBLE)
    if kind == "image":
        x = torch.randn(1, *shape, generator=random, **DOUBLE)
    else:
        x = nn.functional.one_hot(torch.randint(4, (1, 98), generator=random), 4).transpose(1, 2).double()
    for place in torch.randperm(49, generator=random)[:8].tolist():
        where = (slice(None), *_tile(place, space))
        seen[where] = torch.randn(seen[where].shape, generator=random, **DOUBLE)
    layers = nn.Linear(seen.numel(), 6), nn.Linear(6, 2)
    net = nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1]).double().eval()
    with torch.no_grad():
        mix = torch.randn(6, seen.numel(), generator=random, **DOUBLE) * 0.3 + 1
        signs = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0], **DOUBLE)  # one half hears what the other does not
        layers[0].weight.copy_(signs[:, None] * mix * seen.flatten())
        layers[0].bias.fill_(2.0)
        layers[1].weight.copy_(torch.rand(2, 6, generator=random, **DOUBLE) * signs)
        layers[1].bias.zero_()
    return net, x


def _tile(place: int, space: tuple[int, ...]) -> tuple[slice, ...]:
    if len(space) == 1:
        return (slice(2 * place, 2 * place + 2),)
    row, column = divmod(place, 7)
    return slice(3 * row, 3 * row + 3), slice(3 * column, 3 * column + 3)


def judgements(kind: str, cases: range) -> dict[str, list[str]]:
    """Of right maps, and of maps that are wrong in three ways."""
    results: dict[str, list[str]] = {"right": [], "shifted": [], "inverted": [], "random": []}
    for case in cases:
        net, x = sample_of(kind, case)
        right = plrp.explain(net, x, target=0, composite="epsilon").relevance
        random = np.random.default_rng(case)
        axes = tuple(range(2, x.ndim))
        steps = [int(random.integers(1, 7)) * 3 for _ in axes] if kind == "image" else [int(random.integers(4, 45)) * 2]
        noise = torch.from_numpy(random.standard_normal(x.shape))
        noise = noise * x if kind == "sequence" else noise
        answers = metrics.Questions(net, x, target=0).occlusions()
        maps = {"right": right, "shifted": right.roll(steps, axes), "inverted": -right, "random": noise}
        for name, relevance in maps.items():
            results[name] += metrics.judged(relevance, answers).judgements()
    return results


def check_rates(results: dict[str, list[str]], most: float) -> None:
    count = len(results["right"])
    assert results["right"].count(BETTER) >= 0.95 * count
    assert results["inverted"].count(INVERTED) >= 0.95 * count
    assert results["inverted"].count(BETTER) == 0
    for name in ("shifted", "random"):
        assert results[name].count(BETTER) <= most * count, (name, results[name].count(BETTER))


@pytest.mark.parametrize("kind", ["image", "sequence"])
def test_a_planted_truth(kind: str) -> None:
    check_rates(judgements(kind, range(20)), 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["image", "sequence"])
def test_error_rates_over_two_hundred_planted_truths(kind: str) -> None:
    """At most one wrong map in twenty passes, give or take chance: 18 of 200 is the 99.5% quantile of 5%."""
    check_rates(judgements(kind, range(200)), 18 / 200)


def test_a_sign_inverted_map_is_named() -> None:
    net, x = sample_of("image", 3)
    relevance = plrp.explain(net, x, target=0, composite="epsilon").relevance
    verdict = metrics.ask(net, x, -relevance, target=0)
    assert verdict.judgements() == [INVERTED]
    assert "signs are inverted: its evidence for the score is evidence against it" in verdict.words()
    assert metrics.ask(net, x, relevance, target=0).judgements() == [BETTER]


def test_a_network_that_does_not_decide() -> None:
    """One replacement lowers the score as much as the other raises it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(49, 1, bias=False)).double().eval()
    x = torch.zeros(1, 1, 7, 7, **DOUBLE)
    random = torch.rand(1, 1, 7, 7, **DOUBLE) + 0.1
    verdict = metrics.ask(model, x, random, replacements=[random, -random + 0.01])
    assert verdict.agreement[0] < 0
    assert verdict.judgements() == [UNDECIDED]
    assert verdict.words().startswith("The network does not decide")
    assert verdict.ceiling.isnan().all()


def test_an_ignored_input_and_a_constant_map_get_one_answer_each() -> None:
    model, x = network("image"), inputs("image")
    constant = torch.ones(2, 14, 12)
    verdict = metrics.ask(model, x, constant)
    assert verdict.judgements() == [CONSTANT] * 2
    assert verdict.words().startswith("The map gives each of the 42 tiles the same relevance")
    ignoring = nn.Sequential(nn.Flatten(), nn.Linear(2 * 14 * 12, 2)).double().eval()
    nn.init.zeros_(ignoring[1].weight)
    verdict = metrics.ask(ignoring, x, torch.rand(2, 14, 12))
    assert verdict.judgements() == [UNMOVED] * 2
    assert "the model ignores this input, or the replacements equal it" in verdict.words()
    some = torch.stack([torch.ones(14, 12), torch.rand(14, 12)])
    assert metrics.ask(model, x, some).judgements()[0] == CONSTANT, "the other sample is judged"


def test_maps_that_know_nothing_are_no_better_than_chance() -> None:
    net, x = sample_of("image", 0)
    found = [metrics.ask(net, x, torch.rand(1, 1, 21, 21), target=0).judgements()[0] for _ in range(10)]
    assert found.count(CHANCE) >= 7


@pytest.mark.parametrize(
    ("kind", "how", "sentence"),
    [
        ("image", {"budget": 60}, "budget=60 is too small: 49 tiles need 128 forward passes per sample."),
        ("table", {"budget": 20, "data": DATA}, "budget=20 is too small: 9 features need"),
        ("table", {}, "replaced by their mean and by a drawn sample: give data="),
        ("image", {"parts": torch.zeros(14, 12)}, "has 1 tile to replace, and a comparison needs two"),
        ("image", {"parts": torch.full((14, 12), -1)}, "has 0 tiles to replace"),
        ("image", {"parts": torch.zeros(3, 3)}, "parts are"),
        ("image", {"replacements": ["blur:2"]}, "replacements are two"),
        ("tokens", {"mask": references.mask_token(3, set(range(40)))}, "has 0 tokens to replace"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(kind: str, how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        explained(kind).test(**how)
    assert sentence in str(error.value)


def test_other_refusals() -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return (a + 2 * b).flatten(1)[:, :3]

    x = inputs("image")
    with pytest.raises(ValueError, match="about one input, and this model has 2"):
        plrp.explain(Two(), (x, x), composite="epsilon").test()
    whole = plrp.explain(lambda t: t.flatten()[:1] * 2, x[0], samples=None, target=(0,), composite="epsilon")
    with pytest.raises(ValueError, match="no batch axis"):
        whole.test()
    with pytest.raises(ValueError, match="does not fit parts"):
        metrics.ask(network("image"), x, torch.rand(2, 5, 5))
    with pytest.raises(ValueError, match="this input is"):
        metrics.ask(network("image"), torch.rand(5), torch.rand(5))
    explanation = explained("image")
    with torch.no_grad():
        next(explanation._source.model.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="has changed"):
        explanation.test()


def test_explanations_without_their_model_refuse(tmp_path: Any) -> None:
    explanation = explained("image")
    verdict = explanation.test()
    torch.save(explanation, tmp_path / "e.pt")
    again = torch.load(tmp_path / "e.pt", weights_only=False)
    assert torch.equal(again.verdict.rho, verdict.rho)
    with pytest.raises(ValueError, match="stored without its model, which would have to answer"):
        again.test()
    explanation.save(tmp_path / "e.npz")
    loaded = plrp.load(tmp_path / "e.npz")
    assert loaded.verdict == [verdict.facts(0), verdict.facts(1)]
    with pytest.raises(ValueError, match="stored without its model"):
        loaded.test()
    explained("image").save(tmp_path / "untested.npz")
    assert plrp.load(tmp_path / "untested.npz").verdict is None


# --- edges ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    shape=st.one_of(
        st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
        st.tuples(st.integers(1, 4), st.integers(2, 40)),
    ),
    budget=st.integers(1, 220),
    sparse=st.floats(0, 1),
    seed=st.integers(0, 10_000),
)
def test_any_shape_and_budget_is_judged_or_refused(
    shape: tuple[int, ...], budget: int, sparse: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(2, *shape, generator=random)
    weight = torch.randn(shape, generator=random)
    relevance = torch.where(torch.rand(2, *shape, generator=random) < sparse, x * weight, 0.0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 1)).eval()
    with torch.no_grad():
        model[1].weight.copy_(weight.flatten()[None])
    positions = math.prod(shape[1:])
    image, fewest = len(shape) == 3, min(49, positions)
    too_small = affordable("image", budget) < (fewest if image else 1) or metrics.questions.cost("image", 2) > budget
    if positions < 2 or too_small:
        with pytest.raises(ValueError, match=r"is too small|to replace"):
            metrics.ask(model, x, relevance, budget=budget)
        return
    with counted(model) as passes:
        verdict = metrics.ask(model, x, relevance, budget=budget)
    assert sum(passes) == verdict.passes <= 2 * budget
    for i in range(2):
        assert math.prod(verdict.grid) == len(verdict.relevance[i]) >= 2
        assert verdict.words(i)
        json.dumps(verdict.facts(i), allow_nan=False)
        if not verdict.percentile[i].isnan():
            assert 0 <= verdict.percentile[i] <= 100
            assert 0 < verdict.chance[i] <= 1
