"""`composite="auto"`: what it chooses, that it says so, and the rule relative to the mean letter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import plrp
from plrp import rules
from plrp.composites import automatic


def dna(batch: int = 3, length: int = 20, seed: int = 0) -> torch.Tensor:
    bases = torch.randint(4, (batch, length), generator=torch.Generator().manual_seed(seed))
    return nn.functional.one_hot(bases, 4).transpose(1, 2).double()


def is_one_hot(x: torch.Tensor) -> bool:
    return automatic([x]).name == "epsilon-gamma"


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv1d(4, 6, 5, padding=2), nn.ReLU(), nn.Conv1d(6, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 3))
    return nn.Sequential(*layers).double().eval()


def test_one_hot_is_recognised_and_nothing_else() -> None:
    x = dna()
    assert is_one_hot(x)
    assert is_one_hot(x.float())
    for n in (0.0, 0.25):  # N
        with_unknown = x.clone()
        with_unknown[:, :, 3] = n
        assert is_one_hot(with_unknown)
    ambiguous = x.clone()
    ambiguous[0, :, 2] = torch.tensor([0.5, 0.5, 0.0, 0.0])  # M: A or C
    assert is_one_hot(ambiguous)
    for no in (
        torch.randn(2, 4, 8).softmax(1),
        x + 0.1,
        x.transpose(1, 2),
        x[:, :, None],
        x[:, 0],
        x.long(),
        x * 0,
        torch.randn(2, 3, 8),
    ):
        assert not is_one_hot(no)


def test_auto_chooses_by_the_input_and_says_so(net) -> None:
    chosen = plrp.explain(net, dna())
    named = plrp.explain(net, dna(), composite="epsilon-gamma")
    assert torch.equal(chosen.relevance, named.relevance)
    assert "epsilon-gamma (auto: one-hot input)" in repr(chosen)
    assert "auto" not in repr(named)
    images = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    chosen, named = plrp.explain(images, x), plrp.explain(images, x, composite="epsilon-plus-flat")
    assert torch.equal(chosen.relevance, named.relevance)
    assert "epsilon-plus-flat (auto" in repr(chosen)


def test_every_way_to_explain_chooses_alike(net) -> None:
    x = dna()
    expected = plrp.explain(net, x, composite="epsilon-gamma").relevance
    trace = plrp.trace(net, x)
    (swept,) = trace.sweep([None])
    for relevance in (
        trace.explain().relevance,
        swept.relevance,
        plrp.explain(net, x, micro_batch=2).relevance,
        plrp.metrics.Explainer(net)(x),
    ):
        assert torch.allclose(relevance, expected)
    assert "Gamma(gamma=0.05" in repr(trace)


def test_auto_never_depends_on_batch_mates(net) -> None:
    """Each sample chooses by itself; where the choices differ, the batch is refused, in pieces or not."""
    x = dna(4)
    x[2] = x[2] * 0.6 + 0.1  # a soft sequence
    for call in (plrp.explain, lambda *a: plrp.explain(*a, micro_batch=1), lambda *a: plrp.trace(*a).explain()):
        with pytest.raises(
            ValueError, match=r"not one-hot: sample 2\): name a composite, or explain the two kinds apart"
        ):
            call(net, x)
    assert plrp.explain(net, x[2:3]).composite.name == "epsilon-plus-flat"
    assert plrp.explain(net, x[:2]).composite.name == "epsilon-gamma"
    assert plrp.explain(net, x, composite="epsilon-gamma").relevance.shape == x.shape
    mostly_unknown = dna(2)
    mostly_unknown[1, :, 3:] = 0.25  # half of all letters are known, but few of the second sample
    with pytest.raises(ValueError, match="not one-hot: sample 1"):
        plrp.explain(net, mostly_unknown)
    assert "Flat" in repr(plrp.trace(net, x))  # a table needs no choice
    pair = dna(3, 6)
    pair[0] += 0.5
    whole = nn.Sequential(nn.Flatten(0), nn.Linear(72, 1)).double().eval()
    assert plrp.explain(whole, pair, samples=None).composite.name == "epsilon-plus-flat"  # it is one sample


def test_auto_of_several_inputs() -> None:
    assert automatic([dna(), dna()]).name == "epsilon-gamma"
    assert automatic([dna(), torch.randn(3, 5)]).name == "epsilon-plus-flat"
    assert automatic([]).name == "epsilon-plus-flat"
    with pytest.raises(ValueError, match="'auto' or one of"):
        plrp.composites.composite("automatic")


@pytest.mark.parametrize("letters", [2, 4])
@pytest.mark.parametrize("reference", [False, True])
def test_centred_on_its_explicit_matrix(reference, letters) -> None:
    """n_jk = x_j (w_jk − mean over the letters of position and output), over the output; the rest is the bias's."""
    torch.manual_seed(1)
    conv, head = nn.Conv1d(letters, 3, 3, padding=1).double(), nn.Linear(3 * 6, 1, bias=False).double()
    model = nn.Sequential(conv, nn.Flatten(), head).eval()
    x = dna(2, 6)[:, :letters]
    composite = plrp.Composite([(plrp.composites.is_any, rules.Epsilon())], first=rules.Centred())
    with plrp.plain_walk() if reference else torch.no_grad():
        found = plrp.explain(model, x, target=0, composite=composite)
    eye = torch.eye(6 * letters, dtype=torch.float64).reshape(-1, letters, 6)
    matrix = (conv(eye) - conv(torch.zeros_like(eye[:1]))).flatten(1).detach()  # (input, output)
    mean_letter = matrix.reshape(letters, -1).mean(0).expand(letters, -1).reshape(matrix.shape)
    for i in range(2):
        z = conv(x[i : i + 1]).flatten().detach()
        upper = z * head.weight[0].detach()
        upper = upper * (upper.sum() / (upper.sum() + 1e-6 * upper.sum().sign()))
        slope = upper / (z + 1e-6 * torch.where(z >= 0, 1.0, -1.0))
        expected = x[i].flatten() * ((matrix - mean_letter) @ slope)
        assert torch.allclose(found.relevance[i].flatten(), expected, atol=1e-9)
    assert found.closing().abs().max() < 1e-9


