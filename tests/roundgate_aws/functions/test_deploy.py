"""`roundgate deploy`: what it passes to `sam deploy`, what it refuses, and what it finds out about
the stack."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roundgate import cli
from roundgate.errors import ConfigError, UsageError
from roundgate_aws import deploying as deploy
from roundgate_aws import options as deploy_options
from roundgate_aws import parts
from roundgate_aws.template import name_deployment
from tests.support import moto_server

pytest.importorskip("boto3")

from botocore.exceptions import ClientError
from botocore.stub import Stubber

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
    return dict(one.split("=", 1) for one in command[command.index(deploy_options.OVERRIDES) + 1 :])


def wanted(config: Path, *options: str) -> deploy_options.DeployOptions:
    return deploy_options.read_options("roundgate", [str(config), *options])


def check(
    one: deploy_options.DeployOptions, stored: dict[str, str], executions: int | None
) -> None:
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
def test_the_wanted_architecture_or_that_of_the_stack_is_always_passed(
    open_config: Path, stored: dict[str, str], options: list[str], architecture: str
) -> None:
    one = (
        wanted(open_config, deploy_options.OVERRIDES, *options) if options else wanted(open_config)
    )
    for command in deploy.commands(one, stored, BUILT):
        assert passed(command)["Architecture"] == architecture


def test_other_options_and_parameters_are_passed_on(open_config: Path) -> None:
    options = [
        "--region",
        "us-east-1",
        deploy_options.OVERRIDES,
        "LogLevel=debug",
        "StageName=prod",
        "--profile",
        "mine",
    ]
    one = wanted(open_config, *options)
    (command,) = deploy.commands(one, UP, BUILT)
    assert passed(command) == {"Architecture": "arm64", "LogLevel": "debug", "StageName": "prod"}
    assert " --region us-east-1 --profile mine " in " ".join(command)
    assert one.session == {"--region": "us-east-1", "--profile": "mine"}


def test_a_new_stacks_table_is_protected_when_the_stack_has_been_made(open_config: Path) -> None:
    first, second = deploy.commands(wanted(open_config), {}, BUILT)
    assert passed(first)["ProtectTable"] == "later"
    assert passed(second) == {**passed(first), "ProtectTable": "true"}


@pytest.mark.parametrize("options", [[], ["--no-execute-changeset"]], ids=str)
def test_the_next_deployment_protects_a_table_that_an_interrupted_first_one_did_not(
    open_config: Path, options: list[str]
) -> None:
    first, *_ = deploy.commands(wanted(open_config), {}, BUILT)
    left = {**UP, "ProtectTable": passed(first)["ProtectTable"]}
    (command,) = deploy.commands(wanted(open_config, *options), left, BUILT)
    assert passed(command)["ProtectTable"] == "true"


def test_a_stack_is_protected_after_its_viewed_change_set_was_executed(
    open_config: Path,
) -> None:
    (looked_at,) = deploy.commands(wanted(open_config, "--no-execute-changeset"), {}, BUILT)
    executed = {**UP, "ProtectTable": passed(looked_at)["ProtectTable"]}
    (command,) = deploy.commands(wanted(open_config), executed, BUILT)
    assert passed(command)["ProtectTable"] == "true"


def test_a_table_that_somebody_wanted_unprotected_stays_so(open_config: Path) -> None:
    (first,) = deploy.commands(
        wanted(open_config, deploy_options.OVERRIDES, "ProtectTable=false"), {}, BUILT
    )
    assert passed(first)["ProtectTable"] == "false"
    (command,) = deploy.commands(wanted(open_config), {**UP, "ProtectTable": "false"}, BUILT)
    assert "ProtectTable" not in passed(command)


@pytest.mark.parametrize(
    "options",
    [["--no-execute-changeset"], [deploy_options.OVERRIDES, "ProtectTable=false"]],
    ids=str,
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
        made = moto_server.session().client(name)
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
        wanted(open_config, deploy_options.OVERRIDES, *given), open_config, Session()
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
    one = deploy.with_secrets(
        wanted(open_config, deploy_options.OVERRIDES, *given), open_config, Session()
    )
    assert one.overrides == {"SecretArns": "arn:s", "ParameterArns": "none"}


# Variables of the configuration

VARIABLES = """
env:
  SHOP_URL: https://shop.example
  SHOP_KEY: ${secret:shop/key}
