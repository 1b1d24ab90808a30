"""The paper's statements (section 4), and the rule by which each of them holds here or does not.

A verdict is about the sign of a mean (or, where a statement says 'steep', 'few', 'little', about a size named in its
rule); the paired differences that decide come with their intervals, and a verdict is *sure* when those lie on its side
of zero. Nothing is judged that was not measured, or on too few samples. The sweep's report, the genomics demo and
`benchmarks/paper_claims.py` all judge here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from .aligned_scores import (
    LABELS,
    LRP,
    PAPER,
    AlignedScores,
    Difference,
    Flipping,
    Method,
    nearest_share,
    plain,
    signed,
)

Section = Literal["sparsity", "localization", "robustness", "faithfulness", "logos", "data sets"]

GINI, ENTROPY, MASS = "gini", "entropy", "relevance_mass_accuracy"
LIPSCHITZ, AUC = "local_lipschitz", "pixel_flipping_auc"
NAMES = {GINI: "Gini index", MASS: "mass in mask"}

SMALL_P = 0.2
"""'Small proportions' of the paper: below this."""
STEEP = 2.0
"""'Steep': the slope up to the last small p, over the slope from there to the top."""
HIGH_P = 0.8
"""'Higher p': at least one p from here on must have been measured."""
FEW = 1 / 3
"""'Only a few parameterizations': at most this share of them."""
FAITHFUL_P = 0.3
"""Where the paper draws its line for faithfulness."""
EXAMPLE_P = 0.15
"""The paper's 'exemplary parameterization' for flipping curves."""
FIRST_FLIPS = 8 / 625
"""The features 'with the highest relevance': this share of the regions, 8 of the 625 tiles of a photograph."""
AS_STEEP = 0.9
"""'Similarly steeply': at least this share of LRP's drop."""
LATE = 0.1
"""'Perturbed later': regions after this share."""
FALL = 0.01
"""How far a mean Gini may fall from one p to the next and still count as rising."""
LITTLE = 0.05
"""Mean absolute difference up to which λ and M count as differing little."""
LOGO_P = 0.25
"""The pruned share of the paper's logo plots."""
ENOUGH = 5
"""Samples that a verdict needs: that all of them agree by chance has then, for the first time, a probability below 5%
(2⁻⁵ = 3%)."""


UNMEASURED = "not measured"


@dataclass(frozen=True)
class Statement:
    """A statement of the paper, whether it holds here, by which rule, and the numbers that decide.

    holds: None where it was not measured, or on fewer than `ENOUGH` samples; `missing` then names the measurements.
    samples: how many decide, where it was measured.
    sure: whether the intervals of the deciding differences all speak for the verdict; None where none decides.
    """

    section: Section
    claim: str
    rule: str
    holds: bool | None
    numbers: tuple[str, ...] = ()
    sure: bool | None = None
    missing: str = ""
    samples: int | None = None

    @property
    def verdict(self) -> str:
        """In words."""
        if self.holds is None:
            return UNMEASURED if self.samples is None else "too few samples"
        return "holds" if self.holds else "does not hold"


# -- images, section 4.2.1


