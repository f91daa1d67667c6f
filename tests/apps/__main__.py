"""`scripts/apps`: a gateway in front of servers with pages, a host in a browser, and what it saw.

The host's page has an image that arrives when the host has reported; so the browser is done then,
and takes its screenshot.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from roundgate_aws.machine import reserved_port
from tests.support.asgi import built, config_of
from tests.support.chromium import CHROMIUM
from tests.support.upstreams import until

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CACHE = ROOT / ".cache/apps"
NODE = ROOT / ".cache/node/node"
BROWSER_S = 240
"""Longer than the host waits for a page, its button and its call."""
HTML = "text/html;profile=mcp-app"


@dataclass(frozen=True, slots=True)
class Subject:
    """A server with a page, and what the page has to show."""

    name: str
    shows: str
    button: str = ""
    """A selector of the button that is pressed."""
    calls: str = ""
    """The tool that the page calls, by the name that it knows."""

    def backend(self) -> dict[str, Any]:
        if self.name == "own":
            return {"kind": "python", "name": "own", "path": "own/tools.py"}
        package = next((CACHE / "node_modules/@modelcontextprotocol").glob(f"server-{self.name}*"))
        command = [str(NODE), str(package / "dist/index.js"), "--stdio"]
        return {"kind": "mcp", "name": self.name, "command": command}


SUBJECTS = (
    Subject("basic", "Server Time", button="button", calls="get-time"),
    Subject("budget", "Allocated: $100,000"),
    Subject("cohort", "Cohort Retention Analysis", calls="get-cohort-data"),
    Subject("own", "apples: 4", button="button", calls="count_again"),
)


class Site:
    """The host's page in front of the gateway, on one origin."""

    def __init__(self, gateway: ASGIApp, script: bytes) -> None:
        self._gateway = gateway
        self._script = script
        self.reported = asyncio.Event()
        self.outcome: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope.get("path"):
            case "/host":
                page = b'<!doctype html><img src="/reported" style="display:none"><script type="module" src="/host.js">'
                await _answer(send, page + b"</script>", b"text/html")
            case "/host.js":
                await _answer(send, self._script, b"text/javascript")
            case "/outcome":
                self.outcome = json.loads(await _body(receive))
                self.reported.set()
                await _answer(send, b"", b"text/plain")
            case "/reported":
                await self.reported.wait()
                await _answer(send, b"", b"image/png")
            case _:
                await self._gateway(scope, receive, send)


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def _answer(send: Send, body: bytes, media_type: bytes) -> None:
    headers = [(b"content-type", media_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main(names: Sequence[str]) -> int:
    chosen = [one for one in SUBJECTS if not names or any(name in one.name for name in names)]
    assert CHROMIUM is not None, "scripts/apps checks that there is one"
    outcomes = asyncio.run(examined(chosen, CHROMIUM, _script()))
    for name, outcome in outcomes.items():
        print(f"{name:10} {outcome}")
    return 0 if chosen and all(one == "yes" for one in outcomes.values()) else 1


def _script() -> bytes:
    """The host, with the libraries that it imports."""
    esbuild = CACHE / "node_modules/.bin/esbuild"
    command = [str(esbuild), str(HERE / "host.js"), "--bundle", "--format=esm", "--log-level=error"]
    environment = {"NODE_PATH": str(CACHE / "node_modules"), "PATH": str(NODE.parent)}
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout


async def examined(subjects: Sequence[Subject], browser: str, script: bytes) -> dict[str, str]:
    """What came of each subject: `yes`, or what went wrong."""
    views = [
        {"name": one.name, "include": [{"backend": one.name}], "bare_names": True}
        for one in subjects
    ]
    backends = [one.backend() for one in subjects]
    app = await asyncio.to_thread(built, config_of({"backends": backends, "views": views}, HERE))
    site = Site(app, script)
    outcomes: dict[str, str] = {}
    async with _serving(site) as url:
        for subject in subjects:
            site.reported.clear()
            site.outcome = {"error": "the host did not report"}
            await _browse(browser, url, subject)
            outcomes[subject.name] = _verdict(subject, site.outcome)
    return outcomes


@asynccontextmanager
async def _serving(site: Site) -> Any:
    with reserved_port() as port:
        config = uvicorn.Config(site, port=port, log_level="error", lifespan="on")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)
        url = f"http://127.0.0.1:{port}"
        try:
            await until([], lambda: _missing(url))
            yield url
        finally:
            server.should_exit = True
            await serving


async def _missing(url: str) -> Any:
    """The servers that have not answered yet."""
    async with httpx.AsyncClient(timeout=60) as http:
        return (await http.get(f"{url}/healthz")).json().get("missing", [])


async def _browse(browser: str, url: str, subject: Subject) -> None:
    """Show the host until it has reported; leave a screenshot."""
    expected = {"shows": subject.shows, "button": subject.button, "calls": subject.calls}
    query = urlencode({"path": f"/{subject.name}/mcp", **expected})
    picture = CACHE / f"{subject.name}.png"
    with tempfile.TemporaryDirectory() as profile:
        process = await asyncio.create_subprocess_exec(
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--screenshot={picture}",
            "--window-size=920,740",
            f"{url}/host?{query}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await asyncio.wait_for(process.wait(), BROWSER_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def _verdict(subject: Subject, outcome: dict[str, Any]) -> str:
    if "error" in outcome:
        return str(outcome["error"])
    if not outcome["uri"].startswith(f"ui://{subject.name}/") or outcome["mimeType"] != HTML:
        return f"another page: {outcome['uri']}, {outcome['mimeType']}"
    if subject.shows not in outcome["text"]:
        return f"the page shows {outcome['text']!r}"
    if subject.calls and subject.calls not in outcome["calls"]:
        return f"the page called {outcome['calls']}, not {subject.calls}"
    return "yes"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
