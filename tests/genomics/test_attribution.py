"""Relevance per base: pooling, strands, batches, dense outputs, absent letters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import plrp
from plrp.genomics import SequenceCNN, SequenceError, encode, explain_batches, explain_sequences, pool
from plrp.genomics.sequences import reverse_complement

RNG = np.random.default_rng(0)


def letters(count: int, length: int) -> list[str]:
    return ["".join(row) for row in RNG.choice(list("ACGT"), (count, length))]


@pytest.fixture(scope="module")
def network() -> SequenceCNN:
    torch.manual_seed(1)
    network = SequenceCNN(6, classes=3, kernel=7).eval()
    for norm in (network.norm1, network.norm2):
        norm.running_mean.uniform_(-0.2, 0.2)
        norm.running_var.uniform_(0.5, 1.5)
    return network


class Dense(nn.Module):
    """A model with dense outputs: (batch, 4, length) to (batch, 2 tracks, length)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Conv1d(4, 5, 5, padding=2)
        self.tracks = nn.Conv1d(5, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tracks(torch.relu(self.first(x)))


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.3), plrp.Pruning(p=0.3, redistribution="M")])
def test_batches_do_not_change_the_result(network: SequenceCNN, pruning: plrp.Pruning | None) -> None:
    onehot = encode(letters(7, 40))
    whole = explain_sequences(network, onehot, pruning=pruning)
    parts = explain_sequences(network, onehot, pruning=pruning, batch_size=3)
    direct = plrp.explain(network, torch.from_numpy(onehot), composite="epsilon-gamma", pruning=pruning)
    np.testing.assert_allclose(parts.relevance, whole.relevance, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(direct.relevance.numpy(), whole.relevance, rtol=1e-4, atol=1e-6)
    assert whole.target.tolist() == direct.target.tolist()


def test_only_one_batch_is_explained_at_a_time(network: SequenceCNN) -> None:
    onehot = encode(letters(10, 40))
    parts = explain_batches(network, onehot, batch_size=4)
    assert len(next(parts)) == 4  # a generator: the rest has not been touched
    assert [len(part) for part in parts] == [4, 2]


def test_absent_letters_receive_nothing_by_default_and_flat_would_credit_them(network: SequenceCNN) -> None:
    onehot = encode(letters(5, 40))
    default = explain_sequences(network, onehot)
    assert (default.relevance[onehot == 0] == 0).all()
    np.testing.assert_allclose(default.per_base("sum"), default.per_base("present"), rtol=1e-5, atol=1e-7)
    flat = explain_sequences(network, onehot, composite="epsilon-plus-flat")
    assert (flat.relevance[onehot == 0] != 0).any()
    assert not np.allclose(flat.per_base("sum"), flat.per_base("present"))


def test_pooling_restated() -> None:
    relevance = RNG.normal(size=(2, 4, 6)).astype(np.float32)
    onehot = encode(["ACGTNR", "TTTTTT"], "share")
    present = pool(relevance, onehot)
    for s in range(2):
        for i in range(6):
            expected = sum(relevance[s, b, i] for b in range(4) if onehot[s, b, i] > 0)
            assert present[s, i] == pytest.approx(expected, abs=1e-6)
    assert pool(relevance, encode(["ACGTNR", "TTTTTT"]))[0, 4] == 0  # N as an empty column holds nothing
    with pytest.raises(ValueError, match="choose 'present'"):
        pool(relevance, onehot, "max")


def test_n_bases_receive_nothing(network: SequenceCNN) -> None:
    sequence = letters(1, 40)[0]
    found = explain_sequences(network, [sequence[:10] + "NNNN" + sequence[14:]])
    assert (found.per_base()[0, 10:14] == 0).all()


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.2)])
def test_strands_are_averaged_base_by_base(network: SequenceCNN, pruning: plrp.Pruning | None) -> None:
    onehot = encode(letters(4, 40))
    both = explain_sequences(network, onehot, reverse_complement=True, pruning=pruning)
    given = explain_sequences(network, onehot, pruning=pruning)
    turned = np.ascontiguousarray(reverse_complement(onehot))
    other = explain_sequences(network, turned, target=given.target.tolist(), pruning=pruning)
    expected = (given.relevance + reverse_complement(other.relevance)) / 2
    np.testing.assert_allclose(both.relevance, expected, rtol=1e-4, atol=1e-6)
    again = explain_sequences(network, turned, target=given.target.tolist(), reverse_complement=True, pruning=pruning)
    np.testing.assert_allclose(reverse_complement(again.relevance), both.relevance, rtol=1e-4, atol=1e-6)


def test_dense_outputs_are_explained_at_one_place() -> None:
    onehot = encode(letters(3, 50))
    found = explain_sequences(Dense(), onehot, target=(1, 20))
    assert found.target.tolist() == [-1, -1, -1]
    base = found.per_base()
    assert base[:, 17:24].any()
    assert not base[:, :17].any()  # outside the receptive field of seven bases
    assert not base[:, 24:].any()


def test_dense_outputs_over_strands_need_the_other_place() -> None:
    onehot = encode(letters(2, 50))
    with pytest.raises(ValueError, match="give `reverse_target`"):
        explain_sequences(Dense(), onehot, target=(1, 20), reverse_complement=True)
    found = explain_sequences(Dense(), onehot, target=(1, 20), reverse_target=(1, 29), reverse_complement=True)
    assert found.per_base()[:, 17:24].any()
    assert not found.per_base()[:, 24:].any()


