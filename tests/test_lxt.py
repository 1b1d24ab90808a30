"""Against LXT (Achtibat et al. 2024), in its efficient form: gradient × input with modified gradients. ε = 0 in both.

The rules coincide: uniform halves for products, the Taylor expansion of the softmax, norms with their spread held, the
identity for activations, biases and position embeddings that keep their share. What is set apart here, because it is
not a matter of rules: LXT divides by x + 1e-10 in activations (here by x), and Hugging Face's RMSNorm rounds to
float32 (here not). LXT's own patches for whole models do not import with this version of transformers, so its rules
are put into the models one by one.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import oracles
import plrp

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")
IDS = torch.tensor([[2, 5, 9, 7, 11, 3, 4], [2, 8, 3, 9, 4, 0, 0]])
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture(scope="module")
def lxt() -> Any:
    """LXT's patches, imported past those of whole models."""
    found = importlib.util.find_spec("lxt")
    if found is None or found.origin is None:
        pytest.skip("lxt is not installed")
    folder = Path(found.origin).parent / "efficient"
    modules: dict[str, Any] = {}
    for name in ("rules", "patches"):
        path = f"lxt.efficient.{name}"
        spec = importlib.util.spec_from_file_location(path, folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        modules[path] = sys.modules.setdefault("lxt.efficient", type(sys)("lxt.efficient"))
        module = sys.modules[path] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        modules[name] = module
    patches, rules = modules["patches"], modules["rules"]
    patches.identity_rule_implicit = lambda fn, x: rules.identity_rule_implicit_fn.apply(fn, x, 0.0)
    yield patches
    for name in ("lxt.efficient", "lxt.efficient.rules", "lxt.efficient.patches"):
        sys.modules.pop(name, None)


def in_double(patches: Any) -> Any:
    """LXT's RMSNorm in the precision of its input."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.weight * (x * patches.stop_gradient(torch.rsqrt(x.pow(2).mean(-1, True) + self.variance_epsilon)))

    return forward


def patch(model: nn.Module, patches: Any, conservative: bool) -> None:
    """Put LXT's rules into one model."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    wrap = patches.cp_wrap_attention_forward if conservative else patches.wrap_attention_forward
    gated = patches.cp_gated_mlp_forward if conservative else patches.gated_mlp_forward
    name = "sdpa_cp" if conservative else "sdpa_lxt"
    ALL_ATTENTION_FUNCTIONS.register(name, wrap(ALL_ATTENTION_FUNCTIONS["sdpa"]))
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)
    model.set_attn_implementation(name)
    for module in list(model.modules()):
        kind = type(module).__name__
        if isinstance(module, nn.LayerNorm):
            module.forward = MethodType(patches.layer_norm_forward, module)
        elif kind == "LlamaRMSNorm":
            module.forward = MethodType(in_double(patches), module)
        elif kind == "LlamaMLP":
            module.forward = MethodType(gated, module)
        elif kind in ("GELUActivation", "NewGELUActivation", "Tanh"):
            module.original_forward = module.forward
            module.forward = MethodType(patches.non_linear_forward, module)


def built(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "llama":
        config = transformers.LlamaConfig(num_key_value_heads=2, vocab_size=30, use_cache=False, **SIZES)
        model = transformers.LlamaForCausalLM(config)
    elif kind == "bert":
        model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=30, **SIZES))
    elif kind == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 30, "bos_token_id": 1, "eos_token_id": 1}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False, **sizes))
    else:
        model = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=4, **SIZES))
    for name, parameter in model.named_parameters():  # biases begin with zeros, and would be tested by nobody
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    return model.double().eval()


@pytest.mark.parametrize("composite", ["attnlrp", "cp-lrp"])
@pytest.mark.parametrize("kind", ["llama", "bert", "gpt2", "vit"])
def test_relevance_is_that_of_lxt(kind: str, composite: str, lxt: Any) -> None:
    model = built(kind)
    if kind == "llama":  # the model itself rounds to float32 in its norms
        for module in model.modules():
            if type(module).__name__ == "LlamaRMSNorm":
                module.forward = MethodType(in_double(lxt), module)
    options = {} if kind == "vit" else {"attention_mask": (IDS != 0).long()}
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64) if kind == "vit" else IDS

    def score(whole: Tensor) -> Tensor:
        return whole[:, 1] if whole.dim() == 2 else whole[:, 4, 1]

    chosen = plrp.composite(composite, epsilon=0.0)
    found = plrp.explain(lambda x: model(x, **options).logits, x, target=score, composite=chosen)
    patch(model, lxt, composite == "cp-lrp")
    if kind == "vit":
        read = x.clone().requires_grad_()
        whole = model(read).logits
    else:
        read = model.get_input_embeddings()(x).detach().requires_grad_()
        whole = model(inputs_embeds=read, **options).logits
    score(whole).sum().backward()
    assert torch.allclose(score(whole).detach(), found.score, rtol=1e-9)
    expected = read.detach() * read.grad
    expected = expected if kind == "vit" else expected.sum(-1)
    assert oracles.relative_difference(found.relevance, expected) < 1e-8
