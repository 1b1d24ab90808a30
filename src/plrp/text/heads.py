"""The kind of answer of a language model (a class, the next or a masked token, a similarity), and what is refused."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from plrp.tape.live_tensors import Wrapped

Kind = Literal["class", "next token", "masked token", "similarity"]

ENDINGS: dict[str, Kind] = {
    "ForSequenceClassification": "class",
    "ForCausalLM": "next token",
    "LMHeadModel": "next token",
    "ForConditionalGeneration": "next token",  # of an encoder and a decoder
    "MTModel": "next token",
    "ForMaskedLM": "masked token",
}
"""How the classes of Hugging Face's models end."""

ENCODING = ("ForConditionalGeneration", "MTModel")
"""Endings of models with an encoder and a decoder; also of models that read pictures or sounds."""

BITS = re.compile(r"[248]bit", re.IGNORECASE)
"""Layers of bitsandbytes: Linear8bitLt, Linear4bit."""

SLACK = 0.03, 64
"""An embedding may be longer than its vocabulary by this share and this many tokens: lengths are rounded up."""


def decodes(model: type) -> bool:
    """Whether models of a class have an encoder that reads the text and a decoder that writes."""
    return any(one.__name__.endswith(ENCODING) for one in model.__mro__)


def _reads_text(model: type) -> bool:
    """Whether the models of a class have an encoder that reads tokens; known before any weights are loaded."""
    settings = getattr(model, "config_class", None)
    default = settings() if settings is not None else None
    tokens = getattr(model, "main_input_name", "input_ids") == "input_ids" and not hasattr(default, "vision_config")
    return tokens and bool(getattr(default, "is_encoder_decoder", False))


def begins_with(model: Any) -> list[int]:
    """The tokens that a decoder begins with, as in `generate`; none for models without an encoder."""
    if not decodes(type(model)):
        return []
    places = getattr(model, "generation_config", None), model.config
    for name in ("decoder_start_token_id", "bos_token_id"):
        for settings in places:
            if isinstance(start := getattr(settings, name, None), int):
                forced = getattr(places[0], "forced_bos_token_id", None)
                return [start, *([forced] if isinstance(forced, int) else [])]
    raise ValueError("The model's configuration has no decoder_start_token_id: set it in model.config.")


def kind_of(model: type, pair: bool = False) -> Kind:
    """The kind of answer of the models of a class, by its name or that of a class it derives from.

    An encoder without a head compares a `pair` of texts.
    """
    endings = [ending for one in model.__mro__ for ending in ENDINGS if one.__name__.endswith(ending)]
    if pair and not endings and model.__name__.endswith("Model") and not _reads_text(model):
        return "similarity"
    if not endings or (endings[0] in ENCODING and not _reads_text(model)):
        raise ValueError(
            "plrp.text explains models that classify a text or predict its next or masked token, "
            f"not {model.__name__}: load it with AutoModelForSequenceClassification, AutoModelForCausalLM, "
            "AutoModelForSeq2SeqLM or AutoModelForMaskedLM, give an encoder (AutoModel) two texts as a tuple, to "
            "compare them, or call plrp.explain on a function of its inputs."
        )
    return ENDINGS[endings[0]]


def check_model(model: Any, tokenizer: Any, ids: Tensor) -> None:
    """Refuse quantised weights, the tokenizer of another model, and texts that are too long."""
    for name, module in model.named_modules():
        whole = [p for p in module.parameters(recurse=False) if not p.is_floating_point()]
        if whole or "quantized" in type(module).__module__ or BITS.search(type(module).__name__):
            raise TypeError(
                f"Layer '{name}' is quantised ({type(module).__name__}): relevance needs real weights, so load "
                "the model without quantization_config, or from a GGUF file, which is converted."
            )
    rows, known = getattr(model.get_input_embeddings(), "num_embeddings", None), len(tokenizer)
    if rows is None:
        raise TypeError(f"{type(model).__name__} looks no token ids up: explain its own inputs with plrp.explain.")
    share, few = SLACK
    if abs(rows - known) > share * min(rows, known) + few or int(ids.max()) >= rows:
        raise ValueError(
            f"The tokenizer has {known} tokens and the model embeds {rows}: it is the tokenizer of another model; load "
            "both from one place."
        )
    most = getattr(model.config, "max_position_embeddings", None)
    if isinstance(most, int) and 0 < most < ids.shape[1]:  # XLNet's −1 is no limit
        raise ValueError(f"The text has {ids.shape[1]} tokens, the model reads {most}: shorten it.")


