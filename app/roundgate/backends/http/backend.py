"""Endpoints of an HTTP service as tools, declared in gateway.yaml.

A call becomes one request: `HttpTool.request` places the arguments (pure), `HttpBackend.send` does the I/O within the
back end's limits, `HttpTool.result` reads the answer (pure). What the service does wrong is a tool error with its
status and a bounded excerpt; redirects are followed on the service's own origin only; the caller's token is never
passed on.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from roundgate.backends.base import Offering, Shared, Tool
from roundgate.backends.http.body import ACCEPTED, TooLarge, UnknownEncoding, Unpacker, decoded
from roundgate.backends.http.config import Credential, HttpArgument, HttpBackendConfig, HttpToolConfig
from roundgate.backends.http.dialogue import Answer, Outgoing, dialogue, with_key
from roundgate.backends.http.job import check_job, follow
from roundgate.backends.http.paths import path_text
from roundgate.backends.http.secrets import Redactor
from roundgate.backends.json_pointer import point
from roundgate.backends.policy import with_approval, with_questions
from roundgate.config_base import Origin
from roundgate.errors import BackendError, ConfigError, ParseError, Problem, ToolError
from roundgate.protocol import jsonrpc
from roundgate.protocol.content import (
    ABSENT,
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
    ToolResult,
    without_none,
)
from roundgate.protocol.schemas import Schema
from roundgate.replay.context import Context

if TYPE_CHECKING:
    import ssl

    import httpx  # 100 ms to import: a gateway whose first call is to a Python tool does not wait for it

_MAX_REDIRECTS: Final = 5
_EXCERPT_CHARS: Final = 500
_LARGE: Final = 262_144
"""Answers of more bytes are read in a thread: they would keep everybody else waiting."""
_FRAMING: Final = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive", "expect"}
)
"""Headers that say where a request goes and where it ends, which no argument may decide."""
_PATH_VARIABLE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")


class HttpBackend:
    """One service: its pooled client and its tools."""

    def __init__(self, config: HttpBackendConfig, origin: Origin, shared: Shared) -> None:
        self.name = config.name
        self.prefix = config.effective_prefix
        self._config = config
        self._origin = origin
        self._client: httpx.AsyncClient | None = None
        self._redacted = Redactor.of(config)

    async def offer(self) -> Offering:
        """The tools as declared.

        Raises:
            ConfigError: a declaration contradicts itself.
        """
        tools: list[Tool] = []
        problems: list[Problem] = []
        for index, config in enumerate(self._config.tools):
            try:
                tools.append(self._tool(HttpTool.of(config, _Taken.by(self._config, config))))
            except ValueError as error:
                place = self._origin.at("tools", index)
                problems.append(place.problem(str(error), "correct the tool's path, arguments or schemas"))
        if problems:
            raise ConfigError(problems)
        return Offering(tools=tools)

    async def aclose(self) -> None:
        """Close the pooled connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _tool(self, tool: HttpTool) -> Tool:
        config = tool.config
        timeout_s = config.timeout_s or self._config.timeout_s

        async def send(outgoing: Outgoing) -> Answer:
            return await self.send(outgoing, timeout_s)

        async def exchange(outgoing: Outgoing, context: Context) -> Answer:
            if config.asks:
                return await dialogue(send, outgoing, context)
            if config.job is not None:
                return await follow(config.job, send, with_key(outgoing, context), context)
            answer = await send(with_key(outgoing, context))
            await context.log("debug", {"upstream": self.name, "method": outgoing.method, "status": answer.status})
            return answer

        async def call(context: Context, arguments: dict[str, Any]) -> ToolResult:
            outgoing = tool.request(arguments)
            await context.continue_as_task()
            answer = await exchange(outgoing, context)
            if len(answer.body) > _LARGE:
                return await asyncio.to_thread(tool.result, answer)
            return tool.result(answer)

        made = Tool(
            tool.definition(),
            call,
            scopes=frozenset(config.scopes),
            once=config.once,
            task=config.task,
            approval=config.approval,
        )
        # the form first: what the user approves is the call with everything that was filled in
        return with_questions(with_approval(made, self._config), config.ask)

    async def send(self, outgoing: Outgoing, timeout_s: float) -> Answer:
        """One request and its whole answer.

        Raises:
            BackendError: the service cannot be reached, is too slow, answers too much, or redirects off its origin.
        """
        import httpx

        what = f"{outgoing.method} {outgoing.path} of {self.name}"
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(outgoing, what, timeout_s)
        except (TimeoutError, httpx.TimeoutException):
            raise BackendError(
                f"{what} did not answer within {timeout_s:g} s; try again later or ask for less"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise BackendError(f"{what} failed: the service could not be reached ({type(error).__name__})") from None

    async def _exchange(self, outgoing: Outgoing, what: str, timeout_s: float) -> Answer:
        client = self._ready_client()
        url = self._config.base_url.rstrip("/") + outgoing.path
        request = client.build_request(
            outgoing.method,
            url,
            params=[*outgoing.query, *self._credential_query()] or None,
            headers=outgoing.headers,
            content=outgoing.body,
            timeout=timeout_s,
        )
        for _ in range(_MAX_REDIRECTS + 1):
            response = await client.send(request, stream=True)
            try:
                if response.next_request is None:
                    return await self._read(response, what)
                if not _same_origin(str(response.next_request.url), self._config.base_url):
                    raise BackendError(f"{what} redirects to another host, which the gateway does not follow")
                request = response.next_request
            finally:
                await response.aclose()
        raise BackendError(f"{what} redirects more than {_MAX_REDIRECTS} times")

    async def _read(self, response: httpx.Response, what: str) -> Answer:
        limit = self._config.max_response_bytes
        encoding = response.headers.get("content-encoding", "")
        try:
            unpacker = Unpacker(encoding, limit)
            async for piece in response.aiter_raw():
                unpacker.feed(piece)
            body = unpacker.body()
        except TooLarge:
            raise BackendError(f"{what} answered more than {limit} bytes; ask for less at once") from None
        except UnknownEncoding:
            raise BackendError(f"{what} answered in an encoding that was not asked for: {encoding[:50]!r}") from None
        content_type = response.headers.get("content-type", "")
        return self._redacted(Answer(response.status_code, response.reason_phrase, content_type, body))

    def _ready_client(self) -> httpx.AsyncClient:
        if self._client is None:
            from http.cookiejar import CookieJar, DefaultCookiePolicy

            import httpx

            fixed = {name: value.get_secret_value() for name, value in self._config.headers.items()}
            connections = self._config.max_connections
            self._client = httpx.AsyncClient(
                headers={
                    "user-agent": "roundgate",
                    "accept-encoding": ACCEPTED,
                    **fixed,
                    **_credential_headers(self._config.credential),
                },
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # one caller's must not reach another
                timeout=self._config.timeout_s,
                trust_env=False,  # a proxy or .netrc of the environment would see the service's credentials
                transport=httpx.AsyncHTTPTransport(
                    verify=_trusted(),
                    retries=1,  # of the connection only: nothing has been sent then
                    limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
                ),
            )
        return self._client

    def _credential_query(self) -> list[tuple[str, str]]:
        credential = self._config.credential
        if credential is None or credential.query is None or credential.value is None:
            return []
        return [(credential.query, credential.value.get_secret_value())]


@cache
def _trusted() -> ssl.SSLContext:
    """Whose certificates are believed, by every back end: read once, because that takes 40 ms."""
    import httpx

    return httpx.create_ssl_context()


@dataclass(frozen=True, slots=True)
class Placed:
    """An argument with its place in the request settled."""

    name: str
    location: str
    wire_name: str
    config: HttpArgument


@dataclass(frozen=True, slots=True)
class _Taken:
    """Names in a request that the configuration has taken, and that no argument may have."""

    headers: frozenset[str] = _FRAMING
    query: frozenset[str] = frozenset()

    @classmethod
    def by(cls, backend: HttpBackendConfig, tool: HttpToolConfig) -> _Taken:
        """By the credential, by fixed headers, and by fixed query parameters."""
        credential = backend.credential
        named = {"authorization", "cookie", "proxy-authorization"} if credential is not None else set[str]()
        if credential is not None and credential.header is not None:
            named.add(credential.header.lower())
        fixed = {name.lower() for name in (*backend.headers, *tool.headers)}
        query = {credential.query} if credential is not None and credential.query is not None else set[str]()
        return cls(_FRAMING | named | fixed, frozenset(query.union(tool.query)))


@dataclass(frozen=True, slots=True)
class HttpTool:
    """One declared endpoint; no I/O."""

    config: HttpToolConfig
    arguments: tuple[Placed, ...]
    output: Schema | None

    @classmethod
    def of(cls, config: HttpToolConfig, reserved: _Taken | None = None) -> HttpTool:
        """Settle where each argument goes.

        Raises:
            ValueError: path and arguments contradict each other or what is fixed, or a schema is unusable.
        """
        variables = _PATH_VARIABLE.findall(config.path)
        if stray := re.search(r"[{}?#]", _PATH_VARIABLE.sub("", config.path)):
            raise ValueError(
                f"path {config.path!r}: {stray[0]!r} is out of place; variables are {{name}}, queries go into query"
            )
        given = [_place(name, argument, variables, config) for name, argument in config.arguments.items()]
        taken = {argument.wire_name for argument in given if argument.location == "path"} | config.arguments.keys()
        implied = [name for name in dict.fromkeys(variables) if name not in taken]
        placed = (*(_place(name, HttpArgument(), variables, config) for name in implied), *given)
        _check_places(placed, reserved or _Taken())
        in_path = {argument.wire_name for argument in placed if argument.location == "path"}
        if in_path != set(variables):
            raise ValueError(
                f"path {config.path!r} needs {sorted(variables)}, but the arguments in path are {sorted(in_path)}"
            )
        whole = [argument for argument in placed if argument.location == "whole_body"]
        if len(whole) > 1 or (whole and any(argument.location == "body" for argument in placed)):
            raise ValueError("whole_body is for one argument, and leaves no room for others in body")
        if config.job is not None:
            check_job(config.job)
        return cls(config, placed, None if config.output_schema is None else Schema.compile(config.output_schema))

    def _destructive_hint(self) -> bool | None:
        """`None` where nobody said: clients take that for true, and so do we (schema: `ToolAnnotations`)."""
        if self.config.destructive is not None:
            return self.config.destructive
        return {"GET": False, "HEAD": False, "DELETE": True}.get(self.config.method)

    def definition(self) -> dict[str, Any]:
        """The schema's `Tool`."""
        config, safe = self.config, self.config.method in ("GET", "HEAD")
        hints = {
            "readOnlyHint": safe if config.read_only is None else config.read_only,
            **without_none(destructiveHint=self._destructive_hint()),
            "idempotentHint": config.method not in ("POST", "PATCH")
            if config.idempotent is None
            else config.idempotent,
            "openWorldHint": True,
        }
        return {
            "name": config.name,
            **without_none(title=config.title),
            "description": config.description,
            "inputSchema": self._input_schema(),
            **without_none(outputSchema=config.output_schema),
            "annotations": hints,
        }

    def _input_schema(self) -> dict[str, Any]:
        properties = {
            argument.name: argument.config.schema_ | without_none(description=argument.config.description)
            for argument in self.arguments
        }
        required = [a.name for a in self.arguments if a.config.required or a.location == "path"]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def request(self, arguments: Mapping[str, Any]) -> Outgoing:
        """Place arguments that conform to the input schema.

        Raises:
            ToolError: a value cannot stand where it has to go.
        """
        config, path = self.config, self.config.path
        query = list(config.query.items())
        headers = {name: value.get_secret_value() for name, value in config.headers.items()}
        members: dict[str, Any] = {}
        whole: Any = ABSENT
        for placed in self.arguments:
            if placed.name not in arguments:
                continue
            value = arguments[placed.name]
            if value is None and placed.location == "header":
                continue  # it cannot say null
            match placed.location:
                case "path":
                    path = path.replace(f"{{{placed.wire_name}}}", _path_text(placed, value))
                case "query":
                    query.extend(_pairs(placed.wire_name, value))
                case "header":
                    headers[placed.wire_name] = _header_value(placed.name, value)
                case "body":
                    members[placed.wire_name] = value
                case _:
                    whole = value
        body, content_type = self._body(members, whole)
        return Outgoing(config.method, path, query, headers | content_type, body)

    def _body(self, members: dict[str, Any], whole: Any) -> tuple[bytes | None, dict[str, str]]:
        if isinstance(whole, str):
            return whole.encode(), {"content-type": "text/plain; charset=utf-8"}
        if whole is not ABSENT:
            return jsonrpc.encode(whole), {"content-type": "application/json"}
        if not any(argument.location == "body" for argument in self.arguments):
            return None, {}
        if self.config.body == "form":
            pairs = [pair for name, value in members.items() for pair in _pairs(name, value)]
            return urlencode(pairs, quote_via=quote, safe="").encode(), {
                "content-type": "application/x-www-form-urlencoded"
            }
        return jsonrpc.encode(members), {"content-type": "application/json"}

    def result(self, answer: Answer) -> ToolResult:
        """The tool's result for an answer.

        Raises:
            BackendError: the answer is an error, or not what the declaration promises.
        """
        if answer.status >= 300:
            raise BackendError(f"The service answered {answer.status_line}{_excerpt(answer)}")
        media_type = answer.content_type.partition(";")[0].strip().lower()
        is_json = media_type == "application/json" or media_type.endswith("+json")
        if is_json and answer.body:  # HEAD and 204 may name a media type of which they send nothing
            return self._json_result(answer)
        if self.config.result or self.output is not None:
            what = f"{media_type[:100] or 'no content type'}" if answer.body else "nothing"
            raise BackendError(f"The service answered {what} where JSON was expected{_excerpt(answer)}")
        return ToolResult(content=_content(self.config.name, media_type, answer))

    def _json_result(self, answer: Answer) -> ToolResult:
        try:
            value = point(jsonrpc.decode(answer.body), self.config.result)
        except ParseError:
            raise BackendError(f"The service answered something that is not JSON{_excerpt(answer)}") from None
        except LookupError:
            raise BackendError(f"The service's answer has nothing at {self.config.result}{_excerpt(answer)}") from None
        if self.output is not None and (problems := self.output.problems(value, "result")):
            raise BackendError(f"The service's answer is not as declared: {'; '.join(problems)}")
        text = value if isinstance(value, str) else jsonrpc.encode(value).decode()
        return ToolResult(content=(TextContent(text),), structured_content=value)


def _check_places(placed: Sequence[Placed], taken: _Taken) -> None:
    seen: dict[tuple[str, str], str] = {}
    for argument in placed:
        wire_name = argument.wire_name
        if argument.location == "header" and not _HEADER_NAME.fullmatch(wire_name):
            raise ValueError(f"argument {argument.name!r}: {wire_name!r} is not a header name; set `as`")
        if (argument.location == "header" and wire_name.lower() in taken.headers) or (
            argument.location == "query" and wire_name in taken.query
        ):
            raise ValueError(
                f"argument {argument.name!r}: the {argument.location} {wire_name!r} is the gateway's own; set `as`"
            )
        place = (argument.location, wire_name.lower() if argument.location == "header" else wire_name)
        if place in seen:
            raise ValueError(f"arguments {seen[place]!r} and {argument.name!r} are both {wire_name!r} in {place[0]}")
        seen[place] = argument.name


def _place(name: str, argument: HttpArgument, variables: list[str], config: HttpToolConfig) -> Placed:
    wire_name = argument.wire_name or name
    if argument.location is not None:
        location = argument.location
    elif wire_name in variables:
        location = "path"
    else:
        location = "query" if config.method in ("GET", "HEAD", "DELETE") else "body"
    return Placed(name, location, wire_name, argument)


def _pairs(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A value in a query or form: a list repeats the name, and null, which neither can say, is left out."""
    for one in value if isinstance(value, list) else (value,):
        if one is not None:
            yield name, _text(one)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else jsonrpc.encode(value).decode()


def _path_text(placed: Placed, value: Any) -> str:
    try:
        return path_text(_text(value), allow_slash=placed.config.allow_slash)
    except ValueError as error:
        raise ToolError(f"arguments.{placed.name}: {error}") from None


def _header_value(name: str, value: Any) -> str:
    text = _text(value)
    if not _HEADER_VALUE.fullmatch(text):
        raise ToolError(f"arguments.{name}: goes into an HTTP header and may only have visible ASCII characters")
    return text


def _credential_headers(credential: Credential | None) -> dict[str, str]:
    if credential is None:
        return {}
    if credential.bearer is not None:
        return {"authorization": f"Bearer {credential.bearer.get_secret_value()}"}
    if credential.basic is not None:
        return {"authorization": f"Basic {base64.b64encode(credential.basic.get_secret_value().encode()).decode()}"}
    if credential.header is not None and credential.value is not None:
        return {credential.header: credential.value.get_secret_value()}
    return {}


def _same_origin(url: str, base_url: str) -> bool:
    ports = {"http": 80, "https": 443}
    one, other = urlsplit(url), urlsplit(base_url)
    return (one.scheme, one.hostname, one.port or ports.get(one.scheme)) == (
        other.scheme,
        other.hostname,
        other.port or ports.get(other.scheme),
    )


def _excerpt(answer: Answer) -> str:
    """The beginning of an answer, on one line, for a person or model to read; nothing if it is binary or empty."""
    text = " ".join(answer.body[: 4 * _EXCERPT_CHARS].decode("utf-8", "replace").split())
    if not text or not text.isprintable():
        return ""
    return f": {text[:_EXCERPT_CHARS]}{'…' if len(text) > _EXCERPT_CHARS else ''}"


def _content(tool: str, media_type: str, answer: Answer) -> tuple[ContentBlock, ...]:
    if not answer.body:
        return (TextContent(answer.status_line),)
    kind = media_type.partition("/")[0]
    if kind == "image":
        return (ImageContent(answer.body, media_type),)
    if kind == "audio":
        return (AudioContent(answer.body, media_type),)
    text = decoded(answer.body, answer.content_type)
    if text is not None:
        return (TextContent(text),)
    blob = BlobResourceContents(f"result:{tool}", answer.body, media_type or "application/octet-stream")
    return (EmbeddedResource(blob),)
