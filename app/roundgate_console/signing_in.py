"""Signing in and out, the operator's session, and the files that pages load.

With `auth`, the form takes a token with `auth.operator_scope` once. Without `auth`, on this machine
alone, the log has a link; its token starts one session and is then void for every replica. The audit
log has each sign-in and sign-out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Annotated, Final

from fastapi import APIRouter, Body, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from roundgate.audit.trail import who
from roundgate.auth import LOCAL, Principal
from roundgate.auth.principal import is_name
from roundgate.clock import Clock
from roundgate.errors import AuthError, Unavailable
from roundgate.http.exchange import exchange_of
from roundgate.operators import recorded
from roundgate.storage.ports import CLOCKS_AHEAD_MS
from roundgate_console.access import tell_refusal
from roundgate_console.frame import STATIC, Console, PageError, form_of, operator_of
from roundgate_console.sessions import MAX_COOKIE_CHARS, cookie_name

LINK_EVERY_MS: Final = 10_000
"""The shortest time between two links that the sign-in page writes to the log, in milliseconds."""
REFUSAL_EVERY_MS: Final = 1_000
"""The shortest time between two refused sign-ins in the audit log, in milliseconds: everyone who
reaches the gateway can be refused. The log has all of them."""
log = logging.getLogger("roundgate.console")


def make_router(console: Console) -> APIRouter:
    """Return the routes of sign-in, links, sessions and static files."""
    pages = _Pages(console)
    router = console.page_router(
        {
            "GET /sign-in": pages.form,
            "POST /sign-in": pages.sign_in,
            "GET /enter": pages.enter,
            "GET /session": pages.session,
            "POST /session/end": pages.end_page,
            "POST /sign-out": pages.sign_out,
            "GET /static/{name}": pages.static,
        }
    )
    router.post("/api/sessions/end", summary="End the sessions of an operator")(pages.end)
    return router


class _Pages:
    """The pages of one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._links = Seldom(LINK_EVERY_MS, console.clock)
        self._refusals = Seldom(REFUSAL_EVERY_MS, console.clock)

    @property
    def _takes_tokens(self) -> bool:
        """Return whether a token starts a session; otherwise only a link does."""
        return self._console.config.auth != "none"

    # signing in

    async def form(self, request: Request) -> Response:
        """Return the sign-in page."""
        return self._form(request)

    def _form(self, request: Request, status: int = 200, message: str = "") -> HTMLResponse:
        return self._console.page(
            request,
            "sign_in.html",
            status=status,
            message=message,
            takes_token=self._takes_tokens,
            next=request.query_params.get("next", ""),
        )

    async def sign_in(self, request: Request) -> Response:
        """Start a session with a token, or write a link to the log."""
        console, principal = self._console, None
        if not self._takes_tokens:
            if self._links.take():
                console.tell_link(_own_origin(request))
            return self._form(request, message="A new link is in the gateway's log.")
        fields = {name: values[0] for name, values in form_of(request).items()}
        token = fields.get("token", "").strip().encode("utf-8", "replace")
        try:
            principal = await console.verifier.principal(b"Bearer " + token)
            console.check_operator(principal)
        except (AuthError, Unavailable) as error:
            text = tell_refusal(request, error)
            self._record_refusal(request, type(error).__name__, principal)
            status = error.status if isinstance(error, AuthError) else 503
            return self._form(request, status, text)
        return await self._admit(request, principal, fields.get("next", ""))

    async def enter(self, request: Request, token: str = "") -> Response:
        """Start a session with a link."""
        sessions, once = self._console.sessions, self._console.core.stores.once
        link = None if self._takes_tokens else sessions.open_link(token)
        if link is not None:
            link_id, expires_ms = link
            if await once.claim(link_id, "", expires_ms, expires_ms + CLOCKS_AHEAD_MS) is None:
                return await self._admit(request, LOCAL, "")
        self._record_refusal(request, "link")
        return self._form(request, 403, "The link was used, or is too old.")

    async def _admit(self, request: Request, principal: Principal, path: str) -> Response:
        """Start a session, and lead to a page."""
        cookie, life_s = await self._seal(principal)
        if len(cookie) > MAX_COOKIE_CHARS:
            return self._form(
                request, 400, "The token has too many scopes or claims for a session."
            )
        self._record("sign_in", principal, address=exchange_of(request.scope).address)
        # a path of the console; anything else would let a link lead to another site
        path = path if path.startswith("/") and not path.startswith("//") else ""
        log.info("an operator signed in", extra={"fields": principal.names})
        return self._redirect(request, path, cookie, life_s)

    async def _seal(self, principal: Principal) -> tuple[str, int]:
        """Return the cookie of a new session, and its life in seconds."""
        console = self._console
        revocation = await console.sessions.last_revocation(principal.issuer, principal.subject)
        cookie, life_s = console.sessions.seal(principal, revocation)
        if len(cookie) <= MAX_COOKIE_CHARS or console.config.policy is not None:
            return cookie, life_s
        # browsers drop long cookies, and some issuers grant hundreds of scopes
        scopes = principal.scopes & console.known_scopes()
        part = replace(principal, scopes=scopes, claims={})
        return console.sessions.seal(part, revocation, is_whole=False)

    def _redirect(self, request: Request, path: str, cookie: str, life_s: int) -> Response:
        """Return a redirection to a page that sets the cookie of the session."""
        console = self._console
        name = cookie_name(console.using.public_url, request)
        is_secure = name.startswith("__Host-")
        response = RedirectResponse(console.url(request.scope, path), 303)
        response.set_cookie(
            *(name, cookie, life_s),
            path="/" if is_secure else console.url(request.scope),
            secure=is_secure,
            httponly=True,
            samesite="strict",
        )
        return response

    # sessions

    async def session(self, request: Request) -> Response:
        """Return the page of the operator's session."""
        return self._session(request)

    def _session(self, request: Request, ended: str | None = None) -> HTMLResponse:
        return self._console.page(request, "session.html", ended=ended, others=self._takes_tokens)

    async def sign_out(self, request: Request) -> Response:
        """End this session, and with `everywhere` all sessions of the operator."""
        principal = operator_of(request).principal
        if "everywhere" in form_of(request):
            await self._end(principal, principal.subject)
        else:
            self._record("sign_out", principal)
        log.info("an operator signed out", extra={"fields": principal.names})
        return self._redirect(request, "/sign-in", "", 0)

    async def end(
        self, subject: Annotated[str, Body(embed=True)], request: Request
    ) -> dict[str, str]:
        """End all sessions of an operator at every replica. Its tokens stay valid."""
        if not (subject and is_name(subject)):
            raise PageError(400, "The subject is not valid")
        await self._end(operator_of(request).principal, subject)
        return {"subject": subject}

    async def end_page(self, request: Request) -> Response:
        """End all sessions of another operator."""
        subject = form_of(request).get("subject", [""])[0].strip()
        await self.end(subject, request)
        return self._session(request, subject)

    async def _end(self, principal: Principal, subject: str) -> None:
        sessions, tasks = self._console.sessions, self._console.core.stores.tasks

        async def revoke() -> str:
            await sessions.revoke(principal.issuer, subject)
            return "done"

        await recorded(tasks, "end_sessions", None, revoke, principal, subject=subject)

    # records

    def _record(self, action: str, principal: Principal, **facts: str) -> None:
        trail = self._console.core.trail
        if trail is not None:
            trail.operator(action, principal, **facts)

    def _record_refusal(
        self, request: Request, error: str, principal: Principal | None = None
    ) -> None:
        """Record a refused sign-in. The caller is known if its token is valid."""
        trail, count = self._console.core.trail, self._refusals.take()
        if trail is not None and count:
            caller = {} if principal is None else {"who": who(principal)}
            address = exchange_of(request.scope).address
            facts = {"error": error, "address": address, "count": count, **caller}
            trail.record("operator", {"action": "sign_in_refused", **facts})

    async def static(self, name: str) -> Response:
        """Return a file that pages load."""
        if name not in STATIC:
            return PlainTextResponse("There is no such file", 404)
        headers = {"cache-control": "max-age=86400", "content-type": STATIC[name]}
        return Response(self._console.static[name], headers=headers)


@dataclass(slots=True)
class Seldom:
    """Lets an event through once in a period, and counts the others."""

    period_ms: int
    clock: Clock
    count: int = 0
    last_ms: float | None = None

    def take(self) -> int:
        """Return the number of events since the last one that was let through, with this one; 0 if
        this one is not let through."""
        now_ms = self.clock.monotonic_ms()
        self.count += 1
        if self.last_ms is not None and now_ms - self.last_ms < self.period_ms:
            return 0
        count, self.count, self.last_ms = self.count, 0, now_ms
        return count


def _own_origin(request: Request) -> str:
    """Return the origin of the address at which the request was accepted; empty for a Unix socket.
    The Host header is the client's."""
    host, port = request.scope.get("server") or ("", None)
    shown = f"[{host}]" if ":" in host else host
    return "" if port is None else f"{request.scope['scheme']}://{shown}:{port}"
