"""Refusals: one sentence each, with its remedy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from plrp.errors import TraceError, UnsupportedOperation, UsageError

from .locating import TAKES_OUT
from .operations import Family, Operation, spelled
from .recognition import NOT_FINITE
from .samples import Batch, Groups
from .values import Op, Value, carries, tensors_in

if TYPE_CHECKING:
    from .trace import Trace


def as_batch(samples: Any) -> Batch:
    """The `samples` of a user: 0, None, or a vector per input that names each row's sample, which become `Groups`."""
    vectors = [samples] if isinstance(samples, Tensor) else samples
    if isinstance(vectors, list | tuple) and vectors and all(isinstance(ids, Tensor) for ids in vectors):
        for ids in vectors:
            if ids.dim() != 1 or ids.dtype not in (torch.int64, torch.int32) or bool((ids < 0).any()):
                raise ValueError(
                    f"samples holds {ids.dtype} values of shape {tuple(ids.shape)}: give the number of each row's "
                    "sample, 0, 1, …, as a vector of whole numbers."
                )
        groups = Groups([ids.long() for ids in vectors])
        if not groups.batch or bool((vectors[0].bincount(minlength=groups.batch) == 0).any()):
            raise ValueError("A sample has no rows in `samples`: number the samples without gaps, from 0.")
        return groups
    if samples is not None and (type(samples) is not int or samples != 0):
        raise ValueError(
            "samples is 0, the axis of the batch, None for a model without one, or a vector that names each row's "
            f"sample, not {samples!r}: put it first."
        )
    return samples


DETECTORS = frozenset(("FasterRCNN", "RetinaNet", "SSD"))
"""torchvision's classes that `plrp.vision.detect` knows, Mask and Keypoint R-CNN as kinds of Faster R-CNN."""
QUANTISED = "Relevance needs real weights: explain the model as it was before its layers were quantised."
EXPORTED = "Of a program of torch.export, explain the Python model that was exported."


def check_inputs(inputs: Tensor | Sequence[Tensor], samples: Batch = 0) -> list[Tensor]:
    """The inputs as a list of tensors (batch, ...), refused where relevance would have no meaning.

    With `samples=None` they are of any shape; with groups, (rows, ...).
    """
    given: list[Any] = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if isinstance(samples, Groups):
        named, rows = [len(ids) for ids in samples.vectors], [x.shape[0] if isinstance(x, Tensor) else 0 for x in given]
        if rows != named:
            raise ValueError(f"samples names {named} rows and the inputs have {rows}: give a vector for each input.")
    if not given:
        raise ValueError("No inputs: give a tensor, or a tuple of tensors.")
    for number, x in enumerate(given):
        which = "The input" if len(given) == 1 else f"Input {number}"
        if not isinstance(x, Tensor):
            raise TypeError(f"{which} is {_no_tensor(x)}")
        if not x.is_floating_point() and x.dtype not in (torch.int64, torch.int32):  # token ids
            raise not_real(which, x)
        if samples == 0 and (x.dim() == 0 or (x.dim() == 1 and len(given) == 1)):
            raise ValueError(
                f"{which} has no batch axis (shape {tuple(x.shape)}). Add one with `x[None]`, or say `samples=None` if "
                "the model takes none."
            )
        if samples == 0 and x.shape[0] != given[0].shape[0]:
            raise ValueError(
                f"{which} holds {x.shape[0]} samples, the first input {given[0].shape[0]}: the first axis of every "
                "input is the batch."
            )
        if not math.isfinite(float(x.detach().sum())) and not torch.isfinite(x).all():  # the sum shows it at less cost
            bad = "NaN" if torch.isnan(x).any() else "infinite values"
            if samples != 0:
                raise ValueError(f"{which} holds {bad}: relevance would be NaN. Clean it.")
            sample = int((~torch.isfinite(x)).flatten(1).any(1).nonzero()[0]) if x.dim() > 1 else 0
            raise ValueError(
                f"{which} holds {bad} (sample {sample}): relevance would be NaN. Clean or drop the sample."
            )
    return given


