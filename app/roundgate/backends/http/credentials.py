"""How the gateway authenticates itself to a service: a flow for each model of `credential:`.

    request ─▶ each flow adds what it has ─▶ service ─▶ answer
                                               401 ─▶ a flow that has something else now ─▶ once more

A service that answers 401 has done nothing, so it can be asked again: with a new token, or with a
secret that has been rotated meanwhile.
"""

from __future__ import annotations

import base64
from asyncio import to_thread
from collections import deque
from typing import Protocol
from urllib.parse import quote_plus, unquote_plus

import httpx

from roundgate import aws
from roundgate.backends.http.access import Access
from roundgate.backends.http.credential_config import (
    AwsCredential,
    BasicCredential,
    BearerCredential,
    ClientCredentials,
    CookieCredential,
    Credential,
    HeaderCredential,
    QueryCredential,
)
from roundgate.backends.http.oauth import TokenSource
from roundgate.backends.secret_reading import Secrets
from roundgate.errors import BackendError, ConfigError
from roundgate.settings import Secret


class Flow(Protocol):
    """Adds one credential to requests."""

    async def add(self, request: httpx.Request) -> None:
        """Add it, or put it in the place of the one that is there.

        Raises:
            BackendError: there is none to be had.
        """

    async def has_another(self) -> bool:
        """Whether there is something else than what was added and not taken."""


async def authenticated(
    client: httpx.AsyncClient, request: httpx.Request, access: Access
) -> httpx.Response:
    """The answer to a request with all credentials and fixed headers of a service, of
    which nothing has been read.

    It is sent again where the service does not take what it was sent and there is another.
    `httpx.Auth` would read what came with the 401 to its end, and unpack it, however much it is.

    Args:
        client: sends it.
        request: without them; also that of a redirect.
        access: has them.

    Raises:
        BackendError: a credential is not to be had.
        httpx.HTTPError: there is no answer.
    """
    flows = _flows(access)
    for flow in flows:
        await flow.add(request)
    response = await client.send(request, stream=True)
    if response.status_code != 401:
        return response
    try:
        is_worth_it = await _have_replaced(flows, request)
    except BaseException:
        await response.aclose()
        raise
    if not is_worth_it:
        return response
    await response.aclose()
    return await client.send(request, stream=True)


async def _have_replaced(flows: list[Flow], request: httpx.Request) -> bool:
    """Whether the request has something else now; at once, because others who are refused
    look whether it is had."""
    if not any([await flow.has_another() for flow in flows]):
        return False
    for flow in flows:
        await flow.add(request)
    return True


def _flows(access: Access) -> list[Flow]:
    """New for each request, because each knows what it has added."""
    of_headers: list[Flow] = [
        HeaderFlow(name, value, access.secrets) for name, value in access.headers.items()
    ]
    # a signature is of what is there: it comes last
    credentials = sorted(access.credentials, key=lambda one: isinstance(one, AwsCredential))
    return [*of_headers, *(flow_of(one, access) for one in credentials)]


def flow_of(credential: Credential, access: Access) -> Flow:
    """What adds a credential to one request."""
    secrets = access.secrets
    match credential:
        case BearerCredential(bearer=token):
            return HeaderFlow("authorization", token, secrets, "Bearer ")
        case BasicCredential(basic=pair):
            return BasicFlow(pair, secrets)
        case HeaderCredential(header=name, value=key):
            return HeaderFlow(name, key, secrets)
        case QueryCredential(query=name, value=key):
            return QueryFlow(name, key, secrets)
        case CookieCredential(cookie=name, value=key):
            return CookieFlow(name, key, secrets)
        case ClientCredentials():
            assert access.tokens is not None
            return TokenFlow(access.tokens)
        case AwsCredential():
            return Signing(credential, access.session_tokens)


class SecretFlow:
    """One secret that is read when it is needed."""

    def __init__(self, secret: Secret, secrets: Secrets) -> None:
        self._secret = secret
        self._secrets = secrets
        self._sent = ""

    async def text(self) -> str:
        """What is to be sent now."""
        self._sent = await self._secrets.text(self._secret)
        return self._sent

    async def has_another(self) -> bool:
        """Whether it has been rotated since."""
        return await self._secrets.other_than(self._secret, self._sent) is not None


