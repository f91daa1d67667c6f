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
from roundgate import errors
from roundgate.errors import GatewayError
from roundgate.protocol.v2026_07_28 import TABLE, look_up, render
from tests.support import wire

ON_THE_WIRE: list[tuple[GatewayError, int, int]] = [
    (errors.ParseError("no JSON"), -32700, 400),
    (errors.InvalidRequest("no message", 7), -32600, 400),
    (errors.MethodNotFound("no method", ["2026-07-28"]), -32601, 404),
    (errors.InvalidParams("no params"), -32602, 400),
    (errors.CallRefused("refund", "policy"), -32602, 400),
    (errors.PromptNotFound("greet"), -32602, 400),
    (errors.ResourceNotFound("file:///a"), -32602, 400),
    (errors.HeaderMismatch("no header"), -32020, 400),
    (errors.MissingCapability("no capability", {"sampling": {}}), -32021, 400),
    (errors.UnsupportedVersion("1900-01-01", ["2026-07-28"]), -32022, 400),
    (errors.TransportError(413, "too large"), -32600, 413),
    (errors.SessionNotFound(), -32600, 404),
    (errors.InternalError("reference"), -32603, 200),
    (errors.ProtocolError("a handler's own"), -32600, 400),
    (errors.StateRefused(), -32602, 400),
    (errors.TaskNotFound(), -32602, 400),
    (errors.Unavailable("not now"), -32600, 503),
    (errors.AnswersUnread("read first"), -32600, 503),
    (errors.ServerAway("not now"), -32600, 503),
    (errors.StoreAway("not now"), -32600, 503),
    (errors.QuotaExceeded(1_000), -32600, 429),
    (errors.RateExceeded("5 a minute", 3), -32600, 429),
    (errors.Draining(), -32600, 503),
]


def tree_of(cls: type[GatewayError]) -> Iterator[type[GatewayError]]:
    """A class and all below it."""
    yield cls
    for below in cls.__subclasses__():
        yield from tree_of(below)


NEVER_ON_THE_WIRE = {
    GatewayError: "the base of the tree",
    errors.ToolError: "a result with isError",
    errors.ArgumentsRefused: "a result with isError",
    errors.CallTimeout: "a result with isError",
    errors.UsageError: "ends a command of the command line",
    errors.Declined: "a result with isError",
    errors.NotJson: "a handler's mistake: a result with isError, or an internal error",
    errors.StateTooLarge: "the same",
    errors.OutcomeUnknown: "a result with isError",
    errors.TaskTimeout: "a result with isError",
    errors.NondeterminismError: "parks a task; in a round the same as a handler's mistake",
    errors.HandlerVersionError: "the same",
    errors.NeedsTask: "a result with isError",
    errors.Unrepeatable: "a result with isError",
    errors.LeaseLost: "ends a worker's turn",
    errors.AuthError: "answered in OAuth's words",
    errors.Unauthenticated: "the same",
    errors.InsufficientScope: "the same",
    **dict.fromkeys(tree_of(errors.BackendError), "a result with isError"),
    **dict.fromkeys(tree_of(errors.ConfigError), "ends the start, or a command"),
    **dict.fromkeys(tree_of(errors.ClientError), "of the client, which answers nobody"),
}