def not_real(which: str, x: Tensor) -> TypeError:
    """The refusal of an input that holds no real numbers, nor token ids that the model looks up."""
    return TypeError(
        f"{which} is {x.dtype}: relevance is defined for real numbers, and for token ids that the model looks up in an "
        "embedding. Convert it with `.float()` (one-hot if it holds indices), or bind "
        "it: `lambda x: model(x, indices)`."
    )


def _no_tensor(x: Any) -> str:
    """A description of an input that is not a tensor, and how to make a tensor of it."""
    kind = type(x).__name__
    if isinstance(x, str | Path):
        kind, file = ("text" if isinstance(x, str) else "a path"), repr(str(x))
        return (
            f"{kind}, not a tensor. Explain a photograph with `plrp.vision.explain_photograph({file}, model)`, or read "
            f"it with `plrp.vision.network_input(plrp.vision.read_photograph({file}))[None]`."
        )
    if hasattr(x, "getbands"):  # a picture of Pillow's, which the core does not import
        return (
            f"a picture ({kind}), not a tensor: turn it into one by the transforms that the model was trained with, or "
            "give the file's name to `plrp.vision.explain_photograph`."
        )
    if isinstance(x, nn.Module):
        return f"a {kind}, a module: the model comes first, plrp.explain(model, inputs)."
    if isinstance(x, Mapping):  # of Hugging Face's tokenizers, for example
        first = next(map(str, x), "name")
        return (
            f"a {kind}, not a tensor: give the one that is explained, and take the rest in a function, for example "
            f"`plrp.explain(lambda x: model({first}=x), batch[{first!r}], …)`."
        )
    if hasattr(x, "edge_stores"):  # of PyTorch Geometric, which the core does not import
        return (
            f"a {kind}, not a tensor: give the features (of each kind of nodes, in a tuple), and take the edges in a "
            "function, for example `plrp.explain(lambda x: model(x, data.edge_index), data.x, samples=None, …)`."
        )
    return f"a {kind}, not a tensor; convert it with `torch.as_tensor`."


def check_model(model: Any) -> None:
    """Refuse objects that are no model, and models that hide their operations or whose output is random or depends
    on the batch.
    """
    if isinstance(model, str):
        raise TypeError(f"The model is text, not a module: load it with `plrp.models.load({model!r}).module`.")
    if isinstance(model, type):
        raise TypeError(f"The model is a class, not a module: make one with `{model.__name__}(…).eval()`.")
    if isinstance(model, Tensor) or (isinstance(model, list | tuple) and model and isinstance(model[0], Tensor)):
        raise TypeError("The model is a tensor: the model comes first, plrp.explain(model, inputs).")
    if type(model).__name__ == "ExportedProgram":
        raise TypeError("The model is a program of torch.export: explain the Python model that was exported.")
    if DETECTORS.intersection(c.__name__ for c in type(model).__mro__ if "models.detection" in c.__module__):
        raise TypeError(
            "The model is a detector, which returns boxes: find them by `found = plrp.vision.detect(model, picture)`, "
            "and explain one by `plrp.explain(found.boxes[0].scores, found.inputs, target=found.boxes[0].label)`."
        )
    if not callable(model):
        wraps = isinstance(getattr(model, "module", None), nn.Module)
        hint = "give its `.module`" if wraps else "make or load the module first"
        raise TypeError(f"The model is a {type(model).__name__}, neither a module nor a function: {hint}.")
    if not isinstance(model, nn.Module):
        return
    pending, seen = [model], {id(model)}
    while pending:
        module = pending.pop()
        own = module.__dict__  # cheaper than attributes, and enough for most modules
        children = own.get("_modules") or {}
        plain = own.get("training") is False and own.get("_compiled_call_impl") is None
        if not plain or "_orig_mod" in children or type(module).__name__ == "OptimizedModule":
            _check_module(model, module)
        for child in children.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                pending.append(child)


