"""Calls of every operation of a document against a server that checks requests by that same document.

    npx @stoplight/prism-cli mock -p 4010 api.github.com.json
    .venv/bin/python -m bench.openapi_calls api.github.com.json http://127.0.0.1:4010

The server is one that nobody here wrote; with each tool's own schema this makes arguments (all that are required, and
some that are not), and counts the requests that the server takes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from roundgate import config
from roundgate.backends import (
    Access,
    Index,
    OpenApiBackendConfig,
    Redactor,
    Service,
    compiled,
    request,
)
from roundgate.errors import GatewayError
from roundgate.protocol import Schema

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


def example(schema: Any, defs: dict[str, Any], depth: int = 0) -> Any:
    """A value that a schema allows, as far as one can be made without search."""
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


def merged(one: dict[str, Any], other: Any, defs: dict[str, Any]) -> dict[str, Any]:
    while isinstance(other, dict) and "$ref" in other:
        other = {
            **defs[other["$ref"].removeprefix("#/$defs/")],
            **{k: v for k, v in other.items() if k != "$ref"},
        }
    if not isinstance(other, dict):
        return one
    properties = {**one.get("properties", {}), **other.get("properties", {})}
    required = [*one.get("required", ()), *other.get("required", ())]
    return {
        **one,
        **other,
        **({"properties": properties} if properties else {}),
        "required": required,
    }


def of_type(schema: dict[str, Any], defs: dict[str, Any], depth: int) -> Any:
    kind = schema.get("type")
    kind = next((one for one in kind if one != "null"), "null") if isinstance(kind, list) else kind
    if kind is None:
        kind = "object" if "properties" in schema or schema.get("required") else "string"
    if kind == "object":
        members = schema.get("properties", {})
        wanted = [*schema.get("required", ()), *([] if depth else list(members)[:2])]
        found = {
            name: example(members.get(name), defs, depth + 1) for name in dict.fromkeys(wanted)
        }
        extra = schema.get("additionalProperties")
        missing = schema.get("minProperties", 0) - len(found)
        return found | {f"k{n}": example(extra, defs, depth + 1) for n in range(missing)}
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
    text = text if isinstance(text, str) else str(text)
    return text.ljust(schema.get("minLength", 0), "x")


def main() -> int:
    document, url = Path(sys.argv[1]).resolve(), sys.argv[2]
    return asyncio.run(called(*index_of(document, url), url))


def index_of(document: Path, url: str) -> tuple[Index, OpenApiBackendConfig]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "gateway.json").write_text(
            json.dumps(
                {
                    "backends": [
                        {"kind": "openapi", "name": "a", "document": str(document), "base_url": url}
                    ]
                }
            )
        )
        file = config.load(Path(folder) / "gateway.json")
        backend = file.config.backends[0]
        assert isinstance(backend, OpenApiBackendConfig)
        return compiled(backend, file.origin.at("backends", 0), fetches=False), backend


async def called(index: Index, backend: OpenApiBackendConfig, url: str) -> int:
    service = Service(backend, url, Access(), Redactor(frozenset))
    told: Counter[str] = Counter()
    for row in index.rows:
        schema = dict(index.definition(row, {})["inputSchema"])
        arguments = example(schema, schema.get("$defs", {}))
        if problems := Schema.compile(schema).problems(arguments, "arguments"):
            told["no arguments could be made"] += 1
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
            told["failed"] += 1
            print(row.name, error, file=sys.stderr)
            continue
        is_refused = answer.status in REFUSED and b"stoplight.io/prism/errors" in answer.body
        told["refused" if is_refused else "taken"] += 1
        if is_refused:
            print(row.name, answer.status, answer.body[:400].decode(), file=sys.stderr)
    await service.aclose()
    print(
        dict(told), f"{told['taken'] / len(index.rows):.1%} of {len(index.rows)} operations taken"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
