"""Security schemes (OpenAPI "Security Scheme Object") as slots that the configuration fills."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Alternative: TypeAlias = Mapping[str, Sequence[str]]
"""Schemes that go together, by name, with the scopes that the operation needs of each."""


_MUTUAL_TLS: Final = "its own certificate: `tls` of the back end, with `cert`"
_OF_AWS: Final = "x-amazon-apigateway-authtype"
"""What API Gateway says of a scheme in the documents that it exports."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One scheme: `description` says what goes into it, `header`, `query` and
    `cookie` where it is sent."""

    name: str
    description: str
    header: str | None = None
    query: str | None = None
    cookie: str | None = None

    @property
    def is_mutual_tls(self) -> bool:
        """Whether the connection fills it, and no credential."""
        return self.description == _MUTUAL_TLS

    @property
    def remedy(self) -> str:
        """How it is filled."""
        if self.is_mutual_tls:
            return f"give the gateway {self.description}"
        return f"set `credentials.{self.name}` ({self.description}), or one `credential` for all"


def slot_of(name: str, scheme: Any) -> Slot:
    """The slot that a scheme is."""
    if not isinstance(scheme, dict):
        return Slot(name, "a scheme that the document does not describe")
    if scheme.get(_OF_AWS) == "awsSigv4":
        return Slot(name, "sigv4: execute-api", header="authorization")
    match scheme.get("type"), scheme.get("in"), str(scheme.get("scheme", "")).lower():
        case "apiKey", ("header" | "query" | "cookie") as place, _:
            key = str(scheme.get("name", ""))
            return Slot(name, f"{place}: {key}, value: the API key", **{str(place): key})
        case "http", _, "basic":
            return Slot(name, 'basic: "user:password"', header="authorization")
        case "http", _, _:
            return Slot(name, "bearer: the token", header="authorization")
        case "mutualTLS", _, _:
            return Slot(name, _MUTUAL_TLS)
        case (("oauth2" | "openIdConnect"), _, _):
            return Slot(name, "bearer: a token, or client_credentials", header="authorization")
    return Slot(name, f"what {scheme.get('type')} needs", header="authorization")


def alternatives(given: Any) -> list[Alternative]:
    """`security` of an operation or a document; one that names nothing is a
    call without credentials."""
    if not isinstance(given, list):
        return []
    return [
        {str(name): [str(scope) for scope in scopes or ()] for name, scopes in one.items()}
        for one in given
        if isinstance(one, dict)
    ]


def chosen(offered: Sequence[Alternative], filled: Collection[str]) -> Alternative | None:
    """The first alternative that the configuration fills whole, one with credentials before one
    without; an operation that says nothing needs none. `None`: it fills none of them."""
    if not offered:
        return {}
    full = [one for one in offered if set(one) <= set(filled)]
    return max(full, key=bool, default=None)


def scope_text(offered: Sequence[Alternative]) -> str:
    """The scopes of the service that a call needs, for the tool's
    description; empty without any."""
    for one in offered:
        if scopes := [scope for named in one.values() for scope in named]:
            return f"Needs {', '.join(dict.fromkeys(scopes))} of the service."
    return ""
