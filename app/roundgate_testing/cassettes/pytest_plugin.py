"""The pytest fixture `cassette`: the first run of a test records a server, later runs replay it.

    async def test_refund(cassette):
        async with cassette.client("http://127.0.0.1:8000/mcp") as client:
            assert (await client.call("refund", order=7, answers={"go": True})).value == "Refunded"

The cassette is `cassettes/<file>/<test>.yaml` beside the test. `--cassettes` has three modes:

    once     record if there is no cassette, otherwise replay (the default)
    replay   replay; a test without a cassette fails (for CI)
    record   record again; `git diff` shows the changes of the server
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from roundgate.client import Client, Transport
    from roundgate_testing.cassettes.recorder import Recorder

MODES: Final = ("once", "replay", "record")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--cassettes`."""
    parser.getgroup("cassettes").addoption(
        "--cassettes",
        choices=MODES,
        default="once",
        help="how to use the fixture cassette: record, replay or once (default: record only without a file)",
    )


class CassetteOfTest:
    """The cassette of one test. Set `redact`, `ignore` and `secrets` before making a client."""

    def __init__(self, path: Path, mode: str) -> None:
        self.path = path
        self.redact: Sequence[str] = ()
        self.ignore: Sequence[str] = ()
        self.secrets: Mapping[str, str] = {}
        self._mode = mode
        self._recorder: Recorder | None = None
        if mode == "once":
            self._mode = "replay" if path.exists() else "record"

    @property
    def needs_server(self) -> bool:
        """Return whether the test calls the server."""
        return self._mode != "replay"

    def transport(self, url: str) -> Transport:
        """Return a transport that records the server, or replays its recording.

        Raises:
            RuntimeError: another client of the test already records.
        """
        from roundgate_testing.cassettes import Player, Recorder

        if not self.needs_server:
            if not self.path.exists():
                pytest.fail(
                    f"{self.path} does not exist: run the test with --cassettes=record, and commit "
                    "the file",
                    pytrace=False,
                )
            return Player(self.path)
        if self._recorder is not None:
            raise RuntimeError("a cassette holds one conversation: make one client for each test")
        self._recorder = Recorder(
            None, url, redact=self.redact, ignore=self.ignore, secrets=self.secrets
        )
        return self._recorder

    def client(self, url: str, **options: Any) -> Client:
        """Return a client of the server, or of its recording. `options` are options of `Client`."""
        from roundgate.client import Client

        return Client(url, transport=self.transport(url), **options)

    def finish(self) -> None:
        """Write the recording, if there is one."""
        from roundgate_testing.cassettes import write

        if self._recorder is not None:
            write(self._recorder.cassette, self.path)


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Iterator[CassetteOfTest]:
    """Yield the cassette of a test. It is written once the test has passed."""
    name = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
    path = request.path.parent / "cassettes" / request.path.stem / f"{name}.yaml"
    of_test = CassetteOfTest(path, request.config.getoption("--cassettes"))
    failures = request.session.testsfailed
    yield of_test
    if request.session.testsfailed == failures:
        of_test.finish()
