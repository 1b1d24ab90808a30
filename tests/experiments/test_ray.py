"""Sweeps on Ray clusters of several nodes, all on this machine: lost nodes, killed drivers, poisoned parts.

Each test has a cluster of its own, so that what one breaks does not trouble another.
"""

from __future__ import annotations

import json
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
from plrp.cluster import ClusterError, Failure, RayCluster, Work
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


def test_only_plain_data_is_sent(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        Work("module:Class", {"model": np.zeros(3)})


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


# The crew's rules, with a cluster made of Python: what a real one does rarely


class Answer:
    """A reference whose value is known."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Gone(Exception):
    """Stands for every error of Ray's."""


class Script:
    """A stand-in for Ray: `fate(index, node, attempt)` says what becomes of a part."""

    def __init__(self, fate: Any, spots: int = 2, **resources: float) -> None:
        self.fate, self.spots, self.resources = fate, spots, resources
        self.exceptions = type("exceptions", (), {"RayError": Gone})
        self.dead: set[str] = set()
        self.actors = 0
        self.attempts: list[tuple[int, str]] = []
        self.under_way = self.most = 0
        self.slow: dict[int, int] = {}  # words of a worker before a part is done

    def nodes(self) -> list[dict[str, Any]]:
        has = {"CPU": 1.0, **self.resources}
        return [{"NodeID": f"n{k}", "Alive": f"n{k}" not in self.dead, "Resources": has} for k in range(self.spots)]

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, _: type) -> Script:
        return self

    def kill(self, actor: Any) -> None: ...

    def options(self, **_: Any) -> Any:
        script = self

        class Actor:
            def __init__(self) -> None:
                living = [n["NodeID"] for n in script.nodes() if n["Alive"]]
                self.node = living[script.actors % len(living)]
                script.actors += 1
                self.hello = type("", (), {"remote": lambda _: Answer(self.node)})()
                self.rehearse = type("", (), {"remote": lambda _, index: Answer({})})()
                self.make = self

            def options(self, **_: Any) -> Actor:
                return self

            def remote(self, index: int) -> Iterator[Answer]:
                script.attempts.append((index, self.node))
                script.under_way += 1
                script.most = max(script.most, script.under_way)
                tries = sum(i == index for i, _ in script.attempts)
                told = [Answer({"ticks": {}})] * script.slow.get(index, 0)
                return iter([*told, Answer(script.fate(script, index, self.node, tries))])

        return type("", (), {"remote": lambda _, *arguments: Actor()})()

    def wait(self, refs: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return refs[:num_returns], refs[num_returns:]

    def get(self, ref: Answer) -> Any:
        if not isinstance(ref.value, (str, dict)) or "done" in ref.value or "failed" in ref.value:
            self.under_way -= 1
        if isinstance(ref.value, Exception):
            raise ref.value
        return ref.value


class Notes:
    """Hears, and remembers."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.given_up: list[Failure] = []
        self.said: list[str] = []
        self.say = self.said.append

    def costs(self, cost: Any, workers: int) -> None: ...

    def tick(self, kind: str, count: int) -> None: ...

    def done(self, index: int) -> None:
        self.stored.append(index)

    def failed(self, failure: Failure) -> None:
        self.given_up.append(failure)


def played(script: Script, parts: int, **settings: Any) -> tuple[Notes, list[Failure]]:
    notes = Notes()
    crew = cluster._Crew(script, RayCluster(**settings), Work("m:C", {}), range(parts), notes)
    return notes, crew.run()


def wrong(index: int, kind: str = "ValueError", errno: int | None = None) -> dict[str, Any]:
    return {"failed": {"index": index, "kind": kind, "message": "no", "traceback": "", "errno": errno}}


def test_what_is_under_way_is_bounded_by_the_workers() -> None:
    script = Script(lambda s, index, node, tries: {"done": index}, spots=3)
    notes, failures = played(script, 200)
    assert sorted(notes.stored) == list(range(200))
    assert failures == []
    assert script.most <= 3


def test_a_part_goes_to_another_node_first() -> None:
    """Part 5 cannot be made on n0 (a disk that is not mounted there)."""
    script = Script(lambda s, i, node, tries: wrong(i) if i == 5 and node == "n0" else {"done": i})
    notes, failures = played(script, 40, tries=2)
    assert sorted(notes.stored) == list(range(40))
    assert failures == []


def test_the_last_part_goes_to_a_worker_that_has_nothing_to_do() -> None:
    """Its first worker dies when the other one has finished."""
    script = Script(lambda s, i, node, t: Gone("worker process has died") if i == 2 and t == 1 else {"done": i})
    notes, failures = played(script, 3)
    assert sorted(notes.stored) == [0, 1, 2]
    assert failures == []


def test_the_last_part_waits_for_a_node_that_can_make_it() -> None:
    """n0 cannot; it has nothing else to do, and n1 is still at its part."""
    script = Script(lambda s, i, node, tries: wrong(i) if i == 0 and node == "n0" else {"done": i})
    script.slow = {1: 5}
    notes, failures = played(script, 2, tries=2)
    assert sorted(notes.stored) == [0, 1]
    assert failures == []
    assert script.attempts == [(0, "n0"), (1, "n1"), (0, "n1")]


def test_lost_nodes_count_less_than_dead_workers() -> None:
    def fate(script: Script, index: int, node: str, tries: int) -> Any:
        if index == 0 and tries <= 5:
            script.dead.add(node)
            script.spots += 1
            return Gone("its node has died")
        return {"done": index}

    notes, failures = played(Script(fate), 3, tries=2)
    assert sorted(notes.stored) == [0, 1, 2]
    assert failures == []
    assert len(notes.said) == 5
    _, failures = played(
        Script(lambda s, i, node, t: Gone("worker process has died") if i == 0 else {"done": i}), 3, tries=2
    )
    assert [(f.index, f.kind) for f in failures] == [(0, "WorkerDied")]


def test_where_everything_fails_the_rest_is_not_tried() -> None:
    script = Script(lambda s, index, node, tries: wrong(index))
    notes, failures = played(script, 1000, tries=3)
    assert notes.stored == []
    assert cluster.IN_A_ROW <= len(failures) <= cluster.IN_A_ROW + 1
    assert len(script.attempts) < 50


def test_a_full_disk_stops_everything() -> None:
    from plrp.experiments import DiskFull

    script = Script(lambda s, i, node, tries: wrong(i, "DiskFull", 28) if i == 3 else {"done": i})
    with pytest.raises(DiskFull) as caught:
        played(script, 100)
    assert caught.value.errno == 28
    assert len(script.attempts) < 10


def test_a_cluster_without_room_is_refused() -> None:
    with pytest.raises(ClusterError, match="no node of the cluster has room for a worker \\(2 cores\\)"):
        played(Script(None), 3, threads=2)
    with pytest.raises(ClusterError, match=r"1 core and 0.5 GPU"):
        played(Script(None), 3, gpus=0.5)


def test_fractions_of_gpus_are_counted_per_node() -> None:
    script = Script(lambda s, index, node, tries: {"done": index}, spots=2, GPU=1.0)
    script.resources["CPU"] = 8.0
    crew = cluster._Crew(script, RayCluster(gpus=0.25), Work("m:C", {}), range(99), Notes())
    assert crew.room() == 8
    crew.memory = 100
    script.resources["memory"] = 250.0
    assert crew.room() == 4


def test_runtime_environments_are_read_from_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "env.json").write_text(json.dumps({"working_dir": "here"}))
    words = ["sweep", "run.toml", "--engine", "ray", "--runtime-env", str(tmp_path / "env.json"), "--workers", "4"]
    chosen = cluster.chosen(cli.build_parser().parse_args(words))
    assert chosen == RayCluster(workers=4, runtime_env={"working_dir": "here"})
