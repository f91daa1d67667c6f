"""The official Python SDK, 2.x."""

from contextlib import asynccontextmanager

import mcp_types as types
from mcp import Client


async def fill_in(context, params):
    name = next(iter(params.requested_schema["properties"]))
    answers = {"name": "Ann", "place": "Rome"}
    return types.ElicitResult(action="accept", content={name: answers[name]})


async def write(context, params):
    text = f"a poem, for {params.messages[0].content.text!r}"
    content = types.TextContent(type="text", text=text)
    return types.CreateMessageResult(role="assistant", content=content, model="parrot")


@asynccontextmanager
async def connected(url):
    async with Client(url, elicitation_callback=fill_in, sampling_callback=write) as mcp:

        async def tools():
            return [tool.name for tool in (await mcp.list_tools()).tools]

        async def text_of(name, **arguments):
            return (await mcp.call_tool(name, arguments)).content[0].text

        async def structured():
            return (await mcp.call_tool("add", {"a": 2, "b": 3})).structured_content

        async def progress():
            told = []

            async def note(done, total, message):
                told.append([done, total, message])

            await mcp.call_tool("count", {}, progress_callback=note)
            return told

        async def resources():
            listed = [str(one.uri) for one in (await mcp.list_resources()).resources]
            templates = (await mcp.list_resource_templates()).resource_templates
            read = [
                (await mcp.read_resource(uri)).contents[0].text
                for uri in ("note://today", "note://monday/first")
            ]
            return [*listed, *(one.uri_template for one in templates), *read]

        async def prompts():
            listed = [one.name for one in (await mcp.list_prompts()).prompts]
            got = await mcp.get_prompt("review", {"language": "perl"})
            return [*listed, got.messages[0].content.text]

        async def completion():
            ref = types.PromptReference(type="ref/prompt", name="review")
            return (await mcp.complete(ref, {"name": "language", "value": "p"})).completion.values

        yield {
            "tools": tools,
            "call": lambda: text_of("echo", text="hello"),
            "structured": structured,
            "progress": progress,
            "resources": resources,
            "prompts": prompts,
            "completion": completion,
            "form": lambda: text_of("trip"),
            "silent": lambda: text_of("quiet"),
            "sample": lambda: text_of("haiku", subject="rain"),
        }
