"""Runs as one page with a genome browser in it: igv.js, the sequences and all tracks, in a file that needs no network.

Every folder of `plrp genomics explain` becomes a track of letters as tall as their relevance; seqlets, places of
patterns and BED files come below. A sequence from FASTA is a chromosome of its own. Intervals keep their places on the
genome; the page contains only the stretches of the genome that the intervals cover.

Relevance is written as whole numbers up to ±127, scaled by the strongest base of each stretch, so a letter's height is
exact to 0.4% of that base. igv.js (MIT, its licence is in every page) comes with plrp. The page's
Content-Security-Policy runs only the page's own scripts, and lets them reach no address.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plrp.errors import UsageError
from plrp.files import new_file
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.spelling import plural

from .attribution import pruning_title
from .export import JoinedValues, Overlap, Stretches, merged, read_relevance
from .motif_search import read_run
from .sequences import Interval, Ints, Values, open_text, read_bed, reverse_complement

LARGEST_PAGE = 50_000_000
"""Bytes of a page, at most: browsers open more only slowly."""
_TITLES = {"ism": "ISM", "gradient-input": "gradient × input", "deeplift": "DeepLIFT"}
_COLOURS = {"seqlets": {"+": "#2f6fb2", "-": "#b3402f"}, "hits": {".": "#2e7d4f"}, "bed": {".": "#6b5b95"}}


class _Shown(Stretches):
    """The stretches of sequence that a page shows, and the letter of every base of them.

    `contigs` has the number of each sequence or chromosome. `intervals` are all intervals of the run, in its order;
    there are none where sequences have no places on a genome.
    """

    def __init__(self, places: Sequence[Interval], intervals: Sequence[Interval]) -> None:
        super().__init__(places)
        self.intervals = intervals
        self.contigs = {contig: number for number, contig in enumerate(dict.fromkeys(one.chrom for one in places))}
        self.letters = np.full(int(self.begin[-1]), ord("N"), np.uint8)

    def entry(self, one: Interval) -> list[int | str]:
        """An interval as the page lists it: number of the contig, start, length, name."""
        name = one.name if one.name != "." else f"{one.chrom}:{one.start}"
        return [self.contigs[one.chrom], one.start, one.end - one.start, name]


def write_browser(
    path: str | Path,
    runs: Sequence[str | Path],
    *,
    motifs: str | Path | None = None,
    beds: Mapping[str, str | Path] | None = None,
    overlap: Overlap = "mean",
    count: int | None = None,
    title: str = "Relevance per base",
    show_progress: bool | None = False,
) -> int:
    """Write one or several runs on the same sequences as a page; returns how many sequences it shows.

    `runs` are folders of `explain_file` (LRP, pruned, ISM …), a track each, in this order; later ones may have fewer
    sequences. `motifs` is a folder of `plrp genomics motifs`, for its seqlets and places of patterns; without it
    the seqlets of runs that were pruned are shown. `beds` are more files by the name of their track. Where intervals
    overlap, a base has the `overlap` of its values (`export.along_genome`). `count`: only the first sequences.
    """
    if not runs:
        raise UsageError("Nothing to show: name at least one folder of `plrp genomics explain`.")
    titles = run_titles(runs)
    stretches, shown = _stretches(runs[0], count)
    tracks = []
    with progress("reading runs", len(runs) * shown, show_progress) as step:
        for folder in runs:
            values = _values(folder, stretches, overlap, count if folder == runs[0] else None, step)
            tracks.append(_quantised(values, stretches.begin))
    features = list(_features(runs, titles, motifs, beds or {}, stretches))
    page = _page(title, stretches, dict(zip(titles, tracks, strict=True)), features, overlap, shown)
    if len(page) > LARGEST_PAGE:
        raise UsageError(
            f"The page would take {len(page) / 1e6:.0f} MB, more than {LARGEST_PAGE // 10**6}: show fewer sequences "
            f"(--count {max(1, int(shown * LARGEST_PAGE / len(page) * 0.9))})."
        )
    with new_file(path) as part:
        part.write_bytes(page)
    return shown


def run_titles(runs: Sequence[str | Path]) -> list[str]:
    """The method of each run: ISM, LRP, PLRP-λ p=0.25; two runs of one method are told apart by their folders."""
    titles = []
    for run in map(read_run, runs):
        pruning, title = run.get("pruning"), _TITLES.get(str(run.get("method")), "LRP")
        titles.append(pruning_title(Pruning.from_dict(pruning)) if isinstance(pruning, dict) else title)
    return [
        f"{title} ({Path(folder).name})" if titles.count(title) > 1 else title
        for title, folder in zip(titles, runs, strict=True)
    ]


def _stretches(folder: str | Path, count: int | None) -> tuple[_Shown, int]:
    """The stretches of the first run, and its number of sequences; overlapping intervals become one stretch."""
    places: list[Interval] = []
    located = False
    for sequences, _ in read_relevance(folder, count=count):
        located = sequences.intervals is not None
        places += sequences.places
    if not places:
        raise UsageError(f"{folder} has no sequences to show.")
    if located:
        return _Shown(merged(places), places), len(places)
    (name, number), *_ = Counter(one.chrom for one in places).most_common(1)
    if number > 1:
        raise UsageError(f"{folder} has two sequences called {name}: give each its own name.")
    return _Shown(places, []), len(places)


def _values(
    folder: str | Path, shown: _Shown, overlap: Overlap, count: int | None, step: Callable[[int], Any]
) -> Values:
    """The relevance of all bases of the page by one run. Fills in the letters, and refuses a run with other letters."""
    joined = JoinedValues(len(shown.letters), overlap, np.float32)
    for sequences, per_base in read_relevance(folder, count=count):
        if (sequences.intervals is not None) != bool(shown.intervals):
            has = "" if sequences.intervals else "no "
            raise UsageError(f"{folder} has {has}coordinates, the first run is otherwise.")
        rows = zip(sequences.names, sequences.places, sequences.letters, per_base, strict=True)
        for name, place, letters, values in rows:
            bases = shown.bases(place.chrom, place.start, place.end)
            if bases is None:
                continue
            if place.strand == "-":
                letters, values = reverse_complement(letters), values[::-1]
            mine, theirs = np.frombuffer(letters.encode(), np.uint8), shown.letters[bases]
            known = theirs != ord("N")
            if (mine[known] != theirs[known]).any():
                raise UsageError(f"{folder}: {name} has other letters than in the first run; explain the same file.")
            shown.letters[bases] = np.where(known, theirs, mine)
            joined.add(bases, values)
        step(len(sequences))
    if not joined.times.any():
        raise UsageError(f"{folder} has none of the sequences of the first run.")
    return np.asarray(joined.values(), np.float32)


def _quantised(values: Values, begin: Ints) -> tuple[Values, npt.NDArray[np.int8]]:
    """The strongest value of every stretch, and all values as whole numbers up to ±127 of it."""
    scale = np.maximum.reduceat(np.abs(values), begin[:-1]).astype(np.float32)
    each = np.repeat(np.where(scale > 0, scale, 1), np.diff(begin))
    return scale, np.rint(values / each * 127).astype(np.int8)


# -- tracks below the relevance


def _features(
    runs: Sequence[str | Path],
    titles: Sequence[str],
    motifs: str | Path | None,
    beds: Mapping[str, str | Path],
    stretches: _Shown,
) -> Iterator[dict[str, Any]]:
    """Tracks of places: seqlets, patterns, BED files."""
    if motifs is not None:
        for name, file, kind in (("seqlets", "seqlets.bed", "seqlets"), ("motif hits", "hits.bed", "hits")):
            if not (Path(motifs) / file).is_file():
                raise UsageError(f"{motifs} has no {file}: name a folder of `plrp genomics motifs`.")
            yield _feature_track(name, Path(motifs) / file, kind, stretches)
    else:
        for folder, title in zip(runs, titles, strict=True):
            seqlets = Path(folder) / "seqlets.bed"
            if title.startswith("PLRP") and seqlets.is_file():
                yield _feature_track(f"seqlets, {title}", seqlets, "seqlets", stretches)
    for name, path in beds.items():
        yield _feature_track(name, Path(path), "bed", stretches)


def _feature_track(name: str, path: Path, kind: str, stretches: _Shown) -> dict[str, Any]:
    """The lines of a BED file on sequences of the page; seqlets have no strand, and are coloured by their sign."""
    if not path.is_file():
        raise UsageError(f"{path} does not exist.")
    signs: dict[int, str] = {}
    if kind == "seqlets":  # the seventh column is their relevance
        with open_text(path) as lines:
            for number, line in lines:
                cells = line.split("\t")
                signs[number] = "-" if len(cells) > 6 and cells[6].startswith("-") else "+"
    items = [
        [
            stretches.contigs[one.chrom], one.start, one.end, one.name, one.score,
            "." if kind == "seqlets" else one.strand, signs.get(one.line, "."),
        ]
        for one in (read_bed(path) if path.stat().st_size else [])
        if one.chrom in stretches.contigs
    ]  # fmt: skip
    return {"name": name, "colors": _COLOURS[kind], "items": items}


# -- the page


def _page(
    title: str,
    stretches: _Shown,
    tracks: Mapping[str, tuple[Values, npt.NDArray[np.int8]]],
    features: Sequence[Mapping[str, Any]],
    overlap: Overlap,
    shown: int,
) -> bytes:
    ends = {one.chrom: one.end for one in stretches.places}  # the last place of a contig ends last
    notes = [f"{plural(shown, 'sequence', ',')}."]
    if stretches.intervals:
        notes.append(f"Where intervals overlap, a base has the {overlap} of its values.")
    facts = {
        "notes": notes,
        "genome": bool(stretches.intervals),
        "contigs": [[_igv_name(name, number), ends[name]] for name, number in stretches.contigs.items()],
        "segments": [stretches.entry(one) for one in stretches.places],
        "entries": [stretches.entry(one) for one in stretches.intervals],
        "tracks": [{"name": name} for name in tracks],
        "features": features,
    }
    text = json.dumps(facts, separators=(",", ":")).encode()
    arrays = [stretches.letters.tobytes()]
    for scale, values in tracks.values():
        arrays += [scale.astype("<f4").tobytes(), values.tobytes()]
    packed = gzip.compress(b"".join([len(text).to_bytes(4, "little"), text, *arrays]), 9, mtime=0)
    igv, script = igv_script(), _front("browser.js")
    # only these scripts run, and no address can be reached; igv.js brings styles of its own
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (igv, script)]
    hashes = " ".join(f"'sha256-{one}'" for one in digests)
    parts = {
        "policy": f"default-src 'none'; script-src {hashes}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'",
        "title": html.escape(title),
        "style": _front("browser.css"),
        "licence": _front("igv-LICENSE.txt").strip(),
        "data": base64.b64encode(packed).decode(),
        "igv": igv,
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _front("browser.html")).encode()


def _igv_name(name: str, number: int) -> str:
    """A sequence's name for igv.js, which splits places at colons and names at blanks, and shows them as HTML."""
    plain = re.sub(r"[\s:<>&\"']+", "_", name)
    return plain if plain == name else f"{plain}.{number}"


@lru_cache(maxsize=1)
def igv_script() -> str:
    """igv.js as it comes with plrp; `tools/igv.py` renews it."""
    packed = (resources.files(__package__) / "front" / "igv.min.js.gz").read_bytes()
    return gzip.decompress(packed).decode()


@lru_cache
def _front(name: str) -> str:
    return (resources.files(__package__) / "front" / name).read_text(encoding="utf-8")
