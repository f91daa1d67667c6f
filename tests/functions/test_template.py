"""`template.yaml` and the code agree: the table, the settings, and each call of AWS that a function makes."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase

import pytest

from roundgate import lambda_worker
from roundgate.config.settings import Settings, from_environment
from roundgate.deployment.stack.stack import EXECUTIONS, rate_s
from roundgate.deployment.stack.template import Template
from roundgate.storage.dynamodb.table import TABLE
from tests.support import permissions
from tests.support.dynamodb import ROOT
from tests.support.permissions import KNOWN


@pytest.fixture(scope="module")
def template() -> Template:
    return Template(ROOT / "template.yaml", {}, KNOWN)


@pytest.fixture(scope="module")
def deployed() -> Template:
    """The same as CloudFormation gets it."""
    return permissions.deployed()


OF_DEPLOYED_TABLES = {"DeletionProtectionEnabled", "SSESpecification"}


def test_the_table_is_the_one_that_the_store_knows(template: Template) -> None:
    table = {
        name: one
        for name, one in template.properties("Table").items()
        if name not in OF_DEPLOYED_TABLES
    }
    assert json.loads(json.dumps(table)) == json.loads(json.dumps(dict(TABLE)))
    assert table == json.loads((ROOT / "infra/table.json").read_text())


@pytest.mark.parametrize("name", ["GatewayFunction", "WorkerFunction"])
def test_the_environment_of_a_function_is_one_that_it_takes(template: Template, name: str) -> None:
    function = template.function(name)
    using = from_environment({**function.environment, "AWS_LAMBDA_FUNCTION_NAME": name})
    assert using.dynamodb_table == "tasks"
    assert using.sqs_url == KNOWN["Queue"]
    assert str(using.config) == "gateway.json"
    unknown = [
        name
        for name in function.environment
        if name.removeprefix("GATEWAY_").lower() not in Settings.__slots__
    ]
    assert unknown == []


def test_a_public_url_is_passed_on_and_otherwise_that_of_the_api(template: Template) -> None:
    own = Template(ROOT / "template.yaml", {"PublicUrl": "https://mcp.example.com"}, KNOWN)
    assert (
        own.function("GatewayFunction").environment["GATEWAY_PUBLIC_URL"]
        == "https://mcp.example.com"
    )
    made = template.function("GatewayFunction").environment["GATEWAY_PUBLIC_URL"]
    assert made == "https://a1b2c3d4e5.execute-api.eu-central-1.amazonaws.com"


@pytest.mark.parametrize("name", ["GatewayFunction", "WorkerFunction"])
def test_a_handler_is_where_the_template_says(template: Template, name: str) -> None:
    module, _, attribute = template.function(name).handler.rpartition(".")
    source = (ROOT / "app" / (module.replace(".", "/") + ".py")).read_text()
    assert f'name != "{attribute}"' in source


# What a deployment makes, and what it leaves alone


def outputs(**parameters: str) -> dict[str, str]:
    own = Template(ROOT / "template.yaml", parameters, KNOWN)
    return {name: own.value(one["Value"]) for name, one in own.source["Outputs"].items()}


API = "https://a1b2c3d4e5.execute-api.eu-central-1.amazonaws.com"


@pytest.mark.parametrize(
    ("parameters", "base"),
    [
        ({}, API),
        ({"StageName": "prod"}, f"{API}/prod"),
        ({"PublicUrl": "https://mcp.example.com"}, "https://mcp.example.com"),
        (
            {"PublicUrl": "https://example.com/tools", "StageName": "prod"},
            "https://example.com/tools",
        ),
    ],
    ids=["default", "named stage", "domain", "domain with a base path"],
)
def test_the_endpoint_and_the_public_url_are_where_the_api_is_found(
    parameters: dict[str, str], base: str
) -> None:
    own = Template(ROOT / "template.yaml", parameters, KNOWN)
    assert outputs(**parameters)["Endpoint"] == f"{base}/mcp"
    assert own.function("GatewayFunction").environment["GATEWAY_PUBLIC_URL"] == base


@pytest.mark.parametrize(
    ("parameters", "is_off"),
    [
        ({}, False),
        ({"PublicUrl": "https://mcp.example.com"}, True),
        ({"PublicUrl": "https://mcp.example.com", "ApiEndpoint": "enabled"}, False),
        ({"ApiEndpoint": "disabled"}, True),
    ],
    ids=["no domain", "domain", "behind a CDN", "wanted"],
)
def test_nobody_goes_around_a_domain_unless_that_is_wanted(
    parameters: dict[str, str], is_off: bool
) -> None:
    own = Template(ROOT / "template.yaml", parameters, KNOWN)
    assert own.properties("Api")["DisableExecuteApiEndpoint"] is is_off


def test_every_route_reaches_the_function_and_may(deployed: Template) -> None:
    for name in deployed.named("AWS::ApiGatewayV2::Route"):
        assert deployed.properties(name)["Target"] == "integrations/unknown:ApiIntegration"
    assert ("GET", "/.well-known/{document+}") in deployed.routes()
    assert ("ANY", "/{view}/mcp") in deployed.routes()
    (gateways,) = (
        one
        for one in map(deployed.properties, deployed.named("AWS::Lambda::Permission"))
        if one["Principal"] == "apigateway.amazonaws.com"
    )
    arn = "arn:aws:execute-api:eu-central-1:123456789012:a1b2c3d4e5/prod/GET/.well-known/oauth-protected-resource"
    assert fnmatchcase(arn, gateways["SourceArn"])


def test_the_table_outlives_its_stack_and_goes_with_one_that_was_never_made() -> None:
    source = Template(ROOT / "template.yaml", {}, KNOWN).source["Resources"]["Table"]
    assert (source["DeletionPolicy"], source["UpdateReplacePolicy"]) == (
        "RetainExceptOnCreate",
        "Retain",
    )
    for value, is_protected in (("true", True), ("false", False)):
        table = Template(ROOT / "template.yaml", {"ProtectTable": value}, KNOWN).properties("Table")
        assert table["DeletionProtectionEnabled"] is is_protected


def test_encryption_is_the_free_one_unless_the_other_is_asked_for() -> None:
    for value, costs in (("aws-owned", False), ("aws-managed", True)):
        table = Template(ROOT / "template.yaml", {"TableEncryption": value}, KNOWN).properties(
            "Table"
        )
        assert table["SSESpecification"] == {"SSEEnabled": costs}


def test_what_everybody_may_call_is_said_by_the_deployment(template: Template) -> None:
    assert template.function("GatewayFunction").environment["GATEWAY_ALLOW_ANONYMOUS"] == "false"
    own = Template(ROOT / "template.yaml", {"AllowAnonymous": "true"}, KNOWN)
    assert from_environment(own.function("GatewayFunction").environment).allow_anonymous


def test_a_new_account_has_executions_left_for_the_gateway_and_the_sweep(
    template: Template,
) -> None:
    mapping = template.function("WorkerFunction").events["Tasks"]["Properties"]
    assert mapping["ScalingConfig"]["MaximumConcurrency"] <= EXECUTIONS // 2
    reserved = [
        name for name in template.named("AWS::Serverless::Function") if _reserves(template, name)
    ]
    assert reserved == [], "an account with 10 executions may reserve none"


def _reserves(template: Template, name: str) -> bool:
    return "ReservedConcurrentExecutions" in template.properties(name)


# What invokes the worker


def test_a_chain_of_sleeps_is_no_loop_to_be_stopped(deployed: Template) -> None:
    assert deployed.properties("WorkerFunction")["RecursiveLoop"] == "Allow"


def test_a_sweep_is_over_before_the_next_and_is_neither_late_nor_repeated(
    deployed: Template,
) -> None:
    (rule,) = map(deployed.properties, deployed.named("AWS::Events::Rule"))
    assert rate_s(rule["ScheduleExpression"]) * 1000 > lambda_worker.SWEEP_MS
    assert rule["Targets"][0]["RetryPolicy"] == {
        "MaximumEventAgeInSeconds": 60,
        "MaximumRetryAttempts": 0,
    }
    (asynchronous,) = map(deployed.properties, deployed.named("AWS::Lambda::EventInvokeConfig"))
    assert asynchronous["MaximumRetryAttempts"] == 0
    assert asynchronous["MaximumEventAgeInSeconds"] <= 60


def test_a_task_shares_a_worker_only_where_that_is_asked_for(template: Template) -> None:
    assert template.function("WorkerFunction").events["Tasks"]["Properties"]["BatchSize"] == 1


def test_the_event_source_knows_of_partial_failures_and_waits_long_enough(
    template: Template,
) -> None:
    worker, queue = template.function("WorkerFunction"), template.properties("Queue")
    assert worker.events["Tasks"]["Properties"]["FunctionResponseTypes"] == [
        "ReportBatchItemFailures"
    ]
    assert queue["VisibilityTimeout"] >= 6 * worker.timeout_s
    assert queue["RedrivePolicy"]["maxReceiveCount"] >= 5


def test_a_call_ends_before_the_api_gives_up(template: Template) -> None:
    assert template.function("GatewayFunction").timeout_s < 30


# What the code calls, and what the functions may


def test_the_gateway_may_do_what_it_does_and_nothing_more(deployed: Template) -> None:
    needed = permissions.of_stores(permissions.GATEWAY) | permissions.of_module(
        "app/roundgate/tokens/keys.py", "decrypt"
    )
    assert permissions.allowed(deployed, "GatewayFunction") == needed


def test_the_worker_may_do_what_it_does_and_nothing_more(deployed: Template) -> None:
    store, method = permissions.KEEPS_TEXTS
    keeping = permissions.STORES[store][method]
    needed = permissions.of_stores(permissions.WORKER) | keeping | permissions.OF_THE_MAPPING
    assert permissions.allowed(deployed, "WorkerFunction") == needed


@pytest.mark.parametrize("name", ["GatewayFunction", "WorkerFunction"])
def test_the_functions_of_tools_may_be_invoked_by_both_and_no_others(
    deployed: Template, name: str
) -> None:
    tools = permissions.deployed(FunctionArns="arn:f,arn:g:live", DurableFunctionArns="arn:f:*")
    more = permissions.allowed(tools, name) - permissions.allowed(deployed, name)
    needed = {action for action, _ in permissions.of_module(permissions.INVOKING)}
    assert {action for action, _ in more} == needed
    assert more == {
        ("lambda:InvokeFunction", "arn:f"),
        ("lambda:InvokeFunction", "arn:g:live"),
        ("lambda:GetDurableExecution", "arn:f:*"),
    }


@pytest.mark.parametrize("name", ["GatewayFunction", "WorkerFunction"])
def test_secrets_of_services_may_be_read_by_both_and_no_others(
    deployed: Template, name: str
) -> None:
    given = permissions.deployed(SecretArns="arn:s-??????,arn:t", ParameterArns="arn:p")
    more = permissions.allowed(given, name) - permissions.allowed(deployed, name)
    assert {action for action, _ in more} == {
        action for action, _ in permissions.named_in(permissions.READING)
    }
    assert more == {
        ("secretsmanager:GetSecretValue", "arn:s-??????"),
        ("secretsmanager:GetSecretValue", "arn:t"),
        ("ssm:GetParameter", "arn:p"),
    }


def test_the_rotation_may_do_what_it_does_and_nothing_more(deployed: Template) -> None:
    needed = permissions.of_module("infra/rotation/rotate_keys.py")
    assert permissions.allowed(deployed, "RotationFunction") == needed


def test_no_role_may_do_anything_to_everything(deployed: Template) -> None:
    for name in deployed.named("AWS::IAM::Role"):
        document = json.dumps(deployed.properties(name)["Policies"])
        assert '"*"' not in document, name
        assert "unknown:" not in document, name


def test_no_function_gets_a_policy_that_nobody_wrote(deployed: Template) -> None:
    written = {"GatewayRole", "WorkerRole", "RotationRole"}
    assert set(deployed.named("AWS::IAM::Role")) == written
    assert deployed.named("AWS::IAM::Policy") == deployed.named("AWS::IAM::ManagedPolicy") == []


def test_queues_are_spoken_to_over_tls_only(deployed: Template) -> None:
    policy = deployed.properties("QueuePolicy")
    (statement,) = policy["PolicyDocument"]["Statement"]
    assert (statement["Effect"], statement["Action"], statement["Principal"]) == (
        "Deny",
        "sqs:*",
        "*",
    )
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    queues = deployed.named("AWS::SQS::Queue")
    assert len(policy["Queues"]) == len(statement["Resource"]) == len(queues) == 2


def test_every_module_that_uses_a_store_is_known_to_belong_to_a_function_or_to_none() -> None:
    assert permissions.users_of_stores() == {
        *permissions.GATEWAY,
        *permissions.WORKER,
        *permissions.SERVERS_ALONE,
    }


@pytest.mark.parametrize(
    ("method", "does"),
    [
        ("create", {"dynamodb:PutItem", "dynamodb:BatchWriteItem"}),
        ("read", {"dynamodb:Query"}),
        ("due", {"dynamodb:Query index"}),
        (
            "claim",
            {
                "dynamodb:UpdateItem",
                "dynamodb:BatchGetItem",
                "dynamodb:Query",
                "dynamodb:BatchWriteItem",
            },
        ),
        ("count_open", {"dynamodb:Query index"}),
        ("purge", {"dynamodb:DeleteItem", "dynamodb:Query", "dynamodb:BatchWriteItem"}),
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
