"""What is fuzzed: each target takes bytes, and raises if the code behind it does what it must not.

`tests/fuzz/__main__.py` feeds them with what coverage leads to, `test_targets.py` with a
few changes of the seeds.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from roundgate import config as configuration
from roundgate.auth.jwks import KeySet
from roundgate.auth.principal import Principal
from roundgate.auth.verifier import JwtVerifier
from roundgate.clock import Clock
from roundgate.errors import AuthError, ConfigError, Problem, StateRefused
from roundgate.http import ConnectionMiddleware
from roundgate.http.connections import Bounds, Connections
from roundgate.http.room import Stage
from roundgate.protocol.uri_template import UriTemplate
from roundgate.settings import HttpConfig, JwtAuthConfig
from roundgate.tokens.sealed import Binding, KeyRing, StateSealer
from roundgate_aws import http as lambda_http
from tests.chaos.hostile import request
from tests.support import wire
from tests.support.asgi import gateway
from tests.support.functions import EVERYTHING
from tests.support.issuer import AUDIENCE, ISSUER, jwks, token
from tests.support.mutations import VALID
from tests.support.rounds import KEYS

EVERYTHING_SOUND: Final = """
from tests.support.functions import *
from tests.support.jobs import dig

del crash, broken_prompt, broken_note
"""
EVENTS: Final = Path(__file__).parents[1] / "roundgate_aws/functions/events"
OURS: Final = {502, 504, 500}
"""Statuses that are never right; 503 says that there are too many requests."""


@cache
def loop() -> asyncio.AbstractEventLoop:
    """The one that all inputs are run in."""
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    return made


NOT_HTTP: Final = b"Invalid HTTP request received."
"""What uvicorn answers to bytes that are no HTTP request."""


class Wire(asyncio.Transport):
    """A client that sends what it is given and reads everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.answer = bytearray()
        self.is_over = False
        self.is_paused = False
        """Whether the server does not read just now: the kernel would keep what is sent."""
        self._is_closing = False
        self.written_too_late = bytearray()
        """What came after it was closed; the server would swallow an error."""

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.is_over:
            self.written_too_late += data
        else:
            self.answer += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_over = True

    def close(self) -> None:
        self.is_over = self._is_closing = True

    def abort(self) -> None:
        self.is_over = self._is_closing = True

    def is_closing(self) -> bool:
        """Not yet where only no more can be written: so has asyncio."""
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


@cache
def server() -> Callable[[], tuple[Any, set[Any]]]:
    """Return what opens a connection to a server with one of everything: its protocol, and the set
    of its running requests."""
    functions = [
        one for one in EVERYTHING if one.__name__ not in ("crash", "broken_prompt", "broken_note")
    ]
    made = Config(
        ConnectionMiddleware(gateway(*functions)),
        http=cast("Any", Connections(Bounds.from_config(HttpConfig()))),
        ws="none",
        lifespan="off",
        log_config=None,
    )
    made.load()
    make: Any = made.http_protocol_class

    def connect() -> tuple[Any, set[Any]]:
        state = ServerState()
        return make(config=made, server_state=state, app_state={}), state.tasks

    return connect


def requests(data: bytes) -> None:
    """The bytes of a connection: answers that are HTTP, none of which blames the server."""
    answer = loop().run_until_complete(asyncio.wait_for(_exchange(data), 10))
    for status, body in _responses(answer):
        assert status not in OURS, (status, body)
        if 400 <= status < 600 and body and body != NOT_HTTP:
            assert isinstance(json.loads(body), dict)


async def _exchange(data: bytes) -> bytes:
    (connection, tasks), client = server()(), Wire()
    connection.connection_made(client)
    connection.data_received(data)
    until = loop().time() + 5
    while (
        tasks
        and not client.is_over
        and not client.answer.endswith(b"\r\n\r\n")
        and loop().time() < until
    ):
        is_receiving = connection.stage is Stage.RECEIVING
        await asyncio.sleep(0)
        if is_receiving and connection.stage is Stage.RECEIVING:
            break
    client.is_over = True
    connection.connection_lost(None)
    for _ in range(200):
        if not tasks:
            break
        await asyncio.sleep(0.005)
    assert not tasks, "a call that outlives its connection"
    assert not client.written_too_late, client.written_too_late
    return bytes(client.answer)


