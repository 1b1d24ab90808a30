"""The samples of a sweep: chosen by a seed, known again by a digest, with masks and labels in their place."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import plrp
from plrp.experiments import Config, ConfigError, Store, preset
from plrp.experiments.data import DNA, covering, open_samples
from plrp.experiments.measure import Bench
from plrp.experiments.part_files import read_parquet, split
from plrp.genomics import SequenceCNN, explain_sequences, simulate
from plrp.vision import ECSSD
from plrp.vision.datasets import DatasetError


@given(labels=st.lists(st.integers(0, 8), min_size=1, max_size=60), count=st.integers(1, 70), seed=st.integers(0, 9))
def test_a_choice_covers_the_classes_evenly(labels: list[int], count: int, seed: int) -> None:
    chosen = covering(labels, count, seed)
    assert len(chosen) == len(set(chosen)) == min(count, len(labels))
    assert chosen == covering(labels, count, seed)
    there, taken = Counter(labels), Counter(labels[i] for i in chosen)
    least = min(count // len(there), min(there.values()))
    assert all(taken[label] >= least for label in there)
    for label, other in ((a, b) for a in there for b in there):
        if taken[label] < there[label]:  # who had more to give is not behind by more than its turn
            assert taken[other] <= taken[label] + 1


def test_another_seed_chooses_others_and_first_looks_spread_over_the_classes() -> None:
    labels = [label for label in range(50) for _ in range(20)]
    assert covering(labels, 200, 0) != covering(labels, 200, 1)
    assert len({labels[i] for i in covering(labels, 200, 0)[:50]}) == 50


def ecssd(folder: Path, count: int = 3) -> Path:
    rng = np.random.default_rng(0)
    for name in ("images", "ground_truth_mask"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        picture = rng.integers(0, 255, (40, 60, 3), np.uint8)
        Image.fromarray(picture).save(folder / "images" / f"{number:04}.jpg")
        mask = np.zeros((40, 60), np.uint8)
        mask[10:30, 20:40] = 255
        Image.fromarray(mask).save(folder / "ground_truth_mask" / f"{number:04}.png")
    return folder


def test_ecssd_in_a_folder_of_data_sets(tmp_path: Path) -> None:
    ecssd(tmp_path / "ecssd")
    config = preset("ecssd-resnet50", root=tmp_path)
    samples = open_samples(config)
    assert (samples.count, samples.masked) == (3, True)
    image, mask = ECSSD(tmp_path / "ecssd")[1]
    assert torch.equal(samples[1].input, image)
    assert torch.equal(samples[1].mask, mask)
    assert samples[1].drawn.shape == (224, 224, 3)
    assert (samples[1].name, samples[1].label) == ("0001", None)
    before = samples.digest()
    moved = (tmp_path / "ecssd").rename(tmp_path / "moved")
    assert open_samples(config.changed(**{"data.root": str(moved)})).digest() == before
    (moved / "images" / "0002.jpg").unlink()
    assert open_samples(config.changed(**{"data.root": str(moved)})).digest() != before
    with pytest.raises(DatasetError, match="is not ECSSD"):
        open_samples(config)


def test_imagenet_is_drawn_so_that_all_classes_are_there(data: Path) -> None:
    config = preset("imagenet-resnet50", root=data)
    samples = open_samples(config)
    assert samples.count == 100  # all there are here, one of each class
    assert sorted(samples.chosen) == list(range(100))
    assert samples.chosen != list(range(100))  # shuffled, so that a first look sees any classes
    few = open_samples(config.changed(**{"data.sample": 10}))
    assert [few[i].name for i in range(10)] == [samples[i].name for i in range(10)]
    assert not few.masked
    index, wnid = few[0].name.split("_")[:2]
    assert (few[0].label, wnid[0]) == (int(index), "n")


def test_arrays_that_cannot_be_read(tmp_path: Path) -> None:
    table = {"data": {"kind": "arrays", "root": str(tmp_path / "a.npz")}, "model": {"name": "net.py:build"}}
    config = Config.from_dict(table)
    with pytest.raises(ConfigError, match="cannot be read"):
        open_samples(config)
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(ConfigError, match="no array `inputs`"):
        open_samples(config)
    np.savez(tmp_path / "a.npz", inputs=np.zeros((3, 1, 4, 4)), masks=np.zeros((2, 4, 4)))
    with pytest.raises(ConfigError, match="3 inputs and 2 masks"):
        open_samples(config)


def dna_config(**changes: object) -> Config:
    small = {"data.sequences": 60, "data.motifs": ["CTCF", "SPI1"], "data.length": 50, "data.number": 1}
    return preset("genomics-4").changed(**{**small, "p": [0, 0.25, 0.6], "data.count": 9, **changes})


def test_sequences_of_a_folder_are_those_that_were_simulated(tmp_path: Path) -> None:
    config = dna_config(seed=3)
    here = open_samples(config)
    assert isinstance(here, DNA)
    assert (here.count, len(here.split[0]), here.pooling) == (9, 42, "present")
    simulate(60, motifs=["CTCF", "SPI1"], length=50, number=1, seed=3).save(tmp_path / "data")
    stored = Config.from_dict({**config.to_dict(), "data": {"kind": "dna", "root": str(tmp_path / "data")}})
    assert open_samples(stored).digest() == here.digest()
    whole = open_samples(stored.changed(**{"data.part": "all"}))
    assert whole.count == 60
    assert whole.digest() != here.digest()
    with pytest.raises(ConfigError, match=r"data.part is one of train, validation, test or all"):
        open_samples(stored.changed(**{"data.part": "rest"}))


def test_scores_of_sequences_are_those_of_single_explanations(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = SequenceCNN(6, classes=2, kernel=7).eval()
    network.save(tmp_path / "net.pt")
    config = dna_config(**{"model.weights": str(tmp_path / "net.pt"), "part_size": 9, "batch_size": 4})
    made = Bench(config, Store(tmp_path / "run"))
    samples, scores, _ = split([read_parquet(made.part(0).scores)])
    data = made.samples.chosen
    assert samples["label"].tolist() == data.labels.tolist()
    table = scores.set_index(["metric", "variant", "p", "sample"])["value"].sort_index()
    for variant, p in config.cells:
        how = {"composite": config.composite, "pruning": config.pruning(variant, p)}
        base = explain_sequences(network, data.onehot(), **how).per_base().astype(float)
        positive = np.maximum(base, 0)
        mass = np.sort(np.abs(base), 1)
        n = mass.shape[1]
        share = mass / mass.sum(1, keepdims=True)
        restated = {
            "relevance_mass_accuracy": (positive * data.mask).sum(1) / positive.sum(1),
            "gini": ((2 * np.arange(1, n + 1) - n - 1) * mass).sum(1) / (n * mass.sum(1)),
            "entropy": -(share * np.log(np.where(share > 0, share, 1))).sum(1),
        }
        for metric, values in restated.items():
            np.testing.assert_allclose(table[metric, variant, p], values, rtol=1e-4)


def test_a_vgg_with_a_pooled_head_is_known_by_its_weights(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    vgg = torchvision.models.vgg11()
    vgg.avgpool, vgg.classifier = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Linear(512, 7)
    torch.save({name: value.half() for name, value in vgg.state_dict().items()}, tmp_path / "gap.pth")
    loaded = plrp.models.load("vgg11", weights=tmp_path / "gap.pth", num_classes=7).module
    x = torch.rand(1, 3, 64, 64)
    assert loaded(x).shape == (1, 7)
    torch.testing.assert_close(loaded(x), vgg.eval()(x), atol=1e-2, rtol=1e-2)
