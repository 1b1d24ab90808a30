"""Runs on intervals: tracks for browsers, HDF5 for TF-MoDISco, intervals at the ends of contigs, ISM that resumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from plrp.cli import main
from plrp.genomics import SequenceError, baselines, explain_file, ism, read_intervals, simulate
from plrp.genomics.export import along_genome, write_modisco_h5
from plrp.genomics.sequences import Interval

MODEL = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv1d(4, 5, 7), torch.nn.ReLU(), torch.nn.AdaptiveMaxPool1d(1), torch.nn.Flatten(),
        torch.nn.Linear(5, 2)
    )
"""
LENGTHS = {"chr1": 120, "chr2": 90}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A genome of two chromosomes, and intervals that overlap."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    text = "".join(f">{name}\n{''.join(rng.choice(list('ACGT'), n))}\n" for name, n in LENGTHS.items())
    Path("genome.fa").write_text(text)
    Path("peaks.bed").write_text("chr2\t20\t60\tb\t0\t+\nchr1\t10\t50\ta\t0\t+\nchr1\t30\t70\tc\t0\t-\n")
    Path("net.py").write_text(MODEL)
    return tmp_path


def explain(*more: str) -> int:
    words = "genomics explain peaks.bed --genome genome.fa --model net.py:build --no-match --out out"
    return main([*words.split(), *more])


