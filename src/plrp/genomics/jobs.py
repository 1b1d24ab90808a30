"""Explaining files of thousands of sequences: in parts, restartable, spread over a job array.

The work is a `plrp.runs.run.Run`, described by `run.json`. Comparing seqlets with known motifs is a step of its own,
with parts of its own in `matches/`. When all parts exist, they are gathered into the files that other tools read.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from plrp.balance import NOTHING, Problem, unwarned
from plrp.errors import usage
from plrp.metrics.verdicts import ask
from plrp.models.sources import source_files, source_of_module, weights_digest
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.runs.crew import BarWatch
from plrp.runs.places import Place
from plrp.runs.ray import RayCluster, sent
from plrp.runs.run import Run, RunLayout, content_digest, differs_here, gathering, text_digest
from plrp.runs.work import Execution, Failure, Tick, Work
from plrp.settings import LARGEST
from plrp.tape.head import Headless
from plrp.tape.refusals import check_device, device_of
from plrp.tape.trace import record
from plrp.targets import as_target

from .attribution import AGAINST, COLUMNS, pool, strand_targets
from .baselines import attribute_by
from .export import npz_bytes, write_bedgraph, write_npz_rows, write_parquet, write_seqlets
from .motifs import jaspar_motifs
from .network import check_fit, load_model
from .outputs import score_file, target_from_text, target_words
from .seqlets import Match, Seqlets, compile_tomtom, find_seqlets, match_seqlets, tomtom_is_compiled
from .sequence_settings import FileSettings, Pooling
from .sequences import Ends, SequenceError, Sequences, Values, encode, read_fasta, read_intervals, read_npz, tsv_line

GATHERED = (
    "relevance.parquet",
    "relevance.bedgraph",
    "scores.tsv",
    "verdicts.tsv",
    "seqlets.bed",
    "attributions.npz",
    "onehot.npz",
)

SEQLET_COLUMNS = ("sequence", "start", "end", "relevance_of_seqlet")
"""The columns of `Seqlets` in a part."""
MATCH_COLUMNS = ("motif", "p", "strand")
"""The best match of each seqlet: JASPAR's id, p-value and strand."""

VERDICT_COLUMNS = tuple("judgement rho r percentile floor blob agreement ceiling gain words".split())
"""The columns of `verdicts.tsv` after the name: see `plrp.metrics.Verdict`."""

LAYOUT = RunLayout(
    description="run.json",
    folders={"parts": "npz", "matches": "npz"},
    results=(*GATHERED, "parts/gathered.npy"),  # the last: a memory map that killed runs of version 0.2.0 left
    words={"digest": "the sequences", "weights_digest": "the weights", "code": "the code"},
)

MATCHED_AT_ONCE = 256
"""Seqlets that are compared with known motifs between two steps of the bar."""

MATCHED = 200
"""Sequences up to which seqlets are compared with known motifs where nobody says: it takes longer than explaining."""


