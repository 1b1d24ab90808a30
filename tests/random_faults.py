"""Steps that plrp must see through or refuse: hidden paths, samples that mix, state and chance.

Each has the rule that it would have if all of it could be seen. Numbers that have no relevance to give (integers,
comparisons) are steps of their own with the rule `nothing`, marked as hidden.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from random_steps import MASKS, Block, Maker, Run, element, follows, linear, nothing, proportional, to_signal, unmasked

# --- hidden paths -----------------------------------------------------------------------------------------------------


@torch.jit.script
def scripted_scale(h: Tensor) -> Tensor:
    return 1.5 * h


@torch.jit.script
def scripted_relu(h: Tensor) -> Tensor:
    return torch.relu(h)


@torch.jit.script
def scripted_square(h: Tensor) -> Tensor:
    return h * h


@torch.jit.script
def scripted_tanh(h: Tensor) -> Tensor:
    return torch.tanh(h)


@torch.jit.script
def scripted_large(h: Tensor) -> Tensor:
    return torch.where(h > 5.0, h, torch.zeros_like(h))


SCRIPTED: dict[str, Run] = {
    "scale": scripted_scale,
    "relu": scripted_relu,
    "square": scripted_square,
    "tanh": scripted_tanh,
    "large": scripted_large,
}
PLAIN: dict[str, Run] = {
    "scale": lambda h: 1.5 * h,
    "relu": torch.relu,
    "square": torch.square,
    "tanh": torch.tanh,
    "large": lambda h: torch.where(h > 5.0, h, torch.zeros_like(h)),
}


def in_a_thread(f: Run) -> Run:
    def hidden(h: Tensor) -> Tensor:
        results: list[Tensor] = []
        worker = threading.Thread(target=lambda: results.append(f(h)))
        worker.start()
        worker.join()
        return results[0]

    return hidden


def disabled(f: Run) -> Run:
    def hidden(h: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return f(h)

    return hidden


def written(f: Run) -> Run:
    def hidden(h: Tensor) -> Tensor:
        copied = h.clone()
        copied.data = f(h)
        return copied

    return hidden


def with_foreach(f: Run) -> Run:
    def hidden(h: Tensor) -> Tensor:
        result = f(h)
        torch._foreach_add_([result], 1.0)
        torch._foreach_sub_([result], 1.0)
        return result

    return hidden


def into_fresh_memory(f: Run) -> Run:
    def hidden(h: Tensor) -> Tensor:
        room = h.new_zeros(h.shape)
        room[:, :].copy_(f(h))
        return room

    return hidden


def shared_memory(f: Run) -> Run:
    def hidden(h: Tensor) -> Tensor:
        read = h + 0.0
        result = f(read)
        np.from_dlpack(read.detach()).fill(1.0)
        return result

    return hidden


def rounded(h: Tensor) -> Tensor:
    """The same to nine digits, by way of integers."""
    return (h.double() * 2**30).long().to(h.dtype) / 2**30


def assigned(f: Run) -> Run:
    def hidden(h: Tensor) -> Tensor:
        room = h.clone()
        room[:, 1:] = rounded(f(h))[:, 1:]
        return torch.cat([f(h)[:, :1], room[:, 1:]], 1)

    return hidden


def as_function(f: Run) -> Run:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, h: Tensor) -> Tensor:
            return f(h)

    return lambda h: Own.apply(h)


def buffered(f: Run) -> Run:
    """Writes into a buffer that it made at its first call."""
    memory: list[Tensor] = []

    def hidden(h: Tensor) -> Tensor:
        if not memory or memory[0].shape != h.shape:
            memory[:] = [torch.zeros(h.shape, dtype=h.dtype)]
        memory[0].copy_(f(h))
        return memory[0] * 1.0

    return hidden


class Buffer(nn.Module):
    """Writes into a buffer of the model, in one of several ways, and adds it."""

    def __init__(self, f: Run, shape: tuple[int, ...], dtype: torch.dtype, how: str) -> None:
        super().__init__()
        self.f, self.how = f, how
        self.register_buffer("memory", torch.zeros(shape, dtype=dtype))

    def forward(self, h: Tensor) -> Tensor:
        if self.how == "set":
            self.memory = self.f(h)
        elif self.how == "copy_":
            self.memory[: len(h)].copy_(self.f(h))
        elif self.how == "setitem":
            self.memory[: len(h)] = self.f(h)
        else:
            self.memory.data[: len(h)] = self.f(h)
        return self.memory[: len(h)] * 1.0


def row_by_row(f: Run) -> Run:
    return lambda h: torch.stack([torch.tensor(f(row).tolist(), dtype=h.dtype) for row in h])


DISGUISES: dict[str, Callable[[Run], Run]] = {
    "as it is": lambda f: f,
    "clone": lambda f: lambda h: f(h.clone()).contiguous(),
    "in place": lambda f: lambda h: f(h.clone().mul_(1.0)),
    "a thread": in_a_thread,
    "disabled": disabled,
    "vmap": lambda f: torch.vmap(f),
    "pickled": lambda f: lambda h: pickle.loads(pickle.dumps(f(h))),
    "copied": lambda f: lambda h: copy.copy(f(h)),
    "dlpack": lambda f: lambda h: torch.from_dlpack(f(h)),
    "numpy": lambda f: lambda h: torch.from_numpy(f(h).detach().numpy().copy()),
    "numpy asarray": lambda f: lambda h: torch.as_tensor(np.asarray(f(h).detach())),
    "tolist": row_by_row,
    "new_tensor": lambda f: lambda h: h.new_tensor(f(h)),
    "as_subclass": lambda f: lambda h: f(h).as_subclass(Tensor),
    "rounded": lambda f: lambda h: rounded(f(h)),
    "assigned": assigned,
    "chosen": lambda f: lambda h: torch.where(h == h, rounded(f(h)), h),
    "largest": lambda f: lambda h: torch.maximum(rounded(f(h)), f(h) - 1e-3),
    "rounded if large": lambda f: lambda h: rounded(f(h)) if bool(h.abs().max() > 1) else f(h),
    "traced": lambda f: lambda h: torch.jit.trace(f, torch.ones_like(h.detach()), check_trace=False)(h),
    "shared memory": shared_memory,
    "written": written,
    "foreach": with_foreach,
    "fresh memory": into_fresh_memory,
    "a function of autograd": as_function,
    "a buffer": buffered,
}


VISIBLE = ("as it is", "clone", "in place", "set", "a function of autograd")
ON_TAPE = (*VISIBLE, "assigned", "chosen", "largest", "shared memory", "a buffer")  # with numbers that came another way


def hidden_function(m: Maker, h: int) -> tuple[int, bool]:
    """A function of each element, in disguise or scripted; and whether its result is a value on the tape."""
    name = m.draw.choice(sorted(PLAIN))
    chance = m.draw.random()
    if chance < 0.3:
        run, how = SCRIPTED[name], "scripted"
    elif chance < 0.4:
        how = m.draw.choice(["set", "copy_", "setitem", "data"])
        run = m.module(Buffer(PLAIN[name], (m.batch, *m.shapes[h]), m.dtype, how))
    else:
        how = m.draw.choice(sorted(DISGUISES))
        run = DISGUISES[how](PLAIN[name])
    hides = how not in VISIBLE
    term = m.add(f"{name}, {how}", run, h, rule=element(PLAIN[name]), shape=m.shapes[h], hidden=hides)
    return term, how in ON_TAPE


def hidden_number(m: Maker, h: int) -> tuple[int, bool]:
    """A number that comes from integers or comparisons: it has no relevance to give."""
    t = m.draw.choice([0.0, 0.3, 1.0])
    bounds = m.draw.choice([torch.tensor([5.0, 10.0, 20.0]), torch.tensor([-1.0, 0.0, 0.5, 2.0])]).to(m.dtype)
    dtype = m.dtype
    runs: dict[str, Run] = {
        "round": torch.round,
        "floor": torch.floor,
        "sign": torch.sign,
        "long": lambda h: (2 * h).long().to(dtype),
        "int": lambda h: (3 * h).int() / 3,
        "bucketize": lambda h: torch.bucketize(h, bounds),
        "searchsorted": lambda h: torch.searchsorted(bounds, h.contiguous()).to(dtype),
        "argmax": lambda h: h.argmax(1, keepdim=True).to(dtype) / 2,
        "one_hot": lambda h: F.one_hot(h.argmax(1), h.shape[1]).to(dtype),
        "comparison": lambda h: (h > t).to(dtype),
        "bool": lambda h: h > t,
        "count": lambda h: (h > t).sum(1, keepdim=True),
        "share": lambda h: (h > t).to(dtype).mean(1, keepdim=True),
        "item": lambda h: torch.tensor([[row.sum().item() / 3] for row in h], dtype=dtype),
        "float": lambda h: float(h.detach().abs().max()) * torch.ones((), dtype=dtype),
        "length": lambda h: torch.tensor([[len(row.nonzero()) / 3] for row in F.relu(h)], dtype=dtype),
        "argsort": lambda h: h.argsort(1).to(dtype) / 3,
        "topk": lambda h: h.topk(1, 1).indices / 2.0,
        "bits": lambda h: h.detach().float().view(torch.int32).to(dtype) * 1e-9,
        "where of numbers": lambda h: torch.where(h > t, 2.0, 0.5).to(dtype),
        "a table": lambda h: torch.linspace(0.5, 2.0, h.shape[1], dtype=dtype)[h.argmax(1)][:, None],
    }
    name = m.draw.choice(sorted(runs))
    run = runs[name]
    return m.add(f"{name} as a number", run, h, rule=nothing, shape=m.shapes[h], hidden=True), False


def sum_with_constant(r: Tensor, z: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """In proportion; but where the constant is zero the signal takes all, and beside masks everywhere."""
    term = inputs[1].expand_as(z)
    zero = term == 0
    if bool((zero | (term <= -100)).all()):
        return to_signal()(r, z, inputs)
    part, *others = proportional(torch.add)(r.masked_fill(zero, 0.0), z, inputs)
    assert part is not None
    return [part + r * zero, *others]


def sum_with_constant_if_large(r: Tensor, z: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """The sum with a term that is a value on the tape unless h is large."""
    return (sum_with_constant if bool(inputs[0].abs().max() > 1) else proportional(torch.add))(r, z, inputs)


def hidden(m: Maker, h: int) -> int:
    """A hidden term beside a value: added, in a concatenation, a gate, beside masks, for some numbers or samples."""
    discrete = m.draw.random() < 0.45
    term, on_tape = (hidden_number if discrete else hidden_function)(m, h)
    sum_rule = proportional(torch.add) if on_tape else sum_with_constant
    if m.steps[term - 1].name.endswith("rounded if large"):
        sum_rule = sum_with_constant_if_large
    size, number, mask = m.shapes[h][-1], m.draw.choice(MASKS), m.some(m.shapes[h][-1])
    bound = m.draw.choice([0.5, 2.0, 5.0])
    place = m.draw.choice(["+", "+", "cat", "gate", "+ masked", "+ masked", "filled +", "filled +", "range", "samples"])
    if place == "cat":
        joined: Run = lambda h, t: torch.cat([h, t.expand(h.shape)], 1)  # noqa: E731
        return m.add("cat", joined, h, term, rule=follows(joined))
    if place == "gate":
        gate = m.add("sigmoid", lambda t: torch.sigmoid(t * 1.0), term, rule=nothing)
        return m.add("h * gate", torch.mul, h, gate, rule=to_signal())
    if place == "+ masked":
        filled: Run = lambda t: (t + torch.zeros(size, dtype=m.dtype)).masked_fill(mask, number)  # noqa: E731
        term = m.add(f"masked_fill {number:g}", filled, term, rule=follows(filled), shape=m.shapes[h])
    elif place == "range":
        large: Run = lambda t, h: torch.where(h > bound, t, torch.zeros((), dtype=m.dtype))  # noqa: E731
        term = m.add(f"above {bound}", large, term, h, rule=follows(large, 0), shape=m.shapes[h])
    elif place == "samples":
        some: Run = lambda t, h: t * (h.abs().amax(1, keepdim=True) > bound)  # noqa: E731
        term = m.add(f"samples above {bound}", some, term, h, rule=to_signal())
    elif place == "filled +":
        fill: Run = lambda h: h.index_fill(1, mask.nonzero()[:, 0], number)  # noqa: E731
        h = m.add(f"index_fill {number:g}", fill, h, rule=follows(fill))
    total = m.add("h + hidden", torch.add, h, term, rule=sum_rule)
    return unmasked(m, total) if number and place in ("+ masked", "filled +") else total


# --- samples that mix -------------------------------------------------------------------------------------------------


def edges(m: Maker) -> Tensor:
    """A matrix along the batch: a permutation, a diagonal, few edges or many."""
    batch, kind = m.batch, m.draw.choice(["permutation", "diagonal", "few", "isolated", "many"])
    if kind == "permutation":
        return torch.eye(batch, dtype=m.dtype)[m.order(batch)]
    matrix = torch.diag(m.uniform(batch))
    number = {"diagonal": 0, "few": 1, "isolated": 1, "many": batch}[kind]
    for _ in range(number):
        first = 1 if kind == "isolated" and batch > 2 else 0
        matrix[m.draw.randrange(first, batch), m.draw.randrange(first, batch)] = m.draw.choice([-1.0, 1.0])
    return matrix


def numbers(m: Maker) -> Tensor:
    """Numbers of samples: in order, in another, or some of them twice."""
    kind = m.draw.randrange(3)
    if kind == 0:
        return torch.arange(m.batch)
    return m.order(m.batch) if kind == 1 else torch.tensor(m.draw.choices(range(m.batch), k=m.batch))


def moving(m: Maker, h: int) -> int:
    """Samples that change places, are selected or repeated, some back to where they were."""
    size, batch, index = m.shapes[h][-1], m.batch, numbers(m)
    wide, shift, cut = index[:, None].expand(-1, size), m.draw.randrange(batch), m.draw.randrange(1, max(2, batch))
    back, buffer = index.argsort(), torch.zeros(batch, size, dtype=m.dtype)
    features, dim = m.order(size), m.draw.randrange(2)
    runs: dict[str, Run] = {
        "index": lambda h: h[index],
        "index and back": lambda h: h[index][back],
        "index_select": lambda h: h.index_select(0, index),
        "roll": lambda h: h.roll(shift, dim),
        "roll and back": lambda h: h.roll(shift, 0).roll(-shift, 0),
        "flip": lambda h: h.flip(dim),
        "flip and back": lambda h: h.flip(0).flip(0),
        "sort": lambda h: h.sort(dim).values,
        "cat of parts": lambda h: torch.cat([h[cut:], h[:cut]]),
        "cat in order": lambda h: torch.cat([h[:cut], h[cut:]]),
        "stack": lambda h: torch.stack(h.unbind(dim), dim),
        "index_copy": lambda h: buffer.index_copy(0, index, h),
        "scatter": lambda h: buffer.scatter(0, wide, h),
        "scatter along features": lambda h: buffer.scatter(1, features.expand(batch, -1), h),
        "gather": lambda h: h.gather(0, wide),
        "take": lambda h: h.take((index[:, None] * size + features).view(batch, size)),
        "transposed": lambda h: h.T.reshape(h.shape),
        "contiguous": lambda h: h.T.contiguous().T,
        "where": lambda h: torch.where(torch.arange(batch)[:, None] < cut, h, h.flip(0)),
        "repeat_interleave": lambda h: h.repeat_interleave(2, 0)[::2],
        "repeat": lambda h: h.repeat(2, 1)[shift : shift + batch],
        "last for all": lambda h: h[-1:].expand(batch, size),
        "one for all": lambda h: h.expand(batch, batch, size)[:, shift],
        "maximum of the batch": lambda h: torch.maximum(h, h.amax(0, keepdim=True)),
        "masked_scatter": lambda h: h.masked_scatter(torch.ones(h.shape) > 0, h.flip(dim)),
    }
    name = m.draw.choice(sorted(runs))
    moved = m.add(f"{name} (samples)", runs[name], h, rule=follows(runs[name]), shape=m.shapes[h])
    if m.draw.random() < 0.4:
        factor = m.draw.choice([0.5, -1.0, 1.0])
        scale: Run = (lambda h: h * factor) if m.draw.random() < 0.5 else (lambda h: h * first(h))
        scaled = m.add("scale", scale, moved, rule=to_signal())
        return m.add("h + moved", torch.add, h, scaled)
    return moved


def adding(m: Maker, h: int) -> int:
    """Sums along the batch: products with a matrix, index_add, cumsum, means."""
    size, batch, index, matrix = m.shapes[h][-1], m.batch, numbers(m), edges(m)
    wide, buffer = index[:, None].expand(-1, size), torch.zeros(batch, size, dtype=m.dtype)
    sign, dim, kernel = m.draw.choice([-1, 1]), m.draw.randrange(2), m.normal(1, 1, 3)
    runs: dict[str, Run] = {
        "edges @ h": lambda h: matrix @ h,
        "einsum": lambda h: torch.einsum("nm,mf->nf", matrix, h),
        "linear": lambda h: F.linear(h.T, matrix).T,
        "conv1d": lambda h: F.conv1d(h.T[:, None], kernel, padding=1)[:, 0].T,
        "index_add": lambda h: buffer.index_add(0, index, h),
        "index_add to itself": lambda h: h.index_add(0, index, h, alpha=sign),
        "scatter_add": lambda h: buffer.scatter_add(0, wide, h),
        "cumsum": lambda h: h.cumsum(dim),
        "avg_pool1d": lambda h: F.avg_pool1d(h.T[:, None], 3, 1, 1)[:, 0].T,
    }
    name = m.draw.choice(["less the mean", *sorted(runs)])
    if name == "less the mean":
        mean: Run = lambda h: h.mean(dim, keepdim=True).expand(h.shape)  # noqa: E731
        return m.add("h - mean", torch.sub, h, m.add(f"mean of axis {dim}", mean, h, shape=m.shapes[h]))
    return m.add(f"{name} (samples)", runs[name], h, shape=m.shapes[h])


def steered(m: Maker, h: int) -> int:
    """Gates, divisors and norms that may be read from other samples: they take no relevance."""
    index, shift, dim = numbers(m), m.draw.randrange(m.batch), m.draw.randrange(2)
    runs: dict[str, Run] = {
        "gate of the last": lambda h: h * torch.sigmoid(h[-1:]),
        "gate of others": lambda h: h * torch.sigmoid(h.detach()[index]),
        "gate of some": lambda h: h * torch.sigmoid(h.detach()[shift:].sum(0)),
        "gate of a mean": lambda h: h * torch.sigmoid(h.mean(dim, keepdim=True)),
        "softmax": lambda h: h * torch.softmax(h, dim),
        "over the largest": lambda h: h / (0.1 + h.detach().abs().max()),
        "over the largest of each": lambda h: h / (0.1 + h.abs().amax(dim, keepdim=True)),
        "over a norm": lambda h: h / (0.1 + h.norm(dim=dim, keepdim=True)),
        "over the norm": lambda h: h / (0.1 + h.norm()),
        "normalize": lambda h: F.normalize(h, dim=dim),
        "times the last": lambda h: h * h[-1:].detach().abs(),
        "over the last": lambda h: h / (1 + h[-1:].detach().abs()),
        "over others": lambda h: h / (1 + h.detach()[index].abs().amax(dim, keepdim=True)),
        "compared with others": lambda h: h * (h[index] > 0.3),
        "weighed by others": lambda h: h * torch.where(h.roll(shift, 0) > 0.3, 2.0, 1.0),
        "chosen by others": lambda h: torch.where(h[index] > 0.3, h, 2 * h),
        "a gate for one": lambda h: (
            h * torch.where(first(h), torch.sigmoid(h.detach()[-1:]), torch.ones((), dtype=h.dtype))
        ),
    }
    moves: dict[str, Run] = {
        "masked by others": lambda h: h.masked_fill(h[index] > 0.3, 0.0),
        "ordered by others": lambda h: h.gather(1, h[index].argsort(1)),
    }
    name = m.draw.choice([*sorted(runs), *sorted(moves)])
    if name in moves:
        return m.add(f"{name} (samples)", moves[name], h, rule=follows(moves[name]), shape=m.shapes[h])
    return m.add(f"{name} (samples)", runs[name], h, rule=to_signal(), shape=m.shapes[h])


def first(h: Tensor) -> Tensor:
    """True for the first sample."""
    return (torch.arange(len(h)) == 0)[:, None]


def attending(m: Maker, h: int) -> int:
    """Attention over the batch."""
    ways: dict[str, Run] = {
        "softmax": lambda h: torch.softmax((h @ h.T).detach(), 1) @ h,
        "torch": lambda h: F.scaled_dot_product_attention(h[None], h[None], h[None])[0],
    }
    name = m.draw.choice(sorted(ways))

    def rule(r: Tensor, z: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        held = torch.softmax(inputs[0] @ inputs[0].T / (inputs[0].shape[1] ** 0.5 if name == "torch" else 1), 1)
        return proportional(lambda a: held @ a)(r, z, inputs)

    return m.add(f"attention, {name} (samples)", ways[name], h, rule=rule, shape=m.shapes[h])


def mixed(m: Maker, h: int) -> int:
    for _ in range(m.draw.randint(1, 2)):
        h = m.draw.choice([moving, moving, adding, adding, steered, attending])(m, h)
    return h


MIXED_TARGETS: dict[str, Run] = {
    "times the last": lambda o: o[:, 0] * o[-1, 0].detach(),
    "over the largest": lambda o: o[:, 0] / o.detach().abs().max(),
    "gate of the last": lambda o: o[:, 0] * torch.sigmoid(o[-1, 1]),
    "where the last is large": lambda o: o[:, 0] * (o[-1, 1] > 0),
    "a neighbour for one": lambda o: o[:, 0] + o[:, 1].roll(1) * first(o)[:, 0],
    "a convolution": lambda o: F.conv1d(o[None, None, :, 0], torch.ones(1, 1, 3, dtype=o.dtype), padding=1)[0, 0],
}


# --- state and chance -------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """A factor, or a summand, that changes with the number of calls, from some call on."""

    def __init__(self, after: int, adds: bool) -> None:
        super().__init__()
        self.after, self.adds, self.calls = after, adds, 0

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        number = float(max(0, self.calls - self.after))
        return h + 0.3 * number if self.adds else h * (1 + 0.3 * number)


class Remembering(nn.Module):
    """Adds what it computed at its first call, or at the one before; `warm`: it was called already."""

    def __init__(self, first: bool, warm: Tensor | None) -> None:
        super().__init__()
        self.first, self.kept = first, warm

    def forward(self, h: Tensor) -> Tensor:
        before = self.kept
        if before is None or not self.first:
            self.kept = h.detach().mean(0)
        return h + (h.detach().mean(0) if before is None else before)


class Running(nn.Module):
    """Less a running mean that every call renews."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", start)

    def forward(self, h: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h - self.mean


def stateful(m: Maker, h: int) -> int:
    size, shape = m.shapes[h][-1], m.shapes[h]
    kind = m.draw.choice(["counter", "counter", "memory", "memory", "running", "batch_norm", "branch", "last call"])
    if kind == "counter":
        adds = m.draw.random() < 0.5
        module = m.module(Counting(m.draw.randrange(4), adds))
        return m.add("counter", module, h, rule=nothing, shape=shape)
    if kind in ("memory", "last call"):
        warm = m.normal(size) if m.draw.random() < 0.4 else None
        module = m.module(Remembering(kind == "memory", warm))
        rule = nothing if warm is None else proportional(lambda h: h + warm)  # a constant, once it is warm
        return m.add(f"{kind}, {'cold' if warm is None else 'warm'}", module, h, rule=rule, shape=shape)
    if kind == "running":
        return m.add("running mean", m.module(Running(m.normal(size))), h, rule=nothing, shape=shape)
    if kind == "batch_norm":
        norm = m.module(nn.BatchNorm1d(size).to(m.dtype), training=True)
        return m.add("BatchNorm in training mode", norm, h, rule=nothing, shape=shape)
    bound, w = m.draw.choice([0.5, 2.0]), m.uniform(size)

    def branching(h: Tensor) -> Tensor:
        return h * w if bool(h.abs().max() > bound) else -h

    return m.add("a branch", branching, h, rule=to_signal(), shape=shape)


def seeded(run: Run, seed: int | None) -> Run:
    """The step with its random numbers drawn from a seed of its own, in forward; None: from torch's."""

    def drawn(h: Tensor) -> Tensor:
        if seed is not None:
            torch.manual_seed(seed)
        return run(h)

    return drawn


def fractional(h: Tensor) -> Tensor:
    square = F.pad(h, (0, 16 - h.shape[1])).view(len(h), 1, 4, 4)
    return F.fractional_max_pool2d(square, 2, output_size=2).flatten(1)


def chance(m: Maker, h: int) -> int:
    """Random numbers, with a seed in forward or without one."""
    h = linear(m, h, m.draw.randint(4, 16))
    seed = m.draw.choice([None, 3])
    kind = m.draw.choice(["dropout", "nn.Dropout", "rand", "normal", "bernoulli", "fractional", "rrelu", "permutation"])
    said = "seeded" if seed is not None else "unseeded"
    if kind == "nn.Dropout":
        dropout = m.module(nn.Dropout(0.5), training=True)
        return m.add(kind, seeded(dropout, seed), h, rule=to_signal(), shape=m.shapes[h])
    runs: dict[str, tuple[Run, Any]] = {
        "dropout": (lambda h: F.dropout(h, 0.5, training=True), to_signal()),
        "rand": (lambda h: h * torch.rand_like(h), to_signal()),
        "normal": (lambda h: h + torch.randn(h.shape[1:], dtype=h.dtype), None),
        "bernoulli": (lambda h: h * torch.bernoulli(torch.full_like(h, 0.5)), to_signal()),
        "rrelu": (lambda h: F.rrelu(h, training=True), to_signal()),
        "fractional": (fractional, follows),
        "permutation": (lambda h: h[:, torch.randperm(h.shape[1])], follows),
    }
    run, rule = runs[kind]
    run = seeded(run, seed)
    return m.add(f"{kind}, {said}", run, h, rule=follows(run) if rule is follows else rule)


FAULTS: dict[str, Sequence[Block]] = {
    "hidden": (hidden,),
    "mixed": (mixed,),
    "stateful": (stateful, stateful, chance),
}
