"""`plrp.check`: a list of everything in a model that cannot be explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any, NamedTuple

from .composites import Composite, names, resolve
from .errors import TraceError, UnsupportedOperation
from .spelling import plural
from .tables import render_html, render_table
from .tape.live_tensors import ByName
from .tape.own_rules import refuse_unused, rules_for
from .tape.refusals import as_batch
from .tape.trace import Trace, record
from .tape.verification import record_verified


class Check(NamedTuple):
    """The result of `plrp.check`: the parts of a model that cannot be explained. True where there are none."""

    problems: list[tuple[str, str, str]]  # operation, nearest layer before it, reason
    layers: int
    operations: int
    composites: tuple[str, ...] = ()  # the named composites that have a rule for all of them

    def __bool__(self) -> bool:
        return not self.problems

    def __repr__(self) -> str:
        seen = f"{plural(self.operations, 'operation')}, {plural(self.layers, 'conv or linear layer')}"
        if not self.problems and len(self.composites) < len(names()):
            return f"Supported under {' and '.join(', '.join(self.composites).rsplit(', ', 1))}: {seen}."
        if not self.problems:
            return f"Supported: {seen}."
        table = render_table(("operation", "after layer", "why"), self.problems)
        advice = "`plrp.explain` names the remedy for the last of them; `plrp.rules_for` gives operations a rule."
        return f"Not supported: {plural(len(self.problems), 'problem')} (in {seen}):\n{table}\n{advice}"

    def _repr_html_(self) -> str:
        return render_html(("operation", "after layer", "why"), self.problems) if self.problems else escape(repr(self))


def check(
    model: Callable[..., Any],
    inputs: Any,
    *,
    samples: Any = 0,
    rules: Mapping[Any, Any] | None = None,
) -> Check:
    """List everything in a model that plrp cannot explain, and find out whether the tape sees all that it does.

    `samples` and `rules` are those of `plrp.explain`.

    >>> import torch, plrp
    >>> plrp.check(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), torch.randn(1, 4))
    Supported: 2 operations, 1 conv or linear layer.
    """
    problems: list[tuple[str, str, str]] = []
    layers, operations, samples = 0, 0, as_batch(samples)
    model, inputs = ByName.of(model, inputs)
    with rules_for(rules or {}):
        try:
            trace = record(model, inputs, samples=samples, refused=problems)
            refuse_unused(rules, trace._recorder.rules.seen)
            layers, operations = len(trace.layers), len(trace.ops)
            for op in reversed(trace.unsupported):
                before = trace.ops[: trace.ops.index(op)]
                after = next((o.name for o in reversed(before) if o.is_layer), "")
                problems.append((op.kind, after, op.reason or "unknown function"))
            if not problems:
                record_verified(model, inputs, samples=samples, always=True)
        except (TraceError, UnsupportedOperation) as error:
            if not problems:  # else it may be no more than their consequence
                problems.append(("the whole model", "", str(error)))
    if problems:
        return Check(problems, layers, operations)
    return Check(problems, layers, operations, tuple(name for name in names() if _serves(resolve(name), trace)))


def _serves(composite: Composite, trace: Trace) -> bool:
    """Whether a composite has a rule for every operation and layer that relevance reaches."""
    return not composite.refusals(trace.ops, trace.leaves) and not trace.unsupported_under(composite.products)
