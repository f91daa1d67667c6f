"""The offer of a back end of any kind: tools, prompts and resources.

Each item has its wire definition, which is served verbatim, and the function that serves it. Names have
no prefix.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct, field

from roundgate.aio import Threads
from roundgate.auth import Principal
from roundgate.backends.python.modules import Modules
from roundgate.backends.secret_reading import Secrets
from roundgate.errors import BackendError, Problem
from roundgate.json import encode
from roundgate.protocol import (
    NEWEST,
    REQUIRED,
    Completion,
    ForwardedPrompt,
    ForwardedRead,
    PartlyKnown,
    PromptMessage,
    ResourceContents,
    Schema,
    Status,
    TaskView,
    ToolResult,
    without_none,
)
from roundgate.replay import MAX_STATUS_CHARS, AnyContext, Context, Url, form_schema
from roundgate.settings import ArgumentMode, Origin, TaskMode, WithoutTasks

Returned: TypeAlias = ToolResult | TaskView
"""A tool's result, or a task of the tool's service that finishes the call (`may_hand_over`)."""
CallTool: TypeAlias = Callable[[Context, dict[str, Any]], Awaitable[Returned]]
GetPrompt: TypeAlias = Callable[
    [Context, dict[str, str]], Awaitable[Sequence[PromptMessage] | ForwardedPrompt]
]
ReadResource: TypeAlias = Callable[
    [Context, str, Mapping[str, Any]], Awaitable[Sequence[ResourceContents] | ForwardedRead]
]
"""A function of the requested URI and the values of the template's variables."""
Complete: TypeAlias = Callable[[Principal, str, Mapping[str, str]], Awaitable[Completion]]
"""A function of the caller, the typed text, and the arguments that have values already."""


class UriPattern(Protocol):
    """Matches the URIs of a resource template."""

    def match(self, uri: str) -> Mapping[str, Any] | None:
        """Return the values of the template's variables, or `None` if the URI does not match."""


class About(Protocol):
    """The properties by which a tool can be selected, besides its definition."""

    @property
    def tags(self) -> Sequence[str]:
        """The tags of the tool's operation."""

    @property
    def method(self) -> str | None:
        """The HTTP method, in capitals; `None` for a tool without one."""

    @property
    def path(self) -> str | None:
        """The path template below the service's URL; `None` for a tool without one."""

    @property
    def extensions(self) -> Mapping[str, Any]:
        """The `x-` members of the tool's description that are text, numbers or booleans."""


class ToolAbout(Struct, frozen=True):
    """An `About` of plain values."""

    tags: Sequence[str] = ()
    method: str | None = None
    path: str | None = None
    extensions: Mapping[str, Any] = field(default_factory=dict)


class DirectCall(Struct, frozen=True):
    """The call of a tool that cannot suspend: it asks nothing and records no step. The gateway runs it
    without the engine, unless a wrapper (`approvals.around_calls`) has taken its place."""

    run: Callable[[AnyContext, dict[str, Any]], Coroutine[Any, Any, Returned]]

    def __call__(
        self, context: AnyContext, arguments: dict[str, Any]
    ) -> Coroutine[Any, Any, Returned]:
        return self.run(context, arguments)


class Bound(Struct, frozen=True, dict=True):
    """One call of a tool that has bound its arguments, so that rules, approvals and the tool get the
    same value."""

    call: Callable[[Any], Awaitable[Returned]]
    """Takes the context that the tool's own call takes."""
    read: Callable[[], PartlyKnown]
    """Returns the bound arguments under the names of the tool's schema."""

    @cached_property
    def known(self) -> PartlyKnown:
        """The bound arguments, read once."""
        return self.read()


