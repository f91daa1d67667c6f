"""Questions of calls and tasks as forms in a page, and posted forms as answers.

The template `questions.html` shows the forms. A question has the number of its place, because its key
may be any text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roundgate.client.questions import Kind, Question
from roundgate.console.forms import Form, Posted, make_form, read_form
from roundgate.errors import BadAnswer

_ANSWER: Final = "answer/"
_ACTION: Final = "action/"
_ACTIONS: Final = frozenset({"accept", "decline", "cancel"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its form."""

    question: Question
    form: Form
    action_name: str
    """The name of the input that accepts, declines or cancels."""
    action: str
    """The chosen action."""

    @property
    def is_page(self) -> bool:
        """Whether the question is answered on a page of a service."""
        return self.question.kind is Kind.URL


@dataclass(frozen=True, slots=True)
class Answers:
    """Posted answers."""

    responses: dict[str, Any]
    """The answers as `inputResponses`."""
    problems: Mapping[str, str]
    """The problem of each input that is not a JSON value of its type."""


def questions_of(requests: Mapping[str, Any]) -> list[Question]:
    """Return the questions in `inputRequests`.

    Raises:
        BadAnswer: a request is not a question that people can answer in a page.
    """
    questions = [Question.read(key, request) for key, request in requests.items()]
    if any(question.kind not in (Kind.FORM, Kind.URL) for question in questions):
        raise BadAnswer("The console answers forms and pages only")
    return questions


def asked(
    questions: Sequence[Question],
    posted: Posted | None = None,
    problems: Mapping[str, str] | None = None,
) -> list[Asked]:
    """Return questions with their forms, as they were filled in."""
    return [
        Asked(
            question,
            make_form(question.schema, f"{_ANSWER}{number}/", posted, problems),
            f"{_ACTION}{number}",
            (posted or {}).get(f"{_ACTION}{number}", ["accept"])[0],
        )
        for number, question in enumerate(questions)
    ]


def read_answers(questions: Sequence[Question], posted: Posted) -> Answers:
    """Return the answers in a posted form."""
    responses, problems = dict[str, Any](), dict[str, str]()
    for number, question in enumerate(questions):
        action = posted.get(f"{_ACTION}{number}", [""])[0]
        response: dict[str, Any] = {"action": action if action in _ACTIONS else "cancel"}
        if action == "accept" and question.kind is Kind.FORM:
            read = read_form(question.schema, posted, f"{_ANSWER}{number}/")
            response["content"] = read.value
            problems |= read.problems
        responses[question.key] = response
    return Answers(responses, problems)
