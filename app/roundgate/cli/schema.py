"""`roundgate schema`: the JSON Schema of gateway.yaml or of suites, for editors
that complete and check."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from roundgate.config import json_schema

_REFERENCE: Final = {
    "type": "string",
    "pattern": r"\$\{",
    "description": "A reference: ${NAME}, ${file:path}.",
}
_STAY_OUTSIDE: Final[tuple[str, ...]] = ("description", "default", "title")


def run(arguments: argparse.Namespace) -> int:
    """Print the schema."""
    if arguments.suite:
        from roundgate.suites import schema_of_suites

        print(json.dumps(schema_of_suites(), indent=2))
        return 0
    print(of_gateway())
    return 0


def of_gateway() -> str:
    """The schema of gateway.yaml, as JSON."""
    schema = json_schema()
    for model in (schema, *schema["$defs"].values()):
        model["properties"] = {
            name: _or_reference(setting) for name, setting in model["properties"].items()
        }
    return json.dumps(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2
    )


def _or_reference(setting: dict[str, Any]) -> dict[str, Any]:
    """A number, or a string of which not every spelling will do, may be a reference in the file."""
    options = setting.get("anyOf", [setting])
    if not any(_is_strict(option) for option in options):
        return setting
    outside: dict[str, Any] = {key: setting[key] for key in _STAY_OUTSIDE if key in setting}
    inside = [
        {key: value for key, value in option.items() if key not in _STAY_OUTSIDE}
        for option in options
    ]
    return {**outside, "anyOf": [*inside, _REFERENCE]}


def _is_strict(option: dict[str, Any]) -> bool:
    return option.get("type") in ("integer", "number", "boolean") or bool(
        option.keys() & {"pattern", "enum"}
    )
