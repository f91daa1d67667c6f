"""The parts of the stack's template: what rendering keeps, what a user's overlay changes, and the
template that a user takes over."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from roundgate.errors import ConfigError, UsageError
from roundgate_aws import parts, template
from roundgate_aws.parts import assembled, merged
from roundgate_aws.template import StackTemplate, with_overlay
from tests.support.dynamodb import ROOT
from tests.support.expanded import expanded, resources, schemas

pytest.importorskip("botocore")
from botocore.validate import ParamValidator

BEFORE = Path(__file__).with_name("template-one-file.json")
"""The resources of a stack with the default parameters, from the last template that was one file,
expanded and without references."""
RETENTION = {"DeletionPolicy", "UpdateReplacePolicy"}
INTENDED = {
    "GatewayLog": RETENTION,
    "WorkerLog": RETENTION,
    "RotationLog": RETENTION,
    "StateKeys": RETENTION,
    "Dashboard": {"Properties"},  # compared below
}
"""The attributes that were changed on purpose."""
IDS = {"percent": "value", "growth": "value", "late": "value", "throttles": "value"}


def test_nothing_is_lost_of_the_template_that_was_one_file() -> None:
    before = json.loads(BEFORE.read_text("utf-8"))
    after = resources(expanded(), {})
    assert after.keys() == before.keys()
    for name, resource in before.items():
        ours = {"Condition", *INTENDED.get(name, ())}  # a part needs no condition of its own
        kept = {key: value for key, value in resource.items() if key not in ours}
        if resource["Type"] == "AWS::CloudWatch::Alarm" and "Metrics" in kept["Properties"]:
            formula = kept["Properties"]["Metrics"][0]  # expressions have one id now
            formula["Id"] = IDS[formula["Id"]]
        assert {key: value for key, value in after[name].items() if key not in ours} == kept, name
    shown = [
        json.loads(each["Dashboard"]["Properties"]["DashboardBody"]) for each in (before, after)
    ]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("api", ["http", "rest"])
def test_only_the_chosen_kind_of_api_is_rendered(api: str) -> None:
    kinds = {one["Type"] for one in assembled(api)["Resources"].values()}
    other = "AWS::ApiGateway::RestApi" if api == "http" else "AWS::ApiGatewayV2::Api"
    assert other not in kinds
    text = parts.dump(assembled(api))
    assert ("RestApi" in text) is (api == "rest")
    assert not re.search(r"[:-] [&*]\w", text), "CloudFormation refuses aliases"


@pytest.mark.parametrize("api", ["http", "rest"])
def test_a_written_template_has_short_forms_and_nothing_else_than_before(
    tmp_path: Path, api: str
) -> None:
    written = template.write(assembled(api), tmp_path)
    text = written.read_text("utf-8")
    assert parts.load(written) == assembled(api)
    assert "Fn::" not in text
    assert "      Role: !GetAtt 'GatewayRole.Arn'\n" in text
    assert '\n          {"type": "metric", ' in text, "the dashboard stays readable"


def test_state_stays_when_the_stack_is_deleted_and_can_be_imported() -> None:
    resources = assembled()["Resources"]
    for name in ("Table", "StateKeys", "GatewayLog", "WorkerLog", "RotationLog"):
        assert resources[name]["DeletionPolicy"] == "RetainExceptOnCreate"
        assert resources[name]["UpdateReplacePolicy"] == "Retain"


@pytest.mark.parametrize("page", ["audit", "deploy", "observability"])
def test_documents_name_log_groups_that_exist(page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text("utf-8")
    stack = StackTemplate({"ApiType": "http"}, {"AWS::StackName": "shop"})
    groups = stack.named("AWS::Logs::LogGroup")
    names = {stack.properties(name).get("LogGroupName") for name in groups}
    assert set(re.findall(r"\b[A-Z]\w+Log\b", text)) <= {*groups}
    assert set(re.findall(r"/aws/\w+/[\w/-]+", text)) <= {*names, "/aws/vendedlogs/shop/"}


def test_the_audit_log_is_exported_from_both_functions() -> None:
    text = (ROOT / "docs/audit.md").read_text("utf-8")
    (resources,) = re.findall(r"for resource in ([\w ]+);", text)
    source = assembled()["Resources"]
    for name in ("GatewayFunction", "WorkerFunction"):
        group = source[name]["Properties"]["LoggingConfig"]["LogGroup"]["Ref"]
        assert group in resources.split()


# A restored table comes back into the stack (docs/runbooks/restore-table.md)

COMMANDS = (ROOT / "docs/runbooks/restore-table.md").read_text("utf-8").partition("## Import")[2]


def test_the_import_changes_nothing_but_the_table(tmp_path: Path) -> None:
    if (jq := shutil.which("jq")) is None:
        pytest.skip("jq is not installed")
    (change,) = re.findall(r"^jq '([^']+)' deployed", COMMANDS, re.MULTILINE)
    deployed = tmp_path / "deployed.json"
    deployed.write_text(json.dumps(expanded()))
    ran = subprocess.run([jq, change, str(deployed)], capture_output=True, check=True)
    restored = {"TableName": "shop-restored"}
    before = resources(expanded(), restored)
    after = resources(json.loads(ran.stdout), restored)
    assert after.keys() - before.keys() == {"Table"}
    assert {name: after[name] for name in before} == before
    # the deployment that follows names the same table by the resource
    arn = "arn:aws:dynamodb:eu-central-1:123456789012:table/shop-restored"
    known = {"Table": "shop-restored", "Table.Arn": arn}
    assert resources(expanded(), {"TableName": ""}, known) == after


def test_the_import_is_a_request_that_cloudformation_knows() -> None:
    from botocore.session import get_session

    (text,) = re.findall(r"--resources-to-import '([^']+)'", COMMANDS)
    model = get_session().get_service_model("cloudformation").operation_model("CreateChangeSet")
    request = {
        "StackName": "shop",
        "ChangeSetName": "import-table",
        "ChangeSetType": "IMPORT",
        "TemplateURL": "https://releases.s3.eu-central-1.amazonaws.com/shop/import.json",
        "Capabilities": ["CAPABILITY_IAM"],
        "Parameters": [{"ParameterKey": "TableName", "UsePreviousValue": True}],
        "ResourcesToImport": json.loads(text),
    }
    assert not ParamValidator().validate(request, model.input_shape).has_errors()
    (table,) = request["ResourcesToImport"]
    kind = schemas()[table["ResourceType"]]
    assert kind["primaryIdentifier"] == [
        f"/properties/{name}" for name in table["ResourceIdentifier"]
    ]
    assert "read" in kind["handlers"], "what CloudFormation needs to import a resource"


# Merging


@pytest.mark.parametrize(
    ("base", "change", "result"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}),
        ({"a": 1, "b": 2}, {"b": None}, {"a": 1}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"Ref": "X"}}, {"a": {"Fn::If": ["C", 1, 2]}}, {"a": {"Fn::If": ["C", 1, 2]}}),
        ({"a": {"Ref": "X"}}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({}, {"a": {"b": {"c": None, "d": 1}}}, {"a": {"b": {"d": 1}}}),
    ],
)
def test_a_change_is_merged(base: Any, change: Any, result: Any) -> None:
    assert merged(base, change) == result


# The user's overlay

OVERLAY = """
Parameters:
  Team: {Type: String, Default: shop}
