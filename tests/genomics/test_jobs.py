"""Thousands of sequences with a user's own model: parts, restarts, shards, and the command line around them."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import plrp
from plrp.cli import main
from plrp.errors import UsageError
from plrp.genomics import SequenceCNN, SequenceError, encode, explain_file, explain_sequences, simulate, write_fasta
from plrp.genomics import jobs as jobs_module
from plrp.genomics.motifs import jaspar
from plrp.genomics.seqlets import Match, Seqlets

MODEL = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv1d(4, 5, 7), torch.nn.ReLU(), torch.nn.AdaptiveMaxPool1d(1), torch.nn.Flatten(),
        torch.nn.Linear(5, 2)
    )
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with 25 sequences of two lengths, a model file and its weights."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lengths = [40] * 15 + [30] * 10
    write_fasta("seqs.fa", [f"s{i}" for i in range(25)], ["".join(rng.choice(list("ACGTN"), n)) for n in lengths])
    Path("mymodel.py").write_text(MODEL)
    namespace: dict = {}
    exec(MODEL, namespace)
    model = namespace["build"]()
    torch.save({k: v + 0.1 for k, v in model.state_dict().items()}, "w.pt")
    return tmp_path


def network() -> torch.nn.Module:
    namespace: dict = {}
    exec(MODEL, namespace)
    model = namespace["build"]()
    model.load_state_dict(torch.load("w.pt"))
    return model.eval()


EXPLAIN = "genomics explain seqs.fa --model mymodel.py:build --weights w.pt -p 0.25 --no-match --part-size 4 --out out"


def test_scores_name_a_target_that_is_no_class(work: Path) -> None:
    assert main([*EXPLAIN.split(), "--target", "outputs[:, 0:2].mean()"]) == 0
    rows = (work / "out" / "scores.tsv").read_text().splitlines()[1:]
    assert {row.split("\t")[1] for row in rows} == {"outputs[:, 0:2].mean()"}


def test_the_users_own_model_from_the_command_line(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pandas as pd
    import pyarrow.parquet as pq

    assert main(EXPLAIN.split()) == 0
    said = capsys.readouterr()
    assert said.out == "25 sequences explained (7 of 7 parts done); results in out\n"  # no more when piped
    assert said.err == said.out
    scores = pd.read_csv(work / "out" / "scores.tsv", sep="\t")
    assert list(scores["name"]) == [f"s{i}" for i in range(25)]
    assert (scores["relevance"] / scores["score"] < 0).any(), "biases took more than the score: no reason for a remark"
    assert scores["remark"].isna().all()
    table = pq.read_table(work / "out" / "relevance.parquet").to_pandas()
    for name in ("s3", "s20"):
        letters = "".join(table[table["name"] == name]["base"])
        alone = explain_sequences(network(), [letters], pruning=plrp.Pruning(p=0.25)).per_base()[0]
        np.testing.assert_allclose(table[table["name"] == name]["relevance"], alone, rtol=1e-4, atol=1e-6)
        explained = scores[scores["name"] == name]
        assert float(explained["relevance"].iloc[0]) == pytest.approx(alone.sum(), rel=1e-3)
        outputs = network()(torch.from_numpy(encode([letters])))[0].detach()
        assert int(explained["target"].iloc[0]) == int(outputs.argmax())
        assert float(explained["score"].iloc[0]) == pytest.approx(float(outputs.max()), rel=1e-4)
    assert not (work / "out" / "attributions.npz").exists()  # two lengths make no array
    run = json.loads((work / "out" / "run.json").read_text())
    assert run["model"] == "mymodel.py:build"
    assert run["pruning"] == plrp.Pruning(p=0.25).to_dict()
    assert run["command"] == "genomics explain"


def test_a_log_of_both_streams_has_the_last_line_once(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("log").open("w") as log:
        monkeypatch.setattr(sys, "stdout", log)
        monkeypatch.setattr(sys, "stderr", log)
        assert main(EXPLAIN.split()) == 0
    assert Path("log").read_text() == "25 sequences explained (7 of 7 parts done); results in out\n"


def test_broken_arithmetic_is_counted_with_the_commands_own_options(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = np.array(["grown by pruning", "", "exploded", "vanished"])  # the last two are of 0.2.0, which judged

    def grown(*args: object, **options: object) -> object:
        attribution = attribute_by(*args, **options)
        return replace(attribution, problems=words[: len(attribution)])

    attribute_by = jobs_module.attribute_by
    monkeypatch.setattr(jobs_module, "attribute_by", grown)
    assert main([*EXPLAIN.split(), "--redistribution", "M"]) == 0
    remedy = "take --redistribution lambda or M-sign, or prune less (a smaller -p)"
    assert (
        f"plrp: the arithmetic broke in 7 of 25 sequences (scores.tsv says which): {remedy}" in capsys.readouterr().err
    )
    remarks = [line.rsplit("\t", 1)[1] for line in (work / "out" / "scores.tsv").read_text().splitlines()[1:]]
    assert sorted(remarks) == [""] * 18 + ["grown by pruning"] * 7


def test_a_score_of_0_is_remarked_and_nothing_is_said_of_it(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layers = "nn.Conv1d(4, 2, 3, bias=False), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()"
    Path("zero.py").write_text(f"from torch import nn\ndef build():\n    return nn.Sequential({layers})\n")
    Path("zero.fa").write_text(">N\n" + "N" * 30 + "\n>letters\n" + "ACGTTG" * 5 + "\n")
    command = "genomics explain zero.fa --model zero.py:build --target 1 --ambiguous zero --no-match --out zero"
    assert main(command.split()) == 0
    assert "arithmetic" not in capsys.readouterr().err
    lines = [line.split("\t") for line in Path("zero/scores.tsv").read_text().splitlines()[1:]]
    assert [line[-1] for line in lines] == ["the score is 0: there is nothing to hand down", ""]


@pytest.mark.parametrize("compiled", [False, True])
def test_it_is_said_before_motifs_are_compared_that_this_may_take_a_while(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], compiled: bool
) -> None:
    said_before: list[str] = []
    explained: list[int] = []

    def compiling(seqlets: Seqlets, *_: object) -> list[Match]:
        said_before.append(capsys.readouterr().err)
        explained.append(len(list((work / "out" / "parts").glob("*.npz"))))
        return [Match(jaspar("CTCF"), 0.5, 400.0, 0, 5, "+")] * len(seqlets)

    monkeypatch.setattr(jobs_module, "match_seqlets", compiling)
    monkeypatch.setattr(jobs_module, "tomtom_is_compiled", lambda: compiled)
    monkeypatch.setattr(jobs_module, "compile_tomtom", lambda show_progress: None)
    words = EXPLAIN.replace("--no-match ", "").split()
    assert main(words) == 0
    note = "seqlets are compared with known motifs (TOMTOM)"
    assert said_before[0] == (f"{note}\n" if compiled else f"{note}; this once, compiling it takes a minute or two\n")
    assert not any(said_before[1:])
    assert explained == [7] * len(said_before)  # a step of its own, after all parts were explained
    capsys.readouterr()
    assert main(words) == 0  # nothing left to do, nothing compiled
    assert note not in capsys.readouterr().err


def test_a_killed_run_goes_on_where_it_stopped(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explained: list[int] = []
    real = jobs_module.attribute_by

    def counting(method, model, onehot, **options):
        explained.append(len(onehot))
        if sum(explained) > 12 and not (work / "resumed").exists():
            raise KeyboardInterrupt
        return real(method, model, onehot, **options)

    monkeypatch.setattr(jobs_module, "attribute_by", counting)
    with pytest.raises(KeyboardInterrupt):
        explain_file("seqs.fa", network(), "out", part_size=4, match=False)
    done = {path.name: path.stat().st_mtime_ns for path in (work / "out" / "parts").iterdir()}
    assert len(done) == 3
    assert not (work / "out" / "relevance.parquet").exists()
    (work / "resumed").touch()
    explained.clear()
    outcome = explain_file("seqs.fa", network(), "out", part_size=4, match=False)
    assert outcome.complete
    assert sum(explained) == 25 - sum([4, 4, 2])  # ten of the short ones come first, in parts of 4, 4 and 2
    assert all((work / "out" / "parts" / name).stat().st_mtime_ns == time for name, time in done.items())
    whole = explain_file("seqs.fa", network(), "again", part_size=4, match=False)
    assert whole.complete
    assert (work / "out" / "relevance.parquet").read_bytes() == (work / "again" / "relevance.parquet").read_bytes()


def test_shards_share_a_folder_and_the_last_one_gathers(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(EXPLAIN.split()) == 0
    for shard in ("2/3", "1/3"):
        assert main([*EXPLAIN.replace("--out out", "--out shared").split(), "--shard", shard]) == 0
        assert "the last one gathers" in capsys.readouterr().out.splitlines()[-1]
        assert not (work / "shared" / "relevance.parquet").exists()
    assert main([*EXPLAIN.replace("--out out", "--out shared").split(), "--shard", "3/3"]) == 0
    for name in ("relevance.parquet", "seqlets.bed"):
        assert (work / "shared" / name).read_bytes() == (work / "out" / name).read_bytes()


def test_another_run_in_the_same_folder_is_refused(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(EXPLAIN.split()) == 0
    assert main(EXPLAIN.replace("0.25", "0.5").split()) == 2
    assert "out holds results of another run: pruning.p was 0.25 and is 0.5. Choose" in capsys.readouterr().err
    (work / "full").mkdir()
    (work / "full" / "thesis.tex").write_text("dear")
    assert main(EXPLAIN.replace("--out out", "--out full").split()) == 2
    assert "full holds other files (thesis.tex)" in capsys.readouterr().err
    assert [path.name for path in (work / "full").iterdir()] == ["thesis.tex"]


BAD = {
    "empty": (b"", "bad.fa, line 1: no sequences"),
    "duplicate": (b">a\nACGTACGTAC\n>a\nACGTACGTAC\n", "bad.fa, line 3: the name 'a' was used before"),
    "protein": (b">a\nMKLVFFQNGG\n", "bad.fa, line 2: 'L' in record 'a' is not a nucleotide"),
    "too short": (b">a\nACGTACGTAC\n>b\nACGT\n", "bad.fa, line 3, record 'b': its 4 bases do not fit the model"),
    "truncated": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4b", "bad.fa, line 1: the gzip file ends or breaks here"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_writes_nothing(work: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    content, message = BAD[case]
    Path("bad.fa").write_bytes(content)
    before = sorted(work.rglob("*"))
    assert main(EXPLAIN.replace("seqs.fa", "bad.fa").split()) == 2
    assert message in capsys.readouterr().err
    assert sorted(p for p in work.rglob("*") if "__pycache__" not in str(p)) == before


def test_windows_line_ends_give_the_same_result(work: Path) -> None:
    Path("windows.fa").write_bytes(Path("seqs.fa").read_bytes().replace(b"\n", b"\r\n"))
    for name in ("seqs", "windows"):
        explain_file(f"{name}.fa", network(), name, match=False)
    assert (work / "seqs" / "relevance.parquet").read_bytes() == (work / "windows" / "relevance.parquet").read_bytes()


def test_intervals_of_a_genome_give_a_bedgraph(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    write_fasta("genome.fa", ["chr1"], ["".join(rng.choice(list("ACGT"), 300))])
    Path("peaks.bed").write_text("chr1\t10\t30\nchr1\t25\t45\tp\t0\t-\n")
    words = EXPLAIN.replace("seqs.fa", "peaks.bed --genome genome.fa --width 20 --reverse-complement")
    assert main(words.split()) == 0
    assert (work / "out" / "relevance.bedgraph").read_text().count("chr1\t") > 5
    assert np.load(work / "out" / "attributions.npz")["arr_0"].shape == (2, 4, 20)
    assert np.load(work / "out" / "onehot.npz")["arr_0"].sum() == 40
    Path("peaks.bed").write_text("chr1\t10\t30\nchr1\t290\t310\n")
    assert main(words.replace("--out out", "--out no").split()) == 2
    assert "peaks.bed, line 2: chr1:290-310 reaches past the chromosome" in capsys.readouterr().err
    assert not (work / "no").exists()
    assert main(EXPLAIN.replace("seqs.fa", "peaks.bed").split()) == 2
    assert "intervals need a genome" in capsys.readouterr().err


def test_order_of_sequences_is_kept_in_the_arrays(work: Path) -> None:
    rng = np.random.default_rng(2)
    letters = ["".join(rng.choice(list("ACGT"), 24)) for _ in range(9)]
    write_fasta("same.fa", [f"n{i}" for i in range(9)], letters)
    explain_file("same.fa", network(), "out", part_size=2, match=False)
    assert np.array_equal(np.load("out/onehot.npz")["arr_0"], encode(letters))
    alone = explain_sequences(network(), letters)
    np.testing.assert_allclose(np.load("out/attributions.npz")["arr_0"], alone.relevance, rtol=1e-4, atol=1e-6)


def test_simulate_train_explain_and_logo_in_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main("genomics simulate --motifs CTCF SPI1 --count 60 --length 60 --number 1-2 --out sim".split()) == 0
    assert "label 1: Spi1 (30)" in capsys.readouterr().out
    assert main("genomics train sim --filters 4 --epochs 2 --out cnn.pt".split()) == 0
    assert "test accuracy" in capsys.readouterr().out
    for p in ("0", "0.25"):
        words = (
            f"genomics explain sim/sequences.fa.gz --model cnn.pt -p {p} --redistribution M-sign --no-match --out p{p}"
        )
        assert main(words.split()) == 0
    assert np.load("p0.25/attributions.npz")["arr_0"].shape == (60, 4, 60)
    words = "genomics logo p0 p0.25 --names sim1 sim2 --truth sim/motifs.bed --window 5-40 --out logo.svg"
    assert main(words.split()) == 0
    assert Path("logo.svg").read_text().startswith("<?xml")
    drawn: list[list[str]] = []
    monkeypatch.setattr("plrp.genomics.logo.logo_page", lambda page, **_: drawn.append(list(page[0][1])))
    assert main(words.split()) == 0
    Path("p0/run.json").unlink()
    assert main(words.split()) == 0
    assert drawn == [["truth", "LRP", "PLRP-M± p=0.25"], ["truth", "p0", "p0.25"]]
    assert main("genomics logo p0 --names nobody --out no.png".split()) == 2
    assert "has no sequence 'nobody'" in capsys.readouterr().err
    assert main("genomics logo sim --out no.png".split()) == 2
    assert not Path("no.png").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder in which nobody can write")
@pytest.mark.parametrize(
    "command",
    [EXPLAIN, "genomics motifs out --out out", "genomics variants a --genome b --width 9 --model c --out out"],
)
def test_a_folder_that_cannot_be_made_is_refused_first(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.replace("--out out", "--out /proc/none/here").split()) == 2
    assert "/proc/none/here cannot be written (" in capsys.readouterr().err


def test_an_unknown_option_points_to_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main("genomics logo out --out x.png --colour red".split())
    assert "unrecognized arguments: --colour red (`plrp genomics logo --help` lists" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", "simulate", "train", "explain", "logo"])
def test_every_command_shows_a_working_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The examples of --help are parsed by the parser they belong to: no option in them is made up."""
    from plrp.cli import build_parser

    with pytest.raises(SystemExit, match="0"):
        main(["genomics", *command.split(), "--help"])
    text = capsys.readouterr().out.replace("\\\n", " ").replace("$SLURM_ARRAY_TASK_ID", "3")
    examples = [line.split() for line in text.splitlines() if line.strip().startswith("plrp genomics")]
    assert examples or not command
    for words in examples:
        build_parser().parse_args(words[1:])


