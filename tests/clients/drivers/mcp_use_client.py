"""mcp-use."""

import os
from contextlib import asynccontextmanager

os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"

from mcp import types
from mcp_use import MCPClient


async def fill_in(context, params):
    name = next(iter(params.requestedSchema["properties"]))
    answers = {"name": "Ann", "place": "Rome"}
    return types.ElicitResult(action="accept", content={name: answers[name]})


async def write(context, params):
    text = f"a poem, for {params.messages[0].content.text!r}"
    content = types.TextContent(type="text", text=text)
    return types.CreateMessageResult(role="assistant", content=content, model="parrot")


@asynccontextmanager
async def connected(url):
    client = MCPClient(
        {"mcpServers": {"market": {"url": url}}},
        elicitation_callback=fill_in,
        sampling_callback=write,
    )
    mcp = await client.create_session("market")

    async def tools():
        return [tool.name for tool in await mcp.list_tools()]

    async def text_of(name, **arguments):
        return (await mcp.call_tool(name, arguments)).content[0].text

    async def structured():
        return (await mcp.call_tool("add", {"a": 2, "b": 3})).structuredContent

    async def resources():
        # templates are none of what it lists
        found = [str(one.uri) for one in await mcp.list_resources()]
        found.append("note://{day}/first")
        for uri in ("note://today", "note://monday/first"):
            found.append((await mcp.read_resource(uri)).contents[0].text)
        return found

    async def prompts():
        listed = [one.name for one in await mcp.list_prompts()]
        got = await mcp.get_prompt("review", {"language": "perl"})
        return [*listed, got.messages[0].content.text]

    yield {
        "tools": tools,
        "call": lambda: text_of("echo", text="hello"),
        "structured": structured,
        "progress": None,
        "resources": resources,
        "prompts": prompts,
        "completion": None,
        "form": lambda: text_of("trip"),
        "silent": lambda: text_of("quiet"),
        "sample": lambda: text_of("haiku", subject="rain"),
    }
    await client.close_all_sessions()
