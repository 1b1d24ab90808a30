"""Settings tuned to one's own model: the better ones are recovered, and reported on samples that did not choose."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import plrp
from plrp import metrics, references
from plrp.cli import main
from plrp.concepts.numbered_inputs import NumberedInputs
from plrp.experiments import Candidate, Tuned
from plrp.experiments.tuning import Tuning, named_inputs
from plrp.genomics.sequences import write_fasta

EPSILON, FLAT = Candidate("epsilon"), Candidate("epsilon-plus-flat")
TWO = [FLAT, EPSILON]


def planted() -> nn.Module:
    """A network that adds up five of 49 tiles of 2 × 2 pixels, and sees nothing else."""
    torch.manual_seed(0)
    tiles = torch.zeros(7, 7)
    tiles[[1, 2, 4, 5, 5], [3, 5, 1, 2, 4]] = torch.tensor([3.0, -2.0, 2.5, -1.5, 2.0])
    seen = tiles.repeat_interleave(2, 0).repeat_interleave(2, 1) * torch.randn(14, 14)
    model = nn.Sequential(nn.Flatten(), nn.Linear(196, 4), nn.ReLU(), nn.Linear(4, 1, bias=False)).eval()
    with torch.no_grad():
        model[1].weight.copy_(seen.flatten() * (1 + 0.3 * torch.randn(4, 196)))
        model[1].bias.fill_(30)
        model[3].weight.fill_(1)
    return model


def pictures(count: int = 9) -> Tensor:
    return torch.randn(count, 1, 14, 14, generator=torch.Generator().manual_seed(1))


def tuned(**options: Any) -> Tuned:
    how: dict[str, Any] = {"candidates": TWO, "show_progress": False, **options}
    return plrp.tune(planted(), pictures(), **how)


@pytest.fixture(scope="module")
def result() -> Tuned:
    return tuned()


def test_the_better_of_two_settings_is_chosen_and_explain_takes_it(result: Tuned) -> None:
    assert result.candidates[result.chosen] is EPSILON
    assert dict(result) == {"composite": "epsilon", "pruning": None}
    rows = result.table()
    assert rows[1]["difference_low"] > 0.1
    assert rows[1]["agreement"] > 0.8
    explained = plrp.explain(planted(), pictures(2), **result)
    torch.testing.assert_close(explained.relevance, plrp.explain(planted(), pictures(2), composite="epsilon").relevance)


def test_the_numbers_are_those_of_the_test_of_each_map(result: Tuned) -> None:
    model, x = planted(), pictures()
    for n, candidate in enumerate(TWO):
        explanation = plrp.explain(model, x, composite=candidate.composite)
        verdict = explanation.test(show_progress=False)
        for sample in range(len(x)):
            own, drops = verdict.relevance[sample].expand(2, -1), verdict.drops[sample]
            expected = (metrics.spearman(own, drops) + metrics.pearson(own, drops)) / 2
            np.testing.assert_allclose(result.agreement[sample, n], expected.nan_to_num(0), atol=1e-9)
            assert result.gini[sample, n] == pytest.approx(
                float(metrics.gini(explanation.relevance[[sample]])), abs=1e-6
            )
        if n in result.finalists:
            gains = result.gains[:, result.finalists.index(n)]
            np.testing.assert_allclose(gains, verdict.gain, rtol=1e-4, atol=1e-5)


def test_one_half_chooses_and_the_other_reports(result: Tuned) -> None:
    assert sorted([*result.choosing, *result.reporting]) == list(range(9))
    assert len(result.choosing) == 4
    half = result.agreement[result.reporting].mean(2)
    for n, row in enumerate(result.table()):
        assert row["agreement"] == pytest.approx(half[:, n].mean())
        assert row["difference"] == pytest.approx((half[:, n] - half[:, 0]).mean())
        assert row["agreement_low"] <= row["agreement"] <= row["agreement_high"]


def made(agreement: Sequence[float], gini: Sequence[float], keep: float = 0.05, spread: float = 0.0) -> Tuned:
    """A result of 40 samples whose candidates have these means."""
    noise = spread * np.random.default_rng(0).normal(size=(40, len(agreement), 1))
    halves = {"choosing": np.arange(20), "reporting": np.arange(20, 40)}
    values = np.array(agreement)[None, :, None] + noise + np.zeros((40, len(agreement), 2))
    own = np.ones((len(agreement), 2), bool)
    sparsity = np.tile(np.array(gini), (40, 1))
    candidates = tuple(Candidate(pruning=plrp.Pruning(0.01 * n) if n else None) for n in range(len(agreement)))
    return Tuned(candidates, values, own, sparsity, np.ones(40), **halves, keep=keep, names=("blur", "grey"))


@pytest.mark.parametrize(
    ("agreement", "keep", "spread", "chosen"),
    [
        ((0.6, 0.58, 0.5), 0.05, 0.0, 1),  # the sparsest within keep
        ((0.6, 0.58, 0.5), 0.2, 0.0, 2),
        ((0.6, 0.58, 0.5), 0.0, 0.0, 0),
        ((0.6, 0.59, 0.5), 0.05, 0.5, 0),  # the loss may be larger than keep: nobody knows
    ],
)
def test_the_sparsest_that_surely_loses_little_is_chosen(
    agreement: Sequence[float], keep: float, spread: float, chosen: int
) -> None:
    result = made(agreement, (0.5, 0.8, 0.9), keep, spread)
    assert result.best == 0
    assert result.chosen == chosen


def test_a_reference_is_no_judge_of_its_own_map() -> None:
    candidates = [
        Candidate("epsilon"),
        Candidate("rescale", reference="blur:2"),
        Candidate("rescale", reference="zeros"),
    ]
    result = tuned(candidates=candidates)
    assert result.names[0].startswith("blur")
    assert result.independent.tolist() == [[True, True], [False, True], [True, True]]
    np.testing.assert_array_equal(result._of(1), result.agreement[:, 1, 1])
    np.testing.assert_allclose(result.difference(1, 0), result.agreement[:, 1, 1] - result.agreement[:, 0, 1])


def test_references_that_print_alike_are_told_apart() -> None:
    """torch prints the corners of a large tensor alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(1600, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    x, zeros = torch.randn(8, 1, 40, 40), torch.zeros(1, 1, 40, 40)
    other = zeros.clone()
    other[..., 10:30, 10:30] = 1
    assert str(zeros) == str(other)
    both = [Candidate("rescale", reference=one) for one in (zeros, other)]
    result = plrp.tune(model, x, both, show_progress=False)
    for n, one in enumerate((zeros, other)):
        expected = [float(metrics.gini(plrp.explain(model, x[[k]], reference=one).relevance)) for k in range(8)]
        np.testing.assert_allclose(result.gini[:, n], expected, atol=1e-6)
    assert both[0].name != both[1].name


def test_a_run_with_other_rows_is_not_resumed(tmp_path: Path) -> None:
    """The rows of a table's replacements decide the answers."""
    torch.manual_seed(0)
    model, rows = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), torch.randn(10, 6)
    how: dict[str, Any] = {"candidates": [Candidate("epsilon")], "show_progress": False, "out": tmp_path}
    plrp.tune(model, rows, **how)
    with pytest.raises(ValueError, match="holds results of another run"):
        plrp.tune(model, rows, rows=torch.randn(5, 6), **how)


