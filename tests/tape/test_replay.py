"""The tape once more with some values changed: against the model itself, and against nets written with masks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plrp
from plrp.tape.replay import replay, replayed
from plrp.tape.trace import Trace


def close(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, rtol=1e-9, atol=1e-9))


def input_of(trace: Trace, layer: str) -> int:
    return next(id(op.inputs[0]) for op in trace.layers if op.name == layer)


class Block(nn.Module):
    """A residual block with BatchNorms, a pool, an in-place activation, a slice and a view: what tapes stumble over."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.conv1, self.conv2 = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.head = nn.Linear(6 * 9, 4)
        nn.init.uniform_(self.norm.running_mean, -0.5, 0.5)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = F.relu_(self.norm(self.stem(x)))
        h = h if mask is None else h * mask
        h = torch.relu(h + self.conv2(F.leaky_relu(self.conv1(h), 0.1)))
        h = F.max_pool2d(h, 2, return_indices=True)[0][:, :, :3]
        return torch.log_softmax(self.head(h.reshape(len(h), -1)), 1)


@pytest.fixture
def block() -> Block:
    torch.manual_seed(0)
    return Block().double().eval()


def test_a_replay_without_changes_is_the_tape(block: Block) -> None:
    x = torch.randn(3, 2, 6, 6, dtype=torch.float64)
    trace = plrp.trace(block, x)
    assert torch.equal(replayed(trace, trace.returned, {}), trace.returned)
    unchanged = {id(trace.inputs[0]): torch.clone}  # and everything above the input is recomputed
    assert close(replayed(trace, trace.returned, unchanged), block(x))
    assert close(replayed(trace, trace.output, unchanged), trace.output)


def test_other_inputs_on_the_tape_give_what_the_model_gives(block: Block) -> None:
    x, y = torch.randn(2, 3, 2, 6, 6, dtype=torch.float64)
    trace = plrp.trace(block, x)
    assert close(replayed(trace, trace.returned, {id(trace.inputs[0]): lambda _: y}), block(y))


def test_a_change_reaches_all_readers_of_a_value(block: Block) -> None:
    """A block's input is read by a convolution and by the skip: the hand-written net masks it for both."""
    x = torch.randn(3, 2, 6, 6, dtype=torch.float64)
    mask = (torch.rand(3, 6, 6, 6) < 0.4).double()
    trace = plrp.trace(block, x)
    changes = {input_of(trace, "conv1"): lambda h: h * mask}
    assert close(replayed(trace, trace.returned, changes), block(x, mask))


def test_a_replay_leaves_the_tape_as_it_was(block: Block) -> None:
    x = torch.randn(2, 2, 6, 6, dtype=torch.float64)
    trace = plrp.trace(block, x)
    before = trace.explain().relevance
    replayed(trace, trace.output, {input_of(trace, "conv1"): torch.zeros_like})
    assert torch.equal(trace.explain().relevance, before)


def test_gradients_pass_a_replay(block: Block) -> None:
    x = torch.randn(2, 2, 6, 6, dtype=torch.float64)
    trace, leaf = plrp.trace(block, x), torch.zeros(2, 6, 6, 6, dtype=torch.float64, requires_grad=True)
    value = trace.value_of(trace.output)
    assert value is not None
    (output,) = replay(trace.ops, [value], {input_of(trace, "conv1"): lambda h: h + leaf})
    (found,) = torch.autograd.grad(output[:, 1].sum(), leaf)

    step, direction = 1e-6, torch.randn_like(leaf)
    (up,), (down,) = (
        replay(trace.ops, [value], {input_of(trace, "conv1"): lambda h, sign=sign: h + sign * step * direction})
        for sign in (1, -1)
    )
    assert torch.allclose((up - down)[:, 1].sum() / (2 * step), (found * direction).sum(), rtol=1e-5)


def test_what_nothing_changes_is_not_computed_again(block: Block) -> None:
    trace = plrp.trace(block, torch.randn(1, 2, 6, 6, dtype=torch.float64))
    calls: list[str] = []
    for op in trace.ops:
        original = op.outputs_from
        op.outputs_from = lambda tensors, op=op, original=original: (calls.append(op.name), original(tensors))[1]  # type: ignore[method-assign]
    replayed(trace, trace.output, {input_of(trace, "conv2"): torch.zeros_like})
    assert "stem" not in calls
    assert "conv1" not in calls
    assert calls[0] == "conv2"
    assert "log_softmax" not in calls  # above what is wanted


def test_transformers_and_recurrent_nets_replay() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    for model in (nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.LSTM(8, 5, batch_first=True)):
        model.double().eval()
        x, y = torch.randn(2, 3, 4, 8, dtype=torch.float64)
        trace = plrp.trace(lambda x, model=model: model(x), x)
        changed = replayed(trace, trace.returned, {id(trace.inputs[0]): lambda _, y=y: y})
        expected = model(y)
        if isinstance(expected, tuple):
            changed, expected = changed[0], expected[0]
        assert close(changed, expected)


def test_embedded_tokens_replay() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 6), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)).double()
    trace = plrp.trace(model.eval(), torch.tensor([[1, 2, 3], [4, 4, 0]]))
    other = torch.tensor([[6, 5, 4], [0, 1, 2]])
    assert close(replayed(trace, trace.output, {id(trace.inputs[0]): lambda _: other}), model(other))
