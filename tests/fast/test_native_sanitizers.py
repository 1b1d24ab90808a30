"""The sanitizers see what they are there for: an overflow, undefined arithmetic, and a race, planted one by one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from plrp.fast import native

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not native.available(), reason="no compiled loops here")]


@pytest.fixture(scope="module")
def sanitize() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plrp_sanitize", ROOT / "tools" / "sanitize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The border refuses such calls, so they go past it: of 60 floats, 80 are said to be there.
OVERFLOW = """
import torch
from plrp.fast import native
source, index, out = torch.zeros(60), torch.tensor([{index}]), torch.empty(1)
native._native.take(source.data_ptr(), {length}, index.data_ptr(), 1, 1, out.data_ptr(), 1, 1)
"""

# No product of sizes overflows at the border; this one, past it, does.
ARITHMETIC = """
import torch
from plrp.fast import native
positions, begins, channel = torch.tensor([0]), torch.tensor([0, 1]), torch.tensor([(1 << 31) - 2], dtype=torch.int32)
out, sample = torch.empty(1).long(), torch.empty(1).long()
lists = positions.data_ptr(), 1, begins.data_ptr(), 2, 1, channel.data_ptr(), 1
native._native.flat(*lists, (1 << 31) - 1, (1 << 48) - 1, out.data_ptr(), 1, sample.data_ptr(), 1)
"""


@pytest.fixture(scope="module")
def address(sanitize: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("address")
    sanitize.build("address", folder)
    return folder


@pytest.mark.parametrize(
    ("program", "report"),
    [
        (OVERFLOW.format(index=59, length=60), ""),
        (OVERFLOW.format(index=70, length=80), "heap-buffer-overflow"),
        (ARITHMETIC, "signed integer overflow"),
    ],
    ids=["sound", "overflow", "arithmetic"],
)
def test_the_address_sanitizer_sees_a_planted_fault(
    sanitize: ModuleType, address: Path, program: str, report: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code = sanitize.run("address", ["-c", program], address)
    said = capfd.readouterr().err
    assert (code == 0) == (report == ""), said
    assert report in said


def test_the_thread_sanitizer_sees_a_planted_race(
    sanitize: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sanitize.build("thread", tmp_path)
    assert sanitize.run("thread", ["tests/fast/threaded_calls.py", "--race"], tmp_path) != 0
    assert "data race" in capfd.readouterr().err
