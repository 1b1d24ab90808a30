"""θ, masses and counts of many rows at once: compiled, and sorted in torch, to the last bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_layers import body
from torch import Tensor

import oracles
from plrp.fast import native, selection

TINY = 2.0**-149  # the smallest float32 denormal
WAYS = ("compiled", "sorted")
compiled = pytest.mark.skipif(not native.available(), reason="no compiled loops here")
ways = pytest.mark.parametrize("way", [pytest.param("compiled", marks=compiled), *WAYS[1:]])

single = st.floats(-(2.0**110), 2.0**110, width=32, allow_subnormal=True)
few = st.sampled_from(
    [0.0, TINY, 3 * TINY, 2.0**-126, 0.10000000149011612, 0.25, 1.0, 1.0000001192092896, 3.0, 2.0**99]
)
signed_few = st.tuples(few, st.sampled_from([1.0, -1.0])).map(lambda t: t[0] * t[1])  # −0.0 too
rows_of_entries = st.one_of(
    st.just([]),
    single.map(lambda v: [v]),  # one entry
    st.tuples(single, st.integers(1, 12)).map(lambda t: [t[0]] * t[1]),  # all equal
    st.lists(signed_few, max_size=24),  # ties
    st.lists(single, max_size=24),  # huge ranges
    st.lists(st.integers(-30, 30).map(float), max_size=30),  # sums that meet p·C exactly
    st.lists(st.floats(-1, 1, width=32), max_size=40),
)
proportions = st.one_of(
    st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.95, 1 - 2**-53, 2**-60]), st.floats(0, 1, exclude_max=True)
)


@contextmanager
def selecting(way: str) -> Iterator[None]:
    """Let one of the two run, whatever the size of the rows."""
    with body("compiled" if way == "compiled" else "torch float32"):
        yield


def parts(row: list[float]) -> tuple[list[float], list[float]]:
    return [v for v in row if v > 0], [-v for v in row if v < 0]


def statistics(rows: list[list[float]], p: float, p_negative: float) -> Tensor:
    """Of rows as they are, sorted if they are short, and of long ones: zeros behind them change nothing."""
    found = []
    for zeros in (0, 70):
        longer = [[*row, *[0.0] * zeros] for row in rows]
        offsets = torch.tensor([0, *np.cumsum([len(row) for row in longer])])
        found.append(selection.statistics(torch.tensor([v for row in longer for v in row]), offsets, p, p_negative))
    if native.available():  # masses that torch adds up depend on the length of the row, in their last bits
        assert torch.equal(*found)
    return found[0]


@ways
@settings(max_examples=150, deadline=None)
@given(st.lists(rows_of_entries, max_size=6), proportions, proportions)
@example([[1.0, 1.0, 1.0, 1.0], [], [-1.0, -1.0, -2.0]], 0.25, 0.5)
@example([[TINY, TINY, 1.0], [-0.0, 0.0], [-TINY, TINY]], 0.5, 0.0)
@example([[2.0**110, TINY, -TINY, -(2.0**110)]], 0.0, 1e-300)
@example([[1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0]], 0.1, 0.1)  # C(1) = 1 = p·C(max), up to how 0.1·10 rounds
def test_statistics_are_the_definition(way: str, rows: list[list[float]], p: float, p_negative: float) -> None:
    with selecting(way):
        found = statistics(rows, p, p_negative).tolist()
    assert len(found) == len(rows)
    for row, (up, down, before_up, before_down, pruned_up, pruned_down, entries, kept) in zip(rows, found, strict=True):
        positive, negative = parts(row)
        assert up == oracles.threshold(positive, p)
        assert down == oracles.threshold(negative, p_negative)
        assert entries == len(positive) + len(negative)
        assert kept == sum(v > up for v in positive) + sum(v > down for v in negative)
        masses = ((positive, up, before_up, pruned_up), (negative, down, before_down, pruned_down))
        for values, theta, before, pruned in masses:
            for mass, expected in ((before, values), (pruned, [v for v in values if v <= theta])):
                exact = sum(map(Fraction, expected), Fraction(0))
                assert abs(Fraction(mass) - exact) <= exact / 2**48


@compiled
@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=8),
    st.integers(0, 2**31),
    proportions,
    proportions,
    st.booleans(),
)
def test_compiled_statistics_are_those_of_torch_over_rows_of_any_lengths(
    sizes: list[int], seed: int, p: float, p_negative: float, quantised: bool
) -> None:
    """Entries of all 2³² bit patterns that are numbers below 2¹²⁰ or, `quantised`, of few values."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-(2**31), 2**31, (sum(sizes),), generator=generator).int().view(torch.float32)
    values = torch.where(values.abs() < 2.0**120, values, 0.0)
    if quantised:
        values = (4 * torch.randn(sum(sizes), generator=generator)).round() / 4
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    found = {}
    for way in WAYS:
        with selecting(way):
            found[way] = selection.statistics(values, offsets, p, p_negative)
    exact = [0, 1, 6, 7]  # θ of both signs, entries and survivors
    for way in WAYS[1:]:
        assert torch.equal(found["compiled"][:, exact], found[way][:, exact]), way
        assert torch.allclose(found["compiled"], found[way], rtol=1e-13, atol=0), way


