"""20,000 sequences from explaining to motifs and pages: killed, resumed, in bounded memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from plrp.genomics import SequenceCNN, explain_sequences, simulate
from plrp.genomics.export import read_relevance
from plrp.pruning import Pruning

FEW, MANY = 2_000, 20_000
ROOM = 250_000
"""Kilobytes that ten times as many sequences may take in addition: names and seqlets are held, maps are not."""

COMMAND = (
    "import resource, sys; from plrp.cli import main; code = main(sys.argv[1:]); "
    "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); raise SystemExit(code)"
)


def begin(words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "genomics", *words.split()],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip


def peak(words: str) -> int:
    """Peak memory of a command that succeeds, in kilobytes."""
    process = begin(words)
    said = process.communicate(timeout=1500)[0]
    assert process.returncode == 0, said
    found = re.search(r"peak (\d+)", said)
    assert found is not None
    return int(found[1])


@pytest.mark.slow
def test_a_large_run_is_killed_resumed_and_ends_as_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = simulate(MANY, motifs=["CTCF", "SPI1"], number=(1, 2), length=200, seed=0)
    data.save("many")
    data.chosen(np.arange(FEW)).save("few")
    network = SequenceCNN(8).eval()
    network.save("cnn.pt")
    peaks: dict[str, dict[str, int]] = {}
    for size in ("few", "many"):
        explain = f"explain {size}/sequences.fa.gz --model cnn.pt -p 0.25 --no-match --part-size 500 --out {size}-run"
        if size == "many":
            process = begin(explain)
            parts = Path("many-run/parts")
            while len(list(parts.glob("[0-9]*.npz")) if parts.exists() else []) < 5:
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            before = {path.name: path.stat().st_mtime_ns for path in parts.glob("[0-9]*.npz")}
            assert 5 <= len(before) < MANY // 500
        peaks[size] = {
            "explain": peak(explain),
            "motifs": peak(
                f"motifs {size}-run --model cnn.pt --truth {size}/motifs.bed --no-match --out {size}-motifs"
            ),
            "browser": peak(f"browser {size}-run --motifs {size}-motifs --out {size}.html"),
            "export": peak(f"export {size}-run --h5 {size}.h5"),
        }
    assert {name: Path("many-run/parts", name).stat().st_mtime_ns for name in before} == before  # not made again
    for stage, there in peaks["many"].items():
        assert there < peaks["few"][stage] + ROOM, (stage, peaks)
    names, rows = [], []
    for sequences, per_base in read_relevance("many-run"):
        names += sequences.names
        rows.append(per_base[-1])
    assert names == data.names
    last = explain_sequences(network, data.onehot()[-1:], pruning=Pruning(p=0.25)).per_base()[0]
    np.testing.assert_allclose(rows[-1], last, atol=1e-5)
    assert Path("many-motifs/index.html").stat().st_size > 5_000
    assert Path("many.html").stat().st_size < 50_000_000
