"""What another parameter of a deployment replaces, by the resource schemas of CloudFormation:
nothing that has state, and with SnapStart always the published version."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from infra.template.sets import OF_API, each_alone, every_few
from roundgate_aws.parts import assembled
from tests.support.expanded import expanded, expansion, resources, schemas

KEEP_STATE = {
    "AWS::DynamoDB::Table",
    "AWS::SQS::Queue",
    "AWS::SecretsManager::Secret",
    "AWS::ApiGatewayV2::Api",
}
"""Never replaced: rows, messages, keys, and the id in the API's URL."""
OF_KEYS = [
    *("RotationErrorsAlarm", "RotationFunction", "RotationLog", "RotationPermission"),
    *("RotationRole", "StateKeys", "StateKeysRotation"),
]
REPLACED_BY = {
    "StageName": ["ApiStage"],
    "SnapStart": ["ApiPermission"],
    "Rollout": ["ApiPermission"],
    "TableName": ["Table"],  # taken out of the stack, and kept
    "StateKeysArn": OF_KEYS,
}
"""The resources that another value of a parameter replaces; of all others it replaces none."""
RETAINED = ("Retain", "RetainExceptOnCreate")
NAMED = {
    *("AWS::ApiGatewayV2::Stage", "AWS::Lambda::EventInvokeConfig"),  # only within their parent
    *("AWS::ApiGateway::Stage", "AWS::ApiGateway::Method"),
    "AWS::ApiGatewayV2::DomainName",  # a name that the user owns
    "AWS::WAFv2::WebACLAssociation",  # the stage and the user's web ACL
    "AWS::Logs::LogGroup",  # of the API: its prefix is AWS's, and the stack's name is in it
}
"""Types that may have a physical name."""
HTTP = OF_API["http"]


def at(resource: Mapping[str, Any], pointer: str) -> Any:
    """The value at `/properties/A/B`."""
    found: Any = resource.get("Properties", {})
    for step in pointer.split("/")[2:]:
        found = found.get(step) if isinstance(found, dict) else None
    return found


def replaced(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The resources that an update removes or makes anew."""
    gone = before.keys() - after.keys()
    return sorted(name for name in before if name in gone or is_other(before[name], after[name]))


def is_other(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    kind = schemas()[before["Type"]]
    fixed = kind.get("createOnlyProperties", []) + kind.get("conditionalCreateOnlyProperties", [])
    return before["Type"] != after["Type"] or any(
        at(before, one) != at(after, one) for one in fixed
    )


def lost_or_replaced(source: dict[str, Any]) -> Iterator[str]:
    before = resources(source, {})
    for changed, parameters in each_alone(HTTP):
        after = resources(source, parameters)
        found = replaced(before, after)
        if found != REPLACED_BY.get(changed.partition("=")[0], []):
            yield f"{changed} replaces {', '.join(found) or 'nothing'}"
        yield from (
            f"{changed} loses {one}"
            for one in found
            if before[one]["Type"] in KEEP_STATE
            and (one in after or before[one].get("DeletionPolicy") not in RETAINED)
        )


def unreleased(source: dict[str, Any]) -> Iterator[str]:
    """With SnapStart, changes that no published version would have."""
    before = resources(source, {"SnapStart": "on", "Release": "before"})
    if "unknown:GatewayVersion" not in json.dumps(before["GatewayAlias"]):
        yield "the alias stays at its version"
    for changed, parameters in each_alone(HTTP):
        after = resources(source, {**parameters, "SnapStart": "on", "Release": "after"})
        if "GatewayVersion" not in replaced(before, after):
            yield f"{changed} publishes no version"
        if before["GatewayFunction"] == after["GatewayFunction"]:
            yield f"{changed} publishes a version of an unchanged function"


def physical_names(source: dict[str, Any], parameters: Mapping[str, str]) -> Iterator[str]:
    """Resources that neither a replacement nor a second stack could make."""
    for name, one in resources(source, parameters).items():
        for pointer in schemas()[one["Type"]].get("primaryIdentifier", []):
            value = at(one, pointer)
            is_text = isinstance(value, str) and not value.startswith("unknown:")
            if is_text and one["Type"] not in NAMED:
                yield f"{name}: {pointer.rpartition('/')[2]}"


def changed(resource: str, name: str, value: Any) -> dict[str, Any]:
    """The expanded template with another property of a resource; `None` removes it."""
    source = assembled()
    properties = source["Resources"][resource]["Properties"]
    if value is None:
        del properties[name]
    else:
        properties[name] = value
    return expansion(source)


def test_another_parameter_replaces_nothing_with_state() -> None:
    assert list(lost_or_replaced(expanded())) == []


def test_with_snapstart_each_change_is_a_version_that_the_api_calls() -> None:
    assert list(unreleased(expanded())) == []


def test_no_resource_has_a_name_that_a_second_stack_would_need() -> None:
    for api, matters in OF_API.items():
        for one in every_few(matters, 2):
            assert list(physical_names(expanded(api), one)) == []


def test_the_environment_of_a_function_leaves_room_for_variables_of_a_user() -> None:
    for one in resources(expanded(), {}).values():
        variables = at(one, "/properties/Environment/Variables") or {}
        assert len(json.dumps(variables)) < 3_000  # AWS Lambda takes 4,096 bytes


def test_a_table_that_a_parameter_names_is_found() -> None:
    source = changed("Table", "TableName", {"Ref": "StageName"})
    assert list(physical_names(source, {})) == ["Table: TableName"]
    assert "StageName=prod loses Table" in lost_or_replaced(source)


@pytest.mark.parametrize(
    ("resource", "description", "problem"),
    [
        (
            "GatewayVersion",
            "gateway",
            "PublicUrl=https://mcp.example.com publishes no version",
        ),
        (
            "GatewayFunction",
            None,
            "AlarmTopicArn=arn:aws:sns:eu-central-1:123456789012:alarms publishes a version of an unchanged function",
        ),
    ],
    ids=["a version that stays", "a version of nothing new"],
)
def test_a_change_that_the_api_would_not_call_is_found(
    resource: str, description: str | None, problem: str
) -> None:
    assert problem in unreleased(changed(resource, "Description", description))
