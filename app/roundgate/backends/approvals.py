"""Approvals, forms and checks for tools of any back end. The engine asks approvals and forms like
any handler's questions.

An approval shows all arguments; if that is impossible, the gateway refuses the call. Each member
has a line of its own, so no member can hide another. A long text is shortened on its line:

    - path: "/home/ada/thesis.txt"
    - note: "Dear …" … "…, Ada" (6,001 characters, SHA-256 3b0c44298fc1c149)
    - to.city: "Oslo"
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Container, Coroutine, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from roundgate.auth import Principal
from roundgate.backends.base import Bound, CallTool, DirectCall, Returned, Tool
from roundgate.backends.config import BackendConfig, ToolOverride
from roundgate.errors import ToolError
from roundgate.protocol import PartlyKnown, Schema, visible, visible_json
from roundgate.replay import AnyContext, Context, Form, call_of, form_schema, run_of

if TYPE_CHECKING:  # loaded only for rules
    from roundgate.backends.schema_values import ArgumentSchema

log = logging.getLogger("roundgate.backends")

_VARIABLE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_APPROVAL: Final = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Go ahead", "default": False}},
    "required": ["approve"],
}


def around_calls(tool: Tool, wrap: Callable[[CallTool], CallTool], **changes: Any) -> Tool:
    """Return the tool with `wrap` applied to its call, with and without approval, and with other
    fields changed."""
    approvable = None if tool.approvable is None else wrap(tool.approvable)
    return replace(tool, call=wrap(tool.call), approvable=approvable, **changes)


def like(
    call: CallTool, wrapped: Callable[[Any, dict[str, Any]], Coroutine[Any, Any, Returned]]
) -> CallTool:
    """Return a wrapper, which takes any context that `call` takes, as a call of the same type."""
    return replace(call, run=wrapped) if isinstance(call, DirectCall) else wrapped


def guarded(tool: Tool, backend: BackendConfig, *, has_policy: bool) -> Tool:
    """Return the tool with a check of each call by the rules of `policy` (`Call.authorize`), and with
    an approval question if the settings require one. Rules, question and tool get one value of the
    arguments. A client that cannot be asked gets error -32021.

    A tool that needs no approval keeps the question for a view that requires it (`approvable`). An
    override takes precedence over the tool's declaration, which takes precedence over the back end's
    `approve`.
    """
    override = backend.override.get(tool.definition["name"])
    call = _Guarded(tool, backend, has_policy)
    tool = replace(
        tool,
        call=like(tool.call, call.without_asking) if has_policy else tool.call,
        approvable=call,
    )
    approval = tool.approve if override is None else override.approve or tool.approve
    return asking_first(tool) if _is_to_be_approved(tool, backend, override, approval) else tool


class _Guarded(Struct, frozen=True, dict=True):
    """The call of a tool (`CallTool`) behind a check and an approval."""

    tool: Tool
    backend: BackendConfig
    has_policy: bool

    async def __call__(self, context: Context, arguments: dict[str, Any]) -> Returned:
        bound = self._checked(context, arguments)
        known = PartlyKnown(arguments) if bound is None else bound.known
        await _ask(context, self._question(known, arguments))
        return await (self.tool.call(context, arguments) if bound is None else bound.call(context))

    async def without_asking(self, context: Any, arguments: dict[str, Any]) -> Returned:
        """Call the tool without an approval."""
        bound = self._checked(context, arguments)
        return await (self.tool.call(context, arguments) if bound is None else bound.call(context))

    def _checked(self, context: AnyContext, arguments: dict[str, Any]) -> Bound | None:
        bound = None if self.tool.bind is None else self.tool.bind(arguments)
        if self.has_policy:
            _check(context, lambda: self._known(bound, arguments))
        return bound

    def _known(self, bound: Bound | None, arguments: dict[str, Any]) -> PartlyKnown:
        """Return the arguments for rules. A value of another type than the schema says is unknown,
        because a rule for that type would ignore it."""
        if bound is None:
            from roundgate.backends.schema_values import with_schema

            return with_schema(self._document, arguments)
        value = bound.known.value
        return PartlyKnown(value, [*bound.known.unknown, *self._schema.misfits(value)])

    @cached_property
    def _document(self) -> ArgumentSchema:
        from roundgate.backends.schema_values import ArgumentSchema

        return ArgumentSchema(self.tool.definition["inputSchema"])

    @cached_property
    def _schema(self) -> Schema:
        return Schema.compile(self.tool.definition["inputSchema"])

    def _question(self, known: PartlyKnown, arguments: Mapping[str, Any]) -> str:
        """Return the text of the approval question; raise ToolError if not all arguments can be
        shown."""
        definition, text = self.tool.definition, self.tool.approval
        own = name = definition["name"]
        if (override := self.backend.override.get(own)) is not None:
            name = override.name or own
            text = text if override.approval is None else override.approval
        names = definition["inputSchema"].get("properties", ())
        lines = [] if text is None else text.strip().split("\n")
        filled = [_filled(line, known.value, names) for line in lines]
        listed = "It is called without arguments."
        if known.value:
            listed = f"It is called with\n{shown(known.value)}"
        if known.unknown and arguments:
            listed += f"\n\nIt is made of\n{shown(arguments)}"
        return "\n".join([f"Run {self.backend.effective_prefix + name}?", *filled, "", listed])


def _check(context: AnyContext, known: Callable[[], PartlyKnown]) -> None:
    """Check a call by the rules. A call that ends the external work of a task needs no rule."""
    facts = call_of(context)
    if facts.cleanup is None:
        if facts.authorize is None:
            raise RuntimeError("the call of a tool with a policy has no check")
        facts.authorize(known)


async def _ask(context: Context, question: str) -> None:
    questions = {"approve": Form(question, _APPROVAL, is_approval=True)}
    answer, run = (await context.ask(questions))["approve"], run_of(context)
    # `tasks.service` logs a task's decision once; this code would repeat it in each turn
    if run.call.task_id is None and "approve" in run.journal.received:
        is_approved = answer.accepted and answer.value["approve"]
        log_decision(run.call.principal, is_approved)
        if run.call.trail is not None:
            run.call.trail.decided(run.call.principal, is_approved)
    if not answer.get()["approve"]:
        raise ToolError("The user did not approve the call; nothing was done")


def asking_first(tool: Tool) -> Tool:
    """Return the tool with the approval question that `guarded` has prepared.

    An approval covers one run, so the tool becomes `once`. Only an answer to the question as shown
    is an approval, so unasked answers are refused.

    Raises:
        ValueError: the tool is one of the gateway's own, which cannot be approved.
    """
    if tool.asks_first:
        return tool
    if tool.approvable is None:
        raise ValueError("calls of this tool cannot be approved: it belongs to the gateway")
    return replace(tool, call=tool.approvable, asks_first=True, once=True, unasked_answers=False)


def is_approval(request: Mapping[str, Any]) -> bool:
    """Return whether a question on the wire asks for an approval."""
    params = request.get("params")
    return isinstance(params, Mapping) and params.get("requestedSchema") == _APPROVAL


def decision_in(response: Any) -> bool | None:
    """Return whether a response on the wire approves a call; `None` if it neither approves nor
    refuses."""
    match response:
        case {"action": "accept", "content": {"approve": bool(decision)}}:
            return decision
        case {"action": "decline" | "cancel"}:
            return False
    return None


def log_decision(principal: Principal, is_approved: bool, **ids: str | None) -> None:
    """Log that a caller approved or declined a call. `ids` identifies the call if it is not the one
    being served."""
    ids_present = {name: value for name, value in ids.items() if value is not None}
    fields = {**ids_present, **principal.names}
    if is_approved:
        log.info("a call was approved", extra={"fields": fields})
    else:
        log.info("a call was not approved", extra={"fields": fields})


def _is_to_be_approved(
    tool: Tool, backend: BackendConfig, override: ToolOverride | None, approval: str | None
) -> bool:
    if approval is not None:
        return approval == "always"
    return backend.approve == "always" or (
        backend.approve == "destructive" and is_destructive(tool, override)
    )


def is_destructive(tool: Tool, override: ToolOverride | None = None) -> bool:
    """Return whether a tool may destroy something, which is the default. `destructiveHint` is
    meaningful only if `readOnlyHint` is not true (schema: `ToolAnnotations`)."""
    hints = tool.definition.get("annotations") or {}
    read_only, destructive = hints.get("readOnlyHint"), hints.get("destructiveHint")
    if override is not None:
        read_only = read_only if override.read_only is None else override.read_only
        destructive = destructive if override.destructive is None else override.destructive
    return read_only is not True and destructive is not False


def check_approval(text: str | None, arguments: Sequence[str]) -> None:
    """Check that every `{name}` in the approval text is an argument of the tool.

    Raises:
        ValueError: lists the unknown arguments.
    """
    named = set(_VARIABLE.findall(text or ""))
    if unknown := sorted(named - set(arguments)):
        raise ValueError(
            f"approval names {', '.join(unknown)}, but the arguments are {', '.join(arguments)}"
        )


def _filled(line: str, arguments: Mapping[str, Any], known: Container[str]) -> str:
    """Return a line of the configured text with argument values filled in as JSON, whose quotes
    keep a value from passing for the text. The complete values are listed below it."""

    def said(match: re.Match[str]) -> str:
        name = match[1]
        if name in arguments:
            return shown_in_line(arguments[name])
        return "(not given)" if name in known else match[0]

    return _VARIABLE.sub(said, visible(line))


def with_defaults(tool: Tool, defaults: Mapping[str, Any]) -> Tool:
    """Return the tool with default values for arguments that a call lacks; approvals show them."""
    if not defaults:
        return tool

    def completed(call: CallTool) -> CallTool:
        async def with_all(context: Any, arguments: dict[str, Any]) -> Returned:
            return await call(context, {**defaults, **arguments})

        return like(call, with_all)

    return around_calls(tool, completed)


def with_questions(tool: Tool, ask: Sequence[str]) -> Tool:
    """Return the tool, which asks the user with a form for missing arguments of `ask`, or fails
    with a ToolError if the client cannot show the form.

    Raises:
        ValueError: an argument does not exist, or no form can ask for its type.
    """
    if not ask:
        return tool
    schema = tool.definition["inputSchema"]
    properties: Mapping[str, Any] = schema.get("properties", {})
    if unknown := sorted(set(ask) - set(properties)):
        raise ValueError(
            f"ask_for names {', '.join(unknown)}, but the arguments are {', '.join(properties)}"
        )
    form_schema(_form(properties, ask))  # fail at start-up rather than in front of a user
    required = [name for name in schema.get("required", ()) if name not in ask]
    relaxed = {**schema, "required": required}
    name, complete = tool.definition["name"], Schema.compile(schema)

    def filled_in(call: CallTool) -> CallTool:
        return _asking(name, call, properties, ask, complete)

    return around_calls(tool, filled_in, definition={**tool.definition, "inputSchema": relaxed})


def _asking(
    name: str, call: CallTool, properties: Mapping[str, Any], ask: Sequence[str], complete: Schema
) -> CallTool:
    async def asked(context: Context, arguments: dict[str, Any]) -> Returned:
        if missing := [argument for argument in ask if argument not in arguments]:
            form = Form(f"{name} needs {', '.join(missing)}", _form(properties, missing))
            if not context.supports(form):  # the model may know the values
                raise ToolError(f"Missing arguments: {', '.join(missing)}")
            filled = (await context.ask({"arguments": form}))["arguments"].get()
            # Take only the missing arguments: other members that a client sends must not replace the call's arguments.
            arguments = {**arguments, **{name: filled[name] for name in missing}}
        if problems := complete.problems(arguments, "arguments"):
            raise ToolError("Invalid arguments: " + "; ".join(problems))
        return await call(context, arguments)

    return asked


def _form(properties: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: properties[name] for name in names},
        "required": list(names),
    }


MAX_LINES: Final = 100
MAX_CHARS: Final = 10_000
MAX_NAME: Final = 200
MAX_TEXT: Final = 400
"""The maximum length of a text that is shown in full, in characters."""
_BEGINNING: Final = 200
_END: Final = 100
_ONE_LINE: Final = 200
"""The approximate maximum length of a list or object on one line, in characters."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")