def of_images(
    m: AlignedScores,
    *,
    robustness: Mapping[str, str] | None = None,
    faithfulness: Mapping[str, str] | None = None,
    curves: Mapping[str, Mapping[Method, Flipping]] | None = None,
) -> list[Statement]:
    """The paper's statements about images, judged on one network.

    robustness: Lipschitz metrics by name, each with the scale of the maps ("relevance as it is"); default: all
        of the run. faithfulness: flipping areas by name, each with its kind of score ("logit").
    curves: flipping curves of methods by metric; default: all of the run.
    """
    if robustness is None:
        robustness = versions_of(m, LIPSCHITZ)
    if faithfulness is None:
        faithfulness = versions_of(m, AUC)
    said = [above_lrp(m)]
    for metric in (GINI, MASS):
        said += [rises_steeply(m, metric, variant) for variant in ("lambda", "M")]
        said += [ahead_of_m(m, metric, gain) for gain in (False, True)]
    said.append(entropy_mirrors_gini(m))
    said += [falls_again(m, variant) for variant in ("lambda", "M")]
    for metric, scale in robustness.items():
        said += [more_robust(m, metric, variant, scale) for variant in ("lambda", "M")]
    for metric, kind in faithfulness.items():
        flips = curves.get(metric, {}) if curves is not None else m.flips(metric)
        said += [slightly_less_faithful(m, metric, kind), m_no_less_faithful(m, metric, kind)]
        said += [first_flips_as_steep(flips, variant, kind) for variant in ("lambda", "M")]
        said += [driven_by_late_flips(flips, kind), m_sticks_closer(m, metric, kind), small_price(m, metric, kind)]
    return said + signs_kept_apart(m, {GINI: "", MASS: "", **faithfulness})


def versions_of(m: AlignedScores, metric: str) -> dict[str, str]:
    """The measured versions of a metric (`local_lipschitz`, `local_lipschitz.max`), each with its suffix."""
    names = [name for name in m.metrics if name.partition(".")[0] == metric]
    return {name: name.partition(".")[2] for name in names or [metric]}


def above_lrp(m: AlignedScores) -> Statement:
    """'The Gini index increases drastically for all our approaches compared to the LRP baseline.'"""
    claim = "Gini index above LRP's, for all variants"
    rule = "the mean difference to LRP is above 0 for every variant at every p"
    variants = m.variants(GINI, PAPER)
    if not variants or not m.count(GINI):
        return _unmeasured("sparsity", claim, rule, GINI)
    apart = {v: [m.difference(GINI, Method(v, p), LRP) for p in m.shares(GINI, v)] for v in variants}
    numbers = tuple(
        f"{LABELS[v]} − LRP: " + _listed(m.shares(GINI, v), differences) for v, differences in apart.items()
    )
    return _by_sign("sparsity", claim, rule, [d for ds in apart.values() for d in ds], numbers)


def rises_steeply(m: AlignedScores, metric: str, variant: str) -> Statement:
    """'A steep increase already for small proportions (< 0.2) of pruned relevance.'"""
    section: Section = "sparsity" if metric == GINI else "localization"
    claim = f"{NAMES[metric]} of {_symbol(variant)} rises steeply below p = {SMALL_P:g}"
    rule = f"it rises to the last p below {SMALL_P:g}, at least {STEEP:g} times as steeply as from there to its highest"
    shares = m.shares(metric, variant)
    small = [p for p in shares if p < SMALL_P]
    if not small or not m.count(metric):
        return _unmeasured(section, claim, rule, metric, f"some p below {SMALL_P:g}")
    start, curve = m.mean(metric), m.means(metric, variant, shares)
    last, top = len(small) - 1, int(np.argmax(curve))
    rise, early = curve[top] - start, curve[last] - start
    steep = top <= last or early / shares[last] >= STEEP * (rise - early) / (shares[top] - shares[last])
    first = m.difference(metric, Method(variant, shares[last]), LRP)
    along = ", ".join(f"p = {p:g}: {plain(v)}" for p, v in zip(shares, curve, strict=True))
    part = f", {early / rise:.0%} of the highest rise" if rise > 0 else ", no rise"
    numbers = (f"LRP {plain(start)}; {along}", f"by p = {shares[last]:g}: {first}{part}")
    holds = early > 0 and steep
    return _judged(first.count, section, claim, rule, holds, numbers, first.sign == 1 if holds else None)


