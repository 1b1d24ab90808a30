"""Photographs with masks or labels: ECSSD, ImageNet, and folders of anything.

Every data set maps an index to tensors (so `torch.utils.data.DataLoader` works), knows the names of its samples, and
applies one `Preprocessing` to image and mask.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor

from plrp.errors import UsageError
from plrp.models.preprocessing import Preprocessing

from .photographs import (
    SUFFIXES,
    BadImage,
    Photograph,
    network_input,
    network_mask,
    network_picture,
    photographs_in,
    read_mask,
    read_photograph,
)

if TYPE_CHECKING:
    from PIL.Image import Image

_WNID = re.compile(r"n\d{8}")


class DatasetError(UsageError):
    """A folder without the layout that the data set expects; the message names the expected layout."""


class _PhotographSet(ABC):
    """Photographs by index, the base of all data sets here."""

    paths: list[Path]
    preprocessing: Preprocessing

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def names(self) -> list[str]:
        """The name of every sample: its file name without the suffix."""
        return [path.stem for path in self.paths]

    def photograph(self, index: int) -> Photograph:
        """The sample as it is in its file, as upright RGB."""
        return read_photograph(self.paths[index])

    def picture(self, index: int) -> Image:
        """The sample as the network sees it, as an RGB picture to draw heatmaps on."""
        return network_picture(self.photograph(index), self.preprocessing)

    @abstractmethod
    def __getitem__(self, index: int) -> Any: ...

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


class Photographs(_PhotographSet):
    """A folder of any images, with a folder of masks if there is one.

    `photographs[i]` is the image (3, height, width), or (image, mask) with the mask bool (height, width).
    An image and its mask have the same name apart from the suffix (`a/0001.jpg`, `b/0001.png`). Bright mask pixels are
    inside.
    """

    def __init__(
        self, images: str | Path, masks: str | Path | None = None, *, preprocessing: Preprocessing | None = None
    ) -> None:
        self.preprocessing = preprocessing or Preprocessing()
        self.paths = _images_in(Path(images))
        self.masks: list[Path] | None = None
        if masks is not None:
            by_name = {path.stem: path for path in _images_in(Path(masks))}
            unpaired = [path.name for path in self.paths if path.stem not in by_name]
            if unpaired:
                raise DatasetError(
                    f"{len(unpaired)} of {len(self.paths)} images in {images} have no mask of the same name in "
                    f"{masks} (first: {unpaired[0]})."
                )
            self.masks = [by_name[path.stem] for path in self.paths]

    def mask(self, index: int, photograph: Photograph | None = None) -> Tensor:
        """The sample's mask: bool (height, width), True on the object; `photograph` if it was read already."""
        if self.masks is None:
            raise DatasetError("this data set was opened without masks.")
        photograph = photograph or self.photograph(index)
        mask, size = read_mask(self.masks[index])
        if size != photograph.size:
            raise BadImage(
                f"{self.masks[index]} is {size[0]} x {size[1]} but {photograph.path} is "
                f"{photograph.size[0]} x {photograph.size[1]}."
            )
        return network_mask(mask, size, self.preprocessing)

    def __getitem__(self, index: int) -> Any:
        photograph = self.photograph(index)
        image = network_input(photograph, self.preprocessing)
        return image if self.masks is None else (image, self.mask(index, photograph))


class ECSSD(Photographs):
    """The Extended Complex Scene Saliency Dataset: photographs with pixel masks of their salient object.

    `root` holds `images/0001.jpg` … and `ground_truth_mask/0001.png` …, as its authors ship them (Shi, Yan,
    Xu and Jia 2015). `ecssd[i]` is (image (3, 224, 224), mask (224, 224) bool) with the default preprocessing.
    """

    def __init__(self, root: str | Path, *, preprocessing: Preprocessing | None = None) -> None:
        images, masks = Path(root) / "images", Path(root) / "ground_truth_mask"
        if not images.is_dir() or not masks.is_dir():
            raise DatasetError(
                f"{root} is not ECSSD: it should hold the folders images and ground_truth_mask, as its "
                "authors' two archives do."
            )
        super().__init__(images, masks, preprocessing=preprocessing)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return cast("tuple[Tensor, Tensor]", super().__getitem__(index))


