"""JSON-RPC requests to a server that runs as a child process and speaks on its standard streams
(basic/transports/stdio), in revisions with and without sessions.

A `StdioLink` is one process, from its start to its end. All messages share one channel:

    a response                   to the request with its id
    notifications/progress       to the request with its token
    a notification of a stream   to the stream with its subscription id; without an id, to `taps`
    notifications/message        to `on_line`, because the channel does not identify the request
    a request (older revisions)  to the listener of the newest pending request
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct

from roundgate.background import cancelled, detached
from roundgate.client.messages import (
    META,
    NO_LISTENER,
    Listener,
    Observer,
    Reader,
    Received,
    Speaker,
    id_of,
    result_of,
    unreadable_response,
)
from roundgate.client.sender import Redact
from roundgate.client.transport import Limits
from roundgate.client.types import Json, is_modern
from roundgate.errors import BadAnswer, ClientError, ConnectionLost, TimedOut
from roundgate.json import encode
from roundgate.net.request import IdleLimit
from roundgate.observability.outgoing import Peer, client_span

T = TypeVar("T")

PROBE_S: Final = 10.0
"""The seconds within which a server must answer `server/discover`; otherwise it counts as older."""
STOP_S: Final = 2.0
"""The seconds that a process has to exit after its input is closed, and again after SIGTERM."""
MAX_UNANSWERED: Final = 3
"""The number of consecutive requests without an answer after which a process is pinged. A process
that does not answer the ping within `PROBE_S`, and sends nothing else, is stopped."""
EXIT_POLL_S: Final = 0.2
"""The seconds between two checks whether a process has ended."""
MAX_NOISE: Final = 1_000
"""The limit on consecutive lines that are not JSON-RPC messages. Beyond it, the process is
stopped."""
MAX_LINE_OF_STDERR: Final = 16_000
"""The limit on the bytes of a line that `on_line` receives. It exceeds the limit of the log, so
secrets in the line are complete and can be redacted."""
END_BYTES: Final = 512
"""The number of bytes at the beginning and at the end of a line in which its id is looked for."""
MAX_ANSWERING: Final = 32
"""The limit on the concurrent requests of an older server."""
MAX_WAITING: Final = 1_000
"""The limit on the queued notifications of a stream; further notifications are dropped."""
MAX_UNWRITTEN: Final = 16 * 1024 * 1024
"""The limit on the bytes that wait for a process to read its input."""
_HIGH_WATER: Final = 65_536
"""The number of those bytes from which the sender of a message waits, too."""
INHERITED: Final = (
    *("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"),
    *("APPDATA", "LOCALAPPDATA", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE"),
)
"""The variables of this process that a server inherits. Other variables may be secrets."""

_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL

log = logging.getLogger("roundgate.client")


class Program(Struct, frozen=True):
    """A program that is a server: its command line, additional variables and working directory."""

    command: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None = None

    async def start(self, limit: int) -> Process:
        """Start the program in a process group of its own. `limit` bounds a line of its output.
        Raise `ConnectionLost` if the program cannot be started."""
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        try:
            return await asyncio.create_subprocess_exec(
                *self.command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env={**inherited, **self.env},
                cwd=self.cwd,
                limit=limit,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it contains a NUL character"
            raise ConnectionLost(
                f"The program {self.command[0]!r} cannot be started: {reason}", was_sent=False
            ) from None


class StdioLink:
    """The sender of requests to one process. It has the methods of `Link` that `Connection` uses.

    `on_line` receives each line of the process's standard error, without its end.
    """

    session_id: None = None
    """The session id: always `None`, because stdio has no sessions."""

    def __init__(
        self,
        program: Program,
        *,
        info: Json,
        capabilities: Json,
        limits: Limits,
        observer: Observer | None = None,
        redact: Redact | None = None,
        on_line: Callable[[str], None] | None = None,
        received: Received | None = None,
        is_patient: bool = True,
    ) -> None:
        """Prepare the link without starting the process. `received` counts the lines that are no
        messages. `is_patient` gives the process time to end before it is killed."""
        self.limits = limits
        self.version: str | None = None
        """The negotiated revision; `None` before the negotiation."""
        self.session_stream = self
        self.taps: set[asyncio.Queue[Json]] = set()
        """Queues that receive each notification outside a stream. A full queue drops it."""
        self._program = program
        self._speaker = Speaker(info, capabilities)
        self._received = received or Received(program.command[0])
        self._reader = Reader(limits, observer, redact, self._received)
        self._observer = observer
        self._on_line = on_line or (lambda line: None)
        self._is_patient = is_patient
        self._ids = count(1)
        self._starting = asyncio.Lock()
        self._process: Process | None = None
        self._reading: list[asyncio.Task[None]] = []
        self._waiting: dict[int, _Pending] = {}
        self._streams: dict[int, asyncio.Queue[Json | None]] = {}
        self.failure: ClientError | None = None
        """The reason why the process can answer no request any more."""
        self._answering: set[asyncio.Task[None]] = set()
        self._noise = 0
        self._part = bytearray()
        """The beginning of a message over several lines."""
        self._has_abandoned = False
        """Whether the caller of a request has left before its answer."""
        self._unanswered = 0
        """The consecutive requests without an answer, since the process last sent a message."""
        self._pinging: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        """An event set once the process has ended or was stopped."""

    @property
    def is_open(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and not self.ended.is_set()

    async def open(self) -> None:
        """Do nothing: the channel is the stream of the session."""

    async def request(
        self,
        method: str,
        params: Json,
        *,
        may_repeat: bool,
        version: str | None = None,
        listener: Listener = NO_LISTENER,
    ) -> Json:
        """Send a request and return its result. If the caller is cancelled or the time limit
        passes, cancel the request at the server. `may_repeat` has no effect, because requests are
        lost with their process.

        Raises:
            RpcError: the server answered with an error.
            BadAnswer: the server violated the protocol.
            ConnectionLost, TimedOut: no answer arrived.
        """
        revision = self._version() if version is None else version
        message = self._speaker.message(method, params, next(self._ids), revision, listener)
        is_probe = method == "server/discover" and version is not None
        idle_s = PROBE_S if is_probe else self.limits.idle_s
        pending = _Pending(listener, idle_s, self.limits.request_s)
        try:
            with client_span(message, revision, Peer()) as span:
                result = await self._answer_to(message, pending)
                span.received(result)
                return result
        except TimeoutError:
            self._count_unanswered(revision)
            # timers of an event loop may be some milliseconds early
            if asyncio.get_running_loop().time() >= pending.ends_s - 0.01:
                limit = f"{self.limits.request_s:g} s (limit request_s)"
            else:
                limit = f"{idle_s:g} s" if is_probe else f"{idle_s:g} s (limit idle_s)"
            raise TimedOut(f"No answer to {method} arrived within {limit}") from None

    async def _answer_to(self, message: Json, pending: _Pending) -> Json:
        request_id: int = message["id"]
        self._waiting[request_id] = pending
        try:
            await self._write(message, pending.limit_s)
            return result_of(await pending.answer(), request_id)
        except (asyncio.CancelledError, TimeoutError, BadAnswer):
            # lifecycle: "The initialize request MUST NOT be cancelled by clients"
            if message["method"] != "initialize":
                self._cancel(request_id)
            self._has_abandoned = True
            raise
        finally:
            del self._waiting[request_id]

    def _count_unanswered(self, version: str) -> None:
        """Count a request without an answer. After `MAX_UNANSWERED` of them, ping the process."""
        self._unanswered += 1
        is_pinging = self._pinging is not None and not self._pinging.done()
        if self._unanswered >= MAX_UNANSWERED and self.is_open and not is_pinging:
            self._pinging = asyncio.create_task(self._ping(version))

    async def _ping(self, version: str) -> None:
        """Stop the process unless it answers, or sends anything else."""
        method = "server/discover" if is_modern(version) else "ping"
        message = self._speaker.message(method, {}, next(self._ids), version, NO_LISTENER)
        with suppress(ClientError, TimeoutError):
            await self._answer_to(message, _Pending(NO_LISTENER, PROBE_S, PROBE_S))
        if self._unanswered and self._process is not None:
            self._fail(ConnectionLost("The server's process hung, so it was stopped"))
            _signal_group(self._process, _KILL)

    async def notify(self, method: str, version: str) -> None:
        """Send a notification."""
        message: Json = {"jsonrpc": "2.0", "method": method}
        with client_span(message, version, Peer()):
            await self._write(message)

    async def stream(self, method: str, params: Json) -> AsyncGenerator[Json, None]:
        """Send a request whose answer is a stream; yield the messages of the stream, the response
        last. Raise `ConnectionLost` if the process ends first."""
        version = self._version()
        message = self._speaker.message(method, params, next(self._ids), version, NO_LISTENER)
        request_id: int = message["id"]
        queue = self._streams[request_id] = asyncio.Queue(MAX_WAITING)
        try:
            await self._write(message)
            while (received := await queue.get()) is not None:
                yield received
                if "method" not in received:
                    return
            raise self.failure or ConnectionLost("The server's process has ended")
        finally:
            del self._streams[request_id]
            self._cancel(request_id)

    async def through(self, work: Coroutine[Any, Any, T], listener: Listener) -> T:
        """Return the result of `work`, which sends several requests. Each request has its own
        listener."""
        return await work

    async def end_session(self) -> None:
        """Stop the process: close its input, and kill its process group if it does not end."""
        async with self._starting:
            process, self._process = self._process, None
        if process is not None:
            self._fail(ConnectionLost("The server's process was stopped", was_sent=True))
            await asyncio.shield(self._stop(process))

    async def _stop(self, process: Process) -> None:
        """Stop a process. When cancelled, at the end of its event loop, kill it at once."""
        if process.stdin is not None:
            process.stdin.close()
        has_ended = process.returncode is not None
        try:
            if has_ended:  # its id may be reused, so only `_watch_end` signals
                await asyncio.sleep(EXIT_POLL_S)
            elif self._is_patient and not await _ends(process):
                _signal_group(process, signal.SIGTERM)
                await _ends(process)
        finally:
            if not has_ended:
                _signal_group(process, _KILL)  # its children, too
                await _ends(process)
            await self._stop_reading()
            await _closes(process)

    async def _stop_reading(self) -> None:
        await cancelled(*self._reading, *self._answering, self._pinging)
        self._reading.clear()

    # -- writing -----------------------------------------------------------------------------------

    def _version(self) -> str:
        assert self.version is not None, "a revision is negotiated before requests are sent"
        return self.version

    async def _write(self, message: Json, limit_s: float | None = None) -> None:
        """Start the process if necessary, and write a message to it.

        Raises:
            ConnectionLost: the process has ended or cannot be started, or does not read its input.
            TimeoutError: the start, or the process's reading of its input, took `limit_s` seconds.
        """
        process = self._process
        if process is None or self.failure is not None:
            async with asyncio.timeout(limit_s):
                process = await self._running()
        stdin, was_sent = process.stdin, False
        assert stdin is not None
        try:
            if stdin.transport.get_write_buffer_size() > MAX_UNWRITTEN:
                raise ConnectionLost("The server's process does not read its input", was_sent=False)
            if self._observer is not None:
                self._observer("sent", message, None)
            was_sent = True
            stdin.write(encode(message) + b"\n")  # complete even if the wait below is cancelled
            if stdin.transport.get_write_buffer_size() > _HIGH_WATER:
                async with asyncio.timeout(limit_s):
                    await stdin.drain()
        except TimeoutError:
            raise
        except (OSError, RuntimeError):  # uvloop raises RuntimeError for a pipe that is closed
            reason = self.failure or "The server's process has ended"
            raise ConnectionLost(str(reason), was_sent=was_sent) from None

    async def _running(self) -> Process:
        async with self._starting:
            if self.failure is not None:
                raise ConnectionLost(str(self.failure), was_sent=False)
            if self._process is None:
                self._process = await self._program.start(self.limits.max_message)
                readers = (self._read, self._read_errors, self._watch_end)
                self._reading = [
                    detached(asyncio.create_task, read(self._process)) for read in readers
                ]
        return self._process

    def _cancel(self, request_id: int) -> None:
        """Notify the server that a request is cancelled; ignore a process that has ended."""
        if not self.is_open or self._process is None or self._process.stdin is None:
            return
        params = {"requestId": request_id, "reason": "The caller no longer waits"}
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        if self._observer is not None:
            self._observer("sent", message, None)
        with suppress(OSError, RuntimeError):
            self._process.stdin.write(encode(message) + b"\n")

    # -- reading -----------------------------------------------------------------------------------

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        try:
            await self._read_lines(process.stdout)
            if not await _ends(process) and process.returncode is None:
                # without an output, it can answer no request
                _signal_group(process, _KILL)
            self._fail(_ended(await process.wait()))
        except ClientError as error:
            self._fail(error)
        finally:
            self._fail(ConnectionLost("The client no longer reads the server's process"))
            if process.returncode is None:
                _signal_group(process, _KILL)

    async def _read_lines(self, stdout: asyncio.StreamReader) -> None:
        """Handle each line of output until it ends. A line beyond the limit ends its own request
        only."""
        while True:
            try:
                line = await stdout.readuntil(b"\n")
            except asyncio.LimitOverrunError as error:
                beginning, end = await _skipped_line(stdout, error.consumed)
                limit = self.limits.max_message
                reason = f"The server sent a line of more than {limit} bytes (limit max_message)"
                self._take_unreadable(BadAnswer(reason), beginning, end)
                continue
            except asyncio.IncompleteReadError as error:
                line = error.partial
            if not line:
                return
            self._take(line)

    async def _read_errors(self, process: Process) -> None:
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:  # the line exceeds the limit; skip its beginning
                continue
            if not line:
                return
            self._on_line(line[:MAX_LINE_OF_STDERR].decode("utf-8", "replace").rstrip("\r\n"))

    async def _watch_end(self, process: Process) -> None:
        """Kill the children that a process leaves behind. While they hold its output open, `wait`
        (in Python 3.11 to 3.13) and `_read` do not return, so poll for the end instead."""
        while process.returncode is None:  # noqa: ASYNC110 - asyncio offers no event for this
            await asyncio.sleep(EXIT_POLL_S)
        _signal_group(process, _KILL)
        await asyncio.sleep(STOP_S)  # for the rest of its output
        self._fail(_ended(process.returncode))

    def _take(self, line: bytes) -> None:
        """Handle a line of output. Skip lines that are not messages, because many servers print a
        greeting. Raise as `_take_unreadable` does."""
        try:
            messages = self._reader.messages(line)
        except BadAnswer as error:
            if unreadable_response(line, line) is not None or not self._is_part(line):
                self._take_unreadable(error, line, line)
            return
        if self._part and all("jsonrpc" not in message for message in messages):
            self._is_part(line)
            return
        self._part.clear()
        for message in messages:
            self._take_message(message)

    def _is_part(self, line: bytes) -> bool:
        """Return whether a line is a part of a message over several lines, as pretty-printers write
        it: from `{` or `[` to `}` or `]`, each alone in a line. Handle the message at its end."""
        if not self._part and line.rstrip() not in (b"{", b"["):
            return False
        self._part += line
        if len(self._part) > self.limits.max_message:
            self._part.clear()
        elif line.rstrip() in (b"}", b"]"):
            whole = bytes(self._part)
            self._part.clear()
            self._received.skip("The server wrote a message over several lines")
            try:
                messages = self._reader.messages(whole)
            except BadAnswer as error:
                self._take_unreadable(error, whole, whole)
                return True
            for message in messages:
                self._take_message(message)
        return True

    def _take_message(self, message: Json) -> None:
        self._noise = self._unanswered = 0
        if "method" not in message:
            self._take_response(message)
        elif "id" in message:
            self._take_request(message)
        else:
            self._take_notification(message)

    def _take_unreadable(self, error: BadAnswer, beginning: bytes, end: bytes) -> None:
        """Count a line that is not a message. If it is a response, end its request with the error.
        Raise `BadAnswer` if more than `MAX_NOISE` consecutive lines are not messages."""
        self._received.skip(str(error))
        request_id = unreadable_response(beginning, end)
        if request_id is not None and (pending := self._pending_of(request_id or None)) is not None:
            self._unanswered = 0
            pending.put(error)
            return
        self._noise += 1
        if self._noise > MAX_NOISE:
            raise error

    def _pending_of(self, request_id: Any) -> _Pending | None:
        """Return the request with an id. A response without an id belongs to the only request."""
        if request_id is None and len(self._waiting) == 1:
            return next(iter(self._waiting.values()))
        return self._waiting.get(request_id) if isinstance(request_id, int) else None

    def _take_response(self, message: Json) -> None:
        request_id = id_of(message)
        if message.keys().isdisjoint(("jsonrpc", "result", "error")):  # a line of a log
            self._received.skip("The server sent JSON that is not a JSON-RPC message")
        elif (pending := self._pending_of(request_id)) is not None:
            if request_id is None and self._has_abandoned:  # it may answer another caller's
                pending.put(BadAnswer("The server sent an answer without an id"))
            else:
                pending.put(message)
        elif (queue := self._streams.get(request_id)) is not None:
            _put(queue, message)

    def _take_notification(self, message: Json) -> None:
        params = message.get("params", {})
        if not isinstance(params, dict):
            return
        meta = params.get("_meta")
        subscription = meta.get(f"{META}subscriptionId") if isinstance(meta, dict) else None
        if message["method"] == "notifications/progress":
            for pending in self._waiting.values():
                if pending.has_token(params.get("progressToken")):
                    pending.put_progress(message)
        elif isinstance(subscription, int) and subscription in self._streams:
            _put(self._streams[subscription], message)
        elif message["method"] != "notifications/message":
            for tap in self.taps:
                with suppress(asyncio.QueueFull):
                    tap.put_nowait(message)

    def _take_request(self, message: Json) -> None:
        """Answer a request of an older server in the background, because the answer may need a
        person. Newer revisions forbid such requests, so ignore them. Raise `BadAnswer` if the server
        has too many open requests."""
        if self.version is not None and is_modern(self.version):
            return
        if len(self._answering) >= MAX_ANSWERING:
            raise BadAnswer(f"The server asks more than {MAX_ANSWERING} questions at once")
        task = asyncio.create_task(self._answer(message))
        self._answering.add(task)
        task.add_done_callback(self._finish_answer)

    async def _answer(self, message: Json) -> None:
        params, request_id = message.get("params", {}), message["id"]
        answer: Json = {"error": {"code": -32601, "message": "Method not found"}}
        if message["method"] == "ping":
            answer = {"result": {}}
        elif isinstance(params, dict):
            waiting = [(each.idle, each.listener.on_request) for each in self._waiting.values()]
            askable = [(idle, ask) for idle, ask in waiting if ask is not None]
            if askable:
                idle, ask = askable[-1]
                with idle.suspended():
                    answer = await ask(request_id, str(message["method"]), params)
        await self._write({"jsonrpc": "2.0", "id": request_id, **answer})

    def _finish_answer(self, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.debug("a server's request could not be answered", exc_info=error)
        if isinstance(error, ConnectionLost):  # the answer was not sent, but other requests were
            self._fail(ConnectionLost(str(error), was_sent=True))
        elif isinstance(error, ClientError):
            self._fail(error)

    def _fail(self, error: ClientError) -> None:
        """End all requests and streams with an error, unless an earlier error ended them."""
        if self.failure is not None:
            return
        self.failure = error
        self.ended.set()
        for pending in self._waiting.values():
            pending.put(error)
        for queue in self._streams.values():
            while queue.full():
                queue.get_nowait()
            queue.put_nowait(None)


class _Pending:
    """A request that waits for its response. Each progress notification restarts its time limit.

    The request's own task passes progress on, so a slow handler delays no other request.
    """

    def __init__(self, listener: Listener, limit_s: float, whole_s: float) -> None:
        """Wait at most `limit_s` seconds for each message, and `whole_s` seconds in all."""
        self.listener = listener
        self.limit_s = limit_s
        self.idle = IdleLimit(limit_s)
        self.ends_s = asyncio.get_running_loop().time() + whole_s
        self._received: deque[Json | ClientError] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def has_token(self, token: Any) -> bool:
        return token is not None and (self.listener.meta or {}).get("progressToken") == token

    def put(self, received: Json | ClientError) -> None:
        """Receive the response, or the error that ends the request."""
        self._received.append(received)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def put_progress(self, message: Json) -> None:
        if len(self._received) < MAX_WAITING:
            self.put(message)

    async def answer(self) -> Json:
        """Return the response; pass progress notifications to the listener.

        Raises:
            TimeoutError: nothing arrived within the time limit.
            ClientError: the process has ended.
        """
        while True:
            if not self._received:
                await self._wait()
            received = self._received.popleft()
            if isinstance(received, ClientError):
                raise received
            if "method" not in received:
                return received
            async with asyncio.timeout_at(self.ends_s):
                await self.listener.notify(received)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self.idle.begin(self._expire)
        end = None if self.ends_s == inf else loop.call_at(self.ends_s, self._expire)
        try:
            await self._waiter
        finally:
            if end is not None:
                end.cancel()
            self.idle.end()

    def _expire(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())


async def _skipped_line(stdout: asyncio.StreamReader, size: int) -> tuple[bytes, bytes]:
    """Read the rest of a line, of which `size` bytes have arrived; return its beginning and its
    end."""
    beginning = end = b""
    while True:
        part = await stdout.readexactly(size)
        beginning, end = beginning or part[:END_BYTES], (end + part)[-END_BYTES:]
        try:
            return beginning, end + (await stdout.readuntil(b"\n"))[-END_BYTES:]
        except asyncio.LimitOverrunError as error:
            size = error.consumed
        except asyncio.IncompleteReadError as error:
            return beginning, end + error.partial[-END_BYTES:]


def _ended(status: int) -> ConnectionLost:
    return ConnectionLost(f"The server's process ended with status {status}")


def _put(queue: asyncio.Queue[Json | None], message: Json) -> None:
    with suppress(asyncio.QueueFull):
        queue.put_nowait(message)


async def _ends(process: Process) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            await process.wait()
            return True
    return False


async def _closes(process: Process) -> None:
    """Wait until asyncio has closed the transport of a process that has ended: in a callback, after
    the whole output was read. Return after `STOP_S` seconds if another process holds the output."""
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(STOP_S):
            for stream in (process.stdout, process.stderr):
                while stream is not None and await stream.read(65_536):
                    pass
            await process.wait()
            await asyncio.sleep(0)  # the callback is due as soon as there is a status


def _signal_group(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
