"""Runs in a bucket of S3, played by moto's server: resumed after kills, damaged, and where there is no bucket.

`make test-slow` installs moto and s3fs; elsewhere these are skipped.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plrp import cli
from plrp.experiments import Results, sweep
from plrp.genomics import write_fasta
from plrp.runs.places import Bucket
from worlds import plain_world, same

pytestmark = pytest.mark.slow

MODEL = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv1d(4, 5, 7), torch.nn.ReLU(), torch.nn.AdaptiveMaxPool1d(1),
                               torch.nn.Flatten(), torch.nn.Linear(5, 2))
"""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket."""
    server_module = pytest.importorskip("moto.server", reason="moto is not installed: see the head of this file")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed: see the head of this file")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"plrp-{uuid.uuid4().hex[:8]}"  # what moto holds outlives its server
    s3fs.S3FileSystem().mkdir(name)
    try:
        yield f"s3://{name}"
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()


def test_a_sweep_into_s3_is_resumed_and_a_damaged_store_is_mended(bucket: str, tmp_path: Path) -> None:
    config = plain_world(tmp_path / "world", 4)
    local = sweep(config, tmp_path / "local", workers=1)
    there = sweep(config, f"{bucket}/run", workers=1)
    same(local, there)
    place = Bucket(f"{bucket}/run")
    half, gone, *_ = place.names("parts")
    place.write(half, place.read(half)[:100])
    place.remove(gone)
    place.write(place.names("maps")[3], b"")
    assert len(Results.load(f"{bucket}/run").missing) == 2
    said: list[str] = []
    same(local, sweep(config, f"{bucket}/run", workers=1, say=said.append))
    assert sum("was damaged and will be made again" in line for line in said) == 2
    assert any("3 of 4 parts to do" in line for line in said)


def test_sequences_into_s3_and_a_damaged_part(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    write_fasta("seqs.fa", ["a", "b", "c"], ["ACGTACGTACGT", "TTTTACGTACGT", "GGGGACGTACGT"])
    words = f"genomics explain seqs.fa --model net.py:build --no-match --part-size 1 --out {bucket}/sequences".split()
    assert cli.main(words) == 0
    place = Bucket(f"{bucket}/sequences")
    whole = place.read("relevance.parquet")
    part = place.names("parts")[1]
    place.write(part, b"half")
    assert cli.main(words) == 0
    assert place.read("relevance.parquet") == whole
    assert place.read(part) != b"half"


def test_the_command_killed_while_it_writes_into_s3(bucket: str, tmp_path: Path) -> None:
    config = plain_world(tmp_path / "world", 12)
    (tmp_path / "run.toml").write_text(config.to_toml())
    command = [sys.executable, "-m", "plrp.cli", "sweep", "run.toml", "--out", f"{bucket}/run", "--workers", "1"]
    place, rng, done = Bucket(f"{bucket}/run"), random.Random(0), 0
    for _ in range(3):
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while process.poll() is None and len(place.names("parts")) < min(11, done + 2):
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.1))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert len(place.names("parts")) >= done, "a finished part was lost"
        done = len(place.names("parts"))
    assert done >= 2
    same(sweep(config, tmp_path / "local", workers=1), sweep(config, f"{bucket}/run", workers=1))


@pytest.mark.parametrize("command", ["sweep", "genomics"])
def test_a_bucket_that_is_not_there_exits_with_2(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(plain_world(tmp_path / "world", 1).to_toml())
    Path("net.py").write_text(MODEL)
    write_fasta("seqs.fa", ["a"], ["ACGTACGTACGT"])
    words = {
        "sweep": "sweep run.toml --out s3://no-such-bucket/run",
        "genomics": "genomics explain seqs.fa --model net.py:build --no-match --out s3://no-such-bucket/run",
    }[command]
    assert cli.main(words.split()) == 2
    assert "s3://no-such-bucket/run cannot be" in capsys.readouterr().err
