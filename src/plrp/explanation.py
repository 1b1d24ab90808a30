"""`explain`, and the `Explanation` that it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .balance import Balance, Problem, alarm, balance_of, find_problems, mass_of, remarks
from .composites import Composite, resolve
from .conditions import Condition, in_words, storable
from .engine import choice, grouped, reference_groups, walk_of
from .ledger import Ledger, averaged_ledgers, conservation
from .passage import Case, CaseResult
from .pruning import Pruning
from .references import References
from .request import PIECE, SMALL_BATCH, Request, joined_structure, pieces, some
from .spelling import nearest, plural, printable
from .survey import Survey
from .tape.difference import DifferenceTrace, DifferenceValue, repeated
from .tape.live_tensors import ByName
from .tape.own_rules import alone, refuse_unused, rules_for, rules_in_force
from .tape.refusals import as_batch, check_inputs
from .tape.samples import Batch, Groups
from .tape.seam import explained_once, tape_bytes
from .tape.trace import Trace, record
from .tape.values import gathered, replaced, tensors_in, version
from .tape.verification import record_verified, supported
from .targets import Computed, Seed, Target, as_target, start
from .walk import Walk

if TYPE_CHECKING:
    import plrp

STORED = "This explanation was stored without its model: read what you need before storing it."
UNTESTABLE = "This explanation was stored without its model, which would have to answer: test it before storing it."
CHANGED = "The model or its input has changed since this explanation was made; explain again."


@dataclass
class Survivors:
    """The neurons of a layer's input that hold relevance for one sample, strongest first."""

    index: Tensor  # (neurons, axes of the tensor without the batch)
    relevance: Tensor  # (neurons,)

    @classmethod
    def of(cls, relevance: Tensor, shape: Sequence[int]) -> Survivors:
        """The non-zero entries of a sample's relevance (neurons,), whose tensor has this shape."""
        places = relevance.nonzero()[:, 0]
        places = places[relevance[places].abs().argsort(descending=True, stable=True)]
        index = torch.stack(torch.unravel_index(places, shape), 1) if shape else places.new_zeros(len(places), 0)
        return cls(index, relevance[places])


class LayerRelevance(dict[str, Tensor]):
    """Relevance by layer; a layer that is not there is answered with a sentence.

    `names` are all layers of the model, `wanted` the layers whose relevance was asked for.
    """

    def __init__(self, relevance: Mapping[str, Tensor], names: Iterable[str], wanted: Iterable[str]) -> None:
        super().__init__(relevance)
        self.names, self.wanted = tuple(names), frozenset(wanted)

    def __missing__(self, name: str) -> Tensor:
        if name not in self.names:
            shown = ", ".join(self.names[:12]) + (" …" if len(self.names) > 12 else "")
            close = nearest(str(name), self.names) if len(self.names) > 12 else ""
            raise KeyError(
                f"There is no conv or linear layer {name!r} (relevance is kept at the inputs of these): {shown}{close}."
            )
        if name in self.wanted:
            raise KeyError(f"No relevance reaches layer {name!r} from this target.")
        others = f"only that of {', '.join(self)}" if self else "and neither was that of any other"
        raise KeyError(
            f"The relevance of layer {name!r} was not kept, {others}: explain with layers=True, or layers=[{name!r}]."
        )

    def like(self, relevance: Mapping[str, Tensor]) -> LayerRelevance:
        """Other relevance of the same layers."""
        return LayerRelevance(relevance, self.names, self.wanted)

    def __reduce__(self) -> tuple[Any, ...]:
        return LayerRelevance, (dict(self), self.names, self.wanted)


@dataclass(frozen=True)
class Against:
    """The references of an explanation, whose relevance, layers and ledger are means over them.

    - `score`: f(x), (batch,); `scores`: f(x⁰) of each reference, (K, batch). The explained score is their difference;
    - `relevance`, `layers`, `ledger`: the standard deviations over the references, in the form of the means. None for
      a single reference, and for the ledger until it is asked for.
    """

    name: str
    score: Tensor
    scores: Tensor
    relevance: Any = None
    layers: Mapping[str, Tensor] = field(default_factory=dict)
    ledger: Ledger | None = None

    def means(self) -> tuple[Tensor, Tensor]:
        """The mean of f(x⁰) over the references and its standard deviation, (batch,) each."""
        return self.scores.mean(0), self.scores.std(0, correction=0)

    def facts(self, sample: int = 0) -> dict[str, Any]:
        """One sample's as plain data, for files and pages."""
        mean, spread = (float(one[sample]) for one in self.means())
        score = float(self.score[sample])
        numbers = {"score": score, "reference_score": mean, "difference": score - mean, "spread": spread}
        return {"reference": self.name, "references": len(self.scores), **numbers}

    def words(self, sample: int = 0) -> str:
        """One sample's in a line."""
        facts, spread = self.facts(sample), len(self.scores) > 1
        before = _mean_of(self.scores[:, sample], spread)
        return (
            f"against {self.name}: f(x) = {facts['score']:.4g}, f(x⁰) = {before}, difference {facts['difference']:.4g}"
        )

    def __repr__(self) -> str:
        pairs = zip(self.score[:8].tolist(), self.scores.T[:8], strict=True)
        spread = len(self.scores) > 1
        each = [f"{now:.4g} and {_mean_of(before, spread)}" for now, before in pairs]
        return f"against {self.name}: f(x) and f(x⁰) are {', '.join(each)}{' …' * (len(self.score) > 8)}"


