"""The table of operations: one row is all that plrp needs to know of a function."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp.tape import operations
from plrp.tape.operations import Family, Row, Sign, row
from plrp.tape.trace import record

Step = Callable[[Tensor], Tensor]


class Around(nn.Module):
    """A step between two layers, with its name as the first layer's `step`."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below, self.above, self.step = nn.Linear(4, 6), nn.Linear(6, 3), step

    def forward(self, x: Tensor) -> Tensor:
        return self.above(self.step(self.below(x).relu()))


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Callable[[Row], None]:
    """Add a row to the table."""

    def extend(added: Row) -> None:
        monkeypatch.setattr(operations, "_KNOWN", operations.Dictionary((*operations.TABLE, added)))

    return extend


X = torch.linspace(-1, 1, 12).view(3, 4).sin()

UNKNOWN: dict[str, tuple[Row, Step, Step]] = {  # a row, a step with an operation of it, and the same without
    "atan": (row("atan", Family.PASS, sign=Sign.KEEPS, hides_nan=True), torch.atan, torch.tanh),
    "in place": (row("atan", Family.PASS, sign=Sign.KEEPS), lambda h: (h * 1).atan_(), torch.tanh),
    "nansum": (
        row("nansum", Family.SPLIT, sign=Sign.KEEPS, dims=(1,)),
        lambda h: h.nansum(1, keepdim=True).expand(-1, 6),
        lambda h: h.sum(1, keepdim=True).expand(-1, 6),
    ),
    "narrow_copy": (
        row("narrow_copy", Family.REARRANGE, sign=Sign.KEEPS, dims=(1,)),
        lambda h: torch.narrow_copy(h, 1, 0, 3).repeat(1, 2),
        lambda h: h[:, :3].repeat(1, 2),
    ),
    "fmax": (
        row("fmax", Family.WINNER, sign=Sign.KEEPS, elementwise=True, constants=(0, 1)),
        lambda h: torch.fmax(h, h.flip(1)),
        lambda h: torch.maximum(h, h.flip(1)),
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_one_row_makes_an_operation_known(name: str, add: Callable[[Row], None]) -> None:
    added, step, alike = UNKNOWN[name]
    with pytest.raises((plrp.UnsupportedOperation, plrp.TraceError)):
        plrp.explain(Around(step), X)
    add(added)
    model = Around(step)
    trace = plrp.trace(model, X)
    (op,) = (op for op in trace.ops if op.kind == added.names)
    assert op.family is added.family
    assert op.output.nonnegative  # the sign follows from that of the ReLU
    assert op.output.samples.ordinary
    explanation = plrp.explain(model, X, target=1, pruning=plrp.Pruning(p=0.2))
    assert float(explanation.closing().max()) < 1e-5
    if added.family is not Family.PASS:  # an operation that is known computes the same, so the explanation is the same
        expected = plrp.explain(Around(alike), X, target=1, pruning=plrp.Pruning(p=0.2))
        torch.testing.assert_close(explanation.relevance, expected.relevance)


def test_the_row_says_whether_nan_is_hidden(add: Callable[[Row], None]) -> None:
    """An activation of +∞ shows in no output after `atan`: it is looked for where the row says so."""
    model = Around(torch.atan)
    model.below.weight.data[0] = torch.inf
    add(row("atan", Family.PASS, hides_nan=True))
    with pytest.raises(ValueError, match="hold infinite values"):
        record(model, X.abs())
    add(row("atan", Family.PASS, hides_nan=False))
    record(model, X.abs())


def test_samples_that_a_row_moves_are_located(add: Callable[[Row], None]) -> None:
    add(row("msort", Family.REARRANGE, sign=Sign.KEEPS))  # sorts along the first axis
    with pytest.raises(plrp.UnsupportedOperation, match="mixes the samples"):
        plrp.explain(Around(torch.msort), X)
    plrp.explain(Around(lambda h: torch.msort(h.T).T), X)


def lists_of_names(path: Path) -> Iterator[list[str]]:
    """The collections of strings in a file, those written as one string that is split among them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
            items = node.keys if isinstance(node, ast.Dict) else node.elts
            yield [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
            text = node.func.value
            yield text.value.split() if isinstance(text, ast.Constant) else []


def test_the_table_alone_lists_operations() -> None:
    """Any other file names an operation where it states that one's formula, three of them at most."""
    names = {name for row in operations.TABLE for name in row.names.split()}
    source = Path(operations.__file__).parents[1]
    for path in (source / "passing.py", *sorted((source / "tape").glob("*.py"))):
        if path.name != "operations.py":
            assert all(len(names.intersection(listed)) <= 3 for listed in lists_of_names(path)), path.name


def test_a_constant_factor_turns_the_sign_of_an_einsum() -> None:
    """Before, the output of an einsum of two values ≥ 0 was taken for ≥ 0, whatever a constant factor is."""
    weight = -torch.ones(2, 6, 6)

    def bilinear(h: Tensor) -> Tensor:
        return torch.einsum("ni,oij,nj->no", h, weight, h.flip(1)).repeat(1, 3)

    trace = record(Around(bilinear), X)
    op = next(op for op in trace.ops if op.kind == "einsum")
    assert float(op.output.data.min()) < 0
    assert not op.output.nonnegative


def test_relevance_on_a_scattered_number_is_booked_as_a_constant() -> None:
    index = torch.tensor([[0, 2]]).expand(3, 2)
    model = Around(lambda h: h.scatter(1, index, 1.5))
    assert float(plrp.explain(model, X, target=1).closing().max()) < 1e-5


@pytest.mark.parametrize("samples", [0, None])
def test_elements_that_are_written_to_one_place_are_refused(samples: int | None) -> None:
    """Only one of them stays, but torch's derivative names them all."""
    place = torch.tensor([2, 2])

    def assign(h: Tensor) -> Tensor:
        h = h.clone()
        h[:, place] = h[:, 3:5] * 1
        return h

    steps: list[Step] = [
        assign,
        lambda h: h.index_copy(1, place, h[:, :2]),
        lambda h: h.scatter(1, place.expand(3, 2), h[:, :2]),
    ]
    for step in steps:
        with pytest.raises(plrp.UnsupportedOperation, match="written to one place"):
            plrp.explain(Around(step), X, samples=samples, target=1 if samples == 0 else (0, 1))
