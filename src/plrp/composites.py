"""Which layer gets which rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from .errors import UnsupportedOperation
from .rules import AlphaBeta, Centred, Epsilon, Flat, Gamma, Rule, SignedZPlus, WSquare, ZBox, Zero, ZPlus, nonnegative
from .settings import AGAINST
from .spelling import nearest
from .tables import render_table
from .tape.difference import DifferenceTrace
from .tape.operations import Family
from .tape.recognition import is_residual
from .tape.trace import Trace
from .tape.values import PRODUCTS, Op, Value, below_offsets

__all__ = ["is_any", "is_conv", "is_linear"]

Predicate = Callable[[Op], bool]


def is_conv(op: Op) -> bool:
    """Whether a layer is a convolution, transposed ones included."""
    return op.kind.startswith("conv")


def is_linear(op: Op) -> bool:
    """Whether a layer is a linear one, or a product with a constant matrix."""
    return op.kind == "linear"


def is_any(op: Op) -> bool:
    """Any conv or linear layer."""
    return True


class Composite:
    """Rules for the conv and linear layers of a network.

    A layer takes the rule under its own name in `layers`, else `first` if it is a first layer (no conv or linear below
    it) and `first` is given, else that of the first pair (predicate, rule) whose predicate holds. All other operations
    have one rule each, stated in the documentation, with three choices:

    - `products`: how a product of two signals divides: `"half"` to each; all to the one that is neither a gate nor an
      activation (`"gated"`); None refuses such products, and the softmax of an attention with them; `"taylor"` takes
      the first-order expansion of every operation;
    - `residual_gamma`: γ of sums a + b, which favours the summand of the sum's own sign; None: in proportion;
    - `epsilon`: ε of all these operations; None: 1e-6, larger in half precision.

    `reason` says why `"auto"` has chosen it.
    """

    def __init__(
        self,
        rules: Sequence[tuple[Predicate, Rule]],
        *,
        first: Rule | None = None,
        layers: Mapping[str, Rule] | None = None,
        name: str = "custom",
        products: str | None = None,
        residual_gamma: float | None = None,
        epsilon: float | None = None,
        reason: str | None = None,
    ) -> None:
        for pair in rules:
            if not (isinstance(pair, tuple) and len(pair) == 2 and callable(pair[0]) and isinstance(pair[1], Rule)):
                raise TypeError(f"A composite is made of pairs (predicate, rule), got {pair!r}.")
        if products not in PRODUCTS:
            raise ValueError(f"products is 'half', 'gated', 'taylor' or None, got {products!r}.")
        self.rules, self.first, self.layers = tuple(rules), first, dict(layers or {})
        self.name, self.reason, self.products = name, reason, products
        self.residual_gamma = nonnegative("residual_gamma", residual_gamma)
        self.epsilon = nonnegative("epsilon", epsilon)

    def with_layers(self, layers: Mapping[str, Rule]) -> Composite:
        """The same composite with these layers' rules overridden by name."""
        copied = copy(self)
        copied.layers = {**self.layers, **layers}
        return copied

    def on(self, ops: Sequence[Op], start: Sequence[Value], against: bool = False) -> Composite:
        """This composite for relevance that goes down a tape from `start`, of a difference if `against` a reference;
        refused where a rule would turn signs.
        """
        if against:
            return self._on_differences([op for op in ops if op.is_layer])
        reason = next(iter(self.refusals(ops, start).values()), None)
        if reason is not None:
            raise UnsupportedOperation(f"{reason} Use epsilon, gamma or z⁺ there, say composite='epsilon-gamma'.")
        return self.for_signs(ops, start)

    def for_signs(self, ops: Sequence[Op], start: Sequence[Value]) -> Composite:
        """This composite with z⁺ for outputs of either sign below an activation that is not 0 at 0."""
        below = {op.name: self.rule(op) for op in below_offsets(ops, start, self.products)}
        plus = {name: rule for name, rule in below.items() if type(rule) in (ZPlus, AlphaBeta) and not _one_sided(rule)}
        return self.with_layers({name: SignedZPlus(rule.epsilon) for name, rule in plus.items()}) if plus else self

    def refusals(self, ops: Sequence[Op], start: Sequence[Value]) -> dict[str, str]:
        """The layers whose rule would turn signs, by name, each with the reason; `ops`, `start`: see `on`."""
        return {
            op.name: f"{self.rule(op).name} would turn signs in layer '{op.name}': the {kind} above it is not 0 at 0, "
            "so outputs below 0 carry relevance too."
            for op, kind in below_offsets(ops, start, self.products).items()
            if _one_sided(self.rule(op))
        }

    def _on_differences(self, layers: Sequence[Op]) -> Composite:
        """The rules on Δ: without ε, z⁺ by the sign of Δz, products by the midpoint; others have no meaning there."""
        if self.products in ("gated", "taylor"):
            raise ValueError(f"The composite '{self.name}' has no meaning against a reference: take 'rescale'.")
        rules: dict[str, Rule] = {}
        for op in layers:
            rule = SignedZPlus() if type(self.rule(op)) is ZPlus else copy(self.rule(op))
            if isinstance(rule, AlphaBeta | ZBox | Centred) or (isinstance(rule, Flat | WSquare) and not op.first):
                where = "but for first layers " * isinstance(rule, Flat | WSquare)
                raise UnsupportedOperation(
                    f"{rule.name} {where}has no meaning for differences to a reference (layer '{op.name}'): use "
                    "epsilon, gamma or z⁺ there, say composite='rescale-gamma'."
                )
            rule.epsilon = 0.0
            rules[op.name] = rule
        copied = self.with_layers(rules)
        copied.products, copied.epsilon = "half", 0.0
        return copied

    def rule(self, op: Op) -> Rule:
        """The rule of a conv or linear layer."""
        if op.name in self.layers:
            return self.layers[op.name]
        if op.first and self.first is not None:
            return self.first
        for holds, rule in self.rules:
            if holds(op):
                return rule
        raise ValueError(
            f"The composite '{self.name}' has no rule for layer '{op.name}' ({op.kind}); add a pair "
            "(plrp.composites.is_any, rule) at its end."
        )

    @property
    def needs_outputs(self) -> bool:
        """Whether the rule of a convolution may ask for its output. (If in doubt, yes.)"""
        if any(rule.needs_output for rule in (self.first, *self.layers.values()) if rule is not None):
            return True
        for holds, rule in self.rules:
            if holds is not is_linear and rule.needs_output:
                return True
            if holds in (is_conv, is_any):  # no convolution gets further down
                break
        return False

    def rule_name(self, op: Op) -> str:
        """The name of an operation's rule in tables."""
        if op.rule is not None:
            return getattr(op.rule, "__name__", "registered")
        if op.is_layer:
            return self.rule(op).name
        if not op.supported(self.products):
            return f"none: {op.reason}" if op.reason else "none"
        if op.family is Family.GATE and len(op.receivers(self.products)) > 1:
            return Family.PRODUCT.value
        if self.residual_gamma and op.operation.adds and is_residual(op):
            return f"γ-weighted ({self.residual_gamma:g})"
        return op.family.value

    def table(self, trace: Trace) -> str:
        """The layers of a trace with their rules, layer ⇒ rule."""
        self.check(trace)
        names = self.rule_names(trace)
        return render_table(("layer", "⇒", "rule"), [(op.name, "⇒", names[op]) for op in trace.layers])

    def rule_names(self, trace: Trace) -> dict[Op, str]:
        """The names of the rules of all operations of a trace, in tables; a refused one says why."""
        if trace.now is not trace:
            here = self.on(trace.ops, trace.leaves, against=True)
            return {op: here.rule_name(op) for op in trace.ops}
        here, refusals = self.for_signs(trace.ops, trace.leaves), self.refusals(trace.ops, trace.leaves)
        reasons = {name: f"none: {reason}" for name, reason in refusals.items()}
        return {op: reasons.get(op.name) or here.rule_name(op) for op in trace.ops}

    def check(self, trace: Trace) -> None:
        """Refuse overrides for layers that the trace does not have."""
        names = [op.name for op in trace.layers]
        for name in self.layers:
            if name not in names:
                hint = nearest(name, names)
                raise ValueError(f"The composite names layer '{name}', which the model does not have{hint}.")

    def __repr__(self) -> str:
        rows = [(f"layer '{name}'", repr(rule)) for name, rule in self.layers.items()]
        rows += [("first layers", repr(self.first))] if self.first is not None else []
        rows += [(getattr(holds, "__name__", "custom"), repr(rule)) for holds, rule in self.rules]
        rows += [("products of two signals", self.products)] if self.products is not None else []
        rows += [("sums", f"γ = {self.residual_gamma:g}")] if self.residual_gamma else []
        return f"{self.name}\n" + render_table(("layers", "rule"), rows)


