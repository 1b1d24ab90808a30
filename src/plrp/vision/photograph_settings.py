"""The settings of explaining photographs. No torch here: `plrp explain` makes its options from this class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plrp.settings import Settings, reference_named, setting

if TYPE_CHECKING:
    import torch

    from plrp.pruning import Pruning


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Names separated by commas, or a sequence of them."""
    parts = given.split(",") if isinstance(given, str) else given
    return tuple(part.strip() for part in parts if part.strip())


@dataclass(frozen=True, kw_only=True)
class PhotographSettings(Settings):
    """Which class of a photograph is explained, by which rules, and with which prunings.

    - `target`: a class by number or by name; by default the winning class. For a detector, the most probable box of
      that class; for a segmenter, the area where it wins. `"dog at 120,80"` asks for the box around this point (x, y in
      pixels of the photograph), or for the point itself, and `"at 120,80"` for the winner there;
    - `against`: a second class, by number or by name; the difference of both scores is explained;
    - `prunings`: LRP and each of these are explained; by default PLRP-λ with p = 0.05;
    - `reference`: a name, a tensor or a callable as in `plrp.explain`: the difference to its score is explained. Of
      `"mean:FOLDER"` it is the mean of the folder's photographs, as the network sees them;
    - `beside`: other methods whose maps are drawn too: "gradcam", "gradient-input", "ig", and "lrp", LRP without the
      reference.
    """

    target: int | str | None = setting(
        None,
        "class to explain, by name or number (default: the winner). For a detector this is the most probable box of "
        "that class, for a segmenter the area where the class wins. 'dog at 120,80' asks for the box around that point "
        "(x,y in pixels of the photograph), or for the point itself; 'at 120,80' asks for the winner there",
        metavar="CLASS",
    )
    against: int | str | None = setting(
        None,
        "explain the target's score minus the score of this class: the evidence for one rather than the other. "
        "Evidence that both share cancels, and is not shown",
        metavar="CLASS",
    )
    reference: Any = setting(
        None,
        "explain why the score is not that of a reference, all of the difference: blur:8 (the photograph without its "
        "details), grey (its mean colour), zeros (the colour that the model's preprocessing centres on), or "
        "mean:FOLDER (the mean of a folder's photographs). Answers change with it. It takes about twice as long, "
        "and pruned about six times",
        metavar="NAME",
        check=reference_named("blur", "grey", "zeros", "mean"),
    )
    prunings: Sequence[Pruning] | None = None
    composite: str = setting(
        "auto",
        "rules per layer: auto (default: rescale against a reference, attnlrp for networks with attention, else "
        "epsilon-plus-flat), epsilon-plus, epsilon-alpha2-beta1[-flat], epsilon-gamma[-box], epsilon, attnlrp, cp-lrp, "
        "rescale[-gamma, -plus]",
        metavar="NAME",
    )
    device: str | torch.device = setting("cpu", "cpu, cuda, mps")
    beside: Sequence[str] = setting(
        (),
        "draw the maps of other methods too: gradcam, gradient-input, ig (integrated gradients), lrp (LRP without the "
        "reference)",
        metavar="NAME,…",
        check=names,
    )
