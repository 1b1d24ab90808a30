"""References: the inputs x⁰ that a prediction is explained against. Relevance adds up to f(x) − f(x⁰).

`plrp.explain(model, x, reference=plrp.references.blur(8))` asks why the score is not that of the blurred picture. A
reference is a tensor, or a callable that makes references of a batch: one for each sample, or K of them. Every callable
here looks at each sample by itself, so that its references do not depend on its place in the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .settings import WrongSetting, read_reference

__all__ = ["Reference", "blur", "grey", "mask_token", "mean", "parse", "samples", "shuffled", "zeros"]

Letter = TypeVar("Letter", bound=Hashable)
Inputs = tuple[Tensor, ...]


# --- callables that make references -----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Reference:
    """A callable from a batch to its references, (batch, …) or (K, batch, …), with a name for titles and files.

    Of several inputs it replaces those of its kind, numbers or token ids (`ids`); the others stay as they are.
    """

    name: str
    make: Callable[[Tensor], Tensor]
    ids: bool = False

    def __call__(self, batch: Tensor | Sequence[Tensor]) -> Any:
        """The references of a batch, or of a tuple of inputs: None for each that stays."""
        if not isinstance(batch, Tensor):
            return tuple(self(x) if x.is_floating_point() != self.ids else None for x in batch)
        if batch.is_floating_point() == self.ids:
            kind, other = ("token ids", "zeros()") if self.ids else ("numbers", "mask_token(tokenizer)")
            given = "numbers" if self.ids else "token ids"
            raise TypeError(
                f"The reference {self.name} is for {kind}, and the input holds {given}: take references.{other}."
            )
        return self.make(batch)

    def __repr__(self) -> str:
        return self.name


def zeros() -> Reference:
    """All zeros: black, or no letter at all."""
    return Reference("zeros", torch.zeros_like)


def grey() -> Reference:
    """The mean of each sample's own channels, at every position; of features (batch, features) their mean."""
    return Reference("grey", channel_means)


def blur(sigma: float = 8.0) -> Reference:
    """The sample itself, smoothed with a Gaussian of `sigma` positions: its details are explained."""
    blurred(torch.zeros(1, 1), sigma)  # refuses a wrong width now
    return Reference(f"blur:{sigma:g}", lambda x: blurred(x, sigma))


def mean(data: Tensor | Iterable[Tensor]) -> Reference:
    """The mean of `data`: a tensor (samples, …), or an iterable of such batches."""
    total, count = torch.zeros(()), 0
    for batch in [data] if isinstance(data, Tensor) else data:
        total, count = total + batch.double().sum(0).cpu(), count + len(batch)
    if not count:
        raise ValueError("mean: there are no samples.")
    return Reference(f"mean of {count}", lambda x: (total / count).to(x)[None])


def samples(data: Tensor, K: int, seed: int = 0) -> Reference:
    """K samples of `data` (samples, …), drawn once: every input is explained against the same K."""
    if not 1 <= K <= len(data):
        raise ValueError(f"samples draws K of the data's {len(data)} samples, got K = {K}.")
    drawn = data[torch.from_numpy(np.random.default_rng(seed).permutation(len(data))[:K]).to(data.device)]
    return Reference(f"samples:{K}", lambda x: drawn.to(x.device)[:, None], ids=not data.is_floating_point())


def shuffled(K: int = 20, dinucleotide: bool = True, seed: int = 0) -> Reference:
    """Each one-hot sequence (4, length) in K random orders, with the same dinucleotides or, if not, the same bases.

    The orders depend on the sequence and the seed, not on its place in the batch. Positions that are empty (N) or mixed
    count as letters of their own.
    """
    if K < 1:
        raise ValueError(f"shuffled takes K ≥ 1 references, got {K}.")

    def make(x: Tensor) -> Tensor:
        if x.dim() != 3:
            raise ValueError(f"shuffled is for one-hot sequences (batch, letters, length), got shape {tuple(x.shape)}.")
        orders = [_orders(one.detach().cpu().numpy(), K, dinucleotide, seed) for one in x]
        places = torch.from_numpy(np.stack(orders, 1)).to(x.device)  # (K, batch, length)
        return x[None].expand(K, *x.shape).gather(3, places[:, :, None].expand(K, *x.shape))

    return Reference(f"shuffled:{K}" + (f", seed {seed}" if seed else "") + ("" if dinucleotide else ", by base"), make)


def mask_token(mask: Any, special: Collection[int] | None = None) -> Reference:
    """Token ids with the mask token in place of every word's; special tokens stay.

    `mask`: a tokenizer, or the id of the mask token; then `special` are the ids that stay.
    """
    if not isinstance(mask, int):
        token = getattr(mask, "mask_token_id", None)
        if token is None:
            raise ValueError(
                f"The tokenizer ({type(mask).__name__}) has no mask token: name one by its id, mask_token(3)."
            )
        special = special_ids(mask) if special is None else special
        mask = int(token)
    stays = torch.tensor(sorted(special or ()), dtype=torch.long)
    make = lambda ids: torch.where(torch.isin(ids, stays.to(ids)), ids, torch.full_like(ids, mask))  # noqa: E731
    return Reference("mask token", make, ids=True)


