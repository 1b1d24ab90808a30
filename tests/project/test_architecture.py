"""The walls of the house: who may import whom, read from the source and not from what runs.

`tools/architecture.py` reads the imports and holds the order of the storeys; what is forbidden stands here.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from pages import ROOT

sys.path.insert(0, str(ROOT / "tools"))
try:
    import architecture
    import sizes
    from architecture import CORE, SOURCE, STOREYS, TABLE, House, Import
finally:
    sys.path.pop(0)

CHOOSES_THE_WALK = "engine.py"  # the one file that may import plrp.fast
# Methods that reach upward, each within a function and through the table of contents: `import plrp; plrp.explain`.
UPWARD = {("tape/trace.py", f"Trace.{method}") for method in ("explain", "sweep", "rows")}
UPWARD |= {
    ("explanation.py", "Explanation.save"),
    ("explanation.py", "Explanation.plot"),
    ("explanation.py", "Explanation.page"),
    ("explanation.py", "Explanation.test"),
    ("explanation.py", "Explanation._repr_mimebundle_"),
    ("request.py", "Request.bound"),
    ("text/text_explanation.py", "_Coloured.save"),
}
UPWARD |= {("explanation.py", "Explanation.circuit"), ("circuits.py", "Circuit.plot")}
# Words that do not say what is in a file.
VAGUE = set("stored saved found opened measured held beside explained exemplary contents utils helpers manager".split())
# What the core uses where it is installed, imported in the function that does.
EXTRAS = {("circuits.py", "networkx"), ("progress.py", "rich")}
NEVER = {"zennit", "captum", "quantus", "lxt"}  # oracles and peers: tests and benchmarks only
IMPORTS_FAST = re.compile(r"^(from|import) plrp\.fast\b|^from plrp import .*\bfast\b", re.MULTILINE)
WITHOUT_FAST = ["tests/test_gain_oracle.py", "tests/test_ledger.py", "tests/tape/test_trace.py"]


@pytest.fixture(scope="module")
def house() -> House:
    return House()


def listed(rule: str, found: list[Import]) -> str:
    return "\n  ".join([rule, *(str(one) for one in found)])


# --- the walls --------------------------------------------------------------------------------------------------------


def test_rooms_do_not_import_each_other_in_a_ring(house: House) -> None:
    ring = architecture.cycle(house.edges())
    proof = [
        next(i for i in house.imports if (i.source, i.target) == edge and not (i.by_table and i.scope))
        for edge in pairwise(ring)
    ]
    assert not ring, listed(f"{' → '.join(ring)}: no cycles between rooms, function-level imports included.", proof)


def test_every_room_has_its_storey(house: House) -> None:
    unlisted = [room for room in house.rooms if room not in house.storeys]
    assert not unlisted, f"{unlisted}: put rooms that import others into STOREYS of tools/architecture.py."


def test_rooms_import_downwards_only(house: House) -> None:
    rising = [i for i in house.imports if i.inside and i.source != TABLE and house.rises(i)]
    wrong = [i for i in rising if not (i.by_table and (i.file, i.scope) in UPWARD)]
    order = " < ".join("/".join(storey) for storey in STOREYS)
    assert not wrong, listed(f"Rooms import downwards only: {order}.", wrong)
    assert {(i.file, i.scope) for i in rising} >= UPWARD, "UPWARD lists a place that no longer reaches upward."


def test_only_the_place_that_chooses_the_walk_imports_fast(house: House) -> None:
    wrong = [i for i in house.imports if i.target == "fast" and i.source != "fast" and i.file != CHOOSES_THE_WALK]
    assert not wrong, listed(f"Only {CHOOSES_THE_WALK} imports plrp.fast, which can be deleted.", wrong)


def test_the_core_needs_torch_and_numpy_only(house: House) -> None:
    edges = house.edges()
    core, size = set(CORE) | {"fast"}, 0
    while size != len(core):  # and all they import
        size = len(core)
        core |= {target for room in core for target in edges.get(room, ())}
    allowed = {"torch", "numpy"} | sys.stdlib_module_names
    wrong = [i for i in house.imports if not i.inside and i.source in core and i.target not in allowed]
    wrong = [i for i in wrong if not (i.scope and (i.file, i.target) in EXTRAS)]
    assert not wrong, listed("The core imports torch and numpy only.", wrong)


def test_oracles_and_peers_are_imported_by_tests_only(house: House) -> None:
    wrong = [i for i in house.imports if i.target in NEVER]
    assert not wrong, listed("src/ never imports the libraries it is compared with.", wrong)


# --- names ------------------------------------------------------------------------------------------------------------


def test_no_module_has_the_name_of_what_its_package_exports(house: House) -> None:
    wrong = []
    for module, file in house.modules.items():
        if not file.endswith("__init__.py"):
            continue
        froms = [node for node in ast.walk(house.trees[file]) if isinstance(node, ast.ImportFrom)]
        exported = {alias.asname or alias.name for node in froms if node.module for alias in node.names}
        defined = {node.name for node in house.trees[file].body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        modules = {other.rpartition(".")[2] for other in house.modules if other.rpartition(".")[0] == module}
        wrong += [f"{module}.{name}" for name in sorted(modules & (exported | defined))]
    assert not wrong, f"{wrong} name both a module and what its package exports: rename the module."


def test_every_file_name_occurs_once_and_says_what_is_in_the_file(house: House) -> None:
    places = defaultdict(list)
    for file in house.files:
        if not file.endswith(("__init__.py", "__main__.py")):
            places[file.rpartition("/")[2].removesuffix(".py")].append(file)
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice, f"file names that occur twice: {twice}"
    vague = [where for name, where in places.items() if VAGUE & set(name.split("_"))]
    assert not vague, f"file names that do not say what is in the file: {vague}"


def test_no_two_classes_have_one_name(house: House) -> None:
    places = defaultdict(list)
    for file, tree in house.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"src/plrp/{file}:{node.lineno}")
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice, "Classes that exist twice under one name:\n  " + "\n  ".join(
        f"{name}: {', '.join(where)}" for name, where in sorted(twice.items())
    )


# --- sizes ------------------------------------------------------------------------------------------------------------


LARGE = {"Explanation", "Trace"}  # what users hold: every method is part of the public interface


def test_functions_and_classes_stay_small(house: House) -> None:
    wrong = [
        line
        for file in house.trees
        for line in sizes.too_large((SOURCE / file).read_text(encoding="utf-8"), file)
        if line.split()[1] not in LARGE
    ]
    assert not wrong, "\n  ".join(["Too long or too many methods (tools/sizes.py):", *wrong])


# --- speed can be deleted ---------------------------------------------------------------------------------------------


def test_fast_is_out_of_reach(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--without-fast"):
        pytest.skip("this run may use plrp.fast")
    with pytest.raises(ModuleNotFoundError, match=r"plrp\.fast"):
        importlib.import_module("plrp.fast")


@pytest.mark.slow
def test_the_core_works_without_fast(pytestconfig: pytest.Config) -> None:
    """A short selection; `make test-slow` runs all tests of the core so."""
    if pytestconfig.getoption("--without-fast"):
        pytest.skip("the tests around this one show it")
    selection = [f"{Path(__file__)}::{test_fast_is_out_of_reach.__name__}", *WITHOUT_FAST]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-m", "not slow"]
    run = subprocess.run([*command, "--without-fast", *selection], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    assert "passed" in run.stdout


def test_tests_of_fast_code_stand_in_a_folder_of_their_own() -> None:
    """The others run without `plrp.fast` too; the wheel's look for the compiled loops."""
    files = [file for file in (ROOT / "tests").rglob("*.py") if file.parent.name != "fast"]
    found = {file.name for file in files if IMPORTS_FAST.search(file.read_text(encoding="utf-8"))}
    looking = {"conftest.py", "test_architecture.py", "test_wheel.py"}
    assert found <= looking, f"{sorted(found)} import plrp.fast: move such tests to tests/fast."


