"""Patches of what channels stand for, on a page: of the search's own channels, small, in the browser and served."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from discs import SIDE, network, picture
from PIL import Image

import plrp
from plrp.cli import main
from plrp.concepts import Reading
from plrp.view import Page, explanation_bundle, read_page
from plrp.view import layer_channels as exemplary_module
from plrp.view.bundle import Bundle
from plrp.view.layer_channels import COUNT, ChannelPatches
from plrp.view.server import Host
from plrp.view.uploads import PhotographUpload


@pytest.fixture(scope="module")
def reading() -> Reading:
    torch.manual_seed(0)
    pictures = torch.cat([picture().roll(8 * k, 3) * (0.5 + 0.1 * k) for k in range(5)])
    return Reading(plrp.exemplars(network(), pictures, ["0", "2"], show_progress=False), network(), pictures)


@pytest.fixture(scope="module")
def shown(reading: Reading) -> Bundle:
    explanation = plrp.explain(network(), picture(), pruning=plrp.Pruning(p=0.15))
    return explanation_bundle(explanation, proportions=(0.15,), targets=1, exemplars=reading)


def decoded(address: str) -> np.ndarray:
    kind, content = address.split(",", 1)
    assert kind == "data:image/jpeg;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def test_a_layer_shows_patches_of_the_channels_it_reads(shown: Bundle, reading: Reading) -> None:
    """Layer 5 reads what layer 2 makes, behind ReLU and a pool, and layer 2 what 0 makes; no layer makes the input, and
    the linear layer reads nine places of a channel as nine.
    """
    rows = {layer["name"]: rows for layer, rows in zip(shown.facts["layers"], shown.facts["channels"], strict=True)}
    assert list(rows) == ["9", "5", "2", "0"]
    assert not any("exemplars" in row for layer in ("9", "0") for row in rows[layer])
    for layer, source in (("5", "2"), ("2", "0")):
        for row in rows[layer]:
            expected = reading.exemplars.of(source, row["channel"], COUNT)
            given = row.get("exemplars", [])
            assert len(given) == len(expected)
            for one, exemplar in zip(given, expected, strict=True):
                assert one["caption"].startswith(f"input {exemplar.name}: gave channel {row['channel']} ")
                small = Image.fromarray(reading.patch(source, row["channel"], exemplar))
                small.thumbnail((exemplary_module.SIDE, exemplary_module.SIDE))
                assert np.abs(decoded(one["picture"]).astype(float) - np.asarray(small)).mean() < 12  # JPEG
    assert sum(len(row.get("exemplars", [])) for row in rows["5"]) > 8


def test_weak_channels_lose_their_patches_where_a_page_is_too_large(shown: Bundle) -> None:
    lighter = shown.lighter(1)
    for rows in lighter.facts["channels"]:
        assert not any("exemplars" in row for row in rows[1:])
    assert "exemplars" in lighter.facts["channels"][1][0]
    assert "exemplars" in shown.facts["channels"][1][1]


def test_the_browser_shows_them_with_words(visit: Callable[..., Any], shown: Bundle, tmp_path: Path) -> None:
    Page(shown).save(tmp_path / "x.html")
    tab = visit(tmp_path / "x.html")
    tab.locator("#strip label").nth(1).click()
    tab.wait_for_selector(".exemplars img")
    tab.wait_for_function("() => [...document.querySelectorAll('.exemplars img')].every((one) => one.naturalWidth > 0)")
    words = tab.locator(".exemplars img").evaluate_all("(all) => all.map((one) => one.alt)")
    assert words == [one["caption"] for row in shown.facts["channels"][1] for one in row.get("exemplars", [])]
    assert (
        "patches of the photographs, of those searched, that gave it most relevance"
        in tab.locator("#layer").inner_text()
    )


def test_a_server_draws_them_after_the_page_and_each_once(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from plrp.models.loading import LoadedModel
    from plrp.models.preprocessing import Preprocessing
    from plrp.view.uploads import open_photograph

    model = LoadedModel(network(), "network", "random", tuple("abcd"), Preprocessing(resize=SIDE, crop=SIDE))
    exemplary = ChannelPatches(reading)

    def opened(content: bytes, name: str) -> PhotographUpload:
        pruning = plrp.Pruning(p=0.15)
        return open_photograph(content, name, model, pruning=pruning, composite="auto", patches=exemplary)

    content = io.BytesIO()
    Image.fromarray((picture()[0].permute(1, 2, 0).numpy() * 255).astype(np.uint8)).save(content, format="PNG")
    host = Host(opened, "photograph", "network", proportions=(0.15,), targets=1)
    lines: list[dict[str, Any]] = []
    host.work(content.getvalue(), "x.png", None, lines.append, threading.Event())
    last = max(number for number, line in enumerate(lines) if "facts" in line)
    channels = lines[last]["facts"]["channels"]
    patches = {line["layer"]: line["exemplars"] for line in lines[last:] if "exemplars" in line}
    assert sorted(patches) == [1, 2]
    assert set(patches[1]) <= {row["channel"] for row in channels[1]}
    assert all(one["picture"].startswith("data:image/jpeg") for rows in patches[1].values() for one in rows)
    monkeypatch.setattr(Reading, "patch", lambda *_: pytest.fail("drawn again"))
    again: list[dict[str, Any]] = []
    host.work(content.getvalue(), "x.png", None, again.append, threading.Event())
    assert {line["layer"]: line["exemplars"] for line in again if "exemplars" in line} == patches


def test_the_command_takes_a_folder_of_exemplars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("network.py").write_text(
        "import torch\nfrom torch import nn\ndef build():\n    torch.manual_seed(0)\n    return nn.Sequential("
        "nn.Conv2d(3, 6, 5, stride=4), nn.ReLU(), nn.Conv2d(6, 5, 3, stride=3), nn.ReLU(), "
        "nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3))\n"
    )
    Path("photos").mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"photos/{number}.png")
    model = ["--model", "network.py:build"]
    assert main(["exemplars", "photos", *model, "--layers", "0", "--out", "found", "--no-pictures", "-q"]) == 0
    explain = ["explain", "photos/0.png", *model, "--exemplars", "found"]
    assert main([*explain, "-o", "x.html"]) == 0
    rows = read_page("x.html").bundle.facts["channels"]
    assert [any("exemplars" in row for row in layer) for layer in rows] == [False, True, False]
    capsys.readouterr()
    assert main([*explain, "-o", "x.png"]) == 2
    assert "--exemplars goes with --layers, or with a page" in capsys.readouterr().err
    assert main(["view", *model, "--input", "sequence", "--exemplars", "found"]) == 2
    assert "--exemplars goes with photographs" in capsys.readouterr().err