def _mean_of(scores: Tensor, spread: bool) -> str:
    return f"{float(scores.mean()):.4g}" + (f" (± {float(scores.std(correction=0)):.2g})" if spread else "")


@dataclass
class Explanation:  # more than 15 methods: everything a user may ask of an explanation is reached from it
    """The relevance of a prediction.

    - `relevance`: of the input, in its shape (a tuple of tensors for a model with several inputs);
    - `logits`: the model's output, before its head, a final softmax, sigmoid, softplus or exp (`head` names it);
    - `target`: the classes that were explained, or the index tuple or callable that was given;
    - `score`: the explained score per sample, the relevance that was handed down;
    - `layers`: the (pruned) relevance at the input of each conv and linear layer by name, if it was asked for;
    - `ledger`: where the mass went, one record per entry of the tape and sample;
    - `balance`: where the score went, in numbers;
    - `condition`, `only_through`: which relevance was let pass; None where all of it was;
    - `reference`: f(x), f(x⁰) and the spread over several references, if the score is a difference to them;
    - `verdict`: the network's verdict from the last `test`; None before.
    """

    relevance: Any
    logits: Any
    target: Any
    score: Tensor
    layers: LayerRelevance
    head: str | None
    composite: Composite
    pruning: Pruning | None
    condition: Condition | None = None
    only_through: bool = False
    reference: Against | None = None
    verdict: Any = None  # a `plrp.metrics.Verdict`
    _ledger: Ledger | None = field(default=None, repr=False)
    _source: ExplainCall | TraceCall | None = field(default=None, repr=False)  # None where it was loaded from disk
    _scattered: frozenset[str] = field(default=frozenset(), repr=False)  # layers whose samples do not lie side by side
    _begun: Tensor | None = field(default=None, repr=False)  # ‖R‖₁ at the output, where its relevance adds up to 0
    _grown: Tensor | None = field(default=None, repr=False)  # the largest growth of a tensor's ‖R‖₁ by PLRP-M
    _whole: bool = field(default=False, repr=False)  # whether there is no batch axis
    _groups: Groups | None = field(default=None, repr=False)  # of rows, where these are the samples

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """The ledger as plain data: a list of records that pandas and polars take as it is.

        It is written when it is first read, by propagating once more: most explanations never need it.
        """
        return self.booked.records()

    @property
    def booked(self) -> Ledger:
        """The ledger with its columns as tensors (batch,)."""
        if self._ledger is None:
            again = self._recomputed([])
            self._ledger = again._ledger
            if self.reference is not None and again.reference is not None:
                self.reference = replace(self.reference, ledger=again.reference.ledger)
        assert self._ledger is not None
        return self._ledger

    def _recomputed(self, layers: Sequence[str]) -> Explanation:
        """The same explanation, computed once more with its ledger and these layers."""
        if self._source is None:
            raise ValueError(STORED)
        try:
            explanation = self._source.again(layers)
        except ValueError:  # an unknown layer
            raise
        except Exception as error:
            raise RuntimeError(CHANGED) from error
        before, now = (list(tensors_in(e.logits)) for e in (self, explanation))
        if len(before) != len(now) or not all(map(_equal, before, now)):
            raise RuntimeError(CHANGED)
        return explanation

    def survivors(self, layer: str) -> list[Survivors]:
        """Which neurons of a layer's input hold relevance, per sample, strongest first.

        Uses `layers` if they were asked for, else propagates once more, down to that layer.
        """
        explanation = self if layer in self.layers else self._recomputed([layer])
        relevance, batch = explanation.layers[layer], len(self.score)
        if batch > 1 and layer in explanation._scattered:
            raise ValueError(
                f"The input of layer '{layer}' does not hold one sample after the other: explain one sample at a time."
            )
        if self._whole:
            relevance = relevance[None]
        elif len(relevance) != batch:  # (batch · time, …): a sample's own axes are (time, …)
            relevance = relevance.unflatten(0, (batch, -1))
        return [Survivors.of(sample.flatten(), sample.shape) for sample in relevance]

    def trace_sample(self, sample: int = 0) -> tuple[Trace, int]:
        """A trace that holds this sample, to explain it further, and the sample's number in it."""
        if self._source is None:
            raise ValueError(STORED)
        if not 0 <= sample < len(self.score):
            raise IndexError(f"There is no sample {sample}: this explanation has {len(self.score)}, from 0.")
        return self._source.trace_sample(sample)

    def save(self, path: str | Path, **options: Any) -> None:
        """Write the numbers, a page of one sample in which p, method and target can be moved, or a figure.

        - `.npz`: relevance, score, target, logits, the composite's name and the pruning, for `plrp.load` or `np.load`;
          no model, ledger or layers: `torch.save(explanation, path)` keeps these two as well, as a pickle.
        - `.html`: one file that needs no network. It explains the sample anew for every p of its slider, which takes up
          to some minutes for a large model; `show_progress=False` leaves out the bar. `options` are those of
          `plrp.view.explanation_bundle`: `sample`, `picture`, `mask`, `categories`, `title`, …; with a list as
          `sample`, the page is a gallery.
        - `.png`, `.svg`, `.pdf`, `.jpg`, `.webp`: the figure of `plot`, whose `options` it takes, and `dpi`.
        """
        import plrp

        kind = Path(path).suffix.lower()
        if kind not in (".npz", ".html", ".htm"):
            return plrp.view.plots.save_plot(self, path, **options)
        if kind == ".npz" and options:
            raise TypeError(
                f"{', '.join(options)}: a page and a figure have options, a file of numbers (.npz) has none."
            )
        if kind == ".npz":
            return plrp.explanation_files.save_explanation(path, self, plrp.__version__)
        options = {"show_progress": None, **options}
        if isinstance(options.get("sample", 0), int):
            content = plrp.view.explanation_bundle(self, **options)
        else:
            content = plrp.view.explanation_bundles(self, list(options.pop("sample")), **options)
        plrp.view.Page(content).save(path)

    def circuit(
        self,
        model: Callable[..., Any] | None = None,
        inputs: Tensor | Sequence[Tensor] | None = None,
        *,
        sample: int = 0,
        **options: Any,
    ) -> plrp.circuits.Circuit:
        """The survivors of one sample as a sub-network: neurons, edges, and how much of the prediction they keep alone.

        - `model`, `inputs`: the model and the inputs of this explanation, needed where it was loaded from disk;
        - `positive=True`: only the survivors that speak for the score;
        - `ablate`: the value of all other neurons of the pruned tensors: `"zero"` (of a difference to one reference its
          activations), their `"mean"` over `data`, or their activations for random samples of `data` (`"resample"`);
        - `data`: inputs like the explained ones, for the last two; at most `batch_size` of them run at once;
        - `draws`: how many random samples and random circuits a figure is the mean of; `seed` draws them;
        - `classes`: the axis of the classes, where the output is not (batch, classes).
        """
        import plrp

        return plrp.circuits.circuit_of(self, model, inputs, sample, **options)

    def test(self, budget: int = 128, **options: Any) -> plrp.metrics.Verdict:
        """Ask the network whether the map is true: two sentences per sample when printed, and a figure.

        Each part of the input (a tile, a window, a token, a feature) is replaced alone, in two ways, and the relevance
        of the parts is compared with the drops of the score, beside maps that know nothing. It takes at most `budget`
        forward passes per sample.

        - `data`: inputs (samples, features) like the explained ones, needed for tables;
        - `mask`: for token ids `references.mask_token(tokenizer)`; special tokens stay;
        - `replacements`: two others, each as `reference` of `plrp.explain`; `parts`: other parts, by number;
        - `flip_floor=True`: compare the flipping gain, too, with that of maps that know nothing: 532 more passes;
        - `batch_size`: perturbed inputs that exist at a time; `seed`; `show_progress`: None is a bar after two seconds.
        """
        import plrp

        (self.verdict,) = plrp.metrics.ask_about(self, budget=budget, **options)
        return self.verdict

    def plot(self, images: Any = None, **options: Any) -> Any:
        """The relevance as a matplotlib figure: over pictures, as logos of DNA, as coloured tokens, as bars.

        - `images`: inputs or pictures (height, width, 3) to draw it over (default: the explained inputs);
        - `samples`: which of a batch, by number (default: the first 16);
        - `names`: of the classes, in their order or as a dict by number, for the titles;
        - `tokens`: the text of each token id of a single sample.
        """
        import plrp

        return plrp.view.plot(self, images, **options)

    def page(self, samples: Sequence[int] | None = None, **options: Any) -> Any:
        """The page in a notebook, as the last line of a cell: p, method, class and channels can be moved there.

        - `samples`: which of a batch, by number (default: the first 4, as a gallery);
        - `options`: those of `plrp.view.explanation_bundle`, such as `proportions`, `targets` and `picture`.
        """
        import plrp

        return plrp.view.notebook.Live(self, None if samples is None else list(samples), **options)

    def _repr_mimebundle_(self, **_: Any) -> Any:
        """The figure, in notebooks; None, where there is none of this input, leaves the ledger's table."""
        import plrp

        try:
            return plrp.view.mime_bundle(self)
        except (ValueError, ImportError):  # another kind of input, or no matplotlib
            return None

    @property
    def _inputs(self) -> tuple[Tensor, ...]:
        """The relevance of each of the model's inputs, samples along the first axis."""
        parts = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        if self._groups is not None:
            return tuple(layout.rows(part) for layout, part in zip(self._groups.layouts, parts, strict=True))
        return tuple(part[None] for part in parts) if self._whole else parts

    def closing(self) -> Tensor:
        """How far the ledger is from closing, per sample, relative to the largest ‖R‖₁ on the way."""
        return conservation(self.score, self._inputs, self.booked)

    @property
    def balance(self) -> Balance:
        """Where the score went, in figures per sample; printed, it is a sentence. Reads the ledger."""
        return balance_of(self.score, self._begun, self._inputs, self.booked, self.pruning)

    def problems(self) -> list[Problem | None]:
        """The fault in the arithmetic of each sample, None where there is none; needs no ledger."""
        return find_problems(mass_of(self._inputs), self._grown)

    def remarks(self) -> list[str | None]:
        """The same in the few words that fit under a picture, or that the score is 0."""
        return remarks(self.score, mass_of(self._inputs), self._grown)

    def warned(self) -> Explanation:
        """This explanation, with a `plrp.BrokenArithmetic` warning if its arithmetic broke."""
        alarm(self.problems())
        return self

    def _of(self, samples: slice) -> Explanation:
        """The explanation of some samples, without its ledger and layers."""
        assert self.reference is not None
        against = Against(self.reference.name, self.reference.score[samples], self.reference.scores[:, samples])
        return replace(
            self,
            relevance=some(self.relevance, samples),
            logits=replaced(self.logits, lambda t: t[samples], of=Tensor),
            target=self.target[samples] if isinstance(self.target, Tensor) else self.target,
            score=self.score[samples],
            reference=against,
            _grown=None if self._grown is None else self._grown[samples],
            _source=None,
        )

    def _title(self) -> str:
        batch = len(self.score)
        how = "LRP" if self.pruning is None else f"{self.pruning.label}, {self.pruning}"
        of = "no batch axis" if self._whole else plural(batch, "sample")
        why = "" if self.composite.reason is None else f" ({self.composite.reason})"
        lines = [f"{how}, {self.composite.name}{why}, {of}"]
        if batch:
            lines.append(as_target(self.target, self._whole).in_words(self.score))
        if self.reference is not None:
            lines.append(repr(self.reference))
        if self.condition is not None:
            lines.append(f"only what passes {in_words(self.condition)}{', and nothing around it' * self.only_through}")
        if self.head:
            lines.append(f"relevance starts before the model's final {self.head}")
        lines.append(repr(self.balance))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{printable(self._title())}\n(for the ledger, layer by layer: print(explanation.booked))"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._title()).replace(chr(10), '<br>')}</p>{self.booked._repr_html_()}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None, "_ledger": self.booked, "condition": storable(self.condition)}


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs are equal up to rounding: other pieces of a batch are summed in another order."""
    if torch.equal(a, b) or not a.is_floating_point():
        return torch.equal(a, b)
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-6 * float(a.abs().max()), equal_nan=True)


def explain(
    model: Callable[..., Any],
    inputs: Any,
    *,
    target: Any = None,
    composite: str | Composite = "auto",
    pruning: Pruning | None = None,
    layers: bool | Sequence[str] = False,
    micro_batch: int | None = None,
    samples: Any = 0,
    rules: Mapping[Any, Any] | None = None,
    condition: Condition | None = None,
    only_through: bool = False,
    reference: Any = None,
) -> Explanation:
    """Explain a model's prediction: how much each input feature contributed to a score.

    - `inputs`: a tensor (batch, …), or a tuple of several; a dict goes by name, as in `model(**batch)`. Of token ids
      (batch, tokens) looked up in an embedding, the relevance of a token is the sum over its channels; masks have none;
    - `target`: the score to explain. None is each sample's winning class; a class, one class per sample (list or
      tensor), an index tuple into the output (`(2, 141)` of (batch, 3, length)), or a callable from the output to one
      score per sample;
    - `composite`: which layer gets which rule, by name or as a `plrp.Composite`; `"auto"` chooses by the input, and
      printing the explanation names its choice;
    - `pruning`: a `plrp.Pruning`; None is plain LRP;
    - `layers`: keep the relevance at every layer's input (True), or at some (their names);
    - `micro_batch`: explain the batch in pieces of this many samples, to bound the memory. The numbers are
      the same: no sample's explanation depends on the others. None: a batch of more than 16 MB comes in pieces whose
      tapes take 500 MB at most, unless `model`, `target` or a rule is a function of yours, or with `layers` or
      `condition`;
    - `samples`: None for a model without a batch axis (a graph of nodes, say): one explanation of the whole, of a score
      that `target` gives by an index into the output or a callable. A vector of whole numbers names the sample of each
      row, as PyTorch Geometric's `batch` does (several inputs: a tuple of vectors); the output has a row per sample;
    - `rules`: your own rules for operations, by function, class of modules or entry of the tape, see `plrp.rules_for`;
    - `condition`: a filter on the outputs of some layers, such as `{"layer3.0.conv2": [12, 40]}`: channels (whole
      numbers), positions (tuples), a boolean mask, or a callable (activation, gradient of the score, relevance) → mask.
      Several layers all apply. With a pruning, neurons keep the factors they have without the condition;
    - `only_through`: drop relevance that goes around a conditioned layer, over a skip;
    - `reference`: explain the difference to the score of a reference, f(x) − f(x⁰), all of which reaches the input. A
      tensor of the input's shape or of one sample's, a stack (K, …) of them, a name such as `"blur:8"`, or a callable
      (`plrp.references`); several inputs: a tuple, None for one that stays. `Explanation.reference` has K's spread.

    >>> import torch, plrp
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> plrp.explain(model, torch.randn(2, 4), pruning=plrp.Pruning(p=0.15)).relevance.shape
    torch.Size([2, 4])
    """
    samples, (model, inputs) = as_batch(samples), ByName.of(model, inputs)
    request = Request(
        target=as_target(target, whole=samples is None),
        composite=composite,
        pruning=pruning,
        layers=layers,
        condition=condition,
        only_through=only_through,
    )
    if reference is not None:
        check_inputs(inputs, samples)
        request = replace(request, reference=References.given(reference, inputs, samples != 0))
    if samples != 0 and micro_batch is not None:
        raise ValueError("micro_batch cuts the first axis into pieces; without a batch there (samples=…) leave it out.")
    sizes = [samples.batch] if isinstance(samples, Groups) else [len(x) for x in tensors_in(inputs) if x.dim()]
    if samples is not None and sizes:
        request.target.check_batch(sizes[0])
    with rules_for(rules or {}):
        call = ExplainCall(model, inputs, request, samples, micro_batch, rules_in_force(), choice())
    explanation = call.explanation(request)
    refuse_unused(rules, call.seen)
    explanation._source = replace(call, state=call.state_now())
    return explanation.warned()


@dataclass(frozen=True)
class ExplainCall:
    """One call of `explain`, which can be repeated: with the same rules and the same walk, while the model stays."""

    model: Callable[..., Any]
    inputs: Tensor | Sequence[Tensor]
    request: Request
    samples: Batch
    micro_batch: int | None
    rules: Mapping[Any, Any]
    same_walk: Callable[[], Any]
    state: Sequence[tuple[int, int | None]] = ()  # the inputs and weights, and how often each was written to
    seen: set[Any] = field(default_factory=set)  # of the users' rules, see `RulesInForce`

    def explanation(self, request: Request, ledger: bool = False) -> Explanation:
        """The explanation of the whole batch, piece by piece."""
        with self.same_walk(), alone(self.rules):
            size = self._piece_size(request) if self.micro_batch is None else self.micro_batch
            parts = [(None, self.inputs)] if size is None else pieces(self.inputs, size)
            explanations = [self._piece(inputs, request if p is None else request.of(p), ledger) for p, inputs in parts]
        explanation = joined(explanations)
        if isinstance(request.target, Seed):
            explanation.target = request.target
        return explanation

    def _piece_size(self, request: Request) -> int | None:
        """How many samples of a large batch to explain at once, by the tape of the first two; None: all of them.

        At least two, except in the last piece: one alone shows no dependence on others. A batch stays whole where a
        function or a rule of the user may hold for the whole batch, and where layers are kept.
        """
        given = list(tensors_in(self.inputs))
        batch = len(given[0]) if given and given[0].dim() else 0
        functions = [self.model, *self.rules.values()]
        own = any(callable(one) and not isinstance(one, nn.Module) for one in functions) or isinstance(
            request.target, Computed
        )
        own = own or request.condition is not None or bool(request.layers) or request.composite_holds_tensors
        if self.samples != 0 or own or batch < 3 or sum(x.numel() * x.element_size() for x in given) <= SMALL_BATCH:
            return None
        frugal = not resolve(request.composite, given).needs_outputs
        try:
            two = record(self.model, some(self.inputs, slice(2)), frugal=frugal)
        except Exception:  # a model made for one size of batch, or one that will be refused
            return None
        passes = 1 if request.reference is None else 2
        size = max(2, 2 * PIECE // max(1, passes * tape_bytes(two)))
        return size if size < batch else None

    def _piece(self, inputs: Any, request: Request, ledger: bool) -> Explanation:
        whole = list(tensors_in(self.inputs))
        if request.reference is not None:
            trace = record_verified(self.model, inputs, samples=self.samples)
            self.seen.update(trace._recorder.rules.seen if self.rules else ())
            return _against(trace, request.reference, [request], whole, ledger)[0]
        frugal = not resolve(request.composite, whole).needs_outputs
        trace = record_verified(self.model, inputs, frugal=frugal, samples=self.samples)
        bound = request.bound(trace, whole)
        supported(trace, bound.composite.products)
        if bound.condition is None:
            explained_once(trace)
        (explanation,) = _walks(trace, [bound], ledger)
        self.seen.update(trace._recorder.rules.seen if self.rules else ())
        return explanation

    def again(self, layers: Sequence[str]) -> Explanation:
        """The same explanation with its ledger and the relevance of these layers."""
        return self.explanation(replace(self.request, layers=layers), ledger=True)

    def asked(self) -> tuple[Callable[..., Any], Any]:
        """The model and its inputs, which have not changed since."""
        if self.state_now() != self.state:
            raise RuntimeError(CHANGED)
        return self.model, self.inputs

    def trace_sample(self, sample: int) -> tuple[Trace, int]:
        """A trace of one sample, and the number of the sample in it."""
        self.asked()
        inputs = self.inputs if self.samples != 0 else some(self.inputs, slice(sample, sample + 1))
        with self.same_walk(), alone(self.rules):
            trace = record(self.model, inputs, samples=self.samples)
            if self.request.reference is not None:
                piece = slice(None) if self.samples != 0 else slice(sample, sample + 1)
                return DifferenceTrace(trace, self.request.reference.of(piece)).check_supported(), 0
            composite = resolve(self.request.composite, tensors_in(self.inputs), trace)
            return supported(trace, composite.products), sample if isinstance(self.samples, Groups) else 0

    def input_of(self, sample: int) -> Tensor:
        """The first input of one sample."""
        if self.state_now() != self.state:
            raise RuntimeError(CHANGED)
        return next(iter(tensors_in(self.inputs)))[sample]

    def state_now(self) -> list[tuple[int, int | None]]:
        """The inputs and weights as they are now."""
        model = self.model
        weights = (*model.parameters(), *model.buffers()) if isinstance(model, nn.Module) else ()
        return [(id(tensor), version(tensor)) for tensor in (*tensors_in(self.inputs), *weights)]


@dataclass(frozen=True)
class TraceCall:
    """One explanation of a trace, which can be repeated with the same walk."""

    trace: Trace
    request: Request
    same_walk: Callable[[], Any]

    def again(self, layers: Sequence[str]) -> Explanation:
        """The same explanation with its ledger and the relevance of these layers."""
        with self.same_walk():
            return explain_trace(self.trace, replace(self.request, layers=layers), ledger=True)

    def asked(self) -> tuple[Callable[..., Any], Any]:
        """The model and its inputs; its weights have not changed since."""
        now = self.trace.now
        now.check_unchanged()
        inputs = tuple(value.data for value in now.inputs)
        return now._recorder.model, inputs[0] if now.single else inputs

    def trace_sample(self, sample: int) -> tuple[Trace, int]:
        """The trace, and the number of the sample in it."""
        return self.trace, sample

    def input_of(self, sample: int) -> Tensor:
        """The first input of one sample."""
        return self.trace.now.inputs[0].data[sample]


def joined(parts: Sequence[Explanation]) -> Explanation:
    """The explanations of a batch's pieces as one of the whole batch."""
    first = parts[0]
    if len(parts) == 1:
        return first
    for name in sorted(set().union(*(e._scattered for e in parts))):
        raise ValueError(
            f"The input of layer '{name}' does not hold one sample after the other, so its relevance cannot be joined: "
            "leave out micro_batch or this layer."
        )

    def masses(name: str) -> Tensor | None:
        each = [getattr(e, name) for e in parts]
        return None if any(mass is None for mass in each) else torch.cat(each)

    ledgers = [e._ledger for e in parts if e._ledger is not None]
    return replace(
        first,
        relevance=joined_structure([e.relevance for e in parts]),
        logits=joined_structure([e.logits for e in parts]),
        target=torch.cat([e.target for e in parts]) if isinstance(first.target, Tensor) else first.target,
        score=torch.cat([e.score for e in parts]),
        layers=first.layers.like({name: torch.cat([e.layers[name] for e in parts]) for name in first.layers}),
        reference=_joined_references([e.reference for e in parts if e.reference is not None]),
        _begun=masses("_begun"),
        _grown=masses("_grown"),
        _ledger=Ledger.joined(ledgers) if ledgers else None,
    )


