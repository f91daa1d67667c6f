"""What lies between processes and what they share: one database, one queue, and a
network that loses answers.

A request that was sent is performed, whatever becomes of who sent it. Each one may be

    refused before it is performed · performed, and its answer lost · performed late, or
    answered late: past a lease
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from roundgate.errors import LeaseLost, Unavailable
from roundgate.storage.ports import Message
from roundgate.storage.sqlite.database import MIGRATIONS, SqliteDatabase, transacted
from roundgate.storage.tasks import TaskRef
from roundgate.tasks.events import UnderLease
from roundgate.tasks.stored import Lease, StoredTasks

if TYPE_CHECKING:
    from tests.roundgate.model.processes import Process

HIDDEN_S: Final = 15.0
"""How long a message that was received and not deleted stays hidden."""
LOOK_S: Final = 0.5

under: ContextVar[Lease | None] = ContextVar("under", default=None)
"""The lease under which a request writes."""


@dataclass(eq=False)
class Weather:
    """How likely what is, for each request; `away_until_s` is how long nothing at all gets through."""

    before: float = 0.0
    after: float = 0.0
    hang: float = 0.0
    lost: float = 0.0
    doubled: float = 0.0
    away_until_s: float = 0.0


def database() -> sqlite3.Connection:
    """The real tables, in memory."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    for statement in filter(str.strip, "".join(MIGRATIONS).split(";")):
        db.execute(statement)
    return db


class Remote(SqliteDatabase):
    """The database as one process has it: each piece of work is a request."""

    def __init__(self, process: Process, db: sqlite3.Connection) -> None:
        super().__init__(Path("model"), durable=False)
        self._process = process
        self._db = db

    async def read(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        return await self._process.request("database", lambda: work(self._db), under.get())

    async def write(
        self, work: Callable[[sqlite3.Connection], Any], *, durable: bool = True
    ) -> Any:
        return await self.read(lambda db: transacted(db, work))


class ToldTasks(StoredTasks):
    """The real tasks; the network knows which lease a request belongs to."""

    async def write(self, lease: Lease, event: UnderLease, now_ms: int) -> None:
        token = under.set(lease)
        try:
            await super().write(lease, event, now_ms)
        finally:
            under.reset(token)


@dataclass(eq=False)
class _Waiting:
    ref: TaskRef
    visible_s: float
    number: int
    receipt: int = 0

    @property
    def shown(self) -> str:
        return f"{self.number}/{self.receipt}"


class Post:
    """All messages: each lost, doubled, late, in any order."""

    def __init__(self) -> None:
        self.waiting: list[_Waiting] = []
        self._sent = count(1)

    def put(self, ref: TaskRef, visible_s: float) -> None:
        """One more message."""
        self.waiting.append(_Waiting(ref, visible_s, next(self._sent)))

    def take(self, process: Process, limit: int) -> list[Message]:
        """What is visible just now, in any order."""
        world = process.world
        visible = [one for one in self.waiting if one.visible_s <= world.now_s]
        taken = world.chance.sample(visible, min(limit, len(visible)))
        for one in taken:
            one.receipt += 1
            one.visible_s = world.now_s + HIDDEN_S
        return [Message(one.ref, one.shown) for one in taken]

    def delete(self, messages: Sequence[Message]) -> None:
        receipts = {message.receipt for message in messages}
        self.waiting = [one for one in self.waiting if one.shown not in receipts]


class Queue:
    """The queue as one process has it."""

    def __init__(self, process: Process, post: Post) -> None:
        self._process = process
        self._post = post

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        world, weather = self._process.world, self._process.weather
        copies = 1
        if world.chance.random() < weather.lost:
            copies = 0
        elif world.chance.random() < weather.doubled:
            copies = 2

        def put() -> None:
            for number in range(copies):
                late_s = delay_ms / 1000 + (world.chance.uniform(0, 12) if number else 0)
                self._post.put(ref, world.now_s + late_s)

        await self._process.request(f"send {ref.id}", put)

    async def send_many(self, refs: Sequence[TaskRef]) -> None:
        for ref in refs:
            await self.send(ref)

    async def receive(
        self, limit: int, wait_ms: int, *, skip: Collection[str] = ()
    ) -> Sequence[Message]:
        world, loop = self._process.world, asyncio.get_running_loop()
        until_s, answer = world.now_s + wait_ms / 1000, loop.create_future()

        def look() -> None:
            if self._process.is_dead or self._process.is_draining or answer.done():
                return
            found = self._post.take(self._process, limit)
            if found or world.now_s >= until_s:
                loop.call_soon(_settle, answer, found, None)
            else:
                world.after(LOOK_S, look)

        world.after(0.01, look)
        messages: list[Message] = await answer
        return messages

    async def delete(self, messages: Sequence[Message]) -> None:
        await self._process.request("delete", lambda: self._post.delete(messages))

    async def put_back(self, messages: Sequence[Message], delay_ms: int = 0) -> None:
        await self.delete(messages)
        for message in messages:
            await self.send(message.ref, delay_ms)

    async def depth(self) -> int | None:
        return len(self._post.waiting)

    async def waiting(self, refs: Sequence[TaskRef]) -> Collection[TaskRef]:
        return ()

    async def aclose(self) -> None:
        """Nothing is held."""


def _settle(answer: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)


async def request(process: Process, what: str, work: Callable[[], Any], lease: Lease | None) -> Any:
    """One request: sent, performed, answered, each at its time and perhaps not at all.

    Raises:
        Unavailable: nobody knows whether it was performed.
    """
    if process.is_dead or process.is_draining:
        raise LeaseLost("the process is over")
    world, weather = process.world, process.weather
    loop, sent_s = asyncio.get_running_loop(), world.now_s
    answer: asyncio.Future[Any] = loop.create_future()
    fate, there_s, back_s = _fate(process)

    def perform() -> None:
        if fate == "before" or world.now_s < weather.away_until_s:
            give(None, Unavailable("the model lost a request"))
            return
        value, error = None, None
        try:
            value = process.shared.perform(process, what, work, lease, sent_s)
        except Exception as raised:
            error = raised
        if fate == "after":
            world.tell(f"{process.name}: the answer is lost of {what}")
            error = Unavailable("the model lost an answer")
        give(value, error)

    def give(value: Any, error: BaseException | None) -> None:
        world.after(back_s, lambda: deliver(value, error))

    def deliver(value: Any, error: BaseException | None) -> None:
        if not process.is_dead and not loop.is_closed():
            loop.call_soon(_settle, answer, value, error)
            process.shared.disturb(process)

    world.after(there_s, perform)
    process.shared.disturb(process)
    return await answer


def _fate(process: Process) -> tuple[str, float, float]:
    """What becomes of a request, and how long its ways take."""
    world, weather = process.world, process.weather
    there_s, back_s = world.chance.uniform(0, 0.05), world.chance.uniform(0, 0.05)
    drawn = world.chance.random()
    if drawn < weather.before:
        return "before", there_s, back_s
    if drawn < weather.before + weather.after:
        return "after", there_s, back_s
    if drawn < weather.before + weather.after + weather.hang and process.shared.may_disturb(
        process
    ):
        process.shared.budget -= 1
        long_s = world.chance.uniform(0.3, 1.8) * process.shared.config.lease_s
        world.tell(f"{process.name}: a request hangs for {long_s:.1f} s")
        return (
            ("late", there_s + long_s, back_s)
            if world.chance.random() < 0.5
            else ("late", there_s, back_s + long_s)
        )
    return "well", there_s, back_s
