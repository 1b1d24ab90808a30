"""Packages whose names are loaded when they are first used: `plrp --help` waits for no torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that imports a name when it is first used.

    The package says once which module defines which name: in its `if TYPE_CHECKING:` block, for type checkers and here.
    """
    namespace = sys.modules[package]

    def load(name: str) -> Any:
        if not name.isidentifier():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = _homes(package).get(name)
        wanted = f"{package}.{home or name}"
        try:
            module = import_module(wanted)
        except ModuleNotFoundError as error:
            if error.name != wanted:
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
        value = module if home is None else getattr(module, name)
        setattr(namespace, name, value)
        return value

    return load, lambda: sorted({*namespace.__dict__, *namespace.__all__})


@cache
def _homes(package: str) -> dict[str, str]:
    """The module of each name that the package imports `if TYPE_CHECKING`."""
    source = sys.modules[package].__spec__.loader.get_source(package)  # type: ignore[union-attr]
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in imports if node.module for alias in node.names}
