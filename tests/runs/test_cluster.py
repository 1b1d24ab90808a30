"""The rules by which parts are given to workers, with a cluster made of Python: it does what a real one does rarely.

Real clusters are in tests/runs/test_ray.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plrp import cli
from plrp.cli.arguments import cluster_of
from plrp.runs import crew, ray
from plrp.runs.ray import ClusterError, RayCluster, RayCrew, inside
from plrp.runs.work import Failure, Work


class Answer:
    """A reference whose value is known."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Gone(Exception):
    """Stands for every error of Ray's."""


class Unreached(Gone):
    """Stands for Ray's when it cannot reach a worker and does not know why."""


class Script:
    """A stand-in for Ray: `fate(index, node, attempt)` says what becomes of a part."""

    def __init__(self, fate: Any, spots: int = 2, **resources: float) -> None:
        self.fate, self.spots, self.resources = fate, spots, resources
        self.exceptions = type("exceptions", (), {"RayError": Gone, "ActorUnavailableError": Unreached})
        self.dead: set[str] = set()
        self.actors = 0
        self.attempts: list[tuple[int, str]] = []
        self.under_way = self.most = 0
        self.hello: Any = lambda node: node
        self.slow: dict[int, int] = {}  # words of a worker before a part is done
        self.sent: list[tuple[Any, ...]] = []  # to new workers

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
                self.hello = type("", (), {"remote": lambda _: Answer(script.hello(self.node))})()
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

        return type("", (), {"remote": lambda _, *arguments: (self.sent.append(arguments), Actor())[1]})()

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


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What becomes of a worker is known when it is lost."""
    monkeypatch.setattr(ray, "GRACE", 0.0)


def played(script: Script, parts: int, **settings: Any) -> tuple[Notes, list[Failure]]:
    notes = Notes()
    return notes, RayCrew(script, RayCluster(**settings), Work("m:C", {}), range(parts), notes).run()


def wrong(index: int, kind: str = "ValueError", errno: int | None = None) -> dict[str, Any]:
    return {"failed": {"index": index, "kind": kind, "message": "no", "errno": errno}}


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


@pytest.mark.parametrize(
    ("becomes", "lost"),
    [("dead with its node", True), ("dead", False), ("reached again", True), ("never reached", True)],
)
def test_a_worker_that_is_not_reached_is_judged_when_it_is_clear_what_became_of_it(
    monkeypatch: pytest.MonkeyPatch, becomes: str, lost: bool
) -> None:
    """One try only: what counts as one would give the part up."""
    monkeypatch.setattr(ray, "CUT_OFF", 0.5)
    asked: list[str] = []

    def hello(node: str) -> Any:
        if not script.attempts or node != "n0":
            return node
        asked.append(node)
        if becomes == "dead with its node" and len(asked) > 1:
            script.dead.add(node)
        if len(asked) > 1 and becomes != "never reached":
            return node if becomes == "reached again" else Gone("worker process has died")
        return Unreached("unavailable")

    script = Script(lambda s, i, node, tries: Unreached("unavailable") if i == 0 and tries == 1 else {"done": i})
    script.hello = hello
    notes, failures = played(script, 4, tries=1)
    assert [failure.index for failure in failures] == ([] if lost else [0])
    assert sorted(notes.stored) == ([0, 1, 2, 3] if lost else [1, 2, 3])
    assert any("a node was lost; part 0 will be made elsewhere" in text for text in notes.said) == lost
    assert len(asked) > 1


def test_where_everything_fails_the_rest_is_not_tried() -> None:
    script = Script(lambda s, index, node, tries: wrong(index))
    notes, failures = played(script, 1000, tries=3)
    assert notes.stored == []
    assert crew.IN_A_ROW <= len(failures) <= crew.IN_A_ROW + 1
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
    workers = RayCrew(script, RayCluster(gpus=0.25), Work("m:C", {}), range(99), Notes())
    assert workers.room() == 8
    workers.memory = 100
    script.resources["memory"] = 250.0
    assert workers.room() == 4


def test_runtime_environments_are_read_from_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "env.json").write_text(json.dumps({"working_dir": "here"}))
    words = ["sweep", "run.toml", "--engine", "ray", "--runtime-env", str(tmp_path / "env.json"), "--workers", "4"]
    chosen = cluster_of(cli.build_parser().parse_args(words))
    assert chosen == RayCluster(workers=4, runtime_env={"working_dir": "here"})


def test_only_plain_data_is_sent() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        Work("module:Class", {"model": np.zeros(3)})
    script = Script(lambda s, index, node, tries: {"done": index})
    RayCrew(script, RayCluster(threads=1), Work("module:Class", {"a": [1, "b"]}), range(5), Notes()).run()
    assert script.sent == [({"maker": "module:Class", "options": {"a": [1, "b"]}}, 1)] * 2
    assert all(isinstance(index, int) for index, _ in script.attempts)


def test_paths_in_the_folder_that_ray_takes_along() -> None:
    assert inside("/data/run/seqs.fa", "/data/run") == "seqs.fa"
    assert inside("/data/runner/seqs.fa", "/data/run") == "/data/runner/seqs.fa"
    assert inside("relative.fa", "/data/run") == "relative.fa"
    assert inside("/data/seqs.fa", None) == "/data/seqs.fa"
    assert inside("/data/seqs.fa", "s3://bucket/code.zip") == "/data/seqs.fa"


def test_without_a_node_the_crew_waits_and_says_so() -> None:
    """Both nodes are lost; another one comes."""

    def fate(script: Script, index: int, node: str, tries: int) -> Any:
        if len(script.dead) < 2 and index < 2:
            script.dead.add(node)
            return Gone("its node has died")
        return {"done": index}

    script = Script(fate)
    notes = Notes()
    said = notes.said.append

    def say(text: str) -> None:
        said(text)
        if "waiting" in text:
            script.spots = 3

    notes.say = say
    failures = RayCrew(script, RayCluster(), Work("m:C", {}), range(4), notes).run()
    assert sorted(notes.stored) == [0, 1, 2, 3]
    assert failures == []
    assert [text for text in notes.said if "waiting" in text] == [
        "no node has room for a worker (1 core): waiting for one"
    ]
