"""Pages of any `Explanation`: pictures, and one-hot sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plrp.concepts.channel_figures import Reading
from plrp.explanation import CHANGED, Explanation
from plrp.genomics.sequences import LETTERS
from plrp.progress import progress
from plrp.tape.trace import Trace
from plrp.tape.values import tensors_in

from .bundle import Bundle
from .channel_patches import ChannelPatches
from .grid import Grid
from .page_data import PageSettings, classes, collect, map_shape
from .paths import Pool
from .photograph_page import data_address, fitting_mask, input_picture, target_facts

Site = tuple[int, int, str]
_ROUNDING = {torch.float64: 1e-10, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # of the largest output


def explanation_bundle(
    explanation: Explanation,
    *,
    sample: int = 0,
    picture: Any = None,
    mask: Tensor | npt.ArrayLike | None = None,
    sites: Sequence[Site] = (),
    categories: Sequence[str] | None = None,
    title: str = "",
    model: str = "",
    pool: Pool | None = None,
    tokens: Sequence[str] | None = None,
    exemplars: Reading | None = None,
    **size: Any,
) -> Bundle:
    """One sample of an explanation for every p, for PLRP-λ and PLRP-M±, for its strongest classes.

    The input is a picture (batch, channel, height, width), one-hot DNA (batch, 4, position) or token ids (batch,
    tokens).

    picture: drawn under the relevance, a Pillow picture or array (height, width, 3); by default the input.
    mask: bool (height, width) or (position,), where the evidence should lie.
    sites: stretches of a sequence to mark, each (start, end, name).
    categories: names of the classes. title, model: for the head of the page.
    pool: from the relevance of a sample to its map; by default the sum over channels.
    tokens: the texts of this sample's token ids.
    exemplars: a search for exemplars in pictures, with the model and data of the search
        (`plrp.concepts.Reading(results, model, data)`); the page shows patches for the strongest channels.
    size: `proportions`, `targets`, `inside`, `report` and `show_progress` of `PageSettings`. A target that is not a
        class is the only one.
    """
    settings = PageSettings(**size)
    trace, place = explanation.trace_sample(sample)
    space = _space(trace)
    targets, facts = _targets(explanation, trace, sample, place, categories, settings.targets)
    asked = targets.index(int(explanation.target[sample])) if isinstance(explanation.target, Tensor) else 0
    grid = Grid.around(explanation.pruning, targets, asked, settings.proportions)
    where = None if mask is None else fitting_mask(mask, space)
    bundle = collect(trace, grid, explanation.composite, settings, mask=where, sample=place, pool=pool)
    for number, target in enumerate(facts):
        target["score"] = bundle.facts["scores"][number]
    if exemplars is not None:
        with progress("drawing patches", 1, settings.show_progress, transient=True) as step:
            ChannelPatches(exemplars).show(bundle.facts["channels"], trace, lambda done, total: step(1, total=total))
    bundle.facts.update(title=title or "An explanation", model=model or "a model", targets=facts)
    given = trace.inputs[0].data[place]
    if given.dim() == 1:
        bundle.facts.update(_tokens(given, tokens))
    else:
        bundle.facts.update(_sequence(given, sites) if len(space) == 1 else _picture(given, picture, space))
    return bundle


def explanation_bundles(explanation: Explanation, samples: Sequence[int], **options: Any) -> list[Bundle]:
    """Several samples, for a gallery; `picture`, `mask`, `sites`, `title` and `tokens` have one entry per sample."""
    own = {name: options.pop(name) for name in ("picture", "mask", "sites", "title", "tokens") if name in options}
    for name, values in own.items():
        if isinstance(values, str) or len(values) != len(samples):
            raise ValueError(f"{name} has one entry per sample of a gallery: {len(samples)}.")
    titles = own.pop("title", [f"Sample {sample}" if len(samples) > 1 else "" for sample in samples])
    return [
        explanation_bundle(
            explanation,
            sample=sample,
            title=titles[number],
            **{name: values[number] for name, values in own.items()},
            **options,
        )
        for number, sample in enumerate(samples)
    ]


def _space(trace: Trace) -> tuple[int, ...]:
    if trace.samples is None:
        raise ValueError("A page shows one sample of a batch; this model was explained without a batch axis.")
    shape = tuple(trace.inputs[0].shape) if len(trace.inputs) == 1 else ()
    tokens = len(shape) == 2 and not trace.inputs[0].data.is_floating_point()
    if tokens or len(shape) == 4 or (len(shape) == 3 and shape[1] == len(LETTERS)):
        return map_shape(trace)
    what = f"this one is {shape}" if shape else f"this model has {len(trace.inputs)} inputs"
    raise ValueError(
        "A page shows pictures (batch, channel, height, width), one-hot DNA (batch, 4, position) and token ids "
        f"(batch, tokens); {what}."
    )


def _targets(
    explanation: Explanation,
    trace: Trace,
    sample: int,
    place: int,
    categories: Sequence[str] | None,
    count: int,
) -> tuple[list[Any], list[dict[str, Any]]]:
    """The targets of the page, and for each the facts that the page shows."""
    _check_unchanged(explanation, trace, sample, place)
    before, target = explanation.logits, explanation.target
    if not isinstance(target, Tensor) or not isinstance(before, Tensor) or before.dim() != 2:
        name = f"output {target}" if isinstance(target, tuple) else "the given score"
        single = int(target[sample]) if isinstance(target, Tensor) else target
        return [single], [{"number": None, "name": name, "score": None, "probability": None}]
    logits = before[sample].detach().float().cpu()
    if categories is not None and len(categories) != len(logits):
        raise ValueError(f"{len(categories)} names were given for {len(logits)} classes.")
    chosen = classes(logits, int(target[sample]), count)
    return list(chosen), target_facts(chosen, logits, categories)


def _check_unchanged(explanation: Explanation, trace: Trace, sample: int, place: int) -> None:
    """Refuse a changed model: every output must be as before, up to the rounding of another batch size."""
    batches = len(explanation.score), trace.inputs[0].samples.batch
    before, now = (list(tensors_in(output)) for output in (explanation.logits, trace.output))
    if len(before) != len(now):
        raise RuntimeError(CHANGED)
    for old, new in zip(before, now, strict=True):
        if not old.numel() or not old.dim() or (len(old), len(new)) != batches or old.shape[1:] != new.shape[1:]:
            continue  # samples do not lie along the first axis
        was, is_now = old[sample].double(), new[place].double()
        largest = float(was.nan_to_num(0, 0, 0).abs().amax())
        allowed = _ROUNDING.get(old.dtype, 1e-4) * largest
        if not torch.allclose(was, is_now, rtol=0, atol=allowed, equal_nan=True):
            raise RuntimeError(CHANGED)


def _picture(given: Tensor, picture: Any, space: tuple[int, ...]) -> dict[str, Any]:
    pixels = input_picture(given) if picture is None else np.asarray(picture)[..., :3]
    if pixels is not None and (pixels.shape != (*space, 3) or pixels.dtype != np.uint8):
        raise ValueError(
            f"the picture is {pixels.dtype} {pixels.shape}, the input {space}: pass uint8 (height, width, 3), "
            "as the network sees it (plrp.vision.network_picture)."
        )
    return {"kind": "picture", "picture": None if pixels is None else data_address(pixels)}


def _sequence(given: Tensor, sites: Sequence[Site]) -> dict[str, Any]:
    onehot = given.detach().cpu()
    clear = (onehot.count_nonzero(0) == 1).tolist()
    letters = [LETTERS[row] if one else "N" for row, one in zip(onehot.argmax(0).tolist(), clear, strict=True)]
    return letter_facts("".join(letters), sites)


def letter_facts(letters: str, sites: Sequence[Site]) -> dict[str, Any]:
    """For the page: a sequence and its marked sites."""
    tracks = [{"sites": [{"start": int(a), "end": int(b), "name": str(name)} for a, b, name in sites]}]
    return {"kind": "sequence", "letters": letters, "tracks": tracks if len(sites) else []}


def _tokens(ids: Tensor, tokens: Sequence[str] | None) -> dict[str, Any]:
    if tokens is not None and len(tokens) != len(ids):
        raise ValueError(f"{len(tokens)} names were given for {len(ids)} tokens.")
    texts = [f"{number} " for number in ids.tolist()] if tokens is None else list(map(str, tokens))
    rows = [{"text": text, "break": False, "special": False, "word": None} for text in texts]
    return {"kind": "text", "tokens": rows, "prompt": None, "answers": "class"}
