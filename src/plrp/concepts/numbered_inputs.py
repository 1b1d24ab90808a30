"""Data as numbered inputs of a model: tensors, a data set, or a folder of photographs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plrp.errors import UsageError
from plrp.models.loading import LoadedModel
from plrp.models.preprocessing import Preprocessing
from plrp.runs.run import Digests
from plrp.vision.photographs import SUFFIXES, network_input, photographs_in, read_photograph


class NumberedInputs:
    """Inputs by number, with a name each.

    data: a tensor (samples, …), or anything with `len` and `[i]` that gives a tensor, or a tuple that begins with one.
    """

    def __init__(self, data: Any) -> None:
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise TypeError(
                "data is a tensor (samples, …), or a data set with len() and [i]; an iterator cannot be resumed: make "
                "a list of it."
            )
        if len(data) == 0:
            raise ValueError("The data holds no inputs.")
        self.data = data
        self.names = [str(number) for number in range(len(data))]

    def __len__(self) -> int:
        return len(self.names)

    def _one(self, number: int) -> Tensor:
        item = self.data[number]
        item = item[0] if isinstance(item, tuple | list) else item
        if isinstance(item, np.ndarray):
            item = torch.from_numpy(item)
        if not isinstance(item, Tensor):
            raise TypeError(f"Input {number} of the data is a {type(item).__name__}: it should be a tensor.")
        return item

    def batch(self, numbers: Sequence[int]) -> Tensor:
        """Some of them as one tensor (batch, …)."""
        return torch.stack([self._one(number) for number in numbers])

    def digest(self) -> str:
        """A hash of all inputs."""
        state = hashlib.sha256()
        for number in range(len(self)):
            one = self._one(number)
            state.update(f"{tuple(one.shape)}{one.dtype}".encode())
            state.update(one.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return state.hexdigest()[:16]


class FromPhotographs(NumberedInputs):
    """Photographs of a folder (and the folders in it), as a model's preprocessing sees them."""

    def __init__(self, root: str | Path, model: LoadedModel) -> None:
        self.root, self.preprocessing = Path(root), model.preprocessing or Preprocessing()
        if not self.root.is_dir():
            raise UsageError(f"{root} is no folder: name the folder of the photographs.")
        self.paths = photographs_in(self.root, deep=True)
        if not self.paths:
            raise UsageError(f"{root} holds no photographs ({', '.join(SUFFIXES)}).")
        self.names = [path.relative_to(self.root).as_posix() for path in self.paths]

    def _one(self, number: int) -> Tensor:
        return network_input(read_photograph(self.paths[number]), self.preprocessing)

    def digest(self) -> str:
        """Of the files' contents and the preprocessing."""
        state = hashlib.sha256(repr(self.preprocessing).encode())
        for name, digest in zip(self.names, Digests().of_all(self.paths), strict=True):
            state.update(f"{name}\t{digest}\n".encode())
        return state.hexdigest()[:16]


def numbered(data: Any, model: Any) -> NumberedInputs:
    """Data as a user gives them; a path names a folder of photographs."""
    if not isinstance(data, str | Path):
        return data if isinstance(data, NumberedInputs) else NumberedInputs(data)
    if not isinstance(model, LoadedModel):
        raise TypeError("A folder of photographs needs a model with preprocessing: load it with plrp.models.load.")
    return FromPhotographs(data, model)
