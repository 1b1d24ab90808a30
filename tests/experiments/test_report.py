"""`plrp report` on runs whose scores are known: files, page, statements, gaps, several runs, two compared."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
pytest.importorskip("h5py")

from made_runs import made_run, usual
from plrp.experiments import report
from plrp.experiments.report.runs import TitledRun, titled
from plrp.experiments.sample_drawings import picture_of
from plrp.experiments.store import RunError

SMALL = {"metrics": ("gini", "relevance_mass_accuracy"), "p": (0.0, 0.15, 0.9), "maps": False}
"""A run with few figures, for tests of words and numbers."""


class Page(HTMLParser):
    """What a browser would fetch, the pictures with their words, and whether elements close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.alts: list[str] = []
        self.anchors: set[str] = set()
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "srcset", "href", "action", "data")]
        if "id" in known:
            self.anchors.add(known["id"] or "")
        if tag == "img":
            self.alts.append(known.get("alt") or "")
        if tag not in ("img", "meta", "link", "source", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag


def words(text: str) -> str:
    """The page as it reads, pictures left out."""
    text = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text).replace("&#x27;", "'").replace("\u00a0", " "))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    return made_run(tmp_path_factory.mktemp("runs") / "photographs", **{"maps.limit": 2})


@pytest.fixture(scope="module")
def written(photographs) -> Path:
    """The whole report of one run, beside the run."""
    return report.write([photographs], formats=("png", "svg", "pdf"))


def test_one_page_that_needs_nothing_else(photographs, written) -> None:
    assert written == photographs / "report" / "index.html"
    page = Page(written.read_text())
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    links = {address[1:] for address in page.addresses if address.startswith("#")}
    assert links == page.anchors == {"statements", "figures", "examples", "best", "tables", "runs"}
    text = written.read_text("utf-8")  # the user's figures first, the paper's statements after
    assert text.index('id="figures"') < text.index('id="best"') < text.index('id="statements"')
    assert len(page.alts) >= 6
    assert all(len(alt) > 20 for alt in page.alts)
    text = written.read_text()
    assert "@import" not in text
    assert not re.search(r"url\((?!['\"]?data:)", text)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_every_figure_is_there_in_every_format(written) -> None:
    figures = sorted(path.name for path in (written.parent / "figures").iterdir())
    names = {name.rpartition(".")[0] for name in figures}
    assert {"ecssd-metrics", "ecssd-faithfulness", "ecssd-differences", "ecssd-further"} <= names
    assert any(name.startswith("ecssd-resnet-50-heatmaps") for name in names)
    assert "ecssd-resnet-50-extremes" in names
    assert figures == sorted(f"{name}.{kind}" for name in names for kind in ("png", "svg", "pdf"))
    for name in names:
        base = written.parent / "figures" / name
        assert base.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert base.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    drawing = (written.parent / "figures" / "ecssd-metrics.svg").read_text()
    assert ">Gini index ↑</text>" in drawing  # letters stay letters
    assert b"/Type3" not in (written.parent / "figures" / "ecssd-metrics.pdf").read_bytes()


def test_tables_hold_the_means(photographs, written) -> None:
    with (written.parent / "tables" / "means.csv").open() as stream:
        rows = {(r["metric"], r["variant"], float(r["p"])): r for r in csv.DictReader(stream)}
    assert len(rows) == 5 * (1 + 4 * 5)
    expected = np.mean([usual(s, "M", 0.3, "gini") for s in range(6)])
    row = rows["gini", "M", 0.3]
    assert float(row["mean"]) == pytest.approx(expected)
    assert float(row["low"]) < expected < float(row["high"])
    assert row["samples"] == "6"


def test_statements_are_judged_with_numbers(written) -> None:
    (judged,) = json.loads((written.parent / "tables" / "statements.json").read_text()).values()
    verdicts = {s["claim"]: s["holds"] for s in judged}
    assert verdicts["Gini index above LRP's, for all variants"]
    assert verdicts["Gini index: λ ahead of M"]
    assert verdicts["AUC of λ slightly worse (higher) than LRP's (logit)"]
    assert verdicts["λ always more robust than LRP (relevance as it is)"]
    text = words(written.read_text())
    assert "Gini index: λ ahead of M: holds" in text
    assert "λ − M: p = 0.05: +0." in text
    assert "expanded percentile bootstrap" in text


