"""ECSSD, ImageNet and folders of anything: on small synthetic trees and on the real files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from plrp.models import Preprocessing
from plrp.vision import ECSSD, BadImage, DatasetError, ImageNet, Photographs, read_photograph

PREPROCESSING = Preprocessing(resize=40, crop=32)
AS_IT_IS = Preprocessing(resize=None, crop=None)
WNIDS = {0: "n01440764", 1: "n01443537", 2: "n01484850"}


def save_noise(path: Path, width: int = 60, height: int = 48) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(path.name))
    Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(path)


def save_mask(path: Path, width: int = 60, height: int = 48) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = np.zeros((height, width), dtype=np.uint8)
    mask[: height // 2] = 255
    Image.fromarray(mask).save(path)


@pytest.fixture
def ecssd(tmp_path: Path) -> Path:
    for name in ("0003", "0001", "0002"):
        save_noise(tmp_path / "images" / f"{name}.jpg")
        save_mask(tmp_path / "ground_truth_mask" / f"{name}.png")
    return tmp_path


def test_ecssd_pairs_images_and_masks_by_name(ecssd: Path) -> None:
    dataset = ECSSD(ecssd, preprocessing=PREPROCESSING)
    assert dataset.names == ["0001", "0002", "0003"]
    assert len(dataset) == 3
    image, mask = dataset[1]
    assert image.shape == (3, 32, 32)
    assert image.dtype == torch.float32
    assert mask.dtype == torch.bool
    assert torch.equal(mask, dataset.mask(1))
    assert mask[:15].all()
    assert not mask[17:].any()
    assert dataset.picture(0).size == (32, 32)
    assert dataset.photograph(0).size == (60, 48)
    images, masks = next(iter(DataLoader(dataset, batch_size=3)))  # type: ignore[arg-type]
    assert images.shape == (3, 3, 32, 32)
    assert masks.shape == (3, 32, 32)


def test_default_preprocessing_is_that_of_the_networks(ecssd: Path) -> None:
    image, mask = ECSSD(ecssd)[0]
    assert image.shape == (3, 224, 224)
    assert mask.shape == (224, 224)


def test_iterating_ends(ecssd: Path) -> None:
    assert len(list(ECSSD(ecssd, preprocessing=PREPROCESSING))) == 3
    with pytest.raises(IndexError):
        ECSSD(ecssd)[3]


def test_missing_folders_masks_and_sizes_are_named(ecssd: Path) -> None:
    with pytest.raises(DatasetError, match="not ECSSD: it should hold the folders images and ground_truth_mask"):
        ECSSD(ecssd / "images")
    save_mask(ecssd / "ground_truth_mask" / "0002.png", 61, 48)
    with pytest.raises(BadImage, match=r"0002\.png is 61 x 48 but .*0002\.jpg is 60 x 48"):
        ECSSD(ecssd)[1]
    (ecssd / "ground_truth_mask" / "0003.png").unlink()
    with pytest.raises(DatasetError, match=r"1 of 3 images .* no mask of the same name .*first: 0003\.jpg"):
        ECSSD(ecssd)


def test_a_folder_of_anything(tmp_path: Path) -> None:
    for name in ("cat.png", "dog.JPG", ".hidden.png"):
        save_noise(tmp_path / "photos" / name)
    (tmp_path / "photos" / "notes.txt").write_text("not an image")
    dataset = Photographs(tmp_path / "photos", preprocessing=PREPROCESSING)
    assert dataset.names == ["cat", "dog"]
    assert dataset[0].shape == (3, 32, 32)
    with pytest.raises(DatasetError, match="without masks"):
        dataset.mask(0)
    with pytest.raises(DatasetError, match="is not a folder"):
        Photographs(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="holds no images"):
        Photographs(tmp_path / "empty")


def test_a_label_map_is_inside_wherever_it_is_not_zero(tmp_path: Path) -> None:
    save_noise(tmp_path / "photos" / "a.png")
    labels = np.zeros((48, 60), dtype=np.uint8)
    labels[:24] = 3
    index = Image.fromarray(labels).convert("P")
    index.putpalette([0] * 768)
    (tmp_path / "masks").mkdir()
    index.save(tmp_path / "masks" / "a.png")
    _, mask = Photographs(tmp_path / "photos", tmp_path / "masks", preprocessing=AS_IT_IS)[0]
    assert torch.equal(mask, torch.from_numpy(labels > 0))


# ImageNet


def write_class_index(path: Path) -> None:
    names = {0: "tench", 1: "goldfish", 2: "great_white_shark"}
    path.write_text(json.dumps({str(label): [WNIDS[label], name] for label, name in names.items()}))


def write_boxes(
    path: Path, wnid: str, boxes: list[tuple[int, int, int, int]], size: tuple[int, int] = (60, 48)
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    objects = "".join(
        f"<object><name>{wnid}</name><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox>"
        "</object>"
        for a, b, c, d in boxes
    )
    path.write_text(
        f"<annotation><size><width>{size[0]}</width><height>{size[1]}</height></size>{objects}</annotation>"
    )


def test_imagenet_by_class_folder(tmp_path: Path) -> None:
    for label, wnid in WNIDS.items():
        save_noise(tmp_path / "val" / wnid / f"ILSVRC2012_val_0000000{label}.JPEG")
    write_class_index(tmp_path / "index.json")
    dataset = ImageNet(tmp_path / "val", class_index=tmp_path / "index.json", preprocessing=PREPROCESSING)
    assert dataset.labels == [0, 1, 2]
    image, label = dataset[2]
    assert image.shape == (3, 32, 32)
    assert dataset.classes[label] == "great_white_shark"
    with pytest.raises(DatasetError, match=r"3 class folders, so the class numbers are unknown; pass class_index="):
        ImageNet(tmp_path / "val")
    with pytest.raises(DatasetError, match="without boxes"):
        dataset.mask(0)


def test_imagenet_with_all_class_folders_needs_no_index(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"n{10_000_000 + number}").mkdir()
    save_noise(tmp_path / "n10000741" / "a.JPEG")
    assert ImageNet(tmp_path).labels == [741]


@pytest.mark.parametrize(
    "labels",
    [
        "a.JPEG 2\nb.JPEG 0\n",
        "a.JPEG n01484850\nb.JPEG n01440764\n",
        "ImageId,PredictionString\na,n01484850 1 2 3 4\nb,n01440764 1 2 3 4 \n",
    ],
)
def test_flat_imagenet_with_a_labels_file(tmp_path: Path, labels: str) -> None:
    for name in ("a.JPEG", "b.JPEG"):
        save_noise(tmp_path / "val" / name)
    write_class_index(tmp_path / "val" / "class_index.json")
    (tmp_path / "labels.txt").write_text(labels)
    assert ImageNet(tmp_path / "val", labels=tmp_path / "labels.txt").labels == [2, 0]


def test_labels_that_would_be_wrong_are_refused(tmp_path: Path) -> None:
    save_noise(tmp_path / "a.JPEG")
    write_class_index(tmp_path / "class_index.json")
    for text, reason in {
        "490\n361\n": "number the classes in another order",
        "a.JPEG 3\n": "the label '3' of a.JPEG is not one of the 3 classes",
        "a.JPEG n99999999\n": "n99999999 of a.JPEG is not in the class index",
        "b.JPEG 1\n": "class of a.JPEG is unknown",
    }.items():
        (tmp_path / "labels.txt").write_text(text)
        with pytest.raises(DatasetError, match=reason):
            ImageNet(tmp_path, labels=tmp_path / "labels.txt")
    (tmp_path / "labels.txt").write_bytes(b"\xff\x82 \xfe")
    with pytest.raises(DatasetError, match=r"class of a\.JPEG is unknown"):
        ImageNet(tmp_path, labels=tmp_path / "labels.txt")
    with pytest.raises(DatasetError, match="does not exist"):
        ImageNet(tmp_path, labels=tmp_path / "none.txt")
    with pytest.raises(DatasetError, match="does not exist"):
        ImageNet(tmp_path, class_index=tmp_path / "none.json")
    (tmp_path / "class_index.json").write_text('{"0": ["n01440764", "tench"], "2": ["n01484850", "shark"]}')
    with pytest.raises(DatasetError, match="is not a class index"):
        ImageNet(tmp_path)


def test_bounding_boxes_are_masks_and_labels(tmp_path: Path) -> None:
    save_noise(tmp_path / "val" / "a.JPEG")
    write_class_index(tmp_path / "val" / "class_index.json")
    # The XML gives the box in a picture of twice the size: it scales to the photograph.
    write_boxes(tmp_path / "boxes" / "a.xml", WNIDS[1], [(0, 0, 40, 40), (60, 48, 120, 96)], size=(120, 96))
    dataset = ImageNet(tmp_path / "val", boxes=tmp_path / "boxes", preprocessing=AS_IT_IS)
    _, label, mask = dataset[0]
    assert label == 1
    expected = torch.zeros(48, 60, dtype=torch.bool)
    expected[:20, :20] = True
    expected[24:, 30:] = True
    assert torch.equal(mask, expected)
    assert torch.equal(dataset.mask(0), mask)


def test_boxes_of_other_classes_are_outside(tmp_path: Path) -> None:
    save_noise(tmp_path / "val" / WNIDS[0] / "a.JPEG")
    write_class_index(tmp_path / "val" / "class_index.json")
    write_boxes(tmp_path / "a.xml", WNIDS[0], [(0, 0, 10, 10)])
    both = (
        (tmp_path / "a.xml")
        .read_text()
        .replace(
            "</annotation>",
            "<object><name>n01443537</name><bndbox><xmin>30</xmin><ymin>30</ymin><xmax>50</xmax><ymax>40</ymax></bndbox>"
            "</object></annotation>",
        )
    )
    (tmp_path / "a.xml").write_text(both)
    mask = ImageNet(tmp_path / "val", boxes=tmp_path, preprocessing=AS_IT_IS).mask(0)
    assert mask.sum() == 100


def test_broken_or_missing_boxes_are_named(tmp_path: Path) -> None:
    save_noise(tmp_path / "val" / WNIDS[0] / "a.JPEG")
    write_class_index(tmp_path / "val" / "class_index.json")
    with pytest.raises(DatasetError, match=r"1 of 1 photographs have no bounding boxes .*looked for as a\.xml"):
        ImageNet(tmp_path / "val", boxes=tmp_path / "boxes")
    for content, reason in {
        "<annotation><object>": "not a bounding-box file",
        "<annotation></annotation>": "no size/width",
        "<annotation><size><width>5</width><height>5</height></size></annotation>": "no object",
    }.items():
        (tmp_path / "a.xml").write_text(content)
        with pytest.raises(DatasetError, match=reason):
            ImageNet(tmp_path / "val", boxes=tmp_path)[0]


# The real files


def test_real_ecssd(data: Path) -> None:
    dataset = ECSSD(data / "ecssd")
    assert len(dataset) == 250
    shares = []
    for index in range(0, 250, 10):
        image, mask = dataset[index]
        assert image.shape == (3, 224, 224)
        assert torch.isfinite(image).all()
        shares.append(float(mask.float().mean()))
    assert all(0 < share < 1 for share in shares)
    grey = [i for i in range(250) if Image.open(dataset.paths[i]).mode == "L"]
    assert grey
    image = dataset.preprocessing.denormalise(dataset[grey[0]][0])
    assert torch.allclose(image[0], image[1], atol=1e-6)


def test_real_imagenet(data: Path) -> None:
    dataset = ImageNet(data / "imagenet")
    assert len(dataset) == 100
    assert len(dataset.classes) == 1000
    assert dataset.labels == [int(name.split("_")[0]) for name in dataset.names]
    image, label = dataset[0]
    assert image.shape == (3, 224, 224)
    assert dataset.classes[label] in dataset.names[0]


def test_every_real_photograph_reads(data: Path) -> None:
    for path in [*(data / "imagenet").glob("*.JPEG"), *sorted((data / "ecssd" / "images").iterdir())[::5]]:
        assert read_photograph(path).image.mode == "RGB"
