"""The gateway's authentication to a service.

    request ─▶ each flow adds its credential ─▶ service ─▶ answer
                                                  401 ─▶ if a flow has a new credential: retry once

A service that answers 401 has not processed the request, so the gateway can retry it with a new
token or a rotated secret.
"""

from __future__ import annotations

import base64
from asyncio import to_thread
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar
from urllib.parse import quote_plus, unquote_plus

from msgspec import Struct, field
from pydantic import SecretStr

from roundgate import aws
from roundgate.backends.base import Shared
from roundgate.backends.http.config import RemoteConfig
from roundgate.backends.http.credential_config import (
    AwsCredential,
    BasicCredential,
    BearerCredential,
    ClientCredential,
    CookieCredential,
    Credential,
    HeaderCredential,
    QueryCredential,
)
from roundgate.backends.http.oauth import TokenSource
from roundgate.backends.http.secrets import (
    AnswerRedactor,
    of_credentials,
    of_fixed_headers,
    of_headers,
)
from roundgate.backends.http.tls import Certificates
from roundgate.backends.secret_reading import SecretTexts
from roundgate.errors import BackendError, ConfigError, Problem
from roundgate.net.request import Unread, WireRequest
from roundgate.settings import Origin, Secret

_KEPT: Final = 4


class ServiceAccess(Struct, frozen=True):
    """The credentials for requests to one service, a subset of the back end's credentials."""

    credentials: Sequence[Credential] = ()
    headers: Mapping[str, Secret] = field(default_factory=dict)
    """Fixed headers for every request."""
    secrets: SecretTexts = field(default_factory=SecretTexts)
    tokens: TokenSource | None = None
    """The token source of the `ClientCredential` among `credentials`, if any."""
    session_tokens: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """The most recently sent AWS session tokens, to be redacted."""


class Accesses:
    """The credentials of a back end. Its services share tokens."""

    def __init__(
        self,
        config: RemoteConfig,
        origin: Origin,
        shared: Shared,
        slots: Mapping[str, Credential] | None = None,
        more: Iterable[Mapping[str, SecretStr]] = (),
    ) -> None:
        """Store the settings; read no secret yet.

        Args:
            config: the back end's settings.
            origin: the place of `config` in the configuration.
            shared: the shared parts, with the reader of secrets.
            slots: named credentials, in addition to the general one.
            more: the fixed headers of each tool.
        """
        self._config = config
        self._origin = origin
        self._secrets = shared.secrets
        self._reads_now = not shared.is_cold
        general = {} if config.credential is None else {"": config.credential}
        self._credentials: dict[str, Credential] = {**general, **(slots or {})}
        self._headers = config.fixed_headers
        self._of_tools = frozenset[str]().union(*map(of_fixed_headers, more))
        self._sources: dict[str, TokenSource] = {}
        self._session_tokens: deque[str] = deque(maxlen=_KEPT)
        self.redactor = AnswerRedactor(self._hidden)
        """The redactor of all credentials in answers."""

    async def problems(self, certificates: Certificates) -> list[Problem]:
        """Return a problem for each unreadable secret, and each unusable certificate of the
        service or of a credential. Secrets are not read if the gateway starts cold."""
        problems: list[Problem] = []
        if self._reads_now:
            problems += await self._secrets.problems(self._config, self._origin)
        token_certificates = [
            self._source(name, source).certificates
            for name, source in self._credentials.items()
            if isinstance(source, ClientCredential)
        ]
        for source in (certificates, *token_certificates):
            try:
                source.check()
            except ConfigError as error:
                problems.extend(error.problems)
        return problems

    @property
    def files(self) -> frozenset[Path]:
        """The TLS files of credentials, to watch for changes."""
        return frozenset().union(*(source.certificates.files for source in self._sources.values()))

    async def aclose(self) -> None:
        """Close the connections to the secret stores."""
        await self._secrets.aclose()

    def general(self) -> ServiceAccess:
        """Return the access with the general credential, if there is one."""
        return self.of([] if self._config.credential is None else [""])

    def of(self, names: Iterable[str]) -> ServiceAccess:
        """Return the access with the named credentials. The general credential has an empty
        name."""
        chosen = {name: self._credentials[name] for name in names}
        sources = [
            self._source(name, credential)
            for name, credential in chosen.items()
            if isinstance(credential, ClientCredential)
        ]
        return ServiceAccess(
            list(chosen.values()),
            self._headers,
            self._secrets,
            sources[0] if sources else None,
            self._session_tokens,
        )

    def _source(self, name: str, credential: ClientCredential) -> TokenSource:
        if name not in self._sources:
            steps = ("credentials", name) if name else ("credential",)
            place = self._origin.at(*steps, "tls")
            self._sources[name] = TokenSource(
                credential, self._secrets, Certificates(credential.tls, place)
            )
        return self._sources[name]

    def _hidden(self) -> frozenset[str]:
        if not self._credentials and not self._headers:
            return self._of_tools
        tokens = {token for source in self._sources.values() for token in source.recent}
        return frozenset(
            self._of_tools
            | of_credentials(self._credentials.values(), self._secrets)
            | of_headers(self._headers, self._secrets)
            | tokens.union(self._session_tokens)
        )


