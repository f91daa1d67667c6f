"""A recorded call, replayed to its end in another process: with another hash seed, clock, time zone
and environment, and nothing in memory but imports.

    test's process      call ── record ──▶ journal ──┬──────────────▶ compare
    other processes                                  └▶ replay ── ending, and what is new there

The journal holds all results of the call, so a replay runs no step: a step without a recorded
result is refused. Run as a module, this is the other process.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

from roundgate.auth import Principal
from roundgate.backends import ServedTool
from roundgate.clock import Clock, Deadline
from roundgate.errors import Suspend
from roundgate.json import fresh
from roundgate.protocol import ClientCapabilities, Meta
from roundgate.replay import WATCH, Call, Context, Journal, Run, Suspended, engine
from roundgate.runtime.startup import build_core
from roundgate.settings import Settings
from roundgate.testing.clock import VirtualClock
from roundgate.testing.effects import refuse_effects
from roundgate.testing.endings import Ending, ending_of_outcome
from roundgate.testing.memory import Life, Memory
from roundgate.tokens import keys

Source: TypeAlias = str | Path | ModuleType | Callable[..., Any]
"""A gateway.yaml, a Python file, a module, or a function with a decorator such as `@tool`."""

OTHERS: Final[Sequence[Mapping[str, str]]] = (
    {"PYTHONHASHSEED": "1", "TZ": "<+14>-14"},
    {"PYTHONHASHSEED": "2", "TZ": "<-12>+12"},
)
"""The environments of the other processes. Their time zones never show the same hour."""
WITHIN_S: Final = 120.0
LATER_S: Final = 30 * 3600.0
"""How far the clock of another process is ahead, in seconds."""
_KEPT: Final = (
    "HOME",
    "PATH",
    "LANG",
    "LC_ALL",
    "PWD",
    "SHELL",
    "TMPDIR",
    "TZ",
    "USER",
    "VIRTUAL_ENV",
)
"""The environment variables that a replay keeps, besides those that begin with PYTHON."""


# In the test's process


def recorded(
    sources: Sequence[Source],
    environ: Mapping[str, str] | None,
    sections: Mapping[str, Any],
    tool: str,
    arguments: Mapping[str, Any],
    run: Run,
) -> dict[str, Any] | None:
    """Return all that another process needs to replay a run, as JSON; `None` if it cannot load a
    source, because that is a function inside another."""
    found = [_written(source) for source in sources]
    if any(one is None for one in found):
        return None
    facts: dict[str, Any] = {
        "path": sys.path,
        "sources": found,
        "environ": dict(environ or {}),
        "sections": dict(sections),
        "tool": tool,
        "arguments": dict(arguments),
        "journal": run.journal.to_json(),
        "call": _facts_of(run.call),
        "now_ms": run.clock.now_ms(),
    }
    try:
        json.dumps(facts)
    except (TypeError, ValueError):  # sections given as Python objects
        return None
    return facts


def _written(source: Source) -> list[str] | None:
    if isinstance(source, str | Path):
        return ["path", str(Path(source).resolve())]
    if isinstance(source, ModuleType):
        return ["module", source.__name__]
    module, name = getattr(source, "__module__", ""), getattr(source, "__qualname__", "")
    there = getattr(sys.modules.get(module), name, None) if name.isidentifier() else None
    return None if there is not source or module == "__main__" else ["function", module, name]


def _facts_of(call: Call) -> dict[str, Any]:
    principal = call.principal
    return {
        "principal": [
            principal.issuer,
            principal.subject,
            principal.client_id,
            sorted(principal.scopes),
        ],
        "capabilities": dict(call.meta.capabilities.declared),
        "client": call.meta.client_info,
        "task": call.task_id,
        "takes_unasked": call.takes_unasked,
    }


async def findings_elsewhere(facts: Mapping[str, Any], expected: Ending) -> list[str]:
    """Return the differences when other processes replay a call."""
    told = await asyncio.gather(*(_asked(facts, one) for one in OTHERS))
    return [one for findings in told for one in compared(*findings, expected)]


def compared(ending: Ending, new: Sequence[str], expected: Ending) -> list[str]:
    """Return the differences of a replay, in words."""
    where = "replayed in another process, with other hashes, clock, time zone and environment"
    if new:
        return [f"{where}: {one}" for one in new]
    return [] if ending == expected else [f"{where}: {ending} instead of: {expected}"]


async def _asked(facts: Mapping[str, Any], apart: Mapping[str, str]) -> tuple[Ending, list[str]]:
    """Replay the call in another process; return its ending and its differences.

    Raises:
        RuntimeError: the process failed.
    """
    environ = {**os.environ, **apart, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environ,
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            out, said = await process.communicate(json.dumps(facts).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        lines = said.decode(errors="replace").strip().splitlines()
        raise RuntimeError("another process cannot replay the call: " + "\n".join(lines[-20:]))
    answer = json.loads(out)
    return Ending(*answer["ending"]), answer["new"]


# In both


class _NothingNew:
    """A `StepWatch` that refuses every step that an earlier run has not done."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.new: list[str] = []

    async def begins(self, key: str, what: str | None) -> None:
        self.new.append(f"it runs step {key}, which it had not run before")
        self._run.fail(RuntimeError("a replay runs no step"))
        raise Suspend

    async def has_run(self, key: str) -> None:
        """Do nothing: no step runs."""

    async def is_remembered(self, key: str) -> None:
        """Do nothing: no step runs."""

    def run_ended(self, run: Run) -> None:
        if run.error is not None and not self.new:
            self.new.append(str(run.error))
        self.new += [f"it asks for step {key} no more" for key in run.unasked() if not self.new]


