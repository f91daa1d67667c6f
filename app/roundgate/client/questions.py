"""Questions that a server asks during a call, and the sources of their answers.

A `Question` is one entry of `inputRequests`, or a request of an older server. `response_to` checks
an answer against the schema of the question and turns it into the result to send:

    question     accepted answers
    form         an object; a bare value if the form has one field; `ACCEPT` for its defaults
    URL          `True` or `ACCEPT` once the page was opened, `False` to decline
    sampling     text, or a whole `CreateMessageResult`
    roots        a list of URIs, or of objects with `uri` and `name`
    form, URL    also `DECLINE`, `CANCEL`, or an object with `action`

The argument `answers=` of a client or a call is one of these, and becomes an `Answers`:

    {"confirm": {"go": True}}            by a question's key, else by the names of a form's fields
    lambda question: …                   a function, plain or async; `None` means no answer
    [first, second]                      sources; the first one with an answer counts
    by_schema({"type": "boolean"}, True) every form field whose schema has these members
    defaults                             forms whose required fields all have defaults
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Any, Final, TypeAlias

from msgspec import Struct

from roundgate.client.types import Json
from roundgate.errors import AnswerInvalid, BadAnswer, Unanswered
from roundgate.protocol import page_host

_ELICITATION: Final = "elicitation/create"
_SAMPLING: Final = "sampling/createMessage"
_ROOTS: Final = "roots/list"


class Kind(StrEnum):
    """The kind of a question."""

    FORM = "form"
    URL = "url"
    SAMPLING = "sampling"
    ROOTS = "roots"


class AnswerAction(Enum):
    """An answer without content."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"


ACCEPT: Final = AnswerAction.ACCEPT
DECLINE: Final = AnswerAction.DECLINE
CANCEL: Final = AnswerAction.CANCEL
_ACTIONS: Final = frozenset(action.value for action in AnswerAction)


class Question(Struct, frozen=True):
    """A question of the server. `target` is the tool, prompt or resource that asks; `round` counts from 1."""

    key: str
    kind: Kind
    params: Json
    target: str = ""
    round: int = 1

    @property
    def message(self) -> str:
        return str(self.params.get("message", ""))

    @property
    def url(self) -> str | None:
        """The page to which a URL question sends the user; `None` for other questions."""
        return self.params["url"] if self.kind is Kind.URL else None

    @property
    def host(self) -> str | None:
        """The host to which a URL question sends the user, as a browser reads it; `None` for other
        questions."""
        return page_host(self.params["url"]) if self.kind is Kind.URL else None

    @property
    def schema(self) -> Json:
        """The schema of a form's content."""
        schema = self.params.get("requestedSchema")
        return schema if isinstance(schema, dict) else {"type": "object", "properties": {}}

    @property
    def fields(self) -> dict[str, Json]:
        """The fields of a form, each with its schema."""
        fields = self.schema.get("properties")
        items = fields.items() if isinstance(fields, dict) else ()
        return {name: schema for name, schema in items if isinstance(schema, dict)}

    @property
    def required(self) -> list[str]:
        """The names of a form's required fields."""
        names = self.schema.get("required")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    @property
    def defaults(self) -> Json:
        """The default values of a form's fields, by name."""
        return {
            name: schema["default"] for name, schema in self.fields.items() if "default" in schema
        }

    def problems(self, content: Any) -> list[str]:
        """Return the problems of a form's content, one sentence each; empty if the content is
        valid. Raise `BadAnswer` if the question's schema cannot be used."""
        from roundgate.protocol import Schema

        try:
            return Schema.compile(self.schema).problems(content, "answer")
        except ValueError as error:
            raise BadAnswer(
                f"The server's question {self.key!r} has an unusable schema: {error}"
            ) from None

    def is_declared_in(self, capabilities: Mapping[str, Any]) -> bool:
        """Return whether a client with these capabilities may be asked this question."""
        if self.kind in (Kind.SAMPLING, Kind.ROOTS):
            return self.kind.value in capabilities
        modes = capabilities.get("elicitation")
        if not isinstance(modes, Mapping):
            return False
        return self.kind.value in modes or (self.kind is Kind.FORM and not modes)

    @classmethod
    def read(cls, key: str, request: Any, target: str = "", round_: int = 1) -> Question:
        """Read an entry of `inputRequests`.

        Raises:
            BadAnswer: the entry is not a question of the protocol.
        """
        method = request.get("method") if isinstance(request, dict) else None
        params = request.get("params", {}) if isinstance(request, dict) else None
        if not isinstance(method, str) or not isinstance(params, dict):
            raise BadAnswer(
                f"The server sent the input request {key[:80]!r}, which is not a request object"
            )
        return cls(key, _kind(key, method, params), params, target, round_)

    def as_json(self) -> Json:
        """Return the question as JSON, for people and programs that answer it."""
        methods = {Kind.SAMPLING: _SAMPLING, Kind.ROOTS: _ROOTS}
        method = methods.get(self.kind, _ELICITATION)
        return {"key": self.key, "method": method, "params": self.params}