class Tool(Struct, frozen=True):
    """A tool. `definition` is the schema's `Tool`; the gateway checks arguments against its
    `inputSchema` before `call`."""

    definition: Mapping[str, Any]
    call: CallTool
    requires: Mapping[str, Any] = field(default_factory=dict)
    """Client capabilities that the tool needs, shaped as `ClientCapabilities`."""
    scopes: frozenset[str] = frozenset()
    """The scopes that the caller's token must grant to see and call the tool."""
    once: bool = False
    """Whether a retry with the same `requestState` must not run the tool again."""
    task: TaskMode = "forbidden"
    """Whether a call must, may or cannot become a task."""
    unasked_answers: bool = False
    """Whether to accept answers that a client sends before it is asked."""
    approve: Literal["never", "always"] | None = None
    """Whether the user must approve each call; `None` selects the back end's setting."""
    approval: str | None = None
    """The text above the arguments when the user approves a call; `{name}` is an argument."""
    ask_for: Sequence[str] = ()
    """The arguments that a form asks the user for if the call lacks them."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values for arguments that a call lacks; an approval shows them."""
    place: Sequence[str | int] = ()
    """The path of the declaration below the back end's entry in gateway.yaml, for problem
    reports."""
    is_described_remotely: bool = False
    """Whether a service described the tool. A problem with it leaves out only this tool."""
    max_result: int | None = None
    """The maximum number of characters of text in a result; `None` means no limit."""
    ask_in_words: bool | None = None
    """Whether questions become text for clients that cannot be asked; `None` selects the default
    for all tools."""
    without_tasks: WithoutTasks | None = None
    """The substitute for tasks; `None` selects the default for all tools."""
    argument_mode: ArgumentMode | None = None
    """Whether slips in arguments are repaired; `None` selects the default for all tools."""
    about: About = ToolAbout()
    bind: Callable[[dict[str, Any]], Bound] | None = None
    """Binds the arguments of `call`, or raises ToolError; `None` for a tool that gets them as they
    are sent."""
    unreadable: Callable[[], frozenset[str]] = frozenset
    """Returns the arguments with a part that rules of `policy` cannot read."""
    approvable: CallTool | None = None
    """The call with an approval question in front; set by the loader."""
    asks_first: bool = False
    """Whether `call` asks for approval; set by the loader."""
    may_ask: bool = False
    """Whether some calls are known to ask the client questions other than approvals."""
    compiled: tuple[Mapping[str, Any], Schema] | None = None
    """An input schema and its compiled form, which checks arguments. Valid while the definition's
    `inputSchema` is this very object."""
    cleans_up: bool = False
    """Whether the tool is called once more when its task ends early, to cancel the external work
    that it began (`replay.Cleanup`)."""


class ChangeReporter(Protocol):
    """Reports changes of resources that a service has."""

    def report(self, uris: frozenset[str], changed: Callable[[str], None]) -> None:
        """Call `changed` in this event loop with the URI of each of these resources that changes,
        until the next call of `report`. An empty set ends the reports. The method does not wait."""


class Prompt(Struct, frozen=True):
    """A prompt. `definition` is the schema's `Prompt`; `complete` maps each argument with
    completions to its function."""

    definition: Mapping[str, Any]
    get: GetPrompt
    complete: Mapping[str, Complete] = field(default_factory=dict)
    scopes: frozenset[str] = frozenset()
    """The scopes that the caller's token must grant to see and get the prompt."""
    backend: str = ""
    """The name of the back end; set by the catalog."""


class Resource(Struct, frozen=True):
    """A resource. `definition` is the schema's `Resource` (with `uri`) or `ResourceTemplate` (with
    `uriTemplate`)."""

    definition: Mapping[str, Any]
    read: ReadResource
    complete: Mapping[str, Complete] = field(default_factory=dict)
    scopes: frozenset[str] = frozenset()
    """The scopes that the caller's token must grant to see and read the resource."""
    pattern: UriPattern | None = None
    """The matcher of a template's URIs; `None` selects `UriTemplate`."""
    reporter: ChangeReporter | None = None
    """Reports changes of the resource; `None` if handlers alone report them."""
    backend: str = ""
    """The name of the back end; set by the catalog."""


class Offering(Struct, frozen=True):
    """The offer of one back end, in the order of the lists."""

    tools: Sequence[Tool] = ()
    prompts: Sequence[Prompt] = ()
    resources: Sequence[Resource] = ()
    unlisted: Mapping[str, Resource] = field(default_factory=dict)
    """Readers of resources that need not be in a list, by the beginning of their URIs:
    `ui://NAME/`, with the name of the back end."""
    task_source: TaskSource | None = None
    """The tasks of the back end's service, if its tools may return tasks."""
    skill_source: SkillSource | None = None
    """The skills of the back end. Their files are resources."""
    files: frozenset[Path] = frozenset()
    """The files that the offer depends on, besides gateway.yaml and Python modules."""
    left_out: Sequence[Problem] = ()
    """A problem for each part that is not offered."""
    absent: frozenset[str] = frozenset()
    """The names of tools among these, which the settings may name."""
    missing: Sequence[Problem] = ()
    """The reasons why the service is unavailable now; always empty unless a `LiveBackend` made the
    offer."""
    may_list: frozenset[str] = frozenset()
    """The lists among "prompts" and "resources" that the service has, even if they are empty now;
    always empty unless a `LiveBackend` made the offer."""
    is_private: bool = False
    """Whether the service says that shared caches must not keep its lists."""


