"""From a text and the answer of a language model to the relevance of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import plrp
from plrp.progress import progress
from plrp.references import mask_token, special_ids
from plrp.settings import read_reference
from plrp.tape.refusals import device_of
from plrp.target_text import class_number
from plrp.targets import contrast, log_odds, log_probability

from .heads import Forward, Kind, begins_with, check_model, class_names, decodes, greedy, kind_of
from .text_explanation import ExplainedSpan, ExplainedText
from .tokens import Token, token_id, tokenized, written

SCORES = {"logit": None, "log-probability": log_probability, "log-odds": log_odds}
"""Scores of an answer: its own, or compared with all other answers."""
SIMILARITY = "cosine similarity of both texts"
Text = str | tuple[str, str]


@dataclass(repr=False)
class TracedText:
    """One forward pass over a text, ready to be explained any number of times.

    `tokens` are the model's own tokens; of a span, the last of them are the span's own. If there is an encoder, it
    read the first `encoded` of them.
    """

    text: str
    tokens: tuple[Token, ...]
    kind: Kind
    trace: plrp.Trace
    position: int | None  # which of the output's positions answers; None for classes and similarities
    model: Any
    tokenizer: Any
    encoded: int = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text[:60]!r}, {len(self.tokens)} tokens, {type(self.model).__name__})"

    @property
    def scores(self) -> Tensor:
        """The scores of all answers before a softmax: (classes,) or (vocabulary,)."""
        output: Tensor = self.trace.output[0]
        return output if self.position is None else output[self.position]

    def number(self, answer: str | int, name: str = "target") -> int:
        """The number of a class or token."""
        if self.kind == "similarity":
            raise ValueError(f"two texts have one similarity: leave {name} out.")
        if self.kind == "class":
            return class_number(answer, class_names(self.model), labels=True)
        return token_id(self.tokenizer, answer, name, decoded=self.encoded > 0)

    def answer(self, number: int) -> str:
        """A class by its name, a token written out."""
        if self.kind == "similarity":
            return SIMILARITY
        return class_names(self.model)[number] if self.kind == "class" else str(self.tokenizer.decode([number]))

    @property
    def probabilities(self) -> Tensor:
        """Softmax of the scores, or the sigmoid if there is only one; a similarity as it is."""
        scores = self.scores.float()
        if self.kind == "similarity":
            return scores
        return scores.softmax(-1) if len(scores) > 1 else scores.sigmoid()

    def best(self, count: int = 5) -> list[tuple[int, float]]:
        """The most probable answers: number and probability."""
        shares = self.probabilities
        return [(i, float(shares[i])) for i in shares.topk(min(count, len(shares))).indices.tolist()]

    def score_of(self, chosen: int, other: int | None = None, score: str = "logit") -> Any:
        """The target of an answer's score (one of `SCORES`), or of its contrast with another."""
        if score not in SCORES:
            raise ValueError(f"score is {', '.join(map(repr, SCORES))}, got {score!r}.")
        place = () if self.position is None else (self.position,)
        if (compare := SCORES[score]) is None:
            return (*place, chosen) if other is None else contrast((*place, chosen), (*place, other))
        if other is not None:
            raise ValueError(f"score={score!r} compares with all answers: leave out against, or score.")
        return compare((*place, chosen), axis=-1)

    def explain(
        self,
        *,
        target: str | int | None = None,
        against: str | int | None = None,
        score: str = "logit",
        composite: str | plrp.Composite | None = None,
        pruning: plrp.Pruning | None = None,
        layers: bool | Sequence[str] = False,
    ) -> ExplainedText:
        """Explain this forward pass; see `plrp.text.explain`."""
        composite = composite or ("attnlrp" if self.trace.now is self.trace else "rescale")
        chosen = int(self.scores.argmax()) if target is None else self.number(target)
        other = None if against is None else self.number(against, "against")
        if chosen == other:
            raise ValueError(f"target and against are both {self.answer(chosen)!r}: name two answers.")
        asked = self.score_of(chosen, other, score)
        explanation = self.trace.explain(target=asked, composite=composite, pruning=pruning, layers=layers)
        return ExplainedText(
            text=self.text,
            tokens=self.tokens,
            relevance=explanation.relevance[0].detach().cpu(),
            kind=self.kind,
            target=self.answer(chosen),
            against=None if other is None else self.answer(other),
            score=float(explanation.score[0]),
            probability=float(self.probabilities[chosen]),
            answers=tuple((self.answer(i), share) for i, share in self.best()),
            explanation=explanation,
            number=chosen,
            other=other,
            how=score,
            traced=self,
            encoded=self.encoded,
            attention_heads=_heads(self.model.config),
        )


