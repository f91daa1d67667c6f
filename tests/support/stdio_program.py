"""A server on its standard streams, made to misbehave by its arguments:

modern       speak 2026-07-28 (otherwise 2025-11-25)
both         speak both; in 2026-07-28, refuse to ask as SDKs of both revisions do
silent       do not answer requests that an older server does not know
leaves       end at such a request
noisy        print a greeting, and lines that are no messages
babbles      print lines that are no messages without end
stubborn     ignore the end of the input, and SIGTERM
child        start a process that outlives this one, and write its id to the file named next
apart        start that process in a group of its own
deaf         read nothing after the list of tools
once FILE    end at the first call, and note it in the file; answer later ones
remembers    have the tools login, whoami and gone, one more after a login, and one with the number of the list
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HOW = sys.argv[1:]
TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}}
    for name in ("echo", "env", "crash", "slow", "count", "complain", "pid", "ask", "flood")
]
ACCOUNT = [
    {"name": name, "inputSchema": {"type": "object"}} for name in ("login", "whoami", "gone")
]
cancelled: dict[Any, threading.Event] = {}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(value: str) -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": value}]}


def answer(request: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a request, or `None` for none."""
    method, params = request["method"], request.get("params", {})
    if method == "server/discover" and {"modern", "both"} & {*HOW}:
        return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    if method == "initialize" and "modern" not in HOW:
        sessions.append(request["id"])
        version = params["protocolVersion"]
        info = {"name": "program", "version": "1"}
        changes = {"tools": {"listChanged": "remembers" in HOW}}
        return {"protocolVersion": version, "capabilities": changes, "serverInfo": info}
    if method == "tools/list":
        lists.append(request["id"])
        numbered = {**ACCOUNT[0], "name": f"list-{len(lists)}"}
        return {"tools": [*TOOLS, *ACCOUNT, numbered] if "remembers" in HOW else TOOLS}
    if method != "tools/call":
        raise LookupError(method)
    return call(request, params["name"], params.get("arguments", {}), params.get("_meta", {}))


def call(
    request: dict[str, Any], name: str, arguments: dict[str, Any], meta: dict[str, Any]
) -> dict[str, Any] | None:
    if "once" in HOW:
        note = Path(HOW[HOW.index("once") + 1])
        note.write_text(note.read_text() + "x" if note.exists() else "x")
        if note.read_text() == "x":
            os._exit(3)
    match name:
        case "echo":
            return text(json.dumps(arguments))
        case "env":
            return text(json.dumps(dict(os.environ)))
        case "pid":
            return text(str(os.getpid()))
        case "whoami":
            return text(account[-1])
        case "login":
            account.append(arguments["user"])
            ACCOUNT.append({"name": "mailbox", "inputSchema": {"type": "object"}})
            send({"method": "notifications/tools/list_changed"})
            return text(account[-1])
        case "gone":
            raise LookupError(name)
        case "crash":
            os._exit(7)
        case "flood":
            return text("x" * 5_000)
        case "complain":
            print(arguments.get("line", "something is wrong"), file=sys.stderr, flush=True)
            return text("done")
        case "count":
            for step in (1, 2):
                params = {"progressToken": meta.get("progressToken"), "progress": step, "total": 2}
                send({"method": "notifications/progress", "params": params})
            return text("counted")
        case "ask" if "both" in HOW and not sessions:
            return {**text("Server-to-client requests are not available"), "isError": True}
        case "ask":
            form = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
            send({"id": "q1", "method": "elicitation/create", "params": form})
            return None
        case "slow":
            stopped = cancelled[request["id"]] = threading.Event()
            Path(arguments["file"]).write_text("begun")
            stopped.wait(60)
            Path(arguments["file"]).write_text("cancelled")
    return None


def take(message: dict[str, Any]) -> None:
    if message.get("method") == "notifications/cancelled":
        cancelled[message["params"]["requestId"]].set()
        return
    if message.get("id") == "q1":  # the answer to `ask`
        reply = message.get("result", message.get("error"))
        told = {**text(json.dumps(reply)), "isError": "error" in message}
        send({"id": asking[-1], "result": told})
        return
    if "id" not in message:
        return
    if message.get("params", {}).get("name") == "ask":
        asking.append(message["id"])
    try:
        result = answer(message)
    except LookupError:
        if "leaves" in HOW:
            os._exit(4)
        if "silent" not in HOW:
            send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        return
    if result is not None:
        send({"id": message["id"], "result": result})


asking: list[Any] = []
sessions: list[Any] = []
account = ["nobody"]
lists: list[Any] = []


def main() -> None:
    if "stubborn" in HOW:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in HOW:
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(sleep, start_new_session="apart" in HOW)
        Path(HOW[HOW.index("child") + 1]).write_text(str(child.pid))
    if "noisy" in HOW:
        print("Welcome to the server!\n{not json\n[1]", flush=True)
    while "babbles" in HOW:
        print("nonsense", flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "deaf" in HOW and message.get("method") == "tools/call":
            time.sleep(600)
        threading.Thread(target=take, args=[message], daemon=True).start()
    while "stubborn" in HOW:
        time.sleep(1)


if __name__ == "__main__":
    main()
