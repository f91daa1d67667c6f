"""A rotation in three stages while rounds are in flight all the time: replicas restart
one by one, none is lost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from roundgate import Context, tool
from roundgate.cli import main
from roundgate.errors import UsageError
from roundgate.settings.process import Settings
from roundgate.tokens import keys
from tests.support.asgi import Client, built, client, config_file
from tests.support.clocks import SkippingClock

FORM = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
LIFETIME_S = 3_600
REPLICAS = 3


@tool
async def total(ctx: Context, start: int) -> int:
    """Adds what it is told in three more rounds."""
    told = [await ctx.elicit(f"n{number}", f"{number}?", FORM) for number in range(3)]
    return start + sum(int(one["n"]) for one in told)


class Fleet:
    """Replicas behind a balancer that sends every request to the next."""

    def __init__(self, store: Path) -> None:
        self._store = f"sqlite:///{store}"
        self._stack = AsyncExitStack()
        self._turn = count()
        self._clock = SkippingClock()
        self.replicas: list[Client] = []
        self.finished = 0
        self.lost: list[dict[str, Any]] = []

    async def _start(self, ring: Sequence[str]) -> Client:
        app = built(
            config_file(total, state={"lifetime_s": LIFETIME_S}),
            Settings(state_keys=",".join(ring), store=self._store),
            clock=self._clock,
        )
        return await self._stack.enter_async_context(client(app))

    async def restart(self, ring: Sequence[str], progress: int = 20) -> None:
        """Each replica in turn gets the ring; between two of them calls go on."""
        for place in range(REPLICAS):
            self.replicas[place : place + 1] = [await self._start(ring)]
            await self.more(progress)

    async def more(self, calls: int) -> None:
        """Wait until so many calls more have come to an end."""
        until = self.finished + len(self.lost) + calls
        while self.finished + len(self.lost) < until:  # noqa: ASYNC110  busy as the load itself
            await asyncio.sleep(0)

    async def outlive_a_state(self) -> None:
        """Let the lifetime of a state pass, in parts, so that each call goes on in time."""
        for _ in range(5):
            self._clock.skip(LIFETIME_S / 4)
            await self.more(12)

    async def call(self, start: int) -> None:
        """One call through all its rounds, each to another replica."""
        params: dict[str, Any] = {"name": "total", "arguments": {"start": start}}
        while True:
            mcp = self.replicas[next(self._turn) % len(self.replicas)]
            body = (
                await mcp.post(
                    "tools/call", params, clientCapabilities={"elicitation": {"form": {}}}
                )
            ).json()
            result = body.get("result", {})
            if result.get("resultType") != "input_required":
                break
            answer = {
                key: {"action": "accept", "content": {"n": 10}} for key in result["inputRequests"]
            }
            params = {**params, "requestState": result["requestState"], "inputResponses": answer}
        if result.get("structuredContent") == start + 30:
            self.finished += 1
        else:
            self.lost.append(body)

    @asynccontextmanager
    async def under_load(self, ring: Sequence[str], clients: int = 6) -> AsyncIterator[None]:
        """Clients call without a pause until the block ends."""
        stopping = False

        async def work(first: int) -> None:
            for start in count(first, clients):
                if stopping:
                    return
                await self.call(start)

        async with self._stack:
            self.replicas = [await self._start(ring) for _ in range(REPLICAS)]
            working = [asyncio.create_task(work(first)) for first in range(clients)]
            await self.more(clients)
            yield
            stopping = True
            await asyncio.gather(*working)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "store")


async def test_no_round_is_lost_while_the_keys_are_rotated(fleet: Fleet) -> None:
    old = [keys.new_key()]
    both = keys.rotate(old, 1)
    new_id = ids(both)[-1]
    swapped = keys.rotate(both, 2, new_id)
    new = keys.rotate(swapped, 3, new_id)
    async with fleet.under_load(old):
        await fleet.restart(both)
        await fleet.restart(swapped)
        await fleet.outlive_a_state()
        await fleet.restart(new)
    print(f"{fleet.finished} calls of 4 rounds each came to their end")
    assert fleet.lost == []
    assert fleet.finished >= 3 * REPLICAS * 20
    assert new != old
    assert len(new) == 1


async def test_a_rotation_that_leaves_a_stage_out_does_lose_rounds(fleet: Fleet) -> None:
    async with fleet.under_load([keys.new_key()]):
        await fleet.restart([keys.new_key()], progress=5)
    assert fleet.lost, "or the test above could not fail"
    assert {body["error"]["code"] for body in fleet.lost} == {-32602}


def ids(ring: list[str]) -> list[str]:
    """The ids of the keys of a ring."""
    return [key.id for key in keys.parse(",".join(ring), "the test")]


def test_the_stages_are_add_swap_and_drop_and_may_be_repeated() -> None:
    old = keys.new_key()
    both = keys.rotate([old], 1)
    assert both[0] == old
    new, new_id = both[1], ids(both)[1]
    swapped = keys.rotate(both, 2, new_id)
    assert swapped == [new, old] == keys.rotate(swapped, 2, new_id)
    only = keys.rotate(swapped, 3, new_id)
    assert only == [new] == keys.rotate(only, 3, new_id) == keys.rotate(only, 2, new_id)


def test_a_stage_out_of_turn_is_refused_and_says_which_keys_there_are() -> None:
    both = keys.rotate([keys.new_key()], 1)
    old_id, new_id = ids(both)
    shown = f"the ring has {old_id}, {new_id}, and {old_id} seals"
    for stage, key, reason in (
        (1, None, "a rotation has begun"),
        (2, None, "the id of the new key"),
        (3, None, "the id of the new key"),
        (2, "unknown", "the id of the new key"),
        (3, new_id, "does not seal yet"),
    ):
        with pytest.raises(UsageError, match=reason) as refused:
            keys.rotate(both, stage, key)
        assert shown in str(refused.value)


def _printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["keys", *arguments]) == 0
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize("variable", ["GATEWAY_STATE_KEYS", "GATEWAY_STATE_KEYS_FILE"])
def test_the_command_prints_a_ring_for_each_stage(
    variable: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_STATE_KEYS", keys.new_key())  # the file takes precedence
    rings = [_printed(capsys, "new")]
    new_key: list[str] = []
    for stage in ("1", "2", "3"):
        (tmp_path / "ring").write_text(rings[-1])
        is_file = variable.endswith("_FILE")
        monkeypatch.setenv(variable, str(tmp_path / "ring") if is_file else rings[-1])
        assert main(["keys", "rotate", "--stage", stage, *new_key]) == 0
        printed = capsys.readouterr()
        rings.append(printed.out.strip())
        new_key = new_key or re.findall(r"--key=[\w-]+", printed.err)
    old, new = rings[0], rings[3]
    assert rings == [old, f"{old},{new}", f"{new},{old}", new]
    assert [len(keys.parse(ring, "test")) for ring in rings] == [1, 2, 2, 1]


@pytest.mark.parametrize(
    ("ring", "stage", "complaint"),
    [
        ("", "1", "set GATEWAY_STATE_KEYS"),
        (keys.new_key(), "2", "needs --key=ID"),
        (keys.new_key(), "3", "needs --key=ID"),
    ],
    ids=["no ring", "nothing to swap", "nothing to drop"],
)
def test_the_command_says_what_it_needs(
    ring: str,
    stage: str,
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_STATE_KEYS", ring)
    assert main(["keys", "rotate", "--stage", stage]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.out == ""


def test_the_command_names_a_bad_key_by_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_STATE_KEYS", f"{keys.new_key()},c2hvcnQ=")
    assert main(["keys", "rotate", "--stage", "1"]) == 1
    captured = capsys.readouterr()
    assert "GATEWAY_STATE_KEYS: key 2: a state key has 32 bytes, not 5" in captured.err
    assert "c2hvcnQ" not in captured.err
