"""One photograph explained: prediction, relevance per variant, figures, and a file that records how it was made.

`load` reads such a file, and the file of any other explanation.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from plrp import __version__
from plrp.balance import Balance
from plrp.composites import Composite, resolve
from plrp.composites import composite as composite_by_name
from plrp.explanation import Against
from plrp.explanation_files import KIND, SavedExplanation, read_explanation, write_arrays
from plrp.files import plausible_size
from plrp.metrics.verdicts import Verdict, ask_about
from plrp.models.loading import LoadedModel
from plrp.models.loading import load as load_model
from plrp.models.preprocessing import Preprocessing
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.references import References
from plrp.references import mean as mean_of
from plrp.runs.memory import TooLarge, read_arrays
from plrp.settings import read_reference
from plrp.spelling import printable
from plrp.tape.difference import DifferenceTrace
from plrp.tape.trace import Trace
from plrp.target_text import TargetError, class_number
from plrp.targets import contrast

from .detection import is_detector, own_preprocessing
from .flows import flow, thinning, token_depths
from .layer_figures import flow_figure, thinning_figure, tokens_figure
from .other_methods import check_methods, maps_beside
from .photograph_figures import comparison_figure, explanation_figure, percent
from .photograph_settings import PhotographSettings
from .photographs import Photograph, as_photograph, network_input, photographs_in, read_photograph
from .picture_targets import PicturePart, aim

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

LRP = "LRP"
Model = LoadedModel | nn.Module | str


def class_probabilities(logits: Tensor, exclusive: bool = True) -> Tensor:
    """Softmax of the logits (classes,), or the sigmoid where there is only one or they do not exclude each other."""
    return logits.softmax(0) if exclusive and len(logits) > 1 else logits.sigmoid()


@dataclass(frozen=True, repr=False)
class ExplainedPhotograph:
    """A photograph, the model's prediction for it, and the relevance of its pixels.

    relevance: of the class `target` (rather than `against`, if there is one), by variant, "LRP" first; each (3, height,
    width).
    prunings: how each variant was pruned; None for LRP.
    place: the part of the photograph that was asked about, whose scores are the `logits`; None for the whole.
    exclusive: whether the classes exclude each other.
    broken: the balance of each variant whose arithmetic broke; remarks: the same in a few words, or that a score is 0.
    beside: maps of other methods, by their titles; each (3 or 1, height, width).
    reference: f(x), f(x⁰) and the spread, if the difference to a reference was explained; the `trace` is one then.
    verdicts: the network's verdicts on the tested variants.
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
    place: PicturePart | None = None
    exclusive: bool = True
    broken: Mapping[str, Balance] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    against: int | None = None
    reference: Against | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    @property
    def explained(self) -> Any:
        """The target of the explanation: the class, or its contrast with another."""
        return self.target if self.against is None else contrast(self.target, self.against)

    def __repr__(self) -> str:
        lines = [f"{self.title}, {self.composite.name}"]
        lines += [f"  {name}: {percent(share)} of pixels" for name, share in self.pixels().items()]
        lines += [f"  {name}: {self.broken.get(name, remark)}" for name, remark in self.remarks.items()]
        lines += [f"  {name}: {verdict.words()}" for name, verdict in self.verdicts.items()]
        return printable("\n".join(lines))

    def _repr_png_(self) -> bytes:
        """The figure, where a notebook shows this."""
        content = io.BytesIO()
        self.figure().savefig(content, format="png", dpi=110)
        return content.getvalue()

    @property
    def probabilities(self) -> Tensor:
        """Of each class, (classes,)."""
        return class_probabilities(self.logits, self.exclusive)

    @property
    def target_name(self) -> str:
        """The name of the explained class."""
        return self.categories[self.target]

    @property
    def score(self) -> float:
        """The explained score: of the class, minus that of the class against it; its difference to a reference."""
        if self.reference is not None:
            return float(self.reference.facts()["difference"])
        return float(self.logits[self.target]) - (0.0 if self.against is None else float(self.logits[self.against]))

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
        score, where = float(self.logits[self.target]), "" if self.place is None else f" {self.place.words}"
        network, than = self.model.name.split(":")[-1], ""
        if self.against is not None:
            score -= float(self.logits[self.against])
            than = f" rather than {self.categories[self.against]}"
        against = "" if self.reference is None else f", {self.reference.words()}"
        return f"{self.photograph.name}: {self.target_name}{than}{where} (score {score:.2f}), {network}{against}"

    @property
    def _about(self) -> dict[str, Any]:
        """The options that both figures share."""
        return {"title": self.title, "beside": self.beside, "remarks": self.remarks}

    def figure(self, **options: Any) -> Figure:
        """Photograph, heatmaps, prediction, overlay and outline (`plrp.vision.explanation_figure`)."""
        classes = [(name, probability) for name, _, probability in self.top()]
        if self.target_name not in dict(classes):
            classes[-1:] = [(self.target_name, float(self.probabilities[self.target]))]
        shown = {"classes": classes, "target": self.target_name, "place": self.place, **self._about, **options}
        return explanation_figure(self.picture, self.relevance, **shown)

    def comparison(self, **options: Any) -> Figure:
        """The grid of variants and proportions (`plrp.vision.comparison_figure`)."""
        rows: dict[str, dict[float, Tensor]] = {}
        for name, pruning in self.prunings.items():
            if pruning is not None and pruning.p is not None:
                rows.setdefault(name.split(", p =")[0], {})[float(pruning.p)] = self.relevance[name]
        return comparison_figure(self.picture, self.relevance[LRP], rows, **{**self._about, **options})

    def layer_figures(
        self,
        variant: str | None = None,
        patches: Callable[[dict[str, tuple[int, ...]]], Mapping[str, Mapping[int, np.ndarray]]] | None = None,
    ) -> dict[str, Figure]:
        """How sparse relevance is by depth (`layers`) and where it flows (`flow`), for a variant (default: the last).

        For a network with attention, also which patches and heads carry it (`tokens`). `patches`: from layers and their
        channels to pictures of the channels' exemplars, see `flow_figure`.
        """
        name = variant or list(self.prunings)[-1]
        pruning = self.prunings[name]
        options: dict[str, Any] = {"target": self.explained, "composite": self.composite}
        plain = thinning(self.trace, self.trace.explain(layers=True, **options))
        explanation = self.trace.explain(layers=True, pruning=pruning, **options)
        title = f"{self.title}, {name}"
        flows = flow(self.trace, pruning=pruning, **options)
        wanted = {level.source: (*level.shown, *level.pruned) for level in flows.levels if level.source}
        drawn = patches(wanted) if patches is not None else None
        figures = {
            "layers": thinning_figure(plain, thinning(self.trace, explanation), name=name, title=self.title),
            "flow": flow_figure(flows, target=self.target_name, title=title, patches=drawn),
        }
        depths = token_depths(self.trace, explanation)
        return {**figures, "tokens": tokens_figure(depths, title=title)} if depths else figures

    def test(self, *variants: str, budget: int = 128, **options: Any) -> dict[str, Verdict]:
        """Ask the network whether the maps of some variants are true (default: the last); see `plrp.Explanation.test`.

        They share its answers: each variant after the first costs the 28 passes of its flipping curves alone.
        """
        names = variants or (list(self.prunings)[-1],)
        first = self.prunings[names[0]]
        known = self.trace.explain(target=self.explained, composite=self.composite, pruning=first)
        others = [self.relevance[name][None] for name in names[1:]]
        self.verdicts.update(zip(names, ask_about(known, *others, budget=budget, **options), strict=True))
        return self.verdicts

    def save(self, path: str | Path) -> None:
        """Write relevance, logits and settings as `.npz`, which `plrp.load` brings back.

        `relevance` is (variant, channels, height, width), `variants` their names, `settings` a JSON record of how it
        was made.
        """
        settings = {
            "plrp": __version__,
            "photograph": str(self.photograph.path),
            "model": self.model.name,
            "weights": self.model.weights,
            "composite": self.composite.name,
            "place": None if self.place is None else self.place.words,
            "against": self.against,
            **({} if self.reference is None else {"reference": self.reference.facts()}),
            "remarks": dict(self.remarks),
            "verdicts": {name: verdict.facts() for name, verdict in self.verdicts.items()},
            "prunings": {name: None if p is None else p.to_dict() for name, p in self.prunings.items()},
        }
        write_arrays(
            path,
            {**settings, "target": self.target, "target_name": self.target_name},
            relevance=np.stack([r.numpy() for r in self.relevance.values()]),
            variants=np.array(list(self.relevance)),
            input=self.trace.now.inputs[0].data[0].cpu().numpy(),
            picture=np.asarray(self.picture),
            logits=self.logits.numpy(),
            target=np.array(self.target),
        )


