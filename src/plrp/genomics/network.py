"""Networks that read one-hot DNA: those of the paper's experiments, and models of users.

The paper names two sizes, 4 and 32 filters, and refers to Lemanczyk et al. (2024) for the rest, where we found only
that the networks are shallow. `SequenceCNN` is a shallow network of the kind common in regulatory
genomics: a convolution of motif width, a second one that combines neighbouring evidence, the best place of each filter,
and a linear read-out.
"""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from plrp.errors import UsageError, usage
from plrp.files import new_file
from plrp.models.checkpoints import CheckpointError, load_tensors
from plrp.models.keras import SUFFIXES
from plrp.models.loading import load
from plrp.progress import progress
from plrp.tape.refusals import device_of
from plrp.targets import check_target

from .attribution import evaluating
from .outputs import OutputScore, check_choice
from .sequences import OneHot, SequenceError


@dataclass
class History:
    """The course of training: loss and accuracy per epoch, and the best epoch, whose weights the network has."""

    train_loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    validation_accuracy: list[float] = field(default_factory=list)
    best_epoch: int = 0

    @property
    def accuracy(self) -> float:
        """Validation accuracy of the best epoch."""
        return self.validation_accuracy[self.best_epoch] if self.validation_accuracy else float("nan")


class SequenceCNN(nn.Module):
    """A CNN for one-hot DNA, (batch, 4, length) to (batch, classes) pre-softmax scores.

    conv(4 → filters, `kernel`) – norm – ReLU – maxpool(`pool`) – conv(filters → filters, 5) – norm – ReLU – global
    maxpool – [linear(`hidden`) – ReLU –] linear(classes). norm is BatchNorm, which the trace folds into its
    convolution. `hidden = 0` leaves that layer out; tasks such as xor need it (32 is enough). Sequences must have at
    least `kernel` bases.

    >>> SequenceCNN(filters=4, classes=3)(torch.zeros(2, 4, 250)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        filters: int = 32,
        *,
        classes: int = 2,
        kernel: int = 15,
        pool: int = 4,
        hidden: int = 0,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if min(filters, classes, kernel, pool) < 1 or hidden < 0:
            raise ValueError("SequenceCNN needs at least one filter, class, kernel base and pooled position.")
        self.settings: dict[str, Any] = {
            "filters": filters,
            "classes": classes,
            "kernel": kernel,
            "pool": pool,
            "hidden": hidden,
            "dropout": dropout,
        }
        self.conv1 = nn.Conv1d(4, filters, kernel, padding=kernel // 2)
        self.norm1 = nn.BatchNorm1d(filters)
        self.conv2 = nn.Conv1d(filters, filters, 5, padding=2)
        self.norm2 = nn.BatchNorm1d(filters)
        self.pool = nn.MaxPool1d(pool, ceil_mode=True)
        self.best = nn.AdaptiveMaxPool1d(1)
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(filters, hidden) if hidden else None
        self.output = nn.Linear(hidden or filters, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes before softmax; (batch, classes)."""
        kernel = self.settings["kernel"]
        if x.ndim != 3 or x.shape[1] != 4 or x.shape[2] < kernel:
            raise SequenceError(
                f"This network reads (batch, 4, length) with at least the {kernel} bases of its kernel, got "
                f"{tuple(x.shape)}."
            )
        x = self.pool(torch.relu(self.norm1(self.conv1(x))))
        x = self.best(torch.relu(self.norm2(self.conv2(x))))
        x = self.dropout(torch.flatten(x, 1))
        return self.output(x if self.hidden is None else torch.relu(self.hidden(x)))

    def fit(
        self,
        x: npt.ArrayLike | Tensor,
        y: npt.ArrayLike | Tensor,
        *,
        validation: tuple[Any, Any],
        epochs: int = 60,
        patience: int = 8,
        batch_size: int = 64,
        learning_rate: float = 5e-3,
        weight_decay: float = 1e-4,
        seed: int = 0,
        show_progress: bool | None = None,
        label: str = "training epochs",
    ) -> History:
        """Train (cross-entropy, Adam) until the validation loss has not fallen for `patience` epochs; keep the best.

        The same seed, data and thread count give the same weights: initialisation, shuffling and dropout are seeded,
        and torch's global generator is restored.
        """
        x, y = _tensors(x, y)
        vx, vy = _tensors(*validation)
        history, best, best_loss = History(), copy.deepcopy(self.state_dict()), float("inf")
        with torch.random.fork_rng(devices=[]), progress(label, epochs, show_progress, announce=True) as step:
            torch.manual_seed(seed)
            for layer in self.modules():
                if isinstance(layer, (nn.Conv1d, nn.BatchNorm1d, nn.Linear)):
                    layer.reset_parameters()
            optimizer = torch.optim.Adam(self.parameters(), lr=learning_rate, weight_decay=weight_decay)
            for epoch in range(epochs):
                self.train()
                total = 0.0
                for rows in torch.randperm(len(x)).split(batch_size):
                    optimizer.zero_grad(set_to_none=True)
                    loss = nn.functional.cross_entropy(self(x[rows]), y[rows])
                    loss.backward()
                    optimizer.step()
                    total += loss.item() * len(rows)
                history.train_loss.append(total / len(x))
                scores = self.scores(vx)
                history.validation_loss.append(nn.functional.cross_entropy(scores, vy).item())
                history.validation_accuracy.append((scores.argmax(1) == vy).double().mean().item())
                if history.validation_loss[-1] < best_loss:
                    best, best_loss = copy.deepcopy(self.state_dict()), history.validation_loss[-1]
                    history.best_epoch = epoch
                step(1, f"validation accuracy {history.validation_accuracy[-1]:.3f}")
                if epoch - history.best_epoch >= patience:
                    break
        self.load_state_dict(best)
        self.eval()
        return history

    @torch.no_grad()
    def scores(self, x: npt.ArrayLike | Tensor, batch_size: int = 512) -> Tensor:
        """Pre-softmax scores in evaluation mode, in batches; the training flag is restored."""
        x = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x), dtype=torch.float32)
        with evaluating(self, self.output.weight.device):
            return torch.cat([self(part) for part in x.split(batch_size)])

    def accuracy(self, x: npt.ArrayLike | Tensor, y: npt.ArrayLike | Tensor) -> float:
        """Share of sequences whose winning class is the label."""
        return (self.scores(x).argmax(1) == torch.as_tensor(np.asarray(y))).double().mean().item()

    def save(self, path: str | Path) -> None:
        """Write settings and weights to one file of plain tensors and numbers, whole or not at all."""
        buffer = io.BytesIO()  # torch.save to a file stores its name: the bytes would differ each time
        torch.save({"settings": self.settings, "state": self.state_dict()}, buffer)
        with new_file(path) as part:
            part.write_bytes(buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> SequenceCNN:
        """Read a file of `save`, with `weights_only=True`: a file from a stranger cannot run code."""
        try:
            checkpoint = load_tensors(path)
            if isinstance(checkpoint, dict) and "settings" not in checkpoint:
                raise SequenceError(f"{path} is a state dict: use --model file.py:factory --weights {path}.")
            with torch.device("meta"):  # settings that do not fit the weights are refused before they take memory
                cls(**checkpoint["settings"]).load_state_dict(checkpoint["state"], assign=True)
            network = cls(**checkpoint["settings"])
            network.load_state_dict(checkpoint["state"])
        except FileNotFoundError:
            raise SequenceError(f"{path}: no such file.") from None
        except (SequenceError, CheckpointError):
            raise
        except Exception as error:
            raise SequenceError(
                f"{path}: not a checkpoint of plrp's SequenceCNN ({type(error).__name__}). For a model of your own "
                "give --model file.py:factory and --weights with its state dict; a whole pickled model is not read, "
                "since it could run code."
            ) from None
        return network.eval()


def _tensors(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    x = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x), dtype=torch.float32)
    y = y if isinstance(y, Tensor) else torch.as_tensor(np.asarray(y), dtype=torch.long)
    if len(x) != len(y) or len(x) == 0:
        raise ValueError(f"{len(x)} sequences and {len(y)} labels: give one label each, and at least one.")
    return x, y


