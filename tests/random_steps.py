"""Steps of random models: each as a user may spell it, with its rule as DESIGN's section 3 states it.

A rule takes the relevance of a step's output, the output and the inputs, all with their batch axis, and returns the
relevance of each input (None: it receives nothing). The rules use torch's autograd and plain formulas; nothing here
imports plrp.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPSILON = 1e-6
MASKS = (0.0, -1e4, -1e7, -1e9, -math.inf)  # of every size that masks are written in

Run = Callable[..., Tensor]
Rule = Callable[[Tensor, Tensor, Sequence[Tensor]], list[Tensor | None]]


# --- rules ------------------------------------------------------------------------------------------------------------


def stabilised(z: Tensor) -> Tensor:
    return z + torch.where(z >= 0, EPSILON, -EPSILON).to(z.dtype)


def pulled_back(run: Run, inputs: Sequence[Tensor], signals: Sequence[int], cotangent: Tensor) -> list[Tensor | None]:
    """Jᵀ · cotangent for the inputs that are signals; the others are held constant."""
    leaves = [x.detach().clone().requires_grad_(n in signals) for n, x in enumerate(inputs)]
    with torch.enable_grad():
        z = run(*leaves)
    parts = torch.autograd.grad(z, [leaves[n] for n in signals], cotangent, allow_unused=True)
    handed: list[Tensor | None] = [None] * len(inputs)
    for n, part in zip(signals, parts, strict=True):
        handed[n] = part
    return handed


def proportional(run: Run, *signals: int) -> Rule:
    """R_j = x_j Σ_k J_jk R_k / (z_k + ε sign z_k), where `run` is affine in its signals."""

    def rule(r: Tensor, z: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        back = pulled_back(run, inputs, signals or range(len(inputs)), r / stabilised(z))
        return [g if g is None else torch.where(g == 0, g, x * g) for x, g in zip(inputs, back, strict=True)]

    return rule


def follows(run: Run, *signals: int) -> Rule:
    """Relevance follows the elements that `run` moves or selects; a constant between them keeps its own."""

    def rule(r: Tensor, z: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        return pulled_back(run, inputs, signals or range(len(inputs)), r)

    return rule


def element(phi: Run) -> Rule:
    """R (φ(z) − φ(0)) / φ(z): φ(0) is a constant. Where φ(z) = 0 all is; where φ(0) = 0 relevance stays."""

    def rule(r: Tensor, y: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        start = phi(torch.zeros_like(inputs[0]))
        share = torch.where(y == 0, 0.0, (y - start) / torch.where(y == 0, 1.0, y))
        return [torch.where(start == 0, r, r * share)]

    return rule


def to_signal(number: int = 0) -> Rule:
    """All to one operand, element by element: constant scales, gates, statistics of a sample."""

    def rule(r: Tensor, z: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        return [r.sum_to_size(x.shape) if n == number else None for n, x in enumerate(inputs)]

    return rule


def nothing(r: Tensor, z: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """No relevance is handed down: a constant, or a number that has none to give."""
    return [None] * len(inputs)


# --- a model of steps -------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One step: the numbers of the values that it reads (0 is the input), and whether plrp cannot see it."""

    name: str
    run: Run
    rule: Rule
    sources: tuple[int, ...]
    hidden: bool = False


class Model(nn.Module):
    """Runs the steps one after the other, and returns the last value."""

    def __init__(self, steps: Sequence[Step], maker: Maker) -> None:
        super().__init__()
        self.steps, self.parts = list(steps), nn.ModuleList(maker.modules)
        self.eval()
        for module in maker.training:
            module.train()

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for step in self.steps:
            values.append(step.run(*(values[source] for source in step.sources)))
        return values[-1]