def _one_sided(rule: Rule) -> bool:
    """Whether a rule takes it for granted that outputs below 0 carry no relevance, and has no form for them."""
    return isinstance(rule, ZBox) or (isinstance(rule, AlphaBeta) and rule.beta > 0)


def _by_kind(convolutions: Rule, first: Rule | None = None) -> Composite:
    """A rule for convolutions, ε for linear layers."""
    return Composite([(is_conv, convolutions), (is_any, Epsilon())], first=first)


def _for_attention(products: str, gamma: float | None, epsilon: float | None) -> Composite:
    """ε for every layer, or γ where it is given."""
    rule = Gamma(gamma, epsilon) if gamma else Epsilon(epsilon)
    return Composite([(is_any, rule)], products=products, epsilon=epsilon)


_NAMED: dict[str, Callable[..., Composite]] = {
    "epsilon-plus-flat": lambda: _by_kind(ZPlus(), Flat()),
    "epsilon-plus": lambda: _by_kind(ZPlus()),
    "epsilon-alpha2-beta1-flat": lambda: _by_kind(AlphaBeta(2, 1), Flat()),
    "epsilon-alpha2-beta1": lambda: _by_kind(AlphaBeta(2, 1)),
    "epsilon-gamma-box": lambda low=None, high=None, gamma=0.25: _by_kind(Gamma(gamma), ZBox(low, high)),
    "epsilon-gamma": lambda gamma=0.05: _by_kind(Gamma(gamma)),
    "epsilon-gamma-centred": lambda gamma=0.05: _by_kind(Gamma(gamma), Centred()),
    "epsilon": lambda: Composite([(is_any, Epsilon())]),
    "attnlrp": lambda gamma=None, epsilon=None: _for_attention("half", gamma, epsilon),
    "cp-lrp": lambda gamma=None, epsilon=None: _for_attention("gated", gamma, epsilon),
    "gradient-input": lambda: Composite([(is_any, Zero())], products="taylor", epsilon=0.0),
    "rescale": lambda: Composite([(is_any, Epsilon())]),
    "rescale-gamma": lambda gamma=0.25: _by_kind(Gamma(gamma)),
    "rescale-plus": lambda: _by_kind(ZPlus()),
}
AUTO = "auto"


