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

from plrp.errors import not_installed

from .checkpoints import CheckpointError

Arrays: TypeAlias = list[npt.NDArray[np.float32]]
SUFFIXES = (".h5", ".hdf5", ".json")
"""Files that name a Keras model."""


def load_keras(path: str | Path, weights: str | Path | None = None) -> nn.Module:
    """The model of a Keras file in evaluation mode; a `.json` needs `weights`, an `.h5` holds its own."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist.")
    if path.suffix == ".json":
        if weights is None:
            raise CheckpointError(f"{path} holds no weights: give them with --weights weights.h5.")
        config, arrays = _json(path.read_bytes(), path), _stored_weights(weights)
    else:
        if weights is not None:
            raise CheckpointError(f"{path} holds its own weights: leave --weights out.")
        config, arrays = _stored_config(path), _stored_weights(path)
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
    ours = {
        name: layer for name, layer in module.named_modules() if next(layer.parameters(recurse=False), None) is not None
    }
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
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)
    others = [
        f"{name} ({layer.eps:g})" for name, layer in ours.items() if isinstance(layer, norms) and layer.eps != 1e-3
    ]
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
        kind, settings = _entry(config)
        nodes = _sequential(settings) if kind == "Sequential" else _functional(kind, settings)
        self.steps, self.inputs, self.outputs = nodes
        for name, (kind, own) in {name: layer for name, layer, _, _ in self.steps}.items():
            if kind == "InputLayer":
                continue
            if kind in ("Sequential", *_GRAPHS):
                made: nn.Module = KerasModel({"class_name": kind, "config": own}, weights)
            else:
                made = _layer(name, kind, own, weights.get(name, []))
            self.add_module(_attribute(name), made)

    def forward(self, *given: Tensor) -> Any:
        """The output of the model."""
        if len(given) != len(self.inputs):
            raise ValueError(f"The Keras model has {len(self.inputs)} inputs, {len(given)} were given.")
        values: dict[tuple[str, int], Tensor] = dict(zip(self.inputs, given, strict=True))
        for name, (kind, _), reads, writes in self.steps:
            if kind != "InputLayer":
                values[writes] = self.get_submodule(_attribute(name))(*(values[one] for one in reads))
        outputs = tuple(values[one] for one in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs


Step: TypeAlias = tuple[str, tuple[str, dict[str, Any]], list[tuple[str, int]], tuple[str, int]]
"""Layer name; its kind and settings; the values it reads and the one it writes, as (layer, which call of it)."""
Nodes: TypeAlias = tuple[list[Step], list[tuple[str, int]], list[tuple[str, int]]]

_GRAPHS = ("Model", "Functional")


def _attribute(name: str) -> str:
    return name.replace(".", "_").replace("/", "_")


def _entry(config: Any) -> tuple[str, dict[str, Any]]:
    """Kind and settings of a model or layer in a config."""
    try:
        settings = config["config"]
        return str(config["class_name"]), {"layers": settings} if isinstance(settings, list) else dict(settings)
    except (KeyError, TypeError, ValueError):
        raise ValueError("its config is not that of a Keras model.") from None


def _layers(settings: Mapping[str, Any]) -> list[Any]:
    layers = settings.get("layers")
    if not isinstance(layers, list):
        raise ValueError("its config lists no layers; only Sequential and functional models can be read.")
    return layers


def _sequential(settings: Mapping[str, Any]) -> Nodes:
    """Each layer reads the one before it."""
    steps: list[Step] = []
    first = last = ("input of Sequential", 0)
    for layer in _layers(settings):
        kind, own = _entry(layer)
        if kind != "InputLayer":
            name = str(own.get("name", f"layer_{len(steps)}"))
            steps.append((name, (kind, own), [last], (name, 0)))
            last = (name, 0)
    return steps, [first], [last]


def _functional(kind: str, settings: Mapping[str, Any]) -> Nodes:
    """A graph: each call of a layer is a node that names the nodes it reads; sorted so that these come first."""
    if kind not in _GRAPHS:
        raise ValueError(f"it is a {kind}; only Sequential and functional models can be read.")
    waiting: list[Step] = []
    for layer in _layers(settings):
        layer_kind, own = _entry(layer)
        name = str(layer.get("name") or own["name"])
        for number, call in enumerate(layer.get("inbound_nodes") or [[]]):
            waiting.append((name, (layer_kind, own), list(_sources(call)), (name, number)))
    steps: list[Step] = []
    there: set[tuple[str, int]] = set()
    while waiting:
        ready = [step for step in waiting if there.issuperset(step[2])]
        if not ready:
            raise ValueError(f"{waiting[0][0]} reads layers that are not in the config.")
        steps += ready
        there.update(step[3] for step in ready)
        waiting = [step for step in waiting if step[3] not in there]
    inputs, outputs = (_ends(settings.get(name, [])) for name in ("input_layers", "output_layers"))
    return steps, inputs, outputs


def _ends(entry: Any) -> list[tuple[str, int]]:
    """`[["dense_1", 0, 0], …]`, or one of them alone, as Keras 3 writes it; dictionaries by name likewise."""
    if isinstance(entry, Mapping):
        entry = list(entry.values())
    if entry and isinstance(entry[0], str):
        entry = [entry]
    return [_node(one) for one in entry]


def _node(entry: Any) -> tuple[str, int]:
    """Layer and call of `[name, call, tensor, …]`; a layer has one output here, the first."""
    name, number, *rest = entry
    if rest and rest[0] != 0:
        raise ValueError(f"output {rest[0]} of {name} is read; only the first has a counterpart here.")
    return str(name), int(number)


def _sources(call: Any) -> Iterator[tuple[str, int]]:
    """The nodes that a call reads: lists `[name, call, tensor, …]` of Keras 2, tensors with a history of Keras 3."""
    if isinstance(call, Mapping) and call.get("class_name") == "__keras_tensor__":
        yield _node(call["config"]["keras_history"])
    elif isinstance(call, list) and len(call) >= 3 and isinstance(call[0], str) and isinstance(call[1], int):
        yield _node(call)
    elif isinstance(call, Mapping | list):
        for value in call.values() if isinstance(call, Mapping) else call:
            yield from _sources(value)


# -- layers


def _layer(name: str, kind: str, settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    """One layer with its weights and its activation."""
    build = _LAYERS.get(kind)
    if build is None:
        why = " It would run code." if kind in ("Lambda", "TFOpLambda") else ""
        raise ValueError(
            f"the layer {name} is a {kind}, which has no counterpart here.{why} Write the model in PyTorch, "
            "and take the weights of this file: --model net.py:build --weights weights.h5."
        )
    if settings.get("data_format", "channels_last") not in ("channels_last", None):
        raise ValueError(f"{name} has channels first; only Keras' default, channels last, is read.")
    try:
        layer = build(settings, arrays)
        if arrays:
            _fill(layer, arrays, settings)
        activation = _activation(settings.get("activation"))
    except (ValueError, IndexError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{name}, a {kind}, cannot be read: {error}.") from None
    if activation is None or kind in _RECURRENT or kind == "Bidirectional":
        return layer
    return layer if kind == "Activation" else nn.Sequential(layer, activation)


_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "sigmoid": nn.Sigmoid,
    "softmax": lambda: _Channels(nn.Softmax(-1)),
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "swish": nn.SiLU,
    "silu": nn.SiLU,
    "exponential": lambda: _Function(torch.exp),  # a first-layer activation of genomic networks
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
    """A layer without weights: a function of one value or several."""

    def __init__(self, function: Callable[..., Tensor], **settings: Any) -> None:
        super().__init__()
        self.function = partial(function, **settings)

    def forward(self, *values: Tensor) -> Tensor:
        return self.function(*values)


class _Channels(nn.Module):
    """A layer that works on the channels, Keras' last axis: here the second one of a sequence."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(1, 2)).transpose(1, 2) if x.dim() == 3 else self.layer(x)


