"""What requests to a service are authenticated with, where its texts come from, and what no answer may show of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import SecretStr

from roundgate.backends.http.certificates import Certificates
from roundgate.backends.http.config import RemoteConfig
from roundgate.backends.http.credential_config import ClientCredentials, Credential
from roundgate.backends.http.oauth import TokenSource
from roundgate.backends.http.secrets import Redactor, of_credentials, of_fixed_headers, of_headers
from roundgate.backends.secret_reading import Secrets
from roundgate.config import Origin
from roundgate.config.secret import Secret


@dataclass(frozen=True, slots=True)
class Access:
    """To one service, with some of the credentials that the back end has."""

    credentials: Sequence[Credential] = ()
    headers: Mapping[str, Secret] = field(default_factory=dict)
    """Fixed headers of every request."""
    secrets: Secrets = field(default_factory=Secrets)
    tokens: TokenSource | None = None
    """For the one of the credentials that is a `ClientCredentials`."""


class Accesses:
    """All that a back end has: each token is had once, whichever of its services it is for."""

    def __init__(
        self,
        config: RemoteConfig,
        origin: Origin,
        secrets: Secrets,
        slots: Mapping[str, Credential] | None = None,
        more: Iterable[Mapping[str, SecretStr]] = (),
    ) -> None:
        """Nothing is read yet.

        Args:
            config: the back end's settings.
            origin: where they stand.
            secrets: reads secrets.
            slots: the credentials besides the general one, by name.
            more: fixed headers of its tools.
        """
        self._config = config
        self._origin = origin
        self._secrets = secrets
        self._slots = slots or {}
        self._of_tools = frozenset[str]().union(*map(of_fixed_headers, more))
        self._sources: dict[str, TokenSource] = {}
        self.redactor = Redactor(self._hidden)
        """Takes all of it out of answers."""

    async def ready(self) -> None:
        """Read what there is to read.

        Raises:
            ConfigError: what cannot be read, or used, and why.
        """
        await self._secrets.ready(self._config, self._origin)
        for name, credential in self._named().items():
            if isinstance(credential, ClientCredentials):
                await self._source(name, credential).check()

    def general(self) -> Access:
        """With the general credential, if there is one."""
        return self.of([] if self._config.credential is None else [""])

    def of(self, names: Iterable[str]) -> Access:
        """With the credentials of these names; the general one is the empty name."""
        named = self._named()
        chosen = [(name, named[name]) for name in names]
        sources = [self._source(name, one) for name, one in chosen if _is_source(one)]
        return Access(
            [one for _, one in chosen],
            self._config.headers,
            self._secrets,
            sources[0] if sources else None,
        )

    def _named(self) -> dict[str, Credential]:
        general = {} if self._config.credential is None else {"": self._config.credential}
        return {**general, **self._slots}

    def _source(self, name: str, credential: Credential) -> TokenSource:
        if name not in self._sources:
            steps = ("credential",) if not name else ("credentials", name)
            place = self._origin.at(*steps, "tls")
            assert isinstance(credential, ClientCredentials)
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
            | tokens
        )


def _is_source(credential: Credential) -> bool:
    return isinstance(credential, ClientCredentials)
