"""The errors and warnings of plrp: each message gives the reason and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class UnsupportedOperation(RuntimeError):
    """An operation on the way of the relevance for which no rule is known.

    The message names the operation, its entry on the tape, the nearest named layer before it, and the remedy: mostly a
    rule of your own, see `plrp.rules_for`.
    """


class TraceError(RuntimeError):
    """A forward pass that cannot be recorded faithfully; the message gives the reason and the remedy."""


class BrokenArithmetic(UserWarning):
    """An explanation whose arithmetic broke: relevance is not finite, or PLRP-M divided by sums that nearly cancel.

    The message gives the remedy; `Explanation.balance` has the figures and the layer where it happened.
    """


class UsageError(ValueError):
    """A wrong value of an option, or a wrong file, model or data that an option names.

    The message says which value to give instead. Commands end with exit code 2.
    """

    exit_code = 2


class NotWritable(UsageError, PermissionError):
    """A place for results that cannot be written to; the message names it."""


class NotInstalled(ImportError):
    """A package that is needed and missing; the message says how to get it."""

    exit_code = 2


def not_installed(need: str, extra: str) -> NotInstalled:
    """The error for a missing package of an extra: `need` is the sentence that names the package."""
    return NotInstalled(f"{need}: pip install 'plrp[{extra}]' (in a clone: pip install '.[{extra}]')")


@contextmanager
def needed(need: str, extra: str) -> Iterator[None]:
    """For the import of a package of an extra: the error of `not_installed` where it is missing."""
    try:
        yield
    except ImportError as error:
        raise not_installed(need, extra) from error


@contextmanager
def usage() -> Iterator[None]:
    """For the part of a command before its work begins: every refusal inside is wrong usage."""
    try:
        yield
    except (ValueError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        if hasattr(error, "exit_code"):
            raise
        raise UsageError(str(error)) from error
