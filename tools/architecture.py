"""The packages of plrp and their imports, read from the source, and drawn as `docs/assets/architecture.svg`.

    python tools/architecture.py

A room is a first-level package or module of `src/plrp`. Files are parsed, never imported, and every way to name another
module counts: at the top, within a function, under TYPE_CHECKING, relative or absolute, `plrp.explain` after `import
plrp`, and a module's full name in a string (`python -m …`). `tests/project/test_architecture.py` states what is
allowed, and fails where the picture is out of date.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "plrp"
PICTURE = ROOT / "docs" / "assets" / "architecture.svg"

# The storeys of the house from the bottom up: a room imports rooms of its own storey or of lower ones. A room without
# imports that is not listed stands on the ground. Some rooms are only planned.
GROUND = ("errors", "lazy", "tables", "files", "spelling", "settings", "progress", "references")
STOREYS: tuple[tuple[str, ...], ...] = (
    GROUND,
    ("tape",),
    ("ledger", "rules"),
    ("passing", "differences", "pruning", "composites", "targets", "target_text"),
    ("conditions", "request", "passage", "bookkeeping", "walk", "contexts"),
    ("fast",),
    ("engine",),
    ("balance", "survey", "checking"),
    ("explanation",),
    ("ablation", "circuits", "choosing"),
    ("metrics", "models", "interop", "explanation_files"),
    ("runs",),
    ("vision", "genomics", "text"),
    ("concepts", "graphs"),
    ("view",),
    ("experiments",),
    ("cli",),
    ("__main__",),
)
CORE = frozenset(room for storey in STOREYS[1:10] for room in storey) - {"fast"}  # and what they import
TABLE = "plrp"  # the room of `__init__.py`, the table of contents


class Import(NamedTuple):
    """One place where a file names another module of plrp, or one of another library."""

    file: str  # within src/plrp
    line: int
    scope: str  # the function or class around it, "" at the top
    module: str  # the module's full name
    by_table: bool  # through the table of contents: `plrp.explain`, `from plrp import explain`

    @property
    def source(self) -> str:
        """The room that imports."""
        return TABLE if self.file == "__init__.py" else self.file.split("/")[0].removesuffix(".py")

    @property
    def target(self) -> str:
        """The room that is imported; a library's own name for others than plrp."""
        names = self.module.split(".")
        return names[1] if names[0] == "plrp" and len(names) > 1 else names[0]

    @property
    def inside(self) -> bool:
        """Whether it names plrp and not another library."""
        return self.module.split(".")[0] == "plrp"

    def __str__(self) -> str:
        where = f", in {self.scope}" if self.scope else ""
        return f"src/plrp/{self.file}:{self.line} imports {self.module}{where}"


