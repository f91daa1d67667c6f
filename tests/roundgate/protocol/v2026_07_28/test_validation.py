"""Validating requests: each mistake alone, every two together, and whatever else may come."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import _v2026_07_28 as official

from roundgate.errors import (
    HeaderMismatch,
    InvalidParams,
    MethodNotFound,
    ProtocolError,
    UnsupportedVersion,
)
from roundgate.methods.extensions import ROUTES
from roundgate.protocol import v2026_07_28
from roundgate.protocol.jsonrpc import (
    LOG_LEVELS,
    SUPPORTED_VERSIONS,
    Headers,
    Inbound,
    Notification,
)
from roundgate.protocol.v2026_07_28 import (
    CLIENT_INFO_KEY,
    LOG_LEVEL_KEY,
    METHODS,
    validate_request,
)
from tests.support import json_values, wire
from tests.support.long import examples

FEATURES = frozenset({"tools", "resources", "prompts", "completions", "subscriptions", "tasks"})
OTHER_VERSION = "v999.0.0"


@dataclass
class Draft:
    """A correct request, ready to be spoilt."""

    message: dict[str, Any]
    headers: dict[str, str]
    twice: str | None = None

    @property
    def meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = self.message["params"]["_meta"]
        return meta

    def validate(self, features: frozenset[str] = FEATURES) -> Inbound:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        raw += [(self.twice.encode(), b"add")] * 2 if self.twice else []
        request = wire.parse(json.dumps(self.message).encode())
        assert not isinstance(request, Notification)
        return validate_request(request, Headers.of(raw), features, ROUTES)

    def error(self) -> ProtocolError:
        with pytest.raises(ProtocolError) as caught:
            self.validate()
        return caught.value


def draft(method: str = "tools/call", **params: Any) -> Draft:
    message = wire.message(method, params or {"name": "add", "arguments": {"a": 1}})
    return Draft(message, wire.headers(message))


# --- requests that pass ---


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_about_a_task_the_name_may_be_missing_but_not_another(method: str) -> None:
    asked = draft(method, taskId="one")
    del asked.headers["mcp-name"]
    assert asked.validate().params["taskId"] == "one"
    asked.headers["mcp-name"] = "other"
    assert isinstance(asked.error(), HeaderMismatch)


@pytest.mark.parametrize("method", METHODS)
def test_a_correct_request_of_every_method_passes(method: str) -> None:
    request = draft(method, name="add", uri="file:///a", taskId="t")
    passed = request.validate()
    named = METHODS[method].named_by
    assert (passed.id, passed.method, passed.version) == (1, method, "2026-07-28")
    assert passed.name == (None if named is None else request.message["params"][named])
    assert passed.params == request.message["params"]


def test_a_request_needs_no_more_than_version_and_capabilities() -> None:
    request = draft("server/discover")
    del request.meta[CLIENT_INFO_KEY]
    meta = request.validate().meta
    assert (meta.client_info, meta.log_level, meta.progress_token) == (None, None, None)


def test_the_envelope_is_read() -> None:
    request = draft()
    request.meta.update(
        {LOG_LEVEL_KEY: "warning", "progressToken": "p", "traceparent": "00", "x.y/z": []}
    )
    request.meta[wire.PREFIX + "clientCapabilities"] = {"roots": {"listChanged": True}}
    meta = request.validate().meta
    assert meta.client_info == {"name": "tests", "version": "1"}
    assert (meta.log_level, meta.progress_token) == ("warning", "p")
    assert meta.capabilities.declared == {"roots": {"listChanged": True}}


def test_log_levels_are_those_of_the_schema() -> None:
    for level in LOG_LEVELS:
        official.LoggingMessageNotificationParams.model_validate({"level": level, "data": ""})
        request = draft()
        request.meta[LOG_LEVEL_KEY] = level
        assert request.validate().meta.log_level == level


@pytest.mark.parametrize("token", ["", "a", 0, -1, 2**70])
def test_a_progress_token_is_a_string_or_an_integer(token: Any) -> None:
    request = draft()
    request.meta["progressToken"] = token
    assert request.validate().meta.progress_token == token


@pytest.mark.parametrize("token", [None, True, False, 1.5, 1.0, [], {"a": 1}])
def test_any_other_progress_token_is_ignored(token: Any) -> None:
    request = draft()
    request.meta["progressToken"] = token
    assert request.validate().meta.progress_token is None


def test_optional_members_of_the_envelope_may_be_null() -> None:
    request = draft()
    request.meta.update({CLIENT_INFO_KEY: None, LOG_LEVEL_KEY: None})
    assert request.validate().meta.client_info is None


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("add", " add\t"),
        ("add", "=?base64?YWRk?="),
        ("größe", "=?base64?Z3LDtsOfZQ==?="),
        (" add ", "=?base64?IGFkZCA=?="),
        ("", ""),
    ],
)
def test_mcp_name_is_decoded_before_it_is_compared(name: str, header: str) -> None:
    request = draft(name=name)
    request.headers["mcp-name"] = header
    assert request.validate().params["name"] == name


@pytest.mark.parametrize(
    "method", [name for name, method in METHODS.items() if method.named_by is None]
)
def test_where_no_name_is_mirrored_the_header_is_ignored(method: str) -> None:
    request = draft(method, name="a")
    request.headers["mcp-name"] = "=?base64?!?="
    request.validate()


# --- one mistake ---


def without_header(name: str) -> Callable[[Draft], None]:
    return lambda request: request.headers.__delitem__(name)


def header(name: str, value: str) -> Callable[[Draft], None]:
    return lambda request: request.headers.__setitem__(name, value)


def without_meta(key: str) -> Callable[[Draft], None]:
    return lambda request: request.meta.__delitem__(wire.PREFIX + key)


def meta(key: str, value: Any) -> Callable[[Draft], None]:
    return lambda request: request.meta.__setitem__(wire.PREFIX + key, value)


def param(name: str, value: Any) -> Callable[[Draft], None]:
    return lambda request: request.message["params"].__setitem__(name, value)


def twice(name: str) -> Callable[[Draft], None]:
    return lambda request: setattr(request, "twice", name)


def without_envelope(request: Draft) -> None:
    del request.message["params"]["_meta"]


def other_version(request: Draft) -> None:
    request.headers["mcp-protocol-version"] = request.meta[wire.PREFIX + "protocolVersion"] = (
        OTHER_VERSION
    )


def other_method(request: Draft) -> None:
    request.headers["mcp-method"] = request.message["method"] = "unknown/method"


@dataclass(frozen=True)
class Mistake:
    check: float
    name: str
    make: Callable[[Draft], None]
    error: type[ProtocolError]
    says: str


def mismatch(check: float, name: str, make: Callable[[Draft], None], says: str) -> Mistake:
    return Mistake(check, name, make, HeaderMismatch, says)


def invalid(check: float, name: str, make: Callable[[Draft], None], says: str) -> Mistake:
    return Mistake(check, name, make, InvalidParams, says)


# Numbers as in the docstring of `validation`; 4.5 is the second half of check 4.
MISTAKES = [
    mismatch(1, "version twice", twice("mcp-protocol-version"), "-version is sent more than once"),
    mismatch(1, "name twice", twice("mcp-name"), "mcp-name is sent more than once"),
    mismatch(1, "no version", without_header("mcp-protocol-version"), "-Version is missing"),
    mismatch(1, "no method", without_header("mcp-method"), "Mcp-Method is missing"),
    mismatch(1, "other method", header("mcp-method", "prompts/list"), "Mcp-Method does not match"),
    mismatch(1, "METHOD", header("mcp-method", "TOOLS/CALL"), "Mcp-Method does not match"),
    invalid(2, "no _meta", without_envelope, "params._meta must be an object"),
    invalid(2, "_meta is a list", param("_meta", []), "params._meta must be an object"),
    invalid(2, "no body version", without_meta("protocolVersion"), "lacks the required"),
    invalid(2, "version is null", meta("protocolVersion", None), "must be a string"),
    invalid(2, "no capabilities", without_meta("clientCapabilities"), "lacks the required"),
    invalid(2, "null capabilities", meta("clientCapabilities", None), "{} declares no capability"),
    invalid(2, "capabilities list", meta("clientCapabilities", []), "{} declares no capability"),
    mismatch(
        3, "versions differ", header("mcp-protocol-version", "2025-11-25"), "does not match _meta"
    ),
    Mistake(4, "bad version", other_version, UnsupportedVersion, "this server speaks 2026-07-28"),
    invalid(
        4.5, "true capability", meta("clientCapabilities", {"a": True}), ".a must be an object"
    ),
    invalid(4.5, "client info", meta("clientInfo", "tests 1"), "an object with name and version"),
    invalid(4.5, "log level unknown", meta("logLevel", "loud"), "must be one of debug"),
    invalid(4.5, "log level list", meta("logLevel", ["info"]), "must be one of debug"),
    Mistake(5, "method unknown", other_method, MethodNotFound, "Method not found: unknown/method"),
    mismatch(
        6, "no name", without_header("mcp-name"), "Mcp-Name is missing; it must mirror params.name"
    ),
    mismatch(6, "other name", header("mcp-name", "sub"), "Mcp-Name does not match params.name"),
    mismatch(6, "NAME", header("mcp-name", "ADD"), "Mcp-Name does not match params.name"),
    mismatch(6, "name no base64", header("mcp-name", "=?base64?YWRk=?="), "not well-formed base64"),
    mismatch(6, "name not ASCII", header("mcp-name", "\xe4dd"), "outside visible ASCII"),
    invalid(6, "name is a number", param("name", 5), "params.name must be a string"),
]
HIGHEST = MISTAKES[-1].check


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_each_mistake_has_its_error(mistake: Mistake) -> None:
    request = draft()
    mistake.make(request)
    error = request.error()
    assert type(error) is mistake.error
    assert mistake.says in str(error)


@pytest.mark.parametrize(
    "lower", [one for one in MISTAKES if one.check < HIGHEST], ids=lambda mistake: mistake.name
)
def test_of_two_mistakes_the_one_of_the_earlier_check_is_told(lower: Mistake) -> None:
    alone = draft()
    lower.make(alone)
    expected = alone.error()
    for higher in MISTAKES:
        if higher.check > lower.check:
            both = draft()
            higher.make(both)
            lower.make(both)
            told = both.error()
            assert (type(told), str(told)) == (type(expected), str(expected)), higher.name


def test_a_version_that_is_not_spoken_is_told_which_are() -> None:
    request = draft()
    other_version(request)
    assert request.error().data == {
        "supported": list(SUPPORTED_VERSIONS),
        "requested": OTHER_VERSION,
    }


@pytest.mark.parametrize("version", ["2025-11-25", "2024-11-05", "", "2026-07-28 ", "2026-07-28\n"])
def test_other_revisions_do_not_pass(version: str) -> None:
    request = draft()
    request.headers["mcp-protocol-version"] = request.meta[wire.PREFIX + "protocolVersion"] = (
        version
    )
    assert isinstance(request.error(), (UnsupportedVersion, HeaderMismatch))


@pytest.mark.parametrize(
    "method", [name for name, method in METHODS.items() if method.feature is not None]
)
def test_a_method_is_served_only_with_its_feature(method: str) -> None:
    request = draft(method, name="add", uri="file:///a", taskId="t")
    with pytest.raises(MethodNotFound, match="see server/discover"):
        request.validate(FEATURES - {METHODS[method].feature or ""})


def test_discovery_needs_no_feature() -> None:
    draft("server/discover").validate(frozenset())


@pytest.mark.parametrize(
    "params", [{}, {"_meta": {}}, {"protocolVersion": "2025-11-25", "capabilities": {}}]
)
@pytest.mark.parametrize(
    "sent", [{}, {"mcp-protocol-version": "2025-11-25"}, {"mcp-method": "tools/list"}]
)
def test_initialize_is_told_the_versions_whatever_else_is_wrong(
    params: dict[str, Any], sent: dict[str, str]
) -> None:
    request = Draft({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}, sent)
    error = request.error()
    assert isinstance(error, MethodNotFound)
    assert error.data == {"supported": list(SUPPORTED_VERSIONS)}


def test_only_the_prefixed_names_count() -> None:
    request = draft()
    bare = {name.removeprefix(wire.PREFIX): value for name, value in request.meta.items()}
    request.message["params"]["_meta"] = bare
    assert isinstance(request.error(), InvalidParams)


# --- anything ---

JSON = json_values.values()
ODD_TEXT = st.sampled_from(
    ["", "2026-07-28", OTHER_VERSION, "tools/call", "initialize", "tools/list", "a\r\nb"]
)
ODD = JSON | ODD_TEXT
PATHS = [
    *(("jsonrpc",), ("id",), ("method",), ("params",), ("params", "name"), ("params", "_meta")),
    *(
        ("params", "_meta", wire.PREFIX + key)
        for key in ("protocolVersion", "clientCapabilities", "clientInfo")
    ),
    *(("params", "_meta", key) for key in (wire.PREFIX + "logLevel", "progressToken")),
    ("params", "_meta", wire.PREFIX + "clientCapabilities", "sampling"),
]
HEADER_NAMES = st.sampled_from(
    [b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-param-a", b"accept"]
)
HEADER_VALUES = st.one_of(
    st.binary(max_size=12), ODD_TEXT.map(str.encode), st.just(b"=?base64?YWRk?=")
)


def put(message: Any, path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        message = message.get(key) if isinstance(message, dict) else None
    if isinstance(message, dict):
        message[path[-1]] = value


@st.composite
def spoilt(draw: st.DrawFn) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """A correct request with up to three values and up to two headers put wrong."""
    message = deepcopy(
        draft(draw(st.sampled_from([*METHODS, "ping"])), name="add", uri="a", taskId="t").message
    )
    raw = [(name.encode(), value.encode()) for name, value in wire.headers(message).items()]
    for path in draw(st.lists(st.sampled_from(PATHS), max_size=3)):
        put(message, path, draw(ODD))
    for name in draw(st.lists(HEADER_NAMES, max_size=2)):
        raw = [pair for pair in raw if pair[0] != name or draw(st.booleans())] + [
            (name, draw(HEADER_VALUES))
        ]
    return json.dumps(message).encode(), raw


ANYTHING = st.tuples(
    json_values.objects().map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40),
    st.lists(st.tuples(HEADER_NAMES | st.binary(max_size=8), HEADER_VALUES), max_size=4),
)


@given(st.one_of(spoilt(), spoilt(), spoilt(), ANYTHING))
@examples(250)
def test_whatever_comes_is_let_in_or_answered_with_one_allowed_error(
    sent: tuple[bytes, list[Any]],
) -> None:
    body, raw = sent
    request_id = None
    try:
        message = wire.parse(body)
        if isinstance(message, Notification):
            return
        request_id = message.id
        passed = validate_request(message, Headers.of(raw), FEATURES, ROUTES)
    except ProtocolError as error:
        status, answer = v2026_07_28.render(error, request_id)
        response = official.JSONRPCErrorResponse.model_validate_json(answer)
        assert (status, response.error.code in wire.ALLOWED_CODES) in [(400, True), (404, True)]
        return
    assert isinstance(passed, Inbound)
    assert passed.params["_meta"][wire.PREFIX + "protocolVersion"] == "2026-07-28"
