"""Runs in a hostile world: other code under the same name, damaged files, links, bombs, formulas, interruptions."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import plrp
from made_runs import made_run
from pages import HELPERS
from plrp import cli, files
from plrp.errors import NotWritable
from plrp.experiments import Config, ConfigError, Results, RunError, report, sweep
from plrp.experiments import demo_study as demo_module
from plrp.genomics import SequenceError, explain_file, explain_sequences, read_fasta, write_fasta
from plrp.genomics import jobs as jobs_module
from plrp.genomics.attribution import batch_size_for
from plrp.genomics.export import npz_rows, write_bedgraph, write_seqlets
from plrp.genomics.motifs import jaspar
from plrp.genomics.seqlets import Match, Seqlets
from plrp.genomics.sequences import Interval, Sequences, read_bed, read_npz
from plrp.genomics.variant_files import _write_skipped
from plrp.genomics.variants import Skipped, Variant
from plrp.models import load
from plrp.models import loading as loading_module
from plrp.models.downloads import INSECURE, DownloadError, fetch
from plrp.models.sources import source_files, source_of_module
from plrp.progress import keep_interrupts
from plrp.runs import memory
from plrp.runs import run as run_module
from plrp.runs.crew import LocalCrew, Watch
from plrp.runs.memory import TooLarge, read_arrays
from plrp.runs.places import Bucket, Folder, WrongPlace, refuse_strangers
from plrp.runs.run import Digests, content_digest
from plrp.runs.work import Work
from plrp.tables import csv_cell
from worlds import NETWORK, world


def small(folder: Path, samples: int = 3, **changes: Any) -> Config:
    """A sweep of parts that take some ten milliseconds."""
    table = {**world(folder, samples).to_dict(), "metrics": {"gini": {}}, "p": [0.0, 0.3], "part_size": 1}
    table["batch_size"] = 1
    return Config.from_dict(table).changed(**changes)


# Other code or data under the same names


LAYERS = "import torch\nfrom deeper.parts import SLOPE\n\ndef act():\n    return torch.nn.LeakyReLU(SLOPE)\n"


def importing_world(folder: Path, **changes: Any) -> Config:
    """A model that imports a file beside it, which imports one of a package below; its weights come from a file."""
    config = small(folder, 2, **changes)
    (folder / "net.py").write_text(f"from layers import act\n{NETWORK.replace('torch.nn.ReLU()', 'act()')}")
    (folder / "layers.py").write_text(LAYERS)
    (folder / "deeper").mkdir()
    (folder / "deeper" / "__init__.py").write_text("")
    (folder / "deeper" / "parts.py").write_text("SLOPE = 0.0\n")
    torch.save(load(f"{folder / 'net.py'}:build").module.state_dict(), folder / "w.pt")
    return config.changed(**{"model.weights": str(folder / "w.pt")})


@pytest.mark.parametrize("file", ["net.py", "layers.py", "deeper/parts.py"])
def test_other_code_with_the_same_weights_is_noticed_and_named(tmp_path: Path, file: str) -> None:
    config = importing_world(tmp_path / "world")
    before = sweep(config, tmp_path / "run", workers=1).scores
    same = sweep(config, tmp_path / "run", workers=1).scores
    assert before.equals(same)
    path = tmp_path / "world" / file
    path.write_text(path.read_text().replace("AdaptiveAvgPool", "AdaptiveMaxPool").replace("SLOPE", "SLOPE ", 1) + "\n")
    with pytest.raises(RunError, match=rf"the code in {file} changed .*Choose another folder, or undo the change"):
        sweep(config, tmp_path / "run", workers=1)


def test_what_a_model_imports_is_found_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importing_world(tmp_path / "world")
    (tmp_path / "world" / "unused.py").write_text("raise RuntimeError")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "shared_layers.py").write_text("")
    net = tmp_path / "world" / "net.py"
    net.write_text(f"import json, torchvision, plrp\n{net.read_text()}\ndef late():\n    import shared_layers\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    expected = ["net.py", "deeper/__init__.py", "deeper/parts.py", "layers.py", "shared_layers.py"]
    assert list(source_files(net)) == expected


def test_a_relative_import_within_a_package_is_found(tmp_path: Path) -> None:
    package = tmp_path / "house"
    (package / "upper").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "upper/__init__.py": "from .room import thing",
        "upper/room.py": "from ..cellar import thing",
        "cellar.py": "thing = 1",
    }.items():
        (package / name).write_text(text)
    (tmp_path / "net.py").write_text("from house import upper\n")
    found = {name for name in source_files(tmp_path / "net.py") if name != "net.py"}
    assert found == {f"house/{name}" for name in ("__init__.py", "upper/__init__.py", "upper/room.py", "cellar.py")}


def test_two_models_in_one_process_each_get_the_file_beside_them(tmp_path: Path) -> None:
    for name, count in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "beside.py").write_text(f"COUNT = {count}")
        (tmp_path / name / "net.py").write_text(
            "import torch, beside\ndef build():\n    return torch.nn.Linear(beside.COUNT, 1)\n"
        )
    for name, count in (("one", 1), ("two", 2), ("one", 1)):
        assert load(f"{tmp_path / name / 'net.py'}:build").module.in_features == count
    (tmp_path / "one" / "beside.py").write_text("COUNT = 3")  # of the same size, in the same second
    assert load(f"{tmp_path / 'one' / 'net.py'}:build").module.in_features == 3
    assert not list(tmp_path.rglob("__pycache__"))


def picture_world(folder: Path) -> Config:
    pil = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
        for k in range(2):
            pixels = rng.integers(0, 255, (16, 16, 3), np.uint8)
            pil.fromarray(pixels).save(folder / name / f"{k}.bmp")
    (folder / "net.py").write_text(
        f"from plrp.models import Preprocessing\npreprocessing = Preprocessing(None, None)\n{NETWORK}"
    )
    return Config.from_dict(
        {
            "data": {"kind": "photographs", "root": str(folder / "images"), "masks": str(folder / "masks")},
            "model": {"name": f"{folder / 'net.py'}:build"},
            "p": [0.0, 0.3],
            "metrics": {"gini": {}, "relevance_mass_accuracy": {}},
            "part_size": 1,
        }
    )


@pytest.mark.parametrize("kind", ["images", "masks"])
def test_a_photograph_or_mask_of_the_same_size_is_noticed_and_named(tmp_path: Path, kind: str) -> None:
    config = picture_world(tmp_path / "world")
    sweep(config, tmp_path / "run", workers=1)
    assert sweep(config, tmp_path / "run", workers=1).complete
    path = tmp_path / "world" / kind / "1.bmp"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-9] + b"123456789")
    assert path.stat().st_size == size
    with pytest.raises(RunError, match=r"the samples changed .*; other contents: 1\.bmp\. Choose"):
        sweep(config, tmp_path / "run", workers=1)


def test_a_file_that_is_as_it_was_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(path: str | Path) -> str:
        read.append(str(path))
        return content_digest(path)

    monkeypatch.setattr(run_module, "content_digest", reading)
    file = tmp_path / "photo.jpg"
    file.write_bytes(b"first")
    place = Folder(tmp_path / "run")
    for settled, times in ((100.0, 2), (0.0, 1)):  # just written, it may change within its time stamp
        monkeypatch.setattr(run_module, "RECENT", settled)
        read.clear()
        (tmp_path / "run" / run_module.CACHE).unlink(missing_ok=True)
        for _ in range(2):
            digests = Digests(place)
            assert digests.of(file) == content_digest(file)
            digests.save()
        assert len(read) == times
    about = file.stat()
    file.write_bytes(b"other")
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))  # the same size and time: its inode's own time tells
    later = Digests(place)
    assert later.changed([file]) == [str(file)]
    (tmp_path / "run" / run_module.CACHE).write_text("not JSON")
    assert Digests(place).of(file) == content_digest(file)


def test_a_worker_with_other_code_refuses(tmp_path: Path) -> None:
    from plrp.experiments.part_making import PartMaker

    config = importing_world(tmp_path / "world")
    stored = sweep(config, tmp_path / "run", workers=1).settings
    PartMaker(stored, str(tmp_path / "run"), "cpu")
    (tmp_path / "world" / "deeper" / "parts.py").write_text("SLOPE = 0.5\n")
    with pytest.raises(RunError, match="has other code of the model than where the sweep was started"):
        PartMaker(stored, str(tmp_path / "run"), "cpu")


def test_a_network_trained_for_other_settings_is_not_used(tmp_path: Path) -> None:
    """Killed after training, before its config was written; then started with other filters."""
    table = {
        "data": {"kind": "simulated-dna", "sequences": 60, "motifs": ["CTCF"], "task": "presence", "length": 40},
        "model": {"name": "sequence-cnn", "filters": 4, "epochs": 1},
        "metrics": {"gini": {}},
        "p": [0.0],
        "part_size": 9,
    }
    config = Config.from_dict(table)
    sweep(config, tmp_path / "run", workers=1, show_progress=False)
    (tmp_path / "run" / "config.toml").unlink()
    for part in (tmp_path / "run" / "parts").iterdir():
        part.unlink()
    other = sweep(config.changed(**{"model.filters": 5}), tmp_path / "run", workers=1, show_progress=False)
    assert other.training is not None
    assert other.training["settings"]["filters"] == 5


# Sequences


MODEL = """
import torch
from slope import SLOPE

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv1d(4, 5, 7), torch.nn.LeakyReLU(SLOPE), torch.nn.AdaptiveMaxPool1d(1), torch.nn.Flatten(),
        torch.nn.Linear(5, 2)
    )