def values_of(steps: Sequence[Step], x: Tensor, noise: float = 0.0, seed: int = 0) -> list[Tensor]:
    """The input and the output of every step as real numbers; with noise, each is moved by so much of itself."""
    generator = torch.Generator().manual_seed(seed)
    values = [x]
    for step in steps:
        z = step.run(*(values[source] for source in step.sources)).to(x.dtype)
        if noise:
            z = z * (1 + noise * torch.randn(z.shape, generator=generator).to(z.dtype))
        values.append(z)
    return values


class Explained(NamedTuple):
    """The relevance of the input, (batch, …); that of values that plrp cannot see; and the largest Σ|R| of a value."""

    relevance: Tensor
    hidden: dict[int, Tensor]
    largest: float


def slow_lrp(steps: Sequence[Step], values: Sequence[Tensor], start: Tensor) -> Explained:
    """Relevance from `start`, that of the last value, down to the input, by the rules of the steps."""
    relevance: dict[int, Tensor] = {len(steps): start}
    hidden: dict[int, Tensor] = {}
    largest = 0.0
    for number in range(len(steps), 0, -1):
        step, r = steps[number - 1], relevance.pop(number, None)
        if r is None:
            continue
        largest = max(largest, float(r.detach().abs().sum()))
        if step.hidden:
            hidden[number] = r
        handed = step.rule(r, values[number], [values[source] for source in step.sources])
        for source, part in zip(step.sources, handed, strict=True):
            if part is not None:
                relevance[source] = relevance[source] + part if source in relevance else part
    arrived = relevance.get(0, torch.zeros_like(values[0]))
    return Explained(arrived, hidden, max(largest, float(arrived.detach().abs().sum())))


# --- drawing a model --------------------------------------------------------------------------------------------------


class Maker:
    """Draws a model step by step, the same from the same seed; `dtype` is that of its weights.

    `shapes` are those of the values, without the batch axis.
    """

    def __init__(self, seed: int, dtype: torch.dtype, shape: tuple[int, ...], batch: int) -> None:
        self.draw, self.generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.dtype, self.batch, self.shapes = dtype, batch, [shape]
        self.steps: list[Step] = []
        self.modules: list[nn.Module] = []
        self.training: list[nn.Module] = []

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(shape, generator=self.generator)).to(self.dtype)

    def uniform(self, *shape: int, low: float = 0.5, high: float = 1.5) -> Tensor:
        return (low + (high - low) * torch.rand(shape, generator=self.generator)).to(self.dtype)

    def order(self, size: int) -> Tensor:
        return torch.randperm(size, generator=self.generator)

    def some(self, size: int) -> Tensor:
        """A mask that is true for at least one of several elements, and not for all."""
        mask = torch.zeros(size, dtype=torch.bool)
        mask[self.order(size)[: self.draw.randint(1, max(1, size - 1))]] = True
        return mask

    def module(self, module: nn.Module, training: bool = False) -> nn.Module:
        """A module of the model; `training`: it stays in training mode."""
        self.modules.append(module)
        if training:
            self.training.append(module)
        return module

    def add(
        self,
        name: str,
        run: Run,
        *sources: int,
        rule: Rule | None = None,
        shape: tuple[int, ...] | None = None,
        hidden: bool = False,
    ) -> int:
        """Append a step; its rule is proportional unless one is given. `shape` saves a run of it."""
        if shape is None:
            ones = [torch.ones(self.batch, *self.shapes[source], dtype=self.dtype) for source in sources]
            with torch.no_grad():
                shape = tuple(run(*ones).shape[1:])
        self.steps.append(Step(name, run, rule or proportional(run), sources, hidden))
        self.shapes.append(shape)
        return len(self.steps)


Block = Callable[[Maker, int], int]  # adds steps that read a value, and returns the number of their last one


