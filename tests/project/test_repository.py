"""What a stranger finds in the repository: pinned tools, hooks, workflows, versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement

import celery_redislock
from tests.support.toml import PROJECT
from tests.support.workers import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))


def canonical(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def recipe(target: str) -> str:
    """What the Makefile runs for a target."""
    (found,) = re.findall(rf"^{re.escape(target)}:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    return found


# -- the versions of the tools ----------------------------------------------------------------


def wanted() -> list[Requirement]:
    """What the package, its extras and all groups want."""
    lists = [
        PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"].values(),
        *PROJECT["dependency-groups"].values(),
    ]
    return [Requirement(each) for some in lists for each in some if isinstance(each, str)]


@pytest.mark.parametrize("python", PYTHONS)
def test_each_tool_has_one_pinned_version_and_the_project_allows_it(python):
    environment = {"python_version": python, "python_full_version": f"{python}.9"}
    pins: dict[str, str] = {}
    for line in PINS.splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            if applies(pin.marker, environment):
                assert canonical(pin.name) not in pins, line
                pins[canonical(pin.name)] = str(pin.specifier).removeprefix("==")
    for each in wanted():
        if applies(each.marker, environment):
            pinned = pins[canonical(each.name)]
            assert each.specifier.contains(pinned, prereleases=True), f"make lock: {each}, {pinned}"


def applies(marker: Marker | None, environment: dict[str, str]) -> bool:
    return marker is None or marker.evaluate(environment)


def test_the_pins_name_no_index_and_no_place():
    lines = [line for line in PINS.splitlines() if not line.startswith("#")]
    assert [line for line in lines if re.search(r"^-|://|/| @ ", line)] == []


def test_every_group_is_pinned_and_every_environment_takes_the_pins_but_the_lowest():
    (groups,) = re.findall(r"^GROUPS := (.*)$", MAKEFILE, re.M)
    assert {*groups.split()} == {*PROJECT["dependency-groups"]}
    installs = re.findall(r"^\t(\S+/bin/pip install .*--group.*)$", MAKEFILE, re.M)
    unpinned = [line for line in installs if not line.endswith("$(LOCKED)")]
    assert len(installs) > 5
    assert [line.split("/")[0] for line in unpinned] == [".venv-lowest"]


def test_pre_commit_runs_the_tools_of_make_lint_in_their_versions():
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    (repository,) = yaml.safe_load(text)["repos"]
    assert repository["repo"] == "local"
    lint = recipe("lint")
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        program, command = hook["entry"].split()[0], hook["id"].split("-")
        # The environment of `make lint`; a command such as `ruff check` as it is there.
        assert re.search(rf"^\t{' '.join([re.escape(program), *command[1:]])}\b", lint, re.M), hook
    assert {hook["id"] for hook in repository["hooks"]} == {"ruff-check", "ruff-format", "mypy"}


# -- the workflows ----------------------------------------------------------------------------


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_the_makefile_and_nothing_else(workflow):
    targets = {*re.findall(r"^([a-z-]+):", MAKEFILE, re.M)}
    for step in steps(workflow):
        if "run" in step:
            command = re.fullmatch(r"make ([a-z-]+)( PYTHON=python3)?", step["run"])
            assert command, step
            assert command[1] in targets, step


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_action_is_pinned_and_says_its_version(workflow):
    uses = re.findall(r"uses: (.*)$", workflow.read_text(encoding="utf-8"), re.M)
    assert len(uses) > 0
    pinned = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    assert [each for each in uses if not pinned.fullmatch(each)] == []


def test_every_supported_python_is_tested():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == PYTHONS
    page = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    assert f"| Python | {PYTHONS[0]} to {PYTHONS[-1]} |" in page


# -- the version ------------------------------------------------------------------------------


def test_the_changelog_begins_with_this_version():
    heading = re.search(r"^## (.*)$", CHANGES, re.M)
    assert heading
    dated = rf"{re.escape(celery_redislock.__version__)} \((20\d\d-\d\d-\d\d|not released yet)\)"
    assert re.fullmatch(dated, heading[1])
