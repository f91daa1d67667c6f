"""The protocol as values: bytes and headers in, requests and errors out. What one revision
alone has is in its package.

No I/O, no clock, no logging, no FastAPI. Everything here is a pure function or a frozen value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundgate.lazy import face

if TYPE_CHECKING:
    from roundgate.protocol import jsonrpc as jsonrpc
    from roundgate.protocol import messages as messages
    from roundgate.protocol import notifications as notifications
    from roundgate.protocol import opening as opening
    from roundgate.protocol import params as params
    from roundgate.protocol import sse as sse
    from roundgate.protocol import tasks as tasks
    from roundgate.protocol.branching import ANY as ANY
    from roundgate.protocol.branching import ITEMS as ITEMS
    from roundgate.protocol.branching import Branching as Branching
    from roundgate.protocol.branching import Edges as Edges
    from roundgate.protocol.branching import Key as Key
    from roundgate.protocol.capabilities import ClientCapabilities as ClientCapabilities
    from roundgate.protocol.capabilities import merged as merged
    from roundgate.protocol.content import ABSENT as ABSENT
    from roundgate.protocol.content import Annotations as Annotations
    from roundgate.protocol.content import AudioContent as AudioContent
    from roundgate.protocol.content import BlobResourceContents as BlobResourceContents
    from roundgate.protocol.content import Completion as Completion
    from roundgate.protocol.content import ContentBlock as ContentBlock
    from roundgate.protocol.content import EmbeddedResource as EmbeddedResource
    from roundgate.protocol.content import Icon as Icon
    from roundgate.protocol.content import ImageContent as ImageContent
    from roundgate.protocol.content import PromptMessage as PromptMessage
    from roundgate.protocol.content import ResourceContents as ResourceContents
    from roundgate.protocol.content import ResourceLink as ResourceLink
    from roundgate.protocol.content import TextContent as TextContent
    from roundgate.protocol.content import TextResourceContents as TextResourceContents
    from roundgate.protocol.content import ToolResult as ToolResult
    from roundgate.protocol.content import base64_text as base64_text
    from roundgate.protocol.content import without_none as without_none
    from roundgate.protocol.header_lines import Headers as Headers
    from roundgate.protocol.inbound import LOG_LEVELS as LOG_LEVELS
    from roundgate.protocol.inbound import Inbound as Inbound
    from roundgate.protocol.inbound import Meta as Meta
    from roundgate.protocol.jsonrpc import Notification as Notification
    from roundgate.protocol.jsonrpc import Request as Request
    from roundgate.protocol.jsonrpc import RequestId as RequestId
    from roundgate.protocol.legible import visible as visible
    from roundgate.protocol.legible import visible_json as visible_json
    from roundgate.protocol.messages import Response as Response
    from roundgate.protocol.notifications import RESOURCE_UPDATED as RESOURCE_UPDATED
    from roundgate.protocol.opening import SESSION_HEADER as SESSION_HEADER
    from roundgate.protocol.opening import VERSION_HEADER as VERSION_HEADER
    from roundgate.protocol.page_url import is_plain_host as is_plain_host
    from roundgate.protocol.page_url import page_host as page_host
    from roundgate.protocol.pages import Page as Page
    from roundgate.protocol.pages import Pages as Pages
    from roundgate.protocol.params import CallToolParams as CallToolParams
    from roundgate.protocol.params import CompleteParams as CompleteParams
    from roundgate.protocol.params import GetPromptParams as GetPromptParams
    from roundgate.protocol.params import InputParams as InputParams
    from roundgate.protocol.params import ListenParams as ListenParams
    from roundgate.protocol.params import ListParams as ListParams
    from roundgate.protocol.params import Params as Params
    from roundgate.protocol.params import PromptReference as PromptReference
    from roundgate.protocol.params import ReadResourceParams as ReadResourceParams
    from roundgate.protocol.params import SubscriptionFilter as SubscriptionFilter
    from roundgate.protocol.params import TaskParams as TaskParams
    from roundgate.protocol.params import UpdateTaskParams as UpdateTaskParams
    from roundgate.protocol.params import Uri as Uri
    from roundgate.protocol.params import validate as validate
    from roundgate.protocol.revision import CacheHint as CacheHint
    from roundgate.protocol.revision import MirroredArgument as MirroredArgument
    from roundgate.protocol.revision import ResultFormat as ResultFormat
    from roundgate.protocol.revision import Revision as Revision
    from roundgate.protocol.revisions import NEWEST as NEWEST
    from roundgate.protocol.revisions_with_sessions import WITH_SESSIONS as WITH_SESSIONS
    from roundgate.protocol.schemas import Schema as Schema
    from roundgate.protocol.tasks import EXTENSION as EXTENSION
    from roundgate.protocol.tasks import OPEN as OPEN
    from roundgate.protocol.tasks import REQUIRED as REQUIRED
    from roundgate.protocol.tasks import TERMINAL as TERMINAL
    from roundgate.protocol.tasks import Event as Event
    from roundgate.protocol.tasks import Status as Status
    from roundgate.protocol.tasks import TaskView as TaskView
    from roundgate.protocol.tasks import detailed as detailed
    from roundgate.protocol.tasks import sources as sources
    from roundgate.protocol.tasks import target as target
    from roundgate.protocol.tasks import to_wire as to_wire
    from roundgate.protocol.uri_template import UriTemplate as UriTemplate
    from roundgate.protocol.versions import SUPPORTED_VERSIONS as SUPPORTED_VERSIONS
else:
    __getattr__, __all__ = face(
        __name__,
        {
            ".branching": "ANY Branching Edges ITEMS Key",
            ".capabilities": "ClientCapabilities merged",
            ".content": "ABSENT Annotations AudioContent BlobResourceContents Completion "
            "ContentBlock EmbeddedResource Icon ImageContent PromptMessage ResourceContents "
            "ResourceLink TextContent TextResourceContents ToolResult base64_text "
            "without_none",
            ".header_lines": "Headers",
            ".inbound": "Inbound LOG_LEVELS Meta",
            ".jsonrpc": "Notification Request RequestId",
            ".legible": "visible visible_json",
            ".messages": "Response",
            ".notifications": "RESOURCE_UPDATED",
            ".opening": "SESSION_HEADER VERSION_HEADER",
            ".page_url": "is_plain_host page_host",
            ".pages": "Page Pages",
            ".params": "CallToolParams CompleteParams GetPromptParams InputParams ListParams "
            "ListenParams Params PromptReference ReadResourceParams SubscriptionFilter "
            "TaskParams UpdateTaskParams Uri validate",
            ".revision": "CacheHint MirroredArgument ResultFormat Revision",
            ".revisions": "NEWEST",
            ".revisions_with_sessions": "WITH_SESSIONS",
            ".schemas": "Schema",
            ".tasks": "EXTENSION Event OPEN REQUIRED Status TERMINAL TaskView detailed sources "
            "target to_wire",
            ".uri_template": "UriTemplate",
            ".versions": "SUPPORTED_VERSIONS",
        },
        modules="jsonrpc messages notifications opening params sse tasks",
    )
