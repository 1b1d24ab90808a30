"""The genomics demo: the paper's section 4.2.2 from an empty folder to a page that shows it.

Sweeps (`plrp.experiments`) over simulated sequences with planted JASPAR motifs and the paper's two sizes of CNN: LRP,
PLRP-λ and PLRP-M with and without sparsity gain over p = 0 … 0.95. What they measured, logos and the motifs found go
into one self-contained HTML report.
"""

from __future__ import annotations

import csv
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

import plrp
from plrp.files import new_file
from plrp.genomics.attribution import COMPOSITE
from plrp.genomics.export import write_seqlets
from plrp.genomics.logo import around_strongest, logo_page
from plrp.genomics.motifs import Motif
from plrp.genomics.seqlets import Match, Pattern, find_patterns, find_seqlets, match_motifs, match_seqlets
from plrp.genomics.simulation import Simulated
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.runs.places import Folder, refuse_strangers

from . import demo_page as report
from . import pages, statements
from .findings import EXAMPLE_P, NotAThreshold, find_not_a_threshold, findings
from .measured import LABELS, LRP, Measured, Method

if TYPE_CHECKING:
    from . import Config, Results

FILTERS = (32, 4)
MOTIF_P = 0.5
"""Pruned share for motif finding: sharper regions than the logo plots' 0.25."""

METRICS = (statements.GINI, "entropy", statements.MASS)


@dataclass(frozen=True)
class Study:
    """Everything the report shows about one data set.

    `trainings`: how each network was trained, and how well. `sweeps`: its scores on `shown`, the sequences that the
    larger network labels rightly of the `explained` first of `test`. `lrp`, `plrp`, `plrp_m`: the larger network's
    relevance of them (sequence, position).
    """

    data: Simulated
    test: Simulated
    explained: int
    trainings: dict[str, dict[str, Any]]
    sweeps: dict[str, Measured]
    shown: Simulated
    lrp: npt.NDArray[np.float32]
    plrp: npt.NDArray[np.float32]
    plrp_m: npt.NDArray[np.float32]
    example: NotAThreshold | None
    ledger: list[dict[str, Any]]
    patterns: list[Pattern]
    matches: list[list[Match]]


def run(
    out: str | Path,
    seed: int = 0,
    *,
    count: int = 8000,
    explained: int = 200,
    epochs: int = 20,
    show_progress: bool | None = None,
) -> Path:
    """Run the demo and write it into the folder `out`; returns the report's path.

    `count` sequences are simulated, of which 70% train, 15% stop the training, and 15% are held out; the first
    `explained` held-out ones go through the sweeps. Also written: the sweeps' folders, which a second start takes up,
    the data, both checkpoints, `sweep.csv` and `seqlets.bed`. One thread does the arithmetic, so that the same seed
    gives the same report.
    """
    _check_extras()
    from . import preset

    changes = {"seed": seed, "data.sequences": count, "model.epochs": epochs}
    configs = {f"{size} filters": preset(f"genomics-{size}", limit=explained).changed(**changes) for size in FILTERS}
    out = Path(out)
    runs = [f"genomics-{size}" for size in FILTERS]
    marks = [*(f"{run}/config.toml" for run in runs), "data/simulation.json"]
    if not any((out / mark).exists() for mark in marks):  # of an earlier start
        refuse_strangers(Folder(out), runs)
    out.mkdir(parents=True, exist_ok=True)
    compiling = compile_in_background()
    try:
        study = examine(configs, out, show_progress=show_progress, compiling=compiling)
    finally:
        compiling.kill()
        compiling.wait()

    folder = out / "data"
    if (folder / "simulation.json").exists():  # of an earlier run of the demo
        shutil.rmtree(folder)
    study.data.save(folder)
    for size in FILTERS:
        with new_file(out / f"cnn{size}.pt") as part:
            part.write_bytes((out / f"genomics-{size}" / "network.pt").read_bytes())
    write_sweeps(out / "sweep.csv", study.sweeps)
    seqlets = find_seqlets(study.plrp)
    write_seqlets(
        out / "seqlets.bed", seqlets, study.shown.sequences, match_seqlets(seqlets, study.shown.onehot(), study.plrp)
    )
    path = out / "index.html"
    pages.write_page(path, render(study, seed=seed))
    print(summary(study))
    return path


