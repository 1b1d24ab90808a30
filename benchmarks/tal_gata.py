"""The paper's genomics figures on the TAL1/GATA data: 8,000 sequences of 250 bases with known motif
positions.

    python benchmarks/tal_gata.py --data ../shared/data/tal_gata --out bench/tal_gata

Trains the 32- and 4-filter CNNs, explains, sweeps over p, and names the motifs found; writes the same report
as the demo, and prints what it says. The data are the DeepLIFT example's; they are not part of plrp.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from plrp.experiments import Data, demo_study, pages, preset
from plrp.experiments.statements import findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tal_gata"))
    parser.add_argument("--out", type=Path, default=Path("bench/tal_gata"))
    parser.add_argument("--explained", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    begin = time.perf_counter()
    configs = {}
    for size in demo_study.FILTERS:
        one = preset(f"genomics-{size}", limit=arguments.explained)
        one = replace(one, data=Data("dna", str(arguments.data), limit=arguments.explained))
        configs[f"{size} filters"] = one.changed(**{"seed": arguments.seed, "model.epochs": arguments.epochs})
    study = demo_study.examine(configs, arguments.out)
    data = study.data
    for name, training in study.trainings.items():
        print(f"test accuracy, {name}: {training['test_accuracy']:.4f}")
    for finding in findings(study.sweeps, study.example):
        print(f"{'holds' if finding.holds else 'does not hold'}: {finding.claim}")
        for line in finding.numbers:
            print(f"    {line}")
    for pattern, matches in zip(study.patterns, study.matches, strict=True):
        named = ", ".join(f"{m.motif.name} {m.motif.id} p={m.p:.1e}" for m in matches[:3])
        print(f"pattern of {pattern.count} seqlets, {pattern.motif.consensus}: {named}")
    origin = (
        f"{len(data)} sequences of {data.length} bases with planted GATA and TAL1 motifs (the DeepLIFT "
        "example data) were read; the class says which of the two a sequence holds"
    )
    demo_study.write_sweeps(arguments.out / "sweep.csv", study.sweeps)
    pages.write_page(
        arguments.out / "index.html",
        demo_study.render(study, seed=arguments.seed, title="Pruned relevance on TAL1 and GATA", origin=origin),
    )
    print(f"{arguments.out / 'index.html'}, {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
