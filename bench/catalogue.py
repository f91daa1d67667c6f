"""The hundred tools that every subject serves in the `tools/list` measurement: five verbs for
twenty kinds of record in a web shop.

The schemas are like those that people write: described properties, enumerations, bounds, patterns,
one nested object. They contain no `$ref`, which one subject would rewrite, so all subjects serve
the same text.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

THINGS = (
    "order", "invoice", "customer", "product", "shipment", "refund", "coupon", "warehouse", "supplier", "ticket",
    "subscription", "payment", "review", "category", "campaign", "employee", "contract", "report", "webhook", "address",
)  # fmt: skip


SERVERS = 50
TOOLS_OF_A_SERVER = 40
"""The numbers of servers behind a gateway and of the tools of each in `bench.upstreams`."""


@dataclass(frozen=True, slots=True)
class CatalogueTool:
    """A tool as `tools/list` returns it."""

    name: str
    description: str
    input_schema: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the wire form: `{"name": …, "description": …, "inputSchema": {…}}`."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
        }


def hundred_tools() -> list[CatalogueTool]:
    """Return a new copy of the catalogue, in the order in which every subject registers it."""
    return [tool for thing in THINGS for tool in _build_tools(thing)]


def _build_tools(thing: str) -> list[CatalogueTool]:
    named = {
        f"{thing}_id": _text(
            f"Identifier of the {thing}, as printed on documents.", pattern="^[A-Z]{2}[0-9]{8}$"
        )
    }
    fields = {
        "title": _text(f"Short title of the {thing} shown in lists.", minLength=1, maxLength=120),
        "status": _text(
            f"State the {thing} is in.", enum=["draft", "active", "suspended", "archived"]
        ),
        "amount": {"type": "number", "description": "Amount in the shop's currency.", "minimum": 0},
        "labels": {
            "type": "array",
            "description": "Free labels.",
            "items": {"type": "string"},
            "maxItems": 20,
        },
        "contact": _contact(thing),
    }
    paging = {
        "status": fields["status"],
        "query": _text("Words that must occur in the title."),
        "created_after": _text("Only what was created after this instant.", format="date-time"),
        "sort": _text("Field to sort by.", enum=["title", "created", "amount"], default="created"),
        "limit": {
            "type": "integer",
            "description": "How many to return.",
            "minimum": 1,
            "maximum": 100,
            "default": 20,
        },
    }
    reason = {
        "reason": _text("Why, for the audit log."),
        "notify": {"type": "boolean", "description": "Tell the contact."},
    }
    return [
        _tool(f"list_{thing}", f"List the shop's {thing} records, newest first, a page at a time.", paging, ()),
        _tool(f"get_{thing}", f"Look up one {thing} by its identifier.", named, named),
        _tool(f"create_{thing}", f"Create a {thing} and return it with its identifier.", fields, ("title", "contact")),
        _tool(f"update_{thing}", f"Change the given fields of one {thing}.", named | fields, named),
        _tool(f"delete_{thing}", f"Delete one {thing} for good; archive it when in doubt.", named | reason, named),
    ]  # fmt: skip


def _tool(
    name: str, description: str, properties: dict[str, Any], required: Iterable[str]
) -> CatalogueTool:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    if names := list(required):
        schema["required"] = names
    return CatalogueTool(name, description, schema)


def _text(description: str, **constraints: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **constraints}


def _contact(thing: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": f"Whom to ask about the {thing}.",
        "properties": {
            "name": _text("Full name."),
            "email": _text("Electronic mail address.", format="email"),
            "phone": _text("Telephone number with the country code.", pattern="^\\+[0-9]{6,15}$"),
        },
        "required": ["name", "email"],
        "additionalProperties": False,
    }
