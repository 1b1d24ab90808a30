"""The tables of `make bench`, from what its parts have measured and kept as JSON.

Nothing is measured here: each function turns the JSON of a part into a table, for a terminal or as Markdown. A cell
with a dash was not measured or cannot be; an empty one has no meaning (no peer prunes).
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from timing import ratio

PARTS = (
    "engine",
    "attention",
    "differences",
    "growth",
    "lambda_sweep",
    "many",
    "memory",
    "threshold",
    "sequences",
    "checks",
    "metrics",
    "logos",
    "page",
)
Parts = Mapping[str, Mapping[str, Any]]  # what the parts wrote, by part

FORWARD = "forward"
PEERS = ("Zennit", "Captum", "autoLRP", "grad × input", "conv floor")
VARIANTS = {"LRP": "plrp LRP", "λ 0.2": "plrp λ 0.2", "λ 0.5": "plrp λ 0.5", "M 0.2": "plrp M 0.2"}
TITLES = {"vgg16": "VGG-16", "resnet18": "ResNet-18", "resnet50": "ResNet-50", "resnet152": "ResNet-152"}


class Table(NamedTuple):
    """A titled table, with remarks below it."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]

    def text(self) -> str:
        """For a terminal: the first column to the left, the others as they are read best."""
        widths = [max(len(line[i]) for line in [self.header, *self.rows]) for i in range(len(self.header))]
        left = [i == 0 or any(len(row[i]) > 14 for row in self.rows) for i in range(len(self.header))]

        def line(cells: list[str]) -> str:
            aligned = zip(cells, widths, left, strict=True)
            return "  ".join(c.ljust(w) if is_left else c.rjust(w) for c, w, is_left in aligned).rstrip()

        body = [line(cells) for cells in [self.header, ["─" * w for w in widths], *self.rows]]
        return "\n".join([self.title, "", *body, *([""] if self.notes else []), *self.notes])

    def markdown(self) -> str:
        """For a page."""
        lines = ["| " + " | ".join(cells) + " |" for cells in [self.header, *self.rows]]
        lines.insert(1, "|---" * len(self.header) + "|")
        return "\n".join([f"### {self.title}", "", *lines, *(f"\n{note}" for note in self.notes), ""])


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """What the parts have written, by part; those that wrote nothing are left out."""
    files = {part: folder / f"{part}.json" for part in PARTS}
    return {part: json.loads(file.read_text(encoding="utf-8")) for part, file in files.items() if file.exists()}


def number(value: float | None, digits: int = 2) -> str:
    """A measured number; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def title(model: str) -> str:
    """A model's name as people write it."""
    return TITLES.get(model, model)


def rows(parts: Parts, part: str) -> list[Any]:
    """The rows a part wrote; none where it did not."""
    return list(parts.get(part, {}).get("rows", []))


# --- the tables -------------------------------------------------------------------------------------------------------


def cost(parts: Parts) -> Table:
    """The one table: models, batches and methods against plrp, its peers, the floor, and peak memory."""
    peaks = {(row["model"], row["batch"]): row["peak"] for row in rows(parts, "memory")}
    found, notes = [], []
    for row in rows(parts, "engine"):
        peak = peaks.get((row["model"], row["batch"]), {})
        for variant, name in VARIANTS.items():
            own = ratio(row["seconds"], name, FORWARD)
            if own is None:
                continue
            peers = [number(ratio(row["seconds"], p, FORWARD)) if variant == "LRP" else "" for p in PEERS]
            theirs = megabytes(peak.get("Zennit")) if variant == "LRP" else ""
            memory = [megabytes(peak.get(name)), theirs]
            found.append([title(row["model"]), str(row["batch"]), variant, number(own), *peers, *memory])
        notes += [f"{name} cannot run on {title(row['model'])}: {why}." for name, why in row["reasons"].items()]
        notes += [likeness(row)] if row.get("likeness") else []
    counts = sorted({len(row["seconds"]) for row in rows(parts, "engine")})
    if counts:
        least = f"{counts[0]} to " if len(counts) > 1 else ""
        over = f"medians of {least}{counted(counts[-1], 'interleaved round')}"
        notes.insert(0, f"Multiples of the model's own forward pass, {over}. Peak memory: MB above the model.")
    header = ["model", "batch", "method", "plrp", *PEERS, "peak memory", "Zennit's"]
    return Table("Cost of an explanation", header, found, list(dict.fromkeys(notes)))


