"""How far work is: plain lines where standard error is no terminal, nothing where it shall be silent."""

from __future__ import annotations

from collections import Counter

import pytest

from plrp.experiments import progress as sweeps
from plrp.experiments.measure import Rehearsal
from plrp.runs import progress as sequences
from plrp.runs.cluster import NAMED, Failure, by_cause


def test_training_in_a_pipe_says_when_it_begins_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with sequences.progress("training", 3, announce=True) as step:
        assert capsys.readouterr().err == "training: 0 of 3\n"
        step(1, "accuracy 0.5")
        assert capsys.readouterr().err == ""
        step(1, "accuracy 0.7")
    assert capsys.readouterr().err == "training: done after 2 of 3, 0 s, accuracy 0.7\n"


def test_long_work_in_a_pipe_says_now_and_then_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sequences, sweeps):
        monkeypatch.setattr(module, "EVERY", 0.0)
    with sequences.progress("explaining", 10) as step:
        step(4)
    with sweeps.bar("run") as step:
        step(total=8.0, note="0/4 parts")
        step(advance=2.0)
        step(note="1/4 parts")
    assert capsys.readouterr().err.splitlines() == [
        "explaining: 4 of 10",
        "run: 0%, 0/4 parts",
        "run: 25%, 0/4 parts",
        "run: 25%, 1/4 parts",
    ]


def test_what_shall_be_silent_is_silent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "EVERY", 0.0)
    with sequences.progress("explaining", 10, show=False, announce=True) as step, sweeps.bar("run", False) as advance:
        step(4)
        advance(advance=1.0)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("workers", [1, 2])
def test_the_time_a_sweep_states_is_that_of_the_work_that_is_left(workers: int) -> None:
    said: list[str] = []
    watch = sweeps.Watch(Counter(trace=100), workers, 8, 10, said.append, lambda **changes: None)
    assert watch.rehearsed(Rehearsal({"trace": 2.0}, 0)) == workers
    assert (
        said
        == [["about 3 min more on 1 worker"], ["about 2 min more on 2 workers, once they have started"]][workers - 1]
    )
    cluster: list[str] = []
    there = sweeps.ClusterWatch(Counter(trace=100), workers, 1, 10, cluster.append, lambda **changes: None)
    there.costs({"seconds": {"trace": 2.0}, "memory": 0}, 1)
    assert cluster == ["about 3 min more on 1 worker of the cluster, once they have started"]


def test_causes_of_failures_are_told_once_each_in_the_order_they_came() -> None:
    failures = [Failure(k, "ValueError", "no light" if k % 2 else "") for k in range(8)]
    assert by_cause(failures) == "4 parts (0, 2, 4, …): ValueError; 4 parts (1, 3, 5, …): no light"
    assert by_cause(failures[:3]) == "2 parts (0, 2): ValueError; part 1: no light"
    many = by_cause([Failure(k, "ValueError", f"cause {k}") for k in range(NAMED + 1)])
    assert many.endswith(f"part {NAMED - 1}: cause {NAMED - 1} …")
