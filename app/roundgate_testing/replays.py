"""Reference runs of a call: one without replay, and replays in other processes.

`truth` runs the handler once from beginning to end: questions are answered and sleeps pass in the
same run. A handler in the low-level form still starts again after its questions, by design.

`findings_elsewhere` replays the recorded call in other processes, with another hash seed, clock,
time zone and environment, and with a memory that contains only imports:

    test's process      call ── record ──▶ journal ──┬──────────────▶ compare
    other processes                                  └▶ replay ── ending and differences

The journal holds all results of the call, so a replay refuses steps without a recorded result. The
other process runs this file as a module.

`collecting_effects` lists the effects of handlers outside of steps on files, connections and
processes, from Python's audit events (PEP 578). Changes in memory are not detected.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from msgspec.structs import replace

from roundgate import replay
from roundgate.auth import Principal
from roundgate.backends import Returned, ServedTool
from roundgate.client import Answers, CallResult
from roundgate.clock import Clock, Deadline
from roundgate.config import ConfigFile
from roundgate.errors import ProtocolError, Suspend
from roundgate.json import fresh
from roundgate.protocol import ClientCapabilities, Meta, ToolResult
from roundgate.replay import engine
from roundgate.runtime.startup import Core, build_core
from roundgate.tasks import tool_result
from roundgate_testing.contexts import AnsweredRun, EventsHere
from roundgate_testing.instances import InstanceLife, Loads, Memory, Setup, Source, VirtualClock

MAX_RUNS: Final = 100
"""The maximum number of runs of a handler that restarts or is in the low-level form."""
OTHERS: Final[Sequence[Mapping[str, str]]] = (
    {"PYTHONHASHSEED": "1", "TZ": "<+14>-14"},
    {"PYTHONHASHSEED": "2", "TZ": "<-12>+12"},
)
"""The environments of the other processes. Their time zones never show the same hour."""
WITHIN_S: Final = 120.0
"""The time limit of a replay in another process, in seconds."""
LATER_S: Final = 30 * 3600.0
"""The time in seconds by which the clock of another process is ahead."""
_KEPT: Final = frozenset(
    ("HOME", "PATH", "LANG", "LC_ALL", "PWD", "SHELL", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV")
)
"""The environment variables that a replay keeps, besides variables that begin with PYTHON."""
_REFERENCE: Final = re.compile(r"(?<=the server's log has the details under reference )[\w-]{22}")
"""The reference of an unexpected error in the log, which differs each time."""


# Endings of calls, comparable between runs and processes


@dataclass(frozen=True, slots=True)
class CallEnding:
    """The ending of a call. `how` is "returned", "failed" (an error for the model), "raised" (the
    call itself failed) or "went on" (the call did not end)."""

    how: str
    value: Any

    def __str__(self) -> str:
        text = self.value if isinstance(self.value, str) else repr(self.value)
        return f"it {self.how}: {text[:500]}"


def ending_of_result(result: CallResult) -> CallEnding:
    """Return the ending of a call with this result."""
    if not result.is_error:
        return CallEnding("returned", result.value)
    value = result.value
    return CallEnding("failed", without_reference(value) if isinstance(value, str) else value)


def without_reference(text: str) -> str:
    """Return an error's text without its reference, which differs each time."""
    return _REFERENCE.sub("…", text)


def _ending_of_outcome(
    outcome: replay.Completed[Returned] | replay.Failed | replay.Suspended | replay.Restarted,
    tool: str,
    clock: Clock,
) -> CallEnding:
    """Return the ending of a handler's call, as its caller would see it."""
    if not isinstance(outcome, replay.Completed | replay.Failed):
        return CallEnding("went on", None)
    if isinstance(outcome, replay.Completed) and not isinstance(outcome.value, ToolResult):
        return CallEnding("went on", None)  # as a task of the service
    try:
        result = tool_result(outcome, tool, clock)
    except ProtocolError as error:
        return CallEnding("raised", str(error))
    return ending_of_result(CallResult.read(result.to_wire(), 1))


# Effects


_effects: list[str] | None = None
"""The list that receives effects while a test collects them."""
_is_hooked = False
_EVENTS: Final = {
    "os.remove": "removes {0!r}",
    "os.rename": "renames {0!r}",
    "os.mkdir": "makes the directory {0!r}",
    "os.rmdir": "removes the directory {0!r}",
    "os.system": "starts a process",
    "subprocess.Popen": "starts the process {0!r}",
    "socket.connect": "connects to {1!r}",
}


