"""Explaining files of thousands of sequences: in parts, restartable, spread over a job array.

A run is a folder, or a URL that fsspec opens. `run.json` says what is being done; `parts/NNNNN-KEY-CHECKSUM.npz` are
finished parts, each written whole or not at all; KEY is a hash of all that decides them. A run that was killed resumes
where it stopped, a part that was damaged is made again, and `--shard i/n` lets n processes share one folder. Comparing
seqlets with known motifs is a step of its own, with parts of its own in `matches/`. When the last part is there, the
results are gathered into the files other tools read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from plrp.errors import UsageError, usage
from plrp.files import UNFINISHED
from plrp.health import DOUBTFUL, Problem, summary, unwarned
from plrp.models.sources import source_files, source_of_module, weights_digest
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.runs.checked_parts import PART_NAME, find_parts, read_part, whole_parts, write_part
from plrp.runs.crew import Watch
from plrp.runs.digests import content_digest, text_digest
from plrp.runs.parts import Failure, Tick, Work
from plrp.runs.places import Folder, Place, RunError, WrongPlace, place_at, refuse_strangers
from plrp.runs.ray import RayCluster, inside, spread
from plrp.runs.unpacking import LARGEST
from plrp.tape.refusals import check_device
from plrp.targets import check_target

from .attribution import COMPOSITE, Pooling, pool
from .baselines import METHODS, attribute_by
from .export import npz_bytes, write_npz, write_parquet, write_seqlets
from .motifs import jaspar_motifs
from .outputs import OutputScore, check_choice, score_file, target_from_text
from .seqlets import Match, Seqlets, compile_tomtom, find_seqlets, match_seqlets, tomtom_is_compiled
from .sequences import Ambiguous, Ends, SequenceError, Sequences, encode, read_fasta, read_intervals, read_npz, tab_line
from .tracks import write_bedgraph

RUN = "run.json"
COMMAND = "genomics explain"
"""What has written a folder, as its `run.json` says."""
OWN_NAMES = re.compile(
    rf"run\.json|relevance\.(?:parquet|bedgraph)|scores\.tsv|seqlets\.bed|(?:attributions|onehot)\.npz|parts/gathered\.npy|"
    rf"{PART_NAME.pattern}"
)
"""The files a run writes: their unfinished versions may be removed."""

MATCHED_AT_ONCE = 256
"""Seqlets that are compared with known motifs between two steps of the bar."""

MATCHED = 200
"""Sequences up to which seqlets are compared with known motifs where nobody says: it takes longer than explaining."""


@dataclass(frozen=True)
class Outcome:
    """What a run has done: parts finished by this call, parts finished in all, parts there are, and those given up."""

    done_here: int
    done: int
    parts: int
    sequences: int
    failures: tuple[Failure, ...] = ()
    unhealthy: str | None = None  # how many explanations are, and what to do; known when the run is complete

    @property
    def complete(self) -> bool:
        """Whether every part is there and the results were gathered."""
        return self.done == self.parts


def read_sequences(
    path: str | Path,
    genome: str | Path | None = None,
    width: int | None = None,
    *,
    ends: Ends = "refuse",
    largest: int = LARGEST,
) -> Sequences:
    """Sequences by the file's kind: `.bed` (with `genome`), `.npz` or `.npy` one-hot, else FASTA; `.gz` as well.

    Files that unpack to more than `largest` bytes are refused.
    """
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if ".bed" in suffixes:
        if genome is None:
            raise SequenceError(f"{path}: intervals need a genome; give its FASTA file (--genome).")
        return read_intervals(path, genome, width=width, ends=ends, largest=largest)
    if suffixes and suffixes[-1] in (".npz", ".npy"):
        return read_npz(path, largest=largest)
    if ".vcf" in suffixes or ".bcf" in suffixes:
        raise SequenceError(f"{path}: variants are explained by `plrp genomics variants {path.name} --genome FASTA`.")
    return read_fasta(path, largest=largest)


def load_model(name: str, weights: str | Path | None = None) -> nn.Module:
    """A checkpoint of `plrp genomics train`, `file.py:factory` with a state dict, or a Keras file."""
    from plrp.models.keras import SUFFIXES

    if name.lower().endswith(".keras"):
        raise UsageError(f"{name}: Keras' own format is not read; save it with model.save('model.h5').")
    if name.endswith(".py"):
        raise UsageError(f"{name} is a file of code: name the function that returns the model, such as {name}:build.")
    if ".py:" in name or name.lower().endswith(SUFFIXES):
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
    ends: Ends = "refuse",
    method: str = "lrp",
    target: Any = None,
    composite: str = COMPOSITE,
    pruning: Pruning | None = None,
    pooling: Pooling = "present",
    reverse_complement: bool = False,
    reverse_target: Any = None,
    hypothetical: bool = False,
    ambiguous: Ambiguous = "zero",
    part_size: int = 512,
    batch_size: int | None = None,
    largest: int = LARGEST,
    shard: tuple[int, int] = (1, 1),
    match: bool | None = True,
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
    takes every n-th part from the i-th on; the process that finds all parts finished gathers them. `batch_size` is how
    many are explained at once (None: by their length); where they do not fit into memory, it is halved. Files that
    unpack to more than `largest` bytes are refused. `about` is written to `run.json` and must be the same when a run is
    resumed (the model's name, say); sequences, weights and the model's code are compared by what they hold.

    `method` is one of `baselines.METHODS`: LRP (with or without pruning), ISM, gradient × input or DeepLIFT.
    `match` None compares seqlets with known motifs in runs of up to `MATCHED` sequences.

    A `plrp.runs.ray.RayCluster` as `engine` makes the parts on its nodes, which find the same files under the same
    names, or in the folder that its runtime environment brings; the model has to be named then. Parts that could not be
    made are in `Outcome.failures`.

    Written: `onehot.npz` and `attributions.npz` for TF-MoDISco (where all sequences have one length), `seqlets.bed`,
    `relevance.parquet`, and `relevance.bedgraph` where genomic coordinates are known.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r}: choose one of {', '.join(METHODS)}.")
    if method != "lrp" and (pruning is not None or reverse_complement or hypothetical):
        raise ValueError(f"method={method!r} takes no pruning, hypothetical scores or mean over strands.")
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
        ends=ends,
        method=None if method == "lrp" else method,
        target=target,
        composite=composite,
        pruning=pruning,
        pooling=pooling,
        reverse_complement=reverse_complement,
        reverse_target=reverse_target,
        hypothetical=hypothetical,
        ambiguous=ambiguous,
        part_size=part_size,
        batch_size=batch_size,
        match=match,
        device=device,
        largest=largest,
    )
    if explaining.sequences.source != str(path):  # a file of several arrays
        say(f"sequences are read from {explaining.sequences.source}")
    if left_out := explaining.sequences.skipped:
        say(f"{left_out} interval{'s' * (left_out != 1)} past the end of a chromosome left out")
    empty = [k for k, letters in enumerate(explaining.sequences.letters) if not set(letters) & set("ACGT")]
    if empty:
        more = f", and {len(empty) - 1} more" if len(empty) > 1 else ""
        say(f"{explaining.sequences.where(empty[0])} is all N{more}: there is nothing to explain")
    if match is None and not explaining.options["match"]:
        say(f"more than {MATCHED} sequences: seqlets are not compared with known motifs unless asked for (--match)")
    _try_lengths(explaining.model, explaining.sequences, explaining.plan, ambiguous, device, explaining.target)
    if not place.exists(RUN):
        refuse_strangers(place, (RUN, "parts", "matches"))  # other shards may have begun
    with place.lock(shard):
        if shard == (1, 1):
            place.tidy(OWN_NAMES)
        _begin(place, {"command": COMMAND, **explaining.settings(), **(about or {})}, say)
        outcome = _make_shard(explaining, engine, shard, show_progress, say)
        names = find_parts(place, explaining.key)
        if outcome.complete:
            stored = [names[k] for k in range(len(explaining.plan))]
            _gather(place, explaining.sequences, explaining.plan, stored, pooling, ambiguous)
            _gather_seqlets(explaining, stored, matched=False)
            remarks = _gather_scores(explaining, stored)
            outcome = replace(outcome, unhealthy=_unhealthy(explaining, remarks))
        if explaining.options["match"] and not outcome.failures:  # when all else is written: it takes long
            mine = [k for k in range(len(explaining.plan)) if outcome.complete or k % shard[1] == shard[0] - 1]
            _match(explaining, names, mine, show_progress, say)
            if outcome.complete:
                _gather_seqlets(explaining, stored, matched=True)
    return outcome


def _make_shard(
    explaining: Explaining,
    engine: RayCluster | None,
    shard: tuple[int, int],
    show_progress: bool | None,
    say: Callable[[str], None],
) -> Outcome:
    """Make the missing parts of a shard; when those of all shards are there, also any that were damaged since."""
    place, plan, (index, count) = explaining.place, explaining.plan, shard
    mine = [k for k in range(len(plan)) if k % count == index - 1]
    there = whole_parts(place, explaining.key, mine, say)
    missing = [k for k in mine if k not in there]
    if there and missing:
        say(f"resuming: {len(there)} of {len(mine)} parts are there")
    before = sum(len(plan[k]) for k in there)
    with progress("explaining", sum(len(plan[k]) for k in mine), show_progress, done=before) as step:
        watch = _Parts([len(rows) for rows in plan], step, say)
        failures: list[Failure] = []
        try:
            failures = _make(explaining, engine, missing, watch)
            if len(find_parts(place, explaining.key)) == len(plan):
                others = [k for k in range(len(plan)) if k not in mine]
                whole = whole_parts(place, explaining.key, others, say)
                failures += _make(explaining, engine, [k for k in others if k not in whole], watch)
        except KeyboardInterrupt:
            say(f"stopped: {watch.stored} of {len(missing)} parts were stored; start again to resume")
            raise
    found = len(find_parts(place, explaining.key))
    return Outcome(watch.stored, found, len(plan), len(explaining.sequences), tuple(failures))


def _make(explaining: Explaining, engine: RayCluster | None, indices: Sequence[int], watch: Watch) -> list[Failure]:
    """Make parts here, one after the other, or on a cluster; returns those that were given up."""
    if engine is not None:
        data = explaining.as_data(engine.runtime_env.get("working_dir"))
        return spread(engine, Work("plrp.genomics.jobs:Explaining", data), indices, watch)
    for k in indices:
        explaining.do(k, watch.tick)
        watch.done(k)
    return []


class Explaining:
    """One file's sequences, a model, and how to explain them part by part; on this machine or on a worker of a cluster.

    The arguments are those of `explain_file`; `expected` are digests of sequences, weights and code, where known.
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
        largest: int = LARGEST,
        expected: Sequence[Any] | None = None,
        **options: Any,
    ) -> None:
        self.place = out if isinstance(out, Place) else place_at(out)
        self.path, self.genome, self.width = Path(path), genome, width
        self.name, self.weights, self.device = model, weights, device
        # before files are imported: what runs is what was read
        code = _code_digests(model, {"target": target, "reverse target": options.get("reverse_target")})
        self.target = read_target(target)
        self.reverse_target = read_target(options.get("reverse_target"))
        self.pruning = Pruning(**pruning) if isinstance(pruning, Mapping) else pruning
        self.part_size, self.options = part_size, options
        self.largest = largest
        self.sequences = read_sequences(path, genome, width, ends=options.get("ends", "refuse"), largest=largest)
        if options.get("match") is None:
            options["match"] = len(self.sequences) <= MATCHED
        self.plan = _plan(self.sequences, part_size)
        self.model = (load_model(model, weights) if isinstance(model, str) else model).eval()
        self.digests = (_digest(self.sequences), weights_digest(self.model), code)
        if expected is not None and list(self.digests) != list(expected):
            raise RunError(
                f"{socket.gethostname()} has other sequences, weights or code than where the command was started."
            )
        if device is not None:
            self.model.to(device)
        self.key = text_digest(json.dumps(self.settings(), sort_keys=True))

    def settings(self) -> dict[str, Any]:
        """What decides the results, for `run.json`."""
        digest, weights_digest, code = self.digests
        return {
            "input": self.path.name,
            "digest": digest,
            "weights_digest": weights_digest,
            "code": code,
            "pruning": None if self.pruning is None else self.pruning.to_dict(),
            "part_size": self.part_size,
            **{name: value for name, value in self.options.items() if value is not None and name not in _UNSTORED},
            "target": target_entry(self.target),
            **({} if self.reverse_target is None else {"reverse_target": target_entry(self.reverse_target)}),
        }

    def as_data(self, working_dir: str | None = None) -> dict[str, Any]:
        """The arguments to make the same on another machine: plain data, paths in full or inside the folder sent."""
        assert isinstance(self.name, str)
        file, colon, factory = self.name.rpartition(":") if ".py:" in self.name else (self.name, "", "")

        def there(path: str | Path | None) -> str | None:
            return None if path is None else inside(str(Path(path).resolve()), working_dir)

        def target_there(target: Any) -> Any:
            named = score_file(target)
            return _target_data(target) if named is None else f"{there(named[0])}:{named[1]}"

        return {
            "path": there(self.path),
            "model": f"{there(file)}{colon}{factory}",
            "out": str(self.place.path.resolve() if isinstance(self.place, Folder) else self.place),
            "weights": there(self.weights),
            "genome": there(self.genome),
            "expected": list(self.digests),
            "width": self.width,
            "target": target_there(self.target),
            "pruning": None if self.pruning is None else self.pruning.to_dict(),
            "part_size": self.part_size,
            "device": self.device,
            "largest": self.largest,
            **self.options,
            "reverse_target": target_there(self.reverse_target),
        }

    def do(self, k: int, tick: Tick = lambda kind, count: None) -> None:
        """Explain the sequences of a part, find their seqlets, and write both."""
        chosen = self.sequences[self.plan[k]]
        onehot = encode(chosen, self.options["ambiguous"])
        with unwarned():  # the unhealthy ones are counted
            found = attribute_by(
                self.options.get("method"),
                self.model,
                onehot,
                target=self.target,
                composite=self.options["composite"],
                pruning=self.pruning,
                reverse_complement=self.options["reverse_complement"],
                reverse_target=self.reverse_target,
                hypothetical=self.options["hypothetical"],
                batch_size=self.options["batch_size"],
                device=self.device,
                step=lambda count: tick(str(k), count),
            )
        per_base = pool(found.relevance, onehot, self.options["pooling"])
        seqlets = dict(zip(SEQLET_COLUMNS, astuple(find_seqlets(per_base)), strict=True))
        content = npz_bytes(
            relevance=found.relevance, score=found.score, target=found.target, problems=found.problems, **seqlets
        )
        write_part(self.place, k, self.key, content)

    def match(self, k: int, part: str, step: Callable[[int], None]) -> None:
        """Compare the seqlets of a finished part with known motifs, and write the best match of each."""
        relevance, *columns = _load_part(self.place, part, ["relevance", *SEQLET_COLUMNS])
        chosen, seqlets = self.sequences[self.plan[k]], Seqlets(*columns)
        per_base = pool(relevance, encode(chosen, self.options["ambiguous"]), self.options["pooling"])
        onehot = encode(chosen, "zero")
        matches: list[Match] = []
        for begin in range(0, len(seqlets), MATCHED_AT_ONCE):
            some = seqlets.chosen(np.arange(begin, min(begin + MATCHED_AT_ONCE, len(seqlets))))
            matches += match_seqlets(some, onehot, per_base)
            step(len(some))
        content = npz_bytes(
            motif=np.array([m.motif.id for m in matches], dtype=str),
            p=np.array([m.p for m in matches], np.float64),
            strand=np.array([m.strand for m in matches], dtype=str),
        )
        write_part(self.place, k, self.key, content, "matches")


