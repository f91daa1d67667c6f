"""The client library and its command line with servers that write JSON loosely; processes that end,
hang, or are slow."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import os
import sys
import warnings
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Coroutine
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from roundgate import lenient
from roundgate.client import Limits, stdio
from roundgate.client.messages import EventReader, Reader, unreadable_response
from roundgate.client.stdio import Program, StdioLink
from roundgate.errors import (
    BadAnswer,
    ConnectionLost,
    ParseError,
    RpcError,
    TimedOut,
    UnknownEncoding,
)
from roundgate.json import decode
from tests.support import odd_answers
from tests.support.command import roundgate
from tests.support.scripted import Asked, connected, http, modern, result, scripted
from tests.support.upstreams import linked

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def call(asked: Asked) -> bytes:
    return http(200, odd_answers.answer(asked.params["name"], asked.message["id"]))


async def test_the_command_line_reads_json_that_is_written_loosely() -> None:
    async with scripted(modern(call, odd_answers.tools())) as server:
        command = ("call", server.url, "half_an_emoji", "--json")
        ran = await asyncio.to_thread(roundgate, *command)
    assert ran.status == 0, ran.err
    assert odd_answers.CAFE in ran.out
    assert "\ufffd" in ran.out


async def silent(asked: Asked) -> AsyncGenerator[bytes, None]:
    await asyncio.sleep(60)
    yield b""


@pytest.mark.parametrize(
    ("answer", "annotations", "is_in_doubt"),
    [
        (http(200, b'{"jsonrpc":"2.0","id":1,"result":{'), {}, True),
        (http(200, b'{"jsonrpc":"2.0","id":1,"result":{'), {"readOnlyHint": True}, False),
        (http(500, b"broken", "text/plain"), {}, True),
        (http(400, b"refused", "text/plain"), {}, False),
        (silent, {}, True),
        (silent, {"idempotentHint": True}, False),
    ],
)
async def test_the_command_line_says_that_a_call_may_have_taken_effect(
    answer: Any, annotations: dict[str, Any], is_in_doubt: bool
) -> None:
    tools = [{"name": "pay", "inputSchema": {"type": "object"}, "annotations": annotations}]

    def script(asked: Asked) -> Any:
        return answer(asked) if callable(answer) else answer

    async with scripted(modern(script, tools)) as server:
        command = ("call", server.url, "pay", *(("--timeout", "2") if answer is silent else ()))
        ran = await asyncio.to_thread(roundgate, *command)
    assert ran.status in (3, 4, 5), ran.err
    assert ("may have taken effect" in ran.err) is is_in_doubt, ran.err


@given(VALUES)
def test_valid_json_is_read_as_it_is_strictly(value: Any) -> None:
    body = json.dumps(value, allow_nan=True).encode()
    found = lenient.read(body)
    try:
        strict = decode(body)
    except ParseError:
        assert found.repairs
    else:
        assert (found.value, found.repairs) == (strict, ())


@given(st.text(st.characters(categories=None, exclude_categories=())))
def test_each_half_of_a_surrogate_pair_becomes_one_character(text: str) -> None:
    # Python and JSON join a pair of halves
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    found = lenient.read(json.dumps({"\\" + text: ["\\" + text]}).encode()).value
    assert found == {"\\" + joined: ["\\" + joined]}


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for content_type in ("", "application/json; charset=utf-16", "a; charset=idna"):
        try:
            found = lenient.read(lenient.in_utf8(body, content_type))
        except ParseError:
            continue
        json.dumps(found.value, allow_nan=False)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{', 7),
        (b'{"jsonrpc": "2.0", "id": "7", "error": {', 7),
        (b'{"id":7,"jsonrpc":"2.0","result":', 7),
        (b'{"result":{"items":[{"id":1}],},"jsonrpc":"2.0","id":7}\n', 7),
        (b'{"result":{"items":[{"id":1}],},"id":7,"jsonrpc":"2.0"}', 7),
        (b'{"result":{"items":[{"id":1},', 0),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping"', None),
        (b'{"jsonrpc":"2.0","method":"notifications/progress","params":{', None),
        (b'{"level":"info","id":7,', None),
        (b"ready {", None),
    ],
)
def test_the_request_of_an_unreadable_response_is_found(
    message: bytes, expected: int | None
) -> None:
    assert unreadable_response(message, message) == expected


def test_the_type_of_an_event_belongs_to_one_event() -> None:
    stream = b"event: ping\ndata: {}\n\ndata: {}\n\nevent: message\ndata: {}\n\n"
    events = EventReader(100).feed(stream)
    reader = Reader(Limits())
    assert [reader.event(one) for one in events] == [None, {}, {}]


async def test_an_entry_that_is_unusable_leaves_out_no_other() -> None:
    def script(asked: Asked) -> bytes:
        if asked.rpc == "prompts/list":
            return result(asked, {"prompts": [{"name": "a", "title": None}, {}, 7, {"name": "b"}]})
        return result(asked, {"supportedVersions": ["2026-07-28"], "capabilities": {"prompts": {}}})

    async with connected(script) as (_, client):
        assert [one.name for one in await client.prompts()] == ["a", "b"]


def test_gzip_data_may_have_several_members() -> None:
    packed = gzip.compress(b"one ") + gzip.compress(b"two")
    for size in (1, 7, len(packed)):
        unpacker = lenient.Unpacker("gzip", 100)
        for start in range(0, len(packed), size):
            unpacker.feed(packed[start : start + size])
        assert unpacker.body() == b"one two"


@pytest.mark.parametrize("window", [15, -15])
def test_deflate_data_is_recognized_though_its_first_byte_arrives_alone(window: int) -> None:
    packed = zlib.compress(b"one two", wbits=window)
    unpacker = lenient.Unpacker("deflate", 100)
    for piece in (packed[:1], packed[1:2], packed[2:]):
        unpacker.feed(piece)
    assert unpacker.body() == b"one two"


@pytest.mark.parametrize(("encoding", "window"), [("gzip", 31), ("deflate", 15), ("deflate", -15)])
@pytest.mark.parametrize("size", [1, 1_000])
def test_bytes_after_the_end_of_packed_data_are_refused(
    encoding: str, window: int, size: int
) -> None:
    # zlib would keep all of them for as long as a stream is open
    packed = zlib.compress(b"data: {}\n\n" * 9, wbits=window) + b"xyz"
    unpacker = lenient.Unpacker(encoding)
    pieces = (packed[start : start + size] for start in range(0, len(packed), size))
    with pytest.raises(UnknownEncoding):
        deque(chain.from_iterable(map(unpacker.unpacked, pieces)), maxlen=0)


# -- processes -------------------------------------------------------------------------------------


async def answered(link: StdioLink, tool: str = "nan") -> Any:
    return await link.request("tools/call", {"name": tool}, may_repeat=False)


async def test_an_error_without_an_id_ends_the_only_request() -> None:
    code = (
        'import sys; input(); print(\'{"jsonrpc":"2.0","id":null,"error":'
        '{"code":-32700,"message":"no"}}\', flush=True); sys.stdin.read()'
    )
    async with linked("-c", code) as link, asyncio.timeout(60):
        with pytest.raises(RpcError, match="no"):
            await answered(link)


ODD_FORMS = {
    "list": '{"jsonrpc":"2.0","id":[%d],"result":{}}',
    "object": '{"jsonrpc":"2.0","id":{"a":%d},"result":{}}',
    "nothing": '{"jsonrpc":"2.0","id":%d}',
    "null": '{"jsonrpc":"2.0","id":%d,"result":null,"error":null}',
    "nulls": '{"jsonrpc":"2.0","id":%d,"method":null,"params":null,"result":{"n":1},"error":null}',
    "log": '{"level":"info","id":%d}\\n{"jsonrpc":"2.0","id":%d,"result":{"n":1}}',
}


async def test_an_error_without_an_id_tells_no_other_caller_what_an_abandoned_request_said() -> (
    None
):
    code = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    if json.loads(line).get('params', {}).get('name') == 'b':\n"
        "        error = {'code': -32603, 'message': 'account of the first caller'}\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': None, 'error': error}), flush=True)\n"
    )
    async with linked("-c", code) as link:
        first = asyncio.create_task(answered(link, "a"))
        await asyncio.sleep(0.1)
        first.cancel()
        with pytest.raises(BadAnswer) as refused:
            await asyncio.wait_for(answered(link, "b"), 60)
        assert "account" not in str(refused.value)


async def test_an_odd_form_of_an_answer_ends_only_its_call_and_at_once() -> None:
    code = (
        f"import json, sys\nforms = json.loads({json.dumps(json.dumps(ODD_FORMS))})\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    if asked['method'] == 'tools/call':\n"
        "        form = forms[asked['params']['name']]\n"
        "        print(form.replace('\\\\n', '\\n').replace('%d', str(asked['id'])), flush=True)\n"
    )
    async with linked("-c", code) as link:
        for name in ODD_FORMS:
            async with asyncio.timeout(50):  # less than `idle_s`
                if name in ("nulls", "log"):
                    assert await answered(link, name) == {"n": 1}
                else:
                    with pytest.raises(BadAnswer):
                        await answered(link, name)
            assert link.is_open, name


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_process_that_ends_shows_no_error_of_the_event_loop(loop: Any) -> None:
    code = "import os; input(); os._exit(2)"
    large = {"text": "x" * 100_000}  # more than a pipe holds

    async def main() -> list[Any]:
        async with linked("-c", code) as link:
            calls = [asyncio.ensure_future(link.request("x", {}, may_repeat=False))]
            for _ in range(500):
                await asyncio.sleep(0.002)
                calls.append(asyncio.ensure_future(link.request("x", large, may_repeat=False)))
            return await asyncio.gather(*calls, return_exceptions=True)

    with asyncio.Runner(loop_factory=loop) as runner:
        for _ in range(3):
            for error in runner.run(main()):
                assert isinstance(error, ConnectionLost), repr(error)
                assert "process" in str(error)


FLOODS = "import sys; input(); sys.stdout.write('x\\n' * 4_000_000); sys.stdout.flush(); input()"
LEAVES_A_CHILD = (
    "import os, subprocess, sys; input(); child = 'import time; time.sleep(1)'; "
    "subprocess.Popen([sys.executable, '-c', child], start_new_session=True); os._exit(0)"
)


def warnings_of(coroutine: Coroutine[Any, Any, None]) -> list[str]:
    """The warnings while a coroutine runs in an event loop of its own."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(coroutine)
        gc.collect()
    return [str(warning.message) for warning in warned]