def _kind(key: str, method: str, params: Json) -> Kind:
    question = f"The server's question {key[:80]!r}"
    if method == _ROOTS:
        return Kind.ROOTS
    if method == _SAMPLING:
        if not isinstance(params.get("messages"), list):
            raise BadAnswer(f"{question} requests a sample without messages")
        return Kind.SAMPLING
    if method != _ELICITATION:
        raise BadAnswer(f"{question} has the unknown method {method[:80]!r}")
    mode = params.get("mode", "form")
    if mode == "url":
        try:
            page_host(params.get("url"))
        except ValueError as error:
            raise BadAnswer(f"{question} has an unusable URL: {error}") from None
        return Kind.URL
    if mode != "form" or not isinstance(params.get("requestedSchema", {}), dict):
        raise BadAnswer(f"{question} must be a form with a schema, or a URL")
    return Kind.FORM


# -- responses -------------------------------------------------------------------------------------


def response_to(question: Question, answer: Any) -> Json:
    """Return the result to send as the answer to a question.

    Raises:
        AnswerInvalid: the answer does not match its question.
    """
    if question.kind is Kind.SAMPLING:
        return _sampled(question, answer)
    if question.kind is Kind.ROOTS:
        return _roots(question, answer)
    if (
        isinstance(answer, Mapping)
        and answer.get("action") in _ACTIONS
        and answer.keys() <= {"action", "content", "_meta"}
    ):
        if answer["action"] != "accept":
            return dict(answer)
        answer = answer.get("content", ACCEPT)
    if answer is DECLINE or answer is CANCEL:
        return {"action": answer.value}
    if question.kind is Kind.URL:
        if answer is not ACCEPT and not isinstance(answer, bool):
            problem = "answer a URL with true once the page was opened, or decline it"
            raise AnswerInvalid(question.key, [problem])
        return {"action": "accept" if answer else "decline"}
    return {"action": "accept", "content": _content(question, answer)}


def _content(question: Question, answer: Any) -> Json:
    if answer is ACCEPT:
        values: Json = {}
    elif isinstance(answer, Mapping):
        values = dict(answer)
    elif len(question.fields) == 1:
        values = {next(iter(question.fields)): answer}
    else:
        problem = f"it needs an object with {', '.join(question.fields) or 'no members'}"
        raise AnswerInvalid(question.key, [problem])
    content = {**question.defaults, **values}
    if problems := question.problems(content):
        raise AnswerInvalid(question.key, problems)
    return content


def _sampled(question: Question, answer: Any) -> Json:
    if isinstance(answer, str):
        content = {"type": "text", "text": answer}
        model = {"model": "roundgate.client", "stopReason": "endTurn"}
        return {"role": "assistant", "content": content, **model}
    if isinstance(answer, Mapping) and {"role", "content", "model"} <= answer.keys():
        return dict(answer)
    problem = "a sample must be text, or an object with role, content and model"
    raise AnswerInvalid(question.key, [problem])


