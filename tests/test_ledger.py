"""The ledger: plain records that close, entry by entry and in total, and say how each tensor was pruned."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import oracles
import plrp
from plrp import rules
from plrp.ledger import PRUNED, Booking, Ledger, averaged_ledgers, conservation, growth, growth_by_pruning

EVERY_ROW = {
    "sample", "entry", "layer", "op", "rule", "mass_in_positive", "mass_in_negative", "mass_out_positive",
    "mass_out_negative", "absorbed_bias", "absorbed_constant", "absorbed_epsilon", "softmax", "created",
    "cancellation", "amplification",
}  # fmt: skip
PRUNED_ROW = {
    "neurons_before", "neurons_after", "theta_positive", "theta_negative", "p_positive", "p_negative",
    "lambda_positive", "lambda_negative", "orphaned", "flipped", "flipped_mass",
}  # fmt: skip


class Mixed(nn.Module):
    """Everything that moves mass: biases, folded and free BatchNorm, skip, pools, cat, norm, dense."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.bn2, self.conv2 = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.conv3 = nn.Conv2d(16, 8, 1)
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.leaky_relu(self.bn1(self.stem(x)))
        g = F.max_pool2d(h, 2)
        g = g + self.conv2(F.relu(self.bn2(g)))
        g = F.relu(self.conv3(torch.cat([g, F.avg_pool2d(h, 2)], 1)))
        return self.fc2(F.gelu(self.fc1(self.norm(g.mean((2, 3))))))


def mixed(dtype: torch.dtype, seed: int = 0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    model = oracles.randomise_statistics(Mixed().eval(), seed)
    return model.to(dtype), torch.randn(3, 3, 8, 8).to(dtype)


PRUNINGS = [
    None,
    plrp.Pruning(p=0.3),
    plrp.Pruning(p=0.3, redistribution="M"),
    plrp.Pruning(p=0.3, conserve=False),
    plrp.Pruning(p=0.3, redistribution="M", conserve=False),
    plrp.Pruning(p=None, sparsity_gain=1.0),
    plrp.Pruning(p=0.9, sparsity_gain=0.5, measure="gini", redistribution="M"),
]


@pytest.mark.parametrize("pruning", PRUNINGS, ids=str)
@pytest.mark.parametrize(
    "composite",
    [
        "epsilon-plus-flat",
        "epsilon-plus",
        "epsilon-alpha2-beta1-flat",
        "epsilon-alpha2-beta1",
        "epsilon",
        "gamma-box",
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)], ids=["32", "64"])
def test_the_ledger_closes_per_entry_and_in_total(dtype, tolerance, composite, pruning):
    model, x = mixed(dtype)
    if composite == "gamma-box":
        composite = plrp.composite("epsilon-gamma-box", low=-3.5, high=3.5)
    explanation = plrp.explain(model, x, composite=composite, pruning=pruning)
    scores = explanation.logits.gather(1, explanation.target[:, None])[:, 0]
    oracles.assert_ledger_closes(explanation, scores, tolerance)


@pytest.mark.parametrize(
    "rule",
    [rules.Zero(), rules.WSquare(), rules.ZBox(low=-4, high=4), rules.Epsilon(epsilon=0.5), rules.Gamma(2.0)],
)
def test_the_ledger_closes_for_rules_outside_the_named_composites(rule):
    model, x = mixed(torch.float64)
    composite = plrp.Composite([(plrp.composites.is_any, rule)], name="one rule")
    for pruning in (None, plrp.Pruning(p=0.4, redistribution="M")):
        explanation = plrp.explain(model, x, composite=composite, pruning=pruning, target=[0, 1, 4])
        scores = explanation.logits[torch.arange(3), torch.tensor([0, 1, 4])]
        oracles.assert_ledger_closes(explanation, scores, 1e-9)


