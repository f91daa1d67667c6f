"""A server on the official Python SDK, 1.x or 2.x as the interpreter has it: a group of tools that is
a job, and tools that ask on the stream of their call.

Arguments: `stdio`, or a port; the file in which effects are noted, one line each; and options:

    older   a server that speaks 2026-07-28 as well is asked by its older revisions only
    keeps   it keeps the events of its streams, from which clients can resume them
    rounds  `ask` asks as servers of 2026-07-28 do
"""

# mypy: ignore-errors

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from pydantic import BaseModel

try:
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver import MCPServer as Server
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as Server

try:
    from mcp import types
except ImportError:
    import mcp_types as types

from mcp.server.streamable_http import EventMessage, EventStore
from mcp.shared.exceptions import UrlElicitationRequiredError

SamplingMessage, TextContent = types.SamplingMessage, types.TextContent
WHERE, NOTES, OPTIONS = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
IS_OLDER = Server.__name__ == "FastMCP"


class Events(EventStore):
    """All events of all streams."""

    def __init__(self):
        self.events = []

    async def store_event(self, stream_id, message):
        self.events.append((stream_id, message))
        return str(len(self.events))

    async def replay_events_after(self, last_event_id, send_callback):
        first = int(last_event_id)
        stream_id = self.events[first - 1][0]
        for number, (other_id, message) in enumerate(self.events[first:], first + 1):
            if other_id == stream_id and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream_id


events = Events() if "keeps" in OPTIONS else None
settings = {}
if IS_OLDER:
    over_http = {"host": "127.0.0.1", "port": int(WHERE)} if WHERE != "stdio" else {}
    settings = {**over_http, "event_store": events}
elif "rounds" in OPTIONS:
    from mcp.server.request_state import RequestStateSecurity

    # the same in each life of the process
    settings = {"request_state_security": RequestStateSecurity(keys=[b"k" * 32])}
server = Server("sdk", **settings)
builds: dict[int, dict] = {}


def note(text: str) -> None:
    with NOTES.open("a") as notes:
        notes.write(text + "\n")


def note_of_call(text: str, tag: str) -> None:
    """Note what a call with a tag did, when, and in which process."""
    note(f"{time.time()} {text} {tag} {os.getpid()}")


class Name(BaseModel):
    name: str


# -- a job -----------------------------------------------------------------------------------------


@server.tool()
def start_build(branch: str) -> dict:
    """Start a build of a branch."""
    build = len(builds) + 17
    builds[build] = {"branch": branch, "polls": 0, "status": "running"}
    note(f"started {branch}")
    return {"build": build}


@server.tool()
def build_status(build: int) -> dict:
    """Return the status of a build."""
    known = builds[build]
    known["polls"] += 1
    if known["status"] == "running" and known["polls"] > 2 and known["branch"] != "endless":
        known["status"] = "broken" if known["branch"] == "bad" else "done"
    return {"status": known["status"], "why": "it does not compile"}


@server.tool()
def build_log(build: int, branch: str) -> str:
    """Return the log of a build."""
    return f"built {branch} as {build}"


@server.tool()
def cancel_build(build: int) -> str:
    """Cancel a build."""
    builds[build]["status"] = "stopped"
    note(f"cancelled {build}")
    return "stopped"


# -- questions -------------------------------------------------------------------------------------


@server.tool()
async def greet(ctx: Context, greeting: str = "Hello") -> str:
    """Ask for a name."""
    note("greet")
    answer = await ctx.elicit("Who are you?", Name)
    note("greeted")
    return f"{greeting}, {answer.data.name}" if answer.action == "accept" else answer.action


@server.tool()
async def twice(ctx: Context) -> str:
    """Ask two questions, one after the other."""
    first = await ctx.elicit("The first?", Name)
    await ctx.report_progress(1, 2)
    second = await ctx.elicit("The second?", Name)
    return f"{first.data.name} and {second.data.name}"


@server.tool()
async def both(ctx: Context) -> str:
    """Ask two questions at once."""
    first, second = await asyncio.gather(
        ctx.elicit("The first?", Name), ctx.elicit("The second?", Name)
    )
    return f"{first.data.name} and {second.data.name}"


@server.tool()
async def motto(ctx: Context) -> str:
    """Ask the client's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="A motto?"))
    sampled = await ctx.session.create_message([message], max_tokens=20)
    return f"sampled: {sampled.content.text}"


@server.tool()
async def where(ctx: Context) -> str:
    """Ask for the client's roots."""
    roots = (await ctx.session.list_roots()).roots
    return ", ".join(str(root.uri) for root in roots)


@server.tool()
async def slow(ctx: Context) -> str:
    """Ask for a name, and work for a while."""
    answer = await ctx.elicit("Who are you?", Name)
    note("slow")
    for part in range(3):
        await asyncio.sleep(0.5)
        await ctx.report_progress(part, 3)
    note("done")
    return f"Slowly, {answer.data.name}"


@server.tool()
async def plain(ctx: Context) -> str:
    """Ask nothing."""
    note("plain")
    await ctx.report_progress(1, 1)
    return "done"


