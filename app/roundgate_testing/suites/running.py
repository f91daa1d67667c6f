"""Running of suites: each case has its own client and runs its steps in order.

    step ──▶ references filled in ──▶ request, through rounds and task ──▶ outcome ──▶ expectations
    ──▶ variables

An outcome is a JSON object for patterns and JMESPath. Its members are `result`, `text`, `raw`,
`is_error` and `rounds`, if the action has them, or `error` instead; and `asked`, `progress`,
`logs`, `duration_ms` and, for a task, `task`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, TypeAlias

from roundgate import errors
from roundgate.client import (
    ACCEPT,
    Answers,
    CallResult,
    Client,
    Kind,
    Log,
    Progress,
    PromptResult,
    Question,
    ReadResult,
    Task,
    TaskState,
)
from roundgate.clock import Clock
from roundgate.json import decode
from roundgate.settings.redacting import Secrets
from roundgate_testing.suites.expecting import Mismatch, Snapshots, Unmet, differences, unmet
from roundgate_testing.suites.loading import SuiteFile
from roundgate_testing.suites.models import AnswerRule, Case, Save, SuiteStep
from roundgate_testing.suites.results import CaseResult, Failure, Verdict
from roundgate_testing.suites.variables import Variables, as_text, search

MAX_NOTED: Final = 10_000
"""The limit on the progress notifications, log messages and statuses recorded in a step."""

GivenAnswers: TypeAlias = Mapping[str, Any] | list[AnswerRule]


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """A run of one suite. `connect` makes a client of the server under test."""

    file: SuiteFile
    connect: Callable[[], AbstractAsyncContextManager[Client]]
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
        """Run cases, at most `jobs` concurrently; return their results in the order of `chosen`.

        Args:
            chosen: the indexes of the cases in the suite.
            begun: called with each case as it begins.
            done: called with each result, in the order of `chosen`.
            stops: called with each result immediately; once it returns True, no further case
                begins.
        """
        results: dict[int, CaseResult] = {}
        waiting = list(reversed(chosen))
        reported = 0
        stopped = False

        async def work() -> None:
            nonlocal reported, stopped
            while waiting and not stopped:
                index = waiting.pop()
                begun(self.file.suite.cases[index])
                results[index] = await self.case(index)
                stopped = stopped or stops(results[index])
                while reported < len(chosen) and chosen[reported] in results:
                    done(results[chosen[reported]])
                    reported += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(min(jobs, len(chosen))):
                group.create_task(work())
        return [results[index] for index in chosen if index in results]

    async def case(self, index: int) -> CaseResult:
        """Run or skip the case with this index."""
        case = self.file.suite.cases[index]
        result = CaseResult(
            self.file.name, case.name, self.file.line("cases", index), Verdict.PASSED
        )
        if case.skip is not None:
            return replace(result, verdict=Verdict.SKIPPED, reason=case.skip)
        begun_ms = self.clock.monotonic_ms()
        failure = await self._failure(case, index)
        verdict = Verdict.PASSED if failure is None else Verdict.FAILED
        duration_ms = self.clock.monotonic_ms() - begun_ms
        return replace(result, verdict=verdict, duration_ms=duration_ms, failure=failure)

    async def _failure(self, case: Case, index: int) -> Failure | None:
        at: tuple[str | int, ...] = ("cases", index)
        steps: Sequence[SuiteStep] = case.steps or [case]
        number, title, line = 0, case.name, self.file.line(*at)
        try:
            variables = Variables({}, self.file.folder, self.environ, self.secrets)
            variables.values["unique"] = self.clock.new_id()
            variables.define(self.file.suite.variables)
            async with self.connect() as client:
                running = _RunningCase(self, client, variables, case)
                for number, step in enumerate(steps, 1):
                    title = step.title
                    line = self.file.line(*at, *(("steps", number - 1) if case.steps else ()))
                    if (result := await running.step(step, number)) is not None:
                        return self._without_secrets(number, title, line, *result)
        except (errors.ClientError, errors.UsageError, ValueError) as error:
            message = error.on_command_line if isinstance(error, errors.ClientError) else str(error)
            return self._without_secrets(number, title, line, message, [])
        return None

    def _without_secrets(
        self,
        number: int,
        title: str,
        line: int | None,
        message: str,
        shown_differences: Sequence[Mismatch],
    ) -> Failure:
        hide = self.secrets.hidden
        hidden = [
            Mismatch(
                hide(difference.path),
                hide(difference.expected),
                hide(difference.actual),
                tuple(map(hide, difference.lines)),
            )
            for difference in shown_differences
        ]
        return Failure(number, hide(title), line, hide(message), hidden)


class _RunningCase:
    """A case while it runs: its client, its variables, and the tasks it has started."""

    def __init__(self, run: SuiteRun, client: Client, variables: Variables, case: Case) -> None:
        self._run = run
        self._client = client
        self._variables = variables
        self._case = case
        self._tasks: dict[str, Task] = {}

    async def step(self, step: SuiteStep, number: int) -> Unmet | None:
        """Run a step and save its variables; return the failed expectation, or `None`.

        Raises:
            ValueError: a reference cannot be resolved, or an expression cannot be applied.
        """
        run, variables = self._run, self._variables
        common = self._answers(run.file.suite.answers)
        script = Script(self._answers(step.answers), common, run.secrets)
        outcome = await self._outcome(step, script)
        result = unmet(step.expect, outcome, variables.filled, run.file.folder)
        if result is None:
            name = f"{self._case.name}, step {number}" if self._case.steps else self._case.name
            result = run.snapshots.unmet(name, step.expect.snapshot, outcome, run.secrets)
        if result is not None:
            return result
        if unused := script.unused:
            return f"these answers matched no question: {', '.join(unused)}", []
        for variable, save in step.save.items():
            expression = save.of if isinstance(save, Save) else save
            value = search(expression, outcome)
            if value is None:
                started_names = ", ".join(sorted(outcome))
                return (
                    f"save: {expression} has no value in the outcome, whose members are {started_names}",
                    [],
                )
            if isinstance(save, Save) and save.secret:
                run.secrets.add(value)
            variables.values[variable] = value
        return None

    def _answers(self, answers: GivenAnswers) -> GivenAnswers:
        filled = self._variables.filled
        if isinstance(answers, list):
            rules = [filled(rule.model_dump(exclude_unset=True)) for rule in answers]
            return [AnswerRule.model_validate(rule) for rule in rules]
        by_key: Mapping[str, Any] = filled(dict(answers))
        return by_key

    async def _outcome(self, step: SuiteStep, script: Script) -> dict[str, Any]:
        noted = _Noted(step)
        limit_s = step.timeout_s or self._run.file.suite.timeout_s
        begun_ms = self._run.clock.monotonic_ms()
        try:
            try:
                async with asyncio.timeout(limit_s):
                    outcome = await self._act(step, script, noted)
            except TimeoutError:
                raise errors.TimedOut(f"No result within {limit_s:g} s (timeout_s)") from None
        except errors.ClientError as error:
            outcome = {"error": _error(error)}
        outcome["duration_ms"] = round(self._run.clock.monotonic_ms() - begun_ms, 3)
        outcome["asked"] = [_question(question) for question in script.asked]
        outcome["progress"], outcome["logs"] = noted.progress, noted.logs
        if noted.statuses:
            outcome["task"] = {"id": noted.task_id, "statuses": noted.statuses}
        return outcome

    async def _act(self, step: SuiteStep, script: Script, noted: _Noted) -> dict[str, Any]:
        (action,) = step.actions
        text, client = self._variables.text, self._client
        match action:
            case "call" | "start":
                return await self._call(step, script, noted)
            case "wait":
                return await self._wait(self._tasks[step.wait or ""], step, script, noted)
            case "cancel":
                task = self._tasks[step.cancel or ""]
                await task.cancel()
                noted.task(await task.get())
                return {"result": noted.statuses[-1], "rounds": 1}
            case "prompt":
                name, arguments = text(step.prompt or ""), self._texts(step.arguments)
                return _json_from_prompt(await client.prompt(name, arguments, answers=script))
            case "read":
                resource = await client.read(text(step.read or ""), answers=script)
                return _json_from_result(resource, resource.contents, resource.text)
            case "complete":
                return await self._complete(step)
            case "list":
                lists: dict[str, Callable[[], Any]] = {
                    "tools": client.tools,
                    "prompts": client.prompts,
                    "resources": client.resources,
                    "templates": client.resource_templates,
                }
                listed = [entry.raw for entry in await lists[step.list_ or "tools"]()]
                return {"result": listed, "raw": listed}
            case _:
                params = self._variables.filled(step.params)
                raw = await client.request(text(step.request or ""), params)
                return {"result": raw, "raw": raw, "rounds": 1}

    def _texts(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        return {
            key: as_text(value) for key, value in self._variables.filled(dict(arguments)).items()
        }

    async def _call(self, step: SuiteStep, script: Script, noted: _Noted) -> dict[str, Any]:
        task = await self._client.start(
            self._variables.text(step.call or step.start or ""),
            self._variables.filled(step.arguments),
            answers=script,
            max_rounds=step.max_rounds,
            on_progress=noted.progressed if noted.is_used("progress") else None,
            on_log=noted.logged if noted.is_used("logs") else None,
            log_level="debug",
        )
        if task.state is not None:
            noted.task(task.state)
        if step.start is None:
            return _json_from_call(await task.wait(answers=script, on_task=noted.task))
        self._tasks[step.as_ or step.start] = task
        if task.handle is None:
            return _json_from_call(await task.wait())
        return {"result": task.handle}

    async def _wait(
        self, task: Task, step: SuiteStep, script: Script, noted: _Noted
    ) -> dict[str, Any]:
        if step.until is None:
            return _json_from_call(await task.wait(answers=script, on_task=noted.task))
        if not task.id:
            raise errors.ClientError(
                "The call ended without a task, so there is no status to wait for"
            )
        while True:
            state = await task.get()
            noted.task(state)
            if state.status == step.until:
                return {"result": state.status, "raw": state.raw}
            if state.is_over:
                message = f"The task is {state.status}, and can no longer become {step.until}"
                raise errors.TaskEnded(state.status, message)
            await asyncio.sleep(min(max(state.poll_interval_ms or 1_000, 20), 60_000) / 1_000)

    async def _complete(self, step: SuiteStep) -> dict[str, Any]:
        name = self._variables.text(step.complete or "")
        ref = (
            {"type": "ref/resource", "uri": name}
            if "://" in name
            else {"type": "ref/prompt", "name": name}
        )
        value, context = self._variables.text(step.value), self._texts(step.arguments)
        completed = await self._client.complete(ref, step.argument or "", value, context)
        return {"result": completed.values, "raw": completed.raw, "rounds": 1}


class Script:
    """The answers of a step, then the answers of its suite. `asked` lists the questions in
    order."""

    def __init__(self, own: GivenAnswers, common: GivenAnswers, secrets: Secrets) -> None:
        self._own = _Rules(own) if isinstance(own, list) else Answers(own)
        self._common = _Rules(common) if isinstance(common, list) else Answers(common)
        self._secrets = secrets
        self.asked: list[Question] = []

    async def __call__(self, question: Question) -> Any:
        """Return the answer to a question, or `None`. Answers to password fields are redacted."""
        self.asked.append(question)
        answer = await self._own(question)
        if answer is None:
            answer = await self._common(question)
        self._keep_secret(question, answer)
        return answer

    @property
    def unused(self) -> list[str]:
        """The step's own answers that matched no question."""
        return self._own.unused

    def _keep_secret(self, question: Question, answer: Any) -> None:
        for name, schema in question.fields.items():
            if schema.get("format") == "password" or schema.get("writeOnly") is True:
                content = answer.get("content", answer) if isinstance(answer, Mapping) else answer
                value = content.get(name) if isinstance(content, Mapping) else content
                self._secrets.add(value if isinstance(value, str | int | float) else None)


