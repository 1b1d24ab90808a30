"""Pages of texts: each token coloured by its relevance, for every p, for answers or a span's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plrp.progress import progress
from plrp.text.coloured_text import visible
from plrp.text.text_explanation import ExplainedSpan, ExplainedText
from plrp.text.tokens import Token
from plrp.vision.heatmaps import COLOURS

from .bundle import Bundle
from .grid import Grid, layer_inputs
from .page_data import Inside, Report, collect

PROPORTIONS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
MANY_LAYERS = 60  # an explanation for each takes too long


def text_bundle(
    explained: ExplainedText | ExplainedSpan,
    *,
    model: str = "",
    title: str = "",
    proportions: Sequence[float] = PROPORTIONS,
    targets: int = 3,
    show_progress: bool | None = False,
    report: Report | None = None,
    inside: Inside | None = None,
) -> Bundle:
    """A text for every p, for PLRP-λ and PLRP-M±: `plrp text … -o x.html`.

    targets: how many of the most probable answers; of a span, its tokens are the targets, each with the tokens before
    it. title, model: for the head of the page. inside: see `collect`; None follows the strongest channels of every
    layer, unless there are very many.
    """
    span = isinstance(explained, ExplainedSpan)
    each = list(explained) if isinstance(explained, ExplainedSpan) else [explained]
    traced = [one.traced for one in each]
    if any(one is None for one in traced):
        raise ValueError("This text was stored without its model: explain it again for a page.")
    first = traced[0]
    assert first is not None
    if span:
        scores = [one.score_of(text.number, None) for one, text in zip(traced, each, strict=True) if one is not None]
        facts = [_target(None, f"{n}. {t.target}", t.score, t.probability) for n, t in enumerate(each, 1)]
        asked = 0
    else:
        (one,) = each
        asked_target = one.number, one.other
        others = [(number, None) for number, _ in first.best(targets) if (number, None) != asked_target]
        chosen = [asked_target, *others][: max(targets, 1)]
        scores = [first.score_of(*answer) for answer in chosen]
        names = [first.answer(a) + ("" if b is None else f" rather than {first.answer(b)}") for a, b in chosen]
        shares = first.probabilities
        facts = [_target(a, n, None, float(shares[a])) for (a, _), n in zip(chosen, names, strict=True)]
        asked = 0
    explanation = each[0].explanation
    grid = Grid.around(explanation.pruning, scores, asked, proportions)
    with progress("explaining", len(grid), show_progress, transient=True) as step:

        def tell(done: int, total: int) -> None:
            step(1, total=total)
            if report is not None:
                report(done, total)

        wanted: Inside = inside or ("all" if len(layer_inputs(first.trace)) <= MANY_LAYERS else "graph")
        bundle = collect(first.trace, grid, explanation.composite, report=tell, inside=wanted)
    for number, target in enumerate(facts):
        target["score"] = bundle.facts["scores"][number]
    tokens = explained.tokens
    if span:  # tokens that come later were not read: they are not without relevance
        holding = bundle.facts["curves"]["holding"]
        read = [len(one.tokens) for one in each for _ in grid.prunings]
        bundle.facts["curves"]["holding"] = [h * len(tokens) / n for h, n in zip(holding, read, strict=True)]
    bundle.facts.update(
        kind="text",
        title=title or shortened("".join(token.text for token in tokens if not token.special)),
        model=model or type(first.model).__name__,
        targets=facts,
        tokens=[_token(token) for token in tokens],
        prompt=explained.prompt if isinstance(explained, ExplainedSpan) else None,
        answers=each[0].kind,
        colours=COLOURS,
    )
    return bundle


def shortened(text: str, most: int = 80) -> str:
    """A text in one line of a head."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def _target(number: int | None, name: str, score: float | None, probability: float) -> dict[str, Any]:
    return {"number": number, "name": visible(name), "score": score, "probability": probability}


def _token(token: Token) -> dict[str, Any]:
    return {
        "text": visible(token.shown) or "⋯",
        "break": "\n" in token.text,
        "special": token.special,
        "word": token.word,
    }