_UNSTORED = ("batch_size", "match")
"""Options that decide nothing of what a part holds."""


def matching_note(what: str) -> str:
    """Said before the first of them, because nothing moves while memelite compiles."""
    first = "" if tomtom_is_compiled() else "; this once, compiling it takes a minute or two"
    return f"{what} are compared with known motifs (TOMTOM){first}"


def _match(
    explaining: Explaining,
    parts: Mapping[int, str],
    wanted: Sequence[int],
    show_progress: bool | None,
    say: Callable[[str], None],
) -> None:
    """Compare the seqlets of the wanted parts with known motifs, where that has not been done."""
    place = explaining.place
    there = whole_parts(place, explaining.key, wanted, say, "matches")
    missing = [k for k in wanted if k in parts and k not in there]
    count = sum(len(_load_part(place, parts[k], ["start"])[0]) for k in missing)
    if count:
        say(matching_note("seqlets"))
        compile_tomtom(show_progress)
    with progress("matching seqlets", count, show_progress) as step:
        for k in missing:
            explaining.match(k, parts[k], step)


def read_target(target: Any) -> Any:
    """A target from what `run.json` holds of it: a text, or a list for an index tuple."""
    if isinstance(target, str):
        with usage():
            return target_from_text(target)
    return tuple(target) if isinstance(target, list) else target


