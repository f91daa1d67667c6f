"""The prompts of a server as the gateway lists them, and their results. Both are forwarded
unchanged, except for members that belong to one hop, and URIs."""

from __future__ import annotations

from typing import Any

from roundgate.backends.base import GetPrompt, Prompt
from roundgate.backends.mcp.config import PartConfig
from roundgate.backends.mcp.lists import Lists, check_entry, checked_text
from roundgate.backends.mcp.requests import ServerRequests
from roundgate.backends.mcp.tools import MAX_NAME, LeftOut, left_out, without_hop
from roundgate.backends.mcp.uris import Uris
from roundgate.client.types import Json, is_object_list, without_nulls
from roundgate.errors import UnexpectedAnswer
from roundgate.protocol import ForwardedPrompt
from roundgate.replay import Context


def make_prompts(
    lists: Lists, requests: ServerRequests, config: PartConfig, uris: Uris
) -> tuple[list[Prompt], list[LeftOut]]:
    """Return the selected prompts that can be served, and records of the others."""
    prompts: dict[str, Prompt] = {}
    others: list[LeftOut] = []
    for raw in map(without_nulls, lists.get("prompts/list")):
        try:
            name = _checked(raw)
            if not config.has(name):
                continue
            if name in prompts:
                raise ValueError("the server lists another prompt with this name")
        except ValueError as error:
            others.append(left_out(raw, "name", error))
            continue
        reference = {"type": "ref/prompt", "name": name}
        names = [argument["name"] for argument in raw.get("arguments", ())]
        completed = names if "completions" in lists.declared else ()
        prompts[name] = Prompt(
            without_hop(raw),
            _getter(name, requests, uris),
            {argument: requests.completes(reference, argument) for argument in completed},
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
            raise ValueError("an argument's 'required' is neither true nor false")
    return name


def _getter(name: str, requests: ServerRequests, uris: Uris) -> GetPrompt:
    async def get(context: Context, arguments: dict[str, str]) -> ForwardedPrompt:
        params: Json = {"name": name, "arguments": arguments}
        raw = await requests.send(context, "get", "prompts/get", params)
        messages: Any = raw.get("messages")
        if not is_object_list(messages) or not is_object_list(
            [each.get("content") for each in messages]
        ):
            raise UnexpectedAnswer(f"{requests.server.name} answered with a malformed prompt")
        with_uris = [{**each, "content": uris.in_block(each["content"])} for each in messages]
        wire = {key: value for key, value in without_hop(raw).items() if key != "resultType"}
        return ForwardedPrompt({**wire, "messages": with_uris})

    return get
