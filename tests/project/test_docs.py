"""Every code block of the README and of docs/ runs, prints what it says, and every link leads somewhere."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

import plrp
from pages import PAGES, ROOT, Block, blocks, three_lines
from plrp.cli import build_parser
from plrp.tape import own_rules

LANGUAGES = {"python", "bash", "text", "toml"}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def execute(block: Block, namespace: dict[str, object]) -> str:
    """Runs a block; errors point to the line of the page. Returns what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block.first, namespace)
        exec(compile("\n" * (block.line - 1) + block.code, str(block.page), "exec"), namespace)
    return printed.getvalue()


@pytest.fixture(autouse=True)
def _rules_of_a_page_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_rules, "_REGISTERED", dict(own_rules._REGISTERED))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_python_of_a_page_runs_and_prints_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__page__"}
    printed = None
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{name(page)}:{block.line}: a block in {block.language or 'nothing'}"
        if block.not_run is not None:
            assert len(block.not_run.split()) > 2, f"{name(page)}:{block.line}: not run, and no reason given"
            printed = None
        elif block.language == "python":
            printed = execute(block, namespace)
        elif block.language == "text" and block.follows and printed is not None:
            said, shown = printed.rstrip().splitlines(), block.code.rstrip().splitlines()
            assert [line.rstrip() for line in said] == shown, f"{name(page)}:{block.line}: other output"
            printed = None
        else:
            printed = None


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    for block in blocks(page):
        if block.language == "bash" and block.not_run is None:
            for line in block.code.splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    check_command(words)


def check_command(words: list[str]) -> None:
    """Refuses a command that the repository, its command line or its extras do not know."""
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        named = [word for word in words[1:] if "=" not in word]
        assert set(named) <= set(targets), words
    elif words[0] == "plrp":
        with contextlib.suppress(SystemExit) if "--help" in words else contextlib.nullcontext():
            build_parser().parse_args(words[1:])  # exits, and so fails, on an unknown command or option
    elif words[:2] == ["pip", "install"]:
        extras = metadata("plrp").get_all("Provides-Extra") or []
        for word in words[2:]:
            wanted = re.search(r"\[(.*)\]", word)
            assert wanted is None or set(wanted[1].split(",")) <= set(extras), words
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), words
    else:
        assert words[0] in {"cd", "git"}, f"nobody checks the command {words[0]}"


def test_the_readme_opens_with_the_two_commands_and_three_lines() -> None:
    first, second = blocks(ROOT / "README.md")[:2]
    assert [line.split("#")[0].split() for line in first.code.splitlines()] == [
        ["make", "demo"],
        ["make", "test"],
    ]
    assert second == three_lines()
    assert len(second.code.splitlines()) == 3


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^[ ]*```.*?^[ ]*```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.split("#")[0]).exists(), f"{name(page)} links to {target}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """As `make docs` does: a page nobody links, a dead link or an unknown object in the reference fails."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    for page in (ROOT / "docs").rglob("*.md"):
        relative = page.relative_to(ROOT / "docs").with_suffix("")
        folder = relative.parent if relative.name == "index" else relative
        assert (tmp_path / "site" / folder / "index.html").is_file()


def test_docstrings_reach_the_reference_as_markdown() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from reference_pages import as_markdown
    finally:
        sys.path.pop(0)

    parameters = "Parameters\n----------\nx\n    First line,\n    second line.\ny\n    Another.\n"
    assert as_markdown(f"Purpose.\n\n{parameters}\n>>> f(1)\n2\n") == (
        "Purpose.\n\n- `x`: First line, second line.\n- `y`: Another.\n\n```pycon\n>>> f(1)\n2\n```\n"
    )


def test_the_reference_lists_exactly_the_public_names() -> None:
    """Public is what `__all__` of plrp, of its packages and of its modules lists; the rest is private by convention."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    listed = [name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text("utf-8"), re.MULTILINE)]
    assert len(listed) == len(set(listed))
    source = ROOT / "src" / "plrp"
    modules = {f"plrp.{file.stem}" for file in source.glob("[a-z]*.py")}
    modules |= {f"plrp.{file.parent.name}" for file in source.glob("*/__init__.py")}
    public = {f"plrp.{name}" for name in plrp.__all__} - modules
    for name in modules:
        module = importlib.import_module(name)
        own = (n for n in getattr(module, "__all__", ()) if getattr(module, n) is not getattr(plrp, n, None))
        public |= {f"{name}.{n}" for n in own}
    assert sorted(set(listed) ^ public) == []
