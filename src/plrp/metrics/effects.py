"""How the model's score changes when its input changes: the truth that explanations are compared with.

`occlusion` overwrites one region of an image after the other, `mutagenesis` one base of a sequence after the other
(in-silico mutagenesis, ISM). `agreement` compares relevance with either. `infidelity` asks
whether relevance predicts the effect of small random changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .feature_rows import Pooling, as_map, check_finite, pearson, spearman, wide_dtype
from .regions import Layout
from .replacements import PerturbationSettings
from .scores import GivenTarget, Model, ScoreKind, chunks, scorer
from .seeded import Draws


def occlusion(
    model: Model, inputs: Tensor, *, target: GivenTarget = None, batch_size: int = 64, **settings: Any
) -> Tensor:
    """By how much the score falls when one region alone is overwritten (Zeiler & Fergus, 2014).

    drop_t = f(x) − f(x with region t overwritten). `inputs` are (batch, channel, *space) or (batch, features);
    `settings` are the fields of `PerturbationSettings`, with tiles of 16 and a blur by default. Returns float64 (batch,
    regions), tiles counted row by row; positive where the region speaks for the target.

    >>> model = torch.nn.Linear(3, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> occlusion(model, torch.tensor([[4.0, -1.0, 2.0]]), region=1, perturbation="zeros")
    tensor([[ 4., -1.,  2.]], dtype=torch.float64)
    """
    how = PerturbationSettings(**{"region": 16, "perturbation": "blur", **settings})
    inputs = inputs.detach()
    layout = Layout(inputs, how.region, "sum")
    how.check(layout, inputs)
    scored = scorer(model, inputs, target, how.score_as, batch_size)
    count = layout.regions.count
    drops = inputs.new_empty(len(inputs), count, dtype=wide_dtype(inputs))
    for rows in chunks(len(inputs), batch_size, inputs.device):
        here = layout.fold(inputs[rows])
        written = layout.fold(how.overwritten(inputs[rows], layout, rows))
        whole = scored(inputs[rows], rows)
        for pairs in chunks(len(rows) * count, batch_size, inputs.device):
            one, tile = pairs // count, pairs % count
            covered = layout.regions.number == tile.reshape(-1, 1, *[1] * (here.ndim - 2))
            occluded = torch.where(covered, written[one], here[one]).reshape(-1, *layout.shape)
            drops[rows[one], tile] = whole[one] - scored(occluded, rows[one])
    return drops


def mutagenesis(
    model: Model,
    inputs: Tensor,
    *,
    target: GivenTarget = None,
    positions: Sequence[int] | None = None,
    score_as: ScoreKind = "logit",
    batch_size: int = 64,
) -> Tensor:
    """By how much the score falls when one base is exchanged for each of the others (in-silico mutagenesis).

    `inputs` are one-hot, (batch, letters, length). Returns float64 (batch, letters, positions): the fall at each of
    `positions` (None: all) with each letter in the place of the present one, where it is 0. The effect of a base, as
    `agreement` wants it, is its mean over the other letters: `drops.sum(1) / (letters − 1)`. A position without a
    letter (N, all zeros) cannot be exchanged: NaN.
    """
    if inputs.ndim != 3 or not bool(((inputs == 0) | (inputs == 1)).all()) or bool((inputs.sum(1) > 1).any()):
        raise ValueError(
            f"mutagenesis exchanges letters of one-hot sequences (batch, letters, length); got {tuple(inputs.shape)} "
            "with other entries: use occlusion."
        )
    inputs = inputs.detach()
    scored = scorer(model, inputs, target, score_as, batch_size)
    where = torch.arange(inputs.shape[2]) if positions is None else torch.as_tensor(list(positions))
    where = where.to(inputs.device)
    drops = inputs.new_zeros(len(inputs), inputs.shape[1], len(where), dtype=wide_dtype(inputs))
    for row, one in enumerate(inputs):
        number = torch.tensor([row], device=inputs.device)
        whole = scored(one[None], number)
        present = one[:, where]
        for part in (present == 0).nonzero().split(batch_size):  # (letter, place) of every exchange
            letter, place = part.T
            changed = one.expand(len(part), -1, -1).clone()
            each = torch.arange(len(part), device=inputs.device)
            changed[each, :, where[place]] = 0
            changed[each, letter, where[place]] = 1
            drops[row, letter, place] = whole - scored(changed, number.expand(len(part)))
        drops[row, :, present.sum(0) == 0] = torch.nan
    return drops


class EffectAgreement(NamedTuple):
    """How well relevance agrees with the measured effects; each is float64 (batch,), −1 to 1.

    `spearman` compares ranks with their signs, `spearman_absolute` the ranks of absolute values,
    `pearson` is the correlation. NaN where either side is constant.
    """

    spearman: Tensor
    spearman_absolute: Tensor
    pearson: Tensor


def agreement(
    relevance: Any,
    effects: Tensor,
    *,
    inputs: Tensor | None = None,
    region: int | Sequence[int] = 16,
    channels: Pooling = "sum",
) -> EffectAgreement:
    """Compare relevance with the effects of occlusion or mutagenesis, sample by sample.

    `effects` is (batch, features). `relevance` has that shape too, or that of `inputs`, and is then summed over
    channels and over the same tiles as `occlusion(inputs, region=region)` used (`region=1`: per base or pixel).

    >>> agreement(torch.tensor([[3.0, 0.0, -1.0]]), torch.tensor([[9.0, 0.5, -8.0]])).spearman
    tensor([1.], dtype=torch.float64)
    """
    values = torch.as_tensor(relevance).detach()
    if inputs is not None:
        values = Layout(inputs, region, channels).per_region(values)
    if values.shape != effects.shape:
        raise ValueError(
            f"relevance of shape {tuple(values.shape)} and effects of shape {tuple(effects.shape)} have other "
            "features: pass inputs= and the region that was occluded, or choose the positions that were mutated."
        )
    effects = effects.to(values.device)
    return EffectAgreement(spearman(values, effects), spearman(values.abs(), effects.abs()), pearson(values, effects))


def infidelity(
    model: Model,
    inputs: Tensor,
    relevance: Any,
    *,
    target: GivenTarget = None,
    multiplied: bool = True,
    scaled: bool = False,
    score_as: ScoreKind = "logit",
    batch_size: int = 64,
    **draws: Any,
) -> Tensor:
    """Mean squared error of the change that relevance predicts (Yeh et al., 2019). Lower is better.

    mean over I of (Σ_i I_i φ_i − (f(x) − f(x − I)))², with `samples` perturbations I of `noise`, `radius` and `seed`
    (see `local_lipschitz`; by default 20 Gaussian ones of 0.1), the same for all inputs.

    - `relevance`: (batch, ...) like the inputs; NaN or infinity is a ValueError.
    - `multiplied`: relevance and other 'times input' methods share out the score itself: φ_i = r_i / x_i, and r_i where
      x_i = 0. False takes relevance as a gradient, φ = r.
    - `scaled`: compare up to a factor: relevance is first multiplied by the number that fits best, per sample.
    """
    inputs = inputs.detach()
    perturbations = Draws(**{"noise": "gaussian", **draws})
    if perturbations.samples < 1:
        raise ValueError(f"samples is the number of perturbations, at least 1; got {perturbations.samples}.")
    values = as_map(relevance, None).to(inputs.device)
    if values.shape != inputs.shape:
        raise ValueError(
            f"relevance of shape {tuple(values.shape)} does not fit inputs of shape {tuple(inputs.shape)}: infidelity "
            "needs one value per entry of the input."
        )
    wide = wide_dtype(inputs)
    slopes = values.to(wide)
    check_finite(slopes.flatten(1).sum(1))
    if multiplied:
        slopes = slopes / torch.where(inputs == 0, 1.0, inputs.to(wide))
    scored = scorer(model, inputs, target, score_as, batch_size)
    square, product, change = torch.zeros(3, len(inputs), dtype=wide, device=inputs.device)
    for rows in chunks(len(inputs), batch_size, inputs.device):
        before = scored(inputs[rows], rows)
        for index in range(perturbations.samples):
            shift = perturbations.shift(index, inputs)
            fall = before - scored(inputs[rows] - shift, rows)
            predicted = (slopes[rows] * shift.to(wide)).flatten(1).sum(1)
            square[rows] += predicted**2
            product[rows] += predicted * fall
            change[rows] += fall**2
    factor = torch.where(square > 0, product / square, 0.0) if scaled else torch.ones_like(square)
    return (factor**2 * square - 2 * factor * product + change) / perturbations.samples
