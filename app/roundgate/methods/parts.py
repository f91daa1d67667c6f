"""What methods are made of, and how an extension adds to them.

An extension is one module with a subclass of `Extension`, and one entry in the table of
`roundgate.methods.extensions`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from roundgate.backends import Catalog
from roundgate.clock import Clock
from roundgate.config import GatewayConfig
from roundgate.methods.changes import Changes
from roundgate.methods.once import Once
from roundgate.methods.results import Reply, Response, Results
from roundgate.methods.rounds import Calls, RequestContext, Rounds
from roundgate.methods.scopes import Scopes
from roundgate.protocol import CallToolParams, ListParams, Params, Route
from roundgate.storage import SessionStore
from roundgate.tasks import NamedTasks, Watch
from roundgate.tokens import StateSealer

P = TypeVar("P", bound=Params)


@dataclass(frozen=True, slots=True)
class Method(Generic[P]):
    """A row of the table of methods."""

    serve: Callable[[RequestContext, P], Awaitable[Response]]
    params: type[P]
    requires: Mapping[str, Any] | None = None
    """What the client must have declared, shaped as `ClientCapabilities`."""


class Tools(Protocol):
    """Lists tools and calls them."""

    async def list(self, context: RequestContext, asked: ListParams) -> Reply:
        """tools/list"""

    async def call(self, context: RequestContext, asked: CallToolParams) -> Reply:
        """tools/call"""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the methods of one endpoint work with, whatever catalog they serve."""

    changes: Changes
    """Sends changes to streams."""
    rounds: Rounds
    once: Once
    tasks: NamedTasks
    watch: Watch
    """Looks for changes of tasks."""
    sealer: StateSealer
    rows: SessionStore
    clock: Clock
    streams: bool
    """Whether the platform can hold a stream open."""
    view: str = ""
    """The name of the view; empty for the endpoint of all tools."""
    shows_errors: bool = False
    """Whether callers see the text of unexpected exceptions."""


@dataclass(frozen=True, slots=True)
class Kit:
    """What the methods over one catalog, in the format of one revision, are made with."""

    config: GatewayConfig
    catalog: Catalog
    parts: Parts
    features: frozenset[str]
    """What there is something to serve for."""
    results: Results
    scopes: Scopes
    calls: Calls


class Extension(ABC):
    """An extension of the protocol. A subclass overrides the members that it needs."""

    name: ClassVar[str]
    """The identifier of the extension in `capabilities.extensions`."""
    feature: ClassVar[str]
    """The extension in one word, for the error of a server that does not offer it."""
    routes: ClassVar[Mapping[str, Route]] = {}
    """The methods of the extension, as a revision checks requests for them."""

    @abstractmethod
    def is_served(self, catalog: Catalog) -> bool:
        """Return whether a catalog has something to serve for the extension."""

    def settings(self) -> dict[str, Any] | None:
        """Return the value of `extensions.NAME` in server/discover; `None` to omit the member."""
        return {}

    def methods(self, kit: Kit) -> Mapping[str, Method[Any]]:
        """Return a row for each of `routes`."""
        return {}

    def tools(self, tools: Tools, kit: Kit) -> Tools:
        """Return the tools with what the extension changes in listing and calling them."""
        return tools
