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
from urllib.parse import urlsplit

import torch
from torch import nn

from plrp.errors import UsageError, not_installed
from plrp.spelling import close_names

from .checkpoints import load_weights, read_state_dict
from .downloads import fetch
from .keras import SUFFIXES, load_keras, load_keras_weights
from .preprocessing import Preprocessing
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
        return f"LoadedModel({self.name}, weights: {self.weights}, {size:,} parameters{classes})"


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
        loaded = _from_file(Path(in_file["file"]), in_file["name"], weights)
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
    torchvision = _torchvision()
    return tuple(torchvision.models.ResNet50_Weights.DEFAULT.meta["categories"])


def published_categories(
    name: str, *, weights: str | Path | None = None, num_classes: int | None = None
) -> tuple[str, ...] | None:
    """The class names that `load` would give a torchvision model with published weights, without loading it."""
    if _FILE.match(name) or (":" in name and not name.startswith("torchvision:")):
        return None
    try:
        published, default = _published(name.removeprefix("torchvision:"))
    except ModelError:
        return None
    if weights is not None and str(weights) not in published:
        return None
    entry = default if weights is None else published[str(weights)]
    categories = tuple(entry.meta["categories"])
    return categories if num_classes in (None, len(categories)) else None


def published_file(name: str, weights: str | None = None) -> str:
    """The file name of a torchvision model's published weights, which holds the first digits of their checksum.

    The default weights may change with torchvision's version.
    """
    published, default = _published(name.removeprefix("torchvision:"))
    if weights is not None and weights not in published:
        raise ModelError(f"the weights {weights} are neither a file nor published ({', '.join(published)}, random).")
    return _file_name((published[weights] if weights else default).url)


def _file_name(url: str) -> str:
    return Path(urlsplit(url).path).name


def _published(name: str) -> tuple[dict[str, Any], Any]:
    """The published weights of a torchvision model by name, and which of them is the default."""
    torchvision = _torchvision()
    kinds = (torchvision.models, torchvision.models.detection, torchvision.models.segmentation)
    known = [name for kind in kinds for name in torchvision.models.list_models(module=kind)]
    if name not in known:
        raise ModelError(f"torchvision has no model {name!r}{_did_you_mean(name, known)}.")
    entries = torchvision.models.get_model_weights(name)
    return {entry.name: entry for entry in entries}, entries.DEFAULT


def _from_torchvision(name: str, weights: str | Path | None, num_classes: int | None, quiet: bool) -> LoadedModel:
    torchvision = _torchvision()
    published, default = _published(name)
    options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    spec = f"torchvision:{name}"
    if weights is None or str(weights) in published:
        entry = default if weights is None else published[str(weights)]
        if num_classes not in (None, len(entry.meta["categories"])):
            raise ModelError(
                f"the published weights of {name} have {len(entry.meta['categories'])} classes, not "
                f"{num_classes}; pass your own weights, or random."
            )
        # In torchvision's own cache its builder finds the file, and does the rest.
        fetch(entry.url, Path(torch.hub.get_dir()) / "checkpoints", quiet=quiet)
        with _tensors_only():
            try:
                module = torchvision.models.get_model(name, weights=entry)
            except pickle.UnpicklingError as error:
                raise ModelError(
                    f"{_file_name(entry.url)} in torch's cache is refused: it would run code on loading. "
                    "Delete it, and it will be downloaded again."
                ) from error
        return LoadedModel(module, spec, entry.name, *_facts(entry, len(entry.meta["categories"])))
    classes = num_classes or len(default.meta["categories"])
    if "weights_backbone" in inspect.signature(torchvision.models.get_model_builder(name)).parameters:
        options["weights_backbone"] = None  # detectors and segmenters would download some
    if str(weights) == "random":
        module = _with_fixed_seed(lambda: torchvision.models.get_model(name, weights=None, **options))
        return LoadedModel(module, spec, "random", *_facts(default, classes))
    if not Path(weights).is_file():
        raise ModelError(
            f"the weights {weights} are neither a file nor published for {name} ({', '.join(published)}, random)."
        )
    # A file under its published name (resnet50-11ad3fa6.pth) gets the transforms of that training; any other file gets
    # those of the first training, the customary 256 and 224.
    entry = next((e for e in published.values() if e.url.endswith(f"/{Path(weights).name}")), None)
    if entry is not None and name in ("googlenet", "inception_v3"):
        options["transform_input"] = True  # torchvision sets it for its own weights
    if "aux_loss" in inspect.signature(torchvision.models.get_model_builder(name)).parameters:
        options["aux_loss"] = any("aux_classifier." in key for key in read_state_dict(weights))
    module = torchvision.models.get_model(name, weights=None, **options)
    _fit_head(module, name, weights)
    load_weights(module, weights, of=spec)
    return LoadedModel(module, spec, str(weights), *_facts(entry or next(iter(published.values())), classes))


