"""`roundgate deploy`: what it passes to `sam deploy`, what it refuses, and what it finds out about
the stack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roundgate.deployment import deploying as deploy
from roundgate.errors import ConfigError, UsageError

boto3 = pytest.importorskip("boto3")

from botocore.exceptions import ClientError  # noqa: E402
from botocore.stub import Stubber  # noqa: E402

BUILT = Path(".build/template.yaml")
UP = {"Architecture": "arm64", "AllowAnonymous": "true", "WorkerConcurrency": "5"}
"""Parameters of a stack that is up."""


@pytest.fixture
def open_config(tmp_path: Path) -> Path:
    """A configuration without authentication."""
    path = tmp_path / "gateway.yaml"
    path.write_text("backends:\n  - {kind: python, name: tools, path: tools.py}\n")
    return path


@pytest.fixture
def guarded_config(tmp_path: Path) -> Path:
    path = tmp_path / "guarded.yaml"
    auth = "auth: {issuer: 'https://issuer.example', jwks_url: 'https://issuer.example/keys'}\n"
    path.write_text(auth + "backends:\n  - {kind: python, name: tools, path: tools.py}\n")
    return path


def passed(command: list[str]) -> dict[str, str]:
    """The parameters in a call of `sam deploy`."""
    return dict(one.split("=", 1) for one in command[command.index(deploy.OVERRIDES) + 1 :])


def wanted(config: Path, *options: str) -> deploy.Asked:
    return deploy.asked("roundgate", [str(config), *options])


def check(one: deploy.Asked, stored: dict[str, str], executions: int | None) -> None:
    """Whether a deployment is refused."""
    assert one.config is not None
    deploy.check(one, one.config, stored, executions)


@pytest.mark.parametrize(
    ("stored", "options", "architecture"),
    [
        ({}, [], "arm64"),
        ({}, ["Architecture=x86_64"], "x86_64"),
        ({**UP, "Architecture": "x86_64"}, [], "x86_64"),
        ({**UP, "Architecture": "x86_64"}, ["LogLevel=debug"], "x86_64"),
        ({**UP, "Architecture": "x86_64"}, ["Architecture=arm64"], "arm64"),
        (UP, ["ParameterKey=Architecture,ParameterValue=x86_64"], "x86_64"),
        (UP, ["LogLevel=debug Architecture=x86_64"], "x86_64"),
    ],
    ids=[
        "new",
        "new, asked",
        "stored",
        "stored, another parameter",
        "changed",
        "long form",
        "in one word",
    ],
)
def test_the_architecture_is_the_one_asked_for_or_that_of_the_stack_and_always_passed(
    open_config: Path, stored: dict[str, str], options: list[str], architecture: str
) -> None:
    one = wanted(open_config, deploy.OVERRIDES, *options) if options else wanted(open_config)
    for command in deploy.commands(one, stored, BUILT):
        assert passed(command)["Architecture"] == architecture


def test_other_options_and_parameters_are_passed_on(open_config: Path) -> None:
    options = [
        "--region",
        "us-east-1",
        deploy.OVERRIDES,
        "LogLevel=debug",
        "StageName=prod",
        "--profile",
        "mine",
    ]
    one = wanted(open_config, *options)
    (command,) = deploy.commands(one, UP, BUILT)
    assert passed(command) == {"Architecture": "arm64", "LogLevel": "debug", "StageName": "prod"}
    assert " --region us-east-1 --profile mine " in " ".join(command)
    assert one.of_session == {"--region": "us-east-1", "--profile": "mine"}


def test_a_new_stacks_table_is_protected_when_the_stack_has_been_made(open_config: Path) -> None:
    first, second = deploy.commands(wanted(open_config), {}, BUILT)
    assert passed(first)["ProtectTable"] == "false"
    assert passed(second) == {**passed(first), "ProtectTable": "true"}


@pytest.mark.parametrize(
    "options", [["--no-execute-changeset"], [deploy.OVERRIDES, "ProtectTable=false"]], ids=str
)
def test_it_is_not_where_that_was_not_wanted(open_config: Path, options: list[str]) -> None:
    assert len(deploy.commands(wanted(open_config, *options), {}, BUILT)) == 1


def test_a_stack_that_is_up_is_deployed_once_and_keeps_its_protection(open_config: Path) -> None:
    (command,) = deploy.commands(wanted(open_config), UP, BUILT)
    assert "ProtectTable" not in passed(command)


# Functions that tools invoke

FUNCTIONS = """
backends:
  - {kind: python, name: tools, path: tools.py}
  - kind: lambda
    name: orders
    function: orders
    qualifier: live
    describe: true
    tools:
      - {name: a, description: A.}
      - {name: b, description: B., function: "pay:7"}
      - {name: c, description: C., function: "210987654321:function:pay", durable: {}}
      - {name: d, description: D., function: arn:aws:lambda:us-east-1:1:function:far, job: {function: look}}
