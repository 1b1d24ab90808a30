"""The paper's statements on scores whose verdict is known: each holds, fails, and is left open where not measured."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from made_runs import from_arrays
from plrp.experiments import statements
from plrp.experiments.aligned_scores import LRP, PAPER, VARIANTS, AlignedScores, Flipping, Method
from plrp.experiments.statements import AUC, ENTROPY, GINI, LIPSCHITZ, MASS

SHARES = (0.05, 0.15, 0.3, 0.6, 0.9)
OWN = np.array([-0.2, -0.1, 0.0, 0.1, 0.2])  # samples differ, in all methods alike
NOISE = np.array([0.001, -0.001, 0.0, 0.001, -0.001])


def measured(
    metric: str, curve: Callable[[str, float], float], variants=PAPER, shares=SHARES, noise: float = 1
) -> AlignedScores:
    """A run with one metric whose means are `curve(variant, p)`; p = 0 is LRP."""
    values = {"LRP": {0.0: 1 + OWN + curve("LRP", 0.0)}}
    for k, variant in enumerate(variants):
        values[variant] = {p: 1 + OWN + curve(variant, p) + noise * np.roll(NOISE, k) for p in shares}
    return from_arrays("net", {metric: values}, len(OWN))


def joined(*runs: AlignedScores) -> AlignedScores:
    return AlignedScores("net", runs[0].samples, {key: by_p for m in runs for key, by_p in m.values.items()})


def saturating(speed: float) -> Callable[[str, float], float]:
    return lambda variant, p: 0.4 * (1 - np.exp(-speed * p))


def test_steep_rise() -> None:
    steep = statements.rises_steeply(measured(GINI, saturating(10)), GINI, "lambda")
    assert (steep.holds, steep.sure) == (True, True)
    assert not statements.rises_steeply(measured(GINI, lambda v, p: 0.4 * p), GINI, "lambda").holds  # a straight line
    assert not statements.rises_steeply(measured(GINI, lambda v, p: -0.4 * p), GINI, "M").holds
    # By hand: 0.1 by p = 0.15, then 0.1 more by p = 0.3 is as steep; by p = 0.45 half as steep.
    table = {0.0: 0.0, 0.05: 0.05, 0.15: 0.1, 0.3: 0.2, 0.45: 0.2}
    assert not statements.rises_steeply(
        measured(GINI, lambda v, p: table[p], shares=(0.05, 0.15, 0.3), noise=0), GINI, "M"
    ).holds
    table[0.3] = 0.15
    assert statements.rises_steeply(
        measured(GINI, lambda v, p: table[p], shares=(0.05, 0.15, 0.45), noise=0), GINI, "M"
    ).holds


def test_steep_rise_on_another_grid() -> None:
    coarse = measured(GINI, saturating(10), shares=(0.1, 0.2, 0.5))
    assert "by p = 0.1:" in statements.rises_steeply(coarse, GINI, "lambda").numbers[1]
    assert statements.rises_steeply(measured(GINI, saturating(10), shares=(0.3, 0.6)), GINI, "lambda").holds is None


def test_above_lrp() -> None:
    assert statements.above_lrp(measured(GINI, saturating(5))).holds
    one_below = measured(GINI, lambda v, p: -0.01 if (v, p) == ("M+gain", 0.9) else 0.3 * p)
    found = statements.above_lrp(one_below)
    assert (found.holds, found.sure) == (False, True)
    assert statements.above_lrp(measured(MASS, saturating(5))).holds is None


@pytest.mark.parametrize("gain", [False, True])
def test_lambda_ahead(gain) -> None:
    end = "+gain" if gain else ""

    def ahead(variant: str, p: float) -> float:
        return 0.2 * p if variant == f"lambda{end}" else 0.1 * p

    found = statements.ahead_of_m(measured(MASS, ahead), MASS, gain)
    assert (found.holds, found.sure) == (True, True)
    turned = measured(MASS, lambda v, p: ahead(v, p) if p < 0.9 else -ahead(v, p))
    assert statements.ahead_of_m(turned, MASS, gain).holds is False
    noisy = measured(MASS, lambda v, p: 0.0002 * v.startswith("lambda"))
    found = statements.ahead_of_m(noisy, MASS, gain)
    assert found.sure is False  # a mean of 0.0002 among differences of ± 0.002
    assert statements.ahead_of_m(measured(MASS, ahead, ("lambda", "lambda+gain")), MASS, gain).holds is None


def test_entropy_against_gini() -> None:
    gini = measured(GINI, saturating(5))
    assert statements.entropy_mirrors_gini(joined(gini, measured(ENTROPY, lambda v, p: -2 * p))).holds
    found = statements.entropy_mirrors_gini(joined(gini, measured(ENTROPY, lambda v, p: 2 * p if v == "M" else -p)))
    assert found.holds is False
    assert "M p = 0.05" in found.numbers[1]
    assert statements.entropy_mirrors_gini(gini).holds is None


def test_mass_falls_again() -> None:
    found = statements.falls_again(measured(MASS, lambda v, p: p - p * p), "lambda")  # highest at 0.5
    assert (found.holds, found.sure) == (True, True)
    assert statements.falls_again(measured(MASS, lambda v, p: p), "lambda").holds is False
    assert statements.falls_again(measured(MASS, lambda v, p: p, shares=(0.1, 0.3)), "lambda").holds is None


def test_robustness() -> None:
    better = measured(LIPSCHITZ, lambda v, p: -0.2 * p)
    assert [statements.more_robust(better, LIPSCHITZ, v).holds for v in ("lambda", "M")] == [True, True]

    def worse_at(*where: float) -> AlignedScores:
        return measured(LIPSCHITZ, lambda v, p: 0.2 if p in where else -0.2, ("lambda", "M"))

    assert statements.more_robust(worse_at(0.6), LIPSCHITZ, "lambda").holds is False  # 'always'
    assert statements.more_robust(worse_at(0.6), LIPSCHITZ, "M").holds is True  # 1 of 5 are few
    two = statements.more_robust(worse_at(0.3, 0.6), LIPSCHITZ, "M")
    assert (two.holds, two.sure) == (False, True)  # 2 of 5 are not
    assert statements.more_robust(measured(GINI, saturating(2)), LIPSCHITZ, "M").holds is None


def test_areas_of_flipping() -> None:
    paper = measured(AUC, lambda v, p: 0.1 * p if v.startswith("lambda") else -0.1 * p)
    assert statements.slightly_less_faithful(paper).holds
    assert statements.m_no_less_faithful(paper).holds
    swapped = measured(AUC, lambda v, p: -0.1 * p if v.startswith("lambda") else 0.1 * p)
    assert statements.slightly_less_faithful(swapped).holds is False
    assert statements.m_no_less_faithful(swapped).holds is False
    assert statements.m_no_less_faithful(measured(AUC, lambda v, p: 0.0001)).holds  # within a standard error
    late = measured(AUC, lambda v, p: 0.1 * (p >= 0.3))
    assert statements.m_no_less_faithful(late).holds  # only p < 0.3 is asked
    assert statements.m_no_less_faithful(measured(AUC, lambda v, p: p, shares=(0.5,))).holds is None


def test_m_sticks_closer() -> None:
    assert statements.m_sticks_closer(measured(AUC, lambda v, p: 0.2 * p if v == "lambda" else 0.1 * p)).holds
    assert statements.m_sticks_closer(measured(AUC, lambda v, p: 0.2 * p if v == "M" else -0.1 * p)).holds is False
    assert statements.m_sticks_closer(measured(AUC, lambda v, p: p, ("M",))).holds is None


def test_a_small_price() -> None:
    gains = (measured(GINI, lambda v, p: p), measured(MASS, lambda v, p: p))
    assert statements.small_price(joined(*gains, measured(AUC, lambda v, p: 0.1 * p))).holds
    assert statements.small_price(joined(*gains, measured(AUC, lambda v, p: 2 * p))).holds is False
    assert statements.small_price(joined(*gains, measured(AUC, lambda v, p: p - 3))).holds is None  # no ratio


def flips(lrp: list[float], own: list[float], share=(0, 0.005, 0.012, 0.1, 0.5, 1)) -> dict[Method, Flipping]:
    def of(curve: list[float]) -> Flipping:
        whole = np.array([curve] * 5)
        return Flipping(np.array(share, float), np.vstack([whole, np.full(len(share), np.nan)]))

    return {LRP: of(lrp), Method("lambda", 0.1): of([0.0] * len(share)), Method("lambda", 0.15): of(own)}


def test_first_flips() -> None:
    lrp = [1, 0.9, 0.8, 0.4, 0.2, 0]
    assert statements.first_flips_as_steep(flips(lrp, [1, 0.9, 0.82, 0.9, 0.9, 0]), "lambda").holds  # 90% of the drop
    assert statements.first_flips_as_steep(flips(lrp, [1, 0.9, 0.83, 0.4, 0.2, 0]), "lambda").holds is False
    assert statements.first_flips_as_steep(flips(lrp, lrp), "M").holds is None
    coarse = (0, 0.1, 0.2, 0.3, 0.5, 1)
    found = statements.first_flips_as_steep(flips(lrp, [1, 0.9, 1, 1, 1, 1], coarse), "lambda")
    assert found.holds  # only the first point counts where none comes early enough
    assert "10.00%" in found.numbers[0]


def test_first_flips_where_the_score_rises_at_first() -> None:
    """Drops are negative then: what is the same as LRP's, or rises less, is as steep."""
    lrp = [1, 1.1, 1.2, 0.4, 0.2, 0]
    assert statements.first_flips_as_steep(flips(lrp, lrp), "lambda").holds
    assert statements.first_flips_as_steep(flips(lrp, [1, 1.05, 1.1, 0.4, 0.2, 0]), "lambda").holds
    assert statements.first_flips_as_steep(flips(lrp, [1, 1.1, 1.219, 0.4, 0.2, 0]), "lambda").holds
    assert statements.first_flips_as_steep(flips(lrp, [1, 1.1, 1.23, 0.4, 0.2, 0]), "lambda").holds is False


