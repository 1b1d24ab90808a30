"""A small network that sees pictures, its page, and a real browser that opens it with the network off."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from discs import NAMES, PROPORTIONS, frame, mask, network, picture

import plrp
from plrp.view import Page, explanation_bundle
from plrp.view.bundle import Bundle


@pytest.fixture(scope="session")
def explanation() -> plrp.Explanation:
    return plrp.explain(network(), picture(), pruning=plrp.Pruning(p=0.15))


@pytest.fixture(scope="session")
def bundle(explanation: plrp.Explanation) -> Bundle:
    names = {"categories": NAMES, "title": 'a "picture" <i>of</i> it', "model": "network"}
    return explanation_bundle(explanation, mask=mask(), proportions=PROPORTIONS, targets=3, **names)


@pytest.fixture(scope="session")
def page(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "x.html"
    Page(bundle).save(path)
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's chromium, driven by Playwright; skips with the reason where one of them is absent."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = driver.chromium.launch(executable_path=program, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file offline; at the end no error was printed and nothing was requested from elsewhere."""
    contexts, problems, requests = [], [], []

    def opened(path: Path, width: int = 1200, ready: str = "#page:not([hidden])", **options: Any) -> Any:
        context = browser.new_context(offline=True, viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(300_000)  # milliseconds: on a busy machine a page takes long to open
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(path.as_uri())
        tab.wait_for_selector(ready)
        frame(tab)
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
