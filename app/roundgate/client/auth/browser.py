"""A login in the browser: the authorization code grant with PKCE, and a callback
on this machine (RFC 8252).

    browser ──▶ authorization server: who are you, may this client …? ──▶ http://127.0.0.1:port/callback?code=…
    client ──▶ token endpoint: the code, with the verifier that only this client knows

Which client this is: a metadata document (`client_metadata_url`), credentials that were
registered beforehand, or a registration made on the spot, in this order of what the
authorization server takes.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from os import urandom
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from roundgate.client.auth.machine import pinned
from roundgate.client.auth.metadata import Fetcher, Server, text_member
from roundgate.client.auth.oauth import Kept, OAuth, secret_authentication
from roundgate.client.types import Json
from roundgate.errors import AuthorizationFailed, ClientError, OAuthRefused, Remedy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_PATH: Final = "/callback"
_MAX_HEAD: Final = 16 * 1024
_READ_HEAD_S: Final = 10
_DONE: Final = b"<!doctype html><title>Roundgate</title><p>You can close this window and go back."


class BrowserLogin(OAuth):
    """A user who logs in. `open_url` opens a URL in the user's browser; `login_s` is how
    long a login may take."""

    _wants_refresh = True

    def __init__(
        self,
        *,
        client_id: str | None = None,
        client_secret: str | None = None,
        client_metadata_url: str | None = None,
        issuer: str | None = None,
        client_name: str = "Roundgate",
        open_url: Callable[[str], Any] | None = None,
        port: int = 0,
        login_s: float = 300.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._client_id = client_id
        self._secret = client_secret
        self._metadata_url = client_metadata_url
        self._issuer = self._only_issuer = issuer
        self._client_name = client_name
        self._open_url = open_url or _open_browser
        self._port = port
        self._login_s = login_s

    async def _grant(self, fetch: Fetcher, server: Server, kept: Kept) -> Json:
        pinned(self._only_issuer, server)
        if not server.supports("code_challenge_methods_supported", "S256"):
            raise AuthorizationFailed(
                401, "The authorization server does not support PKCE (S256), so no login is begun"
            )
        endpoint = server.endpoint("authorization_endpoint")
        if endpoint is None:
            raise AuthorizationFailed(401, "The authorization server has no authorization endpoint")
        async with _callback(self._port, kept.registration.get("port")) as (port, arrived):
            redirect = f"http://127.0.0.1:{port}{_PATH}"
            await self._identify(fetch, server, kept, redirect, port)
            verifier, state = _random(), _random()
            challenge = (
                urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
            )
            query = {
                "response_type": "code",
                "client_id": kept.registration["client_id"],
                "redirect_uri": redirect,
                "state": state,
                "code_challenge": challenge,
                "code_challenge_method": "S256",
                "resource": server.resource,
            }
            if kept.scopes:
                query["scope"] = " ".join(kept.scopes)
            mark = "&" if "?" in endpoint.target else "?"
            code = await self._log_in(f"{endpoint}{mark}{urlencode(query)}", arrived, server, state)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "code_verifier": verifier,
        }
        return await self._token(fetch, server, kept, form)

    async def _log_in(
        self, url: str, arrived: asyncio.Queue[dict[str, str]], server: Server, state: str
    ) -> str:
        opened = self._open_url(url)
        if isawaitable(opened):
            await opened
        try:
            async with asyncio.timeout(self._login_s):
                while True:
                    answer = await arrived.get()
                    # Anybody on this machine can call the callback: what has another state is not
                    # ours.
                    if hmac.compare_digest(answer.get("state", "").encode(), state.encode()):
                        return _code(answer, server)
        except TimeoutError:
            raise AuthorizationFailed(
                401, f"Nobody logged in within {self._login_s:g} s (login_s)"
            ) from None

    async def _identify(
        self, fetch: Fetcher, server: Server, kept: Kept, redirect: str, port: int
    ) -> None:
        """Who this client is at the authorization server; a registration is kept with
        the port that it names."""
        if self._client_id is not None:
            self._issuer = pinned(self._issuer, server)
            kept.registration = {"client_id": self._client_id, "client_secret": self._secret}
        elif (
            self._metadata_url
            and server.document.get("client_id_metadata_document_supported") is True
        ):
            kept.registration = {"client_id": self._metadata_url}
        elif kept.registration.get("port") != port:
            kept.registration = {**await self._register(fetch, server, redirect), "port": port}

    async def _register(self, fetch: Fetcher, server: Server, redirect: str) -> Json:
        endpoint = server.endpoint("registration_endpoint")
        if endpoint is None:
            raise AuthorizationFailed(
                401,
                "The authorization server registers no clients",
                Remedy.REGISTERED_CLIENT,
            )
        methods = server.document.get("token_endpoint_auth_methods_supported")
        method = (
            "none"
            if not isinstance(methods, list) or "none" in methods or not methods
            else str(methods[0])
        )
        metadata = {
            "client_name": self._client_name,
            "redirect_uris": [redirect],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
            "application_type": "native",
        }
        try:
            answer = await fetch.post_json(endpoint, json.dumps(metadata).encode())
        except OAuthRefused as error:
            said = f"{error.error} {error.description}".strip() or f"HTTP status {error.status}"
            raise AuthorizationFailed(
                401, f"The authorization server does not register this client: {said}"
            ) from None
        registered: Json = {"client_id": text_member(answer, "client_id", "a registration")}
        for name in ("client_secret", "token_endpoint_auth_method"):
            if isinstance(answer.get(name), str):
                registered[name] = answer[name]
        return registered

    def _client_authentication(
        self, server: Server, kept: Kept
    ) -> tuple[dict[str, str], list[tuple[str, str]]]:
        registration = kept.registration
        return secret_authentication(
            server,
            str(registration.get("client_id", "")),
            registration.get("client_secret"),
            registration.get("token_endpoint_auth_method"),
        )


def _code(answer: dict[str, str], server: Server) -> str:
    """The code of an authorization response, once it is known whose it is
    (RFC 9207 section 2.4)."""
    issuer = answer.get("iss")
    if (
        issuer is None
        and server.document.get("authorization_response_iss_parameter_supported") is True
    ):
        raise AuthorizationFailed(
            401, "The login's answer does not say its issuer, although the server promises to"
        )
    if issuer is not None and issuer != server.issuer:
        raise AuthorizationFailed(
            401, "The login's answer comes from another authorization server; it is not used"
        )
    if "error" in answer:
        said = f"{answer['error'][:100]} {answer.get('error_description', '')[:300]}".strip()
        raise AuthorizationFailed(401, f"The login was refused: {said}")
    if not answer.get("code"):
        raise AuthorizationFailed(401, "The login's answer has no code")
    return answer["code"]


def _random() -> str:
    return urlsafe_b64encode(urandom(32)).rstrip(b"=").decode()


async def _open_browser(url: str) -> None:
    import webbrowser

    # A browser on a terminal is waited for, while the callback has to answer it.
    if not await asyncio.to_thread(webbrowser.open, url):
        raise ClientError("There is no browser here", Remedy.BROWSER)


@asynccontextmanager
async def _callback(
    port: int, last_port: Any
) -> AsyncGenerator[tuple[int, asyncio.Queue[dict[str, str]]], None]:
    """A server on this machine, and the queries with which its callback is called."""
    arrived: asyncio.Queue[dict[str, str]] = asyncio.Queue(16)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target, *_ = head.split(b"\r\n")[0].decode("latin-1").split(" ")
            url = urlsplit(target)
            is_ours = method == "GET" and url.path == _PATH and not arrived.full()
            if is_ours:
                arrived.put_nowait(
                    {name: values[0] for name, values in parse_qs(url.query).items()}
                )
            status, body = (b"200 OK", _DONE) if is_ours else (b"404 Not Found", b"")
            writer.write(
                b"HTTP/1.1 %b\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n"
                b"Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: "
                b"close\r\n\r\n%b" % (status, len(body), body)
            )
            await writer.drain()
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError, TimeoutError):
            pass  # whoever called was no browser
        finally:
            writer.close()

    # With the last port the last registration can be used again.
    ports = dict.fromkeys([port or (last_port if isinstance(last_port, int) else 0), port])
    server = None
    for one in ports:
        try:
            server = await asyncio.start_server(serve, "127.0.0.1", one, limit=_MAX_HEAD)
            break
        except OSError:
            continue
    if server is None:
        raise ClientError(f"The callback of the login cannot listen on port {port}")
    async with server:
        yield server.sockets[0].getsockname()[1], arrived
