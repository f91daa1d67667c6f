"""The JSON Schema of a suite, for editors that complete and check while one types."""

from __future__ import annotations

from typing import Any

from roundgate.suites.models import Suite


def schema_of_suites() -> dict[str, Any]:
    """The schema, in draft 2020-12."""
    made = Suite.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}
