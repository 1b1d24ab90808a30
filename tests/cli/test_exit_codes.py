"""Every command ends with 2 where it was given what cannot be used, and writes nothing; with 1 where work failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from plrp import cli

MODEL = """
import torch

def sequences():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv1d(4, 5, 7), torch.nn.ReLU(), torch.nn.AdaptiveMaxPool1d(1),
                               torch.nn.Flatten(), torch.nn.Linear(5, 3)).eval()

def pictures():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                               torch.nn.Linear(4 * 6 * 6, 3)).eval()

class Two(torch.nn.Module):
    def forward(self, x):
        return x[:, 0], x[:, :2, 0].relu()

class Unruly(torch.nn.Module):
    def forward(self, x):
        return x.cumprod(1).flatten(1)
"""
SWEEP = """
name = "small"
p = [0, 0.3]
[data]
kind = "arrays"
root = "data.npz"
[model]
name = "net.py:pictures"
[metrics.gini]
"""
GENOMICS = "genomics explain seqs.fa --model net.py:sequences --no-match --out out"
WRONG = {
    "explain": [
        "explain none.png --model net.py:pictures",
        "explain photo.png --model net.py:pictures -p 2",
        "explain photo.png --model net.py:pictures -p nothing",
        "explain photo.png --model none.py:pictures",
        "explain photo.png --model net.py:pictures --weights none.pt",
        "explain photo.png --model net.py:pictures --composite none",
        "explain photo.png --model net.py:pictures --device toaster",
    ],
    "genomics explain": [
        f"{GENOMICS} -p 2",
        f"{GENOMICS} -p nothing",
        f"{GENOMICS} --sparsity-gain 0",
        f"{GENOMICS} --composite none",
        f"{GENOMICS} --device toaster",
        f"{GENOMICS} --target 3",
        f"{GENOMICS} --target 0,1",
        f"{GENOMICS} --target 0,1 --reverse-complement",
        f"{GENOMICS} --part-size 0",
        f"{GENOMICS} --batch-size 0",
        f"{GENOMICS} --weights none.pt",
        f"{GENOMICS} --workers 2",
        GENOMICS.replace("sequences", "Two"),
        GENOMICS.replace("net.py", "none.py"),
        GENOMICS.replace("net.py:sequences", "none.pt"),
        GENOMICS.replace("seqs.fa", "none.fa"),
        GENOMICS.replace("seqs.fa", "none.npz"),
        GENOMICS.replace("seqs.fa", "folder"),
        GENOMICS.replace("--out out", "--out seqs.fa"),
        GENOMICS.replace("--out out", "--out folder"),
    ],
    "genomics": [
        "genomics simulate --count 0 --out out",
        "genomics simulate --motifs nothing --out out",
        "genomics simulate --task and --motifs CTCF --out out",
        "genomics simulate --count 1 --out folder",
        "genomics train none.fa --out out",
        "genomics train seqs.fa --out out",
        "genomics train seqs.fa --labels none.tsv --out out",
        "genomics logo none --out out.png",
        "genomics compare seqs.fa --model net.py:sequences --out out",
        "genomics compare seqs.fa --model net.py:sequences --out out.html",
        "genomics logo folder --out out",
        "genomics compare seqs.fa --model net.py:Two --out out.png",
        "genomics variants calls.vcf --genome seqs.fa --model net.py:Two --width 9 --out out",
        "genomics variants calls.vcf --genome seqs.fa --model net.py:sequences --width 5 --out out",
    ],
    "sweep": [
        "sweep none.toml --out out",
        "sweep none --out out",
        "sweep sweep.toml --out out --set p=[2]",
        "sweep sweep.toml --out out --set p=2",
        "sweep sweep.toml --out out --set composite=none",
        "sweep sweep.toml --out out --set metrics.none.p=[0]",
        "sweep sweep.toml --out out --set model.name=none.py:build",
        "sweep sweep.toml --out out --set data.root=none.npz",
        "sweep sweep.toml --out out --weights none.pt",
        "sweep sweep.toml --out out --device toaster",
        "sweep sweep.toml --out out --shard 3/2",
        "sweep sweep.toml --out out --tries 3",
        "sweep sweep.toml --out folder",
        "sweep sweep.toml --out seqs.fa",
        "sweep --preset ecssd-vgg16 --root folder --out out",
    ],
    "report": ["report none --out out", "report none none2 none3 --compare --out out"],
    "demo": ["demo --out folder", "demo --out seqs.fa"],
}
FAILS = [
    "explain photo.png --model net.py:Unruly -o out.png",
    GENOMICS.replace("net.py:sequences", "net.py:Unruly"),
]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pil = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    Path("seqs.fa").write_text(">a\nACGTACGTACGTAAC\n")
    Path("sweep.toml").write_text(SWEEP)
    Path("calls.vcf").write_text("##fileformat=VCFv4.2\na\t6\t.\tC\tG\t.\t.\t.\n")
    Path("folder").mkdir()
    Path("folder/thesis.tex").write_text("dear")
    np.savez("data.npz", inputs=np.ones((2, 3, 8, 8), np.float32))
    pil.fromarray(np.full((9, 9, 3), 99, np.uint8)).save("photo.png")
    return tmp_path


def ended(words: Sequence[str]) -> int:
    """The exit code, whether argparse refuses or the command does."""
    try:
        return cli.main(words)
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize("words", [line for lines in WRONG.values() for line in lines])
def test_what_cannot_be_used_ends_with_2_and_writes_nothing(
    work: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(work.rglob("*"))
    assert ended(words.split()) == 2
    said = capsys.readouterr().err
    assert said.count("plrp: ") + said.count("error: ") == 1
    assert "Traceback" not in said
    passing = ("__pycache__", ".pyc", ".lock", "out")  # a model file that was read, a run that was locked
    assert sorted(path for path in work.rglob("*") if not path.name.endswith(passing)) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model net.py:Two", '--target "outputs[1][:, 0]" (outputs[0] is (batch, 15), outputs[1] is (batch, 2))'),
        ("--model net.py:Two --target outputs[1][:,7]", "the output (1, 2) has no [:, 7]"),
        ("--model net.py", "such as net.py:build"),
        ("--model net.keras", "model.save('model.h5')"),
        ("--model state.pt", "is a state dict: use --model file.py:factory --weights state.pt"),
        ("--model net.py:five", "reads 5 channels, DNA has 4"),
        ("reads.fastq --model net.py:sequences", "this looks like FASTQ"),
    ],
)
def test_what_is_wrong_with_a_model_is_said(
    work: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("net.py").open("a") as stream:
        stream.write("\ndef five():\n    return torch.nn.Conv1d(5, 2, 3)\n")
    torch.save({"weight": torch.ones(2)}, "state.pt")
    Path("reads.fastq").write_text("@a\nACGT\n+\n!!!!\n")
    words = words if "reads" in words else f"seqs.fa {words}"
    assert ended(["genomics", "explain", *words.split(), "--no-match", "--out", "out"]) == 2
    assert said in capsys.readouterr().err


def test_what_a_run_took_for_granted_is_said(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("seqs.fa").write_text(f">a\n{'N' * 15}\n")
    assert ended(GENOMICS.split()) == 0
    told = capsys.readouterr()
    assert "1 sequence explained" in told.out
    assert "no --weights: net.py:sequences() is taken as it is" in told.err
    assert "record 'a' is all N" in told.err


@pytest.mark.parametrize("words", FAILS)
def test_work_that_fails_ends_with_1(work: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(words.split()) == 1
    assert "cumprod" in capsys.readouterr().err


def test_the_help_says_what_exit_codes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("", "explain", "genomics explain", "sweep"):
        assert ended([*command.split(), "--help"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "1 failed while working" in text
        assert "2 wrong usage: an option, or the file it names, cannot be used" in text
        assert command == "explain" or "3 finished; some parts failed (listed)" in text
