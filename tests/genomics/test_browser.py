"""The page with igv.js: its numbers against those of the runs, overlaps against a loop, refusals; motif hits.

`tests/view/test_genome_browser.py` opens it in Chromium.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import subprocess
from importlib import resources
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from plrp.cli import main
from plrp.errors import UsageError
from plrp.genomics import Seqlets, encode, explain_file, find_hits, find_patterns, reverse_complement, write_browser
from plrp.genomics.export import read_relevance
from plrp.pruning import Pruning

RNG = np.random.default_rng(5)
LETTERS = "ACGT"


def text(length: int) -> str:
    return "".join(RNG.choice(list(LETTERS), length))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(4, 6, 5), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(6, 2)).eval()


def unpacked(path: Path) -> tuple[dict[str, Any], str, list[np.ndarray]]:
    """What a page holds: facts, letters, and the values of its tracks, (base,)."""
    found = re.search(r'id="data">(.*?)</script>', path.read_text())
    assert found is not None
    content = gzip.decompress(base64.b64decode(found[1]))
    size = int.from_bytes(content[:4], "little")
    facts = json.loads(content[4 : 4 + size])
    lengths = [segment[2] for segment in facts["segments"]]
    bases, place = sum(lengths), 4 + size
    letters = content[place : place + bases].decode()
    place += bases
    tracks = []
    for _ in facts["tracks"]:
        scale = np.frombuffer(content, "<f4", len(lengths), place)
        place += 4 * len(lengths)
        tracks.append(np.repeat(scale, lengths) * np.frombuffer(content, np.int8, bases, place) / 127)
        place += bases
    assert place == len(content)
    return facts, letters, tracks


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_sequences_without_a_genome(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["one", "two:3 four", "<b>", "last"]
    Path("s.fa").write_text("".join(f">{name}\n{text(40)}\n" for name in names))
    explain_file("s.fa", network(), "lrp", match=False)
    explain_file("s.fa", network(), "pruned", pruning=Pruning(p=0.3), match=False)
    Path("few.fa").write_text("\n".join(Path("s.fa").read_text().splitlines()[:2]))
    explain_file("few.fa", network(), "ism", method="ism", match=False)
    Path("places.bed").write_text("one\t3\t9\tsite\t5\t-\nelsewhere\t1\t2\n")
    command = "genomics browser lrp pruned ism --bed known=places.bed --out page.html --title A<B"
    assert main(command.split()) == 0
    assert "4 sequences" in capsys.readouterr().out
    facts, letters, tracks = unpacked(Path("page.html"))
    assert [track["name"] for track in facts["tracks"]] == ["LRP", "PLRP-λ p=0.3", "ISM"]
    ((explained, _),) = read_relevance("lrp")
    assert letters == "".join(explained.letters)
    assert [segment[3] for segment in facts["segments"]] == explained.names
    for folder, values in zip(("lrp", "pruned"), tracks, strict=False):
        ((_, per_base),) = read_relevance(folder)
        strongest = np.abs(per_base).max(1, keepdims=True)
        assert (np.abs(values.reshape(4, 40) - per_base) <= strongest / 250).all()
    assert np.abs(tracks[2][:40]).max() > 0
    assert not tracks[2][40:].any()
    assert [track["name"] for track in facts["features"]] == ["seqlets, PLRP-λ p=0.3", "known"]
    assert facts["features"][1]["items"] == [[0, 3, 9, "site", "5", "-", "."]]
    assert all(not set(name) & set(": <>&\"'") for name, _ in facts["contigs"])
    page = Path("page.html").read_text()
    assert "<h1>A&lt;B</h1>" in page
    assert "<b>" not in page[: page.index("<script>")]
    assert "The MIT License" in page


@pytest.mark.skipif(which("node") is None, reason="no node")
def test_names_that_igv_reads_as_html_are_escaped() -> None:
    """igv.js writes names of tracks, and rows of its popups, as HTML."""
    script = (resources.files("plrp.genomics") / "front" / "browser.js").read_text(encoding="utf-8")
    name = """<img src=x onerror="alert('1')">&lt;"""
    facts = {"tracks": [{"name": name}], "features": [{"name": name, "items": [], "colors": {}}], "contigs": []}
    program = script.partition("async function start")[0] + (
        f"const names = tracksOf({json.dumps(facts)}).map(track => track.name);"
        "console.log(JSON.stringify([...names, escaped(0.5)]));"
    )
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    *names, number = json.loads(done.stdout)
    assert len(names) == 2
    for shown in names:
        assert not set("<>\"'") & set(shown)
        assert html.unescape(shown) == name
    assert number == "0.5"
    assert script.count("name: track.name") == 0
    assert 'browser.on("trackclick"' in script


@pytest.mark.parametrize("overlap", ["mean", "sum", "strongest"])
def test_intervals_keep_their_places_and_overlaps_are_joined(work: Path, overlap: Any) -> None:
    chromosome = text(200)
    Path("genome.fa").write_text(f">chr1\n{chromosome}\n")
    intervals = [(10, 50, "+"), (30, 70, "-"), (120, 160, "-")]
    Path("p.bed").write_text("".join(f"chr1\t{a}\t{b}\tpeak{a}\t0\t{s}\n" for a, b, s in intervals))
    explain_file("p.bed", network(), "run", genome="genome.fa", match=False)
    write_browser("page.html", ["run"], overlap=overlap)
    facts, letters, (values,) = unpacked(Path("page.html"))
    assert facts["genome"] is True
    assert [segment[1:3] for segment in facts["segments"]] == [[10, 60], [120, 40]]
    assert facts["entries"] == [[0, a, b - a, f"peak{a}"] for a, b, _ in intervals]  # the list has them all
    assert letters == chromosome[10:70] + chromosome[120:160]
    ((_, per_base),) = read_relevance("run")
    there: dict[int, list[float]] = {}
    for (start, end, strand), row in zip(intervals, per_base, strict=True):
        for place, value in zip(range(start, end), row[::-1] if strand == "-" else row, strict=True):
            there.setdefault(place, []).append(float(value))
    how = {"mean": np.mean, "sum": np.sum, "strongest": lambda v: max(v, key=abs)}[overlap]
    expected = np.array([how(there[place]) for place in sorted(there)])
    assert np.allclose(values, expected, atol=np.abs(expected).max() / 250)


def test_what_cannot_be_shown_is_refused(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        Path(f"{name}.fa").write_text(f">s\n{text(40)}\n")
        explain_file(f"{name}.fa", network(), name, match=False)
    Path("c.fa").write_text(f">other\n{text(40)}\n")
    explain_file("c.fa", network(), "c", match=False)
    with pytest.raises(UsageError, match="s has other letters than in the first run"):
        write_browser("page.html", ["a", "b"])
    with pytest.raises(UsageError, match="none of the sequences of the first run"):
        write_browser("page.html", ["a", "c"])
    with pytest.raises(UsageError, match="name a folder of `plrp genomics motifs`"):
        write_browser("page.html", ["a"], motifs="b")
    monkeypatch.setattr("plrp.genomics.browser.LARGEST_PAGE", 1000)
    with pytest.raises(UsageError, match="show fewer sequences"):
        write_browser("page.html", ["a"])
    assert not Path("page.html").exists()
    assert main("genomics browser a --out page.txt".split()) == 2
    assert main("genomics browser nowhere --out page.html".split()) == 2


def test_hits_are_where_the_motif_was_planted() -> None:
    site, length, count = "TGACTCACC", 60, 24
    rows, relevance, truth = [], np.zeros((count, length)), []
    for row in range(count):
        start, reverse = int(RNG.integers(0, length - len(site))), bool(row % 2)
        letters = list(text(length))
        letters[start : start + len(site)] = reverse_complement(site) if reverse else site
        rows.append("".join(letters))
        relevance[row, start : start + len(site)] = RNG.uniform(0.8, 1.2, len(site))
        truth.append((start, start + len(site), reverse))
    starts, ends = (np.array([one[k] for one in truth]) for k in (0, 1))
    seqlets = Seqlets(np.arange(count), starts, ends, relevance.sum(1))
    patterns = find_patterns(seqlets, encode(rows), relevance)
    hits = find_hits(patterns, seqlets, encode(rows), relevance)
    assert len(patterns) == 1
    assert len(hits) == count
    turned = hits.reverse[0] != truth[0][2]  # the pattern itself may be the reverse complement
    for k in range(count):
        found = (int(hits.start[k]), int(hits.end[k]), bool(hits.reverse[k]) != turned)
        assert found == truth[int(hits.sequence[k])]
