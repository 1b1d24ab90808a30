"""The page of `plrp genomics browser` in Chromium: igv.js without a network, from a whole sequence to its letters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from plrp.genomics import explain_file, write_browser
from plrp.pruning import Pruning

WIDTH = "browser.referenceFrameList[0].end - browser.referenceFrameList[0].start"


@pytest.mark.slow
@pytest.mark.parametrize("located", [False, True], ids=["fasta", "genome"])
def test_the_page_opens_without_a_network_and_zooms_to_letters(
    tmp_path: Path, visit: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, located: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    layers = nn.Conv1d(4, 6, 5), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(6, 2)
    one, two = ("".join(rng.choice(list("ACGT"), 120)) for _ in range(2))
    if located:
        Path("genome.fa").write_text(f">one\n{'N' * 5000}{one}{'N' * 3000}\n>two\n{two}\n")
        Path("s.bed").write_text(
            "one\t5000\t5120\tfirst\t0\t-\ntwo\t0\t120\tsecond\t0\t+\none\t5040\t5160\tthird\t0\t+\n"
        )
    else:
        Path("s.fa").write_text(f">one\n{one}\n>two\n{two}\n")
    explain_file(
        "s.bed" if located else "s.fa", nn.Sequential(*layers).eval(), "pruned", pruning=Pruning(p=0.3), match=False,
        genome="genome.fa" if located else None,
    )  # fmt: skip
    write_browser("page.html", ["pruned"])
    page = visit(tmp_path / "page.html")
    page.wait_for_selector("body[data-ready]")
    names = page.evaluate("browser.trackViews.map(view => view.track.name)")
    assert {"PLRP-λ p=0.3", "seqlets, PLRP-λ p=0.3"} <= set(names)
    assert page.evaluate(WIDTH) == pytest.approx(120, abs=2)
    begin = 5000 if located else 0
    letters = page.evaluate(f"browser.genome.getSequence('one', {begin}, {begin + 120})")
    assert letters == one
    page.click("#letters")
    page.wait_for_function(f"Math.abs({WIDTH} - 50) < 2")
    found = page.evaluate(
        "browser.trackViews.find(v => (v.track.name || '').startsWith('PLRP')).track"
        f".getFeatures('one', {begin}, {begin + 120}, 0.1)"
    )
    assert found
    assert all(one["sequence"] == letters[int(one["start"]) - begin] for one in found)
    page.click("#next")
    page.wait_for_function("browser.referenceFrameList[0].chr === 'two'")
    assert page.locator("#list li").count() == 2 + located  # also one that overlaps another
    page.fill("#find", "third" if located else "on")
    assert page.locator("#list li").count() == 1
