"""The protocol as values: requests and errors, read from bytes and headers. Each revision has a
module for its own part.

No I/O, no clock, no logging, no FastAPI: everything here is a pure function or a frozen value.
"""

from __future__ import annotations

from roundgate.protocol import jsonrpc as jsonrpc
from roundgate.protocol import notifications as notifications
from roundgate.protocol import params as params
from roundgate.protocol import tasks as tasks
from roundgate.protocol.content import ABSENT as ABSENT
from roundgate.protocol.content import Annotations as Annotations
from roundgate.protocol.content import AudioContent as AudioContent
from roundgate.protocol.content import BlobResourceContents as BlobResourceContents
from roundgate.protocol.content import Completion as Completion
from roundgate.protocol.content import ContentBlock as ContentBlock
from roundgate.protocol.content import EmbeddedResource as EmbeddedResource
from roundgate.protocol.content import ForwardedContent as ForwardedContent
from roundgate.protocol.content import ForwardedPrompt as ForwardedPrompt
from roundgate.protocol.content import ForwardedRead as ForwardedRead
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
from roundgate.protocol.jsonrpc import LOG_LEVELS as LOG_LEVELS
from roundgate.protocol.jsonrpc import SESSION_HEADER as SESSION_HEADER
from roundgate.protocol.jsonrpc import SUPPORTED_VERSIONS as SUPPORTED_VERSIONS
from roundgate.protocol.jsonrpc import VERSION_HEADER as VERSION_HEADER
from roundgate.protocol.jsonrpc import ClientCapabilities as ClientCapabilities
from roundgate.protocol.jsonrpc import Headers as Headers
from roundgate.protocol.jsonrpc import Inbound as Inbound
from roundgate.protocol.jsonrpc import Meta as Meta
from roundgate.protocol.jsonrpc import Notification as Notification
from roundgate.protocol.jsonrpc import Request as Request
from roundgate.protocol.jsonrpc import RequestId as RequestId
from roundgate.protocol.jsonrpc import Response as Response
from roundgate.protocol.jsonrpc import is_older as is_older
from roundgate.protocol.jsonrpc import may_be_older as may_be_older
from roundgate.protocol.jsonrpc import merged as merged
from roundgate.protocol.legible import is_plain_host as is_plain_host
from roundgate.protocol.legible import page_host as page_host
from roundgate.protocol.legible import visible as visible
from roundgate.protocol.legible import visible_json as visible_json
from roundgate.protocol.notifications import RESOURCE_UPDATED as RESOURCE_UPDATED
from roundgate.protocol.params import CallToolParams as CallToolParams
from roundgate.protocol.params import CompleteParams as CompleteParams
from roundgate.protocol.params import GetPromptParams as GetPromptParams
from roundgate.protocol.params import InputParams as InputParams
from roundgate.protocol.params import ListenParams as ListenParams
from roundgate.protocol.params import ListParams as ListParams
from roundgate.protocol.params import Page as Page
from roundgate.protocol.params import Pages as Pages
from roundgate.protocol.params import Params as Params
from roundgate.protocol.params import PromptReference as PromptReference
from roundgate.protocol.params import ReadResourceParams as ReadResourceParams
from roundgate.protocol.params import ResourceReference as ResourceReference
from roundgate.protocol.params import SubscriptionFilter as SubscriptionFilter
from roundgate.protocol.params import Uri as Uri
from roundgate.protocol.revision import CacheHint as CacheHint
from roundgate.protocol.revision import MirroredArgument as MirroredArgument
from roundgate.protocol.revision import ResultFormat as ResultFormat
from roundgate.protocol.revision import Revision as Revision
from roundgate.protocol.revision import Route as Route
from roundgate.protocol.revisions import NEWEST as NEWEST
from roundgate.protocol.schemas import PartlyKnown as PartlyKnown
from roundgate.protocol.schemas import Path as Path
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