def ahead_of_m(m: AlignedScores, metric: str, gain: bool = False) -> Statement:
    """'PLRP-λ with and without sparsity gain leads to better results compared to PLRP-M.'"""
    section: Section = "sparsity" if metric == GINI else "localization"
    claim = f"{NAMES[metric]}: λ ahead of M{' (gain)' if gain else ''}"
    rule = "the mean of λ − M is above 0 at every p"
    end = "+gain" if gain else ""
    shares = m.shares(metric, f"lambda{end}", f"M{end}")
    if not shares:
        return _unmeasured(section, claim, rule, metric, "λ and M at the same p")
    ahead = [m.difference(metric, Method(f"lambda{end}", p), Method(f"M{end}", p)) for p in shares]
    return _by_sign(section, claim, rule, ahead, ("λ − M: " + _listed(shares, ahead),))


def entropy_mirrors_gini(m: AlignedScores) -> Statement:
    """'The entropy shows completely analogous results to the Gini Index.'"""
    claim = "entropy falls wherever the Gini index rises"
    rule = "the mean difference to LRP has the opposite sign for every variant at every p"
    pairs = [
        (m.difference(GINI, Method(v, p), LRP), m.difference(ENTROPY, Method(v, p), LRP), Method(v, p))
        for v in PAPER
        for p in m.shares(ENTROPY, v)
        if p in m.shares(GINI, v)
    ]
    pairs = [pair for pair in pairs if pair[0].count and pair[1].count]
    if not pairs:
        return _unmeasured("sparsity", claim, rule, f"{GINI} and {ENTROPY}")
    against = [method for gini, entropy, method in pairs if gini.mean * entropy.mean > 0]
    sure = all(g.sign * e.sign == -1 for g, e, _ in pairs) if not against else None
    numbers = [f"{len(pairs) - len(against)} of {len(pairs)} parameterizations"]
    if against:
        numbers.append("same sign: " + ", ".join(str(method) for method in against))
    count = max(min(g.count, e.count) for g, e, _ in pairs)
    return _judged(count, "sparsity", claim, rule, not against, tuple(numbers), sure)


def falls_again(m: AlignedScores, variant: str) -> Statement:
    """'The RMA starts decreasing again for higher p.'"""
    claim = f"mass in mask of {_symbol(variant)} falls again at high p"
    rule = "its mean at the highest p is below its highest mean, sample by sample"
    shares = m.shares(MASS, variant)
    if not shares or shares[-1] < HIGH_P:
        return _unmeasured("localization", claim, rule, MASS, f"some p from {HIGH_P:g} on")
    curve = m.means(MASS, variant, shares)
    top = int(np.argmax(curve))
    down = m.difference(MASS, Method(variant, shares[-1]), Method(variant, shares[top]))
    holds = down.mean < 0
    numbers = (f"highest {plain(curve[top])} at p = {shares[top]:g}; p = {shares[-1]:g}: {plain(curve[-1])} ({down})",)
    return _judged(down.count, "localization", claim, rule, holds, numbers, down.sign == -1 if holds else None)


def more_robust(m: AlignedScores, metric: str, variant: str, scale: str = "") -> Statement:
    """'PLRP-λ is always more robust than LRP, whereas PLRP-M is less robust for only a few parameterizations.'"""
    always = variant == "lambda"
    claim = f"{_symbol(variant)} {'always' if always else 'mostly'} more robust than LRP{_of(scale)}"
    rule = "the mean Lipschitz estimate is above LRP's " + (
        "for no parameterization" if always else "for at most a third of the parameterizations"
    )
    tried = [Method(v, p) for v in (variant, f"{variant}+gain") for p in m.shares(metric, v)]
    if not tried or not m.count(metric):
        return _unmeasured("robustness", claim, rule, metric)
    apart = [m.difference(metric, method, LRP) for method in tried]
    worse = sum(d.mean > 0 for d in apart)
    allowed = 0 if always else math.floor(FEW * len(tried))
    holds = worse <= allowed
    surely_worse, maybe_worse = sum(d.sign == 1 for d in apart), sum(d.sign != -1 for d in apart)
    numbers = (
        f"Lipschitz estimate, LRP {plain(m.mean(metric))}; minus LRP's: "
        + ", ".join(f"{method} {d}" for method, d in zip(tried, apart, strict=True)),
        f"{worse} of {len(tried)} above LRP",
    )
    sure = maybe_worse <= allowed if holds else surely_worse > allowed
    return _judged(_most(apart), "robustness", claim, rule, holds, numbers, sure)


