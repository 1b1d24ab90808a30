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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, cast, overload

import numpy as np
import numpy.typing as npt

from plrp.errors import UsageError
from plrp.runs.unpacking import LARGEST, TooLarge, Unpacked, read_arrays

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

_COMPLEMENT = bytes.maketrans(b"ACGTUYRSWKMBDHVNacgtuyrswkmbdhvn", b"TGCAARYSWMKVHDBNtgcaaryswmkvhdbn")
_UPPER_T = bytes.maketrans(b"abcdefghijklmnopqrstuvwxyzuU", b"ABCDEFGHIJKLMNOPQRSTTVWXYZTT")


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
_CERTAIN = np.where(_SHARE.max(1, keepdims=True) == 1, _SHARE, np.where(np.isnan(_SHARE), _SHARE, 0)).astype(np.float32)


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
    """Named DNA sequences in order: what every reader returns and every writer takes.

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

    def where(self, index: int) -> str:
        """`file, line 12, record 'chr1:5-9'`: how errors point at a sequence."""
        line = f", line {self.lines[index]}" if self.lines else ""
        return f"{self.source}{line}, record {self.names[index]!r}"

    def onehot(self, ambiguous: Ambiguous = "zero") -> OneHot:
        """The sequences as one array (sequence, letter, position); all must have the same length."""
        lengths = self.lengths
        if len(lengths) and (odd := np.flatnonzero(lengths != lengths[0])).size:
            raise SequenceError(
                f"{self.where(int(odd[0]))} has {lengths[odd[0]]} bases, the first sequence has {lengths[0]}: one "
                "array needs one length; explain them length by length (`explain_file` does), or cut them first."
            )
        return encode(self, ambiguous)


def encode(sequences: str | Sequence[str] | Sequences, ambiguous: Ambiguous = "zero") -> OneHot:
    """Letters to one-hot: a string gives (letter, position), many give (sequence, letter, position).

    `ambiguous` says what N and the other IUPAC codes become: `"zero"` gives an empty column (the model sees no letter
    there, which can receive no relevance), `"share"` equal parts of the letters it stands for (R = ½A + ½G), and
    `"error"` refuses it.

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
    if any(len(s) != len(letters[0]) for s in letters):
        raise SequenceError(f"Sequences of lengths {sorted({len(s) for s in letters})}: one array needs one length.")
    codes = np.frombuffer("".join(letters).encode("latin-1", "replace"), np.uint8).reshape(len(letters), -1)
    table = _SHARE if ambiguous == "share" else _CERTAIN
    onehot = np.stack([column[codes] for column in table.T], axis=1)

    refused = np.isnan(onehot[:, 0]) if ambiguous != "error" else onehot.sum(1) != 1
    if refused.any():
        row, column = (int(i[0]) for i in np.nonzero(refused))
        place = sequences.where(row) if isinstance(sequences, Sequences) else f"sequence {row}"
        raise SequenceError(f"{place}: {chr(codes[row, column])!r} at base {column + 1} is not " + (
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
    """A line of a BED file or another table: cells with tabs between."""
    return "\t".join(map(one_line, cells)) + "\n"


@contextmanager
def open_text(path: str | Path, *, largest: int = LARGEST) -> Iterator[Iterator[tuple[int, str]]]:
    """Numbered lines of a text file with any of the usual line ends; gzip is detected by content, not by name.

    A damaged or truncated gzip stream becomes a `SequenceError` that names the last line that could be read; one that
    unpacks to more than `largest` bytes is refused.
    """
    path = Path(path)
    try:
        raw = path.open("rb")
    except OSError as error:
        raise SequenceError(f"{path}: cannot be read ({error.strerror}); check the path.") from None
    with raw:
        gzipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        binary: IO[bytes] = raw
        if gzipped:
            unpacked = Unpacked(cast("IO[bytes]", gzip.GzipFile(fileobj=raw)), path, largest)
            binary = cast("IO[bytes]", io.BufferedReader(unpacked, 1 << 16))
        stream = io.TextIOWrapper(binary, encoding="utf-8", errors="replace")  # any of \n, \r\n, \r ends a line
        yield _numbered_lines(path, stream)


def _refuse_folder(path: Path) -> None:
    """Refuse a folder given in place of a FASTA file, and name a file in it that may have been meant."""
    if not path.is_dir():
        return
    found = [file for file in sorted(path.iterdir()) if file.name.removesuffix(".gz").endswith(SUFFIXES)]
    remedy = (
        f"name a file, such as {found[0]}"
        if found
        else f"name a file; none in it ends like one ({', '.join(SUFFIXES)})"
    )
    raise SequenceError(f"{path} is a folder, not a FASTA file: {remedy}.")


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


def read_fasta(path: str | Path, *, largest: int = LARGEST) -> Sequences:
    """All records of a FASTA file (plain or gzipped, unpacked `largest` bytes at most), in order.

    The name is the header's first word. Windows line ends are accepted. Refused, with file and line: an empty file,
    text before the first header, a record without bases, a repeated name, letters that are not nucleotides.
    """
    path = Path(path)
    _refuse_folder(path)
    names: list[str] = []
    lines: list[int] = []
    pieces: list[list[str]] = []
    first_seen: dict[str, int] = {}
    with open_text(path, largest=largest) as numbered:
        for number, line in numbered:
            line = line.strip()
            if not line:
                continue
            if line.startswith(">"):
                words = line[1:].split()
                if not words:
                    raise SequenceError(f"{path}, line {number}: this header has no name; write '>name'.")
                if names and not pieces[-1]:
                    raise SequenceError(f"{path}, line {lines[-1]}: record {names[-1]!r} has no sequence.")
                name = words[0]
                if name in first_seen:
                    raise SequenceError(
                        f"{path}, line {number}: the name {name!r} was used before, in line {first_seen[name]}; "
                        "results are stored by name, so rename one of them."
                    )
                first_seen[name] = number
                names.append(name)
                lines.append(number)
                pieces.append([])
            elif not names and line.startswith("@"):
                raise SequenceError(f"{path}: this looks like FASTQ: convert it to FASTA (seqtk seq -a reads.fastq).")
            elif not names:
                raise SequenceError(f"{path}, line {number}: text before the first '>' header; this is not FASTA.")
            else:
                pieces[-1].append(checked_bases(line, f"{path}, line {number}", names[-1]))
    if not names:
        raise SequenceError(f"{path}, line 1: no sequences in this file; FASTA records start with '>name'.")
    if not pieces[-1]:
        raise SequenceError(f"{path}, line {lines[-1]}: record {names[-1]!r} has no sequence.")
    return Sequences(names, ["".join(parts) for parts in pieces], str(path), lines)


_NUCLEOTIDE_BYTES = "".join(IUPAC) + "".join(IUPAC).lower()
_DROP_NUCLEOTIDES = {ord(c): None for c in _NUCLEOTIDE_BYTES}


def checked_bases(text: str, where: str, name: str) -> str:
    """`text` in upper case with T for U; a `SequenceError` names the first letter that is not a nucleotide."""
    if foreign := text.translate(_DROP_NUCLEOTIDES):
        letter = foreign[0]
        if letter.upper() in "EFIJLOPQXZ*":
            hint = "the record looks like a protein; plrp.genomics reads DNA"
        elif letter in "-.":
            hint = "gaps of an alignment must be removed first"
        else:
            hint = "use A, C, G, T and IUPAC codes"
        raise SequenceError(f"{where}: {letter!r} in record {name!r} is not a nucleotide; {hint}.")
    return text.encode().translate(_UPPER_T).decode()


def write_fasta(path: str | Path, names: Sequence[str], letters: Sequence[str]) -> None:
    """Write sequences as FASTA, one line each; gzipped, without a time stamp, if the name ends in `.gz`."""
    text = "".join(f">{one_line(name)}\n{bases}\n" for name, bases in zip(names, letters, strict=True)).encode()
    Path(path).write_bytes(gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


def read_bed(path: str | Path) -> list[Interval]:
    """The intervals of a BED file (3 to 6 columns and more; comment, `track` and `browser` lines are skipped)."""
    intervals: list[Interval] = []
    with open_text(path) as numbered:
        for number, line in numbered:
            fields = line.rstrip().split("\t") if "\t" in line else line.split()
            if not line.strip() or line.startswith("#") or _is_header(line):
                continue
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


def _is_header(line: str) -> bool:
    """Whether a line of a BED file is for a browser, and not a place on a sequence that is called so."""
    words = line.split()
    return words[0] in ("track", "browser") and not (len(words) > 2 and words[1].isdigit() and words[2].isdigit())


def read_intervals(
    bed: str | Path, genome: str | Path, *, width: int | None = None, ends: Ends = "refuse", largest: int = LARGEST
) -> Sequences:
    """The genome's sequence at every interval of a BED file; the minus strand comes reverse-complemented.

    `width` widens or narrows every interval around its centre to that many bases, for models that read one length.
    Intervals on a chromosome that the genome does not have are refused with the BED file's line; those that reach past
    the end of theirs are, by `ends`, refused too, left out, or padded with N.
    """
    intervals = read_bed(bed)
    if width is not None:
        intervals = [_recentred(interval, width) for interval in intervals]
    reference = Genome(genome, largest=largest)
    for interval in intervals:
        place = f"{bed}, line {interval.line}: {interval.chrom}:{interval.start}-{interval.end}"
        if interval.chrom not in reference.lengths:
            known = ", ".join(list(reference.lengths)[:4])
            raise SequenceError(f"{place} is not on a chromosome of {genome}, which has {known} ...")
        if ends == "refuse" and not _inside(interval, reference):
            raise SequenceError(
                f"{place} reaches past the chromosome, which has {reference.lengths[interval.chrom]} bases; cut the "
                "interval, leave such intervals out or pad them (ends='skip' or 'pad'), or use the genome they were "
                "made for."
            )
    asked = len(intervals)
    if ends == "skip":
        intervals = [interval for interval in intervals if _inside(interval, reference)]
        if not intervals:
            raise SequenceError(f"{bed}: all {asked} intervals reach past the ends of their chromosomes.")
    names = [f"{i.chrom}:{i.start}-{i.end}({i.strand})" if i.name in (".", "") else i.name for i in intervals]
    if len(set(names)) < len(names):  # BED names need not be unique; coordinates make them so
        names = [f"{name}@{i.chrom}:{i.start}-{i.end}({i.strand})" for name, i in zip(names, intervals, strict=True)]
        seen: dict[str, int] = {}
        for name, interval in zip(names, intervals, strict=True):
            if name in seen:
                raise SequenceError(f"{bed}, line {interval.line}: the same interval as in line {seen[name]}.")
            seen[name] = interval.line
    letters = []
    for interval in intervals:
        bases = reference.padded(interval.chrom, interval.start, interval.end)
        letters.append(reverse_complement(bases) if interval.strand == "-" else bases)
    return Sequences(names, letters, str(bed), [i.line for i in intervals], intervals, asked - len(intervals))


def _inside(interval: Interval, genome: Genome) -> bool:
    return interval.start >= 0 and interval.end <= genome.lengths[interval.chrom]


def _recentred(interval: Interval, width: int) -> Interval:
    start = (interval.start + interval.end) // 2 - width // 2
    return Interval(interval.chrom, start, start + width, interval.name, interval.score, interval.strand, interval.line)


class Genome:
    """A reference FASTA with random access: `lengths` of its chromosomes and `fetch(chrom, start, end)`.

    A plain file is scanned once for line offsets (or its `.fai` index is used, if there is one that is newer) and only
    the bases asked for are read. A gzipped file has no random access and is held in memory, `largest`
    bytes at most.
    """

    def __init__(self, path: str | Path, *, largest: int = LARGEST) -> None:
        self.path = Path(path)
        self._whole: dict[str, str] | None = None
        self._index: dict[str, tuple[int, int, int, int]] = {}  # length, offset, bases per line, bytes per line
        _refuse_folder(self.path)
        try:
            gzipped = self.path.open("rb").read(2) == b"\x1f\x8b"
        except OSError as error:
            raise SequenceError(f"{path}: cannot be read ({error.strerror}); check the path.") from None
        if gzipped:
            records = read_fasta(self.path, largest=largest)
            self._whole = dict(zip(records.names, records.letters, strict=True))
            self.lengths = {name: len(letters) for name, letters in self._whole.items()}
            return
        fai = self.path.with_name(self.path.name + ".fai")
        if fai.exists() and fai.stat().st_mtime >= self.path.stat().st_mtime:
            for line in fai.read_text().splitlines():
                name, *numbers = line.split("\t")
                length, offset, bases, width = (int(n) for n in numbers[:4])
                self._index[name] = (length, offset, bases, width)
        else:
            self._scan()
        self.lengths = {name: entry[0] for name, entry in self._index.items()}

    def _scan(self) -> None:
        name = ""
        length = offset = bases = width = position = 0
        last_line_short = False
        with self.path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                position += len(line)
                stripped = line.rstrip(b"\r\n")
                if line.startswith(b">"):
                    words = stripped[1:].split()
                    if not words:
                        raise SequenceError(f"{self.path}, line {number}: this header has no name; write '>name'.")
                    if name:
                        self._index[name] = (length, offset, bases, width)
                    name = words[0].decode()
                    if name in self._index:
                        raise SequenceError(f"{self.path}, line {number}: the name {name!r} was used before.")
                    length, offset, bases, width, last_line_short = 0, position, 0, 0, False
                elif stripped:
                    if not name:
                        raise SequenceError(f"{self.path}, line {number}: text before the first '>' header.")
                    if last_line_short or (bases and len(stripped) > bases):
                        raise SequenceError(
                            f"{self.path}, line {number}: lines of different lengths within {name!r}; rewrap the file."
                        )
                    bases, width = bases or len(stripped), width or len(line)
                    last_line_short = len(stripped) < bases
                    length += len(stripped)
        if not name:
            raise SequenceError(f"{self.path}, line 1: no sequences in this file.")
        self._index[name] = (length, offset, bases, width)

    def fetch(self, chrom: str, start: int, end: int) -> str:
        """Bases `start`..`end` (0-based, half-open) of a chromosome, upper case."""
        if self._whole is not None:
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
    several = len(arrays) > 1
    return from_onehot(arrays[key], names, source=f"{path}, array {key!r}" if several else str(path))


def from_onehot(onehot: npt.ArrayLike, names: Sequence[str] | None = None, source: str = "array") -> Sequences:
    """Sequences from a one-hot array, (sequence, 4, position) or (sequence, position, 4)."""
    array = np.asarray(onehot)
    if array.ndim != 3 or 4 not in array.shape[1:]:
        raise SequenceError(f"{source}: a one-hot array has axes (sequence, 4, position); this one is {array.shape}.")
    if array.shape[1] != 4:
        array = array.transpose(0, 2, 1)
    if not np.isin(array, (0, 1)).all() or (array.sum(1) > 1).any():
        raise SequenceError(f"{source}: the array is not one-hot (columns with one 1, or empty for N).")
    letters = decode(array) if len(array) else []
    return Sequences(
        list(names) if names is not None else [f"seq{i}" for i in range(len(array))], list(letters), source
    )
