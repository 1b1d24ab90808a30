"""The table of operations: all that plrp knows of a torch function.

The tape sees functions, not modules: `F.relu`, `torch.relu`, `Tensor.relu_` are one operation, `relu`. A row names
operations, their family, which says how relevance passes them (`passing.py` states the formulas), and their traits. Any
other file asks an operation for its traits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Family(Enum):
    """How relevance passes an operation."""

    LAYER = "layer"  # conv or linear: the composite chooses the rule
    PASS = "pass"  # element by element, φ(0) = 0: relevance stays where it is
    OFFSET = "pass less φ(0)"  # element by element, φ(0) ≠ 0: the share of φ(0) is a constant's
    SPLIT = "proportional"  # sums and means: in proportion to the contribution of each input
    WINNER = "winner-take-all"  # maxima: all to the winner
    REARRANGE = "rearrange"  # views, slices, concatenations: relevance follows the elements
    AFFINE = "affine"  # norms with their statistics held constant: ε-rule on scale and shift
    GATE = "gate"  # products: the signal takes all
    PRODUCT = "product"  # products of two signals: the composite says how they divide
    SOFTMAX = "softmax"  # fine at the very end and inside gates; else the composite has a rule for it, or not
    HEAD = "head"  # log-softmax: fine at the very end, else without a rule
    EMBEDDING = "embedding"  # a row per token: the relevance of all channels goes to the token
    CONSTANT = "constant"  # the result does not depend on the values of the input
    UNSUPPORTED = "unsupported"


class Sign(Enum):
    """The sign of an output."""

    ANY = "any"
    KEEPS = "keeps"  # ≥ 0 if all inputs and all constants that enter the output are
    NONNEGATIVE = "non-negative"


class Traits(NamedTuple):
    """Properties of an operation besides its family. The defaults claim nothing.

    Positions of arguments are counted from 0.
    """

    sign: Sign = Sign.ANY
    divisor: tuple[int, str] | None = None  # position and name of a number that turns the sign where it is negative
    bounds: tuple[float | None, float | None] | None = None  # clamps between arguments 1 and 2, which default to these
    rectifies: bool = False  # 0 where its input is < 0
    activation: bool = False  # an activation function: of act(g) · u, u is the signal
    gate: bool = False  # its output weighs a signal that it is multiplied with
    transparent: bool = False  # the output of a gate remains a gate after it
    statistic: bool = False  # divides its input by a statistic of it along `dims`, which is held constant
    scales: bool = False  # of one input: multiplies it by a constant
    elementwise: bool = False  # combines its operands element by element, broadcasting them
    constants: tuple[int, ...] | None = None  # positions of arguments that may put constants into the output
    boxes: bool = False  # reads argument 0 inside the boxes of argument 1; no relevance goes to the boxes
    reshapes: bool = False  # renames axes; the order of elements in memory stays
    like: bool = False  # argument 1 only gives a shape or a dtype
    batchwise: bool = False  # each position of the first axis is computed by itself
    dims: tuple[int, ...] = ()  # positions of the axes that it acts along; all other axes stay as they are
    dim: int | None = None  # the axis where none is given; None: it is not looked up
    hides_nan: bool | None = None  # whether a NaN or +∞ that it reads may be missing in its output; None: by its family
    training: bool = False  # random, or dependent on the batch, in training mode
    head: bool = False  # makes scores probabilities or counts: explained from its input, if it is the model's last step
    inplace_at: int | None = None  # position of an argument `inplace` in torch.nn.functional


class Operation(NamedTuple):
    """A torch function as plrp knows it."""

    kind: str
    family: Family
    replay: Callable[..., Any]  # the same operation, out of place
    traits: Traits = Traits()
    inplace: bool = False
    rule: Callable[..., Any] | None = None  # a user's own function, see `own_rules.py`
    registered: bool = False  # whether the rule is a user's own

    @property
    def adds(self) -> bool:
        """Whether it adds or subtracts two terms, element by element."""
        return self.traits.elementwise and self.family is Family.SPLIT

    @property
    def multiplies(self) -> bool:
        """Whether it multiplies or divides two factors, element by element."""
        return self.traits.elementwise and self.family is Family.GATE

    @property
    def contracts(self) -> bool:
        """Whether it is a product of matrices."""
        return self.family is Family.GATE and not self.traits.elementwise


class Row(NamedTuple):
    """A row of the table: operations with the same family and traits."""

    names: str
    family: Family
    traits: Traits


def row(names: str, family: Family, **traits: Any) -> Row:
    """A row for these operations, with the traits that are not the defaults."""
    return Row(names, family, Traits(**traits))


_LAYER, _PASS, _SPLIT, _WINNER, _MOVE = Family.LAYER, Family.PASS, Family.SPLIT, Family.WINNER, Family.REARRANGE
_GATE, _KEEPS, _NONNEGATIVE = Family.GATE, Sign.KEEPS, Sign.NONNEGATIVE
_POOL: dict[str, Any] = {"sign": _KEEPS, "batchwise": True}
_COPY: dict[str, Any] = {"sign": _KEEPS, "transparent": True, "scales": True, "hides_nan": False}

TABLE: tuple[Row, ...] = (
    row("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear", _LAYER),
    # Activation functions.
    row("relu", _PASS, activation=True, rectifies=True, sign=_NONNEGATIVE, inplace_at=1, hides_nan=False),
    row("relu6", _PASS, activation=True, rectifies=True, sign=_NONNEGATIVE, inplace_at=1),
    row("gelu", _PASS, activation=True, sign=_KEEPS, hides_nan=False),
    row("silu", _PASS, activation=True, sign=_KEEPS, inplace_at=1, hides_nan=False),
    row("mish hardswish selu", _PASS, activation=True, sign=_KEEPS, inplace_at=1),
    row("elu celu leaky_relu", _PASS, activation=True, sign=_KEEPS, inplace_at=2),
    row("prelu tanh softsign", _PASS, activation=True, sign=_KEEPS),
    row("softplus", _PASS, activation=True, head=True, sign=_NONNEGATIVE, divisor=(1, "beta")),
    row("square", _PASS, activation=True, sign=_NONNEGATIVE),
    row("pow", _PASS, activation=True),
    row("hardtanh", _PASS, activation=True, bounds=(-1.0, 1.0), inplace_at=3),
    row("threshold", _WINNER, activation=True, elementwise=True, inplace_at=3),  # x, or a constant
    row("rrelu", _PASS, activation=True, training=True, inplace_at=4),
    row("hardsigmoid", _PASS, activation=True, gate=True, sign=_NONNEGATIVE, inplace_at=1),
    row("sigmoid", _PASS, activation=True, gate=True, head=True, sign=_NONNEGATIVE),
    row("logsigmoid", _PASS, head=True),
    # Other functions of each element, copies among them.
    row("exp", _PASS, head=True, sign=_NONNEGATIVE),
    row("exp2 erfc cosh abs sqrt", _PASS, sign=_NONNEGATIVE),
    row("log1p expm1 erf", _PASS, sign=_KEEPS),
    row("clamp clamp_min", _PASS, bounds=(None, None)),
    row("clamp_max hardshrink softshrink tanhshrink cos acos nan_to_num", _PASS),
    row("log log2 log10 reciprocal rsqrt", _PASS),  # refused, since they are not finite at 0
    row("normalize", _PASS, sign=_KEEPS, statistic=True, dims=(2,), dim=1),
    row("local_response_norm", _PASS, statistic=True, dims=(5,), dim=1),  # along axis 1, which no argument names
    row("neg", _PASS, scales=True, hides_nan=False),
    row("dropout dropout1d dropout2d dropout3d", _PASS, training=True, inplace_at=3, **_COPY),
    row("alpha_dropout feature_alpha_dropout", _PASS, training=True, inplace_at=3, **_COPY),
    row("feature_dropout", _PASS, training=True, **_COPY),
    row("to type_as", _PASS, like=True, **_COPY),
    row("detach clone contiguous float double half bfloat16 long int type cpu cuda alias positive", _PASS, **_COPY),
    # Sums and means.
    row("add", _SPLIT, elementwise=True, transparent=True, sign=_KEEPS, constants=(0, 1), hides_nan=False),
    row("sub rsub", _SPLIT, elementwise=True, transparent=True, hides_nan=False),
    row("mean sum cumsum", _SPLIT, sign=_KEEPS, dims=(1,)),
    row("avg_pool1d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d interpolate", _SPLIT, **_POOL),
    row("avg_pool2d avg_pool3d", _SPLIT, divisor=(6, "divisor_override"), **_POOL),
    row("fold col2im", _SPLIT, sign=_KEEPS),
    row("index_add scatter_add", _SPLIT, dims=(1,), constants=(0, 3)),
    row("scatter_reduce index_reduce", _SPLIT, sign=_KEEPS, dims=(1,), constants=(0, 3)),  # maxima: by `reduce`
    row("torchvision::roi_align torchvision::ps_roi_align torchvision::ps_roi_pool", _SPLIT, boxes=True),
    # Maxima.
    row("max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices", _WINNER, **_POOL),
    row("max_pool3d max_pool3d_with_indices fractional_max_pool2d fractional_max_pool3d", _WINNER, **_POOL),
    row("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", _WINNER, **_POOL),
    row("adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices", _WINNER, **_POOL),
    row("adaptive_max_pool3d_with_indices", _WINNER, **_POOL),
    row("max amax", _WINNER, sign=_KEEPS, dims=(1,)),
    row("min amin", _WINNER, sign=_KEEPS, dims=(1,), hides_nan=True),
    row("maximum minimum", _WINNER, elementwise=True, sign=_KEEPS, constants=(0, 1), hides_nan=True),
    row("torchvision::roi_pool", _WINNER, boxes=True),
    # Elements that are moved, selected or repeated; constants may come between them.
    row("view reshape flatten unflatten squeeze unsqueeze ravel", _MOVE, sign=_KEEPS, reshapes=True),
    row("view_as reshape_as", _MOVE, sign=_KEEPS, reshapes=True, like=True),
    row("expand_as", _MOVE, sign=_KEEPS, like=True),
    row("transpose swapaxes swapdims movedim moveaxis", _MOVE, sign=_KEEPS, dims=(1, 2)),
    row("narrow select unbind gather index_select", _MOVE, sign=_KEEPS, dims=(1,)),
    row("chunk split split_with_sizes tensor_split", _MOVE, sign=_KEEPS, dims=(2,)),
    row("take_along_dim repeat_interleave roll", _MOVE, sign=_KEEPS, dims=(2,)),
    row("sort", _MOVE, sign=_KEEPS, dims=(1,), dim=-1),
    row("topk", _MOVE, sign=_KEEPS, dims=(2,), dim=-1),
    row("upsample_nearest", _MOVE, **_POOL),
    row("permute t T mT H mH adjoint expand broadcast_to repeat tile flip fliplr flipud rot90", _MOVE, sign=_KEEPS),
    row("hsplit vsplit dsplit getitem take masked_select diagonal diag", _MOVE, sign=_KEEPS),
    row("pixel_shuffle pixel_unshuffle channel_shuffle unfold im2col", _MOVE, sign=_KEEPS),
    row("atleast_1d atleast_2d atleast_3d", _MOVE, sign=_KEEPS),
    row("real resolve_conj as_strided", _MOVE),
    row("cat stack", _MOVE, sign=_KEEPS, dims=(1,), constants=(0,)),
    row("hstack vstack dstack column_stack", _MOVE, sign=_KEEPS, constants=(0,)),
    row("pad", _MOVE, sign=_KEEPS, constants=(3,)),
    row("constant_pad_nd", _MOVE, sign=_KEEPS, constants=(2,)),
    row("tril triu", _MOVE, elementwise=True, sign=_KEEPS, constants=()),
    row("masked_fill", _MOVE, elementwise=True, sign=_KEEPS, constants=(0, 2)),
    row("where", _MOVE, elementwise=True, sign=_KEEPS, constants=(1, 2)),
    row("index_fill", _MOVE, elementwise=True, sign=_KEEPS, constants=(0, 3)),
    row("setitem", _MOVE, sign=_KEEPS, constants=(2,)),
    row("index_copy scatter", _MOVE, sign=_KEEPS, dims=(1,), constants=(0, 3)),
    row("masked_scatter", _MOVE, sign=_KEEPS, constants=(0, 2)),
    row("copy", _MOVE, sign=_KEEPS, constants=(0, 1)),
    # Norms, products, softmax.
    row("batch_norm", Family.AFFINE, training=True, hides_nan=False),
    row("layer_norm group_norm instance_norm rms_norm", Family.AFFINE, hides_nan=False),
    row("mul", _GATE, elementwise=True, constants=(0, 1), **_COPY),
    row("div", _GATE, elementwise=True, constants=(0, 1), **{**_COPY, "hides_nan": None}),
    row("matmul mm bmm mv addmm baddbmm tensordot", _GATE, hides_nan=False),
    row("einsum", _GATE, sign=_KEEPS, constants=(1, 2, 3), hides_nan=False),
    row("softmax", Family.SOFTMAX, gate=True, head=True, sign=_NONNEGATIVE, dims=(1,)),
    row("log_softmax", Family.HEAD, head=True, dims=(1,)),
    row("softmin", Family.HEAD, dims=(1,)),
    row("embedding", Family.EMBEDDING),
    row("zeros_like ones_like empty_like full_like rand_like randn_like randint_like bernoulli", Family.CONSTANT),
    row("new_zeros new_ones new_empty new_full new_tensor zero fill", Family.CONSTANT),
)

# Other spellings of an operation, Python's operators among them.
_SPELLINGS: dict[str, str] = {
    "add": "__add__ __radd__",
    "sub": "subtract __sub__",
    "rsub": "__rsub__",
    "mul": "multiply __mul__ __rmul__",
    "div": "divide true_divide __truediv__ __div__",
    "matmul": "__matmul__",
    "neg": "negative __neg__",
    "abs": "absolute __abs__",
    "pow": "__pow__",
    "cat": "concat concatenate",
    "clamp": "clip",
    "sigmoid": "expit",
    "softmax": "_safe_softmax",
}

_NAMESPACES: tuple[Any, ...] = (torch, torch.Tensor, F, torch._C._nn, torch.special)

# Functions through which a value leaves the tape: they return a Python number or array.
LEAVES: frozenset[Any] = frozenset(
    getattr(torch.Tensor, name)
    for name in ("item", "tolist", "numpy", "__float__", "__complex__", "__array__")
    if hasattr(torch.Tensor, name)
)

# Functions that return a Python number of any kind; `bool` is left out: it chooses a branch, and each is looked at.
NUMBERS_OUT = LEAVES | {torch.Tensor.__int__, torch.Tensor.__index__}

# Constants that take no more than a shape from a tensor: not `bernoulli` or `new_tensor`, which read its entries.
SHAPE_ALONE = frozenset(
    "zeros_like ones_like empty_like full_like new_zeros new_ones new_empty new_full zero fill".split()
)

# Operations that read elements of their first argument at places; operations that write at the places of an argument.
READS_AT = frozenset("getitem index_select take gather take_along_dim".split())
WRITES_AT = {"setitem": 1, "index_add": 2, "scatter_add": 2, "scatter": 2, "index_copy": 2, "index_fill": 2}

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
    """`tensor.copy_(source)` as a function; relevance of token ids, which are whole, is not."""
    return source.to(tensor.dtype if tensor.is_floating_point() else source.dtype).expand_as(tensor).clone()


def _pooled_as_drawn(pool: Callable[..., Any], axes: int, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A fractional max pool with the windows of the recorded call, which its precision decides too."""
    kwargs["return_indices"] = True
    _, winners = pool(x.detach().to(kwargs["_random_samples"].dtype), *args, **kwargs)
    return x.flatten(-axes).gather(-1, winners.flatten(-axes)).view(winners.shape)


