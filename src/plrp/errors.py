"""What plrp refuses, each with its reason and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class UnsupportedOperation(RuntimeError):
    """An operation on the way of the relevance for which no rule is known.

    The message names the operation, the nearest named layer before it, and how to register a rule for it
    with `plrp.register_rule`.
    """


class TraceError(RuntimeError):
    """A forward pass that cannot be recorded faithfully; the message says why and what to do."""


class UsageError(ValueError):
    """What was asked for cannot be done as it was given: the value of an option, or a file, model or data it names.

    The message says what to give instead. Commands end with exit code 2.
    """

    exit_code = 2


@contextmanager
def usage() -> Iterator[None]:
    """For what a command does before its work begins: what is refused inside is wrong usage."""
    try:
        yield
    except (ValueError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        if hasattr(error, "exit_code"):
            raise
        raise UsageError(str(error)) from error
