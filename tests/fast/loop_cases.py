"""Random valid calls of every compiled loop, and what must come out: each restated in plain Python, in float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plrp.fast.native.signatures import GEOMETRY, SIGNATURES

MANY = 70_000  # entries from which on the loops use several threads, but for few


@dataclass
class Case:
    """Arguments by name, what the call returns, and what it leaves in its arguments (the first entries of each)."""

    arguments: dict[str, Any]
    returns: Any = None
    outputs: dict[str, Tensor] = field(default_factory=dict)


class Draw:
    """Random sizes and numbers. `large`: big enough that threads share the work (then nothing is restated)."""

    def __init__(self, seed: int, large: bool = False) -> None:
        self.random, self.large = random.Random(seed), large
        self.generator = torch.Generator().manual_seed(seed)
        self.threads = 4 if large else self.random.choice([1, 2])

    def size(self, least: int, most: int, large: int = 0) -> int:
        return large if self.large and large else self.random.randint(least, most)

    def numbers(self, *shape: int, zeros: float = 0.3) -> Tensor:
        """Eighths of both signs, some of them zero: sums of them are exact, and there are ties."""
        values = torch.randint(-32, 33, shape, generator=self.generator) / 8
        return values * (torch.rand(shape, generator=self.generator) >= zeros)

    def integers(self, most: int, *shape: int) -> Tensor:
        return torch.randint(max(1, most), shape, generator=self.generator)

    def some(self, most: int, share: float) -> Tensor:
        """Some of 0 … most − 1, ascending."""
        return (torch.rand(most, generator=self.generator) < share).nonzero().flatten()

    def neurons(self, samples: int, channels: int, plane: int) -> tuple[Tensor, Tensor, Tensor]:
        """Positions, begins and channels of some neurons; most positions hold none, some hold several."""
        held = torch.rand(samples * plane, channels, generator=self.generator) < self.random.choice(
            [0.0, 0.1, 0.5, 1.0]
        )
        held &= torch.rand(samples * plane, 1, generator=self.generator) < self.random.choice([0.1, 0.5, 1.0])
        held = held if not self.large else torch.rand(samples * plane, channels, generator=self.generator) < 0.2
        position, channel = held.nonzero(as_tuple=True)
        positions, counts = position.unique_consecutive(return_counts=True)
        return positions, torch.cat([counts.new_zeros(1), counts.cumsum(0)]), channel.int()

    def geometry(self) -> dict[str, int]:
        """Anything torch allows and more: windows wholly in padding, strides over gaps, maps smaller than kernels."""
        each: dict[str, list[int]] = {what: [] for what in ("in", "out", "kernel", "stride", "padding", "dilation")}
        axes = self.random.randint(1, 3)
        for axis in range(3):
            if axis >= axes:
                sizes = dict(zip(each, (1, 1, 1, 1, 0, 1), strict=True))
            else:
                kernel, dilation = self.random.randint(1, 3), self.random.randint(1, 4)
                inside = self.size(1, 6, large=24)
                padding = self.random.randint(0, 4)
                while inside + 2 * padding < dilation * (kernel - 1) + 1:
                    padding += 1
                stride = self.random.randint(1, 4) if not self.large else 1
                out = (inside + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
                sizes = dict(zip(each, (inside, out, kernel, stride, padding, dilation), strict=True))
            for what, size in sizes.items():
                each[what].append(size)
        numbers = {f"{what}{axis}": sizes[axis] for what, sizes in each.items() for axis in range(3)}
        return {name: ({"samples": self.size(0, 3, large=2)} | numbers)[name] for name in GEOMETRY}


def triple(geometry: dict[str, int], what: str) -> tuple[int, int, int]:
    return geometry[f"{what}0"], geometry[f"{what}1"], geometry[f"{what}2"]


def volume(geometry: dict[str, int], what: str) -> int:
    a, b, c = triple(geometry, what)
    return a * b * c


def read_by(geometry: dict[str, int], position: int) -> Iterator[int | None]:
    """The input positions that an output position reads, tap by tap; None in the padding."""
    a, b, c = triple(geometry, "out")
    n, o = divmod(position, a * b * c)
    place = o // (b * c), o // c % b, o % c
    inside = triple(geometry, "in")
    for taps in product(*map(range, triple(geometry, "kernel"))):
        at = [
            o * s - p + k * d
            for o, s, p, k, d in zip(
                place,
                *(triple(geometry, w) for w in ("stride", "padding")),
                taps,
                triple(geometry, "dilation"),
                strict=True,
            )
        ]
        if all(0 <= i < size for i, size in zip(at, inside, strict=True)):
            yield ((n * inside[0] + at[0]) * inside[1] + at[1]) * inside[2] + at[2]
        else:
            yield None


def last(tensor: Tensor) -> Tensor:
    """The same numbers with channels last in memory."""
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1)


# --- selection.c ------------------------------------------------------------------------------------------------------


def statistics(values: Tensor, shares: Tensor) -> list[float]:
    """θ, mass before, mass pruned of both signs; entries before and after."""
    found: list[list[float]] = [[], [], []]
    kept = 0
    for part, share in ((values.clamp(min=0), shares[0]), (values.clamp(max=0).neg(), shares[1])):
        part = part[part > 0].double()
        total = part.sum()
        fits = [v for v in part.unique() if part[part <= v].sum() <= share * total and v < part.max()]
        theta = float(max(fits, default=0.0)) if share else 0.0
        for column, number in zip(found, (theta, float(total), float(part[part <= theta].sum())), strict=True):
            column.append(number)
        kept += int((part > theta).sum())
    return [*found[0], *found[1], *found[2], float(values.count_nonzero()), float(kept)]


def drawn_statistics(draw: Draw, rows: list[Tensor]) -> Tensor:
    if draw.large:
        found = torch.zeros(len(rows), 8, dtype=torch.float64)
        found[:, :2] = 2.0
        found[:, 6] = torch.tensor([row.count_nonzero() for row in rows])
        found[:, 7] = torch.tensor([(row.abs() > 2).sum() for row in rows])
        return found
    shares = torch.rand(len(rows), 2, generator=draw.generator, dtype=torch.float64) * draw.random.choice([0, 1])
    return torch.tensor([statistics(r, s) for r, s in zip(rows, shares, strict=True)], dtype=torch.float64).view(-1, 8)


def survivors(values: Tensor, stats: Tensor, rescale: bool = True) -> Tensor:
    """Rows (rows, entries) above θ, times λ."""
    found = torch.zeros_like(values, dtype=torch.float64)
    for n, row in enumerate(values.double()):
        up, down, *_ = stats[n].tolist()
        scales = [1.0, 1.0]
        for sign in range(2):
            before, after = stats[n, 2 + sign], stats[n, 2 + sign] - stats[n, 4 + sign]
            if rescale and stats[n, 6] != stats[n, 7] and after > 0:
                scales[sign] = float(before / after)
        found[n] = row * (row > up) * scales[0] + row * (row < -down) * scales[1]
    return found


def select(draw: Draw) -> Case:
    rows = draw.size(0, 4, large=draw.random.choice([1, 6]))
    ends = [draw.size(0, 60, large=MANY) for _ in range(rows)]
    offsets = torch.tensor([0, *ends]).cumsum(0)
    values, shares = draw.numbers(int(offsets[-1])), torch.rand(rows, 2, generator=draw.generator).double()
    stats = torch.zeros(rows, 8, dtype=torch.float64)
    case = Case(
        {"values": values, "offsets": offsets, "rows": rows, "shares": shares, "stats": stats, "threads": draw.threads}
    )
    if not draw.large:
        each = zip(values.split(ends), shares, strict=True)
        case.outputs["stats"] = torch.tensor([statistics(*pair) for pair in each]).double().view(-1, 8)
    return case


def thin(draw: Draw) -> Case:
    rows, each = draw.size(0, 4, large=3), draw.size(0, 80, large=MANY)
    values = draw.numbers(rows, each)
    stats = drawn_statistics(draw, list(values))
    case = Case(
        {"values": values, "rows": rows, "each": each, "stats": stats, "out": values.clone(), "threads": draw.threads}
    )
    case.outputs["out"] = survivors(values, stats)
    return case


def prune_tokens(draw: Draw) -> Case:
    samples, tokens, channels = draw.size(0, 3, large=2), draw.size(0, 9, large=300), draw.size(0, 20, large=130)
    values = draw.numbers(samples, tokens, channels) * draw.numbers(samples, tokens, 1).abs()
    p, p_negative = draw.random.choice([0.0, 0.3, 0.9]), draw.random.random()
    expected = values.double()
    for n in range(0 if draw.large else samples):
        masses = values[n].double().clamp(min=0).sum(1), values[n].double().clamp(max=0).sum(1).neg()
        theta = [statistics(masses[i].float(), torch.tensor([(p, p_negative)[i], 0.0]))[0] for i in range(2)]
        stays = (masses[0] > theta[0]) | (masses[1] > theta[1])
        expected[n] *= stays[:, None]
        if bool((~stays & (masses[0] + masses[1] > 0)).any()):
            for sign, mass in zip((1, -1), masses, strict=True):
                held = expected[n] * sign > 0
                expected[n][held] *= mass.sum() / mass[stays].sum()
    arguments = {"values": values, "samples": samples, "tokens": tokens, "channels": channels}
    room = [torch.zeros(size, dtype=torch.float64) for size in (2 * samples * tokens, tokens)]
    arguments |= {"p": p, "p_negative": p_negative, "sums": room[0], "ordered": room[1], "out": values.clone()}
    return Case(arguments | {"threads": draw.threads}, outputs={} if draw.large else {"out": expected})


def listed(whole: Tensor) -> dict[str, Tensor]:
    """The non-zero entries of (positions, channels) as neurons."""
    at, channel = whole.nonzero(as_tuple=True)
    positions, counts = at.unique_consecutive(return_counts=True)
    begins = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return {
        "out_positions": positions,
        "out_begins": begins,
        "out_channels": channel.int(),
        "out_values": whole[at, channel],
    }


def _room(stats: Tensor, places: int) -> dict[str, Tensor]:
    kept = int(stats[:, 7].sum())
    most = min(kept, places)
    return {
        "out_positions": torch.zeros(most, dtype=torch.int64), "out_begins": torch.zeros(most + 1, dtype=torch.int64),
        "out_channels": torch.zeros(kept, dtype=torch.int32), "out_values": torch.zeros(kept),
    }  # fmt: skip


def collect_rows(draw: Draw) -> Case:
    samples, channels, plane = draw.size(0, 3, large=3), draw.size(1, 20, large=40), draw.size(1, 9, large=900)
    positions = draw.some(samples * plane, 0.6)
    offsets = torch.searchsorted(positions, torch.arange(samples + 1) * plane)
    values, rescale = draw.numbers(len(positions), channels), draw.random.random() < 0.5
    parts = [values[a:b].flatten() for a, b in pairwise(offsets)]
    stats = drawn_statistics(draw, parts)
    sizes = {"samples": samples, "channels": channels, "stats": stats, "rescale": rescale}
    room = _room(stats, samples * plane)
    case = Case(
        {"values": values, "positions": positions, "offsets": offsets} | sizes | room | {"threads": draw.threads}
    )
    each = [survivors(p.view(1, -1), stats[n : n + 1], rescale).view(-1, channels) for n, p in enumerate(parts)]
    case.outputs = listed(torch.cat([torch.zeros(0, channels), *each]))
    case.outputs["out_positions"] = positions[case.outputs["out_positions"]]
    case.returns = len(case.outputs["out_positions"])
    return case


def collect_dense(draw: Draw) -> Case:
    samples, channels, plane = draw.size(0, 3, large=3), draw.size(1, 20, large=30), draw.size(1, 9, large=1500)
    values, rescale = draw.numbers(samples, channels, plane), draw.random.random() < 0.5
    stats = drawn_statistics(draw, [v.flatten() for v in values])
    sizes = {"samples": samples, "channels": channels, "plane": plane, "stats": stats, "rescale": rescale}
    case = Case({"values": values} | sizes | _room(stats, samples * plane) | {"threads": draw.threads})
    whole = survivors(values.flatten(1), stats, rescale).view(samples, channels, plane)
    case.outputs = listed(whole.transpose(1, 2).reshape(-1, channels))
    case.returns = len(case.outputs["out_positions"])
    return case


# --- neurons.c --------------------------------------------------------------------------------------------------------


def regroup(draw: Draw) -> Case:
    neurons, places, width = draw.size(0, 40), draw.size(1, 12), draw.size(1, 6)
    at = draw.integers(places + 1, neurons) - 1  # −1: goes nowhere
    channels, values = draw.integers(width, neurons).int(), draw.numbers(neurons)
    found: dict[int, dict[int, float]] = {}
    for position, channel, value in zip(at.tolist(), channels.tolist(), values.tolist(), strict=True):
        if position >= 0:
            here = found.setdefault(position, {})
            here[channel] = here.get(channel, 0.0) + value
    order = sorted(found)
    outputs = {
        "out_positions": torch.tensor(order, dtype=torch.int64),
        "out_begins": torch.tensor([0, *(len(found[p]) for p in order)]).cumsum(0),
        "out_channels": torch.tensor([c for p in order for c in found[p]], dtype=torch.int32),
        "out_values": torch.tensor([v for p in order for v in found[p].values()]),
    }
    sizes = {"neurons": neurons, "places": places, "width": width}
    room = {
        "out_positions": torch.empty(neurons, dtype=torch.int64),
        "out_begins": torch.empty(neurons + 1, dtype=torch.int64),
        "out_channels": torch.empty(neurons, dtype=torch.int32),
        "out_values": torch.empty(neurons),
    }
    return Case({"at": at, "channels": channels, "values": values} | sizes | room, len(order), outputs)


def take(draw: Draw) -> Case:
    source, size = draw.numbers(draw.size(1, 50, large=MANY)), draw.size(0, 60, large=MANY)
    index = draw.integers(len(source), size)
    arguments = {"source": source, "index": index, "size": size, "out": torch.empty(size), "threads": draw.threads}
    return Case(arguments, None, {"out": source[index]})


def union(draw: Draw) -> Case:
    a, b = draw.some(30, draw.random.random()), draw.some(30, draw.random.random())
    out = sorted({*a.tolist(), *b.tolist()})
    where = {name: torch.tensor([out.index(v) for v in part], dtype=torch.int64) for name, part in
             (("where_a", a), ("where_b", b))}  # fmt: skip
    room = {name: torch.empty_like(found) for name, found in where.items()}
    total = torch.empty(len(a) + len(b), dtype=torch.int64)
    outputs = {"out": torch.tensor(out, dtype=torch.int64), **where}
    return Case({"a": a, "n": len(a), "b": b, "m": len(b), "out": total} | room, len(out), outputs)


def flat(draw: Draw) -> Case:
    samples, width, plane = draw.size(0, 3), draw.size(1, 5), draw.size(1, 7)
    positions, begins, channels = draw.neurons(samples, width, plane)
    at = positions.repeat_interleave(begins.diff())
    room = {"out": torch.empty(len(channels), dtype=torch.int64), "out_sample": torch.empty(len(channels)).long()}
    arguments = {
        "positions": positions,
        "begins": begins,
        "places": len(positions),
        "channels": channels,
        "width": width,
    }
    expected = {"out": (at // plane * width + channels) * plane + at % plane, "out_sample": at // plane}
    return Case(arguments | {"plane": plane} | room, None, expected)


def plan(draw: Draw) -> Case:
    geometry = draw.geometry()
    positions = draw.some(geometry["samples"] * volume(geometry, "out"), 0.4)
    reads = [list(read_by(geometry, p)) for p in positions.tolist()]
    rows = sorted({i for read in reads for i in read if i is not None})
    number = {i: row for row, i in enumerate(rows)}
    taps = torch.tensor([-1 if i is None else number[i] for read in reads for i in read], dtype=torch.int32)
    scratch = torch.empty(geometry["samples"] * volume(geometry, "in"), dtype=torch.int32)
    arguments = {
        "positions": positions,
        "places": len(positions),
        "map": scratch,
        "rows": torch.empty(len(rows)).long(),
    }
    expected = {"rows": torch.tensor(rows, dtype=torch.int64), "taps": taps}
    return Case(arguments | {"taps": torch.empty_like(taps)} | geometry, len(rows), expected)


def winner(geometry: dict[str, int], x: Tensor, neuron: int) -> int:
    """The place in its plane of the first largest input that a neuron of the output (planes, out) reads; −1: none."""
    plane, place = divmod(neuron, volume(geometry, "out"))
    places = [i for i in read_by(geometry, place) if i is not None]
    values = x.view(-1, volume(geometry, "in"))[plane]
    return max(places, key=lambda i: (float(values[i]), -i)) if places else -1


def winners(draw: Draw) -> Case:
    geometry, planes = draw.geometry(), draw.size(1, 4)
    x = draw.numbers(planes, volume(geometry, "in"))
    neurons = draw.integers(planes * volume(geometry, "out"), draw.size(0, 40, large=9000))
    found = torch.tensor([winner(geometry, x, n) for n in neurons.tolist()], dtype=torch.int64)
    arguments = {"x": x, "flat": neurons, "neurons": len(neurons), "out": torch.empty_like(found)}
    return Case(arguments | {"threads": draw.threads} | geometry, None, {"out": found})


def _between(draw: Draw) -> tuple[dict[str, Any], Tensor]:
    samples, channels, plane = draw.size(0, 3, large=3), draw.size(1, 40, large=60), draw.size(1, 90, large=700)
    positions = draw.some(samples * plane, 0.7)
    return {"positions": positions, "count": len(positions), "channels": channels, "plane": plane}, draw.numbers(
        samples, channels, plane
    )


def gather(draw: Draw) -> Case:
    sizes, x = _between(draw)
    rows = x.transpose(1, 2).reshape(-1, x.shape[1])[sizes["positions"]]
    return Case({"x": x} | sizes | {"rows": torch.empty_like(rows), "threads": draw.threads}, None, {"rows": rows})


def spread(draw: Draw) -> Case:
    sizes, x = _between(draw)
    rows = draw.numbers(sizes["count"], sizes["channels"])
    flattened = x.transpose(1, 2).reshape(-1, x.shape[1]).index_copy(0, sizes["positions"], rows)
    expected = flattened.view(x.shape[0], x.shape[2], x.shape[1]).transpose(1, 2)
    return Case({"x": x} | sizes | {"rows": rows, "threads": draw.threads}, None, {"x": expected})


def add(draw: Draw) -> Case:
    width, rows = draw.size(1, 9), draw.size(1, 9)
    total = draw.numbers(rows, width)
    where = draw.some(rows, 0.6)
    expected = total.clone()
    if draw.random.random() < 0.5:
        values = draw.numbers(len(where), width)
        expected[where] += values
        own: dict[str, Any] = {"values": values, "begins": None, "channels": None}
    else:
        held = torch.rand(len(where), width, generator=draw.generator) < 0.5
        values = draw.numbers(int(held.sum()))
        begins = torch.cat([torch.zeros(1).long(), held.sum(1).cumsum(0)])
        expected[where] += torch.zeros(held.shape).masked_scatter(held, values)
        own = {"values": values, "begins": begins, "channels": held.nonzero()[:, 1].int()}
    return Case({"total": total, "width": width, "where": where, "count": len(where)} | own, None, {"total": expected})


# --- layers.c ---------------------------------------------------------------------------------------------------------


def weights(draw: Draw) -> Case:
    outputs, inputs, taps = draw.size(1, 9, large=64), draw.size(1, 9, large=64), draw.size(1, 4, large=9)
    raw, part = draw.numbers(outputs, inputs, taps), draw.random.choice([-1, 0, 1])
    scale = draw.numbers(outputs) if draw.random.random() < 0.5 else None
    wanted = draw.integers(outputs, draw.size(0, 12)).int() if draw.random.random() < 0.5 and not draw.large else None
    whole = raw if scale is None else raw * scale[:, None, None]
    whole = whole if part == 0 else whole.clamp(min=0) if part > 0 else whole.clamp(max=0)
    out = torch.zeros_like(raw)
    expected = (
        whole
        if wanted is None
        else torch.zeros_like(raw).index_copy(0, wanted.unique().long(), whole[wanted.unique().long()])
    )
    flags = torch.zeros(outputs, dtype=torch.uint8) if draw.random.random() < 0.5 else None
    fingerprints = torch.zeros(outputs, dtype=torch.int64) if draw.random.random() < 0.5 else None
    arguments = {
        "raw": raw, "scale": scale, "outputs": outputs, "inputs": inputs, "taps": taps, "part": part,
        "wanted": wanted, "count": outputs if wanted is None else len(wanted), "ready": flags,
        "out": last(out) if taps > 1 else out, "fingerprints": fingerprints, "threads": draw.threads,
    }  # fmt: skip
    return Case(arguments, 0, {"out": expected})


@dataclass
class Layer:
    """A convolution of three axes, the neurons of its output, and the rows they read."""

    geometry: dict[str, int]
    inputs: int
    outputs: int
    groups: int
    x: Tensor
    weight: Tensor
    neurons: tuple[Tensor, Tensor, Tensor]
    rows: Tensor  # positions of the input
    taps: Tensor

    @classmethod
    def drawn(cls, draw: Draw, grouped: bool = True, nonnegative: bool = False) -> Layer:
        geometry = draw.geometry()
        groups = draw.random.randint(1, 3) if grouped else 1
        inputs, outputs = groups * draw.size(1, 20, large=16), groups * draw.size(1, 6, large=16)
        samples = geometry["samples"]
        x = draw.numbers(samples, inputs, *triple(geometry, "in"))
        weight = draw.numbers(outputs, inputs // groups, *triple(geometry, "kernel"))
        if nonnegative:
            x, weight = x.abs(), weight.abs()
        neurons = draw.neurons(samples, outputs, volume(geometry, "out"))
        reads = [list(read_by(geometry, p)) for p in neurons[0].tolist()]
        rows = sorted({i for read in reads for i in read if i is not None})
        number = {i: row for row, i in enumerate(rows)}
        taps = torch.tensor([-1 if i is None else number[i] for read in reads for i in read], dtype=torch.int32)
        return cls(geometry, inputs, outputs, groups, x, weight, neurons, torch.tensor(rows, dtype=torch.int64), taps)

    def conv(self, x: Tensor, weight: Tensor) -> Tensor:
        g = self.geometry
        padded = [p for axis in (2, 1, 0) for p in (g[f"padding{axis}"],) * 2]
        found = F.conv3d(F.pad(x, padded), weight, None, triple(g, "stride"), 0, triple(g, "dilation"), self.groups)
        return found.view(g["samples"], self.outputs, *triple(g, "out"))

    def gathered(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2).reshape(-1, x.shape[1])[self.rows]

    def at_neurons(self, y: Tensor) -> Tensor:
        positions, begins, channels = self.neurons
        rows = y.flatten(2).transpose(1, 2).reshape(-1, y.shape[1])
        return rows[positions.repeat_interleave(begins.diff()), channels.long()]

    def spread(self, s: Tensor) -> Tensor:
        positions, begins, channels = self.neurons
        rows = torch.zeros(self.geometry["samples"] * volume(self.geometry, "out"), self.outputs, dtype=s.dtype)
        rows[positions.repeat_interleave(begins.diff()), channels.long()] = s
        shape = self.geometry["samples"], *triple(self.geometry, "out"), self.outputs
        return rows.view(shape).movedim(-1, 1)

    def transposed(self, s: Tensor) -> Tensor:
        x = torch.zeros_like(self.x, dtype=torch.float64).requires_grad_()
        return torch.autograd.grad(self.conv(x, self.weight.double()), x, self.spread(s))[0]

    @property
    def laid_weight(self) -> Tensor:
        return last(self.weight) if volume(self.geometry, "kernel") > 1 else self.weight

    @property
    def bands(self) -> dict[str, int]:
        """The first axis and the rest, and how far apart outputs read no input in common."""
        g = self.geometry
        reach = -(-(g["kernel0"] - 1) * g["dilation0"] // g["stride0"])
        return {"samples": g["samples"], "axis": g["out0"], "inner": g["out1"] * g["out2"], "reach": reach}


def layer(draw: Draw) -> Case:
    what = draw.random.randint(1, 3)
    one = Layer.drawn(draw)
    positions, begins, channels = one.neurons
    rows = one.gathered(one.x)
    held, bias = draw.numbers(len(channels)), draw.numbers(one.outputs) if draw.random.random() < 0.5 else None
    one_sign, epsilon = False, draw.random.choice([0.25, 0.0])
    d = one.at_neurons(one.conv(one.x.double(), one.weight.double()))
    if what == 3:
        d = d if bias is None else d + bias.double()[channels.long()]
        stable = d + torch.copysign(torch.full_like(d, epsilon), d)
        s = torch.where(stable == 0, 0.0, held.double() / torch.where(stable == 0, 1.0, stable))
    else:
        s = held.double()
    given: dict[str, Any] = {"rows": rows, "d": None, "s": None, "taken": None}
    quotient = {"given": None, "bias": None, "epsilon": 0.0, "one_sign": False}
    case = Case({})
    if what != 2:
        given["d"], case.outputs["d"] = torch.zeros_like(held), d
    if what == 2 and draw.random.random() < 0.5:
        given["rows"] = None
    if what != 1:
        given["s"] = held.clone() if what == 2 else torch.empty_like(held)
        given["taken"] = torch.zeros_like(rows)
        taken = one.gathered(one.transposed(s)) if len(one.rows) else rows.double()
        case.outputs |= {"s": s, "taken": taken if given["rows"] is None else taken * rows.double()}
    if what == 3:
        quotient = {"given": held, "bias": bias, "epsilon": epsilon, "one_sign": one_sign}
    case.arguments = dict(
        what=what, places=len(positions), positions=positions, begins=begins, channels=channels, taps=one.taps,
        kernel=volume(one.geometry, "kernel"), inputs=one.inputs, outputs=one.outputs, groups=one.groups,
        weight=one.laid_weight, **given, read=len(one.rows), **one.bands, **quotient, threads=draw.threads,
    )  # fmt: skip
    return case


def redistribute(draw: Draw) -> Case:
    one = Layer.drawn(draw, grouped=False, nonnegative=True)
    positions, begins, channels = one.neurons
    alive = torch.rand(len(one.rows), one.inputs, generator=draw.generator) < 0.4
    x = one.gathered(one.x)
    s, d = draw.numbers(len(channels)), draw.numbers(len(channels))
    bias = draw.numbers(one.outputs) if draw.random.random() < 0.5 else None
    ends = alive.sum(1).cumsum(0)
    lowest = torch.cat([torch.zeros(1).long(), ends])[:-1]
    survivors = alive.nonzero()[:, 1].int()
    masked = torch.zeros(one.x.shape[0] * one.x.shape[2:].numel(), one.inputs).double()
    masked[one.rows] = torch.where(alive, x, 0.0).double()
    masked = masked.view(one.x.shape[0], *one.x.shape[2:], one.inputs).movedim(-1, 1)
    reached = one.at_neurons(one.conv(masked, one.weight.double()))
    m = s.double() * (d.double() - (0 if bias is None else bias.double()[channels.long()]))
    share = torch.where(reached <= 0, 0.0, m / torch.where(reached <= 0, 1.0, reached))
    received = one.gathered(one.transposed(share) * masked) if len(one.rows) else x.double()
    arguments = dict(
        places=len(positions), positions=positions, begins=begins, channels=channels, taps=one.taps,
        kernel=volume(one.geometry, "kernel"), inputs=one.inputs, outputs=one.outputs, weight=one.laid_weight,
        d=d, s=s, bias=bias, **one.bands, lowest=lowest, end=ends, survivors=survivors, x=x[alive],
        received=torch.zeros(len(survivors)), orphaned=torch.empty_like(s), threads=draw.threads,
    )  # fmt: skip
    return Case(arguments, None, {"received": received[alive], "orphaned": torch.where(reached <= 0, m, 0.0)})


# --- whole_tensors.c --------------------------------------------------------------------------------------------------


def _whole(draw: Draw) -> tuple[int, int, int]:
    return draw.size(0, 3, large=2), draw.size(1, 40, large=40), draw.size(1, 70, large=1000)


def divide(draw: Draw) -> Case:
    shape = _whole(draw)
    r, d, epsilon = draw.numbers(*shape), draw.numbers(*shape), draw.random.choice([0.25, 1])
    expected = r.double() / (d.double() + torch.copysign(torch.full_like(d, epsilon), d).double())
    laid = draw.random.choice([last, torch.clone])
    size = {"size": r.numel(), "epsilon": epsilon, "one_sign": False}
    arguments = {"r": laid(r), "d": laid(d)} | size | {"out": laid(torch.empty_like(r)), "threads": draw.threads}
    return Case(arguments, None, {"out": expected})


def split(draw: Draw) -> Case:
    shape, lasts, one_sign = _whole(draw), draw.random.random() < 0.5, draw.random.random() < 0.5
    r, a, b = (draw.numbers(*shape) for _ in range(3))
    a, b = (a.abs(), b.abs()) if one_sign else (a, b)
    z = a.double() + b.double()
    s = r.double() / (z + torch.copysign(torch.full_like(z, 0.25), z))
    laid = last if lasts else torch.clone
    room = {"out": laid(torch.empty_like(r)), "out_b": laid(torch.empty_like(r))}
    sizes = dict(zip(("samples", "channels", "plane"), shape, strict=True))
    numbers = {"last": lasts, "epsilon": 0.25, "one_sign": one_sign, "threads": draw.threads}
    return Case({"r": laid(r), "a": a, "b": b} | room | sizes | numbers, None, {"out": s * a, "out_b": s * b})


def to_channels_last(draw: Draw) -> Case:
    shape = _whole(draw)
    tensor = draw.numbers(*shape)
    sizes = dict(zip(("samples", "channels", "plane"), shape, strict=True))
    out = last(torch.empty_like(tensor))
    return Case({"tensor": tensor, "out": out} | sizes | {"threads": draw.threads}, None, {"out": tensor})


def hand_one_by_one(draw: Draw) -> Case:
    samples, inputs, outputs = draw.size(1, 3), draw.size(1, 5), draw.size(1, 20)
    taps, padding, length = draw.size(1, 9), draw.size(0, 12), draw.size(1, 40, large=3000)
    length = max(length, taps - 2 * padding)
    x, weight = draw.numbers(samples, inputs, length, zeros=0.8), draw.numbers(outputs, inputs, taps)
    leaf = torch.zeros(samples, inputs, length).double().requires_grad_()
    y = F.conv1d(leaf, weight.double(), padding=padding)
    s = draw.numbers(*y.shape)
    back = torch.autograd.grad(y, leaf, s.double())[0]
    arguments = {
        "s": last(s), "weight": weight.flip(2).permute(1, 2, 0).contiguous(),
        "x": last(x), "out": last(torch.empty_like(x)),
        "samples": samples, "length": length, "reads": s.shape[2], "inputs": inputs, "outputs": outputs, "taps": taps,
        "before": taps - 1 - padding, "threads": draw.threads,
    }  # fmt: skip
    return Case(arguments, None, {"out": x * back})


def hand_to_winners(draw: Draw) -> Case:
    samples, channels, plane = draw.size(0, 3, large=2), draw.size(1, 40, large=40), draw.size(1, 30, large=900)
    below = draw.size(1, 30, large=900)
    r, found = draw.numbers(samples, channels, plane), draw.integers(below + 4, samples, channels, plane) - 2
    inside = (found >= 0) & (found < below)
    expected = torch.zeros(samples, channels, below).double()
    expected.scatter_add_(2, found.clamp(0, below - 1), torch.where(inside, r, 0.0).double())
    sizes = {"samples": samples, "channels": channels, "plane": plane, "below": below, "threads": draw.threads}
    out = last(torch.zeros(samples, channels, below))
    return Case({"r": last(r), "winners": found, "out": out} | sizes, None, {"out": expected})


def pool(draw: Draw) -> Case:
    geometry, planes = draw.geometry(), draw.size(0, 4, large=8)
    x, given = draw.numbers(planes, volume(geometry, "in")), draw.numbers(planes, volume(geometry, "out"))
    expected = torch.zeros_like(x).double()
    for plane, o in () if draw.large else given.nonzero().tolist():
        best = winner(geometry, x, plane * volume(geometry, "out") + o)
        if best >= 0:
            expected[plane, best] += given[plane, o]
    sizes = {"planes": planes, "threads": draw.threads}
    return Case({"x": x, "given": given, "taken": torch.zeros_like(x)} | sizes | geometry, None, {"taken": expected})


def count(draw: Draw) -> Case:
    values = draw.numbers(draw.size(0, 5, large=8), draw.size(0, 60, large=MANY))
    sizes = {"rows": values.shape[0], "each": values.shape[1], "counts": torch.empty(len(values), dtype=torch.int64)}
    return Case({"values": values} | sizes | {"threads": draw.threads}, None, {"counts": values.count_nonzero(1)})


def glance(draw: Draw) -> Case:
    rows, each, looks, most = draw.size(0, 6), draw.size(0, 60), draw.size(0, 30), draw.size(0, 12)
    values = draw.numbers(rows, each)
    seen = [sum(bool(row[i * each // looks]) for i in range(looks)) if each else 0 for row in values]
    sizes = {"rows": rows, "each": each, "looks": looks, "most": most}
    return Case({"values": values} | sizes, sum(found <= most for found in seen))


CASES: dict[str, Callable[[Draw], Case]] = {name: globals()[name] for name in SIGNATURES}
