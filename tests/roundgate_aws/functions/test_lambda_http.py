"""Recorded events of API Gateway and of Function URLs through the handler of the gateway
function."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from roundgate import settings
from roundgate.errors import ConfigError
from roundgate.runtime import checks
from roundgate_aws import http as lambda_http
from tests.roundgate_aws.functions.conftest import (
    Functions,
    LambdaContext,
    asking,
    environment,
    made,
    recorded,
)
from tests.support import root_logger
from tests.support.log_lines import log_lines
from tests.support.rounds import accept, retry

PAYLOADS = ["http_api_v2", "rest_api_v1"]
"""An event of each version of the payload; a function URL has that of an HTTP API."""
HTTP_EVENTS = [*PAYLOADS, "function_url"]


BASE = "https://mcp.example.com/tools/v1"


@contextmanager
def serving(folder: Path, public_url: str, **sections: Any) -> Iterator[Any]:
    """The handler of a gateway with further sections."""
    environ = environment(folder, **sections) | {"GATEWAY_PUBLIC_URL": public_url}
    with root_logger.lent(), closing(lambda_http.make_handler(environ)) as handler:
        yield handler


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Functions]:
    """Both functions, as `environ` has them."""
    with made(environment(tmp_path_factory.mktemp("functions"))) as functions:
        yield functions


@pytest.fixture(scope="module")
def fronted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The handler of a gateway below a base path, with a view."""
    view = {"name": "few", "include": [{"name": "greet"}]}
    with serving(tmp_path_factory.mktemp("fronted"), BASE, views=[view]) as handler:
        yield handler


