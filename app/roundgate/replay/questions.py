"""The questions that a handler can ask, as values (client/elicitation, client/sampling,
client/roots).

The digest of its wire form identifies a question. After an answer that does not fit
(`UnfitAnswer`), the handler's question is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, Protocol, TypeAlias

from msgspec import Struct
from pydantic import BaseModel, ValidationError

from roundgate.errors import Declined, Inside
from roundgate.json import digest
from roundgate.protocol import PromptMessage, Schema, page_host, without_none
from roundgate.protocol.content import Value
from roundgate.replay.journal import plain

_LABELS: Final = ("title", "description", "default")
_STRING: Final = ("minLength", "maxLength", "format", "enum", "enumNames", "oneOf")
_KEPT: Final = {
    "string": (*_LABELS, *_STRING),
    "number": (*_LABELS, "minimum", "maximum"),
    "integer": (*_LABELS, "minimum", "maximum"),
    "boolean": _LABELS,
    "array": (*_LABELS, "minItems", "maxItems", "items"),
}
"""The JSON Schema keywords that clients can show, by type."""
_FORMATS: Final = ("email", "uri", "date", "date-time")

Action: TypeAlias = Literal["accept", "decline", "cancel", "timeout"]
"""The action of an answer; "timeout" if no answer came in time."""


class UnfitAnswer(Inside):
    """A response that does not fit its question. The message describes the fault for the
    respondent."""


class Answer(Value, frozen=True):
    """An answer to a question. `value` is set for "accept", and is the default for "timeout"."""

    name: str
    action: Action
    value: Any = None

    @property
    def accepted(self) -> bool:
        """Return whether the user accepted."""
        return self.action == "accept"

    def get(self) -> Any:
        """Return the value.

        Raises:
            Declined: the user declined or dismissed the question.
            TimeoutError: no answer came in time, and there is no default.
        """
        if self.action == "timeout":
            if self.value is None:
                raise TimeoutError(f"question {self.name!r} was not answered in time")
            return self.value
        if self.action != "accept":
            raise Declined(self.name, self.action)
        return self.value


class Question(Protocol):
    """A question that a handler asks of the client."""

    @property
    def requires(self) -> Mapping[str, Any]:
        """Return the client capabilities that the question needs, as `ClientCapabilities`."""

    def to_wire(self, problem: str | None = None) -> dict[str, Any]:
        """Return the `InputRequest`; `problem` is the fault of the last answer."""

    def read(self, name: str, response: Any) -> Answer:
        """Return the answer in an `InputResponse`.

        Raises:
            UnfitAnswer: the response does not fit the question.
        """


def question_digest(name: str, question: Question) -> str:
    """Return the digest of a question as it is shown.

    Raises:
        NotJson: a part of the question has no JSON form.
    """
    return digest(plain(question.to_wire(), f"question {name!r}"))


class Form(Struct, frozen=True, dict=True):
    """A form for the user to fill in: a pydantic model of flat fields, or a JSON Schema of the
    permitted subset."""

    message: str
    fields: type[BaseModel] | Mapping[str, Any]
    is_approval: bool = False
    """Whether a person has to answer in a form that the client shows, so that no substitute for a
    form counts."""

    def __post_init__(self) -> None:
        _ = self._compiled  # refuses fields that a form cannot have

    @cached_property
    def _compiled(self) -> tuple[dict[str, Any], Schema]:
        return compiled(self.fields)

    @property
    def requires(self) -> Mapping[str, Any]:
        return {"elicitation": {"form": {}}}

    def to_wire(self, problem: str | None = None) -> dict[str, Any]:
        message = _with_problem(self.message, problem)
        params = {"mode": "form", "message": message, "requestedSchema": self._compiled[0]}
        return {"method": "elicitation/create", "params": params}

    def read(self, name: str, response: Any) -> Answer:
        action = _action(response)
        if action != "accept":
            return Answer(name, action)
        content = response.get("content", {})
        if problems := self._compiled[1].problems(content, "answer"):
            raise UnfitAnswer("; ".join(problems))
        return Answer(name, action, self._value(content))

    def _value(self, content: dict[str, Any]) -> Any:
        if isinstance(self.fields, Mapping):
            return content
        try:
            return self.fields.model_validate(content)
        except ValidationError as error:
            wrong = [
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}"
                for e in error.errors(include_input=False)
            ]
            raise UnfitAnswer("; ".join(wrong)) from None


class Url(Struct, frozen=True):
    """A page for the user to open, for data that the client must not see. The action "accept" means
    only that the user agreed to open the page."""

    message: str
    url: str

    def __post_init__(self) -> None:
        page_host(self.url)

    @property
    def requires(self) -> Mapping[str, Any]:
        return {"elicitation": {"url": {}}}

    def to_wire(self, problem: str | None = None) -> dict[str, Any]:
        params = {"mode": "url", "message": _with_problem(self.message, problem), "url": self.url}
        return {"method": "elicitation/create", "params": params}

    def read(self, name: str, response: Any) -> Answer:
        return Answer(name, _action(response))


class Sampled(Value, frozen=True):
    """The answer of the client's model."""

    role: str
    content: Sequence[Mapping[str, Any]]
    """The content blocks, unchanged: text, image, audio, tool_use."""
    model: str
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        """Return the text of all text blocks."""
        return "".join(block["text"] for block in self.content if block.get("type") == "text")


