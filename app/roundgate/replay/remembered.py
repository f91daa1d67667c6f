"""Values that the engine makes for a handler and records: idempotency keys, the time, random
numbers, ids, versions.

Making such a value has no side effect, so the value has no rank, and the handler continues at once.
In a task the value is durable before the next step begins, so a step that runs again after a crash
gets the same arguments.

    key, time   one entry for each place
    seed        one entry for the call; each random generator and id derives from the seed and its place
    version     one entry for each name, the same for all branches

The version of a change is fixed when the handler first reads it. If an earlier run of the call may
have gone beyond that place, the call keeps the old path, which is version 1:

    run 1 (old handler)   plan ✓ ──────────────────── charge ✓ ── sleeps
    run 2 (new handler)   plan ✓ ── version? 1, for ── charge is recorded, but not reached yet
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

from roundgate.errors import HandlerVersionError, Suspend
from roundgate.json import digest
from roundgate.replay.asyncio_internals import engine_call
from roundgate.replay.journal import VERSION, Remembered
from roundgate.replay.recording import WATCH
from roundgate.replay.run import Run

SEED: Final = "seed:"
"""The place of the seed. No name contains a colon."""
FIRST_VERSION: Final = 1
"""The version of a handler before its first change."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@engine_call
async def key_for(run: Run, name: str) -> str:
    """Return an idempotency key for a place in the handler."""
    key = run.come_to(await run.enter("key", name), "key", name)
    entry = run.journal.steps.get(key)
    if not isinstance(entry, Remembered):
        source = run.call.idempotency
        value = run.clock.new_id() if source is None else digest([source, key])
        entry = Remembered(key, WATCH.get().value(run, key, value))
        # written with the next step: in a task the same key can be made again
        run.journal.add(entry)
    text: str = entry.value
    return text


def now(run: Run, name: str) -> datetime:
    """Return the time at which the handler first reached a place."""
    key = run.come_to(run.enter_at_once("now", name), "now", name)
    at_ms = _remembered(run, key, run.clock.now_ms)
    return _EPOCH + timedelta(milliseconds=at_ms)


def random(run: Run, name: str) -> Random:
    """Return a random number generator for a place, seeded identically in every run."""
    return Random(_bytes(run, "random", name))  # noqa: S311  # `Context.random` warns of this


def uuid(run: Run, name: str) -> UUID:
    """Return a version 4 UUID for a place, the same in every run."""
    return UUID(bytes=_bytes(run, "uuid", name)[:16], version=4)


def _bytes(run: Run, kind: str, name: str) -> bytes:
    """Return bytes that depend only on the call's seed and a place."""
    key = run.come_to(run.enter_at_once(kind, name), kind, name)
    seed = _remembered(run, SEED, run.clock.new_id)
    return hashlib.sha256(f"{seed} {key}".encode()).digest()


def version(run: Run, name: str, newest: int, oldest: int) -> int:
    """Return the version of a change for this call.

    Raises:
        Suspend: the handler does not support the call's version; the run has ended.
        ValueError: `oldest` and `newest` are not a range of versions.
    """
    run.enter_at_once("version", name)
    if not FIRST_VERSION <= oldest <= newest:
        raise ValueError(
            f"version {name!r} has oldest={oldest} and newest={newest}; "
            f"{FIRST_VERSION} <= oldest <= newest is required"
        )
    key = f"{VERSION}{name}"
    decided: int = _remembered(run, key, lambda: FIRST_VERSION if run.may_have_passed else newest)
    if not oldest <= decided <= newest:
        run.fail(HandlerVersionError(key, name, decided, oldest, newest))
        raise Suspend
    return decided


def _remembered(run: Run, key: str, make: Callable[[], Any]) -> Any:
    """Return the recorded value of a place. If there is none, make and record a value."""
    entry = run.journal.steps.get(key)
    if not isinstance(entry, Remembered):
        entry = Remembered(key, WATCH.get().value(run, key, make()))
        run.journal.add(entry)
        run.unwritten.append(entry)
        run.values_made += 1
    return entry.value