def test_the_bias_of_every_layer_is_booked_as_absorbed():
    """A chain under the ε-rule: what is missing at the input is what the oracle says biases and ε took."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8).double(), nn.Linear(8, 7).double(), nn.Linear(7, 3).double()]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).eval()
    x = torch.randn(2, 6, dtype=torch.float64)
    explanation = plrp.explain(model, x, target=1, composite="epsilon")
    steps = [
        oracles.linear_step("0", "x", layers[0], (6,)), oracles.relu_step("a", "0"),
        oracles.linear_step("2", "a", layers[1], (8,)), oracles.relu_step("b", "2"),
        oracles.linear_step("4", "b", layers[2], (7,)),
    ]  # fmt: skip
    for sample in range(2):
        walk = oracles.walk(steps, x[sample], 1, lambda *_: ("epsilon", {}))
        rows = [row for row in explanation.ledger if row["sample"] == sample]
        assert sum(row["absorbed_bias"] for row in rows) == pytest.approx(walk.absorbed_bias, rel=1e-9)
        assert sum(row["absorbed_epsilon"] for row in rows) == pytest.approx(walk.absorbed_epsilon, rel=1e-6)
        assert [row["layer"] for row in rows if row["op"] == "linear"] == ["4", "2", "0"]


def test_alpha_beta_books_what_an_empty_branch_creates():
    """All contributions positive: α hands down 2R, β has nobody to take R back from, so R is created."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.abs_().add_(0.1)
    x = torch.rand(1, 3, dtype=torch.float64)
    composite = plrp.Composite([(plrp.composites.is_any, rules.AlphaBeta())], name="ab")
    explanation = plrp.explain(model, x, target=0, composite=composite)
    score = float(explanation.logits[0, 0])
    assert float(explanation.relevance.sum()) == pytest.approx(4 * score, rel=1e-4)
    assert [row["created"] for row in explanation.ledger] == pytest.approx([score, 2 * score], rel=1e-4)
    oracles.assert_ledger_closes(explanation, explanation.logits[:, 0], 1e-9)


@pytest.mark.parametrize("pruning", PRUNINGS, ids=str)
def test_records_are_plain_numbers_and_strings_that_pandas_and_polars_take(pruning):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    model, x = mixed(torch.float32)
    ledger = plrp.explain(model, x, pruning=pruning).ledger
    assert isinstance(ledger, list)
    for row in ledger:
        assert row.keys() >= EVERY_ROW
        assert all(isinstance(value, int | float | str | bool | None) for value in row.values())
        assert all(math.isfinite(v) for v in row.values() if isinstance(v, float))
        assert row["mass_in_positive"] >= 0
        assert row["mass_in_negative"] >= 0
        if row["op"] == "prune":
            assert row.keys() >= PRUNED_ROW
    assert len(pandas.DataFrame(ledger)) == len(ledger)
    assert len(polars.DataFrame(ledger, infer_schema_length=None)) == len(ledger)
    assert {row["sample"] for row in ledger} == {0, 1, 2}


def test_records_go_from_the_score_down_to_the_input():
    model, x = mixed(torch.float64)
    ledger = plrp.explain(model, x).ledger
    rows = [row for row in ledger if row["sample"] == 0]
    entries = [row["entry"] for row in rows]
    assert entries == sorted(set(entries))
    named = [row["layer"] for row in rows if row["op"] in ("linear", "conv2d")]
    assert named == ["fc2", "fc1", "conv3", "conv2", "stem"]


@pytest.mark.parametrize("redistribution", ["lambda", "M"])
def test_pruned_rows_state_threshold_reached_p_and_lambda(redistribution):
    model, x = mixed(torch.float64)
    trace = plrp.trace(model, x)
    before = trace.explain(layers=True).layers["fc2"]
    explanation = trace.explain(pruning=plrp.Pruning(p=0.3, p_negative=0.1, redistribution=redistribution), layers=True)
    rows = [row for row in explanation.ledger if row["op"] == "prune" and row["layer"] == "fc2"]
    assert len(rows) == 3
    for row in rows:
        r = before[row["sample"]]
        theta_positive, theta_negative = oracles.Cut(p=0.3, p_negative=0.1).thresholds(r)
        assert row["theta_positive"] == theta_positive
        assert row["theta_negative"] == theta_negative
        for sign, part, theta, limit in (
            ("positive", oracles.positive(r), theta_positive, 0.3),
            ("negative", -oracles.negative(r), theta_negative, 0.1),
        ):
            mass, kept = float(part.sum()), float(part[part > theta].sum())
            reached = 1 - kept / mass if mass else 0.0
            assert row[f"p_{sign}"] == pytest.approx(reached, abs=1e-9)
            assert row[f"p_{sign}"] <= limit + 1e-12
            assert row[f"mass_in_{sign}"] == pytest.approx(mass, rel=1e-9)
            if redistribution == "lambda" and mass:
                assert row[f"lambda_{sign}"] == pytest.approx(mass / kept, rel=1e-9)
                assert row[f"mass_out_{sign}"] == pytest.approx(mass, rel=1e-9)
        survivors = int(((r > theta_positive) | (-r > theta_negative)).sum())
        assert row["neurons_after"] == survivors