class _Replay(Run):
    """A run in a process without the test's fakes, whose functions have other names."""

    def is_same(self, before: str, now: str | None) -> bool:
        """Return whether kind and arguments are the recorded ones, whatever the function."""
        return now is not None and _without_function(before) == _without_function(now)


def _without_function(identity: str) -> list[str]:
    kind, _, *arguments = identity.split(" ")
    return [kind, *arguments]


async def replayed(
    served: ServedTool, arguments: Mapping[str, Any], call: Call, journal: Any, clock: Clock
) -> tuple[Ending, list[str]]:
    """Replay a call from its whole journal; return its ending and its differences."""
    run = _Replay(call, Journal.from_json(journal))
    watch, given = _NothingNew(run), fresh(dict(arguments))
    token = WATCH.set(watch)
    try:
        outcome = await engine.run_handler(lambda: served.call(Context(run), given), run)
    finally:
        WATCH.reset(token)
    if isinstance(outcome, Suspended) and not watch.new:
        asked = ", ".join(outcome.requests) or "for another turn"
        watch.new.append(f"it asks {asked}, although everything was answered")
    return ending_of_outcome(outcome, served.name, clock), watch.new


# In the other process


async def _replayed(facts: Mapping[str, Any]) -> dict[str, Any]:
    from roundgate.testing.gateway import configuration

    sources = [_read(one) for one in facts["sources"]]
    file = configuration(sources, facts["environ"], facts["sections"])
    clock = VirtualClock(facts["now_ms"])
    clock.skip(LATER_S)
    using = Settings(worker="off", state_keys=keys.new_key())
    memory = Memory(clock)
    core = build_core(file, using, clock, memory.stores(Life()))
    refuse_effects()
    for name in [*os.environ]:
        if name not in _KEPT and not name.startswith("PYTHON"):
            del os.environ[name]
    try:
        with core.serving.use() as catalog:
            call = _call(facts["call"], clock)
            given = facts["arguments"], call, facts["journal"], clock
            ending, new = await replayed(catalog.tool(facts["tool"]), *given)
    finally:
        await core.serving.aclose()
        memory.close()
    return {"ending": [ending.how, ending.value], "new": new}


def _read(written: Sequence[str]) -> Source:
    kind, *names = written
    if kind == "path":
        return names[0]
    module = importlib.import_module(names[0])
    source: Source = module if kind == "module" else getattr(module, names[1])
    return source


def _call(facts: Mapping[str, Any], clock: Clock) -> Call:
    issuer, subject, client_id, scopes = facts["principal"]
    return Call(
        principal=Principal(issuer, subject, client_id, frozenset(scopes)),
        meta=Meta(ClientCapabilities(facts["capabilities"]), facts["client"], None, None),
        deadline=Deadline(clock, None),
        task_id=facts["task"],
        takes_unasked=facts["takes_unasked"],
    )


def main() -> None:
    """Read a recorded call, replay it, and write the result."""
    facts = json.load(sys.stdin)
    sys.path[:] = facts["path"]
    with redirect_stdout(sys.stderr):  # of handlers that print
        result = asyncio.run(_replayed(facts))
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
