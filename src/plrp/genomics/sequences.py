"""DNA in and out: letters, one-hot arrays, and the files they come in.

One convention throughout the package: the rows of a one-hot array are the letters A, C, G, T in that order, and a batch
has axes (sequence, letter, position). The reverse complement is then a flip of the last two axes.

How letters are read (`encode`): lower case (soft-masked repeats) counts as upper case; U counts as T; the eleven
ambiguous IUPAC codes, N among them, follow `ambiguous`. Anything else is an error that names file and line.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import IO, Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt

from plrp.errors import UsageError
from plrp.runs.memory import TooLarge, Unpacked, read_arrays
from plrp.settings import LARGEST
from plrp.tables import csv_cell

LETTERS = "ACGT"

IUPAC = {
    "A": "A", "C": "C", "G": "G", "T": "T", "U": "T",
    "R": "AG", "Y": "CT", "S": "CG", "W": "AT", "K": "GT", "M": "AC",
    "B": "CGT", "D": "AGT", "H": "ACT", "V": "ACG", "N": "ACGT",
}  # fmt: skip

SUFFIXES = (".fa", ".fasta", ".fna", ".fas")
"""The usual endings of FASTA files, with or without `.gz`; other names are read as well."""

Ambiguous = Literal["zero", "share", "error"]
Ends = Literal["refuse", "skip", "pad"]
OneHot = npt.NDArray[np.float32]
Values = npt.NDArray[np.float32]  # relevance and scores
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_COMPLEMENT = bytes.maketrans(b"ACGTUYRSWKMBDHVNacgtuyrswkmbdhvn", b"TGCAARYSWMKVHDBNtgcaaryswmkvhdbn")


class SequenceError(UsageError):
    """Sequence data that cannot be read; the message names file, line and remedy."""


def _letter_table() -> npt.NDArray[np.float32]:
    """Share of A, C, G, T in every byte: (256, 4); NaN for bytes that are not nucleotides."""
    table = np.full((256, 4), np.nan, np.float32)
    for code, letters in IUPAC.items():
        row = np.array([letter in letters for letter in LETTERS], np.float32) / len(letters)
        table[ord(code)] = table[ord(code.lower())] = row
    return table


_SHARE = _letter_table()
_CERTAIN = np.floor(_SHARE)


@dataclass(frozen=True)
class Interval:
    """Where a sequence lies on a genome: `chrom`, 0-based half-open `start`..`end`, and its strand."""

    chrom: str
    start: int
    end: int
    name: str = "."
    score: str = "."
    strand: str = "+"
    line: int = 0


def on_genome(interval: Interval, start: int, end: int, strand: str = ".") -> tuple[str, int, int, str]:
    """Where positions `start` to `end` of an interval's sequence are on the plus strand; `strand` turns with it.

    >>> on_genome(Interval("chr1", 100, 110, strand="-"), 2, 5, "+")
    ('chr1', 105, 108, '-')
    """
    if interval.strand != "-":
        return interval.chrom, interval.start + int(start), interval.start + int(end), strand
    return interval.chrom, interval.end - int(end), interval.end - int(start), {"+": "-", "-": "+"}.get(strand, strand)


@dataclass(frozen=True)
class Sequences:
    """Named DNA sequences in order; every reader returns them and every writer takes them.

    `letters` are upper-case IUPAC codes with T for U. `source` and `lines` record where each sequence came from, so
    that a later error (too short for the model, say) still names file and line. `intervals` are the genomic
    coordinates, where known; `skipped` counts intervals that were left out.
    """

    names: list[str]
    letters: list[str]
    source: str = "array"
    lines: list[int] = field(default_factory=list)
    intervals: list[Interval] | None = None
    skipped: int = 0

    def __post_init__(self) -> None:
        if len(self.names) != len(self.letters):
            raise SequenceError(f"{len(self.names)} names for {len(self.letters)} sequences: give one name each.")

    def __len__(self) -> int:
        return len(self.letters)

    @overload
    def __getitem__(self, item: int) -> str: ...
    @overload
    def __getitem__(self, item: slice | Sequence[int]) -> Sequences: ...
    def __getitem__(self, item: int | slice | Sequence[int]) -> str | Sequences:
        if isinstance(item, (int, np.integer)):
            return self.letters[item]
        chosen = range(len(self))[item] if isinstance(item, slice) else [int(i) for i in item]
        return Sequences(
            [self.names[i] for i in chosen],
            [self.letters[i] for i in chosen],
            self.source,
            [self.lines[i] for i in chosen] if self.lines else [],
            [self.intervals[i] for i in chosen] if self.intervals is not None else None,
        )

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of bases of each sequence."""
        return np.array([len(letters) for letters in self.letters], np.int64)

    @property
    def places(self) -> list[Interval]:
        """The interval of each sequence; a sequence without coordinates is a chromosome of its own."""
        if self.intervals is not None:
            return self.intervals
        return [Interval(name, 0, len(letters), name) for name, letters in zip(self.names, self.letters, strict=True)]

    def where(self, index: int) -> str:
        """`file, line 12, record 'chr1:5-9'`: how errors point at a sequence."""
        line = f", line {self.lines[index]}" if self.lines else ""
        return f"{self.source}{line}, record {self.names[index]!r}"

    def onehot(self, ambiguous: Ambiguous = "zero") -> OneHot:
        """The sequences as one array (sequence, letter, position); all must have the same length."""
        return encode(self, ambiguous)


