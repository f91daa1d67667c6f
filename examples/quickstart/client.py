"""The official Python client (`pip install mcp`) with the quickstart: lists, calls and reads.

    python client.py [URL]

Every answer is checked, so this is also a test.
"""

from __future__ import annotations

import asyncio
import sys

from mcp import Client


async def main(url: str) -> None:
    """Use everything that the quickstart serves."""
    async with Client(url) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        print("tools:", ", ".join(tools))
        assert tools[0] == "calculate", tools

        third = await client.call_tool("calculate", {"expression": "(1 + 1/3) * 3"})
        print("calculate:", third.structured_content)
        assert third.structured_content == {"exact": "4", "decimal": 4.0}

        changed = await client.call_tool("diff", {"before": "a\nb", "after": "a\nc"})
        assert "-b\n+c" in changed.content[0].text  # type: ignore[union-attr]

        reported: list[float] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            reported.append(progress)

        primes = await client.call_tool(
            "find_primes", {"limit": 100_000}, progress_callback=on_progress
        )
        print("find_primes:", primes.structured_content, "with", len(reported), "progress reports")
        assert primes.structured_content[0] == 99_991
        assert reported == sorted(set(reported)) != []

        books = await client.call_tool(
            "library__find_books", {"author": "Darwin", "published_after": 1850}
        )
        print("library__find_books:", books.structured_content)
        assert [book["title"] for book in books.structured_content] == ["The Origin of Species"]

        tables = await client.call_tool("library__describe")
        assert {table["name"] for table in tables.structured_content} == {"authors", "books"}

        counted = await client.call_tool(
            "library__query", {"sql": "select count(*) as books from books"}
        )
        assert counted.structured_content == [{"books": 12}]

        refused = await client.call_tool("library__query", {"sql": "drop table books"})
        print("a refusal:", refused.content[0].text)  # type: ignore[union-attr]
        assert refused.is_error

        style = await client.read_resource("desk://styles/plain")
        assert style.contents[0].text.startswith("Short sentences")  # type: ignore[union-attr]

        prompt = await client.get_prompt(
            "describe_change", {"before": "a", "after": "b", "style": "formal"}
        )
        print("describe_change:", prompt.messages[0].content.text)  # type: ignore[union-attr]
        assert len(prompt.messages) == 2


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/mcp"))
