"""Plans: from a model's first pass it is remembered how each entry of the tape was recognised, for the passes after it.

A pass with a plan is recorded like any other, every entry is made anew. What is taken from the plan is the outcome of
the search for family, signal, layouts and signs, where nothing that this search reads can differ: all entries so far
are as in the plan; the function, its Python arguments, shapes and dtypes of its tensors are the same; and the search
reads no entry of a tensor. With the first difference the plan is left, and the recording goes on without one: the model
never runs twice for it. `docs/decisions.md` states the guard in full.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plrp.tape.live_tensors import snapshot
from plrp.tape.locating import decided_by_shapes
from plrp.tape.operations import LOOKS, Family
from plrp.tape.recognition import dispensable, foldable, is_nonnegative, reads_numbers, recognise_layer
from plrp.tape.recorder import Recorder
from plrp.tape.seam import run_noting_winners
from plrp.tape.values import Call, Op, Value, carries, gathered
from plrp.tape.verification import known_of

MOST_PLANS = 16  # of one model: for so many shapes of its inputs
REMADE = 3  # times that a plan is made anew after it was left
_EXACT = (int, float, bool, str, complex, type(None), type(Ellipsis), torch.dtype, torch.device, torch.memory_format)
_TENSORS = (Tensor, nn.Parameter)
_ANY = object()  # fits nothing
_VALUE, _CONSTANT, _PLAIN, _SEVERAL, _SLICE = range(5)


def _described(value: Value) -> tuple[Any, ...]:
    """A value of the tape, apart from its numbers."""
    return value.samples, value.shape, value.dtype, value.nonnegative, value.above_layer


def _alike(planned: tuple[Any, ...], value: Value) -> bool:
    """Whether another pass's value is the same but for its numbers."""
    mine, theirs = planned[0], value.samples
    same = (mine.batch, mine.mixed, mine.whole) == (theirs.batch, theirs.mixed, theirs.whole) and mine.same(theirs)
    return same and planned[1:] == _described(value)[1:]


class PlannedEntry(NamedTuple):
    """One entry of a tape, apart from its tensors."""

    function: Any
    args: list[Any]  # forms, see `_form`
    kwargs: dict[str, Any]
    fields: dict[str, Any]  # as they were recognised
    roles: tuple[Any, ...]  # the places of inputs, signal and gated, and the class of its map
    outputs: list[tuple[Any, ...]]
    forgets: bool  # its input, which nobody else needs
    ready: bool = False  # whether another pass may take all this from the plan
    signed: bool = False  # whether the sign of its output depends on numbers


class RecordingPlan:
    """The steps of one pass of a model, and how often it was made anew."""

    def __init__(self, steps: list[PlannedEntry], made: int) -> None:
        self.steps, self.made = steps, made
        self.left = False  # whether a pass has gone another way


