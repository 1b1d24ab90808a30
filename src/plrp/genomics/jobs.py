"""Explaining files of thousands of sequences: in parts, restartable, spread over a job array.

A run is a folder, or a URL that fsspec opens. `run.json` says what is being done; `parts/NNNNN.npz` are finished parts,
each written whole or not at all; a run that was killed resumes where it stopped, and `--shard i/n` lets n processes
share one folder. When the last part is there, the results are gathered into the files other tools read.
"""

from __future__ import annotations

import hashlib
import io
import json
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from plrp.errors import UsageError, usage
from plrp.files import new_file
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.runs.crew import Watch
from plrp.runs.parts import Failure, Tick, Work
from plrp.runs.places import Folder, Place, RunError, WrongPlace, place_at, refuse_strangers
from plrp.runs.ray import RayCluster, inside, spread
from plrp.tape.refusals import check_device
from plrp.targets import check_target

from .attribution import COMPOSITE, Pooling, explain_sequences, pool
from .export import write_bedgraph, write_npz, write_parquet, write_seqlets
from .motifs import jaspar_motifs
from .seqlets import Match, Seqlets, find_seqlets, match_seqlets
from .sequences import Ambiguous, SequenceError, Sequences, encode, read_fasta, read_intervals, read_npz

RUN = "run.json"

MATCHING = (
    "seqlets are compared with known motifs (TOMTOM); the first time on a machine this compiles for a minute or two"
)
"""Said before the first part, because nothing moves while it compiles."""