# --- the picture ------------------------------------------------------------------------------------------------------


def test_the_picture_is_that_of_the_source(house: House) -> None:
    drawn = architecture.PICTURE.read_text(encoding="utf-8")
    assert architecture.draw(house) == drawn, "The picture is out of date: python tools/architecture.py"
    boxes = re.findall(r'class="box" x="([-\d.]+)" y="[-\d.]+" width="([\d.]+)"', drawn)
    assert len(boxes) == len(house.rooms)
    assert all(float(x) > 0 and float(x) + float(width) < architecture.WIDTH for x, width in boxes), "widen WIDTH"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/decisions.md", "docs/speed.md"])
def test_files_that_pages_name_are_there(page: str) -> None:
    named = re.findall(r"[` ]([\w/]+\.(?:py|c|toml|txt))\b", (ROOT / page).read_text(encoding="utf-8"))
    homes = (ROOT, ROOT / "src" / "plrp")
    missing = {name for name in named if not any((home / name).exists() for home in homes)}
    assert not missing, f"{page} names files that are not there: {sorted(missing)}"
    assert named


# --- the reader of imports itself -------------------------------------------------------------------------------------

FILES = {
    "__init__.py": "from .upper import explain",
    "leaf.py": "",
    "tape/__init__.py": "",
    "tape/trace.py": """
        from typing import TYPE_CHECKING
        import numpy.linalg
        from .. import leaf
        if TYPE_CHECKING:
            import plrp
        class Trace:
            def explain(self) -> plrp.explain:
                from plrp import explain
                return plrp.explain(plrp.tape.trace)
        """,
    "upper.py": """
        from .tape.trace import Trace
        def explain():
            import plrp.leaf as other
            return ["-m", "plrp.tape.trace", f"plrp.tape.{other}", "plrp.nothing"]
        """,
}


def test_every_way_to_import_is_seen(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    found = {(i.file, i.line, i.scope, i.module, i.by_table) for i in House(tmp_path).imports}
    assert found == {
        ("__init__.py", 1, "", "plrp.upper", False),
        ("tape/trace.py", 2, "", "typing", False),
        ("tape/trace.py", 3, "", "numpy", False),
        ("tape/trace.py", 4, "", "plrp.leaf", False),
        ("tape/trace.py", 8, "Trace.explain", "plrp.upper", True),
        ("tape/trace.py", 9, "Trace.explain", "plrp.upper", True),
        ("tape/trace.py", 10, "Trace.explain", "plrp.upper", True),
        ("tape/trace.py", 10, "Trace.explain", "plrp.tape.trace", True),
        ("upper.py", 2, "", "plrp.tape.trace", False),
        ("upper.py", 4, "explain", "plrp.leaf", False),
        ("upper.py", 5, "explain", "plrp.tape", False),
        ("upper.py", 5, "explain", "plrp.tape.trace", False),
    }


def test_a_ring_is_found() -> None:
    assert architecture.cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert architecture.cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert architecture.reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
    by_fast = {"a": {"fast", "c"}, "fast": {"c"}, "c": set()}
    assert architecture.reduced(by_fast) == by_fast
