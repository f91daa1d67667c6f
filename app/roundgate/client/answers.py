"""Where answers come from: keys, schemas, functions, people, one after the other.

Whatever a caller passes as `answers=` becomes an `Answers`:

    {"confirm": {"go": True}}            by the key of a question, else by the names of a form's fields
    lambda question: …                   a function, plain or async; `None` means: not from me
    [first, second]                      the first that knows an answer
    by_schema({"type": "boolean"}, True) every form field whose schema has these members
    defaults                             forms whose required fields all have defaults
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from roundgate.client.questions import ACCEPT, Kind, Question, response_to
from roundgate.client.types import Json
from roundgate.errors import Unanswered

Answerer: TypeAlias = Callable[[Question], Any | Awaitable[Any]]
AnswersLike: TypeAlias = "Answers | Mapping[str, Any] | Answerer | Sequence[Any] | None"


class Answers:
    """Sources that are asked in turn. `unused` are the keys of mappings that no
    question ever asked for."""

    def __init__(self, *sources: AnswersLike) -> None:
        self._sources = [_source(one) for one in sources if one is not None]

    @classmethod
    def of(cls, given: AnswersLike) -> Answers:
        """What a caller passed, as `Answers`."""
        return given if isinstance(given, Answers) else cls(given)

    @property
    def unused(self) -> list[str]:
        return [
            key
            for source in self._sources
            if isinstance(source, _ByKey | Answers)
            for key in source.unused
        ]

    async def __call__(self, question: Question) -> Any:
        """The first answer that any source has, `None` if none has one."""
        for source in self._sources:
            found = source(question)
            if inspect.isawaitable(found):
                found = await found
            if found is not None:
                return found
        return None


def _source(given: Any) -> Answerer:
    if isinstance(given, Answers):
        return given
    if isinstance(given, Mapping):
        return _ByKey(given)
    if callable(given):
        return given  # type: ignore[no-any-return]
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
        return Answers(*given)
    raise TypeError("answers are a mapping, a function, or a list of these")


class _ByKey:
    """Answers by the key of a question; where it has none, the values of a form's
    fields by their names."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self._used: set[str] = set()

    @property
    def unused(self) -> list[str]:
        return [key for key in self._given if key not in self._used]

    def __call__(self, question: Question) -> Any:
        if question.key in self._given:
            self._used.add(question.key)
            answer = self._given[question.key]
            return answer(question) if callable(answer) else answer
        if question.kind is not Kind.FORM:
            return None
        known = {name: self._given[name] for name in question.fields if name in self._given}
        defaults_ = question.defaults
        if not known or any(
            name not in known and name not in defaults_ for name in question.required
        ):
            return None
        self._used |= known.keys()
        return known


def by_schema(pattern: Mapping[str, Any], value: Any) -> Answerer:
    """Answers a form if every field that needs a value has one by default or has
    all members of `pattern`."""

    def answer(question: Question) -> Json | None:
        if question.kind is not Kind.FORM:
            return None
        filled = {
            name: value for name, one in question.fields.items() if pattern.items() <= one.items()
        }
        is_whole = all(name in filled or name in question.defaults for name in question.required)
        return filled if filled and is_whole else None

    return answer


def defaults(question: Question) -> Any:
    """Answers a form with the defaults of its schema, if that is enough."""
    if question.kind is Kind.FORM and not question.problems(question.defaults):
        return ACCEPT
    return None


async def answer_all(
    questions: Sequence[Question], answers: Answers, request_state: str | None = None
) -> dict[str, Json]:
    """A response to each question, by key.

    Raises:
        Unanswered: no source answers one; carries all that are open.
        AnswerInvalid: an answer does not fit its question.
    """
    responses: dict[str, Json] = {}
    for question in questions:
        answer = await answers(question)
        if answer is not None:
            responses[question.key] = response_to(question, answer)
    if open_ := [one for one in questions if one.key not in responses]:
        asked = "; ".join(
            f"{one.key}: {one.message[:200]}" if one.message else one.key for one in open_[:5]
        )
        raise Unanswered(
            f"The server asks, and no answer was given ({asked})", open_, request_state
        )
    return responses
