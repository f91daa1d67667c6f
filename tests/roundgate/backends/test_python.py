"""Python modules as back ends: how they are imported, how their functions run, and what
becomes of their mistakes."""

import asyncio
import datetime as dt
import enum
import functools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from roundgate import (
    BlobResourceContents,
    Completion,
    Context,
    ImageContent,
    InvalidParams,
    PromptMessage,
    ResourceNotFound,
    SyncContext,
    TextResourceContents,
    ToolError,
    ToolResult,
    config,
    prompt,
    resource,
    tool,
)
from roundgate.config import ConfigFile
from roundgate.errors import ConfigError
from roundgate.settings.process import Settings
from tests.support import wire
from tests.support.asgi import Client, built, client, gateway


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Trip(BaseModel):
    to: str
    at: dt.datetime | None = None


@tool
def paint(colour: Colour, day: dt.date, trip: Trip, numbers: set[int] = frozenset()) -> str:  # type: ignore[assignment]
    """Take rich types."""
    return f"{colour!r} {day!r} {trip.at!r} {numbers!r}"


async def test_a_tool_gets_rich_types_from_json() -> None:
    arguments = {
        "colour": "blue",
        "day": "2026-07-28",
        "trip": {"to": "Rome", "at": "2026-07-28T12:00:00Z"},
    }
    async with client(gateway(paint)) as gate:
        assert await gate.text("paint", arguments) == (
            "<Colour.BLUE: 'blue'> datetime.date(2026, 7, 28) "
            "datetime.datetime(2026, 7, 28, 12, 0, tzinfo=TzInfo(0)) frozenset()"
        )


async def test_wrong_arguments_are_a_tool_error_that_says_where_and_what() -> None:
    right = {"colour": "blue", "day": "2026-07-28", "trip": {"to": "Rome"}}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"colour": "green"}, 'arguments.colour: "green" is not one of "red" or "blue"'),
        ({"trip": {}}, 'arguments.trip: "to" is a required property'),
        ({"day": 5}, 'arguments.day: 5 is not of type "string"'),
        ({"day": "tomorrow"}, "day: Input should be a valid date or datetime"),
        ({"numbers": [1, "x"]}, 'arguments.numbers[1]: "x" is not of type "integer"'),
        ({"coulour": "red"}, "'coulour' was unexpected"),
    ]
    async with client(gateway(paint)) as gate:
        for change, said in wrong:
            result = await gate.call("paint", right | change)
            assert result["isError"] is True
            assert result["content"][0]["text"].startswith("Invalid arguments")
            assert said in result["content"][0]["text"]


request_of: ContextVar[str] = ContextVar("request_of", default="nobody")


async def test_a_plain_function_runs_in_a_thread_with_its_context_variables() -> None:
    started, finish = threading.Event(), threading.Event()

    @tool
    def wait() -> list[str]:
        started.set()
        assert finish.wait(60)
        return [threading.current_thread().name, request_of.get()]

    @tool
    async def release() -> str:
        finish.set()
        return threading.current_thread().name

    async with client(gateway(wait, release)) as gate:
        request_of.set("ann")
        waiting = asyncio.create_task(gate.call("wait"))
        assert await asyncio.to_thread(started.wait, 60)
        assert await gate.text("release") == threading.current_thread().name
        assert (await waiting)["structuredContent"] == ["AnyIO worker thread", "ann"]


async def test_no_more_plain_functions_run_at_once_than_there_are_threads() -> None:
    running, most = 0, 0
    lock, two = threading.Lock(), threading.Barrier(2, timeout=60)

    @tool
    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        two.wait()
        time.sleep(0.02)
        with lock:
            running -= 1

    async with client(gateway(work, limits={"threads": 2})) as gate:
        await asyncio.gather(*(gate.call("work") for _ in range(6)))
    assert most == 2


async def test_a_plain_function_tells_its_progress_and_logs_from_its_thread() -> None:
    @tool
    def work(ctx: SyncContext, steps: int) -> str:
        for step in range(steps):
            ctx.progress(step, total=steps, message=f"step {step}")
        ctx.log("warning", {"steps": steps}, logger="work")
        ctx.log("debug", "not asked for")
        who = f"{ctx.principal.subject} {ctx.client_info and ctx.client_info['name']} {dict(ctx.client_capabilities)}"
        return f"{who} {ctx.deadline.is_past}"

    async with client(gateway(work)) as gate:
        asked = {"name": "work", "arguments": {"steps": 2}}
        response = await gate.post("tools/call", asked, progressToken="t", logLevel="info")
    first, second, logged, answer = wire.events(response.text)
    assert first["params"] == {"progressToken": "t", "progress": 0, "total": 2, "message": "step 0"}
    assert second["params"]["progress"] == 1
    assert logged["params"] == {"level": "warning", "logger": "work", "data": {"steps": 2}}
    assert answer["result"]["content"][0]["text"] == "local tests {} False"


