"""Keras models of sequences as PyTorch modules: the layers of a config, the weights of an `.h5`; h5py alone, no Keras.

load_keras("model.h5")                     architecture and weights, as `model.save("model.h5")` writes them
load_keras("model.json", "weights.h5")     `model.to_json()` and `model.save_weights("weights.h5")`
load_keras_weights(module, "weights.h5")   weights alone, layer by layer in order, into a module of your own

A sequence is (batch, length, channels) in Keras and (batch, channels, length) in PyTorch: the module reads one-hot
(batch, 4, length) like any other here. Each Keras layer becomes one PyTorch layer. A layer without a counterpart is
refused by name, and so is a Lambda, since it would run code. Files are read as numbers and JSON only.
"""

from __future__ import annotations

import json
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from plrp.errors import needed
from plrp.files import plausible_size

from .checkpoints import CheckpointError

Arrays: TypeAlias = list[npt.NDArray[np.float32]]
SUFFIXES = (".h5", ".hdf5", ".json")
"""Files that name a Keras model."""


def load_keras(path: str | Path, weights: str | Path | None = None) -> nn.Module:
    """The model of a Keras file in evaluation mode; a `.json` needs `weights`, an `.h5` holds its own."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist.")
    config_alone = path.suffix == ".json"
    if config_alone and weights is None:
        raise CheckpointError(f"{path} holds no weights: give them with --weights weights.h5.")
    if weights is not None and not config_alone:
        raise CheckpointError(f"{path} holds its own weights: leave --weights out.")
    if config_alone:
        text = path.read_bytes()
    else:
        with _open(path) as file:
            text = file.attrs.get("model_config")
    if text is None:
        raise CheckpointError(
            f"{path} holds weights without an architecture. Give the config of model.to_json() as --model model.json "
            f"with --weights, or a PyTorch model of the same layers: --model net.py:build --weights {path.name}."
        )
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its config is not JSON ({error}).") from None
    arrays = _stored_weights(weights or path)
    try:
        return KerasModel(config, arrays).eval()
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


def load_keras_weights(module: nn.Module, path: str | Path) -> None:
    """Put the weights of a Keras file into a module whose layers with weights are the same ones in the same order.

    Layers are matched in the order of the file and of the module's attributes; kinds and shapes have to fit. Keras has
    one bias per recurrent layer and PyTorch two: the second becomes zero. Layers without weights are yours to write: a
    Dense after Flatten needs `x.transpose(1, 2).flatten(1)` before it, a norm usually `eps=1e-3`.
    """
    theirs = {name: arrays for name, arrays in _stored_weights(path, nested=False).items() if arrays}
    ours = {name: layer for name, layer in module.named_modules() if _has_weights(layer)}
    if len(theirs) != len(ours):
        raise CheckpointError(
            f"{path} has {len(theirs)} layers with weights ({', '.join(theirs)}), the model {len(ours)} "
            f"({', '.join(ours)}): they are matched one to one, in this order."
        )
    for (name, arrays), (own, layer) in zip(theirs.items(), ours.items(), strict=True):
        try:
            _fill(layer, arrays)
        except (ValueError, IndexError) as error:
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise CheckpointError(f"{path}: {name} ({shapes}) does not fit {own}, {layer}: {error}.") from None
    others = [f"{name} ({norm.eps:g})" for name, norm in ours.items() if isinstance(norm, _NORMS) and norm.eps != 1e-3]
    if others:
        warnings.warn(
            f"{path} does not say the ε of its norms, by default 1e-3 in Keras; yours have others: {', '.join(others)}."
            " Give them eps=1e-3 unless the Keras model has these.",
            stacklevel=2,
        )


class KerasModel(nn.Module):
    """A Keras model: its layers by their names, and the order in which they read each other.

    Reads one tensor per input, one-hot (batch, 4, length); returns the output, or a tuple of them.
    """

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Arrays]) -> None:
        super().__init__()
        self.steps, self.inputs, self.outputs = _graph(*_entry(config))
        for name, kind, settings, _, _ in {step[0]: step for step in self.steps}.values():
            if kind in _MODELS:
                layer: nn.Module = KerasModel({"class_name": kind, "config": settings}, weights)
            else:
                layer = _layer(name, kind, settings, weights.get(name, []))
            self.add_module(_attribute(name), layer)

    def forward(self, *given: Tensor) -> Any:
        """The output of the model."""
        if len(given) != len(self.inputs):
            raise ValueError(f"The Keras model has {len(self.inputs)} inputs, {len(given)} were given.")
        values = dict(zip(self.inputs, given, strict=True))
        for name, _, _, reads, writes in self.steps:
            values[writes] = self.get_submodule(_attribute(name))(*(values[source] for source in reads))
        outputs = tuple(values[node] for node in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs


Node: TypeAlias = tuple[str, int]
"""A value of the graph: the layer that makes it, and the number of the layer's call."""
Step: TypeAlias = tuple[str, str, dict[str, Any], list[Node], Node]
"""A call of a layer: the layer's name, kind and settings, the values that it reads, and the value that it writes."""

