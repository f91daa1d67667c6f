"""The workflow that builds the image: valid, and pushing to ghcr.io on tags only. All are pinned."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hosting.schemas import fits
from tests.support.documents import ROOT

FILE = ROOT / ".github/workflows/image.yaml"
TEXT = FILE.read_text()
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
ON_TAGS = "github.ref_type == 'tag'"


def steps() -> dict[str, dict[str, Any]]:
    """The steps by the action that they use."""
    return {
        step["uses"].partition("@")[0]: step
        for step in WORKFLOW["jobs"]["image"]["steps"]
        if "uses" in step
    }


def test_it_fits_the_schema_of_workflows() -> None:
    ran = fits("github-workflows", FILE)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("file", sorted(FILE.parent.iterdir()), ids=lambda file: file.name)
def test_each_action_is_pinned_to_a_commit_with_its_release(file: Path) -> None:
    uses = re.findall(r"uses: (.*)", file.read_text())
    assert uses
    for action in uses:
        assert re.fullmatch(r"[a-z-]+/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_it_runs_for_tags_and_by_hand_and_pushes_for_tags_only() -> None:
    assert WORKFLOW[True] == {
        "push": {"tags": ["v*"]},
        "workflow_dispatch": None,
    }  # `on` of YAML 1.1
    found = steps()
    assert found["docker/build-push-action"]["with"]["push"] == f"${{{{ {ON_TAGS} }}}}"
    for action in ("docker/login-action", "actions/attest-build-provenance"):
        assert found[action]["if"] == ON_TAGS


def test_its_image_is_for_both_architectures_with_sbom_and_provenance() -> None:
    build = steps()["docker/build-push-action"]["with"]
    assert build["platforms"] == "linux/amd64,linux/arm64"
    assert build["sbom"] is True
    assert build["provenance"] == "mode=max"
    attested = steps()["actions/attest-build-provenance"]["with"]
    assert attested["subject-digest"] == "${{ steps.build.outputs.digest }}"


def test_it_may_do_no_more_than_it_needs() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert WORKFLOW["jobs"]["image"]["permissions"] == {
        "contents": "read",
        "packages": "write",
        "id-token": "write",
        "attestations": "write",
    }
    assert steps()["actions/checkout"]["with"]["persist-credentials"] is False
    assert re.findall(r"secrets\.(\w+)", TEXT) == ["GITHUB_TOKEN"]
    for step in WORKFLOW["jobs"]["image"]["steps"]:
        assert "${{" not in step.get("run", ""), "no text of a tag becomes part of a script"


def test_it_names_no_other_registry() -> None:
    assert set(re.findall(r"\b[\w-]+(?:\.[\w-]+)*\.(?:io|com|aws|dev)\b", TEXT)) == {"ghcr.io"}


def test_the_tag_is_compared_with_the_version_of_the_project() -> None:
    (command,) = (
        step["run"]
        for step in WORKFLOW["jobs"]["image"]["steps"]
        if "version.py" in step.get("run", "")
    )
    version = (ROOT / "app/roundgate/version.py").read_text()
    line = re.search(r"^VERSION = .*$", version, re.MULTILINE)
    assert line is not None
    expected = 'grep -qxF "VERSION = \\"${GITHUB_REF_NAME#v}\\"" app/roundgate/version.py'
    assert command == expected
