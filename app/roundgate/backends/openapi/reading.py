"""Operations of a document, as tools will have them: nothing is written and nothing called.

What is wrong with one operation is an `UnusableOperation` of that operation; the
others are read all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from roundgate.backends.http.arguments import FRAMING
from roundgate.backends.openapi import swagger2
from roundgate.backends.openapi.media import Content, body_of, media_types
from roundgate.backends.openapi.names import MAX_ARGUMENTS, Identity, argument_name
from roundgate.backends.openapi.plan import Body, Parameter, Place, Plan, Style
from roundgate.backends.openapi.references import Place as Where
from roundgate.backends.openapi.references import References
from roundgate.backends.openapi.schemas import Schemas
from roundgate.backends.openapi.security import Alternative, alternatives, scope_text
from roundgate.errors import DanglingReference, UnusableOperation

METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")
MAX_DESCRIPTION: Final = 2_000
_MAX_TITLE: Final = 100
_USUAL_STYLE: Final = {
    "path": "simple",
    "query": "form",
    "header": "simple",
    "cookie": "form",
    "querystring": "form",
}
_STYLES: Final = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form", "cookie"),
    "querystring": ("form",),
}
_OF_OPENAPI: Final = frozenset(
    {"accept", "content-type", "authorization", "proxy-authorization", "cookie"}
)
"""Header parameters that are none: the first three "shall be ignored"."""
_SEVERAL_SEGMENTS: Final = "x-multi-segment"
"""What GitHub says of a path parameter that may have slashes."""
_NAME_IN_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


Dangling: TypeAlias = tuple[Where, DanglingReference]
"""A place that holds a dangling reference, and the error."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a document that can be a tool."""

    identity: Identity
    tags: tuple[str, ...]
    title: str | None
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    plan: Plan
    own_servers: Any
    security: Sequence[Alternative]
    extensions: Mapping[str, Any]
    dangling: Sequence[Dangling]
    """The operation's dangling references. The operation is offered without their targets."""


@dataclass(frozen=True, slots=True)
class Found:
    """An operation as the document has it, before anything is made of it."""

    uri: str
    pointer: str
    identity: Identity
    value: Mapping[str, Any]
    item: Mapping[str, Any]
    item_uri: str


