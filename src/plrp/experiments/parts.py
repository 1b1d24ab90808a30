"""The parts of a sweep: what workers are told, what they do with it, and who makes the parts."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from plrp.runs.digests import Digests
from plrp.runs.parts import Failure, Tick, Work
from plrp.runs.places import Place, RunError
from plrp.runs.ray import RayCluster, inside

from .config import Config
from .measure import Bench
from .networks import resolved_model, threads_set
from .store import Store
from .watch import SweepWatch

CHECKED = 100_000
"""Samples up to which a worker makes sure that it has the same ones: it looks at every file."""


class Parts:
    """Makes parts on a worker. Model and data are loaded once, from where the config says.

    A worker on a machine with other weights, code or samples refuses: its parts would bear the name of other results.
    """

    def __init__(
        self, config: Config | Mapping[str, Any], store: Place | str, device: str, *, verify: bool = True
    ) -> None:
        self.store = Store(store)
        config = config if isinstance(config, Config) else Config.from_dict(config).at(Path.cwd())
        digests = Digests(self.store.place)
        if verify and config.model.digest is not None:
            here = resolved_model(config, self.store, digests)
            if here.digest != config.model.digest:
                raise _other("weights")
            if dict(here.code or {}) != dict(config.model.code or {}):
                raise _other("code of the model")
        self.bench = Bench(config, self.store, device)
        samples, wanted = self.bench.samples, config.data
        if verify and wanted.digest is not None:
            same = samples.count == wanted.count and (
                samples.count > CHECKED or samples.digest(digests) == wanted.digest
            )
            if not same:
                raise _other("samples")

    def rehearse(self, index: int) -> dict[str, Any]:
        """What a first batch cost: a `Rehearsal` as plain data."""
        return asdict(self.bench.rehearse(index))

    def do(self, index: int, tick: Tick) -> None:
        """Make a part and store it."""
        self.store.put(self.bench.config, index, self.bench.part(index, tick))


def _other(what: str) -> RunError:
    return RunError(f"{socket.gethostname()} has other {what} than where the sweep was started.")


def make(
    store: Store,
    config: Config,
    indices: Sequence[int],
    watch: SweepWatch,
    *,
    device: str | None = None,
    threads: int = 1,
    cluster: RayCluster | None = None,
) -> list[Failure]:
    """Make parts and store them; returns the parts that failed.

    On this machine a first batch is tried in this process; `watch` decides by its cost how many workers there will be.
    One worker is this process itself.
    """
    if not indices:
        return []

    def work(working_dir: str | None) -> Work:
        return described(store, portable(config, working_dir), device if cluster is not None else device or "cpu")

    here: Parts | None = None
    workers = 1
    with threads_set(threads):
        if cluster is None:
            here = Parts(config, store.place, device or "cpu", verify=False)
            workers = min(watch.rehearsed(here.bench.rehearse(indices[0])), len(indices))
            if workers > 1 and not store.place.private:
                here = None  # frees its memory for the workers
        return store.run(config).make(here, indices, watch, work=work, workers=workers, threads=threads, engine=cluster)


def described(store: Store, config: Config, device: str | None) -> Work:
    """The work as other processes are told of it: config, place and device, however many samples there are."""
    options = {"config": config.to_dict(), "store": store.place.address, "device": device}
    return Work("plrp.experiments.parts:Parts", options)


def portable(config: Config, working_dir: str | None) -> Config:
    """With paths inside the folder that Ray copies to the workers relative to it."""

    def there(value: Any) -> Any:
        return inside(value, working_dir) if isinstance(value, str) else value

    options = {name: there(value) for name, value in config.data.options.items()}
    data = replace(config.data, root=there(config.data.root), options=options)
    model = replace(config.model, name=there(config.model.name), weights=there(config.model.weights))
    return replace(config, data=data, model=model)
