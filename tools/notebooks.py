"""Writes the notebooks of `examples/` from the pages of `docs/examples`: python tools/notebooks.py

Text and code of a page become the cells of a notebook of the same name, so that neither goes its own way.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```python\n(.*?)```\n", re.DOTALL)


def notebook(page: str) -> str:
    """The notebook of a page, as JSON; links lead to the documentation in the repository."""
    cells = []
    for number, part in enumerate(BLOCK.split(page)):
        source = part.strip() if number % 2 else part.strip().replace("](../", "](../docs/")
        if not source:
            continue
        cell = {"cell_type": "code" if number % 2 else "markdown", "id": f"cell-{number}", "metadata": {}}
        run = {"execution_count": None, "outputs": []} if number % 2 else {}
        cells.append({**cell, **run, "source": source.splitlines(keepends=True)})
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    content = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def notebooks() -> dict[Path, str]:
    """The files and their contents."""
    pages = sorted((ROOT / "docs" / "examples").glob("*.md"))
    return {ROOT / "examples" / f"{page.stem}.ipynb": notebook(page.read_text("utf-8")) for page in pages}


if __name__ == "__main__":
    for path, content in notebooks().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, "utf-8")
