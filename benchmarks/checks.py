"""What the checks cost that plrp makes of every model and input: over 100 explanations of one model and shape, and at
the first.

Each check is timed where it happens, within the explanations that are timed as a whole: the second look at a model that
has not been seen before (at the first explanation only), the checks of inputs, model, output and activations, and
whether recorded tensors were written over. A clock around a check counts for the check, so the share is an upper bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import plrp
from methods import forward
from plrp.genomics import SequenceCNN
from plrp.tape import verification
from report import FORWARD, checks
from sequences import one_hot
from subjects import calibrate, load, photographs
from timing import options, progress, seconds, write

CHECKS = (
    "plrp.tape.verification.verify",
    "plrp.tape.verification._way",
    "plrp.tape.verification._samples_to_check",
    "plrp.tape.trace.check_inputs",
    "plrp.tape.trace.check_model",
    "plrp.tape.trace.check_output",
    "plrp.tape.trace.check_finite",
    "plrp.tape.live_tensors._state",
    "plrp.tape.recorder.refuse_active",
    "plrp.tape.trace.check_unwritten",
    "plrp.tape.recorder.ModuleCalls.watch",
)


class Clock:
    """Adds up the time spent in functions; one inside another counts once."""

    def __init__(self) -> None:
        self.seconds, self._inside = 0.0, False

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside, began = True, time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began
                self._inside = False

        return timed


@contextmanager
def clock() -> Iterator[Clock]:
    """Time the checks within this context."""
    found = Clock()
    with ExitStack() as stack:
        for name in CHECKS:
            place, _, attribute = name.rpartition(".")
            owner: Any = plrp
            for part in place.split(".")[1:]:
                owner = getattr(owner, part)
            stack.enter_context(patch.object(owner, attribute, found.around(getattr(owner, attribute))))
        yield found


def measure(model: nn.Module, x: Tensor, composite: str, label: str, rounds: int, repeats: int) -> dict[str, Any]:
    """Seconds of the first explanation and of later ones (the mean of `repeats`), in all and in checks, per round."""
    found = []
    plrp.explain(model, x, composite=composite)  # warm
    for number in range(rounds):
        progress(f"{label}: round {number + 1} of {rounds}")
        verification._verified.clear()
        with clock() as watch:
            first = seconds(lambda: plrp.explain(model, x, composite=composite))
            in_first, watch.seconds = watch.seconds, 0.0
            later = [seconds(lambda: plrp.explain(model, x, composite=composite)) for _ in range(repeats)]
            in_later = watch.seconds
        passes = [seconds(lambda: forward(model, x)) for _ in range(repeats)]
        found.append(
            {
                "first": first,
                "first in checks": in_first,
                "later": sum(later) / repeats,
                "later in checks": in_later / repeats,
                FORWARD: sum(passes) / repeats,
            }
        )
    progress.clear()
    return {"model": label, "seconds": found}


def main() -> None:
    args = options(__doc__).parse_args()
    rounds = args.rounds or (3 if args.quick else 9)
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    net = SequenceCNN(32)
    calibrate(net, one_hot(64))
    net.eval()
    for batch in (1, 64):
        label = f"1D CNN, 250 bases, batch {batch}"
        rows.append(measure(net, one_hot(batch), "epsilon-plus", label, rounds, repeats=20))
        write(args, "checks", {"rows": rows})
    model = load("resnet50")
    for batch in (1,) if args.quick else (1, 8):
        label = f"ResNet-50, batch {batch}"
        rows.append(measure(model, photographs(batch, 224), "epsilon-plus-flat", label, rounds, repeats=3))
        write(args, "checks", {"rows": rows})
    print("\n" + checks({"checks": {"rows": rows}}).text())


if __name__ == "__main__":
    main()
