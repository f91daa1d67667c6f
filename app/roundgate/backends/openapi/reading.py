"""The reader of a document's operations.

An error in one operation is an `UnusableOperation`; the others are read.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast
from urllib.parse import parse_qsl

from msgspec import Struct

from roundgate.backends.http.bodies import Body
from roundgate.backends.http.credential_config import FRAMING, header_key
from roundgate.backends.http.plan import Parameter, RequestPlan
from roundgate.backends.http.plan import Place as ParameterPlace
from roundgate.backends.http.values import Style, header_schema
from roundgate.backends.openapi import swagger2
from roundgate.backends.openapi.documents import (
    DanglingReference,
    Place,
    References,
    UnusableOperation,
)
from roundgate.backends.openapi.index import Alternative
from roundgate.backends.openapi.media import (
    MAX_ARGUMENTS,
    NOT_IN_NAMES,
    Bodies,
    Content,
    argument_name,
    media_types,
)
from roundgate.backends.openapi.schemas import Schemas

METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")
MAX_DESCRIPTION: Final = 2_000
_MAX_TITLE: Final = 100
_DIGITS: Final = 6
_STYLES: Final = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form", "cookie"),
    "querystring": ("form",),
}
"""The styles of each place, the default first."""
_OF_OPENAPI: Final = frozenset(
    {"accept", "content-type", "authorization", "proxy-authorization", "cookie"}
)
"""Headers that are not parameters. The first three "shall be ignored"."""
_SEVERAL_SEGMENTS: Final = "x-multi-segment"
"""GitHub's extension of a path parameter that may contain slashes."""
_QUERY: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@/%-]*")
"""A query without variables and characters that have to be encoded (RFC 3986 section 3.4)."""
_NAME_IN_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

Dangling: TypeAlias = tuple[Place, DanglingReference]
"""A place that holds a dangling reference, and the error."""


class Identity(Struct, frozen=True):
    """An operation's method, path and name; `source` names its document if there are several."""

    method: str
    path: str
    operation_id: str | None
    source: str = ""


def tool_names(
    operations: Sequence[Identity], longest: int, plain: Callable[[str], str]
) -> list[str]:
    """Return a name of at most `longest` characters for each operation. `plain` replaces characters
    that names may not have.

    A name that is too long, or not unique, ends in a digest of method and path. So a name does not
    change when the document gets other operations, or another order.
    """
    names = [plain(_preferred_name(operation)) for operation in operations]
    often = Counter(name.lower() for name in names)
    return [
        name
        if len(name) <= longest and often[name.lower()] == 1
        else _with_digest(name, operation, longest)
        for name, operation in zip(names, operations, strict=True)
    ]


def _preferred_name(operation: Identity) -> str:
    name = NOT_IN_NAMES.sub("_", operation.operation_id or "").strip("_")
    path = NOT_IN_NAMES.sub("_", operation.path).strip("_")
    return name or f"{operation.method.lower()}_{path}".rstrip("_")


def _with_digest(name: str, operation: Identity, longest: int) -> str:
    known_by = f"{operation.method} {operation.path} {operation.source}".rstrip()
    digest = hashlib.sha256(known_by.encode()).hexdigest()[:_DIGITS]
    return f"{name[: max(longest - _DIGITS - 1, 0)].rstrip('_.-')}_{digest}".lstrip("_")


class DescribedOperation(Struct, frozen=True):
    """One operation of a document that can be a tool."""

    identity: Identity
    tags: tuple[str, ...]
    title: str | None
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    plan: RequestPlan
    own_servers: Any
    security: Sequence[Alternative]
    extensions: Mapping[str, Any]
    dangling: Sequence[Dangling]
    """The operation's dangling references. The tool's schemas omit their targets."""


class FoundOperation(Struct, frozen=True):
    """An operation as written in the document."""

    uri: str
    pointer: str
    identity: Identity
    value: Mapping[str, Any]
    item: Mapping[str, Any]
    item_uri: str


