"""The stored measurements by the code of `plrp tune`: one half of the cases chooses, the other reports.

`python benchmarks/truth_halves.py` prints a table: of each network the settings that half of its cases choose among all
that were measured on the same cases (the sparsest that loses less than 0.05 to the best), and how much they differ from
the default on the other half, with 95% intervals. With `--lrp` among settings without pruning, by agreement alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from plrp.experiments import Candidate, Tuned
from truth import MEASURED, records
from truth_methods import DEFAULT
from truth_networks import NETWORKS
from truth_page import agreement, by_method, fair, of_finalists, shown, signed

FEWEST = 8


def chosen(rows: Sequence[dict[str, Any]], default: str, keep: float, pruned: bool) -> Tuned | None:
    """The choice among methods that plrp explains by, in the order of a tuning: the default first."""
    found = {m: {r["case"]: r for r in several} for m, several in by_method(rows, "screen").items()}
    labels = [m for m in found if m == default or (" | " in m and (pruned or m.endswith(" | LRP")))]
    cases = sorted(set.intersection(*(set(found[m]) for m in labels))) if default in labels else []
    if len(cases) < FEWEST:
        return None
    labels.sort(key=lambda m: m != default)
    numbers = np.array([[[agreement(found[m][c])] * 2 for m in labels] for c in cases])
    gini = np.array([[found[m][c]["gini"] for m in labels] for c in cases])
    order = np.random.default_rng(0).permutation(len(cases))
    halves = {"choosing": np.sort(order[: len(cases) // 2]), "reporting": np.sort(order[len(cases) // 2 :])}
    own, ceiling = np.ones((len(labels), 2), bool), np.ones(len(cases))
    return Tuned(tuple(map(Candidate, labels)), numbers, own, gini, ceiling, **halves, keep=keep, names=("truth",))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lrp", action="store_true", help="settings without pruning, by agreement alone")
    lrp = parser.parse_args().lrp
    print("| network | settings | chosen on | reported on | chosen | agreement − default's, as it reports |")
    print("|---" * 6 + "|")
    for name, network in NETWORKS.items():
        rows = records(MEASURED / f"truth-{name}.csv")
        for part in (of_finalists(rows, fair(rows, network.kind)), fair(rows, network.kind)):
            default = DEFAULT[network.kind]
            tuned = chosen(part, default, 0.0 if lrp else 0.05, not lrp)
            if tuned is None:
                continue
            number = tuned.best if lrp else tuned.chosen
            label = str(tuned.candidates[number].composite)
            apart = signed(tuned.difference(number, 0)[tuned.reporting].tolist())
            sizes = f"{len(tuned.candidates)} | {len(tuned.choosing)} | {len(tuned.reporting)}"
            print(f"| {network.title} | {sizes} | {shown(label)} | {apart} |")


if __name__ == "__main__":
    main()