def _target_data(target: Any) -> Any:
    return list(target) if isinstance(target, tuple) else getattr(target, "text", target)


def target_entry(target: Any) -> Any:
    """A target as `run.json` holds it: of a function's file its name alone, since its content is compared."""
    named = score_file(target)
    return _target_data(target) if named is None else f"{named[0].name}:{named[1]}"


class _Parts(Watch):
    """Moves the bar by sequences; `sizes` are those of the parts, whose numbers are the kinds of work."""

    def __init__(self, sizes: Sequence[int], step: Callable[[int], None], say: Callable[[str], None]) -> None:
        super().__init__(say)
        self.sizes, self.step = sizes, step
        self.under_way: Counter[str] = Counter()

    def tick(self, kind: str, count: int) -> None:
        """Some sequences of a part are explained."""
        self.under_way[kind] += count
        self.step(count)

    def done(self, index: int) -> None:
        """A part is stored."""
        super().done(index)
        self.step(self.sizes[index] - self.under_way.pop(str(index), 0))


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
        check_fit(model, x, [target], f"{sequences.where(rows[0])}: its {length} bases")


def check_fit(model: nn.Module, x: Tensor, targets: Sequence[Any], what: str) -> None:
    """Refuse sequences (batch, 4, length) that do not fit the model, and targets that its output does not have.

    `what` begins the sentence: `seqs.fa, line 1: its 250 bases`, say.
    """
    try:
        with torch.no_grad():
            output = model(x)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if _fits(model, x.transpose(1, 2)):
            raise UsageError(
                "Your model reads (batch, length, 4): transpose in its forward, x.transpose(1, 2)."
            ) from None
        if found := re.search(r"to have (\d+) channels, but got 4 channels", reason):
            raise UsageError(f"The model reads {found[1]} channels, DNA has 4: give a model of one-hot DNA.") from None
        if re.search(r"input size per channel|[Oo]utput size is too small|negative output size", reason):
            raise SequenceError(
                f"{what} do not fit the model ({reason}): they are too short, also because it may crop its ends. "
                "Give longer ones, or pad them with N."
            ) from None
        if isinstance(error, TypeError) or "argument #1 'indices'" in reason:
            raise UsageError(
                f"The model does not take one-hot DNA ({reason}): wrap it in a module whose forward takes (batch, 4, "
                "length) alone, or use plrp.explain in Python, which takes tokens and several inputs."
            ) from None
        raise SequenceError(
            f"{what} do not fit the model ({reason}). Models read (batch, 4, length): cut or extend the sequences to "
            "the length it was made for; they must not be shorter than its kernels."
        ) from None
    with usage():
        for target in targets:
            check_choice(output, target)
            check_target(output, target)
            if isinstance(target, OutputScore):
                target(output)


