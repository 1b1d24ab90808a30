"""The report of `make bench`: tables, verdicts, chart and page from given measurements; a part that fails is told."""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.image
import pytest

from pages import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
try:
    import chart
    import goals
    import no_slower
    import report
    import run
    import timing
finally:
    sys.path.pop(0)

PEERS = ("zennit", "captum", "autoLRP", "quantus", "tangermeme", "logomaker", "ray")
COSTS = {
    "forward": 1.0, "plrp LRP": 2.5, "plrp λ 0.2": 2.0, "plrp λ 0.5": 1.5, "plrp M 0.2": 3.0,
    "Zennit": 7.5, "Captum": 6.0, "autoLRP": 9.0, "grad × input": 2.75, "conv floor": 2.0,
}  # fmt: skip
MACHINE = {
    "cores": 2, "threads": 2, "processor": "a processor", "torch": "2.9", "compiled loops": "compiled loops in use",
    "date": "2026-01-02",
}  # fmt: skip


def engine_row(model: str, batch: int, **other: float) -> dict[str, Any]:
    """Three rounds on a machine whose pace changes from round to round."""
    costs = {**COSTS, **other}
    seconds = [{name: pace * cost for name, cost in costs.items()} for pace in (0.1, 0.7, 0.2)]
    return {"model": model, "batch": batch, "seconds": seconds, "reasons": {}, "likeness": {"Zennit": 1.0}}


def series(*settings: str) -> dict[str, Any]:
    methods = ["forward", "plrp LRP", "plrp λ 0.2", "Zennit", "conv floor"]
    seconds = {f"{s} {m}": COSTS[m] * (i + 1) for i, s in enumerate(settings) for m in methods}
    return {"settings": list(settings), "methods": methods, "seconds": [seconds, seconds]}


@pytest.fixture
def parts() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {
        "engine": {"rows": [engine_row(m, b) for m in ("vgg16", "resnet50") for b in (1, 8)]},
        "growth": {
            "series": {
                "batch": series("1", "2", "4", "8"),
                "resolution": series("112", "224", "448"),
                "depth": series("resnet18", "resnet50", "resnet152"),
            }
        },
        "lambda_sweep": {
            "rows": [
                {"model": "resnet50", "batch": 1, "count": 20, "seconds": [{"sweep": 8, "Zennit": 6, "forward": 1}]}
            ]
        },
        "many": {
            "rows": [
                {
                    "what": f"1,000 {what}, LRP",
                    "ours": "in stacks",
                    "seconds": [{"explained": seconds, "on the trace": 2.0, "in stacks": 0.5}],
                }
                for what, seconds in (("targets", 5.0), ("conditions", 2.0))
            ]
            + [{"what": "page of 63 maps", "ours": "plrp", "seconds": [{"plrp": 2.0, "plain walk": 7.0}]}]
        },
        "memory": {
            "rows": [
                {"model": m, "batch": 8, "peak": {"plrp LRP": 500.0, "plrp λ 0.2": 900.0, "Zennit": 1000.0}}
                for m in ("vgg16", "resnet50")
            ]
        },
        "threshold": {
            "rows": [{"values": "noise", "p": 0.2, "survive": 0.1, "seconds": [{"numpy.sort": 4, "θ and mask": 1}]}]
        },
        "sequences": {
            "count": 10_000,
            "difference": 1e-5,
            "batches": {"plrp LRP": 128, "Zennit": 256},
            "seconds": [{"plrp LRP": 2.0, "Zennit": 6.0, "forward": 1.0}],
        },
        "checks": {
            "rows": [
                {
                    "model": "ResNet-50, batch 1",
                    "seconds": [
                        {"first": 8.0, "first in checks": 3.0, "later": 5.05, "later in checks": 0.05, "forward": 1.0}
                    ],
                }
            ]
        },
        "metrics": {
            "rows": [
                {
                    "metric": name,
                    "samples": 32,
                    "seconds": [{"plrp": 1.0, "Quantus": 12.0}],
                    "shares": {"plrp": 0.9, "Quantus": 0.5} if name == "pixel flipping" else {},
                }
                for name in ("Gini index", "entropy", "relevance mass accuracy", "pixel flipping")
            ]
        },
        "logos": {"libraries": ["plrp"], "seconds": [{"plrp draw": 1.0, "plrp both": 2.0}]},
        "page": {"rows": [{"page": "photograph", "megabytes": 4.2, "first": 2.0, "frames": 1.0}]},
    }
    return {part: {"quick": False, "machine": MACHINE, **content} for part, content in found.items()}


