"""The command line as a person meets it: help that teaches, errors in one sentence, exit codes that tell."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import plrp
from plrp import cli
from plrp.errors import UsageError


def test_help_names_every_command_and_a_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    text = capsys.readouterr().out
    assert "plrp demo" in text
    assert "import plrp" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out.startswith("plrp 0.")


def test_without_a_command_it_helps_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "COMMAND" in capsys.readouterr().out


def test_an_unknown_command_exits_with_2() -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["explode"])


PROGRAM = """
import sys
import plrp
from plrp import cli
from plrp.errors import UsageError
try:
    code = cli.main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
print(code, *{"torch", "numpy"} & set(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--help", 0),
        ("explain --help", 0),
        ("genomics explain --help", 0),
        ("explode", 2),
        ("explain photo.jpg -p 2", 2),
        ("sweep", 2),
        ("sweep --set p=[0] --limit 0", 2),
        ("explain photo.jpg --composite epsilon-minus", 2),
        ("genomics explain x.fa --model m.pt --out out --composite epsilon-minus", 2),
    ],
)
def test_help_and_wrong_usage_wait_for_no_torch(words: str, code: int) -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM, *words.split()], capture_output=True, text=True).stderr
    assert said.splitlines()[-1] == str(code)


def test_an_interruption_while_torch_is_imported_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-c", PROGRAM, "demo", "--out", str(tmp_path / "demo")]
    outcome = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert outcome.stderr.splitlines()[0] == "plrp: interrupted"
    assert outcome.stderr.splitlines()[-1].split()[0] == "130"


@pytest.mark.parametrize(
    ("native", "said"), [("1", "compiled loops"), ("0", "compiled loops not in use: PLRP_NATIVE=0")], ids=["", "off"]
)
def test_the_version_says_which_code_explains(native: str, said: str) -> None:
    environment = {**os.environ, "PLRP_NATIVE": native}
    command = [sys.executable, "-m", "plrp" if native == "0" else "plrp.cli", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert found.startswith(f"plrp {plrp.__version__}, torch {torch.__version__}; {said}")


def test_commands_know_the_composites_without_torch() -> None:
    assert set(plrp.settings.COMPOSITES) == {"auto", *plrp.composites.names()}


def test_functions_named_as_their_modules_stay_functions() -> None:
    program = (
        "import plrp.tape.trace, plrp.explanation, plrp.experiments.sweeps\n"
        "from plrp import *\n"
        "assert plrp.trace is trace is not None and callable(trace)\n"
        "assert callable(plrp.explain) and callable(plrp.experiments.sweep)\n"
        "assert plrp.rules is rules and rules.Epsilon\n"
        "assert not hasattr(plrp, 'vison')\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def with_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Gives the command line one sub-command, `fail`, that raises."""

    def run(arguments: argparse.Namespace) -> int:
        raise error

    def build_parser() -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser()
        parser.add_argument("--debug", action="store_true")
        parser.add_subparsers().add_parser("fail").set_defaults(run=run)
        return parser

    monkeypatch.setattr(cli, "build_parser", build_parser)


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (UsageError("p must lie in [0, 1)"), ["plrp: p must lie in [0, 1)"]),
        (ValueError("p must lie in [0, 1)"), ["plrp: ValueError in HERE: p must lie in [0, 1)"]),
        (KeyError("x"), ["plrp: KeyError in HERE: 'x'", "plrp: `plrp --debug ...` shows where this happened"]),
        (AssertionError(), ["plrp: AssertionError in HERE: ", "plrp: `plrp --debug ...` shows where this happened"]),
    ],
)
def test_errors_are_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, lines: list[str]
) -> None:
    """Those of code that is not plrp's, as here, name its line."""
    with_command(monkeypatch, error)
    assert cli.main(["fail"]) == getattr(error, "exit_code", 1)
    here = re.compile(r"(?<= in ).*test_cli\.py, line \d+ \(`raise error`\)")
    assert [here.sub("HERE", line) for line in capsys.readouterr().err.splitlines()] == lines


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with_command(monkeypatch, ValueError("here"))
    with pytest.raises(ValueError, match="here"):
        cli.main(["--debug", "fail"])


def test_an_interruption_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    with_command(monkeypatch, KeyboardInterrupt())
    assert cli.main(["fail"]) == 130


def test_a_reader_that_leaves_early_causes_no_complaint() -> None:
    """`plrp ... | head`: standard output is closed while the command still writes."""
    program = (
        "import sys, argparse\n"
        "from plrp import cli\n"
        "def run(arguments):\n"
        "    while True: print('line')\n"
        "parser = argparse.ArgumentParser(); parser.set_defaults(run=run, debug=False)\n"
        "cli.build_parser = lambda: parser\n"
        "sys.exit(cli.main([]))\n"
    )
    command = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert command.stdout is not None
    assert command.stderr is not None
    assert command.stdout.readline() == b"line\n"
    command.stdout.close()
    complaint = command.stderr.read()
    assert (command.wait(), complaint) == (1, b"")
