"""`sweep(config, out)`: measure what a config asks for, or what is missing of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plrp.errors import not_installed
from plrp.progress import progress
from plrp.runs.digests import Digests
from plrp.runs.local import cores
from plrp.runs.parts import Failure, by_cause
from plrp.runs.places import Place
from plrp.runs.ray import RayCluster
from plrp.tape.refusals import check_device

from .config import Config
from .data import open_samples
from .measure import check_masks, check_metrics, work
from .networks import code_digests, resolved_model
from .parts import make
from .provenance import facts
from .results import Results
from .store import PartsMissing, Store
from .watch import SweepWatch


def sweep(
    config: Config | Mapping[str, Any] | str | Path,
    out: str | Path | Place | None = None,
    *,
    shard: tuple[int, int] = (1, 1),
    workers: int | None = None,
    device: str | None = None,
    threads: int = 1,
    engine: RayCluster | None = None,
    show_progress: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Results:
    """Explain every sample with every variant at every p, measure, and store; what is stored already is not repeated.

    Parameters
    ----------
    config
        A `Config`, the same as plain data, or a TOML file. `plrp.experiments.preset` has the paper's.
    out
        The run's folder, or the URL of one (`s3://bucket/run`) that fsspec can open; default: the config's name, in
        the current folder. A run that was stopped, in whatever way, resumes where it was. A config that would give
        other results is refused, and so is a folder of other files. More samples than before may be asked for; with
        fewer, only those are worked on, and what is there stays.
    shard
        (i, n): do every n-th part only, from the i-th on; n processes, on as many machines as see the folder, share the
        work.
    workers
        Processes; default: one per core, as far as the memory allows, and only one for work of seconds. 1 is this
        process itself.
    device, threads
        Where each worker computes (default: the CPU; on a cluster: GPUs where there are any), and with how many torch
        threads. They may change the last bits of a result.
    engine
        A `plrp.runs.ray.RayCluster` makes the parts on its nodes, with its own number of workers and threads; None
        makes them here.
    show_progress
        A bar on standard error; default: on a terminal, and elsewhere a line now and then.
    say
        Called with a sentence now and then: what is to be done, how long it will take, how much memory it needs.

    Returns the results, complete if every part is there. A part that cannot be made (a damaged photograph) does not
    stop the others; when those are done, PartsMissing (a RunError) says which failed.
    """
    check_extras()
    config = as_config(config)
    check_metrics(config)
    if device is not None and engine is None:
        check_device(device)
    store = Store(config.name if out is None else out)
    run = store.run()
    run.refuse_strangers()
    samples = open_samples(config)  # refuses missing data before anything is written
    check_masks(config, samples)
    digests = Digests(store.place)
    with progress("reading the samples", len(samples.files), show_progress, transient=True) as step:
        digest = samples.digest(digests, step)
    counted = replace(config, data=replace(config.data, count=samples.count, digest=digest))
    with run.session(shard):
        _refuse_changes(store, counted, digests, samples.files)
        resolved = replace(counted, model=resolved_model(counted, store, digests, show_progress))
        where = device or ("cpu" if engine is None else "as the nodes have it")
        resolved = store.begin(resolved, facts(resolved, where, threads if engine is None else engine.threads), say)
        digests.keep()
        del samples
        if resolved.samples > counted.samples:
            first = f"they stay, and the first {counted.samples} are worked on"
            say(f"{store} was begun with {resolved.samples} samples: {first}. For these alone, name another folder")
        mine = store.run(counted).shard(shard)
        whole = store.whole(resolved, mine, say)
        missing = [index for index in mine if index not in whole]
        say(headline(resolved, len(mine), len(missing), shard))
        failures, untried = _measure(store, resolved, missing, workers, device, threads, engine, show_progress, say)
    if failures:
        others = f"{untried} more were not tried" if untried else f"the others are stored in {store}"
        raise PartsMissing(
            f"{len(failures)} of {len(mine)} parts could not be made; {others}. Fix the cause "
            f"and start again. {by_cause(failures)}"
        )
    return Results(store)


def as_config(config: Config | Mapping[str, Any] | str | Path) -> Config:
    """A `Config` with absolute paths, from any form a user may have it in."""
    if isinstance(config, (str, Path)):
        return Config.read(config)
    return (config if isinstance(config, Config) else Config.from_dict(config)).at(Path.cwd())


def headline(config: Config, parts: int, missing: int, shard: tuple[int, int]) -> str:
    """What there is to do, in one line."""
    cells, variants = len(config.cells), len({variant for variant, _ in config.cells})
    text = (
        f"{config.name}: {config.samples} samples × {cells} maps ({variants} variants) × {len(config.metrics)} metrics"
    )
    share = "" if shard == (1, 1) else f" of shard {shard[0]}/{shard[1]}"
    return f"{text}; {missing} of {parts} parts{share} to do"


def check_extras() -> None:
    """Say what is missing before hours of work, not after."""
    for package in ("pyarrow", "pandas", "h5py", "tomli_w"):
        if importlib.util.find_spec(package) is None:
            raise not_installed(f"sweeps need {package}", "experiments")


def _refuse_changes(store: Store, config: Config, digests: Digests, files: Sequence[Path]) -> None:
    """Compare everything but the weights with the run's config, before a network is trained for nothing."""
    if store.run().begun:
        known = store.config()
        model = replace(config.model, code=code_digests(config.model, digests), digest=known.model.digest)
        others = digests.changed(files) if known.data.digest != config.data.digest else []
        store.run().refuse_changes(replace(config, model=model), [Path(name).name for name in others])


def _measure(
    store: Store,
    config: Config,
    missing: list[int],
    workers: int | None,
    device: str | None,
    threads: int,
    cluster: RayCluster | None,
    show_progress: bool | None,
    say: Callable[[str], None],
) -> tuple[list[Failure], int]:
    """Parts that could not be made, and how many were not tried for that reason."""
    if not missing:
        return [], 0
    amount = work(config, (sample for index in missing for sample in config.part(index)))
    most = max(1, cores() // threads) if device in (None, "cpu") else 1
    with progress(config.name, None, show_progress, unit="share", note="trying a first batch") as step:
        watch = SweepWatch(amount, workers, most, len(missing), say, step)
        failures = make(store, config, missing, watch, device=device, threads=threads, cluster=cluster)
    return failures, len(missing) - watch.stored - len(failures)
