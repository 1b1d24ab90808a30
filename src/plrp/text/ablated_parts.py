"""Heads, MLPs and tokens of a language model ablated one at a time, beside the relevance that they were given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from plrp.ablation import ABLATIONS
from plrp.metrics.feature_rows import spearman
from plrp.progress import progress
from plrp.spelling import visible
from plrp.tables import render_table
from plrp.tape.replay import replay
from plrp.tape.values import Value
from plrp.targets import start

from .token_depths import blocks_of, layer_relevance

if TYPE_CHECKING:
    from .text_explanation import ExplainedText


class AblatedPart(NamedTuple):
    """A head, an MLP or a token: its relevance, and by how much the score falls without it."""

    kind: str
    name: str
    relevance: float
    effect: float


class AblatedParts(list[AblatedPart]):
    """Strongest effect first; printed, a table with the rank of each part's |relevance| among its kind."""

    @property
    def agreement(self) -> dict[str, float]:
        """Spearman's correlation of relevance and effect, of each kind."""
        found = {}
        for kind in dict.fromkeys(part.kind for part in self):
            both = torch.tensor([[p.relevance, p.effect] for p in self if p.kind == kind], dtype=torch.float64)
            found[kind] = float(spearman(both[None, :, 0], both[None, :, 1])[0])
        return found

    def __repr__(self) -> str:
        ranks: dict[tuple[str, str], int] = {}
        for kind in self.agreement:
            same = sorted((p for p in self if p.kind == kind), key=lambda p: -abs(p.relevance))
            ranks |= {p[:2]: rank for rank, p in enumerate(same, 1)}
        rows = [(p.kind, p.name, f"{p.effect:+.3g}", f"{p.relevance:+.3g}", str(ranks[p[:2]])) for p in self[:20]]
        said = ", ".join(f"{kind}s {value:.2f}" for kind, value in self.agreement.items())
        table = render_table(("part", "", "effect", "relevance", "its rank"), rows)
        return f"{table}\nrelevance and effect agree (Spearman): {said}; the 20 strongest effects of {len(self)}"


def ablate_parts(explained: ExplainedText, by: str = "zero", seed: int = 0) -> AblatedParts:
    """See `ExplainedText.ablate`."""
    if by not in ABLATIONS:
        raise ValueError(f"by is 'zero', 'mean' or 'resample', got {by!r}.")
    traced = explained.traced
    if traced is None or traced.encoded:
        raise ValueError("Parts are ablated where one stack reads one text, before it is stored without its model.")
    trace, how = traced.trace.now, explained.explanation
    options: dict[str, Any] = {"composite": how.composite, "pruning": how.pruning, "layers": True}
    kept = traced.explain(target=explained.number, against=explained.other, score=explained.how, **options)
    begin = start(trace, kept.explanation.target, kept.explanation.score.dtype)
    whole, found = float(begin.score_of(begin.value.data)[0]), AblatedParts()
    parts, generator = list(_parts(kept)), torch.Generator().manual_seed(seed)
    with progress("ablating", len(parts), None, transient=True) as step:
        for kind, name, relevance, value, (rows, columns) in parts:

            def without(tensor: Tensor, rows: slice = rows, columns: slice = columns) -> Tensor:
                flat = tensor.reshape(-1, tensor.shape[-1])
                filled, by_token = flat.clone(), flat[: len(explained.tokens)]
                if by == "resample":  # each token has the values of another one
                    others = torch.arange(len(flat)) + int(
                        torch.randint(1, max(2, len(by_token)), (), generator=generator)
                    )
                    fill = by_token[others % len(by_token)]
                else:
                    fill = by_token.mean(0).expand_as(flat) if by == "mean" else torch.zeros_like(flat)
                filled[rows, columns] = fill[rows, columns]
                return filled.reshape(tensor.shape)

            with torch.inference_mode(False), torch.no_grad():
                after = replay(begin.ops, [begin.value], {id(value): without})[0]
            found.append(AblatedPart(kind, name, relevance, whole - float(begin.score_of(after)[0])))
            step(1)
    found.sort(key=lambda part: -abs(part.effect))
    return found


def _parts(kept: ExplainedText) -> Iterator[tuple[str, str, float, Value, tuple[slice, slice]]]:
    """Each part: kind, name, relevance, the tensor that holds it, and its tokens and channels there."""
    assert kept.traced is not None
    trace, heads, everywhere = kept.traced.trace.now, kept.attention_heads, slice(None)
    layers = {op.name: op.inputs[0] for op in trace.layers}
    for block in blocks_of(kept):
        number, relevance = block.name.rpartition(".")[2], layer_relevance(kept, block.output).sum(0)
        wide = len(relevance) // heads if heads and len(relevance) % heads == 0 else len(relevance)
        for n, begin in enumerate(range(0, len(relevance), wide)):
            own = slice(begin, begin + wide)
            yield "head", f"{number}.{n}", float(relevance[own].sum()), layers[block.output], (everywhere, own)
        if block.ends is not None:
            of_mlp = float(layer_relevance(kept, block.ends).sum())
            yield "MLP", number, of_mlp, layers[block.ends], (everywhere, everywhere)
    embedded = next(op.output for op in trace.ops if op.output.dtype.is_floating_point)
    for n, (token, value) in enumerate(zip(kept.tokens, kept.relevance.tolist(), strict=True)):
        yield "token", f"{n} {visible(token.shown).strip()}", value, embedded, (slice(n, n + 1), everywhere)
