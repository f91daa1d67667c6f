"""What `roundgate.client` raises."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from roundgate.errors.base import GatewayError


class Remedy(Enum):
    """The remedy of an error, in code that uses the client and on the command line."""

    CREDENTIALS = (
        "give the client auth=",
        "set ROUNDGATE_TOKEN to a bearer token, or add --login",
    )
    OTHER_CREDENTIALS = (
        "give the client another auth=",
        "set ROUNDGATE_TOKEN to another token, or add --login",
    )
    REVISION = (
        "if it is of an older revision, name that: versions=['2025-11-25']",
        "if it is of an older revision, name that: --revision 2025-11-25",
    )
    BROWSER = (
        "pass open_url=, a function that shows the user the URL",
        "log in where there is one, or set ROUNDGATE_TOKEN to a bearer token",
    )
    REGISTERED_CLIENT = (
        "give the login the client_id= that is registered there",
        "name the client that is registered there: --client-id ID",
    )

    def __init__(self, in_code: str, on_command_line: str) -> None:
        self.in_code = in_code
        self.on_command_line = on_command_line


class ClientError(GatewayError):
    """What `roundgate.client` raises. Its text holds no credentials, no state and no answers."""

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
    """There is no connection, or it ended before the answer was whole.

    `was_sent` says whether the server may have got the request, and so may have acted on it.
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
    """An HTTP status without a JSON-RPC message; `status` is the number."""

    def __init__(self, status: int, message: str, remedy: Remedy | None = None) -> None:
        super().__init__(message, remedy)
        self.status = status


class AuthorizationFailed(HttpRefused):
    """No access: no credentials, none that are taken, or a login that went wrong."""


class BadAnswer(ClientError):
    """The server sent something that the protocol does not allow, or more than
    the limits of the client."""


class RpcError(ClientError):
    """The server answered with a JSON-RPC error; `code`, `message` and `details` (its
    `data`) are the server's."""

    def __init__(self, code: int, message: str, details: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.details = details


class NoCommonVersion(ClientError):
    """Client and server share no revision of the protocol; `supported` are the server's,
    as far as it told them."""

    def __init__(self, message: str, supported: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.supported = tuple(supported)


class Unanswered(ClientError):
    """The server asks, and nothing that was given answers.

    `questions` are those that are open, as `roundgate.client.Question`. `request_state` is what
    continues the call, `None` if the server sent none or a task asks.
    """

    def __init__(
        self, message: str, questions: Sequence[Any], request_state: str | None = None
    ) -> None:
        super().__init__(message)
        self.questions = tuple(questions)
        self.request_state = request_state


class AnswerInvalid(ClientError):
    """An answer that was given does not fit its question; `key` is the question's,
    `problems` say what is wrong."""

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
    """A task ended without a result; `status` is "failed" or "cancelled", `error` what a
    failed one ended with."""

    def __init__(self, status: str, message: str, error: RpcError | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = error


class WrongHandle(ClientError):
    """A task's handle that is malformed, or belongs to another server than the one
    that this client talks to."""
