"""The description of a sweep: data set × model × composite × variants × p × metrics.

A `Config` is immutable, comes from and goes to TOML, and is written beside its results. It leaves out how the work
is done (workers, device, progress), which changes no result.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

from plrp import references
from plrp.composites import composite as named_composite
from plrp.errors import UsageError, needed
from plrp.pruning import Pruning
from plrp.runs.run import quoted, text_digest
from plrp.settings import check_composite
from plrp.spelling import nearest

PAPER = ("LRP", "lambda", "M", "lambda+gain", "M+gain")
"""The paper's variants, the default of a sweep."""
VARIANTS = (*PAPER, "M-sign", "M-sign+gain")
SHARES: tuple[float, ...] = tuple(round(0.05 * k, 2) for k in range(20))
"""The paper's shares p: 0 to 0.95 in steps of 0.05."""

SPARSITY = ("gini", "entropy", "hoyer", "nonzero")
LOCALIZATION = ("relevance_mass_accuracy", "relevance_rank_accuracy", "pointing_game")
ROBUSTNESS = ("local_lipschitz", "max_sensitivity")
METRICS = (*SPARSITY, *LOCALIZATION, *ROBUSTNESS, "pixel_flipping", "score_kept")
"""The metrics of a sweep: functions of `plrp.metrics`, and `score_kept`.

score_kept = Σ relevance of the whole input / the explained score (the winning logit): 1 where all of it arrives. Biases
and ε take the rest, or give some of it: it may be above 1, or negative.
"""

ALWAYS = ("mass_at_input", "broken")
"""Two measurements of every explanation: Σ|R| of the input over |score|, and 1 where its arithmetic broke, else 0."""

DATA_OPTIONS: dict[str, tuple[str, ...]] = {
    "ecssd": (),
    "imagenet": ("class_index", "labels", "boxes", "sample"),
    "photographs": ("masks",),
    "arrays": ("largest",),
    "dna": ("part",),
    "simulated-dna": ("sequences", "motifs", "task", "length", "number", "part", "largest"),
}
"""The kinds of data sets, and the options of each besides `root` and `limit`."""

MODEL_OPTIONS = ("num_classes", "filters", "hidden", "epochs", "patience")
PATHS = ("masks", "class_index", "labels", "boxes")
"""Options of a data set that are paths, as `root` is."""


class ConfigError(UsageError):
    """A config that makes no sense; the message names the entry and its possible values."""


def _known(names: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"{where} has no entry {name!r}{nearest(name, list(known))}.")


MANY, FEWER, ENDLESS = (1, 10**7), (1, 10**6), (1, 10**15)
BOUNDS: dict[str, tuple[int, int]] = {
    "limit": ENDLESS, "largest": ENDLESS, "sample": MANY, "sequences": MANY, "length": MANY,
    "num_classes": FEWER, "filters": FEWER, "epochs": FEWER, "patience": FEWER, "hidden": (0, 10**6),
    "samples": (1, 10**5), "steps": (1, 10**5), "part_size": MANY, "batch_size": MANY, "seed": (0, 2**63 - 1),
}  # fmt: skip
"""The least and the greatest value of each entry that is a whole number: beyond the greatest a count is a mistake, but
a limit above the number of samples does no harm.
"""
MOST_SHARES = 1000


