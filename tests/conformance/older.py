"""Fixtures of the scenarios that only revisions with sessions have: handlers that ask on
the stream of their call."""

import asyncio
import json
from typing import Any

from roundgate import Context, Form, Sample, tool


async def _asked(ctx: Context, message: str, fields: dict[str, Any]) -> str:
    answer = (await ctx.ask({"fields": Form(message, {"type": "object", "properties": fields})}))[
        "fields"
    ]
    return f"action={answer.action}, content={json.dumps(answer.value)}"


@tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Sends three log messages."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.log("info", message)
        await asyncio.sleep(0.05)
    return "logged"


@tool
async def test_sampling(ctx: Context, prompt: str) -> str:
    """Asks the client's model what it is given."""
    answer = (await ctx.ask({"sample": Sample(prompt, max_tokens=100)}))["sample"]
    return f"LLM response: {answer.get().text}"


@tool
async def test_elicitation(ctx: Context, message: str) -> str:
    """Asks the user for a name and an address."""
    fields = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    return f"User response: {await _asked(ctx, message, fields)}"


@tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks with a default for each kind of field."""
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    }
    return f"Elicitation completed: {await _asked(ctx, 'Check these', fields)}"


@tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks with each kind of choice."""
    options = ["option1", "option2", "option3"]
    titled = [
        {"const": f"value{n}", "title": title}
        for n, title in enumerate(("First", "Second", "Third"), 1)
    ]
    fields = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["One", "Two", "Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return f"Elicitation completed: {await _asked(ctx, 'Choose', fields)}"


@tool
async def test_reconnection(ctx: Context) -> str:
    """Ends the stream of its call once, before its result."""
    await ctx.shed()
    return "reconnected"
