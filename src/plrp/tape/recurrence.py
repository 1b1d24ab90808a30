"""LSTM, GRU and RNN written out step by step, so that relevance passes each step (Arras et al. 2017).

Gates are sigmoids on the tape, so the gated signal takes all. Packed sequences are laid out in full; a sequence that
has ended keeps its state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Depends = Callable[[Any], bool]  # whether something is a tensor that depends on the input
State = tuple[Tensor, ...]  # (h,), or (h, c) of an LSTM, each (batch, hidden)


class Weights(NamedTuple):
    """The parameters of one layer in one direction."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None


Cell = Callable[[Tensor, State, Weights], State]  # W_ih · input, the state before, the weights


def _lstm_cell(part: Tensor, state: State, weights: Weights) -> State:
    """c = σ(f)·c + σ(i)·tanh(g), h = σ(o)·tanh(c)."""
    h, c = state
    i, f, g, o = (part + F.linear(h, weights.hidden)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h if weights.projection is None else F.linear(h, weights.projection)), c


def _gru_cell(part: Tensor, state: State, weights: Weights) -> State:
    """n = tanh(x_n + σ(r)·h_n), h = (1 − σ(z))·n + σ(z)·h."""
    (h,) = state
    of_input = part.chunk(3, -1)
    of_state = F.linear(h, weights.hidden, weights.hidden_bias).chunk(3, -1)
    r, z = (torch.sigmoid(x + y) for x, y in zip(of_input[:2], of_state[:2], strict=True))
    n = torch.tanh(of_input[2] + r * of_state[2])
    return ((1 - z) * n + z * h,)


def _rnn_cell(activation: Callable[[Tensor], Tensor]) -> Cell:
    def cell(part: Tensor, state: State, weights: Weights) -> State:
        return (activation(part + F.linear(state[0], weights.hidden)),)

    return cell


_CELLS: dict[str, Cell] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": _rnn_cell(torch.tanh),
    "rnn_relu": _rnn_cell(torch.relu),
}


def _of_input(kind: str, x: Tensor, weights: Weights) -> Tensor:
    """W_ih x and the biases; that of a GRU's state stays with the state, which a gate multiplies."""
    bias = weights.input_bias
    if bias is not None and weights.hidden_bias is not None and kind != "gru":
        bias = bias + weights.hidden_bias
    return F.linear(x, weights.input, bias)


def _initial_state(state: Tensor, part: Tensor, depends: Depends) -> Tensor:
    """An initial state as a value on the tape: a constant one is then a signal, and takes its share as a constant."""
    return state if depends(state) else state + 0 * part[..., :1]


def _recurrent(kind: str) -> Callable[..., Any]:
    """`torch.lstm`, `torch.gru`, …: all layers, both directions, plain or packed."""

    def run(depends: Depends, input: Tensor, second: Any, third: Any, *rest: Any) -> Any:
        packed = isinstance(second, Tensor) and isinstance(rest[0], list | tuple)  # input, batch_sizes, hx, params, …
        if packed:
            (x, there), hx, params, options = _laid_out(input, second), third, rest[0], (*rest[1:6], False)
        else:
            x, there, hx, params, options = input, None, second, third, rest
        biases, layers, dropout, train, both, batch_first = options
        if dropout > 0 and train and layers > 1:
            raise ValueError(
                f"The dropout of a {kind.upper()} is active: explanations would be random. Call `model.eval()`."
            )
        x = x.transpose(0, 1) if batch_first else x
        directions = (False, True) if both else (False,)
        each = len(params) // (layers * len(directions))
        finals: list[State] = []
        for _ in range(layers):
            outputs = []
            for backward in directions:
                number = len(finals)
                given = params[number * each : (number + 1) * each]
                weights = Weights(*given) if biases else Weights(given[0], given[1], None, None, *given[2:])
                state = tuple(states[number] for states in (hx if isinstance(hx, list | tuple) else (hx,)))
                output, final = _steps(kind, depends, x, state, weights, backward, there)
                outputs.append(output)
                finals.append(final)
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        if packed:
            x = x[_places(second)]
        return (x.transpose(0, 1) if batch_first else x, *map(torch.stack, zip(*finals, strict=True)))

    return run


