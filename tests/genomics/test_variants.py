"""Variants: planted effects have the right sign, size and place, and VCF files as bcftools writes them are read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import plrp
from plrp.balance import Problem
from plrp.cli import main
from plrp.genomics import (
    SequenceError,
    Variant,
    VariantEffect,
    encode,
    explain_sequences,
    read_vcf,
    reverse_complement,
    variant_effects,
)
from plrp.genomics import variants as module
from plrp.genomics.sequences import Genome
from plrp.genomics.variants import _effect, window

MOTIF = "TGACTCA"
WIDTH = 60


class Detector(nn.Module):
    """Two classes: nothing, and the best place of the motif, by the letters that agree with it beyond four."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 1, len(MOTIF))
        with torch.no_grad():
            self.conv.weight[:] = torch.from_numpy(encode(MOTIF))[None]
            self.conv.bias[:] = -4
        self.output = nn.Linear(1, 2, bias=False)
        with torch.no_grad():
            self.output.weight[:] = torch.tensor([[0.0], [1.0]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(torch.relu(self.conv(x)).amax(2))


def background(length: int, seed: int) -> str:
    """Random letters in which no window has more than four of the motif's."""
    rng = np.random.default_rng(seed)
    while True:
        letters = "".join(rng.choice(list("ACGT"), length))
        windows = (letters[i : i + 7] for i in range(length - 6))
        if max(sum(a == b for a, b in zip(w, MOTIF, strict=True)) for w in windows) <= 4:
            return letters


@pytest.fixture(scope="module")
def contig() -> str:
    """200 bases with the motif at 100 and its last letter wrong at 150."""
    for seed in range(1000):
        letters = background(200, seed)
        letters = letters[:100] + MOTIF + letters[107:150] + MOTIF[:-1] + "T" + letters[157:]
        others = letters[:100] + "N" * 7 + letters[107:150] + "N" * 7 + letters[157:]
        if Detector()(torch.from_numpy(encode([others])))[0, 1] == 0:
            return letters
    raise AssertionError


@pytest.fixture
def work(tmp_path: Path, contig: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("genome.fa").write_text(f">chr1\n{contig}\n>chr2\n{'ACGTN' * 30}\n")
    return tmp_path


def vcf(*rows: str, header: bool = True) -> str:
    head = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n" if header else ""
    Path("calls.vcf").write_text(head + "".join(row.replace(" ", "\t") + "\n" for row in rows))
    return "calls.vcf"


def variant(contig: str, position: int, alternative: str, width: int = 1) -> Variant:
    return Variant("chr1", position, contig[position : position + width], alternative)


# -- planted effects


def test_a_variant_that_breaks_the_motif(work: Path, contig: str) -> None:
    how = {"width": WIDTH, "target": 1, "composite": "epsilon-plus"}
    (one,) = variant_effects(Detector(), [variant(contig, 103, "G")], "genome.fa", **how)
    assert (one.score_reference, one.score_alternative, one.effect) == (3, 2, -1)
    at = one.coordinates.tolist().index(103)
    assert at == one.anchor == WIDTH // 2
    lost = one.difference
    assert lost[at] == lost.min() < 0
    motif = (one.coordinates >= 100) & (one.coordinates < 107)
    assert (lost[~motif] == 0).all()
    # z⁺: each agreeing letter has an equal share, 3/7 before; of 2, a sixth each after
    np.testing.assert_allclose(one.relevance_reference[motif], 3 / 7, rtol=1e-4)
    expected = np.full(7, 2 / 6)
    expected[3] = 0
    np.testing.assert_allclose(one.relevance_alternative[motif], expected, rtol=1e-4)


def test_a_variant_that_makes_a_motif(work: Path, contig: str) -> None:
    (one,) = variant_effects(Detector(), [variant(contig, 156, "A")], "genome.fa", width=WIDTH, target=1)
    assert (one.score_reference, one.score_alternative) == (2, 3)
    gained = one.difference
    assert one.coordinates[gained.argmax()] == one.coordinates[one.strongest] == 156
    made = (one.coordinates >= 150) & (one.coordinates < 157)
    assert (gained[made] > 0).all()
    assert (gained[~made] == 0).all()


def test_a_variant_far_away_changes_nothing(work: Path, contig: str) -> None:
    position = 122
    letter = next(x for x in "ACGT" if x != contig[position])
    (one,) = variant_effects(Detector(), [variant(contig, position, letter)], "genome.fa", width=WIDTH, target=1)
    assert one.effect == 0
    assert not one.difference.any()


@pytest.mark.parametrize(("position", "width", "alternative"), [(102, 3, "A"), (102, 1, "AGGT"), (101, 2, "CCC")])
def test_indels_are_aligned_and_their_difference_adds_up(
    work: Path, contig: str, position: int, width: int, alternative: str
) -> None:
    given = variant(contig, position, alternative, width)
    how = {"width": WIDTH, "target": 1, "composite": "epsilon-plus"}
    (one,) = variant_effects(Detector(), [given], "genome.fa", **how)
    change = len(alternative) - width
    assert len(one.letters_reference) == len(one.letters_alternative) == WIDTH + abs(change)
    start = position - WIDTH // 2
    assert one.letters_reference.replace("-", "") == contig[start : start + WIDTH]
    mutated = contig[:position] + alternative + contig[position + width :]
    assert one.letters_alternative.replace("-", "") == mutated[start : start + WIDTH]
    columns = zip(one.letters_reference, one.letters_alternative, one.coordinates, strict=True)
    alleles = range(position, position + width)
    for here, there, coordinate in columns:  # outside the alleles, bases stand under their like
        if "-" not in (here, there) and coordinate not in alleles:
            assert here == there == contig[coordinate]
    np.testing.assert_allclose(
        one.difference.sum(), one.relevance_alternative.sum() - one.relevance_reference.sum(), atol=1e-5
    )
    np.testing.assert_allclose(one.difference.sum(), one.effect, atol=1e-3)  # this detector loses no relevance


def test_the_reference_is_explained_as_it_would_be_alone(work: Path, contig: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(4, 6, 9), nn.ReLU(), nn.Conv1d(6, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3)
    ).eval()
    given = [variant(contig, 100, "A"), variant(contig, 100, "C"), variant(contig, 120, "ACCT", 2)]
    pruning = plrp.Pruning(p=0.25)
    for strand in ("+", "-"):
        found = variant_effects(model, given, "genome.fa", width=WIDTH, pruning=pruning, strand=strand)
        for one in found:
            start = one.variant.position - WIDTH // 2
            letters = contig[start : start + WIDTH]
            alone = explain_sequences(
                model, [letters if strand == "+" else reverse_complement(letters)], pruning=pruning
            )
            expected = alone.per_base()[0] if strand == "+" else alone.per_base()[0, ::-1]
            there = np.array(list(one.letters_reference)) != "-"
            np.testing.assert_allclose(one.relevance_reference[there], expected, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(one.score_reference, alone.score[0], rtol=1e-5)
            assert one.target == alone.target[0]


def test_both_strands_are_the_mean_of_each(work: Path, contig: str) -> None:
    given = [variant(contig, 103, "G"), variant(contig, 102, "A", 3)]
    forward, reverse, both = (
        variant_effects(Detector(), given, "genome.fa", width=WIDTH, target=1, strand=strand)
        for strand in ("+", "-", "both")
    )
    for a, b, mean in zip(forward, reverse, both, strict=True):
        np.testing.assert_allclose(mean.difference, (a.difference + b.difference) / 2, atol=1e-6)
        assert mean.effect == pytest.approx((a.effect + b.effect) / 2)
    with pytest.raises(ValueError, match="reverse_target"):
        variant_effects(Detector(), given, "genome.fa", width=WIDTH, target="outputs[:, 1]", strand="both")


def test_broken_arithmetic_is_said_with_the_effect(work: Path, contig: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def effect() -> VariantEffect:
        return variant_effects(Detector(), [variant(contig, 103, "G")], "genome.fa", width=WIDTH, target=1)[0]

    assert effect().problem == ""
    monkeypatch.setattr(plrp.Explanation, "problems", lambda one: [Problem.NOT_FINITE] * len(one.score))
    with pytest.warns(plrp.BrokenArithmetic):
        broken = effect()
    assert broken.problem == "not finite"


def test_the_strand_may_be_each_variants_own(work: Path, contig: str) -> None:
    row = f"chr1 104 . {contig[103]} G . . STRAND="
    found = variant_effects(Detector(), vcf(f"{row}-", f"{row}1"), "genome.fa", width=WIDTH, target=1, strand="info")
    reverse, forward = found
    assert forward.effect == -1
    alone = variant_effects(Detector(), [variant(contig, 103, "G")], "genome.fa", width=WIDTH, target=1, strand="-")
    np.testing.assert_array_equal(reverse.difference, alone[0].difference)


# -- what cannot be scored


def test_what_cannot_be_scored_is_named_and_the_rest_goes_on(work: Path, contig: str) -> None:
    base = contig[103]
    other = next(x for x in "ACGT" if x not in (base, "G"))
    rows = {
        f"chr1 104 rs1 {base.lower()} G,{other},* 50 PASS AC=1": [None, None, module.SYMBOLIC],
        f"chr1 104 . {other} G . . .": [module.MISMATCH],
        f"chr1 104 . {base} <DEL> . . .": [module.SYMBOLIC],
        f"chr1 104 . {base} {base}[chr2:5[ . . .": [module.SYMBOLIC],
        f"chr1 104 . {base} . . . .": [module.NO_ALTERNATIVE],
        f"chr1 104 . {base} {base} . . .": [module.NO_ALTERNATIVE],
        f"chr1 104 . {base} N . . .": [module.LETTERS_OTHER],
        "chr2 105 . N A . . .": [module.LETTERS_OTHER],
        f"chr1 104 . {base} {base + 'A' * 40} . . .": [module.TOO_LONG],
        f"1 104 . {base} G . . .": [module.UNKNOWN_CONTIG],
        f"chr1 5 . {contig[4]} {'A' if contig[4] != 'A' else 'C'} . . .": [module.PAST_END],
        f"chr1 199 . {contig[198:]} {contig[198]} . . .": [module.PAST_END],
        "chr1 0 . N A . . .": [module.LETTERS_OTHER],
        "chr1 900 . A C . . .": [module.PAST_END],
    }
    found = variant_effects(Detector(), vcf(*rows), "genome.fa", width=WIDTH, target=1)
    assert len(found) == 2
    assert [one.reason for one in found.skipped] == [why for reasons in rows.values() for why in reasons if why]
    assert "2 alleles explained, 14 skipped: " in repr(found)
    assert next(s for s in found.skipped if s.reason == module.UNKNOWN_CONTIG).detail == "the genome has chr1"
    early = next(s for s in found.skipped if s.variant.position == 4)  # the fifth base, and windows count from 1 too
    assert early.detail.endswith(f"the window is {5 - WIDTH // 2}-{4 - WIDTH // 2 + WIDTH}")
    padded = variant_effects(Detector(), vcf(*rows), "genome.fa", width=WIDTH, target=1, ends="pad")
    assert [one.variant.position for one in padded] == [103, 103, 4, 198]
    assert padded[2].letters_reference.startswith("N" * 26 + contig[:30])
    assert padded[3].letters_reference.rstrip("N-").endswith(contig[-20:])


def test_files_as_they_come(work: Path, contig: str) -> None:
    text = f"##fileformat=VCFv4.2\r\n#CHROM\tPOS\tID\tREF\tALT\r\nchr1\t104\t.\t{contig[103]}\tG\r\n\r\n"
    Path("a.vcf.gz").write_bytes(gzip.compress(text.encode()[:60]) + gzip.compress(text.encode()[60:]))  # as bgzip
    assert [str(v) for v in read_vcf("a.vcf.gz")] == [f"chr1:104 {contig[103]}>G"]
    assert read_vcf(vcf()) == []
    Path("b.vcf").write_text("chr1 104 . A C\n")
    with pytest.raises(SequenceError, match=r"b\.vcf, line 1: expected 'CHROM POS ID REF ALT"):
        read_vcf("b.vcf")
    Path("c.vcf").write_text("")
    with pytest.raises(SequenceError, match="this is not VCF"):
        read_vcf("c.vcf")


# -- the command


MODEL = "from test_variants import Detector as build\n"


def test_the_command_writes_tables_the_vcf_and_logos(
    work: Path, contig: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    Path("net.py").write_text(MODEL)
    base, wrong = contig[103], next(x for x in "ACGT" if x not in (contig[103], "G"))
    name = vcf(f"chr1 104 rs1 {base} G,* 50 PASS AC=1;DB GT 0/1", f"chr1 104 . {wrong} G . . .", "chr1 157 . T TA . .")
    words = f"genomics variants {name} --genome genome.fa --width {WIDTH} --model net.py:build --target 1 --out out"
    words += " --composite epsilon-plus"
    assert main(words.split()) == 0
    said = capsys.readouterr()
    assert "2 alleles explained, 2 skipped: " in said.out
    assert "skipped.tsv" in said.err
    table = pq.read_table("out/effects.parquet").to_pylist()
    assert [(row["position"], row["alternative"], row["effect"]) for row in table] == [(104, "G", -1), (157, "TA", 0)]
    assert table[0]["strongest_position"] == 104
    assert table[0]["problem"] == ""
    bases = pq.read_table("out/bases.parquet").to_pandas()
    first = bases[bases["number"] == 0]
    assert "".join(first["base_reference"]) == contig[73:133]
    assert first["difference"].sum() == pytest.approx(-1, abs=1e-3)
    changed = first.set_index("position")["difference"].abs()  # positions are those of the VCF
    assert changed.idxmax() == table[0]["strongest_position"]
    assert table[0]["target"] == "1"
    lines = Path("out/effects.vcf").read_text().splitlines()
    assert sum(line.startswith("##INFO=<ID=PLRP_") for line in lines) == 5
    records = [line.split("\t") for line in lines if not line.startswith("#")]
    assert records[0][7] == (
        "AC=1;DB;PLRP_REF=3,.;PLRP_ALT=2,.;PLRP_EFFECT=-1,.;PLRP_STRONGEST=104,.;"
        "PLRP_SKIPPED=symbolic_allele_breakend_or_*"
    )
    assert records[0][8:] == ["GT", "0/1"]
    assert records[1][7] == "PLRP_SKIPPED=reference_differs_from_the_genome"
    assert records[2][7].startswith("PLRP_REF=2;PLRP_ALT=2;")
    assert [read_vcf("out/effects.vcf")[k].id for k in (0, 1)] == ["rs1", "rs1"]
    assert len(list(Path("out/logos").glob("*.png"))) == 2
    assert len(Path("out/skipped.tsv").read_text().splitlines()) == 3
    assert main(words.split()) == 0  # once more into the same folder
    more = "--strand both --reverse-target 0 --sparsity-gain 1 --unit position"
    assert main([*words.split(), *more.split(), "--target", "outputs[:, 1]"]) == 0
    assert pq.read_table("out/effects.parquet").to_pylist()[0]["target"] == "outputs[:, 1]"
    stored = json.loads(Path("out/run.json").read_text())
    assert stored["command"] == "genomics variants"
    assert [stored[k] for k in ("reverse_target", "p", "sparsity_gain", "unit")] == ["0", None, 1, "position"]
    Path("other").mkdir()
    for content in ('{"command": "genomics explain"}', "{}", "["):  # the folder of another command
        Path("other/run.json").write_text(content)
        assert main([*words.split(), "--out", "other"]) == 2
        assert Path("other/run.json").read_text() == content
    with gzip.open("large.vcf.gz", "wb") as stream:
        stream.write(Path(name).read_bytes())
    large = words.replace(name, "large.vcf.gz").replace("--out out", "--out large")
    assert main([*large.split(), "--largest-input", "10"]) == 2
    assert main(large.split()) == 0


@pytest.mark.parametrize(
    "change",
    [("calls.vcf", "none.vcf"), ("--genome genome.fa", "--genome none.fa"), ("--target 1", "--target 1+1"),
     ("--target 1", "--target 1 --composite none"), ("--target 1", "--target 1 --device toaster"),
     ("--out out", "--out genome.fa"), ("net.py", "none.py"), (f"--width {WIDTH}", "--width 0")],
)  # fmt: skip
def test_wrong_usage(work: Path, change: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    Path("net.py").write_text(MODEL)
    vcf("chr1 104 . A G . . .")
    words = f"genomics variants calls.vcf --genome genome.fa --width {WIDTH} --model net.py:build --target 1 --out out"
    try:
        code = main(words.replace(*change).split())
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert not Path("out").exists()


# -- a real network and real variants


@pytest.mark.slow
def test_known_splice_variants_of_hbb(data: Path) -> None:
    """β-thalassaemia: donors that are lost (IVS1-1, IVS2-1), weakened (IVS1-5, IVS1-6) or made (IVS2-654)."""
    from splice import build

    model = build().eval()
    model.load_state_dict(
        torch.load(data / "splice" / "openspliceai_2000nt.pth", map_location="cpu", weights_only=True)
    )
    donor_one, donor_two, new_donor = 141, 494, 1146  # last bases before the intron
    known = {
        (142, "G", "A"): donor_one,
        (146, "G", "C"): donor_one,
        (147, "T", "C"): donor_one,
        (495, "G", "A"): donor_two,
        (1148, "C", "T"): new_donor,
    }
    effects = {}
    for (position, reference, alternative), donor in known.items():
        given = [Variant("HBB_gene", position, reference, alternative)]
        place = 50 + donor - position  # of the 101 outputs, 50 is the variant itself
        found = variant_effects(
            model, given, data / "splice" / "hbb.fa", width=2101, ends="pad", target=f"outputs[:, 2, {place}]"
        )
        (one,) = found
        effects[position] = one
        nearby = np.abs(one.coordinates - position) <= 25
        assert one.coordinates[np.abs(one.difference).argmax()] == position
        share = (
            0.3 if donor == new_donor else 0.5
        )  # a new site draws on more of the sequence; the 51 bases are 3% of it
        assert np.abs(one.difference[nearby]).sum() > share * np.abs(one.difference).sum()
    assert effects[142].score_reference > 0 > effects[142].score_alternative
    assert effects[495].score_reference > 0
    assert effects[495].effect < -3
    assert effects[146].effect < 0
    assert effects[147].effect < 0
    assert effects[1148].effect > 3


def test_relevance_that_changes_the_other_way_is_said(work: Path, contig: str) -> None:
    """Where biases take more than the evidence gives, Σ of the difference has the other sign than the effect."""
    place = window(variant(contig, 103, "G"), Genome("genome.fa"), WIDTH)
    before, after = np.zeros(WIDTH), np.zeros(WIDTH)
    after[5] = 0.4

    def problem(score: float, said: str = "") -> str:
        return _effect(place, [3.0, score, before, after], 1, said).problem

    assert problem(3.5) == ""
    assert problem(2.5) == "the relevance changes the other way than the score"
    assert problem(2.999) == ""  # too small a change to have a sign
    assert problem(2.5, "not finite") == "not finite"