class Forward(Wrapped):
    """From token ids (1, tokens) to the model's scores: (1, classes), or (1, positions, vocabulary).

    Caches and attentions that the model is configured to return are left out. A causal model computes the scores of the
    last `positions` only, if it can. Layers keep the model's own names. If there is an encoder, it reads the first
    `encoded` tokens, and the decoder reads the others. Of a similarity, the first `encoded` tokens are the first text;
    `pooling` makes the vector of a text, "mean" of its tokens, or "cls", the first. `segments`: types of the tokens.
    """

    def __init__(
        self,
        model: Any,
        kind: Kind,
        positions: int = 1,
        encoded: int = 0,
        segments: Sequence[int] = (),
        pooling: str = "mean",
    ) -> None:
        super().__init__(model)
        if pooling not in ("mean", "cls"):
            raise ValueError(f"pooling is 'mean' or 'cls', got {pooling!r}.")
        self.encoded, self.kind, self.pooling = encoded, kind, pooling
        self.positions = positions if kind == "next token" else 0
        known = inspect.signature(model.forward).parameters
        self.segments = torch.tensor(segments) if any(segments) and "token_type_ids" in known else None
        wanted = {"use_cache": False, "output_attentions": False, "output_hidden_states": False, "return_dict": True}
        flexible = any(p.kind is p.VAR_KEYWORD for p in known.values())
        self.options: dict[str, Any] = {name: value for name, value in wanted.items() if name in known or flexible}
        if "use_cache" not in known and kind != "next token":
            self.options.pop("use_cache", None)
        if self.positions and "logits_to_keep" in known:
            self.options["logits_to_keep"] = positions + 1  # a lone position would be pruned as if it had none

    def forward(self, ids: Tensor) -> Tensor:
        """The scores."""
        n, options = self.encoded, dict(self.options)
        if self.kind == "similarity":
            texts = [self.model(part, **options).last_hidden_state for part in (ids[:, :n], ids[:, n:])]
            first, second = (h.mean(1) if self.pooling == "mean" else h[:, 0] for h in texts)
            return nn.functional.cosine_similarity(first, second)[:, None]
        if self.segments is not None:  # other lengths go on with the last type
            places = torch.arange(ids.shape[1]).clamp(max=len(self.segments) - 1)
            options["token_type_ids"] = self.segments[places].expand(len(ids), -1).to(ids.device)
        if n:  # a spare token at the end: a lone position would be pruned as if it were none
            begun = torch.cat([ids[:, n:], ids[:, -1:]], 1)
            logits: Tensor = self.model(input_ids=ids[:, :n], decoder_input_ids=begun, **options).logits[:, :-1]
        else:
            logits = self.model(ids, **options).logits
        return logits[:, -self.positions :] if self.positions else logits


def class_names(model: Any) -> list[str]:
    """The model's classes by number."""
    labels = dict(model.config.id2label)
    return [str(labels.get(i, i)) for i in range(int(model.config.num_labels))]


def greedy(forward: Forward, ids: Tensor, count: int, stop: int | None) -> list[int]:
    """The tokens that the model would write, each the most probable one, up to and without `stop`."""
    written: list[int] = []
    with torch.no_grad():
        for _ in range(count):
            best = int(forward(ids)[0, -1].argmax())
            if best == stop:
                break
            written.append(best)
            ids = torch.cat([ids, torch.tensor([[best]], device=ids.device)], 1)
    return written
