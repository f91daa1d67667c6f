"""The AWS services that the stack uses, on this machine: DynamoDB Local, and moto's SQS and Secrets
Manager.

One DynamoDB Local serves all processes of a test run, a benchmark or the stack. Each process holds
a shared lock on a file. A watcher process waits for the exclusive lock, which the kernel grants
when the last user has ended, even by a crash. Then the watcher stops the emulator.

    users      ──shared──┬─────────┬──▶ (ended)
    watcher    ──────────┴─ waits ─┴── exclusive ── stops Java
"""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from roundgate_aws import machine
from roundgate_aws.template import StackTemplate

ACCOUNT: Final = "123456789012"
REGION: Final = "eu-central-1"
START_S: Final = 60


@dataclass(frozen=True)
class LocalAws:
    """The services, given by the variables that direct clients to them."""

    environment: Mapping[str, str]

    def client(self, service: str) -> Any:
        """Return boto3's client of a service."""
        import boto3

        specific = f"AWS_ENDPOINT_URL_{service.upper()}"
        return boto3.client(
            service,
            endpoint_url=self.environment.get(specific, self.environment["AWS_ENDPOINT_URL"]),
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )


@contextmanager
def services(directory: Path) -> Iterator[LocalAws]:
    """Run all services until the block ends. Processes with the same `directory` share DynamoDB
    Local."""
    logging.getLogger("werkzeug").setLevel("ERROR")
    moto = moto_server()
    serving = threading.Thread(target=moto.serve_forever, daemon=True)
    serving.start()
    host, port = moto.server_address[:2]
    try:
        with dynamodb_local(directory) as url:
            yield LocalAws(
                {
                    "AWS_ENDPOINT_URL": f"http://{host}:{port}",
                    "AWS_ENDPOINT_URL_DYNAMODB": url,
                    "AWS_REGION": REGION,
                    "AWS_DEFAULT_REGION": REGION,
                    "AWS_ACCESS_KEY_ID": "test",
                    "AWS_SECRET_ACCESS_KEY": "test",
                    "MOTO_ACCOUNT_ID": ACCOUNT,
                }
            )
    finally:
        moto.shutdown()
        serving.join()
        moto.server_close()


def moto_server() -> Any:
    """Return a server of moto's services."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)
    return make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)


def make_resources(aws: LocalAws, template: StackTemplate) -> dict[str, str]:
    """Create the template's resources; return their names and addresses."""
    sqs, secrets = aws.client("sqs"), aws.client("secretsmanager")
    dead = sqs.create_queue(QueueName="dead-letters")["QueueUrl"]
    properties = template.properties("Queue")
    redrive = {
        "deadLetterTargetArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:dead-letters",
        "maxReceiveCount": str(properties["RedrivePolicy"]["maxReceiveCount"]),
    }
    attributes = {
        "VisibilityTimeout": str(properties["VisibilityTimeout"]),
        "RedrivePolicy": json.dumps(redrive),
    }
    queue = sqs.create_queue(QueueName="tasks", Attributes=attributes)["QueueUrl"]
    create_table(aws.client("dynamodb"), "tasks")
    ring = base64.b64encode(os.urandom(32)).decode()
    secret = secrets.create_secret(Name="state-keys", SecretString=ring)["ARN"]
    names = {"Queue.QueueName": "tasks", "DeadLetters.QueueName": "dead-letters", "Api": "local"}
    names |= {name: name for name in template.named("AWS::Serverless::Function")}
    return {"Table": "tasks", "Queue": queue, "DeadLetters": dead, "StateKeys": secret, **names}


# DynamoDB Local

_OF_DEPLOYED: Final = frozenset(
    {
        *("DeletionProtectionEnabled", "SSESpecification"),
        *("TimeToLiveSpecification", "PointInTimeRecoverySpecification"),
    }
)
"""The properties of the table that CreateTable does not take."""


@cache
def _table() -> dict[str, Any]:
    return StackTemplate().properties("Table")


def create_table(client: Any, name: str) -> None:
    """Create the template's table, and wait until it exists."""
    table = _table()
    client.create_table(TableName=name, **{key: table[key] for key in table.keys() - _OF_DEPLOYED})
    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
    client.update_time_to_live(
        TableName=name, TimeToLiveSpecification=table["TimeToLiveSpecification"]
    )


_WATCHER: Final = """
import fcntl, os, subprocess, sys
from pathlib import Path

if os.fork():
    os._exit(0)  # no child of its starter, which it may outlive
users, address, folder, port = sys.argv[1:]
quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]  # half the CPU time in a life of minutes
java = subprocess.Popen(["java", *quick, "-Djava.library.path=DynamoDBLocal_lib", "-jar", "DynamoDBLocal.jar",
                         "-inMemory", "-disableTelemetry", "-port", port], cwd=folder)
with open(users) as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    Path(address).unlink(missing_ok=True)
    java.kill()
    java.wait()
"""


@contextmanager
def dynamodb_local(shared: Path) -> Iterator[str]:
    """Yield the URL of the emulator that all processes with the same directory share."""
    users, address = shared / "dynamodb.users", shared / "dynamodb.address"
    with _locked(users, fcntl.LOCK_SH):
        with _locked(shared / "dynamodb.starting", fcntl.LOCK_EX):
            if not address.exists():
                _start(users, address)
        yield address.read_text()


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, how)
        yield


def _start(users: Path, address: Path) -> None:
    with machine.reserved_port() as port:
        with users.with_suffix(".log").open("a") as log:
            paths = [str(users), str(address), str(machine.dynamodb())]
            subprocess.run(
                [sys.executable, "-c", _WATCHER, *paths, str(port)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
            )
        until = time.monotonic() + START_S
        while not machine.is_listening(port):
            assert time.monotonic() < until, users.with_suffix(".log").read_text()
            time.sleep(0.05)
        address.write_text(f"http://127.0.0.1:{port}")
