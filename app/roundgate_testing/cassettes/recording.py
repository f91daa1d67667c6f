"""The recording of a conversation in memory, and the redaction of its secrets before it is written.

Only headers that a cassette may hold are recorded. The values of secret headers are remembered, so
they can be redacted in other places. A secret becomes `${secret:NAME}`; a replay reads its value
from the environment variable NAME. A value of at least `_SHORTEST_ELSEWHERE` characters that is
secret in one place is redacted everywhere.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from roundgate.client import EventReader
from roundgate.errors import BadAnswer, ParseError
from roundgate.json import at_reference, decode
from roundgate_testing.cassettes.matching import Path, any_matches, is_at
from roundgate_testing.cassettes.model import params_of, result_of
from roundgate_testing.cassettes.secret_placeholders import SecretPlaceholders

_KEPT: Final = frozenset({"mcp-session-id", "last-event-id", "mcp-protocol-version"})
_KEPT_OF_RESPONSES: Final = ("mcp-session-id", "retry-after")
MAX_RECORDED_BYTES: Final = 32 * 1024 * 1024
MAX_EXCHANGES: Final = 20_000
_SECRET_WORDS: Final = ("auth", "cookie", "dpop", "key", "token", "secret", "password")
"""The words in the names of headers whose values are secret."""
_SHORTEST_SECRET: Final = 8
"""The minimum number of characters of a secret in a header."""


@dataclass(slots=True)
class RecordedEvent:
    """An event of a stream. `after` is the number of exchanges that had begun when it arrived."""

    message: Any
    event_id: str | None
    retry_ms: int | None
    after: int


@dataclass(slots=True)
class RecordedExchange:
    """A request, and its response so far. `after` exchanges had begun when the exchange ended."""

    number: int
    http: str
    headers: Mapping[str, str]
    message: Any = None
    text: str | None = None
    status: int | None = None
    response_headers: Mapping[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    events: list[RecordedEvent] | None = None
    end: str | None = None
    after: int = 0
    reader: EventReader | None = None
    last_id: str | None = None

    @property
    def own_id(self) -> Any:
        """The id of the request, or `None`."""
        return self.message.get("id") if isinstance(self.message, dict) else None

    def decoded_body(self) -> tuple[Any, str | None]:
        """Return the message of a response that is not a stream, or `None` and the text if the body
        is not JSON."""
        return decoded(bytes(self.body)) if self.body.strip() else (None, None)

    def responses(self) -> Iterator[Any]:
        """Yield the messages that the server sent; a body without a message yields `None`."""
        if self.events is not None:
            yield from (event.message for event in self.events)
        else:
            yield self.decoded_body()[0]


class Recording:
    """The exchanges of one conversation, in the order in which they began. Recording stops beyond
    `MAX_RECORDED_BYTES` bytes or `MAX_EXCHANGES` exchanges."""

    def __init__(self) -> None:
        self.exchanges: list[RecordedExchange] = []
        self.secrets: dict[str, str] = {}
        """The secret values, each with its name in the cassette."""
        self.origins: list[str] = []
        """The origins that become `${server}` in the cassette: those of the server and of a
        proxy."""
        self._size = 0
        self._count = 0

    @property
    def is_over_limit(self) -> bool:
        """Return whether the conversation was too long to record completely."""
        return self._size > MAX_RECORDED_BYTES or self._count > MAX_EXCHANGES

    def begin(
        self, http: str, headers: Sequence[tuple[str, str]], body: bytes | None
    ) -> RecordedExchange:
        """Record a request, and return its exchange."""
        lower = {name.lower(): value for name, value in headers}
        self._note_secrets(lower)
        fields = {
            name: value
            for name, value in lower.items()
            if name in _KEPT or name.startswith("mcp-param-")
        }
        exchange = RecordedExchange(len(self.exchanges) + 1, http, fields)
        self._count += 1
        if body is not None:
            self._size += len(body)
            exchange.message, exchange.text = decoded(body)
        if not self.is_over_limit:
            self.exchanges.append(exchange)
        return exchange

    def head(self, exchange: RecordedExchange, status: int, headers: Mapping[str, str]) -> None:
        """Record the status and the headers of a response."""
        exchange.status = status
        exchange.response_headers = {
            name: headers[name] for name in _KEPT_OF_RESPONSES if name in headers
        }
        names = ("set-cookie", "dpop-nonce")
        self._note_secrets({name: headers[name] for name in names if name in headers})
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type == "text/event-stream":
            exchange.events, exchange.reader = [], EventReader(MAX_RECORDED_BYTES)

    def arrived(self, exchange: RecordedExchange, data: bytes) -> None:
        """Record a chunk of the body of a response."""
        self._size += len(data)
        if self.is_over_limit:
            return
        if exchange.reader is None or exchange.events is None:
            exchange.body += data
            return
        try:
            events = exchange.reader.feed(data)
        except BadAnswer:
            return
        for event in events:
            message, text = decoded(event.data) if event.data.strip() else (None, None)
            event_id = event.id if event.id != exchange.last_id else None
            exchange.last_id = event.id
            content = message if text is None else text
            after = len(self.exchanges)
            exchange.events.append(RecordedEvent(content, event_id, event.retry_ms, after))

    def end(self, exchange: RecordedExchange, by: str) -> None:
        """Record the side that ended an exchange: "server", "client" (it hung up), or "cut"
        (connection lost). Only the first call has an effect."""
        if exchange.end is None:
            exchange.end = by
            exchange.after = len(self.exchanges)

    def _note_secrets(self, headers: Mapping[str, str]) -> None:
        for name, value in headers.items():
            if name.startswith("mcp-") or not any(word in name for word in _SECRET_WORDS):
                continue
            for part in value.replace(";", " ").replace(",", " ").split():
                secret = part.partition("=")[2] if "cookie" in name else part
                if len(secret) >= _SHORTEST_SECRET:
                    self.secrets.setdefault(secret, "CREDENTIALS")


def decoded(body: bytes) -> tuple[Any, str | None]:
    """Return the JSON value of a body, or `None` and its text if the body is not JSON. `null`
    counts as text."""
    try:
        message = decode(body)
    except ParseError:
        return None, body.decode("utf-8", "replace")
    return (None, "null") if message is None else (message, None)


# -- secrets ---------------------------------------------------------------------------------------

_SHORTEST_ELSEWHERE: Final = 4
"""The minimum number of characters of a secret to search for in any text."""
_DEEPEST: Final = 8
_MOST_SCHEMAS: Final = 1_000
"""The limits on the depth (`_DEEPEST`) and number of the subschemas to search."""
_ANY_MEMBER: Final = ("items", "additionalProperties")
_SAME_VALUE: Final = ("anyOf", "oneOf", "allOf", "then", "else")


class Hidden(str):
    """The placeholder of a secret. Its type distinguishes it from texts of the conversation."""

    __slots__ = ()


class ConversationSecrets:
    """The secrets of a whole conversation, found by schemas and paths."""

    def __init__(self, recording: Recording, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._names: dict[str, str] = dict(recording.secrets)
        self._of_tools: dict[str, list[Path]] = {}
        self._of_questions: dict[str, list[Path]] = {}
        for exchange in recording.exchanges:  # first all schemas, because one may follow its value
            for message in exchange.responses():
                self._learn_schemas(message)
        for exchange in recording.exchanges:
            self.hidden(exchange.message)
            for message in exchange.responses():
                self.hidden(message)

    def _learn_schemas(self, message: Any) -> None:
        if isinstance(message, list):
            for part in message:
                self._learn_schemas(part)
        if not isinstance(message, dict):
            return
        result = result_of(message) or {}
        tools = result.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict) and (fields := secret_fields(tool.get("inputSchema"))):
                self._of_tools[str(tool.get("name"))] = fields
        for holder in (result, params_of(message)):
            requests = holder.get("inputRequests")
            for key, question in requests.items() if isinstance(requests, dict) else ():
                self._learn_question(str(key), question)
        if message.get("method") == "elicitation/create":
            self._learn_question(f"#{message.get('id')}", message)

    def _learn_question(self, key: str, question: Any) -> None:
        if fields := secret_fields(params_of(question).get("requestedSchema")):
            self._of_questions[key] = fields

    def hidden(self, message: Any) -> Any:
        """Return a message with the values at secret places replaced by placeholders."""
        if isinstance(message, list):
            return [self.hidden(part) for part in message]
        return self._hidden(message, (), list(self._secret_places(message)))

    def _secret_places(self, message: Any) -> Iterator[Path]:
        if not isinstance(message, dict):
            return
        if not isinstance(message.get("params"), dict):
            for field_ in self._of_questions.get(f"#{message.get('id')}", ()):
                yield ("result", "content", *field_)
            return
        params = message["params"]
        for field_ in self._of_tools.get(str(params.get("name")), ()):
            yield ("params", "arguments", *field_)
        responses = params.get("inputResponses")
        for key in responses if isinstance(responses, dict) else ():
            for field_ in self._of_questions.get(str(key), ()):
                yield ("params", "inputResponses", key, "content", *field_)

    def _hidden(self, value: Any, path: Path, places: Sequence[Path]) -> Any:
        is_secret = any(is_at(place, path) for place in places) or any_matches(self._paths, path)
        if path and is_secret:
            return self._placeholder(value, path)
        if isinstance(value, dict):
            return {key: self._hidden(item, (*path, key), places) for key, item in value.items()}
        if isinstance(value, list):
            return [self._hidden(item, (*path, at), places) for at, item in enumerate(value)]
        return value

    def _placeholder(self, value: Any, path: Path) -> Any:
        if value is None or isinstance(value, bool):
            return value
        member = next((str(step) for step in reversed(path) if isinstance(step, str)), "VALUE")
        name = "CASSETTE_" + (re.sub(r"[^A-Za-z0-9]+", "_", member).strip("_").upper() or "VALUE")
        if isinstance(value, (dict, list)):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                self._placeholder(item, (*path, key))
            return Hidden(f"${{secret:{name}}}")
        text = str(value)
        if text not in self._names:
            taken = set(self._names.values())
            names = (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3)))
            self._names[text] = next(choice for choice in names if choice not in taken)
        return Hidden(f"${{secret:{self._names[text]}}}")

    def elsewhere(self) -> SecretPlaceholders:
        """Return a redactor of the secrets that are long enough to search for in any text."""
        redactor = SecretPlaceholders()
        for value, name in self._names.items():
            if len(value) >= _SHORTEST_ELSEWHERE:
                redactor.add(value, f"${{secret:{name}}}")
        return redactor


def secret_fields(schema: Any) -> list[Path]:
    """Return the places that a schema declares secret: passwords and write-only values. `*` stands
    for any step."""
    places: dict[Path, None] = {}
    left: deque[tuple[Any, Path, int]] = deque([(schema, (), 0)])
    for _ in range(_MOST_SCHEMAS):
        if not left:
            break
        part, path, depth = left.popleft()  # breadth first: the limits cut off the deepest parts
        if not isinstance(part, dict) or depth > _DEEPEST:
            continue
        if path and (part.get("format") == "password" or part.get("writeOnly") is True):
            places[path] = None
            continue
        members = part.get("properties")
        inner = list(members.items()) if isinstance(members, dict) else []
        inner += [("*", part[name]) for name in _ANY_MEMBER if name in part]
        left += [(child, (*path, step), depth + 1) for step, child in inner]
        same = [_referred(schema, part.get("$ref"))]
        for name in _SAME_VALUE:
            alternatives = part.get(name)
            same += alternatives if isinstance(alternatives, list) else [alternatives]
        left += [(child, path, depth + 1) for child in same]
    return list(places)


def _referred(schema: Any, ref: Any) -> Any:
    try:
        return at_reference(schema, ref) if isinstance(ref, str) else None
    except LookupError:
        return None