def slightly_less_faithful(m: AlignedScores, metric: str = AUC, kind: str = "") -> Statement:
    """'We observe slightly worse results than the baseline' (but for PLRP-M and p < 0.3)."""
    claim = f"AUC of λ slightly worse (higher) than LRP's{_of(kind)}"
    rule = f"the mean difference to LRP is above 0 at every p up to {FAITHFUL_P:g}"
    tried = [Method(v, p) for v in ("lambda", "lambda+gain") for p in m.shares(metric, v) if p <= FAITHFUL_P]
    apart = [m.difference(metric, method, LRP) for method in tried]
    if not any(d.count for d in apart):
        return _unmeasured("faithfulness", claim, rule, metric, f"some p up to {FAITHFUL_P:g}")
    return _by_sign("faithfulness", claim, rule, apart, (_against_lrp(m, metric, tried, apart),))


def m_no_less_faithful(m: AlignedScores, metric: str = AUC, kind: str = "") -> Statement:
    """'… except for one approach (PLRP-M with and without sparsity gain and p < 0.3).'"""
    claim = f"AUC of M not worse than LRP's for p < {FAITHFUL_P:g}{_of(kind)}"
    rule = f"the mean is not above LRP's by more than a standard error, at every p below {FAITHFUL_P:g}"
    tried = [Method(v, p) for v in ("M", "M+gain") for p in m.shares(metric, v) if p < FAITHFUL_P]
    apart = [m.difference(metric, method, LRP) for method in tried]
    if not any(d.count for d in apart):
        return _unmeasured("faithfulness", claim, rule, metric, f"some p below {FAITHFUL_P:g}")
    holds = all(d.mean <= (d.error if d.count > 1 else 0) for d in apart)
    sure = all(d.sign <= 0 for d in apart) if holds else any(d.sign == 1 for d in apart)
    said = (_against_lrp(m, metric, tried, apart),)
    return _judged(_most(apart), "faithfulness", claim, rule, holds, said, sure)


def first_flips_as_steep(flips: Mapping[Method, Flipping], variant: str, kind: str = "") -> Statement:
    """'For the features with the highest relevance, the prediction score drops similarly steeply.'"""
    symbol = _symbol(variant)
    rule = (
        f"at every point of the curve up to {FIRST_FLIPS:.1%} of the regions (at its first point, if that comes later) "
        f"the drop of the mean score falls short of LRP's by at most {1 - AS_STEEP:.0%} of it"
    )
    chosen = _at_example(flips, variant)
    claim = f"the first flips of {symbol}, p = {chosen.p if chosen else EXAMPLE_P:g}, as steep as LRP's{_of(kind)}"
    if chosen is None or LRP not in flips:
        return _unmeasured("faithfulness", claim, rule, "flipping curves of LRP and " + symbol)
    count, share, base, curve = _mean_curves(flips, chosen)
    points = [k for k in range(1, len(share)) if share[k] <= FIRST_FLIPS * 1.001] or [1]
    if not np.isfinite(base[points]).all() or not np.isfinite(curve[points]).all():
        return _unmeasured("faithfulness", claim, rule, "samples with a positive score to begin with")
    drops = [(1 - base[k], 1 - curve[k]) for k in points]
    numbers = (
        "drop after " + ", ".join(f"{share[k]:.2%}" for k in points) + " of the regions: "
        f"LRP {', '.join(plain(a) for a, _ in drops)}; {symbol} {', '.join(plain(b) for _, b in drops)}",
    )
    holds = all(b >= a - (1 - AS_STEEP) * abs(a) for a, b in drops)  # a drop may be negative: then the score rose
    return _judged(count, "faithfulness", claim, rule, holds, numbers)