_MODELS = ("Sequential", "Model", "Functional")


def _attribute(name: str) -> str:
    return name.replace(".", "_").replace("/", "_")


def _entry(config: Any) -> tuple[str, dict[str, Any]]:
    """Kind and settings of a model or layer in a config."""
    try:
        settings = config["config"]
        return str(config["class_name"]), {"layers": settings} if isinstance(settings, list) else dict(settings)
    except (KeyError, TypeError, ValueError):
        raise ValueError("its config is not that of a Keras model.") from None


def _graph(kind: str, settings: Mapping[str, Any]) -> tuple[list[Step], list[Node], list[Node]]:
    """The calls of a model's layers, sorted so that each reads values of earlier calls; its inputs and its outputs."""
    if kind not in _MODELS:
        raise ValueError(f"it is a {kind}; only Sequential and functional models can be read.")
    layers = settings.get("layers")
    if not isinstance(layers, list):
        raise ValueError("its config lists no layers; only Sequential and functional models can be read.")
    steps: list[Step] = []
    if kind == "Sequential":  # each layer reads the layer before it
        first = last = ("input of Sequential", 0)
        for layer_kind, own in map(_entry, layers):
            if layer_kind != "InputLayer":
                name = str(own.get("name", f"layer_{len(steps)}"))
                steps.append((name, layer_kind, own, [last], (name, 0)))
                last = (name, 0)
        return steps, [first], [last]
    waiting: list[Step] = []
    for layer in layers:
        layer_kind, own = _entry(layer)
        name = str(layer.get("name") or own["name"])
        for number, call in enumerate(layer.get("inbound_nodes") or [[]]):
            waiting.append((name, layer_kind, own, list(_nodes(call)), (name, number)))
    there: set[Node] = set()
    while waiting:
        ready = [step for step in waiting if there.issuperset(step[3])]
        if not ready:
            raise ValueError(f"{waiting[0][0]} reads layers that are not in the config.")
        steps += [step for step in ready if step[1] != "InputLayer"]
        there.update(step[4] for step in ready)
        waiting = [step for step in waiting if step[4] not in there]
    return steps, _ends(settings, "input_layers"), _ends(settings, "output_layers")


def _ends(settings: Mapping[str, Any], which: str) -> list[Node]:
    """`[["dense_1", 0, 0], …]`, or one of them alone, as Keras 3 writes it; dictionaries by name likewise."""
    entry = settings.get(which)
    entry = list(entry.values()) if isinstance(entry, Mapping) else entry
    entries = entry if isinstance(entry, list) and not (entry and isinstance(entry[0], str)) else [entry]
    nodes = [list(_nodes(each)) for each in entries]
    if not nodes or any(len(named) != 1 for named in nodes):
        raise ValueError(f"its {which} do not name layers as [name, call, tensor].")
    return [node for (node,) in nodes]


