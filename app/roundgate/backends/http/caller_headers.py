"""Headers that tell a service who calls: `X-User: ${caller.subject}`.

A value is the caller's own fact, percent-encoded: UTF-8 bytes except letters, digits and
`- . _ ~ @ : / |` become `%XX`. A list becomes its encoded values in order, with commas between them.
So no value can end a header, add one, or look like several. A fact that is unknown or empty has no
header. Only the gateway sets these headers, so a service behind it can trust them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import quote

from pydantic import Discriminator, Tag

from roundgate.auth import Principal
from roundgate.auth.principal import LOCAL_ISSUER, is_unicode
from roundgate.backends.http.credential_config import SecretHeader
from roundgate.errors import BackendError
from roundgate.observability.tracing import CORRELATION
from roundgate.settings import CallerReference

MAX_VALUE: Final = 8_000
"""The maximum length of a value in characters, which most servers accept."""
_UNENCODED: Final = "@:/|"


def _tag(value: Any) -> str:
    return "<caller>" if isinstance(value, CallerReference) else "<text>"


HeaderText: TypeAlias = Annotated[
    Annotated[CallerReference, Tag("<caller>")] | Annotated[SecretHeader, Tag("<text>")],
    Discriminator(_tag),
]
"""The value of a header of every request: a fixed text, or a fact about the caller."""


def caller_headers(
    references: Mapping[str, CallerReference], principal: Principal
) -> dict[str, str]:
    """Return the headers for the requests of a caller, by name.

    Raises:
        BackendError: a value is too long. A part of it could name another caller.
    """
    headers: dict[str, str] = {}
    for name, reference in references.items():
        values = sorted(filter(is_unicode, _facts(reference, principal)))
        text = ",".join(quote(value, safe=_UNENCODED) for value in values if value)
        if len(text) > MAX_VALUE:
            raise BackendError(
                f"The header {name} cannot be sent: {reference} has more than {MAX_VALUE:,} characters"
            )
        if text:
            headers[name] = text
    return headers


def _facts(reference: CallerReference, principal: Principal) -> Iterator[str]:
    """Yield the values of a fact. Without authentication, all callers are one, which has no name."""
    if reference.fact == "call":
        correlation = CORRELATION.get()
        yield (correlation and correlation.call_id) or ""
    elif principal.issuer == LOCAL_ISSUER:
        return
    elif reference.claim is not None:
        yield from principal.claim(reference.claim) or ()
    else:
        yield {
            "subject": principal.subject,
            "issuer": principal.issuer,
            "client": principal.client_id,
        }[reference.fact]
