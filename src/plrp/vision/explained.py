"""One photograph explained: prediction, relevance per variant, figures, and a file that records how it was made."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from plrp import __version__
from plrp.composites import Composite, resolve
from plrp.composites import composite as composite_by_name
from plrp.errors import UsageError
from plrp.files import new_file
from plrp.health import Health
from plrp.models.loading import LoadedModel, imagenet_categories, load
from plrp.models.preprocessing import Preprocessing
from plrp.pruning import Pruning
from plrp.spelling import close_names
from plrp.tape.trace import Trace
from plrp.tape.tracing import trace as trace_model

from .figures import comparison_figure, explanation_figure
from .flows import flow, thinning
from .layers import flow_figure, thinning_figure
from .photographs import Photograph, read_photograph
from .preprocessing import network_input, network_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

LRP = "LRP"


class ClassError(UsageError):
    """A class that the model does not have, or class names that do not fit it."""


@dataclass(frozen=True)
class ExplainedPhotograph:
    """What a model saw in a photograph, and why.

    relevance: of the class `target`, by variant, "LRP" first; each (3, height, width).
    prunings: how each variant was pruned; None for LRP.
    unhealthy: what is wrong with a variant's explanation, for those that should not be believed as they are.
    """

    photograph: Photograph
    picture: Image
    model: LoadedModel
    composite: Composite
    logits: Tensor
    target: int
    categories: tuple[str, ...]
    relevance: Mapping[str, Tensor]
    prunings: Mapping[str, Pruning | None]
    trace: Trace
    unhealthy: Mapping[str, Health] = field(default_factory=dict)

    @property
    def probabilities(self) -> Tensor:
        """Softmax of the logits, or the sigmoid if there is only one."""
        return self.logits.softmax(0) if len(self.logits) > 1 else self.logits.sigmoid()

    @property
    def target_name(self) -> str:
        """The name of the explained class."""
        return self.categories[self.target]

    def top(self, count: int = 5) -> list[tuple[str, float, float]]:
        """The strongest classes: name, logit, probability."""
        order = self.logits.topk(min(count, len(self.logits))).indices.tolist()
        return [(self.categories[k], float(self.logits[k]), float(self.probabilities[k])) for k in order]

    def pixels(self) -> dict[str, float]:
        """The share of pixels that hold relevance, by variant."""
        return {name: float(r.sum(0).ne(0).float().mean()) for name, r in self.relevance.items()}

    @property
    def title(self) -> str:
        """Photograph, explained class and model, in one line."""
        score = float(self.logits[self.target])
        return f"{self.photograph.name}: {self.target_name} (score {score:.2f}), {self.model.name.split(':')[-1]}"

    def figure(self, **options: Any) -> Figure:
        """Photograph, heatmaps, prediction, overlay and outline (`plrp.vision.explanation_figure`)."""
        classes = [(name, probability) for name, _, probability in self.top()]
        return explanation_figure(
            self.picture, self.relevance, classes=classes, target=self.target_name, title=self.title, **options
        )

    def comparison(self, **options: Any) -> Figure:
        """The grid of variants and proportions (`plrp.vision.comparison_figure`)."""
        rows: dict[str, dict[float, Tensor]] = {}
        for name, pruning in self.prunings.items():
            if pruning is not None and pruning.p is not None:
                rows.setdefault(name.split(", p =")[0], {})[pruning.p] = self.relevance[name]
        return comparison_figure(self.picture, self.relevance[LRP], rows, title=self.title, **options)

    def layer_figures(self, variant: str | None = None) -> dict[str, Figure]:
        """How relevance thins (`layers`) and where it flows (`flow`), for a variant (default: the last)."""
        name = variant or list(self.prunings)[-1]
        pruning = self.prunings[name]
        options: dict[str, Any] = {"target": self.target, "composite": self.composite}
        plain = thinning(self.trace, self.trace.explain(layers=True, **options))
        pruned = thinning(self.trace, self.trace.explain(layers=True, pruning=pruning, **options))
        title = f"{self.title}, {name}"
        return {
            "layers": thinning_figure(plain, pruned, name=name, title=self.title),
            "flow": flow_figure(flow(self.trace, pruning=pruning, **options), target=self.target_name, title=title),
        }

    def save(self, path: str | Path) -> None:
        """Write relevance, logits and settings as `.npz`: numbers and text only, so `np.load` needs no pickle.

        `relevance` is (variant, 3, height, width), `variants` their names, `input` what the network saw, `settings` a
        JSON record of how it was made.
        """
        settings = {
            "plrp": __version__,
            "photograph": str(self.photograph.path),
            "model": self.model.name,
            "weights": self.model.weights,
            "composite": self.composite.name,
            "target": self.target,
            "target_name": self.target_name,
            "prunings": {name: None if p is None else p.to_dict() for name, p in self.prunings.items()},
        }
        content = io.BytesIO()
        np.savez_compressed(
            content,
            relevance=np.stack([r.numpy() for r in self.relevance.values()]),
            variants=np.array(list(self.relevance)),
            input=self.trace.inputs[0].data[0].cpu().numpy(),
            logits=self.logits.numpy(),
            target=np.array(self.target),
            settings=np.array(json.dumps(settings, ensure_ascii=False)),
        )
        with new_file(path) as part:
            part.write_bytes(content.getvalue())


def explain_photograph(
    photograph: str | Path | Photograph,
    model: LoadedModel | nn.Module | str,
    *,
    target: int | str | None = None,
    prunings: Sequence[Pruning] = (Pruning(),),
    composite: str = "epsilon-plus-flat",
    device: str | torch.device = "cpu",
) -> ExplainedPhotograph:
    """Explain a photograph with LRP and with each of `prunings`, from one forward pass.

    model: what `plrp.models.load` returns, or a name for it to load; a plain module gets photographs as most of
        torchvision's models do (the default `Preprocessing`).
    target: a class by number or by name; by default the winning class.
    """
    if isinstance(model, str):
        model = load(model)
    elif isinstance(model, nn.Module):
        model = LoadedModel(model, type(model).__name__, "its own")
    if not isinstance(photograph, Photograph):
        photograph = read_photograph(photograph)
    preprocessing = model.preprocessing or Preprocessing()
    inputs = network_input(photograph, preprocessing)[None].to(device)
    trace = trace_model(model.module, inputs)
    if not isinstance(trace.output, Tensor) or trace.output.dim() != 2:
        raise ClassError(f"{model.name} is not a classifier: its output is not (batch, classes).")
    logits = trace.output[0].detach().float().cpu()
    categories = categories_of(model, len(logits))
    chosen = int(logits.argmax()) if target is None else class_number(target, categories)
    variants: dict[str, Pruning | None] = {LRP: None, **{variant_name(pruning): pruning for pruning in prunings}}
    rules = composite_for(composite, preprocessing)
    found = trace.sweep(list(variants.values()), target=chosen, composite=rules)
    relevance, unhealthy = {}, {}
    for name, explanation in zip(variants, found, strict=True):
        relevance[name] = explanation.relevance[0].float().cpu()
        if any(explanation.verdicts()):
            unhealthy[name] = explanation.health
    picture = network_picture(photograph, preprocessing)
    return ExplainedPhotograph(
        photograph, picture, model, rules, logits, chosen, categories, relevance, variants, trace, unhealthy
    )


def composite_for(name: str, preprocessing: Preprocessing) -> Composite:
    """A composite by name; the box of `epsilon-gamma-box` goes from a normalised black to a normalised white pixel."""
    if name != "epsilon-gamma-box":
        return resolve(name)
    black, white = (preprocessing.normalise(torch.full((3, 1, 1), value)) for value in (0.0, 1.0))
    return composite_by_name(name, low=black, high=white)


def variant_name(pruning: Pruning) -> str:
    """The name of a pruning in figures: `PLRP-λ, gain 1, p = 0.15`."""
    gain = "" if pruning.sparsity_gain is None else f", gain {pruning.sparsity_gain:g}"
    return f"{pruning.label}{gain}" + ("" if pruning.p is None else f", p = {pruning.p:g}")


def categories_of(model: LoadedModel, classes: int) -> tuple[str, ...]:
    """The names of a model's classes: its own, ImageNet's if there are 1,000, or else numbers."""
    if model.categories is not None:
        if len(model.categories) != classes:
            raise ClassError(f"{model.name} has {classes} outputs but {len(model.categories)} class names.")
        return model.categories
    if classes == 1000:
        return imagenet_categories()
    return tuple(f"class {number}" for number in range(classes))


def class_number(target: int | str, categories: Sequence[str]) -> int:
    """The number of a class given by number or by name, ignoring case and underscores."""
    if isinstance(target, int) or target.strip().lstrip("-").isdigit():
        number = int(target)
        if not 0 <= number < len(categories):
            raise ClassError(f"there is no class {number}: the model has 0 to {len(categories) - 1}.")
        return number
    plain = [name.lower().replace("_", " ") for name in categories]
    wanted = target.strip().lower().replace("_", " ")
    if wanted in plain:
        return plain.index(wanted)
    close = close_names(wanted, categories, 5)
    hint = (
        f"the nearest are {', '.join(f'{name} ({categories.index(name)})' for name in close)}"
        if close
        else f"give a number from 0 to {len(categories) - 1}"
    )
    raise ClassError(f"no class is called {target!r}; {hint}.")
