"""Questions in words: what a client gets that cannot be asked, and the tool that takes the answers.

    tools/call deploy {env}           →  a result: "It needs answers … call `answer` with {state, answers}"
    tools/call answer {state, answers} →  the next round of `deploy`: its result, or more words

Inside `state` stand, sealed for this caller, the tool, its arguments and the `requestState` of the
round that asked, which is checked as in any other round. One that is too long for a model to copy
is a row, and the state has its name.

An answer in words is what the model says the user said. So approvals are never asked
this way (`Form.is_approval`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roundgate import json
from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.errors import ParseError, StateRefused, StateTooLarge, ToolError
from roundgate.protocol import CallToolParams, Schema, ToolResult
from roundgate.storage import SessionStore
from roundgate.tokens import Binding, StateSealer

CAN_BE_WORDS: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {},
}
"""What a client need not declare where it is asked in words, shaped as `ClientCapabilities`."""
MAX_STATE: Final = 2_000
"""Characters of a state that travels whole: a model has to copy them."""
LEEWAY_S: Final = 60.0
"""For how much longer than a state is good for what it stands for is kept."""
MAX_ROW: Final = 250_000
"""Bytes of a call that is kept."""
_BINDING: Final = Binding("answer in words", "", "")
_ARGUMENTS: Final = {
    "type": "object",
    "properties": {
        "state": {"type": "string", "description": "The state, copied exactly."},
        "answers": {
            "type": "object",
            "description": "An answer for each question, by its name, in the shape that was told "
            "with the question.",
            "additionalProperties": {"type": "object"},
        },
    },
    "required": ["state", "answers"],
    "additionalProperties": False,
}


def answer_definition(name: str) -> dict[str, Any]:
    """The tool that takes the answers, as the schema's `Tool`."""
    return {
        "name": name,
        "title": "Answer questions",
        "description": "Goes on with a call that ended with questions: takes its state and the "
        "answers. The answers are the user's; ask the user, and do not make them up.",
        "inputSchema": _ARGUMENTS,
    }


class InWords:
    """Asks in words, and goes on with the answers."""

    def __init__(
        self, sealer: StateSealer, rows: SessionStore, clock: Clock, answer_tool: str
    ) -> None:
        self._sealer = sealer
        self._rows = rows
        self._clock = clock
        self._answer_tool = answer_tool
        self._arguments = Schema.compile(_ARGUMENTS)

    async def asked(
        self,
        requests: Mapping[str, Any],
        request_state: str,
        call: CallToolParams,
        principal: Principal,
    ) -> ToolResult:
        """The result that asks.

        Args:
            requests: the questions on the wire, by key.
            request_state: that of the round that asks.
            call: the call that was made, with the arguments of its first round.
            principal: who made it, and may answer.

        Raises:
            Unavailable: the state is too long to be copied, and cannot be kept just now.
        """
        facts = [call.name, dict(call.arguments), request_state]
        try:
            state = self._seal(facts, principal)
        except StateTooLarge:
            state = ""
        if not 0 < len(state) <= MAX_STATE:
            data = json.encode(facts)
            if len(data) > MAX_ROW:
                return ToolResult.error(
                    f"This has to ask something, and is too large for that ({len(data):,} bytes "
                    "with its arguments); call with smaller arguments"
                )
            key = f"words.{self._clock.new_id()}"
            # not before the state that has its name
            kept_s = self._sealer.lifetime_s + self._sealer.leeway_s + LEEWAY_S
            forget_ms = self._clock.now_ms() + int(kept_s * 1000)
            await self._rows.put_new(key, data, forget_ms)
            state = self._seal({"row": key}, principal)
        shapes = {key: _shape(request) for key, request in requests.items()}
        example = json.encode({"state": state, "answers": shapes}).decode()
        return ToolResult(
            [
                "This call is not finished: it needs answers to go on.\n\n"
                + questions_in_words(requests)
                + f"\n\nThen call the tool {self._answer_tool} with arguments like these, the "
                "state copied exactly:\n" + example
            ]
        )

    async def continued(self, arguments: Mapping[str, Any], principal: Principal) -> CallToolParams:
        """The next round of the call that asked.

        Raises:
            ToolError: the arguments are wrong, or the state is none of this caller's, or too old.
            Unavailable: what it stands for cannot be read just now.
        """
        if not self._arguments.is_valid(arguments):
            problems = self._arguments.problems(dict(arguments), "arguments")
            raise ToolError(
                "Invalid arguments; correct them and call again:\n"
                + "\n".join(f"- {problem}" for problem in problems)
            )
        facts = await self._facts(arguments["state"], principal)
        match facts:
            case [str(name), dict(called), str(state)]:
                return CallToolParams(
                    name=name,
                    arguments=called,
                    inputResponses=arguments["answers"],
                    requestState=state,
                )
        raise ToolError(
            "This state is not valid: it is too old, not yours, or not copied exactly. Call the "
            "first tool again"
        )

    async def _facts(self, state: str, principal: Principal) -> Any:
        try:
            facts = self._sealer.open(state.strip(), principal, _BINDING).payload
            match facts:
                case {"row": str(key)}:
                    row = await self._rows.read(key)
                    return None if row is None else json.decode(row.value)
        except (StateRefused, ParseError):
            return None
        return facts

    def _seal(self, facts: Any, principal: Principal) -> str:
        return self._sealer.seal(facts, principal, _BINDING, round_=1, origin={})


