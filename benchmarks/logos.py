"""A 250-base logo: plrp against logomaker and tangermeme, interleaved in one run, drawn and written as PNG.

    python benchmarks/logos.py

'Draw' is what each library does to a fresh axes; 'draw and save' adds matplotlib's rendering and PNG writing, which all
of them share.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from typing import Any

import matplotlib

matplotlib.use("Agg")

import logomaker
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from plrp.genomics import draw_logo
from report import logos
from timing import Rounds, options, progress, write

LENGTH = 250


def libraries() -> dict[str, Callable[[Any], Any]]:
    """Who draws the same logo into an axes."""
    rng = np.random.default_rng(0)
    letters = "".join(rng.choice(list("ACGT"), LENGTH))
    values = rng.normal(size=LENGTH)
    matrix = np.stack([np.where(np.frombuffer(letters.encode(), "S1") == c.encode(), values, 0) for c in "ACGT"])
    frame = pd.DataFrame(matrix.T, columns=list("ACGT"))
    found: dict[str, Callable[[Any], Any]] = {
        "plrp": lambda ax: draw_logo(ax, values, letters),
        "logomaker": lambda ax: logomaker.Logo(frame, ax=ax),
    }
    try:
        from tangermeme.plot import plot_logo

        found["tangermeme"] = lambda ax: plot_logo(matrix, ax=ax)
    except ImportError:
        print("tangermeme is not installed: left out")
    return found


def drawn(draw: Callable[[Any], Any]) -> tuple[float, float]:
    """Seconds of drawing, and of drawing and saving."""
    figure, ax = plt.subplots(figsize=(20, 2))
    begin = time.perf_counter()
    draw(ax)
    middle = time.perf_counter()
    figure.savefig(io.BytesIO(), format="png", dpi=100)
    end = time.perf_counter()
    plt.close(figure)
    return middle - begin, end - begin


def main() -> None:
    args = options(__doc__).parse_args()
    count = args.rounds or (2 if args.quick else 7)
    drawers = libraries()
    rounds = Rounds()
    for number in range(count + 1):  # the first warms font caches up and is not counted
        this: dict[str, float] = {}
        for name in random.sample(list(drawers), len(drawers)):
            progress(f"logos: round {number} of {count}, {name}")
            this[f"{name} draw"], this[f"{name} both"] = drawn(drawers[name])
        if number:
            rounds.append(this)
    progress.clear()
    found = {"libraries": list(drawers), "seconds": rounds}
    write(args, "logos", found)
    print("\n" + logos({"logos": found}).text())


if __name__ == "__main__":
    main()
