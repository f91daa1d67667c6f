"""The exceptions that users, operators and other packages see.

An exception that never leaves the package that raises it is defined in that package, below
`Inside`. Classes carry facts, never codes: a revision's `wire_errors` has the JSON-RPC codes and
the HTTP statuses that go with them. Only errors of HTTP itself (`TransportError`, `AuthError`)
carry a status. The caller sees the text of a `ProtocolError`, `TransportError` or `ToolError`, so
it holds no secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Final

from msgspec import Struct

DOUBT: Final = "; the call may have taken effect, so check before you repeat it"
"""The end of an error's text if a service may have processed a request that must not be sent
twice."""


class RoundgateError(Exception):
    """The base of all exceptions of this module except `Suspend`."""

    failed_step: str | None = None
    """The key of the step that failed, if the engine raised the error for a step."""
    reference: str | None = None
    """The reference of the error in the log, if it has been logged."""


class GatewayError(RoundgateError):
    """An error that ends a call, a task, a command or a start."""

    outcome: ClassVar[str] = "error"
    """The outcome of a request that ends with this error, in the log, in spans and in metrics."""

    @property
    def data(self) -> dict[str, Any] | None:
        """Return the `data` member of the JSON-RPC error, or `None` for no such member."""
        return None


class Inside(RoundgateError):
    """An error that the gateway raises and catches itself. The caller sees its result, a
    `GatewayError`, or only a line in the log."""


class AnswerTooLarge(Inside):
    """An answer of a service or server exceeds its limit of bytes."""


class UnknownEncoding(Inside):
    """An answer has an unknown content encoding, or is invalid in its encoding."""


# A request that cannot be served


class ProtocolError(GatewayError):
    """A fault of the request."""


class ParseError(ProtocolError):
    """The body is not JSON that the gateway accepts; it has no readable request id."""


class InvalidRequest(ProtocolError):
    """The body is JSON, but not a single JSON-RPC 2.0 request or notification. `request_id` is the
    request's id, if readable."""

    def __init__(self, message: str, request_id: str | int | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class MethodNotFound(ProtocolError):
    """The server does not serve the method. For `initialize`, `supported_versions` lists the
    revisions that the server speaks."""

    def __init__(self, message: str, supported_versions: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.supported_versions = supported_versions

    @property
    def data(self) -> dict[str, Any] | None:
        return {"supported": list(self.supported_versions)} if self.supported_versions else None


class InvalidParams(ProtocolError):
    """`params` or `params._meta` is malformed, or names an entry that does not exist."""

    rule: str | None = None
    """The rule of `policy` that refuses the request, if one does; the caller does not see it."""


class CallRefused(InvalidParams):
    """The rules of `policy` allow the caller no call of a tool."""

    rule: str

    def __init__(self, tool: str, rule: str) -> None:
        super().__init__(
            f"The policy of this server does not allow you to call {tool}; ask its operator"
        )
        self.rule = rule


class PromptNotFound(InvalidParams):
    """No prompt has this name, or the `rule` refuses it."""

    def __init__(self, name: str, rule: str | None = None) -> None:
        super().__init__(f"Unknown prompt: {name[:MAX_PROMPT]}")
        self.rule = rule


MAX_PROMPT: Final = 64
"""The maximum number of characters of a prompt's name that an error repeats."""
MAX_URI: Final = 200
"""The maximum number of characters of a URI that an error repeats."""


class ResourceNotFound(InvalidParams):
    """No resource has this URI, or the `rule` refuses it."""

    def __init__(self, uri: str, rule: str | None = None) -> None:
        super().__init__(
            f"Resource not found: {uri[:MAX_URI]}; use resources/list and resources/templates/list to find resources"
        )
        self.uri = uri
        self.rule = rule

    @property
    def data(self) -> dict[str, Any] | None:
        return {"uri": self.uri}


REFUSAL: Final = "requestState is not valid for this request; start the call again without it"


class StateRefused(InvalidParams):
    """A `requestState` was refused. Only the log has the reason."""

    def __init__(self) -> None:
        super().__init__(REFUSAL)


class TaskNotFound(InvalidParams):
    """The caller has no task with this id: the id is unknown, expired or malformed, or belongs to
    another caller."""

    def __init__(self) -> None:
        super().__init__(
            "Unknown task: the id does not exist, has expired, or belongs to another caller"
        )


class HeaderMismatch(ProtocolError):
    """A header is missing, malformed, repeated, or disagrees with the body."""


class MissingCapability(ProtocolError):
    """The client lacks capabilities that a call needs. `missing` has exactly these capabilities, in
    the shape of `ClientCapabilities`.

    `what_for` names the tool, prompt or method that needs them; `has_substitute` is True if a
    `fallback` in the configuration can replace them. The text includes all of this and the remedy,
    because many clients show only the text.
    """

    def __init__(
        self, what_for: str, missing: Mapping[str, Any], has_substitute: bool = True
    ) -> None:
        named = ", ".join(_paths(missing))
        super().__init__(
            f"{what_for} needs client capabilities that this request does not declare: {named}. "
            f"Use a client that has them{_substitutes(missing) if has_substitute else ''}"
        )
        self.what_for = what_for
        self.missing = missing
        self.has_substitute = has_substitute

    @property
    def data(self) -> dict[str, Any] | None:
        return {"requiredCapabilities": dict(self.missing)}


_QUESTIONS: Final = frozenset({"elicitation", "sampling", "roots"})


def _substitutes(missing: Mapping[str, Any]) -> str:
    """Return the settings that make the server do without these capabilities."""
    settings = []
    if _QUESTIONS & missing.keys():
        settings.append("fallback.ask_in_words: true")
    if "io.modelcontextprotocol/tasks" in missing.get("extensions", {}):
        settings.append("fallback.without_tasks: wait")
    if not settings:
        return ""
    return f", or set {' and '.join(settings)} in the server's gateway.yaml"


def _paths(missing: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the dotted paths of capabilities, such as `elicitation.form`."""
    for name, inner in missing.items():
        if isinstance(inner, Mapping) and inner:
            yield from _paths(inner, f"{above}{name}.")
        else:
            yield f"{above}{name}"


class UnsupportedVersion(ProtocolError):
    """The server does not speak the protocol revision."""

    def __init__(self, requested: str, supported: Sequence[str]) -> None:
        super().__init__(f"Unsupported protocol version: this server speaks {', '.join(supported)}")
        self.requested = requested
        self.supported = supported

    @property
    def data(self) -> dict[str, Any] | None:
        return {"supported": list(self.supported), "requested": self.requested}


class TransportError(GatewayError):
    """The gateway refused the HTTP request before it read the body as JSON-RPC. `status` is the
    HTTP status, `headers` are sent with it."""

    def __init__(
        self, status: int, message: str, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class SessionNotFound(TransportError):
    """404: the caller has no session with this id; the client must open another."""

    def __init__(self) -> None:
        super().__init__(
            404,
            "Session not found: it has expired, was ended, or is not yours; begin with initialize",
        )


class Unavailable(GatewayError):
    """A part that the answer needs is unavailable; a retry after `retry_s` seconds may succeed. A
    write may have taken effect."""

    retry_s: int = 5


class ServerAway(Unavailable):
    """The MCP server of a tool, prompt or resource has not answered since the gateway started. A call
    of a tool then ends with `isError`, as it does if the server went down later."""


class QuotaExceeded(Unavailable):
    """429: the caller's stored data has reached the limit of `most` bytes. Nothing was written."""

    retry_s = 60

    def __init__(self, most: int) -> None:
        super().__init__(
            f"More than {most:,} bytes would be stored for you (limits.max_stored_bytes). Wait until "
            "earlier tasks, long results and unfinished calls expire, store less per call, or ask the "
            "operator of this server to raise the limit"
        )
        self.most = most


class RateExceeded(Unavailable):
    """429: the caller makes more calls than `rate` allows. The call did not run. `limit` is the
    limit in words, such as "60 a minute"."""

    def __init__(self, limit: str, retry_s: int) -> None:
        super().__init__(f"Too many calls: the limit is {limit}; try again in {retry_s} s")
        self.limit = limit
        self.retry_s = retry_s

    @property
    def data(self) -> dict[str, Any] | None:
        return {"retryAfter": self.retry_s}


class Draining(Unavailable):
    """503: the process is about to stop and has ended the call (`GATEWAY_DRAIN_S`). Another replica
    serves the next call."""

    outcome = "draining"
    retry_s = 1

    def __init__(self) -> None:
        super().__init__(f"The server is being restarted and has ended this call{DOUBT}")

    @property
    def data(self) -> dict[str, Any] | None:
        return {"retryAfter": self.retry_s}


class StoreAway(Unavailable):
    """The rows of a session's calls were unavailable for several attempts. A client that asks for
    its call again may get the result."""


_MAX_REASON: Final = 200
"""The maximum length, in characters, of the reason of an `AuthError`, which may quote a claim."""


class AuthError(GatewayError):
    """The caller is unknown or not allowed. `error` is the code of RFC 6750, `None` if the request
    has no token. `reason` names the failed check for the log, `kind` for metrics."""

    status = 401

    def __init__(
        self,
        error: str | None,
        message: str,
        scopes: Sequence[str] = (),
        *,
        kind: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.error = error
        self.kind = kind or (error or "no token").replace("_", " ")
        self.scopes = scopes
        self.reason = None if reason is None else reason[:_MAX_REASON]


class Unauthenticated(AuthError):
    """401: the request has no valid token."""


class InsufficientScope(AuthError):
    """403: the token lacks `scopes`. `principal` is its caller, for the log, if the request has no
    principal yet."""

    status = 403

    def __init__(self, what: str, scopes: Sequence[str], principal: Any = None) -> None:
        super().__init__("insufficient_scope", f"{what} needs the scope {' '.join(scopes)}", scopes)
        self._what = what
        self.principal = principal

    def renamed(self, rename: Callable[[str], str]) -> InsufficientScope:
        """Return the error with the names under which clients request the scopes."""
        scopes = [rename(scope) for scope in self.scopes]
        return InsufficientScope(self._what, scopes, self.principal)


class InternalError(GatewayError):
    """A fault of the gateway or of a handler. The caller gets one sentence with a reference; the
    log has the details under this reference."""

    def __init__(self, reference: str, shown: str | None = None) -> None:
        """Make the error. `shown` is the cause as the caller sees it, in development only."""
        suffix = f": {shown}" if shown else ""
        super().__init__(
            f"Internal error{suffix}; the server's log has the details under reference {reference}"
        )
        self.reference: str = reference


# Failures of tools: results with `isError`, which the model reads


class ToolError(GatewayError):
    """A tool failed. Raise it in a tool with a text that tells the model how to proceed: the text
    becomes a result with `isError`."""


class ArgumentsRefused(ToolError):
    """A rule of `policy` refuses a call with its arguments. The caller does not see the name of the
    `rule`."""

    def __init__(self, rule: str) -> None:
        super().__init__(
            "The policy of this server does not allow this call with these arguments. Call with other"
            " arguments, or ask the operator of this server"
        )
        self.rule = rule


class AnswersUnread(Unavailable, ToolError):
    """Earlier answers to the caller fill its part of `http.max_unread_bytes`. For a tool that has
    begun, the error is a result with `isError`: a client that repeats a 503 would call it again."""


class BackendError(ToolError):
    """The service behind a tool failed, refused the request, or sent an unusable answer.

    `reason` is a few words for the log ("upstream 503"), without any text of the service.
    """

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class BackendBusy(BackendError):
    """The calls of a back end or tool are at its limits and no place became free in time, or its
    circuit breaker is open. Nothing was sent. A task tries again later, without a worker."""


class FunctionAway(BackendError):
    """A function of AWS Lambda is throttled, unreachable, not ready, or did not answer; a retry may
    succeed. `reached` is True if the function may have been invoked."""

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


class FunctionFailed(BackendError):
    """A function of AWS Lambda raised an error, or AWS Lambda stopped it."""


class NeedsCapability(BackendError):
    """An MCP server refused a request because the client did not declare the capabilities in
    `required`."""

    def __init__(self, message: str, required: Mapping[str, Any]) -> None:
        super().__init__(message, reason="error -32021")
        self.required = required


class ServerRefused(BackendError):
    """An MCP server answered with a JSON-RPC error: its `code`, and its `data` as `details`; `None`
    if it has none."""

    def __init__(self, message: str, code: int, details: Any = None) -> None:
        super().__init__(message, reason=f"error {code}")
        self.code = code
        self.details = details


class NoAnswer(BackendError):
    """A service sent no answer, or only a part of one. `reason` is a few words for the log;
    `reached` is True if the service may have received the request."""

    reason: str  # never None here

    def __init__(self, message: str, reason: str = "", *, reached: bool = True) -> None:
        super().__init__(message, reason=reason)
        self.reached = reached


class JobLeft(BackendError):
    """A job of a service is no longer followed and may still be running."""


class TokenRefused(BackendError):
    """An authorization server answered without a token. `error` is its code of RFC 6749 section
    5.2, if any; `retry_s` is the pause in seconds that it asked for, or 0."""

    def __init__(self, message: str, error: str | None = None, retry_s: float = 0) -> None:
        super().__init__(message)
        self.error = error
        self.retry_s = retry_s


class UnexpectedAnswer(BackendError):
    """The answer of a service does not have the promised form."""


class CallTimeout(ToolError):
    """The call outlived its deadline."""


class NeedsTask(ToolError):
    """The handler waits for the external event `name` in a call that cannot become a task."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"This tool waits for the event {name!r}, for which its call has to be a task. As a "
            "caller: use a client that supports tasks. As the author: declare the tool with "
            'task="required"'
        )
        self.name = name


class OutcomeUnknown(ToolError):
    """The process died during an `at_most_once` step, so the step may or may not have taken effect.

    Catch it to find out. A handler that does not catch it ends, because running the step again
    could repeat its effect.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Step {name!r} began, but its outcome is unknown; check whether it took effect before calling again"
        )
        self.name = name


class TaskTimeout(ToolError):
    """A task took longer than `tasks.task_timeout_s`."""


class Declined(ToolError):
    """The user declined or dismissed a question. Ends the call unless the handler catches it.

    `action` is "decline" or "cancel".
    """

    def __init__(self, name: str, action: str) -> None:
        verb = "declined to answer" if action == "decline" else "dismissed"
        super().__init__(
            f"The user {verb} the question {name!r}, so the call ended without going further"
        )
        self.name = name
        self.action = action


# Errors of the engine that handlers and their tests see


class NotJson(GatewayError, TypeError):
    """A handler passed a value to the engine that JSON cannot represent, so it cannot be stored."""


class Unrepeatable(GatewayError, RuntimeError):
    """A handler waits or asks in a way that no later run can repeat. The message says what to write
    instead, without values of the call, so the caller gets it too."""


SAME_PATH: Final = (
    "The path must depend only on arguments, answers and steps: take times, "
    "random values and ids from ctx.now, ctx.random and ctx.uuid, and run parts concurrently with "
    "ctx.map or ctx.branch"
)


class NondeterminismError(GatewayError):
    """A handler diverged from an earlier run, or took a path that no later run could repeat.

    `key` is the place, if known. If the journal has another entry at that place than the handler
    asks for, `remembered` and `asked` identify the two: a kind, a function, a digest of its
    arguments.
    """

    def __init__(
        self,
        key: str,
        remembered: str | None = None,
        asked: str | None = None,
        *,
        reason: str | None = None,
    ) -> None:
        """Make the error. `reason` replaces the sentence about `remembered` and `asked`."""
        if reason is None:
            reason = (
                f"{key!r} is remembered as {remembered!r}, and the handler now asks for {asked!r} there: it took "
                f"another path than before. {SAME_PATH}"
            )
        elif key:
            reason = f"{key!r}: {reason}"
        super().__init__(reason)
        self.key = key
        self.remembered = remembered
        self.asked = asked


class HandlerVersionError(NondeterminismError):
    """A call has a version of a change (`ctx.version`) that its handler does not support."""

    def __init__(self, key: str, name: str, version: int, oldest: int, newest: int) -> None:
        remedy = (
            "serve the newer handler that already ran the call"
            if version > newest
            else f"serve a handler that has a branch for version {version} and declares it with oldest, "
            "or cancel the call"
        )
        super().__init__(
            key,
            reason=f"the call has version {version} of {name!r}, and its handler supports {oldest} "
            f"to {newest}: {remedy}",
        )
        self.name = name
        self.version = version
        self.is_newer = version > newest


class StateTooLarge(GatewayError):
    """The stored values of a call exceed the limit of a `requestState`."""


class LeaseLost(GatewayError):
    """The worker no longer holds the task: it was cancelled, finished, expired, or claimed by
    another worker. Nothing was written."""


class StepFailed(RoundgateError):
    """A step raised an exception. The handler sees this error in that run and in each replay."""


class StepTimeout(StepFailed):
    """A step took longer than its `timeout_s`."""


class Suspend(BaseException):
    """The end of a run that cannot continue now. Not an `Exception`, so `except Exception` in a
    handler does not catch it."""


class Diverged(RoundgateError, AssertionError):
    """`roundgate_testing`: a handler ended differently after its process died or after it was
    replaced by another version. `findings` has one line for each difference."""

    def __init__(self, tool: str, findings: Sequence[str]) -> None:
        super().__init__(
            "\n  - ".join([f"{tool} does not survive every crash or upgrade:", *findings])
        )
        self.findings = list(findings)


class HistoriesDiverged(RoundgateError, AssertionError):
    """`roundgate_testing`: handlers depart from recorded histories. `findings` has a text for each
    of these."""

    def __init__(self, findings: Sequence[str], count: int) -> None:
        head = f"the handlers depart from {len(findings)} of {count} recorded histories:"
        super().__init__("\n  - ".join([head, *findings]))
        self.findings = list(findings)


class NothingGoesOn(RoundgateError, AssertionError):
    """`roundgate_testing`: a test waits for a task that no worker, answer or timer will
    continue."""


# Configuration and command line


class Problem(Struct, frozen=True):
    """One problem of the configuration: its place, a message and a remedy."""

    file: str
    path: str
    message: str
    remedy: str
    line: int | None = None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.path}: {self.message}\n    → {self.remedy}"


class ConfigError(GatewayError):
    """The configuration is invalid; `problems` has every problem, not just the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class VersionsConflict(ConfigError):
    """No versions of packages satisfy all requirements of a repository."""


class UsageError(GatewayError):
    """The command line, or a file that it names, is unusable."""


# Errors of `roundgate.client`


class Remedy(Enum):
    """The remedy of an error, worded for code that uses the client and for the command line."""

    CREDENTIALS = (
        "give the client auth=",
        "set ROUNDGATE_TOKEN to a bearer token, or add --login",
    )
    OTHER_CREDENTIALS = (
        "give the client another auth=",
        "set ROUNDGATE_TOKEN to another token, or add --login",
    )
    REVISION = (
        "if the server speaks an older revision, select it: versions=['2025-11-25']",
        "if the server speaks an older revision, select it: --revision 2025-11-25",
    )
    BROWSER = (
        "pass open_url=, a function that shows the user the URL",
        "log in on a machine with a browser, or set ROUNDGATE_TOKEN to a bearer token",
    )
    REGISTERED_CLIENT = (
        "give the login the client_id= that is registered at the authorization server",
        "name the client that is registered at the authorization server: --client-id ID",
    )

    def __init__(self, in_code: str, on_command_line: str) -> None:
        self.in_code = in_code
        self.on_command_line = on_command_line


class ClientError(GatewayError):
    """An error of `roundgate.client`. Its text has no credentials, state or answers."""

    def __init__(self, message: str = "", remedy: Remedy | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy

    def __str__(self) -> str:
        return self._with(None if self.remedy is None else self.remedy.in_code)

    @property
    def on_command_line(self) -> str:
        """Return the text with the remedy for the command line."""
        return self._with(None if self.remedy is None else self.remedy.on_command_line)

    def _with(self, remedy: str | None) -> str:
        fact = super().__str__()
        return fact if remedy is None else f"{fact}: {remedy}"


class ConnectionLost(ClientError):
    """There is no connection, or it ended before the whole answer arrived.

    `was_sent` is True if the server may have received the request.
    """

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class TimedOut(ClientError):
    """No answer arrived within the timeout; closing the stream cancelled the request.

    `was_sent` is True if there was a connection, so the server may have received the request.
    """

    def __init__(
        self, message: str, remedy: Remedy | None = None, *, was_sent: bool = True
    ) -> None:
        super().__init__(message, remedy)
        self.was_sent = was_sent


class HttpRefused(ClientError):
    """The server answered with an HTTP status and no JSON-RPC message."""

    def __init__(self, status: int, message: str, remedy: Remedy | None = None) -> None:
        super().__init__(message, remedy)
        self.status = status


class AuthorizationFailed(HttpRefused):
    """The client has no valid credentials, or its login failed."""


class BadAnswer(ClientError):
    """The server violated the protocol, or exceeded a limit of the client."""


class RpcError(ClientError):
    """The server answered with a JSON-RPC error: `code`, `message`, and its `data` as `details`."""

    def __init__(self, code: int, message: str, details: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.details = details


class NoCommonVersion(ClientError):
    """Client and server share no revision of the protocol. `supported` lists the server's
    revisions, if known."""

    def __init__(self, message: str, supported: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.supported = tuple(supported)


class Unanswered(ClientError):
    """The server asks questions for which the client has no answer."""

    def __init__(
        self, message: str, questions: Sequence[Any], request_state: str | None = None
    ) -> None:
        super().__init__(message)
        self.questions = tuple(questions)
        self.request_state = request_state


class AnswerInvalid(ClientError):
    """An answer does not match its question. `key` identifies the question, `problems` has a line
    for each fault."""

    def __init__(self, key: str, problems: Sequence[str]) -> None:
        super().__init__(f"The answer to {key!r} does not fit its question: {'; '.join(problems)}")
        self.key = key
        self.problems = tuple(problems)


class TooManyRounds(ClientError):
    """The server still asks after `rounds` rounds, the limit of the call."""

    def __init__(self, rounds: int) -> None:
        super().__init__(
            f"The server still asks after {rounds} rounds; if the call needs more, raise its max_rounds"
        )
        self.rounds = rounds


class TaskEnded(ClientError):
    """A task ended without a result. `status` is "failed" or "cancelled"; `error` is the error of a
    failed task."""

    def __init__(self, status: str, message: str, error: RpcError | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = error


class WrongHandle(ClientError):
    """The handle of a task is malformed, or belongs to another server."""


# Raised and caught within the gateway


class CallCancelled(Inside):
    """The client cancelled the call or closed its connection."""


class NeedsEngine(Inside):
    """A call that began without the engine cannot end without it. `begun` is the outcome of its first
    request, as its back end knows it, or a `BackendError`; the engine takes the outcome and does not
    send the request again."""

    def __init__(self, begun: Any) -> None:
        super().__init__("the call needs the engine")
        self.begun = begun


class CleanedUp(Inside):
    """The external work of a call was ended, or no such work was found; the text says which."""


class NotCancelled(Inside):
    """A service did not accept the cancellation of a job; a retry may succeed. The text has the
    reason. `job` identifies the job; empty if unknown."""

    def __init__(self, message: str, job: str = "") -> None:
        super().__init__(message)
        self.job = job


class NotRetryable(Inside):
    """The call cannot be retried at the step that failed. The text gives the operator the reason
    and the remedy."""


class NotServedHere(Inside):
    """This worker cannot serve the task, but another may. The text names the missing feature."""


class TaskGivenUp(Inside):
    """The task fails now. The text is the reason, suitable for a `statusMessage`."""


class UnreadableDocument(Inside):
    """An OpenAPI document cannot be read. The text has the reason."""


class UnresolvedReference(Inside):
    """A `${…}` in the configuration has no value, or is malformed."""

    def __init__(self, message: str, remedy: str, *, is_syntax: bool = False) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.is_syntax = is_syntax


class UnusableIndex(Inside):
    """A compiled index is malformed, incomplete, or made from other content."""


class IndexOfAnotherVersion(UnusableIndex):
    """A compiled index was written by another version of Roundgate."""

    def __init__(self) -> None:
        super().__init__("was compiled by another version of Roundgate")


class WorkerFault(Inside):
    """A fault of the gateway rather than of the tool. The text is suitable for a
    `statusMessage`."""


class YamlTooCostly(Inside):
    """A YAML text takes more time or memory to read than a legitimate text. The message continues
    the file's name."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line
