"""langchain-mcp-adapters: tools of LangChain; each call has a session of its own."""

from contextlib import asynccontextmanager

from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.types import ElicitResult


async def fill_in(mcp_context, params, context):
    name = next(iter(params.requestedSchema["properties"]))
    answers = {"name": "Ann", "place": "Rome"}
    return ElicitResult(action="accept", content={name: answers[name]})


@asynccontextmanager
async def connected(url):
    told = []

    async def note(done, total, message, context):
        told.append([done, total, message])

    mcp = MultiServerMCPClient(
        {"market": {"url": url, "transport": "streamable_http"}},
        callbacks=Callbacks(on_progress=note, on_elicitation=fill_in),
    )
    found = {tool.name: tool for tool in await mcp.get_tools()}

    async def call(name, **arguments):
        sent = {"type": "tool_call", "id": "1", "name": name, "args": arguments}
        return await found[name].ainvoke(sent)

    async def tools():
        return list(found)

    async def text_of(name, **arguments):
        content = (await call(name, **arguments)).content
        return content if isinstance(content, str) else content[0]["text"]

    async def structured():
        return (await call("add", a=2, b=3)).artifact["structured_content"]

    async def progress():
        await call("count")
        return told

    async def resources():
        # templates are none of what it lists
        uris = ["note://today", "note://monday/first"]
        listed = [str(one.metadata["uri"]) for one in await mcp.get_resources("market")]
        read = [(await mcp.get_resources("market", uris=uri))[0].as_string() for uri in uris]
        return [*listed, "note://{day}/first", *read]

    async def prompts():
        got = await mcp.get_prompt("market", "review", arguments={"language": "perl"})
        return ["review", got[0].content]

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
