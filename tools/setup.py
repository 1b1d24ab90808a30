"""Makes the project's environment: `python3 tools/setup.py EXTRA [EXTRA ...]`; every target of make calls it.

It makes `.venv`, installs plrp into it (editable, with the named extras of pyproject.toml, at the versions of
constraints.txt) and writes a stamp for these extras, last. While the stamp fits, a second call returns at
once; a changed pyproject.toml, constraints.txt or Python makes it stale, whatever the files' dates say.

An installation that was cut off (Ctrl-C, kill -9, power) leaves its marker behind, and the next call starts
from an empty environment: half-written packages look whole to every installer. uv installs; where uv cannot
be had or fails, pip does, with the same constraints (`PLRP_INSTALLER=pip` asks for pip from the start).

Only the standard library, and only what the oldest Python 3 can parse (so no `from __future__ import
annotations`): a Python that is too old must be able to say so.
"""

import fcntl
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST_PYTHON = (3, 10)

# What a Python built from source, or a slimmed-down one, may lack, and the Debian packages that bring it.
NEEDED_MODULES = {
    "venv": "python3-venv",
    "ensurepip": "python3-venv",
    "lzma": "liblzma-dev before building Python",
    "sqlite3": "libsqlite3-dev before building Python",
}


class SetupError(Exception):
    """One sentence on what stands in the way, and its remedy."""


def check_python(version=sys.version_info, find=importlib.import_module):
    """Refuses a Python that cannot carry the project, before anything is written."""
    if tuple(version[:2]) < OLDEST_PYTHON:
        raise SetupError(
            "plrp needs Python {}.{} or newer and this is {}.{}: ".format(*OLDEST_PYTHON, *version[:2])
            + "name a newer one, e.g. `make test PYTHON=python3.11`."
        )
    for module, source in NEEDED_MODULES.items():
        try:
            find(module)
        except ImportError:
            raise SetupError(
                f"this Python ({sys.executable}) has no module {module}: install {source}, "
                "or name another one, e.g. `make test PYTHON=python3.11`."
            ) from None


