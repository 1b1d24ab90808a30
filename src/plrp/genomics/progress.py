"""Progress bars for people, silence for pipes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(label: str, total: int, show: bool | None = None) -> Iterator[Callable[..., None]]:
    """A bar on standard error that yields `step(count, note="")`; shown on a terminal only, unless `show` says so."""
    if show is None:
        show = sys.stderr.isatty()
    if not show:
        yield lambda count=1, note="": None
        return
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
    except ImportError:
        raise ImportError("Progress bars need rich: pip install 'plrp[genomics]'") from None
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=600) as bar:
        task = bar.add_task(label, total=total, note="")

        def step(count: int = 1, note: str = "") -> None:
            bar.update(task, advance=count, note=note)

        yield step
        bar.update(task, total=bar.tasks[0].completed)
