"""OpenAPI documents behind a gateway: small ones, written where the test is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from roundgate import config
from roundgate.backends.http.plan import RequestPlan
from roundgate.backends.openapi.compiling import compile_index
from roundgate.backends.openapi.index import Index, Row
from roundgate.config import ConfigFile
from roundgate.settings.process import Settings
from tests.support.asgi import Client, built, client

LOOK_AND_PURGE = """
openapi: 3.1.0
info: {title: Shop, version: "1"}
paths:
  /looks:
    get:
      operationId: look
      responses: {"200": {description: ok}}
  /purges:
    post:
      operationId: purge
      responses: {"200": {description: ok}}
"""
"""A document of two operations, as YAML."""
INTERNAL = "      x-internal: true\n"
"""What to append to the document so that `purge` is internal."""
OK = {"200": {"description": "Well.", "content": {"application/json": {}}}}


def document(paths: dict[str, Any], version: str = "3.1.0", **more: Any) -> dict[str, Any]:
    """A document with these paths."""
    about = {
        "info": {"title": "T", "version": "1"},
        "servers": [{"url": "https://api.example.com/v1"}],
    }
    return {"openapi": version, **about, "paths": paths, **more}


def operation(method: str = "get", path: str = "/x", **members: Any) -> dict[str, Any]:
    """`paths` with one operation, which is called `op`."""
    return {path: {method: {"operationId": "op", "responses": OK, **members}}}


def file_of(folder: Path, described: Any, **backend: Any) -> ConfigFile:
    """The configuration of a gateway whose back end has this document, if it is one, or whatever is in the folder."""
    if described is not None:
        (folder / "api.json").write_text(json.dumps(described))
    entry = {"kind": "openapi", "name": "api", "prefix": "", "document": "api.json", **backend}
    (folder / "gateway.json").write_text(json.dumps({"backends": [entry]}))
    return config.load(folder / "gateway.json", {})


def compiled(folder: Path, described: Any, **backend: Any) -> Index:
    """The index of a document."""
    file = file_of(folder, described, **backend)
    return compile_index(file.backends[0], file.origin.at("backends", 0))  # type: ignore[arg-type]


class Compiled:
    """One operation of an index."""

    def __init__(self, index: Index, name: str = "op") -> None:
        self.index = index
        self.row: Row = next(row for row in index.rows if row.name == name)
        self.plan: RequestPlan = index.plan(self.row)
        self.definition: dict[str, Any] = dict(index.definition(self.row, {}))

    @property
    def schema(self) -> dict[str, Any]:
        found: dict[str, Any] = self.definition["inputSchema"]
        return found

    def sent(self, **arguments: Any) -> str:
        """The target of a call: path and query."""
        outgoing = self.plan.request(arguments)
        return f"{outgoing.path}?{outgoing.query}" if outgoing.query else outgoing.path


@asynccontextmanager
async def gateway_of(file: ConfigFile) -> AsyncIterator[Client]:
    """A client of the gateway."""
    app = built(file, Settings())
    async with app.router.lifespan_context(app), client(app) as one:
        yield one
