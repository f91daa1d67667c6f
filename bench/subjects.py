"""The subjects of the benchmark: their virtual environments, and the commands that start them.

Every subject can serve two apps, named after the factories in `bench.apps`: `one_tool` (only `add`)
and `hundred_tools` (the catalogue). The gateway also has `tasks` and `proxy`, as does `fastapi`
`proxy` and `jwt`. Subjects in Python run under uvicorn in one process, with uvloop and httptools, with or
without a log line for each request. The TypeScript SDK's server runs on Node.js, also in one
process; it serves only `one_tool`, and writes no log lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parent.parent

_SERVER = ("uvicorn>=0.38", "uvloop>=0.22", "httptools>=0.7")


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment or a folder of npm packages. `scripts/setup` makes the
    environment that has neither requirements nor packages."""

    folder: Path
    requirements: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """The npm packages. If set, the environment is a folder of Node.js packages."""

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


REPOSITORY = Environment(ROOT / ".venv")
SDK = Environment(ROOT / ".cache" / "bench" / "sdk", ("mcp>=2.3,<2.4", *_SERVER))
FASTMCP = Environment(ROOT / ".cache" / "bench" / "fastmcp", ("fastmcp>=4,<5", *_SERVER))
FLOORS = Environment(
    ROOT / ".cache" / "bench" / "floors",
    ("fastapi>=0.128", "httpx>=0.28", "pyjwt[crypto]>=2.10", *_SERVER),
)
TYPESCRIPT = Environment(
    ROOT / ".cache" / "bench" / "typescript",
    packages=(
        "@modelcontextprotocol/server@~2.4.0",
        "@modelcontextprotocol/node@~2.1.2",
        "zod@^4",
    ),
)
NODE = ROOT / ".cache" / "node" / "node"
GENERATOR = REPOSITORY
"""The environment of the load generator, which makes requests with roundgate's client."""


class Kind(StrEnum):
    """The role of a subject in the comparison. A floor does none of the protocol's checks, and
    shows the lower bound."""

    GATEWAY = "gateway"
    PEER = "peer"
    FLOOR = "floor"


@dataclass(frozen=True, slots=True)
class Subject:
    """A row of every table. `versions_of` names the distributions whose versions the results
    record."""

    name: str
    kind: Kind
    environment: Environment
    versions_of: tuple[str, ...]

    def command(self, serves: str, port: int, *, is_logged: bool = False) -> Sequence[str]:
        """Return the command that serves `one_tool` or `hundred_tools` on a port. `ROOT` is on the
        Python path.

        With `is_logged`, the server writes a log line for each request, as it does for users.
        """
        level = "info" if is_logged else "warning"
        address = ["--host", "127.0.0.1", "--port", str(port)]
        if self.kind is Kind.GATEWAY:
            roundgate = str(self.environment.folder / "bin" / "roundgate")
            config = str(ROOT / "bench" / _GATEWAY_CONFIGS[serves])
            return [roundgate, "serve", config, *address, "--log-level", level]
        if self.environment is TYPESCRIPT:
            return [str(NODE), str(TYPESCRIPT.folder / "server.mjs"), str(port)]
        app = ["--factory", f"bench.apps.{self.name}:{serves}"]
        lines = "--access-log" if is_logged else "--no-access-log"
        more = [*_UVICORN_SETTINGS, lines, "--log-level", level]
        return [str(self.environment.python), "-m", "uvicorn", *app, *address, *more]


_UVICORN_SETTINGS = (
    *("--loop", "uvloop", "--http", "httptools", "--ws", "none"),
    *("--workers", "1"),
)
_GATEWAY_CONFIGS = MappingProxyType(
    {
        "one_tool": "gateway.yaml",
        "hundred_tools": "gateway-hundred-tools.yaml",
        "jwt": "gateway-jwt.yaml",
        "limits": "gateway-limits.yaml",
        "proxy": "gateway-proxy.yaml",
        "search": "gateway-search-in-a-view.yaml",
        "tasks": "gateway-tasks.yaml",
    }
)

_SERVER_VERSIONS = ("uvicorn", "uvloop", "httptools")
_BARE_VERSIONS = ("fastapi", "starlette", "pydantic", *_SERVER_VERSIONS)

SUBJECTS = (
    Subject("gateway", Kind.GATEWAY, REPOSITORY, ("roundgate", *_BARE_VERSIONS)),
    Subject("sdk", Kind.PEER, SDK, ("mcp", "starlette", "pydantic", *_SERVER_VERSIONS)),
    Subject(
        "fastmcp",
        Kind.PEER,
        FASTMCP,
        ("fastmcp", "mcp", "starlette", "pydantic", *_SERVER_VERSIONS),
    ),
    Subject(
        "typescript",
        Kind.PEER,
        TYPESCRIPT,
        ("@modelcontextprotocol/server", "@modelcontextprotocol/node", "zod"),
    ),
    Subject("fastapi", Kind.FLOOR, FLOORS, _BARE_VERSIONS),
    Subject("starlette", Kind.FLOOR, FLOORS, ("starlette", *_SERVER_VERSIONS)),
    Subject("asgi", Kind.FLOOR, FLOORS, _SERVER_VERSIONS),
)