backends:
  - {kind: python, name: tools, path: tools.py}
"""
FILE = {"EnvShopUrl": "https://shop.example", "EnvShopKey": "${secret:shop/key}"}
"""What a stack has that was made of these, and of which nothing was given."""


@pytest.fixture
def with_env(open_config: Path) -> Path:
    open_config.write_text(VARIABLES)
    return open_config


def secrets(config: Path, stored: dict[str, str], *options: str) -> list[str]:
    """The secrets that a deployment lets the functions read."""
    asked = wanted(config, *((deploy_options.OVERRIDES, *options) if options else ()))
    found = deploy.with_secrets(asked, config, Session(), stored).overrides["SecretArns"]
    return [one.rpartition("secret:")[2] for one in found.split(",")]


def test_a_variable_that_was_given_once_is_kept_and_so_is_the_right_to_read_it(
    with_env: Path,
) -> None:
    given = "EnvShopKey=${secret:prod/key}"
    assert secrets(with_env, FILE, given) == ["prod/key-??????"]
    stored = {**FILE, "EnvShopKey": "${secret:prod/key}"}
    assert secrets(with_env, stored) == ["prod/key-??????"]
    assert secrets(with_env, stored, "EnvShopKey=${secret:next/key}") == ["next/key-??????"]
    assert secrets(with_env, {**stored, "EnvShopKey": "as it stands"}) == ["none"]


def test_an_edited_variable_is_followed_unless_another_text_was_given(with_env: Path) -> None:
    with_env.write_text(VARIABLES.replace("shop.example", "new.example"))
    followed = deploy.with_variables(wanted(with_env), with_env, FILE, FILE)
    assert followed.overrides == {"EnvShopUrl": "https://new.example"}
    given = {**FILE, "EnvShopUrl": "https://given.example"}
    assert deploy.with_variables(wanted(with_env), with_env, given, FILE).overrides == {}
    again = wanted(with_env, deploy_options.OVERRIDES, "EnvShopUrl=https://once.example")
    asked = deploy.with_variables(again, with_env, FILE, FILE)
    assert asked.overrides == {"EnvShopUrl": "https://once.example"}


def test_a_secret_that_replaces_another_in_the_file_is_the_one_that_may_be_read(
    with_env: Path,
) -> None:
    with_env.write_text(VARIABLES.replace("shop/key", "shop/newer"))
    asked = deploy.with_variables(wanted(with_env), with_env, FILE, FILE)
    found = deploy.with_secrets(asked, with_env, Session(), FILE).overrides
    assert found["EnvShopKey"] == "${secret:shop/newer}"
    assert found["SecretArns"].endswith("secret:shop/newer-??????")


def test_what_is_kept_is_told_without_its_value(with_env: Path) -> None:
    assert list(deploy.remarks(wanted(with_env), with_env, FILE)) == []
    given = {**FILE, "EnvShopUrl": "https://given.example"}
    (told,) = deploy.remarks(wanted(with_env), with_env, given)
    assert told.startswith("EnvShopUrl keeps the value")
    assert "given.example" not in told
    again = wanted(with_env, deploy_options.OVERRIDES, "EnvShopUrl=https://once.example")
    assert list(deploy.remarks(again, with_env, given)) == []


# SnapStart


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """What `roundgate package` leaves, as far as a release is made of it."""
    template = tmp_path / "template.yaml"
    template.write_text(parts.dump(parts.assembled()))
    (tmp_path / "gateway.zip").write_bytes(b"code")
    return template


def release(config: Path, stored: dict[str, str], built: Path, *options: str) -> str | None:
    """The name of what a deployment deploys."""
    asked = wanted(config, *((deploy_options.OVERRIDES, *options) if options else ()))
    found = {passed(one).get("Release") for one in deploy.commands(asked, stored, built)}
    assert len(found) == 1, "the second call of a first deployment publishes nothing"
    return found.pop()


def test_without_snapstart_nothing_has_a_name(open_config: Path, built: Path) -> None:
    assert release(open_config, UP, built) is None
    assert release(open_config, {**UP, "SnapStart": "on"}, built, "SnapStart=off") is None


def test_with_snapstart_a_changed_parameter_alone_is_another_release(
    open_config: Path, built: Path
) -> None:
    on = {**UP, "SnapStart": "on"}
    first = release(open_config, on, built)
    assert first is not None
    assert release(open_config, on, built) == first
    for change in ("LogLevel=debug", "GatewayMemory=2048", "StageName=prod"):
        assert release(open_config, on, built, change) != first
    built.with_name("gateway.zip").write_bytes(b"other code")
    assert release(open_config, on, built) != first


def test_what_a_stack_stores_of_a_release_does_not_make_another(
    open_config: Path, built: Path
) -> None:
    given = ("SnapStart=on", "AllowAnonymous=true")
    first = release(open_config, {}, built, *given)
    assert first is not None
    declared = parts.assembled()["Parameters"]
    defaults = {name: str(one["Default"]) for name, one in declared.items() if "Default" in one}
    stored = {**defaults, **dict(one.split("=") for one in given), "Release": first}
    assert release(open_config, stored, built) == first


def test_a_release_that_is_given_is_passed(open_config: Path, built: Path) -> None:
    on = {**UP, "SnapStart": "on"}
    assert release(open_config, on, built, "Release=2026-11-23") == "2026-11-23"


def test_with_snapstart_somebody_learns_when_secrets_are_read(with_env: Path) -> None:
    stored = {**FILE, "SnapStart": "on"}
    (told,) = deploy.remarks(wanted(with_env), with_env, stored)
    assert told.startswith("With SnapStart SHOP_KEY is read when a version is published")


# What it refuses


def refusal(config: Path, *options: str, **stored: str) -> str:
    """Why a deployment is refused; nothing if it is not."""
    one = wanted(config, *((deploy_options.OVERRIDES, *options) if options else ()))
    try:
        deploy.check(one, config, stored)
    except UsageError as error:
        return str(error)
    return ""


def test_the_deployment_of_a_rest_api_has_the_name_of_what_it_shows(built: Path) -> None:
    def named(**says: str) -> set[str]:
        name_deployment(built, deploy.release_digest(says, built))
        return set(re.findall(r"\bRestDeployment\w*", built.read_text()))

    built.write_text(parts.dump(parts.assembled("rest")))
    (first,) = named(ApiType="rest")
    again = built.read_bytes()
    built.write_bytes(again.replace(first.encode(), b"RestDeployment"))
    assert named(ApiType="rest") == {first}
    built.write_bytes(again.replace(first.encode(), b"RestDeployment"))
    assert named(ApiType="rest", PublicUrl="https://mcp.example.com") != {first}
    resources = parts.load(built)["Resources"]
    assert resources["RestStage"]["Properties"]["DeploymentId"]["Ref"] in resources


CERTIFICATE = "arn:aws:acm:eu-central-1:123456789012:certificate/1"
DOMAIN = ("DomainName=mcp.example.com", f"CertificateArn={CERTIFICATE}")
AUTHORIZER = (
    "AuthorizerIssuer=https://issuer.example",
    "AuthorizerAudience=https://mcp.example.com/mcp",
)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["GatewayTimout=20"], "There is no parameter GatewayTimout; did you mean GatewayTimeout?"),
        (["Quux=1"], "There is no parameter Quux. There are PublicUrl, "),
        ([*DOMAIN, "PublicUrl=https://mcp.example.com/tools"], "mapped to the root of mcp.example"),
        (["DomainName=*.example.com", DOMAIN[1]], "Pass PublicUrl=https://"),
        (["AuthorizerIssuer=https://other.example", AUTHORIZER[1]], "no token is valid for both"),
        (["AuthorizerIssuer=https://issuer.example/", AUTHORIZER[1]], "a slash at the end"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_sam_would_ignore_or_no_client_could_use_is_refused(
    guarded_config: Path, options: list[str], said: str
) -> None:
    assert said in refusal(guarded_config, *options)


@pytest.mark.parametrize(
    "options",
    [
        DOMAIN,
        (*DOMAIN, "HostedZoneId=Z0123456789", "StageName=prod"),
        (*DOMAIN, "PublicUrl=https://in-front.example.com"),
        ("DomainName=*.example.com", DOMAIN[1], "PublicUrl=https://mcp.example.com"),
        ("AlarmTopicArn=arn:aws-cn:sns:cn-north-1:123456789012:alarms",),
        (*DOMAIN, "PublicUrl=https://mcp.example.com"),
        ("SubnetIds=subnet-0a,subnet-0b", "SecurityGroupIds=sg-0a"),
        ("SnapStart=on", "Architecture=x86_64"),
        ("SnapStart=on", "Architecture=arm64", "Release=2026-11-23"),
        ("GatewayTimeout=29", "WorkerTimeout=60"),
        AUTHORIZER,
        ('DomainName=""', 'CertificateArn=""'),
    ],
    ids=lambda value: " ".join(one.partition("=")[0] for one in value),
)
def test_what_goes_together_is_deployed(guarded_config: Path, options: tuple[str, ...]) -> None:
    assert refusal(guarded_config, *options) == ""


def test_algorithms_that_an_http_apis_authorizer_does_not_take_are_refused(
    guarded_config: Path,
) -> None:
    whole = guarded_config.read_text()
    for algorithms, fits in (
        ("[ES256]", False),
        ("[EdDSA, ES384]", False),
        ("[RS256, ES256]", True),
        ("[PS256]", True),
    ):
        guarded_config.write_text(whole.replace("keys'}", f"keys', algorithms: {algorithms}}}"))
        said = refusal(guarded_config, *AUTHORIZER)
        assert ("accepts only tokens signed with RSA" not in said) is fits, said
        assert refusal(guarded_config) == ""


def test_an_authorizer_and_a_configuration_that_relies_on_one_need_each_other(
    open_config: Path,
) -> None:
    said = refusal(open_config, *AUTHORIZER)
    assert "would be one caller" in said
    assert "auth: {authorizer: api-gateway, issuer: https://issuer.example}" in said
    behind = "auth: {authorizer: api-gateway, issuer: 'https://issuer.example'}\n"
    open_config.write_text(behind + open_config.read_text())
    assert refusal(open_config, *AUTHORIZER) == ""
    assert "no caller would be accepted" in refusal(open_config)
    assert "a REST API has none" in refusal(open_config, "ApiType=rest")


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("EnvGreeting=hello world", "hello world"),
        ('EnvGreeting="hello world"', "hello world"),
        ("EnvGreeting='host=a port=b' LogLevel=debug", "host=a port=b"),
        ('EnvGreeting=""', ""),
        ("EnvGreeting=", ""),
        ("EnvGreeting=a=b&c=d", "a=b&c=d"),
    ],
)
def test_a_value_is_what_was_typed_and_reaches_sam_as_one(
    open_config: Path, typed: str, value: str
) -> None:
    one = wanted(open_config, deploy_options.OVERRIDES, typed)
    assert one.overrides["EnvGreeting"] == value
    (command,) = deploy.commands(one, UP, BUILT)
    (sent,) = (word for word in command if word.startswith("EnvGreeting="))
    is_plain = value and not set(value) & set(" \"'")
    assert sent == (f"EnvGreeting={value}" if is_plain else f'EnvGreeting="{value}"')


def test_without_authentication_a_deployment_has_to_be_meant(
    open_config: Path, guarded_config: Path
) -> None:
    with pytest.raises(UsageError, match=r"(?s)no authentication.*AllowAnonymous=true"):
        check(wanted(open_config), {}, None)
    check(wanted(open_config, deploy_options.OVERRIDES, "AllowAnonymous=true"), {}, None)
    check(wanted(open_config), UP, None)
    with pytest.raises(UsageError):
        check(wanted(open_config, deploy_options.OVERRIDES, "AllowAnonymous=false"), UP, None)
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
    one = wanted(guarded_config, deploy_options.OVERRIDES, f"WorkerConcurrency={workers}")
    if fits:
        check(one, {}, executions)
    else:
        with pytest.raises(
            UsageError, match=r"(?s)10 functions at once.*Set WorkerConcurrency to at most 5"
        ):
            check(one, {}, executions)


def test_an_override_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="needs NAME=VALUE, not 'Name'"):
        deploy_options.read_options("stack", ["file", deploy_options.OVERRIDES, "Name"])


def test_the_nearest_configuration_is_deployed_if_none_is_named() -> None:
    one = deploy_options.read_options("stack", [deploy_options.OVERRIDES, "LogLevel=debug"])
    assert (one.config, one.overrides) == (None, {"LogLevel": "debug"})


def test_commands_run_until_one_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "made"
    touch, fail = ["touch", str(made)], [sys.executable, "-c", "raise SystemExit(3)"]
    assert deploy.run([["true"], fail, touch]) == 3
    assert not made.exists()
    assert deploy.run([touch]) == 0
    assert made.exists()
    said = capfd.readouterr().err
    assert said.startswith("+ true\n+ ")
    assert said.endswith(f"+ touch {made}\n")


@pytest.mark.parametrize("is_made", [False, True])
def test_a_stack_whose_first_change_set_was_only_viewed_is_not_protected_by_a_second(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_made: bool
) -> None:
    made = tmp_path / "made"
    assert deploy.run([["true"], ["touch", str(made)]], lambda: is_made) == 0
    assert made.exists() is is_made
    assert ("nothing was deployed" in capfd.readouterr().err) is not is_made


def test_what_has_json_in_it_is_shown_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    deploy.run([["echo", '{"a": "b c"}']])
    assert capfd.readouterr().err == '+ ["echo", "{\\"a\\": \\"b c\\"}"]\n'


# What it finds out


@pytest.fixture
def cloudformation() -> Iterator[Stubber]:
    """boto3's client, with AWS's answers put into its mouth: moto's CloudFormation does not go with
    our pydantic."""
    client = moto_server.session().client("cloudformation")
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


def test_the_defaults_that_a_stack_was_made_with_are_those_of_its_own_template(
    cloudformation: Stubber,
) -> None:
    declared = [
        {"ParameterKey": "EnvShopUrl", "DefaultValue": "https://shop.example"},
        {"ParameterKey": "EnvShopHost"},
    ]
    cloudformation.add_response("get_template_summary", {"Parameters": declared})
    found = deploy.default_parameters(cloudformation.client, "roundgate")
    assert found == {"EnvShopUrl": "https://shop.example"}


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


def test_the_quota_of_functions_is_known_or_its_check_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = moto_server.session().client("lambda")
    with Stubber(client) as stub:
        limit = {
            "AccountLimit": {"ConcurrentExecutions": 1000, "UnreservedConcurrentExecutions": 900}
        }
        stub.add_response("get_account_settings", limit)
        assert deploy.concurrency_limit(client) == 1000
        assert capsys.readouterr().err == ""
        stub.add_client_error("get_account_settings", "AccessDenied", "not authorized")
        assert deploy.concurrency_limit(client) is None
        assert "was not checked" in capsys.readouterr().err
    client.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--region", "eu-central-1"], "Unable to locate credentials"),
        (["--profile", "nobody"], r"The config profile \(nobody\) could not be found"),
    ],
)
def test_without_credentials_nothing_is_deployed(
    open_config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(open_config.with_name("none")))
    asked = deploy_options.read_options("shop", [str(open_config), *options])
    with pytest.raises(UsageError, match=f"A request to AWS about the stack shop failed: {said}"):
        deploy.of_account(asked, open_config)
    assert cli.main(["deploy", "shop", str(open_config), *options]) == 2
    assert "A request to AWS about the stack shop failed" in capsys.readouterr().err
    assert not open_config.with_name(".build").exists()