class ApiDocument(Struct, frozen=True):
    """One description: a document with `paths`."""

    uri: str
    value: Mapping[str, Any]
    references: References
    requests: Schemas
    answers: Schemas
    media_types: Sequence[str]
    """The preferred media types, best first."""
    taken: Mapping[str, frozenset[str]]
    """Names by place ("header" in lower case, "query", "cookie") that credentials and fixed headers
    use. Parameters with these names are omitted."""

    @property
    def is_swagger(self) -> bool:
        """Return whether the document is Swagger 2.0."""
        return "swagger" in self.value

    def servers(self) -> Any:
        """Return the servers of the whole document."""
        return swagger2.servers(self.value) if self.is_swagger else self.value.get("servers")

    def security_schemes(self) -> Mapping[str, Any]:
        """Return the security schemes by name."""
        if self.is_swagger:
            return swagger2.security_schemes(self.value)
        components = self.value.get("components")
        schemes = components.get("securitySchemes") if isinstance(components, dict) else None
        return {name: self._scheme(scheme) for name, scheme in (schemes or {}).items()}

    def _scheme(self, value: Any) -> Any:
        """Return a security scheme, or `None` if its reference is dangling."""
        try:
            return self.references.follow(self.uri, value)[1]
        except DanglingReference:
            return None

    def operations(self) -> Iterator[FoundOperation | tuple[str, UnusableOperation]]:
        """Yield all operations in `paths`, in order. For a path or an operation that cannot be
        read, yield its pointer and the error."""
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
        uri, target = self.references.follow(self.uri, item)
        if not isinstance(target, dict):
            raise UnusableOperation("a path item is not an object")
        if target is item:
            return uri, target
        return uri, {**target, **{key: value for key, value in item.items() if key != "$ref"}}

    def _in_item(
        self, path: str, item: Mapping[str, Any], uri: str, pointer: str
    ) -> Iterator[FoundOperation | tuple[str, UnusableOperation]]:
        more = item.get("additionalOperations")
        values = [(method, method, item[method]) for method in METHODS if method in item]
        if isinstance(more, dict):
            values += [
                (extra_method, f"additionalOperations/{extra_method}", value)
                for extra_method, value in more.items()
            ]
        for method, place, value in values:
            at = f"{pointer}/{place}"
            try:  # an operation may be in a separate file, as DigitalOcean's are
                where, value = self.references.follow(uri, value)
            except UnusableOperation as error:
                yield at, error
                continue
            if isinstance(value, dict):
                operation_id = value.get("operationId")
                name = operation_id if isinstance(operation_id, str) else None
                yield FoundOperation(
                    where, at, Identity(method.upper(), path, name), value, item, uri
                )

    def read(self, raw: FoundOperation, *, with_answer: bool) -> DescribedOperation:
        """Read an operation, with the schema of its result if `with_answer`.

        Raises:
            UnusableOperation: the operation cannot be offered.
        """
        parameters = self._parameters(raw)
        value = raw.value
        if self.is_swagger:
            value = swagger2.operation(value, [entry for _, entry in parameters], self.value)
            parameters = [(raw.uri, entry) for entry in value["parameters"]]
        security = alternatives(value.get("security", self.value.get("security")))
        if len(parameters) > MAX_ARGUMENTS:
            raise UnusableOperation(f"the operation has more than {MAX_ARGUMENTS:,} parameters")
        arguments = _OperationArguments(self, raw.identity)
        for uri, parameter in parameters:
            arguments.add_parameter(uri, parameter)
        arguments.check_path()
        if "requestBody" in value:
            arguments.add_body(raw.uri, value["requestBody"])
        here = Place(raw.uri, raw.pointer)
        dangling = arguments.dangling(here)
        path, query = _path_and_query(raw.identity.path)
        answers = self._answers(here, value, dangling)
        accepted = media_types(content for _, content in answers)
        tags = value.get("tags")
        return DescribedOperation(
            identity=raw.identity,
            tags=tuple(str(tag) for tag in tags) if isinstance(tags, list) else (),
            title=_title(value.get("summary")),
            description=_description(value, raw, scope_text(security)),
            input_schema=arguments.input_schema(),
            output_schema=self._output_schema(here, answers, dangling) if with_answer else None,
            plan=RequestPlan(
                raw.identity.method,
                path,
                tuple(arguments.parameters),
                arguments.body,
                {"accept": ", ".join(accepted[:8]) or "*/*"},
                query,
            ),
            own_servers=value.get("servers") or raw.item.get("servers"),
            security=security,
            extensions={
                key: item
                for key, item in value.items()
                if key.startswith("x-") and isinstance(item, (str, bool, int))
            },
            dangling=dangling,
        )

    def _parameters(self, raw: FoundOperation) -> list[tuple[str, dict[str, Any]]]:
        """Return the parameters of the path and the operation, each with its document. An
        operation's parameter replaces the path's parameter of the same name and place. Raise
        UnusableOperation if a parameter is not an object."""
        merged: dict[tuple[Any, Any], tuple[str, dict[str, Any]]] = {}
        for uri, parameters in (
            (raw.item_uri, raw.item.get("parameters")),
            (raw.uri, raw.value.get("parameters")),
        ):
            for item in parameters if isinstance(parameters, list) else ():
                where, parameter = self.references.follow(uri, item)
                if not isinstance(parameter, dict):
                    raise UnusableOperation("a parameter is not an object")
                merged[parameter.get("name"), parameter.get("in")] = (where, parameter)
        return list(merged.values())

    def _answers(
        self, here: Place, value: Mapping[str, Any], dangling: list[Dangling]
    ) -> list[tuple[str, Content]]:
        """Return the contents of the successful responses, lowest code first. Add dangling
        references to `dangling`."""
        responses = value.get("responses")
        contents: list[tuple[str, Content]] = []
        for code, response in sorted(responses.items() if isinstance(responses, dict) else ()):
            if code[:1] in ("2", "d"):
                try:
                    where, response = self.references.follow(here.uri, response)
                except DanglingReference as error:
                    dangling.append((here, error))
                    continue
                content = response.get("content") if isinstance(response, dict) else None
                if isinstance(content, dict):
                    contents.append((where, content))
        return contents

    def _output_schema(
        self, here: Place, answers: list[tuple[str, Content]], dangling: list[Dangling]
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


class _OperationArguments:
    """The arguments of one operation while they are collected."""

    def __init__(self, document: ApiDocument, identity: Identity) -> None:
        self._document = document
        self._identity = identity
        self._fixed = {name for name, _ in parse_qsl(_path_and_query(identity.path)[1])}
        """The names of the query parameters that the path has."""
        self.parameters: list[Parameter] = []
        self.body: Body | None = None
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []
        self._uses: set[Place] = set()

    def add_parameter(self, uri: str, value: Mapping[str, Any]) -> None:
        """Add a parameter, unless the gateway sends it itself or the path does not contain it.

        Raises:
            UnusableOperation: its name, place or style is invalid.
        """
        name, place = value.get("name"), value.get("in")
        if not isinstance(name, str) or place not in _STYLES:
            raise UnusableOperation(
                f"a parameter has no usable name and place: {str(name)[:50]!r} in {str(place)[:50]!r}"
            )
        key = header_key(name) if place == "header" else name
        if place == "header" and key in _OF_OPENAPI | FRAMING:
            return
        # a caller must not replace the gateway's credential
        if key in self._document.taken.get(str(place), ()):
            return
        if place == "query" and name in self._fixed:
            return
        if place == "header" and not _NAME_IN_HEADER.fullmatch(name):
            raise UnusableOperation(f"parameter {name[:100]!r} is not a header name")
        if place == "path" and f"{{{name}}}" not in self._identity.path:
            if f":{name}" in self._identity.path.split("/"):
                raise UnusableOperation(
                    f"its path has :{name}, which is not a variable", f"write it as {{{name}}}"
                )
            return  # belongs to another path that shares the path item
        style = str(value.get("style") or _STYLES[place][0])
        if style not in _STYLES[place]:
            raise UnusableOperation(f"parameter {name!r}: there is no style {style!r} in {place}")
        explode = value.get("explode", style in ("form", "deepObject", "cookie"))
        schema, media_type = self._convert_schema(uri, value)
        argument = argument_name(name, self._properties)
        whole = dict(schema) if isinstance(schema, dict) else {}
        description = value.get("description")
        if isinstance(description, str) and description.strip():
            whole["description"] = description.strip()
        self._properties[argument] = header_schema(whole) if place == "header" else whole
        if place == "path" or value.get("required") is True:
            self._required.append(argument)
        self.parameters.append(
            Parameter(
                argument,
                name,
                cast("ParameterPlace", place),
                cast("Style", style),
                explode is True,
                value.get("allowReserved") is True or value.get(_SEVERAL_SEGMENTS) is True,
                media_type,
            )
        )

    def _convert_schema(self, uri: str, parameter: Mapping[str, Any]) -> tuple[Any, str | None]:
        content = parameter.get("content")
        if isinstance(content, dict) and content:
            media_type, media = next(iter(content.items()))
            return self._convert(uri, (media or {}).get("schema", {})), media_type
        return self._convert(uri, swagger2.parameter_schema(parameter)), None

    def _convert(self, uri: str, schema: Any) -> Any:
        converted, uses = self._document.requests.convert(uri, schema)
        self._uses |= uses
        return converted

    def check_path(self) -> None:
        """Add a text argument for each variable of the path that no parameter describes.

        Raises:
            UnusableOperation: the path is invalid.
        """
        path, query = _path_and_query(self._identity.path)
        plain = re.sub(r"\{[^{}]*\}", "", path)
        is_wrong = re.search(r"[{}#\\\s]", plain) or not _QUERY.fullmatch(query)
        if not path.startswith("/") or is_wrong or ".." in plain.split("/"):
            raise UnusableOperation(f"the path {path[:200]!r} is not a path template")
        path_names = {parameter.name for parameter in self.parameters if parameter.place == "path"}
        for name in dict.fromkeys(re.findall(r"\{([^{}]*)\}", path)):
            if name not in path_names:
                self.add_parameter(
                    self._document.uri,
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}},
                )

    def add_body(self, uri: str, body: Any) -> None:
        """Add the members of a plain object as arguments, or the whole body as the argument `body`.

        Raises:
            UnusableOperation: the body has no usable media type or schema.
        """
        uri, value = self._document.references.follow(uri, body)
        content = value.get("content") if isinstance(value, dict) else None
        if not isinstance(content, dict) or not content:
            return
        taken = set(self._properties)
        required = value.get("required") is True
        document = self._document
        bodies = Bodies(document.references, document.requests, document.media_types)
        body_arguments = bodies.body(uri, content, required=required, taken=taken)
        self.body = body_arguments.body
        self._uses |= body_arguments.uses
        self._properties |= body_arguments.properties
        self._required += body_arguments.required
        if body_arguments.body.members is None and isinstance(value.get("description"), str):
            whole = self._properties[body_arguments.body.argument]
            whole.setdefault("description", value["description"].strip())

    def dangling(self, here: Place) -> list[Dangling]:
        """Return the dangling references in the schemas of the arguments."""
        return self._document.requests.dangling(frozenset(self._uses), here)

    def input_schema(self) -> dict[str, Any]:
        definitions = self._document.requests.definitions(frozenset(self._uses))
        return {
            "type": "object",
            "properties": self._properties,
            **({"required": self._required} if self._required else {}),
            "additionalProperties": False,
            **({"$defs": definitions} if definitions else {}),
        }


