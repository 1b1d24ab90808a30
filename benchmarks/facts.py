"""Does relevance lie on the subject of a fact? SmolLM2-135M, twenty prompts, each with a contrast.

    python benchmarks/facts.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf

Each prompt names a subject, on which the answer depends, and a second answer that belongs to another subject. The
difference of both scores is explained. A method finds the subject where the mean relevance of the subject's tokens
exceeds that of the others. Writes the table and the picture of docs/how-to/text.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import plrp
import plrp.text
from plrp.balance import unwarned
from plrp.text.coloured_text import Sentence, to_svg

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "how-to" / "text.md"
PICTURE = ROOT / "docs" / "assets" / "text-facts.svg"
SHOWN = ("attnlrp, p = 0.1 by token", 8)
"""Which method the picture shows, and how many of the prompts."""

FACTS = """\
The capital of [France] is| Paris| London
The capital of [Germany] is| Berlin| Paris
The capital of [Italy] is| Rome| Madrid
The capital of [Japan] is| Tokyo| London
The capital of [Spain] is| Madrid| Rome
The capital of [Russia] is| Moscow| Berlin
The capital of [England] is| London| Paris
The capital of [Greece] is| Athens| Rome
People who live in [France] speak| French| German
People who live in [Germany] speak| German| French
People who live in [Mexico] speak| Spanish| Italian
People who live in [Italy] speak| Italian| Spanish
The [Eiffel Tower] is located in the city of| Paris| London
The [Colosseum] is located in the city of| Rome| Paris
[Albert Einstein] developed the theory of| relativity| evolution
[Charles Darwin] developed the theory of| evolution| relativity
When [water] freezes, it turns into| ice| gas
In summer, the colour of the [grass] is| green| blue
In summer, the colour of the [sky] is| blue| green
The opposite of [hot] is| cold| small
"""


class Fact(NamedTuple):
    """A prompt with its subject, the answer, and one that belongs to another subject."""

    text: str
    subject: tuple[int, int]  # characters
    answer: str
    other: str


def facts() -> list[Fact]:
    found = []
    for line in FACTS.splitlines():
        prompt, answer, other = line.split("|")
        match = re.search(r"\[(.+)\]", prompt)
        assert match is not None
        text = prompt.replace("[", "").replace("]", "")
        found.append(Fact(text, (match.start(), match.end() - 2), answer, other))
    return found


def subject_tokens(fact: Fact, tokens: tuple[plrp.text.Token, ...]) -> Tensor:
    """Which tokens hold a letter of the subject."""
    inside, read = [], 0
    for token in tokens:
        end = read + (0 if token.special else len(token.text))
        begin = end - (0 if token.special else len(token.text.lstrip()))
        inside.append(begin < fact.subject[1] and end > fact.subject[0])
        read = end
    return torch.tensor(inside)


def gradient_times_input(passed: plrp.text.TracedText, fact: Fact) -> Tensor:
    model = passed.model
    ids = torch.tensor([[token.id for token in passed.tokens]])
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    logits = model(inputs_embeds=embedded, use_cache=False).logits[0, -1]
    (logits[passed.number(fact.answer)] - logits[passed.number(fact.other)]).backward()
    return (embedded * embedded.grad).detach().sum(-1)[0]


def methods() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    prunings = {
        "LRP": None,
        "p = 0.1 by neuron": plrp.Pruning(p=0.1, unit="neuron"),
        "p = 0.1 by token": plrp.Pruning(p=0.1, unit="position"),
    }
    for composite in ("attnlrp", "cp-lrp"):
        for name, pruning in prunings.items():

            def explain(passed: Any, fact: Fact, composite: str = composite, pruning: Any = pruning) -> Any:
                return passed.explain(target=fact.answer, against=fact.other, composite=composite, pruning=pruning)

            found[f"{composite}, {name}"] = explain
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="SmolLM2 as a GGUF file or a folder")
    parser.add_argument("--limit", type=int, default=None, help="the first prompts only; writes nothing")
    parser.add_argument("--ablate", action="store_true", help="only print the effects of parts on the first prompt")
    arguments = parser.parse_args()
    model, tokenizer = plrp.text.load(arguments.model)
    if arguments.ablate:
        text, _, answer, other = facts()[0]
        passed = plrp.text.trace(model, tokenizer, text)
        how = {"composite": "attnlrp", "pruning": plrp.Pruning(p=0.1)}
        print(passed.explain(target=answer, against=other, **how).ablate())
        return 0
    rows: dict[str, list[tuple[bool, bool, float]]] = {}
    shown, known, last, first = [], 0, 0, 0
    chosen = facts()[: arguments.limit]
    for fact in chosen:
        passed = plrp.text.trace(model, tokenizer, fact.text)
        subject = subject_tokens(fact, passed.tokens)
        known += bool(passed.scores[passed.number(fact.answer)] > passed.scores[passed.number(fact.other)])
        results: dict[str, Tensor] = {"gradient × input": gradient_times_input(passed, fact)}
        with unwarned():
            for name, explain in methods().items():
                found = explain(passed, fact)
                results[name] = found.relevance
                if name.endswith("LRP"):  # of the answer alone, without the contrast
                    alone = passed.explain(target=fact.answer, composite=name.split(",")[0]).relevance
                    last += name.startswith("attnlrp") and int(alone.argmax()) == len(alone) - 1
                    first += name.startswith("cp-lrp") and int(alone.argmax()) == 0
                if name == SHOWN[0] and len(shown) < SHOWN[1]:
                    shown.append(found)
        for name, relevance in results.items():
            exceeds = float(relevance[subject].mean()) > float(relevance[~subject].mean())
            share = float(relevance[subject].abs().sum() / relevance.abs().sum())
            rows.setdefault(name, []).append((exceeds, bool(subject[relevance.argmax()]), share))
        print(fact.text, {name: results[name].tolist() for name in ("attnlrp, LRP",)}, file=sys.stderr, flush=True)
    count = len(chosen)
    lines = [
        f"Of {count} prompts the model prefers the answer in {known}.",
        "",
        "| method | subject's mean exceeds the others' | strongest token is the subject's | its share of Σ\\|R\\| |",
        "|---|---|---|---|",
    ]
    for name, found in rows.items():
        exceeds, strongest = (sum(one[column] for one in found) for column in (0, 1))
        share = sum(one[2] for one in found) / count
        lines.append(f"| {name} | {exceeds} of {count} | {strongest} of {count} | {share:.2f} |")
    lines += [
        "",
        f"Without the other answer, the strongest token under `attnlrp` is the last one in {last} of {count} "
        f"prompts, and under `cp-lrp` the first one in {first}.",
    ]
    print("\n".join(lines))
    if arguments.limit is None:
        text = PAGE.read_text("utf-8")
        begin, end = "<!-- benchmarks/facts.py begins -->", "<!-- benchmarks/facts.py ends -->"
        before, after = text.split(begin)[0], text.split(end)[1]
        PAGE.write_text(before + "\n".join([begin, *lines, end]) + after, "utf-8")
        captioned = [Sentence(f"{one.target!r} rather than {one.against!r}", one.sentences()[0].cells) for one in shown]
        PICTURE.write_text(to_svg(captioned, "What speaks for the answer, and what against it"), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
