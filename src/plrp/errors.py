"""What plrp refuses or warns of, each with its reason and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class UnsupportedOperation(RuntimeError):
    """An operation on the way of the relevance for which no rule is known.

    The message names the operation, its entry on the tape, the nearest named layer before it, and the remedy: mostly a
    rule of your own, see `plrp.rules_for`.
    """


class TraceError(RuntimeError):
    """A forward pass that cannot be recorded faithfully; the message says why and what to do."""


class UnhealthyExplanation(UserWarning):
    """An explanation that should not be believed as it is: its relevance has exploded or vanished, or is not finite.

    The message says which and what to do; `Explanation.health` has the figures and the layer where it happened.
    """


class UsageError(ValueError):
    """What was asked for cannot be done as it was given: the value of an option, or a file, model or data it names.

    The message says what to give instead. Commands end with exit code 2.
    """

    exit_code = 2


class NotWritable(UsageError, PermissionError):
    """A place for results that cannot be written to; the message names it."""


class NotInstalled(ImportError):
    """A package that what was asked for needs; the message says how to get it."""

    exit_code = 2


def not_installed(need: str, extra: str) -> NotInstalled:
    """What to raise where a package of an extra is missing: `need` is the sentence that names it."""
    return NotInstalled(f"{need}: pip install 'plrp[{extra}]' (in a clone: pip install '.[{extra}]')")


@contextmanager
def usage() -> Iterator[None]:
    """For what a command does before its work begins: what is refused inside is wrong usage."""
    try:
        yield
    except (ValueError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        if hasattr(error, "exit_code"):
            raise
        raise UsageError(str(error)) from error