def linear(m: Maker, h: int, out: int | None = None) -> int:
    """A linear layer in one of its spellings; (batch, …, features)."""
    size = m.shapes[h][-1]
    out = size if out is None else out
    w, b = m.normal(out, size, scale=1.2 / math.sqrt(size)), m.normal(out, scale=0.3)
    spelling = m.draw.choice(["module", "module", "functional", "bare", "addmm", "einsum", "matmul", "normed"])
    if spelling == "module":
        layer = nn.Linear(size, out, bias=m.draw.random() < 0.8).to(m.dtype)
        layer.weight.data = w
        if layer.bias is not None:
            layer.bias.data = b
        return m.add("nn.Linear", m.module(layer), h)
    if spelling == "matmul":  # the constant is a step of its own
        product = m.add("h @ w", lambda h: h @ w.T, h)
        return m.add("+ b", lambda h: h + b, product)
    runs: dict[str, Run] = {
        "functional": lambda h: F.linear(h, w, b),
        "bare": lambda h: F.linear(h, w),
        "addmm": lambda h: torch.addmm(b, h, w.T),
        "einsum": lambda h: torch.einsum("...f,of->...o", h, w),
    }
    if len(m.shapes[h]) > 1 and spelling in ("addmm", "normed"):
        spelling = "functional"
    if spelling == "normed":  # folded into the layer
        norm, _ = batch_norm(m, out)
        return m.add("linear, batch_norm", lambda h: norm(F.linear(h, w, b)), h)
    return m.add(spelling, runs[spelling], h)


def batch_norm(m: Maker, channels: int) -> tuple[Run, str]:
    """A BatchNorm with random statistics: (batch, channels, …)."""
    mean, var, weight, bias = m.normal(channels), m.uniform(channels), m.uniform(channels), m.normal(channels)
    return lambda h: F.batch_norm(h, mean, var, weight, bias), "batch_norm"


ACTIVATIONS: dict[str, tuple[Run, ...]] = {  # each with its spellings; φ(0) = 0
    "relu": (
        F.relu,
        torch.relu,
        lambda h: h.clamp(min=0),
        lambda h: h.clone().relu_(),
        lambda h: h * (h > 0),
        lambda h: torch.where(h > 0, h, torch.zeros_like(h)),
        lambda h: torch.maximum(h, torch.zeros((), dtype=h.dtype)),
        lambda h: h.masked_fill(h < 0, 0.0),
    ),
    "leaky_relu": (lambda h: F.leaky_relu(h, 0.1), lambda h: torch.where(h > 0, h, 0.1 * h)),
    "gelu": (F.gelu, lambda h: F.gelu(h, approximate="tanh")),
    "silu": (F.silu, lambda h: h * torch.sigmoid(h)),
    "tanh": (torch.tanh, lambda h: h.tanh()),
    "square": (torch.square, lambda h: h * h, lambda h: h**2),
    "others": (F.elu, F.celu, F.selu, F.mish, F.hardswish, F.softsign, F.relu6, F.hardtanh, F.tanhshrink, torch.abs),
    "special": (torch.erf, torch.expm1, F.hardshrink, F.softshrink, lambda h: h.clamp(-1, 2), lambda h: 3 * h.tanh()),
    "clamp_max": (lambda h: h.clamp(max=0.7), lambda h: h.clamp_max(0.2)),
}
NOT_ZERO_AT_ZERO: dict[str, tuple[Run, ...]] = {
    "sigmoid": (torch.sigmoid, F.sigmoid, lambda h: h.sigmoid()),
    "softplus": (F.softplus, lambda h: F.softplus(h, beta=2.0)),
    "exp": (torch.exp, lambda h: h.exp(), torch.exp2),
    "hardsigmoid": (F.hardsigmoid,),
    "logsigmoid": (F.logsigmoid,),
    "cos": (torch.cos,),
    "clamp": (lambda h: h.clamp(min=0.3), lambda h: h.clamp(-2.0, -0.2), lambda h: h.clamp_min(0.5)),
}
NOT_FINITE_AT_ZERO: dict[str, tuple[Run, ...]] = {  # below them a positive value
    "log": (torch.log, torch.log2, torch.log10),
    "negative power": (lambda h: h**-1.0, torch.reciprocal, torch.rsqrt),
}


