"""How large the source is at some commits: files, lines, the longest functions, and the classes of the walk.

    python tools/sizes.py 563bfcf HEAD

A function's length is that of its body without its docstring and blank lines; lines of files are all of them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WALKS = ("Walk", "Bookkeeper", "FastWalk", "StackedWalk", "Stack")
LONGEST = 8


class Length(NamedTuple):
    """A function or class, and how many lines it has."""

    lines: int
    file: str
    name: str


def git(*arguments: str) -> str:
    """What git answers."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def functions(tree: ast.AST, text: list[str], file: str, within: str = "") -> Iterator[Length]:
    """All functions and methods, with the length of their bodies."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from functions(node, text, file, within)
            continue
        name = f"{within}{node.name}"
        yield from functions(node, text, file, f"{name}.")
        if not isinstance(node, ast.ClassDef):
            documented = ast.get_docstring(node) is not None
            begin = (node.body[0].end_lineno or 0) + 1 if documented else node.body[0].lineno
            yield Length(sum(bool(line.strip()) for line in text[begin - 1 : node.end_lineno]), file, name)


def classes(tree: ast.AST, file: str) -> Iterator[Length]:
    """The classes of the walk."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in WALKS:
            yield Length((node.end_lineno or 0) - node.lineno + 1, file, node.name)


def report(commit: str) -> None:
    """Print the sizes at a commit."""
    python = c = 0
    lengths: list[Length] = []
    walks: list[Length] = []
    names = [
        n for n in git("ls-tree", "-r", "--name-only", commit, "src").splitlines() if n.endswith((".py", ".c", ".h"))
    ]
    for name in names:
        text = git("show", f"{commit}:{name}").splitlines()
        if not name.endswith(".py"):
            c += len(text)
            continue
        python += len(text)
        tree = ast.parse("\n".join(text))
        lengths += functions(tree, text, name)
        walks += classes(tree, name)
    sources = sum(name.endswith(".py") for name in names)
    print(f"{commit}: {sources} Python files with {python:,} lines, {len(names) - sources} C files with {c:,}")
    mean = sum(one.lines for one in lengths) / len(lengths)
    long = sum(one.lines > 50 for one in lengths)
    print(f"  {len(lengths):,} functions of {mean:.1f} lines on average, {long} of more than 50; the longest:")
    for one in sorted(lengths, reverse=True)[:LONGEST]:
        print(f"  {one.lines:>6}  {one.name}  {one.file}")
    print("  the walk:")
    for one in walks:
        print(f"  {one.lines:>6}  {one.name}  {one.file}")


if __name__ == "__main__":
    for revision in sys.argv[1:] or ["HEAD"]:
        report(revision)
