"""What people and machines read about the project agrees with the project."""

from __future__ import annotations

import re
import sys

import pytest
import yaml

import plrp
from pages import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == plrp.__version__
    assert citation["preferred-citation"]["url"] in (ROOT / "README.md").read_text("utf-8")


def test_the_workflow_runs_what_the_readme_says() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text("utf-8"))
    commands = {step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step}
    assert commands == {"make test", "make demo"}
    assert "make test" in (ROOT / ".ci/run").read_text("utf-8")


def test_wheels_are_built_for_every_python_that_plrp_takes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    oldest = re.fullmatch(r">=3\.(\d+)", project["project"]["requires-python"])
    assert oldest is not None
    assert project["tool"]["cibuildwheel"]["build"][0] == f"cp3{oldest[1]}-*"
    assert (ROOT / "tools/pure_wheel.py").is_file()
    assert "tools/pure_wheel.py" in (ROOT / ".github/workflows/wheels.yml").read_text("utf-8")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_issue_forms_are_well_formed(form: object) -> None:
    content = yaml.safe_load(form.read_text("utf-8"))  # type: ignore[attr-defined]
    if "body" in content:
        assert {"name", "description"} <= content.keys()
        assert len({entry["id"] for entry in content["body"]}) == len(content["body"])
