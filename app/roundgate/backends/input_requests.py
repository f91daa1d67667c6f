"""What a service may have its user asked, in the words of the protocol."""

from __future__ import annotations

from typing import Any, Final

from roundgate.replay import Url, form_schema

MAX_URL: Final = 2_048
"""Characters of the address of a page that a service sends a user to."""


def check_request(request: Any) -> None:
    """Find a question that no client could show, before it is passed on to one.

    Raises:
        ValueError: it is not an `InputRequest` of the schema, or its form is none.
    """
    match request:
        case {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": str(message), "url": str(url)},
        }:
            Url(message, url)
            if len(url) > MAX_URL:
                raise ValueError("too long to be shown")
        case {
            "method": "elicitation/create",
            "params": {"message": str(), "requestedSchema": dict(fields), **others},
        }:
            if others.get("mode", "form") != "form":
                raise ValueError("elicitation has the modes form and url")
            form_schema(fields)
        case {
            "method": "sampling/createMessage",
            "params": {"messages": list(), "maxTokens": int()},
        }:
            pass
        case {"method": "roots/list"} if isinstance(request.get("params", {}), dict):
            pass
        case _:
            raise ValueError("not an input request")