ATTENTION = ("plrp attnlrp", "plrp cp-lrp", "plrp λ 0.2", "plrp λ 0.2, tokens", "LXT", "grad × input")


def attention(parts: Parts) -> Table:
    """Transformers: what an explanation costs, beside LXT and gradient × input."""
    found, notes = [], []
    for row in rows(parts, "attention"):
        costs = [number(ratio(row["seconds"], name, FORWARD)) for name in ATTENTION]
        found.append([row["model"], row["size"], row["weights"], *costs])
        notes += [f"{name} cannot run on {row['model']}: {why}." for name, why in row["reasons"].items()]
        if row["likeness"].get("LXT") is not None:
            like = f"{row['model']}, {row['size']}: {row['likeness']['LXT']:.4f}"
            notes.append(f"Correlation of LXT's relevance with plrp's {row['rules']}, {like}.")
    if found:
        notes.insert(0, "Multiples of the model's own forward pass; λ prunes attnlrp, by neuron or by token.")
    header = ["model", "input", "weights", *ATTENTION]
    return Table("Cost with attention", header, found, list(dict.fromkeys(notes)))


def differences(parts: Parts) -> Table:
    """DeepLIFT's question: what an explanation against references costs, beside Captum's and tangermeme's."""
    found = []
    for name, row in parts.get("differences", {}).get("networks", {}).items():
        pairs = [(side, peer) for peer in ("Captum", "tangermeme") for side in ("rescale", "rescale, λ 0.2")]
        pairs += [("rescale-gamma", "rescale"), ("rescale, λ 0.2", "rescale"), ("sweep of four", "rescale")]
        apart = row["difference"].values()
        found.append([name, *(number(ratio(row["rounds"], *pair)) for pair in pairs), f"{max(apart, default=0):.0e}"])
    header = ["network", "plrp / Captum", "λ 0.2 / Captum", "plrp / tangermeme", "λ 0.2 / tangermeme"]
    header += ["rescale-gamma / rescale", "λ 0.2 / rescale", "four λ / rescale", "apart"]
    notes = ["Equal references: zeros for images, 20 shuffles for DNA. Apart: the largest difference of relevance."]
    return Table("Cost against references", header, found, notes if found else [])


def likeness(row: Mapping[str, Any]) -> str:
    """Who computes the same relevance as plrp's LRP, and who something else."""
    said = [f"{name} {'not finite' if r is None else f'{r:.2f}'}" for name, r in row["likeness"].items()]
    where = f"with plrp's LRP, one photograph on {title(row['model'])}"
    return f"Correlation of the relevance {where}: {', '.join(said)}."


def megabytes(value: Any) -> str:
    return f"{value:.0f}" if isinstance(value, float | int) else "–"


def growth(parts: Parts) -> Table:
    """How cost grows with batch, resolution and depth."""
    found: list[list[str]] = []
    methods = [FORWARD, *VARIANTS.values(), *PEERS]
    series = parts.get("growth", {}).get("series", {})
    methods = [m for m in methods if any(m in s["methods"] for s in series.values())]
    for name, one in series.items():
        first = one["settings"][0]
        for setting in one["settings"]:
            cells = []
            for method in methods:
                multiple = ratio(one["seconds"], f"{setting} {method}", f"{setting} {FORWARD}")
                relative = ratio(one["seconds"], f"{setting} {method}", f"{first} {method}")
                cells.append("–" if multiple is None else f"{number(multiple)} ({number(relative)} ×)")
            found.append([name, title(setting), *cells])
    note = (
        "Multiples of the forward pass at that setting; in brackets the cost relative to the first row of the series."
    )
    where = "Batch: ResNet-50 at 224 pixels. Resolution: ResNet-50, batch 1. Depth: batch 1, 224 pixels."
    return Table("How cost grows", ["with", "", *methods], found, [note, where] if found else [])


