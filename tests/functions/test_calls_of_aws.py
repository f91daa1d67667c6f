"""Both functions at work on DynamoDB Local and moto: what they are seen to call is what
`template.yaml` allows them."""

from __future__ import annotations

import re
from typing import Any

from tests.functions.at_aws import Witness, begin, die, forget_account, result, work
from tests.functions.at_aws import dynamodb as dynamodb
from tests.functions.at_aws import endpoint as endpoint
from tests.functions.at_aws import environ as environ
from tests.functions.at_aws import functions as functions
from tests.functions.at_aws import witness as witness
from tests.functions.calling import LARGE
from tests.functions.conftest import Functions, LambdaContext, recorded
from tests.support import permissions
from tests.support.rounds import accept, retry


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


def everything(functions: Functions, environ: dict[str, str]) -> None:
    """A call with rounds, one that must not happen twice, tasks from beginning to end, with which a worker has died, a
    result that is read in parts, a cancellation, a sweep."""
    assert rounds(functions, "ask", "one", "two", "three") == "one two three"
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
    other = begin(functions, "later", text=LARGE)
    result(functions, "tasks/cancel", {"taskId": other})
    assert result(functions, "tasks/get", {"taskId": other})["status"] == "cancelled"
    assert functions.worker(recorded("schedule"), LambdaContext())["working"] == 1


def test_what_the_functions_are_seen_to_do_is_what_they_may(
    functions: Functions, witness: Witness, environ: dict[str, str]
) -> None:
    everything(functions, environ)
    template = permissions.deployed()
    assert witness.seen["gateway"] == permissions.allowed(template, "GatewayFunction")
    assert (
        witness.seen["worker"]
        == permissions.allowed(template, "WorkerFunction") - permissions.OF_THE_MAPPING
    )
