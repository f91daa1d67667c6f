"""What the references of secrets stand for now: read when needed, and again
when it may have changed.

    file                          read when the file is another than before
    Secrets Manager, Parameters   read after REFRESH_MS, and when a service refuses what was read, after AGAIN_MS

Who asks meanwhile waits for the one read that is under way. While a text cannot be read again the
one from before serves. Texts are in this process only, and in no log.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from roundgate import json
from roundgate.aio import Flight
from roundgate.backends.secret_stores import SecretStore, is_file, stores
from roundgate.clock import Clock
from roundgate.errors import (
    BackendError,
    ParseError,
    Problem,
    UnresolvedReference,
)
from roundgate.settings import Origin, Reference, Secret, found_in
from roundgate.settings.files import Stamp, stamp

REFRESH_MS: Final = 300_000
"""Age at which what is kept at AWS is read again."""
AGAIN_MS: Final = 10_000
"""Age from which it is read again because a service has refused it, or
because it could not be read."""
_EARLIER: Final = 4
"""Texts from before that are still taken out of answers."""

log = logging.getLogger("roundgate.backends")


@dataclass(slots=True)
class _Held:
    """What was read of one reference."""

    text: str | None = None
    read_ms: float = -math.inf
    tried_ms: float = -math.inf
    problem: UnresolvedReference | None = None
    stamp: Stamp = None
    earlier: deque[str] = field(default_factory=lambda: deque(maxlen=_EARLIER))
    reading: Flight[None] = field(default_factory=Flight)


class Secrets:
    """The texts of secrets. What is read for one back end serves the others too."""

    def __init__(
        self, clock: Clock | None = None, at: Mapping[str, SecretStore] | None = None
    ) -> None:
        self._clock = clock or Clock()
        self._stores = stores() if at is None else at
        self._held: dict[tuple[str, str], _Held] = {}

    async def aclose(self) -> None:
        """Let go of connections to AWS."""
        for store in self._stores.values():
            await store.aclose()

    async def text(self, secret: Secret) -> str:
        """The text of now.

        Raises:
            BackendError: there is none to be had. The log says why; who calls a tool need
                not know where it is kept.
        """
        try:
            return await self._text(secret, REFRESH_MS)
        except UnresolvedReference as error:
            log.error("a secret cannot be read", extra={"fields": {"why": str(error)}})
            raise BackendError(
                "The gateway cannot read its credential for the service just now; try again later"
            ) from None

    async def other_than(self, secret: Secret, refused: str) -> str | None:
        """The text, read again where that may help, if it is another than the one that
        a service has refused."""
        if not secret.references:
            return None
        try:
            text = await self._text(secret, REFRESH_MS)
            if text == refused:
                text = await self._text(secret, AGAIN_MS)
        except UnresolvedReference:
            return None
        return None if text == refused else text

    def known(self, secrets: Iterable[Secret]) -> frozenset[str]:
        """The texts of secrets, as far as they have been read, those from before included:
        what no answer may show."""
        return frozenset(text for secret in secrets for text in self._known(secret) if text)

    async def problems(self, settings: BaseModel, origin: Origin) -> list[Problem]:
        """Read every secret of a back end's settings; a problem for each that cannot be read."""
        found = [
            (loc, one)
            for loc, one in found_in(settings)
            if isinstance(one, Secret) and one.references
        ]
        told = await asyncio.gather(*(self._problem(one, origin.at(*loc)) for loc, one in found))
        return [problem for problem in told if problem is not None]

    async def _problem(self, secret: Secret, place: Origin) -> Problem | None:
        try:
            await self._text(secret, REFRESH_MS)
        except UnresolvedReference as error:
            return place.problem(str(error), error.remedy)
        return None

    async def _text(self, secret: Secret, max_age_ms: float) -> str:
        if secret.text is not None:
            return secret.text
        texts = [
            part if isinstance(part, str) else _member(part, await self._read(part, max_age_ms))
            for part in secret.parts
        ]
        text = "".join(texts)
        try:
            secret.check(text)
        except ValueError as error:
            where = ", ".join(map(str, secret.references))
            raise UnresolvedReference(f"{where} {error}", "store another value there") from None
        return text

    async def _read(self, reference: Reference, max_age_ms: float) -> str:
        held = self._held.setdefault((reference.kept, reference.name), _Held())
        if self._is_due(held, reference, max_age_ms):
            await held.reading.join(lambda: self._renew(held, reference))
        if held.text is None:
            raise held.problem or UnresolvedReference(f"{reference} is not read yet", "try again")
        return held.text

    def _is_due(self, held: _Held, reference: Reference, max_age_ms: float) -> bool:
        now_ms = self._clock.monotonic_ms()
        if is_file(reference):
            return held.text is None or stamp(Path(reference.name)) != held.stamp
        has_failed = held.problem is not None
        if has_failed and now_ms - held.tried_ms < AGAIN_MS:
            return False
        return has_failed or now_ms - held.read_ms >= max_age_ms

    async def _renew(self, held: _Held, reference: Reference) -> None:
        found = stamp(Path(reference.name)) if is_file(reference) else None
        try:
            text = (await self._stores[reference.kept].read(reference.name)).rstrip("\r\n")
        except UnresolvedReference as error:
            held.problem = error
            if held.text is not None:
                log.warning(
                    "a secret cannot be read again; the one from before serves",
                    extra={"fields": {"why": str(error)}},
                )
        else:
            self._note(held, text, reference)
        held.stamp = found
        held.tried_ms = self._clock.monotonic_ms()

    def _note(self, held: _Held, text: str, reference: Reference) -> None:
        if held.text is not None and held.text != text:
            held.earlier.append(held.text)
            where = Reference(reference.kept, reference.name)
            log.info("a secret has changed", extra={"fields": {"secret": str(where)}})
        held.text, held.problem, held.read_ms = text, None, self._clock.monotonic_ms()

    def _known(self, secret: Secret) -> Iterable[str]:
        """All that it has been; for one of several parts, each part too."""
        if secret.text is not None:
            yield secret.text
            return
        of_parts = [list(self._known_of(part)) for part in secret.parts]
        if all(of_parts):
            yield "".join(texts[-1] for texts in of_parts)
        for part, texts in zip(secret.parts, of_parts, strict=True):
            if isinstance(part, Reference):
                yield from texts

    def _known_of(self, part: str | Reference) -> Iterable[str]:
        """The last one is that of now."""
        if isinstance(part, str):
            yield part
            return
        held = self._held.get((part.kept, part.name), _Held())
        for text in (*held.earlier, held.text):
            if text is not None:
                try:
                    yield _member(part, text)
                except UnresolvedReference:
                    continue


def _member(reference: Reference, text: str) -> str:
    """The text, or the member of it that a reference names."""
    if reference.key is None:
        return text
    whole = Reference(reference.kept, reference.name)
    try:
        found: Any = json.decode(text.encode())
    except ParseError:
        found = None
    if not isinstance(found, dict):
        raise UnresolvedReference(
            f"{whole} is no JSON object", f"leave out #{reference.key}, or store an object"
        )
    match found.get(reference.key):
        case str(value):
            return value
        case int() | float() as number if not isinstance(number, bool):
            return json.encode(number).decode()
    raise UnresolvedReference(
        f"{whole} has no text at {reference.key!r}", "correct the name after #"
    )
