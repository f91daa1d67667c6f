"""FastAPI's own document of an application, and that behind it: files, enums,
unions, security, dependencies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import pytest
import pytest_asyncio
from fastapi import (
    Cookie,
    Depends,
    FastAPI,
    File,
    Form,
    Header,
    HTTPException,
    Query,
    Response,
    UploadFile,
)
from fastapi.security import APIKeyHeader, HTTPBearer, OAuth2PasswordBearer
from pydantic import BaseModel, Field

from tests.support.asgi import Client
from tests.support.listening import served_in_a_thread
from tests.support.openapi import file_of, gateway_of

KEY = "key-of-the-test"
OVERLAY = """
overlay: 1.0.0
info: {title: What FastAPI does not say, version: "1"}
actions:
  - target: $.paths['/files/{path}'].put.parameters[?@.in == 'path']
    update: {allowReserved: true}
"""


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(9, ge=1)


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: set[str] = set()


class Order(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    price: Decimal
    colour: Colour | None = None
    at: tuple[int, int] | None = None
    notes: dict[str, int | str | None] = {}
    children: list[Order] = []


class Paging(BaseModel):
    limit: int = Field(10, le=100)
    order_by: Literal["name", "-name"] = "name"
    tags: list[str] = []


bearer = HTTPBearer()
key = APIKeyHeader(name="X-Key")
oauth = OAuth2PasswordBearer("token", auto_error=False)
app = FastAPI(servers=[{"url": "/proxied"}])


def tenant(
    x_tenant: Annotated[str, Header()], session: Annotated[str | None, Cookie()] = None
) -> str:
    return f"{x_tenant}/{session}"


@app.post("/orders", operation_id="create_order")
def create_order(order: Order, urgent: bool = False, who: str = Depends(tenant)) -> dict[str, Any]:
    return {"order": order.model_dump(mode="json"), "urgent": urgent, "who": who}


@app.get("/orders")
def find_orders(
    paging: Annotated[Paging, Query()],
    colour: Annotated[list[Colour] | None, Query()] = None,
    q: str | None = None,
) -> dict[str, Any]:
    return {"paging": paging.model_dump(), "colour": colour, "q": q}


@app.put("/files/{path:path}", operation_id="put_file")
async def put_file(
    path: str,
    file: UploadFile,
    cover: UploadFile | None = None,
    more: list[UploadFile] | None = None,
    raw: Annotated[bytes | None, File()] = None,
    title: Annotated[str | None, Form()] = None,
) -> dict[str, Any]:
    names = [one.filename for one in (file, cover, *(more or ())) if one is not None]
    return {"path": path, "names": names, "raw": len(raw or b""), "title": title, "size": file.size}


@app.post("/login", operation_id="login")
def login(
    username: Annotated[str, Form()], scopes: Annotated[list[str] | None, Form()] = None
) -> dict[str, Any]:
    return {"username": username, "scopes": scopes}


@app.get("/secret", operation_id="secret", dependencies=[Depends(key)])
def secret(found: Annotated[Any, Depends(bearer)]) -> str:
    if found.credentials != KEY:
        raise HTTPException(401)
    return "told"


@app.get("/open", operation_id="maybe")
def maybe(token: Annotated[str | None, Depends(oauth)] = None) -> str | None:
    return token


@app.get(
    "/picture",
    operation_id="picture",
    response_class=Response,
    responses={200: {"content": {"image/png": {}}}},
)
def picture() -> Response:
    return Response(b"\x89PNG\r\n", media_type="image/png")


@app.delete("/orders/{number}", operation_id="cancel", status_code=204)
def cancel(number: int) -> None:
    if number > 7:
        raise HTTPException(404, detail=f"there is no order {number}")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where the application is served."""
    with served_in_a_thread(app, log_level="warning") as address:
        yield address


