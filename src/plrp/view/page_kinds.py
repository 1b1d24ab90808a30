"""Pages of every kind of input: photographs, any `Explanation`, sequences, texts, and maps of a sweep.

Each `…_bundle` computes the bundle of a page (`plrp.view.page_data.collect`), and adds the facts of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from plrp.balance import unwarned
from plrp.concepts.channel_figures import Reading
from plrp.explanation import CHANGED, Explanation
from plrp.genomics.attribution import composite_from_text, pool
from plrp.genomics.seqlets import find_seqlets, match_seqlets, strongest_stretches
from plrp.genomics.sequence_settings import COMPOSITE
from plrp.genomics.sequences import LETTERS, Ambiguous, Sequences, encode
from plrp.models.preprocessing import Preprocessing
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.references import References
from plrp.request import Request
from plrp.spelling import shortened, visible
from plrp.tape.trace import Trace
from plrp.tape.values import tensors_in
from plrp.tape.verification import trace as trace_model
from plrp.text.text_explanation import ExplainedSpan, ExplainedText
from plrp.vision.photograph_explanation import ExplainedPhotograph, class_probabilities

from .bundle import Bundle, data_address, finite
from .layer_channels import ChannelPatches, Pool, layer_inputs
from .page_data import Grid, PageMaps, PageSettings, as_map, collect, map_shape

TEXT_PROPORTIONS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
MANY_LAYERS = 60  # of a language model: following the channels of each takes too long
NAMED = 1e-3
"""A seqlet is named after its best match up to this p of TOMTOM; others are marked without a name."""
Site = tuple[int, int, str]
_ROUNDING = {torch.float64: 1e-10, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # of the largest output


# --- photographs ------------------------------------------------------------------------------------------------------


def photograph_bundle(
    explained: ExplainedPhotograph,
    *,
    variant: str | None = None,
    mask: Tensor | npt.ArrayLike | None = None,
    **size: Any,
) -> Bundle:
    """A photograph for every p, for PLRP-λ and PLRP-M±, for its strongest classes: `plrp explain -o x.html`.

    variant: the one of `explained.relevance` that was asked for (default: the last). mask: bool (height, width), as the
        network sees it (`plrp.vision.network_mask`). size: `proportions`, `targets`, `inside`, … of `PageSettings`.
    """
    settings = PageSettings(**size)
    variant = variant or list(explained.prunings)[-1]
    asked = explained.prunings[variant]
    chosen = _classes(explained.logits, explained.target, settings.targets)
    grid = Grid.around(asked, chosen, chosen.index(explained.target), settings.proportions)
    where = _fitting_mask(mask, map_shape(explained.trace))
    bundle = collect(explained.trace, grid, explained.composite, settings, mask=where)
    bundle.facts.update(
        kind="picture",
        title=explained.photograph.name,
        model=explained.model.name.split(":")[-1],
        targets=target_facts(chosen, explained.logits, explained.categories, explained.exclusive),
        picture=data_address(np.asarray(explained.picture.convert("RGB"))),
    )
    if variant in explained.verdicts:
        bundle.facts["verdict"] = {"of": variant, **explained.verdicts[variant].facts()}
    return bundle


def _verdict_facts(explanation: Explanation, sample: int = 0) -> dict[str, Any]:
    """For the page: the network's verdict on one sample, if it was asked."""
    if explanation.verdict is None:
        return {}
    name = "LRP" if explanation.pruning is None else explanation.pruning.title
    return {"verdict": {"of": name, **explanation.verdict.facts(sample)}}


def _classes(logits: Tensor, asked: int, count: int) -> list[int]:
    """The classes of a page: the strongest, and the one asked for, strongest first."""
    order: list[int] = logits.topk(min(count, len(logits))).indices.tolist()
    if asked not in order:
        order[-1:] = [asked]  # in place of the weakest
    return order


def target_facts(
    chosen: Sequence[int], logits: Tensor, categories: Sequence[str] | None, exclusive: bool = True
) -> list[dict[str, Any]]:
    """For the page: number, name, score and probability of each class."""
    shares = class_probabilities(logits.detach().double(), exclusive)
    names = {n: categories[n] if categories is not None else f"class {n}" for n in chosen}
    return [_target(n, name, finite(float(shares[n])), finite(float(logits[n]))) for n, name in names.items()]


def _target(
    number: int | None, name: str, probability: float | None = None, score: float | None = None
) -> dict[str, Any]:
    return {"number": number, "name": name, "score": score, "probability": probability}