@dataclass(frozen=True, repr=False)
class SavedRelevance:
    """The relevance of one photograph, read back from a file.

    relevance: by variant, "LRP" first; each (channels, height, width).
    input: the network's input, (channels, height, width); picture: the same as pixels, uint8 (height, width, 3).
    settings: how it was made: plrp's version, photograph, model, weights, composite, prunings.
    """

    relevance: Mapping[str, Tensor]
    input: Tensor
    picture: np.ndarray
    logits: Tensor
    target: int
    target_name: str
    settings: Mapping[str, Any]

    def figure(self, **options: Any) -> Figure:
        """Photograph, heatmaps, overlay and outline (`plrp.vision.explanation_figure`)."""
        from PIL import Image

        name, score = Path(self.settings["photograph"]).stem, float(self.logits[self.target])
        title = f"{name}: {self.target_name} (score {score:.2f}), {self.settings['model'].split(':')[-1]}{self.against}"
        shown: dict[str, Any] = {"title": title, "remarks": self.settings.get("remarks"), **options}
        return explanation_figure(Image.fromarray(self.picture), self.relevance, **shown)

    @property
    def against(self) -> str:
        """The reference in words, as the end of a title; empty without one."""
        about = self.settings.get("reference")
        return f", difference {about['difference']:.4g} against {about['reference']}" if about else ""

    def __repr__(self) -> str:
        made = f"{self.settings['model']}, {self.settings['composite']}{self.against}, plrp {self.settings['plrp']}"
        shape = " × ".join(map(str, self.input.shape))
        return printable(
            f"Relevance of {self.settings['photograph']} for {self.target_name} (class {self.target}), {shape}\n"
            f"by {made}: {'; '.join(self.relevance)}"
        )


