"""The one number per sample that perturbations are measured by: the logit or probability of a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from plrp.targets import as_target

from .feature_rows import wide_dtype

GivenTarget: TypeAlias = "int | Sequence[int] | Tensor | tuple[int, ...] | Callable[[Tensor], Tensor] | None"
Model: TypeAlias = "nn.Module | Callable[[Tensor], Tensor]"
ScoreKind: TypeAlias = Literal["logit", "probability"]


def fix_target(model: Model, inputs: Tensor, target: GivenTarget, batch_size: int) -> GivenTarget:
    """The target to hold fixed while inputs are perturbed: as given, or each sample's winning class.

    Classes per sample come back as int64 (batch,) on the inputs' device; an int, an index tuple into the
    output and a callable stay as they are; a seed of `plrp.targets` gets the winners where it names no class.
    """
    asked = as_target(target)
    asked.check_batch(len(inputs))

    def winners() -> Tensor:
        rows = chunks(len(inputs), batch_size, inputs.device)
        classes = [as_target(None).bound(predict(model, inputs[some])).given for some in rows]
        return torch.cat(classes) if classes else torch.zeros(0, dtype=torch.long, device=inputs.device)

    given = asked.fixed(winners).given
    return given.to(inputs.device) if isinstance(given, Tensor) else given


def predict(model: Model, inputs: Tensor) -> Tensor:
    """The model's output, without a graph; a model in training mode whose scores would vary is refused."""
    if isinstance(model, nn.Module):
        for name, module in model.named_modules():
            random = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
            if module.training and (random or isinstance(module, nn.modules.batchnorm._BatchNorm)):
                raise ValueError(
                    f"layer {name!r} is in training mode, where scores depend on chance and on the rest of the batch: "
                    "call model.eval() first."
                )
    with torch.no_grad():
        return model(inputs)


def chunks(count: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """The indices 0 … count − 1, int64, at most `size` at a time; nothing for a count of 0."""
    for start in range(0, count, size):
        yield torch.arange(start, min(start + size, count), device=device)


def for_rows(target: GivenTarget, rows: Tensor) -> GivenTarget:
    """The fixed target of the samples `rows` (an index into the batch)."""
    return as_target(target).of(rows).given


def score(output: Tensor, target: GivenTarget, kind: ScoreKind) -> Tensor:
    """One score per row of the model's output, float64 (batch,).

    `"probability"` is the softmax over axis 1, or the sigmoid of a single output.
    """
    if kind == "probability":
        if callable(target):
            raise ValueError(
                "a callable target computes its own score: use score_as='logit', or compute the probability in it."
            )
        output = output.sigmoid() if output.ndim < 2 or output.shape[1] == 1 else output.softmax(1)
    elif kind != "logit":
        raise ValueError(f"unknown score_as {kind!r}: choose 'logit' or 'probability'.")
    scores = as_target(target).score(output)
    return scores.detach().to(wide_dtype(scores))


def scorer(
    model: Model, inputs: Tensor, target: GivenTarget, kind: ScoreKind, batch_size: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of perturbed inputs and their rows in the batch: the scores of the target that the inputs have."""
    fixed = fix_target(model, inputs, target, batch_size)
    return lambda perturbed, rows: score(predict(model, perturbed), for_rows(fixed, rows), kind)
