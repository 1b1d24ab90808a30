"""Products of two signals: attention, gates, norms and sums of transformers, each against a slow restatement."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import oracles
import plrp
from plrp import rules

ATTENTION = ("attnlrp", "cp-lrp")
EPSILON = 1e-6


def stabilised(z: Tensor, epsilon: float = EPSILON) -> Tensor:
    return z + epsilon * torch.where(z < 0, -1.0, 1.0)


class Joined(nn.Module):
    """A function of two inputs, with a linear head that hands a known relevance to what it returns."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], features: int) -> None:
        super().__init__()
        self.function, self.head = function, nn.Linear(features, 1, bias=False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(self.function(a, b).flatten(1))


def joined(function: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, **options: Any) -> tuple[Any, Tensor]:
    """The explanation of `Joined`, and the relevance of what the function returned."""
    torch.manual_seed(0)
    features = function(a, b)[0].numel()
    model = Joined(function, features).double().eval()
    found = plrp.explain(model, (a, b), target=0, layers=True, **options)
    oracles.assert_ledger_closes(found, found.score, 1e-10)
    return found, found.layers["head"].reshape(function(a, b).shape)


def pair(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


# --- products ---------------------------------------------------------------------------------------------------------

MATRIX_PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "@": lambda a, b: a @ b,
    "matmul": torch.matmul,
    "bmm": torch.bmm,
    "einsum": lambda a, b: torch.einsum("nij,njk->nik", a, b),
    "baddbmm": lambda a, b: torch.baddbmm(torch.zeros(2, 3, 5, dtype=a.dtype), a, b),
    "baddbmm-named": lambda a, b: torch.zeros(2, 3, 5, dtype=a.dtype).baddbmm(batch1=a, batch2=b, beta=0.5),
    "baddbmm-scaled": lambda a, b: torch.baddbmm(torch.zeros(2, 3, 5, dtype=a.dtype), a, b, alpha=0.5),
}


@pytest.mark.parametrize("composite", ATTENTION)
@pytest.mark.parametrize("name", MATRIX_PRODUCTS)
def test_a_matrix_product_of_two_signals_gives_half_to_each(name: str, composite: str) -> None:
    """O_ik = Σ_j A_ij B_jk: A_ij receives Σ_k A_ij B_jk R_ik / (2 O_ik + ε), one term at a time; a scale is Pass."""
    product = MATRIX_PRODUCTS[name]
    a, b = pair((2, 3, 4), (2, 4, 5))
    found, r = joined(product, a, b, composite=composite)
    expected_a, expected_b = torch.zeros_like(a), torch.zeros_like(b)
    for n in range(2):
        for i in range(3):
            for k in range(5):
                o = sum(a[n, i, j] * b[n, j, k] for j in range(4))
                share = r[n, i, k] / (2 * o + EPSILON * math.copysign(1.0, o))
                for j in range(4):
                    expected_a[n, i, j] += a[n, i, j] * b[n, j, k] * share
                    expected_b[n, j, k] += a[n, i, j] * b[n, j, k] * share
    assert oracles.relative_difference(found.relevance[0], expected_a) < 1e-9
    assert oracles.relative_difference(found.relevance[1], expected_b) < 1e-9


def test_under_cp_lrp_the_values_of_an_attention_take_all() -> None:
    """R_v = v ⊙ attnᵀ·(R / (O + ε)); nothing reaches what the softmax read."""
    scores, v = pair((2, 3, 4), (2, 4, 5))
    found, r = joined(lambda s, v: torch.softmax(s, -1) @ v, scores, v, composite="cp-lrp")
    attention = torch.softmax(scores, -1)
    expected = v * (attention.mT @ (r / stabilised(attention @ v)))
    assert not found.relevance[0].any()
    assert oracles.relative_difference(found.relevance[1], expected) < 1e-9


def test_under_attnlrp_a_softmax_hands_down_by_its_taylor_expansion() -> None:
    """R_i = x_i (R_i − s_i Σ_j R_j); ΣR_out − ΣR_in is booked in the column `softmax`."""
    scores, v = pair((2, 3, 4), (2, 4, 5))
    found, r = joined(lambda s, v: torch.softmax(s, -1) @ v, scores, v, composite="attnlrp")
    expected = torch.zeros_like(scores)
    difference = [0.0, 0.0]
    for n in range(2):
        for i in range(3):
            s = torch.softmax(scores[n, i], 0)
            above = torch.zeros(4, dtype=torch.float64)
            for k in range(5):
                o = sum(s[j] * v[n, j, k] for j in range(4))
                for j in range(4):
                    above[j] += s[j] * v[n, j, k] * r[n, i, k] / (2 * o + EPSILON * math.copysign(1.0, o))
            for j in range(4):
                expected[n, i, j] = scores[n, i, j] * (above[j] - s[j] * above.sum())
            difference[n] += float(above.sum() - expected[n, i].sum())
    assert oracles.relative_difference(found.relevance[0], expected) < 1e-9
    booked = [row["softmax"] for row in found.ledger if row["op"] == "softmax"]
    assert booked == pytest.approx(difference, rel=1e-9)


@pytest.mark.parametrize("fill", [-math.inf, torch.finfo(torch.float64).min, -1e9])
def test_masked_scores_hold_no_relevance(fill: float) -> None:
    scores, v = pair((2, 3, 4), (2, 4, 5))
    mask = torch.zeros(3, 4, dtype=torch.float64)
    mask[0, 1:] = mask[1, 3] = fill
    found, _ = joined(lambda s, v: torch.softmax(s + mask, -1) @ v, scores, v, composite="attnlrp")
    assert not found.relevance[0][:, mask < 0].any()
    assert found.relevance[0][:, 2].any()
    assert not any(row["absorbed_constant"] for row in found.ledger)
    filled, _ = joined(
        lambda s, v: torch.softmax(s.masked_fill(mask < 0, fill), -1) @ v, scores, v, composite="attnlrp"
    )
    assert oracles.relative_difference(filled.relevance[0], found.relevance[0]) < 1e-9


GATED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": lambda g, u: F.silu(g) * u,
    "gelu": lambda g, u: F.gelu(g) * u,
    "silu-by-hand": lambda g, u: (g * torch.sigmoid(g)) * u,
    "gelu-by-hand": lambda g, u: (0.5 * g * (1 + torch.tanh(0.8 * (g + 0.04 * g**3)))) * u,
    "relu-squared": lambda g, u: F.relu(g).square() * u,
}


