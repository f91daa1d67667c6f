"""The parameters of `template.yaml` for rules of an organization, for traces and for a restored
table, in the expanded template: which resources they change, and the permissions they add."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.template.sets import KEY, LAYERS
from roundgate_aws.template import StackTemplate
from tests.support import permissions
from tests.support.permissions import KNOWN, Permission

ROLES = ["GatewayRole", "RotationRole", "WorkerRole"]
FUNCTIONS = ["GatewayFunction", "WorkerFunction", "RotationFunction"]
OF_TASKS = FUNCTIONS[:2]
RESTORED = "arn:aws:dynamodb:eu-central-1:123456789012:table/restored"


def added(function: str, **parameters: str) -> set[Permission]:
    """The permissions that a function has only with these parameters."""
    usual, own = permissions.deployed(), permissions.deployed(**parameters)
    return permissions.allowed(own, function) - permissions.allowed(usual, function)


def statements(deployed: StackTemplate, function: str) -> dict[str, Any]:
    """The statements of a function's role, by their ids."""
    role = deployed.properties(function.replace("Function", "Role"))
    return {
        statement["Sid"]: statement
        for policy in role["Policies"]
        for statement in policy["PolicyDocument"]["Statement"]
    }


# A boundary and layers


def test_every_role_has_the_permissions_boundary() -> None:
    boundary = "arn:aws:iam::123456789012:policy/boundary"
    own = permissions.deployed(PermissionsBoundary=boundary)
    assert sorted(own.named("AWS::IAM::Role")) == sorted(ROLES)
    for name in ROLES:
        assert own.properties(name)["PermissionsBoundary"] == boundary
        assert "PermissionsBoundary" not in permissions.deployed().properties(name)


def test_every_function_has_the_layers() -> None:
    own = permissions.deployed(Layers=LAYERS)
    assert sorted(own.named("AWS::Lambda::Function")) == sorted(FUNCTIONS)
    for name in FUNCTIONS:
        assert own.properties(name)["Layers"] == LAYERS.split(",")
        assert "Layers" not in permissions.deployed().properties(name)


def test_a_layer_has_its_script_started_where_no_other_one_is() -> None:
    script = "AWS_LAMBDA_EXEC_WRAPPER"
    for api, of_gateway in (
        ("http", "/opt/otel-instrument"),
        ("rest", "/var/task/roundgate/stream.sh"),
    ):
        own = permissions.deployed(ApiType=api, ExecWrapper="/opt/otel-instrument")
        variables = [own.properties(name)["Environment"]["Variables"] for name in OF_TASKS]
        assert [one[script] for one in variables] == [of_gateway, "/opt/otel-instrument"]
    for name in OF_TASKS:
        assert script not in permissions.deployed().properties(name)["Environment"]["Variables"]


# Traces


@pytest.mark.parametrize("name", OF_TASKS)
def test_a_function_may_write_traces_only_if_it_does(name: str) -> None:
    assert permissions.deployed().properties(name)["TracingConfig"] == {"Mode": "PassThrough"}
    own = permissions.deployed(Tracing="Active")
    assert own.properties(name)["TracingConfig"] == {"Mode": "Active"}
    assert added(name, Tracing="Active") == {
        ("xray:PutTraceSegments", "*"),
        ("xray:PutTelemetryRecords", "*"),
    }


def test_traces_begin_at_a_rest_api() -> None:
    for tracing, is_traced in (("PassThrough", False), ("Active", True)):
        own = permissions.deployed(ApiType="rest", Tracing=tracing)
        assert own.properties("RestStage")["TracingEnabled"] is is_traced


# A key


def test_a_key_encrypts_the_table_the_queues_and_all_logs() -> None:
    own, usual = permissions.deployed(KmsKeyArn=KEY), permissions.deployed()
    assert own.properties("Table")["SSESpecification"] == {
        "SSEEnabled": True,
        "SSEType": "KMS",
        "KMSMasterKeyId": KEY,
    }
    for name in own.named("AWS::SQS::Queue"):
        assert own.properties(name)["KmsMasterKeyId"] == KEY
        assert "SqsManagedSseEnabled" not in own.properties(name), "SQS refuses both"
        assert usual.properties(name)["SqsManagedSseEnabled"] is True
    for name in own.named("AWS::Logs::LogGroup"):
        assert own.properties(name)["KmsKeyId"] == KEY
    assert KEY not in json.dumps([usual.properties(name) for name in usual.source["Resources"]])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_may_use_the_key_as_its_calls_of_the_table_and_the_queue_need(name: str) -> None:
    usual = {action for action, _ in permissions.allowed(permissions.deployed(), name)}
    needed = set().union(*(OF_KEY.get(action.partition(":")[0], set()) for action in usual))
    assert added(name, KmsKeyArn=KEY) == {(action, KEY) for action in needed}


OF_KEY = {"dynamodb": {"kms:Decrypt"}, "sqs": {"kms:Decrypt", "kms:GenerateDataKey"}}
"""The permissions on a key for calls of a service: to read and write an encrypted table, and to send
and receive encrypted messages."""


@pytest.mark.parametrize("name", OF_TASKS)
def test_the_key_is_used_only_through_the_table_and_the_queue(name: str) -> None:
    own = statements(permissions.deployed(KmsKeyArn=KEY), name)
    of_key = [statement for statement in own.values() if statement["Resource"] == KEY]
    through = [statement["Condition"]["StringEquals"]["kms:ViaService"] for statement in of_key]
    assert through == ["dynamodb.eu-central-1.amazonaws.com", "sqs.eu-central-1.amazonaws.com"]
    assert own["KeyOfTable"]["Action"] == "kms:Decrypt"


# A restored table


def test_a_restored_table_takes_the_place_of_the_stacks_own() -> None:
    own = permissions.deployed(TableName="restored")
    table = own.source["Resources"]["Table"]
    assert not own.holds({"Condition": table["Condition"]})
    assert table["DeletionPolicy"] == "RetainExceptOnCreate", "the former table stays"
    for name in OF_TASKS:
        variables = own.properties(name)["Environment"]["Variables"]
        assert variables["GATEWAY_STORE"] == "dynamodb://restored"
    assert own.value(own.source["Outputs"]["TableName"]["Value"]) == "restored"


@pytest.mark.parametrize("name", OF_TASKS)
def test_a_function_may_do_to_a_restored_table_what_it_did_to_the_other(name: str) -> None:
    usual = permissions.allowed(permissions.deployed(), name)
    own = permissions.allowed(permissions.deployed(TableName="restored"), name)
    assert own == {
        (action, resource.replace(permissions.TABLE, RESTORED)) for action, resource in usual
    }


def test_nothing_refers_to_the_table_that_is_not_created() -> None:
    own = permissions.deployed(TableName="restored")
    used = json.dumps([own.properties(name) for name in own.source["Resources"] if name != "Table"])
    assert KNOWN["Table.Arn"] not in used
    assert '"tasks"' not in used, KNOWN["Table"]
