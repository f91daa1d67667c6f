"""What AWS Lambda may say, byte for byte, and what is sent to it; and declarations
that contradict themselves."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from roundgate import aws
from roundgate.auth.principal import LOCAL, Principal
from roundgate.backends.aws_lambda import invoking, messages
from roundgate.backends.aws_lambda.backend import FORMAT, write_index
from roundgate.backends.aws_lambda.config import LambdaBackendConfig
from roundgate.backends.aws_lambda.invoking import FunctionInvocation, Functions, target
from roundgate.backends.aws_lambda.messages import (
    MAX_CONTEXT_CHARS,
    MAX_EVENT_BYTES,
    encode_payload,
    facts,
)
from roundgate.errors import DOUBT, ConfigError, FunctionAway, ToolError
from roundgate.settings.process import Settings
from tests.support.asgi import built, config_of
from tests.support.audit import DIGESTS, KEY, records, text
from tests.support.clocks import FixedClock, pass_time
from tests.support.lambdas import entry, gateway_with, refused, said, use
from tests.support.rounds import Conversation, accept, tool
from tests.support.services import Service, answer, service
from tests.support.task_client import TaskClient

pytestmark = pytest.mark.usefixtures("own_aws_session")
ANY = {"type": "object", "properties": {}}
SENTENCES = {
    "404 Not Found ResourceNotFoundException": "AWS Lambda refuses the function desk: it does not exist",
    "403 Forbidden AccessDeniedException": "the gateway may not use it. Its role needs",
    "403 Forbidden UnrecognizedClientException": "The gateway has no valid AWS credentials",
    "413 Too_Large RequestTooLargeException": "payload is too large",
    "413 Too_Large RequestEntityTooLargeException": "payload is too large",
    "400 Bad RecursiveInvocationException": "detected a loop",
    "400 Bad SomethingNewException": "it was refused with SomethingNewException",
    "500 Error ServiceException": "it may have run",
}


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


async def called(
    patch: pytest.MonkeyPatch,
    directory: Path,
    *answers: bytes,
    arguments: dict[str, Any] | None = None,
    backend: dict[str, Any] | None = None,
    **tool: Any,
) -> tuple[Service, dict[str, Any]]:
    """A call of a tool whose function says these answers."""
    async with service(*answers) as told:
        use(patch, told.url)
        declared = entry({"input_schema": ANY, **tool}, **(backend or {}))
        async with gateway_with(directory, declared) as mcp:
            return told, await mcp.call("tool", arguments)


async def called_often(
    patch: pytest.MonkeyPatch, directory: Path, *answers: bytes, **tool: Any
) -> tuple[Service, list[dict[str, Any]]]:
    """A call of a tool for each of these answers of its function."""
    async with service(*answers) as told:
        use(patch, told.url)
        async with gateway_with(directory, entry({"input_schema": ANY, **tool})) as mcp:
            return told, [await mcp.call("tool") for _ in answers]


def error_of(result: dict[str, Any]) -> str:
    """The text of an error."""
    assert result["isError"], result
    text: str = result["content"][0]["text"]
    return text


async def test_what_aws_refuses_is_said_once_with_what_is_known_of_effects(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refusals = [refusal.rpartition(" ") for refusal in SENTENCES]
    answers = [refused(status, code, "arn:secret of AWS") for status, _, code in refusals]
    told, results = await called_often(patch, tmp_path, *answers)
    for result, sentence in zip(results, SENTENCES.values(), strict=True):
        assert sentence in error_of(result)
        assert "arn:secret" not in error_of(result)
    assert len(told.requests) == len(SENTENCES)


async def test_the_log_has_a_line_for_each_call_of_aws_lambda_without_what_was_said(
    patch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "roundgate.backends")
    throttled = refused("429 Throttled", "TooManyRequestsException", Retry_After="0")
    await called(patch, tmp_path, throttled, said({"n": "hidden-text"}), arguments={"q": "asked"})
    found = [one for one in caplog.records if one.message == "call of AWS Lambda"]
    fields = [one.fields for one in found]  # type: ignore[attr-defined]
    assert [(one["function"], one["status"]) for one in fields] == [
        ("desk", "TooManyRequestsException"),
        ("desk", 200),
    ]
    assert all(one["ms"] >= 0 and len(one) == 3 for one in fields)


async def test_what_was_not_begun_is_tried_again(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    causes = [
        refused("429 Throttled", "TooManyRequestsException", Retry_After="0"),
        refused("502 Bad", "ENINotReadyException"),
        refused("409 Conflict", "CodeArtifactUserPendingException"),
    ]
    answers = [one for first in causes for one in (first, first, said({"n": 1}))]
    async with service(*answers) as told:
        use(patch, told.url)
        async with gateway_with(tmp_path, entry({"input_schema": ANY})) as mcp:
            for number, _ in enumerate(causes, 1):
                assert (await mcp.call("tool"))["structuredContent"] == {"n": 1}
                assert len(told.requests) == 3 * number


@pytest.mark.parametrize(
    "lost", [answer(b"{}", length=500, connection="close"), refused("500 Oh", "ServiceException")]
)
async def test_an_invocation_that_may_have_happened_is_retried_only_if_it_is_idempotent(
    patch: pytest.MonkeyPatch, tmp_path: Path, lost: bytes
) -> None:
    told, result = await called(patch, tmp_path, lost, said(1))
    assert "it may have run" in error_of(result)
    assert len(told.requests) == 1
    told, result = await called(patch, tmp_path, lost, said(1), idempotent=True)
    assert result["structuredContent"] == 1
    assert len(told.requests) == 2


async def test_an_answer_that_does_not_come_is_given_up_in_time(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with service(said(1), pause_s=600) as told:
        use(patch, told.url)
        async with gateway_with(tmp_path, entry({"input_schema": ANY, "timeout_s": 30})) as mcp:
            asked = asyncio.create_task(mcp.call("tool"))
            await sent(told, 1)
            pass_time(31)
            text = error_of(await asked)
    assert text.startswith(
        "The function desk did not answer within 30 s (timeout_s), and may still be running"
    )


async def test_nothing_that_listens_is_an_error_that_says_that_nothing_was_done(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with service() as told:
        url = told.url
    use(patch, url)
    async with gateway_with(tmp_path, entry({"input_schema": ANY, "timeout_s": 60})) as mcp:
        assert "could not be reached" in error_of(await mcp.call("tool"))


async def test_a_call_that_gets_no_connection_in_time_says_that_nothing_was_done(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with service(said(1), pause_s=60) as functions:
        use(patch, functions.url)
        declared = entry(
            {"input_schema": ANY, "timeout_s": 600},
            {"input_schema": ANY, "timeout_s": 0.3, "name": "other"},
            max_connections=1,
        )
        async with gateway_with(tmp_path, declared) as mcp:
            running = asyncio.create_task(mcp.call("tool"))
            await sent(functions, 1)
            text = error_of(await mcp.call("other"))
            running.cancel()
    assert text.startswith("The function desk was not invoked within 0.3 s")
    assert len(functions.requests) == 1


class Read(FixedClock):
    """Does something when an attempt has been made, whose duration is read then."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self._then, self._reads = then, 0

    def monotonic_ms(self) -> float:
        self._reads += 1
        if self._reads == 2:
            self._then()
        return super().monotonic_ms()


