"""The set-up script: what it refuses, when it works again, and that being cut off does no harm."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "setup.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plrp_setup_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


setup = load()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that installs without a network: no dependencies, and its build backend beside it."""
    (tmp_path / "tools").mkdir()
    shutil.copy(SCRIPT, tmp_path / "tools" / "setup.py")
    (tmp_path / "constraints.txt").write_text("torch==2.15.0\n")
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (tmp_path / "backend.py").write_text(
        "import zipfile\n"
        "def build_editable(folder, config_settings=None, metadata_directory=None):\n"
        "    name = 'tiny-1.0-py3-none-any.whl'\n"
        "    metadata = 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\nProvides-Extra: test\\n'\n"
        "    tags = 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'\n"
        "    info = {'METADATA': metadata, 'WHEEL': tags, 'RECORD': ''}\n"
        "    with zipfile.ZipFile(folder + '/' + name, 'w') as wheel:\n"
        "        for file, text in info.items():\n"
        "            wheel.writestr('tiny-1.0.dist-info/' + file, text)\n"
        "        wheel.writestr('tiny.py', 'answer = 42\\n')\n"
        "    return name\n"
        "def build_wheel(*arguments):\n"
        "    raise NotImplementedError\n"
    )
    return tmp_path


Commands = list[list[str]]


@pytest.fixture
def rehearsal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Commands]:
    """Replaces the running of commands: records them, makes the environment by hand, and fails where told."""

    def install(failing: Callable[[list[str]], BaseException | None] = lambda command: None) -> Commands:
        commands: Commands = []

        def run(command: list[str], folder: Path) -> None:
            commands.append(command)
            if command[1:3] == ["-m", "venv"]:
                python = Path(command[3]) / "bin" / "python"
                python.parent.mkdir()
                python.symlink_to(sys.executable)
            error = failing(command)
            if error is not None:
                raise error

        monkeypatch.setattr(setup, "run", run)
        return commands

    return install


# What it refuses


def test_an_old_python_is_told_what_to_do() -> None:
    with pytest.raises(setup.SetupError, match=r"needs Python 3\.10 or newer and this is 3\.9.*PYTHON=python3\.11"):
        setup.check_python(version=(3, 9, 1))


@pytest.mark.parametrize("module", ["venv", "lzma", "sqlite3"])
def test_a_python_without_a_needed_module_is_told_what_to_install(module: str) -> None:
    def find(name: str) -> None:
        if name == module:
            raise ImportError(name)

    with pytest.raises(setup.SetupError, match=rf"no module {module}: install .*{module}.*PYTHON="):
        setup.check_python(find=find)


def test_the_script_parses_in_pythons_that_are_too_old() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))


def test_without_extras_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.main([]) == 2
    assert setup.main(["--help"]) == 0
    assert "python3 tools/setup.py EXTRA" in capsys.readouterr().out


# When it works again


