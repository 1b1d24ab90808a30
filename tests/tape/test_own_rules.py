"""Rules and maps that users write, and numbers as they give them, on the fast paths: what held without them holds."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp import rules
from plrp.errors import UnsupportedOperation
from plrp.tape.maps import LinearMap, Weight


def _small() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 9, 3), nn.ReLU(), nn.Conv2d(9, 4, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(5)).eval()


def _both(model: nn.Module, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    model(x)
    found = plrp.explain(model, x, **options).relevance
    with plrp.plain_walk():
        return found, plrp.explain(model, x, **options).relevance


@pytest.mark.parametrize("epsilon", [1, torch.tensor(0.1), 0.25])
@pytest.mark.parametrize("rule", [rules.ZPlus, rules.Epsilon])
def test_any_number_is_an_epsilon(rule: Any, epsilon: Any) -> None:
    everywhere = plrp.Composite([(plrp.composites.is_any, rule(epsilon))], name="one")
    found, expected = _both(_small(), torch.rand(2, 3, 12, 12), composite=everywhere)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


class Constant(rules.Rule):
    """Contributions of a constant in place of the input, one for all samples."""

    def branches(self, map: Any, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[rules.Branch]:
        part = rules.Part(torch.full_like(x[:1], 2.0), Weight(map.weight.abs()))
        return [rules.Branch(map, (part,), one_sign=True)]


class Viewing(rules.ZPlus):
    """Looks at its input in the layout that the model gave it."""

    def branches(self, map: Any, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[rules.Branch]:
        assert x.view(x.shape[0], -1).shape[0] == x.shape[0]
        return super().branches(map, x, z, nonnegative)


@pytest.mark.parametrize("rule", [Constant(), Viewing()])
def test_rules_of_users_get_what_they_got(rule: rules.Rule) -> None:
    x = torch.rand(3, 3, 12, 12)
    middle = plrp.Composite([(lambda op: op.name == "2", rule), (plrp.composites.is_any, rules.ZPlus())], name="own")
    found, expected = _both(_small(), x, composite=middle)
    assert found.shape == x.shape
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    first = plrp.Composite([(plrp.composites.is_any, rules.ZPlus())], first=rule, name="own")
    found, expected = _both(_small(), x, composite=first)
    assert found.shape == x.shape
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


class Same(LinearMap):
    """A map that returns what it is given."""

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return x

    def transpose(self, s: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        return s.clone()

    def with_parameters(self, weight: Tensor, bias: Tensor | None) -> LinearMap:
        return Same(weight, bias)


class Identical(rules.Rule):
    """Contributions of the input itself."""

    def branches(self, map: Any, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[rules.Branch]:
        return [rules.Branch(Same(map.weight, None), (rules.Part(x, map.whole),))]


def test_nothing_that_others_hold_is_written_over() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 4)).eval()
    x = torch.randn(2, 3, 6, 6)
    before = x.clone()
    composite = plrp.Composite([(plrp.composites.is_any, rules.Epsilon())], first=Identical(), name="same")
    found, expected = _both(model, x, composite=composite)
    assert torch.equal(x, before)
    assert torch.equal(found, expected)


class Weighted(nn.Module):
    """A product of a transposed map with a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.vector = nn.Conv1d(4, 6, 3), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).relu().transpose(1, 2) @ self.vector


@pytest.mark.parametrize("rule", [rules.ZPlus(), rules.AlphaBeta(), rules.WSquare(), rules.Gamma()])
def test_weights_of_any_number_of_axes_are_left_in_their_layout(rule: rules.Rule) -> None:
    torch.manual_seed(0)
    everywhere = plrp.Composite([(plrp.composites.is_any, rule)], name="one")
    found, expected = _both(Weighted().eval(), torch.rand(2, 4, 20), composite=everywhere)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_kept_layers_can_be_viewed_as_vectors() -> None:
    model, x = _small(), torch.rand(2, 3, 12, 12)
    model(x)
    explanation = plrp.explain(model, x, layers=True)
    for relevance in explanation.layers.values():
        assert relevance.view(2, -1).shape[0] == 2


