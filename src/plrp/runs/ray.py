"""Workers on a Ray cluster: `pip install 'plrp[ray]'`.

The driver sends plain data: the name of the maker, its options, and indices of parts; never models, images or results.
Ray places the workers, which are its actors. Ray's own retries are switched off: they would restart an actor for ever
on a part that kills it, and cannot tell a lost node from a poisoned part. The crew can.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from plrp.errors import needed

from .crew import Crew, Hand, Watch
from .work import NODE_LOST, WORD, WORKER_DIED, Failure, Work, Worker

TRIES = 3  # attempts at a part by default, on one node or another, before it is given up
# Seconds: until the loss of a node is known after the loss of its worker (only a death of the worker counts as a try),
# until a worker that cannot be reached counts as lost with its node, and between two looks at nodes that come and go.
GRACE, CUT_OFF, LOOK = 3.0, 60.0, 5.0
OBJECT_STORE = 100 * 2**20  # bytes of shared memory of a Ray that we start: we send no objects through its store


class ClusterError(ValueError):
    """A cluster that cannot do the work; the message says why and what to do."""


@dataclass(frozen=True)
class RayCluster:
    """A cluster that makes parts.

    `address`: of a running cluster (`"auto"`: the cluster of this machine); None takes RAY_ADDRESS, else starts Ray on
    this machine for the time of the work, with `workers` cores. `workers`: at most; None is as many as fit, also on
    nodes that come later. `threads`: cores of each worker. `gpus`: of each worker, also fractions; None is 1 where the
    cluster has GPUs. `tries`: attempts at a part before it is given up. `runtime_env`: Ray's, where code or data are
    not on the nodes.
    """

    address: str | None = None
    workers: int | None = None
    threads: int = 1
    gpus: float | None = None
    tries: int = TRIES
    runtime_env: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("threads", self.threads), ("tries", self.tries)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: at least 1.")
        if self.gpus is not None and self.gpus < 0:
            raise ValueError(f"gpus={self.gpus}: 0 or more; 0.25 lets four workers share a GPU.")
        if (self.address or "").startswith("ray://"):
            raise ValueError(
                f"{self.address}: Ray's client is not supported. Start the command on a node of the cluster with "
                "--address auto, or with `ray job submit`."
            )


def ray_module() -> Any:
    """Ray, or a sentence on how to get it."""
    with needed("Many machines need Ray", "ray"):
        import ray
    return ray


def spread(cluster: RayCluster, work: Work, indices: Sequence[int], watch: Watch) -> list[Failure]:
    """Make parts on a cluster; returns the parts that were given up.

    If the maker can rehearse, one worker tries a first piece, and the others are placed by the memory that it took.
    """
    if not indices:
        return []
    with connected(cluster, len(indices)) as ray:
        return RayCrew(ray, cluster, work, indices, watch).run()


def inside(path: str, working_dir: str | None) -> str:
    """A path; inside the folder that Ray copies to the workers, relative to it: workers have that folder elsewhere."""
    if working_dir is None or "://" in working_dir or not Path(path).is_relative_to(Path(working_dir).resolve()):
        return path
    return str(Path(path).relative_to(Path(working_dir).resolve()))


def sent(path: str | Path, working_dir: str | None) -> str:
    """A path, or `file.py:factory`, for workers: in full, or relative to the folder that Ray copies to them."""
    file, colon, factory = str(path).rpartition(":") if ".py:" in str(path) else (str(path), "", "")
    return f"{inside(str(Path(file).resolve()), working_dir)}{colon}{factory}"


@contextmanager
def connected(cluster: RayCluster, most: int) -> Iterator[Any]:
    """Ray, connected to the cluster, or started here for a while. A connection of the caller is used and stays."""
    ray = ray_module()
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports
    address = cluster.address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if cluster.runtime_env:
        options["runtime_env"] = dict(cluster.runtime_env)
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
        if cluster.workers is not None:
            options["num_cpus"] = min(cluster.workers, most) * cluster.threads
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdigit():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, **options)
    except (OSError, RuntimeError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error).strip() or type(error).__name__).splitlines()[0]
        raise ClusterError(f"no Ray cluster at {address} ({reason}): `ray start --head` starts one.") from None
    try:
        yield ray
    finally:
        ray.shutdown()


class RayWorker(Worker):
    """A worker as an actor of Ray."""

    def hello(self) -> str:
        """Its node."""
        return str(ray_module().get_runtime_context().get_node_id())

    def device(self) -> str:
        """A GPU if Ray assigned one: a GPU that torch sees may belong to another worker."""
        return "cuda" if ray_module().get_gpu_ids() else "cpu"


class _Actor(Hand):
    """A worker as the driver sees it: without a node until its first answer."""

    error: Exception  # of Ray, when the worker was lost with a part
    since: float  # the time of the error
    call: Any = None  # to see whether a lost worker answers

    def __init__(self, ray: Any, actor: Any) -> None:
        self.ray, self.actor = ray, actor
        self.reply: Any = actor.hello.remote()  # its next answer; None while it has no part

    def send(self, index: int) -> None:
        """Call the actor; its answers come one by one."""
        self.reply = self.actor.make.options(num_returns="streaming").remote(index)

    def end(self) -> None:
        """Kill the actor, if it lives."""
        with suppress(Exception):
            self.ray.kill(self.actor)

    @property
    def unavailable(self) -> bool:
        """Whether Ray could not reach the worker, dead or alive."""
        return isinstance(self.error, getattr(self.ray.exceptions, "ActorUnavailableError", ()))

    def unclear(self) -> bool:
        """Whether the fate of the worker is not known yet: Ray cannot reach it, and has not declared it dead."""
        if not self.unavailable:
            return False
        if self.call is None:
            self.call = self.actor.hello.remote()
        if not self.ray.wait([self.call], num_returns=1, timeout=0)[0]:
            return True
        call, self.call = self.call, None
        try:
            self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            self.error = error
            if not self.unavailable:  # it is dead; perhaps its node is too
                self.since = time.monotonic()
            return True
        return False  # it can be reached, but its answer about the part is lost


class RayCrew(Crew[_Actor]):
    """Workers of a cluster whose nodes come and go."""

    def __init__(self, ray: Any, cluster: RayCluster, work: Work, indices: Sequence[int], watch: Watch) -> None:
        super().__init__(indices, watch, cluster.tries)
        self.ray, self.cluster, self.work = ray, cluster, work
        self.stillborn = 0  # workers lost before their first answer, in a row
        self.memory = 0
        some = ray.cluster_resources().get("GPU", 0) >= 1
        self.gpus = float(some) if cluster.gpus is None else cluster.gpus
        self.looked = 0.0
        self.waiting = False  # for nodes

    # -- workers

    def begin(self) -> None:
        """One worker tries a first piece of a part; if this kills it, another worker tries the next part."""
        if not self.room():
            raise ClusterError(
                f"no node of the cluster has room for a worker ({self._needs()}): start such a node, or ask for "
                "less with --threads and --gpus-per-worker."
            )
        cost: Mapping[str, Any] = {}
        for index in list(self.todo)[: self.tries]:
            hand = self.hire()
            try:
                if not self.ray.wait([hand.reply], num_returns=1, timeout=LOOK * 2)[0]:
                    self.watch.say("waiting for a first worker: the cluster is busy, or slow to start one")
                self.ray.get(hand.reply)
                cost = self.ray.get(hand.actor.rehearse.remote(index))
            except self.ray.exceptions.RayError as error:
                self.hands.remove(hand)
                hand.end()
                self.watch.say(f"the first piece of part {index} went wrong ({_reason(error)})")
            else:
                break
        if cost:
            self.memory = int(cost.get("memory", 0))
            if not self.room():  # then Ray counts memory in another way
                self.memory = 0
            self.watch.costs(cost, max(1, self.wanted()))

    def hire(self) -> _Actor:
        """One more worker, on any node that has room for it."""
        needs = {"num_cpus": self.cluster.threads, "num_gpus": self.gpus, "memory": self.memory}
        options = {"max_restarts": 0, "max_task_retries": 0, **{name: need for name, need in needs.items() if need}}
        worker = self.ray.remote(RayWorker).options(**options)
        hand = _Actor(self.ray, worker.remote(asdict(self.work), self.cluster.threads))
        self.hands.append(hand)
        return hand

    def room(self) -> int:
        """The number of workers that fit on the nodes."""
        needs = {"CPU": self.cluster.threads, "GPU": self.gpus, "memory": self.memory}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return sum(int(min(node.get(kind, 0) // need for kind, need in needs.items() if need)) for node in nodes)

    def wanted(self) -> int:
        """The number of workers to have now: as many as asked for or fit, but not more than parts."""
        asked = self.cluster.workers
        return min(self.room() if asked is None else asked, self.busy + len(self.todo))

    def staff(self) -> None:
        """Start workers where there is room: at the start, after a loss, when nodes have come."""
        if time.monotonic() - self.looked >= LOOK or not self.hands:
            self.looked = time.monotonic()
            if not self.hopeless:
                for _ in range(self.wanted() - len(self.hands)):
                    self.hire()
            if not self.hands and not self.waiting:
                self.watch.say(f"no node has room for a worker ({self._needs()}): waiting for one")
            self.waiting = not self.hands
        self.judge()

    def _needs(self) -> str:
        cores = f"{self.cluster.threads} core{'s' * (self.cluster.threads != 1)}"
        return f"{cores} and {self.gpus:g} GPU" if self.gpus else cores

    # -- parts

    def listen(self) -> None:
        """Wait for a word of any worker, and act on all that have come."""
        waiting = {hand.reply: hand for hand in self.hands if hand.reply is not None}
        if not waiting:
            time.sleep(0.1)
            return
        ready, rest = self.ray.wait(list(waiting), num_returns=1, timeout=WORD)
        if ready and rest:
            ready += self.ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        for reply in ready:
            hand = waiting[reply]
            try:
                if hand.node is None:
                    hand.node = self.ray.get(reply)
                    self.stillborn = 0
                else:
                    self.answer(hand, self.ray.get(next(reply)))
            except self.ray.exceptions.RayError as error:
                self.lose(hand, error)
            else:
                if hand.part is None:
                    hand.reply = None

    # -- losses

    def lose(self, hand: _Actor, error: Exception) -> None:
        """A worker has stopped answering. Another worker makes its part once the cause is known."""
        self.looked = 0.0
        self.hands.remove(hand)
        if hand.node is not None:
            self.losses.append(hand)
            hand.error, hand.since = error, time.monotonic()
            return
        hand.end()
        self.stillborn += 1
        if self.stillborn >= max(TRIES, len(self.hands)):
            raise ClusterError(
                f"workers do not start ({_reason(error)}): every node needs plrp[ray] of the same version, or a "
                "runtime environment that brings it."
            )

    def judge(self) -> None:
        """Find out whether lost workers died by themselves, or were lost with their node or the way to it."""
        if not self.losses:
            return
        living = {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}
        for hand in list(self.losses):
            waited, alive = time.monotonic() - hand.since, hand.node in living
            if alive and (waited < GRACE or (waited < CUT_OFF and hand.unclear())):
                continue
            died = alive and not hand.unavailable
            assert hand.part is not None
            self.losses.remove(hand)
            hand.end()
            failure = Failure(hand.part, WORKER_DIED if died else NODE_LOST, _reason(hand.error))
            self.retry(failure, hand.node if died else None)


def _reason(error: Exception) -> str:
    """The cause of the loss of a worker, in a few words."""
    text, kind = str(error), type(error).__name__
    if "OutOfMemory" in kind or "memory on the node" in text:
        return "its process was ended because the node ran out of memory"
    if "its node has died" in text or "NodeDied" in kind:
        return "its node was lost"
    died = "worker process has died" in text or "ActorDied" in kind or "WorkerCrashed" in kind
    if died and "creation task" not in text and "error raised in" not in text:
        return "its process died, perhaps out of memory"
    return (text.strip() or kind).splitlines()[-1]
