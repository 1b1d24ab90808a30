"""What is refused, in one sentence with its remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from plrp.errors import TraceError, UnsupportedOperation, UsageError

from .operations import Family, spelled
from .values import Op, tensors_in

if TYPE_CHECKING:
    from .trace import Trace


def check_inputs(inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """The inputs as a list of tensors (batch, ...), refused where relevance would have no meaning."""
    given: list[Any] = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if not given:
        raise ValueError("No inputs: give a tensor, or a tuple of tensors.")
    for number, x in enumerate(given):
        which = "The input" if len(given) == 1 else f"Input {number}"
        if not isinstance(x, Tensor):
            raise TypeError(f"{which} is {_no_tensor(x)}")
        if not x.is_floating_point():
            raise TypeError(
                f"{which} is {x.dtype}: relevance is defined for real numbers. Convert it with `.float()` (one-hot or "
                "embedded if it holds indices), or bind it: `lambda x: model(x, indices)`."
            )
        if x.dim() == 0 or (x.dim() == 1 and len(given) == 1):
            raise ValueError(f"{which} has no batch axis (shape {tuple(x.shape)}). Add one with `x[None]`.")
        if x.shape[0] != given[0].shape[0]:
            raise ValueError(
                f"{which} holds {x.shape[0]} samples, the first input {given[0].shape[0]}: the first axis of every "
                "input is the batch."
            )
        if not torch.isfinite(x).all():
            bad = "NaN" if torch.isnan(x).any() else "infinite values"
            sample = int((~torch.isfinite(x)).flatten(1).any(1).nonzero()[0]) if x.dim() > 1 else 0
            raise ValueError(
                f"{which} holds {bad} (sample {sample}): relevance would be NaN. Clean or drop the sample."
            )
    return given


def _no_tensor(x: Any) -> str:
    """What was given where a tensor was wanted, and how to come to one."""
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
    return f"a {kind}, not a tensor; convert it with `torch.as_tensor`."


def check_model(model: Any) -> None:
    """Refuse what is no model, and models that hide their operations or whose output is random or depends on the
    batch.
    """
    if isinstance(model, str):
        raise TypeError(f"The model is text, not a module: load it with `plrp.models.load({model!r}).module`.")
    if isinstance(model, type):
        raise TypeError(f"The model is a class, not a module: make one with `{model.__name__}(…).eval()`.")
    if not callable(model):
        held = isinstance(getattr(model, "module", None), nn.Module)
        hint = "give its `.module`" if held else "make or load the module first"
        raise TypeError(f"The model is a {type(model).__name__}, neither a module nor a function: {hint}.")
    if not isinstance(model, nn.Module):
        return
    for name, module in model.named_modules():
        where = f"'{name}'" if name else "The model"
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                f"{where} is a TorchScript module, which hides its operations; give the Python model it was made from."
            )
        if type(module).__name__ == "OptimizedModule" or hasattr(module, "_orig_mod"):
            raise TraceError(
                f"{where} was made by torch.compile, which hides its operations; give `model._orig_mod` instead."
            )
        if getattr(module, "_compiled_call_impl", None) is not None:
            raise TraceError(
                f"{where} was compiled in place, which hides its operations; explain a model that was not compiled."
            )
        if module.training and isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"{where} is a BatchNorm in training mode: its output would depend on the whole batch. "
                "Call `model.eval()`."
            )
        random = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        random = random or (type(module).__name__ in ("StochasticDepth", "DropPath") and getattr(module, "p", 1) != 0)
        if module.training and random:
            raise ValueError(
                f"{where} is a dropout in training mode: explanations would be random. Call `model.eval()`."
            )


def check_device(name: str | torch.device) -> torch.device:
    """The device of a name, refused where there is none such on this machine."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):  # not compiled in, no driver, no such number
        there = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        there += ["mps"] * torch.backends.mps.is_available()
        raise UsageError(f"There is no device '{name}' on this machine; it has {', '.join(there)}.") from None
    return device


@contextmanager
def explain_misfit(model: Any, given: Sequence[Tensor]) -> Iterator[None]:
    """Where a forward pass fails, and the input has another dtype or device than every weight, say that."""
    try:
        yield
    except (TraceError, UnsupportedOperation):
        raise
    except (RuntimeError, TypeError) as error:
        weights = list(model.parameters()) if isinstance(model, nn.Module) else []
        for x in given:
            for what, of_x, of_weights in (
                ("dtype", x.dtype, {w.dtype for w in weights if w.is_floating_point()}),
                ("device", x.device, {w.device for w in weights}),
            ):
                if of_weights and of_x not in of_weights:
                    other = sorted(map(str, of_weights))[0]
                    raise TypeError(
                        f"The input is {of_x}, the model's weights are {other}: convert one of them, "
                        f"`x.to(next(model.parameters()).{what})` ({str(error).strip().splitlines()[0]})."
                    ) from error
        raise


