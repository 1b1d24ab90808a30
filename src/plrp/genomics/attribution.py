"""Relevance per base, for any number of sequences.

The default composite for one-hot input is `epsilon-plus`: the ε-rule on linear layers, z⁺ on convolutions, including
the first. The vision default (`epsilon-plus-flat`) would give the same relevance to the three letters that are *not*
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from plrp.composites import Composite
from plrp.composites import composite as named_composite
from plrp.explanation import check_pruning, explain
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.rules import AlphaBeta, Branch, Epsilon, Gamma, Part, Rule, ZPlus
from plrp.tape.maps import LinearMap
from plrp.tape.refusals import check_model

from .sequences import OneHot, SequenceError, Sequences, encode

Pooling = Literal["present", "sum"]
COMPOSITE = "epsilon-plus"


@dataclass(frozen=True)
class Attribution:
    """Relevance of sequences of one length.

    `relevance` (sequence, letter, position); `onehot`, the input, likewise; `score` (sequence,), the explained output;
    `target` (sequence,), the explained class, −1 where the target is not a class.
    """

    relevance: npt.NDArray[np.float32]
    onehot: OneHot
    score: npt.NDArray[np.float32]
    target: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.relevance)

    def per_base(self, pooling: Pooling = "present") -> npt.NDArray[np.float32]:
        """One value per base, (sequence, position); see `pool`."""
        return pool(self.relevance, self.onehot, pooling)


def pool(
    relevance: npt.NDArray[np.float32], onehot: npt.NDArray[np.float32], pooling: Pooling = "present"
) -> npt.NDArray[np.float32]:
    """Relevance per base from relevance per letter: (..., 4, position) to (..., position).

    `"present"`: that of the letter that is there (of all letters that an IUPAC code stands for); 0 for N encoded as
    zeros. `"sum"`: that of all four letters. Under the default composite the two are equal, since absent letters
    receive none.
    """
    if pooling == "sum":
        return cast("npt.NDArray[np.float32]", relevance.sum(-2))
    if pooling == "present":
        return cast("npt.NDArray[np.float32]", (relevance * (onehot > 0)).sum(-2))
    raise ValueError(f"pooling={pooling!r}: choose 'present' (the letter that is there) or 'sum' (all four).")


def explain_sequences(
    model: nn.Module | Callable[..., Any],
    sequences: npt.ArrayLike | Tensor | Sequences | list[str],
    *,
    target: Any = None,
    composite: str | Composite = COMPOSITE,
    pruning: Pruning | None = None,
    reverse_complement: bool = False,
    reverse_target: Any = None,
    hypothetical: bool = False,
    batch_size: int = 128,
    device: str | torch.device | None = None,
    show_progress: bool | None = False,
) -> Attribution:
    """Relevance of every base of many sequences of one length, `batch_size` at a time.

    `sequences`: one-hot (sequence, 4, position), letters, or what a reader returned. `target` as in `plrp.explain`; a
    list or tensor of classes has one per sequence; an index tuple `(track, position)` picks one value of a dense
    output.

    `reverse_complement` explains both strands, for the class that wins on the given one, and averages them position by
    position. If the target is not a class, the reverse strand needs a `reverse_target` (position p of the given strand
    is L − 1 − p there).

    `hypothetical` also scores the absent letters: see `Hypothetical`.

    >>> from torch.nn import Conv1d, Flatten, Linear, ReLU, Sequential
    >>> network = Sequential(Conv1d(4, 3, 5), ReLU(), Flatten(), Linear(18, 2)).eval()
    >>> explain_sequences(network, ["ACGTACGTAC", "TTTTNCCCCA"]).per_base().shape
    (2, 10)
    """
    onehot = _onehot(sequences)
    parts = list(
        explain_batches(
            model,
            onehot,
            target=target,
            composite=composite,
            pruning=pruning,
            reverse_complement=reverse_complement,
            reverse_target=reverse_target,
            hypothetical=hypothetical,
            batch_size=batch_size,
            device=device,
            show_progress=show_progress,
        )
    )
    if not parts:
        return Attribution(np.zeros_like(onehot), onehot, np.zeros(0, np.float32), np.zeros(0, np.int64))
    return Attribution(
        np.concatenate([part.relevance for part in parts]),
        onehot,
        np.concatenate([part.score for part in parts]),
        np.concatenate([part.target for part in parts]),
    )


def explain_batches(
    model: nn.Module | Callable[..., Any],
    onehot: OneHot,
    *,
    target: Any = None,
    composite: str | Composite = COMPOSITE,
    pruning: Pruning | None = None,
    reverse_complement: bool = False,
    reverse_target: Any = None,
    hypothetical: bool = False,
    batch_size: int = 128,
    device: str | torch.device | None = None,
    show_progress: bool | None = False,
) -> Iterator[Attribution]:
    """`explain_sequences` one batch after another: only one is in memory at a time. `onehot` may be a memory map.

    Wrong arguments are refused at once, not when the first batch is requested.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: at least one sequence a batch.")
    check_model(model)
    check_pruning(pruning)
    if reverse_complement and reverse_target is None and not _is_classes(target):
        raise ValueError(
            "Averaging over strands with a target that is not a class: give `reverse_target`, the target on the "
            "reverse complement (position p of the given strand is L − 1 − p there)."
        )
    chosen = named_composite(composite) if isinstance(composite, str) else composite
    if hypothetical:
        chosen = hypothetical_composite(chosen)
    for one in (target, reverse_target):
        _rows(one, slice(0), len(onehot))  # refuses a wrong number of targets
    where = _device(model, device)

    def batches() -> Iterator[Attribution]:
        with progress("explaining", len(onehot), show_progress) as step:
            for begin in range(0, len(onehot), batch_size):
                rows = slice(begin, begin + batch_size)
                part = np.ascontiguousarray(onehot[rows], np.float32)
                x = torch.from_numpy(part).to(where)
                relevance, score, classes = _explain(model, x, _rows(target, rows, len(onehot)), chosen, pruning)
                if reverse_complement:
                    other = classes if reverse_target is None else _rows(reverse_target, rows, len(onehot))
                    flipped, *_ = _explain(model, x.flip(1, 2), other, chosen, pruning)
                    relevance = (relevance + flipped.flip(1, 2)) / 2
                numbers = (
                    classes.cpu().numpy().astype(np.int64)
                    if isinstance(classes, Tensor)
                    else np.full(len(part), -1, np.int64)
                )
                yield Attribution(relevance.cpu().numpy(), part, score.cpu().numpy().astype(np.float32), numbers)
                step(len(part))

    return batches()