def _fits(model: nn.Module, x: Tensor) -> bool:
    """Whether the model can read an input."""
    try:
        with torch.no_grad():
            model(x)
    except Exception:
        return False
    return True


def _digest(sequences: Sequences) -> str:
    state = hashlib.sha256()
    for name, letters in zip(sequences.names, sequences.letters, strict=True):
        state.update(f"{name}\t{letters}\n".encode())
    for i in sequences.intervals or ():
        state.update(f"{i.chrom}\t{i.start}\t{i.end}\t{i.strand}\n".encode())
    return state.hexdigest()[:16]


def _code_digests(model: nn.Module | str, targets: Mapping[str, Any]) -> dict[str, str] | None:
    """Of the files of a model and of targets, and of the user's files that these import, by name.

    Of a module, of what it is made of; None for a checkpoint with targets that are not functions of files.
    """
    found: dict[str, str] = {}
    if not isinstance(model, str):
        found[type(model).__name__] = text_digest(source_of_module(model))
    elif ".py:" in model:
        found.update(_file_digests(Path(model.rpartition(":")[0])))
    for role, target in targets.items():
        if (named := score_file(target)) is not None:
            found.update({f"{name} ({role})": digest for name, digest in _file_digests(named[0]).items()})
    return found or None


def _file_digests(file: Path) -> dict[str, str]:
    if not file.is_file():  # loading it will say what is wrong
        return {}
    return {name: content_digest(path) for name, path in source_files(file).items()}