async def test_a_plain_function_may_publish_changes_from_its_thread() -> None:
    @tool
    def work(ctx: SyncContext) -> str:
        ctx.tools_changed()
        ctx.prompts_changed()
        ctx.resources_changed()
        ctx.resource_updated("a:b")
        return "done"

    async with client(gateway(work)) as gate:
        assert await gate.text("work") == "done"


async def test_an_error_in_logging_reaches_the_function() -> None:
    @tool
    def work(ctx: SyncContext) -> str:
        try:
            ctx.log("loud", 1)
        except ValueError as error:
            return str(error)
        return "nothing"

    async with client(gateway(work)) as gate:
        assert "'loud' is not a log level; use one of debug, info" in await gate.text("work")


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


async def test_an_async_function_behind_a_plain_wrapper_is_awaited_with_its_own_context() -> None:
    @tool
    @logged
    async def work(ctx: Context, n: int) -> int:
        await ctx.progress(1)
        return n + 1

    async with client(gateway(work)) as gate:
        response = await gate.post(
            "tools/call", {"name": "work", "arguments": {"n": 1}}, progressToken=1
        )
    progress, answer = wire.events(response.text)
    assert progress["params"]["progress"] == 1
    assert answer["result"]["structuredContent"] == 2


async def test_a_plain_function_that_only_calls_an_async_one_is_awaited_too() -> None:
    async def later(n: int) -> int:
        return n + 1

    @tool
    def work(n: int) -> Any:
        return later(n)

    async with client(gateway(work)) as gate:
        assert (await gate.call("work", {"n": 1}))["structuredContent"] == 2


async def test_a_caller_cannot_pass_a_context_of_its_own() -> None:
    @tool
    def work(ctx: SyncContext, **rest: Any) -> str:
        return f"{ctx.principal.subject} {rest}"

    async with client(gateway(work)) as gate:
        assert await gate.text("work", {"ctx": {"principal": "root"}}) == "local {}"


async def test_arguments_with_the_names_of_python_keywords_arrive() -> None:
    @tool
    def mail(from_: Annotated[str, Field(alias="from")], schema: int = 1, json: int = 2) -> str:
        return f"{from_} {schema} {json}"

    async with client(gateway(mail)) as gate:
        assert await gate.text("mail", {"from": "ann", "json": 5}) == "ann 1 5"
        assert "'from_' was unexpected" in await gate.text("mail", {"from": "a", "from_": "b"})


async def test_a_tool_may_change_its_arguments_without_changing_a_default() -> None:
    @tool
    def work(words: list[str], more: list[str] = []) -> list[str]:  # noqa: B006
        words.append("x")
        return [*words, *more]

    async with client(gateway(work)) as gate:
        for _ in range(2):
            assert (await gate.call("work", {"words": ["a"]}))["structuredContent"] == ["a", "x"]


RESULTS: list[tuple[Any, dict[str, Any]]] = [
    (5, {"content": [{"type": "text", "text": "5"}], "structuredContent": 5}),
    (
        [1, None],
        {"content": [{"type": "text", "text": "[1,null]"}], "structuredContent": [1, None]},
    ),
    (None, {"content": []}),
    ("é", {"content": [{"type": "text", "text": "é"}]}),
    (
        ImageContent(b"x", "image/png"),
        {"content": [{"type": "image", "data": "eA==", "mimeType": "image/png"}]},
    ),
    (ToolResult.error("no"), {"content": [{"type": "text", "text": "no"}], "isError": True}),
]


async def test_what_a_tool_returns_is_its_result() -> None:
    @tool
    async def work(number: int) -> Any:
        return RESULTS[number][0]

    async with client(gateway(work)) as gate:
        for number, (_, expected) in enumerate(RESULTS):
            result = await gate.call("work", {"number": number})
            members = result.keys() - {"_meta", "resultType"}
            assert {key: result[key] for key in members} == expected


