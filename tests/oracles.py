"""Slow re-statements of every formula the engine uses: explicit matrices, float64, one sample at a time.

Written from the design and the paper alone, never from the implementation, so that an error has to be made
twice to pass. Nothing here is fast, and nothing here imports plrp.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

# ---------------------------------------------------------------- one operation


def positive(t: Tensor) -> Tensor:
    return torch.where(t > 0, t, torch.zeros_like(t))


def negative(t: Tensor) -> Tensor:
    """The negative part, with its sign: t = positive(t) + negative(t)."""
    return torch.where(t < 0, t, torch.zeros_like(t))


def epsilon_term(z: Tensor, epsilon: float = 1e-6) -> Tensor:
    """What the stabiliser adds: epsilon with the sign of z, where zero counts as positive."""
    return torch.where(z >= 0, epsilon, -epsilon).to(z.dtype)


def stabilise(z: Tensor, epsilon: float = 1e-6) -> Tensor:
    return z + epsilon_term(z, epsilon)


def unit_responses(op: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Tensor:
    """The matrix w_jk (inputs × outputs) of a linear `op`, found by pushing every unit vector through it."""
    size = math.prod(shape)
    units = torch.eye(size, dtype=torch.float64)
    return torch.stack([op(unit.reshape(1, *shape)).reshape(-1) for unit in units])


def without_bias(module: nn.Module) -> nn.Module:
    """A float64 copy of a conv or linear module whose bias is gone."""
    bare = copy.deepcopy(module).double()
    if getattr(bare, "bias", None) is not None:
        bare.bias = None
    return bare


def with_unit_weights(module: nn.Module) -> nn.Module:
    """A float64 copy of a conv or linear module, every weight one and no bias: its connections, counted."""
    bare = without_bias(module)
    with torch.no_grad():
        bare.weight.fill_(1.0)
    return bare


@dataclass(frozen=True)
class Branch:
    """Contributions n_jk of one branch of a rule, the bias beside them, and its weight (alpha, −beta)."""

    n: Tensor  # (inputs, outputs)
    bias: Tensor  # (outputs,)
    factor: Tensor  # (outputs,)
    epsilon: float = 1e-6

    @property
    def z(self) -> Tensor:
        return self.n.sum(0)

    @property
    def denominator(self) -> Tensor:
        return stabilise(self.z + self.bias, self.epsilon)


def branches(rule: str, x: Tensor, w: Tensor, b: Tensor, ones: Tensor | None = None, **options: Any) -> list[Branch]:
    """The branches of a rule for one sample.

    x: (inputs,); w: (inputs, outputs); b: (outputs,), zeros without a bias; ones: the matrix of the op with
    all weights one, for Flat.
    """
    everyone = torch.ones_like(b)
    nothing = torch.zeros_like(b)
    xw, epsilon = x[:, None] * w, options.get("epsilon", 1e-6)
    if rule == "zero":
        return [Branch(xw, b, everyone, 0.0)]
    if rule == "epsilon":
        return [Branch(xw, b, everyone, epsilon)]
    if rule == "zplus":
        return [Branch(positive(xw), positive(b), everyone)]
    if rule == "signed-zplus":
        z = xw.sum(0) + b
        return [
            Branch(positive(xw), positive(b), (z > 0).to(w.dtype)),
            Branch(negative(xw), negative(b), (z < 0).to(w.dtype)),
        ]
    if rule == "alphabeta":
        alpha, beta = options.get("alpha", 2.0), options.get("beta", 1.0)
        return [
            Branch(positive(xw), positive(b), alpha * everyone, epsilon),
            Branch(negative(xw), negative(b), -beta * everyone, epsilon),
        ]
    if rule == "gamma":
        gamma = options.get("gamma", 0.25)
        z = xw.sum(0) + b
        return [
            Branch(xw + gamma * positive(xw), b + gamma * positive(b), (z > 0).to(w.dtype), epsilon),
            Branch(xw + gamma * negative(xw), b + gamma * negative(b), (z < 0).to(w.dtype), epsilon),
        ]
    if rule == "zbox":
        low = torch.as_tensor(options["low"], dtype=w.dtype).expand_as(x)
        high = torch.as_tensor(options["high"], dtype=w.dtype).expand_as(x)
        return [Branch(xw - low[:, None] * positive(w) - high[:, None] * negative(w), nothing, everyone, epsilon)]
    if rule == "flat":
        assert ones is not None
        return [Branch(ones, nothing, everyone)]
    if rule == "wsquare":
        return [Branch(w**2, b**2, everyone)]
    raise ValueError(rule)


@dataclass
class HandedDown:
    """Relevance one linear op hands to its input, with what its bias and its stabiliser took."""

    relevance: Tensor
    absorbed_bias: float = 0.0
    absorbed_epsilon: float = 0.0


def hand_down(parts: list[Branch], r: Tensor) -> HandedDown:
    """r_j = Σ_k n_jk · R_k / d_k for every branch, entry by entry of the ledger from its own formula."""
    total = torch.zeros(parts[0].n.shape[0], dtype=r.dtype)
    took = HandedDown(total)
    for part in parts:
        share = torch.where(part.factor * r == 0, torch.zeros_like(r), part.factor * r / part.denominator)
        took.relevance = took.relevance + (part.n * share).sum(1)
        took.absorbed_bias += float((part.bias * share).sum())
        took.absorbed_epsilon += float((epsilon_term(part.z + part.bias, part.epsilon) * share).sum())
    return took


def empty_branch_creation(parts: list[Branch], r: Tensor) -> float:
    """αβ only: mass that appears because the negative branch has nobody to take beta·R back from.

    alpha·R − beta·R = R needs both branches; without inputs or bias in the negative one, beta·R too much goes
    down. (An empty positive branch loses alpha·R instead, to the stabiliser that is all of its denominator.)
    """
    created = 0.0
    for part in parts:
        empty = (part.n.abs().sum(0) == 0) & (part.bias == 0) & (part.factor < 0)
        created -= float((part.factor * r)[empty].sum())
    return created


# ---------------------------------------------------------------- what is cut


def binary_exponent(v: float) -> int:
    return math.frexp(v)[1]


def cumulated_mass(values: Iterable[float]) -> float:
    """Σ as the design adds it: exact sums per binary exponent, these added ascending in float64."""
    by_exponent: dict[int, Fraction] = {}
    for v in values:
        if v != 0:
            exponent = binary_exponent(v)
            by_exponent[exponent] = by_exponent.get(exponent, Fraction(0)) + Fraction(v)
    total = 0.0
    for exponent in sorted(by_exponent):
        total = total + float(by_exponent[exponent])
    return total


def threshold(values: Iterable[float], p: float) -> float:
    """θ: the largest entry below the maximum with C(θ) ≤ p·C(max), ties counted together; 0 if none."""
    entries = [abs(float(v)) for v in values]
    if not entries:
        return 0.0
    largest = max(entries)
    allowed = p * cumulated_mass(entries)
    theta = 0.0
    for candidate in sorted(set(entries)):
        if candidate < largest and cumulated_mass(v for v in entries if v <= candidate) <= allowed:
            theta = max(theta, candidate)
    return theta


def acceptable_thresholds(values: Iterable[float], p: float, slack: float = 1e-12) -> set[float]:
    """For float64 entries: every θ that is right once C(θ) may be off by `slack`·C(max)."""
    entries = [abs(float(v)) for v in values]
    total = sum(map(Fraction, entries), Fraction(0))
    largest = max(entries, default=0.0)
    accepted = {0.0}
    cumulated = Fraction(0)
    for candidate in sorted(set(entries)):
        if candidate >= largest:
            break
        cumulated += Fraction(candidate) * entries.count(candidate)
        if cumulated <= Fraction(p) * total - Fraction(slack) * total:
            accepted = {candidate}
        elif cumulated <= Fraction(p) * total + Fraction(slack) * total:
            accepted.add(candidate)
    return accepted


def gini(values: list[Fraction]) -> Fraction:
    """Gini index of non-negative values: Σ_i (2i − n − 1)·v_i / (n·Σ v), i = 1 for the smallest."""
    n, total = len(values), sum(values, Fraction(0))
    if total == 0:
        return Fraction(0)
    return sum(((2 * i - n - 1) * v for i, v in enumerate(sorted(values), 1)), Fraction(0)) / (n * total)


def share_of_zeros(values: list[Fraction]) -> Fraction:
    return Fraction(sum(v == 0 for v in values), len(values))


def gains(values: Iterable[float], measure: str) -> list[tuple[float, Fraction]]:
    """(value, Δs / share of mass pruned) of every tie group but the largest, ascending, exactly."""
    current = [Fraction(float(v)) for v in values]
    s = {"zeros": share_of_zeros, "gini": gini}[measure]
    total = sum(current, Fraction(0))
    groups = sorted({v for v in current if v > 0})
    found = []
    for value in groups[:-1]:
        thinner = [Fraction(0) if v == value else v for v in current]
        pruned_share = (sum(current, Fraction(0)) - sum(thinner, Fraction(0))) / total
        found.append((float(value), (s(thinner) - s(current)) / pruned_share))
        current = thinner
    return found


def gain_threshold(values: Iterable[float], gain: float, measure: str, p: float | None = None) -> tuple[float, float]:
    """θ of the sparsity gain, and how near the nearest decision was to going the other way (relative)."""
    entries = [float(v) for v in values]
    total = sum(map(Fraction, entries), Fraction(0))
    theta, margin, cumulated = 0.0, math.inf, Fraction(0)
    for value, gained in gains(entries, measure):
        cumulated += Fraction(value) * entries.count(value)
        margin = min(margin, abs(float(gained / Fraction(gain)) - 1))
        if p is not None:
            margin = min(margin, abs(float(cumulated / total) - p))
        if gained < Fraction(gain) or (p is not None and cumulated > Fraction(p) * total):
            break
        theta = value
    return theta, margin


# ---------------------------------------------------------------- where mass goes


@dataclass(frozen=True)
class Cut:
    """How to prune: the fields of plrp.Pruning the oracle knows."""

    p: float | None = 0.15
    p_negative: float | None = None
    redistribution: str = "lambda"
    conserve: bool = True
    sparsity_gain: float | None = None
    measure: str = "zeros"
    layers: dict[str, float] = field(default_factory=dict)
    groups: dict[str, list[int]] = field(default_factory=dict)  # by tensor: the group of each entry

    def thresholds(self, r: Tensor, p: Any = None) -> tuple[float, float]:
        p_positive, own = p if isinstance(p, tuple | list) else (self.p if p is None else p, self.p_negative)
        p_negative = p_positive if own is None else own
        parts = (positive(r).tolist(), (-negative(r)).tolist())
        if self.sparsity_gain is not None:
            found = [
                gain_threshold(part, self.sparsity_gain, self.measure, limit)[0] if any(part) else 0.0
                for part, limit in zip(parts, (p_positive, p_negative), strict=True)
            ]
        else:
            assert p_positive is not None
            assert p_negative is not None
            found = [threshold(parts[0], p_positive), threshold(parts[1], p_negative)]
        return found[0], found[1]


@dataclass
class Pruned:
    """A tensor's relevance after pruning, and what the test may want to know about the way there."""

    relevance: Tensor
    mask: Tensor
    theta: tuple[float, float]
    orphans: int = 0
    unplaced_skip: float = 0.0  # skip mass whose sign had no survivor
    without_own_sign: float = 0.0  # of the two, what went to survivors of either sign
    flipped: int = 0
    flipped_mass: float = 0.0


