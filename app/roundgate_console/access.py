"""The layer in front of the console's routes: only operators pass, and only from the console's own
pages.

    Authorization: Bearer …    a token with `auth.operator_scope`, for programs
    Cookie: roundgate_console… a session, for browsers; each POST repeats the session's CSRF token
    no credentials             the sign-in page, links, style sheet and script

A POST must come from the console's own origin, as `Sec-Fetch-Site` or `Origin` tells. The layer adds
the content security policy to every response, so that no page can forget it.
"""

from __future__ import annotations

import asyncio
import hmac
from functools import partial
from typing import Final
from urllib.parse import parse_qs, quote

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roundgate.auth import LOCAL
from roundgate.auth.verifier import MAX_TOKEN_BYTES
from roundgate.errors import AuthError, Draining, Unavailable
from roundgate.http.bodies import read_body
from roundgate.http.exchange import State, exchange_of
from roundgate.http.request import public_origins
from roundgate_console.frame import FORM, OPERATOR, Console, is_api
from roundgate_console.sessions import Operator, cookie_name

CSRF_FIELD: Final = "csrf_token"
CSRF_HEADER: Final = "x-csrf-token"
MAX_SIGN_IN_BYTES: Final = MAX_TOKEN_BYTES + 4_096
MAX_SIGN_IN_FIELDS: Final = 8
"""The limits on the form of a request without a session."""
MAX_FIELDS: Final = 10_000
"""The limit on the fields of an operator's form."""
_BODY: Final = "roundgate.console.body"
_OPEN: Final = ("/sign-in", "/enter", "/static/")
"""The paths below the console's own that need no session."""
_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # with `no-referrer`, browsers would send `Origin: null` with forms
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class ConsoleAccess:
    """ASGI middleware in front of the console's routes; it passes all other requests on.

    Args:
        app: the layers inside.
        console: the console.
    """

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app = app
        self._console = console
        self._limits = console.config.http.max_body_bytes, MAX_FIELDS
        self._origins = frozenset(
            origin.lower() for origin in public_origins(console.using.public_url)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = None if scope["type"] != "http" else self._path(exchange_of(scope).path)
        if path is None:
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        request = Request(scope, receive)
        try:
            await self._serve(request, path, send_guarded)
        except asyncio.CancelledError:
            is_begun = exchange_of(scope).responder.state is not State.NOTHING_SENT
            if is_begun or not self._console.replica.readiness.is_draining:
                raise
            # the server cancels requests that outlast the grace; it would answer with a bare 500
            await self._failure(request, Draining())(scope, receive, send_guarded)

    async def _serve(self, request: Request, path: str, send: Send) -> None:
        scope, receive = request.scope, request.receive
        try:
            answer = await self._refusal(request, path)
        except (AuthError, Unavailable) as error:
            answer = self._failure(request, error)
        body = scope.pop(_BODY, None)
        inner = receive if body is None else replay(body, receive)
        await (self._app if answer is None else answer)(scope, inner, send)

    def _path(self, path: str) -> str | None:
        """Return a path below the console's own, or `None` for a path elsewhere."""
        prefix = self._console.settings.path
        is_below = path == prefix or path.startswith(prefix + "/")
        return path[len(prefix) :] if is_below else None

    async def _refusal(self, request: Request, path: str) -> Response | None:
        """Return the response to a request that may not pass, or `None`.

        Raises:
            AuthError: the bearer token is invalid or lacks the scope of operators.
            Unavailable: the keys that verify it, or the store, cannot be read.
        """
        is_open, fail = path.startswith(_OPEN), partial(self._console.failure, request)
        operator = None if is_open else await self._operator(request)
        if operator is None and not is_open:
            return self._sign_in(request, path)
        if operator is not None:
            request.scope[OPERATOR] = operator
            exchange_of(request.scope).principal = operator.principal
        if request.method in ("GET", "HEAD"):
            return None
        if request.method != "POST":
            return fail(405, "The console accepts GET and POST")
        is_token = operator is not None and not operator.csrf
        if not is_token and not _is_same_origin(request, self._origins):
            return fail(403, "The form was not sent by a page of the console")
        size, count = (MAX_SIGN_IN_BYTES, MAX_SIGN_IN_FIELDS) if is_open else self._limits
        body = await read_body(request.receive, size)
        if body is None:
            return fail(413, "The form is too large")
        fields = _parse(request, body, count)
        if fields is None:
            return fail(400, "The form is not valid UTF-8, or has too many fields")
        request.scope[_BODY], request.scope[FORM] = body, fields
        sent = request.headers.get(CSRF_HEADER) or (fields.get(CSRF_FIELD) or [""])[0]
        if operator is not None and not hmac.compare_digest(
            operator.csrf.encode(), sent.encode() if operator.csrf else b""
        ):
            return fail(403, "The page is from an earlier session: load it again and repeat")
        return None

    async def _operator(self, request: Request) -> Operator | None:
        """Return the operator who sends a request, or `None`."""
        console, authorization = self._console, request.headers.get("authorization", "")
        if authorization.lower().startswith("bearer ") and console.config.auth != "none":
            principal = await console.verifier.principal(authorization.encode("latin-1"))
            console.check_operator(principal)
            return Operator(principal)
        name = cookie_name(console.using.public_url, request)
        operator = console.sessions.open(_cookie(request, name))
        if operator is None or not self._may_operate(operator):
            return None
        return None if await console.sessions.is_revoked(operator) else operator

    def _may_operate(self, operator: Operator) -> bool:
        """Return whether a session is one of this configuration, which may be newer. The rules of a
        policy need all scopes and claims of a token."""
        principal, config = operator.principal, self._console.config
        auth = config.auth
        if config.policy is not None and not operator.is_whole:
            return False
        if auth == "none":
            return principal.identity == LOCAL.identity
        return principal.issuer == auth.issuer and auth.operator_scope in principal.scopes

    def _sign_in(self, request: Request, path: str) -> Response:
        """Return the response to a request without a session."""
        if is_api(path):
            challenge = {"www-authenticate": "Bearer"}
            return JSONResponse({"error": "Sign in, or send a bearer token"}, 401, challenge)
        target = self._console.url(request.scope, "/sign-in")
        if "hx-request" in request.headers:
            return Response(status_code=401, headers={"hx-redirect": target})
        if request.method == "GET" and path:
            target += f"?next={quote(path, safe='')}"
        return RedirectResponse(target, 303)

    def _failure(self, request: Request, error: AuthError | Unavailable) -> Response:
        text = tell_refusal(request, error)
        status = error.status if isinstance(error, AuthError) else 503
        response = self._console.failure(request, status, text)
        if status == 401:
            response.headers["www-authenticate"] = "Bearer"
        return response


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that receives a body that has been read, and then the end of the
    connection."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return parts.pop() if parts else await receive()

    return receive_again


def tell_refusal(request: Request, error: AuthError | Unavailable) -> str:
    """Let the log line of a request tell that its token was refused; return the text for the page."""
    exchange = exchange_of(request.scope)
    if isinstance(error, AuthError):
        return str(exchange.refused(error))
    exchange.label, exchange.error = error.outcome, str(error)
    return str(error)


def _is_same_origin(request: Request, public: frozenset[str]) -> bool:
    """Return whether a page of the same origin sent a request. Browsers tell it in Sec-Fetch-Site,
    older ones in Origin alone; a request with neither is refused. `public` has the origin of the
    public URL, because a proxy may send another Host."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    if origin is None:
        return site is not None
    host = request.headers.get("host", "").lower()
    return origin.lower() in {f"http://{host}", f"https://{host}", *public}


def _cookie(request: Request, name: str) -> str:
    """Return the value of a cookie, or an empty text. Starlette would unquote all cookies, which
    takes long for a hostile header."""
    sent = "; " + request.headers.get("cookie", "")
    return sent.partition(f"; {name}=")[2].partition(";")[0]


def _parse(request: Request, body: bytes, most: int) -> dict[str, list[str]] | None:
    """Return the fields of a form, at most `most`; empty for another media type, `None` if the form is invalid."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return {}
    try:
        text = body.decode()
        return parse_qs(text, keep_blank_values=True, max_num_fields=most, errors="strict")
    except ValueError:
        return None
