"""What `roundgate` says when a server refuses: the server's reason, and a remedy that a command line
has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from roundgate.cli import main

EXPIRED = 'Bearer error="invalid_token", error_description="The token has expired"'


@contextmanager
def refusing(status: int, body: bytes, **headers: str) -> Iterator[str]:
    """A server that answers every request so; its URL."""

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            for name, value in {"Content-Type": "text/plain", **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *rest: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        server.shutdown()
        server.server_close()


REFUSALS = {
    "no token": (401, b"", {}, "", ["requires credentials", "ROUNDGATE_TOKEN", "--login"]),
    "an old token": (
        401,
        b"",
        {"WWW_Authenticate": EXPIRED},
        "t0ken-of-mine",
        ["rejected the credentials", "The token has expired", "ROUNDGATE_TOKEN"],
    ),
    "another host": (
        403,
        b"Access is only allowed at localhost:8931",
        {},
        "",
        ["Access is only allowed at localhost:8931"],
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("command", [["list"], ["call"], ["ping"], ["describe"]])
def test_a_refusal_says_why_and_what_to_do(
    name: str,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, body, headers, token, expected = REFUSALS[name]
    monkeypatch.setenv("ROUNDGATE_TOKEN", token)
    with refusing(status, body, **headers) as url:
        assert main([*command, url, *(["add"] if command == ["call"] else [])]) == 6
    said = capsys.readouterr().err
    assert all(one in said for one in expected)
    assert "auth=" not in said
    assert not token or token not in said


def test_a_wrong_path_says_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    body = b'{"error": "There is nothing here; the MCP endpoint is POST /mcp"}'
    with refusing(404, body, Content_Type="application/json") as url:
        assert main(["list", url]) == 3
    assert "the MCP endpoint is POST /mcp" in capsys.readouterr().err


def test_credentials_in_a_url_are_refused_with_a_remedy_of_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list", "https://me:hush@host.example/mcp"]) == 3
    said = capsys.readouterr().err
    assert "ROUNDGATE_TOKEN" in said
    assert "hush" not in said


def test_a_suite_has_the_remedies_of_the_command_line_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "suite.yaml"
    with refusing(401, b"") as url:
        suite.write_text(f"server: {{url: {url}}}\ncases: [{{name: c, call: t}}]\n")
        assert main(["test", str(suite)]) != 0
    told = capsys.readouterr()
    assert "ROUNDGATE_TOKEN" in told.out + told.err
    assert "auth=" not in told.out + told.err