def special_ids(tokenizer: Any) -> set[int]:
    """The ids of a tokenizer's special tokens. An unknown word is part of the text, unless its id ends texts too."""
    ends = [getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "cls", "sep", "pad")]
    unknown = tokenizer.unk_token_id  # GPT-2 has one id for all
    return {int(i) for i in tokenizer.all_special_ids if i != unknown or unknown in ends}


_NAMED: dict[str, Callable[..., Reference]] = {"zeros": zeros, "grey": grey, "blur": blur, "shuffled": shuffled}


def parse(text: str) -> Reference:
    """A reference by its name, as on the command line: `zeros`, `grey`, `blur:8`, `shuffled:20`.

    >>> parse("blur:8")
    blur:8
    """
    try:
        name, number = read_reference(text, _NAMED)
    except WrongSetting as error:
        raise ValueError(f"{error}; or give a tensor or a callable.") from None
    return _NAMED[name]() if number is None else _NAMED[name](number)


def channel_means(inputs: Tensor) -> Tensor:
    """The mean per channel, or of inputs (batch, features) over all of them, at every position."""
    return inputs.mean(tuple(range(min(2, inputs.ndim - 1), inputs.ndim)), keepdim=True).expand_as(inputs)


def blurred(inputs: Tensor, sigma: float) -> Tensor:
    """Inputs smoothed with a Gaussian of `sigma` positions along every axis of space, borders repeated."""
    if not sigma > 0:
        raise ValueError(f"The width of a blur, in positions, must be positive; got {sigma}.")
    reach = max(1, round(3 * sigma))
    at = torch.arange(-reach, reach + 1, device=inputs.device, dtype=inputs.dtype)
    weight = torch.exp(-(at**2) / (2 * sigma**2))
    weight = (weight / weight.sum()).reshape(1, 1, -1)
    smooth = inputs
    for axis in range(min(2, inputs.ndim - 1), inputs.ndim):
        lines = smooth.movedim(axis, -1)
        padded = F.pad(lines.reshape(-1, 1, lines.shape[-1]), (reach, reach), mode="replicate")
        smooth = F.conv1d(padded, weight).reshape(lines.shape).movedim(-1, axis)
    return smooth


def _orders(sample: np.ndarray, K: int, dinucleotide: bool, seed: int) -> np.ndarray:
    """K orders of the positions of one sequence (letters, length), (K, length)."""
    columns, letters = np.unique(sample, axis=1, return_inverse=True)
    letters = letters.reshape(-1)
    content = hashlib.blake2b(columns.tobytes() + letters.astype(np.int64).tobytes(), digest_size=8).digest()
    rng = np.random.default_rng([seed, int.from_bytes(content, "little")])
    if not dinucleotide:
        return np.stack([rng.permutation(len(letters)) for _ in range(K)])
    where = [np.flatnonzero(letters == letter) for letter in range(columns.shape[1])]
    orders = np.empty((K, len(letters)), np.int64)
    for order in orders:
        new = np.array(shuffle_steps(letters.tolist(), rng))
        for letter, places in enumerate(where):  # any place of this letter holds the same column
            order[new == letter] = places
    return orders


def shuffle_steps(letters: Sequence[Letter], rng: np.random.Generator) -> list[Letter]:
    """A sequence in a random order with the same dinucleotides, first and last letter (Altschul & Erickson 1985).

    A sequence is a walk over its letters, every dinucleotide a step. Each letter's last step out is drawn at random
    until all of these lead to the walk's last letter; the other steps come in random order before it.
    """
    if len(letters) < 3:
        return list(letters)
    steps: dict[Letter, list[Letter]] = {}
    for here, there in pairwise(letters):
        steps.setdefault(here, []).append(there)
    last = letters[-1]
    while True:
        for ways in steps.values():
            ways[:] = [ways[i] for i in rng.permutation(len(ways))]
        exits = {here: ways[-1] for here, ways in steps.items() if here != last}
        ends = set(exits)
        for _ in exits:
            ends = {exits.get(here, here) for here in ends}
        if ends <= {last}:
            break
    onward = {here: iter(ways) for here, ways in steps.items()}
    walk = [letters[0]]
    for _ in range(len(letters) - 1):
        walk.append(next(onward[walk[-1]]))
    return walk


