"""The texts of secrets, read when they are needed and again when they may have changed.

    file                          read when the file has changed
    Secrets Manager, Parameters   read after REFRESH_MS, or after AGAIN_MS if a service refuses the text

Concurrent callers share one read. If a later read fails, the earlier text stays in use. Texts stay
in this process and appear in no log. boto3 is imported at the first read from AWS.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct, field
from pydantic import BaseModel

from roundgate import json
from roundgate.aio import Flight
from roundgate.clock import Clock
from roundgate.errors import (
    BackendError,
    ConfigError,
    ParseError,
    Problem,
    Unavailable,
    UnresolvedReference,
)
from roundgate.settings import Origin, Reference, Secret, read_file, settings_of
from roundgate.settings.files import Stamp, stamp
from roundgate.settings.references import STORES_AT_AWS, StoreAtAws

if TYPE_CHECKING:  # loaded only if a secret is at AWS
    from roundgate.aws import Aws

REFRESH_MS: Final = 300_000
"""The age at which texts from AWS are read again, in milliseconds."""
AGAIN_MS: Final = 10_000
"""The minimum age at which a refused text is read again, and the pause after a failed read, in
milliseconds."""
_EARLIER: Final = 4
"""The number of earlier texts of a reference that are still redacted."""
_REGION: Final = re.compile(r"arn:[a-z-]+:[a-z]+:([a-z0-9-]+):")

log = logging.getLogger("roundgate.backends")


class SecretStore(Protocol):
    """A store of named secrets."""

    async def read(self, name: str) -> str:
        """Return the current text of a secret by its name.

        Raises:
            UnresolvedReference: the text is missing, must not be read, or cannot be reached.
        """

    async def aclose(self) -> None: ...


class SecretFiles:
    """The file system as a `SecretStore`."""

    async def read(self, name: str) -> str:
        """Return the text of a file without line breaks at its end; raise UnresolvedReference as
        `SecretStore.read` does."""
        return read_file(Path(name), name)

    async def aclose(self) -> None: ...


class AtAws:
    """An AWS service as a `SecretStore`, with a client for each region that an ARN names and for
    the environment's region."""

    def __init__(self, store: StoreAtAws) -> None:
        self._store = store
        self._regions: dict[str | None, Aws] = {}

    async def read(self, name: str) -> str:
        """Return the text with a name or ARN; raise as `SecretStore.read`."""
        region, store = _REGION.match(name), self._store
        service = self._service(region[1] if region else None)
        try:
            return store.text(await service.call(store.operation, **store.arguments(name)))
        except ConfigError as error:
            problem = error.problems[0]
            raise UnresolvedReference(
                f"{name}: {problem.path} {problem.message}", problem.remedy
            ) from None
        except Unavailable as error:
            remedy = "the gateway tries again; check the network if the problem stays"
            raise UnresolvedReference(f"{name}: {error}", remedy) from None
        except KeyError:
            raise UnresolvedReference(f"{name} is binary", "store it as a string") from None
        except Exception as error:  # boto3 makes most of its exception classes at run time
            raise self._refused(name, error) from None

    async def aclose(self) -> None:
        for client in self._regions.values():
            await client.aclose()

    def _service(self, region: str | None) -> Aws:
        from roundgate import aws

        if region not in self._regions:
            make = partial(aws.client, self._store.service, region=region)
            self._regions[region] = aws.Aws(make, self._store.title)
        return self._regions[region]

    def _refused(self, name: str, error: Exception) -> UnresolvedReference:
        code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
        place = f"{name} of {self._store.title}"
        if code in ("ResourceNotFoundException", "ParameterNotFound"):
            remedy = "correct its name, or the region, or create it"
            return UnresolvedReference(f"{name} is not in {self._store.title}", remedy)
        if "AccessDenied" in code or code == "403":
            action = self._store.action
            remedy = f"allow {action} on it, and kms:Decrypt if you manage its key"
            return UnresolvedReference(f"{place} may not be read", remedy)
        if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
            remedy = "give the process a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            message = f"{place} needs AWS credentials, and there are none"
            return UnresolvedReference(message, remedy)
        message = f"{place} cannot be read ({code or type(error).__name__})"
        return UnresolvedReference(
            message, "check its name, the region, and the role's permissions"
        )


class _Held(Struct):
    """The texts of one reference, and the outcome of the last read."""

    text: str | None = None
    read_ms: float = -math.inf
    tried_ms: float = -math.inf
    problem: UnresolvedReference | None = None
    stamp: Stamp = None
    earlier: deque[str] = field(default_factory=lambda: deque(maxlen=_EARLIER))
    reading: Flight[None] = field(default_factory=Flight)