def test_centred_does_not_depend_on_a_number_added_to_all_letters(net) -> None:
    """The same function of one-hot sequences, written with other weights, has the same explanation."""
    x = dna()
    shift = torch.randn(6, 1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        net[0].padding = (0,)  # a position beyond the end holds no letter
        before = plrp.explain(net[:4], x, target=lambda out: out.flatten(1)[:, 0], composite="epsilon-gamma-centred")
        net[0].weight += shift
        net[0].bias -= shift.sum((1, 2))
    after = plrp.explain(net[:4], x, target=lambda out: out.flatten(1)[:, 0], composite="epsilon-gamma-centred")
    assert torch.allclose(after.logits, before.logits)
    assert torch.allclose(after.relevance, before.relevance, atol=1e-9)


def test_centred_of_a_linear_model_is_mutagenesis() -> None:
    """For a linear score the relevance of a base is 3/4 of its mean effect over the other letters."""
    torch.manual_seed(3)
    conv = nn.Conv1d(4, 1, 12).double()
    model = nn.Sequential(conv, nn.Flatten()).eval()
    x = dna(2, 12)
    composite = plrp.composite("epsilon-gamma-centred")
    relevance = plrp.explain(model, x, target=0, composite=composite).relevance.sum(1)
    effects = plrp.metrics.mutagenesis(model, x, target=0).sum(1) / 3
    assert torch.allclose(relevance, 0.75 * effects, atol=1e-5)


def test_centred_is_epsilon_where_there_are_no_letters() -> None:
    torch.manual_seed(4)
    for layer, x in (
        (nn.Linear(6, 3), torch.randn(2, 6)),
        (nn.ConvTranspose1d(4, 4, 3), torch.randn(2, 4, 5)),
        (nn.Conv1d(4, 4, 3, groups=4), torch.randn(2, 4, 5)),
        (nn.Conv1d(1, 4, 3), torch.randn(2, 1, 5)),
    ):
        model = nn.Sequential(layer, nn.Flatten()).eval()
        centred, plain = (
            plrp.explain(model, x, target=0, composite=plrp.Composite([(plrp.composites.is_any, rule)])).relevance
            for rule in (rules.Centred(), rules.Epsilon())
        )
        assert torch.equal(centred, plain)


def test_attention_gets_attnlrp() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(3, 8), nn.Linear(8, 4)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.embed(x)
            return self.head(self.attention(h, h, h, need_weights=False)[0].mean(1))

    torch.manual_seed(0)
    model, x = Attending().eval(), torch.randn(2, 5, 3)
    named = plrp.explain(model, x, target=1, composite="attnlrp").relevance
    for found in (plrp.explain(model, x, target=1), plrp.trace(model, x).explain(target=1)):
        assert torch.equal(found.relevance, named)
        assert found.composite.name == "attnlrp"
        assert "auto: products of two signals" in str(found)
