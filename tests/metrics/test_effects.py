"""Occlusion, mutagenesis and the agreement with them, against one replacement and one forward pass at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from plrp.metrics import agreement, mutagenesis, occlusion

GENERATOR = torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 4))
    return layers.double().eval()


@pytest.fixture(scope="module")
def dna_net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv1d(4, 5, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 7, 3))
    return layers.double().eval()


@pytest.fixture(scope="module")
def dna() -> torch.Tensor:
    bases = torch.randint(4, (2, 7), generator=torch.Generator().manual_seed(1))
    return nn.functional.one_hot(bases, 4).transpose(1, 2).double()


def test_occlusion_is_the_drop_of_every_tile(net) -> None:
    x = torch.randn(2, 3, 7, 10, generator=GENERATOR, dtype=torch.float64)
    drops = occlusion(net, x, region=(3, 4), perturbation="image-mean", batch_size=5)
    assert drops.shape == (2, 9)
    for i in range(2):
        winner = net(x[i : i + 1])[0].argmax()
        tile = 0
        for top in (0, 3, 6):
            for left in (0, 4, 8):
                moved = x[i].clone()
                rows, columns = slice(top, top + 3), slice(left, left + 4)
                moved[:, rows, columns] = x[i].mean((1, 2))[:, None, None]
                expected = (net(x[i : i + 1])[0] - net(moved[None])[0])[winner]
                assert drops[i, tile].item() == pytest.approx(expected.item(), abs=1e-12)
                tile += 1


def test_occlusion_against_captum(net) -> None:
    captum = pytest.importorskip("captum.attr")
    x = torch.randn(2, 3, 8, 8, generator=GENERATOR, dtype=torch.float64)
    theirs = captum.Occlusion(net).attribute(x, sliding_window_shapes=(3, 4, 4), strides=(3, 4, 4), target=1)
    ours = occlusion(net, x, region=4, perturbation="zeros", target=1)
    assert torch.allclose(theirs[:, 0, ::4, ::4].flatten(1), ours.float(), atol=1e-6)


@pytest.mark.parametrize("target", [None, 1, torch.tensor([2, 0])])
def test_mutagenesis_exchanges_every_letter(dna_net, dna, target) -> None:
    drops = mutagenesis(dna_net, dna, target=target, batch_size=4)
    for i in range(2):
        out = dna_net(dna[i : i + 1])[0]
        chosen = int(out.argmax()) if target is None else int(torch.as_tensor(target).expand(2)[i])
        for position in range(7):
            for letter in range(4):
                changed = dna[i].clone()
                changed[:, position] = 0
                changed[letter, position] = 1
                expected = (out - dna_net(changed[None])[0])[chosen].item()
                assert drops[i, letter, position].item() == pytest.approx(expected, abs=1e-12)
    some = mutagenesis(dna_net, dna, target=target, positions=[5, 2])
    assert torch.allclose(some, drops[:, :, [5, 2]])


def test_mutagenesis_of_n_and_of_what_is_not_one_hot(dna_net, dna) -> None:
    unknown = dna.clone()
    unknown[0, :, 3] = 0
    drops = mutagenesis(dna_net, unknown)
    assert drops[0, :, 3].isnan().all()
    assert not drops[0, :, [0, 1, 2, 4, 5, 6]].isnan().any()
    with pytest.raises(ValueError, match="one-hot"):
        mutagenesis(dna_net, dna * 0.5)


def test_a_linear_model_agrees_with_its_own_contributions() -> None:
    weights = nn.Linear(12, 1, bias=False).double()
    x = torch.randn(3, 12, generator=GENERATOR, dtype=torch.float64)
    effects = occlusion(weights, x, region=1, perturbation="zeros", target=0)
    perfect = agreement(x * weights.weight.detach(), effects)
    assert all(torch.allclose(value, torch.ones(3, dtype=torch.float64)) for value in perfect)
    opposed = agreement(-x * weights.weight.detach(), effects)
    assert torch.allclose(opposed.spearman, -torch.ones(3, dtype=torch.float64))
    assert torch.allclose(opposed.spearman_absolute, torch.ones(3, dtype=torch.float64))


def test_agreement_sums_relevance_over_the_same_tiles(net) -> None:
    stats = pytest.importorskip("scipy.stats")
    x = torch.randn(2, 3, 8, 8, generator=GENERATOR, dtype=torch.float64)
    r = torch.randn(2, 3, 8, 8, generator=GENERATOR, dtype=torch.float64)
    effects = occlusion(net, x, region=4, perturbation="zeros")
    found = agreement(r, effects, inputs=x, region=4)
    for i in range(2):
        tiles = [r[i, :, a : a + 4, b : b + 4].sum().item() for a in (0, 4) for b in (0, 4)]
        truth = effects[i].tolist()
        assert found.spearman[i].item() == pytest.approx(stats.spearmanr(tiles, truth).statistic)
        assert found.pearson[i].item() == pytest.approx(stats.pearsonr(tiles, truth).statistic)
        signless = stats.spearmanr([abs(t) for t in tiles], [abs(t) for t in truth]).statistic
        assert found.spearman_absolute[i].item() == pytest.approx(signless)
    with pytest.raises(ValueError, match="other features"):
        agreement(r, effects)