@dataclass(frozen=True)
class Outcome:
    """What a run has done: parts finished by this call, parts finished in all, parts there are, and those given up."""

    done_here: int
    done: int
    parts: int
    sequences: int
    failures: tuple[Failure, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every part is there and the results were gathered."""
        return self.done == self.parts


def read_sequences(path: str | Path, genome: str | Path | None = None, width: int | None = None) -> Sequences:
    """Sequences by the file's kind: `.bed` (with `genome`), `.npz` or `.npy` one-hot, else FASTA; `.gz` as well."""
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if ".bed" in suffixes:
        if genome is None:
            raise SequenceError(f"{path}: intervals need a genome; give its FASTA file (--genome).")
        return read_intervals(path, genome, width=width)
    if suffixes and suffixes[-1] in (".npz", ".npy"):
        return read_npz(path)
    return read_fasta(path)


def load_model(name: str, weights: str | Path | None = None) -> nn.Module:
    """A checkpoint of `plrp genomics train`, or `file.py:factory` with a state dict."""
    if ".py:" in name:
        from plrp.models.loading import load

        return load(name, weights=None if weights is None else str(weights)).module
    from .network import SequenceCNN

    if weights is not None:
        raise UsageError(f"--weights goes with --model file.py:factory; {name} is a checkpoint that holds its weights.")
    return SequenceCNN.load(name)


def explain_file(
    path: str | Path,
    model: nn.Module | str,
    out: str | Path | Place,
    *,
    weights: str | Path | None = None,
    genome: str | Path | None = None,
    width: int | None = None,
    target: Any = None,
    composite: str = COMPOSITE,
    pruning: Pruning | None = None,
    pooling: Pooling = "present",
    reverse_complement: bool = False,
    hypothetical: bool = False,
    ambiguous: Ambiguous = "zero",
    part_size: int = 512,
    batch_size: int = 128,
    shard: tuple[int, int] = (1, 1),
    match: bool = True,
    device: str | None = None,
    engine: RayCluster | None = None,
    show_progress: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
    about: dict[str, Any] | None = None,
) -> Outcome:
    """Explain every sequence of a file and write the results into `out`: a folder, or a URL such as `s3://bucket/run`.

    `model` is a module, or the name of one as `load_model` takes it, with `weights`. All of the input is read and
    checked first, so that a bad line stops the run before anything is written. Sequences are taken in parts of
    `part_size` with one length each; memory holds one part of relevance at a time. With `shard=(i, n)` this process
    takes every n-th part from the i-th on; the process that finds all parts finished gathers them. `about` is written
    to `run.json` and must be the same when a run is resumed (the model's name and weights, say).

    A `plrp.runs.ray.RayCluster` as `engine` makes the parts on its nodes, which find the same files under the same
    names, or in the folder that its runtime environment brings; the model has to be named then. Parts that could not be
    made are in `Outcome.failures`.

    Written: `onehot.npz` and `attributions.npz` for TF-MoDISco (where all sequences have one length), `seqlets.bed`,
    `relevance.parquet`, and `relevance.bedgraph` where genomic coordinates are known.
    """
    index, count = shard
    if not 1 <= index <= count:
        raise ValueError(f"shard {index}/{count}: write i/n with i from 1 to n.")
    if engine is not None and not isinstance(model, str):
        raise ValueError("on a cluster the model is named, such as 'file.py:factory': a module cannot be sent.")
    if device is not None and engine is None:
        check_device(device)
    place = out if isinstance(out, Place) else place_at(out)
    if engine is not None and place.private:
        raise WrongPlace(f"{place} is this process's memory, which workers do not see: name a folder or a bucket.")
    explaining = Explaining(
        path,
        model,
        place,
        weights=weights,
        genome=genome,
        width=width,
        target=target,
        composite=composite,
        pruning=pruning,
        pooling=pooling,
        reverse_complement=reverse_complement,
        hypothetical=hypothetical,
        ambiguous=ambiguous,
        part_size=part_size,
        batch_size=batch_size,
        match=match,
        device=device,
    )
    plan = explaining.plan
    _try_lengths(explaining.model, explaining.sequences, plan, ambiguous, device, target)
    _begin(place, {**explaining.settings(), **(about or {})})
    mine = [k for k in range(len(plan)) if k % count == index - 1]
    there = set(place.names("parts"))
    missing = [k for k in mine if _part(k) not in there]
    if match and missing:
        say(MATCHING)
    with progress("explaining", sum(len(plan[k]) for k in mine), show_progress) as step:
        step(sum(len(plan[k]) for k in set(mine).difference(missing)))
        watch = _Parts(lambda k: step(len(plan[k])), say)
        failures: list[Failure] = []
        try:
            if engine is None:
                for k in missing:
                    explaining.do(k)
                    watch.done(k)
            else:
                data = explaining.as_data(engine.runtime_env.get("working_dir"))
                failures = spread(engine, Work("plrp.genomics.jobs:Explaining", data), missing, watch)
        except KeyboardInterrupt:
            say(f"stopped: {watch.stored} of {len(missing)} parts were stored; start again to resume")
            raise
    there = set(place.names("parts"))
    done = sum(_part(k) in there for k in range(len(plan)))
    outcome = Outcome(watch.stored, done, len(plan), len(explaining.sequences), tuple(failures))
    if outcome.complete:
        _gather(place, explaining.sequences, plan, pooling, ambiguous)
    return outcome


class Explaining:
    """One file's sequences, a model, and how to explain them part by part; on this machine or on a worker of a cluster.

    The arguments are those of `explain_file`; `expected` are digests of the sequences and weights, where known.
    """

    def __init__(
        self,
        path: str | Path,
        model: nn.Module | str,
        out: str | Path | Place,
        *,
        weights: str | Path | None,
        genome: str | Path | None,
        width: int | None,
        pruning: Pruning | Mapping[str, Any] | None,
        target: Any,
        part_size: int,
        device: str | None,
        expected: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self.place = out if isinstance(out, Place) else place_at(out)
        self.path, self.genome, self.width = Path(path), genome, width
        self.name, self.weights, self.device = model, weights, device
        self.target = tuple(target) if isinstance(target, list) else target
        self.pruning = Pruning(**pruning) if isinstance(pruning, Mapping) else pruning
        self.part_size, self.options = part_size, options
        self.sequences = read_sequences(path, genome, width)
        self.plan = _plan(self.sequences, part_size)
        self.model = (load_model(model, weights) if isinstance(model, str) else model).eval()
        if expected is not None and list(self.digests) != list(expected):
            raise RunError(f"{socket.gethostname()} has other sequences or weights than where the command was started.")
        if device is not None:
            self.model.to(device)

    @property
    def digests(self) -> tuple[str, str]:
        """Short hashes by which the same sequences and weights are recognised."""
        return _digest(self.sequences), _weights_digest(self.model)

    def settings(self) -> dict[str, Any]:
        """What decides the results, for `run.json`."""
        digest, weights_digest = self.digests
        return {
            "input": self.path.name,
            "digest": digest,
            "weights_digest": weights_digest,
            "target": list(self.target) if isinstance(self.target, tuple) else self.target,
            "pruning": repr(self.pruning),
            "part_size": self.part_size,
            **{name: value for name, value in self.options.items() if name != "batch_size"},
        }

    def as_data(self, working_dir: str | None = None) -> dict[str, Any]:
        """The arguments to make the same on another machine: plain data, paths in full or inside the folder sent."""
        assert isinstance(self.name, str)
        file, colon, factory = self.name.rpartition(":") if ".py:" in self.name else (self.name, "", "")

        def there(path: str | Path | None) -> str | None:
            return None if path is None else inside(str(Path(path).resolve()), working_dir)

        return {
            "path": there(self.path),
            "model": f"{there(file)}{colon}{factory}",
            "out": str(self.place.path.resolve() if isinstance(self.place, Folder) else self.place),
            "weights": there(self.weights),
            "genome": there(self.genome),
            "expected": list(self.digests),
            "width": self.width,
            "target": list(self.target) if isinstance(self.target, tuple) else self.target,
            "pruning": None if self.pruning is None else asdict(self.pruning),
            "part_size": self.part_size,
            "device": self.device,
            **self.options,
        }

    def do(self, k: int, tick: Tick = lambda kind, count: None) -> None:
        """Explain the sequences of a part, find their seqlets, and write both."""
        chosen = self.sequences[self.plan[k]]
        onehot = encode(chosen, self.options["ambiguous"])
        found = explain_sequences(
            self.model,
            onehot,
            target=self.target,
            composite=self.options["composite"],
            pruning=self.pruning,
            reverse_complement=self.options["reverse_complement"],
            hypothetical=self.options["hypothetical"],
            batch_size=self.options["batch_size"],
            device=self.device,
        )
        per_base = pool(found.relevance, onehot, self.options["pooling"])
        named = _named_seqlets(per_base, chosen, self.options["match"])
        with self.place.new_file(_part(k)) as path:
            write_npz(path, relevance=found.relevance, score=found.score, target=found.target, **named)


class _Parts(Watch):
    """Moves the bar by parts, which are short enough to be counted whole."""

    def __init__(self, step: Callable[[int], None], say: Callable[[str], None]) -> None:
        super().__init__(say)
        self.step = step

    def done(self, index: int) -> None:
        """A part is stored."""
        super().done(index)
        self.step(index)


def _part(number: int) -> str:
    return f"parts/{number:05d}.npz"


def _plan(sequences: Sequences, part_size: int) -> list[list[int]]:
    """Rows of each part: sequences of one length, in the file's order within a length, shortest first."""
    if part_size < 1:
        raise ValueError(f"part_size={part_size}: at least one sequence a part.")
    lengths = sequences.lengths
    parts = []
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        parts += [rows[k : k + part_size].tolist() for k in range(0, len(rows), part_size)]
    return parts


def _try_lengths(
    model: nn.Module,
    sequences: Sequences,
    plan: list[list[int]],
    ambiguous: Ambiguous,
    device: str | None,
    target: Any,
) -> None:
    """Run one sequence of every length through the model, so that a misfit shows before hours of work."""
    where = torch.device(device) if device else next((p.device for p in model.parameters()), torch.device("cpu"))
    seen: set[int] = set()
    for rows in plan:
        length = len(sequences.letters[rows[0]])
        if length in seen:
            continue
        seen.add(length)
        x = torch.from_numpy(encode(sequences[rows[:1]], ambiguous)).to(where)
        try:
            with torch.no_grad():
                output = model(x)
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise SequenceError(
                f"{sequences.where(rows[0])}: its {length} bases do not fit the model ({reason}). Models read (batch, "
                "4, length): cut or extend the sequences to the length it was made for; they must not be shorter "
                "than its kernels."
            ) from None
        with usage():
            check_target(output, target)


def _digest(sequences: Sequences) -> str:
    state = hashlib.sha256()
    for name, letters in zip(sequences.names, sequences.letters, strict=True):
        state.update(f"{name}\t{letters}\n".encode())
    return state.hexdigest()[:16]


def _weights_digest(model: nn.Module) -> str:
    state = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        state.update(name.encode())
        state.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()[:16]


def _begin(place: Place, settings: dict[str, Any]) -> None:
    """Write `run.json`, or make sure that the run found there is this one."""
    wanted = json.loads(json.dumps(settings))
    if place.exists(RUN):
        there = json.loads(place.read(RUN))
        changed = sorted(k for k in wanted.keys() | there.keys() if wanted.get(k) != there.get(k))
        if changed:
            raise WrongPlace(
                f"{place}/{RUN}: this folder holds another run; "
                f"{', '.join(f'{k} was {there.get(k)!r}' for k in changed[:3])}. Choose another --out, or remove the "
                "folder."
            )
        return
    refuse_strangers(place, (RUN, "parts"))  # other shards may have begun
    place.write(RUN, (json.dumps(wanted, indent=1) + "\n").encode())


def _load_part(place: Place, number: int, names: Sequence[str]) -> list[npt.NDArray[Any]]:
    with np.load(io.BytesIO(place.read(_part(number)))) as stored:
        return [stored[name] for name in names]


SEQLET_COLUMNS = ("sequence", "start", "end", "relevance_of_seqlet", "motif", "p", "strand")
"""What a part keeps of its seqlets; `motif` (JASPAR id), `p` and `strand` are empty where nothing was matched."""


def _named_seqlets(per_base: npt.NDArray[np.float32], chosen: Sequences, match: bool) -> dict[str, npt.NDArray[Any]]:
    """The seqlets of a part with their best matches: done part by part, so that shards and restarts share that work."""
    seqlets = find_seqlets(per_base)
    matches = match_seqlets(seqlets, encode(chosen, "zero"), per_base) if match and len(seqlets) else []
    return {
        "sequence": seqlets.sequence,
        "start": seqlets.start,
        "end": seqlets.end,
        "relevance_of_seqlet": seqlets.score,
        "motif": np.array([m.motif.id for m in matches], dtype=str),
        "p": np.array([m.p for m in matches], np.float64),
        "strand": np.array([m.strand for m in matches], dtype=str),
    }


def _matches(columns: dict[str, npt.NDArray[Any]]) -> list[Match] | None:
    if not len(columns["motif"]):
        return None
    known = {motif.id: motif for motif in jaspar_motifs()}
    return [
        Match(known[str(name)], float(p), float(p) * len(known), 0, 0, str(strand))
        for name, p, strand in zip(columns["motif"], columns["p"], columns["strand"], strict=True)
    ]


def _gather(place: Place, sequences: Sequences, plan: list[list[int]], pooling: Pooling, ambiguous: Ambiguous) -> None:
    """Results of all parts in the files that other tools read; harmless if two processes do it at once."""

    def parts() -> Iterator[tuple[Sequences, npt.NDArray[np.float32], npt.NDArray[np.float32]]]:
        for k, rows in enumerate(plan):
            chosen = sequences[rows]
            (relevance,) = _load_part(place, k, ["relevance"])
            yield chosen, relevance, pool(relevance, encode(chosen, ambiguous), pooling)

    with place.new_file("relevance.parquet") as path:
        write_parquet(path, ((chosen, list(values)) for chosen, _, values in parts()))
    if sequences.intervals is not None:
        order = [row for rows in plan for row in rows]
        intervals = [sequences.intervals[row] for row in order]
        with place.new_file("relevance.bedgraph") as path:
            write_bedgraph(path, intervals, (row for _, _, values in parts() for row in values))

    columns: dict[str, list[npt.NDArray[Any]]] = {}
    for k, rows in enumerate(plan):
        for name, column in zip(SEQLET_COLUMNS, _load_part(place, k, SEQLET_COLUMNS), strict=True):
            columns.setdefault(name, []).append(column)
        columns["sequence"][-1] = np.array(rows, np.int64)[columns["sequence"][-1]]
    whole_columns = {name: np.concatenate(arrays) for name, arrays in columns.items()}
    seqlets = Seqlets(*(whole_columns[name] for name in ("sequence", "start", "end", "relevance_of_seqlet")))
    with place.new_file("seqlets.bed") as path:
        write_seqlets(path, seqlets, sequences, _matches(whole_columns))

    lengths = set(sequences.lengths.tolist())
    if len(lengths) == 1:
        shape = (len(sequences), 4, lengths.pop())
        scratch = Path(place.path / "parts" if isinstance(place, Folder) else tempfile.gettempdir()) / "gathered.npy"
        with place.new_file("attributions.npz") as path, new_file(scratch) as part:
            whole = np.lib.format.open_memmap(part, "w+", np.float32, shape)
            for k, rows in enumerate(plan):
                (whole[rows],) = _load_part(place, k, ["relevance"])
            write_npz(path, arr_0=whole)
            del whole
        scratch.unlink(missing_ok=True)
        with place.new_file("onehot.npz") as path:
            write_npz(path, arr_0=encode(sequences, ambiguous).astype(np.int8))
