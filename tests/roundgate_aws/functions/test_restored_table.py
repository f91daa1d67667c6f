"""A table restored from a backup (docs/runbooks/restore-table.md): what became of tasks, leases and
`once` records that were written after the restored moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from roundgate.clock import Clock
from roundgate.settings import StateConfig
from roundgate_aws import http as lambda_http
from roundgate_aws import worker as lambda_worker
from tests.roundgate_aws.functions.at_aws import REQUEUE_S, begin, die, result, work
from tests.roundgate_aws.functions.at_aws import dynamodb as dynamodb
from tests.roundgate_aws.functions.at_aws import endpoint as endpoint
from tests.roundgate_aws.functions.at_aws import environ as environ
from tests.roundgate_aws.functions.at_aws import functions as functions
from tests.roundgate_aws.functions.at_aws import witness as witness
from tests.roundgate_aws.functions.conftest import Functions, LambdaContext, recorded
from tests.support.dynamodb import Emulator
from tests.support.rounds import accept, retry

LEEWAY_S = 10
"""More than the seconds for which a token is valid after its expiry."""
ONCE: dict[str, Any] = {"name": "once", "arguments": {}}


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let seconds pass for all functions."""

    def pass_s(seconds: float) -> None:
        now_ms = Clock.now_ms
        monkeypatch.setattr(Clock, "now_ms", lambda clock: now_ms(clock) + int(1000 * seconds))

    return pass_s


@contextmanager
def restored(
    dynamodb: Emulator, environ: dict[str, str], backup: list[dict[str, Any]]
) -> Iterator[Functions]:
    """Both functions on another table with the rows of a backup."""
    with dynamodb.table() as table:
        for item in backup:
            dynamodb.client().put_item(TableName=table, Item=item)
        own = {**environ, "GATEWAY_STORE": f"dynamodb://{table}"}
        with (
            closing(lambda_http.make_handler(own)) as http,
            closing(lambda_worker.make_handler(own)) as worker,
        ):
            yield Functions(http, worker)


def answer(functions: Functions, task_id: str) -> None:
    answers = {"taskId": task_id, "inputResponses": {"one": accept(text="x")}}
    result(functions, "tasks/update", answers)


def status(functions: Functions, task_id: str) -> str:
    return str(result(functions, "tasks/get", {"taskId": task_id})["status"])


def sweep(functions: Functions) -> dict[str, float]:
    swept: dict[str, float] = functions.worker(recorded("schedule"), LambdaContext())
    return swept


def test_tasks_are_again_as_they_were_at_the_restored_moment(
    functions: Functions, environ: dict[str, str], dynamodb: Emulator, later: Any
) -> None:
    table = environ["GATEWAY_STORE"].removeprefix("dynamodb://")
    asking, leased = begin(functions, "usual"), begin(functions, "long")
    work(functions, asking)
    die(environ, leased)  # a worker has a lease at the restored moment
    sweep(functions)  # leaves its time in the table
    backup = dynamodb.items(table)
    answer(functions, asking)
    work(functions, asking)
    assert status(functions, asking) == "completed"
    younger = begin(functions, "usual")
    later(3600)

    with restored(dynamodb, environ, backup) as own:
        unknown = own.ask("http_api_v2", "tasks/get", {"taskId": younger})
        assert unknown["error"]["code"] == -32602
        assert status(own, asking) == "input_required", "the answer came after that moment"
        sweep(own)  # sees only a time that is an hour old, and waits for the next sweep
        later(REQUEUE_S)
        assert sweep(own)["late"] == 1, "its worker's lease has lapsed"
        work(own, leased)
        assert status(own, leased) == "completed"
        answer(own, asking)
        work(own, asking)
        assert status(own, asking) == "completed", "its later steps have run a second time"


def test_a_used_token_of_once_is_unused_again_until_it_expires(
    functions: Functions, environ: dict[str, str], dynamodb: Emulator, later: Any
) -> None:
    asked = result(functions, "tools/call", ONCE)
    backup = dynamodb.items(environ["GATEWAY_STORE"].removeprefix("dynamodb://"))
    first = retry(ONCE, asked, one=accept(text="first"))
    assert result(functions, "tools/call", first)["content"][0]["text"].startswith("first")
    other = retry(ONCE, asked, one=accept(text="other"))
    refused = functions.ask("http_api_v2", "tools/call", other)
    assert "error" in refused, "a used token has one answer"

    with restored(dynamodb, environ, backup) as own:
        again = result(own, "tools/call", other)["content"][0]["text"]
        assert again.startswith("other"), "the table does not know that the token was used"
    with restored(dynamodb, environ, backup) as own:
        later(StateConfig().lifetime_s + LEEWAY_S)
        assert own.ask("http_api_v2", "tools/call", other)["error"]["code"] == -32602
