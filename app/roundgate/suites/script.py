"""Who answers in a step: what the suite says, and a note of everything that was asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from roundgate.client import ACCEPT, Answers, Kind, Question, by_schema
from roundgate.suites import patterns
from roundgate.suites.models import AnswerRule
from roundgate.suites.variables import Secrets

Given: TypeAlias = Mapping[str, Any] | list[AnswerRule]


class Script:
    """Answers from a step, then from its suite. `asked` are the questions in the
    order in which they came."""

    def __init__(self, given: Given, common: Given, secrets: Secrets) -> None:
        self._own = _Rules(given) if isinstance(given, list) else Answers(given)
        self._common = _Rules(common) if isinstance(common, list) else Answers(common)
        self._secrets = secrets
        self._by_name = given if isinstance(given, Mapping) else {}
        self._met: set[str] = set()
        self.asked: list[Question] = []

    async def __call__(self, question: Question) -> Any:
        """The answer to a question, `None` if the suite has none."""
        self.asked.append(question)
        self._met |= {question.key, *question.fields}
        answer = await self._own(question)
        if answer is None:
            answer = await self._common(question)
        self._keep_secret(question, answer)
        return answer

    @property
    def unused(self) -> list[str]:
        """The step's own answers that no question asked for."""
        return self._own.unused

    def _keep_secret(self, question: Question, answer: Any) -> None:
        for name, field in question.fields.items():
            if field.get("format") == "password" or field.get("writeOnly") is True:
                content = answer.get("content", answer) if isinstance(answer, Mapping) else answer
                value = content.get(name) if isinstance(content, Mapping) else content
                self._secrets.add(value if isinstance(value, str | int | float) else None)


class _Rules:
    """Rules in their order; the first that fits a question answers it."""

    def __init__(self, rules: list[AnswerRule]) -> None:
        self._rules = rules
        self._used: set[int] = set()

    @property
    def unused(self) -> list[str]:
        return [_named(rule) for at, rule in enumerate(self._rules) if at not in self._used]

    async def __call__(self, question: Question) -> Any:
        for at, rule in enumerate(self._rules):
            if _fits(rule, question) and (answer := _answer(rule, question)) is not None:
                self._used.add(at)
                return answer
        return None


def _fits(rule: AnswerRule, question: Question) -> bool:
    return (
        rule.key in (None, question.key)
        and rule.round in (None, question.round)
        and rule.kind in (None, question.kind.value)
        and (rule.message is None or patterns.regex_matches(rule.message, question.message))
    )


def _answer(rule: AnswerRule, question: Question) -> Any:
    if rule.field is not None:
        return by_schema(rule.field, rule.value)(question)
    if not rule.defaults:
        return rule.answer
    is_enough = question.kind is Kind.FORM and not question.problems(question.defaults)
    return ACCEPT if is_enough else None


def _named(rule: AnswerRule) -> str:
    said = rule.model_dump(include={"key", "round", "kind", "message", "field"}, exclude_none=True)
    return ", ".join(f"{name} {value}" for name, value in said.items()) or "any question"
