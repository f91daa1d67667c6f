"""Requests nobody should send: valid ones with something changed, down to random bytes.

A case is a pure function of its seed, so one that fails can be made again alone.
"""

from __future__ import annotations

import base64
import copy
import json
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support import wire

Path = tuple[str | int, ...]

SAMPLING: dict[str, Any] = {"sampling": {}}
TASKS: dict[str, Any] = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
A_TASK, ANOTHER_TASK = "a-task-that-there-is", "a-task-to-be-cancelled"
"""The ids of tasks that whoever sends these requests has to make."""
ANSWERS = {"who": {"action": "accept", "content": {"name": "Ann"}}, "other": None}
ON_A_TASK: list[tuple[str, str, dict[str, Any]]] = [
    ("tasks/get", A_TASK, {}),
    ("tasks/update", A_TASK, {"inputResponses": ANSWERS}),
    ("tasks/cancel", ANOTHER_TASK, {}),
]
PROMPT = {"type": "ref/prompt", "name": "review"}
TEMPLATE = {"type": "ref/resource", "uri": "note://by/{author}/{number}"}

VALID: list[dict[str, Any]] = [
    wire.message("server/discover"),
    wire.message("tools/list", request_id="a"),
    wire.message("tools/list", {"cursor": "YWRk"}),
    wire.message("resources/list", {"cursor": "bm90ZTovL29uZQ"}),
    wire.message("tools/call", {"name": "add", "arguments": {"a": 1, "b": -2}}),
    wire.message(
        "tools/call", {"name": "echo", "arguments": {"deep": [{"x": [1.5, None, "ü"]}]}}, 2**53
    ),
    wire.message(
        "tools/call",
        {"name": "report", "arguments": {"steps": 2}},
        progressToken="p",
        logLevel="info",
    ),
    wire.message("tools/call", {"name": "refuse"}, 0),
    wire.message("tools/call", {"name": "sample"}),
    wire.message("tools/call", {"name": "sample"}, clientCapabilities=SAMPLING),
    wire.message(
        "tools/call",
        {"name": "mirrored", "arguments": {"region": "eu", "inner": {"count": 3}}},
        clientCapabilities=SAMPLING,
    ),
    wire.message("tools/call", {"name": "change"}),
    wire.message("resources/list"),
    wire.message("resources/templates/list"),
    wire.message("resources/read", {"uri": "note://one"}),
    wire.message("resources/read", {"uri": "note://by/ann%20b/7"}),
    wire.message("prompts/list", {"cursor": "cmV2aWV3"}),
    wire.message("prompts/get", {"name": "review", "arguments": {"language": "rust"}}),
    wire.message(
        "completion/complete", {"ref": PROMPT, "argument": {"name": "language", "value": "p"}}
    ),
    wire.message(
        "completion/complete", {"ref": TEMPLATE, "argument": {"name": "author", "value": "a"}}
    ),
    wire.message("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, "listen"),
    wire.message(
        "subscriptions/listen", {"notifications": {"resourceSubscriptions": ["note://one"]}}
    ),
    wire.message("tools/call", {"name": "dig"}, clientCapabilities=TASKS),
    wire.message(
        "tools/call",
        {"name": "dig", "arguments": {"depth": 2}, "task": {"ttl": 1}},
        clientCapabilities=TASKS,
    ),
    wire.message("tools/call", {"name": "dig"}),
    *(
        wire.message(method, {"taskId": task_id, **params}, clientCapabilities=capabilities)
        for method, known, params in ON_A_TASK
        for task_id, capabilities in ((known, TASKS), ("A" * 22, TASKS), (known, {}))
    ),
    wire.message(
        "subscriptions/listen",
        {"notifications": {"taskIds": [A_TASK]}},
        "tasks",
        clientCapabilities=TASKS,
    ),
    wire.message(
        "subscriptions/listen",
        {"notifications": {"taskIds": [A_TASK, "x"], "toolsListChanged": True}},
    ),
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25"},
    },
    wire.message("ping"),
    wire.message("tools/list", protocolVersion="2025-11-25"),
]