@dataclass(frozen=True)
class Outcome:
    """The state of a run: parts finished by this call, finished parts, all parts, and parts that were given up."""

    done_here: int
    done: int
    parts: int
    sequences: int
    failures: tuple[Failure, ...] = ()
    judgements: tuple[str, ...] = ()  # of the tested sequences
    broken: int = 0  # sequences whose explanations have broken arithmetic, in a complete run; scores.tsv has them

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
    test: int = 0,
    budget: int = 128,
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

    When all is finished, the network is asked whether the explanations of the first `test` sequences are true, in at
    most `budget` forward passes each: `verdicts.tsv` (`plrp.metrics.Verdict`).

    Written: `onehot.npz` and `attributions.npz` for TF-MoDISco (where all sequences have one length), `seqlets.bed`,
    `relevance.parquet`, and `relevance.bedgraph` where genomic coordinates are known.
    """
    settings = FileSettings.of(settings, changes)
    if settings.method not in ("lrp", "deeplift") and (
        settings.pruning or settings.reverse_complement or settings.hypothetical
    ):
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
        with gathering():
            if outcome.complete:
                gather(explaining)
                gather_seqlets(explaining, matched=False)
                outcome = replace(outcome, broken=gather_scores(explaining))
            if explaining.settings.match and not outcome.failures:  # when all else is written: it takes long
                explaining.match(range(len(explaining.plan)) if outcome.complete else mine, show_progress, say)
                if outcome.complete:
                    gather_seqlets(explaining, matched=True)
            if test and outcome.complete:
                outcome = replace(outcome, judgements=write_verdicts(explaining, test, budget, show_progress))
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
        # rows of each part: sequences of one length, in the file's order within a length, shortest first
        lengths, size = self.sequences.lengths, given.part_size
        same_length = [np.flatnonzero(lengths == length).tolist() for length in np.unique(lengths)]
        self.plan = [rows[k : k + size] for rows in same_length for k in range(0, len(rows), size)]
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

    def work(self, working_dir: str | None = None) -> Work:
        """The same for workers of a cluster, as plain data; paths are in full, or inside the folder that is sent."""
        assert isinstance(self.name, str)
        settings = self.settings

        def there(path: str | Path | None) -> str | None:
            return None if path is None else sent(path, working_dir)

        options = {
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
        return Work("plrp.genomics.jobs:Explaining", options)

    def do(self, k: int, tick: Tick = lambda kind, count: None) -> None:
        """Explain the sequences of a part, find their seqlets, and write both."""
        chosen = self.sequences[self.plan[k]]
        onehot = encode(chosen, self.settings.ambiguous)
        options = {**self.settings.rules(), "step": lambda count: tick(str(k), count)}
        with unwarned():  # they are counted
            attribution = attribute_by(self.settings.method, self.model, onehot, **options)
        per_base = pool(attribution.relevance, onehot, self.settings.pooling)
        columns = {name: getattr(attribution, name) for name in self.columns}
        columns |= zip(SEQLET_COLUMNS, astuple(find_seqlets(per_base)), strict=True)
        self.run.write(k, npz_bytes(**columns))

    @property
    def columns(self) -> tuple[str, ...]:
        """The fields of `Attribution` that a part holds."""
        return COLUMNS if self.settings.reference is None else (*COLUMNS, *AGAINST)

    def stored(self, arrays: Sequence[str]) -> Iterator[tuple[list[int], list[npt.NDArray[Any]]]]:
        """The rows of every part, and some arrays that it holds."""
        names = self.run.names()
        return ((rows, load_part(self.run, names[k], arrays)) for k, rows in enumerate(self.plan))

    def match(self, wanted: Sequence[int], show_progress: bool | None, say: Callable[[str], None]) -> None:
        """Write the known motif that is nearest to each seqlet of the wanted parts, where that has not been done."""
        parts, whole = self.run.names(), self.run.whole(wanted, say, "matches")
        missing = [k for k in wanted if k in parts and k not in whole]
        count = sum(len(load_part(self.run, parts[k], ["start"])[0]) for k in missing)
        if count:
            say(matching_note("seqlets"))
            compile_tomtom(show_progress)
        with progress("matching seqlets", count, show_progress) as step:
            for k in missing:
                relevance, *columns = load_part(self.run, parts[k], ["relevance", *SEQLET_COLUMNS])
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
    """The note before anything is compared with known motifs: nothing moves while memelite compiles."""
    first = "" if tomtom_is_compiled() else "; this once, compiling it takes a minute or two"
    return f"{what} are compared with known motifs (TOMTOM){first}"


def load_part(run: Run, name: str, arrays: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Some arrays of a part."""
    with np.load(io.BytesIO(run.read(name))) as part:
        return [part[array] for array in arrays]


# -- results


def gather(explaining: Explaining) -> None:
    """Relevance and one-hot sequences of all parts; harmless if two processes do it at once."""
    run, sequences, plan, settings = explaining.run, explaining.sequences, explaining.plan, explaining.settings

    def parts() -> Iterator[tuple[Sequences, Values]]:
        for rows, (relevance,) in explaining.stored(["relevance"]):
            chosen = sequences[rows]
            yield chosen, pool(relevance, encode(chosen, settings.ambiguous), settings.pooling)

    with run.place.new_file("relevance.parquet") as path:
        write_parquet(path, ((chosen, list(values)) for chosen, values in parts()))
    if sequences.intervals is not None:
        intervals = [sequences.intervals[row] for rows in plan for row in rows]
        with run.place.new_file("relevance.bedgraph") as path:
            write_bedgraph(path, intervals, (row for _, values in parts() for row in values))

    lengths = set(sequences.lengths.tolist())
    if len(lengths) == 1:
        shape = (len(sequences), 4, lengths.pop())  # of one length: the parts hold the rows in order
        with run.place.new_file("attributions.npz", math.prod(shape) * 4) as path:
            write_npz_rows(path, shape, np.float32, (values for _, (values,) in explaining.stored(["relevance"])))
        with run.place.new_file("onehot.npz", math.prod(shape)) as path:
            write_npz_rows(path, shape, np.int8, (encode(sequences[rows], settings.ambiguous) for rows in plan))


def gather_seqlets(explaining: Explaining, matched: bool) -> None:
    """The seqlets of all parts in one BED file, with the motifs they match if they were compared."""
    run, parts = explaining.run, []
    for rows, columns in explaining.stored(SEQLET_COLUMNS):
        seqlets = Seqlets(*columns)
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


