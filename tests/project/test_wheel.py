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
from plrp.fast import native


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """A command outside the project's folder and without its paths; returns what it printed."""
    clean = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    outcome = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**clean, **environment}, text=True, capture_output=True
    )
    assert outcome.returncode == 0, f"{command}\n{outcome.stdout}\n{outcome.stderr}"
    return outcome.stdout


def build(source: Path, **environment: str) -> Path:
    """plrp's wheel, built from its source archive, and that from a copy of exactly what it is made of."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    left_out = shutil.ignore_patterns("*.egg-info", "__pycache__", "*.so", "*.pyd")
    shutil.copytree(ROOT / "src", source / "src", ignore=left_out)
    run(sys.executable, "-m", "build", "--outdir", source / "dist", source, cwd=source, **environment)
    (built,) = (source / "dist").glob("plrp-*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as this machine builds it."""
    return build(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def plain_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as a machine builds it whose compiler always fails."""
    return build(tmp_path_factory.mktemp("plain"), CC="false", CXX="false")


def uv() -> str | None:
    """uv, which links torch from its cache: seconds instead of minutes."""
    try:
        from uv import find_uv_bin
    except ImportError:
        return None
    return str(find_uv_bin())


def install(inside: Path, *what: str | Path) -> None:
    """Into the environment of a Python."""
    tool = (uv(), "pip", "install", "--python", inside) if uv() else (inside, "-m", "pip", "install")
    run(*tool, "--quiet", *what, cwd=inside.parent)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty environment into which the wheel, and so torch and numpy, were installed."""
    folder = tmp_path_factory.mktemp("empty") / "environment"
    tool = (uv(), "venv", "--quiet", "--python", sys.executable) if uv() else (sys.executable, "-m", "venv")
    run(*tool, folder, cwd=folder.parent)
    inside = folder / "bin" / "python"
    install(inside, "-c", ROOT / "constraints.txt", wheel)
    return inside


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"plrp"}
    assert "plrp/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    source = [file for kind in ("*.py", "front/*") for file in (ROOT / "src" / "plrp").rglob(kind)]
    missing = {file.relative_to(ROOT / "src").as_posix() for file in source} - set(names)
    assert not missing


def compiled(wheel: Path) -> list[str]:
    return [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".so", ".pyd"))]


@pytest.mark.slow
def test_the_wheel_holds_the_compiled_loops_and_they_load(wheel: Path, python: Path, tmp_path: Path) -> None:
    if native._native is None:
        pytest.skip("no compiler made the loops here")
    assert [name.split(".")[0] for name in compiled(wheel)] == ["plrp/fast/native/_native"]
    asked = "from plrp.fast import native; print(native.available())"
    assert run(python, "-I", "-c", asked, cwd=tmp_path) == "True\n"


WITHOUT_COMPILER = """
import sys
sys.path.insert(0, {folder!r})
import plrp, torch
from plrp.fast import native
print(plrp.__file__, native.available())
torch.manual_seed(0)
layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3), torch.nn.ReLU()]
model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(16 * 28 * 28, 5)).eval()
x = torch.randn(2, 3, 32, 32)
for pruning in (None, plrp.Pruning(p=0.5), plrp.Pruning(p=0.5, redistribution="M")):
    found = plrp.explain(model, x, pruning=pruning)
    with plrp.plain_walk():
        expected = plrp.explain(model, x, pruning=pruning)
    assert float(expected.relevance.abs().sum()) > 0
    assert torch.allclose(found.relevance, expected.relevance, rtol=1e-4, atol=1e-6)
"""


@pytest.mark.slow
def test_without_a_compiler_plrp_is_built_installed_and_explains(
    plain_wheel: Path, wheel: Path, python: Path, tmp_path: Path
) -> None:
    assert compiled(plain_wheel) == []
    both = [set(zipfile.ZipFile(one).namelist()) for one in (wheel, plain_wheel)]
    assert {name for name in both[0] - both[1] if ".dist-info/" not in name} == set(compiled(wheel))
    folder = tmp_path / "installed"
    install(python, "--no-deps", "--no-index", "--target", folder, plain_wheel)
    printed = run(python, "-I", "-c", WITHOUT_COMPILER.format(folder=str(folder)), cwd=tmp_path)
    assert printed == f"{folder / 'plrp' / '__init__.py'} False\n"


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
    assert outcome.returncode == 2
    assert "pip install 'plrp[" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert not list(tmp_path.iterdir())


IMPORTED = """
import sys
import numpy, torch
before = set(sys.modules)
import plrp
plrp.explain  # loaded when it is first used
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


@pytest.mark.slow
def test_a_pure_wheel_fits_every_system(tmp_path: Path) -> None:
    run(sys.executable, ROOT / "tools/pure_wheel.py", "--out", tmp_path, cwd=tmp_path)
    (built,) = tmp_path.glob("*.whl")
    assert built.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(built).namelist() if name.endswith((".so", ".c", ".h"))]
