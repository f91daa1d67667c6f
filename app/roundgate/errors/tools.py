"""What a tool ends with when it fails: results with `isError`, for the model to read."""

from __future__ import annotations

from roundgate.errors.base import GatewayError


class ToolError(GatewayError):
    """Raise it in a tool: its text goes to the model as a result with `isError`, so say
    what to do differently."""


class BackendError(ToolError):
    """The service behind a tool failed, refused, or answered something unusable.

    `reason` says in a word or two for the log what is wrong ("upstream 503"), without
    anything that the service said.
    """

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class FunctionAway(BackendError):
    """A function of AWS Lambda is throttled, unreachable, not ready, or did not answer; a retry may
    succeed. `reached` is True if the function may have been invoked."""

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


class FunctionFailed(BackendError):
    """A function of AWS Lambda ended with an error of its own, or was ended."""


class NoAnswer(BackendError):
    """A service gave no answer, or not a whole one. `reason` is why, in a few words; `reached` is
    whether the request may have come to it."""

    reason: str

    def __init__(self, message: str, reason: str = "", *, reached: bool = True) -> None:
        super().__init__(message, reason=reason)
        self.reached = reached


class JobLeft(BackendError):
    """A job of a service is no longer followed and may still be running."""


class TokenRefused(BackendError):
    """An authorization server has answered, but not with a token. `error` is a word of
    RFC 6749 section 5.2, if it said one; `retry_s` for how long it asks to be left
    alone, 0 where it does not."""

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

    Catch it to look; a handler that does not ends here, because to go on could
    do the thing a second time.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Step {name!r} was begun, and it is not known whether it took effect; find out before calling again"
        )
        self.name = name


class TaskTimeout(ToolError):
    """A task took longer than a task may (`tasks.task_timeout_s`)."""


class Declined(ToolError):
    """The user declined a question or dismissed it. Unless the handler catches it,
    it ends the call politely.

    `action` is "decline" or "cancel".
    """

    def __init__(self, name: str, action: str) -> None:
        verb = "declined to answer" if action == "decline" else "dismissed"
        super().__init__(
            f"The user {verb} the question {name!r}, so the call ended without going further"
        )
        self.name = name
        self.action = action