def shown(arguments: Mapping[str, Any]) -> str:
    """Return the arguments with a line for each value; raise ToolError if they are too many or too
    long."""
    lines: list[str] = []
    size = 0
    for line in _lines_of_object("", arguments):
        lines.append(line)
        size += len(line)
        if len(lines) > MAX_LINES or size > MAX_CHARS:
            raise ToolError(
                "The arguments are too many to show to the user, who has to approve them: "
                f"more than {MAX_LINES} values or {MAX_CHARS:,} characters. Nothing was done; "
                "split the call into smaller ones"
            )
    return "\n".join(lines)


def shown_in_line(value: Any) -> str:
    """Return a value for a sentence. Shorten a long text; give only the size of a long list or
    object."""
    if isinstance(value, str) and len(value) > _ONE_LINE:
        return _shortened(value)
    if isinstance(value, (dict, list)) and _space_after(value, _ONE_LINE) < 0:
        kind = "members" if isinstance(value, dict) else "items"
        return f"({len(value):,} {kind}, see below)"
    return visible_json(value)


def _lines(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, str) and len(value) > MAX_TEXT:
        yield f"- {path}: {_shortened(value)}"
    elif not isinstance(value, (dict, list)) or _space_after(value, _ONE_LINE) >= 0:
        yield f"- {path}: {visible_json(value)}"
    elif isinstance(value, dict):
        yield from _lines_of_object(path, value)
    else:
        for index, item in enumerate(value):
            yield from _lines(f"{path}[{index}]", item)


def _lines_of_object(path: str, value: Mapping[str, Any]) -> Iterator[str]:
    for name, item in value.items():
        yield from _lines(_member(path, name), item)


def _member(path: str, name: str) -> str:
    if len(name) > MAX_NAME:
        raise ToolError(
            f"An argument has a name of {len(name):,} characters, which cannot be shown to the "
            f"user, who has to approve it. Nothing was done; use names of at most {MAX_NAME}"
        )
    if not _PLAIN_NAME.fullmatch(name):
        return f"{path}[{visible_json(name)}]" if path else visible_json(name)
    return f"{path}.{name}" if path else name


def _shortened(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    beginning, end = visible_json(text[:_BEGINNING]), visible_json(text[-_END:])
    return f"{beginning} … {end} ({len(text):,} characters, SHA-256 {digest})"


def _space_after(value: Any, space: int) -> int:
    """Return the part of `space` characters that remains after a value; stop counting below zero."""
    match value:
        case str():
            return space - len(value) - 2
        case dict():
            for name, item in value.items():
                if (space := _space_after(item, space - len(name) - 4)) < 0:
                    break
            return space
        case list():
            for item in value:
                if (space := _space_after(item, space - 1)) < 0:
                    break
            return space
    return space - len(str(value))
