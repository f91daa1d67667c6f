"""`scripts/template` finds what it is for: each mistake below is made in the template, and
named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from infra.template.graph import Circular, Settled, order
from tests.support.dynamodb import ROOT
from tests.support.expanded import expanded, run

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
                "      Name: !Ref AWS::StackName\n",
                "      Name: !Sub '${AWS::StackName}-${GatewayFunction}'\n",
            ),
            r"no order of creation: .*(Api|GatewayFunction) waits for",
            id="a circle",
        ),
        pytest.param(
            (
                "      DeletionProtectionEnabled:",
                "      TableName: !Ref StageName\n      DeletionProtectionEnabled:",
            ),
            r"has a name of its own: Table: TableName(.|\n)*StageName=prod replaces ApiStage, Table",
            id="a table that a parameter replaces",
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
                "Properties: {FunctionName: !Ref GatewayFunction, Description: !Ref Release}",
                "Properties: {FunctionName: !Ref GatewayFunction, Description: gateway}",
            ),
            r"PublicUrl=https://mcp.example.com with another Release publishes no version",
            id="a version that stays",
        ),
        pytest.param(
            (
                "      Description: !If [HasSnapStart, !Ref Release, !Ref AWS::NoValue]  #",
                "      #",
            ),
            r"AlarmTopicArn=\S+ with another Release publishes a version of a function as it was",
            id="a version of nothing new",
        ),
        pytest.param(
            (
                "    Condition: HasDomain\n    Description: What a record",
                "    Description: What a record",
            ),
            r"E6005|Domain' is referred to and not there",
            id="an output of what is not there",
        ),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    assert re.search(said, found(tmp_path, *change))


def test_the_template_has_none() -> None:
    ran = run("check", "--quick")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(ran.stdout.splitlines()) == 6


# The graph, without the tools


def resource(**properties: Any) -> dict[str, Any]:
    return {"Type": "AWS::SQS::Queue", "Properties": properties}


def test_each_resource_comes_after_what_it_names_in_any_way() -> None:
    resources = {
        "A": resource(x={"Ref": "B"}),
        "B": resource(x={"Fn::Sub": "${C.Arn}/y"}),
        "C": {**resource(), "DependsOn": ["D"]},
        "D": resource(x={"Fn::Sub": ["${E}${Own}", {"Own": {"Fn::GetAtt": ["F", "Arn"]}}]}),
        "E": resource(),
        "F": resource(),
    }
    assert order(resources) == ["E", "F", "D", "C", "B", "A"]


def test_resources_that_wait_for_each_other_are_named() -> None:
    resources = {
        "A": resource(x={"Ref": "B"}),
        "B": resource(x={"Ref": "C"}),
        "C": resource(x={"Ref": "B"}),
    }
    with pytest.raises(Circular, match="B waits for C waits for B"):
        order(resources)


def test_what_is_named_and_not_there_is_told() -> None:
    with pytest.raises(KeyError, match="Nowhere"):
        order({"A": resource(x={"Ref": "Nowhere"})})


def test_the_queue_comes_before_the_functions_that_are_told_of_it() -> None:
    names = order(Settled(expanded()).resources)
    assert names.index("Queue") < names.index("GatewayFunction") < names.index("ApiPermission")
