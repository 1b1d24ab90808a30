"""Examples: heatmaps over p, logos, and the samples that gain most and least from pruning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plrp.experiments import score_figures
from plrp.experiments.aligned_scores import LABELS, LRP, Method, nearest_share, plain, signed
from plrp.experiments.pages import escape, table
from plrp.experiments.sample_drawings import SequenceLogo, picture_of, strips
from plrp.genomics.sequences import decode
from plrp.spelling import shortened
from plrp.view import Bundle, Page, maps_bundle
from plrp.vision.photograph_figures import comparison_figure, grid_of, hide_empty, outline, show_map, show_picture

from .runs import TitledRun
from .sheets import Sheets

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_P = (0.05, 0.15, 0.3, 0.6, 0.9)
"""The columns of the heatmap grid, where their maps were stored."""
DRAWN = ("lambda", "M", "M-sign")
"""The variants that are drawn with LRP, where their maps were stored."""
GRIDS = 2
SLIDES = 4
EXTREMES = 3


def render(runs: Sequence[TitledRun], sheets: Sheets) -> str:
    """Grids, strips and logos where maps were kept; the samples with the largest and smallest gain of every run."""
    parts = []
    for run in runs:
        blocks = []
        if run.results.has_maps and run.results.mapped:
            drawn = {"image": _grids, "dna": _logos, "array": _arrays}[run.results.kind](run, sheets)
            blocks.append(drawn or f"<p>{escape(_undrawn(run))}</p>")
            blocks.append(_slides(run))
        blocks.append(_extremes(run, sheets))
        if any(blocks):
            parts += [f"<h3>{escape(run.title)}</h3>", *blocks]
    if parts and not any(run.results.has_maps for run in runs):
        parts.insert(0, "<p>No relevance maps were kept, so there is nothing to draw: set <code>[maps]</code> in the "
                        "config to keep some.</p>")  # fmt: skip
    return "\n".join(parts)


# -- heatmaps


def _grids(run: TitledRun, sheets: Sheets) -> str:
    """The paper's figure 4: a row per variant, a column per p."""
    from PIL import Image

    r, photographs = run.results, run.results.kind == "image"
    stored = sorted({p for variant, p in r.map_cells if variant in DRAWN and p > 0})
    shares = sorted({p for p in (nearest_share(shown, stored) for shown in SHOWN_P) if p is not None})
    variants = [v for v in DRAWN if any(variant == v for variant, _ in r.map_cells)]
    if not shares or not variants:
        return ""
    what = "photograph" if photographs else "input"
    parts = []
    for sample in _first(run, GRIDS):
        maps = {LABELS[v]: {p: r.maps(sample, v, p) for p in shares} for v in variants}
        picture = Image.fromarray(r.inputs(sample) if photographs else picture_of(r.inputs(sample)))
        name = run.sample_name(sample) if photographs else f"sample {run.sample_name(sample)}"
        parts.append(
            sheets.photograph(
                f"{run.slug}-heatmaps-{sample}",
                partial(_grid, picture, r.maps(sample, "LRP", 0.0), maps, what),
                f"{name}: the {what}, its LRP heatmap, and heatmaps of {', '.join(maps)} at p = "
                f"{', '.join(f'{p:g}' for p in shares)}; below each the share of pixels that hold relevance.",
                f"{escape(name)} (the paper's figure 4). Red speaks for the class, blue against it; every map has its "
                "own scale.",
            )
        )
    return "\n".join(parts)


def _grid(picture: Any, baseline: Any, maps: Mapping[str, Mapping[float, Any]], what: str, narrow: bool) -> Figure:
    """The heatmaps beside picture and baseline: all of them, or on a narrow screen two of each variant."""
    shares = list(next(iter(maps.values())))
    if narrow and len(shares) > 2:
        maps = {variant: {p: by_p[p] for p in (shares[1], shares[-1])} for variant, by_p in maps.items()}
    return comparison_figure(picture, baseline, maps, name=what)


def _first(run: TitledRun, count: int) -> list[int]:
    """The first samples with maps, those predicted correctly before the others, different classes before the same.

    Maps without relevance show nothing and come last.
    """
    samples = run.results.samples.set_index("sample")
    mapped = [s for s in run.results.mapped if s in samples.index]
    if ("LRP", 0.0) in run.results.map_cells:
        mapped.sort(key=lambda s: not run.results.maps(s, "LRP", 0.0).any())
    right = samples["correct"].fillna(True).astype(bool)  # where there is no label, none is wrong
    chosen, seen = [], set()
    for sample in sorted(mapped, key=lambda s: not right[s]):
        if samples["target"][sample] not in seen:
            chosen.append(sample)
            seen.add(samples["target"][sample])
    rest = [s for s in mapped if s not in chosen]
    return (chosen + rest)[:count]


# -- all stored p behind a slider


