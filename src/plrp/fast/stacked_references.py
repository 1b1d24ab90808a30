"""Several references in one batch: small networks are bound by the number of steps, not by their sizes."""

from __future__ import annotations

import torch
from torch import nn

from plrp.references import References
from plrp.request import Request
from plrp.tape.difference import repeated
from plrp.tape.seam import tape_bytes
from plrp.tape.trace import Trace
from plrp.targets import Computed

from . import limits


def grouped(now: Trace, references: References, request: Request) -> list[References]:
    """The references in groups of which each is recorded as one batch, beside as many copies of the inputs.

    Each alone where code of the user, a mask or a layer may hold for the batch, and where the model is for one size.
    """
    own = not isinstance(now._recorder.model, nn.Module) or bool(now._recorder.rules.given)
    own = own or isinstance(request.target, Computed) or request.composite_holds_tensors
    own = own or bool(request.layers) or request.condition is not None or now.samples is None
    groups = references.grouped(1 if own else max(1, limits.STACKED_BYTES // max(1, tape_bytes(now))))
    return groups if all(_repeats(now, size) for size in {len(group) for group in groups}) else references.grouped(1)


def _repeats(now: Trace, copies: int) -> bool:
    """Whether the model gives the copies of a batch what it gives the batch."""
    if copies == 1:
        return True
    try:
        parts = repeated(now, copies).output.chunk(copies)
        close = 1e-4 * float(now.output.abs().max())
        return all(torch.allclose(part, now.output, rtol=1e-4, atol=close) for part in parts)
    except Exception:  # the model is for one size of batch, returns more than one tensor, or nothing
        return False
