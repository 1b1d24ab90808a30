"""plrp.metrics beside Quantus 0.6.0, interleaved in one run: the same maps, masks, models, regions and steps.

In every round both sides run once per metric, in a random order; the factor is the median over the rounds of Quantus'
time over ours. Seconds mean nothing on a shared machine, ratios of neighbours do. For maps, two factors are given: of
the whole call, as a user makes it, and of Quantus' arithmetic alone (`evaluate_batch`, without its checks of the input)
against our whole call. Where a model runs, the share of each side's time that is the model's own is given too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import quantus
import torch
from torch import Tensor, nn

from plrp import metrics

warnings.simplefilter("ignore")
QUIET = {"disable_warnings": True}


def seconds(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def interleaved(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Times of each side, one per round, after one run of each that is not counted."""
    for run in sides.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name in random.sample(list(sides), len(sides)):
            times[name].append(seconds(sides[name]))
    return times


def factor(times: dict[str, list[float]], slow: str, fast: str = "plrp") -> float:
    return statistics.median(a / b for a, b in zip(times[slow], times[fast], strict=True))


def of_maps(rounds: int, batch: int = 32, size: int = 224) -> list[list[str]]:
    """Metrics that need no model, on (batch, 1, size, size) float32."""
    generator = np.random.default_rng(0)
    images = generator.normal(size=(batch, 1, size, size)).astype(np.float32)
    relevance = generator.normal(size=images.shape).astype(np.float32)
    masks = generator.random(images.shape) < 0.3
    classes = np.zeros(batch, dtype=int)
    maps, truth = torch.from_numpy(relevance), torch.from_numpy(masks)
    rows = []
    for name, theirs, ours in (
        ("Gini index", quantus.Sparseness(**QUIET), lambda: metrics.gini(maps)),
        ("entropy", quantus.Complexity(**QUIET), lambda: metrics.entropy(maps)),
        (
            "relevance mass accuracy",
            quantus.RelevanceMassAccuracy(**QUIET),
            lambda: metrics.relevance_mass_accuracy(maps, truth),
        ),
        (
            "relevance rank accuracy",
            quantus.RelevanceRankAccuracy(**QUIET),
            lambda: metrics.relevance_rank_accuracy(maps, truth),
        ),
    ):
        absolute = name in ("Gini index", "entropy")

        def whole(theirs: Any = theirs) -> None:
            theirs(None, images, classes, a_batch=relevance, s_batch=masks)

        def arithmetic(theirs: Any = theirs, absolute: bool = absolute) -> None:
            scaled = relevance / np.abs(relevance).max()
            theirs.evaluate_batch(x_batch=images, a_batch=np.abs(scaled) if absolute else scaled, s_batch=masks)

        times = interleaved({"whole": whole, "arithmetic": arithmetic, "plrp": ours}, rounds)
        per_sample = statistics.median(times["plrp"]) / batch * 1e3
        rows.append(
            [name, f"{per_sample:.3f}", f"{factor(times, 'whole'):.1f}", f"{factor(times, 'arithmetic'):.1f}", "", ""]
        )
    return rows


class Clocked:
    """A function, and the time spent in it since `reset`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.spent = function, 0.0

    def reset(self) -> None:
        self.spent = 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        answer = self.function(*args, **kwargs)
        self.spent += time.perf_counter() - started
        return answer


class ClockedModel(nn.Module):
    """A model that notes the time its forward passes take; Quantus insists on a module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.clock = model, Clocked(model.forward)

    def forward(self, x: Tensor) -> Tensor:
        return self.clock(x)


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    ).eval()


