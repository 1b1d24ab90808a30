"""Other methods on the same score: ISM against a slow loop, gradients against autograd, DeepLIFT's completeness."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import plrp
from plrp.cli import main
from plrp.genomics import (
    Comparison,
    attribute,
    compare_methods,
    deeplift,
    dinucleotide_shuffle,
    encode,
    gradient_input,
    ism,
    write_fasta,
)

LETTERS = ["ACGTTGCAGTTTACGATCAGCA", "TTGACCAGTGGATTACAGATTN"]


def network(head: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv1d(4, 6, 7), nn.ReLU(), nn.Conv1d(6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(70, 3)]
    return nn.Sequential(*layers, *([head] if head else [])).eval()


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
@pytest.mark.parametrize("target", [None, 2, [0, 1], lambda output: output[:, 0] - output[:, 1]])
def test_ism_is_a_loop_over_every_base_and_letter(batch_size: int, target: object) -> None:
    model = network()
    found = ism(model, LETTERS, target=target, batch_size=batch_size)
    for k, letters in enumerate(LETTERS):

        def score(text: str, k: int = k, letters: str = letters) -> float:
            output = model(torch.from_numpy(encode([text])))
            if callable(target):
                return target(output).item()
            wanted = target[k] if isinstance(target, list) else target
            start = model(torch.from_numpy(encode([letters])))
            return output[0, start.argmax() if wanted is None else wanted].item()

        assert found.score[k] == pytest.approx(score(letters), abs=1e-5)
        for i, present in enumerate(letters):
            changes = [score(letters[:i] + other + letters[i + 1 :]) - score(letters) for other in "ACGT"]
            np.testing.assert_allclose(found.change[k, :, i], changes, atol=1e-5)
            worth = 0 if present == "N" else -sum(changes) / 3
            np.testing.assert_allclose(found.per_base()[k, i], worth, atol=1e-5)


@pytest.mark.parametrize("head", [nn.Softmax(1), nn.Sigmoid(), nn.LogSoftmax(1), nn.Softplus()])
def test_the_score_is_the_one_before_a_final_softmax(head: nn.Module) -> None:
    plain, ended = network(), network(head)
    for method in (ism, gradient_input):
        a, b = method(plain, LETTERS, target=1), method(ended, LETTERS, target=1)
        np.testing.assert_allclose(a.score, b.score, rtol=1e-5)
        np.testing.assert_allclose(a.per_base(), b.per_base(), atol=1e-5)
    lrp = plrp.genomics.explain_sequences(ended, LETTERS, target=1)
    np.testing.assert_allclose(lrp.score, ism(ended, LETTERS, target=1).score, rtol=1e-5)


def test_gradient_times_input_of_a_linear_model_is_its_score_and_ism() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4 * 22, 2, bias=False)).eval()
    found = gradient_input(model, LETTERS[:1], target=1, batch_size=1)
    assert found.relevance.sum() == pytest.approx(float(found.score[0]), abs=1e-5)
    weights = model[1].weight[1].detach().numpy().reshape(4, 22)
    worth = (weights * found.onehot[0]).sum(0) - (weights * (1 - found.onehot[0])).sum(0) / 3
    np.testing.assert_allclose(ism(model, LETTERS[:1], target=1).per_base()[0], worth, atol=1e-5)


def test_dinucleotide_shuffles_keep_what_their_name_says() -> None:
    def pairs(text: str) -> list[str]:
        return sorted(text[i : i + 2] for i in range(len(text) - 1))

    rng = np.random.default_rng(0)
    given = ["".join(rng.choice(list("ACGT"), 80)) for _ in range(20)] + ["A", "", "AAAA", "ACNNACGTN"]
    found = dinucleotide_shuffle(given, seed=3)
    assert [pairs(text) for text in found] == [pairs(text) for text in given]
    assert [text[:1] + text[-1:] for text in found] == [text[:1] + text[-1:] for text in given]
    assert sum(a != b for a, b in zip(found, given, strict=True)) >= 20
    assert found == dinucleotide_shuffle(given, seed=3)
    assert found != dinucleotide_shuffle(given, seed=4)


def test_shuffles_of_a_short_sequence_are_all_equally_likely() -> None:
    text, counts = "ACAGATA", {}
    for seed in range(1200):
        (one,) = dinucleotide_shuffle(text, seed=seed)
        counts[one] = counts.get(one, 0) + 1
    assert len(counts) == 6  # the orders of AC-, AG-, AT-
    assert min(counts.values()) > 140


def test_deeplift_is_complete_with_functions_too() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.output = nn.Conv1d(4, 6, 7), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.output(torch.relu(self.conv(x) - 0.5).square().sum(2))

    for model in (network(), Functional().eval()):
        found = deeplift(model, LETTERS[:1], target=1, shuffles=4, batch_size=3)
        assert ((found.relevance != 0) <= (found.onehot > 0)).all()
        np.testing.assert_allclose(found.relevance.sum((1, 2)), found.score, atol=1e-5)
    compared = compare_methods(Functional().eval(), LETTERS[:1], target=1)
    assert compared.refused == {}
    assert {"ISM", "LRP", "gradient × input", "DeepLIFT, shuffled:20"} <= set(compared.per_base)


def test_a_method_that_cannot_be_used_is_left_out_with_its_reason() -> None:
    class Composed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.output = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.output(x.cumprod(2).mean(2) + x.mean(2))

    compared = compare_methods(Composed().eval(), LETTERS[:1], target=1)
    assert set(compared.per_base) == {"ISM", "gradient × input"}
    assert "cumprod" in compared.refused["DeepLIFT, shuffled:20"]
    assert "DeepLIFT, shuffled:20 is left out: " in repr(compared)


@pytest.mark.slow
def test_a_hybrid_with_an_lstm_that_tangermeme_refuses_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/genomics.md says of it: theirs is left out with a reason, Captum's misses, ours is measured by ISM."""
    pytest.importorskip("tangermeme")
    pytest.importorskip("captum")
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    refused = importlib.import_module("refused")
    model, test = refused.trained_hybrid()
    x = torch.from_numpy(test.onehot()[:20])
    winners = model(x).argmax(1)
    assert "has no DeepLIFT rule" in refused.tangermeme(model, x, winners.tolist())
    missed = re.search(r"by (\d+)%", refused.captum(model, x, winners))
    assert missed is not None
    assert int(missed[1]) > 50
    compared = compare_methods(model, x)
    assert compared.refused == {}
    assert compared.correlation("LRP").mean() > 0.6


