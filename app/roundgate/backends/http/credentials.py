"""How the gateway authenticates itself to a service: a flow for each model of `credential:`.

A flow is `httpx.Auth`: it is given each request, also that of a redirect, and may send requests of its own before it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from urllib.parse import urlencode

import httpx

from roundgate.backends.http.config import (
    BasicCredential,
    BearerCredential,
    ClientCredentials,
    CookieCredential,
    Credential,
    HeaderCredential,
    QueryCredential,
)
from roundgate.backends.http.oauth import TokenSource


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
        case ClientCredentials():
            raise TypeError("tokens come from a TokenSource, which services share")
        case CookieCredential(cookie=name, value=key):
            return CookieAuth(name, key.get_secret_value())


class AllOf(httpx.Auth):
    """Several credentials on each request; of those that have requests of their own, one at most."""

    def __init__(self, credentials: Sequence[Credential], tokens: TokenSource | None) -> None:
        self._fixed = [
            flow_of(one) for one in credentials if not isinstance(one, ClientCredentials)
        ]
        self._tokens = tokens

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Once for each request; a second time, with a new token, where the service does not take the one it has.

        Raises:
            BackendError: there is no token to be had.
        """
        for flow in self._fixed:
            next(flow.auth_flow(request))
        if self._tokens is None:
            yield request
            return
        token = await self._tokens.token()
        request.headers["authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401:  # it did nothing, so it can be asked again
            request.headers["authorization"] = (
                f"Bearer {await self._tokens.token(instead_of=token)}"
            )
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
            request.url = request.url.copy_with(
                query=b"%b&%b" % (query, self._pair) if query else self._pair
            )
        yield request


class CookieAuth(httpx.Auth):
    """A fixed cookie, beside those that the request has."""

    def __init__(self, name: str, value: str) -> None:
        self._pair = f"{name}={value}"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Once for each request."""
        others = [
            one
            for one in request.headers.get("cookie", "").split("; ")
            if one and one != self._pair
        ]
        request.headers["cookie"] = "; ".join([*others, self._pair])
        yield request
