"""Where tokens are kept between processes: nowhere, or in the system's keyring."""

from __future__ import annotations

import asyncio
from typing import Protocol

from roundgate.errors import ClientError


class TokenStorage(Protocol):
    """Keeps one secret text for each key."""

    async def load(self, key: str) -> str | None: ...
    async def save(self, key: str, secret: str) -> None: ...
    async def delete(self, key: str) -> None: ...


class InMemory:
    """Keeps tokens for as long as this process lives."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}

    async def load(self, key: str) -> str | None:
        return self._kept.get(key)

    async def save(self, key: str, secret: str) -> None:
        self._kept[key] = secret

    async def delete(self, key: str) -> None:
        self._kept.pop(key, None)


class SystemKeyring:
    """Keeps tokens in the keyring of the system, through the package `keyring` (`pip install roundgate[keyring]`)."""

    def __init__(self, service: str = "roundgate") -> None:
        try:
            import keyring
        except ImportError:
            raise ClientError(
                "Tokens are kept in the system's keyring by the package keyring: pip install 'roundgate[keyring]'"
            ) from None
        self._keyring = keyring
        self._service = service

    async def load(self, key: str) -> str | None:
        return await asyncio.to_thread(self._keyring.get_password, self._service, key)

    async def save(self, key: str, secret: str) -> None:
        await asyncio.to_thread(self._keyring.set_password, self._service, key, secret)

    async def delete(self, key: str) -> None:
        if await self.load(key) is not None:
            await asyncio.to_thread(self._keyring.delete_password, self._service, key)
