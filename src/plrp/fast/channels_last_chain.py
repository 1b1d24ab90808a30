"""The layers of a walk that work with channels last, in an unbroken chain from the output down."""

from __future__ import annotations

from torch import Tensor

from plrp import rules
from plrp.rules import Rule
from plrp.tape.maps import Convolution
from plrp.tape.values import Op, Value

from . import native
from .channels_last import channels_last, to_channels_last
from .neurons import Relevance


class ChannelsLastChain:
    """Decides, layer by layer, whether a walk works with channels last; holds the tensors that it laid out anew.

    A chain of such layers begins at one convolution and goes on where relevance comes with channels last: to lay out
    tensors anew in between would cost what it gains.
    """

    def __init__(self, possible: bool) -> None:
        self.possible = possible
        self.may_begin = True
        self.inputs: dict[int, Tensor] = {}  # the tensors that layers read, by the id of their value

    def serves(self, op: Op, rule: Rule, x: Tensor, given: Relevance) -> bool:
        """Whether a layer is to work with channels last."""
        if not self.possible or not isinstance(op.map, Convolution) or op.map.transposed or x.dim() > 4:
            return False
        if rule.needs_output or isinstance(rule, rules.Flat) or not built_in(rule) or not native.available(x):
            return False
        begins, self.may_begin = self.may_begin, False
        return begins or not isinstance(given, Tensor) or channels_last(given)

    def input(self, value: Value, x: Tensor) -> Tensor:
        """The tensor that a layer read, with channels last; laid out once for all layers that read it."""
        known = self.inputs.get(id(value))
        if known is None:
            known = self.inputs[id(value)] = to_channels_last(x)
        return known


def built_in(rule: Rule) -> bool:
    """Whether the branches of a rule are our own: they take tensors in any layout and write into none."""
    return type(rule).branches.__module__ == rules.__name__
