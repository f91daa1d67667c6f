"""Suites are run: a client for each case, its steps in order, and what came of them
held to what was expected.

    step ──▶ references filled in ──▶ request, through rounds and task ──▶ outcome ──▶ expectations ──▶ variables

An outcome is one JSON object, which patterns and JMESPath look into: `result`, `text`,
`raw`, `is_error`, `rounds`, `asked`, `task`, `progress`, `logs`, `duration_ms`, or `error`
in place of the first four.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from roundgate.client import (
    CallResult,
    Client,
    Log,
    Progress,
    PromptResult,
    Question,
    ReadResult,
    Task,
    TaskState,
)
from roundgate.clock import Clock
from roundgate.errors import (
    AnswerInvalid,
    ClientError,
    HttpRefused,
    RpcError,
    TaskEnded,
    TimedOut,
    Unanswered,
    UsageError,
)
from roundgate.suites import paths
from roundgate.suites.expecting import Snapshots, unmet
from roundgate.suites.loading import SuiteFile
from roundgate.suites.models import AnswerRule, Case, Save, Step
from roundgate.suites.patterns import Difference
from roundgate.suites.results import CaseResult, Failure, Verdict
from roundgate.suites.script import Given, Script
from roundgate.suites.variables import Secrets, Variables

MAX_NOTED: Final = 10_000
"""How many notifications of one step are kept."""

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Client]]
"""Makes a client of the server that is tested."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the cases of one suite have in common."""

    file: SuiteFile
    connect: Connect
    snapshots: Snapshots
    secrets: Secrets
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Clock = field(default_factory=Clock)

    async def cases(
        self,
        chosen: Sequence[int],
        *,
        jobs: int = 1,
        begun: Callable[[Case], None] = lambda case: None,
        done: Callable[[CaseResult], None] = lambda result: None,
        stops: Callable[[CaseResult], bool] = lambda result: False,
    ) -> list[CaseResult]:
        """Run some cases, so many at once; the results are in their order in the file.

        Args:
            chosen: their indexes.
            begun: told of each case as it begins.
            done: told of each result as soon as all before it are there.
            stops: whether no further case is begun after this result.
        """
        results: dict[int, CaseResult] = {}
        waiting = list(reversed(chosen))
        told = 0
        stopped = False

        async def work() -> None:
            nonlocal told, stopped
            while waiting and not stopped:
                index = waiting.pop()
                case = self.file.suite.cases[index]
                begun(case)
                results[index] = await self.case(index)
                stopped = stopped or stops(results[index])
                while told < len(chosen) and chosen[told] in results:
                    done(results[chosen[told]])
                    told += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(min(jobs, len(chosen))):
                group.create_task(work())
        return [results[index] for index in chosen if index in results]

    async def case(self, index: int) -> CaseResult:
        """Run one case."""
        case = self.file.suite.cases[index]
        line = self.file.line("cases", index)
        if case.skip is not None:
            return CaseResult(self.file.name, case.name, line, Verdict.SKIPPED, reason=case.skip)
        begun = self.clock.monotonic_ms()
        failure = await self._failure(case, index)
        return CaseResult(
            self.file.name,
            case.name,
            line,
            Verdict.PASSED if failure is None else Verdict.FAILED,
            self.clock.monotonic_ms() - begun,
            failure,
        )

    async def _failure(self, case: Case, index: int) -> Failure | None:
        at: tuple[str | int, ...] = ("cases", index)
        steps: Sequence[Step] = case.steps or [case]
        number, title, line = 0, case.name, self.file.line(*at)
        try:
            variables = Variables({}, self.file.folder, self.environ, self.secrets)
            variables.values["unique"] = self.clock.new_id()
            variables.define(self.file.suite.variables)
            async with self.connect() as client:
                acting = _Acting(self, client, variables, case)
                for number, step in enumerate(steps, 1):
                    title = step.title
                    line = self.file.line(*at, *(("steps", number - 1) if case.steps else ()))
                    if found := await acting.step(step, number):
                        message, differing = found
                        return self._told(number, title, line, message, differing)
        except (ClientError, UsageError, ValueError) as error:
            said = error.on_command_line if isinstance(error, ClientError) else str(error)
            return self._told(number, title, line, said, [])
        return None

    def _told(
        self, number: int, title: str, line: int | None, message: str, found: Sequence[Difference]
    ) -> Failure:
        """A failure without secrets."""
        hide = self.secrets.hidden
        differing = [
            Difference(
                hide(one.path),
                hide(one.expected),
                hide(one.actual),
                tuple(map(hide, one.lines)),
            )
            for one in found
        ]
        return Failure(number, hide(title), line, hide(message), differing)