async def test_structured_results_match_the_output_schema_or_fail_with_a_reference(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    async def count(right: bool) -> int:
        return 5 if right else "five"  # type: ignore[return-value]

    async with client(gateway(count)) as gate:
        assert (await gate.call("count", {"right": True}))["structuredContent"] == 5
        result = await gate.call("count", {"right": False})
    assert result["isError"] is True
    assert "structuredContent" not in result
    assert "failed unexpectedly" in result["content"][0]["text"]
    assert 'result: "five" is not of type "integer"' in caplog.text


async def test_a_tool_error_is_said_and_another_exception_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    def work(kind: str) -> str:
        if kind == "tool":
            raise ToolError("Name a city on land")
        if kind == "params":
            raise InvalidParams("no such city")
        raise ValueError("s3cret")

    async with client(gateway(work)) as gate:
        assert await gate.text("work", {"kind": "tool"}) == "Name a city on land"
        assert (await gate.error("tools/call", {"name": "work", "arguments": {"kind": "params"}}))[
            1
        ]["code"] == -32602
        text = await gate.text("work", {"kind": "other"})
    assert "s3cret" not in text
    assert "s3cret" in caplog.text
    assert text.rpartition(" ")[2] in [
        getattr(record, "fields", {}).get("reference") for record in caplog.records
    ]


@prompt(
    complete={
        "language": ["python", "pascal", "rust"],
        "style": lambda typed: [f"{typed}{n}" for n in range(3)],
        "count": lambda typed: Completion([typed], total=7, has_more=True),
    }
)
def review(language: str, count: int = 1, style: Colour = Colour.RED) -> list[PromptMessage | str]:
    """Ask for a review."""
    return ["Review.", PromptMessage("assistant", f"{language} {count + 1} {style!r}")]


async def test_a_prompt_gets_its_arguments_converted_from_strings() -> None:
    asked = {"name": "review", "arguments": {"language": "rust", "count": "2", "style": "blue"}}
    async with client(gateway(review)) as gate:
        result = await gate.result("prompts/get", asked)
    assert result["description"] == "Ask for a review."
    assert [(m["role"], m["content"]["text"]) for m in result["messages"]] == [
        ("user", "Review."),
        ("assistant", "rust 3 <Colour.BLUE: 'blue'>"),
    ]


async def test_wrong_arguments_of_a_prompt_are_invalid_params_that_name_them() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "missing arguments: language"),
        (
            {"language": "rust", "coutn": "1"},
            "unknown arguments coutn; there are: language, count, style",
        ),
        ({"language": "rust", "count": "many"}, "count: Input should be a valid integer"),
        ({"language": "rust", "style": "green"}, "style: Input should be 'red' or 'blue'"),
        ({"language": 5}, "arguments that are not text: language"),
    ]
    async with client(gateway(review)) as gate:
        for arguments, said in wrong:
            asked = {"name": "review", "arguments": arguments}
            status, error = await gate.error("prompts/get", asked)
            assert (status, error["code"]) == (400, -32602)
            assert said in error["message"]


async def completed(gate: Any, ref: dict[str, str], argument: str, typed: str) -> dict[str, Any]:
    asked = {"ref": ref, "argument": {"name": argument, "value": typed}}
    found: dict[str, Any] = (await gate.result("completion/complete", asked))["completion"]
    return found


async def test_arguments_are_completed_by_values_or_by_a_function() -> None:
    ref = {"type": "ref/prompt", "name": "review"}
    async with client(gateway(review)) as gate:
        assert await completed(gate, ref, "language", "p") == {"values": ["python", "pascal"]}
        assert await completed(gate, ref, "language", "P") == {"values": []}
        assert await completed(gate, ref, "style", "x") == {"values": ["x0", "x1", "x2"]}
        assert await completed(gate, ref, "count", "1") == {
            "values": ["1"],
            "total": 7,
            "hasMore": True,
        }
        assert await completed(gate, ref, "unknown", "1") == {"values": []}


async def test_variables_of_a_template_are_completed_by_an_async_function_too() -> None:
    async def owners(typed: str) -> tuple[str, ...]:
        return tuple(f"{typed}{n}" for n in range(150))

    @resource("notes://{owner}", complete={"owner": owners})
    def notes(owner: str) -> str: ...

    async with client(gateway(notes)) as gate:
        found = await completed(
            gate, {"type": "ref/resource", "uri": "notes://{owner}"}, "owner", "a"
        )
    assert (len(found["values"]), found["total"], found["hasMore"]) == (100, 150, True)


@resource("notes://{owner}/{number}{?lang,tag*}", mime_type="text/x-note")
async def note(
    ctx: Context, owner: str, number: int, lang: str = "en", tag: list[str] | None = None
) -> Any:
    """One note."""
    return f"{ctx.principal.subject} {owner} {number + 1} {lang} {tag}"