def _joined_references(parts: Sequence[Against]) -> Against | None:
    """The references of a batch's pieces as those of the whole batch."""
    if not parts:
        return None
    first, ledgers = parts[0], [part.ledger for part in parts if part.ledger is not None]
    spread = None if first.relevance is None else joined_structure([part.relevance for part in parts])
    return Against(
        first.name,
        torch.cat([part.score for part in parts]),
        torch.cat([part.scores for part in parts], 1),
        spread,
        {name: torch.cat([part.layers[name] for part in parts]) for name in first.layers},
        Ledger.joined(ledgers) if ledgers else None,
    )


class Mean:
    """The mean of the explanations against several references, with the standard deviation; they come one by one."""

    def __init__(self) -> None:
        self.first: Explanation | None = None
        self.ledgers, self.scores, self.grown, self.count = list[Ledger](), list[Tensor](), list[Tensor](), 0
        self.means, self.squares = list[Tensor](), list[Tensor]()  # of relevance, layers and score; Σ (x − mean)²

    def add(self, part: Explanation) -> None:
        """Take the explanation against one more reference."""
        tensors = gathered(part.relevance, dict(part.layers), part.score)
        self.count += 1
        if self.first is None:
            self.first, self.means, self.squares = part, tensors, [torch.zeros_like(t) for t in tensors]
        else:
            for n, tensor in enumerate(tensors):
                apart = tensor - self.means[n]
                self.means[n] = self.means[n] + apart / self.count
                self.squares[n] = self.squares[n] + apart * (tensor - self.means[n])
        assert part.reference is not None
        self.scores.append(part.reference.scores)
        self.ledgers += [] if part._ledger is None else [part._ledger]
        self.grown += [] if part._grown is None else [part._grown]

    def result(self) -> Explanation:
        """The mean."""
        first = self.first
        assert first is not None
        assert first.reference is not None
        if self.count == 1:
            return first
        numbers, spreads = iter(self.means), iter((square / self.count).sqrt() for square in self.squares)
        form = first.relevance, dict(first.layers), first.score
        relevance, layers, score = replaced(form, lambda _: next(numbers), of=Tensor)
        spread, layer_spread, _ = replaced(form, lambda _: next(spreads), of=Tensor)
        mean_ledger, ledger_spread = averaged_ledgers(self.ledgers) if self.ledgers else (None, None)
        scores = torch.cat(self.scores)
        return replace(
            first,
            relevance=relevance,
            layers=first.layers.like(layers),
            score=score,
            reference=replace(
                first.reference, scores=scores, relevance=spread, layers=layer_spread, ledger=ledger_spread
            ),
            _ledger=mean_ledger,
            _grown=torch.stack(self.grown).amax(0) if self.grown else None,
        )


