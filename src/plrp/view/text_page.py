"""Pages of texts: each token coloured by its relevance, for every p; targets are answers or the tokens of a span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plrp.spelling import shortened
from plrp.text.coloured_text import visible
from plrp.text.text_explanation import ExplainedSpan, ExplainedText
from plrp.text.tokens import Token

from .bundle import Bundle
from .grid import Grid, layer_inputs
from .page_data import PageSettings, collect

PROPORTIONS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
MANY_LAYERS = 60  # following the channels of each takes too long


def text_bundle(explained: ExplainedText | ExplainedSpan, *, model: str = "", title: str = "", **size: Any) -> Bundle:
    """A text for every p, for PLRP-λ and PLRP-M±: `plrp text … -o x.html`.

    title, model: for the head of the page. size: `proportions`, `targets`, `inside`, … of `PageSettings`. `targets` is
    the number of most probable answers; the targets of a span are its tokens, each with the tokens before it. By
    default the strongest channels of every layer are followed, unless the model has very many layers.
    """
    each = list(explained) if isinstance(explained, ExplainedSpan) else [explained]
    first = each[0].traced
    if first is None or any(one.traced is None for one in each):
        raise ValueError("This text was stored without its model: explain it again for a page.")
    inside = size.pop("inside", None) or ("all" if len(layer_inputs(first.trace)) <= MANY_LAYERS else "graph")
    settings = PageSettings(**{"proportions": PROPORTIONS, "inside": inside, **size})
    targets, facts = (
        _span_targets(each) if isinstance(explained, ExplainedSpan) else _answers(each[0], settings.targets)
    )
    explanation = each[0].explanation
    grid = Grid.around(explanation.pruning, targets, 0, settings.proportions)
    bundle = collect(first.trace, grid, explanation.composite, settings)
    for number, target in enumerate(facts):
        target["score"] = bundle.facts["scores"][number]
    tokens = explained.tokens
    if isinstance(explained, ExplainedSpan):  # tokens that were not read do not count
        holding = bundle.facts["curves"]["holding"]
        read = [len(one.tokens) for one in each for _ in grid.prunings]
        bundle.facts["curves"]["holding"] = [h * len(tokens) / n for h, n in zip(holding, read, strict=True)]
    text = "".join(token.text for token in tokens if not token.special)
    bundle.facts.update(
        kind="text",
        title=title or shortened(visible(" ".join(text.split())), 80),
        model=model or type(first.model).__name__,
        targets=facts,
        tokens=[_token(token) for token in tokens],
        prompt=explained.prompt if isinstance(explained, ExplainedSpan) else None,
        answers=each[0].kind,
    )
    return bundle


def _span_targets(each: Sequence[ExplainedText]) -> tuple[list[Any], list[dict[str, Any]]]:
    """The tokens of a span as targets, and for each the facts that the page shows."""
    targets = [one.traced.score_of(one.number) for one in each if one.traced is not None]
    return targets, [_target(None, f"{n}. {one.target}", one.probability) for n, one in enumerate(each, 1)]


def _answers(explained: ExplainedText, count: int) -> tuple[list[Any], list[dict[str, Any]]]:
    """The explained answer and the most probable other ones as targets, and for each the facts that the page shows."""
    traced = explained.traced
    assert traced is not None
    asked = explained.number, explained.other
    others = [(number, None) for number, _ in traced.best(count) if (number, None) != asked]
    chosen = [asked, *others][: max(count, 1)]
    names = [traced.answer(a) + ("" if b is None else f" rather than {traced.answer(b)}") for a, b in chosen]
    shares = traced.probabilities
    facts = [_target(a, name, float(shares[a])) for (a, _), name in zip(chosen, names, strict=True)]
    return [traced.score_of(*answer) for answer in chosen], facts


def _target(number: int | None, name: str, probability: float) -> dict[str, Any]:
    return {"number": number, "name": visible(name), "score": None, "probability": probability}


def _token(token: Token) -> dict[str, Any]:
    return {
        "text": visible(token.shown) or "⋯",
        "break": "\n" in token.text,
        "special": token.special,
        "word": token.word,
    }
