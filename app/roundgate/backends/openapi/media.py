"""Bodies of operations ("Media Type Object"): the media type that a call sends, and its arguments."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct, field
from msgspec.structs import replace

from roundgate.backends.http.bodies import FILE, Body, BodyKind, Member
from roundgate.backends.http.values import Style
from roundgate.backends.openapi import documents
from roundgate.backends.openapi.schemas import Schemas, as_list, beside_null, object_properties

NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")
MAX_ARGUMENT: Final = 64
MAX_ARGUMENTS: Final = 1_000
"""The limit for the arguments of one tool, because each name is compared with all before it."""
MAX_PARTS: Final = 100
"""The maximum number of members of `allOf`, including nested members, that become one object."""
Content: TypeAlias = Mapping[str, Any]
_MEDIA_TYPE: Final = re.compile(
    r"[A-Za-z0-9!#$&^_.+*-]+/[A-Za-z0-9!#$&^_.+*-]+(?:\s*;\s*[A-Za-z0-9_.-]+=[A-Za-z0-9_.\"-]+)*"
)
_PLAIN: Final = frozenset(
    {
        *("type", "properties", "required", "description", "title", "additionalProperties"),
        *("examples", "default"),
    }
)
"""Keywords of a schema whose members can become separate arguments without loss."""
_PLAIN_PART: Final = _PLAIN | {"allOf", "example", "nullable"}


def argument_name(name: str, taken: Iterable[str]) -> str:
    """Return a unique name for an argument. `filter[name]` becomes `filter_name`."""
    base = NOT_IN_NAMES.sub("_", name).strip("_")[:MAX_ARGUMENT] or "argument"
    others = set(taken)
    number, unique = 2, base
    while unique in others:
        unique = f"{base[: MAX_ARGUMENT - 4]}_{number}"
        number += 1
    return unique


class MadeBody(Struct):
    """A body and its arguments."""

    body: Body
    properties: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    uses: set[documents.Place] = field(default_factory=set)


def media_types(contents: Iterable[Content]) -> list[str]:
    """Return the media types that are allowed in a header, each once."""
    return list(
        dict.fromkeys(
            kind for content in contents for kind in content if _MEDIA_TYPE.fullmatch(kind)
        )
    )


def body_kind(media_type: str) -> BodyKind:
    """Return the kind of body for a media type."""
    plain = media_type.partition(";")[0].strip().lower()
    if plain.endswith("+json") or plain in (
        "application/json",
        "*/*",
        "application/*",
        "text/json",
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


class Bodies(Struct, frozen=True):
    """A reader of the request bodies of one description."""

    references: documents.References
    schemas: Schemas
    preferred: Sequence[str]
    """The preferred media types, best first."""

    def body(self, uri: str, content: Content, *, required: bool, taken: set[str]) -> MadeBody:
        """Return the body of an operation, in the preferred media type.

        Args:
            uri: the document's URI, against which references are resolved.
            required: whether a request must have a body.
            taken: names of other arguments.

        Raises:
            UnusableOperation: no media type is usable.
        """
        media_type = self._chosen(uri, content)
        uri, media = self._media(uri, content[media_type])
        schema = media.get("schema", {})
        kind = body_kind(media_type)
        if kind == "binary" or (kind == "json" and "*" in media_type and _is_file(schema)):
            return _whole(Body("binary", media_type, required), dict(FILE), taken)
        if kind == "text":
            return _whole(Body("text", media_type, required), {"type": "string"}, taken)
        body = Body(kind, "application/json" if "*" in media_type else media_type, required)
        if kind == "json":
            return self._members(uri, schema, body, taken) or self._as_one(uri, schema, body, taken)
        uri, schema = self._merge_plain_parts(uri, schema)
        encoding = self._encoding(uri, schema, media.get("encoding"), kind)
        body = replace(body, encoding=encoding)
        body_arguments = self._members(uri, schema, body, taken) or self._as_one(
            uri, schema, body, taken
        )
        members = object_properties(schema).items()
        return _with_files(
            body_arguments, {name for name, member in members if self._files(uri, member) == "many"}
        )

    def _chosen(self, uri: str, content: Content) -> str:
        """Return the preferred media type of a body; raise UnusableOperation if none is usable. For
        a body with files, choose multipart if it is among the preferred types."""
        usable = (kind for kind in media_types([content]) if self._is_usable(uri, kind, content))
        ranked = sorted(usable, key=self._rank)
        if not ranked:
            raise documents.UnusableOperation(
                f"the body has no usable media type: {', '.join(content)[:200]}"
                " (a form needs the schema of an object)"
            )
        if body_kind(ranked[0]) in ("json", "form"):
            named = [
                media_type
                for media_type in ranked
                if self._rank(media_type)[0] < len(self.preferred)
            ]
            multipart = [media_type for media_type in named if body_kind(media_type) == "multipart"]
            if multipart and self._has_file(*self._media(uri, content[ranked[0]])):
                return multipart[0]
        return ranked[0]

    def _is_usable(self, uri: str, media_type: str, content: Content) -> bool:
        """Return whether a body can be sent in a media type. A form or multipart body has members."""
        if body_kind(media_type) not in ("form", "multipart"):
            return True
        uri, media = self._media(uri, content[media_type])
        _, schema = self._followed(uri, media.get("schema"))
        return not isinstance(schema, dict) or "object" in (schema.get("type") or "object")

    def _rank(self, media_type: str) -> tuple[int, int]:
        plain = media_type.partition(";")[0].strip().lower()
        kinds = ("json", "form", "multipart", "text", "binary")
        matches = (
            index
            for index, pattern in enumerate(self.preferred)
            if fnmatchcase(plain, pattern.lower())
        )
        return next(matches, len(self.preferred)), kinds.index(body_kind(media_type))

    def _has_file(self, uri: str, media: Mapping[str, Any]) -> bool:
        uri, schema = self._merge_plain_parts(uri, media.get("schema", {}))
        return any(
            self._files(uri, member) is not None for member in object_properties(schema).values()
        )

    def _media(self, uri: str, media: Any) -> tuple[str, Any]:
        return self.references.follow(uri, media if isinstance(media, dict) else {})

    def _followed(self, uri: str, schema: Any) -> tuple[str, Any]:
        """Return a schema behind its `$ref`, with the URI of its document. A dangling `$ref` is
        returned unchanged; converting the schema reports it."""
        try:
            return self.references.follow(uri, schema)
        except documents.DanglingReference:
            return uri, schema

    def _merge_plain_parts(self, uri: str, schema: Any) -> tuple[str, Any]:
        """Return the schema of a form and its document's URI. Merge an `allOf` of plain objects
        into one object."""
        uri, schema = self._followed(uri, schema)
        if not isinstance(schema, dict) or not isinstance(schema.get("allOf"), list):
            return uri, schema
        properties: dict[str, Any] = {}
        required: list[Any] = []
        parts = [schema]
        for number, part in enumerate(parts):  # the list grows
            where, target = self._followed(uri, part)
            is_plain = isinstance(target, dict) and set(target) <= _PLAIN_PART
            if not is_plain or where != uri or number > MAX_PARTS:
                return uri, schema
            properties |= object_properties(target)
            required += as_list(target.get("required"))
            parts += as_list(target.get("allOf"))
        return uri, {"type": "object", "properties": properties, "required": required}

    def _as_one(self, uri: str, schema: Any, body: Body, taken: set[str]) -> MadeBody:
        if body.kind == "json":
            converted, uses = self.schemas.convert(uri, schema)
            body_arguments = _whole(body, converted if isinstance(converted, dict) else {}, taken)
        else:  # a form has members, which must be visible for files
            converted, uses = self.schemas.convert(*self._followed(uri, schema))
            members = converted if isinstance(converted, dict) else {}
            body_arguments = _whole(body, {**members, "type": "object"}, taken)
        body_arguments.uses |= uses
        return body_arguments

    def _members(self, uri: str, schema: Any, body: Body, taken: set[str]) -> MadeBody | None:
        """Return the members of a plain object as arguments; `None` for any other schema."""
        uri, target = self._followed(uri, schema)
        schema, uses = self.schemas.convert(uri, target)
        if (
            not isinstance(schema, dict)
            or not set(schema) <= _PLAIN
            or not object_properties(target)
        ):
            return None  # an object without declared members, as from NestJS without its plugin, allows any
        properties, required = schema["properties"], schema.get("required", [])
        is_closed = schema.get("additionalProperties", False) in (False, {})
        if schema.get("type", "object") != "object" or not is_closed or "body" in taken:
            return None
        if not set(required) <= set(properties) or (required and not body.required):
            return None
        if len(properties) > MAX_ARGUMENTS or not taken.isdisjoint(properties):
            return None  # a model would confuse a member with a parameter of the same name
        names: dict[str, str] = {}
        for name in properties:
            names[argument_name(name, taken | set(names))] = name
        return MadeBody(
            replace(body, members=names),
            {
                argument: properties[name] if isinstance(properties[name], dict) else {}
                for argument, name in names.items()
            },
            [argument for argument, name in names.items() if name in required],
            set(uses),
        )

    def _encoding(self, uri: str, schema: Any, encoding: Any, kind: str) -> dict[str, Member]:
        members: dict[str, Member] = {}
        for name, member in object_properties(schema).items():
            how = encoding.get(name) if isinstance(encoding, dict) else None
            member_encoding = self._member(*self._followed(uri, member), how, kind)
            if member_encoding != Member():
                members[name] = member_encoding
        return members

    def _member(self, uri: str, schema: Any, encoding: Any, kind: str) -> Member:
        how = encoding if isinstance(encoding, dict) else {}
        media_type = how.get("contentType")
        if not isinstance(media_type, str) or "\n" in media_type or "\r" in media_type:
            media_type = None
        if kind == "multipart":
            is_file = self._files(uri, schema) is not None
            return Member(media_type=media_type, is_file=is_file)
        style = how.get("style")
        if style in ("form", "spaceDelimited", "pipeDelimited", "deepObject"):
            explode = how.get("explode", style in ("form", "deepObject")) is True
            return Member(cast("Style", style), explode)
        if "explode" in how:
            return Member("form", how["explode"] is True)
        is_object = isinstance(schema, dict) and (
            "properties" in schema or schema.get("type") == "object"
        )
        return Member(media_type=media_type or ("application/json" if is_object else None))

    def _files(self, uri: str, schema: Any) -> Literal["one", "many"] | None:
        """Return whether a member is a file or a list of files; `None` for any other member. A
        nullable file is also a file."""
        for _ in range(documents.MAX_HOPS):
            uri, schema = self._followed(uri, schema)
            if not isinstance(schema, dict) or schema.get("readOnly") is True:
                return None
            if _is_file(schema):
                return "one"
            if "items" in schema:
                return "many" if _is_file(self._followed(uri, schema["items"])[1]) else None
            schema = beside_null(schema)
        return None


def _whole(body: Body, schema: dict[str, Any], taken: set[str]) -> MadeBody:
    argument = argument_name("body", taken)
    named = replace(body, argument=argument)
    return MadeBody(named, {argument: schema}, [argument] if body.required else [])


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
    """Replace the text schemas of files by objects with a name and type. Members in `lists` become
    lists of files."""
    files = {name for name, member in made.body.encoding.items() if member.is_file}
    if made.body.members is not None:
        places = made.properties
        named = {argument: name for argument, name in made.body.members.items() if name in files}
    else:
        places = made.properties[made.body.argument].setdefault("properties", {}) if files else {}
        named = {name: name for name in files}
    for argument in named:
        declared = places.get(argument, {})
        about = {word: declared[word] for word in ("title", "description") if word in declared}
        file = {**FILE, **about}
        is_list = named[argument] in lists
        places[argument] = {"type": "array", **about, "items": dict(FILE)} if is_list else file
    return made