class House:
    """The modules of plrp and the imports between them."""

    def __init__(self, source: Path = SOURCE) -> None:
        self.source = source
        self.files = {file.relative_to(source).as_posix(): file for file in sorted(source.rglob("*.py"))}
        self.trees = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in self.files.items()}
        self.modules = {dotted(name): name for name in self.files}

    @cached_property
    def rooms(self) -> list[str]:
        """First-level packages and modules, without the table of contents."""
        return sorted({name.split(".")[1] for name in self.modules if "." in name})

    @cached_property
    def table(self) -> dict[str, str]:
        """What `import plrp` offers: public name → module that defines it."""
        tree = self.trees.get("__init__.py", ast.Module(body=[], type_ignores=[]))
        froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level and node.module]
        return {alias.asname or alias.name: f"plrp.{node.module}" for node in froms for alias in node.names}

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of every file."""
        return list(dict.fromkeys(found for name in self.files for found in self._imports_of(name)))

    @cached_property
    def storeys(self) -> dict[str, int]:
        """The storey of each room; rooms that nobody has given one and that import others are absent."""
        known = {room: number for number, storey in enumerate(STOREYS) for room in storey}
        importing = {i.source for i in self.imports if i.inside and i.target != i.source}
        return {room: known.get(room, 0) for room in self.rooms if room in known or room not in importing}

    def rises(self, found: Import) -> bool:
        """Whether an import goes to a higher storey."""
        return self.storeys.get(found.target, 0) > self.storeys.get(found.source, 0)

    def edges(self) -> dict[str, set[str]]:
        """Room → rooms it imports; what methods reach upward through the table of contents is left out."""
        found: dict[str, set[str]] = {room: set() for room in self.rooms}
        for i in self.imports:
            upward = i.by_table and i.scope and self.rises(i)
            if i.inside and TABLE not in (i.source, i.target) and i.target != i.source and not upward:
                found[i.source].add(i.target)
        return found

    def purpose(self, room: str) -> str:
        """What a room is for, in one phrase of its docstring."""
        text = ast.get_docstring(self.trees.get(f"{room}.py") or self.trees[f"{room}/__init__.py"]) or ""
        phrases = re.split(r"(?<=[?])\s+|[.:;]\s+", text.split("\n\n")[0].replace("\n", " ").replace("`", "") + " ")
        if (
            len(phrases[0].split()) < 3 and len(phrases) > 1
        ):  # 'The ledger: where …' repeats a name, 'Photographs: …' does not
            phrases[0] = phrases[1] if room in phrases[0].lower() else f"{phrases[0]}: {phrases[1]}"
        phrase = phrases[0].strip()
        return phrase[:1].upper() + phrase[1:] if not phrase.startswith("plrp") else phrase

    def _imports_of(self, name: str) -> Iterator[Import]:
        bound = {"plrp"} if any(_binds_plrp(node) for node in ast.walk(self.trees[name])) else set()
        here = dotted(name).split(".")
        package = here if name.endswith("__init__.py") else here[:-1]
        for node, scope in _scoped(self.trees[name]):
            names: Iterable[Sequence[str]] = ()
            if isinstance(node, ast.Import):
                names = [alias.name.split(".") for alias in node.names if alias.name != "plrp"]
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                base = [*base, *(node.module or "").split(".")] if node.module else base
                names = [[*base, alias.name] for alias in node.names]
            elif isinstance(node, ast.Attribute):
                chain = _chain(node)
                names = [chain] if chain and chain[0] in bound else ()
            elif isinstance(node, ast.Constant) and re.fullmatch(r"plrp(\.\w+)+\.?", str(node.value)):
                named = str(node.value).rstrip(".")  # f"plrp.fast.{name}" too
                names = [named.split(".")] if named in self.modules else ()
            for parts in names:
                module, by_table = self._resolve(parts)
                yield Import(name, node.lineno, scope, module, by_table or isinstance(node, ast.Attribute))

    def _resolve(self, parts: Sequence[str]) -> tuple[str, bool]:
        """The module that a dotted name means, and whether only the table of contents knows."""
        if parts[0] != "plrp":
            return parts[0], False
        longest = max(n for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in self.modules)
        if longest == 1 and len(parts) > 1 and parts[1] in self.table:
            return self.table[parts[1]], True
        return ".".join(parts[:longest]), False


def dotted(file: str) -> str:
    """The module's name of a file within src/plrp."""
    return ".".join(["plrp", *file.removesuffix(".py").removesuffix("__init__").strip("/").split("/")]).rstrip(".")


def _binds_plrp(node: ast.AST) -> bool:
    """Whether a statement is `import plrp`, or `import plrp.…`, which binds the same name."""
    return isinstance(node, ast.Import) and any(a.name.split(".")[0] == "plrp" and not a.asname for a in node.names)


def _scoped(node: ast.AST, scope: str = "") -> Iterator[tuple[ast.AST, str]]:
    """All nodes below this one, each with the names of the functions and classes around it."""
    for child in ast.iter_child_nodes(node):
        yield child, scope
        if isinstance(child, ast.Attribute) and _chain(child):
            continue  # `plrp.tape.trace` is one name, not three
        inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else ""
        yield from _scoped(child, ".".join(filter(None, (scope, inner))))