def _slides(run: TitledRun) -> str:
    """The first samples with every p whose maps were kept, in the page of `plrp.view`; nothing where it shows none."""
    r = run.results
    shares = {v: {p for variant, p in r.map_cells if variant == v and p > 0} for v in DRAWN}
    variants = [v for v in DRAWN if shares[v]]
    common = sorted(set.intersection(*(shares[v] for v in variants))) if variants else []
    if not common or ("LRP", 0.0) not in r.map_cells or (r.kind == "array" and _axes(run) != 2):
        return ""
    bundles = [_slide(run, sample, variants, common) for sample in _first(run, SLIDES)]
    return f"<p>Slide p over the maps that were kept:</p>{Page(bundles).frame(height=720)}" if bundles else ""


def _slide(run: TitledRun, sample: int, variants: Sequence[str], shares: Sequence[float]) -> Bundle:
    r = run.results
    maps = {LABELS[v]: {p: r.maps(sample, v, p) for p in shares} for v in variants}
    target = r.samples.set_index("sample").loc[sample]["target"]
    mask, given = r.mask(sample), r.inputs(sample)
    options: dict[str, Any] = {"title": run.sample_name(sample), "model": run.title, "target": f"class {target}"}
    if r.kind == "dna":
        options |= {"letters": decode(given[None])[0], "sites": [(a, b, "") for a, b in stretches(mask)]}
    else:
        options["picture"] = given if r.kind == "image" else picture_of(given)
    return maps_bundle(
        r.maps(sample, "LRP", 0.0),
        maps,
        start=(LABELS[variants[0]], nearest_share(run.example_p, shares) or shares[0]),
        mask=mask if mask is not None and mask.any() else None,
        **options,
    )


# -- arrays


def _arrays(run: TitledRun, sheets: Sheets) -> str:
    """Samples of a user's own: with two axes heatmaps as of photographs, with one axis strips below each other."""
    axes = _axes(run)
    if axes == 1:
        return "\n".join(_strips(run, sheets, sample) for sample in _first(run, GRIDS))
    return _grids(run, sheets) if axes == 2 else ""


def _axes(run: TitledRun) -> int:
    """The number of axes of a map: of a sample without its channels."""
    return run.results.maps(run.results.mapped[0], *run.results.map_cells[0]).ndim


def _strips(run: TitledRun, sheets: Sheets, sample: int) -> str:
    maps = _example_maps(run, sample, ",\n")
    if not maps:
        return ""
    name, mask = f"sample {run.sample_name(sample)}", run.results.mask(sample)
    array = np.atleast_2d(run.results.inputs(sample))  # a sample of mere numbers has no channels
    return sheets.photograph(
        f"{run.slug}-strips-{sample}",
        partial(strips, array, maps, mask),
        f"{name}: the input, and its relevance by {', '.join(maps).replace(chr(10), ' ')}, along its positions.",
        f"{escape(name)}. Red speaks for the class, blue against it; every map has its own scale"
        f"{'' if mask is None else '; the mask is shaded'}.",
    )


def _example_maps(run: TitledRun, sample: int, separator: str) -> dict[str, npt.NDArray[np.float32]]:
    """The maps of a sample by LRP and by each variant at the p closest to the exemplary one, by their names."""
    maps = {}
    for variant in ("LRP", *DRAWN):
        p = nearest_share(run.example_p, [q for v, q in run.results.map_cells if v == variant])
        if p is not None:
            name = LABELS[variant] if variant == "LRP" else f"{LABELS[variant]}{separator}p = {p:g}"
            maps[name] = run.results.maps(sample, variant, p)
    return maps


def _undrawn(run: TitledRun) -> str:
    """The reason why stored maps are not drawn."""
    count, axes = len(run.results.mapped), _axes(run)
    maps = f"Relevance maps of {count} sample{'s' * (count != 1)} were kept"
    if run.results.kind == "array" and axes not in (1, 2):
        why = f"they have {axes} axes, and maps with one or two axes are drawn"
    else:
        why = "of none of PLRP-λ, PLRP-M and PLRP-M±, which are drawn beside LRP"
    return f"{maps}, but {why}. Results.load({run.path!r}).maps(…) reads them."


# -- logos


def _logos(run: TitledRun, sheets: Sheets) -> str:
    """The paper's figure 5: truth, LRP, PLRP-λ and PLRP-M as letters, one sequence of each class."""
    return "\n".join(logo(run, sheets, sample, f"{run.slug}-logos-{sample}") for sample in _first(run, 4))


def logo(run: TitledRun, sheets: Sheets, sample: int, name: str, note: str = "") -> str:
    """One sequence with its mask, LRP, and the variants that are drawn."""
    maps, mask = _example_maps(run, sample, "\n"), run.results.mask(sample)
    if not maps:
        return ""
    rows: dict[str, npt.ArrayLike] = {**({} if mask is None else {"truth": mask}), **maps}
    sites = stretches(mask)
    title, letters = run.sample_name(sample), decode(run.results.inputs(sample)[None])[0]
    where = ", ".join(f"{a} to {b - 1}" for a, b in sites)
    return sheets.photograph(
        name,
        SequenceLogo(title, rows, letters, [(a, b, "") for a, b in sites]).draw,
        f"{title}: logos of {', '.join(rows).replace(chr(10), ' ')}" + (f"; motifs at bases {where}" if sites else ""),
        note or "Letters as tall as the relevance of their base (the paper's figure 5); motifs shaded.",
    )


