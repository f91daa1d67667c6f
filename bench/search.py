"""`scripts/tools openapi --search`: search in GitHub's document, with a hundred prepared questions.

Measures how many questions have the expected tool (`questions.json`) among the first five results,
the time of a search, and the text that a model reads: the whole list, or the search tools, one
answer of each, and the call. Four bytes count as a token, the approximate average of English and
JSON.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from bench.openapi_documents import fetched
from roundgate import config
from roundgate.client import envelope, headers_of, message
from roundgate.main import build_app
from roundgate.settings import Settings

QUESTIONS = Path(__file__).with_name("questions.json")
FIRST = 5
BYTES_PER_TOKEN = 4
META = envelope("2026-07-28", {"name": "bench", "version": "1"}, {})


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))
    return 0


async def measure(folder: Path) -> None:
    questions = json.loads(QUESTIONS.read_text())
    whole = Asking(folder / "whole", None)
    with_search = Asking(folder / "search", {})
    async with whole.http, with_search.http:
        listed = await whole.ask("tools/list", {})
        count = len(listed["tools"])
        while cursor := listed.get("nextCursor"):
            listed = await whole.ask("tools/list", {"cursor": cursor})
            count += len(listed["tools"])
        await with_search.ask("tools/list", {})
        list_bytes = with_search.read_bytes
        began = time.perf_counter()
        await with_search.call("search_tools", {"query": "warm up"})
        first_ms = (time.perf_counter() - began) * 1000
        with_search.read_bytes = 0
        missed: list[str] = []
        began = time.perf_counter()
        for question in questions:
            text = await with_search.call(
                "search_tools", {"query": question["question"], "limit": FIRST}
            )
            names = [line.partition("(")[0] for line in text.splitlines()]
            if not set(names) & set(question["wanted"]):
                missed.append(question["question"])
        search_ms = (time.perf_counter() - began) * 1000 / len(questions)
        search_bytes = with_search.read_bytes / len(questions)
        with_search.read_bytes = 0
        for question in questions:
            await with_search.call("describe_tool", {"name": question["wanted"][0]})
        described_bytes = with_search.read_bytes / len(questions)
    tokens = [
        round(size / BYTES_PER_TOKEN)
        for size in (whole.read_bytes, list_bytes, search_bytes, described_bytes)
    ]
    print("| tools | questions | in the first five | first search | a search |")
    print("|---|---|---|---|---|")
    hits = len(questions) - len(missed)
    print(f"| {count:,} | {len(questions)} | {hits} | {first_ms:.0f} ms | {search_ms:.1f} ms |")
    print()
    print("| tokens of the whole list | of the list with search | of a search | of a description |")
    print("|---|---|---|---|")
    print("| " + " | ".join(f"{question:,}" for question in tokens) + " |")
    print(*(f"not found: {question}" for question in missed), sep="\n")


class Asking:
    """A gateway with GitHub's document, and the number of bytes of results that its client has
    read."""

    def __init__(self, folder: Path, search: dict[str, Any] | None) -> None:
        folder.mkdir()
        entry = {
            "kind": "openapi",
            "name": "github",
            "prefix": "",
            "document": str(fetched("github")),
            "origins": ["https://uploads.github.com"],
            "credential": {"bearer": "measured"},
        }
        more = {} if search is None else {"search": search}
        (folder / "gateway.json").write_text(json.dumps({"backends": [entry], **more}))
        file = config.load(folder / "gateway.json")
        app = build_app(file, Settings(store=f"sqlite:///{folder / 'gateway.sqlite3'}"))
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
        )
        self.read_bytes = 0

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        request = message(method, params, 1, META)
        response = await self.http.post("/mcp", json=request, headers=headers_of(request))
        result: dict[str, Any] = response.raise_for_status().json()["result"]
        read = result.get("tools", result.get("content"))
        self.read_bytes += len(json.dumps(read, separators=(",", ":"), ensure_ascii=False).encode())
        return result

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        result = await self.ask("tools/call", {"name": name, "arguments": arguments})
        text: str = result["content"][0]["text"]
        return text


if __name__ == "__main__":
    raise SystemExit(main())
