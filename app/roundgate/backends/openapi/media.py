"""Media types of a document ("Media Type Object"): which kind of body a call sends,
and of which arguments."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, Protocol, TypeAlias, cast

from roundgate.backends.http.files import FILE
from roundgate.backends.openapi.names import MAX_ARGUMENTS, argument_name
from roundgate.backends.openapi.plan import Body, BodyKind, Member, Style
from roundgate.backends.openapi.references import MAX_HOPS, Place, References
from roundgate.backends.openapi.schemas import Schemas, beside_null
from roundgate.errors import DanglingReference, UnusableOperation

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
_PLAIN_PART: Final = _PLAIN | {"allOf", "example", "nullable"}
MAX_PARTS: Final = 100
"""Of `allOf`, with those within, that become one object."""


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
    media_type = _chosen(document, uri, content, usable)
    media_uri, media = _media(document, uri, content[media_type])
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
    schema_uri, schema = _put_together(document, media_uri, given)
    encoding = _encoding(document, schema_uri, schema, media.get("encoding"), kind)
    body = Body(kind, sent, required, encoding=encoding)
    made = _members(document, schema_uri, schema, body, taken) or _converted(
        document, schema_uri, schema, body, taken
    )
    lists = {
        name
        for name, one in _properties(schema).items()
        if _files(document, schema_uri, one) == "many"
    }
    return _with_files(made, lists)


def _media(document: Documented, uri: str, media: Any) -> tuple[str, Any]:
    return document.references.follow(uri, media if isinstance(media, dict) else {})


def _followed(document: Documented, uri: str, schema: Any) -> tuple[str, Any]:
    """Return a schema behind its `$ref`, with the URI of its document. A dangling `$ref` is
    returned as it is; converting the schema reports it."""
    try:
        return document.references.follow(uri, schema)
    except DanglingReference:
        return uri, schema


def _chosen(document: Documented, uri: str, content: Content, usable: Sequence[str]) -> str:
    """The one that is preferred, but for a body with files: only multipart carries those."""
    ranked = sorted(usable, key=lambda one: _rank(one, document.media_types))
    if kind_of(ranked[0]) in ("json", "form"):
        named = [
            one for one in ranked if _rank(one, document.media_types)[0] < len(document.media_types)
        ]
        multipart = [one for one in named if kind_of(one) == "multipart"]
        if multipart and _has_file(document, *_media(document, uri, content[ranked[0]])):
            return multipart[0]
    return ranked[0]


def _has_file(document: Documented, uri: str, media: Mapping[str, Any]) -> bool:
    uri, schema = _put_together(document, uri, media.get("schema", {}))
    return any(_files(document, uri, one) is not None for one in _properties(schema).values())


def _properties(schema: Any) -> Mapping[str, Any]:
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def _put_together(document: Documented, uri: str, given: Any) -> tuple[str, Any]:
    """The schema of a form, and where it stands: of `allOf` with plain objects one plain object."""
    uri, schema = _followed(document, uri, given)
    if not isinstance(schema, dict) or not isinstance(schema.get("allOf"), list):
        return uri, schema
    properties: dict[str, Any] = {}
    required: list[Any] = []
    parts = [schema]
    for number, part in enumerate(parts):  # which become more
        where, found = _followed(document, uri, part)
        is_plain = isinstance(found, dict) and set(found) <= _PLAIN_PART
        if not is_plain or where != uri or number > MAX_PARTS:
            return uri, schema
        properties |= _properties(found)
        required += _list(found.get("required"))
        parts += _list(found.get("allOf"))
    return uri, {"type": "object", "properties": properties, "required": required}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


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
        uri, given = _followed(document, uri, given)
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
    uri, found = _followed(document, uri, given)
    schema, uses = document.requests.convert(uri, found)
    if not isinstance(schema, dict) or not set(schema) <= _PLAIN or not _properties(found):
        return None  # where members are not told, as by NestJS without its plugin, any may be given
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
    found: dict[str, Member] = {}
    for name, member in _properties(schema).items():
        where, described = _followed(document, uri, member)
        said = given.get(name) if isinstance(given, dict) else None
        found[name] = _member(
            document, where, described, said if isinstance(said, dict) else {}, kind
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
        is_file = _files(document, uri, described) is not None
        return Member(media_type=media_type, is_file=is_file)
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


def _files(document: Documented, uri: str, given: Any) -> Literal["one", "many"] | None:
    """Whether a member is a file, or several; one that may be null is one as well."""
    for _ in range(MAX_HOPS):
        uri, schema = _followed(document, uri, given)
        if not isinstance(schema, dict) or schema.get("readOnly") is True:
            return None
        if _is_file(schema):
            return "one"
        if "items" in schema:
            return "many" if _is_file(_followed(document, uri, schema["items"])[1]) else None
        given = beside_null(schema)
    return None


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


def _with_files(made: MadeBody, lists: Collection[str]) -> MadeBody:
    """Files are objects that carry their name and type, not text; `lists`
    are members with several."""
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
        is_list = named[argument] in lists
        places[argument] = {"type": "array", **about, "items": dict(FILE)} if is_list else file
    return made
