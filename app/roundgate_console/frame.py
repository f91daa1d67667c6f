"""The frame of the console: the parts of the gateway that pages show, and their templates.

Templates escape every value. The policy of the pages allows no inline script and no inline style.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable, Coroutine, Mapping
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Lifespan, Scope

from roundgate.auth import Principal, Verifier
from roundgate.backends import Prompt, ServedTool
from roundgate.clock import Clock, iso
from roundgate.config import ConfigFile, GatewayConfig
from roundgate.errors import Inside, InsufficientScope, InternalError, Unavailable
from roundgate.http import Health
from roundgate.http.exchange import route_path
from roundgate.http.replica import Replica
from roundgate.runtime.startup import Core
from roundgate.settings import ConsoleConfig, Settings
from roundgate_console.charts import age, took
from roundgate_console.recent import RecentEvents
from roundgate_console.sessions import Operator, OperatorSessions
from roundgate_console.timeline import tone_of

log: Final = logging.getLogger("roundgate.console")

HERE: Final = Path(__file__).parent
STATIC: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "htmx-2.0.11.min.js": "text/javascript; charset=utf-8",
}
"""The files that pages load, with their media types. htmx is from npm (`htmx.org`)."""
Page: TypeAlias = Annotated[int, Query(ge=1, le=10_000)]
"""The number of a page of a list, in an address."""
UPDATES: Final = 200
"""The number of times that a page updates itself before it stops, so that a forgotten page does not
read the store for ever."""
OPERATOR: Final = "roundgate.operator"
FORM: Final = "roundgate.form"
"""The members of the ASGI scope that `ConsoleAccess` sets."""


def operator_of(request: Request) -> Operator:
    """Return the operator who sent a request to a page."""
    operator: Operator = request.scope[OPERATOR]
    return operator


def form_of(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form that was posted, each with its values in order."""
    fields: dict[str, list[str]] = request.scope[FORM]
    return fields


class PageError(Inside):
    """A request of an operator that a page or path operation cannot serve: a status and a sentence.
    Pages show it as a page, path operations answer `{"error": …}`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """A page, or group of pages, in the navigation. An entry point of the group `roundgate.pages` names
    it."""

    path: str
    """Its path below the console's own, such as `/tasks`."""
    label: str
    make_router: Callable[[Console], APIRouter]
    place: int = 100
    """Its place in the navigation; pages of the same place are sorted by their labels."""
    templates: Path | None = None
    """The folder of its own templates, which come before the console's."""