def test_a_second_call_has_nothing_to_do(project: Path, rehearsal: Callable[..., Commands]) -> None:
    commands = rehearsal()
    environment = setup.Environment(project)
    environment.prepare(["test"])
    assert environment.ready(["test"])
    assert not environment.ready(["demo"])  # other extras have a stamp of their own
    assert any("constraints.txt" in command for command in commands)


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_content_counts_and_a_changed_date_does_not(
    project: Path, rehearsal: Callable[..., Commands], name: str
) -> None:
    rehearsal()
    environment = setup.Environment(project)
    environment.prepare(["test"])
    os.utime(project / name, (2_000_000_000, 2_000_000_000))
    assert environment.ready(["test"])
    then = (project / name).stat()
    (project / name).write_text((project / name).read_text() + "# changed\n")
    os.utime(project / name, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert not environment.ready(["test"])
    assert environment.fault() == ""  # the folder itself is sound and is built upon


def test_a_changed_source_of_the_compiled_loops_counts(project: Path, rehearsal: Callable[..., Commands]) -> None:
    rehearsal()
    environment = setup.Environment(project)
    folder = project / "src" / "plrp" / "fast" / "native"
    folder.mkdir(parents=True)
    (folder / "loops.h").write_text("")
    environment.prepare(["test"])
    assert environment.ready(["test"])
    (folder / "loops.h").write_text("/* changed */")
    assert not environment.ready(["test"])


@pytest.mark.parametrize("status", ["compiled loops in use (2 threads)", "compiled loops not in use: not built"])
def test_missing_loops_are_not_passed_over_in_silence(
    project: Path,
    rehearsal: Callable[..., Commands],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: str,
) -> None:
    rehearsal()
    monkeypatch.setattr(setup.Environment, "ask", lambda self, program: status if "native" in program else "3 11")
    setup.Environment(project).prepare(["test"])
    assert ("compiled loops not in use: not built" in capsys.readouterr().out) == ("not in use" in status)


# uv, else pip


def installers(commands: Commands) -> list[list[str]]:
    return [command for command in commands if "-e" in command]


def test_uv_installs_with_the_constraints(project: Path, rehearsal: Callable[..., Commands]) -> None:
    commands = rehearsal()
    setup.Environment(project).prepare(["test", "docs"])
    (command,) = installers(commands)
    assert command[1:4] == ["-m", "uv", "pip"]
    assert command[-4:] == ["-c", "constraints.txt", "-e", ".[docs,test]"]


@pytest.mark.parametrize("stage", ["had", "run"])
def test_pip_takes_over_with_the_same_constraints(
    project: Path, rehearsal: Callable[..., Commands], stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(command: list[str]) -> BaseException | None:
        broken = command[-1] == "uv" if stage == "had" else command[2:3] == ["uv"]
        return setup.SetupError("no uv today") if broken else None

    commands = rehearsal(failing)
    environment = setup.Environment(project)
    environment.prepare(["test"])
    last = installers(commands)[-1]
    assert last[1:3] == ["-m", "pip"]
    assert last[-4:] == ["-c", "constraints.txt", "-e", ".[test]"]
    assert environment.ready(["test"])
    assert "no uv today" in capsys.readouterr().out


def test_when_nothing_installs_one_sentence_says_so(project: Path, rehearsal: Callable[..., Commands]) -> None:
    rehearsal(lambda command: setup.SetupError("exit code 1") if "install" in command else None)
    environment = setup.Environment(project)
    with pytest.raises(setup.SetupError, match=r"neither uv nor pip.*check the network"):
        environment.prepare(["test"])
    assert not environment.ready(["test"])
    assert environment.fault() == ""  # reported failures leave whole packages: the next call goes on from here


# Being cut off


def test_an_interrupted_installation_starts_afresh(project: Path, rehearsal: Callable[..., Commands]) -> None:
    environment = setup.Environment(project)
    rehearsal(lambda command: KeyboardInterrupt() if "-e" in command else None)
    with pytest.raises(KeyboardInterrupt):
        environment.prepare(["test"])
    assert not environment.ready(["test"])
    assert environment.fault() == "an earlier set-up was cut off"

    (environment.folder / "half-written-package").touch()
    rehearsal()
    environment.prepare(["test"])
    assert environment.ready(["test"])
    assert not (environment.folder / "half-written-package").exists()


def test_an_environment_whose_python_is_gone_or_another_is_made_anew(
    project: Path, rehearsal: Callable[..., Commands]
) -> None:
    environment = setup.Environment(project)
    rehearsal()
    environment.prepare(["test"])
    environment.python.unlink()
    assert not environment.ready(["test"])
    assert environment.fault() == "its Python does not start"
    environment.python.write_text("#!/bin/sh\necho 3 7\n")
    environment.python.chmod(0o755)
    assert environment.fault() == "it was made with another Python"


def call(project: Path, **environment: str) -> subprocess.Popen[str]:
    """The script as make calls it, with no index to fetch from: uv cannot be had, pip needs nothing."""
    return subprocess.Popen(
        [sys.executable, "tools/setup.py", "test"],
        cwd=project,
        env={
            **os.environ,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "",
            "PIP_CONFIG_FILE": os.devnull,
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_for_real_killed_then_set_up_then_nothing_to_do(project: Path) -> None:
    """kill -9 as soon as the folder appears; then a whole set-up, without uv; then nothing left to do."""
    killed = call(project)
    while not (project / ".venv" / "bin").exists():
        assert killed.poll() is None, killed.communicate()[0]
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not list((project / ".venv").glob("plrp-setup-test"))

    whole = call(project)
    output, _ = whole.communicate()
    assert whole.returncode == 0, output
    assert "an earlier set-up was cut off" in output
    assert "trying pip" in output
    python = project / ".venv" / "bin" / "python"
    assert subprocess.check_output([python, "-c", "import tiny; print(tiny.answer)"], text=True) == "42\n"

    again = call(project)
    output, _ = again.communicate()
    assert (again.returncode, output) == (0, "")
