"""What is served is swapped while calls run: they end on what they began with,
and then it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from roundgate.backends.base import Offering, Prompt, Resource, Tool
from roundgate.backends.serving import Serving, Snapshot
from tests.support.catalogs import built


async def nothing(*_: object) -> None:
    """What stands behind everything here."""


class Closing:
    """A back end that knows whether it has been closed."""

    def __init__(self, name: str, *tools: Tool, trouble: bool = False) -> None:
        self.name, self.prefix = name, ""
        self.is_closed = asyncio.Event()
        self._tools = tools
        self._trouble = trouble

    async def offer(self) -> Offering:
        await asyncio.sleep(0)  # it may wait
        return Offering(self._tools)

    async def aclose(self) -> None:
        self.is_closed.set()
        if self._trouble:
            raise RuntimeError("will not close")


def tool(name: str, **more: object) -> Tool:
    return Tool({"name": name, "inputSchema": {"type": "object"}, **more}, nothing)  # type: ignore[arg-type]


async def snapshot(*backends: Closing) -> Snapshot:
    return Snapshot(await built(backends), backends)


async def test_a_call_keeps_what_it_began_with_open_to_its_end() -> None:
    old, new = Closing("old", tool("a")), Closing("new", tool("b"))
    serving = Serving(await snapshot(old))
    with serving.use() as catalog_of_first, serving.use() as catalog_of_second:
        serving.swap(await snapshot(new))
        await asyncio.sleep(0.01)
        assert list(serving.catalog.tools) == ["b"]
        assert list(catalog_of_first.tools) == list(catalog_of_second.tools) == ["a"]
        assert not old.is_closed.is_set()
    await asyncio.wait_for(old.is_closed.wait(), 60)
    assert not new.is_closed.is_set()
    await serving.aclose()
    assert new.is_closed.is_set()


async def test_what_nobody_uses_is_closed_at_once() -> None:
    backends = [Closing(str(number)) for number in range(4)]
    serving = Serving(await snapshot(backends[0]))
    for backend in backends[1:]:
        serving.swap(await snapshot(backend))
    async with asyncio.timeout(60):
        for backend in backends[:-1]:
            await backend.is_closed.wait()
    assert [backend.is_closed.is_set() for backend in backends] == [True, True, True, False]


async def test_a_shared_back_end_is_closed_although_two_snapshots_close_at_a_time() -> None:
    is_let_go = asyncio.Event()

    class Slow(Closing):
        async def aclose(self) -> None:
            await is_let_go.wait()
            await super().aclose()

    shared, slow = Closing("shared"), Slow("slow")
    serving = Serving(await snapshot(shared, slow))
    serving.swap(await snapshot(shared))
    await asyncio.sleep(0.01)
    assert not shared.is_closed.is_set()
    serving.swap(await snapshot(Closing("new")))
    await asyncio.sleep(0.01)
    is_let_go.set()
    async with asyncio.timeout(60):
        await slow.is_closed.wait()
        await shared.is_closed.wait()


async def test_at_the_end_everything_is_closed_whoever_uses_it() -> None:
    backends = [Closing(str(number)) for number in range(3)]
    serving = Serving(await snapshot(backends[0]))
    with serving.use():
        serving.swap(await snapshot(backends[1]))
        with serving.use():
            serving.swap(await snapshot(backends[2]))
            await serving.aclose()
    assert all(backend.is_closed.is_set() for backend in backends)


async def test_the_trouble_of_one_back_end_keeps_no_other_open() -> None:
    first, second = Closing("first", trouble=True), Closing("second")
    serving = Serving(await snapshot(first, second))
    await serving.aclose()
    assert second.is_closed.is_set()


async def test_back_ends_are_asked_all_at_once_and_may_be_asked_again() -> None:
    meeting = asyncio.Barrier(3)

    class Waiting(Closing):
        async def offer(self) -> Offering:
            await asyncio.wait_for(meeting.wait(), 60)
            return await super().offer()

    backends = [Waiting(name, tool(name)) for name in ("a", "b", "c")]
    for _ in range(2):
        assert list((await built(backends)).tools) == ["a", "b", "c"]


async def differing(before: Sequence[object], after: Sequence[object]) -> set[str]:
    """The lists that differ between two catalogs."""

    class Offering_(Closing):
        def __init__(self, offered: Sequence[object]) -> None:
            super().__init__("one")
            self._all = offered

        async def offer(self) -> Offering:
            kinds = [
                [one for one in self._all if isinstance(one, kind)]
                for kind in (Tool, Prompt, Resource)
            ]
            return Offering(*kinds)  # type: ignore[arg-type]

    one, other = [await built([Offering_(offered)]) for offered in (before, after)]
    assert one.lists_that_differ(other) == other.lists_that_differ(one)
    return set(one.lists_that_differ(other))


async def test_only_lists_that_a_client_sees_otherwise_differ() -> None:
    prompt = Prompt({"name": "p"}, nothing)  # type: ignore[arg-type]
    page = Resource({"uri": "r:s", "name": "r"}, nothing)  # type: ignore[arg-type]
    pages = Resource({"uriTemplate": "r:{t}", "name": "r"}, nothing)  # type: ignore[arg-type]
    everything = [tool("a"), tool("b"), prompt, page, pages]
    assert await differing(everything, everything) == set()
    assert await differing(everything, [tool("a"), tool("b"), prompt, page, pages]) == set()
    assert await differing(everything, [tool("b"), tool("a"), prompt, page, pages]) == {"tools"}
    assert await differing(everything, [tool("a", title="A"), tool("b"), prompt, page, pages]) == {
        "tools"
    }
    assert await differing(
        everything, [replace(tool("a"), scopes=frozenset("s")), *everything[1:]]
    ) == {"tools"}
    assert await differing(everything, [*everything[:2], page, pages]) == {"prompts"}
    assert await differing(everything, [*everything[:4]]) == {"resources"}
    assert await differing(everything, []) == {"tools", "prompts", "resources"}
