"""`template.yaml` and the code agree: the table, the settings, and each call of AWS that a function makes."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.settings import Settings, from_environment
from app.storage.dynamodb import TABLE
from infra.stack.template import Template

ROOT = Path(__file__).parents[2]
KNOWN = {
    "Table": "tasks",
    "Table.Arn": "arn:table",
    "Queue": "https://sqs.eu-central-1.amazonaws.com/123456789012/tasks",
    "Queue.Arn": "arn:queue",
    "StateKeys": "arn:keys",
    "Api": "a1b2c3d4e5",
}


@pytest.fixture(scope="module")
def template() -> Template:
    return Template(ROOT / "template.yaml", {}, KNOWN)


def test_the_table_is_the_one_that_the_store_knows(template: Template) -> None:
    assert json.loads(json.dumps(template.properties("Table"))) == json.loads(json.dumps(dict(TABLE)))


@pytest.mark.parametrize("name", ["GatewayFunction", "WorkerFunction"])
def test_the_environment_of_a_function_is_one_that_it_takes(template: Template, name: str) -> None:
    function = template.function(name)
    using = from_environment({**function.environment, "AWS_LAMBDA_FUNCTION_NAME": name})
    assert using.dynamodb_table == "tasks"
    assert using.sqs_url == KNOWN["Queue"]
    assert str(using.config) == "gateway.json"
    unknown = [name for name in function.environment if name.removeprefix("GATEWAY_").lower() not in Settings.__slots__]
    assert unknown == []


def test_a_public_url_is_passed_on_and_otherwise_that_of_the_api(template: Template) -> None:
    own = Template(ROOT / "template.yaml", {"PublicUrl": "https://mcp.example.com"}, KNOWN)
    assert own.function("GatewayFunction").environment["GATEWAY_PUBLIC_URL"] == "https://mcp.example.com"
    made = template.function("GatewayFunction").environment["GATEWAY_PUBLIC_URL"]
    assert made == "https://a1b2c3d4e5.execute-api.eu-central-1.amazonaws.com"


@pytest.mark.parametrize("name", ["GatewayFunction", "WorkerFunction"])
def test_a_handler_is_where_the_template_says(template: Template, name: str) -> None:
    module, _, attribute = template.function(name).handler.rpartition(".")
    source = (ROOT / (module.replace(".", "/") + ".py")).read_text()
    assert f'name != "{attribute}"' in source


def test_the_event_source_knows_of_partial_failures_and_waits_long_enough(template: Template) -> None:
    worker, queue = template.function("WorkerFunction"), template.properties("Queue")
    assert worker.events["Tasks"]["Properties"]["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert queue["VisibilityTimeout"] >= 6 * worker.timeout_s
    assert queue["RedrivePolicy"]["maxReceiveCount"] >= 5


def test_a_call_ends_before_the_api_gives_up(template: Template) -> None:
    assert template.function("GatewayFunction").timeout_s < 30


# What the code calls, and what the functions may


def called(*modules: str) -> set[str]:
    """The operations of boto3 clients that modules name."""
    found: set[str] = set()
    for module in modules:
        for node in ast.walk(ast.parse((ROOT / module).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
    return {name for name in found if name in OPERATIONS}


OPERATIONS = {
    "batch_write_item": "dynamodb:BatchWriteItem",
    "create_table": None,  # of development alone, as the two that follow
    "get_waiter": None,
    "update_time_to_live": None,
    "delete_item": "dynamodb:DeleteItem",
    "get_item": "dynamodb:GetItem",
    "put_item": "dynamodb:PutItem",
    "query": "dynamodb:Query",
    "scan": "dynamodb:Scan",
    "update_item": "dynamodb:UpdateItem",
    "change_message_visibility_batch": "sqs:ChangeMessageVisibility",
    "delete_message_batch": "sqs:DeleteMessage",
    "receive_message": "sqs:ReceiveMessage",
    "send_message": "sqs:SendMessage",
    "describe_secret": "secretsmanager:DescribeSecret",
    "get_secret_value": "secretsmanager:GetSecretValue",
    "put_secret_value": "secretsmanager:PutSecretValue",
    "update_secret_version_stage": "secretsmanager:UpdateSecretVersionStage",
    "decrypt": "kms:Decrypt",
}
"""Each operation of boto3 that may occur in the code, and what it has to be allowed as."""

ELSEWHERE = {"dynamodb:Scan", "kms:Decrypt", "sqs:ChangeMessageVisibility"}
"""Of the operator's commands, of keys under KMS, of workers that poll by themselves: not of the functions here."""
OF_THE_MAPPING = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}
"""What the event source mapping does in the worker's name."""


def allowed(template: Template, name: str) -> dict[str, set[str]]:
    """Action → resources, of a function's own policies."""
    found: dict[str, set[str]] = {}
    for statement in template.properties(name)["Policies"][0]["Statement"]:
        assert statement["Effect"] == "Allow"
        actions = statement["Action"]
        for action in [actions] if isinstance(actions, str) else actions:
            found.setdefault(action, set()).add(statement["Resource"])
    return found


def needed(*modules: str) -> set[str]:
    return {action for name in called(*modules) if (action := OPERATIONS[name])} - ELSEWHERE


STORE = ("app/storage/dynamodb.py", "app/storage/dynamodb_tasks.py")


def test_the_gateway_may_do_what_it_does_and_nothing_more(template: Template) -> None:
    does = needed(*STORE, "app/tokens/keys.py") | {"sqs:SendMessage"}
    assert allowed(template, "GatewayFunction").keys() == does


def test_the_worker_may_do_what_it_does_and_nothing_more(template: Template) -> None:
    does = needed(*STORE) | {"sqs:SendMessage"} | OF_THE_MAPPING
    assert allowed(template, "WorkerFunction").keys() == does


def test_the_rotation_may_do_what_it_does_and_nothing_more(template: Template) -> None:
    assert allowed(template, "RotationFunction").keys() == needed("infra/rotation/rotate_keys.py")


@pytest.mark.parametrize("name", ["GatewayFunction", "WorkerFunction", "RotationFunction"])
def test_nothing_is_allowed_on_everything(template: Template, name: str) -> None:
    policies: Any = allowed(template, name)
    for action, resources in policies.items():
        assert "*" not in action
        assert all(resource in (*KNOWN.values(), "arn:table/index/open") for resource in resources), resources


def test_only_the_worker_reads_the_index_of_open_tasks(template: Template) -> None:
    assert "arn:table/index/open" in allowed(template, "WorkerFunction")["dynamodb:Query"]
    assert "arn:table/index/open" not in allowed(template, "GatewayFunction")["dynamodb:Query"]


def test_every_operation_of_the_stores_is_known_here() -> None:
    text = "".join((ROOT / module).read_text() for module in (*STORE, "app/storage/sqs.py"))
    named = set(
        re.findall(r'"((?:get|put|update|delete|batch|query|scan|send|receive|change|describe)_[a-z_]+)"', text)
    )
    assert {name for name in named if not name.startswith("update_and")} <= OPERATIONS.keys() | {"update_item"}