def test_a_run_that_says_the_opposite(tmp_path) -> None:
    def opposite(sample: int, variant: str, p: float, metric: str) -> float:
        return 1 - usual(sample, variant, p, metric)

    page = report.write([made_run(tmp_path / "run", score=opposite, **SMALL)], formats=())
    text = words(page.read_text())
    assert "Gini index above LRP's, for all variants: does not hold" in text
    assert "Gini index: λ ahead of M: does not hold" in text
    assert not (page.parent / "figures").exists()


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(tmp_path) -> None:
    run = made_run(tmp_path / "run", p=(0.0, 0.15, 0.3), metrics=("gini", "pixel_flipping"), **{"maps.limit": 2})
    one, two = (report.write([run], tmp_path / name, formats=("svg",)) for name in "ab")
    assert one.read_bytes() == two.read_bytes()
    for path in sorted((one.parent / "figures").iterdir()):
        assert path.read_bytes() == (two.parent / "figures" / path.name).read_bytes(), path.name


def test_a_folder_used_again_holds_the_new_report_alone(tmp_path) -> None:
    dna = made_run(tmp_path / "dna", kind="simulated-dna", p=(0.0, 0.25), metrics=("gini",))
    photographs = made_run(tmp_path / "photographs", **SMALL)
    out = report.write([dna], tmp_path / "out", formats=("svg",)).parent
    (out / "figures" / "mine.svg").write_text("drawn by hand")
    (out / "notes.txt").write_text("written by hand")
    report.write([photographs], out, formats=("png",))
    own = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    fresh = report.write([photographs], tmp_path / "fresh", formats=("png",)).parent
    expected = {str(path.relative_to(fresh)) for path in fresh.rglob("*") if path.is_file()}
    assert own == expected | {"figures/mine.svg", "notes.txt"}


def test_a_folder_of_other_files_is_refused(tmp_path) -> None:
    run = made_run(tmp_path / "run", **SMALL)
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("somebody's page")
    with pytest.raises(RunError, match="site holds other files"):
        report.write([run], site, formats=())
    with pytest.raises(RunError, match=r"index\.html is a file: name a folder"):
        report.write([run], site / "index.html", formats=())
    assert (site / "index.html").read_text() == "somebody's page"


@pytest.mark.parametrize(
    "listed",
    ['{"files": ["../kept.txt", "figures/../../kept.txt", "notes.txt", "", "figures/..", 7]}', "[", "[]", "{}"],
)
def test_a_list_of_files_that_somebody_changed_removes_nothing(tmp_path, listed) -> None:
    out = tmp_path / "out"
    (out / "figures").mkdir(parents=True)
    (tmp_path / "kept.txt").write_text("")
    (out / "notes.txt").write_text("")
    (out / "files.json").write_text(listed)
    report.write([made_run(tmp_path / "run", **SMALL)], out, formats=())
    assert (tmp_path / "kept.txt").exists()
    assert (out / "notes.txt").exists()
    assert json.loads((out / "files.json").read_text())["files"] == sorted(
        f"tables/{path.name}" for path in (out / "tables").iterdir()
    )


def test_the_page_names_no_folder_of_the_machine(tmp_path) -> None:
    run = made_run(
        tmp_path / "run", **SMALL, **{"data.root": "/home/somebody/data/ecssd", "model.weights": "/w/best.pth"}
    )
    text = report.write([run], formats=()).read_text()
    assert 'root = "…/ecssd"' in words(text).replace("&quot;", '"')
    assert "…/best.pth" in text
    assert "somebody" not in text
    assert str(tmp_path) not in text


def test_best_p_and_extremes(tmp_path) -> None:
    def peaked(sample: int, variant: str, p: float, metric: str) -> float:
        gain = 0.1 * (sample + 1) if variant == "lambda" and p == 0.15 else 0.0
        return 0.3 + gain if metric == "relevance_mass_accuracy" else usual(sample, variant, p, metric)

    page = report.write([made_run(tmp_path / "run", score=peaked, **SMALL)], formats=())
    with (page.parent / "tables" / "best.csv").open() as stream:
        best = {(r["metric"], r["variant"]): r for r in csv.DictReader(stream)}
    assert float(best["relevance_mass_accuracy", "lambda"]["p"]) == 0.15
    assert float(best["relevance_mass_accuracy", "lambda"]["difference_to_lrp"]) == pytest.approx(0.35)
    assert float(best["gini", "lambda"]["p"]) == 0.9
    with (page.parent / "tables" / "ecssd-resnet-50-extremes.csv").open() as stream:
        extremes = [(r["gain"], r["name"]) for r in csv.DictReader(stream)]
    assert extremes == [
        ("largest", "sample5"), ("largest", "sample4"), ("largest", "sample3"),
        ("smallest", "sample2"), ("smallest", "sample1"), ("smallest", "sample0"),
    ]  # fmt: skip
    text = words(page.read_text())
    assert "it rises in 6 of 6 samples" in text
    assert "No relevance maps were kept" in text