def driven_by_late_flips(flips: Mapping[Method, Flipping], kind: str = "") -> Statement:
    """'The difference in AUC is driven by the less important features that are perturbed later.'"""
    chosen = _at_example(flips, "lambda")
    claim = f"λ's higher AUC at p = {chosen.p if chosen else EXAMPLE_P:g} comes from features flipped late{_of(kind)}"
    rule = f"the mean gap to LRP's curve is wider after {LATE:.0%} of the regions than before"
    if chosen is None or LRP not in flips:
        return _unmeasured("faithfulness", claim, rule, "flipping curves of LRP and λ")
    count, share, base, curve = _mean_curves(flips, chosen)
    gap = curve - base
    if not np.isfinite(gap).all() or share[-1] <= LATE:
        return _unmeasured("faithfulness", claim, rule, "samples with a positive score to begin with")
    cut = float(np.interp(LATE, share, gap))
    before, after = share < LATE, share > LATE
    early = _area([*gap[before], cut], [*share[before], LATE]) / LATE
    late = _area([cut, *gap[after]], [LATE, *share[after]]) / (share[-1] - LATE)
    area = _area(gap, share)
    numbers = [f"mean gap λ − LRP {signed(early)} before, {signed(late)} after; area {signed(area)}"]
    if area <= 0:
        numbers.append("λ's area is not the larger one, so there is nothing to drive")
    return _judged(count, "faithfulness", claim, rule, bool(area > 0 and late > early), tuple(numbers))


def m_sticks_closer(m: AlignedScores, metric: str = AUC, kind: str = "") -> Statement:
    """'PLRP-M sticking closer to the baseline with respect to faithfulness.'"""
    claim = f"AUC of M closer to LRP's than λ's{_of(kind)}"
    rule = "the absolute mean difference to LRP, averaged over p, is smaller for M"
    shares = m.shares(metric, "lambda", "M")
    apart = {v: [abs(m.difference(metric, Method(v, p), LRP).mean) for p in shares] for v in ("lambda", "M")}
    if not shares or not np.isfinite([*apart["lambda"], *apart["M"]]).all():
        return _unmeasured("faithfulness", claim, rule, metric, "λ and M at the same p")
    means = {v: float(np.mean(values)) for v, values in apart.items()}
    numbers = (
        f"mean over p = {', '.join(f'{p:g}' for p in shares)}: λ {plain(means['lambda'])}, M {plain(means['M'])}",
    )
    count = max(m.count(metric, Method(v, p)) for v in ("lambda", "M") for p in shares)
    return _judged(count, "faithfulness", claim, rule, means["M"] < means["lambda"], numbers)


def small_price(m: AlignedScores, metric: str = AUC, kind: str = "") -> Statement:
    """'The relative decline in faithfulness is small compared to the relative gain in sparsity and localization.'"""
    claim = f"λ loses relatively less faithfulness than it gains in sparsity and localization{_of(kind)}"
    rule = f"at every p below {SMALL_P:g}, AUC rises by a smaller factor than Gini index and mass in mask each do"
    gains = [g for g in (GINI, MASS) if m.variants(g, ("lambda",))]
    shares = [p for p in m.shares(metric, "lambda") if p < SMALL_P and all(p in m.shares(g, "lambda") for g in gains)]
    if not shares or len(gains) < 2:
        return _unmeasured("faithfulness", claim, rule, f"{metric}, {GINI} and {MASS}", f"some p below {SMALL_P:g}")
    if not m.mean(metric) > 0:
        return _unmeasured(
            "faithfulness", claim, rule, "a mean AUC of LRP above 0 (it has no relative change otherwise)"
        )
    numbers, fine = [], []
    for p in shares:
        ratios = [m.mean(name, Method("lambda", p)) / m.mean(name) - 1 for name in (metric, GINI, MASS)]
        fine.append(ratios[0] < min(ratios[1:]))
        numbers.append(f"p = {p:g}: AUC {ratios[0]:+.0%}, Gini {ratios[1]:+.0%}, mass in mask {ratios[2]:+.0%}")
    count = min(max(m.count(name, Method("lambda", p)) for p in shares) for name in (metric, GINI, MASS))
    return _judged(count, "faithfulness", claim, rule, all(fine), tuple(numbers))