@pytest.mark.parametrize("redistribution", ["lambda", "M"])
def test_dropped_mass_is_booked_only_where_nothing_is_conserved(redistribution):
    model, x = mixed(torch.float64)
    trace = plrp.trace(model, x)
    kept = trace.explain(pruning=plrp.Pruning(p=0.3, redistribution=redistribution))
    assert not any(row.get("dropped") for row in kept.ledger)
    lossy = trace.explain(pruning=plrp.Pruning(p=0.3, redistribution=redistribution, conserve=False))
    rows = [row for row in lossy.ledger if row["op"] == "prune"]
    assert any(oracles.lost(row) for row in rows)
    for row in rows:
        assert oracles.lost(row) == pytest.approx(oracles.net(row, "in") - oracles.net(row, "out"), abs=1e-9)
        if redistribution == "lambda":  # M's naive re-application loses to bias and ε instead
            assert row["dropped"] == oracles.lost(row)


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.3, redistribution="M")], ids=str)
def test_printing_an_explanation_is_a_summary_and_its_ledger_a_readable_table(pruning):
    model, x = mixed(torch.float32)
    explanation = plrp.explain(model, x, pruning=pruning)
    assert len(str(explanation)) < 900
    assert "conserves; " in str(explanation)
    assert "print(explanation.booked)" in str(explanation)
    text = str(explanation.booked)
    for name in ("stem", "conv2", "fc2"):
        assert name in text
    assert max(map(len, text.splitlines())) <= 200
    assert "<table" in explanation._repr_html_()


@pytest.mark.parametrize("batch", [0, 2])
def test_the_table_of_the_ledger_shows_sums_of_columns_as_means_over_the_samples(batch):
    def around(mean: float) -> Tensor:
        return torch.tensor([mean - 1, mean + 1][:batch])

    book = Booking()
    book.bias, book.constant = around(1.0), 2.0
    book.epsilon, book.softmax, book.created, book.dropped, book.withheld = map(around, (10.0, 20.0, 5.0, 40.0, 80.0))
    ledger = Ledger(batch)
    masses = {"mass_in": (around(8.0), around(3.0)), "mass_out": (around(4.0), around(6.0))}
    cut = {"neurons_before": around(9.0), "neurons_after": around(4.0), "p_positive": 0.25, "p_negative": around(1.5)}
    ledger.add(layer="fc", op="linear", rule="mine", book=book, **masses)
    ledger.add(layer="fc", op="prune", rule="PLRP", book=Booking(), **masses, **cut)
    numbers = ("5", "-2", "3", "145") if batch else ("0", "0", "2", "0")
    pruned = ("9 → 4", "0.250 / 1.500") if batch else ("0 → 0", "0.250 / 0.000")
    assert ledger.table() == [
        ("fc", "linear", "mine", *numbers, "", ""),
        ("fc", "prune", "PLRP", *numbers[:2], "0", "0", *pruned),
    ]


def test_growth_is_named_by_operation_or_input_and_columns_that_older_ledgers_lack_are_zero():
    ledger, one = Ledger(2), torch.ones(2)
    assert ledger.largest_mass().tolist() == [0, 0]
    ledger.add(layer="", op="add", rule="", mass_in=(one, 0 * one), mass_out=(3 * one, 0 * one), book=Booking())
    largest, names = ledger.largest_growth(one, torch.tensor([5.0, 30.0]))
    assert (largest.tolist(), names) == ([5, 30], ["add", "the input"])
    del ledger._rows[0]["withheld"]
    assert ledger.total("withheld").tolist() == [0, 0]


def test_names_in_a_printed_explanation_are_escaped():
    model, x = mixed(torch.float32)
    composite = copy.copy(plrp.explain(model, x).composite)
    composite.name, composite.reason = "<b>mine", "a < b & c"
    shown = plrp.explain(model, x, composite=composite)._repr_html_()
    assert "<b>" not in shown
    assert "&lt;b&gt;mine (a &lt; b &amp; c)" in shown


