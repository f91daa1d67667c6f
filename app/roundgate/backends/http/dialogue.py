"""How an HTTP service that knows of the gateway asks for input, and gets its own state back (docs/rounds.md).

    service → gateway   200, Content-Type: application/vnd.roundgate.input-required+json
                        {"inputRequests": {"size": {"method": "elicitation/create", "params": {…}}}, "state": anything}
    gateway → service   the same method and path, Content-Type: application/vnd.roundgate.input-responses+json
                        {"body": that of the first request, "inputResponses": {"size": {"action": …}}, "state": …}

Each exchange is a step, so none is repeated in a later round; the state travels in ours, sealed, and the client never
sees it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final
from urllib.parse import urlsplit

from roundgate.errors import BackendError, ParseError
from roundgate.protocol import jsonrpc
from roundgate.replay.context import Context
from roundgate.replay.questions import Raw, Url, form_schema
from roundgate.replay.run import NAME

KEY: Final = "idempotency-key"
INPUT_REQUIRED: Final = "application/vnd.roundgate.input-required+json"
_LINK: Final = re.compile(r"[!#-;=?-\[\]_a-z~]{1,2048}")
"""RFC 3986's characters: no blanks, quotes, backslashes, controls, and nothing beyond ASCII."""
INPUT_RESPONSES: Final = "application/vnd.roundgate.input-responses+json"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One HTTP request, complete but for what every request to the service has."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service said."""

    status: int
    reason: str
    content_type: str
    body: bytes

    @property
    def status_line(self) -> str:
        """`404 Not Found`, cut where a service puts more into it than a reason."""
        return f"{self.status} {self.reason[:100]}".rstrip()


Send = Callable[[Outgoing], Awaitable[Answer]]


def with_key(outgoing: Outgoing, context: Context, exchange: int = 1) -> Outgoing:
    """The request with an Idempotency-Key, unless the tool sets one itself.

    A worker may die after it has sent a request and before it has noted so; the next one sends the same key. Each
    exchange of a dialogue is another request and has another.
    """
    task_id = context.task_id
    if task_id is None or outgoing.method not in ("POST", "PATCH") or KEY in map(str.lower, outgoing.headers):
        return outgoing
    key = task_id if exchange == 1 else f"{task_id}-{exchange}"
    return replace(outgoing, headers={KEY: key, **outgoing.headers})


async def dialogue(send: Send, outgoing: Outgoing, context: Context) -> Answer:
    """Exchange requests and answers with a service until it has no more questions.

    Raises:
        BackendError: it asks for something that is not an input request.
    """
    first = with_key(outgoing, context)
    said = await context.step("exchange", _exchanging(send, first))
    for number in count(2):
        if "inputRequests" not in said:
            break
        answers = await context.ask({key: Raw(request) for key, request in said["inputRequests"].items()})
        responses = {key: answer.value for key, answer in answers.items()}
        answering = with_key(_answering(outgoing, responses, said["state"]), context, number)
        said = await context.step("exchange", _exchanging(send, answering))
    return Answer(said["status"], said["reason"], said["content_type"], base64.b64decode(said["body"]))


def _exchanging(send: Send, outgoing: Outgoing) -> Callable[[], Awaitable[dict[str, Any]]]:
    """One exchange as a step without arguments: a credential or an endpoint may change between two rounds."""
    return lambda: _exchange(send, outgoing)


async def _exchange(send: Send, outgoing: Outgoing) -> dict[str, Any]:
    """One exchange, as JSON: the questions and state, or the answer."""
    answer = await send(outgoing)
    if answer.content_type.partition(";")[0].strip().lower() == INPUT_REQUIRED:
        return _questions(answer)
    body = base64.b64encode(answer.body).decode()
    return {"status": answer.status, "reason": answer.reason, "content_type": answer.content_type, "body": body}


def _questions(answer: Answer) -> dict[str, Any]:
    if answer.status != 200:  # as an ordinary answer it would show its state
        raise BackendError(f"The service asked for input with the status {answer.status}, which has to be 200")
    try:
        envelope = jsonrpc.decode(answer.body)
        requests: Mapping[str, Any] = envelope["inputRequests"]
        for key, request in requests.items():
            if not NAME.fullmatch(key):
                raise ValueError(key)
            _check(request)
    except (ParseError, ValueError, KeyError, TypeError, AttributeError):
        raise BackendError("The service asked for input in a form that the gateway does not know") from None
    if not requests:
        raise BackendError("The service asked for input but had no question")
    return {"inputRequests": dict(requests), "state": envelope.get("state")}


def _check(request: Any) -> None:
    """What no client could show is not passed on to one.

    Raises:
        ValueError: it is not an `InputRequest` of the schema, or its form is none.
    """
    match request:
        case {"method": "elicitation/create", "params": {"mode": "url", "message": str(message), "url": str(url)}}:
            Url(message, url)
            _check_link(url)
        case {"method": "elicitation/create", "params": {"message": str(), "requestedSchema": dict(fields), **others}}:
            if others.get("mode", "form") != "form":
                raise ValueError("elicitation has the modes form and url")
            form_schema(fields)
        case {"method": "sampling/createMessage", "params": {"messages": list(), "maxTokens": int()}}:
            pass
        case {"method": "roots/list"} if isinstance(request.get("params", {}), dict):
            pass
        case _:
            raise ValueError("not an input request")


def _check_link(url: str) -> None:
    """A page that a service may send a user to: https, or http on this machine; nothing that a browser would run.

    Raises:
        ValueError: it is another, or shows another place than it leads to.
    """
    parts = urlsplit(url)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise ValueError("not https")
    if not parts.hostname or "@" in parts.netloc or not _LINK.fullmatch(url):
        raise ValueError("no host, a user, or characters that no URL has")


def _answering(outgoing: Outgoing, responses: Mapping[str, Any], state: Any) -> Outgoing:
    body = None if outgoing.body is None else jsonrpc.decode(outgoing.body)
    envelope = jsonrpc.encode({"body": body, "inputResponses": dict(responses), "state": state})
    return replace(outgoing, headers=outgoing.headers | {"content-type": INPUT_RESPONSES}, body=envelope)
