"""The results of a finished run in the files that other tools read: relevance, scores, seqlets."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plrp.files import UNFINISHED
from plrp.health import DOUBTFUL, PYTHON, Problem, Wording, summary
from plrp.runs.places import Folder, Place
from plrp.runs.run import Run

from .attribution import pool
from .export import write_npz, write_parquet, write_seqlets
from .motifs import jaspar_motifs
from .seqlets import Match, Seqlets
from .sequence_settings import Pooling
from .sequences import Sequences, encode, tab_line
from .tracks import write_bedgraph

if TYPE_CHECKING:
    from plrp.composites import Composite
    from plrp.pruning import Pruning

    from .jobs import Explaining

GATHERED = ("relevance.parquet", "relevance.bedgraph", "scores.tsv", "seqlets.bed", "attributions.npz", "onehot.npz")
SCRATCH = "parts/gathered.npy"
"""A memory map that exists while results are gathered."""

ATTRIBUTION_COLUMNS = ("relevance", "score", "target", "problems")
"""The columns of `Attribution` in a part."""
SEQLET_COLUMNS = ("sequence", "start", "end", "relevance_of_seqlet")
"""The columns of `Seqlets` in a part."""
MATCH_COLUMNS = ("motif", "p", "strand")
"""The best match of each seqlet: JASPAR's id, p-value and strand."""

SAFE_RULES = ("epsilon-plus", "gamma:0.25")
"""The rules to try on one-hot input where contributions cancel: flat would credit letters that are not there."""


