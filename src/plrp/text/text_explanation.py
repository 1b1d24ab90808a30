"""Explanations of texts: tokens with their relevance, printed, shown and saved as coloured text."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import plrp
from plrp.balance import REMEDY, Balance
from plrp.errors import UsageError
from plrp.explanation import UNTESTABLE
from plrp.files import new_file, save_figure
from plrp.metrics.questions import affordable
from plrp.references import mask_token, special_ids

from . import coloured_text
from .coloured_text import Cell, Sentence
from .heads import Kind
from .tokens import Token, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from plrp.metrics import Verdict

    from .ablated_parts import AblatedParts
    from .text_attribution import TracedText

FORMATS = (".svg", ".png", ".pdf", ".html", ".csv", ".json")
"""The suffixes of the files that `save` writes."""


class _Coloured:
    """An explanation that is shown as coloured text; subclasses state its sentences and records."""

    def sentences(self, by_word: bool = False) -> list[Sentence]:
        """Captions and coloured text."""
        raise NotImplementedError

    def records(self, by_word: bool = False) -> list[dict[str, Any]]:
        """One record per token (or word) and answer, as plain data that pandas and polars take as it is."""
        raise NotImplementedError

    def show(self, by_word: bool = False, colours: bool | None = None, columns: int | None = None) -> str:
        """The text for a terminal: coloured there (not with NO_COLOR), elsewhere a table with bars."""
        if colours is None:
            colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        return coloured_text.to_terminal(
            self.sentences(by_word), columns or shutil.get_terminal_size((88, 24)).columns, colours
        )

    def remarks(self, remedy: str = REMEDY) -> list[str]:
        """Lines below the text."""
        return []

    def __str__(self) -> str:
        return "\n".join([self.show(), *self.remarks()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return coloured_text.to_html(self.sentences(), self.remarks())

    def save(self, path: str | Path, *, by_word: bool = False, **page: Any) -> Path:
        """Save as a picture (.svg, .png, .pdf), by token or summed by word, as numbers (.csv, .json), or as a page.

        The page (.html) explains the text anew for every p of its slider, which takes minutes with a language model;
        `page` are options of `plrp.view.text_bundle`: `proportions=(0.05, 0.1), targets=1, inside="nothing"` is quick.
        """
        path = Path(path)
        kind, sentences, records = path.suffix.lower(), self.sentences(by_word), self.records(by_word)
        if kind not in FORMATS:
            raise UsageError(f"{path} should end in {', '.join(FORMATS)}.")
        if page and kind != ".html":
            raise TypeError(f"{', '.join(page)}: options of a page, and {path.name} is none.")
        if kind == ".html":
            plrp.view.Page(plrp.view.text_bundle(self, **{"show_progress": None, **page})).save(path)
            return path
        if kind in (".png", ".pdf"):
            save_figure(coloured_text.to_figure(sentences), path, dpi=200)
            return path
        with new_file(path) as part, part.open("w", newline="", encoding="utf-8") as file:
            if kind == ".svg":
                file.write(coloured_text.to_svg(sentences, "".join(cell.text for cell in sentences[0].cells)))
            elif kind == ".json":
                file.write(json.dumps(records, ensure_ascii=False, indent=1) + "\n")
            else:  # tokens stay as they are, also "=" and "-"
                csv.writer(file).writerows([records[0], *(record.values() for record in records)])
        return path


@dataclass(repr=False)
class ExplainedText(_Coloured):
    """The relevance of each token of a text for one answer of a model.

    - `tokens`, `relevance`: (tokens,), each the sum over the channels of its embedding;
    - `target`, `against`: the answers, written out; `kind`: a class, the next token, or a masked one;
    - `score`: the explained score: the target's before the softmax, minus that of `against`; `how` names another score,
      of which it is the relevance that was handed down (see `plrp.targets.log_odds`);
    - `probability` of the target; `answers`: the five most probable, each with its probability;
    - `explanation`: the `plrp.Explanation` with ledger and layers.
    """

    text: str
    tokens: tuple[Token, ...]
    relevance: Tensor
    kind: Kind
    target: str
    against: str | None
    score: float
    probability: float
    answers: tuple[tuple[str, float], ...]
    explanation: plrp.Explanation = field(repr=False)
    attention_heads: int = 0
    encoded: int = 0  # tokens that an encoder read; the others its decoder
    number: int = 0  # of the target among the classes or tokens
    other: int | None = None  # of `against`
    how: str = "logit"
    traced: TracedText | None = field(default=None, repr=False)  # for more explanations of the same pass

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "traced": None}  # the model is not stored

    @property
    def balance(self) -> Balance:
        """Where the score went, in figures; printed, it is a sentence."""
        return self.explanation.balance

    @property
    def method(self) -> str:
        """LRP or its pruned form, with the composite."""
        pruning, reference = self.explanation.pruning, self.explanation.reference
        against = "" if reference is None else f"; {reference.words()}"
        return f"{'LRP' if pruning is None else pruning.title}, {self.explanation.composite.name}{against}"

    def test(self, budget: int = 128, **options: Any) -> Verdict:
        """Ask the model whether the map is true, see `plrp.Explanation.test`: words are masked and deleted.

        Special tokens stay. A text with more tokens than the budget allows is asked about by word. Where the answer
        names a position, or an encoder reads the text, words become other tokens of the text instead.
        """
        if self.traced is None:
            raise ValueError(UNTESTABLE)
        return self.explanation.test(budget, **{**text_questions(self.traced, budget, len(self.tokens)), **options})

    def likelier_with_space(self) -> str:
        """A hint where the target is a next token without its space, and far likelier with it; else nothing."""
        if self.traced is None or self.kind != "next token" or self.target[:1].isspace():
            return ""
        ids = self.traced.tokenizer(f" {self.target}", add_special_tokens=False)["input_ids"]
        likelier = float(self.traced.probabilities[ids[0]]) if len(ids) == 1 else 0.0
        if likelier < max(10 * self.probability, 0.001):
            return ""
        return f"note: {' ' + self.target!r}, with its space, has {likelier:.1%}: did you mean that?"

    def words(self) -> list[tuple[str, float]]:
        """Each word with the sum over its tokens."""
        return words(self.tokens, self.relevance.tolist())

    def shortened(self, count: int) -> ExplainedText:
        """The first `count` tokens alone, which a causal model had read before it answered."""
        return replace(self, tokens=self.tokens[:count], relevance=self.relevance[:count])

    def caption(self) -> str:
        """One line about the explained answer."""
        if self.kind != "next token" and len(self.answers) == 1:  # one score: there is nothing to choose from
            return f"{self.target}: score {self.score:.3g}  ({self.method})"
        if self.against is None:
            score = "score" if self.how == "logit" else f"relevance of its {self.how}"
            said = f"{self.kind} {self.target!r}: {score} {self.score:.3g}, {self.probability:.1%}"
        else:
            said = (
                f"{self.kind} {self.target!r} ({self.probability:.1%}) rather than {self.against!r}: difference of "
                f"scores {self.score:.3g}"
            )
        return f"{said}  ({self.method})"

    def sentences(self, by_word: bool = False) -> list[Sentence]:
        """The caption and the coloured text, by token or summed by word."""
        if by_word:
            entries = [(text, value, False) for text, value in self.words()]
        else:
            pairs = zip(self.tokens, self.relevance.tolist(), strict=True)
            entries = [(token.shown, value, token.special) for token, value in pairs]
        most = max((abs(value) for _, value, _ in entries), default=0.0) or 1.0
        cells = [Cell(t, v / most, special, f"{v:+.3g}") for t, v, special in entries]
        return [Sentence(f"{self.caption()}; the strongest colour is ±{most:.3g}", cells)]

    def records(self, by_word: bool = False) -> list[dict[str, Any]]:
        """One record per token: the answer, the token with its position and id, and its relevance; or per word."""
        answer = {"answer": self.target} | ({} if self.against is None else {"against": self.against})
        if self.explanation.reference is not None:
            facts = self.explanation.reference.facts()
            answer |= {name: facts[name] for name in ("reference", "score", "reference_score")}
        if by_word:
            return [{**answer, "word": text, "relevance": value} for text, value in self.words()]
        return [
            {**answer, "position": n, "token": token.shown, "id": token.id, "relevance": value}
            for n, (token, value) in enumerate(zip(self.tokens, self.relevance.tolist(), strict=True))
        ]

    def plot_layers(self) -> Figure:
        """Which tokens carry relevance at each depth, and which heads; see `plrp.text.token_layers`."""
        from .token_depths import layers_figure

        return layers_figure(self)

    def remarks(self, remedy: str = REMEDY) -> list[str]:
        """A hint if there is one, the most probable answers, the balance, and the verdict of a test."""
        tested = [] if self.explanation.verdict is None else [self.explanation.verdict.words()]
        answers = "answers: " + ", ".join(f"{answer!r} {share:.1%}" for answer, share in self.answers)
        said = [self.likelier_with_space(), "" if self.kind == "similarity" else answers]
        return [*filter(None, said), self.balance.words(remedy), *tested]

    def ablate(self, by: str = "zero", seed: int = 0) -> AblatedParts:
        """Every attention head, MLP and token ablated alone: by how much the score falls, beside the relevance.

        by: "zero"; "mean", the mean over the text's tokens; or "resample", the values of another token, drawn by
        `seed`. A head and an MLP are the inputs of the layer that ends them, a token is its embedding.
        """
        from .ablated_parts import ablate_parts

        return ablate_parts(self, by, seed)

    def circuit(self, **options: Any) -> plrp.circuits.Circuit:
        """The survivors as a sub-network, see `plrp.Explanation.circuit`; the classes are the answers."""
        return self.explanation.circuit(**{"classes": -1, **options})


def text_questions(traced: TracedText, budget: int = 128, read: int | None = None) -> dict[str, Any]:
    """The parts and replacements of a text's test: the tokens that were read, or its words, but no special tokens."""
    tokens, tokenizer = traced.tokens[:read], traced.tokenizer
    usable = [n for n, token in enumerate(tokens) if not token.special]
    most = affordable("tokens", budget)
    part = list(range(len(usable)))
    if len(part) > most:  # white space belongs to the word before it
        numbers = [tokens[n].word for n in usable]
        part = np.cumsum([bool(k) and w not in (None, numbers[k - 1]) for k, w in enumerate(numbers)]).tolist()
    count = max(part, default=0) + 1
    number = torch.full(traced.trace.now.inputs[0].data.shape[1:], -1)
    number[usable] = torch.tensor([p if count <= most else p * most // count for p in part], dtype=torch.long)
    shortens = traced.kind != "masked token" and not traced.encoded and not any(t.segment for t in tokens)
    known = [
        getattr(tokenizer, f"{name}_token_id", None) for name in ("mask", *(() if shortens else ("unk", "pad", "eos")))
    ]
    masks = [mask_token(one, special_ids(tokenizer)) for one in known if one is not None][:1]
    return {"parts": number, "replacements": [*masks, *(["delete"] if shortens else []), "drawn"][:2]}


@dataclass(repr=False)
class ExplainedSpan(_Coloured):
    """Several tokens of a text that goes on, each explained from all tokens before it."""

    text: str
    explanations: tuple[ExplainedText, ...]
    prompt: int  # tokens that were read before the first of them

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Those that were read: the text's, then the span's without its last."""
        return self.explanations[-1].tokens

    @property
    def targets(self) -> list[str]:
        """The explained tokens, written out."""
        return [one.target for one in self.explanations]

    @property
    def relevance(self) -> Tensor:
        """(explained tokens, tokens); zero for tokens that come later. The first `prompt` columns were given."""
        rows = torch.zeros(len(self.explanations), len(self.tokens))
        for row, one in zip(rows, self.explanations, strict=True):
            row[: len(one.relevance)] = one.relevance
        return rows

    def __len__(self) -> int:
        return len(self.explanations)

    def __getitem__(self, number: int) -> ExplainedText:
        return self.explanations[number]

    def __iter__(self) -> Iterator[ExplainedText]:
        return iter(self.explanations)

    def sentences(self, by_word: bool = False) -> list[Sentence]:
        """One caption and coloured text per token of the span."""
        return [sentence for one in self.explanations for sentence in one.sentences(by_word)]

    def records(self, by_word: bool = False) -> list[dict[str, Any]]:
        """Those of all answers, one after the other; `number` counts them."""
        return [{"number": n, **row} for n, one in enumerate(self.explanations) for row in one.records(by_word)]

    def plot_matrix(self) -> Figure:
        """The relevance as a matrix: a row per explained token, a column per token that was read."""
        from .token_depths import matrix_figure

        return matrix_figure(self)