class ServerState(Struct, frozen=True):
    """The state of the server behind a back end, for operators."""

    name: str
    """The name of the back end."""
    is_up: bool
    """Whether the last request to the server succeeded."""
    revision: str | None
    """The server's protocol revision; `None` while unknown."""
    software: str | None
    """The server's own name and version."""
    tools: int
    prompts: int
    resources: int
    """The resources and templates."""
    left_out: Mapping[str, str]
    """The reason why a tool, prompt, resource or list is not served, by its name."""
    error: str | None
    """The reason why the last request failed; not shown to callers."""
    differing: Sequence[str] = ()
    """The names of definitions that differ from the accepted ones."""
    skipped: int = 0
    """The number of lines and events of the server that are no messages."""


class Backend(Protocol):
    """A back end: one entry of `backends:`, ready to serve.

    A back end offers plain tools. For all kinds, the loader selects and changes tools, and adds
    forms, approvals and limits to their calls (`backends.shaping`).
    """

    async def offer(self) -> Offering:
        """Return everything that the back end offers now; called again at each reload.

        Calls may run in another event loop and thread, so `offer` must close every connection that
        it opens.

        Raises:
            ConfigError: the back end cannot be served as configured.
        """

    async def aclose(self) -> None:
        """Close connections. No method is called afterwards."""


@runtime_checkable
class LiveBackend(Protocol):
    """A back end whose offer changes while the gateway runs, because a server makes it.

    A reload keeps the back end if its settings and its files are unchanged. A configured name without
    a tool is not an error, because the server may list the tool later.
    """

    def follow(self, changed: Callable[[], None]) -> None:
        """Keep the offer up to date in the running event loop, until `aclose`. Call `changed`
        whenever `offer` would return a different result. The loader calls this method after each
        reload.
        """

    def state(self) -> ServerState:
        """Return the state of the server."""

    def has_current_files(self) -> bool:
        """Return whether the files that the back end reads only once, such as certificates, have the
        same content as then."""


class NamedBackend(Backend, Protocol):
    """A back end under the name that gateway.yaml gives it."""

    @property
    def name(self) -> str:
        """The unique name of the back end."""

    @property
    def prefix(self) -> str:
        """The text before the names of the back end's tools and prompts, separator included."""


class Shared(Struct, frozen=True):
    """The parts that the back ends of one configuration share."""

    threads: Threads
    """The threads of plain (not async) functions."""
    modules: Modules
    """The loaded Python modules of the user."""
    fetches: bool = False
    """Whether documents may be fetched. Commands may fetch; a starting gateway never does."""
    fetched: dict[str, bytes] = field(default_factory=dict)
    """The fetched documents, by URL."""
    is_cold: bool = False
    """Whether a caller waits while this process starts, as on AWS Lambda. If so, `offer` sends
    requests only to MCP servers, which alone know their tools."""
    asks_servers: bool = True
    """Whether the gateway may contact MCP servers; `False` during the test of a package for AWS
    Lambda."""
    replaces_server: bool = False
    """Whether the back end takes over from one whose server is up, and which serves until then."""
    secrets: Secrets = field(default_factory=Secrets)
    """The reader and cache of secrets."""


MakeBackend: TypeAlias = Callable[[Any, Origin, Shared], Backend]
"""A function that makes a back end from its settings, their place and the shared parts, or raises
ConfigError. It runs in the serving thread and may wait only for files; `offer` does the rest."""


# Skills


class Directory(Struct, frozen=True):
    """A page of a directory of resources."""

    children: Sequence[Mapping[str, Any]]
    """The direct children, as the schema's `Resource`."""
    next_cursor: str | None = None


class SkillSource(Protocol):
    """The skills of one back end (SEP-2640). The authority of each URI is the name of the back end:
    `skill://NAME/refunds/SKILL.md`.

    The methods may raise `BackendError` if a server is unavailable.
    """

    @property
    def entries(self) -> Sequence[Mapping[str, Any]]:
        """The entries of skills/list, in their order."""

    @property
    def scopes(self) -> frozenset[str]:
        """The scopes that the caller's token must grant to see the skills."""

    async def get(self, uri: str) -> Mapping[str, Any] | None:
        """Return the current entry of a skill by the URI of its SKILL.md, listed or not; `None` if
        there is no such skill."""

    async def directory(self, uri: str, cursor: str | None) -> Directory | None:
        """Return a page of a directory; `None` if there is no such directory or page."""


# Tasks of services


MAX_ID_CHARS: Final = 512
"""The maximum length of a service's task id, in characters."""
MAX_REQUESTS: Final = 100
"""The maximum number of open questions of one task."""
_MAX_KEY_CHARS: Final = 256
_ERROR_CODES: Final = frozenset({-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022})
"""The protocol's codes; a service's other codes are replaced."""
_INTERNAL_ERROR: Final = -32603


