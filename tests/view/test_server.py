"""`plrp view`: uploads good and bad, two visitors, one who leaves, a wrong token, names that try to run."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from discs import NAMES, SIDE, network, picture
from PIL import EpsImagePlugin, Image
from torch import nn

import plrp
from plrp.cli.view import bound
from plrp.errors import UsageError
from plrp.models.loading import LoadedModel
from plrp.models.preprocessing import Preprocessing
from plrp.target_text import read_target
from plrp.view import server as server_module
from plrp.view import uploads as opened_module
from plrp.view.bundle import Bundle, dequantise
from plrp.view.server import Host, application
from plrp.view.uploads import open_photograph, open_sequence, open_text
from plrp.vision import network_input
from plrp.vision.photographs import decode_photograph

uvicorn = pytest.importorskip("uvicorn", reason="no uvicorn: pip install 'plrp[view]'")
TOKEN = "a token"
PREPROCESSING = Preprocessing(resize=SIDE, crop=SIDE)


def photograph() -> bytes:
    pixels = (picture()[0].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    return encoded(Image.fromarray(pixels))


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    content = io.BytesIO()
    image.save(content, format=kind)
    return content.getvalue()


@pytest.fixture
def explainer() -> Host:
    model = LoadedModel(network(), "network", "random", tuple(NAMES), PREPROCESSING)
    options = {"pruning": plrp.Pruning(p=0.15), "composite": "epsilon-plus-flat"}
    opened = lambda content, name: open_photograph(content, name, model, **options)  # noqa: E731
    return Host(opened, "photograph", "network", proportions=(0.1, 0.4), targets=2)


@pytest.fixture
def address(explainer: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A running server; nothing may be written to the folder it runs in."""
    monkeypatch.chdir(tmp_path)
    listening = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application(explainer, TOKEN), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    patiently(lambda: server.started)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(30)
    assert list(tmp_path.iterdir()) == []


def patiently(holds: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def post(address: str, content: bytes, token: str = TOKEN, **query: str) -> tuple[int, list[dict[str, Any]]]:
    request = urllib.request.Request(
        f"{address}/explain?{urllib.parse.urlencode(query)}", content, {"x-plrp-token": token}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, [json.loads(line) for line in answer]
    except urllib.error.HTTPError as error:
        return error.code, [json.loads(error.read())]


def bundles(lines: list[dict[str, Any]]) -> list[Bundle]:
    return [Bundle.unpack(json.dumps(line["facts"]), line["arrays"]) for line in lines if "facts" in line]


def test_an_upload_is_explained_twice_first_with_few_p(address: str) -> None:
    status, lines = post(address, photograph(), name="disc.png")
    assert status == 200
    first, whole = bundles(lines)
    assert (first.facts["p"], whole.facts["p"]) == ([0.05, 0.15, 0.3, 0.5], [0.1, 0.15, 0.4])
    assert (len(first.facts["targets"]), len(whole.facts["targets"])) == (1, 2)
    inputs = network_input(decode_photograph(photograph(), "disc"), PREPROCESSING)[None]
    exact = plrp.explain(network(), inputs, pruning=plrp.Pruning(p=0.4)).relevance[0].sum(0).numpy()
    assert np.array_equal(whole.relevance("maps", 3) != 0, exact != 0)
    steps = [line["done"] for line in lines if "done" in line]
    assert steps == sorted(steps[: steps.index(9) + 1]) + steps[steps.index(9) + 1 :]  # it says how far it is
    assert "disc" in whole.facts["title"]


def test_a_class_can_be_chosen_and_a_wrong_one_is_refused(address: str) -> None:
    _, lines = post(address, photograph(), name="x.png", target="fish & chips")
    whole = bundles(lines)[-1]
    assert whole.facts["targets"][whole.facts["start"]["target"]]["name"] == "fish & chips"
    _, (*_, last) = post(address, photograph(), target="zebra")
    assert "no class is called 'zebra'" in last["problem"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "is empty"), (b"<script>alert(1)</script>", "is not an image"), (photograph()[:400], "truncated")],
)
def test_a_bad_file_is_refused(address: str, content: bytes, problem: str) -> None:
    status, lines = post(address, content, name="../../etc/<b>x</b>.png")
    assert status == 200
    assert problem in lines[-1]["problem"]
    assert "etc" not in lines[-1]["problem"]


def test_an_upload_starts_no_other_program(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **_: started.append(given))
    _, (*_, last) = post(address, encoded(Image.new("RGB", (8, 8)), "EPS"), name="cat.jpg")
    assert "cat.jpg is not an image that plrp can read" in last["problem"]
    assert started == []


