"""Making the parts of a sweep, on this machine or on workers that are sent the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from plrp.runs.places import Place
from plrp.runs.ray import inside
from plrp.runs.run import Digests, differs_here
from plrp.runs.work import Tick, Work

from .config import Config
from .measure import Bench
from .networks import resolved_model
from .store import Store

CHECKED = 100_000
"""Samples up to which a worker makes sure that it has the same ones: it looks at every file."""


class PartMaker:
    """Makes parts. Model and data are loaded once, as the config names them.

    A worker on a machine with other weights, code or samples refuses: its parts would bear the names of other results.
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
                raise differs_here("weights", "the sweep")
            if dict(here.code or {}) != dict(config.model.code or {}):
                raise differs_here("code of the model", "the sweep")
        self.bench = Bench(config, self.store, device)
        samples, wanted = self.bench.samples, config.data
        if verify and wanted.digest is not None:
            same = samples.count == wanted.count and (
                samples.count > CHECKED or samples.digest(digests) == wanted.digest
            )
            if not same:
                raise differs_here("samples", "the sweep")

    def rehearse(self, index: int) -> dict[str, Any]:
        """What a first batch cost: a `Rehearsal` as plain data."""
        return asdict(self.bench.rehearse(index))

    def do(self, index: int, tick: Tick) -> None:
        """Make a part and store it."""
        self.store.put(self.bench.config, index, self.bench.part(index, tick))


def work_for(store: Store, config: Config, device: str | None) -> Work:
    """The work that other processes are sent: config, place and device, however many samples there are."""
    options = {"config": config.to_dict(), "store": store.place.address, "device": device}
    return Work("plrp.experiments.part_making:PartMaker", options)


def portable(config: Config, working_dir: str | None) -> Config:
    """With paths inside the folder that Ray copies to the workers relative to it."""

    def there(value: Any) -> Any:
        return inside(value, working_dir) if isinstance(value, str) else value

    options = {name: there(value) for name, value in config.data.options.items()}
    data = replace(config.data, root=there(config.data.root), options=options)
    model = replace(config.model, name=there(config.model.name), weights=there(config.model.weights))
    return replace(config, data=data, model=model)