U = TypeVar("U", bound=Unread)


async def authenticated(
    send: Callable[[WireRequest], Awaitable[U]], request: WireRequest, access: ServiceAccess
) -> U:
    """Send a request with all credentials and fixed headers of a service; return the answer unread.
    `send` sends it once.

    If the service answers 401 and a flow has a new credential, send the request once more.
    `httpx.Auth` is not used, because it may read and decompress a 401 answer of any size.

    Raises:
        BackendError: a credential is unavailable.
        httpx.HTTPError: the service did not answer.
    """
    if not access.credentials and not access.headers:
        return await send(request)
    flows = _flows(access)
    for flow in flows:
        await flow.add(request)
    response = await send(request)
    if response.status != 401:
        return response
    try:
        is_worth_it = await _replace_credentials(flows, request)
    except BaseException:
        await response.aclose()
        raise
    if not is_worth_it:
        return response
    await response.aclose()
    return await send(request)


async def _replace_credentials(flows: list[Flow], request: WireRequest) -> bool:
    """Add new credentials to the request if a flow may have any; return whether one may."""
    if not any([await flow.has_another() for flow in flows]):
        return False
    for flow in flows:
        await flow.add(request)
    return True


def _flows(access: ServiceAccess) -> list[Flow]:
    """Return new flows for one request. Each flow remembers the credential that it added."""
    of_headers: list[Flow] = [
        SecretFlow(value, access.secrets, partial(_write_header, name))
        for name, value in access.headers.items()
    ]
    # a signature covers the rest of the request, so signing comes last
    credentials = sorted(
        access.credentials, key=lambda credential: isinstance(credential, AwsCredential)
    )
    return [*of_headers, *(_make_flow(credential, access) for credential in credentials)]


def _make_flow(credential: Credential, access: ServiceAccess) -> Flow:
    match credential:
        case BearerCredential(bearer=secret):
            write: Write = partial(_write_header, "authorization", scheme="Bearer ")
        case BasicCredential(basic=secret):
            write = _write_basic
        case HeaderCredential(header=name, value=secret):
            write = partial(_write_header, name)
        case CookieCredential(cookie=name, value=secret):
            write = partial(_write_cookie, name)
        case QueryCredential(query=name, value=secret):
            write = _QueryWriter(name)
        case ClientCredential():
            assert access.tokens is not None
            return TokenFlow(access.tokens)
        case AwsCredential():
            return Signing(credential, access.session_tokens)
    return SecretFlow(secret, access.secrets, write)


class Flow(Protocol):
    """An object that adds one credential to one request."""

    async def add(self, request: WireRequest) -> None:
        """Add the credential, or replace an earlier one.

        Raises:
            BackendError: the credential is unavailable.
        """

    async def has_another(self) -> bool:
        """Return whether a credential other than the refused one may be available."""


Write: TypeAlias = Callable[[WireRequest, str], None]
"""A function that writes a secret into a request, in place of an earlier one."""


