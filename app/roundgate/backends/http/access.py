"""What requests to a service are authenticated with, where its texts come from, and what no
answer may show of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from roundgate.backends.base import Shared
from roundgate.backends.http.credential_config import ClientCredentials, Credential
from roundgate.backends.http.oauth import TokenSource
from roundgate.backends.http.remote_config import RemoteConfig
from roundgate.backends.http.secrets import Redactor, of_credentials, of_fixed_headers, of_headers
from roundgate.backends.http.tls import Certificates
from roundgate.backends.secret_reading import Secrets
from roundgate.errors import ConfigError, Problem
from roundgate.settings import Origin, Secret

_KEPT: Final = 4


@dataclass(frozen=True, slots=True)
class Access:
    """To one service, with some of the credentials that the back end has."""

    credentials: Sequence[Credential] = ()
    headers: Mapping[str, Secret] = field(default_factory=dict)
    """Fixed headers of every request."""
    secrets: Secrets = field(default_factory=Secrets)
    tokens: TokenSource | None = None
    """For the one of the credentials that is a `ClientCredentials`."""
    session_tokens: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """Those of AWS that were sent last."""


class Accesses:
    """All that a back end has: each token is had once, whichever of its services it is for."""

    def __init__(
        self,
        config: RemoteConfig,
        origin: Origin,
        shared: Shared,
        slots: Mapping[str, Credential] | None = None,
        more: Iterable[Mapping[str, SecretStr]] = (),
    ) -> None:
        """Nothing is read yet.

        Args:
            config: the back end's settings.
            origin: where they stand.
            shared: reads secrets, when the back end says what it offers or later.
            slots: the credentials besides the general one, by name.
            more: fixed headers of its tools.
        """
        self._config = config
        self._origin = origin
        self._secrets = shared.secrets
        self._reads_now = not shared.is_cold
        self._slots = slots or {}
        self._of_tools = frozenset[str]().union(*map(of_fixed_headers, more))
        self._sources: dict[str, TokenSource] = {}
        self._session_tokens: deque[str] = deque(maxlen=_KEPT)
        self.redactor = Redactor(self._hidden)
        """Takes all of it out of answers."""

    async def problems(self, certificates: Certificates) -> list[Problem]:
        """What of secrets cannot be read, and of certificates not be used: the service's,
        and those of credentials."""
        found: list[Problem] = []
        if self._reads_now:
            found += await self._secrets.problems(self._config, self._origin)
        of_sources = [
            self._source(name, one).certificates
            for name, one in self._named().items()
            if isinstance(one, ClientCredentials)
        ]
        for one in (certificates, *of_sources):
            try:
                one.check()
            except ConfigError as error:
                found.extend(error.problems)
        return found

    @property
    def files(self) -> frozenset[Path]:
        """The files that TLS of credentials names: what is worth watching."""
        return frozenset().union(*(one.certificates.files for one in self._sources.values()))

    async def aclose(self) -> None:
        """Let go of connections to where secrets are kept."""
        await self._secrets.aclose()

    def general(self) -> Access:
        """With the general credential, if there is one."""
        return self.of([] if self._config.credential is None else [""])

    def of(self, names: Iterable[str]) -> Access:
        """With the credentials of these names; the general one is the empty name."""
        named = self._named()
        chosen = [(name, named[name]) for name in names]
        sources = [
            self._source(name, one) for name, one in chosen if isinstance(one, ClientCredentials)
        ]
        return Access(
            [one for _, one in chosen],
            self._config.headers,
            self._secrets,
            sources[0] if sources else None,
            self._session_tokens,
        )

    def _named(self) -> dict[str, Credential]:
        general = {} if self._config.credential is None else {"": self._config.credential}
        return {**general, **self._slots}

    def _source(self, name: str, credential: ClientCredentials) -> TokenSource:
        if name not in self._sources:
            steps = ("credential",) if not name else ("credentials", name)
            place = self._origin.at(*steps, "tls")
            self._sources[name] = TokenSource(
                credential, self._secrets, Certificates(credential.tls, place)
            )
        return self._sources[name]

    def _hidden(self) -> frozenset[str]:
        tokens = {token for source in self._sources.values() for token in source.recent}
        return frozenset(
            self._of_tools
            | of_credentials(self._named().values(), self._secrets)
            | of_headers(self._config.headers, self._secrets)
            | tokens.union(self._session_tokens)
        )
