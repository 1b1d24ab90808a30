"""The relevance of a photograph as a file, as `plrp explain --save` writes it; `load` reads any explanation."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from plrp.explanation_files import KIND, SavedExplanation, read_explanation, write_arrays

from .photograph_figures import explanation_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        title = f"{name}: {self.target_name} (score {score:.2f}), {self.settings['model'].split(':')[-1]}"
        shown: dict[str, Any] = {"title": title, "alarms": self.settings.get("unhealthy"), **options}
        return explanation_figure(Image.fromarray(self.picture), self.relevance, **shown)

    def __repr__(self) -> str:
        made = f"{self.settings['model']}, {self.settings['composite']}, plrp {self.settings['plrp']}"
        shape = " × ".join(map(str, self.input.shape))
        return (
            f"Relevance of {self.settings['photograph']} for {self.target_name} (class {self.target}), {shape}\n"
            f"by {made}: {'; '.join(self.relevance)}"
        )


def save_relevance(path: str | Path, saved: SavedRelevance) -> None:
    """Write relevance, logits and settings as `.npz`.

    `relevance` is (variant, channels, height, width), `variants` their names, `settings` a JSON record of how it was
    made.
    """
    write_arrays(
        path,
        {**saved.settings, "target": saved.target, "target_name": saved.target_name},
        relevance=np.stack([r.numpy() for r in saved.relevance.values()]),
        variants=np.array(list(saved.relevance)),
        input=saved.input.numpy(),
        picture=saved.picture,
        logits=saved.logits.numpy(),
        target=np.array(saved.target),
    )


def load(path: str | Path) -> SavedRelevance | SavedExplanation:
    """Bring back the numbers of an explanation (`explanation.save("x.npz")`) or of an explained photograph
    (`plrp explain --save x.npz`, `ExplainedPhotograph.save`).
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
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
    except OSError as error:
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} does not exist.") from error
        raise ValueError(f"{path} cannot be read ({error.strerror or 'it is no .npz file'}).") from error
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is damaged, or was not written by `plrp explain --save` or explanation.save."
        ) from error
