"""Secrets that are kept at AWS and requests that are signed for it: moto's server at the
other end, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from roundgate import aws, config
from roundgate.backends import secret_reading
from roundgate.backends.secret_reading import REFRESH_MS, SecretTexts
from roundgate.errors import ConfigError
from roundgate.runtime import loading, reload
from roundgate.settings import Reference, Secret
from roundgate.settings.process import Settings
from tests.support import moto_server
from tests.support.asgi import STATE_KEY, Client, built, client
from tests.support.clocks import FixedClock
from tests.support.services import answer, gateway_to, service

boto3 = pytest.importorskip("boto3")


pytestmark = pytest.mark.usefixtures("own_aws_session")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server.running() as url:
        yield url


@pytest.fixture(autouse=True)
def account(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine whose role is set up."""
    moto_server.machine(monkeypatch, endpoint)
    as_user(monkeypatch, "test", "test")
    yield
    aws._session.cache_clear()


def as_user(monkeypatch: pytest.MonkeyPatch, key: str, secret: str) -> None:
    """The process has these credentials from now on."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    aws._session.cache_clear()


def kept_secret(value: str) -> str:
    """The name of a new secret."""
    name = f"app/{uuid.uuid4()}"
    boto3.client("secretsmanager").create_secret(Name=name, SecretString=value)
    return name


def kept_parameter(value: str) -> str:
    """The name of a new parameter."""
    name = f"/app/{uuid.uuid4()}"
    boto3.client("ssm").put_parameter(Name=name, Value=value, Type="SecureString")
    return name


GATEWAY = """
backends:
  - kind: http
    name: api
    prefix: ""
    base_url: {url}
    headers: {{X-Tenant-Key: "{header}"}}
    credential: {credential}
    tools: [{{name: tool, path: /, description: A tool.}}]
  - {{kind: python, name: well, path: well.py}}
