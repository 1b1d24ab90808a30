"""Score, probability and decision of a recorded pass with some neurons of its pruned tensors ablated.

The tape is replayed. A neuron outside of the masks is replaced for all of its readers; a neuron inside is recomputed
from the neurons left below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .conditions import gradients
from .progress import progress
from .pruning import Pruning, Site
from .request import pieces, some
from .tape.difference import DifferenceTrace, DifferenceValue
from .tape.refusals import check_inputs
from .tape.replay import replay
from .tape.trace import Trace
from .tape.values import Value
from .targets import Start

ABLATIONS = ("zero", "mean", "resample")
CURVE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # the shares of neurons of MIB's curves


class Answer(NamedTuple):
    """The answer of a network, whole or in part; each is (batch,).

    `decision` is 1 where the winner is that of the whole network. Probability and decision are NaN where the output has
    no classes.
    """

    score: Tensor
    probability: Tensor
    decision: Tensor


class Ablation:
    """A recorded pass whose pruned tensors, `sites`, may be ablated neuron by neuron.

    `classes`: the axis of the classes in an output with more axes than (batch, classes). `fills`: the values for
    ablated neurons, by the site's name, (draws, neurons of a sample) or (draws, batch, neurons); None is zero. Masks,
    activations and ranks of a site are (batch, neurons of a sample), as its `Samples.rows` has them.
    """

    def __init__(
        self,
        trace: Trace,
        start: Start,
        sites: Sequence[Site],
        *,
        classes: int | None = None,
        fills: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.trace, self.start, self.sites, self.fills = trace, start, list(sites), fills
        self.reading = _Reading(trace, start, classes)
        self.draws = 1 if fills is None else min((len(fill) for fill in fills.values()), default=1)

    def activations(self) -> list[Tensor]:
        """The activations of each site's neurons in the recorded pass."""
        return [site.activations for site in self.sites]

    def gradients(self) -> list[Tensor]:
        """The gradient of the score with respect to each neuron of each site."""
        with torch.inference_mode(False), torch.no_grad():
            slopes = gradients(self.start, [site.value for site in self.sites])
        return [site.value.samples.rows(slopes[id(site.value)]) for site in self.sites]

    def outcome(self, masks: Sequence[Tensor], draw: int = 0) -> Answer:
        """The answer with all but the neurons of `masks` ablated; `draw` chooses among the fills."""
        changes = {}
        for site, mask in zip(self.sites, masks, strict=True):
            fill = None if self.fills is None else self.fills[site.name][draw]
            changes[id(site.value)] = keeping(site.value, mask, fill)
        with torch.inference_mode(False), torch.no_grad():
            return self.reading.of(replay(self.start.ops, self.reading.values, changes))

    def whole(self) -> Answer:
        """The answer with nothing ablated."""
        return self.reading.of([value.data for value in self.reading.values])

    def nothing(self, draw: int = 0) -> Answer:
        """The answer with every neuron of the pruned tensors ablated."""
        return self.outcome([torch.zeros_like(rows, dtype=torch.bool) for rows in self.activations()], draw)


class Curve(NamedTuple):
    """How much of the score circuits of growing size keep: the faithfulness curve of MIB (Mueller et al. 2025).

    - `shares`: k, the share of the neurons of all pruned tensors that stay;
    - `kept`: f(k) = (m(C_k) − m(∅)) / (m(N) − m(∅)), m the explained score;
    - `cpr`: ∫ f dk, more is better: the circuit's performance. `cmd`: ∫ |1 − f| dk, less is better: its distance from
      the model. By trapezoids over the shares, (batch,).
    """

    shares: tuple[float, ...]
    kept: Tensor  # (shares, batch)
    cpr: Tensor
    cmd: Tensor


