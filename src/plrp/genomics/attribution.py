"""Relevance per base, for any number of sequences.

The default composite for one-hot input is `epsilon-gamma`: a small γ on convolutions, the ε-rule on linear layers; of
our composites it agrees best with in-silico mutagenesis (docs/truth.md). The paper's is `epsilon-plus`.
`epsilon-plus-flat`, for images, would give the same relevance to the three letters that are *not* there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from plrp.balance import Problem, alarm, find_problems, mass_of, unwarned
from plrp.composites import AUTO, Composite, automatic, is_any, is_conv
from plrp.composites import composite as named_composite
from plrp.explanation import Explanation, Mean, explain
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.references import Reference, References
from plrp.request import Request
from plrp.rules import AlphaBeta, Branch, Epsilon, Gamma, Part, Rule, ZPlus
from plrp.runs.memory import fitting
from plrp.tape.difference import DifferenceTrace
from plrp.tape.maps import LinearMap
from plrp.tape.refusals import check_model, device_of
from plrp.tape.trace import Trace, record
from plrp.tape.values import Op, Value
from plrp.tape.verification import record_verified

from .outputs import target_from_text
from .sequence_settings import COMPOSITE, Pooling, SequenceSettings
from .sequences import Ints, OneHot, SequenceError, Sequences, Values, encode

Model: TypeAlias = nn.Module | Callable[..., Any]
Device: TypeAlias = str | torch.device | None
PROBLEM = np.dtype("U16")  # a word of `Problem`
COLUMNS = ("relevance", "score", "target", "problems")  # the fields of `Attribution` that a method computes
AGAINST = ("reference_score", "reference_spread")  # and against a reference
BATCH = 128
"""Sequences that are explained at once, at most."""
BASES = 2**18
"""Bases that are explained at once, at most: of longer sequences fewer at a time."""


def batch_size_for(length: int) -> int:
    """How many sequences of a length are explained at once, where nobody says.

    >>> batch_size_for(250), batch_size_for(2114), batch_size_for(196_608)
    (128, 124, 1)
    """
    return max(1, min(BATCH, BASES // max(1, length)))


@dataclass(frozen=True)
class Attribution:
    """Relevance of sequences of one length.

    `relevance` (sequence, letter, position); `onehot`, the input, likewise; `score` (sequence,), the explained output;
    `target` (sequence,), the explained class, −1 where the target is not a class; `problems` (sequence,), what broke in
    the arithmetic of an explanation (a value of `plrp.balance.Problem`), empty where nothing did. Against references
    `score` is f(x) minus `reference_score` (sequence,), the mean of f(x⁰), whose deviation is `reference_spread`.
    """

    relevance: Values
    onehot: OneHot
    score: Values
    target: Ints
    problems: npt.NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, PROBLEM))
    reference_score: Values = field(default_factory=lambda: np.zeros(0, np.float32))
    reference_spread: Values = field(default_factory=lambda: np.zeros(0, np.float32))

    def __len__(self) -> int:
        return len(self.relevance)

    def per_base(self, pooling: Pooling = "present") -> Values:
        """One value per base, (sequence, position); see `pool`."""
        return pool(self.relevance, self.onehot, pooling)


def pool(relevance: Values, onehot: OneHot, pooling: Pooling = "present") -> Values:
    """Relevance per base from relevance per letter: (..., 4, position) to (..., position).

    `"present"`: that of the letter that is there (of all letters that an IUPAC code stands for); 0 for N encoded as
    zeros. `"sum"`: that of all four letters. Under the default composite the two are equal, since absent letters
    receive none.
    """
    if pooling not in ("present", "sum"):
        raise ValueError(f"pooling={pooling!r}: choose 'present' (the letter that is there) or 'sum' (all four).")
    counted = relevance if pooling == "sum" else relevance * (onehot > 0)
    return cast("Values", counted.sum(-2))


def explain_sequences(
    model: Model,
    sequences: npt.ArrayLike | Tensor | Sequences | list[str],
    settings: SequenceSettings | None = None,
    *,
    show_progress: bool | None = False,
    **changes: Any,
) -> Attribution:
    """Relevance of every base of many sequences of one length.

    `sequences`: one-hot (sequence, 4, position), letters, or the result of a reader. The fields of `SequenceSettings`
    may be given as keywords: `target`, `composite`, `reference`, `pruning`, `reverse_complement`, `reverse_target`,
    `hypothetical`, `batch_size`, `device`.

    >>> from torch.nn import Conv1d, Flatten, Linear, ReLU, Sequential
    >>> network = Sequential(Conv1d(4, 3, 5), ReLU(), Flatten(), Linear(18, 2)).eval()
    >>> explain_sequences(network, ["ACGTACGTAC", "TTTTNCCCCA"]).per_base().shape
    (2, 10)
    """
    onehot = _onehot(sequences)
    return joined(explain_batches(model, onehot, settings, show_progress=show_progress, **changes), onehot)


def joined(batches: Iterable[Attribution], onehot: OneHot) -> Attribution:
    """The batches of `onehot` in one."""
    parts = list(batches)
    if not parts:
        return Attribution(np.zeros_like(onehot), onehot, np.zeros(0, np.float32), np.zeros(0, np.int64))
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in (*COLUMNS, *AGAINST)}
    return Attribution(onehot=onehot, **columns)


def explain_batches(
    model: Model,
    onehot: OneHot,
    settings: SequenceSettings | None = None,
    *,
    show_progress: bool | None = False,
    **changes: Any,
) -> Iterator[Attribution]:
    """`explain_sequences` one batch after another: only one is in memory at a time. `onehot` may be a memory map.

    Where a batch does not fit into memory, a warning says so and it is halved. Wrong settings are refused at once, not
    when the first batch is requested.
    """
    return _BatchExplainer(model, onehot, SequenceSettings.of(settings, changes)).batches(show_progress)


class _BatchExplainer:
    """Explains rows of one-hot sequences with one model; targets and composite are resolved when it is made."""

    def __init__(self, model: Model, onehot: OneHot, settings: SequenceSettings) -> None:
        check_model(model)
        self.model, self.onehot, self.settings = model, onehot, settings
        targets = strand_targets(settings.target, settings.reverse_target)
        if settings.reverse_complement:
            check_strands(*targets)
        self.target, self.reverse_target = (Request(target=one, pruning=settings.pruning).target for one in targets)
        for target in (self.target, self.reverse_target):
            target.check_batch(len(onehot))
        self.device = device_of(model, settings.device)
        example = self._input(slice(1)) if len(onehot) else None
        self.composite = _rules(settings.composite, settings.hypothetical, model, example)

    def batches(self, show_progress: bool | None) -> Iterator[Attribution]:
        """All sequences; a batch that does not fit into memory is halved."""
        begin, size = 0, self.settings.batch_size or batch_size_for(self.onehot.shape[-1])
        if self.settings.pruning is not None and self.settings.pruning.p == "auto":
            size = 1
        with progress("explaining", len(self.onehot), show_progress) as step:
            while begin < len(self.onehot):
                left = len(self.onehot) - begin
                size, batch = fitting(min(size, left), partial(self.explain, begin), "--batch-size ")
                yield batch
                begin += len(batch)
                step(len(batch))

    def explain(self, begin: int, size: int) -> Attribution:
        """One batch, on one strand or as the mean over both."""
        rows = slice(begin, begin + size)
        x, given = self._input(rows), self.settings.reference
        references = None if given is None else References.given(given, x, equal=True)
        relevance, explanation, problems = self._relevance(x, self.target.of(rows), references)
        score, classes, against = explanation.score, explanation.target, explanation.reference
        if self.settings.reverse_complement:
            other = classes if self.reverse_target.given is None else self.reverse_target.of(rows)
            if references is not None:
                references = replace(references, each=tuple((x0.flip(1, 2),) for (x0,) in references.each))
            flipped, _, reverse_problems = self._relevance(x.flip(1, 2), other, references)
            relevance = (relevance + flipped.flip(1, 2)) / 2
            problems = [here or there for here, there in zip(problems, reverse_problems, strict=True)]
        numbers = classes.cpu().numpy() if isinstance(classes, Tensor) else np.full(len(x), -1)
        return Attribution(
            relevance.cpu().numpy(),
            np.ascontiguousarray(self.onehot[rows], np.float32),
            score.cpu().numpy().astype(np.float32),
            numbers.astype(np.int64),
            np.array(["" if problem is None else problem.value for problem in problems], PROBLEM),
            *(() if against is None else (one.float().cpu().numpy() for one in against.means())),
        )

    def _input(self, rows: slice) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.onehot[rows], np.float32)).to(self.device)

    def _relevance(
        self, x: Tensor, target: Any, references: References | None
    ) -> tuple[Tensor, Explanation, list[Problem | None]]:
        """Relevance, explanation and problems of one batch on one strand."""
        hypothetical = self.settings.hypothetical
        asked = {"target": target, "composite": self.composite, "pruning": self.settings.pruning}
        with unwarned() if hypothetical else nullcontext():
            relevance, explanation = explain_letters(self.model, x, references, hypothetical, **asked)
        if hypothetical:
            present = [relevance * x]  # scores of absent letters are not conserved
            problems = find_problems(mass_of(present), explanation._grown)
            alarm(problems)
        else:
            problems = explanation.problems()
        return relevance.float(), explanation, problems


def explain_letters(
    model: Model, inputs: Any, references: References | None, hypothetical: bool, **asked: Any
) -> tuple[Tensor, Explanation]:
    """Relevance (sequence, letter, position) of the first input, and the explanation that has the scores.

    Against references Δx = x − x⁰ has two letters at a position. The relevance of both stands at the letter that is
    there; where there is none, it stays. Hypothetical scores are those of each letter b in its place,
    c_b = m_b − Σ_a m_a x⁰_a, with the multipliers m that the `Hypothetical` rule hands down. Results are means over the
    references.
    """
    if references is None:
        explanation = explain(model, inputs, **asked)
        return (explanation.relevance if isinstance(inputs, Tensor) else explanation.relevance[0]), explanation
    now = record_verified(model, inputs)
    x = now.inputs[0].data
    scores, mean = torch.zeros_like(x), Mean()
    for one in references.grouped(1):
        part = replace(DifferenceTrace(now, one).check_supported().explain(**asked), _source=None)
        if hypothetical:
            m = part.relevance if now.single else part.relevance[0]
            scores = scores + (m - (m * one.each[0][0]).sum(1, keepdim=True)) / len(references)
        mean.add(part)
    explanation = mean.result()
    relevance = explanation.relevance if now.single else explanation.relevance[0]
    letters = x.sum(1, keepdim=True)
    there = torch.where(letters > 0, letters, 1.0)
    moved = torch.where(letters > 0, relevance.sum(1, keepdim=True) * x / there, relevance)
    return scores if hypothetical else moved, explanation


def strand_targets(*targets: Any) -> tuple[Any, ...]:
    """Targets as `plrp.explain` takes them: texts are read."""
    return tuple(target_from_text(target) if isinstance(target, str) else target for target in targets)


def check_strands(target: Any, reverse_target: Any) -> None:
    """Refuse a mean over both strands where the target on the reverse strand is not known."""
    if reverse_target is None and (isinstance(target, tuple) or callable(target)):
        raise ValueError(
            "Averaging over strands with a target that is not a class: give `reverse_target`, the target on the "
            "reverse complement (position p of the given strand is L − 1 − p there)."
        )


_RULES: dict[str, Callable[[float], list[tuple[Any, Rule]]]] = {
    "gamma": lambda gamma: [(is_conv, Gamma(gamma)), (is_any, Epsilon())],
    "alpha-beta": lambda alpha: [(is_conv, AlphaBeta(alpha, alpha - 1)), (is_any, Epsilon())],
    "epsilon": lambda epsilon: [(is_any, Epsilon(epsilon))],
}


def composite_from_text(text: str, trace: Trace | None = None) -> Composite:
    """A composite by name, or one with a setting, for one-hot input; `auto` looks at the trace, where it is known.

    `gamma:0.25` is the γ-rule with γ = 0.25, `alpha-beta:2` the αβ-rule with α = 2, β = 1, both for convolutions and
    with ε for linear layers; `epsilon:0.01` is the ε-rule with ε = 0.01 everywhere.

    >>> [rule for _, rule in composite_from_text("alpha-beta:2").rules]
    [AlphaBeta(alpha=2, beta=1), Epsilon()]
    """
    if text == AUTO:
        return automatic([torch.eye(4)[None]], trace)
    name, colon, setting = text.partition(":")
    if not colon:
        return named_composite(text)
    if name not in _RULES:
        raise ValueError(f"composite {text!r}: settings go with gamma:0.25, alpha-beta:2 and epsilon:0.01.")
    try:
        value = float(setting)
    except ValueError:
        raise ValueError(f"composite {text!r}: {setting!r} is not a number; write {name}:0.25, say.") from None
    return Composite(_RULES[name](value), name=text)


def _rules(composite: str | Composite, hypothetical: bool, model: Any, example: Any) -> Composite:
    """The composite of a setting; `auto` looks at a trace of the `example`, if there is one."""
    if isinstance(composite, str):
        trace = record(model, example) if composite == AUTO and example is not None else None
        composite = composite_from_text(composite, trace)
    return HypotheticalComposite(composite) if hypothetical else composite


def pruning_title(pruning: Pruning) -> str:
    """How tables call a pruning with its strength.

    >>> pruning_title(Pruning(p=0.1)), pruning_title(Pruning(p=None, sparsity_gain=2))
    ('PLRP-λ p=0.1', 'PLRP-λ gain=2')
    """
    p = "" if pruning.p is None else " p=auto" if pruning.p == "auto" else f" p={pruning.p:g}"
    gain = "" if pruning.sparsity_gain is None else f" gain={pruning.sparsity_gain:g}"
    return f"{pruning.label}{p}{gain}"


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


# -- scores of absent letters


class Hypothetical(Rule):
    """The relevance that each letter *would* receive at its position: a score for absent letters.

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
                f"Gamma), not {rule!r}: use composite='epsilon-gamma', or against a reference 'rescale'."
            )
        self.rule = rule
        self.epsilon = rule.epsilon

    @property
    def needs_output(self) -> bool:  # type: ignore[override]
        """As for the rule it replaces."""
        return self.rule.needs_output

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """The rule's branches with the same denominators, but ones in place of the input."""
        if (x < 0).any() and not isinstance(self.rule, Epsilon):
            raise ValueError(
                "Hypothetical scores are for one-hot input, and this one has negative entries; against a reference "
                "they need composite='rescale'."
            )
        branches = []
        for branch in self.rule.branches(map, x, z, nonnegative=True):  # one-hot: x ≥ 0, a single part each
            d = branch.denominator
            if d is None:
                d = branch.contributions()
                d = d if branch.bias is None else d + branch.bias
            ones = tuple(Part(torch.ones_like(x), part.weight) for part in branch.parts)
            branches.append(Branch(map, ones, branch.bias, branch.share, branch.one_sign, denominator=d))
        return branches