@contextmanager
def collecting_effects() -> Iterator[list[str]]:
    """Yield a list that receives descriptions of handlers' effects outside of steps, until the
    block ends."""
    global _effects, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_collect)  # audit hooks cannot be removed
        _is_hooked = True
    before, _effects = _effects, []
    try:
        yield _effects
    finally:
        _effects = before


def _collect(event: str, args: tuple[Any, ...]) -> None:
    if _effects is not None and (effect := _effect(event, args)):
        _effects.append(f"it {effect} outside of a step")


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if effect := _effect(event, args):
        raise PermissionError(f"a replay must have no effects, but the handler {effect}")


def _effect(event: str, args: tuple[Any, ...]) -> str | None:
    """Return a description of an audit event's effect. Return `None` if the event has no effect or
    writes the bytecode of a module, or if no handler is running outside of a step."""
    if not isinstance(replay.here.get(), replay.Branch):
        return None
    effect = _writing(*args) if event == "open" else _EVENTS.get(event, "").format(*args)
    return effect if effect and "__pycache__" not in effect else None


def _writing(path: Any, mode: Any, flags: Any) -> str | None:
    writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if not writes or not isinstance(path, str | bytes | os.PathLike):
        return None
    name = os.fsdecode(path)
    return None if name == os.devnull else f"writes to {name!r}"


# Without replay


@asynccontextmanager
async def serving(
    file: ConfigFile, clock: Clock, loads: Loads | None = None
) -> AsyncIterator[Core]:
    """Yield the core of a gateway with a database in memory, until the block ends. The configuration
    is loaded by `loads`, or for this block."""
    memory = Memory(clock)
    own = loads or Loads()
    try:
        yield build_core(file, own.using, clock, memory.stores(InstanceLife()), loaded=own.of(file))
    finally:
        if loads is None:
            await own.aclose()
        memory.close()


async def truth(
    file: ConfigFile,
    loads: Loads,
    now_ms: int,
    tool: str,
    arguments: Mapping[str, Any],
    call: replay.Call,
    answers: Answers,
    events: Mapping[str, Any],
) -> CallEnding:
    """Return the ending of a call without replay. The call begins at `now_ms`, in milliseconds
    since the epoch."""
    clock = VirtualClock(now_ms)
    async with serving(file, clock, loads) as core:
        with core.serving.use() as catalog:
            served = catalog.tool(tool)
            call = replace(
                call,
                deadline=Deadline(clock, None),
                notify=None,
                may_become_task=False,
                needs_row=False,
                round=None,
                external=EventsHere(),
                texts=core.texts(file.config, clock, ""),
                read=catalog.read_resource,
            )
            journal = replay.Journal()
            for _ in range(MAX_RUNS):
                outcome = await _run(served, AnsweredRun(call, answers, journal, events), arguments)
                match outcome:
                    case replay.Restarted(arguments=arguments):
                        journal = journal.restarted(dict(arguments))
                    case replay.Suspended():
                        journal = outcome.journal
                    case _:
                        break
            return _ending_of_outcome(outcome, tool, clock)


async def _run(served: ServedTool, run: replay.Run, arguments: Mapping[str, Any]) -> Any:
    own_arguments = fresh(dict(arguments))
    return await engine.run_handler(lambda: served.call(replay.Context(run), own_arguments), run)


# In the test's process


async def findings_elsewhere(
    setup: Setup, tool: str, arguments: Mapping[str, Any], run: replay.Run, expected: CallEnding
) -> list[str]:
    """Replay a run in other processes, and return descriptions of the differences.

    The list is empty if the other processes cannot load a source, such as a function inside another
    function, or if arguments or sections contain Python objects.

    Raises:
        RuntimeError: a process failed.
        TimeoutError: a process took longer than `WITHIN_S`.
    """
    sources = [_written(source) for source in setup.sources]
    call = run.call
    principal = call.principal
    facts = {
        "path": sys.path,
        "sources": sources,
        "environ": dict(setup.environ),
        "sections": dict(setup.sections),
        "tool": tool,
        "arguments": dict(arguments),
        "journal": run.journal.to_json(),
        "principal": [
            *principal.identity,
            sorted(principal.scopes),
            dict(principal.claims),
            principal.kept_claims,
        ],
        "capabilities": dict(call.meta.capabilities.declared),
        "client": call.meta.client_info,
        "task": call.task_id,
        "takes_unasked": call.takes_unasked,
        "now_ms": run.clock.now_ms(),
    }
    try:
        text = json.dumps(facts).encode()
    except (TypeError, ValueError):
        return []
    if None in sources:
        return []
    answers = await asyncio.gather(*(_ask(text, environ) for environ in OTHERS))
    where = "replayed in another process, with other hashes, clock, time zone and environment"
    findings = []
    for answer in answers:
        ending = CallEnding(*answer["ending"])
        differs = [] if ending == expected else [f"{ending} instead of: {expected}"]
        findings += [f"{where}: {finding}" for finding in answer["new"] or differs]
    return findings