def _begin(place: Place, settings: dict[str, Any], say: Callable[[str], None]) -> None:
    """Write `run.json`, or make sure that the run found there is this one.

    A run without a single part, because it failed at its first sequence, may be begun again with other settings, which
    is said.
    """
    wanted = json.loads(json.dumps(settings))
    if place.exists(RUN) and any(map(PART_NAME.fullmatch, place.names("parts"))):
        try:
            there = dict(json.loads(place.read(RUN)))
        except (ValueError, TypeError) as error:
            raise WrongPlace(
                f"{place}/{RUN} cannot be read ({error}). Restore it from a copy, or remove it and start again: "
                "finished parts stay."
            ) from None
        changed = sorted(k for k in wanted.keys() | there.keys() if wanted.get(k) != there.get(k))
        if changed:
            raise WrongPlace(
                f"{place}/{RUN}: this folder holds another run; "
                f"{', '.join(_difference(k, there.get(k), wanted.get(k)) for k in changed[:3])}. Choose another --out, "
                "or undo the change."
            )
        return
    content = (json.dumps(wanted, indent=1) + "\n").encode()
    if place.exists(RUN) and place.read(RUN) != content:
        say(f"{place} holds a run with other settings that was stopped before its first part: this one takes its place")
    place.write(RUN, content)