def test_labels_from_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = simulate(40, motifs=["CTCF", "SPI1"], length=40)
    write_fasta("a.fa", data.names, data.letters)
    assert main("genomics train a.fa --epochs 1 --filters 4 --out n.pt".split()) == 2
    assert "need labels" in capsys.readouterr().err
    assert main("genomics train nope --out n.pt".split()) == 2
    assert "nope does not exist" in capsys.readouterr().err
    Path("l.tsv").write_text(
        "name\tkind\n" + "".join(f"{n}\t{v}\n" for n, v in zip(data.names, data.labels, strict=True))
    )
    assert main("genomics train a.fa --labels l.tsv --column kind --epochs 1 --filters 4 --out n.pt".split()) == 0
    assert SequenceCNN.load("n.pt").settings["filters"] == 4
    Path("l.tsv").write_text("name\tkind\nsim0\tone\n")
    assert main("genomics train a.fa --labels l.tsv --epochs 1 --out m.pt".split()) == 2
    assert "l.tsv, line 2: the label must be a whole number" in capsys.readouterr().err
    assert not Path("m.pt").exists()


def test_models_that_do_not_fit_are_told_by_the_line_of_the_record(work: Path) -> None:
    with pytest.raises(SequenceError, match=r"seqs\.fa, line 31, record 's15': its 30 bases do not fit the model"):
        explain_file("seqs.fa", torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(160, 2)), "out")


