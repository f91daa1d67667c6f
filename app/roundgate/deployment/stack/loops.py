"""Recursive-loop detection, as AWS Lambda has it: how often a chain of messages has invoked the
same function.

    invocation ──▶ _X_AMZN_TRACE_ID ──boto3──▶ X-Amzn-Trace-Id of SendMessage ──SQS──▶ AWSTraceHeader of the message
        ▲                                                                                   │
        └──────────────── X-Amzn-Trace-Id with a Lineage one higher ◀──── event source ─────┘

boto3 passes the header on without being asked. The emulator and moto's SQS do not: `runtime.py` and
`traced` do. A function that is not set to `RecursiveLoop: Allow` is not invoked with a message
whose count is above 16: that one goes to the dead-letter queue.
https://docs.aws.amazon.com/lambda/latest/dg/invocation-recursion.html
"""

from __future__ import annotations

import io
import json
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

MOST: Final = 16
_LINEAGE: Final = re.compile(r"(?:^|;)Lineage=[0-9a-f]+:(\d+)")

Wsgi: TypeAlias = Callable[[dict[str, Any], Any], Iterable[bytes]]


def new_trace() -> str:
    """The header of a chain that begins."""
    return f"Root=1-{secrets.token_hex(4)}-{secrets.token_hex(12)}"


def count(trace: str | None) -> int:
    """How often the chain has invoked the function."""
    found = _LINEAGE.search(trace or "")
    return int(found[1]) if found else 0


def one_more(trace: str | None, number: int) -> str:
    """The header of the invocation that is the chain's so many-th."""
    begun = _LINEAGE.sub("", trace) if trace else new_trace()
    return f"{begun};Lineage=0f0f0f0f:{number}"


def traced(app: Wsgi) -> Wsgi:
    """moto, whose SQS keeps the trace header of who sends a message."""

    def sqs(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        trace = environ.get("HTTP_X_AMZN_TRACE_ID")
        if trace and environ.get("HTTP_X_AMZ_TARGET", "").startswith("AmazonSQS.SendMessage"):
            body = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            for message in body.get("Entries", [body]):
                attributes = message.setdefault("MessageSystemAttributes", {})
                attributes["AWSTraceHeader"] = {"DataType": "String", "StringValue": trace}
            changed = json.dumps(body).encode()
            environ["wsgi.input"], environ["CONTENT_LENGTH"] = (
                io.BytesIO(changed),
                str(len(changed)),
            )
        return app(environ, start_response)

    return sqs
