"""Work in numbered parts, spread over a Ray cluster: `pip install 'plrp[ray]'`.

What travels is data: the driver sends where the work is described, its options as plain data, and numbers of parts;
never models, images or results. Workers are Ray actors that make ready once (load a model) and keep it; each has one
part at a time, so what is under way is bounded by their number. They store what they make themselves and answer that
it is done. A part whose worker or node was lost runs again elsewhere; one that goes wrong again and again is given up.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import socket
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from plrp.errors import UsageError

TRIES = 3
"""How often a part is tried by default, on one node or another, before it is given up."""

IN_A_ROW = 10
"""Parts given up in a row after which the rest is not tried: then it is not the parts."""

NODES_PER_TRY = 3
"""A node that goes away is seldom its part's fault: so many lost nodes count as one try."""

NAMED = 20
"""Causes of failures that an error names."""

GRACE = 3.0
"""Seconds for a node to be known as lost after its worker: which of them died decides what counts as a try."""

CUT_OFF = 60.0
"""Seconds after which a worker that nobody reaches, dead or not, is taken for lost with its node."""

WORD = 1.0
"""Seconds between two words of a worker about how far it is."""

LOOK = 5.0
"""Seconds between two looks at the cluster: nodes come and go."""

OBJECT_STORE = 100 * 2**20
"""Bytes of shared memory for Ray's object store where we start Ray: nothing of ours goes through it."""

Tick = Callable[[str, int], None]
"""Told of finished work: its kind, and how much of it."""


class ClusterError(ValueError):
    """A cluster that cannot do the work; the message says why and what to do."""


@dataclass(frozen=True)
class Failure:
    """A part that could not be made, and why."""

    index: int
    kind: str
    message: str
    traceback: str = ""
    errno: int | None = None

    @property
    def cause(self) -> str:
        """Why, whichever part it was."""
        return self.message or self.kind

    def __str__(self) -> str:
        return f"part {self.index}: {self.cause}"


def by_cause(failures: Sequence[Failure]) -> str:
    """Failed parts in a sentence for people: those that failed for one reason together, with three of them named."""
    grouped: dict[str, list[int]] = {}
    for failure in failures:
        grouped.setdefault(failure.cause, []).append(failure.index)
    told = []
    for cause, parts in list(grouped.items())[:NAMED]:
        some = f"{', '.join(map(str, parts[:3]))}{', …' if len(parts) > 3 else ''}"
        told.append(f"part {some}: {cause}" if len(parts) == 1 else f"{len(parts)} parts ({some}): {cause}")
    return "; ".join(told) + (" …" if len(grouped) > NAMED else "")


class Failures:
    """Tells of parts as they fail: the cause when it is new, else that it is the same."""

    def __init__(self) -> None:
        self.causes: set[str] = set()

    def told(self, failure: Failure) -> str:
        """What to say of a part that could not be made."""
        new = failure.cause not in self.causes
        self.causes.add(failure.cause)
        return f"failed, and left out for now: {failure}" if new else f"part {failure.index} failed for the same reason"


