"""The parts of a sweep on a Ray cluster: what the driver sends, and what a worker does with it."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from plrp.runs.cluster import Failure, RayCluster, Tick, Work, inside, spread
from plrp.runs.places import Folder, RunError, WrongPlace

from .config import Config
from .measure import Bench
from .networks import network_digest
from .progress import ClusterWatch
from .store import Store

CHECKED = 100_000
"""Samples up to which a worker makes sure that it has the same ones: it looks at every file."""


class Parts:
    """Makes the parts of a sweep on a worker. Model and data are found where the config says, once, and kept."""

    def __init__(self, config: Mapping[str, Any], store: str, device: str) -> None:
        self.store = Store(store)
        settled = Config.from_dict(config).at(Path.cwd())
        if network_digest(settled, self.store) != settled.model.digest:
            raise _other("weights")
        self.bench = Bench(settled, self.store, device)
        samples = self.bench.samples
        if samples.count != settled.data.count:
            raise _other("samples")
        if samples.count <= CHECKED and samples.digest() != settled.data.digest:
            raise _other("samples")

    def rehearse(self, index: int) -> dict[str, Any]:
        """What a first batch cost."""
        return asdict(self.bench.rehearse(index))

    def do(self, index: int, tick: Tick) -> None:
        """Make a part and store it."""
        self.store.put(self.bench.config, index, self.bench.part(index, tick))


def _other(what: str) -> RunError:
    """Of a node whose parts would bear the name of other results."""
    return RunError(f"{socket.gethostname()} has other {what} than where the sweep was started.")


def run(
    store: Store, config: Config, indices: Sequence[int], watch: ClusterWatch, cluster: RayCluster, device: str | None
) -> list[Failure]:
    """Make parts on a cluster and store them; returns those that were given up."""
    if store.place.private:
        raise WrongPlace(f"{store} is this process's memory, which workers do not see: name a folder or a bucket.")
    folder = store.place.path.resolve() if isinstance(store.place, Folder) else None
    options = {
        "config": portable(config, cluster.runtime_env.get("working_dir")).to_dict(),
        "store": str(store if folder is None else folder),
        "device": device,
    }
    return spread(cluster, Work("plrp.experiments.on_ray:Parts", options), indices, watch)


def portable(config: Config, working_dir: str | None) -> Config:
    """With paths inside the folder that Ray takes to the workers written from there."""

    def there(value: Any) -> Any:
        return inside(value, working_dir) if isinstance(value, str) else value

    options = {name: there(value) for name, value in config.data.options.items()}
    data = replace(config.data, root=there(config.data.root), options=options)
    model = replace(config.model, name=there(config.model.name), weights=there(config.model.weights))
    return replace(config, data=data, model=model)
