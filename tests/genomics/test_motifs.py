"""Motifs from JASPAR, from files and from arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plrp.genomics import Motif, SequenceError, jaspar, jaspar_motifs, motif, read_motifs, write_meme


def test_jaspar_by_name_by_id_and_by_base_id() -> None:
    by_name = jaspar("GATA1")
    assert by_name.id.startswith("MA0035.")  # the mammalian factor, not the plant's
    assert jaspar("MA0035").id == by_name.id
    assert jaspar("MA0035.4").id == "MA0035.4"
    assert jaspar("gata1").id == by_name.id
    assert "GATA" in by_name.family


def test_unknown_jaspar_names_are_told_with_what_there_is() -> None:
    with pytest.raises(SequenceError, match=r"no motif called 'TAL1::TCF'; it has TAL1::TCF3 \(MA0091"):
        jaspar("TAL1::TCF")
    with pytest.raises(SequenceError, match=r"'GATTA'; it has GATA\d.*\. Give one of its names or ids"):
        jaspar("GATTA")
    with pytest.raises(SequenceError, match="no motif with id 'MA9999': give a name"):
        jaspar("MA9999")


def test_the_vertebrate_collection_is_whole_and_in_order() -> None:
    found = jaspar_motifs()
    assert len(found) > 700
    assert [m.id for m in found] == sorted(m.id for m in found)
    for one in found:
        assert np.allclose(one.probabilities.sum(0), 1)


def test_meme_round_trip(tmp_path: Path) -> None:
    some = [jaspar("CTCF"), jaspar("SPI1")]
    write_meme(tmp_path / "m.meme", some)
    again = read_motifs(tmp_path / "m.meme")
    assert [(m.name, m.id) for m in again] == [(m.name, m.id) for m in some]
    for a, b in zip(again, some, strict=True):
        assert np.allclose(a.probabilities, b.probabilities, atol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        ">MA0001.1 mine\nA [ 9 0 0 ]\nC [ 0 10 0 ]\nG [ 1 0 10 ]\nT [ 0 0 0 ]\n",
        ">MA0001.1\tmine\n9 0 0\n0 10 0\n1 0 10\n0 0 0\n",
    ],
)
def test_jaspar_files_bracketed_and_plain(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.jaspar").write_text(text)
    found = motif(tmp_path / "m.jaspar")
    assert (found.name, found.id, found.consensus) == ("mine", "MA0001.1", "ACG")


def test_arrays_of_counts_in_either_orientation() -> None:
    counts = np.array([[9, 0, 0], [0, 10, 0], [1, 0, 10], [0, 0, 0]])
    assert np.allclose(motif(counts).probabilities, motif(counts.T).probabilities)


BAD = {
    "empty": ("", r"line 1: no motifs"),
    "neither": ("hello\nworld\n", r"line 1: neither MEME"),
    "three rows": (">x\n1 2\n3 4\n5 6\n", r"line 1: motif 'x' needs four rows"),
    "words": (">x y\n1 2\nA B\n3 4\n5 6\n", r"line 3: expected numbers"),
    "meme rows": ("MOTIF x\nletter-probability matrix:\n0.5 0.5\n", r"line 1: motif 'x' needs rows of four"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_motif_files_name_the_line(tmp_path: Path, case: str) -> None:
    text, message = BAD[case]
    (tmp_path / "bad.txt").write_text(text)
    with pytest.raises(SequenceError, match=rf"bad\.txt, {message}"):
        read_motifs(tmp_path / "bad.txt")


def test_information_restated() -> None:
    one = motif([[1, 0.5, 0.25], [0, 0.5, 0.25], [0, 0, 0.25], [0, 0, 0.25]])
    assert one.information == pytest.approx([2, 1, 0])


def test_drawn_sites_follow_the_matrix() -> None:
    one = jaspar("CTCF")
    drawn = one.draw(20000, np.random.default_rng(0))
    seen = np.stack([(drawn == letter).mean(0) for letter in range(4)])
    assert np.abs(seen - one.probabilities).max() < 0.02


def test_columns_that_are_no_probabilities_are_refused() -> None:
    with pytest.raises(SequenceError, match="sum to 1"):
        Motif("x", np.ones((4, 3)))
    with pytest.raises(SequenceError, match=r"axes \(4, width\)"):
        Motif("x", np.ones((3, 3)))
    with pytest.raises(SequenceError, match="2 motifs where one is wanted"):
        motif(_two())


def _two() -> Path:
    import tempfile

    folder = Path(tempfile.mkdtemp())
    write_meme(folder / "two.meme", [jaspar("CTCF"), jaspar("SPI1")])
    return folder / "two.meme"
