"""One forward pass, recorded as a tape of operations.

The pass runs under a `TorchFunctionMode`, which sees every torch function that touches a tensor depending on the input.
Nothing is attached to the model: no hooks, no swapped modules or parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from plrp.tables import render_html, render_table

from .head import without_head
from .live_tensors import probe
from .maps import Convolution, Dense
from .norms import batch_norm_affines
from .own_rules import alone
from .recognition import foldable
from .recorder import Recorder, Refusal, check_unwritten
from .refusals import check_finite, check_inputs, check_model, check_output, explain_misfit, not_real
from .samples import Batch, Groups, Samples
from .seam import collection_paused, release
from .values import PRODUCTS, Op, Value, gathered, reached, tensors_in, version

if TYPE_CHECKING:
    import plrp


class Trace:  # more than 15 methods: it is the tape for the walks, and `explain` and `sweep` for the user
    """One forward pass, recorded, ready to be explained any number of times.

    `ops` is the tape in order of execution, `inputs` the values given to the model, `output` its output (before a
    softmax, sigmoid, softplus or exp at the very end, which `head` then names).
    """

    def __init__(self, recorder: Recorder, inputs: list[Value], single: bool, samples: Batch = 0) -> None:
        self.ops = recorder.ops
        self.inputs = inputs
        self.single = single  # whether the model was given one tensor, not a tuple
        self.samples = samples  # the axis of the batch; None: no batch axis; or groups of rows
        self.batch = inputs[0].samples.batch
        self.output: Any = None
        self.returned: Any = None  # the output, with its head
        self.head: str | None = None
        self._recorder = recorder
        self.memory: dict[Any, Any] | None = {}  # a walk's cache for the next explanation; None: no next one
        self.consumed = False
        self._state: list[tuple[Tensor, int | None, Tensor, str]] = []

    @property
    def layers(self) -> list[Op]:
        """The conv and linear layers, in order of execution."""
        return [op for op in self.ops if op.is_layer]

    @property
    def unsupported(self) -> list[Op]:
        """Operations without a rule under any composite that relevance from the output would reach, top down."""
        return min((self.unsupported_under(products) for products in PRODUCTS), key=len)

    def unsupported_under(self, products: str | None) -> list[Op]:
        """Operations without a rule where products of two signals divide in this way (`PRODUCTS`)."""
        return [op for op in self.reached(products) if not op.supported(products)]

    def reached(self, products: str | None = None) -> list[Op]:
        """The operations that relevance passes on its way from the output, top down."""
        return reached(self.ops, self.leaves, products)

    @property
    def leaves(self) -> list[Value]:
        """The values that the output holds."""
        return [v for t in tensors_in(self.output) if (v := self.value_of(t)) is not None]

    def remember_state(self) -> None:
        """Note the state of the weights, which are the user's: see `check_unchanged`."""
        weights = []
        for op in self.ops:
            weights += [(t, op.name) for t in gathered(op.args, op.kwargs) if op.map is None]
            if op.map is not None:
                weights += [(t, op.name) for t in (op.map.raw, op.map.bias) if t is not None]
        self._state = [(tensor, version(tensor), probe(tensor).clone(), name) for tensor, name in weights]

    def check_unchanged(self) -> None:
        """Refuse where a weight was written into since: the tape would be half of another model.

        Torch counts writes, but not those through `.data` or numpy; so some entries of each weight are compared.
        """
        for tensor, before, entries, name in self._state:
            if version(tensor) != before or not torch.equal(probe(tensor), entries):
                raise RuntimeError(f"The weights of '{name}' changed since this trace was made: trace again.")

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if ends():  # Python takes the modules down, and `release` with them
            return
        for op in self.__dict__.get("ops", ()):
            release(op)

    @property
    def now(self) -> Trace:
        """The pass on the explained inputs: this one, or of a difference the first of its two."""
        return self

    def extended(self, compute: Callable[[Any], Tensor]) -> tuple[Tensor, list[Op]]:
        """A tensor that is computed from the output, and the tape with the steps of it at its end."""
        with self.continued() as ops, torch.no_grad():
            return compute(self.output), ops

    @contextmanager
    def continued(self) -> Iterator[list[Op]]:
        """Record the steps of a callable target, on a copy of the tape, which is handed out."""
        recorder = self._recorder
        with recorder.lock:
            tape, recorder.ops = recorder.ops, list(self.ops)
            try:
                with recorder:
                    yield recorder.ops
                _mark_first_layers(recorder.ops)
            finally:
                recorder.ops = tape

    def value_of(self, tensor: Tensor) -> Value | None:
        """The value that a live tensor of the forward pass holds."""
        return self._recorder.value_of(tensor)

    def with_inputs(self, inputs: Tensor | Sequence[Tensor]) -> Trace:
        """The same model recorded on other inputs, with the same rules of the user's own."""
        with alone(self._recorder.rules.given):
            return record(self._recorder.model, inputs, samples=self.samples)

    def of_sample(self, sample: int) -> Trace:
        """The pass of one of the samples alone."""
        self.check_unchanged()
        if self.batch == 1:
            return self
        if isinstance(self.samples, Groups):
            raise ValueError(
                "One graph cannot be taken out of its batch, whose edges the model holds: explain it alone."
            )
        given = [value.data[sample : sample + 1] for value in self.inputs]
        return self.with_inputs(given[0] if self.single else given)

    def explain(
        self,
        *,
        target: Any = None,
        composite: str | plrp.Composite = "auto",
        pruning: plrp.Pruning | None = None,
        layers: bool | Sequence[str] = False,
        condition: plrp.conditions.Condition | None = None,
        only_through: bool = False,
    ) -> plrp.Explanation:
        """Explain this forward pass; see `plrp.explain`. May be called any number of times."""
        import plrp

        request = plrp.request.Request(
            target=target,
            composite=composite,
            pruning=pruning,
            layers=layers,
            condition=condition,
            only_through=only_through,
        )
        return plrp.explanation.explain_trace(self, request).warned()

    def sweep(
        self,
        prunings: Sequence[plrp.Pruning | None],
        *,
        target: Any = None,
        targets: Sequence[Any] | None = None,
        composite: str | plrp.Composite = "auto",
        layers: bool | Sequence[str] = False,
        condition: plrp.conditions.Condition | Sequence[plrp.conditions.Condition] | None = None,
        only_through: bool = False,
    ) -> Iterator[plrp.Explanation]:
        """Explain with one pruning after the other; terms that do not depend on relevance are computed once.

        Prunings that leave few neurons are walked several at a time. A list of `targets`, or of conditions, gives an
        explanation for each of them, of every pruning (`[None]`: of plain LRP), many in one walk; with both, of each
        target under every condition. Wrong arguments are refused here, before the first explanation is asked for.
        """
        import plrp

        options: dict[str, Any] = {"target": target, "composite": composite, "layers": layers}
        options |= {"targets": targets, "condition": condition, "only_through": only_through}
        return plrp.explanation.sweep_trace(self, prunings, **options)

    def rows(self, composite: str | plrp.Composite = "auto") -> list[tuple[str, str, str, str]]:
        """The tape as a table: layer, operation, output shape, rule."""
        import plrp

        inputs, against = (value.data for value in self.inputs), self if self.now is not self else None
        names = plrp.composites.resolve(composite, inputs, against).rule_names(self)
        shown = [(op, "×".join(map(str, op.output.shape))) for op in self.ops if op.outputs]
        return [(op.name, op.kind, shape, names[op]) for op, shape in shown]

    def __repr__(self) -> str:
        return render_table(("layer", "op", "output", "rule"), self.rows())

    def _repr_html_(self) -> str:
        return render_html(("layer", "op", "output", "rule"), self.rows())


