"""The cost of a request without sockets: the bytes of requests are fed into a server's protocol,
and its output is read.

Run by `bench.instructions` (`python -m bench.edge gateway 200`), with or without valgrind. The
subject `gateway-context` is the gateway with a tool that takes a context. Every subject runs in the
gateway's own environment, with the same releases of all packages. Kernel, network and other
processes are excluded; everything else is as in a server. Prints one JSON object: microseconds of
processor time per request (in the fastest batch), writes, garbage collections.
"""

import asyncio
import gc
import json
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.wire import WORKLOADS

BATCH = 200


def main() -> None:
    """Measure a subject over a number of requests, after a warm-up, with or without a log line for
    each request."""
    import uvloop

    subject, count, is_logged = sys.argv[1], int(sys.argv[2]), "logged" in sys.argv[3:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_measure(subject, count, is_logged=is_logged))))


class Client(asyncio.Transport):
    """A transport that stores the bytes that the server writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        raise AssertionError("the server closes the connection")

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Do nothing: this transport never reads."""

    def resume_reading(self) -> None:
        """Do nothing: this transport never reads."""


async def _measure(subject: str, count: int, *, is_logged: bool) -> dict[str, float]:
    protocol, tasks = connection(subject, is_logged=is_logged)
    client = Client()
    protocol.connection_made(client)
    workload = "call_add_with_context" if subject == "gateway-context" else "call_add"
    requests = [exchange.request for exchange in WORKLOADS[workload](64)]
    await batch(protocol, tasks, client, requests, BATCH)
    collected, best_s, writes = _collections(), float("inf"), 0
    for _ in range(max(1, count // BATCH)):
        began = time.process_time()
        writes = await batch(protocol, tasks, client, requests, min(count, BATCH))
        best_s = min(best_s, time.process_time() - began)
    return {
        "us": 1e6 * best_s / min(count, BATCH),
        "writes": writes / min(count, BATCH),
        "collections": (_collections() - collected) / count,
    }


async def batch(
    protocol: Any, tasks: set[Any], client: Client, requests: list[bytes], count: int
) -> int:
    """Send `count` requests one after another; return the number of the server's writes."""
    writes = 0
    for number in range(count):
        client.written.clear()
        protocol.data_received(requests[number % len(requests)])
        await asyncio.gather(*tasks)
        assert client.written[0].startswith(b"HTTP/1.1 200"), client.written
        writes += len(client.written)
    return writes


def _collections() -> int:
    return sum(int(generation["collections"]) for generation in gc.get_stats())


def connection(subject: str, *, is_logged: bool) -> tuple[Any, set[Any]]:
    """Return a connection to a subject's server, and the set of its running requests."""
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    app, options = _gateway(is_logged) if "gateway" in subject else _other(subject, is_logged)
    made: Any = Config(app, ws="none", lifespan="off", **options)
    made.load()
    state = ServerState()
    state.default_headers = [(b"date", b"Mon, 23 Nov 2026 05:00:00 GMT")]
    protocol = made.http_protocol_class(
        config=made, server_state=state, app_state={}, _loop=asyncio.get_running_loop()
    )
    return protocol, state.tasks


def _other(subject: str, is_logged: bool) -> tuple[Any, dict[str, Any]]:
    level = "info" if is_logged else "warning"
    app = import_module(f"bench.apps.{subject}").one_tool()
    return app, {"http": "httptools", "access_log": is_logged, "log_level": level}


def _gateway(is_logged: bool) -> tuple[Any, dict[str, Any]]:
    from roundgate import config
    from roundgate import observability as logs
    from roundgate.http import ConnectionMiddleware
    from roundgate.http.connections import Bounds, Connections
    from roundgate.main import build_app
    from roundgate.settings import process as settings
    from roundgate.tokens import keys

    logs.configure("info" if is_logged else "warning")
    store = f"sqlite:///{tempfile.mkdtemp()}/store.sqlite3"
    file = config.load(Path("bench/gateway.yaml"))
    app = build_app(file, settings.Settings(state_keys=keys.new_key(), store=store))
    options = {
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
    }
    return ConnectionMiddleware(app, app.state.endpoints), {
        "http": Connections(Bounds.from_config(file.config.http)),
        **options,
    }


if __name__ == "__main__":
    main()