def test_the_comparison_correlates_with_ism() -> None:
    model = network()
    found = compare_methods(model, LETTERS, pruning=plrp.Pruning(p=0.1))
    assert list(found.per_base)[:3] == ["ISM", "LRP", "PLRP-λ p=0.1"]
    truth, other = ism(model, LETTERS).per_base(), found.per_base["gradient × input"]
    np.testing.assert_allclose(
        found.correlation("gradient × input"),
        [np.corrcoef(a, b)[0, 1] for a, b in zip(truth, other, strict=True)],
        atol=1e-5,
    )
    np.testing.assert_allclose(found.correlation("ISM", ranks=True), 1)
    assert found.letters == LETTERS


def test_floor_and_ceiling_by_hand() -> None:
    model = network()
    found, mutations = compare_methods(model, LETTERS), ism(model, LETTERS)
    for k, letters in enumerate(LETTERS):
        truth, own = found.per_base["ISM"][k], found.per_base["LRP"][k]
        shifted = [stats.spearmanr(np.roll(own, step), truth).statistic for step in range(1, len(letters))]
        assert found.floor("LRP")[k] == pytest.approx(np.quantile(shifted, 0.95), abs=1e-6)
        drops = [
            [mutations.change[k][("ACGT".index(c) + j) % 4, n] for n, c in enumerate(letters) if c != "N"]
            for j in (1, 2, 3)
        ]
        c = np.mean([stats.spearmanr(drops[a], drops[b]).statistic for a, b in ((0, 1), (0, 2), (1, 2))])
        expected = np.sqrt(3 * c / (1 + 2 * c)) if c > 0 else 0.0
        assert found.ceiling[k] == pytest.approx(expected, abs=1e-6)
    assert "its floor" in repr(found)
    assert "can be expected at most" in repr(found)


def test_ties_share_their_rank() -> None:
    rows = np.array([[3, 1, 3, 0], [1, 1, 1, 1], [1, np.nan, 2, 3]], np.float32)
    truth = np.tile(np.array([5, 2, 1, 1], np.float32), (3, 1))
    found = Comparison([], {"ISM": truth, "mine": rows}, {}, np.ones(3)).correlation("mine", ranks=True)
    assert found[0] == pytest.approx(np.corrcoef([4, 3, 1.5, 1.5], [3.5, 2, 3.5, 1])[0, 1])
    assert np.isnan(found[1:]).all()


def test_a_gain_without_p_has_a_title() -> None:
    found = compare_methods(network(), LETTERS, pruning=plrp.Pruning(p=None, sparsity_gain=1.0))
    assert "PLRP-λ gain=1" in found.per_base


MODEL = "from test_baselines import network\n\ndef build():\n    return network()\n"


def test_the_command_prints_a_table_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    Path("net.py").write_text(MODEL)
    write_fasta("seqs.fa", ["one", "two"], LETTERS)
    words = "genomics compare seqs.fa --model net.py:build --target 1 --out out.png"
    monkeypatch.setattr("plrp.cli.genomics_explain.READABLE", 10)
    assert main(words.split()) == 0
    said = capsys.readouterr().out
    assert "bases are small: --window 60-110 draws fewer" in said
    assert "mean over 2 sequences" in said
    assert "gradient × input" in said
    assert Path("out.png").stat().st_size > 10_000
    assert main([*words.split(), "-p", "0"]) == 2
    assert main(words.replace("seqs.fa", "none.fa").split()) == 2


