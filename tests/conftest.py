"""What every test shares: one torch thread per worker, and where the real data lies."""

from __future__ import annotations

import gc
import os
import re
import sys
from contextvars import ContextVar
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # pytest-xdist runs one worker per core


FAST = re.compile(r"^\s*(from|import) plrp\.fast\b|^\s*from plrp import .*\bfast\b", re.MULTILINE)


class WithoutFast(MetaPathFinder):
    """`plrp.fast` as if its folder had been deleted."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "plrp.fast" or name.startswith("plrp.fast."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Runs in which the readable code answers for itself."""
    parser.addoption("--plain-walk", action="store_true", help="run every test as within plrp.plain_walk()")
    parser.addoption(
        "--without-fast",
        action="store_true",
        help="make plrp.fast unimportable, and leave out the tests that import it",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is read. The default itself is changed, so that threads a test starts keep to it too."""
    if config.getoption("--without-fast"):
        sys.meta_path.insert(0, WithoutFast())
    if config.getoption("--plain-walk"):
        from plrp import engine

        engine._PLAIN = ContextVar("plrp_plain_walk", default=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without `plrp.fast`, its own tests are left out."""
    if not config.getoption("--without-fast"):
        return None
    if collection_path.is_dir():
        return True if collection_path.name == "fast" else None
    return True if FAST.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_collection_finish() -> None:
    """Python's garbage collection passes over the libraries that the tests imported: a pass costs them nothing more."""
    gc.collect()
    gc.freeze()


def shared_data() -> Path | None:
    """The folder of real data (`PLRP_DATA`, else `../shared/data` from the project's root), if it is there."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("PLRP_DATA", root.parent / "shared" / "data"))
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; skips with the reason where it is absent."""
    folder = shared_data()
    if folder is None:
        pytest.skip("real data absent: set PLRP_DATA or put it at ../shared/data")
    return folder
