"""`plrp text`: a sentence in, coloured tokens out. Imports argparse only; the rest when it runs."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from plrp.errors import UsageError, usage
from plrp.settings import check_composite, count, reference_named

from .arguments import Shown, add_options, add_pruning, chosen, m_remedy, pruning_of, say, say_price, tell, test_options
from .explain import page_options, page_size

PICTURES = (".svg", ".png", ".pdf")
FORMATS = (*PICTURES, ".html", ".csv", ".json")  # of plrp.text, whose import takes seconds

DESCRIPTION = """\
Explains what a language model makes of a text: which tokens spoke for its answer (red), which against it (blue).
The head of the model decides what it answers: the class of the text, the next token, or the token behind a mask.
"""

EPILOG = """\
examples:
  plrp text "The capital of France is" --model SmolLM2.gguf --target " Paris"
  plrp text "The capital of France is" --model SmolLM2.gguf --target " Paris" --against " London" -o why.svg
  plrp text "The capital of France is" --model SmolLM2.gguf --span 5        five tokens, each explained
  plrp text "A film to forget." --model my-bert/ --target negative -p 0.1 --unit position
  plrp text "Paris is the [MASK] of France." --model my-bert/
  plrp text "A film to forget." --model my-bert/ --reference mask        what its words add to a text without words

Most tokens begin with their space: " Paris", not "Paris". A token's relevance is the sum over its embedding's channels;
the colours are scaled to the strongest token.
"""


ANSWER: Shown = {
    "--target ANSWER": "class (name or number) or token to explain (default: the most probable)",
    "--against ANSWER": "explain the target's score minus the score of this answer",
    "--span N|TEXT": "explain several tokens, each by itself: the next N that the model writes, or a TEXT that "
    "continues",
}

EXPLANATION: Shown = {
    "--composite NAME": "attnlrp (default; against a reference rescale) or cp-lrp",
    "--reference NAME": (
        "explain why the score is not that of the same text with every word masked, all of the difference: mask (the "
        "tokenizer's mask token), or mask:103 (the token with this id, for models without one); special tokens stay",
        reference_named("mask"),
    ),
}

OUTPUT: Shown = {
    **test_options("the map"),
    "-o --out FILE": "coloured text (.svg, .png, .pdf), numbers (.csv, .json), or a page with p as a slider (.html: "
    "this takes minutes with a language model)",
    **page_options("answers"),
    "--words": "sum the relevance by word",
    "--layers FILE": "picture of the tokens that survive at each depth, and of the heads",
    "--columns N": ("width of the printed text (default: the terminal's)", count),
    "-q --quiet": "print nothing but errors",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `plrp text`."""
    parser = subparsers.add_parser(
        "text",
        help="explain texts: which tokens made a language model say this",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("text", metavar="TEXT", help="the text that the model reads; - takes it from standard input")
    model_help = "folder as save_pretrained writes it, or a .gguf file; nothing is downloaded"
    parser.add_argument("--model", required=True, metavar="PATH", help=model_help)
    add_options(parser.add_argument_group("answer"), ANSWER)
    how = parser.add_argument_group("explanation")
    add_pruning(how, default=None, offered=("redistribution", "unit"))
    add_options(how, EXPLANATION)
    add_options(parser.add_argument_group("output"), OUTPUT)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Explains the text, prints it, and saves the files that were asked for."""
    check(arguments)
    from plrp import text
    from plrp.balance import unwarned
    from plrp.text.text_attribution import check_words

    notes: set[str] = set()

    def note(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in notes:
            notes.add(str(message))
            say(f"plrp: note: {message}", arguments.quiet)

    given = sys.stdin.read().rstrip("\n") if arguments.text == "-" else arguments.text
    with usage(), warnings.catch_warnings():
        warnings.showwarning = note
        pruning = pruning_of(arguments)
        say(f"plrp: loading {arguments.model} …", arguments.quiet)
        begun = time.monotonic()
        answers = arguments.target, arguments.against
        model, tokenizer = text.load(arguments.model, check=lambda *of: check_words(*of, given, *answers))
        say(f"plrp: loaded in {time.monotonic() - begun:.0f} s; explaining …", arguments.quiet)
        begun = time.monotonic()
        span = int(arguments.span) if arguments.span and arguments.span.isdecimal() else arguments.span
        with unwarned():  # the remarks say it
            asked = chosen(arguments, "target", "against", "composite", "reference") | {
                "layers": bool(arguments.layers)
            }
            explanation = text.explain(model, tokenizer, given, span=span, pruning=pruning, **asked)
    say(f"plrp: explained in {time.monotonic() - begun:.1f} s", arguments.quiet)
    if arguments.test:
        say_price(arguments.budget, arguments.quiet)
        with usage():
            explanation.test(arguments.budget, show_progress=False if arguments.quiet else None)
    if not arguments.quiet:
        print(explanation.show(by_word=arguments.words, columns=arguments.columns))  # its words are visible
        if span is None:
            tell("\n".join(explanation.remarks(m_remedy("--method"))))
    save(explanation, arguments)
    return 0


def check(arguments: argparse.Namespace) -> None:
    """Refuse wrong options before torch is imported, which takes seconds."""
    if arguments.span is not None and (arguments.target or arguments.against or arguments.layers):
        raise UsageError("--span explains its own tokens: leave out --target, --against and --layers.")
    if arguments.span is not None and arguments.test:
        raise UsageError("--test asks about one answer: leave out --span, or name the answer with --target.")
    if arguments.p is None and (arguments.redistribution != "lambda" or arguments.unit != "auto"):
        raise UsageError("--method and --unit go with -p.")
    if arguments.composite is not None:
        check_composite(arguments.composite, arguments.reference)
    if not Path(arguments.model).exists():
        raise UsageError(f"{arguments.model} does not exist: give a folder with config.json, or a .gguf file.")
    for option, file, suffixes in (("-o", arguments.out, FORMATS), ("--layers", arguments.layers, PICTURES)):
        if file and Path(file).suffix.lower() not in suffixes:
            raise UsageError(f"{option} {file} should end in {', '.join(suffixes)}.")
    page_size(arguments, "answers", bool(arguments.out) and Path(arguments.out).suffix.lower() == ".html")
    if arguments.span == "0":
        raise UsageError("--span explains from 1 token on.")


def save(explanation: Any, arguments: argparse.Namespace) -> None:
    """Write the files that --layers and -o name."""
    from plrp.files import save_figure

    if arguments.layers:
        save_figure(explanation.plot_layers(), arguments.layers, dpi=150)
        say(f"plrp: saved {arguments.layers}", arguments.quiet)
    if not arguments.out:
        return
    if Path(arguments.out).suffix.lower() == ".html":
        from plrp.view import Page, text_bundle

        options = page_size(arguments, "answers") | {"show_progress": False if arguments.quiet else None}
        Page(text_bundle(explanation, model=Path(arguments.model).name, **options)).save(arguments.out)
    else:
        explanation.save(arguments.out, by_word=arguments.words)
    say(f"plrp: saved {arguments.out}", arguments.quiet)
