"""Files of a few kilobytes that state gigabytes: they are refused by their stated sizes, before memory is taken."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import plrp
from peaks import peak_of
from plrp.files import plausible_size
from plrp.genomics import SequenceCNN, SequenceError
from plrp.models.checkpoints import CheckpointError, load_weights, read_state_dict
from plrp.models.keras import load_keras
from plrp.runs.memory import TooLarge

MEGABYTE = 1_000_000
STATED = 400 * MEGABYTE
"""Bytes that each bomb states: more than the 256 MB that any file may unpack to."""


def refused(function: Callable[[], Any]) -> tuple[str, str]:
    """The kind and the words of a function's error, which takes no more than 100 MB before it comes."""
    error, taken = peak_of(function)
    assert taken < 100 * MEGABYTE, f"{error!r} came after {taken / MEGABYTE:,.0f} MB"
    return type(error).__name__, str(error)


def test_settings_of_a_checkpoint_that_do_not_fit_its_weights_take_no_memory(tmp_path: Path) -> None:
    path, network = tmp_path / "net.pt", SequenceCNN(filters=2)
    network.settings["filters"] = 4500  # 405 MB in the second convolution
    network.save(path)
    assert refused(lambda: SequenceCNN.load(path))[0] == SequenceError.__name__


def test_views_that_repeat_a_number_are_refused(tmp_path: Path) -> None:
    """They pass every comparison of shapes, and each copy of them takes all that they state."""
    filters = 4500
    with torch.device("meta"):
        network = SequenceCNN(filters=filters)
    state = {name: torch.zeros(()).expand(value.shape) for name, value in network.state_dict().items()}
    torch.save({"settings": network.settings, "state": state}, tmp_path / "net.pt")
    torch.save(state, tmp_path / "state.pt")
    assert (tmp_path / "state.pt").stat().st_size < 10_000
    for function in (lambda: SequenceCNN.load(tmp_path / "net.pt"), lambda: read_state_dict(tmp_path / "state.pt")):
        kind, words = refused(function)
        assert kind == CheckpointError.__name__
        assert "save contiguous tensors" in words
    tied = torch.randn(30)
    torch.save(nn.Linear(2, 2).state_dict() | {"tied": tied, "again": tied}, tmp_path / "tied.pt")
    assert len(read_state_dict(tmp_path / "tied.pt")) == 4


def packed(path: Path, source: Path, name: str, content: bytes | None = None) -> None:
    """An archive of `torch.save` once more, with the entry `name` deflated (and with another content)."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            deflated = entry.filename.endswith(name)
            data = content if deflated and content is not None else old.read(entry)
            new.writestr(entry.filename, data, zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED)


@pytest.mark.parametrize("name", ["data.pkl", "data/0"])
def test_a_packed_checkpoint_is_refused_before_torch_unpacks_it(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(nn.Linear(20, 500).state_dict(), tmp_path / "state.pt")
    endless = b"\x80\x02" + b"N0" * MEGABYTE + b"N."  # None is pushed and popped: seconds for each megabyte
    packed(tmp_path / "bomb.pt", tmp_path / "state.pt", name, endless if name == "data.pkl" else bytes(40_000))
    SequenceCNN(filters=2).save(tmp_path / "net.pt")
    packed(tmp_path / "network.pt", tmp_path / "net.pt", name, endless)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("unpacked"))
    said = r"is refused: its [\d,]+ bytes unpack to [\d,]+; save it with torch\.save, uncompressed\."
    with pytest.raises(CheckpointError, match=rf"bomb\.pt {said}"):
        load_weights(nn.Linear(20, 500), tmp_path / "bomb.pt")
    with pytest.raises(CheckpointError, match=rf"network\.pt {said}"):
        SequenceCNN.load(tmp_path / "network.pt")


@pytest.mark.parametrize("how", ["never written", "one twice over", "gzip"])
def test_arrays_of_keras_that_state_more_than_the_file_are_refused(tmp_path: Path, how: str) -> None:
    h5py = pytest.importorskip("h5py")
    config = {"class_name": "Sequential", "config": [{"class_name": "Dense", "config": {"name": "dense"}}]}
    names, count = ["dense/kernel:0"], STATED // 4000
    if how == "one twice over":
        names, count = names * 2, count // 2
    with h5py.File(tmp_path / "net.h5", "w") as file:
        file.attrs["model_config"] = json.dumps(config)
        group = file.create_group("model_weights")
        group.attrs["layer_names"] = [b"dense"]
        own = group.create_group("dense")
        own.attrs["weight_names"] = [name.encode() for name in names]
        packing = {"chunks": (1000, 1000), "compression": "gzip"} if how == "gzip" else {}
        own.create_dataset(names[0], (count, 1000), np.float32, **packing)
    kind, words = refused(lambda: load_keras(tmp_path / "net.h5"))
    assert kind == CheckpointError.__name__
    assert "its arrays take over 100 times the size of the file; save it uncompressed" in words


def test_an_explanation_that_unpacks_to_far_more_than_it_has_is_refused_unless_allowed(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    plrp.explain(model, torch.randn(2, 4)).save(path)
    assert plrp.load(path).relevance.shape == (2, 4)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (STATED // 4,)})
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            if entry.filename != "relevance.npy":
                new.writestr(entry.filename, old.read(entry))
        with new.open("relevance.npy", "w") as stream:
            stream.write(header.getvalue())
            for _ in range(STATED // MEGABYTE):
                stream.write(bytes(MEGABYTE))
    kind, words = refused(lambda: plrp.load(tmp_path / "bomb.npz"))
    assert kind == TooLarge.__name__
    assert "bomb.npz unpacks to more than 0.256 GB, and was not read" in words
    assert "largest= in Python" in words
    assert plrp.load(tmp_path / "bomb.npz", largest=STATED + MEGABYTE).relevance.shape == (STATED // 4,)


def test_a_file_may_unpack_to_a_hundred_times_its_size(tmp_path: Path) -> None:
    path = tmp_path / "large"
    for size, allowed in ((10, 256 * MEGABYTE), (4 * MEGABYTE, 400 * MEGABYTE)):
        with path.open("wb") as stream:
            stream.truncate(size)
        assert plausible_size(path) == allowed
