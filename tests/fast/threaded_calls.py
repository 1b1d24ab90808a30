"""Calls every threaded loop with work for several threads; run under ThreadSanitizer by tools/sanitize.py.

`--race`: a call whose bands share inputs, since it is told that they do not; the sanitizer must report it.
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path


def load_before_openmp() -> None:
    """Load the loops before torch brings OpenMP, so that they work on threads of their own: those can be watched."""
    name = "plrp.fast.native._native"
    files = [Path(folder) / "plrp" / "fast" / "native" for folder in sys.path]
    path = next(file for folder in files for file in sorted(folder.glob("_native.*.so")))
    spec = spec_from_loader(name, ExtensionFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    load_before_openmp()

    import torch
    from loop_cases import CASES, Draw

    from plrp.fast import native
    from plrp.fast.native.signatures import SIGNATURES

    torch.set_num_threads(1)
    seeds = 4
    if "--race" in sys.argv:
        for seed in range(20):
            case = CASES["layer"](Draw(seed, large=True))
            if case.arguments["what"] > 1 and case.arguments["reach"] > 1:
                native.call("layer", *{**case.arguments, "reach": 0}.values())
    else:
        for loop in CASES:
            if "threads" in SIGNATURES[loop]:
                for seed in range(seeds):
                    native.call(loop, *CASES[loop](Draw(seed, large=True)).arguments.values())
        print("done")
