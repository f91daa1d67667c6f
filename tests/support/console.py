"""A browser for the console's tests: an httpx client that keeps cookies and sends the headers of a
browser, and readers of pages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any

import httpx
from fastapi import FastAPI

from roundgate.settings.process import Settings
from tests.support.asgi import STATE_KEY, built, config_file
from tests.support.issuer import PUBLIC_URL, guarded, jwks, token
from tests.support.services import answer, service

OPERATOR = "gateway:operate"
COOKIES = ("roundgate_console_80", "__Host-roundgate_console_490f20c4")
"""The cookies of a gateway at `ORIGIN`, and at `PUBLIC_URL`."""
ORIGIN = "http://127.0.0.1"


class Reader(HTMLParser):
    """Collects the elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return the elements of a page, each with its attributes."""
    reader = Reader()
    reader.feed(page)
    return reader.elements


def csrf_of(page: str) -> str:
    """Return the CSRF token in a page."""
    token = next(each["value"] for tag, each in elements(page) if each.get("name") == "csrf_token")
    assert token
    return token


class Browser:
    """A signed-in or anonymous browser."""

    def __init__(self, http: httpx.AsyncClient, origin: str) -> None:
        self.http = http
        self.same_origin = {"origin": origin, "sec-fetch-site": "same-origin"}

    async def get(self, path: str = "", **headers: str) -> httpx.Response:
        return await self.http.get(f"/console{path}", headers=headers)

    async def page(self, path: str = "") -> str:
        response = await self.get(path)
        assert response.status_code == 200, response.text
        return response.text

    async def post(self, path: str, fields: dict[str, Any], **headers: str) -> httpx.Response:
        return await self.http.post(
            f"/console{path}", data=fields, headers={**self.same_origin, **headers}
        )

    async def submit(self, path: str, fields: dict[str, Any]) -> httpx.Response:
        """Post a form with the CSRF token of the session."""
        token = csrf_of(await self.page())
        return await self.post(path, {"csrf_token": token, **fields})

    @property
    def session(self) -> str:
        """The cookie of the session."""
        (value,) = (each.value for each in self.http.cookies.jar if each.name in COOKIES)
        assert value
        return value

    @session.setter
    def session(self, value: str) -> None:
        self.http.cookies.clear()
        for name in COOKIES:
            self.http.cookies.set(name, value)

    async def sign_in(self, **claims: Any) -> httpx.Response:
        text = token(**{"scope": OPERATOR, **claims})
        return await self.post("/sign-in", {"token": text, "next": ""})


@asynccontextmanager
async def browser_of(
    app: FastAPI, origin: str = ORIGIN, root_path: str = ""
) -> AsyncIterator[Browser]:
    """A browser of an app in this process."""
    transport = httpx.ASGITransport(app, root_path=root_path)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=origin) as http,
    ):
        yield Browser(http, origin)


@asynccontextmanager
async def with_auth(
    *functions: Callable[..., Any], console: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[Browser]:
    """A browser of a gateway with auth, not signed in."""
    async with service(answer(jwks("ec"))) as keys:
        auth = {"operator_scope": OPERATOR, **sections.pop("auth", {})}
        file = guarded(f"{keys.url}/jwks", *functions, auth=auth, console=console or {}, **sections)
        using = Settings(public_url=PUBLIC_URL, state_keys=STATE_KEY)
        async with browser_of(built(file, using), PUBLIC_URL) as browser:
            yield browser


LINK = re.compile(r"http://127\.0\.0\.1(/console/enter\?token=\S+)")


@asynccontextmanager
async def local(
    *functions: Callable[..., Any], console: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[Browser]:
    """A signed-in browser of a gateway without auth."""
    app = built(config_file(*functions, console=console or {}, **sections))
    async with browser_of(app) as browser:
        path = f"/enter?token={app.state.console.sessions.seal_link()}"
        assert (await browser.get(path)).status_code == 303
        yield browser