def test_candidates_that_the_model_refuses_are_named() -> None:
    said: list[str] = []
    layers = [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(200, 2)]
    model = nn.Sequential(*layers).eval()
    box = Candidate("epsilon-alpha2-beta1")
    result = plrp.tune(model, pictures(8), [EPSILON, box], show_progress=False, say=said.append)
    assert result.candidates == (EPSILON,)
    assert list(result.refused) == [box.name]
    assert any(line.startswith(f"left out: {box.name}") for line in said)
    assert f"Left out: {box.name}" in repr(result)


def test_a_stored_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: Tuned) -> None:
    measure, done = Tuning.measure, []

    def dying(self: Tuning, number: int) -> Any:
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(number)
        return measure(self, number)

    with monkeypatch.context() as patched:
        patched.setattr(Tuning, "measure", dying)
        with pytest.raises(KeyboardInterrupt):
            tuned(out=tmp_path)
    resumed = tuned(out=tmp_path)
    np.testing.assert_array_equal(resumed.agreement, result.agreement)
    np.testing.assert_array_equal(resumed.gains, result.gains)
    monkeypatch.setattr(Tuning, "measure", None)  # nothing is measured again
    again = tuned(out=tmp_path)
    np.testing.assert_array_equal(again.agreement, result.agreement)
    assert [path.name for path in tmp_path.glob("flips*")] == ["flips-1-0"]