"""
EXPLAIN = "genomics explain seqs.fa --model net.py:build --weights w.pt -p 0.25 --no-match --part-size 4 --out out"


@pytest.fixture
def sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with 12 sequences, a model, a file that it imports, and its weights."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    write_fasta("seqs.fa", [f"s{i}" for i in range(12)], ["".join(rng.choice(list("ACGT"), 30)) for _ in range(12)])
    Path("net.py").write_text(MODEL)
    Path("slope.py").write_text("SLOPE = 0.0")
    torch.save(load("net.py:build").module.state_dict(), "w.pt")
    return tmp_path


def parts() -> list[Path]:
    return sorted(Path("out/parts").iterdir())


def test_a_damaged_part_of_sequences_is_named_and_made_again(
    sequences: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(EXPLAIN.split()) == 0
    results = {path.name: path.read_bytes() for path in Path("out").iterdir() if path.is_file()}
    whole = {path.name: path.read_bytes() for path in parts()}
    for cut in (0, 100):
        damaged = parts()[1]
        damaged.write_bytes(damaged.read_bytes()[:cut])
        capsys.readouterr()
        assert cli.main(EXPLAIN.split()) == 0
        assert f"parts/{damaged.name} was damaged and will be made again" in capsys.readouterr().err
        assert {path.name: path.read_bytes() for path in parts()} == whole
        assert {path.name: path.read_bytes() for path in Path("out").iterdir() if path.is_file()} == results


def test_a_damaged_part_of_another_shard_is_made_again_before_results_are_gathered(
    sequences: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(EXPLAIN.split()) == 0
    whole = Path("out/relevance.parquet").read_bytes()
    shards = EXPLAIN.replace("--out out", "--out shared").split()
    assert cli.main([*shards, "--shard", "1/2"]) == 0
    damaged = sorted(Path("shared/parts").iterdir())[0]
    damaged.write_bytes(b"half")
    assert cli.main([*shards, "--shard", "2/2"]) == 0
    assert f"parts/{damaged.name} was damaged" in capsys.readouterr().err
    assert Path("shared/relevance.parquet").read_bytes() == whole


def test_leftovers_are_tidied_and_strangers_stay(sequences: Path) -> None:
    assert cli.main(EXPLAIN.split()) == 0
    part = parts()[0]
    leftovers = [
        Path("out/.run.abcd1234.part.json"),
        Path("out/parts/.gathered.abcd1234.part.npy"),
        part.with_name(f".{part.stem}.abcd1234.part.npz"),
        Path(f"out/matches/.{part.stem}.abcd1234.part.npz"),
        Path("out/..relevance.abcd1234.part.efgh5678.part.parquet"),
    ]
    strangers = [
        Path("out/.notes.abcd1234.part.txt"),
        Path("out/.run.part.json"),
        Path("out/parts/.movie.part"),
        Path("out/parts/.00000.abcd1234.part.npz"),
    ]
    Path("out/matches").mkdir(exist_ok=True)
    for path in (*leftovers, *strangers):
        path.write_bytes(b"half")
    assert cli.main(EXPLAIN.split()) == 0
    assert not any(path.exists() for path in leftovers)
    assert all(path.exists() for path in strangers)


def test_other_code_of_a_sequence_model_is_noticed_and_named(
    sequences: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(EXPLAIN.split()) == 0
    Path("slope.py").write_text("SLOPE = 0.5")
    assert cli.main(EXPLAIN.split()) == 2
    assert "out holds results of another run: the code in slope.py changed" in capsys.readouterr().err


CLASS = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.read = torch.nn.Conv1d(4, 5, 7), torch.nn.Linear(5, 2)
    def forward(self, x):
        return self.read(self.conv(x).relu().amax(2))
"""


