"""Weights from a file: read as tensors only and put into a model; a file that does not fit is refused in one sentence.

A checkpoint is data, not a program: `torch.load(weights_only=True)` or safetensors. A pickle that would run code while
it is loaded is refused, and the message names that code.
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
from plrp.files import plausible_size
from plrp.tape.values import tensors_in

# Keys under which training scripts save the state dict, and prefixes that wrappers put before every name.
_NESTED = ("state_dict", "model_state_dict", "model", "net", "network", "weights")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "backbone.")
# torchvision's published DenseNets predate the rule that a module's name has no dot.
_OLD_DENSENET = re.compile(r"^(.*denselayer\d+\.(?:norm|conv))\.([12]\..*)$")
# The calls of a pickle that holds nothing but tensors.
_TENSOR_CALLS = ("torch._utils._rebuild_", "collections.OrderedDict", "torch.FloatStorage", "torch.storage.")


class CheckpointError(UsageError):
    """Weights that cannot be read or do not fit the model; the message says why."""


class OtherClasses(CheckpointError):
    """Weights for another number of classes (`there`) than the model has (`here`)."""

    def __init__(self, path: str | Path, of: str, here: int, there: int) -> None:
        self.reason = f"{path} does not fit {of}: it has {there} classes, the model has {here}"
        self.there = there
        super().__init__(self.words("build the model with num_classes={}"))

    def words(self, remedy: str) -> str:
        """The message with the remedy of a front door; `{}` in it is the number of classes."""
        return f"{self.reason} ({remedy.format(self.there)})."


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors`, `.pt` or `.pth` file by name, on the CPU, as they were stored."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist.")
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    if isinstance(content, Mapping):
        content = next((content[key] for key in _NESTED if isinstance(content.get(key), Mapping)), content)
    if not isinstance(content, Mapping) or not content:
        raise CheckpointError(f"{path} holds no state dict (it holds a {type(content).__name__}).")
    strange = [name for name, value in content.items() if not isinstance(value, Tensor)]
    if strange:
        raise CheckpointError(
            f"{path} is not a state dict: {strange[0]!r} is a {type(content[strange[0]]).__name__}, not a "
            "tensor; save model.state_dict()."
        )
    return {str(name): value for name, value in content.items()}


def load_weights(module: nn.Module, path: str | Path, *, of: str | None = None) -> None:
    """Put the weights of a file into `module`, cast to the module's types (an fp16 file fits an fp32 model).

    The file must hold every parameter and buffer in the right shape. `of` is the model's name in error messages.
    """
    of = of or type(module).__name__
    expected, state = module.state_dict(), read_state_dict(path)
    for prefix in _PREFIXES:  # of a wrapper, such as DataParallel's `module.`, unless the model's names have it
        if all(name.startswith(prefix) for name in state) and not any(name.startswith(prefix) for name in expected):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    state = {_OLD_DENSENET.sub(r"\1\2", name): value for name, value in state.items()}
    for name, value in expected.items():  # counters of batches seen, which older files lack
        if name.endswith("num_batches_tracked"):
            state.setdefault(name, value)
    if expected.keys() == state.keys() and (classes := _class_counts(expected, state)) is not None:
        raise OtherClasses(path, of, *classes)
    if misfit := _misfit(expected, state):
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
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file ({reason}): download it again."
        ) from error


def load_tensors(path: str | Path) -> Any:
    """The content of a file of `torch.save`: tensors and plain data, on the CPU.

    The file states how much it unpacks to, and the shapes of its tensors. Both are compared with its size before memory
    is taken: `torch.save` does not compress, and a view may repeat one number as often as it likes.
    """
    size = Path(path).stat().st_size
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > size:
            raise CheckpointError(
                f"{path} is refused: its {size:,} bytes unpack to {unpacked:,}; save it with torch.save, uncompressed."
            )
    content = torch.load(path, map_location="cpu", weights_only=True)
    stated = sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(content))
    if stated > plausible_size(path):
        raise CheckpointError(
            f"{path} is refused: it has {size:,} bytes and its tensors {stated:,}; save contiguous tensors."
        )
    return content


def _read_torch(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols: such a file is examined below
            return load_tensors(path)
    except CheckpointError:
        raise
    except Exception as error:  # torch, zipfile and pickle raise about ten kinds on a damaged file
        code = [call for call in _pickle_calls(path) if not call.startswith(_TENSOR_CALLS)]
        if isinstance(error, pickle.UnpicklingError) and code:
            raise CheckpointError(
                f"{path} is refused: it is a pickle that calls {code[0]} on loading, which can run any "
                "code; save model.state_dict() with torch.save, or as .safetensors."
            ) from error
        raise CheckpointError(
            f"{path} is truncated or not a PyTorch file ({_guess_content(path)}): download it again, or save "
            "model.state_dict() with torch.save."
        ) from error


def _pickle_calls(path: Path) -> list[str]:
    """The functions that a pickle would import and call, read from its opcodes without running any of them."""
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


def _misfit(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """How a state dict differs from the model's, in half a sentence; empty if it fits."""
    missing = [name for name in expected if name not in state]
    unexpected = [name for name in state if name not in expected]
    shapes = [name for name in expected if name in state and expected[name].shape != state[name].shape]
    strange = (missing, "missing"), (unexpected, "unexpected")
    reasons = [f"{_names_in_brief(names)} {word}" for names, word in strange if names]
    if shapes:
        name = shapes[0]
        more = f", and {len(shapes) - 1} more" if len(shapes) > 1 else ""
        reasons.append(
            f"{name} is {tuple(state[name].shape)} in the file, {tuple(expected[name].shape)} in the model{more}"
        )
    return "; ".join(reasons)


def _class_counts(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> tuple[int, int] | None:
    """Numbers of classes of the model and of the file, if nothing else differs but the rows of the heads."""
    both = [(value.shape, state[name].shape) for name, value in expected.items() if value.shape != state[name].shape]
    pairs = {(here[0], there[0]) for here, there in both if here and there}
    same_below = all(here[1:] == there[1:] for here, there in both)
    return pairs.pop() if len(pairs) == 1 and same_below else None


def _names_in_brief(names: Sequence[str]) -> str:
    first = ", ".join(names[:2])
    return f"{len(names)} tensors ({first}{', …' if len(names) > 2 else ''})" if len(names) > 1 else first


def _guess_content(path: Path) -> str:
    """A guess at the content of a file that torch cannot read, from its first bytes."""
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
    return "it does not begin like a file of torch.save"
