"""References: the callables that make them, the names of the command line, and every input that is refused."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import plrp
from plrp import references


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 18, 3)).eval()


def one_hot(count: int, length: int = 20, seed: int = 0) -> Tensor:
    letters = torch.randint(4, (count, length), generator=torch.Generator().manual_seed(seed))
    return F.one_hot(letters, 4).mT.float()


def dinucleotides(sequence: Tensor) -> Counter[Any]:
    return Counter(pairwise(tuple(column.tolist()) for column in sequence.T))


# --- callables --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(3, 40), st.booleans())
def test_shuffles_keep_their_letters_or_dinucleotides_wherever_a_sequence_stands(
    seed: int, length: int, by: bool
) -> None:
    x = one_hot(3, length, seed)
    x[1, :, 1] = 0  # an N
    make = references.shuffled(4, dinucleotide=by, seed=seed)
    shuffles = make(x)
    assert shuffles.shape == (4, *x.shape)
    assert torch.equal(make(x[[2, 1]]), shuffles[:, [2, 1]])
    for one in shuffles:
        for before, after in zip(x, one, strict=True):
            if by:
                assert dinucleotides(before) == dinucleotides(after)
            assert torch.equal(
                before.T.unique(dim=0, return_counts=True)[1], after.T.unique(dim=0, return_counts=True)[1]
            )


def test_shuffles_differ_by_number_seed_and_sequence() -> None:
    x = one_hot(2, 60)
    shuffles = references.shuffled(3)(x)
    assert not torch.equal(shuffles[0], shuffles[1])
    assert not torch.equal(shuffles, references.shuffled(3, seed=1)(x))
    assert not torch.equal(shuffles[:, 0], references.shuffled(3)(torch.cat([x[1:], x[1:]]))[:, 0])


def test_each_callable_is_what_its_name_says() -> None:
    x = torch.randn(3, 2, 12, 12, generator=torch.Generator().manual_seed(0))
    data = torch.randn(7, 2, 12, 12, generator=torch.Generator().manual_seed(1))
    assert torch.equal(references.zeros()(x), torch.zeros_like(x))
    assert torch.allclose(references.grey()(x), x.mean((2, 3), keepdim=True).expand_as(x))
    assert torch.allclose(references.mean(data)(x)[0], data.mean(0), atol=1e-6)
    assert torch.equal(references.mean(data)(x), references.mean(data.split(3))(x))
    flat = references.blur(2)(torch.ones(1, 1, 9, 9))
    assert torch.allclose(flat, torch.ones_like(flat))
    assert references.blur(3)(x).var() < references.blur(1)(x).var() < x.var()
    drawn = references.samples(data, 3)(x)
    assert drawn.shape == (3, 1, 2, 12, 12)
    assert all(any(torch.equal(one[0], other) for other in data) for one in drawn)
    assert not torch.equal(drawn, references.samples(data, 3, seed=1)(x))
    for make in (references.blur(2), references.grey(), references.mean(data)):
        explanation = plrp.explain(lambda x: x.tanh().sum((1, 2, 3)), x, reference=make)
        assert torch.allclose(explanation.relevance.flatten(1).sum(1), explanation.score, atol=1e-4)


def test_names_of_the_command_line() -> None:
    for text in ("zeros", "grey", "blur:8", "blur:2.5", "shuffled:20"):
        assert repr(references.parse(text)) == text
    assert repr(references.parse("blur")) == "blur:8"
    for text, sentence in {
        "blurr:8": "there is no reference 'blurr:8' here; nearest: blur",
        "blur:wide": "blur takes a number, as in 'blur:8'",
        "blur:-1": "blur takes a number",
        "zeros:3": "zeros takes no number",
        "shuffled:0": "shuffled takes a number",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            references.parse(text)


def test_mask_tokens_leave_special_ones() -> None:
    class Tokenizer:
        mask_token_id, unk_token_id, all_special_ids = 4, 1, [0, 1, 2, 3, 4]

    ids = torch.tensor([[2, 9, 1, 7, 3, 0]])
    assert references.mask_token(Tokenizer())(ids).tolist() == [[2, 4, 4, 4, 3, 0]]
    assert references.mask_token(4, special=[2, 3, 0])(ids).tolist() == [[2, 4, 4, 4, 3, 0]]
    Tokenizer.mask_token_id = None  # type: ignore[assignment]
    with pytest.raises(ValueError, match="has no mask token"):
        references.mask_token(Tokenizer())


class Words(nn.Module):
    """Token ids and a mask to scores; positions count the words that are no padding, as RoBERTa's do."""

    def __init__(self, counted: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.places, self.head = nn.Embedding(12, 8), nn.Embedding(9, 8), nn.Linear(8, 3)
        self.counted = counted

    def forward(self, ids: Tensor) -> Tensor:
        places = (ids != 0).long().cumsum(1) if self.counted else torch.arange(ids.shape[1])[None]
        h = self.words(ids) + self.places(places)
        return self.head(h.tanh().mean(1))


def test_token_ids_are_explained_against_other_ids() -> None:
    ids = torch.tensor([[2, 9, 5, 7, 3], [2, 8, 7, 6, 3]])
    for counted in (False, True):
        net = Words(counted).double().eval()
        explanation = plrp.explain(net, ids, reference=references.mask_token(4, special=[2, 3]), target=1)
        assert explanation.relevance.shape == ids.shape
        assert torch.allclose(explanation.relevance.sum(1), explanation.score)
        assert (explanation.relevance[:, [0, 4]] == 0).all()
        assert (explanation.relevance[:, 1:4] != 0).all()
    with pytest.raises(plrp.UnsupportedOperation, match="another one in the pass on the reference"):
        plrp.explain(Words(counted=True).eval(), ids, reference=torch.zeros_like(ids))  # padding moves positions


# --- refusals ---------------------------------------------------------------------------------------------------------


X = one_hot(2)
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "shape": (torch.zeros(2, 4, 21), ValueError, r"shape \(2, 4, 21\), the input \(2, 4, 20\)"),
    "batch": (torch.zeros(3, 4, 20), ValueError, r"shape \(3, 4, 20\)"),
    "stack": (torch.zeros(5, 3, 4, 20), ValueError, r"a stack \(K, …\) of them"),
    "empty stack": (torch.zeros(0, 2, 4, 20), ValueError, r"a stack \(K, …\) of them"),
    "dtype": (torch.zeros(2, 4, 20).double(), TypeError, r"is torch.float64, the input torch.float32.*reference.to"),
    "device": (torch.zeros(2, 4, 20, device="meta"), TypeError, "is meta, the input cpu"),
    "ids": (torch.zeros(2, 4, 20, dtype=torch.long), TypeError, "numbers against numbers"),
    "NaN": (torch.full((2, 4, 20), torch.nan), ValueError, "holds NaN"),
    "infinite": (torch.full((2, 4, 20), torch.inf), ValueError, "holds infinite values"),
    "equal": (X.clone(), ValueError, "equals the input of sample 0: there is no difference to explain"),
    "one equal": (torch.stack([1 - X, torch.stack([1 - X[0], X[1]])]), ValueError, "Reference 1 equals .* sample 1"),
    "number": (0.5, TypeError, "reference is a tensor, a tuple of them, a callable or a name"),
    "name": ("blurred", ValueError, "there is no reference 'blurred'"),
    "tokens": (references.mask_token(4), TypeError, "is for token ids, and the input holds numbers"),
    "tuple": ((X, X), ValueError, "The reference has 2 tensors, the model 1 inputs"),
    "returned": (lambda x: x[:, :2], ValueError, r"shape \(2, 2, 20\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_references_are_refused_in_a_sentence(name: str) -> None:
    reference, kind, sentence = REFUSED[name]
    for ask in (plrp.explain, plrp.trace):
        with pytest.raises(kind, match=sentence) as caught:
            ask(model(), X, reference=reference)
        assert str(caught.value).count(". ") == 0


def test_callables_for_numbers_refuse_token_ids() -> None:
    ids = torch.tensor([[2, 9, 5, 7, 3]])
    for make in ("zeros", "blur:2", references.grey()):
        with pytest.raises(TypeError, match=r"the input holds token ids: take references.mask_token\(tokenizer\)"):
            plrp.explain(Words().eval(), ids, reference=make)
    with pytest.raises(TypeError, match="token ids are explained against other token ids"):
        plrp.explain(Words().eval(), ids, reference=torch.zeros(1, 5))


def test_a_broadcast_reference_a_stack_and_a_callable_are_one() -> None:
    net, one = model(), torch.full((1, 4, 20), 0.25)
    same = [
        one,
        one.expand(2, -1, -1),
        one[None],
        lambda x: torch.full_like(x, 0.25),
        lambda x: torch.full((1, *x.shape), 0.25),
    ]
    maps = [plrp.explain(net, X, reference=reference).relevance for reference in same]
    assert all(torch.equal(maps[0], other) for other in maps)


def test_several_inputs_of_which_some_stay() -> None:
    torch.manual_seed(0)
    a, b, a0 = torch.randn(3, 2, 5)
    layer = nn.Linear(5, 5)

    def net(a: Tensor, b: Tensor) -> Tensor:
        return (layer(a).relu() * b).sum(1)

    explanation = plrp.explain(net, (a, b), reference=(a0, None))
    assert torch.allclose(explanation.relevance[0].sum(1), explanation.score, atol=1e-5)
    assert (explanation.relevance[1] == 0).all()
    stacked = plrp.explain(net, (a, b), reference=(torch.stack([a0, -a]), None))
    assert stacked.reference is not None
    assert stacked.reference.scores.shape == (2, 2)
    with pytest.raises(ValueError, match="different numbers of references"):
        plrp.explain(net, (a, b), reference=(torch.stack([a0, -a]), torch.stack([b + 1] * 3)))


def test_a_whole_without_a_batch_axis() -> None:
    torch.manual_seed(0)
    x, x0, net = torch.randn(4, 5), torch.randn(4, 5), nn.Sequential(nn.Linear(5, 3), nn.Tanh())
    explanation = plrp.explain(lambda x: net(x).sum(), x, reference=x0, samples=None)
    assert torch.allclose(explanation.relevance.sum(), explanation.score[0], atol=1e-5)
    with pytest.raises(ValueError, match="equals the input: there is no difference"):
        plrp.explain(lambda x: net(x).sum(), x, reference=x.clone(), samples=None)


def test_a_changed_reference_tensor_changes_no_ledger() -> None:
    net, x0 = model(), torch.zeros(2, 4, 20)
    explanation = plrp.explain(net, X, reference=x0)
    x0.fill_(7.0)
    assert explanation.closing().max() < 1e-5


# --- files, and where differences are not served ----------------------------------------------------------------------


def test_saved_explanations_know_their_reference(tmp_path: Path) -> None:
    for reference in ("zeros", "shuffled:3"):
        explanation = plrp.explain(model(), X, reference=reference, target=1)
        explanation.save(tmp_path / "map.npz")
        again: Any = plrp.load(tmp_path / "map.npz")
        against = explanation.reference
        assert against is not None
        assert again.reference.name == against.name == reference
        assert torch.equal(again.reference.score, against.score)
        assert torch.equal(again.reference.scores, against.scores)
        assert (again.reference.relevance is None) == (against.relevance is None)
        if against.relevance is not None:
            assert torch.equal(again.reference.relevance, against.relevance)
        assert f"against {reference}" in repr(again)
    plain = plrp.explain(model(), X)
    plain.save(tmp_path / "plain.npz")
    assert plrp.load(tmp_path / "plain.npz").reference is None


def test_circuits_ablate_to_the_activations_of_the_reference() -> None:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)).double().eval()
    x, x0 = torch.randn(2, 2, 6).double()
    explanation = plrp.explain(net, x, reference=x0, target=1, pruning=plrp.Pruning(p=0.2), layers=True)
    circuit = explanation.circuit(sample=1)
    with torch.no_grad():
        now, before = net[:2](x[1:]), net[:2](x0[1:])
        h = torch.where(explanation.layers["2"][1:] != 0, now, before)
        g = torch.where(explanation.layers["4"][1:] != 0, net[2:4](h), net[:4](x0[1:]))
        expected = net[4](g)
        nothing = net[4](net[:4](x0[1:]))
    assert torch.allclose(circuit.run(), expected)
    assert circuit.kept["this circuit"].score == pytest.approx(float(expected[0, 1]))
    assert circuit.kept["nothing"].score == pytest.approx(float(nothing[0, 1]))
    from_score = sum(edge.relevance for edge in circuit.edges(nodes=None) if edge.upper.layer == "score")
    assert from_score == pytest.approx(float(explanation.score[1]))
    trace = plrp.trace(net, x, reference=x0)
    chosen = plrp.choose_p(trace, 0.5, of="logit", target=1)
    assert chosen.shape == (2,)
    for n in range(2):  # each sample is ablated to its own reference
        alone = plrp.trace(net, x[n : n + 1], reference=x0[n : n + 1])
        assert plrp.choose_p(alone, 0.5, of="logit", target=1) == chosen[n]


def test_circuits_and_parts_of_a_walk_take_one_reference() -> None:
    net = model()
    explanation = plrp.explain(net, X, reference="shuffled:3", pruning=plrp.Pruning(p=0.1))
    with pytest.raises(ValueError, match="A circuit takes one reference"):
        explanation.circuit()
    trace = plrp.trace(net, X, reference="shuffled:3")
    with pytest.raises(ValueError, match="choose_p takes one reference"):
        plrp.choose_p(trace)
    with pytest.raises(ValueError, match="takes one reference"):
        plrp.engine.choose_walk(trace, plrp.request.Request().bound(trace))


def test_one_samples_shape_serves_and_a_callable_may_write() -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)), torch.rand(5, 6)
    one = plrp.explain(model, x, target=0, reference=torch.zeros(6)).relevance
    before = x.clone()
    other = plrp.explain(model, x, target=0, reference=lambda batch: batch.zero_()).relevance
    assert torch.equal(x, before)
    torch.testing.assert_close(one, other)