def summary(study: Study) -> str:
    """What came out, in a few lines for the terminal: accuracies, findings, motifs."""
    lines = [f"test accuracy, {name}: {made['test_accuracy']:.3f}" for name, made in study.trainings.items()]
    lines += [
        f"{'holds' if finding.holds else 'does not hold'}: {finding.claim}"
        for finding in findings(study.sweeps, study.example)
    ]
    for pattern, matches in zip(study.patterns, study.matches, strict=True):
        best = matches[0]
        lines.append(
            f"motif found: {pattern.motif.consensus} is {best.motif}, p = {best.p:.1e} ({pattern.count} seqlets)"
        )
    return "\n".join(lines)


def _check_extras() -> None:
    """Say what is missing before an hour of work, not after."""
    for package in ("matplotlib", "pyjaspar", "memelite", "pyarrow", "pandas", "h5py"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"the demo needs {package}: pip install 'plrp[experiments]'")


def compile_in_background() -> subprocess.Popen[bytes]:
    """Have another process compile memelite's TOMTOM into numba's cache, while this one trains.

    The first use in an environment costs a minute or two of compiling; later ones a few seconds.
    """
    work = "from plrp.genomics import jaspar, match_motifs; match_motifs([jaspar('CTCF')])"
    return subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def examine(
    configs: Mapping[str, Config],
    out: Path,
    *,
    show_progress: bool | None = None,
    compiling: subprocess.Popen[bytes] | None = None,
) -> Study:
    """Train, explain and measure on sequences with known motifs; what `run` does before it writes.

    `configs` are sweeps of the same sequences by the name of the network, the larger one first; their folders are made
    in `out`. `compiling` is what `compile_in_background` started; matching waits for it.
    """
    from .data import DNA, open_samples
    from .networks import load_network, threads_set

    results = {name: swept(config, out / config.name, show_progress) for name, config in configs.items()}
    first = next(iter(results.values()))
    samples = open_samples(first.settings)
    assert isinstance(samples, DNA)
    correct = first.samples["correct"].fillna(False).to_numpy(bool)
    rows = [int(s) for s in first.samples["sample"][correct] if samples.chosen.mask[s].any()]
    if not rows:
        raise ValueError("No held-out sequence is labelled rightly: train longer, or on more sequences.")
    shown = samples.chosen.chosen(rows)
    sweeps = {
        name: Measured.from_tables(name, one.scores[one.scores["sample"].isin(rows)]) for name, one in results.items()
    }

    def maps(variant: str, p: float) -> npt.NDArray[np.float32]:
        return np.stack([first.maps(sample, variant, p) for sample in rows])

    lrp, pruned, sparse = maps("LRP", 0), maps("lambda", EXAMPLE_P), maps("lambda", MOTIF_P)
    network, _ = load_network(first.settings, first.store)
    onehot = shown.onehot()
    with threads_set(1):
        booked = plrp.explain(network, torch.from_numpy(onehot[:1]), composite=COMPOSITE, pruning=Pruning(p=EXAMPLE_P))
        ledger = booked.ledger

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
        plrp_m=maps("M", EXAMPLE_P),
        example=find_not_a_threshold(lrp, pruned, shown.mask),
        ledger=ledger,
        patterns=patterns,
        matches=matches,
    )


def swept(config: Config, folder: Path, show_progress: bool | None = None) -> Results:
    """The results of a sweep; an earlier demo's with other settings make way."""
    from . import ConfigChanged, sweep

    try:
        return sweep(config, folder, show_progress=show_progress)
    except ConfigChanged:
        shutil.rmtree(folder)
        return sweep(config, folder, show_progress=show_progress)


def write_sweeps(path: Path, sweeps: Mapping[str, Measured]) -> None:
    """Means over the sequences as a table: network, variant, p, and the metrics. LRP stands at p = 0."""
    with new_file(path) as part, part.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["network", "variant", "p", *METRICS])
        for name, one in sweeps.items():
            methods = [LRP, *(Method(v, p) for v in one.variants(METRICS[0]) for p in one.shares(METRICS[0], v))]
            for method in methods:
                means = [f"{one.mean(metric, method):.6f}" for metric in METRICS]
                writer.writerow([name, LABELS[method.variant], method.p, *means])


# -- the report