def signs_kept_apart(m: AlignedScores, metrics: Mapping[str, str]) -> list[Statement]:
    """Beyond the paper, which asks whether M's flips can be reduced: the price of M±, where both were measured.

    metrics: by name, each with its kind ("logit").
    """
    return [no_worse_than_m(m, name, kind) for name, kind in metrics.items() if m.shares(name, "M-sign", "M")]


def no_worse_than_m(m: AlignedScores, metric: str, kind: str = "") -> Statement:
    """M± against M, in one metric."""
    base = metric.partition(".")[0]
    section: Section = {GINI: "sparsity", MASS: "localization"}.get(base, "faithfulness")  # type: ignore[assignment]
    better = -1 if section == "faithfulness" else 1
    claim = f"{NAMES.get(base, 'AUC')} of M± not worse than M's{_of(kind)}"
    rule = f"the mean is not {'below' if better > 0 else 'above'} M's by more than a standard error, at every p"
    shares = m.shares(metric, "M-sign", "M")
    apart = [m.difference(metric, Method("M-sign", p), Method("M", p)) for p in shares]
    holds = all(better * d.mean >= (-d.error if d.count > 1 else 0) for d in apart)
    sure = all(better * d.sign >= 0 for d in apart) if holds else any(better * d.sign == -1 for d in apart)
    return _judged(_most(apart), section, claim, rule, holds, ("M± − M: " + _listed(shares, apart),), sure)


def analogous(first: Sequence[Statement], second: Sequence[Statement]) -> Statement:
    """'The quantitative results for the ImageNet dataset … are analogous to the results for ECSSD.'"""
    claim = "results on ImageNet analogous to those on ECSSD"
    rule = "every statement judged on both data sets has the same verdict on both"
    other = {s.claim: s for s in second if s.holds is not None}
    both = [(s, other[s.claim]) for s in first if s.holds is not None and s.claim in other]
    if not both:
        return _unmeasured("data sets", claim, rule, "the same metrics on both")
    unlike = [s.claim for s, t in both if s.holds != t.holds]
    numbers = (f"{len(both) - len(unlike)} of {len(both)} statements", *(f"not the same: {claim}" for claim in unlike))
    sure = all(s.sure is not False and t.sure is not False for s, t in both)
    return Statement("data sets", claim, rule, not unlike, numbers, sure if not unlike else None)


# -- sequences, section 4.2.2


def of_sequences(m: AlignedScores) -> list[Statement]:
    """The paper's statements about DNA that scores can decide, judged on one network."""
    return [gini_rises(m), mass_rises(m), variants_alike(m), *signs_kept_apart(m, {GINI: "", MASS: ""})]