"""
IDENTITY = {"Arn": "arn:aws:sts::123456789012:assumed-role/deployer/me"}


class Session:
    """One of boto3 that knows who it is."""

    region_name = "eu-central-1"

    def client(self, name: str) -> Any:
        made = boto3.client(
            name, region_name=self.region_name, aws_access_key_id="t", aws_secret_access_key="t"
        )
        stub = Stubber(made)
        stub.add_response("get_caller_identity", IDENTITY)
        stub.activate()
        return made


def test_functions_of_tools_become_arns_with_their_qualifiers(open_config: Path) -> None:
    open_config.write_text(FUNCTIONS)
    found = deploy.with_functions(wanted(open_config), open_config, Session()).overrides
    here = "arn:aws:lambda:eu-central-1:123456789012:function:"
    assert found["FunctionArns"].split(",") == [
        f"{here}orders:live",
        f"{here}pay:7",
        "arn:aws:lambda:eu-central-1:210987654321:function:pay",
        "arn:aws:lambda:us-east-1:1:function:far",
        f"{here}look",
    ]
    assert found["DurableFunctionArns"].split(",") == [
        f"{here}orders:*",
        "arn:aws:lambda:eu-central-1:210987654321:function:pay:*",
    ]


def test_without_functions_there_are_none_and_those_that_are_given_are_passed(
    open_config: Path,
) -> None:
    none = deploy.with_functions(wanted(open_config), open_config, Session()).overrides
    assert none == {"FunctionArns": "none", "DurableFunctionArns": "none"}
    given = "FunctionArns=arn:f", "DurableFunctionArns=none"
    open_config.write_text(FUNCTIONS.replace("function: orders", "function: ${ORDERS}"))
    one = deploy.with_functions(
        wanted(open_config, deploy.OVERRIDES, *given), open_config, Session()
    )
    assert one.overrides["FunctionArns"] == "arn:f"
    with pytest.raises(UsageError, match="named by a reference"):
        deploy.with_functions(wanted(open_config), open_config, Session())


# Secrets of credentials

SECRETS = """
backends:
  - kind: http
    name: orders
    headers: {X-Tenant: "t-${ssm:tenant:3}"}
    credential: {basic: "${secret:prod/orders#user}:${secret:prod/orders#password}"}
  - {kind: http, name: b, credential: {bearer: "${secret:arn:aws:secretsmanager:us-east-1:1:secret:far}"}}
  - {kind: http, name: c, credential: {bearer: "${ssm:/prod/c#token} $${secret:no} ${NAME} ${file:x}"}}
