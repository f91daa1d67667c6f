"""What every back end offers, whatever is behind it.

A back end is made of its settings, says what it offers (`Offering`), serves calls, and is closed
when the last of them has ended. Each `Tool`, `Prompt` and `Resource` carries its wire definition,
served verbatim, and the function that serves it; names are still without prefix.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from roundgate.aio import Threads
from roundgate.auth import Principal
from roundgate.backends.python.modules import Modules
from roundgate.backends.secret_reading import Secrets
from roundgate.backends.task_source import TaskSource
from roundgate.errors import Problem
from roundgate.protocol import Completion, PromptMessage, ResourceContents, TaskView, ToolResult
from roundgate.replay import Context
from roundgate.settings import Origin, TaskMode, WithoutTasks

Returned: TypeAlias = ToolResult | TaskView
"""A tool's result, or, where `task_source.may_hand_over`, a task of its service that
has the call from now on."""
CallTool: TypeAlias = Callable[[Context, dict[str, Any]], Awaitable[Returned]]
GetPrompt: TypeAlias = Callable[[Context, dict[str, str]], Awaitable[Sequence[PromptMessage]]]
ReadResource: TypeAlias = Callable[
    [Context, str, Mapping[str, Any]], Awaitable[Sequence[ResourceContents]]
]
"""Takes the URI that was asked for and the values of the template's variables."""
Complete: TypeAlias = Callable[[Principal, str], Awaitable[Completion]]
"""Takes who asks, and what the user has typed so far."""


class About(Protocol):
    """What is known of a tool that clients are not told, and that it can be chosen by."""

    @property
    def tags(self) -> Sequence[str]:
        """Of its operation."""

    @property
    def method(self) -> str | None:
        """The HTTP method, in capitals."""

    @property
    def path(self) -> str | None:
        """The path template below the service's URL."""

    @property
    def extensions(self) -> Mapping[str, Any]:
        """`x-` members of its description, where they are text, numbers or booleans."""


@dataclass(frozen=True, slots=True)
class ToolAbout:
    """An `About` by itself."""

    tags: Sequence[str] = ()
    method: str | None = None
    path: str | None = None
    extensions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tool:
    """`definition` is the schema's `Tool`; its `inputSchema` is what arguments are checked
    against before `call`."""

    definition: Mapping[str, Any]
    call: CallTool
    requires: Mapping[str, Any] = field(default_factory=dict)
    """Client capabilities without which the tool is not run, shaped as `ClientCapabilities`."""
    scopes: frozenset[str] = frozenset()
    """What the caller's token must grant to see and call it."""
    once: bool = False
    """Whether a retry with the same `requestState` must not run it again."""
    task: TaskMode = "forbidden"
    """Whether a call of it becomes a task."""
    unasked_answers: bool = False
    """Whether answers count that a client sends along without a `requestState`, so before
    it was asked anything."""
    approve: Literal["never", "always"] | None = None
    """Whether the user must approve each call; `None`: as the settings of the back end say."""
    approval: str | None = None
    """The text above the arguments when the user approves a call; `{name}` stands for an
    argument."""
    ask_for: Sequence[str] = ()
    """Arguments for which the user is asked with a form when a call lacks them."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of arguments that a call lacks; the user is shown them before approving it."""
    place: Sequence[str | int] = ()
    """Where the tool is declared, below its back end's entry in gateway.yaml; for problems."""
    is_described_remotely: bool = False
    """Whether a service described the tool. A problem with it leaves it out and keeps nothing
    else from being served."""
    max_result: int | None = None
    """Most characters of text that a result gives the model at once."""
    ask_in_words: bool | None = None
    """Whether a client is asked in words that cannot be asked otherwise;
    `None`: as for all tools."""
    without_tasks: WithoutTasks | None = None
    """What a client gets that knows no tasks, if its calls become some;
    `None`: as for all tools."""
    about: About = ToolAbout()
    approvable: CallTool | None = None
    """The call with an approval question in front; the loader makes it."""
    asks_first: bool = False
    """Whether `call` asks for approval; the loader decides it."""
    may_ask: bool = False
    """Whether some calls are known to ask the client questions other than approvals."""
    cleans_up: bool = False
    """Whether a task of it that ends early is to be called once more to end what it
    began elsewhere (`replay.Cleanup`).
    """

    def defined(self, definition: Mapping[str, Any]) -> Tool:
        """The tool with another definition. A start does this for every tool;
        `replace` takes much longer."""
        return Tool(definition, *_ALL_BUT_DEFINITION(self))


_ALL_BUT_DEFINITION: Final = attrgetter(*(one.name for one in fields(Tool)[1:]))


@dataclass(frozen=True, slots=True)
class Prompt:
    """`definition` is the schema's `Prompt`; `complete` has a function for each argument
    that can be completed."""

    definition: Mapping[str, Any]
    get: GetPrompt
    complete: Mapping[str, Complete] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resource:
    """`definition` is the schema's `Resource` (with `uri`) or
    `ResourceTemplate` (with `uriTemplate`)."""

    definition: Mapping[str, Any]
    read: ReadResource
    complete: Mapping[str, Complete] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offering:
    """Everything one back end has, in the order in which it wants it listed."""

    tools: Sequence[Tool] = ()
    prompts: Sequence[Prompt] = ()
    resources: Sequence[Resource] = ()
    task_source: TaskSource | None = None
    """The tasks of its service, if its tools may return any."""
    files: frozenset[Path] = frozenset()
    """Files that it was read from, besides gateway.yaml and Python modules; a change makes
    it worth asking again."""
    left_out: Sequence[Problem] = ()
    """What it has and does not offer, and why."""


class Backend(Protocol):
    """One entry of `backends:` in gateway.yaml, ready to serve.

    It offers plain tools. The loader selects and changes them, and puts forms, approvals and
    bounds around their calls (`backends.shaping`), whatever kind the back end is of.
    """

    async def offer(self) -> Offering:
        """Everything it offers now; may be asked again, and then says what has changed since.

        It may be awaited in another event loop than the calls that follow, and in another thread
        than made the back end: a connection that it needs does not outlive it.

        Raises:
            ConfigError: it cannot be served as configured.
        """

    async def aclose(self) -> None:
        """Let go of connections. Nothing is called afterwards."""


class NamedBackend(Backend, Protocol):
    """A back end under the name that gateway.yaml gives it."""

    @property
    def name(self) -> str:
        """The unique name of the back end."""

    @property
    def prefix(self) -> str:
        """The text before the names of its tools and prompts, separator included."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the back ends of one configuration have in common."""

    threads: Threads
    """Plain (not async) functions that run at once."""
    modules: Modules
    """The Python modules that they have loaded."""
    fetches: bool = False
    """Whether what they are described by may be fetched: by a command, never by
    a gateway that starts."""
    fetched: dict[str, bytes] = field(default_factory=dict)
    """What has been fetched, by URL: nothing is fetched twice for one command."""
    is_cold: bool = False
    """Whether a caller waits while this process starts, as for a function of AWS
    Lambda: nobody is asked then."""
    secrets: Secrets = field(default_factory=Secrets)
    """What is read for their credentials: now, or in a cold start when the first call needs it."""


MakeBackend: TypeAlias = Callable[[Any, Origin, Shared], Backend]
"""Makes a back end of its settings (of the model in the table), where they stand, and what it
shares with others; raises ConfigError. It runs in the thread that serves, and waits for files only:
the rest belongs to `offer`."""