def stretches(mask: npt.NDArray[np.bool_] | None) -> list[tuple[int, int]]:
    """The unbroken stretches of a mask, as (start, end); none without a mask."""
    if mask is None:
        return []
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


# -- who gains most and least


def _extremes(run: TitledRun, sheets: Sheets) -> str:
    name, method = run.gain_metric, run.example
    if name is None or method is None:
        return ""
    m = run.scores
    gain = m.at(name, method) - m.at(name, LRP)
    known = np.flatnonzero(np.isfinite(gain))
    if not len(known):
        return ""
    order = known[np.argsort(-gain[known], kind="stable")]
    count = min(EXTREMES, (len(order) + 1) // 2)
    most, least = order[:count], order[len(order) - min(count, len(order) - count) :]
    rows, plain_rows = [], []
    for word, k in [*(("largest", k) for k in most), *(("smallest", k) for k in least)]:
        sample, numbers = int(m.samples[k]), [float(v[k]) for v in (m.at(name, LRP), m.at(name, method), gain)]
        rows.append([word, escape(run.sample_name(sample)), *map(plain, numbers[:2]), signed(numbers[2])])
        plain_rows.append([run.title, word, sample, run.sample_name(sample), *numbers])
    about = score_figures.metric(name).words
    sheets.table(f"{run.slug}-extremes", ["run", "gain", "sample", "name", "lrp", "plrp", "difference"], plain_rows)
    parts = [
        f"<p>Largest and smallest gain in {escape(about)} from LRP to PLRP-λ at p = {method.p:g}; it rises in "
        f"{int((gain[known] > 0).sum()):,} of {len(known):,} samples.</p>",
        table(["gain", "sample", "LRP", f"PLRP-λ, p = {method.p:g}", "difference"], rows),
    ]
    gains = {int(m.samples[k]): float(gain[k]) for k in order}
    return "\n".join([*parts, *_drawn_extremes(run, sheets, method, gains, about)])


def _drawn_extremes(
    run: TitledRun, sheets: Sheets, method: Method, gains: dict[int, float], about: str
) -> Iterator[str]:
    """The same samples drawn, where there are maps of them; `gains` by sample, the largest first."""
    mapped = set(run.results.mapped) if run.results.has_maps else set()
    drawn = [sample for sample in gains if sample in mapped]
    if not drawn or (method.variant, method.p) not in run.results.map_cells:
        return
    if len(drawn) > 1 and run.results.kind == "image":
        few = min(EXTREMES, len(drawn) // 2)
        shown = [*drawn[:few], *drawn[-few:]]
        whose = f"The {few} samples with the largest (first) and the {few} with the smallest gain"
        if few == 1:
            whose = "The samples with the largest (first) and the smallest gain"
        among = "" if len(drawn) == len(gains) else f" of the {len(drawn)} whose maps were kept"
        yield sheets.photograph(
            f"{run.slug}-extremes",
            partial(_photographs_with_maps, run, shown, method, gains),
            "; ".join(f"{run.sample_name(s)}: {about} {signed(gains[s])}" for s in shown),
            f"{whose}{among}: photograph with the outline of its mask, LRP, PLRP-λ at p = {method.p:g}.",
        )
    elif run.results.kind == "dna":
        for word, sample in {"largest": drawn[0], "smallest": drawn[-1]}.items():
            about_map = f"The {word} gain among the sequences whose maps were kept."
            yield logo(run, sheets, sample, f"{run.slug}-{word}-gain", about_map)


def _photographs_with_maps(
    run: TitledRun, samples: Sequence[int], method: Method, gains: Mapping[int, float], narrow: bool
) -> Figure:
    """Per sample its photograph, LRP and PLRP; two samples per row, or on a narrow screen one."""
    r = run.results
    columns = 1 if narrow else 2
    lines = -(-len(samples) // columns)
    figure, axes = grid_of(lines, 3 * columns, side=1.7, bar=False)
    for k, sample in enumerate(samples):
        line, column = axes[k % lines], 3 * (k // lines)
        first, *others = line[column : column + 3]
        show_picture(first, r.inputs(sample), shortened(run.sample_name(sample), 20))  # type: ignore[arg-type]
        mask = r.mask(sample)
        if mask is not None and mask.any() and not mask.all():
            outline(first, mask)
        first.set_xlabel(f"gain {signed(gains[sample])}", fontsize=7, color="#5a6675", labelpad=2)
        titles = {LRP: "LRP", method: f"{LABELS[method.variant]}, p = {method.p:g}"}
        for ax, (one, title) in zip(others, titles.items(), strict=True):
            show_map(ax, r.maps(sample, one.variant, one.p), title, colour_bar=False)
    hide_empty(axes)
    return figure
