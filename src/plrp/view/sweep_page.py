"""Pages of relevance that was computed before: the maps of a sweep, without its network, its layers and its ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from plrp import __version__
from plrp.metrics.localization import relevance_mass_accuracy
from plrp.vision.heatmaps import COLOURS, limits_of

from .bundle import Bundle, finite, quantise
from .explanation_page import Site, letter_facts
from .photograph_page import data_address


def maps_bundle(
    lrp: npt.ArrayLike,
    maps: Mapping[str, Mapping[float, npt.ArrayLike]],
    *,
    title: str,
    model: str,
    target: str,
    start: tuple[str, float],
    composite: str = "",
    letters: str | None = None,
    sites: Sequence[Site] = (),
    picture: npt.NDArray[np.uint8] | None = None,
    mask: npt.ArrayLike | None = None,
) -> Bundle:
    """A bundle of stored maps: that of LRP, and of each method (by its label) at each p, all (*space).

    letters: of a sequence, whose maps are (position,); otherwise maps are (height, width) and `picture` what lies under
    them. start: the method and p to begin with.
    """
    methods, proportions = list(maps), sorted(next(iter(maps.values())))
    if any(sorted(by_p) != proportions for by_p in maps.values()):
        raise ValueError("Every method needs a map at the same p.")
    ordered = [np.asarray(m, np.float64) for m in (lrp, *(maps[name][p] for name in methods for p in proportions))]
    levels, largest = zip(*map(quantise, ordered), strict=True)
    curves: dict[str, list[float | None]] = {
        "holding": [float((m != 0).mean()) for m in ordered],
        "kept": [None] * len(ordered),
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        "maps": np.stack(levels),
        "left": np.zeros((len(ordered), 0, 3), np.uint32),
        "channels": np.zeros(0, np.int8),
        "through": np.zeros((0, *ordered[0].shape), np.int8),
    }
    if mask is not None:
        where = torch.as_tensor(np.asarray(mask)).bool()[None]
        shares = [float(relevance_mass_accuracy(torch.from_numpy(m)[None], where)[0]) for m in ordered]
        curves["inside"] = [finite(share) for share in shares]
        arrays["mask"] = where[0].numpy().astype(np.uint8)
    facts = {
        "plrp": __version__,
        "title": title,
        "model": model,
        "composite": composite,
        "head": None,
        "space": list(ordered[0].shape),
        "p": proportions,
        "methods": [{"key": name, "label": name} for name in methods],
        "start": {"target": 0, "method": methods.index(start[0]), "p": proportions.index(start[1])},
        "targets": [{"number": None, "name": target, "score": None, "probability": None}],
        "scores": [None],
        "largest": {"maps": list(largest), "through": []},
        "limits": [float(limits_of(m.reshape(1, 1, -1))[0]) for m in ordered],
        "problems": [None] * len(ordered),
        "curves": curves,
        "layers": [],
        "channels": [],
        "ledger": [],
        "flow": None,
        "colours": COLOURS,
    }
    if letters is not None:
        return Bundle({**facts, **letter_facts(letters, sites)}, arrays)
    address = None if picture is None else data_address(picture)
    return Bundle({**facts, "kind": "picture", "picture": address}, arrays)
