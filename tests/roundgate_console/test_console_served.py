"""The console of `roundgate serve`, with several processes."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.support.asgi import STATE_KEY
from tests.support.server import Server, running

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