def _flattened(x: Tensor) -> Tensor:
    """Position by position, as Keras flattens."""
    return x.transpose(1, 2).flatten(1) if x.dim() == 3 else x.flatten(1)


class _Padded(nn.Module):
    """`same` padding with a stride, and `causal`: how many zeros depends on the length."""

    def __init__(self, conv: nn.Conv1d, causal: bool) -> None:
        super().__init__()
        self.conv, self.causal = conv, causal

    def forward(self, x: Tensor) -> Tensor:
        (stride,), (width,), (dilation,) = self.conv.stride, self.conv.kernel_size, self.conv.dilation
        reach = dilation * (width - 1)
        left, right = (reach, 0) if self.causal else _same(x.shape[-1], stride, reach + 1)
        return self.conv(functional.pad(x, (left, right)))


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


class _Recurrent(nn.Module):
    """LSTM or GRU, in one direction or two, for all positions or the last alone (of each direction)."""

    def __init__(self, net: nn.LSTM | nn.GRU, sequences: bool, merge: str | None) -> None:
        super().__init__()
        self.net, self.sequences, self.merge = net, sequences, merge

    def forward(self, x: Tensor) -> Tensor:
        steps = self.net(x.transpose(1, 2))[0]  # (batch, length, channels)
        ways = steps.split(self.net.hidden_size, -1)  # one for each direction
        if not self.sequences:  # the last step of the way back is the first position
            ways = [way[:, 0 if backward else -1] for backward, way in enumerate(ways)]
        merged = torch.cat(ways, -1) if self.merge in (None, "concat") else ways[0] + ways[1]
        merged = merged / 2 if self.merge == "ave" else merged
        return merged.transpose(1, 2) if self.sequences else merged