def curve(ablation: Ablation, ranks: Sequence[Tensor], shares: Sequence[float] = CURVE, draw: int = 0) -> Curve:
    """The curve of a ranking of all neurons, one (batch, neurons) per site; the highest stay, across all tensors."""
    if list(shares) != sorted(shares) or not shares or not 0 < shares[0] <= shares[-1] <= 1:
        raise ValueError(f"shares are those of the neurons that stay, ascending in (0, 1], got {tuple(shares)}.")
    joined, sizes = torch.cat(list(ranks), 1), [rank.shape[1] for rank in ranks]
    none, whole = ablation.nothing(draw).score.double(), ablation.whole().score.double()
    kept = []
    for share in shares:
        count = round(share * joined.shape[1])
        masks = torch.stack([strongest(row, count, least=-torch.inf) for row in joined]).split(sizes, 1)
        kept.append((ablation.outcome(masks, draw).score.double() - none) / (whole - none))
    f, k = torch.stack(kept), torch.tensor(shares, dtype=torch.float64)
    cpr, cmd = (torch.trapezoid(values, k.to(values.device), dim=0) for values in (f, (1 - f).abs()))
    return Curve(tuple(shares), f, cpr, cmd)


def keeping(value: Value, mask: Tensor, fill: Tensor | None) -> Callable[[Tensor], Tensor]:
    """The change of a value that leaves the neurons of `mask` alone and sets the others to `fill`, or to zero.

    Both are (batch, neurons of a sample), or those of one sample for all.
    """
    samples, shape = value.samples, value.shape
    neurons = samples.rows(torch.zeros(shape, dtype=torch.bool)).shape
    stays = samples.unrows(mask.expand(neurons), shape)

    def change(tensor: Tensor) -> Tensor:
        if fill is None:
            return torch.where(stays, tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device))
        return torch.where(stays, tensor, samples.unrows(fill.to(tensor).expand(neurons), shape))

    return change


def strongest(row: Tensor, count: int, least: float = 0.0) -> Tensor:
    """The mask of the `count` entries of a row with the highest ranks > `least`; of ties, the first."""
    above = row[row > least]
    if count >= len(above):
        return row > least
    if count == 0:
        return torch.zeros_like(row, dtype=torch.bool)
    last = len(above) - count  # selection, not sorting: numpy's is several times torch's on a CPU
    lowest = float(np.partition(above.numpy(), last)[last]) if row.is_cpu else above.kthvalue(last + 1).values
    mask = row > lowest
    mask[(row == lowest).nonzero()[: count - int(mask.sum()), 0]] = True
    return mask


def pruned_sites(trace: Trace, pruning: Pruning, reached: Mapping[str, Any]) -> list[Site]:
    """The pruned tensors that relevance has `reached`, by the names of the layers that read them; input first."""
    return [
        site for site in pruning.plan(trace).values() if site.cuts and any(op.name in reached for op in site.readers)
    ]


def reference_fills(sites: Sequence[Site]) -> dict[str, Tensor]:
    """The activations of the reference at these sites, (1, batch, neurons)."""
    values = {site.name: site.value.before for site in sites if isinstance(site.value, DifferenceValue)}
    return {name: value.samples.rows(value.data)[None] for name, value in values.items()}


def fills_from(
    trace: Trace, sites: Sequence[Site], ablate: str, data: Any, draws: int, seed: int, batch_size: int
) -> dict[str, Tensor] | None:
    """The values for ablated neurons, by site: None for zero, but the reference's of a difference; their mean over the
    data (1, neurons); or their values for `draws` of its samples (draws, neurons).
    """
    if ablate not in ABLATIONS:
        raise ValueError(f"ablate is 'zero', 'mean' or 'resample', got {ablate!r}.")
    if ablate == "zero":
        if data is not None:
            raise ValueError("data= is for ablate='mean' and 'resample': name one of them, or leave data= out.")
        return reference_fills(sites) if isinstance(trace, DifferenceTrace) else None
    if data is None:
        raise ValueError(f"ablate='{ablate}' takes its replacements from other inputs: give some as data=.")
    if trace.samples != 0:
        raise ValueError(f"ablate='{ablate}' needs a batch axis, which this model does not have: take 'zero'.")
    number = check_inputs(data)[0].shape[0]
    if not number:
        raise ValueError("data holds no sample.")
    resamples = ablate == "resample"
    if resamples:
        data = some(data, torch.randint(number, (draws,), generator=torch.Generator().manual_seed(seed)))
    sizes = {site.name: site.activations.shape[1] for site in sites}
    collected: dict[str, list[Tensor]] = {name: [] for name in sizes}
    for part in passes(trace.now, data, batch_size, "running the data"):
        for site in planned(part, sizes):
            rows = site.activations
            collected[site.name].append(rows if resamples else rows.sum(0, keepdim=True, dtype=torch.float64))
    fills = {name: torch.cat(rows) for name, rows in collected.items()}
    return fills if resamples else {name: rows.sum(0, keepdim=True) / number for name, rows in fills.items()}


