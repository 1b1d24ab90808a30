"""A text as its model reads it: tokens, the characters each stands for, and the words they belong to."""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from plrp.references import special_ids

MANY_UNKNOWN = 0.2
"""Above this share of unknown tokens, the tokenizer or the text is probably wrong."""

WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
"""A word, or a single sign."""


class Token(NamedTuple):
    """One token of a text."""

    text: str  # as it stands in the text, with the white space before it; of a special token its name
    id: int
    special: bool = False
    word: int | None = None  # number of its word in the text; None for special tokens and white space
    read_as: str = ""  # the token that the model read instead, where the tokenizer does not know this one
    segment: int = 0  # the token type, where the second text of a pair has another one

    @property
    def shown(self) -> str:
        """The text, and the token that the model read instead of it."""
        return self.text + self.read_as


def tokenized(tokenizer: Any, given: str | tuple[str, str]) -> tuple[Token, ...]:
    """The tokens of a text or a pair of texts, special ones that the tokenizer adds included."""
    texts = given if isinstance(given, tuple) and len(given) == 2 else (given,)
    if not all(isinstance(one, str) for one in texts):
        kind = f"{type(given).__name__} of {len(given)}" if isinstance(given, tuple) else type(given).__name__
        raise TypeError(
            f"text is a string, a pair of them as a tuple, or a list of texts, got {kind}: the tokenizer makes its "
            "token ids (plrp.explain takes ids as they are)."
        )
    fast, text = bool(getattr(tokenizer, "is_fast", False)), " ".join(texts)
    encoding = tokenizer(*texts, return_offsets_mapping=True) if fast else tokenizer(*texts)
    ids = [int(i) for i in encoding["input_ids"]]
    segments = encoding.get("token_type_ids", [0] * len(ids)) if len(texts) > 1 else [0] * len(ids)
    special = special_ids(tokenizer)
    if all(i in special for i in ids):
        raise ValueError("The text is empty: there is no token that could be relevant.")
    spans = encoding["offset_mapping"] if fast else _spans(tokenizer, text, ids, special)
    if fast and len(texts) > 1:  # the offsets of each text begin at 0
        later = [(len(texts[0]) + 1) * (number == 1) for number in encoding.sequence_ids()]
        spans = [(begin + by, end + by) for (begin, end), by in zip(spans, later, strict=True)]
    unknown = sum(i == tokenizer.unk_token_id and i not in special for i in ids)
    if unknown > MANY_UNKNOWN * len(ids):
        warnings.warn(
            f"The tokenizer does not know {unknown} of the text's {len(ids)} tokens ({tokenizer.unk_token}): is it the "
            "model's own, and the text of the kind that the model reads?",
            stacklevel=2,
        )
    if fast and (changed := _lowered(tokenizer, text, ids, spans)):
        warnings.warn(
            f"The tokenizer reads {changed!r} as {changed.lower()!r}, though its vocabulary has both: if the model is "
            'cased, set "do_lower_case": false in tokenizer_config.json.',
            stacklevel=2,
        )
    starts = [match.start() for match in WORD.finditer(text)]
    tokens, read = [], 0
    for i, (_, end), segment in zip(ids, spans, segments, strict=True):
        name = str(tokenizer.convert_ids_to_tokens(i))
        piece = text[read:end]  # white space goes with the token after it, whatever the tokenizer's own offsets say
        if i in special:
            tokens.append(Token(name, i, special=True, segment=segment))
        else:
            begin = read + len(piece) - len(piece.lstrip())
            # the second byte of a letter stands for no character of its own: it belongs to the word before
            word = bisect_right(starts, begin if piece else max(0, read - 1)) - 1
            number = None if word < 0 or piece.isspace() else word
            unknown_as = name if i == tokenizer.unk_token_id else ""
            tokens.append(Token(piece, i, word=number, read_as=unknown_as, segment=segment))
        read = max(read, end)
    return tuple(tokens)


def _lowered(tokenizer: Any, text: str, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> str:
    """The first piece of the text that the tokenizer lower-cased although its vocabulary has the piece unchanged."""
    known = tokenizer.get_vocab()
    for i, (begin, end) in zip(ids, spans, strict=True):
        piece = text[begin:end]
        if piece != piece.lower() and piece in known and known.get(piece.lower()) == i:
            return piece
    return ""


def _spans(tokenizer: Any, text: str, ids: Sequence[int], special: set[int]) -> list[tuple[int, int]]:
    """The span of each token, for tokenizers written in Python: each is searched after the one before it."""
    spans, read = [], 0
    for i in ids:
        piece = "" if i in special else str(tokenizer.decode([i])).strip().removeprefix("##")
        at = text.lower().find(piece.lower(), read)
        begin, read = (at, at + len(piece)) if piece and at >= 0 else (read, read)
        spans.append((begin, read))
    return spans


def written(tokenizer: Any, text: str, decoded: bool) -> list[int]:
    """The token ids of a text that the model writes; a decoder may have other tokens than its encoder."""
    given = {"text_target": text} if decoded else {"text": text}
    return [int(i) for i in tokenizer(**given, add_special_tokens=False)["input_ids"]]


def token_id(tokenizer: Any, target: str | int, name: str = "target", decoded: bool = False) -> int:
    """The id of the one token that a target names."""
    if isinstance(target, int) and not isinstance(target, bool):
        if not 0 <= target < len(tokenizer):
            raise ValueError(f"{name}={target} is no token: ids run from 0 to {len(tokenizer) - 1}.")
        return target
    if not isinstance(target, str):
        raise TypeError(f"{name} is a token, written out or by its id, got {type(target).__name__}.")
    ids = written(tokenizer, target, decoded)
    if not ids:
        raise ValueError(f"{name} is empty: write out one token, for example ' Paris' with its space.")
    if len(ids) > 1:
        pieces = [str(tokenizer.decode([i])) for i in ids]
        raise ValueError(
            f"{name} {target!r} is {len(ids)} tokens ({', '.join(map(repr, pieces))}): name one of them, or explain "
            f"each with {'--' if name.startswith('--') else ''}span."
        )
    if str(tokenizer.decode(ids)).strip() != target.strip() and target in (known := tokenizer.get_vocab()):
        return int(known[target])  # a tokenizer that lower-cases, of a vocabulary that has both
    if ids[0] == getattr(tokenizer, "unk_token_id", None) and target != tokenizer.unk_token:
        raise ValueError(f"{name} {target!r} is not in the tokenizer's vocabulary: choose another spelling.")
    return ids[0]


def words(tokens: Sequence[Token], relevance: Sequence[float]) -> list[tuple[str, float]]:
    """Each word with the sum over its tokens; special tokens and white space stand alone."""
    sums: list[tuple[str, float]] = []
    before: int | None = None
    for token, value in zip(tokens, relevance, strict=True):
        if token.word is not None and token.word == before:
            text, total = sums[-1]
            sums[-1] = text + token.shown, total + value
        else:
            sums.append((token.shown, value))
        before = token.word
    return sums