def _fit_head(module: nn.Module, name: str, weights: str | Path) -> None:
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
    interpolation = config.get("interpolation", "bilinear")
    preprocessing = Preprocessing(
        resize,
        height if height == width else (height, width),
        tuple(config["mean"]),
        tuple(config["std"]),
        interpolation if interpolation in ("bilinear", "bicubic", "nearest") else "bilinear",
    )
    categories = imagenet_categories() if module.num_classes == 1000 else None
    return LoadedModel(module, f"timm:{name}", str(weights or "published"), categories, preprocessing)


def _from_file(file: Path, name: str, weights: str | Path | None) -> LoadedModel:
    with imported_file(file) as source:
        return _from_module(source, file, name, weights)


def _from_module(source: ModuleType, file: Path, name: str, weights: str | Path | None) -> LoadedModel:
    factory = getattr(source, name, None)
    if factory is None:
        own = [n for n, value in vars(source).items() if getattr(value, "__module__", None) == source.__name__]
        raise ModelError(f"{file} has no {name!r}{_did_you_mean(name, own)}.")
    if weights is not None and str(weights) != "random" and not Path(weights).is_file():
        raise ModelError(f"the weights {weights} do not exist.")
    try:
        module = factory if isinstance(factory, nn.Module) else _with_fixed_seed(factory)
    except Exception as error:
        raise ModelError(f"{name} in {file} failed: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{name} in {file} should return a torch.nn.Module; it returned {module!r:.60}.")
    if weights is not None and str(weights) != "random":
        if str(weights).lower().endswith(SUFFIXES):
            load_keras_weights(module, weights)
        else:
            load_weights(module, weights, of=f"{file.name}:{name}")
    categories = getattr(source, "categories", None)
    return LoadedModel(
        module,
        f"{file}:{name}",
        str(weights or "the factory's own"),
        None if categories is None else tuple(str(category) for category in categories),
        _preprocessing_of(source, file),
    )


def _preprocessing_of(source: ModuleType, file: Path) -> Preprocessing | None:
    given = getattr(source, "preprocessing", None)
    try:
        return None if given is None else Preprocessing.of(given)
    except ValueError as error:
        raise ModelError(f"{file}: {error}") from None


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
    try:
        _execute(file, source)
        yield source
    finally:
        sys.path.remove(folder)
        _ours.update({name: sys.modules[name] for name in imported_modules(file) if name in sys.modules})
        sys.modules.update(displaced)


def _execute(file: Path, source: ModuleType) -> None:
    bytecode = sys.dont_write_bytecode
    # Nothing compiled is stored: Python would take it for current if the file keeps its second and size.
    sys.dont_write_bytecode = True
    try:
        exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), vars(source))
    except Exception as error:
        raise ModelError(f"{file} could not be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.dont_write_bytecode = bytecode


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
    try:
        import torchvision
    except ImportError as error:
        raise not_installed("torchvision's models need torchvision", "vision") from error
    return torchvision