def encode(sequences: str | Sequence[str] | Sequences, ambiguous: Ambiguous = "zero") -> OneHot:
    """Letters to one-hot: a string gives (letter, position), many give (sequence, letter, position).

    `ambiguous` decides on N and the other IUPAC codes: `"zero"` makes an empty column (the model sees no letter, so the
    base receives no relevance), `"share"` equal parts of the code's letters (R = ½A + ½G), and `"error"` refuses them.

    >>> encode("ACN").tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    >>> encode(["RT"], ambiguous="share")[0, :, 0].tolist()
    [0.5, 0.0, 0.5, 0.0]
    """
    if isinstance(sequences, str):
        return encode([sequences], ambiguous)[0]
    letters = sequences.letters if isinstance(sequences, Sequences) else list(sequences)
    if not letters:
        return np.zeros((0, 4, 0), np.float32)
    where = sequences.where if isinstance(sequences, Sequences) else "sequence {}".format
    for row, text in enumerate(letters):
        if len(text) != len(letters[0]):
            raise SequenceError(
                f"{where(row)} has {len(text)} bases, the first sequence has {len(letters[0])}: one array needs one "
                "length; explain them length by length (`explain_file` does), or cut them first."
            )
    codes = np.frombuffer("".join(letters).encode("latin-1", "replace"), np.uint8).reshape(len(letters), -1)
    table = _SHARE if ambiguous == "share" else _CERTAIN
    onehot = np.stack([column[codes] for column in table.T], axis=1)

    refused = np.isnan(onehot[:, 0]) if ambiguous != "error" else onehot.sum(1) != 1
    if refused.any():
        row, column = (int(i[0]) for i in np.nonzero(refused))
        raise SequenceError(f"{where(row)}: {chr(codes[row, column])!r} at base {column + 1} is not " + (
            "one of A, C, G, T; pass ambiguous='zero' or 'share' to accept IUPAC codes."
            if ambiguous == "error" else "a nucleotide code (IUPAC)."
        ))  # fmt: skip
    return onehot


def decode(onehot: npt.ArrayLike) -> list[str] | str:
    """One-hot back to letters, the inverse of `encode`; columns that are empty or shared become N.

    >>> decode(encode("acgtn"))
    'ACGTN'
    """
    array = np.asarray(onehot)
    if array.ndim == 2:
        return decode(array[None])[0]
    letters = np.frombuffer(b"ACGTN", np.uint8)[np.where(array.max(1) == 1, array.argmax(1), 4)]
    return [row.tobytes().decode() for row in letters]


@overload
def reverse_complement(sequence: str) -> str: ...
@overload
def reverse_complement(sequence: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]: ...
def reverse_complement(sequence: str | npt.NDArray[np.float32]) -> str | npt.NDArray[np.float32]:
    """The other strand, read in its own direction: of letters, or of an array with last axes (letter, position).

    >>> reverse_complement("GATAAR")
    'YTTATC'
    """
    if isinstance(sequence, str):
        return sequence.encode("latin-1").translate(_COMPLEMENT)[::-1].decode("latin-1")
    return sequence[..., ::-1, ::-1]


