"""All benchmarks, one after the other, and then one table, the growth table and the goals: what `make bench` runs.

    python benchmarks/run.py                          all of it; --quick is the short version
    python benchmarks/run.py --parts engine memory    some of it; what the others measured before is kept
    python benchmarks/run.py --report --page docs/speed.md    no measuring: the tables of what is there, into a page

Every part runs in a process of its own and writes what it measured to PART.json in the output folder (`bench`); one
that fails is reported and does not lose the others. `results.json` holds the tables and the verdicts, `speed.svg` and
`speed.png` the chart.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import chart
import report
from goals import verdicts

FOLDER = Path(__file__).parent


def measure(part: str, arguments: Sequence[str], out: Path) -> str | None:
    """Run a part; the reason where it fails, which is kept beside what it had measured by then."""
    kept = out / f"{part}.json"
    kept.unlink(missing_ok=True)  # an earlier run's figures are not this run's
    command = [sys.executable, str(FOLDER / f"{part}.py"), *arguments]
    last = ""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace") as process:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(line)
            last = line.strip() or last
    if process.returncode == 0 and kept.exists():
        return None
    why = "nothing was written" if process.returncode == 0 else f"exit code {process.returncode}"
    reason = f"{why}: {last}" if last else why
    content = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    out.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({**content, "failed": reason}, indent=1, ensure_ascii=False), encoding="utf-8")
    return reason


def measure_all(parts: Sequence[str], arguments: Sequence[str], out: Path) -> None:
    """Run the parts one after the other."""
    began = time.perf_counter()
    for number, part in enumerate(parts, 1):
        spent = time.perf_counter() - began
        print(f"\n{part} ({number} of {len(parts)}, {spent / 60:.1f} min so far)", flush=True)
        reason = measure(part, arguments, out)
        if reason is not None:
            print(f"{part} failed: {reason}", file=sys.stderr, flush=True)
    print(f"\nmeasured in {(time.perf_counter() - began) / 60:.1f} min", flush=True)


def tell(out: Path, page: Path | None) -> bool:
    """Print and keep the tables, the verdicts and the chart; False where a part had failed."""
    parts = report.read(out)
    tables, failed = list(report.tables(parts)), report.failures(parts)
    print("\n\n".join(["", *(table.text() for table in tables), report.circumstances(parts), *failed]))
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "measured": report.circumstances(parts),
        "failed": {part: found["failed"] for part, found in parts.items() if "failed" in found},
        "goals": verdicts(parts),
        "tables": [table._asdict() for table in tables],
        "parts": parts,
    }
    (out / "results.json").write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    drawn = chart.write(parts, out)
    print(f"\nwritten: {', '.join(str(file) for file in [out / 'results.json', *drawn])}")
    if page is not None:
        lines = [report.circumstances(parts), *failed]
        for file in drawn[:1]:
            (page.parent / "assets").mkdir(exist_ok=True)
            shutil.copyfile(file, page.parent / "assets" / file.name)
            lines.append(f"![{chart.DESCRIPTION}](assets/{file.name})")
        order = ("Cost of an explanation", "How cost grows", "Goals")  # on a page the important ones come first
        first = [table for name in order for table in tables if table.title == name]
        rest = [table for table in tables if table not in first]
        report.into_page(page, "\n\n".join([*lines, *(table.markdown().strip() for table in [*first, *rest])]))
        print(f"put into {page}")
    return not failed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the short version")
    parser.add_argument("--rounds", type=int, help="at most this many rounds of each measurement")
    parser.add_argument("--parts", nargs="+", choices=report.PARTS, default=list(report.PARTS), help="default: all")
    parser.add_argument("--out", type=Path, default=Path("bench"), help="folder for the results (default: bench)")
    parser.add_argument("--report", action="store_true", help="measure nothing: report what is there")
    parser.add_argument("--page", type=Path, help="a Markdown page whose tables and chart are to be replaced")
    options = parser.parse_args(arguments)
    if not options.report:
        passed = ["--out", str(options.out)]
        passed += ["--quick"] if options.quick else []
        passed += ["--rounds", str(options.rounds)] if options.rounds else []
        measure_all(options.parts, passed, options.out)
    return 0 if tell(options.out, options.page) else 1


if __name__ == "__main__":
    sys.exit(main())
