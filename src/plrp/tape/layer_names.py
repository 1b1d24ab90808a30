"""The names of layers: the paths of the parameters that they use."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from .values import tensors_in


class LayerNames:
    """Names the entries of a tape after the parameters of a model that they read."""

    def __init__(self, model: Any) -> None:
        self._model = model if isinstance(model, nn.Module) else None
        self._names: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._calls: dict[str, int] = {}
        for prefix, module in () if self._model is None else self._model.named_modules():
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None and id(tensor) not in self._names:
                    path = f"{prefix}.{name}" if prefix else name
                    self._names[id(tensor)] = (weakref.ref(tensor), _layer_path(path))

    def name(self, kind: str, tensors: Sequence[Tensor]) -> str:
        """The path of the parameter among these tensors, `#2` for its second call; else the operation's kind."""
        path = self._first(tensors) or kind
        self._calls[path] = self._calls.get(path, 0) + 1
        return path if self._calls[path] == 1 else f"{path}#{self._calls[path]}"

    def inherit(self, tensors: Sequence[Tensor], result: Any) -> None:
        """A tensor computed from parameters alone carries their layer's name (weight norm, masks, tied transposes)."""
        name = self._first(tensors)
        for tensor in tensors_in(result):
            if self._first((tensor,)) is not None:
                continue
            if name is not None:
                self._names[id(tensor)] = (weakref.ref(tensor), name)
            else:
                self._names.pop(id(tensor), None)  # of a tensor that is gone

    def path_of(self, module: nn.Module) -> str:
        """Where in the model a module is."""
        modules = () if self._model is None else self._model.named_modules()
        return next((name for name, one in modules if one is module), "")

    def _first(self, tensors: Sequence[Tensor]) -> str | None:
        """The name of the first of these tensors that has one."""
        for tensor in tensors:
            entry = self._names.get(id(tensor))
            if entry is not None and entry[0]() is tensor:
                return entry[1]
        return None


def _layer_path(parameter: str) -> str:
    """`features.0.weight` → `features.0`; `conv.parametrizations.weight.original0` → `conv`."""
    path, parametrized, _ = parameter.partition(".parametrizations.")
    path = path if parametrized else parameter.rpartition(".")[0]
    return "" if path.startswith("parametrizations.") else path
