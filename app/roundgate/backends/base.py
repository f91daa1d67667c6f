"""The offer of a back end of any kind: tools, prompts and resources.

Each item has its wire definition, which is served verbatim, and the function that serves it. Names have
no prefix. A definition may be stored as JSON, which is parsed only when more than the name and hints
is needed: parsing a thousand definitions would take longer than the rest of a start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct, field

from roundgate.aio import Threads
from roundgate.auth import Principal
from roundgate.backends.modules import Modules
from roundgate.backends.secret_reading import SecretTexts
from roundgate.backends.service_tasks import TaskSource
from roundgate.errors import Problem
from roundgate.json import decode, encode
from roundgate.protocol import (
    Completion,
    ForwardedPrompt,
    ForwardedRead,
    PartlyKnown,
    PromptMessage,
    ResourceContents,
    Schema,
    TaskView,
    ToolResult,
)
from roundgate.replay import AnyContext, Context
from roundgate.settings import ArgumentMode, Origin, TaskMode, WithoutTasks
from roundgate.storage import SessionStore

if TYPE_CHECKING:  # loaded only if a back end has skills
    from roundgate.backends.skills.source import SkillSource

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
    """The call of a tool that asks nothing and records no step, or that raises `NeedsEngine` before it
    does. The gateway runs it without the engine, unless a wrapper (`approvals.around_calls`) has taken
    its place."""

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
    begins_as_task: bool = False
    """Whether a call that may become a task becomes one before it does anything else."""
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

    def state(self) -> ServerState: ...

    def has_current_files(self) -> bool:
        """Return whether the files that the back end reads only once, such as certificates, have the
        same content as then."""

    async def until_unused(self) -> None:
        """Wait until no call is open at the server between two requests of its client. A reload that
        replaces the back end closes it afterwards."""


class HostSender(Protocol):
    """The sender of requests to one host."""

    def pause_reason(self) -> str | None:
        """Return a sentence with the reason while requests are paused; otherwise `None`."""


@runtime_checkable
class SendingBackend(Protocol):
    """A back end that sends requests."""

    @property
    def senders(self) -> Mapping[str, HostSender]:
        """The senders of its requests, by host."""


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
    secrets: SecretTexts = field(default_factory=SecretTexts)
    """The reader and cache of secrets."""
    rows: SessionStore | None = None
    """The store of limits that replicas share; `None` makes this process count by itself."""


MakeBackend: TypeAlias = Callable[[Any, Origin, Shared], Backend]
"""A function that makes a back end from its settings, their place and the shared parts, or raises
ConfigError. It runs in the serving thread and may wait only for files; `offer` does the rest."""


_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "QUERY"})


class StoredDefinition(Mapping[str, Any]):
    """A `Tool` of the schema as JSON, which was checked when it was written."""

    __slots__ = ("_annotations", "_name", "_rest", "_value")

    def __init__(
        self, name: str, annotations: Mapping[str, bool], rest: Callable[[], bytes]
    ) -> None:
        """Store a definition. `rest` returns the JSON that follows the value of `name`, its first
        member: `,"description":…}`."""
        self._name = name
        self._annotations = annotations
        self._rest = rest
        self._value: Mapping[str, Any] | None = None

    def renamed(self, name: str) -> StoredDefinition:
        return StoredDefinition(name, self._annotations, self._rest)

    def encoded(self) -> bytes:
        return b'{"name":' + encode(self._name) + self._rest()

    def __getitem__(self, key: str) -> Any:
        if key == "name":
            return self._name
        if key == "annotations":
            return self._annotations
        return self._whole()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())

    def _whole(self) -> Mapping[str, Any]:
        if self._value is None:
            self._value = decode(self.encoded())
        return self._value


def renamed(definition: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if isinstance(definition, StoredDefinition):
        return definition.renamed(name)
    return {**definition, "name": name}


def meta_of(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `_meta` of a definition. A stored definition has none, and is not decoded."""
    meta = None if isinstance(definition, StoredDefinition) else definition.get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def encoded(definition: Mapping[str, Any]) -> bytes:
    return (
        definition.encoded()
        if isinstance(definition, StoredDefinition)
        else encode(dict(definition))
    )


class EncodedDefinitions(Sequence[tuple[str, bytes]]):
    """Keys with definitions as JSON. Stored definitions are assembled at first use, because a cold
    start that answers one call needs no list. Other definitions are encoded now, so that a value
    without JSON fails the start."""

    __slots__ = ("_entries", "_items")

    def __init__(self, definitions: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self._entries = [
            (key, definition if isinstance(definition, StoredDefinition) else encoded(definition))
            for key, definition in definitions
        ]
        self._items: list[tuple[str, bytes]] | None = None

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _all(self) -> list[tuple[str, bytes]]:
        if self._items is None:
            self._items = [
                (key, definition if isinstance(definition, bytes) else definition.encoded())
                for key, definition in self._entries
            ]
        return self._items


@cache
def method_hints(method: str) -> Mapping[str, bool]:
    """Return the annotations of a tool by the method of its HTTP request (RFC 9110 section 9.2).

    `destructiveHint` is omitted, which counts as true, unless the method is safe or DELETE. A
    request that reads by POST has the hints of QUERY.
    """
    safe = method in _SAFE
    destroys = {"destructiveHint": not safe} if safe or method == "DELETE" else {}
    return {
        "readOnlyHint": safe,
        **destroys,
        "idempotentHint": safe or method in ("PUT", "DELETE"),
        "openWorldHint": True,
    }
