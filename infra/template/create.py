"""A check with moto's CloudFormation that rows and messages of the stack outlive every update.

moto knows tables, queues, functions, roles, event sources and schedules, and reports resources that
it does not know. The checks that need an account are in bench/account.md, with their
commands.
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
from botocore.exceptions import ClientError
from moto import mock_aws

from infra.template.expand import REGION, expand

STACK: Final = "roundgate"
UNKNOWN: Final = frozenset({"DomainName", "CertificateArn", "HostedZoneId"})
"""Parameters of resources that moto does not make although other resources use their attributes."""
ROW: Final = {"pk": {"S": "T#owner.id"}, "sk": {"S": "0"}}


def created_and_updated(path: Path, sets: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the problems of a stack that is created with the first set of parameters and updated
    to each of the others. Only resources that moto knows are checked."""
    known = [{name: one[name] for name in one.keys() - UNKNOWN} for one in sets]
    os.environ.update(
        AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION=REGION
    )
    with (
        mock_aws(config={"lambda": {"use_docker": False}}),
        redirect_stdout(io.StringIO()),
        catch_warnings(),
    ):
        simplefilter("ignore")  # moto prints what it does not know, and warns of it
        stack = Stack(boto3.Session(region_name=REGION), expand(path, {}))
        stack.upload()
        try:
            stack.cloudformation.create_stack(**stack.arguments(known[0]))
            stack.fill()
            yield from stack.problems("creation")
            for one in known[1:]:
                stack.cloudformation.update_stack(**stack.arguments(one))
                after = ", ".join(f"{name}={value}" for name, value in one.items())
                yield from stack.problems(after)
        except ClientError as error:
            yield f"moto does not take it: {error}"


@dataclass
class Stack:
    """A stack in moto."""

    session: Any
    expanded: Mapping[str, Any]

    @property
    def cloudformation(self) -> Any:
        return self.session.client("cloudformation")

    def upload(self) -> None:
        """Upload a placeholder for the code of each function."""
        code = io.BytesIO()
        with zipfile.ZipFile(code, "w") as archive:
            archive.writestr("code.py", "")
        s3 = self.session.client("s3")
        s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": REGION})
        for resource in self.expanded["Resources"].values():
            if resource["Type"] == "AWS::Lambda::Function":
                s3.put_object(
                    Bucket="bucket",
                    Key=resource["Properties"]["Code"]["S3Key"],
                    Body=code.getvalue(),
                )

    def arguments(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        given = [
            {"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items()
        ]
        return {
            "StackName": STACK,
            "TemplateBody": json.dumps(self.expanded),
            "Parameters": given,
            "Capabilities": ["CAPABILITY_IAM"],
        }

    def resources(self) -> dict[str, str]:
        """Return the physical name of each resource that moto knows, by logical name."""
        found = self.cloudformation.list_stack_resources(StackName=STACK)["StackResourceSummaries"]
        return {
            one["LogicalResourceId"]: one["PhysicalResourceId"]
            for one in found
            if one.get("PhysicalResourceId")
        }

    def fill(self) -> None:
        """Add a task to the table, and a message to a queue that no function reads."""
        made = self.resources()
        self.session.client("dynamodb").put_item(TableName=made["Table"], Item=ROW)
        self.session.client("sqs").send_message(
            QueueUrl=made["DeadLetters"], MessageBody="owner.id"
        )
        self._first = made

    def problems(self, after: str) -> Iterator[str]:
        """Yield the problems of the stack after a step; `after` names the step."""
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
