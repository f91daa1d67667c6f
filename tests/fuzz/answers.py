"""What the gateway answers to 20,000 requests, right and wrong ones, to the byte:
`python -m tests.fuzz.answers`.

    python -m tests.fuzz.answers before.txt              in the one tree
    python -m tests.fuzz.answers after.txt               in the other
    diff before.txt after.txt                            the numbers of the requests whose answers differ
    python -m tests.fuzz.answers --show 4711             one of them with both of its answers

For changes that must change nothing: a faster way to the same words. Each request
(`tests.support.mutations`) goes to the app once, as ASGI messages, and once as bytes to the
server's protocol. What is sealed differs each time, and is left out of the comparison. Clock and
ids are fixed; nothing depends on the time that a request takes.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import re
import sys
import tempfile
from collections.abc import Callable, MutableMapping
from itertools import count
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from uvicorn.config import Config
from uvicorn.server import ServerState

from roundgate import observability as logs
from roundgate.http import ConnectionMiddleware
from roundgate.http.connections import Bounds, Connections
from roundgate.main import build_app
from roundgate.settings import HttpConfig
from roundgate.settings.process import Settings
from tests.fuzz.targets import Wire
from tests.support.asgi import config_file
from tests.support.clocks import FixedClock
from tests.support.functions import EVERYTHING
from tests.support.jobs import dig
from tests.support.mutations import Case, case
from tests.support.rounds import KEYS

CASES: Final = 20_000
_SEALED: Final = re.compile(rb'("requestState":"|mcp-session-id: |id: )[^"\r\n]+')
_ROUNDS: Final = 2_000
"""How often the event loop goes round, at most, before a client hangs up: streams do not end by themselves."""


class CountingClock(FixedClock):
    """Stands still, and makes the same ids in every run."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()

    def new_id(self) -> str:
        return f"{next(self._numbers):022d}"


def app(folder: Path) -> FastAPI:
    """One of everything, its store in a folder."""
    using = Settings(state_keys=KEYS, store=f"sqlite:///{folder}/store.sqlite3")
    return build_app(config_file(*EVERYTHING, dig), using, clock=CountingClock())


async def asgi(served: FastAPI, asked: Case) -> bytes:
    """The answer of the app: status, headers, body."""
    incoming = [
        {"type": "http.request", "body": chunk, "more_body": at < len(asked.chunks)}
        for at, chunk in enumerate(asked.chunks, 1)
    ]
    answer = bytearray()
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if incoming:
            return incoming.pop(0)
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(sent: MutableMapping[str, Any]) -> None:
        if sent["type"] == "http.response.start":
            head = b"".join(b"%b: %b\n" % field for field in sent["headers"])
            answer.extend(b"%d\n%b\n" % (sent["status"], head))
        else:
            answer.extend(sent["body"])

    scope = {
        "type": "http",
        "method": asked.method,
        "path": "/mcp",
        "query_string": b"",
        "headers": asked.headers,
    }
    running = asyncio.ensure_future(served(scope, receive, send))
    await _settled(running.done, answer, is_stream=_is_listen(asked))
    gone.set()
    await asyncio.wait([running])
    if error := running.exception():
        answer.extend(repr(error).encode())
    return bytes(answer)


async def wire(connect: Callable[[], tuple[Any, set[Any]]], asked: Case) -> bytes:
    """The bytes that a connection gets."""
    (one, tasks), client = connect(), Wire()
    one.connection_made(client)
    one.data_received(_as_bytes(asked))
    await _settled(lambda: not tasks, client.answer, is_stream=_is_listen(asked))
    answer = bytes(client.answer)
    client.is_over = True
    one.connection_lost(None)
    await _settled(lambda: not tasks, client.answer)
    return answer


def _as_bytes(asked: Case) -> bytes:
    head = b"".join(b"%b: %b\r\n" % field for field in asked.headers)
    if asked.header(b"content-length") is None:
        head += b"content-length: %d\r\n" % len(asked.body)
    return b"%b /mcp HTTP/1.1\r\n%b\r\n%b" % (asked.method.encode(), head, asked.body)


def _is_listen(asked: Case) -> bool:
    return b"subscriptions/listen" in asked.body


async def _settled(
    is_over: Callable[[], bool], answer: bytearray, *, is_stream: bool = False
) -> None:
    """Until it is over; of a stream, until it has begun."""
    for number in range(_ROUNDS):
        if is_over() or (is_stream and answer.endswith(b"\r\n\r\n") and b"data:" in answer):
            return
        await asyncio.sleep(0 if number < 100 else 0.0005)


async def answers(numbers: range) -> list[tuple[bytes, bytes]]:
    """Both answers to each request."""
    with tempfile.TemporaryDirectory() as folder:
        served = app(Path(folder))
        http: Any = Connections(Bounds.from_config(HttpConfig()))
        configured = Config(
            ConnectionMiddleware(served), http=http, ws="none", lifespan="off", log_config=None
        )
        configured.load()

        def connect() -> tuple[Any, set[Any]]:
            make: Any = configured.http_protocol_class
            state = ServerState()
            return make(config=configured, server_state=state, app_state={}), state.tasks

        found = []
        for number in numbers:
            asked = case(f"answers {number}")
            found.append((await asgi(served, asked), await wire(connect, asked)))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, help="a line for each request, with a digest")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print one request")
    parser.add_argument("--cases", type=int, default=CASES)
    arguments = parser.parse_args()
    logs.configure("critical")
    # what a request is answered may depend on those before it (tasks, ids): they are always asked
    last = arguments.cases if arguments.show is None else arguments.show + 1
    found = asyncio.run(answers(range(last)))
    if arguments.show is not None:
        asked = case(f"answers {arguments.show}")
        sys.stdout.buffer.write(b"\n----\n".join([_as_bytes(asked), *found[-1], b""]))
        return
    lines = [
        f"{number} {_shown(of_app)} {_shown(of_wire)}\n"
        for number, (of_app, of_wire) in enumerate(found)
    ]
    if arguments.file is not None:
        arguments.file.write_text("".join(lines))
    print(f"{len(lines)} requests: {_shown(''.join(lines).encode())}")


def _shown(answer: bytes) -> str:
    """A status and a digest."""
    status = re.match(rb"(?:HTTP/1.1 )?(\d+)", answer)
    digest = hashlib.sha256(_SEALED.sub(rb"\1", answer)).hexdigest()[:16]
    return f"{status[1].decode() if status else '-'}:{digest}"


if __name__ == "__main__":
    main()
