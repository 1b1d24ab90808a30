"""Models by name, file or checkpoint, loaded the same way everywhere in the package.

load("resnet50")                                  torchvision's network with its published weights
load("torchvision:vgg16", weights="vgg16.pth")    its architecture, weights from a file (fp16 or fp32)
load("timm:convnext_tiny")                        where timm is installed
load("networks.py:build", weights="best.pt")      the model that the function `build` in your file returns
load("danq.h5")                                   a Keras model of sequences; or its config.json with weights
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from plrp.errors import UsageError, needed
from plrp.spelling import close_names, printable

from .checkpoints import load_weights, read_state_dict
from .downloads import fetch
from .keras import SUFFIXES, load_keras, load_keras_weights
from .preprocessing import INTERPOLATIONS, Preprocessing
from .sources import imported_modules, installed

_FILE = re.compile(r"^(?P<file>.+\.py):(?P<name>\w+)$")


class ModelError(UsageError):
    """A model that cannot be found or built; the message names the available ones."""


@dataclass(frozen=True, repr=False)
class LoadedModel:
    """A model ready to be explained, with its facts.

    `module` is in evaluation mode and requires no gradients. `weights` says where the weights came from. `categories`
    are the names of the outputs, `preprocessing` says how a photograph becomes an input; None where unknown.
    """

    module: nn.Module
    name: str
    weights: str
    categories: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.module.parameters())
        classes = "" if self.categories is None else f", {len(self.categories):,} classes"
        return printable(f"LoadedModel({self.name}, weights: {self.weights}, {size:,} parameters{classes})")


def load(
    name: str, *, weights: str | Path | None = None, num_classes: int | None = None, quiet: bool = False
) -> LoadedModel:
    """The model of a name: `torchvision:NAME` or just `NAME`, `timm:NAME`, `file.py:factory`, or a Keras file.

    weights: None for the published weights (of a file: those the factory sets); a path to a state dict (.pth, .pt,
        .safetensors; tensors only, no code) or to Keras' weights (.h5); `random` for untrained weights, the same every
        time; for torchvision also the name of published weights, such as `IMAGENET1K_V1`.
    num_classes: number of outputs of a torchvision or timm model, for your own weights.
    quiet: do not show the progress of downloads.
    """
    in_file = _FILE.match(name)
    if in_file:
        if num_classes is not None:
            raise ModelError(f"num_classes is for torchvision and timm models; {name} sets its own.")
        file = Path(in_file["file"])
        with imported_file(file) as source:
            loaded = _from_module(source, file, in_file["name"], weights)
    elif name.lower().endswith(SUFFIXES):
        loaded = LoadedModel(load_keras(name, weights), name, str(weights or name))
    elif name.startswith("timm:"):
        loaded = _from_timm(name.removeprefix("timm:"), weights, num_classes)
    elif ":" in name and not name.startswith("torchvision:"):
        raise ModelError(f"{name!r} is not a model: write torchvision:NAME, timm:NAME or file.py:factory.")
    else:
        loaded = _from_torchvision(name.removeprefix("torchvision:"), weights, num_classes, quiet)
    loaded.module.eval().requires_grad_(False)
    return loaded


def imagenet_categories() -> tuple[str, ...]:
    """The names of ImageNet's 1,000 classes in torchvision's order."""
    return tuple(_torchvision().models.ResNet50_Weights.DEFAULT.meta["categories"])


def published_categories(
    name: str, *, weights: str | Path | None = None, num_classes: int | None = None
) -> tuple[str, ...] | None:
    """The class names that `load` would give a torchvision model with published weights, without loading it."""
    if ":" in name and not name.startswith("torchvision:"):
        return None
    try:
        entry = _published(name).get(None if weights is None else str(weights))
    except ModelError:
        return None
    categories = () if entry is None else tuple(entry.meta["categories"])
    return categories if categories and num_classes in (None, len(categories)) else None


def published_file(name: str, weights: str | None = None) -> str:
    """The file name of a torchvision model's published weights, which holds the first digits of their checksum.

    The default weights may change with torchvision's version.
    """
    published = _published(name)
    if weights not in published:
        names = ", ".join(filter(None, published))
        raise ModelError(f"the weights {weights} are neither a file nor published ({names}, random).")
    return Path(published[weights].url).name


def _published(name: str) -> dict[str | None, Any]:
    """The published weights of a torchvision model by name; those of None are the default."""
    models, name = _torchvision().models, name.removeprefix("torchvision:")
    kinds = (models, models.detection, models.segmentation)
    known = [known for kind in kinds for known in models.list_models(module=kind)]
    if name not in known:
        raise ModelError(f"torchvision has no model {name!r}{_did_you_mean(name, known)}.")
    entries = models.get_model_weights(name)
    return {**{entry.name: entry for entry in entries}, None: entries.DEFAULT}


def _from_torchvision(name: str, weights: str | Path | None, num_classes: int | None, quiet: bool) -> LoadedModel:
    models, published = _torchvision().models, _published(name)
    options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    spec = f"torchvision:{name}"
    entry = published.get(None if weights is None else str(weights))
    if entry is not None:
        classes = len(entry.meta["categories"])
        if num_classes not in (None, classes):
            raise ModelError(
                f"the published weights of {name} have {classes} classes, not {num_classes}; pass your own weights, or "
                "random."
            )
        # In torchvision's own cache its builder finds the file, and does the rest.
        fetch(entry.url, Path(torch.hub.get_dir()) / "checkpoints", quiet=quiet)
        with _tensors_only():
            try:
                module = models.get_model(name, weights=entry)
            except pickle.UnpicklingError as error:
                raise ModelError(
                    f"{Path(entry.url).name} in torch's cache is refused: it would run code on loading. "
                    "Delete it, and it will be downloaded again."
                ) from error
        return LoadedModel(module, spec, entry.name, *_facts(entry, classes))
    classes = num_classes or len(published[None].meta["categories"])
    parameters = inspect.signature(models.get_model_builder(name)).parameters
    if "weights_backbone" in parameters:
        options["weights_backbone"] = None  # detectors and segmenters would download some
    if str(weights) == "random":
        module = _with_fixed_seed(lambda: models.get_model(name, weights=None, **options))
        return LoadedModel(module, spec, "random", *_facts(published[None], classes))
    file = Path(str(weights))
    if not file.is_file():
        names = ", ".join(filter(None, published))
        raise ModelError(f"the weights {weights} are neither a file nor published for {name} ({names}, random).")
    # A file under its published name (resnet50-11ad3fa6.pth) gets the transforms of that training; any other file gets
    # those of the first training, the customary 256 and 224.
    entry = next((e for e in published.values() if e.url.endswith(f"/{file.name}")), None)
    if entry is not None and name in ("googlenet", "inception_v3"):
        options["transform_input"] = True  # torchvision sets it for its own weights
    if "aux_loss" in parameters:
        options["aux_loss"] = any("aux_classifier." in key for key in read_state_dict(file))
    module = models.get_model(name, weights=None, **options)
    _fit_head(module, name, file)
    load_weights(module, file, of=spec)
    return LoadedModel(module, spec, str(weights), *_facts(entry or next(iter(published.values())), classes))


def _fit_head(module: nn.Module, name: str, weights: Path) -> None:
    """Give a VGG a head of global average pooling and one linear layer, if its file has that instead of three layers.

    This is common: the three layers hold nine tenths of the weights.
    """
    state = read_state_dict(weights) if name.startswith("vgg") else {}
    head = next((value for key, value in state.items() if key.removeprefix("module.") == "classifier.weight"), None)
    if head is not None and head.ndim == 2 and head.shape[1] == 512:
        module.avgpool, module.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, head.shape[0])


def _facts(entry: Any, classes: int) -> tuple[tuple[str, ...] | None, Preprocessing | None]:
    """The categories of published weights (None if the number of classes differs) and their preprocessing.

    Detectors have none: they resize and normalise themselves.
    """
    categories, preset = tuple(entry.meta["categories"]), entry.transforms()
    preprocessing = Preprocessing.of_preset(preset) if hasattr(preset, "resize_size") else None
    return categories if len(categories) == classes else None, preprocessing


def _from_timm(name: str, weights: str | Path | None, num_classes: int | None) -> LoadedModel:
    try:
        import timm
        import timm.data
    except ImportError as error:
        raise ImportError("timm models need timm: pip install timm") from error

    known = timm.list_models()
    if name.partition(".")[0] not in known:
        raise ModelError(f"timm has no model {name!r}{_did_you_mean(name, known)}.")
    options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    try:
        with _tensors_only():
            module = _with_fixed_seed(lambda: timm.create_model(name, pretrained=weights is None, **options))
    except Exception as error:  # timm and the hub raise many kinds: no connection, no published weights, bad name
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"timm could not build {name}: {reason}") from error
    if weights is not None and str(weights) != "random":
        load_weights(module, weights, of=f"timm:{name}")
    config = timm.data.resolve_model_data_config(module)
    height, width = config["input_size"][1:]
    whole = config.get("crop_pct") or 1.0
    resize = int(height / whole) if height == width else (int(height / whole), int(width / whole))
    crop = height if height == width else (height, width)
    interpolation = config.get("interpolation")
    interpolation = interpolation if interpolation in INTERPOLATIONS else "bilinear"
    preprocessing = Preprocessing(resize, crop, tuple(config["mean"]), tuple(config["std"]), interpolation)
    categories = imagenet_categories() if module.num_classes == 1000 else None
    return LoadedModel(module, f"timm:{name}", str(weights or "published"), categories, preprocessing)


def _from_module(source: ModuleType, file: Path, name: str, weights: str | Path | None) -> LoadedModel:
    factory = getattr(source, name, None)
    if factory is None:
        own = [n for n, value in vars(source).items() if getattr(value, "__module__", None) == source.__name__]
        raise ModelError(f"{file} has no {name!r}{_did_you_mean(name, own)}.")
    stored = None if weights is None or str(weights) == "random" else Path(weights)
    if stored is not None and not stored.is_file():
        raise ModelError(f"the weights {weights} do not exist.")
    try:
        module = factory if isinstance(factory, nn.Module) else _with_fixed_seed(factory)
    except Exception as error:
        raise ModelError(f"{name} in {file} failed: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{name} in {file} should return a torch.nn.Module; it returned {module!r:.60}.")
    if stored is not None and stored.name.lower().endswith(SUFFIXES):
        load_keras_weights(module, stored)
    elif stored is not None:
        load_weights(module, stored, of=f"{file.name}:{name}")
    categories, given = getattr(source, "categories", None), getattr(source, "preprocessing", None)
    try:
        preprocessing = None if given is None else Preprocessing.of(given)
    except ValueError as error:
        raise ModelError(f"{file}: {error}") from None
    names = None if categories is None else tuple(map(str, categories))
    return LoadedModel(module, f"{file}:{name}", str(weights or "the factory's own"), names, preprocessing)


@contextmanager
def imported_file(file: Path) -> Iterator[ModuleType]:
    """The module of a Python file, which may import the files beside it.

    Modules of the program with the same names as these files are out of the way meanwhile, and back afterwards.
    """
    if not file.is_file():
        raise ModelError(f"{file} does not exist.")
    spec = importlib.util.spec_from_file_location(f"plrp_user_{file.stem}", file)
    assert spec is not None
    source = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = source  # dataclasses and pickle look a module up by its name
    displaced, folder = _forget_others(file), str(file.resolve().parent)
    sys.path.insert(0, folder)
    # Nothing compiled is stored: Python would take it for current if the file keeps its second and size.
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        try:
            exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), vars(source))
        except Exception as error:
            raise ModelError(f"{file} could not be imported: {type(error).__name__}: {error}") from error
        yield source
    finally:
        sys.dont_write_bytecode = bytecode
        sys.path.remove(folder)
        _ours.update({name: sys.modules[name] for name in imported_modules(file) if name in sys.modules})
        sys.modules.update(displaced)


_imported: dict[str, tuple[Path, bytes]] = {}
"""The content of each file beside a model when a model last imported it, by the module's name."""

