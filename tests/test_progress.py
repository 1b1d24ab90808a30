"""How far work is: plain lines where standard error is no terminal, nothing where it shall be silent."""

from __future__ import annotations

import pytest

from plrp.experiments import progress as sweeps
from plrp.genomics import progress as sequences


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