def test_targets_one_per_sequence(network: SequenceCNN) -> None:
    onehot = encode(letters(5, 40))
    found = explain_sequences(network, onehot, target=[0, 1, 2, 1, 0], batch_size=2)
    assert found.target.tolist() == [0, 1, 2, 1, 0]
    with torch.no_grad():
        scores = network(torch.from_numpy(onehot)).numpy()
    np.testing.assert_allclose(found.score, scores[np.arange(5), found.target], rtol=1e-5)
    with pytest.raises(ValueError, match="batch of 5: give one class per sample"):
        explain_sequences(network, onehot, target=[0, 1])


@pytest.mark.parametrize(
    "composite", ["epsilon-plus", "epsilon", "epsilon-alpha2-beta1", "epsilon-gamma", "epsilon-gamma-centred"]
)
def test_hypothetical_scores_are_the_coefficients_of_the_letters(composite: str) -> None:
    """On a single linear layer: c_bi = Σ_k w_bik R_k / d_k restated with explicit loops, and x · c is the
    relevance."""
    torch.manual_seed(0)
    layer = nn.Linear(4 * 6, 3).double()
    model = nn.Sequential(nn.Flatten(), layer)
    onehot = encode(letters(2, 6))
    actual = explain_sequences(model.float(), onehot, target=1, composite=composite)
    scores = explain_sequences(model.float(), onehot, target=1, composite=composite, hypothetical=True)
    np.testing.assert_allclose(scores.relevance * onehot, actual.relevance, rtol=1e-4, atol=1e-6)
    assert (scores.relevance[onehot == 0] != 0).any()
    w, b = layer.weight.detach().double().numpy()[1].reshape(4, 6), float(layer.bias.detach()[1])
    for s in range(2):
        z = float((w * onehot[s]).sum() + b)  # these composites all have ε on linear layers
        expected = w * z / (z + np.sign(z) * 1e-6)
        np.testing.assert_allclose(scores.relevance[s], expected, rtol=1e-3, atol=1e-5)


def test_hypothetical_scores_on_a_network_under_pruning(network: SequenceCNN) -> None:
    onehot = encode(letters(3, 40))
    actual = explain_sequences(network, onehot, pruning=plrp.Pruning(p=0.3))
    scores = explain_sequences(network, onehot, pruning=plrp.Pruning(p=0.3), hypothetical=True)
    np.testing.assert_allclose(scores.relevance * onehot, actual.relevance, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="proportional to the input"):
        explain_sequences(network, onehot, composite="epsilon-plus-flat", hypothetical=True)


@pytest.mark.filterwarnings("error")
def test_the_balance_is_that_of_present_letters_whatever_absent_ones_would_have_got() -> None:
    model = nn.Sequential(nn.Conv1d(4, 1, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(6, 1, bias=False))
    with torch.no_grad():
        model[0].weight[:] = torch.tensor([1.0, -100, -100, -100]).reshape(1, 4, 1)
        model[3].weight[:] = 1
    found = explain_sequences(model, ["AAAAAA"], target=0, hypothetical=True)
    assert np.abs(found.relevance).sum() > 100 * found.score[0]
    assert found.problems.tolist() == [""]


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"pruning": 0.2}, {"target": [1]}, {"composite": "epsilon-pls"}])
def test_what_is_wrong_is_said_before_the_first_batch(network: SequenceCNN, wrong: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        explain_batches(network, encode(letters(3, 40)), **wrong)


def test_wrong_axes_are_told(network: SequenceCNN) -> None:
    with pytest.raises(SequenceError, match=r"this one is \(2, 40, 4\); transpose"):
        explain_sequences(network, np.zeros((2, 40, 4)))


def test_no_sequences_no_relevance(network: SequenceCNN) -> None:
    assert explain_sequences(network, np.zeros((0, 4, 40), np.float32)).per_base().shape == (0, 40)


class Gated(nn.Module):
    """A product of two signals, which `attnlrp` divides and `epsilon-gamma` refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.other = nn.Conv1d(4, 6, 5), nn.Conv1d(4, 6, 5)
        self.output = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output((self.value(x) * self.other(x)).mean(2))


def test_auto_is_resolved_for_letters_and_by_the_tape(network: SequenceCNN) -> None:
    torch.manual_seed(0)
    letters = ["N" * 40, "ACGTTGCA" * 5]  # the first one alone does not look one-hot
    for model, name in ((network, "epsilon-gamma"), (Gated().eval(), "attnlrp")):
        for hypothetical in (False, True):
            options = {"hypothetical": hypothetical, "batch_size": 1}
            auto = explain_sequences(model, letters, composite="auto", **options)
            np.testing.assert_array_equal(
                auto.relevance, explain_sequences(model, letters, composite=name, **options).relevance
            )
            mine = plrp.genomics.attribute(
                model, torch.from_numpy(encode(letters)), 0, hypothetical=hypothetical, composite="auto", device="cpu"
            )
            other = explain_sequences(model, letters, composite=name, target=0, hypothetical=hypothetical)
            torch.testing.assert_close(mine, torch.from_numpy(other.relevance))


def test_hypothetical_scores_change_first_layers_only() -> None:
    from plrp.composites import Composite, is_any
    from plrp.genomics.attribution import HypotheticalComposite
    from plrp.rules import Epsilon

    given = Composite([(is_any, Epsilon())], products="half", residual_gamma=0.5, epsilon=1e-3, reason="mine")
    found = HypotheticalComposite(given)
    assert (found.products, found.residual_gamma, found.epsilon, found.reason) == ("half", 0.5, 1e-3, "mine")
    torch.manual_seed(0)
    model, onehot = Gated().eval(), encode(["ACGTTGCA" * 3])
    present = explain_sequences(model, onehot, composite=given, target=0)
    absent_too = explain_sequences(model, onehot, composite=given, target=0, hypothetical=True)
    np.testing.assert_allclose(absent_too.relevance * onehot, present.relevance, rtol=1e-4, atol=1e-6)