def few(m: AlignedScores, count: int) -> AlignedScores:
    values = {key: {p: column[:count] for p, column in by_p.items()} for key, by_p in m.values.items()}
    return AlignedScores("net", m.samples[:count], values)


@pytest.mark.parametrize("rises", [True, False])
def test_too_few_samples_decide_nothing(rises: bool) -> None:
    sign = 1 if rises else -1
    curves = {name: measured(name, lambda v, p: sign * 0.2 * p) for name in (GINI, MASS, AUC, LIPSCHITZ)}
    curves[ENTROPY] = measured(ENTROPY, lambda v, p: -sign * 0.2 * p)
    whole = joined(*curves.values())
    assert any(s.holds is rises for s in statements.of_images(whole))
    for count in (1, 2, 4):
        said = [*statements.of_images(few(whole, count)), *statements.of_sequences(few(whole, count))]
        assert {s.holds for s in said} == {None}
        judged = [s for s in said if s.samples is not None]
        assert len(judged) >= 15
        for s in judged:
            assert s.verdict == "too few samples"
            assert s.numbers[-1] == f"{count} sample{'s' * (count > 1)}; a verdict needs 5"
    curve = [1, 0.9, 0.8, 0.4, 0.2, 0]
    two = {method: Flipping(f.share, f.score[:2]) for method, f in flips(curve, curve).items()}
    assert statements.first_flips_as_steep(two, "lambda").verdict == "too few samples"
    assert statements.driven_by_late_flips(two).verdict == "too few samples"
    assert statements.not_a_threshold(0, 4).verdict == "too few samples"
    assert statements.not_a_threshold(1, 4).holds  # one case is enough for 'there is one'


