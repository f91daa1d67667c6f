"""Functions that tools invoke, as they run at AWS Lambda; effects leave lines in a file."""

import base64
import os
import time
from pathlib import Path
from typing import Any

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def handler(event: Any, context: Any) -> Any:
    """One function with many tools: those that it describes, and those that gateway.yaml declares."""
    if event.get("roundgate") == "describe":
        return {"tools": TOOLS}
    if "inputResponses" in event:
        return answered(event, context)
    arguments = event.get("arguments", event)
    return ACTIONS[event.get("tool") or arguments["action"]](arguments, context)


def slow(event: Any, context: Any) -> Any:
    time.sleep(event.get("seconds", 0))
    return "awake"


def told(context: Any) -> Any:
    """What the gateway says of the call."""
    return context.client_context.custom["roundgate"]


def echo(arguments: Any, context: Any) -> Any:
    return {"arguments": arguments, "told": told(context)}


def fail(arguments: Any, context: Any) -> Any:
    raise LookupError(f"there is no order {arguments.get('order')}")


def talk(arguments: Any, context: Any) -> Any:
    return "x" * arguments["bytes"]


def measure(arguments: Any, context: Any) -> Any:
    """How much arrived, also for those who do not wait for the answer."""
    leave_trace(f"measured {len(arguments['text'])}")
    return {"bytes": len(arguments["text"])}


def picture(arguments: Any, context: Any) -> Any:
    return {"isBase64Encoded": True, "contentType": "image/png", "body": PIXEL}


def leave_trace(line: str) -> None:
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(line + "\n")


def once(context: Any, line: str) -> bool:
    """Leave a trace once for a key, however often it is asked for."""
    done = Path(f"{os.environ['EFFECTS']}.{told(context)['key']}")
    try:
        done.touch(exist_ok=False)
    except FileExistsError:
        return False
    leave_trace(line)
    return True


def pay(arguments: Any, context: Any) -> Any:
    """It has happened, and nobody has heard of it yet for a while."""
    leave_trace(f"{arguments['order']} asked {told(context)['key']}")
    first = once(context, f"{arguments['order']} paid")
    time.sleep(arguments.get("seconds", 0))
    return {"order": arguments["order"], "first": first}


def gift(arguments: Any, context: Any) -> Any:
    form = {
        "method": "elicitation/create",
        "params": {"message": "For whom?", "requestedSchema": NAME},
    }
    return {"inputRequests": {"to": form}, "state": {"begun by": arguments["order"]}}


def answered(event: Any, context: Any) -> Any:
    """The second exchange of a gift."""
    name = event["inputResponses"]["to"]["content"]["name"]
    first = once(context, f"{event['state']['begun by']} given")
    arguments = event["payload"].get("arguments", event["payload"])
    return {"to": name, "order": arguments["order"], "first": first, "told": told(context)}


def print_out(arguments: Any, context: Any) -> Any:
    """A job: it is over a moment after its start, which is in its id, so that any environment knows."""
    once(context, f"{arguments['order']} started")
    ready = time.time() + arguments.get("seconds", 0)
    return {"id": base64.urlsafe_b64encode(f"{ready} {arguments['order']}".encode()).decode()}


def look(arguments: Any, context: Any) -> Any:
    ready, order = base64.urlsafe_b64decode(arguments["job"]).decode().split()
    leave_trace(f"{order} looked")
    return {"status": "done" if time.time() > float(ready) else "running"}


def fetch(arguments: Any, context: Any) -> Any:
    return {"printed": base64.urlsafe_b64decode(arguments["job"]).decode().split()[1]}


ACTIONS: dict[str, Any] = {
    **{one.__name__: one for one in (echo, fail, talk, measure, picture, pay, gift, look, fetch)},
    "print": print_out,
}

ORDER = {
    "type": "object",
    "properties": {"order": {"type": "string"}, "seconds": {"type": "number"}},
    "required": ["order"],
}
TOOLS = [
    {"name": "pay", "description": "Pays.", "inputSchema": ORDER, "call": {"task": "optional"}},
    {
        "name": "gift",
        "description": "Gives, and asks to whom.",
        "inputSchema": ORDER,
        "outputSchema": {"type": "object", "required": ["to"]},
        "annotations": {"destructiveHint": False},
        "call": {"interactive": True, "task": "optional"},
    },
    {"name": "broken", "description": "Has no schema."},
    {
        "name": "print",
        "description": "Prints, which takes a while.",
        "inputSchema": ORDER,
        "annotations": {"title": "Print an order", "readOnlyHint": True},
        "call": {
            "task": "optional",
            "job": {
                "poll": {"action": "look", "job": "{id}"},
                "fetch": {"action": "fetch", "job": "{id}"},
                "succeeded": ["done"],
                "every_s": 0.3,
            },
        },
    },
]