def test_the_cost_is_said_beforehand_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    asked: list[int] = []
    output = metrics.Questions.output

    def counting(self: metrics.Questions, inputs: Tensor) -> Any:
        asked.append(len(inputs))
        return output(self, inputs)

    monkeypatch.setattr(metrics.Questions, "output", counting)
    candidates = [Candidate("epsilon", plrp.Pruning(p)) for p in (0.1, 0.2, 0.3, 0.4, 0.5)] + TWO
    result = tuned(candidates=candidates, say=said.append)
    assert "9 samples: for each at most 242 forward passes" in said[0]
    assert 0 in result.finalists, "the default's gain, to compare with"
    assert sum(asked) <= 9 * (128 + (len(result.finalists) - 1) * 28 + 2) <= 9 * 242


def test_gains_have_intervals(result: Tuned) -> None:
    row, gains = result.table()[1], result.gains[result.reporting]
    assert row["gain"] == pytest.approx(gains[:, result.finalists.index(1)].mean())
    apart = gains[:, result.finalists.index(1)] - gains[:, result.finalists.index(0)]
    assert row["gain_difference"] == pytest.approx(apart.mean())
    assert row["gain_difference_low"] <= row["gain_difference"] <= row["gain_difference_high"]
    assert len(result.figure().axes[1].containers) == len(result.finalists)