def load(path: str | Path, *, largest: int | None = None) -> SavedRelevance | SavedExplanation:
    """Bring back the numbers of an explanation (`explanation.save("x.npz")`) or of an explained photograph
    (`plrp explain --save x.npz`, `ExplainedPhotograph.save`).

    A file that unpacks to more than `largest` bytes is refused; None: more than 100 times its own size and 256 MB.
    """
    try:
        arrays = read_arrays(path, largest=plausible_size(path) if largest is None else largest)
        settings = json.loads(str(arrays["settings"]))
        if settings.get("kind") == KIND:
            return read_explanation(arrays, settings)
        return SavedRelevance(
            {str(name): torch.from_numpy(r) for name, r in zip(arrays["variants"], arrays["relevance"], strict=True)},
            torch.from_numpy(arrays["input"]),
            arrays["picture"],
            torch.from_numpy(arrays["logits"]),
            int(arrays["target"]),
            settings["target_name"],
            settings,
        )
    except TooLarge:
        raise
    except OSError as error:
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} does not exist.") from error
        raise ValueError(f"{path} cannot be read ({error.strerror or 'it is no .npz file'}).") from error
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged, or was not written by `plrp explain --save` or explanation.save."
        ) from error


@overload
def explain_photograph(
    photograph: list[Any] | tuple[Any, ...], model: Model, settings: PhotographSettings | None = None, **changes: Any
) -> list[ExplainedPhotograph]: ...
@overload
def explain_photograph(
    photograph: str | Path | Photograph | Image | np.ndarray | Tensor,
    model: Model,
    settings: PhotographSettings | None = None,
    **changes: Any,
) -> ExplainedPhotograph: ...
def explain_photograph(
    photograph: Any, model: Model, settings: PhotographSettings | None = None, **changes: Any
) -> ExplainedPhotograph | list[ExplainedPhotograph]:
    """Explain a photograph with LRP and with several prunings, from one forward pass.

    photograph: a file's path or address (https://…, file://…), a Pillow picture, an array (height, width[, 3]) or a
        tensor (3, height, width) of pixels, 0…255 as integers or 0…1; a list of these gives a list.
    model: from `plrp.models.load`, or a name for it to load; a plain module gets photographs as most of
        torchvision's models do (the default `Preprocessing`).
    settings: the fields of `PhotographSettings` may be given as keywords: `target`, `against`, `prunings`, `composite`,
        `reference`, `device`, `beside`.
    """
    settings = PhotographSettings.of(settings, changes)
    check_methods(settings.beside)
    if isinstance(model, str):
        model = load_model(model)
    elif isinstance(model, nn.Module):
        model = LoadedModel(model, type(model).__name__, "its own")
    settings = replace(settings, reference=photograph_reference(settings.reference, model))
    if isinstance(photograph, list | tuple):
        return [_explain_one(as_photograph(one), model, settings) for one in photograph]
    return _explain_one(as_photograph(photograph), model, settings)


