"""Nothing is wrong in silence: what the tape does not see is refused, in one sentence that names it."""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import plrp
from plrp.errors import TraceError, UnsupportedOperation
from plrp.tape import verification
from plrp.tape.recognition import is_nonnegative
from plrp.tape.verification import _FAR, STAYED, _close, _moved_ids

Step = Callable[[Tensor, Tensor], Any]
REFUSED = (TraceError, UnsupportedOperation)


class Around(nn.Module):
    """A layer, a step in question beside a skip or not, another layer."""

    def __init__(self, step: Step, skip: bool = True) -> None:
        super().__init__()
        self.below, self.above, self.step, self.skip = nn.Linear(6, 6), nn.Linear(6, 3), step, skip

    def forward(self, x: Tensor) -> Tensor:
        h = self.below(x)
        return self.above(h + self.step(h, x) if self.skip else self.step(h, x))


def model(step: Step, skip: bool = True) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Around(step, skip).eval(), torch.randn(3, 6)


# --- in-place operations ----------------------------------------------------------------------------------------------


def method(name: str, *arguments: Any) -> Step:
    def step(h: Tensor, x: Tensor) -> Tensor:
        getattr(h, name)(*arguments)
        return h

    return step


def power(h: Tensor, x: Tensor) -> Tensor:
    h **= 2
    return h


def remainder(h: Tensor, x: Tensor) -> Tensor:
    h %= 2
    return h


def floor(h: Tensor, x: Tensor) -> Tensor:
    h //= 2
    return h


def index_add(h: Tensor, x: Tensor) -> Tensor:
    return torch.zeros(len(h), 6).index_add_(1, torch.arange(6), h)


def scatter_add(h: Tensor, x: Tensor) -> Tensor:
    return torch.zeros(len(h), 6).scatter_add_(1, torch.arange(6).expand(len(h), 6), h)


def new_data(h: Tensor, x: Tensor) -> Tensor:
    h.data = 2 * h
    return h


def foreach(h: Tensor, x: Tensor) -> Tensor:
    torch._foreach_mul_([h], 2.0)
    return h


def aten(h: Tensor, x: Tensor) -> Tensor:
    torch.ops.aten.mul_.Tensor(h, torch.tensor(2.0))
    return h


def later(h: Tensor, x: Tensor) -> Tensor:
    twice = 2 * h
    torch._foreach_mul_([h], 2.0)
    return twice


def through_view(h: Tensor, x: Tensor) -> Tensor:
    padded = x.new_zeros(len(h), 8)
    padded[:, 1:7].copy_(h)
    return padded[:, 1:7]


def onto_view(h: Tensor, x: Tensor) -> Tensor:
    fresh = torch.zeros_like(h)
    fresh[:, :].add_(h)
    return fresh


