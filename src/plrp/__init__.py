"""Sparse explanations of PyTorch models by pruned layer-wise relevance propagation.

`trace` records a forward pass, `Composite` picks a `rules.Rule` per layer, `Pruning` says what is cut, and `explain`
returns an `Explanation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import lazily

if TYPE_CHECKING:
    from . import composites, references, rules
    from .checking import check
    from .choosing import choose_p
    from .composites import Composite, composite
    from .concepts.search import exemplars, neuron_relevance
    from .engine import plain_walk
    from .errors import BrokenArithmetic, TraceError, UnsupportedOperation
    from .experiments.tuning import tune
    from .explanation import Explanation, explain
    from .pruning import Pruning
    from .tape.own_rules import Slope, register_rule, registered_rules, rules_for, unregister_rule
    from .tape.trace import Trace
    from .tape.verification import trace
    from .vision.photograph_explanation import load

__version__ = "0.2.0"

__all__ = [
    "BrokenArithmetic", "Composite", "Explanation", "Pruning", "Slope", "Trace", "TraceError", "UnsupportedOperation",
    "check", "choose_p", "composite", "composites", "exemplars", "explain", "load", "neuron_relevance", "plain_walk",
    "references", "register_rule", "registered_rules", "rules", "rules_for", "trace", "tune", "unregister_rule",
]  # fmt: skip

# Modules (`plrp.metrics`, `plrp.vision`, …) too are loaded when they are first used.
__getattr__, __dir__ = lazily(__name__)