def _check_module(model: nn.Module, module: nn.Module) -> None:
    """Refuse a module of a model that hides its operations, or is random in training mode."""
    kind, fault = type(module).__name__, ""
    error: type[Exception] = TraceError
    if isinstance(module, torch.jit.ScriptModule):
        if module is model:  # inside one it matters when it is called
            fault = "is a TorchScript module, which hides its operations; give the Python model it was made from."
    elif kind == "OptimizedModule" or "_orig_mod" in module._modules:
        fault = "was made by torch.compile, which hides its operations; give `model._orig_mod` instead."
    elif getattr(module, "_compiled_call_impl", None) is not None:
        fault = "was compiled in place, which hides its operations; explain a model that was not compiled."
    elif module.training:
        error = ValueError
        drops = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            fault = "is a BatchNorm in training mode: its output would depend on the whole batch. Call `model.eval()`."
        elif drops or (kind in ("StochasticDepth", "DropPath") and getattr(module, "p", 1) != 0):
            fault = "is a dropout in training mode: explanations would be random. Call `model.eval()`."
    if fault:
        name = next(path for path, one in model.named_modules() if one is module)
        where = f"'{name}'" if name else "The model"
        raise error(f"{where} {fault}")


def check_device(name: str | torch.device) -> torch.device:
    """The device of a name, refused where this machine does not have it."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):  # not compiled in, no driver, no such number
        there = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        there += ["mps"] * torch.backends.mps.is_available()
        raise UsageError(f"There is no device '{name}' on this machine; it has {', '.join(there)}.") from None
    return device


def device_of(model: Any, asked: str | torch.device | None = None) -> torch.device:
    """The device asked for, else that of the model's first parameter or buffer; the CPU where it has none."""
    if asked is not None:
        return torch.device(asked)
    tensors = chain(model.parameters(), model.buffers()) if isinstance(model, nn.Module) else ()
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


@contextmanager
def explain_misfit(model: Any, given: Sequence[Tensor], embeds: Callable[[], bool]) -> Iterator[None]:
    """Where a forward pass fails, and the input has another dtype or device than every weight, or its channels last,
    say that.

    `embeds`: whether the model has looked up token ids.
    """
    try:
        yield
    except (TraceError, UnsupportedOperation):
        raise
    except (RuntimeError, TypeError) as error:
        if type(error).__module__.startswith("torch._dynamo"):
            raise TraceError(
                "A step of the model is compiled while it runs (`torch.cond`, `torch.compile`), which hides its "
                "operations: write it in plain Python, with `if` or `for`."
            ) from error
        if not any(x.is_floating_point() for x in given) and not embeds():
            raise not_real("The input", given[0]) from error
        weights = list(model.parameters()) if isinstance(model, nn.Module) else []
        for x in given:
            for what, of_x, of_weights in (
                ("dtype", x.dtype, {w.dtype for w in weights if w.is_floating_point() == x.is_floating_point()}),
                ("device", x.device, {w.device for w in weights}),
            ):
                if of_weights and of_x not in of_weights:
                    other = sorted(map(str, of_weights))[0]
                    raise TypeError(
                        f"The input is {of_x}, the model's weights are {other}: convert one of them, "
                        f"`x.to(next(model.parameters()).{what})` ({str(error).strip().splitlines()[0]})."
                    ) from error
        modules = model.modules() if isinstance(model, nn.Module) else ()
        channels = next((m.in_channels for m in modules if isinstance(m, nn.Conv2d)), 0)
        for x in given:
            if x.dim() == 4 and x.shape[3] == channels != x.shape[1] and channels in (1, 3, 4):
                raise ValueError(
                    f"The input {tuple(x.shape)} looks like (batch, height, width, channel), and the model wants the "
                    "channels first: `x.permute(0, 3, 1, 2)`."
                ) from error
        raise


def refuse_active(
    operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], after: Callable[[], str]
) -> None:
    """Refuse dropout and batch statistics that are active on the functional level."""
    if operation.family is Family.AFFINE:
        training = kwargs.get("training", args[5] if len(args) > 5 else False)
        mean = kwargs.get("running_mean", args[1] if len(args) > 1 else None)
        if training or mean is None:
            raise ValueError(
                f"batch_norm{after()} uses the statistics of the batch: a sample's explanation would depend on the "
                "others. Call `model.eval()`; a BatchNorm without running statistics cannot be explained."
            )
    else:
        p, position, default = kwargs.get("p", args[1] if len(args) > 1 else 0.5), 2, True
        if operation.kind == "rrelu":  # draws slopes
            p, position, default = 1.0, 3, False
        if kwargs.get("training", args[position] if len(args) > position else default) and p > 0:
            raise ValueError(
                f"{operation.kind}{after()} is active: explanations would be random. Call `model.eval()`; a "
                "function needs `training=self.training`, too."
            )


