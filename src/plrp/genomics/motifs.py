"""Motifs: the sites that a transcription factor binds, as probabilities of each letter at each position.

`motif(...)` makes a `Motif` from a JASPAR name or id (looked up offline, in the database that pyjaspar ships), a MEME
or JASPAR file, or an array.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plrp.errors import needed
from plrp.spelling import close_names

from .sequences import LETTERS, Floats, SequenceError, one_line, open_text

JASPAR_RELEASE = "JASPAR2024"
"""The release in which names are looked up: pyjaspar ships several, and a fixed one keeps results the same."""


@dataclass(frozen=True, eq=False)
class Motif:
    """A position weight matrix with a name: `probabilities` (4, width), rows A, C, G, T, columns summing to 1."""

    name: str
    probabilities: Floats
    id: str = ""
    family: str = ""

    def __post_init__(self) -> None:
        matrix = np.asarray(self.probabilities, np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != 4 or matrix.shape[1] == 0:
            raise SequenceError(f"Motif {self.name!r}: a matrix has axes (4, width); this one is {matrix.shape}.")
        if not np.isfinite(matrix).all() or (matrix < 0).any() or not np.allclose(matrix.sum(0), 1, atol=1e-3):
            raise SequenceError(
                f"Motif {self.name!r}: columns must be probabilities that sum to 1; give counts to `motif(...)`, "
                "which normalises them."
            )
        object.__setattr__(self, "probabilities", matrix / matrix.sum(0))

    @property
    def width(self) -> int:
        """Number of positions."""
        return self.probabilities.shape[1]

    @property
    def consensus(self) -> str:
        """The likeliest letter at each position."""
        return "".join(LETTERS[i] for i in self.probabilities.argmax(0))

    @property
    def information(self) -> Floats:
        """Bits per position against a uniform background: 2 − entropy, between 0 and 2; (width,)."""
        p = self.probabilities
        return 2 + (p * np.log2(np.where(p > 0, p, 1))).sum(0)

    def reverse_complement(self) -> Motif:
        """The same motif on the other strand."""
        return Motif(self.name, self.probabilities[::-1, ::-1], self.id, self.family)

    def draw(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
        """`count` independent sites as letter codes 0..3; (count, width)."""
        cumulative = self.probabilities.cumsum(0)
        u = rng.random((count, self.width))
        return (u[:, None] >= cumulative[None, :3]).sum(1).astype(np.uint8)

    def __str__(self) -> str:
        return f"{self.name} ({self.id})" if self.id else self.name


def motif(given: Any, name: str | None = None) -> Motif:
    """A motif from a JASPAR name or id, a file with one motif, an array (4, width) or (width, 4), or a `Motif`.

    Counts are normalised. Names are looked up by `jaspar(...)`; the name of a file is read as one.

    >>> motif([[9, 0, 0], [0, 10, 0], [1, 0, 10], [0, 0, 0]], name="mine").consensus
    'ACG'
    """
    if isinstance(given, Motif):
        return given
    if isinstance(given, (str, Path)):
        if Path(given).suffix in (".meme", ".jaspar", ".pfm", ".txt") or Path(given).is_file():
            several = read_motifs(given)
            if len(several) != 1:
                raise SequenceError(
                    f"{given}: {len(several)} motifs where one is wanted; choose from `read_motifs(...)`."
                )
            return several[0]
        return jaspar(str(given))
    matrix = np.asarray(given, np.float64)
    if matrix.ndim == 2 and matrix.shape[0] != 4 and matrix.shape[1] == 4:
        matrix = matrix.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return Motif(name or "motif", matrix / matrix.sum(0))


def motifs(given: Any) -> list[Motif]:
    """Several motifs: a sequence of arguments of `motif`, a dictionary from names to arrays, a file, or one motif."""
    if isinstance(given, (str, Path)) and Path(given).is_file():
        return read_motifs(given)
    if isinstance(given, (str, Path, Motif)):
        return [motif(given)]
    if isinstance(given, dict):
        return [motif(matrix, name) for name, matrix in given.items()]
    return [motif(one, f"motif{i}") for i, one in enumerate(given)]


@lru_cache(maxsize=8)
def _database(release: str) -> Any:
    with needed("JASPAR motifs need pyjaspar", "genomics"):
        from pyjaspar import jaspardb
    return jaspardb(release=release)


def _from_pyjaspar(record: Any) -> Motif:
    counts = np.array([record.counts[letter] for letter in LETTERS], np.float64)
    return Motif(record.name, counts / counts.sum(0), record.matrix_id, "; ".join(record.tf_family or []))


@lru_cache(maxsize=256)
def jaspar(name: str, release: str = JASPAR_RELEASE) -> Motif:
    """One JASPAR motif by matrix id (`MA0035.4`, or `MA0035` for the newest version) or by name (`GATA1`), offline.

    Of several motifs with the same name, vertebrate ones take precedence, then the lowest base id: `GATA1` is the
    mammalian factor, not the plant's. Case does not matter.
    """
    database, is_id = _database(release), re.fullmatch(r"[A-Z]{2}\d{4}(\.\d+)?", name, re.IGNORECASE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyjaspar warns if it finds nothing; that is an error here
        records = [database.fetch_motif_by_id(name.upper())] if is_id else database.fetch_motifs_by_name(name)
    core_first = sorted(
        (r for r in records or [] if r is not None),
        key=lambda r: (r.collection != "CORE", r.tax_group != "vertebrates", r.base_id, -int(r.version)),
    )
    if core_first:
        return _from_pyjaspar(core_first[0])
    if is_id:
        raise SequenceError(
            f"{release} has no motif with id {name!r}: give a name (GATA1), an id without its version, which finds "
            "the newest (MA0035), or a MEME or JASPAR file."
        )
    known = {m.name: m for m in jaspar_motifs(release=release)}
    close = [str(known[one]) for one in close_names(name, known, 5)]
    hint = f"; it has {', '.join(close)}" if close else ""
    raise SequenceError(
        f"{release} has no motif called {name!r}{hint}. Give one of its names or ids, or a MEME or JASPAR file."
    )


@lru_cache(maxsize=4)
def jaspar_motifs(group: str | None = "vertebrates", release: str = JASPAR_RELEASE) -> tuple[Motif, ...]:
    """The newest version of every CORE motif of a taxonomic group (None: of all groups), ordered by id."""
    records = _database(release).fetch_motifs(collection="CORE", tax_group=[group] if group else None)
    return tuple(sorted((_from_pyjaspar(record) for record in records), key=lambda m: m.id))


# -- files


def read_motifs(path: str | Path) -> list[Motif]:
    """All motifs of a MEME (minimal) or JASPAR (`>id name` and four rows, bracketed or plain) file."""
    with open_text(path) as numbered:
        lines = [(number, text) for number, line in numbered if (text := line.strip())]
    if not lines:
        raise SequenceError(f"{path}, line 1: no motifs in this file.")
    meme = any(line.startswith("MOTIF") for _, line in lines)
    mark, read_rows = ("MOTIF", _meme_rows) if meme else (">", _jaspar_rows)
    entries: list[tuple[int, list[str], list[tuple[int, str]]]] = []  # line and words of the header, lines below it
    for number, line in lines:
        if line.startswith(mark):
            entries.append((number, line.removeprefix(mark).split() or ["motif"], []))
        elif entries:
            entries[-1][2].append((number, line))
    if not entries:
        raise SequenceError(f"{path}, line {lines[0][0]}: neither MEME ('MOTIF name') nor JASPAR ('>id name').")
    several = []
    for number, words, body in entries:
        rows = read_rows(f"{path}, line {number}: motif {words[0]!r}", [(f"{path}, line {n}", t) for n, t in body])
        name = words[1 if meme else -1] if len(words) > 1 else words[0]
        several.append(replace(motif(rows, name), id=words[0] if len(words) > 1 else ""))
    return several


def _numbers(place: str, text: str) -> list[float]:
    try:
        return [float(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise SequenceError(f"{place}: expected numbers of a motif matrix, found {text[:50]!r}.") from None


def _meme_rows(title: str, body: Sequence[tuple[str, str]]) -> list[list[float]]:
    """The rows below `letter-probability matrix`, a position each; `body` has the place and text of lines."""
    below = dropwhile(lambda line: not line[1].startswith("letter-probability matrix"), body)
    matrix = takewhile(lambda line: not line[1].startswith("URL"), islice(below, 1, None))
    rows = [_numbers(*line) for line in matrix]
    if not rows or any(len(row) != 4 for row in rows):
        raise SequenceError(f"{title} needs rows of four probabilities each.")
    return rows


def _jaspar_rows(title: str, body: Sequence[tuple[str, str]]) -> list[list[float]]:
    """The four rows of a matrix, A C G T, with or without letters and brackets."""
    rows = [_numbers(place, re.sub(r"^[ACGTacgt]?\s*\[?|\]", " ", text)) for place, text in body[:4]]
    if len(rows) != 4 or len({len(row) for row in rows}) != 1:
        raise SequenceError(f"{title} needs four rows of one length, A C G T.")
    return rows


def write_jaspar(path: str | Path, several: Sequence[Motif], counts: Sequence[int] | None = None) -> None:
    """Write motifs in JASPAR's format, which has counts: probabilities times the number of sites, `counts` or 100."""
    parts = []
    for one, sites in zip(several, counts or [100] * len(several), strict=True):
        name = one_line(one.name).replace(" ", "_")
        parts.append(f">{one_line(one.id) or name}\t{name}\n")
        for letter, row in zip(LETTERS, one.probabilities, strict=True):
            parts.append(f"{letter}  [ {' '.join(f'{p * sites:6.1f}' for p in row)} ]\n")
    Path(path).write_text("".join(parts))


def write_meme(path: str | Path, several: Sequence[Motif], counts: Sequence[int] | None = None) -> None:
    """Write motifs as a minimal MEME file, which the MEME suite, TF-MoDISco and tangermeme read.

    `counts`: the number of sites that each motif was made of; without it 20, MEME's own default.
    """
    parts = ["MEME version 4\n\nALPHABET= ACGT\n\nstrands: + -\n"]
    for one, sites in zip(several, counts or [20] * len(several), strict=True):
        parts.append(f"\nMOTIF {one_line(one.id or one.name)} {one_line(one.name)}\n")
        parts.append(f"letter-probability matrix: alength= 4 w= {one.width} nsites= {sites} E= 0\n")
        parts.extend(" ".join(f"{p:.6f}" for p in column) + "\n" for column in one.probabilities.T)
    Path(path).write_text("".join(parts))
