"""Tokens in the system's keyring: the next process has them, and nobody is left alone
where no keyring works."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import keyring
import pytest
from keyring.backends import fail

from roundgate.client import Client
from roundgate.client.auth import BrowserLogin, SystemKeyring
from roundgate.errors import ClientError
from tests.support.command import roundgate
from tests.support.file_keyring import FILE, FileKeyring
from tests.support.guarded import Guarded
from tests.support.scripted import scripted


@pytest.fixture
def file_keyring(tmp_path: Path) -> Iterator[FileKeyring]:
    before = keyring.get_keyring()
    ours = FileKeyring(tmp_path / "keyring.json")
    keyring.set_keyring(ours)
    yield ours
    keyring.set_keyring(before)


async def called(guarded: Guarded, url: str, storage: SystemKeyring | None) -> list[str]:
    """Where the user was sent to log in, during a call with a new login."""
    visited: list[str] = []

    async def visit(to: str) -> None:
        visited.append(to)
        await guarded.browser()(to)

    auth = BrowserLogin(open_url=visit, storage=storage)
    async with asyncio.timeout(60), Client(url, auth=auth) as client:
        assert (await client.call("t")).text == "secret things"
    return visited


async def test_the_next_process_has_the_tokens_until_they_are_forgotten(
    file_keyring: FileKeyring,
) -> None:
    guarded = Guarded(scope="read write")
    async with scripted(guarded) as server:
        guarded.origin = server.origin
        assert len(await called(guarded, server.url, SystemKeyring())) == 1
        assert await called(guarded, server.url, SystemKeyring()) == []
        await BrowserLogin(storage=SystemKeyring()).forget(server.url)
        await BrowserLogin(storage=SystemKeyring()).forget(
            server.url
        )  # nothing is there, nothing is wrong
        assert len(await called(guarded, server.url, SystemKeyring())) == 1


async def test_servers_and_services_do_not_see_each_others_tokens(
    file_keyring: FileKeyring,
) -> None:
    one, other = SystemKeyring(), SystemKeyring("another program")
    await one.save("https://a/", "first")
    await one.save("https://b/", "second")
    assert [await one.load("https://a/"), await one.load("https://b/")] == ["first", "second"]
    assert await other.load("https://a/") is None


async def test_what_is_kept_and_makes_no_sense_is_dropped(file_keyring: FileKeyring) -> None:
    guarded = Guarded(scope="read write")
    async with scripted(guarded) as server:
        guarded.origin = server.origin
        for odd in ("no JSON", "[1]", '{"of": "another version"}'):
            await SystemKeyring().save(server.url, odd)
            assert len(await called(guarded, server.url, SystemKeyring())) == 1


async def test_a_keyring_that_stays_locked_is_said_so_before_anything_is_sent(
    file_keyring: FileKeyring,
) -> None:
    file_keyring.is_locked = True
    guarded = Guarded()
    async with scripted(guarded) as server:
        with pytest.raises(ClientError, match=r"KeyringLocked.*unlock it") as caught:
            await called(guarded, server.url, SystemKeyring())
        assert server.asked == []
    assert "sesame" not in str(caught.value)


async def test_a_keyring_that_takes_no_more_costs_the_next_login_and_no_call(
    file_keyring: FileKeyring, caplog: pytest.LogCaptureFixture
) -> None:
    file_keyring.is_full = True
    guarded = Guarded(scope="read write")
    async with scripted(guarded) as server:
        guarded.origin = server.origin
        assert len(await called(guarded, server.url, SystemKeyring())) == 1
    assert "not stored for the next process" in caplog.text
    assert "token-1" not in caplog.text


async def test_where_no_keyring_works_it_is_said_what_to_do() -> None:
    before = keyring.get_keyring()
    keyring.set_keyring(fail.Keyring())  # type: ignore[no-untyped-call]
    try:
        storage = SystemKeyring()
        assert not storage.works
        with pytest.raises(ClientError, match="PYTHON_KEYRING_BACKEND"):
            await storage.load("https://a/")
    finally:
        keyring.set_keyring(before)


VISIT = "import sys, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(sys.argv[1])"


@pytest.mark.parametrize("works", [True, False])
async def test_a_login_of_the_command_line_is_kept_where_there_is_a_keyring(
    tmp_path: Path, works: bool
) -> None:
    visit = tmp_path / "visit.py"
    visit.write_text(VISIT)
    backend = "tests.support.file_keyring.FileKeyring" if works else "keyring.backends.fail.Keyring"
    environment: dict[str, Any] = {
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "PYTHON_KEYRING_BACKEND": backend,
        FILE: str(tmp_path / "keyring.json"),
        "BROWSER": f"'{sys.executable}' '{visit}' %s",
    }
    guarded = Guarded(scope="read write")
    async with scripted(guarded) as server:
        guarded.origin = server.origin
        command = ("call", server.url, "t", "--login")
        for _ in range(2 if works else 1):
            ran = await asyncio.to_thread(partial(roundgate, *command, **environment))
            assert (ran.status, ran.out) == (0, "secret things\n"), ran.err
            assert ("for this command only" in ran.err) is not works
            assert len(guarded.registrations) == 1
    if works:
        assert len(json.loads((tmp_path / "keyring.json").read_text())) == 1
