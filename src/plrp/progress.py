"""How far long work is: a bar for people, a plain line now and then in pipes and logs, both with the time left."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, Protocol

from .spelling import visible

EVERY = 60.0
"""Seconds between two lines in a pipe or a file."""

Unit = Literal["items", "share", "bytes"]
"""How an amount is shown: `4 of 10`, `40%`, `4 MB of 10 MB`."""

clock = time.monotonic


class Step(Protocol):
    """Moves a display on: by `advance`, with a new note, with a new total."""

    def __call__(self, advance: float = 0, note: str | None = None, *, total: float | None = None) -> None:
        """Move the display; a note or total that is left out stays as it is."""


_interrupts: list[int] = []
"""Ctrl-C's since `keep_interrupts` began."""


@contextmanager
def keep_interrupts() -> Iterator[None]:
    """Inside, no Ctrl-C is lost.

    Python prints and drops exceptions that are raised inside a weak reference's callback or a finalizer, and a
    KeyboardInterrupt with them; the next step of any display raises it again, and an error after a Ctrl-C counts as
    one. Where Ctrl-C is ignored (nohup), or is somebody else's to handle, nothing changes.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        _interrupts.append(number)
        raise KeyboardInterrupt

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            hook(unraisable)

    hook, sys.unraisablehook = sys.unraisablehook, report
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if _interrupts:  # compiled code may answer with an error of its own
            raise KeyboardInterrupt from error
        raise
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _interrupts.clear()


@contextmanager
def progress(
    label: str,
    total: float | None = None,
    show: bool | None = None,
    *,
    unit: Unit = "items",
    done: float = 0,
    note: str = "",
    announce: bool = False,
    transient: bool = False,
    after: float = 0,
) -> Iterator[Step]:
    """A display on standard error; yields the `Step` that moves it.

    `show` None is a bar on a terminal and elsewhere a plain line every minute; False is silent, True always a bar.
    Without rich there are plain lines instead of a bar. `total` None: not known yet. `announce` adds lines at the
    start and at the end; a `transient` bar disappears at the end. A bar appears `after` so many seconds.
    """
    label, note = visible(label), visible(note)
    if show is False:
        yield lambda advance=0, note=None, *, total=None: _raise_interrupts()
    elif (show or sys.stderr.isatty()) and (bar := _bar(unit, transient)) is not None:
        with ExitStack() as shown:
            task, begun, late = bar.add_task(label, total=total, completed=done, note=note), clock(), after > 0
            if not late:
                shown.enter_context(bar)

            def step(advance: float = 0, note: str | None = None, *, total: float | None = None) -> None:
                nonlocal late
                _raise_interrupts()
                if late and clock() - begun >= after:
                    shown.enter_context(bar)
                    late = False
                changes = {"advance": advance or None, "note": note and visible(note), "total": total}
                bar.update(task, **{name: value for name, value in changes.items() if value is not None})

            yield step
            if unit == "items":  # work that ended early, as training does, is finished too
                bar.update(task, total=bar.tasks[0].completed)
    else:
        lines = _Lines(label, total, unit, done, note)
        if announce:
            lines.write(lines.amount)
        yield lines
        if announce:
            lines.write(f"done after {lines.amount}, {clock() - lines.begun:.0f} s")


def _raise_interrupts() -> None:
    """Raise a Ctrl-C that was lost."""
    if _interrupts:
        raise KeyboardInterrupt


def _bar(unit: Unit, transient: bool) -> Any:
    """A bar of rich's; None where rich is not installed."""
    try:
        from rich import progress as rich
        from rich.console import Console
    except ImportError:
        return None
    amount = {"items": rich.MofNCompleteColumn, "share": rich.TaskProgressColumn, "bytes": rich.DownloadColumn}[unit]
    return rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(bar_width=28),
        amount(),
        rich.TextColumn("{task.fields[note]}", markup=False),
        rich.TimeElapsedColumn(),
        rich.TextColumn("gone,"),
        rich.TimeRemainingColumn(),
        rich.TextColumn("left"),
        console=Console(stderr=True),
        speed_estimate_period=600,
        transient=transient,
    )


class _Lines:
    """Plain lines on standard error, now and then."""

    def __init__(self, label: str, total: float | None, unit: Unit, done: float, note: str) -> None:
        self.label, self.total, self.unit, self.done, self.note = label, total, unit, done, note
        self.first = done
        self.begun = self.written = clock()
        self.warm: tuple[float, float] | None = None  # when the first step was done, which is often the slowest

    def __call__(self, advance: float = 0, note: str | None = None, *, total: float | None = None) -> None:
        _raise_interrupts()
        self.done += advance
        self.note = self.note if note is None else visible(note)
        self.total = self.total if total is None else total
        self.warm = self.warm or ((clock(), self.done) if advance else None)
        if self.total and clock() - self.written >= EVERY:
            self.written = clock()
            self.write(self.amount, self.left)

    def write(self, *texts: str) -> None:
        print(f"{self.label}: {', '.join(filter(None, (*texts, self.note)))}", file=sys.stderr, flush=True)

    @property
    def amount(self) -> str:
        if self.unit == "share":
            return f"{min(1.0, self.done / (self.total or 1)):.0%}"
        shown = size if self.unit == "bytes" else "{:g}".format
        return shown(self.done) + ("" if self.total is None else f" of {shown(self.total)}")

    @property
    def left(self) -> str:
        begun, first = self.begun, self.first
        if self.warm is not None and self.done > self.warm[1]:
            begun, first = self.warm
        done, rest = self.done - first, (self.total or 0) - self.done
        enough = done > 0 and self.done >= 0.01 * (self.total or 0)  # less tells nothing of the time
        return f"{duration((clock() - begun) * rest / done)} left" if enough and rest > 0 else ""


def duration(seconds: float) -> str:
    """A time for people: 40 s, 12 min, 3 h 20 min, 5 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 48 else f"{hours / 24:.1f} days"


def size(count: float) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
