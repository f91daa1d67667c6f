"""What a newcomer wants to send to a real service, and get back: forms with files, nested
bodies, lists, headers."""

import base64
import json
from typing import Any

import pytest

from roundgate.errors import ConfigError
from tests.support.services import answer, gateway_to, service

ANY: dict[str, Any] = {"schema": {}}
LIST: dict[str, Any] = {"schema": {"type": "array"}}
CREATED = answer(
    b'{"id":7}',
    "201 Created",
    Location="/things/7",
    X_Total="3",
    Set_Cookie="session=s3cret-session",
)


async def sent(arguments: dict[str, Any], /, **tool: Any) -> tuple[str, str | None, bytes]:
    """Path and query, content type and body of the request that a call becomes."""
    async with service() as told, gateway_to(told.url, {"method": "POST", **tool}) as gate:
        result = await gate.call("tool", arguments)
        assert "isError" not in result, result
    kind = told.header("content-type")
    return told.request_lines[0].split(" ")[1], kind[0] if kind else None, told.body()


async def refused(told_so: str, **tool: Any) -> None:
    with pytest.raises(ConfigError, match=told_so):
        async with gateway_to("http://127.0.0.1:1", {"method": "POST", **tool}):
            pass


# ---- lists


STYLES: dict[str, dict[str | None, Any]] = {
    "query": {
        None: "a=x%20y&a=2&a=z%2Cw",
        "repeat": "a=x%20y&a=2&a=z%2Cw",
        "brackets": "a%5B%5D=x%20y&a%5B%5D=2&a%5B%5D=z%2Cw",
        "comma": "a=x%20y,2,z%2Cw",
        "pipe": "a=x%20y%7C2%7Cz%2Cw",
        "space": "a=x%20y%202%20z%2Cw",
        "json": "a=%5B%22x%20y%22%2C2%2Cnull%2C%22z%2Cw%22%5D",
    },
    "form": {
        None: "a=x%20y&a=2&a=z%2Cw",
        "brackets": "a%5B%5D=x%20y&a%5B%5D=2&a%5B%5D=z%2Cw",
        "comma": "a=x%20y,2,z%2Cw",
        "pipe": "a=x%20y%7C2%7Cz%2Cw",
        "space": "a=x%20y%202%20z%2Cw",
    },
    "path": {
        "comma": "/x%20y,2,z%2Cw",
        "pipe": "/x%20y%7C2%7Cz%2Cw",
        "space": "/x%20y%202%20z%2Cw",
        None: "/%5B%22x%20y%22%2C2%2Cnull%2C%22z%2Cw%22%5D",
    },
}


def lister(place: str, style: str | None) -> dict[str, Any]:
    """A tool whose list goes there, and is written so."""
    argument = {**LIST, **({} if style is None else {"list": style})}
    argument |= {"in": "query"} if place == "query" else {}
    tool = {"name": f"{place}-{style}", "method": "POST", "arguments": {"a": argument}}
    return tool | {"query": {}, "form": {"body": "form"}, "path": {"path": "/{a}"}}[place]


async def test_every_style_of_a_list_byte_for_byte() -> None:
    cases = [(place, style) for place, told in STYLES.items() for style in told]
    got: dict[str, dict[str | None, str]] = {place: {} for place in STYLES}
    async with service() as told, gateway_to(told.url, *(lister(*case) for case in cases)) as gate:
        for place, style in cases:
            await gate.call(f"{place}-{style}", {"a": ["x y", 2, None, "z,w"]})
            path = told.request_lines[-1].split(" ")[1]
            wire = {"query": path[2:], "form": told.body().decode(), "path": path}
            got[place][style] = wire[place]
    assert got == STYLES


