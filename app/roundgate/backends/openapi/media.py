"""Media types of a document ("Media Type Object"): which kind of body a call sends, and of which arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol, TypeAlias, cast

from roundgate.backends.http.files import FILE
from roundgate.backends.openapi.names import MAX_ARGUMENTS, argument_name
from roundgate.backends.openapi.plan import Body, BodyKind, Member, Style
from roundgate.backends.openapi.references import Place, References
from roundgate.backends.openapi.schemas import Schemas
from roundgate.errors import UnusableOperation
from roundgate.values import dataclass

Content: TypeAlias = Mapping[str, Any]
_MEDIA_TYPE: Final = re.compile(
    r"[A-Za-z0-9!#$&^_.+*-]+/[A-Za-z0-9!#$&^_.+*-]+(?:\s*;\s*[A-Za-z0-9_.-]+=[A-Za-z0-9_.\"-]+)*"
)
_PLAIN: Final = frozenset(
    {
        "type",
        "properties",
        "required",
        "description",
        "title",
        "additionalProperties",
        "examples",
        "default",
    }
)
"""What a schema may have whose members can be arguments of their own, with nothing lost."""


class Documented(Protocol):
    """Of a document, what is needed here."""

    @property
    def references(self) -> References:
        """Follows `$ref`."""

    @property
    def requests(self) -> Schemas:
        """Converts schemas."""

    @property
    def media_types(self) -> Sequence[str]:
        """What is preferred, best first."""


@dataclass(slots=True)
class MadeBody:
    """A body and its arguments."""

    body: Body
    properties: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    uses: set[Place] = field(default_factory=set)


def media_types(contents: Iterable[Content]) -> list[str]:
    """Those that can stand in a header, each once."""
    return list(
        dict.fromkeys(
            kind for content in contents for kind in content if _MEDIA_TYPE.fullmatch(kind)
        )
    )


def kind_of(media_type: str) -> BodyKind:
    """How a body of a media type is written."""
    plain = media_type.partition(";")[0].strip().lower()
    if (
        plain == "application/json"
        or plain.endswith("+json")
        or plain in ("*/*", "application/*", "text/json")
    ):
        return "json"
    if plain == "application/x-www-form-urlencoded":
        return "form"
    if plain.startswith("multipart/"):
        return "multipart"
    if plain.startswith("text/") or plain.endswith(
        ("/xml", "+xml", "/yaml", "+yaml", "ndjson", "jsonl")
    ):
        return "text"
    return "binary"


def body_of(
    document: Documented, uri: str, content: Content, *, required: bool, taken: set[str]
) -> MadeBody:
    """The body of an operation, in the media type that is preferred.

    Args:
        document: that the operation is in.
        uri: of that document, for references.
        content: its media types.
        required: whether a request must have one.
        taken: names that other arguments have.

    Raises:
        UnusableOperation: none of its media types is one.
    """
    usable = [kind for kind in content if _MEDIA_TYPE.fullmatch(kind)]
    if not usable:
        raise UnusableOperation(f"the body has no usable media type: {', '.join(content)[:200]}")
    media_type = min(usable, key=lambda one: _rank(one, document.media_types))
    media = content[media_type]
    media_uri, media = document.references.follow(uri, media if isinstance(media, dict) else {})
    given = media.get("schema", {})
    kind = kind_of(media_type)
    if kind == "binary" or (kind == "json" and "*" in media_type and _is_file(given)):
        return _whole(Body("binary", media_type, required), dict(FILE), taken)
    if kind == "text":
        return _whole(Body("text", media_type, required), {"type": "string"}, taken)
    sent = "application/json" if "*" in media_type else media_type
    if kind == "json":
        body = Body("json", sent, required)
        return _members(document, media_uri, given, body, taken) or _converted(
            document, media_uri, given, body, taken
        )
    schema_uri, schema = document.references.follow(media_uri, given)
    encoding = _encoding(document, schema_uri, schema, media.get("encoding"), kind)
    body = Body(kind, sent, required, encoding=encoding)
    made = _members(document, media_uri, given, body, taken) or _converted(
        document, media_uri, given, body, taken
    )
    return _with_files(made)


def _rank(media_type: str, preferred: Sequence[str]) -> tuple[int, int]:
    plain = media_type.partition(";")[0].strip().lower()
    kinds = ("json", "form", "multipart", "text", "binary")
    named = next(
        (index for index, one in enumerate(preferred) if fnmatchcase(plain, one.lower())),
        len(preferred),
    )
    return named, kinds.index(kind_of(media_type))


def _whole(body: Body, schema: dict[str, Any], taken: set[str]) -> MadeBody:
    argument = argument_name("body", taken)
    named = Body(body.kind, body.media_type, body.required, None, argument, body.encoding)
    return MadeBody(named, {argument: schema}, [argument] if body.required else [])


def _converted(document: Documented, uri: str, given: Any, body: Body, taken: set[str]) -> MadeBody:
    if body.kind != "json":  # what its members are has to be in sight, for files
        uri, given = document.references.follow(uri, given)
    schema, uses = document.requests.convert(uri, given)
    made = _whole(body, schema if isinstance(schema, dict) else {}, taken)
    if body.kind != "json":  # a form has members
        made.properties[made.body.argument] = {
            "type": "object",
            **made.properties[made.body.argument],
        }
    made.uses |= uses
    return made


def _members(
    document: Documented, uri: str, given: Any, body: Body, taken: set[str]
) -> MadeBody | None:
    """The members of a plain object as arguments; `None` where it is more than that."""
    uri, found = document.references.follow(uri, given)
    schema, uses = document.requests.convert(uri, found)
    if not isinstance(schema, dict) or not set(schema) <= _PLAIN or "properties" not in schema:
        return None
    properties, required = schema["properties"], schema.get("required", [])
    if schema.get("type", "object") != "object" or schema.get(
        "additionalProperties", False
    ) not in (False, {}):
        return None
    if not set(required) <= set(properties) or (required and not body.required) or "body" in taken:
        return None
    if len(properties) > MAX_ARGUMENTS:
        return None
    names: dict[str, str] = {}
    for name in properties:
        names[argument_name(name, taken | set(names))] = name
    if any(argument in taken for argument in properties):
        return None  # a name that a parameter has too: the model would have to guess which is which
    arguments = {argument: properties[name] for argument, name in names.items()}
    arguments = {name: one if isinstance(one, dict) else {} for name, one in arguments.items()}
    flat = Body(body.kind, body.media_type, body.required, names, body.argument, body.encoding)
    return MadeBody(
        flat,
        arguments,
        [argument for argument, name in names.items() if name in required],
        set(uses),
    )


def _encoding(
    document: Documented, uri: str, schema: Any, given: Any, kind: str
) -> dict[str, Member]:
    members = schema.get("properties") if isinstance(schema, dict) else None
    found: dict[str, Member] = {}
    for name, member in (members or {}).items():
        _, described = document.references.follow(uri, member)
        said = given.get(name) if isinstance(given, dict) else None
        found[name] = _member(
            document, uri, described, said if isinstance(said, dict) else {}, kind
        )
    return {name: member for name, member in found.items() if member != Member()}


def _member(
    document: Documented, uri: str, described: Any, said: Mapping[str, Any], kind: str
) -> Member:
    media_type = said.get("contentType")
    media_type = (
        media_type
        if isinstance(media_type, str) and "\n" not in media_type and "\r" not in media_type
        else None
    )
    if kind == "multipart":
        item = described.get("items") if isinstance(described, dict) else None
        _, one = document.references.follow(uri, item) if item else (uri, described)
        return Member(media_type=media_type, is_file=_is_file(one))
    style = said.get("style")
    if style in ("form", "spaceDelimited", "pipeDelimited", "deepObject"):
        return Member(
            cast("Style", style), said.get("explode", style in ("form", "deepObject")) is True
        )
    if "explode" in said:
        return Member("form", said["explode"] is True)
    is_object = isinstance(described, dict) and (
        "properties" in described or described.get("type") == "object"
    )
    return Member(media_type=media_type or ("application/json" if is_object else None))


def _is_file(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    if schema.get("format") == "binary" or schema.get("type") == "file":
        return True
    kind = schema.get("contentMediaType", "")
    return (
        "contentEncoding" not in schema
        and isinstance(kind, str)
        and kind.startswith(("application/octet", "image/"))
    )


def _with_files(made: MadeBody) -> MadeBody:
    """Files are objects that carry their name and type, not text."""
    files = {name for name, member in made.body.encoding.items() if member.is_file}
    if made.body.members is not None:
        places = made.properties
        named = {argument: name for argument, name in made.body.members.items() if name in files}
    else:
        places = made.properties[made.body.argument].setdefault("properties", {}) if files else {}
        named = {name: name for name in files}
    for argument in named:
        given = places.get(argument, {})
        about = {word: given[word] for word in ("title", "description") if word in given}
        file = {**FILE, **about}
        kinds = given.get("type")
        is_list = kinds == "array" or (isinstance(kinds, list) and "array" in kinds)
        places[argument] = {"type": "array", **about, "items": dict(FILE)} if is_list else file
    return made
