"""Is plrp no slower than it was? Old and new code in turns in one run; exit code 1 where the new one is slower.

    python benchmarks/no_slower.py --base COMMIT        a commit, checked out and built in a temporary folder
    python benchmarks/no_slower.py --old TREE           a source tree; --new TREE: this one by default

One process per tree measures when it is told to, while the other waits. A round is old, new, new, old, the next one
new, old, old, new; its ratio is new / old, of the quicker of two each, so that a moment's load on the machine does not
count. Freed memory stays with the processes: some of them would give it back to the system after every explanation and
take it anew, ten thousand page faults each time, and others with the same code would not. What is left of such luck
(where memory came to lie) lasts as long as a process, so there are several pairs of processes one after the other.
Slower means that the whole 95% interval of the median ratio (bootstrap over pairs, and over the rounds of each) lies
above 1.03. The processes use plrp's public names only, so a tree may be laid out in any way. Use a quiet machine.
`--quick` only tries whether all this works, and never fails for slowness. Not part of `make bench`.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from timing import options, progress, seconds

ROOT = Path(__file__).resolve().parents[1]
BOUND = 1.03
KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(1 << 32)}  # of glibc
LEAST = 0.3  # seconds per measurement: explanations that take less are repeated, and the quickest counts
METHODS = {"LRP": None, "λ 0.2": "lambda", "M 0.2": "M"}  # → the redistribution of Pruning(0.2)
WHOLE = ("circuit", "page")  # of one photograph: the edges of its circuit at p = 0.15; a page with channels


class Case(NamedTuple):
    """What is measured: one method on one batch."""

    model: str
    batch: int
    method: str

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch}, {self.method}"


SEQUENCES = [Case("sequences", 512, method) for method in ("LRP", "λ 0.2")]
CASES = [Case(m, b, method) for m in ("resnet50", "vgg16") for b in (1, 8) for method in METHODS] + SEQUENCES
CASES += [Case("resnet50", 1, method) for method in WHOLE]
QUICK = [Case("sequences", 16, method) for method in ("LRP", "λ 0.2")]


# --- the measuring process --------------------------------------------------------------------------------------------


def serve() -> None:
    """Answer each line, a case and how often it is to run, with the seconds it took and the mass it explained."""
    import torch

    import plrp
    from methods import Run, ours
    from sequences import one_hot
    from subjects import calibrate, load, photographs

    answers = os.fdopen(os.dup(1), "w")  # whatever else is printed goes to the terminal
    os.dup2(2, 1)

    @cache
    def subject(name: str, batch: int) -> tuple[torch.nn.Module, torch.Tensor]:
        if name != "sequences":
            return load(name), photographs(batch, 224)
        from plrp.genomics import SequenceCNN

        torch.manual_seed(0)
        model, x = SequenceCNN(32), one_hot(batch)
        calibrate(model, x)
        return model.eval(), x

    def bound(case: Case) -> Run:
        if case.method in WHOLE:
            return whole(case)
        redistribution = METHODS[case.method]
        pruning = None if redistribution is None else plrp.Pruning(0.2, redistribution=redistribution)
        composite = "epsilon-plus" if case.model == "sequences" else "epsilon-plus-flat"
        return ours(pruning, composite)(*subject(case.model, case.batch))

    def whole(case: Case) -> Run:
        """A circuit or a page; returns numbers to compare: the relevance of its edges, or of the explained sample."""
        model, x = subject(case.model, case.batch)
        explanation = plrp.explain(model, x, pruning=plrp.Pruning(0.15), composite="epsilon-plus-flat")
        if case.method == "circuit":
            circuit = explanation.circuit()
            return lambda: torch.tensor([edge.relevance for edge in circuit.edges(nodes=1)])

        def page() -> torch.Tensor:
            with tempfile.TemporaryDirectory() as folder:
                explanation.save(Path(folder) / "page.html", proportions=(0.05, 0.15), targets=1, show_progress=False)
            return explanation.relevance

        return page

    def answer(**content: Any) -> None:
        print(json.dumps(content), file=answers, flush=True)

    answer(plrp=plrp.__file__, threads=torch.get_num_threads())
    last: tuple[str, int] | None = None
    for line in sys.stdin:
        *what, times = json.loads(line)
        case = Case(*what)
        if last != case[:2]:
            subject.cache_clear()
            last = case[:2]
        run = bound(case)
        if not times:  # the first time: load, warm up, and say what comes out
            answer(mass=float(run().double().abs().sum()), seconds=seconds(run))
        else:
            gc.collect()
            answer(seconds=min(seconds(run) for _ in range(times)))


class Tree:
    """A source tree and the process that measures it."""

    def __init__(self, folder: Path, threads: int | None) -> None:
        environment = {**os.environ, **KEEPS_MEMORY, "PYTHONPATH": str(folder / "src")}
        if threads:
            environment["OMP_NUM_THREADS"] = str(threads)
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment,
        )  # fmt: skip
        hello = self._answer()
        self.threads = hello["threads"]
        if not Path(hello["plrp"]).resolve().is_relative_to(folder.resolve()):
            raise SystemExit(f"{folder} has no plrp: {hello['plrp']} was imported. Name a tree with src/plrp.")

    def run(self, case: Case, times: int) -> dict[str, float]:
        """Measure now; 0 times: prepare."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([*case, times]) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the measuring process ended with exit code {self.process.wait()}; its error is above")
        return json.loads(line)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