def _difference(name: str, before: Any, now: Any) -> str:
    """An entry of `run.json` that is another one now, with what changed."""
    if name == "code" and isinstance(before, dict) and isinstance(now, dict):
        files = sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))
        return f"the code in {', '.join(files)} changed"
    if name in (changed := {"digest": "the sequences changed", "weights_digest": "the weights changed"}):
        return changed[name]
    return f"{name} was {before!r}, now {now!r}"


def _load_part(place: Place, name: str, arrays: Sequence[str]) -> list[npt.NDArray[Any]]:
    with np.load(io.BytesIO(read_part(place, name))) as stored:
        return [stored[array] for array in arrays]


def _gather_scores(explaining: Explaining, parts: Sequence[str]) -> list[str]:
    """Write each sequence's target, score and sum of relevance; returns one remark per sequence."""
    lines: dict[int, tuple[object, ...]] = {}
    for stored, rows in zip(parts, explaining.plan, strict=True):
        names = ["relevance", "score", "target", "problems"]
        relevance, scores, targets, problems = _load_part(explaining.place, stored, names)
        onehot = encode(explaining.sequences[rows], explaining.options["ambiguous"])
        hypothetical = explaining.options[
            "hypothetical"
        ]  # scores for letters that are not there: no share of the score
        sums = pool(relevance, onehot, "present" if hypothetical else "sum").sum(-1, dtype=np.float64)
        found = problems if len(problems) else np.full(len(rows), "")  # other methods than LRP judge none
        for row, total, score, target, problem in zip(rows, sums, scores, targets, found, strict=True):
            far = explaining.options.get("method") is None and not 0 <= total / (score or np.nan) <= DOUBTFUL
            remark = str(problem) or ("doubtful" if far and score else "")
            name = explaining.sequences.names[row]
            lines[row] = name, "" if target < 0 else target, f"{score:.6g}", f"{total:.6g}", remark
    table = [lines[row] for row in sorted(lines)]
    with explaining.place.new_file("scores.tsv") as path:
        header = ("name", "target", "score", "relevance", "remark")
        path.write_text("".join(tab_line(*line) for line in (header, *table)))
    return [str(line[-1]) for line in table]


def _unhealthy(explaining: Explaining, remarks: Sequence[str]) -> str | None:
    """How many explanations of a run are unhealthy or doubtful, which, and what to do."""
    told = []
    said = summary(
        [Problem(word) if word not in ("", "doubtful") else None for word in remarks], explaining.pruning, "sequences"
    )
    if said is not None:
        known = [name for name in SAFE_RULES if name != explaining.options["composite"]]
        rules = " or ".join(f"composite='{name}'" for name in known)  # flat would credit letters that are not there
        rows = [row for row, word in enumerate(remarks) if word not in ("", "doubtful")]
        names = ", ".join(explaining.sequences.names[row] for row in rows[:3])
        more = f" and {len(rows) - 3:,} more" if len(rows) > 3 else ""
        told.append(f"{said.replace(FLAT, rules)}. They are {names}{more}")
    if count := remarks.count("doubtful"):
        told.append(
            f"{count:,} of {len(remarks):,} explanations are doubtful: relevance adds up to less than 0% or more than "
            f"{DOUBTFUL:.0%} of the score. scores.tsv says which; `plrp genomics compare` asks the network itself"
        )
    return ". ".join(told) or None


