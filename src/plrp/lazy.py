"""Packages whose names are loaded when they are first used: `plrp --help` waits for no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose modules, the keys of `homes`, define these names."""
    home = {name: module for module, names in homes.items() for name in names}

    namespace = sys.modules[package]

    def load(name: str) -> Any:
        wanted = f"{package}.{home.get(name, name)}"
        if not name.isidentifier():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(wanted)
        except ModuleNotFoundError as error:
            if error.name != wanted:
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
        value = getattr(module, name) if name in home else module
        setattr(namespace, name, value)
        return value

    return load, lambda: sorted({*namespace.__dict__, *namespace.__all__})