def _explain(
    model: Any, x: Tensor, target: Any, composite: Composite, pruning: Pruning | None
) -> tuple[Tensor, Tensor, Any]:
    explanation = explain(model, x, target=target, composite=composite, pruning=pruning)
    return explanation.relevance.float(), explanation.score, explanation.target


def _onehot(sequences: Any) -> OneHot:
    if isinstance(sequences, Sequences):
        return sequences.onehot()
    if isinstance(sequences, (list, tuple)) and sequences and isinstance(sequences[0], str):
        return encode(sequences)
    array = sequences.detach().cpu().numpy() if isinstance(sequences, Tensor) else np.asarray(sequences)
    if array.ndim != 3 or array.shape[1] != 4:
        raise SequenceError(
            f"A one-hot array has axes (sequence, 4, position); this one is {array.shape}"
            + ("; transpose its last two axes." if array.ndim == 3 and array.shape[2] == 4 else ".")
        )
    return cast("OneHot", array.astype(np.float32, copy=False))


def _is_classes(target: Any) -> bool:
    return target is None or not (isinstance(target, tuple) or callable(target))


def _rows(target: Any, rows: slice, count: int) -> Any:
    """The part of a target that belongs to a batch: lists and tensors have one entry per sequence."""
    if isinstance(target, (list, np.ndarray, Tensor)):
        if len(target) != count:
            raise ValueError(f"{len(target)} targets for {count} sequences: give one class each.")
        return target[rows]
    return target


def _device(model: Any, device: str | torch.device | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return parameter.device if parameter is not None else torch.device("cpu")


class Hypothetical(Rule):
    """What each letter *would* receive at its position if it were there: a score for absent letters.

    A first-layer rule that is proportional to the input hands letter b at position i

    R_bi = x_bi · c_bi,    c_bi = Σ_k w_bik R_k / d_k

    and c is the hypothetical score: all else stays equal, including the relevance of the neurons above and their
    denominators. For the letter that is there it is the relevance itself. It takes the role of DeepLIFT's hypothetical
    contributions in TF-MoDISco. Defined for Epsilon, ZPlus, AlphaBeta and Gamma; the mass of c is not conserved.
    """

    def __init__(self, rule: Rule) -> None:
        if not isinstance(rule, (Epsilon, ZPlus, AlphaBeta, Gamma)):
            raise ValueError(
                "Hypothetical scores need a first-layer rule proportional to the input (Epsilon, ZPlus, AlphaBeta, "
                f"Gamma), not {rule!r}: use composite='epsilon-plus'."
            )
        self.rule = rule
        self.epsilon = rule.epsilon

    @property
    def needs_output(self) -> bool:  # type: ignore[override]
        """As for the rule it replaces."""
        return self.rule.needs_output

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """The rule's branches with the same denominators, but ones in place of the input."""
        if (x < 0).any():
            raise ValueError("Hypothetical scores are for one-hot input; this one has negative entries.")
        branches = []
        for branch in self.rule.branches(map, x, z, nonnegative=True):  # one-hot: x ≥ 0, a single part each
            d = branch.denominator
            if d is None:
                d = branch.contributions()
                d = d if branch.bias is None else d + branch.bias
            ones = tuple(Part(torch.ones_like(x), part.weight) for part in branch.parts)
            branches.append(Branch(map, ones, branch.bias, branch.share, branch.one_sign, denominator=d))
        return branches


def hypothetical_composite(composite: Composite) -> Composite:
    """The composite with the rules of first layers replaced by their `Hypothetical`."""
    return _HypotheticalComposite(composite.rules, first=composite.first, layers=composite.layers, name=composite.name)


class _HypotheticalComposite(Composite):
    def rule(self, op: Any) -> Rule:
        rule = super().rule(op)
        return Hypothetical(rule) if op.first else rule