def keep(parts: dict[str, dict[str, Any]], folder: Path) -> None:
    for part, content in parts.items():
        (folder / f"{part}.json").write_text(json.dumps(content))


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_a_ratio_is_the_median_of_quotients_within_rounds() -> None:
    rounds = [{"a": 1.0, "b": 1.0}, {"a": 30.0, "b": 10.0}, {"a": 4.0, "b": 2.0}]  # medians' quotient: 4 / 2
    rounds.append({"a": 8.0, "b": 2.0})
    assert timing.ratio(rounds, "a", "b") == 2.5
    assert timing.ratio(rounds, "a", "missing") is None


def test_the_cost_of_checks_is_that_of_100_explanations_of_which_one_is_the_first(
    parts: dict[str, dict[str, Any]],
) -> None:
    assert report.checks(parts).rows == [["ResNet-50, batch 1", "3.00", "1.0%", "1.6%"]]  # (3 + 99 · 0.05) / (100 · 5)
    (record,) = [r for r in goals.verdicts(parts) if "checks" in r["what"]]
    assert record["measured"]["ResNet-50, batch 1"] == pytest.approx(1 + 7.95 / 500)
    assert record["verdict"] == "met"


def test_costs_against_references_are_told_beside_each_peer() -> None:
    rounds = [{"rescale": 2.0, "rescale, λ 0.2": 1.0, "rescale-gamma": 3.0, "sweep of four": 5.0, "Captum": 4.0}] * 3
    table = report.differences(
        {"differences": {"networks": {"VGG": {"rounds": rounds, "difference": {"Captum": 1e-6}}}}}
    )
    assert table.rows == [["VGG", "0.50", "0.25", "–", "–", "1.50", "0.50", "2.50", "1e-06"]]
    assert report.differences({}).rows == []


def test_every_method_runs_once_in_every_round() -> None:
    calls: list[str] = []
    runs = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    found = timing.interleaved(runs, "trial", least=2, most=4, budget=60)
    assert len(found) == 4
    assert all(sorted(calls[3 * i : 3 * i + 3]) == ["a", "b", "c"] for i in range(4))
    assert len(timing.interleaved(runs, "trial", least=2, most=4, budget=0)) == 2


def test_the_table_holds_models_batches_and_methods(parts: dict[str, dict[str, Any]]) -> None:
    table = report.cost(parts)
    assert [row[:3] for row in table.rows[:5]] == [
        *(["VGG-16", "1", variant] for variant in ("LRP", "λ 0.2", "λ 0.5", "M 0.2")),
        ["VGG-16", "8", "LRP"],
    ]
    assert len(table.rows) == 16
    row = dict(zip(table.header, table.rows[4], strict=True))
    assert [row[c] for c in ("plrp", "Zennit", "Captum", "autoLRP", "grad × input", "conv floor")] == [
        "2.50", "7.50", "6.00", "9.00", "2.75", "2.00",
    ]  # fmt: skip
    assert (row["peak memory"], row["Zennit's"]) == ("500", "1000")
    assert report.cost({"engine": parts["engine"]}).rows[4][-2:] == ["–", "–"]


def test_who_cannot_run_has_a_dash_and_a_reason(parts: dict[str, dict[str, Any]]) -> None:
    row = parts["engine"]["rows"][0]
    for one in row["seconds"]:
        del one["Captum"]
    row["reasons"] = {"Captum": "AssertionError: a module used twice"}
    table = report.cost(parts)
    assert table.rows[0][table.header.index("Captum")] == "–"
    assert any("Captum cannot run on VGG-16: AssertionError: a module used twice" in note for note in table.notes)


