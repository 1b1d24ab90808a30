"""Results of a search: for each channel the inputs that stand for it, and the channels that classes use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plrp.runs.places import Place
from plrp.spelling import nearest
from plrp.tables import render_table


@dataclass(frozen=True)
class Exemplar:
    """One input that stands for a channel.

    sample: its number in the data, name: its name there; value: the channel's share of the layer's relevance in this
    input (`LayerTotals.shares`), or its largest activation; place: where in the channel's map it is strongest: (row,
    column), (position,), (token,).
    """

    sample: int
    name: str
    value: float
    place: tuple[int, ...]


@dataclass(frozen=True)
class LayerTotals:
    """The channels of a layer's output over some inputs; each array is (samples, channels).

    relevance: summed over the positions; absolute: Σ|R| over them; activation: the largest value; relevant_at,
    active_at: the position with the largest relevance or activation, an index into the flattened `space` of the output.
    """

    relevance: npt.NDArray[np.float32]
    absolute: npt.NDArray[np.float32]
    activation: npt.NDArray[np.float32]
    relevant_at: npt.NDArray[np.int32]
    active_at: npt.NDArray[np.int32]
    space: tuple[int, ...]

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """The relevance of each input divided by its Σ|R| over the channels, so that inputs with large scores count no
        more than others; zeros where no relevance arrived.
        """
        relevance = self.relevance.astype(np.float64)
        total = np.abs(relevance).sum(1, keepdims=True)
        return np.divide(relevance, total, out=np.zeros_like(relevance), where=total > 0)


class Exemplars(Mapping[str, LayerTotals]):
    """The relevance and activation of channels in all inputs, by layer; `of` gives a channel's exemplars.

    names: of the inputs; classes: the explained class of each input, -1 where the target was no class; settings: of the
    search.
    """

    def __init__(
        self,
        layers: Mapping[str, LayerTotals],
        names: Sequence[str],
        classes: npt.NDArray[np.int64],
        settings: Mapping[str, Any],
    ) -> None:
        self.layers, self.names, self.classes, self.settings = dict(layers), list(names), classes, dict(settings)

    @property
    def unit(self) -> str:
        """The word for a channel: a search may have subspaces in their place."""
        return "subspace" if "subspaces" in self.settings else "channel"

    def __getitem__(self, layer: str) -> LayerTotals:
        if layer not in self.layers:
            raise KeyError(f"Layer '{layer}' was not searched{nearest(layer, list(self.layers))}.")
        return self.layers[layer]

    def __iter__(self) -> Any:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def of(self, layer: str, channel: int, count: int = 8, by: str = "relevance") -> list[Exemplar]:
        """The inputs in which a channel has the largest share of relevance, or is most active, strongest first.

        Only inputs with a positive value are exemplars.
        """
        totals = self[layer]
        strongest_at = {"relevance": totals.relevant_at, "activation": totals.active_at}
        if by not in strongest_at:
            raise ValueError(f"by is 'relevance' or 'activation', got {by!r}.")
        channels = totals.relevance.shape[1]
        if not 0 <= channel < channels:
            raise IndexError(f"There is no {self.unit} {channel} in '{layer}': it has {channels}, 0…{channels - 1}.")
        values = totals.shares[:, channel] if by == "relevance" else totals.activation[:, channel]
        places = strongest_at[by][:, channel]
        order = [s for s in np.argsort(-values, kind="stable")[:count].tolist() if values[s] > 0]
        at = [tuple(int(i) for i in np.unravel_index(places[s], totals.space)) for s in order]
        return [Exemplar(s, self.names[s], float(values[s]), place) for s, place in zip(order, at, strict=True)]

    def strongest(self, layer: str, count: int = 8, samples: Iterable[int] | None = None) -> list[int]:
        """The channels that speak most for the explained classes, by their positive shares of relevance in all inputs,
        or in some `samples`.
        """
        shares = self[layer].shares if samples is None else self[layer].shares[list(samples)]
        return np.argsort(-shares.clip(min=0).sum(0), kind="stable")[:count].tolist()

    def table(self) -> list[dict[str, Any]]:
        """A record per channel: its share of the layer's Σ|R| over all inputs, as Yeom et al. (2021) rank neurons, its
        mean relevance, and in how many inputs it holds any. A list of records that pandas takes as it is.
        """
        rows = []
        for layer, totals in self.layers.items():
            total = totals.absolute.sum(dtype=np.float64)
            for channel, (absolute, relevance) in enumerate(zip(totals.absolute.T, totals.relevance.T, strict=True)):
                share = float(absolute.sum(dtype=np.float64) / total) if total else 0.0
                mean = float(relevance.mean(dtype=np.float64)) if len(relevance) else 0.0
                inputs = int(np.count_nonzero(absolute))
                rows.append({"layer": layer, "channel": channel, "share": share, "mean": mean, "inputs": inputs})
        return rows

    def __repr__(self) -> str:
        head = f"Exemplars of {len(self.names):,} inputs"
        rows = []
        for layer, totals in self.layers.items():
            best = ", ".join(map(str, self.strongest(layer, 5)))
            with_relevance = np.count_nonzero(totals.absolute.sum(0))
            rows.append((layer, str(totals.relevance.shape[1]), str(with_relevance), best))
        return f"{head}\n" + render_table(("layer", f"{self.unit}s", "with relevance", "strongest"), rows)

    @classmethod
    def load(cls, out: str | Path | Place) -> Exemplars:
        """The results of `exemplars(…, out=…)` or `plrp exemplars` in a folder; all parts must be there."""
        from .search import load_exemplars

        return load_exemplars(out)


# --- classes: the channels that they use, and their few typical ways to use them (Dreyer et al. 2024) -----------------
# A *concept vector* is the relevance that the channels of one layer receive for one input: a row of `shares`.


def concept_vectors(
    exemplars: Exemplars, layer: str, explained: int | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The inputs of a class (None: all) that gave the layer any relevance, and their vectors (inputs, channels)."""
    shares = exemplars[layer].shares
    chosen = shares.any(1)
    if explained is not None:
        chosen &= exemplars.classes == explained
    rows = np.flatnonzero(chosen)
    return rows, shares[rows]


