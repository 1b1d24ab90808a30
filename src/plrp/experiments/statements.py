"""The paper's statements (section 4), and the rule by which each of them holds here or does not.

A verdict is about the sign of a mean (or, where a statement says 'steep', 'few', 'little', about a size named in its
rule); the paired differences that decide come with their intervals, and a verdict is *sure* when those lie on its side
of zero. Nothing is judged that was not measured, or on too few samples. The sweep's report, the genomics demo and
`benchmarks/paper_claims.py` all judge here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

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
SECTIONS: dict[str, Section] = {GINI: "sparsity", MASS: "localization"}

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
MOTIF_P = 0.5
"""Pruned share for motif finding: sharper regions than those of the logo plots."""
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
    holds: bool | None = None
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

    def unmeasured(self, *needs: str) -> Statement:
        """Without a verdict: some measurements are missing."""
        return replace(self, missing="needs " + ", ".join(needs))

    def judged(self, samples: int, holds: bool, *numbers: str, sure: bool | None = None) -> Statement:
        """With a verdict, if enough samples are behind it."""
        if samples >= ENOUGH:
            return replace(self, holds=holds, numbers=numbers, sure=sure, samples=samples)
        counted = f"{samples} sample{'s' * (samples != 1)}; a verdict needs {ENOUGH}"
        return replace(self, numbers=(*numbers, counted), missing=f"needs {ENOUGH} samples", samples=samples)

    def above_zero(self, differences: Iterable[Difference], *numbers: str) -> Statement:
        """Holds where every mean difference is above 0; differences of too few samples do not count."""
        apart = list(differences)
        known = [d for d in apart if d.count >= ENOUGH]
        holds = bool(known) and all(d.mean > 0 for d in known)
        sure = all(d.sign == 1 for d in known) if holds else any(d.sign == -1 for d in known)
        return self.judged(_most(apart), holds, *numbers, sure=sure)

    def no_worse(self, differences: Iterable[Difference], better: int, *numbers: str) -> Statement:
        """Holds where no mean difference is worse than 0 by more than a standard error; `better` is the sign of good
        differences.
        """
        apart = list(differences)
        holds = all(better * d.mean >= (-d.error if d.count > 1 else 0) for d in apart)
        sure = all(better * d.sign >= 0 for d in apart) if holds else any(better * d.sign == -1 for d in apart)
        return self.judged(_most(apart), holds, *numbers, sure=sure)


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
    robustness = versions_of(m, LIPSCHITZ) if robustness is None else robustness
    faithfulness = versions_of(m, AUC) if faithfulness is None else faithfulness
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
    said = Statement("sparsity", claim, rule)
    apart = {v: m.differences(GINI, v) for v in m.variants(GINI, PAPER)}
    if not apart or not m.count(GINI):
        return said.unmeasured(GINI)
    numbers = [f"{LABELS[v]} − LRP: {_listed(by_p)}" for v, by_p in apart.items()]
    return said.above_zero([d for by_p in apart.values() for d in by_p.values()], *numbers)


def rises_steeply(m: AlignedScores, metric: str, variant: str) -> Statement:
    """'A steep increase already for small proportions (< 0.2) of pruned relevance.'"""
    claim = f"{NAMES[metric]} of {_symbol(variant)} rises steeply below p = {SMALL_P:g}"
    rule = f"it rises to the last p below {SMALL_P:g}, at least {STEEP:g} times as steeply as from there to its highest"
    said = Statement(SECTIONS[metric], claim, rule)
    shares = m.shares(metric, variant)
    small = [p for p in shares if p < SMALL_P]
    if not small or not m.count(metric):
        return said.unmeasured(metric, f"some p below {SMALL_P:g}")
    start, curve = m.mean(metric), m.means(metric, variant, shares)
    last, top = len(small) - 1, int(np.argmax(curve))
    rise, early = curve[top] - start, curve[last] - start
    steep = top <= last or early / shares[last] >= STEEP * (rise - early) / (shares[top] - shares[last])
    first = m.difference(metric, Method(variant, shares[last]), LRP)
    along = ", ".join(f"p = {p:g}: {plain(v)}" for p, v in zip(shares, curve, strict=True))
    part = f", {early / rise:.0%} of the highest rise" if rise > 0 else ", no rise"
    numbers = (f"LRP {plain(start)}; {along}", f"by p = {shares[last]:g}: {first}{part}")
    holds = early > 0 and steep
    return said.judged(first.count, holds, *numbers, sure=first.sign == 1 if holds else None)


def ahead_of_m(m: AlignedScores, metric: str, gain: bool = False) -> Statement:
    """'PLRP-λ with and without sparsity gain leads to better results compared to PLRP-M.'"""
    claim = f"{NAMES[metric]}: λ ahead of M{' (gain)' if gain else ''}"
    rule = "the mean of λ − M is above 0 at every p"
    said = Statement(SECTIONS[metric], claim, rule)
    end = "+gain" if gain else ""
    ahead = m.differences(metric, f"lambda{end}", f"M{end}")
    if not ahead:
        return said.unmeasured(metric, "λ and M at the same p")
    return said.above_zero(ahead.values(), "λ − M: " + _listed(ahead))


def entropy_mirrors_gini(m: AlignedScores) -> Statement:
    """'The entropy shows completely analogous results to the Gini Index.'"""
    claim = "entropy falls wherever the Gini index rises"
    rule = "the mean difference to LRP has the opposite sign for every variant at every p"
    said = Statement("sparsity", claim, rule)
    gini, entropy = _to_lrp(m, GINI, PAPER), _to_lrp(m, ENTROPY, PAPER)
    pairs = {method: (gini[method], d) for method, d in entropy.items() if method in gini}
    pairs = {method: (g, e) for method, (g, e) in pairs.items() if g.count and e.count}
    if not pairs:
        return said.unmeasured(f"{GINI} and {ENTROPY}")
    against = [method for method, (g, e) in pairs.items() if g.mean * e.mean > 0]
    sure = all(g.sign * e.sign == -1 for g, e in pairs.values()) if not against else None
    numbers = [f"{len(pairs) - len(against)} of {len(pairs)} parameterizations"]
    if against:
        numbers.append("same sign: " + ", ".join(map(str, against)))
    return said.judged(max(min(g.count, e.count) for g, e in pairs.values()), not against, *numbers, sure=sure)


def falls_again(m: AlignedScores, variant: str) -> Statement:
    """'The RMA starts decreasing again for higher p.'"""
    claim = f"mass in mask of {_symbol(variant)} falls again at high p"
    rule = "its mean at the highest p is below its highest mean, sample by sample"
    said = Statement("localization", claim, rule)
    shares = m.shares(MASS, variant)
    if not shares or shares[-1] < HIGH_P:
        return said.unmeasured(MASS, f"some p from {HIGH_P:g} on")
    curve = m.means(MASS, variant, shares)
    top = int(np.argmax(curve))
    down = m.difference(MASS, Method(variant, shares[-1]), Method(variant, shares[top]))
    numbers = f"highest {plain(curve[top])} at p = {shares[top]:g}; p = {shares[-1]:g}: {plain(curve[-1])} ({down})"
    holds = down.mean < 0
    return said.judged(down.count, holds, numbers, sure=down.sign == -1 if holds else None)


def more_robust(m: AlignedScores, metric: str, variant: str, scale: str = "") -> Statement:
    """'PLRP-λ is always more robust than LRP, whereas PLRP-M is less robust for only a few parameterizations.'"""
    always = variant == "lambda"
    often = "for no parameterization" if always else "for at most a third of the parameterizations"
    claim = f"{_symbol(variant)} {'always' if always else 'mostly'} more robust than LRP{_of(scale)}"
    rule = f"the mean Lipschitz estimate is above LRP's {often}"
    said = Statement("robustness", claim, rule)
    apart = _to_lrp(m, metric, (variant, f"{variant}+gain"))
    if not apart or not m.count(metric):
        return said.unmeasured(metric)
    worse = sum(d.mean > 0 for d in apart.values())
    allowed = 0 if always else math.floor(FEW * len(apart))
    holds = worse <= allowed
    surely_worse, maybe_worse = (sum(d.sign in signs for d in apart.values()) for signs in ((1,), (0, 1)))
    sure = maybe_worse <= allowed if holds else surely_worse > allowed
    numbers = (f"Lipschitz estimate, {_minus_lrp(m, metric, apart)}", f"{worse} of {len(apart)} above LRP")
    return said.judged(_most(apart.values()), holds, *numbers, sure=sure)


def slightly_less_faithful(m: AlignedScores, metric: str = AUC, kind: str = "") -> Statement:
    """'We observe slightly worse results than the baseline' (but for PLRP-M and p < 0.3)."""
    claim = f"AUC of λ slightly worse (higher) than LRP's{_of(kind)}"
    rule = f"the mean difference to LRP is above 0 at every p up to {FAITHFUL_P:g}"
    said = Statement("faithfulness", claim, rule)
    apart = {n: d for n, d in _to_lrp(m, metric, ("lambda", "lambda+gain")).items() if n.p <= FAITHFUL_P}
    if not _most(apart.values()):
        return said.unmeasured(metric, f"some p up to {FAITHFUL_P:g}")
    return said.above_zero(apart.values(), _minus_lrp(m, metric, apart))


def m_no_less_faithful(m: AlignedScores, metric: str = AUC, kind: str = "") -> Statement:
    """'… except for one approach (PLRP-M with and without sparsity gain and p < 0.3).'"""
    claim = f"AUC of M not worse than LRP's for p < {FAITHFUL_P:g}{_of(kind)}"
    rule = f"the mean is not above LRP's by more than a standard error, at every p below {FAITHFUL_P:g}"
    said = Statement("faithfulness", claim, rule)
    apart = {n: d for n, d in _to_lrp(m, metric, ("M", "M+gain")).items() if n.p < FAITHFUL_P}
    if not _most(apart.values()):
        return said.unmeasured(metric, f"some p below {FAITHFUL_P:g}")
    return said.no_worse(apart.values(), -1, _minus_lrp(m, metric, apart))


def first_flips_as_steep(flips: Mapping[Method, Flipping], variant: str, kind: str = "") -> Statement:
    """'For the features with the highest relevance, the prediction score drops similarly steeply.'"""
    symbol, chosen = _symbol(variant), _at_example(flips, variant)
    claim = f"the first flips of {symbol}, p = {chosen.p if chosen else EXAMPLE_P:g}, as steep as LRP's{_of(kind)}"
    rule = (
        f"at every point of the curve up to {FIRST_FLIPS:.1%} of the regions (at its first point, if that comes later) "
        f"the drop of the mean score falls short of LRP's by at most {1 - AS_STEEP:.0%} of it"
    )
    said = Statement("faithfulness", claim, rule)
    if chosen is None or LRP not in flips:
        return said.unmeasured("flipping curves of LRP and " + symbol)
    count, share, base, curve = _mean_curves(flips, chosen)
    points = [k for k in range(1, len(share)) if share[k] <= FIRST_FLIPS * 1.001] or [1]
    if not np.isfinite([base[points], curve[points]]).all():
        return said.unmeasured("samples with a positive score to begin with")
    drops = [(1 - base[k], 1 - curve[k]) for k in points]
    numbers = (
        "drop after " + ", ".join(f"{share[k]:.2%}" for k in points) + " of the regions: "
        f"LRP {', '.join(plain(a) for a, _ in drops)}; {symbol} {', '.join(plain(b) for _, b in drops)}"
    )
    holds = all(b >= a - (1 - AS_STEEP) * abs(a) for a, b in drops)  # a drop may be negative: then the score rose
    return said.judged(count, holds, numbers)


def driven_by_late_flips(flips: Mapping[Method, Flipping], kind: str = "") -> Statement:
    """'The difference in AUC is driven by the less important features that are perturbed later.'"""
    chosen = _at_example(flips, "lambda")
    claim = f"λ's higher AUC at p = {chosen.p if chosen else EXAMPLE_P:g} comes from features flipped late{_of(kind)}"
    rule = f"the mean gap to LRP's curve is wider after {LATE:.0%} of the regions than before"
    said = Statement("faithfulness", claim, rule)
    if chosen is None or LRP not in flips:
        return said.unmeasured("flipping curves of LRP and λ")
    count, share, base, curve = _mean_curves(flips, chosen)
    gap = curve - base
    if not np.isfinite(gap).all() or share[-1] <= LATE:
        return said.unmeasured("samples with a positive score to begin with")
    cut = float(np.interp(LATE, share, gap))
    before, after = share < LATE, share > LATE
    early = _area([*gap[before], cut], [*share[before], LATE]) / LATE
    late = _area([cut, *gap[after]], [LATE, *share[after]]) / (share[-1] - LATE)
    area = _area(gap, share)
    numbers = [f"mean gap λ − LRP {signed(early)} before, {signed(late)} after; area {signed(area)}"]
    if area <= 0:
        numbers.append("λ's area is not the larger one, so there is nothing to drive")
    return said.judged(count, bool(area > 0 and late > early), *numbers)


def m_sticks_closer(m: AlignedScores, metric: str = AUC, kind: str = "") -> Statement:
    """'PLRP-M sticking closer to the baseline with respect to faithfulness.'"""
    claim = f"AUC of M closer to LRP's than λ's{_of(kind)}"
    rule = "the absolute mean difference to LRP, averaged over p, is smaller for M"
    said = Statement("faithfulness", claim, rule)
    shares = m.shares(metric, "lambda", "M")
    apart = [[abs(m.difference(metric, Method(v, p), LRP).mean) for p in shares] for v in ("lambda", "M")]
    if not shares or not np.isfinite(apart).all():
        return said.unmeasured(metric, "λ and M at the same p")
    of_lambda, of_m = (float(np.mean(values)) for values in apart)
    numbers = f"mean over p = {', '.join(f'{p:g}' for p in shares)}: λ {plain(of_lambda)}, M {plain(of_m)}"
    count = max(m.count(metric, Method(v, p)) for v in ("lambda", "M") for p in shares)
    return said.judged(count, of_m < of_lambda, numbers)


def small_price(m: AlignedScores, metric: str = AUC, kind: str = "") -> Statement:
    """'The relative decline in faithfulness is small compared to the relative gain in sparsity and localization.'"""
    claim = f"λ loses relatively less faithfulness than it gains in sparsity and localization{_of(kind)}"
    rule = f"at every p below {SMALL_P:g}, AUC rises by a smaller factor than Gini index and mass in mask each do"
    said = Statement("faithfulness", claim, rule)
    names = (metric, GINI, MASS)
    shares = [p for p in set.intersection(*(set(m.shares(name, "lambda")) for name in names)) if p < SMALL_P]
    if not shares:
        return said.unmeasured(f"{metric}, {GINI} and {MASS}", f"some p below {SMALL_P:g}")
    if not m.mean(metric) > 0:
        return said.unmeasured("a mean AUC of LRP above 0 (it has no relative change otherwise)")
    numbers, holds = [], True
    for p in sorted(shares):
        price, *gains = (m.mean(name, Method("lambda", p)) / m.mean(name) - 1 for name in names)
        holds &= price < min(gains)
        numbers.append(f"p = {p:g}: AUC {price:+.0%}, Gini {gains[0]:+.0%}, mass in mask {gains[1]:+.0%}")
    count = min(max(m.count(name, Method("lambda", p)) for p in shares) for name in names)
    return said.judged(count, holds, *numbers)


def signs_kept_apart(m: AlignedScores, metrics: Mapping[str, str]) -> list[Statement]:
    """Beyond the paper, which asks whether M's flips can be reduced: the price of M±, where both were measured.

    metrics: by name, each with its kind ("logit").
    """
    return [no_worse_than_m(m, name, kind) for name, kind in metrics.items() if m.shares(name, "M-sign", "M")]


def no_worse_than_m(m: AlignedScores, metric: str, kind: str = "") -> Statement:
    """M± against M, in one metric."""
    base = metric.partition(".")[0]
    section = SECTIONS.get(base, "faithfulness")
    better = -1 if section == "faithfulness" else 1
    claim = f"{NAMES.get(base, 'AUC')} of M± not worse than M's{_of(kind)}"
    rule = f"the mean is not {'below' if better > 0 else 'above'} M's by more than a standard error, at every p"
    said = Statement(section, claim, rule)
    apart = m.differences(metric, "M-sign", "M")
    return said.no_worse(apart.values(), better, "M± − M: " + _listed(apart))


def analogous(first: Sequence[Statement], second: Sequence[Statement]) -> Statement:
    """'The quantitative results for the ImageNet dataset … are analogous to the results for ECSSD.'"""
    claim = "results on ImageNet analogous to those on ECSSD"
    rule = "every statement judged on both data sets has the same verdict on both"
    said = Statement("data sets", claim, rule)
    other = {s.claim: s for s in second if s.holds is not None}
    both = [(s, other[s.claim]) for s in first if s.holds is not None and s.claim in other]
    if not both:
        return said.unmeasured("the same metrics on both")
    unlike = [s.claim for s, t in both if s.holds != t.holds]
    numbers = (f"{len(both) - len(unlike)} of {len(both)} statements", *(f"not the same: {claim}" for claim in unlike))
    sure = None if unlike else all(s.sure is not False and t.sure is not False for s, t in both)
    return replace(said, holds=not unlike, numbers=numbers, sure=sure)


# -- sequences, section 4.2.2


def of_sequences(m: AlignedScores) -> list[Statement]:
    """The paper's statements about DNA that scores can decide, judged on one network."""
    return [gini_rises(m), mass_rises(m), variants_alike(m), *signs_kept_apart(m, {GINI: "", MASS: ""})]


