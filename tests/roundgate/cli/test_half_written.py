"""A watched file that is read half-written takes no protection away (`serve --reload`)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roundgate.runtime.reload import CONFIRM_S
from tests.roundgate.cli.test_reload import connected, logged, names, save, until
from tests.support.asgi import Client
from tests.support.openapi import INTERNAL, LOOK_AND_PURGE
from tests.support.server import Server, running

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP on this system"
)

TOOLS = '''
from roundgate import tool

@tool
async def drop(account: int = 0) -> str:
    """Destroys something."""
    return f"dropped {account}"

@tool(read_only=True)
async def look() -> str:
    return "seen"
'''
TOP = "backends:\n  - kind: python\n    name: shop\n    path: tools.py\n"
BOTTOM = '    prefix: ""\n    approve: destructive\n'
LATER = "server:\n  version: '2'\n"
"""What is new in a save, so that a test sees when the whole of it is served."""
WOULD = "would change protection"
SHOP, DROP = "backends.shop", "tool drop of shop"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS)
    file = tmp_path / "gateway.yaml"
    file.write_text(TOP + BOTTOM)
    return file


@pytest.fixture
def watching(config: Path, environment: dict[str, str]) -> Iterator[Server]:
    with running(config, environment, "--reload") as server:
        yield server


def truncated_and_written(file: Path, first: str, rest: str) -> Iterator[None]:
    with file.open("w") as out:
        out.write(first)
        out.flush()
        yield
        out.write(rest)


def written_in_two_opens(file: Path, first: str, rest: str) -> Iterator[None]:
    file.write_text(first)
    yield
    with file.open("a") as out:
        out.write(rest)


def written_in_place(file: Path, first: str, rest: str) -> Iterator[None]:
    """The first half goes over the start of the file, and the file ends there."""
    with file.open("r+") as out:
        out.write(first)
        out.truncate()
        out.flush()
        yield
        out.write(rest)


def deleted_and_created(file: Path, first: str, rest: str) -> Iterator[None]:
    file.unlink()
    file.write_text(first)
    yield
    with file.open("a") as out:
        out.write(rest)


def renamed_over_by_a_half(file: Path, first: str, rest: str) -> Iterator[None]:
    """A tool that downloads, renames, and downloads again."""
    new = file.with_suffix(".new")
    new.write_text(first)
    new.replace(file)
    yield
    new.write_text(first + rest)
    new.replace(file)


def kept_as_a_backup(file: Path, first: str, rest: str) -> Iterator[None]:
    """An editor that moves the old file aside and writes the new one under its name."""
    file.rename(file.with_name(f"{file.name}~"))
    file.write_text(first)
    yield
    with file.open("a") as out:
        out.write(rest)


def swapped_by_a_link(file: Path, first: str, rest: str) -> Iterator[None]:
    """A ConfigMap: gateway.yaml → ..data/gateway.yaml, and ..data is a link that is replaced."""
    mount = file.parent
    for version, text in (("..one", first), ("..two", first + rest)):
        (mount / version).mkdir()
        (mount / version / file.name).write_text(text)
        (mount / version / "tools.py").write_text(TOOLS)
        (mount / "..new").symlink_to(version)
        (mount / "..new").replace(mount / "..data")
        if not file.is_symlink():
            (mount / "..link").symlink_to(f"..data/{file.name}")
            (mount / "..link").replace(file)
        if version == "..one":
            yield


WAYS: list[Callable[[Path, str, str], Iterator[None]]] = [
    truncated_and_written,
    written_in_two_opens,
    written_in_place,
    deleted_and_created,
    renamed_over_by_a_half,
    kept_as_a_backup,
    swapped_by_a_link,
]


@asynccontextmanager
async def written_to(file: Path) -> AsyncIterator[None]:
    """Touch the file so often within the block that no change of it is confirmed, and so seldom
    that it settles (`SETTLE_S`) between two touches."""

    async def touching() -> None:
        while True:
            os.utime(file)
            await asyncio.sleep(CONFIRM_S / 4)

    task = asyncio.create_task(touching())
    try:
        yield
    finally:
        task.cancel()


async def asks(mcp: Client) -> bool:
    """Whether a call of `drop` asks for an approval; without one it runs."""
    asked = {"name": "drop", "arguments": {}}
    answer = await mcp.post("tools/call", asked, clientCapabilities={"elicitation": {"form": {}}})
    return bool(answer.json()["result"]["resultType"] == "input_required")


async def version(mcp: Client) -> Any:
    return (await mcp.http.get("/healthz")).json()["version"]


@pytest.mark.parametrize("write", WAYS, ids=lambda way: way.__name__)
async def test_a_half_written_configuration_keeps_approvals_until_it_is_whole(
    watching: Server, config: Path, write: Callable[[Path, str, str], Iterator[None]]
) -> None:
    async with connected(watching) as mcp:
        assert await asks(mcp)
        halves = write(config, LATER + TOP, BOTTOM)
        next(halves)
        told, *_ = await logged(watching, 1, WOULD)
        assert f"{DROP}: approval is false; it was true" in told["changed"]
        async with written_to(config):
            assert await names(mcp) == ["drop", "look"]  # the prefix, too, is as it was
            assert await asks(mcp)
            list(halves)
        await until("2", lambda: version(mcp))
        assert await asks(mcp)
    assert not [line for line in watching.lines() if "changes protection" in line["msg"]]


async def test_a_back_end_that_is_written_in_three_parts_keeps_its_approvals(
    watching: Server, config: Path
) -> None:
    other_tools = TOOLS.replace("def drop", "def dismiss").replace("def look", "def list_all")
    save(config.with_name("other.py"), other_tools)
    other = "backends:\n  - {kind: python, name: other, path: other.py}\n"
    shop = TOP.removeprefix("backends:\n")
    async with connected(watching) as mcp:
        async with written_to(config):
            save(config, other)
            told, *_ = await logged(watching, 1, WOULD)
            assert told["changed"] == [f"{SHOP} is removed"]
            save(config, other + shop)
            await logged(watching, 2, WOULD)
            assert await asks(mcp)
            save(config, LATER + other + shop + BOTTOM)
        await until("2", lambda: version(mcp))
        assert await asks(mcp)
    assert not [line for line in watching.lines() if "changes protection" in line["msg"]]


async def test_protection_that_stays_changed_is_served_and_each_change_is_named(
    watching: Server, config: Path
) -> None:
    async with connected(watching) as mcp:
        save(config, TOP + '    prefix: ""\n')
        would, does = await logged(watching, 2, " protection")
        assert WOULD in would["msg"]
        assert (does["level"], does["msg"]) == (
            "warning",
            f"a change of {config} changes protection",
        )
        changed = [
            f"{SHOP}: approve has changed",
            f"{DROP}: approval is false; it was true",
            f"{DROP}: once is false; it was true",
        ]
        assert would["changed"] == does["changed"] == changed
        await logged(watching, 1, "reloaded /")
        assert not await asks(mcp)


async def test_after_sighup_too_it_is_served_after_a_second_look_and_each_change_is_named(
    config: Path, environment: dict[str, str]
) -> None:
    with running(config, environment) as server:
        async with connected(server) as mcp:
            save(config, TOP + '    prefix: ""\n')
            server.process.send_signal(signal.SIGHUP)
            would, does = await logged(server, 2, " protection")
            assert (WOULD in would["msg"], WOULD in does["msg"]) == (True, False)
            assert f"{DROP}: approval is false; it was true" in does["changed"]
            assert would["changed"] == does["changed"]
            await logged(server, 1, "reloaded /")
            assert not await asks(mcp)


async def test_a_second_sighup_is_a_second_look(config: Path, environment: dict[str, str]) -> None:
    with running(config, environment) as server:
        async with connected(server) as mcp, written_to(config):
            save(config, TOP + '    prefix: ""\n')
            server.process.send_signal(signal.SIGHUP)
            await logged(server, 1, WOULD)
            assert await asks(mcp)
            server.process.send_signal(signal.SIGHUP)
            await logged(server, 1, "changes protection")
            await logged(server, 1, "reloaded /")
            assert not await asks(mcp)


async def test_a_half_written_configuration_keeps_its_rules_after_sighup(
    config: Path, environment: dict[str, str]
) -> None:
    whole = TOP + '    prefix: ""\npolicy:\n  - deny: {tool: drop}\n  - allow: {}\n'
    save(config, whole)
    with running(config, environment) as server:
        async with connected(server) as mcp:
            assert await names(mcp) == ["look"]
            async with written_to(config):
                save(config, whole.replace("  - deny: {tool: drop}\n", ""))
                server.process.send_signal(signal.SIGHUP)
                told, *_ = await logged(server, 1, WOULD)
                assert told["changed"] == ["policy: policy has changed"]
                assert await names(mcp) == ["look"]
                save(config, LATER + whole)
            await until("2", lambda: version(mcp))
            assert await names(mcp) == ["look"]


async def test_a_change_of_no_protection_is_not_held_back(watching: Server, config: Path) -> None:
    async with connected(watching) as mcp:
        save(config, LATER + TOP + BOTTOM)
        await until("2", lambda: version(mcp))
    assert not [line for line in watching.lines() if " protection" in line["msg"]]


async def test_a_half_written_module_keeps_what_stands_below_the_cut(
    watching: Server, config: Path
) -> None:
    rules = config.with_name("rules.py")
    save(rules, LENIENT + STRICTER)
    save(config.with_name("tools.py"), TOOLS_WITH_RULES)
    await logged(watching, 1, "reloaded /")
    async with connected(watching) as mcp:
        assert await asks(mcp)
        save(rules, LENIENT)
        told, *_ = await logged(watching, 1, WOULD)
        assert f"{DROP}: approval is false; it was true" in told["changed"]
        async with written_to(rules):
            assert await asks(mcp)
            save(rules, LENIENT + STRICTER + "VERSION = 2\n")
        await logged(watching, 2, "reloaded /")
        assert await asks(mcp)


LENIENT = "HINTS = {'destructive': False}\n"
STRICTER = "HINTS['destructive'] = True\n"
TOOLS_WITH_RULES = """
from roundgate import tool
from rules import HINTS

@tool(**HINTS)
async def drop() -> str:
    return "dropped"
"""


async def test_a_half_written_document_lets_no_internal_operation_in(
    config: Path, environment: dict[str, str]
) -> None:
    document = config.with_name("shop.yaml")
    save(document, LOOK_AND_PURGE + INTERNAL)
    save(
        config,
        "backends:\n  - {kind: openapi, name: shop, prefix: '', document: shop.yaml,"
        " base_url: 'http://127.0.0.1:9', exclude: [{extension: x-internal}]}\n",
    )
    with running(config, environment, "--reload") as server:
        async with connected(server) as mcp:
            assert await names(mcp) == ["look"]
            save(document, LOOK_AND_PURGE)
            told, *_ = await logged(server, 1, WOULD)
            assert told["changed"] == ["tool purge of shop is served; it is new, or was left out"]
            async with written_to(document):
                assert await names(mcp) == ["look"]
                save(document, LOOK_AND_PURGE + INTERNAL + "      summary: Purge.\n")
            await logged(server, 1, "reloaded /")
            assert await names(mcp) == ["look"]
