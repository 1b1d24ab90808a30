"""The search for exemplars: a `plrp.runs.run.Run`, on this machine or on a Ray cluster.

`run.json` describes the search. Each part holds the relevance and activation of all channels for some inputs, or
activations and contexts at some positions, of which `relevant_subspaces.py` makes subspaces.
"""

from __future__ import annotations

import io
import json
import math
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from plrp.composites import AUTO, Composite
from plrp.conditions import by_channel
from plrp.contexts import ReadOutput
from plrp.engine import choose_walk
from plrp.models.loading import LoadedModel, load
from plrp.models.sources import source_of_module, weights_digest
from plrp.passage import Record
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.request import Request
from plrp.runs.crew import BarWatch
from plrp.runs.places import Place, RunError
from plrp.runs.ray import sent
from plrp.runs.run import Run, RunLayout, differs_here, text_digest
from plrp.runs.work import Execution, Tick, Work, by_cause
from plrp.spelling import nearest
from plrp.tape.refusals import device_of
from plrp.tape.trace import Trace
from plrp.tape.values import Op, Value, reached
from plrp.tape.verification import trace
from plrp.targets import Seed, as_target, check_target

from .exemplar_results import Exemplars, LayerTotals
from .numbered_inputs import FromPhotographs, NumberedInputs, numbered

COMMAND, CONTEXTS = "exemplars", "contexts"  # the work that filled a folder, as its `run.json` says
UNDECISIVE = ("key", "names", "photographs")  # entries of `run.json` that decide no result
LAYOUT = RunLayout(
    description="run.json",
    folders={"parts": "npz"},
    words={"digest": "the inputs", "weights_digest": "the weights", "model_digest": "the model"},
    decisive=lambda settings: {name: value for name, value in settings.items() if name not in UNDECISIVE},
)
POSITIONS = 64  # of each input, at which contexts are stored
T = TypeVar("T")
COLUMNS = [column.name for column in fields(LayerTotals) if column.name != "space"]