def findings(sweeps: Mapping[str, AlignedScores], example: NotAThreshold | None) -> list[Statement]:
    """The paper's findings on genomics, judged on sweeps by network name (`{"32 filters": ..., "4 filters": ...}`)."""
    judged = [of_sequences(one) for one in sweeps.values()]
    both = [together(dict(zip(sweeps, same, strict=True))) for same in zip(*judged, strict=True)]
    return [*both, judge_threshold(example, len(next(iter(sweeps.values())).samples))]


def gini_rises(m: AlignedScores) -> Statement:
    """'Sparsity rises … as indicated by an increasing Gini Index', for both variants, with and without gain."""
    claim = "Gini rises with p, for all variants"
    rule = f"for every variant: above LRP at every p, and no fall above {FALL:g} from one p to the next"
    said = Statement("sparsity", claim, rule)
    variants = m.variants(GINI, PAPER)
    if not variants or not m.count(GINI):
        return said.unmeasured(GINI)
    holds, numbers = True, []
    for v in variants:
        shares = m.shares(GINI, v)
        curve = np.array([m.mean(GINI), *m.means(GINI, v, shares)])
        fall = float(max(0.0, -np.diff(curve).min()))
        holds &= fall <= FALL and bool((curve[1:] > curve[0]).all())
        k = int(np.abs(np.array(shares) - LOGO_P).round(9).argmin())
        numbers.append(
            f"{LABELS[v]}: {curve[0]:.4f} → {curve[k + 1]:.4f} → {curve[-1]:.4f} (p = 0, {shares[k]:g}, "
            f"{shares[-1]:g}), largest drop from one p to the next {fall:.4f}"
        )
    deciding = _to_lrp(m, GINI, variants).values()
    sure = all(d.sign == 1 for d in deciding) if holds else None
    return said.judged(_most(deciding), holds, *numbers, sure=sure)


