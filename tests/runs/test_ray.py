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
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from clusters import SMALL, nodes, none_left, patiently, until, workers  # noqa: F401
from objects import object_store
from pages import HELPERS
from plrp import cli
from plrp.experiments import Bucket, Config, Folder, PartsMissing, Results, RunError, sweep, sweeps
from plrp.experiments.part_making import portable
from plrp.genomics import jobs
from plrp.runs import ray as runs_ray
from plrp.runs.ray import RayCluster, RayCrew, spread
from plrp.runs.work import NODE_LOST, Failure, Work
from worlds import held_up, plain_world, poison, poisonous, same, world

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("none_left")


def lose_a_node(monkeypatch: pytest.MonkeyPatch, started: Any, place: Folder, parts: int, held: Path) -> Future[None]:
    """Ends a node at once, as soon as there are so many parts. The others are held up until its part is known as lost:

    the worker of the node may outlive it for a moment, in which it would finish a part that is not held up.
    """
    known, retry = threading.Event(), RayCrew.retry

    def retried(crew: Any, failure: Failure, node: str | None) -> None:
        retry(crew, failure, node)
        if failure.kind == NODE_LOST:
            known.set()

    def lose() -> None:
        try:
            until(lambda: len(place.names("parts")) >= parts, f"{parts} parts")
            started.remove_node(started.list_all_nodes()[-1], allow_graceful=False)
            assert known.wait(300), "no part was lost with the node"
        finally:
            held.unlink()

    monkeypatch.setattr(RayCrew, "retry", retried)
    monkeypatch.setattr(runs_ray, "GRACE", 300.0)  # on a busy machine Ray needs longer to see that a node is gone
    return ThreadPoolExecutor(1).submit(lose)


def begin_together(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """No worker gets a part before there are so many: on a busy machine the first would be done before the second."""
    assign = RayCrew.assign

    def assigned(crew: Any, hand: Any) -> None:
        if sum(other.node is not None for other in crew.hands) >= workers:
            crew.begun = True
        if hasattr(crew, "begun"):
            assign(crew, hand)

    monkeypatch.setattr(RayCrew, "assign", assigned)


def nothing_twice(results: Results) -> None:
    """Every part is there once, and every score."""
    names = results.store.place.names("parts")
    assert [int(name.removeprefix("parts/")[:6]) for name in names] == list(range(results.settings.parts))
    assert not results.scores.duplicated(["sample", "variant", "p", "metric"]).any()


# Clusters


@pytest.mark.slow
def test_a_cluster_gives_the_scores_of_a_local_run_and_gives_up_what_is_poisoned(tmp_path: Path) -> None:
    """Two nodes. One sample ends its worker at once, as the kernel does to one that takes too much memory."""
    config = poisonous(tmp_path / "world", 6, "os._exit(1)")
    local = sweep(config, tmp_path / "local", workers=1)
    poison(tmp_path / "world", 3)
    said: list[str] = []
    with (
        nodes(2) as started,
        pytest.raises(PartsMissing, match=r"1 of 6 parts could not be made; the others are stored") as caught,
    ):
        sweep(config, tmp_path / "ray", engine=RayCluster(started.address, tries=2), say=said.append)
    assert any("on 2 workers of the cluster, once they have started; memory up to" in text for text in said)
    assert "part 3: its process died, perhaps out of memory (given up after 2 tries)" in str(caught.value)
    assert caught.value.exit_code == 3
    results = Results.load(tmp_path / "ray")
    assert results.missing == [3]
    for table in ("samples", "scores", "curves"):
        there, wanted = getattr(results, table), getattr(local, table)
        pd.testing.assert_frame_equal(there, wanted[wanted["sample"] != 3].reset_index(drop=True))


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_clusters_give_the_tables_of_a_local_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """All metrics, and maps; the same parts to the byte. Each worker makes the network once."""
    config = world(tmp_path / "world", 14, part_size=2)
    network = tmp_path / "world" / "net.py"
    made = tmp_path / "made"
    network.write_text(
        f"import os\nopen({str(made)!r}, 'a').write(f'{{os.getpid()}}' + os.linesep)\n{network.read_text()}"
    )
    moves: list[dict[str, Any]] = []

    @contextmanager
    def progress(*_: Any, **__: Any) -> Iterator[Any]:
        yield lambda advance=0.0, **changes: moves.append({"advance": advance, **changes})

    monkeypatch.setattr(sweeps, "progress", progress)
    said: list[str] = []
    begin_together(monkeypatch, count)
    with nodes(count) as started:
        spread = sweep(config, tmp_path / "ray", engine=RayCluster(started.address), say=said.append)
    pids = made.read_text().split()
    assert len(set(pids)) == len(pids) == count
    crew = f"{count} workers of the cluster, once they have started"
    cost = next(text for text in said if text.startswith("about"))  # after a word on a busy machine
    assert re.fullmatch(rf"about \d+ \w+ more on {crew}; memory up to .* each, however .*", cost)
    assert moves[0]["note"] == "0/7 parts"
    assert moves[-1]["note"] == "7/7 parts"
    assert sum(move["advance"] for move in moves) == pytest.approx(moves[0]["total"])
    nothing_twice(spread)
    same(sweep(config, tmp_path / "local", workers=1), spread)


@pytest.mark.slow
def test_workers_share_a_gpu_and_keep_to_their_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is told of a GPU that is not there: enough to see who would get it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(HELPERS))
    with nodes(1, num_cpus=4, num_gpus=1) as started:
        for gpus, threads, workers in ((0.5, 1, 2), (0.25, 2, 2), (0.25, 3, 1), (0, 2, 2)):
            out = tmp_path / f"{gpus}-{threads}"
            out.mkdir()
            work = Work("clusters:Witness", {"out": str(out), "workers": workers, "device": None})
            assert spread(RayCluster(started.address, gpus=gpus, threads=threads), work, range(6), _Deaf()) == []
            seen = [json.loads(path.read_text()) for path in out.glob("*.json")]
            assert len(seen) == 6
            assert len({worker["pid"] for worker in seen}) == workers
            assert {worker["threads"] for worker in seen} == {threads}
            assert {worker["device"] for worker in seen} == {"cuda" if gpus else "cpu"}
            assert all(worker["gpus"] == ([0] if gpus else []) for worker in seen)


