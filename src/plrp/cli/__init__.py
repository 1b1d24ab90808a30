"""The `plrp` command. Each part of the package brings its own sub-command; this file only calls them up.

A sub-command is a module with `add_parser(subparsers)`, which adds its parser and sets `run`, a function from
the parsed arguments to an exit code. Such a module imports argparse only: `plrp --help` works, and is quick,
whatever extras are installed. torch itself is imported when a command runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

COMMANDS = ("plrp.cli.explain", "plrp.cli.genomics", "plrp.cli.sweep")

DESCRIPTION = """\
Explains predictions of PyTorch models by layer-wise relevance propagation (LRP), and prunes the relevance on
its way down (PLRP), so that an explanation is sparse.
"""

EPILOG = """\
start here:
  plrp demo                     from planted motifs to a report that finds them, in ./demo
  plrp COMMAND --help           what a command does, with an example

from Python:
  import plrp
  plrp.explain(model, inputs, pruning=plrp.Pruning(p=0.15)).relevance

exit codes of every command:
  0 done; 1 failed while working; 2 wrong usage: an option, or what it names, cannot be used;
  3 done but for parts it names; 130 interrupted
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command, with the sub-commands of every part of the package."""
    from plrp import __version__

    parser = argparse.ArgumentParser(
        prog="plrp",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"plrp {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    add_demo(subparsers)
    for module in COMMANDS:
        importlib.import_module(module).add_parser(subparsers)
    return parser


def add_demo(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `plrp demo`, which is the genomics demo: it needs no data but what it makes itself."""
    parser = subparsers.add_parser(
        "demo",
        help="simulate DNA with planted motifs, train, explain, write a report",
        description="Simulates DNA sequences with planted motifs, trains two CNNs, explains them with LRP and PLRP, "
        "and writes a report to read in a browser. Nothing is downloaded; the same seed gives the same report.",
        epilog="example:\n  plrp demo --out demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="default: ./demo")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything random (default: 0)")

    def run(arguments: argparse.Namespace) -> int:
        from plrp.experiments import demo

        print(f"written: {demo.run(arguments.out, seed=arguments.seed).resolve()}")
        return 0

    parser.set_defaults(run=run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; exit codes: 0 done, 1 failed while working, 2 wrong usage, 3 done but for parts it
    names, 130 interrupted.
    """
    debug = False
    try:
        parser = build_parser()
        parsed = parser.parse_args(arguments)
        debug = parsed.debug
        if not hasattr(parsed, "run"):
            parser.print_help()
            return 2
        return int(parsed.run(parsed))
    except KeyboardInterrupt:
        print("plrp: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output (`| head`) has left; Python would complain again while flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        print(f"plrp: {str(error) or type(error).__name__}", file=sys.stderr)
        if not isinstance(error, (ImportError, OSError, ValueError)):
            print("plrp: `plrp --debug ...` shows where this happened", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))
