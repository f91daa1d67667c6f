"""Signing in and out, and the files that pages load.

With `auth`, the form takes a token with `auth.operator_scope` once. Without `auth`, on this machine
alone, the log has a link; its token starts one session and is then void for every replica.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from roundgate.auth import LOCAL, Principal
from roundgate.console.access import Authenticate, tell_refusal
from roundgate.console.frame import STATIC, Console, form_of, operator_of
from roundgate.console.sessions import COOKIE, MAX_COOKIE_CHARS
from roundgate.errors import AuthError, Unavailable
from roundgate.storage.once import CLOCKS_AHEAD_MS

LINK_EVERY_MS: Final = 10_000
"""The shortest time between two links that the sign-in page writes to the log, in milliseconds."""
log = logging.getLogger("roundgate.console")


def make_router(console: Console, authenticate: Authenticate | None) -> APIRouter:
    """Return the routes of sign-in, links, sign-out and static files. `authenticate` is `None` without `auth`."""
    router = console.router()
    linked_ms = -float(LINK_EVERY_MS)

    def form(request: Request, status: int = 200, message: str = "") -> HTMLResponse:
        return console.page(
            request,
            "sign_in.html",
            status=status,
            message=message,
            takes_token=authenticate is not None,
            next=request.query_params.get("next", ""),
        )

    def admit(request: Request, principal: Principal, path: str) -> Response:
        cookie, life_s = console.sessions.seal(principal)
        if len(cookie) > MAX_COOKIE_CHARS and console.config().policy is None:
            # browsers drop long cookies, and some issuers grant hundreds of scopes
            scopes = principal.scopes & console.known_scopes()
            part = replace(principal, scopes=scopes, claims={})
            cookie, life_s = console.sessions.seal(part, is_whole=False)
        if len(cookie) > MAX_COOKIE_CHARS:
            return form(request, 400, "The token has too many scopes or claims for a session.")
        # a path of the console; anything else would let a link lead to another site
        path = path if path.startswith("/") and not path.startswith("//") else ""
        response = RedirectResponse(console.url(request.scope, path), 303)
        response.set_cookie(
            COOKIE,
            cookie,
            max_age=life_s,
            path=console.url(request.scope),
            httponly=True,
            samesite="strict",
            secure=(console.using.public_url or "").startswith("https:"),
        )
        log.info("an operator signed in", extra={"fields": principal.names})
        return response

    @router.get("/sign-in")
    async def sign_in_page(request: Request) -> Response:
        return form(request)

    @router.post("/sign-in")
    async def sign_in(request: Request) -> Response:
        nonlocal linked_ms
        fields = {name: values[0] for name, values in form_of(request).items()}
        if authenticate is None:
            now_ms = console.clock.monotonic_ms()
            if now_ms - linked_ms >= LINK_EVERY_MS:
                linked_ms = now_ms
                tell_link(console, f"{request.url.scheme}://{request.headers.get('host', '')}")
            return form(request, message="A new link is in the gateway's log.")
        token = fields.get("token", "").strip().encode("utf-8", "replace")
        try:
            principal = await authenticate(b"Bearer " + token)
        except (AuthError, Unavailable) as error:
            tell_refusal(request, error)
            status = error.status if isinstance(error, AuthError) else 503
            return form(request, status, str(error))
        return admit(request, principal, fields.get("next", ""))

    @router.get("/enter")
    async def enter(request: Request, token: str = "") -> Response:
        link = console.sessions.open_link(token) if authenticate is None else None
        if link is not None:
            forget_ms = link.expires_ms + CLOCKS_AHEAD_MS
            claimed = await console.core.stores.once.claim(link.id, "", link.expires_ms, forget_ms)
            if claimed is None:
                return admit(request, LOCAL, "")
        return form(request, 403, "The link was used, or is too old.")

    @router.post("/sign-out")
    async def sign_out(request: Request) -> Response:
        log.info("an operator signed out", extra={"fields": operator_of(request).principal.names})
        response = RedirectResponse(console.url(request.scope, "/sign-in"), 303)
        response.delete_cookie(COOKIE, path=console.url(request.scope))
        return response

    @router.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in STATIC:
            return PlainTextResponse("There is no such file", 404)
        headers = {"cache-control": "max-age=86400", "content-type": STATIC[name]}
        return Response(console.static[name], headers=headers)

    return router


def tell_link(console: Console, origin: str) -> None:
    """Write a link that starts one session to the log. `origin` is the gateway's, for a browser on
    this machine."""
    url = f"{origin}{console.settings.path}/enter?token={console.sessions.seal_link()}"
    log.warning("open the console once with this link: %s", url)