def test_a_module_with_the_same_weights_and_another_forward_is_noticed(sequences: Path) -> None:
    for number, text in enumerate((CLASS, CLASS.replace("amax", "mean"))):
        Path(f"net{number}.py").write_text(text)
    one, same, other = (load(f"net{number}.py:Net").module for number in (0, 0, 1))
    assert source_of_module(one) == source_of_module(same) != source_of_module(other)
    for model in (one, same):
        assert explain_file("seqs.fa", model, "out", match=False).complete
    with pytest.raises(WrongPlace, match="the code in Net changed"):
        explain_file("seqs.fa", other, "out", match=False)


# A first attempt that failed, files that are damaged


def test_a_run_that_failed_at_its_first_sample_does_not_block_the_corrected_one(tmp_path: Path) -> None:
    config = small(tmp_path / "world", 2, **{"data.limit": 1})
    with np.load(tmp_path / "world" / "data.npz") as stored:
        arrays = dict(stored)
    bad = {**arrays, "inputs": np.full_like(arrays["inputs"], np.nan)}
    np.savez(tmp_path / "world" / "data.npz", **bad)
    with pytest.raises(ValueError, match="NaN"):
        sweep(config, tmp_path / "run", workers=1)
    np.savez(tmp_path / "world" / "data.npz", **arrays)
    corrected = config.changed(composite="epsilon", seed=3)
    assert sweep(corrected, tmp_path / "run", workers=1).complete
    assert Results.load(tmp_path / "run").settings.composite == "epsilon"
    with pytest.raises(RunError, match="holds results of another run"):
        sweep(config, tmp_path / "run", workers=1)


def test_sequences_that_failed_at_first_do_not_block_the_corrected_run(sequences: Path) -> None:
    Path("slope.py").write_text("SLOPE = 0.0\n\nraise_in_forward = True")
    Path("net.py").write_text(
        MODEL + "\nclass Unruly(torch.nn.Module):\n    def forward(self, x):\n        return x.cumprod(1).flatten(1)\n"
    )
    wrong = EXPLAIN.replace("net.py:build --weights w.pt", "net.py:Unruly")
    assert cli.main(wrong.split()) == 1
    assert Path("out/run.json").is_file()
    assert cli.main(EXPLAIN.split()) == 0


