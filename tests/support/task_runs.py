"""Single runs of a handler as a task's worker, or a call that may become a task, has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from roundgate.auth.principal import LOCAL
from roundgate.clock import Clock
from roundgate.protocol.jsonrpc import ClientCapabilities, Meta
from roundgate.replay import engine
from roundgate.replay.context import Context
from roundgate.replay.engine import Outcome
from roundgate.replay.journal import Entry, Journal
from roundgate.replay.run import Call, Run
from tests.support.clocks import FixedClock
from tests.support.replay import elsewhere
from tests.support.rounds import CAPABILITIES


@dataclass
class SharedJournal:
    """What runs share: a journal, as the last one left it, and what was written on the way, write by write."""

    task_id: str | None = "task"
    may_become_task: bool = False
    clock: Clock = field(default_factory=FixedClock)
    journal: Journal = field(default_factory=Journal)
    batches: list[tuple[Entry, ...]] = field(default_factory=list)
    notified: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    last: Run | None = None

    @property
    def written(self) -> list[Entry]:
        return [entry for batch in self.batches for entry in batch]

    async def run(
        self,
        handler: Callable[[Context], Awaitable[Any]],
        *,
        within_ms: float | None = None,
        prepare: Callable[[Run], None] = lambda run: None,
    ) -> Outcome[Any]:
        """One run, from bytes."""

        async def notify(method: str, params: dict[str, Any]) -> None:
            self.notified.append((method, params))

        declared = ClientCapabilities(CAPABILITIES)
        call = Call(
            principal=LOCAL,
            meta=Meta(declared, None, log_level="debug", progress_token="token"),
            deadline=self.clock.deadline(within_ms),
            notify=notify,
            task_id=self.task_id,
            may_become_task=self.may_become_task,
        )
        run = Run(call, elsewhere(self.journal), self)
        prepare(run)
        outcome = await engine.run_handler(lambda: handler(Context(run)), run)
        self.journal, self.last = run.journal, run
        return outcome

    async def admit(self) -> None:
        """Every step may begin."""

    async def checkpoint(self, *entries: Entry) -> None:
        """Keep what would have been written."""
        self.batches.append(entries)
