"""The scenes of gallery and demo are what they say, and the gallery's pictures are small enough to load."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from plrp.experiments import scenes

ROOT = Path(__file__).resolve().parents[2]


def test_scenes_show_what_their_labels_say() -> None:
    objects = scenes.cutouts()
    rng = np.random.default_rng(0)
    for _ in range(20):
        scene = scenes.scene(rng, objects)
        assert scene.picture.size == (scenes.SIDE, scenes.SIDE)
        assert [scenes.NAMES[k] for k in np.flatnonzero(scene.labels)] == sorted(scene.masks, key=scenes.NAMES.index)
        assert sum(mask.astype(int) for mask in scene.masks.values()).max() == 1  # no two overlap
        assert all(300 < mask.sum() < 4500 for mask in scene.masks.values())
    one, same = (scenes.scene(np.random.default_rng(3), objects).picture for _ in range(2))
    assert np.array_equal(np.asarray(one), np.asarray(same))
    assert {"cat", "coffee cup"} < set(scenes.scene_of_three().masks)


def test_pictures_are_small_and_all_there() -> None:
    pictures = {path.stem: path for path in (ROOT / "docs" / "assets" / "gallery").glob("*.png")}
    assert {"explain", "compare", "targets", "layers", "flow", "erased"} <= set(pictures)
    for path in pictures.values():
        assert path.stat().st_size < 300_000, path
