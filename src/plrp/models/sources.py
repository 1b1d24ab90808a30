"""The sources of a model: its own Python file, the user's files that it imports, and its weights."""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import re
import sysconfig
from collections.abc import Iterator
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

import torch
from torch import nn


def source_files(file: str | Path) -> dict[str, Path]:
    """The file of a model and every file it imports from beside it, from folders below, or from PYTHONPATH.

    By name, relative to the folder that each is imported from, the model's own first. The imports are read, not run, in
    functions and `if` blocks too; imports by a computed name are not seen. Installed packages are left out.
    """
    file = Path(file)
    return {file.name: file, **dict(sorted(imported_modules(file).values()))}


def imported_modules(file: str | Path) -> dict[str, tuple[str, Path]]:
    """The user's modules that a file imports, directly or through others: name to (file's name, path)."""
    file = Path(file).resolve()
    paths = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    roots = [str(file.parent), *(str(Path(folder).resolve()) for folder in paths)]
    modules: dict[str, tuple[str, Path]] = {}
    waiting: list[tuple[Path, str]] = [(file, "")]
    while waiting:
        path, package = waiting.pop()
        for name in _imports(path, package):
            for module, place, is_package in _modules_on_the_way(name, roots):
                if module not in modules and place != file:
                    names = [place.relative_to(root).as_posix() for root in roots if place.is_relative_to(root)]
                    # a link to elsewhere has the name it is imported by
                    names.append(module.replace(".", "/") + ("/__init__.py" if is_package else ".py"))
                    modules[module] = (names[0], place)
                    waiting.append((place, module if is_package else module.rpartition(".")[0]))
    return modules


def _imports(path: Path, package: str) -> Iterator[str]:
    """Full names of a file's imports; for `from a import b` both `a` and `a.b`, since b may be a module."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError):
        return  # importing it will name the fault
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*above, node.module or ""]))
            yield from filter(None, [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)])


def _modules_on_the_way(name: str, roots: list[str]) -> Iterator[tuple[str, Path, bool]]:
    """The user's modules that `import a.b.c` runs, among `a`, `a.b` and `a.b.c`: name, file, whether a package."""
    words = name.split(".")
    where: list[str] | None = roots
    for count in range(1, len(words) + 1):
        module = ".".join(words[:count])
        spec = PathFinder.find_spec(module, where)
        if spec is None or module == "plrp":
            return
        if isinstance(spec.loader, SourceFileLoader):
            path = Path(spec.loader.path).resolve()
            if installed(path):
                return
            yield module, path, spec.submodule_search_locations is not None
        if spec.submodule_search_locations is None:
            return
        where = list(spec.submodule_search_locations)


def installed(path: Path) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    library = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    packages = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(packages) or any(path.is_relative_to(folder) for folder in library)


def source_of_module(model: nn.Module) -> str:
    """A loaded model as text: its layers with their settings, and the source of its classes.

    Classes of installed packages, and classes without a source file, are given by their names.
    """
    kinds = {}
    for layer in model.modules():
        kind = type(layer)
        own = kind.__module__.startswith("plrp.")  # one class of ours may stand for several layers
        kinds[f"{kind.__module__}.{layer._get_name() if own else kind.__qualname__}"] = kind
    parts = [re.sub(r" at 0x[0-9a-f]+", "", repr(model))]
    for name, kind in sorted(kinds.items()):
        try:
            file = inspect.getsourcefile(kind)
            foreign = file is None or installed(Path(file).resolve()) or kind.__module__.partition(".")[0] == "plrp"
            parts.append(name if foreign else inspect.getsource(kind))
        except (OSError, TypeError):
            parts.append(name)
    return "\n".join(parts)


def weights_digest(model: nn.Module) -> str:
    """A hash of a model's state dict."""
    state = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        state.update(name.encode())
        state.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()[:16]
