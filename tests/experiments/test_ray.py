"""Sweeps on Ray clusters of several nodes, all on this machine: lost nodes, killed drivers, poisoned parts.

Each test has a cluster of its own, so that what one breaks does not trouble another.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_sweep import alive, plain_world, same
from worlds import world

from plrp import cli, cluster
from plrp.cluster import RayCluster
from plrp.experiments import Config, Folder, PartsMissing, Results, RunError, sweep
from plrp.experiments.on_ray import portable

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray")

QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4,
}  # fmt: skip
SMALL = {"object_store_memory": 80 * 2**20}


@contextmanager
def nodes(count: int) -> Iterator[Any]:
    """A cluster of so many nodes with one core each; the first is its head."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK_TO_NOTICE, **SMALL}
    started = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(count - 1):
            started.add_node(num_cpus=1, **SMALL)
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


def slowed(folder: Path, samples: int, seconds: float, deadly: str = "") -> Config:
    """A world whose parts take a while, and whose network does `deadly` where a sample's first value is huge."""
    config = plain_world(folder, samples)
    network = folder / "net.py"
    inner = network.read_text().replace("def build", "def inner")
    network.write_text(
        f"import os, time\n{inner}\n"
        "class Network(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.inner = inner()\n"
        "    def forward(self, x):\n"
        f"        time.sleep({seconds})\n"
        f"        if (x[0, 0, 0, 0] > 1e6).item():\n            {deadly or 'pass'}\n"
        "        return self.inner(x)\n"
        "def build():\n    torch.manual_seed(0)\n    return Network()\n"
    )
    return config


def poison(folder: Path, sample: int) -> None:
    with np.load(folder / "data.npz") as stored:
        arrays = dict(stored)
    arrays["inputs"][sample, 0, 0, 0] = 1e7
    np.savez(folder / "data.npz", **arrays)


def nothing_twice(results: Results) -> None:
    """Every part is there once, and every score."""
    names = results.store.place.names("parts")
    assert [int(name.removeprefix("parts/")[:6]) for name in names] == list(range(results.settings.parts))
    assert not results.scores.duplicated(["sample", "variant", "p", "metric"]).any()


# Clusters


def test_a_cluster_gives_the_scores_of_a_local_run_and_gives_up_what_is_poisoned(tmp_path: Path) -> None:
    """Two nodes. One sample ends its worker at once, as the kernel does to one that takes too much memory."""
    config = slowed(tmp_path / "world", 6, 0, "os._exit(1)")
    local = sweep(config, tmp_path / "local", workers=1)
    poison(tmp_path / "world", 3)
    said: list[str] = []
    with (
        nodes(2) as started,
        pytest.raises(PartsMissing, match=r"1 of 6 parts could not be made; the others are stored") as caught,
    ):
        sweep(config, tmp_path / "ray", engine=RayCluster(started.address, tries=2), say=said.append)
    assert "on 2 workers of the cluster; memory up to" in said[1]
    assert "part 3: its process died, perhaps for want of memory (given up after 2 tries)" in str(caught.value)
    assert caught.value.exit_code == 3
    results = Results.load(tmp_path / "ray")
    assert results.missing == [3]
    for table in ("samples", "scores", "curves"):
        there, wanted = getattr(results, table), getattr(local, table)
        pd.testing.assert_frame_equal(there, wanted[wanted["sample"] != 3].reset_index(drop=True))


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_clusters_give_the_tables_of_a_local_run(tmp_path: Path, count: int) -> None:
    """All metrics, and maps; the same parts to the byte."""
    config = world(tmp_path / "world", 14, part_size=2)
    with nodes(count) as started:
        spread = sweep(config, tmp_path / "ray", engine=RayCluster(started.address))
    nothing_twice(spread)
    same(sweep(config, tmp_path / "local", workers=1), spread)


@pytest.mark.slow
def test_a_store_with_a_url_serves_a_cluster(tmp_path: Path) -> None:
    """fsspec's own access to a disk: written beside and moved, without our locks."""
    config = plain_world(tmp_path / "world", 5)
    url = f"local://{tmp_path}/ray"
    with nodes(2) as started:
        spread = sweep(config, url, engine=RayCluster(started.address))
    assert str(spread.store) == url
    same(sweep(config, tmp_path / "local", workers=1), spread)


@pytest.mark.slow
def test_code_and_data_travel_as_a_runtime_environment(tmp_path: Path) -> None:
    """The workers see another folder than the driver: the one that Ray unpacked for them."""
    config = plain_world(tmp_path / "world", 3)
    network = tmp_path / "world" / "net.py"
    said = tmp_path / "where"
    network.write_text(
        f"import os\nopen({str(said)!r}, 'a').write(os.path.abspath(__file__) + os.linesep)\n" + network.read_text()
    )
    with nodes(1) as started:
        engine = RayCluster(started.address, runtime_env={"working_dir": str(tmp_path / "world")})
        assert sweep(config, tmp_path / "ray", engine=engine).complete
    assert "working_dir_files" in said.read_text()


@pytest.mark.slow
def test_three_nodes_one_of_them_lost_in_mid_sweep(tmp_path: Path) -> None:
    config = slowed(tmp_path / "world", 40, 0.03)
    said: list[str] = []
    with nodes(3) as started:
        place = Folder(tmp_path / "ray")

        def lose() -> None:
            while len(place.names("parts")) < 8:
                time.sleep(0.02)
            started.remove_node(started.list_all_nodes[-1], allow_graceful=False)

        thief = threading.Thread(target=lose)
        thief.start()
        results = sweep(config, place, engine=RayCluster(started.address, tries=1), say=said.append)
        thief.join()
    nothing_twice(results)
    same(sweep(config, tmp_path / "local", workers=1), results)
    assert any("a node was lost; part" in text for text in said), said


