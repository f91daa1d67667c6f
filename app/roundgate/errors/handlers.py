"""What a handler meets in the engine that runs it again and again, and in the tests of it."""

from __future__ import annotations

from collections.abc import Sequence

from roundgate.errors.base import GatewayError, RoundgateError


class NotJson(GatewayError, TypeError):
    """A handler gave the engine a value that JSON cannot hold, so it could not be remembered."""


class NondeterminismError(GatewayError):
    """A handler diverged from an earlier run, or took a path that no later run could repeat.

    `key` is the place, if known. If the journal holds something else there than the handler asks
    for, `remembered` and `asked` are identities: a kind, a function, a digest of its arguments.
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
                f"{key!r} is remembered as {remembered!r}, and the handler now asks for {asked!r} there: it went "
                "another way than before. What it does must follow from its arguments, answers and steps alone; a "
                "time or a random value belongs into ctx.step, and parts that run side by side into ctx.map or "
                "ctx.branch"
            )
        elif key:
            reason = f"{key!r}: {reason}"
        super().__init__(reason)
        self.key = key
        self.remembered = remembered
        self.asked = asked


class StateTooLarge(GatewayError):
    """What a handler had remembered is larger than what may travel."""


class LeaseLost(GatewayError):
    """The task was cancelled, finished, expired, or claimed by another worker; what
    was to be written is not."""


class StepFailed(RoundgateError):
    """A step raised; this is what its handler sees, in the run in which it happened
    and in each replay of it."""


class StepTimeout(StepFailed):
    """A step was not over within its `timeout_s`."""


class Suspend(BaseException):
    """Ends a run that cannot go on now. Not an `Exception`, so that a handler does
    not catch it by accident."""


class Diverged(RoundgateError, AssertionError):
    """`roundgate.testing`: a handler ended otherwise where a process had died, or where it was
    replaced by another version. `findings` says how, one line each."""

    def __init__(self, tool: str, findings: Sequence[str]) -> None:
        super().__init__("\n  - ".join([f"{tool} does not survive everything:", *findings]))
        self.findings = list(findings)


class NothingGoesOn(RoundgateError, AssertionError):
    """`roundgate.testing`: a task is waited for, and nothing will ever make it go on."""