def test_late_flips() -> None:
    lrp = [1, 0.9, 0.8, 0.4, 0.2, 0]
    assert statements.driven_by_late_flips(flips(lrp, [1, 0.9, 0.8, 0.4, 0.6, 0])).holds
    assert statements.driven_by_late_flips(flips(lrp, [1, 1, 1, 0.5, 0.2, 0])).holds is False
    assert statements.driven_by_late_flips(flips(lrp, [1, 0.8, 0.7, 0.3, 0.1, 0])).holds is False  # no larger area
    assert statements.driven_by_late_flips({}).holds is None


def test_two_data_sets() -> None:
    steep, flat = measured(GINI, saturating(10)), measured(GINI, lambda v, p: 0.4 * p)
    a, b = statements.of_images(steep), statements.of_images(flat)
    found = statements.analogous(a, a)
    assert found.holds
    assert found.numbers == (f"{sum(s.holds is not None for s in a)} of 5 statements",)
    found = statements.analogous(a, b)
    assert found.holds is False
    assert found.numbers[1:] == tuple(
        f"not the same: Gini index of {v} rises steeply below p = 0.2" for v in ("λ", "M")
    )
    assert statements.analogous(a, statements.of_images(measured(AUC, saturating(1)))).holds is None


def test_sequences() -> None:
    rising = measured(GINI, lambda v, p: 0.2 * p)
    assert statements.gini_rises(rising).holds
    dip = measured(GINI, lambda v, p: 0.2 * p - (0.12 if (v, p) == ("M", 0.6) else 0), noise=0)
    assert statements.gini_rises(dip).holds is False  # from 0.06 to 0
    assert statements.gini_rises(measured(GINI, lambda v, p: 0.2 * p - (0.069 if p == 0.6 else 0), noise=0)).holds
    assert statements.gini_rises(measured(MASS, saturating(1))).holds is None
    up = statements.mass_rises(measured(MASS, lambda v, p: 0.2 * p, shares=(0.1, 0.25, 0.5)))
    assert (up.holds, up.sure) == (True, True)
    assert "p = 0.25" in up.claim
    assert statements.mass_rises(measured(MASS, lambda v, p: -0.2 * p)).holds is False
    alike = measured(GINI, lambda v, p: 0.04 * v.startswith("M") * (p > 0))
    assert statements.variants_alike(alike).holds
    assert statements.variants_alike(measured(GINI, lambda v, p: 0.08 * v.startswith("M"))).holds is False
    assert statements.variants_alike(measured(GINI, saturating(1), ("lambda",))).holds is None
    verdicts = [statements.not_a_threshold(*counts).holds for counts in ((2, 5), (0, 5), (0, 0))]
    assert verdicts == [True, False, None]


