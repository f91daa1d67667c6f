"""The prompts of a server: as the gateway lists them, and their results. They pass as they came
but for what belongs to one hop."""

from __future__ import annotations

from collections.abc import Sequence

from roundgate.backends.base import GetPrompt, Prompt
from roundgate.backends.mcp.config import PartConfig
from roundgate.backends.mcp.lists import Lists, check_entry, checked_text, left_out
from roundgate.backends.mcp.requests import Requests
from roundgate.backends.mcp.tools import MAX_NAME, LeftOut, without_hop
from roundgate.backends.mcp.uris import Uris
from roundgate.client.types import Json, is_object_list
from roundgate.clock import Clock
from roundgate.errors import UnexpectedAnswer
from roundgate.protocol import ForwardedPrompt
from roundgate.replay import Context


def prompts_of(
    lists: Lists, requests: Requests, config: PartConfig, uris: Uris, clock: Clock
) -> tuple[list[Prompt], list[LeftOut]]:
    """Return the prompts that are selected and can be served, and the others that cannot."""
    prompts: dict[str, Prompt] = {}
    others: list[LeftOut] = []
    for raw in lists.of("prompts/list"):
        try:
            name = _checked(raw)
            if not config.has(name):
                continue
            if name in prompts:
                raise ValueError("the server lists another prompt of this name")
        except ValueError as error:
            others.append(left_out(raw, "name", error))
            continue
        reference = {"type": "ref/prompt", "name": name}
        arguments = [entry["name"] for entry in raw.get("arguments", ())]
        completed = arguments if "completions" in lists.declared else ()
        prompts[name] = Prompt(
            without_hop(raw),
            _getter(name, requests, uris),
            {each: requests.completes(reference, each, clock) for each in completed},
            frozenset(config.scopes),
        )
    return list(prompts.values()), others


def _checked(raw: Json) -> str:
    """Return the name of a prompt; raise ValueError if clients would refuse its definition."""
    name = checked_text(raw, "name", MAX_NAME)
    check_entry(raw)
    for argument in raw.get("arguments", ()):
        if not isinstance(argument.get("name"), str):
            raise ValueError("an argument has no name")
        if not isinstance(argument.get("required", False), bool):
            raise ValueError("the required of an argument is neither true nor false")
    return name


def _getter(name: str, requests: Requests, uris: Uris) -> GetPrompt:
    async def get(context: Context, arguments: dict[str, str]) -> ForwardedPrompt:
        params: Json = {"name": name, "arguments": arguments}
        raw = await requests.send(context, "get", "prompts/get", params)
        messages = raw.get("messages")
        if not is_object_list(messages):
            raise UnexpectedAnswer(
                f"{requests.server.name} answered with something that is no prompt"
            )
        wire = {key: value for key, value in without_hop(raw).items() if key != "resultType"}
        return ForwardedPrompt({**wire, "messages": _with_uris(messages or [], uris)})

    return get


def _with_uris(messages: Sequence[Json], uris: Uris) -> list[Json]:
    """Return the messages with the gateway's URIs in links and embedded resources."""
    return [
        {**message, "content": uris.in_block(message["content"])}
        if isinstance(message.get("content"), dict)
        else message
        for message in messages
    ]