class _Rules:
    """Answer rules in order. The first rule that matches a question and has an answer is used."""

    def __init__(self, rules: list[AnswerRule]) -> None:
        self._rules = rules
        self._used: set[int] = set()

    @property
    def unused(self) -> list[str]:
        return [_named(rule) for at, rule in enumerate(self._rules) if at not in self._used]

    async def __call__(self, question: Question) -> Any:
        for at, rule in enumerate(self._rules):
            if _matches(rule, question) and (answer := _answer(rule, question)) is not None:
                self._used.add(at)
                return answer
        return None


def _matches(rule: AnswerRule, question: Question) -> bool:
    return (
        rule.key in (None, question.key)
        and rule.round in (None, question.round)
        and rule.kind in (None, question.kind.value)
        and (
            rule.message is None or not differences({"$regex": rule.message}, question.message, "")
        )
    )


def _answer(rule: AnswerRule, question: Question) -> Any:
    if not rule.defaults:
        return rule.answer
    is_enough = question.kind is Kind.FORM and not question.problems(question.defaults)
    return ACCEPT if is_enough else None


def _named(rule: AnswerRule) -> str:
    conditions = rule.model_dump(include={"key", "round", "kind", "message"}, exclude_none=True)
    return ", ".join(f"{name} {value}" for name, value in conditions.items()) or "any question"


