"""The tiers of `make test-all`: every slow test is in one shard, and a run goes on and tells all."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shards
from pages import ROOT

sys.path.insert(0, str(ROOT / "tools"))
try:
    import tiers
finally:
    sys.path.pop(0)

NUMBERS = range(1, shards.SHARDS + 1)


# Shards


def test_every_slow_test_is_in_one_shard(slow_tests: list[str]) -> None:
    """All slow tests that this run has collected: in `make test` all that there are."""
    assigned = shards.Plan(shards.read()).assign(slow_tests)
    assert list(assigned) == slow_tests
    assert set(assigned.values()) <= set(NUMBERS)


@pytest.mark.slow
def test_the_option_splits_the_slow_tests_and_no_others(tmp_path: Path) -> None:
    """Functions with a record, without one, and with many parameters; five runs together are the whole tier."""
    for name in ("conftest.py", "shards.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / name)
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.slow\ndef test_recorded(): ...\n"
        "@pytest.mark.slow\n@pytest.mark.parametrize('seed', range(10))\ndef test_chunks(seed): ...\n"
        "@pytest.mark.parametrize('kind', ['a', pytest.param('b', marks=pytest.mark.slow)])\n"
        "def test_mixed(kind): ...\n"
        "def test_quick(): ...\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    shards.write({"test_some.py::test_recorded": shards.Record(9.0, 1)}, tmp_path / shards.TABLE.name)
    there = [collected(tmp_path, "--shard", f"{number}/5", "-k", "not nothing") for number in NUMBERS]
    assert sorted(test for shard in there for test in shard) == sorted(collected(tmp_path, "-m", "slow"))
    assert [sum("test_chunks" in test for test in shard) for shard in there] == [2] * 5  # dealt in turn


def collected(folder: Path, *words: str) -> list[str]:
    """The tests that pytest would run in a folder."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *words]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode in (0, 5), run.stdout + run.stderr  # 5: none
    return [line for line in run.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("word", ["0/5", "6/5", "2", "two/five", "-1/5"])
def test_a_word_that_is_no_shard_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"is no shard: the second of five is written 2/5\."):
        shards.shard_of(word)


def test_no_shard_takes_longer_than_twelve_minutes() -> None:
    """By the recorded times; `python tools/tiers.py plan` shows them."""
    assert max(shards.Plan(shards.read()).seconds) / shards.CORES <= shards.LONGEST


def test_a_plan_is_even_and_keeps_files_whole() -> None:
    table = {f"tests/test_{file}.py::test_{k}": shards.Record(20.0, 1) for file in range(10) for k in range(5)}
    table |= {f"tests/test_large.py::test_{k}": shards.Record(50.0, 1) for k in range(10)}
    table["tests/test_long.py::test_models"] = shards.Record(1000.0, 25)
    plan = shards.Plan(table)
    assert plan.seconds == [500.0] * 5
    for file in range(10):
        assert len({plan.placed[f"tests/test_{file}.py::test_{k}"] for k in range(5)}) == 1
    models = plan.assign(f"tests/test_long.py::test_models[{k}]" for k in range(25))
    assert [list(models.values()).count(number) for number in NUMBERS] == [5] * 5


def test_the_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    table = {"a tier": shards.Record(3.5, 1), "tests/test_x.py::test_y": shards.Record(0.1, 12)}
    shards.write(table, tmp_path / "table.tsv")
    assert shards.read(tmp_path / "table.tsv") == table


# Tiers


def test_every_tier_is_in_one_shard() -> None:
    names = [tier.name for number in NUMBERS for tier in tiers.slow(number)]
    slow = [f"slow tests {number}/{shards.SHARDS}" for number in NUMBERS]
    assert sorted(names) == sorted([*slow, *(tier.name for tier in tiers.BESIDE)])


def test_files_of_the_tiers_exist() -> None:
    for tier in [*tiers.QUICK, *tiers.BESIDE]:
        for word in tier.words:
            assert not word.startswith(("tests", "tools")) or (ROOT / word).exists(), word


def test_a_run_goes_on_after_a_failure_and_tells_all_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tiers, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(tiers, "ROOT", tmp_path)
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('k', [1, 2])\ndef test_two(k): assert k == 1\n"
        "def test_skipped(): pytest.skip('no such data here')\n"
        "@pytest.fixture\ndef broken(): raise ValueError\n"
        "def test_error(broken): ...\n"
    )
    some = [
        tiers.of_pytest("some", "-p", "no:cacheprovider", "test_some.py"),
        tiers.Tier("crash", ["-c", "import os; os._exit(3)"]),
        tiers.Tier("sound", ["-c", ""]),
    ]
    assert tiers.run(some) == 1
    said = capfd.readouterr().out
    table = said[said.rindex("\ntier ") :]
    assert re.sub(r" +\d+:\d\d$", "", table, flags=re.MULTILINE).splitlines()[1:] == [
        "tier   passed  failed  skipped     time",
        "some        1       2        1",
        "crash       0       1        0",
        "sound       1       0        0",
        "all         2       3        1",
        "",
        "failed:",
        "  some: test_some.py::test_two[2]",
        "  some: test_some.py::test_error",
        "  crash: exit code 3",
        "",
        "skipped:",
        "  1 × no such data here (test_some.py)",
    ]
    assert tiers.run(some[-1:]) == 0


def test_an_interrupted_run_tells_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tiers, "REPORTS", tmp_path)

    def interrupted(tier: tiers.Tier) -> tiers.Outcome:
        if tier.name == "types":
            raise KeyboardInterrupt
        return tiers.Outcome(tier, 0, 1.0, [])

    monkeypatch.setattr(tiers.Tier, "run", interrupted)
    assert tiers.run(tiers.QUICK) == 130
    assert re.findall(r"^(\w+) +1 +0", capfd.readouterr().out, re.MULTILINE) == ["linter", "formatter"]


def test_recording_needs_a_run_of_every_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tiers, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(shards, "TABLE", tmp_path / "table.tsv")
    assert tiers.main(["record"]) == 1
    assert "has not run" in capsys.readouterr().err
    report = '<testsuite><testcase file="tests/test_{0}.py" name="test_a[1]" time="2.5"/></testsuite>'
    tiers.REPORTS.mkdir()
    for number in NUMBERS:
        for tier in tiers.slow(number):
            tier.seconds.write_text("30.0\n")
            tier.report.write_text(report.format(number))
    cut_off = tiers.slow(3)[0].report
    cut_off.unlink()  # as after a crash of pytest, whose tests would vanish from the table
    assert tiers.main(["record"]) == 1
    assert "'slow tests 3/5' has not run to its end" in capsys.readouterr().err
    cut_off.write_text(report.format(3))
    assert tiers.main(["record"]) == 0
    table = shards.read(tmp_path / "table.tsv")
    assert table == {f"tests/test_{k}.py::test_a": shards.Record(2.5, 1) for k in NUMBERS} | {
        tier.name: shards.Record(60.0, 1) for tier in tiers.BESIDE
    }
