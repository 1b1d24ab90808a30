"""The demo: its measurements, its verdicts, and the page it writes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from made_runs import from_arrays
from plrp.experiments import Results, RunError, preset, scenes
from plrp.experiments import demo_study as demo_module
from plrp.experiments.aligned_scores import PAPER, AlignedScores
from plrp.experiments.statements import NotAThreshold, find_not_a_threshold, findings
from plrp.genomics import jaspar
from plrp.genomics.seqlets import Match

RNG = np.random.default_rng(0)


def test_not_a_threshold_restated_pair_by_pair() -> None:
    for _ in range(30):
        lrp = RNG.choice([0.0, 0.1, 0.2, 0.3, 0.4, -0.2], (4, 12))
        pruned = lrp * (RNG.random(lrp.shape) > 0.4) * 1.3
        mask = RNG.random(lrp.shape) > 0.5
        pairs = {
            (s, i, j)
            for s in range(4)
            for i in range(12)
            for j in range(12)
            if mask[s, i] and pruned[s, i] > 0 and not mask[s, j] and pruned[s, j] == 0 and 0 < lrp[s, i] < lrp[s, j]
        }
        found = find_not_a_threshold(lrp, pruned, mask)
        assert (found is None) == (not pairs)
        if found is not None:
            assert (found.sequence, found.inside, found.outside) in pairs
            assert found.sequences_with_one == len({s for s, _, _ in pairs})
            assert (found.lrp_inside, found.lrp_outside) == (
                lrp[found.sequence, found.inside],
                lrp[found.sequence, found.outside],
            )


def test_a_threshold_is_never_mistaken_for_pruning() -> None:
    lrp = RNG.normal(size=(5, 40))
    assert find_not_a_threshold(lrp, np.where(lrp > 0.5, lrp, 0), RNG.random((5, 40)) > 0.5) is None


def made_sweep(gini: list[float], rma_lambda: list[float], rma_m: list[float]) -> AlignedScores:
    def columns(values: list[float]) -> dict[float, np.ndarray]:
        return {p: np.repeat(value, 5) for p, value in zip((0.0, 0.25, 0.5), values, strict=True)}

    values = {
        "gini": {v: columns(gini) for v in PAPER},
        "entropy": {v: columns(gini) for v in PAPER},
        "relevance_mass_accuracy": {v: columns(rma_lambda if "lambda" in v else rma_m) for v in PAPER},
    }
    return from_arrays("net", values, 5)


@pytest.mark.parametrize(
    ("sweep_values", "verdicts"),
    [
        (([0.5, 0.6, 0.7], [0.4, 0.5, 0.6], [0.4, 0.5, 0.6]), [True, True, True]),
        (([0.5, 0.7, 0.6], [0.4, 0.5, 0.6], [0.4, 0.5, 0.6]), [False, True, True]),  # Gini falls at the end
        (([0.5, 0.5, 0.5], [0.4, 0.5, 0.6], [0.4, 0.5, 0.6]), [False, True, True]),  # or does not move
        (([0.5, 0.6, 0.7], [0.4, 0.3, 0.6], [0.4, 0.3, 0.6]), [True, False, True]),
        (([0.5, 0.6, 0.7], [0.4, 0.5, 0.6], [0.4, 0.3, 0.3]), [True, True, False]),
    ],
)
def test_findings_can_fail(sweep_values, verdicts) -> None:
    found = findings({"net": made_sweep(*sweep_values)}, None)
    assert [f.holds for f in found] == [*verdicts, False]
    assert findings({"net": made_sweep(*sweep_values)}, NotAThreshold(0, 1, 2, 0.1, 0.2, 1, 5))[-1].holds


class Page(HTMLParser):
    """Collects what a browser would fetch, and whether elements close."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "srcset", "href")]
        if tag not in ("img", "meta", "link", "source", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def quick_matches(queries, targets=None, *, top=5):
    """Stands in for TOMTOM, which takes a minute to compile in a fresh environment: the slow tests run the real one."""
    return [[Match(jaspar("CTCF"), 1e-9, 1e-6, 0, 10, "+")] * 2 for _ in queries]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "match_motifs", quick_matches)
    monkeypatch.setattr(
        demo_module,
        "match_seqlets",
        lambda seqlets, onehot, per_base: [m[0] for m in quick_matches(range(len(seqlets)))],
    )
    monkeypatch.setattr(demo_module, "compile_in_background", lambda: subprocess.Popen([sys.executable, "-c", "pass"]))


