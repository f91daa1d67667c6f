"""Servers that other people wrote, each in its revision, and how to start them."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roundgate.client import VERSIONS, Client
from roundgate.errors import ConnectionLost

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "servers"
NODE = str(ROOT / ".cache" / "node" / "node")
NPM = CACHE / "npm" / "node_modules" / "@modelcontextprotocol"
HERE = Path(__file__).parent
START_S = 60
CALL_S = 60


@dataclass(frozen=True)
class Check:
    """One column: a tool, what it is given, what its answer has in it."""

    column: str
    tool: str
    expected: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    varies: bool = False
    """Whether two calls have different results, so that only `expected` is compared."""


@dataclass(frozen=True)
class Program:
    """A server on its standard streams."""

    name: str
    command: Sequence[str]
    checks: Sequence[Check]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_installed(self) -> bool:
        """Whether the program exists; one of them needs another Python."""
        return Path(self.command[0]).exists()


@dataclass(frozen=True)
class Subject:
    """A server in one revision; `{port}` in its command and environment is where it listens, at
    `path`. Each request has `headers`.

    `is_named` says whether the client is told the revision; otherwise it finds it, as by default.
    """

    name: str
    revision: str
    command: Sequence[str]
    checks: Sequence[Check]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_named: bool = True
    path: str = "/mcp"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def versions(self) -> Sequence[str]:
        return [self.revision] if self.is_named else VERSIONS


PYTHON = [str(CACHE / "venv" / "bin" / "python"), str(HERE / "served_by_fastmcp.py"), "{port}"]
OFFICIAL = [sys.executable, str(ROOT / "tests/roundgate/client/served_by_mcp.py"), "{port}"]
EVERYTHING = [NODE, str(NPM / "server-everything" / "dist" / "index.js"), "streamableHttp"]
EXAMPLE = [NODE, str(NPM / "sdk" / "dist" / "esm" / "examples" / "server" / "simpleStreamableHttp.js")]  # fmt: skip
ADA = {"name": "Ada"}
ADD = Check("call", "add", "3", {"a": 1, "b": 2})
GREET = Check("question", "greet", "Hello, Ada", answers=ADA)
SIGN = Check("question", "sign", "signed, Ada", answers=ADA)
LATER = Check("older question", "greet", "Hello, Ada", answers=ADA)
"""A question that a client of 2026-07-28 can answer only through a gateway."""
STEPS = Check("stream", "steps", "done")
DIG = Check("task", "dig", "3 m", {"depth": 3})
USER = {"name": "Ada", "email": "ada@example.org", "age": 36}
MODES = ("stateful", "stateless", "json")


def by_default(environment: str, name: str, revision: str, mode: str) -> Subject:
    """Return a server of an older SDK, whose revision the client has to find by itself."""
    command = [str(CACHE / environment / "bin" / "python"), str(HERE / "served_by_sdk_1.py")]
    # Only a stateful server with streams can ask on the stream of a call.
    checks = {"stateful": [ADD, STEPS, GREET], "stateless": [ADD, STEPS], "json": [ADD]}[mode]
    return Subject(f"{name}, {mode}", revision, [*command, "{port}", mode], checks, is_named=False)


def bridged(server: str, *checks: Check, stateless: bool = False) -> Subject:
    """Return a server that speaks over its standard input and output, behind mcp-proxy."""
    programs = CACHE / "mcp-proxy" / "bin"
    mode = ["--stateless"] if stateless else []
    command = [str(programs / "mcp-proxy"), "--port", "{port}", *mode, str(programs / server)]
    said = f"mcp-proxy 0.13, {server}" + (", stateless" if stateless else "")
    return Subject(said, "2025-11-25", command, checks, is_named=False)


VIENNA = {"timezone": "Europe/Vienna"}
NOW = Check("call", "get_current_time", "Europe/Vienna", VIENNA, varies=True)
LOG = Check("call", "git_log", "Commit", {"repo_path": str(ROOT), "max_count": 1})

EMOJI = Check("call", "half_an_emoji", "caf", varies=True)

SUBJECTS = [
    Subject(
        "FastMCP 4.1.2",
        "2026-07-28",
        PYTHON,
        [ADD, STEPS, SIGN, LATER, DIG, Check("task that asks", "paint", "painted, Ada", answers=ADA)],
    ),
    Subject("FastMCP 4.1.2", "2025-11-25", PYTHON, [ADD, STEPS, GREET]),
    Subject("Python SDK 2.3", "2026-07-28", OFFICIAL, [ADD, STEPS, SIGN, LATER]),
    Subject("Python SDK 2.3", "2025-11-25", OFFICIAL, [ADD, STEPS, GREET]),
    Subject("Python SDK 2.3", "2025-06-18", OFFICIAL, [ADD, STEPS, GREET]),
    Subject(
        "TypeScript SDK 1.32, its example",
        "2025-11-25",
        EXAMPLE,
        [
            Check("call", "greet", "Hello, Ada!", ADA),
            Check("stream", "multi-greet", "Good morning, Ada!", ADA),
            Check("question", "collect-user-info", "ada@example.org", {"infoType": "contact"}, USER),
            Check("task", "delay", "Completed 500ms delay", {"duration": 500}),
            Check("task that asks", "collect-user-info-task", "Ada", {"infoType": "contact"}, USER),
        ],
        {"MCP_PORT": "{port}"},
    ),
    Subject(
        "server-everything 2026.8.31",
        "2025-11-25",
        EVERYTHING,
        [
            Check("call", "get-sum", "3", {"a": 1, "b": 2}),
            Check("stream", "trigger-long-running-operation", "completed", {"duration": 1, "steps": 2}),
            Check("question", "trigger-elicitation-request", "Ada", answers=ADA),
            Check("task", "simulate-research-query", "# Research Report: tea", {"topic": "tea"}),
            Check(
                "task that asks",
                "simulate-research-query",
                "tea (technical)",
                {"topic": "tea", "ambiguous": True},
                {"interpretation": "technical"},
            ),
        ],
        {"PORT": "{port}"},
    ),
    *[by_default("sdk-1.12", "Python SDK 1.12", "2025-06-18", mode) for mode in MODES],
    *[by_default("sdk-1.30", "Python SDK 1.30", "2025-11-25", mode) for mode in MODES],
    *[by_default("fastmcp-3", "FastMCP 3.4", "2025-11-25", mode) for mode in MODES],
    bridged("mcp-server-git", LOG),
    bridged("mcp-server-time", NOW),
    bridged("mcp-server-time", NOW, stateless=True),
    Subject(
        "datasette-mcp 0.3",
        "2026-07-28",
        [str(CACHE / "datasette" / "bin" / "datasette"), "serve", "--memory", "--port", "{port}"],
        [Check("call", "execute_sql", "42", {"database": "_memory", "sql": "select 42 as answer"})],
        path="/-/mcp",
        is_named=False,
    ),
    Subject(
        "jupyter-mcp-server 2.2.4",
        "2024-11-05",
        [
            *[str(CACHE / "jupyter" / "bin" / "jupyter-server"), "--port", "{port}", "--allow-root"],
            *["--no-browser", "--IdentityProvider.token=secret", f"--ServerApp.root_dir={HERE}"],
        ],
        [Check("call", "list_files", "subjects.py")],
        headers={"Authorization": "token secret"},
        is_named=False,
    ),
    Subject(
        "half an emoji, nulls and pings",
        "2025-11-25",
        [sys.executable, str(HERE / "served_loosely.py"), "{port}"],
        [EMOJI, replace(EMOJI, column="stream")],
        is_named=False,
    ),
]  # fmt: skip


def script(package: str, *arguments: str) -> list[str]:
    """Return the command of an npm package with a script `dist/index.js`."""
    return [NODE, str(NPM / package / "dist" / "index.js"), *arguments]


def installed(environment: str, program: str, *arguments: str) -> list[str]:
    """Return the command of a program in one of the environments of `scripts/servers`."""
    return [str(CACHE / environment / "bin" / program), *arguments]


SCRATCH = str(CACHE / "scratch")
"""A folder for the files of the servers."""
THOUGHT = {"thought": "a", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
SELECT = {"query": "select 42 as answer"}
CHROMIUM = ["--headless", "--isolated", "--no-sandbox", "--executable-path", "/usr/bin/chromium"]
PROGRAMS = [
    Program(
        "half an emoji, and lines of a log",
        [sys.executable, str(ROOT / "tests" / "support" / "odd_answers.py")],
        [EMOJI],
    ),
    Program("mcp-server-git", installed("mcp-proxy", "mcp-server-git"), [LOG]),
    Program("mcp-server-time", installed("mcp-proxy", "mcp-server-time"), [NOW]),
    Program(
        "server-everything 2026.8.31",
        script("server-everything", "stdio"),
        [Check("call", "get-sum", "3", {"a": 1, "b": 2})],
    ),
    Program(
        "server-filesystem",
        script("server-filesystem", str(ROOT / "docs")),
        [Check("call", "read_text_file", "MCP servers", {"path": str(ROOT / "docs" / "mcp.md")})],
    ),
    Program("server-memory", script("server-memory"), [Check("call", "read_graph", "entities")]),
    Program(
        "server-sequential-thinking",
        script("server-sequential-thinking"),
        [Check("call", "sequentialthinking", "thoughtHistoryLength", THOUGHT)],
    ),
    Program(
        "server-basic-vanillajs",
        script("server-basic-vanillajs", "--stdio"),
        [Check("call", "get-time", "T", varies=True)],
    ),
    Program(
        "server-budget-allocator",
        script("server-budget-allocator", "--stdio"),
        [Check("call", "get-budget-data", "Budget")],
    ),
    Program(
        "server-cohort-heatmap",
        script("server-cohort-heatmap", "--stdio"),
        [Check("call", "get-cohort-data", "cohort", varies=True)],
    ),
    Program("server-pdf", script("server-pdf", "--stdio"), [Check("call", "list_pdfs", "")]),
    Program(
        "@playwright/mcp",
        [NODE, str(NPM.parent / "@playwright" / "mcp" / "cli.js"), *CHROMIUM],
        [Check("call", "browser_tabs", "about:blank", {"action": "list"})],
    ),
    Program(
        "mcp-hello-world",
        [NODE, str(NPM.parent / "mcp-hello-world" / "build" / "stdio.js")],
        [Check("call", "echo", "hello", {"message": "hello"})],
    ),
    Program(
        "mcp-server-fetch",
        installed("fetch", "mcp-server-fetch", "--ignore-robots-txt"),
        [Check("call", "fetch", "", {"url": "http://127.0.0.1:9/"})],
    ),
    Program(
        "mcp-server-sqlite",
        installed("sqlite", "mcp-server-sqlite", "--db-path", f"{SCRATCH}/sqlite.db"),
        [Check("call", "read_query", "42", SELECT)],
    ),
    Program(
        "mcp-server-duckdb",
        installed("duckdb", "mcp-server-duckdb", "--db-path", f"{SCRATCH}/duck.db"),
        [Check("call", "query", "42", SELECT)],
    ),
    Program(
        "mcp-alchemy",
        installed("alchemy", "mcp-alchemy"),
        [Check("call", "execute_query", "42", SELECT)],
        {"DB_URL": f"sqlite:///{SCRATCH}/alchemy.db"},
    ),
    Program(
        "excel-mcp-server",
        installed("excel", "excel-mcp-server", "stdio"),
        [Check("call", "create_workbook", "", {"path": f"{SCRATCH}/a.xlsx", "overwrite": True})],
    ),
    Program(
        "basic-memory",
        installed("basic-memory", "basic-memory", "mcp"),
        [Check("call", "list_memory_projects", "main")],
        {"HOME": SCRATCH, "BASIC_MEMORY_HOME": f"{SCRATCH}/notes"},
    ),
]
"""Servers on their standard streams, for `scripts/servers --through`."""


@asynccontextmanager
async def served(subject: Subject) -> AsyncGenerator[str, None]:
    """The address of a server that runs."""
    port = str(free_port())
    filled = {name: one.replace("{port}", port) for name, one in subject.environment.items()}
    log = CACHE / f"{subject.name}-{subject.revision}.log".replace(" ", "-").replace(",", "")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *[one.replace("{port}", port) for one in subject.command],
            env={**os.environ, **filled},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
        try:
            url = f"http://127.0.0.1:{port}{subject.path}"
            async with asyncio.timeout(START_S):
                while not await answers_at(url, subject.headers):
                    if process.returncode is not None:
                        raise SystemExit(f"{subject.name} did not start: see {log}")
                    await asyncio.sleep(0.2)
            yield url
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


async def answers_at(url: str, headers: Mapping[str, str]) -> bool:
    async with Client(url, headers=headers) as client:
        try:
            await client.connect()
        except ConnectionLost:
            return False
        return True
