"""Settings tuned to one's own model: the network judges candidates, on samples that did not choose among them.

Of every sample the network is asked once (`plrp.metrics.Questions`), and its answers judge the maps of all candidates.
One half of the samples chooses, the other half reports. Flipping curves cost passes for each map, so they are measured
for the best candidates alone, in a second run beside the first.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from plrp.composites import resolve
from plrp.concepts.numbered_inputs import NumberedInputs, numbered
from plrp.concepts.search import LAYOUT, run_search, target_entry, whole_arrays
from plrp.errors import UnsupportedOperation
from plrp.files import new_figure, new_file
from plrp.genomics.network import load_model
from plrp.genomics.sequences import encode, read_fasta
from plrp.metrics.feature_rows import pearson, spearman
from plrp.metrics.questions import SPARE, Kind, Questions, affordable, kind_of, points_of, relevance_of_parts
from plrp.metrics.sparsity import gini
from plrp.metrics.verdicts import reference_kind
from plrp.models.loading import LoadedModel, load
from plrp.models.sources import source_of_module, weights_digest
from plrp.pruning import Pruning
from plrp.references import References
from plrp.runs.ray import sent
from plrp.runs.run import Run, differs_here, text_digest
from plrp.runs.work import Execution, Tick, Work
from plrp.tables import render_table
from plrp.tape.head import Headless
from plrp.tape.refusals import device_of
from plrp.tape.trace import Trace
from plrp.tape.verification import trace
from plrp.targets import as_target
from plrp.text.text_attribution import trace as trace_text
from plrp.text.text_explanation import text_questions
from plrp.text.text_models import is_language_model
from plrp.text.text_models import load as load_text

from .intervals import bootstrap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST = 8
"""Samples; each half needs four for an interval."""
BEST = 3
"""Candidates whose flipping curves are measured, besides the chosen one and the default."""
SHARES = (0.0, 0.05, 0.15, 0.3)
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Candidate:
    """Settings to try. `reference` is a name such as `"blur:8"` where the settings are to be stored."""

    composite: Any = "auto"
    pruning: Pruning | None = None
    reference: Any = None

    @property
    def name(self) -> str:
        """The settings in a few words."""
        against = "" if self.reference is None else f" against {self.plain[2]}"
        composite = getattr(self.composite, "name", self.composite)  # a composite prints as its table
        return f"{composite}{against}, {'LRP' if self.pruning is None else self.pruning.title}"

    @cached_property
    def plain(self) -> tuple[str, dict[str, Any] | None, str | None]:
        """The settings as plain data; a tensor by its digest, since large ones are printed in part."""
        pruning, given = None if self.pruning is None else self.pruning.to_dict(), self.reference
        given = f"a tensor ({NumberedInputs([given]).digest()[:8]})" if isinstance(given, Tensor) else given
        return str(self.composite), pruning, None if given is None else str(given)


def usual_candidates(kind: Kind, composite: str, mask: Any) -> list[Candidate]:
    """A dozen candidates; the first is the default. `composite`: the one that `"auto"` means for the model."""
    blur = "blur:8" if kind == "image" else "blur:4"
    usual: dict[str, list[tuple[str, Any]]] = {
        "sequence": [("auto", None), ("epsilon", None), ("rescale", "shuffled:4")],
        "tokens": [("auto", None), ("cp-lrp", None), *([("rescale", mask)] if mask is not None else [])],
        "table": [("epsilon", None), ("epsilon-gamma", None), ("rescale", "zeros")],
    }
    rules = usual.get(kind, [("auto", None), ("epsilon-gamma", None), ("rescale-gamma", blur)])
    if composite == "attnlrp" and kind != "tokens":
        rules = [("auto", None), ("cp-lrp", None), ("rescale", rules[-1][1])]
    return [Candidate(name, Pruning(p) if p else None, reference) for name, reference in rules for p in SHARES]


class Tuning:
    """A model, numbered inputs and candidates, measured part by part; on this machine or on a worker.

    `finalists`: the candidates whose flipping curves are measured, by number; None: agreement of all candidates.
    """

    doing = "asking the network:"

    def __init__(
        self,
        model: nn.Module,
        inputs: NumberedInputs,
        out: str | Path,
        *,
        candidates: Sequence[Candidate] | None = None,
        target: Any = None,
        budget: int = 128,
        rows: Tensor | None = None,
        mask: Any = None,
        part_size: int = 4,
        seed: int = 0,
        finalists: Sequence[int] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(part_size, int) or part_size < 1:
            raise ValueError(f"part_size={part_size!r}: a whole number from 1.")
        if not all(isinstance(one, Candidate) for one in candidates or ()):
            raise TypeError(f"candidates={candidates!r}: give plrp.experiments.Candidate, as Candidate('epsilon').")
        if len(inputs) < FEWEST:
            raise ValueError(f"tune needs {FEWEST} samples or more, half of them to choose: there are {len(inputs)}.")
        self.model, self.inputs, self.device = model, inputs, device_of(model)
        self.target, self.budget, self.rows, self.mask, self.seed = as_target(target), budget, rows, mask, seed
        self.part_size, self.finalists = part_size, None if finalists is None else list(finalists)
        entry, x = target_entry(target, len(inputs)), inputs.batch([0]).to(self.device)
        first, self.kind = None, kind_of(x)
        with suppress(UnsupportedOperation):  # of models that only a reference can explain
            first = self._traced(x, 0) if candidates is None else None
        automatic = resolve("auto", [x], first).name
        if isinstance(inputs, Texts) and inputs.tokenizer.mask_token is not None:
            mask = "mask"
        tried = usual_candidates(self.kind, automatic, mask) if candidates is None else list(candidates)
        self.candidates, self.refused, seen = self._usable(tried)
        self.replacements = self._questions(*seen).names
        given = [one for one in (*(c.reference for c in self.candidates), self.mask) if not isinstance(one, str | None)]
        replaced = [References.given(one, x, equal=True).joined.each[0][0] for one in given]
        stage = {"command": "tune"} if finalists is None else {"command": "tune, flipping", "finalists": self.finalists}
        settings = {
            **stage,
            "inputs": len(inputs),
            "digest": inputs.digest(),
            "weights_digest": weights_digest(model),
            "model_digest": text_digest(source_of_module(model)),
            "target": entry,
            "candidates": [list(one.plain) for one in self.candidates],
            "budget": budget,
            "seed": seed,
            "part_size": part_size,
            "replaced": NumberedInputs([x if rows is None else rows, *replaced]).digest(),
            **(about or {}),
        }
        self.key = text_digest(json.dumps(settings, sort_keys=True))
        self.record = {**settings, "key": self.key, "names": inputs.names}
        self.run = Run(out, LAYOUT, -(-len(inputs) // part_size), lambda index: self.key)

    def _usable(self, tried: Sequence[Candidate]) -> tuple[list[Candidate], dict[str, str], tuple[int, Trace]]:
        """The candidates that the model accepts, the reasons of the others, and a sample that was tried."""
        usable, refused, seen = [], {}, list[tuple[int, Trace]]()
        for candidate in tried:
            try:
                tries = ((n, self._maps([candidate], self.inputs.batch([n]), n)[1]) for n in range(len(self.inputs)))
                seen = [*seen, next((n, traced) for n, traced in tries if traced is not None)][:1]
                usable.append(candidate)
            except (StopIteration, ValueError, TypeError, NotImplementedError, RuntimeError) as error:
                equal = isinstance(error, StopIteration)
                refused[candidate.name] = "every sample equals its reference." if equal else str(error)
        if not usable:
            raise ValueError(f"No candidate can explain this model: {next(iter(refused.values()), 'there are none')}")
        return usable, refused, seen[0]

    @property
    def passes(self) -> int:
        """Forward passes, at most, that ask the network about a sample: for all candidates, and for each finalist."""
        flips = 4 * len(points_of(affordable(self.kind, self.budget)))
        return self.budget + SPARE + (min(BEST + 2, len(self.candidates)) - 1) * flips

    def part(self, index: int) -> range:
        """The inputs of a part."""
        return range(index * self.part_size, min((index + 1) * self.part_size, len(self.inputs)))

    def do(self, index: int, tick: Tick = lambda kind, count: None) -> None:
        """Measure the inputs of a part, and store the numbers."""
        rows = []
        for number in self.part(index):
            try:
                rows.append(self.measure(number))
            except ValueError as error:
                raise ValueError(f"{self.inputs.names[number]}: {error}") from None
            tick(str(index), 1)
        content = io.BytesIO()
        columns: dict[str, Any] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        np.savez_compressed(content, **columns)
        self.run.write(index, content.getvalue())

    def measure(self, number: int) -> dict[str, Values]:
        """One sample: `agreement` (candidates, 2) with either replacement, `gini`, and `ceiling`, the agreement of the
        replacements with each other; in the second run the finalists' `gains`. NaN where the reference is the sample.
        """
        chosen = self.candidates if self.finalists is None else [self.candidates[one] for one in self.finalists]
        maps, first = self._maps(chosen, self.inputs.batch([number]), number)
        shapes: dict[str, Any] = {"agreement": (len(chosen), 2), "gini": len(chosen), "ceiling": ()}
        shapes = shapes if self.finalists is None else {"gains": len(chosen)}
        found = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        if first is None:
            return found
        questions = self._questions(number, first)
        if self.finalists is not None:
            orders = torch.cat([torch.stack(relevance_of_parts(one, questions.number)) for one in maps.values()])
            found["gains"][list(maps)] = questions.gains(0, orders).mean(0).numpy()
            return found
        drops = (answers := questions.occlusions()).drops[0]
        for n, one in maps.items():
            own = relevance_of_parts(one, answers.number)[0].expand_as(drops)
            found["agreement"][n] = (spearman(own, drops) / 2 + pearson(own, drops) / 2).nan_to_num(0.0)  # of constants
            found["gini"][n] = float(gini(one, channels="sum" if questions.channels else None))
        if bool((drops.abs().amax() > 1e-5 * answers.score.abs()).item()):
            found["ceiling"][()] = float(spearman(drops[:1], drops[1:]))
        return found

    def _maps(self, candidates: Sequence[Candidate], x: Tensor, number: int) -> tuple[dict[int, Tensor], Trace | None]:
        """The candidates' relevance of a sample, and its trace; neither where the reference equals the sample."""
        traces, target, maps = dict[Any, Trace | None](), self._target(number), dict[int, Tensor]()
        pairs = [(one.reference, one.composite) for one in candidates]
        keys = [tuple(one if isinstance(one, str) else id(one) for one in pair) for pair in pairs]  # others print alike
        for key in dict.fromkeys(keys):
            alike = [n for n, one in enumerate(keys) if one == key]
            reference, composite = pairs[alike[0]]
            if key[0] not in traces:
                traces[key[0]] = self._traced(x.to(self.device), number, reference)
            if (traced := traces[key[0]]) is not None:
                swept = traced.sweep([candidates[n].pruning for n in alike], target=target, composite=composite)
                maps |= {n: explanation.relevance for n, explanation in zip(alike, swept, strict=True)}
        return maps, next((one for one in traces.values() if one is not None), None)

    def _traced(self, x: Tensor, number: int, reference: Any = None) -> Trace | None:
        try:
            texts = self.inputs.traced(number, reference) if isinstance(self.inputs, Texts) else None
            return trace(self.model, x, reference=reference) if texts is None else texts.trace
        except ValueError as error:
            if "equals the input" not in str(error):
                raise
            return None

    def _target(self, number: int) -> Any:
        if isinstance(self.inputs, Texts):
            traced, given = self.inputs.traced(number), self.target.given
            return traced.score_of(int(traced.scores.argmax()) if given is None else given)
        return self.target.of(slice(number, number + 1))

    def _questions(self, number: int, traced: Trace) -> Questions:
        model: Any = traced.now._recorder.model
        how = {"target": self._target(number), "outputs": traced.output, "passed": 2 * (traced.head is not None)}
        how |= {"budget": self.budget, "data": self.rows, "mask": self.mask, "seed": self.seed}
        if isinstance(self.inputs, Texts):
            how |= text_questions(self.inputs.traced(number), self.budget)
        return Questions(model if traced.head is None else Headless(model, traced), traced.now.inputs[0].data, **how)

    def work(self, working_dir: str | None = None) -> Work:
        """The measurement as a message to other processes, if it can be sent."""
        raise TypeError("A module cannot be sent to other processes: use `plrp tune`, which names model and data.")


