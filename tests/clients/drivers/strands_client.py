"""Strands Agents: its methods block, so they run in a thread."""

import asyncio
from contextlib import asynccontextmanager

from mcp_types import ElicitResult
from strands.tools.mcp import MCPClient


async def fill_in(context, params):
    name = next(iter(params.requested_schema["properties"]))
    answers = {"name": "Ann", "place": "Rome"}
    return ElicitResult(action="accept", content={name: answers[name]})


@asynccontextmanager
async def connected(url):
    told = []

    async def note(done, total, message):
        told.append([done, total, message])

    mcp = MCPClient(url=url, elicitation_callback=fill_in, progress_callback=note)
    await asyncio.to_thread(mcp.start)
    blocking = asyncio.to_thread

    async def tools():
        return [tool.tool_name for tool in await blocking(mcp.list_tools_sync)]

    async def call(name, **arguments):
        return await blocking(mcp.call_tool_sync, "1", name, arguments)

    async def text_of(name, **arguments):
        return (await call(name, **arguments))["content"][0]["text"]

    async def structured():
        return (await call("add", a=2, b=3))["structuredContent"]

    async def progress():
        await call("count")
        return told

    async def resources():
        found = [str(one.uri) for one in (await blocking(mcp.list_resources_sync)).resources]
        templates = (await blocking(mcp.list_resource_templates_sync)).resource_templates
        found += [one.uri_template for one in templates]
        for uri in ("note://today", "note://monday/first"):
            found.append((await blocking(mcp.read_resource_sync, uri)).contents[0].text)
        return found

    async def prompts():
        listed = [one.name for one in (await blocking(mcp.list_prompts_sync)).prompts]
        got = await blocking(mcp.get_prompt_sync, "review", {"language": "perl"})
        return [*listed, got.messages[0].content.text]

    yield {
        "tools": tools,
        "call": lambda: text_of("echo", text="hello"),
        "structured": structured,
        "progress": progress,
        "resources": resources,
        "prompts": prompts,
        "completion": None,
        "form": lambda: text_of("trip"),
        "silent": lambda: text_of("quiet"),
        "sample": None,
    }
    await asyncio.to_thread(mcp.stop, None, None, None)