def memory(parts: Parts) -> Table:
    """Peak memory of every method."""
    measured = rows(parts, "memory")
    names = [n for n in (FORWARD, *VARIANTS.values(), *PEERS) if any(n in row["peak"] for row in measured)]
    found = [
        [title(row["model"]), str(row["batch"]), *(megabytes(row["peak"].get(n)) for n in names)] for row in measured
    ]
    reasons = [f"{n}: {v}." for row in measured for n, v in row["peak"].items() if isinstance(v, str)]
    note = ["MB above the model and its input, each method in a separate process."] if found else []
    return Table("Peak memory", ["model", "batch", *names], found, note + list(dict.fromkeys(reasons)))


def selection(parts: Parts) -> Table:
    """θ and the survivors against a sort."""
    found = [
        [r["values"], f"{r['p']}", f"{r['survive']:.1%}", number(ratio(r["seconds"], "numpy.sort", "θ and mask"))]
        for r in rows(parts, "threshold")
    ]
    note = ["Speed relative to `numpy.sort` alone, for masses, θ⁺, θ⁻, survivors and their values times λ."]
    return Table("θ and mask of 3.2 million values", ["values", "p", "survive", "×"], found, note if found else [])


def many(parts: Parts) -> Table:
    """Many p, targets or conditions at once, and many sequences."""
    found = []
    for r in rows(parts, "lambda_sweep"):
        against = ratio(r["seconds"], "Zennit", "sweep")
        passes = number(ratio(r["seconds"], "sweep", FORWARD), 1)
        faster = None if against is None else r["count"] * against
        what = f"{r['count']} values of p, {title(r['model'])}, batch {r['batch']}, against {r['count']} runs of Zennit"
        found.append([what, passes, number(faster), ""])
    for r in rows(parts, "many"):
        others = [name for name in r["seconds"][0] if name != r["ours"]]
        factors = [f"{name} {number(ratio(r['seconds'], name, r['ours']), 1)}" for name in others]
        found.append([r["what"], "", "", ", ".join(factors)])
    dna = parts.get("sequences", {})
    for name in dna.get("batches", {}):
        if name.startswith("plrp"):
            what = f"{dna['count']:,} sequences of 250 bases, {name}, batches of {dna['batches'][name]}"
            against = ratio(dna["seconds"], "Zennit", name)
            found.append([what, number(ratio(dna["seconds"], name, FORWARD)), number(against), ""])
    notes = []
    if "batches" in dna:
        notes = [
            f"Zennit's batches of sequences: {dna['batches']['Zennit']}; each library runs at its best batch size. The "
            f"largest difference of the relevance is {dna['difference']:.0e} of the largest entry."
        ]
    header = ["what", "forward passes", "times as fast as Zennit", "as one by one, or the plain walk"]
    return Table("Many explanations", header, found, notes)


def over_hundred(rounds: Sequence[Mapping[str, float]]) -> list[float]:
    """The cost of 100 explanations of one model and shape over what it would be without their checks, by round."""
    whole = [r["first"] + 99 * r["later"] for r in rounds]
    spent = [r["first in checks"] + 99 * r["later in checks"] for r in rounds]
    return [w / (w - s) for w, s in zip(whole, spent, strict=True)]


def checks(parts: Parts) -> Table:
    """What the checks of every model and input cost."""
    found = []
    for r in rows(parts, "checks"):
        rounds = r["seconds"]
        first = ratio(rounds, "first in checks", FORWARD)
        each = statistics.median(s["later in checks"] / (s["later"] - s["later in checks"]) for s in rounds)
        total = statistics.median(over_hundred(rounds)) - 1
        found.append([r["model"], number(first), f"{each:.1%}", f"{total:.1%}"])
    note = (
        "Cost of the checks: of the first explanation in forward passes (it runs the model again), then of a "
        "later one and of 100 explanations of one model and shape, relative to the explanations without checks."
    )
    header = ["model", "first, forward passes", "later", "over 100"]
    return Table("Checks of model and input", header, found, [note] if found else [])


