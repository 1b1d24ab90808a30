"""A 250-base logo: plrp against logomaker and tangermeme, interleaved in one run, drawn and written as PNG.

    python benchmarks/logos.py

Ratios are of medians. 'draw' is what each library does to a fresh axes; 'draw and save' adds matplotlib's
rendering and PNG writing, which all of them share.
"""

from __future__ import annotations

import io
import statistics
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

LENGTH, ROUNDS = 250, 7


def main() -> None:
    rng = np.random.default_rng(0)
    letters = "".join(rng.choice(list("ACGT"), LENGTH))
    values = rng.normal(size=LENGTH)
    matrix = np.stack([np.where(np.frombuffer(letters.encode(), "S1") == c.encode(), values, 0) for c in "ACGT"])
    frame = pd.DataFrame(matrix.T, columns=list("ACGT"))

    drawers: dict[str, Callable[[Any], Any]] = {
        "plrp": lambda ax: draw_logo(ax, values, letters),
        "logomaker": lambda ax: logomaker.Logo(frame, ax=ax),
    }
    try:
        from tangermeme.plot import plot_logo

        drawers["tangermeme"] = lambda ax: plot_logo(matrix, ax=ax)
    except ImportError:
        print("tangermeme is not installed: left out")

    drawn: dict[str, list[float]] = {name: [] for name in drawers}
    saved: dict[str, list[float]] = {name: [] for name in drawers}
    for round_number in range(ROUNDS + 1):  # the first warms font caches up and is not counted
        for name, draw in drawers.items():
            figure, ax = plt.subplots(figsize=(20, 2))
            begin = time.perf_counter()
            draw(ax)
            middle = time.perf_counter()
            figure.savefig(io.BytesIO(), format="png", dpi=100)
            end = time.perf_counter()
            plt.close(figure)
            if round_number:
                drawn[name].append(middle - begin)
                saved[name].append(end - begin)

    print(f"{LENGTH} bases, medians of {ROUNDS} interleaved rounds")
    print(f"{'':<12}{'draw':>12}{'draw and save':>16}{'ratio draw':>14}{'ratio both':>14}")
    ours = statistics.median(drawn["plrp"]), statistics.median(saved["plrp"])
    for name in drawers:
        a, b = statistics.median(drawn[name]), statistics.median(saved[name])
        print(f"{name:<12}{a * 1e3:>9.1f} ms{b * 1e3:>13.1f} ms{ours[0] / a:>14.4f}{ours[1] / b:>14.4f}")


if __name__ == "__main__":
    main()