def rescale_survivors(r: Tensor, mask: Tensor) -> Tensor:
    """PLRP-λ: every sign's survivors times mass before / mass after."""
    out = torch.zeros_like(r)
    for part in (positive(r), negative(r)):
        kept = part * mask
        if float(kept.sum()) != 0:
            out = out + kept * (part.sum() / kept.sum())
    return out


def surviving_groups(r: Tensor, groups: list[int], cut: Cut, p: float | None) -> tuple[Tensor, tuple[float, float]]:
    """The mask of whole groups, each weighed by its mass of either sign; and θ over these masses."""
    names = sorted(set(groups))
    ups, downs = (
        r.new_tensor([sum(max(sign * float(v), 0.0) for v, g in zip(r, groups, strict=True) if g == n) for n in names])
        for sign in (1, -1)
    )
    theta = cut.thresholds(ups, p)[0], cut.thresholds(-downs, p)[1]
    stays = {n for n, up, down in zip(names, ups, downs, strict=True) if up > theta[0] or down > theta[1]}
    return torch.tensor([float(g in stays) for g in groups], dtype=r.dtype), theta


def prune(
    r: Tensor,
    readers: list[tuple[list[Branch], Tensor]],
    skip: Tensor,
    cut: Cut,
    p: float | None,
    groups: list[int] | None = None,
) -> Pruned:
    """Cut the total relevance r of one tensor, and redistribute.

    readers: the rule's branches and the output relevance R_k of every conv/linear that reads the tensor.
    skip: relevance that came over all other readers; r = Σ handed down + skip.
    """
    if groups is None:
        theta = cut.thresholds(r, p)
        mask = ((r > theta[0]) | (-r > theta[1])).to(r.dtype)
    else:
        mask, theta = surviving_groups(r, groups, cut, p)
    result = Pruned(r, mask, theta)
    if bool(((mask == 0) & (r != 0)).any()):
        if cut.redistribution == "lambda":
            result.relevance = rescale_survivors(r, mask) if cut.conserve else r * mask
        elif cut.conserve:
            reattribute(r, readers, skip, result, by_sign=cut.redistribution == "M-sign")
        else:
            reapplied = torch.zeros_like(r)
            for parts, upper in readers:
                masked = [Branch(mask[:, None] * q.n, q.bias, q.factor, q.epsilon) for q in parts]
                reapplied = reapplied + hand_down(masked, upper).relevance
            result.relevance = reapplied + mask * skip
    flipped = (result.relevance * r < 0) & (mask == 1)
    result.flipped = int(flipped.sum())
    result.flipped_mass = float(result.relevance[flipped].abs().sum())
    return result


