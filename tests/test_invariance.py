"""An answer does not depend on a sample's company, the thread or the run; the model is untouched."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import oracles
import plrp

models = pytest.importorskip("torchvision").models

PRUNINGS = [
    None,
    plrp.Pruning(p=0.2),
    plrp.Pruning(p=0.2, redistribution="M"),
    plrp.Pruning(p=None, sparsity_gain=1.0),
    plrp.Pruning(p=0.5, sparsity_gain=0.7, measure="gini", redistribution="M"),
]
COMPOSITES = ["epsilon-plus-flat", "epsilon-alpha2-beta1-flat", "epsilon"]


class Sequences(nn.Module):
    """A small residual sequence network with BatchNorm, LayerNorm and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(4, 12, 7, padding=3)
        self.a, self.bn = nn.Conv1d(12, 12, 3, padding=2, dilation=2), nn.BatchNorm1d(12)
        self.gate, self.norm, self.fc = nn.Linear(12, 12), nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x))
        h = F.relu(h + self.bn(self.a(h)))
        h = h * torch.sigmoid(self.gate(h.mean(-1))).unsqueeze(-1)
        return self.fc(self.norm(F.max_pool1d(h, 4).mean(-1)))


@cache
def sequences(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = oracles.randomise_statistics(Sequences().eval()).to(dtype)
    return model, torch.randn(4, 4, 32, generator=torch.Generator().manual_seed(1)).to(dtype)


@cache
def resnet(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = oracles.randomise_statistics(models.resnet18(num_classes=10).eval()).to(dtype)
    return model, torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("pruning", PRUNINGS, ids=str)
@pytest.mark.parametrize("composite", COMPOSITES)
@pytest.mark.parametrize("network", [sequences, pytest.param(resnet, marks=pytest.mark.slow)])
def test_a_sample_alone_and_among_others_of_very_different_scale_agree(network, composite, pruning):
    model, x = network()
    scales = torch.tensor([1.0, 1e5, 1e-5, 1.0], dtype=x.dtype).reshape(-1, *[1] * (x.dim() - 1))
    x = x * scales
    together = plrp.explain(model, x, composite=composite, pruning=pruning)
    for sample in range(len(x)):
        alone = plrp.explain(model, x[sample : sample + 1], composite=composite, pruning=pruning)
        assert torch.equal(alone.target, together.target[sample : sample + 1])
        assert oracles.relative_difference(together.relevance[sample], alone.relevance[0]) < 1e-6


@pytest.mark.parametrize("pruning", PRUNINGS[:3], ids=str)
def test_a_sample_of_a_resnet_alone_and_among_others_agrees(pruning):
    model, x = resnet()
    together = plrp.explain(model, x * torch.tensor([1.0, 1e4, 1e-4, 1.0]).reshape(-1, 1, 1, 1), pruning=pruning)
    alone = plrp.explain(model, x[3:], pruning=pruning)
    assert oracles.relative_difference(together.relevance[3], alone.relevance[0]) < 1e-6


@pytest.mark.parametrize("pruning", PRUNINGS[:3], ids=str)
def test_a_sample_without_relevance_does_not_disturb_its_neighbours(pruning):
    model, x = sequences()
    alone = plrp.explain(model, x[:1], target=0, pruning=pruning)
    x = x.clone()
    x[1] = 0
    together = plrp.explain(model, x, target=0, pruning=pruning)
    assert oracles.relative_difference(together.relevance[0], alone.relevance[0]) < 1e-6


@pytest.mark.parametrize("pruning", PRUNINGS[:3], ids=str)
@pytest.mark.parametrize("shared", ["model", "trace"])
@pytest.mark.parametrize("network", [sequences, pytest.param(resnet, marks=pytest.mark.slow)])
def test_eight_threads_sharing_a_model_answer_like_one(network, shared, pruning):
    model, _ = network(torch.float32)
    shape = network(torch.float32)[1].shape
    inputs = [torch.randn(2, *shape[1:], generator=torch.Generator().manual_seed(i)) for i in range(8)]
    common = plrp.trace(model, inputs[0])
    start = Barrier(8)

    def explain(i: int) -> Tensor:
        if shared == "trace":
            return common.explain(target=i % 3, pruning=pruning).relevance
        return plrp.explain(model, inputs[i], pruning=pruning).relevance

    def explain_at_once(i: int) -> list[Tensor]:
        start.wait()
        return [explain(i) for _ in range(3)]

    expected = [explain(i) for i in range(8)]
    if shared == "trace":
        common = plrp.trace(model, inputs[0])  # nothing cached yet: the threads race for it
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(explain_at_once, range(8)))
    for i in range(8):
        for relevance in found[i]:
            assert torch.equal(relevance, expected[i])


def test_threads_that_do_not_explain_are_not_recorded():
    """The recording is thread-local: another thread running the same model meanwhile leaves no trace."""
    model, x = sequences(torch.float32)
    expected = plrp.explain(model, x).relevance
    with ThreadPoolExecutor(4) as threads:
        busy = [threads.submit(lambda: [model(x) for _ in range(20)]) for _ in range(3)]
        found = [plrp.explain(model, x).relevance for _ in range(5)]
        for future in busy:
            future.result()
    assert all(torch.equal(relevance, expected) for relevance in found)


@pytest.mark.parametrize("network", [sequences, resnet])
@pytest.mark.parametrize("pruning", PRUNINGS[:3], ids=str)
def test_the_same_explanation_twice_is_the_same(network, pruning):
    model, x = network(torch.float32)
    a, b = (plrp.explain(model, x, pruning=pruning) for _ in range(2))
    assert torch.equal(a.relevance, b.relevance)
    assert a.ledger == b.ledger


@pytest.mark.parametrize("composite", COMPOSITES)
@pytest.mark.parametrize("network", [sequences, resnet])
def test_single_precision_is_near_double_precision(network, composite):
    precise = plrp.explain(*network(torch.float64), composite=composite, target=1)
    single = plrp.explain(*network(torch.float32), composite=composite, target=1)
    assert single.relevance.dtype == torch.float32
    assert precise.relevance.dtype == torch.float64
    error = (single.relevance - precise.relevance).abs().sum() / precise.relevance.abs().sum()
    assert float(error) < (5e-2 if composite == "epsilon" else 1e-3)


@pytest.mark.parametrize("pruning", PRUNINGS[:3], ids=str)
@pytest.mark.parametrize("network", [sequences, resnet])
def test_bfloat16_models_give_finite_relevance_in_single_precision_or_wider(network, pruning):
    model, x = network(torch.bfloat16)
    explanation = plrp.explain(model, x, pruning=pruning, target=1)
    assert explanation.relevance.dtype in (torch.float32, torch.float64)
    assert bool(torch.isfinite(explanation.relevance).all())
    assert bool(explanation.relevance.any())
    oracles.assert_ledger_closes(explanation, explanation.logits[:, 1].float(), 1e-2)
    if pruning is None:
        precise = plrp.explain(*network(torch.float64), target=1).relevance.flatten(1)
        agreement = F.cosine_similarity(explanation.relevance.double().flatten(1), precise)
        assert float(agreement.min()) > 0.9


@pytest.mark.parametrize("pruning", PRUNINGS[:3], ids=str)
@pytest.mark.parametrize("network", [sequences, pytest.param(resnet, marks=pytest.mark.slow)])
@pytest.mark.parametrize("plain", [True, False])
def test_under_autocast_relevance_is_single_precision_and_its_ledger_can_be_read_outside(network, pruning, plain):
    model, x = network(torch.float32)
    with plrp.plain_walk() if plain else contextlib.nullcontext():
        with torch.autocast("cpu", torch.bfloat16):
            made = [plrp.explain(model, x, pruning=pruning, target=target) for target in (1, lambda z: z[:, 1] * 2)]
            trace = plrp.trace(model, x)
            made.append(trace.explain(pruning=pruning, target=1))
            made.extend(trace.sweep([pruning], target=1))
            conditioned = trace.explain(target=1, condition={trace.layers[-1].name: lambda a, g, r: g > 0})
        outside = plrp.explain(model, x, pruning=pruning, target=1)
        with torch.autocast("cpu", torch.bfloat16):
            assert "changed" not in repr(outside)
    assert conditioned.relevance.dtype == torch.float32
    for found in made:
        assert found.logits.dtype == torch.bfloat16
        assert found.relevance.dtype == torch.float32
        assert "PLRP" in repr(found) or pruning is None
        assert float(found.closing().max()) < 1e-5
    assert not torch.is_autocast_enabled("cpu")


def state(model: nn.Module) -> dict:
    """Everything of a model that a careless explainer changes."""
    hooks = [name for name in vars(model) if "hooks" in name]
    found = {"parameters": {}, "modules": {}, "buffers": {}}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found["parameters"][name] = (
            id(parameter),
            parameter.data_ptr(),
            parameter.requires_grad,
            parameter.grad,
        )
    for name, buffer in model.named_buffers(remove_duplicate=False):
        found["buffers"][name] = (id(buffer), buffer.data_ptr(), buffer._version)
    for name, module in model.named_modules(remove_duplicate=False):
        attributes = {k: id(v) for k, v in vars(module).items() if k not in hooks}
        found["modules"][name] = (
            id(module),
            module.training,
            attributes,
            [len(vars(module)[h]) for h in hooks],
        )
    return found


def values(model: nn.Module) -> list[Tensor]:
    return [value.clone() for value in model.state_dict().values()]


@pytest.mark.parametrize("network", [sequences, resnet])
@pytest.mark.parametrize("pruning", PRUNINGS[:3], ids=str)
def test_the_model_is_untouched_by_an_explanation(network, pruning):
    model, x = network(torch.float32)
    before, stored, given = state(model), values(model), x.clone()
    plrp.explain(model, x, pruning=pruning, layers=True)
    assert state(model) == before
    assert all(torch.equal(a, b) for a, b in zip(values(model), stored, strict=True))
    assert torch.equal(x, given)
    assert not x.requires_grad


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_model_is_untouched_when_its_forward_raises(moment):
    class Broken(Sequences):
        def forward(self, x: Tensor) -> Tensor:
            if moment == "before":
                raise RuntimeError("forward broke")
            super().forward(x)
            raise RuntimeError("forward broke")

    torch.manual_seed(0)
    model = Broken().eval()
    before = state(model)
    with pytest.raises(RuntimeError, match="forward broke"):
        plrp.explain(model, torch.randn(2, 4, 32))
    assert state(model) == before
    assert torch.overrides._get_current_function_mode() is None
    assert plrp.explain(Sequences().eval(), torch.randn(1, 4, 32)).relevance.shape == (1, 4, 32)


@pytest.mark.parametrize("grad", [True, False])
def test_gradient_mode_and_the_inputs_own_gradient_do_not_matter(grad):
    model, x = sequences(torch.float32)
    expected = plrp.explain(model, x).relevance
    with torch.set_grad_enabled(grad):
        leaf = x.clone().requires_grad_(grad)
        found = plrp.explain(model, leaf)
        assert torch.is_grad_enabled() is grad
    assert torch.equal(found.relevance, expected)
    assert not found.relevance.requires_grad
    assert not found.logits.requires_grad
    assert leaf.grad is None
    with torch.inference_mode():
        assert torch.equal(plrp.explain(model, x).relevance, expected)


class TimeDistributed(nn.Module):
    """Steps folded into the batch, (batch · time, …), or the batch moved away: (time, batch, …)."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.a, self.b, self.c, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        if self.layout == "folded":
            h = F.relu(self.b(F.relu(self.a(x.reshape(batch * time, -1)))))
            h = F.relu(self.c(h)).view(batch, time, -1)
        elif self.layout == "time-first":
            h = F.relu(self.b(F.relu(self.a(x.transpose(0, 1)))))
            h = F.relu(self.c(h)).permute(1, 0, 2)
        elif self.layout == "time-first-folded":
            h = F.relu(self.b(F.relu(self.a(x.transpose(0, 1).reshape(time * batch, -1)))))
            h = F.relu(self.c(h)).view(time, batch, -1).transpose(0, 1)
        else:
            h = F.relu(self.c(F.relu(self.b(F.relu(self.a(x))))))
        return self.head(h.mean(1))


@pytest.mark.parametrize("pruning", PRUNINGS, ids=str)
@pytest.mark.parametrize("layout", ["folded", "time-first", "time-first-folded"])
@pytest.mark.parametrize("composite", ["epsilon", "epsilon-alpha2-beta1"])
def test_a_sample_is_pruned_whole_wherever_the_model_puts_its_batch_axis(composite, layout, pruning):
    torch.manual_seed(0)
    plain, moved = TimeDistributed("plain").double().eval(), TimeDistributed(layout).double().eval()
    moved.load_state_dict(plain.state_dict())
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    expected = plrp.explain(plain, x, composite=composite, pruning=pruning)
    found = plrp.explain(moved, x, composite=composite, pruning=pruning)
    assert oracles.relative_difference(found.relevance, expected.relevance) < 1e-9
    oracles.assert_ledger_closes(found, found.logits.max(1).values, 1e-9)
    columns = ("sample", "neurons_before", "neurons_after")
    pruned = [[[row[c] for c in columns] for row in e.ledger if row["op"] == "prune"] for e in (expected, found)]
    assert pruned[0] == pruned[1]


def test_parameters_frozen_or_not_give_the_same_answer():
    model, x = sequences(torch.float32)
    expected = plrp.explain(model, x).relevance
    torch.manual_seed(0)
    frozen = oracles.randomise_statistics(Sequences().eval()).requires_grad_(False)
    assert torch.equal(plrp.explain(frozen, x).relevance, expected)
    assert not any(p.requires_grad for p in frozen.parameters())


def test_a_changed_weight_is_seen_by_the_next_trace():
    """W⁺ and folded weights are cached per parameter version: training between two explanations must show."""
    torch.manual_seed(0)
    model = oracles.randomise_statistics(Sequences().eval())
    _, x = sequences(torch.float32)
    first = plrp.explain(model, x, target=0).relevance
    with torch.no_grad():
        model.a.weight.mul_(-1.0)
        model.bn.running_mean.add_(0.5)
        model.fc.weight.data = model.fc.weight.data * 0.5
    changed = plrp.explain(model, x, target=0).relevance
    fresh = Sequences().eval()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(changed, plrp.explain(fresh, x, target=0).relevance)
    assert not torch.equal(changed, first)


def test_a_trace_keeps_its_answer_when_weights_change_afterwards():
    torch.manual_seed(0)
    model = Sequences().eval()
    _, x = sequences(torch.float32)
    trace = plrp.trace(model, x)
    expected = trace.explain(target=0).relevance
    assert torch.equal(trace.explain(target=0).relevance, expected)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "strided", "expanded"])
def test_the_memory_layout_of_the_input_does_not_matter(layout):
    model, x = resnet(torch.float64)
    x = x[:2]
    laid_out = {
        "contiguous": lambda: x.clone(),
        "channels_last": lambda: x.contiguous(memory_format=torch.channels_last),
        "strided": lambda: x.transpose(2, 3).contiguous().transpose(2, 3),
        "expanded": lambda: x[:1].expand(2, -1, -1, -1),
    }[layout]()
    expected = plrp.explain(model, laid_out.contiguous().clone(), pruning=plrp.Pruning(p=0.1)).relevance
    found = plrp.explain(model, laid_out, pruning=plrp.Pruning(p=0.1)).relevance
    assert oracles.relative_difference(found, expected) < 1e-9
