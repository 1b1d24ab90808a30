"""The demo: section 4.2.2 of the paper, from an empty folder to a page that shows it, with a photograph.

Sweeps (`plrp.experiments`) over simulated sequences with planted JASPAR motifs and the paper's two sizes of CNN: LRP,
PLRP-λ and PLRP-M with and without sparsity gain over p = 0 … 0.95. Scores, logos and motifs go
into one self-contained HTML report.
"""

from __future__ import annotations

import importlib.util
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import plrp
from plrp.files import new_file, write_csv
from plrp.genomics.baselines import ism
from plrp.genomics.export import write_seqlets
from plrp.genomics.seqlets import (
    Match,
    Pattern,
    e_text,
    find_patterns,
    find_seqlets,
    match_motifs,
    match_seqlets,
    named_match,
)
from plrp.genomics.sequence_settings import COMPOSITE
from plrp.genomics.simulation import Simulated
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.runs.places import Folder, refuse_strangers
from plrp.runs.run import ConfigChanged
from plrp.view import Bundle, explanation_bundle

from . import scenes
from .aligned_scores import LABELS, LRP, AlignedScores, Method
from .config import Config
from .data import DNA, open_samples
from .dna_pages import drawn_sequences, render
from .networks import load_network, threads_set
from .pages import write_page
from .presets import preset
from .results import Results
from .sample_drawings import planted_sites
from .statements import ENTROPY, GINI, LOGO_P, MASS, MOTIF_P, NotAThreshold, find_not_a_threshold, findings
from .store import Store
from .sweeps import require, sweep

FILTERS = (32, 4)
SLIDE_P = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.7, 0.9)
METRICS = (GINI, ENTROPY, MASS)


@dataclass(frozen=True)
class Study:
    """Everything the report shows about one data set.

    `trainings`: how each network was trained, and how well. `sweeps`: its scores on `shown`, the sequences that the
    larger network labels correctly among the first `explained` of `test`. `lrp`, `plrp`, `plrp_m`: the larger network's
    relevance of them (sequence, position); `ism`: in-silico mutagenesis of the drawn ones, (position,); `slides`:
    the drawn ones for every p.
    """

    data: Simulated
    test: Simulated
    explained: int
    trainings: dict[str, dict[str, Any]]
    sweeps: dict[str, AlignedScores]
    shown: Simulated
    lrp: npt.NDArray[np.float32]
    plrp: npt.NDArray[np.float32]
    plrp_m: npt.NDArray[np.float32]
    ism: dict[int, npt.NDArray[np.float32]]
    example: NotAThreshold | None
    ledger: list[dict[str, Any]]
    patterns: list[Pattern]
    matches: list[list[Match]]
    slides: list[Bundle]


def run(
    out: str | Path,
    seed: int = 0,
    *,
    count: int = 8000,
    explained: int = 200,
    epochs: int = 20,
    photographs: int = scenes.STEPS,
    show_progress: bool | None = None,
) -> Path:
    """Run the demo and write it into the folder `out`; returns the report's path.

    `count` sequences are simulated, of which 70% train, 15% stop the training, and 15% are held out; the first
    `explained` held-out ones go through the sweeps. Also written: the sweeps' folders, which a second start resumes,
    the data, both checkpoints, `sweep.csv` and `seqlets.bed`. One thread does the arithmetic, so that the same seed
    gives the same report. `photographs` is how many steps the network of the photographs is trained; 0: none are shown.
    """
    require("the demo needs", ("matplotlib", "pyjaspar", "memelite", "pyarrow", "pandas", "h5py"))
    changes = {"seed": seed, "data.sequences": count, "model.epochs": epochs}
    configs = {f"{size} filters": preset(f"genomics-{size}", limit=explained).changed(**changes) for size in FILTERS}
    out, runs = Path(out), [config.name for config in configs.values()]
    signs = [*(f"{run}/config.toml" for run in runs), "data/simulation.json"]
    if not any((out / sign).exists() for sign in signs):  # of an earlier start
        refuse_strangers(Folder(out), runs)
    out.mkdir(parents=True, exist_ok=True)
    compiling, painting, weights = compile_in_background(), None, out / "photographs.pt"
    if photographs and importlib.util.find_spec("skimage") is not None:  # it ships the photographs
        painting = scenes.train_in_background(weights, photographs, seed)
    try:
        study = examine(configs, out, show_progress=show_progress, compiling=compiling)
        shown = "" if painting is None else _photographs(painting, weights, show_progress)
    finally:
        for process in (compiling, painting):
            if process is not None:
                process.kill()
                process.wait()

    with tempfile.TemporaryDirectory(prefix=".data.", dir=out) as fresh:  # replaces the data of an earlier demo
        (out / "data").mkdir(exist_ok=True)
        for path in study.data.save(Path(fresh) / "data").iterdir():
            path.replace(out / "data" / path.name)
    for size in FILTERS:
        with new_file(out / f"cnn{size}.pt") as part:
            part.write_bytes((out / f"genomics-{size}" / "network.pt").read_bytes())
    write_sweeps(out / "sweep.csv", study.sweeps)
    seqlets = find_seqlets(study.plrp)
    matched = match_seqlets(seqlets, study.shown.onehot(), study.plrp)
    write_seqlets(out / "seqlets.bed", seqlets, study.shown.sequences, matched)
    path = out / "index.html"
    write_page(path, render(study, seed=seed, photographs=shown))
    print(summary(study))
    return path


def _photographs(painting: subprocess.Popen[bytes], weights: Path, show_progress: bool | None) -> str:
    """The page's section on photographs, once their network is trained."""
    with progress("explaining photographs", 2, show_progress) as step:
        step(0, "waiting for their network")
        if painting.wait():
            assert painting.stderr is not None
            why = (painting.stderr.read().decode().strip().splitlines() or ["no reason given"])[-1]
            raise RuntimeError(f"the network of the photographs could not be trained: {why}")
        step(1, "every p")
        html = scenes.render(weights)
        step(1)
    return html