class SecretTexts:
    """The texts of secrets, shared by all back ends."""

    def __init__(
        self, clock: Clock | None = None, at: Mapping[str, SecretStore] | None = None
    ) -> None:
        self._clock = clock or Clock()
        stores = {name: AtAws(store) for name, store in STORES_AT_AWS.items()}
        self._stores: Mapping[str, SecretStore] = (
            {**stores, "file": SecretFiles()} if at is None else at
        )
        self._held: dict[tuple[str, str], _Held] = {}

    async def aclose(self) -> None:
        for store in self._stores.values():
            await store.aclose()

    async def text(self, secret: Secret) -> str:
        """Return the current text of a secret.

        Raises:
            BackendError: the text cannot be read. Only the log gives the reason.
        """
        try:
            return await self._text(secret, REFRESH_MS)
        except UnresolvedReference as error:
            log.error("a secret cannot be read", extra={"fields": {"why": str(error)}})
            raise BackendError(
                "The gateway cannot read its credential for the service just now; try again later"
            ) from None

    async def other_than(self, secret: Secret, refused: str) -> str | None:
        """Return a text of the secret other than `refused`, the text that a service has refused, or
        `None`. If the current text is `refused`, read it again from AWS unless it is younger than
        `AGAIN_MS`."""
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
        """Return the texts that have been read, including earlier ones, for redaction."""
        return frozenset(text for secret in secrets for text in self._known(secret) if text)

    async def problems(self, settings: BaseModel, origin: Origin) -> list[Problem]:
        """Read every secret of a back end's settings; return a problem for each that cannot be
        read."""
        problems = [
            (loc, setting)
            for loc, setting in settings_of(settings)
            if isinstance(setting, Secret) and setting.references
        ]
        read = await asyncio.gather(
            *(self._problem(setting, origin.at(*loc)) for loc, setting in problems)
        )
        return [problem for problem in read if problem is not None]

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
        if reference.kept == "file":
            return held.text is None or stamp(Path(reference.name)) != held.stamp
        has_failed = held.problem is not None
        if has_failed and now_ms - held.tried_ms < AGAIN_MS:
            return False
        return has_failed or now_ms - held.read_ms >= max_age_ms

    async def _renew(self, held: _Held, reference: Reference) -> None:
        file_stamp = stamp(Path(reference.name)) if reference.kept == "file" else None
        try:
            text = (await self._stores[reference.kept].read(reference.name)).rstrip("\r\n")
        except UnresolvedReference as error:
            held.problem = error
            if held.text is not None:
                log.warning(
                    "a secret could not be read again; the last value is used",
                    extra={"fields": {"why": str(error)}},
                )
        else:
            if held.text is not None and held.text != text:
                held.earlier.append(held.text)
                where = Reference(reference.kept, reference.name)
                log.info("a secret has changed", extra={"fields": {"secret": str(where)}})
            held.text, held.problem, held.read_ms = text, None, self._clock.monotonic_ms()
        held.stamp = file_stamp
        held.tried_ms = self._clock.monotonic_ms()

    def _known(self, secret: Secret) -> Iterable[str]:
        """Yield the whole current text, and all known texts of each reference in the secret."""
        if secret.text is not None:
            yield secret.text
            return
        of_parts = [list(self._known_texts(part)) for part in secret.parts]
        if all(of_parts):
            yield "".join(texts[-1] for texts in of_parts)
        for part, texts in zip(secret.parts, of_parts, strict=True):
            if isinstance(part, Reference):
                yield from texts

    def _known_texts(self, part: str | Reference) -> Iterable[str]:
        """Yield the known texts of a part, the current text last."""
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
    """Return the text, or the member of its JSON object that the reference names.

    Raises:
        UnresolvedReference: the member is missing, or is neither text nor a number.
    """
    if reference.key is None:
        return text
    whole = Reference(reference.kept, reference.name)
    try:
        member: Any = json.decode(text.encode())
    except ParseError:
        member = None
    if not isinstance(member, dict):
        raise UnresolvedReference(
            f"{whole} is not a JSON object", f"leave out #{reference.key}, or store an object"
        )
    match member.get(reference.key):
        case str(value):
            return value
        case int() | float() as number if not isinstance(number, bool):
            return json.encode(number).decode()
    raise UnresolvedReference(
        f"{whole} has no text at {reference.key!r}", "correct the name after #"
    )
