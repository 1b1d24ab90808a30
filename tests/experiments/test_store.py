"""The store: whole parts or none, damage found, one process at a time, other configs refused."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plrp.experiments import Config, DiskFull, Folder, Results, RunError, Store
from plrp.experiments.store import LAYOUT
from worlds import made_part, world

FORK = multiprocessing.get_context("fork")


def counted(folder: Path, samples: int = 7, **changes: object) -> Config:
    return world(folder, samples, **changes).changed(**{"data.count": samples, "data.digest": "d", "model.digest": "m"})


def filled(folder: Path, **changes: object) -> tuple[Store, Config]:
    config = counted(folder / "world", **changes)
    store = Store(folder / "run")
    store.begin(config, {"plrp": "test"})
    for index in range(config.parts):
        store.put(config, index, made_part(config, index))
    return store, config


def test_what_was_put_is_read_back(tmp_path: Path) -> None:
    _, config = filled(tmp_path)
    results = Results.load(tmp_path / "run")
    assert results.complete
    assert results.config == config.to_dict()
    assert results.versions["plrp"] == "test"
    assert list(results.samples.columns) == ["sample", "name", "label", "target", "score", "correct"]
    assert results.samples["label"].isna().tolist() == [True] + [False] * 6
    assert results.samples["correct"].tolist()[1:] == [True] * 6
    assert list(results.scores.columns) == ["sample", "variant", "p", "metric", "value"]
    assert len(results.scores) == 7 * (len(config.cells) + 1)
    assert results.scores["sample"].is_monotonic_increasing
    curve = results.curves[(results.curves["sample"] == 3) & (results.curves["order"] == "least")]
    assert curve[["step", "share", "score"]].to_numpy().tolist() == [[0, 0, 1], [1, 1, 0.75]]
    assert set(results.curves["metric"]) == {"pixel_flipping"}
    assert results.mapped == [0, 1, 2, 3]
    cells = [("LRP", 0.0), ("lambda", 0.3), ("M", 0.3), ("lambda+gain", 0.3), ("M+gain", 0.3)]
    assert results.map_cells == cells
    rng = np.random.default_rng([0, 1])  # part 1 starts with sample 3
    rng.random(3 * len(config.cells))
    np.testing.assert_array_equal(results.maps(3, "LRP", 0), rng.random((1, 4, 4), np.float32)[0])
    assert results.maps(0, "M", 0).tolist() == results.maps(0, "LRP", 0).tolist()  # p = 0 of any variant is LRP
    assert results.inputs(2).shape == (4, 4, 3)
    assert results.mask(2) is None
    with pytest.raises(RunError, match="no maps of sample 5"):
        results.maps(5, "LRP", 0)
    with pytest.raises(RunError, match=r"no map of lambda at p = 0.6"):
        results.maps(0, "lambda", 0.6)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_damage_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("damage")
    store, config = filled(folder)
    files = sorted([*(folder / "run" / "parts").iterdir(), *(folder / "run" / "maps").iterdir()])
    file = data.draw(st.sampled_from(files))
    content = bytearray(file.read_bytes())
    index = int(file.name.split("-")[0])
    if data.draw(st.booleans(), label="cut off"):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(bytes(content))
    if file.suffix == ".parquet":
        results = Results.load(folder / "run")
        assert results.missing == [index]
        assert not set(results.samples["sample"]) & set(config.part(index))
    said: list[str] = []
    assert store.whole(config, say=said.append) == set(range(config.parts)) - {index}
    assert said == [f"{file.parent.name}/{file.name} was damaged and will be made again"]
    assert not file.exists()


def test_scores_without_their_maps_are_not_done(tmp_path: Path) -> None:
    store, config = filled(tmp_path)
    (tmp_path / "run" / "maps" / store.place.names("maps")[0].rpartition("/")[2]).unlink()
    assert store.whole(config, say=pytest.fail) == {1, 2}


def test_strange_files_are_left_alone(tmp_path: Path) -> None:
    store, config = filled(tmp_path)
    (tmp_path / "run" / "parts" / "notes.txt").write_text("mine")
    (tmp_path / "run" / "parts" / ".notes.part.parquet").write_bytes(b"mine")
    (tmp_path / "run" / "parts" / f".{'000000-' + 'a' * 16 + '-' + 'b' * 16}.abcd_123.part.parquet").write_bytes(
        b"half"
    )
    assert store.whole(config, say=pytest.fail) == {0, 1, 2}
    store.place.tidy(LAYOUT.folders, LAYOUT.owns)
    names = {path.name for path in (tmp_path / "run" / "parts").iterdir()}
    assert "notes.txt" in names
    assert {name for name in names if name.startswith(".")} == {".notes.part.parquet"}


def test_another_config_is_refused_and_a_larger_limit_is_not(tmp_path: Path) -> None:
    store, config = filled(tmp_path, **{"data.limit": 4})
    assert config.parts == 2
    with pytest.raises(RunError, match=r"holds results of another run: seed was 0 and is 1\. Choose another folder"):
        store.begin(config.changed(seed=1))
    assert store.config() == config
    larger = config.changed(**{"data.limit": 6})
    assert store.begin(larger) == larger
    assert store.config() == larger
    assert set(store.find(larger)) == {0}  # part 1 was cut short by the limit, and has other samples now
    assert store.begin(config).samples == 6  # a smaller limit takes nothing away


def test_a_folder_or_file_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(RunError, match=r"is not a run: it has no config\.toml"):
            Results.load(path)


def test_a_full_disk_leaves_the_old_and_no_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Folder(tmp_path)
    place.write("a/b", b"old")

    def write_half(path: Path, content: bytes) -> int:
        with path.open("wb") as stream:
            stream.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(DiskFull, match=r"no space left for .*b \(10 bytes\)"):
        place.write("a/b", b"0123456789")
    assert place.read("a/b") == b"old"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def attempt(folder: Path, shard: tuple[int, int], said: object) -> None:
    """In another process: try to take the lock, and tell."""
    try:
        with Folder(folder).lock(shard):
            said.put("taken")  # type: ignore[attr-defined]
    except RunError as error:
        said.put(str(error))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("here", "there", "free"),
    [
        ((1, 1), (1, 1), False),
        ((1, 1), (2, 3), False),
        ((1, 2), (1, 1), False),
        ((1, 2), (1, 2), False),
        ((1, 2), (2, 2), True),
    ],
)
def test_a_second_process_is_refused_or_shares(
    tmp_path: Path, here: tuple[int, int], there: tuple[int, int], free: bool
) -> None:
    said = FORK.SimpleQueue()
    with Folder(tmp_path).lock(here):
        other = FORK.Process(target=attempt, args=(tmp_path, there, said))
        other.start()
        answer = said.get()
        other.join()
    if free:
        assert answer == "taken"
    else:
        assert "another process works on" in answer
        assert "--shard" in answer
    with Folder(tmp_path).lock(there):  # and it is free again
        pass


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    def hold(folder: Path, ready: object) -> None:
        with Folder(folder).lock():
            ready.put(True)  # type: ignore[attr-defined]
            import time

            time.sleep(60)

    ready = FORK.SimpleQueue()
    holder = FORK.Process(target=hold, args=(tmp_path, ready))
    holder.start()
    ready.get()
    with pytest.raises(RunError, match=rf"process {holder.pid} on "), Folder(tmp_path).lock():
        pass
    holder.kill()
    holder.join()
    with Folder(tmp_path).lock():
        pass


def test_a_file_of_an_earlier_version_is_the_same_config_and_is_left_as_it_is(tmp_path: Path) -> None:
    """Lists used to stand in one line."""
    config = counted(tmp_path / "world")
    store = Store(tmp_path / "run")
    store.begin(config)
    file = tmp_path / "run" / "config.toml"
    earlier = re.sub(r",\s*\]", "]", re.sub(r"\[\s+", "[", re.sub(r",\n\s+", ", ", file.read_text())))
    assert "p = [0.0, 0.1, 0.3, 0.6, 0.9]" in earlier
    file.write_text(earlier)
    assert store.config() == config
    assert store.begin(config) == config
    assert file.read_text() == earlier
