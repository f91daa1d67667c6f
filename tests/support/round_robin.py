"""A balancer in front of several gateways that gives each request to the next one, whoever
served the session so far.

    initialize      ─▶ first          POST of a call   ─▶ third
    tools/list      ─▶ second         POST of its answer ─▶ first

It runs in a thread of its own and keeps what a test wants to know of the requests: which revisions
were asked for, and how many went where.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from roundgate_aws.machine import reserved_port

_OF_A_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding"})
_QUESTION: Final = b'"elicitation/create"'
_META_VERSION: Final = "io.modelcontextprotocol/protocolVersion"


@dataclass
class Seen:
    """What has passed."""

    posts: Counter[str] = field(default_factory=Counter)
    """POSTs by gateway."""
    gets: int = 0
    cut: list[str] = field(default_factory=list)
    """The gateways that cut an answer, or a request before its answer."""
    revisions: dict[str, None] = field(default_factory=dict)
    """The revisions that `initialize` or `_meta` named, in the order in which they came."""

    def note(self, target: str, method: str, body: bytes) -> None:
        """Count a request."""
        if method != "POST":
            self.gets += method == "GET"
            return
        self.posts[target] += 1
        with suppress(ValueError):
            said = json.loads(body)
            params = said.get("params") if isinstance(said, dict) else None
            if (revision := _revision(said, params)) is not None:
                self.revisions.setdefault(revision)


def _revision(said: Any, params: Any) -> str | None:
    if not isinstance(params, dict):
        return None
    if said.get("method") == "initialize":
        return str(params.get("protocolVersion"))
    meta = params.get("_meta")
    named = meta.get(_META_VERSION) if isinstance(meta, dict) else None
    return named if isinstance(named, str) else None


class RoundRobin:
    """`with RoundRobin(urls) as balancer:` has `balancer.url` lead to one of `urls` after the other."""

    def __init__(
        self,
        urls: Sequence[str],
        path: str = "/mcp",
        asked: Callable[[str], None] | None = None,
        refuses: str | None = None,
        read_s: float | None = None,
        probes_s: float | None = None,
    ) -> None:
        """`asked` is called with the gateway on whose stream the first question has just passed.
        `refuses` is a revision that is refused, as by a server that knows only older ones. An answer of which
        nothing arrives for `read_s` seconds is cut, as many proxies and clients do. With `probes_s`, it asks
        each gateway that often whether it is ready, and passes nothing to one that is not."""
        self._urls = urls
        self._targets = itertools.cycle(urls)
        self._asked = asked
        self._refuses = refuses
        self._timeout = httpx.Timeout(None, read=read_s)
        self._path = path
        self._probes_s = probes_s
        self._unready: set[str] = set()
        self.seen = Seen()

    def __enter__(self) -> RoundRobin:
        self._held = reserved_port()
        self._port = self._held.__enter__()
        routes = [
            Route("/{path:path}", self._pass_on, methods=["GET", "POST", "DELETE", "OPTIONS"])
        ]
        self._server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=routes, lifespan=self._speaking),
                host="127.0.0.1",
                port=self._port,
                log_config=None,
                lifespan="on",
                loop="asyncio",
                timeout_graceful_shutdown=1,
            )
        )
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._server.run, name="round robin", daemon=True)
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the balancer did not start")
            self._started.wait(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._held.__exit__(None, None, None)

    @property
    def url(self) -> str:
        """Where clients are to go."""
        return f"http://127.0.0.1:{self._port}{self._path}"

    @asynccontextmanager
    async def _speaking(self, app: Starlette) -> AsyncIterator[None]:
        # a connection for each request: one that a replica has just closed
        # would look like its death
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(
            timeout=self._timeout, verify=False, trust_env=False, limits=limits
        ) as self._http:
            probing = asyncio.create_task(self._probe())
            yield
            probing.cancel()

    async def _probe(self) -> None:
        while self._probes_s is not None:
            for url in self._urls:
                ready = httpx.URL(url).copy_with(raw_path=b"/readyz")
                try:
                    is_ready = (await self._http.get(ready, timeout=5)).status_code == 200
                except httpx.TransportError:
                    is_ready = False
                (self._unready.discard if is_ready else self._unready.add)(url)
            await asyncio.sleep(self._probes_s)

    async def _pass_on(self, request: Request) -> Response:
        if self._refuses and request.headers.get("mcp-protocol-version") == self._refuses:
            error = {"code": -32000, "message": "Bad Request: no valid session ID"}
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 400)
        body = await request.body()
        headers = [
            (name, value.strip())
            for name, value in request.headers.raw
            if name.decode() not in _OF_A_HOP
        ]
        for _ in self._urls:
            target = next(self._targets)
            if target in self._unready and len(self._unready) < len(self._urls):
                continue
            url = httpx.URL(target).copy_with(raw_path=request.scope["raw_path"] or b"/")
            sent = self._http.build_request(request.method, url, headers=headers, content=body)
            try:
                answer = await self._http.send(sent, stream=True)
                break
            except httpx.ConnectError:  # that one is dead
                continue
            except httpx.TransportError as error:
                self.seen.cut.append(f"{target}: {error!r}")
                return Response(f"no answer of {target}: {error}", 502)
        else:
            return Response("no gateway is there", 502)
        self.seen.note(target, request.method, body)
        passed = StreamingResponse(self._pieces(answer, target), answer.status_code)
        passed.raw_headers = [
            (name.lower(), value)
            for name, value in answer.headers.raw
            if name.lower().decode() not in _OF_A_HOP
        ]
        return passed

    async def _pieces(self, answer: httpx.Response, target: str) -> AsyncIterator[bytes]:
        try:
            async for piece in answer.aiter_raw():
                yield piece
                if self._asked is not None and _QUESTION in piece:
                    asked, self._asked = self._asked, None
                    asked(target)
        except httpx.TransportError as error:  # the gateway is gone: so ends the answer
            self.seen.cut.append(f"{target}: {error!r}")
        finally:
            await answer.aclose()
