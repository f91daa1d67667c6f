"""What a client says it can do, request by request (basic/index, "Per-request protocol fields").

A requirement has the shape of the schema's `ClientCapabilities`: `{"sampling": {"tools": {}}}`,
`{"elicitation": {"url": {}}}`, `{"extensions": {"io.modelcontextprotocol/tasks": {}}}`. What is
missing is told in the same shape, as -32021 demands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from roundgate.errors import InvalidParams, MissingCapability

META_KEY = "io.modelcontextprotocol/clientCapabilities"


@dataclass(frozen=True, slots=True)
class ClientCapabilities:
    """The declared capabilities of this one request; nothing is remembered from any other."""

    declared: Mapping[str, Any]
    substituted: Mapping[str, Any] = field(default_factory=dict)
    """Capabilities that the gateway replaces if the client has not declared them (`roundgate docs
    clients`)."""

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> ClientCapabilities:
        """`_meta[".../clientCapabilities"]` as it arrived.

        Raises:
            InvalidParams: a capability in it is not an object.
        """
        for name, capability in value.items():
            if not isinstance(capability, dict):
                raise InvalidParams(f'_meta["{META_KEY}"].{name[:100]} must be an object')
        return cls(value)

    def with_substitutes(self, substituted: Mapping[str, Any]) -> ClientCapabilities:
        """The same client, with other means for what it lacks of this."""
        return replace(self, substituted=substituted)

    def require(
        self, required: Mapping[str, Any], what_for: str, *, has_substitute: bool = True
    ) -> None:
        """Raise unless all of `required` is declared or has a substitute.

        Args:
            required: the capabilities.
            what_for: the feature that needs them, for the message.
            has_substitute: whether a `fallback` of the configuration could replace them.

        Raises:
            MissingCapability: names exactly the missing capabilities.
        """
        if missing := self._missing(required):
            raise MissingCapability(what_for, missing, has_substitute)

    def has(self, required: Mapping[str, Any]) -> bool:
        """Whether all of `required` is declared, or there are other means."""
        return not self._missing(required)

    def has_declared(self, required: Mapping[str, Any]) -> bool:
        """Whether the client itself can do all of `required`."""
        return not _missing(required, self._explicit())

    def _missing(self, required: Mapping[str, Any]) -> dict[str, Any]:
        missing = _missing(required, self._explicit())
        return _missing(missing, self.substituted) if missing and self.substituted else missing

    def _explicit(self) -> Mapping[str, Any]:
        # client/elicitation: "an empty object is equivalent to declaring support for form mode
        # only"
        if self.declared.get("elicitation") == {}:
            return {**self.declared, "elicitation": {"form": {}}}
        return self.declared


def merged(requirements: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One requirement that is all of several."""
    whole: dict[str, Any] = {}
    for required in requirements:
        for name, inner in required.items():
            whole[name] = merged([whole.get(name, {}), inner])
    return whole


def _missing(required: Mapping[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
    missing: dict[str, Any] = {}
    for name, inner in required.items():
        there = declared.get(name)
        if not isinstance(inner, Mapping) or not isinstance(there, Mapping):
            if there != inner:  # an extension's settings may hold any JSON
                missing[name] = inner
        elif deeper := _missing(inner, there):
            missing[name] = deeper
    return missing
