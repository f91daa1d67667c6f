"""The names of the notifications that a server sends."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

PROGRESS: Final = "notifications/progress"
MESSAGE: Final = "notifications/message"
ELICITATION_COMPLETE: Final = "notifications/elicitation/complete"
"""The notification that the user has finished with a page: only in 2025-11-25."""
TOOLS_CHANGED: Final = "notifications/tools/list_changed"
PROMPTS_CHANGED: Final = "notifications/prompts/list_changed"
RESOURCES_CHANGED: Final = "notifications/resources/list_changed"
RESOURCE_UPDATED: Final = "notifications/resources/updated"
TASK: Final = "notifications/tasks"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"

LIST_CHANGED: Final[Mapping[str, str]] = MappingProxyType(
    {"tools": TOOLS_CHANGED, "prompts": PROMPTS_CHANGED, "resources": RESOURCES_CHANGED}
)
"""The notification for each list that has changed."""

SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
"""The member of `_meta` that names the `subscriptions/listen` request a message belongs to."""