class Silent(rules.Rule):
    """States nothing."""

    def branches(self, map: Any, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[rules.Branch]:
        return []


def test_a_rule_without_branches_is_named_with_its_layer() -> None:
    model, x = _small(), torch.rand(1, 3, 12, 12)
    model(x)
    composite = plrp.Composite([(plrp.composites.is_conv, Silent()), (plrp.composites.is_any, rules.Epsilon())])
    with pytest.raises(ValueError, match=r"Silent\(\) has no branches for layer '4'"):
        plrp.explain(model, x, composite=composite)


def test_words_are_no_epsilon() -> None:
    with pytest.raises(TypeError, match="epsilon is a number"):
        rules.Epsilon("a")  # type: ignore[arg-type]


def test_steps_without_a_choice_of_rule_are_told_from_unknown_names() -> None:
    model, x = _small(), torch.rand(1, 3, 12, 12)
    model(x)
    with pytest.raises(ValueError, match="'relu' is no conv or linear layer"):
        plrp.explain(model, x, layers=["relu"])
    with pytest.raises(ValueError, match="no layer 'rulu'"):
        plrp.explain(model, x, layers=["rulu"])


# --- rules for operations ---------------------------------------------------------------------------------------------


class Step(nn.Module):
    """A step between two layers."""

    def __init__(self, step: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below, self.above, self.step = nn.Linear(4, 6), nn.Linear(6, 3), step

    def forward(self, x: Tensor) -> Tensor:
        return self.above(self.step(self.below(x)))


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _no_rule_outlives_its_test() -> Iterator[None]:
    before = plrp.registered_rules()
    yield
    assert plrp.registered_rules() == before


def half(relevance: Tensor, output: Tensor, x: Tensor) -> Tensor:
    return relevance / 2


def test_a_rule_is_in_force_within_its_context_alone() -> None:
    model = Step(torch.sinc).eval()
    with plrp.rules_for({torch.sinc: "pass"}):
        whole = plrp.explain(model, X)
        with plrp.rules_for({torch.sinc: half}):
            inner = plrp.explain(model, X)
        assert torch.equal(plrp.explain(model, X).relevance, whole.relevance)
    torch.testing.assert_close(inner.relevance, whole.relevance / 2)
    assert inner.closing().max() > 0.1  # the ledger, written now, is of the rule of then: half is lost
    assert whole.closing().max() < 1e-6
    with pytest.raises(UnsupportedOperation, match="sinc"):
        plrp.explain(model, X)
    assert plrp.registered_rules() == {}


def test_a_rule_given_to_a_call_goes_before_others() -> None:
    model = Step(torch.sinc).eval()
    with plrp.rules_for({torch.sinc: half}):
        whole = plrp.explain(model, X, rules={torch.sinc: "pass"})
        traced = plrp.trace(model, X)
    assert whole.closing().max() < 1e-6
    torch.testing.assert_close(traced.explain().relevance, whole.relevance / 2)  # a trace keeps its rules
    assert plrp.check(model, X, rules={torch.sinc: "pass"})
    assert not plrp.check(model, X)


def test_the_context_of_one_thread_is_not_anothers() -> None:
    model, found = Step(torch.sinc).eval(), list[Any]()

    def elsewhere() -> None:
        try:
            found.append(plrp.explain(model, X))
        except UnsupportedOperation as error:
            found.append(error)

    with plrp.rules_for({torch.sinc: "pass"}):
        worker = threading.Thread(target=elsewhere)
        worker.start()
        worker.join()
        assert plrp.explain(model, X).closing().max() < 1e-6
    assert isinstance(found[0], UnsupportedOperation)


def shares(relevance: Tensor, output: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return relevance / 4, relevance * 3 / 4


def test_one_entry_of_the_tape_can_have_a_rule_of_its_own() -> None:
    """The other products of the model, gates and constant factors, keep plrp's."""

    def step(h: Tensor) -> Tensor:
        gated = h * torch.sigmoid(h.flip(1))
        return 2 * gated * (gated.flip(1) + 1)

    model = Step(step).eval()
    with pytest.raises(UnsupportedOperation, match=r"\('mul#3'\).*rules=\{'mul#3': rule\}"):
        plrp.explain(model, X, composite="epsilon")
    found = plrp.explain(model, X, composite="epsilon", rules={"mul#3": shares})
    assert found.closing().max() < 1e-6
    assert {row["rule"] for row in found.ledger if row["layer"] == "mul#3"} == {"shares"}
    with pytest.raises(TypeError, match="names an entry of one model's tape"):
        plrp.register_rule("mul#3", shares)


@pytest.mark.parametrize("spelling", [torch.mul, torch.Tensor.mul, torch.multiply, torch.Tensor.__mul__])
@pytest.mark.parametrize("step", [lambda h: h * h.flip(1), lambda h: torch.multiply(h, h.flip(1))])
def test_a_rule_holds_however_the_model_spells_the_function(spelling: Any, step: Any) -> None:
    assert plrp.explain(Step(step).eval(), X, rules={spelling: shares}).closing().max() < 1e-6


def test_an_in_place_call_stays_one_under_a_rule() -> None:
    model = Step(lambda h: h.mul_(1.5).relu_()).eval()
    found = plrp.explain(model, X, rules={torch.relu: half})
    expected = plrp.explain(Step(lambda h: torch.relu(1.5 * h)).eval(), X)
    torch.testing.assert_close(found.relevance, expected.relevance / 2)
    torch.testing.assert_close(found.logits, expected.logits)


class Squash(nn.Module):
    """A module with a step that plrp has no rule for."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return torch.special.erfcx(x.relu()).cumprod(1) * scale


class Wider(Squash):
    pass


@pytest.mark.parametrize("kind", [Squash, Wider])
def test_a_module_with_a_rule_is_one_entry(kind: type[nn.Module]) -> None:
    module = kind()
    model = Step(lambda h: module(h, scale=2.0)).eval()
    model.module = module  # type: ignore[assignment]
    with pytest.raises(UnsupportedOperation):
        plrp.explain(model, X)
    trace = plrp.trace(model, X, rules={Squash: "pass"})
    assert [op.name for op in trace.ops] == ["below", "module", "above"]
    torch.testing.assert_close(trace.output, model(X))
    assert trace.explain().closing().max() < 1e-6
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks
    assert not module._forward_hooks


def test_a_module_that_fails_leaves_nothing_behind() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no")

    fails = Fails()

    def step(h: Tensor) -> Tensor:
        try:
            return fails(h)
        except RuntimeError:
            return 2 * h

    assert plrp.explain(Step(step).eval(), X, rules={Fails: "pass"}).closing().max() < 1e-6
    assert not torch.nn.modules.module._global_forward_hooks


def test_a_declared_constant_is_one() -> None:
    model = Step(lambda h: h / (h.std(1, keepdim=True) + 0.1)).eval()
    found = plrp.explain(model, X, rules={torch.std: "constant"})
    assert found.closing().max() < 1e-6
    scaled = Step(lambda h: h * (1 + h.abs().amax().item())).eval()
    assert plrp.explain(scaled, X[:1], rules={torch.Tensor.item: "constant"}).closing().max() < 1e-6
    hidden = Step(lambda h: h + (100 * h).long().float()).eval()  # what nobody declared is still noticed
    with pytest.raises(UnsupportedOperation, match="not on the tape"):
        plrp.explain(hidden, X, rules={torch.std: "constant"})


def test_registered_rules_are_listed_and_taken_back() -> None:
    model = Step(torch.sinc).eval()
    plrp.register_rule(torch.sinc, "pass")
    assert plrp.registered_rules() == {torch.sinc: "pass"}
    assert plrp.explain(model, X).closing().max() < 1e-6
    plrp.unregister_rule(torch.sinc)
    assert plrp.registered_rules() == {}
    with pytest.raises(UnsupportedOperation):
        plrp.explain(model, X)


def test_a_registered_rule_that_replaces_plrps_own_says_so() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plrp.register_rule(torch.sinc, "pass")
    try:
        with pytest.warns(UserWarning, match=r"`torch\.mul` replaces plrp's own rule for `mul` in every model"):
            plrp.register_rule(torch.mul, shares)
        with pytest.warns(UserWarning, match="replaces plrp's own rule for `relu`"):
            plrp.register_rule(torch.Tensor.relu_)(half)
    finally:
        for function in (torch.sinc, torch.mul, torch.Tensor.relu_):
            plrp.unregister_rule(function)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # within a context nothing else is touched, and nothing is said
        with plrp.rules_for({torch.mul: shares}):
            pass


def test_what_is_no_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of pass, proportional"):
        plrp.explain(Step(torch.sinc), X, rules={torch.sinc: "pas"})
    with pytest.raises(TypeError, match="mapping"), plrp.rules_for([torch.sinc]):  # type: ignore[arg-type]
        pass
    with pytest.raises(TypeError, match="class of modules"):
        plrp.explain(Step(torch.sinc), X, rules={nn.ReLU(): "pass"})


def test_a_named_rule_in_place_of_plrps_own_is_taken_by_the_fast_walk_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 3)).eval()
    x = torch.rand(2, 3, 8, 8)
    for given in ({torch.nn.functional.avg_pool2d: "proportional"}, {torch.relu: "proportional"}):
        found, expected = _both(model, x, rules=given)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    maxima = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)).eval()
    winners = plrp.explain(maxima, x).relevance
    found, expected = _both(maxima, x, rules={torch.nn.functional.max_pool2d: lambda r, y, h: torch.zeros_like(h)})
    assert not found.any()
    assert torch.equal(found, expected)
    found, expected = _both(maxima, x, rules={torch.nn.functional.max_pool2d: "proportional"})
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found, winners, rtol=1e-3, atol=1e-5)  # a maximum is linear in its winner


def test_pass_for_a_call_with_several_inputs_is_refused() -> None:
    with pytest.raises(UnsupportedOperation, match="'pass' is for one input"):
        plrp.explain(Step(lambda h: h * h.flip(1)).eval(), X, rules={torch.mul: "pass"})
    with pytest.raises(UnsupportedOperation, match="'pass' is for one input"):
        plrp.explain(Step(lambda h: torch.atan2(h, h.flip(1))).eval(), X, rules={"atan2": "pass"})


def test_no_hook_stays_behind_where_a_function_is_written_out() -> None:
    from torch.nn.modules import module as hooks

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.last = nn.PReLU(), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.own(x)
            x = nn.functional.scaled_dot_product_attention(x, x, x)  # the recorder enters itself again for its steps
            return self.last(self.own(x).mean(1))

    before = len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)
    trace = plrp.trace(Attends().eval(), torch.randn(2, 3, 4), rules={nn.PReLU: "pass"})
    assert [op.kind for op in trace.ops].count("PReLU") == 2  # also the second, after the attention
    assert (len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)) == before


# --- numbers and shapes that a rule returns ---------------------------------------------------------------------------


def halves(h: Tensor) -> Tensor:
    first, second = h.chunk(2, 1)
    return torch.cat([2 * second, first], 1)


def second_half(h: Tensor) -> Tensor:
    return h.chunk(2, 1)[1].repeat(1, 2)


@pytest.mark.parametrize("step", [halves, second_half])
def test_a_rule_for_a_call_with_several_outputs_gets_all_of_them(step: Any) -> None:
    """The relevance of an output that nobody reads is None."""
    calls = list[Any]()

    def joined(relevance: tuple[Tensor | None, ...], output: tuple[Tensor, ...], x: Tensor) -> Tensor:
        calls.append((relevance, output))
        assert torch.equal(torch.cat(output, 1), x)
        return torch.cat([torch.zeros_like(y) if r is None else r for r, y in zip(relevance, output, strict=True)], 1)

    model = Step(step).eval()
    found = plrp.explain(model, X, composite="epsilon", rules={torch.chunk: joined})
    torch.testing.assert_close(found.relevance, plrp.explain(model, X, composite="epsilon").relevance)
    for relevance, output in calls:
        assert [y.shape for y in output] == [(2, 3), (2, 3)]
        assert [r is None for r in relevance] == [step is second_half, False]
    assert calls


def test_a_rule_may_hand_nothing_to_an_input() -> None:
    """All relevance of atan2(h, flipped h) to h itself, or all of it to the flipped one."""
    model = Step(lambda h: torch.atan2(h, h.flip(1))).eval()
    z = model.below(X).detach()
    for number in range(2):

        def one(relevance: Tensor, output: Tensor, *inputs: Tensor, number: int = number) -> list[Tensor | None]:
            assert torch.equal(output, torch.atan2(*inputs))
            return [relevance if n == number else None for n in range(len(inputs))]

        found = plrp.explain(model, X, composite="epsilon", rules={torch.atan2: one}, layers=True)
        assert found.closing().max() < 1e-6
        given = found.layers["above"]
        s = (given if number == 0 else given.flip(1)) / (z + torch.copysign(torch.tensor(1e-6), z))
        torch.testing.assert_close(found.relevance, X * (s @ model.below.weight.detach()), rtol=1e-4, atol=1e-6)


NO_RELEVANCE: dict[str, tuple[Any, str]] = {
    "one part of two": (lambda r, y, a, b: r, r"shapes \[\(2, 6\)\]; .*: \[\(2, 6\), \(2, 6\)\]"),
    "three parts": (lambda r, y, a, b: (r, None, None), r"shapes \[\(2, 6\), None, None\]"),
    "a first part of another shape": (lambda r, y, a, b: (r.sum(1), r), r"shapes \[\(2,\), \(2, 6\)\]"),
    "a last part of another shape": (lambda r, y, a, b: [r, r[:, :1]], r"shapes \[\(2, 6\), \(2, 1\)\]"),
    "a NaN in the last part": (lambda r, y, a, b: (r, r * torch.nan), "NaN or infinite"),
    "one infinite number": (lambda r, y, a, b: (r.index_fill(1, torch.tensor(0), torch.inf), None), "NaN or infinite"),
}


@pytest.mark.parametrize("name", NO_RELEVANCE)
def test_a_rule_that_returns_no_relevance_of_its_inputs_is_refused(name: str) -> None:
    rule, message = NO_RELEVANCE[name]
    model = Step(lambda h: torch.atan2(h, h.flip(1))).eval()
    with pytest.raises(ValueError, match=f"The rule registered for atan2 returned .*{message}"):
        plrp.explain(model, X, rules={torch.atan2: rule})


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x


def test_a_rule_that_a_call_has_no_use_for_is_refused() -> None:
    model = Step(lambda h: h + torch.sinc(h) * h.sigmoid()).eval()
    given = {torch.sinc: "pass", "mul": shares, "add": "proportional"}
    assert plrp.explain(model, X, rules=given).closing().max() < 1e-6
    for call in (plrp.explain, plrp.trace, plrp.check, lambda *a, **k: plrp.explain(*a, micro_batch=1, **k)):
        call(model, X, rules=given)
        with pytest.raises(ValueError, match="tape has no entry 'mull'; nearest: mul"):
            call(model, X, rules={**given, "mull": "pass"})
        with pytest.raises(ValueError, match=r"never calls `torch\.cumprod` on a value that depends on its input"):
            call(model, X, rules={**given, torch.cumprod: "pass"})
        with pytest.raises(ValueError, match=r"never calls `.*Squash`"):
            call(model, X, rules={**given, Squash: "pass"})
        with pytest.raises(TypeError, match="`Doubles` is none; torch hides the calls of an autograd Function"):
            call(model, X, rules={**given, Doubles: "pass"})
    with plrp.rules_for({torch.cumprod: "pass", "mull": "pass"}):  # for any model of this block
        plrp.explain(model, X, rules=given)


def test_a_rule_may_be_for_the_target_alone() -> None:
    model = Step(torch.relu).eval()
    found = plrp.explain(model, X, target=lambda z: torch.sinc(z)[:, 0], rules={torch.sinc: "pass"})
    assert found.closing().max() < 1e-6
    with plrp.rules_for({torch.sinc: "pass"}):
        assert plrp.trace(model, X).explain(target=lambda z: torch.sinc(z)[:, 0]).closing().max() < 1e-6


class Own(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Doubles.apply(x)  # type: ignore[no-any-return]


def test_the_remedy_for_an_autograd_function_is_one() -> None:
    own = Own()
    halved = plrp.explain(Step(own).eval(), X, rules={Own: half})
    torch.testing.assert_close(halved.relevance, plrp.explain(Step(lambda h: 2 * h).eval(), X).relevance / 2)


@pytest.mark.parametrize("key", ["mul", torch.mul])
def test_an_entry_may_be_declared_a_constant(key: Any) -> None:
    """By its name as by its function: then it has no entry, and its share of a sum is booked as a constant."""
    model = Step(lambda h: h + h * h.sigmoid()).eval()
    found = plrp.explain(model, X, composite="epsilon", rules={key: "constant"})
    assert found.closing().max() < 1e-6
    assert any(row["absorbed_constant"] for row in found.ledger)
    h = model.below(X).detach()
    below = plrp.explain(model, X, composite="epsilon", layers=["above"]).layers["above"]
    share = h / (h + h * h.sigmoid())
    torch.testing.assert_close(found.relevance, X * ((share * below / h) @ model.below.weight.detach()))


def test_a_model_of_which_nothing_is_left_says_so() -> None:
    for key, named in (("mul", "'mul'"), (torch.mul, "`torch.mul`")):
        with pytest.raises(plrp.TraceError, match=f"since the rule 'constant' holds for {named}: no relevance"):
            plrp.explain(Step(lambda h: h * h.sigmoid()).eval(), X, rules={key: "constant", torch.sigmoid: "pass"})