def test_the_demo_writes_one_page_that_needs_nothing_else(
    tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"count": 300, "explained": 20, "epochs": 1, "photographs": 0}
    first = demo_module.run(tmp_path / "demo", seed=1, **options)
    said = capsys.readouterr()
    assert re.search(r"test accuracy, 4 filters: 0\.\d+", said.out)
    plain = [re.sub(r"\d+ s|0\.\d+", "…", line) for line in said.err.splitlines()]
    assert plain == [
        line
        for size in (32, 4)
        for line in (
            f"training {size} filters, epochs: 0 of 1",
            f"training {size} filters, epochs: done after 1 of 1, …, validation accuracy …",
        )
    ]  # no bars when piped
    document = first.read_text(encoding="utf-8")
    page = Page()
    page.feed(document)
    assert page.open == []
    assert len(page.addresses) > 10
    assert all(address.startswith("data:") for address in page.addresses)
    embedded = re.sub(r"data:[^\"&]*|http://www\.w3\.org/2000/svg", "", document)  # a name of SVG's, not an address
    assert not re.search(r"https?:", embedded)
    for part in ("test accuracy", "holds", "Sparsity and localization", "Where the relevance went", "Motifs found"):
        assert part in document
    names = {path.name for path in (tmp_path / "demo").iterdir()}
    sweeps = {"genomics-32", "genomics-4"}
    assert names == {"index.html", "data", "cnn32.pt", "cnn4.pt", "sweep.csv", "seqlets.bed"} | sweeps
    assert len((tmp_path / "demo" / "sweep.csv").read_text().splitlines()) == 1 + 2 * (1 + 4 * 19)
    assert all(Results.load(tmp_path / "demo" / name).complete for name in sweeps)

    shutil.rmtree(tmp_path / "demo" / "genomics-4")
    demo_module.run(tmp_path / "demo", seed=1, **options)  # one sweep as it is, one made anew: the same report
    assert first.read_text(encoding="utf-8") == document
    demo_module.run(tmp_path / "demo", seed=2, **options)  # another demo takes the place of this one
    assert first.read_text(encoding="utf-8") != document


@pytest.mark.slow
def test_photographs_are_trained_apart_and_shown_for_each_object(tmp_path: Path) -> None:
    training = scenes.train_in_background(tmp_path / "network.pt", steps=2, seed=0)
    assert training.wait() == 0
    shown = scenes.render(tmp_path / "network.pt")
    assert "200 new scenes" in shown
    assert shown.count("<iframe") == 1
    training = scenes.train_in_background(tmp_path / "none" / "\0", steps=2, seed=0)
    with pytest.raises(RuntimeError, match=r"the network of the photographs could not be trained: .*null byte"):
        demo_module._photographs(training, tmp_path / "none", False)


def test_the_photographs_page_opens_on_what_the_network_is_surest_of() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * scenes.SIDE**2, len(scenes.NAMES)))
    nn.init.zeros_(network[1].weight)
    network[1].bias.data = torch.tensor([1.0, 2.0, 3.0, 9.0])
    drawn = scenes.scene_of_three()
    assert set(drawn.masks) == {"cat", "coffee cup", "astronaut"}  # no shuttle
    assert scenes.surest(drawn, scenes.as_loaded(network, "made up")) == "astronaut"


def test_work_in_the_background_ends_with_whoever_asked_for_it() -> None:
    code = (
        "import time; from plrp.experiments.scenes import in_background; "
        "print(in_background('import time; time.sleep(600)').pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    for _ in range(6000):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("it goes on alone")


def test_a_missing_extra_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'plrp\[experiments\]'"):
        demo_module.run(tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("somebody's page")
    with pytest.raises(RunError, match=r"holds other files \(index\.html\), .*: name a new or an empty folder"):
        demo_module.run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]


@pytest.mark.slow
def test_the_demo_shows_what_the_paper_found(tmp_path: Path) -> None:
    """The demo as shipped: accuracy of the 32-filter CNN, the four findings, and the four planted motifs by name."""
    configs = {f"{size} filters": preset(f"genomics-{size}") for size in demo_module.FILTERS}
    study = demo_module.examine(configs, tmp_path)
    assert study.trainings["32 filters"]["test_accuracy"] >= 0.95
    assert [f.holds for f in findings(study.sweeps, study.example)] == [True] * 4
    named = {matches[0].motif.name.upper() for matches in study.matches}
    assert {"TAL1::TCF3", "CTCF", "SPI1", "NRF1"} <= named
