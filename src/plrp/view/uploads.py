"""Uploads of a visitor (photographs, sequences, texts), each run through the model once and explained many times."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn

from plrp.composites import Composite
from plrp.genomics.attribution import composite_from_text
from plrp.genomics.sequence_settings import COMPOSITE
from plrp.genomics.sequences import Sequences, checked_bases, encode
from plrp.models.loading import LoadedModel
from plrp.pruning import Pruning
from plrp.tape.trace import Trace
from plrp.tape.verification import trace as trace_model
from plrp.target_text import WrittenTarget, class_number, read_target
from plrp.text.text_attribution import trace as trace_text
from plrp.text.text_explanation import text_questions
from plrp.vision.photograph_explanation import ExplainedPhotograph, explain_photograph
from plrp.vision.photographs import decode_photograph

from .bundle import Bundle
from .layer_channels import ChannelPatches, Paths, Report, path_levels
from .page_data import PageSettings, as_map, map_shape
from .page_kinds import photograph_bundle, sequence_bundle, text_bundle

Kind = Literal["photograph", "sequence", "text"]

LONGEST = 200_000
"""Bases or letters of a pasted text, at most."""


@dataclass
class Upload:
    """An input after its one forward pass.

    page: from the answer that a visitor names (None is the model's own) to its page. score: from the number of an
    answer on the page to the target of the trace. questions: options of its test.
    """

    trace: Trace
    composite: Composite
    pruning: Pruning | None
    page: Callable[[str | None, PageSettings], Bundle] | None = field(default=None, repr=False)
    score: Callable[[int | None], Any] = field(default=lambda number: number, repr=False)
    questions: Callable[[], dict[str, Any]] = field(default=dict, repr=False)
    latest: tuple[Any, Paths] | None = field(default=None, repr=False)  # a setting and its paths

    def bundle(self, target: str | None, settings: PageSettings) -> Bundle:
        """The page for an answer that the visitor names; None is the model's own answer."""
        assert self.page is not None
        return self.page(target, settings)

    def exemplars(self, bundle: Bundle, report: Report) -> Iterator[tuple[int, dict[int, list[dict[str, str]]]]]:
        """Patches for the channels of a bundle, layer by layer (`ChannelPatches.layers`)."""
        yield from ()

    def path(self, layer: str, channel: int, number: int | None, method: str, p: float | None) -> dict[str, Any]:
        """The relevance that reaches the input through one channel alone, for the page to draw."""
        pruning = self._pruning(method, p)
        setting = number, pruning
        if self.latest is None or self.latest[0] != setting:
            self.latest = setting, Paths(self.trace, self.score(number), self.composite, pruning, 0)
        sent = self.latest[1].through(layer, channel, lambda relevance: as_map(relevance, map_shape(self.trace)))
        levels, largest, limit = path_levels(sent)
        content = base64.b64encode(levels.tobytes()).decode("ascii")
        return {"layer": layer, "channel": channel, "levels": content, "largest": largest, "limit": limit}

    def test(self, number: int | None, method: str, p: float | None) -> dict[str, Any]:
        """The network's verdict on a map of the page (`metrics.Verdict.facts`)."""
        target, pruning = self.score(number), self._pruning(method, p)
        explanation = self.trace.explain(target=target, composite=self.composite, pruning=pruning)
        return explanation.test(**self.questions()).facts()

    def _pruning(self, method: str, p: float | None) -> Pruning | None:
        return None if p is None else replace(self.pruning or Pruning(), p=p, redistribution=method)


@dataclass(kw_only=True)
class PhotographUpload(Upload):
    """A photograph that was explained once, with `options` of `explain_photograph`."""

    explained: ExplainedPhotograph = field(repr=False)
    options: dict[str, Any] = field(repr=False)
    patches: ChannelPatches | None = field(repr=False)
    where: str | None = None  # the target whose box or area is explained; None: the model's own

    def bundle(self, target: str | None, settings: PageSettings) -> Bundle:
        """See `Upload`. Another target of a detector or segmenter is another place, and another forward pass."""
        explained = self.explained
        if explained.place is not None or (target is not None and WrittenTarget.read(target).at is not None):
            if target != self.where:
                explained = explain_photograph(explained.photograph, explained.model, target=target, **self.options)
                self.trace, self.composite, self.latest = explained.trace, explained.composite, None
                self.explained, self.where = explained, target
        elif target is not None:
            explained = replace(explained, target=class_number(target, explained.categories))
        return photograph_bundle(explained, **vars(settings))

    def exemplars(self, bundle: Bundle, report: Report) -> Iterator[tuple[int, dict[int, list[dict[str, str]]]]]:
        """See `Upload`."""
        if self.patches is not None:
            yield from self.patches.layers(bundle.facts["channels"], self.trace, report)


def open_photograph(
    content: bytes,
    name: str,
    model: LoadedModel,
    *,
    pruning: Pruning,
    composite: str,
    device: str = "cpu",
    patches: ChannelPatches | None = None,
    reference: Any = None,
) -> PhotographUpload:
    """A photograph from its bytes; they are read in memory."""
    options: dict[str, Any] = {"prunings": [pruning], "composite": composite, "device": device, "reference": reference}
    explained = explain_photograph(decode_photograph(content, name), model, **options)
    seen = explained.trace, explained.composite
    return PhotographUpload(*seen, pruning, explained=explained, options=options, patches=patches)


def open_sequence(
    content: bytes,
    name: str,
    model: nn.Module,
    *,
    pruning: Pruning | None,
    composite: str = COMPOSITE,
    device: str = "cpu",
    label: str = "",
    reference: Any = None,
) -> Upload:
    """A pasted sequence: bases, or the first record of FASTA."""
    lines = pasted(content).splitlines()
    if lines and lines[0].startswith(">"):
        name = lines[0][1:].split()[0][:80] if lines[0][1:].split() else name
        ends = [number for number, line in enumerate(lines) if number and line.startswith(">")]
        lines = lines[1 : ends[0]] if ends else lines[1:]
    letters = checked_bases("".join("".join(line.split()) for line in lines), "the sequence", name)
    if not letters:
        raise ValueError("The sequence is empty: paste its bases, A, C, G, T or N.")
    sequences = Sequences([name], [letters])
    trace = trace_model(model, torch.from_numpy(encode(sequences)).to(device), reference=reference)

    def page(target: str | None, settings: PageSettings) -> Bundle:
        options: dict[str, Any] = {"composite": composite, "pruning": pruning, "name": label, **vars(settings)}
        asked = None if target is None else read_target(target)
        return sequence_bundle(model, sequences, target=asked, device=device, trace=trace, **options)

    return Upload(trace, composite_from_text(composite, trace), pruning, page)


def open_text(
    content: bytes,
    model: Any,
    tokenizer: Any,
    *,
    pruning: Pruning | None,
    composite: Composite,
    label: str = "",
    reference: Any = None,
) -> Upload:
    """A pasted text."""
    traced = trace_text(model, tokenizer, pasted(content), reference)

    def page(target: str | None, settings: PageSettings) -> Bundle:
        explained = traced.explain(target=target, composite=composite, pruning=pruning)
        return text_bundle(explained, model=label, **vars(settings))

    def score(number: int | None) -> Any:
        return traced.score_of(int(traced.scores.argmax()) if number is None else number)

    return Upload(traced.trace, composite, pruning, page, score, lambda: text_questions(traced))


def pasted(content: bytes) -> str:
    """The text of a visitor; refused if it is no text, or too long."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("This is no text: paste it, or save the file as UTF-8.") from None
    if len(text) > LONGEST:
        raise ValueError(f"The text has more than {LONGEST:,} letters: paste a part of it.")
    return text