def class_channels(exemplars: Exemplars, layer: str, explained: int, count: int = 8) -> list[dict[str, Any]]:
    """The channels of a layer that a class uses: their mean share of relevance in its inputs, strongest first.

    `others` is the mean share in the inputs of other classes, `lift` the ratio of the two.
    """
    rows, vectors = concept_vectors(exemplars, layer)
    own = exemplars.classes[rows] == explained
    if not own.any():
        raise ValueError(f"No input was explained as class {explained} in layer '{layer}'.")
    mean, others = vectors[own].mean(0), np.zeros(vectors.shape[1]) if own.all() else vectors[~own].mean(0)
    order = np.argsort(-mean, kind="stable")[:count]
    return [
        {
            "channel": int(c),
            "share": float(mean[c]),
            "others": float(others[c]),
            "lift": float(mean[c] / others[c]) if others[c] > 0 else float("inf"),
            "inputs": int(own.sum()),
        }
        for c in order
    ]


@dataclass(frozen=True)
class Prototypes:
    """A few typical ways in which a class uses the channels of a layer.

    samples: the inputs of the class; component: the prototype nearest to each input; centres: (prototypes, channels);
    typical: the input closest to the centre of each prototype; log_likelihood: of each input under the mixture of all
    prototypes, low for an outlier.
    """

    layer: str
    samples: npt.NDArray[np.int64]
    component: npt.NDArray[np.int64]
    centres: npt.NDArray[np.float64]
    typical: npt.NDArray[np.int64]
    log_likelihood: npt.NDArray[np.float64]

    def outliers(self, count: int = 5) -> list[int]:
        """The inputs that fit no prototype, least likely first."""
        return self.samples[np.argsort(self.log_likelihood, kind="stable")[:count]].tolist()

    def channels(self, prototype: int, count: int = 5) -> list[int]:
        """The channels that a prototype uses most."""
        return np.argsort(-self.centres[prototype], kind="stable")[:count].tolist()


def prototypes(
    exemplars: Exemplars,
    layer: str,
    explained: int | None = None,
    *,
    components: int = 3,
    dimensions: int = 16,
    seed: int = 0,
) -> Prototypes:
    """Gaussian components over the concept vectors of a class (None: of all inputs).

    Vectors are first reduced to their `dimensions` principal axes, so that a component has fewer parameters than a
    class has inputs; covariances are diagonal. Needs scikit-learn.
    """
    try:
        from sklearn.decomposition import PCA
        from sklearn.mixture import GaussianMixture
    except ImportError as error:
        raise ImportError("prototypes need scikit-learn: pip install scikit-learn") from error

    rows, vectors = concept_vectors(exemplars, layer, explained)
    if len(rows) < 2 * components:
        of = "all inputs" if explained is None else f"class {explained}"
        raise ValueError(
            f"{len(rows)} inputs of {of} gave layer '{layer}' relevance, too few for {components} prototypes: search "
            f"more data, or ask for {max(1, len(rows) // 2)}."
        )
    axes = PCA(min(dimensions, *vectors.shape), random_state=seed).fit(vectors)
    points = axes.transform(vectors)
    mixture = GaussianMixture(components, covariance_type="diag", reg_covar=1e-6, random_state=seed, n_init=3)
    mixture.fit(points)
    typical = rows[np.linalg.norm(points[:, None] - mixture.means_[None], axis=2).argmin(0)]
    component, centres = mixture.predict(points), axes.inverse_transform(mixture.means_)
    return Prototypes(layer, rows, component, centres, typical, mixture.score_samples(points))
