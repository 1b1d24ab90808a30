"""A pass that follows a plan writes the same tape as a pass without one, whatever the model does in between.

Every test records a model with a plan of an earlier pass, and once more without plans, and compares the two tapes entry
by entry. `followed` says how many entries were taken from the plan, so that no test passes because there was none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plrp
from plrp.fast.plans import PlannedRecorder, RecordingPlan
from plrp.tape import verification
from plrp.tape.recorder import Recorder
from plrp.tape.trace import Trace, record
from plrp.tape.values import Op, Value, gathered, replaced
from random_models import Case, quietly


@pytest.fixture(autouse=True)
def _no_plans() -> Iterator[None]:
    verification._verified.clear()
    yield
    verification._verified.clear()


class Counting(PlannedRecorder):
    """Counts the entries that are taken from a plan."""

    taken = 0

    def _entry(self, *arguments: Any) -> Op:
        Counting.taken += 1
        return super()._entry(*arguments)


def recorded(model: Any, x: Tensor, kind: Callable[..., Recorder], frugal: bool = False) -> Any:
    """A tape, or the error that recording it raised."""
    try:
        return record(model, x, frugal, recorder_of=kind)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def followed(model: Any, x: Tensor, frugal: bool = False) -> int:
    """How many entries of a pass are taken from a plan; its tape equals that of a pass without plans."""
    Counting.taken = 0
    alike(recorded(model, x, Counting, frugal), recorded(model, x, Recorder, frugal))
    return Counting.taken


def alike(planned: Any, plain: Any) -> None:
    """Two tapes are equal in everything that an entry or a value holds."""
    assert isinstance(planned, Trace) == isinstance(plain, Trace), (planned, plain)
    if not isinstance(plain, Trace):
        assert planned == plain
        return
    assert planned.head == plain.head
    assert planned._recorder.names._calls == plain._recorder.names._calls
    assert planned._recorder.rules.seen == plain._recorder.rules.seen
    forms = []
    for trace in (planned, plain):
        values = [*trace.inputs, *(value for op in trace.ops for value in op.outputs)]
        places = {id(value): f"value {place}" for place, value in enumerate(values)}
        entries = {id(op): place for place, op in enumerate(trace.ops)}
        forms.append(
            (
                [_entry_form(op, places) for op in trace.ops],
                [_value_form(value, entries) for value in values],
                [_tensor_form(tensor) for tensor in gathered(trace.output)],
            )
        )
    for mine, theirs in zip(*forms, strict=True):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert a == b


def _entry_form(op: Op, places: dict[int, str]) -> Any:
    def put(structure: Any) -> Any:
        with_places = replaced(structure, lambda value: places.get(id(value), "forgotten"))
        return repr(replaced(with_places, _tensor_form, of=Tensor))

    kept = {name: getattr(op, name) for name in vars(op) if name not in ("operation", "map", "function")}
    if op.kind == "copy":  # the memory that it writes over may be random
        kept["args"] = op.args[1:]
    operation = op.operation._replace(replay=len)  # may be a function that was made for this call
    weights = None if op.map is None else [type(op.map), op.map.raw, op.map.scale, op.map.bias]
    form = {name: put(item) if not isinstance(item, Value) else places[id(item)] for name, item in kept.items()}
    return form, operation, put(weights)


def _value_form(value: Value, entries: dict[int, int]) -> Any:
    layout = value.samples
    ids = None if layout.ids is None else layout.ids.tolist()
    where = layout.batch, layout.axis, ids, layout.mixed, layout.whole
    readers = [entries.get(id(op)) for op in value.readers]
    signs = value.nonnegative, value.above_layer, value.forgotten
    made = None if value.producer is None else entries.get(id(value.producer))
    return value.shape, value.dtype, where, signs, readers, made, _tensor_form(value.data)


def _tensor_form(tensor: Tensor) -> Any:
    content = tensor.detach().double().nan_to_num() if not tensor.is_complex() else torch.view_as_real(tensor)
    return tuple(tensor.shape), str(tensor.dtype), content.flatten().tolist()


class Net(nn.Module):
    """A convolutional network with a skip, an in-place ReLU, a pool and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6), nn.Conv1d(6, 6, 1)
        self.last, self.act = nn.Linear(6, 3), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x)), inplace=True)
        h = self.act(self.second(h)) * 0.5 + h
        return self.last(F.max_pool1d(h, 2).mean(-1))


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("frugal", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_second_pass_follows_the_plan(batch: int, frugal: bool) -> None:
    model = net()
    assert followed(model, draw(batch, 4, 8), frugal) == 0
    assert followed(model, draw(batch, 4, 8, seed=1), frugal) >= 7
    assert followed(model, draw(2 * batch, 4, 8, seed=1), frugal) == 0


class Branching(nn.Module):
    """Goes one of several ways, as `way` says of the input."""

    def __init__(self, way: Callable[[Tensor], int]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.way, self.layers = way, nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layers[0](x))
        chosen = self.way(x)
        if chosen == 1:
            h = torch.relu(self.layers[1](h))
        elif chosen == 2:
            h = torch.sigmoid(self.layers[2](h)) * h
        return self.last(torch.relu(h + 0.25 * chosen))


@pytest.mark.parametrize("frugal", [False, True])
def test_branches_on_values_and_on_state(frugal: bool) -> None:
    model = Branching(lambda x: int(bool((x > 0).all())))
    positive, negative = draw(2, 6).abs(), -draw(2, 6).abs()
    assert not followed(model, positive, frugal)
    assert not followed(model, negative, frugal)
    for x in (positive, negative, positive, negative):
        assert followed(model, x, frugal) > 0
    calls = iter([0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0])
    model.way = lambda _: next(calls)
    counts = [followed(model, negative, frugal) for _ in range(7)]
    assert max(counts) > 0


def test_a_pass_runs_the_model_once() -> None:
    calls = []
    model = Branching(lambda _: calls.append(0) or len(calls) % 3)  # type: ignore[func-returns-value]
    for number in range(1, 12):
        assert isinstance(recorded(model, draw(2, 6), Counting), Trace)
        assert len(calls) == number


def changed_in_place(model: Net) -> None:
    with torch.no_grad():
        model.first.weight.mul_(-1.5)
        model.second.weight.data.copy_(draw(6, 6, 1, seed=5))


def swapped(model: Net) -> None:
    model.second = nn.Conv1d(6, 6, 1)
    model.norm = nn.BatchNorm1d(6).eval()


def other_activation(model: Net) -> None:
    model.act = nn.Softplus()  # type: ignore[assignment]


def other_stride(model: Net) -> None:
    model.first.stride, model.first.padding = (2,), (2,)
    model.first.stride = (1,)
    model.first.dilation = (2,)


def hooked(model: Net) -> None:
    model.second.register_forward_hook(lambda module, args, output: output + 1)


def hooked_to_zero(model: Net) -> None:
    model.second.register_forward_pre_hook(lambda module, args: (args[0].clamp(min=-1.0),))


def without_bias(model: Net) -> None:
    model.last.bias = None  # type: ignore[assignment]


def in_double(model: Net) -> None:
    model.last.weight.data = model.last.weight.data * float("nan")


def training(model: Net) -> None:
    model.train()


CHANGES = [changed_in_place, swapped, other_activation, other_stride, hooked, hooked_to_zero, without_bias, in_double]


@pytest.mark.parametrize("change", [*CHANGES, training], ids=lambda change: change.__name__)
def test_the_model_changes_between_passes(change: Callable[[Net], None]) -> None:
    model, x = net(), draw(2, 4, 8)
    for _ in range(2):
        followed(model, x)
    change(model)
    for seed in range(3):
        followed(model, draw(2, 4, 8, seed=seed))


class Scaling(nn.Module):
    """Adds and multiplies numbers that may be changed, one of them a Python number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 2)
        self.number, self.tensor, self.index = 2.0, torch.full((5,), 0.5), torch.tensor([0, 1, 2, 3, 4])

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x)) + self.number
        h = torch.relu(h * self.tensor)
        h = torch.zeros_like(h).index_add(1, self.index, h)
        return self.last(F.elu(h) + 1)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("number", -3.0), ("number", True), ("number", 2), ("number", torch.tensor(-2.0)), ("tensor", -torch.ones(5)),
        ("tensor", 3.0), ("tensor", torch.rand(2, 5)), ("index", torch.tensor([0, 0, 1, 1, 4])),
    ],
)  # fmt: skip
def test_constants_change_between_passes(name: str, other: Any) -> None:
    model, x = Scaling(), draw(2, 5)
    for _ in range(2):
        taken = followed(model, x)
    assert taken > 0
    setattr(model, name, other)
    for seed in range(3):
        followed(model, draw(2, 5, seed=seed))


def test_signs_of_the_input_and_of_constants_are_not_taken_from_the_plan() -> None:
    model = nn.Sequential(nn.Conv1d(4, 4, 1), nn.ReLU(), nn.Conv1d(4, 2, 1), nn.Flatten(), nn.Linear(16, 2))
    for x in (draw(1, 4, 8).abs(), draw(1, 4, 8), draw(1, 4, 8).abs()):
        followed(model, x)


def softmax_by_hand(scale: float) -> Callable[[Tensor], Tensor]:
    torch.manual_seed(3)
    first, last = nn.Linear(6, 6), nn.Linear(6, 2)
    factor = [scale]

    def model(x: Tensor) -> Tensor:
        h = first(x)
        e = torch.exp(h)
        return last(h * (e / (factor[0] * e.sum(-1, keepdim=True))))

    model.factor = factor  # type: ignore[attr-defined]
    return model


def test_a_softmax_is_known_by_its_rows_in_every_pass() -> None:
    model, x = softmax_by_hand(1.0), draw(2, 6)
    for factor in (1.0, 1.0, 3.0, 1.0, 3.0, 3.0):
        model.factor[0] = factor  # type: ignore[attr-defined]
        followed(model, x)


def compare_case(seed: int) -> int:
    """A random model, recorded with plans on several inputs; how many entries were taken from them."""
    case = Case(seed)
    built = case.built(case.dtype)
    torch.manual_seed(seed)
    passes = [(x, frugal) for x in (*case.inputs, -case.inputs[0], case.inputs[0].abs()) for frugal in (False, True)]
    try:
        for x, frugal in passes:
            quietly(lambda x=x, frugal=frugal: alike(*(recorded(built.model, x, Recorder, frugal) for _ in range(2))))
    except AssertionError:  # it is random, or has a state
        return 0
    return sum(quietly(lambda x=x, frugal=frugal: followed(built.model, x, frugal))[0] for x, frugal in passes * 2)


def test_random_models_give_the_same_tapes() -> None:
    assert sum(map(compare_case, range(12))) > 200


@pytest.mark.slow
@pytest.mark.parametrize("first", range(60, 2060, 500))
def test_many_random_models_give_the_same_tapes(first: int) -> None:
    assert sum(map(compare_case, range(first, first + 500))) > 5000


def planned(model: nn.Module) -> bool:
    return any(isinstance(one, RecordingPlan) for one in verification.known_of(model).values())


def test_explanations_are_the_same_and_the_plain_walk_has_no_plans() -> None:
    model, x = net(), draw(3, 4, 8)
    with plrp.plain_walk():
        plrp.explain(model, x)
    assert not planned(model)
    first = plrp.explain(model, x).relevance
    assert planned(model)
    assert torch.equal(plrp.explain(model, x).relevance, first)


def test_rules_of_the_users_own_make_no_plan() -> None:
    model, x = net(), draw(1, 4, 8)
    plrp.explain(model, x, rules={torch.relu: "pass"})
    assert not planned(model)
