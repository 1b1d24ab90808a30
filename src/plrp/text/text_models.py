"""A model and its tokenizer from a folder or a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from plrp.errors import UsageError, not_installed

TOKENIZERS = ("tokenizer*.json", "vocab*", "merges.txt", "*.model", "*.spm", "*.tiktoken", "tokenization_*")
"""A tokenizer has at least one of these files; without any, transformers may make an empty one."""


def _needed(package: str, users: str) -> Any:
    """A package, or a sentence where it is not installed."""
    try:
        return import_module(package)
    except ImportError:
        raise not_installed(f"{users} need {package}", "text") from None


def is_language_model(path: str | Path) -> bool:
    """Whether a path names a language model that `load` takes: a .gguf file, or a folder with config.json."""
    return Path(path).suffix.lower() == ".gguf" or (Path(path) / "config.json").is_file()


def load(path: str | Path, *, check: Callable[[Any, type], None] | None = None) -> tuple[Any, Any]:
    """The model, with real weights on the CPU, and its tokenizer. Nothing is downloaded, and no code of theirs runs.

    - `path`: a folder as `save_pretrained` writes it, or a GGUF file, whose quantised weights are converted;
    - `check(tokenizer, class of the model)` is called before the weights are read, which takes longest.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path} does not exist: give a folder with config.json, or a .gguf file.")
    if path.is_dir() and not (path / "config.json").is_file():
        inside = sorted(path.glob("*.gguf"))
        if len(inside) != 1:
            raise UsageError(f"{path} holds no config.json and no single .gguf file: name another folder, or a file.")
        path = inside[0]
    file = path.suffix.lower() == ".gguf"
    if not file and not path.is_dir():
        raise UsageError(f"{path} is neither a folder nor a .gguf file.")
    transformers = _needed("transformers", "Language models")
    import torch

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if file:
        for package in ("gguf", "accelerate"):
            _needed(package, "GGUF files")
        options["gguf_file"] = path.name
        folder, kind = path.parent, transformers.AutoModelForCausalLM
    else:
        folder, kind = path, _class(transformers, path)
        if not any(any(folder.glob(pattern)) for pattern in TOKENIZERS):
            raise UsageError(
                f"{path} holds no tokenizer (tokenizer.json, vocab.txt, …): write it there with "
                "tokenizer.save_pretrained, or load it by itself and call plrp.text.explain."
            )
    with _quiet(transformers), _refusing(path):
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **options)
    if check is not None:
        check(tokenizer, kind)
    with _quiet(transformers), _refusing(path):
        model = kind.from_pretrained(str(folder), dtype=torch.float32, **options)
    if file:  # its weights are real numbers now, so that `save_pretrained` may write them
        model.is_quantized = False
        for owner, name in ((model, "hf_quantizer"), (model.config, "quantization_config")):
            if hasattr(owner, name):
                delattr(owner, name)
    return model.eval(), tokenizer


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Refuse files that transformers cannot load, with the first line of its message."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path} cannot be loaded: {first}") from error


def _class(transformers: Any, folder: Path) -> Any:
    """The class that a folder's configuration names."""
    try:
        names = json.loads((folder / "config.json").read_text("utf-8")).get("architectures")
    except (AttributeError, ValueError) as error:
        raise UsageError(f"{folder / 'config.json'} is no configuration in JSON ({error}).") from None
    kind = getattr(transformers, str(names[0]), None) if names else None
    if kind is None:
        what = f"names {names[0]}, which transformers does not have" if names else "names no architecture"
        raise UsageError(
            f"{folder / 'config.json'} {what}: load the model in Python with its own class "
            "(BertForSequenceClassification.from_pretrained(…), say) and call plrp.text.explain."
        )
    return kind


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without transformers' progress bars and warnings."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(StringIO()):  # the bar of GGUF files ignores the setting
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
