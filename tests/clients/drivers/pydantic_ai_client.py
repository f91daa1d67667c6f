"""Pydantic AI."""

from contextlib import asynccontextmanager

import mcp_types as types
from pydantic_ai.mcp import MCPToolset


async def fill_in(message, response_type, params, context):
    return {"name": "Ann"} if message == "Who travels?" else {"place": "Rome"}


async def write(messages, params, context):
    text = f"a poem, for {messages[0].content.text!r}"
    content = types.TextContent(type="text", text=text)
    return types.CreateMessageResult(role="assistant", content=content, model="parrot")


@asynccontextmanager
async def connected(url):
    told = []

    async def note(done, total, message):
        told.append([done, total, message])

    toolset = MCPToolset(
        url, elicitation_handler=fill_in, sampling_handler=write, progress_handler=note
    )
    async with toolset as mcp:

        async def tools():
            return [tool.name for tool in await mcp.list_tools()]

        async def call(name, **arguments):
            return await mcp.direct_call_tool(name, arguments)

        async def progress():
            await call("count")
            return told

        async def resources():
            found = [str(one.uri) for one in await mcp.list_resources()]
            found += [one.uri_template for one in await mcp.list_resource_templates()]
            for uri in ("note://today", "note://monday/first"):
                found.append(await mcp.read_resource(uri))
            return found

        async def prompts():
            listed = [one.name for one in await mcp.list_prompts()]
            got = await mcp.get_prompt("review", {"language": "perl"})
            content = got.messages[0].content
            return [*listed, content if isinstance(content, str) else content.content]

        yield {
            "tools": tools,
            "call": lambda: call("echo", text="hello"),
            "structured": lambda: call("add", a=2, b=3),
            "progress": progress,
            "resources": resources,
            "prompts": prompts,
            "completion": None,
            "form": lambda: call("trip"),
            "silent": lambda: call("quiet"),
            "sample": lambda: call("haiku", subject="rain"),
        }
