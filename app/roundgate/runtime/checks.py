"""The checks of a configuration in the process that serves it. `roundgate check`, `serve`, `package`,
`deploy` and `stack` run the same ones, and each process runs them again when it starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import chain
from typing import Final

from roundgate.config import ConfigFile
from roundgate.errors import ConfigError, Problem
from roundgate.net.addresses import is_this_machine
from roundgate.settings import AuthorizerConfig, Settings

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
FUNCTION: Final = Settings(
    on_lambda=True,
    on_function="GatewayFunction",
    public_url="https://api.invalid",
    allow_anonymous=True,
)
"""The settings of a function before its deployment, which decides the URL and who may call."""
FETCHABLE_BYTES: Final = 4_600_000
"""The largest result that a function can always return: base64 makes four bytes of three."""


def problems(file: ConfigFile, using: Settings, *, has_verifier: bool = False) -> list[Problem]:
    """Return the problems of a gateway with these settings; none of an address (`exposure`).

    Args:
        file: the configuration.
        using: the settings of the environment; `FUNCTION` before a deployment.
        has_verifier: whether a test authenticates the callers itself.
    """
    found = [*core_problems(file, using), *_console(file, using), *_metrics(file, using)]
    found += _callers(file, using, has_verifier=has_verifier)
    return found + (list(_function(file, using)) if using.on_lambda else [])


def core_problems(file: ConfigFile, using: Settings) -> Iterator[Problem]:
    """Yield the problems that a worker with these settings has, too."""
    if using.show_errors == "on" and not is_private(file, using):
        message = "is on, but not only the developer can call: exceptions can contain secrets"
        remedy = (
            "unset it here; the log has each exception under the reference that the caller gets"
        )
        yield Problem("environment", "GATEWAY_SHOW_ERRORS", message, remedy)
    if file.config.audit is not None:
        from roundgate.runtime import audit_log  # loaded only if there is an audit log

        yield from audit_log.problems(file, file.config.audit, using)


def require(*found: Iterable[Problem]) -> None:
    """Raise ConfigError if there are problems."""
    if listed := list(chain(*found)):
        raise ConfigError(listed)


def is_private(file: ConfigFile, using: Settings) -> bool:
    """Return whether only the developer can call: the gateway has no authentication, no anonymous
    callers from other machines, and no public URL but of this machine, and does not run on AWS
    Lambda."""
    return (
        file.config.auth == "none"
        and (using.public_url is None or is_this_machine(using.public_url))
        and not using.allow_anonymous
        and not using.on_lambda
    )


def exposure(file: ConfigFile, using: Settings, host: str) -> Iterator[Problem]:
    """Yield a problem if a public address would be served without authentication, where every caller
    would be the same local subject."""
    if file.config.auth != "none" or host in LOOPBACK or using.allow_anonymous:
        return
    remedy = (
        "configure auth, bind to 127.0.0.1, or pass --allow-anonymous if a proxy in front "
        "authenticates callers"
    )
    message = f"there is no authentication, but --host {host} can be reached from outside"
    yield file.origin.at("auth").problem(message, remedy)


def _console(file: ConfigFile, using: Settings) -> Iterator[Problem]:
    if file.config.console is None:
        return
    place = file.origin.at("console")
    if using.on_lambda:
        yield place.problem(
            "is on, but functions do not serve the console",
            "turn it off here; `roundgate serve` with the same store and keys shows the tasks of functions",
        )
        return
    if find_spec("jinja2") is None:
        yield place.problem(
            "needs the extra console, which is not installed", "pip install 'roundgate[console]'"
        )
    if file.config.auth == "none" and not is_private(file, using):
        yield place.problem(
            "is on without auth, but not only this machine can call",
            "configure auth with operator_scope; or unset GATEWAY_PUBLIC_URL and "
            "GATEWAY_ALLOW_ANONYMOUS",
        )


def _metrics(file: ConfigFile, using: Settings) -> Iterator[Problem]:
    if not file.config.http.metrics:
        return
    from roundgate.observability import exposition  # loaded only if there are metrics

    place = file.origin.at("http", "metrics")
    if using.on_lambda:
        yield place.problem(
            "is on, but each instance of a function has metrics of its own",
            "turn it off; CloudWatch has the metrics of functions",
        )
    elif (problem := exposition.problem()) is not None:
        yield place.problem(problem.message, problem.remedy)


def _callers(file: ConfigFile, using: Settings, *, has_verifier: bool) -> Iterator[Problem]:
    auth = file.config.auth
    if auth == "none":
        if using.on_lambda and not using.allow_anonymous:
            message = "there is no authentication, so anyone who knows the URL could call"
            remedy = (
                "configure auth, or deploy with AllowAnonymous=true "
                "(GATEWAY_ALLOW_ANONYMOUS=true) if that is intended"
            )
            yield file.origin.at("auth").problem(message, remedy)
        return
    if isinstance(auth, AuthorizerConfig) and not (using.on_lambda or has_verifier):
        message = "there is no authorizer in front of this process"
        remedy = "use bearer JWTs: auth: {issuer: …, jwks_url: …}"
        yield file.origin.at("auth").problem(message, remedy)
    if using.public_url is None:
        message = (
            "is required with auth: tokens and metadata contain this URL, and a request can "
            "only claim one"
        )
        remedy = (
            "set it to the URL that clients use, such as https://mcp.example.com; if another "
            "machine serves the file, use `roundgate check --file-only`"
        )
        yield Problem("environment", "GATEWAY_PUBLIC_URL", message, remedy)


def _function(file: ConfigFile, using: Settings) -> Iterator[Problem]:
    """Yield a problem if the result of a task may exceed the limit on a response."""
    limit = file.config.tasks.max_result_bytes
    if limit > FETCHABLE_BYTES:
        message = f"is {limit}, and AWS Lambda returns 6 MB of JSON or base64"
        remedy = f"set it to at most {FETCHABLE_BYTES}"
        yield file.origin.at("tasks", "max_result_bytes").problem(message, remedy)
