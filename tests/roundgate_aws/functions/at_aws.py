"""Both functions in this process, with DynamoDB Local and moto for AWS, and a
witness of what they call."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL
from roundgate.clock import Clock
from roundgate.runtime import startup
from roundgate.settings import process as settings
from roundgate.storage.tasks import TaskRef
from roundgate.tasks.events import Claim
from roundgate.tasks.stored import Claimed
from roundgate.tokens import keys
from roundgate_aws import http as lambda_http
from roundgate_aws import worker as lambda_worker
from tests.roundgate_aws.functions.conftest import (
    Functions,
    LambdaContext,
    recorded,
    write_config,
)
from tests.support import moto_server
from tests.support.dynamodb import Emulator
from tests.support.dynamodb import dynamodb as dynamodb
from tests.support.permissions import OPERATIONS, Permission

pytest.importorskip("boto3")

REGION, ACCOUNT = "eu-central-1", "123456789012"
REQUEUE_S = 30
"""Of these functions; a test has their clocks pass it."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Where SQS and Secrets Manager are."""
    with moto_server.running() as url:
        yield url


@dataclass
class Witness:
    """Sees each call that botocore makes, by the function at work."""

    seen: dict[str, set[Permission]] = field(
        default_factory=lambda: {"gateway": set(), "worker": set()}
    )
    used: Counter[str] = field(default_factory=Counter)
    """Units of DynamoDB, calls of the others, invocations of the functions."""
    at_work: str | None = None

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From now on. Each call goes on as ever; DynamoDB is asked to tell what it counts."""
        from botocore import xform_name
        from botocore.client import BaseClient

        make = BaseClient._make_api_call

        def seeing(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
            if self.at_work is None:
                return make(client, operation, arguments)
            action, resource = OPERATIONS[xform_name(operation)]
            index = arguments.get("IndexName")
            self.seen[self.at_work].add(
                (action, f"{resource}/index/{index}" if index else resource)
            )
            self.used[action] += 1
            if not action.startswith("dynamodb:"):
                return make(client, operation, arguments)
            answer = make(client, operation, {**arguments, "ReturnConsumedCapacity": "INDEXES"})
            consumed = answer["ConsumedCapacity"]
            kind = (
                "reads"
                if action in ("dynamodb:Query", "dynamodb:GetItem", "dynamodb:BatchGetItem")
                else "writes"
            )
            for one in consumed if isinstance(consumed, list) else [consumed]:
                self.used[kind] += one["CapacityUnits"]
                for name, index in one.get("GlobalSecondaryIndexes", {}).items():
                    self.used[f"{name} {kind}"] += index["CapacityUnits"]
            return answer

        monkeypatch.setattr(BaseClient, "_make_api_call", seeing)

    @contextmanager
    def of(self, function: str) -> Iterator[None]:
        """Everything until the end is a function's."""
        self.used[function] += 1
        self.at_work = function
        try:
            yield
        finally:
            self.at_work = None


@pytest.fixture
def environ(
    dynamodb: Emulator, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """That of both functions, with everything kept where AWS would keep it."""
    session = moto_server.session()
    queue = f"tasks-{uuid.uuid4()}"
    session.client("sqs", endpoint_url=endpoint).create_queue(QueueName=queue)
    secret = session.client("secretsmanager", endpoint_url=endpoint).create_secret(
        Name=f"keys-{uuid.uuid4()}", SecretString=keys.new_key()
    )
    tasks = {"requeue_after_s": REQUEUE_S, "max_call_bytes": 1_000_000}
    config = write_config(
        tmp_path, "calling.py", override={"tell": {"max_result": 1_000}}, tasks=tasks
    )
    moto_server.machine(monkeypatch, endpoint)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.url,
    }.items():
        monkeypatch.setenv(name, value)
    with dynamodb.table() as table:
        yield {
            "AWS_LAMBDA_FUNCTION_NAME": "function",
            "GATEWAY_ALLOW_ANONYMOUS": "true",
            "GATEWAY_CONFIG": str(config),
            "GATEWAY_STATE_KEYS_SECRET": secret["ARN"],
            "GATEWAY_STORE": f"dynamodb://{table}",
            "GATEWAY_QUEUE": f"sqs://sqs.{REGION}.amazonaws.com/{ACCOUNT}/{queue}",
        }


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> Witness:
    made = Witness()
    made.watch(monkeypatch)
    return made


@pytest.fixture
def functions(witness: Witness, environ: dict[str, str]) -> Iterator[Functions]:
    with witness.of("gateway"):
        http = lambda_http.make_handler(environ)
    with witness.of("worker"):
        worker = lambda_worker.make_handler(environ)

    def served(event: Any, context: Any) -> Any:
        with witness.of("gateway"):
            return http(event, context)

    def worked(event: Any, context: Any) -> Any:
        with witness.of("worker"):
            return worker(event, context)

    witness.used.clear()
    with closing(http), closing(worker):
        yield Functions(served, worked)


def result(functions: Functions, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """That of a request to the gateway."""
    answer = functions.ask("http_api_v2", method, params)
    assert "result" in answer, answer
    found: dict[str, Any] = answer["result"]
    return found


def begin(functions: Functions, tool: str, **arguments: Any) -> str:
    """The id of a new task."""
    created = result(functions, "tools/call", {"name": tool, "arguments": arguments})
    return str(created["taskId"])


def forget_account(environ: dict[str, str]) -> None:
    """Delete the account of the caller: it has none for a task that an operator has made again."""
    key = {"pk": {"S": f"U#account.{task_owner(LOCAL)}"}, "sk": {"S": "0"}}
    table = environ["GATEWAY_STORE"].removeprefix("dynamodb://")
    moto_server.session().client("dynamodb").delete_item(TableName=table, Key=key)


def die(environ: dict[str, str], task_id: str) -> None:
    """What a worker leaves that died with a task, long ago."""
    parts = startup.make_stores(settings.from_environment(environ), Clock())

    async def claim() -> None:
        claimed = await parts.tasks.claim(
            TaskRef(task_owner(LOCAL), task_id), Claim(1, 1, 0), Clock().now_ms()
        )
        assert isinstance(claimed, Claimed)
        await parts.tasks.aclose()

    asyncio.run(claim())


def work(functions: Functions, task_id: str) -> None:
    """What the message of a task makes the worker do."""
    (record,) = recorded("sqs")["Records"]
    event = {"Records": [{**record, "body": f"{task_owner(LOCAL)}.{task_id}"}]}
    assert functions.worker(event, LambdaContext()) == {"batchItemFailures": []}
