"""Every exception that `roundgate` raises on purpose; there is none outside of this module.

Standard library only; the bottom of every import chain.

    RoundgateError
    ├── GatewayError                      what a call, a task or a start can end with
    │   ├── ProtocolError                 the request is at fault; answered as a JSON-RPC error
    │   │   ├── ParseError                the body is not the JSON we accept
    │   │   ├── InvalidRequest            JSON, but not one JSON-RPC request or notification
    │   │   ├── MethodNotFound            a method that this server does not serve
    │   │   ├── InvalidParams             params or `_meta` have the wrong shape, or name something that does not exist
    │   │   │   ├── ResourceNotFound      no resource has the URI
    │   │   │   ├── StateRefused          a requestState that is not taken: one sentence, whatever the reason
    │   │   │   └── TaskNotFound          no task of the caller's has the id: one sentence, whatever the reason
    │   │   ├── HeaderMismatch            a header is missing, malformed, or disagrees with the body
    │   │   ├── MissingCapability         the client did not declare a capability that the call needs
    │   │   └── UnsupportedVersion        a protocol revision that this server does not speak
    │   ├── TransportError                refused before JSON-RPC: Host, Origin, media type, size, HTTP method
    │   │   └── SessionNotFound           404: no session of the caller's has the id: one sentence, whatever the reason
    │   ├── Unavailable                   not now: a store, a queue or a place that is needed cannot be had
    │   ├── AuthError                     answered in OAuth's words (RFC 6750), not as JSON-RPC
    │   │   ├── Unauthenticated           401: no token, or none that holds
    │   │   └── InsufficientScope         403: the token's scopes do not cover the call
    │   ├── InternalError                 our own fault, or a handler's where the protocol has no tool error
    │   ├── ToolError                     a tool's own failure: a result with `isError`, not a JSON-RPC error
    │   │   ├── BackendError              what the service behind a tool did wrong
    │   │   │   ├── FunctionAway          a function of AWS Lambda cannot be invoked just now, or has not answered
    │   │   │   ├── FunctionFailed        a function of AWS Lambda ended with an error of its own
    │   │   │   ├── NoAnswer              it gave none, or not a whole one
    │   │   │   ├── TokenRefused          its authorization server gave the gateway no token
    │   │   │   └── UnexpectedAnswer      its answer is not what was promised
    │   │   ├── CallTimeout               the call outlived its deadline
    │   │   ├── OutcomeUnknown            an `at_most_once` step was begun, and whoever ran it died
    │   │   ├── TaskTimeout               a task took longer than a task may
    │   │   └── Declined                  the user declined a question or dismissed it
    │   ├── NotJson                       a handler had something remembered that JSON cannot hold
    │   ├── NondeterminismError           a handler went another way than when what is remembered was
    │   ├── StateTooLarge                 a handler had more remembered than may travel
    │   ├── LeaseLost                     a task is no longer this worker's to write to
    │   ├── ConfigError                   gateway.yaml or the environment is wrong; carries every problem found
    │   │   └── VersionsConflict          no versions of packages satisfy everybody who wants some
    │   ├── UsageError                    what was said on the command line, or in a file that it names, cannot be used
    │   └── ClientError                   what `roundgate.client` raises: a server could not be used as was asked
    │       ├── ConnectionLost            no connection, or it ended before the answer was whole
    │       ├── TimedOut                  no answer within the time that was given
    │       ├── HttpRefused               an HTTP status without a JSON-RPC message
    │       │   └── AuthorizationFailed   no access: no credentials, none that are taken, or a login that went wrong
    │       ├── BadAnswer                 the server sent something that the protocol does not allow, or too much
    │       ├── RpcError                  the server answered with a JSON-RPC error
    │       ├── NoCommonVersion           client and server share no revision of the protocol
    │       ├── Unanswered                the server asks, and nothing that was given answers
    │       ├── AnswerInvalid             an answer that was given does not fit its question
    │       ├── TooManyRounds             the server asks more often than it may
    │       ├── TaskEnded                 a task ended without a result: failed, or cancelled
    │       └── WrongHandle               a task's handle that is malformed, or is another server's
    ├── StepFailed                        a step raised: what the handler sees, now and in every replay
    │   └── StepTimeout                   a step was not over within its `timeout_s`
    ├── Diverged                          `roundgate.testing`: a handler does not survive the death of its process
    ├── NothingGoesOn                     `roundgate.testing`: what is waited for will never come
    └── Inside                            raised and caught within the gateway; no client sees one
        ├── AnswerTooLarge                a service's answer has more bytes than it may
        ├── CallCancelled                 a client of an older revision has cancelled its call
        ├── HandlerExited                 a handler called `sys.exit()`, or raised what would end the process
        ├── InvocationFailed              a function of the local stack raised, timed out, or its process died
        │   ├── PayloadTooLarge           its event is larger than AWS Lambda takes
        │   └── Throttled                 as many functions run there as may run at once
        ├── KeysUnavailable               the keys of an issuer have never been read
        ├── NotNow                        a service's job cannot be asked for just now
        ├── NotServedHere                 this worker cannot serve a task, another may
        ├── NotYet                        an answer of an older client has not come yet
        ├── OAuthRefused                  an authorization server's answer that is no success
        ├── PortTaken                     a port that was free is another process's by now
        ├── RequestMalformed              a request that a stand-in or a recording proxy does not take
        ├── SealBroken                    a token that cannot be opened
        ├── SessionOver                   an older server has forgotten the client's session
        ├── TaskGivenUp                   a task fails now, whatever its handler would do
        ├── TryLater                      a server said that it cannot answer its client now
        ├── UnboundPlaceholder            a placeholder of a cassette that stands for nothing yet
        ├── UnfitAnswer                   a response does not fit the question that was asked
        ├── UnknownEncoding               a service's answer is packed in a way that was not asked for
        ├── UnknownEntry                  a journal's entry of a kind that a later version wrote
        ├── UnreadableDocument            a document of OpenAPI cannot be had
        ├── UnresolvedReference           a `${…}` in the configuration leads to nothing, or is none
        ├── UnusableIndex                 a compiled index that is none of ours, not whole, or of something else
        │   └── IndexOfAnotherVersion     one that another version of Roundgate has written
        ├── UnusableOperation             an operation of OpenAPI that cannot be offered as a tool
        ├── UnusableReturn                a handler returned what has no JSON, or does not conform to its schema
        └── WorkerFault                   what is wrong with a worker rather than with the tool

    Suspend                               a `BaseException`, because no handler must catch it: ends a run for now

Classes carry facts, never codes: a revision's `wire_errors` knows JSON-RPC codes and the statuses that go with them.
What HTTP itself refuses (`TransportError`, `AuthError`) knows its status; nothing else knows of HTTP.
The text of a `ProtocolError`, `TransportError` or `ToolError` is said to the caller, so it must not hold secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from roundgate.values import dataclass


class RoundgateError(Exception):
    """Base of the tree."""


class GatewayError(RoundgateError):
    """What a call, a task or a start can end with."""

    @property
    def data(self) -> dict[str, Any] | None:
        """What goes into the `data` member of the JSON-RPC error, if anything."""
        return None


class ProtocolError(GatewayError):
    """The request is at fault."""


class ParseError(ProtocolError):
    """The body is not the JSON we accept; no request id could be read."""


class InvalidRequest(ProtocolError):
    """JSON, but not one JSON-RPC 2.0 request or notification. `request_id` is the id where it could be read."""

    def __init__(self, message: str, request_id: str | int | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class MethodNotFound(ProtocolError):
    """A method that this server does not serve. `supported_versions` is told to clients that try `initialize`."""

    def __init__(self, message: str, supported_versions: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.supported_versions = supported_versions

    @property
    def data(self) -> dict[str, Any] | None:
        return {"supported": list(self.supported_versions)} if self.supported_versions else None


class InvalidParams(ProtocolError):
    """`params` or `params._meta` has the wrong shape, or names something that does not exist."""


MAX_URI: Final = 200
"""Characters of a URI that an error repeats."""


class ResourceNotFound(InvalidParams):
    """No resource has this URI."""

    def __init__(self, uri: str) -> None:
        super().__init__(
            f"Resource not found: {uri[:MAX_URI]}; resources/list and resources/templates/list say what can be read"
        )
        self.uri = uri

    @property
    def data(self) -> dict[str, Any] | None:
        return {"uri": self.uri}


REFUSAL: Final = "requestState is not valid for this request; start the call again without it"


class StateRefused(InvalidParams):
    """A `requestState` that is not taken; why is in the log alone."""

    def __init__(self) -> None:
        super().__init__(REFUSAL)


class TaskNotFound(InvalidParams):
    """A task id that the caller has no task under: unknown, expired, malformed, or somebody else's."""

    def __init__(self) -> None:
        super().__init__(
            "Unknown task: there is none with this id, it has expired, or it is not yours"
        )


