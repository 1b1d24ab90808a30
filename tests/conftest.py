"""What every test shares: one torch thread per worker, the options of the tiers, and where the real data lies."""

from __future__ import annotations

import gc
import os
import random
import re
import sys
from contextvars import ContextVar
from importlib.abc import MetaPathFinder
from pathlib import Path

import numpy as np
import pytest
import torch

import shards

torch.set_num_threads(1)  # pytest-xdist runs one worker per core


SLOW = pytest.StashKey[list[str]]()
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
    parser.addoption("--shard", metavar="i/n", help="run only the slow tests of the i-th of n shards (tests/shards.py)")


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


@pytest.hookimpl(tryfirst=True)  # before -m and -k: the shard of a test must not depend on them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the slow tests of one shard."""
    slow = config.stash[SLOW] = [item.nodeid for item in items if item.get_closest_marker("slow")]
    if not config.getoption("--shard"):
        return
    try:
        number, count = shards.shard_of(config.getoption("--shard"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    assigned = shards.Plan(shards.read(), count).assign(slow)
    config.hook.pytest_deselected(items=[item for item in items if assigned.get(item.nodeid) != number])
    items[:] = [item for item in items if assigned.get(item.nodeid) == number]


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A slow test draws the same random numbers in every run, whatever ran before it."""
    if item.get_closest_marker("slow"):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)


def pytest_collection_finish() -> None:
    """Python's garbage collection passes over the libraries that the tests imported: a pass costs them nothing more."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def slow_tests(pytestconfig: pytest.Config) -> list[str]:
    """The slow tests among the collected ones, whether they run or not."""
    return pytestconfig.stash[SLOW]


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