def gather_scores(explaining: Explaining) -> int:
    """Write each sequence's target, score, sum of relevance, and a remark; returns how many have broken arithmetic.

    Against a reference the score is a difference: f(x), the mean of f(x⁰) and its deviation follow.
    """
    settings = explaining.settings
    # Hypothetical scores are also of letters that are not there, which are no share of the score.
    pooling: Pooling = "present" if settings.hypothetical else "sum"
    lines: dict[int, tuple[object, ...]] = {}
    broken, words = 0, [problem.value for problem in Problem]  # older versions used other words, for other things
    for rows, (relevance, scores, targets, problems, *before) in explaining.stored(explaining.columns):
        onehot = encode(explaining.sequences[rows], settings.ambiguous)
        sums = pool(relevance, onehot, pooling).sum(-1, dtype=np.float64)
        known = [str(problem) if problem in words else "" for problem in problems] or [""] * len(rows)  # only of LRP
        broken += sum(map(bool, known))
        others = list(zip(scores + before[0], *before, strict=True)) if before else []
        for place, (row, total, score, target) in enumerate(zip(rows, sums, scores, targets, strict=True)):
            remark = known[place] or NOTHING * (not score and not total)
            more = (f"{number:.6g}" for number in others[place]) if before else ()
            lines[row] = (
                target_words(settings.target) if target < 0 else target,
                f"{score:.6g}",
                f"{total:.6g}",
                remark,
                *more,
            )
    table = [(name, *lines[row]) for row, name in enumerate(explaining.sequences.names)]
    with explaining.run.place.new_file("scores.tsv") as path:
        against = () if explaining.settings.reference is None else ("input_score", *AGAINST)
        header = ("name", "target", "score", "relevance", "remark", *against)
        path.write_text("".join(tsv_line(*line) for line in (header, *table)))
    return broken


def write_verdicts(explaining: Explaining, count: int, budget: int, show_progress: bool | None) -> tuple[str, ...]:
    """Ask the network about the explanations of the first `count` sequences: `verdicts.tsv`, a row per sequence."""
    settings, model, lines = explaining.settings, explaining.model, dict[int, list[object]]()
    asked, device = as_target(strand_targets(settings.target)[0]), device_of(explaining.model, settings.device)
    about = None if settings.reference is None else str(settings.reference)
    for rows, (relevance, targets) in explaining.stored(["relevance", "target"]):
        chosen = [place for place, row in enumerate(rows) if row < count]
        first = [rows[place] for place in chosen]
        if not first:
            continue
        onehot = encode(explaining.sequences[first], settings.ambiguous)
        x = torch.from_numpy(onehot).to(device)
        maps = pool(relevance[chosen], onehot, "present" if settings.hypothetical else "sum")
        target = targets[chosen].tolist() if asked.given is None else asked.of(first).given
        how: dict[str, Any] = {"target": target, "reference": about, "show_progress": show_progress}
        trace = record(model, x[:1])
        verdict = ask(Headless(model, trace), x, maps, budget=budget - (trace.head is not None), **how)
        lines |= {row: [*map(verdict.facts(n).get, VERDICT_COLUMNS)] for n, row in enumerate(first)}
    with explaining.run.place.new_file("verdicts.tsv") as path:
        table = [("name", *VERDICT_COLUMNS), *((explaining.sequences.names[k], *lines[k]) for k in sorted(lines))]
        path.write_text("".join(tsv_line(*("" if cell is None else cell for cell in line)) for line in table))
    return tuple(str(lines[k][0]) for k in sorted(lines))


# -- targets, trials and digests


def read_target(target: Any) -> Any:
    """A target from its entry in `run.json`: a text, or a list for an index tuple."""
    if isinstance(target, str):
        with usage():
            return target_from_text(target)
    return tuple(target) if isinstance(target, list) else target


def target_entry(target: Any, name: Callable[[Path], str | None] = lambda file: file.name) -> Any:
    """A target as plain data; `name` names the file of a function: in `run.json` without its folder."""
    if (named := score_file(target)) is not None:
        return f"{name(named[0])}:{named[1]}"
    return list(target) if isinstance(target, tuple) else getattr(target, "text", target)


def _try_lengths(explaining: Explaining) -> None:
    """Run one sequence of every length through the model, so that a misfit shows before hours of work."""
    sequences, settings = explaining.sequences, explaining.settings
    for length, row in zip(*np.unique(sequences.lengths, return_index=True), strict=True):
        onehot = encode(sequences[[row]], settings.ambiguous)
        check_fit(explaining.model, onehot, [settings.target], f"{sequences.where(row)}: its {length} bases")


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
        if file.is_file():  # else loading it will name the fault
            digests |= {f"{name}{role}": content_digest(path) for name, path in source_files(file).items()}
    return digests or None
