"""A client that calls the tool `refund` of the server at `sys.argv[1]`, approves it, and waits for its
task."""

import asyncio
import sys

from opentelemetry import trace

from roundgate.client import Client, Question


def approve(question: Question) -> dict[str, bool]:
    """Approve the call."""
    return {"approve": True}


async def main() -> None:
    with trace.get_tracer("client").start_as_current_span("refund order 7"):
        async with Client(sys.argv[1], answers=approve) as client:
            print((await client.call("refund", order="7")).text)


asyncio.run(main())
