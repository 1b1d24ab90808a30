"""Calls compiled loops with arguments that do not fit; run by itself, since a loop that fell for one could crash.

`python malformed_calls.py SEEDS`: prints what should have been refused and was not, and exits with 1 if anything was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from loop_cases import CASES, Case, Draw
from torch import Tensor

from plrp.fast import native
from plrp.fast.native.signatures import FLAG, GEOMETRY, SIGNATURES, Array, Integer

REFUSED = TypeError, ValueError, IndexError, MemoryError
EXTREMES = (-(1 << 62), -(1 << 31), -2, -1, 1 << 20, 1 << 31, (1 << 62) - 1)


def lengths(loop: str) -> list[str]:
    return [kind.length for kind in SIGNATURES[loop].values() if isinstance(kind, Array)]


def never_right(loop: str, name: str, value: Any) -> Iterator[Any]:
    """Values that a loop must refuse whatever its other arguments are."""
    kind = SIGNATURES[loop][name]
    if isinstance(kind, Integer):
        yield from (None, 1.0, True, "1", torch.ones(1), kind.least - 1, kind.most + 1, 1 << 63, -(1 << 63), 1 << 200)
    elif kind is FLAG:
        yield from (None, 1, 0.0, "yes", torch.ones(1))
    elif isinstance(kind, Array):
        yield from (5, 0.5, "tensor", [1.0], torch.empty(3, dtype=kind.dtype, device="meta"))
        if not kind.optional:
            yield None
        if value is None:
            return
        yield value.to(torch.float16)
        yield value.to(torch.int16)
        if kind.dtype is torch.float32:
            yield value.double()
        if value.numel() > 1:
            yield value.repeat_interleave(2, 0)[::2] if len(value) > 1 else value.expand(2, *value.shape).movedim(0, -1)
        if not kind.length.isidentifier() or lengths(loop).count(kind.length) > 1 or kind.length in SIGNATURES[loop]:
            yield torch.cat([value.reshape(-1), value.new_zeros(1)])
            if value.numel():
                yield value.reshape(-1)[:-1]
    else:
        yield from (None, True, "0.1", torch.ones(1))


def with_bad_numbers(case: Case, draw: Draw, loop: str) -> Iterator[Case]:
    """The case with some number inside an array of indices, statistics or fingerprints changed to something extreme."""
    for name, value in case.arguments.items():
        if isinstance(value, Tensor) and value.numel() and value.dtype is not torch.float32:
            for extreme in EXTREMES:
                bad = value.clone()
                place = draw.random.randrange(value.numel())
                if bad.dtype is torch.int32:
                    extreme = max(-(1 << 31), min(extreme, (1 << 31) - 1))
                bad.view(-1)[place] = extreme % 256 if bad.dtype is torch.uint8 else extreme
                yield replace(case, arguments={**fresh(case), name: bad})


def with_bad_sizes(case: Case, draw: Draw, loop: str) -> Iterator[Case]:
    """The case with an integer a little off, or nought."""
    for name, value in case.arguments.items():
        if type(value) is int and name != "threads":
            for other in {0, max(0, value - 1), value + 1, 2 * value + 3}:
                kind = SIGNATURES[loop][name]
                if isinstance(kind, Integer) and kind.least <= other <= kind.most:
                    yield replace(case, arguments={**fresh(case), name: other})


def forged() -> Iterator[tuple[str, dict[str, Any]]]:
    """Right calls but for sizes whose product wraps round 2⁶⁴, of every loop that multiplies sizes of no array."""
    large, four = (1 << 31) - 1, (968973220, 49477, 384773)  # a × b × c = 2⁶⁴ + 4
    assert (four[0] * four[1] * four[2]) % (1 << 64) == 4
    plain = {name: int(not name.startswith("padding")) for name in GEOMETRY}

    def axes(**sizes: tuple[int, ...]) -> dict[str, int]:
        return {f"{what}{axis}": size for what, each in sizes.items() for axis, size in enumerate(each)}

    # the plane of the output is negative, that of sample −1 lies before the map
    map_, taps = torch.empty(1 << 20, dtype=torch.int32), torch.empty(1, dtype=torch.int32)
    one = {"positions": torch.tensor([(1 << 63) - 1]), "places": 1, "map": map_, "rows": torch.empty(1).long()}
    yield "plan", one | {"taps": taps} | plain | axes(**{"in": (1 << 20, 1, 1), "out": (large, large, 3)})
    # two planes of four places, whose second row lies far away; no plane, and outputs that 32 bits have as none
    won = {"flat": torch.zeros(1).long(), "neurons": 1, "out": torch.empty(1).long(), "threads": 1}
    far = axes(**{"in": four, "kernel": (2, 1, 1), "dilation": (1 << 29, 1, 1)})
    yield "winners", {"x": torch.zeros(8)} | won | plain | far
    yield "winners", {"x": torch.zeros(0)} | won | plain | axes(out=(1 << 16, 1 << 16, 1))
    for what in ("in", "out", "kernel"):
        planes = {"x": torch.zeros(0), "given": torch.zeros(0), "taken": torch.zeros(0), "planes": 0, "threads": 1}
        yield "pool", planes | plain | axes(**{what: (large, large, large)})
    for loop in ("layer", "redistribute"):
        yield loop, CASES[loop](Draw(0)).arguments | {"samples": 5, "axis": large, "inner": large, "reach": large}


def fresh(case: Case) -> dict[str, Any]:
    """The arguments in memory of their own, to the byte: what lies beyond is nobody's."""
    return {name: v.clone() if isinstance(v, Tensor) else v for name, v in case.arguments.items()}


def main(seeds: int) -> int:
    """Try every loop with every kind of misfit."""
    accepted = refused = 0
    for loop, arguments in forged():
        try:
            native.call(loop, *arguments.values())
        except (ValueError, IndexError):
            refused += 1
        else:
            accepted += 1
            print(f"{loop}: took sizes whose product wraps round")
    for loop, make in CASES.items():
        for seed in range(seeds):
            draw = Draw(seed)
            case = make(draw)
            for name, value in case.arguments.items():
                for wrong in never_right(loop, name, value):
                    try:
                        native.call(loop, *{**fresh(case), name: wrong}.values())
                    except REFUSED as error:
                        refused += 1
                        if not str(error).startswith(f"{loop}: "):
                            accepted += 1
                            print(f"{loop}: `{name}` is refused without their names: {error}")
                    else:
                        accepted += 1
                        print(f"{loop}: took {wrong!r} for `{name}`")
            for bad in (*with_bad_numbers(case, draw, loop), *with_bad_sizes(case, draw, loop)):
                try:
                    native.call(loop, *bad.arguments.values())
                except REFUSED:
                    refused += 1
            if seed % 5 == 0:
                for count in (0, len(case.arguments) - 1, len(case.arguments) + 1):
                    try:
                        native.call(loop, *(*fresh(case).values(), 1)[:count])
                    except TypeError:
                        refused += 1
                    else:
                        accepted += 1
                        print(f"{loop}: took {count} arguments")
    print(f"{refused} refused")
    return 1 if accepted or not refused else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