RANDOM = frozenset(  # operations that are active or not
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout batch_norm".split()
)


def refuse_active(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], after: Callable[[], str]) -> None:
    """Refuse dropout and batch statistics that are active on the functional level."""
    if "dropout" in kind:
        p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        if kwargs.get("training", args[2] if len(args) > 2 else True) and p > 0:
            raise ValueError(f"{kind}{after()} is active: explanations would be random. Call `model.eval()`.")
    elif kind == "batch_norm":
        training = kwargs.get("training", args[5] if len(args) > 5 else False)
        mean = kwargs.get("running_mean", args[1] if len(args) > 1 else None)
        if training or mean is None:
            raise ValueError(
                f"batch_norm{after()} uses the statistics of the batch: a sample's explanation would depend on the "
                "others. Call `model.eval()`; a BatchNorm without running statistics cannot be explained."
            )


def check_output(found: Trace, output: Any) -> None:
    """Refuse outputs that do not depend on the input, or have no batch axis."""
    tensors = list(tensors_in(found.output))
    if not tensors:
        raise TraceError(f"The model returned {type(output).__name__} with no tensor in it.")
    if all(found.value_of(t) is None for t in tensors):
        raise TraceError(
            "The output does not depend on the input by any operation that torch shows: a scripted or compiled model, "
            "numpy, or a detour through Python numbers hides it. Give the plain Python model."
        )
    if isinstance(found.output, Tensor) and (found.output.dim() == 0 or found.output.shape[0] != found.batch):
        raise ValueError(
            f"The model returned shape {tuple(found.output.shape)} for a batch of {found.batch}: the first axis of the "
            "output must be the batch. Is the batch axis missing (`x[None]`), or does the model average over it?"
        )


# Operations that cannot hide a NaN or +∞ of their input from the output they give (−∞ hides below a ReLU or a maximum,
# where it neither counts nor holds relevance).
_OPEN_FAMILIES = (Family.LAYER, Family.REARRANGE, Family.WINNER, Family.SPLIT)
_OPEN_KINDS = frozenset(
    "relu dropout dropout1d dropout2d dropout3d batch_norm clone detach contiguous to float".split()
)
_CLOSED_KINDS = frozenset("maximum minimum min amin".split())


def check_finite(found: Trace) -> None:
    """Refuse NaN and infinite activations, naming the layer.

    Looked at are the output, and what enters operations that could hide such a value (sigmoid, clamp, a gate …).
    """
    suspects = list(tensors_in(found.output))
    for op in found.ops:
        if (op.family not in _OPEN_FAMILIES and op.kind not in _OPEN_KINDS) or op.kind in _CLOSED_KINDS:
            suspects += [value.data for value in op.inputs]
    sums = [t.sum().abs() for t in suspects if t.is_floating_point() or t.is_complex()]  # if finite, so are all values
    if not sums or bool(torch.isfinite(torch.stack([s.double() for s in sums])).all()):
        return
    for position, op in enumerate(found.ops):
        for value in op.outputs:
            if not torch.isfinite(value.data).all():
                bad = "NaN" if torch.isnan(value.data).any() else "infinite values"
                named = op if op.is_layer else next((o for o in found.ops[position::-1] if o.is_layer), op)
                where = f"layer '{op.name}'" if op is named else f"'{op.name}' after layer '{named.name}'"
                raise ValueError(
                    f"The activations of {where} hold {bad}: check the weights and the range of the input."
                )


def unsupported(op: Op, ops: Sequence[Op]) -> UnsupportedOperation:
    """The refusal of an operation without a rule."""
    return UnsupportedOperation(f"{unsupported_reason(op, ops)} {remedy(op)}")


def unsupported_reason(op: Op, ops: Sequence[Op]) -> str:
    """What is not supported, and after which layer."""
    before = ops[: ops.index(op)]
    named = next((o.name for o in reversed(before) if o.is_layer), None)
    where = f"after layer '{named}'" if named else "before the first layer"
    why = f": {op.reason}" if op.reason else ""
    return f"No rule for `{spelled(op.function)}` {where}{why}."


def remedy(op: Op) -> str:
    """How to register a rule for an operation."""
    return (
        f"Register one with `plrp.register_rule({spelled(op.function)}, rule)`, where rule is 'pass', 'proportional', "
        "'rearrange', 'winner-take-all', 'constant' or a function (relevance, output, *inputs) -> relevance."
    )
