"""Mutation tests of the core: which small changes of its files does no test notice? tests/mutants.md explains them.

    pip install mutmut==3.8.1
    python tools/mutants.py FOLDER --seconds 1.5   # every mutant, by the first tests that run the changed line
    python tools/mutants.py FOLDER --seconds 600   # the survivors of that, by more of these tests
    python tools/mutants.py FOLDER --list          # the survivors, with their changes

mutmut makes the mutants. Its own runner collects the tests anew for each of them, which takes hours here. This one
collects them once, and forks. FOLDER receives a copy of the project, the mutated files and `results.json`; a call
that was stopped goes on. A mutant that mypy refuses is not run. Tests that killed mutants of the same function come
first, then two cases of each test, quick tests first. Mutants come in an order drawn with seed 0.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import pickle
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = [f"src/plrp/{name}.py" for name in "rules pruning walk passing ledger tape/samples tape/locating".split()]
NAMES = (
    "rules_oracle pruning_oracle gain_oracle theta units ledger conservation passing walk pruning_edges errors request "
    "balance conditions attention invariance seeds targets auto pieces zennit circuits explanation_files choosing "
    "activations differences networks"
)
TESTS = [f"tests/test_{name}.py" for name in NAMES.split()]
TESTS += [
    f"tests/tape/test_{name}.py"
    for name in "own_rules samples locating operations replay trace recurrence silence".split()
]
TESTS += ["tests/graphs/test_walks.py", "tests/graphs/test_graph_networks.py"]
EXAMPLES = 20  # of a hypothesis test


class Mutant(NamedTuple):
    """One changed function: its name for the trampolines, the place of the change in the original, and the change."""

    name: str
    place: tuple[str, int]
    change: str


def mutate(folder: Path) -> list[Mutant]:
    """Copy the project with its files mutated; returns the mutants."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    os.chdir(folder)
    original = {file: Path(file).read_text() for file in FILES}
    named = {}
    for file, text in original.items():
        mutated = mutate_file_contents(file, text)
        Path(file).write_text(mutated.code)
        named[file] = mutated.line_span_by_function_name
    refused = refused_by_types(folder)
    mutants, results = [], {}
    for file, text in original.items():
        mutated = mutate_file_contents(file, with_bare_properties(text))
        Path(file).write_text(mutated.code)
        lines, spans = mutated.code.split("\n"), mutated.line_span_by_function_name
        source = {name: lines[span.start - 1 : span.end] for name, span in spans.items()}
        module = file.removeprefix("src/").removesuffix(".py").replace("/", ".")
        for name in mutated.mutant_names:
            whole = f"{name.partition('__mutmut_')[0]}__mutmut_orig"
            old, new = ([line.replace(f"def {n}(", "def _(") for line in source[n]] for n in (whole, name))
            first = next(n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
            end = next(n for n, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False)) if a != b)
            was, now = old[first : len(old) - end], new[first : len(new) - end]
            change = "\n".join([f"- {line}" for line in was] + [f"+ {line}" for line in now])
            mutants.append(Mutant(f"{module}.{name}", (str(folder / file), spans[whole].start + first), change))
            span = named[file].get(name)
            if span and any(span.start <= line <= span.end for line in refused.get(file, ())):
                results[f"{module}.{name}"] = {"status": "types"}
    (folder / "results.json").write_text(json.dumps(results))
    return mutants


def with_bare_properties(text: str) -> str:
    """The source with `name = property(name)` in place of decorators, since mutmut leaves decorated functions alone."""
    lines = text.split("\n")
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    for method in reversed([node for one in classes for node in one.body if isinstance(node, ast.FunctionDef)]):
        if [ast.unparse(name) for name in method.decorator_list] in (["property"], ["cached_property"]):
            (name,) = method.decorator_list
            lines.insert(method.end_lineno or 0, f"    {method.name} = {ast.unparse(name)}({method.name})")
            del lines[name.lineno - 1]
    return "\n".join(lines)


