"""The notebooks of `examples/` hold the code of their pages, and run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import notebooks as made  # noqa: E402

FILES = made.notebooks()


def test_there_is_a_notebook_for_each_example_and_no_other() -> None:
    assert {path.name for path in FILES} == {path.name for path in (ROOT / "examples").glob("*.ipynb")}
    assert len(FILES) == 4


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_notebook_is_that_of_its_page(path: Path) -> None:
    assert path.read_text("utf-8") == FILES[path], "python tools/notebooks.py writes the notebooks anew"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if path.stem == "text":
        pytest.importorskip("transformers")
    known: dict[str, object] = {"__name__": "__main__"}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{path.name}, {cell['id']}", "exec"), known)
    assert capsys.readouterr().out