def test_growth_is_relative_to_the_first_setting(parts: dict[str, dict[str, Any]]) -> None:
    table = report.growth(parts)
    assert len(table.rows) == 4 + 3 + 3
    assert table.rows[3] == [
        "batch", "8", "1.00 (4.00 ×)", "2.50 (4.00 ×)", "2.00 (4.00 ×)", "7.50 (4.00 ×)", "2.00 (4.00 ×)",
    ]  # fmt: skip


# --- old and new code -------------------------------------------------------------------------------------------------


def test_slower_is_an_interval_wholly_above_the_bound() -> None:
    rng = random.Random(0)
    around = {middle: [middle * rng.uniform(0.98, 1.02) for _ in range(20)] for middle in (0.9, 1.0, 1.1)}
    found = {middle: no_slower.judge([ratios[::2], ratios[1::2]]) for middle, ratios in around.items()}
    for middle, verdict in found.items():
        assert verdict.low <= verdict.ratio <= verdict.high
        assert verdict.ratio == pytest.approx(middle, rel=0.02)
    assert [verdict.slower for verdict in found.values()] == [False, False, True]
    assert not no_slower.judge([[0.5, 1.0, 1.1, 1.2, 3.0]]).slower  # too few and too far apart to say
    assert no_slower.judge([[1.0, 1.0, 9.0], [1.0, 1.0]]).ratio == 1.0  # one disturbed round is none
    assert not no_slower.judge([[1.1] * 9, [1.1] * 9, [0.9] * 9]).slower  # processes differ more than rounds


def test_both_trees_are_measured_in_every_round() -> None:
    order: list[str] = []

    class Tree:
        def __init__(self, name: str, pace: float) -> None:
            self.name, self.pace = name, pace

        def run(self, case: object, times: int) -> dict[str, float]:
            order.append(f"{self.name}{times}")
            return {"seconds": self.pace, "mass": 2.0 + self.pace}

    ratios, difference = no_slower.compare(no_slower.CASES[0], Tree("a", 0.1), Tree("b", 0.2), rounds=2)  # type: ignore[arg-type]
    assert order == ["a0", "b0", *"a3 b3 b3 a3 b3 a3 a3 b3".split()]
    assert ratios == pytest.approx([2.0, 2.0])
    assert difference == pytest.approx(2.2 / 2.1 - 1)


@pytest.mark.slow
def test_a_tree_is_compared_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    if not any((ROOT / "src" / "plrp").rglob("*.so")):
        pytest.skip("no compiled loops here")
    assert no_slower.main(["--quick", "--rounds", "1", "--old", str(ROOT)]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "sequences" in line and " to " in line]
    assert [row.split("λ")[0].split("LRP")[0].strip() for row in rows] == ["sequences, batch 16,"] * 2
    assert all("0e+00" in row for row in rows)  # the same code gives the same relevance


