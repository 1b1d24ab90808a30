"""Coloured text: for a terminal, a notebook, as SVG, and as a figure for PNG and PDF.

One layout serves all of them: captions, and under each its tokens side by side on a grid of characters, wrapped.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from plrp.files import new_figure
from plrp.spelling import visible

POSITIVE, NEGATIVE = (178, 24, 43), (33, 102, 172)
"""The colours of the strongest relevance of either sign; zero is white."""

COLUMNS = 76
"""Characters in a line of a picture."""

SIZE, LINE, MARGIN = 15.0, 26.0, 18.0
"""Of a picture, in pixels: letters, lines, and the space around."""

LETTER = 0.602 * SIZE  # the advance of a monospaced font
CAPTION_LETTER = 7.2  # the same for captions, about

JOINER = "\u200d"  # matplotlib's font cannot draw characters that it joins in one piece


class Cell(NamedTuple):
    """A token or word with its share of the strongest relevance, −1 to 1."""

    text: str
    share: float
    special: bool
    note: str  # its relevance, in words

    @property
    def shown(self) -> str:
        """The text as it is drawn."""
        return visible(self.text) or "⋯"

    @property
    def ground(self) -> str:
        """The colour behind the text."""
        return "#{:02x}{:02x}{:02x}".format(*colour(self.share))

    @property
    def letters(self) -> str:
        """The colour of the letters: white where it is read more easily."""
        return "#fff" if abs(self.share) > 0.55 else "#000"


class Sentence(NamedTuple):
    """A caption and the coloured text under it."""

    caption: str
    cells: Sequence[Cell]


def width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    wide = sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in text)
    return int(wide)


def colour(share: float) -> tuple[int, int, int]:
    """Red for positive, blue for negative, white for zero."""
    end = POSITIVE if share > 0 else NEGATIVE
    amount = min(1.0, abs(share))
    red, green, blue = (round(255 + (c - 255) * amount) for c in end)
    return red, green, blue


def wrapped(cells: Sequence[Cell], columns: int) -> Iterator[list[tuple[int, str, Cell]]]:
    """Lines of cells: column, drawn text, cell. Lines break at the text's own breaks and between words."""
    line: list[tuple[int, str, Cell]] = []
    at = 0
    for word in _unbroken(cells):
        texts = [_cut(cell.shown, columns) for cell in word]
        if line and at + sum(map(width, texts)) > columns:
            yield line
            line, at = [], 0
        if not line and len(texts[0]) > 1:
            texts[0] = texts[0].removeprefix(" ")  # the end of the line stands for its space
        for text, cell in zip(texts, word, strict=True):
            if line and at + width(text) > columns:  # a word that is longer than a line
                yield line
                line, at = [], 0
            line.append((at, text, cell))
            at += width(text)
        if "\n" in word[-1].text:
            yield line
            line, at = [], 0
    if line:
        yield line


def _cut(text: str, columns: int) -> str:
    """At most a line of a text."""
    if width(text) <= columns:
        return text
    while width(text) >= columns:
        text = text[:-1]
    return text + "…"