def mass_rises(m: AlignedScores) -> Statement:
    """'The RMA increases for an increasing proportion of pruned relevance.'"""
    p = nearest_share(LOGO_P, m.shares(MASS, "lambda"))
    claim = f"Relevance mass accuracy rises over LRP at p = {LOGO_P if p is None else p:g} for PLRP-λ"
    rule = "the mean difference to LRP is above 0"
    said = Statement("localization", claim, rule)
    if p is None:
        return said.unmeasured(MASS)
    lrp, pruned = m.at(MASS, LRP), m.at(MASS, Method("lambda", p))
    both = np.isfinite(lrp) & np.isfinite(pruned)
    if not both.any():
        return said.unmeasured(MASS)
    gained = m.difference(MASS, Method("lambda", p), LRP)
    means, better = f"{lrp[both].mean():.3f} → {pruned[both].mean():.3f}", float((pruned[both] > lrp[both]).mean())
    return said.above_zero([gained], f"RMA {means} ({gained}), higher in {better:.0%} of the sequences")


def variants_alike(m: AlignedScores) -> Statement:
    """'The results of PLRP-λ and PLRP-M only differ slightly.'"""
    claim = f"λ and M differ little on these shallow networks (mean difference up to {LITTLE})"
    rule = f"the mean over p of |mean λ − mean M| is at most {LITTLE}, for Gini and RMA, with and without gain"
    said = Statement("sparsity", claim, rule)
    holds, numbers, count = True, [], 0
    for metric, name in ((GINI, "Gini"), (MASS, "RMA")):
        for end, word in (("", ""), ("+gain", ", gain")):
            shares = m.shares(metric, f"lambda{end}", f"M{end}")
            if not shares:
                continue
            by_lambda, by_m = (np.array([m.mean(metric), *m.means(metric, v + end, shares)]) for v in ("lambda", "M"))
            apart = np.abs(by_lambda - by_m)[np.isfinite(by_lambda - by_m)]
            count = max(count, *(m.count(metric, Method(f"lambda{end}", p)) for p in shares))
            holds &= bool(apart.mean() <= LITTLE)
            numbers.append(f"{name}{word}: mean |λ − M| {apart.mean():.3f}, largest {apart.max():.3f}")
    if not numbers:
        return said.unmeasured(f"{GINI} or {MASS}", "λ and M at the same p")
    return said.judged(count, holds, *numbers)


