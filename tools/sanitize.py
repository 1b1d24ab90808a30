"""Runs the compiled loops under the sanitizers: `python tools/sanitize.py [address] [thread]`, or `make sanitize`.

- address: AddressSanitizer and UBSan. The package is copied to build/sanitize-address, its loops are compiled there
  with every memory access and arithmetic step checked, and the tests of the fast paths run with that copy.
- thread: ThreadSanitizer. The loops are compiled in build/sanitize-thread, and called on several threads by
  tests/fast/threaded_calls.py. That needs the loops' own threads: of OpenMP's the sanitizer knows nothing.

It fails when a test fails, and on any report. It needs gcc or clang with their sanitizers' libraries.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAGS = {
    "address": "-fsanitize=address,undefined -fno-sanitize-recover=undefined",
    "thread": "-fsanitize=thread",
}
LIBRARY = {"address": "libasan.so", "thread": "libtsan.so"}


def compiler() -> list[str]:
    """The compiler that Python was built with, or `CC`."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[:1]


def build(kind: str, folder: Path) -> Path:
    """A copy of the package in `folder`, its loops compiled with a sanitizer; returns the compiled file."""
    package = folder / "plrp"
    shutil.rmtree(package, ignore_errors=True)
    left_out = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
    shutil.copytree(ROOT / "src" / "plrp", package, ignore=left_out)
    native = package / "fast" / "native"
    target = native / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = f"-O1 -g -shared -fPIC -pthread -fno-omit-frame-pointer {FLAGS[kind]}".split()
    sources = sorted(map(str, native.glob("*.c")))
    command = [*compiler(), *flags, f"-I{sysconfig.get_path('include')}", *sources, "-o", str(target)]
    subprocess.run(command, check=True)
    return target


def library(name: str) -> str:
    """Where a library of the compiler lies."""
    command = [*compiler(), f"-print-file-name={name}"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    if not os.path.isabs(found):
        raise SystemExit(f"sanitize: {compiler()[0]} has no {name}: install its sanitizers' libraries.")
    return str(Path(found).resolve())


def environment(kind: str, folder: Path) -> dict[str, str]:
    """What a Python needs that loads the copy in `folder`; reports go to folder/report.*."""
    # libstdc++ too: the sanitizer looks for what throws exceptions when it starts, and torch throws some.
    libraries = [library(name) for name in (LIBRARY[kind], "libstdc++.so.6")]
    options = f"log_path={folder / 'report'}:halt_on_error=1:exitcode=66"
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "PYTHONMALLOC": "malloc",  # else many objects share one piece of memory, and overflows within it pass unseen
        "PYTHONPATH": str(folder),
        "ASAN_OPTIONS": f"{options}:detect_leaks=0",  # Python itself does not free all at its end
        "UBSAN_OPTIONS": f"{options}:print_stacktrace=1",
        "TSAN_OPTIONS": f"{options}:report_signal_unsafe=0",
    }


def run(kind: str, command: list[str], folder: Path) -> int:
    """The exit code of a Python command under a sanitizer; reports are printed and make it fail."""
    for report in folder.glob("report.*"):
        report.unlink()
    code = subprocess.run([sys.executable, *command], env=environment(kind, folder), cwd=ROOT, check=False).returncode
    reports = sorted(folder.glob("report.*"))
    for report in reports:
        print(report.read_text(errors="replace"), file=sys.stderr)
    return code or (1 if reports else 0)


# A process that forks while a thread of it allocates may hang in the sanitizer's own allocator: not ours to find.
FORKS = "tests/fast/test_helpers.py::test_a_fork_amid_a_job_leaves_no_lock_behind"
COMMANDS = {
    "address": [
        *("-m", "pytest", "-q", "-n", "2", "-m", "not slow", "-p", "no:cacheprovider", "--capture=sys"),
        *("--deselect", FORKS, "tests/fast"),
    ],
    "thread": ["tests/fast/threaded_calls.py"],
}


def main(kinds: list[str]) -> int:
    """Build and run under each sanitizer asked for (none: under all); returns the exit code."""
    for kind in kinds or list(COMMANDS):
        folder = ROOT / "build" / f"sanitize-{kind}"
        build(kind, folder)
        code = run(kind, COMMANDS[kind], folder)
        if code:
            print(f"sanitize: the {kind} sanitizer found something, or a test failed (see above).", file=sys.stderr)
            return code
        print(f"sanitize: nothing found by the {kind} sanitizer.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
