"""What is raised and caught within the gateway; no client sees one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roundgate.errors.base import Inside


class AnswerTooLarge(Inside):
    """A service's answer has more bytes than it may."""


class CallCancelled(Inside):
    """The client wants no answer any more."""


class CleanedUp(Inside):
    """What a call had begun elsewhere was ended, or there is nothing to end; its text says
    which."""


class InvocationFailed(Inside):
    """A function of the local stack raised, timed out, or its environment died. `said` is what AWS
    answers to who has invoked it."""

    def __init__(self, message: str, said: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.said = said or {"errorType": "Runtime.ExitError", "errorMessage": message}


class PayloadTooLarge(InvocationFailed):
    """The event is larger than AWS Lambda takes; nothing was invoked."""


class Throttled(InvocationFailed):
    """As many functions run as may run at once; nothing was invoked."""


class KeysUnavailable(Inside):
    """The issuer's keys have never been read; nobody can be verified."""


class NotCancelled(Inside):
    """A service did not accept the cancel of a job; a retry may succeed. The text says why. `job`
    identifies the job; empty if unknown."""

    def __init__(self, message: str, job: str = "") -> None:
        super().__init__(message)
        self.job = job


class NotNow(Inside):
    """A job cannot be asked for just now; its text says why."""


class NotRetryable(Inside):
    """A call that a failed step ended cannot be retried at that step. The text gives the operator
    the reason and the remedy."""


class NotServedHere(Inside):
    """This worker cannot serve the task, another may. The text says what that
    one must be able to do."""


class OAuthRefused(Inside):
    """An endpoint's answer that is no success: its status, OAuth's `error` and
    `error_description`, a DPoP nonce."""

    def __init__(self, status: int, body: Mapping[str, Any], nonce: str | None) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.error = str(body.get("error", ""))[:100]
        self.description = str(body.get("error_description", ""))[:300]
        self.nonce = nonce


class RequestMalformed(Inside):
    """A request that a stand-in or a recording proxy does not take; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class SealBroken(Inside):
    """A token that cannot be opened. The reason is for the log; whoever sent it is told nothing."""


class SessionOver(Inside):
    """An older server has forgotten the session."""


class TaskGivenUp(Inside):
    """The task fails now; the text says why, fit for a `statusMessage`."""


class TryLater(Inside):
    """A server cannot answer its client now; `wait_s` is when to ask again."""

    def __init__(self, status: int, wait_s: float, reason: str = "") -> None:
        super().__init__(f"The server is not available now (HTTP status {status}){reason}")
        self.status = status
        self.wait_s = wait_s


class UnboundPlaceholder(Inside):
    """A placeholder of a cassette stands for nothing yet."""


class Unconfirmed(Inside):
    """A change of the configuration removes protection and has been read only once. `lost` names
    each loss."""

    def __init__(self, lost: list[str]) -> None:
        super().__init__()
        self.lost = lost


class UnfitAnswer(Inside):
    """A response that does not fit its question; says what is wrong, for whoever answers."""


class UnknownEncoding(Inside):
    """A service's answer is packed in a way that we did not ask for."""


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
    """A part of a document cannot be used. `remedy` is for the person who has the
    document or the configuration."""

    def __init__(
        self,
        message: str,
        remedy: str = "mend the document, or leave the operation out with `exclude`",
    ):
        super().__init__(message)
        self.remedy = remedy


class DanglingReference(UnusableOperation):
    """A `$ref` of a document has no target, or its target may not be read."""


class UnusableReturn(Inside, TypeError):
    """A handler returned something that has no JSON, or does not conform to what it promises."""


class WorkerFault(Inside):
    """What is wrong with us rather than with the tool; its text is fit for a `statusMessage`."""


class YamlTooCostly(Inside):
    """A YAML text takes more time or memory to read than a legitimate one. The message continues
    the file's name."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line
