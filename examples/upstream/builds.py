"""A server with long work as ordinary tools, as many servers have it: one tool starts a build, one
returns its status, one its log, and one cancels it. The server knows nothing of tasks, and asks for
nothing of the gateway. Its builds are in a file, so it can restart at any time.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer

server = MCPServer("builds", log_level="ERROR")
FILE = Path(os.environ.get("BUILDS_FILE", "builds.json"))


def read() -> dict[str, Any]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def write(builds: dict[str, Any]) -> None:
    partial = FILE.with_suffix(".part")
    partial.write_text(json.dumps(builds))
    partial.replace(FILE)


def status_of(build: dict[str, Any]) -> str:
    if build["cancelled"]:
        return "cancelled"
    return "running" if time.time() < build["ends"] else "done"


@server.tool()
def start_build(branch: str, seconds: float = 20) -> dict[str, int]:
    """Build a branch."""
    builds = read()
    number = len(builds) + 1
    builds[str(number)] = {"branch": branch, "ends": time.time() + seconds, "cancelled": False}
    write(builds)
    return {"build": number}


@server.tool()
def build_status(build: int) -> dict[str, str]:
    """Return whether a build is running, done or cancelled."""
    return {"status": status_of(read()[str(build)])}


@server.tool()
def build_log(build: int) -> str:
    """Return the log of a build."""
    return f"built {read()[str(build)]['branch']}"


@server.tool()
def cancel_build(build: int) -> dict[str, str]:
    """Cancel a build."""
    builds = read()
    builds[str(build)]["cancelled"] = True
    write(builds)
    return {"status": status_of(builds[str(build)])}


if __name__ == "__main__":
    server.run()