@dataclass(frozen=True)
class NotAThreshold:
    """A base inside a motif that survived, and one outside that was pruned although LRP gave it more."""

    sequence: int
    inside: int
    outside: int
    lrp_inside: float
    lrp_outside: float
    sequences_with_one: int
    sequences: int


def find_not_a_threshold(
    lrp: npt.ArrayLike, pruned: npt.ArrayLike, mask: npt.NDArray[np.bool_]
) -> NotAThreshold | None:
    """The clearest case in which pruning differs from cutting LRP at a height; all arrays (sequence, position).

    In each sequence: the least positive LRP relevance of a motif base that still holds relevance after pruning,
    against the greatest of a base outside that holds none. A threshold on LRP could not keep the first and drop the
    second. Of all sequences the one with the widest gap is returned; None where there is no such case.
    """
    before, after = np.asarray(lrp, np.float64), np.asarray(pruned, np.float64)
    survives = mask & (after > 0) & (before > 0)
    most = np.where(~mask & (after == 0) & (before > 0), before, -np.inf)
    gap = most.max(1, initial=-np.inf) - np.where(survives, before, np.inf).min(1, initial=np.inf)
    with_one = int((gap > 0).sum())
    if not with_one:
        return None
    # Shown is a survivor that a reader can see, if there is one: a twentieth of the strongest base.
    least = np.where(survives & (after >= 0.05 * after.max(1, keepdims=True)), before, np.inf)
    visible = most.max(1, initial=-np.inf) - least.min(1, initial=np.inf)
    if not (visible > 0).any():
        least, visible = np.where(survives, before, np.inf), gap
    row = int(visible.argmax())
    inside, outside = int(least[row].argmin()), int(most[row].argmax())
    return NotAThreshold(
        row, inside, outside, float(before[row, inside]), float(before[row, outside]), with_one, len(gap)
    )