def metrics(parts: Parts) -> Table:
    """plrp.metrics beside Quantus."""
    found = []
    for r in rows(parts, "metrics"):
        own = statistics.median(s["plrp"] for s in r["seconds"]) / r["samples"] * 1e3
        factors = [number(ratio(r["seconds"], side, "plrp"), 1) for side in ("Quantus", "arithmetic")]
        shares = [f"{r['shares'][side]:.0%}" if r["shares"] else "" for side in ("plrp", "Quantus")]
        found.append([r["metric"], number(own, 3), factors[0], factors[1] if factors[1] != "–" else "", *shares])
    header = ["metric", "ms per sample", "Quantus", "its arithmetic", "model's share", "in Quantus"]
    note = (
        "Quantus' time divided by plrp's: for the whole call, as users make it, and for its arithmetic alone. The "
        "model's share is the part of each library's time spent in the model (or its explanation)."
    )
    return Table("Metrics beside Quantus", header, found, [note] if found else [])


def logos(parts: Parts) -> Table:
    """Drawing a logo, against logomaker and tangermeme."""
    part = parts.get("logos", {})
    found = [
        [name, *(number(ratio(part["seconds"], f"{name} {what}", f"plrp {what}"), 1) for what in ("draw", "both"))]
        for name in part.get("libraries", [])
    ]
    note = "Times relative to plrp's; all three libraries save with matplotlib."
    return Table("A logo of 250 bases", ["library", "draw", "draw and save"], found, [note] if found else [])


def page_table(parts: Parts) -> Table:
    """The page in a browser, against a blank canvas of the same size."""
    found = [
        [row["page"], number(row["megabytes"], 1), number(row["first"], 1), number(row["frames"], 2)]
        for row in rows(parts, "page")
    ]
    note = "Times to the first picture and per frame while p slides, relative to a blank canvas of the same size."
    header = ["page", "MB", "first picture", "frames"]
    return Table("The page in a browser", header, found, [note] if found else [])


def failures(parts: Parts) -> list[str]:
    """The parts that failed, and why."""
    return [f"Failed: {part}: {content['failed']}" for part, content in parts.items() if "failed" in content]


def counted(count: int, what: str) -> str:
    """A number of things."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def circumstances(parts: Parts) -> str:
    """On what, with what and when the parts were measured, in a sentence."""
    said = []
    for m in (part["machine"] for part in parts.values() if "machine" in part):
        loops = f", {m['compiled loops']}"
        where = f"{counted(m['cores'], 'core')} of {m['processor']}, {counted(m['threads'], 'thread')}"
        line = f"{where}, torch {m['torch']}{loops}, {m['date']}"
        said += [] if line in said else [line]
    short = "; the short version (`QUICK=1`)" if any(part.get("quick") for part in parts.values()) else ""
    return ("Measured on " + "; ".join(said) + short + ".") if said else "Nothing was measured."


def tables(parts: Parts) -> Iterator[Table]:
    """All tables that have rows, the one first and the goals last."""
    from goals import judged

    for make in (
        many,
        selection,
        checks,
        metrics,
        logos,
        page_table,
        memory,
        cost,
        attention,
        differences,
        growth,
        judged,
    ):
        found = make(parts)
        if found.rows:
            yield found


# --- the page ---------------------------------------------------------------------------------------------------------

BEGIN, END = "<!-- tables of benchmarks/run.py -->", "<!-- end of the tables -->"


def into_page(page: Path, content: str) -> None:
    """Put tables between the markers of a Markdown page."""
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SystemExit(f"{page} lacks the place for the tables: one line {BEGIN!r}, and below it one {END!r}.")
    before, _, rest = text.partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{content.strip()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def put_figures(page: Path, script: str, table: str) -> None:
    """Write a table between the marks of a benchmark in a page of the documentation."""
    marks = rf"(<!-- figures of benchmarks/{re.escape(script)} -->\n).*?(<!-- end of figures -->)"
    text = re.sub(marks, lambda match: f"{match[1]}\n{table}\n{match[2]}", page.read_text("utf-8"), flags=re.DOTALL)
    page.write_text(text, "utf-8")