def test_survivors_are_the_neurons_left_in_a_layers_input_strongest_first():
    model, x = mixed(torch.float64)
    explanation = plrp.explain(model, x, pruning=plrp.Pruning(p=0.4), layers=True)
    kept = explanation.layers["conv3"]
    survivors = explanation.survivors("conv3")
    assert len(survivors) == len(x)
    for sample, found in enumerate(survivors):
        assert found.relevance.shape == (int((kept[sample] != 0).sum()),)
        assert found.index.shape == (len(found.relevance), kept.dim() - 1)
        assert torch.equal(found.relevance.abs(), found.relevance.abs().sort(descending=True).values)
        assert torch.equal(kept[sample][tuple(found.index.T)], found.relevance)
    without_layers = plrp.explain(model, x, pruning=plrp.Pruning(p=0.4)).survivors("conv3")
    for found, again in zip(survivors, without_layers, strict=True):
        assert torch.equal(found.index, again.index)
        assert torch.equal(found.relevance, again.relevance)


def test_survivors_of_an_unknown_layer_name_the_nearest():
    model, x = mixed(torch.float64)
    explanation = plrp.explain(model, x, pruning=plrp.Pruning(p=0.4))
    with pytest.raises((KeyError, ValueError), match="conv3,"):
        explanation.survivors("conv33")


# --- summaries of a ledger, restated from its records -----------------------------------------------------------------

ENTRIES = [("fc3", "linear"), ("fc3", "prune"), ("", "add"), ("fc2", "prune"), ("fc1", "prune"), ("", "mean")]
BATCH = 4


def drawn(seed: int, entries: list[tuple[str, str]] = ENTRIES, batch: int = BATCH) -> Ledger:
    """A ledger of random numbers, many of them 0; some are tensors (batch,) and others floats."""
    generator = torch.Generator().manual_seed(seed)

    def numbers() -> Tensor:
        return torch.rand(batch, generator=generator) * (torch.rand(batch, generator=generator) > 0.4) * 2

    ledger = Ledger(batch)
    for layer, op in entries:
        book = Booking()
        book.bias, book.constant, book.epsilon, book.softmax = numbers(), numbers(), 0.5, numbers()
        book.created, book.dropped, book.withheld, book.amplification = numbers(), numbers(), numbers(), numbers()
        masses = {"mass_in": (numbers(), numbers()), "mass_out": (numbers(), numbers())}
        cut = {name: numbers() for name in PRUNED} if op == "prune" else {}
        ledger.add(layer=layer, op=op, rule="ε", book=book, **masses, **cut)
    return ledger


def of_sample(ledger: Ledger, sample: int, *ops: str) -> list[dict[str, Any]]:
    return [row for row in ledger if row["sample"] == sample and (not ops or row["op"] in ops)]


def size(row: dict[str, Any], side: str) -> float:
    return float(row[f"mass_{side}_positive"] + row[f"mass_{side}_negative"])


def words(row: dict[str, Any]) -> str:
    place = f"'{row['layer']}'" if row["layer"] else row["op"]
    return f"the pruned input of {place}" if row["op"] == "prune" else place


@pytest.mark.parametrize("seed", range(6))
def test_the_largest_growth_on_the_way_is_that_of_the_records(seed):
    ledger = drawn(seed)
    start, end = torch.tensor([0.1, 5.0, 0.3, 0.2]), torch.tensor([0.1, 4.0, math.nan, 0.0])
    largest, names = ledger.largest_growth(start, end)
    for sample in range(BATCH):
        steps = [(words(row), size(row, side)) for row in of_sample(ledger, sample) for side in ("in", "out")]
        reached, most, where = float(start[sample]), 1.0, "the output"
        for name, mass in [*steps, ("the input", float(end[sample]))]:
            mass = math.inf if math.isnan(mass) else mass
            if mass > reached and mass / reached > most:
                most, where = mass / reached, name
            reached = max(reached, mass)
        assert (float(largest[sample]), names[sample]) == (pytest.approx(reached), where)
        expected = max(mass for _, mass in steps)
        assert float(ledger.largest_mass()[sample]) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(6))
