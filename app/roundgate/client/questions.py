"""What a server asks during a call, and what counts as an answer.

A `Question` is one entry of `inputRequests` (or a request of an older server).
`response_to` turns what a caller gives for it into the result that goes over the wire,
checked against the schema of the question:

    question                 taken for an answer
    form                     an object; a bare value where the form has one field; `ACCEPT` for its defaults
    URL                      `True` or `ACCEPT` once it was opened
    sampling                 text, or a whole `CreateMessageResult`
    roots                    a list of URIs, or of objects with `uri` and `name`
    any                      `DECLINE`, `CANCEL` (of forms and URLs), or an object with `action`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final

from roundgate.client.types import Json
from roundgate.errors import AnswerInvalid, BadAnswer
from roundgate.protocol import page_host

ELICITATION: Final = "elicitation/create"
SAMPLING: Final = "sampling/createMessage"
ROOTS: Final = "roots/list"


class Kind(StrEnum):
    """What sort of answer a question wants."""

    FORM = "form"
    URL = "url"
    SAMPLING = "sampling"
    ROOTS = "roots"


class Action(Enum):
    """An answer that is not content."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"


def is_declared(kind: Kind, capabilities: Mapping[str, Any]) -> bool:
    """Whether a client with these capabilities said that it can be asked so."""
    if kind in (Kind.SAMPLING, Kind.ROOTS):
        return kind.value in capabilities
    modes = capabilities.get("elicitation")
    if not isinstance(modes, Mapping):
        return False
    return kind.value in modes or (kind is Kind.FORM and not modes)


ACCEPT: Final = Action.ACCEPT
DECLINE: Final = Action.DECLINE
CANCEL: Final = Action.CANCEL


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `target` is the tool, prompt or resource that asks, `round` counts from 1."""

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
        """Where a URL question sends the user."""
        return self.params["url"] if self.kind is Kind.URL else None

    @property
    def host(self) -> str | None:
        """Return the host that a URL question sends the user to, as a browser reads it; `None` for
        other questions."""
        return page_host(self.params["url"]) if self.kind is Kind.URL else None

    @property
    def schema(self) -> Json:
        """The schema of a form's content."""
        found = self.params.get("requestedSchema")
        return found if isinstance(found, dict) else {"type": "object", "properties": {}}

    @property
    def fields(self) -> dict[str, Json]:
        """The fields of a form, each with its schema."""
        found = self.schema.get("properties")
        return (
            {name: one for name, one in found.items() if isinstance(one, dict)}
            if isinstance(found, dict)
            else {}
        )

    @property
    def required(self) -> list[str]:
        """The names of the fields that a form needs."""
        found = self.schema.get("required")
        return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []

    @property
    def defaults(self) -> Json:
        """The fields of a form that have a default."""
        return {name: one["default"] for name, one in self.fields.items() if "default" in one}

    def problems(self, content: Any) -> list[str]:
        """What is wrong with a form's content, a sentence each; nothing if it fits."""
        from roundgate.protocol import Schema

        try:
            return Schema.compile(self.schema).problems(content, "answer")
        except ValueError as error:
            raise BadAnswer(
                f"The server asks {self.key!r} with a schema that cannot be used: {error}"
            ) from None

    @classmethod
    def read(cls, key: str, request: Any, target: str = "", round_: int = 1) -> Question:
        """From an entry of `inputRequests`.

        Raises:
            BadAnswer: it is no question that a client of the protocol knows.
        """
        method = request.get("method") if isinstance(request, dict) else None
        params = request.get("params", {}) if isinstance(request, dict) else None
        if not isinstance(method, str) or not isinstance(params, dict):
            raise BadAnswer(
                f"The server sent the input request {key[:80]!r}, which is no request object"
            )
        return cls(key, _kind(key, method, params), params, target, round_)

    def as_json(self) -> Json:
        """For people and programs that answer it elsewhere."""
        methods = {Kind.SAMPLING: SAMPLING, Kind.ROOTS: ROOTS}
        return {
            "key": self.key,
            "method": methods.get(self.kind, ELICITATION),
            "params": self.params,
        }


def _kind(key: str, method: str, params: Json) -> Kind:
    if method == ROOTS:
        return Kind.ROOTS
    if method == SAMPLING:
        if not isinstance(params.get("messages"), list):
            raise BadAnswer(f"The server asks {key[:80]!r} for a sample without messages")
        return Kind.SAMPLING
    if method != ELICITATION:
        raise BadAnswer(f"The server asks {key[:80]!r} by the unknown method {method[:80]!r}")
    mode = params.get("mode", "form")
    if mode == "url":
        try:
            page_host(params.get("url"))
        except ValueError as error:
            raise BadAnswer(
                f"The server asks {key[:80]!r} for a visit to a page that is not opened: {error}"
            ) from None
        return Kind.URL
    if mode != "form" or not isinstance(params.get("requestedSchema", {}), dict):
        raise BadAnswer(
            f"The server asks {key[:80]!r} in an unknown way: neither a form with a schema nor a "
            "URL"
        )
    return Kind.FORM


_ACTIONS: Final = frozenset(action.value for action in Action)


def response_to(question: Question, answer: Any) -> Json:
    """The result that answers a question, as it goes over the wire.

    Raises:
        AnswerInvalid: the answer does not fit.
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
    if answer in (DECLINE, CANCEL) and isinstance(answer, Action):
        return {"action": answer.value}
    if question.kind is Kind.URL:
        if answer is ACCEPT or answer is True:
            return {"action": "accept"}
        if answer is False:
            return {"action": "decline"}
        raise AnswerInvalid(
            question.key, ["a URL is answered by true once it was opened, or declined"]
        )
    return {"action": "accept", "content": _content(question, answer)}


def _content(question: Question, answer: Any) -> Json:
    if answer is ACCEPT:
        given: Json = {}
    elif isinstance(answer, Mapping):
        given = dict(answer)
    elif len(question.fields) == 1:
        given = {next(iter(question.fields)): answer}
    else:
        raise AnswerInvalid(
            question.key, [f"it needs an object with {', '.join(question.fields) or 'no members'}"]
        )
    content = {**question.defaults, **given}
    if problems := question.problems(content):
        raise AnswerInvalid(question.key, problems)
    return content


def _sampled(question: Question, answer: Any) -> Json:
    if isinstance(answer, str):
        text = {"type": "text", "text": answer}
        return {
            "role": "assistant",
            "content": text,
            "model": "roundgate.client",
            "stopReason": "endTurn",
        }
    if isinstance(answer, Mapping) and {"role", "content", "model"} <= answer.keys():
        return dict(answer)
    raise AnswerInvalid(
        question.key, ["a sample is text, or an object with role, content and model"]
    )


def _roots(question: Question, answer: Any) -> Json:
    if isinstance(answer, Mapping) and isinstance(answer.get("roots"), list):
        answer = answer["roots"]
    if not isinstance(answer, (list, tuple)):
        raise AnswerInvalid(question.key, ["roots are a list of file:// URIs"])
    roots = [{"uri": one} if isinstance(one, str) else one for one in answer]
    if not all(
        isinstance(one, Mapping) and str(one.get("uri", "")).startswith("file://") for one in roots
    ):
        raise AnswerInvalid(
            question.key, ["each root is a file:// URI, or an object with such a `uri`"]
        )
    return {"roots": [dict(one) for one in roots]}
