"""LSTM, GRU and RNN, step by step: against nets unrolled by hand, fused outputs, packed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import oracles
import plrp

EPSILON = 1e-6
LENGTHS = torch.tensor([4, 6, 2])
PRUNINGS = [
    plrp.Pruning(p=0.3),
    plrp.Pruning(p=0.3, redistribution="M"),
    plrp.Pruning(p=0.3, redistribution="M-sign"),
    plrp.Pruning(p=0.3, unit="position"),
    plrp.Pruning(p=0.3, unit="channel", redistribution="M-sign"),
]


class Sequence(nn.Module):
    """A recurrent network with a linear head on its mean output, or on its final states."""

    def __init__(self, kind: str, *, packed: bool = False, final: bool = False, **options: Any) -> None:
        super().__init__()
        self.net = getattr(nn, kind)(5, 4, **options)
        self.packed, self.final, self.first = packed, final, options.get("batch_first", False)
        width = (options.get("proj_size") or 4) * (2 if options.get("bidirectional") else 1)
        self.head = nn.Linear(width, 3)
        self.lengths = LENGTHS

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.first else x.transpose(0, 1)
        if self.packed:
            found, state = self.net(pack_padded_sequence(x, self.lengths, batch_first=self.first, enforce_sorted=False))
            found, _ = pad_packed_sequence(found, batch_first=self.first)
        else:
            found, state = self.net(x)
        if not self.final:
            return self.head(found.mean(1 if self.first else 0))
        h = state[0] if isinstance(state, tuple) else state
        return self.head(torch.cat([h[-2], h[-1]], -1) if self.net.bidirectional else h[-1])


FORMS: dict[str, dict[str, Any]] = {
    "batch-first": {"batch_first": True},
    "time-first": {},
    "final": {"final": True},
    "no-bias": {"bias": False, "batch_first": True},
    "deep-both-ways": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "packed": {"packed": True, "batch_first": True},
    "packed-deep-both-ways": {"packed": True, "num_layers": 2, "bidirectional": True, "final": True},
    "dropout-off": {"num_layers": 2, "dropout": 0.5},
}


def network(kind: str, form: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Sequence(kind, **FORMS[form]).double().eval(), torch.randn(3, 6, 5, dtype=torch.float64)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_outputs_are_those_of_the_fused_network_and_ledgers_close(kind: str, form: str) -> None:
    model, x = network(kind, form)
    trace = plrp.trace(model, x)
    with torch.no_grad():
        assert torch.allclose(trace.output, model(x), rtol=0, atol=1e-12)
    for composite in ("epsilon", "attnlrp") if form == "batch-first" else ("epsilon",):
        plain = trace.explain(composite=composite)
        oracles.assert_ledger_closes(plain, plain.score, 1e-11)
        assert torch.equal(trace.explain(composite=composite, pruning=plrp.Pruning(p=0)).relevance, plain.relevance)
        for pruning in PRUNINGS:
            found = trace.explain(composite=composite, pruning=pruning)
            oracles.assert_ledger_closes(found, found.score, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_no_sample_depends_on_the_others(kind: str, form: str) -> None:
    """Alone, without what pads it, a sequence is explained as in the batch; padding holds nothing."""
    model, x = network(kind, form)
    pruning = plrp.Pruning(p=0.2, redistribution="M-sign")
    whole = plrp.explain(model, x, composite="epsilon", pruning=pruning)
    for sample in range(3):
        length = int(LENGTHS[sample]) if model.packed else 6
        model.lengths = LENGTHS[sample : sample + 1]
        if model.packed and not model.final:  # its mean is over the longest sequence
            continue
        one = x[sample : sample + 1, :length]
        alone = plrp.explain(model, one, composite="epsilon", target=whole.target[sample : sample + 1], pruning=pruning)
        assert oracles.relative_difference(whole.relevance[sample, :length], alone.relevance[0]) < 1e-9
        assert not whole.relevance[sample, length:].any()


def stabilised(z: Tensor) -> Tensor:
    return z + EPSILON * torch.where(z < 0, -1.0, 1.0)


def linear_rule(matrix: Tensor, x: Tensor, y: Tensor, r: Tensor) -> Tensor:
    return x * (matrix.T @ (r / stabilised(y)))


def test_an_lstm_hands_relevance_down_as_arras_unrolled_it() -> None:
    """Gates take nothing; c_t = f·c_{t−1} + i·g splits in proportion, and so do W x + b and U h in what g reads."""
    torch.manual_seed(0)
    model = Sequence("LSTM", final=True, batch_first=True).double().eval()
    x = torch.randn(1, 6, 5, dtype=torch.float64)
    found = plrp.explain(model, x, target=2, composite="epsilon")
    net = model.net
    w, u = net.weight_ih_l0.detach(), net.weight_hh_l0.detach()
    b = (net.bias_ih_l0 + net.bias_hh_l0).detach()
    g_rows = slice(8, 12)
    h = c = torch.zeros(4, dtype=torch.float64)
    steps = []
    for t in range(6):
        of_x, of_h = w @ x[0, t] + b, u @ h
        i, f, g, o = (of_x + of_h).chunk(4)
        new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        steps.append((h, c, of_x, of_h, i, f, g, new_c))
        h, c = o.sigmoid() * new_c.tanh(), new_c
    y = (model.head.weight @ h + model.head.bias).detach()
    r_y = torch.zeros(3, dtype=torch.float64)
    r_y[2] = y[2]
    r_h, r_c = linear_rule(model.head.weight.detach(), h, y, r_y), torch.zeros(4, dtype=torch.float64)
    expected = torch.zeros_like(x[0])
    for t in reversed(range(6)):
        before, c, of_x, of_h, i, f, g, new_c = steps[t]
        r_c = r_c + r_h  # h = σ(o) · tanh(c): all to c
        r_g = i.sigmoid() * g.tanh() * r_c / stabilised(new_c)
        r_c = f.sigmoid() * c * r_c / stabilised(new_c)
        share = r_g / stabilised(g)
        expected[t] = linear_rule(w[g_rows], x[0, t], of_x[g_rows], of_x[g_rows] * share)
        r_h = linear_rule(u[g_rows], before, of_h[g_rows], of_h[g_rows] * share)
    assert oracles.relative_difference(found.relevance[0], expected) < 1e-9


class ByHand(nn.Module):
    """The GRU of a `Sequence` as a user would write it out."""

    def __init__(self, source: Sequence) -> None:
        super().__init__()
        net = source.net
        self.of_input, self.of_state, self.head = nn.Linear(5, 12), nn.Linear(4, 12), source.head
        self.of_input.weight, self.of_input.bias = net.weight_ih_l0, net.bias_ih_l0
        self.of_state.weight, self.of_state.bias = net.weight_hh_l0, net.bias_hh_l0

    def forward(self, x: Tensor) -> Tensor:
        projected, h = self.of_input(x), x[:, 0, :4] * 0
        for t in range(x.shape[1]):
            a, b = projected[:, t], self.of_state(h)
            r, z = torch.sigmoid(a[:, :4] + b[:, :4]), torch.sigmoid(a[:, 4:8] + b[:, 4:8])
            n = torch.tanh(a[:, 8:] + r * b[:, 8:])
            h = (1 - z) * n + z * h
        return self.head(h)


def test_a_gru_is_explained_as_the_net_unrolled_by_hand() -> None:
    torch.manual_seed(0)
    fused = Sequence("GRU", final=True, batch_first=True).double().eval()
    x = torch.randn(2, 6, 5, dtype=torch.float64)
    for pruning in (None, plrp.Pruning(p=0.2)):
        found = plrp.explain(fused, x, composite="attnlrp", pruning=pruning)
        by_hand = plrp.explain(ByHand(fused), x, composite="attnlrp", pruning=pruning)
        assert oracles.relative_difference(found.relevance, by_hand.relevance) < 1e-9


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_cells_are_one_step_of_their_network(kind: str) -> None:
    torch.manual_seed(0)
    whole = Sequence(kind, final=True, batch_first=True).double().eval()
    cell = getattr(nn, f"{kind}Cell")(5, 4).double()
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in whole.net.state_dict().items()})

    def step_by_step(x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = cell(x[:, t], state)
        return whole.head(state[0] if kind == "LSTM" else state)

    x = torch.randn(2, 4, 5, dtype=torch.float64)
    found = plrp.explain(whole, x, composite="epsilon")
    by_step = plrp.explain(step_by_step, x, composite="epsilon")
    assert torch.allclose(found.logits, by_step.logits, rtol=0, atol=1e-12)
    assert oracles.relative_difference(found.relevance, by_step.relevance) < 1e-9


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_an_initial_state_that_is_learned_takes_its_share_as_a_constant(kind: str) -> None:
    torch.manual_seed(0)
    net, head = getattr(nn, kind)(5, 4, batch_first=True).double(), nn.Linear(4, 2).double()
    state = torch.randn(1, 1, 4, dtype=torch.float64)

    def model(x: Tensor) -> Tensor:
        h = state.expand(-1, len(x), -1).contiguous()
        return head(net(x, (h, h) if kind == "LSTM" else h)[0][:, -1])

    found = plrp.explain(model, torch.randn(2, 3, 5, dtype=torch.float64), composite="epsilon")
    oracles.assert_ledger_closes(found, found.score, 1e-11)
    assert any(row["absorbed_constant"] for row in found.ledger)


def test_the_projection_of_an_lstm_is_a_layer() -> None:
    torch.manual_seed(0)
    model = Sequence("LSTM", proj_size=3, num_layers=2, batch_first=True).double().eval()
    x = torch.randn(2, 4, 5, dtype=torch.float64)
    found = plrp.explain(model, x, composite="epsilon")
    with torch.no_grad():
        assert torch.allclose(found.logits, model(x), rtol=0, atol=1e-12)
    assert found.closing().max() < 1e-12


def test_active_dropout_between_layers_is_refused() -> None:
    model = Sequence("LSTM", num_layers=2, dropout=0.5).double().train()
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        plrp.explain(model, torch.randn(2, 6, 5, dtype=torch.float64))