def record(
    model: Callable[..., Any],
    inputs: Tensor | Sequence[Tensor],
    frugal: bool = False,
    samples: Batch = 0,
    refused: list[Refusal] | None = None,
    summing: str = "",
) -> Trace:
    """Record one forward pass, operations without a rule included; `frugal`, `refused`, `summing`: see `Recorder`."""
    given = check_inputs(inputs, samples)
    check_model(model)
    recorder = Recorder(model, frugal, refused, summing)
    with torch.inference_mode(False):
        aliases = [x.detach().clone() for x in given]  # a model may write into them
    layouts = samples.layouts if isinstance(samples, Groups) else [Samples.first_axis(len(given[0]))] * len(given)
    if samples is None:
        layouts = [Samples.of_whole(x) for x in given]
    values = [Value(x.detach(), layout) for x, layout in zip(aliases, layouts, strict=True)]
    for alias, value in zip(aliases, values, strict=True):
        value.nonnegative = bool(value.samples.batch) and bool((value.data >= 0).all())
        recorder.live.know(alias, value)
    with torch.inference_mode(False), torch.no_grad(), collection_paused(), recorder:
        with explain_misfit(model, given, lambda: _embeds(recorder)):
            output = model(*aliases)
        if not any(x.is_floating_point() for x in given) and not _embeds(recorder):
            raise not_real("The input", given[0])
        trace = Trace(recorder, values, isinstance(inputs, Tensor), samples)
        trace.returned = output
        trace.output = without_head(output, trace)
    check_output(trace, output)
    check_unwritten(recorder)
    with torch.inference_mode(False), torch.no_grad():
        _fold_batch_norms(trace)
    _mark_first_layers(trace.ops)
    check_finite(trace)
    return trace


def _embeds(recorder: Recorder) -> bool:
    """Whether token ids were looked up, or used as numbers."""
    return any(
        not v.dtype.is_floating_point for op in recorder.ops for v in op.inputs if op.output.dtype.is_floating_point
    )


def _fold_batch_norms(trace: Trace) -> None:
    """Fold each BatchNorm into the conv or linear before it whose output nobody else reads, in private tensors."""
    outputs = {id(trace.value_of(t)) for t in tensors_in(trace.output)}
    while norms := [op for op in trace.ops if foldable(op) and id(op.inputs[0]) not in outputs]:
        for op, (scale, shift) in zip(norms, batch_norm_affines(norms), strict=True):
            below = op.inputs[0].producer
            assert below is not None
            assert isinstance(below.map, Dense | Convolution)
            below.map = below.map.scaled(scale, shift)
            below.folded.append(op.name)
            below.output.producer = None  # nobody needs the input of the BatchNorm
            below.output.readers.clear()
            below.outputs, op.outputs = op.outputs, []
            below.output.producer = below
            release(op)
        trace.ops = trace._recorder.ops = [op for op in trace.ops if op.inputs]


def _mark_first_layers(ops: Sequence[Op]) -> None:
    """Mark the first layers: conv and linear layers with no such layer below them."""
    above: set[int] = set()  # values with a layer below them
    for op in ops:
        below = any(id(v) in above for v in op.inputs)
        op.first = op.is_layer and not below
        if below or op.is_layer:
            above.update(id(v) for v in op.outputs)
