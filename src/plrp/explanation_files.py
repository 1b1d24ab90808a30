"""The numbers of an explanation as a file: `explanation.save("x.npz")` writes it, `plrp.load` reads it."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .balance import Problem
from .explanation import UNTESTABLE, Against, Explanation
from .files import new_file
from .pruning import Pruning
from .spelling import printable

KIND = "explanation"
"""The entry `kind` in the settings of these files."""


@dataclass(frozen=True, repr=False)
class SavedExplanation:
    """The numbers of an explanation, read back from a file: without its model, ledger and layers.

    relevance: of the input, in its shape; a tuple of tensors for a model with several inputs.
    logits: the model's output; None if it was no tensor.
    target: classes (batch,), an index tuple into the output, or the target in words.
    score: (batch,). composite: its name. pruning: None for LRP.
    problems: the fault in the arithmetic of each sample (`Explanation.problems`), in words; None if there is none.
    reference: f(x), f(x⁰) and the spread of the relevance, where the score is a difference to references.
    verdict: the network's verdict on each sample (`metrics.Verdict.facts`), if it was tested.
    """

    relevance: Any
    logits: Tensor | None
    target: Any
    score: Tensor
    composite: str
    pruning: Pruning | None
    problems: tuple[str | None, ...]
    version: str
    reference: Against | None = None
    verdict: list[dict[str, Any]] | None = None

    def test(self, *_: Any, **__: Any) -> None:
        """Refused: the model would have to answer."""
        raise ValueError(UNTESTABLE)

    def __repr__(self) -> str:
        parts = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        shapes = ", ".join(" × ".join(map(str, part.shape)) for part in parts)
        how = "LRP" if self.pruning is None else f"{self.pruning.label}, {self.pruning}"
        wrong = sum(problem is not None for problem in self.problems)
        against = "" if self.reference is None else f", {self.reference}"
        broken = f"; the arithmetic broke in {wrong} of {len(self.problems)} samples" if wrong else ""
        return printable(f"Relevance {shapes}, {how}, {self.composite}{against}, by plrp {self.version}{broken}")


def save_explanation(path: str | Path, explanation: Explanation, version: str) -> None:
    """Write relevance, score, target, logits and settings as `.npz`: numbers and text only, no pickle."""
    several, target = isinstance(explanation.relevance, tuple), explanation.target
    parts = explanation.relevance if several else (explanation.relevance,)
    tensors = {f"relevance{number if several else ''}": part for number, part in enumerate(parts)}
    tensors |= {"logits": explanation.logits, "target": target, "score": explanation.score}
    if (against := explanation.reference) is not None:
        spread = against.relevance if several else (against.relevance,)
        tensors |= {"input_score": against.score, "reference_scores": against.scores}
        tensors |= {f"spread{number if several else ''}": part for number, part in enumerate(spread or ())}
    index = isinstance(target, tuple) and all(isinstance(place, int) for place in target)
    verdict = explanation.verdict
    settings = {
        "kind": KIND,
        "plrp": version,
        "inputs": len(parts) if several else None,
        "target": list(target) if index else None if isinstance(target, Tensor) else repr(target),
        "composite": explanation.composite.name,
        "pruning": None if explanation.pruning is None else explanation.pruning.to_dict(),
        "reference": None if against is None else against.name,
        "problems": [None if problem is None else problem.value for problem in explanation.problems()],
        "verdict": verdict and [verdict.facts(sample) for sample in range(len(verdict))],
    }
    arrays = {name: _array(tensor) for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    write_arrays(path, settings, **arrays)


def write_arrays(path: str | Path, settings: Mapping[str, Any], **arrays: Any) -> None:
    """Write arrays and settings as `.npz`, whole or not at all: numbers and text only, so `np.load` needs no pickle."""
    content = io.BytesIO()
    np.savez_compressed(content, settings=np.array(json.dumps(settings, ensure_ascii=False)), **arrays)
    with new_file(path) as part:
        part.write_bytes(content.getvalue())


def read_explanation(arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> SavedExplanation:
    """The explanation of a file of `save_explanation`, from its arrays and settings."""
    several, target, pruning = settings["inputs"], settings["target"], settings["pruning"]
    names = ["relevance"] if several is None else [f"relevance{number}" for number in range(several)]
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if name != "settings"}
    parts = tuple(tensors[name] for name in names)
    against = None
    if settings.get("reference") is not None:
        spread = tuple(tensors[n] for name in names if (n := name.replace("relevance", "spread")) in tensors)
        spreads = None if not spread else spread[0] if several is None else spread
        against = Against(settings["reference"], tensors["input_score"], tensors["reference_scores"], spreads)
    known = {problem.value: problem.value for problem in Problem}  # older versions used other words, for other things
    return SavedExplanation(
        relevance=parts[0] if several is None else parts,
        logits=tensors.get("logits"),
        target=tensors.get("target", tuple(target) if isinstance(target, list) else target),
        score=tensors["score"],
        composite=settings["composite"],
        pruning=None if pruning is None else Pruning.from_dict(pruning),
        problems=tuple(known.get(problem) for problem in settings["problems"]),
        version=settings["plrp"],
        reference=against,
        verdict=settings.get("verdict"),
    )


def _array(tensor: Tensor) -> np.ndarray:
    """The tensor's numbers; numpy has no bfloat16."""
    tensor = tensor.detach().cpu()
    array: np.ndarray = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array
