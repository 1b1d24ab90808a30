"""Pages of DNA sequences: a logo for every p, and the seqlets as a track of motifs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from plrp.genomics.attribution import composite_from_text, pool
from plrp.genomics.seqlets import find_seqlets, match_seqlets
from plrp.genomics.sequence_settings import COMPOSITE
from plrp.genomics.sequences import Ambiguous, Sequences, encode
from plrp.health import unwarned
from plrp.pruning import Pruning
from plrp.tape.trace import Trace
from plrp.tape.tracing import trace as trace_model

from .bundle import Bundle
from .explanation_page import Site, explanation_bundle

NAMED = 1e-3
"""A seqlet is named after its best match up to this p of TOMTOM; others are marked without a name."""


def sequence_bundle(
    model: nn.Module,
    sequences: Sequences,
    row: int = 0,
    *,
    target: Any = None,
    composite: str = COMPOSITE,
    pruning: Pruning | None = None,
    pooling: Any = "present",
    ambiguous: Ambiguous = "zero",
    match: bool = False,
    name: str = "",
    device: str | torch.device | None = None,
    trace: Trace | None = None,
    **size: Any,
) -> Bundle:
    """One sequence for every p, for its strongest classes: `plrp genomics explain … --html`.

    match: name the seqlets of the setting asked for by their nearest JASPAR motif. name: of the model, for the head of
    the page. trace: of this sequence, if there is one already. size: see `explanation_bundle`; 5 targets by default.
    """
    onehot = encode(sequences[[row]], ambiguous)
    if trace is None:
        inputs = torch.from_numpy(onehot)
        trace = trace_model(model, inputs if device is None else inputs.to(device))
    with unwarned():  # the page says it
        explanation = trace.explain(target=target, composite=composite_from_text(composite, trace), pruning=pruning)
    per_base = pool(explanation.relevance.detach().cpu().numpy(), onehot, pooling)
    present = torch.from_numpy(onehot[0] != 0).double()
    bundle = explanation_bundle(
        explanation,
        sites=_seqlet_sites(per_base, onehot, match),
        title=sequences.names[row],
        model=name or type(model).__name__,
        pool=None if pooling == "sum" else lambda relevance: (relevance.detach().double().cpu() * present).sum(0),
        **{"targets": 5, **size},
    )
    if trace.head not in ("softmax", "log_softmax"):  # classes need not exclude each other: the page shows their scores
        for fact in bundle.facts["targets"]:
            fact["probability"] = None
    return bundle


def _seqlet_sites(per_base: Any, onehot: Any, match: bool) -> list[Site]:
    seqlets = find_seqlets(per_base)
    if len(seqlets) > per_base.shape[-1] // 20:  # hardly pruned: seqlets nearly everywhere mark nothing
        seqlets = seqlets.chosen(abs(seqlets.score).argsort()[::-1][:12])
    names = [""] * len(seqlets)
    if match and len(seqlets):
        matches = match_seqlets(seqlets, onehot, per_base)
        names = [one.motif.name if one.p <= NAMED else "" for one in matches]
    return [(int(a), int(b), name) for a, b, name in zip(seqlets.start, seqlets.end, names, strict=True)]