@pytest.mark.parametrize(
    "then",
    [
        lambda: asyncio.get_running_loop().call_later(0.01, pass_time, 61),
        lambda: pass_time(59.9),
    ],
    ids=["it ends in the pause", "too little for the pause"],
)
async def test_a_throttled_call_without_time_for_another_attempt_says_when_to_call_again(
    patch: pytest.MonkeyPatch, then: Callable[[], object]
) -> None:
    class Throttled:
        def invoke(self, **_: Any) -> None:
            raise ClientError({"Error": {"Code": "TooManyRequestsException"}}, "Invoke")

    patch.setattr(aws, "client", lambda *_, **__: Throttled())
    patch.setattr(invoking, "Clock", lambda: Read(then))
    desk = FunctionInvocation(target("desk", None, None), b"{}")
    with pytest.raises(FunctionAway) as caught:
        await Functions(1, 1_000).invoke(desk, 60, LOCAL)
    assert str(caught.value) == (
        "The function desk is throttled: its concurrency limit is reached; nothing was done."
        " Try again in 1 s"
    )


async def test_a_qualifier_a_region_and_the_caller_are_in_the_request_and_no_token(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arn = "arn:aws:lambda:us-east-2:123456789012:function:pay:live"
    told, _ = await called(patch, tmp_path, said(1), arguments={"a": 1}, function=arn)
    line = told.request_lines[0]
    assert line.startswith("POST /2015-03-31/functions/arn%3Aaws%3Alambda%3Aus-east-2")
    assert "pay%3Alive/invocations" in line
    assert "/us-east-2/lambda/" in told.header("authorization")[0]
    assert json.loads(told.body()) == {"a": 1}
    (encoded,) = told.header("x-amz-client-context")
    facts = json.loads(base64.b64decode(encoded))["custom"]["roundgate"]
    assert facts.keys() == {"tool", "subject", "issuer", "key", "exchange"}


async def test_who_calls_is_kept_to_itself_where_that_is_wanted(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    silent = {"client_context": False}
    told, _ = await called(patch, tmp_path, said(1), backend=silent)
    assert told.header("x-amz-client-context") == []
    http = {"method": "POST", "path": "/"}
    told, _ = await called(patch, tmp_path, said(1), backend=silent, http=http)
    assert b"local" not in told.body()


async def test_an_asynchronous_invocation_is_told_in_its_payload(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    payload = {"arguments_in": "input", "context_in": "caller"}
    accepted = answer(b"", "202 Accepted", x_amzn_requestid="r-1")
    told, result = await called(
        patch, tmp_path, accepted, arguments={"a": 1}, asynchronous=True, payload=payload
    )
    assert told.header("x-amz-invocation-type") == ["Event"]
    sent = json.loads(told.body())
    assert sent["input"] == {"a": 1}
    assert sent["caller"]["subject"] == "local"
    assert result["structuredContent"] == {"accepted": True, "requestId": "r-1"}


async def test_what_every_kind_has_holds_for_functions_too(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    schema = {
        "type": "object",
        "properties": {"order": {"type": "string"}, "mode": {"type": "string"}},
        "required": ["order", "mode"],
    }
    override = {
        "tool": {
            "name": "look",
            "arguments": {"mode": {"fixed": "fast"}, "order": {"name": "number"}},
            "result": "lines",
            "max_result": 200,
        }
    }
    declared = entry(
        {"input_schema": schema, "approval": "It costs.", "ask_for": ["order"]},
        {"name": "gone"},
        prefix="d",
        approve="always",
        exclude=[{"name": "gone"}],
        override=override,
    )
    async with service(said({"lines": "x" * 300, "more": 1})) as told:
        use(patch, told.url)
        async with gateway_with(tmp_path, declared) as mcp:
            answers = {
                "arguments": accept(order="7"),
                "approve": accept(approve=True),
            }
            talk = Conversation(answers)
            result = await talk.have([mcp] * 3, *tool("d__look"))
            names = [one["name"] for one in (await mcp.result("tools/list"))["tools"]]
    assert talk.asked == [["arguments"], ["approve"]]
    assert json.loads(told.body()) == {"order": "7", "mode": "fast"}
    assert len(told.requests) == 1
    assert result["content"][0]["text"].startswith("x" * 200 + "\n")
    assert names == ["d__look", "read_more"]


@pytest.mark.parametrize(
    "secret", [{"auth": {"key": "opensesame-77"}}, {"Cookie": "Session opensesame-77"}]
)
async def test_secrets_that_are_sent_do_not_come_back(
    patch: pytest.MonkeyPatch, tmp_path: Path, secret: dict[str, Any]
) -> None:
    fixed = {"fixed": {**secret, "kind": "harmless-text"}}
    echo = {"errorType": "E", "errorMessage": "opensesame-77 harmless-text"}
    _, result = await called(patch, tmp_path, said(echo, failed=True), payload=fixed)
    assert error_of(result) == "The function desk failed: E: [redacted] harmless-text"
    _, result = await called(patch, tmp_path, said(["opensesame-77"]), payload=fixed)
    assert result["structuredContent"] == ["[redacted]"]


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b'{"errorMessage": "a\\n b\\u001b[31m", "stackTrace": ["secret"]}', "a b[31m"),
        (b'{"errorType": 7}', "it gave no reason"),
        (b"[]", "it gave no reason"),
        (b"not JSON", "it gave no reason"),
        (b'{"errorType": "E", "errorMessage": "%b"}' % (b"x" * 9_999), "x" * 500 + "…"),
    ],
)
def test_what_a_function_says_of_its_failure_is_one_line_whatever_it_is(
    payload: bytes, shown: str
) -> None:
    text = str(messages.failure_from_payload(payload, target("desk", None, None)))
    assert text.endswith(shown)
    assert "secret" not in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("payload", "status", "media_type", "body"),
    [
        (b'"text"', 200, "application/json", b'"text"'),
        (b"", 200, "application/json", b"null"),
        (b'{"statusCode": 404, "body": "gone"}', 404, "text/plain", b"gone"),
        (b'{"statusCode": 200, "body": "{}"}', 200, "application/json", b"{}"),
        (
            b'{"statusCode": 200, "headers": {"Content-Type": "text/csv"}, "body": "a,b"}',
            *(200, "text/csv", b"a,b"),
        ),
        (b'{"statusCode": 99, "body": ""}', 502, "text/plain", b""),
        # functions in Python write the status as text, those in Java all members
        (b'{"statusCode": "404", "body": "gone"}', 404, "text/plain", b"gone"),
        (b'{"statusCode": "%b", "body": ""}' % (b"9" * 5_000), 502, "text/plain", b""),
        (
            b'{"statusCode": 500, "headers": null, "body": null, "isBase64Encoded": false}',
            *(500, "text/plain", b""),
        ),
        (
            b'{"isBase64Encoded": true, "statusCode": "200", "body": "AA=="}',
            *(200, "application/octet-stream", b"\0"),
        ),
        (b'{"isBase64Encoded": true, "body": "AA=="}', 200, "application/octet-stream", b"\0"),
        # an answer of its own that only looks like a response
        (
            b'{"statusCode": 404, "count": 1}',
            *(200, "application/json", b'{"statusCode": 404, "count": 1}'),
        ),
        (
            b'{"statusCode": true, "body": ""}',
            *(200, "application/json", b'{"statusCode": true, "body": ""}'),
        ),
    ],
)
def test_an_answer_is_what_it_is(payload: bytes, status: int, media_type: str, body: bytes) -> None:
    read = messages.answer_from_payload(payload)
    assert (read.status, read.media_type, read.body) == (status, media_type, body)


