"""What plrp refuses, each with its reason and the remedy."""

from __future__ import annotations


class UnsupportedOperation(RuntimeError):
    """An operation on the way of the relevance for which no rule is known.

    The message names the operation, the nearest named layer before it, and how to register a rule for it
    with `plrp.register_rule`.
    """


class TraceError(RuntimeError):
    """A forward pass that cannot be recorded faithfully; the message says why and what to do."""


class UsageError(ValueError):
    """A command that cannot be meant as it was given; the message says what to write instead."""

    exit_code = 2
