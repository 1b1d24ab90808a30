"""The wheel works where there is nothing but what it asks for, and importing plrp brings nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pages import ROOT, three_lines


def run(*command: str | Path, cwd: Path) -> str:
    """A command outside the project's folder and without its paths; returns what it printed."""
    clean = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    outcome = subprocess.run(list(map(str, command)), cwd=cwd, env=clean, text=True, capture_output=True)
    assert outcome.returncode == 0, f"{command}\n{outcome.stdout}\n{outcome.stderr}"
    return outcome.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """plrp's wheel, built from a copy of exactly what it is made of."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--outdir", source / "dist", source, cwd=source)
    (built,) = (source / "dist").glob("plrp-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty environment into which the wheel, and so torch and numpy, were installed."""
    folder = tmp_path_factory.mktemp("empty") / "environment"
    inside = folder / "bin" / "python"
    constraints = ("-c", ROOT / "constraints.txt")
    try:
        import uv

        tool = uv.find_uv_bin()  # links torch from its cache: seconds instead of minutes
    except ImportError:
        run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
        run(inside, "-m", "pip", "install", "--quiet", *constraints, wheel, cwd=folder.parent)
    else:
        run(tool, "venv", "--quiet", "--python", sys.executable, folder, cwd=folder.parent)
        run(tool, "pip", "install", "--quiet", "--python", inside, *constraints, wheel, cwd=folder.parent)
    return inside


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"plrp"}
    assert "plrp/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    missing = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")} - set(names)
    assert not missing


def test_the_three_lines_run_where_only_torch_and_numpy_are(python: Path, tmp_path: Path) -> None:
    example = three_lines()
    assert run(python, "-I", "-c", example.first + "\n" + example.code, cwd=tmp_path) == "torch.Size([2, 3, 16, 16])\n"
    where = run(python, "-I", "-c", "import plrp; print(plrp.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(python.parents[1])
    extras = "torchvision matplotlib PIL pandas scipy rich"
    present = f"from importlib.util import find_spec; print(*filter(find_spec, '{extras}'.split()))"
    assert run(python, "-I", "-c", present, cwd=tmp_path) == "\n"


def test_the_command_line_helps_without_any_extra(python: Path, tmp_path: Path) -> None:
    plrp = python.parent / "plrp"
    assert run(plrp, "--version", cwd=tmp_path).startswith("plrp ")
    commands = run(plrp, "--help", cwd=tmp_path)
    assert "demo" in commands
    outcome = subprocess.run([plrp, "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert outcome.returncode == 1
    assert "pip install 'plrp[" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert not list(tmp_path.iterdir())


IMPORTED = """
import sys
import numpy, torch
before = set(sys.modules)
import plrp
print(*sorted(set(sys.modules) - before))
"""


def test_importing_plrp_imports_nothing_that_torch_and_numpy_did_not() -> None:
    """Deterministic stand-in for the time it takes; benchmarks/import_time.py measures that."""
    added = run(sys.executable, "-c", IMPORTED, cwd=ROOT / "tests").split()
    assert "plrp" in added
    foreign = {name for name in added if name.split(".")[0] != "plrp"}
    allowed = {name for name in foreign if name.split(".")[0] in sys.stdlib_module_names}
    assert foreign == allowed
    optional = {"plrp.metrics", "plrp.vision", "plrp.genomics", "plrp.cli", "plrp.models", "plrp.interop"}
    assert not optional & set(added)
