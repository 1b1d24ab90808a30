"""The signature of every compiled loop: dtype, layout and length of each array, kind and range of each number.

`SIGNATURES` is the one table. `checked` compiles a line of it into a function that checks its arguments and calls the
loop with addresses and lengths. An argument that does not fit raises TypeError or ValueError, with the loop's
name. Numbers that stand inside an array (positions, channels, winners) are checked in C, where they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor


@dataclass(frozen=True)
class Array:
    """A tensor on the CPU.

    `length` is an expression of the loop's integer arguments; a name that is none of them stands for whatever length
    comes, which later lengths may use. Memory is contiguous; where the expression `last` holds, channels come last.
    `alike`: in either of the two orders, as long as it is that of the argument named.
    """

    dtype: torch.dtype
    length: str
    last: str = "False"
    alike: str = ""
    optional: bool = False

    def __call__(self, **other: Any) -> Array:
        """The same with some of it changed."""
        return replace(self, **other)


@dataclass(frozen=True)
class Integer:
    """An integer, from least to most."""

    least: int = 0
    most: int = (1 << 31) - 1


class Plain(Enum):
    """A number without a range of its own."""

    REAL = "float"  # an int is converted
    FLAG = "bool"


Argument = Array | Integer | Plain

# Contiguous arrays of a length.
f32, f64, i32, i64, u8 = (
    partial(Array, dtype) for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)
)
COUNT = Integer(most=(1 << 48) - 1)  # of entries
SIZE = Integer()  # of an axis
THREADS = Integer(1, 4096)
REAL, FLAG = Plain
GEOMETRY = {"samples": SIZE} | {
    f"{what}{axis}": SIZE for what in ("in", "out", "kernel", "stride", "padding", "dilation") for axis in range(3)
}
IN_PLANE, OUT_PLANE, KERNEL = (f"{what}0 * {what}1 * {what}2" for what in ("in", "out", "kernel"))
SURVIVORS: dict[str, Argument] = {
    "stats": f64("8 * samples"), "rescale": FLAG, "out_positions": i64("most"), "out_begins": i64("most + 1"),
    "out_channels": i32("neurons"), "out_values": f32("neurons"), "threads": THREADS,
}  # fmt: skip
ROWS_OF_POSITIONS: dict[str, Argument] = {
    "x": f32("entries"), "positions": i64("count"), "count": COUNT, "channels": SIZE, "plane": SIZE,
    "rows": f32("count * channels"), "threads": THREADS,
}  # fmt: skip

# The meaning of each argument stands at the loop itself, in the C file named.
SIGNATURES: dict[str, dict[str, Argument]] = {
    # selection.c
    "select": {
        "values": f32("entries"), "offsets": i64("rows + 1"), "rows": COUNT,
        "shares": f64("2 * rows"), "stats": f64("8 * rows"), "threads": THREADS,
    },
    "thin": {
        "values": f32("rows * each"), "rows": COUNT, "each": COUNT,
        "stats": f64("8 * rows"), "out": f32("rows * each"), "threads": THREADS,
    },
    "collect_rows": {
        "values": f32("places * channels"), "positions": i64("places"), "offsets": i64("samples + 1"),
        "samples": SIZE, "channels": SIZE, **SURVIVORS,
    },
    "collect_dense": {
        "values": f32("samples * channels * plane"), "samples": SIZE, "channels": SIZE, "plane": SIZE, **SURVIVORS,
    },
    "prune_tokens": {
        "values": f32("samples * tokens * channels"), "samples": SIZE, "tokens": SIZE, "channels": SIZE,
        "p": REAL, "p_negative": REAL, "sums": f64("2 * samples * tokens"), "ordered": f64("tokens"),
        "out": f32("samples * tokens * channels"), "threads": THREADS,
    },
    # neurons.c
    "regroup": {
        "at": i64("neurons"), "channels": i32("neurons"), "values": f32("neurons"),
        "neurons": COUNT, "places": SIZE, "width": SIZE,
        "out_positions": i64("neurons"), "out_begins": i64("neurons + 1"),
        "out_channels": i32("neurons"), "out_values": f32("neurons"),
    },
    "take": {
        "source": f32("entries"), "index": i64("size"), "size": COUNT, "out": f32("size"), "threads": THREADS,
    },
    "union": {
        "a": i64("n"), "n": COUNT, "b": i64("m"), "m": COUNT,
        "out": i64("n + m"), "where_a": i64("n"), "where_b": i64("m"),
    },
    "flat": {
        "positions": i64("places"), "begins": i64("places + 1"), "places": COUNT, "channels": i32("neurons"),
        "width": SIZE, "plane": SIZE, "out": i64("neurons"), "out_sample": i64("neurons"),
    },
    "plan": {
        "positions": i64("places"), "places": COUNT, "map": i32(f"samples * {IN_PLANE}"), "rows": i64("most"),
        "taps": i32(f"places * {KERNEL}"), **GEOMETRY,
    },
    "winners": {
        "x": f32("entries"), "flat": i64("neurons"), "neurons": COUNT, "out": i64("neurons"), "threads": THREADS,
        **GEOMETRY,
    },
    "gather": ROWS_OF_POSITIONS,
    "spread": ROWS_OF_POSITIONS,
    "add": {
        "total": f32("entries"), "width": SIZE, "where": i64("count"), "count": COUNT,
        "values": f32("count * width if channels is None else channels.numel()"),
        "begins": i64("count + 1")(optional=True), "channels": i32("neurons")(optional=True),
    },
    # layers.c
    "weights": {
        "raw": f32("outputs * inputs * taps"), "scale": f32("outputs")(optional=True),
        "outputs": SIZE, "inputs": SIZE, "taps": SIZE, "part": Integer(-1, 1),
        "wanted": i32("count")(optional=True), "count": COUNT, "ready": u8("outputs")(optional=True),
        "out": f32("outputs * inputs * taps")(last="taps > 1"),
        "fingerprints": i64("outputs")(optional=True), "threads": THREADS,
    },
    "layer": {
        "what": Integer(1, 3), "places": COUNT, "positions": i64("places"), "begins": i64("places + 1"),
        "channels": i32("neurons"), "taps": i32("places * kernel"),
        "kernel": SIZE, "inputs": SIZE, "outputs": SIZE, "groups": Integer(1),
        "weight": f32("outputs * kernel * (inputs // groups)")(last="kernel > 1"),
        "rows": f32("read * inputs")(optional=True), "d": f32("neurons")(optional=True),
        "s": f32("neurons")(optional=True), "taken": f32("read * inputs")(optional=True),
        "read": SIZE, "samples": SIZE, "axis": SIZE, "inner": SIZE, "reach": SIZE,
        "given": f32("neurons")(optional=True), "bias": f32("outputs")(optional=True),
        "epsilon": REAL, "one_sign": FLAG, "threads": THREADS,
    },
    "redistribute": {
        "places": COUNT, "positions": i64("places"), "begins": i64("places + 1"), "channels": i32("neurons"),
        "taps": i32("places * kernel"), "kernel": SIZE, "inputs": SIZE, "outputs": SIZE,
        "weight": f32("outputs * kernel * inputs")(last="kernel > 1"), "d": f32("neurons"), "s": f32("neurons"),
        "bias": f32("outputs")(optional=True), "samples": SIZE, "axis": SIZE, "inner": SIZE, "reach": SIZE,
        "lowest": i64("read"), "end": i64("read"), "survivors": i32("living"), "x": f32("living"),
        "received": f32("living"), "orphaned": f32("neurons"), "threads": THREADS,
    },
    # whole_tensors.c
    "divide": {
        "r": f32("size")(alike="out"), "d": f32("size")(alike="out"), "size": COUNT,
        "epsilon": REAL, "one_sign": FLAG, "out": f32("size")(alike="out"), "threads": THREADS,
    },
    "split": {
        "r": f32("samples * channels * plane")(last="last"),
        "a": f32("samples * channels * plane"), "b": f32("samples * channels * plane"),
        "out": f32("samples * channels * plane")(last="last"), "out_b": f32("samples * channels * plane")(last="last"),
        "samples": SIZE, "channels": SIZE, "plane": SIZE,
        "last": FLAG, "epsilon": REAL, "one_sign": FLAG, "threads": THREADS,
    },
    "to_channels_last": {
        "tensor": f32("samples * channels * plane"), "out": f32("samples * channels * plane")(last="True"),
        "samples": SIZE, "channels": SIZE, "plane": SIZE, "threads": THREADS,
    },
    "hand_one_by_one": {
        "s": f32("samples * reads * outputs")(last="True"), "weight": f32("inputs * taps * outputs"),
        "x": f32("samples * length * inputs")(last="True"), "out": f32("samples * length * inputs")(last="True"),
        "samples": SIZE, "length": SIZE, "reads": SIZE, "inputs": SIZE, "outputs": SIZE, "taps": SIZE,
        "before": Integer(-(1 << 31)), "threads": THREADS,
    },
    "hand_to_winners": {
        "r": f32("samples * channels * plane")(last="True"), "winners": i64("samples * channels * plane"),
        "out": f32("samples * channels * below")(last="True"),
        "samples": SIZE, "channels": SIZE, "plane": SIZE, "below": SIZE, "threads": THREADS,
    },
    "pool": {
        "x": f32(f"planes * {IN_PLANE}"), "given": f32(f"planes * {OUT_PLANE}"), "taken": f32(f"planes * {IN_PLANE}"),
        "planes": COUNT, "threads": THREADS, **GEOMETRY,
    },
    "count": {
        "values": f32("rows * each"), "rows": COUNT, "each": COUNT, "counts": i64("rows"), "threads": THREADS,
    },
    "glance": {
        "values": f32("rows * each")(alike="values"), "rows": COUNT, "each": COUNT,
        "looks": Integer(0, 4096), "most": Integer(0, 4096),
    },
}  # fmt: skip


def format_of(loop: str) -> str:
    """A letter for the kind of each argument, as `loops.h` has them."""

    def letter(kind: Argument) -> str:
        if isinstance(kind, Integer):
            return "z" if kind.least < 0 else "n"
        return "a" if isinstance(kind, Array) else {REAL: "r", FLAG: "f"}[kind]

    each = list(map(letter, SIGNATURES[loop].values()))
    if "dilation2" in SIGNATURES[loop]:
        each[-len(GEOMETRY) :] = "g"
    return "".join(each)


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # torch knows these itself


def last_in_memory(tensor: Tensor) -> bool:
    """Whether the channels (axis 1) are last in memory; a tensor may be contiguous as well."""
    axes = tensor.dim()
    if axes in _CHANNELS_LAST:
        return tensor.is_contiguous(memory_format=_CHANNELS_LAST[axes])
    if axes == 3 and tensor.stride() == (tensor.shape[1] * tensor.shape[2], 1, tensor.shape[1]):
        return True
    return axes > 1 and tensor.movedim(1, -1).is_contiguous()


def laid_alike(tensor: Tensor, other: Any) -> bool:
    """Whether a tensor fills its memory, in the order in which another one does."""
    if tensor.is_contiguous() and isinstance(other, Tensor) and other.is_contiguous():
        return True
    if not (last_in_memory(tensor) and isinstance(other, Tensor)):
        return False  # strides may differ along an axis of one, which has no order
    return tensor.stride() == other.stride() or (tensor.shape == other.shape and last_in_memory(other))


def _refuse(loop: str, name: str, kind: Argument, value: Any, length: int | None = None) -> NoReturn:
    """The expected argument and the given one, in words."""
    came = f"{str(value.dtype)[6:]} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    if isinstance(kind, Integer):
        error: type[Exception] = ValueError if type(value) is int else TypeError
        raise error(f"{loop}: `{name}` must be an integer from {kind.least} to {kind.most}, not {came}.")
    if not isinstance(kind, Array):
        raise TypeError(f"{loop}: `{name}` must be a {kind.value}, not {came}.")
    if not isinstance(value, Tensor) or value.dtype is not kind.dtype or not value.is_cpu:
        where = f" on {value.device}" if isinstance(value, Tensor) and not value.is_cpu else ""
        raise TypeError(f"{loop}: `{name}` must be {str(kind.dtype)[6:]} on the CPU, not {came}{where}.")
    if length is not None and value.numel() != length:
        raise ValueError(f"{loop}: `{name}` must have {length} entries ({kind.length}), not {value.numel()}.")
    layout = {"False": "contiguous", "True": "laid out with channels last"}.get(kind.last, "in the layout asked for")
    raise ValueError(f"{loop}: `{name}` must be {layout}; its shape is {tuple(value.shape)}, strides {value.stride()}.")


def checked(loop: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled loop behind the check of its signature, as one function compiled for it."""
    signature = SIGNATURES[loop]
    names: dict[str, Any] = {
        "FUNCTION": function, "REFUSE": _refuse, "TENSOR": Tensor, "LAST": last_in_memory, "ALIKE": laid_alike,
    }  # fmt: skip
    lines = [f"def {loop}({', '.join(signature)}):"]
    passed: list[str] = []
    known = {name for name, kind in signature.items() if isinstance(kind, Integer) or kind is FLAG}
    for name, kind in signature.items():
        names[f"{name}_KIND"] = kind
        refuse = f"REFUSE('{loop}', '{name}', {name}_KIND, {name})"
        if isinstance(kind, Integer):
            right = f"type({name}) is int and {kind.least} <= {name} <= {kind.most}"
            lines.append(f" if not ({right}): {refuse}")
        elif kind is FLAG:
            lines.append(f" if {name} is not True and {name} is not False: {refuse}")
        elif kind is REAL:
            lines.append(f" if type({name}) is int: {name} = float({name})")
            lines.append(f" if type({name}) is not float: {refuse}")
    arrays = {name: kind for name, kind in signature.items() if isinstance(kind, Array)}
    for name in sorted(arrays, key=lambda name: not arrays[name].length.isidentifier()):  # lengths by name come first
        lines += _array_lines(loop, name, arrays[name], known, names)
    for name in signature:
        passed += [f"{name}_address", f"{name}_length"] if name in arrays else [name]
    lines.append(f" return FUNCTION({', '.join(passed)})")
    exec("\n".join(lines), names)
    call: Callable[..., Any] = names[loop]
    return call


