"""The console of `roundgate serve`, with several processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx

from tests.support.asgi import STATE_KEY
from tests.support.console import csrf_of
from tests.support.server import Server, running
from tests.support.services import answer, service

SOURCE = """
from roundgate import tool

@tool
def hello() -> str:
    return "hello"
"""


def links_of(server: Server) -> list[str]:
    lines = [str(line.get("msg")) for line in server.lines()]
    return [line.rpartition(" ")[2] for line in lines if line.startswith("open the console once")]


def test_the_link_in_the_log_signs_in_at_every_process(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(SOURCE)
    config = tmp_path / "gateway.yaml"
    config.write_text(
        "console: {}\nbackends: [{kind: python, name: own, prefix: '', path: tools.py}]\n"
    )
    environment = {
        "GATEWAY_STATE_KEYS": STATE_KEY,
        "GATEWAY_STORE": f"sqlite:///{tmp_path}/store.sqlite3",
        "GATEWAY_LOG_FORMAT": "json",
    }
    with running(config, environment, "--workers", "2") as server:
        (link,) = links_of(server)
        assert link.startswith(f"{server.url}/console/enter?token=")
        other = {"host": "localhost:9", "origin": "http://localhost:9"}
        asked = httpx.post(f"{server.url}/console/sign-in", data={}, headers=other, timeout=60)
        assert asked.status_code == 200
        assert links_of(server)[-1].startswith(f"{server.url}/console/enter?token=")
        assert len(links_of(server)) == 2
        with httpx.Client(timeout=60) as browser:
            assert browser.get(link).status_code == 303
            session = dict(browser.cookies)
            assert browser.get(link).status_code == 403
        for _ in range(6):  # connections of their own, so that each process has some
            with httpx.Client(timeout=60, cookies=session) as browser:
                assert "hello" in browser.get(f"{server.url}/console/tools").text
            assert httpx.get(f"{server.url}/console", timeout=60).status_code == 303
        assert "token=" not in "".join(str(line) for line in server.lines() if "request" in line)


async def test_a_reload_with_another_host_forgets_the_pause_of_the_old_one(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    read = {"name": "read", "description": "Reads.", "method": "GET", "path": "/"}

    def write(base_url: str) -> None:
        api = {"kind": "http", "name": "api", "prefix": "", "base_url": base_url, "tools": [read]}
        value = {"console": {}, "backends": [{**api, "breaker": {"failures": 1}}]}
        config.write_text(json.dumps(value))

    async with service(answer(status="503 Service Unavailable")) as old, service(answer()) as new:
        write(old.url)
        environment = {
            "GATEWAY_STATE_KEYS": STATE_KEY,
            "GATEWAY_STORE": f"sqlite:///{tmp_path}/store.sqlite3",
            "GATEWAY_LOG_FORMAT": "json",
        }
        with running(config, environment) as server:
            async with httpx.AsyncClient(base_url=f"{server.url}/console", timeout=60) as browser:

                async def call() -> list[str]:
                    """Call the tool; return the problems of its back end."""
                    page = (await browser.get("/tools/read")).text
                    form = {"csrf_token": csrf_of(page)}
                    headers = {"origin": server.url}
                    await browser.post("/tools/read/call", data=form, headers=headers)
                    (backend,) = (await browser.get("/api/overview")).json()["backends"]
                    problems: list[str] = backend["problems"]
                    return problems

                await browser.get(links_of(server)[0])
                host = old.url.removeprefix("http://")
                assert await call() == [f"requests to {host} are paused: it answered 503"]
                write(new.url)
                server.process.send_signal(signal.SIGHUP)
                server.logged(msg=f"reloaded {config}")
                assert await call() == []