"""


def file_with(
    folder: Path, credential: str, url: str = "http://127.0.0.1:9", header: str = "fixed"
) -> config.ConfigFile:
    (folder / "well.py").write_text(
        "from roundgate import tool\n@tool\ndef hello() -> str:\n    return 'hi'\n"
    )
    path = folder / "gateway.yaml"
    path.write_text(GATEWAY.format(url=url, credential=credential, header=header))
    return config.load(path, {})


@asynccontextmanager
async def serving(file: config.ConfigFile, **using: Any) -> AsyncIterator[Client]:
    app = built(file, Settings(state_keys=STATE_KEY, **using))
    async with app.router.lifespan_context(app), client(app) as mcp:
        yield mcp


async def test_secrets_and_parameters_and_members_of_either_are_sent(tmp_path: Path) -> None:
    """A secret that is a JSON object, as AWS makes them; a parameter; a name and an
    ARN; beside other text."""
    pair = kept_secret(json.dumps({"username": "ann", "password": "pa:ss w0rd€"}))
    arn = boto3.client("secretsmanager").describe_secret(SecretId=pair)["ARN"]
    tenant = kept_parameter("tenant-key-1\n")
    basic = f'{{basic: "${{secret:{pair}#username}}:${{secret:{arn}#password}}"}}'
    async with service() as told:
        file = file_with(tmp_path, basic, told.url, f"t ${{ssm:{tenant}}}")
        async with serving(file) as mcp:
            await mcp.call("tool")
    expected = httpx.BasicAuth("ann", "pa:ss w0rd€")._auth_header
    assert told.header("authorization") == [expected]
    assert told.header("x-tenant-key") == ["t tenant-key-1"]


async def test_a_secret_that_was_rotated_is_read_again_when_the_service_says_401(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(secret_reading, "AGAIN_MS", 0)
    caplog.set_level(logging.INFO)
    name = kept_secret("first-token-of-all")
    says = (answer(), answer(status="401 No"), answer(b'"first-token-of-all, second-token"'))
    async with service(*says) as told:
        bearer = Secret((Reference("secret", name),))
        async with gateway_to(told.url, {}, credential={"bearer": bearer}) as gate:
            await gate.call("tool")
            boto3.client("secretsmanager").put_secret_value(
                SecretId=name, SecretString="second-token"
            )
            result = await gate.call("tool")
    assert [told.header("authorization", one) for one in range(3)] == [
        ["Bearer first-token-of-all"],
        ["Bearer first-token-of-all"],
        ["Bearer second-token"],
    ]
    assert result["structuredContent"] == "[redacted], [redacted]"
    assert "a secret has changed" in caplog.text
    assert "second-token" not in caplog.text


async def test_a_secret_is_read_again_when_it_is_old_and_the_one_before_serves_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secrets, name = SecretTexts(clock := FixedClock()), kept_parameter("first")
    secret = Secret((Reference("ssm", name),))
    assert await secrets.text(secret) == "first"
    ssm = boto3.client("ssm")
    ssm.put_parameter(Name=name, Value="second", Overwrite=True)
    assert await secrets.text(secret) == "first"
    clock.skip(REFRESH_MS / 1000)
    assert await secrets.text(secret) == "second"
    assert secrets.known([secret]) == {"first", "second"}
    ssm.delete_parameter(Name=name)
    clock.skip(REFRESH_MS / 1000)
    assert await secrets.text(secret) == "second"
    assert "a secret could not be read again; the last value is used" in caplog.text
    await secrets.aclose()


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("${secret:not-there}", "not-there is not in AWS Secrets Manager"),
        ("${ssm:/not/there}", "/not/there is not in the Parameter Store"),
        ("${secret:NAME#member}", "secret:NAME is not a JSON object"),
        ("${ssm:OBJECT#member}", "ssm:OBJECT has no text at 'member'"),
        ("${secret:LINES}", "secret:LINES is sent in an HTTP header"),
        ("${file:not/there}", "not/there: No such file or directory"),
    ],
)
async def test_what_cannot_be_read_is_a_problem_of_its_setting_and_the_rest_is_served(
    tmp_path: Path, reference: str, said: str
) -> None:
    made = {"NAME": kept_secret("plain"), "LINES": kept_secret("one\ntwo")}
    made["OBJECT"] = kept_parameter('{"other": "x", "member": {"deep": 1}}')
    for name, real in made.items():
        reference, said = reference.replace(name, real), said.replace(name, real)
    file = file_with(tmp_path, f'{{bearer: "{reference}"}}')
    with pytest.raises(ConfigError) as refused:
        loading.load(file, fetches=True)  # as `roundgate check` does
    [problem] = refused.value.problems
    assert (problem.path, problem.line) == ("backends[0].credential.bearer", 8)
    assert said in problem.message
    assert problem.remedy
    async with serving(file) as mcp:
        tools = (await mcp.result("tools/list"))["tools"]
        assert [one["name"] for one in tools] == ["well__hello"]


async def test_a_function_of_aws_lambda_reads_no_secret_before_a_call_needs_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = kept_secret("first-token-of-all")
    async with service() as told:
        file = file_with(tmp_path, f'{{bearer: "${{secret:{name}}}"}}', told.url)
        boto3.client("secretsmanager").delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)
        async with serving(file, on_lambda=True, allow_anonymous=True) as mcp:
            assert len((await mcp.result("tools/list"))["tools"]) == 2
            text = await mcp.text("tool")
    assert text == (
        "The gateway cannot read its credential for the service just now; try again later"
    )
    [why] = [one.fields["why"] for one in caplog.records if hasattr(one, "fields")]
    assert why == f"{name} is not in AWS Secrets Manager"
    assert told.requests == []


@pytest.mark.parametrize(
    "line",
    [
        'server: {name: "${secret:a}"}',
        'limits: {threads: "${ssm:a}"}',
        'views: [{name: v, override: {t: {arguments: {a: {fixed: "x${secret:a}"}}}}}]',
    ],
)
def test_no_other_setting_takes_what_is_kept_at_aws(tmp_path: Path, line: str) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(f"{line}\nbackends: [{{kind: python, name: one, path: tools.py}}]\n")
    with pytest.raises(ConfigError) as refused:
        config.load(path, {})
    [problem] = refused.value.problems
    assert problem.message == "may not be a reference to AWS"
    assert problem.line == 1


@pytest.fixture
def checked(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """moto recomputes the signature of each request, and asks IAM; the process is a user who may
    read one secret."""
    iam, user = boto3.client("iam"), f"u-{uuid.uuid4()}"
    may, may_not = (
        boto3.client("secretsmanager").describe_secret(SecretId=kept_secret(one))["ARN"]
        for one in ("may-be-read", "may-not")
    )
    iam.create_user(UserName=user)
    statements = [
        {"Effect": "Allow", "Action": "secretsmanager:GetSecretValue", "Resource": may},
        {"Effect": "Allow", "Action": ["sts:*", "s3:*"], "Resource": "*"},
    ]
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    iam.put_user_policy(UserName=user, PolicyName="p", PolicyDocument=policy)
    made = iam.create_access_key(UserName=user)["AccessKey"]
    as_user(monkeypatch, made["AccessKeyId"], made["SecretAccessKey"])
    httpx.post(f"{endpoint}/moto-api/reset-auth", content=b"0", timeout=60)
    yield {"may": may, "may not": may_not, "user": user, "secret": made["SecretAccessKey"]}
    httpx.post(f"{endpoint}/moto-api/reset-auth", content=b"inf", timeout=60)


async def test_a_secret_that_the_role_may_not_read_is_a_problem_that_names_the_permission(
    tmp_path: Path, checked: dict[str, str]
) -> None:
    file = file_with(tmp_path, f'{{bearer: "${{secret:{checked["may not"]}}}"}}')
    with pytest.raises(ConfigError) as refused:
        loading.load(file, fetches=True)
    [problem] = refused.value.problems
    assert problem.message == f"{checked['may not']} of AWS Secrets Manager may not be read"
    assert "secretsmanager:GetSecretValue" in problem.remedy


SIGNED = {
    "who": {
        "method": "POST",
        "body": "form",
        "arguments": {"Action": {}, "Version": {}, "more": {}},
    },
    "put": {
        "method": "PUT",
        "path": "/{bucket}/{key}",
        "arguments": {"text": {"in": "whole_body"}, "key": {"allow_slash": True}},
    },
    "get": {
        "path": "/{bucket}/{key}",
        "arguments": {"key": {"allow_slash": True}, "response-content-language": {}},
    },
}


def signed_tool(name: str) -> dict[str, Any]:
    return {"name": name, **SIGNED[name]}


WHO = {"Action": "GetCallerIdentity", "Version": "2011-06-15", "more": "ü +&="}


async def test_a_signed_request_is_taken_by_a_service_that_checks_signatures(
    endpoint: str, checked: dict[str, str]
) -> None:
    async with gateway_to(endpoint, signed_tool("who"), credential={"sigv4": "sts"}) as gate:
        assert checked["user"] in await gate.text("who", WHO)


async def test_a_signature_that_is_not_right_is_refused_so_the_service_does_check(
    endpoint: str, checked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", checked["secret"][::-1])
    aws._session.cache_clear()
    async with gateway_to(endpoint, signed_tool("who"), credential={"sigv4": "sts"}) as gate:
        assert "403" in (text := await gate.text("who", WHO))
    assert "SignatureDoesNotMatch" in text


@pytest.mark.parametrize("key", ["plain", "a b/ü~x", "100%+1=2&3/?#"])
async def test_bodies_paths_and_queries_of_any_kind_are_signed_as_they_are_sent(
    endpoint: str, checked: dict[str, str], key: str
) -> None:
    bucket = f"b-{uuid.uuid4()}"
    boto3.Session().client("s3").create_bucket(
        Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
    )
    tools = [signed_tool("put"), signed_tool("get")]
    async with gateway_to(endpoint, *tools, credential={"sigv4": "s3"}) as gate:
        where = {"bucket": bucket, "key": key}
        put = await gate.call("put", {**where, "text": "größer & mehr"})
        got = await gate.call("get", {**where, "response-content-language": "de, a+b"})
    assert not put.get("isError"), put
    assert "größer & mehr" in json.dumps(got, ensure_ascii=False)


async def test_without_credentials_of_aws_a_call_says_so(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    aws._session.cache_clear()
    credential = {"sigv4": "execute-api"}
    async with gateway_to(endpoint, signed_tool("who"), credential=credential) as gate:
        assert "needs AWS credentials, and none were found" in await gate.text("who", WHO)


async def test_a_session_token_goes_with_the_signature_and_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-session-token")
    aws._session.cache_clear()
    async with (
        service(answer(b'"a-session-token"')) as told,
        gateway_to(told.url, {}, credential={"sigv4": "execute-api"}) as gate,
    ):
        result = await gate.call("tool")
    assert told.header("x-amz-security-token") == ["a-session-token"]
    assert "x-amz-security-token" in told.header("authorization")[0]
    assert result["structuredContent"] == "[redacted]"


async def test_a_back_end_whose_secret_was_missing_is_served_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "HEAL_S", 0.05)
    name = f"app/{uuid.uuid4()}"
    async with service() as told:
        file = file_with(tmp_path, f'{{bearer: "${{secret:{name}}}"}}', told.url)
        async with serving(file) as mcp, asyncio.timeout(60):
            assert len((await mcp.result("tools/list"))["tools"]) == 1
            boto3.client("secretsmanager").create_secret(Name=name, SecretString="there-now")
            while len((await mcp.result("tools/list"))["tools"]) == 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await mcp.call("tool")
    assert told.header("authorization") == ["Bearer there-now"]


def problem_of(folder: Path, name: str) -> tuple[str, str]:
    """What `roundgate check` says of a credential that is kept there, and what to do."""
    file = file_with(folder, f'{{bearer: "${{secret:{name}}}"}}')
    with pytest.raises(ConfigError) as refused:
        loading.load(file, fetches=True)
    [problem] = refused.value.problems
    return problem.message, problem.remedy or ""


def test_a_process_without_credentials_of_aws_is_told_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    aws._session.cache_clear()
    message, remedy = problem_of(tmp_path, "app/key")
    assert message == "app/key of AWS Secrets Manager needs AWS credentials, and there are none"
    assert "AWS_ACCESS_KEY_ID" in remedy


def test_a_process_without_a_region_is_told_which_variable_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    aws._session.cache_clear()
    message, remedy = problem_of(tmp_path, "app/key")
    assert message == "app/key: AWS_DEFAULT_REGION is needed for secretsmanager"
    assert "set it to the region" in remedy


def test_a_secrets_manager_that_is_not_reached_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    message, remedy = problem_of(tmp_path, "app/key")
    assert message.startswith("app/key")
    assert "the gateway tries again" in remedy


def test_a_secret_of_bytes_or_one_that_is_being_deleted_cannot_be_read(tmp_path: Path) -> None:
    client, binary = boto3.client("secretsmanager"), f"app/{uuid.uuid4()}"
    client.create_secret(Name=binary, SecretBinary=b"\x00\x01")
    assert problem_of(tmp_path, binary) == (f"{binary} is binary", "store it as a string")
    client.delete_secret(SecretId=(going := kept_secret("soon-gone")), RecoveryWindowInDays=7)
    message, _ = problem_of(tmp_path, going)
    assert message == f"{going} of AWS Secrets Manager cannot be read (InvalidRequestException)"
