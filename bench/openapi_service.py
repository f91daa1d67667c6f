"""`scripts/tools openapi --service`: Label Studio behind a gateway, with the document that Label
Studio serves itself.

Label Studio is installed from PyPI into its own environment, and started with a new SQLite file.
The gateway compiles its document with the overlay of `examples/labels/`. Then a client creates a
project, changes it, lists projects, uploads a file of tasks, reads them, and deletes the project.
Any deviation ends the run with an AssertionError.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from bench.openapi_documents import CACHE, ROOT
from roundgate import config
from roundgate.cli import main as roundgate
from roundgate.client import envelope, headers_of, message
from roundgate.main import build_app
from roundgate.settings import Settings

LABEL_STUDIO: Final = "label-studio==1.23.2"
EXAMPLE: Final = ROOT / "examples/labels"
TOKEN: Final = "0123456789abcdef0123456789abcdef01234567"
STARTS_WITHIN_S: Final = 600
META: Final = envelope("2026-07-28", {"name": "bench", "version": "1"}, {})
TASKS: Final = "text\nThe tea was hot.\nThe tea was cold.\nNo tea at all.\n"
CONFIG: Final = (
    '<View><Text name="t" value="$text"/><Choices name="c" toName="t"><Choice value="yes"/>'
    '<Choice value="no"/></Choices></View>'
)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, label_studio(Path(folder)) as url:
        home = Path(folder) / "gateway"
        shutil.copytree(EXAMPLE, home)
        (home / "labels.json").write_bytes(_got(f"{url}/docs/api/schema/json/"))
        os.environ.update({"LABELS_URL": url, "LABELS_TOKEN": TOKEN})
        for command in ("compile", "check"):
            assert roundgate([command, str(home / "gateway.yaml")]) == 0
        asyncio.run(used(home))
    return 0


async def used(home: Path) -> None:
    """Create, change, fill and delete a project; check each answer."""
    app = build_app(
        config.load(home / "gateway.yaml"), Settings(store=f"sqlite:///{home / 'gateway.sqlite3'}")
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        client = Client(http)
        listed = await client.ask("tools/list", {})
        print(
            f"{len(listed['tools'])} tools:",
            ", ".join(project["name"] for project in listed["tools"]),
        )
        made = await client.call("create_project", title="Tea", label_config=CONFIG)
        number = made["id"]
        changed = await client.call("update_project", id=number, title="Cold tea", color="#FFFFFF")
        assert (changed["id"], changed["title"]) == (number, "Cold tea"), changed
        content = await client.call("list_projects")
        assert [project["title"] for project in content["results"]] == ["Cold tea"], content
        file = {"text": TASKS, "file_name": "tea.csv", "media_type": "text/csv"}
        uploaded = await client.call("upload_tasks", id=number, file=file)
        assert uploaded["task_count"] == 3, uploaded
        files = await client.call("list_uploads", id=number, all=True)
        assert files["result"][0]["file"].endswith("tea.csv"), files
        tasks = await client.call("list_tasks", project=number)
        assert {project["data"]["text"] for project in tasks["tasks"]} == set(
            TASKS.splitlines()[1:]
        ), tasks
        await client.call("delete_project", id=number)
        content = await client.call("list_projects")
        assert content["results"] == [], content
        gone = await client.ask("tools/call", {"name": "get_project", "arguments": {"id": number}})
        assert gone["isError"], gone
    print("created, changed, listed, uploaded, read, deleted: as it should be")


class Client:
    """A client of a gateway that prints the text of each result."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        request = message(method, params, 1, META)
        response = await self._http.post("/mcp", json=request, headers=headers_of(request))
        result: dict[str, Any] = response.raise_for_status().json()["result"]
        return result

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Return the structured result of a call. Raise an error if the call failed."""
        result = await self.ask("tools/call", {"name": name, "arguments": arguments})
        text = result["content"][0]["text"] if result["content"] else ""
        print(f"  {name}: {text[:100]}")
        assert not result.get("isError"), text
        content = result.get("structuredContent", {})
        return content if isinstance(content, dict) else {"result": content}


@contextmanager
def label_studio(folder: Path) -> Iterator[str]:
    """Run an empty Label Studio until the block ends; yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--port", str(port), "--internal-host", "127.0.0.1", "--no-browser"]
    user = ["--username", "a@example.com", "--password", "sesame12", "--user-token", TOKEN]
    started = [_program(), "start", *options, "--enable-legacy-api-token", *user]
    its = {**os.environ, "LABEL_STUDIO_BASE_DATA_DIR": str(folder / "labels")}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(started, env=its, stdout=log, stderr=log) as process,
    ):
        try:
            _await(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _program() -> str:
    folder = CACHE / "label-studio"
    if not (folder / "bin/label-studio").exists():
        print(f"installing {LABEL_STUDIO} …", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True)
        installing = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", LABEL_STUDIO]
        subprocess.run(installing, check=True)
    return str(folder / "bin/label-studio")


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    while time.monotonic() - began < STARTS_WITHIN_S and process.poll() is None:
        try:
            _got(f"{url}/health")
        except (httpx.HTTPError, OSError):
            time.sleep(1)
        else:
            return
    raise SystemExit("Label Studio did not start")


def _got(url: str) -> bytes:
    return httpx.get(url, timeout=120, trust_env=False).raise_for_status().content


if __name__ == "__main__":
    sys.exit(main())