def activation(m: Maker, h: int, odd: float = 0.35) -> int:
    table = NOT_ZERO_AT_ZERO if m.draw.random() < odd else ACTIVATIONS
    name = m.draw.choice(sorted(table))
    run = m.draw.choice(table[name])
    if m.draw.random() < 0.1:
        h = m.add("* 3", lambda h: h * 3.0, h, rule=to_signal())
    return m.add(name, run, h, rule=element(run))


def zero_activation(m: Maker, h: int) -> int:
    return activation(m, h, odd=0.0)


def threshold(m: Maker, h: int) -> int:
    """The element, or a constant where it is small."""
    low, constant = m.draw.choice([(0.5, 20.0), (-0.2, 1.0), (0.1, 0.0)])
    run: Run = m.draw.choice(
        [
            lambda h: F.threshold(h, low, constant),
            lambda h: torch.where(h > low, h, constant),
            nn.Threshold(low, constant),
        ]
    )
    return m.add(f"threshold {low}", run, h, rule=follows(run))


SOFTMAXES: tuple[Run, ...] = (
    lambda h: torch.softmax(h, -1),
    lambda h: h.exp() / h.exp().sum(-1, keepdim=True),
    lambda h: (h - h.amax(-1, keepdim=True)).exp() / (h - h.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True),
    lambda h: (h - torch.logsumexp(h, -1, keepdim=True)).exp(),
)


def without_rule(m: Maker, h: int) -> int:
    """A step that ε has no rule for: log and its like have no share of a constant φ(0); a softmax inside a model."""
    if m.draw.random() < 0.5:
        return m.add("inner softmax", m.draw.choice(SOFTMAXES), h, rule=nothing, hidden=True)
    name = m.draw.choice(sorted(NOT_FINITE_AT_ZERO))
    above = m.add("softplus", F.softplus, h, rule=element(F.softplus))
    return m.add(name, m.draw.choice(NOT_FINITE_AT_ZERO[name]), above, rule=nothing, hidden=True)


# --- steps of (batch, features) ---------------------------------------------------------------------------------------


