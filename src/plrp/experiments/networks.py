"""The network of a sweep: a user's by name, or the paper's sequence CNN, trained once and stored in the run."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from plrp.genomics.network import SequenceCNN
from plrp.models.loading import load, published_file
from plrp.models.preprocessing import Preprocessing
from plrp.models.sources import source_files
from plrp.runs.places import RunError
from plrp.runs.run import Digests, text_digest

from .config import Config, ConfigError, Model
from .data import DNA, open_samples
from .store import NETWORK, TRAINING, Store

SEQUENCE_CNN = "sequence-cnn"
WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
"""Suffixes of files of weights; names of published weights have none of them."""


def load_network(config: Config, store: Store) -> tuple[nn.Module, Preprocessing | None]:
    """The network in evaluation mode, and how it wants photographs (None where unknown)."""
    model = config.model
    if model.name == SEQUENCE_CNN:
        return _sequence_cnn(config, store), None
    classes = model.options.get("num_classes")
    loaded = load(model.name, weights=model.weights, num_classes=classes, quiet=not sys.stderr.isatty())
    return loaded.module, loaded.preprocessing


def resolved_model(
    config: Config, store: Store, digests: Digests | None = None, show_progress: bool | None = None
) -> Model:
    """The config's model with digests of its weights and of its code.

    Trains the sequence CNN, if that was not done yet with these settings.
    """
    digests = digests or Digests()
    code = code_digests(config.model, digests)
    return replace(config.model, code=code, digest=_weights_digest(config, store, digests, show_progress))


def code_digests(model: Model, digests: Digests) -> dict[str, str] | None:
    """Digests of a model's file and of the user's files that it imports, by name; None for models without a file."""
    file = model.name.rpartition(":")[0]
    if not file.endswith(".py"):
        return None
    if not Path(file).is_file():
        raise ConfigError(f"the model {model.name} is in a file that does not exist.")
    return {name: digests.of(path) for name, path in source_files(file).items()}


def _weights_digest(config: Config, store: Store, digests: Digests, show_progress: bool | None) -> str:
    model = config.model
    if model.name == SEQUENCE_CNN and model.weights is None:
        # A network without a record of its training counts as trained with these data and settings.
        known = (training(store) or {}).get("trained_on") if store.place.exists(NETWORK) else "no network"
        if known not in (None, _training_digest(config)):
            _train(config, store, show_progress)
        return text_digest(store.place.read(NETWORK))
    if model.weights is not None:
        if Path(model.weights).is_file():
            return digests.of(model.weights)
        if Path(model.weights).suffix in WEIGHTS:
            raise ConfigError(f"the weights {model.weights} do not exist.")
    if ".py:" in model.name:  # a factory that makes its own weights, always the same: its code decides
        return model.weights or "own weights"
    if model.weights == "random" or model.name.startswith("timm:"):
        return model.weights or "published"
    return published_file(model.name, model.weights)


def training(store: Store) -> dict[str, Any] | None:
    """How the sequence CNN of a run was trained, and how well; None where none was."""
    if not store.place.exists(TRAINING):
        return None
    try:
        return dict(json.loads(store.place.read(TRAINING)))
    except (ValueError, TypeError) as error:
        raise RunError(f"{store}/{TRAINING} is damaged ({error}): remove it and {NETWORK}, and start again.") from None


def _training_digest(config: Config) -> str:
    """The digest of everything that decides the weights: sequences, settings, seed."""
    samples = open_samples(config)
    whole = DNA(samples.whole, "all", config.seed).digest() if isinstance(samples, DNA) else samples.digest()
    return text_digest(json.dumps([whole, dict(config.model.options), config.seed], sort_keys=True))


def _sequence_cnn(config: Config, store: Store) -> nn.Module:
    if config.model.weights is not None:
        return SequenceCNN.load(config.model.weights)
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        file.write(store.place.read(NETWORK))
        file.flush()
        return SequenceCNN.load(file.name)


def _train(config: Config, store: Store, show_progress: bool | None) -> None:
    """Train on the sequences that are not explained, on one thread, so that the same seed gives the same weights."""
    samples = open_samples(config)
    if not isinstance(samples, DNA) or samples.part != "test":
        raise ConfigError(f"{SEQUENCE_CNN} without weights is trained on DNA with known motifs, and explains its test.")
    train, validation, test = samples.split
    options = {"filters": 32, "hidden": 0, "epochs": 20, "patience": 4, **config.model.options}
    network = SequenceCNN(options["filters"], classes=len(samples.whole.class_names), hidden=options["hidden"])
    with threads_set(1):
        history = network.fit(
            train.onehot(),
            train.labels,
            validation=(validation.onehot(), validation.labels),
            epochs=options["epochs"],
            patience=options["patience"],
            seed=config.seed,
            show_progress=show_progress,
            label=f"training {options['filters']} filters, epochs",
        )
        accuracy = network.accuracy(test.onehot(), test.labels)
    about = {
        "settings": network.settings,
        "weights": sum(p.numel() for p in network.parameters()),
        "epochs": len(history.train_loss),
        "train_loss": history.train_loss,
        "validation_loss": history.validation_loss,
        "validation_accuracy": history.accuracy,
        "test_accuracy": accuracy,
        "sequences": {"train": len(train), "validation": len(validation), "test": len(test)},
        "class_names": samples.whole.class_names,
        "trained_on": _training_digest(config),
    }
    store.place.write(TRAINING, json.dumps(about, indent=1).encode())
    buffer = io.BytesIO()
    torch.save({"settings": network.settings, "state": network.state_dict()}, buffer)
    store.place.write(NETWORK, buffer.getvalue())  # last: where it is, training is done


@contextmanager
def threads_set(count: int) -> Iterator[None]:
    """Use `count` torch threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