INSTANCE_ARGUMENTS: dict[type[GatewayError], tuple[Any, ...]] = {
    errors.ConfigError: ([],),
    errors.Declined: ("name", "decline"),
    errors.NeedsCapability: ("inside", {}),
    errors.ServerRefused: ("inside", 1),
    errors.AuthError: (None, "inside"),
    errors.Unauthenticated: (None, "inside"),
    errors.InsufficientScope: ("inside", ["scope"]),
    errors.NondeterminismError: ("key", "step one", "step two"),
    errors.HandlerVersionError: ("key", "inside", 1, 2, 3),
    errors.RpcError: (-32603, "inside"),
    errors.HttpRefused: (502, "inside"),
    errors.AuthorizationFailed: (401, "inside"),
    errors.Unanswered: ("inside", ()),
    errors.AnswerInvalid: ("key", ["inside"]),
    errors.TooManyRounds: (3,),
    errors.TaskEnded: ("failed", "inside"),
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


@pytest.mark.parametrize("cls", NEVER_ON_THE_WIRE)
def test_what_never_leaves_has_no_row(cls: type[GatewayError]) -> None:
    with pytest.raises(KeyError, match=cls.__name__):
        look_up(cls(*INSTANCE_ARGUMENTS.get(cls, ("inside",))))


def test_every_error_that_is_the_requests_fault_has_a_row_or_an_ancestor_with_one() -> None:
    for error, _, _ in ON_THE_WIRE:
        if type(error) is not errors.ProtocolError:
            assert set(type(error).__mro__) & TABLE.keys() - {errors.ProtocolError}


def test_a_class_that_a_handler_derives_is_answered_as_its_nearest_ancestor() -> None:
    class NotThisResource(errors.ResourceNotFound):
        pass

    class NotToday(errors.ProtocolError):
        pass

    assert look_up(NotThisResource("file:///a")) == TABLE[errors.InvalidParams]
    assert look_up(NotToday("come back tomorrow")) == TABLE[errors.ProtocolError]


def test_only_the_codes_of_the_revision_are_in_the_table() -> None:
    assert {row.code for row in TABLE.values()} == wire.ALLOWED_CODES


def test_only_unavailable_has_a_status_that_invites_retries() -> None:
    assert {
        row.status for error, row in TABLE.items() if not issubclass(error, errors.Unavailable)
    } == {
        200,
        400,
        404,
    }
    assert TABLE[errors.Unavailable].status == 503


@pytest.mark.parametrize("status", [403, 405, 406, 413, 415])
def test_a_refusal_of_the_transport_keeps_its_own_status(status: int) -> None:
    assert render(errors.TransportError(status, "no"), None)[0] == status


@pytest.mark.parametrize(("error", "code", "status"), ON_THE_WIRE)
def test_every_error_has_its_code_and_its_status_and_carries_the_id(
    error: GatewayError, code: int, status: int
) -> None:
    for request_id in ("a", "", 0, 1):
        sent, body = render(error, request_id)
        response = official.JSONRPCErrorResponse.model_validate_json(body, strict=True)
        assert (sent, response.id, response.error.code) == (status, request_id, code)
        assert response.error.message == str(error)


@pytest.mark.parametrize(
    ("error", "model"),
    [
        (errors.HeaderMismatch("no header"), official.HeaderMismatchError),
        (
            errors.MissingCapability("no", {"elicitation": {"url": {}}}),
            official.MissingRequiredClientCapabilityError,
        ),
        (
            errors.UnsupportedVersion("1900-01-01", ["2026-07-28"]),
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
    assert json.loads(render(errors.ParseError("no JSON"), None)[1]) == {
        "jsonrpc": "2.0",
        "error": {"code": -32700, "message": "no JSON"},
    }


def test_the_id_that_could_be_read_of_a_bad_request_is_used() -> None:
    assert json.loads(render(errors.InvalidRequest("no", "a"), None)[1])["id"] == "a"
    assert json.loads(render(errors.InvalidRequest("no", 0), None)[1])["id"] == 0
    assert "id" not in json.loads(render(errors.InvalidRequest("no"), None)[1])


@pytest.mark.parametrize(
    ("error", "data"),
    [
        (errors.MethodNotFound("no", ["2026-07-28"]), {"supported": ["2026-07-28"]}),
        (errors.ResourceNotFound("file:///a"), {"uri": "file:///a"}),
        (errors.MissingCapability("no", {"roots": {}}), {"requiredCapabilities": {"roots": {}}}),
        (errors.UnsupportedVersion("1", ["2"]), {"supported": ["2"], "requested": "1"}),
        (errors.ParseError("no"), None),
        (errors.MethodNotFound("no"), None),
        (errors.InvalidParams("no"), None),
        (errors.InternalError("r"), None),
    ],
)
def test_facts_travel_as_data_and_without_facts_there_is_none(
    error: GatewayError, data: dict[str, Any] | None
) -> None:
    told = json.loads(render(error, 1)[1])["error"]
    assert told.get("data") == data
    assert ("data" in told) == (data is not None)


def test_a_text_that_is_no_utf_8_still_leaves_as_json() -> None:
    assert (
        json.loads(render(errors.InvalidParams("bad \ud800 text\r\n"), 1)[1])["error"]["message"]
        == "bad ? text\r\n"
    )
