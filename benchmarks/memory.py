"""Peak memory of each method, in a fresh process per model and method: what it needs above the model and its input.

Libraries are loaded and warmed up on another, small model first, so that whatever a library keeps for this model
counts. Then the kernel's high-water mark of the process is reset (/proc/self/clear_refs, so this part runs on Linux
only) and read again after one explanation.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torchvision

from methods import METHODS, bound, forward
from report import FORWARD, PEERS, VARIANTS, memory
from subjects import load, photographs
from timing import options, progress, write

SHOWN = (FORWARD, *VARIANTS.values(), *PEERS[:-1])  # the floor is no method: it keeps what it recorded


def status(field: str) -> float:
    """A line of /proc/self/status, in MB (10⁶ bytes)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/self/status has no {field}; peak memory is measured on Linux only.")


def memory_in_use() -> float:
    """MB the process holds once what it can give back is given back; the high-water mark starts here."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def peak(model_name: str, method: str, batches: list[int], size: int = 224) -> dict[str, float | str]:
    """Peak MB above the model and its input, by batch (ascending); the reason where it cannot run."""
    bind = bound(forward) if method == FORWARD else METHODS[method]
    with contextlib.suppress(Exception):  # said below, of the model that counts
        bind(torchvision.models.resnet18().eval(), photographs(1, 64))()  # loads libraries and code
    model = load(model_name)
    inputs = {batch: photographs(batch, size) for batch in batches}
    held = memory_in_use()
    found: dict[str, float | str] = {}
    for batch, x in inputs.items():
        try:
            run = bind(model, x)
            memory_in_use()
            result = run()
            found[str(batch)] = status("VmHWM") - held
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


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        warnings.filterwarnings("ignore")
        model, method, *batches = sys.argv[2:]
        print(json.dumps(peak(model, method, [int(b) for b in batches])))
        return
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", help="default: vgg16 and resnet50; quick: resnet50")
    parser.add_argument("--batches", nargs="+", type=int, help="default: 1 and 8")
    args = parser.parse_args()
    if not Path("/proc/self/clear_refs").exists():
        print("skipped: peak memory is measured on Linux only")
        write(args, "memory", {"rows": []})
        return
    models = args.models or (["resnet50"] if args.quick else ["vgg16", "resnet50"])
    batches = sorted(args.batches or [1, 8])
    methods = ("plrp LRP", "plrp λ 0.2", "Zennit") if args.quick else SHOWN
    rows: list[dict[str, Any]] = [{"model": m, "batch": b, "peak": {}} for m in models for b in batches]
    for model in models:
        for method in methods:
            progress(f"peak memory of {method} on {model}")
            found = in_fresh_process(model, method, batches)
            for row in rows:
                if row["model"] == model:
                    row["peak"][method] = found[str(row["batch"])]
            write(args, "memory", {"rows": [row for row in rows if row["peak"]]})
    progress.clear()
    print("\n" + memory({"memory": {"rows": rows}}).text())


if __name__ == "__main__":
    main()