def _check_whole(entries: Mapping[str, Any], where: str = "") -> None:
    """Refuse entries of `BOUNDS` that are not whole numbers within them; a list of steps is checked elsewhere."""
    for name, value in entries.items():
        if name not in BOUNDS or (name == "steps" and not isinstance(value, int)):
            continue
        least, most = BOUNDS[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{where}{name} is a whole number from {least}, not {quoted(value)}.")
        if value > most:
            raise ConfigError(f"{where}{name} is at most {most:,}, not {quoted(value)}: check the number of digits.")


def _plain(value: Any) -> dict[str, Any]:
    """The fields of a dataclass and its options as one table of plain data, without empty entries."""
    table = {f.name: getattr(value, f.name) for f in fields(value)}
    table |= table.pop("options", {})
    return {name: list(v) if isinstance(v, tuple) else v for name, v in table.items() if v is not None}


def _shares(value: Any, name: str) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{name} is a list of shares, such as [0, 0.1, 0.2], not {value!r}.")
    if len(value) > MOST_SHARES:
        raise ConfigError(f"{name} has {len(value):,} shares; at most {MOST_SHARES:,} are measured in one sweep.")
    for p in value:
        if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p < 1:
            raise ConfigError(f"{name} are shares of the mass, 0 ≤ p < 1, not {p!r}.")


@dataclass(frozen=True)
class Data:
    """Which samples are explained.

    `kind` is a key of `DATA_OPTIONS`; `root` their folder or file; `limit` takes only the first samples. `options`
    are the options of the kind. `count` (of all samples, whatever the limit) and `digest` (of their contents) are
    filled in when a sweep starts.
    """

    kind: str
    root: str | None = None
    limit: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    count: int | None = None
    digest: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in DATA_OPTIONS:
            raise ConfigError(f"data.kind is one of {', '.join(DATA_OPTIONS)}, not {self.kind!r}.")
        if self.root is None and self.kind != "simulated-dna":
            raise ConfigError(f"data of kind {self.kind!r} needs `root`, the folder or file the samples are in.")
        _known(self.options, DATA_OPTIONS[self.kind], f"data of kind {self.kind!r}")
        _check_whole(_plain(self), "data.")


@dataclass(frozen=True)
class Model:
    """Which network is explained: a name as `plrp.models.load` takes it, or `sequence-cnn`, which is trained.

    `weights` is a file, the name of published weights, or `random`. `digest` (of the weights) and `code` (digests of
    the model's file, and of your own files that it imports) are filled in when a sweep starts.
    """

    name: str
    weights: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    digest: str | None = None
    code: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        _known(self.options, MODEL_OPTIONS, "model")
        _check_whole(_plain(self), "model.")


class _Selection:
    """Some samples and shares: the first `limit` samples, and the shares `p` with 0; None is all."""

    limit: int | None
    p: tuple[float, ...] | None

    def covers(self, sample: int, p: float) -> bool:
        """Whether a sample at a share is among them."""
        return (self.limit is None or sample < self.limit) and (self.p is None or p == 0 or p in self.p)


@dataclass(frozen=True)
class Metric(_Selection):
    """One measurement: a name of `METRICS`, perhaps with a suffix (`local_lipschitz.max`), and its options.

    `p` restricts it to some shares (plain LRP is always measured), `limit` to the first samples: for costly
    metrics.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    p: tuple[float, ...] | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.p is not None:
            _shares(self.p, f"metrics.{self.name}.p")
            object.__setattr__(self, "p", tuple(float(p) for p in self.p))
        if self.function not in METRICS:
            raise ConfigError(f"unknown metric {self.name!r}: choose from {', '.join(METRICS)}.")
        _check_whole(_plain(self), f"metrics.{self.name}.")

    @property
    def function(self) -> str:
        """The name without its suffix."""
        return self.name.partition(".")[0]

    @property
    def suffix(self) -> str:
        """The suffix with its dot, or nothing."""
        return self.name[len(self.function) :]


@dataclass(frozen=True)
class Maps(_Selection):
    """Which relevance maps are stored along with the scores: of the first `limit` samples, at the shares `p`."""

    limit: int | None = None
    p: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _check_whole(_plain(self), "maps.")
        if self.p is not None:
            _shares(self.p, "maps.p")


@dataclass(frozen=True)
class Config:
    """A sweep. `sparsity_gain` and `measure` apply to the variants with gain, `unit` to all (see `plrp.Pruning`).

    With a `reference` by name, such as `blur:8`, differences to it are explained (`plrp.references`).

    The samples are divided into parts of `part_size`. A part is stored when it is whole; an unfinished part is lost if
    the sweep is killed. Within a part one trace serves `batch_size` samples. `seed` decides everything random: which
    samples, perturbations, the order of ties, training.
    """

    data: Data
    model: Model
    name: str = "sweep"
    composite: str = "epsilon-plus-flat"
    reference: str | None = None
    variants: tuple[str, ...] = PAPER
    p: tuple[float, ...] = SHARES
    sparsity_gain: float = 1.0
    measure: str = "zeros"
    unit: str = "neuron"
    metrics: tuple[Metric, ...] = (Metric("gini"), Metric("entropy"), Metric("nonzero"))
    maps: Maps | None = None
    seed: int = 0
    part_size: int = 8
    batch_size: int = 4

    def __post_init__(self) -> None:
        named_composite(self.composite)  # refuses an unknown name
        try:
            check_composite(self.composite, self.reference)
            if self.reference is not None:
                references.parse(self.reference)
        except ValueError as error:
            raise ConfigError(str(error).replace("--reference", "`reference`")) from None
        if isinstance(self.variants, str) or not isinstance(self.variants, Sequence):
            raise ConfigError(f"variants is a list, such as ['LRP', 'lambda'], not {self.variants!r}.")
        _shares(self.p, "p")
        for variant in self.variants:
            if variant not in VARIANTS:
                raise ConfigError(f"variants are {', '.join(VARIANTS)}; there is no {variant!r}.")
        if not self.metrics:
            raise ConfigError("a sweep without metrics measures nothing: name at least one.")
        listed = {"variants": self.variants, "p": self.p, "metrics": [metric.name for metric in self.metrics]}
        for what, names in listed.items():
            if len(set(names)) != len(names):
                raise ConfigError(f"{what} names one entry twice: {', '.join(map(str, names))}.")
        object.__setattr__(self, "p", tuple(float(p) for p in self.p))
        for metric in self.metrics:
            for p in metric.p or ():
                if p not in self.p:
                    raise ConfigError(f"metrics.{metric.name}.p has {p}, which is not among the sweep's p.")
        # Refuses settings that make no sense.
        Pruning(p=None, sparsity_gain=self.sparsity_gain, measure=self.measure, unit=self.unit)
        _check_whole({name: getattr(self, name) for name in ("part_size", "batch_size", "seed")})

    # -- variants, samples, parts

    @property
    def cells(self) -> tuple[tuple[str, float], ...]:
        """Every (variant, p): LRP once, as p = 0, since all variants are LRP there."""
        baseline = [("LRP", 0.0)] if "LRP" in self.variants or 0 in self.p else []
        others = [v for v in self.variants if v != "LRP"]
        return (*baseline, *((v, float(p)) for v in others for p in self.p if p > 0))

    def pruning(self, variant: str, p: float | None) -> Pruning | None:
        """The pruning of a variant at a share; None is LRP. `p = None` leaves it to the gain."""
        if variant == "LRP":
            return None
        redistribution, _, gain = variant.partition("+")
        options: dict[str, Any] = {"sparsity_gain": self.sparsity_gain, "measure": self.measure} if gain else {}
        return Pruning(p=p, redistribution=redistribution, unit=self.unit, **options)

    @property
    def samples(self) -> int:
        """The number of samples to explain; known once the data set was read."""
        if self.data.count is None:
            raise ConfigError("this config is not resolved yet: its samples have not been counted.")
        return self.data.count if self.data.limit is None else min(self.data.count, self.data.limit)

    @property
    def parts(self) -> int:
        """How many parts the samples make."""
        return math.ceil(self.samples / self.part_size)

    def part(self, index: int) -> range:
        """The samples of one part."""
        if not 0 <= index < self.parts:
            raise IndexError(f"part {index} of {self.parts}")
        return range(index * self.part_size, min((index + 1) * self.part_size, self.samples))

    def key(self, index: int) -> str:
        """The key of a part: a hash of everything that decides its results."""
        decides = {"identity": identity(self), "samples": list(self.part(index))}
        return text_digest(json.dumps(decides, sort_keys=True))

    # -- files

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Config:
        """From plain data, as TOML gives it. Unknown entries are refused."""
        _known(table, [f.name for f in fields(cls)], "a config")
        values, sections = dict(table), {"data": Data, "model": Model}
        for section in sections:
            if not isinstance(table.get(section), Mapping):
                raise ConfigError(f"a config needs the table [{section}].")
        for section, kind in sections.items():
            values[section] = _with_options(kind, table[section], section)
        if "metrics" in table:
            if not isinstance(table["metrics"], Mapping):
                raise ConfigError("metrics are tables, such as [metrics.gini].")
            values["metrics"] = tuple(
                _with_options(Metric, {"name": name, **entry}, f"metrics.{name}")
                for name, entry in _flattened(table["metrics"]).items()
            )
        if "maps" in table:
            _known(table["maps"], [f.name for f in fields(Maps)], "maps")
            values["maps"] = Maps(**_tuples(table["maps"]))
        return cls(**_tuples(values))

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`: plain data, without empty entries."""
        table = _plain(self)
        table |= {name: _plain(table[name]) for name in ("data", "model", "maps") if name in table}
        metrics = {metric.name: _plain(metric) for metric in self.metrics}
        table["metrics"] = {n: {k: v for k, v in entries.items() if k != "name"} for n, entries in metrics.items()}
        return table

    @classmethod
    def read(cls, path: str | Path) -> Config:
        """From a TOML file; relative paths in it start at the file's folder."""
        path = Path(path)
        try:
            return cls.from_dict(read_toml(path.read_text("utf-8"))).at(path.parent)
        except FileNotFoundError:
            raise ConfigError(f"{path} does not exist.") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: not TOML: it is no text in UTF-8.") from None
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"{path}: {error}") from None

    def to_toml(self) -> str:
        """As a TOML document that `read` takes."""
        return write_toml(self.to_dict())

    def at(self, folder: str | Path) -> Config:
        """With relative paths made absolute, starting at a folder."""
        base = Path(folder).resolve()

        def absolute(text: Any) -> str:
            return str(base / Path(str(text)).expanduser())

        data, model = self.data, self.model
        options = {k: absolute(v) if k in PATHS else v for k, v in data.options.items()}
        data = replace(data, root=None if data.root is None else absolute(data.root), options=options)
        if re.match(r".+\.py:\w+$", model.name):
            model = replace(model, name=absolute(model.name))
        if model.weights is not None and (base / Path(model.weights).expanduser()).is_file():
            model = replace(model, weights=absolute(model.weights))
        return replace(self, data=data, model=model)

    def changed(self, **entries: Any) -> Config:
        """With some entries set to other values, by dotted names: `changed(**{"data.limit": 5, "p": [0.1, 0.2]})`.

        An entry of a metric (`metrics.pixel_flipping.limit`) is set for all of its versions, such as
        `pixel_flipping.probability`; an entry of one version is set by its quoted name.
        """
        table = self.to_dict()
        for name, value in entries.items():
            paths, last = _places(name, table)
            for path in paths:
                place = table
                for section in path:
                    place = place.setdefault(section, {})
                    if not isinstance(place, dict):
                        raise ConfigError(f"{name!r} names no entry of a config.")
                place[last] = value
        return Config.from_dict(table)