class SecretFlow:
    """A flow for one secret, which is read when a request needs it."""

    def __init__(self, secret: Secret, secrets: SecretTexts, write: Write) -> None:
        self._secret = secret
        self._secrets = secrets
        self._write = write
        self._sent = ""

    async def add(self, request: WireRequest) -> None:
        """See `Flow`."""
        self._sent = await self._secrets.text(self._secret)
        self._write(request, self._sent)

    async def has_another(self) -> bool:
        """Return whether the secret was rotated."""
        return await self._secrets.other_than(self._secret, self._sent) is not None


def _write_header(name: str, request: WireRequest, secret: str, *, scheme: str = "") -> None:
    request.set_header(name, f"{scheme}{secret}")


def _write_basic(request: WireRequest, secret: str) -> None:
    """Write a user and password (RFC 7617, in UTF-8). Without a colon, the password is empty."""
    pair = secret if ":" in secret else f"{secret}:"
    request.set_header("authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")


def _write_cookie(name: str, request: WireRequest, secret: str) -> None:
    others = [
        pair
        for pair in (request.header("cookie") or "").split("; ")
        if pair and pair.partition("=")[0] != name
    ]
    request.set_header("cookie", "; ".join([*others, f"{name}={secret}"]))


class _QueryWriter:
    """A writer that adds a secret to the query, unless the URL already has the parameter, as the
    URL of a redirect may."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._added = ""

    def __call__(self, request: WireRequest, secret: str) -> None:
        path, _, query = request.target.partition("?")
        pairs = [pair for pair in query.split("&") if pair]
        others = [pair for pair in pairs if pair != self._added]
        if any(unquote_plus(pair.partition("=")[0]) == self._name for pair in others):
            return
        self._added = f"{quote_plus(self._name)}={quote_plus(secret)}"
        request.target = f"{path}?{'&'.join([*others, self._added])}"


class TokenFlow:
    """A flow for access tokens from an authorization server."""

    def __init__(self, tokens: TokenSource) -> None:
        self._tokens = tokens
        self._sent: str | None = None
        self._refused: str | None = None

    async def add(self, request: WireRequest) -> None:
        """See `Flow`."""
        self._sent = await self._tokens.token(instead_of=self._refused)
        request.set_header("authorization", f"Bearer {self._sent}")

    async def has_another(self) -> bool:
        """Return whether another token exists or may be requested."""
        self._refused = self._sent
        return self._sent is not None and self._tokens.has_other_than(self._sent)


class Signing:
    """A flow that signs one request for AWS (Signature Version 4), such as for API Gateway, Lambda
    function URLs, OpenSearch or S3. botocore reads and renews the credentials of the process."""

    def __init__(self, config: AwsCredential, session_tokens: deque[str]) -> None:
        """Store the settings. `add` appends each session token that it sends to
        `session_tokens`."""
        self._config = config
        self._session_tokens = session_tokens

    async def add(self, request: WireRequest) -> None:
        """Sign the method, URL, body, and the headers that no proxy changes.

        Raises:
            BackendError: the process has no usable AWS credentials or region.
        """
        headers = {name.lower(): value for name, value in request.headers}
        signed = {"host": request.authority} | {
            name: value
            for name, value in headers.items()
            if name == "content-type" or name.startswith("x-amz-")
        }
        for name in ("x-amz-date", "x-amz-security-token", "x-amz-content-sha256"):
            signed.pop(name, None)  # left by an earlier signature
        try:
            signature = await to_thread(
                aws.signed_headers,
                aws.ToSign(request.method, request.url, signed, request.body),
                self._config.sigv4,
                self._config.region,
            )
        except ConfigError as error:
            problem = error.problems[0]
            raise BackendError(f"The gateway cannot sign the request: {problem.message}") from None
        for name, value in signature.items():
            request.set_header(name, value)
        token = request.header("x-amz-security-token")
        if token is not None and token not in self._session_tokens:
            self._session_tokens.append(token)

    async def has_another(self) -> bool:
        """Return False; a new signature would use the same credentials."""
        return False
