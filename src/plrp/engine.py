"""Which walk is taken: the fast one of `plrp.fast`, or the plain one of `walk.py`.

This is the one place that imports `plrp.fast`; with that folder gone everything works, only slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from .composites import Composite
from .pruning import Pruning
from .tape.trace import Trace
from .walk import Walk

_PLAIN = ContextVar("plrp_plain_walk", default=False)


@contextmanager
def plain_walk() -> Iterator[None]:
    """Within this context every explanation takes the plain walk: each formula as it stands, no fast code."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def choice() -> Callable[[], AbstractContextManager[None]]:
    """The choice of the walk as it is now, to be made once more later: the ledger is of the walk of its explanation."""
    plain = _PLAIN.get()

    @contextmanager
    def chosen() -> Iterator[None]:
        token = _PLAIN.set(plain)
        try:
            yield
        finally:
            _PLAIN.reset(token)

    return chosen


def choose_walk(
    trace: Trace,
    target: Any,
    composite: Composite,
    pruning: Pruning | None,
    wanted: set[str],
    ledger: bool,
    overlay: type[Walk] = Walk,
    **more: Any,
) -> Any:
    """The walk of one explanation; `overlay`: a walk whose steps are laid over it, which takes what is `more`."""
    fast = _fast("fast_walk", trace)
    kind = overlay if fast is None else _laid_over(overlay, fast.FastWalk)
    return kind(trace, target, composite, pruning, wanted, ledger, **more)


def _laid_over(overlay: type[Walk], walk: type[Walk]) -> type[Walk]:
    """A walk with the steps of an overlay on top: each calls `super()` for the step below."""
    return walk if overlay is Walk else type(f"{overlay.__name__}Over{walk.__name__}", (overlay, walk), {})


def walked_together(trace: Trace, prunings: Sequence[Pruning | None]) -> Iterator[list[Pruning | None]]:
    """Neighbours among the prunings of a sweep that one walk may take at once; where it may not, one at a time."""
    fast = _fast("stacked_walk", trace)
    if fast is None:
        return iter([[pruning] for pruning in prunings])
    return fast.walked_together(trace, prunings)


def stacked_walk(
    trace: Trace, target: Any, composite: Composite, prunings: Sequence[Pruning | None], wanted: set[str]
) -> Any:
    """The walk of several prunings at once, for a group of `walked_together`."""
    return import_module("plrp.fast.stacked_walk").StackedWalk(trace, target, composite, prunings, wanted)


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


def _fast(module: str, trace: Trace | None = None) -> Any:
    """A module of `plrp.fast`; None within `plain_walk()`, where the folder is not there, and for other devices.

    On these the plain walk is the right one: dense, batched, and asking the device nothing on its way.
    """
    if _PLAIN.get() or (trace is not None and not all(value.data.is_cpu for value in trace.inputs)):
        return None
    try:
        return import_module(f"plrp.fast.{module}")
    except ModuleNotFoundError as error:
        if error.name != "plrp.fast":
            raise
        return None