# -- pages that have to be opened first ------------------------------------------------------------

opened: set[str] = set()


def require_page(what: str) -> None:
    """Refuse every other request, as one whose user has not opened a page yet."""
    if what not in opened:
        opened.add(what)
        page = types.ElicitRequestURLParams(
            message="Sign in",
            url="https://bank.example/consent?id=1",
            **{"elicitationId" if IS_OLDER else "elicitation_id": "e1"},
        )
        raise UrlElicitationRequiredError([page])
    opened.remove(what)


@server.tool()
async def pay() -> str:
    """Pay, once a page was opened."""
    note("pay")
    require_page("pay")
    return "paid"


@server.prompt()
async def bill() -> str:
    """Bill, once a page was opened."""
    require_page("prompt")
    return "billed"


@server.resource("bill://{number}")
async def billed(number: str) -> str:
    """Bill, once a page was opened."""
    require_page("resource")
    return "billed"


# -- every kind of question, for a call with a tag -------------------------------------------------

WORK_S = 0.3


async def asked(ctx: Context, kind: str, tag: str) -> list[str]:
    """Ask on the stream of the call; return the answers."""
    if kind == "sampling":
        message = SamplingMessage(role="user", content=TextContent(type="text", text=tag))
        return [(await ctx.session.create_message([message], max_tokens=20)).content.text]
    if kind == "roots":
        return [str(root.uri) for root in (await ctx.session.list_roots()).roots]
    names = ["first"] if kind == "form" else ["first", "second"]
    answers = await asyncio.gather(*(ctx.elicit(f"{name} {tag}", Name) for name in names))
    if kind == "several":
        answers.append(await ctx.elicit(f"third {tag}", Name))
    return [answer.data.name for answer in answers]


def question(kind: str, name: str, tag: str):
    """A question of 2026-07-28."""
    if kind == "sampling":
        message = SamplingMessage(role="user", content=TextContent(type="text", text=tag))
        params = types.CreateMessageRequestParams(messages=[message], max_tokens=20)
        return types.CreateMessageRequest(params=params)
    if kind == "roots":
        return types.ListRootsRequest()
    schema = Name.model_json_schema()
    params = types.ElicitRequestFormParams(message=f"{name} {tag}", requested_schema=schema)
    return types.ElicitRequest(params=params)


def answer_of(kind: str, answer) -> str:
    """The text of an answer of 2026-07-28."""
    if kind == "sampling":
        return answer.content.text
    return str(answer.roots[0].uri) if kind == "roots" else answer.content["name"]


if "rounds" in OPTIONS:

    @server.tool()
    async def ask(ctx: Context, kind: str, tag: str):
        """Ask in rounds; note the begin and the end."""
        rounds = [["first", "second"], ["third"]] if kind == "several" else [["first"]]
        answers = json.loads(ctx.request_state) if ctx.request_state else []
        if ctx.input_responses:
            answers += [
                answer_of(kind, ctx.input_responses[key]) for key in sorted(ctx.input_responses)
            ]
        else:
            note_of_call("begin", tag)
        place = {0: 0, 2: 1}.get(len(answers), len(rounds)) if kind == "several" else len(answers)
        if place < len(rounds):
            requests = {name: question(kind, name, tag) for name in rounds[place]}
            return types.InputRequiredResult(
                input_requests=requests, request_state=json.dumps(answers)
            )
        await asyncio.sleep(WORK_S)
        note_of_call("end", tag)
        return f"{tag}: {', '.join(answers)}"

else:

    @server.tool()
    async def ask(ctx: Context, kind: str, tag: str) -> str:
        """Ask on the stream; note the begin and the end."""
        note_of_call("begin", tag)
        answers = await asked(ctx, kind, tag)
        await asyncio.sleep(WORK_S)
        note_of_call("end", tag)
        return f"{tag}: {', '.join(answers)}"


@server.prompt()
async def toned(subject: str, ctx: Context) -> str:
    """Ask for a name in a prompt."""
    answer = await ctx.elicit(f"Who writes about {subject}?", Name)
    return f"{subject}, by {answer.data.name}"


@server.resource("asked://{subject}")
async def owned(subject: str, ctx: Context) -> str:
    """Ask for a name while a resource is read."""
    answer = await ctx.elicit(f"Whose {subject}?", Name)
    return f"{subject} of {answer.data.name}"


def older(app):
    """Refuse the probe of a newer client, as servers of older revisions do."""

    async def shown(scope, receive, send):
        if dict(scope.get("headers", [])).get(b"mcp-method") != b"server/discover":
            await app(scope, receive, send)
            return
        error = {"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": "No"}}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(error).encode()})

    return shown


def main() -> None:
    if WHERE == "stdio":
        server.run("stdio")
    elif IS_OLDER:
        server.run("streamable-http")
    else:
        import uvicorn

        app = server.streamable_http_app(event_store=events)
        shown = older(app) if "older" in OPTIONS else app
        uvicorn.run(shown, port=int(WHERE), log_level="error")


main()
