"""Configs: what they refuse, that they survive TOML, and that a part's name tells what decides it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plrp.cli import studies as experiments_cli
from plrp.experiments import PRESETS, VARIANTS, Config, ConfigError, Data, Maps, Metric, Model, preset
from plrp.experiments.config import decisive, read_toml, write_toml
from plrp.experiments.measure import check_metrics
from plrp.runs import run

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)
SCALAR = TEXT | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False)
TABLE = st.recursive(
    st.dictionaries(TEXT, SCALAR | st.lists(SCALAR, max_size=3), max_size=4),
    lambda below: st.dictionaries(TEXT, below | SCALAR, max_size=3),
    max_leaves=6,
)
SHARES = st.lists(st.floats(0, 0.99), min_size=1, max_size=6, unique=True).map(tuple)


def differences(old: Config, new: Config) -> list[str]:
    both = run.differences(decisive(old), decisive(new))
    return [run.in_words(name, *values, {}) for name, values in both.items()]


@st.composite
def configs(draw: st.DrawFn) -> Config:
    shares = draw(SHARES)
    chosen = draw(st.lists(st.sampled_from(VARIANTS), min_size=1, unique=True).map(tuple))
    some = st.none() | st.lists(st.sampled_from(shares), unique=True, min_size=1).map(tuple)
    number = st.none() | st.integers(1, 50)
    return Config(
        data=Data("arrays", "/data.npz", limit=draw(number), count=draw(st.integers(1, 40)), digest=draw(TEXT)),
        model=Model("net.py:build", weights=draw(st.none() | TEXT), digest=draw(TEXT)),
        name=draw(TEXT),
        variants=chosen,
        p=shares,
        sparsity_gain=draw(st.floats(0.1, 5)),
        metrics=(
            Metric("gini"),
            Metric("local_lipschitz.max", {"normalise": "max", "samples": 3}, p=draw(some), limit=draw(number)),
        ),
        maps=draw(st.none() | st.builds(Maps, limit=number, p=some)),
        seed=draw(st.integers(0, 99)),
        part_size=draw(st.integers(1, 9)),
        batch_size=draw(st.integers(1, 9)),
    )


def test_an_empty_option_is_no_option() -> None:
    data = Data("arrays", "/data.npz", count=4, digest="made")
    config = Config(data, Model("net.py:build"), metrics=(Metric("local_lipschitz", {"normalise": None}),))
    again = Config.from_dict(read_toml(config.to_toml()))
    assert again.key(0) == config.key(0)  # a run finds its parts again


@given(table=TABLE)
def test_our_toml_is_toml(table: dict) -> None:
    assert read_toml(write_toml(table)) == table


@given(config=configs())
def test_a_config_survives_its_file(config: Config) -> None:
    again = Config.from_dict(read_toml(config.to_toml()))
    assert again == config
    assert differences(config, again) == []


@given(config=configs())
def test_parts_hold_every_sample_once(config: Config) -> None:
    samples = [sample for index in range(config.parts) for sample in config.part(index)]
    assert samples == list(range(config.samples))
    assert all(len(config.part(index)) <= config.part_size for index in range(config.parts))
    assert len({config.key(index) for index in range(config.parts)}) == config.parts


@given(config=configs(), seed=st.integers(0, 99), name=TEXT)
@settings(max_examples=50)
def test_a_part_is_named_by_what_decides_it(config: Config, seed: int, name: str) -> None:
    elsewhere = replace(config, name=name, data=replace(config.data, root="/moved/data.npz"))
    assert elsewhere.key(0) == config.key(0)
    other = replace(config, seed=seed)
    assert (other.key(0) == config.key(0)) == (seed == config.seed) == (not differences(config, other))


@given(config=configs())
def test_lrp_stands_once_and_no_variant_at_zero(config: Config) -> None:
    cells = config.cells
    assert len(set(cells)) == len(cells)
    assert [cell for cell in cells if cell[1] == 0] == [("LRP", 0.0)] * ("LRP" in config.variants or 0 in config.p)
    for variant, p in cells:
        pruning = config.pruning(variant, p)
        assert (pruning is None) == (variant == "LRP")
        if pruning is not None:
            assert (pruning.p, pruning.redistribution) == (p, variant.split("+")[0])
            assert pruning.sparsity_gain == (config.sparsity_gain if "gain" in variant else None)


TINY = {"data": {"kind": "arrays", "root": "d.npz"}, "model": {"name": "net.py:build"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "no entry 'colour'"),
        ({"data": {"kind": "arrays", "root": "d", "mask": "m"}}, "no entry 'mask'"),
        ({"data": {"kind": "films", "root": "d"}}, "data.kind is one of"),
        ({"data": {"kind": "ecssd"}}, "needs `root`"),
        ({"data": {"root": "d"}}, "data needs the entry `kind`"),
        ({"model": {}}, "model needs the entry `name`"),
        ({"model": {"name": "a", "layers": 3}}, "no entry 'layers'"),
        ({"p": [0.1, 1.0]}, "0 ≤ p < 1"),
        ({"p": [0.1, 0.1]}, "twice"),
        ({"variants": ["lambda", "mu"]}, "there is no 'mu'"),
        ({"composite": "epsilon-delta"}, "No composite named"),
        ({"metrics": {}}, "measures nothing"),
        ({"metrics": {"beauty": {}}}, "unknown metric 'beauty'"),
        ({"metrics": {"gini": 3}}, "is a table"),
        ({"metrics": {"gini": {"p": [0.33]}}}, "0.33, which is not among the sweep's p"),
        ({"metrics": {"gini": {"limit": 0}}}, "a whole number from 1"),
        ({"sparsity_gain": -1}, "sparsity_gain"),
        ({"measure": "weight"}, "measure"),
        ({"batch_size": 0}, "batch_size"),
        ({"seed": -1}, "seed"),
        ({"maps": {"colour": 1}}, "maps has no entry"),
        ({"maps": {"limit": "a"}}, "maps.limit is a whole number from 1"),
        ({"maps": {"p": 0.1}}, "maps.p is a list of shares"),
        ({"metrics": {"gini": {"p": 0.1}}}, "metrics.gini.p is a list of shares"),
        ({"p": 0.1}, "p is a list of shares"),
        ({"variants": "lambda"}, "variants is a list"),
    ],
)
def test_nonsense_is_refused_with_the_entry_named(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        Config.from_dict({**TINY, **change})


def test_an_option_no_metric_has_is_refused_before_anything_is_done() -> None:
    check_metrics(Config.from_dict({**TINY, "metrics": {"local_lipschitz": {"radius": 0.2}, "score_kept": {}}}))
    with pytest.raises(ConfigError, match=r"metrics.local_lipschitz has no option 'raduis'; it has radius"):
        check_metrics(Config.from_dict({**TINY, "metrics": {"local_lipschitz": {"raduis": 0.2}}}))
    with pytest.raises(ConfigError, match="preset"):
        check_metrics(Config.from_dict({**TINY, "metrics": {"pixel_flipping": {"preset": "quantus"}}}))


def test_relative_paths_are_taken_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "w.pt").touch()
    data = '[data]\nkind = "photographs"\nroot = "pictures"\nmasks = "m"\n'
    document = f'{data}[model]\nname = "net.py:build"\nweights = "w.pt"\n'
    (tmp_path / "run.toml").write_text(document)
    config = Config.read(tmp_path / "run.toml")
    assert config.data.root == str(tmp_path / "pictures")
    assert config.data.options["masks"] == str(tmp_path / "m")
    assert config.model.name == f"{tmp_path / 'net.py'}:build"
    assert config.model.weights == str(tmp_path / "w.pt")
    named = config.changed(**{"model.name": "torchvision:vgg16", "model.weights": "IMAGENET1K_V1"}).at(tmp_path)
    assert (named.model.name, named.model.weights) == ("torchvision:vgg16", "IMAGENET1K_V1")


def test_files_that_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        Config.read(tmp_path / "none.toml")
    for content in (b"p = [0.1", b"\xff\x82"):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=r"bad\.toml: not TOML"):
            Config.read(tmp_path / "bad.toml")


def test_what_differs_is_said_entry_by_entry() -> None:
    old = Config.from_dict({**TINY, "metrics": {"gini": {}, "local_lipschitz": {"samples": 3}}})
    new = old.changed(**{"p": [0, 0.5], "metrics.local_lipschitz.samples": 4, "data.limit": 3, "part_size": 2})
    said = differences(old, new)
    assert any(text.startswith("p was [0.0, 0.05") for text in said)
    assert "metrics.local_lipschitz.samples was 3 and is 4" in said
    assert "part_size was 8 and is 2" in said
    assert len(said) == 3  # and not the limit: more samples may be asked for
    without = Config.from_dict({**TINY, "metrics": {"gini": {}}})
    assert "metrics.local_lipschitz.samples was 3 and is absent" in differences(old, without)


def test_entries_are_changed_by_their_dotted_names() -> None:
    config = preset("ecssd-resnet50", root="/ecssd")
    changed = config.changed(**{"metrics.local_lipschitz.max.samples": 2, "data.limit": 4, "metrics.hoyer": {}})
    by_name = {metric.name: metric for metric in changed.metrics}
    assert by_name["local_lipschitz.max"].options["samples"] == 2
    assert by_name["local_lipschitz"].options["samples"] == 20
    assert "hoyer" in by_name
    assert changed.data.limit == 4
    assert config.changed(**{'metrics."local_lipschitz.max".samples': 2}) == config.changed(
        **{"metrics.local_lipschitz.max.samples": 2}
    )
    with pytest.raises(ConfigError, match="no entry"):
        config.changed(**{"data.limits": 4})


def test_presets_are_the_papers() -> None:
    assert tuple(PRESETS) == experiments_cli.PRESETS  # written twice, so that `plrp --help` imports nothing
    for name in PRESETS:
        config = preset(name, root="/data")
        check_metrics(config)
        assert config.name == name
        assert config.p == tuple(round(0.05 * k, 2) for k in range(20))
        assert len(config.cells) == 1 + 4 * 19
        assert Config.from_dict(read_toml(config.to_toml())) == config
    assert preset("imagenet-vgg16", root="/data").data.options["sample"] == 3900
    assert {m.limit for m in preset("ecssd-vgg16", root="/d").metrics if m.function == "local_lipschitz"} == {10}
    assert "local_lipschitz" not in {m.name for m in preset("genomics-4").metrics}
    assert preset("genomics-32", limit=7).data.limit == 7
    assert preset("ecssd-vgg16", root="/d", weights="w.pth").model.weights == "w.pth"
    with pytest.raises(ConfigError, match="nearest: ecssd-vgg16"):
        preset("ecssd-vgg", root="/d")
    with pytest.raises(ConfigError, match="needs --root"):
        preset("ecssd-vgg16")


def test_an_entry_of_a_metric_is_set_for_all_its_versions() -> None:
    both = {"pixel_flipping": {}, "pixel_flipping.probability": {"score_as": "probability"}, "gini": {}}
    config = Config.from_dict({**TINY, "metrics": both})
    changed = {metric.name: metric.limit for metric in config.changed(**{"metrics.pixel_flipping.limit": 3}).metrics}
    assert changed == {"pixel_flipping": 3, "pixel_flipping.probability": 3, "gini": None}
    one = config.changed(**{'metrics."pixel_flipping.probability".limit': 2}).metrics
    assert {metric.name: metric.limit for metric in one} == {**dict.fromkeys(both), "pixel_flipping.probability": 2}
