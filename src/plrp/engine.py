"""Which walk is taken: the fast one of `plrp.fast`, or the plain one of `walk.py`.

This is the one place that imports `plrp.fast`; with that folder gone everything works, only slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, NamedTuple

from torch import Tensor

from .composites import Composite
from .passage import Case
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
    """Remember which walk is active, so that the ledger is computed by the same walk as the explanation."""
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
    wanted: set[str] | None = None,
    ledger: bool = False,
    **options: Any,
) -> Walk:
    """The walk of one explanation; `options` are the `passage` and the `record` of `Walk`."""
    fast = _fast("fast_walk", trace)
    kind: type[Walk] = Walk if fast is None else fast.FastWalk
    return kind(trace, target, composite, pruning, wanted, ledger, **options)


class CaseResult(NamedTuple):
    """The results of one case of a sweep."""

    relevance: list[Tensor]  # of the inputs
    layers: dict[str, Tensor]  # by name, at the inputs of the layers that were wanted
    first_mass: Tensor | None  # ‖R‖₁ that the first layer on the way handed down, (batch,)


def grouped(trace: Trace, cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """The cases of a sweep in groups that one walk can take; the plain walk takes one at a time."""
    fast = _fast("stacked_walk", trace)
    return iter([[case] for case in cases]) if fast is None else fast.grouped(trace, cases)


def walk_group(
    trace: Trace, target: Any, composite: Composite, cases: Sequence[Case], wanted: set[str]
) -> tuple[Walk, list[CaseResult]]:
    """Walk one group of `grouped`; returns the walk and the result of each case."""
    if len(cases) == 1:
        walk = choose_walk(trace, target, composite, cases[0].pruning, wanted, passage=cases[0].passage)
        relevance = walk.run()
        return walk, [CaseResult(relevance, walk.layers, walk.first_mass)]
    stack = import_module("plrp.fast.stacked_walk").StackedWalk(trace, target, composite, cases, wanted)
    relevance = stack.run()
    return stack, [CaseResult(*stack.of_case(number, relevance)) for number in range(len(cases))]


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
    """A module of `plrp.fast`; None within `plain_walk()`, without the folder, and for tensors on another device.

    There the plain walk is the right one: it is dense and batched, and never waits for the device.
    """
    if _PLAIN.get() or (trace is not None and not all(value.data.is_cpu for value in trace.inputs)):
        return None
    try:
        return import_module(f"plrp.fast.{module}")
    except ModuleNotFoundError as error:
        if error.name != "plrp.fast":
            raise
        return None
