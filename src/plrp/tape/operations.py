"""What each torch function is to a relevance that walks through it backwards.

The tape sees functions, not modules: `F.relu`, `torch.relu`, `Tensor.relu_` are one operation, `relu`. This file is the
dictionary: function → (kind, family). The family says how relevance passes; `passing.py` states the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Family(Enum):
    """How relevance passes an operation."""

    LAYER = "layer"  # conv or linear: the composite chooses the rule
    PASS = "pass"  # element by element: relevance stays where it is
    SPLIT = "proportional"  # sums and means: in proportion to what each input contributed
    WINNER = "winner-take-all"  # maxima: all to the winner
    REARRANGE = "rearrange"  # views, slices, concatenations: relevance follows the elements
    AFFINE = "affine"  # norms with their statistics held constant: ε-rule on scale and shift
    GATE = "gate"  # products: the signal takes all
    PRODUCT = "product"  # products of two signals: the composite says how they divide
    SOFTMAX = "softmax"  # fine at the very end and inside gates; else the composite has a rule for it, or not
    HEAD = "head"  # log-softmax: fine at the very end, else without a rule
    EMBEDDING = "embedding"  # a row per token: what all channels of a row hold goes to its token
    CONSTANT = "constant"  # the result does not depend on the values of the input
    UNSUPPORTED = "unsupported"


class Operation(NamedTuple):
    """A torch function as plrp knows it."""

    kind: str
    family: Family
    replay: Callable[..., Any]  # the same operation, out of place
    inplace: bool = False
    rule: Callable[..., Any] | None = None  # a user's own function, see `own_rules.py`
    registered: bool = False  # whether the rule is a user's own


_KINDS: dict[Family, str] = {
    Family.LAYER: """conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear""",
    Family.PASS: """relu relu6 leaky_relu prelu rrelu elu selu celu gelu silu mish hardswish hardtanh hardsigmoid
        hardshrink softshrink tanhshrink sigmoid expit logsigmoid tanh softplus softsign threshold clamp clip clamp_min
        clamp_max dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout
        exp exp2 expm1 log log2 log10 log1p sqrt square pow abs absolute erf neg negative
        normalize local_response_norm detach clone contiguous to float double half bfloat16 type type_as cpu cuda
        requires_grad_ alias positive nan_to_num""",
    Family.SPLIT: """add sub subtract rsub mean sum avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
        adaptive_avg_pool2d adaptive_avg_pool3d cumsum fold col2im index_add scatter_add""",
    Family.WINNER: """max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices
        max_pool3d_with_indices adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
        adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices
        max amax maximum min amin minimum fractional_max_pool2d fractional_max_pool3d""",
    Family.REARRANGE: """view reshape flatten unflatten squeeze unsqueeze permute transpose t swapaxes swapdims movedim
        moveaxis T mT H mH adjoint ravel view_as reshape_as expand expand_as broadcast_to repeat repeat_interleave tile
        flip fliplr flipud roll rot90 narrow select chunk split split_with_sizes tensor_split hsplit vsplit dsplit
        unbind
        cat concat concatenate stack hstack vstack dstack column_stack getitem setitem pad constant_pad_nd
        pixel_shuffle pixel_unshuffle channel_shuffle unfold im2col gather index_select take_along_dim take
        masked_select masked_fill where tril triu diagonal diag sort topk index_fill copy index_copy scatter
        masked_scatter real resolve_conj as_strided data upsample_nearest atleast_1d atleast_2d atleast_3d glu""",
    Family.AFFINE: """batch_norm layer_norm group_norm instance_norm rms_norm""",
    Family.GATE: """mul multiply div divide true_divide matmul mm bmm mv addmm baddbmm einsum tensordot""",
    Family.SOFTMAX: """softmax _safe_softmax""",
    Family.HEAD: """log_softmax softmin""",
    Family.EMBEDDING: """embedding""",
    Family.CONSTANT: """zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones
        new_empty new_full new_tensor zero fill bernoulli""",
}

# Python's operators and other spellings, as the tape sees them.
_SPELLINGS: dict[str, str] = {
    "__add__": "add",
    "__radd__": "add",
    "__sub__": "sub",
    "__rsub__": "rsub",
    "__mul__": "mul",
    "__rmul__": "mul",
    "__truediv__": "div",
    "__div__": "div",
    "__matmul__": "matmul",
    "__neg__": "neg",
    "__pow__": "pow",
    "__abs__": "abs",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "concat": "cat",
    "concatenate": "cat",
    "clip": "clamp",
    "negative": "neg",
    "absolute": "abs",
    "expit": "sigmoid",
    "_safe_softmax": "softmax",
}

# Of torchvision: a map (first argument) read inside boxes (second), which may depend on the input and are only places.
_POOLS_OF_BOXES: dict[str, Family] = {
    "roi_align": Family.SPLIT,
    "ps_roi_align": Family.SPLIT,
    "ps_roi_pool": Family.SPLIT,
    "roi_pool": Family.WINNER,
}

_NAMESPACES: tuple[Any, ...] = (torch, torch.Tensor, F, torch._C._nn, torch.special)

# Functions through which a value leaves the tape: what comes back is a Python number or array.
LEAVES: frozenset[Any] = frozenset(
    getattr(torch.Tensor, name)
    for name in ("item", "tolist", "numpy", "__float__", "__complex__", "__array__")
    if hasattr(torch.Tensor, name)
)

# Functions that look at a tensor's form alone: nothing of its values comes back.
LOOKS: frozenset[Any] = frozenset(
    attribute if callable(attribute) else attribute.__get__
    for attribute in (
        getattr(torch.Tensor, name)
        for name in ("dim", "ndim", "size", "shape", "numel", "nelement", "dtype", "device", "is_cuda", "is_contiguous")
    )
)


def _assigned(tensor: Tensor, index: Any, value: Any) -> Tensor:
    """`tensor[index] = value` as a function."""
    fresh = tensor.clone()
    fresh[index] = value
    return fresh


def _copied(tensor: Tensor, source: Tensor, *_: Any, **__: Any) -> Tensor:
    """`tensor.copy_(source)` as a function."""
    return source.to(tensor.dtype).expand_as(tensor).clone()


def _reversed_sub(tensor: Tensor, other: Any, alpha: float = 1.0) -> Tensor:
    return other - alpha * tensor


def _without_inplace(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a keyword `inplace=True` switched off."""

    def replay(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("inplace", None)
        return function(*args, **kwargs)

    return replay


def _functions(name: str) -> list[Any]:
    """Every function of torch that goes by this name."""
    found = []
    for space in _NAMESPACES:
        attribute = getattr(space, name, None)
        if callable(attribute):
            found.append(attribute)
        elif attribute is not None and hasattr(attribute, "__get__"):  # properties such as Tensor.T
            found.append(attribute.__get__)
    return found


def _dictionary() -> tuple[dict[Any, Operation], dict[str, Operation]]:
    """Function → operation, and name → operation for `torch.ops.aten`."""
    by_function: dict[Any, Operation] = {}
    by_name: dict[str, Operation] = {}

    for family, names in _KINDS.items():
        for name in names.split():
            functions = _functions(name)
            if not functions:  # not in this version of torch
                continue
            kind = _SPELLINGS.get(name, name)
            for function in functions:
                by_function.setdefault(function, Operation(kind, family, function))
            by_name[name] = by_function[functions[0]]
            outplace = getattr(torch.Tensor, name, functions[0])
            for function in _functions(name + "_"):  # relu_, add_, mul_, …
                by_function.setdefault(function, Operation(kind, family, outplace, inplace=True))
    for name, kind in _SPELLINGS.items():
        if hasattr(torch.Tensor, name):
            function = getattr(torch.Tensor, name)
            by_function[function] = Operation(kind, by_name[kind].family, function)
    for kind in ("add", "sub", "mul", "div"):
        name = "__itruediv__" if kind == "div" else f"__i{kind}__"
        by_function[getattr(torch.Tensor, name)] = by_function[getattr(torch.Tensor, kind + "_")]
    for function in (*_functions("rsub"), torch.Tensor.__rsub__):
        by_function[function] = Operation("rsub", Family.SPLIT, _reversed_sub)
    for function in (F.interpolate, F.upsample):
        by_function[function] = Operation("interpolate", Family.SPLIT, F.interpolate)
    tensor = torch.Tensor
    by_function[tensor.__getitem__] = Operation("getitem", Family.REARRANGE, tensor.__getitem__)
    by_function[tensor.__setitem__] = Operation("setitem", Family.REARRANGE, _assigned, inplace=True)
    by_function[tensor.copy_] = Operation("copy", Family.REARRANGE, _copied, inplace=True)
    by_function[tensor.view] = Operation("view", Family.REARRANGE, tensor.reshape)  # can be replayed on any strides
    by_function[tensor.data.__get__] = Operation("alias", Family.PASS, tensor.detach)  # type: ignore[attr-defined]
    by_function[tensor.requires_grad_] = Operation("alias", Family.PASS, tensor.detach)
    return by_function, by_name


_BY_FUNCTION, _BY_NAME = _dictionary()


def known_operation(function: Any, kwargs: dict[str, Any], args: tuple[Any, ...]) -> Operation | None:
    """The operation that a torch function is, or None where plrp knows no rule for it."""
    known = _BY_FUNCTION.get(function)
    if known is None and isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        packet = function.overloadpacket if isinstance(function, torch._ops.OpOverload) else function
        namespace, name = packet._qualified_op_name.split("::")
        if namespace == "torchvision" and name in _POOLS_OF_BOXES:
            return Operation(name, _POOLS_OF_BOXES[name], function)
        known = _BY_NAME.get(name) if namespace == "aten" else None
        if known is not None:
            known = known._replace(replay=function)
    if known is None:
        return None
    if known.kind in _WITH_INPLACE_FLAG and (kwargs.get("inplace") or _positional_inplace(known.kind, args)):
        return known._replace(replay=_out_of_place(known), inplace=True)
    return known


# Where `inplace` stands among the positional arguments of torch.nn.functional.
_WITH_INPLACE_FLAG: dict[str, int] = {
    "relu": 1,
    "relu6": 1,
    "silu": 1,
    "mish": 1,
    "hardswish": 1,
    "hardsigmoid": 1,
    "selu": 1,
    "elu": 2,
    "celu": 2,
    "leaky_relu": 2,
    "hardtanh": 3,
    "threshold": 3,
    "rrelu": 4,
    "dropout": 3,
    "dropout1d": 3,
    "dropout2d": 3,
    "dropout3d": 3,
    "alpha_dropout": 3,
    "feature_alpha_dropout": 3,
}


def _positional_inplace(kind: str, args: tuple[Any, ...]) -> bool:
    position = _WITH_INPLACE_FLAG[kind]
    return len(args) > position and args[position] is True


def _out_of_place(operation: Operation) -> Callable[..., Any]:
    position = _WITH_INPLACE_FLAG[operation.kind]
    plain = _without_inplace(operation.replay)
    return lambda *args, **kwargs: plain(*args[:position], **kwargs)


def spelled(function: Any) -> str:
    """A function's name as a user would write it: `torch.nn.functional.softmax`."""
    name = torch.overrides.resolve_name(function)
    if name:
        return str(name)
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return f"{module}.{qualname}" if module and qualname else str(function)