class _Noted:
    """The notifications and task statuses received during a step."""

    def __init__(self, step: SuiteStep) -> None:
        self._expressions = " ".join(
            [*step.expect.jmespath, str(step.expect.snapshot), *map(str, step.save.values())]
        )
        self.progress: list[dict[str, Any]] = []
        self.logs: list[dict[str, Any]] = []
        self.statuses: list[str] = []
        self.task_id = ""

    def is_used(self, name: str) -> bool:
        """Return whether an expression of the step contains the name of a part of the outcome. If
        none does, the server is not asked for this part."""
        return name in self._expressions

    def progressed(self, progress: Progress) -> None:
        if len(self.progress) < MAX_NOTED:
            self.progress.append(asdict(progress))

    def logged(self, log: Log) -> None:
        if len(self.logs) < MAX_NOTED:
            self.logs.append(asdict(log))

    def task(self, state: TaskState) -> None:
        self.task_id = state.task_id
        is_new = not self.statuses or self.statuses[-1] != state.status
        if is_new and len(self.statuses) < MAX_NOTED:
            self.statuses.append(state.status)


def _json_from_result(
    result: CallResult | PromptResult | ReadResult, value: Any, text: str
) -> dict[str, Any]:
    return {"result": value, "text": text, "raw": result.raw, "rounds": result.rounds}


