"""The size of the source at some commits: lines per package, functions too long, classes with too many methods.

    python tools/sizes.py 651370d HEAD

Lines are all lines of a file; a function's length includes its docstring. `tests/project/test_architecture.py` holds
the source to `LONGEST_FUNCTION` and `MOST_METHODS`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST_FUNCTION = 70  # lines
MOST_METHODS = 15


def too_large(text: str, file: str) -> Iterator[str]:
    """The functions and classes of a file that exceed the limits, each as a line to print."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                yield f"{file}: {node.name} has {lines} lines"
        elif isinstance(node, ast.ClassDef):
            methods = sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body)
            if methods > MOST_METHODS:
                yield f"{file}: {node.name} has {methods} methods"


def git(*arguments: str) -> str:
    """The output of a git command."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def package(file: str) -> str:
    """The package of a source file: `plrp` for the modules of the core."""
    parts = Path(file).parts[2:]
    return parts[0] if len(parts) > 1 else "plrp"


def measure(commit: str) -> tuple[Counter[str], list[str]]:
    """Lines per package (C code and page scripts apart), and everything that exceeds the limits."""
    sizes: Counter[str] = Counter()
    excess: list[str] = []
    for file in git("ls-tree", "-r", "--name-only", commit, "src").splitlines():
        if not file.endswith((".py", ".c", ".h", ".js")):
            continue
        text = git("show", f"{commit}:{file}")
        lines = text.count("\n")
        if file.endswith(".py"):
            sizes[package(file)] += lines
            sizes["all Python"] += lines
            sizes["Python files"] += 1
            excess += too_large(text, file)
        else:
            sizes["C" if file.endswith((".c", ".h")) else "JavaScript"] += lines
    return sizes, excess


def main(commits: list[str]) -> None:
    """Print one column of lines per commit, then the excess of the last one."""
    measured = [measure(commit) for commit in commits]
    rows = sorted({name for sizes, _ in measured for name in sizes}, key=lambda name: measured[-1][0][name])
    print(" " * 14 + "".join(f"{commit[:10]:>12}" for commit in commits))
    for name in rows:
        print(f"{name:<14}" + "".join(f"{sizes[name]:>12,}" for sizes, _ in measured))
    excess = measured[-1][1]
    print(f"{len(excess)} above {LONGEST_FUNCTION} lines or {MOST_METHODS} methods at {commits[-1]}")
    print("\n".join(excess))


if __name__ == "__main__":
    main(sys.argv[1:] or ["HEAD"])