Unmet: TypeAlias = tuple[str, Sequence[Difference]]


class _Acting:
    """The steps of one case: a client, the variables so far, the tasks that were started."""

    def __init__(self, run: Run, client: Client, variables: Variables, case: Case) -> None:
        self._run = run
        self._client = client
        self._variables = variables
        self._case = case
        self._tasks: dict[str, Task] = {}

    async def step(self, step: Step, number: int) -> Unmet | None:
        """Do one; what was not as expected, `None` if everything was."""
        common = self._answers(self._run.file.suite.answers)
        script = Script(self._answers(step.answers), common, self._run.secrets)
        outcome = await self._outcome(step, script)
        expect = step.expect
        name = f"{self._case.name}, step {number}" if self._case.steps else self._case.name
        found = unmet(
            expect, outcome, self._variables.filled, self._run.file, name,
            self._run.snapshots, self._run.secrets,
        )  # fmt: skip
        if found is not None:
            return found
        if unused := script.unused:
            return f"no question asked for these answers: {', '.join(unused)}", []
        for variable, save in step.save.items():
            wanted = save.of if isinstance(save, Save) else save
            value = paths.found(wanted, outcome)
            if value is None:
                there = ", ".join(sorted(outcome))
                return f"save: {wanted} finds nothing in the outcome, which has {there}", []
            if isinstance(save, Save) and save.secret:
                self._run.secrets.add(value)
            self._variables.values[variable] = value
        return None

    def _answers(self, given: Given) -> Given:
        if isinstance(given, list):
            return [
                AnswerRule.model_validate(
                    self._variables.filled(rule.model_dump(exclude_unset=True))
                )
                for rule in given
            ]
        filled: Mapping[str, Any] = self._variables.filled(dict(given))
        return filled

    async def _outcome(self, step: Step, script: Script) -> dict[str, Any]:
        """What came of a step, as one JSON object."""
        noted = _Noted(step)
        limit_s = step.timeout_s or self._run.file.suite.timeout_s
        begun = self._run.clock.monotonic_ms()
        try:
            try:
                async with asyncio.timeout(limit_s):
                    document = await self._act(step, script, noted)
            except TimeoutError:
                raise TimedOut(f"No result within {limit_s:g} s (timeout_s)") from None
        except ClientError as error:
            document = {"error": _error(error)}
        document["duration_ms"] = round(self._run.clock.monotonic_ms() - begun, 3)
        document["asked"] = [_question(one) for one in script.asked]
        document["progress"], document["logs"] = noted.progress, noted.logs
        if noted.statuses:
            document["task"] = {"id": noted.task_id, "statuses": noted.statuses}
        return document

    async def _act(self, step: Step, script: Script, noted: _Noted) -> dict[str, Any]:
        (action,) = step.actions
        text, filled = self._variables.text, self._variables.filled
        match action:
            case "call" | "start":
                return await self._call(step, script, noted)
            case "wait":
                return await self._wait(self._task(step.wait), step, script, noted)
            case "cancel":
                task = self._task(step.cancel)
                await task.cancel()
                noted.task(await task.get())
                return {"result": noted.statuses[-1], "rounds": 1}
            case "prompt":
                prompt = await self._client.prompt(
                    text(step.prompt or ""),
                    {key: _as_text(one) for key, one in filled(step.arguments).items()},
                    answers=script,
                )
                return _of_prompt(prompt)
            case "read":
                return _of_read(await self._client.read(text(step.read or ""), answers=script))
            case "complete":
                return await self._complete(step)
            case "list":
                lists: dict[str, Callable[[], Any]] = {
                    "tools": self._client.tools,
                    "prompts": self._client.prompts,
                    "resources": self._client.resources,
                    "templates": self._client.resource_templates,
                }
                listed = [one.raw for one in await lists[step.list_ or "tools"]()]
                return {"result": listed, "raw": listed}
            case _:
                raw = await self._client.request(text(step.request or ""), filled(step.params))
                return {"result": raw, "raw": raw, "rounds": 1}

    async def _call(self, step: Step, script: Script, noted: _Noted) -> dict[str, Any]:
        filled = self._variables.filled
        task = await self._client.start(
            self._variables.text(step.call or step.start or ""),
            filled(step.arguments),
            answers=script,
            max_rounds=step.max_rounds,
            on_progress=noted.progressed if noted.wants("progress") else None,
            on_log=noted.logged if noted.wants("logs") else None,
            log_level="debug",
        )
        if task.state is not None:
            noted.task(task.state)
        if step.start is None:
            return _of_call(await task.wait(answers=script, on_task=noted.task))
        self._tasks[step.as_ or step.start] = task
        if task.handle is None:
            return _of_call(await task.wait())
        return {"result": task.handle}

    async def _wait(self, task: Task, step: Step, script: Script, noted: _Noted) -> dict[str, Any]:
        if step.until is None:
            return _of_call(await task.wait(answers=script, on_task=noted.task))
        if not task.id:
            raise ClientError("The call ended without a task, so it has no status to wait for")
        while True:
            state = await task.get()
            noted.task(state)
            if state.status == step.until:
                return {"result": state.status, "raw": state.raw}
            if state.is_over:
                raise TaskEnded(
                    state.status, f"The task is {state.status}, and will not be {step.until}"
                )
            await asyncio.sleep(min(max(state.poll_interval_ms or 1_000, 20), 60_000) / 1_000)

    async def _complete(self, step: Step) -> dict[str, Any]:
        name, filled = self._variables.text(step.complete or ""), self._variables.filled
        ref = (
            {"type": "ref/resource", "uri": name}
            if "://" in name
            else {"type": "ref/prompt", "name": name}
        )
        found = await self._client.complete(
            ref,
            step.argument or "",
            self._variables.text(step.value),
            {key: _as_text(one) for key, one in filled(step.arguments).items()},
        )
        return {"result": found.values, "raw": found.raw, "rounds": 1}

    def _task(self, name: str | None) -> Task:
        return self._tasks[name or ""]


