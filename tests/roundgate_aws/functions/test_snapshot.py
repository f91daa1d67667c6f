"""A snapshot is safe: two processes that go on from one initialised one share no secret, no
number and no connection.

The clones are made as AWS Lambda's SnapStart makes them, by continuing one process in several: here
with `fork`. What the functions need, the keys among it, is made after they are initialised, so
nothing of it can be in the snapshot.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL
from roundgate_aws.stack.services import create_table
from tests.roundgate_aws.functions.conftest import asking, recorded, write_config
from tests.support import moto_server
from tests.support.dynamodb import Emulator
from tests.support.dynamodb import dynamodb as dynamodb
from tests.support.rounds import KEYS, accept, retry


class Snapshot:
    """The process and its clones."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.holds: dict[str, Any] = self._read()

    def invoke(self, clone: int, kind: str, event: dict[str, Any]) -> Any:
        """What a clone answers to an event."""
        assert self._process.stdin is not None
        print(json.dumps([clone, kind, event]), file=self._process.stdin, flush=True)
        return self._read()

    def ask(self, clone: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a request that reaches a clone of the gateway function."""
        answer = self.invoke(clone, "http", asking("http_api_v2", method, params))
        result: dict[str, Any] = json.loads(answer["body"])["result"]
        return result

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)


@pytest.fixture
def snapshot(tmp_path: Path, dynamodb: Emulator) -> Iterator[Snapshot]:
    pytest.importorskip("boto3")
    config = write_config(tmp_path)
    name = f"snapshot-{uuid.uuid4()}"  # of the table, the queue and the secret
    with ExitStack() as stack:
        moto = stack.enter_context(moto_server.running())
        aws = {
            "AWS_ENDPOINT_URL": moto,
            "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.url,
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        queue = f"{moto}/123456789012/{name}"
        environ = {
            **aws,
            "AWS_LAMBDA_FUNCTION_NAME": "gateway",
            "AWS_LAMBDA_INITIALIZATION_TYPE": "snap-start",
            "GATEWAY_ALLOW_ANONYMOUS": "true",
            "GATEWAY_CONFIG": str(config),
            "GATEWAY_STATE_KEYS_SECRET": name,
            "GATEWAY_STORE": f"dynamodb://{name}",
            "GATEWAY_QUEUE": f"sqs://{queue}",
            "GATEWAY_LOG_LEVEL": "error",
        }
        process = stack.enter_context(started(environ))
        stack.callback(process.kill)
        made = Snapshot(process)  # and only now there is anything that it could have read
        session = moto_server.session()
        session.client("secretsmanager", endpoint_url=moto).create_secret(
            Name=name, SecretString=KEYS
        )
        session.client("sqs", endpoint_url=moto).create_queue(QueueName=name)
        create_table(session.client("dynamodb", endpoint_url=dynamodb.url), name)
        yield made


def started(environ: dict[str, str]) -> subprocess.Popen[str]:
    """The process, being initialised."""
    program = [sys.executable, "-m", "tests.support.snapshot"]
    root, pipe = Path(__file__).parents[3], subprocess.PIPE
    return subprocess.Popen(
        program, env={**os.environ, **environ}, cwd=root, stdin=pipe, stdout=pipe, text=True
    )


def nonce(state: str) -> bytes:
    """The nonce of a sealed state: its first 12 bytes."""
    text = state.split(".")[2]
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))[:12]


def test_an_initialised_process_holds_no_connection_and_runs_nothing(snapshot: Snapshot) -> None:
    assert snapshot.holds == {"sockets": [], "threads": 1}


def test_clones_never_use_the_same_number_twice_and_go_on_for_each_other(
    snapshot: Snapshot,
) -> None:
    params: dict[str, Any] = {"name": "ask", "arguments": {}}
    asked = [snapshot.ask(clone, "tools/call", params) for clone in (0, 1)]
    assert len({nonce(one["requestState"]) for one in asked}) == 2
    for clone, other in ((0, 1), (1, 0)):
        done = snapshot.ask(
            clone, "tools/call", retry(params, asked[other], who=accept(name="Ada"))
        )
        assert done["content"][0]["text"] == "Hello, Ada!"


def test_clones_draw_other_numbers_in_tools_and_for_traces(snapshot: Snapshot) -> None:
    params = {"name": "drawn", "arguments": {}}
    one, other = (snapshot.ask(clone, "tools/call", params) for clone in (0, 1))
    numbers = [json.loads(each["content"][0]["text"]) for each in (one, other)]
    assert len({*numbers[0], *numbers[1]}) == 6


def test_of_two_clones_of_the_worker_one_takes_a_task_and_the_other_goes_on_with_it(
    snapshot: Snapshot,
) -> None:
    params: dict[str, Any] = {"name": "later", "arguments": {}}
    created = [snapshot.ask(clone, "tools/call", params)["taskId"] for clone in (0, 1)]
    assert len(set(created)) == 2
    for task_id in created:
        for clone in (0, 1):  # each message twice, as SQS may have it
            assert snapshot.invoke(clone, "worker", message(task_id)) == {"batchItemFailures": []}
        answers = {"who": accept(name="Ada")}
        assert snapshot.ask(0, "tasks/get", {"taskId": task_id})["status"] == "input_required"
        snapshot.ask(1, "tasks/update", {"taskId": task_id, "inputResponses": answers})
        snapshot.invoke(1, "worker", message(task_id))
        task = snapshot.ask(0, "tasks/get", {"taskId": task_id})
        assert task["result"]["content"][0]["text"] == "Hello, Ada!"


def message(task_id: str) -> dict[str, Any]:
    """The queue's message of a task of the local subject."""
    event = recorded("sqs")
    event["Records"] = [{**event["Records"][0], "body": f"{task_owner(LOCAL)}.{task_id}"}]
    return event
