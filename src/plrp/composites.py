"""Which layer gets which rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .rules import AlphaBeta, Epsilon, Flat, Gamma, Rule, ZBox, ZPlus
from .spelling import nearest
from .tables import render_table
from .tape.operations import Family
from .tape.trace import Trace
from .tape.values import Op

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
    have one rule each, stated in the documentation.
    """

    def __init__(
        self,
        rules: Sequence[tuple[Predicate, Rule]],
        *,
        first: Rule | None = None,
        layers: Mapping[str, Rule] | None = None,
        name: str = "custom",
    ) -> None:
        for pair in rules:
            if not (isinstance(pair, tuple) and len(pair) == 2 and callable(pair[0]) and isinstance(pair[1], Rule)):
                raise TypeError(f"A composite is made of pairs (predicate, rule), got {pair!r}.")
        self.rules = tuple(rules)
        self.first = first
        self.layers = dict(layers or {})
        self.name = name

    def with_layers(self, layers: Mapping[str, Rule]) -> Composite:
        """The same composite with these layers' rules overridden by name."""
        return Composite(self.rules, first=self.first, layers={**self.layers, **layers}, name=self.name)

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
                return False
        return False

    def rule_name(self, op: Op) -> str:
        """What a table shows for an operation."""
        if op.rule is not None:
            return getattr(op.rule, "__name__", "registered")
        if op.is_layer:
            return self.rule(op).name
        if op.family is Family.UNSUPPORTED:
            return f"none: {op.reason}" if op.reason else "none"
        return op.family.value

    def table(self, trace: Trace) -> str:
        """The layers of a trace with their rules, layer ⇒ rule."""
        self.check(trace)
        return render_table(("layer", "⇒", "rule"), [(op.name, "⇒", self.rule(op).name) for op in trace.layers])

    def check(self, trace: Trace) -> None:
        """Refuse overrides for layers that the trace does not have."""
        names = [op.name for op in trace.layers]
        for name in self.layers:
            if name not in names:
                raise ValueError(
                    f"The composite names layer '{name}', which the model does not have{nearest(name, names)}."
                )

    def __repr__(self) -> str:
        rows = [(f"layer '{name}'", repr(rule)) for name, rule in self.layers.items()]
        rows += [("first layers", repr(self.first))] if self.first is not None else []
        rows += [(getattr(holds, "__name__", "custom"), repr(rule)) for holds, rule in self.rules]
        return f"{self.name}\n" + render_table(("layers", "rule"), rows)


_NAMED: dict[str, Callable[..., Composite]] = {
    "epsilon-plus-flat": lambda: Composite([(is_conv, ZPlus()), (is_any, Epsilon())], first=Flat()),
    "epsilon-plus": lambda: Composite([(is_conv, ZPlus()), (is_any, Epsilon())]),
    "epsilon-alpha2-beta1-flat": lambda: Composite([(is_conv, AlphaBeta(2, 1)), (is_any, Epsilon())], first=Flat()),
    "epsilon-alpha2-beta1": lambda: Composite([(is_conv, AlphaBeta(2, 1)), (is_any, Epsilon())]),
    "epsilon-gamma-box": lambda low=None, high=None, gamma=0.25: Composite(
        [(is_conv, Gamma(gamma)), (is_any, Epsilon())], first=ZBox(low, high)
    ),
    "epsilon": lambda: Composite([(is_any, Epsilon())]),
}


def composite(name: str, **options: Any) -> Composite:
    """A composite by name; `epsilon-gamma-box` takes `low`, `high` (the box of the input) and `gamma`.

    - `epsilon-plus-flat` (the default): z⁺ for convolutions, ε for linear layers, ♭ for first layers;
    - `epsilon-plus`: the same without ♭, for one-hot inputs, where ♭ would credit absent letters;
    - `epsilon-alpha2-beta1-flat`, `epsilon-alpha2-beta1`: α = 2, β = 1 in place of z⁺;
    - `epsilon-gamma-box`: γ for convolutions, ε for linear layers, the box rule for first layers;
    - `epsilon`: ε everywhere.
    """
    if name not in _NAMED:
        raise ValueError(f"No composite named '{name}'; choose one of {', '.join(_NAMED)}.")
    try:
        chosen = _NAMED[name](**options)
    except TypeError as error:
        raise TypeError(f"The composite '{name}' does not take {', '.join(options)}.") from error
    chosen.name = name
    return chosen


def resolve(chosen: str | Composite) -> Composite:
    """A composite from its name, or itself."""
    if isinstance(chosen, Composite):
        return chosen
    if isinstance(chosen, str):
        return composite(chosen)
    raise TypeError(f"composite is a name or a plrp.Composite, got {type(chosen).__name__}.")