class HypotheticalComposite(Composite):
    """A composite with the rules of first layers replaced by their `Hypothetical`; all else stays."""

    def __init__(self, composite: Composite) -> None:
        vars(self).update(vars(composite))
        self.composite = composite

    def with_layers(self, layers: Mapping[str, Rule]) -> Composite:
        """The same with other rules for named layers."""
        return HypotheticalComposite(self.composite.with_layers(layers))

    def on(self, ops: Sequence[Op], start: Sequence[Value], against: bool = False) -> Composite:
        """The same for relevance that goes down this tape."""
        return HypotheticalComposite(self.composite.on(ops, start, against))

    def rule(self, op: Any) -> Rule:
        """The rule of an operation."""
        rule = self.composite.rule(op)
        return Hypothetical(rule) if op.first else rule

    @property
    def needs_outputs(self) -> bool:
        """As for the composite itself."""
        return self.composite.needs_outputs


# -- behind tangermeme's interface


def attribute(
    model: nn.Module,
    X: Any,
    args: Sequence[Tensor] | None = None,
    target: Any = 0,
    batch_size: int = 32,
    references: Callable[..., Any] | Tensor | None = None,
    n_shuffles: int = 20,
    return_references: bool = False,
    hypothetical: bool = False,
    warning_threshold: float = 0.001,
    additional_nonlinear_ops: dict[Any, Any] | None = None,
    print_convergence_deltas: bool = False,
    raw_outputs: bool = False,
    only_warn: bool = False,
    dtype: str | torch.dtype | None = None,
    device: Device = None,
    random_state: int | None = None,
    verbose: bool = False,
    *,
    composite: str | Composite | None = None,
    pruning: Pruning | None = None,
) -> Any:
    """Relevance of one-hot sequences (batch, 4, length), in their shape, on the CPU: tangermeme's `deep_lift_shap`.

        from tangermeme.deep_lift_shap import deep_lift_shap        becomes
        from plrp.genomics import attribute as deep_lift_shap

    `X` is a tensor, a numpy array, or tangermeme's `PackedSequence`, of which a batch is unpacked at a time. `args`:
    more inputs of the model, (batch, …) each. `target`: a column of the output, or as in `explain_sequences`.
    `hypothetical`: scores of absent letters too (`Hypothetical`). `composite` and `pruning` are plrp's own.

    The signature is tangermeme's. Without `references` this is LRP, which explains the score itself: `n_shuffles` and
    `random_state` are not used then. With them it is DeepLIFT, by our own engine, whatever the model is made of:
    `references` is tangermeme's function or tensor (batch, n, 4, length), or a reference of ours such as
    `"shuffled:20"`; `return_references` returns (relevance, references). The settings of DeepLIFT's convergence have no
    meaning, since every difference arrives, and multipliers (`raw_outputs`) cannot be returned.

    >>> from torch.nn import Conv1d, Flatten, Linear, ReLU, Sequential
    >>> network = Sequential(Conv1d(4, 3, 5), ReLU(), Flatten(), Linear(18, 2)).eval()
    >>> attribute(network, torch.eye(4)[:, torch.arange(10) % 4][None], target=1, device="cpu").shape
    torch.Size([1, 4, 10])
    """
    if raw_outputs or (return_references and references is None):
        raise ValueError("There are no multipliers to return, and references only if they are given.")
    composite = composite or (COMPOSITE if references is None else "rescale")
    X = torch.from_numpy(X) if isinstance(X, np.ndarray) else X
    _check_inputs(X, args or (), batch_size)
    asked, where = Request(target=strand_targets(target)[0], pruning=pruning).target, device_of(model, device)
    asked.check_batch(len(X))
    number = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    number = number or next((p.dtype for p in model.parameters()), torch.float32)

    def batch(rows: slice) -> Any:
        inputs = [part.to(where, number) for part in (_unpacked(X[rows]), *(extra[rows] for extra in args or ()))]
        return tuple(inputs) if args else inputs[0]

    parts, used = [], []
    with evaluating(model, where), progress("explaining", len(X), None if verbose else False) as step:
        rules = _rules(composite, hypothetical, model, batch(slice(1)))
        for begin in range(0, len(X), batch_size):
            rows = slice(begin, begin + batch_size)
            inputs, how = batch(rows), {"target": asked.of(rows), "composite": rules, "pruning": pruning}
            given = _references(references, inputs, rows, n_shuffles, random_state)
            relevance = explain_letters(model, inputs, given, hypothetical, **how)[0].float().cpu()
            if given is not None and return_references:
                used.append(torch.stack([one[0] for one in given.each], 1).cpu())
            parts.append(relevance if hypothetical else relevance * (_unpacked(X[rows]).cpu() > 0))
            step(len(relevance))
    return (torch.cat(parts), torch.cat(used)) if return_references else torch.cat(parts)


