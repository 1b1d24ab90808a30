"""The search for exemplars: a `plrp.runs.run.Run`, on this machine or on a Ray cluster.

`run.json` describes the search. Each part holds the relevance and activation of all channels for some inputs.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plrp.composites import AUTO, Composite, resolve
from plrp.models.loading import LoadedModel, load
from plrp.models.sources import source_of_module, weights_digest
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.runs.crew import BarWatch
from plrp.runs.digests import text_digest
from plrp.runs.places import Place, RunError
from plrp.runs.ray import sent
from plrp.runs.run import Run, RunLayout, differs_here
from plrp.runs.work import Execution, Tick, Work, by_cause
from plrp.tape.tracing import trace
from plrp.targets import Seed, check_target

from .channels import checked_layers, layer_named, measure, space_of
from .exemplar_results import Exemplars, LayerTotals
from .numbered_inputs import FromPhotographs, NumberedInputs, numbered

COMMAND = "exemplars"
"""The command that wrote a folder, as its `run.json` says."""
UNDECISIVE = ("key", "names", "photographs")
"""Entries of `run.json` that decide no result."""
LAYOUT = RunLayout(
    description="run.json",
    folders={"parts": "npz"},
    words={"digest": "the inputs", "weights_digest": "the weights", "model_digest": "the model"},
    decisive=lambda settings: {name: value for name, value in settings.items() if name not in UNDECISIVE},
)
COLUMNS = ("relevance", "absolute", "activation", "relevant_at", "active_at")


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
    module, inputs = model.module if isinstance(model, LoadedModel) else model, numbered(data, model)
    if out is not None and callable(target) and not isinstance(target, Seed):
        raise TypeError("A stored search needs a target that can be compared: a class, or a seed of plrp.targets.")
    with ExitStack() as scope:
        search = Search(
            module,
            inputs,
            scope.enter_context(tempfile.TemporaryDirectory()) if out is None else out,
            layers=layers,
            target=target,
            composite=composite,
            pruning=pruning,
            part_size=part_size,
            batch_size=batch_size,
        )
        return run_search(search, Execution(show_progress=show_progress, say=say))


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

    def __init__(
        self,
        model: nn.Module,
        inputs: NumberedInputs,
        out: str | Path | Place,
        *,
        layers: Sequence[str] | None,
        target: Any,
        composite: str | Composite,
        pruning: Pruning | Mapping[str, Any] | None,
        part_size: int,
        batch_size: int,
        device: str | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in (("part_size", part_size), ("batch_size", batch_size)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: a whole number from 1.")
        self.model, self.inputs = model if device is None else model.to(device), inputs
        self.device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        self.pruning = Pruning(**pruning) if isinstance(pruning, Mapping) else pruning
        target = target.tolist() if isinstance(target, np.ndarray) else target
        self.target, self.composite, self.part_size, self.batch_size = target, composite, part_size, batch_size
        if self.one_each and len(target) != len(inputs):
            raise ValueError(f"target holds {len(target)} classes for {len(inputs)} inputs: give one each.")
        first = trace(self.model, inputs.batch([0]).to(self.device))
        for one in dict.fromkeys(target) if isinstance(target, list) else [target]:
            check_target(first.output, one)
        self.layers = checked_layers(first, layers)
        self.spaces = {name: list(space_of(layer_named(first, name))) for name in self.layers}
        self.about = dict(about or {})
        self.key = text_digest(json.dumps(self.settings(), sort_keys=True))
        self.run = run_of(out, self.record())

    def part(self, index: int) -> range:
        """The inputs of a part."""
        return range(index * self.part_size, min((index + 1) * self.part_size, len(self.inputs)))

    def settings(self) -> dict[str, Any]:
        """All that decides the results."""
        target = self.target.tolist() if isinstance(self.target, Tensor) else self.target
        return {
            "command": COMMAND,
            "inputs": len(self.inputs),
            "digest": self.inputs.digest(),
            "weights_digest": weights_digest(self.model),
            "model_digest": text_digest(source_of_module(self.model)),
            "layers": self.layers,
            "spaces": self.spaces,
            "target": getattr(target, "__qualname__", repr(target)) if callable(target) else target,
            "composite": self.composite if isinstance(self.composite, str) else repr(self.composite),
            "pruning": None if self.pruning is None else self.pruning.to_dict(),
            "part_size": self.part_size,
            **self.about,
        }

    def record(self) -> dict[str, Any]:
        """All of `run.json`."""
        root = {"photographs": str(self.inputs.root.resolve())} if isinstance(self.inputs, FromPhotographs) else {}
        return {**self.settings(), "key": self.key, "names": self.inputs.names, **root}

    def do(self, index: int, tick: Tick = lambda kind, count: None) -> None:
        """Explain the inputs of a part, and store the relevance and activation of each channel."""
        numbers = self.part(index)
        columns: dict[str, list[np.ndarray]] = {}
        for begin in range(0, len(numbers), self.batch_size):
            some = numbers[begin : begin + self.batch_size]
            x = self.inputs.batch(some).to(self.device)
            traced = trace(self.model, x)
            layers, classes = measure(
                traced, self.layers, self._target(some), resolve(self.composite, [x], traced), self.pruning
            )
            known = classes.cpu().numpy() if isinstance(classes, Tensor) else np.full(len(some), -1, np.int64)
            columns.setdefault("classes", []).append(known)
            for layer, channels in layers.items():
                for name in COLUMNS:
                    columns.setdefault(f"{name}:{layer}", []).append(getattr(channels, name).numpy())
            tick(str(index), len(some))
        content = io.BytesIO()
        whole: dict[str, Any] = {name: np.concatenate(arrays) for name, arrays in columns.items()}
        np.savez_compressed(content, **whole)
        self.run.write(index, content.getvalue())

    def work(self, working_dir: str | None = None) -> Work:
        """The search as a message to other processes, if it can be sent."""
        raise TypeError("A module cannot be sent to other processes: name the model, and a folder of photographs.")

    @property
    def one_each(self) -> bool:
        """Whether the target names a class for every input."""
        return isinstance(self.target, list) or (isinstance(self.target, Tensor) and self.target.dim() == 1)

    def _target(self, some: Sequence[int]) -> Any:
        if isinstance(self.target, Seed):
            return self.target.of(torch.tensor(list(some)))
        if isinstance(self.target, Tensor):
            return self.target[list(some)] if self.one_each else self.target
        return [self.target[n] for n in some] if self.one_each else self.target


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
        **options: Any,
    ) -> None:
        loaded = load(model, weights=weights, quiet=True)
        self.categories = loaded.categories
        self.arguments = {"model": model, "weights": weights, "root": root, "out": out, "device": device, **options}
        about = {"model": loaded.name, "weights": loaded.weights}
        super().__init__(loaded.module, numbered(root, loaded), out, device=device or "cpu", about=about, **options)
        if expected is not None and self.key != expected:
            raise differs_here("photographs, weights or code", "the search")

    def work(self, working_dir: str | None = None) -> Work:
        """The search as a message to other processes."""
        names = ["root"]
        names += ["weights"] if Path(self.arguments["weights"] or "").is_file() else []  # not a published name
        names += ["model"] if ".py:" in self.arguments["model"] else []
        paths = {name: sent(self.arguments[name], working_dir) for name in names}
        pruning = None if self.pruning is None else self.pruning.to_dict()
        options = {"out": self.run.place.address, "pruning": pruning, "expected": self.key}
        return Work("plrp.concepts.search:PhotographSearch", {**self.arguments, **paths, **options})


def run_search(search: Search, execution: Execution) -> Exemplars:
    """Make the missing parts of a search, here or on a cluster, and gather all of them."""
    run, say = search.run, execution.say
    sizes = [len(search.part(index)) for index in range(run.parts)]
    with run.session():
        run.begin(search.record(), say)
        whole = run.whole(range(run.parts), say)
        missing = [index for index in range(run.parts) if index not in whole]
        before = sum(sizes[index] for index in whole)
        with progress("searching exemplars", sum(sizes), execution.show_progress, done=before) as step:
            failures = run.make(search, missing, BarWatch(sizes, step, say), search.work, execution)
        if failures:
            causes = by_cause(failures).rstrip(".")
            damaged = all(failure.kind == "BadImage" for failure in failures)
            again = "Remove or repair these files, and search anew into another folder."
            raise RunError(
                f"{len(failures)} of {run.parts} parts failed: {causes}. "
                f"{again if damaged else 'Start again to retry.'}"
            )
        return gather(run, search.record())


def run_of(out: str | Path | Place, settings: Mapping[str, Any]) -> Run:
    """The run of a search, by the entries of its `run.json`."""
    parts = -(-settings["inputs"] // settings["part_size"])
    return Run(out, LAYOUT, parts, lambda index: str(settings["key"]))


def gather(run: Run, settings: Mapping[str, Any]) -> Exemplars:
    """All parts of a search together."""
    names = run.names()
    if len(names) < run.parts:
        raise RunError(f"{run.place} holds {len(names)} of {run.parts} parts: start the search again to finish it.")
    columns: dict[str, list[np.ndarray]] = {}
    for part in names.values():
        with np.load(io.BytesIO(run.read(part))) as arrays:
            for name in arrays.files:
                columns.setdefault(name, []).append(arrays[name])
    whole = {name: np.concatenate(arrays) for name, arrays in columns.items()}
    layers = {
        layer: LayerTotals(
            **{name: whole[f"{name}:{layer}"] for name in COLUMNS}, space=tuple(settings["spaces"][layer])
        )
        for layer in settings["layers"]
    }
    about = {name: value for name, value in settings.items() if name not in ("key", "names")}
    return Exemplars(layers, settings["names"], whole["classes"], about)


def load_exemplars(out: str | Path | Place) -> Exemplars:
    """The exemplars in a folder of a finished search."""
    run = Run(out, LAYOUT)
    if not run.place.exists(LAYOUT.description):
        raise RunError(f"{run.place} holds no exemplars: it has no {LAYOUT.description}.")
    settings = run.description()
    if settings.get("command") != COMMAND:
        raise RunError(f"{run.place} holds another run, no exemplars: name a folder that plrp exemplars has written.")
    return gather(run_of(out, settings), settings)