@pytest.mark.parametrize("code", [FLOODS, LEAVES_A_CHILD])
def test_a_process_that_ends_by_itself_leaves_no_open_transport(code: str) -> None:
    async def main() -> None:
        async with linked("-c", code, limits=Limits(max_message=1_000)) as link:
            asked = asyncio.ensure_future(link.request("x", {}, may_repeat=False))
            if code is FLOODS:
                await link.ended.wait()
            else:
                await asyncio.sleep(0.5)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    assert warnings_of(main()) == []


@pytest.mark.parametrize("is_started", [True, False])
def test_an_event_loop_that_ends_leaves_no_process(tmp_path: Path, is_started: bool) -> None:
    file = tmp_path / "pid"
    code = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"

    async def main() -> None:
        link = StdioLink(
            Program([sys.executable, "-c", code], {}), info={}, capabilities={}, limits=Limits()
        )
        link.version = "2025-11-25"
        asked = asyncio.ensure_future(link.request("x", {}, may_repeat=False))
        await asyncio.sleep(0)
        while is_started and not (file.exists() and file.read_text()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        ending = asyncio.ensure_future(link.end_session())
        await asyncio.sleep(0.1)  # the process has not ended yet
        ending.cancel()
        asked.cancel()
        await asyncio.gather(asked, ending, return_exceptions=True)

    assert warnings_of(main()) == []
    if is_started:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


async def test_a_process_that_answers_the_ping_is_not_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stdio, "PROBE_S", 5.0)
    async with linked(odd_answers.__file__, "mute", limits=Limits(idle_s=2.0)) as link:
        await link.request("tools/list", {}, may_repeat=True)
        for _ in range(stdio.MAX_UNANSWERED + 2):
            with pytest.raises(TimedOut):
                await answered(link)
        assert link.is_open
        await link.request("tools/list", {}, may_repeat=True)