@pytest.mark.parametrize("name", GATED)
def test_a_gated_product_gives_half_to_each_under_attnlrp_and_all_to_the_signal_under_cp_lrp(name: str) -> None:
    g, u = pair((2, 3, 4), (2, 3, 4))
    half, r = joined(GATED[name], g, u, composite="attnlrp")
    assert oracles.relative_difference(half.relevance[0], r / 2) < 1e-12
    assert oracles.relative_difference(half.relevance[1], r / 2) < 1e-12
    whole, r = joined(GATED[name], g, u, composite="cp-lrp")
    assert not whole.relevance[0].any()
    assert oracles.relative_difference(whole.relevance[1], r) < 1e-12


@pytest.mark.parametrize("composite", ATTENTION)
@pytest.mark.parametrize("gate", [torch.sigmoid, lambda g: torch.softmax(g, -1), F.hardsigmoid])
def test_a_sigmoid_or_softmax_stays_a_gate_under_every_composite(gate: Any, composite: str) -> None:
    g, u = pair((2, 3, 4), (2, 3, 4))
    found, r = joined(lambda g, u: gate(g) * u, g, u, composite=composite)
    assert not found.relevance[0].any()
    assert oracles.relative_difference(found.relevance[1], r) < 1e-12


def test_experts_take_all_and_their_routing_is_a_gate() -> None:
    """The two best of four experts, their weights scaled to sum to one."""
    x, routing = pair((2, 3, 4), (2, 4))
    experts = [nn.Linear(4, 4, bias=False).double() for _ in range(4)]

    def mixture(x: Tensor, routing: Tensor) -> Tensor:
        weights, chosen = torch.softmax(routing, -1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        outputs = torch.stack([expert(x) for expert in experts], 1)
        best = outputs.gather(1, chosen[:, :, None, None].expand(-1, -1, 3, 4))
        return (best * weights[:, :, None, None]).sum(1)

    for composite in ATTENTION:
        found, r = joined(mixture, x, routing, composite=plrp.composite(composite, epsilon=0.0))
        assert not found.relevance[1].any()
        assert float(found.relevance[0].sum()) == pytest.approx(float(r.sum()), rel=1e-9)


TOWERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dot product": lambda a, b: (a * b).sum(-1, keepdim=True),
    "cosine": lambda a, b: F.cosine_similarity(a, b, -1)[:, None],
    "cosine by hand": lambda a, b: ((a / a.norm(dim=-1, keepdim=True)) * (b / b.norm(dim=-1, keepdim=True))).sum(
        -1, keepdim=True
    ),
    "einsum": lambda a, b: torch.einsum("nd,nd->n", a, b)[:, None],
    "bilinear": lambda a, b: F.bilinear(a, b, torch.eye(4, dtype=a.dtype)[None]),
}


@pytest.mark.parametrize("composite", ATTENTION)
@pytest.mark.parametrize("name", TOWERS)
def test_a_score_of_two_towers_gives_each_dimension_of_both_its_share(name: str, composite: str) -> None:
    """Lengths are constants: dimension d of either tower receives a_d b_d / Σ a·b of half the score."""
    a, b = pair((2, 4), (2, 4))
    found, r = joined(TOWERS[name], a, b, composite=plrp.composite(composite, epsilon=0.0))
    expected = a * b / (a * b).sum(-1, keepdim=True) * r / 2
    for relevance in found.relevance:
        assert oracles.relative_difference(relevance, expected) < 1e-9