def test_it_must_be_said_what_to_compare_with(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        no_slower.main([])
    assert "--base COMMIT or --old TREE" in capsys.readouterr().err


# --- goals ------------------------------------------------------------------------------------------------------------


def test_goals_are_judged_by_their_worst_measurement(parts: dict[str, dict[str, Any]]) -> None:
    parts["engine"]["rows"][1] = engine_row("vgg16", 8, Zennit=4.0)  # 1.6 times as slow as LRP, 2 as λ
    found = {record["what"]: record for record in goals.verdicts(parts)}
    slow = found["VGG-16: LRP against Zennit"]
    assert slow["measured"] == pytest.approx({"batch 1": 3.0, "batch 8": 1.6})
    assert slow["verdicts"] == {"batch 1": "met, the stretch too", "batch 8": "missed by 20%"}
    assert (slow["met"], slow["verdict"]) == (False, "missed by 20%")
    assert found["VGG-16: LRP / conv floor"]["verdict"] == "missed by 4.2%"  # 2.5 / 2 against 1.2
    assert found["ResNet-50: LRP against Zennit"]["verdict"] == "missed by 25%"  # 3 against 4
    assert found["ResNet-50, batch 1: first explanation, forward passes"]["verdict"] == "missed by 33%"  # 8 against 6
    assert found["1D CNN, 250 bases: λ p = 0.2 / own LRP"]["met"] is None
    stacks = found["1,000 targets or conditions against 1,000 explanations"]
    assert stacks["verdicts"] == {"1,000 targets, LRP": "met", "1,000 conditions, LRP": "missed by 50%"}
    assert stacks["met"] is False
    assert found["ResNet-50: circuit, choose_p, page against the plain walk"]["measured"] == {"page of 63 maps": 3.5}
    assert found["ResNet-50: 20-value λ sweep against 20 runs of Zennit"]["measured"] == {"batch 1": 15.0}
    assert found["ResNet-50: peak memory / Zennit's, batch 8"]["verdicts"] == {
        "LRP": "met, the stretch too",
        "λ 0.2": "met",
    }
    assert found["local Lipschitz estimate against Quantus"]["met"] is None


def test_every_goal_is_in_the_table_measured_or_not() -> None:
    table = goals.judged({})
    assert [row[0] for row in table.rows] == [goal.what for goal in goals.goals()]
    assert {row[-1] for row in table.rows} == {"not measured"}
    assert len({goal.what for goal in goals.goals()}) == len(table.rows)


# --- chart and page ---------------------------------------------------------------------------------------------------


def test_the_chart_names_every_method_and_panel(parts: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    svg, png = chart.write(parts, tmp_path)
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert matplotlib.image.imread(png).shape[1] > 1200
    figure = chart.draw(parts)
    assert figure is not None
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles[:4] == [f"{m}, batch {b}" for m in ("VGG-16", "ResNet-50") for b in (1, 8)]
    assert titles[4:] == [f"growth with {name}" for name in ("batch", "resolution", "depth")]
    said = {text.get_text() for ax in figure.axes for text in [*ax.texts, *ax.get_yticklabels()]}
    assert {"plrp LRP", "Zennit", "Captum", "autoLRP", "grad × input", "7.50", " conv floor 2.00"} <= said


def test_nothing_measured_is_no_chart(tmp_path: Path) -> None:
    assert chart.write({}, tmp_path) == []
    assert run.main(["--report", "--out", str(tmp_path)]) == 0
    assert "Nothing was measured." in json.loads((tmp_path / "results.json").read_text())["measured"]


def test_the_page_gets_tables_and_chart_and_keeps_the_rest(
    parts: dict[str, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(parts, tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\nBefore.\n\n{report.BEGIN}\nold\n{report.END}\n\nAfter.\n")
    for _ in range(2):  # the second time changes nothing
        assert run.main(["--report", "--out", str(tmp_path), "--page", str(page)]) == 0
        text = page.read_text()
        assert text.startswith(f"# Title\n\nBefore.\n\n{report.BEGIN}\n")
        assert text.endswith(f"{report.END}\n\nAfter.\n")
        assert "old" not in text
        assert text.count("| ResNet-50 | 8 | LRP | 2.50 | 7.50 |") == 1
        assert text.count("### Goals") == text.count("### How cost grows") == 1
        assert "2 cores of a processor, 2 threads, torch 2.9, compiled loops in use, 2026-01-02." in text
        assert "(assets/speed.svg)" in text
    assert (tmp_path / "assets" / "speed.svg").read_bytes() == (tmp_path / "speed.svg").read_bytes()
    printed = capsys.readouterr().out
    order = [printed.index(f"\n{title}\n") for title in ("Cost of an explanation", "How cost grows", "Goals")]
    assert order == sorted(order)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["parts"]["engine"]["rows"] == parts["engine"]["rows"]
    assert len(results["goals"]) == len(list(goals.goals()))


def test_a_page_without_a_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n")
    with pytest.raises(SystemExit, match="lacks the place for the tables"):
        report.into_page(page, "tables")
    assert page.read_text() == "# Title\n"


def test_the_page_of_the_documentation_has_its_place() -> None:
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert text.count(report.BEGIN) == text.count(report.END) == 1
    assert text.index(report.BEGIN) < text.index(report.END)


# --- parts that fail --------------------------------------------------------------------------------------------------

GOOD = """
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
(out / "logos.json").write_text(json.dumps(
    {"libraries": ["plrp"], "seconds": [{"plrp draw": 1.0, "plrp both": 2.0}], "given": sys.argv[1:]}))
"""
HALFWAY = """
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
(out / "threshold.json").write_text(json.dumps({"rows": [
    {"values": "noise", "p": 0.2, "survive": 0.1, "seconds": [{"numpy.sort": 4, "θ and mask": 1}]}]}))
raise ValueError("the second half is missing")
"""
SILENT = "pass"


def test_a_part_that_fails_is_told_and_loses_no_other(
    parts: dict[str, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scripts, out = tmp_path / "scripts", tmp_path / "out"
    scripts.mkdir()
    out.mkdir()
    for name, code in {"threshold": HALFWAY, "sequences": SILENT, "logos": GOOD}.items():
        (scripts / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(run, "FOLDER", scripts)
    keep({"sequences": parts["sequences"], "engine": parts["engine"]}, out)  # of an earlier run
    names = ["threshold", "sequences", "logos"]
    assert run.main(["--quick", "--rounds", "2", "--out", str(out), "--parts", *names]) == 1
    printed = capsys.readouterr()
    assert "Failed: threshold: exit code 1: ValueError: the second half is missing" in printed.out
    assert "Failed: sequences: nothing was written" in printed.out
    assert "threshold failed" in printed.err
    assert "A logo of 250 bases" in printed.out
    assert "θ and mask of 3.2 million values" in printed.out  # what it had measured by then is kept
    assert "Cost of an explanation" in printed.out  # so are parts that did not run this time
    assert "Many explanations" not in printed.out  # but not the earlier figures of one that failed now
    assert json.loads((out / "logos.json").read_text())["given"][-3:] == ["--quick", "--rounds", "2"]
    assert set(json.loads((out / "results.json").read_text())["failed"]) == {"threshold", "sequences"}
    assert run.main(["--report", "--out", str(out)]) == 1  # told again whenever the report is made
    assert "Failed: sequences" in capsys.readouterr().out


@pytest.mark.parametrize("script", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py")))
def test_every_benchmark_can_be_begun(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that `make bench` leaves out too: whatever they import is there."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    try:
        importlib.import_module(script)
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] not in PEERS:
            raise
        pytest.skip(f"{error.name} is not installed")


def test_transformers_are_measured_against_lxt_with_the_same_rules() -> None:
    seconds = [{"forward": 1.0, "plrp attnlrp": 3.0, "plrp cp-lrp": 2.0, "plrp λ 0.2": 2.4, "LXT": 2.5}]
    row = {"size": "batch 1", "weights": "random", "seconds": seconds, "reasons": {}, "likeness": {"LXT": 1.0}}
    parts = {
        "attention": {"rows": [{"model": "ViT", "rules": "cp-lrp", **row}, {"model": "LM", "rules": "attnlrp", **row}]}
    }
    assert report.attention(parts).rows[0] == ["ViT", "batch 1", "random", "3.00", "2.00", "2.40", "–", "2.50", "–"]
    found = {record["what"]: record for record in goals.verdicts(parts) if record["what"].startswith("transformers")}
    against, by_token, pruned = found.values()
    assert by_token["met"] is None
    assert against["measured"] == {"ViT, batch 1": 0.8, "LM, batch 1": 1.2}
    assert against["met"] is False
    assert pruned["met"] is True
