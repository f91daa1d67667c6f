"""`scripts/tools openapi`: tools compiled from real OpenAPI documents.

    scripts/tools openapi                               all documents in packages
    scripts/tools openapi github stripe                 some of them
    scripts/tools openapi labels=path/to/openapi.yaml   a file or folder on this machine
    scripts/tools openapi --fetch github stripe         only fetch the documents that tests need

Times are processor time, so a busy machine gives the same results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.openapi_documents import KNOWN, entry, fetched
from roundgate import config
from roundgate.backends.openapi.compiling import compiled
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.openapi.index import write
from roundgate.config import ConfigFile
from roundgate.runtime import loading

_HEAD: Final = (
    "| document | operations | tools | compile | index | a start reads it in | tools/list |"
)


@dataclass(frozen=True, slots=True)
class Made:
    """The result for a document. Seconds and `start_ms` (in milliseconds) are processor time."""

    tools: int
    left_out: int
    problems: tuple[str, ...]
    compile_s: float
    index_bytes: int
    start_ms: float
    listed_bytes: int


def main() -> int:
    arguments = _arguments()
    if arguments.fetch:
        return _fetch(arguments.documents or list(KNOWN))
    print(_HEAD, "|---" * 7 + "|", sep="\n")
    for argument in arguments.documents or list(KNOWN):
        name, _, document = argument.partition("=")
        try:
            path = Path(document).resolve() if document else fetched(name)
        except (OSError, subprocess.CalledProcessError) as error:
            print(
                f"{name} is skipped, because its package cannot be fetched: {error}",
                file=sys.stderr,
            )
            continue
        made = made_of(name, path)
        print(_row(name, made), flush=True)
        print(*made.problems, sep="\n", end="\n" if made.problems else "", file=sys.stderr)
    return 0


def _fetch(names: list[str]) -> int:
    try:
        for name in names:
            print(fetched(name))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"the documents cannot be fetched: {error}", file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("openapi-table", description="Measure OpenAPI documents.")
    parser.add_argument("documents", nargs="*", help=f"NAME=PATH, or names of: {', '.join(KNOWN)}")
    parser.add_argument("--fetch", action="store_true", help="only fetch the documents")
    return parser.parse_args()


def made_of(name: str, path: Path) -> Made:
    """Compile a document, start with its index, and return the result."""
    with tempfile.TemporaryDirectory() as folder:
        file = gateway(Path(folder), entry(name, path))
        backend = file.backends[0]
        assert isinstance(backend, OpenApiBackendConfig)
        started = time.process_time()
        index = compiled(backend, file.origin.at("backends", 0), fetches=False)
        compile_s = time.process_time() - started
        data = write(index)
        (Path(folder) / "api.index").write_bytes(data)
        began_ms = min(start_ms(file) for _ in range(3))
        listed = sum(len(item) for _, item in loading.load(file).catalog.tool_pages.items)
    problems = tuple(map(str, index.problems))
    return Made(len(index.rows), index.left_out, problems, compile_s, len(data), began_ms, listed)


def gateway(folder: Path, backend: dict[str, Any]) -> ConfigFile:
    """Write a configuration with a single back end into a folder, and load it."""
    (folder / "gateway.json").write_text(json.dumps({"backends": [backend]}))
    return config.load(folder / "gateway.json")


def start_ms(file: ConfigFile) -> float:
    """Return the processor time of loading a catalog, in milliseconds."""
    started = time.process_time()
    loading.load(file)
    return (time.process_time() - started) * 1000


def _row(name: str, made: Made) -> str:
    counts = f"{made.tools + made.left_out:,} | {made.tools:,} | {made.compile_s:.1f} s"
    sizes = f"{_mb(made.index_bytes)} | {made.start_ms:.0f} ms | {_mb(made.listed_bytes)}"
    return f"| {name} | {counts} | {sizes} |"


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