Resources:
  Reports: {Type: AWS::S3::Bucket}
  GatewayFunction:
    Properties:
      MemorySize: 2048
      Environment: {Variables: {REPORTS: !Ref Reports}}
  ApiThrottlesAlarm: null
"""


def overlaid(tmp_path: Path, text: str) -> dict[str, Any]:
    (tmp_path / template.OVERLAY).write_text(text)
    return with_overlay(assembled(), tmp_path / "gateway.yaml")


def test_an_overlay_adds_changes_and_removes_resources(tmp_path: Path) -> None:
    source = overlaid(tmp_path, OVERLAY)
    resources = source["Resources"]
    assert resources["Reports"] == {"Type": "AWS::S3::Bucket"}
    function = resources["GatewayFunction"]["Properties"]
    assert function["MemorySize"] == 2048
    assert function["Environment"]["Variables"]["REPORTS"] == {"Ref": "Reports"}
    assert "GATEWAY_STORE" in function["Environment"]["Variables"], "the others stay"
    assert resources.keys() == assembled()["Resources"].keys() - {"ApiThrottlesAlarm"} | {"Reports"}
    assert source["Parameters"]["Team"]["Default"] == "shop"


def test_without_an_overlay_nothing_changes(tmp_path: Path) -> None:
    assert with_overlay(assembled(), tmp_path / "gateway.yaml") == assembled()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Resources: {GatewayFuncton: {Properties: {MemorySize: 1}}}", "has no Type"),
        ("Resources: {Dashbord: null}", "is not in the template, so it cannot be removed"),
        ("Resource: {A: {Type: AWS::S3::Bucket}}", "is no section of a template"),
        ("Resources: [A]", "is no section of a template"),
        ("- A", "is no section of a template"),
        ("Resources: {A: [", "cannot be read: .* line 1"),
        ("{2026-11-29: 1}", "cannot be read|is no section"),
    ],
)
def test_a_mistake_in_an_overlay_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        overlaid(tmp_path, text)
    assert template.OVERLAY in str(raised.value)


# A template that a user takes over


def test_an_ejected_template_names_the_zips_and_is_never_overwritten(tmp_path: Path) -> None:
    written = template.write(assembled("rest"), tmp_path / ".build")
    target = tmp_path / "mine.yaml"
    template.eject(written, target)
    resources = parts.load(target)["Resources"]
    code = {name: resources[f"{name}Function"]["Properties"]["CodeUri"] for name in FUNCTIONS}
    assert code == FUNCTIONS
    assert "yours from here" in target.read_text()
    with pytest.raises(UsageError, match=r"mine\.yaml exists"):
        template.eject(written, target)


FUNCTIONS = {
    "Gateway": ".build/gateway.zip",
    "Worker": ".build/worker.zip",
    "Rotation": ".build/rotation",
}


# Gradual deployments, private APIs, a web ACL, keys of others


def there(**parameters: str) -> dict[str, Any]:
    return resources(expanded(parameters.get("ApiType", "http")), parameters)


@pytest.mark.parametrize("api", ["http", "rest"])
def test_a_rollout_shifts_the_alias_and_an_alarm_takes_it_back(api: str) -> None:
    made = there(ApiType=api, Rollout="Linear10PercentEvery1Minute", Release="r2")
    assert made["GatewayAlias"]["UpdatePolicy"] == {
        "CodeDeployLambdaAliasUpdate": {
            "ApplicationName": "unknown:Rollouts",
            "DeploymentGroupName": "unknown:RolloutGroup",
        }
    }
    group = made["RolloutGroup"]["Properties"]
    assert group["DeploymentConfigName"] == "CodeDeployDefault.LambdaLinear10PercentEvery1Minute"
    assert group["AlarmConfiguration"]["Alarms"] == [{"Name": "unknown:RolloutErrorsAlarm"}]
    assert "DEPLOYMENT_STOP_ON_ALARM" in group["AutoRollbackConfiguration"]["Events"]
    assert made["ApiPermission"]["Properties"]["FunctionName"] == "unknown:GatewayAlias"
    uris = [
        one["Properties"]["Integration"]["Uri"] for one in made.values() if "Method" in one["Type"]
    ]
    assert all("unknown:GatewayAlias/" in uri for uri in uris)
    assert "UpdatePolicy" not in there(SnapStart="on")["GatewayAlias"]


def test_a_private_api_refuses_every_other_way() -> None:
    made = there(ApiType="rest", VpcEndpointIds="vpce-1,vpce-2", PublicUrl="https://mcp.internal")
    api = made["RestApi"]["Properties"]
    assert api["EndpointConfiguration"] == {
        "Types": ["PRIVATE"],
        "VpcEndpointIds": ["vpce-1", "vpce-2"],
    }
    allowed, denied = api["Policy"]["Statement"]
    assert (allowed["Effect"], denied["Effect"]) == ("Allow", "Deny")
    assert denied["Condition"] == {"StringNotEquals": {"aws:SourceVpce": ["vpce-1", "vpce-2"]}}
    assert api["DisableExecuteApiEndpoint"] is False, "it has no other URL"
    usual = there(ApiType="rest")["RestApi"]["Properties"]
    assert usual["EndpointConfiguration"] == {"Types": ["REGIONAL"]}
    assert "Policy" not in usual


def test_a_private_api_has_no_domain() -> None:
    for parameters, is_fine in (({"DomainName": ""}, True), ({"DomainName": "a.example"}, False)):
        own = StackTemplate({"ApiType": "rest", "VpcEndpointIds": "vpce-1", **parameters})
        (assertion,) = own.source["Rules"]["PrivateAlone"]["Assertions"]
        assert own.holds(assertion["Assert"]) is is_fine


def test_a_web_acl_stands_in_front_of_the_stage() -> None:
    assert "WebAcl" not in there(ApiType="rest")
    acl = "arn:aws:wafv2:eu-central-1:123456789012:regional/webacl/acl/1"
    made = there(ApiType="rest", WebAclArn=acl)["WebAcl"]["Properties"]
    assert made["WebACLArn"] == acl
    stage = "arn:aws:apigateway:eu-central-1::/restapis/unknown:RestApi/stages/unknown:RestStage"
    assert made["ResourceArn"] == stage


def test_keys_of_others_are_read_and_not_rotated() -> None:
    secret = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:keys-AbCdEf"
    usual, made = there(), there(StateKeysArn=secret)
    assert {name for name in usual if "Rotation" in name or name == "StateKeys"} == (
        usual.keys() - made.keys()
    )
    for name in ("Gateway", "Worker"):
        variables = made[f"{name}Function"]["Properties"]["Environment"]["Variables"]
        assert variables["GATEWAY_STATE_KEYS_SECRET"] == secret
        (policy,) = made[f"{name}Role"]["Properties"]["Policies"]
        statements = {one["Sid"]: one for one in policy["PolicyDocument"]["Statement"]}
        assert statements["StateKeys"]["Resource"] == secret
    assert "unknown:StateKeys" not in json.dumps(made)