@pytest.mark.parametrize("content", ["p = [0", "p = 3", "\x00"])
def test_a_damaged_config_is_named(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = small(tmp_path / "world", 1)
    sweep(config, tmp_path / "run", workers=1)
    (tmp_path / "run.toml").write_text(config.to_toml())
    (tmp_path / "run" / "config.toml").write_text(content)
    for words in (["report", str(tmp_path / "run")], ["sweep", f"{tmp_path / 'run.toml'}", "--out", f"{tmp_path}/run"]):
        assert cli.main(words) == 2
        assert f"{tmp_path / 'run'}/config.toml cannot be read" in capsys.readouterr().err


def test_a_damaged_manifest_is_named(tmp_path: Path, sequences: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small(tmp_path / "world", 1)
    sweep(config, tmp_path / "run", workers=1)
    for content in ("{", "[1]"):
        (tmp_path / "run" / "run.json").write_text(content)
        with pytest.raises(RunError, match=r"run/run\.json cannot be read"):
            sweep(config, tmp_path / "run", workers=1)
    assert cli.main(EXPLAIN.split()) == 0
    Path("out/run.json").write_text("{")
    assert cli.main(EXPLAIN.split()) == 2
    assert "out/run.json cannot be read" in capsys.readouterr().err


def advised(said: str, folder: Path) -> None:
    """Do what the message says, to the letter: 'Restore NAME from a copy, or remove it and start again'."""
    match = re.search(r"Restore (\S+) from a copy, or remove it and start again: finished parts stay\.", said)
    assert match is not None, said
    (folder / match[1]).unlink()


@pytest.mark.parametrize("content", ["{", "[1]", "null", "\xff"])
def test_the_advice_for_a_damaged_run_json_is_true(
    sequences: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    assert cli.main(EXPLAIN.split()) == 0
    files_before = {path.name: path.read_bytes() for path in Path("out").iterdir() if path.is_file()}
    times = {path.name: path.stat().st_mtime_ns for path in parts()}
    Path("out/run.json").write_bytes(content.encode("latin-1"))
    capsys.readouterr()
    assert cli.main(EXPLAIN.split()) == 2
    advised(capsys.readouterr().err, Path("out"))
    assert cli.main(EXPLAIN.split()) == 0
    assert {path.name: path.read_bytes() for path in Path("out").iterdir() if path.is_file()} == files_before
    assert {path.name: path.stat().st_mtime_ns for path in parts()} == times


def test_the_advice_for_a_damaged_config_and_manifest_is_true(tmp_path: Path) -> None:
    config, run = small(tmp_path / "world", 2, maps={}), tmp_path / "run"
    whole = sweep(config, run, workers=1).scores
    for name in ("config.toml", "run.json"):
        times = {path.name: path.stat().st_mtime_ns for path in (run / "parts").iterdir()}
        (run / name).write_text("{")
        with pytest.raises(RunError) as caught:
            sweep(config, run, workers=1)
        advised(str(caught.value), run)
        assert sweep(config, run, workers=1).scores.equals(whole)
        assert {path.name: path.stat().st_mtime_ns for path in (run / "parts").iterdir()} == times


def test_the_advice_for_a_damaged_search_is_true_beside_its_pictures(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    out, x = tmp_path / "out", torch.randn(6, 4)

    def search() -> Any:
        return plrp.exemplars(model, x, ["0"], out=out, part_size=2, show_progress=False)

    whole = search()["0"].relevance
    times = {path.name: path.stat().st_mtime_ns for path in (out / "parts").iterdir()}
    for name in ("channels.csv", "index.html"):  # as the command writes them into the folder
        (out / name).write_text("of the search")
    (out / "run.json").write_text("{")
    with pytest.raises(RunError) as caught:
        search()
    advised(str(caught.value), out)
    np.testing.assert_array_equal(search()["0"].relevance, whole)
    assert {path.name: path.stat().st_mtime_ns for path in (out / "parts").iterdir()} == times


def test_results_without_any_part_are_other_peoples_files(sequences: Path) -> None:
    assert cli.main(EXPLAIN.split()) == 0
    Path("out/run.json").unlink()
    for part in parts():
        part.unlink()
    with pytest.raises(WrongPlace, match=r"holds other files \(attributions\.npz, "):
        explain_file("seqs.fa", "net.py:build", "out", weights="w.pt", match=False)


@pytest.mark.parametrize("name", ["a part", "run.json", "scores.tsv", "attributions.npz"])
def test_a_folder_in_place_of_a_file_is_named_and_the_run_resumes(
    sequences: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert cli.main(EXPLAIN.split()) == 0
    whole = {path.name: path.read_bytes() for path in Path("out").iterdir() if path.is_file()}
    path = parts()[1] if name == "a part" else Path("out", name)
    path.unlink()
    (path / "inside").mkdir(parents=True)
    capsys.readouterr()
    assert cli.main(EXPLAIN.split()) == 2
    assert f"{path} is a folder, and a file is written there: move it, and start again." in capsys.readouterr().err
    assert not list(Path("out").rglob("*.part*"))
    path.rename("moved")
    assert cli.main(EXPLAIN.split()) == 0
    assert {path.name: path.read_bytes() for path in Path("out").iterdir() if path.is_file()} == whole


# A full disk


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """The kernel lets no file grow beyond this size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", ["relevance.parquet", "attributions.npz", "onehot.npz", "scores.tsv"])
def test_a_result_that_does_not_fit_is_named_and_the_run_resumes(
    sequences: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A real limit of the kernel, while one of the results is written."""
    assert cli.main(EXPLAIN.split()) == 0
    whole = {path.name: path.read_bytes() for path in Path("out").iterdir() if path.is_file()}
    new_file = Folder.new_file

    @contextmanager
    def limited(place: Folder, written: str, size: int | None = None) -> Iterator[Path]:
        with new_file(place, written, size) as path, files_up_to(200) if written == name else nullcontext():
            yield path

    words = EXPLAIN.replace("--out out", "--out small").split()
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "new_file", limited)
        assert cli.main(words) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    size = {"attributions.npz": r" \(5,760 bytes\)", "onehot.npz": r" \(1,440 bytes\)"}.get(name, "")
    assert re.search(rf"no space left for small/{name}{size}; finished parts stay\. Make room and start again", message)
    assert len(Folder("small").names("parts")) == 3
    assert not Path("small", name).exists()
    assert hidden(Path("small")) == []
    assert cli.main(words) == 0
    assert {path.name: path.read_bytes() for path in Path("small").iterdir() if path.is_file()} == whole


FULL_DISK = """
import subprocess, sys
from pathlib import Path
from plrp import cli
words = sys.argv[2:]
code = cli.main(words)
print(f"exit {code}", len(list(Path(sys.argv[1], "out", "parts").iterdir())), file=sys.stderr)
subprocess.run(["mount", "-o", "remount,size=50m", sys.argv[1]], check=True)
sys.exit(cli.main(words))
"""


def test_a_full_file_system_does_not_kill_the_process(sequences: Path) -> None:
    """Memory maps of sparse files end in SIGBUS there. The file system is mounted where nobody else sees it."""
    inside = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o "size=$1" none disk && shift && exec "$@"', "sh"]
    Path("disk").mkdir()
    try:
        subprocess.run([*inside, "1m", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a file system of his own (unshare -rm)")
    rng = np.random.default_rng(0)
    letters = ["".join(rng.choice(list("ACGT"), 200)) for _ in range(200)]
    write_fasta("seqs.fa", [f"s{i}" for i in range(200)], letters)
    words = EXPLAIN.replace("--part-size 4", "--part-size 100").split()
    assert cli.main(words) == 0
    page = 4096
    room = sum(-(-path.stat().st_size // page) * page for path in (*parts(), Path("out/relevance.parquet")))
    room += 3 * page + Path("out/attributions.npz").stat().st_size // 2
    command = [sys.executable, "-c", FULL_DISK, "disk", *words[:-1], "disk/out"]
    found = subprocess.run([*inside, str(room), *command], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "no space left for disk/out/attributions.npz (640,000 bytes); finished parts stay. Make room" in found.stderr
    assert "exit 1 2" in found.stderr  # with both parts


# Links and other people's files


@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "folder", "pipe"])
def test_a_lock_that_is_not_ours_is_refused_and_not_touched(tmp_path: Path, kind: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    run = tmp_path / "run"
    run.mkdir()
    {
        "link": lambda: (run / ".lock").symlink_to(precious),
        "dangling": lambda: (run / ".lock").symlink_to(tmp_path / "nothing"),
        "hard link": lambda: os.link(precious, run / ".lock"),
        "folder": lambda: (run / ".lock").mkdir(),
        "pipe": lambda: os.mkfifo(run / ".lock"),
    }[kind]()
    with (
        pytest.raises(WrongPlace, match=r"\.lock is a link, a folder or a device, not a lock of ours"),
        Folder(run).lock(),
    ):
        pass
    assert precious.read_text() == "years of work"
    assert not (tmp_path / "nothing").exists()


def test_a_lock_with_other_content_is_held_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("a diary")
    with Folder(tmp_path).lock():
        assert (tmp_path / ".lock").read_text() == "a diary"
    (tmp_path / ".lock").write_text("process 1 on a-host-that-is-gone")
    with Folder(tmp_path).lock():
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")


def test_folders_behind_links_are_not_cleaned(tmp_path: Path) -> None:
    config = small(tmp_path / "world", 2, maps={})
    sweep(config, tmp_path / "run", workers=1)
    scratch = tmp_path / "scratch"
    (tmp_path / "run" / "maps").rename(scratch)
    (tmp_path / "run" / "maps").symlink_to(scratch)
    first = sorted(scratch.iterdir())[0]
    half = scratch / f".{first.stem}.abcd1234.part.h5"
    half.write_bytes(b"half")
    content = first.read_bytes()
    first.write_bytes(b"damaged")
    said: list[str] = []
    sweep(config, tmp_path / "run", workers=1, say=said.append)
    assert said[0] == f"maps/{first.name} was damaged and will be made again"
    assert half.exists()
    assert first.read_bytes() == content  # written over


@pytest.mark.slow
def test_a_report_does_not_clean_figures_behind_a_link(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", maps=False)
    report.write([run], tmp_path / "page", formats=["png", "svg"])
    (tmp_path / "page" / "figures").rename(tmp_path / "elsewhere")
    (tmp_path / "page" / "figures").symlink_to(tmp_path / "elsewhere")
    before = {path.name for path in (tmp_path / "elsewhere").iterdir()}
    report.write([run], tmp_path / "page", formats=["png"])
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} >= before
    (tmp_path / "page" / "figures").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "page" / "figures")
    report.write([run], tmp_path / "page", formats=["svg"])
    assert {path.suffix for path in (tmp_path / "page" / "figures").iterdir()} >= {".svg"}


def test_temporary_files_have_private_names(sequences: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    common = tmp_path / "common"
    common.mkdir()
    (common / "gathered.npy").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("years of work")
    monkeypatch.setattr("tempfile.tempdir", str(common))
    url = f"memory://{tmp_path.name}/run"
    assert cli.main(EXPLAIN.replace("--out out", f"--out {url}").split()) == 0
    assert Bucket(url).exists("attributions.npz")
    assert [path.name for path in common.iterdir()] == ["gathered.npy"]
    assert (tmp_path / "precious").read_text() == "years of work"


def test_the_demo_replaces_its_own_files_and_leaves_others(tmp_path: Path) -> None:
    config = small(tmp_path / "world", 1)
    folder = tmp_path / "genomics-4"
    sweep(config, folder, workers=1)
    (folder / "notes.txt").write_text("mine")
    (folder / "parts" / "notes.txt").write_text("mine")
    changed = demo_module.results_of(config.changed(composite="epsilon"), folder, False)
    assert changed.complete
    assert changed.settings.composite == "epsilon"
    assert (folder / "notes.txt").read_text() == (folder / "parts" / "notes.txt").read_text() == "mine"


# Foreign code


class Innocent:
    """Makes nothing; where it works, `json` was the right one."""

    def __init__(self, out: str) -> None:
        self.out = Path(out)

    def do(self, index: int, tick: Any) -> None:
        (self.out / f"part{index}").touch()


def test_workers_import_nothing_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "torch", "numpy", "plrp"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\nraise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*HELPERS, ""]))  # an empty entry, too
    assert LocalCrew(Work(f"{__name__}:Innocent", {"out": str(tmp_path)}), range(2), Watch(), 1).run() == []
    assert (tmp_path / "part1").exists()
    assert not (tmp_path / "owned").exists()


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def test_published_weights_that_would_run_code_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision = pytest.importorskip("torchvision")
    entry = torchvision.models.SqueezeNet1_1_Weights.DEFAULT
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    file = tmp_path / "checkpoints" / Path(entry.url).name
    file.parent.mkdir()
    torch.save({"classifier.1.weight": Payload(tmp_path / "owned")}, file)
    monkeypatch.setattr(loading_module, "fetch", lambda url, folder, quiet: file)
    with pytest.raises(ValueError, match="would run code on loading"):
        load("squeezenet1_1")
    assert not (tmp_path / "owned").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.mark.parametrize("mirror", ["http://example.invalid", "file:///tmp", "ftp://example.invalid", "/tmp"])
def test_a_mirror_is_https_unless_asked_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str) -> None:
    monkeypatch.setenv("PLRP_MIRROR", mirror)
    with pytest.raises(DownloadError, match=f"weights come by https. {INSECURE}=1"):
        fetch("https://example.invalid/w.pth", tmp_path / "cache", quiet=True)


def test_a_mirror_in_a_folder_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.pth").write_bytes(b"weights")
    monkeypatch.setenv("PLRP_MIRROR", tmp_path.as_uri())
    monkeypatch.setenv(INSECURE, "1")
    assert fetch("https://example.invalid/w.pth", tmp_path / "cache", quiet=True).read_bytes() == b"weights"


def test_a_redirection_to_an_unprotected_address_is_not_followed() -> None:
    from plrp.models.downloads import _NoDowngrade

    with pytest.raises(DownloadError, match="weights come by https"):
        _NoDowngrade().redirect_request(None, None, 302, "", {}, "http://example.invalid/w.pth")


# Names that are markup, formulas, columns


class Elements(HTMLParser):
    """The names of all elements and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(name for name, _ in attrs)}


EVIL = "<evil onload=x>&\"'</evil>"


@pytest.mark.slow
def test_a_report_of_evil_names_shows_them_and_obeys_none(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    metrics = ("gini", f"gini.{EVIL}", "relevance_mass_accuracy", "pixel_flipping", f"pixel_flipping.{EVIL}", "hoyer")
    runs = [
        made_run(
            tmp_path / f"{name} {EVIL.replace('/', '')}",
            model=f"{EVIL}{name}".replace("/", ""),
            metrics=metrics,
            names=lambda k: f"{EVIL}{k}",
            parts=(0, 1),
            samples=5,
            maps=name == "a",
        )
        for name in ("a", "b")
    ]
    for run in runs:
        manifest = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**manifest, EVIL: {EVIL: EVIL}}))
    for number, (chosen, compare) in enumerate(((runs[:1], False), (runs, False), (runs, True))):
        page = report.write(chosen, tmp_path / f"page{number}", formats=["svg"], compare=compare)
        text = page.read_text()
        found = Elements(text).found
        assert "evil" not in found
        assert "onload" not in found
        assert "&lt;evil" in text
        assert "parts are missing" in text


@pytest.mark.slow
def test_dollars_in_names_are_no_formulas(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from plrp.genomics.logo import plot_logos
    from plrp.vision.photograph_figures import grid_of, set_title

    wrong = r"$\frac{1$ costs $"
    run = made_run(tmp_path / "run", model=wrong, names=lambda k: f"{wrong} {k}", metrics=("gini", f"gini.{wrong}"))
    report.write([run], tmp_path / "page", formats=["png"])
    dna = made_run(tmp_path / "dna", kind="simulated-dna", names=lambda k: f"{wrong} {k}", metrics=("gini",))
    report.write([dna], tmp_path / "page2", formats=["png"])
    plot_logos({wrong: np.ones(4)}, "ACGT", sites=[(0, 2, wrong)], title=wrong, path=tmp_path / "logo.png")
    figure, axes = grid_of(1, 1, side=1.0, bar=False)
    set_title(axes[0][0], wrong)
    files.save_figure(figure, tmp_path / "title.png")


def test_names_make_no_lines_and_no_columns(tmp_path: Path) -> None:
    name = "chr1\t5\t9\nchr2\t0\t1\r\x85\u2028x"
    several = Sequences([name], ["ACGTACGTAC"])
    one = np.array([0])
    write_seqlets(tmp_path / "a.bed", Seqlets(one, one, one + 5, np.array([1.0])), several)
    write_bedgraph(tmp_path / "a.bedgraph", [Interval(name, 0, 3)], [[1.0, 2.0, 3.0]])
    write_fasta(tmp_path / "a.fa", [name, "b"], ["ACGT", "AC"])
    assert [len(line.split("\t")) for line in (tmp_path / "a.bed").read_text().splitlines()] == [9]
    lines = (tmp_path / "a.bedgraph").read_text().splitlines()
    assert [len(line.split("\t")) for line in lines] == [4, 4, 4]
    assert len(read_fasta(tmp_path / "a.fa")) == 2


def test_a_sequence_called_track_is_a_place(tmp_path: Path) -> None:
    (tmp_path / "a.bed").write_text("track name=x\nbrowser position chr1:1-2\ntrack1\t0\t5\ntrack\t1\t7\n#no\t1\t2\n")
    assert [(i.chrom, i.start) for i in read_bed(tmp_path / "a.bed")] == [("track1", 0), ("track", 1)]


@pytest.mark.parametrize("cell", ["=1+1", "+cmd", "-cmd", "@sum", "\t=1", "\n@x", "=HYPERLINK(0)"])
def test_cells_are_no_formulas(cell: str) -> None:
    assert csv_cell(cell) == f"'{cell}"


@pytest.mark.parametrize("cell", [-1.5, 7, "-1.5", "+3", "-1e-9", "-inf", "name", "", None])
def test_numbers_stay_numbers(cell: Any) -> None:
    assert csv_cell(cell) == cell


def test_tables_of_a_report_hold_no_formulas(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", model="=cmd", names=lambda k: "@sum", maps=False)
    report.write([run], tmp_path / "page", formats=[])
    cells = [
        c
        for path in (tmp_path / "page" / "tables").glob("*.csv")
        for c in path.read_text().replace("\n", ",").split(",")
    ]
    assert "'@sum" in cells
    assert not any(re.match(r"[=@]|[+-](?![\d.]|inf)", cell) for cell in cells)


def test_tables_of_sequences_hold_no_formulas(sequences: Path) -> None:
    """Names of FASTA and VCF files reach tables that a spreadsheet opens. BED files are for tools: names stay."""
    evil = ["=cmd|'calc'!A0", "@sum", "+1+1", "-2+3", "plain"]
    write_fasta("seqs.fa", evil, ["ACGT" * 8] * 5)
    assert cli.main(EXPLAIN.split()) == 0
    lines = [line.split("\t") for line in Path("out/scores.tsv").read_text().splitlines()]
    assert [line[0] for line in lines] == ["name", *(f"'{name}" for name in evil[:-1]), "plain"]
    assert not any(cell.startswith("'") for line in lines for cell in line[1:])  # numbers stay numbers
    variant = Variant("=chr", 4, "A", "-", "@id", line=7)
    _write_skipped(sequences / "skipped.tsv", [Skipped(variant, "no base", "=detail")])
    cells = (sequences / "skipped.tsv").read_text().splitlines()[1].split("\t")
    assert cells == ["'=chr", "5", "'@id", "A", "-", "no base", "'=detail", "7"]


# Bombs, absurd numbers, memory


def test_a_gzip_bomb_is_refused_with_the_option(sequences: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bomb.fa.gz").write_bytes(gzip.compress(b">a\n" + b"A" * 20_000_000))  # one line
    with pytest.raises(TooLarge, match=r"bomb\.fa\.gz unpacks to more than 0\.001 GB.*--largest-input"):
        read_fasta("bomb.fa.gz", largest=1_000_000)
    words = EXPLAIN.replace("seqs.fa", "bomb.fa.gz")
    assert cli.main([*words.split(), "--largest-input", "2MB"]) == 2
    assert "unpacks to more than 0.002 GB" in capsys.readouterr().err
    assert not Path("out").exists()
    assert len(read_fasta("bomb.fa.gz").letters[0]) == 20_000_000


def test_an_npz_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", inputs=np.zeros(3_000_000, np.float32))
    with pytest.raises(TooLarge, match=r"unpacks to more than 0\.01 GB"):
        read_arrays(tmp_path / "bomb.npz", largest=10_000_000)
    with pytest.raises(TooLarge):
        read_npz(tmp_path / "bomb.npz", largest=10_000_000)
    config = small(tmp_path / "world", 1).changed(**{"data.root": str(tmp_path / "bomb.npz"), "data.largest": 10**7})
    with pytest.raises(TooLarge, match=r"largest= in Python and in \[data\] of a config"):
        sweep(config, tmp_path / "run", workers=1)
    assert len(read_arrays(tmp_path / "bomb.npz", largest=13_000_000)["inputs"]) == 3_000_000


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_an_array_that_promises_terabytes_is_refused(tmp_path: Path, suffix: str) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**12,)})
    path = tmp_path / f"liar.{suffix}"
    if suffix == "npy":
        path.write_bytes(header.getvalue() + b"1234")
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("onehot.npy", header.getvalue() + b"1234")
    with pytest.raises(SequenceError, match="does not fit into its"):
        read_npz(path)


@pytest.mark.parametrize("suffix", ["npz", "npy"])
@pytest.mark.parametrize(
    "text", ["{'descr': '<f4', (", "{'descr': (), 'fortran_order': False, 'shape': (1,)}", "(" * 300, "{}", "\n  x\n y"]
)
def test_a_bad_header_of_an_array_is_a_damaged_file(tmp_path: Path, suffix: str, text: str) -> None:
    """numpy's own reader gives a TokenError, an IndexError or an IndentationError here."""
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(8)
    path = tmp_path / f"bad.{suffix}"
    if suffix == "npy":
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("arr_0.npy", content)
        with pytest.raises(ValueError, match=r"the header of an array is damaged \(\w+\)"), npz_rows(path, 1):
            pass
    with pytest.raises(SequenceError, match=r"not a readable NPZ or NPY file \(the header of an array is damaged"):
        read_npz(path)
    with pytest.raises(ValueError, match=r"bad\.\w+ is damaged, or was not written by"):
        plrp.load(path)


@pytest.mark.parametrize("shape", [(-1,), (2, -3)])
def test_a_negative_size_of_an_array_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    (tmp_path / "a.npy").write_bytes(header.getvalue() + bytes(24))
    with pytest.raises(SequenceError, match="does not fit into its"):
        read_npz(tmp_path / "a.npy")


def test_arrays_of_objects_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "evil.npz", inputs=np.array([Payload(tmp_path / "owned")], object))
    with pytest.raises(ValueError, match="Python objects"):
        read_arrays(tmp_path / "evil.npz")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("data.sequences", 10**12),
        ("data.length", 10**12),
        ("data.sequences", "many"),
        ("model.filters", 10**9),
        ("model.epochs", 0),
        ("part_size", 10**12),
        ("batch_size", 10**12),
        ("seed", 2**64),
        ("metrics.local_lipschitz.samples", 10**9),
        ("metrics.pixel_flipping.steps", 10**9),
        ("p", [k / 2000 for k in range(1500)]),
    ],
)
def test_absurd_numbers_in_a_config_are_refused_by_name(entry: str, value: Any) -> None:
    config = Config.from_dict({"data": {"kind": "simulated-dna"}, "model": {"name": "sequence-cnn"}})
    with pytest.raises(ConfigError, match=rf"{re.escape(entry)} (is|has)"):
        config.changed(**{entry: value})


def test_more_simulated_sequences_than_fit_are_refused_with_the_option(tmp_path: Path) -> None:
    table = {"data": {"kind": "simulated-dna", "sequences": 10**7, "length": 10**4}, "model": {"name": "sequence-cnn"}}
    with pytest.raises(ConfigError, match=r"take 2,400 GB: ask for fewer, or allow more with data\.largest"):
        sweep(Config.from_dict(table), tmp_path / "run")


class Small(nn.Module):
    """A GPU or CPU with room for `most` samples at once."""

    def __init__(self, inner: nn.Module, most: int, error: type[Exception] = torch.cuda.OutOfMemoryError) -> None:
        super().__init__()
        self.inner, self.most, self.error, self.seen = inner, most, error, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        if len(x) > self.most:
            raise self.error("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")
        return self.inner(x)


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError, MemoryError, RuntimeError])
def test_out_of_memory_halves_the_batch_and_goes_on(sequences: Path, error: type[Exception]) -> None:
    model = load("net.py:build").module
    letters = read_fasta("seqs.fa").letters
    expected = explain_sequences(model, letters, batch_size=2)
    with pytest.warns(UserWarning, match=r"out of memory with 12 samples at a time: going on with 6\. --batch-size 6"):
        found = explain_sequences(Small(model, 3, error), letters)
    np.testing.assert_allclose(found.relevance, expected.relevance, rtol=1e-5, atol=1e-7)
    with pytest.raises(memory.OutOfMemory, match="with a single sample"), pytest.warns(UserWarning, match="going on"):
        explain_sequences(Small(model, 0, error), letters)
    with pytest.raises(RuntimeError, match="another reason"):
        explain_sequences(Small(model, 3, lambda text: RuntimeError("another reason")), letters)  # type: ignore[arg-type]