@pytest.mark.slow
def test_a_node_that_comes_later_gets_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LOOK", 0.5)
    config = slowed(tmp_path / "world", 60, 0.03)
    hired: list[int] = []
    hire = cluster._Crew.hire
    monkeypatch.setattr(cluster._Crew, "hire", lambda crew: (hire(crew), hired.append(len(crew.hands)))[0])
    with nodes(1) as started:
        late = threading.Timer(4, lambda: started.add_node(num_cpus=1, **SMALL))
        late.start()
        results = sweep(config, tmp_path / "ray", engine=RayCluster(started.address))
        late.join()
    assert results.complete
    assert hired == [1, 2]


@pytest.mark.slow
def test_the_driver_killed_and_started_again(tmp_path: Path) -> None:
    config = slowed(tmp_path / "world", 30, 0.05)
    (tmp_path / "run.toml").write_text(config.to_toml())
    with nodes(2) as started:
        command = [sys.executable, "-m", "plrp.cli", "sweep", "run.toml", "--out", "run", "--engine", "ray"]
        command += ["--address", started.address]
        first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        place = Folder(tmp_path / "run")
        while len(place.names("parts")) < 5:
            assert first.poll() is None, first.communicate()
            time.sleep(0.02)
        first.kill()
        first.communicate()
        time.sleep(3)  # its workers are ended by Ray
        done = place.names("parts")
        assert 5 <= len(done) < 30
        time.sleep(1)
        assert place.names("parts") == done, "workers outlive their driver"
        again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert again.returncode == 0, again.stderr
        assert f"{30 - len(done)} of 30 parts to do" in again.stderr
    results = Results.load(tmp_path / "run")
    nothing_twice(results)
    assert set(done) < set(place.names("parts"))
    same(sweep(config, tmp_path / "local", workers=1), results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deadly", "reason"),
    [
        ("raise ValueError('a bad sample')", r"part 2: a bad sample \(given up after 3 tries\)"),
        ("os.kill(os.getpid(), 9)", r"part 2: its process died, perhaps for want of memory \(given up after 3 tries\)"),
    ],
)
def test_the_command_names_a_poisoned_part_and_ends_with_3(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], deadly: str, reason: str
) -> None:
    """Ray on this machine, started by the command and gone with it."""
    config = slowed(tmp_path / "world", 5, 0, deadly)
    poison(tmp_path / "world", 2)
    (tmp_path / "run.toml").write_text(config.to_toml())
    words = ["sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--engine", "ray", "--workers", "2"]
    assert cli.main([*words, "--address", "local"]) == 3
    assert re.search(reason, capfd.readouterr().err)
    assert not ray.is_initialized()
    assert Results.load(tmp_path / "run").missing == [2]


@pytest.mark.slow
def test_ctrl_c_ends_the_command_and_its_workers(tmp_path: Path) -> None:
    config = slowed(tmp_path / "world", 60, 0.05, "pass")
    (tmp_path / "world" / "net.py").write_text(
        f"import os\nopen(f'{tmp_path}/pid-{{os.getpid()}}', 'w')\n" + (tmp_path / "world" / "net.py").read_text()
    )
    (tmp_path / "run.toml").write_text(config.to_toml())
    command = [sys.executable, "-m", "plrp.cli", "sweep", "run.toml", "--out", "run", "--engine", "ray"]
    command += ["--workers", "2", "--address", "local"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    place = Folder(tmp_path / "run")
    while len(place.names("parts")) < 4:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "parts were stored; started again, it goes on from there" in said
    workers = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    assert len(workers) == 2
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker outlives the sweep"
        time.sleep(0.05)


# What is sent


def test_paths_inside_the_folder_that_ray_sends_are_written_from_there(tmp_path: Path) -> None:
    config = world(tmp_path / "world")
    sent = portable(config, str(tmp_path))
    assert sent.data.root == "world/data.npz"
    assert sent.model.name == "world/net.py:build"
    assert sent.at(tmp_path) == config
    assert portable(config, None) == config
    assert portable(config, str(tmp_path / "elsewhere")) == config


# What cannot be


def test_without_ray_a_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "run.toml").write_text(plain_world(tmp_path / "world", 2).to_toml())
    words = ["sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--engine", "ray"]
    assert cli.main(words) == 1
    assert capsys.readouterr().err == "plrp: Many machines need Ray: pip install 'plrp[ray]'\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tries", "2"], "--tries goes with --engine ray"),
        (["--engine", "ray", "--tries", "0"], "tries=0: at least 1"),
        (["--engine", "ray", "--gpus-per-worker", "-1"], "gpus=-1.0: 0 or more"),
        (["--engine", "ray", "--address", "ray://head:10001"], "Ray's client is not supported"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1"),
        (["--engine", "ray", "--runtime-env", "none.json"], "none.json"),
    ],
)
def test_what_a_cluster_cannot_do_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (tmp_path / "run.toml").write_text(plain_world(tmp_path / "world", 2).to_toml())
    assert cli.main(["sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), *words]) == 1
    assert message in capsys.readouterr().err


def test_memory_of_this_process_is_no_place_for_others(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="this process's memory"):
        sweep(plain_world(tmp_path / "world", 2), f"memory://{tmp_path.name}", engine=RayCluster())