class Texts(NumberedInputs):
    """Texts, as a language model's tokens; each is read when it is asked for."""

    def __init__(self, texts: Sequence[str], model: nn.Module, tokenizer: Any) -> None:
        super().__init__(texts)
        self.names, self.tokenizer = [text[:40] for text in texts], tokenizer
        self.traced = lru_cache(2)(lambda number, against=None: trace_text(model, tokenizer, texts[number], against))

    def batch(self, numbers: Sequence[int]) -> Tensor:
        """The token ids of one text, (1, tokens)."""
        return self.traced(numbers[0]).trace.now.inputs[0].data

    def digest(self) -> str:
        """A hash of all texts."""
        return text_digest("\0".join(self.data))


class NamedTuning(Tuning):
    """The same by names, for workers and the command line: of a model, and of photographs, a FASTA file or texts."""

    def __init__(
        self,
        model: str,
        weights: str | None,
        data: str,
        out: str,
        device: str | None = None,
        candidates: Sequence[Sequence[Any]] | None = None,
        expected: str | None = None,
        about: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        loaded, inputs = named_inputs(model, weights, data)
        about = about or {"model": model, "data": str(Path(data).resolve())}
        given = {"model": model, "weights": weights, "data": data, "out": out, "device": device, "about": about}
        self.arguments = {**given, "candidates": candidates, **options}
        tried = [Candidate(c, None if p is None else Pruning.from_dict(p), r) for c, p, r in candidates or ()] or None
        super().__init__(loaded.to(device or "cpu"), inputs, out, candidates=tried, about=about, **options)
        if expected is not None and self.key != expected:
            raise differs_here("data, weights or code", "the tuning")

    def work(self, working_dir: str | None = None) -> Work:
        """The measurement as a message to other processes."""
        names = ["data", *["model"] * (".py:" in self.arguments["model"])]
        names += ["weights"] * Path(self.arguments["weights"] or "").is_file()
        paths = {name: sent(self.arguments[name], working_dir) for name in names}
        exact = {"candidates": [list(one.plain) for one in self.candidates], "expected": self.key}
        return Work("plrp.experiments.tuning:NamedTuning", {**self.arguments, **paths, **exact})


def named_inputs(model: str, weights: str | None, data: str) -> tuple[nn.Module, NumberedInputs]:
    """A model and its inputs: photographs of a folder, sequences of a FASTA file, or a text in each line of a file."""
    if Path(data).is_dir():
        loaded = load(model, weights=weights, quiet=True)
        return loaded.module, numbered(data, loaded)
    if is_language_model(model):
        language, tokenizer = load_text(model)
        lines = map(str.strip, Path(data).read_text("utf-8").splitlines())
        return language, Texts([*filter(None, lines)], language, tokenizer)
    sequences = read_fasta(data)
    inputs = NumberedInputs([torch.from_numpy(encode([letters]))[0] for letters in sequences.letters])
    inputs.names = list(sequences.names)
    return load_model(model, weights).eval(), inputs


@dataclass(frozen=True, repr=False, eq=False)
class Tuned:
    """The chosen settings, which `plrp.explain(model, x, **tuned)` takes, and the measurement that chose them.

    - `candidates`; `chosen`, `best`: their numbers, where `best` agrees best on the choosing half;
    - `agreement`: (samples, candidates, 2), the mean of rank correlation and correlation with the drops of the score,
      by either replacement; `names` are the replacements' names; `independent` (candidates, 2): whether a replacement
      is another than the candidate's own reference;
    - `gini` (samples, candidates); `gains` (samples, finalists), by the candidates' numbers in `finalists`;
    - `choosing`, `reporting`: the samples of the two halves; `keep`: the agreement that sparsity may cost;
    - `refused`: the sentences of candidates that the model does not accept.
    """

    candidates: tuple[Candidate, ...]
    agreement: Values
    independent: npt.NDArray[np.bool_]
    gini: Values
    ceiling: Values
    choosing: npt.NDArray[np.int64]
    reporting: npt.NDArray[np.int64]
    keep: float
    names: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    finalists: tuple[int, ...] = ()
    gains: Values | None = None

    @cached_property
    def best(self) -> int:
        """The candidate with the highest agreement on the choosing half."""
        return int(np.argmax([self._rank(n) for n in range(len(self.candidates))]))

    def _rank(self, number: int) -> float:
        return float(np.nan_to_num(_mean(self._of(number)[self.choosing]), nan=-np.inf))

    @cached_property
    def chosen(self) -> int:
        """The sparsest candidate that loses less than `keep` to the best: the lower bound of the difference says so."""
        others = [self.difference(n, self.best)[self.choosing] for n in range(len(self.candidates))]
        low = bootstrap(np.stack(others, 1))[0]
        near = [n for n in range(len(self.candidates)) if low[n] > -self.keep or n == self.best]
        return max(near, key=lambda n: float(_mean(self.gini[self.choosing, n])))

    def _of(self, number: int) -> Values:
        """A candidate's agreement, (samples,), by the replacements that are not its own reference."""
        return np.asarray(self.agreement[:, number, self.independent[number]].mean(1))

    def difference(self, one: int, other: int) -> Values:
        """The paired difference of two candidates' agreement, (samples,), by replacements that are neither's own."""
        both = self.independent[one] & self.independent[other]
        both = both if both.any() else np.ones(2, bool)
        return np.asarray((self.agreement[:, one, both] - self.agreement[:, other, both]).mean(1))

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments for `plrp.explain`."""
        one = self.candidates[self.chosen]
        how = {"composite": one.composite, "pruning": one.pruning}
        return how if one.reference is None else {**how, "reference": one.reference}

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    def keys(self) -> Iterable[str]:
        """The names of the settings, so that `**tuned` gives them."""
        return self.settings.keys()

    def table(self) -> list[dict[str, Any]]:
        """A record per candidate, measured on the reporting half, with 95% intervals: its agreement and flipping gain,
        and their differences to the first candidate, the default; Gini index. Gains are NaN but for the finalists.
        """
        half, rows = self.reporting, []
        gains = np.full(self.gini.shape, np.nan)
        gains[:, self.finalists] = np.nan if self.gains is None else self.gains
        for n, candidate in enumerate(self.candidates):
            columns = np.stack([self._of(n), self.difference(n, 0), gains[:, n], gains[:, n] - gains[:, 0]], 1)[half]
            low, high = bootstrap(columns)
            row = {"candidate": candidate.name, "chosen": n == self.chosen, "gini": float(_mean(self.gini[half, n]))}
            for k, name in enumerate(("agreement", "difference", "gain", "gain_difference")):
                numbers = (_mean(columns[:, k]), low[k], high[k])
                row |= dict(zip((name, f"{name}_low", f"{name}_high"), map(float, numbers), strict=True))
            rows.append(row)
        return rows

    def __repr__(self) -> str:
        rows = self.table()
        cells = []
        for number, row in enumerate(rows):
            name, difference = f"{'→' if row['chosen'] else ' '} {row['candidate']}", _interval(row, "difference")
            gain = "" if np.isnan(row["gain"]) else _interval(row, "gain", ".3g")
            cells.append((name, _interval(row, "agreement"), difference * bool(number), f"{row['gini']:.2f}", gain))
        table = render_table(("candidate", "agreement", "− the first's", "Gini", "gain"), cells)
        row, best = rows[self.chosen], self.candidates[self.best].name
        samples = f"{len(self.choosing)} samples chose, {len(self.reporting)} others report"
        head = f"{samples}: agreement with the drops of the score ({', '.join(self.names)})."
        last = (
            f"Chosen: {row['candidate']}, the sparsest that loses less than {self.keep:g} to the best ({best}). On the "
        )
        last += f"samples that report, agreement differs from that of {rows[0]['candidate']} by "
        last += f"{_interval(row, 'difference')}, the flipping gain by {_interval(row, 'gain_difference', '+.3g')}."
        left = [f"Left out: {name}: {why}" for name, why in self.refused.items()]
        for candidate, count in zip(self.candidates, np.isnan(self.agreement[:, :, 0]).sum(0), strict=True):
            left += [f"Left out of {candidate.name}: samples that equal the reference: {count}"] if count else []
        return "\n".join([head, table, last, *left])

    def save(self, path: str | Path) -> None:
        """Write the settings as TOML, for `--settings` of the command line, which must have names for them."""
        chosen, usual = self.candidates[self.chosen], Pruning().to_dict()
        composite, pruning, reference = chosen.plain
        shown = {"p": 0.0, **{k: v for k, v in (pruning or {}).items() if k == "p" or v != usual[k]}}
        nameless = [k for k in ("composite", "reference") if not isinstance(getattr(chosen, k), str | None)]
        if nameless := nameless + [k for k in shown if k not in STORED]:
            raise ValueError(f"The command line has no name for the {' and '.join(nameless)} of {chosen.name}.")
        entries = {"composite": composite, "reference": reference, **shown}
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in entries.items() if value is not None]
        with new_file(path) as part:
            part.write_text("".join(["# Settings that plrp tune chose\n", *lines]), encoding="utf-8")

    def figure(self) -> Figure:
        """Agreement, and the finalists' flipping gain, against the Gini index: a dot and an interval per candidate."""
        rows = self.table()
        figure = new_figure((8, 4 + 0.17 * len(rows)), layout="constrained")
        left, right = figure.subplots(1, 2)
        for number, row in enumerate(rows):
            colour = "#d42a20" if row["chosen"] else "#1f63b0"
            for axes, name in ((left, "agreement"), (right, "gain")):
                if not np.isnan(row[name]):
                    error = [[row[name] - row[f"{name}_low"]], [row[f"{name}_high"] - row[name]]]
                    axes.errorbar(row["gini"], row[name], error, fmt="o", ms=5, color=colour, elinewidth=0.8)
                    axes.annotate(str(number + 1), (row["gini"], row[name]), xytext=(4, 4), textcoords="offset points")
        for axes, label in ((left, "agreement with the network"), (right, "flipping gain of the best, in the score")):
            axes.set(xlabel="sparsity (Gini index)", ylabel=label)
        names = [f"{number + 1} {row['candidate']}" for number, row in enumerate(rows)]
        figure.supxlabel("\n".join(names), x=0.02, ha="left", fontsize=7, linespacing=1.4)
        return figure


STORED = ("p", "redistribution", "unit", "sparsity_gain")
"""Entries of a pruning that the command line has options for."""


def _mean(values: Values) -> Any:
    """Means over the samples that have numbers; NaN where none has."""
    return np.ma.filled(np.ma.masked_invalid(values).mean(0), np.nan)


def _interval(row: Mapping[str, Any], name: str, form: str | None = None) -> str:
    """A mean with its interval: +.02 [−.01, +.05]; agreement has no sign where it is positive."""
    form = form or ("+.2f" if name == "difference" else ".2f")
    mean, low, high = (format(row[f"{name}{end}"], form).replace("-", "−") for end in ("", "_low", "_high"))
    return f"{mean} [{low}, {high}]"


def tune(
    model: nn.Module | LoadedModel,
    data: Any,
    candidates: Sequence[Candidate] | None = None,
    *,
    keep: float = 0.05,
    target: Any = None,
    out: str | Path | None = None,
    show_progress: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Tuned:
    """Choose the settings that explain one's own model best: `plrp.explain(model, x, **tuned)` takes the result.

    - `data`: as for `plrp.exemplars`: a tensor (samples, …), a data set, or a folder of photographs; 8 samples or more;
    - `candidates`: `plrp.experiments.Candidate`s, the first of which the others are compared with; None: a dozen of the
      usual ones for this kind of input;
    - `keep`: the agreement that a sparser candidate may lose to the best, with 95% confidence;
    - `target`: as in `plrp.explain`; `out`: a folder in which the work is stored, so that the same call resumes it;
    - `options`: those of `Tuning`: `budget` (forward passes per sample, 128), `mask` for texts, `seed`, `part_size`.
      Of tables the mean and a drawn sample of the data are the replacements, unless `rows` are others (rows, features).
    """
    module, inputs = model.module if isinstance(model, LoadedModel) else model, numbered(data, model)
    target_entry(target, len(inputs), out)
    if options.get("rows") is None and isinstance(data, Tensor) and data.dim() == 2 and data.is_floating_point():
        options["rows"] = data
    with ExitStack() as scope:
        place = str(scope.enter_context(tempfile.TemporaryDirectory()) if out is None else out)
        make = partial(Tuning, module, inputs, candidates=candidates, target=target, **options)
        return tuned_by(make, place, Execution(show_progress=show_progress, say=say), keep)


def tuned_by(make: Callable[..., Tuning], place: str, execution: Execution, keep: float) -> Tuned:
    """Measure all candidates, choose, and measure the flipping curves of the best; `make` gives the two runs."""
    if not isinstance(keep, int | float) or not 0 <= keep < 1:
        raise ValueError(f"keep={keep!r}: the agreement that may be lost, from 0 to below 1.")
    tuning = make(place)
    count, asks = len(tuning.candidates), f"at most {tuning.passes} forward passes that ask the network"
    execution.say(f"{len(tuning.inputs)} samples: for each {asks}, and {count} explanations, of the best once more")
    for name, why in tuning.refused.items():
        execution.say(f"left out: {name}: {why}")
    arrays = run_search(tuning, execution, lambda run, settings: whole_arrays(run))
    if np.isnan(arrays["ceiling"]).all():
        raise ValueError("No sample's score changes whichever part is replaced: the model ignores this input.")
    names = tuning.replacements
    own = [None if one.reference is None else reference_kind(str(one.plain[2])) for one in tuning.candidates]
    independent = np.array([[reference_kind(name) != kind for name in names] for kind in own])
    independent[~independent.any(1)] = True
    order = np.random.default_rng(tuning.seed).permutation(len(tuning.inputs))
    choosing, reporting = (np.sort(half) for half in np.split(order, [len(order) // 2]))
    about: dict[str, Any] = {"keep": keep, "names": names, "refused": tuning.refused, "independent": independent}
    tuned = Tuned(tuple(tuning.candidates), **arrays, choosing=choosing, reporting=reporting, **about)
    ranked = sorted(range(count), key=lambda n: -tuned._rank(n))
    finalists = tuple(dict.fromkeys([*ranked[:BEST], tuned.chosen, 0]))  # 0: the others are compared with it
    second = make(f"{place.rstrip('/')}/flips-{'-'.join(map(str, finalists))}", finalists=finalists)
    gains = run_search(second, execution, lambda run, settings: whole_arrays(run))["gains"]
    return replace(tuned, finalists=finalists, gains=gains)