def exemplars(
    model: nn.Module | LoadedModel,
    data: Any,
    layers: Sequence[str] | None = None,
    *,
    target: Any = None,
    composite: str | Composite = AUTO,
    pruning: Pruning | None = None,
    out: str | Path | Place | None = None,
    part_size: int = 64,
    batch_size: int = 8,
    show_progress: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Exemplars:
    """For each channel of some layers, the inputs that gave it most relevance, and most activation.

    data: a tensor (samples, …), a data set with `len` and `[i]`, or the path of a folder of photographs (with a
        `plrp.models.load`ed model, whose preprocessing they get).
    layers: by name (None: all); a channel is one of the layer's *output*, as in `condition={layer: [channel]}`.
    target: as in `plrp.explain`; by default each input's winning class.
    out: a folder to store the work in, part by part; the same call resumes it. Without one, nothing is stored.

    The result holds 20 bytes per input and channel. The work is done where the model is.

    >>> import plrp, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).eval()
    >>> exemplars = plrp.exemplars(model, torch.randn(20, 4), ["0"], show_progress=False)
    >>> exemplars["0"].relevance.shape
    (20, 3)
    """
    explained = {"layers": layers, "target": target, "composite": composite, "pruning": pruning}
    with searching(model, data, out, **explained, part_size=part_size, batch_size=batch_size) as search:
        return run_search(search, Execution(show_progress=show_progress, say=say), gather)


@contextmanager
def searching(
    model: nn.Module | LoadedModel, data: Any, out: str | Path | Place | None, **options: Any
) -> Iterator[Search]:
    """A search with the `options` of `Search`; without a place, its parts are stored only within this context."""
    module, inputs = model.module if isinstance(model, LoadedModel) else model, numbered(data, model)
    target_entry(options.get("target"), len(inputs), out)
    with ExitStack() as scope:
        place = scope.enter_context(tempfile.TemporaryDirectory()) if out is None else out
        yield Search(module, inputs, place, **options)


def target_entry(target: Any, count: int, out: Any = None) -> Any:
    """The target of so many inputs as `run.json` holds it; `out`: the user's folder, which takes no function."""
    given = as_target(target).given
    if out is not None and callable(given) and not isinstance(given, Seed):
        raise TypeError("A stored search needs a target that can be compared: a class, or a seed of plrp.targets.")
    as_target(target).check_batch(count)
    classes = given.tolist() if isinstance(given, Tensor) else given
    return getattr(given, "__qualname__", repr(given)) if callable(given) else classes


def neuron_relevance(
    model: nn.Module | LoadedModel, data: Any, layers: Sequence[str] | None = None, **options: Any
) -> Any:
    """The relevance of every channel over a data set, as a table: a list of records that pandas takes as it is.

    `share` is a channel's part of its layer's Σ|R| over all inputs, as Yeom et al. (2021) rank neurons; `mean` its mean
    relevance, `inputs` in how many it holds any. Arguments are those of `exemplars`.
    """
    return exemplars(model, data, layers, **options).table()


class Search:
    """A model, numbered inputs, and the settings of the search; on this machine or on a worker."""

    doing = "searching"

    def __init__(
        self,
        model: nn.Module,
        inputs: NumberedInputs,
        out: str | Path | Place,
        *,
        layers: Sequence[str] | None,
        target: Any = None,
        composite: str | Composite = AUTO,
        pruning: Pruning | Mapping[str, Any] | None = None,
        part_size: int = 64,
        batch_size: int = 8,
        device: str | None = None,
        about: Mapping[str, Any] | None = None,
        positions: int | None = None,
    ) -> None:
        """positions: of each input, at which activations and contexts of one layer are stored, instead of channels."""
        for name, value in (("part_size", part_size), ("batch_size", batch_size), ("positions", positions)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}={value!r}: a whole number from 1.")
        self.model, self.inputs = model if device is None else model.to(device), inputs
        self.device = device_of(self.model)
        self.part_size, self.batch_size = part_size, batch_size
        pruning = Pruning(**pruning) if isinstance(pruning, Mapping) else pruning
        self.request = Request(target=target, composite=composite, pruning=pruning)
        given, entry = self.request.target.given, target_entry(self.request.target, len(inputs))
        first = trace(self.model, inputs.batch([0]).to(self.device))
        for one in dict.fromkeys(entry) if isinstance(given, Tensor) else [given]:
            check_target(first.output, one)
        self.layers, self.positions = checked_layers(first, layers), positions
        spaces = {name: space_of(layer_named(first, name)) for name in self.layers}
        if positions is not None:
            a, *_ = contexts(first, self.layers[0], self.request.of(slice(0, 1)))
            spaces, self.channels = {self.layers[0]: tuple(a.shape[2:])}, a.shape[1]
            self.vectors = len(inputs) * min(positions, math.prod(a.shape[2:]))
        root = {"photographs": str(inputs.root.resolve())} if isinstance(inputs, FromPhotographs) else {}
        settings = {
            "command": COMMAND if positions is None else CONTEXTS,
            "inputs": len(inputs),
            "digest": inputs.digest(),
            "weights_digest": weights_digest(self.model),
            "model_digest": text_digest(source_of_module(self.model)),
            "layers": self.layers,
            "spaces": {name: list(space) for name, space in spaces.items()},
            "target": entry,
            "composite": composite if isinstance(composite, str) else repr(composite),
            "pruning": None if pruning is None else pruning.to_dict(),
            "part_size": part_size,
            **({} if positions is None else {"positions": positions}),
            **(about or {}),
        }  # all that decides the results
        self.key = text_digest(json.dumps(settings, sort_keys=True))
        self.record = {**settings, "key": self.key, "names": inputs.names, **root}  # all of `run.json`
        self.run = run_of(out, self.record)

    def part(self, index: int) -> range:
        """The inputs of a part."""
        return range(index * self.part_size, min((index + 1) * self.part_size, len(self.inputs)))

    def do(self, index: int, tick: Tick = lambda kind, count: None) -> None:
        """Explain the inputs of a part, and store the relevance and activation of each channel."""
        numbers = self.part(index)
        batches = []
        for begin in range(0, len(numbers), self.batch_size):
            some = numbers[begin : begin + self.batch_size]
            traced = trace(self.model, self.inputs.batch(some).to(self.device))
            request = self.request.of(slice(some.start, some.stop))
            if self.positions is None:
                layers, classes = measure(traced, self.layers, request)
                columns = {f"{name}:{layer}": getattr(layers[layer], name) for layer in layers for name in COLUMNS}
            else:
                a, c, classes = contexts(traced, self.layers[0], request)
                columns = drawn(a, c, traced.inputs[0].data, self.positions)
            known = classes.cpu().numpy() if isinstance(classes, Tensor) else np.full(len(some), -1, np.int64)
            batches.append({"classes": known, **columns})
            tick(str(index), len(some))
        content = io.BytesIO()
        np.savez_compressed(content, **_joined(batches))
        self.run.write(index, content.getvalue())

    def work(self, working_dir: str | None = None) -> Work:
        """The search as a message to other processes, if it can be sent."""
        raise TypeError("A module cannot be sent to other processes: name the model, and a folder of photographs.")


class PhotographSearch(Search):
    """A search by names, for workers and the command line: of a model, and of a folder of photographs."""

    def __init__(
        self,
        model: str,
        weights: str | None,
        root: str,
        out: str,
        device: str | None,
        expected: str | None = None,
        about: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        loaded = load(model, weights=weights, quiet=True)
        self.categories = loaded.categories
        about = about or {"model": loaded.name, "weights": loaded.weights}  # workers have the command's own names
        given = {"model": model, "weights": weights, "root": root, "out": out, "device": device, "about": about}
        self.arguments = {**given, **options}
        super().__init__(loaded.module, numbered(root, loaded), out, device=device or "cpu", about=about, **options)
        if expected is not None and self.key != expected:
            raise differs_here("photographs, weights or code", "the search")

    def work(self, working_dir: str | None = None) -> Work:
        """The search as a message to other processes."""
        names = ["root"]
        names += ["weights"] if Path(self.arguments["weights"] or "").is_file() else []  # not a published name
        names += ["model"] if ".py:" in self.arguments["model"] else []
        paths = {name: sent(self.arguments[name], working_dir) for name in names}
        options = {"out": self.run.place.address, "pruning": self.record["pruning"], "expected": self.key}
        return Work("plrp.concepts.search:PhotographSearch", {**self.arguments, **paths, **options})


def run_search(search: Any, execution: Execution, gathered: Callable[[Run, Mapping[str, Any]], T]) -> T:
    """Make the missing parts of a search, here or on a cluster, and gather all of them."""
    run, say = search.run, execution.say
    sizes = [len(search.part(index)) for index in range(run.parts)]
    with run.session():
        run.begin(search.record, say)
        whole = run.whole(range(run.parts), say)
        missing = [index for index in range(run.parts) if index not in whole]
        before = sum(sizes[index] for index in whole)
        title = f"{search.doing} {search.record['command']}"
        with progress(title, sum(sizes), execution.show_progress, done=before) as step:
            failures = run.make(search, missing, BarWatch(sizes, step, say), search.work, execution)
        if failures:
            damaged = all(failure.kind == "BadImage" for failure in failures)
            again = "Remove or repair these files, and search anew into another folder."
            causes = f"{len(failures)} of {run.parts} parts failed: {by_cause(failures).rstrip('.')}."
            raise RunError(f"{causes} {again if damaged else 'Start again to retry.'}")
        return gathered(run, search.record)


def run_of(out: str | Path | Place, settings: Mapping[str, Any]) -> Run:
    """The run of a search, by the entries of its `run.json`."""
    parts = -(-settings["inputs"] // settings["part_size"])
    return Run(out, LAYOUT, parts, lambda index: str(settings["key"]))


def whole_arrays(run: Run) -> dict[str, Any]:
    """The arrays of all parts of a search, by name."""
    names = run.names()
    if len(names) < run.parts:
        raise RunError(f"{run.place} holds {len(names)} of {run.parts} parts: start the search again to finish it.")
    parts = []
    for part in names.values():
        with np.load(io.BytesIO(run.read(part))) as arrays:
            parts.append(dict(arrays))
    return _joined(parts)


def gather(run: Run, settings: Mapping[str, Any]) -> Exemplars:
    """All parts of a search together."""
    whole, spaces = whole_arrays(run), settings["spaces"]
    arrays = {layer: {name: whole[f"{name}:{layer}"] for name in COLUMNS} for layer in settings["layers"]}
    layers = {layer: LayerTotals(**own, space=tuple(spaces[layer])) for layer, own in arrays.items()}
    about = {name: value for name, value in settings.items() if name not in ("key", "names")}
    return Exemplars(layers, settings["names"], whole["classes"], about)


def _joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """The arrays of all parts by name, each the parts' own one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def load_exemplars(out: str | Path | Place) -> Exemplars:
    """The exemplars in a folder of a finished search."""
    run = Run(out, LAYOUT)
    if not run.place.exists(LAYOUT.description):
        raise RunError(f"{run.place} holds no exemplars: it has no {LAYOUT.description}.")
    settings = run.description()
    if settings.get("command") != COMMAND:
        raise RunError(f"{run.place} holds another run, no exemplars: name a folder that plrp exemplars has written.")
    return gather(run_of(out, settings), settings)


def checked_layers(traced: Trace, layers: Sequence[str] | None) -> list[str]:
    """The names asked for, or those of all layers; refuses a name that the model does not have."""
    names = [op.name for op in traced.layers]
    if isinstance(layers, str):
        raise TypeError(f"layers is a list of names: write layers=[{layers!r}].")
    for name in layers or ():
        if name not in names:
            raise ValueError(f"The model has no conv or linear layer '{name}'{nearest(name, names)}.")
    return names if layers is None else list(layers)


def measure(traced: Trace, layers: Sequence[str], request: Request) -> tuple[dict[str, LayerTotals], Any]:
    """The channels of some layers by name, over the inputs of one batch, and the explained classes."""
    ops = {op.name: op for op in traced.layers}
    record = Record([ops[name].output for name in layers], factors=False)
    walk = choose_walk(traced, request.bound(traced), record=record)
    walk.run()
    channels = {}
    for name in layers:
        op, output = ops[name], ops[name].output
        arrived = record.relevance.get(id(output))  # None if no relevance reached it
        both = (torch.zeros_like(output.data) if arrived is None else arrived, output.data)
        relevance, activation = (by_channel(one, op).flatten(2) for one in both)
        channels[name] = totals_of(relevance, activation, space_of(op))
    return channels, walk.start.target


def totals_of(relevance: Tensor, activation: Tensor, space: tuple[int, ...]) -> LayerTotals:
    """The totals over positions of the channels of some inputs, (inputs, channels, positions)."""
    relevance, activation = relevance.detach().float(), activation.detach().float()
    columns = {
        "relevance": relevance.sum(2),
        "absolute": relevance.abs().sum(2),
        "activation": activation.amax(2),
        "relevant_at": relevance.argmax(2).int(),
        "active_at": activation.argmax(2).int(),
    }
    return LayerTotals(**{column: values.cpu().numpy() for column, values in columns.items()}, space=space)


def drawn(a: Tensor, c: Tensor, inputs: Tensor, positions: int) -> dict[str, Any]:
    """Activations and contexts at random positions of each input, (inputs, positions, channels), and these positions.

    The seed is a hash of the input, so that the order of the data does not matter.
    """
    a, c = (vectors.flatten(2).mT.float().cpu() for vectors in (a, c))
    seeds = [zlib.crc32(x.detach().cpu().numpy().tobytes()) for x in inputs]
    at = np.stack([np.random.default_rng(seed).permutation(a.shape[1])[:positions] for seed in seeds])
    rows = np.arange(len(at))[:, None]
    return {"activation": a.numpy()[rows, at], "context": c.numpy()[rows, at], "at": at.astype(np.int32)}


def layer_named(traced: Trace, name: str) -> Op:
    """A conv or linear layer."""
    return next(op for op in traced.layers if op.name == name)


def space_of(op: Op) -> tuple[int, ...]:
    """The positions of a layer's output: (height, width), (length,), (tokens,); (1,) where it has none."""
    return tuple(by_channel(op.output.data, op).shape[2:])


def contexts(traced: Trace, layer: str, request: Request) -> tuple[Tensor, Tensor, Any]:
    """Activations that are read after a layer and their contexts, (batch, channels, *positions); explained classes."""
    bound, op, record = request.bound(traced), layer_named(traced, layer), Record([])
    walk, products = choose_walk(traced, bound, record=record), bound.composite.products
    live = {id(op) for op in reached(walk.start.ops, [walk.start.value], products)}
    if id(op) not in live:
        raise ValueError(f"No relevance reaches layer '{layer}' from this target: name another layer.")
    output = ReadOutput(op, live, products)
    record.watched.update(id(value) for value in (output.value, *output.watched(output.value)))

    def above(value: Value) -> Any:  # relevance stops at the layer
        relevance = walk.collect(value)
        return None if value is output.value else relevance

    walk.run(above)
    relevance = record.relevance.get(id(output.value), torch.zeros(()))
    a, c = (by_channel(vectors, op) for vectors in output.vectors(walk, relevance))
    return a, c, walk.start.target