class Sample(Struct, frozen=True):
    """A request to the client's model. `messages` is the text of one user message, or messages as
    `PromptMessage` or wire objects."""

    messages: str | Sequence[PromptMessage | Mapping[str, Any]]
    max_tokens: int
    system_prompt: str | None = None
    temperature: float | None = None
    stop_sequences: Sequence[str] | None = None
    model_preferences: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: Mapping[str, Any] | None = None

    @property
    def requires(self) -> Mapping[str, Any]:
        return {"sampling": {"tools": {}} if self.tools or self.tool_choice else {}}

    def to_wire(self, problem: str | None = None) -> dict[str, Any]:
        messages = (
            [PromptMessage("user", self.messages)]
            if isinstance(self.messages, str)
            else self.messages
        )
        params = {
            "messages": [
                message.to_wire() if isinstance(message, PromptMessage) else dict(message)
                for message in messages
            ],
            "maxTokens": self.max_tokens,
            **without_none(
                systemPrompt=self.system_prompt,
                temperature=self.temperature,
                stopSequences=self.stop_sequences and list(self.stop_sequences),
                modelPreferences=self.model_preferences and dict(self.model_preferences),
                tools=self.tools and [dict(tool) for tool in self.tools],
                toolChoice=self.tool_choice and dict(self.tool_choice),
            ),
        }
        return {"method": "sampling/createMessage", "params": params}

    def read(self, name: str, response: Any) -> Answer:
        if not isinstance(response, dict) or not isinstance(response.get("role"), str):
            raise UnfitAnswer("a sampling response must have role, content and model")
        content = response.get("content")
        blocks: list[Any] = content if isinstance(content, list) else [content]
        if not all(isinstance(block, dict) and _is_block(block) for block in blocks):
            raise UnfitAnswer("content must be a content block or a list of content blocks")
        model, stop_reason = response.get("model"), response.get("stopReason")
        if not isinstance(model, str):
            raise UnfitAnswer("a sampling response must name its model")
        reason = stop_reason if isinstance(stop_reason, str) else None
        return Answer(name, "accept", Sampled(response["role"], blocks, model, reason))


class Root(Value, frozen=True):
    """A directory or file that the client lets the server work with."""

    uri: str
    name: str | None = None


class Roots(Struct, frozen=True):
    """A request for the client's roots."""

    @property
    def requires(self) -> Mapping[str, Any]:
        return {"roots": {}}

    def to_wire(self, problem: str | None = None) -> dict[str, Any]:
        return {"method": "roots/list"}

    def read(self, name: str, response: Any) -> Answer:
        roots = response.get("roots") if isinstance(response, dict) else None
        if not isinstance(roots, list) or not all(
            isinstance(r, dict) and isinstance(r.get("uri"), str) for r in roots
        ):
            raise UnfitAnswer("a roots response must have roots, each with a uri")
        names = [root.get("name") if isinstance(root.get("name"), str) else None for root in roots]
        return Answer(
            name,
            "accept",
            [Root(root["uri"], called) for root, called in zip(roots, names, strict=True)],
        )