METHODS = [
    "GET",
    "DELETE",
    "PUT",
    "HEAD",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "post",
    "",
    "BREW",
    "PO ST",
    "ü",
]
HEADER_VALUES = [
    b"", b" ", b"\t \t", b"*/*", b"*", b"application/json", b"text/event-stream", b"text/html;q=0.1", b"application/*",
    b"application/json; charset=utf-16", b"2026-07-28", b"2025-11-25", b"tools/call", b"add", b"eu", b"3", b"3.0",
    b"-0", b"1e3", b"true", b"null", b"=?base64??=", b"=?base64?YWRk?=", b"=?base64?YWR?=", b"=?base64?/w==?=",
    b"=?base64?\xff?=", b"=?BASE64?YWRk?=", b"=?base64?YWRk", b"evil.example", b"localhost:1", b"http://127.0.0.1",
    b"https://evil.example", b"0", b"5", b"-5", b"99999999999999999999999", b"1_000", b"gzip", b"chunked", b"\x00",
    b"\x01\x7f", b"\xc3\xbc", b"\xff\xfe", b"a, b", b'"quoted"', b"x" * 5000,
]  # fmt: skip
HEADER_NAMES = [
    b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-param-region", b"mcp-param-count", b"mcp-param-",
    b"mcp-param-\xff", b"mcp-session-id", b"mcp-", b"content-type", b"content-length", b"content-encoding",
    b"transfer-encoding", b"accept", b"host", b"origin", b"access-control-request-method", b"last-event-id",
    b"authorization", b"cookie", b"expect", b"x", b"", b"\xff",
]  # fmt: skip
TEXTS = [
    "", " ", "\x00", "ü", "😀", "\ud800", "\u2028", "tools/call", "add", "note://one", "../../etc/passwd", "%00",
    "null", "2026-07-28", "notifications/x", "true", "9" * 400, "x" * 3000, "__proto__", "debug", wire.PREFIX,
]  # fmt: skip
NUMBERS = [
    0, -0.0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**30, 10**400, 0.1, 1e308,
    5e-324, 1.0,
]  # fmt: skip
ODD_JSON = [
    b"", b" ", b"\n", b"null", b"true", b"0", b'""', b"[]", b"{}", b"[[]]", b"{", b"}", b"[1,]", b'{"a":1,}',
    b"{'a':1}", b"NaN", b"-Infinity", b"1e400", b"01", b"+1", b"1.", b'"\\ud800"', b'"\\u00"', b'"\n"', b'"\xff"',
    b"//",
    b'{"id":1}{"id":2}', b'{"id":1} x', b"\xef\xbb\xbf{}", b'\x00{}', b'{"id":1,"id":1}', b'{"id":NaN}', b"-",
]  # fmt: skip
ENCODINGS = ["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1", "utf-7"]


@dataclass
class Case:
    """One HTTP request; `chunks` is its body as it arrives."""

    method: str = "POST"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def header(self, name: bytes) -> bytes | None:
        """The last value of a header."""
        return dict(self.headers).get(name)


def case(seed: str) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    asked = copy.deepcopy(rng.choice(VALID))
    names: list[str] = []
    body = _change_json(rng, asked, names) if rng.random() < 0.6 else json.dumps(asked).encode()
    headers = _headers(asked)
    if rng.random() < 0.15:
        body = _change_bytes(rng, body, names)
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 4])):
        change = rng.choice(HEADER_CHANGES)
        names.append(change.__name__)
        change(rng, headers)
    method = rng.choice(METHODS) if rng.random() < 0.04 else "POST"
    if method == "OPTIONS":
        headers += [
            (b"origin", b"http://127.0.0.1"),
            (b"access-control-request-method", rng.choice(HEADER_VALUES)),
        ]
    return Case(method, headers, _chunks(rng, body), names)


def _headers(asked: Any) -> list[tuple[bytes, bytes]]:
    """The headers of a correct client, as far as they can be made for what is asked."""
    made = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "mcp-protocol-version": wire.VERSION,
    }
    try:
        made |= wire.headers(asked)
        made["mcp-protocol-version"] = asked["params"]["_meta"][wire.PREFIX + "protocolVersion"]
        if asked["params"].get("name") == "mirrored":
            arguments = asked["params"]["arguments"]
            made |= {
                "mcp-param-region": arguments["region"],
                "mcp-param-count": str(arguments["inner"]["count"]),
            }
    except (KeyError, TypeError, AttributeError):
        pass
    return [(name.encode(), str(value).encode("utf-8", "replace")) for name, value in made.items()]


