"""Sparse explanations of PyTorch models by pruned layer-wise relevance propagation.

`trace` records a forward pass, `Composite` picks a `rules.Rule` per layer, `Pruning` says what is cut, and `explain`
returns an `Explanation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import lazily

if TYPE_CHECKING:
    from . import composites, rules
    from .composites import Composite, composite
    from .engine import reference
    from .errors import TraceError, UnsupportedOperation
    from .explanation import Explanation, check, explain
    from .pruning import Pruning
    from .tape.operations import register_rule
    from .tape.trace import Trace
    from .tape.tracing import trace

__version__ = "0.1.0"

__all__ = [
    "Composite",
    "Explanation",
    "Pruning",
    "Trace",
    "TraceError",
    "UnsupportedOperation",
    "check",
    "composite",
    "composites",
    "explain",
    "reference",
    "register_rule",
    "rules",
    "trace",
]

# Modules (`plrp.metrics`, `plrp.vision`, …) too are loaded when they are first used.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "composites": ("Composite", "composite"),
        "engine": ("reference",),
        "errors": ("TraceError", "UnsupportedOperation"),
        "explanation": ("Explanation", "check", "explain"),
        "tape.operations": ("register_rule",),
        "pruning": ("Pruning",),
        "tape.trace": ("Trace",),
        "tape.tracing": ("trace",),
    },
)