def explain_trace(trace: Trace, request: Request, ledger: bool = False) -> Explanation:
    """Explain a recorded forward pass, or the difference of two."""
    bound = request.bound(trace)
    trace.check_unchanged()
    (explanation,) = _explained(trace, [bound], ledger)
    return explanation


def _explained(trace: Trace, requests: Sequence[Request], ledger: bool = False) -> Iterator[Explanation]:
    """The explanations of a trace for requests that are bound to it; of several references the means."""
    if not isinstance(trace, DifferenceTrace) or len(trace.references) == 1:
        yield from _walks(trace, requests, ledger)
        return
    means = _against(trace.now, trace.references, requests, None, ledger)
    yield from (replace(e, _source=TraceCall(trace, r, choice())) for e, r in zip(means, requests, strict=True))


def _against(
    now: Trace, references: References, requests: Sequence[Request], inputs: Sequence[Tensor] | None, ledger: bool
) -> list[Explanation]:
    """The explanation of each request, a mean over the references; `inputs`: see `Request.bound`.

    Each reference is recorded once, for all requests, and its tape is gone before the next one is.
    """
    means = [Mean() for _ in requests]
    for group in reference_groups(now, references, requests[0], ledger):
        for mean, parts in zip(means, _against_group(now, group, requests, inputs, ledger), strict=True):
            for part in parts:
                mean.add(part)
    return [mean.result() for mean in means]