def test_a_sweep_out_of_memory_halves_its_batches_and_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = world(tmp_path / "world", 6, batch_size=3)
    whole = sweep(config, tmp_path / "whole", workers=1)
    network = (tmp_path / "world" / "net.py").read_text()
    (tmp_path / "world" / "net.py").write_text(
        f"{network.replace('def build', 'def inner')}\nimport os\n"
        "class Small(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.inner = inner()\n"
        "    def forward(self, x):\n"
        "        if len(x) > 1:\n            raise torch.cuda.OutOfMemoryError('full')\n"
        "        return self.inner(x)\n"
        "def build():\n    return Small()\n"
    )
    with pytest.warns(
        UserWarning, match=r"out of memory with 3 samples at a time: going on with 1\. --set batch_size=1"
    ):
        found = sweep(config, tmp_path / "small", workers=1)
    assert found.complete
    np.testing.assert_allclose(found.scores["value"], whole.scores["value"], rtol=1e-4, atol=1e-5)


def test_the_batch_follows_the_length_of_the_sequences() -> None:
    assert [batch_size_for(length) for length in (1, 250, 2048, 2**15, 2**18, 2**30)] == [128, 128, 128, 8, 1, 1]


# Where results cannot go, and interruptions


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_place_that_cannot_be_written_is_wrong_usage(
    sequences: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    """As root every folder can be written: the system's answer is played."""

    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    config = small(sequences / "world", 1)
    Path("run.toml").write_text(config.to_toml())
    made_run(sequences / "made", maps=False)
    Path("there").mkdir()
    monkeypatch.setattr("tempfile.mkstemp", refused)
    monkeypatch.setattr("tempfile.mkdtemp", refused)
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *a, **k: refused() if str(path).endswith(".lock") else real(path, *a, **k)
    )
    for words in (
        "sweep run.toml --out there",
        EXPLAIN.replace("--out out", "--out there"),
        "report made --out page",
        "genomics simulate --count 2 --motifs CTCF --out sim",
    ):
        assert cli.main(words.split()) == 2, words
        assert "cannot be written" in capsys.readouterr().err
    with pytest.raises(NotWritable), files.new_file("x"):
        pass