def test_only_variants_that_were_measured_are_named(written, tmp_path) -> None:
    assert "M±" not in words(written.read_text())
    run = made_run(tmp_path / "signs", p=(0.0, 0.15), variants=("LRP", "M", "M-sign"), **{"maps.limit": 1})
    page = report.write([run], formats=("svg",)).read_text()
    found = words(page)
    assert "Gini index of M± not worse than M's" in found
    assert "metric LRP PLRP-M PLRP-M±" in found
    drawn = [alt for alt in Page(page).alts if "heatmaps of" in alt]
    assert drawn
    assert all("PLRP-M, PLRP-M± at p" in alt for alt in drawn)


def test_a_partial_run_says_what_is_missing(tmp_path) -> None:
    folder = made_run(tmp_path / "run", parts=[1], metrics=("gini", "pixel_flipping"), maps=False)
    text = words(report.write([folder], formats=()).read_text())
    assert "2 of 6 samples are measured; 2 of 3 parts are missing (0, 2)" in text
    assert "2 parts missing" in text
    assert "Mass in mask of λ rises steeply below p = 0.2: not measured" in text
    assert "needs relevance_mass_accuracy" in text


def test_broken_explanations_are_counted(tmp_path) -> None:
    bad = made_run(
        tmp_path / "bad",
        metrics=("gini",),
        maps=False,
        broken=lambda sample, variant, p: variant == "M" and p >= 0.6 and sample < 3,
    )
    text = words(report.write([bad], formats=()).read_text())
    assert "the arithmetic broke in 6 of 126 explanations (not finite, or grown by pruning)" in text
    assert "M p = 0.6: 3 of 6; M p = 0.9: 3 of 6." in text
    for name, judge in (("good", lambda *cell: False), ("older", None)):
        run = made_run(tmp_path / name, metrics=("gini",), maps=False, broken=judge)
        assert "the arithmetic broke" not in report.write([run], formats=()).read_text(), name


def test_a_run_with_nothing_in_it_yet(tmp_path) -> None:
    page = report.write([made_run(tmp_path / "run", parts=[])], formats=("png",))
    text = words(page.read_text())
    assert "0 of 6 samples are measured; 3 of 3 parts are missing (0–2)" in text
    assert Page(page.read_text()).anchors == {"runs"}


def test_one_sample_and_scores_that_are_not_numbers(tmp_path) -> None:
    def holes(sample: int, variant: str, p: float, metric: str) -> float:
        gone = metric == "relevance_mass_accuracy" and (p == 0.9 or variant == "M+gain")
        return float("nan") if gone or metric == "entropy" else usual(sample, variant, p, metric)

    folder = made_run(tmp_path / "run", samples=1, score=holes, metrics=("gini", "entropy", "relevance_mass_accuracy"))
    text = words(report.write([folder], formats=("png",)).read_text())
    assert "One sample alone has no interval" in text
    assert "no sample has a score of entropy" in text
    assert "nan" not in text.lower().replace("finance", "")


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 12, 9), (5, 40), (40,)], ids=str)
def test_arrays_are_drawn_as_pictures_or_strips(tmp_path, shape) -> None:
    run = made_run(tmp_path / "run", kind="arrays", shape=shape, p=(0.0, 0.15), metrics=("gini",))
    written = report.write([run], formats=("svg",))
    drawn = "heatmaps" if len(shape) == 3 else "strips"
    figures = {path.stem: path.read_text() for path in (written.parent / "figures").iterdir()}
    chosen = {name: text for name, text in figures.items() if drawn in name}
    assert len(chosen) == 2
    for text in chosen.values():
        for label in ("input", "LRP", "PLRP-λ,", "PLRP-M,"):
            assert f">{label}" in text
    assert any(alt.startswith("sample sample0: the input") for alt in Page(written.read_text()).alts)
    assert "were kept, but" not in words(written.read_text())


