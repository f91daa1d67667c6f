"""The tools: lists by view, each tool as clients see it, and a form that calls it at the view's
endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse

from roundgate import json
from roundgate.auth import Principal
from roundgate.backends import Catalog, ServedTool
from roundgate.errors import BadAnswer
from roundgate.protocol.content import HINTS
from roundgate_console.calling import CallOutcome, ToolCall, call_tool
from roundgate_console.forms import (
    PageForm,
    asked,
    make_form,
    questions_of,
    read_answers,
    read_form,
    read_json,
)
from roundgate_console.frame import Console, ConsolePage, Page, PageError, form_of, operator_of

PER_PAGE: Final = 100
"""The number of tools of a page."""
MAX_TEXT: Final = 200
"""The limit on the text of a search, in characters."""
_ARGUMENT: Final = "argument/"


class ToolEntry(BaseModel):
    """A tool of a view."""

    name: str
    title: str | None = None
    description: str | None = None
    backend: str = Field(description="The name of its back end.")
    is_listed: bool = Field(description="Whether tools/list shows it, not only search.")
    asks_first: bool = Field(description="Whether each call needs an approval.")
    once: bool = Field(description="Whether a repeated round has no second effect.")
    task: str = Field(description="May a call become a task: forbidden, optional, required.")
    scopes: list[str] = Field(description="The scopes that a caller needs.")
    hints: dict[str, bool] = Field(description="Its hints, with the protocol's defaults.")


class ViewTools(BaseModel):
    """The tools of a view."""

    view: str = Field(description="The name of the view; empty for the endpoint of all tools.")
    path: str = Field(description="The path of its endpoint.")
    views: dict[str, str] = Field(description="The path of each view's endpoint.")
    total: int
    tools: list[ToolEntry]


class ToolDetails(ToolEntry):
    """A tool, and its definition as clients see it."""

    definition: dict[str, Any]
    view: str = Field(description="The name of the view; empty for the endpoint of all tools.")
    endpoints: dict[str, str] = Field(description="The path of each view that has such a tool.")


def make_router(console: Console) -> APIRouter:
    """Return the pages of tools and their path operations."""
    pages = _Pages(console)
    router = console.page_router(
        {
            "GET /tools": pages.list_page,
            "GET /tools/{name}": pages.tool_page,
            "POST /tools/{name}/call": pages.call_page,
        }
    )
    router.get("/api/tools", summary="Tools of a view")(pages.list)
    router.get("/api/tools/{name}", summary="A tool")(pages.show)
    router.post("/api/tools/{name}/call", summary="Call a tool")(pages.call)
    return router


class _Pages:
    """The pages of tools, and the path operations that they use."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def list(self, view: str | None = None, text: str = "", page: Page = 1) -> ViewTools:
        """Report a page of the tools of a view whose name or description contains a text."""
        view, catalog, paths = self._view(view)
        words = text[:MAX_TEXT].lower().split()
        tools = [
            entry
            for served in catalog.tools.values()
            if _matches(entry := _entry(served, catalog), words)
        ]
        shown = tools[(page - 1) * PER_PAGE : page * PER_PAGE]
        return ViewTools(view=view, path=paths[view], views=paths, total=len(tools), tools=shown)

    async def show(self, name: str, view: str | None = None) -> ToolDetails:
        """Report a tool of a view as clients see it."""
        view, catalog, paths = self._view(view)
        served, serving = catalog.tools.get(name), self._console.core.serving
        if served is None:
            raise PageError(404, "There is no such tool")
        listed = dict(catalog.tool_pages.items).get(name)
        definition = dict(served.tool.definition) if listed is None else json.decode(listed)
        return ToolDetails(
            **_entry(served, catalog).model_dump(),
            definition=definition,
            view=view,
            endpoints={
                view: path
                for view, path in paths.items()
                if name in serving.catalog.of_view(view).tools
            },
        )

    async def call(
        self, name: str, call: ToolCall, request: Request, view: str | None = None
    ) -> CallOutcome:
        """Run a round of a call as the operator, at the endpoint of a view."""
        view, catalog, paths = self._view(view)
        self._check_scopes(operator_of(request).principal, view)
        serves, tool = (
            self._console.serves_as(operator_of(request).principal),
            catalog.tools.get(name),
        )
        return await call_tool(serves, paths[view], name, tool, call, request)

    def _check_scopes(self, principal: Principal, view: str) -> None:
        """Check the scopes of a view's endpoint, which sign-in at the default endpoint does not.

        Raises:
            PageError: the operator lacks some.
        """
        config = self._console.config
        scopes = next((each.scopes for each in config.views if each.name == view), ())
        missing = [scope for scope in scopes if scope not in principal.scopes]
        if missing and config.auth != "none":
            raise PageError(
                403, f"The endpoint of the view {view} needs the scope {' '.join(missing)}"
            )

    def _view(self, view: str | None) -> tuple[str, Catalog, dict[str, str]]:
        """Return the name of a view, the default endpoint's if it is `None`; its catalog; and the
        path of each view's endpoint.

        Raises:
            PageError: there is no such view.
        """
        config = self._console.config
        paths = {name: path for path, name in config.endpoints.items()}
        view = config.endpoints[config.http.path] if view is None else view
        if view not in paths:
            raise PageError(404, "There is no such view")
        return view, self._console.core.serving.catalog.of_view(view), paths

    async def list_page(
        self, request: Request, view: str | None = None, text: str = "", page: Page = 1
    ) -> HTMLResponse:
        """Return the page of a view's tools."""
        found = await self.list(view, text, page)
        return self._console.page(
            request,
            "tools.html",
            found=found,
            text=text,
            page=page,
            pages=ceil(found.total / PER_PAGE),
            query=urlencode({"view": found.view, "text": text[:MAX_TEXT]}),
        )

    async def tool_page(
        self, request: Request, name: str, view: str | None = None, as_json: bool = False
    ) -> HTMLResponse:
        """Return the page of a tool, with an empty form."""
        tool = await self.show(name, view)
        form = make_form(tool.definition["inputSchema"], _ARGUMENT)
        return self._filled_in(request, tool, form, "{}" if as_json else None)

    async def call_page(self, request: Request, name: str, view: str | None = None) -> HTMLResponse:
        """Call a tool with the arguments or answers of a form, and return the page of the outcome."""
        tool, posted = await self.show(name, view), form_of(request)
        if "request_state" in posted:
            return await self._answer(request, tool, posted)
        schema, text = tool.definition["inputSchema"], posted.get("json", [None])[0]
        if text is None:
            read = read_form(schema, posted, _ARGUMENT)
            arguments, problem = read.value, "Some values are not valid." if read.problems else ""
            form = make_form(schema, _ARGUMENT, posted, read.problems)
        else:
            form, arguments, problem = make_form(schema, _ARGUMENT), {}, ""
            try:
                arguments = read_json(text)
            except ValueError as error:
                problem = str(error)
        if problem:
            return self._filled_in(request, tool, form, text, problem)
        outcome = await self.call(name, ToolCall(arguments=arguments), request, tool.view)
        return self._outcome_page(request, tool, arguments, outcome)

    async def _answer(
        self, request: Request, tool: ToolDetails, posted: Mapping[str, Sequence[str]]
    ) -> HTMLResponse:
        """Send the answers of a round, and return the page of the next one."""
        try:
            arguments, requests = (read_json(posted[name][0]) for name in ("arguments", "requests"))
            answers = read_answers(questions_of(requests), posted)
        except (KeyError, ValueError, BadAnswer) as error:
            raise PageError(400, "The form is not one of this console") from error
        state = posted["request_state"][0] or None
        if answers.problems:
            result = {"inputRequests": requests, "requestState": state}
            outcome = CallOutcome(kind="input_required", result=result)
            return self._outcome_page(request, tool, arguments, outcome, posted, answers.problems)
        next_round = ToolCall(
            arguments=arguments, input_responses=answers.value, request_state=state
        )
        outcome = await self.call(tool.name, next_round, request, tool.view)
        return self._outcome_page(request, tool, arguments, outcome)

    def _filled_in(
        self,
        request: Request,
        tool: ToolDetails,
        form: PageForm,
        text: str | None,
        problem: str = "",
    ) -> HTMLResponse:
        """Return the page of a tool, with a form or with a text for all arguments."""
        return self._console.page(
            request,
            "tool.html",
            tool=tool,
            form=form,
            text=text if form.is_whole or text is not None else "{}",
            problem=problem,
        )

    def _outcome_page(
        self,
        request: Request,
        tool: ToolDetails,
        arguments: dict[str, Any],
        outcome: CallOutcome,
        posted: Mapping[str, Sequence[str]] | None = None,
        problems: Mapping[str, str] | None = None,
    ) -> HTMLResponse:
        """Return the page of a result, or of a round's questions with a form for their answers."""
        result = outcome.result or {}
        requests = result.get("inputRequests") or {}
        try:
            questions = questions_of(requests)
        except BadAnswer as error:
            raise PageError(502, str(error)) from None
        return self._console.page(
            request,
            "outcome.html",
            tool=tool,
            arguments=json.encode(arguments).decode(),
            requests=json.encode(requests).decode(),
            state=result.get("requestState") or "",
            outcome=outcome,
            result=result,
            failed=result.get("isError") is True,
            asked=asked(questions, posted, problems),
        )


def _entry(served: ServedTool, catalog: Catalog) -> ToolEntry:
    tool, definition = served.tool, served.tool.definition
    annotations = definition.get("annotations") or {}
    return ToolEntry(
        name=served.name,
        title=definition.get("title"),
        description=definition.get("description"),
        backend=served.backend,
        is_listed=any(name == served.name for name, _ in catalog.tool_pages.items)
        if catalog.call_tool is not None
        else True,
        asks_first=tool.asks_first,
        once=tool.once,
        task=tool.task,
        scopes=sorted(tool.scopes),
        hints={
            hint: bool(annotations.get(wire, default)) for hint, (wire, default) in HINTS.items()
        },
    )


def _matches(entry: ToolEntry, words: list[str]) -> bool:
    text = f"{entry.name} {entry.title or ''} {entry.description or ''} {entry.backend}".lower()
    return all(word in text for word in words)


PAGE: Final = ConsolePage("/tools", "Tools", make_router, 3)