def held_norm(run: Run, spread: Callable[[Tensor], Tensor]) -> Rule:
    """ε-rule on y = run(x, spread(x)), the spread held constant."""

    def rule(r: Tensor, z: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        held = spread(inputs[0]).detach()
        return proportional(lambda x: run(x, held))(r, z, inputs)

    return rule


def norm(m: Maker, h: int) -> int:
    """LayerNorm, RMSNorm, or a BatchNorm that no layer is below."""
    size = m.shapes[h][-1]
    w, b = m.uniform(size), m.normal(size)
    kind = m.draw.choice(["layer", "rms", "batch"])
    if kind == "batch" and len(m.shapes[h]) == 1:
        run, name = batch_norm(m, size)
        return m.add(name, lambda h: run(1.0 * h), h)  # a factor between: nothing is folded
    if kind == "rms":
        centred: Callable[[Tensor, Tensor], Tensor] = lambda x, s: x / s * w  # noqa: E731
        root: Callable[[Tensor], Tensor] = lambda x: (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()  # noqa: E731
        return m.add("rms_norm", lambda h: F.rms_norm(h, (size,), w, 1e-5), h, rule=held_norm(centred, root))
    affine: Callable[[Tensor, Tensor], Tensor] = lambda x, s: (x - x.mean(-1, keepdim=True)) / s * w + b  # noqa: E731
    std: Callable[[Tensor], Tensor] = lambda x: (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()  # noqa: E731
    return m.add("layer_norm", lambda h: F.layer_norm(h, (size,), w, b), h, rule=held_norm(affine, std))


def arithmetic(m: Maker, h: int) -> int:
    """A constant that is added, subtracted or a factor; or a copy."""
    c = m.normal(m.shapes[h][-1])
    kind = m.draw.choice(["+", "-", "rsub", "*", "/", "neg", "scalar", "copy"])
    runs: dict[str, Run] = {
        "+": lambda h: h + c,
        "-": lambda h: h - c,
        "rsub": lambda h: c - h,
        "*": lambda h: h * c,
        "/": lambda h: h / (c.abs() + 0.5),
        "neg": lambda h: -h,
        "scalar": lambda h: 0.5 + h,
        "copy": lambda h: h.detach().to(h.dtype).contiguous().clone(),
    }
    factor = kind in ("*", "/", "neg", "copy")
    return m.add(f"{kind} constant", runs[kind], h, rule=to_signal() if factor else None)


def moved(m: Maker, h: int) -> int:
    """Elements of each sample that change places, are selected, repeated or padded."""
    size = m.shapes[h][-1]
    places, cut = m.order(size), m.draw.randrange(1, max(2, size))
    runs: dict[str, Run] = {
        "flip": lambda h: h.flip(-1),
        "roll": lambda h: h.roll(cut, -1),
        "index": lambda h: h[..., places],
        "index_select": lambda h: h.index_select(h.dim() - 1, places),
        "gather": lambda h: h.gather(-1, places.expand(h.shape)),
        "cat": lambda h: torch.cat([h[..., cut:], h[..., :cut]], -1),
        "cat of a constant": lambda h: torch.cat([h, torch.ones_like(h[..., :1])], -1),
        "cat of an integer": lambda h: torch.cat([h, torch.full_like(h[..., :1], 3, dtype=torch.long)], -1),
        "stack": lambda h: torch.stack([h, h.flip(-1)], -1).flatten(-2),
        "pad": lambda h: F.pad(h, (1, 1)),
        "pad with 2": lambda h: F.pad(h, (1, 0), value=2.0),
        "repeat": lambda h: h.repeat_interleave(2, -1),
        "view": lambda h: h.reshape(len(h), 1, -1).transpose(1, 2).reshape(h.shape),
        "chunk": lambda h: torch.cat(h.split(cut, -1)[::-1], -1),
        "narrow": lambda h: h.narrow(-1, 0, max(1, cut)),
        "sort": lambda h: h.sort(-1).values,
        "topk": lambda h: h.topk(max(1, size - 1), -1).values,
        "unbind": lambda h: torch.stack(h.unbind(-1)[::-1], -1),
    }
    name = m.draw.choice(sorted(runs))
    return m.add(name, runs[name], h, rule=follows(runs[name]))


def summed(m: Maker, h: int) -> int:
    """Sums of a sample's own elements."""
    w = m.normal(m.shapes[h][-1])
    kind = m.draw.choice(["cumsum", "average", "plus the mean", "less the mean", "plus a weighted sum"])
    if kind == "cumsum":
        return m.add(kind, lambda h: h.cumsum(-1), h)
    if kind == "average":
        return m.add(kind, lambda h: F.avg_pool1d(h.flatten(1)[:, None], 2, 1).flatten(1), h)
    if kind == "plus a weighted sum":
        weighed = m.add("* w", lambda h: h * w, h, rule=to_signal())
        return m.add("h + sum", torch.add, h, m.add("sum", lambda h: h.sum(-1, keepdim=True), weighed))
    mean = m.add("mean", lambda h: h.mean(-1, keepdim=True), h)
    return m.add(f"h {kind}", torch.add if kind == "plus the mean" else torch.sub, h, mean)


def winner(m: Maker, h: int) -> int:
    """The larger of two branches, or a maximum of pairs."""
    if m.draw.random() < 0.5:
        a, b = linear(m, h), linear(m, h)
        return m.add("maximum", torch.maximum, a, b, rule=follows(torch.maximum))
    pooled: Run = lambda h: F.max_pool1d(h.flatten(1)[:, None], 2, 1).flatten(1)  # noqa: E731
    return m.add("max_pool1d", pooled, h, rule=follows(pooled))


def residual(m: Maker, h: int) -> int:
    branch = linear(m, zero_activation(m, linear(m, h)))
    if m.draw.random() < 0.3:
        return m.add("h - f(h)", torch.sub, h, branch)
    return m.add("h + f(h)", torch.add, h, branch)


def gated(m: Maker, h: int) -> int:
    """A signal times a gate, which takes no relevance; or divided by a statistic."""
    signal = linear(m, h)
    size = m.shapes[signal][-1]
    kind = m.draw.choice(["sigmoid", "softmax", "broadcast", "norm", "max", "normalize", "glu"])
    if kind in ("norm", "max"):
        by: Run = (
            (lambda h: h.norm(dim=-1, keepdim=True) + 0.1)
            if kind == "norm"
            else (lambda h: 0.1 + h.abs().amax(-1, True))
        )
        return m.add(f"h / {kind}", lambda h: h / by(h), signal, rule=to_signal())
    if kind == "normalize":
        return m.add(kind, lambda h: F.normalize(h, dim=-1), signal, rule=to_signal())
    if kind == "glu":
        both = linear(m, h, 2 * size)
        half = follows(lambda h: h[..., :size])
        return m.add(kind, lambda h: F.glu(h, -1), both, rule=half)
    other = linear(m, h, 1 if kind == "broadcast" else None)
    function = m.draw.choice(SOFTMAXES) if kind == "softmax" else torch.sigmoid
    gate = m.add(kind, function, other, rule=nothing)
    return m.add("gate", torch.mul, signal, gate, rule=to_signal())


def masked(m: Maker, h: int) -> int:
    """Some features masked by a number of any size, and a step that leaves nothing of it."""
    number = m.draw.choice(MASKS)
    mask = m.some(m.shapes[h][-1])
    additive = torch.where(mask, number, 0.0).to(m.dtype)
    runs: dict[str, Run] = {
        "masked_fill": lambda h: h.masked_fill(mask, number),
        "where": lambda h: torch.where(mask, torch.full((), number, dtype=h.dtype), h),
        "index_fill": lambda h: h.index_fill(h.dim() - 1, mask.nonzero()[:, 0], number),
        "+ mask": lambda h: h + additive,
    }
    name = m.draw.choice(sorted(runs))
    rule = to_signal() if name == "+ mask" else follows(runs[name])
    filled = m.add(f"{name} {number:g}", runs[name], h, rule=rule)
    return filled if number == 0 else unmasked(m, filled)


def unmasked(m: Maker, h: int) -> int:
    """A function that leaves 0 where a value is like −∞, or the largest element."""
    kind = m.draw.choice(["relu", "exp", "sigmoid", "amax"])
    if kind == "amax":
        run: Run = m.draw.choice([lambda h: h.amax(-1, keepdim=True), lambda h: h.max(-1, keepdim=True).values])
        return m.add(kind, run, h, rule=follows(run))
    functions: dict[str, Run] = {"relu": F.relu, "exp": torch.exp, "sigmoid": torch.sigmoid}
    return m.add(kind, functions[kind], h, rule=element(functions[kind]))


def attention(m: Maker, h: int) -> int:
    """Attention over (batch, tokens, features): the softmax is a gate, so relevance goes to the values alone."""
    tokens, size = m.shapes[h]
    q, k, v = (m.normal(size, size, scale=1 / math.sqrt(size)) for _ in range(3))
    mask, number = m.some(tokens), m.draw.choice([value for value in MASKS if value])
    additive = torch.where(mask, number, 0.0).to(m.dtype)
    value = m.add("v", lambda h: h @ v, h)
    scores: Run = lambda h: (h @ q) @ (h @ k).mT / math.sqrt(size)  # noqa: E731
    ways: dict[str, Run] = {
        "no mask": lambda h, v: torch.softmax(scores(h), -1) @ v,
        "masked_fill": lambda h, v: torch.softmax(scores(h).masked_fill(mask, number), -1) @ v,
        "+ mask": lambda h, v: F.softmax(scores(h) + additive, dim=-1).bmm(v),
        "torch": lambda h, v: F.scaled_dot_product_attention(h @ q, h @ k, v),
        "torch, masked": lambda h, v: F.scaled_dot_product_attention(
            h @ q, h @ k, v, attn_mask=~mask.expand(tokens, -1)
        ),
        "torch, + mask": lambda h, v: F.scaled_dot_product_attention(
            h @ q, h @ k, v, attn_mask=additive.expand(tokens, -1)
        ),
    }
    name = m.draw.choice(sorted(ways))
    attended = m.add(f"attention, {name}", ways[name], h, value, rule=proportional(ways[name], 1))
    return m.add("h + attention", torch.add, h, attended) if m.draw.random() < 0.7 else attended


def expert(m: Maker, h: int) -> int:
    """Rows (samples or tokens) with a large first feature go through a layer more; there may be none."""
    size, bound = m.shapes[h][-1], m.draw.choice([-9.0, 0.0, 0.5, 9.0])
    w = m.normal(size, size, scale=1 / math.sqrt(size))

    def run(h: Tensor) -> Tensor:
        rows = h.reshape(-1, size)
        chosen = (rows[:, 0] > bound).nonzero()[:, 0]
        return rows.index_add(0, chosen, F.relu(F.linear(rows[chosen], w))).view(h.shape)

    def rule(r: Tensor, z: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        x = inputs[0]
        inner, share = F.linear(x, w), r / stabilised(z)
        through = (x[..., :1] > bound) * F.relu(inner) * share
        return [x * share + x * ((through / stabilised(inner)) @ w)]

    return m.add(f"expert above {bound:g}", run, h, rule=rule)


VECTOR: tuple[Block, ...] = (
    *(linear, activation, activation, zero_activation, norm, arithmetic, moved, moved, summed),
    *(winner, threshold, residual, residual, gated, gated, masked, masked, expert),
)


# --- below them: (batch, channels, length), (batch, channels, height, width), (batch, tokens, features) ---------------


def grouped_norm(m: Maker, h: int) -> int:
    """GroupNorm with one or all channels in a group (InstanceNorm)."""
    channels = m.shapes[h][0]
    groups = m.draw.choice([1, channels])
    if math.prod(m.shapes[h]) == groups:  # of one number there is no spread
        return h
    w, b = m.uniform(channels), m.normal(channels)
    ones = (1, channels, *(1,) * (len(m.shapes[h]) - 1))

    def parted(x: Tensor) -> Tensor:
        return x.reshape(len(x), groups, -1)

    def affine(x: Tensor, spread: Tensor) -> Tensor:
        centred = (parted(x) - parted(x).mean(2, keepdim=True)) / spread
        return centred.reshape(x.shape) * w.view(ones) + b.view(ones)

    def std(x: Tensor) -> Tensor:
        return (parted(x).var(2, correction=0, keepdim=True) + 1e-5).sqrt()

    if groups == channels and m.draw.random() < 0.5:
        return m.add("instance_norm", lambda h: F.instance_norm(h, weight=w, bias=b), h, rule=held_norm(affine, std))
    return m.add("group_norm", lambda h: F.group_norm(h, groups, w, b), h, rule=held_norm(affine, std))


def convolution(m: Maker, h: int) -> int:
    channels, *space = m.shapes[h]
    axes, out = len(space), m.draw.randint(2, 4)
    groups = channels if m.draw.random() < 0.2 else 1
    out = out if groups == 1 else groups
    kernel, padding = m.draw.choice([(1, 0), (2, 0), (3, 1), (3, 0)])
    kernel = min(kernel, *space)
    w, b = m.normal(out, channels // groups, *[kernel] * axes, scale=0.7), m.normal(out, scale=0.3)
    conv = F.conv1d if axes == 1 else F.conv2d
    stride = m.draw.choice([1, 1, 2])
    plain: Run = lambda h: conv(h, w, b, stride=stride, padding=padding, groups=groups)  # noqa: E731
    kind = m.draw.choice(["plain", "module", "normed", "transposed"])
    if kind == "normed":
        norm, _ = batch_norm(m, out)
        return m.add("conv, batch_norm", lambda h: norm(plain(h)), h)
    if kind == "module":
        layer = (nn.Conv1d if axes == 1 else nn.Conv2d)(channels, out, kernel, stride, padding, groups=groups)
        layer = layer.to(m.dtype)
        layer.weight.data, layer.bias.data = w, b
        return m.add("nn.Conv", m.module(layer), h)
    if kind == "transposed" and groups == 1:
        up, back = (F.conv_transpose1d if axes == 1 else F.conv_transpose2d), w.transpose(0, 1).contiguous()
        return m.add("conv_transpose", lambda h: up(h, back, b), h)
    return m.add("conv", plain, h)


def pooled(m: Maker, h: int) -> int:
    """A pool or an interpolation over space."""
    space = m.shapes[h][1:]
    one = len(space) == 1
    largest, mean = (F.max_pool1d, F.avg_pool1d) if one else (F.max_pool2d, F.avg_pool2d)
    adaptive = F.adaptive_avg_pool1d if one else F.adaptive_avg_pool2d
    if min(space) < 2:
        return h
    kind = m.draw.choice(["max", "padded max", "mean", "adaptive", "nearest", "linear", "flip"])
    runs: dict[str, Run] = {
        "max": lambda h: largest(h, 2),
        "padded max": lambda h: largest(h, 2, 1, 1),
        "mean": lambda h: mean(h, 2, 1),
        "adaptive": lambda h: adaptive(h, 2),
        "nearest": lambda h: F.interpolate(h, scale_factor=2),
        "linear": lambda h: F.interpolate(h, scale_factor=2, mode="linear" if one else "bilinear"),
        "flip": lambda h: F.pad(h.flip(-1), (1, 0)),
    }
    moves = kind in ("max", "padded max", "nearest", "flip")
    return m.add(f"pool: {kind}", runs[kind], h, rule=follows(runs[kind]) if moves else None)


def flattened(m: Maker, h: int) -> int:
    """To (batch, features): a view, a mean or a maximum over space."""
    kind = m.draw.choice(["flatten", "mean", "amax"])
    space = tuple(range(2, len(m.shapes[h]) + 1))
    if kind == "flatten" and math.prod(m.shapes[h]) > 40:
        kind = "mean"
    if kind == "mean":
        return m.add("mean of space", lambda h: h.mean(space), h)
    run: Run = (lambda h: h.flatten(1)) if kind == "flatten" else (lambda h: h.amax(space))
    return m.add(f"{kind} of space", run, h, rule=follows(run))


SPATIAL: tuple[Block, ...] = (convolution, pooled, grouped_norm, activation, zero_activation)
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "vector": ((3,), (4,), (5,), (6,)),
    "sequence": ((2, 6), (3, 7), (4, 5)),
    "image": ((1, 4, 4), (2, 5, 4)),
    "tokens": ((3, 4), (4, 5)),
}


def stem(m: Maker, kind: str, h: int = 0) -> int:
    """From the input, or a value h of its shape, to (batch, features): the first layers, and what stands below them."""
    if m.draw.random() < 0.3:  # normalisation of the input: constants below the first layer are passed
        c, s = m.normal(m.shapes[h][-1]), m.uniform(m.shapes[h][-1])
        h = m.add("x - mean", lambda x: x - c, h, rule=to_signal())
        h = m.add("x / std", lambda x: x / s, h, rule=to_signal())
    if kind == "vector":
        h = linear(m, h, m.draw.randint(3, 6))
        return zero_activation(m, h) if m.draw.random() < 0.5 else h
    if kind == "tokens":
        h = linear(m, h)
        for _ in range(m.draw.randint(1, 2)):
            h = m.draw.choice([attention, attention, norm, activation, residual, masked, expert])(m, h)
            if m.shapes[h][-1] == 1:
                break
        return flattened(m, h)
    h = zero_activation(m, convolution(m, h))
    for _ in range(m.draw.randint(0, 2)):
        h = m.draw.choice(SPATIAL)(m, h)
    return flattened(m, h)
