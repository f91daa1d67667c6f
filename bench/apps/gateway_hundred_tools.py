"""The gateway's tool module in `bench/gateway-hundred-tools.yaml`: the catalogue, with its schemas
served verbatim."""

from collections.abc import Awaitable, Callable
from typing import Any

from bench.catalogue import CatalogueTool, hundred_tools
from roundgate import tool


def _declared(declared: CatalogueTool) -> Callable[..., Awaitable[str]]:
    @tool(name=declared.name, description=declared.description, input_schema=declared.input_schema)
    async def handler(**arguments: Any) -> str:
        return declared.name

    return handler


# A tool module's tools are its attributes.
globals().update({each.name: _declared(each) for each in hundred_tools()})
