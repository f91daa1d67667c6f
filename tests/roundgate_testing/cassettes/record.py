"""Records the conversations anew, after a change that is meant: `python -m
tests.roundgate_testing.cassettes.record`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from roundgate_testing.cassettes import Recorder
from tests.roundgate_testing.cassettes.conftest import HERE, desk
from tests.roundgate_testing.cassettes.conversations import ALL, held


async def record(url: str) -> None:
    """Hold each conversation, and keep it."""
    for name in ALL:
        print(name, await held(name, url, Recorder(HERE / "recorded" / f"{name}.yaml", url)))


if __name__ == "__main__":
    with TemporaryDirectory() as folder, desk(Path(folder)) as url:
        asyncio.run(record(url))