def input_picture(inputs: Tensor) -> npt.NDArray[np.uint8] | None:
    """A network's input (channel, height, width) as a picture, uint8 (height, width, 3); None if it cannot be one.

    Values between 0 and 1 are shown as they are. Values in the range of ImageNet's normalisation are denormalised. All
    others are stretched from black to white.
    """
    if inputs.dim() != 3 or len(inputs) not in (1, 3):
        return None
    values = inputs.detach().float().cpu()
    low, high = float(values.min()), float(values.max())
    usual = Preprocessing()
    black, white = (usual.normalise(torch.full((3, 1, 1), end)) for end in (0.0, 1.0))
    if low < 0 and len(values) == 3 and bool((values >= black - 1e-3).all() and (values <= white + 1e-3).all()):
        values = usual.denormalise(values)
    elif low < 0 or high > 1:
        values = (values - low) / max(high - low, 1e-12)
    pixels = (values * 255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
    return pixels.expand(-1, -1, 3).contiguous().numpy()


def _fitting_mask(mask: Tensor | npt.ArrayLike | None, shape: tuple[int, ...]) -> Tensor | None:
    """A mask as bool (*shape), if there is one; refused where it has another shape."""
    if mask is None:
        return None
    fitting = torch.as_tensor(np.asarray(mask.cpu() if isinstance(mask, Tensor) else mask)).bool()
    if tuple(fitting.shape) != shape:
        raise ValueError(
            f"the mask is {tuple(fitting.shape)}, the network sees {shape}: pass it through plrp.vision.network_mask."
        )
    return fitting


# --- explanations -----------------------------------------------------------------------------------------------------


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
    _check_unchanged(explanation, trace, sample, place)
    targets, facts = _targets(explanation, sample, categories, settings.targets)
    asked = targets.index(int(explanation.target[sample])) if isinstance(explanation.target, Tensor) else 0
    grid = Grid.around(explanation.pruning, targets, asked, settings.proportions)
    where = _fitting_mask(mask, space)
    bundle = collect(trace, grid, explanation.composite, settings, mask=where, sample=place, pool=pool)
    for fact, score in zip(facts, bundle.facts["scores"], strict=True):
        fact["score"] = score
    if exemplars is not None:
        with progress("drawing patches", 1, settings.show_progress, transient=True) as step:
            patches = ChannelPatches(exemplars)
            patches.show(bundle.facts["channels"], trace, lambda done, total: step(1, total=total))
            if exemplars.exemplars.unit == "subspace":
                explained = Request(target=targets[asked], composite=explanation.composite, pruning=explanation.pruning)
                to_map = pool or partial(as_map, space=space)
                patches.show_subspaces(bundle, trace, explained, lambda one: to_map(one.relevance[place]))
    bundle.facts.update(title=title or "An explanation", model=model or "a model", targets=facts)
    bundle.facts.update(_verdict_facts(explanation, sample))
    given = trace.now.inputs[0].data[place]
    if given.dim() == 1:
        rows = [_token(text) for text in token_texts(given, tokens)]
        bundle.facts.update(kind="text", tokens=rows, prompt=None, answers="class")
    else:
        bundle.facts.update(
            _letter_facts(_letters(given.detach().cpu()), sites) if len(space) == 1 else _picture(given, picture, space)
        )
    return bundle


def explanation_bundles(explanation: Explanation, samples: Sequence[int], **options: Any) -> list[Bundle]:
    """Several samples, for a gallery; `picture`, `mask`, `sites`, `title` and `tokens` have one entry per sample."""
    own = {name: options.pop(name) for name in ("picture", "mask", "sites", "title", "tokens") if name in options}
    for name, values in own.items():
        if isinstance(values, str) or len(values) != len(samples):
            raise ValueError(f"{name} has one entry per sample of a gallery: {len(samples)}.")
    own.setdefault("title", [f"Sample {sample}" if len(samples) > 1 else "" for sample in samples])
    return [
        explanation_bundle(explanation, sample=sample, **{name: v[number] for name, v in own.items()}, **options)
        for number, sample in enumerate(samples)
    ]


def _space(trace: Trace) -> tuple[int, ...]:
    if trace.samples != 0:
        raise ValueError("A page shows one sample of a batch; this model was explained without a batch axis.")
    shape = tuple(trace.inputs[0].shape) if len(trace.inputs) == 1 else ()
    tokens = len(shape) == 2 and not trace.now.inputs[0].data.is_floating_point()
    if tokens or len(shape) == 4 or (len(shape) == 3 and shape[1] == len(LETTERS)):
        return map_shape(trace)
    what = f"this one is {shape}" if shape else f"this model has {len(trace.inputs)} inputs"
    raise ValueError(
        "A page shows pictures (batch, channel, height, width), one-hot DNA (batch, 4, position) and token ids "
        f"(batch, tokens); {what}."
    )


def _targets(
    explanation: Explanation, sample: int, categories: Sequence[str] | None, count: int
) -> tuple[list[Any], list[dict[str, Any]]]:
    """The targets of the page, and for each the facts that the page shows."""
    before, target = explanation.logits, explanation.target
    if not isinstance(target, Tensor) or not isinstance(before, Tensor) or before.dim() != 2:
        name = f"output {target}" if isinstance(target, tuple) else "the given score"
        single = int(target[sample]) if isinstance(target, Tensor) else target
        return [single], [_target(None, name)]
    logits = before[sample].detach().float().cpu()
    if categories is not None and len(categories) != len(logits):
        raise ValueError(f"{len(categories)} names were given for {len(logits)} classes.")
    chosen = _classes(logits, int(target[sample]), count)
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


def _letters(onehot: Tensor) -> str:
    """The bases of a one-hot sequence (4, position); N where a position has none or several."""
    clear = (onehot.count_nonzero(0) == 1).tolist()
    return "".join(LETTERS[row] if one else "N" for row, one in zip(onehot.argmax(0).tolist(), clear, strict=True))


def _letter_facts(letters: str, sites: Sequence[Site]) -> dict[str, Any]:
    """For the page: a sequence and its marked sites."""
    tracks = [{"sites": [{"start": int(a), "end": int(b), "name": str(name)} for a, b, name in sites]}]
    return {"kind": "sequence", "letters": letters, "tracks": tracks if len(sites) else []}


def token_texts(ids: Tensor, tokens: Sequence[str] | None) -> list[str]:
    """The texts of token ids (tokens,); without `tokens`, the ids themselves."""
    if tokens is not None and len(tokens) != len(ids):
        raise ValueError(f"{len(tokens)} names were given for {len(ids)} tokens.")
    return [f"{number} " for number in ids.tolist()] if tokens is None else list(map(str, tokens))


# --- sequences --------------------------------------------------------------------------------------------------------


def sequence_bundle(
    model: nn.Module,
    sequences: Sequences,
    row: int = 0,
    *,
    target: Any = None,
    composite: str = COMPOSITE,
    pruning: Pruning | None = None,
    pooling: Any = "present",
    ambiguous: Ambiguous = "zero",
    match: bool = False,
    name: str = "",
    device: str | torch.device | None = None,
    trace: Trace | None = None,
    reference: Any = None,
    **size: Any,
) -> Bundle:
    """One sequence for every p, for its strongest classes: `plrp genomics explain … --html`.

    match: name the seqlets of the setting asked for by their nearest JASPAR motif. name: of the model, for the head of
    the page. trace: of this sequence, if there is one already. reference: as in `plrp.explain`; relevance is then
    summed over letters, since a difference has the reference's too. size: see `explanation_bundle`; 5 targets by
    default.
    """
    onehot = encode(sequences[[row]], ambiguous)
    if trace is None:
        inputs = torch.from_numpy(onehot) if device is None else torch.from_numpy(onehot).to(device)
        against = None if reference is None else References.given(reference, inputs, equal=True)
        trace = trace_model(model, inputs, reference=against)
    pooling = pooling if trace.now is trace else "sum"
    with unwarned():  # the page says it
        explanation = trace.explain(target=target, composite=composite_from_text(composite, trace), pruning=pruning)
    per_base = pool(explanation.relevance.detach().cpu().numpy(), onehot, pooling)
    present = torch.from_numpy(onehot[0] != 0).double()
    bundle = explanation_bundle(
        explanation,
        sites=_seqlet_sites(per_base, onehot, match),
        title=sequences.names[row],
        model=name or type(model).__name__,
        pool=None if pooling == "sum" else lambda relevance: (relevance.detach().double().cpu() * present).sum(0),
        **{"targets": 5, **size},
    )
    if trace.head not in ("softmax", "log_softmax"):  # classes need not exclude each other: the page shows their scores
        for fact in bundle.facts["targets"]:
            fact["probability"] = None
    return bundle


def _seqlet_sites(per_base: Any, onehot: Any, match: bool) -> list[Site]:
    seqlets = find_seqlets(per_base)
    if len(seqlets) > per_base.shape[-1] // 20:  # hardly pruned: seqlets nearly everywhere mark nothing
        seqlets = seqlets.chosen(abs(seqlets.score).argsort()[::-1][:12])
    names = [""] * len(seqlets)
    if match and len(seqlets):
        matches = match_seqlets(seqlets, onehot, per_base)
        names = [one.motif.name if one.p <= NAMED else "" for one in matches]
        seqlets = strongest_stretches(seqlets, per_base)  # the name stands over the site, not over background
    return [(int(a), int(b), name) for a, b, name in zip(seqlets.start, seqlets.end, names, strict=True)]


# --- texts ------------------------------------------------------------------------------------------------------------


def text_bundle(explained: ExplainedText | ExplainedSpan, *, model: str = "", title: str = "", **size: Any) -> Bundle:
    """A text for every p, for PLRP-λ and PLRP-M±: `plrp text … -o x.html`.

    title, model: for the head of the page. size: `proportions`, `targets`, `inside`, … of `PageSettings`. `targets` is
    the number of most probable answers; the targets of a span are its tokens, each with the tokens before it. By
    default the strongest channels of every layer are followed, unless the model has very many layers.
    """
    each = list(explained) if isinstance(explained, ExplainedSpan) else [explained]
    first = each[0].traced
    if first is None or any(one.traced is None for one in each):
        raise ValueError("This text was stored without its model: explain it again for a page.")
    inside = size.pop("inside", None) or ("all" if len(layer_inputs(first.trace)) <= MANY_LAYERS else "graph")
    settings = PageSettings(**{"proportions": TEXT_PROPORTIONS, "inside": inside, **size})
    if isinstance(explained, ExplainedSpan):  # its tokens are the targets
        targets = [one.traced.score_of(one.number, one.other, one.how) for one in each if one.traced is not None]
        facts = [_target(None, visible(f"{n}. {one.target}"), one.probability) for n, one in enumerate(each, 1)]
    else:
        targets, facts = _answers(explained, settings.targets)
    explanation = each[0].explanation
    grid = Grid.around(explanation.pruning, targets, 0, settings.proportions)
    bundle = collect(first.trace, grid, explanation.composite, settings)
    for number, target in enumerate(facts):
        target["score"] = bundle.facts["scores"][number]
    tokens = explained.tokens
    if isinstance(explained, ExplainedSpan):  # tokens that were not read do not count
        holding = bundle.facts["curves"]["holding"]
        read = [len(one.tokens) for one in each for _ in grid.prunings]
        bundle.facts["curves"]["holding"] = [h * len(tokens) / n for h, n in zip(holding, read, strict=True)]
    text = "".join(token.text for token in tokens if not token.special)
    bundle.facts["curves"]["tokens"] = _tokens_cut(bundle, len(grid.prunings))
    bundle.facts.update(
        kind="text",
        title=title or shortened(visible(" ".join(text.split())), 80),
        model=model or type(first.model).__name__,
        targets=facts,
        tokens=[_token(visible(t.shown) or "⋯", "\n" in t.text, t.special, t.word) for t in tokens],
        prompt=explained.prompt if isinstance(explained, ExplainedSpan) else None,
        answers=each[0].kind,
    )
    bundle.facts.update(_verdict_facts(explanation))
    return bundle


def _tokens_cut(bundle: Bundle, each: int) -> list[float]:
    """Of each map, the share of tokens that hold no relevance where they do under LRP, mean over the layers.

    The input of a language model is never pruned, so that hardly any token ends at exactly 0. each: maps of a target.
    """
    held = bundle.arrays["left"][:, :, 2].astype(float)  # (map, layer)
    plain = held[::each].repeat(each, 0)
    shares = np.divide(held, plain, out=np.zeros_like(held), where=plain > 0).sum(1) / np.maximum((plain > 0).sum(1), 1)
    return [float(1 - share) for share in shares]


def _answers(explained: ExplainedText, count: int) -> tuple[list[Any], list[dict[str, Any]]]:
    """The explained answer and the most probable other ones as targets, and for each the facts that the page shows."""
    traced = explained.traced
    assert traced is not None
    asked = explained.number, explained.other
    others = [(number, None) for number, _ in traced.best(count) if (number, None) != asked]
    chosen = [asked, *others][: max(count, 1)]
    names = [traced.answer(a) + ("" if b is None else f" rather than {traced.answer(b)}") for a, b in chosen]
    scores, one = traced.scores.float(), traced.kind == "similarity"
    # 'a rather than b' is probable as a is if the model had to choose between the two
    shares = [float(traced.probabilities[a] if b is None else (scores[a] - scores[b]).sigmoid()) for a, b in chosen]
    named = zip(chosen, names, shares, strict=True)
    facts = [_target(a, visible(name), None if one else share) for (a, _), name, share in named]
    return [traced.score_of(*answer, explained.how) for answer in chosen], facts


def _token(text: str, ends_line: bool = False, special: bool = False, word: int | None = None) -> dict[str, Any]:
    return {"text": text, "break": ends_line, "special": special, "word": word}


# --- maps of a sweep --------------------------------------------------------------------------------------------------


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
        "targets": [_target(None, target)],
        "scores": [None],
        "remarks": [None] * len(ordered),
        "layers": [],
        "channels": [],
        "ledger": [],
        "flow": None,
    }
    if letters is not None:
        facts |= _letter_facts(letters, sites)
    else:
        facts |= {"kind": "picture", "picture": None if picture is None else data_address(picture)}
    left = np.zeros((len(ordered), 0, 3), np.uint32)
    return series.bundle(facts, {"left": left, "channels": np.zeros(0, np.int8)})
