"""Values of options that several commands read: numbers, shares, shards. Each says what it should have been."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1")
    return int(text)


def proportion(text: str) -> float:
    """A share of mass, 0 ≤ p < 1."""
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"p is a share of mass, 0 ≤ p < 1, not {text}")
    return value


def gain(text: str) -> float:
    """A sparsity gain, greater than 0."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"the gain is a positive number, not {text}")
    return value


def shard(text: str) -> tuple[int, int]:
    """`2/8`: the second of eight."""
    try:
        index, number = (int(part) for part in text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write i/n such as 2/8") from None
    if not 1 <= index <= number:
        raise argparse.ArgumentTypeError(f"{text!r}: i runs from 1 to n")
    return index, number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