def _written(source: Source) -> list[str] | None:
    if isinstance(source, str | Path):
        return ["path", str(Path(source).resolve())]
    if isinstance(source, ModuleType):
        return ["module", source.__name__]
    module, name = getattr(source, "__module__", ""), getattr(source, "__qualname__", "")
    # Another process can only import a function that its module has under the same name.
    there = getattr(sys.modules.get(module), name, None) if name.isidentifier() else None
    return None if there is not source or module == "__main__" else ["function", module, name]


async def _ask(facts: bytes, environ: Mapping[str, str]) -> Any:
    """Replay a call in another process, and return its ending and the differences.

    Raises:
        RuntimeError, TimeoutError: as for `findings_elsewhere`.
    """
    path = os.pathsep.join(filter(None, sys.path))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environ, "PYTHONPATH": path},
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            out, errors = await process.communicate(facts)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise RuntimeError("another process cannot replay the call: " + "\n".join(lines[-20:]))
    return json.loads(out)


# In the other process


class _NothingNew(replay.StepWatch):
    """A watch that refuses every step without a recorded result."""

    def __init__(self, run: replay.Run) -> None:
        self._run = run
        self.new: list[str] = []

    async def begins(self, key: str, what: str | None) -> None:
        self.new.append(f"it runs step {key}, which the recorded call did not run")
        self._run.fail(RuntimeError("a replay must not run a step"))
        raise Suspend

    def run_ended(self, run: replay.Run) -> None:
        if run.error is not None and not self.new:
            self.new.append(str(run.error))
        self.new += [f"it skips the recorded step {key}" for key in run.unasked() if not self.new]


class _Replay(replay.Run):
    """A run that ignores the names of step functions, because a test's fakes have other names."""

    def is_same(self, before: str, now: str | None) -> bool:
        """Return whether a step's kind and arguments equal the recorded ones."""
        return now is not None and _without_function(before) == _without_function(now)


def _without_function(identity: str) -> list[str]:
    kind, _, *arguments = identity.split(" ")
    return [kind, *arguments]


async def _replay(facts: Mapping[str, Any]) -> dict[str, Any]:
    setup = Setup(
        [_read(source) for source in facts["sources"]], facts["environ"], facts["sections"]
    )
    clock = VirtualClock(facts["now_ms"])
    clock.skip(LATER_S)
    async with serving(setup.load(), clock) as core:
        sys.addaudithook(_refuse)
        # A handler that reads the test's environment now ends differently.
        for name in [*os.environ]:
            if name not in _KEPT and not name.startswith("PYTHON"):
                del os.environ[name]
        run = _Replay(_call(facts, clock), replay.Journal.from_json(facts["journal"]))
        watch = _NothingNew(run)
        replay.WATCH.set(watch)
        with core.serving.use() as catalog:
            outcome = await _run(catalog.tool(facts["tool"]), run, facts["arguments"])
    if isinstance(outcome, replay.Suspended) and not watch.new:
        questions = ", ".join(outcome.requests) or "for another turn"
        watch.new.append(f"it asks {questions}, although all questions were answered")
    ending = _ending_of_outcome(outcome, facts["tool"], clock)
    return {"ending": [ending.how, ending.value], "new": watch.new}


def _read(written: Sequence[str]) -> Source:
    kind, *names = written
    if kind == "path":
        return names[0]
    module = importlib.import_module(names[0])
    source: Source = module if kind == "module" else getattr(module, names[1])
    return source


def _call(facts: Mapping[str, Any], clock: Clock) -> replay.Call:
    issuer, subject, client_id, scopes, claims, kept = facts["principal"]
    granted = frozenset(scopes)
    return replay.Call(
        principal=Principal(issuer, subject, client_id, granted, None, claims, kept),
        meta=Meta(ClientCapabilities(facts["capabilities"]), facts["client"], None, None),
        deadline=Deadline(clock, None),
        task_id=facts["task"],
        takes_unasked=facts["takes_unasked"],
        authorize=lambda arguments: None,  # the call was allowed when it was recorded
    )


def main() -> None:
    """Replay the recorded call on standard input, and write its ending and the differences to
    standard output."""
    facts = json.load(sys.stdin)
    sys.path[:] = facts["path"]
    with redirect_stdout(sys.stderr):  # a handler may print
        result = asyncio.run(_replay(facts))
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
