"""Work in numbered parts, as data: the message that workers are sent, and their report of a failed part."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .places import DiskFull

if TYPE_CHECKING:
    from .ray import RayCluster

NAMED = 20
"""How many causes of failures an error names."""

WORKER_DIED, NODE_LOST = "WorkerDied", "NodeLost"
"""Kinds of failures other than exceptions of the part's maker."""

Tick = Callable[[str, int], None]
"""Called when some work is done: with its kind and its amount."""


@dataclass(frozen=True)
class Work:
    """The work of all workers: `maker` names a class ("module:Class"), which every worker calls with `options`.

    The options are plain data. An option `device` that is None becomes `"cuda"` on workers that have a GPU, else
    `"cpu"`. The class's `do(index, tick)` makes and stores a part. Its `rehearse(index)`, if any, returns the cost of a
    first piece as plain data, of which `memory` (bytes) is used to place the workers.
    """

    maker: str
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        json.dumps(self.options)  # refuses anything but plain data

    def begin(self, device: str) -> Any:
        """The maker, with its model and data loaded; runs on a worker."""
        module, _, name = self.maker.partition(":")
        options = {k: device if k == "device" and v is None else v for k, v in self.options.items()}
        return getattr(importlib.import_module(module), name)(**options)


@dataclass(frozen=True)
class Execution:
    """How the parts of a run are made; nothing of it decides a result but its last bits.

    workers: processes (None: as many as pay); device and torch threads of each; engine: a cluster instead of this
    machine; show_progress: a bar (None: on a terminal); say: takes a sentence now and then.
    """

    workers: int | None = 1
    device: str | None = None
    threads: int = 1
    engine: RayCluster | None = None
    show_progress: bool | None = None
    say: Callable[[str], None] = lambda text: None


@dataclass(frozen=True)
class Failure:
    """A part that could not be made, and why."""

    index: int
    kind: str
    message: str
    errno: int | None = None

    @classmethod
    def of(cls, index: int, error: BaseException) -> Failure:
        """The failure of a part whose maker raised an error."""
        message = str(error.strerror if isinstance(error, DiskFull) else error)
        return cls(index, type(error).__name__, message, error.errno if isinstance(error, OSError) else None)

    @property
    def cause(self) -> str:
        """The reason, without the part."""
        return self.message or self.kind

    def __str__(self) -> str:
        return f"part {self.index}: {self.cause}"


def by_cause(failures: Sequence[Failure]) -> str:
    """Failed parts in a sentence, grouped by cause; three parts of each group are named."""
    grouped: dict[str, list[int]] = {}
    for failure in failures:
        grouped.setdefault(failure.cause, []).append(failure.index)
    causes = []
    for cause, parts in list(grouped.items())[:NAMED]:
        some = f"{', '.join(map(str, parts[:3]))}{', …' if len(parts) > 3 else ''}"
        causes.append(f"part {some}: {cause}" if len(parts) == 1 else f"{len(parts)} parts ({some}): {cause}")
    return "; ".join(causes) + (" …" if len(grouped) > NAMED else "")