def _steps(
    kind: str, depends: Depends, x: Tensor, state: State, weights: Weights, backward: bool, there: Tensor | None
) -> tuple[Tensor, State]:
    """One layer in one direction, (time, batch, …); `there` (time, batch) says which steps a sequence has."""
    parts = _of_input(kind, x, weights).unbind(0)
    order = range(len(parts) - 1, -1, -1) if backward else range(len(parts))
    state = tuple(_initial_state(s, parts[order[0]], depends) for s in state)
    outputs: list[Any] = [None] * len(parts)
    for t in order:
        after = _CELLS[kind](parts[t], state, weights)
        if there is not None and not bool(there[t].all()):
            after = tuple(torch.where(there[t][:, None], new, old) for new, old in zip(after, state, strict=True))
        state, outputs[t] = after, after[0]
    return torch.stack(outputs), state


def _cell(kind: str) -> Callable[..., Any]:
    """`torch.lstm_cell`, `torch.gru_cell`, …: one step."""

    def step(
        depends: Depends,
        input: Tensor,
        hx: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        weights = Weights(w_ih, w_hh, b_ih, b_hh)
        part = _of_input(kind, input, weights)
        state = tuple(_initial_state(s, part, depends) for s in (hx if isinstance(hx, list | tuple) else (hx,)))
        after = _CELLS[kind](part, state, weights)
        return after if kind == "lstm" else after[0]

    return step


# --- packed sequences -------------------------------------------------------------------------------------------------


def _places(batch_sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The time and the sequence of each row of packed data."""
    sizes = batch_sizes.tolist()
    times = torch.arange(len(sizes)).repeat_interleave(batch_sizes.cpu())
    return times, torch.cat([torch.arange(size) for size in sizes])


def _laid_out(data: Tensor, batch_sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Packed data as (time, batch, …), and where it is there; beyond its end a sequence repeats its last row."""
    times, sequences = _places(batch_sizes)
    longest, batch = len(batch_sizes), int(batch_sizes[0])
    there = torch.zeros(longest, batch, dtype=torch.bool)
    there[times, sequences] = True
    rows = torch.zeros(longest, batch, dtype=torch.long)
    rows[times, sequences] = torch.arange(len(times))
    last = there.sum(0) - 1
    rows = torch.where(there, rows, rows[last, torch.arange(batch)])
    return data[rows.to(data.device)], there.to(data.device)


def pack_padded_sequence(_: Depends, input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """(time, batch, …), sequences in order of their lengths, as the rows that are there, time after time."""
    x = input.transpose(0, 1) if batch_first else input
    sizes = (lengths[None, :] > torch.arange(int(lengths.max()))[:, None]).sum(1)
    return x[_places(sizes)], sizes


def pad_packed_sequence(
    _: Depends, data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """The inverse, with a constant where a sequence has ended."""
    x, there = _laid_out(data, batch_sizes)
    x = x.masked_fill(~there.reshape(*there.shape, *(1,) * (x.dim() - 2)), padding_value)
    missing = total_length - len(x)
    if missing > 0:
        x = torch.cat([x, x.new_full((missing, *x.shape[1:]), padding_value)])
    return x.transpose(0, 1) if batch_first else x, there.sum(0).cpu()


# The first argument of each is a function that says whether a tensor depends on the input.
STEPS: dict[Any, Callable[..., Any]] = {
    **{getattr(torch, kind): _recurrent(kind) for kind in _CELLS},
    **{getattr(torch, f"{kind}_cell"): _cell(kind) for kind in _CELLS},
    torch._C._VariableFunctions._pack_padded_sequence: pack_padded_sequence,
    torch._C._VariableFunctions._pad_packed_sequence: pad_packed_sequence,
}