def reattribute(
    r: Tensor, readers: list[tuple[list[Branch], Tensor]], skip: Tensor, result: Pruned, by_sign: bool = False
) -> None:
    """PLRP-M, sentence by sentence: m_k, n̂_k, r̂_j, orphans, the skip, and what has nobody to go to.

    by_sign: PLRP-M±, the same for the positive and for the negative contributions of each branch.
    """
    mask = result.mask
    out = torch.zeros_like(r)
    unplaced = {+1: 0.0, -1: 0.0}
    for parts, upper in readers:
        for part in parts:
            for k in range(part.n.shape[1]):
                if float(part.factor[k] * upper[k]) == 0:
                    continue
                for n in (positive(part.n[:, k]), negative(part.n[:, k])) if by_sign else (part.n[:, k],):
                    total = n.sum() if by_sign else part.z[k]
                    m_k = part.factor[k] * upper[k] * total / part.denominator[k]
                    masked = mask * n
                    if abs(float(masked.sum())) <= 1e-6 * float((n if by_sign else masked).abs().sum()):
                        if float(m_k) != 0:
                            result.orphans += 1
                            unplaced[+1 if float(m_k) > 0 else -1] += float(m_k)
                    else:
                        out = out + masked * m_k / masked.sum()
    for sign, part in ((+1, positive(skip)), (-1, negative(skip))):
        kept = part * mask
        if float(kept.sum()) != 0:
            out = out + kept * (part.sum() / kept.sum())
        else:
            unplaced[sign] += float(part.sum())
            result.unplaced_skip += abs(float(part.sum()))
    for sign, mass in unplaced.items():
        if mass == 0:
            continue
        same_sign = mask * positive(sign * r)
        if float(same_sign.sum()) == 0:
            result.without_own_sign += abs(mass)
            same_sign = mask * r.abs()
        out = out + mass * same_sign / same_sign.sum()
    result.relevance = out


