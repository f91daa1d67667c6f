"""Tools that the conformance suite calls: text, errors, progress, headers,
schemas and change notices.

`test_simple_text` stays first: the suite calls the first listed tool with no arguments
and expects a quick answer.
"""

from roundgate import Context, ToolError, tool


@tool
async def test_simple_text() -> str:
    """Answers with one block of text."""
    return "This is a simple text response for testing."


@tool
async def greet(name: str) -> str:
    """Greets somebody.

    Args:
        name: Whom to greet.
    """
    return f"Hello, {name}!"


@tool
async def test_error_handling() -> str:
    """Always fails, as a tool does: with a result the model can read."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Reports progress three times before it answers."""
    for done in (0, 50, 100):
        await ctx.progress(done, total=100, message=f"{done} of 100")
    return "Progress reported three times."


@tool
async def test_logging_tool(ctx: Context) -> str:
    """Writes log messages, which reach only a client that asked for them on this request."""
    await ctx.log("info", "Tool execution started", logger="test_logging_tool")
    await ctx.log("info", {"state": "finished"}, logger="test_logging_tool")
    return "Two messages logged."


@tool(requires={"sampling": {}})
async def test_missing_capability() -> str:
    """Can be called only by a client that declares sampling."""
    return "The client declared sampling."


@tool
async def test_streaming_elicitation() -> str:
    """Answers at once and sends the client no request of its own while it does."""
    return "No independent request was sent."


@tool
async def test_trigger_tool_change(ctx: Context) -> str:
    """Tells the open subscriptions that the list of tools changed."""
    await ctx.tools_changed()
    return "Tool list change announced."


@tool
async def test_trigger_prompt_change(ctx: Context) -> str:
    """Tells the open subscriptions that the list of prompts changed."""
    await ctx.prompts_changed()
    return "Prompt list change announced."


@tool(
    input_schema={
        "type": "object",
        "properties": {
            "region": {
                "type": "string",
                "description": "Where to run; clients mirror it into the header Mcp-Param-Region.",
                "x-mcp-header": "Region",
            },
        },
        "required": ["region"],
    }
)
async def test_x_mcp_header(region: str) -> str:
    """Takes an argument that the request's headers repeat."""
    return f"Region: {region}"


@tool(
    input_schema={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            },
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }
)
async def json_schema_2020_12_tool(**arguments: object) -> str:
    """Has an input schema full of 2020-12 keywords, which `tools/list` must serve as they are."""
    return f"Received {', '.join(sorted(arguments))}"
