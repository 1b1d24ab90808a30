"""The native border: what each compiled loop computes, what it refuses, and that nothing leaves it unsaid."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import torch
from loop_cases import CASES, Draw
from torch import Tensor

from plrp.fast import native
from plrp.fast.native import signatures

HERE = Path(__file__).parent
SOURCES = Path(native.__file__).parent
compiled = pytest.mark.skipif(not native.available(), reason="no compiled loops here")


# ---------------------------------------------------------------- what the loops compute


@compiled
@pytest.mark.parametrize("loop", CASES)
def test_every_loop_is_its_restatement(loop: str) -> None:
    for seed in range(60):
        case = CASES[loop](Draw(seed))
        assert list(case.arguments) == list(signatures.SIGNATURES[loop])
        returned = native.call(loop, *case.arguments.values())
        assert returned == case.returns, seed
        for name, expected in case.outputs.items():
            found = case.arguments[name]
            found = found.reshape(-1)[: expected.numel()] if found.numel() != expected.numel() else found.reshape(-1)
            near(found, expected.reshape(-1), f"{name}, seed {seed}")


def near(found: Tensor, expected: Tensor, message: str) -> None:
    if not found.is_floating_point():
        assert torch.equal(found, expected.to(found.dtype)), message
        return
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(
        found.double(), expected.double(), rtol=1e-5, atol=1e-5 * scale, msg=lambda text: f"{message}: {text}"
    )


@compiled
@pytest.mark.parametrize("loop", [loop for loop in CASES if "threads" in signatures.SIGNATURES[loop]])
def test_threads_do_not_change_a_bit(loop: str) -> None:
    for seed in range(3):
        one, several = (CASES[loop](Draw(seed, large=True)).arguments for _ in range(2))
        native.call(loop, *{**one, "threads": 1}.values())
        native.call(loop, *several.values())
        for name, value in one.items():
            if isinstance(value, Tensor) and name != "fingerprints":
                assert torch.equal(value, several[name]), (name, seed)


# ---------------------------------------------------------------- what they refuse


@compiled
def test_arguments_that_do_not_fit_are_refused_and_nothing_crashes() -> None:
    program = [sys.executable, str(HERE / "malformed_calls.py"), "3"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(program, capture_output=True, text=True, env=environment, cwd=HERE, check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@compiled
def test_a_refusal_names_loop_argument_and_what_came() -> None:
    source, index, out = torch.zeros(5), torch.tensor([4]), torch.empty(1)
    with pytest.raises(TypeError, match=r"take: `index` must be int64 on the CPU, not int32 \(1,\)\."):
        native.call("take", source, index.int(), 1, out, 1)
    with pytest.raises(ValueError, match=r"take: `out` must have 1 entries \(size\), not 2\."):
        native.call("take", source, index, 1, torch.empty(2), 1)
    with pytest.raises(TypeError, match=r"take: `source` must be float32 on the CPU, not None\."):
        native.call("take", None, index, 1, out, 1)
    with pytest.raises(ValueError, match=r"take: `source` must be contiguous; its shape is \(5,\), strides \(2,\)\."):
        native.call("take", torch.zeros(10)[::2], index, 1, out, 1)
    with pytest.raises(ValueError, match=r"take: `size` must be an integer from 0 to \d+, not -1\."):
        native.call("take", source, index, -1, out, 1)
    with pytest.raises(IndexError, match=r"take: an index lies outside the tensor\."):
        native.call("take", source, index + 1, 1, out, 1)


@compiled
def test_an_integer_for_epsilon_is_that_number() -> None:
    r, d, out = torch.tensor([6.0]), torch.tensor([2.0]), torch.empty(1)
    native.call("divide", r, d, 1, 1, False, out, 1)
    assert out.item() == 2.0
    with pytest.raises(TypeError, match=r"divide: argument \d+ is no float"):
        native._native.divide(r.data_ptr(), 1, d.data_ptr(), 1, 1, 1, False, out.data_ptr(), 1, 1)


@compiled
def test_survivors_beyond_what_was_counted_are_refused() -> None:
    stats = torch.zeros(1, 8, dtype=torch.float64)
    room = torch.empty(2).long(), torch.empty(3).long(), torch.empty(2).int(), torch.empty(2)
    with pytest.raises(ValueError, match="collect_dense: more survivors than the statistics count"):
        native.call("collect_dense", torch.ones(1, 3, 1), 1, 3, 1, stats, False, *room, 1)
    positions, offsets = torch.arange(3), torch.tensor([0, 3])
    with pytest.raises(ValueError, match="collect_rows: more survivors than the statistics count"):
        native.call("collect_rows", torch.ones(3, 1), positions, offsets, 1, 1, stats, False, *room, 1)


@compiled
def test_both_sides_of_the_border_have_the_same_signatures() -> None:
    assert native._native.formats == {loop: signatures.format_of(loop) for loop in signatures.SIGNATURES}


# ---------------------------------------------------------------- how they are built


def test_the_sources_compile_without_a_warning(tmp_path: Path) -> None:
    compiler = which(sysconfig.get_config_var("CC").split()[0]) or which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    flags = ["-O1", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{sysconfig.get_path('include')}"]
    sources = sorted(SOURCES.glob("*.c"))
    assert sources
    for source in sources:
        command = [compiler, *flags, "-c", str(source), "-o", str(tmp_path / "object.o")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- whether they are in use


def loaded_anew(patch: pytest.MonkeyPatch, load: Callable[[str], object]) -> Any:
    """The border as if it were imported now, `load` bringing the compiled module."""
    patch.setattr(importlib, "import_module", load)
    spec = importlib.util.spec_from_file_location("plrp.fast.native", native.__file__)
    assert spec is not None
    assert spec.loader is not None
    anew = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(anew)
    return anew


def test_the_status_says_that_they_are_in_use_or_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.available():
        threads = torch.get_num_threads()
        assert native.status() == f"compiled loops in use ({threads} thread{'s' if threads > 1 else ''})"
    for word in ("0", "no", "False", "OFF"):
        monkeypatch.setenv("PLRP_NATIVE", word)
        anew = loaded_anew(monkeypatch, importlib.import_module)
        assert not anew.available()
        assert anew.status() == f"compiled loops not in use: PLRP_NATIVE={word}"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ModuleNotFoundError("no module"), "not built (no C compiler at installation?)"),
        (ImportError("undefined symbol: x"), "failed to load (undefined symbol: x)"),
        (sys, "built from other sources than these (install plrp again)"),
    ],
)
def test_loops_that_do_not_load_say_why_and_are_not_used(
    monkeypatch: pytest.MonkeyPatch, found: object, said: str
) -> None:
    def load(name: str) -> object:
        assert name == "plrp.fast.native._native"
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.delenv("PLRP_NATIVE", raising=False)
    anew = loaded_anew(monkeypatch, load)
    assert not anew.available()
    assert anew.status() == f"compiled loops not in use: {said}"


def test_comments_in_c_point_to_statements_that_exist() -> None:
    """A compiled twin names the statement in Python that it must equal."""
    named = 0
    for file in sorted(SOURCES.glob("*.[ch]")):
        for module, name in re.findall(r"`([a-z_]+)\.([A-Za-z_.]+)`", file.read_text(encoding="utf-8")):
            if module == "plrp":
                continue
            places = [f"plrp.{place}{module}" for place in ("", "tape.", "fast.")]
            found = [importlib.import_module(place) for place in places if importlib.util.find_spec(place) is not None]
            assert any(_has(one, name) for one in found), f"{file.name}: `{module}.{name}`"
            named += 1
    assert named > 5


def _has(owner: object, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True