def test_maps_that_cannot_be_drawn_are_told(tmp_path) -> None:
    small = {"p": (0.0, 0.15), "metrics": ("gini",)}
    volumes = made_run(tmp_path / "volumes", kind="arrays", shape=(1, 4, 5, 6), **small)
    text = words(report.write([volumes], formats=("svg",)).read_text())
    assert "Relevance maps of 6 samples were kept, but they have 3 axes" in text
    plain = made_run(tmp_path / "plain", variants=("LRP",), **small)
    text = words(report.write([plain], formats=("svg",)).read_text())
    assert "Relevance maps of 6 samples were kept, but of none of PLRP-λ, PLRP-M and PLRP-M±" in text


def test_an_array_is_a_picture_from_its_least_value_to_its_greatest() -> None:
    ramp = np.arange(6.0).reshape(1, 2, 3) - 2
    picture = picture_of(ramp)
    assert picture.shape == (2, 3, 3)
    assert picture[..., 0].ravel().tolist() == picture[..., 2].ravel().tolist() == [0, 51, 102, 153, 204, 255]
    assert picture_of(np.concatenate([ramp, ramp - 10, ramp]))[0, 0].tolist() == [170, 0, 170]
    assert picture_of(np.ones((2, 2, 2))).std() == 0  # nothing to see is one grey, not an error


def test_dna_and_photographs_in_one_report(tmp_path) -> None:
    photographs = made_run(tmp_path / "photographs", **SMALL)
    dna = made_run(tmp_path / "dna", kind="simulated-dna", p=(0.0, 0.25), metrics=("gini", "relevance_mass_accuracy"))
    page = report.write([photographs, dna], tmp_path / "out", formats=("svg",))
    text = words(page.read_text())
    assert "ECSSD and Simulated DNA" in text
    assert "PLRP is not a threshold on LRP: Simulated DNA, CNN, 4 filters: holds" in text
    assert "such a pair in 6 of 6 sequences" in text
    names = {path.stem for path in (page.parent / "figures").iterdir()}
    assert {"ecssd-metrics", "simulated-dna-metrics"} <= names
    assert any("cnn-4-filters-logos" in name for name in names)
    assert "appendix B" in text


def test_runs_of_one_data_set_share_a_figure(tmp_path) -> None:
    runs = [made_run(tmp_path / name, model=name, **SMALL) for name in ("resnet50", "torchvision:vgg16")]
    page = report.write(runs, tmp_path / "out", formats=("svg",))
    drawing = (page.parent / "figures" / "ecssd-metrics.svg").read_text()
    assert drawing.count(">Gini index ↑</text>") == 2
    assert ">ResNet-50</text>" in drawing
    assert ">VGG-16</text>" in drawing
    assert "ResNet-50: holds VGG-16: holds" in words(page.read_text()).replace("  ", " ")


def test_both_sets_of_photographs_are_compared(tmp_path) -> None:
    runs = [made_run(tmp_path / kind, kind=kind, **SMALL) for kind in ("ecssd", "imagenet")]
    page = report.write(runs, tmp_path / "out", formats=())
    assert "Results on ImageNet analogous to those on ECSSD: ResNet-50: holds" in words(page.read_text())
    assert "ResNet-50" in json.loads((page.parent / "tables" / "statements.json").read_text())


def test_the_same_network_twice_is_told_apart(tmp_path) -> None:
    runs = [made_run(tmp_path / name, **SMALL) for name in ("before", "after")]
    page = report.write(runs, tmp_path / "out", formats=())
    assert "ResNet-50 (before)" in words(page.read_text())
    assert "ResNet-50 (after)" in words(page.read_text())
    alike = [made_run(tmp_path / folder / "run", **SMALL) for folder in ("one", "two")]
    loaded = titled([TitledRun.load(path) for path in [*alike, runs[0]]])
    assert [run.title for run in loaded] == [
        "ECSSD, ResNet-50 (one/run)", "ECSSD, ResNet-50 (two/run)", f"ECSSD, ResNet-50 ({tmp_path.name}/before)"
    ]  # fmt: skip
    twice = titled([TitledRun.load(runs[0])] * 2)
    assert [run.title for run in twice] == ["ECSSD, ResNet-50 (1)", "ECSSD, ResNet-50 (2)"]


