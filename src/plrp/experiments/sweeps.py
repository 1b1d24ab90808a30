"""`sweep(config, out)`: measure everything that a config asks for and the folder does not hold yet."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plrp.errors import not_installed
from plrp.progress import progress
from plrp.runs.crew import cores
from plrp.runs.places import Place
from plrp.runs.ray import RayCluster
from plrp.runs.run import Digests
from plrp.runs.work import Execution, by_cause
from plrp.tape.refusals import check_device

from .config import Config
from .data import open_samples
from .measure import check_masks, check_metrics, work
from .networks import code_digests, resolved_model, threads_set
from .part_making import PartMaker, SweepWatch, portable, work_for
from .results import Results
from .store import PartsMissing, Store, facts


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
    """Explain every sample with every variant at every p, measure, and store; stored parts are not made again.

    Parameters
    ----------
    config
        A `Config`, the same as plain data, or a TOML file. `plrp.experiments.preset` has the paper's.
    out
        The run's folder, or its URL (`s3://bucket/run`); default: the config's name, in the current folder. A run that
        was stopped resumes. A config that would give other results is refused, and so is a folder of other files. More
        samples than before may be asked for; with fewer, only these are worked on, and the others stay.
    shard
        (i, n): make every n-th part, from the i-th on, so that n processes share the work.
    workers
        Processes; default: one per core, as far as the memory allows, and only one for work of seconds. 1 is this
        process itself.
    device, threads
        Where each worker computes (default: the CPU; on a cluster: GPUs where there are any), and with how many torch
        threads. They may change the last bits of a result.
    engine
        A `plrp.runs.ray.RayCluster` makes the parts on its nodes, with its own number of workers and threads.
    show_progress
        A bar on standard error; default: on a terminal, and elsewhere a line now and then.
    say
        Called with a sentence now and then: the amount of work, its time, its memory.

    Returns the results, complete if every part exists. A part that cannot be made (a damaged photograph) does not stop
    the others; when they are done, PartsMissing (a RunError) lists the failures.
    """
    require("sweeps need", ("pyarrow", "pandas", "h5py", "tomli_w"))
    if isinstance(config, (str, Path)):
        config = Config.read(config)
    else:
        config = (config if isinstance(config, Config) else Config.from_dict(config)).at(Path.cwd())
    check_metrics(config)
    if device is not None and engine is None:
        check_device(device)
    store = Store(config.name if out is None else out)
    store.run().refuse_strangers()
    samples = open_samples(config)  # refuses missing data before anything is written
    check_masks(config, samples)
    digests = Digests(store.place)
    with progress("reading the samples", len(samples.files), show_progress, transient=True) as step:
        digest = samples.digest(digests, step)
    counted = replace(config, data=replace(config.data, count=samples.count, digest=digest))
    execution = Execution(workers, device, threads, engine, show_progress, say)
    with store.run().session(shard):
        resolved = _begin(store, counted, digests, samples.files, execution)
        del samples
        mine = store.run(counted).shard(shard)
        whole = store.whole(resolved, mine, say)
        missing = [index for index in mine if index not in whole]
        say(headline(resolved, len(mine), len(missing), shard))
        _measure(store, resolved, missing, len(mine), execution)
    return Results(store)


def headline(config: Config, parts: int, missing: int, shard: tuple[int, int]) -> str:
    """The work ahead, in one line."""
    maps = f"{len(config.cells)} maps ({len({variant for variant, _ in config.cells})} variants)"
    share = "" if shard == (1, 1) else f" of shard {shard[0]}/{shard[1]}"
    return (
        f"{config.name}: {config.samples} samples × {maps} × {len(config.metrics)} metrics; {missing} of {parts} "
        f"parts{share} to do"
    )


def require(need: str, packages: Sequence[str]) -> None:
    """Name a missing package before hours of work, not after; `need` begins the sentence."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise not_installed(f"{need} {package}", "experiments")


def _begin(store: Store, config: Config, digests: Digests, files: Sequence[Path], execution: Execution) -> Config:
    """Refuse another config, resolve the model, and write config and facts; returns the config of the run."""
    if store.run().begun:  # all but the weights is compared before a network is trained for nothing
        known = store.config()
        model = replace(config.model, code=code_digests(config.model, digests), digest=known.model.digest)
        changed = digests.changed(files) if known.data.digest != config.data.digest else []
        store.run().refuse_changes(replace(config, model=model), [Path(name).name for name in changed])
    resolved = replace(config, model=resolved_model(config, store, digests, execution.show_progress))
    engine = execution.engine
    device = execution.device or ("cpu" if engine is None else "as the nodes have it")
    threads = execution.threads if engine is None else engine.threads
    resolved = store.begin(resolved, facts(resolved, device, threads), execution.say)
    digests.save()
    if resolved.samples > config.samples:
        execution.say(
            f"{store} was begun with {resolved.samples} samples: they stay, and the first {config.samples} are worked "
            "on. For these alone, name another folder"
        )
    return resolved


def _measure(store: Store, config: Config, missing: Sequence[int], parts: int, execution: Execution) -> None:
    """Make the missing parts of a shard that has `parts`.

    On this machine a first batch is tried in this process; its cost decides how many workers there will be.
    """
    if not missing:
        return
    device, threads, engine = execution.device, execution.threads, execution.engine
    amount = work(config, (sample for index in missing for sample in config.part(index)))
    most = max(1, cores() // threads) if device in (None, "cpu") else 1
    with progress(config.name, None, execution.show_progress, unit="share", note="trying a first batch") as step:
        watch = SweepWatch(amount, execution.workers, most, len(missing), execution.say, step)
        maker, workers = None, 1
        with threads_set(threads):
            if engine is None:
                device = device or "cpu"
                maker = PartMaker(config, store.place, device, verify=False)
                workers = watch.rehearsed(maker.bench.rehearse(missing[0]))
                if workers > 1 and not store.place.private:
                    maker = None  # frees its memory for the workers
            failures = store.run(config).make(
                maker,
                missing,
                watch,
                lambda folder: work_for(store, portable(config, folder), device),
                replace(execution, workers=workers),
            )
    if failures:
        untried = len(missing) - watch.parts_stored - len(failures)
        others = f"{untried} more were not tried" if untried else f"the others are stored in {store}"
        raise PartsMissing(
            f"{len(failures)} of {parts} parts could not be made; {others}. Fix the cause and start again. "
            f"{by_cause(failures)}"
        )