def test_the_summary_of_pruned_tensors_is_that_of_their_records(seed):
    ledger = drawn(seed)
    cut, tied, flipped = ledger.pruned()
    grown, where = growth_by_pruning(ledger)
    for sample in range(BATCH):
        rows = of_sample(ledger, sample, "prune")
        assert float(cut[sample]) == pytest.approx(sum(max(r["p_positive"], r["p_negative"]) > 0 for r in rows) / 3)
        assert float(tied[sample]) == pytest.approx(max(row["tied"] for row in rows))
        pairs = [(row["flipped_mass"], size(row, "out")) for row in rows]
        shares = [0.0 if not turned else turned / mass if mass else math.inf for turned, mass in pairs]
        assert float(flipped[sample]) == pytest.approx(max(shares))
        factors = [max(1.0, size(row, "out") / size(row, "in")) if size(row, "in") else 1.0 for row in rows]
        assert float(grown[sample]) == pytest.approx(max(factors))
        assert where[sample] == words(rows[factors.index(max(factors))])


def test_a_ledger_without_pruned_tensors_says_so():
    ledger = drawn(0, [("fc", "linear"), ("", "add")])
    assert all(one.shape == (BATCH,) and bool(one.isnan().all()) for one in ledger.pruned())
    grown, where = growth_by_pruning(ledger)
    assert (grown.tolist(), where) == ([1.0] * BATCH, [""] * BATCH)


def test_growth_is_one_where_there_was_nothing_or_less_is_left():
    before, after = torch.tensor([0.0, 1.0, 2.0, 0.5]), torch.tensor([3.0, 3.0, 1.0, 0.6])
    assert growth(before, after).tolist() == pytest.approx([1.0, 3.0, 1.0, 1.2])


def test_the_ledger_of_a_batch_has_the_records_of_its_pieces():
    parts = [drawn(0, batch=2), drawn(1, batch=3)]
    parts[0]._rows[0]["absorbed_bias"] = 0.25  # a float in one piece, a tensor in the other
    whole = Ledger.joined(parts)
    assert len(whole) == len(parts[0]) + len(parts[1])
    records = [row for sample in range(5) for row in of_sample(whole, sample)]
    pieces = [(n + first, row) for first, part in zip((0, 2), parts, strict=True) for n in range(part.batch)
              for row in of_sample(part, n)]  # fmt: skip
    assert records == [{**row, "sample": sample} for sample, row in pieces]
    with pytest.raises(ValueError, match="ran different operations for different pieces"):
        Ledger.joined([parts[0], drawn(1, ENTRIES[:5])])
    with pytest.raises(ValueError, match="ran different operations"):
        Ledger.joined([parts[0], drawn(1, [*ENTRIES[:5], ("", "sum")])])


def test_the_ledgers_against_references_have_a_mean_and_a_spread():
    parts = [drawn(seed) for seed in range(3)]
    mean, spread = averaged_ledgers(parts)
    for statistic, ledger in ((torch.mean, mean), (lambda values: values.std(correction=0), spread)):
        for row, *several in zip(ledger, *parts, strict=True):
            for name, value in row.items():
                each = [one[name] for one in several]
                if isinstance(each[0], float):
                    assert value == pytest.approx(float(statistic(torch.tensor(each).double())), abs=1e-9)
                else:  # names, and columns that an entry does not have
                    assert value == each[0]


@pytest.mark.parametrize("seed", range(3))
def test_conservation_is_the_missing_mass_by_the_largest_on_the_way(seed):
    ledger, score = drawn(seed), torch.tensor([0.5, -100.0, 2.0, 3.0])
    inputs = [torch.rand(BATCH, 2, 3), torch.rand(BATCH)]
    missing = conservation(score, inputs, ledger)
    for sample in range(BATCH):
        rows = of_sample(ledger, sample)
        rest = float(score[sample]) - sum(float(relevance[sample].sum()) for relevance in inputs)
        for row in rows:
            rest += row["created"] - row["absorbed_bias"] - row["absorbed_constant"] - row["absorbed_epsilon"]
            rest -= row["softmax"] + row["dropped"] + row["withheld"]
        largest = max(abs(float(score[sample])), *(size(row, side) for row in rows for side in ("in", "out")))
        assert float(missing[sample]) == pytest.approx(abs(rest) / largest, rel=1e-6)
    for name in ("created", "absorbed_epsilon"):
        expected = [sum(row[name] for row in of_sample(ledger, sample)) for sample in range(BATCH)]
        assert ledger.total(name).tolist() == pytest.approx(expected)
