"""Sweeps as they happen: killed, cut off, out of disk, two at once; in the end the tables are the same."""

from __future__ import annotations

import errno
import itertools
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from plrp import cli
from plrp.experiments import Config, DiskFull, Folder, Results, RunError, preset, sweep
from worlds import held_up, plain_world, same, world

FORK = multiprocessing.get_context("fork")  # starts at once: torch is there already


def child(function: object, *arguments: object) -> multiprocessing.process.BaseProcess:
    process = FORK.Process(target=function, args=arguments)
    process.start()
    return process


def quietly(config: Config, out: Path) -> None:
    sweep(config, out, workers=1)


# Killed


def killed_and_resumed(tmp_path: Path, seed: int, kills: int) -> None:
    """Each kill waits for some more parts than there were, the first for none, and then for a moment.

    The last part is held up, so that no sweep ends before its kill.
    """
    parts = 12
    config, held = held_up(tmp_path / "world", parts, free=parts - 1)
    rng, done = random.Random(seed), [0]
    for kill in range(kills):
        sweeping = child(quietly, config, tmp_path / "killed")
        awaited = 0 if kill == 0 else rng.randint(min(done[-1], parts - 1), parts - 1)
        while sweeping.is_alive() and len(Folder(tmp_path / "killed").names("parts")) < awaited:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))
        sweeping.kill()
        sweeping.join()
        assert sweeping.exitcode == -signal.SIGKILL
        done.append(len(Folder(tmp_path / "killed").names("parts")))
    assert done == sorted(done), "a finished part was lost"
    held.unlink()
    for out in ("whole", "killed"):
        last = child(quietly, config, tmp_path / out)
        last.join()
        assert last.exitcode == 0
    same(Results.load(tmp_path / "whole"), Results.load(tmp_path / "killed"))
    hidden = [path for path in (tmp_path / "killed").rglob(".*") if not path.name.startswith(".lock")]
    assert hidden == []  # the halves of killed writers are gone