def check_output(trace: Trace, output: Any) -> None:
    """Refuse outputs that do not depend on the input, or have no batch axis."""
    tensors = list(tensors_in(trace.output))
    if not tensors:
        raise TraceError(f"The model returned {type(output).__name__} with no tensor in it.")
    if not any(map(carries, tensors)):
        kinds = ", ".join(sorted({str(t.dtype) for t in tensors}))
        raise TraceError(
            f"The model returns {kinds} values, decisions or indices, which no relevance can start from: let it return "
            "the scores that they are taken from (the logits, not their argmax)."
        )
    if all(trace.value_of(t) is None for t in tensors):
        raise TraceError(_independent(trace, tensors))
    if trace.samples is None or not isinstance(trace.output, Tensor):
        return
    if trace.output.dim() == 0 or trace.output.shape[0] != trace.batch:
        raise ValueError(
            f"The model returned shape {tuple(trace.output.shape)} for a batch of {trace.batch}: the first axis of the "
            "output must be the batch. Is the batch axis missing (`x[None]`), does the model average over it, or has "
            "it none (`samples=None`)?"
        )


def _independent(trace: Trace, tensors: Sequence[Tensor]) -> str:
    """Why no output depends on the input, as far as one can see."""
    if not any(t.numel() for t in tensors):
        return (
            "The model returned empty tensors only: it found nothing in this input (no boxes, say), so there is no "
            "score to explain. Give an input in which it finds something, or explain the scores before the selection."
        )
    recorder = trace._recorder
    if recorder.live.declared(tensors):
        keys = [key for key, rule in recorder.rules.given.items() if rule == "constant" and key in recorder.rules.seen]
        named = ", ".join(f"'{key}'" if isinstance(key, str) else f"`{spelled(key)}`" for key in keys)
        return (
            f"The output is computed from constants alone, since the rule 'constant' holds for {named}: no relevance "
            "reaches the input. Give another rule there, or leave it out."
        )
    if trace.ops:
        last = trace.ops[-1]
        return (
            "The output does not depend on the input by any operation that torch shows; the last one that does is "
            f"`{spelled(last.function)}` ('{last.name}'). A later step hides it (a scripted or compiled function, "
            "numpy, Python numbers, another thread) or returns constants: explain the model up to there."
        )
    modules = recorder.model.modules() if isinstance(recorder.model, nn.Module) else ()
    if any("quantized" in type(module).__module__ for module in modules):
        return f"The output depends on the input by quantised layers alone. {QUANTISED}"
    return (
        "The output does not depend on the input by any operation that torch shows: a scripted or compiled model, "
        "numpy, or a detour through Python numbers hides it. Give the plain Python model."
    )


# Families that show a NaN or +∞ of their input in their output, unless a trait says otherwise. (−∞ vanishes below a
# ReLU or a maximum, where it neither counts nor holds relevance.)
_OPEN_FAMILIES = (Family.LAYER, Family.REARRANGE, Family.WINNER, Family.SPLIT, Family.SOFTMAX, Family.HEAD)


def _hides_nan(op: Op) -> bool:
    """Whether a NaN or +∞ that an operation reads may be missing in its output: a sigmoid, a clamp, a gate …"""
    hides = op.traits.hides_nan
    return op.family not in _OPEN_FAMILIES if hides is None else hides