def alternatives(security: Any) -> list[Alternative]:
    """Return the alternatives of `security`. An empty alternative allows a call without credentials."""
    if not isinstance(security, list):
        return []
    return [
        {str(name): [str(scope) for scope in scopes or ()] for name, scopes in alternative.items()}
        for alternative in security
        if isinstance(alternative, dict)
    ]


def scope_text(offered: Sequence[Alternative]) -> str:
    """Return the scopes that a call needs, for the tool's description."""
    for alternative in offered:
        if scopes := [scope for named in alternative.values() for scope in named]:
            return f"Needs the service's scopes {', '.join(dict.fromkeys(scopes))}."
    return ""


def _path_and_query(path: str) -> tuple[str, str]:
    """Return a path, and the fixed query behind it, such as `beta=true`; both without the fragment by
    which some documents distinguish operations of one path."""
    path, _, query = path.partition("#")[0].partition("?")
    return path, query


def _title(summary: Any) -> str | None:
    text = " ".join(summary.split()) if isinstance(summary, str) else ""
    return text if 0 < len(text) <= _MAX_TITLE else None


def _description(value: Mapping[str, Any], raw: FoundOperation, scopes: str) -> str:
    summary, description = (str(value.get(key) or "").strip() for key in ("summary", "description"))
    text = description if summary in description else f"{summary}\n\n{description}".strip()
    text = text or f"{raw.identity.method} {raw.identity.path}"
    if len(text) > MAX_DESCRIPTION:
        text = text[:MAX_DESCRIPTION].rsplit(" ", 1)[0] + " …"
    deprecated = "Deprecated." if value.get("deprecated") is True else ""
    return "\n\n".join(part for part in (deprecated, text, scopes) if part)