def trace(model: Any, tokenizer: Any, text: Text, reference: Any = None, pooling: str = "mean") -> TracedText:
    """Run a model once on a text, to explain it many times; see `explain` for the models and references."""
    kind, tokens, encoded = _read(model, tokenizer, text)
    position = None if kind in ("class", "similarity") else 0
    if kind == "masked token":
        position = _mask(tokenizer, tokens)
    against = text_reference(reference, tokenizer)
    forward = Forward(model, kind, encoded=encoded, segments=[t.segment for t in tokens], pooling=pooling)
    passed = plrp.trace(forward, _ids(tokens, model), reference=against)
    text = text if isinstance(text, str) else " ".join(text)
    return TracedText(text, tokens, kind, passed, position, model, tokenizer, encoded)


def _read(model: Any, tokenizer: Any, text: Text) -> tuple[Kind, tuple[Token, ...], int]:
    """The kind of the model's answer, the tokens that it reads, and how many its encoder, or the first text, has."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is one of Hugging Face's models, got {type(model).__name__}: load it first.")
    kind = kind_of(type(model), pair=isinstance(text, tuple))
    if kind == "similarity":
        each = [tokenized(tokenizer, one) for one in text]
        for tokens in each:
            check_model(model, tokenizer, _ids(tokens, model))
        first = 1 + max((t.word for t in each[0] if t.word is not None), default=-1)
        later = [t if t.word is None else t._replace(word=t.word + first) for t in each[1]]
        return kind, (*each[0], *later), len(each[0])
    tokens = tokenized(tokenizer, text)
    check_model(model, tokenizer, _ids(tokens, model))
    begun = begins_with(model) if kind == "next token" else []
    start = [Token(str(tokenizer.convert_ids_to_tokens(i)), i, special=True) for i in begun]
    return kind, (*tokens, *start), len(tokens) if start else 0


def _heads(settings: Any) -> int:
    """Attention heads of each block; 0 where they are not known, or differ between encoder and decoder."""
    count = int(getattr(settings, "num_attention_heads", 0) or 0)
    return count if getattr(settings, "decoder_attention_heads", count) == count else 0


def explain(
    model: Any,
    tokenizer: Any,
    text: Text | list[Any],
    *,
    target: Any = None,
    against: Any = None,
    score: str = "logit",
    span: int | str | None = None,
    composite: str | plrp.Composite | None = None,
    pruning: plrp.Pruning | None = None,
    layers: bool | Sequence[str] = False,
    reference: Any = None,
    pooling: str = "mean",
) -> Any:
    """Explain the answer of a language model to a text: an `ExplainedText`, the relevance of each token.

    - `text`: a string; two of them as a tuple, which a classifier reads as one input, and of which an encoder without
      a head gives the cosine similarity (of `pooling`, the "mean" of a text's tokens, or the first, "cls"); or a list
      of texts, for a list of explanations, with `target` and `against` for all of them or as lists;
    - `model`, `tokenizer`: Hugging Face's, for a class of the text, its next token, or the token behind its one mask;
      where an encoder reads and a decoder writes, the first token that is written (later ones: `span`);
    - `target`: a class by name or number; a token written out (`" Paris"`: its space belongs to it) or by its id. None
      is the most probable;
    - `against`: a second answer; the difference of both scores is explained; of a span, one for all tokens or a list;
    - `score`: "logit"; or, compared with all other answers, "log-probability" or "log-odds" (`plrp.targets`);
    - `span`: several tokens instead, as an `ExplainedSpan` with one explanation for each: a text that goes on from the
      given one, or how many tokens the model is to write itself;
    - `composite`, `pruning`, `layers`: see `plrp.explain`; None is `attnlrp`, against a reference `rescale`;
    - `reference`: explain why the score is not that of other token ids: `"mask"`, the tokenizer's mask token in place
      of every word's; `"mask:103"`, the token with this id; or as in `plrp.explain`.
    """
    how: dict[str, Any] = {"score": score, "composite": composite, "pruning": pruning, "layers": layers}
    if isinstance(text, list):
        pairs = zip(text, _each(target, len(text), "target"), _each(against, len(text), "against"), strict=True)
        how |= {"span": span, "reference": reference, "pooling": pooling}
        return [explain(model, tokenizer, one, target=asked, against=other, **how) for one, asked, other in pairs]
    if span is None:
        return trace(model, tokenizer, text, reference, pooling).explain(target=target, against=against, **how)
    if target is not None:
        raise ValueError("span names the tokens to explain: leave out target.")
    answers = _trace_span(model, tokenizer, text, span, reference)
    prompt = len(answers[0].tokens) - len(answers)
    others = _each(against, len(answers), "against")
    with progress("explaining", len(answers), None, transient=True) as step:
        explanations = []
        for reads, (one, other) in enumerate(zip(answers, others, strict=True), start=prompt):
            explained = one.explain(target=one.tokens[reads].id, against=other, **how)
            explanations.append(explained.shortened(reads))  # it is explained from the tokens before it
            step(1)
    return ExplainedSpan(answers[0].text, tuple(explanations), prompt)


def _each(given: Any, count: int, name: str) -> list[Any]:
    """An answer for each text or token: those of a list, or one for all."""
    if not isinstance(given, list):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"{name} is a list of {len(given)}, and {count} are explained: give one, None, or {count}.")
    return given


def _trace_span(model: Any, tokenizer: Any, text: Text, span: int | str, reference: Any) -> list[TracedText]:
    """For each token of a span, the one forward pass over text and span.

    A causal model's scores at a token do not depend on later ones.
    """
    kind, tokens, encoded = _read(model, tokenizer, text)
    if kind != "next token":
        raise ValueError(f"{type(model).__name__} writes no text: span is for models that do; leave it out.")
    if isinstance(span, str):
        new = written(tokenizer, span, decoded=encoded > 0)
    elif isinstance(span, bool) or not isinstance(span, int) or span < 1:
        raise ValueError(f"span is a text, or how many tokens to write, from 1, got {span!r}.")
    else:
        forward = Forward(model, kind, encoded=encoded)
        new = greedy(forward, _ids(tokens, model), span, getattr(tokenizer, "eos_token_id", None))
    if not new:
        raise ValueError("The span has no token: write it out, or ask for another text.")
    first = max((t.word for t in tokens if t.word is not None), default=-1) + 1
    added = [Token(str(tokenizer.decode([i])), i, word=first + n) for n, i in enumerate(new)]
    whole = (*tokens, *added)
    read = whole[:-1]  # nobody reads the last token
    check_model(model, tokenizer, _ids(read[encoded:], model))
    forward, against = Forward(model, kind, positions=len(new), encoded=encoded), text_reference(reference, tokenizer)
    passed = plrp.trace(forward, _ids(read, model), reference=against)
    text = text if isinstance(text, str) else " ".join(text)
    return [TracedText(text, whole, kind, passed, n, model, tokenizer, encoded) for n in range(len(new))]


def text_reference(given: Any, tokenizer: Any) -> Any:
    """A reference as `plrp.explain` takes it: of `mask` and `mask:103` a function of the ids."""
    if not isinstance(given, str):
        return given
    _, number = read_reference(given, ("mask",))
    return mask_token(tokenizer) if number is None else mask_token(number, special_ids(tokenizer))


def check_words(tokenizer: Any, model: type, text: str, *answers: str | None) -> None:
    """Refuse a text or an answer on the command line, before the model of this class has any weights."""
    kind, tokens = kind_of(model), tokenized(tokenizer, text)
    if kind == "masked token":
        _mask(tokenizer, tokens)
    for name, answer in zip(("--target", "--against"), answers, strict=False):
        if kind != "class" and answer is not None:
            token_id(tokenizer, answer, name, decoded=decodes(model))


def _ids(tokens: Sequence[Token], model: Any) -> Tensor:
    """Token ids (1, tokens) where the model is."""
    return torch.tensor([[token.id for token in tokens]], device=device_of(model))


def _mask(tokenizer: Any, tokens: Sequence[Token]) -> int:
    """Which token is masked."""
    if tokenizer.mask_token is None:
        raise ValueError(
            "The tokenizer has no mask token: this is the tokenizer of another model; load both from one place."
        )
    masks = [n for n, token in enumerate(tokens) if token.id == tokenizer.mask_token_id]
    if not masks:
        raise ValueError(f"The text has no masked token: write {tokenizer.mask_token} in place of the one to explain.")
    if len(masks) > 1:
        raise ValueError(f"The text has {len(masks)} masked tokens, and only one can be explained: keep one.")
    return masks[0]