async def test_a_template_gives_its_values_to_the_function() -> None:
    texts = {
        "notes://ann/1": "local ann 2 en None",
        "notes://ann/1?lang=de": "local ann 2 de None",
        "notes://ann/1?tag=a&lang=de&tag=b": "local ann 2 de ['a', 'b']",
        "notes://a%20%C3%A9/1": "local a é 2 en None",
        "notes://ann/%31": "local ann 2 en None",
    }
    async with client(gateway(note)) as gate:
        for uri, text in texts.items():
            contents = (await gate.result("resources/read", {"uri": uri}))["contents"]
            assert contents == [{"uri": uri, "mimeType": "text/x-note", "text": text}]


async def test_values_that_do_not_fit_are_a_resource_that_is_not_there() -> None:
    async with client(gateway(note)) as gate:
        for rest in ("ann/one", "ann", "a%2Fb/1", "../1"):
            await assert_missing(gate, f"notes://{rest}")
        await assert_missing(gate, "other://ann/1")


async def assert_missing(gate: Client, uri: str) -> None:
    status, error = await gate.error("resources/read", {"uri": uri})
    assert (status, error["code"], error["data"]) == (400, -32602, {"uri": uri})


async def test_a_resource_of_several_parts_or_of_none() -> None:
    @resource("shelf://all")
    def shelf() -> Any:
        return [
            TextResourceContents("shelf://a", "b"),
            BlobResourceContents("shelf://b", b"c", "image/png"),
        ]

    @resource("shelf://gone")
    def gone() -> str:
        raise ResourceNotFound("shelf://gone")

    async with client(gateway(shelf, gone)) as gate:
        assert (await gate.result("resources/read", {"uri": "shelf://all"}))["contents"] == [
            {"uri": "shelf://a", "text": "b"},
            {"uri": "shelf://b", "mimeType": "image/png", "blob": "Yw=="},
        ]
        assert (await gate.error("resources/read", {"uri": "shelf://gone"}))[1]["data"] == {
            "uri": "shelf://gone"
        }


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Callable[..., ConfigFile]]:
    """Writes files, and loads a gateway.yaml beside them with one Python back end."""
    path = list(sys.path)

    def load(source: str = "path: tools.py", **files: str) -> ConfigFile:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(dedent(text))
        (tmp_path / "gateway.yaml").write_text(
            f"backends:\n  - kind: python\n    name: a.b-c\n    {source}\n"
        )
        return config.load(tmp_path / "gateway.yaml", {})

    yield load
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", None)):
            del sys.modules[name]


NEIGHBOURS = {
    "tools_of_this_test": """
        from __future__ import annotations
        from dataclasses import dataclass
        from neighbour_of_this_test import greeting
        from roundgate import tool

        @dataclass
        class Greeting:
            text: str

        @tool
        def greet(name: str) -> Greeting:
            return Greeting(f"{greeting} {name}")

        also = greet
    """,
    "neighbour_of_this_test": "greeting = 'Hello'",
}


@pytest.mark.parametrize("source", ["path: tools_of_this_test.py", "module: tools_of_this_test"])
async def test_a_module_is_imported_by_path_or_by_name_with_its_neighbours(
    loaded: Callable[..., ConfigFile], source: str
) -> None:
    async with client(built(loaded(source, **NEIGHBOURS), Settings())) as gate:
        assert [one["name"] for one in (await gate.result("tools/list"))["tools"]] == [
            "a.b-c__greet"
        ]
        result = await gate.call("a.b-c__greet", {"name": "Ann"})
    assert result["structuredContent"] == {"text": "Hello Ann"}


