"""Draw relevance: colours symmetric about zero, a robust scale, and no surviving pixel too small to see.

`heatmap` turns relevance into pixels, as an array, a Pillow picture, or a file: PNG (also transparent), SVG or PDF with
labels that stay text.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from plrp.files import new_file, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from PIL.Image import Image

# From most negative through zero to most positive, evenly spaced. Red-green and blue-yellow blind readers can tell red
# from blue and orange from purple; lightness falls evenly towards both ends, so a grey print still shows the strength.
COLOURS: dict[str, tuple[str, ...]] = {
    "red-blue": ("#08306b", "#1f63b0", "#74add9", "#ffffff", "#f79b74", "#d42a20", "#7d0416"),
    "orange-purple": ("#2d0f57", "#6a479f", "#b5a2d4", "#ffffff", "#fbb863", "#d8690a", "#7a3300"),
    "red-blue-dark": ("#bfe6ff", "#4aa5ee", "#154674", "#000000", "#7c1c12", "#f0593a", "#ffd0b5"),
}

Scale = Literal["sample", "shared"]


@dataclass(frozen=True, repr=False)
class Heatmap:
    """Relevance as colours.

    rgba: uint8 (batch, height, width, 4).
    values: the drawn values, channels summed (and dilated), float (batch, height, width).
    limits: the relevance at the ends of the colour scale, (batch,); 0 for a map of zeros.
    """

    rgba: np.ndarray
    values: np.ndarray
    limits: np.ndarray
    colours: str | Colormap
    batched: bool
    gamma: float = 1.0

    def __len__(self) -> int:
        return len(self.rgba)

    def __repr__(self) -> str:
        _, height, width, _ = self.rgba.shape
        ends = ", ".join(f"±{limit:.3g}" for limit in self.limits[:4]) + (" …" if len(self) > 4 else "")
        colours = getattr(self.colours, "name", self.colours)
        return f"Heatmap({len(self)} of {height} × {width} pixels, {colours}, {ends})"

    def numpy(self) -> np.ndarray:
        """The pixels, uint8 (height, width, 4); (batch, height, width, 4) if a batch was given."""
        return self.rgba if self.batched else self.rgba[0]

    def pil(self, index: int = 0) -> Image:
        """One sample as a Pillow picture (RGBA)."""
        from PIL import Image as pil

        return pil.fromarray(self.rgba[index])

    def figure(
        self, titles: Sequence[str] | None = None, *, colour_bar: bool = True, columns: int = 4, side: float = 2.2
    ) -> Figure:
        """A matplotlib figure of all samples, `side` inches each, with a colour bar per sample."""
        from .photograph_figures import grid_of, hide_empty, set_title

        titles = list(titles) if titles is not None else [""] * len(self)
        if len(titles) != len(self):
            raise ValueError(f"{len(titles)} titles were given for {len(self)} heatmaps.")
        _, height, width, _ = self.rgba.shape
        tall = height / width + (0.16 if any(titles) else 0.04)
        figure, axes = grid_of(math.ceil(len(self) / columns), min(columns, len(self)), side=side, tall=tall)
        for ax, pixels, title, limit in zip(axes.flat, self.rgba, titles, self.limits, strict=False):
            ax.imshow(pixels, interpolation="nearest")
            set_title(ax, title)
            if colour_bar and limit > 0:
                add_colour_bar(ax, self.colours, float(limit), self.gamma)
        hide_empty(axes)
        return figure

    def save(
        self, path: str | Path, *, titles: Sequence[str] | None = None, colour_bar: bool | None = None, dpi: int = 200
    ) -> None:
        """Write the heatmap: `.png` holds only the pixels unless titles or a colour bar are requested.

        `.svg` and `.pdf` hold the same pixels, with titles and colour bar as text and vectors. Several heatmaps become
        a figure.
        """
        path = Path(path)
        vector = path.suffix.lower() in (".svg", ".pdf")
        if vector or titles is not None or colour_bar or len(self) > 1:
            bar = vector if colour_bar is None else colour_bar
            save_figure(self.figure(titles, colour_bar=bar), path, dpi=dpi)
        else:
            with new_file(path) as part:
                self.pil().save(part, format="PNG" if path.suffix.lower() == ".png" else None)

    def _repr_png_(self) -> bytes:  # how notebooks show it
        content = io.BytesIO()
        if len(self) == 1:
            self.pil().save(content, format="PNG")
        else:
            self.figure(colour_bar=False).savefig(content, format="png")
        return content.getvalue()


def heatmap(
    relevance: Tensor | np.ndarray,
    *,
    picture: Any = None,
    colours: str | Colormap = "red-blue",
    scale: Scale | float = "sample",
    percentile: float = 99.5,
    gamma: float = 1.0,
    background: Literal["white", "black", "transparent"] | None = None,
    opacity: float = 0.9,
    dilate: int | Literal["auto"] = "auto",
    enlarge: int = 1,
) -> Heatmap:
    """Draw relevance as colours: red supports the class, blue speaks against it, white is zero.

    relevance: (height, width), (channel, height, width) or (batch, channel, height, width); channels are
        summed.
    picture: the background, greyed and faded: a Pillow picture or an array (height, width, 3), or one per sample. The
        heatmap covers it in proportion to its strength.
    colours: "red-blue", "orange-purple" (both also for colour-blind readers), "red-blue-dark", or a diverging colour
        map of matplotlib, by itself or by name.
    scale: "sample" scales every sample by itself, "shared" all of them together; a number is the relevance at the ends
        of the colour scale.
    percentile: the ends of the colour scale are this percentile of |relevance| over the non-zero pixels, so that an
        outlier does not turn everything else white.
    gamma: below 1 makes weak relevance more visible, by |value / limit| ** gamma.
    background: "transparent" shows strength as opacity; by default zero has the middle colour of the scale.
    opacity: of the strongest relevance over a picture.
    dilate: pixels by which each relevant pixel grows, so that a single survivor stays visible; "auto" grows only maps
        with few relevant pixels (by 1 below 3%, by 2 below 0.5%).
    enlarge: every pixel becomes a square with sides of this many pixels.
    """
    sums, batched = summed_over_channels(relevance)
    if not 0 < percentile <= 100:
        raise ValueError(f"percentile is above 0 and at most 100, not {percentile}.")
    if background not in (None, "white", "black", "transparent"):
        raise ValueError(f'background is "white", "black" or "transparent", not {background!r}.')
    if not gamma > 0 or not 0 <= opacity <= 1 or enlarge < 1:
        raise ValueError("gamma is positive, opacity between 0 and 1, enlarge at least 1.")
    values = np.stack([_dilated(one, dilate) for one in sums])
    limits = limits_of(sums, scale, percentile)
    strength = _strength(values, limits, gamma)  # −1 … 1
    table = colour_table(colours)
    # Where opacity shows the strength, the pale middle of the colours would look like fog: start half way out.
    vivid = np.sign(strength) * (0.45 + 0.55 * np.abs(strength))
    cover = np.abs(strength) ** 0.5
    alpha = np.full(values.shape, 255.0)
    if picture is not None:
        under = _faded(picture, values.shape)
        cover = opacity * cover[..., None]
        rgb = under * (1 - cover) + _coloured(vivid, table) * cover
    elif background == "transparent":
        rgb, alpha = _coloured(vivid, table), 255 * cover
    else:
        zero = {None: table[len(table) // 2], "white": np.full(3, 255.0), "black": np.zeros(3)}[background]
        rgb = np.where(strength[..., None] == 0, zero, _coloured(strength, table))
    rgba = np.rint(np.concatenate([rgb, alpha[..., None]], axis=-1)).clip(0, 255).astype(np.uint8)
    return Heatmap(rgba.repeat(enlarge, 1).repeat(enlarge, 2), values, limits, colours, batched, gamma)


def summed_over_channels(relevance: Tensor | np.ndarray) -> tuple[np.ndarray, bool]:
    """Relevance per pixel, float64 (batch, height, width), and whether a batch was given."""
    if hasattr(relevance, "relevance"):
        raise TypeError(f"this is an {type(relevance).__name__}, not relevance: pass explanation.relevance.")
    given = relevance.detach().cpu().double().numpy() if isinstance(relevance, Tensor) else relevance
    values = np.asarray(given, float)
    if values.ndim not in (2, 3, 4) or 0 in values.shape:
        raise ValueError(
            "relevance is (height, width), (channel, height, width) or (batch, channel, height, width), not "
            f"{tuple(values.shape)}."
        )
    if not np.isfinite(values).all():
        raise ValueError("the relevance holds infinite or undefined numbers.")
    batched = values.ndim == 4
    return values.sum(axis=1) if batched else values.reshape(-1, *values.shape[-2:]).sum(axis=0)[None], batched


def limits_of(values: np.ndarray, scale: Scale | float = "sample", percentile: float = 99.5) -> np.ndarray:
    """The relevance at the ends of the colour scale for each sample of (batch, height, width)."""
    if isinstance(scale, (int, float)):
        if not scale > 0:
            raise ValueError(f"the scale's limit is positive, not {scale}.")
        return np.full(len(values), float(scale))
    if scale not in ("sample", "shared"):
        raise ValueError(f'scale is "sample", "shared" or a number, not {scale!r}.')
    samples = [values] if scale == "shared" else list(values)
    limits = [np.percentile(np.abs(v[v != 0]), percentile) if (v != 0).any() else 0.0 for v in samples]
    return np.full(len(values), limits[0]) if scale == "shared" else np.array(limits)


def colour_table(colours: str | Colormap) -> np.ndarray:
    """511 colours from most negative to most positive, zero in the middle: float (511, 3), 0 to 255.

    A colour map whose middle is neither its palest nor its darkest place is refused: there, zero would look like
    relevance.
    """
    if isinstance(colours, str) and colours in COLOURS:
        stops = np.array([[int(code[i : i + 2], 16) for i in (1, 3, 5)] for code in COLOURS[colours]], float)
        at = np.linspace(-1, 1, len(stops))
        return np.stack([np.interp(np.linspace(-1, 1, 511), at, stops[:, c]) for c in range(3)], axis=-1)
    choose = f"choose {', '.join(COLOURS)}, or one of matplotlib's diverging maps, such as RdBu_r."
    try:
        import matplotlib

        table: np.ndarray = matplotlib.colormaps.get_cmap(colours)(np.linspace(0, 1, 511))[:, :3] * 255
    except (ImportError, TypeError, ValueError) as error:
        raise ValueError(f"unknown colours {colours!r}: {choose}") from error
    low, zero, high = table[[0, 255, 510]] @ np.array([0.299, 0.587, 0.114])
    if min(low, high) <= zero <= max(low, high):
        name = getattr(colours, "name", colours)
        raise ValueError(f"the colours {name} do not diverge from their middle, which stands for zero: {choose}")
    return table


def outline_level(values: np.ndarray, share: float = 0.8, blur: float | None = None) -> tuple[np.ndarray, float]:
    """Where a map's relevance concentrates: the blurred map, and the level above which lies `share` of its mass.

    values: (height, width); only positive relevance counts. blur: standard deviation in pixels (default: 2.5% of the
        longer side).
    """
    deviation = blur if blur is not None else 0.025 * max(values.shape)
    radius = max(1, math.ceil(3 * deviation))
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / max(deviation, 1e-6)) ** 2)
    field = np.pad(np.clip(values, 0, None), radius, mode="constant")
    for axis in (0, 1):
        field = np.apply_along_axis(np.convolve, axis, field, kernel / kernel.sum(), mode="valid")
    flat = np.sort(field.ravel())[::-1]
    if flat.sum() <= 0:
        return field, math.inf
    return field, float(flat[np.searchsorted(np.cumsum(flat), share * flat.sum())])


def add_colour_bar(ax: Axes, colours: str | Colormap, limit: float, gamma: float = 1.0, *, signed: bool = True) -> None:
    """A slim bar beside a picture, labelled at both ends and zero; of a map that is not `signed`, from zero up."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    low = -limit if signed else 0.0
    strength = _strength(np.linspace(-1 if signed else 0, 1, 511)[None, None], np.ones(1), gamma)[0, 0]
    shown = ListedColormap(_coloured(strength, colour_table(colours)) / 255)
    mappable = ScalarMappable(Normalize(low, limit), shown)
    box = ax.inset_axes((1.03, 0.0, 0.045, 1.0))
    bar = ax.figure.colorbar(mappable, cax=box, ticks=[*[-limit] * signed, 0, limit])
    bar.ax.set_yticklabels([*[f"−{limit:.2g}"] * signed, "0", f"{limit:.2g}"])
    bar.ax.tick_params(length=2, labelsize=6.5)
    bar.outline.set_linewidth(0.4)