def load_part(run: Run, name: str, arrays: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Some arrays of a part."""
    with np.load(io.BytesIO(run.read(name))) as part:
        return [part[array] for array in arrays]


def gather(explaining: Explaining) -> None:
    """Relevance and one-hot sequences of all parts; harmless if two processes do it at once."""
    run, sequences, plan, settings = explaining.run, explaining.sequences, explaining.plan, explaining.settings
    names = run.names()

    def parts() -> Iterator[tuple[Sequences, npt.NDArray[np.float32]]]:
        for k, rows in enumerate(plan):
            chosen = sequences[rows]
            (relevance,) = load_part(run, names[k], ["relevance"])
            yield chosen, pool(relevance, encode(chosen, settings.ambiguous), settings.pooling)

    with run.place.new_file("relevance.parquet") as path:
        write_parquet(path, ((chosen, list(values)) for chosen, values in parts()))
    if sequences.intervals is not None:
        intervals = [sequences.intervals[row] for rows in plan for row in rows]
        with run.place.new_file("relevance.bedgraph") as path:
            write_bedgraph(path, intervals, (row for _, values in parts() for row in values))

    lengths = set(sequences.lengths.tolist())
    if len(lengths) == 1:
        shape = (len(sequences), 4, lengths.pop())
        with _memory_map(run.place, "attributions.npz", shape, np.float32) as whole:
            for k, rows in enumerate(plan):
                (whole[rows],) = load_part(run, names[k], ["relevance"])
        with _memory_map(run.place, "onehot.npz", shape, np.int8) as whole:
            for rows in plan:
                whole[rows] = encode(sequences[rows], settings.ambiguous)


@contextmanager
def _memory_map(place: Place, name: str, shape: tuple[int, ...], kind: Any) -> Iterator[npt.NDArray[Any]]:
    """An array on the disk to be filled; it is written to `name` when the block ends well.

    Until then it is a private file: in the run's folder, which has room, or where temporary files go.
    """
    scratch = Path(SCRATCH)
    folder, suffix = place.path / scratch.parent if isinstance(place, Folder) else None, UNFINISHED + scratch.suffix
    with (
        place.new_file(name) as path,
        tempfile.NamedTemporaryFile(prefix=f".{scratch.stem}.", suffix=suffix, dir=folder) as file,
    ):
        whole = np.lib.format.open_memmap(file.name, "w+", kind, shape)
        yield whole
        write_npz(path, arr_0=whole)
        del whole


def gather_seqlets(explaining: Explaining, matched: bool) -> None:
    """The seqlets of all parts in one BED file, with the motifs they match if they were compared."""
    run, names = explaining.run, explaining.run.names()
    parts = []
    for k, rows in enumerate(explaining.plan):
        seqlets = Seqlets(*load_part(run, names[k], SEQLET_COLUMNS))
        parts.append(replace(seqlets, sequence=np.array(rows, np.int64)[seqlets.sequence]))
    with run.place.new_file("seqlets.bed") as path:
        write_seqlets(path, Seqlets.joined(parts), explaining.sequences, _matches(run) if matched else None)


def _matches(run: Run) -> list[Match] | None:
    """The best match of every seqlet; None where some parts were not compared with known motifs."""
    names = run.names("matches")
    if not names or len(names) < run.parts:
        return None
    known = {motif.id: motif for motif in jaspar_motifs()}
    return [
        Match(known[str(motif)], float(p), float(p) * len(known), 0, 0, str(strand))
        for name in names.values()
        for motif, p, strand in zip(*load_part(run, name, MATCH_COLUMNS), strict=True)
    ]


def gather_scores(explaining: Explaining) -> list[str]:
    """Write each sequence's target, score and sum of relevance; returns one remark per sequence."""
    run, names, settings = explaining.run, explaining.run.names(), explaining.settings
    # Hypothetical scores are also of letters that are not there, which are no share of the score.
    pooling: Pooling = "present" if settings.hypothetical else "sum"
    lines: dict[int, tuple[object, ...]] = {}
    for k, rows in enumerate(explaining.plan):
        relevance, scores, targets, problems = load_part(run, names[k], ATTRIBUTION_COLUMNS)
        onehot = encode(explaining.sequences[rows], settings.ambiguous)
        sums = pool(relevance, onehot, pooling).sum(-1, dtype=np.float64)
        judged = problems if len(problems) else np.full(len(rows), "")  # only LRP is judged
        for row, total, score, target, problem in zip(rows, sums, scores, targets, judged, strict=True):
            far = settings.method == "lrp" and not 0 <= total / (score or np.nan) <= DOUBTFUL
            remark = str(problem) or ("doubtful" if far and score else "")
            name = explaining.sequences.names[row]
            lines[row] = name, "" if target < 0 else target, f"{score:.6g}", f"{total:.6g}", remark
    table = [lines[row] for row in sorted(lines)]
    with run.place.new_file("scores.tsv") as path:
        header = ("name", "target", "score", "relevance", "remark")
        path.write_text("".join(tab_line(*line) for line in (header, *table)))
    return [str(line[-1]) for line in table]


@dataclass(frozen=True)
class UnhealthySequences:
    """The unhealthy explanations of a run, by the names of their sequences, and the number of doubtful ones."""

    sequences: int
    problems: list[tuple[str, Problem]]
    doubtful: int
    pruning: Pruning | None
    composite: str | Composite

    @classmethod
    def of(cls, explaining: Explaining, remarks: Sequence[str]) -> UnhealthySequences | None:
        """From one remark per sequence; None where all are healthy."""
        pairs = zip(explaining.sequences.names, remarks, strict=True)
        problems = [(name, Problem(remark)) for name, remark in pairs if remark not in ("", "doubtful")]
        doubtful, settings = remarks.count("doubtful"), explaining.settings
        if not problems and not doubtful:
            return None
        return cls(len(remarks), problems, doubtful, settings.pruning, settings.composite)

    def words(self, wording: Wording = PYTHON) -> str:
        """How many there are, which, and what to do; `wording` names the settings."""
        rules = replace(wording, composites=tuple(name for name in SAFE_RULES if name != self.composite))
        problems = [*(problem for _, problem in self.problems), *[None] * (self.sequences - len(self.problems))]
        sentences = []
        if (advice := summary(problems, self.pruning, "sequences", rules)) is not None:
            names, others = ", ".join(name for name, _ in self.problems[:3]), len(self.problems) - 3
            sentences.append(f"{advice}. They are {names}{f' and {others:,} more' if others > 0 else ''}")
        if self.doubtful:
            sentences.append(
                f"{self.doubtful:,} of {self.sequences:,} explanations are doubtful: relevance adds up to less than 0% "
                f"or more than {DOUBTFUL:.0%} of the score. scores.tsv says which; `plrp genomics compare` asks the "
                "network itself"
            )
        return ". ".join(sentences)

    __str__ = words