def test_vectors_of_a_cosine_are_widened_before_they_are_normalised() -> None:
    a, one = pair((2, 4), (2, 4))[0], torch.ones(1, 1, dtype=torch.float64)
    found = plrp.explain(lambda x: F.cosine_similarity(x, one)[:, None], a, target=0, composite="epsilon")
    torch.testing.assert_close(found.relevance, a / a.norm(dim=1, keepdim=True) / 2, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("function", [lambda a, b: a @ b.mT, lambda a, b: F.silu(a) * b, lambda a, b: a * b])
def test_other_composites_refuse_a_product_and_name_those_that_have_a_rule(function: Any) -> None:
    a, b = pair((2, 3, 4), (2, 3, 4))
    model = Joined(function, function(a, b)[0].numel()).double().eval()
    with pytest.raises(plrp.UnsupportedOperation, match="composite='attnlrp' or 'cp-lrp'"):
        plrp.explain(model, (a, b), target=0, composite="epsilon")
    trace = plrp.trace(model, (a, b))
    with pytest.raises(plrp.UnsupportedOperation, match="attnlrp"):
        trace.explain(target=0, composite="epsilon-plus-flat")
    automatic = trace.explain(target=0)
    assert automatic.composite.name == "attnlrp"
    assert automatic.closing().max() < 1e-12
    found = plrp.check(model, (a, b))
    assert found
    assert found.composites == ATTENTION
    assert "under attnlrp and cp-lrp" in str(found)


def test_an_inner_softmax_that_is_no_gate_needs_an_attention_composite() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Softmax(-1), nn.Linear(6, 3)).double().eval()
    x = torch.randn(2, 4, dtype=torch.float64)
    with pytest.raises(plrp.UnsupportedOperation, match="attnlrp"):
        plrp.explain(model, x, composite="epsilon")
    for composite in ATTENTION:
        assert plrp.explain(model, x, composite=composite).closing().max() < 1e-12


# --- sums and constants -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.25, 1.0, 10.0])
@pytest.mark.parametrize("composite", ["epsilon", "epsilon-plus", "attnlrp"])
def test_a_gamma_weighted_sum_favours_the_summand_of_its_own_sign(composite: str, gamma: float) -> None:
    a, b = pair((2, 3, 4), (2, 3, 4))
    a[0, 0, 0], b[0, 0, 0] = 0.5, -0.5  # a sum of zero hands nothing down
    weighing = plrp.composite(composite, residual_gamma=gamma)
    found, r = joined(
        torch.add, a, b, composite=weighing.with_layers({"head": rules.WSquare()})
    )  # zeros hold relevance
    expected = torch.zeros(2, *a.shape, dtype=torch.float64)
    for place in torch.cartesian_prod(*map(torch.arange, a.shape)).tolist():
        terms = [float(a[tuple(place)]), float(b[tuple(place)])]
        z = sum(terms)
        weighted = [u * (1 + gamma * (u * z > 0)) for u in terms]
        for side in range(2):
            expected[(side, *place)] = weighted[side] / sum(weighted) * r[tuple(place)] if z else 0.0
    for side in range(2):
        assert oracles.relative_difference(found.relevance[side], expected[side]) < 1e-9
    handed = found.relevance[0].abs() + found.relevance[1].abs()
    assert bool((handed <= (1 + 2 / gamma) * r.abs() * (1 + 1e-9)).all())
    booked = [row["absorbed_epsilon"] for row in found.ledger if row["op"] == "add"]
    assert booked == [pytest.approx(float(r[0, 0, 0]), rel=1e-12), 0]
    assert booked[0]
    assert found.closing().max() < 1e-12


def test_sums_show_cancellation_and_amplification() -> None:
    a, b = pair((2, 3, 4), (2, 3, 4))
    found, r = joined(torch.add, a, b, composite="epsilon")
    for row in found.ledger:
        if row["op"] != "add":
            assert row["cancellation"] is None
            continue
        n = row["sample"]
        cancelled = float((a[n].abs() + b[n].abs()).sum() / (a[n] + b[n]).abs().sum())
        amplified = float(sum(x[n].abs().sum() for x in found.relevance) / r[n].abs().sum())
        assert row["cancellation"] == pytest.approx(cancelled, rel=1e-12)
        assert row["amplification"] == pytest.approx(amplified, rel=1e-12)


