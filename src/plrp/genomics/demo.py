"""The genomics demo: the paper's section 4.2.2 from an empty folder to a page that shows it.

Simulates sequences with planted JASPAR motifs, trains the paper's two sizes of CNN, explains them with LRP, PLRP-λ
and PLRP-M with and without sparsity gain over p = 0 … 0.95, and writes one self-contained HTML report.
"""

from __future__ import annotations

import csv
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import plrp
from plrp import pages
from plrp.files import new_file
from plrp.pruning import Pruning

from . import report
from .attribution import COMPOSITE, explain_sequences
from .export import write_seqlets
from .findings import EXAMPLE_P, NotAThreshold, Sweep, find_not_a_threshold, findings, sweep
from .logo import around_strongest, logo_page
from .motifs import Motif
from .network import History, SequenceCNN
from .progress import progress
from .seqlets import Match, Pattern, find_patterns, find_seqlets, match_motifs, match_seqlets
from .simulation import Simulated, simulate

MOTIFS = ("TAL1::TCF3", "CTCF", "SPI1", "NRF1")
FILTERS = (32, 4)
MOTIF_P = 0.5
"""Pruned share for motif finding: sharper regions than the logo plots' 0.25."""


@dataclass(frozen=True)
class Study:
    """Everything the report shows about one data set."""

    data: Simulated
    test: Simulated
    networks: dict[str, SequenceCNN]
    histories: dict[str, History]
    accuracies: dict[str, float]
    sweeps: dict[str, Sweep]
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

    `count` sequences are simulated, of which 70% train, 15% stop the training, and 15% are held out; `explained`
    held-out ones go through the sweep. Also written: the data, both checkpoints, `sweep.csv` and `seqlets.bed`. One
    thread does the arithmetic, so that the same seed gives the same report.
    """
    _check_extras()
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    compiling = compile_in_background()
    try:
        data = simulate(count, motifs=MOTIFS, task="classes", number=(1, 3), seed=seed)
        study = examine(
            data, explained=explained, epochs=epochs, seed=seed, show_progress=show_progress, compiling=compiling
        )
    finally:
        torch.set_num_threads(threads)
        compiling.kill()
        compiling.wait()

    folder = out / "data"
    if (folder / "simulation.json").exists():  # of an earlier run of the demo
        shutil.rmtree(folder)
    study.data.save(folder)
    for name, network in study.networks.items():
        network.save(out / f"cnn{name.split()[0]}.pt")
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
    lines = [f"test accuracy, {name}: {value:.3f}" for name, value in study.accuracies.items()]
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
    for package in ("matplotlib", "pyjaspar", "memelite"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"the demo needs {package}: pip install 'plrp[genomics]'")


def compile_in_background() -> subprocess.Popen[bytes]:
    """Have another process compile memelite's TOMTOM into numba's cache, while this one trains.

    The first use in an environment costs a minute or two of compiling; later ones a few seconds.
    """
    work = "from plrp.genomics import jaspar, match_motifs; match_motifs([jaspar('CTCF')])"
    return subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def examine(
    data: Simulated,
    *,
    explained: int = 200,
    epochs: int = 20,
    seed: int = 0,
    filters: Sequence[int] = FILTERS,
    show_progress: bool | None = None,
    compiling: subprocess.Popen[bytes] | None = None,
) -> Study:
    """Train, explain and measure on sequences with known motifs; what `run` does between simulating and writing.

    Explained are held-out sequences that hold a motif and that the larger network labels rightly. `compiling` is what
    `compile_in_background` started; matching waits for it.
    """
    train, validation, test = data.split(0.7, 0.15, 0.15, seed=seed)
    networks, histories, accuracies = {}, {}, {}
    for size in filters:
        name = f"{size} filters"
        network = SequenceCNN(size, classes=len(data.class_names))
        histories[name] = network.fit(
            train.onehot(),
            train.labels,
            validation=(validation.onehot(), validation.labels),
            epochs=epochs,
            patience=4,
            seed=seed,
            show_progress=show_progress,
            label=f"training, {name}",
        )
        networks[name] = network
        accuracies[name] = network.accuracy(test.onehot(), test.labels)

    first = next(iter(networks.values()))
    right = (first.scores(test.onehot()).argmax(1).numpy() == test.labels) & test.mask.any(1)
    shown = test.chosen(np.flatnonzero(right)[:explained])
    if not len(shown):
        raise ValueError("No held-out sequence is labelled rightly: train longer, or on more sequences.")
    onehot = shown.onehot()
    sweeps = {
        name: sweep(network, onehot, shown.mask, label=f"explaining, {name}", show_progress=show_progress)
        for name, network in networks.items()
    }

    lrp = explain_sequences(first, onehot).per_base()
    pruned = explain_sequences(first, onehot, pruning=Pruning(p=EXAMPLE_P)).per_base()
    pruned_m = explain_sequences(first, onehot, pruning=Pruning(p=EXAMPLE_P, redistribution="M")).per_base()
    example = find_not_a_threshold(lrp, pruned, shown.mask)
    booked = plrp.explain(first, torch.from_numpy(onehot[:1]), composite=COMPOSITE, pruning=Pruning(p=EXAMPLE_P))

    with progress("finding motifs", 2, show_progress) as step:
        sparse = explain_sequences(first, onehot, pruning=Pruning(p=MOTIF_P)).per_base()
        seqlets = find_seqlets(sparse)
        patterns = find_patterns(seqlets.chosen(seqlets.score > 0), onehot, sparse, max_patterns=8)
        step(1, "matching against JASPAR (its code is compiled once per environment)")
        if compiling is not None:
            compiling.wait()
        matches = match_motifs([pattern.motif for pattern in patterns])
        step(1)
    return Study(
        data, test, networks, histories, accuracies, sweeps, shown, lrp, pruned, pruned_m, example,
        booked.ledger, patterns, matches,
    )  # fmt: skip


def write_sweeps(path: Path, sweeps: dict[str, Sweep]) -> None:
    """Means over the sequences as a table: network, variant, p, and the metrics."""
    with new_file(path) as part, part.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["network", "variant", "p", "gini", "entropy", "rma"])
        for name, one in sweeps.items():
            for row in one.rows():
                writer.writerow(
                    [name, row["variant"], row["p"], *(f"{row[m]:.6f}" for m in ("gini", "entropy", "rma"))]
                )


# -- the report


def render(study: Study, *, seed: int, title: str = "Pruned relevance on DNA", made: str = "") -> str:
    """The report as one HTML document."""
    found = findings(study.sweeps, study.example)
    first = next(iter(study.networks))
    accuracies = {f"test accuracy, {name}": f"{value:.1%}" for name, value in study.accuracies.items()}
    one = study.sweeps[first]
    headline = {
        **accuracies,
        f"RMA, LRP → PLRP-λ, p&nbsp;=&nbsp;{EXAMPLE_P}": f"{one.at('rma', 'PLRP-λ', 0.0):.2f} → "
        f"{one.at('rma', 'PLRP-λ', EXAMPLE_P):.2f}",
        f"Gini, LRP → PLRP-λ, p&nbsp;=&nbsp;{EXAMPLE_P}": f"{one.at('gini', 'PLRP-λ', 0.0):.2f} → "
        f"{one.at('gini', 'PLRP-λ', EXAMPLE_P):.2f}",
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
            f"{sum(p.numel() for p in network.parameters()):,}",
            f"{len(study.histories[name].train_loss)}",
            f"{study.histories[name].accuracy:.3f}",
            f"{study.accuracies[name]:.3f}",
        ]
        for name, network in study.networks.items()
    ]
    return pages.section(
        "What was done",
        f"<p>{made} (seed {seed}). Two small CNNs learned to name the class: 70% of the sequences trained them, 15% "
        f"decided when to stop, and the accuracies below are on the {len(study.test)} held out. Then "
        f"{len(study.shown)} of those, labelled rightly by the larger network, were explained for the winning class "
        f"with the composite <code>{COMPOSITE}</code>; relevance of a base is that of the letter that is there.</p>",
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
        f"with {next(iter(study.networks))}. On a narrow screen only the stretch around the strongest motif is "
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
        "modisco.h5</code>.</li><li>The numbers behind the curves: <code>sweep.csv</code>; the surviving regions: "
        "<code>seqlets.bed</code>.</li></ul>",
    )