def test_killed_three_times_and_resumed(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, seed=3, kills=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_ten_times_and_resumed(tmp_path: Path, seed: int) -> None:
    killed_and_resumed(tmp_path, seed=seed, kills=10)


class Cut(BaseException):
    """Stands for being killed: nothing but a `finally` of ours would run, and files stay as they are."""


def test_cut_off_at_every_step_of_every_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill lands between two system calls: before a file is written, with half of it written, before and after
    it gets its name. Each such moment of a sweep is tried; the half-written files stay where they are."""
    config = plain_world(tmp_path / "world", 3, p=[0.0])
    whole = sweep(config, tmp_path / "whole", workers=1)
    write, replace = Path.write_bytes, os.replace
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)  # a killed process tidies nothing up
    for moment in itertools.count():
        left = [moment]

        def step(left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] == -1

        def writing(path: Path, content: bytes, step: object = step) -> int:
            if step():
                raise Cut
            write(path, content[: len(content) // 2])
            if step():
                raise Cut
            return write(path, content)

        def replacing(source: object, place: object, step: object = step) -> None:
            if step():
                raise Cut
            replace(source, place)
            if step():
                raise Cut

        with monkeypatch.context() as patched:
            patched.setattr(Path, "write_bytes", writing)
            patched.setattr(os, "replace", replacing)
            try:
                sweep(config, tmp_path / "cut", workers=1)
            except Cut:
                pass
            else:
                break
        same(whole, sweep(config, tmp_path / "cut", workers=1))
        shutil.rmtree(tmp_path / "cut")
    assert moment == 4 * (3 + 3 + 3)  # config, manifest and digests, three parts, and their maps


@pytest.mark.slow
def test_the_command_killed_with_its_workers_and_resumed(tmp_path: Path) -> None:
    """`plrp sweep` with two workers, killed while they work; they go with it, and the next one resumes."""
    config, held = held_up(tmp_path / "world", 12, free=3)
    (tmp_path / "run.toml").write_text(config.to_toml())
    command = [sys.executable, "-m", "plrp.cli", "sweep", "run.toml", "--out", "run", "--workers", "2"]
    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    place = Folder(tmp_path / "run")
    while len(place.names("parts")) < 3:
        assert first.poll() is None, first.communicate()
        time.sleep(0.01)
    workers = children(first.pid)
    assert len(workers) == 2
    first.kill()
    first.communicate()
    deadline = time.monotonic() + 120
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker outlives the sweep"
        time.sleep(0.05)
    done = place.names("parts")
    assert len(done) == 3
    held.unlink()
    again = sweep(tmp_path / "run.toml", tmp_path / "run", workers=1)
    assert set(done) < set(place.names("parts"))
    same(sweep(config, tmp_path / "whole", workers=1), again)


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(status[1]) == pid:
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Damaged, full, interrupted


def test_a_truncated_part_is_done_again(tmp_path: Path) -> None:
    config = plain_world(tmp_path / "world", 4)
    whole = sweep(config, tmp_path / "whole", workers=1)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    part = sorted((tmp_path / "run" / "parts").iterdir())[2]
    os.truncate(part, part.stat().st_size // 2)
    assert Results.load(tmp_path / "run").missing == [2]
    said: list[str] = []
    again = sweep(config, tmp_path / "run", workers=1, say=said.append)
    assert said[0] == f"parts/{part.name} was damaged and will be made again"
    assert "1 of 4 parts to do" in said[1]
    same(whole, again)


@pytest.mark.parametrize("after", [0, 1, 4, 6])
def test_a_full_disk_ends_with_a_sentence_and_the_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    config = plain_world(tmp_path / "world", 6)
    write, left = Path.write_bytes, [after]

    def writing(path: Path, content: bytes) -> int:
        left[0] -= 1
        if left[0] < 0:
            write(path, content[: len(content) // 3])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", writing)
        with pytest.raises(DiskFull, match="no space left for") as caught:
            sweep(config, tmp_path / "run", workers=1)
    if after > 1:
        assert "Make room and start again" in str(caught.value)
    assert not list((tmp_path / "run").rglob("*.part*"))
    same(sweep(config, tmp_path / "whole", workers=1), sweep(config, tmp_path / "run", workers=1))


def test_a_real_limit_of_the_kernel_ends_the_command_with_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No file may grow beyond 3 kB: the first part does not fit."""
    config = plain_world(tmp_path / "world", 2)
    (tmp_path / "run.toml").write_text(config.to_toml())

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        os._exit(cli.main(["sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--workers", "1"]))

    process = child(limited)
    process.join()
    assert process.exitcode == 1
    message = capfd.readouterr().err.splitlines()[-1]
    assert message.startswith("plrp: [Errno 27] no space left for")
    assert "0 of 2 parts were stored and stay" in message
    assert sweep(config, tmp_path / "run", workers=1).complete


def test_ctrl_c_exits_with_130_and_keeps_what_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The signal comes while the model looks at the fourth of six samples, the first time it does so."""
    config = plain_world(tmp_path / "world", 6)
    (tmp_path / "run.toml").write_text(config.to_toml())
    network, pressed = tmp_path / "world" / "net.py", tmp_path / "pressed"
    network.write_text(
        f"{network.read_text().replace('def build', 'def inner')}\nimport os, pathlib, signal\n"
        "class Interrupted(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.inner = inner()\n"
        "    def forward(self, x):\n"
        f"        if len(list(pathlib.Path({str(tmp_path)!r}).glob('run/parts/*'))) == 3:\n"
        f"            if not os.path.exists({str(pressed)!r}):\n"
        f"                open({str(pressed)!r}, 'w').close()\n"
        "                os.kill(os.getpid(), signal.SIGINT)\n"
        "        return self.inner(x)\n"
        "def build():\n    return Interrupted()\n"
    )

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # under nohup it is ignored
    try:
        words = ["sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--workers", "1"]
        assert cli.main(words) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "plrp: interrupted"
    assert "parts were stored; start again to resume" in said[-2]
    kept = set(Folder(tmp_path / "run").names("parts"))
    assert kept < set(sweep(config, tmp_path / "run", workers=1).store.place.names("parts"))


def test_a_bad_sample_costs_its_part_only(tmp_path: Path) -> None:
    config = plain_world(tmp_path / "world", 5)
    with np.load(tmp_path / "world" / "data.npz") as stored:
        arrays = dict(stored)
    arrays["inputs"][3, 0, 0, 0] = np.nan
    np.savez(tmp_path / "world" / "data.npz", **arrays)
    with pytest.raises(
        RunError, match=r"1 of 5 parts could not be made; the others are stored in .*part 3: "
    ) as caught:
        sweep(config, tmp_path / "run", workers=1)
    assert "Fix the cause" in str(caught.value)
    assert Results.load(tmp_path / "run").missing == [3]


def test_parts_that_fail_for_one_reason_are_told_together(tmp_path: Path) -> None:
    config = plain_world(tmp_path / "world", 9)
    with np.load(tmp_path / "world" / "data.npz") as stored:
        arrays = dict(stored)
    arrays["inputs"][1:8, 0, 0, 0] = np.nan
    np.savez(tmp_path / "world" / "data.npz", **arrays)
    said: list[str] = []
    with pytest.raises(RunError, match=r"7 of 9 parts could not .* again\. 7 parts \(1, 2, 3, …\): ") as caught:
        sweep(config, tmp_path / "run", workers=1, say=said.append)
    assert str(caught.value).count("NaN") == " ".join(said).count("NaN")
    assert sum("NaN" in line for line in said) == 1
    assert said[-1] == "part 7 failed for the same reason"


@pytest.mark.slow
def test_a_worker_that_dies_costs_its_part_only(tmp_path: Path) -> None:
    """A model that ends its process on one sample (as running out of memory does): two tries, then the rest."""
    config = plain_world(tmp_path / "world", 6)
    network = tmp_path / "world" / "net.py"
    deadly = (
        "import os\nclass Deadly(torch.nn.Module):\n    def __init__(self, inner):\n        super().__init__()\n"
        "        self.inner = inner\n    def forward(self, x):\n"
        "        print('a model may print')\n"
        "        if (x[0, 0, 0, 0] > 1e6).item():\n            os.kill(os.getpid(), 9)\n        return self.inner(x)\n"
    )
    network.write_text(
        f"{network.read_text().replace('def build', 'def inner')}\n{deadly}\ndef build():\n    return Deadly(inner())\n"
    )
    with np.load(tmp_path / "world" / "data.npz") as stored:
        arrays = dict(stored)
    arrays["inputs"][4, 0, 0, 0] = 1e7
    np.savez(tmp_path / "world" / "data.npz", **arrays)
    with pytest.raises(
        RunError, match=r"part 4: its process died \(SIGKILL, perhaps out of memory\) \(given up after 2 tries\)"
    ):
        sweep(config, tmp_path / "run", workers=2)
    assert Results.load(tmp_path / "run").missing == [4]


# Two at once, shards, limits


def test_two_processes_on_one_run_by_mistake(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = plain_world(tmp_path / "world", 40)
    (tmp_path / "run.toml").write_text(config.to_toml())

    def command() -> None:
        os._exit(cli.main(["sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--workers", "1"]))

    both = [child(command), child(command)]
    for process in both:
        process.join()
    assert sorted(process.exitcode for process in both) == [0, 1]  # one worked, one was refused
    assert "another process works on" in capfd.readouterr().err
    same(sweep(config, tmp_path / "whole", workers=1), Results.load(tmp_path / "run"))


def test_shards_at_the_same_time_make_the_whole(tmp_path: Path) -> None:
    config = plain_world(tmp_path / "world", 10)

    def shard(number: int) -> None:
        sweep(config, tmp_path / "run", shard=(number, 3), workers=1)

    processes = [child(shard, number) for number in (1, 2, 3)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    same(sweep(config, tmp_path / "whole", workers=1), Results.load(tmp_path / "run"))


def test_a_first_look_is_part_of_the_whole(tmp_path: Path) -> None:
    config = plain_world(tmp_path / "world", 8, part_size=2)
    look = sweep(config.changed(**{"data.limit": 3}), tmp_path / "run", workers=1)
    assert look.samples["sample"].tolist() == [0, 1, 2]
    said: list[str] = []
    whole = sweep(config, tmp_path / "run", workers=1, say=said.append)
    assert "3 of 4 parts to do" in said[0]  # the second part had one sample and has two now
    assert whole.samples["sample"].tolist() == list(range(8))
    fresh = sweep(config, tmp_path / "fresh", workers=1)
    pd.testing.assert_frame_equal(whole.scores, fresh.scores)
    said.clear()
    sweep(config.changed(**{"data.limit": 3}), tmp_path / "run", workers=1, say=said.append)
    assert "run was begun with 8 samples: they stay, and the first 3 are worked on" in said[0]
    assert "0 of 2 parts to do" in said[1]


def test_a_smaller_limit_works_on_the_first_samples_of_a_larger_run(tmp_path: Path) -> None:
    config = plain_world(tmp_path / "world", 8, part_size=2)
    sweep(config, tmp_path / "run", shard=(4, 4), workers=1)
    look = sweep(config.changed(**{"data.limit": 3}), tmp_path / "run", workers=1)
    assert look.missing == [2]  # of eight samples, though three were asked for


def test_a_folder_of_other_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = plain_world(tmp_path / "world", 1)
    (tmp_path / "run.toml").write_text(config.to_toml())
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("")
    for out, message in (("thesis", "thesis holds other files (chapter.tex)"), ("run.toml", "run.toml is a file")):
        assert cli.main(["sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / out)]) == 2
        assert message in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".lock").write_text("")  # killed before it wrote its config
    (tmp_path / "begun" / "training.json").write_text("{}")
    assert sweep(config, tmp_path / "begun", workers=1).complete


def test_a_changed_config_is_refused_with_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = plain_world(tmp_path / "world", 2)
    sweep(config, tmp_path / "run", workers=1)
    (tmp_path / "run.toml").write_text(config.to_toml())
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    command = ["sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--set"]
    assert cli.main([*command, "composite=epsilon"]) == 2
    assert 'composite was "epsilon-plus-flat" and is "epsilon"' in capsys.readouterr().err
    assert cli.main([*command, "p=[0.0, 0.4]"]) == 2
    assert "p was [0.0, 0.3] and is [0.0, 0.4]" in capsys.readouterr().err
    network = tmp_path / "world" / "net.py"
    network.write_text(network.read_text().replace("3, 6, 3", "3, 7, 3").replace("6, 8, 3", "7, 8, 3"))
    assert cli.main([*command, "name=other"]) == 2
    assert "the code in net.py changed (model.code.net.py was" in capsys.readouterr().err
    arrays = {"inputs": np.zeros((2, 3, 12, 12)), "masks": np.ones((2, 12, 12), bool)}
    np.savez(tmp_path / "world" / "data.npz", **arrays)
    assert cli.main([*command, "name=other"]) == 2
    assert "data.digest was" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before


# From end to end


@pytest.mark.slow
def test_two_workers_give_what_one_gives(tmp_path: Path) -> None:
    config = world(tmp_path / "world", 7)
    said: list[str] = []
    two = sweep(config, tmp_path / "two", workers=2, say=said.append)
    assert "more on 2 workers, once they have started; memory up to" in said[1]
    same(sweep(config, tmp_path / "one", workers=1), two)


def test_the_command_says_what_it_will_do_and_is_quiet_when_piped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = plain_world(tmp_path / "world", 4)
    (tmp_path / "run.toml").write_text(config.to_toml())
    assert cli.main(["sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--limit", "2"]) == 0
    out, err = capfd.readouterr()
    assert out == f"{tmp_path / 'run'}: 2 samples, {2 * 5 * 6} scores\n"
    first, second = err.splitlines()
    assert first == "tiny: 2 samples × 5 maps (5 variants) × 3 metrics; 2 of 2 parts to do"
    assert re.fullmatch(r"about \d+ \w+ more on 1 worker; memory up to [\d.]+ [MG]B, however many samples", second)
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert set(manifest) >= {"plrp", "git", "python", "packages", "seeds", "starts"}
    assert manifest["packages"]["torch"]
    stored = Config.read(tmp_path / "run" / "config.toml")
    assert (stored.data.count, stored.data.limit) == (4, 2)
    assert stored.data.digest
    assert stored.model.digest
    assert cli.main(["sweep", str(tmp_path / "run"), "--limit", "4"]) == 0  # a run is taken up by its name
    assert Results.load(tmp_path / "run").samples["sample"].tolist() == [0, 1, 2, 3]


def test_without_a_folder_a_run_has_the_configs_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = plain_world(tmp_path / "world", 1)
    monkeypatch.chdir(tmp_path)
    assert sweep(config, workers=1).complete
    assert Results.load(tmp_path / "tiny").complete


def test_on_a_terminal_a_bar_counts_the_parts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sweep(plain_world(tmp_path / "world", 3), tmp_path / "run", workers=1, show_progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "tiny" in err
    assert "3/3 parts" in err
    assert "100%" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.toml"], "none.toml does not exist"),
        (["--preset", "ecssd-vgg16"], "needs --root"),
        (["--preset", "ecssd-vgg16", "--root", "."], "is not ECSSD"),
    ],
)
def test_what_cannot_begin_says_why_and_writes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", *arguments, "--out", "run"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_there_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no device 'toaster' on this machine; it has cpu"):
        sweep(plain_world(tmp_path / "world", 1), tmp_path / "run", device="toaster")
    assert not (tmp_path / "run").exists()


def test_a_sweep_of_nothing_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "--out", "run"]) == 2
    assert "name a config file" in capsys.readouterr().err


def test_show_config_prints_a_config_that_can_be_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["sweep", "--preset", "genomics-4", "--set", "p=[0, 0.25]", "--show-config"]) == 0
    (tmp_path / "run.toml").write_text(capsys.readouterr().out)
    assert Config.read(tmp_path / "run.toml") == preset("genomics-4").changed(p=[0, 0.25])


def test_a_genomics_preset_trains_once_and_resumes(tmp_path: Path) -> None:
    config = preset("genomics-4", limit=4).changed(
        **{"data.sequences": 200, "data.length": 60, "data.motifs": ["SPI1", "GATA1"], "data.number": 1,
           "model.epochs": 1, "p": [0, 0.25], "part_size": 2, "batch_size": 2}
    )  # fmt: skip
    results = sweep(config.changed(**{"data.limit": 2}), tmp_path / "run", workers=1)
    network = (tmp_path / "run" / "network.pt").read_bytes()
    results = sweep(config, tmp_path / "run", workers=1)
    assert (tmp_path / "run" / "network.pt").read_bytes() == network
    assert results.kind == "dna"
    assert results.training["sequences"] == {"train": 140, "validation": 30, "test": 30}
    assert len(results.samples) == 4
    assert results.inputs(3).shape == (4, 60)
    assert results.maps(3, "lambda", 0.25).shape == (60,)
    with pytest.raises(RunError, match=r"model.filters was 4 and is 5"):
        sweep(config.changed(**{"model.filters": 5}), tmp_path / "run")
    (tmp_path / "run" / "network.pt").unlink()
    retrained = sweep(config, tmp_path / "run", workers=1)  # the same seed, the same network
    assert (tmp_path / "run" / "network.pt").read_bytes() == network
    assert retrained.complete


STACK = """\
import torch

class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(60))
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.first(x)).mean((2, 3))
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.head(x)