class _Deaf:
    """Hears nothing."""

    def say(self, text: str) -> None: ...

    costs = tick = done = failed = lambda self, *_: None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "objects", "s3"])
def test_a_store_with_a_url_serves_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """fsspec's own access to a disk; an object store of ours; Amazon's protocol, where s3fs and moto are installed."""
    config = plain_world(tmp_path / "world", 5)
    with place_for_all(kind, tmp_path, monkeypatch) as url:
        with nodes(2) as started:
            there = sweep(config, url, engine=RayCluster(started.address))
        assert str(there.store) == url
        nothing_twice(there)
        local = sweep(config, tmp_path / "local", workers=1)
        same(local, there)
        first = there.store.place.names("parts")[0]
        there.store.place.remove(first)
        same(local, sweep(config, url, workers=2))  # the local engine's workers find it too


@contextmanager
def place_for_all(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A URL that every process can open which is started from now on."""
    if kind == "local":
        yield f"local://{folder}/run"
    elif kind == "objects":
        about = folder / "site" / "objects-1.dist-info"  # as an installed package tells fsspec what it can open
        about.mkdir(parents=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: objects\nVersion: 1\n")
        (about / "entry_points.txt").write_text("[fsspec.specs]\nobjects = objects:Objects\n")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(about.parent), *HELPERS]))
        with object_store() as bucket:
            yield f"{bucket}/run"
    else:
        pytest.importorskip("s3fs")
        server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        keys = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": f"http://{host}:{port}"}}
        (folder / "fsspec").mkdir()
        (folder / "fsspec" / "conf.json").write_text(json.dumps({"s3": keys}))
        monkeypatch.setenv("FSSPEC_CONFIG_DIR", str(folder / "fsspec"))
        import fsspec

        monkeypatch.setitem(fsspec.config.conf, "s3", keys)
        fsspec.filesystem("s3").mkdir("bucket")
        try:
            yield "s3://bucket/run"
        finally:
            server.stop()


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
def test_three_nodes_one_of_them_lost_in_mid_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, held = held_up(tmp_path / "world", 12, free=6)
    said: list[str] = []
    begin_together(monkeypatch, 3)
    with nodes(3) as started:
        place = Folder(tmp_path / "ray")
        thief = lose_a_node(monkeypatch, started, place, 6, held)
        results = sweep(config, place, engine=RayCluster(started.address, tries=1), say=said.append)
        thief.result()
    nothing_twice(results)
    same(sweep(config, tmp_path / "local", workers=1), results)
    assert any("a node was lost; part" in text for text in said), said


@pytest.mark.slow
def test_a_node_that_comes_later_gets_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_ray, "LOOK", 0.5)
    config = plain_world(tmp_path / "world", 6)
    with nodes(1) as started:
        begin_together(monkeypatch, 2)

        def say(text: str) -> None:
            if text.startswith("about"):
                assert "on 1 worker of the cluster" in text
                patiently(lambda: started.add_node(num_cpus=1, **SMALL))

        assert sweep(config, tmp_path / "ray", engine=RayCluster(started.address), say=say).complete


@pytest.mark.slow
def test_the_driver_killed_and_started_again(tmp_path: Path) -> None:
    config, held = held_up(tmp_path / "world", 12, free=5)
    (tmp_path / "run.toml").write_text(config.to_toml())
    with nodes(2) as started:
        command = [sys.executable, "-m", "plrp.cli", "sweep", "run.toml", "--out", "run", "--engine", "ray"]
        command += ["--address", started.address]
        first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        place = Folder(tmp_path / "run")
        until(lambda: len(place.names("parts")) == 5 or first.poll() is not None, "five parts")
        assert first.poll() is None, first.communicate()
        assert workers()
        first.kill()
        first.communicate()
        until(lambda: not workers(), "the end of the workers, by Ray")
        done = place.names("parts")
        assert len(done) == 5
        held.unlink()
        again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
        assert "7 of 12 parts to do" in again.stderr
    results = Results.load(tmp_path / "run")
    nothing_twice(results)
    assert set(done) < set(place.names("parts"))
    same(sweep(config, tmp_path / "local", workers=1), results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deadly", "reason"),
    [
        ("raise ValueError('a bad sample')", r"part 2: a bad sample \(given up after 3 tries\)"),
        ("os.kill(os.getpid(), 9)", r"part 2: its process died, perhaps out of memory \(given up after 3 tries\)"),
    ],
)
def test_the_command_names_a_poisoned_part_and_ends_with_3(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], deadly: str, reason: str
) -> None:
    """Ray on this machine, started by the command and gone with it."""
    config = poisonous(tmp_path / "world", 5, deadly)
    poison(tmp_path / "world", 2)
    (tmp_path / "run.toml").write_text(config.to_toml())
    words = ["sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--engine", "ray", "--workers", "2"]
    assert cli.main([*words, "--address", "local"]) == 3
    assert re.search(reason, capfd.readouterr().err)
    assert not ray.is_initialized()
    assert Results.load(tmp_path / "run").missing == [2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "ended"), [("sweep", "interrupted"), ("sweep", "killed"), ("genomics explain", "interrupted")]
)
def test_a_command_that_is_ended_takes_its_ray_and_its_workers_with_it(tmp_path: Path, what: str, ended: str) -> None:
    """Ctrl-C goes to all processes of the terminal's group at once, kill -9 to one; `none_left` looks for the rest."""
    if what == "sweep":
        (tmp_path / "run.toml").write_text(held_up(tmp_path / "world", 8, free=3)[0].to_toml())
        words, free = "sweep run.toml --out run", 3
    else:
        words, free = sequences_world(tmp_path), 10
        (tmp_path / "held").touch()
    command = [sys.executable, "-m", "plrp.cli", *words.split(), "--engine", "ray", "--workers", "2"]
    command += ["--address", "local"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # under nohup it would be ignored
    )
    place = Folder(tmp_path / "run")
    until(lambda: len(place.names("parts")) == free or process.poll() is not None, f"{free} parts")
    assert process.poll() is None, process.communicate()
    assert workers()
    if ended == "killed":
        process.kill()
        process.communicate()
    else:
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate()
        assert process.returncode == 130, said
        assert "parts were stored; start again to resume" in said
        assert "Traceback" not in said
    until(lambda: not workers(), "the end of the workers")
    assert len(place.names("parts")) == free


# Sequences


SEQUENCE_NETWORK = """
import os, sys, time, torch

open("MADE", "a").write(str(os.getpid()) + " " + os.path.abspath(__file__) + os.linesep)

class Network(torch.nn.Sequential):
    def forward(self, x):
        while x.shape[-1] == 40 and os.path.exists("HELD") and "default_worker" in sys.argv[0]:
            time.sleep(0.02)
        if os.path.exists("POISON") and x.shape[-1] == 31:
            os._exit(1)
        return super().forward(x)

def build():
    torch.manual_seed(0)
    return Network(
        torch.nn.Conv1d(4, 5, 7), torch.nn.ReLU(), torch.nn.AdaptiveMaxPool1d(1), torch.nn.Flatten(),
        torch.nn.Linear(5, 2),
    )
"""


def sequences_world(folder: Path) -> str:
    """Writes 40 sequences of 30, 31 and 40 bases, and a network; returns the words that explain them into `run`.

    Ray's workers are held up from part 10 on (the sequences of 40 bases) while the file `held` is there.
    """
    from plrp.genomics import write_fasta

    rng = np.random.default_rng(0)
    lengths = [40] * 20 + [30] * 18 + [31] * 2
    write_fasta(
        folder / "seqs.fa", [f"s{k}" for k in range(40)], ["".join(rng.choice(list("ACGTN"), n)) for n in lengths]
    )
    text = SEQUENCE_NETWORK
    for name in ("MADE", "POISON", "HELD"):
        text = text.replace(name, str(folder / name.lower()))
    (folder / "net.py").write_text(text)
    return "genomics explain seqs.fa --model net.py:build -p 0.25 --no-match --part-size 2 --out run"


def explained(folder: Path) -> dict[str, bytes]:
    """What a run of sequences leaves: parts and gathered files."""
    place = Folder(folder)
    return {name: place.read(name) for name in [*place.names(), *place.names("parts")]}


@pytest.mark.slow
def test_sequences_on_two_nodes_with_a_poisoned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = sequences_world(tmp_path).split()
    assert cli.main([*words[:-1], "local"]) == 0
    (tmp_path / "made").unlink()
    with nodes(2) as started:
        begin_together(monkeypatch, 2)
        words += ["--engine", "ray", "--address", started.address, "--tries", "2"]
        monkeypatch.setattr(jobs, "_try_lengths", lambda *_: (tmp_path / "poison").touch())  # after the driver's trial
        assert cli.main(words) == 3
        assert "19 of 20 parts done" in (said := capfd.readouterr().err)
        assert "part 9: its process died, perhaps out of memory (given up after 2 tries)" in said
        assert not (tmp_path / "run" / "relevance.parquet").exists()
        pids = [line.split()[0] for line in (tmp_path / "made").read_text().splitlines()]
        assert len(pids) == len(set(pids))  # nobody made the network twice
        assert 1 + 2 <= len(pids) <= 1 + 2 + 2  # driver, workers, and those in place of the dead
        (tmp_path / "poison").unlink()
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        assert cli.main(words) == 0
        assert "40 sequences explained (20 of 20 parts done)" in capfd.readouterr().out
    assert explained(tmp_path / "run") == explained(tmp_path / "local")


@pytest.mark.slow
def test_sequences_sent_as_a_runtime_environment_into_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers see neither the driver's folder nor its results but through what Ray and the store bring."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    words = sequences_world(home).split()
    assert cli.main([*words[:-1], str(tmp_path / "local")]) == 0
    (home / "made").unlink()
    (tmp_path / "env.json").write_text(json.dumps({"working_dir": str(home)}))
    with place_for_all("objects", tmp_path, monkeypatch) as url, nodes(2) as started:
        begin_together(monkeypatch, 2)
        words[-1] = url
        assert cli.main([*words, "--engine", "ray", "--address", started.address,
                         "--runtime-env", str(tmp_path / "env.json")]) == 0  # fmt: skip
        bucket = Bucket(url)
        there = {name: bucket.read(name) for name in [*bucket.names(), *bucket.names("parts")]}
    assert there == explained(tmp_path / "local")
    where = [line.split()[1] for line in (home / "made").read_text().splitlines()]
    assert where[0] == str(home / "net.py")  # the driver's own trial
    assert ["working_dir_files" in path for path in where[1:]] == [True, True]


@pytest.mark.slow
def test_sequences_with_a_node_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = sequences_world(tmp_path).split()
    (tmp_path / "held").touch()
    begin_together(monkeypatch, 2)
    with nodes(2) as started:
        thief = lose_a_node(monkeypatch, started, Folder(tmp_path / "run"), 10, tmp_path / "held")
        assert cli.main([*words, "--engine", "ray", "--address", started.address, "--tries", "1"]) == 0
        thief.result()
    assert "a node was lost; part" in capfd.readouterr().err
    assert cli.main([*words[:-1], "local"]) == 0
    assert explained(tmp_path / "run") == explained(tmp_path / "local")


# What is sent


def test_paths_inside_the_folder_that_ray_sends_are_written_from_there(tmp_path: Path) -> None:
    config = world(tmp_path / "world")
    sent = portable(config, str(tmp_path))
    assert sent.data.root == "world/data.npz"
    assert sent.model.name == "world/net.py:build"
    assert sent.at(tmp_path) == config
    assert portable(config, None) == config
    assert portable(config, str(tmp_path / "elsewhere")) == config


def test_the_driver_sends_a_config_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the samples weigh."""
    sent: list[tuple[Work, list[int]]] = []

    def send(cluster: RayCluster, work: Work, indices: list[int], listener: Any) -> list[Failure]:
        sent.append((work, indices))
        return []

    monkeypatch.setattr("plrp.runs.run.spread", send)
    for samples in (4, 400):
        config = plain_world(tmp_path / "world", samples)
        sweep(config, tmp_path / f"run{samples}", engine=RayCluster())
        work, indices = sent[-1]
        assert indices == list(range(samples))
        assert set(work.options) == {"config", "store", "device"}
        assert len(json.dumps(work.options)) < 3000
        settled = Config.from_dict(work.options["config"])
        assert (settled.data.root, settled.model.name) == (config.data.root, config.model.name)


def test_a_node_with_other_data_or_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = plain_world(tmp_path / "world", 3)
    sent: list[Work] = []
    monkeypatch.setattr("plrp.runs.run.spread", lambda cluster, work, *_: sent.append(work) or [])
    sweep(config, tmp_path / "run", engine=RayCluster())
    begin = sent[0].begin
    begin("cpu").do(0, lambda *_: None)
    with (tmp_path / "world" / "net.py").open("a") as stream:
        stream.write("# changed\n")
    with pytest.raises(RunError, match="has other code of the model than where the sweep was started"):
        begin("cpu")
    plain_world(tmp_path / "world", 3)
    poison(tmp_path / "world", 1)
    with pytest.raises(RunError, match="has other samples than where the sweep was started"):
        begin("cpu")


def test_a_node_with_other_sequences_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sequences_world(tmp_path)
    sent: list[Work] = []
    monkeypatch.setattr("plrp.runs.run.spread", lambda cluster, work, *_: sent.append(work) or [])
    outcome = jobs.explain_file("seqs.fa", "net.py:build", "run", match=False, engine=RayCluster())
    assert not outcome.complete
    sent[0].begin("cpu").do(0)
    (tmp_path / "seqs.fa").write_text((tmp_path / "seqs.fa").read_text().replace("A", "C"))
    with pytest.raises(RunError, match="has other sequences, weights or code than where the command was started"):
        sent[0].begin("cpu")
    with pytest.raises(ValueError, match="the model is named"):
        jobs.explain_file("seqs.fa", torch.nn.Linear(1, 1), "run", engine=RayCluster())


# What cannot be


def test_without_ray_a_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "run.toml").write_text(plain_world(tmp_path / "world", 2).to_toml())
    words = ["sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--engine", "ray"]
    assert cli.main(words) == 2
    assert (
        capsys.readouterr().err
        == "plrp: Many machines need Ray: pip install 'plrp[ray]' (in a clone: pip install '.[ray]')\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--tries", "2"], 2, "--tries goes with --engine ray"),
        (["--engine", "ray", "--tries", "0"], 2, "tries=0: at least 1"),
        (["--engine", "ray", "--gpus-per-worker", "-1"], 2, "gpus=-1.0: 0 or more"),
        (["--engine", "ray", "--address", "ray://head:10001"], 2, "Ray's client is not supported"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], 1, "no Ray cluster at 127.0.0.1:1"),
        (["--engine", "ray", "--runtime-env", "none.json"], 2, "none.json"),
        (["--engine", "ray", "--runtime-env", "list.json"], 2, "list.json is not a runtime environment in JSON"),
    ],
)
def test_what_a_cluster_cannot_do_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "run.toml").write_text(plain_world(tmp_path / "world", 2).to_toml())
    assert cli.main(["sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), *words]) == code
    assert message in capsys.readouterr().err


def test_memory_of_this_process_is_no_place_for_others(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="this process's memory"):
        sweep(plain_world(tmp_path / "world", 2), f"memory://{tmp_path.name}", engine=RayCluster())
    sequences_world(tmp_path)
    with pytest.raises(RunError, match="this process's memory"):
        jobs.explain_file(
            tmp_path / "seqs.fa", f"{tmp_path}/net.py:build", f"memory://{tmp_path.name}", engine=RayCluster()
        )