def render(study: Study, *, seed: int, title: str = "Pruned relevance on DNA", made: str = "") -> str:
    """The report as one HTML document."""
    found = findings(study.sweeps, study.example)
    accuracies = {f"test accuracy, {name}": f"{made['test_accuracy']:.1%}" for name, made in study.trainings.items()}
    one, example = next(iter(study.sweeps.values())), Method("lambda", EXAMPLE_P)
    rises = {
        name: f"{one.mean(m):.2f} → {one.mean(m, example):.2f}"
        for name, m in (("RMA", METRICS[2]), ("Gini", METRICS[0]))
    }
    headline = {
        **accuracies,
        **{f"{name}, LRP → PLRP-λ, p&nbsp;=&nbsp;{EXAMPLE_P}": text for name, text in rises.items()},
        "of the paper's findings hold": f"{sum(bool(f.holds) for f in found)} of {len(found)}",
    }
    body = pages.cards(headline)
    body += _what_was_done(study, seed, made)
    body += pages.section("Do the paper's findings hold here?", report.findings_block(found))
    body += _logos(study)
    if study.example is not None:
        body += _not_a_threshold(study, study.example)
    body += pages.section(
        "Sparsity and localization over p",
        f"<p>Means over {len(study.shown)} held-out sequences, as in the paper's appendix B: the upper panels show "
        "the whole range, the lower ones what the curves cover. “Gain” stops pruning where a neuron's sparsity gain "
        "falls below 1, so p is only an upper limit there.</p>",
        report.curves_block(study.sweeps),
    )
    body += pages.section(
        "Where the relevance went",
        f"<p>The ledger of {pages.escape(study.shown.names[0])} under PLRP-λ, p = {EXAMPLE_P}, from the score down "
        "to the bases. Pruning moves mass between neurons and loses none: mass in and out of its rows are equal. "
        "What is absorbed went to biases and ε.</p>",
        report.ledger_block(study.ledger),
    )
    body += pages.section(
        "Motifs found",
        f"<p>Contiguous surviving regions (PLRP-λ, p = {MOTIF_P}) that speak for the class and look alike were "
        "aligned into patterns, and those compared with the vertebrate CORE motifs of JASPAR by TOMTOM. Planted "
        f"were {pages.escape(', '.join(str(m) for m in study.data.motifs))}.</p>",
        report.motifs_block(study.patterns, study.matches)
        if study.patterns
        else "<p>No group of ten seqlets or more looked alike.</p>",
    )
    body += _next_steps()
    lead = (
        "LRP traces a network's score back to the bases of a sequence. PLRP prunes the relevance in every layer on "
        "its way, so that what arrives is sparser. Here the truth is known: the motifs were planted."
    )
    return pages.page(title, lead, body)


def _what_was_done(study: Study, seed: int, made: str) -> str:
    data = study.data
    classes = ", ".join(pages.escape(name) for name in data.class_names)
    made = made or (
        f"{len(data)} random sequences of {data.length} bases were simulated, each with one to three copies of the "
        f"motif of its class ({classes}), drawn from JASPAR's matrices and planted without overlap"
    )
    rows = [
        [
            name,
            f"{trained['weights']:,}",
            f"{trained['epochs']}",
            f"{trained['validation_accuracy']:.3f}",
            f"{trained['test_accuracy']:.3f}",
        ]
        for name, trained in study.trainings.items()
    ]
    return pages.section(
        "What was done",
        f"<p>{made} (seed {seed}). Two small CNNs learned to name the class: 70% of the sequences trained them, 15% "
        f"decided when to stop, and the accuracies below are on the {len(study.test)} held out. The first "
        f"{study.explained} of those were explained for the winning class with the composite <code>{COMPOSITE}</code>; "
        "relevance of a base is that of the letter that is there. What follows is about the "
        f"{len(study.shown)} of them that the larger network labels rightly.</p>",
        pages.table(["network", "weights", "epochs", "validation accuracy", "test accuracy"], rows),
    )


def _rows(study: Study, k: int) -> dict[str, npt.NDArray[Any]]:
    return {
        "truth": study.shown.mask[k],
        "LRP": study.lrp[k],
        f"PLRP-λ\np={EXAMPLE_P}": study.plrp[k],
        f"PLRP-M\np={EXAMPLE_P}": study.plrp_m[k],
    }


def _sites(study: Study, k: int) -> list[tuple[int, int, str]]:
    kinds: list[Motif] = study.shown.motifs
    return [(a, b, kinds[m].name.split("_")[0]) for a, b, m, _ in study.shown.plantings.of(k)]


def _logo_pictures(study: Study, k: int, title: str, caption: str = "") -> str:
    rows, letters, sites = _rows(study, k), study.shown.letters[k], _sites(study, k)
    wide = logo_page([(title, rows, letters, sites)], width=11, row_height=0.72)
    window = around_strongest(study.lrp[k], [(start, end) for start, end, _ in sites])
    narrow = logo_page(
        [(f"{title}, bases {window[0]}–{window[1] - 1}", rows, letters, sites)],
        window=window,
        width=5.2,
        row_height=0.85,
    )
    return pages.picture(
        pages.data_uri(wide, "png", 120), f"logos of {title}", caption, pages.data_uri(narrow, "png", 170), plate=True
    )