def _against_group(
    now: Trace, group: References, requests: Sequence[Request], inputs: Sequence[Tensor] | None, ledger: bool
) -> Iterator[list[Explanation]]:
    """Of each request the explanations against some references, which are recorded as one batch."""
    tape = DifferenceTrace(repeated(now, len(group)), group.joined).check_supported()
    tape.memory = None if len(requests) == 1 else {}
    if len(group) > 1:
        each = torch.arange(now.batch).repeat(len(group))
        requests = [replace(r, target=r.target.bound(now.output).of(each)) for r in requests]
    for whole in _walks(tape, [request.bound(tape, inputs) for request in requests], ledger):
        copies = range(0, tape.batch, now.batch) if len(group) > 1 else ()
        yield [whole._of(slice(n, n + now.batch)) for n in copies] or [replace(whole, _source=None)]


def _walks(trace: Trace, requests: Sequence[Request], ledger: bool = False) -> Iterator[Explanation]:
    """The explanations of a trace for requests that are bound to it, in their order."""
    with torch.inference_mode(False), torch.no_grad():
        groups = grouped(trace, _cases(trace, requests))
    for group in groups:
        with torch.inference_mode(False), torch.no_grad():
            walk = walk_of(trace, group, ledger)
            results = walk.results(walk.run())
        yield from (described(walk, result, case.request) for result, case in zip(results, group, strict=True))


