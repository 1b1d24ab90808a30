"""Progress bars for people, a plain line now and then for pipes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 30.0
"""Seconds between two lines in a pipe or a file."""


@contextmanager
def progress(label: str, total: int, show: bool | None = None, announce: bool = False) -> Iterator[Callable[..., None]]:
    """A bar on standard error that yields `step(count, note="")`.

    None shows it on a terminal; elsewhere a plain line says now and then how far it is, with `announce` also at the
    start and at the end. False is silent.
    """
    if show is None and not sys.stderr.isatty():
        with _lines(label, total, announce) as step:
            yield step
        return
    if show is False:
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


@contextmanager
def _lines(label: str, total: int, announce: bool) -> Iterator[Callable[..., None]]:
    """Plain lines on standard error."""
    done, last, begun = 0, "", time.monotonic()
    told = begun

    def say(text: str) -> None:
        print(f"{label}: {text}{last and ', '}{last}", file=sys.stderr, flush=True)

    def step(count: int = 1, note: str = "") -> None:
        nonlocal done, last, told
        done, last = done + count, note
        if time.monotonic() - told >= EVERY:
            told = time.monotonic()
            say(f"{done} of {total}")

    if announce:
        say(f"0 of {total}")
    yield step
    if announce:
        say(f"done after {done} of {total}, {time.monotonic() - begun:.0f} s")
