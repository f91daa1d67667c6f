"""Headless Chromium over its debugging pipe (Chrome DevTools Protocol): pages, keys and screenshots.

Messages are JSON, each with a zero byte behind it, on the file descriptors 3 (to the browser) and 4.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
"""The browser of this machine, or `None`."""
LIMIT_S = 120
_KEYS = {
    "Tab": {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9},
    "Enter": {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    "ArrowDown": {"key": "ArrowDown", "code": "ArrowDown", "windowsVirtualKeyCode": 40},
}


_LOADING = {
    "Inspected target navigated or closed",
    "Execution context was destroyed.",
    "Cannot find context with specified id",
}
"""The errors of commands during which another page was loaded."""


class PageLoads(Exception):
    """Another page was loaded before the command to this page had its result."""


class Chromium:
    """A browser process with one page."""

    def __init__(self, sink: int, source: asyncio.StreamReader) -> None:
        self._sink = sink
        self._source = source
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session: str | None = None
        self.errors: list[str] = []
        """Errors in scripts, and what the policy of a page has refused."""
        self._reading = asyncio.ensure_future(self._read())

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command to the page, and return its result."""
        number = len(self._waiting) + 1
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._waiting[number] = asyncio.get_running_loop().create_future()
        os.write(self._sink, json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(LIMIT_S):
            answer = await self._waiting[number]
        error = answer.get("error", {})
        if error.get("message") in _LOADING:
            raise PageLoads(f"{method}: {error}")
        assert not error, f"{method}: {error}"
        result: dict[str, Any] = answer["result"]
        return result

    async def _read(self) -> None:
        while True:
            try:
                message = json.loads((await self._source.readuntil(b"\0"))[:-1])
            except asyncio.IncompleteReadError:
                return
            if "id" in message:
                self._waiting[message["id"]].set_result(message)
            elif message["method"] == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(message["params"]["exceptionDetails"]))
            elif message["method"] == "Log.entryAdded":
                entry = message["params"]["entry"]
                if entry["level"] == "error" and entry["source"] != "network":
                    self.errors.append(entry["text"])

    async def open(self) -> None:
        """Make the page, with a window of a laptop."""
        target = await self.send("Target.createTarget", url="about:blank")
        attached = await self.send(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.send(f"{domain}.enable")
        await self.resize(1180, 760)

    async def resize(self, width: int, height: int) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def scheme(self, name: str) -> None:
        """Prefer light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        await self.send("Emulation.setEmulatedMedia", features=features)

    async def goto(self, url: str) -> None:
        """Load a page."""
        await self.send("Page.navigate", url=url)
        await self.until("document.readyState == 'complete' && location.href != 'about:blank'")

    async def evaluate(self, expression: str) -> Any:
        """Return the JSON value of an expression in the page."""
        answer = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression holds, also over the load of another page."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                with suppress(PageLoads):
                    answer = await self.send(
                        "Runtime.evaluate", expression=f"!!({expression})", returnByValue=True
                    )
                    if answer["result"].get("value") is True:
                        return
                await asyncio.sleep(0.05)

    async def press(self, *names: str) -> None:
        """Press and release keys."""
        for name in names:
            for kind in ("keyDown", "keyUp"):
                await self.send("Input.dispatchKeyEvent", type=kind, **_KEYS[name])

    async def type(self, text: str) -> None:
        """Type a text where the focus is."""
        await self.send("Input.insertText", text=text)

    async def focus(self, selector: str) -> None:
        """Press Tab until an element has the focus, as people without a mouse do."""
        for _ in range(200):
            if await self.evaluate(f"document.activeElement.matches({json.dumps(selector)})"):
                return
            await self.press("Tab")
        raise AssertionError(f"no key reaches {selector}")

    async def picture(self) -> bytes:
        """Return what the window shows as PNG."""
        shot = await self.send("Page.captureScreenshot", format="png")
        return base64.b64decode(shot["data"])

    async def aclose(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


@asynccontextmanager
async def chromium() -> AsyncIterator[Chromium]:
    """A browser with an empty profile and one page."""
    assert CHROMIUM is not None
    to_browser, from_browser = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # bash puts the pipes at the descriptors that Chromium reads and writes
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}',
            "sh",
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            pass_fds=(to_browser[0], from_browser[1]),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        source = asyncio.StreamReader(limit=2**26)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(source), os.fdopen(from_browser[0], "rb")
        )
        browser = Chromium(to_browser[1], source)
        try:
            await browser.open()
            yield browser
        finally:
            await browser.aclose()
            transport.close()
            os.close(to_browser[1])
            if process.returncode is None:
                process.kill()
            await process.wait()