# -- files


def one_line(text: object) -> str:
    """A name without tabs, line ends and control characters, which would begin another column or line.

    >>> one_line("chr1\\t5\\n")
    'chr1_5_'
    """
    return "".join(letter if letter.isprintable() else "_" for letter in str(text))


def tab_line(*cells: object) -> str:
    """A line of a BED file or another table that tools read: cells with tabs between."""
    return "\t".join(map(one_line, cells)) + "\n"


def tsv_line(*cells: object) -> str:
    """A line of a table that people open in a spreadsheet: no cell is a formula."""
    return tab_line(*map(csv_cell, cells))


def _open_binary(path: Path) -> tuple[IO[bytes], bool]:
    """The open file, and whether its content is gzip; the name does not matter."""
    try:
        stream = path.open("rb")
    except OSError as error:
        raise SequenceError(f"{path}: cannot be read ({error.strerror}); check the path.") from None
    gzipped = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    return stream, gzipped


@contextmanager
def open_text(path: str | Path, *, largest: int = LARGEST) -> Iterator[Iterator[tuple[int, str]]]:
    """Numbered lines of a text file, plain or gzipped, with any of the usual line ends.

    A damaged or truncated gzip stream becomes a `SequenceError` that names the last line that could be read; a stream
    that unpacks to more than `largest` bytes is refused.
    """
    path = Path(path)
    binary, gzipped = _open_binary(path)
    with binary:
        if gzipped:
            unpacked = Unpacked(cast("IO[bytes]", gzip.GzipFile(fileobj=binary)), path, largest)
            binary = cast("IO[bytes]", io.BufferedReader(unpacked, 1 << 16))
        stream = io.TextIOWrapper(binary, encoding="utf-8", errors="replace")  # any of \n, \r\n, \r ends a line
        yield _numbered_lines(path, stream)


def _numbered_lines(path: Path, stream: io.TextIOWrapper) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        for number, line in enumerate(stream, 1):
            yield number, line.rstrip("\r\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SequenceError(
            f"{path}, line {number + 1}: the gzip file ends or breaks here ({error}); it is truncated or damaged, "
            "download it again."
        ) from None


# -- FASTA


def _refuse_folder(path: Path) -> None:
    """Refuse a folder given in place of a FASTA file, and suggest a FASTA file in it."""
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.name.removesuffix(".gz").endswith(SUFFIXES)]
        remedy = f", such as {files[0]}" if files else f"; none in it ends like one ({', '.join(SUFFIXES)})"
        raise SequenceError(f"{path} is a folder, not a FASTA file: name a file{remedy}.")


def _record_name(path: Path, number: int, line: str, headers: dict[str, int]) -> str:
    """The name in a FASTA header, its first word; empty for an empty line before the first header.

    `headers` has the line number of every name so far.
    """
    if not line.startswith(">"):
        if line.startswith("@"):
            raise SequenceError(f"{path}: this looks like FASTQ: convert it to FASTA (seqtk seq -a reads.fastq).")
        if line.strip():
            raise SequenceError(f"{path}, line {number}: text before the first '>' header; this is not FASTA.")
        return ""
    name = next(iter(line[1:].split()), "")
    if not name:
        raise SequenceError(f"{path}, line {number}: this header has no name; write '>name'.")
    if name in headers:
        raise SequenceError(
            f"{path}, line {number}: the name {name!r} was used before, in line {headers[name]}; results are stored by "
            "name, so rename one of them."
        )
    headers[name] = number
    return name


def _refuse_empty(path: Path, headers: dict[str, int], filled: Mapping[str, Any]) -> None:
    """Refuse a FASTA file without records, and a record without bases, which `filled` lacks."""
    if not headers:
        raise SequenceError(f"{path}, line 1: no sequences in this file; FASTA records start with '>name'.")
    for name, number in headers.items():
        if name not in filled:
            raise SequenceError(f"{path}, line {number}: record {name!r} has no sequence.")


