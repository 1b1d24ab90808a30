"""Which channels a class uses, and its few typical ways to use them (Dreyer et al. 2024).

A *concept vector* is the relevance that the channels of one layer receive for one input, divided by its Σ|R|.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .exemplar_results import Exemplars


def concept_vectors(
    exemplars: Exemplars, layer: str, explained: int | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The inputs of a class (None: all) that gave the layer any relevance, and their vectors (inputs, channels)."""
    relevance = exemplars[layer].relevance.astype(np.float64)
    total = np.abs(relevance).sum(1)
    chosen = total > 0
    if explained is not None:
        chosen &= exemplars.classes == explained
    rows = np.flatnonzero(chosen)
    return rows, relevance[rows] / total[rows, None]


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
    distance = np.linalg.norm(points[:, None] - mixture.means_[None], axis=2)
    return Prototypes(
        layer,
        rows,
        mixture.predict(points),
        axes.inverse_transform(mixture.means_),
        rows[distance.argmin(0)],
        mixture.score_samples(points),
    )