def _reversed_sub(tensor: Tensor, other: Any, alpha: float = 1.0) -> Tensor:
    return other - alpha * tensor


def functions_named(name: str) -> list[Any]:
    """Every function of torch that goes by this name."""
    functions = []
    for space in _NAMESPACES:
        attribute = getattr(space, name, None)
        if callable(attribute):
            functions.append(attribute)
        elif attribute is not None and hasattr(attribute, "__get__"):  # properties such as Tensor.T
            functions.append(attribute.__get__)
    return functions


def _by_name_alone(*_: Any, **__: Any) -> Any:
    """In place of the replay of an operation that `torch.ops` alone has: its replay is the function that was called."""
    raise NotImplementedError


class Dictionary:
    """The operations of a table by function, and by name: `relu`, or `torchvision::roi_pool` of `torch.ops`."""

    def __init__(self, table: Sequence[Row]) -> None:
        self.by_function: dict[Any, Operation] = {}
        self.by_name: dict[str, Operation] = {}
        for names, family, traits in table:
            for kind in names.split():
                for name in (kind, *_SPELLINGS.get(kind, "").split()):
                    self._add(name, Operation(kind.rpartition(":")[2], family, _by_name_alone, traits))
        for operator, name in {"iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_"}.items():
            self.by_function[getattr(Tensor, f"__{operator}__")] = self.by_function[getattr(Tensor, name)]
        for function in (*functions_named("rsub"), Tensor.__rsub__):
            self._put(function, "rsub", _reversed_sub)
        for function in (F.interpolate, F.upsample):
            self._put(function, "interpolate", F.interpolate)
        self._put(Tensor.__getitem__, "getitem", Tensor.__getitem__)
        self._put(Tensor.__setitem__, "setitem", _assigned, inplace=True)
        self._put(Tensor.copy_, "copy", _copied, inplace=True)
        self._put(Tensor.view, "view", Tensor.reshape)  # can be replayed on any strides
        for pool, axes in ((F.fractional_max_pool2d, 2), (F.fractional_max_pool3d, 3)):
            self._put(pool, f"fractional_max_pool{axes}d", partial(_pooled_as_drawn, pool, axes))
        for function in (Tensor.data.__get__, Tensor.requires_grad_):  # type: ignore[attr-defined]
            self._put(function, "alias", Tensor.detach)

    def _add(self, name: str, operation: Operation) -> None:
        """Add the functions of a name, in place and out of place. Some versions of torch do not have all of them."""
        functions = functions_named(name)
        for function in functions:
            self.by_function.setdefault(function, operation._replace(replay=function))
        for function in functions_named(name + "_"):  # relu_, add_, mul_, …
            outplace = getattr(Tensor, name, functions[0] if functions else None)
            if outplace is not None:
                self.by_function.setdefault(function, operation._replace(replay=outplace, inplace=True))
        self.by_name[name] = self.by_function[functions[0]] if functions else operation

    def _put(self, function: Any, kind: str, replay: Callable[..., Any], inplace: bool = False) -> None:
        """Give one function a replay of its own."""
        self.by_function[function] = self.by_name[kind]._replace(kind=kind, replay=replay, inplace=inplace)