class Environment:
    """The virtual environment of the project at `root`, and what is known about its state."""

    def __init__(self, root):
        self.root = Path(root).resolve()
        self.folder = self.root / ".venv"
        self.python = self.folder / "bin" / "python"
        self.marker = self.folder / "plrp-setup-unfinished"  # there while an installation is under way

    def stamp(self, extras):
        """The file that says these extras are installed; it holds the fingerprint they were installed for."""
        return self.folder / ("plrp-setup-" + "-".join(sorted(extras)))

    def fingerprint(self):
        """A hash of all that decides what gets installed: these files and the Python version."""
        digest = hashlib.sha256(repr(tuple(sys.version_info[:3])).encode())
        sources = sorted((self.root / "src/plrp/fast/native").glob("*.[ch]"))
        for file in [self.root / "pyproject.toml", self.root / "constraints.txt", *sources]:
            content = file.read_bytes() if file.exists() else b""
            digest.update(b"%d " % len(content) + content)
        return digest.hexdigest()

    def ready(self, extras):
        """Whether the extras were installed to the end, for the present files and Python."""
        stamp = self.stamp(extras)
        return (
            not self.marker.exists()
            and self.python.exists()
            and stamp.is_file()
            and stamp.read_text() == self.fingerprint()
        )

    def fault(self):
        """Why the folder cannot be built upon and must be made anew; empty where it can."""
        if not self.folder.exists():
            return "there is none yet"
        if self.marker.exists():
            return "an earlier set-up was cut off"
        answer = self.ask("import sys; print(*sys.version_info[:2])")
        if answer is None:
            return "its Python does not start"
        if answer != "{} {}".format(*sys.version_info[:2]):
            return "it was made with another Python"
        return ""

    def ask(self, program):
        """What a one-line program prints in the environment; None where it cannot run."""
        try:
            answer = subprocess.run(
                [str(self.python), "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            return None
        return None if answer.returncode else answer.stdout.decode().strip()

    def prepare(self, extras):
        """Brings the environment to the state in which `ready(extras)` holds."""
        fault = self.fault()
        if fault:
            say(f"making {self.folder.name} ({fault})")
            if self.folder.exists():
                shutil.rmtree(str(self.folder))
            self.folder.mkdir()
        self.stamp(extras).unlink(missing_ok=True)
        self.marker.touch()
        # A failure that an installer reports leaves whole packages (both resolve and download first), so the
        # marker goes and the next call builds on what is there. Being cut off leaves the marker.
        try:
            if fault or self.ask("import pip") is None:
                # The base interpreter: the one running this may live in the folder that was just emptied.
                run(
                    [getattr(sys, "_base_executable", sys.executable), "-m", "venv", str(self.folder)],
                    self.root,
                )
            self.install(extras)
            self.report_loops()
        except SetupError:
            self.marker.unlink()
            raise
        part = self.stamp(extras).with_suffix(".part")
        part.write_text(self.fingerprint())
        os.replace(part, self.stamp(extras))
        self.marker.unlink()

    def install(self, extras):
        """Installs plrp with its extras: by uv, else by pip, with the same constraints."""
        package = ["-c", "constraints.txt", "-e", ".[{}]".format(",".join(sorted(extras)))]
        pip = [str(self.python), "-m", "pip"]
        if os.environ.get("PLRP_INSTALLER", "uv") != "pip":
            uv = [str(self.python), "-m", "uv", "pip", "install", "--python", str(self.python)]
            try:
                run([*pip, "install", "--quiet", "--disable-pip-version-check", "uv"], self.root)
                say("installing with uv (the first time fetches torch, some gigabytes)")
                run(uv + package, self.root)
                return
            except SetupError as error:
                say(f"uv did not do it ({error}); trying pip")
        say("installing with pip (the first time fetches torch, some gigabytes)")
        try:
            run([*pip, "install", "--disable-pip-version-check", *package], self.root)
        except SetupError as error:
            raise SetupError(
                f"neither uv nor pip could install the packages ({error}): see their messages above, "
                "check the network and the free disk space, and run make again."
            ) from None

    def report_loops(self):
        """Says so when the compiled loops are missing: plrp works without them, only slower."""
        status = self.ask("from plrp.fast import native; print(native.status())")
        if status and "not in use" in status:
            say(f"{status}; plrp works all the same, several times slower")


def lock(file):
    """Waits until no other set-up is at work in this project.

    The lock sits on a file that is always there. The steps inherit it: where a set-up was killed and its
    installer lives on, the next set-up waits for that one too. The system lets go of it when the last ends.
    """
    os.set_inheritable(file.fileno(), True)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("waiting for another set-up of this project to end")
        fcntl.flock(file, fcntl.LOCK_EX)


def run(command, folder):
    """Runs one step in `folder`, its messages going to the terminal; a non-zero exit is a SetupError."""
    code = subprocess.run(command, cwd=str(folder), close_fds=False).returncode  # the lock goes with it
    if code < 0 or code == 130:  # ended by a signal: what it was writing may be half there
        raise KeyboardInterrupt
    if code:
        shown = " ".join(command[1:5])
        raise SetupError(f"`{shown} ...` ended with exit code {code}")


def say(text):
    """A line of progress."""
    print(f"set-up: {text}", flush=True)


def main(arguments):
    """Sets the project's environment up for the named extras; returns the exit code."""
    if not arguments or any(argument.startswith("-") for argument in arguments):
        print(__doc__)
        return 0 if {"-h", "--help"} & set(arguments) else 2
    root = Path(__file__).resolve().parents[1]
    try:
        check_python()
        environment = Environment(root)
        with (root / "pyproject.toml").open("rb") as file:
            lock(file)
            if not environment.ready(arguments):
                environment.prepare(arguments)
    except (SetupError, OSError) as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up: interrupted; the next call starts afresh.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