def judge_threshold(example: NotAThreshold | None, sequences: int) -> Statement:
    """Whether PLRP is not a threshold on LRP, by the clearest case among `sequences` that were examined."""
    if example is None:
        return not_a_threshold(0, sequences)
    clearest = (
        f"the clearest: {example.lrp_inside:.4f} at base {example.inside} kept, {example.lrp_outside:.4f} at base "
        f"{example.outside} pruned"
    )
    return not_a_threshold(example.sequences_with_one, example.sequences, clearest)


def not_a_threshold(cases: int, sequences: int, clearest: str = "") -> Statement:
    """'It maintains relevance scores within the ground truth mask that are smaller than the noise elsewhere.'

    cases: sequences in which a motif base survives with less LRP relevance than a pruned base outside.
    """
    claim = "PLRP is not a threshold on LRP"
    rule = "in some sequence a motif base survives with less LRP relevance than a base outside that is pruned"
    said = Statement("logos", claim, rule)
    if not sequences:
        return said.unmeasured("relevance maps of LRP and λ with their masks")
    if not cases:
        return said.judged(sequences, False, f"no such case among {sequences} sequences")
    numbers = (f"such a pair in {cases} of {sequences} sequences", clearest)
    return replace(said, holds=True, numbers=numbers, samples=sequences)  # one case is enough


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


def _to_lrp(m: AlignedScores, metric: str, variants: Iterable[str]) -> dict[Method, Difference]:
    """The differences to LRP of some variants at every p."""
    return {Method(v, p): d for v in variants for p, d in m.differences(metric, v).items()}


def _most(apart: Iterable[Difference]) -> int:
    """The samples of the fullest comparison."""
    return max((d.count for d in apart), default=0)


def _symbol(variant: str) -> str:
    return LABELS[variant].removeprefix("PLRP-")


def _of(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _listed(apart: Mapping[float, Difference]) -> str:
    return ", ".join(f"p = {p:g}: {d}" for p, d in apart.items())


def _minus_lrp(m: AlignedScores, metric: str, apart: Mapping[Method, Difference]) -> str:
    each = ", ".join(f"{method} {d}" for method, d in apart.items())
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
