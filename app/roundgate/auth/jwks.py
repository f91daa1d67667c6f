"""The public keys of an issuer, cached (RFC 7517).

Stale keys stay in use while the issuer is unreachable. The gateway asks the issuer at most once per
`RETRY_MS`, whatever `kid` callers send; after a failure, a missing key is looked for every
`AGAIN_MS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from jwt import PyJWK

from roundgate import json
from roundgate.clock import Clock
from roundgate.errors import Inside

log = logging.getLogger("roundgate.auth")

Fetch: TypeAlias = Callable[[str], Awaitable[bytes]]

FRESH_MS: Final = 3_600_000
RETRY_MS: Final = 30_000
AGAIN_MS: Final = 3_000
MAX_BYTES: Final = 512_000
TIMEOUT_S: Final = 5


class KeysUnavailable(Inside):
    """The issuer's keys have never been read, or lack a key and cannot be read again, so a caller
    cannot be verified."""


@dataclass(slots=True)
class KeySet:
    """The keys at one JWKS URL. `fetch` reads a URL, by default with httpx."""

    url: str
    clock: Clock
    fetch: Fetch = field(default_factory=lambda: fetch)
    timeout_s: float = TIMEOUT_S
    trouble: str | None = None
    """The reason why the last read failed; `None` if it succeeded."""
    _keys: Mapping[str, PyJWK] = field(default_factory=dict)
    _read_ms: float | None = None
    _asked_ms: float | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def key(self, kid: str) -> PyJWK | None:
        """Return the key with an id, or `None` if the issuer has none.

        Raises:
            KeysUnavailable: the keys have never been read, or the last read failed, so the issuer
                may have the key.
        """
        is_due = self.trouble is not None or self._age_ms(self._read_ms) > FRESH_MS
        if kid not in self._keys:
            await self._refresh(RETRY_MS if self.trouble is None else AGAIN_MS)
        elif is_due and not self._lock.locked():  # others use the known keys meanwhile
            await self._refresh(RETRY_MS)
        key = self._keys.get(kid)
        if self._read_ms is None or (key is None and self.trouble is not None):
            raise KeysUnavailable
        return key

    async def are_read(self) -> bool:
        """Return whether the keys have been read, now or earlier."""
        if self._read_ms is None:
            await self._refresh(AGAIN_MS)
        return self._read_ms is not None

    async def _refresh(self, pause_ms: float) -> None:
        """Read the keys unless a read ended less than `pause_ms` ago."""
        async with self._lock:
            if self._age_ms(self._asked_ms) < pause_ms:
                return  # another call asked recently
            try:
                # httpx's timeout applies to each read, and a server could send single bytes
                async with asyncio.timeout(self.timeout_s):
                    self._keys = _parse(await self.fetch(self.url))
                self._read_ms, self.trouble = self.clock.monotonic_ms(), None
            except Exception as error:  # on any error the earlier keys stay in use
                reason = str(error)[:200] or type(error).__name__
                self.trouble = f"The issuer's keys cannot be read from {self.url}: {reason}"
                log.warning(
                    "JWKS could not be read", extra={"fields": {"url": self.url, "reason": reason}}
                )
            finally:
                self._asked_ms = self.clock.monotonic_ms()

    def _age_ms(self, since_ms: float | None) -> float:
        return float("inf") if since_ms is None else self.clock.monotonic_ms() - since_ms


def _parse(document: bytes) -> dict[str, PyJWK]:
    keys: dict[str, PyJWK] = {}
    entries: list[Any] = json.decode(document)["keys"]
    for entry in entries:
        try:
            # skip secrets and encryption keys
            if entry["kty"] != "oct" and entry.get("use", "sig") == "sig":
                keys[entry["kid"]] = PyJWK(entry)
        except Exception:  # noqa: S112  an unusable key must not invalidate the others
            continue
    if not keys:
        raise ValueError("the document has no usable key")
    return keys


async def fetch(url: str) -> bytes:
    """Return the content of a URL, with `TIMEOUT_S` for each read and at most `MAX_BYTES`.

    Raises:
        ValueError: the document is too large or compressed.
        httpx.HTTPError: the document cannot be read.
    """
    from roundgate.net.http import make_client

    client = make_client(timeout_s=TIMEOUT_S, headers={"accept-encoding": "identity"})
    async with client, client.stream("GET", url) as response:
        response.raise_for_status()
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ValueError("the document is compressed, but compression was not requested")
        body = b""
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_BYTES:
                raise ValueError(f"the document is larger than {MAX_BYTES} bytes")
        return body
