"""A stateless MCP gateway, and what a module of tools needs from it.

    from roundgate import Context, ToolError, tool

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
    from roundgate.auth.principal import Principal as Principal
    from roundgate.backends.declare import prompt as prompt
    from roundgate.backends.declare import resource as resource
    from roundgate.backends.declare import tool as tool
    from roundgate.clock import Deadline as Deadline
    from roundgate.errors import InvalidParams as InvalidParams
    from roundgate.errors import NotJson as NotJson
    from roundgate.errors import OutcomeUnknown as OutcomeUnknown
    from roundgate.errors import Refused as Refused
    from roundgate.errors import ResourceNotFound as ResourceNotFound
    from roundgate.errors import ToolError as ToolError
    from roundgate.protocol.content import Annotations as Annotations
    from roundgate.protocol.content import AudioContent as AudioContent
    from roundgate.protocol.content import BlobResourceContents as BlobResourceContents
    from roundgate.protocol.content import Completion as Completion
    from roundgate.protocol.content import EmbeddedResource as EmbeddedResource
    from roundgate.protocol.content import Icon as Icon
    from roundgate.protocol.content import ImageContent as ImageContent
    from roundgate.protocol.content import PromptMessage as PromptMessage
    from roundgate.protocol.content import ResourceLink as ResourceLink
    from roundgate.protocol.content import TextContent as TextContent
    from roundgate.protocol.content import TextResourceContents as TextResourceContents
    from roundgate.protocol.content import ToolResult as ToolResult
    from roundgate.replay.context import Context as Context
    from roundgate.replay.questions import Answer as Answer
    from roundgate.replay.questions import Form as Form
    from roundgate.replay.questions import Root as Root
    from roundgate.replay.questions import Roots as Roots
    from roundgate.replay.questions import Sample as Sample
    from roundgate.replay.questions import Sampled as Sampled
    from roundgate.replay.questions import Url as Url
    from roundgate.replay.steps import StepFailed as StepFailed
    from roundgate.replay.steps import StepTimeout as StepTimeout
    from roundgate.replay.sync_context import SyncContext as SyncContext

_HOMES = {
    "roundgate.auth.principal": ("Principal",),
    "roundgate.backends.declare": ("prompt", "resource", "tool"),
    "roundgate.clock": ("Deadline",),
    "roundgate.errors": ("InvalidParams", "NotJson", "OutcomeUnknown", "Refused", "ResourceNotFound", "ToolError"),
    "roundgate.protocol.content": (
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
    "roundgate.replay.context": ("Context",),
    "roundgate.replay.questions": ("Answer", "Form", "Root", "Roots", "Sample", "Sampled", "Url"),
    "roundgate.replay.steps": ("StepFailed", "StepTimeout"),
    "roundgate.replay.sync_context": ("SyncContext",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'roundgate' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value