# --- trees ------------------------------------------------------------------------------------------------------------


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A commit of this repository in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="plrp-base-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def build(tree: Path) -> None:
    """Compile the loops of a tree where that has not been done."""
    if not any((tree / "src" / "plrp").rglob("*.so")):
        command = [sys.executable, "-c", "from setuptools import setup; setup()", "build_ext", "--inplace"]
        subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)
    if not any((tree / "src" / "plrp").rglob("*.so")):
        raise SystemExit(f"the compiled loops of {tree} could not be built: without a compiler nothing can be compared")


# --- the verdict ------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """The median of new / old, its 95% interval, and how far the masses of old and new are apart."""

    ratio: float
    low: float
    high: float
    difference: float

    @property
    def slower(self) -> bool:
        return self.low > BOUND

    def __str__(self) -> str:
        return (
            f"{self.ratio:6.3f}   {self.low:.3f} to {self.high:.3f}   {self.difference:.0e}" + "   slower" * self.slower
        )


def judge(pairs: Sequence[Sequence[float]], difference: float = 0.0) -> Verdict:
    """The median of ratios, by pairs of processes, with a percentile bootstrap over pairs and rounds."""
    logs, draw = [np.log(ratios) for ratios in pairs], np.random.default_rng(0)
    drawn = [
        np.median(
            np.concatenate([draw.choice(logs[n], len(logs[n])) for n in draw.integers(len(logs), size=len(logs))])
        )
        for _ in range(2000)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Verdict(math.exp(np.median(np.concatenate(logs))), math.exp(low), math.exp(high), difference)


def compare(case: Case, old: Tree, new: Tree, rounds: int) -> tuple[list[float], float]:
    """The ratios of some rounds, the tree that begins changing from round to round, and how far masses are apart."""
    progress(f"{case}: warming up")
    first = [tree.run(case, 0) for tree in (old, new)]
    times = max(1, math.ceil(LEAST / min(answer["seconds"] for answer in first)))
    ratios: list[float] = []
    for number in range(rounds):
        progress(f"{case}: round {number + 1} of {rounds}")
        one, other = (old, new) if number % 2 == 0 else (new, old)
        took: dict[Tree, list[float]] = {old: [], new: []}
        for tree in (one, other, other, one):
            took[tree].append(tree.run(case, times)["seconds"])
        ratios.append(min(took[new]) / min(took[old]))
    progress.clear()
    masses = [answer["mass"] for answer in first]
    return ratios, abs(masses[1] / masses[0] - 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__)
    parser.add_argument("--base", metavar="COMMIT", help="the commit to compare with")
    parser.add_argument("--old", type=Path, metavar="TREE", help="a source tree to compare with, instead")
    parser.add_argument("--new", type=Path, metavar="TREE", default=ROOT, help="the tree in question (default: this)")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="cases that contain one of these")
    parser.add_argument("--pairs", type=int, help="pairs of processes, one after the other (default: 5)")
    parser.add_argument("--threads", type=int, help="of torch, in both (default: its own number)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.serve:
        serve()
        return 0
    if (args.base is None) == (args.old is None):
        parser.error("say what to compare with: --base COMMIT or --old TREE")
    cases = [case for case in (QUICK if args.quick else CASES) if any(text in str(case) for text in args.only)]
    rounds, pairs = args.rounds or (2 if args.quick else 4), args.pairs or (1 if args.quick else 5)
    rounds_of: dict[Case, list[tuple[list[float], float]]] = {case: [] for case in cases}
    with ExitStack() as stack:
        trees = [args.old or stack.enter_context(checked_out(args.base)), args.new]
        for tree in trees:
            build(tree)
        for number in range(pairs):
            with Tree(trees[0], args.threads) as old, Tree(trees[1], args.threads) as new:
                threads = new.threads
                for case in cases:
                    rounds_of[case].append(compare(case, old, new, rounds))
                    median = float(np.median(rounds_of[case][-1][0]))
                    print(f"  pair {number + 1} of {pairs}: {case!s:<28}{median:6.3f}", file=sys.stderr, flush=True)
    print(f"new / old: median of {pairs} × {rounds} rounds, 95% interval, difference of ‖R‖₁; {threads} threads")
    slower = []
    for case, of_pairs in rounds_of.items():
        verdict = judge([ratios for ratios, _ in of_pairs], max(difference for _, difference in of_pairs))
        print(f"  {case!s:<28}{verdict}", flush=True)
        slower += [case] if verdict.slower else []
    if slower and not args.quick:
        print(f"slower, the whole interval above {BOUND}: {'; '.join(map(str, slower))}")
    return 1 if slower and not args.quick else 0


if __name__ == "__main__":
    sys.exit(main())