# -- in the place of tangermeme's deep_lift_shap


def test_attribute_returns_what_explain_sequences_finds() -> None:
    model, x = network(), torch.from_numpy(encode(LETTERS))
    pruning = plrp.Pruning(p=0.2)
    expected = plrp.genomics.explain_sequences(model, x, target=1, pruning=pruning)
    model.train()
    found = attribute(
        model, x, target=1, batch_size=1, pruning=pruning, device="cpu", n_shuffles=5, random_state=0, verbose=False
    )
    assert model.training
    np.testing.assert_allclose(found, expected.relevance, atol=1e-6)
    assert found.dtype == torch.float32
    for option in ("return_references", "raw_outputs"):
        with pytest.raises(ValueError, match="There are no multipliers to return"):
            attribute(model, x, **{option: True})
    with pytest.raises(ValueError, match="1 rows for 2"):
        attribute(model, x, args=(torch.zeros(1, 3),))
    model.eval()
    torch.testing.assert_close(attribute(model, x.numpy(), target=1), attribute(model, x, target=1))
    with pytest.raises(ValueError, match="transpose its last two axes"):
        attribute(model, x.numpy().transpose(0, 2, 1), target=1)


def test_attribute_takes_more_inputs() -> None:
    class WithControl(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.output = nn.Conv1d(4, 6, 7), nn.Linear(6 + 3, 2)

        def forward(self, x: torch.Tensor, control: torch.Tensor) -> torch.Tensor:
            return self.output(torch.cat([torch.relu(self.conv(x)).mean(2), control], 1))

    torch.manual_seed(0)
    model, x, control = WithControl().eval(), torch.from_numpy(encode(LETTERS)), torch.randn(2, 3)
    found = attribute(model, x, args=(control,), target=1, batch_size=1)
    expected = plrp.explain(model, (x, control), target=1, composite="epsilon-gamma").relevance[0]
    torch.testing.assert_close(found, expected * x)


def test_a_pipeline_for_tangermeme_runs_with_the_import_changed() -> None:
    pytest.importorskip("tangermeme")
    from tangermeme.deep_lift_shap import deep_lift_shap as theirs
    from tangermeme.seqlet import recursive_seqlets
    from tangermeme.utils import random_one_hot

    model = network()
    x = random_one_hot((3, 4, 22), random_state=0).float()
    for deep_lift_shap in (theirs, attribute):
        for hypothetical in (False, True):
            scores = deep_lift_shap(
                model, x, target=1, n_shuffles=3, batch_size=4, hypothetical=hypothetical, device="cpu", random_state=0
            )
            assert scores.shape == x.shape
            assert scores.dtype == torch.float32
            assert scores.device.type == "cpu"
            assert hypothetical == bool((scores[x == 0] != 0).any())
        table = recursive_seqlets((scores * x).sum(1), min_seqlet_len=4, max_seqlet_len=10)
        assert {"start", "end"} <= set(table.columns)


def test_tangermemes_own_functions_take_attribute_as_theirs() -> None:
    """Marginalization, variant effects and ablation call the function they are given; packed sequences go in too."""
    pytest.importorskip("tangermeme")
    from tangermeme.ablate import ablate
    from tangermeme.deep_lift_shap import deep_lift_shap
    from tangermeme.marginalize import marginalize
    from tangermeme.utils import random_one_hot
    from tangermeme.variant_effect import substitution_effect

    names = list(inspect.signature(deep_lift_shap).parameters)
    assert list(inspect.signature(attribute).parameters)[: len(names)] == names
    model, x = network(), random_one_hot((3, 4, 22), random_state=0).float()
    inserted = x.clone()
    inserted[:, :, 9:13] = torch.from_numpy(encode(["ACGT"]))
    shared = {"func": attribute, "additional_func_kwargs": {"target": 1}, "device": "cpu"}
    before, after = marginalize(model, x, "ACGT", **shared)
    torch.testing.assert_close(before, attribute(model, x, target=1, device="cpu"))
    torch.testing.assert_close(after, attribute(model, inserted, target=1, device="cpu"))
    _, changed = substitution_effect(model, x, torch.tensor([[0, 5, 1], [1, 7, 2]]), **shared)
    assert changed.shape == x.shape
    assert ablate(model, x, 5, 9, n=2, **shared)[1].shape == (3, 2, 4, 22)
    utils = pytest.importorskip("tangermeme.utils")
    if hasattr(utils, "PackedSequence"):  # since tangermeme 1.6
        packed = utils.PackedSequence.from_one_hot(x)
        torch.testing.assert_close(attribute(model, packed, target=1, batch_size=2, device="cpu"), before)


def test_attribute_leaves_every_layer_in_its_mode() -> None:
    model = nn.Sequential(nn.Conv1d(4, 3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 1)).train()
    model[1].eval()  # frozen, as in fine-tuning
    before = [module.training for module in model.modules()]
    attribute(model, torch.eye(4)[:, torch.arange(10) % 4][None], device="cpu")
    assert [module.training for module in model.modules()] == before