def _places(name: str, table: Mapping[str, Any]) -> tuple[list[list[str]], str]:
    """The sections in which an entry with a dotted name is set, and its name there.

    `metrics.local_lipschitz.max.samples` is the entry `samples` of the metric `local_lipschitz.max`; quotes around the
    metric, as TOML has them, may stand there. An entry of a metric is set in all its versions.
    """
    if not name.startswith("metrics."):
        *sections, last = name.split(".")
        return [sections], last
    metric, _, last = name.removeprefix("metrics.").replace('"', "").rpartition(".")
    if not metric:
        return [["metrics"]], last
    versions = [known for known in table["metrics"] if known == metric or known.startswith(f"{metric}.")]
    return [["metrics", known] for known in versions or [metric]], last


def identity(config: Config) -> dict[str, Any]:
    """All that decides the results: not names, not folders, not how many samples are asked for."""
    table = config.to_dict()
    del table["name"], table["part_size"]
    for section, entries in (("data", ("root", "limit", "largest", *PATHS)), ("model", ("name", "weights"))):
        for entry in entries:
            table[section].pop(entry, None)
    # A model is identified by its weights and its name; a file by its name, whatever its folder.
    table["model"]["name"] = Path(config.model.name).name if ".py:" in config.model.name else config.model.name
    return table


