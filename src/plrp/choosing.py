"""The p of a pruning, chosen by the network itself: the largest whose circuit keeps the prediction."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .ablation import Ablation, Answer, fills_from, pruned_sites
from .circuits import relevance_at
from .composites import Composite
from .explanation import explain_trace
from .progress import progress
from .pruning import Pruning
from .request import Request
from .tape.trace import Trace
from .targets import start

GRID = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
KINDS = ("probability", "logit", "decision")


class NoProbability(ValueError):
    """The output has no probability, or no decision, that could be kept."""


def choose_p(
    trace: Trace,
    keep: float = 0.9,
    of: str = "probability",
    *,
    pruning: Pruning | None = None,
    target: Any = None,
    composite: str | Composite = "auto",
    positive: bool = False,
    grid: Sequence[float] = GRID,
    ablate: str = "zero",
    data: Any = None,
    classes: int | None = None,
) -> Tensor:
    """The largest p of a grid, per sample, whose circuit keeps the prediction. A definition that needs no labels.

    kept = (f(circuit) − f(all ablated)) / (f(model) − f(all ablated)) must lie within 1 − `keep` of 1, where f is the
    `"probability"` or the `"logit"`; `"decision"` asks for the same winner only. This share is not monotone in p,
    so every p of the grid is tried. Where none fits, p is 0, with a warning. Returns (batch,), float64.

    `pruning` has the other settings (None: the defaults); `positive`, `ablate`, `data` and `classes` are those of
    `Explanation.circuit`.

    >>> import torch, plrp
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> plrp.choose_p(plrp.trace(model, torch.randn(2, 4)), of="decision").shape
    torch.Size([2])
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep is the share of the prediction to keep, 0 < keep ≤ 1, got {keep!r}.")
    if of not in KINDS:
        raise ValueError(f"of is 'probability', 'logit' or 'decision', got {of!r}.")
    if len(getattr(trace, "references", ())) > 1:
        raise ValueError("choose_p takes one reference, whose activations it ablates to: trace with one.")
    request = Request(target=target, composite=composite, pruning=pruning, layers=True).bound(trace)
    trace.check_unchanged()
    tried = [replace(request.pruning or Pruning(), p=p) for p in sorted(set(grid))]
    if not tried:
        raise ValueError("grid holds no p.")
    begin = start(trace.now, request.target, torch.float64)
    chosen = torch.zeros(trace.batch, dtype=torch.float64)
    ablation: Ablation | None = None
    with progress("trying p", len(tried), None if len(tried) * trace.batch > 20 else False, transient=True) as step:
        for one in tried:
            explanation = explain_trace(trace, replace(request, pruning=one))
            if ablation is None:
                fills = fills_from(trace, pruned_sites(trace, one, explanation.layers), ablate, data, 1, 0, 16)
                sites = pruned_sites(trace.now, one, explanation.layers)
                ablation = Ablation(trace.now, begin, sites, classes=classes, fills=fills)
                whole, nothing = ablation.whole(), ablation.nothing()
                if of != "logit" and bool(_measure(whole, of).isnan().any()):
                    raise NoProbability(
                        f"This output has no {of}: choose of='logit', or say by classes= which axis the classes are."
                    )
            relevance = [relevance_at(explanation, site) for site in ablation.sites]
            answer = ablation.outcome([r > 0 if positive else r != 0 for r in relevance])
            fits = _fits(answer, whole, nothing, keep, of).cpu()
            chosen = torch.where(fits, torch.full_like(chosen, float(one.p or 0)), chosen)
            step(1)
    without = (chosen == 0).nonzero()[:, 0].tolist()
    if without:
        amount = "the decision" if of == "decision" else f"{keep:g} of the {of}"
        shown = ", ".join(map(str, without[:8])) + (" …" if len(without) > 8 else "")
        warnings.warn(f"No p of the grid leaves a circuit that keeps {amount} in sample {shown}: p = 0.", stacklevel=2)
    return chosen


def p_of_sample(trace: Trace, pruning: Pruning, **asked: Any) -> float:
    """What p = "auto" means for the one sample of a trace; of outputs without a probability the logit is kept."""
    pruning = replace(pruning, p=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # p = 0 stands beside the result
        try:
            return float(choose_p(trace, pruning=pruning, **asked))
        except NoProbability:
            return float(choose_p(trace, of="logit", pruning=pruning, **asked))


def _fits(answer: Answer, whole: Answer, nothing: Answer, keep: float, of: str) -> Tensor:
    """Whether the circuit of each sample keeps its prediction, (batch,)."""
    if of == "decision":
        return answer.decision == 1
    f, full, none = (_measure(one, of) for one in (answer, whole, nothing))
    return ((f - none) / (full - none) - 1).abs() <= 1 - keep


def _measure(answer: Answer, of: str) -> Tensor:
    """The part of an answer that a circuit is to keep."""
    return {"logit": answer.score, "probability": answer.probability, "decision": answer.decision}[of]
