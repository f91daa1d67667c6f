"""Gateways in processes of their own, and the file in which the effects of
their tools can be counted."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.rounds import KEYS
from tests.support.server import Server, running

SERVED = Path(__file__).parent / "served"


class Effects:
    """What tools did, in which process."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def clear(self) -> None:
        self.file.write_text("")

    def __call__(self) -> list[str]:
        """What happened, in order."""
        return [what for _, what in self._lines()]

    def wait(self, timeout_s: float = 60) -> None:
        """Until something has happened."""
        until = time.monotonic() + timeout_s
        while not self():
            assert time.monotonic() < until, "nothing happened"
            time.sleep(0.02)

    def processes(self) -> list[int]:
        """Where it happened."""
        return [int(process) for process, _ in self._lines()]

    def _lines(self) -> list[tuple[str, ...]]:
        return [tuple(line.split(" ", 1)) for line in self.file.read_text().splitlines()]


Start: TypeAlias = Callable[..., Sequence[Server]]


@pytest.fixture(scope="module")
def all_effects(tmp_path_factory: pytest.TempPathFactory) -> Effects:
    return Effects(tmp_path_factory.mktemp("effects") / "effects.txt")


@pytest.fixture
def effects(all_effects: Effects, monkeypatch: pytest.MonkeyPatch) -> Effects:
    """Empty, and known to tools in this process too."""
    all_effects.clear()
    monkeypatch.setenv("EFFECTS", str(all_effects.file))
    return all_effects


@pytest.fixture(scope="module")
def start(all_effects: Effects, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start gateways, each from a directory of its own; without `store` each has a store of its own, too."""
    with ExitStack() as stack, ThreadPoolExecutor(8) as pool:

        def one(
            directory: Path, store: Path | None, limits: str, environment: dict[str, str]
        ) -> Server:
            shutil.copytree(SERVED, directory, dirs_exist_ok=True)
            config = directory / "gateway.yaml"
            config.write_text(f"{config.read_text()}limits: {limits}\n")
            given = {"EFFECTS": str(all_effects.file), "GATEWAY_STATE_KEYS": KEYS}
            given["GATEWAY_STORE"] = f"sqlite:///{store or directory / 'gateway.sqlite3'}"
            return stack.enter_context(running(config, given | environment))

        def several(
            count: int = 1, *, store: Path | None = None, limits: str = "{}", **environment: str
        ) -> list[Server]:
            directories = [tmp_path_factory.mktemp("replica") for _ in range(count)]
            return list(
                pool.map(lambda directory: one(directory, store, limits, environment), directories)
            )

        yield several
