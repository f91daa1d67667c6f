"""Floor: a bare FastAPI path operation with pydantic models for the body and the answer."""

import os
import time
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from bench.catalogue import hundred_tools as catalogue


class AddArguments(BaseModel):
    a: int
    b: int


class CallParams(BaseModel):
    name: Literal["add"]
    arguments: AddArguments


class CallMessage(BaseModel):
    jsonrpc: Literal["2.0"]
    id: int
    method: Literal["tools/call"]
    params: CallParams


class ListMessage(BaseModel):
    jsonrpc: Literal["2.0"]
    id: int
    method: Literal["tools/list"]
    params: dict[str, Any]


class TextBlock(BaseModel):
    type: Literal["text"] = "text"
    text: str


class CallResult(BaseModel):
    resultType: Literal["complete"] = "complete"  # noqa: N815
    content: list[TextBlock]
    structuredContent: dict[str, int]  # noqa: N815


class CallReply(BaseModel):
    jsonrpc: Literal["2.0"] = "2.0"
    id: int
    result: CallResult


class ListedTool(BaseModel):
    name: str
    description: str
    inputSchema: dict[str, Any]  # noqa: N815


class ListResult(BaseModel):
    resultType: Literal["complete"] = "complete"  # noqa: N815
    tools: list[ListedTool]


class ListReply(BaseModel):
    jsonrpc: Literal["2.0"] = "2.0"
    id: int
    result: ListResult


def one_tool() -> FastAPI:
    app = FastAPI()
    app.post("/mcp")(_call_add)
    return app


async def _call_add(message: CallMessage) -> CallReply:
    total = message.params.arguments.a + message.params.arguments.b
    result = CallResult(content=[TextBlock(text=str(total))], structuredContent={"result": total})
    return CallReply(id=message.id, result=result)


def jwt() -> FastAPI:
    """Return an app whose callers have a JWT, which is verified once and then remembered for a minute,
    as the gateway does."""
    from jwt import PyJWKClient, decode

    keys = PyJWKClient(os.environ["BENCH_SERVICE"] + "/keys")
    verified: dict[str, tuple[float, dict[str, Any]]] = {}

    async def read_claims(
        bearer: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())],
    ) -> dict[str, Any]:
        token = bearer.credentials
        until, claims = verified.get(token, (0.0, {}))
        if until <= time.time():
            key = keys.get_signing_key_from_jwt(token)
            issuer = "https://issuer.example"
            claims = decode(token, key, ["ES256"], audience="bench", issuer=issuer)
            verified[token] = min(claims["exp"], time.time() + 60), claims
        return claims

    async def call_add(
        message: CallMessage, claims: Annotated[dict[str, Any], Depends(read_claims)]
    ) -> CallReply:
        return await _call_add(message)

    app = FastAPI()
    app.post("/mcp")(call_add)
    return app


def proxy() -> FastAPI:
    """Return an app whose tool calls a service with httpx."""
    import httpx

    service = httpx.AsyncClient(base_url=os.environ["BENCH_SERVICE"])

    async def call_add(message: CallMessage) -> CallReply:
        answer = await service.post("/add", json=message.params.arguments.model_dump())
        total = answer.raise_for_status().json()["result"]
        result = CallResult(
            content=[TextBlock(text=str(total))], structuredContent={"result": total}
        )
        return CallReply(id=message.id, result=result)

    app = FastAPI()
    app.post("/mcp")(call_add)
    return app


def hundred_tools() -> FastAPI:
    tools = [ListedTool.model_validate(tool.as_json()) for tool in catalogue()]

    async def list_tools(message: ListMessage) -> ListReply:
        return ListReply(id=message.id, result=ListResult(tools=tools))

    app = FastAPI()
    app.post("/mcp")(list_tools)
    return app