def gini_rises(m: AlignedScores) -> Statement:
    """'Sparsity rises … as indicated by an increasing Gini Index', for both variants, with and without gain."""
    claim = "Gini rises with p, for all variants"
    rule = f"for every variant: above LRP at every p, and no fall above {FALL:g} from one p to the next"
    variants = m.variants(GINI, PAPER)
    if not variants or not m.count(GINI):
        return _unmeasured("sparsity", claim, rule, GINI)
    holds, deciding, numbers = True, [], []
    for v in variants:
        shares = m.shares(GINI, v)
        curve = np.array([m.mean(GINI), *m.means(GINI, v, shares)])
        fall = float(max(0.0, -np.diff(curve).min()))
        holds &= fall <= FALL and bool((curve[1:] > curve[0]).all())
        deciding += [m.difference(GINI, Method(v, p), LRP) for p in shares]
        middle = nearest_share(LOGO_P, shares)
        k = 1 + shares.index(middle) if middle is not None else 0
        numbers.append(
            f"{LABELS[v]}: {curve[0]:.4f} → {curve[k]:.4f} → {curve[-1]:.4f} (p = 0, {middle:g}, {shares[-1]:g}), "
            f"largest drop from one p to the next {fall:.4f}"
        )
    sure = all(d.sign == 1 for d in deciding) if holds else None
    return _judged(_most(deciding), "sparsity", claim, rule, holds, tuple(numbers), sure)


def mass_rises(m: AlignedScores) -> Statement:
    """'The RMA increases for an increasing proportion of pruned relevance.'"""
    p = nearest_share(LOGO_P, m.shares(MASS, "lambda"))
    claim = f"Relevance mass accuracy rises over LRP at p = {LOGO_P if p is None else p:g} for PLRP-λ"
    rule = "the mean difference to LRP is above 0"
    if p is None or not m.count(MASS):
        return _unmeasured("localization", claim, rule, MASS)
    lrp, pruned = m.at(MASS, LRP), m.at(MASS, Method("lambda", p))
    both = np.isfinite(lrp) & np.isfinite(pruned)
    if not both.any():
        return _unmeasured("localization", claim, rule, MASS)
    gained = m.difference(MASS, Method("lambda", p), LRP)
    better = float((pruned[both] > lrp[both]).mean())
    numbers = (
        f"RMA {lrp[both].mean():.3f} → {pruned[both].mean():.3f} ({gained}), higher in {better:.0%} of the sequences",
    )
    return _by_sign("localization", claim, rule, [gained], numbers)


def variants_alike(m: AlignedScores) -> Statement:
    """'The results of PLRP-λ and PLRP-M only differ slightly.'"""
    claim = f"λ and M differ little on these shallow networks (mean difference up to {LITTLE})"
    rule = f"the mean over p of |mean λ − mean M| is at most {LITTLE}, for Gini and RMA, with and without gain"
    fine, numbers, count = [], [], 0
    for metric, name in ((GINI, "Gini"), (MASS, "RMA")):
        for end, word in (("", ""), ("+gain", ", gain")):
            shares = m.shares(metric, f"lambda{end}", f"M{end}")
            if not shares:
                continue
            by_lambda, by_m = (np.array([m.mean(metric), *m.means(metric, v + end, shares)]) for v in ("lambda", "M"))
            apart = np.abs(by_lambda - by_m)[np.isfinite(by_lambda - by_m)]
            count = max(count, *(m.count(metric, Method(f"lambda{end}", p)) for p in shares))
            fine.append(bool(apart.mean() <= LITTLE))
            numbers.append(f"{name}{word}: mean |λ − M| {apart.mean():.3f}, largest {apart.max():.3f}")
    if not fine:
        return _unmeasured("sparsity", claim, rule, f"{GINI} or {MASS}", "λ and M at the same p")
    return _judged(count, "sparsity", claim, rule, all(fine), tuple(numbers))


def not_a_threshold(cases: int, sequences: int, clearest: str = "") -> Statement:
    """'It maintains relevance scores within the ground truth mask that are smaller than the noise elsewhere.'

    cases: sequences in which a motif base survives with less LRP relevance than a pruned base outside.
    """
    claim = "PLRP is not a threshold on LRP"
    rule = "in some sequence a motif base survives with less LRP relevance than a base outside that is pruned"
    if not sequences:
        return _unmeasured("logos", claim, rule, "relevance maps of LRP and λ with their masks")
    if not cases:
        return _judged(sequences, "logos", claim, rule, False, (f"no such case among {sequences} sequences",))
    said = (f"such a pair in {cases} of {sequences} sequences", clearest)
    return Statement("logos", claim, rule, True, said, samples=sequences)  # one case is enough