def read_fasta(path: str | Path, *, largest: int = LARGEST) -> Sequences:
    """All records of a FASTA file (plain or gzipped, unpacked `largest` bytes at most), in order.

    The name is the header's first word. Windows line ends are accepted. Refused, with file and line: an empty file,
    text before the first header, a record without bases, a repeated name, letters that are not nucleotides.
    """
    path = Path(path)
    _refuse_folder(path)
    headers: dict[str, int] = {}
    pieces: dict[str, list[str]] = {}
    name = ""
    with open_text(path, largest=largest) as numbered:
        for number, line in numbered:
            line = line.strip()
            if line.startswith(">") or not name:
                name = _record_name(path, number, line, headers)
            elif line:
                pieces.setdefault(name, []).append(checked_bases(line, f"{path}, line {number}", name))
    _refuse_empty(path, headers, pieces)
    return Sequences(list(headers), ["".join(pieces[name]) for name in headers], str(path), list(headers.values()))


_DROP_NUCLEOTIDES = {ord(code): None for letter in IUPAC for code in (letter, letter.lower())}


def checked_bases(text: str, where: str, name: str) -> str:
    """`text` in upper case with T for U; a `SequenceError` names the first letter that is not a nucleotide."""
    if foreign := text.translate(_DROP_NUCLEOTIDES):
        letter = foreign[0]
        if letter in "Xx" and not foreign.strip("Xx"):
            hint = "write N for an unknown base"
        elif letter.upper() in "EFIJLOPQXZ*":
            hint = "the record looks like a protein; plrp.genomics reads DNA"
        elif letter in "-.":
            hint = "gaps of an alignment must be removed first"
        else:
            hint = "use A, C, G, T and IUPAC codes"
        raise SequenceError(f"{where}: {letter!r} in record {name!r} is not a nucleotide; {hint}.")
    return text.upper().replace("U", "T")


