"""A keyring in a file, chosen as any other is: by PYTHON_KEYRING_BACKEND, or
`keyring.set_keyring`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError

FILE = "TEST_KEYRING_FILE"


class FileKeyring(KeyringBackend):
    """Not for secrets. `is_locked` is a user who does not unlock it, `is_full` one that takes no more."""

    priority = 0.5
    """Below 1: never chosen unless it is named."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = path
        self.is_locked = self.is_full = False

    @property
    def _path(self) -> Path:
        return self._given or Path(os.environ[FILE])

    def _read(self) -> dict[str, str]:
        if self.is_locked:
            raise KeyringLocked("the user said no to sesame")
        found: dict[str, str] = json.loads(self._path.read_text()) if self._path.exists() else {}
        return found

    def get_password(self, service: str, username: str) -> str | None:
        return self._read().get(f"{service} {username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        if self.is_full:
            raise OSError(f"no room for {password}")
        self._path.write_text(json.dumps(self._read() | {f"{service} {username}": password}))

    def delete_password(self, service: str, username: str) -> None:
        kept = self._read()
        if kept.pop(f"{service} {username}", None) is None:
            raise PasswordDeleteError("not there")
        self._path.write_text(json.dumps(kept))