def _nodes(entry: Any) -> Iterator[Node]:
    """The nodes that an entry names: lists `[name, call, tensor, …]` of Keras 2, tensors with a history of Keras 3."""
    if isinstance(entry, Mapping) and entry.get("class_name") == "__keras_tensor__":
        entry = entry["config"]["keras_history"]
    if isinstance(entry, list) and len(entry) >= 3 and isinstance(entry[0], str) and isinstance(entry[1], int):
        name, number, output = entry[:3]
        if output != 0:
            raise ValueError(f"output {output} of {name} is read; only the first has a counterpart here.")
        yield name, number
    elif isinstance(entry, Mapping | list):
        for value in entry.values() if isinstance(entry, Mapping) else entry:
            yield from _nodes(value)


# -- layers


def _layer(name: str, kind: str, settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    """One layer with its weights and its activation."""
    if kind not in _LAYERS:
        why = " It would run code." if kind in ("Lambda", "TFOpLambda") else ""
        raise ValueError(
            f"the layer {name} is a {kind}, which has no counterpart here.{why} Write the model in PyTorch, "
            "and take the weights of this file: --model net.py:build --weights weights.h5."
        )
    if settings.get("data_format", "channels_last") not in ("channels_last", None):
        raise ValueError(f"{name} has channels first; only Keras' default, channels last, is read.")
    try:
        return _built(kind, settings, arrays)
    except (ValueError, IndexError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{name}, a {kind}, cannot be read: {error}.") from None


def _built(kind: str, settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    layer = _LAYERS[kind](settings, arrays)
    if arrays:
        _fill(layer, arrays, settings)
    activation = None if kind in ("Activation", *_RECURRENT) else _activation(settings.get("activation"))
    return layer if activation is None else nn.Sequential(layer, activation)


_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "sigmoid": nn.Sigmoid,
    "softmax": lambda: _channels(nn.Softmax(-1)),
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "swish": nn.SiLU,
    "silu": nn.SiLU,
    "exponential": lambda: _Function("_Exponential", torch.exp),  # a first-layer activation of genomic networks
    "leaky_relu": lambda: nn.LeakyReLU(0.2),
}


def _activation(name: Any) -> nn.Module | None:
    """An activation by its name; None for a linear one."""
    if isinstance(name, Mapping):  # a layer or function that is written out
        name = name.get("config", {}).get("name") if name.get("class_name") == "function" else name.get("class_name")
    if name in (None, "linear"):
        return None
    if name not in _ACTIVATIONS:
        raise ValueError(f"the activation {name!r} is not known")
    return _ACTIVATIONS[name]()


class _Function(nn.Module):
    """A function of one value or several, and the layers that it applies, by the names of its parameters.

    It is printed under its `name`, which is part of the digest by which a run knows its model: the names stay.
    """

    def __init__(self, name: str, function: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.name, self.function = name, function
        for own, layer in layers.items():
            self.add_module(own, layer)

    def forward(self, *values: Tensor) -> Tensor:
        return self.function(*values, **dict(self.named_children()))

    def _get_name(self) -> str:
        return self.name


def _channels(layer: nn.Module) -> nn.Module:
    """A layer that works on Keras' last axis, the channels: here the second axis of a sequence."""
    return _Function("_Channels", _on_channels, layer=layer)


def _on_channels(x: Tensor, layer: nn.Module) -> Tensor:
    return layer(x.transpose(1, 2)).transpose(1, 2) if x.dim() == 3 else layer(x)


def _of_two_axes(x: Tensor, layer: nn.Module) -> Tensor:
    """A layer along axis 1 of Keras: the channels of (batch, channels); of a sequence the positions, refused."""
    if x.dim() > 2:
        raise ValueError("a layer works along axis 1, the positions; only the last axis, the channels, can be read.")
    return layer(x)


def _flattened(x: Tensor) -> Tensor:
    """Position by position, as Keras flattens."""
    return x.transpose(1, 2).flatten(1) if x.dim() == 3 else x.flatten(1)


def _padded(x: Tensor, conv: nn.Conv1d, causal: bool) -> Tensor:
    """A convolution with a stride and `same` padding, or with `causal`: the number of zeros depends on the length."""
    reach = conv.dilation[0] * (conv.kernel_size[0] - 1)
    ends = (reach, 0) if causal else _same(x.shape[-1], conv.stride[0], reach + 1)
    return conv(functional.pad(x, ends))


def _same(length: int, stride: int, width: int) -> tuple[int, int]:
    """Zeros before and after a sequence so that ⌈length / stride⌉ windows fit; the odd one comes after it."""
    total = max((math.ceil(length / stride) - 1) * stride + width - length, 0)
    return total // 2, total - total // 2


def _pooled(x: Tensor, kind: str, width: int, stride: int, same: bool) -> Tensor:
    """Max or average pooling; padding is no part of a mean or maximum."""
    left = _same(x.shape[-1], stride, width)[0] if same else 0
    if kind == "max":
        pooled = functional.max_pool1d(x, width, stride, left, ceil_mode=same)
    else:
        pooled = functional.avg_pool1d(x, width, stride, left, ceil_mode=same, count_include_pad=False)
    return pooled[..., : math.ceil(x.shape[-1] / stride)] if same else pooled


def _over_positions(x: Tensor, kind: str) -> Tensor:
    """One value per channel: the maximum or the mean over all positions."""
    return functional.adaptive_max_pool1d(x, 1)[..., 0] if kind == "max" else x.mean(-1)


def _merged(*values: Tensor, kind: str) -> Tensor:
    """Several values as one: their channels side by side, their sum, product, mean or difference."""
    if kind == "Concatenate":
        return torch.cat(values, 1)
    merged = reduce({"Multiply": operator.mul, "Subtract": operator.sub}.get(kind, operator.add), values)
    return merged / len(values) if kind == "Average" else merged


def _with_ends(x: Tensor, left: int, right: int) -> Tensor:
    """Positions cut off (negative) or zeros added at both ends."""
    return functional.pad(x, (left, right)) if min(left, right) >= 0 else x[..., -left : x.shape[-1] + right]


def _recurrent_steps(x: Tensor, net: nn.LSTM | nn.GRU, sequences: bool, merge: str | None) -> Tensor:
    """LSTM or GRU, in one direction or two, for all positions or the last alone (of each direction)."""
    steps = net(x.transpose(1, 2))[0]  # (batch, length, channels)
    ways = steps.split(net.hidden_size, -1)  # one for each direction
    if not sequences:  # the last step of the way back is the first position
        ways = [way[:, 0 if backward else -1] for backward, way in enumerate(ways)]
    merged = torch.cat(ways, -1) if merge in (None, "concat") else ways[0] + ways[1]
    merged = merged / 2 if merge == "ave" else merged
    return merged.transpose(1, 2) if sequences else merged


# -- builders of layers, from the settings of a config and the arrays of a file


def _conv(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    width, channels, out = arrays[0].shape
    stride, dilation = _one(settings.get("strides", 1)), _one(settings.get("dilation_rate", 1))
    groups, padding = int(settings.get("groups", 1)), settings.get("padding", "valid")
    if padding not in ("valid", "same", "causal"):
        raise ValueError(f"the padding {padding!r} is not known")
    plain = padding == "valid" or (padding == "same" and stride == 1)
    zeros = padding if plain else 0
    conv = nn.Conv1d(channels * groups, out, width, stride, zeros, dilation, groups, bias=len(arrays) > 1)
    return conv if plain else _Function("_Padded", partial(_padded, causal=padding == "causal"), conv=conv)


def _dense(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    channels, out = arrays[0].shape
    return _channels(nn.Linear(channels, out, bias=len(arrays) > 1))


def _along_channels(settings: Mapping[str, Any], layer: nn.Module) -> nn.Module:
    """The layer, if its axis is the last one: -1, 2, or 1 of (batch, channels), as after Flatten."""
    axis = settings.get("axis", -1)
    axis = axis[0] if isinstance(axis, list) and len(axis) == 1 else axis
    if axis not in (-1, 1, 2):
        raise ValueError(f"its axis is {axis}; the last one, the channels, can be read")
    return _Function("_LastOfTwo", _of_two_axes, layer=layer) if axis == 1 else layer


def _norm(kind: type[nn.BatchNorm1d | nn.LayerNorm], settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    if settings.get("rms_scaling"):
        raise ValueError("a norm without a mean (rms_scaling) has no counterpart")
    norm = kind(len(arrays[0]), eps=float(settings.get("epsilon", 1e-3)))
    return _along_channels(settings, norm if kind is nn.BatchNorm1d else _channels(norm))


def _pool(kind: str, settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    width = _one(settings.get("pool_size", settings.get("pool_length", 2)))
    strides = settings.get("strides")
    stride, same = width if strides is None else _one(strides), settings.get("padding") == "same"
    return _Function("_Pool", partial(_pooled, kind=kind, width=width, stride=stride, same=same))


def _pool_all(kind: str, settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    if settings.get("keepdims"):
        raise ValueError("one position that stays (keepdims) has no counterpart")
    return _Function("_Whole", partial(_over_positions, kind=kind))


_RECURRENT = ("LSTM", "GRU", "CuDNNLSTM", "CuDNNGRU")


def _recurrent(kind: str, settings: Mapping[str, Any], arrays: Arrays, merge: str | None = None) -> nn.Module:
    both = merge is not None
    size = arrays[1].shape[0]
    for name, expected in (("activation", "tanh"), ("recurrent_activation", "sigmoid")):
        if not kind.startswith("CuDNN") and settings.get(name, expected) != expected:
            raise ValueError(f"its {name} is {settings[name]}, PyTorch's is {expected}")
    if settings.get("go_backwards") or settings.get("stateful"):
        raise ValueError("layers that go backwards or keep their state between batches have no counterpart")
    if settings.get("return_state"):
        raise ValueError("its states are outputs of their own (return_state), which have no counterpart")
    if kind == "GRU" and not settings.get("reset_after", False):
        raise ValueError("PyTorch's GRU resets after the product; this one before it (reset_after=False)")
    net = (nn.LSTM if kind.endswith("LSTM") else nn.GRU)(
        arrays[0].shape[0], size, batch_first=True, bidirectional=both, bias=len(arrays) > (4 if both else 2)
    )
    sequences = bool(settings.get("return_sequences", False))
    return _Function("_Recurrent", partial(_recurrent_steps, sequences=sequences, merge=merge), net=net)


def _bidirectional(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    kind, inner = _entry(settings["layer"])
    merge = settings.get("merge_mode", "concat")
    if settings.get("backward_layer") is not None:  # Keras 3 writes the mirrored layer for every Bidirectional
        backward = _entry(settings["backward_layer"])[1]
        equal = "units activation recurrent_activation use_bias return_sequences return_state reset_after".split()
        mirrored = backward.get("go_backwards") and not inner.get("go_backwards")
        if not mirrored or any(inner.get(name) != backward.get(name) for name in equal):
            raise ValueError("a backward_layer with settings of its own has no counterpart")
    if kind not in _RECURRENT or merge not in ("concat", "sum", "ave"):
        raise ValueError(f"a bidirectional {kind} with merge_mode={merge!r} has no counterpart")
    return _recurrent(kind, inner, arrays, merge)


def _distributed(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    kind, inner = _entry(settings["layer"])
    if kind not in ("Dense", "Activation", "Dropout"):
        raise ValueError(f"a TimeDistributed {kind} has no counterpart")
    return _built(kind, inner, arrays)


def _one(value: Any) -> int:
    """A number that Keras may write as a list of one."""
    return int(value[0] if isinstance(value, (list, tuple)) else value)


def _relu(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    if settings.get("max_value") is not None or settings.get("threshold") or settings.get("negative_slope"):
        raise ValueError("a ReLU with a limit, threshold or slope has no counterpart")
    return nn.ReLU()


def _merge(kind: str, settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    if kind == "Concatenate" and settings.get("axis", -1) not in (-1, 2):
        raise ValueError(f"it joins axis {settings['axis']}; the last one, the channels, can be read")
    return _Function("_Merge", partial(_merged, kind=kind))


def _ends_changed(name: str, sign: int, settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    ends = settings.get(name, 1)
    left, right = (ends, ends) if isinstance(ends, int) else ends
    return _Function("_Ends", partial(_with_ends, left=sign * int(left), right=sign * int(right)))


_LAYERS: dict[str, Callable[[Mapping[str, Any], Arrays], nn.Module]] = {
    **dict.fromkeys(("Conv1D", "Convolution1D"), _conv),
    "Dense": _dense,
    "BatchNormalization": partial(_norm, nn.BatchNorm1d),
    "LayerNormalization": partial(_norm, nn.LayerNorm),
    "Activation": lambda settings, arrays: _activation(settings["activation"]) or nn.Identity(),
    "ReLU": _relu,
    "LeakyReLU": lambda s, arrays: nn.LeakyReLU(float(s.get("negative_slope", s.get("alpha", 0.3)))),
    "ELU": lambda settings, arrays: nn.ELU(float(settings.get("alpha", 1.0))),
    "Softmax": lambda settings, arrays: _along_channels(settings, _channels(nn.Softmax(-1))),
    "Dropout": lambda settings, arrays: nn.Dropout(float(settings.get("rate", 0.5))),
    "SpatialDropout1D": lambda settings, arrays: nn.Dropout1d(float(settings.get("rate", 0.5))),
    **dict.fromkeys(("GaussianNoise", "GaussianDropout"), lambda settings, arrays: nn.Identity()),
    "MaxPooling1D": partial(_pool, "max"),
    "AveragePooling1D": partial(_pool, "mean"),
    "GlobalMaxPooling1D": partial(_pool_all, "max"),
    "GlobalAveragePooling1D": partial(_pool_all, "mean"),
    "Flatten": lambda settings, arrays: _Function("_Flat", _flattened),
    **{kind: partial(_merge, kind) for kind in ("Concatenate", "Add", "Multiply", "Average", "Subtract")},
    "Cropping1D": partial(_ends_changed, "cropping", -1),
    "ZeroPadding1D": partial(_ends_changed, "padding", 1),
    **{kind: partial(_recurrent, kind) for kind in _RECURRENT},
    "Bidirectional": _bidirectional,
    "TimeDistributed": _distributed,
}


# -- weights

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)
_DEFAULTED = {"weight", "bias", "num_batches_tracked"}
"""Entries of a layer that Keras may leave out: a scale of 1, a shift of 0."""


def _has_weights(layer: nn.Module) -> bool:
    """Whether a layer has weights of its own, apart from the layers inside."""
    return next(layer.parameters(recurse=False), None) is not None


def _fill(layer: nn.Module, arrays: Arrays, settings: Mapping[str, Any] | None = None) -> None:
    """Put Keras' arrays, in its order, into one layer (or the one inside)."""
    for inner in layer.modules():
        if isinstance(inner, (nn.LSTM, nn.GRU)):
            values = _recurrent_weights(inner, arrays)
        elif isinstance(inner, (nn.Conv1d, nn.Conv2d, nn.Linear)):
            *places, channels, out = range(arrays[0].ndim)
            values = {"weight": arrays[0].transpose(out, channels, *places)}
            values |= dict(zip(["bias"], arrays[1:], strict=False))
        elif isinstance(inner, _NORMS):
            entries = (("weight", "scale"), ("bias", "center"))
            names = [name for name, setting in entries if (settings or {}).get(setting, True)]
            if not isinstance(inner, nn.LayerNorm):
                names += ["running_mean", "running_var"]
            values = dict(zip(names, arrays, strict=True))
        elif _has_weights(inner):
            raise ValueError(f"weights of a {type(inner).__name__} cannot be read from Keras")
        else:
            continue
        expected = inner.state_dict()
        missing = [name for name in expected if name not in values and name not in _DEFAULTED]
        if missing or (len(values) < len(arrays) and not isinstance(inner, (nn.LSTM, nn.GRU))):
            raise ValueError(f"{len(arrays)} arrays for {', '.join(expected)}")
        for name, value in values.items():
            if tuple(expected[name].shape) != value.shape:
                raise ValueError(f"{name} is {value.shape} in the file, {tuple(expected[name].shape)} in the model")
            if not np.isfinite(value).all():
                raise ValueError(f"{name} holds infinite or undefined numbers")
        inner.load_state_dict({name: torch.tensor(np.ascontiguousarray(v)) for name, v in values.items()}, strict=False)
        return


def _recurrent_weights(net: nn.LSTM | nn.GRU, arrays: Arrays) -> dict[str, npt.NDArray[np.float32]]:
    """Keras has the gates side by side, PyTorch one below the other; i f c o becomes i f g o, z r h becomes r z n."""
    order = [0, 1, 2, 3] if isinstance(net, nn.LSTM) else [1, 0, 2]
    gates = len(order)

    def rows(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.concatenate([np.split(array, gates)[gate] for gate in order])

    weights: dict[str, npt.NDArray[np.float32]] = {}
    ends = ("_l0", "_l0_reverse") if net.bidirectional else ("_l0",)
    each = len(arrays) // len(ends)
    for direction, end in enumerate(ends):
        kernel, recurrent, *bias = arrays[direction * each : (direction + 1) * each]
        width = gates * recurrent.shape[0]
        if bias and bias[0].size == 2 * width and bias[0].ndim == 1:  # CuDNN's own layout
            kernel = np.hstack([k.T.reshape(k.shape, order="F") for k in np.hsplit(kernel, gates)])
            recurrent = np.hstack([k.T for k in np.hsplit(recurrent, gates)])
        weights[f"weight_ih{end}"], weights[f"weight_hh{end}"] = rows(kernel.T), rows(recurrent.T)
        if net.bias:
            nothing = np.zeros(2 * width, np.float32)
            biases = np.concatenate([*(part.ravel() for part in bias), nothing]).reshape(-1, width)
            weights[f"bias_ih{end}"], weights[f"bias_hh{end}"] = rows(biases[0]), rows(biases[1])
    return weights


# -- files


def _open(path: str | Path) -> Any:
    with needed("Keras' .h5 files need h5py", "genomics"):
        import h5py
    if not Path(path).is_file():
        raise CheckpointError(f"the weights {path} do not exist.")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise CheckpointError(f"{path} is truncated or not an HDF5 file ({error}): save it again.") from None


def _stored_weights(path: str | Path, nested: bool = True) -> dict[str, Arrays]:
    """The arrays of every layer in the file's order; with `nested` also those of layers inside other models."""
    layers: dict[str, Arrays] = {}
    inside: dict[str, Arrays] = {}
    stored: list[tuple[str, str, Any]] = []
    with _open(path) as file:
        try:
            group = _inside(file, "model_weights") if "model_weights" in file else file
            for raw in _names(group, "layer_names"):
                layer = _inside(group, raw)
                layers[raw] = []
                stored += [(raw, name, _inside(layer, name)) for name in _names(layer, "weight_names")]
            if sum(data.nbytes for _, _, data in stored) > plausible_size(path):  # also of arrays never written
                raise ValueError("its arrays take over 100 times the size of the file; save it uncompressed")
            for raw, name, data in stored:
                if data.external or data.is_virtual or not np.issubdtype(data.dtype, np.floating):
                    raise ValueError(f"{name} does not hold numbers of its own")
                array = np.asarray(data[()], np.float32)
                layers[raw].append(array)
                for part in set(name.split("/")[:-1]):
                    inside.setdefault(part, []).append(array)
        except (KeyError, OSError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} does not hold Keras weights as they are read here: {error}.") from None
    return {**inside, **layers} if nested else layers


def _names(group: Any, attribute: str) -> list[str]:
    """A list of names that Keras stores in an attribute; a long list in several attributes."""
    pieces = sorted((a for a in group.attrs if re.fullmatch(rf"{attribute}\d*", a)), key=lambda a: (len(a), a))
    if not pieces and attribute == "layer_names":
        raise ValueError("no layer_names: Keras 3 writes model.save('model.h5') as it is read here")
    names = [name for piece in pieces for name in np.asarray(group.attrs[piece]).ravel()]
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]


def _inside(group: Any, path: str) -> Any:
    """The group or data set at a path inside this file; links to other files are refused."""
    import h5py

    for part in path.split("/"):
        if not isinstance(group.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"{path} is a link")
        group = group[part]
    return group