@dataclass
class Console:
    """The parts that pages use."""

    file: ConfigFile
    """The configuration at the start."""
    settings: ConsoleConfig
    """Its section `console`."""
    using: Settings
    clock: Clock
    replica: Replica
    """The replica that this process serves."""
    sessions: OperatorSessions
    verifier: Verifier
    """Authenticates callers of the default endpoint."""
    health: Callable[[], Health]
    """Returns the current health."""
    serves_as: Callable[[Principal], ASGIApp]
    """Returns the MCP endpoints for one caller, without authentication."""
    process: str = f"process {os.getpid()} on {platform.node()}"
    """The name of this process."""
    pages: list[ConsolePage] = field(default_factory=list)
    """The pages, in the order of the navigation."""
    left_out: list[str] = field(default_factory=list)
    """The pages that cannot be served, each with the reason."""

    def __post_init__(self) -> None:
        self.core: Core = self.replica.core
        self.recent = RecentEvents(backend_of=self.backend_of)
        self.static = {name: (HERE / "static" / name).read_bytes() for name in STATIC}
        self._versions = {
            name: hashlib.sha256(content).hexdigest()[:8] for name, content in self.static.items()
        }
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(
            exact=_exact,
            iso=lambda at_ms: iso(int(at_ms)),
            age=lambda at: age(at, self.clock.now_ms()),
            took=took,
            tone=lambda text: tone_of(text).value,
            pretty=_pretty,
            tojson_text=lambda value: json.dumps(value, ensure_ascii=False, default=str),
            segment=lambda text: quote(text, safe=""),
        )

    def of_page(self, page: ConsolePage) -> Console:
        """Return this console for one page, whose own templates come before the console's."""
        console = copy(self)
        if page.templates is not None:
            loader = FileSystemLoader([page.templates, HERE / "templates"])
            console._templates = self._templates.overlay(loader=loader)
        return console

    def tell_link(self, origin: str) -> None:
        """Write a link that starts one session to the log. `origin` is the gateway's, for a browser on
        this machine."""
        url = f"{origin}{self.settings.path}/enter?token={self.sessions.seal_link()}"
        log.warning("open the console once with this link: %s", url)

    @property
    def config(self) -> GatewayConfig:
        """The current configuration, which a reload changes."""
        return self.replica.config

    @property
    def shows_values(self) -> bool:
        """Return whether pages show the arguments, answers and results of calls."""
        return self.settings.show_values

    def check_operator(self, principal: Principal) -> None:
        """Check that a caller with a token is an operator.

        Raises:
            InsufficientScope: the token lacks the scope of operators.
        """
        auth = self.config.auth
        scope = None if auth == "none" else auth.operator_scope
        if scope is not None and scope not in principal.scopes:
            raise InsufficientScope("the console", [scope])

    def backend_of(self, method: str, name: str) -> str:
        """Return the name of the back end of a prompt or resource that a method names, or of a tool
        for any other method; empty if there is none."""
        catalog = self.core.serving.catalog
        for each in (catalog, *catalog.views.values()):
            items: Mapping[str, ServedTool | Prompt]
            items = each.prompts if method == "prompts/get" else each.tools
            is_read = method == "resources/read"
            served = each.find_resource(name) if is_read else items.get(name)
            if served is not None:
                return served.backend
        return ""

    def known_scopes(self) -> frozenset[str]:
        """Return the scopes on which anything in this gateway depends."""
        config, catalog = self.config, self.core.serving.catalog
        own = () if config.auth == "none" else (config.auth.operator_scope, *config.auth.scopes)
        return frozenset().union(
            (scope for scope in own if scope is not None),
            config.rate.scopes,
            catalog.all_scopes(),
            *(view.all_scopes() for view in catalog.views.values()),
            *(view.scopes for view in config.views),
        )

    def router(self, lifespan: Lifespan[FastAPI] | None = None) -> APIRouter:
        """Return an empty router below the console's path; its routes are for operators. `lifespan`
        runs while the gateway serves."""
        console = self

        class ConsoleRoute(APIRoute):
            """A route that answers errors as pages, or as JSON."""

            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                handle = super().get_route_handler()

                async def answer(request: Request) -> Response:
                    try:
                        return await handle(request)
                    except PageError as error:
                        return console.failure(request, error.status, str(error))
                    except Unavailable as error:
                        return console.failure(request, 503, str(error))
                    except RequestValidationError:
                        if is_api(self.path.removeprefix(console.settings.path)):
                            raise
                        return console.failure(request, 400, "The address has an invalid value")
                    except HTTPException:
                        raise
                    except Exception as error:
                        # outside of `ConsoleAccess`, the response would have no policy
                        reference = console.clock.new_id()
                        fields = {"reference": reference}
                        log.error("request failed", exc_info=error, extra={"fields": fields})
                        return console.failure(request, 500, str(InternalError(reference)))

                return answer

        return APIRouter(
            prefix=self.settings.path, tags=["console"], route_class=ConsoleRoute, lifespan=lifespan
        )

    def page_router(self, pages: Mapping[str, Callable[..., Any]]) -> APIRouter:
        """Return the routes of pages by method and path, such as `GET /tasks`. The documentation of
        the API omits them."""
        router = self.router()
        for method_and_path, page in pages.items():
            method, path = method_and_path.split()
            router.add_api_route(
                path, page, methods=[method], include_in_schema=False, response_model=None
            )
        return router

    def url(self, scope: Scope, path: str = "") -> str:
        """Return the path of a page for the client of a request, behind the prefix of a proxy."""
        return f"{scope.get('root_path', '')}{self.settings.path}{path}"

    def page(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Return a page. Templates also get `operator`, `url(path)`, `static(name)`, `entries`,
        `here` (the path of this page), `layout` (to extend: the frame, or nothing for a part that
        htmx loads), `left` (how often the page may still update itself), `server` and
        `shows_values`."""
        scope, operator = request.scope, request.scope.get(OPERATOR)
        text = self._templates.get_template(template).render(
            operator=operator,
            csrf_token=operator.csrf if operator else "",
            url=lambda path="": self.url(scope, path),
            static=lambda name: self.url(scope, f"/static/{name}?v={self._versions[name]}"),
            entries={page.path: page.label for page in self.pages},
            here=self.path_of(scope),
            layout="part.html" if "hx-request" in request.headers else "base.html",
            left=_updates_left(request),
            server=self.config.server,
            shows_values=self.shows_values,
            **values,
        )
        # a lone surrogate, which texts of services may have, becomes `?`
        return HTMLResponse(text.encode("utf-8", "replace"), status_code=status)

    def failure(self, request: Request, status: int, message: str) -> Response:
        """Return an error as a page, or as JSON for a path operation."""
        if is_api(self.path_of(request.scope)):
            return JSONResponse({"error": message}, status)
        return self.page(request, "error.html", status=status, message=message)

    def path_of(self, scope: Scope) -> str:
        """Return the path of a request below the console's own."""
        return route_path(scope).removeprefix(self.settings.path)


def is_api(path: str) -> bool:
    """Return whether a path below the console's own is a path operation, which answers JSON."""
    return path.startswith("/api/")


def _updates_left(request: Request) -> int:
    """Return how often a page may still update itself, from `left` in its address."""
    text = request.query_params.get("left", "")
    return min(int(text), UPDATES) if text.isdecimal() and len(text) < 10 else UPDATES


def _exact(at: str) -> str:
    """Return a time in ISO 8601 for people, without milliseconds."""
    return f"{at[:19].replace('T', ' ')} UTC"


def _pretty(value: Any) -> str:
    """Return a JSON value as indented text."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)