ONE = {"jsonrpc": "2.0", "id": "ID", "result": {"n": 1}}
"""An answer; the server replaces "ID"."""
FRAMES: dict[str, bytes] = {
    "batch": json.dumps([ONE]).encode(),
    "batch of two": json.dumps([{"jsonrpc": "2.0", "method": "notifications/x"}, ONE]).encode(),
    "pretty": json.dumps(ONE, indent=2).encode(),
    "pretty batch": json.dumps([ONE], indent=2).encode(),
    "pretty, with a part that is JSON": json.dumps({**ONE, "result": {"n": 1, "m": []}}, indent=2)
    .replace("[]", "\n{}\n")
    .encode(),
    "CRLF": json.dumps(ONE, indent=2).replace("\n", "\r\n").encode(),
    "a NUL before": b"\0" + json.dumps(ONE).encode(),
    "two documents": json.dumps({"jsonrpc": "2.0", "method": "notifications/x"}).encode()
    + b" "
    + json.dumps(ONE).encode(),
}
UNREADABLE: dict[str, bytes] = {
    "UTF-16": json.dumps(ONE).encode("utf-16"),
    "UTF-16, little end": json.dumps(ONE).encode("utf-16-le"),
    "UTF-16, big end": json.dumps(ONE).encode("utf-16-be"),
    "UTF-16, id last": json.dumps(dict(reversed(ONE.items()))).encode("utf-16-le"),
    "pretty and broken": json.dumps(ONE, indent=2).replace("1", "1 1").encode(),
    "pretty and not indented": json.dumps(ONE, indent=0).encode(),
}