def _chain(node: ast.Attribute) -> list[str]:
    """`a.b.c` as a list of names; empty where it does not begin with a name."""
    names, at = [node.attr], node.value
    while isinstance(at, ast.Attribute):
        names, at = [at.attr, *names], at.value
    return [at.id, *names] if isinstance(at, ast.Name) else []


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Rooms that import each other in a ring, the first again at the end; empty where there is none."""
    finished: set[str] = set()

    def search(path: list[str]) -> list[str]:
        for room in sorted(edges.get(path[-1], ())):
            if room in path:
                return [*path[path.index(room) :], room]
            if room not in finished and (ring := search([*path, room])):
                return ring
        finished.add(path[-1])
        return []

    return next((ring for room in sorted(edges) if room not in finished and (ring := search([room]))), [])


# --- the picture ------------------------------------------------------------------------------------------------------

WIDTH, MARGIN = 1560, 22
NAME, TEXT = 14, 11.5  # font sizes
LETTER = 0.56 * TEXT  # mean width of a letter, on the safe side
GAP, ROW = 16, 28  # between boxes of a row; between rows
STYLE = """
  .card { fill: #ffffff } .band { fill: #f1f4f8 } .label { fill: #66707c }
  .box { fill: #ffffff; stroke: #8b96a3 } .core .box { stroke: #2563b0; fill: #f5f9ff }
  .fast .box { stroke: #c2571a; fill: #fff7f0; stroke-dasharray: 5 3 }
  .name { fill: #14202e; font-weight: 600 } .text { fill: #4b5663 }
  .edge { fill: none; stroke: #8b96a3 } .edge.core { stroke: #2563b0 } .edge.fast { stroke: #c2571a }
  @media (prefers-color-scheme: dark) {
    .card { fill: #1b1f27 } .band { fill: #242a34 } .label { fill: #98a3b1 }
    .box { fill: #1b1f27; stroke: #7d8896 } .core .box { stroke: #6aa5ec; fill: #1a2533 }
    .fast .box { stroke: #e8935c; fill: #2e2219 }
    .name { fill: #eef2f7 } .text { fill: #b4bdc9 }
    .edge { stroke: #6f7a88 } .edge.core { stroke: #6aa5ec } .edge.fast { stroke: #e8935c }
  }
"""


class Box(NamedTuple):
    """What is written in a room's box, and its size; a place where a long arrow crosses a row has no name."""

    name: str
    lines: Sequence[str]
    width: float
    height: float


def draw(house: House) -> str:
    """The house as SVG: rooms on their storeys, and an arrow for each import that no chain of others implies.

    The ground is open to all, so arrows to it are left out; so are imports that rise, which the tests refuse.
    """
    edges = {
        room: {t for t in targets if 0 < house.storeys[t] <= house.storeys[room]}
        for room, targets in house.edges().items()
    }
    if ring := cycle(edges):
        raise SystemExit(f"These rooms import each other: {' → '.join(ring)}. Break the ring, then draw again.")
    edges = reduced(edges)
    level = levels(house, edges)
    rows: list[list[str]] = [[] for _ in range(max(level.values()) + 1)]
    for room in house.rooms:
        rows[level[room]].append(room)
    boxes = {room: written(house, room, len(rows[level[room]])) for room in house.rooms}
    links: set[tuple[str, str]] = set()  # between neighbouring rows, upper first
    paths: dict[tuple[str, str], list[str]] = {}
    for source, target in sorted((s, t) for s, ts in edges.items() for t in ts):
        between = [f"{source}>{target}@{n}" for n in range(level[source] - 1, level[target], -1)]
        for place in between:
            rows[int(place.split("@")[1])].append(place)
            boxes[place] = Box("", (), 0, 0)
        paths[source, target] = [source, *between, target]
        links |= set(pairwise(paths[source, target]))
    rows = ordered(rows, links)
    x = placed(rows, links, boxes)
    heights = [max(boxes[room].height for room in row) for row in rows]
    tops = [MARGIN + sum(heights[n + 1 :]) + ROW * (len(rows) - 1 - n) for n in range(len(rows))]
    bottom = tops[0] + heights[0] + MARGIN + 12
    group = {room: "fast" if room == "fast" else "core" if room in CORE else "" for room in house.rooms}

    def port(room: str, others: list[str]) -> dict[str, float]:
        """Where arrows meet a box: side by side, in the order of where they go."""
        step = min(14.0, (boxes[room].width - 24) / max(1, len(others)))
        at = sorted(others, key=lambda other: (x[other], other))
        return {other: x[room] + step * (n - (len(at) - 1) / 2) for n, other in enumerate(at)}

    leave = {room: port(room, [b for a, b in links if a == room]) for room in house.rooms}
    arrive = {room: port(room, [a for a, b in links if b == room]) for room in house.rooms}
    tips = "".join(
        f'<marker id="tip{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path class="edge {kind}" d="M1 1 L7 4 L1 7" stroke-width="1.3"/></marker>'
        for kind in ("", "core", "fast")
    )
    inner = [level[room] for room in house.rooms if room in CORE]
    high, low = tops[max(inner)] - ROW / 2 + 3, tops[min(inner)] + heights[min(inner)] + ROW / 2 - 3
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom:.0f}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">',
        f"<title>The packages of plrp and their imports</title><style>{STYLE}</style><defs>{tips}</defs>",
        f'<rect class="card" width="{WIDTH}" height="{bottom:.0f}" rx="8"/>',
        f'<rect class="band" x="8" y="{high:.1f}" width="{WIDTH - 16}" height="{low - high:.1f}" rx="6"/>',
        label("the core: torch and numpy only", high + 20),
        label("the ground: open to every room", bottom - 14),
    ]
    for (source, target), path in paths.items():
        points: list[tuple[float, float]] = []
        for n, place in enumerate(path):
            row = next(number for number, members in enumerate(rows) if place in members)
            if n == 0:
                points.append(
                    (leave[place][path[1]], tops[row] + _drop(heights[row], boxes[place]) + boxes[place].height)
                )
            elif n == len(path) - 1:
                points.append((arrive[place][path[-2]], tops[row] + _drop(heights[row], boxes[place]) - 1))
            else:
                points += [(x[place], tops[row]), (x[place], tops[row] + heights[row])]
        kind = group[source]
        svg.append(
            f'<path class="edge {kind}" d="{curve(points)}" stroke-width="1.2" marker-end="url(#tip{kind})">'
            f"<title>{source} imports {target}</title></path>"
        )
    for n, row in reversed(list(enumerate(rows))):
        for room in row:
            if boxes[room].name:
                svg.append(drawn(boxes[room], x[room], tops[n] + _drop(heights[n], boxes[room]), group[room]))
    return "\n".join([*svg, "</svg>", ""])


def reduced(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Edges that no longer way replaces (the transitive reduction); ways through `fast`, which may go, do not count."""

    @cache
    def below(room: str) -> frozenset[str]:
        return frozenset(r for t in edges[room] for r in ({t} | (below(t) if t != "fast" else set())))

    return {
        room: {t for t in targets if not any(t in below(other) for other in targets - {t, "fast"})}
        for room, targets in edges.items()
    }


def levels(house: House, edges: dict[str, set[str]]) -> dict[str, int]:
    """The row of each room: its storey, split where rooms of one storey import each other; empty rows left out."""

    def within(room: str) -> int:
        same = (t for t in edges[room] if house.storeys.get(t) == house.storeys.get(room))
        return 1 + max(map(within, same), default=-1)

    full = {room: (house.storeys.get(room, len(STOREYS)), within(room)) for room in house.rooms}
    rows = {row: number for number, row in enumerate(sorted(set(full.values())))}
    return {room: rows[row] for room, row in full.items()}


def written(house: House, room: str, mates: int) -> Box:
    """A room's box: its name and purpose, wrapped to the room that its row leaves."""
    most = min(330.0, (WIDTH - 2 * MARGIN - GAP * (mates - 1)) / mates)
    fit = int((most - 20) / LETTER)
    wrapped = [textwrap.wrap(house.purpose(room), n) for n in range(fit, fit // 2, -1)]
    lines = [lines for lines in wrapped if len(lines) == len(wrapped[0])][-1]  # the narrowest with as few lines
    head = 1.3 * LETTER * len(room) + 20
    return Box(room, lines, max(head, *(LETTER * len(line) + 20 for line in lines)), 26 + 15 * len(lines) + 4)


def ordered(rows: list[list[str]], links: set[tuple[str, str]]) -> list[list[str]]:
    """Each row in an order with few crossings: barycentres, from below and from above in turns, the best kept."""
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for upper, lower in sorted(links):
        below.setdefault(upper, []).append(lower)
        above.setdefault(lower, []).append(upper)
    rows = [sorted(row) for row in rows]
    best = [list(row) for row in rows]
    for turn in range(24):
        sequence = range(1, len(rows)) if turn % 2 == 0 else range(len(rows) - 2, -1, -1)
        for n in sequence:
            fixed, near = (rows[n - 1], below) if turn % 2 == 0 else (rows[n + 1], above)
            at = {room: (k + 0.5) / len(fixed) for k, room in enumerate(fixed)}
            now = {room: (k + 0.5) / len(rows[n]) for k, room in enumerate(rows[n])}
            rows[n].sort(key=lambda r: (_mean([at[o] for o in near.get(r, ())] or [now[r]]), r))
        if crossings(rows, links) < crossings(best, links):
            best = [list(row) for row in rows]
    return best


def crossings(rows: list[list[str]], links: set[tuple[str, str]]) -> int:
    """How many pairs of arrows cross."""
    at = {room: k for row in rows for k, room in enumerate(row)}
    row_of = {room: n for n, row in enumerate(rows) for room in row}
    pairs = [(a, b) for a in links for b in links if a < b and row_of[a[0]] == row_of[b[0]]]
    return sum((at[a[0]] - at[b[0]]) * (at[a[1]] - at[b[1]]) < 0 for a, b in pairs)


def placed(rows: list[list[str]], links: set[tuple[str, str]], boxes: dict[str, Box]) -> dict[str, float]:
    """The middle of each box: near the boxes it is linked with, none over another, within the card."""
    near: dict[str, list[str]] = {}
    for upper, lower in sorted(links):
        near.setdefault(upper, []).append(lower)
        near.setdefault(lower, []).append(upper)
    arrows: dict[str, list[str]] = {}  # the places where an arrow crosses rows: it is to run straight down
    for place in (place for row in rows for place in row if not boxes[place].name):
        arrows.setdefault(place.split("@")[0], []).append(place)
    x = {room: WIDTH / 2 for row in rows for room in row}

    def wish(room: str) -> float:
        middle = _mean([x[other] for other in near.get(room, [])] or [WIDTH / 2])
        if boxes[room].name:
            return 0.7 * middle + 0.3 * WIDTH / 2
        return 0.15 * middle + 0.85 * _mean([x[place] for place in arrows[room.split("@")[0]]])

    for turn in range(400):
        for row in rows if turn % 2 == 0 else rows[::-1]:
            x.update(zip(row, apart([wish(r) for r in row], [boxes[r].width for r in row]), strict=True))
    return x


def apart(wishes: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Places as near the wishes as can be (least squares) with a gap between neighbours, all within the card."""
    offsets = [0.0]
    for left, right in pairwise(widths):
        offsets.append(offsets[-1] + (left + right) / 2 + GAP)
    blocks: list[tuple[float, int]] = []  # (mean of wish − offset, how many): isotonic regression by merging
    for wish, offset in zip(wishes, offsets, strict=True):
        blocks.append((wish - offset, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (b, m), (a, n) = blocks.pop(), blocks.pop()
            blocks.append(((a * n + b * m) / (n + m), n + m))
    flat = [mean for mean, count in blocks for _ in range(count)]
    first, last = MARGIN + widths[0] / 2, WIDTH - MARGIN - widths[-1] / 2 - offsets[-1]
    return [min(max(at, first), last) + offset for at, offset in zip(flat, offsets, strict=True)]


def curve(points: Sequence[tuple[float, float]]) -> str:
    """A path through the points that leaves and meets each one vertically."""
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        straight = abs(x0 - x1) < 0.05
        path += (
            f" L{x1:.1f} {y1:.1f}" if straight else f" C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
        )
    return path


def label(text: str, y: float) -> str:
    """The name of a part of the house, at its left."""
    return f'<text class="label" x="20" y="{y:.1f}" font-size="{TEXT}">{text}</text>'


def drawn(box: Box, x: float, top: float, kind: str) -> str:
    """A room's box as SVG."""
    left = x - box.width / 2
    text = "".join(
        f'<text class="text" x="{left + 10:.1f}" y="{top + 34 + 15 * n:.1f}" font-size="{TEXT}">{escape(line)}</text>'
        for n, line in enumerate(box.lines)
    )
    return (
        f'<g class="{kind}"><rect class="box" x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="5"/><text class="name" x="{left + 10:.1f}" y="{top + 18:.1f}" '
        f'font-size="{NAME}">{box.name}</text>{text}</g>'
    )


def _drop(height: float, box: Box) -> float:
    """How far below the top of its row a box begins."""
    return (height - box.height) / 2


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    PICTURE.write_text(draw(House()), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