def _json_from_call(result: CallResult) -> dict[str, Any]:
    is_structured = "structuredContent" in result.raw
    value = result.value if is_structured else _json_in(result.text)
    return {**_json_from_result(result, value, result.text), "is_error": result.is_error}


def _json_in(text: str) -> Any:
    """Return the object or list that a text is as JSON, or the text. Many tools return JSON as text
    alone. A number stays text: its spelling may matter."""
    try:
        value = decode(text.encode())
    except (errors.ParseError, UnicodeEncodeError):
        return text
    return value if isinstance(value, dict | list) else text


def _json_from_prompt(result: PromptResult) -> dict[str, Any]:
    contents = [message.get("content") for message in result.messages]
    texts = [
        str(content.get("text", "")) if isinstance(content, dict) else "" for content in contents
    ]
    return _json_from_result(result, result.messages, "\n".join(texts))


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


def _error(error: errors.ClientError) -> dict[str, Any]:
    outcome: dict[str, Any] = {"kind": type(error).__name__, "message": error.on_command_line}
    match error:
        case errors.RpcError():
            outcome |= _json_from_rpc_error(error)
        case errors.HttpRefused():
            outcome["status"] = error.status
        case errors.TaskEnded():
            outcome["status"] = error.status
            outcome |= {} if error.error is None else _json_from_rpc_error(error.error)
        case errors.Unanswered():
            outcome["questions"] = [question.as_json() for question in error.questions]
        case errors.AnswerInvalid():
            outcome |= {"key": error.key, "problems": list(error.problems)}
    return outcome


def _json_from_rpc_error(error: errors.RpcError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "data": error.details}