def together(by_network: Mapping[str, Statement]) -> Statement:
    """One statement about several networks: it holds where it holds for all of them."""
    known = {name: s for name, s in by_network.items() if s.holds is not None}
    first = next(iter((known or by_network).values()))
    if not known:
        return first
    numbers = tuple(f"{name}, {line}" for name, s in known.items() for line in s.numbers)
    sures = [s.sure for s in known.values()]
    sure = None if None in sures else all(sures)
    return replace(first, holds=all(s.holds for s in known.values()), numbers=numbers, sure=sure)


# -- parts of the judgements


def _by_sign(
    section: Section, claim: str, rule: str, apart: Sequence[Difference], numbers: tuple[str, ...]
) -> Statement:
    """Holds where every mean difference is above 0; differences of too few samples do not count."""
    known = [d for d in apart if d.count >= ENOUGH]
    holds = bool(known) and all(d.mean > 0 for d in known)
    sure = all(d.sign == 1 for d in known) if holds else any(d.sign == -1 for d in known)
    return _judged(_most(apart), section, claim, rule, holds, numbers, sure)


def _judged(
    samples: int,
    section: Section,
    claim: str,
    rule: str,
    holds: bool,
    numbers: tuple[str, ...],
    sure: bool | None = None,
) -> Statement:
    """A verdict, if enough samples are behind it."""
    if samples >= ENOUGH:
        return Statement(section, claim, rule, holds, numbers, sure, samples=samples)
    counted = f"{samples} sample{'s' * (samples != 1)}; a verdict needs {ENOUGH}"
    return Statement(
        section, claim, rule, None, (*numbers, counted), missing=f"needs {ENOUGH} samples", samples=samples
    )


def _most(apart: Sequence[Difference]) -> int:
    """The samples of the fullest comparison."""
    return max((d.count for d in apart), default=0)


def _unmeasured(section: Section, claim: str, rule: str, *needs: str) -> Statement:
    return Statement(section, claim, rule, None, missing="needs " + ", ".join(needs))


def _symbol(variant: str) -> str:
    return LABELS[variant].removeprefix("PLRP-")


def _of(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _listed(shares: Sequence[float], apart: Sequence[Difference]) -> str:
    return ", ".join(f"p = {p:g}: {d}" for p, d in zip(shares, apart, strict=True))


def _against_lrp(m: AlignedScores, metric: str, tried: Sequence[Method], apart: Sequence[Difference]) -> str:
    each = ", ".join(f"{method} {d}" for method, d in zip(tried, apart, strict=True))
    return f"LRP {plain(m.mean(metric))}; minus LRP's: {each}"


def _at_example(flips: Mapping[Method, Flipping], variant: str) -> Method | None:
    p = nearest_share(EXAMPLE_P, [method.p for method in flips if method.variant == variant and method.p > 0])
    return None if p is None else Method(variant, p)


def _area(heights: Sequence[float] | np.ndarray, places: Sequence[float] | np.ndarray) -> float:
    """Under straight lines between the points."""
    y, x = np.asarray(heights), np.asarray(places)
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum())


def _mean_curves(flips: Mapping[Method, Flipping], method: Method) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """How many samples have both curves, the shares, and LRP's and the method's mean curve over these samples."""
    base, other = flips[LRP], flips[method]
    if base.score.shape != other.score.shape:
        raise ValueError(f"The flipping curves of LRP and {method} have different samples or points.")
    both = np.isfinite(base.score).all(1) & np.isfinite(other.score).all(1)
    if not both.any():
        nothing = np.full(len(base.share), np.nan)
        return 0, base.share, nothing, nothing
    return int(both.sum()), base.share, base.score[both].mean(0), other.score[both].mean(0)
