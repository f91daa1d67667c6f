"""Where tokens are kept between processes: nowhere, or in the system's keyring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from roundgate.errors import ClientError

T = TypeVar("T")


class TokenStorage(Protocol):
    """Keeps one secret text for each key. Raises `ClientError` where it cannot."""

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
    """Keeps tokens in the keyring of the system, through the package `keyring`
    (`pip install roundgate[keyring]`)."""

    def __init__(self, service: str = "roundgate") -> None:
        try:
            import keyring
        except ImportError:
            raise ClientError(
                "Tokens are kept in the system's keyring by the package keyring: pip install "
                "'roundgate[keyring]'"
            ) from None
        self._keyring = keyring
        self._service = service

    @property
    def works(self) -> bool:
        """Whether there is a keyring on this machine. One that is there may still be locked."""
        from keyring.backends.fail import Keyring

        return not isinstance(self._keyring.get_keyring(), Keyring)

    async def load(self, key: str) -> str | None:
        return await self._done(lambda: self._keyring.get_password(self._service, key))

    async def save(self, key: str, secret: str) -> None:
        await self._done(lambda: self._keyring.set_password(self._service, key, secret))

    async def delete(self, key: str) -> None:
        if await self.load(key) is not None:
            await self._done(lambda: self._keyring.delete_password(self._service, key))

    async def _done(self, work: Callable[[], T]) -> T:
        """Do it in a thread: a keyring may ask its user first.

        Raises:
            ClientError: the keyring does not do it; without what it says, which may hold a secret.
        """
        if not self.works:
            raise ClientError(
                "No keyring works on this machine: leave out storage=SystemKeyring(), and tokens "
                "are kept for as long as the process lives; or name another with "
                "PYTHON_KEYRING_BACKEND"
            )
        try:
            return await asyncio.to_thread(work)
        except Exception as error:
            raise ClientError(
                f"The system's keyring does not work: {type(error).__name__}. Is it locked?"
            ) from None
