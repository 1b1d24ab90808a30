"""The log of `plrp explain` on several photographs: a table of all results, and a page that shows them.

A row is written behind each photograph. The same command started again explains the photographs that have no row with
the same key, a hash of the photograph, the model and every option that decides the result.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp import __version__
from plrp.files import new_file
from plrp.runs.run import content_digest, text_digest
from plrp.tables import csv_cell

if TYPE_CHECKING:
    from plrp.models.loading import LoadedModel
    from plrp.vision.photograph_explanation import ExplainedPhotograph

TABLE, PAGE = "photographs.csv", "photographs.html"
COLUMNS = ("file", "class", "score", "probability", "arrived", "pixels", "remark", "test", "rho", "result", "key")
"""`arrived` is the share of the score that reached the pixels under the last pruning, and `pixels` the share of the
pixels that hold it. `test` is the judgement of --test, `rho` the map's rank correlation with the drops of the score.
`result` is the picture or page."""
DECIDES_NOTHING = ("photographs", "out", "save", "quiet", "run", "device")


class PhotographLog:
    """The rows of a folder, by the photograph's file."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, model: LoadedModel) -> None:
        from plrp.models.sources import source_of_module, weights_digest

        self.folder = folder
        options = {name: value for name, value in vars(arguments).items() if name not in DECIDES_NOTHING}
        made_by = [__version__, model.name, source_of_module(model.module), weights_digest(model.module), options]
        self.settings = json.dumps(made_by, sort_keys=True, default=str)
        self.rows: dict[str, dict[str, Any]] = {}
        with suppress(OSError, UnicodeDecodeError, csv.Error), self.table.open(newline="", encoding="utf-8") as stream:
            self.rows = {row["file"]: row for row in csv.DictReader(stream) if set(COLUMNS) <= row.keys()}

    @property
    def table(self) -> Path:
        """The file of the table."""
        return self.folder / TABLE

    def key(self, photograph: Path) -> str:
        """The hash of all that decides a photograph's result."""
        return text_digest(f"{content_digest(photograph)} {self.settings}")

    def has(self, photograph: Path, *files: Path | None) -> bool:
        """Whether a photograph was explained with these settings, and its files are there."""
        row = self.rows.get(csv_cell(str(photograph)), {})
        there = photograph.is_file() and all(file is None or file.is_file() for file in files)
        return there and row.get("key") == self.key(photograph)

    def add(self, explanation: ExplainedPhotograph, result: Path) -> None:
        """Write the row of a photograph that is finished."""
        photograph, name = explanation.photograph.path, list(explanation.prunings)[-1]
        arrived, score = float(explanation.relevance[name].sum()), explanation.score
        verdict = explanation.verdicts.get(name)
        row: Mapping[str, Any] = {
            "file": str(photograph),
            "class": explanation.target_name,
            "score": f"{score:.6g}",
            "probability": f"{float(explanation.probabilities[explanation.target]):.4f}",
            "arrived": f"{arrived / score if score else 0.0:.4f}",
            "pixels": f"{explanation.pixels()[name]:.4f}",
            "remark": "; ".join(f"{variant}: {remark}" for variant, remark in explanation.remarks.items()),
            "test": "" if verdict is None else verdict.judgements()[0],
            "rho": "" if verdict is None else f"{float(verdict.rho[0]):.3f}",
            "result": result.name,
            "key": self.key(photograph),
        }
        cells = {column: csv_cell(value) for column, value in row.items()}
        self.rows[cells["file"]] = cells
        with new_file(self.table) as part, part.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, COLUMNS)
            writer.writeheader()
            writer.writerows({column: row[column] for column in COLUMNS} for row in self.rows.values())

    def write_page(self) -> None:
        """Write the page: every result as a picture or a link, with its row."""
        from urllib.parse import quote

        from plrp.experiments.pages import escape, page, table, write_page

        rows = []
        for row in self.rows.values():
            address, name = quote(row["result"]), Path(row["file"]).name
            drawn = not row["result"].endswith((".html", ".pdf"))
            shown = f'<img src="{address}" alt="{escape(name)}" loading="lazy" width="480">' if drawn else escape(name)
            share = f"{100 * float(row['arrived']):.3g}%"
            rows.append(
                [
                    f'<a href="{address}">{shown}</a>',
                    *map(escape, (name, row["class"], row["score"], share, row["remark"], row["test"])),
                ]
            )
        head = ("explanation", "photograph", "class", "score", "of the score arrived", "remark", "test")
        lead = f'{len(rows)} photographs. The table as <a href="{TABLE}">{TABLE}</a>.'
        write_page(self.folder / PAGE, page("Explained photographs", lead, table(head, rows)))
