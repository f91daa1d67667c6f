"""`scripts/tools openapi --prism`: calls of every operation of a document. A mock of the document
checks the requests.

    scripts/tools openapi --prism                    the documents of GitHub and Stripe
    scripts/tools openapi --prism NAME | NAME=PATH   another document

The mock is the independent `@stoplight/prism-cli`. This program makes arguments from each tool's
own schema (all required arguments, and some optional ones), and counts the requests that the mock
accepts. The mock gets the document without its answers: the requests are complete, and the mock
starts in seconds.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.openapi import gateway
from bench.openapi_documents import CACHE, ROOT, fetched, parsed, without_answers
from roundgate.backends.http.credentials import Access
from roundgate.backends.http.secrets import Redactor
from roundgate.backends.http.service import Service
from roundgate.backends.openapi.compiling import compiled
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.backends.openapi.index import Index
from roundgate.backends.openapi.requests import request
from roundgate.errors import GatewayError
from roundgate.protocol import Schema

PRISM: Final = "@stoplight/prism-cli@5.16.0"
STARTS_WITHIN_S: Final = 600
REFUSED: Final = (400, 404, 405, 415, 422)
TEXTS: Final = {
    "date-time": "2026-01-02T03:04:05Z",
    "date": "2026-01-02",
    "uri": "https://example.com/a",
    "email": "a@example.com",
    "uuid": "7f1b1b1e-8f6e-4b0a-9c6e-0a1b2c3d4e5f",
    "ipv4": "192.0.2.1",
    "hostname": "example.com",
}


PATTERNED: Final = (
    "ssh-ed25519 AAAA",
    "1.2.3",
    "eHh4",
    f"sha256:{64 * '0'}",
    40 * "0",
    "#0a0a0a",
    "1",
    "a-b",
    "A",
    "a_1",
)
"""Texts that match patterns of the documents, for patterns that neither an example nor "x"
matches."""


def example(schema: Any, defs: dict[str, Any], depth: int = 0) -> Any:
    """Return a value that a schema probably allows, derived without a search."""
    if not isinstance(schema, dict) or not schema:
        return "x"
    if "$ref" in schema:
        target = defs[schema["$ref"].removeprefix("#/$defs/")]
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return example(
            {**target, **beside} if isinstance(target, dict) else target, defs, depth + 1
        )
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if "default" in schema and schema["default"] is not None:
        return schema["default"]
    for word in ("oneOf", "anyOf"):
        if word in schema:
            rest = {key: value for key, value in schema.items() if key != word}
            return example(merged(rest, schema[word][0], defs), defs, depth + 1)
    if "allOf" in schema:
        whole: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            whole = merged(whole, part, defs)
        return example(whole, defs, depth + 1)
    return of_type(schema, defs, depth)


def merged(schema: dict[str, Any], other: Any, defs: dict[str, Any]) -> dict[str, Any]:
    while isinstance(other, dict) and "$ref" in other:
        other = {
            **defs[other["$ref"].removeprefix("#/$defs/")],
            **{k: v for k, v in other.items() if k != "$ref"},
        }
    if not isinstance(other, dict):
        return schema
    properties = {**schema.get("properties", {}), **other.get("properties", {})}
    required = [*schema.get("required", ()), *other.get("required", ())]
    return {
        **schema,
        **other,
        **({"properties": properties} if properties else {}),
        "required": required,
    }


def of_type(schema: dict[str, Any], defs: dict[str, Any], depth: int) -> Any:
    kind = schema.get("type")
    kind = (
        next((candidate for candidate in kind if candidate != "null"), "null")
        if isinstance(kind, list)
        else kind
    )
    if kind is None:
        kind = "object" if "properties" in schema or schema.get("required") else "string"
    if kind == "object":
        members = schema.get("properties", {})
        names = [*schema.get("required", ()), *([] if depth else list(members)[:2])]
        values = {
            name: example(members.get(name), defs, depth + 1) for name in dict.fromkeys(names)
        }
        extra = schema.get("additionalProperties")
        missing = schema.get("minProperties", 0) - len(values)
        return values | {f"k{n}": example(extra, defs, depth + 1) for n in range(missing)}
    if kind == "array":
        return [
            example(schema.get("items"), defs, depth + 1)
            for _ in range(max(1, schema.get("minItems", 1)))
        ]
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        return min(max(low, 1), schema.get("maximum", 10**6))
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    text = (
        schema["examples"][0]
        if schema.get("examples")
        else TEXTS.get(schema.get("format", ""), "x")
    )
    text = (text if isinstance(text, str) else str(text)).ljust(schema.get("minLength", 0), "x")
    pattern = schema.get("pattern", "")
    return next(
        (candidate for candidate in (text, *PATTERNED) if re.search(pattern, candidate)), text
    )


def main() -> int:
    for argument in sys.argv[1:] or ["github", "stripe"]:
        name, _, document = argument.partition("=")
        path = Path(document).resolve() if document else fetched(name)
        with tempfile.TemporaryDirectory() as folder:
            slim = Path(folder) / "api.json"
            described = without_answers(parsed(path))
            slim.write_text(json.dumps(described))
            with mock(slim) as url:
                outcomes, all_of_them = asyncio.run(called(*index_of(slim, url), url))
        counts = ", ".join(f"{count} {what}" for what, count in outcomes.most_common())
        print(f"{name}: {outcomes['taken'] / all_of_them:.1%} of {all_of_them:,} taken ({counts})")
    return 0


@contextmanager
def mock(document: Path) -> Iterator[str]:
    """Run a mock of a document until the block ends; yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = [
        str(ROOT / "scripts/tools"),
        "node",
        str(_prism()),
        "mock",
        "-p",
        str(port),
        str(document),
    ]
    with subprocess.Popen(started, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _await(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _prism() -> Path:
    folder = CACHE / "prism"
    program = folder / "node_modules/@stoplight/prism-cli/dist/index.js"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        installing = ["--npm", "install", "--silent", "--no-audit", "--no-fund", PRISM]
        subprocess.run([str(ROOT / "scripts/tools"), "node", *installing], cwd=folder, check=True)
    return program


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    while time.monotonic() - began < STARTS_WITHIN_S and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise SystemExit("the mock did not start")


def index_of(document: Path, url: str) -> tuple[Index, OpenApiBackendConfig]:
    with tempfile.TemporaryDirectory() as folder:
        entry = {"kind": "openapi", "name": "a", "document": str(document), "base_url": url}
        file = gateway(Path(folder), {**entry, "origins": ["https://*.com", "http://*.com"]})
        backend = file.backends[0]
        assert isinstance(backend, OpenApiBackendConfig)
        return compiled(backend, file.origin.at("backends", 0), fetches=False), backend


async def called(index: Index, backend: OpenApiBackendConfig, url: str) -> tuple[Counter[str], int]:
    """Call each operation; return the counts by outcome, and the number of operations."""
    service = Service(backend, url, Access(), Redactor(frozenset))
    outcomes: Counter[str] = Counter()
    for row in index.rows:
        schema = dict(index.definition(row, {})["inputSchema"])
        arguments = example(schema, schema.get("$defs", {}))
        if problems := Schema.compile(schema).problems(arguments, "arguments"):
            outcomes["no arguments could be made"] += 1
            print(
                row.name,
                "cannot be called with",
                json.dumps(arguments)[:300],
                problems[:1],
                file=sys.stderr,
            )
            continue
        try:
            answer = await service.send(request(index.plan(row), arguments), 20)
        except GatewayError as error:
            outcomes["failed"] += 1
            print(row.name, error, file=sys.stderr)
            continue
        is_refused = answer.status in REFUSED and b"stoplight.io/prism/errors" in answer.body
        outcomes["refused" if is_refused else "taken"] += 1
        if is_refused:
            print(row.name, answer.status, answer.body[:400].decode(), file=sys.stderr)
    await service.aclose()
    return outcomes, len(index.rows)


if __name__ == "__main__":
    sys.exit(main())