_KNOWN = Dictionary(TABLE)


def operation_named(name: str) -> Operation:
    """The operation of the table with this name."""
    return _KNOWN.by_name[name]


UNNAMED = Operation("", Family.UNSUPPORTED, _by_name_alone)
"""An unknown function before it is written down: to look up its name takes long."""


def unknown_operation(function: Any) -> Operation:
    """A function that plrp knows no rule for."""
    return Operation(spelled(function).rsplit(".", 1)[-1], Family.UNSUPPORTED, function)


def known_operation(function: Any, kwargs: dict[str, Any], args: tuple[Any, ...]) -> Operation | None:
    """The operation that a torch function is, or None where plrp knows no rule for it."""
    known = _KNOWN.by_function.get(function)
    if known is None and isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        packet = function.overloadpacket if isinstance(function, torch._ops.OpOverload) else function
        known = _KNOWN.by_name.get(packet._qualified_op_name.removeprefix("aten::"))
        known = known and known._replace(replay=function)
    if known is None:
        return None
    position = known.traits.inplace_at
    if position is None or not (kwargs.get("inplace") or (len(args) > position and args[position] is True)):
        return known
    return known._replace(replay=_out_of_place(known.replay, position), inplace=True)


def _out_of_place(function: Callable[..., Any], position: int) -> Callable[..., Any]:
    """The function without its argument `inplace`, which stands at this position."""

    def replay(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("inplace", None)
        return function(*args[:position], **kwargs)

    return replay


def spelled(function: Any) -> str:
    """A function's name as a user would write it: `torch.nn.functional.softmax`."""
    name = torch.overrides.resolve_name(function)
    if name:
        return str(name)
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return f"{module}.{qualname}" if module and qualname else str(function)
