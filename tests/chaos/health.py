"""The health check, in a process that does nothing else beside: `python -m tests.chaos.health
PORT`.

Five times a second on a new connection, until its standard input ends. Then it writes how long each
took in ms, and what went wrong: `{"took_ms": […], "lost": […]}`.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

REQUEST = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"


def ask(port: int) -> str | None:
    """What went wrong, if anything did."""
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(REQUEST)
            while piece := connection.recv(4096):
                answer += piece
    except OSError as error:
        return f"/healthz: {type(error).__name__}"
    status = answer.partition(b"\r\n")[0].decode()
    return None if status.startswith("HTTP/1.1 200") else f"/healthz: {status}"


def main(port: int) -> None:
    took_ms: list[float] = []
    lost: list[str] = []
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        begun = time.perf_counter()
        problem = ask(port)
        took_ms.append((time.perf_counter() - begun) * 1000)
        if problem is not None:
            lost.append(problem)
    json.dump({"took_ms": took_ms, "lost": lost}, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
