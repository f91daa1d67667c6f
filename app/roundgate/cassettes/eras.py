"""The calls of a cassette, made again in another revision of the protocol: does the
tool answer the same there?

How a question travels differs from one revision to another; what is asked, what is answered and
what comes of it do not. So each call is made with the client, the recorded answers are given to
the questions with the same texts, and the result is compared. What else is in the cassette
belongs to its own revision.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from roundgate.cassettes.matching import Bindings, Difference, compare
from roundgate.cassettes.model import Cassette, Interaction, Json
from roundgate.cassettes.paths import Slot
from roundgate.cassettes.verify import Outcome, filled
from roundgate.client import Client, Question
from roundgate.errors import ClientError, RpcError

_COMPARED: Final = ("content", "structuredContent", "isError")


@dataclass(slots=True)
class _Call:
    """A call with all its rounds: where it ended, and what was asked and answered on the way."""

    number: int
    name: str
    arguments: Json
    answers: dict[str, Any] = field(default_factory=dict)
    end: Json = field(default_factory=dict)


async def in_another_era(
    cassette: Cassette, client: Client, environment: Mapping[str, str]
) -> AsyncIterator[Outcome]:
    """Make each call again with a client that speaks another revision; the
    outcomes, numbered as the calls.

    Raises:
        UsageError: a secret is needed whose environment variable is not set.
    """
    bindings = Bindings({Slot("server"): client.url.rpartition("/")[0]})
    for call in _calls(cassette):
        told: list[Difference] = []
        arguments = filled(call.arguments, bindings, environment)
        answers = filled(call.answers, bindings, environment)
        try:
            done = await client.call(call.name, arguments, answers=_given(answers), timeout_s=60)
        except RpcError as error:
            now: Json = {"error": {"code": error.code, "message": error.message}}
        except ClientError as error:
            now = {"error": str(error)}
        else:
            now = {"result": {name: done.raw[name] for name in _COMPARED if name in done.raw}}
        told += compare(call.end, now, bindings, (), cassette.ignore)
        yield Outcome(call.number, f"tools/call {call.name}", tuple(told))


def _given(answers: Mapping[str, Any]) -> Any:
    """Answers a question as the one with the same text was answered."""

    def answer(question: Question) -> Any:
        found = answers.get(question.message)
        return found["roots"] if isinstance(found, dict) and "roots" in found else found

    return answer


def _calls(cassette: Cassette) -> list[_Call]:
    """The calls that came to an end without a task, which other revisions lack."""
    calls: list[_Call] = []
    latest: dict[str, _Call] = {}
    asked: dict[str, str] = {}
    for number, one in enumerate(cassette.interactions, 1):
        message = one.request.message
        if not isinstance(message, dict):
            continue
        params = _mapping(message.get("params"))
        if "method" not in message:  # an answer to a question on a stream
            text = asked.get(str(message.get("id")))
            for call in calls:
                call.answers |= {} if text is None else {text: message.get("result")}
        if message.get("method") != "tools/call":
            continue
        key = repr((params.get("name"), params.get("arguments")))
        if key not in latest or (latest[key].end and "requestState" not in params):
            name, arguments = str(params.get("name")), _mapping(params.get("arguments"))
            latest[key] = _Call(number, name, arguments)
            calls.append(latest[key])
        call = latest[key]
        for name, answer in _mapping(params.get("inputResponses")).items():
            call.answers[asked.get(name, name)] = answer
        for heard in _heard(one):
            asked |= _questions(heard)
            if (end := _end(heard)) is not None:
                call.number, call.end = number, end
    return [call for call in calls if call.end]


def _mapping(value: Any) -> Json:
    return dict(value) if isinstance(value, dict) else {}


def _heard(one: Interaction) -> list[Json]:
    response = one.response
    if response is None:
        return []
    found = (
        [response.message]
        if response.events is None
        else [event.message for event in response.events]
    )
    return [message for message in found if isinstance(message, dict)]


def _questions(message: Json) -> dict[str, str]:
    """Key (or id) → text of each question in a message."""
    result = message.get("result")
    requests = result.get("inputRequests") if isinstance(result, dict) else None
    found = dict(requests) if isinstance(requests, dict) else {}
    if "method" in message and "id" in message:
        found[str(message["id"])] = message
    return {
        key: str(_mapping(one.get("params")).get("message", ""))
        for key, one in found.items()
        if isinstance(one, dict)
    }


def _end(message: Json) -> Json | None:
    if "error" in message and isinstance(message["error"], dict):
        error = message["error"]
        return {"error": {"code": error.get("code"), "message": error.get("message")}}
    result = message.get("result")
    if not isinstance(result, dict) or result.get("resultType", "complete") != "complete":
        return None
    return {"result": {name: result[name] for name in _COMPARED if name in result}}
