"""The job files of docs/slurm, run by bash with Slurm's commands played by others: the nodes are all this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusters import none_left  # noqa: F401
from plrp.experiments import Results, sweep
from worlds import plain_world, same

pytestmark = pytest.mark.usefixtures("none_left")
ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "docs" / "slurm"

SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


def run(file: str, words: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a job file as Slurm would: with its variables, `plrp` and `ray` on the path."""
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, **variables}
    return subprocess.run(
        ["bash", str(FILES / file), *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_job_files_are_what_the_page_shows() -> None:
    page = (ROOT / "docs" / "many-machines.md").read_text()
    for file in sorted(FILES.iterdir()):
        assert f"```bash\n{file.read_text()}```" in page, file.name
        subprocess.run(["bash", "-n", str(file)], check=True)


def test_job_files_say_what_a_cluster_may_ask_for() -> None:
    for file in sorted(FILES.iterdir()):
        for line in ("##SBATCH --partition=NAME", "##SBATCH --account=NAME", "# source /path/to/venv/bin/activate"):
            assert f"\n{line}\n" in file.read_text()


def test_shares_of_the_array_are_its_tasks() -> None:
    text = (FILES / "array.sbatch").read_text()
    tasks, shares = re.search(r"--array=1-(\d+)\n", text), re.search(r"shares=(\d+)", text)
    assert tasks is not None
    assert shares is not None
    assert tasks[1] == shares[1]


@pytest.mark.slow
def test_tasks_of_an_array_do_their_shares(tmp_path: Path) -> None:
    config = plain_world(tmp_path / "world", 20)
    (tmp_path / "run.toml").write_text(config.to_toml())
    words = "plrp sweep run.toml --out run --workers 1".split()
    for task in (3, 16):
        outcome = run("array.sbatch", words, tmp_path, SLURM_ARRAY_TASK_ID=str(task))
        assert outcome.returncode == 0, outcome.stderr
    results = Results.load(tmp_path / "run")
    assert sorted(set(range(20)).difference(results.missing)) == [2, 15, 18]


@pytest.mark.slow
def test_a_job_that_starts_ray_on_its_nodes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    config = plain_world(tmp_path / "world", 6)
    (tmp_path / "run.toml").write_text(config.to_toml())
    (tmp_path / "bin").mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/bash\nprintf '127.0.0.1\\nlocalhost\\n'\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    variables = {
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_CPUS_PER_TASK": "1",
        "SLURM_MEM_PER_NODE": "2000",
    }  # fmt: skip
    outcome = run("ray.sbatch", "plrp sweep run.toml --out run".split(), tmp_path, **variables)
    assert outcome.returncode == 0, outcome.stderr + outcome.stdout
    assert "of the cluster, once they have started; memory up to" in outcome.stderr
    same(sweep(config, tmp_path / "local", workers=1), Results.load(tmp_path / "run"))
    outcome = run("ray.sbatch", "plrp sweep none.toml".split(), tmp_path, **variables)
    assert outcome.returncode == 2, outcome.stderr + outcome.stdout
    assert "plrp: " in outcome.stderr