async def test_bytes_that_are_no_base64_and_json_that_is_none_are_errors(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, result = await called(patch, tmp_path, said({"isBase64Encoded": True, "body": "!"}))
    assert (
        error_of(result)
        == f"The function marked its answer as base64, but the body is not base64{DOUBT}"
    )
    _, result = await called(patch, tmp_path, answer(b'{"n": NaN,}'))
    assert "not JSON" in error_of(result)
    assert error_of(result).endswith(DOUBT)


async def test_an_event_of_an_http_api_has_the_arguments_where_the_path_says(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string"}, "tag": {"type": "array"}},
        "required": ["id"],
    }
    http = {"method": "GET", "path": "/orders/{id}", "headers": {"X-Team": "ops"}}
    answered = said({"statusCode": 409, "body": "taken"})
    arguments = {"id": "a b", "tag": ["x", "y"]}
    told, result = await called(
        patch, tmp_path, answered, arguments=arguments, http=http, input_schema=schema
    )
    event = json.loads(told.body())
    assert event["version"] == "2.0"
    assert event["rawPath"] == "/orders/a b"
    assert event["queryStringParameters"] == {"tag": "x,y"}
    assert event["headers"] == {"x-team": "ops"}
    assert event["requestContext"]["authorizer"]["lambda"]["roundgate"]["subject"] == "local"
    assert error_of(result) == "The service answered 409 Conflict: taken"


# Limits


def test_a_payload_that_aws_would_not_take_is_not_sent() -> None:
    assert len(encode_payload("x" * (MAX_EVENT_BYTES - 2), is_event=True)) == MAX_EVENT_BYTES
    with pytest.raises(
        ToolError, match="AWS Lambda accepts 1048576 at most, so it was not invoked"
    ):
        encode_payload("x" * MAX_EVENT_BYTES, is_event=True)
    with pytest.raises(ToolError, match="6291456"):
        encode_payload("ä" * 3_200_000, is_event=False)


def test_who_calls_is_told_whole_or_not_at_all_and_the_trace_goes_first() -> None:
    meta = {"traceparent": "00-1", "baggage": "x" * 500, "tracestate": "y" * 500}
    ann = Principal("https://issuer.example.com", "ann" * 200, "app")
    told = facts("t", ann, "k", 1, meta)
    assert told["baggage"]
    long = facts("t", Principal("i" * 800, "ann" * 300, "c" * 400), "k", 1, meta)
    text = messages.encoded(long)
    assert len(text) <= MAX_CONTEXT_CHARS
    kept = json.loads(base64.b64decode(text))["custom"]["roundgate"]
    assert kept["subject"] == "ann" * 300
    assert "baggage" not in kept
    with pytest.raises(ToolError, match="client_context: false"):
        messages.encoded(facts("t", Principal("i" * 1_024, "ä" * 1_024), "k", 1, {}))
    for odd in (Principal("i", "ann\ud800"), Principal("i", "ann", "\ud800")):
        with pytest.raises(ToolError, match="not valid Unicode"):
            facts("t", odd, "k", 1, {})


async def test_an_answer_over_the_limit_of_the_back_end_is_an_error(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "The function desk answered more than 1000 bytes (max_response_bytes); ask for less"
    backend = {"max_response_bytes": 1_000}
    _, result = await called(patch, tmp_path, said("x" * 2_000), backend=backend)
    assert error_of(result) == f"{text}{DOUBT}"
    _, result = await called(patch, tmp_path, said("x" * 2_000), backend=backend, idempotent=True)
    assert error_of(result) == text


# Durable functions

ARN = "arn:aws:lambda:eu-central-1:123456789012:function:desk:7/durable-execution/k/1"


def execution(status: str, **members: Any) -> bytes:
    """What AWS Lambda says of an execution."""
    known = {"DurableExecutionArn": ARN, "DurableExecutionName": "k", "StartTimestamp": 1.0}
    return answer(
        json.dumps({**known, "FunctionArn": "arn:f", "Status": status, **members}).encode()
    )


def boto3_knows() -> bool:
    """Whether this boto3 is new enough."""
    from botocore.session import get_session

    return "GetDurableExecution" in get_session().get_service_model("lambda").operation_names


knows_durable = pytest.mark.skipif(not boto3_knows(), reason="an older boto3")
STARTED = answer(b"", "202 Accepted", X_Amz_Durable_Execution_Arn=ARN)


@knows_durable
async def test_an_execution_of_a_durable_function_is_started_under_a_name_and_followed(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    busy = refused("429 Throttled", "TooManyRequestsException", Retry_After="60")
    running, done = execution("RUNNING"), execution("SUCCEEDED", Result='{"total": 3}')
    async with service(STARTED, running, busy, execution("PAUSED"), done) as told:
        use(patch, told.url)
        durable = {"durable": {"every_s": 1}, "task": "required", "qualifier": "live"}
        declared = entry({"input_schema": ANY, "function": "desk", **durable})
        async with gateway_with(tmp_path, declared) as mcp:
            tasks = TaskClient(mcp)
            ended = await tasks.over(await tasks.begin("tool", a=1))
    assert ended["result"]["structuredContent"] == {"total": 3}
    assert told.request_lines[0].startswith("POST /2015-03-31/functions/desk%3Alive/invocations")
    assert told.header("x-amz-invocation-type", 0) == ["Event"]
    (name,) = told.header("x-amz-durable-execution-name", 0)
    assert 1 <= len(name) <= 64
    looks = [line for line in told.request_lines if line.startswith("GET")]
    assert len(looks) == 5  # the last one fetches the result
    assert set(looks) == {
        "GET /2025-12-01/durable-executions/arn%3Aaws%3Alambda%3Aeu-central-1%3A123456789012%3Afunction%3A"
        "desk%3A7%2Fdurable-execution%2Fk%2F1 HTTP/1.1"
    }


@knows_durable
async def test_an_execution_that_ends_badly_is_an_error(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failure = {"ErrorType": "E", "ErrorMessage": "no", "StackTrace": ["s"]}
    ends = {
        "The job ended as FAILED: E: no": execution("FAILED", Error=failure),
        "The job ended as TIMED_OUT": execution("TIMED_OUT"),
        "does not exist": refused("404 No", "ResourceNotFoundException"),
    }
    answers = [one for last in ends.values() for one in (STARTED, last)]
    async with service(*answers) as told:
        use(patch, told.url)
        declared = entry({"input_schema": ANY, "durable": {"every_s": 1}})
        async with gateway_with(tmp_path, declared) as mcp:
            for text in ends:
                assert text in error_of(await mcp.call("tool"))


@knows_durable
async def test_a_function_that_is_not_durable_is_named(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, result = await called(patch, tmp_path, answer(b"", "202 Accepted"), durable={})
    assert "started no durable execution" in error_of(result)


async def cancelled_job(
    patch: pytest.MonkeyPatch, directory: Path, *answers: bytes, requests: int, **tool: Any
) -> Service:
    """What is sent for a task that is cancelled once its job has been polled."""
    async with service(*answers) as told:
        use(patch, told.url)
        declared = entry({"input_schema": ANY, "task": "required", **tool})
        async with gateway_with(directory, declared) as mcp:
            tasks = TaskClient(mcp)
            task_id = await tasks.begin("tool", a={"b": 1}, what="x")
            await sent(told, 2)
            await tasks.cancel(task_id)
            await sent(told, requests)
            assert (await tasks.get(task_id))["status"] == "cancelled"
            await asyncio.sleep(0.2)
    return told


async def sent(told: Service, requests: int) -> None:
    async with asyncio.timeout(60):
        while len(told.requests) < requests:  # noqa: ASYNC110 - in another task's service
            await asyncio.sleep(0.02)


@knows_durable
@pytest.mark.parametrize(
    "last",
    [answer(b'{"StopTimestamp": 1.0}'), refused("404 No", "ResourceNotFoundException")],
    ids=["stopped", "gone"],
)
async def test_the_execution_of_a_cancelled_task_is_stopped(
    patch: pytest.MonkeyPatch, tmp_path: Path, last: bytes
) -> None:
    durable = {"every_s": 600, "cancel": True}
    answers = (STARTED, execution("RUNNING"), last)
    told = await cancelled_job(patch, tmp_path, *answers, requests=3, durable=durable)
    assert told.request_lines[2:] == [
        "POST /2025-12-01/durable-executions/arn%3Aaws%3Alambda%3Aeu-central-1%3A123456789012%3Afunction%3A"
        "desk%3A7%2Fdurable-execution%2Fk%2F1/stop HTTP/1.1"
    ]


@knows_durable
async def test_an_execution_that_cannot_be_stopped_because_it_is_over_is_left_alone(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no, done = refused("400 No", "InvalidParameterValueException"), execution("SUCCEEDED")
    answers = (STARTED, execution("RUNNING"), no, done)
    durable = {"every_s": 600, "cancel": True}
    told = await cancelled_job(patch, tmp_path, *answers, requests=4, durable=durable)
    assert [line.partition(" ")[0] for line in told.request_lines] == ["POST", "GET", "POST", "GET"]


@knows_durable
async def test_an_execution_goes_on_where_nobody_says_otherwise(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    durable, answers = {"every_s": 600}, (STARTED, execution("RUNNING"))
    told = await cancelled_job(patch, tmp_path, *answers, requests=2, durable=durable)
    assert len(told.requests) == 2


FOLLOWED = {"poll": {"look": ["{id}", 1, {"of": "{id}"}]}, "succeeded": ["done"], "every_s": 1}


UNLUCKY = (
    said({"errorMessage": "out of memory"}, failed=True),
    said({"statusCode": 503, "body": "{}"}),
    said({"statusCode": 429, "body": "{}"}),
    refused("429 Throttled", "TooManyRequestsException"),
)


async def test_a_job_is_looked_at_again_when_the_function_cannot_tell_just_now(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = said({"id": 7}), *UNLUCKY, said({"status": "done", "total": 3})
    job = {**FOLLOWED, "every_s": 0.1}
    told, result = await called(patch, tmp_path, *answers, job=job)
    assert result["structuredContent"] == {"status": "done", "total": 3}
    assert json.loads(told.body()) == {"look": ["7", 1, {"of": "7"}]}


async def test_a_function_that_does_not_tell_of_its_job_is_an_error(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = said({"id": 7})
    untold = {
        "answered 400 Bad Request to starting the job": [said({"statusCode": 400, "body": "{}"})],
        "answered 403 Forbidden to following the job": [
            started,
            said({"statusCode": 403, "body": "{}"}),
        ],
        "sent a status of the job that is not JSON": [
            started,
            said({"statusCode": 200, "body": "soon"}),
        ],
    }
    async with service(*(one for answers in untold.values() for one in answers)) as told:
        use(patch, told.url)
        job = {**FOLLOWED, "every_s": 0.1}
        async with gateway_with(tmp_path, entry({"input_schema": ANY, "job": job})) as mcp:
            for text in untold:
                assert text in error_of(await mcp.call("tool"))


@pytest.mark.parametrize("function", [None, "clerk:live"])
async def test_the_function_that_knows_of_jobs_is_told_of_a_cancelled_task(
    patch: pytest.MonkeyPatch, tmp_path: Path, function: str | None
) -> None:
    job = {
        "poll": {"look": "{id}"},
        "succeeded": ["done"],
        "every_s": 600,
        "cancel": {"end": "{id}", "of": "{a}", "text": "{what}: {id}"},
        "function": function,
    }
    schema = {"type": "object", "properties": {"a": {}, "what": {}}}
    answers = said({"id": 7}), said({"status": "running"}), said(None)
    told = await cancelled_job(patch, tmp_path, *answers, requests=3, job=job, input_schema=schema)
    assert len(told.requests) == 3
    assert json.loads(told.body()) == {"end": "7", "of": {"b": 1}, "text": "x: 7"}
    asked = "clerk%3Alive" if function else "desk"
    assert f"/functions/{asked}/invocations" in told.request_lines[2]
    assert told.header("x-amz-invocation-type", 2) == ["RequestResponse"]


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "not"])
async def test_the_job_of_a_start_whose_answer_is_of_no_use_is_found_again_and_cancelled(
    patch: pytest.MonkeyPatch, tmp_path: Path, idempotent: bool
) -> None:
    job = {"poll": {"look": "{id}"}, "succeeded": ["done"], "cancel": {"end": "{id}"}}
    failed = said({"errorMessage": "out of memory"}, failed=True)
    answers = (failed, said({"id": 7}), said(None)) if idempotent else (failed,)
    async with service(*answers) as told:
        use(patch, told.url)
        declared = entry({"input_schema": ANY, "task": "required", "job": job})
        declared["tools"][0]["idempotent"] = idempotent
        async with gateway_with(tmp_path, declared) as mcp:
            tasks = TaskClient(mcp)
            task = await tasks.over(await tasks.begin("tool"))
            assert "out of memory" in task["result"]["content"][0]["text"]
            await sent(told, len(answers))
            await asyncio.sleep(0.2)
    assert len(told.requests) == len(answers)
    if idempotent:
        assert json.loads(told.body()) == {"end": "7"}


# Declarations

CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"tools": []}, "has no tools: list them in `tools`, or set `describe`"),
    "describes itself, whoever that is": (
        {"describe": True, "function": None},
        "describe needs `function`",
    ),
    "no function": ({"function": None}, "tool: no function; set `function`"),
    "two qualifiers": (
        {"function": "desk:live", "qualifier": "7"},
        "function already ends in a qualifier",
    ),
    "a name that is none": ({"function": "desk/../pay"}, "pattern"),
}
OF_TOOLS: dict[str, tuple[dict[str, Any], str]] = {
    "two ways": (
        {"interactive": True, "durable": {}},
        "interactive and durable cannot be combined",
    ),
    "a result of nothing": (
        {"asynchronous": True, "result": "/a"},
        "an asynchronous call has no result",
    ),
    "http with a payload": (
        {"http": {"method": "GET", "path": "/"}, "payload": {"fixed": {"a": 1}}},
        "http cannot be combined with payload",
    ),
    "one name for two": (
        {"payload": {"arguments_in": "a", "fixed": {"a": 1}}},
        "two members have this name; rename one",
    ),
}


@pytest.mark.parametrize("name", [*CONTRADICTIONS, *OF_TOOLS])
def test_settings_that_contradict_each_other_are_refused(name: str) -> None:
    if name in OF_TOOLS:
        changes, message = OF_TOOLS[name]
        given = entry(changes)
    else:
        changes, message = CONTRADICTIONS[name]
        given = {**entry({}), **changes}
    with pytest.raises(ValueError, match=message):
        LambdaBackendConfig.model_validate(given)


DECLARED: dict[str, tuple[dict[str, Any], str]] = {
    "no object": (
        {"input_schema": {"type": "array"}},
        'input_schema: the arguments are an object; set "type": "object"',
    ),
    "no schema": (
        {"input_schema": {"type": "object", "properties": 7}},
        "not a usable JSON Schema",
    ),
    "a name that is taken": (
        {
            "input_schema": {"type": "object", "properties": {"inputResponses": {}}},
            "interactive": True,
        },
        "the gateway uses inputResponses itself; use other names",
    ),
    "a variable of nothing": (
        {"job": {"poll": {"job": "{name}"}, "succeeded": ["done"]}},
        "job needs name, which job.variables does not have",
    ),
    "a cancel of nothing": (
        {"job": {"poll": {"job": "{id}"}, "succeeded": ["done"], "cancel": {"x": "{y}"}}},
        "job.cancel needs y, which neither job.variables nor input_schema has",
    ),
    "a path of nothing": (
        {"http": {"method": "GET", "path": "/orders/{order}"}},
        "http.path needs order, which input_schema does not have",
    ),
    "an argument to ask for that there is none of": ({"ask_for": ["x"]}, "ask_for names x"),
}


@pytest.mark.parametrize("name", DECLARED)
def test_a_tool_that_cannot_be_offered_is_a_problem_at_its_place(
    patch: pytest.MonkeyPatch, name: str
) -> None:
    use(patch, "http://127.0.0.1:1")
    changes, message = DECLARED[name]
    with pytest.raises(ConfigError) as raised:
        build(entry({}, changes | {"name": "second"}))
    (problem,) = raised.value.problems
    assert problem.path == "backends[0].tools[1]"
    assert message in problem.message


def build(backend: dict[str, Any], where: Path = Path(), **settings: Any) -> Any:
    """An app with this back end."""
    file = config_of({"backends": [backend], "limits": {"strict": True}}, where)
    return built(file, Settings(**settings))


@pytest.mark.parametrize("kept", [None, b"", b"{}", b"[]", b"roundgate-index 1\n"])
def test_a_cold_start_invokes_nothing(
    patch: pytest.MonkeyPatch, tmp_path: Path, kept: bytes | None
) -> None:
    use(patch, "http://127.0.0.1:1")
    if kept is not None:
        (tmp_path / "desk.index").write_bytes(kept)
    from roundgate.runtime import loading

    backend = {**entry(describe=True)}
    file = config_of({"backends": [backend]}, tmp_path)
    with pytest.raises(ConfigError, match="a cold start does not invoke functions") as raised:
        loading.load(file, is_cold=True)
    assert "roundgate compile" in raised.value.problems[0].remedy


def test_an_index_of_another_version_says_to_compile_again(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(patch, "http://127.0.0.1:1")
    from roundgate.runtime import loading

    backend = entry(describe=True)
    index = write_index([], LambdaBackendConfig.model_validate(backend))
    (tmp_path / "desk.index").write_bytes(index.replace(b"lambda index 1", b"lambda index 0"))
    file = config_of({"backends": [backend]}, tmp_path)
    with pytest.raises(ConfigError) as raised:
        loading.load(file, is_cold=True)
    (problem,) = raised.value.problems
    assert "desk.index was compiled by another version of Roundgate" in problem.message
    assert "roundgate compile" in problem.remedy


def test_an_index_is_of_one_function_and_what_is_declared_comes_first(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from roundgate.runtime import loading

    told = [
        {"name": name, "description": "From it.", "inputSchema": ANY} for name in ("tool", "b", "b")
    ]
    backend = entry({}, describe=True)
    (tmp_path / "desk.index").write_bytes(
        write_index(told, LambdaBackendConfig.model_validate(backend))
    )
    assert FORMAT.encode() in (tmp_path / "desk.index").read_bytes()
    file = config_of({"backends": [backend]}, tmp_path)
    served = loading.load(file, is_cold=True).catalog
    assert {name: one.tool.definition["description"] for name, one in served.tools.items()} == {
        "tool": "A tool.",
        "b": "From it.",
    }
    assert ["another tool has the same name" in str(one) for one in served.left_out] == [True]
    other = config_of({"backends": [{**backend, "function": "other"}]}, tmp_path)
    with pytest.raises(ConfigError, match="is not an index of other"):
        loading.load(other, is_cold=True)


async def test_nothing_that_is_sent_or_said_is_in_the_log(
    patch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    failed = said({"errorType": "E", "errorMessage": "quite private"}, failed=True)
    await called(patch, tmp_path, failed, arguments={"note": "very private"})
    assert "private" not in caplog.text


async def test_an_invocation_is_in_the_audit_log_without_its_payload(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with service(said({"n": 1}), said({}, failed=True)) as functions:
        use(patch, functions.url)
        audit = {"directory": str(tmp_path / "audit"), "key": KEY}
        async with gateway_with(tmp_path, entry({"input_schema": ANY}), audit=audit) as mcp:
            await mcp.call("tool", {"text": "tell-nobody"})
            await mcp.call("tool", {"text": "tell-nobody"})
    works, fails = records(tmp_path / "audit", "requested")
    assert [works["request"], works["outcome"]] == ["Lambda.Invoke desk", "ok"]
    assert works["sent"] == DIGESTS.of({"text": "tell-nobody"})
    assert fails["outcome"] == "FunctionError"
    assert "tell-nobody" not in text(tmp_path / "audit")