def _cases(trace: Trace, requests: Sequence[Request]) -> list[Case]:
    """The walks of some requests, which differ in their pruning, in their target, or in their condition."""
    if requests[0].condition is None:
        return [Case(request) for request in requests]
    survey = Survey.for_conditions(trace, requests)
    return [Case(request, survey.passage(request)) for request in requests]


def sweep_trace(
    trace: Trace,
    prunings: Iterable[Pruning | None],
    *,
    targets: Sequence[Any] | None = None,
    condition: Any = None,
    only_through: bool = False,
    **asked: Any,
) -> Iterator[Explanation]:
    """One explanation per pruning, in their order, of each one per target, and of each of these one per condition.

    The arguments are checked now, not when the first explanation is asked for; `asked`: the others of a `Request`.
    """
    if prunings is None or isinstance(prunings, Pruning | int | float | str):
        raise TypeError(f"prunings is a list of plrp.Pruning, got one {type(prunings).__name__}: write sweep([…]).")
    request = Request(**asked).bound(trace)
    requests = [replace(request, pruning=pruning).bound(trace) for pruning in prunings]
    if targets is not None and (isinstance(targets, str | int) or not len(targets) or asked.get("target") is not None):
        raise ValueError("targets is a list of at least one target, in place of target: sweep([…], targets=[0, 3]).")
    aims = [as_target(one, trace.samples is None) for one in ([request.target] if targets is None else targets)]
    for aim in aims:
        aim.check_batch(trace.batch)
        if type(aim) is Target and targets is not None:
            aim.bound(trace.output)  # many: their scores are looked at when they are explained
        elif not isinstance(aim, Computed):
            start(trace, aim, torch.float32)
    several = list(condition) if isinstance(condition, list | tuple) else [condition]
    if condition is not None and (not several or None in several):
        raise ValueError("condition is a dict or a list of them, one explanation each: there is an empty one.")
    conditions = [replace(request, condition=one, only_through=only_through).bound(trace).condition for one in several]
    families = [requests] if requests else []
    if targets is not None:
        families = [[replace(r, target=aim) for aim in aims] for r in requests]
    if condition is not None:
        each = [one for family in families for one in family]
        families = [[replace(r, condition=one, only_through=only_through) for one in conditions] for r in each]
    return _sweep(trace, families, choice())


