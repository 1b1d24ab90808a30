"""Parts made by processes of this machine: which are retried, which are given up, and what stops everything."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pages import HELPERS
from plrp.cli import build_parser
from plrp.runs import crew, ray
from plrp.runs.crew import IN_A_ROW, LocalCrew, Watch
from plrp.runs.places import DiskFull
from plrp.runs.work import Failure, Work


class Maker:
    """Makes parts as files; `fates` says what becomes of some."""

    def __init__(self, out: str, fates: dict[str, str]) -> None:
        self.out, self.fates = Path(out), fates

    def do(self, index: int, tick: Any) -> None:
        with (self.out / "attempts").open("a") as stream:
            stream.write(f"{index}\n")
        print("what a model prints is no answer")
        fate = self.fates.get(str(index), self.fates.get("all"))
        if fate == "error":
            raise ValueError("a bad sample")
        if fate == "death":
            os._exit(3)
        if fate == "full":
            raise DiskFull(errno.ENOSPC, "no space left for it")
        (self.out / f"part{index}").touch()
        tick("part", 1)


class Notes(Watch):
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.ticks: list[tuple[str, int]] = []
        super().__init__(self.said.append)

    def tick(self, kind: str, count: int) -> None:
        self.ticks.append((kind, count))


def made(
    folder: Path, parts: int, fates: dict[str, str], notes: Notes, workers: int
) -> tuple[list[Failure], list[int]]:
    """What workers could not make, and every attempt."""
    work = Work(f"{__name__}:Maker", {"out": str(folder), "fates": fates})
    failures = LocalCrew(work, range(parts), notes, workers).run()
    return failures, [int(line) for line in (folder / "attempts").read_text().split()]


@pytest.fixture(autouse=True)
def _workers_find_this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(HELPERS))


def test_a_death_is_retried_and_an_error_is_not(tmp_path: Path) -> None:
    notes = Notes()
    failures, attempts = made(tmp_path, 8, {"2": "error", "5": "death"}, notes, workers=2)
    assert sorted(attempts) == [0, 1, 2, 3, 4, *[5] * crew.LOCAL_TRIES, 6, 7]
    assert {str(failure) for failure in failures} == {
        "part 2: a bad sample",
        "part 5: its process ended with exit code 3 (given up after 2 tries)",
    }
    assert sorted(path.name for path in tmp_path.glob("part*")) == [f"part{k}" for k in (0, 1, 3, 4, 6, 7)]
    assert notes.parts_stored == 6
    assert notes.ticks == [("part", 1)] * 6
    assert {f"failed, and left out for now: {failure}" for failure in failures} == set(notes.said)


def test_where_everything_fails_the_rest_is_not_tried(tmp_path: Path) -> None:
    notes = Notes()
    failures, attempts = made(tmp_path, 100, {"all": "error"}, notes, workers=1)
    assert [failure.index for failure in failures] == attempts == list(range(IN_A_ROW))
    assert notes.said[1] == f"part {failures[1].index} failed for the same reason"


def test_a_full_disk_stops_everything(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="no space left for it") as caught:
        made(tmp_path, 100, {"1": "full"}, Notes(), workers=1)
    assert caught.value.errno == errno.ENOSPC
    assert (tmp_path / "attempts").read_text().split() == ["0", "1"]


def test_the_help_names_the_tries_that_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["sweep", "--help"])
    assert f"(default: {ray.TRIES})" in " ".join(capsys.readouterr().out.split()).rpartition("--tries N")[2][:80]
