"""Every error that can reach a client has a code and a status, and no other
code leaves the house."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from mcp_types import _v2026_07_28 as official

import roundgate
from roundgate.errors import (
    AnswerInvalid,
    AnswersUnread,
    ArgumentsRefused,
    AuthError,
    AuthorizationFailed,
    BackendError,
    CallRefused,
    CallTimeout,
    ClientError,
    ConfigError,
    Declined,
    Draining,
    GatewayError,
    HandlerVersionError,
    HeaderMismatch,
    HttpRefused,
    InsufficientScope,
    InternalError,
    InvalidParams,
    InvalidRequest,
    LeaseLost,
    MethodNotFound,
    MissingCapability,
    NeedsCapability,
    NeedsTask,
    NondeterminismError,
    NotJson,
    OutcomeUnknown,
    ParseError,
    PromptNotFound,
    ProtocolError,
    QuotaExceeded,
    RateExceeded,
    ResourceNotFound,
    RpcError,
    ServerAway,
    ServerRefused,
    SessionNotFound,
    StateRefused,
    StateTooLarge,
    StoreAway,
    TaskEnded,
    TaskNotFound,
    TaskTimeout,
    ToolError,
    TooManyRounds,
    TransportError,
    Unanswered,
    Unauthenticated,
    Unavailable,
    Unrepeatable,
    UnsupportedVersion,
    UsageError,
)
from roundgate.protocol.v2026_07_28 import TABLE, look_up, render
from tests.support import wire

ON_THE_WIRE: list[tuple[GatewayError, int, int]] = [
    (ParseError("no JSON"), -32700, 400),
    (InvalidRequest("no message", 7), -32600, 400),
    (MethodNotFound("no method", ["2026-07-28"]), -32601, 404),
    (InvalidParams("no params"), -32602, 400),
    (CallRefused("refund", "policy"), -32602, 400),
    (PromptNotFound("greet"), -32602, 400),
    (ResourceNotFound("file:///a"), -32602, 400),
    (HeaderMismatch("no header"), -32020, 400),
    (MissingCapability("no capability", {"sampling": {}}), -32021, 400),
    (UnsupportedVersion("1900-01-01", ["2026-07-28"]), -32022, 400),
    (TransportError(413, "too large"), -32600, 413),
    (SessionNotFound(), -32600, 404),
    (InternalError("reference"), -32603, 200),
    (ProtocolError("a handler's own"), -32600, 400),
    (StateRefused(), -32602, 400),
    (TaskNotFound(), -32602, 400),
    (Unavailable("not now"), -32600, 503),
    (AnswersUnread("read first"), -32600, 503),
    (ServerAway("not now"), -32600, 503),
    (StoreAway("not now"), -32600, 503),
    (QuotaExceeded(1_000), -32600, 429),
    (RateExceeded("5 a minute", 3), -32600, 429),
    (Draining(), -32600, 503),
]


def tree_of(cls: type[GatewayError]) -> Iterator[type[GatewayError]]:
    """A class and all below it."""
    yield cls
    for below in cls.__subclasses__():
        yield from tree_of(below)


NEVER_ON_THE_WIRE = {
    GatewayError: "the base of the tree",
    ToolError: "a result with isError",
    ArgumentsRefused: "a result with isError",
    CallTimeout: "a result with isError",
    UsageError: "ends a command of the command line",
    Declined: "a result with isError",
    NotJson: "a handler's mistake: a result with isError, or an internal error",
    StateTooLarge: "the same",
    OutcomeUnknown: "a result with isError",
    TaskTimeout: "a result with isError",
    NondeterminismError: "parks a task; in a round the same as a handler's mistake",
    HandlerVersionError: "the same",
    NeedsTask: "a result with isError",
    Unrepeatable: "a result with isError",
    LeaseLost: "ends a worker's turn",
    AuthError: "answered in OAuth's words",
    Unauthenticated: "the same",
    InsufficientScope: "the same",
    **dict.fromkeys(tree_of(BackendError), "a result with isError"),
    **dict.fromkeys(tree_of(ConfigError), "ends the start, or a command"),
    **dict.fromkeys(tree_of(ClientError), "of the client, which answers nobody"),
}

INSTANCE_ARGUMENTS: dict[type[GatewayError], tuple[Any, ...]] = {
    ConfigError: ([],),
    Declined: ("name", "decline"),
    NeedsCapability: ("inside", {}),
    ServerRefused: ("inside", 1),
    AuthError: (None, "inside"),
    Unauthenticated: (None, "inside"),
    InsufficientScope: ("inside", ["scope"]),
    NondeterminismError: ("key", "step one", "step two"),
    HandlerVersionError: ("key", "inside", 1, 2, 3),
    RpcError: (-32603, "inside"),
    HttpRefused: (502, "inside"),
    AuthorizationFailed: (401, "inside"),
    Unanswered: ("inside", ()),
    AnswerInvalid: ("key", ["inside"]),
    TooManyRounds: (3,),
    TaskEnded: ("failed", "inside"),
}


def all_errors() -> set[type[GatewayError]]:
    """Every class of the tree, wherever in the code it is defined."""
    for module in pkgutil.walk_packages(roundgate.__path__, "roundgate."):
        importlib.import_module(module.name)
    found: set[type[GatewayError]] = set()
    left: list[type[GatewayError]] = [GatewayError]
    while left:
        found.add(cls := left.pop())
        left += cls.__subclasses__()
    return {cls for cls in found if cls.__module__.startswith("roundgate.")}


def test_every_class_reaches_the_wire_with_a_code_or_is_known_never_to() -> None:
    reaching = {type(error) for error, _, _ in ON_THE_WIRE}
    assert all_errors() == reaching | NEVER_ON_THE_WIRE.keys()
    assert not reaching & NEVER_ON_THE_WIRE.keys()


@pytest.mark.parametrize(("error", "code", "status"), ON_THE_WIRE)
def test_an_error_has_its_code_and_its_status(error: GatewayError, code: int, status: int) -> None:
    assert (look_up(error).code, look_up(error).status) == (code, status)


@pytest.mark.parametrize("cls", NEVER_ON_THE_WIRE)
def test_what_never_leaves_has_no_row(cls: type[GatewayError]) -> None:
    with pytest.raises(KeyError, match=cls.__name__):
        look_up(cls(*INSTANCE_ARGUMENTS.get(cls, ("inside",))))


def test_every_error_that_is_the_requests_fault_has_a_row_or_an_ancestor_with_one() -> None:
    for error, _, _ in ON_THE_WIRE:
        if type(error) is not ProtocolError:
            assert set(type(error).__mro__) & TABLE.keys() - {ProtocolError}


def test_a_class_that_a_handler_derives_is_answered_as_its_nearest_ancestor() -> None:
    class NotThisResource(ResourceNotFound):
        pass

    class NotToday(ProtocolError):
        pass

    assert look_up(NotThisResource("file:///a")) == TABLE[InvalidParams]
    assert look_up(NotToday("come back tomorrow")) == TABLE[ProtocolError]


def test_only_the_codes_of_the_revision_are_in_the_table() -> None:
    assert {row.code for row in TABLE.values()} == wire.ALLOWED_CODES


def test_only_unavailable_has_a_status_that_invites_retries() -> None:
    assert {row.status for error, row in TABLE.items() if not issubclass(error, Unavailable)} == {
        200,
        400,
        404,
    }
    assert TABLE[Unavailable].status == 503


@pytest.mark.parametrize("status", [403, 405, 406, 413, 415])
def test_a_refusal_of_the_transport_keeps_its_own_status(status: int) -> None:
    assert render(TransportError(status, "no"), None)[0] == status


@pytest.mark.parametrize("error", [error for error, _, _ in ON_THE_WIRE])
@pytest.mark.parametrize("request_id", ["a", "", 0, 1])
def test_every_error_is_well_formed_and_carries_the_id(
    error: GatewayError, request_id: str | int
) -> None:
    status, body = render(error, request_id)
    response = official.JSONRPCErrorResponse.model_validate_json(body, strict=True)
    assert (response.id, response.error.code, response.error.message) == (
        request_id,
        look_up(error).code,
        str(error),
    )
    assert status == look_up(error).status


@pytest.mark.parametrize(
    ("error", "model"),
    [
        (HeaderMismatch("no header"), official.HeaderMismatchError),
        (
            MissingCapability("no", {"elicitation": {"url": {}}}),
            official.MissingRequiredClientCapabilityError,
        ),
        (
            UnsupportedVersion("1900-01-01", ["2026-07-28"]),
            official.UnsupportedProtocolVersionError,
        ),
    ],
)
def test_the_errors_of_the_revision_are_what_the_official_models_expect(
    error: GatewayError, model: Any
) -> None:
    answer = json.loads(render(error, 1)[1])
    assert (
        model.model_validate(answer).model_dump(mode="json", by_alias=True, exclude_none=True)
        == answer
    )


def test_an_unknown_id_is_left_out_never_null() -> None:
    assert json.loads(render(ParseError("no JSON"), None)[1]) == {
        "jsonrpc": "2.0",
        "error": {"code": -32700, "message": "no JSON"},
    }


def test_the_id_that_could_be_read_of_a_bad_request_is_used() -> None:
    assert json.loads(render(InvalidRequest("no", "a"), None)[1])["id"] == "a"
    assert json.loads(render(InvalidRequest("no", 0), None)[1])["id"] == 0
    assert "id" not in json.loads(render(InvalidRequest("no"), None)[1])


@pytest.mark.parametrize(
    ("error", "data"),
    [
        (MethodNotFound("no", ["2026-07-28"]), {"supported": ["2026-07-28"]}),
        (ResourceNotFound("file:///a"), {"uri": "file:///a"}),
        (MissingCapability("no", {"sampling": {}}), {"requiredCapabilities": {"sampling": {}}}),
        (UnsupportedVersion("1", ["2"]), {"supported": ["2"], "requested": "1"}),
    ],
)
def test_facts_travel_as_data(error: GatewayError, data: dict[str, Any]) -> None:
    assert json.loads(render(error, 1)[1])["error"]["data"] == data


@pytest.mark.parametrize(
    "error", [ParseError("no"), MethodNotFound("no"), InvalidParams("no"), InternalError("r")]
)
def test_no_facts_no_data(error: GatewayError) -> None:
    assert "data" not in json.loads(render(error, 1)[1])["error"]


def test_a_text_that_is_no_utf_8_still_leaves_as_json() -> None:
    assert (
        json.loads(render(InvalidParams("bad \ud800 text\r\n"), 1)[1])["error"]["message"]
        == "bad ? text\r\n"
    )