@pytest_asyncio.fixture
async def gate(url: str, tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a gateway with the document that the application serves itself.

    That does not say that `{path:path}` takes slashes, which an overlay does; and names what an operation needs
    together as if either would do, so that one of the two is a fixed header.
    """
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        described = (await http.get(f"{url}/openapi.json")).json()
    (tmp_path / "overlay.yaml").write_text(OVERLAY)
    credentials = {"HTTPBearer": {"bearer": KEY}, "OAuth2PasswordBearer": {"bearer": KEY}}
    backend = {
        "base_url": url,
        "credentials": credentials,
        "headers": {"X-Key": "k"},
        "overlay": ["overlay.yaml"],
        "output_schemas": ["*"],
    }
    async with gateway_of(file_of(tmp_path, described, **backend)) as one:
        yield one


async def test_unions_enums_decimals_tuples_and_models_of_themselves_arrive(gate: Client) -> None:
    order = {
        "pet": {"kind": "dog", "tricks": ["roll"]},
        "price": "12.50",
        "colour": "red",
        "at": [1, 2],
        "notes": {"a": 1, "b": "x", "c": None},
        "children": [{"pet": {"kind": "cat"}, "price": 3}],
    }
    told = await gate.call(
        "create_order", {**order, "urgent": True, "x-tenant": "acme", "session": "s"}
    )
    assert told["structuredContent"]["order"]["pet"] == order["pet"]
    assert told["structuredContent"]["order"]["children"][0]["price"] == "3"
    assert (told["structuredContent"]["urgent"], told["structuredContent"]["who"]) == (
        True,
        "acme/s",
    )
    refused = await gate.call("create_order", {**order, "pet": {"kind": "cow"}, "x-tenant": "acme"})
    assert refused["isError"]
    assert "pet" in refused["content"][0]["text"]


async def test_a_query_that_is_a_model_and_lists_of_an_enum_arrive(gate: Client) -> None:
    asked = {
        "limit": 5,
        "order_by": "-name",
        "tags": ["a", "b"],
        "colour": ["red", "blue"],
        "q": None,
    }
    told = (await gate.call("find_orders_orders_get", asked))["structuredContent"]
    assert told["paging"] == {"limit": 5, "order_by": "-name", "tags": ["a", "b"]}
    assert (told["colour"], told["q"]) == (["red", "blue"], None)


async def test_files_that_may_be_left_out_arrive_as_files(gate: Client) -> None:
    def file(name: str) -> dict[str, str]:
        return {"text": "four", "file_name": name}

    sent = {
        "path": "a/b c.txt",
        "file": file("1.txt"),
        "cover": file("2.png"),
        "more": [file("3"), file("4")],
        "raw": file("5"),
        "title": "T",
    }
    told = (await gate.call("put_file", sent))["structuredContent"]
    assert told == {
        "path": "a/b c.txt",
        "names": ["1.txt", "2.png", "3", "4"],
        "raw": 4,
        "title": "T",
        "size": 4,
    }
    climbing = await gate.call("put_file", {"path": "a/../b", "file": file("1")})
    assert '"."' in climbing["content"][0]["text"]
    alone = (await gate.call("put_file", {"path": "x", "file": file("1")}))["structuredContent"]
    assert (alone["names"], alone["title"]) == (["1"], None)


async def test_a_form_with_a_list_arrives(gate: Client) -> None:
    told = await gate.call("login", {"username": "Ann Ä", "scopes": ["a", "b"]})
    assert told["structuredContent"] == {"username": "Ann Ä", "scopes": ["a", "b"]}


async def test_credentials_of_several_dependencies_are_sent(gate: Client) -> None:
    assert await gate.text("secret") == "told"
    assert await gate.text("maybe") == "[redacted]", "what arrived, without what nobody may read"


async def test_pictures_nothing_and_errors_are_told(gate: Client) -> None:
    (block,) = (await gate.call("picture"))["content"]
    assert (block["type"], block["mimeType"]) == ("image", "image/png")
    assert "204" in await gate.text("cancel", {"number": 7})
    missing = await gate.call("cancel", {"number": 8})
    assert missing["isError"]
    assert "there is no order 8" in missing["content"][0]["text"]