def test_several_networks_together() -> None:
    good, bad = measured(GINI, lambda v, p: p), measured(GINI, lambda v, p: -p)
    judged = {"32": statements.gini_rises(good), "4": statements.gini_rises(bad)}
    assert statements.together(judged).holds is False
    assert any(line.startswith("4, PLRP-M") for line in statements.together(judged).numbers)
    assert statements.together({"32": judged["32"]}).holds
    nothing = statements.gini_rises(measured(MASS, saturating(1)))
    assert statements.together({"32": judged["32"], "4": nothing}).holds
    assert statements.together({"4": nothing}).holds is None


def test_everything_is_said_once_whatever_was_measured() -> None:
    whole = joined(measured(GINI, saturating(5)), measured(MASS, saturating(5)), measured(AUC, lambda v, p: p))
    for m in (whole, measured(GINI, saturating(5)), AlignedScores("net", np.arange(0), {})):
        said = statements.of_images(m)
        assert len({s.claim for s in said}) == len(said) == 21
        for s in said:
            assert (s.holds is None) == bool(s.missing)
            assert (s.holds is None) == (not s.numbers)
            assert s.verdict in ("holds", "does not hold", "not measured")


def test_two_samples_decide_nothing_about_signs_kept_apart() -> None:
    values = {v: {p: np.array([1.0, 1.1]) + p for p in SHARES} for v in VARIANTS}
    few = from_arrays("net", {GINI: {"LRP": {0.0: np.array([1.0, 1.1])}, **values}}, 2)
    (said,) = statements.signs_kept_apart(few, {GINI: ""})
    assert (said.holds, said.verdict, said.samples) == (None, "too few samples", 2)


def test_signs_kept_apart_are_compared_with_m_and_decide_no_statement_of_the_paper() -> None:
    def worse(variant: str, p: float) -> float:
        return -0.1 if variant.startswith("M-sign") else 0.3 * p

    both = joined(measured(GINI, worse, VARIANTS), measured(MASS, worse, VARIANTS), measured(AUC, worse, VARIANTS))
    said = {s.claim: s for s in statements.of_images(both)}
    assert said["Gini index above LRP's, for all variants"].holds
    gini, mass = said["Gini index of M± not worse than M's"], said["mass in mask of M± not worse than M's"]
    assert (gini.section, gini.holds, gini.sure) == ("sparsity", False, True)
    assert (mass.section, mass.holds, mass.sure) == ("localization", False, True)
    auc = said["AUC of M± not worse than M's"]  # lower is better
    assert (auc.section, auc.holds, auc.sure) == ("faithfulness", True, True)
    alike = statements.of_sequences(measured(GINI, lambda v, p: 0.3 * p, VARIANTS))
    assert [s.holds for s in alike if "M±" in s.claim] == [True]
    assert not [s for s in statements.of_images(measured(GINI, saturating(5))) if "M±" in s.claim]


def test_scores_that_are_not_numbers_are_left_out() -> None:
    m = measured(MASS, lambda v, p: 0.2 if v.startswith("lambda") else 0.1)
    m.values[MASS, "lambda"][0.9][1:] = np.nan
    found = statements.ahead_of_m(m, MASS)
    assert found.holds
    assert m.difference(MASS, Method("lambda", 0.9), Method("M", 0.9)).count == 1
    m.values[MASS, "lambda"][0.9][:] = np.nan
    assert 0.9 not in m.shares(MASS, "lambda")
    assert statements.ahead_of_m(m, MASS).holds