def test_a_bucket_that_is_not_there_is_wrong_usage(
    sequences: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As s3fs answers: a missing bucket is a missing file where it is written to; other errors are its own."""
    from fsspec.implementations.memory import MemoryFileSystem

    class NoCredentials(Exception):
        pass

    config = small(sequences / "world", 1)
    Path("run.toml").write_text(config.to_toml())
    for kind, said in (
        (FileNotFoundError("The specified bucket does not exist"), "make the bucket first"),
        (PermissionError("Access Denied"), "cannot be used (Access Denied)"),
        (NoCredentials("Unable to locate credentials"), "cannot be used (Unable to locate credentials)"),
    ):

        def refused(self: Any, *_: Any, kind: Exception = kind, **__: Any) -> Any:
            raise kind

        with monkeypatch.context() as patched:
            patched.setattr(MemoryFileSystem, "pipe_file", refused)
            patched.setattr(MemoryFileSystem, "put_file", refused)
            for words in (
                "sweep run.toml --out memory://no/run",
                EXPLAIN.replace("--out out", "--out memory://no/run"),
            ):
                assert cli.main(words.split()) == 2
                assert said in capsys.readouterr().err
        with monkeypatch.context() as patched:
            if not isinstance(kind, FileNotFoundError):
                patched.setattr(MemoryFileSystem, "info", refused)
                patched.setattr(MemoryFileSystem, "ls", refused)
                assert cli.main(["sweep", "run.toml", "--out", "memory://no/run"]) == 2


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handler, also where Ctrl-C is ignored (nohup, cron)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_error_after_a_ctrl_c_counts_as_one(ctrl_c: None) -> None:
    def compiled(interrupted: bool) -> None:
        with keep_interrupts():
            if interrupted:
                with suppress(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGINT)
            raise SystemError("<built-in function> returned a result with an exception set")

    with pytest.raises(KeyboardInterrupt):
        compiled(True)
    with pytest.raises(SystemError):
        compiled(False)


@pytest.mark.parametrize("fails", [False, True])
def test_ctrl_c_while_motifs_are_matched_exits_with_130(
    sequences: Path, ctrl_c: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: bool
) -> None:
    """Compiled code swallows the interrupt, or turns it into an error of its own."""

    def swallowing(seqlets: Seqlets, *_: Any) -> list[Any]:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        if fails:
            raise SystemError("returned a result with an exception set")
        return []

    monkeypatch.setattr(jobs_module, "match_seqlets", swallowing)
    assert cli.main(EXPLAIN.replace("--no-match ", "").split()) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "plrp: interrupted"


# Kills


class Killed(BaseException):
    """The end of a process: nothing is cleaned up after it."""


@contextmanager
def killed_at(moment: str, call: int) -> Iterator[None]:
    """Within this context the n-th call of a function of `os` is the last thing that happens to any file."""
    real, calls, unlink = getattr(os, moment), iter(range(1, call)), Path.unlink
    alive = [True]

    def counted(*arguments: Any) -> Any:
        alive[0] = alive[0] and next(calls, None) is not None
        if not alive[0]:
            raise Killed
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, moment, counted)
        patched.setattr(Path, "unlink", lambda path, **how: unlink(path, **how) if alive[0] else None)
        yield


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob(".*") if not path.name.startswith(".lock"))


@pytest.mark.parametrize("moment", ["replace", "fsync"])
@pytest.mark.parametrize("kind", ["genomics", "sweep"])
def test_a_run_killed_in_each_of_its_writes_leaves_nothing(
    sequences: Path, monkeypatch: pytest.MonkeyPatch, kind: str, moment: str
) -> None:
    """Killed in its first write, resumed and killed in the second write of that session, and so on to the end."""
    match = Match(jaspar("CTCF"), 0.5, 400.0, 0, 5, "+")
    monkeypatch.setattr(jobs_module, "match_seqlets", lambda seqlets, *_: [match] * len(seqlets))
    monkeypatch.setattr(jobs_module, "compile_tomtom", lambda show_progress: None)
    config = small(sequences / "world", 3, maps={})

    def work(out: str) -> None:
        if kind == "sweep":
            assert sweep(config, out, workers=1).complete
        else:
            words = EXPLAIN.replace("--no-match ", "").replace("--out out", f"--out {out}")
            assert cli.main(words.split()) == 0

    work("whole")
    left: list[str] = []
    kills = 0
    while True:
        try:
            with killed_at(moment, kills + 1):
                work("killed")
            break
        except Killed:
            left += hidden(Path("killed"))
            kills += 1
    assert kills >= 4
    assert left
    assert any(name.startswith("..") for name in left) == (kind == "genomics" and moment == "replace")
    assert hidden(Path("killed")) == []  # the last session was not killed
    names = {path.relative_to("whole") for path in Path("whole").rglob("*") if path.is_file()}
    assert {path.relative_to("killed") for path in Path("killed").rglob("*") if path.is_file()} == names
    for name in names if kind == "genomics" else ():
        assert name.name == ".lock" or Path("killed", name).read_bytes() == Path("whole", name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_sequences_killed_and_damaged_again_and_again_give_the_same_files(sequences: Path, seed: int) -> None:
    """`plrp genomics explain`, killed at any moment, a stored part damaged after some kills: in the end as if never."""
    assert cli.main(EXPLAIN.replace("--part-size 4", "--part-size 1").split()) == 0
    whole = {path.name: path.read_bytes() for path in Path("out").iterdir() if path.suffix}
    words = EXPLAIN.replace("--part-size 4", "--part-size 1").replace("--out out", "--out killed").split()
    rng, stored = np.random.default_rng(seed), 0
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-m", "plrp.cli", *words],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # as many threads as here: sums in the same order
        )
        while process.poll() is None and len(Folder("killed").names("parts")) <= stored:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.wait()
        found = Folder("killed").names("parts")
        stored = len(found)
        if rng.random() < 0.5 and found:
            Path("killed", found[0]).write_bytes(b"damaged")
    assert cli.main(words) == 0
    assert {path.name: path.read_bytes() for path in Path("killed").iterdir() if path.suffix} == whole
    assert not [path for path in Path("killed").rglob(".*") if not path.name.startswith(".lock")]


def test_a_link_to_itself_is_a_strange_file_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert Folder(tmp_path).names() == []
    with pytest.raises(WrongPlace, match=r"holds other files \(loop\)"):
        refuse_strangers(Folder(tmp_path))