class PlannedRecorder(Recorder):
    """A recorder that follows the plan of an earlier pass as long as it fits, and makes one where there is none."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._plan: RecordingPlan | None = None
        self._making: list[PlannedEntry] | None = None
        self._values: list[Value] = []
        self._places: dict[int, int] = {}  # of values, by their ids
        self._same = 0  # entries that are known to be those of the plan
        self._begun, self._made = False, 0
        self._key: tuple[Any, ...] = ()

    def __enter__(self) -> PlannedRecorder:
        super().__enter__()
        if not self._begun:
            self._begin()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        if self.modules.depth:
            return
        if self._making is not None and exception[:1] == (None,) and len(self._making) == len(self.ops):
            plans = known_of(self.model)
            if self._made or sum(isinstance(one, RecordingPlan) for one in plans.values()) < MOST_PLANS:
                plans[self._key] = RecordingPlan(self._making, self._made + 1)
        self._plan = self._making = None  # the steps of a target are recorded afresh
        self._values, self._places = [], {}

    def _begin(self) -> None:
        """Look for a plan; without one, make one."""
        self._begun = True
        usual = not (self.rules.given or self.modules.scripted or self.summing) and self.refused is None
        if not usual or not all(v.data.is_cpu and not v.samples.vectors for v in self.inputs):
            return
        self._key = "plan", self.frugal, *((v.shape, v.dtype, v.samples.whole, v.nonnegative) for v in self.inputs)
        plan = known_of(self.model).get(self._key)
        self._made = 0 if plan is None else plan.made
        if plan is not None and (not plan.left or plan.made == REMADE):
            self._plan = plan
        else:
            self._making = []
        for value in self.inputs:
            self._know(value)

    def _know(self, value: Value) -> None:
        self._places[id(value)] = len(self._values)
        self._values.append(value)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """As the recorder does; an entry that the plan has is not recognised once more."""
        if self._plan is None or function in LOOKS or self.modules.inside is not None:
            return super().__torch_function__(function, types, args, kwargs)
        steps = self._plan.steps
        while self._same < len(self.ops):
            if not self._as_planned(self.ops[self._same]):
                return super().__torch_function__(function, types, args, kwargs)
        step = steps[self._same] if self._same < len(steps) else None
        if step is None or not step.ready or step.function != function:
            return super().__torch_function__(function, types, args, kwargs)
        tensors: list[Tensor] = []
        values: list[Value] = []
        lifted = self._fitted(step, args, kwargs or {}, tensors, values)
        if lifted is None:
            return super().__torch_function__(function, types, args, kwargs)
        result, winners = run_noting_winners(function, args, kwargs or {})
        outputs = [result] if result.__class__ is Tensor else [t for t in gathered(result) if carries(t)]
        entry: Op | None
        fresh = {*map(id, outputs)}.isdisjoint(map(id, tensors))
        if fresh and list(map(_kind, outputs)) == [(*planned[1:3], True) for planned in step.outputs]:
            entry = self._entry(step, lifted, tensors, values, outputs)
        else:
            call = Call(function, step.fields["operation"], args, kwargs or {}, tensors, values)
            entry = self._record(call, result)
        if entry is not None:
            entry.winners = winners
        return result

    # --- following a plan ---------------------------------------------------------------------------------------------

    def _as_planned(self, op: Op) -> bool:
        """Whether an entry that was recognised afresh is that of the plan; if not, the plan is left."""
        assert self._plan is not None
        step = self._plan.steps[self._same] if self._same < len(self._plan.steps) else None
        if step is None or not self._is_step(op, step):
            self._plan.left, self._plan = True, None  # the next pass makes a new one
            return False
        for value in op.outputs:
            self._know(value)
        self._same += 1
        return True

    def _is_step(self, op: Op, step: PlannedEntry) -> bool:
        """Whether an entry is this step, apart from its tensors. (A replay may be a function made for one call.)"""
        planned, mine = step.fields["operation"], op.operation
        if (*planned[:2], *planned[3:]) != (*mine[:2], *mine[3:]) or op.function != step.function:
            return False
        if any(getattr(op, name) != step.fields[name] for name in _KEPT[1:]) or self._roles(op) != step.roles:
            return False
        if len(op.outputs) != len(step.outputs) or not all(map(_alike, step.outputs, op.outputs)):
            return False
        return self._fitted(step, op.args, op.kwargs, [], []) is not None

    def _fitted(
        self, step: PlannedEntry, args: Any, kwargs: dict[str, Any], tensors: list[Tensor], values: list[Value]
    ) -> tuple[Any, Any] | None:
        """Arguments with values in the place of tensors, if they fit those of a step; tensors and values are noted."""
        if len(args) != len(step.args) or kwargs.keys() != step.kwargs.keys():
            return None
        lifted = [self._lift(form, item, tensors, values) for form, item in zip(step.args, args, strict=True)]
        named = {key: self._lift(step.kwargs[key], item, tensors, values) for key, item in kwargs.items()}
        return None if any(one is _ANY for one in (*lifted, *named.values())) else (tuple(lifted), named)

    def _lift(self, form: Any, item: Any, tensors: list[Tensor], values: list[Value]) -> Any:
        """One argument for the tape; `_ANY` where it does not fit."""
        what, kind, known = form
        if what == _VALUE:
            value = item if item.__class__ is Value else None
            if value is None and item.__class__ in _TENSORS:
                value = self.value_of(item)
                tensors.append(item)
            if value is None or value is not self._values[known]:
                return _ANY
            if value not in values:
                values.append(value)
            return value
        if item.__class__ is not kind and what != _CONSTANT:
            return _ANY
        if what == _PLAIN:
            return item if item == known else _ANY
        if what == _CONSTANT:
            if item.__class__ not in _TENSORS or self.live.value(item) is not None:
                return _ANY
            tensors.append(item)
            fits = item.dtype is kind and item.shape == known and item.layout is torch.strided
            return item.detach() if fits else _ANY
        parts = (item.start, item.stop, item.step) if what == _SLICE else item
        if len(parts) != len(known):
            return _ANY
        lifted = [self._lift(one, part, tensors, values) for one, part in zip(known, parts, strict=True)]
        if any(one is _ANY for one in lifted):
            return _ANY
        return slice(*lifted) if what == _SLICE else kind(lifted)

    def _entry(
        self, step: PlannedEntry, lifted: Any, tensors: list[Tensor], values: list[Value], outputs: list[Tensor]
    ) -> Op:
        """The entry of a step, with the tensors of this pass: what `Recorder.write` would have made."""
        op = Op.__new__(Op)
        op.__dict__.update(step.fields)
        op.function, (op.args, op.kwargs) = step.function, lifted
        op.inputs, op.outputs, op.sums, op.folded = values, [], {}, []
        _, signal, gated, layer = step.roles
        op.signal, op.gated = (None if place is None else self._values[place] for place in (signal, gated))
        op.map = op.winners = None
        others = [t for t in tensors if t.__class__ is Tensor] if len(tensors) > len(values) else []
        alien = list(filter(self._alien, others)) if len(tensors) > 1 else []
        op.fresh, op.suspect = bool(alien), self._numbers_suspect or not all(map(self.live.independent, alien))
        for planned, tensor in zip(step.outputs, outputs, strict=True):
            value = Value(snapshot(tensor), planned[0], op)
            value.nonnegative, value.above_layer = planned[3:]
            op.outputs.append(value)
            self.live.know(tensor, value)
            self._know(value)
        if layer is not type(None):
            recognise_layer(op)
        op.name = self.names.name(op.kind, tensors)
        self.rules.seen.add(op.name)
        for value in values:
            value.readers.append(op)
        self.ops.append(op)
        self._same += 1
        if step.signed and is_nonnegative(op) != op.output.nonnegative:
            for value in op.outputs:
                value.nonnegative = not value.nonnegative
            self._plan = None
        if step.forgets:
            values[0].forget()
        return op

    # --- making a plan ------------------------------------------------------------------------------------------------

    def _record(self, call: Call, result: Any) -> Op | None:
        """As the recorder does; the plan notes whether another pass may take the entry from it."""
        op = super()._record(call, result)
        if op is None or self._making is None or op.family is Family.UNSUPPORTED:
            return op
        tensors, values = [t for t in call.tensors if self.live.value(t) is None], (*op.inputs, *op.outputs)
        plain = op.function is call.function and op.inputs == call.values and op.operation is call.operation
        plain = plain and all(v.dtype.is_floating_point and not v.samples.mixed for v in values)
        plain = plain and all(t.is_floating_point() or t.dtype is torch.bool for t in tensors)
        if plain and not reads_numbers(op, tensors) and decided_by_shapes(op):
            step = self._making[-1]
            kwargs = {key: self._form(item) for key, item in call.kwargs.items()}
            ready = step.args == list(map(self._form, call.args)) and step.kwargs == kwargs
            self._making[-1] = step._replace(ready=ready, signed=bool(tensors) and op.map is None)
        return op

    def write(self, call: Call, outputs: list[Tensor]) -> Op | None:
        """As the recorder does; every entry is noted in the plan that is being made."""
        op = super().write(call, outputs)
        if op is not None and self._making is not None:
            args, kwargs = list(map(self._form, op.args)), {key: self._form(item) for key, item in op.kwargs.items()}
            forgets = foldable(op) or (self.frugal and dispensable(op))
            fields, described = {name: getattr(op, name) for name in _KEPT}, list(map(_described, op.outputs))
            self._making.append(PlannedEntry(op.function, args, kwargs, fields, self._roles(op), described, forgets))
            for value in op.outputs:
                self._know(value)
        return op

    def _form(self, item: Any) -> Any:
        """What an argument must be in another pass."""
        kind = item.__class__
        value = self.live.value(item) if kind in _TENSORS else item
        if value.__class__ is Value and id(value) in self._places:
            return _VALUE, None, self._places[id(value)]
        if kind in _TENSORS and value is None:
            return _CONSTANT, item.dtype, item.shape
        if kind in _EXACT:
            return _PLAIN, kind, item
        if kind is tuple or kind is list or kind is torch.Size:
            return _SEVERAL, kind, [self._form(one) for one in item]
        if kind is slice:
            return _SLICE, kind, [self._form(one) for one in (item.start, item.stop, item.step)]
        return _PLAIN, object, _ANY

    def _roles(self, op: Op) -> tuple[Any, ...]:
        signal, gated, *inputs = (v and self._places.get(id(v), -1) for v in (op.signal, op.gated, *op.inputs))
        return inputs, signal, gated, type(op.map)


_KEPT = ("operation", "family", "rule", "reason", "mixes", "by_difference", "declared")


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    """What the plan knows of a result."""
    return tensor.shape, tensor.dtype, tensor.layout is torch.strided and tensor.is_cpu
