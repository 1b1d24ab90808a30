"""The relevance of a network's layers, and the neurons of a layer that hold it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .spelling import nearest


@dataclass
class Survivors:
    """The neurons of a layer's input that hold relevance for one sample, strongest first."""

    index: Tensor  # (neurons, axes of the tensor without the batch)
    relevance: Tensor  # (neurons,)


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
