"""Explaining files of thousands of sequences: in parts, restartable, spread over a job array.

The work is a `plrp.runs.run.Run`, described by `run.json`. Comparing seqlets with known motifs is a step of its own,
with parts of its own in `matches/`. When all parts exist, `gathering` writes the files that other tools read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plrp.errors import UsageError, usage
from plrp.health import unwarned
from plrp.models.sources import source_files, source_of_module, weights_digest
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.runs.crew import BarWatch
from plrp.runs.digests import content_digest, text_digest
from plrp.runs.places import Place
from plrp.runs.ray import RayCluster, sent
from plrp.runs.run import Run, RunLayout, differs_here
from plrp.runs.work import Execution, Failure, Tick, Work
from plrp.settings import LARGEST
from plrp.tape.refusals import check_device
from plrp.targets import check_target

from .attribution import _device, pool
from .baselines import attribute_by
from .export import npz_bytes
from .gathering import (
    ATTRIBUTION_COLUMNS,
    GATHERED,
    SCRATCH,
    SEQLET_COLUMNS,
    UnhealthySequences,
    gather,
    gather_scores,
    gather_seqlets,
    load_part,
)
from .outputs import OutputScore, check_choice, score_file, target_from_text
from .seqlets import Match, Seqlets, compile_tomtom, find_seqlets, match_seqlets, tomtom_is_compiled
from .sequence_settings import FileSettings
from .sequences import Ends, SequenceError, Sequences, encode, read_fasta, read_intervals, read_npz

LAYOUT = RunLayout(
    description="run.json",
    folders={"parts": "npz", "matches": "npz"},
    results=(*GATHERED, SCRATCH),
    words={"digest": "the sequences", "weights_digest": "the weights", "code": "the code"},
)

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
    unhealthy: UnhealthySequences | None = None  # None where all are healthy, or the run is not complete

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
    settings: FileSettings | None = None,
    *,
    shard: tuple[int, int] = (1, 1),
    engine: RayCluster | None = None,
    show_progress: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
    about: dict[str, Any] | None = None,
    **changes: Any,
) -> Outcome:
    """Explain every sequence of a file and write the results into `out`: a folder, or a URL such as `s3://bucket/run`.

    `model` is a module, or the name of one as `load_model` takes it. The fields of `FileSettings` may be given as
    keywords. All of the input is read and checked first, so that a bad line stops the run before anything is written.
    Sequences are taken in parts of `part_size` with one length each; memory holds one part of relevance at a time.
    With `shard=(i, n)` this process takes every n-th part from the i-th on; the process that finds all parts finished
    gathers them. `about` is written to `run.json` and must be the same when a run is resumed (the model's name, say);
    sequences, weights and the model's code are compared by their content.

    A `plrp.runs.ray.RayCluster` as `engine` makes the parts on its nodes, which find the same files under the same
    names, or in the folder that its runtime environment brings; the model has to be named then. Parts that could not be
    made are in `Outcome.failures`.

    Written: `onehot.npz` and `attributions.npz` for TF-MoDISco (where all sequences have one length), `seqlets.bed`,
    `relevance.parquet`, and `relevance.bedgraph` where genomic coordinates are known.
    """
    settings = FileSettings.of(settings, changes)
    if settings.method != "lrp" and (settings.pruning or settings.reverse_complement or settings.hypothetical):
        raise ValueError(f"method={settings.method!r} takes no pruning, hypothetical scores or mean over strands.")
    if engine is not None and not isinstance(model, str):
        raise ValueError("on a cluster the model is named, such as 'file.py:factory': a module cannot be sent.")
    if settings.device is not None and engine is None:
        check_device(settings.device)
    explaining = Explaining(path, model, out, settings)
    mine = explaining.run.shard(shard)
    _say_first(explaining, asked=settings.match, say=say)
    _try_lengths(explaining)
    with explaining.run.session(shard):
        explaining.run.begin({"command": "genomics explain", **explaining.description(), **(about or {})}, say)
        execution = Execution(engine=engine, show_progress=show_progress, say=say)
        outcome = _make_shard(explaining, mine, execution)
        if outcome.complete:
            gather(explaining)
            gather_seqlets(explaining, matched=False)
            outcome = replace(outcome, unhealthy=UnhealthySequences.of(explaining, gather_scores(explaining)))
        if explaining.settings.match and not outcome.failures:  # when all else is written: it takes long
            _match(explaining, range(len(explaining.plan)) if outcome.complete else mine, show_progress, say)
            if outcome.complete:
                gather_seqlets(explaining, matched=True)
    return outcome


def _say_first(explaining: Explaining, asked: bool | None, say: Callable[[str], None]) -> None:
    """Remarks on the input, before the work begins. `asked`: whether matching was asked for; None: nobody said."""
    sequences = explaining.sequences
    if sequences.source != str(explaining.path):  # a file of several arrays
        say(f"sequences are read from {sequences.source}")
    if sequences.skipped:
        say(f"{sequences.skipped} interval{'s' * (sequences.skipped != 1)} past the end of a chromosome left out")
    empty = [k for k, letters in enumerate(sequences.letters) if not set(letters) & set("ACGT")]
    if empty:
        more = f", and {len(empty) - 1} more" if len(empty) > 1 else ""
        say(f"{sequences.where(empty[0])} is all N{more}: there is nothing to explain")
    if asked is None and not explaining.settings.match:
        say(f"more than {MATCHED} sequences: seqlets are not compared with known motifs unless asked for (--match)")


def _make_shard(explaining: Explaining, mine: Sequence[int], execution: Execution) -> Outcome:
    """Make the missing parts of a shard. When all shards are finished, also parts that were damaged since."""
    run, plan, say = explaining.run, explaining.plan, execution.say
    whole = run.whole(mine, say)
    missing = [k for k in mine if k not in whole]
    if whole and missing:
        say(f"resuming: {len(whole)} of {len(mine)} parts are there")
    sizes = [len(rows) for rows in plan]
    before = sum(sizes[k] for k in whole)
    with progress("explaining", sum(sizes[k] for k in mine), execution.show_progress, done=before) as step:
        watch = BarWatch(sizes, step, say)

        def make(indices: Sequence[int]) -> list[Failure]:
            return run.make(explaining, indices, watch, explaining.work, execution, tolerant=False)

        failures = make(missing)
        if len(run.names()) == len(plan):
            others = [k for k in range(len(plan)) if k not in mine]
            whole = run.whole(others, say)
            failures += make([k for k in others if k not in whole])
    return Outcome(watch.parts_stored, len(run.names()), len(plan), len(explaining.sequences), tuple(failures))


class Explaining:
    """One file's sequences, a model, and how to explain them part by part; on this machine or on a worker of a cluster.

    The arguments are those of `explain_file`; `expected` are digests of sequences, weights and code, where known.
    """

    def __init__(
        self,
        path: str | Path,
        model: nn.Module | str,
        out: str | Path | Place,
        settings: FileSettings | None = None,
        *,
        expected: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        given = FileSettings.of(settings, changes)
        self.path, self.name = Path(path), model
        # before files are imported: the digests are of the code that runs
        code = _code_digests(model, {"target": given.target, "reverse target": given.reverse_target})
        self.sequences = read_sequences(path, given.genome, given.width, ends=given.ends, largest=given.largest)
        self.settings = replace(
            given,
            target=read_target(given.target),
            reverse_target=read_target(given.reverse_target),
            pruning=Pruning(**given.pruning) if isinstance(given.pruning, Mapping) else given.pruning,
            match=len(self.sequences) <= MATCHED if given.match is None else given.match,
        )
        self.plan = _plan(self.sequences, given.part_size)
        self.model = (load_model(model, given.weights) if isinstance(model, str) else model).eval()
        self.digests = {"digest": _digest(self.sequences), "weights_digest": weights_digest(self.model), "code": code}
        if expected is not None and self.digests != expected:
            raise differs_here("sequences, weights or code", "the command")
        if given.device is not None:
            self.model.to(given.device)
        self.key = text_digest(json.dumps(self.description(), sort_keys=True))
        self.run = Run(out, LAYOUT, len(self.plan), lambda index: self.key)

    def description(self) -> dict[str, Any]:
        """The settings and digests that decide the results, for `run.json`."""
        targets = {name: getattr(self.settings, name) for name in ("target", "reverse_target")}
        return {
            "input": self.path.name,
            **self.digests,
            "pruning": None if self.settings.pruning is None else self.settings.pruning.to_dict(),
            **({} if self.settings.method == "lrp" else {"method": self.settings.method}),
            **self.settings.stored(),
            **{name: target_entry(one) for name, one in targets.items() if name == "target" or one is not None},
        }

    def as_data(self, working_dir: str | None = None) -> dict[str, Any]:
        """The arguments to make the same on another machine: plain data, paths in full or inside the folder sent."""
        assert isinstance(self.name, str)
        settings = self.settings

        def there(path: str | Path | None) -> str | None:
            return None if path is None else sent(path, working_dir)

        return {
            **{one.name: getattr(settings, one.name) for one in fields(settings)},
            "path": there(self.path),
            "model": there(self.name),
            "out": self.run.place.address,
            "weights": there(settings.weights),
            "genome": there(settings.genome),
            "expected": self.digests,
            "pruning": None if settings.pruning is None else settings.pruning.to_dict(),
            "target": target_entry(settings.target, there),
            "reverse_target": target_entry(settings.reverse_target, there),
        }

    def work(self, working_dir: str | None = None) -> Work:
        """The same for workers of a cluster."""
        return Work("plrp.genomics.jobs:Explaining", self.as_data(working_dir))

    def do(self, k: int, tick: Tick = lambda kind, count: None) -> None:
        """Explain the sequences of a part, find their seqlets, and write both."""
        chosen = self.sequences[self.plan[k]]
        onehot = encode(chosen, self.settings.ambiguous)
        options = {**self.settings.rules(), "step": lambda count: tick(str(k), count)}
        with unwarned():  # the unhealthy ones are counted
            attribution = attribute_by(self.settings.method, self.model, onehot, **options)
        per_base = pool(attribution.relevance, onehot, self.settings.pooling)
        columns = {name: getattr(attribution, name) for name in ATTRIBUTION_COLUMNS}
        columns |= zip(SEQLET_COLUMNS, astuple(find_seqlets(per_base)), strict=True)
        self.run.write(k, npz_bytes(**columns))

    def match(self, k: int, part: str, step: Callable[[int], None]) -> None:
        """Compare the seqlets of a finished part with known motifs, and write the best match of each."""
        relevance, *columns = load_part(self.run, part, ["relevance", *SEQLET_COLUMNS])
        chosen, seqlets = self.sequences[self.plan[k]], Seqlets(*columns)
        per_base = pool(relevance, encode(chosen, self.settings.ambiguous), self.settings.pooling)
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
        self.run.write(k, content, "matches")


def matching_note(what: str) -> str:
    """Said before the first of them, because nothing moves while memelite compiles."""
    first = "" if tomtom_is_compiled() else "; this once, compiling it takes a minute or two"
    return f"{what} are compared with known motifs (TOMTOM){first}"


def _match(
    explaining: Explaining, wanted: Sequence[int], show_progress: bool | None, say: Callable[[str], None]
) -> None:
    """Compare the seqlets of the wanted parts with known motifs, where that has not been done."""
    run, parts = explaining.run, explaining.run.names()
    whole = run.whole(wanted, say, "matches")
    missing = [k for k in wanted if k in parts and k not in whole]
    count = sum(len(load_part(run, parts[k], ["start"])[0]) for k in missing)
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


def target_entry(target: Any, name: Callable[[Path], str | None] = lambda file: file.name) -> Any:
    """A target as plain data; `name` names the file of a function: in `run.json` without its folder."""
    if (named := score_file(target)) is not None:
        return f"{name(named[0])}:{named[1]}"
    return list(target) if isinstance(target, tuple) else getattr(target, "text", target)


def _plan(sequences: Sequences, part_size: int) -> list[list[int]]:
    """Rows of each part: sequences of one length, in the file's order within a length, shortest first."""
    lengths = sequences.lengths
    parts = []
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        parts += [rows[k : k + part_size].tolist() for k in range(0, len(rows), part_size)]
    return parts


def _try_lengths(explaining: Explaining) -> None:
    """Run one sequence of every length through the model, so that a misfit shows before hours of work."""
    sequences, settings = explaining.sequences, explaining.settings
    for length, row in zip(*np.unique(sequences.lengths, return_index=True), strict=True):
        x = torch.from_numpy(encode(sequences[[row]], settings.ambiguous))
        x = x.to(_device(explaining.model, settings.device))
        check_fit(explaining.model, x, [settings.target], f"{sequences.where(row)}: its {length} bases")


def check_fit(model: nn.Module, x: Tensor, targets: Sequence[Any], what: str) -> None:
    """Refuse sequences (batch, 4, length) that do not fit the model, and targets that its output does not have.

    `what` begins the sentence: `seqs.fa, line 1: its 250 bases`, say.
    """
    try:
        with torch.no_grad():
            output = model(x)
    except Exception as error:
        raise _misfit(model, x, error, what) from None
    with usage():
        for target in targets:
            check_choice(output, target)
            check_target(output, target)
            if isinstance(target, OutputScore):
                target(output)


def _misfit(model: nn.Module, x: Tensor, error: Exception, what: str) -> UsageError:
    """The error for sequences that a model cannot read, with the likeliest remedy."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    with suppress(Exception), torch.no_grad():
        model(x.transpose(1, 2))
        return UsageError("Your model reads (batch, length, 4): transpose in its forward, x.transpose(1, 2).")
    if count := re.search(r"to have (\d+) channels, but got 4 channels", reason):
        return UsageError(f"The model reads {count[1]} channels, DNA has 4: give a model of one-hot DNA.")
    if re.search(r"input size per channel|[Oo]utput size is too small|negative output size", reason):
        return SequenceError(
            f"{what} do not fit the model ({reason}): they are too short, also because it may crop its ends. Give "
            "longer ones, or pad them with N."
        )
    if isinstance(error, TypeError) or "argument #1 'indices'" in reason:
        return UsageError(
            f"The model does not take one-hot DNA ({reason}): wrap it in a module whose forward takes (batch, 4, "
            "length) alone, or use plrp.explain in Python, which takes tokens and several inputs."
        )
    return SequenceError(
        f"{what} do not fit the model ({reason}). Models read (batch, 4, length): cut or extend the sequences to the "
        "length it was made for; they must not be shorter than its kernels."
    )


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
    digests: dict[str, str] = {}
    files: dict[str, Path] = {}
    if not isinstance(model, str):
        digests[type(model).__name__] = text_digest(source_of_module(model))
    elif ".py:" in model:
        files[""] = Path(model.rpartition(":")[0])
    for role, target in targets.items():
        if (named := score_file(target)) is not None:
            files[f" ({role})"] = named[0]
    for role, file in files.items():
        if file.is_file():  # else loading it will say what is wrong
            digests |= {f"{name}{role}": content_digest(path) for name, path in source_files(file).items()}
    return digests or None