def test_p_may_be_chosen_for_each_sample() -> None:
    """Candidates by choose_p, beside fixed p."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3)
    model, auto = nn.Sequential(*layers).eval(), Candidate("epsilon", plrp.Pruning("auto"))
    result = plrp.tune(model, pictures(8), [EPSILON, auto], show_progress=False)
    assert auto.name == "epsilon, PLRP-λ, p = auto"
    for sample in (0, 5):
        x = pictures(8)[[sample]]
        p = float(plrp.choose_p(plrp.trace(model, x), composite="epsilon"))
        alone = plrp.explain(model, x, composite="epsilon", pruning=plrp.Pruning(p))
        assert result.gini[sample, 1] == pytest.approx(float(metrics.gini(alone.relevance)), abs=1e-6)


def test_tables_are_replaced_by_their_own_rows() -> None:
    torch.manual_seed(0)
    model, rows = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), torch.randn(10, 6)
    result = plrp.tune(model, rows, show_progress=False)
    assert len(result.candidates) + len(result.refused) == 12
    assert np.isfinite(result.agreement).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": pictures(7)}, "tune needs 8 samples or more"),
        ({"keep": 1.5}, "keep=1.5: the agreement that may be lost"),
        ({"budget": 20}, "budget=20 is too small"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(196, 2)).requires_grad_(False)}, "ignores this input"),
        ({"candidates": [Candidate("epsilon-beta")]}, "No candidate can explain this model"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(options: dict[str, Any], words: str) -> None:
    options = {"candidates": TWO, "data": pictures(8), "model": planted(), **options}
    model, data = options.pop("model"), options.pop("data")
    if "ignores" in words:
        model[1].weight.zero_()
    with pytest.raises(ValueError, match=words):
        plrp.tune(model, data, show_progress=False, **options)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


def rows(count: int = 8) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(2))


def tuned_rows(candidates: Sequence[Any], x: Tensor | None = None, **options: Any) -> Tuned:
    return plrp.tune(small(), rows() if x is None else x, candidates, show_progress=False, **options)


def test_references_of_other_data_are_told_apart(tmp_path: Path) -> None:
    """Of drawn samples and means the name tells neither the data nor the seed."""
    a, b = rows(30)[10:20], rows(30)[20:]
    drawn = [references.samples(a, 4), references.samples(b, 4), references.samples(a, 4, seed=1)]
    for several in (drawn, [references.mean(a), references.mean(b)]):
        result = tuned_rows([Candidate("rescale", reference=one) for one in several])
        for n, one in enumerate(several):
            explained = [plrp.explain(small(), rows()[[k]], reference=one).relevance for k in range(8)]
            expected = [float(metrics.gini(one)) for one in explained]
            np.testing.assert_allclose(result.gini[:, n], expected, atol=1e-6)
    tuned_rows([Candidate("rescale", reference=drawn[0])], out=tmp_path)
    tuned_rows([Candidate("rescale", reference=references.samples(a, 4))], out=tmp_path)
    for other in drawn[1:]:
        with pytest.raises(ValueError, match="holds results of another run"):
            tuned_rows([Candidate("rescale", reference=other)], out=tmp_path)


def test_targets_that_print_alike_are_told_apart(tmp_path: Path) -> None:
    target = torch.zeros(1200, dtype=torch.long)
    other = target.clone()
    other[600] = 1
    assert repr(target) == repr(other)
    model, x = small(), rows(1200)
    keys = [
        Tuning(model, NumberedInputs(x), tmp_path, candidates=[EPSILON], target=one, rows=x).key
        for one in (target, target.clone(), other)
    ]
    assert keys[0] == keys[1] != keys[2]
    with pytest.raises(TypeError, match="needs a target that can be compared"):
        tuned_rows([EPSILON], target=lambda output: output[:, 0], out=tmp_path)
    tuned_rows([EPSILON], target=lambda output: output[:, 0])


def test_the_printed_differences_name_their_candidate() -> None:
    result = tuned_rows([Candidate("rescale"), EPSILON, FLAT])
    assert len(result.refused) == 1
    assert f"differs from that of {EPSILON.name} by" in repr(result)
    assert "default" not in repr(result)


class LogOfSize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs().log()


@pytest.mark.parametrize("several", [True, False])
def test_a_model_that_only_a_reference_explains_is_tuned(several: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 8), LogOfSize(), nn.Linear(8, 2)).eval()
    with pytest.raises(plrp.UnsupportedOperation):
        plrp.explain(model, rows())
    candidates = [Candidate("rescale", reference="zeros"), EPSILON] if several else None
    result = plrp.tune(model, rows(), candidates, show_progress=False)
    assert {one.reference for one in result.candidates} == {"zeros"}
    assert EPSILON.name in result.refused
    assert np.isfinite(result.agreement).all()


@pytest.mark.parametrize("place", [0, 5])
def test_a_sample_that_equals_its_reference_is_left_out_and_counted(place: int) -> None:
    x = rows(12)
    x[place] = 0
    against = Candidate("rescale", reference="zeros")
    result = tuned_rows([EPSILON, against], x)
    missing = np.arange(12) == place
    for numbers in (result.agreement[:, 1, 0], result.gini[:, 1], result.gains[:, result.finalists.index(1)]):
        np.testing.assert_array_equal(np.isnan(numbers), missing)
    assert np.isfinite(result.agreement[:, 0]).all()
    half = [n for n in result.reporting if n != place]
    row = result.table()[1]
    assert row["agreement"] == pytest.approx(result._of(1)[half].mean())
    assert row["gini"] == pytest.approx(result.gini[half, 1].mean())
    assert f"Left out of {against.name}: samples that equal the reference: 1" in repr(result)
    alone = tuned_rows([against], x)
    np.testing.assert_array_equal(alone.agreement[:, 0], result.agreement[:, 1])
    with pytest.raises(ValueError, match="No candidate can explain this model: every sample equals its reference"):
        tuned_rows([Candidate("rescale", reference=x[[1]])], x[[1] * 8])


def test_settings_without_a_name_are_not_saved(tmp_path: Path) -> None:
    own = plrp.composites.composite("epsilon").with_layers({"0": plrp.rules.Epsilon(0.1)})
    assert "\n" not in Candidate(own).name
    for candidate, words in (
        (Candidate(own), "composite"),
        (Candidate("rescale", reference=torch.zeros(1, 6)), "reference"),
        (Candidate("epsilon", plrp.Pruning(0.1, conserve=False)), "conserve"),
    ):
        with pytest.raises(ValueError, match=f"no name for the {words} of"):
            tuned_rows([candidate]).save(tmp_path / "tuned.toml")
    assert not (tmp_path / "tuned.toml").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"part_size": 0}, "part_size=0: a whole number from 1"),
        ({"candidates": ["epsilon"]}, "candidates=.'epsilon'.: give plrp.experiments.Candidate"),
        ({"keep": "a"}, "keep='a': the agreement that may be lost"),
        ({"target": [0, 1, 0]}, "shape .3,. for a batch of 8: give one class per sample"),
        ({"target": plrp.targets.contrast([0, 1, 0], 1)}, "3.* for a batch of 8"),
    ],
)
def test_bad_options_are_refused_before_any_work(
    options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tuning, "_traced", None)
    with pytest.raises((TypeError, ValueError), match=words):
        tuned_rows(**{"candidates": [EPSILON], **options})


# The command line

NETWORK = """
import torch
from torch import nn
from plrp.models import Preprocessing

preprocessing = Preprocessing(resize=20, crop=16)


def photographs():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 3)
    ).eval()