class ImageNet(_PhotographSet):
    """ImageNet's validation photographs with their classes, in torchvision's order of the classes.

    `imagenet[i]` is (image (3, height, width), label), and with `boxes` (image, label, mask): the mask is True inside
    the bounding boxes of that class.

    root: folder of the photographs, flat (`ILSVRC2012_val_00000001.JPEG`) or one folder per class (`n01440764/…`).
    class_index: JSON from index to (wnid, name), such as Keras' `imagenet_class_index.json`; by default
        `class_index.json` in `root`; not needed if `root` has all 1,000 class folders.
    labels: text file of `file-name label` lines, label a class index or a wnid (Caffe's `val.txt`), or Kaggle's
        `LOC_val_solution.csv`. Without it, the wnid in the name of the folder, the file or the box file is the label.
    boxes: folder of the bounding boxes, one XML file per photograph (PASCAL VOC format).
    """

    def __init__(
        self,
        root: str | Path,
        *,
        class_index: str | Path | None = None,
        labels: str | Path | None = None,
        boxes: str | Path | None = None,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        self.preprocessing = preprocessing or Preprocessing()
        root = Path(root)
        self.paths = _images_in(root, deep=True)
        self.boxes = None if boxes is None else self._box_files(Path(boxes))
        index = _read_class_index(root, class_index)
        given = {} if labels is None else _read_labels(Path(labels))
        self.wnids = [wnid for wnid, _ in index]
        self.classes = [name for _, name in index]
        number = {wnid: label for label, wnid in enumerate(self.wnids)}
        self.labels = [self._label(path, given, number) for path in self.paths]

    def __getitem__(self, index: int) -> Any:
        photograph = self.photograph(index)
        image, label = network_input(photograph, self.preprocessing), self.labels[index]
        return (image, label) if self.boxes is None else (image, label, self.mask(index, photograph))

    def _box_files(self, folder: Path) -> dict[str, Path]:
        files = {path.stem: path for path in sorted(folder.rglob("*.xml"))} if folder.is_dir() else {}
        unpaired = [path.name for path in self.paths if path.stem not in files]
        if unpaired:
            raise DatasetError(
                f"{len(unpaired)} of {len(self.paths)} photographs have no bounding boxes in {folder} "
                f"(first: {unpaired[0]}, looked for as {Path(unpaired[0]).stem}.xml)."
            )
        return files

    def mask(self, index: int, photograph: Photograph | None = None) -> Tensor:
        """True inside the bounding boxes of the sample's class: bool (height, width)."""
        from PIL import Image as pil

        if self.boxes is None:
            raise DatasetError("ImageNet was opened without boxes.")
        photograph = photograph or self.photograph(index)
        objects, (width, height) = _read_boxes(self.boxes[self.paths[index].stem])
        wnid = self.wnids[self.labels[index]]
        boxes = [box for name, box in objects if name == wnid] or [box for _, box in objects]
        across, down = photograph.image.width / width, photograph.image.height / height
        inside = np.zeros((photograph.image.height, photograph.image.width), dtype=np.uint8)
        for box in boxes:
            left, top, right, bottom = (
                round(side * scale) for side, scale in zip(box, (across, down) * 2, strict=True)
            )
            inside[top : max(top + 1, bottom), left : max(left + 1, right)] = 255
        return network_mask(pil.fromarray(inside), photograph.size, self.preprocessing)

    def _label(self, path: Path, given: Mapping[str, str], number: Mapping[str, int]) -> int:
        label = given.get(path.stem)
        if label is not None and not _WNID.fullmatch(label):
            if not label.isdigit() or int(label) >= len(self.wnids):
                raise DatasetError(f"the label {label!r} of {path.name} is not one of the {len(self.wnids)} classes.")
            return int(label)
        named = _WNID.search(f"{path.parent.name}/{path.stem}")
        wnid = label or (named.group() if named else self._wnid_of_boxes(path))
        if wnid is None:
            raise DatasetError(
                f"the class of {path.name} is unknown; pass labels= or boxes=, or sort the files into class folders."
            )
        if wnid not in number:
            raise DatasetError(f"the class {wnid} of {path.name} is not in the class index.")
        return number[wnid]

    def _wnid_of_boxes(self, path: Path) -> str | None:
        if self.boxes is None:
            return None
        objects, _ = _read_boxes(self.boxes[path.stem])
        return objects[0][0] if objects and _WNID.fullmatch(objects[0][0]) else None


def _images_in(folder: Path, deep: bool = False) -> list[Path]:
    if not folder.is_dir():
        raise DatasetError(f"{folder} is not a folder.")
    paths = photographs_in(folder, deep)
    if not paths:
        raise DatasetError(f"{folder} holds no images ({', '.join(SUFFIXES)}).")
    return paths


def _read_class_index(root: Path, file: str | Path | None) -> Sequence[tuple[str, str]]:
    """(wnid, name) of every class, in order."""
    for candidate in [Path(file)] if file else [root / "class_index.json", root / "imagenet_class_index.json"]:
        if candidate.is_file():
            try:
                table = {int(label): entry for label, entry in json.loads(candidate.read_text("utf-8")).items()}
                return [(str(table[label][0]), str(table[label][1])) for label in range(len(table))]
            except (ValueError, KeyError, AttributeError, IndexError, TypeError) as error:
                raise DatasetError(
                    f'{candidate} is not a class index: JSON of {{"0": ["n01440764", "tench"], …}}.'
                ) from error
    if file:
        raise DatasetError(f"{file} does not exist.")
    folders = sorted(path.name for path in root.iterdir() if path.is_dir() and _WNID.fullmatch(path.name))
    if len(folders) != 1000:
        raise DatasetError(
            f"{root} has no class_index.json and {len(folders)} class folders, so the class numbers are "
            "unknown; pass class_index= (Keras' imagenet_class_index.json)."
        )
    return [(wnid, wnid) for wnid in folders]


def _read_labels(file: Path) -> dict[str, str]:
    """File name without suffix to class index or wnid."""
    if not file.is_file():
        raise DatasetError(f"{file} does not exist.")
    labels = {}
    for line in file.read_text("utf-8", errors="replace").splitlines():
        fields = line.replace(",", " ").split()
        if not fields or fields[0] == "ImageId":  # header of Kaggle's file
            continue
        if len(fields) == 1:
            raise DatasetError(
                f"{file} has no file names; lines of one number, as in ILSVRC's ground_truth.txt, number the "
                "classes in another order: use lines of file name and label."
            )
        labels[Path(fields[0]).stem] = fields[1]
    return labels


def _read_boxes(file: Path) -> tuple[list[tuple[str, list[float]]], tuple[float, float]]:
    """(class, (left, top, right, bottom)) of every object, and the picture's (width, height)."""
    try:
        tree = ElementTree.parse(file).getroot()
        size = (_number(tree, "size/width"), _number(tree, "size/height"))
        objects = []
        for item in tree.iter("object"):
            box = [_number(item, f"bndbox/{edge}") for edge in ("xmin", "ymin", "xmax", "ymax")]
            objects.append((str(item.findtext("name")), box))
    except (ElementTree.ParseError, ValueError) as error:
        raise DatasetError(f"{file} is not a bounding-box file in PASCAL VOC format ({error}).") from error
    if not objects or min(size) <= 0:
        raise DatasetError(f"{file} holds no object or no size.")
    return objects, size


def _number(element: ElementTree.Element, path: str) -> float:
    text = element.findtext(path)
    if text is None:
        raise ValueError(f"no {path}")
    return float(text)
