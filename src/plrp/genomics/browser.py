"""Runs as one page with a genome browser in it: igv.js, the sequences and all tracks, in a file that needs no network.

Every folder of `plrp genomics explain` becomes a track of letters as tall as their relevance; seqlets, places of
patterns and BED files come below. Sequences from FASTA are chromosomes of their own; intervals keep their places on the
genome, of which the page holds the explained stretches alone.

Relevance is kept as whole numbers up to ±127 per stretch, with its strongest base as the scale: what is drawn is right
to 0.4% of that base. igv.js (MIT, its licence is in every page) comes with plrp; the page's Content-Security-Policy
lets only the page's own scripts run, and reach no address.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from plrp.errors import UsageError
from plrp.files import new_file
from plrp.progress import progress
from plrp.pruning import Pruning

from .attribution import pruning_title
from .motif_search import Explained, read_explained, read_run
from .sequences import Interval, open_text, read_bed, reverse_complement
from .tracks import Overlap

LARGEST_PAGE = 50_000_000
"""Bytes of a page, at most: browsers open more only slowly."""
_TITLES = {"ism": "ISM", "gradient-input": "gradient × input", "deeplift": "DeepLIFT"}
_COLOURS = {"seqlets": {"+": "#2f6fb2", "-": "#b3402f"}, "hits": {".": "#2e7d4f"}, "bed": {".": "#6b5b95"}}


@dataclass
class _Stretches:
    """The disjoint stretches of sequence that a page shows, in order, and what each base of them has."""

    contig: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    contigs: dict[str, int] = field(default_factory=dict)  # its name in the run to its number
    letters: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    genome: bool = False
    listed: list[Interval] = field(default_factory=list)  # all intervals, in the file's order

    def add(self, contig: str, start: int, end: int, name: str) -> None:
        self.contig.append(self.contigs.setdefault(contig, len(self.contigs)))
        self.start.append(start)
        self.end.append(end)
        self.name.append(name)

    def settle(self) -> None:
        """Once all are added: where each begins in the arrays of bases."""
        lengths = np.subtract(self.end, self.start)
        self.begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.letters = np.full(int(self.begin[-1]), ord("N"), np.uint8)
        self.of_contig: dict[int, tuple[list[int], list[int]]] = {}
        for row in np.lexsort((self.start, self.contig)):
            starts, rows = self.of_contig.setdefault(self.contig[row], ([], []))
            starts.append(self.start[row])
            rows.append(int(row))

    def bases(self, contig: str, start: int, end: int) -> slice | None:
        """Where the bases of an interval are in the arrays; None where the page does not have all of them."""
        number = self.contigs.get(contig)
        if number is None:
            return None
        starts, rows = self.of_contig[number]
        place = bisect_right(starts, start) - 1
        if place < 0 or self.end[rows[place]] < end:
            return None
        first = int(self.begin[rows[place]]) + start - self.start[rows[place]]
        return slice(first, first + end - start)


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
    overlap, a base has the `overlap` of its values (`tracks.along_genome`). `count`: the first so many sequences.
    """
    if overlap not in get_args(Overlap):
        raise ValueError(f"overlap={overlap!r}: choose one of {', '.join(get_args(Overlap))}.")
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
    """What each run is: ISM, LRP, PLRP-λ p=0.25; with its folder where two are the same."""
    found = []
    for folder in runs:
        stored = read_run(folder)
        pruning = stored.get("pruning")
        title = _TITLES.get(str(stored.get("method")), "LRP")
        found.append(pruning_title(Pruning.from_dict(pruning)) if isinstance(pruning, dict) else title)
    return [
        f"{title} ({Path(folder).name})" if found.count(title) > 1 else title
        for title, folder in zip(found, runs, strict=True)
    ]


def _first(folder: str | Path, count: int | None) -> Iterator[Explained]:
    """The first `count` sequences of a run."""
    left = count
    for one in read_explained(folder):
        if left is None or left >= len(one):
            yield one
        elif left > 0:
            places = one.intervals[:left] if one.intervals is not None else None
            yield Explained(one.names[:left], one.letters[:left], one.per_base[:left], places)
        if left is not None:
            left -= len(one)
            if left <= 0:
                return


def _stretches(folder: str | Path, count: int | None) -> tuple[_Stretches, int]:
    """The sequences of the first run; overlapping intervals become one stretch. And how many sequences they are."""
    found = _Stretches()
    intervals: list[Interval] = []
    shown = 0
    for one in _first(folder, count):
        shown += len(one)
        if one.intervals is not None:
            intervals += one.intervals
            continue
        for name, letters in zip(one.names, one.letters, strict=True):
            if name in found.contigs:
                raise UsageError(f"{folder} has two sequences called {name}: give each its own name.")
            found.add(name, 0, len(letters), name)
    if not shown:
        raise UsageError(f"{folder} has no sequences to show.")
    found.genome, found.listed = bool(intervals), intervals
    open_stretch: list[Any] = []
    for one_interval in sorted(intervals, key=lambda i: (i.chrom, i.start)):
        if open_stretch and one_interval.chrom == open_stretch[0] and one_interval.start <= open_stretch[2]:
            open_stretch[2] = max(open_stretch[2], one_interval.end)
            continue
        if open_stretch:
            found.add(*open_stretch)
        open_stretch = [one_interval.chrom, one_interval.start, one_interval.end, _name(one_interval)]
    if open_stretch:
        found.add(*open_stretch)
    found.settle()
    return found, shown


