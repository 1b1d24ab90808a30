"""Runs the tests tier by tier and prints one summary: `make test`, `make test-slow` and `make test-all` call it.

    python tools/tiers.py quick      linter, formatter, types, and the tests of some minutes
    python tools/tiers.py slow 2     the second of five shards: slow tests, and a tier in which the readable code
                                     or a sanitizer runs; without a number all five
    python tools/tiers.py all        everything
    python tools/tiers.py plan       how the shards are filled
    python tools/tiers.py record     write tests/slow_seconds.tsv from the last run of all shards

A failing tier does not stop the next one. The exit code is 1 if anything failed. Only the standard library is needed
here; the tiers run with the Python that runs this file.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
try:
    import shards
finally:
    sys.path.pop(0)

REPORTS = ROOT / "build" / "tiers"  # of each tier its JUnit file, and the seconds that it took

# The readable code answers for itself: with the plain walk, without the compiled loops, and as if the folder of the
# fast code were gone (a first look at that: tests/project/test_architecture.py). The quick tiers run the formulas so,
# the shards the whole core.
PRUNING = [f"tests/test_{name}.py" for name in "conservation gain_oracle pruning_oracle".split()]
FORMULAS = [*PRUNING, "tests/test_ledger.py", "tests/test_rules_oracle.py"]
CORE = [
    *FORMULAS,
    *(
        f"tests/test_{name}.py"
        for name in (
            "balance circuits conditions errors invariance interop networks pieces pruning_edges theta units walk "
            "zennit"
        ).split()
    ),
    *(f"tests/tape/test_{name}.py" for name in "own_rules recurrence replay trace".split()),
    "tests/metrics",
]


@dataclass(frozen=True)
class Tier:
    """A command that runs some of the tests."""

    name: str
    words: Sequence[str]  # what Python is given
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def report(self) -> Path:
        """The JUnit file that its pytest writes, if it runs one."""
        return REPORTS / f"{re.sub(r'[^a-z0-9]+', '-', self.name)}.xml"

    @property
    def seconds(self) -> Path:
        """The file with the seconds that its last run took."""
        return self.report.with_suffix(".seconds")

    def run(self) -> Outcome:
        """Run the command, its output going to the terminal."""
        self.report.unlink(missing_ok=True)
        given = " ".join([*(f"{name}={value}" for name, value in self.environment.items()), "python", *self.words])
        print(f"\n=== {self.name}: {given}", flush=True)
        begun = time.monotonic()
        # Through the environment, because a sanitizer's pytest is started by another program.
        options = (
            f"{os.environ.get('PYTEST_ADDOPTS', '')} --junitxml={shlex.quote(str(self.report))} -o junit_family=xunit1"
        )
        environment = {**os.environ, "PYTEST_ADDOPTS": options.strip(), **self.environment}
        code = subprocess.run([sys.executable, *self.words], cwd=ROOT, env=environment, check=False).returncode
        seconds = time.monotonic() - begun
        self.seconds.write_text(f"{seconds:.1f}\n")
        return Outcome(self, code, seconds, list(cases(self.report)))


def of_pytest(name: str, *words: str, **environment: str) -> Tier:
    """A tier of pytest on all cores."""
    return Tier(name, ["-m", "pytest", "-q", "-n", str(shards.CORES), *words], environment)


QUICK = [
    Tier("linter", ["-m", "ruff", "check", "."]),
    Tier("formatter", ["-m", "ruff", "format", "--check", "."]),
    Tier("types", ["-m", "mypy"]),
    of_pytest("quick tests", "-m", "not slow"),
    of_pytest("formulas, plain walk", "-m", "not slow", "--plain-walk", *FORMULAS),
    of_pytest("pruning, no compiled loops", "-m", "not slow", *PRUNING, PLRP_NATIVE="0"),
]
# Each of these belongs to one shard, beside its slow tests.
BESIDE = [
    Tier("sanitizers", ["tools/sanitize.py"]),
    of_pytest("core, plain walk", "-m", "not slow", "--plain-walk", *CORE, "tests/fast"),
    of_pytest("core, no compiled loops", "-m", "not slow", *CORE, "tests/fast", PLRP_NATIVE="0"),
    of_pytest("core, fast code gone", "-m", "not slow", "--without-fast", *CORE),
]


def slow(number: int) -> list[Tier]:
    """The tiers of a shard, counted from 1."""
    beside = shards.Plan(shards.read()).assign(tier.name for tier in BESIDE)
    tests = of_pytest(f"slow tests {number}/{shards.SHARDS}", "--shard", f"{number}/{shards.SHARDS}")
    return [tests, *(tier for tier in BESIDE if beside[tier.name] == number)]


# Results

RESULTS = ("passed", "failed", "skipped")


@dataclass(frozen=True)
class Case:
    """A test as a report has it."""

    test: str
    result: str  # one of RESULTS
    seconds: float
    reason: str  # why it was skipped


def cases(report: Path) -> Iterator[Case]:
    """The tests in a JUnit file; none if pytest did not get as far as to write it."""
    if not report.exists():
        return
    for element in ElementTree.parse(report).getroot().iter("testcase"):
        file = element.get("file") or f"{element.get('classname', '').replace('.', '/')}.py"
        result, reason = "passed", ""
        if element.find("failure") is not None or element.find("error") is not None:
            result = "failed"
        elif (skipped := element.find("skipped")) is not None:
            result, reason = "skipped", skipped.get("message") or "no reason given"
        yield Case(f"{file}::{element.get('name')}", result, float(element.get("time") or 0), reason)


@dataclass(frozen=True)
class Outcome:
    """A tier that has run."""

    tier: Tier
    code: int
    seconds: float
    cases: Sequence[Case]

    def count(self, result: str) -> int:
        """The number of tests with a result; a tier without tests counts as one."""
        if result == "failed":
            return len(self.failures)
        if not self.cases:
            return int(result == "passed" and not self.code)
        return sum(case.result == result for case in self.cases)

    @property
    def failures(self) -> list[str]:
        """The failed tests; if no test failed and the command did, its exit code."""
        tests = [case.test for case in self.cases if case.result == "failed"]
        return tests if tests or not self.code else [f"exit code {self.code}"]


def summary(outcomes: Sequence[Outcome]) -> str:
    """The table of all tiers, then the failures, then the skipped tests by reason."""
    width = max(len(outcome.tier.name) for outcome in outcomes)
    lines = [f"\n{'tier':{width}}  passed  failed  skipped     time"]
    for name, some in [*((outcome.tier.name, [outcome]) for outcome in outcomes), ("all", outcomes)]:
        passed, failed, skipped = (sum(one.count(result) for one in some) for result in RESULTS)
        lines.append(f"{name:{width}}  {passed:6}  {failed:6}  {skipped:7}  {clock(sum(one.seconds for one in some))}")
    failures = [f"  {outcome.tier.name}: {failure}" for outcome in outcomes for failure in outcome.failures]
    if failures:
        lines += ["", "failed:", *failures]
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        for case in outcome.cases:
            if case.result == "skipped":
                reasons[case.reason][case.test.partition("::")[0]] += 1
    if reasons:
        lines += ["", "skipped:"]
        lines += [
            f"  {sum(files.values())} × {reason} ({', '.join(sorted(files))})" for reason, files in reasons.items()
        ]
    return "\n".join(lines)


def clock(seconds: float) -> str:
    """Minutes and seconds, in seven characters."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes:4}:{rest:02}"


