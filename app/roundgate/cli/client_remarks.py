"""Remarks of `roundgate check` about tools that some clients cannot use.

Most client frameworks lack tasks, and several cannot ask the user (`roundgate docs clients`). Calls
from such clients fail with -32021.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from roundgate.backends import Catalog, Fallback, Tool
from roundgate.config import ConfigFile
from roundgate.errors import Problem

_SHOWN: Final = 5
_ASKED: Final = frozenset({"elicitation", "sampling", "roots"})


def client_remarks(file: ConfigFile, served: Catalog) -> Iterator[Problem]:
    """Yield a remark for each client capability that some tools require."""
    fallback = Fallback.of(served, file.config.fallback)
    tools = {name: one.tool for name, one in served.tools.items()}
    at = file.origin.at("fallback")
    asking = [name for name, one in tools.items() if _asks(one) and name not in fallback.in_words]
    if asking:
        yield at.problem(
            f"{_named(asking)}: a client that cannot be asked gets an error (-32021)",
            "set ask_in_words: true if a model may answer for its user; `roundgate docs clients` "
            "says which clients can be asked",
        )
    if approved := [name for name, one in tools.items() if one.asks_first]:
        yield at.problem(
            f"{_named(approved)}: a client that shows no forms gets an error (-32021), because a "
            "person has to approve each call",
            "use clients that show forms (`roundgate docs clients`); there is no substitute",
        )
    substituted = fallback.waiting | fallback.with_handles
    tasks = [
        name for name, one in tools.items() if one.task == "required" and name not in substituted
    ]
    if tasks:
        yield at.problem(
            f"{_named(tasks)}: a client that knows no tasks gets an error (-32021)",
            "set without_tasks: wait for work of up to some minutes, or tools for a handle; most "
            "clients know no tasks",
        )


def _asks(tool: Tool) -> bool:
    return tool.may_ask or bool(_ASKED & tool.requires.keys())


def _named(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
