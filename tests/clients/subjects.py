"""Which clients are driven, in which versions, and by which driver.

A driver is a program of its own in `drivers/`, run in the environment of its client: it is given
the URL and prints one JSON object, a line for each capability (`capabilities.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache/clients"
DRIVERS: Final = Path(__file__).resolve().parent / "drivers"


@dataclass(frozen=True, slots=True)
class Subject:
    """A client in one version. `requirements` are of pip, or of npm if the driver is a JavaScript module."""

    name: str
    """Of its environment and on the command line."""
    client: str
    version: str
    driver: str
    requirements: tuple[str, ...]
    is_of_npm: bool = False

    @property
    def folder(self) -> Path:
        return CACHE / self.name

    @property
    def driver_path(self) -> Path:
        return DRIVERS / self.driver


def _pip(
    name: str, client: str, version: str, driver: str, *more: str, package: str = ""
) -> Subject:
    wanted = (f"{package or client}=={version}", *more)
    return Subject(name, client, version, driver, wanted)


def _npm(name: str, package: str, version: str, driver: str, *more: str) -> Subject:
    return Subject(name, package, version, driver, (f"{package}@{version}", *more), is_of_npm=True)


_OLD_PYDANTIC = "pydantic<2.12"  # mcp up to 1.22 cannot be imported with a newer one

SUBJECTS: Final = (
    _pip("mcp-1.12", "mcp", "1.12.4", "python_1.py", _OLD_PYDANTIC),
    _pip("mcp-1.20", "mcp", "1.20.0", "python_1.py", _OLD_PYDANTIC),
    _pip("mcp-1.30", "mcp", "1.30.0", "python_1.py"),
    _pip("mcp-2", "mcp", "2.3.0", "python_2.py"),
    _pip("fastmcp-2.14", "fastmcp", "2.14.7", "fastmcp_any.py"),
    _pip("fastmcp-3.4", "fastmcp", "3.4.4", "fastmcp_any.py"),
    _pip("fastmcp-4", "fastmcp", "4.1.2", "fastmcp_any.py"),
    _npm("typescript-1.20", "@modelcontextprotocol/sdk", "1.20.2", "typescript_1.mjs"),
    _npm("typescript-1.32", "@modelcontextprotocol/sdk", "1.32.2", "typescript_1.mjs"),
    _npm("typescript-2", "@modelcontextprotocol/client", "2.4.0", "typescript_2.mjs"),
    _npm("inspector", "@modelcontextprotocol/inspector", "2.12.0", "inspector.mjs"),
    _npm(
        "mcp-remote", "mcp-remote", "0.15.1", "mcp_remote.mjs", "@modelcontextprotocol/sdk@1.32.2"
    ),
    _pip("langchain", "langchain-mcp-adapters", "0.3.2", "langchain_adapters.py"),
    _pip("mcp-use", "mcp-use", "1.7.1", "mcp_use_client.py"),
    _pip("openai-agents", "openai-agents", "0.24.0", "openai_agents.py"),
    _pip(
        "pydantic-ai",
        "pydantic-ai-slim",
        "2.68.0",
        "pydantic_ai_client.py",
        package="pydantic-ai-slim[mcp]",
    ),
    _pip("strands", "strands-agents", "1.62.0", "strands_client.py"),
)

EXTRA: Final = (
    _pip("mcp-1.22", "mcp", "1.22.0", "python_1.py", _OLD_PYDANTIC),
    _pip("mcp-1.23.0", "mcp", "1.23.0", "python_1.py"),
    _pip("mcp-1.23.3", "mcp", "1.23.3", "python_1.py"),
    _npm("typescript-1.22", "@modelcontextprotocol/sdk", "1.22.0", "typescript_1.mjs"),
    _npm("typescript-1.23", "@modelcontextprotocol/sdk", "1.23.0", "typescript_1.mjs"),
    _npm("typescript-1.24", "@modelcontextprotocol/sdk", "1.24.0", "typescript_1.mjs"),
    _npm("typescript-1.25", "@modelcontextprotocol/sdk", "1.25.3", "typescript_1.mjs"),
)
"""Versions between those, which are driven with `--extra`: where the SDKs learned to resume streams and to read events
without a message."""