def _logos(study: Study) -> str:
    """One sequence of each class, and the next two."""
    labels = study.shown.labels
    chosen = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)]
    chosen += [k for k in range(len(labels)) if k not in chosen][: max(0, 6 - len(chosen))]
    pictures = [
        _logo_pictures(study, k, f"{study.shown.names[k]} ({study.shown.class_names[int(labels[k])]})") for k in chosen
    ]
    return pages.section(
        "Logos: truth, LRP, PLRP",
        "<p>Letters as tall as the relevance of their base, planted motifs shaded, one sequence per block; network "
        f"with {next(iter(study.sweeps))}. On a narrow screen only the stretch around the strongest motif is "
        "drawn.</p>",
        *pictures,
    )


def _not_a_threshold(study: Study, example: NotAThreshold) -> str:
    k = example.sequence
    factor = example.lrp_outside / example.lrp_inside
    low, high = sorted((example.inside, example.outside))
    rows = {
        "LRP": study.lrp[k],
        f"PLRP-λ\np={EXAMPLE_P}": study.plrp[k],
    }
    marks = [
        *((start, end, "") for start, end, _ in _sites(study, k)),
        (example.inside, example.inside + 1, "kept ▼"),
        (example.outside, example.outside + 1, "pruned ▼"),
    ]
    name = study.shown.names[k]
    title = f"{name} ({study.shown.class_names[int(study.shown.labels[k])]})"
    wide = logo_page([(title, rows, study.shown.letters[k], marks)], width=11, row_height=0.95)
    windows = "".join(
        pages.picture(
            pages.data_uri(
                logo_page(
                    [(f"{name}, bases {begin}–{end - 1}", rows, study.shown.letters[k], marks)],
                    window=(begin, end),
                    width=5.2,
                    row_height=1.0,
                ),
                "png",
                150,
            ),
            f"{name}, bases {begin} to {end - 1}",
            plate=True,
        )
        for begin, end in _close_ups(low, high, study.shown.length)
    )
    return pages.section(
        "PLRP is not a threshold",
        f"<p>In {pages.escape(name)}, base {example.inside} lies in a planted motif and survives with an LRP "
        f"relevance of {example.lrp_inside:.4f}, while base {example.outside} outside is pruned although LRP gave it "
        f"{example.lrp_outside:.4f}, {factor:.1f} times as much. No height at which LRP is cut could do both. The "
        f"code looked for such pairs and found them in {example.sequences_with_one} of {example.sequences} "
        "sequences.</p>",
        f'<div class="laptop">{pages.picture(pages.data_uri(wide, "png", 120), f"logos of {name}", plate=True)}</div>',
        f'<div class="grid">{windows}</div>',
    )


def _close_ups(low: int, high: int, length: int, span: int = 44) -> list[tuple[int, int]]:
    """Windows of `span` bases that show both places: one if they are near each other, else one each."""
    middles = [(low + high) // 2] if high - low < span - 8 else [low, high]
    begins = [int(np.clip(middle - span // 2, 0, max(0, length - span))) for middle in middles]
    return [(begin, min(begin + span, length)) for begin in begins]


def _next_steps() -> str:
    commands = (
        "plrp genomics explain demo/data/sequences.fa.gz --model demo/cnn32.pt -p 0.25 --out explained\n"
        "plrp genomics logo explained --truth demo/data/motifs.bed --out logos.png\n"
        "plrp genomics explain yours.fa --model network.py:build --weights weights.pt -p 0.25 --out results"
    )
    return pages.section(
        "What to try next",
        f"<pre>{pages.escape(commands)}</pre>",
        "<ul><li>Your own network and sequences: the third line; FASTA, BED with a genome, or one-hot "
        "arrays.</li><li>A harder task: <code>plrp genomics simulate --task xor --motifs GATA1 TAL1::TCF3 --out "
        "xor</code>, then <code>train --hidden 32</code> and <code>explain</code>.</li><li>TF-MoDISco on the result: "
        "<code>modisco motifs -s explained/onehot.npz -a explained/attributions.npz -n 2000 -o "
        "modisco.h5</code>.</li><li>The numbers behind the curves: <code>sweep.csv</code>, and more of them: "
        "<code>plrp report demo/genomics-32</code>; the surviving regions: <code>seqlets.bed</code>.</li></ul>",
    )
