"""`template.yaml` and the code agree: the table, the settings, and each call of AWS that a function makes."""

from __future__ import annotations

import json

import pytest

from app.settings import Settings, from_environment
from app.storage.dynamodb import TABLE
from infra.stack.template import Template
from tests.support import permissions
from tests.support.dynamodb import ROOT
from tests.support.permissions import KNOWN


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


def test_the_gateway_may_do_what_it_does_and_nothing_more(template: Template) -> None:
    needed = permissions.of_stores(permissions.GATEWAY) | permissions.of_module("app/tokens/keys.py", "decrypt")
    assert permissions.allowed(template, "GatewayFunction") == needed


def test_the_worker_may_do_what_it_does_and_nothing_more(template: Template) -> None:
    needed = permissions.of_stores(permissions.WORKER) | permissions.OF_THE_MAPPING
    assert permissions.allowed(template, "WorkerFunction") == needed


def test_the_rotation_may_do_what_it_does_and_nothing_more(template: Template) -> None:
    needed = permissions.of_module("infra/rotation/rotate_keys.py")
    assert permissions.allowed(template, "RotationFunction") == needed


def test_every_module_that_uses_a_store_is_known_to_belong_to_a_function_or_to_none() -> None:
    assert permissions.users_of_stores() == {*permissions.GATEWAY, *permissions.WORKER, *permissions.SERVERS_ALONE}


@pytest.mark.parametrize(
    ("method", "does"),
    [
        ("create", {"dynamodb:PutItem", "dynamodb:BatchWriteItem"}),
        ("read", {"dynamodb:Query"}),
        ("due", {"dynamodb:Query index"}),
        (
            "claim",
            {"dynamodb:UpdateItem", "dynamodb:BatchGetItem", "dynamodb:Query", "dynamodb:BatchWriteItem"},
        ),
        ("count_open", {"dynamodb:Query index"}),
        ("find", {"dynamodb:Scan"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_read_from_the_code_is_what_it_does(method: str, does: set[str]) -> None:
    assert {
        f"{action}{' index' * (resource in permissions.INDEX.values())}"
        for action, resource in permissions.TASKS[method]
    } == does


def test_each_operation_of_aws_that_the_code_names_is_one_that_is_judged_here() -> None:
    of_development = {"create_table", "update_time_to_live"}
    assert permissions.named_operations() <= permissions.OPERATIONS.keys() | of_development
