"""The hub and its subscriptions, without HTTP: what is pending, what is told, how a stream ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.auth.principal import LOCAL, Principal
from roundgate.errors import Unavailable
from roundgate.methods.changes import Hub, OpenSubscription
from roundgate.protocol.notifications import (
    PROMPTS_CHANGED,
    RESOURCE_UPDATED,
    RESOURCES_CHANGED,
    TOOLS_CHANGED,
)
from roundgate.protocol.params import SubscriptionFilter

EVERYTHING = frozenset({"tools", "prompts", "resources"})
ALL = SubscriptionFilter(
    tools_list_changed=True,
    prompts_list_changed=True,
    resources_list_changed=True,
    resource_subscriptions=["u:1", "u:2"],
)
TOPICS = [(TOOLS_CHANGED, None), (PROMPTS_CHANGED, None), (RESOURCES_CHANGED, None)]
URIS = [(RESOURCE_UPDATED, uri) for uri in ("u:1", "u:2", "u:3")]


async def told(subscription: OpenSubscription) -> list[tuple[str, str | None]]:
    """Everything that a stream says until it ends, but for the acknowledgement."""
    messages: list[dict[str, Any]] = [
        json.loads(m) async for m in subscription.messages(5) if m is not None
    ]
    assert messages[0]["method"] == "notifications/subscriptions/acknowledged"
    return [(one["method"], one["params"].get("uri")) for one in messages[1:]]


@given(st.lists(st.sampled_from(TOPICS + URIS)))
def test_what_is_pending_is_told_once_each_in_the_order_in_which_it_first_changed(
    changes: list[tuple[str, str | None]],
) -> None:
    async def scenario() -> list[tuple[str, str | None]]:
        hub = Hub(1, 1)
        subscription = hub.subscribe(1, LOCAL, ALL, EVERYTHING)
        for method, uri in changes:
            hub.publish(method, uri)
        hub.close()
        return await told(subscription)

    assert asyncio.run(scenario()) == list(
        dict.fromkeys(one for one in changes if one != (RESOURCE_UPDATED, "u:3"))
    )


async def test_a_change_between_two_reads_is_not_lost() -> None:
    hub = Hub(1, 1)
    stream = hub.subscribe(1, LOCAL, ALL, EVERYTHING).messages(5)
    await anext(stream)
    for method, uri in TOPICS * 3:
        hub.publish(method, uri)
        message = await anext(stream)
        assert message is not None
        assert json.loads(message)["method"] == method
    await stream.aclose()


async def test_one_caller_cannot_have_all_streams() -> None:
    hub, ann, bob = Hub(10, 2), Principal("i", "ann"), Principal("i", "bob")
    first, _ = (hub.subscribe(n, ann, ALL, EVERYTHING) for n in range(2))
    with pytest.raises(Unavailable, match=r"http\.max_streams_per_caller"):
        hub.subscribe(3, ann, ALL, EVERYTHING)
    hub.subscribe(3, bob, ALL, EVERYTHING)
    hub.unsubscribe(first)
    hub.unsubscribe(first)
    hub.subscribe(4, ann, ALL, EVERYTHING)
    with pytest.raises(Unavailable, match=r"http\.max_streams_per_caller"):
        hub.subscribe(5, ann, ALL, EVERYTHING)
