"""One of everything that a Python back end can offer, for tests that need
something to be served."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field

from roundgate import Context, PromptMessage, ToolError, prompt, resource, tool

SECRET = "correct-horse-battery-staple"
"""What must never be told to a client: it is in the text of every unexpected exception here."""


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool
async def report(ctx: Context, steps: Annotated[int, Field(le=10)] = 3) -> str:
    """Tells its progress, and logs a message of every other level."""
    for step in range(1, steps + 1):
        await ctx.progress(step, total=steps, message=f"step {step}")
    for level in ("debug", "info", "error"):
        await ctx.log(level, {"said": level}, logger="report")
    return "reported"


@tool
async def refuse() -> str:
    """Fails as a tool should."""
    raise ToolError("there is no tea left; ask for coffee")


@tool
async def crash() -> str:
    """Fails as no tool should."""
    raise RuntimeError(f"the password is {SECRET}")


@tool(requires={"sampling": {}})
async def sample() -> str:
    """Needs a client that can sample."""
    return "sampled"


@tool(
    input_schema={
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "inner": {
                "type": "object",
                "properties": {"count": {"type": "integer", "x-mcp-header": "Count"}},
            },
        },
        "required": ["region"],
    },
    requires={"sampling": {}},
)
async def mirrored(**arguments: object) -> str:
    """Has arguments that headers repeat."""
    return f"region {arguments['region']}"


@tool(input_schema={"type": "object"})
async def echo(**arguments: object) -> dict[str, object]:
    """Gives its arguments back."""
    return arguments


@tool
async def change(ctx: Context, uri: str = "note://one") -> str:
    """Tells the listeners that everything has changed."""
    await ctx.tools_changed()
    await ctx.prompts_changed()
    await ctx.resources_changed()
    await ctx.resource_updated(uri)
    return "told"


@prompt(complete={"language": ["python", "pascal", "rust"]})
async def review(language: str, style: str = "kind") -> list[PromptMessage]:
    """Asks for a review."""
    return [PromptMessage("user", f"Review this {language}, and be {style}.")]


@prompt
async def broken_prompt() -> str:
    """Fails."""
    raise RuntimeError(f"the password is {SECRET}")


@resource("note://one", mime_type="text/plain")
async def note() -> str:
    """A note."""
    return "remember the milk"


@resource("note://broken")
async def broken_note() -> str:
    """Fails."""
    await asyncio.sleep(0)
    raise RuntimeError(f"the password is {SECRET}")


@resource(
    "note://by/{author}/{number}",
    complete={"author": lambda typed: [f"{typed}{n}" for n in range(150)]},
)
async def note_by(author: str, number: int) -> str:
    """A note of somebody's."""
    return f"note {number} by {author}"


EVERYTHING = (
    add, report, refuse, crash, sample, mirrored, echo, change,
    review, broken_prompt, note, broken_note, note_by,
)  # fmt: skip
