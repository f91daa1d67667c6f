"""Results of a tool in the bytes of servers that write JSON loosely. As a program: a server on its
standard streams whose tools answer so. Arguments of the program:

mute         answer no call
slow SECONDS wait before the first message is read
leaves       end with status 2 before a message is read
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Final

Json = dict[str, Any]

NAMES: Final = (
    *("half_an_emoji", "an_emoji_in_bytes", "another_charset", "nan", "infinity", "too_large"),
    *("a_name_twice", "byte_order_mark", "id_as_text", "id_as_float", "null_members"),
    *("half_an_answer", "a_tab_in_a_text", "too_long", "id_last", "an_emoji_behind_a_backslash"),
)
"""The names of the tools."""
_TEXT: Final = {
    "half_an_emoji": rb'"caf\u00e9 \ud83d"',
    "an_emoji_in_bytes": b'"caf\xc3\xa9 \xed\xa0\xbd"',
    "an_emoji_behind_a_backslash": rb'"C:\\\ud83d\ude80 \ud83d"',
    "another_charset": b'"caf\xe9"',
    "a_tab_in_a_text": b'"caf\xc3\xa9\t"',
    "too_long": b'"%b"' % (b"x" * 40_000),
}
_VALUE: Final = {"nan": b"NaN", "infinity": b"-Infinity", "too_large": b"1e400"}
CAFE: Final = "caf\u00e9"
EXPECTED: Final[dict[str, tuple[str, Any]]] = {
    "half_an_emoji": (f"{CAFE} \ufffd", 1),
    "an_emoji_in_bytes": (f"{CAFE} \ufffd\ufffd\ufffd", 1),
    "an_emoji_behind_a_backslash": ("C:\\\U0001f680 \ufffd", 1),
    "another_charset": ("caf\ufffd", 1),
    "nan": (CAFE, None),
    "infinity": (CAFE, None),
    "too_large": (CAFE, None),
    "a_name_twice": (CAFE, 1),
    "byte_order_mark": (CAFE, 1),
    "id_as_text": (CAFE, 1),
    "id_as_float": (CAFE, 1),
    "null_members": (CAFE, 1),
}
"""The text and the number that a client gets; the other answers cannot be read."""


def result(name: str) -> bytes:
    """The result of a tool: the text `café` and the number 1, written as its name says."""
    text, number = _TEXT.get(name, b'"caf\xc3\xa9"'), _VALUE.get(name, b"1")
    if name == "a_name_twice":
        number = b'0,"n":1'
    nulls = b',"annotations":null,"_meta":null' if name == "null_members" else b""
    content = b'"content":[{"type":"text","text":%b%b}],"structuredContent":{"n":%b}' % (
        text,
        nulls,
        number,
    )
    return b'{"resultType":"complete",%b%b}' % (
        b'"isError":null,"_meta":null,' if nulls else b"",
        content,
    )


def answer(name: str, request_id: int) -> bytes:
    """The answer of a tool to a request, in one line."""
    written = b"%d" % request_id
    if name == "id_as_text":
        written = b'"%d"' % request_id
    elif name == "id_as_float":
        written += b".0"
    if name == "id_last":
        return b'{"result":{"content":[{"id":1,}]},"jsonrpc":"2.0","id":%b}' % written
    whole = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (written, result(name))
    if name == "byte_order_mark":
        return b"\xef\xbb\xbf" + whole
    return whole[:-20] if name == "half_an_answer" else whole


def tools() -> list[Json]:
    """The list of tools."""
    return [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]


def send(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def take(message: Json) -> None:
    match message["method"]:
        case "initialize":
            info = {"name": "odd", "version": "1"}
            value: Json = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            value["serverInfo"] = info
        case "tools/list":
            value = {"tools": tools()}
        case "ping":
            value = {}
        case "tools/call" if message["params"]["name"] == "leave":
            os._exit(2)
        case "tools/call" if "mute" not in sys.argv:
            send(b'{"level":"info","msg":"a line of a log"}')
            send(answer(message["params"]["name"], message["id"]))
            return
        case _ if "id" in message and not message["method"].startswith("tools/"):
            error = {"code": -32601, "message": "Method not found"}
            send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())
            return
        case _:
            return
    send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": value}).encode())


def main() -> None:
    if "leaves" in sys.argv:
        sys.exit(2)
    if "slow" in sys.argv:
        time.sleep(float(sys.argv[sys.argv.index("slow") + 1]))
    for line in sys.stdin:
        take(json.loads(line))


if __name__ == "__main__":
    main()
