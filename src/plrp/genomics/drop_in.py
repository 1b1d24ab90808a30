"""`attribute`: LRP and PLRP behind the interface of tangermeme's `deep_lift_shap`.

from tangermeme.deep_lift_shap import deep_lift_shap        becomes
from plrp.genomics import attribute as deep_lift_shap
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plrp.composites import AUTO, Composite
from plrp.explanation import explain
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.request import Request
from plrp.tape.trace import record

from .attribution import _device, composite_from_text, hypothetical_composite, strand_targets
from .sequence_settings import COMPOSITE


def attribute(
    model: nn.Module,
    X: Any,
    args: Sequence[Tensor] | None = None,
    target: Any = 0,
    batch_size: int = 32,
    references: Callable[..., Any] | Tensor | None = None,
    n_shuffles: int = 20,
    return_references: bool = False,
    hypothetical: bool = False,
    warning_threshold: float = 0.001,
    additional_nonlinear_ops: dict[Any, Any] | None = None,
    print_convergence_deltas: bool = False,
    raw_outputs: bool = False,
    only_warn: bool = False,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    random_state: int | None = None,
    verbose: bool = False,
    *,
    composite: str | Composite = COMPOSITE,
    pruning: Pruning | None = None,
) -> Tensor:
    """Relevance of one-hot sequences (batch, 4, length), in their shape, on the CPU.

    `X` is a tensor, a numpy array, or tangermeme's `PackedSequence`, of which a batch is unpacked at a time. `args`:
    more inputs of the model, (batch, …) each. `target`: a column of the output, or anything that
    `explain_sequences` takes. `hypothetical`: scores of absent letters too (see `Hypothetical`), for TF-MoDISco.
    `composite` and `pruning` are plrp's own.

    The signature is tangermeme's. LRP explains the score itself, not its distance from a reference: `references`,
    `n_shuffles`, `random_state` and the settings of DeepLIFT's convergence are accepted and not used. Their results
    (`return_references`, `raw_outputs`) cannot be returned and are refused.

    >>> from torch.nn import Conv1d, Flatten, Linear, ReLU, Sequential
    >>> network = Sequential(Conv1d(4, 3, 5), ReLU(), Flatten(), Linear(18, 2)).eval()
    >>> attribute(network, torch.eye(4)[:, torch.arange(10) % 4][None], target=1, device="cpu").shape
    torch.Size([1, 4, 10])
    """
    if return_references or raw_outputs:
        raise ValueError(
            "LRP has no references and no multipliers to return: leave return_references and raw_outputs out."
        )
    X = torch.from_numpy(X) if isinstance(X, np.ndarray) else X
    _check_inputs(X, args or (), batch_size)
    asked = Request(target=strand_targets(target)[0], pruning=pruning).target
    asked.check_batch(len(X))
    where = _device(model, device)
    number = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    number = number or next((p.dtype for p in model.parameters()), torch.float32)

    def batch(rows: slice) -> tuple[Tensor, ...]:
        return tuple(part.to(where, number) for part in (_unpacked(X[rows]), *(extra[rows] for extra in args or ())))

    parts = []
    with _evaluating(model, where), progress("explaining", len(X), None if verbose else False) as step:
        example = batch(slice(1))
        trace = record(model, example if args else example[0]) if composite == AUTO else None
        rules = composite_from_text(composite, trace) if isinstance(composite, str) else composite
        rules = hypothetical_composite(rules) if hypothetical else rules
        for begin in range(0, len(X), batch_size):
            rows = slice(begin, begin + batch_size)
            inputs = batch(rows)
            relevance = explain(
                model, inputs if args else inputs[0], target=asked.of(rows), composite=rules, pruning=pruning
            ).relevance
            relevance = (relevance[0] if args else relevance).float().cpu()
            parts.append(relevance if hypothetical else relevance * (_unpacked(X[rows]).cpu() > 0))
            step(len(relevance))
    return torch.cat(parts)


def _check_inputs(X: Any, args: Sequence[Tensor], batch_size: int) -> None:
    """Refuse sequences and further inputs that cannot be explained together."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: at least one sequence a batch.")
    if X.ndim != 3 or len(X) == 0:
        raise ValueError(f"X has axes (batch, 4, length) and at least one sequence; this one is {tuple(X.shape)}.")
    if isinstance(X, Tensor) and X.shape[1] != 4 and X.shape[2] == 4:
        raise ValueError(f"X has axes (batch, 4, length); this one is {tuple(X.shape)}: transpose its last two axes.")
    for extra in args:
        if len(extra) != len(X):
            raise ValueError(f"args holds {len(extra)} rows for {len(X)} sequences: give one row each.")


@contextmanager
def _evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """The model in evaluation mode on a device; afterwards its modes and its place are as before."""
    modes, home = {module: module.training for module in model.modules()}, _device(model, None)
    try:
        model.eval().to(device)
        yield
    finally:
        model.to(home)
        for module, mode in modes.items():
            module.training = mode


def _unpacked(x: Any) -> Tensor:
    """One-hot sequences of a tensor or of tangermeme's `PackedSequence`."""
    letters: Tensor = x.to_one_hot() if hasattr(x, "to_one_hot") else x
    return letters