def refused_by_types(folder: Path) -> dict[str, list[int]]:
    """The lines of each file that mypy refuses."""
    run = subprocess.run([sys.executable, "-m", "mypy", "--output", "json"], cwd=folder, capture_output=True, text=True)
    refused: dict[str, list[int]] = {}
    for error in (json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")):
        if error["severity"] == "error" and error["code"] != "unused-ignore":
            refused.setdefault(error["file"], []).append(error["line"])
    return refused


class Loop:
    """A pytest plugin that takes the place of its loop: each mutant in a process of its own, by the collected tests."""

    def __init__(self, folder: Path, mutants: Sequence[Mutant], seconds: float, until: float) -> None:
        self.folder, self.mutants, self.seconds, self.until = folder, mutants, seconds, until
        self.results = json.loads((folder / "results.json").read_text())
        self.killers: dict[str, Counter[str]] = {"": Counter()}  # by function; "": of all
        for name, result in self.results.items():
            self.note(name, result.get("by", ""))
        self.report = -1

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure the tests once, then try every mutant that no test has killed yet."""
        self.items = {item.nodeid: item for item in session.items if not item.get_closest_marker("slow")}
        for item in self.items.values():
            few_examples(item)
        path = self.folder / "measured.pickle"
        if not path.exists():
            path.write_bytes(pickle.dumps(({}, {})))
        pid = os.fork()
        if pid == 0:
            self.measure(path)
        os.waitpid(pid, 0)
        self.took, self.ran = pickle.loads(path.read_bytes())
        for number, mutant in enumerate(self.mutants):
            if time.time() > self.until:
                break
            self.attempt(mutant)
            if number % 20 == 0:
                self.save()
        self.save()
        return True

    def save(self) -> None:
        """Write the results so far."""
        (self.folder / "results.json").write_text(json.dumps(self.results, indent=0))

    def measure(self, path: Path) -> None:
        """The seconds of each new test that passes, and the lines of the mutated files that it runs."""
        from coverage import Coverage  # mutmut needs it too

        files = [str(self.folder / file) for file in FILES]
        coverage = Coverage(data_file=None, include=files, config_file=False)
        took, ran = pickle.loads(path.read_bytes())
        new = [nodeid for nodeid in self.items if nodeid not in took]
        coverage.start()
        for nodeid in new:
            self.failed, begin = "", time.perf_counter()
            coverage.switch_context(nodeid)
            item = self.items[nodeid]
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
            if self.failed:
                print("without a mutant", nodeid, self.failed, file=sys.stderr, flush=True)
            else:
                took[nodeid] = time.perf_counter() - begin
        coverage.stop()
        ran |= {nodeid: set() for nodeid in new if nodeid in took}
        for file in files:
            tests = coverage.get_data().contexts_by_lineno(file)
            for first, lines in functions(file):
                tests[first] = sorted({test for line in lines for test in tests.get(line, ())})
            for line, nodeids in tests.items():
                for nodeid in {nodeid for nodeid in nodeids if nodeid in ran}:
                    ran[nodeid].add((file, line))
        path.write_bytes(pickle.dumps((took, ran)))
        os._exit(0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure; a mutant is dead then."""
        if report.failed and self.report >= 0:
            os.write(self.report, report.nodeid.encode())
            os._exit(0)
        if not report.passed:
            self.failed = report.outcome

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that run the changed line: those that killed other mutants of the function, then the quick ones."""
        file, line = mutant.place
        while line not in code_lines(file):  # a line inside a statement, which Python names by its first one
            line -= 1
        kills, every = self.killers.get(mutant.name.partition("__mutmut_")[0], Counter()), self.killers[""]
        tests = [test for test, lines in self.ran.items() if (file, line) in lines and test in self.items]
        tests.sort(key=lambda test: (-every[test] / self.took[test], self.took[test]))
        return sorted(tests, key=lambda test: (-kills[test], self.took[test]))

    def note(self, name: str, killer: str) -> None:
        """Count a kill for a test, so that it comes early next time."""
        for function in ("", name.partition("__mutmut_")[0]) if killer else ():
            self.killers.setdefault(function, Counter())[killer] += 1

    def attempt(self, mutant: Mutant) -> None:
        """Try the tests of a mutant until one fails, or until they have taken their seconds."""
        result = self.results.setdefault(mutant.name, {"status": "untested", "tried": 0.0})
        if result["status"] in ("types", "killed") or result.get("tried", 0.0) >= self.seconds:
            return
        tests, chosen, total = self.tests_of(mutant), [], 0.0
        for test in tests:
            if total < self.seconds:
                chosen.append(test)
                total += self.took[test]
        result |= {
            "change": mutant.change,
            "tests": len(tests),
            "tried": self.seconds,
            "all": len(chosen) == len(tests),
        }
        fresh = [test for test in chosen if test not in result.get("passed", ())]
        if not fresh:
            return
        status, killer = self.run(mutant, fresh, total)
        result |= {"status": status, "by": killer}
        self.note(mutant.name, killer)
        result["passed"] = chosen if status == "survived" else []

    def run(self, mutant: Mutant, tests: Sequence[str], seconds: float) -> tuple[str, str]:
        """The tests in a process of their own: how it ended, and the test that killed the mutant."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.environ["MUTANT_UNDER_TEST"] = mutant.name
            self.report = writing
            items = [self.items[test] for test in tests]
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            os.write(writing, b"survived")
            os._exit(0)
        os.close(writing)
        ready, *_ = select.select([reading], [], [], 60 + 10 * seconds)
        killer = os.read(reading, 10_000).decode(errors="replace") if ready else "timeout"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        if killer in ("survived", "timeout"):
            return killer, ""
        return "killed", killer or "the process itself ended"


@cache
def code_lines(file: str) -> set[int]:
    """The lines of a file that Python can stop at."""
    return {line for _, lines in functions(file) for line in lines}


@cache
def functions(file: str) -> list[tuple[int, set[int]]]:
    """The first line of each function of a file, and all lines at which Python can stop in it."""
    codes, lines = [compile(Path(file).read_text(), file, "exec")], []
    for code in codes:
        lines.append((code.co_firstlineno, {line for *_, line in code.co_lines() if line}))
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return lines


def few_examples(item: Any) -> None:
    """Let a hypothesis test try some examples, without shrinking."""
    from hypothesis import HealthCheck, Phase, settings

    test = getattr(item, "obj", None)
    given = getattr(test, "_hypothesis_internal_use_settings", None)
    if given is not None:
        few, phases = min(EXAMPLES, given.max_examples), (Phase.explicit, Phase.generate)
        test._hypothesis_internal_use_settings = settings(
            given, max_examples=few, phases=phases, database=None, derandomize=True, deadline=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip


def main() -> None:
    """Make the mutants, or go on with them; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0, help="of tests per mutant")
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of mutants' names")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after this time; the next call goes on")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="files of tests, or single tests")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    os.environ |= {"MUTANT_UNDER_TEST": "", "PYTHONDONTWRITEBYTECODE": "1"}
    path = folder / "mutants.pickle"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps([tuple(mutant) for mutant in mutate(folder)]))
    mutants = [Mutant(*fields) for fields in pickle.loads(path.read_bytes())]
    if arguments.list:
        results = json.loads((folder / "results.json").read_text())
        print(Counter(results.get(mutant.name, {"status": "not tried"})["status"] for mutant in mutants))
        for mutant in mutants:
            status = results.get(mutant.name, {"status": "not tried"})["status"]
            if status in ("survived", "untested", "timeout"):
                print(f"{mutant.name}: {status}\n{mutant.change}")
        return
    os.chdir(folder)
    sys.path[:0] = [str(folder / "src"), str(folder / "tests")]
    chosen = [mutant for mutant in mutants if any(fnmatch(mutant.name, pattern) for pattern in arguments.only)]
    random.Random(0).shuffle(chosen)  # so that the first results are a fair sample
    loop = Loop(folder, chosen, arguments.seconds, time.time() + 60 * arguments.minutes)
    pytest.main(
        ["-q", "-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:xdist", "--plain-walk", *arguments.tests],
        plugins=[loop],
    )


if __name__ == "__main__":
    main()
