"""Handlers played as a call plays them: each round from fresh objects, its journal
through JSON bytes and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from anyio import to_thread
from pydantic import BaseModel

from roundgate import json
from roundgate.auth.principal import LOCAL
from roundgate.clock import Clock, Deadline
from roundgate.protocol.jsonrpc import ClientCapabilities, Meta
from roundgate.replay import engine
from roundgate.replay.context import Context
from roundgate.replay.engine import Completed, Failed, Outcome, Suspended
from roundgate.replay.journal import Journal
from roundgate.replay.run import Call, Run
from roundgate.replay.sync_context import SyncContext
from tests.support.rounds import CAPABILITIES, accept, sampled

Handler: TypeAlias = Callable[[Any], Any]
Client: TypeAlias = Callable[[str, Mapping[str, Any]], Any]
"""Answers an input request: (wire key, request) → response."""


class Name(BaseModel):
    name: str


def elsewhere(journal: Journal) -> Journal:
    """The journal as another process gets it."""
    return Journal.from_json(json.decode(json.encode(journal.to_json())))


async def play(
    handler: Handler,
    before: Outcome[Any] | Journal | None = None,
    responses: Mapping[str, Any] | None = None,
    *,
    capabilities: Mapping[str, Any] = CAPABILITIES,
    clock: Clock | None = None,
    within_ms: float | None = None,
    deadline: Deadline | None = None,
    **more: Any,
) -> Outcome[Any]:
    """One run, after the one that was suspended as `before`, with these answers to it; a plain function in a thread."""
    assert before is None or isinstance(before, Suspended | Journal), before
    journal = elsewhere(before.journal if isinstance(before, Suspended) else before or Journal())
    if isinstance(before, Journal):
        journal.unasked = before.unasked
    journal.receive(responses or {})
    declared = ClientCapabilities(capabilities)
    deadline = deadline or (clock or Clock()).deadline(within_ms)
    run = Run(
        Call(principal=LOCAL, meta=Meta(declared, None, None, None), deadline=deadline, **more),
        journal,
    )
    return await engine.run_handler(_bound(handler, Context(run)), run)


def _bound(handler: Handler, context: Context) -> Callable[[], Any]:
    if inspect.iscoroutinefunction(handler):
        return lambda: handler(context)
    return lambda: to_thread.run_sync(handler, SyncContext(context), abandon_on_cancel=True)


@dataclass(frozen=True, slots=True)
class Played:
    """A call played to its end."""

    outcome: Outcome[Any]
    """Never `Suspended`."""
    rounds: list[list[str]]
    """The wire keys that each round asked for, but the last."""
    journal: Journal
    """As it was before the last round."""

    @property
    def value(self) -> Any:
        assert isinstance(self.outcome, Completed), self.outcome
        return self.outcome.value


async def play_to_the_end(
    handler: Handler, client: Client, max_rounds: int = 12, **limits: Any
) -> Played:
    """All rounds, every question answered in the round in which it came."""
    asked: list[list[str]] = []
    journal = Journal()
    responses: dict[str, Any] = {}
    for _ in range(max_rounds):
        outcome = await play(handler, journal, responses, **limits)
        if not isinstance(outcome, Suspended):
            return Played(outcome, asked, journal)
        asked.append(list(outcome.requests))
        journal = outcome.journal
        responses = {key: client(key, request) for key, request in outcome.requests.items()}
    raise AssertionError(f"no end after {max_rounds} rounds: {asked}")


def polite(key: str, request: Mapping[str, Any]) -> Any:
    """A client that does what it is asked, and tells under which key it was asked."""
    match request["method"], request.get("params", {}):
        case "sampling/createMessage", _:
            return sampled(key)
        case "roots/list", _:
            return {"roots": [{"uri": f"file:///{key}"}]}
        case _, {"mode": "url"}:
            return {"action": "accept"}
        case _, params:
            return accept(**dict.fromkeys(params["requestedSchema"]["properties"], key))


def asked_of(outcome: Outcome[Any]) -> dict[str, Any]:
    """What a round asks for, by wire key."""
    assert isinstance(outcome, Suspended), outcome
    return dict(outcome.requests)


def value_of(outcome: Outcome[Any]) -> Any:
    """What a handler returned."""
    assert isinstance(outcome, Completed), outcome
    return outcome.value


def error_of(outcome: Outcome[Any]) -> Exception:
    """What a handler raised."""
    assert isinstance(outcome, Failed), outcome
    return outcome.error


@dataclass
class Effects:
    """Functions for steps that leave a trace, so that it shows how often each ran."""

    seen: list[Any] = field(default_factory=list)

    def do(self, what: Any) -> Any:
        self.seen.append(what)
        return what

    async def do_async(self, what: Any) -> Any:
        return self.do(what)