@pytest.mark.parametrize("overlap", ["mean", "sum", "strongest"])
def test_bigwig_and_bedgraph_hold_the_same(work: Path, overlap: str, capsys: pytest.CaptureFixture[str]) -> None:
    bigwig = pytest.importorskip("pyBigWig")
    assert explain() == 0
    words = f"genomics export out --genome genome.fa --bigwig r.bw --bedgraph r.bedgraph --overlap {overlap}"
    assert main(words.split()) == 0
    assert f"{overlap} where intervals overlap" in capsys.readouterr().out
    import pyarrow.parquet as pq

    table = pq.read_table("out/relevance.parquet").to_pandas()
    expected = {name: np.zeros(n) for name, n in LENGTHS.items()}
    join = {"mean": np.mean, "sum": np.sum, "strongest": lambda v: max(v, key=abs)}[overlap]
    for (chrom, coordinate), rows in table.groupby(["chrom", "coordinate"], observed=True):
        expected[chrom][coordinate] = join(rows["relevance"].to_numpy())
    file = bigwig.open("r.bw")
    assert file.chroms() == LENGTHS
    for name, n in LENGTHS.items():
        found = np.nan_to_num(file.values(name, 0, n))
        np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-7)
    again = {name: np.zeros(n) for name, n in LENGTHS.items()}
    for line in Path("r.bedgraph").read_text().splitlines():
        chrom, start, end, value = line.split("\t")
        again[chrom][int(start) : int(end)] = float(value)
    for name in LENGTHS:
        np.testing.assert_allclose(again[name], expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("overlap", ["mean", "sum", "strongest"])
def test_undefined_relevance_stays_undefined(overlap: str) -> None:
    maps = [[1.0, 2.0, np.nan], [np.nan, 1.0, 3.0], [5.0, -4.0, 1.0]]
    ((_, start, _, values),) = along_genome([Interval("c", k, k + 3, "i") for k in range(3)], maps, overlap)
    assert start[np.isnan(values)].tolist() == [1, 2]


def test_hdf5_as_tf_modisco_reads_it(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    h5py = pytest.importorskip("h5py")
    words = "genomics explain peaks.bed --genome genome.fa --model net.py:build --no-match --out plain"
    assert main(words.split()) == 0
    capsys.readouterr()
    assert main("genomics export plain --h5 m.h5".split()) == 0
    assert "plain has no hypothetical scores" in capsys.readouterr().err
    assert explain("--hypothetical") == 0
    capsys.readouterr()
    assert main("genomics export out --h5 m.h5".split()) == 0
    assert not capsys.readouterr().err
    with h5py.File("m.h5") as file:
        onehot, scores = file["raw/seq"][:], file["shap/seq"][:]
        np.testing.assert_array_equal(onehot, np.load("out/onehot.npz")["arr_0"])
        np.testing.assert_allclose(scores, np.load("out/attributions.npz")["arr_0"], rtol=1e-2, atol=1e-4)
        np.testing.assert_allclose(file["projected_shap/seq"][:], scores * onehot)


def test_what_cannot_be_exported_is_refused(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main("genomics export out --h5 m.h5".split()) == 2
    assert explain() == 0
    assert main("genomics export out".split()) == 2
    assert main("genomics export out --bigwig r.bw".split()) == 2
    with monkeypatch.context() as without:
        without.setattr("plrp.cli.genomics_results.find_spec", lambda name: None)
        assert main("genomics export out --bedgraph n.bedgraph --bigwig r.bw --genome genome.fa".split()) == 2
    assert not Path("n.bedgraph").exists()
    Path("other.fa").write_text(">chrX\nACGT\n")
    assert main("genomics export out --bigwig r.bw --genome other.fa".split()) == 2
    assert not Path("r.bw").exists()


def test_intervals_at_the_ends_of_contigs(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("peaks.bed").open("a") as stream:
        stream.write("chr1\t100\t140\td\t0\t-\n")
    assert explain() == 2
    assert "pad" in capsys.readouterr().err
    assert explain("--ends", "skip") == 0
    assert "1 interval past the end of a chromosome left out" in capsys.readouterr().err
    assert explain("--ends", "pad", "--out", "padded") == 0
    padded = read_intervals("peaks.bed", "genome.fa", ends="pad")
    assert padded.letters[-1].startswith("N" * 20)
    assert len(padded.letters[-1]) == 40
    for line in Path("padded/relevance.bedgraph").read_text().splitlines():
        assert int(line.split("\t")[2]) <= LENGTHS[line.split("\t")[0]]
    names = {line.split("\t")[-1] for line in Path("padded/seqlets.bed").read_text().splitlines()}
    assert names <= {"a", "b", "c", "d"}
    assert names
    Path("peaks.bed").write_text("chr1\t100\t140\n")
    with pytest.raises(SequenceError, match="all 1 intervals"):
        read_intervals("peaks.bed", "genome.fa", ends="skip")


def test_ism_of_a_file_resumes_where_it_stopped(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = simulate(9, motifs=["CTCF"], task="presence", length=40)
    data.save("sim")
    namespace: dict = {}
    exec(MODEL, namespace)
    model = namespace["build"]().eval()
    calls: list[int] = []
    real = baselines.METHODS["ism"]

    def counting(model, onehot, **options):
        calls.append(len(onehot))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(model, onehot, **options)

    monkeypatch.setitem(baselines.METHODS, "ism", counting)
    options = {"method": "ism", "part_size": 2, "match": False}
    with pytest.raises(KeyboardInterrupt):
        explain_file("sim/sequences.fa.gz", model, "ism", **options)
    outcome = explain_file("sim/sequences.fa.gz", model, "ism", **options)
    assert outcome.complete
    assert outcome.done_here == 3
    stored = np.load("ism/attributions.npz")["arr_0"]
    np.testing.assert_allclose(stored, ism(model, data.onehot()).attribution().relevance, atol=1e-6)
    with pytest.raises(ValueError, match="takes no pruning"):
        explain_file("sim/sequences.fa.gz", model, "x", method="ism", hypothetical=True)
    assert torch.is_grad_enabled()


def test_a_file_of_two_arrays_says_which_it_took(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onehot = simulate(3, motifs=["CTCF"], task="presence", length=40).onehot()
    np.savez("two.npz", x=onehot, labels=np.zeros(3))
    words = "genomics explain two.npz --model net.py:build --no-match --out arrays"
    assert main(words.split()) == 0
    assert "sequences are read from two.npz, array 'x'" in capsys.readouterr().err


def test_targets_as_text_are_stored_and_resumed(work: Path) -> None:
    assert explain("--target", "outputs[:, 1]") == 0
    assert explain("--target", "outputs[:, 1]") == 0
    assert explain("--target", "outputs[:, 0]") == 2
    assert explain("--target", "outputs[:, 9]", "--out", "x") == 2
    assert explain("--composite", "gamma:0.5", "--out", "g") == 0
    assert explain("--composite", "gamma:much", "--out", "y") == 2
    assert explain("--target", "outputs[:, 1]", "--reverse-complement", "--out", "z") == 2


def test_hdf5_holds_relevance_of_any_size(tmp_path: Path) -> None:
    """Half precision would make 10⁵ infinite and 10⁻⁸ nothing."""
    h5py = pytest.importorskip("h5py")
    onehot = np.eye(4, dtype=np.float32)[None]
    relevance = onehot * np.array([1e5, 1e-8, 1, 2], np.float32)
    write_modisco_h5(tmp_path / "m.h5", onehot, relevance)
    with h5py.File(tmp_path / "m.h5") as file:
        for name in ("shap/seq", "projected_shap/seq"):
            np.testing.assert_array_equal(file[name][:], relevance)