def sequences():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(4, 6, 5), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(6, 2)
    ).eval()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NETWORK)
    (tmp_path / "photos").mkdir()
    random = np.random.default_rng(0)
    for number in range(8):
        pixels = random.integers(0, 255, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((24, 24)).save(tmp_path / "photos" / f"{number}.png")
    letters = ["".join(random.choice(list("ACGT"), 30 + number)) for number in range(8)]
    write_fasta(tmp_path / "seqs.fa", [f"s{n}" for n in range(8)], letters)
    return tmp_path


@pytest.mark.slow
def test_photographs_are_tuned_and_explained_by_the_result(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "photos", "--model", "net.py:photographs"]) == 0
    said = capsys.readouterr()
    assert "Chosen: " in said.out
    assert "8 samples: for each at most 242 forward passes" in said.err
    assert (folder / "tuned" / "tuned.png").read_bytes().startswith(b"\x89PNG")
    assert len((folder / "tuned" / "candidates.csv").read_text().splitlines()) == 13
    (folder / "own.toml").write_text('composite = "epsilon-gamma"\np = 0.3\nredistribution = "M-sign"\n')
    words = ["explain", "photos/0.png", "--model", "net.py:photographs", "--dpi", "40", "-o"]
    for options, variant in (
        (["--settings", "own.toml"], "PLRP-M±, p = 0.3"),
        (["-p", "0.1", "--settings", "own.toml"], "PLRP-M±, p = 0.1"),
    ):
        assert main([*words, "x.png", *options]) == 0
        assert variant in capsys.readouterr().out
    assert main([*words, "y.png", "--settings", "tuned/tuned.toml"]) == 0
    (folder / "own.toml").write_text('p = "auto"\n')
    assert main([*words, "a.png", "--settings", "own.toml"]) == 0
    assert "PLRP-λ, p = 0" in capsys.readouterr().out
    (folder / "own.toml").write_text("p = 3\n")
    with pytest.raises(SystemExit):
        main([*words, "z.png", "--settings", "own.toml"])
    assert "0 ≤ p < 1, not 3" in capsys.readouterr().err
    (folder / "own.toml").write_text("colour = 3\n")
    with pytest.raises(SystemExit):
        main([*words, "z.png", "--settings", "own.toml"])
    assert "this command has no setting 'colour'" in capsys.readouterr().err


def test_texts_are_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A text in each line; special tokens are no parts, and the mask token is the reference."""
    small_models = pytest.importorskip("small_models")
    monkeypatch.chdir(tmp_path)
    tokenizer = small_models.word_tokenizer()
    for place, write in (("bert", small_models.built("bert", len(tokenizer))), ("bert", tokenizer)):
        write.save_pretrained(tmp_path / place)
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(small_models.WORDS, 5 + n % 3)) for n in range(8)]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    model, inputs = named_inputs("bert", None, "texts.txt")
    candidates = [Candidate("attnlrp"), Candidate("rescale", reference="mask")]
    result = plrp.tune(model, inputs, candidates, show_progress=False)
    assert result.independent.tolist() == [[True, True], [False, True]]
    for sample in (0, 3):
        verdict = plrp.text.explain(model, tokenizer, texts[sample]).test()
        own, drops = verdict.relevance[0].expand(2, -1), verdict.drops[0]
        expected = (metrics.spearman(own, drops) + metrics.pearson(own, drops)) / 2
        np.testing.assert_allclose(result.agreement[sample, 0], expected, atol=1e-5)
    result.save("tuned.toml")
    assert main(["text", texts[0], "--model", "bert", "--settings", "tuned.toml", "-q"]) == 0
    (tmp_path / "texts.txt").write_text("\n".join(texts[:7]) + "\n\n")
    assert main(["tune", "texts.txt", "--model", "bert"]) == 2
    assert "there are 7" in capsys.readouterr().err


def test_sequences_of_different_lengths_are_tuned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "seqs.fa", "--model", "net.py:sequences", "--out", "dna", "-q"]) == 0
    assert capsys.readouterr().out == ""
    settings = ["--settings", "dna/tuned.toml"]
    assert (
        main(["genomics", "explain", "seqs.fa", "--model", "net.py:sequences", "--out", "run", "--no-match", *settings])
        == 0
    )
    assert main(["tune", "seqs.fa"]) == 2
    assert "name its network" in capsys.readouterr().err
    assert main(["tune", "none.fa", "--model", "net.py:sequences"]) == 2
    assert "none.fa does not exist" in capsys.readouterr().err


@pytest.mark.slow
def test_workers_measure_the_same(folder: Path) -> None:
    words = ["tune", "seqs.fa", "--model", "net.py:sequences", "-q", "--part-size", "2"]
    assert main([*words, "--out", "one"]) == 0
    assert main([*words, "--out", "two", "--workers", "2"]) == 0

    def numbers(run: str) -> list[list[str]]:
        with (folder / run / "candidates.csv").open(newline="") as stream:
            return [row[2:8] for row in csv.reader(stream)][1:]

    np.testing.assert_allclose(np.array(numbers("one"), float), np.array(numbers("two"), float), atol=1e-6)
