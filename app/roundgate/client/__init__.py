"""A client for MCP servers of any protocol revision. It answers the questions of a call, follows
tasks, and reports changes.

    from roundgate.client import Client

    async with Client("http://127.0.0.1:8000/mcp") as client:
        print((await client.call("add", a=1, b=2)).value)

Names that this package does not export may change between releases.
"""

from __future__ import annotations

from roundgate.client.auth import Auth as Auth
from roundgate.client.auth import Bearer as Bearer
from roundgate.client.elicitation import InputRequest as InputRequest
from roundgate.client.elicitation import InputRequiredResult as InputRequiredResult
from roundgate.client.elicitation import InputResponse as InputResponse
from roundgate.client.elicitation import build_retry_params as build_retry_params
from roundgate.client.elicitation import collect_responses as collect_responses
from roundgate.client.elicitation import recognize_input_required as recognize_input_required
from roundgate.client.elicitation import run_elicitation_chain as run_elicitation_chain
from roundgate.client.flows import VERSIONS as VERSIONS
from roundgate.client.following import Change as Change
from roundgate.client.following import Task as Task
from roundgate.client.following import handle_of as handle_of
from roundgate.client.following import split_handle as split_handle
from roundgate.client.messages import EventReader as EventReader
from roundgate.client.messages import Observer as Observer
from roundgate.client.messages import envelope as envelope
from roundgate.client.messages import headers_of as headers_of
from roundgate.client.messages import message as message
from roundgate.client.messages import of_request as of_request
from roundgate.client.questions import ACCEPT as ACCEPT
from roundgate.client.questions import CANCEL as CANCEL
from roundgate.client.questions import DECLINE as DECLINE
from roundgate.client.questions import Answerer as Answerer
from roundgate.client.questions import Answers as Answers
from roundgate.client.questions import AnswersLike as AnswersLike
from roundgate.client.questions import Kind as Kind
from roundgate.client.questions import Question as Question
from roundgate.client.questions import answer_all as answer_all
from roundgate.client.questions import by_schema as by_schema
from roundgate.client.questions import defaults as defaults
from roundgate.client.session import Client as Client
from roundgate.client.skills import Skill as Skill
from roundgate.client.skills import SkillFile as SkillFile
from roundgate.client.transport import HttpRequest as HttpRequest
from roundgate.client.transport import HttpResponse as HttpResponse
from roundgate.client.transport import HttpxTransport as HttpxTransport
from roundgate.client.transport import Limits as Limits
from roundgate.client.transport import Transport as Transport
from roundgate.client.transport import Url as Url
from roundgate.client.types import CallResult as CallResult
from roundgate.client.types import Completion as Completion
from roundgate.client.types import Log as Log
from roundgate.client.types import Progress as Progress
from roundgate.client.types import Prompt as Prompt
from roundgate.client.types import PromptResult as PromptResult
from roundgate.client.types import ReadResult as ReadResult
from roundgate.client.types import Resource as Resource
from roundgate.client.types import ServerInfo as ServerInfo
from roundgate.client.types import TaskState as TaskState
from roundgate.client.types import Tool as Tool