def write_fasta(path: str | Path, names: Sequence[str], letters: Sequence[str]) -> None:
    """Write sequences as FASTA, one line each; gzipped, without a time stamp, if the name ends in `.gz`."""
    text = "".join(f">{one_line(name)}\n{bases}\n" for name, bases in zip(names, letters, strict=True)).encode()
    Path(path).write_bytes(gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


def read_bed(path: str | Path) -> list[Interval]:
    """The intervals of a BED file (3 to 6 columns and more; comment, `track` and `browser` lines are skipped)."""
    intervals: list[Interval] = []
    with open_text(path) as numbered:
        for number, line in numbered:
            words = line.split()
            located = len(words) > 2 and words[1].isdigit() and words[2].isdigit()  # also on a sequence called track
            if not words or line.startswith("#") or (words[0] in ("track", "browser") and not located):
                continue
            fields = line.rstrip().split("\t") if "\t" in line else words
            try:
                chrom, start, end = fields[0], int(fields[1]), int(fields[2])
            except (IndexError, ValueError):
                raise SequenceError(
                    f"{path}, line {number}: expected 'chrom start end', found {line[:60]!r}; BED columns are "
                    "tab-separated."
                ) from None
            name, score, strand = (*fields[3:6], *[".", ".", "+"][len(fields[3:6]) :])
            if not 0 <= start < end:
                raise SequenceError(
                    f"{path}, line {number}: {chrom}:{start}-{end} is empty or negative; BED is 0-based, end after "
                    "start."
                )
            if strand not in "+-.":
                raise SequenceError(f"{path}, line {number}: the strand is {strand!r}; it must be +, - or '.'.")
            intervals.append(Interval(chrom, start, end, name, score, "-" if strand == "-" else "+", number))
    if not intervals:
        raise SequenceError(f"{path}, line 1: no intervals in this file.")
    return intervals


def read_intervals(
    bed: str | Path, genome: str | Path, *, width: int | None = None, ends: Ends = "refuse", largest: int = LARGEST
) -> Sequences:
    """The genome's sequence at every interval of a BED file; the minus strand comes reverse-complemented.

    `width` widens or narrows every interval around its centre to that many bases, for models that read one length.
    An interval on a chromosome that the genome does not have is refused with its line. An interval that reaches past
    the end of its chromosome is, by `ends`, refused too, left out, or padded with N.
    """
    intervals = read_bed(bed)
    if width is not None:
        starts = [(i.start + i.end) // 2 - width // 2 for i in intervals]
        intervals = [replace(i, start=start, end=start + width) for i, start in zip(intervals, starts, strict=True)]
    reference = Genome(genome, largest=largest)
    inside = [_check_place(interval, bed, reference, ends) for interval in intervals]
    skipped = inside.count(False) if ends == "skip" else 0
    if skipped:
        intervals = list(compress(intervals, inside))
        if not intervals:
            raise SequenceError(f"{bed}: all {skipped} intervals reach past the ends of their chromosomes.")
    letters = []
    for interval in intervals:
        bases = reference.padded(interval.chrom, interval.start, interval.end)
        letters.append(reverse_complement(bases) if interval.strand == "-" else bases)
    lines = [interval.line for interval in intervals]
    return Sequences(_unique_names(intervals, bed), letters, str(bed), lines, intervals, skipped)


def _check_place(interval: Interval, bed: str | Path, genome: Genome, ends: Ends) -> bool:
    """Whether an interval is within its chromosome; refused where the genome lacks it, and past its end by `ends`."""
    place = f"{bed}, line {interval.line}: {interval.chrom}:{interval.start}-{interval.end}"
    if interval.chrom not in genome.lengths:
        known = ", ".join(list(genome.lengths)[:4])
        raise SequenceError(f"{place} is not on a chromosome of {genome.path}, which has {known} ...")
    length = genome.lengths[interval.chrom]
    inside = interval.start >= 0 and interval.end <= length
    if ends == "refuse" and not inside:
        raise SequenceError(
            f"{place} reaches past the chromosome, which has {length} bases; cut the interval, leave such intervals "
            "out or pad them (ends='skip' or 'pad'), or use the genome they were made for."
        )
    return inside


def _unique_names(intervals: Sequence[Interval], bed: str | Path) -> list[str]:
    """The names of intervals, with coordinates where names repeat or are missing; a repeated interval is refused."""
    places = [f"{i.chrom}:{i.start}-{i.end}({i.strand})" for i in intervals]
    names = [place if i.name in (".", "") else i.name for i, place in zip(intervals, places, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name}@{place}" for name, place in zip(names, places, strict=True)]
    lines: dict[str, int] = {}
    for name, interval in zip(names, intervals, strict=True):
        if (line := lines.setdefault(name, interval.line)) != interval.line:
            raise SequenceError(f"{bed}, line {interval.line}: the same interval as in line {line}.")
    return names


class Genome:
    """A reference FASTA with random access: `lengths` of its chromosomes and `fetch(chrom, start, end)`.

    A plain file is indexed once, or its `.fai` file is used if it is newer; only the requested bases are read. A file
    in gzip has no random access and is read into memory whole, `largest` bytes at most.
    """

    def __init__(self, path: str | Path, *, largest: int = LARGEST) -> None:
        self.path = Path(path)
        self._whole: dict[str, str] = {}
        self._index: dict[str, tuple[int, int, int, int]] = {}  # length, offset, bases per line, bytes per line
        _refuse_folder(self.path)
        stream, gzipped = _open_binary(self.path)
        fai = self.path.with_name(self.path.name + ".fai")
        with stream:
            if gzipped:
                records = read_fasta(self.path, largest=largest)
                self._whole = dict(zip(records.names, records.letters, strict=True))
            elif fai.exists() and fai.stat().st_mtime >= self.path.stat().st_mtime:
                self._read_index(fai)
            else:
                self._scan(stream)
        self.lengths = {name: len(bases) for name, bases in self._whole.items()}
        self.lengths |= {name: length for name, (length, *_) in self._index.items()}

    def _read_index(self, fai: Path) -> None:
        with open_text(fai) as numbered:
            for number, line in numbered:
                name, *cells = line.split("\t")
                try:
                    length, offset, bases, width = (int(cell) for cell in cells[:4])
                    if min(length, offset) < 0 or (length and not 0 < bases <= width):
                        raise ValueError
                except ValueError:
                    raise SequenceError(
                        f"{fai}, line {number}: not an index of a FASTA file; delete it, or make it again (samtools "
                        f"faidx {self.path})."
                    ) from None
                self._index[name] = length, offset, bases, width

    def _scan(self, stream: IO[bytes]) -> None:
        """Index the records of a plain FASTA file, whose lines have one length within a record, but for the last."""
        headers: dict[str, int] = {}
        name = ""
        length = offset = bases = width = position = 0
        for number, line in enumerate(stream, 1):
            text = line.rstrip(b"\r\n")
            if line.startswith(b">") or not name:
                name = _record_name(self.path, number, text.decode("utf-8", "replace"), headers)
                length, offset, bases, width = 0, position + len(line), 0, 0
            elif text:
                bases, width = bases or len(text), width or len(line)
                if length % bases or len(text) > bases or position != offset + length // bases * width:
                    raise SequenceError(
                        f"{self.path}, line {number}: lines of different lengths within {name!r}; rewrap the file."
                    )
                length += len(text)
                self._index[name] = length, offset, bases, width
            position += len(line)
        _refuse_empty(self.path, headers, self._index)

    def fetch(self, chrom: str, start: int, end: int) -> str:
        """Bases `start`..`end` (0-based, half-open) of a chromosome, upper case."""
        if chrom in self._whole:
            return self._whole[chrom][start:end]
        _, offset, bases, width = self._index[chrom]
        first = offset + start // bases * width + start % bases
        last = offset + end // bases * width + end % bases
        with self.path.open("rb") as stream:
            stream.seek(first)
            text = stream.read(last - first)
        letters = text.replace(b"\r", b"").replace(b"\n", b"").decode("latin-1")
        return checked_bases(letters, f"{self.path}, {chrom}:{start}-{end}", chrom)

    def padded(self, chrom: str, start: int, end: int) -> str:
        """As `fetch`, with N beyond the ends of the chromosome."""
        length = self.lengths[chrom]
        inside = self.fetch(chrom, max(0, start), min(end, length)) if start < length and end > 0 else ""
        return ("N" * max(0, min(-start, end - start)) + inside).ljust(end - start, "N")


def read_npz(path: str | Path, key: str | None = None, *, largest: int = LARGEST) -> Sequences:
    """Sequences from a one-hot array in an NPZ or NPY file, (sequence, 4, position) or (sequence, position, 4).

    Without `key`, the array called `onehot`, `sequences`, `x` or `arr_0` is read, or else the first one; an array
    `names` holds their names. A file that unpacks to more than `largest` bytes is refused.
    """
    path = Path(path)
    try:
        arrays = read_arrays(path, largest=largest)
    except TooLarge:
        raise
    except (OSError, ValueError) as error:
        raise SequenceError(f"{path}: not a readable NPZ or NPY file ({error}).") from None
    names = [str(name) for name in arrays.pop("names")] if "names" in arrays else None
    if key is None:
        known = [name for name in ("onehot", "sequences", "x", "arr_0") if name in arrays]
        key = known[0] if known else next(iter(arrays), "")
    if key not in arrays:
        raise SequenceError(f"{path}: no array {key!r}; it holds {', '.join(arrays) or 'nothing'}.")
    return from_onehot(arrays[key], names, source=f"{path}, array {key!r}" if len(arrays) > 1 else str(path))


def from_onehot(onehot: npt.ArrayLike, names: Sequence[str] | None = None, source: str = "array") -> Sequences:
    """Sequences from a one-hot array, (sequence, 4, position) or (sequence, position, 4)."""
    array = np.asarray(onehot)
    if array.ndim != 3 or 4 not in array.shape[1:]:
        raise SequenceError(f"{source}: a one-hot array has axes (sequence, 4, position); this one is {array.shape}.")
    if array.shape[1] != 4:
        array = array.transpose(0, 2, 1)
    if not np.isin(array, (0, 1)).all() or (array.sum(1) > 1).any():
        raise SequenceError(f"{source}: the array is not one-hot (columns with one 1, or empty for N).")
    known = [f"seq{i}" for i in range(len(array))] if names is None else list(names)
    return Sequences(known, list(decode(array)) if len(array) else [], source)
