"""Sparse explanations of PyTorch models by pruned layer-wise relevance propagation.

`trace` records a forward pass, `Composite` picks a `rules.Rule` per layer, `Pruning` says what is cut, and `explain`
returns an `Explanation`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from . import composites, kernels, rules
from .composites import Composite, composite
from .errors import TraceError, UnsupportedOperation
from .explain import Explanation, check, explain
from .kernels import reference
from .operations import register_rule
from .pruning import Pruning
from .trace import Trace, trace

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
    "kernels",
    "reference",
    "register_rule",
    "rules",
    "trace",
]


def __getattr__(name: str) -> Any:
    """Load the optional parts (`plrp.metrics`, `plrp.vision`, `plrp.genomics`, …) when they are first used."""
    if name in ("metrics", "vision", "genomics", "models", "interop", "experiments"):
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module 'plrp' has no attribute '{name}'")
