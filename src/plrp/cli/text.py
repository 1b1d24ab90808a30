"""`plrp text`: a sentence in, coloured tokens out. Imports argparse only; the rest when it runs."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

from plrp.errors import UsageError, usage

from .arguments import EXIT_CODES, RAW, check_composite, count, options_wording, proportion
from .explain import add_method, add_page_size, check_page_size, page_size

PICTURES = (".svg", ".png", ".pdf")
FORMATS = (*PICTURES, ".html", ".csv", ".json")  # of plrp.text, whose import takes seconds

DESCRIPTION = """\
Explains what a language model makes of a text: which tokens spoke for its answer (red), which against it (blue).
What the model answers depends on its head: the class of the text, its next token, or the one behind a mask.
"""

EPILOG = f"""\
examples:
  plrp text "The capital of France is" --model SmolLM2.gguf --target " Paris"
  plrp text "The capital of France is" --model SmolLM2.gguf --target " Paris" --against " London" -o why.svg
  plrp text "The capital of France is" --model SmolLM2.gguf --span 5        five tokens, each explained
  plrp text "A film to forget." --model my-bert/ --target negative -p 0.1 --unit position
  plrp text "Paris is the [MASK] of France." --model my-bert/

Most tokens begin with their space: " Paris", not "Paris". A token's relevance is the sum over its embedding's channels;
the colours are scaled to the strongest token.

{EXIT_CODES}"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `plrp text`."""
    parser = subparsers.add_parser(
        "text",
        help="explain texts: which tokens made a language model say this",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=RAW,
    )
    parser.add_argument("text", metavar="TEXT", help="what the model reads; - reads it from standard input")
    parser.add_argument(
        "--model",
        required=True,
        metavar="PATH",
        help="folder as save_pretrained writes it, or a .gguf file; nothing is downloaded",
    )
    what = parser.add_argument_group("answer")
    what.add_argument("--target", metavar="ANSWER", help="class (name or number) or token (default: the most probable)")
    what.add_argument("--against", metavar="ANSWER", help="explain the target's score minus this one's")
    what.add_argument(
        "--span",
        metavar="N|TEXT",
        help="explain each of the next N tokens that the model writes, or of a text that goes on from TEXT",
    )
    how = parser.add_argument_group("explanation")
    how.add_argument(
        "-p", type=proportion, metavar="P", help="share of relevance to prune per layer, 0 ≤ p < 1 (default: plain LRP)"
    )
    add_method(
        how,
        "where pruned relevance goes: survivors are scaled (lambda), or the layer's rule redistributes it, positive and"
        " negative contributions apart (M-sign) or not, as in the paper (M)",
    )
    how.add_argument(
        "--unit",
        choices=("auto", "neuron", "position", "channel"),
        default="auto",
        help="what is pruned as a whole: neurons, tokens (position), or channels (default: auto: tokens in models with "
        "attention)",
    )
    how.add_argument("--composite", default="attnlrp", metavar="NAME", help="attnlrp (default) or cp-lrp")
    out = parser.add_argument_group("output")
    out.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        help="coloured text as .svg, .png or .pdf, numbers as .csv or .json; a page with p as a slider as .html "
        "(minutes with a language model)",
    )
    add_page_size(out, "answers")
    out.add_argument("--words", action="store_true", help="sum the relevance by word")
    out.add_argument(
        "--layers", metavar="FILE", help="picture of the tokens that survive at each depth, and of the heads"
    )
    out.add_argument("--columns", type=count, metavar="N", help="width of the printed text (default: the terminal's)")
    out.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Explains the text, prints it, and saves what was asked for."""
    if arguments.span is not None and (arguments.target or arguments.against or arguments.layers):
        raise UsageError("--span explains its own tokens: leave out --target, --against and --layers.")
    if arguments.p is None and (arguments.method != "lambda" or arguments.unit != "auto"):
        raise UsageError("--method and --unit go with -p.")
    check_composite(arguments.composite)
    if not Path(arguments.model).exists():  # before torch is imported, which takes seconds
        raise UsageError(f"{arguments.model} does not exist: give a folder with config.json, or a .gguf file.")
    for option, file, suffixes in (("-o", arguments.out, FORMATS), ("--layers", arguments.layers, PICTURES)):
        if file and Path(file).suffix.lower() not in suffixes:
            raise UsageError(f"{option} {file} should end in {', '.join(suffixes)}.")
    check_page_size(arguments, bool(arguments.out) and Path(arguments.out).suffix.lower() == ".html", "answers")
    if arguments.span == "0":
        raise UsageError("--span explains from 1 token on.")
    from plrp import text
    from plrp.files import save_figure
    from plrp.health import unwarned
    from plrp.pruning import Pruning
    from plrp.text.text_attribution import check_words

    told: set[str] = set()

    def tell(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in told:
            told.add(str(message))
            say(arguments, f"note: {message}")

    given = sys.stdin.read().rstrip("\n") if arguments.text == "-" else arguments.text
    with usage(), warnings.catch_warnings():
        warnings.showwarning = tell
        pruning = None
        if arguments.p is not None:
            pruning = Pruning(p=arguments.p, redistribution=arguments.method, unit=arguments.unit)
        say(arguments, f"loading {arguments.model} …")
        begun = time.monotonic()
        answers = arguments.target, arguments.against
        model, tokenizer = text.load(arguments.model, check=lambda *of: check_words(*of, given, *answers))
        say(arguments, f"loaded in {time.monotonic() - begun:.0f} s; explaining …")
        begun = time.monotonic()
        span = int(arguments.span) if arguments.span and arguments.span.isdecimal() else arguments.span
        with unwarned():  # it is printed below
            found = text.explain(
                model,
                tokenizer,
                given,
                target=arguments.target,
                against=arguments.against,
                span=span,
                composite=arguments.composite,
                pruning=pruning,
                layers=bool(arguments.layers),
            )
    say(arguments, f"explained in {time.monotonic() - begun:.1f} s")
    if not arguments.quiet:
        print(found.show(by_word=arguments.words, columns=arguments.columns))
        if span is None:
            print(*found.remarks(options_wording()), sep="\n")
    if arguments.layers:
        save_figure(found.plot_layers(), arguments.layers, dpi=150)
        say(arguments, f"saved {arguments.layers}")
    if arguments.out and Path(arguments.out).suffix.lower() == ".html":
        from plrp.view import Page, text_bundle

        options = page_size(arguments) | {"show_progress": False if arguments.quiet else None}
        Page(text_bundle(found, model=Path(arguments.model).name, **options)).save(arguments.out)
        say(arguments, f"saved {arguments.out}")
    elif arguments.out:
        found.save(arguments.out, by_word=arguments.words)
        say(arguments, f"saved {arguments.out}")
    return 0


def say(arguments: argparse.Namespace, message: str) -> None:
    """A line about the work itself, on standard error."""
    if not arguments.quiet:
        print(f"plrp: {message}", file=sys.stderr, flush=True)
