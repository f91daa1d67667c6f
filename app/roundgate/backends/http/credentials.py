"""How the gateway authenticates itself to a service: a flow for each model of `credential:`.

A flow is `httpx.Auth`: it is given each request, also that of a redirect, and may send requests of its own before it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from urllib.parse import urlencode

import httpx

from roundgate.backends.http.config import (
    BasicCredential,
    BearerCredential,
    CookieCredential,
    Credential,
    HeaderCredential,
    QueryCredential,
)


def flow_of(credential: Credential) -> httpx.Auth:
    """What adds a credential to requests."""
    match credential:
        case BearerCredential(bearer=token):
            return HeaderAuth("authorization", f"Bearer {token.get_secret_value()}")
        case BasicCredential(basic=pair):
            user, _, password = pair.get_secret_value().partition(":")
            return httpx.BasicAuth(user, password)
        case HeaderCredential(header=name, value=key):
            return HeaderAuth(name, key.get_secret_value())
        case QueryCredential(query=name, value=key):
            return QueryAuth(name, key.get_secret_value())
        case CookieCredential(cookie=name, value=key):
            return CookieAuth(name, key.get_secret_value())


class AllOf(httpx.Auth):
    """Several credentials on each request, none of which has requests of its own."""

    def __init__(self, flows: Sequence[httpx.Auth]) -> None:
        self._flows = flows

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Once for each request."""
        for flow in self._flows:
            next(flow.auth_flow(request))
        yield request


class HeaderAuth(httpx.Auth):
    """A fixed value in a header."""

    def __init__(self, name: str, value: str) -> None:
        self._name = name
        self._value = value

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Once for each request."""
        request.headers[self._name] = self._value
        yield request


class QueryAuth(httpx.Auth):
    """A fixed value in the query; where a service redirects to a URL that has it already, it is not added again."""

    def __init__(self, name: str, value: str) -> None:
        self._name = name
        self._pair = urlencode({name: value}).encode()

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Once for each request."""
        if self._name not in request.url.params:
            query = request.url.query
            request.url = request.url.copy_with(query=b"%b&%b" % (query, self._pair) if query else self._pair)
        yield request


class CookieAuth(httpx.Auth):
    """A fixed cookie, beside those that the request has."""

    def __init__(self, name: str, value: str) -> None:
        self._pair = f"{name}={value}"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Once for each request."""
        others = [one for one in request.headers.get("cookie", "").split("; ") if one and one != self._pair]
        request.headers["cookie"] = "; ".join([*others, self._pair])
        yield request