def without_folders(config: Config) -> dict[str, Any]:
    """The config as plain data to show to others: of paths only the last name, as `…/ecssd`."""
    table = config.to_dict()

    def shortened(text: str) -> str:
        path = PurePath(text)
        return f"…/{path.name}" if path.is_absolute() and path.name else text

    for section, entries in (("data", ("root", *PATHS)), ("model", ("name", "weights"))):
        known = table[section]
        known.update({entry: shortened(known[entry]) for entry in entries if isinstance(known.get(entry), str)})
    return table


def decisive(config: Config) -> dict[str, Any]:
    """All that decides the results and how they are divided into parts."""
    return {**identity(config), "part_size": config.part_size}


# -- TOML


def read_toml(text: str) -> dict[str, Any]:
    """A TOML document as plain data."""
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return dict(toml.loads(text))
    except toml.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}.") from None


def write_toml(table: Mapping[str, Any]) -> str:
    """Plain data (text, numbers, booleans, lists, tables) as a TOML document; None is left out."""
    with needed("configs are written with tomli-w", "experiments"):
        import tomli_w

    def entries(table: Mapping[str, Any]) -> dict[str, Any]:
        return {k: entries(v) if isinstance(v, Mapping) else v for k, v in table.items() if v is not None}

    try:
        return tomli_w.dumps(entries(table))
    except TypeError as error:
        raise ConfigError(f"a config holds text, numbers, booleans, lists and tables only ({error}).") from None


# -- plain data and back


def _with_options(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    """A dataclass from a table that mixes its fields with its options."""
    known = [f.name for f in fields(kind) if f.name != "options"]
    values = _tuples({k: v for k, v in table.items() if k in known})
    try:
        return kind(**values, options={k: v for k, v in table.items() if k not in known})
    except TypeError as error:
        missing = re.search(r"'(\w+)'", str(error))
        raise ConfigError(f"{where} needs the entry `{missing[1] if missing else error}`.") from None


def _flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Mapping[str, Any]]:
    """Metrics by name: [metrics.local_lipschitz.max] stands for [metrics."local_lipschitz.max"]."""
    metrics: dict[str, Mapping[str, Any]] = {}
    for name, entry in table.items():
        if not isinstance(entry, Mapping):
            raise ConfigError(f"metrics.{prefix}{name} is a table of options, not {entry!r}.")
        below = {k: v for k, v in entry.items() if isinstance(v, Mapping)}
        options = {k: v for k, v in entry.items() if k not in below}
        if options or not below:
            metrics[prefix + name] = options
        metrics |= _flattened(below, f"{prefix}{name}.")
    return metrics


def _tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