def _roots(question: Question, answer: Any) -> Json:
    if isinstance(answer, Mapping) and isinstance(answer.get("roots"), list):
        answer = answer["roots"]
    if not isinstance(answer, (list, tuple)):
        raise AnswerInvalid(question.key, ["roots must be a list of file:// URIs"])
    roots = [{"uri": root} if isinstance(root, str) else root for root in answer]
    if not all(
        isinstance(root, Mapping) and str(root.get("uri", "")).startswith("file://")
        for root in roots
    ):
        problem = "each root must be a file:// URI, or an object with a file:// URI as `uri`"
        raise AnswerInvalid(question.key, [problem])
    return {"roots": [dict(root) for root in roots]}


# -- sources of answers ----------------------------------------------------------------------------

Answerer: TypeAlias = Callable[[Question], Any | Awaitable[Any]]
AnswersLike: TypeAlias = "Answers | Mapping[str, Any] | Answerer | Sequence[Any] | None"


class Answers:
    """Sources of answers, tried in order."""

    def __init__(self, *sources: AnswersLike) -> None:
        self._sources = [_source(source) for source in sources if source is not None]

    @classmethod
    def of(cls, answers: AnswersLike) -> Answers:
        """Return `answers` as an `Answers`."""
        return answers if isinstance(answers, Answers) else cls(answers)

    @property
    def unused(self) -> list[str]:
        """The keys of mappings that matched no question."""
        return [
            key
            for source in self._sources
            if isinstance(source, _ByKey | Answers)
            for key in source.unused
        ]

    async def __call__(self, question: Question) -> Any:
        """Return the answer of the first source that has an answer, or `None`."""
        for source in self._sources:
            answer = source(question)
            if inspect.isawaitable(answer):
                answer = await answer
            if answer is not None:
                return answer
        return None


def _source(source: Any) -> Answerer:
    if isinstance(source, Mapping):
        return _ByKey(source)
    if callable(source):
        return source  # type: ignore[no-any-return]
    if isinstance(source, Iterable) and not isinstance(source, (str, bytes)):
        return Answers(*source)
    raise TypeError("answers must be a mapping, a function, or a list of these")


class _ByKey:
    """Answers by the key of a question, or by the names of a form's fields."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers
        self._used: set[str] = set()

    @property
    def unused(self) -> list[str]:
        return [key for key in self._answers if key not in self._used]

    def __call__(self, question: Question) -> Any:
        if question.key in self._answers:
            self._used.add(question.key)
            answer = self._answers[question.key]
            return answer(question) if callable(answer) else answer
        if question.kind is not Kind.FORM:
            return None
        known = {name: self._answers[name] for name in question.fields if name in self._answers}
        if not known or not _fills(question, known):
            return None
        self._used |= known.keys()
        return known


def _fills(question: Question, values: Json) -> bool:
    return question.required == [
        name for name in question.required if name in values or name in question.defaults
    ]


def by_schema(pattern: Mapping[str, Any], value: Any) -> Answerer:
    """Return a source that answers forms: `value` for each field whose schema has all members of
    `pattern`. The source has no answer if another required field has no default."""

    def answer(question: Question) -> Json | None:
        if question.kind is not Kind.FORM:
            return None
        fields = question.fields.items()
        values = {name: value for name, schema in fields if pattern.items() <= schema.items()}
        return values if values and _fills(question, values) else None

    return answer


def defaults(question: Question) -> Any:
    """Return `ACCEPT` for a form whose defaults are a valid answer, otherwise `None`."""
    if question.kind is Kind.FORM and not question.problems(question.defaults):
        return ACCEPT
    return None


async def answer_all(
    questions: Sequence[Question], answers: Answers, request_state: str | None = None
) -> dict[str, Json]:
    """Return a response to each question, by key.

    Raises:
        Unanswered: a question has no answer. The error holds all open questions and
            `request_state`.
        AnswerInvalid: an answer does not match its question.
    """
    responses: dict[str, Json] = {}
    for question in questions:
        answer = await answers(question)
        if answer is not None:
            responses[question.key] = response_to(question, answer)
    if unanswered := [question for question in questions if question.key not in responses]:
        texts = [(question.key, question.message[:200]) for question in unanswered[:5]]
        listed = "; ".join(f"{key}: {message}" if message else key for key, message in texts)
        raise Unanswered(
            f"The server asks questions without an answer ({listed})", unanswered, request_state
        )
    return responses
