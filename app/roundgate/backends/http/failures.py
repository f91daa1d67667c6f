"""Why a service gave no answer: what httpx raises, as an error that a person or a model can act on.

Nothing of addresses, headers or bodies is in it, and what was sent is in it as far as
the configuration has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundgate.backends.http.reliability import TimeoutsConfig
from roundgate.errors import NoAnswer

if TYPE_CHECKING:
    import httpx


def no_answer(
    error: TimeoutError | httpx.HTTPError,
    what: str,
    timeout_s: float,
    phases: TimeoutsConfig | None,
) -> NoAnswer:
    """The error of a request without an answer.

    Args:
        error: what was raised.
        what: the request, for people.
        timeout_s: seconds that it had.
        phases: and its parts.
    """
    import httpx

    reached = not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
    if isinstance(error, httpx.PoolTimeout):
        return NoAnswer(
            f"{what} was not sent: no connection became free within {timeout_s:g} s; try again "
            "later",
            "no connection became free",
            reached=False,
        )
    if isinstance(error, (TimeoutError, httpx.TimeoutException)):
        limit_s = _of_part(error, phases) or timeout_s
        if isinstance(error, httpx.ConnectTimeout) and limit_s < timeout_s:
            message = f"{what} could not be sent: there was no connection within {limit_s:g} s"
        elif limit_s < timeout_s:
            message = f"{what} failed: the service was silent for {limit_s:g} s; try again later"
        else:
            message = f"{what} did not answer within {limit_s:g} s; try again later or ask for less"
        return NoAnswer(message, f"there was no answer within {limit_s:g} s", reached=reached)
    cause = _cause(error)
    if isinstance(error, (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)):
        message = (
            f"{what} failed: the connection ended before there was an answer to read ({cause});"
            " it may have been done all the same"
        )
    else:
        message = f"{what} failed: the service could not be reached ({cause})"
    return NoAnswer(message, cause, reached=reached)


def _of_part(error: Exception, phases: TimeoutsConfig | None) -> float | None:
    import httpx

    if phases is None:
        return None
    match error:
        case httpx.ConnectTimeout():
            return phases.connect_s
        case httpx.ReadTimeout():
            return phases.read_s
        case httpx.WriteTimeout():
            return phases.write_s
    return None


def _cause(error: BaseException) -> str:
    """What somebody can do something about: a certificate that is not believed says why."""
    import ssl

    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, ssl.SSLCertVerificationError):
            reason = behind.verify_message.partition(",")[0]  # behind it stands the service's name
            return f"its certificate is not believed: {reason}"
        behind = behind.__cause__ or behind.__context__
    return type(error).__name__
