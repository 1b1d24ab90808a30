"""`make test` sees to a browser where it may, and says what it leaves out where it may not."""

from __future__ import annotations

import importlib.util
import subprocess
from types import ModuleType

import pytest

from pages import ROOT


@pytest.fixture
def browser() -> ModuleType:
    spec = importlib.util.spec_from_file_location("browser_setup", ROOT / "tools" / "browser.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def set_up(
    browser: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, user: int, works: bool
) -> tuple[str, list[list[str]]]:
    """What is said and called on a machine with apt-get and without a browser."""
    called: list[list[str]] = []
    there = {"apt-get": "/usr/bin/apt-get"}

    def run(words: list[str], **options: object) -> None:
        called.append(words)
        if works and "install" in words:
            there["chromium"] = "/usr/bin/chromium"

    monkeypatch.setattr(browser.shutil, "which", there.get)
    monkeypatch.setattr(browser.os, "geteuid", lambda: user)
    monkeypatch.setattr(browser.subprocess, "run", run)
    assert browser.main() == 0
    return capsys.readouterr().out, called


def test_root_gets_a_browser(
    browser: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said, called = set_up(browser, monkeypatch, capsys, user=0, works=True)
    assert [words[:2] for words in called] == [["apt-get", "update"], ["apt-get", "install"]]
    assert "skipped" not in said


@pytest.mark.parametrize("user", [0, 1000])
def test_others_are_told_what_is_skipped(
    browser: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], user: int
) -> None:
    said, called = set_up(browser, monkeypatch, capsys, user=user, works=False)
    assert "the tests of the page in a browser will be skipped; `apt-get install chromium` brings it." in said
    assert bool(called) == (user == 0)


def test_a_hanging_apt_get_stops_nobody(browser: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(words, 1)

    monkeypatch.setattr(browser.subprocess, "run", run)
    assert browser.install() is False
