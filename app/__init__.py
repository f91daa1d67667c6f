"""A stateless MCP gateway, and what a module of tools needs from it.

    from app import Context, ToolError, tool

    @tool
    async def add(a: int, b: int) -> int:
        "Add two numbers."
        return a + b

Names are imported when first used, so importing a part of the package costs that part.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.auth.principal import Principal as Principal
    from app.backends.declare import prompt as prompt
    from app.backends.declare import resource as resource
    from app.backends.declare import tool as tool
    from app.clock import Deadline as Deadline
    from app.errors import InvalidParams as InvalidParams
    from app.errors import NotJson as NotJson
    from app.errors import OutcomeUnknown as OutcomeUnknown
    from app.errors import Refused as Refused
    from app.errors import ResourceNotFound as ResourceNotFound
    from app.errors import ToolError as ToolError
    from app.protocol.content import Annotations as Annotations
    from app.protocol.content import AudioContent as AudioContent
    from app.protocol.content import BlobResourceContents as BlobResourceContents
    from app.protocol.content import Completion as Completion
    from app.protocol.content import EmbeddedResource as EmbeddedResource
    from app.protocol.content import Icon as Icon
    from app.protocol.content import ImageContent as ImageContent
    from app.protocol.content import PromptMessage as PromptMessage
    from app.protocol.content import ResourceLink as ResourceLink
    from app.protocol.content import TextContent as TextContent
    from app.protocol.content import TextResourceContents as TextResourceContents
    from app.protocol.content import ToolResult as ToolResult
    from app.replay.context import Context as Context
    from app.replay.questions import Answer as Answer
    from app.replay.questions import Form as Form
    from app.replay.questions import Root as Root
    from app.replay.questions import Roots as Roots
    from app.replay.questions import Sample as Sample
    from app.replay.questions import Sampled as Sampled
    from app.replay.questions import Url as Url
    from app.replay.steps import StepFailed as StepFailed
    from app.replay.steps import StepTimeout as StepTimeout
    from app.replay.sync_context import SyncContext as SyncContext

_HOMES = {
    "app.auth.principal": ("Principal",),
    "app.backends.declare": ("prompt", "resource", "tool"),
    "app.clock": ("Deadline",),
    "app.errors": ("InvalidParams", "NotJson", "OutcomeUnknown", "Refused", "ResourceNotFound", "ToolError"),
    "app.protocol.content": (
        "Annotations",
        "AudioContent",
        "BlobResourceContents",
        "Completion",
        "EmbeddedResource",
        "Icon",
        "ImageContent",
        "PromptMessage",
        "ResourceLink",
        "TextContent",
        "TextResourceContents",
        "ToolResult",
    ),
    "app.replay.context": ("Context",),
    "app.replay.questions": ("Answer", "Form", "Root", "Roots", "Sample", "Sampled", "Url"),
    "app.replay.steps": ("StepFailed", "StepTimeout"),
    "app.replay.sync_context": ("SyncContext",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'app' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value
