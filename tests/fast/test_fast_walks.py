"""Explanations on the fast paths are those of the reference, for whole networks: step by step, and from end to end."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nets import KINDS, followed, network, target
from random_layers import BODIES, body
from torch import Tensor

import plrp
from plrp import engine, rules
from plrp.fast import fast_walk as walking
from plrp.fast import propagation
from plrp.fast.neuron_pruning import dense_arrived
from plrp.fast.neurons import dense
from plrp.ledger import Booking
from plrp.passing import book_branch
from plrp.pruning import prune as plain_prune
from plrp.rules import quotient
from plrp.tape.samples import Samples

pytestmark = pytest.mark.skipif(engine._PLAIN.get(), reason="there is nothing to compare where fast paths are off")

NAMED = [
    "epsilon-plus-flat",
    "epsilon-plus",
    "epsilon",
    "epsilon-alpha2-beta1",
    "epsilon-alpha2-beta1-flat",
    "epsilon-gamma-box",
]
COMPOSITES: dict[str, str | plrp.Composite] = {name: name for name in NAMED}
for rule in (rules.Zero(), rules.WSquare(), rules.Flat(), rules.SignedZPlus()):
    COMPOSITES[rule.name] = plrp.Composite([(plrp.composites.is_any, rule)], name=rule.name)

shares = st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.9])
prunings = st.builds(
    plrp.Pruning,
    p=shares,
    p_negative=st.one_of(st.none(), shares),
    redistribution=st.sampled_from(["lambda", "M", "M-sign"]),
    conserve=st.sampled_from([True, True, True, False]),
    sparsity_gain=st.sampled_from([None, None, None, 0.5, 1.0]),
    measure=st.sampled_from(["zeros", "gini"]),
)
kinds = st.sampled_from(sorted(KINDS))
axes_ = st.sampled_from([1, 1, 2, 2, 3])
seeds = st.integers(0, 10_000)
followed_below = st.sampled_from([0.1, 0.4, 1.0])


def relative(found: Tensor, expected: Tensor) -> Tensor:
    """The L1 distance per sample, relative to the L1 norm."""
    norm = expected.flatten(1).abs().sum(1)
    return (found - expected).flatten(1).abs().sum(1) / torch.where(norm > 0, norm, 1.0)


# ---------------------------------------------------------------- step by step


def near(found: Any, expected: Any, magnitude: Any, unit: float) -> None:
    found, expected, magnitude = (torch.as_tensor(v).double() for v in (found, expected, magnitude))
    assert bool(((found - expected).abs() <= unit * magnitude + 1e-30).all()), (found, expected)


BOOKED = ("bias", "constant", "epsilon", "softmax", "created", "dropped")


@contextmanager
def checked_step_by_step(unit: float) -> Iterator[None]:
    """Whatever a fast path computes is computed by the plain code too, from the same relevance, and compared.

    So rounding cannot add up, nor turn a borderline neuron: tolerances are those of one step.
    """
    fast_prune, fast_layer = walking.FastWalk.prune, propagation.through_layer

    def prune(walk: Any, relevance: Any, site: Any, arrived: Any, book: Booking) -> Any:
        pruning = walk.pruning
        before = dense(relevance).clone()
        found, columns = fast_prune(walk, relevance, site, arrived, book)
        assert torch.equal(dense(relevance), before)  # others may hold it
        plain = Booking(book.active)
        tensors = None if arrived is None else dense_arrived(arrived)
        expected, plain_columns = plain_prune(before, site, pruning, tensors, plain)
        rows, plain_rows = (site.value.samples.rows(dense(r)) for r in (found, expected))
        scale = site.value.samples.rows(before).abs().sum(1)
        # λ leaves the survivors in place. Under M the contributions to a neuron may cancel, or to none but rounding.
        if pruning.redistribution == "lambda":
            assert torch.equal(rows != 0, plain_rows != 0)
            near(rows, plain_rows, plain_rows.abs(), unit)
        # Contributions of both signs may leave a millionth of themselves, which is not yet nothing (`ORPHANED`): what
        # they hand down then differs by as much as rounding is amplified.
        layers = [] if arrived is None else [one for _, branches in arrived.layers for one in branches]
        signed = pruning.redistribution != "lambda" and not all(one.branch.one_sign for one in layers)
        amplified = 1e3 * unit if signed else unit
        near(rows.sum(1), plain_rows.sum(1), scale, amplified)
        near(
            (rows - plain_rows).abs().sum(1),
            torch.zeros_like(scale),
            torch.maximum(scale, plain_rows.abs().sum(1)),
            amplified,
        )
        for name in columns if book.active else ():
            kind = torch.as_tensor(columns[name]).double(), torch.as_tensor(plain_columns[name]).double()
            if name.startswith(("theta", "neurons_before")) or (
                name == "neurons_after" and pruning.redistribution == "lambda"
            ):
                assert torch.equal(*kind), name
            elif name not in ("flipped", "flipped_mass", "neurons_after"):
                near(*kind, kind[1].abs().clamp(min=1) + (scale.double() if name == "orphaned" else 0), amplified)
        for name in BOOKED:
            near(getattr(book, name), getattr(plain, name), scale, amplified)
        return found, columns

    def through_layer(
        geometry: Any, neurons: Any, branches: Any, denominators: Any, epsilon: float, book: Booking
    ) -> Any:
        rows, kept = fast_layer(geometry, neurons, branches, denominators, epsilon, book)
        found = rows.dense()
        plain, samples = Booking(book.active), Samples.first_axis(geometry.inputs[0])
        expected, magnitude, taken = torch.zeros_like(found), torch.zeros_like(found), torch.zeros(len(found)).double()
        given = neurons.dense()
        for branch in branches:
            part = given * branch.share
            d = branch.contributions(bias=branch.bias) if branch.denominator is None else branch.denominator
            s = quotient(part, d, epsilon, branch.one_sign)
            expected += branch.hand(s, expected)
            book_branch(plain, branch, part, s, d, epsilon, samples.sum, branch.bias)
            # Where a denominator is the difference of large contributions, its rounding is what counts.
            ones = torch.ones_like(found)
            large = branch.magnitudes(ones) + (0 if branch.bias is None else branch.bias.abs())
            amplified = s.abs() * (1 + large / (d.abs() + max(epsilon, 1e-30)))
            for piece in branch.parts:
                term = branch.map.transpose(amplified, piece.weight.full.abs(), expected)
                magnitude += term if piece.unit else term * piece.input.abs()
            taken += (amplified * large.clamp(min=epsilon)).flatten(1).double().sum(1)
        near(found, expected, magnitude, unit)
        for name in BOOKED:
            near(getattr(book, name), getattr(plain, name), taken, unit)
        return rows, kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walking.FastWalk, "prune", prune)
        patch.setattr(propagation, "through_layer", through_layer)
        yield


@pytest.mark.parametrize("name", BODIES)
@settings(max_examples=30, deadline=None)
@given(kinds, axes_, seeds, st.sampled_from(sorted(COMPOSITES)), prunings, followed_below, st.booleans(), st.booleans())
def test_every_step_is_that_of_the_reference(
    name: str,
    kind: str,
    axes: int,
    seed: int,
    composite: str,
    pruning: plrp.Pruning,
    below: float,
    ties: bool,
    once: bool,
) -> None:
    with body(name) as dtype, followed(below), checked_step_by_step(2e-5 if dtype == torch.float32 else 1e-12):
        model, x = network(kind, axes, seed, dtype, ties=ties)
        options = {"target": target(kind, axes), "composite": COMPOSITES[composite], "pruning": pruning}
        explanation = plrp.explain(model, x, **options) if once else plrp.trace(model, x).explain(**options)
        assert len(explanation.ledger) > 0
        assert bool(explanation.relevance.isfinite().all())


# ---------------------------------------------------------------- from end to end


def both(name: str, kind: str, axes: int, seed: int, below: float, **options: Any) -> tuple[Any, Any, Any]:
    """The explanation on the fast path, that of the reference, and what ran on the fast path."""
    with body(name) as dtype:
        model, x = network(kind, axes, seed, dtype)
        options["target"] = target(kind, axes)
        with plrp.plain_walk():
            expected = plrp.trace(model, x).explain(layers=True, **options)
            assert expected.ledger
        with followed(below) as taken:
            found = plrp.trace(model, x).explain(layers=True, **options)
            assert found.ledger
            once = plrp.explain(model, x, **options)
        assert float(relative(once.relevance, found.relevance).max()) <= (1e-4 if dtype == torch.float32 else 1e-9)
    return found, expected, taken


@settings(max_examples=30, deadline=None)
@given(kinds, axes_, seeds, st.sampled_from(sorted(COMPOSITES)), st.one_of(st.none(), prunings), followed_below)
def test_explanations_and_ledgers_are_those_of_the_reference(
    kind: str, axes: int, seed: int, composite: str, pruning: plrp.Pruning | None, below: float
) -> None:
    """In float64, where no rounding is large enough to turn a borderline neuron.

    But ♭ everywhere makes ties, which any rounding breaks: pruned, it is compared step by step alone.
    """
    assume(pruning is None or composite != "Flat()")
    found, expected, taken = both(
        "torch float64", kind, axes, seed, below, composite=COMPOSITES[composite], pruning=pruning
    )
    assert float(relative(found.relevance, expected.relevance).max()) <= 1e-9
    assert found.layers.keys() == expected.layers.keys()
    for name, layer in found.layers.items():
        assert float(relative(layer, expected.layers[name]).max()) <= 1e-9, name
    assert torch.equal(found.score, expected.score)
    assert len(found.ledger) == len(expected.ledger)
    for row, plain in zip(found.ledger, expected.ledger, strict=True):
        scale = max(abs(plain[column]) for column in plain if column.startswith("mass"))
        for column, value in plain.items():
            if isinstance(value, float):
                assert abs(row[column] - value) <= 1e-9 * max(scale, abs(value), 1e-3), (column, plain)
            else:
                assert row[column] == value, (column, plain)
    # ♭ looks at no single neuron, and a concatenation hands dense tensors down.
    assert taken["through_layer"] or below < 1.0 or composite == "Flat()" or kind == "Growing"


SINGLE_PRECISION = [
    None,
    *(plrp.Pruning(p=p) for p in (0.05, 0.2, 0.5, 0.9)),
    *(plrp.Pruning(p=p, redistribution="M") for p in (0.05, 0.2, 0.5)),
    plrp.Pruning(p=0.3, p_negative=0.1),
]


def cuts(explanation: Any, sample: int) -> list[dict[str, Any]]:
    return [row for row in explanation.ledger if row["op"] == "prune" and row["sample"] == sample]


def cut_elsewhere(cut: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """Whether another neuron survived somewhere: two sums lay on either side of p·C, by rounding alone."""
    return any(
        row["neurons_after"] != plain["neurons_after"]
        or any(abs(row[c] - plain[c]) > 1e-5 * plain[c] for c in ("theta_positive", "theta_negative"))
        for row, plain in zip(cut, other, strict=True)
    )


@pytest.mark.parametrize(
    ("axes", "composites"),
    [
        (1, ["epsilon-plus-flat", "epsilon-gamma-box"]),
        (2, ["epsilon-plus-flat", "epsilon"]),
        (3, ["epsilon-plus", "epsilon-alpha2-beta1"]),
    ],
)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_compiled_explanations_are_those_of_the_reference(kind: str, axes: int, composites: list[str]) -> None:
    """In float32, where roughly one sample in a thousand has a neuron that rounding lets live on one side only."""
    compared, excused, ran = 0, 0, Counter[str]()
    for seed, composite in enumerate(composites):
        model, x = network(kind, axes, seed)
        for pruning in SINGLE_PRECISION:
            options = {"target": target(kind, axes), "composite": composite, "pruning": pruning}
            with plrp.plain_walk():
                expected = plrp.explain(model, x, **options)
            with body("compiled"), followed((0.6, 0.1)[seed]) as taken:
                found = plrp.explain(model, x, **options)
                ran += taken
                compared += len(x)
                for n in (relative(found.relevance, expected.relevance) > 5e-5).nonzero().flatten().tolist():
                    with plrp.plain_walk():
                        assert expected.ledger
                    assert cut_elsewhere(cuts(found, n), cuts(expected, n)), (composite, pruning)
                    excused += 1
    assert excused <= 0.05 * compared
    concatenates = kind in ("Growing", "Branching")  # which hands dense tensors down
    paths = {"survivors", "thin"} if concatenates else {"survivors", "through_layer", "pass_on", "redistribute"}
    assert paths <= set(ran), ran


@pytest.mark.parametrize("name", ["compiled", "torch float64"])
@settings(max_examples=15, deadline=None)
@given(kinds, axes_, seeds, st.sampled_from(NAMED), prunings, followed_below)
def test_a_sample_alone_is_the_sample_among_others(
    name: str, kind: str, axes: int, seed: int, composite: str, pruning: plrp.Pruning, below: float
) -> None:
    """How sparse its neighbours are decides which path is taken, and nothing else."""
    with body(name) as dtype, followed(below):
        model, x = network(kind, axes, seed, dtype)
        classes = model(x).argmax(1)
        options = {"composite": composite, "pruning": pruning}
        together = plrp.explain(model, x, target=target(kind, axes) or classes, **options)
        for n in range(len(x)):
            alone = plrp.explain(model, x[n : n + 1], target=target(kind, axes) or classes[n : n + 1], **options)
            off = float(relative(alone.relevance, together.relevance[n : n + 1]))
            if dtype == torch.float64:
                assert off <= 1e-9
            else:
                assert off <= (5e-4 if pruning.redistribution != "lambda" else 5e-5) or cut_elsewhere(
                    cuts(alone, 0), cuts(together, n)
                )


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.2), plrp.Pruning(p=0.2, redistribution="M")], ids=repr)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_samples_give_no_relevance(name: str, kind: str, pruning: plrp.Pruning | None) -> None:
    with body(name) as dtype, followed(1.0):
        model, x = network(kind, 2, 0, dtype)
        explanation = plrp.explain(model, x[:0], target=target(kind, 2), pruning=pruning, layers=True)
        assert explanation.relevance.shape == x[:0].shape
        assert explanation.ledger == []
        assert all(len(layer) == 0 for layer in explanation.layers.values())


# ---------------------------------------------------------------- many prunings of one trace

SWEPT: list[plrp.Pruning | None] = [
    None,
    *(plrp.Pruning(p=p) for p in (0.0, 0.05, 0.2, 0.3, 0.5, 0.9)),
    plrp.Pruning(p=0.4, redistribution="M"),
    plrp.Pruning(p=0.3, p_negative=0.8),
    plrp.Pruning(p=0.8, p_negative=0.3),
    plrp.Pruning(p=0.5, sparsity_gain=1.0),
    plrp.Pruning(p=0.5),
    plrp.Pruning(p=0.5),
    plrp.Pruning(p=None, sparsity_gain=0.8),
    plrp.Pruning(p=0.6, conserve=False),
    plrp.Pruning(p=0.6),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=20, deadline=None)
@given(
    kinds,
    axes_,
    seeds,
    st.sampled_from(NAMED),
    st.lists(st.sampled_from(SWEPT), max_size=7),
    followed_below,
    st.integers(0, 3),
)
def test_a_sweep_is_one_explanation_after_the_other(
    dtype: torch.dtype,
    kind: str,
    axes: int,
    seed: int,
    composite: str,
    swept: list[plrp.Pruning | None],
    below: float,
    samples: int,
) -> None:
    """Prunings that are walked together, in one stack, do not see each other."""
    with followed(below):
        model, x = network(kind, axes, seed, dtype, samples)
        options = {"target": target(kind, axes), "composite": composite, "layers": True}
        found = list(plrp.trace(model, x).sweep(swept, **options))
        assert len(found) == len(swept)
        trace = plrp.trace(model, x)
        for explanation, pruning in zip(found, swept, strict=True):
            expected = trace.explain(pruning=pruning, **options)
            assert explanation.pruning == pruning
            assert torch.equal(explanation.score, expected.score)
            assert explanation.layers.keys() == expected.layers.keys()
            kept = {"input": explanation.relevance, **explanation.layers}
            for layer, relevance in {"input": expected.relevance, **expected.layers}.items():
                off = relative(kept[layer], relevance)
                if dtype == torch.float64:
                    assert bool((off <= 1e-9).all()), layer
                elif below == 1.0:  # both follow all neurons, so both round alike
                    assert bool((off <= 1e-5).all()), layer
                else:
                    assert bool((off <= 0.2).all()), layer  # a borderline neuron may have turned


@pytest.mark.slow
@pytest.mark.parametrize("composite", ["epsilon-plus-flat", "epsilon-plus", "epsilon", "epsilon-gamma"])
@pytest.mark.parametrize("axes", [1, 2])
def test_outputs_of_either_sign_are_followed_as_in_the_reference(axes: int, composite: str) -> None:
    """Below activations that are not zero at zero, pruned and not, one by one and in a stack."""
    prunings = [None, *SWEPT, plrp.Pruning(0.3, redistribution="M"), plrp.Pruning(0.3, redistribution="M-sign")]
    for pruning in prunings:
        found, expected, _ = both("torch float64", "Soft", axes, 1, 1.0, composite=composite, pruning=pruning)
        assert float(relative(found.relevance, expected.relevance).max()) <= 1e-9
        assert float(found.closing().max()) <= 1e-9
    with followed(1.0):
        model, x = network("Soft", axes, 1, torch.float64)
        trace = plrp.trace(model, x)
        for explanation, pruning in zip(trace.sweep(SWEPT, composite=composite), SWEPT, strict=True):
            alone = trace.explain(composite=composite, pruning=pruning)
            assert float(relative(explanation.relevance, alone.relevance).max()) <= 1e-9


# ---------------------------------------------------------------- sample by sample


@contextmanager
def ways_noted() -> Iterator[list[list[bool]]]:
    """For every conv layer that was come to, which samples went neuron by neuron."""
    noted: list[list[bool]] = []
    decide = propagation.neurons_of

    def noting(relevance: Any) -> Any:
        few = decide(relevance)
        ways = torch.full((relevance.shape[0],), few is not None)
        if few is not None and few.others is not None:
            ways[few.others] = False
        noted.append(ways.tolist())
        return few

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walking, "neurons_of", noting)
        yield noted


WAYS = [None, plrp.Pruning(0.3), plrp.Pruning(0.3, redistribution="M")]


@pytest.mark.parametrize("kind", ["Straight", "Residual", "Branching"])
@pytest.mark.parametrize("pruning", WAYS, ids=["LRP", "λ", "M"])
@pytest.mark.parametrize("name", BODIES)
def test_each_sample_goes_its_own_way(kind: str, pruning: plrp.Pruning | None, name: str) -> None:
    """Dense or neuron by neuron is decided per layer and sample: in a batch as alone, with the same numbers."""
    mixed = 0
    for seed, below in itertools.product((1, 3), (0.05, 0.1, 0.2, 0.5)):  # each kind has batches of both ways
        model, x = network(kind, 2, seed)
        with body(name), followed(below):
            with ways_noted() as together:
                batch = plrp.explain(model, x, target=1, pruning=pruning)
            alone = []
            for n in range(3):
                with ways_noted() as own:
                    single = plrp.explain(model, x[n : n + 1], target=1, pruning=pruning)
                alone.append([way for (way,) in own])
                assert relative(batch.relevance[n : n + 1], single.relevance) < 1e-3
            assert [list(ways) for ways in zip(*alone, strict=True)] == together
            assert float(batch.closing().max()) < 1e-4  # the ledger's walk goes the same ways
        mixed += sum(len(set(ways)) > 1 for ways in together)
    assert mixed > 0


@pytest.mark.parametrize(("empty", "split"), [(0, False), (1, False), (2, True), (7, True)])
def test_a_batch_is_split_where_a_quarter_of_it_has_few_neurons(empty: int, split: bool) -> None:
    relevance = torch.ones(8, 4, 20, 20)
    relevance[:empty, :, 3:] = 0
    relevance[:empty, :, :, 3:] = 0
    for laid in (relevance, relevance.contiguous(memory_format=torch.channels_last)):
        few = propagation.neurons_of(laid)
        assert (few is not None) == split
        if few is not None:
            assert few.others is not None
            assert few.others.tolist() == list(range(empty, 8))
            assert torch.equal(few.neurons.dense()[:empty], relevance[:empty])
