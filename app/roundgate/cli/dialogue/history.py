"""Lines that were typed into the shell, kept for the next time: a file that only its owner can
read.

Lines that begin with a blank are not kept. What is secret, the shell keeps out; answers to
questions never come here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from prompt_toolkit.history import History

MAX_LINES: Final = 2_000
_MAX_BYTES: Final = 1024 * 1024
_MODE: Final = 0o600


def default_path(environ: os._Environ[str] = os.environ) -> Path:
    """Where the history is: below `XDG_STATE_HOME`, or `~/.local/state`."""
    state = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "roundgate" / "history"


class FileHistory(History):
    """One line of JSON for each line that was typed. A file that cannot be written is
    no reason not to go on."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """Those of earlier times, the newest first."""
        return list(reversed(self._lines()))

    def store_string(self, string: str) -> None:
        """Nothing: a prompt stores what it reads before anybody can look at it. `keep` writes."""

    def keep(self, line: str) -> None:
        """Write a line behind the others."""
        if not line.strip() or line[:1].isspace():
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            with os.fdopen(os.open(self._path, flags, _MODE), "a", encoding="utf-8") as file:
                os.fchmod(file.fileno(), _MODE)
                file.write(f"{json.dumps(line)}\n")
                is_long = file.tell() > _MAX_BYTES
            if is_long:
                self._shorten()

    def _lines(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(file.tell() - 2 * _MAX_BYTES, 0))
                written = file.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        found: list[str] = []
        for line in written[-MAX_LINES:]:
            with suppress(ValueError):  # half a line, or one of somebody else
                if isinstance(text := json.loads(line), str):
                    found.append(text)
        return found

    def _shorten(self) -> None:
        kept = self._lines()[-MAX_LINES // 2 :]
        shorter = self._path.with_suffix(".new")
        with os.fdopen(os.open(shorter, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE), "w") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in kept)
        shorter.replace(self._path)
