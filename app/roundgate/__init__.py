"""A stateless MCP gateway, and the names that a module of tools uses.

from roundgate import Context, ToolError, tool

@tool
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
"""

from __future__ import annotations

from roundgate.auth.principal import Principal as Principal
from roundgate.clock import Deadline as Deadline
from roundgate.declare import PromptOptions as PromptOptions
from roundgate.declare import ResourceOptions as ResourceOptions
from roundgate.declare import ToolOptions as ToolOptions
from roundgate.declare import prompt as prompt
from roundgate.declare import resource as resource
from roundgate.declare import tool as tool
from roundgate.errors import Declined as Declined
from roundgate.errors import InvalidParams as InvalidParams
from roundgate.errors import NotJson as NotJson
from roundgate.errors import OutcomeUnknown as OutcomeUnknown
from roundgate.errors import ResourceNotFound as ResourceNotFound
from roundgate.errors import StepFailed as StepFailed
from roundgate.errors import StepTimeout as StepTimeout
from roundgate.errors import ToolError as ToolError
from roundgate.protocol.apps import App as App
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
from roundgate.replay.asking import ExternalEvent as ExternalEvent
from roundgate.replay.context import Context as Context
from roundgate.replay.questions import Answer as Answer
from roundgate.replay.questions import Form as Form
from roundgate.replay.questions import Root as Root
from roundgate.replay.questions import Roots as Roots
from roundgate.replay.questions import Sample as Sample
from roundgate.replay.questions import Sampled as Sampled
from roundgate.replay.questions import Url as Url
from roundgate.replay.sync_context import SyncContext as SyncContext
from roundgate.replay.sync_context import SyncExternalEvent as SyncExternalEvent