def _name(interval: Interval) -> str:
    return interval.name if interval.name != "." else f"{interval.chrom}:{interval.start}"


def _values(
    folder: str | Path, stretches: _Stretches, overlap: Overlap, count: int | None, step: Any
) -> npt.NDArray[np.float32]:
    """Relevance of all bases of the page by one run; also fills in the letters, which have to agree between runs."""
    total = np.zeros(len(stretches.letters), np.float32)
    times = np.zeros(len(total), np.uint16)
    for one in _first(folder, count):
        if (one.intervals is not None) != stretches.genome:
            raise UsageError(f"{folder} has {'' if one.intervals else 'no '}coordinates, the first run is otherwise.")
        for k, name in enumerate(one.names):
            letters, values = one.letters[k], one.per_base[k]
            contig, start, end = name, 0, len(letters)
            if one.intervals is not None:
                interval = one.intervals[k]
                contig, start, end = interval.chrom, interval.start, interval.end
                if interval.strand == "-":
                    letters, values = reverse_complement(letters), values[::-1]
            where = stretches.bases(contig, start, end)
            if where is None:
                continue
            mine, theirs = np.frombuffer(letters.encode(), np.uint8), stretches.letters[where]
            known = theirs != ord("N")
            if (mine[known] != theirs[known]).any():
                raise UsageError(f"{folder}: {name} has other letters than in the first run; explain the same file.")
            stretches.letters[where] = np.where(known, theirs, mine)
            if overlap == "strongest":
                total[where] = np.where(np.abs(values) > np.abs(total[where]), values, total[where])
            else:
                total[where] += values
            times[where] += 1
        step(len(one))
    if not times.any():
        raise UsageError(f"{folder} has none of the sequences of the first run.")
    return np.asarray(total / np.maximum(times, 1) if overlap == "mean" else total, np.float32)


def _quantised(
    values: npt.NDArray[np.float32], begin: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int8]]:
    """The strongest value of every stretch, and all values as whole numbers up to ±127 of it."""
    scale = np.maximum.reduceat(np.abs(values), begin[:-1]).astype(np.float32)
    each = np.repeat(np.where(scale > 0, scale, 1), np.diff(begin))
    return scale, np.rint(values / each * 127).astype(np.int8)


# -- what lies below the relevance


def _features(
    runs: Sequence[str | Path],
    titles: Sequence[str],
    motifs: str | Path | None,
    beds: Mapping[str, str | Path],
    stretches: _Stretches,
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


def _feature_track(name: str, path: Path, kind: str, stretches: _Stretches) -> dict[str, Any]:
    """The places of a BED file that the page shows; those of seqlets, which have no strand, are coloured by sign."""
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
    stretches: _Stretches,
    tracks: Mapping[str, tuple[npt.NDArray[np.float32], npt.NDArray[np.int8]]],
    features: Sequence[Mapping[str, Any]],
    overlap: Overlap,
    shown: int,
) -> bytes:
    ends: dict[int, int] = {}
    for contig, end in zip(stretches.contig, stretches.end, strict=True):
        ends[contig] = max(ends.get(contig, 0), end)
    rows = zip(stretches.contig, stretches.start, np.diff(stretches.begin).tolist(), stretches.name, strict=True)
    notes = [f"{shown:,} sequence{'s' * (shown != 1)}."]
    if stretches.genome:
        notes.append(f"Where intervals overlap, a base has the {overlap} of its values.")
    facts = {
        "notes": notes,
        "genome": stretches.genome,
        "contigs": [[_igv_name(name, k), ends[k]] for name, k in stretches.contigs.items()],
        "segments": [list(row) for row in rows],
        "entries": [[stretches.contigs[i.chrom], i.start, i.end - i.start, _name(i)] for i in stretches.listed],
        "tracks": [{"name": name} for name in tracks],
        "features": features,
    }
    text = json.dumps(facts, separators=(",", ":")).encode()
    arrays = [stretches.letters.tobytes()]
    for scale, values in tracks.values():
        arrays += [scale.astype("<f4").tobytes(), values.tobytes()]
    packed = gzip.compress(b"".join([len(text).to_bytes(4, "little"), text, *arrays]), 9, mtime=0)
    igv, script, style = igv_script(), _front("browser.js"), _front("browser.css")
    parts = {
        "policy": _policy([igv, script]),
        "title": html.escape(title),
        "style": style,
        "licence": _front("igv-LICENSE.txt").strip(),
        "data": base64.b64encode(packed).decode(),
        "igv": igv,
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _front("browser.html")).encode()


def _igv_name(name: str, number: int) -> str:
    """A sequence's name as igv.js can look it up: it splits places at colons and names at blanks."""
    plain = re.sub(r"[\s:]+", "_", name)
    return plain if plain == name else f"{plain}.{number}"


def _policy(scripts: Sequence[str]) -> str:
    """Only these scripts run; no address can be reached. igv.js brings styles of its own."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    hashes = " ".join(f"'sha256-{one}'" for one in digests)
    return (
        f"default-src 'none'; script-src {hashes}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


@lru_cache(maxsize=1)
def igv_script() -> str:
    """igv.js as it comes with plrp; `tools/igv.py` renews it."""
    packed = (resources.files(__package__) / "front" / "igv.min.js.gz").read_bytes()
    return gzip.decompress(packed).decode()


@lru_cache
def _front(name: str) -> str:
    return (resources.files(__package__) / "front" / name).read_text(encoding="utf-8")
