"""The page inside other pages and of other commands: the report of a sweep, and motifs called by their JASPAR names."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from discs import frame
from torch import nn

import plrp
from plrp.genomics.sequences import Sequences
from plrp.view import Page, sequence_bundle
from plrp.vision.heatmaps import heatmap, limits_of

Visit = Callable[..., Any]
PIXELS = """() => { const canvas = document.getElementById("picture"), side = 16, scale = canvas.width / side;
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, found = [];
    for (let y = 0; y < side; y++) for (let x = 0; x < side; x++) {
        const at = 4 * (Math.floor((y + 0.5) * scale) * canvas.width + Math.floor((x + 0.5) * scale));
        found.push(...data.subarray(at, at + 3)); }
    return btoa(String.fromCharCode(...found)); }"""


def test_the_slider_of_a_sweeps_report_draws_the_maps_that_were_kept(visit: Visit, tmp_path: Path) -> None:
    for name in ("matplotlib", "pandas", "pyarrow", "h5py"):
        pytest.importorskip(name)
    from made_runs import made_run
    from plrp.experiments.report import examples
    from plrp.experiments.report.runs import TitledRun

    shares = (0.0, 0.15, 0.6, 0.9)
    run = TitledRun.load(made_run(tmp_path / "run", samples=2, p=shares, metrics=("gini",)))
    page = tmp_path / "report.html"
    page.write_text(f"<!DOCTYPE html><meta charset='utf-8'><body>{examples._slides(run)}", encoding="utf-8")
    tab = visit(page, ready="iframe")
    tab.locator("iframe").scroll_into_view_if_needed()
    tab.frame_locator("iframe").locator("#page:not([hidden])").wait_for()
    inner = tab.frames[1]
    inner.locator("#more").click()  # what is below the frame's edge, until it is seen
    inner.locator("#more").wait_for(state="hidden")
    inner.locator("#views label:has(input[value='heatmap'])").click()
    inner.locator("#options summary").click()
    inner.locator("#show-mask").uncheck()
    seen, dots = set(), set()
    for place, p in enumerate(shares):
        inner.locator("#p").fill(str(place))
        frame(inner)
        pixels = np.frombuffer(base64.b64decode(inner.evaluate(PIXELS)), np.uint8).reshape(16, 16, 3).astype(int)
        exact = run.results.maps(run.results.mapped[0], "LRP" if p == 0 else "lambda", p)
        expected = heatmap(exact, scale=float(limits_of(exact.reshape(1, 1, -1))[0])).numpy()[..., :3].astype(int)
        assert np.abs(pixels - expected).max() <= 6  # 255 levels
        assert inner.locator("#p-value").inner_text() == (f"{p:g}")
        sparsity = inner.locator("#numbers .sparsity b").inner_text()
        assert float(sparsity.rstrip("%")) == pytest.approx(100 * (exact == 0).mean(), abs=0.6)
        seen.add(pixels.tobytes())
        dots.add(inner.locator("#curves .dot.sparsity").get_attribute("cy"))
    assert len(seen) == len(dots) == len(shares)


@pytest.mark.slow  # memelite compiles its code on a new machine
def test_motifs_are_called_by_their_jaspar_names(visit: Visit, tmp_path: Path) -> None:
    """A network with the consensus of CTCF as its one filter, and a sequence that has it once."""
    pytest.importorskip("pyjaspar")
    pytest.importorskip("memelite")
    site, start = "TGGCCACCAGGGGGCGCTA", 60
    letters = "".join(np.random.default_rng(1).choice(list("ACGT"), 160))
    letters = letters[:start] + site + letters[start + len(site) :]
    model = nn.Sequential(nn.Conv1d(4, 1, len(site)), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(1, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(plrp.genomics.encode([site])))
        model[0].bias.fill_(-10.0)
        model[4].weight.copy_(torch.tensor([[1.0], [-1.0]]))
    bundle = sequence_bundle(
        model.eval(), Sequences(["one"], [letters]), pruning=plrp.Pruning(p=0.1), match=True, proportions=(0.1,)
    )
    (one,) = [site for track in bundle.facts["tracks"] for site in track["sites"]]
    assert one["name"].split("::")[0].upper().startswith("CTCF")
    assert start <= one["start"] < one["end"] <= start + len(site)
    Page(bundle).save(tmp_path / "x.html")
    tab = visit(tmp_path / "x.html")
    words = tab.locator("#picture").get_attribute("aria-label")
    assert f"1 marked stretch: {one['name']} at {one['start']} to {one['end'] - 1}" in words
    box = tab.locator("#picture").bounding_box()
    middle = (one["start"] + one["end"]) / 2 / len(letters)
    tab.mouse.move(box["x"] + box["width"] * middle, box["y"] + 60)
    assert tab.locator("#probe").inner_text().endswith(f", in {one['name']}")
