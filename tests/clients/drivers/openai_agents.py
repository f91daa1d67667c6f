"""The OpenAI Agents SDK."""

from contextlib import asynccontextmanager

from agents.mcp import MCPServerStreamableHttp


@asynccontextmanager
async def connected(url):
    async with MCPServerStreamableHttp({"url": url}) as mcp:

        async def tools():
            return [tool.name for tool in await mcp.list_tools()]

        async def text_of(name, **arguments):
            return (await mcp.call_tool(name, arguments)).content[0].text

        async def structured():
            result = await mcp.call_tool("add", {"a": 2, "b": 3})
            return result.structured_content

        async def resources():
            found = [str(one.uri) for one in (await mcp.list_resources()).resources]
            templates = (await mcp.list_resource_templates()).resource_templates
            found += [one.uri_template for one in templates]
            for uri in ("note://today", "note://monday/first"):
                found.append((await mcp.read_resource(uri)).contents[0].text)
            return found

        async def prompts():
            listed = [one.name for one in (await mcp.list_prompts()).prompts]
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
            "form": None,
            "silent": lambda: text_of("quiet"),
            "sample": None,
        }
