"""Idempotency keys: by which a service knows a request again, however often and
from wherever it is sent.

A key follows from the call: from the sealed state of its round, the client's own key, or the task
that it has become. So a try after a lost answer, the same round at another replica, and the next
worker after a death all send the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from roundgate.backends.http.messages import Outgoing
from roundgate.json import digest
from roundgate.replay import Context

USUAL: Final = "idempotency-key"
KEYED: Final = frozenset({"POST", "PATCH"})
"""Methods of which a repetition is not known to change nothing (RFC 9110 section 9.2.2)."""


@dataclass(frozen=True, slots=True)
class Key:
    """The key of the first request of a call."""

    header: str
    value: str
    is_declared: bool
    """Whether somebody says that the service takes keys; only then a request
    with one may be repeated."""


async def key_of(context: Context, method: str, declared: str | None) -> Key | None:
    """The key of a call.

    Args:
        context: of the call.
        method: of its request.
        declared: the header that the service takes keys in, if it says so.

    Returns:
        `None` where none is of use. In a task there is one for services that do not say so:
            a worker may die after it
        has sent a request and before it has noted so.
    """
    if declared is not None:
        return Key(declared, await context.idempotency_key("request"), is_declared=True)
    if context.task_id is None or method not in KEYED:
        return None
    return Key(USUAL, context.task_id, is_declared=False)


def with_key(outgoing: Outgoing, key: Key | None, exchange: int = 1) -> Outgoing:
    """The request with the key, unless the tool sets one itself.

    Args:
        outgoing: the request.
        key: of the call.
        exchange: which request of a dialogue it is, from 1; each has a key of its own.
    """
    if key is None:
        return outgoing
    is_repeatable = outgoing.is_repeatable or key.is_declared
    if key.header.lower() in map(str.lower, outgoing.headers):
        return replace(outgoing, is_repeatable=is_repeatable, has_key=key.is_declared)
    value = key.value
    if exchange > 1:
        value = f"{value}-{exchange}"
        if key.is_declared:  # other answers of the user are another request
            value = f"{value}-{digest((outgoing.body or b'').decode('utf-8', 'replace'))}"
    headers = {key.header: value, **outgoing.headers}
    return replace(outgoing, headers=headers, is_repeatable=is_repeatable, has_key=key.is_declared)