def test_rotary_positions_are_a_linear_map_and_no_residual_sum() -> None:
    """q·cos + rotate(q)·sin is one linear map of q: γ does not touch it."""
    angle = torch.arange(3, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.1, 1.0, 0.1])

    def rotary(q: Tensor, k: Tensor) -> Tensor:
        def rotated(x: Tensor) -> Tensor:
            return x * angle.cos() + torch.cat([-x[..., 2:], x[..., :2]], -1) * angle.sin()

        return rotated(q) @ rotated(k).mT

    q, k = pair((2, 3, 4), (2, 3, 4))
    plain, _ = joined(rotary, q, k, composite="attnlrp")
    weighted, _ = joined(rotary, q, k, composite=plrp.composite("attnlrp", residual_gamma=1.0))
    assert torch.equal(plain.relevance[0], weighted.relevance[0])


class Tokens(nn.Module):
    """Patches, a class token, position embeddings: what constants take of a score is in the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Linear(6, 4), nn.Linear(4, 3)
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 6, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(len(x), -1, -1), self.patch(x)], 1) + self.position
        return self.head(h.sum(1))


def test_class_token_and_position_embeddings_take_their_share_as_constants() -> None:
    torch.manual_seed(0)
    model = Tokens().double().eval()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    found = plrp.explain(model, x, target=1, composite="attnlrp")
    with torch.no_grad():
        h = torch.cat([model.token.expand(2, -1, -1), model.patch(x)], 1)
        z = h + model.position
        total = z.sum(1)
        r_total = total * model.head.weight[1] * found.logits[:, 1:2] / stabilised(found.logits[:, 1:2])
        r_z = z * (r_total / stabilised(total))[:, None]
        share = r_z / stabilised(z)
        at_position, at_token = (model.position * share).sum((1, 2)), (h * share)[:, 0].sum(1)
    booked = {row["op"]: [] for row in found.ledger}
    for row in found.ledger:
        booked[row["op"]].append(row["absorbed_constant"])
    assert booked["add"] == pytest.approx(at_position.tolist(), rel=1e-9)
    assert booked["cat"] == pytest.approx(at_token.tolist(), rel=1e-9)
    oracles.assert_ledger_closes(found, found.score, 1e-12)


# --- fused functions --------------------------------------------------------------------------------------------------


def masks() -> dict[str, dict[str, Any]]:
    allowed = torch.ones(5, 7, dtype=torch.bool).tril(2)
    return {
        "plain": {},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": allowed},
        "additive": {"attn_mask": torch.randn(5, 7, dtype=torch.float64)},
        "scale": {"scale": 0.3},
        "nothing allowed": {"attn_mask": allowed & (torch.arange(5) != 2)[:, None]},
    }


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", masks())
def test_scaled_dot_product_attention_is_written_out(name: str, groups: int) -> None:
    torch.manual_seed(0)
    options = masks()[name] | ({"enable_gqa": True} if groups > 1 else {})
    q = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    k, v = torch.randn(2, 2, 4 // groups, 7, 6, dtype=torch.float64)
    key, value = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)

    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, **options).flatten(1)

    found = plrp.trace(Attention(), (q, k, v))
    fused = F.scaled_dot_product_attention(q, k, v, **options).flatten(1)
    assert torch.allclose(found.output, fused, rtol=0, atol=1e-12)
    explanation = found.explain(target=3, composite="attnlrp")
    assert explanation.closing().max() < 1e-12
    # the score is O of the first head, first token, channel 3: half of it is divided over v
    scores = (q @ key.mT) * options.get("scale", 1 / math.sqrt(6))
    if options.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(5, 7, dtype=torch.bool).tril(), -math.inf)
    elif (mask := options.get("attn_mask")) is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    attention = torch.softmax(scores, -1)[:, 0, 0]
    o = (attention[:, :, None] * value[:, 0]).sum(1)[:, 3]
    expected = attention * value[:, 0, :, 3] * (o / (2 * o + EPSILON * o.sign()))[:, None]
    assert oracles.relative_difference(explanation.relevance[2][:, 0, :, 3], expected) < 1e-9


class Attending(nn.Module):
    def __init__(self, weights: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        self.weights, self.mask = weights, None
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        y = x if y is None else y
        h, _ = self.attention(x, y, y, need_weights=self.weights, attn_mask=self.mask)
        return self.head(h.mean(1))


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_multihead_attention_is_written_out(options: dict[str, bool], masked: bool, weights: bool) -> None:
    torch.manual_seed(0)
    model = Attending(weights, **options).double().eval()
    model.mask = torch.ones(5, 5).triu(1).bool() if masked else None
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    for composite in ("epsilon", *ATTENTION):
        found = plrp.explain(model, x, composite=composite)
        with torch.no_grad():
            assert torch.allclose(found.logits, model(x), rtol=0, atol=1e-12)
        assert found.closing().max() < 1e-12
        alone = plrp.explain(model, x[1:2], composite=composite, target=found.target[1:2])
        assert oracles.relative_difference(alone.relevance, found.relevance[1:2]) < 1e-9


def test_cross_attention_gives_relevance_to_both_sequences() -> None:
    torch.manual_seed(0)
    model = Attending(kdim=8, vdim=8).double().eval()
    x, y = pair((2, 5, 8), (2, 7, 8))
    found = plrp.explain(model, (x, y), composite="attnlrp")
    assert all(bool(r.any()) for r in found.relevance)
    assert found.closing().max() < 1e-12
    only_values = plrp.explain(model, (x, y), composite="cp-lrp")
    assert not only_values.relevance[0].any()


class Encoder(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x)[:, 0])


@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "gelu"}, {"bias": False}], ids=str)
def test_the_fused_layers_of_a_transformer_give_what_is_recorded(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Encoder(**options).double().eval()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    with torch.no_grad():
        fused = model(x)  # no gradients wanted: torch takes its fast path
    found = plrp.explain(model, x, composite="attnlrp")
    assert torch.allclose(found.logits, fused, rtol=0, atol=1e-12)
    assert found.closing().max() < 1e-12


def test_an_encoder_and_decoder_explain_both_sequences() -> None:
    torch.manual_seed(0)

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=target.dtype)
            return self.head(self.both(source, target, tgt_mask=mask, tgt_is_causal=True)[:, -1])

    model = Translator().double().eval()
    source, target = pair((2, 5, 8), (2, 4, 8))
    found = plrp.explain(model, (source, target), composite="attnlrp")
    assert all(bool(r.any()) for r in found.relevance)
    assert found.closing().max() < 1e-12


class Padded(nn.Module):
    """Sentences of which the first is shorter; its padding is read, or not."""

    def __init__(self, nested: bool, reads_padding: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.head, self.reads_padding = nn.Linear(8, 3), reads_padding

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(x.shape[:2], dtype=torch.bool)
        mask[0, 3:] = True
        h = self.encoder(x, src_key_padding_mask=mask)
        return self.head(h.mean(1) if self.reads_padding else h[:, 0])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padding_that_torch_sets_to_zero_in_its_fast_path_alone_is_refused() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    for nested, reads_padding in ((False, True), (False, False), (True, False)):
        found = plrp.explain(Padded(nested, reads_padding).eval(), x, composite="attnlrp")
        assert found.closing().max() < 1e-5
        assert reads_padding or not found.relevance[0, 3:].any()
    with pytest.raises(plrp.TraceError, match="enable_nested_tensor=False"):
        plrp.explain(Padded(True, True).eval(), x, composite="attnlrp")


def test_active_dropout_in_an_attention_is_refused() -> None:
    model = Attending(dropout=0.5).double()
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        plrp.explain(model, torch.randn(2, 5, 8, dtype=torch.float64), composite="attnlrp")


# --- a whole block, restated ------------------------------------------------------------------------------------------


class Block(nn.Module):
    """One pre-norm block with one head, all by hand, and what its parts are called in the oracle below."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 4)
        self.norm1, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4)
        self.q, self.k, self.v, self.out = (nn.Linear(4, 4) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        n = self.norm1(h)
        h = h + self.out(torch.softmax(self.q(n) @ self.k(n).mT / 2, -1) @ self.v(n))
        n = self.norm2(h)
        h = h + self.down(F.silu(self.gate(n)) * self.up(n))
        return self.head(h[:, -1])


def epsilon_rule(matrix: Tensor, x: Tensor, y: Tensor, r: Tensor) -> Tensor:
    """R_j = Σ_k x_j W_kj R_k / (y_k + ε), for vectors."""
    return x * (matrix.T @ (r / stabilised(y)))


def restated(model: Block, x: Tensor, target: int, half: bool, gamma: float | None) -> Tensor:
    """The relevance of one sample (tokens, features), matrix by matrix."""
    tokens = len(x)
    centre = torch.eye(4, dtype=torch.float64) - torch.full((4, 4), 0.25, dtype=torch.float64)

    def norm_matrix(layer: nn.LayerNorm, v: Tensor) -> Tensor:
        return torch.diag(layer.weight / torch.sqrt(v.var(unbiased=False) + layer.eps)) @ centre

    def at_sum(a: Tensor, b: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        if gamma is None:
            return a * r / stabilised(a + b), b * r / stabilised(a + b)
        wa, wb = (u * torch.where(u * (a + b) > 0, 1 + gamma, 1.0) for u in (a, b))
        return wa / (wa + wb) * r, wb / (wa + wb) * r

    h0 = model.embed(x)
    n1 = model.norm1(h0)
    q, k, v = model.q(n1), model.k(n1), model.v(n1)
    scores = q @ k.T / 2
    attention = torch.softmax(scores, -1)
    o = attention @ v
    a = model.out(o)
    h1 = h0 + a
    n2 = model.norm2(h1)
    g, u = model.gate(n2), model.up(n2)
    m = F.silu(g) * u
    d = model.down(m)
    h2 = h1 + d
    y = model.head(h2[-1])

    r_y = torch.zeros(2, dtype=torch.float64)
    r_y[target] = y[target]
    r_h2 = torch.zeros_like(h2)
    r_h2[-1] = epsilon_rule(model.head.weight, h2[-1], y, r_y)
    r_h1, r_d = at_sum(h1, d, r_h2)
    for t in range(tokens):
        r_m = epsilon_rule(model.down.weight, m[t], d[t], r_d[t])
        r_g, r_u = (r_m / 2, r_m / 2) if half else (torch.zeros_like(r_m), r_m)
        r_n2 = epsilon_rule(model.gate.weight, n2[t], g[t], r_g) + epsilon_rule(model.up.weight, n2[t], u[t], r_u)
        r_h1[t] += epsilon_rule(norm_matrix(model.norm2, h1[t]), h1[t], n2[t], r_n2)
    r_h0, r_a = at_sum(h0, a, r_h1)
    r_o = torch.stack([epsilon_rule(model.out.weight, o[t], a[t], r_a[t]) for t in range(tokens)])
    share = r_o / stabilised((2 if half else 1) * o)
    r_v = v * (attention.T @ share)
    r_q, r_k = torch.zeros_like(q), torch.zeros_like(k)
    if half:
        r_attention = attention * (share @ v.T)
        r_scores = scores * (r_attention - attention * r_attention.sum(-1, keepdim=True))
        share = r_scores / stabilised(2 * (q @ k.T))
        r_q, r_k = q * (share @ k), k * (share.T @ q)
    for t in range(tokens):
        r_n1 = sum(
            epsilon_rule(layer.weight, n1[t], out[t], r[t])
            for layer, out, r in ((model.q, q, r_q), (model.k, k, r_k), (model.v, v, r_v))
        )
        r_h0[t] += epsilon_rule(norm_matrix(model.norm1, h0[t]), h0[t], n1[t], r_n1)
    return torch.stack([epsilon_rule(model.embed.weight, x[t], h0[t], r_h0[t]) for t in range(tokens)])


@pytest.mark.parametrize("gamma", [None, 0.5])
@pytest.mark.parametrize("composite", ATTENTION)
def test_a_block_is_explained_as_it_is_restated_matrix_by_matrix(composite: str, gamma: float | None) -> None:
    torch.manual_seed(0)
    model = Block().double().eval()
    for norm in (model.norm1, model.norm2):
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    x = torch.randn(2, 5, 5, dtype=torch.float64)
    found = plrp.explain(model, x, target=1, composite=plrp.composite(composite, residual_gamma=gamma))
    with torch.no_grad():
        expected = torch.stack([restated(model, one, 1, composite == "attnlrp", gamma) for one in x])
    assert oracles.relative_difference(found.relevance, expected) < 1e-9
    oracles.assert_ledger_closes(found, found.score, 1e-12)


def test_gamma_of_an_attention_composite_is_for_its_layers() -> None:
    found = plrp.composite("attnlrp", gamma=0.25, residual_gamma=1.0)
    torch.manual_seed(0)
    model = Block().double().eval()
    trace = plrp.trace(model, torch.randn(1, 3, 5, dtype=torch.float64))
    assert all(isinstance(found.rule(op), rules.Gamma) for op in trace.layers)
    assert "γ = 1" in repr(found)
    assert found.with_layers({"head": rules.ZPlus()}).residual_gamma == 1.0
    with pytest.raises(ValueError, match="residual_gamma"):
        plrp.composite("epsilon", residual_gamma=-1)
    with pytest.raises(TypeError, match="does not take gamma"):
        plrp.composite("epsilon", gamma=1)


# --- whole networks ---------------------------------------------------------------------------------------------------


class Picture(nn.Module):
    """A small vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 17, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.position
        return self.head(self.norm(self.blocks(h))[:, 0])


IDS = torch.tensor([[2, 5, 9, 7, 11, 3, 4], [2, 8, 3, 9, 4, 0, 0]])


class Language(nn.Module):
    """A small model of Hugging Face's that reads token ids; the score of the last token of the shorter sentence."""

    def __init__(self, kind: str, attention: str = "sdpa") -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 30}
        sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4}
        t5 = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "vocab_size": 30}
        gpt2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 30, "bos_token_id": 1, "eos_token_id": 1}
        if kind == "llama":
            config = transformers.LlamaConfig(num_key_value_heads=2, **sizes)
            self.model = transformers.LlamaForCausalLM(config)
        elif kind == "bert":
            self.model = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=3, **sizes))
        elif kind == "gpt2":
            self.model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**gpt2))
        elif kind == "t5":
            self.model = transformers.T5EncoderModel(transformers.T5Config(feed_forward_proj="gated-gelu", **t5))
        elif kind == "mixtral":
            config = transformers.MixtralConfig(num_key_value_heads=2, num_local_experts=4, **sizes)
            self.model = transformers.MixtralForCausalLM(config)
            self.model.set_experts_implementation("eager")
        self.model.set_attn_implementation(attention)
        self.options = {} if kind in ("bert", "t5") else {"use_cache": False}

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != 0).long()
        found = self.model(ids, attention_mask=mask, **self.options)
        whole = found.logits if hasattr(found, "logits") else found.last_hidden_state
        return whole if whole.dim() == 2 else whole[:, 4]