class _Noted:
    """What was heard while a step was under way."""

    def __init__(self, step: Step) -> None:
        self._asked_for = step.expect.model_fields_set
        self._mentioned = " ".join(
            [*step.expect.jmespath, *(str(one) for one in step.save.values())]
        )
        self.progress: list[dict[str, Any]] = []
        self.logs: list[dict[str, Any]] = []
        self.statuses: list[str] = []
        self.task_id = ""

    def wants(self, what: str) -> bool:
        """Whether the step looks at it; a server need not be asked for what nobody looks at."""
        return what in self._asked_for or what in self._mentioned

    def progressed(self, one: Progress) -> None:
        if len(self.progress) < MAX_NOTED:
            self.progress.append(
                {"progress": one.progress, "total": one.total, "message": one.message}
            )

    def logged(self, one: Log) -> None:
        if len(self.logs) < MAX_NOTED:
            self.logs.append({"level": one.level, "logger": one.logger, "data": one.data})

    def task(self, state: TaskState) -> None:
        self.task_id = state.task_id
        if (not self.statuses or self.statuses[-1] != state.status) and len(
            self.statuses
        ) < MAX_NOTED:
            self.statuses.append(state.status)


def _of_call(result: CallResult) -> dict[str, Any]:
    return {
        "result": result.value,
        "text": result.text,
        "raw": result.raw,
        "is_error": result.is_error,
        "rounds": result.rounds,
    }


def _of_prompt(result: PromptResult) -> dict[str, Any]:
    texts = [_content_text(message.get("content")) for message in result.messages]
    return {
        "result": result.messages,
        "text": "\n".join(texts),
        "raw": result.raw,
        "rounds": result.rounds,
    }


def _content_text(content: Any) -> str:
    return str(content.get("text", "")) if isinstance(content, dict) else ""


def _of_read(result: ReadResult) -> dict[str, Any]:
    return {
        "result": result.contents,
        "text": result.text,
        "raw": result.raw,
        "rounds": result.rounds,
    }


def _question(question: Question) -> dict[str, Any]:
    return {
        "key": question.key,
        "kind": question.kind.value,
        "message": question.message,
        "round": question.round,
        "fields": question.fields,
        "url": question.url,
        "params": question.params,
    }


def _error(error: ClientError) -> dict[str, Any]:
    """An error as patterns see it; `hint` is for the report."""
    found: dict[str, Any] = {"kind": type(error).__name__, "message": error.on_command_line}
    match error:
        case RpcError():
            found |= {"code": error.code, "message": error.message, "data": error.details}
        case HttpRefused():
            found["status"] = error.status
        case TaskEnded():
            found["status"] = error.status
            if error.error is not None:
                found |= {
                    "code": error.error.code,
                    "message": error.error.message,
                    "data": error.error.details,
                }
        case Unanswered():
            found["questions"] = [one.as_json() for one in error.questions]
        case AnswerInvalid():
            found |= {"key": error.key, "problems": list(error.problems)}
    return found


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)