# ---- JSON


def _value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON value."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice(NUMBERS)
    if kind in (2, 3):
        return rng.choice(TEXTS)
    if kind == 4:
        return rng.choice([[], {}, [[]], {"": {}}])
    if kind == 5:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {rng.choice(TEXTS): _value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return copy.deepcopy(rng.choice(VALID))


def _another(rng: random.Random, value: Any) -> Any:
    """A value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        return rng.choice(
            [*TEXTS, value[:at] + chr(rng.randrange(0x250)) + value[at:], value[:at], value + value]
        )
    return rng.choice(NUMBERS) if isinstance(value, (int, float)) else _value(rng)


def _paths(value: Any, at: Path = ()) -> Iterator[Path]:
    yield at
    members = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, member in members:
        yield from _paths(member, (*at, key))


def _place(rng: random.Random, asked: Any) -> Path:
    """Where to change something: more often outside `_meta`, which has most of the members and stops most requests."""
    paths = [one for one in _paths(asked) if one]
    outside = [one for one in paths if "_meta" not in one]
    chosen = outside if outside and rng.random() < 0.7 else paths
    return rng.choice(chosen) if chosen else ()


def _parent(value: Any, path: Path) -> Any:
    for key in path[:-1]:
        value = value[key]
    return value


def _change_json(rng: random.Random, asked: Any, names: list[str]) -> bytes:
    """One to three changes at any depth; the headers are made for what comes out of them."""
    twice: str | None = None
    for _ in range(rng.choice([1, 1, 2, 3])):
        path = _place(rng, asked)
        if not path:
            break
        parent, key = _parent(asked, path), path[-1]
        change = rng.choice(
            [
                "replace",
                "replace",
                "delete",
                "rename",
                "insert",
                "wrap",
                "retype",
                "twice",
                "deepen",
            ]
        )
        names.append(f"{change} {'.'.join(map(str, path))}")
        if change == "replace":
            parent[key] = _another(rng, parent[key]) if rng.random() < 0.6 else _value(rng)
        elif change == "delete":
            del parent[key]
        elif change == "rename" and isinstance(parent, dict):
            parent[rng.choice(TEXTS)] = parent.pop(key)
        elif change == "insert" and isinstance(parent, dict):
            parent[rng.choice(TEXTS)] = _value(rng)
        elif change == "wrap":
            parent[key] = rng.choice([[parent[key]], {"": parent[key]}])
        elif change == "retype":
            parent[key] = (
                str(parent[key]) if not isinstance(parent[key], str) else rng.choice(NUMBERS)
            )
        elif change == "deepen":
            for _ in range(rng.choice([5, 100, 190, 210])):
                parent[key] = [parent[key]]
        elif change == "twice":
            twice = key if isinstance(key, str) else None
    body = json.dumps(asked, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if twice is not None:
        member = json.dumps(twice).encode() + b":"
        body = body.replace(b"{", b"{" + member + b"1," + member + b"2,", 1)
    return body


# ---- bytes


def _change_bytes(rng: random.Random, body: bytes, names: list[str]) -> bytes:
    at, length = rng.randrange(len(body) + 1), rng.randrange(1, 20)
    other = json.dumps(rng.choice(VALID)).encode()
    changes: dict[str, Callable[[], bytes]] = {
        "truncate": lambda: body[:at],
        "behead": lambda: body[at:],
        "splice": lambda: body[:at] + other[rng.randrange(len(other)) :],
        "append": lambda: body + other,
        "cut": lambda: body[:at] + body[at + length :],
        "insert": lambda: body[:at] + rng.randbytes(length) + body[at:],
        "flip": lambda: (
            body[:at]
            + bytes(byte ^ (1 << rng.randrange(8)) for byte in body[at : at + 1])
            + body[at + 1 :]
        ),
        "random": lambda: rng.randbytes(rng.choice([1, 10, 1000])),
        "printable": lambda: "".join(rng.choices(string.printable, k=50)).encode(),
        "odd": lambda: rng.choice(ODD_JSON),
        "odd inside": lambda: body[:at] + rng.choice(ODD_JSON) + body[at:],
        "encode": lambda: body.decode("utf-8", "replace").encode(rng.choice(ENCODINGS), "replace"),
        "nest": lambda: (
            rng.choice([b"[", b'{"a":', b'{"params":', b'{"":['])
            * rng.choice([10, 150, 10_000, 100_000])
        ),
        "batch": lambda: b"[" + body + b"," + other + b"]",
        "space": lambda: b" \t\r\n" * rng.choice([1, 1000]) + body,
        "large": lambda: body.ljust(40_000),
    }
    name = rng.choice(list(changes))
    names.append(name)
    return changes[name]()


def _chunks(rng: random.Random, body: bytes) -> list[bytes]:
    if rng.random() < 0.8 or not body:
        return [body]
    size = max(len(body) // rng.randrange(1, 12), 1)
    return [body[start : start + size] for start in range(0, len(body), size)] + rng.choice(
        [[], [b""]]
    )


# ---- headers


def _spot(rng: random.Random, headers: list[tuple[bytes, bytes]]) -> int:
    """Where to change something: more often in a header of the protocol, since a wrong Host ends every story."""
    protocol = [at for at, (name, _) in enumerate(headers) if name.startswith(b"mcp-")]
    return rng.choice(protocol) if protocol and rng.random() < 0.7 else rng.randrange(len(headers))


def _drop(rng: random.Random, headers: list[tuple[bytes, bytes]]) -> None:
    if len(headers) > 1:
        headers.pop(_spot(rng, headers))


def _repeat(rng: random.Random, headers: list[tuple[bytes, bytes]]) -> None:
    headers.append(headers[_spot(rng, headers)])


def _revalue(rng: random.Random, headers: list[tuple[bytes, bytes]]) -> None:
    at = _spot(rng, headers)
    headers[at] = (headers[at][0], rng.choice(HEADER_VALUES))


def _swap(rng: random.Random, headers: list[tuple[bytes, bytes]]) -> None:
    at = _spot(rng, headers)
    headers[at] = (headers[at][0], rng.choice(headers)[1])


def _pad(rng: random.Random, headers: list[tuple[bytes, bytes]]) -> None:
    at = _spot(rng, headers)
    headers[at] = (
        headers[at][0],
        rng.choice([b" ", b"\t", b"  "]) + headers[at][1] + rng.choice([b" ", b"\t\t", b""]),
    )


def _scramble(rng: random.Random, headers: list[tuple[bytes, bytes]]) -> None:
    at = _spot(rng, headers)
    headers[at] = (headers[at][0], rng.randbytes(rng.randrange(12)))


def _encode(rng: random.Random, headers: list[tuple[bytes, bytes]]) -> None:
    at, inside = _spot(rng, headers), base64.b64encode(rng.randbytes(rng.randrange(4)))
    headers[at] = (
        headers[at][0],
        b"=?base64?" + rng.choice([inside, inside.rstrip(b"="), inside + b"=", b"!"]) + b"?=",
    )


def _recase(rng: random.Random, headers: list[tuple[bytes, bytes]]) -> None:
    at = _spot(rng, headers)
    headers[at] = (headers[at][0], headers[at][1].swapcase())


def _rename(rng: random.Random, headers: list[tuple[bytes, bytes]]) -> None:
    at = _spot(rng, headers)
    headers[at] = (rng.choice(HEADER_NAMES), headers[at][1])


def _add(rng: random.Random, headers: list[tuple[bytes, bytes]]) -> None:
    headers.insert(
        rng.randrange(len(headers) + 1), (rng.choice(HEADER_NAMES), rng.choice(HEADER_VALUES))
    )


def _crowd(rng: random.Random, headers: list[tuple[bytes, bytes]]) -> None:
    name = rng.choice(HEADER_NAMES)
    headers.extend((name + b"%d" % number, b"x") for number in range(rng.choice([10, 1000])))


HEADER_CHANGES = [
    _encode,
    _drop,
    _repeat,
    _revalue,
    _revalue,
    _swap,
    _pad,
    _scramble,
    _recase,
    _rename,
    _add,
    _add,
    _crowd,
]