def network(kind: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    if kind == "picture":
        return Picture().double().eval(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    return Language(kind).double().eval(), IDS


NETWORKS = ("picture", "llama", "bert", "gpt2")
PRUNINGS = [
    plrp.Pruning(p=0.2, unit="neuron"),
    plrp.Pruning(p=0.2, redistribution="M", unit="neuron"),
    plrp.Pruning(p=0.2, redistribution="M-sign", unit="neuron"),
    plrp.Pruning(p=None, sparsity_gain=1.0, unit="neuron"),
    plrp.Pruning(p=0.5, sparsity_gain=0.5, measure="gini", redistribution="M", unit="neuron"),
    plrp.Pruning(p=0.2, unit="position"),
    plrp.Pruning(p=0.2, unit="channel", redistribution="M-sign"),
]


@pytest.mark.parametrize("composite", ATTENTION)
@pytest.mark.parametrize("kind", NETWORKS)
def test_pruning_conserves_on_transformers_and_p_zero_is_lrp_to_the_last_bit(kind: str, composite: str) -> None:
    model, x = network(kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trace = plrp.trace(model, x)
    plain = trace.explain(composite=composite, layers=True)
    assert plain.closing().max() < 1e-12
    balance = plain.balance
    taken = balance.to_bias + balance.to_constants + balance.to_epsilon + balance.to_softmax
    assert torch.allclose(balance.reached + taken, torch.ones(2, dtype=torch.float64), atol=1e-9)
    for redistribution in ("lambda", "M", "M-sign"):
        nothing = trace.explain(composite=composite, pruning=plrp.Pruning(p=0, redistribution=redistribution))
        assert torch.equal(nothing.relevance, plain.relevance)
    for pruning in PRUNINGS:
        found = trace.explain(composite=composite, pruning=pruning, layers=True)
        oracles.assert_ledger_closes(found, found.score, 1e-10)
        for row in found.ledger:
            if row["op"] == "prune":
                size = max(oracles.mass(row, "in"), oracles.mass(row, "out"))
                assert abs(oracles.net(row, "in") - oracles.net(row, "out")) <= 1e-10 * size
        with plrp.plain_walk():
            slow = trace.explain(composite=composite, pruning=pruning)
        assert oracles.relative_difference(found.relevance, slow.relevance) < 1e-7
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["llama", "bert", "gpt2", "t5"])
def test_padding_changes_nothing_and_tokens_hold_the_sum_of_their_channels(kind: str, attention: str) -> None:
    """A sentence with padding beside a longer one is explained as it is alone; padding holds nothing."""
    torch.manual_seed(0)
    model = Language(kind, attention).double().eval()
    for composite in ATTENTION:
        found = plrp.explain(model, IDS, composite=composite)
        assert found.relevance.shape == IDS.shape
        assert found.closing().max() < 1e-12
        alone = plrp.explain(model, IDS[1:, :5], composite=composite, target=found.target[1:])
        assert oracles.relative_difference(found.relevance[1, :5], alone.relevance[0]) < 1e-7
        assert not found.relevance[1, 5:].any()
    model.embedded = model.model.get_input_embeddings()(IDS).detach()

    def from_embeddings(embedded: Tensor) -> Tensor:
        ids = model.model(inputs_embeds=embedded, attention_mask=(IDS != 0).long(), **model.options)
        whole = ids.logits if hasattr(ids, "logits") else ids.last_hidden_state
        return whole if whole.dim() == 2 else whole[:, 4]

    if kind in ("llama", "t5"):  # no constant is added to their embeddings
        found = plrp.explain(model, IDS, composite="attnlrp")
        below = plrp.explain(from_embeddings, model.embedded, composite="attnlrp", target=found.target)
        assert oracles.relative_difference(found.relevance, below.relevance.sum(-1)) < 1e-9


def test_eager_and_fused_attention_of_a_language_model_agree() -> None:
    """To float32's rounding: the eager softmax of Hugging Face's is computed in float32."""
    found = []
    for attention in ("eager", "sdpa"):
        torch.manual_seed(0)
        model = Language("llama", attention).double().eval()
        found.append(plrp.explain(model, IDS, composite=plrp.composite("attnlrp", epsilon=0.0)))
    assert oracles.relative_difference(found[0].relevance, found[1].relevance) < 1e-6


def test_a_mixture_of_experts_is_explained_one_sentence_at_a_time() -> None:
    torch.manual_seed(0)
    model = Language("mixtral").double().eval()
    for composite in ATTENTION:
        assert plrp.explain(model, IDS[:1], composite=composite).closing().max() < 1e-12
    with pytest.raises(plrp.UnsupportedOperation, match="one sample at a time"):
        plrp.explain(model, IDS, composite="attnlrp")
    exact = plrp.explain(model, IDS[:1], composite="attnlrp").relevance
    fused = plrp.explain(model.float(), IDS[:1], composite="attnlrp").relevance  # by torch's grouped_mm
    assert oracles.relative_difference(fused.double(), exact) < 1e-3


def test_ids_that_no_embedding_reads_are_refused() -> None:
    with pytest.raises(TypeError, match="embedding"):
        plrp.explain(nn.Linear(7, 3), IDS)
    with pytest.raises(TypeError, match="embedding"):
        plrp.explain(lambda ids: F.one_hot(ids, 30).double().sum((1, 2))[:, None], IDS)


@pytest.mark.parametrize("look_up", ["module", "index"])
def test_a_bag_of_words_gives_each_token_its_score(look_up: str) -> None:
    """Scores are sums of rows: under ε = 0 a token receives what its row adds."""
    torch.manual_seed(0)
    table = nn.Embedding(30, 6).double()

    def model(ids: Tensor) -> Tensor:
        rows = table(ids.view(-1, 7)) if look_up == "module" else table.weight[ids]
        return rows.sum(1)[:, :4].sum(-1, keepdim=True)

    found = plrp.explain(model, IDS, composite=plrp.composite("attnlrp", epsilon=0.0))
    expected = table.weight.detach()[IDS][..., :4].sum(-1)
    assert oracles.relative_difference(found.relevance, expected) < 1e-10


def vision_models() -> dict[str, tuple[Callable[[], nn.Module], int]]:
    models = pytest.importorskip("torchvision.models")
    from torchvision.models import swin_transformer as swin

    second = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
    few = {"num_classes": 5}
    return {
        "vit": (lambda: models.VisionTransformer(32, 8, 2, 2, 16, 32, **few), 32),
        "swin": (lambda: models.SwinTransformer([4, 4], 16, [2, 2], [1, 2], [4, 4], **few), 32),
        "swin_v2": (lambda: models.SwinTransformer([4, 4], 16, [2, 2], [1, 2], [4, 4], **few, **second), 32),
        "maxvit": (lambda: models.MaxVit((64, 64), 8, 4, [8], [1], 8, 0.1, **few), 64),
    }


@pytest.mark.parametrize("kind", ["vit", "swin", "swin_v2", "maxvit"])
def test_vision_transformers_of_torchvision_are_explained(kind: str) -> None:
    make, size = vision_models()[kind]
    torch.manual_seed(0)
    model = make().double().eval()
    for parameter in model.parameters():  # ViT's head begins with zeros
        nn.init.normal_(parameter, std=0.2)
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    for composite in ATTENTION:
        found = plrp.explain(model, x, composite=composite)
        oracles.assert_ledger_closes(found, found.score, 1e-10)
        alone = plrp.explain(model, x[1:], composite=composite, target=found.target[1:])
        assert oracles.relative_difference(alone.relevance, found.relevance[1:]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit_b_16", "swin_t", "swin_v2_t", "maxvit_t"])
def test_vision_transformers_at_full_size(name: str) -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    model = getattr(models, name)().eval()
    if name == "vit_b_16":
        nn.init.normal_(model.heads.head.weight, std=0.02)
    x = torch.randn(1, 3, 224, 224)
    for pruning in (None, plrp.Pruning(p=0.2)):
        found = plrp.explain(model, x, composite="attnlrp", pruning=pruning)
        assert found.closing().max() < 1e-3


GEMMAS = ("Gemma", "Gemma2", "Gemma3Text", "RecurrentGemma")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", GEMMAS)
def test_gemmas_are_explained_in_every_precision(kind: str, dtype: torch.dtype) -> None:
    """Their norms cast back with `type_as`, of whose other argument nothing but the dtype is read."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 30, "head_dim": 4}
    sizes |= {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    if kind == "RecurrentGemma":
        sizes |= {"lru_width": 16, "attention_window_size": 8, "num_key_value_heads": 4}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    name = {"Gemma3Text": "Gemma3ForCausalLM"}.get(kind, f"{kind}ForCausalLM")
    model = getattr(transformers, name)(config).eval()
    ids = IDS[:, :5]

    def scores(of: Any) -> Any:
        return lambda ids: of(ids, use_cache=False).logits[:, -1]

    precise = plrp.explain(scores(copy.deepcopy(model).double()), ids, target=7)
    found = plrp.explain(scores(copy.deepcopy(model).to(dtype)), ids, target=7)
    assert found.relevance.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert bool(found.relevance.isfinite().all())
    assert float(found.closing().max()) < 1e-5
    if dtype in (torch.float32, torch.float64):
        assert torch.allclose(found.relevance.double(), precise.relevance, rtol=1e-2, atol=1e-4)