def test_a_file_that_is_too_large_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LARGEST_UPLOAD", 1000)
    status, (line,) = post(address, photograph())
    assert status == 413
    assert "scale it down first" in line["problem"]


@pytest.mark.slow
def test_a_hundred_megapixels_are_explained(address: str) -> None:
    _, lines = post(address, encoded(Image.new("L", (10_000, 10_000), 90)), name="large.png")
    assert len(bundles(lines)) == 2


def test_nothing_is_answered_without_the_token(address: str) -> None:
    for path in ("/", "/?token=", "/?token=wrong", "/?token=a%20token%00"):
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            urllib.request.urlopen(address + path)
        assert b"plrp view" in refused.value.read()
    assert post(address, photograph(), token="wrong") == (
        403,
        [{"problem": "The token is wrong: open the address that plrp view printed."}],
    )
    with urllib.request.urlopen(f"{address}/?token=a%20token") as answer:
        assert "connect-src 'self'" in answer.headers["content-security-policy"]
        assert b'"served": true' in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{address}/../pyproject.toml?token=a%20token")


def test_two_visitors_are_both_served(address: str) -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    names = ["one.png", "two.png"]
    threads = [
        threading.Thread(target=lambda n=name: found.update({n: post(address, photograph(), name=n)[1]}))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        assert [b.facts["title"] for b in bundles(found[name])] == [Path(name).stem] * 2


def test_work_ends_when_its_visitor_leaves(address: str, explainer: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first map is not done before the server knows that its visitor has left."""
    seen, known = [], list[threading.Event]()
    real, work = opened_module.photograph_bundle, explainer.work

    def watched(content: bytes, name: str, target: str | None, tell: Any, left: threading.Event, *more: Any) -> None:
        known.append(left)
        work(content, name, target, tell, left, *more)

    def slow(*arguments: Any, report: Callable[[int, int], None], **options: Any) -> Bundle:
        def patient(done: int, of: int) -> None:
            seen.append(done)
            known[0].wait(300)
            report(done, of)

        return real(*arguments, report=patient, **options)

    monkeypatch.setattr(opened_module, "photograph_bundle", slow)
    monkeypatch.setattr(explainer, "work", watched)
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:
        content = photograph()
        head = f"POST /explain HTTP/1.1\r\nhost: x\r\nx-plrp-token: {TOKEN}\r\ncontent-length: {len(content)}\r\n\r\n"
        line.sendall(head.encode() + content)
        patiently(lambda: bool(seen))
    patiently(lambda: not explainer.turn.locked())
    assert len(seen) == 1  # of 9 maps of the first bundle, and 14 of the second
    monkeypatch.setattr(opened_module, "photograph_bundle", real)
    assert len(bundles(post(address, photograph())[1])) == 2  # the next one is served


@pytest.mark.parametrize("path", ["/explain?name=x.png", "/channel", "/test"])
def test_a_visitor_who_leaves_amid_an_upload_prints_nothing(
    address: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    place = urllib.parse.urlsplit(address)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-plrp-token: {TOKEN}\r\ncontent-length: 5000\r\n\r\n"
    for _ in range(3):
        with socket.create_connection((place.hostname, place.port)) as visitor:
            visitor.sendall(head.encode() + b"some of it")
    assert len(bundles(post(address, photograph())[1])) == 2  # served after them, so that all has been said
    logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert caplog.text == ""


def test_work_that_outlives_the_server_ends_in_silence(explainer: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended, finished = threading.Event(), threading.Event(), threading.Event()

    def work(content: bytes, name: str, target: str | None, tell: Callable[..., None], *_: object) -> None:
        begun.set()
        ended.wait(300)
        tell({"done": 1})
        finished.set()

    async def visit() -> None:
        lines = server_module.answers(explainer, b"", "x", None, None)
        asyncio.ensure_future(anext(lines))  # noqa: RUF006 the loop ends before it
        while not begun.is_set():
            await asyncio.sleep(0.01)

    monkeypatch.setattr(explainer, "work", work)
    with ThreadPoolExecutor(1) as pool:  # a browser of another test may have a loop in this thread
        pool.submit(asyncio.run, visit()).result()
    ended.set()
    assert finished.wait(300)


def test_a_failure_is_printed_without_the_effects_of_a_name(
    explainer: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(content: bytes, name: str) -> Any:
        raise RuntimeError(name)

    monkeypatch.setattr(explainer, "open", fail)
    lines: list[dict[str, Any]] = []
    explainer.work(b"", "\x1b[31mred", None, lines.append, threading.Event())
    assert "terminal says why" in lines[-1]["problem"]
    assert "RuntimeError: ␛[31mred" in (said := capsys.readouterr().err)
    assert "\x1b" not in said


def ask(address: str, token: str = TOKEN, **wanted: Any) -> tuple[int, dict[str, Any]]:
    return sent(address, json.dumps(wanted).encode(), token)


def sent(address: str, content: bytes, token: str = TOKEN, to: str = "channel") -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"{address}/{to}", content, {"x-plrp-token": token})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_any_channel_and_another_class_are_computed_from_the_kept_pass(
    address: str, explainer: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, lines = post(address, photograph(), name="disc.png")
    session, number = lines[-1]["facts"]["session"], bundles(lines)[-1].facts["targets"][0]["number"]
    monkeypatch.setattr(explainer, "open", None)  # no new forward pass from here on
    wanted = {"session": session, "layer": "5", "number": number, "method": "lambda", "p": 0.4}
    sums = np.zeros((SIDE, SIDE))
    for channel in range(8):
        status, answer = ask(address, channel=channel, **wanted)
        assert status == 200
        levels = np.frombuffer(base64.b64decode(answer["levels"]), np.int8).reshape(SIDE, SIDE)
        sums += dequantise(levels, answer["largest"])
    inputs = network_input(decode_photograph(photograph(), "disc"), PREPROCESSING)[None]
    whole = plrp.explain(network(), inputs, composite="epsilon-plus-flat", pruning=plrp.Pruning(p=0.4))
    exact = whole.relevance[0].double().sum(0).numpy()
    assert np.abs(sums - exact).max() <= 0.03 * np.abs(exact).max()  # channels add up, to their quantisation
    _, lines = post(address, b"", session=session, target="fish & chips")
    facts = bundles(lines)[-1].facts
    assert facts["targets"][facts["start"]["target"]]["name"] == "fish & chips"


def test_a_map_of_the_page_is_tested(address: str) -> None:
    _, lines = post(address, photograph(), name="disc.png")
    session, number = lines[-1]["facts"]["session"], bundles(lines)[-1].facts["targets"][0]["number"]
    wanted = {"session": session, "number": number, "method": "lambda", "p": 0.4}
    status, verdict = sent(address, json.dumps(wanted).encode(), to="test")
    inputs = network_input(decode_photograph(photograph(), "disc"), PREPROCESSING)[None]
    explained = plrp.explain(network(), inputs, composite="epsilon-plus-flat", pruning=plrp.Pruning(p=0.4))
    expected = explained.test().facts()
    assert status == 200
    assert verdict["words"] == expected["words"]
    assert verdict["drops"] == [pytest.approx(row, abs=1e-5) for row in expected["drops"]]
    assert sent(address, json.dumps(wanted).encode(), "wrong", "test")[0] == 403
    for change in ({"layer": "5"}, {"p": 2}, {"number": "0"}, {"method": "x"}):
        assert sent(address, json.dumps({**wanted, **change}).encode(), to="test")[0] == 400
    assert "no longer kept" in sent(address, json.dumps({**wanted, "session": "x"}).encode(), to="test")[1]["problem"]


def test_questions_that_no_page_asks_are_refused(address: str) -> None:
    good = {"session": "x", "layer": "5", "channel": 0, "number": 0, "method": "lambda", "p": 0.4}
    assert ask(address, token="wrong", **good)[0] == 403
    assert "no longer kept" in ask(address, **good)[1]["problem"]
    for change in ({"channel": "0"}, {"p": 2}, {"method": "__class__"}, {"layer": None}, {"more": 1}):
        assert ask(address, **{**good, **change})[0] == 400
    for change in ({"channel": -1}, {"channel": 10**30}, {"number": -1}, {"number": 10**30}):
        said = f"{next(iter(change))} is a whole number from 0 to 2147483647."
        assert ask(address, **{**good, **change}) == (400, {"problem": said})
    assert ask(address, **{**good, "layer": "\ud800"})[0] == 400  # half a character
    assert sent(address, b"[" * 9_900) == (400, {"problem": "A path has no brackets within brackets."})
    session = post(address, photograph())[1][-1]["facts"]["session"]
    for change in ({"channel": 999}, {"layer": "../x"}, {"number": 10**6}):
        assert ask(address, **{**good, "session": session, **change})[1]["problem"]


def test_what_a_visitor_writes_is_never_run() -> None:
    assert (read_target("3"), read_target(" 0, 141")) == (3, (0, 141))
    for text in ("net.py:score", "outputs[0]", "__import__('os')", "1e9", "٣", ""):
        with pytest.raises(ValueError, match="is no class"):
            read_target(text)


def serving(explainer: Host, content: bytes, target: str | None = None) -> list[dict[str, Any]]:
    """What the explainer tells, without a server."""
    lines: list[dict[str, Any]] = []
    explainer.work(content, "pasted", target, lines.append, threading.Event())
    return lines


def test_a_pasted_sequence_is_explained_and_a_bad_one_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 6, 5), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(6, 3)).eval()
    options = {"pruning": plrp.Pruning(p=0.1), "composite": "epsilon-gamma"}
    explainer = Host(lambda c, n: open_sequence(c, n, model, **options), "sequence", "cnn", (0.3,), 2)
    letters = "ACGTTGACCTAGATAACGGTACGATAAGGCTA"
    whole = bundles(serving(explainer, f">one more\n{letters[:10]}\n{letters[10:]}\n>two\nAC\n".encode()))[-1]
    assert (whole.facts["title"], whole.facts["letters"], whole.facts["kind"]) == ("one", letters, "sequence")
    onehot = torch.from_numpy(plrp.genomics.encode([letters]))
    exact = plrp.explain(model, onehot, composite="epsilon-gamma", pruning=plrp.Pruning(p=0.3)).relevance[0].sum(0)
    assert np.array_equal(whole.relevance("maps", 2) != 0, exact.numpy() != 0)
    assert bundles(serving(explainer, letters.encode(), "2"))[-1].facts["start"]["target"] in (0, 1)
    for content, problem in (
        (b"MKVLA", "protein"), (b" \n", "empty"), (b"\xff\xfe", "no text"), (b"A" * 200_001, "more than"),
    ):  # fmt: skip
        assert problem in serving(explainer, content)[-1]["problem"]
    assert "is no class" in serving(explainer, letters.encode(), "net.py:score")[-1]["problem"]


def test_a_pasted_sentence_is_explained() -> None:
    small = pytest.importorskip("small_models")
    tokenizer = small.byte_tokenizer()
    model = small.built("llama", len(tokenizer))
    options = {"pruning": plrp.Pruning(p=0.1), "composite": plrp.composite("attnlrp")}
    explainer = Host(lambda c, n: open_text(c, model, tokenizer, **options), "text", "llama", (0.3,), 2)
    whole = bundles(serving(explainer, b"The capital of France is", " Paris"))[-1]
    assert whole.facts["targets"][0]["name"] == " Paris"
    traced = plrp.text.trace(model, tokenizer, "The capital of France is")
    exact = traced.explain(target=" Paris", pruning=plrp.Pruning(p=0.3)).relevance.numpy()
    assert np.array_equal(whole.relevance("maps", 2) != 0, exact != 0)
    number = whole.facts["targets"][0]["number"]
    path = next(iter(explainer.uploads.values())).path("model.layers.1.mlp.down_proj", 3, number, "lambda", 0.3)
    assert len(base64.b64decode(path["levels"])) == len(whole.facts["tokens"])
    assert "is empty" in serving(explainer, b"")[-1]["problem"]


NETWORK = """
from torch import nn
def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
"""


def test_the_command_serves_until_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "network.py").write_text(NETWORK)
    command = [sys.executable, "-m", "plrp.cli", "view", "--model", "network.py:build", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            printed = server.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S{20,}", printed)[0]
            with urllib.request.urlopen(address) as answer:
                assert b"network.py:build" in answer.read()
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 0
            assert "Traceback" not in server.stderr.read()
        finally:
            server.kill()


def test_a_port_that_is_taken_is_refused() -> None:
    with bound("127.0.0.1", 0) as taken, pytest.raises(UsageError, match="choose another --port or --host"):
        bound("127.0.0.1", taken.getsockname()[1])


def test_a_photograph_in_the_browser(address: str, browser: Any) -> None:
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    context.set_default_timeout(300_000)
    tab = context.new_page()
    problems: list[str] = []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.goto(f"{address}/?token=a%20token")
    name = "<img src=x onerror=alert(1)>.png"
    tab.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": photograph()})
    tab.wait_for_selector("#targets label:nth-of-type(2)")  # the whole bundle has two classes
    assert tab.locator("h1").inner_text() == Path(name).stem
    tab.locator("#p").fill("0")
    tab.wait_for_function("() => document.getElementById('p-value').textContent === '0'")
    tab.set_input_files("#file", {"name": "bad.png", "mimeType": "image/png", "buffer": b"nothing"})
    tab.wait_for_selector("#problem:not([hidden])")
    assert "is not an image" in tab.locator("#problem").inner_text()
    context.close()
    assert problems == []
