"""A server over HTTP that writes JSON loosely, run by `scripts/servers`: half an emoji, null for
members that it lacks, ids as text, an empty cursor, and pings on its streams. Its port is its
argument."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NULLS = dict.fromkeys(("title", "description", "outputSchema", "annotations", "icons", "_meta"))
SCHEMA = {"type": "object", "properties": None, "required": None}
TOOLS = [{"name": "half_an_emoji", "inputSchema": SCHEMA, **NULLS}]
EVENTS = b"""event: ping
data: 12:00

data: still here

data: {"jsonrpc":"2.0","id":"%d","result":{"content":[{"type":"text","text":"caf\\u00e9 \\ud83d","_meta":null}]}}

"""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        match message:
            case {"method": "initialize", "id": request_id}:
                about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
                about["serverInfo"] = {"name": "loose", "version": "1"}
                self.result(request_id, about)
            case {"method": "tools/list", "id": request_id}:
                self.result(request_id, {"tools": TOOLS, "nextCursor": ""})
            case {"method": "tools/call", "id": request_id}:
                self.reply(200, EVENTS % request_id, "text/event-stream")
            case {"method": _, "id": request_id}:
                error = {"code": -32601, "message": "Method not found"}
                body = {"jsonrpc": "2.0", "id": request_id, "error": error}
                self.reply(400, json.dumps(body).encode())
            case _:
                self.reply(202, b"")

    def do_GET(self) -> None:
        self.reply(405, b"")

    def do_DELETE(self) -> None:
        self.reply(200, b"")

    def result(self, request_id: int, value: Any) -> None:
        body = {"jsonrpc": "2.0", "id": str(request_id), "result": value}
        self.reply(200, json.dumps(body).encode())

    def reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
