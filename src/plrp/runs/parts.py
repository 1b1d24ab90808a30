"""Work in numbered parts, as data: what workers are sent, and what they report of a part that failed."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .places import DiskFull

NAMED = 20
"""Causes of failures that an error names."""

WORKER_DIED, NODE_LOST = "WorkerDied", "NodeLost"
"""Kinds of failures that are not exceptions raised by the part's maker."""

Tick = Callable[[str, int], None]
"""Called with work that is done: its kind, and how much of it."""


@dataclass(frozen=True)
class Work:
    """What workers do: `maker` names a class ("module:Class"), which every worker calls with `options`, plain data.

    An option `device` that is None becomes `"cuda"` on workers that have a GPU, else `"cpu"`. The class's
    `do(index, tick)` makes and stores a part. A `rehearse(index)`, if it has one, returns what a first piece cost:
    plain data, of which `memory` (bytes) is used to place the workers.
    """

    maker: str
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        json.dumps(self.options)  # refuses what is not plain data

    def begin(self, device: str) -> Any:
        """The maker with what it needs (a model, say) loaded; runs on a worker."""
        module, _, name = self.maker.partition(":")
        options = {k: device if k == "device" and v is None else v for k, v in self.options.items()}
        return getattr(importlib.import_module(module), name)(**options)


@dataclass(frozen=True)
class Failure:
    """A part that could not be made, and why."""

    index: int
    kind: str
    message: str
    errno: int | None = None

    @classmethod
    def of(cls, index: int, error: BaseException) -> Failure:
        """Of a part whose maker raised an error."""
        message = str(error.strerror if isinstance(error, DiskFull) else error)
        return cls(index, type(error).__name__, message, error.errno if isinstance(error, OSError) else None)

    @property
    def cause(self) -> str:
        """Why, whichever part it was."""
        return self.message or self.kind

    def __str__(self) -> str:
        return f"part {self.index}: {self.cause}"


def by_cause(failures: Sequence[Failure]) -> str:
    """Failed parts in a sentence: those that failed for one reason together, with three of them named."""
    grouped: dict[str, list[int]] = {}
    for failure in failures:
        grouped.setdefault(failure.cause, []).append(failure.index)
    causes = []
    for cause, parts in list(grouped.items())[:NAMED]:
        some = f"{', '.join(map(str, parts[:3]))}{', …' if len(parts) > 3 else ''}"
        causes.append(f"part {some}: {cause}" if len(parts) == 1 else f"{len(parts)} parts ({some}): {cause}")
    return "; ".join(causes) + (" …" if len(grouped) > NAMED else "")