def with_shares(
    sides: dict[str, tuple[Callable[[], Any], Clocked]], rounds: int
) -> tuple[float, float, dict[str, float]]:
    """Milliseconds of plrp, Quantus' time over it, and the share of each side's time in its clocked function."""
    shares: dict[str, list[float]] = {name: [] for name in sides}

    def clocked(name: str) -> Callable[[], Any]:
        run, clock = sides[name]

        def once() -> None:
            clock.reset()
            total = seconds(run)
            shares[name].append(clock.spent / total)

        return once

    times = interleaved({name: clocked(name) for name in sides}, rounds)
    medians = {name: statistics.median(values[1:]) for name, values in shares.items()}
    return statistics.median(times["plrp"]) * 1e3, factor(times, "Quantus"), medians


def of_explanations(rounds: int, batch: int = 16, size: int = 32, samples: int = 10) -> list[str]:
    """Lipschitz estimate of gradient × input; both sides explain batch × (1 + samples) inputs, 16 at a time."""
    images = torch.randn(batch, 1, size, size, generator=torch.Generator().manual_seed(0))
    model = small_network()
    array, classes = images.numpy(), model(images).argmax(1)

    def explain(inputs: Tensor, target: Tensor) -> Tensor:
        x = inputs.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).gather(1, target[:, None]).sum(), x)
        return (gradient * x).detach()

    ours, theirs = Clocked(explain), Clocked(lambda x, y: explain(torch.as_tensor(x), torch.as_tensor(y)).numpy())
    metric = quantus.LocalLipschitzEstimate(nr_samples=samples, **QUIET)
    milliseconds, times, shares = with_shares(
        {
            "plrp": (
                lambda: metrics.local_lipschitz(
                    ours, images, target=classes, noise="gaussian", samples=samples, normalise="max", batch_size=16
                ),
                ours,
            ),
            "Quantus": (
                lambda: metric(
                    model,
                    array,
                    classes.numpy(),
                    explain_func=lambda model, inputs, targets, **_: theirs(inputs, targets),
                    batch_size=16,
                ),
                theirs,
            ),
        },
        rounds,
    )
    return ["local Lipschitz estimate", f"{milliseconds / batch:.2f}", f"{times:.2f}", "", *percent(shares)]


def of_predictions(rounds: int, batch: int = 16, size: int = 32) -> list[str]:
    """Pixel flipping, single pixels, 32 steps of 32; ours also scores the unperturbed input."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 1, size, size, generator=generator)
    relevance = torch.randn(batch, 1, size, size, generator=generator)
    ours, theirs = ClockedModel(small_network()).eval(), ClockedModel(small_network()).eval()
    classes = small_network()(images).argmax(1)
    metric = quantus.PixelFlipping(features_in_step=size, perturb_baseline=0.0, **QUIET)
    milliseconds, times, shares = with_shares(
        {
            "plrp": (
                lambda: metrics.pixel_flipping(
                    ours, images, relevance, target=classes, steps=range(size, size * size + 1, size), batch_size=64
                ),
                ours.clock,
            ),
            "Quantus": (
                lambda: metric(
                    theirs, images.numpy(), classes.numpy(), a_batch=relevance.numpy(), softmax=False, batch_size=64
                ),
                theirs.clock,
            ),
        },
        rounds,
    )
    return ["pixel flipping", f"{milliseconds / batch:.2f}", f"{times:.2f}", "", *percent(shares)]


def percent(shares: dict[str, float]) -> list[str]:
    return [f"{shares['plrp']:.0%}", f"{shares['Quantus']:.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of nine")
    options = parser.parse_args()
    random.seed(0)
    rounds = 3 if options.quick else 9
    header = ["metric", "plrp, ms per sample", "Quantus / plrp", "its arithmetic / plrp", "model's share", "in Quantus"]
    rows = [*of_maps(rounds), of_explanations(rounds), of_predictions(rounds)]
    widths = [max(len(row[k]) for row in [header, *rows]) for k in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print("\nmaps: 32 of 224 x 224, float32; models: a CNN of two convolutions, 16 inputs of 32 x 32;")
    print(f"medians of {rounds} rounds, torch threads: {torch.get_num_threads()}")


if __name__ == "__main__":
    main()