FLAT = "composite='epsilon-plus-flat'"
"""What `plrp.health` advises, for images, where contributions cancel."""

SAFE_RULES = ("epsilon-plus", "gamma:0.25")
"""What suits one-hot input instead."""


SEQLET_COLUMNS = ("sequence", "start", "end", "relevance_of_seqlet")
"""What a part keeps of its seqlets, as `Seqlets` has it."""
MATCH_COLUMNS = ("motif", "p", "strand")
"""What is kept of their best matches: JASPAR's id, p-value and strand."""


def _matches(place: Place, matched: Sequence[str | None]) -> list[Match] | None:
    """The best match of every seqlet; None where they were not compared with known motifs."""
    if not matched or None in matched:
        return None
    known = {motif.id: motif for motif in jaspar_motifs()}
    return [
        Match(known[str(name)], float(p), float(p) * len(known), 0, 0, str(strand))
        for stored in matched
        for name, p, strand in zip(*_load_part(place, str(stored), MATCH_COLUMNS), strict=True)
    ]


@contextmanager
def _scratch(place: Place) -> Iterator[Path]:
    """A private file for a while: in the run's folder, which has room, or where temporary files go."""
    if not isinstance(place, Folder):
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / "gathered.npy"
        return
    handle, name = tempfile.mkstemp(prefix=".gathered.", suffix=f"{UNFINISHED}.npy", dir=place.path / "parts")
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _gather(
    place: Place,
    sequences: Sequences,
    plan: list[list[int]],
    names: Sequence[str],
    pooling: Pooling,
    ambiguous: Ambiguous,
) -> None:
    """Results of all parts in the files that other tools read; harmless if two processes do it at once."""

    def parts() -> Iterator[tuple[Sequences, npt.NDArray[np.float32], npt.NDArray[np.float32]]]:
        for stored, rows in zip(names, plan, strict=True):
            chosen = sequences[rows]
            (relevance,) = _load_part(place, stored, ["relevance"])
            yield chosen, relevance, pool(relevance, encode(chosen, ambiguous), pooling)

    with place.new_file("relevance.parquet") as path:
        write_parquet(path, ((chosen, list(values)) for chosen, _, values in parts()))
    if sequences.intervals is not None:
        order = [row for rows in plan for row in rows]
        intervals = [sequences.intervals[row] for row in order]
        with place.new_file("relevance.bedgraph") as path:
            write_bedgraph(path, intervals, (row for _, _, values in parts() for row in values))

    lengths = set(sequences.lengths.tolist())
    if len(lengths) == 1:
        shape = (len(sequences), 4, lengths.pop())
        with place.new_file("attributions.npz") as path, _scratch(place) as scratch:
            whole = np.lib.format.open_memmap(scratch, "w+", np.float32, shape)
            for stored, rows in zip(names, plan, strict=True):
                (whole[rows],) = _load_part(place, stored, ["relevance"])
            write_npz(path, arr_0=whole)
            del whole
        with place.new_file("onehot.npz") as path, _scratch(place) as scratch:
            letters = np.lib.format.open_memmap(scratch, "w+", np.int8, shape)
            for rows in plan:
                letters[rows] = encode(sequences[rows], ambiguous)
            write_npz(path, arr_0=letters)
            del letters


def _gather_seqlets(explaining: Explaining, names: Sequence[str], matched: bool) -> None:
    """The seqlets of all parts in one BED file, with the motifs they match if they were compared."""
    place, plan, sequences = explaining.place, explaining.plan, explaining.sequences
    there = find_parts(place, explaining.key, "matches") if matched else {}
    columns: dict[str, list[npt.NDArray[Any]]] = {}
    for stored, rows in zip(names, plan, strict=True):
        for name, column in zip(SEQLET_COLUMNS, _load_part(place, stored, SEQLET_COLUMNS), strict=True):
            columns.setdefault(name, []).append(column)
        columns["sequence"][-1] = np.array(rows, np.int64)[columns["sequence"][-1]]
    whole_columns = {name: np.concatenate(arrays) for name, arrays in columns.items()}
    seqlets = Seqlets(*(whole_columns[name] for name in SEQLET_COLUMNS))
    with place.new_file("seqlets.bed") as path:
        write_seqlets(path, seqlets, sequences, _matches(place, [there.get(k) for k in range(len(names))]))
