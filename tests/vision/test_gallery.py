"""The gallery's scenes are what they say, and its pictures are small enough to load."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "tools" / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gallery"] = module
    spec.loader.exec_module(module)
    return module


def test_scenes_show_what_their_labels_say(gallery: ModuleType) -> None:
    objects = gallery.cutouts()
    rng = np.random.default_rng(0)
    for _ in range(20):
        scene = gallery.scene(rng, objects)
        assert scene.picture.size == (gallery.SIDE, gallery.SIDE)
        assert [gallery.NAMES[k] for k in np.flatnonzero(scene.labels)] == sorted(scene.masks, key=gallery.NAMES.index)
        assert sum(mask.astype(int) for mask in scene.masks.values()).max() == 1  # no two overlap
        assert all(300 < mask.sum() < 4500 for mask in scene.masks.values())
    again = gallery.scene(np.random.default_rng(3), objects)
    assert np.array_equal(
        np.asarray(again.picture), np.asarray(gallery.scene(np.random.default_rng(3), objects).picture)
    )


def test_pictures_are_small_and_all_there() -> None:
    pictures = {path.stem: path for path in (ROOT / "docs" / "assets" / "gallery").glob("*.png")}
    assert {"explain", "compare", "targets", "layers", "flow"} <= set(pictures)
    for path in pictures.values():
        assert path.stat().st_size < 300_000, path
