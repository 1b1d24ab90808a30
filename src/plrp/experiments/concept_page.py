"""The page of `plrp exemplars`: channels with their patches, the channels that classes use, prototypes and outliers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plrp.concepts.channel_figures import picture_of
from plrp.concepts.exemplar_results import Exemplars, class_channels, prototypes
from plrp.concepts.numbered_inputs import NumberedInputs
from plrp.view.bundle import data_address

from .pages import cards, data_uri, escape, page, picture, section, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST = 4  # inputs of a class whose channels are listed
COMPONENTS = 3
THUMBNAIL = 96  # pixels


def render_concepts(
    exemplars: Exemplars, inputs: NumberedInputs, figures: dict[str, Figure], categories: Sequence[str] | None = None
) -> str:
    """The page as one HTML document; `figures` are the patches of each layer's channels."""
    unit, body = exemplars.unit, cards({"inputs": f"{len(exemplars.names):,}", "layers": f"{len(exemplars)}"})
    for layer, figure in figures.items():
        body += section(
            f"{unit.capitalize()}s of {layer}",
            f"<p>Each row is a {unit} of the layer's output. Its patches are cut from the inputs that gave it most, "
            f"and masked by the relevance that passes this {unit} alone, where it is strongest.</p>",
            picture(data_uri(figure, "png", 130), f"patches of {unit}s of {layer}", plate=True),
        )
    for layer in exemplars:
        body += _classes(exemplars, layer, categories)
        body += _prototypes(exemplars, layer, inputs)
    lead = f"What the {unit}s of a network stand for, by the inputs that gave them most relevance."
    return page("Concepts", lead, body)


def _classes(exemplars: Exemplars, layer: str, categories: Sequence[str] | None) -> str:
    counted = Counter(int(c) for c in exemplars.classes if c >= 0)
    rows = []
    for number, count in counted.most_common(12):
        if count < FEWEST:
            break
        name = categories[number] if categories is not None and number < len(categories) else f"class {number}"
        channels = class_channels(exemplars, layer, number, 5)
        used = ", ".join(f"{r['channel']} ({r['share']:.1%}, ×{r['lift']:.2g})" for r in channels)
        rows.append([escape(name), str(count), used])
    if not rows:
        return ""
    return section(
        f"Which {exemplars.unit}s of {layer} does a class use?",
        "<p>Mean share of the layer's relevance in the inputs explained as this class, and how many times as much as "
        f"in the others. Classes with {FEWEST} inputs or more.</p>",
        table(["class", "inputs", f"{exemplars.unit}s (share, lift)"], rows),
    )


def _prototypes(exemplars: Exemplars, layer: str, inputs: NumberedInputs) -> str:
    try:
        ways = prototypes(exemplars, layer, components=COMPONENTS)
    except (ValueError, ImportError) as error:
        return section(f"Prototypes in {layer}", f"<p>None: {escape(error)}</p>")
    rows = []
    for k, typical in enumerate(map(int, ways.typical[:COMPONENTS])):
        count, channels = str((ways.component == k).sum()), ", ".join(map(str, ways.channels(k)))
        rows.append([_thumbnail(inputs, typical), escape(exemplars.names[typical]), count, channels])
    outliers = "".join(_thumbnail(inputs, sample) for sample in ways.outliers(4))
    return section(
        f"Prototypes in {layer}",
        f"<p>Gaussian components over what the {exemplars.unit}s received of each input (its shares of relevance): the "
        "typical ways in which the network used this layer, each with the input nearest to its centre.</p>",
        table(["typical input", "name", "inputs", f"strongest {exemplars.unit}s"], rows),
        f"<p>Inputs that fit none of them, the outliers:</p><div class='grid'>{outliers}</div>",
    )


def _thumbnail(inputs: NumberedInputs, sample: int) -> str:
    address = data_address(picture_of(inputs.batch([sample])[0], inputs), THUMBNAIL)
    name = escape(inputs.names[sample])
    return f'<img src="{address}" alt="{name}" title="{name}" style="width:{THUMBNAIL}px">'
