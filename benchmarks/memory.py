"""Peak memory of each method, in a fresh process per model and method: what it needs above the model and its input.

Libraries are loaded and warmed up on a small input first. Then the kernel's high-water mark of the process is reset
(/proc/self/clear_refs, so this part runs on Linux only) and read again after one explanation.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

from engine import PEERS, VARIANTS
from methods import FORWARD, METHODS, bound, forward
from subjects import load, photographs
from timing import options, table, write

SHOWN = (FORWARD, *VARIANTS.values(), *PEERS[:-1])  # the floor is no method: it keeps what it recorded


def status(field: str) -> float:
    """A line of /proc/self/status, in MB (10⁶ bytes)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/self/status has no {field}; peak memory is measured on Linux only.")


def peak(model_name: str, method: str, batches: list[int], size: int = 224) -> dict[str, float | str]:
    """Peak MB above what the process held before the call, by batch (ascending); the reason where it cannot run."""
    model = load(model_name)
    bind = bound(forward) if method == FORWARD else METHODS[method]
    found: dict[str, float | str] = {}
    for batch in batches:
        x = photographs(batch, size)
        try:
            bind(model, photographs(1, 64))()  # loads libraries and code
            run = bind(model, x)
            gc.collect()
            model.zero_grad(set_to_none=True)
            ctypes.CDLL(None).malloc_trim(0)  # memory freed before is not to be had for nothing
            Path("/proc/self/clear_refs").write_text("5")
            before = status("VmRSS")
            result = run()
            found[str(batch)] = status("VmHWM") - before
            del result, run
        except Exception as error:
            found[str(batch)] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"
    return found


def in_fresh_process(model: str, method: str, batches: list[int]) -> dict[str, float | str]:
    command = [sys.executable, __file__, "--one", model, method, *map(str, batches)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {str(b): f"exit code {done.returncode}: {last[:100]}" for b in batches}
    return json.loads(done.stdout.splitlines()[-1])


def lines(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """One row per model and batch, MB by method."""
    names = [n for n in SHOWN if any(n in row["peak"] for row in rows)]
    cells = [
        [
            row["model"],
            str(row["batch"]),
            *(f"{v:.0f}" if isinstance(v := row["peak"].get(n), float) else "–" for n in names),
        ]
        for row in rows
    ]
    return ["model", "batch", *names], cells


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        warnings.filterwarnings("ignore")
        model, method, *batches = sys.argv[2:]
        print(json.dumps(peak(model, method, [int(b) for b in batches])))
        return
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", help="default: vgg16 and resnet50; quick: resnet50")
    parser.add_argument("--batches", nargs="+", type=int, help="default: 1 and 8; quick: 8")
    args = parser.parse_args()
    if not Path("/proc/self/clear_refs").exists():
        print("skipped: peak memory is measured on Linux only")
        return
    models = args.models or (["resnet50"] if args.quick else ["vgg16", "resnet50"])
    batches = sorted(args.batches or ([8] if args.quick else [1, 8]))
    methods = ("plrp LRP", "plrp λ 0.2", "Zennit") if args.quick else SHOWN
    rows: list[dict[str, Any]] = [{"model": m, "batch": b, "peak": {}} for m in models for b in batches]
    for model in models:
        for method in methods:
            print(f"  peak memory of {method} on {model} …", flush=True)
            found = in_fresh_process(model, method, batches)
            for row in rows:
                if row["model"] == model:
                    row["peak"][method] = found[str(row["batch"])]
            write_rows = [row for row in rows if row["peak"]]
        write(args.out, "memory", {"rows": write_rows})
    print("\npeak memory in MB above the model and its input\n")
    print(table(*lines(rows)))


if __name__ == "__main__":
    main()