# --- the references of one call ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class References:
    """The K references of a batch, checked: for each the model's inputs, in the shapes of the explained ones."""

    name: str
    each: tuple[Inputs, ...]

    def grouped(self, most: int) -> list[References]:
        """Groups of at most so many references, as equal in size as can be."""
        groups = -(-len(self.each) // most)
        ends = [len(self.each) * n // groups for n in range(groups + 1)]
        return [replace(self, each=self.each[a:b]) for a, b in pairwise(ends)]

    @property
    def joined(self) -> References:
        """All references as one of a batch that holds the inputs as many times."""
        whole = tuple(x[0] if len(x) == 1 else torch.cat(x) for x in zip(*self.each, strict=True))
        return replace(self, each=(whole,))

    def of(self, samples: slice) -> References:
        """The references of some samples of the batch."""
        return replace(self, each=tuple(tuple(x[samples] for x in inputs) for inputs in self.each))

    def __len__(self) -> int:
        return len(self.each)

    @classmethod
    def given(
        cls, reference: Any, inputs: Tensor | Sequence[Tensor], whole: bool = False, equal: bool = False
    ) -> References:
        """The references that a user means for these inputs; `whole`: they have no batch axis.

        `equal`: a reference may be the input itself, as shuffles of AAAA are; nothing is explained against it.

        A tensor of the shape of the input, or of one sample, or a stack (K, …) of them; a tuple of these for several
        inputs, with None for an input that stays; a name such as `blur:8`; or a callable from the inputs to any of it.
        """
        if isinstance(reference, References):
            return reference
        reference = parse(reference) if isinstance(reference, str) else reference
        name = "a tensor"
        if callable(reference) and not isinstance(reference, Tensor):
            name = repr(reference) if isinstance(reference, Reference) else getattr(reference, "__name__", "a callable")
            own = inputs.clone() if isinstance(inputs, Tensor) else tuple(x.clone() for x in inputs)
            reference = reference(own)  # which it may write into
        xs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        parts = list(reference) if isinstance(reference, list | tuple) else [reference]
        if len(parts) != len(xs):
            raise ValueError(f"The reference has {len(parts)} tensors, the model {len(xs)} inputs: give one for each.")
        stacks = [_stack(part, x, whole) for part, x in zip(parts, xs, strict=True)]
        count = max((len(stack) for stack in stacks if stack is not None), default=1)
        if any(stack is not None and len(stack) not in (1, count) for stack in stacks):
            raise ValueError("The inputs have different numbers of references: give K of each, or one.")
        columns = [
            [x.detach()] * count if stack is None else list(stack.expand(count, *x.shape))
            for stack, x in zip(stacks, xs, strict=True)
        ]
        each = tuple(zip(*columns, strict=True))
        for number, one in enumerate(() if equal else each):
            _check_differs(one, xs, whole, f"Reference {number}" if count > 1 else "The reference")
        return cls(name if count == 1 or ":" in name else f"{count} of {name}", each)


def _stack(part: Any, x: Tensor, whole: bool) -> Tensor | None:
    """The references of one input as a stack (K, …), a copy; None where the input stays."""
    if part is None:
        return None
    if not isinstance(part, Tensor):
        raise TypeError(
            f"reference is a tensor, a tuple of them, a callable or a name such as 'blur:8', got {type(part).__name__}."
        )
    if part.is_floating_point() != x.is_floating_point():
        raise TypeError(
            f"The reference is {part.dtype}, the input {x.dtype}: token ids are explained against other token ids, for "
            "example references.mask_token(tokenizer), and numbers against numbers."
        )
    for what, of_part, of_x in (("dtype", part.dtype, x.dtype), ("device", part.device, x.device)):
        if of_part != of_x:
            raise TypeError(f"The reference is {of_part}, the input {of_x}: convert it, `reference.to(x.{what})`.")
    stack = part.detach().clone()
    rows = 0 if whole else 1
    stack = stack[None] if rows and stack.shape == x.shape[1:] else stack
    stack = stack[None] if stack.dim() == x.dim() else stack
    fits = stack.dim() == x.dim() + 1 and stack.shape[1 + rows :] == x.shape[rows:] and len(stack) > 0
    if not fits or (rows and stack.shape[1] not in (1, len(x))):
        raise ValueError(
            f"The reference has shape {tuple(part.shape)}, the input {tuple(x.shape)}: give one of that shape, of one "
            "sample, or a stack (K, …) of them."
        )
    if stack.is_floating_point() and not bool(stack.isfinite().all()):
        bad = "NaN" if bool(stack.isnan().any()) else "infinite values"
        raise ValueError(f"The reference holds {bad}: its score would not be a number.")
    return stack


def _check_differs(reference: Inputs, inputs: Sequence[Tensor], whole: bool, which: str) -> None:
    """Refuse a reference that is the input itself."""
    pairs = list(zip(reference, inputs, strict=True))
    if whole:
        same = [all(torch.equal(a, b) for a, b in pairs)]
    else:
        same = torch.stack([(a == b).flatten(1).all(1) if a.dim() > 1 else a == b for a, b in pairs]).all(0).tolist()
    if any(same):
        sample = "" if len(same) == 1 else f" of sample {same.index(True)}"
        raise ValueError(f"{which} equals the input{sample}: there is no difference to explain.")
