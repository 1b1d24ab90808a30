"""plrp.metrics beside Quantus 0.6.0, interleaved in one run: the same maps, masks, models, regions and steps.

In every round both sides run once per metric, in a random order; the factor is the median over the rounds of Quantus'
time over ours. Seconds mean nothing on a shared machine, ratios of neighbours do. For maps, two factors are given: of
the whole call, as a user makes it, and of Quantus' arithmetic alone (`evaluate_batch`, without its checks of the input)
against our whole call. Where a model runs, the share of each side's time that is the model's own is given too.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import quantus
import torch
from torch import Tensor, nn

from plrp import metrics
from report import metrics as metrics_table
from timing import Rounds, interleaved, options, seconds, write

warnings.simplefilter("ignore")
QUIET = {"disable_warnings": True}


Row = dict[str, Any]  # metric, samples, seconds of every round, shares of the model's time


def warmed(sides: dict[str, Callable[[], Any]], label: str, rounds: int) -> Rounds:
    """Times of each side, after one run of each that is not counted."""
    for run in sides.values():
        run()
    return interleaved(sides, label, least=rounds, most=rounds)


def of_maps(rounds: int, batch: int = 32, size: int = 224) -> Iterator[Row]:
    """Metrics that need no model, on (batch, 1, size, size) float32."""
    generator = np.random.default_rng(0)
    images = generator.normal(size=(batch, 1, size, size)).astype(np.float32)
    relevance = generator.normal(size=images.shape).astype(np.float32)
    masks = generator.random(images.shape) < 0.3
    classes = np.zeros(batch, dtype=int)
    maps, truth = torch.from_numpy(relevance), torch.from_numpy(masks)
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

        sides = {"Quantus": whole, "arithmetic": arithmetic, "plrp": ours}
        yield {"metric": name, "samples": batch, "seconds": warmed(sides, name, rounds), "shares": {}}


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


def with_shares(name: str, samples: int, sides: dict[str, tuple[Callable[[], Any], Clocked]], rounds: int) -> Row:
    """The times, and the share of each side's time in its clocked function."""
    shares: dict[str, list[float]] = {name: [] for name in sides}

    def clocked(side: str) -> Callable[[], Any]:
        run, clock = sides[side]

        def once() -> None:
            clock.reset()
            total = seconds(run)
            shares[side].append(clock.spent / total)

        return once

    times = warmed({side: clocked(side) for side in sides}, name, rounds)
    medians = {side: statistics.median(values[1:]) for side, values in shares.items()}
    return {"metric": name, "samples": samples, "seconds": times, "shares": medians}


def of_explanations(rounds: int, batch: int = 16, size: int = 32, samples: int = 10) -> Row:
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
    return with_shares(
        "local Lipschitz estimate",
        batch,
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


def of_predictions(rounds: int, batch: int = 16, size: int = 32) -> Row:
    """Pixel flipping, single pixels, 32 steps of 32; ours also scores the unperturbed input."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 1, size, size, generator=generator)
    relevance = torch.randn(batch, 1, size, size, generator=generator)
    ours, theirs = ClockedModel(small_network()).eval(), ClockedModel(small_network()).eval()
    classes = small_network()(images).argmax(1)
    metric = quantus.PixelFlipping(features_in_step=size, perturb_baseline=0.0, **QUIET)
    return with_shares(
        "pixel flipping",
        batch,
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


def main() -> None:
    args = options(__doc__).parse_args()
    rounds = args.rounds or (3 if args.quick else 9)
    rows: list[Row] = []
    for row in chain(of_maps(rounds), (of(rounds) for of in (of_explanations, of_predictions))):
        rows.append(row)
        write(args, "metrics", {"rows": rows})
    print("\n" + metrics_table({"metrics": {"rows": rows}}).text())
    print("\nmaps: 32 of 224 x 224, float32; models: a CNN of two convolutions, 16 inputs of 32 x 32")


if __name__ == "__main__":
    main()