def test_models_of_the_other_axes_and_too_short_sequences_are_told_apart(work: Path) -> None:
    class Transposed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv1d(x.transpose(1, 2), torch.ones(2, 4, 3)).mean(2)

    class Cropped(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv1d(x[:, :, 15:-15], torch.ones(2, 4, 1)).mean(2)

    with pytest.raises(UsageError, match=r"Your model reads \(batch, length, 4\): transpose in its forward"):
        explain_file("seqs.fa", Transposed(), "out")
    with pytest.raises(SequenceError, match=r"its 30 bases do not fit .* crop its ends\. .* pad them with N"):
        explain_file("seqs.fa", Cropped(), "out")
    assert not (work / "out").exists()


def test_a_log_says_how_far_a_part_is_what_is_resumed_and_what_is_replaced(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*args: object, **options: object) -> object:
        raise RuntimeError("stopped")

    real = jobs_module.attribute_by
    monkeypatch.setattr(jobs_module, "attribute_by", stopped)
    assert main(EXPLAIN.replace("-p 0.25", "--method ism").split()) == 1
    monkeypatch.setattr(jobs_module, "attribute_by", real)
    monkeypatch.setattr("plrp.progress.EVERY", 0)
    capsys.readouterr()
    assert main(f"{EXPLAIN} --batch-size 3".split()) == 0
    said = capsys.readouterr().err
    assert "out holds a run with other settings that was stopped before its first part" in said
    assert "explaining: 3 of 25" in said  # the first part has four
    assert "explaining: 25 of 25" in said
    part = next((work / "out" / "parts").iterdir())
    part.unlink()
    assert main(EXPLAIN.split()) == 0
    assert "resuming: 6 of 7 parts are there" in capsys.readouterr().err


def test_a_page_is_counted_by_maps(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bundle(*args: object, report: Callable[[int, int], None], **options: object) -> None:
        for done in range(3):
            report(done + 1, 3)

    monkeypatch.setattr("plrp.view.sequence_bundle", bundle)
    monkeypatch.setattr("plrp.view.Page", lambda bundles: SimpleNamespace(save=lambda path: None))
    monkeypatch.setattr("plrp.progress.EVERY", 0)
    assert main(f"{EXPLAIN} --html x.html --html-sequences 2".split()) == 0
    said = capsys.readouterr().err.splitlines()
    counted = said[said.index("results are in out; now the page") + 1 :][:6]
    assert re.fullmatch(r"the page, maps: 1 of 6, .* left, s0", counted[0])
    assert re.fullmatch(r"the page, maps: 4 of 6, .* left, s1", counted[3])
    assert counted[5] == "the page, maps: 6 of 6, s1"


@pytest.mark.slow
def test_matching_may_be_asked_for_later_and_resumes(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of its own: a run that was explained without it is not explained again, and what was matched stays."""
    options = {"part_size": 4, "show_progress": False}
    explain_file("seqs.fa", network(), "out", match=False, **options)
    parts = {path.name: path.stat().st_mtime_ns for path in (work / "out" / "parts").iterdir()}
    asked: list[int] = []

    def stopped_at_the_third(seqlets, onehot, per_base):
        asked.append(len(seqlets))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return [Match(jaspar("CTCF"), 1e-3, 1.0, 0, 10, "-")] * len(seqlets)

    monkeypatch.setattr(jobs_module, "match_seqlets", stopped_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        explain_file("seqs.fa", network(), "out", match=True, **options)
    stopped = len(asked)
    explain_file("seqs.fa", network(), "out", match=True, **options)
    assert {path.name: path.stat().st_mtime_ns for path in (work / "out" / "parts").iterdir()} == parts
    rows = [line.split("\t") for line in (work / "out" / "seqlets.bed").read_text().splitlines()]
    assert {row[3] for row in rows} == {"CTCF"}
    assert sum(asked) - asked[stopped - 1] == len(rows)


def test_seqlets_are_named_part_by_part_and_shards_agree(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matching belongs to the parts: gathering reads the names, and matches nothing itself."""
    asked: list[int] = []

    def quick(seqlets, onehot, per_base):  # stands in for TOMTOM, which takes a minute to compile
        asked.append(len(seqlets))
        return [Match(jaspar("CTCF"), 1e-3, 1.0, 0, 10, "-")] * len(seqlets)

    monkeypatch.setattr(jobs_module, "match_seqlets", quick)
    explain_file("seqs.fa", network(), "one", part_size=25)
    for shard in ((1, 2), (2, 2)):
        explain_file("seqs.fa", network(), "two", part_size=4, shard=shard)
    rows = [line.split("\t") for line in (work / "one" / "seqlets.bed").read_text().splitlines()]
    assert len(rows) == asked[0] + asked[1]
    assert {(row[3], row[5], row[7]) for row in rows} == {("CTCF", "-", "0.001")}
    assert (work / "one" / "seqlets.bed").read_bytes() == (work / "two" / "seqlets.bed").read_bytes()


def test_another_target_function_is_noticed_and_named(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, role in (("--target", "target"), ("--reverse-complement --reverse-target", "reverse target")):
        Path("mine.py").write_text("from weight import W\n\ndef score(output):\n    return output[:, 0] * W\n")
        Path("weight.py").write_text("W = 1.0\n")
        words = [*EXPLAIN.split(), *option.split(), "mine.py:score", "--out", f"out-{role[:3]}"]
        assert main(words) == 0
        assert main([*words[:-3], str(Path("mine.py").resolve()) + ":score", *words[-2:]]) == 0  # the same file
        capsys.readouterr()
        Path("weight.py").write_text("W = 2.0\n")
        assert main(words) == 2
        assert f"the code in weight.py ({role}) changed" in capsys.readouterr().err


def test_workers_find_target_functions_and_write_the_same_parts(work: Path) -> None:
    Path("mine.py").write_text("def score(output):\n    return output[:, 0]\n")
    here = jobs_module.Explaining(
        "seqs.fa",
        "mymodel.py:build",
        "out",
        weights="w.pt",
        genome=None,
        width=None,
        pruning=plrp.Pruning(p=0.1, layers=None),
        target="mine.py:score",
        reverse_target="mine.py:score",
        part_size=4,
        device=None,
    )
    data = json.loads(json.dumps(here.work().options))
    assert data["target"] == data["reverse_target"] == f"{work.resolve() / 'mine.py'}:score"
    (work / "elsewhere").mkdir()
    os.chdir(work / "elsewhere")
    assert jobs_module.Explaining(**data).key == here.key
    os.chdir(work)
    inside = here.work(str(work)).options
    assert inside["target"] == inside["reverse_target"] == "mine.py:score"


@pytest.mark.parametrize(
    "options",
    [
        "-p 0.1",
        "--sparsity-gain 1",
        "--unit position",
        "--redistribution M",
        "--composite epsilon",
        "--reverse-target 1",
    ],
)
def test_options_of_lrp_are_refused_with_other_methods(
    work: Path, options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "genomics explain seqs.fa --model mymodel.py:build --weights w.pt --method ism --no-match --out out"
    assert main([*words.split(), *options.split()]) == 2
    assert options.split()[0] in capsys.readouterr().err
    assert not Path("out").exists()


def test_a_sparsity_gain_prunes_without_p(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "genomics explain seqs.fa --model mymodel.py:build --weights w.pt --no-match --sparsity-gain 1 --out out"
    assert main(words.split()) == 0
    table = pytest.importorskip("pyarrow.parquet").read_table("out/relevance.parquet").to_pandas()
    rows = table[table["name"] == "s3"]
    letters = ["".join(rows["base"])]
    pruned, plain = (
        explain_sequences(network(), letters, pruning=pruning).per_base()[0]
        for pruning in (plrp.Pruning(p=None, sparsity_gain=1.0), None)
    )
    np.testing.assert_allclose(rows["relevance"], pruned, rtol=1e-4, atol=1e-6)
    assert np.abs(pruned - plain).max() > 1e-3 * np.abs(plain).max()
    assert main([*words.split(), "-p", "0"]) == 2
    assert "leave -p out" in capsys.readouterr().err
