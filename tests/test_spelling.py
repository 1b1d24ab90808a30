"""Names of files, sequences, classes and layers are shown, and have no effect on a terminal."""

from __future__ import annotations

import ast
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import plrp
from plrp import cli, progress
from plrp.spelling import printable, visible
from plrp.tables import render_table

EVIL = "\x1b[31mred\x07\x9b2J\u202e"
HARMLESS = "␛[31mred␇�2J�"


@given(st.text(st.characters(codec=None)))
def test_a_visible_text_has_no_character_with_an_effect(text: str) -> None:
    shown = visible(text)
    assert {unicodedata.category(c) for c in shown} & {"Cc", "Cs"} == set()
    assert "\u202e" not in shown
    assert len(shown) == len(text)
    assert visible(shown) == shown
    lines = printable(text)
    assert lines.split("\n") == [visible(line) for line in text.split("\n")]
    lines.encode()  # half characters are gone, which a terminal cannot be given


def test_letters_of_any_script_stay_as_they_are() -> None:
    text = "épagneul breton, 柴犬, Σ|R| → λ, 🐕"
    assert printable(text) == visible(text) == text


PRINTERS = {
    "arguments.py": {"say", "tell"},  # which make names visible
    "__init__.py": {"__call__"},  # the version
    "studies.py": {"run_sweep"},  # TOML, which escapes
    "text.py": {"run"},  # coloured text
}
"""The functions of commands that call `print`."""


def test_commands_print_by_say_and_tell() -> None:
    seen: dict[str, set[str]] = {}
    for file in sorted(Path(cli.__file__).parent.glob("*.py")):
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef):
                calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
                if any(isinstance(called, ast.Name) and called.id == "print" for called in calls):
                    seen.setdefault(file.name, set()).add(function.name)
    assert seen == PRINTERS


@pytest.mark.parametrize(
    "command",
    [
        ["explain", f"{EVIL}.jpg"],
        ["genomics", "logo", EVIL, "--out", "x.svg"],
        ["genomics", "explain", f"{EVIL}.fa", "--model", "net.py:build", "--out", "results"],
        ["genomics", "explain", "named.fa", "--model", "net.py:build", "--out", "results"],
        ["report", EVIL],
        ["explode", EVIL],
    ],
    ids=lambda words: " ".join(word for word in words[:3] if EVIL not in word),
)
def test_errors_of_commands_show_names_without_effect(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("named.fa").write_text(f">{EVIL}\nACGT!\n", encoding="utf-8")
    Path("net.py").write_text("from torch import nn\ndef build(): return nn.Conv1d(4, 1, 3)\n")
    with suppress(SystemExit):
        assert cli.main(command) != 0
    said = "".join(capsys.readouterr())
    assert said
    assert not set(EVIL) & {"\x1b", "\x07", "\x9b", "\u202e"} & set(said)


def test_what_commands_say_and_tell_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    from plrp.cli.arguments import say, tell

    say(f"a\n{EVIL}")
    tell(f"b\n{EVIL}")
    assert capsys.readouterr() == (f"b\n{HARMLESS}\n", f"a\n{HARMLESS}\n")


@pytest.mark.parametrize("bar", [None, True], ids=["lines", "bar"])
def test_notes_of_progress_have_no_effect(
    bar: bool | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with progress.progress(f"of {EVIL}", 2, bar, note=EVIL) as step:
        step(1, f"[bold]{EVIL}")
    shown = capsys.readouterr().err
    assert f"of {HARMLESS}" in shown
    assert f"[bold]{HARMLESS}" in shown
    assert "\x1b[31m" not in shown


def layered() -> tuple[nn.Module, torch.Tensor]:
    """A network whose second layer has the name."""
    model = nn.Sequential()
    for name, layer in (("0", nn.Linear(3, 4)), ("1", nn.ReLU()), (EVIL, nn.Linear(4, 2))):
        model.add_module(name, layer)
    return model.eval(), torch.ones(1, 3)


SHOWN: dict[str, Callable[[], Any]] = {
    "table": lambda: render_table(["name"], [[EVIL]]),
    "trace": lambda: plrp.trace(*layered()),
    "ledger": lambda: plrp.explain(*layered(), pruning=plrp.Pruning(p=0.1)).booked,
    "model": lambda: plrp.models.LoadedModel(nn.ReLU(), EVIL, EVIL),
    "saved": lambda: plrp.explanation_files.SavedExplanation(
        torch.ones(1), None, 0, torch.ones(1), EVIL, None, (None,), "1"
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_printed_results_show_names_without_effect(name: str) -> None:
    shown = repr(SHOWN[name]())
    assert HARMLESS in shown
    assert printable(shown) == shown