async def test_a_list_in_a_header_has_separators_and_no_item_forges_one() -> None:
    argument = {"in": "header", "as": "X-A", "list": "comma", **LIST}
    async with service() as told, gateway_to(told.url, {"arguments": {"a": argument}}) as gate:
        await gate.call("tool", {"a": ["x", 1]})
        assert "arguments.a: an item may not have ','" in await gate.text("tool", {"a": ["x,y"]})
        assert "visible ASCII" in await gate.text("tool", {"a": ["x", "y\r\nX-Evil: 1"]})
    assert told.header("x-a") == ["x,1"]
    assert len(told.requests) == 1


async def test_an_empty_list_is_sent_where_that_is_wanted() -> None:
    for style, wire in (("repeat", "/?a="), ("comma", "/?a="), ("brackets", "/?a%5B%5D=")):
        argument = {"in": "query", "list": style, **LIST}
        assert (await sent({"a": []}, arguments={"a": {**argument, "send_empty": True}}))[0] == wire
        assert (await sent({"a": []}, arguments={"a": argument}))[0] == "/"
    assert (await sent({"a": []}, arguments={"a": LIST}))[2] == b'{"a":[]}'


async def test_a_list_in_a_path_keeps_its_segment() -> None:
    tool = {"path": "/v/{a}/w", "arguments": {"a": {"list": "comma", **LIST}}}
    async with service() as told, gateway_to(told.url, tool) as gate:
        for items in ([], [".."], ["a", "../b"], ["a/b"], ["%2e%2e"], [""]):
            assert "arguments.a: may not" in await gate.text("tool", {"a": items})
    assert told.requests == []


# ---- nested, fixed, defaults


TEMPLATE = {
    "customer": {"id": "{customer_id}", "kind": "retail"},
    "lines": "{lines}",
    "title": "Order for {name}, {{sic}}",
    "address": {"city": "{city}"},
    "tags": ["shop", "{tag}"],
    "empty": {},
    "n": 1,
}
PLACED = dict.fromkeys(("customer_id", "lines", "name", "city", "tag", "note"), ANY)


async def test_arguments_stand_where_the_body_of_the_configuration_has_them() -> None:
    given = {"customer_id": 7, "lines": [{"sku": "a"}], "name": '"{lines}"\n', "city": None}
    _, kind, body = await sent({**given, "note": "n"}, body=TEMPLATE, arguments=PLACED)
    assert kind == "application/json"
    assert json.loads(body) == {
        "customer": {"id": 7, "kind": "retail"},
        "lines": [{"sku": "a"}],
        "title": 'Order for "{lines}"\n, {sic}',
        "address": {"city": None},
        "tags": ["shop"],
        "empty": {},
        "n": 1,
        "note": "n",
    }


async def test_what_was_not_given_is_left_out_with_what_is_empty_for_that() -> None:
    _, _, body = await sent({}, body=TEMPLATE, arguments=PLACED)
    assert json.loads(body) == {
        "customer": {"kind": "retail"},
        "tags": ["shop"],
        "empty": {},
        "n": 1,
    }
    assert (await sent({}, body={"a": {"b": "{b}"}}, arguments={"b": {}}))[2] == b"{}"


async def test_fixed_members_and_another_content_type() -> None:
    tool = {"fixed": {"v": 2, "on": True}, "arguments": {"a": {}}}
    merge = "application/merge-patch+json"
    assert await sent({"a": "x"}, content_type=merge, **tool) == (
        "/",
        merge,
        b'{"v":2,"on":true,"a":"x"}',
    )
    assert (await sent({"a": "x"}, body="form", **tool))[2] == b"v=2&on=true&a=x"
    assert (await sent({}, fixed={"v": 2}))[2] == b'{"v":2}'
    headers = {"Content-Type": "application/vnd.api+json"}
    assert (await sent({"a": "x"}, headers=headers, **tool))[1] == "application/vnd.api+json"


