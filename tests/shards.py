"""The slow tests and the other tiers of `make test-all`, in five shards of about equal time.

The shard of a test depends on its name and on the table of recorded times alone, so it stays the same from run to
run. Files whose slow tests take little time stay whole, with the fixtures that their tests share; larger files are
split by function. The tests of a function without a record, and those of a parametrised function that takes long, are
dealt to the shards in turn.

Only the standard library: `tools/tiers.py` imports this module too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

SHARDS = 5
CORES = 2
LONGEST = 12 * 60  # seconds of a shard on these cores
WHOLE = 180.0  # seconds on one core: a file or a function that takes longer is split
TABLE = Path(__file__).with_name("slow_seconds.tsv")


@dataclass(frozen=True)
class Record:
    """How long the tests of a function, or a tier, took: seconds on one core, and the number of tests."""

    seconds: float
    tests: int


Table = dict[str, Record]  # by the name of a tier, or `tests/file.py::function`


def read(path: Path = TABLE) -> Table:
    """The table of recorded times."""
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return {name: Record(float(seconds), int(tests)) for seconds, tests, name in rows}


def write(table: Table, path: Path) -> None:
    """Write the table, in the order of its names."""
    lines = ["# Seconds on one core, tests, function or tier; `python tools/tiers.py record` writes this file.\n"]
    lines += [f"{record.seconds:.1f}\t{record.tests}\t{name}\n" for name, record in sorted(table.items())]
    path.write_text("".join(lines), encoding="utf-8")


def function(test: str) -> str:
    """The function of a test, without its parameters."""
    return test.partition("[")[0]


class Plan:
    """Which shard runs which function or tier: the longest first, each to the shard with the least to do."""

    def __init__(self, table: Table, shards: int = SHARDS) -> None:
        self.shards = shards
        self.seconds = [0.0] * shards  # of each shard, on one core
        self.placed: dict[str, int] = {}
        units: dict[str, list[str]] = defaultdict(list)
        files: dict[str, float] = defaultdict(float)
        for name, record in table.items():
            files[name.partition("::")[0]] += record.seconds
        for name, record in table.items():
            file = name.partition("::")[0]
            if record.seconds > WHOLE and record.tests > 1:  # dealt, not placed
                self.seconds = [so_far + record.seconds / shards for so_far in self.seconds]
            else:
                units[file if files[file] <= WHOLE else name].append(name)
        times = {unit: sum(table[name].seconds for name in names) for unit, names in units.items()}
        for unit in sorted(units, key=lambda unit: (-times[unit], unit)):
            shard = min(range(shards), key=self.seconds.__getitem__)
            self.seconds[shard] += times[unit]
            self.placed.update(dict.fromkeys(units[unit], shard))

    def assign(self, names: Iterable[str]) -> dict[str, int]:
        """The shard of each test or tier, counted from 1."""
        dealt: Counter[str] = Counter()
        shards = {}
        for name in names:
            unit = function(name)
            shard = self.placed.get(unit)
            if shard is None:
                shard = (crc32(unit.encode()) + dealt[unit]) % self.shards
                dealt[unit] += 1
            shards[name] = shard + 1
        return shards


def shard_of(text: str) -> tuple[int, int]:
    """`2/5` as numbers; anything else is a ValueError with a sentence."""
    number, slash, shards = text.partition("/")
    if not (slash and number.isdigit() and shards.isdigit() and 1 <= int(number) <= int(shards)):
        raise ValueError(f"{text} is no shard: the second of five is written 2/5.")
    return int(number), int(shards)
