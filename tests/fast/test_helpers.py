"""The threads of the compiled loops: shared by callers, gone after a fork, never waited for in vain."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from plrp.fast import native

PROGRAM = """
import os, sys, threading
import torch
from plrp.fast import selection

torch.set_num_threads(4)
values = torch.randn(3, 200_000, generator=torch.Generator().manual_seed(0))
offsets = torch.arange(4) * 200_000
alone = selection.statistics(values, offsets, 0.2, 0.1)


def often(times: int) -> None:
    for _ in range(times):
        assert torch.equal(selection.statistics(values, offsets, 0.2, 0.1), alone)
"""


def run(rest: str) -> None:
    if not native.available():
        pytest.skip("no compiled loops here")
    program = PROGRAM + textwrap.dedent(rest)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done"]


@pytest.mark.slow
def test_callers_share_the_helpers():
    run(
        """
        failed = []
        threading.excepthook = failed.append
        threads = [threading.Thread(target=often, args=(40,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        print("done")
        """
    )


def test_a_forked_process_starts_helpers_of_its_own():
    run(
        """
        child = os.fork()
        if child == 0:
            often(5)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        often(5)
        print("done")
        """
    )


def test_a_fork_amid_a_job_leaves_no_lock_behind():
    run(
        """
        busy = threading.Thread(target=often, args=(200,))
        busy.start()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                often(2)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        busy.join()
        print("done")
        """
    )