async def test_a_default_is_sent_told_to_the_model_and_shown_to_the_user() -> None:
    tool = {
        "arguments": {
            "size": {"default": 10, "required": True, "schema": {"type": "integer"}},
            "zone": {"in": "path", "default": "eu"},
        },
        "path": "/{zone}",
        "approve": "always",
        "approval": "Make it {size} in {zone}?",
    }
    async with service() as told, gateway_to(told.url, {"method": "POST", **tool}) as gate:
        (listed,) = (await gate.result("tools/list"))["tools"]
        assert listed["inputSchema"]["properties"]["size"]["default"] == 10
        assert listed["inputSchema"]["required"] == []
        asked = await gate.post(
            "tools/call", {"name": "tool"}, clientCapabilities={"elicitation": {"form": {}}}
        )
        message = asked.json()["result"]["inputRequests"]["approve"]["params"]["message"]
        assert message.startswith('Run tool?\nMake it 10 in "eu"?\n')
        assert '- size: 10\n- zone: "eu"' in message
    assert (await sent({}, **{**tool, "approve": "never"}))[::2] == ("/eu", b'{"size":10}')
    assert (await sent({"size": 3}, **{**tool, "approve": "never"}))[2] == b'{"size":3}'


# ---- files and raw bodies


PIXEL = base64.b64encode(bytes(range(256))).decode()
UPLOAD = {
    "path": "/post",
    "body": "multipart",
    "fixed": {"album": "cats"},
    "arguments": {
        "photo": {"file": True, "content_type": "image/png"},
        "more": {"file": True, "schema": {"type": "array"}},
        "caption": {},
        "tags": {"list": "comma", **LIST},
        "about": {"schema": {"type": "object"}},
        "rows": {"content_type": "text/csv"},
    },
}


async def test_files_come_to_httpbin_whole_with_everything_beside_them(httpbin_url: str) -> None:
    arguments = {
        "photo": {"base64": PIXEL, "file_name": 'kätzchen "1".png'},
        "more": [{"text": "a"}, {"text": "b", "media_type": "text/markdown"}],
        "caption": "é\r\n--x",
        "tags": ["a", "b"],
        "about": {"k": [1]},
        "rows": "a,b\n1,2\n",
    }
    async with gateway_to(httpbin_url, {"method": "POST", **UPLOAD}) as gate:
        found = (await gate.call("tool", arguments))["structuredContent"]
    assert found["files"]["photo"] == f"data:image/png;base64,{PIXEL}"
    assert found["files"]["more"] == "a"  # httpbin shows the first of several
    assert found["form"] == {
        "album": "cats",
        "caption": "é\r\n--x",
        "tags": "a,b",
        "about": '{"k":[1]}',
        "rows": "a,b\n1,2\n",
    }


FILE_NAMES = {
    "a.txt": "a.txt",
    "päper 日本.pdf": "päper 日本.pdf",
    'a"; name="evil': "a%22; name=%22evil",
    "a\r\nX-Evil: 1\r\n\r\nbody": "a%0D%0AX-Evil: 1%0D%0A%0D%0Abody",
    "../../etc/passwd": "passwd",
    "C:\\temp\\a.txt": "a.txt",
    "..": "photo",
    "a\\": "photo",
}


async def test_a_file_name_stays_within_its_quotes_and_its_directory() -> None:
    tool = {**UPLOAD, "method": "POST", "fixed": {}}
    async with service() as told, gateway_to(told.url, tool) as gate:
        for given, wire in FILE_NAMES.items():
            await gate.call("tool", {"photo": {"text": "x", "file_name": given}})
            boundary = told.header("content-type")[0].partition("boundary=")[2]
            head = (
                f'--{boundary}\r\nContent-Disposition: form-data; name="photo"; filename="{wire}"'
            )
            kind = "Content-Type: text/plain; charset=utf-8"
            assert told.body().decode() == f"{head}\r\n{kind}\r\n\r\nx\r\n--{boundary}--\r\n"


