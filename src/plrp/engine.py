"""Which walk is taken: the fast one of `plrp.fast`, or the plain one of `walk.py`.

This is the one place that imports `plrp.fast`; with that folder gone everything works, only slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import Any

import torch

from .passage import Case
from .references import References
from .request import Request
from .tape.trace import Trace
from .walk import Walk

_PLAIN = ContextVar("plrp_plain_walk", default=False)


@contextmanager
def _walking(plainly: bool, autocasts: dict[str, torch.dtype]) -> Iterator[None]:
    token = _PLAIN.set(plainly)
    try:
        with ExitStack() as stack:
            for device in {*autocasts, *_autocasts()}:
                stack.enter_context(torch.autocast(device, autocasts.get(device), enabled=device in autocasts))
            yield
    finally:
        _PLAIN.reset(token)


def plain_walk() -> AbstractContextManager[None]:
    """Within this context every explanation takes the plain walk: each formula as it stands, no fast code."""
    return _walking(True, _autocasts())


def choice() -> Callable[[], AbstractContextManager[None]]:
    """Remember which walk is active, and `torch.autocast`, so that the ledger is computed as the explanation was."""
    return partial(_walking, _PLAIN.get(), _autocasts())


def _autocasts() -> dict[str, torch.dtype]:
    """The kinds of device on which `torch.autocast` is active, and its precision there."""
    devices = filter(torch.amp.is_autocast_available, ("cpu", "cuda", "mps", "xpu"))
    return {device: torch.get_autocast_dtype(device) for device in devices if torch.is_autocast_enabled(device)}


def choose_walk(trace: Trace, request: Request, **options: Any) -> Walk:
    """The walk of one explanation; `options` are those of `Walk`: `ledger`, `passage` and `record`."""
    if len(getattr(trace, "references", ())) > 1:
        raise ValueError("This takes one reference, and the trace has several: trace with one of them.")
    fast = _fast("fast_walk", trace, request)
    kind: type[Walk] = Walk if fast is None else fast.FastWalk
    return kind(trace, request, **options)


def grouped(trace: Trace, cases: Sequence[Case]) -> list[Sequence[Case]]:
    """The cases of a sweep in groups that one walk can take; the plain walk takes one at a time."""
    fast = _fast("stacked_walk", trace, cases[0].request if cases else None)
    return [[case] for case in cases] if fast is None else list(fast.grouped(trace, cases))


def reference_groups(now: Trace, references: References, request: Request, ledger: bool) -> list[References]:
    """The references in groups that are recorded and walked as one batch; the plain walk takes one at a time."""
    fast = None if ledger else _fast("stacked_walk", now, request)
    return references.grouped(1) if fast is None else list(fast.grouped_references(now, references, request))


def walk_of(trace: Trace, cases: Sequence[Case], ledger: bool = False) -> Walk:
    """The walk of one group of `grouped`; with a ledger, of one case."""
    if len(cases) == 1:
        return choose_walk(trace, cases[0].request, passage=cases[0].passage, ledger=ledger)
    stacked: Walk = import_module("plrp.fast.stacked_walk").StackedWalk(trace, cases)
    return stacked


def sweep_batch() -> int:
    """How many samples times prunings a sweep walks at once: batches of a sweep need not be larger."""
    fast = _fast("stacked_walk")
    return 1 if fast is None else int(fast.limits.STACKED_SAMPLES)


def status() -> str:
    """Which code explains here, in a sentence for `plrp --version` and benchmarks."""
    native = _fast("native")
    if native is None:
        return "plain walk: " + ("plrp.plain_walk()" if _PLAIN.get() else "plrp.fast is not installed")
    return str(native.status())


def _fast(module: str, trace: Trace | None = None, request: Request | None = None) -> Any:
    """A module of `plrp.fast`; None within `plain_walk()`, without the folder, and for tensors on another device.

    There the plain walk is the right one: it is dense and batched, and never waits for the device. Gradients are walked
    plainly too.
    """
    if _PLAIN.get() or (trace is not None and not all(value.data.is_cpu for value in trace.now.inputs)):
        return None
    if request is not None and getattr(request.composite, "products", None) == "taylor":
        return None
    try:
        return import_module(f"plrp.fast.{module}")
    except ModuleNotFoundError as error:
        if error.name != "plrp.fast":
            raise
        return None
