"""The score that is explained, written as text: for command lines, and for runs that are stored and resumed.

| text | score of a sample |
|---|---|
| `3` | class 3 |
| `0,141` | track 0, position 141 of an output (batch, tracks, positions) |
| `outputs[1][:, 0]` | first column of the second output |
| `outputs["counts"][:, 2]`, `outputs.counts[:, 2]` | by name |
| `outputs[:, 2, 490:510].mean()` | a window; also `sum()`, which is the default, and `max()` |
| `profile(outputs[0])` | the shape of a BPNet profile: Σᵢ softmax(z)ᵢ (zᵢ − z̄), the softmax held constant |
| `net.py:score` | the result of the function `score` in your file |

The text is parsed as names, indices and slices, and never evaluated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp.target_text import TargetError, read_target

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 300
"""Characters of a text: nobody writes longer ones, and deep nesting would exhaust the parser."""

_FUNCTION = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")


class OutputScore:
    """One score per sample from a model's output, as a text says; see the module. Two of the same text are equal.

    >>> import torch
    >>> OutputScore("outputs[1][:, 0]")((torch.zeros(2, 3), torch.tensor([[5.0, 1.0], [7.0, 2.0]]))).tolist()
    [5.0, 7.0]
    """

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        if len(self.text) > LONGEST:
            raise TargetError(f"The target has {len(self.text)} characters, at most {LONGEST} are read.")
        try:
            tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError):
            raise self._refused("it cannot be read") from None
        self.steps = self._steps(tree)

    def _refused(self, why: str) -> TargetError:
        return TargetError(
            f"target {self.text!r}: {why}; write a class such as 3, track,position such as 0,141, or indices such as "
            "outputs[1][:, 0], outputs.counts[:, 2:5].mean(), profile(outputs[0]). For anything else, such as a "
            "difference, name a function of yours: net.py:score."
        )

    def _steps(self, node: ast.expr) -> tuple[Callable[[Any], Any], ...]:
        """The steps from the output to the score, in order: an index, a name, a reduction, …"""
        match node:
            case ast.Name("outputs" | "output"):
                return ()
            case ast.Attribute(value, name):
                return (*self._steps(value), partial(self._named, name))
            case ast.Subscript(value, index):
                return (*self._steps(value), partial(self._item, self._index(index)))
            case ast.Call(ast.Attribute(value, "sum" | "mean" | "max" as kind), [], []):
                return (*self._steps(value), partial(self._reduced, kind))
            case ast.Call(ast.Name("profile" as kind), [value], []):
                return (*self._steps(value), partial(self._reduced, kind))
        what = ast.unparse(node)
        raise self._refused(f"{'it' if what == self.text else repr(what)} is not an index or slice of 'outputs'")

    def _index(self, node: ast.expr) -> Any:
        match node:
            case ast.Tuple(elements):
                return tuple(self._index(element) for element in elements)
            case ast.Slice(lower, upper, step):
                return slice(*(None if part is None else self._whole(part) for part in (lower, upper, step)))
            case ast.Constant(value) if isinstance(value, str) or value is Ellipsis:
                return value
        return self._whole(node)

    def _whole(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(value) if type(value) is int:
                return value
            case ast.UnaryOp(ast.USub(), ast.Constant(value)) if type(value) is int:
                return -value
        raise self._refused(f"{ast.unparse(node)!r} is not a whole number, slice or name")

    def __call__(self, output: Any) -> Tensor:
        """The score of every sample, (batch,); axes that are left are summed."""
        from torch import Tensor

        value = output
        for step in self.steps:
            value = step(value)
        if not isinstance(value, Tensor):
            raise self._refused(f"it names a {type(value).__name__}{_holding(value)}, not a tensor")
        return value if value.dim() < 2 else value.flatten(1).sum(1)

    def _reduced(self, kind: str, value: Any) -> Tensor:
        from torch import Tensor

        if not isinstance(value, Tensor):
            raise self._refused(f"{kind} needs a tensor, and here is a {type(value).__name__}")
        flat = value.flatten(1)
        if kind == "profile":
            return ((flat - flat.mean(1, keepdim=True)) * flat.softmax(1).detach()).sum(1)
        reduction: Callable[[int], Tensor] = getattr(flat, "amax" if kind == "max" else kind)
        return reduction(1)

    def _item(self, index: Any, value: Any) -> Any:
        from torch import Tensor

        if isinstance(value, Tensor):
            first = index[0] if isinstance(index, tuple) and index else index
            if first != slice(None) and first is not Ellipsis:
                raise self._refused(
                    f"axes of a tensor {tuple(value.shape)} begin with the batch, which stays whole: begin its index "
                    "with ':'"
                )
        try:
            return value[index]
        except (IndexError, KeyError, TypeError) as error:
            shape = tuple(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}{_holding(value)}"
            raise self._refused(f"the output {shape} has no [{_written(index)}] ({error})") from None

    def _named(self, name: str, value: Any) -> Any:
        from torch import Tensor

        if isinstance(value, Mapping) and name in value:
            return value[name]
        if not isinstance(value, Tensor) and not name.startswith("_") and hasattr(value, name):
            return getattr(value, name)
        raise self._refused(f"the output, a {type(value).__name__}{_holding(value)}, has no {name!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputScore) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"OutputScore({self.text!r})"


class FileScore:
    """The function of a user's file that makes one score per sample of a model's output: `net.py:score`."""

    def __init__(self, text: str) -> None:
        from plrp.models.loading import imported_file

        match = _FUNCTION.fullmatch(text)
        assert match is not None
        self.text = text
        with imported_file(Path(match["file"])) as source:
            function = getattr(source, match["name"], None)
        if not callable(function):
            raise TargetError(f"{match['file']} defines no function {match['name']!r}, from the output to scores.")
        self.function: Callable[[Any], Tensor] = function

    def __call__(self, output: Any) -> Tensor:
        """The score of every sample, (batch,)."""
        return self.function(output)

    def __repr__(self) -> str:
        return f"FileScore({self.text!r})"


def score_file(target: Any) -> tuple[Path, str] | None:
    """File and function of a target that is one, `net.py:score`, as text or as a `FileScore`; None for others."""
    text = target.text if isinstance(target, FileScore) else target
    match = _FUNCTION.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else (Path(match["file"]), match["name"])


def target_words(target: Any) -> str:
    """A target as the command line has it; empty for the winning class."""
    if target is None:
        return ""
    words = ",".join(map(str, target)) if isinstance(target, tuple) else getattr(target, "text", None)
    return words or getattr(target, "__name__", None) or str(target)


def target_from_text(text: str) -> int | tuple[int, ...] | OutputScore | FileScore:
    """The target that a text names: a class, an index tuple, indices into the output, or a function of a file.

    >>> target_from_text("0,141"), target_from_text("outputs[:, 1].mean()")
    ((0, 141), OutputScore('outputs[:, 1].mean()'))
    """
    scored = FileScore if _FUNCTION.fullmatch(text) else OutputScore
    target: int | tuple[int, ...] | OutputScore | FileScore = read_target(text, scored)
    return target


def checked_target(target: Any) -> Any:
    """The target itself; a text that cannot be read is refused. Files are looked at later."""
    if isinstance(target, str) and not _FUNCTION.fullmatch(target):
        target_from_text(target)
    return target


def check_choice(output: Any, target: Any) -> None:
    """Refuse a class, or no target, for a model with several outputs; the sentence lists them with their shapes."""
    from torch import Tensor

    if isinstance(output, Tensor) or callable(target):
        return
    if isinstance(output, Mapping):
        parts = {f"outputs[{name!r}]": part for name, part in output.items()}
    elif names := getattr(output, "_fields", None) or getattr(output, "__dataclass_fields__", None):
        parts = {f"outputs.{name}": getattr(output, name) for name in names}
    else:
        parts = {f"outputs[{k}]": part for k, part in enumerate(output)} if isinstance(output, tuple | list) else {}
    shapes = {name: tuple(part.shape[1:]) for name, part in parts.items() if isinstance(part, Tensor)}
    if not shapes:
        raise TargetError(f"The model returns a {type(output).__name__}: give a function, --target net.py:score.")
    example = next((name for name, shape in reversed(shapes.items()) if len(shape) == 1), next(iter(shapes)))
    index = "".join(", 0" for _ in shapes[example])
    listed = ", ".join(f"{name} is ({', '.join(map(str, ('batch', *shape)))})" for name, shape in shapes.items())
    raise TargetError(f'The model returns several outputs; choose one: --target "{example}[:{index}]" ({listed}).')


def _written(index: Any) -> str:
    """An index as one writes it: `:, 7` and not `slice(None, None, None), 7`."""
    if isinstance(index, tuple):
        return ", ".join(map(_written, index))
    if isinstance(index, slice):
        ends = ["" if end is None else str(end) for end in (index.start, index.stop, index.step)]
        return ":".join(ends if ends[2] else ends[:2])
    return "..." if index is Ellipsis else repr(index)


def _holding(value: Any) -> str:
    if isinstance(value, Mapping):
        return f" of {', '.join(map(repr, value))}"
    return f" of {len(value)}" if isinstance(value, tuple | list) else ""