_ours: dict[str, ModuleType] = {}
"""The modules that models imported last, by name; other modules of these names are the program's own."""


def _forget_others(file: Path) -> dict[str, ModuleType]:
    """Drop imported modules of other models, or of older files, that have the names of modules beside this model.

    Returns the displaced modules of the program itself.
    """
    modules = {name: (path, path.read_bytes()) for name, (_, path) in imported_modules(file).items()}

    def stale(name: str) -> bool:
        there = getattr(sys.modules.get(name), "__file__", None)
        if there is None or installed(Path(there)):
            return False
        return Path(there).resolve() != modules[name][0] or _imported.get(name, modules[name]) != modules[name]

    displaced = {}
    if any(map(stale, modules)):  # all of them: each may refer to another
        for name in modules:
            there = sys.modules.pop(name, None)
            if there is not None and there is not _ours.get(name):
                displaced[name] = there
    _imported.update(modules)
    importlib.invalidate_caches()
    return displaced


@contextmanager
def _tensors_only() -> Iterator[None]:
    """Make torch load nothing but tensors, even if a library asks for whole pickles."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _with_fixed_seed(build: Callable[[], nn.Module]) -> nn.Module:
    """The same random weights every time; the caller's random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    close = close_names(name, names)
    return f"; the nearest are {', '.join(close)}" if close else ""


def _torchvision() -> Any:
    with needed("torchvision's models need torchvision", "vision"):
        import torchvision
    return torchvision