def composite(name: str, **options: Any) -> Composite:
    """A composite by name. Every one takes `residual_gamma`, the γ of sums a + b, for networks with skips;
    `epsilon-gamma-box` also `low`, `high` (the box of the input) and `gamma`; `attnlrp` and `cp-lrp` a `gamma` for
    their layers, and `epsilon`.

    - `epsilon-plus-flat`, the paper's for images: z⁺ for convolutions, ε for linear layers, ♭ for first layers;
    - `epsilon-plus`, the paper's for DNA: the same without ♭, which would credit absent letters;
    - `epsilon-alpha2-beta1-flat`, `epsilon-alpha2-beta1`: α = 2, β = 1 in place of z⁺;
    - `epsilon-gamma-box`: γ for convolutions, ε for linear layers, the box rule for first layers;
    - `epsilon-gamma`, for one-hot inputs: a small γ for convolutions (`gamma`, 0.05), ε for linear layers;
    - `epsilon-gamma-centred`: the same with first layers relative to the mean letter (`rules.Centred`);
    - `epsilon`: ε everywhere;
    - `attnlrp`: ε everywhere; products of two signals, attention among them, give half to each (Achtibat et al. 2024);
    - `cp-lrp`: ε everywhere; attention weights and activations that gate are held constant (Ali et al. 2022);
    - `gradient-input`: the gradient times the input, as autograd has it; all that a first-order expansion does not hand
      down is booked with biases and constants.

    Three are for differences to a reference, and the others serve them too, but for αβ, the box rule and `cp-lrp`:

    - `rescale`: ε everywhere, and without its ε: DeepLIFT's rescale rule (Shrikumar et al. 2017);
    - `rescale-gamma`: γ for convolutions (`gamma`, 0.25), in favour of contributions with the sign of Δz;
    - `rescale-plus`: z⁺ for convolutions, which takes only those.

    `"auto"`, the default of `plrp.explain`, is not one of them: see `automatic`.
    """
    if name not in _NAMED:
        raise ValueError(f"No composite named '{name}'; choose 'auto' or one of {', '.join(_NAMED)}.")
    residual_gamma = nonnegative("residual_gamma", options.pop("residual_gamma", None))
    try:
        chosen = _NAMED[name](**options)
    except TypeError as error:
        raise TypeError(f"The composite '{name}' does not take {', '.join(options)}.") from error
    chosen.name, chosen.residual_gamma = name, residual_gamma
    return chosen