@dataclass(frozen=True)
class RayCluster:
    """Where parts are made, and how.

    `address`: of a cluster that runs (`"auto"`: the one this machine belongs to); None takes RAY_ADDRESS, else starts
    Ray on this machine for the time of the work, with `workers` cores. `workers`: how many at most; None is as many as
    fit, also on nodes that come later. `threads`: cores of each. `gpus`: of each, also fractions; None is 1 where the
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


@dataclass(frozen=True)
class Work:
    """What workers do, as data: `maker` names a class ("module:Class"), which is called with `options` on every worker.

    An option `device` that is None becomes `"cuda"` on workers that have a GPU, else `"cpu"`. The class's
    `do(index, tick)` makes and stores a part. A `rehearse(index)`, if it has one, returns what a first piece cost:
    plain data, of which `memory` (bytes) is used to place the workers.
    """

    maker: str
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        json.dumps(self.options)  # plain data or nothing

    def begin(self, device: str) -> Any:
        """Make ready; runs on a worker."""
        module, _, name = self.maker.partition(":")
        filled = {k: device if k == "device" and v is None else v for k, v in self.options.items()}
        return getattr(importlib.import_module(module), name)(**filled)


class Listener(Protocol):
    """Who is told how the work goes."""

    def costs(self, cost: Mapping[str, Any], workers: int) -> None:
        """Told what a first piece cost, and how many workers there are room for."""

    def tick(self, kind: str, count: int) -> None:
        """Some work is done, of a kind."""

    def done(self, index: int) -> None:
        """A part is stored."""

    def failed(self, failure: Failure) -> None:
        """A part is given up."""

    @property
    def say(self) -> Callable[[str], None]:
        """Called with what else a user wants to know."""


def ray_module() -> Any:
    """Ray, or a sentence on how to get it."""
    try:
        import ray
    except ImportError:
        raise ImportError("Many machines need Ray: pip install 'plrp[ray]'") from None
    return ray


def inside(path: str, working_dir: str | None) -> str:
    """A path in the folder that Ray takes to the workers as written from there, for there it is another folder."""
    if working_dir is None or "://" in working_dir or not Path(path).is_absolute():
        return path
    root = Path(working_dir).resolve()
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


# -- the command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a command that can work on a cluster."""
    group = parser.add_argument_group("many machines", "docs/many-machines.md has examples")
    group.add_argument("--engine", choices=("local", "ray"), default="local", help="where to work (default: local)")
    group.add_argument(
        "--address", metavar="HOST:PORT", help="of a Ray cluster; auto: this machine's (default: start one)"
    )
    group.add_argument(
        "--gpus-per-worker", type=float, metavar="F", help="such as 0.25 (default: 1, if there are GPUs)"
    )
    group.add_argument("--threads", type=int, metavar="N", help="cores of each worker (default: 1)")
    group.add_argument("--tries", type=int, metavar="N", help=f"at a part before it is given up (default: {TRIES})")
    group.add_argument("--runtime-env", metavar="FILE", help="Ray's runtime environment, as JSON")


def chosen(arguments: argparse.Namespace) -> RayCluster | None:
    """The cluster that the options ask for; None for this machine."""
    named = {
        "address": arguments.address,
        "gpus": arguments.gpus_per_worker,
        "threads": arguments.threads,
        "tries": arguments.tries,
    }
    given = {name: value for name, value in named.items() if value is not None}
    if arguments.engine == "local":
        for option in ("address", "gpus_per_worker", "tries", "runtime_env"):
            if getattr(arguments, option) is not None:
                raise UsageError(f"--{option.replace('_', '-')} goes with --engine ray.")
        return None
    ray_module()
    environment: dict[str, Any] = {}
    if arguments.runtime_env is not None:
        try:
            with open(arguments.runtime_env, encoding="utf-8") as stream:
                environment = dict(json.load(stream))
        except ValueError as error:
            raise UsageError(f"{arguments.runtime_env} is no JSON of a runtime environment ({error}).") from None
    return RayCluster(workers=arguments.workers, runtime_env=environment, **given)


# -- on a node


class Worker:
    """Runs on a node, as a Ray actor: makes one part after the other."""

    def __init__(self, work: Mapping[str, Any], threads: int) -> None:
        self.work, self.threads = Work(**work), threads
        self.ready: Any = None
        # One thread does the work, for as long as the worker lives; this one passes on how far it is.
        self.hand = ThreadPoolExecutor(1)

    def hello(self) -> str:
        """Its node."""
        return str(ray_module().get_runtime_context().get_node_id())

    def rehearse(self, index: int) -> dict[str, Any]:
        """What a first piece of a part cost; empty where the work cannot say."""
        return self.hand.submit(lambda: getattr(self._ready(), "rehearse", lambda index: {})(index)).result()

    def make(self, index: int) -> Iterator[dict[str, Any]]:
        """Make a part; says how far it is now and then, and in the end that it is done, or why not."""
        ticks: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        outcome: Future[None] = self.hand.submit(lambda: self._ready().do(index, lambda *tick: ticks.put(tick)))
        finished = threading.Event()
        outcome.add_done_callback(lambda _: finished.set())
        while not finished.wait(WORD):
            if told := _counted(ticks):
                yield {"ticks": told}
        error = outcome.exception()
        if error is None:
            yield {"ticks": _counted(ticks), "done": index}
            return
        code = error.errno if isinstance(error, OSError) else None
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        lines = "".join(traceback.format_exception(error))
        yield {
            "failed": {"index": index, "kind": type(error).__name__, "message": text, "traceback": lines, "errno": code}
        }

    def _ready(self) -> Any:
        if self.ready is None:
            import torch

            torch.set_num_threads(self.threads)
            # Asked of Ray: what torch sees may belong to others.
            self.ready = self.work.begin("cuda" if ray_module().get_gpu_ids() else "cpu")
        return self.ready