# -- models of users


def load_model(name: str, weights: str | Path | None = None) -> nn.Module:
    """A checkpoint of `plrp genomics train`, `file.py:factory` with a state dict, or a Keras file."""
    if name.lower().endswith(".keras"):
        raise UsageError(f"{name}: Keras' own format is not read; save it with model.save('model.h5').")
    if name.endswith(".py"):
        raise UsageError(f"{name} is a file of code: name the function that returns the model, such as {name}:build.")
    if ".py:" in name or name.lower().endswith(SUFFIXES):
        return load(name, weights=None if weights is None else str(weights)).module
    if weights is not None:
        raise UsageError(f"--weights goes with --model file.py:factory; {name} is a checkpoint that holds its weights.")
    return SequenceCNN.load(name)


def check_fit(model: nn.Module, onehot: OneHot, targets: Sequence[Any], what: str) -> None:
    """Refuse sequences that do not fit the model, and targets that its output does not have; one sequence is tried.

    `what` begins the sentence: `seqs.fa, line 1: its 250 bases`, say.
    """
    x = torch.from_numpy(onehot[:1]).to(device_of(model))
    try:
        with torch.no_grad():
            output = model(x)
    except Exception as error:
        raise _misfit(model, x, error, what) from None
    with usage():
        for target in targets:
            check_choice(output, target)
            check_target(output, target)
            if isinstance(target, OutputScore):
                target(output)


def _misfit(model: nn.Module, x: Tensor, error: Exception, what: str) -> UsageError:
    """The error for sequences that a model cannot read, with the likeliest remedy."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    with suppress(Exception), torch.no_grad():
        model(x.transpose(1, 2))
        return UsageError("Your model reads (batch, length, 4): transpose in its forward, x.transpose(1, 2).")
    if count := re.search(r"to have (\d+) channels, but got 4 channels", reason):
        return UsageError(f"The model reads {count[1]} channels, DNA has 4: give a model of one-hot DNA.")
    if re.search(r"input size per channel|[Oo]utput size is too small|negative output size", reason):
        return SequenceError(
            f"{what} do not fit the model ({reason}): they are too short, also because it may crop its ends. Give "
            "longer ones, or pad them with N."
        )
    if isinstance(error, TypeError) or "argument #1 'indices'" in reason:
        return UsageError(
            f"The model does not take one-hot DNA ({reason}): wrap it in a module whose forward takes (batch, 4, "
            "length) alone, or use plrp.explain in Python, which takes tokens and several inputs."
        )
    return SequenceError(
        f"{what} do not fit the model ({reason}). Models read (batch, 4, length): cut or extend the sequences to the "
        "length it was made for; they must not be shorter than its kernels."
    )
