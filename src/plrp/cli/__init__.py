"""The `plrp` command, and its sub-commands in files by theme.

A function `add_…(subparsers)` adds the parser of a sub-command, whose default `run` is a function from the parsed
arguments to an exit code. Such a file imports argparse only: `plrp --help` works, and is quick, whatever extras are
installed. torch itself is imported when a command runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import Any, NoReturn

from plrp.progress import keep_interrupts
from plrp.spelling import printable

from .arguments import EXIT_CODES, say

DESCRIPTION = """\
Explains predictions of PyTorch models by layer-wise relevance propagation (LRP), and prunes the relevance on
its way down (PLRP), so that an explanation is sparse.
"""

EPILOG = """\
start here:
  plrp demo                     photographs and DNA, explained by small networks: a report with sliders, in ./demo
  plrp COMMAND --help           what a command does, with an example

from Python:
  import plrp
  plrp.explain(model, inputs, pruning=plrp.Pruning(p=0.15)).relevance
"""


class Parser(argparse.ArgumentParser):
    """The parser of a command: its help keeps line breaks and ends with the exit codes; errors are one sentence."""

    def __init__(self, *, description: str = "", epilog: str = "", **keywords: Any) -> None:
        description = description if "\n" in description else textwrap.fill(description, 110)
        if "exit codes:" not in epilog:
            epilog = f"{epilog.rstrip()}\n\n{EXIT_CODES}"
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, epilog=epilog, formatter_class=form, **keywords)

    def error(self, message: str) -> NoReturn:
        """Print and leave."""
        self.exit(2, f"{self.prog}: error: {printable(message)} (`{self.prog} --help` lists the options)\n")


class Version(argparse.Action):
    """`--version`: plrp's and torch's, and which code explains here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print and leave. torch is imported here: the parser is built without it."""
        import torch

        from plrp import __version__, engine

        print(f"plrp {__version__}, torch {torch.__version__}; {engine.status()}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command, with all sub-commands."""
    from . import exemplars, explain, genomics, studies, text, tune, view

    parser = Parser(prog="plrp", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action=Version, nargs=0, help="show the version, and which code explains here")
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    studies.add_demo(subparsers)
    for module in (explain, view, genomics, text, exemplars, tune):
        module.add_parser(subparsers)
    studies.add_sweep(subparsers)
    studies.add_report(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (`EXIT_CODES`)."""
    debug = False
    try:
        parser = build_parser()
        parsed = parser.parse_args(arguments)
        debug = parsed.debug
        if not hasattr(parsed, "run"):
            parser.print_help()
            return 2
        with keep_interrupts():
            return int(parsed.run(parsed))
    except KeyboardInterrupt:
        say("plrp: interrupted")
        return 130
    except BrokenPipeError:
        # The reader of our output (`| head`) has left; Python would complain again while flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        say(f"plrp: {in_words(error)}")
        if not isinstance(error, (ImportError, OSError, ValueError)):
            say("plrp: `plrp --debug ...` shows where this happened")
        return int(getattr(error, "exit_code", 1))


def in_words(error: Exception) -> str:
    """An error in one sentence: the operating system's after its file, a model's own with its type and line."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    place = None if type(error).__module__.startswith("plrp") else _line_of_the_user(error)
    kind = type(error).__name__
    if place is not None:
        return f"{kind} in {place.filename}, line {place.lineno} (`{place.line}`): {error}"
    return str(error) or kind


def _line_of_the_user(error: Exception) -> FrameSummary | None:
    """The innermost line of code of the user's, such as a model's `forward`, that an error came through."""
    installed = tuple({str(Path(path).resolve()) for path in (sys.prefix, sys.base_prefix, Path(__file__).parents[1])})
    frames = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
    return next((f for f in reversed(frames) if not str(Path(f.filename).resolve()).startswith(installed)), None)