def _counted(ticks: queue.SimpleQueue[tuple[str, int]]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    with suppress(queue.Empty):
        while True:
            kind, count = ticks.get_nowait()
            counted[kind] += count
    return dict(counted)


# -- on the driver


def spread(cluster: RayCluster, work: Work, indices: Sequence[int], listener: Listener) -> list[Failure]:
    """Make parts on a cluster; returns those that were given up. The listener hears of every one that is done.

    Where the work can rehearse, one worker tries a first piece, and the others are placed by the memory it took.
    """
    if not indices:
        return []
    with connected(cluster, len(indices)) as ray:
        return _Crew(ray, cluster, work, indices, listener).run()


@contextmanager
def connected(cluster: RayCluster, most: int) -> Iterator[Any]:
    """Ray, connected to the cluster, or started here for a while; a connection the caller has made is used and left."""
    ray = ray_module()
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    address = cluster.address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if cluster.runtime_env:
        options["runtime_env"] = dict(cluster.runtime_env)
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
        if cluster.workers is not None:
            options["num_cpus"] = min(cluster.workers, most) * cluster.threads
    _check_reachable(address)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ClusterError(f"no Ray cluster at {address} ({reason}): `ray start --head` starts one.") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            reason = error.strerror or str(error)
            raise ClusterError(f"no Ray cluster at {address} ({reason}): `ray start --head` starts one.") from None


class _Hand:
    """A worker as the driver sees it: pending until it said hello, then with a part or without."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.node: str | None = None
        self.at: int | None = None
        self.waits_for: Any = actor.hello.remote()


@dataclass
class _Loss:
    """A worker that was lost with a part, until it is clear why."""

    hand: _Hand
    error: Exception
    since: float
    call: Any = None  # to see whether it answers


class _Crew:
    """All workers, and the list of parts."""

    def __init__(self, ray: Any, cluster: RayCluster, work: Work, indices: Sequence[int], listener: Listener) -> None:
        self.ray, self.cluster, self.work, self.listener = ray, cluster, work, listener
        self.todo = deque(indices)
        self.hands: list[_Hand] = []
        self.losses: list[_Loss] = []
        self.failures: list[Failure] = []
        self.tries: Counter[int] = Counter()
        self.lost: Counter[int] = Counter()
        self.where: dict[int, set[str]] = {}  # nodes on which a part went wrong
        self.row = self.stillborn = 0
        self.memory = 0
        self.gpus = self._gpus()
        self.looked = 0.0
        self.waiting = False  # for nodes

    def run(self) -> list[Failure]:
        try:
            if not self.room():
                raise ClusterError(
                    f"no node of the cluster has room for a worker ({self._needs()}): start such a node, or ask for "
                    "less with --threads and --gpus-per-worker."
                )
            self.rehearse()
            while self.working():
                self.look()
                self.judge()
                self.employ()
                self.hear()
        finally:
            for hand in [*self.hands, *(loss.hand for loss in self.losses)]:
                with suppress(Exception):
                    self.ray.kill(hand.actor)
        return self.failures

    def working(self) -> bool:
        """Whether there is anything to wait for."""
        busy = any(hand.at is not None for hand in self.hands)
        return busy or bool(self.losses) or (bool(self.todo) and self.row < IN_A_ROW)

    # -- workers

    def hire(self) -> _Hand:
        """One more worker, on whatever node has room for it."""
        options: dict[str, Any] = {"num_cpus": self.cluster.threads, "max_restarts": 0, "max_task_retries": 0}
        if self.gpus:
            options["num_gpus"] = self.gpus
        if self.memory:
            options["memory"] = self.memory
        described = {"maker": self.work.maker, "options": dict(self.work.options)}
        hand = _Hand(self.ray.remote(Worker).options(**options).remote(described, self.cluster.threads))
        self.hands.append(hand)
        return hand

    def dismiss(self, hand: _Hand) -> None:
        """Forget a worker, dead or alive."""
        if hand in self.hands:
            self.hands.remove(hand)
        with suppress(Exception):
            self.ray.kill(hand.actor)

    def room(self) -> int:
        """Workers that fit on the nodes there are."""
        count = 0
        for node in self.ray.nodes():
            if node["Alive"]:
                has = node["Resources"]
                fits = [has.get("CPU", 0) // self.cluster.threads]
                fits += [has.get("GPU", 0) // self.gpus] if self.gpus else []
                fits += [has.get("memory", 0) // self.memory] if self.memory else []
                count += int(min(fits))
        return count

    def wanted(self) -> int:
        """Workers there should be now: as many as asked for or fit, and no more than parts."""
        busy = sum(hand.at is not None for hand in self.hands)
        asked = self.cluster.workers
        return min(self.room() if asked is None else asked, busy + len(self.losses) + len(self.todo))

    def look(self) -> None:
        """Hire where there is room: at the start, after a loss, when nodes have come."""
        if time.monotonic() - self.looked < LOOK and self.hands:
            return
        self.looked = time.monotonic()
        if self.row < IN_A_ROW:
            for _ in range(self.wanted() - len(self.hands)):
                self.hire()
        if not self.hands and not self.waiting:
            self.listener.say(f"no node has room for a worker ({self._needs()}): waiting for one")
        self.waiting = not self.hands

    def rehearse(self) -> None:
        """One worker tries a first piece of a part; if that kills it, another one tries the next part."""
        cost: Mapping[str, Any] = {}
        for index in list(self.todo)[: self.cluster.tries]:
            hand = self.hire()
            try:
                if not self.ray.wait([hand.waits_for], num_returns=1, timeout=LOOK * 2)[0]:
                    self.listener.say("waiting for a first worker: the cluster is busy, or slow to start one")
                self.ray.get(hand.waits_for)
                cost = self.ray.get(hand.actor.rehearse.remote(index))
            except self.ray.exceptions.RayError as error:
                self.dismiss(hand)
                self.listener.say(f"the first piece of part {index} went wrong ({_reason(error)})")
            else:
                break
        if cost:
            self.memory = int(cost.get("memory", 0))
            if not self.room():  # then Ray's idea of the memory is not ours
                self.memory = 0
            self.listener.costs(cost, max(1, self.wanted()))

    # -- parts

    def hear(self) -> None:
        """Wait for a word of any worker, and act on all that have come."""
        waiting = {hand.waits_for: hand for hand in self.hands if hand.waits_for is not None}
        if not waiting:
            time.sleep(0.1)
            return
        refs = list(waiting)
        ready, rest = self.ray.wait(refs, num_returns=1, timeout=WORD)
        if ready and rest:
            ready += self.ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        for ref in ready:
            hand = waiting[ref]
            try:
                if hand.node is None:
                    hand.node = self.ray.get(ref)
                    self.stillborn = 0
                    self.next(hand)
                else:
                    self.answer(hand, self.ray.get(next(ref)))
            except self.ray.exceptions.RayError as error:
                self.gone(hand, error)

    def employ(self) -> None:
        """Give parts that came back to workers that have nothing to do."""
        for hand in self.hands:
            if self.todo and hand.waits_for is None:
                self.next(hand)

    def next(self, hand: _Hand) -> None:
        """Give a worker a part: not one that went wrong on its node, if there are nodes that have not tried it."""
        hand.at = hand.waits_for = None
        if self.row >= IN_A_ROW:
            return
        most = min(len(self.todo), 1 + len(self.where))  # so many in front may be such parts
        place = next((k for k in range(most) if self._fits(hand, k)), None)
        if place is None:
            return
        index = self.todo[place]
        del self.todo[place]
        hand.at = index
        hand.waits_for = hand.actor.make.options(num_returns="streaming").remote(index)

    def _fits(self, hand: _Hand, place: int) -> bool:
        wrong = self.where.get(self.todo[place], set())
        return hand.node not in wrong or all(other.node in wrong for other in self.hands if other.node is not None)

    def answer(self, hand: _Hand, message: Mapping[str, Any]) -> None:
        """A word of a worker."""
        for kind, count in message.get("ticks", {}).items():
            self.listener.tick(kind, count)
        if "done" in message:
            self.row = 0
            self.where.pop(message["done"], None)
            self.listener.done(message["done"])
            self.next(hand)
        elif "failed" in message:
            failure = Failure(**message["failed"])
            if failure.kind == "DiskFull":
                from .places import DiskFull

                raise DiskFull(failure.errno, failure.message)
            self.again(failure, hand.node)
            self.next(hand)

    def gone(self, hand: _Hand, error: Exception) -> None:
        """A worker that does not answer any more: its part is tried again, by another, when it is clear why."""
        self.looked = 0.0
        if hand.node is not None and hand.at is not None:
            self.hands.remove(hand)
            self.losses.append(_Loss(hand, error, time.monotonic()))
            return
        self.dismiss(hand)
        if hand.node is None:
            self.stillborn += 1
            if self.stillborn >= max(TRIES, len(self.hands)):
                raise ClusterError(
                    f"workers do not start ({_reason(error)}): every node needs plrp[ray] of the same version, or a "
                    "runtime environment that brings it."
                )

    def judge(self) -> None:
        """Find out of lost workers whether they died by themselves, or were lost with their node or the way to it."""
        if not self.losses:
            return
        living = {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}
        for loss in list(self.losses):
            hand, waited = loss.hand, time.monotonic() - loss.since
            alive = hand.node in living
            if alive and waited < CUT_OFF and self._unclear(loss):
                continue
            if alive and waited < GRACE:
                continue
            died = alive and not self._unavailable(loss.error)
            assert hand.at is not None
            self.losses.remove(loss)
            self.dismiss(hand)
            self.again(
                Failure(hand.at, "WorkerDied" if died else "NodeLost", _reason(loss.error)), hand.node if died else None
            )

    def _unclear(self, loss: _Loss) -> bool:
        """Whether nobody knows yet what became of a worker: Ray cannot reach it, and has not found it dead."""
        if not self._unavailable(loss.error):
            return False
        if loss.call is None:
            loss.call = loss.hand.actor.hello.remote()
        if not self.ray.wait([loss.call], num_returns=1, timeout=0)[0]:
            return True
        call, loss.call = loss.call, None
        try:
            self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            if not self._unavailable(error):  # it is dead; perhaps its node is too
                loss.error, loss.since = error, time.monotonic()
            return True
        return False  # it answers again, but what it had to say of its part is lost

    def _unavailable(self, error: Exception) -> bool:
        return isinstance(error, getattr(self.ray.exceptions, "ActorUnavailableError", ()))

    def again(self, failure: Failure, node: str | None) -> None:
        """Put a part back in front of the others, or give it up."""
        index = failure.index
        if failure.kind == "NodeLost":
            self.lost[index] += 1
            self.listener.say(f"a node was lost; part {index} runs again elsewhere")
        else:
            self.tries[index] += 1
        if self.tries[index] + self.lost[index] // NODES_PER_TRY < self.cluster.tries:
            self.where.setdefault(index, set()).update([node] if node else [])
            self.todo.appendleft(index)
            return
        self.where.pop(index, None)
        times = self.tries[index] + self.lost[index]
        message = f"{failure.message or failure.kind} (given up after {times} {'try' if times == 1 else 'tries'})"
        given_up = Failure(index, failure.kind, message, failure.traceback, failure.errno)
        self.row += 1
        self.failures.append(given_up)
        self.listener.failed(given_up)

    # -- resources

    def _gpus(self) -> float:
        if self.cluster.gpus is not None:
            return self.cluster.gpus
        return 1.0 if self.ray.cluster_resources().get("GPU", 0) >= 1 else 0.0

    def _needs(self) -> str:
        cores = f"{self.cluster.threads} core{'s' * (self.cluster.threads != 1)}"
        return f"{cores} and {self.gpus:g} GPU" if self.gpus else cores


def _reason(error: Exception) -> str:
    """Why a worker is gone, in a few words."""
    text = str(error)
    kind = type(error).__name__
    if "OutOfMemory" in kind or "memory on the node" in text:
        return "its process was ended for want of memory"
    if "its node has died" in text or "NodeDied" in kind:
        return "its node was lost"
    if "worker process has died" in text or "ActorDied" in kind or "WorkerCrashed" in kind:
        if "creation task" in text or "error raised in" in text:
            return text.strip().splitlines()[-1]
        return "its process died, perhaps for want of memory"
    return (text.strip() or kind).splitlines()[-1]