def _conv(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    width, channels, out = arrays[0].shape
    stride, dilation = _one(settings.get("strides", 1)), _one(settings.get("dilation_rate", 1))
    groups, padding = int(settings.get("groups", 1)), settings.get("padding", "valid")
    plain = padding == "valid" or (padding == "same" and stride == 1)
    conv = nn.Conv1d(
        channels * groups, out, width, stride, dilation=dilation, groups=groups, bias=len(arrays) > 1,
        padding=padding if plain else 0,
    )  # fmt: skip
    if padding not in ("valid", "same", "causal"):
        raise ValueError(f"the padding {padding!r} is not known")
    return conv if plain else _Padded(conv, padding == "causal")


def _dense(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    return _Channels(nn.Linear(arrays[0].shape[0], arrays[0].shape[1], bias=len(arrays) > 1))


class _LastOfTwo(nn.Module):
    """A layer along axis 1 of Keras: the channels of (batch, channels); of a sequence the positions, refused."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() > 2:
            raise ValueError(
                "a layer works along axis 1, the positions; only the last axis, the channels, can be read."
            )
        return self.layer(x)


def _along_channels(settings: Mapping[str, Any], layer: nn.Module) -> nn.Module:
    """The layer, if its axis is the last one: -1, 2, or 1 of (batch, channels), as after Flatten."""
    axis = settings.get("axis", -1)
    axis = axis[0] if isinstance(axis, list) and len(axis) == 1 else axis
    if axis not in (-1, 1, 2):
        raise ValueError(f"its axis is {axis}; the last one, the channels, can be read")
    return _LastOfTwo(layer) if axis == 1 else layer


def _norm(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    return _along_channels(settings, nn.BatchNorm1d(len(arrays[0]), eps=float(settings.get("epsilon", 1e-3))))


def _layer_norm(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    if settings.get("rms_scaling"):
        raise ValueError("a norm without a mean (rms_scaling) has no counterpart")
    norm = nn.LayerNorm(len(arrays[0]), eps=float(settings.get("epsilon", 1e-3)))
    return _along_channels(settings, _Channels(norm))


def _softmax(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    return _along_channels(settings, _Channels(nn.Softmax(-1)))


def _whole(kind: str, settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    if settings.get("keepdims"):
        raise ValueError("one position that stays (keepdims) has no counterpart")
    return _Function(_over_positions, kind=kind)


def _pool(kind: str) -> Callable[[Mapping[str, Any], Arrays], nn.Module]:
    def build(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
        width = _one(settings.get("pool_size", settings.get("pool_length", 2)))
        strides = settings.get("strides")
        stride, same = width if strides is None else _one(strides), settings.get("padding") == "same"
        return _Function(_pooled, kind=kind, width=width, stride=stride, same=same)

    return build


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
    return _Recurrent(net, bool(settings.get("return_sequences", False)), merge)


def _bidirectional(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    kind, inner = _entry(settings["layer"])
    merge = settings.get("merge_mode", "concat")
    back = settings.get("backward_layer")
    if back is not None and not _is_mirrored(inner, _entry(back)[1]):
        raise ValueError("a backward_layer with settings of its own has no counterpart")
    if kind not in _RECURRENT or merge not in ("concat", "sum", "ave"):
        raise ValueError(f"a bidirectional {kind} with merge_mode={merge!r} has no counterpart")
    return _recurrent(kind, inner, arrays, merge)


def _is_mirrored(forward: Mapping[str, Any], backward: Mapping[str, Any]) -> bool:
    """Whether a backward layer is the forward one read from the end, as Keras 3 writes it for every Bidirectional."""
    there = bool(forward.get("go_backwards")), bool(backward.get("go_backwards"))
    keys = (
        "units",
        "activation",
        "recurrent_activation",
        "use_bias",
        "return_sequences",
        "return_state",
        "reset_after",
    )
    return there == (False, True) and all(forward.get(key) == backward.get(key) for key in keys)


def _distributed(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    kind, inner = _entry(settings["layer"])
    if kind not in ("Dense", "Activation", "Dropout"):
        raise ValueError(f"a TimeDistributed {kind} has no counterpart")
    layer, activation = _LAYERS[kind](inner, arrays), _activation(inner.get("activation"))
    return layer if kind == "Activation" or activation is None else nn.Sequential(layer, activation)


def _one(value: Any) -> int:
    """A number that Keras may write as a list of one."""
    return int(value[0] if isinstance(value, (list, tuple)) else value)


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _leaky(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    return nn.LeakyReLU(float(settings.get("negative_slope", settings.get("alpha", 0.3))))


def _relu(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    if settings.get("max_value") is not None or settings.get("threshold") or settings.get("negative_slope"):
        raise ValueError("a ReLU with a limit, threshold or slope has no counterpart")
    return nn.ReLU()


def _concatenate(settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    if settings.get("axis", -1) not in (-1, 2):
        raise ValueError(f"it joins axis {settings['axis']}; the last one, the channels, can be read")
    return _Function(_merged, kind="Concatenate")


def _merge(kind: str, settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    return _Function(_merged, kind=kind)


def _ends_changed(name: str, sign: int, settings: Mapping[str, Any], arrays: Arrays) -> nn.Module:
    left, right = _pair(settings.get(name, 1))
    return _Function(_with_ends, left=sign * left, right=sign * right)


_LAYERS: dict[str, Callable[[Mapping[str, Any], Arrays], nn.Module]] = {
    "Conv1D": _conv,
    "Convolution1D": _conv,
    "Dense": _dense,
    "BatchNormalization": _norm,
    "LayerNormalization": _layer_norm,
    "Activation": lambda settings, arrays: _activation(settings["activation"]) or nn.Identity(),
    "ReLU": _relu,
    "LeakyReLU": _leaky,
    "ELU": lambda settings, arrays: nn.ELU(float(settings.get("alpha", 1.0))),
    "Softmax": _softmax,
    "Dropout": lambda settings, arrays: nn.Dropout(float(settings.get("rate", 0.5))),
    "SpatialDropout1D": lambda settings, arrays: nn.Dropout1d(float(settings.get("rate", 0.5))),
    "GaussianNoise": lambda settings, arrays: nn.Identity(),
    "GaussianDropout": lambda settings, arrays: nn.Identity(),
    "MaxPooling1D": _pool("max"),
    "AveragePooling1D": _pool("mean"),
    "GlobalMaxPooling1D": partial(_whole, "max"),
    "GlobalAveragePooling1D": partial(_whole, "mean"),
    "Flatten": lambda settings, arrays: _Function(_flattened),
    "Concatenate": _concatenate,
    **{kind: partial(_merge, kind) for kind in ("Add", "Multiply", "Average", "Subtract")},
    "Cropping1D": partial(_ends_changed, "cropping", -1),
    "ZeroPadding1D": partial(_ends_changed, "padding", 1),
    **{kind: partial(_recurrent, kind) for kind in _RECURRENT},
    "Bidirectional": _bidirectional,
    "TimeDistributed": _distributed,
}


# -- weights


def _fill(layer: nn.Module, arrays: Arrays, settings: Mapping[str, Any] | None = None) -> None:
    """Put Keras' arrays, in its order, into one layer (or the one inside)."""
    for inner in layer.modules():
        if isinstance(inner, (nn.LSTM, nn.GRU)):
            values = _recurrent_weights(inner, arrays)
        elif isinstance(inner, (nn.Conv1d, nn.Conv2d)):
            order = (arrays[0].ndim - 1, arrays[0].ndim - 2, *range(arrays[0].ndim - 2))
            values = {"weight": arrays[0].transpose(order), **dict(zip(["bias"], arrays[1:], strict=False))}
        elif isinstance(inner, nn.Linear):
            values = {"weight": arrays[0].T, **dict(zip(["bias"], arrays[1:], strict=False))}
        elif isinstance(inner, (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)):
            names = [*(["weight"] if _has(settings, "scale") else []), *(["bias"] if _has(settings, "center") else [])]
            if not isinstance(inner, nn.LayerNorm):
                names += ["running_mean", "running_var"]
            values = dict(zip(names, arrays, strict=True))
        else:
            if next(inner.parameters(recurse=False), None) is not None:
                raise ValueError(f"weights of a {type(inner).__name__} cannot be read from Keras")
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


_DEFAULTED = {"weight", "bias", "num_batches_tracked"}
"""Entries of a layer that Keras may leave out: a scale of 1, a shift of 0."""


def _has(settings: Mapping[str, Any] | None, name: str) -> bool:
    return settings is None or bool(settings.get(name, True))


def _recurrent_weights(net: nn.LSTM | nn.GRU, arrays: Arrays) -> dict[str, npt.NDArray[np.float32]]:
    """Keras has the gates side by side, PyTorch one below the other; i f c o becomes i f g o, z r h becomes r z n."""
    weights: dict[str, npt.NDArray[np.float32]] = {}
    gates = 4 if isinstance(net, nn.LSTM) else 3
    order = [0, 1, 2, 3] if gates == 4 else [1, 0, 2]
    each = len(arrays) // (2 if net.bidirectional else 1)
    for direction in range(2 if net.bidirectional else 1):
        kernel, recurrent, *bias = arrays[direction * each : (direction + 1) * each]
        size = recurrent.shape[0]
        if bias and bias[0].size == 2 * gates * size and bias[0].ndim == 1:  # CuDNN's own layout
            kernel = np.hstack([k.T.reshape(k.shape, order="F") for k in np.hsplit(kernel, gates)])
            recurrent = np.hstack([k.T for k in np.hsplit(recurrent, gates)])
        biases = np.concatenate(bias).reshape(-1, gates * size) if bias else np.zeros((0, gates * size), np.float32)
        end = "_l0" + ("_reverse" if direction else "")

        def rows(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            return np.concatenate([np.split(array, gates)[gate] for gate in order])

        weights[f"weight_ih{end}"], weights[f"weight_hh{end}"] = rows(kernel.T), rows(recurrent.T)
        if net.bias:
            weights[f"bias_ih{end}"] = rows(biases[0]) if len(biases) else np.zeros(gates * size, np.float32)
            weights[f"bias_hh{end}"] = rows(biases[1]) if len(biases) > 1 else np.zeros(gates * size, np.float32)
    return weights


# -- files


def _open(path: str | Path) -> Any:
    try:
        import h5py
    except ImportError:
        raise not_installed("Keras' .h5 files need h5py", "genomics") from None
    if not Path(path).is_file():
        raise CheckpointError(f"the weights {path} do not exist.")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise CheckpointError(f"{path} is truncated or not an HDF5 file ({error}): save it again.") from None


def _stored_config(path: Path) -> dict[str, Any]:
    with _open(path) as file:
        text = file.attrs.get("model_config")
    if text is None:
        raise CheckpointError(
            f"{path} holds weights without an architecture. Give the config of model.to_json() as --model model.json "
            "with --weights, or a PyTorch model of the same layers: --model net.py:build --weights "
            f"{path.name}."
        )
    return _json(text, path)


def _json(text: str | bytes, path: Path) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its config is not JSON ({error}).") from None
    return config if isinstance(config, dict) else {}


def _stored_weights(path: str | Path, nested: bool = True) -> dict[str, Arrays]:
    """The arrays of every layer in the file's order; with `nested` also those of layers inside other models."""
    layers: dict[str, Arrays] = {}
    inside: dict[str, Arrays] = {}
    with _open(path) as file:
        try:
            group = _inside(file, "model_weights") if "model_weights" in file else file
            for raw in _names(group, "layer_names"):
                layer = _inside(group, raw)
                paths = _names(layer, "weight_names")
                layers[raw] = [_numbers(layer, name) for name in paths]
                for name, array in zip(paths, layers[raw], strict=True):
                    for part in set(name.split("/")[:-1]):
                        inside.setdefault(part, []).append(array)
        except (KeyError, OSError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} does not hold Keras weights as they are read here: {error}.") from None
    return {**inside, **layers} if nested else layers


def _names(group: Any, attribute: str) -> list[str]:
    """A list of names that Keras stores in an attribute; a long list in several attributes."""
    pieces = [attribute] if attribute in group.attrs else sorted(
        (a for a in group.attrs if a.startswith(attribute)), key=lambda a: int(a.removeprefix(attribute))
    )  # fmt: skip
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


def _numbers(group: Any, name: str) -> npt.NDArray[np.float32]:
    data = _inside(group, name)
    if data.external or data.is_virtual or not np.issubdtype(data.dtype, np.floating):
        raise ValueError(f"{name} does not hold numbers of its own")
    return np.asarray(data[()], np.float32)