# ---------------------------------------------------------------- a whole network


@dataclass(frozen=True)
class Step:
    """One operation of a small network on flat vectors; `name` is both the step's and its output's name.

    kinds: 'linear' (matrix, bias, ones), 'pass' (function), 'add', 'split' (matrix), 'move' (winner or
    rearrangement: function from the source's value to its 0/1 matrix).
    """

    name: str
    kind: str
    sources: tuple[str, ...]
    matrix: Tensor | None = None
    bias: Tensor | None = None
    ones: Tensor | None = None
    function: Callable[[Tensor], Tensor] | None = None


def linear_step(name: str, source: str, module: nn.Module, shape: tuple[int, ...]) -> Step:
    """The step of a conv or linear module that reads inputs of `shape` (without the batch axis)."""
    with torch.no_grad():
        matrix = unit_responses(without_bias(module), shape)
        ones = unit_responses(with_unit_weights(module), shape)
        zero = torch.zeros(1, *shape, dtype=torch.float64)
        bias = copy.deepcopy(module).double()(zero).reshape(-1)
    return Step(name, "linear", (source,), matrix, bias, ones)


def relu_step(name: str, source: str) -> Step:
    return Step(name, "pass", (source,), function=lambda v: v.clamp(min=0))


def add_step(name: str, *sources: str) -> Step:
    return Step(name, "add", sources)


