"""`plrp explain` as a person uses it: one photograph and many, good and bad, terminal and pipe, and Ctrl-C."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
import warnings
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import plrp
from plrp.cli import main
from plrp.cli.explain import output_paths
from plrp.files import new_file
from plrp.models.checkpoints import OtherClasses
from plrp.models.loading import load
from plrp.settings import PruningSettings
from plrp.settings import options as settings_options
from plrp.target_text import class_number
from plrp.view.layer_channels import lattice_sentence
from plrp.vision import network_input, read_photograph
from plrp.vision.photograph_explanation import explain_photograph

NETWORK = """
import torch
from torch import nn
from plrp.models import Preprocessing

categories = ["tabby cat", "hot dog", "golden retriever dog", "tench"]
preprocessing = Preprocessing(resize=36, crop=32)


def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
    )
"""


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a network and three photographs, where the command runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "network.py").write_text(NETWORK)
    for number, name in enumerate(("cat", "dog", "fish")):
        pixels = np.random.default_rng(number).integers(0, 255, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((80, 60)).save(tmp_path / f"{name}.jpg")
    return tmp_path


def run(*arguments: object) -> int:
    return main(["explain", *map(str, arguments), "--model", "network.py:build", "--dpi", "40"])


def opened(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        image.load()
        return image.size


def test_one_photograph(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cat.jpg", "-p", "0.15", "-o", "out.png") == 0
    assert opened(photos / "out.png")[0] > 200
    printed = capsys.readouterr()
    assert printed.err == ""  # no bar where there is no terminal
    assert "\x1b" not in printed.out
    lines = printed.out.splitlines()
    assert lines[0] == "cat.jpg → out.png"
    assert sum(line.endswith("◂ explained") for line in lines) == 1
    assert lines[1].endswith("◂ explained")  # the winner is explained, and named first
    assert re.search(r"^  LRP: \d+% of pixels$", printed.out, re.MULTILINE)
    assert re.search(r"^  PLRP-λ, p = 0.15: [\d.]+% of pixels$", printed.out, re.MULTILINE)
    for name in ("tabby cat", "hot dog", "golden retriever dog", "tench"):
        assert name in printed.out


def test_one_class_rather_than_another(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--target", "tench", "--against", "hot dog", "--layers")
    assert run("cat.jpg", *options, "-o", "out.svg", "--save", "out.npz") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[1] for line in lines if line.endswith(("◂ explained", "▹ against"))] != []
    assert {line.split("  ")[1] for line in lines if line.endswith("▹ against")} == {"hot dog"}
    assert "cat: tench rather than hot dog (score" in (photos / "out.svg").read_text()
    assert (photos / "out-flow.svg").is_file()
    saved = np.load(photos / "out.npz")
    settings = json.loads(str(saved["settings"]))
    assert (settings["target"], settings["against"]) == (3, 1)
    one, other = (explain_photograph("cat.jpg", "network.py:build", target=n).relevance["LRP"] for n in (3, 1))
    torch.testing.assert_close(torch.from_numpy(saved["relevance"][0]), one - other, rtol=1e-3, atol=1e-6)
    assert run("cat.jpg", "--target", "tench", "--against", "3", "-o", "out.png") == 2
    assert "both 'tench'" in capsys.readouterr().err
    assert run("cat.jpg", "--against", "wolf", "-o", "out.png") == 2
    assert "no class is called 'wolf'" in capsys.readouterr().err
    assert run("cat.jpg", "--against", "tench", "-o", "out.html") == 2
    assert "--against draws pictures" in capsys.readouterr().err


def test_a_bad_file_is_reported_and_the_rest_is_done(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "dog.jpg").write_bytes((photos / "dog.jpg").read_bytes()[:300])
    (photos / "nothing.jpg").touch()
    assert run("cat.jpg", "dog.jpg", "none.jpg", "nothing.jpg", "fish.jpg", "-o", "out.png") == 1
    printed = capsys.readouterr()
    assert "plrp: skipped: nothing.jpg is empty." in printed.err
    assert "plrp: skipped: dog.jpg is " in printed.err
    assert "plrp: skipped: none.jpg does not exist." in printed.err
    assert "plrp: 2 of 5 photographs explained, 3 skipped" in printed.err
    assert sorted(path.name for path in photos.glob("*.png")) == ["out-cat.png", "out-fish.png"]


def test_a_photograph_is_explained_by_any_module(photos: Path) -> None:
    loaded = load("network.py:build")
    by_name, by_module = explain_photograph("cat.jpg", "network.py:build"), explain_photograph("cat.jpg", loaded.module)
    assert by_name.target == explain_photograph("cat.jpg", loaded).target
    assert 0 <= by_module.target < 4


def test_no_photograph_at_all_loads_no_model(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "none.jpg", "--model", "absent.py:build"]) == 2
    assert capsys.readouterr().err == "plrp: none.jpg does not exist.\n"


def test_the_grid_of_variants_and_proportions(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cat.jpg", "--compare", "0.05,0.15, 0.3", "-o", "grid.svg") == 0
    drawn = (photos / "grid.svg").read_text()
    for method in ("PLRP-λ", "PLRP-M±"):
        for p in ("0.05", "0.15", "0.3"):
            assert f"{method}, p = {p}</text>" in drawn
    assert "LRP</text>" in drawn
    assert run("cat.jpg", "--compare", "0.1", "--sparsity-gain", "1", "-o", "gain.svg") == 0
    assert "PLRP-M±, gain 1, p = 0.1</text>" in (photos / "gain.svg").read_text()
    assert run("cat.jpg", "--compare", "0.1", "--method", "M", "--layers", "-o", "paper.svg") == 0
    assert "PLRP-M, p = 0.1</text>" in (photos / "paper.svg").read_text()


@pytest.mark.parametrize(
    ("options", "variant"),
    [
        (["--method", "M-sign"], "PLRP-M±, p = 0.05"),
        (["--method", "M-paper"], "PLRP-M, p = 0.05"),
        (["-p", "0.4"], "PLRP-λ, p = 0.4"),
        (["--sparsity-gain", "1"], "PLRP-λ, gain 1"),
        (["--sparsity-gain", "2", "-p", "0.3"], "PLRP-λ, gain 2, p = 0.3"),
        (["--composite", "epsilon-gamma-box"], "PLRP-λ, p = 0.05"),
    ],
)
def test_settings_reach_the_explanation(photos: Path, options: list[str], variant: str) -> None:
    assert run("cat.jpg", *options, "-o", "out.png", "--save", "out.npz", "-q") == 0
    with np.load(photos / "out.npz") as saved:
        assert saved["variants"].tolist() == ["LRP", variant]
        settings = json.loads(str(saved["settings"]))
    pruning = plrp.Pruning.from_dict(settings["prunings"][variant])
    assert pruning.redistribution == {"M-sign": "M-sign", "M-paper": "M"}.get(options[1], "lambda")
    assert settings["composite"] == (options[1] if "--composite" in options else "epsilon-plus-flat")


def test_saved_relevance_is_that_of_the_library(photos: Path) -> None:
    assert run("cat.jpg", "--save", "r.npz", "-q", "--target", "hot dog") == 0
    assert opened(photos / "cat-plrp.png")
    model = load("network.py:build")
    assert model.preprocessing is not None
    x = network_input(read_photograph("cat.jpg"), model.preprocessing)[None]
    with np.load(photos / "r.npz", allow_pickle=False) as saved:
        assert int(saved["target"]) == 1
        assert np.array_equal(saved["input"], x[0].numpy())
        for row, pruning in zip(saved["relevance"], (None, plrp.Pruning(p=0.05)), strict=True):
            wanted = plrp.explain(model.module, x, target=1, pruning=pruning)
            assert np.allclose(row, wanted.relevance[0].numpy(), atol=1e-7)
            assert np.allclose(saved["logits"], wanted.logits[0].numpy(), atol=1e-6)


def test_layers_and_flow_are_drawn(photos: Path) -> None:
    assert run("cat.jpg", "fish.jpg", "--layers", "-o", "out/", "-q") == 0
    names = sorted(path.name for path in (photos / "out").iterdir())
    assert names == [
        *(f"{photo}{part}.png" for photo in ("cat", "fish") for part in ("-flow", "-layers", "")),
        "photographs.csv",
        "photographs.html",
    ]
    assert run("cat.jpg", "--layers", "--compare", "0.1,0.2", "--method", "M-sign", "-o", "c.svg", "-q") == 0
    assert "PLRP-M±, p = 0.1</text>" in (photos / "c-layers.svg").read_text()


def test_the_target_by_name_number_or_nearly(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, name in {"3": "tench", "Hot_Dog": "hot dog", "TENCH": "tench"}.items():
        assert run("cat.jpg", "--target", given, "-o", "out.png") == 0
        assert re.search(rf"^  {name} .*◂ explained$", capsys.readouterr().out, re.MULTILINE)
    assert run("cat.jpg", "--target", "dog", "-o", "none.png") == 2
    assert capsys.readouterr().err == (
        "plrp: no class is called 'dog'; the nearest are hot dog (1), golden retriever dog (2).\n"
    )
    assert run("cat.jpg", "--target", "9", "-o", "none.png") == 2
    assert "there is no class 9: the model has 0 to 3" in capsys.readouterr().err
    assert not (photos / "none.png").exists()


def test_classes_that_share_the_words_of_the_one_asked_for_are_named(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("names.txt").write_text("heron\ncrane bird\ncrane\ntruck\n")
    assert run("cat.jpg", "--target", "crane", "--classes", "names.txt", "-o", "out.png") == 0
    assert "  class 2 was taken; also there: crane bird (1)\n" in capsys.readouterr().out
    assert run("cat.jpg", "--target", "truck", "--classes", "names.txt", "-o", "out.png") == 0
    assert "also there" not in capsys.readouterr().out


def test_imagenets_names_find_the_nearest() -> None:
    from plrp.models.loading import imagenet_categories

    names = imagenet_categories()
    assert names[class_number("golden retriever", names)] == "golden retriever"
    with pytest.raises(ValueError, match="golden retriever"):
        class_number("goldn retriver", names)
    with pytest.raises(ValueError, match="give a number from 0 to 999"):
        class_number("qqqqqqqqq", names)


def test_a_name_may_say_more_than_the_class_and_must_not_fit_two() -> None:
    from plrp.models.loading import imagenet_categories

    names = imagenet_categories()
    assert class_number("tabby cat", names) == class_number("Tabby", names) == 281
    with pytest.raises(ValueError, match=r"2 classes are called 'cardigan': Cardigan \(264\), cardigan \(474\)"):
        class_number("cardigan", names)
    with pytest.raises(ValueError, match=r"2 classes .*: crane \(1\), crane \(3\); give the number of one"):
        class_number("crane", ["heron", "crane", "truck", "crane"])
    with pytest.raises(ValueError, match=r"2 classes .*: cat \(0\), dog \(1\)"):
        class_number("cat or dog", ["cat", "dog"])


def test_names_that_hold_a_word_whole_come_before_those_that_hold_its_letters() -> None:
    names = ["dogsled", "hot dog", "hotdogs", "Eskimo_dog", "boxdog"]
    with pytest.raises(ValueError, match="the nearest are") as error:
        class_number("Dog", names)
    assert re.findall(r"\d", str(error.value)) == ["1", "3", "4", "0", "2"]


def test_class_names_from_a_file(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "names.txt").write_text("Katze\nWürstchen\nHund\nSchleie\n", encoding="utf-8")
    assert run("cat.jpg", "--classes", "names.txt", "-o", "out.png") == 0
    assert "Würstchen" in capsys.readouterr().out
    (photos / "names.txt").write_text("one\ntwo\n")
    assert run("cat.jpg", "--classes", "names.txt", "-o", "none.png") == 2
    assert "has 4 outputs but 2 class names" in capsys.readouterr().err


def test_resize_and_crop_can_be_set(photos: Path) -> None:
    assert run("cat.jpg", "--crop", "16", "--resize", "20", "--save", "r.npz", "-q") == 0
    with np.load(photos / "r.npz") as saved:
        assert saved["relevance"].shape == (2, 3, 16, 16)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-p", "1"], "0 ≤ p < 1"),
        (["-p", "much"], "is not a number"),
        (["--compare", "0.1,x"], "is not a number"),
        (["--compare", ""], "is not a number"),
        (["--sparsity-gain", "0"], "positive"),
        (["--dilate", "some"], "number of pixels or auto"),
        (["--method", "mu"], "invalid choice"),
        (["--crop", "0"], "a whole number from 1"),
        (["--resize", "-3"], "a whole number from 1"),
        (["--dpi", "0"], "a whole number from 1"),
        (["--num-classes", "0"], "a whole number from 1"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    photos: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        run("cat.jpg", *options)
    assert stop.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-o", "out"], "out has no suffix: write out.png for a file, out/ for a folder"),
        (["-o", "out.docx"], "should end in .png"),
        (["-o", "cat.jpg"], "is a photograph; name another output"),
        (["--save", "r.csv"], "should end in .npz"),
        (["--target", ""], "--target is empty: name a class, or leave it out"),
        (["--against", " "], "--against is empty: name a class, or leave it out"),
        (["--composite", "epsilon-minus"], "No composite named 'epsilon-minus'"),
        (["--classes", "none.txt"], "none.txt cannot be read (No such file or directory)"),
        (["--classes", "cat.jpg"], "the class names cat.jpg are no text in UTF-8: write one name per line"),
        (["--classes", os.devnull], "the class names /dev/null are empty: write one name per line"),
        (["--colours", "beige"], "unknown colours 'beige'"),
        (["--weights", "none.pt"], "none.pt do not exist"),
        (["--weights", "network.py"], "network.py is truncated or not a PyTorch file (it is text)"),
        (["--device", "toaster"], "no device 'toaster' on this machine; it has cpu"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    photos: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    before = (photos / "cat.jpg").read_bytes()
    assert run("cat.jpg", *options) == 2
    printed = capsys.readouterr().err
    assert reason in printed
    assert printed.count("\n") == 1
    assert (photos / "cat.jpg").read_bytes() == before


def test_a_class_that_a_published_model_does_not_have_is_said_before_it_is_loaded(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("plrp.models.load", load)
    (photos / "names.txt").write_text("cat\ndog\n")
    for options, reason in (
        (["--model", "resnet50", "--target", "goldn retriver"], "no class is called 'goldn retriver'"),
        (["--model", "resnet18", "--weights", "IMAGENET1K_V1", "--target", "1000"], "the model has 0 to 999"),
        (["--classes", "names.txt", "--target", "mouse"], "no class is called 'mouse'"),
    ):
        assert main(["explain", "cat.jpg", *options]) == 2
        assert reason in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told_in_our_words(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cat.jpg", "--device", "cuda") == 2
    assert capsys.readouterr().err.startswith("plrp: There is no device 'cuda' on this machine; it has cpu")


def test_failures_while_working_are_exit_code_1(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "broken.py").write_text(
        "from torch import nn\n\nclass Broken(nn.Module):\n    def forward(self, x):\n        return x.shape[0] / 0\n"
    )
    assert main(["explain", "cat.jpg", "--model", "broken.py:Broken"]) == 1
    assert "ZeroDivisionError in broken.py, line 5" in capsys.readouterr().err


def test_a_folder_stands_for_its_photographs(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "cat-plrp.png").write_bytes(b"drawn by an earlier start")
    (photos / ".hidden.jpg").write_bytes(b"")
    assert run(".", "-o", "out/") == 0
    names = ["cat.png", "dog.png", "fish.png", "photographs.csv", "photographs.html"]
    assert sorted(path.name for path in (photos / "out").iterdir()) == names
    (photos / "empty").mkdir()
    capsys.readouterr()
    assert run("empty") == 2
    said = capsys.readouterr().err
    assert "empty is a folder without photographs (.jpg, .jpeg, " in said
    assert "folders inside it are not searched" in said
    for name in ("dog", "fish"):
        (photos / f"{name}.jpg").unlink()
    assert run(".", "-o", "made") == 0
    assert "made the folder made" in capsys.readouterr().err
    assert (photos / "made" / "cat.png").is_file()


def test_results_never_share_a_name(tmp_path: Path) -> None:
    photographs = [Path("a/1.jpg"), Path("b/1.jpg"), Path("b/1-2.png"), Path("2.jpg")]
    for given in (None, f"{tmp_path}/", str(tmp_path / "out.pdf")):
        paths = output_paths(given, photographs, ".png", "-plrp")
        assert len(set(paths)) == 4
    assert output_paths(str(tmp_path), photographs, ".png", "")[0] == tmp_path / "1.png"
    assert output_paths("x.pdf", photographs[:1], ".png", "") == [Path("x.pdf")]


def test_a_model_that_is_no_classifier_is_refused(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "dense.py").write_text("from torch import nn\nbuild = lambda: nn.Flatten(2)\n")
    assert main(["explain", "cat.jpg", "--model", "dense.py:build"]) == 2
    assert "is not a classifier, segmenter or detector" in capsys.readouterr().err


SEEDED = NETWORK.replace("def build():\n", "def build():\n    torch.manual_seed(0)\n")


def log_of(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "photographs.csv").open(newline="") as stream:
        return {row["file"]: row for row in csv.DictReader(stream)}


def test_a_folder_has_a_table_and_a_page_of_all_photographs(photos: Path) -> None:
    (photos / "network.py").write_text(SEEDED)
    (photos / "dog.jpg").rename(photos / "<b>&dog.jpg")
    assert run(".", "-p", "0.1", "-o", "out/") == 0
    rows = log_of(photos / "out")
    assert list(rows) == ["<b>&dog.jpg", "cat.jpg", "fish.jpg"]
    model = load("network.py:build")
    for name, row in rows.items():
        explained = explain_photograph(name, model, prunings=[plrp.Pruning(p=0.1)])
        relevance, score = explained.relevance["PLRP-λ, p = 0.1"], float(explained.logits[explained.target])
        assert row["class"] == explained.target_name
        assert float(row["score"]) == pytest.approx(score, rel=1e-4)
        assert float(row["arrived"]) == pytest.approx(float(relevance.sum()) / score, abs=1e-3)
        assert float(row["pixels"]) == pytest.approx(float(relevance.sum(0).ne(0).float().mean()), abs=1e-4)
        assert (photos / "out" / row["result"]).is_file()
    page = (photos / "out" / "photographs.html").read_text("utf-8")
    assert page.count("<img ") == 3
    assert "<b>&dog" not in page
    assert "&lt;b&gt;&amp;dog.jpg" in page


def test_the_same_command_explains_only_the_photographs_that_are_missing(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "network.py").write_text(SEEDED)
    assert run("cat.jpg", "dog.jpg", "-o", "out/") == 0
    capsys.readouterr()

    def again(*options: str) -> list[str]:
        assert run(".", "-o", "out/", *options) == 0
        return [Path(line.split(" → ")[0]).name for line in capsys.readouterr().out.splitlines() if " → " in line]

    assert again() == ["fish.jpg"]
    assert again() == []
    assert again("-p", "0.2") == ["cat.jpg", "dog.jpg", "fish.jpg"]  # another setting
    (photos / "cat.jpg").write_bytes((photos / "dog.jpg").read_bytes())  # another photograph
    (photos / "out" / "fish.png").unlink()  # a result is gone
    assert again("-p", "0.2") == ["cat.jpg", "fish.jpg"]
    (photos / "network.py").write_text(SEEDED.replace("manual_seed(0)", "manual_seed(1)"))  # other weights
    assert len(again("-p", "0.2")) == 3
    assert again("-p", "0.2") == []
    (photos / "out" / "photographs.csv").write_bytes(b"\xff broken")
    assert len(again("-p", "0.2")) == 3
    assert len(log_of(photos / "out")) == 3


# On a terminal, in a pipe, and interrupted

COMMAND = [
    sys.executable,
    "-c",
    "import sys, torch; torch.set_num_threads(1); from plrp.cli import main; sys.exit(main())",
]


def on_a_terminal(folder: Path, width: int, arguments: list[str]) -> tuple[str, int]:
    """What a person sees on a terminal of this width, escape codes included."""
    import fcntl
    import pty
    import termios

    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")} | {"TERM": "xterm-256color"}
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=child, stdout=child, stderr=child, cwd=folder, env=environment, close_fds=True
    )
    os.close(child)
    seen = b""
    while True:
        if select.select([parent], [], [], 120)[0]:
            try:
                chunk = os.read(parent, 4096)
            except OSError:  # the other side is closed
                break
            if not chunk:
                break
            seen += chunk
    os.close(parent)
    return seen.decode(), process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 120])
def test_a_terminal_narrow_and_wide(photos: Path, width: int) -> None:
    arguments = [
        "explain",
        "cat.jpg",
        "dog.jpg",
        "--model",
        "network.py:build",
        "-o",
        "a-rather-long-folder-name/out.png",
        "--dpi",
        "40",
    ]
    seen, code = on_a_terminal(photos, width, arguments)
    assert code == 0, seen
    assert "\x1b[" in seen  # the bar was drawn
    assert "dog.jpg" in seen
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", plain)]
    assert max(map(len, lines)) <= width
    assert any(line.startswith("  golden retri") for line in lines)
    assert ("a-rather-long-folder-name/out-cat.png" in plain) == (width == 120)


@pytest.mark.slow
def test_a_pipe_gets_plain_lines(photos: Path) -> None:
    arguments = ["explain", "cat.jpg", "dog.jpg", "--model", "network.py:build", "-o", "out.png", "--dpi", "40"]
    finished = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, cwd=photos, check=True)
    assert finished.stderr == ""
    assert "\x1b" not in finished.stdout
    assert "\r" not in finished.stdout
    assert finished.stdout.count("→") == 2


def test_a_transparent_picture_is_told_to_lie_on_white(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGBA", (40, 40), (200, 90, 30, 128)).save("logo.png")
    assert run("logo.png", "-o", "out.png") == 0
    assert "\n  its transparent parts were put on white\n" in capsys.readouterr().out


def test_a_page_tells_how_long_it_will_take(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plrp.progress.EVERY", 0.0)
    monkeypatch.setattr("plrp.progress.clock", count().__next__)  # each look at the clock is a second later
    assert run("cat.jpg", "--page-p", "0.1", "--page-classes", "1", "-o", "page.html") == 0
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"explaining: 5%, \d+ min left, cat.jpg: 1 of 21 maps", lines[1])
    assert [int(re.search(r": (\d+) of 21 maps", line)[1]) for line in lines[1:]] == list(range(1, 22))
    assert run("cat.jpg", "--page-p", "0.1", "--page-classes", "1", "--no-channels", "-o", "small.html") == 0
    assert capsys.readouterr().err.splitlines()[-1].endswith(": 5 of 5 maps")
    assert run("cat.jpg", "--no-channels", "-o", "cat.png") == 2
    assert "--no-channels goes with a page: -o page.html" in capsys.readouterr().err


def test_interrupting_leaves_finished_pictures_whole(photos: Path) -> None:
    names = []
    for number in range(40):
        names.append(f"photo{number:02d}.jpg")
        (photos / names[-1]).write_bytes((photos / "cat.jpg").read_bytes())
    process = subprocess.Popen(
        [*COMMAND, "explain", *names, "--model", "network.py:build", "-o", "out/", "--save", "out/", "--dpi", "80"],
        cwd=photos, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # under nohup it would be ignored
    )  # fmt: skip
    while not (photos / "out" / "photo01.png").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate()
    assert process.returncode == 130, complaint
    done = sorted((photos / "out").glob("*.png"))
    assert 2 <= len(done) < 40
    for path in done:
        assert opened(path)
        with np.load(path.with_suffix(".npz")) as saved:
            assert saved["relevance"].shape[0] == 2
    assert not list((photos / "out").glob(".*"))  # no halves
    count = rf"({len(done)}|{len(done) - 1}) of 40 photographs are done"
    assert re.search(rf"plrp: interrupted; {count}; the same command explains the rest", complaint)
    assert "Traceback" not in complaint


# The real photographs and networks


def in_mask(relevance: torch.Tensor, mask: torch.Tensor) -> float:
    """The share of the positive relevance that lies on the object."""
    positive = relevance.sum(0).clamp(min=0)
    return float((positive * mask).sum() / positive.sum())


def named_right(model: plrp.models.LoadedModel, data: Path, every: int) -> list[bool]:
    from plrp.vision import ImageNet

    dataset = ImageNet(data / "imagenet", preprocessing=model.preprocessing)
    right = []
    with torch.no_grad():
        for index in range(0, len(dataset), every):
            image, label = dataset[index]
            right.append(int(model.module(image[None]).argmax()) == label)
    return right


def gathered(model: plrp.models.LoadedModel, data: Path, indices: range) -> list[tuple[float, float, float]]:
    """For photographs of ECSSD: share of the mask, and of the relevance on it for LRP and PLRP-λ."""
    from plrp.vision import ECSSD

    dataset = ECSSD(data / "ecssd", preprocessing=model.preprocessing)
    found = []
    for index in indices:
        explained = explain_photograph(dataset.photograph(index), model)
        mask = dataset.mask(index)
        lrp, pruned = (in_mask(relevance, mask) for relevance in explained.relevance.values())
        found.append((float(mask.float().mean()), lrp, pruned))
    return found


@pytest.mark.slow
def test_resnet50_names_the_right_class_and_sees_the_object(data: Path) -> None:
    model = load("resnet50", weights=data / "weights" / "resnet50.pth")
    right = named_right(model, data, every=8)
    assert sum(right) >= 0.7 * len(right)
    shares = gathered(model, data, range(30, 250, 100))
    assert all(area < lrp < pruned for area, lrp, pruned in shares), shares


@pytest.mark.slow
def test_resnet50_and_vgg16_on_many_photographs(data: Path) -> None:
    for model in (
        load("resnet50", weights=data / "weights" / "resnet50.pth"),
        load("vgg16", weights=data / "weights" / "vgg16_gap.pth"),
    ):
        right = named_right(model, data, every=1)
        assert sum(right) >= 70, model.name
        shares = gathered(model, data, range(5, 250, 25))
        area, lrp, pruned = np.mean(shares, axis=0)
        assert lrp > area + 0.1, (model.name, shares)
        assert pruned > lrp + 0.1, (model.name, shares)


def test_a_folder_that_is_made_is_named(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cat.jpg", "-o", "new/folder/out.png") == 0
    assert "plrp: made the folder new/folder" in capsys.readouterr().err
    assert run("cat.jpg", "-o", "new/folder/out.png") == 0
    assert "made" not in capsys.readouterr().err


def test_a_wrong_number_is_told_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["explain", "cat.jpg", "-p", "1.2"])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "0 ≤ p < 1, not 1.2" in said


def test_a_full_disk_names_the_file(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write)
    assert run("cat.jpg", "-o", "out.png", "--save", "relevance.npz") == 1
    assert "plrp: relevance.npz: No space left on device" in capsys.readouterr().err


def test_an_error_in_forward_names_its_type_and_line(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "wrong.py").write_text(
        "from torch import nn\n\nclass Wrong(nn.Module):\n    def forward(self, x):\n        return x.reshape(11, -1)\n"
    )
    assert main(["explain", "cat.jpg", "--model", "wrong.py:Wrong", "-o", "out.png"]) == 1
    said = capsys.readouterr().err
    assert re.match(r"plrp: RuntimeError in \S*wrong\.py, line 5 \(`return x\.reshape\(11, -1\)`\): shape", said)


def test_the_library_and_the_command_call_methods_by_the_same_names(capsys: pytest.CaptureFixture[str]) -> None:
    for name in settings_options(PruningSettings)["redistribution"].choices:
        assert plrp.Pruning(redistribution=name)
    for command in (["explain"], ["text"], ["view"]):
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        out = capsys.readouterr().out
        assert "{lambda,M-sign,M}" in out
        assert "M-paper" not in out


def test_a_network_that_steps_over_pixels_is_told_once(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cat.jpg", "-o", "out.png") == 0
    assert "regular grid of dots" not in capsys.readouterr().out
    (photos / "network.py").write_text(
        NETWORK.replace("nn.Conv2d(8, 12, 3, padding=1)", "nn.Conv2d(8, 12, 1, stride=2)")
    )
    assert run("cat.jpg", "dog.jpg", "-o", "out/") == 0
    said = capsys.readouterr().out
    assert said.count("it comes from the network, not from the photograph. 1 of its layers") == 1
    page = (Path(plrp.__file__).parent / "view" / "front" / "main.js").read_text(encoding="utf-8")
    assert lattice_sentence(1).replace("1 of", "${facts.skipping} of") in page


@pytest.mark.parametrize("name", ["taken.png", f"{'long' * 70}.png"])
def test_what_cannot_be_written_is_called_by_the_users_name(photos: Path, name: str) -> None:
    (photos / "taken.png" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match=r"\.png") as error, new_file(photos / name) as part:
        part.write_bytes(b"drawn")
    assert str(photos / name) in str(error.value)


def test_weights_of_other_classes_are_answered_with_the_option(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def misfit(*_: object, **__: object) -> None:
        raise OtherClasses("weights.pt", "resnet18", 10, 1000)

    monkeypatch.setattr("plrp.models.load", misfit)
    assert main(["explain", "cat.jpg", "--model", "resnet18", "--weights", "random", "--num-classes", "10"]) == 2
    assert "(leave out --num-classes, or give 1000)" in capsys.readouterr().err
    assert main(["explain", "cat.jpg", "--model", "resnet18", "--weights", "random"]) == 2
    assert "(--num-classes 1000)" in capsys.readouterr().err


def test_the_layers_of_a_score_of_nothing_are_drawn_without_warnings(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = "\n    for parameter in model.parameters():\n        nn.init.zeros_(parameter)\n    return model\n"
    (photos / "network.py").write_text(NETWORK.replace("return nn.Seq", "model = nn.Seq").rstrip() + dead)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run("cat.jpg", "--layers", "-o", "out.svg") == 0
    assert "PLRP-λ, p = 0.05: the score is 0: there is nothing to hand down" in capsys.readouterr().out
    assert ">the score is 0: there is nothing to hand down</text>" in (photos / "out.svg").read_text()