"""


def test_secrets_and_parameters_of_credentials_become_arns(open_config: Path) -> None:
    open_config.write_text(SECRETS)
    found = deploy.with_secrets(wanted(open_config), open_config, Session()).overrides
    assert found["SecretArns"].split(",") == [
        "arn:aws:secretsmanager:eu-central-1:123456789012:secret:prod/orders-??????",
        "arn:aws:secretsmanager:us-east-1:1:secret:far",
        "arn:aws:secretsmanager:us-east-1:1:secret:far-??????",
    ]
    assert found["ParameterArns"].split(",") == [
        "arn:aws:ssm:eu-central-1:123456789012:parameter/tenant",
        "arn:aws:ssm:eu-central-1:123456789012:parameter/prod/c",
    ]


def test_without_secrets_there_are_none_and_those_that_are_given_are_passed(
    open_config: Path,
) -> None:
    none = deploy.with_secrets(wanted(open_config), open_config, Session()).overrides
    assert none == {"SecretArns": "none", "ParameterArns": "none"}
    open_config.write_text(SECRETS)
    given = "SecretArns=arn:s", "ParameterArns=none"
    one = deploy.with_secrets(wanted(open_config, deploy.OVERRIDES, *given), open_config, Session())
    assert one.overrides == {"SecretArns": "arn:s", "ParameterArns": "none"}


# What it refuses


def test_without_authentication_a_deployment_has_to_be_meant(
    open_config: Path, guarded_config: Path
) -> None:
    with pytest.raises(UsageError, match=r"(?s)no authentication.*AllowAnonymous=true"):
        check(wanted(open_config), {}, None)
    check(wanted(open_config, deploy.OVERRIDES, "AllowAnonymous=true"), {}, None)
    check(wanted(open_config), UP, None)
    with pytest.raises(UsageError):
        check(wanted(open_config, deploy.OVERRIDES, "AllowAnonymous=false"), UP, None)
    check(wanted(guarded_config), {}, None)


def test_what_only_the_function_knows_is_not_asked_for(guarded_config: Path) -> None:
    text = guarded_config.read_text().replace(
        "https://issuer.example/keys", "${SET_IN_THE_FUNCTION_ONLY}"
    )
    guarded_config.write_text(text)
    check(wanted(guarded_config), {}, None)


@pytest.mark.parametrize("text", ["auth: [", "- a list"], ids=["no YAML", "a list"])
def test_a_configuration_that_is_none_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises((UsageError, ConfigError), match=r"broken\.yaml"):
        check(wanted(path), UP, None)


@pytest.mark.parametrize(
    ("executions", "workers", "fits"), [(10, "5", True), (10, "6", False), (1000, "500", True)]
)
def test_workers_leave_half_of_the_accounts_functions_to_the_gateway(
    guarded_config: Path, executions: int, workers: str, fits: bool
) -> None:
    one = wanted(guarded_config, deploy.OVERRIDES, f"WorkerConcurrency={workers}")
    if fits:
        check(one, {}, executions)
    else:
        with pytest.raises(UsageError, match=r"(?s)10 functions at once.*Set it to 5 at most"):
            check(one, {}, executions)


def test_an_override_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="takes NAME=VALUE, not 'Name'"):
        deploy.asked("stack", ["file", deploy.OVERRIDES, "Name"])


def test_the_nearest_configuration_is_deployed_if_none_is_named() -> None:
    one = deploy.asked("stack", [deploy.OVERRIDES, "LogLevel=debug"])
    assert (one.config, one.overrides) == (None, {"LogLevel": "debug"})


# What it finds out


@pytest.fixture
def cloudformation() -> Iterator[Stubber]:
    """boto3's client, with AWS's answers put into its mouth: moto's CloudFormation does not go with
    our pydantic."""
    client = boto3.Session("test", "test", region_name="eu-central-1").client("cloudformation")
    with Stubber(client) as stub:
        yield stub
    client.close()


def test_a_stack_that_is_not_there_has_no_parameters(cloudformation: Stubber) -> None:
    cloudformation.add_client_error(
        "describe_stacks", "ValidationError", "Stack with id roundgate does not exist"
    )
    assert deploy.stored_parameters(cloudformation.client, "roundgate") == {}


def test_an_error_of_another_kind_is_not_taken_for_a_new_stack(cloudformation: Stubber) -> None:
    cloudformation.add_client_error("describe_stacks", "AccessDenied", "not authorized")
    with pytest.raises(ClientError):
        deploy.stored_parameters(cloudformation.client, "roundgate")


@pytest.mark.parametrize(
    ("status", "found"),
    [("UPDATE_COMPLETE", {"Architecture": "x86_64"}), ("REVIEW_IN_PROGRESS", {})],
)
def test_the_parameters_of_a_stack_are_found_unless_it_was_never_made(
    cloudformation: Stubber, status: str, found: dict[str, str]
) -> None:
    chosen = [{"ParameterKey": "Architecture", "ParameterValue": "x86_64"}]
    stack = {
        "StackName": "roundgate",
        "StackStatus": status,
        "CreationTime": "2026-11-22T00:00:00Z",
    }
    cloudformation.add_response("describe_stacks", {"Stacks": [{**stack, "Parameters": chosen}]})
    assert deploy.stored_parameters(cloudformation.client, "roundgate") == found
