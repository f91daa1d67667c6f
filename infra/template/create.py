"""moto's CloudFormation makes the stack and updates it: what rows and messages it has must outlive
every update.

moto knows tables, queues, functions, roles, event sources and schedules, and says so of what it
does not know. What it does not do is in docs/deploy.md, with the command that shows it in an
account.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from warnings import catch_warnings, simplefilter

import boto3
from moto import mock_aws

from infra.template.expand import REGION, expand

STACK: Final = "roundgate"
ROW: Final = {"pk": {"S": "T#owner.id"}, "sk": {"S": "0"}}


def created_and_updated(path: Path, sets: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """What goes wrong when a stack is made with the first set of parameters and updated to each of
    the others."""
    os.environ.update(
        AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION=REGION
    )
    with (
        mock_aws(config={"lambda": {"use_docker": False}}),
        redirect_stdout(io.StringIO()),
        catch_warnings(),
    ):
        simplefilter("ignore")  # moto prints what it does not know, and warns of it
        stack = Stack(boto3.Session(region_name=REGION))
        stack.upload(path)
        stack.cloudformation.create_stack(**stack.arguments(path, sets[0]))
        stack.fill()
        yield from stack.problems("creation")
        for one in sets[1:]:
            stack.cloudformation.update_stack(**stack.arguments(path, one))
            yield from stack.problems(", ".join(f"{name}={value}" for name, value in one.items()))


@dataclass
class Stack:
    """One at moto's."""

    session: Any

    @property
    def cloudformation(self) -> Any:
        return self.session.client("cloudformation")

    def upload(self, path: Path) -> None:
        """What stands for the functions' code."""
        code = io.BytesIO()
        with zipfile.ZipFile(code, "w") as archive:
            archive.writestr("code.py", "")
        s3 = self.session.client("s3")
        s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": REGION})
        for resource in expand(path, {})["Resources"].values():
            if resource["Type"] == "AWS::Lambda::Function":
                s3.put_object(
                    Bucket="bucket",
                    Key=resource["Properties"]["Code"]["S3Key"],
                    Body=code.getvalue(),
                )

    def arguments(self, path: Path, parameters: Mapping[str, str]) -> dict[str, Any]:
        given = [
            {"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items()
        ]
        body = json.dumps(expand(path, {}))
        return {
            "StackName": STACK,
            "TemplateBody": body,
            "Parameters": given,
            "Capabilities": ["CAPABILITY_IAM"],
        }

    def resources(self) -> dict[str, str]:
        """Physical names by logical ones, of what moto knows."""
        found = self.cloudformation.list_stack_resources(StackName=STACK)["StackResourceSummaries"]
        return {
            one["LogicalResourceId"]: one["PhysicalResourceId"]
            for one in found
            if one.get("PhysicalResourceId")
        }

    def fill(self) -> None:
        """A task, and a message where no function takes it."""
        made = self.resources()
        self.session.client("dynamodb").put_item(TableName=made["Table"], Item=ROW)
        self.session.client("sqs").send_message(
            QueueUrl=made["DeadLetters"], MessageBody="owner.id"
        )
        self._first = made

    def problems(self, after: str) -> Iterator[str]:
        """What is not as it should be after a step."""
        (stack,) = self.cloudformation.describe_stacks(StackName=STACK)["Stacks"]
        if not stack["StackStatus"].endswith("_COMPLETE") or "ROLLBACK" in stack["StackStatus"]:
            yield f"{after}: {stack['StackStatus']} {stack.get('StackStatusReason', '')}"
            return
        made = self.resources()
        for name in ("Table", "Queue", "DeadLetters"):
            if made.get(name) != self._first[name]:
                yield f"{after}: {name} is another one"
                return
        if "Item" not in self.session.client("dynamodb").get_item(TableName=made["Table"], Key=ROW):
            yield f"{after}: the row is gone"
        count = self.session.client("sqs").get_queue_attributes(
            QueueUrl=made["DeadLetters"], AttributeNames=["All"]
        )
        if count["Attributes"]["ApproximateNumberOfMessages"] != "1":
            yield f"{after}: the message is gone"