def _explain_one(photograph: Photograph, model: LoadedModel, settings: PhotographSettings) -> ExplainedPhotograph:
    aimed = aim(model, photograph, settings.target, str(settings.device))
    chosen = aimed.target
    other = None if settings.against is None else class_number(settings.against, aimed.categories)
    if chosen == other:
        raise TargetError(f"the class and the one against it are both {aimed.categories[chosen]!r}: name two.")
    score = chosen if other is None else contrast(chosen, other)
    spelt = score if callable(score) else lambda output: output[:, chosen]
    others = maps_beside(aimed.module, aimed.trace.inputs[0].data, spelt, settings.beside)
    if settings.reference is not None:
        references = References.given(settings.reference, aimed.trace.inputs[0].data)
        aimed = aimed._replace(trace=DifferenceTrace(aimed.trace, references).check_supported())
    prunings = (Pruning(),) if settings.prunings is None else settings.prunings
    asked, variants = [None, *prunings], dict[str, Pruning | None]()
    rules = composite_for(settings.composite, model, aimed.trace)
    explanations = aimed.trace.sweep(asked, target=score, composite=rules)
    relevance, broken, remarks, against = {}, {}, {}, None
    for one, explanation in zip(asked, explanations, strict=True):
        pruning = one and replace(one, p=(explanation.pruning or one).p)
        name = LRP if pruning is None else pruning.title
        variants[name] = pruning
        relevance[name], against = explanation.relevance[0].float().cpu(), explanation.reference
        if any(explanation.problems()):
            broken[name] = explanation.balance
        if (remark := explanation.remarks()[0]) is not None:
            remarks[name] = remark
    return ExplainedPhotograph(
        photograph=photograph,
        model=model,
        composite=rules,
        relevance=relevance,
        prunings=variants,
        broken=broken,
        remarks=remarks,
        beside=others,
        against=other,
        reference=against,
        **{name: value for name, value in aimed._asdict().items() if name != "module"},
    )


def photograph_reference(given: Any, model: LoadedModel, show_progress: bool | None = False) -> Any:
    """A reference as `plrp.explain` takes it: of `mean:FOLDER` the mean of the folder's photographs."""
    if not isinstance(given, str) or read_reference(given)[0] != "mean":
        return given
    folder = Path(read_reference(given)[1])
    if is_detector(model.module):
        raise ValueError("A detector's pictures have different sizes, and so no mean: take --reference blur:8.")
    paths = photographs_in(folder) if folder.is_dir() else []
    if not paths:
        raise ValueError(f"reference {given!r}: there is no folder {folder} with photographs in it.")

    def inputs() -> Iterator[Tensor]:
        with progress("reading the reference", len(paths), show_progress, transient=True) as step:
            for path in paths:
                yield network_input(read_photograph(path), model.preprocessing or Preprocessing())[None]
                step(1)

    return replace(mean_of(inputs()), name=f"mean:{folder.name} ({len(paths)} photographs)")


def composite_for(name: str, model: LoadedModel, trace: Trace) -> Composite:
    """A composite by name; the box of `epsilon-gamma-box` goes from a normalised black to a normalised white pixel."""
    if name != "epsilon-gamma-box":
        return resolve(name, (value.data for value in trace.inputs), trace)
    preprocessing = own_preprocessing(model.module) or model.preprocessing or Preprocessing()
    black, white = (preprocessing.normalise(torch.full((3, 1, 1), value)) for value in (0.0, 1.0))
    return composite_by_name(name, low=black, high=white)
