"""An MCP server that wants a token, and the authorization server that gives it, on one socket."""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx

from roundgate.client import Client
from tests.support.scripted import Asked, Scripted, http, modern, result, says, scripted, text


@dataclass
class Guarded:
    """An MCP server with a token in front, and its authorization server, on one socket."""

    scope: str = "read"
    document: dict[str, Any] = field(default_factory=dict)
    """Changes the metadata of the authorization server."""
    resource: str | None = None
    refuse: Callable[[dict[str, str]], bytes | None] = lambda form: None
    origin: str = ""
    issuer: str = ""
    """The authorization server, if it is not named after `origin`."""
    granted: dict[str, Any] = field(default_factory=dict)
    """Changes what the token endpoint answers."""
    registrations: list[dict[str, Any]] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)
    valid: set[str] = field(default_factory=set)
    scopes: dict[str, str] = field(default_factory=dict)
    challenges: dict[str, str] = field(default_factory=dict)

    def __call__(self, asked: Asked) -> Any:
        path = urlsplit(asked.target).path
        match path:
            case "/mcp":
                return self._mcp(asked)
            case "/.well-known/oauth-protected-resource/mcp":
                resource = self.resource or f"{self.origin}/mcp"
                issuers = [self.issuer or self.origin]
                return says({"resource": resource, "authorization_servers": issuers})
            case "/.well-known/oauth-authorization-server":
                return says(self.metadata())
            case "/authorize":
                return self._agree(parse_qs(urlsplit(asked.target).query))
            case "/register":
                self.registrations.append(json.loads(asked.body))
                return says({"client_id": f"client-{len(self.registrations)}"}, 201)
            case "/token":
                return self._token(
                    {name: one[0] for name, one in parse_qs(asked.body.decode()).items()}
                )
        return http(404)

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer or self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "code_challenge_methods_supported": ["S256"],
            **self.document,
        }

    def _mcp(self, asked: Asked) -> Any:
        token = asked.headers.get("authorization", "").partition(" ")[2]
        metadata = f"{self.origin}/.well-known/oauth-protected-resource/mcp"
        if token not in self.valid:
            challenge = f'Bearer scope="{self.scope}", resource_metadata="{metadata}"'
            return http(401, b"", WWW_Authenticate=challenge)
        if asked.rpc == "tools/call" and "write" not in self.scopes.get(token, ""):
            return http(
                403, b"", WWW_Authenticate='Bearer error="insufficient_scope", scope="write"'
            )
        return modern(lambda one: result(one, text("secret things")))(asked)

    def _agree(self, query: dict[str, list[str]]) -> bytes:
        """What a browser is answered whose user has agreed."""
        given = {name: one[0] for name, one in query.items()}
        self.challenges |= {"code": given["code_challenge"], "scope": given.get("scope", "")}
        back = urlencode({"code": "code", "state": given["state"]})
        return http(302, b"", Location=f"{given['redirect_uri']}?{back}")

    def _token(self, form: dict[str, str]) -> bytes:
        self.forms.append(form)
        if (refused := self.refuse(form)) is not None:
            return refused
        if form["grant_type"] == "authorization_code":
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            assert urlsafe_b64encode(digest).rstrip(b"=").decode() == self.challenges[form["code"]]
        token = f"token-{len(self.forms)}"
        self.valid.add(token)
        self.scopes[token] = form.get("scope") or self.challenges.get("scope", "")
        return says(
            {
                "access_token": token,
                "token_type": "Bearer",
                "expires_in": 3600,
                "refresh_token": "r",
                **self.granted,
            }
        )

    def browser(self, **changes: str | None) -> Callable[[str], Any]:
        """A user who agrees at once; `changes` are to what comes back."""

        async def visit(url: str) -> None:
            query = {name: one[0] for name, one in parse_qs(urlsplit(url).query).items()}
            self.challenges |= {"code": query["code_challenge"], "scope": query.get("scope", "")}
            self.asked_for = query
            back = {"code": "code", "state": query["state"], **changes}
            given = {name: value for name, value in back.items() if value is not None}
            async with httpx.AsyncClient(trust_env=False, timeout=60) as http_client:
                await http_client.get(f"{query['redirect_uri']}?{urlencode(given)}")

        return visit

    asked_for: dict[str, str] = field(default_factory=dict)


async def logged_in(guarded: Guarded, auth: Any) -> tuple[str, Scripted]:
    async with scripted(guarded) as server:
        guarded.origin = server.origin
        async with asyncio.timeout(60), Client(server.url, auth=auth) as client:
            return (await client.call("t")).text, server