class HeaderFlow(SecretFlow):
    """In a header."""

    def __init__(self, name: str, secret: Secret, secrets: Secrets, scheme: str = "") -> None:
        super().__init__(secret, secrets)
        self._name = name
        self._scheme = scheme

    async def add(self, request: httpx.Request) -> None:
        """In the place of what the request has under that name."""
        request.headers[self._name] = f"{self._scheme}{await self.text()}"


class BasicFlow(SecretFlow):
    """A user and a password (RFC 7617, in UTF-8)."""

    async def add(self, request: httpx.Request) -> None:
        """As Authorization; a user alone has the empty password."""
        text = await self.text()
        pair = text if ":" in text else f"{text}:"
        request.headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"


class QueryFlow(SecretFlow):
    """In the query, where a URL that a service redirects to may have it already."""

    def __init__(self, name: str, secret: Secret, secrets: Secrets) -> None:
        super().__init__(secret, secrets)
        self._name = name
        self._added = ""

    async def add(self, request: httpx.Request) -> None:
        """At the end of the query, unless a service has redirected to a URL that has it."""
        pairs = [pair for pair in request.url.query.decode("ascii").split("&") if pair]
        others = [pair for pair in pairs if pair != self._added]
        if any(unquote_plus(pair.partition("=")[0]) == self._name for pair in others):
            return
        self._added = f"{quote_plus(self._name)}={quote_plus(await self.text())}"
        request.url = request.url.copy_with(query="&".join([*others, self._added]).encode())


class CookieFlow(SecretFlow):
    """In a cookie, beside those that the request has."""

    def __init__(self, name: str, secret: Secret, secrets: Secrets) -> None:
        super().__init__(secret, secrets)
        self._name = name

    async def add(self, request: httpx.Request) -> None:
        """Behind the other cookies."""
        others = [
            pair
            for pair in request.headers.get("cookie", "").split("; ")
            if pair and pair.partition("=")[0] != self._name
        ]
        request.headers["cookie"] = "; ".join([*others, f"{self._name}={await self.text()}"])


class TokenFlow:
    """A token of an authorization server."""

    def __init__(self, tokens: TokenSource) -> None:
        self._tokens = tokens
        self._sent: str | None = None
        self._refused: str | None = None

    async def add(self, request: httpx.Request) -> None:
        """As Authorization."""
        self._sent = await self._tokens.token(instead_of=self._refused)
        request.headers["authorization"] = f"Bearer {self._sent}"

    async def has_another(self) -> bool:
        """The server may have."""
        self._refused = self._sent
        return self._sent is not None and self._tokens.has_other_than(self._sent)


class Signing:
    """Signs one request for AWS (Signature Version 4): API Gateway, Lambda function URLs,
    OpenSearch, S3.

    botocore signs with the credentials of the process, which it renews itself.
    """

    def __init__(self, config: AwsCredential, session_tokens: deque[str]) -> None:
        """What is sent of the session's tokens is noted in these."""
        self._config = config
        self._session_tokens = session_tokens

    async def add(self, request: httpx.Request) -> None:
        """Sign it as it is now: method, URL, body, host, and what it says of itself to AWS.

        Headers that a proxy on the way may change are left out. The body is hashed whole.
        """
        body = await request.aread()
        signed = {
            name: value
            for name, value in request.headers.items()
            if name in ("host", "content-type") or name.startswith("x-amz-")
        }
        for name in ("x-amz-date", "x-amz-security-token", "x-amz-content-sha256"):
            signed.pop(name, None)  # of a signature before
        try:
            # credentials may have to be fetched first
            headers = await to_thread(
                aws.signed_headers,
                aws.ToSign(request.method, str(request.url), signed, body),
                self._config.sigv4,
                self._config.region,
            )
        except ConfigError as error:
            problem = error.problems[0]
            raise BackendError(f"The gateway cannot sign the request: {problem.message}") from None
        request.headers.update(headers)
        token = request.headers.get("x-amz-security-token")
        if token is not None and token not in self._session_tokens:
            self._session_tokens.append(token)

    async def has_another(self) -> bool:
        """Another signature would be the same."""
        return False