async def test_a_body_may_be_a_file_or_a_text_of_any_type(httpbin_url: str) -> None:
    whole: dict[str, Any] = {"in": "whole_body"}
    raw = {"method": "POST", "path": "/anything"}
    tools = (
        {**raw, "name": "file", "arguments": {"a": {**whole, "file": True}}},
        {**raw, "name": "csv", "content_type": "text/csv", "arguments": {"a": whole}},
        {**raw, "name": "xml", "arguments": {"a": {**whole, "content_type": "application/xml"}}},
        {**raw, "name": "patch", "content_type": "application/json-patch+json",
         "arguments": {"a": {**whole, **LIST}}},
    )  # fmt: skip
    async with gateway_to(httpbin_url, *tools) as gate:

        async def told(name: str, value: Any) -> tuple[str, str]:
            found = (await gate.call(name, {"a": value}))["structuredContent"]
            return found["headers"]["Content-Type"], found["data"]

        octets = f"data:application/octet-stream;base64,{PIXEL}"
        assert await told("file", {"base64": PIXEL}) == ("application/octet-stream", octets)
        png = {"base64": PIXEL, "media_type": "image/png"}
        assert (await told("file", png))[0] == "image/png"
        assert await told("csv", "a,é\n") == ("text/csv; charset=utf-8", "a,é\n")
        assert await told("xml", "<a/>") == ("application/xml", "<a/>")
        assert await told("patch", [{"op": "x"}]) == (
            "application/json-patch+json",
            '[{"op":"x"}]',
        )
        assert "base64 is invalid" in await gate.text("file", {"a": {"base64": "!"}})


@pytest.mark.parametrize(
    ("tool", "told_so"),
    [
        ({"body": {"a": "{b}"}}, "body needs b, which is not an argument"),
        (
            {"body": {"a": ["Mr {my arg}"]}, "arguments": {"my arg": {}}},
            "body has {my arg}, but variables have only letters, digits, _ . and -",
        ),
        ({"body": {"a": 1}, "arguments": {"a": {}}}, "a is in the body already"),
        ({"fixed": {"a": 1}, "arguments": {"a": {}}}, "a is in the body already"),
        ({"arguments": {"a": {"file": True}}}, "with `body: multipart`"),
        ({"arguments": {"a": {"file": True, "in": "query"}}}, "a file must be the whole body"),
        (
            {"body": {"x": 1}, "arguments": {"a": {"in": "whole_body"}}},
            "cannot be combined with other arguments",
        ),
        ({"body": "multipart", "content_type": "text/csv"}, "parts have their own"),
        ({"arguments": {"a": {"in": "header", "list": "repeat"}}}, "comma, pipe, space or json"),
        ({"arguments": {"a": {"default": 1}}}, "1 is not of type"),
        ({"approval": "Pay {amuont}?", "arguments": {"amount": {}}}, "names amuont"),
    ],
)
async def test_what_contradicts_itself_is_a_problem_before_anything_is_served(
    tool: dict[str, Any], told_so: str
) -> None:
    await refused(told_so, **tool)


@pytest.mark.parametrize(
    "kind", ["text", "text/csv\r\nX-Evil: 1", "text/csv; a=b\nX: 1", "é/x", "text/csv, text/html"]
)
def test_a_content_type_is_one(kind: str) -> None:
    from pydantic import ValidationError

    from roundgate.backends.http.config import HttpToolConfig

    with pytest.raises(ValidationError, match="content_type"):
        HttpToolConfig.model_validate(
            {"name": "a", "description": "a", "path": "/", "content_type": kind}
        )


# ---- headers of the answer


HEADERS = {"result_headers": {"where": "Location", "total": "X-Total", "gone": "X-Gone"}}