def check_finite(trace: Trace) -> None:
    """Refuse NaN and infinite activations, naming the layer.

    Checked are the output, and the inputs of operations that could hide them.
    """
    hidden = [(value, op) for op in trace.ops if _hides_nan(op) for value in op.inputs]
    finite = all(map(_finite, tensors_in(trace.output)))
    if finite and all(_finite(value.data) or _finite(_unmasked(value, op)) for value, op in hidden):
        return
    for position, op in enumerate(trace.ops):
        for value in op.outputs:
            if not torch.isfinite(_unmasked(value)).all():
                bad = "NaN" if torch.isnan(value.data).any() else "infinite values"
                named = op if op.is_layer else next((o for o in trace.ops[position::-1] if o.is_layer), op)
                where = f"layer '{op.name}'" if op is named else f"'{op.name}' after layer '{named.name}'"
                raise ValueError(
                    f"The activations of {where} hold {bad}: check the weights and the range of the input."
                )


def _finite(t: Tensor) -> bool:
    """Whether a tensor's sum is finite: then so are its entries. It may overflow, so that False proves nothing."""
    return not carries(t) or math.isfinite(abs(t.sum().item()))


def _unmasked(value: Value, reader: Op | None = None) -> Tensor:
    """A tensor without the −∞ of an attention's mask, which a softmax takes out."""
    reads = value.readers if reader is None else [reader]
    op = value.producer
    masked = op is not None and op.traits.elementwise and op.operation.family in (Family.SPLIT, Family.REARRANGE)
    if masked or any(op.family is Family.SOFTMAX for op in reads):
        return value.data.masked_fill(value.data == -torch.inf, 0.0)
    return value.data


def unsupported(op: Op, ops: Sequence[Op]) -> UnsupportedOperation:
    """The refusal of an operation without a rule: its name, the layer before it, the reason and the remedy."""
    named = next((o.name for o in reversed(ops[: ops.index(op)]) if o.is_layer), None)
    where = f"after layer '{named}'" if named else "before the first layer"
    why = f": {op.reason}" if op.reason else ""
    return UnsupportedOperation(f"No rule for `{spelled(op.function)}` ('{op.name}') {where}{why}. {_remedy(op)}")


def _remedy(op: Op) -> str:
    """The remedy for an operation without a rule: how to give it one, and which rule could be right."""
    if op.reason == TAKES_OUT:
        return "Write this step for the whole batch at once, or explain one sample at a time."
    if op.mixes:
        return (
            "Explain one sample at a time; if the model has no batch axis (a graph of nodes, say), explain it with "
            "`samples=None`, or several graphs with `samples=` the vector of each node's graph."
        )
    if spelled(op.function).startswith("quantized."):
        return QUANTISED
    if spelled(op.function).startswith("aten."):
        return EXPORTED
    if op.reason == NOT_FINITE:
        return (
            "Write a function that is finite at 0 (log1p for log), or give this call a function (relevance, output, "
            f"input) -> relevance of the input as its rule with `plrp.explain(…, rules={{'{op.name}': rule}})`."
        )
    if "sparse" in op.reason:
        return "Make it dense with `.to_dense()`, or gather and scatter rows (`index_select`, `index_add`)."
    if "complex" in op.reason:
        return "Write it with real tensors: the real and the imaginary part by themselves."
    # A function that plrp knows may have its rule in other calls: then this call alone needs another.
    key, what = (f"'{op.name}'", "this call") if op.reason else (spelled(op.function), "it")
    give = f"Give {what} a rule with `plrp.explain(…, rules={{{key}: rule}})`, or `with plrp.rules_for(…)`; the rule is"
    if op.family in (Family.PRODUCT, Family.SOFTMAX):
        give = f"Explain it with composite='attnlrp' or 'cp-lrp'. {give}"
    if len(op.inputs) > 1 or len(op.outputs) > 1:
        names = ", ".join("abcdefgh"[: len(op.inputs)]) if len(op.inputs) <= 8 else "*inputs"
        several = "; relevance and output are tuples, one of each output" if len(op.outputs) > 1 else ""
        return f"{give} a function (relevance, output, {names}) -> the relevance of each input{several}."
    if op.inputs and op.outputs and op.inputs[0].shape == op.output.shape:
        which = "'pass' if it acts on each element by itself and is 0 at 0, 'proportional' if it is linear in its input"
    else:
        which = (
            "'proportional' if it is linear in its input, 'rearrange' if it moves elements, 'winner-take-all' if it "
            "selects some"
        )
    return f"{give} {which}, or a function (relevance, output, input) -> relevance of the input."