class TaskSource(Protocol):
    """The tasks of one service, by the service's ids.

    A tool whose service makes a task of a call returns a view of that task in place of a result.
    The client then asks the gateway, under an id that seals the service's id, and the gateway asks
    the source in the back end's offering. The gateway keeps neither row nor journal:

        tools/call ──▶ tool ──▶ service: "task 17"     the client gets an id that is 17, sealed
        tasks/get {our id} ──▶ source.get("17")        on any replica

    Each method may raise `TaskNotFound`, `Unavailable` (the service does not answer) and
    `BackendError` (the service's answer is invalid). The gateway cancels a method after
    `tasks.named.SOURCE_S` seconds.
    """

    async def get(self, task_id: str, principal: Principal) -> TaskView:
        """Return the current state of the task (`task_view`)."""

    async def update(
        self, task_id: str, responses: Mapping[str, Any], principal: Principal
    ) -> None:
        """Answer questions of a task by their keys; ignore other keys."""

    async def cancel(self, task_id: str, principal: Principal) -> None:
        """Cancel the task, unless it has ended."""

    def watch(
        self, task_id: str, principal: Principal, changed: Callable[[], None]
    ) -> Callable[[], None] | None:
        """Call `changed` in this event loop whenever the task may have changed, until the returned
        function is called. Additional calls do no harm.

        Return `None` if the service reports no changes. The task is also polled, so a lost change
        is only late.
        """


def may_hand_over(context: Context) -> bool:
    """Return whether the tool may return a task of its service. True if the call is not itself a
    task and the client supports tasks."""
    return context.task_id is None and context.supports(REQUIRED)


def task_view(task: Any) -> TaskView:
    """Return the view of a `Task` or `DetailedTask` in JSON; raise BackendError if `task` is
    neither."""
    try:
        return _task_view(task)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError):
        raise BackendError(
            "The service described its task in a form that the gateway does not know"
        ) from None


def _task_view(task: Any) -> TaskView:
    status, message = Status(task["status"]), task.get("statusMessage")
    created_ms, ttl_ms, interval_ms = (
        _ms(task["createdAt"]),
        task["ttlMs"],
        task.get("pollIntervalMs"),
    )
    return TaskView(
        task_id=_text(task["taskId"], MAX_ID_CHARS),
        status=status,
        status_message=None if message is None else str(message)[:MAX_STATUS_CHARS],
        created_ms=created_ms,
        updated_ms=_ms(task["lastUpdatedAt"]),
        expires_ms=None if ttl_ms is None else created_ms + int(ttl_ms),
        requests=_requests(task["inputRequests"]) if "inputRequests" in task else {},
        outcome=_outcome(status, task),
        poll_interval_ms=None if interval_ms is None else max(0, int(interval_ms)),
    )


def _ms(moment: str) -> int:
    parsed = datetime.fromisoformat(moment)
    if parsed.tzinfo is None:
        raise ValueError("a time has no time zone")
    return int(parsed.timestamp() * 1000)


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise ValueError("a text is empty or too long")
    return value


def _requests(requests: Mapping[str, Any]) -> Mapping[str, bytes]:
    if len(requests) > MAX_REQUESTS:
        raise ValueError("too many questions")
    for request in requests.values():
        check_request(request)
    return {_text(key, _MAX_KEY_CHARS): encode(request) for key, request in requests.items()}


def _outcome(status: Status, task: Mapping[str, Any]) -> bytes | None:
    """Return the outcome of a completed or failed task, or `None`. Unknown error codes become
    internal errors. Raise ValueError if a result has no content."""
    if status is Status.COMPLETED and "result" in task:
        result = task["result"]
        if not isinstance(result["content"], list):
            raise ValueError("the result has no list `content`")
        return NEWEST.kept_result(result)
    if status is Status.FAILED and "error" in task:
        error = task["error"]
        code = error["code"] if error["code"] in _ERROR_CODES else _INTERNAL_ERROR
        return encode(
            {"code": code, "message": str(error["message"]), **without_none(data=error.get("data"))}
        )
    return None


MAX_URL: Final = 2_048
"""The maximum length of a URL in a service's question, in characters."""


def check_request(request: Any) -> None:
    """Raise ValueError unless a service's question is an `InputRequest` that a client can show."""
    match request:
        case {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": str(message), "url": str(url)},
        }:
            Url(message, url)
            if len(url) > MAX_URL:
                raise ValueError("too long to be shown")
        case {
            "method": "elicitation/create",
            "params": {"message": str(), "requestedSchema": dict(fields), **others},
        }:
            if others.get("mode", "form") != "form":
                raise ValueError("the mode of an elicitation is neither form nor url")
            form_schema(fields)
        case {
            "method": "sampling/createMessage",
            "params": {"messages": list(), "maxTokens": int()},
        }:
            pass
        case {"method": "roots/list"} if isinstance(request.get("params", {}), dict):
            pass
        case _:
            raise ValueError("not an input request")