def framing() -> str:
    """The code of a server whose answer to a tool's call has the form that the tool is named after."""
    forms = {name: frame.hex() for name, frame in {**FRAMES, **UNREADABLE}.items()}
    return (
        f"import json, sys\nforms = json.loads({json.dumps(json.dumps(forms))})\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    if asked['method'] == 'tools/call':\n"
        "        form, number = bytes.fromhex(forms[asked['params']['name']]), str(asked['id'])\n"
        "        for code in ('utf-8', 'utf-16-le', 'utf-16-be'):\n"
        "            form = form.replace('\"ID\"'.encode(code), number.encode(code))\n"
        "        end = '\\n'.encode('utf-16-le' if b'\\0' in form[1:] else 'utf-8')\n"
        "        sys.stdout.buffer.write(form + end)\n"
        "        sys.stdout.buffer.flush()\n"
    )


async def test_a_message_in_another_framing_is_read_or_ends_its_call_at_once() -> None:
    async with linked("-c", framing(), limits=Limits(idle_s=600)) as link:
        for name in FRAMES:
            async with asyncio.timeout(60):
                found = await answered(link, name)
            assert found["n"] == 1, name
        for name in UNREADABLE:
            with pytest.raises(BadAnswer):
                async with asyncio.timeout(60):
                    await answered(link, name)
            assert link.is_open, name
            assert await answered(link, "batch") == {"n": 1}