def summary(study: Study) -> str:
    """The outcome in a few lines for the terminal: accuracies, findings, motifs."""
    lines = [f"test accuracy, {name}: {trained['test_accuracy']:.3f}" for name, trained in study.trainings.items()]
    lines += [f"{finding.verdict}: {finding.claim}" for finding in findings(study.sweeps, study.example)]
    for pattern, matches in zip(study.patterns, study.matches, strict=True):
        best = named_match(pattern.motif, matches)
        name = f"is {best.motif}, E = {e_text(best.e)}" if best else "matches no known motif"
        lines.append(f"motif found: {pattern.motif.consensus} {name} ({pattern.count} seqlets)")
    return "\n".join(lines)


def compile_in_background() -> subprocess.Popen[bytes]:
    """Have another process compile memelite's TOMTOM into numba's cache, while this one trains.

    The first use in an environment costs a minute or two of compiling; later ones a few seconds.
    """
    return scenes.in_background("from plrp.genomics import jaspar, match_motifs; match_motifs([jaspar('CTCF')])")


def examine(
    configs: Mapping[str, Config],
    out: Path,
    *,
    show_progress: bool | None = None,
    compiling: subprocess.Popen[bytes] | None = None,
) -> Study:
    """Train, explain and measure on sequences with known motifs: the part of `run` before it writes.

    `configs` are sweeps of the same sequences by the name of the network, the larger one first; their folders are made
    in `out`. `compiling` is the process of `compile_in_background`; matching waits for it.
    """
    results = {name: results_of(config, out / config.name, show_progress) for name, config in configs.items()}
    first = next(iter(results.values()))
    samples = open_samples(first.settings)
    assert isinstance(samples, DNA)
    correct = first.samples["correct"].fillna(False).to_numpy(bool)
    rows = [int(s) for s in first.samples["sample"][correct] if samples.chosen.mask[s].any()]
    if not rows:
        raise ValueError("No held-out sequence is labelled correctly: train longer, or on more sequences.")
    shown = samples.chosen.chosen(rows)
    sweeps = {
        name: AlignedScores.from_tables(name, one.scores[one.scores["sample"].isin(rows)])
        for name, one in results.items()
    }

    def maps(variant: str, p: float) -> npt.NDArray[np.float32]:
        return np.stack([first.maps(sample, variant, p) for sample in rows])

    lrp, pruned, sparse = maps("LRP", 0), maps("lambda", LOGO_P), maps("lambda", MOTIF_P)
    network, _ = load_network(first.settings, first.store)
    onehot, drawn = shown.onehot(), drawn_sequences(shown.labels)
    with threads_set(1):
        ledger = plrp.explain(
            network, torch.from_numpy(onehot[:1]), composite=COMPOSITE, pruning=Pruning(p=LOGO_P)
        ).ledger
        mutated = ism(network, onehot[drawn]).per_base()
        slides = [_slide(network, shown, k, next(iter(configs))) for k in drawn]

    with progress("finding motifs", 2, show_progress) as step:
        seqlets = find_seqlets(sparse)
        patterns = find_patterns(seqlets.chosen(seqlets.score > 0), onehot, sparse, max_patterns=8)
        step(1, "matching against JASPAR (its code is compiled once per environment)")
        if compiling is not None:
            compiling.wait()
        matches = match_motifs([pattern.motif for pattern in patterns])
        step(1)
    return Study(
        data=samples.whole,
        test=samples.split[2],
        explained=len(first.samples),
        trainings={name: one.training or {} for name, one in results.items()},
        sweeps=sweeps,
        shown=shown,
        lrp=lrp,
        plrp=pruned,
        plrp_m=maps("M", LOGO_P),
        ism=dict(zip(drawn, mutated, strict=True)),
        example=find_not_a_threshold(lrp, pruned, shown.mask),
        ledger=ledger,
        patterns=patterns,
        matches=matches,
        slides=slides,
    )


def _slide(network: nn.Module, shown: Simulated, k: int, name: str) -> Bundle:
    """One sequence for every p, with its planted motifs, for the page's slider."""
    given, target = torch.from_numpy(shown.onehot()[k : k + 1]), int(shown.labels[k])
    explanation = plrp.explain(network, given, target=target, composite=COMPOSITE, pruning=Pruning(p=LOGO_P))
    return explanation_bundle(
        explanation,
        sites=planted_sites(shown, k),
        mask=shown.mask[k],
        categories=shown.class_names,
        title=shown.names[k],
        model=f"network with {name}",
        proportions=SLIDE_P,
        targets=1,
    )


def results_of(config: Config, folder: Path, show_progress: bool | None = None) -> Results:
    """The results of a sweep; results of an earlier demo with other settings are replaced."""
    try:
        return sweep(config, folder, show_progress=show_progress)
    except ConfigChanged:
        Store(folder).run().remove_parts()  # without parts a run may be begun anew
        return sweep(config, folder, show_progress=show_progress)


def write_sweeps(path: Path, sweeps: Mapping[str, AlignedScores]) -> None:
    """Means over the sequences as a table: network, variant, p, and the metrics. LRP stands at p = 0."""
    rows = []
    for name, one in sweeps.items():
        for method in [LRP, *(Method(v, p) for v in one.variants(GINI) for p in one.shares(GINI, v))]:
            means = [f"{one.mean(metric, method):.6f}" for metric in METRICS]
            rows.append([name, LABELS[method.variant], method.p, *means])
    write_csv(path, ["network", "variant", "p", *METRICS], rows)
