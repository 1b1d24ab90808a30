"""Users' own rules for operations: for a block of code (`rules_for`), a call (`rules=`) or all (`register_rule`).

The key of a rule is a torch function (whichever way a model spells it), a class of modules, each call of which then is
one operation, or the name of one entry of the tape, as refusals and `print(plrp.trace(…))` give it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from plrp.spelling import nearest

from .operations import Family, Operation, Traits, functions_named, known_operation, spelled

if TYPE_CHECKING:
    from .values import Op

FAMILIES = {f.value: f for f in (Family.PASS, Family.SPLIT, Family.REARRANGE, Family.WINNER, Family.CONSTANT)}

_REGISTERED: dict[Any, Any] = {}  # rules by their keys, as users gave them


@dataclass(frozen=True)
class Slope:
    """The rule of an operation for differences to a reference: the map J̄ that takes Δinput to Δoutput exactly.

    `transpose(m, inputs, references)` returns J̄ᵀm for each tensor argument that depends on the model's input: `m` is
    relevance per unit of Δoutput, `inputs` and `references` are these arguments in the two passes.

    >>> import torch, plrp
    >>> def cube(m, x, x0):  # Δ(x³) = (x² + x x⁰ + x⁰²) Δx
    ...     return m * (x[0] ** 2 + x[0] * x0[0] + x0[0] ** 2)
    >>> layer, x, rules = torch.nn.Linear(4, 3), torch.randn(2, 4), {torch.pow: plrp.Slope(cube)}
    >>> explanation = plrp.explain(lambda x: torch.pow(layer(x), 3), x, reference="zeros", rules=rules)
    """

    transpose: Callable[..., Any]


class _Scope(NamedTuple):
    rules: Mapping[Any, Any]
    alone: bool = False  # whether registered rules count for nothing here


_SCOPE: ContextVar[_Scope | None] = ContextVar("plrp_own_rules", default=None)


def register_rule(function: Any, rule: Any = None) -> Any:
    """Teach plrp, for the whole process, how relevance passes a function that it does not know.

    To keep a rule to one block of code, use `rules_for`; to one call, `plrp.explain(…, rules={function: rule})`.

    `function` is the torch function as the error message names it (`torch.cumprod`, `torch.ops.mylib.op`), or a class
    of modules. `rule` is the name of a known way to pass relevance on:

    - `"pass"`: element by element, relevance stays where it is (activations that are 0 at 0);
    - `"proportional"`: in proportion to each input's contribution (functions linear in their inputs);
    - `"rearrange"`: relevance follows the elements (views, slices, permutations);
    - `"winner-take-all"`: all to the elements that were selected (maxima);
    - `"constant"`: the result counts as a constant, no relevance passes;

    or a function `rule(relevance, output, *inputs)` that returns the relevance of each tensor argument that depends on
    the model's input, in their order, each of its argument's shape; or, against references, a `plrp.Slope`. A rule for
    a function that plrp knows replaces plrp's own, and warns. Also usable as a decorator:

    >>> import torch, plrp
    >>> @plrp.register_rule(torch.atan)
    ... def atan(relevance, output, x):
    ...     return relevance
    >>> plrp.unregister_rule(torch.atan)
    """
    if rule is None:
        return lambda chosen: (_register(function, chosen), chosen)[1]
    return _register(function, rule)


def _register(function: Any, rule: Any) -> Any:
    _check(function, rule)
    if isinstance(function, str):
        raise TypeError(
            f"{function!r} names an entry of one model's tape: give its rule to that model, "
            f"`plrp.explain(…, rules={{{function!r}: …}})`."
        )
    known = None if isinstance(function, type) else known_operation(function, {}, ())
    if known is not None:
        warnings.warn(
            f"The rule registered for `{spelled(function)}` replaces plrp's own rule for `{known.kind}` in every model "
            "of this process; `plrp.rules_for` keeps it to a block of code, `plrp.unregister_rule` takes it back.",
            stacklevel=3,
        )
    _REGISTERED[function] = rule
    return rule


def unregister_rule(function: Any) -> None:
    """Take back a rule given to `register_rule`."""
    _REGISTERED.pop(function, None)


def registered_rules() -> dict[Any, Any]:
    """The rules given to `register_rule` that are in force, by function."""
    return dict(_REGISTERED)


@contextmanager
def rules_for(rules: Mapping[Any, Any]) -> Iterator[None]:
    """Within this context, in this thread, your own rules are in force: by function, class of modules or tape entry.

    The rules are those of `register_rule`. An inner context, or a call's own `rules=`, goes before an outer one.

    >>> import torch, plrp
    >>> below, above = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)
    >>> with plrp.rules_for({torch.atan: "pass"}):
    ...     relevance = plrp.explain(lambda x: above(torch.atan(below(x))), torch.randn(2, 4)).relevance
    """
    if not isinstance(rules, Mapping):
        raise TypeError(f"rules is a mapping {{function: rule}}, got {type(rules).__name__}.")
    for function, rule in rules.items():
        _check(function, rule)
    before = _SCOPE.get() or _Scope({})
    with _in_scope(before._replace(rules={**before.rules, **rules})):
        yield


def alone(rules: Mapping[Any, Any]) -> AbstractContextManager[None]:
    """Within this context these rules are in force and no others: those of an explanation, for its ledger."""
    return _in_scope(_Scope(rules, alone=True))


@contextmanager
def _in_scope(scope: _Scope) -> Iterator[None]:
    token = _SCOPE.set(scope)
    try:
        yield
    finally:
        _SCOPE.reset(token)


def rules_in_force() -> dict[Any, Any]:
    """The rules in force here, by their keys."""
    scope = _SCOPE.get()
    if scope is None:
        return dict(_REGISTERED)
    return dict(scope.rules) if scope.alone else {**_REGISTERED, **scope.rules}


def _check(function: Any, rule: Any) -> None:
    if not (callable(function) or isinstance(function, str)):
        raise TypeError(
            f"A rule is for a torch function, a class of modules or the name of an entry of the tape, got {function!r}."
        )
    if isinstance(function, type) and not issubclass(function, nn.Module):
        raise TypeError(
            f"A rule is for a class of modules, and `{function.__name__}` is none; torch hides the calls of an "
            "autograd Function: call its `apply` in a module of its own, and give the rule to the class of that module."
        )
    if isinstance(function, nn.Module):
        raise TypeError(
            f"A rule is for a class of modules, `{type(function).__name__}`, not for one of them; for one call give "
            "the name of its entry on the tape."
        )
    if not callable(rule) and not isinstance(rule, Slope) and rule not in FAMILIES:
        raise ValueError(f"No rule named {rule!r}: choose one of {', '.join(FAMILIES)}, or give a function.")


class RulesInForce:
    """The rules in force during one recording."""

    def __init__(self, rules: Mapping[Any, Any]) -> None:
        self.given = dict(rules)
        self.names = {key: rule for key, rule in rules.items() if isinstance(key, str)}
        self.modules = {key: rule for key, rule in rules.items() if isinstance(key, type)}
        self._functions = {key: rule for key, rule in rules.items() if not isinstance(key, str | type)}
        self._keys: dict[Any, Any] = {}  # by the kind of an operation, or by every spelling of an unknown function
        for key in self._functions:
            known, others = known_operation(key, {}, ()), functions_named(getattr(key, "__name__", ""))
            self._keys |= dict.fromkeys([known.kind] if known else others if key in others else (), key)
        self._keys |= {key: key for key in self._functions}
        self.seen: set[Any] = set()  # the keys that a call had, and the names of all entries

    def lookup(self, function: Any, kwargs: dict[str, Any], args: tuple[Any, ...]) -> Operation | None:
        """The operation that a torch function is, by the users' rules first; None where there is no rule for it."""
        known = known_operation(function, kwargs, args)
        if not self._functions:
            return known
        key = self._keys.get(function) or (known and self._keys.get(known.kind))
        if key is None:
            return known
        self.seen.add(key)
        name = getattr(function, "__name__", None) or str(function)
        return _with_rule(known or Operation(name, Family.PASS, function), self._functions[key])

    def of_module(self, module: nn.Module) -> Operation | None:
        """The operation that a module's call is, if there is a rule for its class."""
        for kind in type(module).__mro__ if self.modules else ():
            if kind in self.modules:
                self.seen.add(kind)
                return _with_rule(Operation(kind.__name__, Family.PASS, module), self.modules[kind])
        return None