def run(tiers: Iterable[Tier]) -> int:
    """Run each tier, whatever the one before did; print the summary; return the exit code."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    interrupted = False
    try:
        for tier in tiers:
            outcomes.append(tier.run())
    except KeyboardInterrupt:
        interrupted = True
    if outcomes:
        print(summary(outcomes), flush=True)
    return 130 if interrupted else int(any(outcome.failures for outcome in outcomes))


# Shards


def record() -> int:
    """Write the times of the last run of every shard into the table."""
    table: shards.Table = {}
    tiers = [tier for number in range(1, shards.SHARDS + 1) for tier in slow(number)]
    for tier in tiers:
        if not tier.seconds.exists() or (tier not in BESIDE and not tier.report.exists()):
            print(f"tiers: '{tier.name}' has not run to its end: `python tools/tiers.py slow` runs all shards.", file=sys.stderr)
            return 1
    for tier in tiers:
        if tier in BESIDE:
            table[tier.name] = shards.Record(float(tier.seconds.read_text()) * shards.CORES, 1)
            continue
        for case in cases(tier.report):
            name = shards.function(case.test)
            before = table.get(name, shards.Record(0, 0))
            table[name] = shards.Record(before.seconds + case.seconds, before.tests + 1)
    shards.write(table, shards.TABLE)
    return 0


def plan() -> int:
    """Print how much each shard has to do."""
    table = shards.read()
    filled = shards.Plan(table)
    for number, seconds in enumerate(filled.seconds, start=1):
        tiers = ", ".join(tier.name for tier in slow(number)[1:])
        print(f"shard {number}: {clock(seconds / shards.CORES)} on {shards.CORES} cores{tiers and f', with {tiers}'}")
    return 0


def main(words: Sequence[str]) -> int:
    """Run what is asked for; returns the exit code."""
    numbers = range(1, shards.SHARDS + 1)
    every = [tier for number in numbers for tier in slow(number)]
    match list(words):
        case ["quick"]:
            return run(QUICK)
        case ["slow"]:
            return run(every)
        case ["slow", number] if number in map(str, numbers):
            return run(slow(int(number)))
        case ["all"]:
            return run([*QUICK, *every])
        case ["plan"]:
            return plan()
        case ["record"]:
            return record()
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
