"""Scores of a sweep, restated one explanation at a time."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import plrp
from plrp import metrics
from plrp.experiments import VARIANTS, Config, ConfigError, Store
from plrp.experiments.config import ALWAYS
from plrp.experiments.data import open_samples
from plrp.experiments.measure import Bench, work
from plrp.experiments.part_files import read_parquet, split
from worlds import world

Table = dict[tuple[int, str, float, str], float]


def bench(folder: Path, samples: int = 5, **changes: object) -> Bench:
    config = world(folder, samples, **changes).changed(**{"data.count": samples})
    return Bench(config, Store(folder / "run"))


def measured(made: Bench) -> tuple[Table, object]:
    parts = [read_parquet(made.part(index).scores) for index in range(made.config.parts)]
    _, scores, curves = split(parts)
    keys = scores[["sample", "variant", "p", "metric"]].itertuples(index=False, name=None)
    return dict(zip(keys, scores["value"], strict=True)), curves


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    torch.set_num_threads(1)
    return bench(tmp_path_factory.mktemp("measure"), variants=VARIANTS)


@pytest.fixture(scope="module")
def table(made: Bench) -> tuple[Table, object]:
    return measured(made)


def inputs(made: Bench) -> torch.Tensor:
    return torch.stack([made.samples[i].input for i in range(made.samples.count)])


def test_every_cell_has_what_was_asked_for_and_nothing_else(made: Bench, table: tuple[Table, object]) -> None:
    expected = set()
    for metric in made.config.metrics:
        names = [metric.name]
        if metric.function == "pixel_flipping":
            names = [f"pixel_flipping_auc{metric.suffix}", f"symmetric_relevance_gain{metric.suffix}"]
        for variant, p in made.config.cells:
            for sample in range(5):
                if metric.limit is not None and sample >= metric.limit:
                    continue
                if metric.p is None or p == 0 or p in metric.p:
                    expected |= {(sample, variant, p, name) for name in names}
    always = {(n, variant, p, name) for n in range(5) for variant, p in made.config.cells for name in ALWAYS}
    assert set(table[0]) == expected | always, "the balance of every explanation is measured"


def test_scores_are_those_of_single_explanations(made: Bench, table: tuple[Table, object]) -> None:
    x = inputs(made)
    for sample in range(5):
        for variant, p in made.config.cells:
            one = x[sample : sample + 1]
            explanation = plrp.explain(made.model, one, pruning=made.config.pruning(variant, p))
            relevance = explanation.relevance.sum(1)
            mask = made.samples[sample].mask[None]
            restated = {
                "gini": metrics.gini(relevance),
                "entropy": metrics.entropy(relevance),
                "nonzero": metrics.nonzero(relevance),
                "relevance_mass_accuracy": metrics.relevance_mass_accuracy(relevance, mask),
                "relevance_mass_accuracy.absolute": metrics.relevance_mass_accuracy(
                    relevance, mask, version="absolute"
                ),
                "pointing_game": metrics.pointing_game(relevance, mask),
                "score_kept": explanation.relevance.double().sum() / explanation.score.double(),
                "mass_at_input": explanation.balance.mass_at_input,
                "broken": torch.tensor([float(explanation.problems() != [None])]),
            }
            for name, value in restated.items():
                assert table[0][sample, variant, p, name] == pytest.approx(value.item(), rel=2e-3, abs=1e-6), name


@pytest.mark.parametrize("normalise", [None, "max"])
def test_robustness_is_that_of_the_metrics(made: Bench, table: tuple[Table, object], normalise: str | None) -> None:
    name = "local_lipschitz" if normalise is None else "local_lipschitz.max"
    x = inputs(made)[:4]
    target = made.model(x).argmax(1)
    for variant in ("LRP", "lambda", "M", "M+gain"):
        p = 0.0 if variant == "LRP" else 0.3
        pruning = made.config.pruning(variant, p)

        def explain(moved: torch.Tensor, classes: torch.Tensor, pruning: object = pruning) -> torch.Tensor:
            return plrp.explain(made.model, moved, target=classes, pruning=pruning).relevance.sum(1)

        again = metrics.local_lipschitz(explain, x, target=target, samples=2, normalise=normalise)
        mine = [table[0][sample, variant, p, name] for sample in range(4)]
        np.testing.assert_allclose(mine, again.numpy(), rtol=2e-2)  # a quotient of small differences
        worst = metrics.max_sensitivity(explain, x[:1], target=target[:1], samples=2)
        assert table[0][0, variant, p, "max_sensitivity"] == pytest.approx(worst.item(), rel=2e-2)


@pytest.mark.parametrize("score_as", ["logit", "probability"])
def test_flipping_is_that_of_the_metrics(made: Bench, table: tuple[Table, object], score_as: str) -> None:
    suffix = "" if score_as == "logit" else ".probability"
    x = inputs(made)
    for variant, p in (("LRP", 0.0), ("lambda", 0.3), ("M+gain", 0.9)):
        relevance = plrp.explain(made.model, x, pruning=made.config.pruning(variant, p)).relevance.sum(1)
        again = metrics.pixel_flipping(
            made.model, x, relevance, region=3, steps=4, order="both", ties="random", seed=0, score_as=score_as
        )
        for sample in range(5):
            mine = table[0][sample, variant, p, f"pixel_flipping_auc{suffix}"]
            assert mine == pytest.approx(again.auc[sample].item(), rel=1e-4, nan_ok=True)
            gain = table[0][sample, variant, p, f"symmetric_relevance_gain{suffix}"]
            assert gain == pytest.approx(again.symmetric_relevance_gain[sample].item(), rel=1e-3, abs=1e-6, nan_ok=True)
        curves = table[1]
        chosen = curves[(curves["variant"] == variant) & (curves["p"] == p) & (curves["sample"] == 1)]
        chosen = chosen[(chosen["metric"] == f"pixel_flipping{suffix}") & (chosen["order"] == "least")]
        np.testing.assert_allclose(chosen["score"], again.least_first[1].numpy(), rtol=1e-4)
        np.testing.assert_allclose(chosen["share"], again.flipped.numpy())


def test_shares_above_what_the_gain_prunes_are_the_same_map_to_the_bit(tmp_path: Path) -> None:
    made = bench(tmp_path, 3, p=[0.01, 0.02, 0.05, 0.1, 0.3, 0.6, 0.9, 0.95])
    x = inputs(made)
    trace = plrp.trace(made.model, x)
    target = trace.output.argmax(1)
    shared = 0
    for cells, explanation in made.explanations(trace, target, made.config.cells):
        shared = max(shared, len(cells))
        for cell in cells:
            alone = trace.explain(target=target, pruning=made.config.pruning(*cell))
            assert torch.equal(alone.relevance, explanation.relevance), cell
    assert shared > 2


def test_ticks_add_up_to_the_work_that_was_announced(made: Bench) -> None:
    for index in range(made.config.parts):
        heard: Counter[str] = Counter()
        made.part(index, lambda kind, count, heard=heard: heard.update({kind: count}))
        assert heard == work(made.config, made.config.part(index))


def test_one_trace_per_batch_serves_all_variants_and_p(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = bench(tmp_path, 5, part_size=5)
    config = Config.from_dict({**small.config.to_dict(), "metrics": {"gini": {}, "pixel_flipping": {"region": 3}}})
    traced: list[int] = []
    trace = plrp.trace
    monkeypatch.setattr(plrp, "trace", lambda model, x, **_: traced.append(len(x)) or trace(model, x))
    Bench(config, Store(tmp_path / "run")).part(0)
    assert len(config.cells) == 1 + 4 * 4
    assert traced == [2, 2, 1]


def test_one_trace_is_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Perturbed inputs are traced one after the other, the first after the trace of the batch itself is gone."""
    small = bench(tmp_path, 4)
    traces: list[weakref.ref[plrp.Trace]] = []
    held: list[int] = []
    trace = plrp.trace

    def watched(model: torch.nn.Module, x: torch.Tensor, **_: object) -> plrp.Trace:
        held.append(sum(known() is not None for known in traces))
        made = trace(model, x)
        traces.append(weakref.ref(made))
        return made

    monkeypatch.setattr(plrp, "trace", watched)
    small.part(0)
    assert len(held) > 2 * 2
    assert set(held) == {0}