def build():
    torch.manual_seed(0)
    return Stack()
"""


@pytest.mark.filterwarnings("error::plrp.BrokenArithmetic")
def test_broken_explanations_are_counted_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = {**world(tmp_path, 3).to_dict(), "metrics": {"gini": {}}, "variants": ["LRP", "M"], "p": [0.2]}
    del table["maps"]
    (tmp_path / "net.py").write_text(STACK)
    (tmp_path / "run.toml").write_text(Config.from_dict({**table, "composite": "epsilon"}).to_toml())
    assert cli.main(["sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--workers", "1"]) == 0
    found = Results.load(tmp_path / "run").broken
    assert found["variant"].tolist() == ["M"]
    count = int(found["broken"].sum())
    assert f"plrp: the arithmetic broke in {count} of 6 explanations" in capsys.readouterr().err


LARGER = """
import torch
def build():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 48, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(48, 48, 3, padding=1), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(192, 4))
"""
MEASURED = """
import re, resource, sys
import torch
from plrp.experiments import Config, sweep

torch.set_num_threads(1)
said = []
sweep(Config.read(sys.argv[1]), sys.argv[2], workers=1, say=said.append)
stated = re.search("memory up to ([0-9.]+) (MB|GB)", said[1])
print(float(stated[1]) * {"MB": 1e6, "GB": 1e9}[stated[2]], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_the_memory_that_a_sweep_states_is_the_peak_of_the_whole_of_it(tmp_path: Path) -> None:
    """In a process of its own: flipping and moved inputs come after the first batch, from which the figure is made."""
    metrics = {"gini": {}, "local_lipschitz": {"samples": 2}, "pixel_flipping": {"region": 32, "steps": 4}}
    table = {**world(tmp_path / "world", 3).to_dict(), "metrics": metrics, "p": [0.0, 0.1, 0.5], "batch_size": 3}
    (tmp_path / "world" / "net.py").write_text(LARGER)
    inputs = np.random.default_rng(0).normal(size=(3, 3, 128, 128)).astype(np.float32)
    np.savez(tmp_path / "world" / "data.npz", inputs=inputs)
    (tmp_path / "run.toml").write_text(Config.from_dict(table).to_toml())
    words = [sys.executable, "-c", MEASURED, str(tmp_path / "run.toml"), str(tmp_path / "run")]
    outcome = subprocess.run(words, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    stated, peak = map(float, outcome.stdout.split())
    assert 0.95 * peak <= stated <= 1.5 * peak  # GB are printed with one digit after the point
