"""From a tool in gateway.yaml, or one that a function told of, to its definition:
what a model sees of it."""

from __future__ import annotations

from typing import Any

from roundgate.backends.aws_lambda.config import LambdaToolConfig
from roundgate.backends.aws_lambda.job import check_job
from roundgate.backends.aws_lambda.payload import RESPONSES
from roundgate.protocol import Schema, without_none


def definition_of(tool: LambdaToolConfig) -> dict[str, Any]:
    """The schema's `Tool`.

    Raises:
        ValueError: a schema is not usable, or the tool contradicts itself.
    """
    _check(tool)
    hints = without_none(
        readOnlyHint=tool.read_only,
        destructiveHint=tool.destructive,
        idempotentHint=tool.idempotent,
    )
    return {
        "name": tool.name,
        **without_none(title=tool.title),
        "description": tool.description,
        "inputSchema": tool.input_schema,
        **without_none(outputSchema=tool.output_schema),
        "annotations": {**hints, "openWorldHint": True},
    }


def _check(tool: LambdaToolConfig) -> None:
    schema = tool.input_schema
    if schema.get("type") != "object":
        raise ValueError('input_schema: has to be of "type": "object", as arguments are')
    Schema.compile(schema)
    arguments = set(schema.get("properties", {}))
    if tool.payload.arguments_in is None:
        more = {*tool.payload.fixed, *filter(None, [tool.payload.context_in])}
        if tool.interactive:
            more |= {RESPONSES}
        if taken := sorted(arguments & more):
            raise ValueError(
                f"input_schema: {', '.join(taken)} is the gateway's own name; use another, or "
                "payload.arguments_in"
            )
    if tool.job is not None:
        check_job(tool.job, arguments)
