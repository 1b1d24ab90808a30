"""`plrp report`: the paper's figures, statements and tables from the folders of sweeps, as files and one HTML page.

- `write`: the whole report, of one run, of several, or of two compared;
- `runs`: a run with its scores aligned and its statements judged;
- `sections`: the parts of the page; `examples`: heatmaps, logos, the samples that gain most and least;
- `comparison`: two runs, sample by sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plrp.errors import UsageError

FORMATS = ("png", "svg", "pdf")


def write(
    runs: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    formats: Sequence[str] = FORMATS,
    compare: bool = False,
    show_progress: bool | None = None,
) -> Path:
    """Write the report of one or more runs, or of two compared, into the folder `out`; returns its HTML page.

    Runs are folders or URLs. Default for `out` is `report` in the folder of a single run, else `report` here. Every
    figure is also written to `figures/` in each of `formats`, the numbers behind them to `tables/` as CSV and JSON. A
    run that is not complete gives a report that lists the missing parts.
    """
    from .runs import TitledRun, titled
    from .sections import render
    from .sheets import Sheets

    if isinstance(runs, (str, Path)):
        runs = [runs]
    if not runs:
        raise UsageError("A report needs a run: give the folder of a sweep.")
    if compare and len(runs) != 2:
        raise UsageError(f"--compare takes two runs, not {len(runs)}.")
    for kind in formats:
        if kind not in FORMATS:
            raise UsageError(f"Figures are written as {', '.join(FORMATS)}, not {kind!r}.")
    if out is None:
        alone = len(runs) == 1 and "://" not in str(runs[0])
        out = Path(runs[0]) / "report" if alone else Path("report")
    loaded = titled([TitledRun.load(path) for path in runs])
    sheets = Sheets(Path(out), formats, show_progress)
    if compare:
        from .run_comparison import render as render_comparison

        first, second = loaded
        document = render_comparison(first, second, sheets)
    else:
        document = render(loaded, sheets)
    return sheets.finish(document)
