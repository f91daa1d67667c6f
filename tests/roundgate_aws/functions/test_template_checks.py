"""`scripts/template` finds what it is for: each mistake below is made in the template, and
named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from roundgate_aws.parts import assembled, dump
from tests.support.dynamodb import ROOT
from tests.support.expanded import run

SOURCE = (ROOT / "template.yaml").read_text("utf-8")


def found(tmp_path: Path, *change: str) -> str:
    """What the checks say of the template with a text replaced."""
    before, after = change
    assert SOURCE.count(before) == 1, before
    path = tmp_path / "template.yaml"
    path.write_text(SOURCE.replace(before, after))
    ran = run("check", "--quick", str(path))
    assert ran.returncode == 1, ran.stdout
    return ran.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            (
                "      Name: !Ref AWS::StackName\n      ProtocolType: HTTP\n",
                "      Name: !Sub '${AWS::StackName}-${GatewayFunction}'\n      ProtocolType: HTTP\n",
            ),
            r"E3004 Circular Dependencies for resource Api",
            id="a circle",
        ),
        pytest.param(
            (
                '      PayloadFormatVersion: "2.0"',
                '      PayloadFormatVersion: "2.0"\n      Payload: x',
            ),
            r"E3002",
            id="a property that there is not",
        ),
        pytest.param(
            (
                "    Condition: HasDomain\n    Description: What a record",
                "    Description: What a record",
            ),
            r"W1001 .*Domain",
            id="an output of what is not there",
        ),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    assert re.search(said, found(tmp_path, *change))


@pytest.mark.parametrize("api", ["http", "rest"])
def test_the_whole_template_has_none(tmp_path: Path, api: str) -> None:
    path = tmp_path / f"{api}.yaml"
    path.write_text(dump(assembled(api)))
    ran = run("check", "--quick", str(path))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(ran.stdout.splitlines()) == 1


def test_the_template_of_the_repository_has_none_and_can_be_sent_in_a_request() -> None:
    ran = run("check", "--quick", "template.yaml")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(SOURCE.encode()) < 40_000, "CloudFormation takes 51,200 bytes"