def _sweep(trace: Trace, families: Sequence[Sequence[Request]], same_walk: Callable[[], Any]) -> Iterator[Explanation]:
    """One explanation per request. A family is of several prunings, or of several targets or conditions of one."""
    for family in families:
        explanations = _explained(trace, family)
        for _ in family:
            with same_walk():
                trace.check_unchanged()
                explanation = next(explanations)
            yield explanation.warned()


def described(walk: Walk, result: CaseResult, request: Request) -> Explanation:
    """The result of a walk as an explanation for the user."""
    relevance, layers, grown, begin = result
    trace, reference = walk.trace, None
    begin = walk.start if begin is None else begin
    if isinstance(trace, DifferenceTrace) and isinstance(begin.value, DifferenceValue):
        now, before = (begin.score_of(output) for output in begin.value.pair(walk.dtype))
        reference = Against(trace.references.name, now, before[None])
    return Explanation(
        relevance=relevance[0] if trace.single else tuple(relevance),
        logits=replaced(trace.output, torch.Tensor.clone, of=Tensor),  # the user's own
        target=begin.target,
        score=begin.score,
        layers=LayerRelevance(
            {name: layers[name] for name in walk.names if name in layers}, walk.names, request.layers
        ),
        head=trace.head,
        composite=request.composite,
        pruning=request.pruning,
        condition=request.condition,
        only_through=request.only_through,
        reference=reference,
        _ledger=walk.ledger,
        _source=TraceCall(trace, request, choice()),
        _scattered=frozenset(walk.scattered),
        _begun=begin.mass,
        _grown=grown,
        _whole=trace.samples is None,
        _groups=trace.samples if isinstance(trace.samples, Groups) else None,
    )
