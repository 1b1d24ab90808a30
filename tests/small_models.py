"""Small language models with random weights, and a tokenizer made on the spot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = "The capital of France is Paris London a film to forget and Berlin not good it s".split()
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}


def byte_tokenizer() -> Any:
    """Like GPT-2's: bytes, joined to some words with their space."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<s>", "<e>", *alphabet])}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        whole = "Ġ"
        for letter in word:
            merges.append((whole, letter))
            whole += letter
            vocabulary.setdefault(whole, len(vocabulary))
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=list(dict.fromkeys(merges))))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="<e>")


def word_tokenizer() -> Any:
    """Like BERT's: words and signs between [CLS] and [SEP]."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "##ly", *(word.lower() for word in WORDS)]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(names))}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)


def built(kind: str, vocabulary: int, **options: Any) -> Any:
    """A model with random weights, the same each time."""
    torch.manual_seed(0)
    if kind == "llama":
        config = transformers.LlamaConfig(vocab_size=vocabulary, num_key_value_heads=2, **SIZES, **options)
        model = transformers.LlamaForCausalLM(config)
    elif kind == "gpt2":
        sizes = {
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 4,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "vocab_size": vocabulary,
        }
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **options))
    elif kind == "t5":
        sizes = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
        gated = {"feed_forward_proj": "gated-gelu", "vocab_size": vocabulary}
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **gated, **options))
    elif kind == "bart":
        sizes = {
            f"{part}_{name}": size
            for part in ("encoder", "decoder")
            for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 24))
        }
        ends = {"bos_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
        config = transformers.BartConfig(vocab_size=vocabulary, d_model=16, **sizes, **ends, **options)
        model = transformers.BartForConditionalGeneration(config)
    else:
        config = transformers.BertConfig(vocab_size=vocabulary, **SIZES, **options)
        head = {"bert": transformers.BertForSequenceClassification, "masked": transformers.BertForMaskedLM}
        model = head[kind](config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()