def _array_lines(loop: str, name: str, kind: Array, known: set[str], names: dict[str, Any]) -> list[str]:
    names[f"{name}_DTYPE"] = kind.dtype
    of_this = f"'{loop}', '{name}', {name}_KIND, {name}"
    right = f"isinstance({name}, TENSOR) and {name}.dtype is {name}_DTYPE and {name}.is_cpu"
    if kind.alike:
        laid = f"ALIKE({name}, {kind.alike})"
    elif kind.last == "True":
        laid = f"LAST({name})"
    elif kind.last == "False":
        laid = f"{name}.is_contiguous()"
    else:
        laid = f"(LAST({name}) if {kind.last} else {name}.is_contiguous())"
    lines = [f"if not ({right} and {laid}): REFUSE({of_this})", f"{name}_length = {name}.numel()"]
    if kind.length.isidentifier() and kind.length not in known:
        lines.append(f"{kind.length} = {name}_length")
        known.add(kind.length)
    else:
        lines.append(f"if {name}_length != ({kind.length}): REFUSE({of_this}, {kind.length})")
    lines.append(f"{name}_address = {name}.data_ptr()")
    if not kind.optional:
        return [" " + line for line in lines]
    return [f" if {name} is None: {name}_address, {name}_length = None, 0", " else:", *("  " + line for line in lines)]