def _references(given: Any, inputs: Any, rows: slice, count: int, seed: int | None) -> References | None:
    """Our references, or tangermeme's: a function or a tensor (batch, n, 4, length); None where none are given."""
    if given is None:
        return None
    x, *others = inputs if isinstance(inputs, tuple) else (inputs,)
    if not isinstance(given, str | Reference):
        stack = given[rows] if isinstance(given, Tensor) else given(x.cpu(), n=count, random_state=seed)
        given = stack.transpose(0, 1).to(x)
        return References.given((given, *(None for _ in others)) if others else given, inputs, equal=True)
    return References.given(given, inputs, equal=True)


def _check_inputs(X: Any, args: Sequence[Tensor], batch_size: int) -> None:
    """Refuse sequences and further inputs that cannot be explained together."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: at least one sequence a batch.")
    if X.ndim != 3 or len(X) == 0:
        raise ValueError(f"X has axes (batch, 4, length) and at least one sequence; this one is {tuple(X.shape)}.")
    if isinstance(X, Tensor) and X.shape[1] != 4 and X.shape[2] == 4:
        raise ValueError(f"X has axes (batch, 4, length); this one is {tuple(X.shape)}: transpose its last two axes.")
    for extra in args:
        if len(extra) != len(X):
            raise ValueError(f"args holds {len(extra)} rows for {len(X)} sequences: give one row each.")


@contextmanager
def evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """The model in evaluation mode on a device; afterwards its modes and its place are as before."""
    modes, home = {module: module.training for module in model.modules()}, device_of(model)
    try:
        model.eval().to(device)
        yield
    finally:
        model.to(home)
        for module, mode in modes.items():
            module.training = mode


def _unpacked(x: Any) -> Tensor:
    """One-hot sequences of a tensor or of tangermeme's `PackedSequence`."""
    letters: Tensor = x.to_one_hot() if hasattr(x, "to_one_hot") else x
    return letters
