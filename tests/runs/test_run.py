"""A run: its description is compared, its parts are checked, killed writers leave nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plrp.concepts.search import LAYOUT as SEARCH
from plrp.experiments.store import LAYOUT as SWEEP
from plrp.files import new_file, unfinished
from plrp.genomics.jobs import LAYOUT as GENOMICS
from plrp.runs import run as runs
from plrp.runs.crew import Watch
from plrp.runs.places import DiskFull, WrongPlace
from plrp.runs.run import ConfigChanged, Run, RunLayout
from plrp.runs.work import Execution, Failure, Work

KEY = "0123456789abcdef"
PLAIN = RunLayout(
    "run.json", {"parts": "npz", "matches": "npz"}, results=("relevance.parquet",), words={"code": "the code"}
)


def run_in(folder: Path, layout: RunLayout = PLAIN, parts: int = 5) -> Run:
    return Run(folder, layout, parts, lambda index: KEY)


@pytest.mark.parametrize("layout", [SEARCH, SWEEP, GENOMICS])
def test_killed_writers_leave_nothing_in_any_folder_of_a_run(tmp_path: Path, layout: RunLayout) -> None:
    run = run_in(tmp_path, layout)
    names = [layout.description, *layout.state, *layout.results]
    names += [f"{folder}/{1:0{layout.digits}d}-{KEY}-{KEY}.{suffix}" for folder, suffix in layout.folders.items()]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.with_name(f".{path.stem}.abcd1234.part{path.suffix}").write_bytes(b"half")
        path.with_name(f"..{path.stem}.abcd1234.part.efgh5678.part{path.suffix}").write_bytes(b"half")
        path.with_name(f".{path.stem}.part{path.suffix}").write_bytes(b"a user's")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / f".{layout.description.replace('.', '.abcd1234.part.')}").write_bytes(b"a user's")
    (tmp_path / layout.description).write_bytes(b"whole")
    with run.session():
        pass
    (tmp_path / layout.description).unlink()
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]
    assert len(left) == len(names) + 1
    assert {path.read_bytes() for path in left} == {b"a user's"}


def test_a_temporary_file_beside_a_temporary_file_is_recognised(tmp_path: Path) -> None:
    with new_file(tmp_path / "relevance.parquet") as outer, new_file(outer) as inner:
        assert unfinished(outer.name) == unfinished(inner.name) == "relevance.parquet"
        inner.write_bytes(b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["relevance.parquet"]
    assert unfinished("relevance.parquet") is None


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [runs.in_words(name, *values, {}) for name, values in runs.differences(before, now).items()]


def test_differences_are_named_by_entry() -> None:
    before = {"p": 0.1, "layers": ["a"], "pruning": {"unit": "auto", "gain": None}, "metrics": {"gini": {}}}
    assert differences(before, before) == []
    assert differences(before, {**before, "p": 0.2}) == ["p was 0.1 and is 0.2"]
    assert differences(before, {**before, "pruning": None}) == ['pruning.unit was "auto" and is absent']
    assert differences(before, {**before, "metrics": {}, "x": "y" * 100})[-1].endswith("…")
    assert "metrics.gini was" in "; ".join(differences(before, {**before, "metrics": {}}))


def test_another_description_is_refused_once_a_part_exists(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    said: list[str] = []
    run.begin({"p": 0.1, "code": {"net.py": "a"}}, said.append)
    run.begin({"p": 0.1, "code": {"net.py": "a"}}, said.append)
    assert said == []
    run.begin({"p": 0.2, "code": {"net.py": "a"}}, said.append)
    assert "stopped before its first part: this one takes its place" in said[0]
    run.write(0, b"content")
    with pytest.raises(
        ConfigChanged, match=r"another run: p was 0\.2 and is 0\.3; the code in net\.py changed \("
    ) as caught:
        run.begin({"p": 0.3, "code": {"net.py": "b"}})
    assert isinstance(caught.value, WrongPlace)
    assert run.description()["p"] == 0.2
    run.remove_parts()
    run.begin({"p": 0.3})
    assert run.description() == {"p": 0.3}


def test_a_damaged_description_is_named_and_written_anew_without_parts(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(WrongPlace, match=r"run\.json cannot be read: .* Restore run\.json from a copy"):
        run.description()
    run.begin({"p": 0.1})
    assert run.description() == {"p": 0.1}


def test_shards_share_the_parts(tmp_path: Path) -> None:
    run = run_in(tmp_path, parts=7)
    shards = [run.shard((index, 3)) for index in (1, 2, 3)]
    assert shards == [[0, 3, 6], [1, 4], [2, 5]]
    for wrong in ((0, 2), (3, 2)):
        with pytest.raises(ValueError, match="write i/n with i from 1 to n"):
            run.shard(wrong)


def test_parts_of_other_keys_folders_and_numbers_are_not_those_of_the_run(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.write(3, b"mine")
    run.write(1, b"a match", "matches")
    Run(tmp_path, PLAIN, 9, lambda index: "f" * 16).write(4, b"another key")
    run_in(tmp_path, parts=9).write(7, b"past the end")
    assert list(run.names()) == [3]
    assert list(run.names("matches")) == [1]
    assert run.read(run.names()[3]) == b"mine"
    assert run.whole(range(5)) == {3}


class Maker:
    """Makes parts; the third one does not fit on the disk, the fourth is stopped."""

    def do(self, index: int, tick: Any) -> None:
        if index == 2:
            raise DiskFull(28, "no space left for it")
        if index == 3:
            raise KeyboardInterrupt


def work(folder: str | None) -> Work:
    raise AssertionError("no other process is needed")


def test_a_run_that_stops_says_how_many_parts_are_stored(tmp_path: Path) -> None:
    run, said = run_in(tmp_path), list[str]()
    with pytest.raises(DiskFull, match=r"no space left for it; 2 of 3 parts were stored and stay\. Make room"):
        run.make(Maker(), [0, 1, 2], Watch(), work, Execution())
    with pytest.raises(KeyboardInterrupt):
        run.make(Maker(), [1, 3], Watch(said.append), work, Execution())
    assert said == ["stopped: 1 of 2 parts were stored; start again to resume"]


class Failing:
    """Fails at every part."""

    def do(self, index: int, tick: Any) -> None:
        raise ValueError("no")


def test_failures_are_collected_or_raised(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    assert run.make(Failing(), [4], Watch(), work, Execution()) == [Failure(4, "ValueError", "no")]
    with pytest.raises(ValueError, match="no"):
        run.make(Failing(), [4], Watch(), work, Execution(), tolerant=False)
