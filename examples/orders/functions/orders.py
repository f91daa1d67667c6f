"""An AWS Lambda function with several tools: a lookup, a question, a job, binary data. It is
stateless."""

from __future__ import annotations

import base64
import time
import zlib
from typing import Any

ORDER = {
    "type": "object",
    "properties": {"order": {"type": "string", "description": "Number of the order."}},
    "required": ["order"],
}
WHERE = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
    "required": ["street", "city"],
}
TOOLS = [
    {
        "name": "find",
        "description": "Returns an order: its items, and whether it has been sent.",
        "inputSchema": ORDER,
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "cancel",
        "description": "Cancels an order that has not been sent.",
        "inputSchema": ORDER,
    },
    {
        "name": "redirect",
        "description": "Sends an order to another address, for which it asks the user.",
        "inputSchema": ORDER,
        "annotations": {"destructiveHint": False},
        "call": {"interactive": True},
    },
    {
        "name": "export",
        "description": "Returns all orders as a list; takes a few seconds.",
        "inputSchema": {"type": "object", "properties": {}},
        "annotations": {"readOnlyHint": True},
        "call": {
            "task": "optional",
            "job": {
                "poll": {"tool": "export_status", "arguments": {"export": "{id}"}},
                "fetch": {"tool": "export_result", "arguments": {"export": "{id}"}},
                "succeeded": ["done"],
                "every_s": 1,
            },
        },
    },
]
ORDERS: dict[str, Any] = {
    "7": {"items": ["shirt"], "sent": False},
    "8": {"items": ["cap"], "sent": True},
}


def handler(event: Any, context: Any) -> Any:
    """Handle an invocation by AWS Lambda."""
    if event.get("roundgate") == "describe":
        return {"tools": TOOLS}
    if "inputResponses" in event:
        return redirected(event)
    return BY_NAME[event["tool"]](event["arguments"], context)


def find(arguments: Any, context: Any) -> Any:
    number = arguments["order"]
    if number not in ORDERS:
        raise LookupError(f"There is no order {number}; the orders are {', '.join(ORDERS)}")
    return {"order": number, **ORDERS[number]}


def cancel(arguments: Any, context: Any) -> Any:
    """Cancel an order. The client context has the caller and an idempotency key, which a repeated
    call repeats."""
    caller = context.client_context.custom["roundgate"]
    return {"cancelled": arguments["order"], "by": caller["subject"], "receipt": caller["key"]}


def redirect(arguments: Any, context: Any) -> Any:
    params = {"message": f"Where should order {arguments['order']} go?", "requestedSchema": WHERE}
    question = {"method": "elicitation/create", "params": params}
    return {"inputRequests": {"where": question}, "state": {"order": arguments["order"]}}


def redirected(event: Any) -> Any:
    """Handle the second invocation of `redirect`, with the state of the first and the user's
    answer."""
    answer = event["inputResponses"]["where"]
    if answer["action"] != "accept":
        return {"order": event["state"]["order"], "redirected": False}
    return {"order": event["state"]["order"], "redirected": True, "to": answer["content"]}


def export(arguments: Any, context: Any) -> Any:
    return {"id": f"export-{time.time() + 2:.0f}"}


def export_status(arguments: Any, context: Any) -> Any:
    ready = float(arguments["export"].removeprefix("export-"))
    return {"status": "done" if time.time() >= ready else "running"}


def export_result(arguments: Any, context: Any) -> Any:
    return [{"order": number, **order} for number, order in ORDERS.items()]


def label(arguments: Any, context: Any) -> Any:
    """Return a PNG of one pixel whose grey depends on the order's number."""
    grey = zlib.crc32(arguments["order"].encode()) % 256

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data).to_bytes(4, "big")
        return len(data).to_bytes(4, "big") + kind + data + check

    head = (1).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    pixel = zlib.compress(bytes([0, grey]))
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")
    return {
        "isBase64Encoded": True,
        "contentType": "image/png",
        "body": base64.b64encode(png).decode(),
    }


BY_NAME = {
    one.__name__: one
    for one in (find, cancel, redirect, export, export_status, export_result, label)
}