def required_capability(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the capability that a client needs to answer an `InputRequest` in wire form.

    Raises:
        ValueError: no question has the method.
    """
    params = request.get("params") or {}
    match request.get("method"):
        case "elicitation/create":
            return {"elicitation": {params.get("mode", "form"): {}}}
        case "sampling/createMessage":
            has_tools = params.get("tools") or params.get("toolChoice")
            return {"sampling": {"tools": {}} if has_tools else {}}
        case "roots/list":
            return {"roots": {}}
    raise ValueError(
        "the method of an input request must be elicitation/create, sampling/createMessage or roots/list"
    )


class Raw(Struct, frozen=True):
    """An `InputRequest` in wire form; its answer is returned unchanged."""

    request: Mapping[str, Any]

    def __post_init__(self) -> None:
        match self.request:
            case {"method": "elicitation/create", "params": {"mode": "url", **params}}:
                page_host(params.get("url"))

    @property
    def requires(self) -> Mapping[str, Any]:
        return required_capability(self.request)

    def to_wire(self, problem: str | None = None) -> dict[str, Any]:
        return dict(self.request)

    def read(self, name: str, response: Any) -> Answer:
        if not isinstance(response, dict):
            raise UnfitAnswer("a response must be an object")
        return Answer(name, "accept", response)


def _with_problem(message: str, problem: str | None) -> str:
    return (
        message if problem is None else f"{message}\n\nThe last answer could not be used: {problem}"
    )


def _action(response: Any) -> Action:
    action = response.get("action") if isinstance(response, dict) else None
    if action not in ("accept", "decline", "cancel"):
        raise UnfitAnswer('an elicitation response has the action "accept", "decline" or "cancel"')
    return action  # type: ignore[no-any-return]


def _is_block(block: Mapping[str, Any]) -> bool:
    return isinstance(block.get("type"), str) and (
        block["type"] != "text" or isinstance(block.get("text"), str)
    )


def compiled(fields: type[BaseModel] | Mapping[str, Any]) -> tuple[dict[str, Any], Schema]:
    """Return the schema of a form as clients see it, and the validator of its answers.

    Raises:
        ValueError: as for `form_schema`.
    """
    if isinstance(fields, Mapping):
        # answers must also satisfy the keywords that clients cannot show
        return form_schema(fields), Schema.compile(fields)
    return _of_model(fields)


@lru_cache(maxsize=256)  # saves 0.5 ms in every round of every call
def _of_model(model: type[BaseModel]) -> tuple[dict[str, Any], Schema]:
    schema = form_schema(model)
    return schema, Schema.compile(schema)


def form_schema(fields: type[BaseModel] | Mapping[str, Any]) -> dict[str, Any]:
    """Return the `requestedSchema` of a form (client/elicitation, "Requested Schema").

    Raises:
        ValueError: a form cannot have one of the fields; the message names the field and the
            remedy.
    """
    source = dict(fields) if isinstance(fields, Mapping) else fields.model_json_schema()
    if source.get("type") != "object" or not isinstance(source.get("properties", {}), Mapping):
        raise ValueError('a form must be a flat object: {"type": "object", "properties": {…}}')
    definitions = source.get("$defs", {})
    properties = {
        name: _field(name, field, definitions)
        for name, field in source.get("properties", {}).items()
    }
    if unknown := [name for name in source.get("required", ()) if name not in properties]:
        raise ValueError(f"the form requires {', '.join(unknown)}, which its properties lack")
    return {
        "type": "object",
        "properties": properties,
        **without_none(required=source.get("required")),
    }


def _field(name: str, schema: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    schema = _resolve(schema, definitions)
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _KEPT or "properties" in schema:
        raise ValueError(
            f"field {name!r}: forms can have strings, numbers, booleans and choices only; ask "
            "several questions"
        )
    if schema.get("format") == "password" or schema.get("writeOnly"):
        raise ValueError(
            f"field {name!r}: a form must not ask for secrets, because the client would see them; "
            "use ctx.elicit_url"
        )
    if kind == "string" and schema.get("format") not in (None, *_FORMATS):
        raise ValueError(
            f"field {name!r}: forms support the formats {', '.join(_FORMATS)}, not "
            f"{schema['format']!r}"
        )
    shown = {keyword: schema[keyword] for keyword in ("type", *_KEPT[kind]) if keyword in schema}
    if kind == "array":
        shown["items"] = _choices(name, _resolve(schema.get("items"), definitions))
    if shown.get("default", ...) is None:
        del shown["default"]  # a form says "no value" by leaving the field out
    return shown


def _resolve(declared: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Follow pydantic's `$ref` to an enum, and unwrap `X | None`, because optional fields may be
    absent."""
    # `true` is also a schema
    schema: dict[str, Any] = dict(declared) if isinstance(declared, Mapping) else {}
    if "anyOf" in schema:
        options = [option for option in schema["anyOf"] if option.get("type") != "null"]
        if len(options) == 1:
            schema = {
                **{key: value for key, value in schema.items() if key != "anyOf"},
                **options[0],
            }
    if "$ref" in schema:
        schema = {**definitions.get(schema["$ref"].rpartition("/")[2], {}), **schema}
        del schema["$ref"]
    if (
        isinstance(schema.get("type"), list)
        and len(kinds := [kind for kind in schema["type"] if kind != "null"]) == 1
    ):
        schema["type"] = kinds[0]
    if "const" in schema and "type" in schema:
        schema = {**schema, "enum": [schema["const"]]}
    return schema


def _choices(name: str, items: dict[str, Any]) -> dict[str, Any]:
    if items.get("type", "string") != "string" or not ("enum" in items or "anyOf" in items):
        raise ValueError(f"field {name!r}: a list in a form must be a choice among fixed strings")
    return (
        {"type": "string", "enum": items["enum"]} if "enum" in items else {"anyOf": items["anyOf"]}
    )
