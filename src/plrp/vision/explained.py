"""One photograph explained: prediction, relevance per variant, figures, and a file that records how it was made."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from plrp import __version__
from plrp.composites import Composite, resolve
from plrp.composites import composite as composite_by_name
from plrp.errors import UsageError
from plrp.health import Health
from plrp.models.loading import LoadedModel, imagenet_categories, load
from plrp.models.preprocessing import Preprocessing
from plrp.pruning import Pruning
from plrp.spelling import close_names
from plrp.tape.trace import Trace
from plrp.tape.tracing import trace as trace_model

from .beside import check_methods, maps_beside
from .figures import comparison_figure, explanation_figure, percent
from .flows import flow, thinning
from .layers import flow_figure, thinning_figure
from .photographs import Photograph, as_photograph
from .preprocessing import network_input, network_picture
from .saved import SavedRelevance, save_relevance

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

LRP = "LRP"


class ClassError(UsageError):
    """A class that the model does not have, or class names that do not fit it."""


@dataclass(frozen=True, repr=False)
class ExplainedPhotograph:
    """What a model saw in a photograph, and why.

    relevance: of the class `target`, by variant, "LRP" first; each (3, height, width).
    prunings: how each variant was pruned; None for LRP.
    unhealthy: what is wrong with a variant's explanation, for those that should not be believed as they are.
    beside: maps of other methods, by their titles; each (3 or 1, height, width).
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
    beside: Mapping[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        lines = [f"{self.title}, {self.composite.name}"]
        lines += [f"  {name}: {percent(share)} of pixels" for name, share in self.pixels().items()]
        return "\n".join(lines + [f"  {name} is {health}" for name, health in self.unhealthy.items()])

    def _repr_png_(self) -> bytes:
        """The figure, where a notebook shows this."""
        content = io.BytesIO()
        self.figure().savefig(content, format="png", dpi=110)
        return content.getvalue()

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
            self.picture,
            self.relevance,
            classes=classes,
            target=self.target_name,
            title=self.title,
            beside=self.beside,
            **options,
        )

    def comparison(self, **options: Any) -> Figure:
        """The grid of variants and proportions (`plrp.vision.comparison_figure`)."""
        rows: dict[str, dict[float, Tensor]] = {}
        for name, pruning in self.prunings.items():
            if pruning is not None and pruning.p is not None:
                rows.setdefault(name.split(", p =")[0], {})[pruning.p] = self.relevance[name]
        lrp = self.relevance[LRP]
        return comparison_figure(self.picture, lrp, rows, title=self.title, beside=self.beside, **options)

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
        """Write relevance, logits and settings as `.npz`, which `plrp.load` brings back."""
        settings = {
            "plrp": __version__,
            "photograph": str(self.photograph.path),
            "model": self.model.name,
            "weights": self.model.weights,
            "composite": self.composite.name,
            "prunings": {name: None if p is None else p.to_dict() for name, p in self.prunings.items()},
        }
        seen, picture = self.trace.inputs[0].data[0].cpu(), np.asarray(self.picture)
        save_relevance(
            path, SavedRelevance(self.relevance, seen, picture, self.logits, self.target, self.target_name, settings)
        )


@overload
def explain_photograph(
    photograph: list[Any] | tuple[Any, ...],
    model: LoadedModel | nn.Module | str,
    *,
    target: int | str | None = None,
    prunings: Sequence[Pruning] = (Pruning(),),
    composite: str = "epsilon-plus-flat",
    device: str | torch.device = "cpu",
    beside: Sequence[str] = (),
) -> list[ExplainedPhotograph]: ...
@overload
def explain_photograph(
    photograph: str | Path | Photograph | Image | np.ndarray | Tensor,
    model: LoadedModel | nn.Module | str,
    *,
    target: int | str | None = None,
    prunings: Sequence[Pruning] = (Pruning(),),
    composite: str = "epsilon-plus-flat",
    device: str | torch.device = "cpu",
    beside: Sequence[str] = (),
) -> ExplainedPhotograph: ...
def explain_photograph(
    photograph: Any,
    model: LoadedModel | nn.Module | str,
    *,
    target: int | str | None = None,
    prunings: Sequence[Pruning] = (Pruning(),),
    composite: str = "epsilon-plus-flat",
    device: str | torch.device = "cpu",
    beside: Sequence[str] = (),
) -> ExplainedPhotograph | list[ExplainedPhotograph]:
    """Explain a photograph with LRP and with each of `prunings`, from one forward pass.

    photograph: a file's path or address (https://…, file://…), a Pillow picture, an array (height, width[, 3]) or a
        tensor (3, height, width) of pixels, 0…255 as integers or 0…1; a list of these gives a list.
    model: what `plrp.models.load` returns, or a name for it to load; a plain module gets photographs as most of
        torchvision's models do (the default `Preprocessing`).
    target: a class by number or by name; by default the winning class.
    beside: other methods whose maps are drawn beside ours: "gradcam", "gradient-input", "ig".
    """
    check_methods(beside)
    if isinstance(model, str):
        model = load(model)
    elif isinstance(model, nn.Module):
        model = LoadedModel(model, type(model).__name__, "its own")
    if isinstance(photograph, list | tuple):
        options: dict[str, Any] = {"target": target, "prunings": prunings, "composite": composite, "device": device}
        return [explain_photograph(one, model, beside=beside, **options) for one in photograph]
    photograph = as_photograph(photograph)
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
    others = maps_beside(model.module, inputs, lambda output: output[:, chosen], beside)
    return ExplainedPhotograph(
        photograph, picture, model, rules, logits, chosen, categories, relevance, variants, trace, unhealthy, others
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
    """The number of a class given by number or by name, ignoring case and underscores.

    It may say more than the class does: `tabby cat` finds `tabby`. A name that fits several classes is refused with
    their numbers.
    """
    if isinstance(target, int) or target.strip().lstrip("-").isdigit():
        number = int(target)
        if not 0 <= number < len(categories):
            raise ClassError(f"there is no class {number}: the model has 0 to {len(categories) - 1}.")
        return number
    plain = [name.lower().replace("_", " ") for name in categories]
    wanted = target.strip().lower().replace("_", " ")
    words = set(wanted.split())
    exact = [number for number, name in enumerate(plain) if name == wanted]
    part = [number for number, name in enumerate(plain) if name and set(name.split()) < words]
    found = exact or part
    if len(found) == 1:
        return found[0]
    close = found or [categories.index(name) for name in close_names(wanted, categories, 5)]
    named = ", ".join(f"{categories[number]} ({number})" for number in close)
    if found:
        raise ClassError(f"{len(found)} classes are called {target!r}: {named}; give the number of one.")
    hint = f"the nearest are {named}" if close else f"give a number from 0 to {len(categories) - 1}"
    raise ClassError(f"no class is called {target!r}; {hint}.")
