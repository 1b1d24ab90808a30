"""How far work is: plain lines where standard error is no terminal, nothing where it shall be silent."""

from __future__ import annotations

import io
import signal
import sys
import weakref
from collections import Counter

import pytest

from plrp import progress as display
from plrp.experiments.measure import Rehearsal
from plrp.experiments.part_making import SweepWatch
from plrp.progress import progress
from plrp.runs.work import NAMED, Failure, by_cause


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class Terminal(io.StringIO):
    """Standard error that people look at."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(display, "clock", clock := Clock())
    return clock


def test_training_in_a_pipe_says_when_it_begins_and_ends(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with progress("training", 3, announce=True) as step:
        assert capsys.readouterr().err == "training: 0 of 3\n"
        step(1, "accuracy 0.5")
        assert capsys.readouterr().err == ""
        clock.time = 7.0
        step(1, "accuracy 0.7")
    assert capsys.readouterr().err == "training: done after 2 of 3, 7 s, accuracy 0.7\n"


def test_long_work_in_a_pipe_says_now_and_then_how_far_it_is_and_how_long_it_will_take(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    with progress("explaining", 10) as step:
        step(3)
        clock.time += display.EVERY
        step(1)
        step(1)
    with progress("run", unit="share", note="trying a first batch") as step:
        clock.time += display.EVERY
        step()  # the total is not known
        step(total=8.0, note="0/4 parts")
        clock.time += display.EVERY
        step(2.0)
        clock.time += display.EVERY
        step(note="1/4 parts")
    with progress("downloading weights", 98e6, unit="bytes", done=50e6) as step:
        clock.time += display.EVERY
        step(24e6)
    assert capsys.readouterr().err.splitlines() == [
        "explaining: 4 of 10, 6 min left",  # by the steps after the first, which warms up
        "run: 0%, 0/4 parts",
        "run: 25%, 6 min left, 0/4 parts",
        "run: 25%, 9 min left, 1/4 parts",
        "downloading weights: 74 MB of 98 MB, 60 s left",
    ]


def test_what_shall_be_silent_is_silent(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with progress("explaining", 10, show=False, announce=True) as step:
        clock.time += display.EVERY
        step(4, "note", total=11)
    assert capsys.readouterr().err == ""


def test_without_rich_a_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with progress("explaining", 10) as step:
        clock.time += display.EVERY
        step(5)
    assert terminal.getvalue() == "explaining: 5 of 10, 60 s left\n"


@pytest.mark.parametrize(("unit", "amount"), [("items", "5/5"), ("share", "50%"), ("bytes", "5/10 bytes")])
def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], unit: display.Unit, amount: str) -> None:
    with progress("explaining", 10, True, unit=unit) as step:
        step(5, "half of it")
    shown = capsys.readouterr().err
    for text in ("explaining", amount, "half of it"):
        assert text in shown


@pytest.mark.parametrize("workers", [1, 2])
def test_the_time_a_sweep_states_is_that_of_the_work_that_is_left(workers: int) -> None:
    def quiet(*_: object, **__: object) -> None: ...

    said: list[str] = []
    watch = SweepWatch(Counter(trace=100), workers, 8, 10, said.append, quiet)
    assert watch.rehearsed(Rehearsal({"trace": 2.0}, 0)) == workers
    assert (
        said
        == [["about 3 min more on 1 worker"], ["about 2 min more on 2 workers, once they have started"]][workers - 1]
    )
    cluster: list[str] = []
    there = SweepWatch(Counter(trace=100), workers, 1, 10, cluster.append, quiet)
    there.costs({"seconds": {"trace": 2.0}, "memory": 0}, 1)
    assert cluster == ["about 3 min more on 1 worker of the cluster, once they have started"]


def test_causes_of_failures_are_told_once_each_in_the_order_they_came() -> None:
    failures = [Failure(k, "ValueError", "no light" if k % 2 else "") for k in range(8)]
    assert by_cause(failures) == "4 parts (0, 2, 4, …): ValueError; 4 parts (1, 3, 5, …): no light"
    assert by_cause(failures[:3]) == "2 parts (0, 2): ValueError; part 1: no light"
    many = by_cause([Failure(k, "ValueError", f"cause {k}") for k in range(NAMED + 1)])
    assert many.endswith(f"part {NAMED - 1}: cause {NAMED - 1} …")


def test_a_ctrl_c_that_a_callback_swallowed_stops_the_work_at_its_next_step() -> None:
    """Python drops what is raised inside the callback of a weak reference; there the interrupt arrives."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with display.keep_interrupts(), display.progress("explaining", 3, False) as step:
            step(1)
            thing = type("Thing", (), {})()
            _ref = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
            del thing
            with pytest.raises(KeyboardInterrupt):
                step(1)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with display.progress("explaining", 3, False) as step:
            step(1)  # forgotten
    finally:
        signal.signal(signal.SIGINT, before)


def test_where_ctrl_c_is_ignored_it_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with display.keep_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