def automatic(inputs: Iterable[Tensor], trace: Trace | None = None) -> Composite:
    """The choice of `"auto"` for these inputs: the composite that agreed best with the truth on networks of their kind.

    One-hot sequences (batch, letters, length) get `epsilon-gamma`, everything else `epsilon-plus-flat`; the
    page docs/truth.md has the tables. A model whose tape holds products of two signals, such as attention, gets
    `attnlrp`; a trace with a reference gets `rescale`. The chosen composite carries the reason. Samples of a trace that
    would get different composites by themselves are refused.
    """
    if isinstance(trace, DifferenceTrace):
        chosen = composite("rescale")
        chosen.reason = "auto: against a reference"
        return chosen
    one_hot = [_one_hot_samples(x) for x in inputs]
    name, reason = "epsilon-plus-flat", "auto"
    if trace is not None and any(_divides(op) for op in trace.ops):
        name, reason = "attnlrp", "auto: products of two signals"
    elif one_hot and all(samples.numel() and bool(samples.all()) for samples in one_hot):
        name, reason = "epsilon-gamma", "auto: one-hot input"
    elif one_hot and trace is not None and trace.samples == 0 and (each := torch.stack(one_hot).all(0)).any():
        others = (~each).nonzero()[:, 0].tolist()
        raise ValueError(
            "composite='auto' is 'epsilon-gamma' for one-hot sequences and 'epsilon-plus-flat' for others, and this "
            f"batch holds both (not one-hot: sample {', '.join(map(str, others[:5]))}{' …' * (len(others) > 5)}): "
            "name a composite, or explain the two kinds apart."
        )
    chosen = composite(name)
    chosen.reason = reason
    return chosen


def _divides(op: Op) -> bool:
    """Whether an operation is a product of two signals that `attnlrp` divides, and others refuse or give to one."""
    if op.family not in (Family.PRODUCT, Family.GATE):
        return False
    return op.supported("half") and (not op.supported(None) or len(op.receivers("half")) > len(op.receivers(None)))


def _one_hot_samples(x: Tensor) -> Tensor:
    """Whether each sample is a sequence (letters, length), mostly one-hot; positions may be empty or mixed. (batch,)"""
    if x.ndim != 3 or not x.is_floating_point() or not 2 <= x.shape[1] <= 32:
        return torch.zeros(x.shape[:1], dtype=torch.bool, device=x.device)
    single = ((x == 0) | (x == 1)).all(1) & (x.sum(1) == 1)
    total = x.sum(1)
    shared = (x >= 0).all(1) & ((total == 0) | ((total - 1).abs() < 1e-5))  # N, or an ambiguous letter in parts
    return (single | shared).all(1) & (2 * single.sum(1) >= (total != 0).sum(1)) & (total != 0).any(1)


def names() -> list[str]:
    """The names that `composite` knows of LRP's composites: neither gradients nor such as need a reference."""
    return [name for name in _NAMED if name not in (*AGAINST, "gradient-input")]


def resolve(chosen: str | Composite, inputs: Iterable[Tensor] = (), trace: Trace | None = None) -> Composite:
    """A composite from its name, or itself; `"auto"` looks at the inputs and at the tape, where it is known."""
    if isinstance(chosen, Composite):
        return chosen
    if chosen == AUTO:
        return automatic(inputs, trace)
    if isinstance(chosen, str):
        return composite(chosen)
    kind = type(chosen).__name__
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind).lower()  # Zennit's EpsilonPlusFlat → epsilon-plus-flat
    ours = f": write composite='{name}'" if name in _NAMED else ""
    raise TypeError(f"composite is a name or a plrp.Composite, got {kind}{ours}.")
