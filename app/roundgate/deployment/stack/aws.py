"""The services of AWS that the stack uses, on this machine: DynamoDB Local, and SQS and
Secrets Manager of moto."""

from __future__ import annotations

import base64
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from roundgate.deployment.dynamodb_local import emulator
from roundgate.deployment.stack.loops import traced
from roundgate.deployment.stack.template import Template
from roundgate.storage.dynamodb import create_table

ACCOUNT = "123456789012"
REGION = "eu-central-1"


@dataclass(frozen=True)
class Aws:
    """Where the services are, and how everybody is told."""

    environment: Mapping[str, str]

    def client(self, service: str) -> Any:
        """boto3's client."""
        environment = self.environment
        url = (
            environment["AWS_ENDPOINT_URL_DYNAMODB"]
            if service == "dynamodb"
            else environment["AWS_ENDPOINT_URL"]
        )
        return boto3.client(
            service,
            endpoint_url=url,
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )


@contextmanager
def services(directory: Path) -> Iterator[Aws]:
    """All of them, up."""
    logging.getLogger("werkzeug").setLevel("ERROR")
    moto = moto_server()
    serving = threading.Thread(target=moto.serve_forever, daemon=True)
    serving.start()
    host, port = moto.server_address[:2]
    try:
        with emulator(directory) as dynamodb:
            yield Aws(
                {
                    "AWS_ENDPOINT_URL": f"http://{host}:{port}",
                    "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.url,
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
    """moto's own server, around which SQS keeps the trace headers of messages."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    app = traced(DomainDispatcherApplication(create_backend_app))
    return make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)


def make_resources(aws: Aws, template: Template) -> dict[str, str]:
    """What the template's resources are called once they are made from its properties."""
    sqs, secrets = aws.client("sqs"), aws.client("secretsmanager")
    dead = sqs.create_queue(QueueName="dead-letters")["QueueUrl"]
    dead_arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    properties = template.properties("Queue")
    redrive = properties["RedrivePolicy"]["maxReceiveCount"]
    attributes = {
        "VisibilityTimeout": str(properties["VisibilityTimeout"]),
        "RedrivePolicy": f'{{"deadLetterTargetArn": "{dead_arn}", "maxReceiveCount": "{redrive}"}}',
    }
    queue = sqs.create_queue(QueueName="tasks", Attributes=attributes)["QueueUrl"]
    create_table(aws.client("dynamodb"), "tasks")
    ring = base64.b64encode(os.urandom(32)).decode()
    secret = secrets.create_secret(Name="state-keys", SecretString=ring)["ARN"]
    names = {"Queue.QueueName": "tasks", "DeadLetters.QueueName": "dead-letters", "Api": "local"}
    names |= {name: name for name in template.named("AWS::Serverless::Function")}
    return {"Table": "tasks", "Queue": queue, "DeadLetters": dead, "StateKeys": secret, **names}