def _unbroken(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """The cells in groups between which a line may end: before white space and special tokens, after a break."""
    word: list[Cell] = []
    for cell in cells:
        apart = cell.special or cell.text[:1].isspace()
        if word and (apart or word[-1].special or "\n" in word[-1].text):
            yield word
            word = []
        word.append(cell)
    if word:
        yield word


def to_terminal(sentences: Sequence[Sentence], columns: int, colours: bool) -> str:
    """Lines for a terminal; without colours, a table of tokens and bars."""
    lines: list[str] = []
    for sentence in sentences:
        lines.append(visible(sentence.caption))
        if not colours:
            room = min(32, max((width(cell.shown) for cell in sentence.cells), default=0))
            for cell in sentence.cells:
                bar = ("█" if cell.share > 0 else "░") * round(20 * abs(cell.share))
                lines.append(f"  {cell.shown}{' ' * (room - width(cell.shown))}  {cell.note:>10}  {bar}".rstrip())
            continue
        for line in wrapped(sentence.cells, max(8, columns - 2)):
            lines.append("  " + "".join(_ansi(shown, cell) for _, shown, cell in line))
    return "\n".join(lines)


def _ansi(shown: str, cell: Cell) -> str:
    style, letters = "3;4;" if cell.special else "", "255;255;255" if cell.letters == "#fff" else "0;0;0"
    return f"\x1b[{style}48;2;{';'.join(map(str, colour(cell.share)))};38;2;{letters}m{shown}\x1b[0m"


def to_html(sentences: Sequence[Sentence], below: Sequence[str] = ()) -> str:
    """A fragment of HTML with styles of its own, for a notebook; `below`: lines under the text."""
    parts = []
    for sentence in sentences:
        spans = []
        for cell in sentence.cells:
            style = f"background:{cell.ground};color:{cell.letters};border-radius:3px;padding:.1em 0;"
            style += "font-style:italic;" if cell.special else ""
            ending = "<br>" if "\n" in cell.text else ""
            title, shown = html.escape(cell.note), html.escape(cell.shown)
            spans.append(f'<span style="{style}" title="{title}">{shown}</span>{ending}')
        text = "font:15px/1.8 monospace;white-space:pre-wrap;overflow-wrap:anywhere"
        coloured = f'<div style="{text}">{"".join(spans)}</div>'
        parts.append(f'<div style="margin:.6em 0">{_html_line(sentence.caption)}{coloured}</div>')
    return "".join([*parts, *map(_html_line, below)])


def _html_line(text: str) -> str:
    return f'<div style="font:13px sans-serif;opacity:.75">{html.escape(visible(text))}</div>'


def placed(
    sentences: Sequence[Sentence],
) -> tuple[list[tuple[float, str]], list[tuple[float, float, str, Cell]], float, float]:
    """The picture's layout in pixels: captions (y, text), cells (x, y, shown, cell), width and height."""
    captions, cells, y = [], [], MARGIN
    for sentence in sentences:
        captions.append((y, visible(sentence.caption)))
        y += LINE
        for line in wrapped(sentence.cells, COLUMNS):
            cells += [(MARGIN + at * LETTER, y, shown, cell) for at, shown, cell in line]
            y += LINE
        y += 0.4 * LINE
    widest = max([CAPTION_LETTER * len(text) for _, text in captions], default=0.0)
    widest = max([widest, *(x + width(shown) * LETTER - MARGIN for x, _, shown, _ in cells)])
    return captions, cells, widest + 2 * MARGIN, y - 0.4 * LINE + MARGIN


def to_svg(sentences: Sequence[Sentence], title: str) -> str:
    """A picture in which the tokens stay text."""
    captions, cells, wide, height = placed(sentences)
    mono = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {height:.0f}" width="{wide:.0f}" '
        f'height="{height:.0f}" role="img"><title>{html.escape(visible(title))}</title>',
        '<rect width="100%" height="100%" fill="#fff"/>',
        '<g font-family="system-ui, sans-serif" font-size="13" fill="#555">',
        *(f'<text x="{MARGIN}" y="{y + 16:.1f}">{html.escape(text)}</text>' for y, text in captions),
        f'</g><g font-family="{mono}" font-size="{SIZE:g}" style="white-space:pre">',
    ]
    for x, y, shown, cell in cells:
        room = width(shown) * LETTER
        mark = ' font-style="italic"' if cell.special else ""
        svg.append(
            f"<g><title>{html.escape(cell.note)}</title>"
            f'<rect x="{x:.1f}" y="{y + 1:.1f}" width="{room:.1f}" height="{LINE - 4:.1f}" rx="3" '
            f'fill="{cell.ground}"/><text x="{x:.1f}" y="{y + 17:.1f}" xml:space="preserve" '
            f'textLength="{room:.1f}" lengthAdjust="spacingAndGlyphs" fill="{cell.letters}"{mark}>'
            f"{html.escape(shown)}</text></g>"
        )
    return "".join([*svg, "</g></svg>\n"])


def to_figure(sentences: Sequence[Sentence]) -> Any:
    """The same picture as a matplotlib figure."""
    from matplotlib.patches import FancyBboxPatch

    captions, cells, wide, height = placed(sentences)
    figure = new_figure((wide / 96, height / 96), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, wide), ylim=(height, 0))
    axes.axis("off")
    points = 72 / 96
    for y, text in captions:
        axes.text(MARGIN, y + 16, text.replace(JOINER, ""), fontsize=13 * points, color="#555", parse_math=False)
    for x, y, shown, cell in cells:
        box = FancyBboxPatch(
            (x + 1, y + 2), width(shown) * LETTER - 2, LINE - 6, boxstyle="round,pad=1", lw=0, fc=cell.ground
        )
        axes.add_patch(box)
        axes.text(
            x,
            y + 17,
            shown.replace(JOINER, ""),
            fontsize=SIZE * points,
            family=["DejaVu Sans Mono", "monospace"],
            style="italic" if cell.special else "normal",
            color=cell.letters,
            parse_math=False,
        )
    return figure