def split_step(name: str, source: str, op: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Step:
    return Step(name, "split", (source,), unit_responses(op, shape))


def winner_step(name: str, source: str, op: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Step:
    """Max pooling and rearrangements: the 0/1 Jacobian at the value itself."""

    def matrix(value: Tensor) -> Tensor:
        jacobian = torch.autograd.functional.jacobian(lambda v: op(v.reshape(1, *shape)).reshape(-1), value)
        return jacobian.T

    return Step(name, "move", (source,), function=matrix)


@dataclass
class Walk:
    """Relevance of every tensor of the network, after pruning, and the record of every pruned one."""

    values: dict[str, Tensor]
    relevance: dict[str, Tensor]
    pruned: dict[str, Pruned]
    absorbed_bias: float = 0.0
    absorbed_epsilon: float = 0.0


def walk(
    steps: list[Step],
    x: Tensor,
    output: int,
    rule_of: Callable[[Step, bool], tuple[str, dict[str, Any]]],
    cut: Cut | None = None,
) -> Walk:
    """Explain output unit `output` of the last step for one flat float64 sample x; the input is named 'x'.

    rule_of(step, is_first) names the rule of a linear step.
    """
    values: dict[str, Tensor] = {"x": x}
    moves: dict[str, Tensor] = {}
    has_linear_below: dict[str, bool] = {"x": False}
    first: set[str] = set()
    for step in steps:
        inputs = [values[s] for s in step.sources]
        below = any(has_linear_below[s] for s in step.sources)
        if step.kind == "linear":
            values[step.name] = inputs[0] @ step.matrix + step.bias
            if not below:
                first.add(step.name)
        elif step.kind == "pass":
            values[step.name] = step.function(inputs[0])
        elif step.kind == "add":
            values[step.name] = torch.stack(inputs).sum(0)
        elif step.kind == "split":
            values[step.name] = inputs[0] @ step.matrix
        elif step.kind == "move":
            moves[step.name] = step.function(inputs[0])
            values[step.name] = inputs[0] @ moves[step.name]
        has_linear_below[step.name] = below or step.kind == "linear"

    top = steps[-1].name
    start = torch.zeros_like(values[top])
    start[output] = values[top][output]
    over_linear: dict[str, list[tuple[Step, list[Branch], Tensor]]] = {}
    over_others: dict[str, list[Tensor]] = {top: [start]}
    result = Walk(values, {}, {})

    def collect(name: str) -> Tensor:
        """Sum what all readers handed to the tensor; prune it if a conv/linear above the first reads it."""
        readers = over_linear.get(name, [])
        skip = torch.stack([torch.zeros_like(values[name]), *over_others.get(name, [])]).sum(0)
        r = skip.clone()
        for _, parts, upper in readers:
            r = r + hand_down(parts, upper).relevance
        names = [step.name for step, _, _ in readers if step.name not in first]
        if cut is not None and names:
            p = next((cut.layers[n] for n in names if n in cut.layers), None)
            result.pruned[name] = prune(
                r, [(parts, upper) for _, parts, upper in readers], skip, cut, p, cut.groups.get(name)
            )
            r = result.pruned[name].relevance
        result.relevance[name] = r
        return r

    for step in reversed(steps):
        r = collect(step.name)
        inputs = [values[s] for s in step.sources]
        if step.kind == "linear":
            rule, options = rule_of(step, step.name in first)
            parts = branches(rule, inputs[0], step.matrix, step.bias, step.ones, **options)
            over_linear.setdefault(step.sources[0], []).append((step, parts, r))
            took = hand_down(parts, r)
            result.absorbed_bias += took.absorbed_bias
            result.absorbed_epsilon += took.absorbed_epsilon
        elif step.kind == "pass":
            over_others.setdefault(step.sources[0], []).append(r)
        elif step.kind == "add":
            z = values[step.name]
            for source, value in zip(step.sources, inputs, strict=True):
                over_others.setdefault(source, []).append(value * r / stabilise(z))
        elif step.kind == "split":
            parts = [Branch(inputs[0][:, None] * step.matrix, torch.zeros_like(r), torch.ones_like(r))]
            over_others.setdefault(step.sources[0], []).append(hand_down(parts, r).relevance)
        elif step.kind == "move":
            over_others.setdefault(step.sources[0], []).append(moves[step.name] @ r)
    collect("x")
    return result


def epsilon_plus_flat(convs: Iterable[str] = ()) -> Callable[[Step, bool], tuple[str, dict[str, Any]]]:
    """The default composite: Flat first, z⁺ for the named convs, ε for every linear layer."""
    convs = set(convs)
    return lambda step, first: ("flat", {}) if first else (("zplus", {}) if step.name in convs else ("epsilon", {}))


# ---------------------------------------------------------------- models and ledgers


def fold_batchnorm(model: nn.Module) -> nn.Module:
    """A copy of a network with every BatchNorm merged into the conv before it, an Identity in its place.

    Goes by execution order: each BatchNorm takes the conv whose output it read in one forward pass.
    """
    model = copy.deepcopy(model)
    written: dict[int, nn.Module] = {}
    pairs: list[tuple[nn.Module, nn.Module]] = []
    alive: list[Tensor] = []

    def remember(module: nn.Module, _: Any, out: Tensor) -> None:
        alive.append(out)
        written[id(out)] = module

    def pair(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        pairs.append((written[id(args[0])], module))

    handles = []
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
            handles.append(module.register_forward_hook(remember))
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            handles.append(module.register_forward_pre_hook(pair))
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        model(torch.randn(1, 3, 64, 64, dtype=dtype))
        for conv, bn in pairs:
            scale = bn.weight / torch.sqrt(bn.running_var + bn.eps)
            conv.weight.mul_(scale.reshape(-1, *[1] * (conv.weight.dim() - 1)))
            bias = conv.bias if conv.bias is not None else torch.zeros_like(bn.bias)
            conv.bias = nn.Parameter((bias - bn.running_mean) * scale + bn.bias)
    for handle in handles:
        handle.remove()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if any(child is bn for _, bn in pairs):
                setattr(parent, name, nn.Identity())
    return model


def randomise_statistics(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every BatchNorm random statistics, scales and shifts."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                draw = torch.rand(4, module.num_features, generator=generator)
                module.running_mean.copy_(0.4 * (draw[0] - 0.5))
                module.running_var.copy_(0.5 + draw[1])
                module.weight.copy_(0.5 + draw[2])
                module.bias.copy_(0.4 * (draw[3] - 0.5))
    return model


def net(row: dict[str, Any], side: str) -> float:
    return row[f"mass_{side}_positive"] - row[f"mass_{side}_negative"]


def mass(row: dict[str, Any], side: str) -> float:
    return row[f"mass_{side}_positive"] + row[f"mass_{side}_negative"]


def lost(row: dict[str, Any]) -> float:
    """What a ledger row says did not go down: absorbed, taken by a softmax, dropped, withheld, less what is new."""
    taken = row["absorbed_bias"] + row["absorbed_constant"] + row["absorbed_epsilon"] + row["softmax"] + row["dropped"]
    return taken + row["withheld"] - row["created"]


def ledger_gaps(explanation: Any, scores: Tensor) -> tuple[float, float]:
    """(worst row, worst total) by which the ledger fails to close, relative to the largest ‖R‖₁."""
    relevance = explanation.relevance
    tensors = relevance if isinstance(relevance, tuple) else (relevance,)
    worst_row = worst_total = 0.0
    for sample, score in enumerate(scores.double().tolist()):
        rows = [row for row in explanation.ledger if row["sample"] == sample]
        assert rows, "a sample has no row in the ledger"
        largest = max([abs(score)] + [mass(row, side) for row in rows for side in ("in", "out")])
        assert math.isfinite(largest)
        if largest == 0:
            continue
        for row in rows:
            worst_row = max(worst_row, abs(net(row, "in") - net(row, "out") - lost(row)) / largest)
        arrived = sum(float(t[sample].double().sum()) for t in tensors)
        total = score - arrived - sum(lost(row) for row in rows)
        worst_total = max(worst_total, abs(total) / largest)
    return worst_row, worst_total


def assert_ledger_closes(explanation: Any, scores: Tensor, tolerance: float) -> None:
    row, total = ledger_gaps(explanation, scores)
    assert row <= tolerance, f"a ledger row is off by {row:.2e}"
    assert total <= tolerance, f"the ledger's total is off by {total:.2e}"


def relative_difference(a: Tensor, b: Tensor) -> float:
    """max |a − b| over max |b|."""
    scale = float(b.abs().max())
    return float((a.double() - b.double()).abs().max()) / scale if scale else float(a.abs().max())
