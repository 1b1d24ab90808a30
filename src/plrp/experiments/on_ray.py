"""The parts of a sweep on a Ray cluster: what the driver sends, and what a worker does with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from plrp.cluster import Failure, RayCluster, Tick, Work, spread
from plrp.places import Folder, RunError

from .config import Config
from .measure import Bench
from .progress import ClusterWatch
from .store import Store


class Parts:
    """Makes the parts of a sweep on a worker. Model and data are found where the config says, once, and kept."""

    def __init__(self, config: Mapping[str, Any], store: str, device: str) -> None:
        self.store = Store(store)
        self.bench = Bench(Config.from_dict(config).at(Path.cwd()), self.store, device)

    def rehearse(self, index: int) -> dict[str, Any]:
        """What a first batch cost."""
        return asdict(self.bench.rehearse(index))

    def do(self, index: int, tick: Tick) -> None:
        """Make a part and store it."""
        self.store.put(self.bench.config, index, self.bench.part(index, tick))


def run(
    store: Store, config: Config, indices: Sequence[int], watch: ClusterWatch, cluster: RayCluster, device: str | None
) -> list[Failure]:
    """Make parts on a cluster and store them; returns those that were given up."""
    if store.place.private:
        raise RunError(f"{store} is this process's memory, which workers do not see: name a folder or a bucket.")
    folder = store.place.path.resolve() if isinstance(store.place, Folder) else None
    options = {
        "config": portable(config, cluster.runtime_env.get("working_dir")).to_dict(),
        "store": str(store if folder is None else folder),
        "device": device,
    }
    return spread(cluster, Work("plrp.experiments.on_ray:Parts", options), indices, watch)


def portable(config: Config, working_dir: str | None) -> Config:
    """With paths inside the folder that Ray takes to the workers written from there, for there it is another folder."""
    if working_dir is None or "://" in working_dir:
        return config
    root = Path(working_dir).resolve()

    def inside(text: Any) -> Any:
        if not isinstance(text, str) or not Path(text).is_absolute() or not Path(text).is_relative_to(root):
            return text
        return str(Path(text).relative_to(root))

    options = {name: inside(value) for name, value in config.data.options.items()}
    data = replace(config.data, root=None if config.data.root is None else inside(config.data.root), options=options)
    weights = None if config.model.weights is None else inside(config.model.weights)
    return replace(config, data=data, model=replace(config.model, name=inside(config.model.name), weights=weights))
