"""Ray clusters of several nodes on this machine, for tests; nothing of them may be left."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
MARK = "PLRP_TEST"

QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 6,
}  # fmt: skip
SMALL = {"object_store_memory": 80 * 2**20}


@contextmanager
def nodes(count: int, **each: Any) -> Iterator[Any]:
    """A cluster of so many nodes, with one core each unless told; the first is its head."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, **SMALL, **each}
    head = {**node, "include_dashboard": False, "_system_config": QUICK_TO_NOTICE}
    started = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    try:
        for _ in range(count - 1):
            patiently(lambda: started.add_node(**node))
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


def patiently(start: Callable[[], Any]) -> Any:
    """Start a node; on a machine that is so busy that Ray gives up after half a minute, try again."""
    for _ in range(3):
        before = marked(os.environ[MARK])
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            for pid in marked(os.environ[MARK]).keys() - before.keys():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    return start()


@pytest.fixture
def none_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every process that a test starts, and those that they start, is gone when it ends, or the test fails."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")  # else Ray waits a minute for a killed head
    yield
    try:
        until(lambda: not marked(mark), "the end of every process")
    finally:
        left = marked(mark)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not left


def until(condition: Callable[[], object], awaited: str, seconds: float = 300) -> None:
    """Wait for an event; the bound is for tests that would wait for ever."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{seconds:g} s have not brought {awaited}: {marked(os.environ[MARK])}"
        time.sleep(0.05)


def workers() -> list[int]:
    """Ray's workers that make parts, of all commands and clusters of this test."""
    return [pid for pid, command in marked(os.environ[MARK]).items() if command.startswith("ray::RayWorker")]


def marked(mark: str) -> dict[int, str]:
    """Processes that inherited a mark, and their commands."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(folder.name)] = command[:120]
        except OSError:  # gone, or somebody else's
            continue
    return found


class Witness:
    """Work that writes down who did it, and with what; nobody is done before all `workers` have begun."""

    def __init__(self, out: str, workers: int, device: str) -> None:
        self.out, self.workers, self.device = Path(out), workers, device

    def do(self, index: int, tick: Any) -> None:
        import json

        import ray
        import torch

        seen = {
            "pid": os.getpid(),
            "threads": torch.get_num_threads(),
            "device": self.device,
            "gpus": ray.get_gpu_ids(),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
        (self.out / f"{index}.json").write_text(json.dumps(seen))
        (self.out / f"{os.getpid()}.pid").touch()
        until(lambda: len(list(self.out.glob("*.pid"))) >= self.workers, "the other workers")
