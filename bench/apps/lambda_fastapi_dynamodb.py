"""Floor on AWS Lambda for an app with stored data: a single path operation, with one read of
DynamoDB before the answer."""

import os

import boto3
from mangum import Mangum
from mangum.types import ASGI, Receive, Scope, Send

from bench.apps.fastapi import one_tool

dynamodb = boto3.client("dynamodb")


def reading(app: ASGI) -> ASGI:
    async def read_first(scope: Scope, receive: Receive, send: Send) -> None:
        key = {"pk": {"S": "nobody's"}, "sk": {"S": "task"}}
        dynamodb.get_item(TableName=os.environ["TABLE"], Key=key, ConsistentRead=True)
        await app(scope, receive, send)

    return read_first


handler = Mangum(reading(one_tool()), lifespan="off")
