"""Random models of token ids: looked up in tables by every spelling, and some with a way that plrp cannot see.

Steps read the ids as whole numbers; the slow LRP has them as float64, so each step converts them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from random_faults import sum_with_constant
from random_steps import Maker, Rule, Run, activation, attention, flattened, follows, linear, nothing, residual

VOCABULARY, CHANNELS = 12, 3
LENGTHS = ((1,), (2,), (3,), (5,), (8,))
PADDING = 0


def token_ids(batch: int, length: int, generator: torch.Generator, padded: bool) -> Tensor:
    """(batch, length) from 2 on, the ids at both ends unlike their neighbours; `padded`: zeros follow some samples."""
    ids = torch.randint(2, VOCABULARY, (batch, length), generator=generator)
    for row in ids if length > 2 else ():
        row[0] += row[0] == row[1]
        row[-1] += row[-1] == row[-2]
    ids = ids.clamp(max=VOCABULARY - 1)
    if padded and length > 4:
        ids[torch.randint(2, (batch,), generator=generator) > 0, -2:] = PADDING
    return ids


def to_tokens(places: Run | None = None) -> Rule:
    """All channels of a row to its token; `places` says which token each row was looked up for."""

    def rule(r: Tensor, z: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        rows = r.flatten(2).sum(2)
        if places is None:
            return [rows]
        where = places(inputs[0].long())
        return [torch.zeros_like(inputs[0]).scatter_add(1, where, rows)]

    return rule


def looked_up(m: Maker, ids: int) -> int:
    """Rows of a table for each token, in one of many spellings: (batch, tokens, channels)."""
    w = m.normal(VOCABULARY, CHANNELS)
    order, length = m.order(VOCABULARY), m.shapes[ids][0]
    columns = range(CHANNELS)
    spellings: dict[str, Run] = {
        "embedding": lambda ids: F.embedding(ids, w),
        "getitem": lambda ids: w[ids],
        "getitem of columns": lambda ids: torch.stack([w[ids, n] for n in columns], -1),
        "one number per token": lambda ids: torch.stack([w[:, n][ids] for n in columns], -1),
        "index_select": lambda ids: w.index_select(0, ids.flatten()).view(*ids.shape, -1),
        "take": lambda ids: torch.stack([w[:, n].take(ids) for n in columns], -1),
        "gather": lambda ids: w.expand(len(ids), -1, -1).gather(1, ids[..., None].expand(-1, -1, CHANNELS)),
        "take_along_dim": lambda ids: (
            w[:, 0].expand(len(ids), -1).take_along_dim(ids, 1)[..., None].expand(-1, -1, CHANNELS)
        ),
        "by a table of ids": lambda ids: F.embedding(order[ids], w),
    }
    moves: dict[str, tuple[Run, Run]] = {  # the ids, and the place that each was at
        "as they are": (lambda ids: ids, lambda ids: torch.arange(length).expand(ids.shape)),
        "sorted": (lambda ids: ids.sort(stable=True, dim=1).values, lambda ids: ids.sort(stable=True, dim=1).indices),
        "flipped": (lambda ids: ids.flip(1), lambda ids: torch.arange(length).flip(0).expand(ids.shape)),
        "first": (lambda ids: ids[:, :2], lambda ids: torch.arange(min(2, length)).expand(len(ids), -1)),
        "copied": (lambda ids: ids.clone(), lambda ids: torch.arange(length).expand(ids.shape)),
        "shifted": (shifted, lambda ids: torch.arange(length).expand(ids.shape)),
    }
    spelling, move = m.draw.choice(sorted(spellings)), m.draw.choice(["as they are", *sorted(moves)])
    look, (moved, places) = spellings[spelling], moves[move]
    run: Run = lambda ids: look(moved(ids.long()))  # noqa: E731
    return m.add(f"{spelling} of ids {move}", run, ids, rule=to_tokens(places))


def shifted(ids: Tensor) -> Tensor:
    """A copy that is written token by token."""
    written = torch.zeros_like(ids)
    for place in range(ids.shape[1]):
        written[:, place] = ids[:, place]
    return written


def counts(ids: Tensor) -> Tensor:
    return torch.zeros(len(ids), VOCABULARY).scatter_add(1, ids, torch.ones(ids.shape))


HIDDEN_WAYS: dict[str, Run] = {  # (batch, numbers) that no table was asked for
    "one_hot": lambda ids: F.one_hot(ids, VOCABULARY).sum(1),
    "bincount": lambda ids: torch.stack([torch.bincount(row, minlength=VOCABULARY) for row in ids]),
    "scatter_add": counts,
    "scatter_": lambda ids: torch.zeros(len(ids), VOCABULARY).scatter_(1, ids, 1.0),
    "presence": lambda ids: (ids[:, :, None] == torch.arange(VOCABULARY)).any(1),
    "sum": lambda ids: ids.sum(1, keepdim=True),
    "largest": lambda ids: ids.amax(1, keepdim=True),
    "first": lambda ids: ids[:, :1] % 5,
    "last": lambda ids: ids[:, -1:] // 2,
    "pairs": lambda ids: (ids * ids.roll(1, 1)).sum(1, keepdim=True),
    "numbers of Python": lambda ids: torch.tensor([[sum(row) % 7] for row in ids.tolist()]),
    "different ids": lambda ids: torch.tensor([[len(set(row))] for row in ids.tolist()]),
    "columns": lambda ids: torch.arange(2.0 * VOCABULARY).view(2, -1)[:, ids].sum((0, 2))[:, None],
    "unknown id": lambda ids: (ids == 3).sum(1, keepdim=True),
}


def hidden_way(m: Maker, ids: int, h: int) -> int:
    """A function of the ids beside a signal (batch, features): its relevance is lost."""
    name = m.draw.choice(sorted(HIDDEN_WAYS))
    function, size, dtype, width = HIDDEN_WAYS[name], m.shapes[h][-1], m.dtype, VOCABULARY
    w = m.normal(width, size)
    way: Run = lambda ids: (numbers := function(ids.long()).to(dtype)) @ w[: numbers.shape[1]]  # noqa: E731
    term = m.add(f"{name} of ids", way, ids, rule=nothing, shape=(size,), hidden=True)
    return m.add("h + hidden", torch.add, h, term, rule=sum_with_constant)


def tokens(m: Maker) -> int:
    """From the ids to (batch, features), half of the models with a hidden way."""
    h = looked_up(m, 0)
    if m.draw.random() < 0.4:
        other = looked_up(m, 0)
        h = m.add("h + another", torch.add, h, other) if m.shapes[h] == m.shapes[other] else h
    h = linear(m, h, 4)
    for _ in range(m.draw.randint(0, 2)):
        h = m.draw.choice([attention, activation, residual])(m, h)
    transpose: Run = lambda h: h.mT  # noqa: E731
    h = flattened(m, m.add("transposed", transpose, h, rule=follows(transpose)))
    return hidden_way(m, 0, linear(m, h, 4)) if m.draw.random() < 0.6 else h
