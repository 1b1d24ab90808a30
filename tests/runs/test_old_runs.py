"""Run folders that version 0.2.0 wrote (`old_runs/`) are read and resumed: users have folders like these."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import plrp
from plrp.concepts import Exemplars
from plrp.experiments import Results, sweep
from plrp.genomics import explain_file
from plrp.runs.places import WrongPlace

Say = Callable[[str], None]
CONFIG = {
    "name": "old",
    "data": {"kind": "arrays", "root": "pictures.npz"},
    "model": {"name": "nets.py:pictures"},
    "p": [0.0, 0.3],
    "part_size": 2,
    "metrics": {"gini": {}, "relevance_mass_accuracy": {}},
    "maps": {"limit": 1, "p": [0.3]},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old runs with their inputs; the current folder."""
    copy = tmp_path / "old_runs"
    shutil.copytree(Path(__file__).parent / "old_runs", copy)
    monkeypatch.chdir(copy)
    return copy


def resume_sweep(say: Say, p: float = 0.3) -> None:
    assert sweep({**CONFIG, "p": [0.0, p]}, "sweep", workers=1, say=say).complete


def resume_genomics(say: Say, p: float = 0.1) -> None:
    pruning = plrp.Pruning(p=p)
    assert explain_file("seqs.fa", "nets.py:sequences", "genomics", part_size=2, pruning=pruning, say=say).complete


def resume_exemplars(say: Say, p: float | None = None) -> None:
    spec = importlib.util.spec_from_file_location("old_networks", "nets.py")
    assert spec is not None
    assert spec.loader is not None
    networks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(networks)
    x = torch.arange(5 * 36, dtype=torch.float32).reshape(5, 1, 6, 6) * 5 % 7 - 3
    pruning = None if p is None else plrp.Pruning(p=p)
    plrp.exemplars(networks.pictures(), x, ["0"], pruning=pruning, out="exemplars", part_size=2, say=say)


RUNS: dict[str, Callable[..., None]] = {
    "sweep": resume_sweep,
    "genomics": resume_genomics,
    "exemplars": resume_exemplars,
}


def part_times(run: Path) -> dict[str, int]:
    """When the file of each part was written."""
    files = [file for name in ("parts", "maps", "matches") for file in (run / name).glob("*")]
    return {file.name: file.stat().st_mtime_ns for file in files}


@pytest.mark.parametrize("name", RUNS)
def test_a_finished_run_is_not_made_again(folder: Path, name: str) -> None:
    before = part_times(folder / name)
    said: list[str] = []
    RUNS[name](said.append)
    assert part_times(folder / name) == before
    assert not any("damaged" in sentence for sentence in said)


@pytest.mark.parametrize("name", RUNS)
def test_lost_and_damaged_parts_are_made_again_under_their_keys(folder: Path, name: str) -> None:
    def keys() -> list[str]:
        return sorted(file.name.rpartition("-")[0] for file in (folder / name / "parts").iterdir())

    before = keys()
    first, *_, last = sorted((folder / name / "parts").iterdir())
    first.unlink()
    last.write_bytes(last.read_bytes()[:-1])
    said: list[str] = []
    RUNS[name](said.append)
    assert f"parts/{last.name} was damaged and will be made again" in said
    assert keys() == before


@pytest.mark.parametrize("name", RUNS)
def test_another_pruning_is_refused_with_its_name(folder: Path, name: str) -> None:
    before = part_times(folder / name)
    with pytest.raises(WrongPlace, match=r"\bp\b|pruning"):
        RUNS[name](print, p=0.5)
    assert part_times(folder / name) == before


def test_the_results_of_a_sweep_are_read(folder: Path) -> None:
    results = Results.load("sweep")
    assert results.complete
    assert (
        len(results.scores) == 4 * 5 * 4
    )  # samples × maps × (two metrics, the mass at the input, the verdict of 0.2.0)
    assert results.maps(0, "lambda", 0.3).shape == (6, 6)
    assert results.broken.empty  # version 0.2.0 judged otherwise
    assert results.versions["plrp"] == "0.2.0"


def test_the_exemplars_of_a_search_are_read(folder: Path) -> None:
    exemplars = Exemplars.load("exemplars")
    assert exemplars["0"].relevance.shape == (5, 2)
    assert exemplars.strongest("0") == [1, 0]