SIZES = [40_000, 1, 0, 30_000, 9_000]  # enough for several threads
KINDS = ("normal", "lognormal", "quantised", "sparse")


@cache
def long_rows(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(sum(SIZES), generator=generator)
    return {
        "normal": values,
        "lognormal": values.sign() * (6 * values.abs()).exp(),
        "quantised": (values * 8).round() / 8,
        "sparse": torch.where(torch.rand(len(values), generator=generator) < 0.03, values, -0.0),
    }[kind]


@cache
def running_masses(kind: str) -> list[tuple[list[float], list[float]]]:
    """Per row and sign, the entries ascending and C at each, in one exact pass."""
    found = []
    for row in long_rows(kind).split(SIZES):
        for part in parts(row.tolist()):
            entries, c = sorted(set(part)), []
            count = Counter(part)
            finished, exponent, within = 0.0, None, Fraction(0)
            for v in entries:
                if oracles.binary_exponent(v) != exponent:
                    finished, within, exponent = finished + float(within), Fraction(0), oracles.binary_exponent(v)
                within += Fraction(v) * count[v]
                c.append(finished + float(within))
            found.append((entries, c))
    return found


@ways
@pytest.mark.parametrize("kind", KINDS)
def test_statistics_of_long_rows_are_the_definition(way: str, kind: str) -> None:
    """Rows of very different lengths, long enough for several threads; other shares for either sign."""
    values, offsets = long_rows(kind), torch.tensor([0, *SIZES]).cumsum(0)
    for p in (0.0, 0.05, 0.5, 0.95):
        with selecting(way), pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "threads", lambda: 3)
            found = selection.statistics(values, offsets, p, p / 3)
        expected = iter(running_masses(kind))
        for row, stats in zip(values.split(SIZES), found, strict=True):
            for share, theta, (entries, c) in zip((p, p / 3), stats[:2].tolist(), expected, strict=False):
                fits = [v for v, mass in zip(entries[:-1], c, strict=False) if mass <= share * c[-1]]
                assert theta == max(fits, default=0.0)
            assert int(stats[6]) == int(row.count_nonzero())
            assert int(stats[7]) == int(((row > float(stats[0])) | (row < -float(stats[1]))).sum())
        assert next(expected, None) is None


def test_a_share_given_as_an_integer_is_a_number_too() -> None:
    """The compiled loops read floats and integers differently."""
    values, offsets = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0, 3])
    assert torch.equal(selection.statistics(values, offsets, 0, 0), selection.statistics(values, offsets, 0.0, 0.0))


@ways
def test_lambda_is_one_for_a_row_of_which_nothing_is_pruned(way: str) -> None:
    with selecting(way):
        stats = statistics([[1.0, 5.0, -3.0], [5.0, -3.0], [], [1.0, 9.0]], 0.2, 0.2)
    scales = torch.stack(selection.cut_of(stats).scales, 1)
    assert scales[:, 1].tolist() == [1.0] * 4
    assert scales[:, 0].tolist() == [6 / 5, 1.0, 1.0, 10 / 9]
