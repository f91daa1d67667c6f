"""The environment as one frozen value, read once at start-up.

What is served is in gateway.yaml; here is only what differs between two places that serve the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

from app.errors import ConfigError, Problem

ListenMode: TypeAlias = Literal["auto", "on", "off"]

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
    on_lambda: bool = False
    """Whether this is an AWS Lambda function (AWS_LAMBDA_FUNCTION_NAME is set there)."""

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
    if problems:
        raise ConfigError(problems)
    config = Path(environ.get("GATEWAY_CONFIG") or "gateway.yaml")
    return Settings(config, public_url, listen, log_level, bool(environ.get("AWS_LAMBDA_FUNCTION_NAME")))


def _is_origin(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