def planned(trace: Trace, sizes: Mapping[str, int]) -> list[Site]:
    """The sites of another pass of the same model, those named in `sizes`, with as many neurons each."""
    sites = {site.name: site for site in Pruning().plan(trace).values()}
    for name, size in sizes.items():
        if name not in sites:
            raise ValueError(f"The model takes another way for these inputs: it does not reach layer '{name}'.")
        neurons = sites[name].activations.shape[1]
        if neurons != size:
            raise ValueError(
                f"A circuit is made of single neurons: '{name}' reads {size} of them for the explained input and "
                f"{neurons} for these; give inputs of the same size."
            )
    return [sites[name] for name in sizes]


def passes(trace: Trace, inputs: Any, batch_size: int, label: str) -> Iterator[Trace]:
    """The model of a trace recorded on other inputs, some at a time."""
    parts = [inputs] if trace.samples != 0 else [given for _, given in pieces(inputs, batch_size)]
    with progress(label, len(parts), None if len(parts) > 1 else False, transient=True) as step:
        for given in parts:
            yield trace.with_inputs(given)
            step(1)


class _Reading:
    """Score, probability and winner of an output: which values they are read from, and how."""

    def __init__(self, trace: Trace, start: Start, classes: int | None) -> None:
        self.start = start
        output = trace.value_of(trace.output) if isinstance(trace.output, Tensor) else None
        self.values = [start.value] if output is None or output is start.value else [start.value, output]
        self.pick = None if output is None else _picker(output.shape, start.target, classes, trace.samples is None)
        logits = None if self.pick is None else self.pick(self.values[-1].data)
        self.single = trace.head in ("sigmoid", "logsigmoid") or (logits is not None and logits.shape[1] == 1)
        self.winner = None if logits is None else logits.argmax(1)
        self.number: Tensor | None = None  # the class that is explained, (batch,)
        if logits is not None and not self.single:
            equal = logits == start.score_of(start.value.data)[:, None]
            if bool((equal.sum(1) == 1).all()):
                self.number = equal.long().argmax(1)

    def of(self, tensors: Sequence[Tensor]) -> Answer:
        """The network's score if its `values` are these tensors."""
        score = self.start.score_of(tensors[0])
        unknown = torch.full_like(score, torch.nan)
        if self.single:
            before = self.start.score.to(score) > 0
            return Answer(score, score.sigmoid(), ((score > 0) == before).to(score))
        if self.pick is None or self.winner is None:
            return Answer(score, unknown, unknown)
        logits = self.pick(tensors[-1])
        same = (logits.argmax(1) == self.winner).to(score)
        if self.number is None:
            return Answer(score, unknown, same)
        return Answer(score, logits.softmax(1).gather(1, self.number[:, None])[:, 0], same)


def _picker(shape: torch.Size, target: Any, classes: int | None, whole: bool) -> Callable[[Tensor], Tensor] | None:
    """How to read the scores of the competing classes (batch, classes) off an output; None where that is not known."""
    axes = list(shape if whole else shape[1:])  # those of a sample
    if classes is not None:
        dims = len(shape)
        if not -dims <= classes < dims or (not whole and classes % dims == 0):
            raise ValueError(f"classes={classes} is no axis of classes in an output of shape {tuple(shape)}.")
        axis = classes % dims - (not whole)
    else:
        wide = [n for n, size in enumerate(axes) if size > 1]
        if len(wide) > 1:
            return None
        axis = wide[0] if wide else len(axes) - 1
    if axis < 0:  # one score per sample
        return lambda output: output.reshape(-1, 1)
    if isinstance(target, tuple):
        place = tuple(i for n, i in enumerate(target) if n != axis)
    elif all(size == 1 for n, size in enumerate(axes) if n != axis):
        place = (0,) * (len(axes) - 1)
    else:
        return None

    def pick(output: Tensor) -> Tensor:
        output = output[None] if whole else output
        return output.movedim(axis + 1, -1)[(slice(None), *place)]

    return pick
