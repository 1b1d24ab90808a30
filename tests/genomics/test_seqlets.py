"""Seqlets, the patterns they form, and their names."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plrp.genomics import (
    encode,
    find_patterns,
    find_seqlets,
    jaspar,
    jaspar_motifs,
    match_motifs,
    match_seqlets,
    simulate,
)


def slow_seqlets(values: np.ndarray, max_gap: int, min_length: int, smooth: int) -> list[tuple[int, int, int, float]]:
    """Base by base: open at a survivor; close when more than `max_gap` bases in a row hold nothing, or when the sum of
    the `smooth` bases around a survivor has another sign than it had.
    """
    found = []

    def close(s: int, start: int, last: int) -> None:
        if last + 1 - start >= min_length:
            found.append((s, start, last + 1, float(values[s, start : last + 1].sum())))

    for s, row in enumerate(values):
        start = last = None
        sign = 0.0
        for i in range(len(row) + max_gap + 2):
            if i < len(row) and row[i] != 0:
                here = np.sign(row[max(0, i - smooth // 2) : i + smooth // 2 + 1].sum())
                if start is not None and here * sign < 0:
                    close(s, start, last)
                    start = None
                sign = here if start is None or here != 0 else sign
                start, last = (i if start is None else start), i
            elif start is not None and i - last > max_gap:
                close(s, start, last)
                start = None
    return found


@settings(deadline=None)
@given(
    arrays(np.float64, (3, 20), elements=st.sampled_from([0.0, 0.0, 1.0, -2.0])),
    st.integers(0, 3),
    st.integers(1, 6),
    st.sampled_from([1, 3, 5]),
)
def test_seqlets_restated(values: np.ndarray, max_gap: int, min_length: int, smooth: int) -> None:
    found = find_seqlets(values, max_gap=max_gap, min_length=min_length, smooth=smooth)
    rows = list(zip(found.sequence, found.start, found.end, found.score, strict=True))
    assert [tuple(map(float, row)) for row in rows] == [
        tuple(map(float, row)) for row in slow_seqlets(values, max_gap, min_length, smooth)
    ]


def test_what_speaks_for_and_what_speaks_against_are_two_seqlets() -> None:
    for_it, against = np.array([2.0, 3.0, -0.5, 3.0, 2.0, 1.0]), np.array([-1.0, -3.0, 0.5, -3.0, -2.0, -2.0])
    found = find_seqlets([np.concatenate([for_it, against, for_it])])
    assert found.start.tolist() == [0, 6, 12]  # the single base of the other sign cuts neither
    assert np.sign(found.score).tolist() == [1, -1, 1]


@settings(deadline=None)
@given(arrays(np.float64, (2, 30), elements=st.sampled_from([0.0, 1.0, 2.0, -1.0, -3.0])))
def test_unsmoothed_a_seqlet_holds_one_sign(values: np.ndarray) -> None:
    found = find_seqlets(values, min_length=1, smooth=1)
    for s, start, end in zip(found.sequence, found.start, found.end, strict=True):
        assert abs(values[s, start:end].sum()) == np.abs(values[s, start:end]).sum()
    assert np.abs(found.score).sum() == np.abs(values).sum()


def test_relevance_is_smoothed_over_an_odd_number_of_bases() -> None:
    for smooth in (0, 4):
        with pytest.raises(ValueError, match="an odd number of bases"):
            find_seqlets(np.ones((1, 9)), smooth=smooth)


@pytest.fixture(scope="module")
def planted():
    """Sequences whose 'relevance' is the planted truth with a little unevenness: patterns must come back."""
    data = simulate(120, motifs=["TAL1::TCF3", "SPI1"], orientation="both", seed=1, length=80)
    rng = np.random.default_rng(0)
    return data, data.onehot(), data.mask * rng.uniform(0.5, 1.5, data.mask.shape)


def test_patterns_come_back_as_the_motifs_that_were_planted(planted) -> None:
    data, onehot, relevance = planted
    patterns = find_patterns(find_seqlets(relevance), onehot, relevance, min_count=20)
    assert len(patterns) == 2
    for motif in data.motifs:
        best = max(
            np.corrcoef(_best_overlap(p.motif.probabilities, m.probabilities), m.probabilities.ravel())[0, 1]
            for p in patterns
            for m in (motif, motif.reverse_complement())
        )
        assert best > 0.9


def _best_overlap(pattern: np.ndarray, motif: np.ndarray) -> np.ndarray:
    """The window of the pattern (padded) most like the motif."""
    width = motif.shape[1]
    padded = np.pad(pattern, ((0, 0), (width, width)), constant_values=0.25)
    windows = [padded[:, k : k + width] for k in range(padded.shape[1] - width + 1)]
    return max(windows, key=lambda w: float((w * motif).sum())).ravel()


def test_patterns_are_the_same_every_time(planted) -> None:
    _, onehot, relevance = planted
    one, two = (find_patterns(find_seqlets(relevance), onehot, relevance) for _ in range(2))
    assert [p.motif.consensus for p in one] == [p.motif.consensus for p in two]


def test_too_few_seqlets_make_no_pattern() -> None:
    onehot = encode(["ACGTACGTAC"] * 3)
    assert find_patterns(find_seqlets(np.ones((3, 10))), onehot, np.ones((3, 10))) == []


def test_relevance_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"axes \(sequence, position\)"):
        find_seqlets(np.ones((2, 4, 10)))


def test_nothing_is_matched_to_nothing() -> None:
    assert match_motifs([]) == []


@pytest.mark.slow  # memelite compiles for a minute in a fresh environment
def test_every_motif_matches_itself_first_with_a_tiny_p_value() -> None:
    some = [jaspar(name) for name in ("CTCF", "SPI1", "TAL1::TCF3", "GATA4")]
    for one, found in zip(some, match_motifs(some), strict=True):
        assert found[0].motif.id == one.id
        assert found[0].p < 1e-6
        assert found[0].e == pytest.approx(found[0].p * len(jaspar_motifs()) * len(some))
        assert [m.p for m in found] == sorted(m.p for m in found)
    turned = match_motifs([some[0].reverse_complement()])[0][0]
    assert (turned.motif.id, turned.strand) == (some[0].id, "-")


@pytest.mark.slow
def test_single_seqlets_are_named(planted) -> None:
    data, onehot, relevance = planted
    seqlets = find_seqlets(relevance)
    matches = match_seqlets(seqlets, onehot, relevance)
    for label, family in ((1, "Ets"), (0, "Tal")):
        found = [m.motif.family for k, m in enumerate(matches) if data.labels[seqlets.sequence[k]] == label]
        assert np.mean([family in name for name in found]) > 0.7
