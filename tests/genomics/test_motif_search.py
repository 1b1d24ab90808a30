"""`plrp genomics motifs`: cut-offs by a null, agreement with known sites, and what a run has in common."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import plrp
from plrp.cli import main
from plrp.genomics import Seqlets, encode, explain_file, explain_sequences, read_motifs, simulate, write_fasta
from plrp.genomics.export import read_relevance
from plrp.genomics.motif_search import (
    Agreement,
    CutOff,
    Truth,
    _tail,
    above,
    cut_off,
    cut_offs,
    explain_as,
    explain_null,
    find_motifs,
    null_advice,
    run_settings,
    threshold_seqlets,
    verdict,
)
from plrp.genomics.motifs import Motif
from plrp.genomics.seqlets import Match, named_match
from plrp.genomics.sequences import Interval

SITE = "TGACTCAC"


class Detector(nn.Module):
    """Class 1: the best place of `SITE`, by its letters beyond five."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 1, len(SITE))
        self.output = nn.Linear(1, 2, bias=False)
        with torch.no_grad():
            self.conv.weight[:] = torch.from_numpy(encode(SITE))[None]
            self.conv.bias[:] = -5
            self.output.weight[:] = torch.tensor([[0.0], [1.0]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(torch.relu(self.conv(x)).amax(2))


def planted(count: int = 60) -> plrp.genomics.Simulated:
    return simulate(count, motifs=[encode(SITE)], task="presence", length=60, seed=2)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> plrp.genomics.Simulated:
    """A folder `out` in which planted sequences were explained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    Path("net.py").write_text("from test_motif_search import Detector as build\n")
    data = planted()
    data.save("sim")
    words = (
        "genomics explain sim/sequences.fa.gz --model net.py:build --target 1 -p 0.1 --no-match --part-size 7 --out out"
    )
    assert main([*words.split(), "--part-size", "7"]) == 0
    return data


def test_a_cut_off_is_the_least_strength_within_the_limit() -> None:
    rng = np.random.default_rng(0)
    for limit in (0.05, 0.2, 0.5):
        scores, null = rng.normal(1, 1, 300), rng.normal(0, 0.7, 200)
        found = cut_off(scores, 30, null, 25, limit)

        def rate(strength: float, scores=scores, null=null) -> float:
            return ((np.abs(null) >= strength).sum() / 25) / ((np.abs(scores) >= strength).sum() / 30)

        allowed = [s for s in np.abs(scores) if rate(s) <= limit]
        assert found.strength == pytest.approx(min(allowed))
        assert found.fdr == pytest.approx(rate(found.strength))
        assert found.fdr <= limit
    assert cut_off([1, 2], 1, [5, 5, 5], 1) == CutOff(float("inf"), 0, 0)
    assert cut_off([], 3, [], 3).observed == 0
    tail = cut_off(np.r_[np.ones(100), 9.0], 10, [9.5], 10, limit=0.05)
    assert tail.strength == 1  # one strong seqlet of the null does not outweigh a hundred


def test_every_class_has_its_own_cut_off() -> None:
    """Class 1 has scores ten times those of class 0: one cut-off for both would lose class 0."""
    rng = np.random.default_rng(1)
    size, count = np.array([1.0, 10.0]), 120
    classes = np.arange(count) % 2

    def batch(strength: float) -> tuple[Seqlets, np.ndarray]:
        rows = np.repeat(np.arange(count), 2)
        scores = np.tile([strength, 0.5], count) * size[classes[rows]] * rng.uniform(0.9, 1.1, 2 * count)
        return Seqlets(rows, np.zeros_like(rows), np.full_like(rows, 9), scores), classes

    run, null = batch(3.0), batch(1.0)
    cuts = cut_offs([run], [null])
    assert set(cuts) == {None, 0, 1}
    for name in (0, 1):
        here = np.abs(run[0].score[classes[run[0].sequence] == name])
        chance = null[0].score[classes[null[0].sequence] == name]
        assert cuts[name] == cut_off(here, count // 2, chance, count // 2)
    kept = above(*run, cuts)
    assert np.bincount(kept.sequence, minlength=count).tolist() == [1] * count
    assert np.bincount(classes[above(*run, {None: cuts[None]}).sequence]).tolist()[0] == 0
    assert set(cut_offs([run], [(null[0], np.zeros(count, np.int64))])) == {None}
    assert above(*run, {}) is run[0]


def test_agreement_counts_half_of_the_shorter() -> None:
    truth = Truth([Interval("a", 10, 20), Interval("a", 40, 50), Interval("b", 0, 10)])
    columns = np.array([[0, 15, 35], [0, 16, 30], [1, 3, 6], [2, 0, 10]]).T
    seqlets = Seqlets(*columns, np.ones(4))
    found = truth.agreement("mine", [(seqlets, ["a", "b", "c"])])
    assert (found.seqlets, found.precision, found.recall) == (4, 2 / 4, 2 / 3)
    named = Truth([Interval("a", 10, 20, "X"), Interval("a", 40, 50, "Y"), Interval("b", 0, 10, "X")])
    assert named.agreement("mine", [(seqlets, ["a", "b", "c"])]).by_motif == {"X": 1, "Y": 0}
    assert found.f1 == pytest.approx(2 * 0.5 * (2 / 3) / (0.5 + 2 / 3))


def test_the_verdict_names_the_better_one_and_the_lost_motif() -> None:
    used = Agreement("PLRP", 10, 0.9, 0.5, {"CTCF": 0.95, "Spi1": 0.05})
    cuts = [
        Agreement("LRP, cut at 0.5", 10, 0.9, 0.8, {"CTCF": 0.9, "Spi1": 0.7}, 0.5),
        Agreement("LRP, cut at 0.7", 10, 0.9, 0.2, {"CTCF": 0.3, "Spi1": 0.1}, 0.7),
    ]
    better, lost = verdict(used, cuts)
    assert better.startswith("Better here: LRP, cut at 0.5, with an F1 of 0.85. ")
    assert "The patterns found are those of PLRP, with 0.64." in better
    assert "a run without -p with --cut 0.5, without --model" in better
    assert lost == "5% of the Spi1 sites are found here, 70% by LRP, cut at 0.5."
    assert verdict(used, cuts[1:]) == [
        "Better here: PLRP, with an F1 of 0.64. The next best: LRP, cut at 0.7, with 0.33.",
    ]
    whole = Agreement("PLRP", 90, 0.9, 0.9, {}, 0.0)  # the run without its null
    assert verdict(used, [whole, *cuts])[0].endswith("Search this run without --model.")
    assert verdict(used, []) == []


def test_a_cut_on_lrp_is_relative_to_the_strongest_base() -> None:
    per_base = np.array([[0, 1, 1, 1, 1, 1, 0, 9, 9, 9, 9, 9], [5, 5, 5, 5, 5, 0, 0, 0, 0, 0, 0, 0]], np.float32)
    assert threshold_seqlets(per_base, 0.5).start.tolist() == [7, 0]
    assert threshold_seqlets(per_base, 0.05).start.tolist() == [1, 0]


def test_a_run_is_read_back_as_it_was(run: plrp.genomics.Simulated) -> None:
    batches, maps = zip(*read_relevance("out", batch=11), strict=True)
    assert max(map(len, batches)) == 11
    assert [name for one in batches for name in one.names] == run.names
    assert [text for one in batches for text in one.letters] == run.letters
    settings = run_settings("out")
    assert settings["pruning"] == plrp.Pruning(p=0.1)
    alone = explain_as(Detector().eval(), run.letters, settings)
    np.testing.assert_allclose(np.concatenate(maps), alone, atol=1e-6)


def test_sequences_of_several_lengths_and_one_base_batches(tmp_path: Path) -> None:
    letters = ["ACGTACGTTGCA", "TTGACTCACTTGACA", "ACGTACGTTGCT"]
    write_fasta(tmp_path / "s.fa", ["a", "b", "c"], letters)
    explain_file(tmp_path / "s.fa", Detector(), tmp_path / "out", target=1, match=False)
    found = {n: t for one, _ in read_relevance(tmp_path / "out") for n, t in zip(one.names, one.letters, strict=True)}
    assert found == dict(zip("abc", letters, strict=True))


def test_the_null_is_explained_for_the_classes_of_the_originals(run: plrp.genomics.Simulated) -> None:
    model = Detector().eval()
    with torch.no_grad():
        model.output.weight[0] = -1.0  # class 0 wins nowhere but where nothing is
    letters = run.letters[:8]
    (found,) = explain_null(model, [run.sequences[:8]], {"target": None, "pruning": None})
    classes = model(torch.from_numpy(encode(letters))).argmax(1).tolist()
    shuffled = plrp.genomics.dinucleotide_shuffle(letters)
    np.testing.assert_array_equal(found, explain_sequences(model, shuffled, target=classes).per_base())


def test_the_command_finds_the_planted_motif(run: plrp.genomics.Simulated, capsys: pytest.CaptureFixture[str]) -> None:
    words = "genomics motifs out --model net.py:build --truth sim/motifs.bed --no-match --out motifs"
    assert main(words.split()) == 0
    said = capsys.readouterr().out
    (found,) = read_motifs("motifs/patterns.meme")
    assert found.consensus == SITE
    assert read_motifs("motifs/patterns.jaspar")[0].consensus == SITE
    assert f"for_1: {SITE}" in said
    assert "LRP, cut at 0.5: precision" in said
    assert "PLRP-λ p=0.1, cut at 0.5: precision" in said
    page = Path("motifs/index.html").read_text()
    assert "false discovery rate" in page
    assert "Agreement with known sites" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    right = {(line.split("\t")[0]) for line in Path("motifs/seqlets.bed").read_text().splitlines()}
    assert right >= {run.names[i] for i in np.flatnonzero(run.labels)}
    assert "Better here: " in said
    assert "Better here: " in page
    assert main(words.replace("--out motifs", "--cut 0.5 --out cut").split()) == 0
    said = capsys.readouterr().out
    assert "PLRP-λ p=0.1, cut at 0.5, above the null: precision" in said
    assert "1 pattern;" in said
    # a null that is as strong as the run leaves nothing to believe
    assert main(words.replace("--out motifs", "--fdr 0 --sample 3 --out none").split()) == 0
    assert main(["genomics", "motifs", "sim", "--out", "x"]) == 2
    assert main(["genomics", "motifs", "out", "--truth", "none.bed", "--out", "x"]) == 2


def test_a_null_that_removes_nearly_all_is_told(
    run: plrp.genomics.Simulated, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shuffled sequences that are explained as strongly as the run: nothing is above them."""
    maps = [per_base for _, per_base in read_relevance("out")]
    monkeypatch.setattr("plrp.genomics.motif_search.explain_null", lambda *args, **options: maps)
    monkeypatch.setattr("plrp.genomics.motif_search.dinucleotide_shuffle", lambda letters, seed: letters)
    assert main("genomics motifs out --model net.py:build --no-match --out motifs".split()) == 0
    said = capsys.readouterr().out
    assert "patterns, 0 are more frequent than in the null (FDR 0.05)." in said
    sentence = (
        "The null removed every seqlet: shuffled sequences hold as much relevance. Search with --cut 0.3 and without "
        "--model."  # a looser limit would leave none either
    )
    assert sentence in said
    assert "No seqlet is above the null: seqlets.bed and hits.bed are empty." in said
    assert sentence in Path("motifs/index.html").read_text()
    assert null_advice(1000, 51, 0.2, lambda: 0, 0.0) == ""
    few = null_advice(5512, 4, 0.2, lambda: 812, 0.1)
    assert "removed 99.9% of the seqlets" in few
    assert few.endswith("Search without --model, or with --fdr 0.2, which leaves 812 of 5,512.")
    assert "--fdr" not in null_advice(5512, 4, 0.2, lambda: 551, 0.1)


def test_a_pattern_survives_a_null_that_is_as_strong(
    run: plrp.genomics.Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relevance of the null is stronger, but lies anywhere: no seqlet is above it, and the planted pattern is."""
    maps = []
    for _, per_base in read_relevance("out"):
        maps.append(np.zeros_like(per_base))
        maps[-1][:, 20:28] = 5.0
    monkeypatch.setattr("plrp.genomics.motif_search.explain_null", lambda *args, **options: maps)
    found = find_motifs("out", model=Detector(), match=False)
    assert found.believed == 0
    assert any(SITE in one.motif.consensus or "GTGAGTCA" in one.motif.consensus for one in found.patterns)
    assert f"{len(found.patterns)} are more frequent than in the null" in found.advice
    assert sum(len(hits) for hits, _ in found.hits) > 20


def test_the_tail_of_a_binomial_distribution() -> None:
    assert _tail(0, 7, 0.3) == pytest.approx(1)
    assert _tail(3, 3, 0.5) == pytest.approx(0.125)
    assert _tail(9, 10, 0.5) == pytest.approx(11 / 1024)


def test_a_flat_pattern_gets_no_name() -> None:
    flat = Motif("pattern", np.array([[0.4, 0.2, 0.2, 0.2]] * 8).T)
    sharp = Motif("pattern", np.array([[0.97, 0.01, 0.01, 0.01]] * 8).T)
    near = [Match(sharp, 1e-9, 1e-6, 0, 8, "+")]
    assert named_match(flat, near) is None
    assert named_match(sharp, near) is near[0]


def test_only_a_match_beyond_chance_gives_its_name(
    run: plrp.genomics.Simulated, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for e, said, name in ((0.05, "JUN (MA0488), E = 0.05", "JUN"), (1.56, "no match (at best E = 1.6)", ".")):
        found = [Match(Motif("JUN", np.full((4, 8), 0.25), "MA0488"), e / 800, e, 0, 8, "+")]
        monkeypatch.setattr(
            "plrp.genomics.motif_search.match_motifs", lambda queries, targets, found=found, **_: [found]
        )
        monkeypatch.setattr("plrp.genomics.motif_search.compile_tomtom", lambda show: None)
        assert main("genomics motifs out --out motifs".split()) == 0
        assert said in capsys.readouterr().out
        rows = [line.split("\t") for line in Path("motifs/patterns.tsv").read_text().splitlines()[1:]]
        assert {row[3] for row in rows} == {name}
        hits = {line.split("\t")[3] for line in Path("motifs/hits.bed").read_text().splitlines()}
        assert ("JUN" in hits) == (name == "JUN")
        page = Path("motifs/index.html").read_text()
        assert ("no match" in page) == (name == ".")
        assert "e+00" not in page


def test_patterns_are_matched_to_motifs_of_a_file(
    run: plrp.genomics.Simulated, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def match(queries: list[Motif], targets: list[Motif]) -> list[list[Match]]:
        asked.append([motif.name for motif in targets])
        return [[Match(targets[0], 1e-6, 1e-6, 0, 8, "+")]] * len(queries)

    monkeypatch.setattr("plrp.genomics.motif_search.match_motifs", match)
    monkeypatch.setattr("plrp.genomics.motif_search.compile_tomtom", lambda show: None)
    plrp.genomics.write_meme("my.meme", [Motif("mine", np.full((4, 8), 0.25))])
    assert main("genomics motifs out --database my.meme --out motifs".split()) == 0
    assert asked[0] == ["mine"]
    assert "The matches are motifs of my.meme, by TOMTOM" in Path("motifs/index.html").read_text()
    assert Path("motifs/patterns.tsv").read_text().splitlines()[1].split("\t")[3] == "mine"
    assert main("genomics motifs out --database my.meme --no-match --out x".split()) == 2
    assert main("genomics motifs out --database none.meme --out x".split()) == 2


LETTERS = ["ACGTTGACTCACRGTA", "TTGACTCACNACGTAC", "ACGTACYGACTCACGG"]


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "ism"},
        {"method": "gradient-input", "target": 1},
        {"target": "outputs[:, 1]", "reverse_complement": True, "reverse_target": "outputs[:, 0]"},
        {"target": 1, "hypothetical": True, "pooling": "sum", "ambiguous": "share", "composite": "gamma:0.5"},
        {"target": 1, "pruning": plrp.Pruning(p=0.3, p_negative=0.1, layers={"3": 0.2}, redistribution="M")},
        {"target": 1, "pruning": plrp.Pruning(p=None, sparsity_gain=1.0, unit="position")},
    ],
)
def test_the_null_is_explained_as_the_run_was(tmp_path: Path, settings: dict) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2)).eval()
    write_fasta(tmp_path / "s.fa", list("abc"), LETTERS)
    explain_file(tmp_path / "s.fa", model, tmp_path / "out", match=False, **settings)
    found = run_settings(tmp_path / "out")
    assert found["pruning"] == settings.get("pruning")
    ((_, per_base),) = read_relevance(tmp_path / "out")
    np.testing.assert_allclose(explain_as(model, LETTERS, found), per_base, atol=1e-6)


def test_a_run_of_a_stranger_runs_no_code(run: plrp.genomics.Simulated, capsys: pytest.CaptureFixture[str]) -> None:
    Path("evil.py").write_text(
        "from pathlib import Path\nPath('ran').touch()\ndef score(output):\n    return output[:, 1]\n"
    )
    stored = json.loads(Path("out/run.json").read_text())
    for name in ("target", "reverse_target"):
        entry = f"{Path('evil.py').resolve()}:score"
        Path("out/run.json").write_text(json.dumps({**stored, "target": 1, name: entry}))
        words = "genomics motifs out --no-match --sample 5 --out motifs"
        assert main(words.split()) == 0  # nothing is explained
        assert main([*words.split(), "--model", "net.py:build"]) == 2
        assert "would be run: if you trust it" in capsys.readouterr().err
        option = f"--{name.replace('_', '-')}"
        assert main([*words.split(), "--model", "net.py:build", option, "net.py:build"]) == 2
        assert "was explained with" in capsys.readouterr().err
        assert not Path("ran").exists()
        assert main([*words.split(), "--model", "net.py:build", option, "evil.py:score"]) == 0
        Path("ran").unlink()


def test_motifs_do_not_replace_the_files_of_a_run(
    run: plrp.genomics.Simulated, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path("out/seqlets.bed").read_bytes()
    assert main("genomics motifs out --no-match --out out/../out".split()) == 2
    assert "holds a run" in capsys.readouterr().err
    assert Path("out/seqlets.bed").read_bytes() == before