def refuse_unused(rules: Mapping[Any, Any] | None, seen: Collection[Any]) -> None:
    """Refuse rules given to one call of which its model has no use; `seen`: see `RulesInForce`."""
    for key in (key for key in rules or {} if key not in seen):
        if isinstance(key, str):
            names = sorted(name for name in seen if isinstance(name, str))
            raise ValueError(f"rules: the model's tape has no entry '{key}'{nearest(key, names)}.")
        raise ValueError(
            f"rules: the model never calls `{spelled(key)}` on a value that depends on its input: leave the rule out, "
            "or give it in `plrp.rules_for`, where rules may go unused."
        )


def apply_rule(op: Op, rule: Any) -> None:
    """Give one entry of the tape a user's rule in place of its own."""
    op.operation = _with_rule(op.operation._replace(family=op.family), rule)
    op.family, op.rule = op.operation.family, op.operation.rule
    op.map = op.signal = op.gated = None
    op.reason = ""


def refuse_misfit(op: Op) -> None:
    """Refuse a user's 'pass' for a call with several inputs, which does not say how they share relevance, and a slope
    where there is no reference.
    """
    if isinstance(op.rule, Slope):
        op.reason, op.by_difference = "its rule is the slope of a difference, and there is no reference", True
    if op.family is Family.PASS and op.rule is None and (len(op.inputs) > 1 or op.inputs[0].shape != op.output.shape):
        op.refuse("its rule 'pass' is for one input, of the output's shape")


def _with_rule(operation: Operation, rule: Any) -> Operation:
    if callable(rule) or isinstance(rule, Slope):
        family = Family.UNSUPPORTED if isinstance(rule, Slope) else Family.PASS
        return operation._replace(family=family, rule=rule, registered=True)
    if operation.family is FAMILIES[rule]:
        return operation._replace(registered=True)
    kind = f"{operation.kind} as {rule}"
    return operation._replace(kind=kind, family=FAMILIES[rule], traits=Traits(), registered=True)
