"""The bench of truth: what is stored is known, methods are compared on the same cases, the page is written."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import plrp
from pages import ROOT

pytest.importorskip("torchvision")
sys.path.insert(0, str(ROOT / "benchmarks"))
try:
    import truth
    import truth_lattice
    import truth_local
    import truth_methods
    import truth_networks
    import truth_page
finally:
    sys.path.pop(0)


def row(case: int, method: str, part: str = "screen", **other: float) -> dict[str, object]:
    measured = {"spearman": 0.5, "spearman_absolute": 0.4, "pearson": 0.6, "gini": 0.7, "zeros": 0.1, "cost": 3.0}
    return {"case": case, "part": part, "method": method, **measured, **other}


def rows() -> list[dict[str, object]]:
    """Every method on three cases, one of them on a fourth too, where everything is easier."""
    labels = [method.label for method in truth_methods.methods("sequences")]
    found = [row(case, label) for label in labels for case in (0, 1, 2)]
    found = [r for r in found if r["method"] != labels[1] or r["case"] == 0]  # one is behind
    return [*found, row(3, labels[0], spearman=1.0, pearson=1.0), row(0, "a method of former days", pearson=1.0)]


def test_methods_are_compared_on_the_cases_that_all_have() -> None:
    kept = truth_page.fair(rows(), "sequences")
    assert {r["case"] for r in kept} == {0, 1, 2}
    labels = [method.label for method in truth_methods.methods("sequences")]
    assert {r["method"] for r in kept} == set(labels) - {labels[1]}


def test_finalists_have_a_table_of_their_own_cases() -> None:
    further = [row(case, "epsilon | LRP") for case in range(3, 9)] + [row(case, "DeepLIFT") for case in range(3, 8)]
    found = [*rows(), *further]
    finals = truth_page.of_finalists(found, truth_page.fair(found, "sequences"))
    assert {r["method"] for r in finals} == {"epsilon | LRP", "DeepLIFT"}
    assert {r["case"] for r in finals} == set(range(8))
    assert truth_page.of_finalists(rows(), truth_page.fair(rows(), "sequences")) == []


def test_the_page_gets_its_tables_and_its_picture(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "assets").mkdir()
    page.write_text(f"before\n{truth_page.BEGIN}\nold\n{truth_page.END}\nafter\n")
    measured = {name: rows() if name in ("splice", "deepac") else [] for name in truth_networks.NETWORKS}
    text = truth_page.write_page(measured, page)
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert text in written
    assert "old" not in written
    assert "| `epsilon-plus`, λ 0.05 | 0.550 | 0.50 / 0.60 | 0.50 / 0.60 |" in text
    assert "Not measured yet: ResNet-50" in text
    for picture in ("truth.svg", "truth-references.svg"):
        ElementTree.parse(tmp_path / "assets" / picture)


def test_differences_are_paired_case_by_case() -> None:
    """The case that only one method has does not count, and a constant map has no agreement."""
    base = [row(case, "base", spearman=0.1 * case, pearson=0.1 * case) for case in range(5)]
    better = [row(case, "better", spearman=0.1 * case + 0.2, pearson=0.1 * case) for case in range(1, 6)]
    differences = truth_page.apart(better, base)
    assert differences == pytest.approx([0.1] * 4)
    assert truth_page.signed(differences) == "+0.10 [+0.10, +0.10]"
    nothing = truth_page.apart([row(0, "constant", spearman=float("nan"), pearson=float("nan"))], base)
    assert nothing == [0.0]
    assert truth_page.signed(nothing) == "+0.00"
    centre, low, high = truth_page.interval([0.0, 0.3, -0.1, 0.2])
    assert low < centre < high


def test_rows_against_references_have_a_table_and_a_verdict() -> None:
    default = truth_methods.DEFAULT["sequences"]
    pruned = "rescale against zeros | λ 0.1"
    found = [row(case, m.label) for m in truth_methods.methods("sequences") for case in range(3)]
    for r in found:
        r |= {"gini": 0.96, "spearman": 0.5 + 0.02 * int(r["case"])} if r["method"] == pruned else {}
        r |= {"gini": 0.97, "spearman": 0.2} if r["method"] == "epsilon-gamma | λ 0.1" else {}
    further = [row(case, default, gini=0.1) for case in range(3, 9)]  # without references
    kept = truth_page.beside_references([*found, *further], "sequences")
    assert {r["case"] for r in kept} == {0, 1, 2}
    assert {default, pruned, "DeepLIFT"} <= {r["method"] for r in kept} < {r["method"] for r in found}
    measured = {name: found if name == "splice" else [] for name in truth_networks.NETWORKS}
    verdicts = truth_page.sparse(measured)[2:]
    assert [line.split(" | ")[-1] for line in verdicts] == ["no |", "**yes** |"]
    assert "| λ 0.1 | 0.56 (0.96) |" in verdicts[1]
    measured = {"splice": [r | {"spearman": 0.0, "pearson": 0.0} for r in found]}
    verdicts = truth_page.sparse({name: measured.get(name, []) for name in truth_networks.NETWORKS})[2:]
    assert all("no agreement at p = 0" in line for line in verdicts)
    assert truth_page.beside_references([row(0, default)], "sequences") == []


def test_p_by_depth_names_every_pruned_tensor() -> None:
    torch.manual_seed(0)
    net = truth_networks.DilatedProfile(4).eval()
    x = torch.nn.functional.one_hot(torch.randint(4, (1, 50)), 4).transpose(1, 2).float()
    trace = plrp.trace(net, x)
    above, below = (truth_methods.pruning_of(f"λ 0.1, more {where}", trace) for where in ("above", "below"))
    shares = [site.p for site in above.plan(trace).values()]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(0.2)
    assert [site.p for site in below.plan(trace).values()] == pytest.approx(shares[::-1])


def test_other_weights_are_not_mixed_with_those_measured(tmp_path: Path) -> None:
    store = truth.Store(tmp_path, "profile")
    x = torch.nn.functional.one_hot(torch.randint(4, (1, 8)), 4).transpose(1, 2).float()
    cases = [truth_networks.Case("sequence", x, 0)]
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32, 2)).eval()
    store.add(case=0, part="truth", method="truth", values=cases[0].truth(net)[0].tolist())
    truth.check_same_weights(store, net, cases)
    with torch.no_grad():
        net[1].weight.mul_(1.1)
    with pytest.raises(SystemExit, match="is of other weights"):
        truth.check_same_weights(store, net, cases)


def test_what_is_stored_is_known_and_a_broken_line_is_not(tmp_path: Path) -> None:
    store = truth.Store(tmp_path, "splice")
    store.add(case=0, part="truth", method="truth", name="donor, first", values=[0.5, -1.25])
    store.add(case=0, part="screen", method="LRP", pearson=0.123456)
    with store.file.open("a") as file:
        file.write("1,screen,LR")
    again = truth.Store(tmp_path, "splice")
    assert again.known == {(0, "truth", "truth"), (0, "screen", "LRP")}
    assert again.rows[0]["values"] == [0.5, -1.25]
    assert again.rows[1] == {"case": 0, "part": "screen", "method": "LRP", "pearson": 0.1235}
    again.add(case=1, part="screen", method="LRP", pearson=0.5)
    assert truth.Store(tmp_path, "splice").known == {*again.known}


def test_finalists_are_the_best_the_defaults_and_the_peers() -> None:
    among = truth_methods.methods("sequences")
    best = "gamma 1 | LRP"
    measured = [row(0, m.label, pearson=1.0 if m.label == best else 0.1) for m in among]
    found = [m.label for m in truth.finalists(measured, "sequences", 6)]
    assert found[5] == best
    assert len(found) == 6 + sum("sequences" in kinds for kinds, _ in truth_methods.PEERS.values())
    assert {"epsilon-plus | λ 0.15", "DeepLIFT", "random"} <= set(found)
    for kind, labels in truth_methods.DEFAULTS.items():
        assert set(labels) <= {m.label for m in truth_methods.methods(kind)}


def test_finals_are_shared_out_without_a_case_twice() -> None:
    cases = [index for part in ("17:100:2", "18:100:2", ":17") for index in range(*truth.part_of(part).indices(100))]
    assert sorted(cases) == list(range(100))


def test_every_named_composite_is_in_the_bench() -> None:
    assert set(plrp.composites.names()) <= set(truth_methods.COMPOSITES)


def test_attention_rollout_of_blocks_that_attend_to_nothing_in_particular() -> None:
    """With the same weight everywhere each block mixes half of the mean in: all patches are alike, and sum to less
    than 1 by what the class token keeps."""
    torch.manual_seed(0)
    model = truth_networks.VisionTransformer(width=8, heads=2, blocks=2).eval()
    for block in model.transformer.layers:
        torch.nn.init.zeros_(block.self_attn.in_proj_weight)
    case = truth_networks.Case("image", torch.randn(1, 3, 32, 32), 0, tile=4, grey=True)
    found = truth_methods.PEERS["attention rollout"][1](model, case)
    assert found.shape == case.input.shape
    even = (torch.full((65, 65), 1 / 65) + torch.eye(65)) / 2
    assert torch.allclose(case.features(found).float(), (even @ even)[:1, 1:], atol=1e-6)


def test_neighbours_stay_or_go_together() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(4 * 49, 2),
    ).eval()  # fmt: skip
    x = torch.randn(2, 3, 7, 7)
    pruning = truth_lattice.Neighbourhoods(0.4, unit="position", layers={"5": 0.0})
    plain, pruned = (
        plrp.explain(net, x, pruning=how, composite="epsilon-plus-flat", layers=True).layers["2"].abs().sum(1) > 0
        for how in (None, pruning)
    )
    assert bool(pruned.any())
    assert pruned.sum() < plain.sum()
    for sample, row, column in pruned.nonzero().tolist():
        block = (sample, slice(row // 2 * 2, row // 2 * 2 + 2), slice(column // 2 * 2, column // 2 * 2 + 2))
        assert torch.equal(pruned[block], plain[block])


def test_the_networks_read_what_their_readme_says() -> None:
    """Widths and reaches: one logit per splice site, a read and its reverse complement alike."""
    torch.manual_seed(0)
    bases = torch.randint(4, (1, 2001))
    x = torch.nn.functional.one_hot(bases, 4).transpose(1, 2).float()
    assert truth_networks.Splice().eval()(x).shape == (1, 3, 1)
    deepac = truth_networks.DeePaC().eval()
    read = x[:, :, :250]
    assert torch.allclose(deepac(read), deepac(read.flip((1, 2))), atol=1e-5)
    assert truth_networks.DilatedProfile()(read).shape == (1, 2, 250)
    assert truth_networks.ConvolutionAndAttention().eval()(read).shape == (1, 4)
    lstm = truth_networks.DeePaCRecurrent(width=6).eval()
    assert torch.allclose(lstm(read), lstm(read.flip((1, 2))), atol=1e-5)


def test_a_far_site_without_relevance_is_counted() -> None:
    x = torch.nn.functional.one_hot(torch.arange(30) % 4, 4).T[None].float()
    case = truth_networks.Case(
        "site", x, 0, positions=list(range(10, 30)), far={"a": slice(15, 18), "b": slice(18, 20)}
    )
    effects = torch.zeros(1, 20, dtype=torch.float64)
    effects[0, [0, 16, 19]] = torch.tensor([1.0, 0.5, 0.01], dtype=torch.float64)  # the site b moves too little
    relevance = torch.zeros_like(x)
    relevance[0, :, 10] = x[0, :, 10]
    found = truth.screen(case, effects, relevance)
    assert (found["far"], found["lost"]) == (1, 1)
    relevance[0, :, 26] = x[0, :, 26]
    assert truth.screen(case, effects, relevance)["lost"] == 0


def test_a_tile_is_followed_through_a_chain_of_convolutions() -> None:
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3, padding=1), nn.ReLU()]
    features, head = nn.Sequential(*layers, nn.MaxPool2d(2)).double(), nn.Linear(5 * 6 * 7, 3).double()
    image, baseline = torch.rand(1, 3, 24, 28, dtype=torch.float64), torch.rand(1, 3, 24, 28, dtype=torch.float64)

    def read(maps: torch.Tensor) -> torch.Tensor:
        return head(maps.flatten(1))

    found = truth_local.occlusion_of_chain(features, read, image, baseline, 8)
    for k in range(3):
        whole = plrp.metrics.occlusion(lambda x: read(features(x)), image, target=k, region=8, perturbation=baseline)
        torch.testing.assert_close(found[:, k], whole[0])


def test_answers_are_asked_for_once() -> None:
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)).eval()
    x = torch.rand(5, 4, 8)
    answers = truth.Answers(model, x[:1])
    with torch.no_grad():
        torch.testing.assert_close(answers(x[[0, 1, 1, 0]]), model(x[[0, 1, 1, 0]]))
        assert len(answers.known) == 2
        answers.model = lambda rows: torch.full((len(rows), 2), 7.0)
        assert answers(x)[2:].eq(7).all()
        torch.testing.assert_close(answers(x)[:2], model(x[:2]))


def test_the_lattice_and_the_rule_that_spreads_it() -> None:
    dots = truth_lattice.lattice(224)
    assert dots[32, 64]
    assert dots[36, 60]
    assert not dots[37, 64]
    assert torch.equal(truth_lattice.lattice(224, (16, 0))[16:], dots[:-16])
    assert len(truth_lattice.dots(224)) == 49
    torch.manual_seed(0)
    strided = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 1, stride=2), torch.nn.ReLU(), torch.nn.Flatten())
    with torch.no_grad():
        strided[0].weight.abs_()  # a score above zero
        strided[0].bias.zero_()
    x = torch.rand(1, 2, 4, 4) + 0.1
    spread = plrp.Composite([(truth_lattice.strided_pointwise, truth_lattice.Window())])
    plain = plrp.explain(strided, x, target=0, composite=plrp.Composite([(plrp.composites.is_any, plrp.rules.ZPlus())]))
    even = plrp.explain(strided, x, target=0, composite=spread)
    assert (plain.relevance.sum(1)[0] > 0).nonzero().tolist() == [[0, 0]]
    assert (even.relevance.sum(1)[0] > 0).nonzero().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert torch.allclose(even.relevance.sum(), plain.relevance.sum(), atol=1e-4)