class HeaderMismatch(ProtocolError):
    """A header is missing, malformed, repeated, or disagrees with the body."""


class MissingCapability(ProtocolError):
    """`missing` is shaped like `ClientCapabilities`: exactly what the client would have to declare in addition.

    `what_for` is what needs it; the text names both, because many clients show nothing else.
    """

    def __init__(self, what_for: str, missing: Mapping[str, Any]) -> None:
        named = ", ".join(_paths(missing))
        super().__init__(
            f"{what_for} needs client capabilities that this request does not declare: {named}"
        )
        self.what_for = what_for
        self.missing = missing

    @property
    def data(self) -> dict[str, Any] | None:
        return {"requiredCapabilities": dict(self.missing)}


def _paths(missing: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """`{"elicitation": {"form": {}}, "roots": {}}` as elicitation.form, roots."""
    for name, inner in missing.items():
        if isinstance(inner, Mapping) and inner:
            yield from _paths(inner, f"{above}{name}.")
        else:
            yield f"{above}{name}"


class UnsupportedVersion(ProtocolError):
    """A protocol revision that this server does not speak."""

    def __init__(self, requested: str, supported: Sequence[str]) -> None:
        super().__init__(f"Unsupported protocol version: this server speaks {', '.join(supported)}")
        self.requested = requested
        self.supported = supported

    @property
    def data(self) -> dict[str, Any] | None:
        return {"supported": list(self.supported), "requested": self.requested}


class TransportError(GatewayError):
    """Refused before JSON-RPC is looked at; `status` is the HTTP status of RFC 9110, `headers` go with it."""

    def __init__(
        self, status: int, message: str, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class SessionNotFound(TransportError):
    """404: a session id that is not taken; the client has to open another session."""

    def __init__(self) -> None:
        super().__init__(
            404,
            "Session not found: it has expired, was ended, or is not yours; begin with initialize",
        )


class Unavailable(GatewayError):
    """What is needed to answer cannot be had just now: try again in `retry_s` seconds. A write may have happened."""

    retry_s: Final = 5


class AuthError(GatewayError):
    """The caller is not known or not allowed. `error` is RFC 6750's code, `None` if no token was sent at all."""

    status = 401

    def __init__(self, error: str | None, message: str, scopes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.error = error
        self.scopes = scopes


class Unauthenticated(AuthError):
    """401: no token, or none that holds."""


class InsufficientScope(AuthError):
    """403: `scopes` are those that a new token would need."""

    status = 403

    def __init__(self, what: str, scopes: Sequence[str]) -> None:
        super().__init__("insufficient_scope", f"{what} needs the scope {' '.join(scopes)}", scopes)


class InternalError(GatewayError):
    """Our own fault, or a handler's. The wire gets one sentence with the reference under which the log has the rest."""

    def __init__(self, reference: str, shown: str | None = None) -> None:
        """`shown` is what its caller sees of the cause, in development."""
        said = f": {shown}" if shown else ""
        super().__init__(
            f"Internal error{said}; the server's log has the details under reference {reference}"
        )
        self.reference = reference


class ToolError(GatewayError):
    """Raise it in a tool: its text goes to the model as a result with `isError`, so say what to do differently."""


class BackendError(ToolError):
    """The service behind a tool failed, refused, or answered something unusable.

    `reason` says in a word or two for the log what is wrong ("upstream 503"), without anything that the service said.
    """

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class FunctionAway(BackendError):
    """A function of AWS Lambda is throttled, away, not ready, or has not answered: another time may go better."""


class FunctionFailed(BackendError):
    """A function of AWS Lambda ended with an error of its own, or was ended."""


class NoAnswer(BackendError):
    """A service gave no answer, or not a whole one. `reason` is why, in a few words; `reached` is whether the request
    may have come to it."""

    reason: str

    def __init__(self, message: str, reason: str = "", *, reached: bool = True) -> None:
        super().__init__(message, reason=reason)
        self.reached = reached


class TokenRefused(BackendError):
    """An authorization server has answered, but not with a token. `error` is a word of RFC 6749 section 5.2, if it said
    one; `retry_s` for how long it asks to be left alone, 0 where it does not."""

    def __init__(self, message: str, error: str | None = None, retry_s: float = 0) -> None:
        super().__init__(message)
        self.error = error
        self.retry_s = retry_s


class UnexpectedAnswer(BackendError):
    """A service's answer is not what was promised."""


class CallTimeout(ToolError):
    """The call outlived its deadline."""


class OutcomeUnknown(ToolError):
    """An `at_most_once` step was begun, and whoever ran it died: it may have taken effect or not.

    Catch it to look; a handler that does not ends here, because to go on could do the thing a second time.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Step {name!r} was begun, and it is not known whether it took effect; find out before calling again"
        )
        self.name = name


class TaskTimeout(ToolError):
    """A task took longer than a task may (`tasks.task_timeout_s`)."""


class Declined(ToolError):
    """The user declined a question or dismissed it. Unless the handler catches it, it ends the call politely.

    `action` is "decline" or "cancel".
    """

    def __init__(self, name: str, action: str) -> None:
        verb = "declined to answer" if action == "decline" else "dismissed"
        super().__init__(
            f"The user {verb} the question {name!r}, so the call ended without going further"
        )
        self.name = name
        self.action = action


class NotJson(GatewayError, TypeError):
    """A handler gave the engine a value that JSON cannot hold, so it could not be remembered."""


class NondeterminismError(GatewayError):
    """At one place a handler asked for something else than is remembered there.

    `key` is the place; `remembered` and `asked` are identities: a kind, a function, a digest of its arguments.
    """

    def __init__(self, key: str, remembered: str, asked: str | None) -> None:
        super().__init__(
            f"{key!r} is remembered as {remembered!r}, and the handler now asks for {asked!r} there: it went another "
            "way than before. What it does must follow from its arguments, answers and steps alone; "
            "a time or a random value belongs into ctx.step, and parts that run side by side into ctx.map or ctx.branch"
        )
        self.key = key
        self.remembered = remembered
        self.asked = asked


class StateTooLarge(GatewayError):
    """What a handler had remembered is larger than what may travel."""


class LeaseLost(GatewayError):
    """The task was cancelled, finished, expired, or claimed by another worker; what was to be written is not."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the configuration: where, what, and how to mend it."""

    file: str
    path: str
    message: str
    remedy: str
    line: int | None = None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.path}: {self.message}\n    → {self.remedy}"


class ConfigError(GatewayError):
    """The configuration is wrong; `problems` has everything that was found, not just the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class VersionsConflict(ConfigError):
    """What a repository wants to be packed cannot be had together."""


class UsageError(GatewayError):
    """What was said on the command line, or in a file that it names, cannot be used."""


class StepFailed(RoundgateError):
    """A step raised; this is what its handler sees, in the run in which it happened and in each replay of it."""


class StepTimeout(StepFailed):
    """A step was not over within its `timeout_s`."""


class Inside(RoundgateError):
    """Raised and caught within the gateway: what leaves it is a result, a `GatewayError`, or a line of the log."""


class AnswerTooLarge(Inside):
    """A service's answer has more bytes than it may."""


class CallCancelled(Inside):
    """The client wants no answer any more."""


class HandlerExited(Inside, RuntimeError):
    """A handler called `sys.exit()`, or raised what would end the process."""


class InvocationFailed(Inside):
    """A function of the local stack raised, timed out, or its environment died. `said` is what AWS answers to who has
    invoked it."""

    def __init__(self, message: str, said: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.said = said or {"errorType": "Runtime.ExitError", "errorMessage": message}


class PayloadTooLarge(InvocationFailed):
    """The event is larger than AWS Lambda takes; nothing was invoked."""


class Throttled(InvocationFailed):
    """As many functions run as may run at once; nothing was invoked."""


class KeysUnavailable(Inside):
    """The issuer's keys have never been read; nobody can be verified."""


class NotNow(Inside):
    """A job cannot be asked for just now; its text says why."""


class NotYet(Inside):
    """The answers have not come, and this request must not wait any longer: another one goes on with the call."""


class NotServedHere(Inside):
    """This worker cannot serve the task, another may. The text says what that one must be able to do."""


class OAuthRefused(Inside):
    """An endpoint's answer that is no success: its status, OAuth's `error` and `error_description`, a DPoP nonce."""

    def __init__(self, status: int, body: Mapping[str, Any], nonce: str | None) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.error = str(body.get("error", ""))[:100]
        self.description = str(body.get("error_description", ""))[:300]
        self.nonce = nonce


class PortTaken(Inside):
    """A port that was free a moment ago is another process's now."""


class SealBroken(Inside):
    """A token that cannot be opened. The reason is for the log; whoever sent it is told nothing."""


class SessionOver(Inside):
    """An older server has forgotten the session."""


class TaskGivenUp(Inside):
    """The task fails now; the text says why, fit for a `statusMessage`."""


class TryLater(Inside):
    """A server cannot answer its client now; `wait_s` is when to ask again."""

    def __init__(self, status: int, wait_s: float) -> None:
        super().__init__(f"The server is not available now (HTTP status {status})")
        self.status = status
        self.wait_s = wait_s


class UnboundPlaceholder(Inside):
    """A placeholder of a cassette stands for nothing yet."""


class RequestMalformed(Inside):
    """A request that a stand-in or a recording proxy does not take; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class UnfitAnswer(Inside):
    """A response that does not fit its question; says what is wrong, for whoever answers."""


class UnknownEncoding(Inside):
    """A service's answer is packed in a way that we did not ask for."""


class UnknownEntry(Inside, ValueError):
    """An entry of a kind that this version does not know: a later one wrote it."""


class UnreadableDocument(Inside):
    """A document of OpenAPI cannot be had; its text says why."""


class UnresolvedReference(Inside):
    """A `${…}` in the configuration leads to nothing, or is none."""

    def __init__(self, message: str, remedy: str, *, is_syntax: bool = False) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.is_syntax = is_syntax


class UnusableIndex(Inside):
    """A compiled index that is none, is not whole, or is of something else."""


class IndexOfAnotherVersion(UnusableIndex):
    """A compiled index that another version of Roundgate has written."""

    def __init__(self) -> None:
        super().__init__("was compiled by another version of Roundgate")


class UnusableOperation(Inside):
    """A part of a document cannot be used. `remedy` is for the person who has the document or the configuration."""

    def __init__(
        self,
        message: str,
        remedy: str = "mend the document, or leave the operation out with `exclude`",
    ):
        super().__init__(message)
        self.remedy = remedy


class UnusableReturn(Inside, TypeError):
    """A handler returned something that has no JSON, or does not conform to what it promises."""


class WorkerFault(Inside):
    """What is wrong with us rather than with the tool; its text is fit for a `statusMessage`."""


class Suspend(BaseException):
    """Ends a run that cannot go on now. Not an `Exception`, so that a handler does not catch it by accident."""


class ClientError(GatewayError):
    """What `roundgate.client` raises. Its text holds no credentials, no state and no answers."""


class ConnectionLost(ClientError):
    """There is no connection, or it ended before the answer was whole.

    `was_sent` says whether the server may have got the request, and so may have acted on it.
    """

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class TimedOut(ClientError):
    """No answer within the time that was given; the request was cancelled by closing its stream."""


class HttpRefused(ClientError):
    """An HTTP status without a JSON-RPC message; `status` is the number."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AuthorizationFailed(HttpRefused):
    """No access: no credentials, none that are taken, or a login that went wrong."""


class BadAnswer(ClientError):
    """The server sent something that the protocol does not allow, or more than the limits of the client."""


class RpcError(ClientError):
    """The server answered with a JSON-RPC error; `code`, `message` and `details` (its `data`) are the server's."""

    def __init__(self, code: int, message: str, details: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.details = details


class NoCommonVersion(ClientError):
    """Client and server share no revision of the protocol; `supported` are the server's, as far as it told them."""

    def __init__(self, message: str, supported: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.supported = tuple(supported)


class Unanswered(ClientError):
    """The server asks, and nothing that was given answers.

    `questions` are those that are open, as `roundgate.client.Question`. `request_state` is what continues the call,
    `None` if the server sent none or a task asks.
    """

    def __init__(
        self, message: str, questions: Sequence[Any], request_state: str | None = None
    ) -> None:
        super().__init__(message)
        self.questions = tuple(questions)
        self.request_state = request_state


class AnswerInvalid(ClientError):
    """An answer that was given does not fit its question; `key` is the question's, `problems` say what is wrong."""

    def __init__(self, key: str, problems: Sequence[str]) -> None:
        super().__init__(f"The answer to {key!r} does not fit its question: {'; '.join(problems)}")
        self.key = key
        self.problems = tuple(problems)


class TooManyRounds(ClientError):
    """The server asks more often than it may; `rounds` is the limit that was reached."""

    def __init__(self, rounds: int) -> None:
        super().__init__(
            f"The server still asks after {rounds} rounds; if it really needs more, raise max_rounds of the call"
        )
        self.rounds = rounds


class TaskEnded(ClientError):
    """A task ended without a result; `status` is "failed" or "cancelled", `error` what a failed one ended with."""

    def __init__(self, status: str, message: str, error: RpcError | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = error


class WrongHandle(ClientError):
    """A task's handle that is malformed, or belongs to another server than the one that this client talks to."""


class Diverged(RoundgateError, AssertionError):
    """`roundgate.testing`: a handler ended otherwise where a process had died, or where it was replaced by another
    version. `findings` says how, one line each."""

    def __init__(self, tool: str, findings: Sequence[str]) -> None:
        super().__init__("\n  - ".join([f"{tool} does not survive everything:", *findings]))
        self.findings = list(findings)


class NothingGoesOn(RoundgateError, AssertionError):
    """`roundgate.testing`: a task is waited for, and nothing will ever make it go on."""