def requirement_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a client must have declared to be asked a question on the wire,
    shaped as `ClientCapabilities`."""
    params = request.get("params") or {}
    match request.get("method"):
        case "elicitation/create":
            return {"elicitation": {params.get("mode", "form"): {}}}
        case "sampling/createMessage":
            has_tools = params.get("tools") or params.get("toolChoice")
            return {"sampling": {"tools": {}} if has_tools else {}}
    return {"roots": {}}


def questions_in_words(requests: Mapping[str, Any]) -> str:
    """Questions on the wire as text for a model, with what each takes for an answer."""
    return "\n\n".join(_in_words(key, request) for key, request in requests.items())


def _in_words(key: str, request: Mapping[str, Any]) -> str:
    params = request.get("params") or {}
    match request.get("method"):
        case "elicitation/create" if params.get("mode") == "url":
            return (
                f"Question {key}, for the user: {params.get('message', '')}\n"
                "Give the user this address to open themselves, and ask whether they did: "
                f"{params.get('url', '')}\n"
                'The answer is {"action": "accept"} if they did; {"action": "decline"} if they '
                "refuse."
            )
        case "elicitation/create":
            schema = json.encode(params.get("requestedSchema", {})).decode()
            return (
                f"Question {key}, for the user: {params.get('message', '')}\n"
                "Ask the user, and do not make the answer up.\n"
                'The answer is {"action": "accept", "content": …}, where content fits this JSON '
                "Schema:\n"
                f"{schema}\n"
                'or {"action": "decline"} if the user refuses.'
            )
        case "sampling/createMessage":
            told = {name: params[name] for name in ("systemPrompt", "messages") if name in params}
            return (
                f"Question {key}, for you: write the next message of this conversation, in at most"
                f" {params.get('maxTokens', 1000)} tokens.\n{json.encode(told).decode()}\n"
                'The answer is {"role": "assistant", "model": "your name", "content": {"type": '
                '"text", "text": …}}.'
            )
    return (
        f"Question {key}: which directories or files may be worked with?\n"
        'The answer is {"roots": [{"uri": "file:///…"}]}.'
    )


def _shape(request: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer looks like, with gaps."""
    params = request.get("params") or {}
    match request.get("method"):
        case "elicitation/create" if params.get("mode") == "url":
            return {"action": "accept"}
        case "elicitation/create":
            fields = params.get("requestedSchema", {}).get("properties", {})
            return {"action": "accept", "content": dict.fromkeys(fields, "…")}
        case "sampling/createMessage":
            content = {"type": "text", "text": "…"}
            return {"role": "assistant", "model": "…", "content": content}
    return {"roots": [{"uri": "file:///…"}]}