IN_PLACE: dict[str, Step] = {
    "**=": power,
    "%=": remainder,
    "//=": floor,
    **{name: method(name) for name in ("sin_", "round_", "floor_", "sign_", "trunc_", "frac_", "tan_")},
    "addcmul_": method("addcmul_", torch.ones(6), torch.ones(6)),
    "lerp_": method("lerp_", torch.zeros(6), 0.5),
    "index_put_": method("index_put_", (torch.tensor([0]),), torch.tensor(1.0)),
    "set_": method("set_", torch.ones(3, 6)),
    ".data =": new_data,
    "_foreach_mul_": foreach,
    "aten.mul_": aten,
    "after it was read": later,
    "copy_ through a view": through_view,
    "add_ onto a view": onto_view,
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("skip", [True, False])
def test_an_unknown_write_is_refused(name: str, skip: bool) -> None:
    with pytest.raises(REFUSED, match=r"in place|write"):
        plrp.explain(*model(IN_PLACE[name], skip), composite="epsilon")


def double(h: Tensor, x: Tensor) -> Tensor:
    return h.mul_(2).add_(h)


def assigned(h: Tensor, x: Tensor) -> Tensor:
    h[:, 0] = 0
    return h


@pytest.mark.parametrize(
    "step", [double, assigned, method("square_"), method("neg_"), method("relu_"), index_add, scatter_add]
)
def test_known_writes_are_recorded(step: Step) -> None:
    explanation = plrp.explain(*model(step, skip=False), composite="epsilon")
    assert explanation.closing().max() < 1e-6


# --- paths that the recorder cannot see -------------------------------------------------------------------------------


@torch.jit.script
def _scripted(h: Tensor) -> Tensor:
    return 2 * h


def in_a_thread(h: Tensor, x: Tensor) -> Tensor:
    found: list[Tensor] = []
    worker = threading.Thread(target=lambda: found.append(2 * h))
    worker.start()
    worker.join()
    return found[0]


def disabled(h: Tensor, x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return 2 * h


def inner(f: Callable[[Tensor], Tensor]) -> Step:
    return lambda h, x: f(h)


HIDDEN: dict[str, Step] = {
    "scripted": inner(_scripted),
    "traced": inner(lambda h: torch.jit.trace(lambda r: 2 * r, torch.zeros(3, 6))(h)),
    "vmap": inner(lambda h: torch.vmap(lambda row: 2 * row)(h)),
    "jvp": inner(lambda h: torch.func.jvp(lambda r: 2 * r, (h,), (h,))[0]),
    "long and back": inner(lambda h: (100 * h).long().float() / 100),
    "quantised": inner(lambda h: torch.quantize_per_tensor(h, 0.01, 0, torch.qint32).dequantize()),
    "other bits": inner(lambda h: h.view(torch.int32).view(torch.float32)),
    "dlpack": inner(torch.from_dlpack),
    "copied": inner(copy.copy),
    "pickled": inner(lambda h: pickle.loads(pickle.dumps(h))),
    "new_tensor": inner(lambda h: h.new_tensor(h)),
    "as_subclass": inner(lambda h: h.as_subclass(Tensor)),
    "new_full": inner(lambda h: h.new_full((len(h), 6), h.mean())),
    "int": inner(lambda h: int(100 * h.sum()) / 100),
    "a thread": in_a_thread,
    "disabled": disabled,
}


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.filterwarnings("ignore")
def test_a_path_that_is_not_seen_is_refused(name: str) -> None:
    found, x = model(HIDDEN[name])
    with pytest.raises(REFUSED, match=r"tape|in place|by itself"):
        plrp.explain(found, x, composite="epsilon")
    assert not plrp.check(found, x)


def quantised(x: Tensor) -> Tensor:
    return (100 * x).long()


def above(x: Tensor) -> Tensor:
    return (x > 0).float()


def put(h: Tensor, x: Tensor) -> Tensor:
    h[:, 0] = quantised(x)[:, 1]
    return h


def put_mask(h: Tensor, x: Tensor) -> Tensor:
    h[:, :4] = above(x)[:, :4]
    return h


NUMBERS: dict[str, Step] = {  # integers and comparisons, as numbers: in none of these places do they only steer
    "item assignment": put,
    "item assignment of 0 and 1": put_mask,
    "hstack": lambda h, x: torch.hstack([above(x)[:, :3], h[:, :3]]),
    "column_stack": lambda h, x: torch.column_stack([above(x)[:, :3], h[:, :3]]),
    "dstack": lambda h, x: torch.dstack([h, above(x)]).sum(2),
    "where": lambda h, x: torch.where(h > 0, h, quantised(x)),
    "where 0 or 1": lambda h, x: torch.where(h > 0, h, above(x)),
    "maximum": lambda h, x: torch.maximum(h, quantised(x)),
    "maximum with 0 or 1": lambda h, x: torch.maximum(h, above(x)),
    "masked_scatter": lambda h, x: h.masked_scatter(h > 0, above(x)),
    "scatter": lambda h, x: h.scatter(1, torch.arange(4).expand(len(h), 4), above(x)[:, :4]),
    "index_copy": lambda h, x: h.index_copy(1, torch.arange(4), above(x)[:, :4]),
    "clamp": lambda h, x: torch.clamp(h, max=above(x)),
    "addmm": lambda h, x: torch.addmm(above(x), h, torch.eye(6)),
    "a factor": lambda h, x: h * quantised(x),
    "a divisor": lambda h, x: h / (quantised(x) + 0.5),
    "a count": lambda h, x: h + torch.count_nonzero(x > 0, 1)[:, None],
    "a share": lambda h, x: h + (x > 0).float().mean(1, keepdim=True),
    "a length": lambda h, x: h + len((x > 0).nonzero()),
    "the length of a selection": lambda h, x: h + x[x > 0].shape[0],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_not_on_the_tape_is_refused_wherever_it_is_read(name: str) -> None:
    with pytest.raises(UnsupportedOperation, match="reads a number that depends on the input"):
        plrp.explain(*model(NUMBERS[name], skip=False), composite="epsilon", target=0)


# --- beside a large entry ---------------------------------------------------------------------------------------------

LARGE = (-1e4, -1e7, -1e9, 1e9, -torch.inf)


def distances(large: float) -> Step:
    """Attention over the features, with integer distances and padding: one constant of both sizes."""

    def step(h: Tensor, x: Tensor) -> Tensor:
        steps = (3 * (h[:, :, None] - h[:, None])).abs().long().float()
        padding = torch.zeros(6).index_fill(0, torch.tensor([4, 5]), -abs(large))
        scores = h[:, :, None] @ h[:, None] + (padding - steps)
        return (torch.softmax(scores, -1) @ h[:, :, None])[..., 0]

    return step


@pytest.mark.parametrize("large", LARGE)
def test_a_large_entry_hides_no_path(large: float) -> None:
    def beside(h: Tensor, x: Tensor) -> Tensor:
        return _scripted(h).index_fill(1, torch.tensor([0]), large)

    def added(h: Tensor, x: Tensor) -> Tensor:
        return torch.relu(h + beside(h, x))

    def chosen(h: Tensor, x: Tensor) -> Tensor:
        return torch.relu(torch.where(h > 0, h, beside(h, x)))

    for step in (added, chosen, distances(large)):
        with pytest.raises(UnsupportedOperation, match="reads a number that depends on the input"):
            plrp.explain(*model(step, skip=False), composite="epsilon", target=0)


@pytest.mark.parametrize("large", [value for value in LARGE if value > -torch.inf])
def test_a_large_entry_hides_no_other_sample(large: float) -> None:
    """The last product has a gate that reads another sample, only beside the large entry."""
    torch.manual_seed(0)
    layer = nn.Linear(6, 3).eval()

    def masked(x: Tensor) -> Tensor:
        scores = layer(x)
        gate = torch.cat([torch.ones(1, 1), torch.sigmoid(scores[-1:, 1:])], 1)
        return scores.index_fill(1, torch.tensor([0]), large) * gate

    with pytest.raises(UnsupportedOperation, match="mixes the samples"):
        plrp.explain(masked, torch.randn(3, 6), target=1)


@pytest.mark.parametrize("large", [value for value in LARGE if value > -torch.inf])
def test_a_large_entry_hides_no_state_and_no_write(large: float) -> None:
    class Masked(Counting):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).index_fill(1, torch.tensor([2]), large)

    with pytest.raises(TraceError, match="by itself"):
        plrp.explain(Masked().eval(), torch.randn(2, 6), target=0)

    def written(h: Tensor, x: Tensor) -> Tensor:
        padded = h.index_fill(1, torch.tensor([0]), large)
        np.from_dlpack(padded.detach())[:, 1:] += 0.25
        return padded

    with pytest.raises(TraceError, match="changed in place later on"):
        plrp.explain(*model(written, skip=False), composite="epsilon", target=0)


@given(st.integers(0, 2**32 - 1), st.floats(-3, 3), st.integers(1, 180), st.booleans())
def test_entries_agree_one_by_one(seed: int, exponent: float, masked: int, sparse: bool) -> None:
    """Rounding of sums that cancel is no difference; one of a thousandth is, beside however many masked entries."""
    draw, size = torch.Generator().manual_seed(seed), 10**exponent
    a = size * torch.randn(200, generator=draw, dtype=torch.float64)
    a = torch.relu(a) if sparse else a
    for large in (*LARGE, torch.nan):
        first = a.clone()
        first[: masked if not large > 0 else 1 + masked // 10] = large
        rounded = first + 1e-7 * size * torch.randn(200, generator=draw, dtype=torch.float64)
        assert _close(first, rounded, *STAYED), large
        other = first.clone()
        other[199] += 1e-2 * size
        assert not _close(first, other, *STAYED), large
        other[199] = large
        assert not _close(first, other, *STAYED), large


@given(st.integers(0, 2**32 - 1), st.floats(-3, 3), st.integers(1, 180), st.sampled_from([1e4, 1e9, -1e9]))
def test_entries_agree_beside_many_that_are_filled(seed: int, exponent: float, filled: int, large: float) -> None:
    """A fill is the same in both; large numbers that are computed agree up to rounding, small ones beside them too."""
    draw, size = torch.Generator().manual_seed(seed), 10**exponent
    a = size * torch.randn(200, generator=draw, dtype=torch.float64)
    a[:filled] = large
    other = a.clone()
    other[filled:] += 1e-7 * size * torch.randn(200 - filled, generator=draw, dtype=torch.float64)
    assert _close(a, other, *STAYED)
    other[199] += 1e-2 * size
    assert not _close(a, other, *STAYED)
    computed = 1e6 * torch.randn(200, generator=draw)
    computed[0] = 0.5  # left of a sum in which entries of 1e6 cancel
    assert _close(computed, computed + 0.06 * torch.randn(200, generator=draw), *STAYED)


@pytest.mark.parametrize("large", [1e9, -1e9])
def test_many_large_entries_hide_no_path(large: float) -> None:
    def step(h: Tensor, x: Tensor) -> Tensor:
        return (h + _scripted(h).masked_fill(torch.arange(6) > 1, large)).clamp(-5, 5)

    with pytest.raises(UnsupportedOperation, match="reads a number that depends on the input"):
        plrp.explain(*model(step, skip=False), composite="epsilon", target=0)


def test_an_index_fill_with_infinity_writes_each_place_once() -> None:
    found = plrp.explain(*model(lambda h, x: h.index_fill(1, torch.tensor([0]), -torch.inf).relu()), target=0)
    assert found.closing().max() < 1e-6


INTO_THE_INPUT: dict[str, Callable[[Tensor], Any]] = {
    "zero_": lambda x: x.zero_(),
    "foreach": lambda x: torch._foreach_mul_([x], 2.0),
    "aten": lambda x: torch.ops.aten.mul_.Scalar(x, 2.0),
    "numpy": lambda x: x.detach().numpy().__imul__(2),
    "data": lambda x: x.data.mul_(2),
    "mul_": lambda x: x.mul_(2),
}


@pytest.mark.parametrize("name", INTO_THE_INPUT)
@pytest.mark.parametrize("look", [plrp.explain, plrp.check, plrp.trace])
def test_a_model_that_writes_into_its_input_never_writes_into_the_users(name: str, look: Callable[..., Any]) -> None:
    layer, x = nn.Linear(6, 3), torch.rand(2, 6)
    before = x.clone()

    def writing(x: Tensor) -> Tensor:
        INTO_THE_INPUT[name](x)
        return layer(x)

    with contextlib.suppress(TraceError, UnsupportedOperation):
        look(writing, x)
    assert torch.equal(x, before)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
@pytest.mark.parametrize("product", [torch.matmul, torch.mm, torch.spmm, torch.sparse.mm])
def test_a_sparse_matrix_is_explained_as_the_dense_one(layout: str, product: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    layer, edges, x = nn.Linear(4, 3), (torch.rand(5, 5) > 0.4).float(), torch.rand(5, 4)
    options: dict[str, Any] = {"samples": None, "target": (2, 1), "composite": "epsilon"}
    sparse = plrp.explain(lambda x: product(getattr(edges, layout)(), layer(x)), x, **options)
    dense = plrp.explain(lambda x: edges @ layer(x), x, **options)
    torch.testing.assert_close(sparse.relevance, dense.relevance)
    assert sparse.relevance.any()


def test_strides_may_not_lead_out_of_a_view() -> None:
    """`as_strided` reads the memory around a view too, whose relevance would be lost."""
    torch.manual_seed(0)
    below, above, x = nn.Linear(6, 6), nn.Linear(6, 3), torch.randn(1, 6)

    def inside(x: Tensor) -> Tensor:
        return above(below(x).as_strided((1, 6), (6, 1)))

    for columns in (slice(1, None), slice(None, 5)):
        with pytest.raises(UnsupportedOperation, match="memory beside"):
            plrp.explain(lambda x, own=columns: above(below(x)[:, own].as_strided((1, 6), (6, 1), 0)), x)
    plain = plrp.explain(lambda x: above(below(x)), x, composite="epsilon").relevance
    torch.testing.assert_close(plrp.explain(inside, x, composite="epsilon").relevance, plain)


def test_a_step_that_torch_compiles_while_it_runs_is_refused() -> None:
    found, x = model(lambda h, x: torch.cond(h.sum() > 0, torch.relu, torch.tanh, (h,)))
    with pytest.raises(TraceError, match="compiled while it runs"):
        plrp.explain(found, x)


# --- constants that differ from pass to pass --------------------------------------------------------------------------


def buckets(h: Tensor, x: Tensor) -> Tensor:
    return h + torch.bucketize(h, torch.tensor([5.0, 10.0, 20.0]))


@torch.jit.script
def _above_five(h: Tensor) -> Tensor:
    return torch.relu(h - 5)


def a_number(h: Tensor, x: Tensor) -> Tensor:
    return h + len((h > 5).nonzero())


ABOVE_FIVE: dict[str, Step] = {
    "buckets": buckets,
    "a number": a_number,
    "a scripted summand": lambda h, x: h + _above_five(h),
    "a scripted factor": lambda h, x: h * (1 + _above_five(h)),
    "a length as a shift": lambda h, x: h.roll(min(len((h > 5).nonzero()), 5), 1),
    "an assigned number": lambda h, x: put_count(h),
    "a padded number": lambda h, x: F.pad(h, (0, 1), value=float(len((h > 5).nonzero())))[:, 1:],
}


WHOLE: dict[str, Step] = {  # arguments that are whole numbers, and no axes or sizes
    "softplus": lambda h, x: F.softplus(h, beta=1 + int((h > 5).sum())),
    "power": lambda h, x: h ** (1 + int((h > 5).any())),
    "roll": lambda h, x: h.roll(int((h > 5).sum()) % 6, 1),
    "chosen by a branch": lambda h, x: h + (2 if (h > 5).any() else 0),
    "a padding chosen by a branch": lambda h, x: F.pad(h, (1, 0), value=2 if (h > 5).any() else 0)[:, :6],
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_number_of_the_input_is_refused_wherever_it_is_read(name: str) -> None:
    """Also where each sample alone is enough for it, and after a pass with another number."""
    for order in ((30, 0.01), (0.01, 30)):
        found, x = model(WHOLE[name], skip=False)
        for size in order:
            if size < 1:
                assert plrp.explain(found, size * x, target=0, composite="epsilon").closing().max() < 1e-6
                continue
            for inputs in (size * x, size * x[:2], torch.cat([0.01 * x[:1], size * x[1:2]])):
                with pytest.raises(UnsupportedOperation, match=r"reads a number that depends|mixes the samples"):
                    plrp.explain(found, inputs, target=0, composite="epsilon")


@torch.jit.script
def _reaches_five(h: Tensor) -> Tensor:
    return (h > 5).any().float()


THROUGH_PYTHON: dict[str, Step] = {
    "float": lambda h, x: h + float(_reaches_five(h)),
    "tolist": lambda h, x: h + torch.tensor(_reaches_five(h).tolist()),
    "full": lambda h, x: h + torch.full((6,), _reaches_five(h).item()),
    "numpy": lambda h, x: h + float(_reaches_five(h).numpy()),
}


@pytest.mark.parametrize("name", THROUGH_PYTHON)
@pytest.mark.parametrize("before", [None, 0.01])
def test_a_hidden_number_through_python_is_refused_after_any_other_pass(name: str, before: float | None) -> None:
    found, x = model(THROUGH_PYTHON[name], skip=False)
    if before is not None:
        assert plrp.explain(found, before * x, target=0, composite="epsilon").closing().max() < 1e-6
    with pytest.raises(UnsupportedOperation, match="reads a number that depends on the input"):
        plrp.explain(found, 30 * x, target=0, composite="epsilon")


def put_count(h: Tensor) -> Tensor:
    h[:, 0] = (h > 5).sum(1)
    return h


@pytest.mark.parametrize("name", ABOVE_FIVE)
def test_a_pass_that_reads_other_constants_is_looked_at_again(name: str) -> None:
    """Below 5 the step adds nothing, and the map is right; above, it is refused after any other pass."""
    found, x = model(ABOVE_FIVE[name], skip=False)
    large = torch.cat([0.01 * x, 30 * x])
    with pytest.raises(UnsupportedOperation, match="reads a number that depends on the input"):
        plrp.explain(found, 30 * x, target=0, composite="epsilon")
    found, _ = model(ABOVE_FIVE[name], skip=False)
    for _ in range(2):
        small = plrp.explain(found, 0.01 * x, target=0, composite="epsilon")
        assert small.closing().max() < 1e-6
        for others in (30 * x, large, large[[0, 1, 4]], large.flip(0)):
            with pytest.raises(UnsupportedOperation, match="reads a number that depends on the input"):
                plrp.explain(found, others, target=0, composite="epsilon")
            assert not plrp.check(found, others)


class Choosing(nn.Module):
    """Adds a row of its own tensors that its input chooses."""

    def __init__(self, rows: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below, self.above, self.rows = nn.Linear(6, 6), nn.Linear(6, 3), rows
        self.table, self.list = nn.Parameter(torch.randn(4, 6)), nn.ParameterList(torch.randn(4, 6).unbind())
        self.register_buffer("room", torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.below(x)
        chosen = int(torch.bucketize(h.max(), torch.tensor([5.0, 10.0, 20.0])))
        return self.above(h + getattr(self, self.rows)[chosen])


@pytest.mark.parametrize("rows", ["table", "list", "room"])
def test_a_pass_that_chooses_another_of_the_models_tensors_is_looked_at_again(rows: str) -> None:
    net, x = Choosing(rows).eval(), torch.randn(2, 6)
    plrp.explain(net, 0.01 * x, target=0)
    with pytest.raises(UnsupportedOperation, match="reads a number that depends on the input"):
        plrp.explain(net, 100 * x, target=0)


def test_a_target_that_reads_other_constants_is_looked_at_again() -> None:
    torch.manual_seed(0)  # with some outputs above 5
    layer, x = nn.Linear(6, 3).eval(), torch.randn(4, 6, generator=torch.Generator().manual_seed(0))

    def target(output: Tensor) -> Tensor:
        return output[:, 0] + torch.bucketize(output[:, 1], torch.tensor([5.0, 10.0]))

    plrp.explain(layer, 0.01 * x, target=target)
    with pytest.raises(UnsupportedOperation, match="not on the tape"):
        plrp.explain(layer, 100 * x, target=target)


class Passes(nn.Module):
    """Counts its passes; `step` lies between two layers."""

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below, self.above, self.step, self.passes = nn.Linear(6, 6), nn.Linear(6, 3), step, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.above(self.step(self.below(x)))


AS_BEFORE: dict[str, Callable[[Tensor], Tensor]] = {
    "parameters alone": lambda h: h,
    "zeros": lambda h: h + torch.zeros(len(h), 6),
    "a table": lambda h: h + torch.arange(6.0),
    "a table for each sample": lambda h: h + torch.arange(6.0).expand(len(h), 6),
    "the size of the batch": lambda h: h.reshape(len(h), 2, 3).reshape(len(h), -1),
    "a mask of comparisons": lambda h: h * (h > 0).float(),
    "a leaky relu by hand": lambda h: h * torch.where(h > 0, 1.0, 0.1),
    "indices": lambda h: h.gather(1, h.argsort(1)),
}


@pytest.mark.parametrize("name", AS_BEFORE)
def test_a_pass_that_reads_the_same_constants_is_not_looked_at_again(name: str) -> None:
    """Nor if they only steer. The whole batch is looked at once."""
    net = Passes(AS_BEFORE[name]).eval()
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    for batch in (3, 5):
        plrp.explain(net, x[:batch], target=0)
    net.passes = 0
    for start in range(0, 40, 5):
        plrp.explain(net, x[start : start + 5], target=0)
        plrp.explain(net, x[start : start + 3], target=0)
    assert net.passes == 16


INDEPENDENT: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {  # and whether nothing of the input is in it
    "a parameter": (lambda h: h, True),
    "a mask": (lambda h: h + torch.ones(6, 6).tril()[2].log().clamp(-100), True),
    "a buffer that is written into": (lambda h: h + with_a_hundred(h.new_zeros(6)), True),
    "a comparison": (lambda h: h * (h > 0), False),
    "of a comparison": (lambda h: h * (torch.ones(6) * (h > 0)), False),
    "a comparison that is written": (lambda h: h * (torch.zeros_like(h).masked_fill_(h > 0, 1.0)), False),
    "hidden": (lambda h: h * (_scripted(h) > 0), False),
}


def with_a_hundred(room: Tensor) -> Tensor:
    room[1:3] = -100
    return room


@pytest.mark.parametrize("name", INDEPENDENT)
def test_the_whole_batch_is_looked_at_where_a_constant_may_come_from_the_input(name: str) -> None:
    sizes: list[int] = []
    step, independent = INDEPENDENT[name]

    def noted(h: Tensor) -> Tensor:
        sizes.append(len(h))
        return step(h)

    plrp.explain(Passes(noted).eval(), torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), target=0)
    assert (sizes.count(5) == 1) == independent


def padded(h: Tensor) -> Tensor:
    """Nothing passes where an entry is large, as padding in attention."""
    return torch.relu(h + torch.where(h > 1, -1e9, 0.0))


def padded_by_the_fourth(h: Tensor) -> Tensor:
    return torch.relu(h + torch.where(h[min(3, len(h) - 1)] > 0, -1e9, 0.0))


def test_a_mask_costs_a_few_passes_of_the_whole_batch_once() -> None:
    sizes: list[int] = []

    def noted(h: Tensor) -> Tensor:
        sizes.append(len(h))
        return padded(h)

    net, x = Passes(noted).eval(), 3 * torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    plrp.explain(net, x[:32], target=0)
    assert (
        sizes.count(32) == 7
    )  # the pass, recorded again, alone, a half moved, the pass for randomness, a half, the pass
    assert sum(sizes) < 260
    for batch in (32, 16, 5):  # no larger one
        sizes.clear()
        plrp.explain(net, x[32 : 32 + batch], target=0)
        assert sizes == [batch]
    with pytest.raises(UnsupportedOperation, match="mixes the samples"):
        plrp.explain(Passes(padded_by_the_fourth).eval(), x[:32], target=0)


def test_a_mask_that_no_relu_follows_takes_its_share() -> None:
    net, x = Passes(lambda h: h + (h > 0) * -1e4).eval().double(), torch.randn(3, 6).double()
    found = plrp.explain(net, x, target=0, composite="epsilon")
    assert found.closing().max() < 1e-6
    assert found.relevance.abs().sum() < 1e-3 * found.score.abs().sum()


def test_samples_with_new_constants_are_looked_at_without_the_others() -> None:
    sizes: list[int] = []

    def masked_mean(h: Tensor) -> Tensor:
        sizes.append(len(h))
        return h / (1 + (h > 0).sum(1, keepdim=True))

    net, x = Passes(masked_mean).eval(), torch.zeros(8, 6)
    with torch.no_grad():
        nn.init.eye_(net.below.weight)
        net.below.bias.fill_(-0.5)
    plrp.explain(net, x, target=0)
    sizes.clear()
    x[3, :2] = 1
    plrp.explain(net, x, target=0)
    assert set(sizes[1:-1]) == {2}
    assert sizes[0] == sizes[-1] == 8


def shared_with_numpy(h: Tensor, x: Tensor) -> Tensor:
    memory = np.from_dlpack(h.detach())
    memory *= 2
    return h


def shared_with_dlpack(h: Tensor, x: Tensor) -> Tensor:
    torch.from_dlpack(h.detach()).mul_(2)
    return h


def shared_storage(h: Tensor, x: Tensor) -> Tensor:
    torch.empty(0).set_(h.untyped_storage()).mul_(2)
    return h


@pytest.mark.parametrize("step", [shared_with_numpy, shared_with_dlpack, shared_storage])
@pytest.mark.parametrize("skip", [True, False])
def test_memory_that_is_written_behind_torchs_back_is_noticed(step: Step, skip: bool) -> None:
    with pytest.raises(TraceError, match="changed in place later on"):
        plrp.explain(*model(step, skip), composite="epsilon")


@pytest.mark.parametrize("ids", [[[5]], [[3, 7, 9]], [[3, 3, 3, 3, 3]], [[1, 2], [3, 4]], [[4, 4, 7, 7, 9, 9]]])
def test_a_path_from_few_tokens_is_not_missed(ids: list[list[int]]) -> None:
    embedding, layer = nn.Embedding(20, 6), nn.Linear(6, 3)
    plain: Any = lambda ids: layer((3 * embedding(ids)).mean(1))  # noqa: E731
    assert plrp.explain(plain, torch.tensor(ids), target=0).closing().max() < 1e-6
    with pytest.raises(UnsupportedOperation, match="not on the tape"):
        plrp.explain(
            lambda ids: layer((embedding(ids) + _scripted(embedding(ids))).mean(1)), torch.tensor(ids), target=0
        )


# --- token ids --------------------------------------------------------------------------------------------------------

IDS = torch.tensor([[3, 11, 7, 5, 13, 4, 9], [8, 2, 2, 17, 6, 15, 10], [12, 19, 6, 14, 16, 3, 5]])
Ids = Callable[[Tensor], Tensor]


HIDDEN_IDS: dict[str, Ids] = {  # (batch, …) of numbers that no embedding looked up
    "counts": lambda ids: F.one_hot(ids, 20).sum(1).float(),
    "bincount": lambda ids: torch.stack([torch.bincount(row, minlength=20) for row in ids]).float(),
    "presence": lambda ids: (ids[:, :, None] == torch.arange(20)).any(1).float(),
    "sum": lambda ids: ids.sum(1, keepdim=True).float(),
    "largest": lambda ids: ids.amax(1, keepdim=True).float(),
    "different": lambda ids: torch.tensor([[float(len(set(row)))] for row in ids.tolist()]),
    "first": lambda ids: ids[:, :1] % 7 * torch.ones(1),
    "scatter_add": lambda ids: torch.zeros(len(ids), 20).scatter_add(1, ids, torch.ones(ids.shape)),
    "scatter_add_": lambda ids: torch.zeros(len(ids), 20).scatter_add_(1, ids, torch.ones(ids.shape)),
    "scatter": lambda ids: torch.zeros(len(ids), 20).scatter(1, ids, 1.0),
    "columns": lambda ids: torch.arange(60.0).view(3, 20)[:, ids].sum((0, 2))[:, None],
    "index_select of columns": lambda ids: torch.arange(20.0)[None].index_select(1, ids[:, 1]).T,
}


class Tokens(nn.Module):
    """A bag of embeddings, and a step of the ids that is added or, as a factor, multiplied."""

    def __init__(self, step: Ids, factor: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.above, self.step, self.factor = nn.Embedding(20, 6), nn.Linear(6, 3), step, factor

    def forward(self, ids: Tensor) -> Tensor:
        h, hidden = self.above(self.embedding(ids).mean(1)), self.step(ids)
        hidden = hidden @ torch.linspace(1.0, 3.0, hidden.shape[1])[:, None]
        return h * hidden if self.factor else h + hidden


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", HIDDEN_IDS)
def test_ids_that_enter_by_their_counts_or_sums_are_refused(name: str, batch: int) -> None:
    with pytest.raises(UnsupportedOperation, match="not on the tape"):
        plrp.explain(Tokens(HIDDEN_IDS[name]).eval(), IDS[:batch], target=0)


def test_a_factor_of_ids_is_no_gate_but_a_length_is() -> None:
    with pytest.raises(UnsupportedOperation, match="not on the tape"):
        plrp.explain(Tokens(HIDDEN_IDS["sum"], factor=True).eval(), IDS, target=0)
    padded = torch.cat([IDS, IDS.new_zeros(3, 2)], 1)
    length: Ids = lambda ids: (ids != 0).sum(1, keepdim=True).float()  # noqa: E731
    assert plrp.explain(Tokens(length, factor=True).eval(), padded, target=0).closing().max() < 1e-6


@pytest.mark.parametrize("ids", [[[0, 5, 6, 7, 2, 1]], [[0, 5, 6, 7, 2], [0, 8, 2, 1, 1]], [[5, 2]], [[0, 9, 9, 9, 2]]])
def test_positions_that_padding_decides_are_constants(ids: list[list[int]]) -> None:
    embedding, places, layer = nn.Embedding(20, 6), nn.Embedding(20, 6), nn.Linear(6, 3)

    def model(ids: Tensor) -> Tensor:  # as RoBERTa counts them, 1 being its padding
        words = ids != 1
        h = embedding(ids) + places(words.cumsum(1) * words + 1)
        return layer((h * words[..., None]).sum(1))

    assert plrp.explain(model, torch.tensor(ids), target=0).closing().max() < 1e-6


TABLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # rows of w (20, channels) by ids (batch, tokens)
    "getitem": lambda w, ids: w[ids],
    "getitem of all": lambda w, ids: w[ids, :],
    "index_select": lambda w, ids: w.index_select(0, ids.flatten()).view(*ids.shape, -1),
    "by its names": lambda w, ids: torch.index_select(input=w, dim=0, index=ids.flatten()).view(*ids.shape, -1),
    "of the columns' numbers": lambda w, ids: torch.stack([w[:, n][ids] for n in range(w.shape[1])], -1),
    "of a column": lambda w, ids: torch.stack([w[ids, n] for n in range(w.shape[1])], -1),
    "take": lambda w, ids: torch.stack([w[:, n].take(ids) for n in range(w.shape[1])], -1),
    "gather": lambda w, ids: w.expand(len(ids), -1, -1).gather(1, ids[..., None].expand(-1, -1, w.shape[1])),
    "take_along_dim": lambda w, ids: w.expand(len(ids), -1, -1).take_along_dim(ids[..., None].expand(-1, -1, 4), 1),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", TABLES)
def test_every_look_up_in_a_table_is_an_embedding(name: str, batch: int) -> None:
    torch.manual_seed(0)
    w, layer = torch.randn(20, 4).double(), nn.Linear(4, 3).double()
    looked_up = plrp.explain(lambda ids: layer(TABLES[name](w, ids).relu().sum(1)), IDS[:batch], target=0)
    embedded = plrp.explain(lambda ids: layer(F.embedding(ids, w).relu().sum(1)), IDS[:batch], target=0)
    torch.testing.assert_close(looked_up.relevance, embedded.relevance)
    assert float(embedded.relevance.abs().sum()) > 0.1


ORDER = torch.randperm(20, generator=torch.Generator().manual_seed(0))
MOVED_IDS: dict[str, tuple[Ids, Ids]] = {  # each with the number of times that it reads each token
    "sort": (lambda ids: ids.sort(1).values, torch.ones_like),
    "topk": (lambda ids: ids.topk(3, 1).values, lambda ids: (ids >= ids.sort(1).values[:, -3:-2]).long()),
    "shift": (lambda ids: shifted(ids), lambda ids: (torch.arange(7) < 6).long().expand(ids.shape)),
    "shift of a copy": (lambda ids: shifted(ids.clone()), lambda ids: (torch.arange(7) < 6).long().expand(ids.shape)),
    "scatter": (lambda ids: torch.zeros_like(ids).scatter(1, torch.arange(7).expand(ids.shape), ids), torch.ones_like),
    "index_copy": (lambda ids: torch.zeros_like(ids).index_copy(1, torch.arange(7).flip(0), ids), torch.ones_like),
    "gather of itself": (
        lambda ids: ids.gather(1, ids % 1),
        lambda ids: 7 * (torch.arange(7) == 0).long().expand(ids.shape),
    ),
    "view_as": (lambda ids: ids.flip(1).flatten().view_as(ids), torch.ones_like),
    "other types": (lambda ids: ids.int().long(), torch.ones_like),
}


def shifted(ids: Tensor) -> Tensor:
    """The ids one place to the right, after a 0, as decoders are given them."""
    start = ids.new_zeros(ids.shape)
    start[:, 1:] = ids[:, :-1]
    return start


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", MOVED_IDS)
def test_relevance_follows_ids_that_are_moved(name: str, batch: int) -> None:
    w, ids, (move, times) = torch.linspace(0.0, 3.0, 20).double(), IDS[:batch], MOVED_IDS[name]
    relevance = plrp.explain(lambda ids: w[move(ids)].sum(1, keepdim=True), ids, target=0).relevance
    torch.testing.assert_close(relevance, w[ids] * times(ids), rtol=1e-5, atol=1e-5)


def test_ids_are_renamed_by_a_table_of_whole_numbers() -> None:
    w = torch.linspace(0.0, 3.0, 20).double()
    relevance = plrp.explain(lambda ids: w[ORDER[ids]].sum(1, keepdim=True), IDS, target=0).relevance
    torch.testing.assert_close(relevance, w[ORDER[IDS]], rtol=1e-5, atol=1e-5)


def test_numbers_that_are_added_where_ids_say_have_relevance_of_their_own() -> None:
    torch.manual_seed(0)
    w, weights = torch.rand(20).double(), torch.rand(20).double()

    def pointers(ids: Tensor) -> Tensor:
        return (torch.zeros(len(ids), 20).double().scatter_add(1, ids, w[ids]) * weights).sum(1, keepdim=True)

    relevance = plrp.explain(pointers, IDS, target=0).relevance
    torch.testing.assert_close(relevance, w[IDS] * weights[IDS], rtol=1e-5, atol=1e-5)


@given(st.lists(st.integers(3, 12), min_size=1, max_size=12), st.integers(0, 3))
def test_moved_ids_change_every_count_and_leave_padding(tokens: list[int], padding: int) -> None:
    sample = torch.tensor([20, *tokens, 21, *[1] * padding])
    drawn = [_moved_ids(sample.clone(), _FAR[n % 2], torch.Generator().manual_seed(n), n) for n in range(4)]
    for moved in drawn:
        assert ((moved == 1) == (sample == 1)).all()
    assert any(sample.sum() != moved.sum() for moved in drawn)
    for moved in drawn[2:]:
        assert moved[0] != 20
        assert moved.max() != sample.max()
    for moved in drawn[:2]:
        assert moved[0] == 20
        assert moved[len(tokens) + 1] == 21 or padding == 1  # one pad may be an ordinary token
    for token in set(tokens):
        assert any((moved == token).sum() != (sample == token).sum() for moved in drawn[:2])


class OneHot(nn.Module):
    """Takes one-hot letters only, and hides a path."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Conv1d(4, 6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not bool(((x == 0) | (x == 1)).all() and (x.sum(1) == 1).all()):
            raise ValueError("one-hot letters")
        h = self.below(x).mean(2)
        return self.above(h + _scripted(h))


def test_a_model_that_refuses_other_inputs_is_looked_at_with_its_own() -> None:
    letters = F.one_hot(torch.randint(4, (2, 30), generator=torch.Generator().manual_seed(0)), 4)
    with pytest.raises(UnsupportedOperation, match="not on the tape"):
        plrp.explain(OneHot().eval(), letters.transpose(1, 2).float())


class Branching(nn.Module):
    """Hides a path where the input is bright."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.below(x)
        return self.above(h + _scripted(h) if bool(x.mean() > 1) else h)


def test_every_way_through_a_model_is_looked_at() -> None:
    net = Branching().eval()
    assert plrp.explain(net, torch.rand(3, 6) - 0.5).closing().max() < 1e-6
    with pytest.raises(UnsupportedOperation, match="not on the tape"):
        plrp.explain(net, 2 + torch.rand(3, 6))
    with pytest.raises(UnsupportedOperation, match="not on the tape"):
        plrp.trace(net, torch.cat([torch.rand(2, 6), 10 + torch.rand(3, 6)]))


class Unpredictable(nn.Module):
    """Fails on every input but one."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.layer, self.x = nn.Linear(6, 3), x

    def forward(self, x: Tensor) -> Tensor:
        if not torch.equal(x, self.x):
            raise ValueError
        return self.layer(x)


def test_a_model_that_cannot_be_looked_at_twice_says_so() -> None:
    x = torch.randn(2, 6)
    with pytest.warns(UserWarning, match="second input to check"):
        plrp.explain(Unpredictable(x).eval(), x)


TARGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "integers": lambda output: output[:, 0] + (100 * output[:, 1]).long() / 100,
    "scripted": lambda output: output[:, 0] + _scripted(output)[:, 1],
    "a count": lambda output: output[:, 0] + (output > 0).sum(1),
    "less the mean": lambda output: output[:, 0] - output.mean(0),
    "softmax over the batch": lambda output: output[:, 0] * output.softmax(0)[:, 1],
    "cumsum": lambda output: output[:, 0].cumsum(0),
    "sort": lambda output: output[:, 0].sort().values,
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_looked_at_too(name: str) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(3, 6)
    for _ in range(2):  # what was refused is not taken for known
        with pytest.raises(UnsupportedOperation, match=r"not on the tape|mixes the samples"):
            plrp.explain(net, x, target=TARGETS[name], composite="epsilon")
    with pytest.raises(UnsupportedOperation, match=r"not on the tape|mixes the samples"):
        plrp.trace(net, x).explain(target=TARGETS[name], composite="epsilon")


def chosen_by(offset: int) -> Callable[[Tensor], Tensor]:
    """The first output where another sample's second one is large, else the third: with an offset of 0, its own."""

    def target(output: Tensor) -> Tensor:
        row = (torch.arange(len(output)) - offset) % len(output)
        return torch.where(output.index_select(0, row)[:, 1] > 0, output[:, 0], output[:, 2])

    return target


class Offset:
    def __init__(self, offset: int) -> None:
        self.offset = offset

    def target(self, output: Tensor) -> Tensor:
        return chosen_by(self.offset)(output)


def with_default(offset: int) -> Callable[[Tensor], Tensor]:
    def target(output: Tensor, chosen: Callable[[Tensor], Tensor] = chosen_by(offset)) -> Tensor:  # noqa: B008
        return chosen(output)

    return target


FACTORIES: dict[str, Callable[[int], Callable[[Tensor], Tensor]]] = {
    "a closure": chosen_by,
    "a default": with_default,
    "a partial function": lambda offset: functools.partial(lambda output, by: chosen_by(by)(output), by=offset),
    "a method": lambda offset: Offset(offset).target,
    "a tensor": lambda offset: functools.partial(lambda by, output: chosen_by(int(by))(output), torch.tensor(offset)),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_targets_of_one_factory_are_looked_at_each(name: str) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(4, 6)
    assert plrp.explain(net, x, target=FACTORIES[name](0), composite="epsilon").closing().max() < 1e-6
    with pytest.raises(UnsupportedOperation, match="mixes the samples"):
        plrp.explain(net, x, target=FACTORIES[name](1), composite="epsilon")


OFFSET = 0


def test_a_number_beside_a_target_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A global one does, as in a notebook. A function may hold itself, and names without a value."""
    torch.manual_seed(0)
    layer, x = nn.Linear(6, 3).eval(), torch.randn(4, 6)

    def itself(output: Tensor, times: int = 0) -> Tensor:
        return chosen_by(OFFSET)(output) if times else itself(output, 1)

    def without_value(output: Tensor) -> Tensor:
        return chosen_by(OFFSET)(output) if len(output) else later

    for target in (lambda output: chosen_by(OFFSET)(output), itself, without_value):
        monkeypatch.setitem(globals(), "OFFSET", 0)
        assert plrp.explain(layer, x, target=target).closing().max() < 1e-6
        monkeypatch.setitem(globals(), "OFFSET", 1)
        with pytest.raises(UnsupportedOperation, match="mixes the samples"):
            plrp.explain(layer, x, target=target)
    if len(x) > 4:
        later = x


def test_a_target_is_looked_at_once_while_it_holds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    compare = verification._compare_moved
    monkeypatch.setattr(verification, "_compare_moved", lambda *a, **k: [looks.append(1), compare(*a, **k)][1])

    def weighted(weight: Any) -> Callable[[Tensor], Tensor]:
        return lambda output: (output * weight)[:, 0]

    trace = plrp.trace(nn.Linear(6, 3).eval(), torch.randn(4, 6))
    looks.clear()
    for weight in (0.5, 0.5, torch.ones(3), torch.ones(3), 0.25, 0.5):
        trace.explain(target=weighted(weight))
    assert len(looks) == 3


def test_ordinary_targets_pass() -> None:
    net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(3, 6)
    targets: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda output: output[:, 0] - output[:, 1],
        lambda output: output.amax(1),
        lambda output: torch.where(output[:, 0] > 0, output[:, 0], output[:, 1]),
        lambda output: output.gather(1, output.argmax(1, keepdim=True))[:, 0],
    )
    for target in targets:
        assert plrp.explain(net, x, target=target, composite="epsilon").closing().max() < 1e-6


VISIBLE: dict[str, Step] = {
    "a mask of comparisons": inner(lambda h: h * (h > 0).float()),
    "where": inner(lambda h: torch.where(h > 0, h, 0.1 * h)),
    "indices": inner(lambda h: h.gather(1, h.argsort(1))),
    "the shape": inner(lambda h: h / h.shape[1]),
    "max with a constant": inner(lambda h: torch.max(h, torch.zeros(()))),
}


@pytest.mark.parametrize("name", VISIBLE)
def test_what_steers_the_program_is_no_path(name: str) -> None:
    found, x = model(VISIBLE[name])
    assert plrp.check(found, x)
    assert plrp.explain(found, x, composite="epsilon").closing().max() < 1e-6


def test_a_maximum_against_a_constant_books_what_the_constant_wins() -> None:
    found, x = model(inner(lambda h: torch.max(h, torch.full((), 0.3))), skip=False)
    assert plrp.explain(found, x, composite="epsilon").closing().max() < 1e-6


class Counting(nn.Module):
    """Says something else at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * float(self.calls)


def test_a_model_that_changes_from_call_to_call_is_refused() -> None:
    with pytest.raises(TraceError, match="by itself"):
        plrp.explain(Counting().eval(), torch.randn(2, 6))


class Unsteady(nn.Module):
    """Reads a number that differs from call to call, too little for its output."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind, self.calls = nn.Linear(6, 3), kind, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.kind == "a random mask":  # where it is no 1, it is beside zeros
            return (F.pad(self.layer(x), (0, 20)) * torch.cat([torch.ones(3), torch.rand(20).round()]))[:, :3]
        number = torch.rand(3) if self.kind == "random" else torch.full((3,), float(self.calls))
        return self.layer(x) + (1e-6 * number if self.kind != "a Python number" else 1e-6 * self.calls)


@pytest.mark.parametrize("kind", ["random", "a random mask", "a counter", "a Python number"])
@pytest.mark.parametrize("samples", [0, None])
def test_a_number_that_differs_from_pass_to_pass_is_called_so(kind: str, samples: int | None) -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedOperation, match="differs from pass to pass for the same input"):
        plrp.trace(Unsteady(kind).eval(), torch.randn(2, 6), samples=samples)


class Late(Counting):
    """Takes another way from its fourth call on."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x.relu() if self.calls > 3 else x)


def test_a_branch_that_the_number_of_calls_decides_is_called_so() -> None:
    with pytest.raises(UnsupportedOperation, match="A choice of operations differs from pass to pass for the same inp"):
        plrp.explain(Late().eval(), torch.randn(2, 6))


def test_a_pooling_that_draws_its_places_is_called_random() -> None:
    torch.manual_seed(0)
    pooling = nn.FractionalMaxPool2d(2, output_size=8)  # of 16: each place is the only one, whatever is drawn
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), pooling, nn.Flatten(), nn.Linear(128, 2)).eval()
    with pytest.raises(UnsupportedOperation, match="differs from pass to pass for the same input: it is random"):
        plrp.explain(net, torch.randn(2, 1, 16, 16))


def test_a_model_is_looked_at_twice_once_per_shape() -> None:
    calls: list[int] = []

    class Noting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(len(x))
            return super().forward(x)

    noting = Noting(6, 3).eval()
    plrp.explain(noting, torch.randn(5, 6))
    assert calls == [2] * 8 + [5]  # two recorded, alone, four times far off, twice of other sizes; then all recorded
    calls.clear()
    for _ in range(3):
        plrp.explain(noting, torch.randn(5, 6))
    assert calls == [5, 5, 5]
    plrp.explain(noting, torch.randn(1, 6))
    assert calls[3:] == [1] * 9
    calls.clear()
    wide = Noting(1000, 3).eval()
    plrp.explain(wide, torch.randn(1, 1000))
    assert calls == [1] * 7  # of many features not all agree by chance: twice far off


def masked_mean(h: Tensor, x: Tensor) -> Tensor:
    mask = (x.abs() > 0.5).float()
    return h * (mask.sum(1, keepdim=True) / 6)


GATES: dict[str, Step] = {
    "a leaky relu by hand": lambda h, x: h * torch.where(h > 0, 1.0, 0.1),
    "another": lambda h, x: (h > 0) * h + 0.01 * (h <= 0) * h,
    "a masked mean": masked_mean,
    "a table": lambda h, x: h * torch.linspace(1, 2, 6)[x.argmax(1)][:, None],
}


@pytest.mark.parametrize("name", GATES)
def test_factors_from_comparisons_are_gates(name: str) -> None:
    """They take no relevance; and nearby they do not change."""
    found, x = model(GATES[name], skip=False)
    assert plrp.check(found, x)
    assert plrp.explain(found, x, composite="epsilon").closing().max() < 1e-6


class Fussy(nn.Module):
    """Keeps what it saw, and takes one-hot input of three samples only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(6, 3), torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) != 3 or not bool(((x == 0) | (x == 1)).all()):
            raise KeyError("three one-hot samples")
        self.seen = x.detach()
        return self.layer(x)


def test_what_a_model_says_to_other_inputs_is_its_own_affair() -> None:
    fussy, x = Fussy().eval(), torch.eye(6)[:3]
    assert plrp.explain(fussy, x).closing().max() < 1e-6
    assert torch.equal(fussy.seen, x)  # the last pass is of the user's input


@pytest.mark.parametrize("step", [lambda h: h.flip(0), lambda h: h.roll(1, 0)])
def test_samples_in_another_order_are_refused(step: Callable[[Tensor], Tensor]) -> None:
    layer = nn.Linear(6, 3).eval()
    with pytest.raises(ValueError, match="another order"):
        plrp.explain(lambda x: step(layer(x)), torch.randn(3, 6))


def test_a_maximum_against_a_wider_constant_books_what_the_constant_wins() -> None:
    layer, constant = nn.Linear(6, 3).eval(), torch.randn(4, 3)
    found = plrp.explain(lambda x: torch.maximum(layer(x)[:, None], constant).sum(1), torch.randn(2, 6))
    assert found.closing().max() < 1e-6


def test_an_empty_batch_closes_and_half_precision_is_recomputed() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 2)]
    net = nn.Sequential(*layers).eval()
    assert plrp.explain(net, torch.randn(0, 3, 8, 8)).closing().shape == (0,)
    half = plrp.explain(net.bfloat16(), torch.randn(2, 3, 8, 8).bfloat16())
    assert bool(half.relevance.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_no_hidden_path(dtype: torch.dtype) -> None:
    """A BatchNorm folded in, an attention written out: the same to the rounding of the dtype."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(1600, 5)).eval()
    nn.init.normal_(net[1].weight)
    nn.init.normal_(net[1].running_mean)
    assert plrp.explain(net.to(dtype), torch.randn(2, 3, 12, 12).to(dtype)).closing().max() < 1e-5
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(32, 3)).eval().to(dtype)
    x = torch.randn(2, 9, 32).to(dtype)
    assert plrp.explain(lambda x: encoder(x).mean(1), x, composite="attnlrp").closing().max() < 1e-5
    with pytest.raises(UnsupportedOperation, match="not on the tape"):
        plrp.explain(lambda x: (encoder(x) + _scripted(encoder(x))).mean(1), x, composite="attnlrp")


# --- samples that mix -------------------------------------------------------------------------------------------------

MIXING: dict[str, Step] = {
    "mean": inner(lambda h: h - h.mean(0)),
    "cumsum": inner(lambda h: h.cumsum(0)),
    "matrix": inner(lambda h: torch.ones(len(h), len(h)) @ h),
    "normalize": inner(lambda h: F.normalize(h, dim=0)),
    "softmax": inner(lambda h: h * torch.softmax(h, 0)),
    "sort": inner(lambda h: h.sort(0).values),
    "flip": inner(lambda h: h.flip(0)),
    "attention over the batch": inner(lambda h: torch.softmax(h @ h.T, -1) @ h),
    "attention of torch": inner(lambda h: F.scaled_dot_product_attention(h[None], h[None], h[None])[0]),
    "nodes first": inner(lambda h: torch.relu(torch.eye(len(h)).roll(1, 0) @ h)),
}


@pytest.mark.parametrize("name", [name for name in MIXING if name != "flip"])
@pytest.mark.parametrize("batch", [3, 6])  # as many samples as features, too
def test_samples_that_mix_are_refused(name: str, batch: int) -> None:
    found, _ = model(MIXING[name])
    with pytest.raises(REFUSED, match="samples of the batch"):
        plrp.explain(found, torch.randn(batch, 6), composite="epsilon")
    assert plrp.explain(found, torch.randn(1, 6), composite="epsilon").closing().max() < 1e-5 or name == "sort"


@pytest.mark.parametrize("name", [name for name in MIXING if name != "flip"])
@pytest.mark.parametrize("batch", [3, 6])
def test_samples_that_mix_are_refused_in_one_of_several_outputs(name: str, batch: int) -> None:
    """If it is asked for: what mixes in another output is its own affair."""
    found, _ = model(MIXING[name])
    layer = nn.Linear(6, 3)

    def several(x: Tensor) -> dict[str, Tensor]:
        return {"mixed": found(x), "plain": layer(x)}

    x = torch.randn(batch, 6)
    assert plrp.explain(several, x, composite="epsilon", target=lambda o: o["plain"][:, 1]).closing().max() < 1e-5
    with pytest.raises(REFUSED, match="the samples"):
        plrp.explain(several, x, composite="epsilon", target=lambda o: o["mixed"][:, 1])


# --- models without a batch axis --------------------------------------------------------------------------------------


class Graph(nn.Module):
    """Two rounds of messages between nodes: (nodes, features) to (nodes, classes)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        edges = (torch.rand(7, 7) > 0.5).float() + torch.eye(7)
        self.register_buffer("edges", edges / edges.sum(1, keepdim=True))
        self.first, self.second, self.last = nn.Linear(5, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(self.edges @ x))
        return self.last(torch.relu(self.second(self.edges @ h)))


PRUNINGS = [
    None,
    plrp.Pruning(0.2),
    plrp.Pruning(0.3, redistribution="M"),
    plrp.Pruning(0.3, redistribution="M-sign"),
    plrp.Pruning(p=None, sparsity_gain=1.0),
]


@pytest.mark.parametrize("composite", ["epsilon", "epsilon-plus-flat"])
@pytest.mark.parametrize("pruning", PRUNINGS, ids=str)
def test_a_model_without_a_batch_axis_is_one_sample_of_a_model_with_one(
    composite: str, pruning: plrp.Pruning | None
) -> None:
    graph, x = Graph().eval(), torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    options: dict[str, Any] = {"composite": composite, "pruning": pruning, "target": (2, 1), "layers": True}
    found = plrp.explain(graph, x, samples=None, **options)
    batched = plrp.explain(lambda x: graph(x[0])[None], x[None], **options)
    torch.testing.assert_close(found.relevance, batched.relevance[0])
    assert found.score.shape == (1,)
    assert found.closing().max() < 1e-6
    with plrp.plain_walk():
        torch.testing.assert_close(plrp.explain(graph, x, samples=None, **options).relevance, found.relevance)
    assert found.survivors("second")[0].index.shape[1] == 2  # node and feature
    assert "no batch axis" in str(found)
    traced = plrp.trace(graph, x, samples=None)
    assert torch.equal(traced.explain(**options).relevance, found.relevance)
    channels = range(graph.second.out_features)
    parts = [traced.explain(**options, condition={"second": [channel]}).relevance for channel in channels]
    torch.testing.assert_close(sum(parts), found.relevance)


def test_a_graph_taken_for_a_batch_is_told_how_to_say_so() -> None:
    graph, x = Graph().eval(), torch.randn(7, 5)
    with pytest.raises(UnsupportedOperation, match=r"mixes the samples.*samples=None"):
        plrp.explain(graph, x, target=1)
    assert plrp.check(graph, x, samples=None)
    assert not plrp.check(graph, x)


def test_targets_without_a_batch_axis() -> None:
    graph, x = Graph().eval(), torch.randn(7, 5)
    mean = plrp.explain(graph, x, samples=None, target=lambda scores: scores[:, 1].mean())
    torch.testing.assert_close(mean.score, graph(x)[:, 1].mean()[None])
    net, vector = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).eval(), torch.randn(5)
    found = plrp.explain(net, vector, samples=None)  # a vector of scores has a winner
    assert found.target == (int(net(vector).argmax()),)
    torch.testing.assert_close(found.relevance, plrp.explain(net, vector[None]).relevance[0])
    number = plrp.explain(lambda v: net(v).sum(), vector, samples=None)
    torch.testing.assert_close(number.score, net(vector).sum()[None])
    wrong: tuple[tuple[Any, str], ...] = (
        (None, "which score"),
        (1, "which score"),
        ((1,), "2 whole numbers"),
        ((7, 0), "out of range"),
        (lambda scores: scores[:, 0], r"reduce it to one score"),
    )
    for target, said in wrong:
        with pytest.raises(ValueError, match=said):
            plrp.explain(graph, x, samples=None, target=target)
    with pytest.raises(ValueError, match="samples is 0"):
        plrp.explain(graph, x, samples=1)
    with pytest.raises(ValueError, match="micro_batch"):
        plrp.explain(graph, x, samples=None, micro_batch=2)


def test_what_the_tape_misses_is_noticed_without_a_batch_axis_too() -> None:
    graph, x = Graph().eval(), torch.randn(7, 5)
    with pytest.raises(REFUSED, match=r"tape|by itself"):
        plrp.explain(lambda x: graph(x) + (100 * graph(x)).long().float(), x, samples=None, target=(0, 0))


# --- a trace is of one model ------------------------------------------------------------------------------------------


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "in place": lambda net: net[2].weight.requires_grad_(False).mul_(3),
    "through .data": lambda net: net[2].weight.data.mul_(3),
    "through numpy": lambda net: np.multiply(net[2].bias.detach().numpy(), 3, net[2].bias.detach().numpy()),
    "of the first layer": lambda net: net[0].weight.data.mul_(3),
    "loaded": lambda net: net.load_state_dict({key: 3 * value for key, value in net.state_dict().items()}),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_trace_notices_that_its_weights_changed(how: str) -> None:
    net, x = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).eval(), torch.randn(2, 6)
    trace, explanation = plrp.trace(net, x), plrp.explain(net, x)
    trace.explain()
    CHANGES[how](net)
    with pytest.raises(RuntimeError, match=r"weights of '\d' changed"):
        trace.explain()
    with pytest.raises(RuntimeError, match="changed"):
        _ = explanation.ledger


@pytest.mark.parametrize("write", [lambda x: x.zero_(), lambda x: x.data.zero_(), lambda x: x.numpy().fill(0)])
def test_a_trace_is_a_snapshot_of_its_input(write: Callable[[Tensor], Any]) -> None:
    net, x = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).eval(), torch.randn(2, 6)
    trace, explanation = plrp.trace(net, x), plrp.explain(net, x, composite="epsilon")
    write(x)
    assert torch.equal(trace.explain(composite="epsilon").relevance, explanation.relevance)
    with pytest.raises(RuntimeError, match="changed"):
        _ = explanation.ledger


# --- claims that a value is ≥ 0 ---------------------------------------------------------------------------------------

NEGATIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "times an integer": lambda h: h * torch.tensor(-2),
    "times a numpy number": lambda h: h * np.float64(-2),
    "plus an integer": lambda h: h + torch.tensor(-2),
    "plus a numpy number": lambda h: h + np.int64(-2),
    "index_fill": lambda h: h.index_fill(1, torch.tensor([0]), -2),
    "scatter": lambda h: h.scatter(1, torch.zeros(len(h), 1, dtype=torch.long), -2.0),
    "masked_fill": lambda h: h.masked_fill(h > 0.5, torch.tensor(-2)),
    "where": lambda h: torch.where(h > 0.5, torch.tensor(-2), h),
    "min": lambda h: torch.min(h, torch.tensor(-1.0)),
    "minimum": lambda h: torch.minimum(h, torch.tensor(-1)),
    "hardtanh": lambda h: F.hardtanh(h, min_val=-3.0, max_val=-1.0),
    "clamp": lambda h: h.clamp(max=-1),
    "softplus": lambda h: F.softplus(h, beta=-1.0),
    "divisor": lambda h: F.avg_pool1d(h[:, None], 2, 1)[:, 0] * -1,
    "pad": lambda h: F.pad(h, (1, 1), value=-1.0),
    "cat": lambda h: torch.cat([h, -torch.ones(len(h), 2)], 1),
    "subtract": lambda h: h - 1,
    "index_add": lambda h: torch.zeros(len(h), 6).index_add(1, torch.arange(6), h, alpha=-1),
    "index_add onto a constant": lambda h: torch.full((len(h), 6), -9.0).index_add(1, torch.arange(6), h),
    "index_add of a constant": lambda h: h.index_add(1, torch.arange(6), torch.full((len(h), 6), -9.0)),
    "scatter_add": lambda h: torch.full((len(h), 6), -9.0).scatter_add(1, torch.arange(6).expand(len(h), 6), h),
}


@pytest.mark.parametrize("rule", ["proportional", "winner-take-all"])
def test_nothing_is_claimed_of_a_function_with_a_users_rule(rule: str) -> None:
    found = plrp.trace(lambda x: torch.diff(torch.relu(x)), torch.rand(3, 6), rules={torch.diff: rule})
    assert not found.ops[-1].output.nonnegative


def assigned_integer(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, 0] = torch.tensor(-2)
    return h


@pytest.mark.parametrize("name", [*NEGATIVE, "item assignment"])
def test_no_value_with_negative_entries_is_called_nonnegative(name: str) -> None:
    step = NEGATIVE.get(name, assigned_integer)
    trace = plrp.trace(lambda x: step(torch.relu(x)), torch.randn(3, 6).abs() + 0.1)
    for op in trace.ops:
        for value in op.outputs:
            assert not value.nonnegative or bool((value.data >= 0).all()), op.kind
    assert not trace.ops[-1].output.nonnegative


@pytest.mark.parametrize("network", ["mobilenet_v3_small", "resnet18", "googlenet", "densenet121"])
def test_claims_hold_on_networks(network: str) -> None:
    torchvision = pytest.importorskip("torchvision")
    options = {"init_weights": False} if network == "googlenet" else {}
    net = getattr(torchvision.models, network)(weights=None, **options).eval()
    trace = plrp.tape.trace.record(net, torch.randn(1, 3, 64, 64))
    for op in trace.ops:
        for value in op.outputs:
            assert not value.nonnegative or bool((value.data >= 0).all()), op.name
        assert not is_nonnegative(op) or all(bool((v.data >= 0).all()) for v in op.outputs)
    assert any(value.nonnegative for op in trace.ops for value in op.outputs)


# --- sums that overlap ------------------------------------------------------------------------------------------------


def test_overlapping_folds_are_split_in_proportion() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(36, 3).eval(), torch.rand(2, 4, 25)

    def folded(x: Tensor) -> Tensor:
        return layer(F.fold(x, (6, 6), 2).flatten(1))

    found = plrp.explain(folded, x, composite="epsilon")
    assert found.closing().max() < 1e-6
    z = F.fold(x, (6, 6), 2)
    relevance = (
        z.flatten(1) * layer.weight[found.target] * (found.score / (found.score + 1e-6 * found.score.sign()))[:, None]
    )
    share = F.unfold((relevance / (z.flatten(1) + 1e-6)).view_as(z), 2) * x
    torch.testing.assert_close(found.relevance, share, rtol=1e-4, atol=1e-6)


# --- numbers that comparisons add, divisors of the batch --------------------------------------------------------------


@pytest.mark.parametrize("mask", ["float", "count", "integer"])
def test_what_a_comparison_adds_is_refused(mask: str) -> None:
    """0 and 1 as factors steer; as summands they are numbers that depend on the input."""

    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 200), nn.Linear(200, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.a(x)
            above = h > 0.1
            return self.b(
                h + {"float": above.float(), "count": above.sum(1, keepdim=True), "integer": above.int()}[mask]
            )

    torch.manual_seed(0)
    with pytest.raises(plrp.UnsupportedOperation, match="depends on the input but is not on the tape"):
        plrp.explain(Adding().eval(), torch.rand(2, 6), target=0, composite="epsilon")


@pytest.mark.parametrize("over", ["norm", "std", "sum"])
def test_a_divisor_over_the_batch_is_refused(over: str) -> None:
    class Dividing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.a(x).relu()
            return self.b(h / getattr(h, over)())

    torch.manual_seed(0)
    with pytest.raises(plrp.UnsupportedOperation, match="mixes the samples"):
        plrp.explain(Dividing().eval(), torch.rand(2, 6), target=0, composite="epsilon")


@pytest.mark.parametrize("batch", [2, 3, 4])
def test_a_branch_that_the_whole_batch_decides_is_refused(batch: int) -> None:
    torch.manual_seed(0)
    layer, last, x = nn.Linear(4, 6), nn.Linear(6, 2), torch.randn(batch, 4)

    def model(x: Tensor) -> Tensor:
        h = layer(x)
        return last(h.relu() if bool(h.mean() > 0) else h.tanh())

    with pytest.raises(plrp.UnsupportedOperation, match="decided by the whole batch"):
        plrp.explain(model, x)

    def target(output: Tensor) -> Tensor:
        return output[:, 0] if bool(output[0, 0] > 0) else -output[:, 1]

    with pytest.raises(plrp.UnsupportedOperation, match="decided by the whole batch"):
        plrp.explain(lambda x: last(layer(x).relu()), x, target=target)


# --- memory that stays ------------------------------------------------------------------------------------------------


@torch.jit.script
def _store(cache: Tensor, h: Tensor) -> None:
    cache.copy_(2 * h)


def _store_by_numpy(cache: Tensor, h: Tensor) -> None:
    np.from_dlpack(cache.detach())[:] = 2 * np.from_dlpack(h.detach())


def _store_in_a_thread(cache: Tensor, h: Tensor) -> None:
    worker = threading.Thread(target=lambda: cache.data.copy_(2 * h))
    worker.start()
    worker.join()


class Storing(nn.Module):
    """Adds 2h to h, through memory that stays from pass to pass."""

    def __init__(self, room: str, store: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self.below, self.above, self.store, cache = nn.Linear(6, 6), nn.Linear(6, 3), store, torch.zeros(2, 6)
        if room == "a buffer":
            self.register_buffer("cache", cache)
        else:
            self.cache = nn.Parameter(cache, requires_grad=False) if room == "a parameter" else cache

    def forward(self, x: Tensor) -> Tensor:
        h = self.below(x)
        self.store(self.cache, h)
        return self.above(h + self.cache)


@pytest.mark.parametrize("room", ["a buffer", "a parameter", "an attribute"])
@pytest.mark.parametrize("store", [_store, _store_by_numpy, _store_in_a_thread])
def test_a_hidden_write_into_memory_that_stays_is_refused(room: str, store: Callable[[Tensor, Tensor], None]) -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedOperation, match="not on the tape"):
        plrp.explain(Storing(room, store).eval(), torch.randn(2, 6), composite="epsilon", target=0)


def test_a_hidden_write_by_a_target_into_memory_that_stays_is_refused() -> None:
    torch.manual_seed(0)
    cache = torch.zeros(2, 3)

    def target(output: Tensor) -> Tensor:
        _store(cache, output)
        return (output + cache)[:, 0]

    with pytest.raises(UnsupportedOperation, match="not on the tape"):
        plrp.explain(nn.Linear(6, 3).eval(), torch.randn(2, 6), target=target)


def test_memory_that_is_rewritten_with_the_same_numbers_is_no_path() -> None:
    room = torch.zeros(6)

    def step(h: Tensor, x: Tensor) -> Tensor:
        return h + room.copy_(torch.arange(6.0))

    assert plrp.explain(*model(step, skip=False), composite="epsilon", target=0).closing().max() < 1e-6


@torch.jit.script
def _write_order(buffer: Tensor, h: Tensor) -> int:
    buffer.zero_()
    for n in range(h.shape[0]):
        buffer[n, int(h[n].argmax())] = 5.0
    return 0


def _in_another_order(order: Tensor, h: Tensor) -> Tensor:
    _write_order(order, h)
    return h + order


def _within_a_product(order: Tensor, h: Tensor) -> Tensor:
    _write_order(order, h)
    return h.sigmoid() * (order - h.sigmoid())


@pytest.mark.parametrize("step", [_in_another_order, _within_a_product])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_hidden_write_of_the_same_entries_in_another_order_is_refused(step: Any, batch: int) -> None:
    torch.manual_seed(0)
    below, buffer = nn.Linear(5, 6).eval(), torch.zeros(batch, 6)
    with pytest.raises(UnsupportedOperation):
        plrp.explain(lambda x: step(buffer, below(x)), torch.randn(batch, 5), target=0, composite="epsilon")


WRITES: dict[str, Any] = {
    "scatter": lambda ids: torch.zeros(1, 30).scatter(1, ids, 1.0)[0, 17],
    "scatter in place": lambda ids: torch.zeros(1, 30).scatter_(1, ids, 1.0)[0, 17],
    "index_fill": lambda ids: torch.zeros(30).index_fill(0, ids[0], 1.0)[17],
}


@pytest.mark.parametrize("name", WRITES)
def test_a_table_written_at_ids_depends_on_them(name: str) -> None:
    """Explained without the token of the table first, then with it: the second look sees it, or the first refuses."""
    torch.manual_seed(0)
    table, last = nn.Embedding(30, 4), nn.Linear(4, 2)

    def model(ids: Tensor) -> Tensor:
        return last(table(ids).mean(1) @ (torch.eye(4) * (1 + WRITES[name](ids))))

    def both() -> None:
        for second in (5, 17):
            plrp.explain(model, torch.tensor([[3, second, 9, 4]]), target=0, composite="epsilon")

    with pytest.raises((UnsupportedOperation, plrp.errors.TraceError)):
        both()


LIKE: dict[str, Any] = {
    "view_as": lambda h: h.view(-1, 2, 3).relu().view_as(h),
    "reshape_as": lambda h: h.view(-1, 2, 3).relu().reshape_as(h * 2),
    "copy_ over memory that nobody has written": lambda h: torch.empty_like(h).copy_(h).relu(),
}


@pytest.mark.parametrize("name", LIKE)
def test_a_tensor_that_only_gives_its_shape_is_not_read(name: str) -> None:
    torch.manual_seed(0)
    below, last, x = nn.Linear(5, 6).double(), nn.Linear(6, 2).double(), torch.randn(2, 5, dtype=torch.float64)
    plain, like = (
        plrp.explain(lambda x, step=step: last(step(below(x))), x, target=0, composite="epsilon").relevance
        for step in (torch.relu, LIKE[name])
    )
    torch.testing.assert_close(like, plain)


def test_values_that_copy_rounds_to_whole_numbers_are_refused() -> None:
    below = nn.Linear(5, 6).eval()
    with pytest.raises(plrp.errors.TraceError, match="whole numbers"):
        plrp.explain(lambda x: torch.zeros(2, 6, dtype=torch.long).copy_(below(x)) + below(x), torch.randn(2, 5))