@pytest.fixture(scope="module")
def authorized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The handler of a gateway behind an authorizer of the API."""
    folder, url = tmp_path_factory.mktemp("authorized"), "https://mcp.example.com"
    with serving(folder, url, auth=AUTHORIZED) as handler:
        yield handler


AUTHORIZED = {"authorizer": "api-gateway", "issuer": "https://issuer.example", "scopes": ["mcp"]}


@pytest.mark.parametrize("kind", HTTP_EVENTS)
def test_a_tool_is_called_and_its_line_has_the_ids_of_the_request_and_of_the_invocation(
    functions: Functions, kind: str
) -> None:
    event = asking(kind, "tools/call", {"name": "greet", "arguments": {"name": "Adá"}})
    with log_lines() as lines:
        answer = functions.http(event, LambdaContext(aws_request_id="invocation"))
    assert answer["statusCode"] == 200
    assert answer["isBase64Encoded"] is False
    assert json.loads(answer["body"])["result"]["content"][0]["text"] == "Hello, Adá!"
    (line,) = lines.of("request")
    assert line["lambda_request"] == "invocation"
    assert line["api_request"] == event["requestContext"]["requestId"]
    assert line["address"]


@pytest.mark.parametrize("kind", HTTP_EVENTS)
def test_rounds_go_on_with_the_next_event(functions: Functions, kind: str) -> None:
    params: dict[str, Any] = {"name": "ask", "arguments": {}}
    asked = functions.ask(kind, "tools/call", params)["result"]
    assert list(asked["inputRequests"]) == ["who"]
    done = functions.ask(kind, "tools/call", retry(params, asked, who=accept(name="Ada")))
    assert done["result"]["content"][0]["text"] == "Hello, Ada!"


def at(stage: str, kind: str, method: str, path: str) -> dict[str, Any]:
    """An event of a stage of the API."""
    event = asking(kind, method, path=path)
    event["requestContext"]["stage"] = stage
    return event


@pytest.mark.parametrize(
    ("kind", "stage", "path"),
    [
        ("http_api_v2", "prod", "/prod/mcp"),
        ("http_api_v2", "$default", "/tools/v1/mcp"),
        ("http_api_v2", "$default", "/mcp/"),
        ("rest_api_v1", "prod", "/prod/mcp"),
        ("rest_api_v1", "prod", "/base/mcp"),
        ("rest_api_v1", "prod", "/base/prod/mcp"),
    ],
    ids=["stage", "base path", "slash", "stage of a REST API", "base path of a REST API", "both"],
)
def test_what_api_gateway_puts_in_front_of_the_path_is_taken_off(
    fronted: Any, kind: str, stage: str, path: str
) -> None:
    answer = fronted(at(stage, kind, "server/discover", path), LambdaContext())
    assert "result" in json.loads(answer["body"])


@pytest.mark.parametrize(
    ("stage", "path", "tools"),
    [
        ("$default", "/mcp", "all"),
        ("$default", "/few/mcp", "few"),
        ("prod", "/prod/few/mcp", "few"),
        ("prod", "/prod/mcp", "all"),
        ("few", "/few/mcp", "few"),
        ("events", "/events/mcp", "all"),
        ("$default", "/elsewhere", None),
        ("$default", "/fwe/mcp", None),
        ("$default", "/x/few/mcp", None),
        ("$default", "/$default/mcpx", None),
        ("prod", "/prod/fwe/mcp", None),
        ("prod", "/production/mcp", None),
    ],
)
def test_the_path_of_a_view_that_is_misspelt_reaches_no_other_endpoint(
    fronted: Any, stage: str, path: str, tools: str | None
) -> None:
    answer = fronted(at(stage, "http_api_v2", "tools/list", path), LambdaContext())
    if tools is None:
        assert answer["statusCode"] == 404
        return
    found = json.loads(answer["body"])["result"]["tools"]
    assert ([one["name"] for one in found] == ["greet"]) is (tools == "few")


@pytest.mark.parametrize(
    ("stage", "path"),
    [
        ("$default", "/events/forged"),
        ("prod", "/prod/events/forged"),
        ("events", "/events/events/forged"),
        ("$default", "/tools/v1/events/forged"),
        ("prod", "/prod/events/a/b"),
    ],
)
def test_a_service_reaches_the_event_of_its_token(fronted: Any, stage: str, path: str) -> None:
    answer = fronted(at(stage, "http_api_v2", "server/discover", path), LambdaContext())
    is_event = answer["body"] == '{"error":"There is no such event"}'
    assert (answer["statusCode"], is_event) == (404, path.endswith("forged"))


@pytest.mark.parametrize("kind", HTTP_EVENTS)
def test_a_call_ends_before_the_function_does(functions: Functions, kind: str) -> None:
    event = asking(kind, "tools/call", {"name": "left", "arguments": {}})
    answer = functions.http(event, LambdaContext(remaining_ms=11_000))
    left = json.loads(answer["body"])["result"]["structuredContent"]
    assert 9 < left <= 10


def test_a_client_cannot_send_the_header_of_another_adapter(functions: Functions) -> None:
    event = asking("http_api_v2", "tools/call", {"name": "left", "arguments": {}})
    event["headers"]["x-amzn-lambda-context"] = '{"deadline": 9999999999999}'
    answer = functions.http(event, LambdaContext(remaining_ms=11_000))
    assert json.loads(answer["body"])["result"]["structuredContent"] <= 10


def test_a_tool_that_takes_longer_is_a_tool_error_and_no_time_out_of_the_function(
    functions: Functions,
) -> None:
    event = asking("http_api_v2", "tools/call", {"name": "slow", "arguments": {}})
    result = json.loads(functions.http(event, LambdaContext(remaining_ms=1_300))["body"])["result"]
    assert result["isError"] is True
    assert re.search(r"did not finish within 0\.[23]\d* s", result["content"][0]["text"])


def test_a_long_call_is_answered_with_json_because_comments_would_arrive_at_its_end(
    tmp_path: Path,
) -> None:
    event = asking("http_api_v2", "tools/call", {"name": "slow", "arguments": {}})
    with serving(tmp_path, BASE, http={"keep_alive_s": 0.05}) as handler:
        answer = handler(event, LambdaContext(remaining_ms=1_300))
    assert json.loads(answer["body"])["result"]["isError"] is True


@pytest.mark.parametrize("kind", PAYLOADS)
def test_an_answer_that_lambda_cannot_return_is_an_error_that_says_so(
    functions: Functions, kind: str
) -> None:
    error = functions.ask(kind, "tools/call", {"name": "large", "arguments": {"megabytes": 7}})
    assert error["id"] == 1
    assert error["error"]["code"] == -32603
    assert "AWS Lambda returns" in error["error"]["message"]


def as_the_runtime_writes_it(answer: Any) -> int:
    """Bytes of a response: simplejson without `ensure_ascii`, which escapes two line separators
    nevertheless."""
    text = json.dumps(answer, ensure_ascii=False)
    return len(text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").encode())


ESCAPED = [
    pytest.param("quotes", 1_700_000, id="a body of 3.4 MB that the runtime makes one of 6.8"),
    pytest.param("lines", 1_400_000, id="a body of 4.2 MB that the runtime makes one of 8.4"),
]


@pytest.mark.parametrize(("name", "count"), ESCAPED)
def test_what_only_the_escaping_makes_too_large_is_returned_in_base64(
    functions: Functions, name: str, count: int
) -> None:
    event = asking("http_api_v2", "tools/call", {"name": name, "arguments": {"count": count}})
    answer = functions.http(event, LambdaContext())
    assert as_the_runtime_writes_it(answer) <= 6 * 1024 * 1024
    assert answer["isBase64Encoded"] is True
    result = json.loads(base64.b64decode(answer["body"]))["result"]
    assert len(result["content"][0]["text"]) == count


@pytest.mark.parametrize("kind", PAYLOADS)
def test_what_is_returned_never_has_more_than_6_mb_as_the_runtime_writes_it(
    functions: Functions, kind: str
) -> None:
    for name, count in (
        ("quotes", 1_500_000),
        ("quotes", 2_200_000),
        ("lines", 1_000_000),
        ("lines", 1_570_000),
    ):
        event = asking(kind, "tools/call", {"name": name, "arguments": {"count": count}})
        assert as_the_runtime_writes_it(functions.http(event, LambdaContext())) <= 6 * 1024 * 1024


def test_a_result_of_a_task_that_may_be_larger_than_a_function_returns_is_a_mistake(
    tmp_path: Path,
) -> None:
    environ = environment(tmp_path, tasks={"max_result_bytes": 5_000_000})
    with pytest.raises(
        ConfigError, match=r"(?s)tasks.max_result_bytes: is 5000000.*at most 4600000"
    ):
        lambda_http.make_handler(environ)


def test_the_largest_result_of_a_task_can_be_fetched_whatever_is_in_it() -> None:
    assert settings.TasksConfig().max_result_bytes <= checks.FETCHABLE_BYTES
    most = -(-checks.FETCHABLE_BYTES // 3) * 4 + lambda_http.ENVELOPE_BYTES
    assert most <= lambda_http.MAX_ANSWER_BYTES


def test_subscriptions_are_neither_advertised_nor_served(functions: Functions) -> None:
    capabilities = functions.ask("http_api_v2", "server/discover")["result"]["capabilities"]
    assert capabilities["tools"] == {}
    assert (
        functions.ask("http_api_v2", "subscriptions/listen", {"notifications": {}})["error"]["code"]
        == -32601
    )


def test_a_get_is_refused_as_on_any_server(functions: Functions) -> None:
    event = asking("http_api_v2", "server/discover")
    event["requestContext"]["http"]["method"] = "GET"
    assert functions.http(event, LambdaContext())["statusCode"] == 405


@pytest.mark.parametrize(
    "event",
    [recorded("sqs"), recorded("schedule"), {}, [], None, "x", {"requestContext": 1}],
    ids=str,
)
def test_an_event_of_another_kind_is_an_error_that_names_what_is_served(
    functions: Functions, event: Any
) -> None:
    with pytest.raises(ValueError, match="API Gateway and of Function URLs"):
        functions.http(event, LambdaContext())


def test_a_missing_setting_is_named_when_the_function_is_made(environ: dict[str, str]) -> None:
    del environ["GATEWAY_STATE_KEYS"]
    with pytest.raises(ConfigError, match="GATEWAY_STATE_KEYS"):
        lambda_http.make_handler(environ)


def test_without_authentication_a_function_is_made_only_if_that_is_meant(
    environ: dict[str, str], tmp_path: Path
) -> None:
    lambda_http.make_handler(environ)
    del environ["GATEWAY_ALLOW_ANONYMOUS"]
    with pytest.raises(ConfigError, match=r"(?s)auth: .*anyone.*AllowAnonymous=true"):
        lambda_http.make_handler(environ)
    environment(tmp_path, auth=AUTHORIZED)
    lambda_http.make_handler(environ | {"GATEWAY_PUBLIC_URL": BASE})


def test_a_table_needs_a_queue_that_functions_share(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="GATEWAY_QUEUE"):
        lambda_http.make_handler(environ | {"GATEWAY_STORE": "dynamodb://tasks"})


def test_the_handler_is_made_when_the_runtime_looks_for_it(environ: dict[str, str]) -> None:
    code = "import roundgate_aws.http as m; print('handler' in vars(m)); m.handler; print('handler' in vars(m))"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("before", ["", "/prod"])
@pytest.mark.parametrize("after", ["", "/mcp"])
def test_the_metadata_is_at_both_of_its_paths(authorized: Any, before: str, after: str) -> None:
    path = f"{before}/.well-known/oauth-protected-resource{after}"
    event = asking("http_api_v2", "tools/list", path=path)
    event["requestContext"]["http"]["method"] = "GET"
    answer = authorized(event, LambdaContext())
    assert answer["statusCode"] == 200
    assert json.loads(answer["body"])["resource"] == "https://mcp.example.com/mcp"


CLAIMS = {
    "iss": "https://issuer.example",
    "sub": "ada",
    "client_id": "editor",
    "scope": "mcp other",
}


@pytest.mark.parametrize(
    ("kind", "authorizer"),
    [
        ("http_api_v2", {"jwt": {"claims": CLAIMS, "scopes": None}}),
        ("http_api_v2", {"lambda": CLAIMS}),
        ("rest_api_v1", {"claims": CLAIMS}),
        ("rest_api_v1", {**CLAIMS, "principalId": "ada"}),
    ],
    ids=["JWT", "Lambda, HTTP API", "Cognito", "Lambda, REST API"],
)
def test_the_claims_of_an_authorizer_are_the_caller(
    authorized: Any, kind: str, authorizer: Any
) -> None:
    event = asking(kind, "tools/call", {"name": "greet", "arguments": {"name": "Ada"}})
    event["requestContext"]["authorizer"] = authorizer
    assert authorized(event, LambdaContext())["statusCode"] == 200


ODD_AUTHORIZERS: list[Any] = [
    *(None, "ada", 7, [], ["ada"], {}),
    *({"jwt": None}, {"jwt": "x"}, {"jwt": []}, {"jwt": {"claims": "x"}}),
    *({"claims": None}, {"claims": "{}"}, {"claims": [1]}),
    *({"lambda": None}, {"lambda": "x"}, {"lambda": {}}),
    *({"sub": {"a": 1}}, {"claims": {"sub": ["ada"]}}, {"claims": {"sub": None}}),
    *({"iam": {"userId": "x"}}, {"jwt": {"claims": {"iss": ["x"], "sub": "ada"}}}),
    {"claims": {"sub": "ada", "client_id": [1]}},
]


@pytest.mark.parametrize("kind", HTTP_EVENTS)
def test_an_authorizer_of_an_odd_shape_is_a_401(authorized: Any, kind: str) -> None:
    event = asking(kind, "tools/list")
    for authorizer in ODD_AUTHORIZERS:
        event["requestContext"]["authorizer"] = authorizer
        assert authorized(event, LambdaContext())["statusCode"] == 401, authorizer


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        (None, 401),
        ({**CLAIMS, "iss": "https://elsewhere.example"}, 401),
        ({**CLAIMS, "sub": ""}, 401),
        ({**CLAIMS, "scope": "other"}, 403),
    ],
    ids=["none", "another issuer", "no subject", "no scope"],
)
def test_without_claims_that_will_do_there_is_no_caller(
    authorized: Any, claims: Any, status: int
) -> None:
    event = asking("http_api_v2", "tools/list")
    event["headers"]["authorization"] = "Bearer whatever"
    event["headers"]["x-amzn-oidc-data"] = json.dumps(CLAIMS)
    if claims is not None:
        event["requestContext"]["authorizer"] = {"jwt": {"claims": claims}}
    answer = authorized(event, LambdaContext())
    assert answer["statusCode"] == status
    assert "resource_metadata=" in answer["headers"]["www-authenticate"]
