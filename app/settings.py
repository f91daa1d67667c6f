"""The environment as one frozen value, read once at start-up.

What is served is in gateway.yaml; here is only what differs between two places that serve the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

from app.errors import ConfigError, Problem

ListenMode: TypeAlias = Literal["auto", "on", "off"]

DEFAULT_STORE: Final = "sqlite:///.mcp-gateway/gateway.sqlite3"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Settings:
    """One field a variable; docs/configuration.md describes each."""

    config: Path = Path("gateway.yaml")
    """GATEWAY_CONFIG: the file that says what is served."""
    public_url: str | None = None
    """GATEWAY_PUBLIC_URL: where clients reach the gateway; its host and origin are then allowed."""
    listen: ListenMode = "auto"
    """GATEWAY_LISTEN: serve subscriptions/listen; auto is on except on AWS Lambda, which cannot stream."""
    log_level: str = "info"
    """GATEWAY_LOG_LEVEL: debug, info, warning or error; info writes a line a request."""
    state_keys: str | None = field(default=None, repr=False)
    """GATEWAY_STATE_KEYS: base64 keys of 32 bytes, comma-separated, for requestState; the first seals, all open."""
    state_keys_secret: str | None = None
    """GATEWAY_STATE_KEYS_SECRET: the AWS Secrets Manager secret that holds the same text."""
    state_keys_kms: str | None = None
    """GATEWAY_STATE_KEYS_KMS: data keys encrypted by AWS KMS, base64, comma-separated."""
    store: str = DEFAULT_STORE
    """GATEWAY_STORE: where what must be kept is kept: sqlite:///path."""
    on_lambda: bool = False
    """Whether this is an AWS Lambda function (AWS_LAMBDA_FUNCTION_NAME is set there)."""

    @property
    def sqlite_path(self) -> Path:
        """The file behind `store`."""
        return Path(self.store.removeprefix("sqlite:///"))

    @property
    def streams(self) -> bool:
        """Whether subscriptions/listen is advertised and served."""
        return self.listen == "on" or (self.listen == "auto" and not self.on_lambda)


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Settings from environment variables; an empty variable counts as unset.

    Raises:
        ConfigError: every variable that is wrong, with what it may be.
    """
    problems: list[Problem] = []

    def read(name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = environ.get(name) or default
        if value not in allowed:
            problems.append(Problem("environment", name, f"is {value!r}", f"use one of {', '.join(allowed)}"))
        return value

    listen = cast("ListenMode", read("GATEWAY_LISTEN", "auto", ("auto", "on", "off")))
    log_level = read("GATEWAY_LOG_LEVEL", "info", LOG_LEVELS)
    public_url = environ.get("GATEWAY_PUBLIC_URL") or None
    if public_url is not None and not _is_origin(public_url):
        remedy = "give the URL that clients use, such as https://mcp.example.com"
        problems.append(Problem("environment", "GATEWAY_PUBLIC_URL", "is not an http(s) URL with a host", remedy))
    store = environ.get("GATEWAY_STORE") or DEFAULT_STORE
    if not store.startswith("sqlite:///"):
        problems.append(Problem("environment", "GATEWAY_STORE", "names no store we have", "use sqlite:///path"))
    if problems:
        raise ConfigError(problems)
    return Settings(
        config=Path(environ.get("GATEWAY_CONFIG") or "gateway.yaml"),
        public_url=public_url,
        listen=listen,
        log_level=log_level,
        state_keys=environ.get("GATEWAY_STATE_KEYS") or None,
        state_keys_secret=environ.get("GATEWAY_STATE_KEYS_SECRET") or None,
        state_keys_kms=environ.get("GATEWAY_STATE_KEYS_KMS") or None,
        store=store,
        on_lambda=bool(environ.get("AWS_LAMBDA_FUNCTION_NAME")),
    )


def _is_origin(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
