"""JMESPath: what is taken out of an outcome."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jmespath
from jmespath import exceptions


@lru_cache(maxsize=1_024)
def compiled(expression: str) -> Any:
    """An expression, ready to search with.

    Raises:
        ValueError: it is none; the text says where.
    """
    try:
        return jmespath.compile(expression)
    except exceptions.JMESPathError as error:
        raise ValueError(f"is not JMESPath: {_first_line(error)}") from None


def found(expression: str, document: Any) -> Any:
    """What an expression finds, `None` if that is nothing.

    Raises:
        ValueError: it cannot be applied to this document, or is no expression.
    """
    try:
        return compiled(expression).search(document)
    except exceptions.JMESPathError as error:
        raise ValueError(f"{expression}: {_first_line(error)}") from None


def first_name(expression: str) -> str:
    """The member that an expression begins with: `order` of `order.items[0].id`; empty
    if it begins otherwise."""
    node = compiled(expression).parsed
    while node.get("children") and node["type"] != "field":
        node = node["children"][0]
    return str(node["value"]) if node["type"] == "field" else ""


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200]
