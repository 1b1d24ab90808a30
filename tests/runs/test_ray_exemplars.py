"""`plrp exemplars` on a Ray cluster of two nodes on this machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clusters import nodes, none_left  # noqa: F401
from plrp.cli import main
from plrp.concepts import Exemplars

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("none_left")

NETWORK = """\
import torch
from torch import nn
from plrp.models import Preprocessing

preprocessing = Preprocessing(resize=24, crop=20)

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
"""


def command(tmp_path: Path, *more: str) -> list[str]:
    """The command of a search over five photographs, up to the folder that it writes into."""
    photographs = tmp_path / "photos"
    photographs.mkdir()
    for number in range(5):
        pixels = np.random.default_rng(number).integers(0, 255, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photographs / f"{number}.png")
    (tmp_path / "net.py").write_text(NETWORK)
    words = ["exemplars", photographs, "--model", f"{tmp_path / 'net.py'}:build", "--layers", "0", "--part-size", "2"]
    return [*map(str, words), *more, "--no-pictures", "-q", "--out"]


@pytest.mark.slow
def test_a_cluster_finds_the_subspaces_of_a_local_search(tmp_path: Path) -> None:
    search = command(tmp_path, "--subspaces", "drsa", "--count", "2", "--dimensions", "2")
    assert main([*search, str(tmp_path / "local")]) == 0
    with nodes(2) as started:
        assert main([*search, str(tmp_path / "ray"), "--engine", "ray", "--address", started.address]) == 0
    here, there = (np.load(tmp_path / folder / "subspaces.npz") for folder in ("local", "ray"))
    assert here["bases"].shape == (2, 6, 2)
    assert np.allclose(there["held"], here["held"], rtol=1e-3)
    for u, v in zip(there["bases"], here["bases"], strict=True):
        assert np.allclose(u @ u.T, v @ v.T, atol=1e-3)
    assert [path.name[:6] for path in sorted((tmp_path / "ray" / "parts").iterdir())] == ["00000-", "00001-", "00002-"]


@pytest.mark.slow
def test_a_cluster_finds_the_exemplars_of_a_local_search(tmp_path: Path) -> None:
    search = command(tmp_path)
    assert main([*search, str(tmp_path / "local")]) == 0
    with nodes(2) as started:
        assert main([*search, str(tmp_path / "ray"), "--engine", "ray", "--address", started.address]) == 0
    here, there = Exemplars.load(tmp_path / "local"), Exemplars.load(tmp_path / "ray")
    assert (there.names, there.settings) == (here.names, here.settings)
    assert [path.name[:6] for path in sorted((tmp_path / "ray" / "parts").iterdir())] == ["00000-", "00001-", "00002-"]
    for column in ("relevance", "absolute", "activation"):
        assert np.allclose(getattr(there["0"], column), getattr(here["0"], column), rtol=1e-4, atol=1e-6)
    for channel in here.strongest("0", 6):
        assert [e.sample for e in there.of("0", channel)] == [e.sample for e in here.of("0", channel)]