def _responses(answer: bytes) -> Iterator[tuple[int, bytes]]:
    """The whole answers among what was written; a stream that was cut off has no body."""
    while answer.startswith(b"HTTP/1.1 "):
        head, _, rest = answer.partition(b"\r\n\r\n")
        length = next(
            (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")),
            None,
        )
        size = 0 if length is None else int(length.partition(b":")[2])
        yield int(head.split()[1]), rest[:size] if len(rest) >= size else b""
        answer = rest[size:]


@cache
def function() -> lambda_http.HttpFunction:
    """The function of AWS Lambda, behind an authorizer."""
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    (place / "everything.py").write_text(EVERYTHING_SOUND)
    tools = {"kind": "python", "name": "tools", "prefix": "", "path": "everything.py"}
    auth = {"authorizer": "api-gateway", "issuer": "https://issuer.example"}
    path = place / "gateway.json"
    path.write_text(json.dumps({"backends": [tools], "auth": auth}))
    environ = {
        "AWS_LAMBDA_FUNCTION_NAME": "gateway",
        "GATEWAY_CONFIG": str(path),
        "GATEWAY_STATE_KEYS": KEYS,
        "GATEWAY_STORE": f"sqlite:///{place / 'gateway.sqlite3'}",
        "GATEWAY_PUBLIC_URL": "https://mcp.example.com",
        "GATEWAY_LOG_LEVEL": "error",
    }
    return lambda_http.make_handler(environ)


class Lambda:
    """The context object of AWS Lambda."""

    aws_request_id = "request"

    def get_remaining_time_in_millis(self) -> int:
        return 10_000


def events(data: bytes) -> None:
    """What callers and authorizers put into events of API Gateway: see `answer_to`."""
    answer = answer_to(data)
    assert answer["statusCode"] not in OURS, answer


def answer_to(data: bytes) -> dict[str, Any]:
    """What the function says to an event: lines of kind, path, header, authorizer, body."""
    kind, path, header, authorizer, body, *_ = [*data.split(b"\n", 4), *[b""] * 5]
    names = ("http_api_v2", "rest_api_v1", "function_url")
    event = copy.deepcopy(_event(names[len(kind) % len(names)]))
    event["headers"] |= _headers_of(body) | (
        {"mcp-name": header.decode("latin-1")} if header else {}
    )
    event["path" if "path" in event else "rawPath"] = "/" + path.decode("latin-1")
    try:
        event["requestContext"]["authorizer"] = json.loads(authorizer)
    except (ValueError, RecursionError):
        event["requestContext"]["authorizer"] = authorizer.decode("latin-1")
    event["body"], event["isBase64Encoded"] = base64.b64encode(body).decode(), True
    return function()(event, Lambda())  # type: ignore[arg-type]


def _headers_of(body: bytes) -> dict[str, str]:
    """Those that go with a body, where it is a request: else all would be refused for their headers."""
    try:
        return wire.headers(json.loads(body))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


@cache
def _event(name: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    asked = wire.message("tools/list")
    made["headers"] |= wire.headers(asked)
    if "multiValueHeaders" in made:
        made["multiValueHeaders"] = {}
    return made


OWNER: Final = Principal("i", "ann")
BINDING: Final = Binding("tools/call", "t", "a")


@cache
def sealer() -> StateSealer:
    from roundgate.tokens import keys

    return StateSealer(KeyRing(keys.parse(KEYS, "fuzz"), "fuzz"), Clock())


@cache
def sealed() -> str:
    """A state that opens."""
    return sealer().seal({"a": 1}, OWNER, BINDING, round_=1, origin={})


def tokens(data: bytes) -> None:
    """A `requestState` opens if it is ours to the letter, and no bearer token does that nobody signed."""
    text = data.decode("latin-1")
    places = {number: char for number, char in enumerate(text[: len(sealed())]) if char != "="}
    changed = "".join(places.get(number, char) for number, char in enumerate(sealed()))
    for state in (text, changed):
        if state != sealed():
            _is_refused(state)
    try:
        loop().run_until_complete(verifier().principal(b"Bearer " + data))
    except AuthError:
        return
    raise AssertionError("a token that was not signed is taken")


def _is_refused(state: str) -> None:
    try:
        sealer().open(state, OWNER, BINDING)
    except StateRefused:
        return
    raise AssertionError("a state that was not sealed is taken")


@cache
def verifier() -> JwtVerifier:
    async def fetch(url: str) -> bytes:
        return jwks("rsa", "ec")

    auth = JwtAuthConfig(
        issuer=ISSUER, jwks_url="https://issuer.example/jwks", algorithms=["RS256", "ES256"]
    )
    return JwtVerifier(auth, AUDIENCE, KeySet(auth.jwks_url, Clock(), fetch))


def templates(data: bytes) -> None:
    """A template and a URI, a line each: what matches expands to a URI that matches with the same values."""
    text, _, uri = data.decode("utf-8", "replace").partition("\n")
    try:
        template = UriTemplate.parse(text)
    except ValueError:
        return
    values = template.match(uri[:2_000])
    if values is not None:
        assert template.match(template.expand(values)) == values


def files(data: bytes) -> None:
    """A gateway.yaml: a configuration, or every problem in it."""
    if b"${file:" in data:  # would read whatever there is on this machine
        return
    path = _place() / "gateway.yaml"
    path.write_bytes(data)
    problems: Sequence[Problem] = ()
    try:
        configuration.load(path, {})
    except ConfigError as error:
        problems = error.problems or (Problem("", "", "", ""),)
    assert all(problem.message and problem.remedy for problem in problems)


@cache
def _place() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def _raw(asked: dict[str, Any]) -> bytes:
    try:
        return request(asked["method"], asked["params"], body=json.dumps(asked).encode())
    except KeyError:
        return request("ping", {}, body=json.dumps(asked).encode())


YAML: Final = b"""\
server: {name: fuzz}
http: {path: /mcp, max_body_bytes: 5000}
auth: {issuer: "https://i", jwks_url: "https://i/jwks"}
backends:
  - kind: http
    name: api
    base_url: https://api.example.com
    credential: {bearer: "${TOKEN:-none}"}
    tools:
      - {name: get, description: d, path: "/v/{id}", arguments: {id: {schema: {type: string}}}}
  - &b {kind: python, name: tools, path: tools.py}
"""

TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = MappingProxyType(
    {
        "requests": requests,
        "events": events,
        "tokens": tokens,
        "templates": templates,
        "files": files,
    }
)
SEEDS: Final[Mapping[str, Callable[[], list[bytes]]]] = MappingProxyType(
    {
        "requests": lambda: [
            *map(_raw, VALID),
            _raw(VALID[0]) * 3,
            (_raw(VALID[0]) * 3)[:-9],
            b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        ],
        "events": lambda: [
            b"k" * kind
            + b'\nmcp\n\n{"jwt":{"claims":{"sub":"ada"}}}\n'
            + json.dumps(asked).encode()
            for kind, asked in enumerate(VALID)
        ],
        "tokens": lambda: [
            sealed().encode(),
            token("ec").rpartition(".")[0].encode() + b".AAAA",
            b"v1.a.b",
        ],
        "templates": lambda: [
            b"note://{owner}/{+path}{?lang}\nnote://ann/a/b?lang=en",
            b"f://{/a*}{;b,c}{#d}\nf:///x/y;b=1;c#z",
            b"{x}{.y*}\nab.c.d",
        ],
        "files": lambda: [YAML, b"backends: []", b"{}", b"a: *b", b"a: &a [*a]"],
    }
)