def problem(file: ConfigFile) -> str:
    with pytest.raises(ConfigError) as refused:
        built(file, Settings())
    (only,) = refused.value.problems
    return str(only)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\n\nx = y", "NameError: name 'y' is not defined (tools.py:3)"),
        (
            "import roundgate\nimport nowhere_to_be_found",
            "No module named 'nowhere_to_be_found' (tools.py:2)",
        ),
        ("from roundgate import tools", "cannot import name 'tools' from 'roundgate'"),
        ("x = 1\ndef f(:\n  pass", "SyntaxError: invalid syntax (tools.py, line 2)"),
        (
            "if True:\nx = 1",
            "IndentationError: expected an indented block after 'if' statement on line 1 (tools.py, line 2)",
        ),
        ("import sys\nsys.exit('usage: tools')", "SystemExit: usage: tools (tools.py:2)"),
        ("class Skip(BaseException): pass\nraise Skip('not here')", "Skip: not here (tools.py:2)"),
        (
            "from neighbour_of_that_test import a",
            "ZeroDivisionError: division by zero (neighbour_of_that_test.py:2)",
        ),
    ],
)
def test_a_module_that_cannot_be_imported_is_a_problem_with_file_and_line(
    loaded: Callable[..., ConfigFile], source: str, said: str
) -> None:
    text = problem(loaded(tools=source, neighbour_of_that_test="a = 1\nb = a / 0"))
    assert re.search(
        r"/(tools|neighbour_of_that_test)\.py:\d: backends\[0\]: cannot be imported: ", text
    )
    assert said in text
    assert "\n    → " in text  # which remedy it is: tests/roundgate/cli/test_mistakes.py


@pytest.mark.parametrize(
    "source",
    ["path: gone.py", "path: .", "path: gateway.yaml", "module: nowhere.tools", "module: ''"],
)
def test_a_module_that_is_not_there_is_a_problem_without_a_place_of_ours(
    loaded: Callable[..., ConfigFile], source: str
) -> None:
    text = problem(loaded(source))
    assert "backends[0]: cannot be imported: " in text
    assert "python.py" not in text
    assert "importlib" not in text


def test_a_bound_that_is_no_number_is_a_problem_at_load(loaded: Callable[..., ConfigFile]) -> None:
    lines = (
        "from typing import Annotated",
        "from pydantic import Field",
        "from roundgate import tool",
        "@tool\ndef work(a: Annotated[float, Field(ge=float('nan'))]): ...",
    )
    assert "not a usable JSON Schema" in problem(loaded(tools="\n".join(lines)))


@pytest.mark.parametrize(
    ("declaration", "said"),
    [
        ("@tool\ndef work(a, /): ...", "parameter 'a' cannot be filled by name"),
        ("@tool\ndef work(*a): ...", "parameter 'a' cannot be filled by name"),
        ("@tool\ndef work(a: 'Nothing'): ...", "name 'Nothing' is not defined"),
        ("@tool\ndef work(a: object.b): ...", "cannot be imported: AttributeError"),
        ("@tool\ndef work(a: 'tool.b'): ...", "has no attribute 'b'"),
        ("@tool\ndef work(a: type(lambda: 1)): ...", "a parameter has no JSON Schema"),
        ("@tool\ndef work(a: __import__('typing').Callable): ...", "Cannot generate a JsonSchema"),
        ("@tool\ndef work(a=Field(1)): ...", "has Field(…) as its default; write Annotated["),
        ("@tool(output_schema={'type': 5})\ndef work(): ...", "not a usable JSON Schema"),
        (
            "@prompt(complete={'b': []})\ndef work(a): ...",
            "complete names ['b'], but there are only ['a']",
        ),
        (
            "@resource('a://{b}')\ndef work(c): ...",
            "parameters ['c'] must be the variables of 'a://{b}': ['b']",
        ),
        (
            "@resource('a://b')\ndef work(c): ...",
            "parameters ['c'] must be the variables of 'a://b': []",
        ),
        ("@resource('a://{b')\ndef work(b): ...", "'{' is unmatched"),
        ("@resource('a://{b}', complete={'c': []})\ndef work(b): ...", "complete names ['c']"),
        ("work = tool(__import__('functools').partial(print, 1))", "partial: "),
    ],
)
def test_a_declaration_that_cannot_be_served_is_a_problem_at_its_place(
    loaded: Callable[..., ConfigFile], declaration: str, said: str
) -> None:
    text = problem(
        loaded(
            tools=f"from roundgate import prompt, resource, tool\nfrom pydantic import Field\n{declaration}\n"
        )
    )
    assert said in text
    assert re.search(
        r"tools\.py:3: work\(\): |(gateway\.yaml:2|tools\.py:4): backends\[0\]: ", text
    )
    assert "\n    → " in text


def test_every_wrong_declaration_is_told_at_once(loaded: Callable[..., ConfigFile]) -> None:
    source = "from roundgate import tool\n@tool\ndef one(*a): ...\n@tool\ndef two(a, /): ...\n@tool\ndef three(): ...\n"
    with pytest.raises(ConfigError) as refused:
        built(loaded(tools=source), Settings())
    assert [(one.path, one.line) for one in refused.value.problems] == [("one()", 2), ("two()", 4)]