def test_two_runs_compared_on_different_grids(tmp_path) -> None:
    def higher(sample: int, variant: str, p: float, metric: str) -> float:
        return usual(sample, variant, p, metric) + (0.05 if metric == "gini" else 0)

    a = made_run(tmp_path / "a", **{**SMALL, "p": (0.0, 0.15, 0.3, 0.9)})
    b = made_run(tmp_path / "b", score=higher, samples=4, **{**SMALL, "p": (0.0, 0.15, 0.6, 0.9)})
    page = report.write([a, b], tmp_path / "out", formats=("png",), compare=True)
    text = words(page.read_text())
    assert "A alone: p = 0.3; B alone: p = 0.6" in text
    assert "Over the 4 samples that both have" in text
    assert "p 0.0, 0.15, 0.3, 0.9" in text.replace("[", "").replace("]", "")  # what differs between the configs
    with (page.parent / "tables" / "comparison.csv").open() as stream:
        rows = {(r["metric"], r["variant"], float(r["p"])): r for r in csv.DictReader(stream)}
    assert {p for _, _, p in rows} == {0.0, 0.15, 0.9}
    for (metric, _, _), row in rows.items():
        expected = 0.05 if metric == "gini" else 0.0
        assert float(row["b_minus_a"]) == pytest.approx(expected, abs=1e-12)
        assert row["samples"] == "4"
    assert "Gini index ↑ : B differs clearly at 9 of 9" in text.replace(" ↑:", " ↑ :")
    page_parts = Page(page.read_text())
    assert page_parts.anchors == {"config", "figures", "differences", "statements"}
    assert all(address.startswith(("data:", "#")) for address in page_parts.addresses)


def test_runs_without_a_common_sample_or_metric(tmp_path) -> None:
    a = made_run(tmp_path / "a", **{**SMALL, "metrics": ("gini",)})
    b = made_run(tmp_path / "b", names="other{}".format, **{**SMALL, "metrics": ("gini",)})
    text = words(report.write([a, b], tmp_path / "ab", formats=(), compare=True).read_text())
    assert "have no sample in common" in text
    c = made_run(tmp_path / "c", kind="simulated-dna", **{**SMALL, "metrics": ("entropy",)})
    text = words(report.write([a, c], tmp_path / "ac", formats=(), compare=True).read_text())
    assert "no metric in common" in text
    assert "ECSSD and Simulated DNA" in text


def test_changed_verdicts_stand_out(tmp_path) -> None:
    a = made_run(tmp_path / "a", **SMALL)
    b = made_run(tmp_path / "b", score=lambda s, v, p, m: 1 - usual(s, v, p, m), **SMALL)
    text = words(report.write([a, b], tmp_path / "ab", formats=(), compare=True).read_text())
    assert re.search(r"Gini index: λ ahead of M holds does not hold changed", text)


def test_two_versions_of_a_metric_are_compared_each_with_its_own(tmp_path) -> None:
    versions = ("local_lipschitz", "local_lipschitz.again")
    runs = [made_run(tmp_path / name, **{**SMALL, "metrics": versions}) for name in ("a", "b")]
    page = report.write(runs, tmp_path / "compared", formats=(), compare=True)
    with (page.parent / "tables" / "statements.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if "more robust" in row["statement"]]
    assert [(row["a"], row["b"]) for row in rows] == [("holds", "holds")] * 4


def test_what_makes_no_sense_is_refused(tmp_path, photographs) -> None:
    with pytest.raises(ValueError, match="needs a run"):
        report.write([])
    with pytest.raises(ValueError, match="takes two runs, not 1"):
        report.write([photographs], compare=True)
    with pytest.raises(ValueError, match="png, svg, pdf, not 'gif'"):
        report.write([photographs], formats=("gif",))
    with pytest.raises(RunError, match="is not a run"):
        report.write([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_titles() -> None:
    from plrp.experiments.report.runs import slug
    from plrp.experiments.report.sections import joined, spans, unbroken

    assert slug("ECSSD, ResNet-50 (λ)") == "ecssd-resnet-50"
    assert spans([0, 1, 2, 5, 7, 8]) == "0–2, 5, 7–8"
    assert joined(["a", "b", "c"]) == "a, b and c"
    assert unbroken("p = 0.3: +0.1 [+0.0, +0.2], <b>") == "p\u00a0=\u00a00.3: +0.1 [+0.0,\u00a0+0.2], &lt;b&gt;"


def test_the_run_knows_its_example(photographs) -> None:
    run = TitledRun.load(photographs)
    assert (run.gain_metric, run.example.p) == ("relevance_mass_accuracy", 0.15)
    assert run.title == "ECSSD, ResNet-50"