@dataclass(frozen=True, slots=True)
class Document:
    """One description: a document with `paths`, and what it refers to."""

    uri: str
    value: Mapping[str, Any]
    references: References
    requests: Schemas
    answers: Schemas
    media_types: Sequence[str]
    taken: Mapping[str, frozenset[str]]
    """Names by place ("header" in small letters, "query", "cookie") that credentials and fixed
    headers have: no parameter of a tool is called so there."""

    @property
    def is_swagger(self) -> bool:
        """Whether it is Swagger 2.0."""
        return "swagger" in self.value

    def servers(self) -> Any:
        """Those of the whole document."""
        return swagger2.servers(self.value) if self.is_swagger else self.value.get("servers")

    def security_schemes(self) -> Mapping[str, Any]:
        """By name."""
        if self.is_swagger:
            return swagger2.security_schemes(self.value)
        components = self.value.get("components")
        found = components.get("securitySchemes") if isinstance(components, dict) else None
        return {name: self._scheme(one) for name, one in (found or {}).items()}

    def _scheme(self, given: Any) -> Any:
        """Return a security scheme, or `None` if its reference is dangling."""
        try:
            return self.references.follow(self.uri, given)[1]
        except DanglingReference:
            return None

    def operations(self) -> Iterator[Found | tuple[str, UnusableOperation]]:
        """All in `paths`, in order; for a path or an operation that cannot be
        read, its pointer and why."""
        paths = self.value.get("paths")
        for path, item in paths.items() if isinstance(paths, dict) else ():
            if path.startswith("x-"):
                continue
            pointer = f"/paths/{path.replace('~', '~0').replace('/', '~1')}"
            try:
                uri, item = self._item(item)
            except UnusableOperation as error:
                yield pointer, error
                continue
            yield from self._in_item(path, item, uri, pointer)

    def _item(self, item: Any) -> tuple[str, Mapping[str, Any]]:
        uri, found = self.references.follow(self.uri, item)
        if not isinstance(found, dict):
            raise UnusableOperation("a path item is not an object")
        beside = (
            {key: value for key, value in item.items() if key != "$ref"}
            if found is not item
            else {}
        )
        return uri, {**found, **beside}

    def _in_item(
        self, path: str, item: Mapping[str, Any], uri: str, pointer: str
    ) -> Iterator[Found | tuple[str, UnusableOperation]]:
        more = item.get("additionalOperations")
        named = {method: item[method] for method in METHODS if method in item}
        for method, given in (*named.items(), *(more.items() if isinstance(more, dict) else ())):
            at = (
                f"{pointer}/{method}"
                if method in named
                else f"{pointer}/additionalOperations/{method}"
            )
            try:  # DigitalOcean's operations are files of their own
                where, value = self.references.follow(uri, given)
            except UnusableOperation as error:
                yield at, error
                continue
            if isinstance(value, dict):
                operation_id = value.get("operationId")
                name = operation_id if isinstance(operation_id, str) else None
                yield Found(where, at, Identity(method.upper(), path, name), value, item, uri)

    def read(self, found: Found, *, with_answer: bool) -> Operation:
        """What a tool needs of an operation; `with_answer`: the schema of its result too.

        Raises:
            UnusableOperation: it cannot be offered.
        """
        given = self._parameters(found)
        value = found.value
        if self.is_swagger:
            value = swagger2.operation(value, [one for _, one in given], self.value)
            given = [(found.uri, one) for one in value["parameters"]]
        scheme = alternatives(value.get("security", self.value.get("security")))
        if len(given) > MAX_ARGUMENTS:
            raise UnusableOperation(f"it has more than {MAX_ARGUMENTS:,} parameters")
        made = _Making(self, found.identity)
        for uri, parameter in given:
            made.add_parameter(uri, parameter)
        made.check_path()
        if "requestBody" in value:
            made.add_body(found.uri, value["requestBody"])
        here = Where(found.uri, found.pointer)
        dangling = made.dangling(here)
        answers = self._answers(here, value, dangling)
        tags = value.get("tags")
        return Operation(
            identity=found.identity,
            tags=tuple(str(tag) for tag in tags) if isinstance(tags, list) else (),
            title=_title(value.get("summary")),
            description=_description(value, found, scope_text(scheme)),
            input_schema=made.input_schema(),
            output_schema=self._output_schema(here, answers, dangling) if with_answer else None,
            plan=Plan(
                found.identity.method,
                _sent_path(found.identity.path),
                tuple(made.parameters),
                made.body,
                _accepted(answers),
            ),
            own_servers=value.get("servers") or found.item.get("servers"),
            security=scheme,
            extensions={
                key: item
                for key, item in value.items()
                if key.startswith("x-") and isinstance(item, (str, bool, int))
            },
            dangling=dangling,
        )

    def _parameters(self, found: Found) -> list[tuple[str, dict[str, Any]]]:
        """Those of the operation and those of its path, which it may override,
        each with its document."""
        merged: dict[tuple[Any, Any], tuple[str, dict[str, Any]]] = {}
        for uri, given in (
            (found.item_uri, found.item.get("parameters")),
            (found.uri, found.value.get("parameters")),
        ):
            for one in given if isinstance(given, list) else ():
                where, parameter = self.references.follow(uri, one)
                if not isinstance(parameter, dict):
                    raise UnusableOperation("a parameter is not an object")
                merged[parameter.get("name"), parameter.get("in")] = (where, parameter)
        return list(merged.values())

    def _answers(
        self, here: Where, value: Mapping[str, Any], dangling: list[Dangling]
    ) -> list[tuple[str, Content]]:
        """Return the contents of the successful responses, lowest code first. Dangling references
        are added to `dangling`."""
        responses = value.get("responses")
        codes = sorted(responses) if isinstance(responses, dict) else []
        found: list[tuple[str, Content]] = []
        for code in codes:
            if code[:1] in ("2", "d"):
                try:
                    where, response = self.references.follow(here.uri, responses[code])  # type: ignore[index]
                except DanglingReference as error:
                    dangling.append((here, error))
                    continue
                content = response.get("content") if isinstance(response, dict) else None
                if isinstance(content, dict):
                    found.append((where, content))
        return found

    def _output_schema(
        self, here: Where, answers: list[tuple[str, Content]], dangling: list[Dangling]
    ) -> Mapping[str, Any] | None:
        for uri, content in answers:
            for media_type, media in content.items():
                if "json" in media_type and isinstance(media, dict) and "schema" in media:
                    schema, uses = self.answers.convert(uri, media["schema"])
                    whole = schema if isinstance(schema, dict) else {}
                    definitions = self.answers.definitions(uses)
                    dangling += self.answers.dangling(uses, here)
                    return {**whole, "$defs": definitions} if definitions else whole
        return None


