"""Settings are declared once: Python, the command line and stored runs read the same fields."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pytest
from torch import nn

from plrp.cli import build_parser
from plrp.cli.arguments import settings_of
from plrp.genomics import explain_sequences
from plrp.genomics.sequence_settings import FileSettings, MotifSettings, SequenceSettings, VariantSettings
from plrp.settings import Settings, WrongSetting, count, options, setting
from plrp.vision.photograph_settings import PhotographSettings

COMMANDS = {
    "genomics explain s.fa --model m.pt --out out": FileSettings,
    "genomics variants v.vcf --genome g.fa --width 20 --model m.pt --out out": VariantSettings,
    "genomics motifs run --out out": MotifSettings,
    "explain photo.jpg": PhotographSettings,
}


@pytest.mark.parametrize(("command", "kind"), COMMANDS.items())
def test_a_command_without_options_has_the_defaults_of_python(command: str, kind: type[Settings]) -> None:
    parsed = build_parser().parse_args(command.split())
    missing = [name for name in options(kind) if not hasattr(parsed, name)]
    assert not missing
    required = {"width": 20} if kind is VariantSettings else {}
    expected, actual = kind(**required), settings_of(kind, parsed)
    different = {one.name for one in fields(kind) if getattr(expected, one.name) != getattr(actual, one.name)}
    assert different <= {"match"}  # the command matches short runs only


def test_an_option_sets_the_field_of_its_name() -> None:
    words = "genomics explain s.fa --model m.pt --out o --part-size 7 --largest-input 2GB --hypothetical --no-match"
    settings = settings_of(FileSettings, build_parser().parse_args(words.split()))
    assert settings == FileSettings(part_size=7, largest=2_000_000_000, hypothetical=True, match=False)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("part_size", 0, "part_size=0: a whole number from 1"),
        ("method", "lime", "method='lime': choose 'lrp', 'ism'"),
        ("target", "outputs[", "target='outputs\\["),
        ("largest", "much", "write bytes such as 8GB"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(field: str, value: object, message: str) -> None:
    with pytest.raises(WrongSetting, match=message):
        FileSettings(**{field: value})
    with pytest.raises(TypeError, match="part_sizes"):
        FileSettings(part_sizes=3)


def test_stored_settings_are_those_that_decide_results() -> None:
    assert FileSettings(batch_size=3, device="cpu", match=False, largest=5).stored() == FileSettings().stored()
    assert FileSettings(pooling="sum").stored() != FileSettings().stored()


def test_settings_may_be_given_as_an_object_as_keywords_or_as_both() -> None:
    model = nn.Sequential(nn.Conv1d(4, 3, 5), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)).eval()
    letters = ["ACGTACGTAC", "TTTTGCCCCA"]
    by_keyword = explain_sequences(model, letters, target=1, composite="epsilon")
    by_object = explain_sequences(model, letters, SequenceSettings(target=1, composite="epsilon"))
    by_both = explain_sequences(model, letters, SequenceSettings(target=0, composite="epsilon"), target=1)
    np.testing.assert_array_equal(by_keyword.relevance, by_object.relevance)
    np.testing.assert_array_equal(by_keyword.relevance, by_both.relevance)


def test_a_new_setting_is_one_line() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Own(FileSettings):
        steps: int = setting(4, "steps of the work", check=count, stored=True)

    assert Own(steps="5").stored() == {**FileSettings().stored(), "steps": 5}  # type: ignore[arg-type]
