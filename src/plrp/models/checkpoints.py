"""Weights in a file: read as tensors only, and put into a model with the misfit named in one sentence.

A checkpoint is data, not a program: `torch.load(weights_only=True)` or safetensors. A pickle that would run
code on loading is refused, and the refusal says which code.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plrp.errors import UsageError

# Where training scripts put the state dict inside what they save, and what wrappers put before every name.
_NESTED = ("state_dict", "model_state_dict", "model", "net", "network", "weights")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "backbone.")
# torchvision's published DenseNets are older than the rule that a module's name has no dot.
_OLD_DENSENET = re.compile(r"^(.*denselayer\d+\.(?:norm|conv))\.([12]\..*)$")


# What tensors themselves are made of in a pickle.
_TENSOR_CALLS = ("torch._utils._rebuild_", "collections.OrderedDict", "torch.FloatStorage", "torch.storage.")


class CheckpointError(UsageError):
    """Weights that cannot be read or do not fit the model; the message says which and why."""


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors`, `.pt` or `.pth` file by name, on the CPU, as they were stored."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist.")
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for key in _NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        raise CheckpointError(f"{path} holds no state dict (it holds a {type(content).__name__}).")
    strange = [name for name, value in content.items() if not isinstance(value, Tensor)]
    if strange:
        raise CheckpointError(
            f"{path} is no state dict: {strange[0]!r} is a {type(content[strange[0]]).__name__}, not a "
            "tensor; save model.state_dict()."
        )
    return {str(name): value for name, value in content.items()}


def load_weights(module: nn.Module, path: str | Path, *, of: str | None = None) -> None:
    """Put the weights of a file into `module`, cast to the module's types (fp16 files serve fp32 models).

    Every parameter and buffer must be there and fit; `of` is the model's name in the error.
    """
    of = of or type(module).__name__
    state = _without_prefix(read_state_dict(path), module.state_dict().keys())
    state = {_OLD_DENSENET.sub(r"\1\2", name): value for name, value in state.items()}
    own = module.state_dict()
    for name, value in own.items():  # counters of batches seen, which older files do not have
        if name.endswith("num_batches_tracked"):
            state.setdefault(name, value)
    misfit = _misfit(own, state)
    if misfit:
        raise CheckpointError(f"{path} does not fit {of}: {misfit}.")
    infinite = [name for name, value in state.items() if value.is_floating_point() and not value.isfinite().all()]
    if infinite:
        raise CheckpointError(f"{path} holds infinite or undefined numbers (first: {infinite[0]}).")
    module.load_state_dict(state)


def _read_safetensors(path: Path) -> Any:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError(f"reading {path.name} needs safetensors: pip install safetensors") from error
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise CheckpointError(f"{path} is cut off or no safetensors file ({reason}): fetch it again.") from error


def _read_torch(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols: such a file is judged below
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch, zipfile and pickle raise about ten kinds on a damaged file
        code = [call for call in _calls_of_pickle(path) if not call.startswith(_TENSOR_CALLS)]
        if isinstance(error, pickle.UnpicklingError) and code:
            raise CheckpointError(
                f"{path} is refused: it is a pickle that calls {code[0]} on loading, which can run any "
                "code; save model.state_dict() with torch.save, or as .safetensors."
            ) from error
        raise CheckpointError(
            f"{path} is cut off or no PyTorch file ({_looks(path)}): fetch it again, or save model.state_dict() with "
            "torch.save."
        ) from error


def _calls_of_pickle(path: Path) -> list[str]:
    """What a pickle would import and call, read off its opcodes without running any of them."""
    calls, strings = [], [""]
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
                stream = io.BytesIO(archive.read(name))
        else:
            stream = io.BytesIO(path.read_bytes())
        while True:  # PyTorch's old format is several pickles in a row, then the numbers
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name == "GLOBAL":
                    calls.append(str(argument).replace(" ", "."))
                elif opcode.name == "STACK_GLOBAL":
                    calls.append(".".join(strings[-2:]))
                elif isinstance(argument, str):
                    strings.append(argument)
    except (ValueError, StopIteration, zipfile.BadZipFile, EOFError, KeyError, OSError):
        return calls


def _without_prefix(state: dict[str, Tensor], names: Any) -> dict[str, Tensor]:
    """The state dict without the `module.` of DataParallel and its like, where all names have it and ours do
    not.
    """
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in state) and not any(name.startswith(prefix) for name in names):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _misfit(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """What is wrong with a state dict, in half a sentence; empty where nothing is."""
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    shapes = [name for name in own if name in state and own[name].shape != state[name].shape]
    classes = _class_counts(own, state, shapes) if not missing and not unexpected else None
    if classes:
        here, there = classes
        return f"it has {there} classes, the model has {here} (build the model with num_classes={there})"
    reasons = []
    if missing:
        reasons.append(f"{_listed(missing)} missing")
    if unexpected:
        reasons.append(f"{_listed(unexpected)} unexpected")
    if shapes:
        name = shapes[0]
        more = f", and {len(shapes) - 1} more" if len(shapes) > 1 else ""
        reasons.append(f"{name} is {tuple(state[name].shape)} in the file, {tuple(own[name].shape)} in the model{more}")
    return "; ".join(reasons)


def _class_counts(
    own: Mapping[str, Tensor], state: Mapping[str, Tensor], shapes: Sequence[str]
) -> tuple[int, int] | None:
    """Classes of the model and of the file, where they differ in nothing but the rows of the heads."""
    pairs = {(own[name].shape[0], state[name].shape[0]) for name in shapes if own[name].dim() and state[name].dim()}
    same_below = all(own[name].shape[1:] == state[name].shape[1:] for name in shapes)
    return pairs.pop() if len(pairs) == 1 and same_below else None


def _listed(names: Sequence[str]) -> str:
    first = ", ".join(names[:2])
    return f"{len(names)} tensors ({first}{', …' if len(names) > 2 else ''})" if len(names) > 1 else first


def _looks(path: Path) -> str:
    """What a file that torch cannot read is, by its first bytes."""
    with path.open("rb") as stream:
        head = stream.read(64)
    if not head:
        return "it is empty"
    if head.startswith(b"PK"):
        return "it is an archive of something else" if zipfile.is_zipfile(path) else "its end is missing"
    if head.startswith(b"\x80"):
        return "it is a pickle that ends too early or holds no tensors"
    if head.isascii():
        return "it is a web page" if head.lstrip().startswith(b"<") else "it is text"
    return "it begins as no file of torch.save does"
