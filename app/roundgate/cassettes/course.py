"""What follows from what was said before, and so is left out of a cassette: the era, its
revision, its session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roundgate.cassettes.model import ENVELOPE, META, Json


class Course:
    """How a conversation stands. `initialize` begins the era of sessions, and
    each session after it."""

    def __init__(self) -> None:
        self.is_older = False
        self.version: str | None = None
        self.session: str | None = None

    def begins(self, message: Any) -> None:
        """A request is about to be sent."""
        if isinstance(message, dict) and message.get("method") == "initialize":
            self.is_older, self.version, self.session = True, None, None

    def answered(self, message: Any, answer: Any, headers: Mapping[str, str]) -> None:
        """Its answer is there."""
        if not isinstance(message, dict) or message.get("method") != "initialize":
            return
        result = answer.get("result") if isinstance(answer, dict) else None
        if isinstance(result, dict):
            self.version = str(result.get("protocolVersion"))
            self.session = headers.get("mcp-session-id")

    def headers(self, message: Any) -> dict[str, str]:
        """Headers that go without saying."""
        if self.is_older:
            found = {"mcp-protocol-version": self.version, "mcp-session-id": self.session}
            return {name: value for name, value in found.items() if value is not None}
        version = envelope_of(message).get("protocolVersion")
        return {"mcp-protocol-version": version} if isinstance(version, str) else {}


def envelope_of(message: Any) -> Json:
    """What a request of the modern revision says of its client, the prefix
    of the names left out."""
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(meta, dict):
        return {}
    return {name: meta[META + name] for name in ENVELOPE if META + name in meta}


def without_envelope(message: Json) -> Json:
    """A request without what its client says of itself each time."""
    params = dict(message["params"])
    meta = {
        name: value
        for name, value in params.pop("_meta").items()
        if name not in {META + one for one in ENVELOPE}
    }
    params |= {"_meta": meta} if meta else {}
    return {**message, "params": params}


def with_envelope(message: Json, client: Mapping[str, Any]) -> Json:
    """The other way round."""
    params = dict(message.get("params") or {})
    envelope = {META + name: value for name, value in client.items()}
    return {**message, "params": {**params, "_meta": {**(params.get("_meta") or {}), **envelope}}}
