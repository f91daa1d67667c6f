"""Both functions at work on DynamoDB Local and moto: what they are seen to call is what
`template.yaml` allows them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from roundgate.tasks import hidden
from tests.roundgate_aws.functions.at_aws import Witness, begin, die, forget_account, result, work
from tests.roundgate_aws.functions.at_aws import dynamodb as dynamodb
from tests.roundgate_aws.functions.at_aws import endpoint as endpoint
from tests.roundgate_aws.functions.at_aws import environ as environ
from tests.roundgate_aws.functions.at_aws import functions as functions
from tests.roundgate_aws.functions.at_aws import witness as witness
from tests.roundgate_aws.functions.calling import LARGE
from tests.roundgate_aws.functions.conftest import Functions, LambdaContext, recorded
from tests.support import permissions
from tests.support.rounds import accept, retry
from tests.support.sessions import BOTH, calling, opening


def rounds(functions: Functions, tool: str, *keys: str) -> str:
    """What a call says that asks for these, one a round."""
    params: dict[str, Any] = {"name": tool, "arguments": {}}
    answer = result(functions, "tools/call", params)
    for key in keys:
        last = retry(params, answer, **{key: accept(text=key)})
        answer = result(functions, "tools/call", last)
    text: str = answer["content"][0]["text"]
    if tool == "once":  # a client that has lost the answer
        assert result(functions, "tools/call", last)["content"][0]["text"] == text
    return text


def older(functions: Functions, method: str, message: Any, **headers: str) -> dict[str, Any]:
    """What a client of 2025-11-25 is answered."""
    event = recorded("http_api_v2")
    event["requestContext"]["http"]["method"] = method
    known = {name: value for name, value in event["headers"].items() if "mcp" not in name.lower()}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    event["headers"] = {**known, "accept": BOTH, "content-type": "application/json", **named}
    event |= {"body": json.dumps(message), "isBase64Encoded": False}
    answered: dict[str, Any] = functions.http(event, LambdaContext())
    return answered


def asked_on_a_stream(functions: Functions) -> None:
    """A call of a client with a session: one that is replaced, and one that goes on to its end."""
    begun = older(functions, "POST", opening())
    session = {
        "mcp_session_id": {name.lower(): value for name, value in begun["headers"].items()}[
            "mcp-session-id"
        ],
        "mcp_protocol_version": "2025-11-25",
    }
    for _ in range(2):
        asked = older(functions, "POST", calling("keep", text=LARGE[:100_000]), **session)["body"]
    question = json.loads(re.findall(r"data: (\{.*\})", asked)[-1])
    answer = {"jsonrpc": "2.0", "id": question["id"], "result": accept(text="one")}
    assert older(functions, "POST", answer, **session)["statusCode"] == 202
    event_id = re.findall(r"id: (\S+)", asked)[-1]
    ended = older(functions, "GET", None, last_event_id=event_id, **session)["body"]
    assert "onexxx" in ended


def everything(functions: Functions, environ: dict[str, str]) -> None:
    """A call with rounds, one that must not happen twice, tasks from beginning to end, with which a worker has died, a
    result that is read in parts, a cancellation, a sweep."""
    assert rounds(functions, "ask", "one", "two", "three") == "one two three"
    asked_on_a_stream(functions)
    assert rounds(functions, "once", "one") == "one" + LARGE
    task_id = begin(functions, "later", text=LARGE)
    die(environ, task_id)
    work(functions, task_id)
    assert list(result(functions, "tasks/get", {"taskId": task_id})["inputRequests"]) == [
        "one",
        "two",
    ]
    for key, text in (("one", "little"), ("two", "much" * 5_000)):
        result(
            functions,
            "tasks/update",
            {"taskId": task_id, "inputResponses": {key: accept(text=text)}},
        )
    work(functions, task_id)
    told = begin(functions, "tell")
    forget_account(environ)
    work(functions, told)
    shown = result(functions, "tasks/get", {"taskId": told})["result"]["content"][0]["text"]
    cursor = re.findall(r"cursor[\W]+([\w-]+\.\d+)", shown)[-1]
    rest = {"name": "read_more", "arguments": {"cursor": cursor}}
    assert "xxx" in result(functions, "tools/call", rest)["content"][0]["text"]
    paying = begin(functions, "pay")
    work(functions, paying)
    result(functions, "tasks/cancel", {"taskId": paying})
    other = begin(functions, "later", text=LARGE)
    result(functions, "tasks/cancel", {"taskId": other})
    assert result(functions, "tasks/get", {"taskId": other})["status"] == "cancelled"
    assert "late" in functions.worker(recorded("schedule"), LambdaContext())


def test_what_the_functions_are_seen_to_do_is_what_they_may(
    functions: Functions,
    witness: Witness,
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hidden, "TIDY_MS", 0)
    everything(functions, environ)
    template = permissions.deployed()
    assert witness.seen["gateway"] == permissions.allowed(template, "GatewayFunction")
    assert (
        witness.seen["worker"]
        == permissions.allowed(template, "WorkerFunction") - permissions.OF_THE_MAPPING
    )
