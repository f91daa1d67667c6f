"""What can be set of every back end that is reached over HTTP, whatever describes its tools."""

from __future__ import annotations

from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from roundgate.backends.config import BackendConfig
from roundgate.backends.http.credential_config import Credential, HeaderName, SecretHeader
from roundgate.backends.http.reliability import (
    BreakerConfig,
    LimitConfig,
    RetryConfig,
    TimeoutsConfig,
)
from roundgate.backends.http.tls import TlsConfig


def usable_base_url(value: str) -> str:
    """A base URL as it was given.

    Raises:
        ValueError: it has what does not belong there.
    """
    parts = urlsplit(value)
    if parts.port == 0 or "@" in parts.netloc:
        raise ValueError(
            "may have a host, a port and a path; a user and password go into credential.basic"
        )
    return value


BaseUrl: TypeAlias = Annotated[
    str, Field(pattern=r"^https?://[^/?#\s]+[^?#\s]*$"), AfterValidator(usable_base_url)
]


class RemoteConfig(BackendConfig):
    """What can be set of every back end that is reached over HTTP, wherever it is."""

    headers: dict[HeaderName, SecretHeader] = Field(
        {}, description="Fixed headers of every request."
    )
    credential: Credential | None = Field(None, description="How the gateway authenticates itself.")
    tls: TlsConfig | None = Field(
        None, description="A private authority, and the gateway's own certificate (mutual TLS)."
    )
    timeout_s: float = Field(
        15, description="Seconds for connecting and for the whole answer.", gt=0
    )
    timeouts: TimeoutsConfig | None = Field(
        None, description="Seconds for parts of a request, within timeout_s."
    )
    retry: RetryConfig | None = Field(
        None, description="When a request is sent again. Unset: never, once it has been sent."
    )
    idempotency_key: HeaderName | None = Field(
        None,
        description="Header that takes a key by which the service knows a POST or PATCH again, such as"
        " Idempotency-Key; sent with each.",
    )
    limit: LimitConfig | None = Field(
        None, description="How many requests one process has under way to one host."
    )
    breaker: BreakerConfig | None = Field(
        None, description="When a host that fails is left alone for a while."
    )
    max_response_bytes: int = Field(1_000_000, description="Larger answers are a tool error.", ge=1)
    max_connections: int = Field(
        50, description="Connections kept to the service by one process.", ge=1
    )
    keep_alive_s: float = Field(
        4.0,
        description="Seconds for which an idle connection is used again: fewer than the service keeps it, or a"
        " request meets a connection that is just being closed.",
        ge=0,
        le=3_600,
    )
