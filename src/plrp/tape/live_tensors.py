"""The tensors of a forward pass that are alive: which value each holds, who shares its memory, whose layer it names."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from .values import Value, tensors_in


class LiveTensors:
    """The values and the memory of tensors while they live, by their ids."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._values: dict[int, tuple[weakref.ref[Tensor], Value, Any]] = {}  # and the state that it was recorded in
        self._living: dict[int, weakref.ref[Tensor]] = {}  # tensors that may share their memory with others
        self._independent: dict[int, weakref.ref[Tensor]] = {}  # constants that were computed from nothing of the input
        self._declared: dict[int, weakref.ref[Tensor]] = {}  # constants because a user's rule says so

    def know(self, tensor: Tensor, value: Value) -> None:
        """From now on, `tensor` holds `value`."""
        alive = self._living[id(tensor)] = weakref.ref(tensor)
        self._values[id(tensor)] = (alive, value, _state(tensor))

    def forget(self, tensor: Tensor) -> None:
        """From now on, `tensor` is a constant."""
        self._values.pop(id(tensor), None)

    def forget_all_but(self, tensors: Iterable[Tensor]) -> None:
        """Know these tensors only. Any other lives as long as the tape needs it."""
        self._values = {id(t): self._values[id(t)] for t in tensors if id(t) in self._values}

    def value(self, tensor: Any) -> Value | None:
        """The value that a tensor holds, if it depends on the input."""
        entry = self._values.get(id(tensor))
        return None if entry is None or entry[0]() is not tensor else entry[1]

    def changed(self, tensor: Tensor) -> bool:
        """Whether a tensor was written into since its value was recorded."""
        return _state(tensor) != self._values[id(tensor)][2]

    def note(self, tensors: Iterable[Tensor]) -> None:
        """Remember tensors whose memory others may come to share."""
        for tensor in tensors:
            self._living[id(tensor)] = weakref.ref(tensor)

    def shares_memory(self, target: Tensor) -> bool:
        """Whether another tensor that is in use has the same memory."""
        self._living = {key: alive for key, alive in self._living.items() if alive() is not None}
        others = (t for alive in self._living.values() if (t := alive()) is not None and t is not target)
        memory = _storage(target)
        return target.numel() > 0 and any(_storage(other) == memory for other in others)

    def of_model(self, target: Tensor) -> bool:
        """Whether a tensor lies in the memory of the model, which nothing may write into."""
        return _storage(target) in self._storages_of_model

    @cached_property
    def _storages_of_model(self) -> set[int]:
        if not isinstance(self._model, nn.Module):
            return set()
        return {_storage(tensor) for tensor in (*self._model.parameters(), *self._model.buffers())}

    def mark_independent(self, tensors: Iterable[Tensor], independent: bool) -> None:
        """Whether a function that computed these tensors read nothing of the input."""
        for tensor in tensors:
            if independent:
                self._independent[id(tensor)] = weakref.ref(tensor)
            else:
                self._independent.pop(id(tensor), None)

    def independent(self, tensor: Tensor) -> bool:
        """Whether a tensor was computed from nothing of the input."""
        alive = self._independent.get(id(tensor))
        return alive is not None and alive() is tensor

    def declare(self, tensors: Iterable[Tensor]) -> None:
        """These tensors are constants because a user's rule says so, whatever they depend on."""
        for tensor in tensors:
            self._declared[id(tensor)] = weakref.ref(tensor)

    def declared(self, tensors: Iterable[Tensor]) -> bool:
        """Whether one of these tensors was declared a constant."""
        return bool(self._declared) and any(
            (alive := self._declared.get(id(tensor))) is not None and alive() is tensor for tensor in tensors
        )


class Wrapped(nn.Module):
    """A model in another form, whose layers and parameters keep the model's own names."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.training = getattr(model, "training", False)  # not `train`, which would set it in all layers of the model
        self.model = model

    def named_modules(self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True) -> Iterator[Any]:
        """The modules of the model."""
        known = isinstance(self.model, nn.Module)
        return iter(self.model.named_modules(memo, prefix, remove_duplicate) if known else [])

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """The parameters of the model."""
        return iter(self.model.named_parameters(*args, **kwargs) if isinstance(self.model, nn.Module) else [])


class ByName(Wrapped):
    """A model that is called with its inputs by name: `model(**batch)`; `others` are passed on as they are."""

    def __init__(self, model: Any, names: Sequence[str], others: Mapping[str, Any]) -> None:
        super().__init__(model)
        self.names, self.others = tuple(names), dict(others)

    def forward(self, *inputs: Tensor) -> Any:
        """The model's output."""
        try:
            return self.model(**dict(zip(self.names, inputs, strict=True)), **self.others)
        except TypeError as error:
            if "keyword argument" not in str(error):
                raise
            raise TypeError(
                f"{error}: name the inputs as the model does, or give the tensors in a tuple. Explain a model that "
                "reads a dict as a function of its tensors: lambda a, b: model({'a': a, 'b': b})."
            ) from error

    @classmethod
    def of(cls, model: Any, inputs: Any) -> tuple[Any, Any]:
        """The model and its inputs by place, where these are a mapping from names to tensors."""
        if not isinstance(inputs, Mapping):
            return model, inputs
        tensors = {name: x for name, x in inputs.items() if isinstance(x, Tensor)}
        others = {name: x for name, x in inputs.items() if name not in tensors}
        given = tuple(tensors.values())
        return cls(model, list(tensors), others), given[0] if len(given) == 1 else given


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
        self.own = frozenset(self._names)  # ids of the model's tensors, which live as long as it does

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


def snapshot(tensor: Tensor) -> Tensor:
    """The tensor for the tape: an alias, or a copy of one made in inference mode, which autograd would not take."""
    if tensor.is_inference():
        with torch.inference_mode(False):
            return tensor.clone()
    return tensor.detach()


PROBED = 4096  # entries of a weight that are compared


def probe(weight: Tensor) -> Tensor:
    """Some entries of a weight, evenly spread: all of a small one."""
    flat = weight.detach().view(-1) if weight.is_contiguous() else weight.detach().flatten()
    entries = flat[:: 1 + flat.numel() // PROBED]
    return entries.nan_to_num() if entries.is_floating_point() else entries


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # a sparse tensor, or one without memory, as torch.func makes them
        return -id(tensor)


def _state(tensor: Tensor) -> tuple[int, int | None]:
    """Where a tensor's data lies, and how often it was written into."""
    try:
        return tensor.data_ptr(), tensor._version
    except RuntimeError:  # made in inference mode, or without memory, as torch.func makes them
        pass
    try:
        return tensor.data_ptr(), None
    except RuntimeError:
        return 0, None
