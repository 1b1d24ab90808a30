"""What every test shares: one torch thread per worker, and where the real data lies."""

from __future__ import annotations

import os
from contextvars import ContextVar
from pathlib import Path

import pytest
import torch

from plrp import engine

torch.set_num_threads(1)  # pytest-xdist runs one worker per core


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--reference`: every test as within `plrp.reference()`, so that the readable code answers for itself."""
    parser.addoption("--reference", action="store_true", help="run every test with the plain walk")


def pytest_configure(config: pytest.Config) -> None:
    """The default itself is changed, so that threads a test starts take the plain walk too."""
    if config.getoption("--reference"):
        engine._PLAIN = ContextVar("plrp_plain_walk", default=True)


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
