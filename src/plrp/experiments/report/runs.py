"""A run in a report: its results, its scores aligned by sample, its statements judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from plrp.experiments import statements
from plrp.experiments.aligned_scores import LRP, AlignedScores, Method, nearest_share
from plrp.experiments.results import Results
from plrp.experiments.statements import Statement

DATASETS = {
    "ecssd": "ECSSD",
    "imagenet": "ImageNet",
    "photographs": "Photographs",
    "dna": "DNA",
    "simulated-dna": "Simulated DNA",
    "arrays": "Arrays",
}
MODELS = {"resnet50": "ResNet-50", "vgg16": "VGG-16", "vgg16_gap": "VGG-16", "sequence-cnn": "CNN"}
SCALES = {
    None: "relevance as it is",
    "max": "relevance over its own maximum",
    "mass": "relevance over its mass",
    "norm": "relevance over its norm",
}


@dataclass(frozen=True)
class TitledRun:
    """One sweep."""

    path: str
    results: Results
    title: str

    @classmethod
    def load(cls, path: str | Path) -> TitledRun:
        """From the sweep's folder."""
        results = Results.load(path)
        return cls(str(path), results, f"{_dataset(results)}, {_model(results.config['model'])}")

    @property
    def dataset(self) -> str:
        """The data set's name, under which runs share a figure."""
        return _dataset(self.results)

    @property
    def network(self) -> str:
        """The network, or the whole title where that alone would not tell two runs apart."""
        return self.title.removeprefix(f"{self.dataset}, ")

    @property
    def slug(self) -> str:
        """The title as part of a file's name."""
        return slug(self.title)

    @cached_property
    def scores(self) -> AlignedScores:
        """The scores, under the network's name."""
        return AlignedScores.from_tables(self.network, self.results.scores, self.results.curves)

    @property
    def example_p(self) -> float:
        """The paper's exemplary proportion: 0.15 for images, 0.25 for DNA."""
        return statements.LOGO_P if self.results.kind == "dna" else statements.EXAMPLE_P

    @property
    def gain_metric(self) -> str | None:
        """The metric that 'gain' refers to: mass in the mask, or sparsity where there are no masks."""
        m = self.scores
        usable = [name for name in (statements.MASS, statements.GINI) if m.shares(name, "lambda") and m.count(name)]
        return usable[0] if usable else None

    @property
    def example(self) -> Method | None:
        """PLRP-λ at the measured p closest to the exemplary one."""
        shares = self.scores.shares(self.gain_metric, "lambda") if self.gain_metric else ()
        p = nearest_share(self.example_p, shares)
        return None if p is None else Method("lambda", p)

    @cached_property
    def statements(self) -> list[Statement]:
        """The paper's statements about this kind of data."""
        m = self.scores
        if self.results.kind == "dna":
            return [*statements.of_sequences(m), self._not_a_threshold()]
        metrics = self.results.config["metrics"]
        robustness = {
            name: SCALES.get(metrics.get(name, {}).get("normalise"), suffix)
            for name, suffix in statements.versions_of(m, statements.LIPSCHITZ).items()
        }
        faithfulness = {
            name: metrics.get(name.replace("pixel_flipping_auc", "pixel_flipping"), {}).get("score_as", "logit")
            for name in statements.versions_of(m, statements.AUC)
        }
        return statements.of_images(m, robustness=robustness, faithfulness=faithfulness)

    def _not_a_threshold(self) -> Statement:
        """Judged by the stored maps of sequences with known motifs."""
        r = self.results
        p = nearest_share(statements.LOGO_P, [p for variant, p in r.map_cells if variant == "lambda"])
        chosen = [(s, mask) for s in r.mapped if (mask := r.mask(s)) is not None and mask.any()] if r.has_maps else []
        if p is None or not chosen or (LRP.variant, 0.0) not in r.map_cells:
            return statements.not_a_threshold(0, 0)
        lrp = np.stack([r.maps(s, "LRP", 0.0) for s, _ in chosen])
        pruned = np.stack([r.maps(s, "lambda", p) for s, _ in chosen])
        example = statements.find_not_a_threshold(lrp, pruned, np.stack([mask for _, mask in chosen]))
        return statements.judge_threshold(example, len(chosen))

    @property
    def facts(self) -> dict[str, str]:
        """Versions, commit, seeds and machine, by name ("packages torch")."""
        return _flat({name: value for name, value in self.results.versions.items() if name != "starts"})

    def sample_name(self, sample: int) -> str:
        """The name of a sample in its data set."""
        names = self.results.samples.set_index("sample")["name"]
        return str(names.get(sample, sample))


def titled(runs: Sequence[TitledRun]) -> list[TitledRun]:
    """With titles that tell them apart: where some are alike, the name of the sweep is added, or as much of the folder
    as it takes; a run that is given twice is numbered.
    """
    depth = max((len(Path(run.path).parts) for run in runs), default=0)
    tells: list[Callable[[int], str]] = [lambda k: runs[k].results.name]
    tells += [lambda k, last=last: "/".join(Path(runs[k].path).parts[-last:]) for last in range(1, depth + 1)]  # type: ignore[misc]
    tells.append(lambda k: str(k + 1))
    titles = [run.title for run in runs]
    for title in set(titles):
        alike = [k for k, other in enumerate(titles) if other == title]
        if len(alike) > 1:
            tell = next(tell for tell in tells if len({tell(k) for k in alike}) == len(alike))
            for k in alike:
                titles[k] = f"{title} ({tell(k)})"
    return [replace(run, title=title) for run, title in zip(runs, titles, strict=True)]


def across(runs: Sequence[TitledRun]) -> dict[str, Statement]:
    """The paper's statement about both of its sets of photographs, by network that was measured on both."""
    return {
        one.network: statements.analogous(one.statements, other.statements)
        for one, other in product(runs, runs)
        if (one.dataset, other.dataset) == ("ECSSD", "ImageNet") and one.network == other.network
    }


def slug(text: str) -> str:
    """Lower case, with dashes for all but letters and digits."""
    return "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in text.lower()).split()) or "run"


def _dataset(results: Results) -> str:
    kind = str(results.config["data"]["kind"])
    return DATASETS.get(kind, kind)


def _model(model: dict[str, Any]) -> str:
    name = str(model["name"]).removeprefix("torchvision:")
    known = MODELS.get(name, Path(name).name if ".py:" in name else name)
    return f"{known}, {model['filters']} filters" if "filters" in model else known


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested facts as text by name."""
    lines: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, dict):
            lines |= _flat(value, f"{prefix}{name} ")
        else:
            lines[prefix + name] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return lines