def _dilated(values: np.ndarray, dilate: int | str) -> np.ndarray:
    """Every empty pixel takes the strongest value, of either sign, within `dilate` pixels."""
    if dilate == "auto":
        share = np.count_nonzero(values) / values.size
        radius = 0 if share == 0 or share >= 0.03 or min(values.shape) < 64 else (1 if share >= 0.005 else 2)
    elif isinstance(dilate, int) and dilate >= 0:
        radius = dilate
    else:
        raise ValueError(f'dilate is a number of pixels or "auto", not {dilate!r}.')
    if radius == 0:
        return values
    field = torch.from_numpy(np.ascontiguousarray(values))[None, None]
    window = 2 * radius + 1
    positive, negative = (
        torch.nn.functional.max_pool2d(part, window, stride=1, padding=radius)[0, 0].numpy()
        for part in (field.clamp(min=0), (-field).clamp(min=0))
    )
    grown = np.where(positive >= negative, positive, -negative)
    return np.where(values != 0, values, grown)


def _strength(values: np.ndarray, limits: np.ndarray, gamma: float) -> np.ndarray:
    ends = np.where(limits > 0, limits, 1.0)[:, None, None]
    share = np.clip(values / ends, -1, 1)
    return np.sign(share) * np.abs(share) ** gamma


def _coloured(strength: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The colour of each strength between −1 and 1: (…, 3)."""
    return table[np.rint((strength + 1) / 2 * (len(table) - 1)).astype(int)]


def _faded(picture: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The pictures in light grey, from which colours stand out: float (batch, height, width, 3)."""
    several = isinstance(picture, (list, tuple)) or getattr(picture, "ndim", 3) == 4
    many = list(picture) if several else [picture] * shape[0]
    arrays = [np.asarray(one.convert("RGB") if hasattr(one, "convert") else one) for one in many]
    for array in arrays:
        if array.ndim != 3 or array.shape[:2] != shape[1:] or array.shape[2] < 3:
            raise ValueError(
                f"the picture is {array.shape}, the relevance {shape[1:]}: pass the picture that the network saw "
                "(plrp.vision.network_picture)."
            )
    if len(arrays) != shape[0]:
        raise ValueError(f"{len(arrays)} pictures were given for {shape[0]} samples.")
    grey = np.stack([array[..., :3] for array in arrays]).astype(float) @ np.array([0.299, 0.587, 0.114])
    return np.repeat((0.55 * grey + 0.45 * 255)[..., None], 3, axis=-1)