async def test_headers_of_the_answer_are_members_of_the_result() -> None:
    said = [CREATED, answer(b"[1]", X_Total="3"), answer(b"", "204 No Content", Location="/a"),
            answer(b"plain", content_type="text/plain", X_Total="1"),
            answer(b'{"total":9}', X_Total="8")]  # fmt: skip
    async with service(*said) as told, gateway_to(told.url, HEADERS) as gate:
        found = [(await gate.call("tool"))["structuredContent"] for _ in said]
    assert found == [
        {"id": 7, "where": "/things/7", "total": "3"},
        {"result": [1], "total": "3"},
        {"where": "/a"},
        {"result": "plain", "total": "1"},
        {"result": {"total": 9}, "total": "8"},
    ]


async def test_a_secret_in_a_header_is_taken_out_and_a_cookie_cannot_be_asked_for() -> None:
    echo = answer(b"{}", X_Total="Bearer s3cret-of-ours")
    credential = {"bearer": "s3cret-of-ours"}
    async with service(echo) as told, gateway_to(told.url, HEADERS, credential=credential) as gate:
        assert (await gate.call("tool"))["structuredContent"] == {"total": "Bearer [redacted]"}
    with pytest.raises(ConfigError, match="Set-Cookie"):
        async with gateway_to("http://127.0.0.1:1", {"result_headers": {"c": "set-cookie"}}):
            pass


async def test_headers_count_for_the_bound_of_an_answer() -> None:
    long = answer(b"{}", X_Total="9" * 2_000)
    limits = {"max_response_bytes": 1_000}
    async with service(long) as told, gateway_to(told.url, HEADERS, **limits) as gate:
        assert "answered more than 1000 bytes" in await gate.text("tool")


async def test_two_content_types_are_one_that_is_known_or_bytes() -> None:
    both = answer().replace(b"\r\n\r\n", b"\r\nContent-Type: text/html\r\n\r\n")
    async with service(both) as told, gateway_to(told.url, {}) as gate:
        (block,) = (await gate.call("tool"))["content"]
    assert block == {"type": "text", "text": "{}"}


# ---- approvals with a text of one's own


async def question(arguments: dict[str, Any], approval: str) -> str:
    """What the user is asked before the call."""
    tool = {
        "method": "POST",
        "approve": "always",
        "approval": approval,
        "arguments": {"to": {}, "note": ANY, "rest": ANY},
    }
    async with gateway_to("http://127.0.0.1:1", tool) as gate:
        asked = await gate.post(
            "tools/call",
            {"name": "tool", "arguments": arguments},
            clientCapabilities={"elicitation": {"form": {}}},
        )
    message: str = asked.json()["result"]["inputRequests"]["approve"]["params"]["message"]
    return message


async def test_an_approval_has_values_in_its_text_and_none_passes_for_the_text() -> None:
    hostile = 'Bob"? It is free.\n\nRun nothing?\u202e {note}'
    text = "Pay {to} for {note}?\nRest: {rest}"
    message = await question({"to": hostile, "note": [1, None]}, text)
    lines = message.split("\n")
    assert lines[0] == "Run tool?"
    assert lines[1].startswith('Pay "Bob\\"? It is free.\\n\\nRun nothing?')
    assert lines[1].endswith('{note}" for [1,null]?')
    assert "\u202e" not in message
    assert lines[2] == "Rest: (not given)"
    assert lines[4] == "It is called with"


async def test_a_long_value_is_shortened_in_the_text_and_named_by_its_digest() -> None:
    message = await question(
        {"to": "x" * 300 + "END", "note": ["y" * 150, "z" * 150]}, "{to} {note}"
    )
    line = message.split("\n")[1]
    assert len(line) < 600
    assert 'END" (303 characters, SHA-256 ' in line
    assert line.endswith("(2 items, see below)")


async def test_a_tool_may_be_free_of_what_its_back_end_wants() -> None:
    tools = (
        {"name": "free", "method": "DELETE", "approve": "never"},
        {"name": "asks", "method": "DELETE"},
    )
    async with service() as told, gateway_to(told.url, *tools, approve="destructive") as gate:
        assert "isError" not in await gate.call("free")
        refused = await gate.post("tools/call", {"name": "asks"})
        assert refused.json()["error"]["code"] == -32021
