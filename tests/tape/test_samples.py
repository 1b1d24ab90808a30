"""Where the samples of a batch lie in a tensor, restated entry by entry."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from plrp.tape.samples import Samples


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Samples, Tensor]:
    """A layout, and a tensor of it without equal entries; every sample has at least one position."""
    batch = draw(st.integers(1, 4))
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    axis = draw(st.integers(0, len(shape) - 1)) if batch > 1 else 0
    owners = draw(st.permutations([*range(batch), *draw(st.lists(st.integers(0, batch - 1), max_size=3))]))
    plain = draw(st.booleans())
    shape[axis] = batch if plain else len(owners)
    tensor = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
    return Samples(batch, axis, None if plain else torch.tensor(owners)), tensor


def owner(samples: Samples, place: tuple[int, ...]) -> int:
    """The sample that an entry belongs to."""
    position = place[samples.axis]
    return position if samples.ids is None else int(samples.ids[position])


def places(tensor: Tensor) -> list[tuple[int, ...]]:
    return [tuple(place) for place in torch.ones_like(tensor).nonzero().tolist()]


@given(layouts())
def test_each_entry_belongs_to_one_sample(drawn: tuple[Samples, Tensor]) -> None:
    samples, tensor = drawn
    entries: list[list[float]] = [[] for _ in range(samples.batch)]
    for place in places(tensor):
        entries[owner(samples, place)].append(float(tensor[place]))
    rows = samples.rows(tensor)
    assert rows.shape == (samples.batch, max(map(len, entries)))  # shorter samples are padded with zeros
    assert [sorted(row[row != 0].tolist()) for row in rows] == [sorted(own) for own in entries]
    assert samples.sum(tensor).tolist() == [sum(own) for own in entries]
    assert torch.equal(samples.unrows(rows, tensor.shape), tensor)


@given(layouts())
def test_a_number_per_sample_comes_to_all_its_entries(drawn: tuple[Samples, Tensor]) -> None:
    samples, tensor = drawn
    spread = samples.spread(torch.arange(samples.batch) + 0.5, tensor.dim()).expand_as(tensor)
    assert [float(spread[place]) for place in places(tensor)] == [owner(samples, p) + 0.5 for p in places(tensor)]


@given(layouts(), layouts())
def test_layouts_are_the_same_if_every_entry_has_the_same_owner(
    one: tuple[Samples, Tensor], other: tuple[Samples, Tensor]
) -> None:
    (a, _), (b, _) = one, other
    along = [(s.axis, None if s.ids is None else s.ids.tolist()) for s in (a, b)]
    assert a.same(b) == b.same(a) == (along[0] == along[1])
    assert a.same(Samples(a.batch, a.axis, None if a.ids is None else a.ids.clone()))
    assert not a.same(Samples(a.batch, a.axis + 1, a.ids))
    if a.ids is not None:
        assert not a.same(Samples(a.batch, a.axis))


@pytest.mark.parametrize("shape", [(), (1,), (1, 3), (2,), (3, 2)])
def test_a_tensor_of_one_sample_is_that_samples_whatever_its_axes(shape: tuple[int, ...]) -> None:
    """Position 2 of the first axis is no second sample: `ordinary` would take it for one."""
    tensor = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
    for samples in (Samples.of_one(1, tensor), Samples.of_whole(tensor)):
        assert samples.sum(tensor).tolist() == [float(tensor.sum())]
        assert torch.equal(samples.unrows(samples.rows(tensor), tensor.shape), tensor)
        assert samples.batch == 1
        assert samples.leads(shape or (1,)) == samples.ordinary
    assert Samples.of_one(1, tensor).ordinary == (shape[:1] in ((), (1,)))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (0, 2, 2)])
def test_an_empty_batch_has_no_rows(shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape)
    samples = Samples.of_one(0, tensor)
    assert samples.ordinary
    assert samples.rows(tensor).shape == (0, torch.Size(shape[1:]).numel())
    assert samples.spread(samples.sum(tensor), tensor.dim()).shape == (0, *(1,) * (tensor.dim() - 1))
