"""FastMCP's client: 2.14, 3.x and 4.x have the same face."""

from contextlib import asynccontextmanager

from fastmcp import Client


async def fill_in(message, response_type, params, context):
    return {"name": "Ann"} if message == "Who travels?" else {"place": "Rome"}


async def write(messages, params, context):
    return f"a poem, for {messages[0].content.text!r}"


@asynccontextmanager
async def connected(url):
    async with Client(url, elicitation_handler=fill_in, sampling_handler=write) as mcp:

        async def tools():
            return [tool.name for tool in await mcp.list_tools()]

        async def text_of(name, **arguments):
            return (await mcp.call_tool(name, arguments)).content[0].text

        async def structured():
            return (await mcp.call_tool("add", {"a": 2, "b": 3})).structured_content

        async def progress():
            told = []

            async def note(done, total, message):
                told.append([done, total, message])

            await mcp.call_tool("count", {}, progress_handler=note)
            return told

        async def resources():
            listed = [str(one.uri) for one in await mcp.list_resources()]
            for one in await mcp.list_resource_templates():
                listed.append(getattr(one, "uriTemplate", None) or one.uri_template)
            for uri in ("note://today", "note://monday/first"):
                listed.append((await mcp.read_resource(uri))[0].text)
            return listed

        async def prompts():
            listed = [one.name for one in await mcp.list_prompts()]
            got = await mcp.get_prompt("review", {"language": "perl"})
            return [*listed, got.messages[0].content.text]

        async def completion():
            ref = {"type": "ref/prompt", "name": "review"}
            try:
                from mcp.types import PromptReference
            except ImportError:
                from mcp_types import PromptReference
            found = await mcp.complete(PromptReference(**ref), {"name": "language", "value": "p"})
            return found.values

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
