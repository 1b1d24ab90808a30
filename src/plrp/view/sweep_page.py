"""Pages of maps that a sweep computed before: they have no network, no layers and no ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from .bundle import Bundle
from .explanation_page import Site, letter_facts
from .page_data import PageMaps
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
    """A bundle of stored maps (*space): the map of LRP, and by label of the method the map at each p.

    letters: of a sequence, whose maps are (position,). Other maps are (height, width), drawn over `picture`.
    start: the method and p to begin with.
    """
    methods, proportions = list(maps), sorted(next(iter(maps.values())))
    if any(sorted(by_p) != proportions for by_p in maps.values()):
        raise ValueError("Every method needs a map at the same p.")
    ordered = [lrp, *(maps[name][p] for name in methods for p in proportions)]
    series = PageMaps(None if mask is None else torch.as_tensor(np.asarray(mask)).bool())
    for relevance in ordered:
        series.add(np.asarray(relevance, np.float64))
    facts = {
        "title": title,
        "model": model,
        "composite": composite,
        "head": None,
        "p": proportions,
        "methods": [{"key": name, "label": name} for name in methods],
        "start": {"target": 0, "method": methods.index(start[0]), "p": proportions.index(start[1])},
        "targets": [{"number": None, "name": target, "score": None, "probability": None}],
        "scores": [None],
        "problems": [None] * len(ordered),
        "layers": [],
        "channels": [],
        "ledger": [],
        "flow": None,
    }
    if letters is not None:
        facts |= letter_facts(letters, sites)
    else:
        facts |= {"kind": "picture", "picture": None if picture is None else data_address(picture)}
    left = np.zeros((len(ordered), 0, 3), np.uint32)
    return series.bundle(facts, {"left": left, "channels": np.zeros(0, np.int8)}, ([], []))