def test_a_rehearsal_knows_every_kind_of_work(made: Bench) -> None:
    found = made.rehearse()
    amount = work(made.config, range(5))
    assert set(amount) <= set(found.seconds)
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert found.memory > 100e6  # torch alone is larger
    assert found.estimate(amount + amount) == pytest.approx(2 * found.estimate(amount))


def test_a_part_is_the_same_to_the_byte_every_time(made: Bench) -> None:
    first, second = made.part(0), made.part(0)
    assert first.scores == second.scores
    assert first.maps == second.maps


def test_localization_without_masks_is_refused(tmp_path: Path) -> None:
    config = world(tmp_path)
    with np.load(tmp_path / "data.npz") as stored:
        np.savez(tmp_path / "bare.npz", inputs=stored["inputs"])
    bare = config.changed(**{"data.root": str(tmp_path / "bare.npz"), "data.count": 10})
    with pytest.raises(ConfigError, match=r"relevance_mass_accuracy compares relevance with a ground truth"):
        Bench(bare, Store(tmp_path / "run"))
    only = Config.from_dict({**bare.to_dict(), "metrics": {"gini": {}}})
    assert open_samples(only)[0].label is None
    table, _ = measured(Bench(only.changed(**{"data.limit": 1}), Store(tmp_path / "run")))
    assert not math.isnan(table[0, "LRP", 0.0, "gini"])


def test_a_model_without_classes_is_refused(tmp_path: Path) -> None:
    config = world(tmp_path).changed(**{"data.count": 10})
    (tmp_path / "net.py").write_text("import torch\ndef build():\n    return torch.nn.Conv2d(3, 2, 3)\n")
    with pytest.raises(ConfigError, match=r"winning class of an output \(batch, classes\)"):
        Bench(config, Store(tmp_path / "run")).part(0)