class _Making:
    """The arguments of one operation while they are put together."""

    def __init__(self, document: Document, identity: Identity) -> None:
        self._document = document
        self._identity = identity
        self.parameters: list[Parameter] = []
        self.body: Body | None = None
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []
        self._uses: set[Where] = set()

    def add_parameter(self, uri: str, given: Mapping[str, Any]) -> None:
        """Take one in.

        Raises:
            UnusableOperation: it has no name or place, or is placed in a way that there is not.
        """
        name, place = given.get("name"), given.get("in")
        if not isinstance(name, str) or place not in _STYLES:
            raise UnusableOperation(
                f"a parameter has no usable name and place: {str(name)[:50]!r} in {str(place)[:50]!r}"
            )
        if place == "header" and name.lower() in _OF_OPENAPI | FRAMING:
            return
        if (name.lower() if place == "header" else name) in self._document.taken.get(
            str(place), ()
        ):
            return  # the gateway's own: a caller who could send another would be somebody else to the service
        if place == "header" and not _NAME_IN_HEADER.fullmatch(name):
            raise UnusableOperation(f"parameter {name[:100]!r} is no name of a header")
        if place == "path" and f"{{{name}}}" not in self._identity.path:
            if f":{name}" in self._identity.path.split("/"):
                raise UnusableOperation(
                    f"its path has :{name}, which is no variable", f"write it as {{{name}}}"
                )
            return  # of the path item, for a sibling's spelling; a call has nowhere to put it
        style, explode = self._style(name, str(place), given)
        schema, media_type = self._schema_of(uri, given)
        argument = argument_name(name, self._properties)
        self._put(
            argument, schema, given, required=place == "path" or given.get("required") is True
        )
        made = Parameter(
            argument,
            name,
            cast("Place", place),
            style,
            explode,
            given.get("allowReserved") is True or given.get(_SEVERAL_SEGMENTS) is True,
            media_type,
        )
        self.parameters.append(made)

    def _style(self, name: str, place: str, given: Mapping[str, Any]) -> tuple[Style, bool]:
        style = str(given.get("style") or _USUAL_STYLE[place])
        if style not in _STYLES[place]:
            raise UnusableOperation(f"parameter {name!r}: there is no style {style!r} in {place}")
        explode = given.get("explode", style in ("form", "deepObject", "cookie"))
        return cast("Style", style), explode is True

    def _schema_of(self, uri: str, given: Mapping[str, Any]) -> tuple[Any, str | None]:
        content = given.get("content")
        if isinstance(content, dict) and content:
            media_type, media = next(iter(content.items()))
            return self._convert(uri, (media or {}).get("schema", {})), media_type
        return self._convert(uri, swagger2.schema_of(given)), None

    def _convert(self, uri: str, schema: Any) -> Any:
        converted, uses = self._document.requests.convert(uri, schema)
        self._uses |= uses
        return converted

    def _put(self, argument: str, schema: Any, given: Mapping[str, Any], *, required: bool) -> None:
        whole = dict(schema) if isinstance(schema, dict) else {}
        description = given.get("description")
        if isinstance(description, str) and description.strip():
            whole["description"] = description.strip()
        self._properties[argument] = whole
        if required:
            self._required.append(argument)

    def check_path(self) -> None:
        """Whether every variable of the path has a value; one that no parameter describes is text.

        Raises:
            UnusableOperation: the path is none.
        """
        path = _sent_path(self._identity.path)
        plain = re.sub(r"\{[^{}]*\}", "", path)
        if not path.startswith("/") or re.search(r"[{}?#\\\s]", plain) or ".." in plain.split("/"):
            raise UnusableOperation(f"the path {path[:200]!r} is no path template")
        known = {one.name for one in self.parameters if one.place == "path"}
        for name in dict.fromkeys(re.findall(r"\{([^{}]*)\}", path)):
            if name not in known:
                self.add_parameter(
                    self._document.uri,
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}},
                )

    def add_body(self, uri: str, given: Any) -> None:
        """Take the body in: its members as arguments where it is a plain object, else
        whole as the argument `body`.

        Raises:
            UnusableOperation
        """
        uri, value = self._document.references.follow(uri, given)
        if (
            not isinstance(value, dict)
            or not isinstance(value.get("content"), dict)
            or not value["content"]
        ):
            return
        taken = set(self._properties)
        required = value.get("required") is True
        made = body_of(self._document, uri, value["content"], required=required, taken=taken)
        self.body = made.body
        self._uses |= made.uses
        self._properties |= made.properties
        self._required += made.required
        if made.body.members is None and isinstance(value.get("description"), str):
            whole = self._properties[made.body.argument]
            whole.setdefault("description", value["description"].strip())

    def dangling(self, here: Where) -> list[Dangling]:
        """Return the dangling references in the schemas of the arguments."""
        return self._document.requests.dangling(frozenset(self._uses), here)

    def input_schema(self) -> dict[str, Any]:
        """The tool's."""
        definitions = self._document.requests.definitions(frozenset(self._uses))
        return {
            "type": "object",
            "properties": self._properties,
            **({"required": self._required} if self._required else {}),
            "additionalProperties": False,
            **({"$defs": definitions} if definitions else {}),
        }


def _sent_path(path: str) -> str:
    """A path without its fragment, by which some documents tell operations of one path apart."""
    return path.partition("#")[0]


def _title(summary: Any) -> str | None:
    text = " ".join(summary.split()) if isinstance(summary, str) else ""
    return text if 0 < len(text) <= _MAX_TITLE else None


def _description(value: Mapping[str, Any], found: Found, scopes: str) -> str:
    """What the document says, cut where it goes on for pages; never empty."""
    summary, description = (str(value.get(key) or "").strip() for key in ("summary", "description"))
    text = description if summary in description else f"{summary}\n\n{description}".strip()
    text = text or f"{found.identity.method} {found.identity.path}"
    if len(text) > MAX_DESCRIPTION:
        text = text[:MAX_DESCRIPTION].rsplit(" ", 1)[0] + " …"
    deprecated = "Deprecated." if value.get("deprecated") is True else ""
    return "\n\n".join(part for part in (deprecated, text, scopes) if part)


def _accepted(answers: list[tuple[str, Content]]) -> str:
    found = media_types(content for _, content in answers)
    return ", ".join(found[:8]) if found else "*/*"
