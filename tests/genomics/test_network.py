"""The CNN: it learns, repeats itself, and its checkpoints are safe."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from plrp.genomics import SequenceCNN, SequenceError, encode, motif, simulate

STRONG = motif(encode("GATTACAGATTACA"), "strong")


@pytest.fixture(scope="module")
def easy():
    return simulate(1000, motifs=[STRONG], task="presence", length=40, seed=2).split(0.6, 0.2, 0.2)


def fit(parts, **options):
    train, validation, _ = parts
    network = SequenceCNN(16, classes=2, kernel=9)
    history = network.fit(
        train.onehot(),
        train.labels,
        validation=(validation.onehot(), validation.labels),
        epochs=12,
        batch_size=32,
        **options,
    )
    return network, history


def test_it_learns_an_easy_motif_and_stops_early(easy) -> None:
    network, history = fit(easy, patience=3)
    test = easy[2]
    assert network.accuracy(test.onehot(), test.labels) >= 0.95
    assert history.best_epoch == int(np.argmin(history.validation_loss))
    assert len(history.train_loss) <= history.best_epoch + 1 + 3
    accuracy = (network.scores(easy[1].onehot()).argmax(1).numpy() == easy[1].labels).mean()
    assert accuracy == pytest.approx(history.accuracy)  # the best weights, not the last


def test_same_seed_same_weights_and_the_global_generator_is_left_alone(easy) -> None:
    part = easy[1].chosen(range(60))
    states = []
    for seed in (3, 3, 4):
        network = SequenceCNN(4, kernel=9)
        before = torch.random.get_rng_state()
        network.fit(part.onehot(), part.labels, validation=(part.onehot(), part.labels), epochs=2, seed=seed)
        assert torch.equal(before, torch.random.get_rng_state())
        states.append(network.state_dict())
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    assert not all(torch.equal(states[0][name], value) for name, value in states[2].items())


@pytest.mark.parametrize("hidden", [0, 7])
def test_checkpoints_come_back_as_they_were(tmp_path: Path, hidden: int) -> None:
    network = SequenceCNN(4, classes=3, kernel=9, hidden=hidden).eval()
    network.save(tmp_path / "n.pt")
    again = SequenceCNN.load(tmp_path / "n.pt")
    network.save(tmp_path / "m.pt")
    assert (tmp_path / "m.pt").read_bytes() == (tmp_path / "n.pt").read_bytes()
    x = torch.rand(2, 4, 60)
    assert torch.equal(network(x), again(x))
    assert again.settings == network.settings
    assert not again.training


class Exploit:
    def __reduce__(self):
        return (pytest.fail, ("a checkpoint ran code",))


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    torch.save({"settings": {}, "state": Exploit()}, tmp_path / "evil.pt")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Exploit(), protocol=2))
    for name in ("evil.pt", "evil.pkl"):
        with pytest.raises(SequenceError, match=r"evil\.\w+: not a checkpoint of plrp's SequenceCNN"):
            SequenceCNN.load(tmp_path / name)
    with pytest.raises(SequenceError, match=r"none\.pt: no such file"):
        SequenceCNN.load(tmp_path / "none.pt")


def test_wrong_inputs_are_told_what_fits() -> None:
    network = SequenceCNN(4)
    for shape in ((2, 250, 4), (2, 4, 14), (4, 250)):
        with pytest.raises(SequenceError, match=r"reads \(batch, 4, length\) with at least the 15 bases"):
            network(torch.zeros(shape))
    with pytest.raises(ValueError, match="2 sequences and 3 labels"):
        network.fit(np.zeros((2, 4, 20)), [0, 1, 0], validation=(np.zeros((1, 4, 20)), [0]))
