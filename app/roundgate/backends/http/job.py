"""Jobs of HTTP services: a request starts one, GET requests follow it, another fetches
its result or cancels it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from roundgate.backends.exchange import Kept, is_in_doubt, is_none_left, is_passing
from roundgate.backends.http.arguments import PATH_VARIABLE, Argument
from roundgate.backends.http.config import HttpCancelConfig, HttpJobConfig
from roundgate.backends.http.keys import Key, with_key
from roundgate.backends.http.lists import pairs, text
from roundgate.backends.http.messages import Answer, Outgoing, Send
from roundgate.backends.http.paths import path_text
from roundgate.backends.http.template import Template
from roundgate.backends.http.writing import BodyPlan, body_of
from roundgate.errors import (
    BackendError,
    NoAnswer,
    NotNow,
    ParseError,
    ToolError,
    UnexpectedAnswer,
)
from roundgate.protocol import ABSENT


def check_job(job: HttpJobConfig, arguments: Sequence[Argument]) -> None:
    """Whether its requests can be made.

    Raises:
        ValueError: one has a variable that nothing gives a value, or a path
            one that a call may lack.
    """
    known = job.variables.keys() | {one.name for one in arguments}
    if unknown := sorted(_names_in(job.cancel) - known):
        raise ValueError(
            f"job.cancel needs {', '.join(unknown)}, which neither job.variables nor the arguments have"
        )
    certain = {
        one.name
        for one in arguments
        if one.required or one.location == "path" or one.default is not ABSENT
    }
    for path in _paths(job):
        missing = set(PATH_VARIABLE.findall(path)) - job.variables.keys() - certain
        if optional := sorted(missing & {one.name for one in arguments}):
            raise ValueError(
                f"job path {path!r} needs the argument {', '.join(optional)}, which a call may lack:"
                " set `required` or a `default`"
            )
        if missing:
            raise ValueError(
                f"job path {path!r} needs {', '.join(sorted(missing))}, which neither job.variables nor"
                " the arguments have"
            )


def parents(job: HttpJobConfig, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The arguments of a call that its paths need, as they stand there.

    Raises:
        ToolError: one cannot stand in a path; before anything is started.
    """
    names = {name for path in _paths(job) for name in PATH_VARIABLE.findall(path)}
    found: dict[str, str] = {}
    for name in sorted(names - job.variables.keys()):
        try:
            found[name] = path_text(text(arguments[name]))
        except ValueError as error:
            raise ToolError(f"arguments.{name}: {error}") from None
    return found


def _paths(job: HttpJobConfig) -> list[str]:
    cancel = None if job.cancel is None else job.cancel.path
    return [path for path in (job.poll, job.fetch, cancel) if path is not None]


def _names_in(cancel: HttpCancelConfig | None) -> frozenset[str]:
    """What query and body of a cancel need."""
    if cancel is None:
        return frozenset()
    return Template(
        {"query": cancel.query, "body": cancel.body or {}, "form": cancel.form or {}}
    ).names


@dataclass(frozen=True, slots=True)
class HttpJob:
    """A job that a request starts (`roundgate.backends.exchange.Job`)."""

    config: HttpJobConfig
    send: Send
    outgoing: Outgoing
    key: Key | None = None
    parents: Mapping[str, str] = field(default_factory=dict)
    """Of the call's arguments those that paths need, as they stand there."""
    query: Sequence[tuple[str, str]] = ()
    """What every request has, such as the version of the service's API."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of the call, for what a cancel says besides its path."""

    @property
    def has_result(self) -> bool:
        """Whether there is a path to fetch it from."""
        return self.config.fetch is not None

    async def start(self) -> Any:
        """Send the request.

        Raises:
            NotNow: the service may have received the request, but its response does not confirm it.
            BackendError: the service refused the request, or its response is not JSON.
        """
        doing = "starting the job"
        try:
            answer = await self.send(with_key(self.outgoing, self.key))
            if is_in_doubt(answer.status):
                raise NotNow(f"The service answered {answer.status_line} to {doing}")
            return _good(answer, doing).value()
        except NoAnswer as error:
            if error.reached:
                raise NotNow(str(error)) from None
            raise
        except ParseError:
            raise BackendError(
                "The service started a job but did not say where to follow it"
            ) from None

    async def poll(self, values: Mapping[str, str]) -> tuple[Any, Kept]:
        """Ask how it is.

        Raises:
            NotNow: the service cannot be reached, or has a trouble of its own.
            BackendError: it does not know the job, or does not answer with JSON.
        """
        answer = await self._get(self.config.poll, values)
        try:
            return _good(answer, "following the job").value(), answer.kept()
        except ParseError:
            raise BackendError(
                "The service told of the job in something that is not JSON"
            ) from None

    async def fetch(self, values: Mapping[str, str]) -> Kept:
        """Ask for the result.

        Raises:
            NotNow: it cannot be had just now.
            UnexpectedAnswer: it is longer than answers may be, or elsewhere.
        """
        answer = await self._get(self.config.fetch or self.config.poll, values)
        return answer.kept()

    @property
    def is_cancellable(self) -> bool:
        """Whether there is a request for it."""
        return self.config.cancel is not None

    @property
    def starts_once(self) -> bool:
        """Return whether a start can be repeated safely, with its key or without one."""
        return with_key(self.outgoing, self.key).is_repeatable

    async def cancel(self, values: Mapping[str, str]) -> bool:
        """Send the request that ends the job; return `False` if there is no job to end.

        Raises:
            BackendError: the service cannot be reached, or refuses.
        """
        assert self.config.cancel is not None, "only what is cancellable is cancelled"
        answer = await self.send(self._cancelling(self.config.cancel, values))
        if is_none_left(answer.status):
            return False
        _good(answer, "cancelling the job")
        return True

    def _cancelling(self, cancel: HttpCancelConfig, values: Mapping[str, str]) -> Outgoing:
        known = {**self.arguments, **values}
        request = _request(cancel.path, values, self.parents, self.outgoing)
        named = Template(cancel.query).filled(known).items()
        raw_query = [one for name, value in named for one in _pairs(name, value)]
        body, content_type = _body(cancel, known)
        typed = {} if content_type is None else {"content-type": content_type}
        return replace(
            request,
            method=cancel.method,
            query=list(self.query),
            raw_query="&".join(raw_query),
            headers={**request.headers, **typed},
            body=body,
        )

    async def _get(self, template: str, values: Mapping[str, str]) -> Answer:
        request = _request(template, values, self.parents, self.outgoing)
        request = replace(request, query=list(self.query))
        try:
            answer = await self.send(request)
        except UnexpectedAnswer:
            raise  # it would be the same the next time
        except BackendError as error:
            raise NotNow(str(error)) from None
        if is_passing(answer.status):
            raise NotNow(answer.status_line)
        return answer


def _pairs(name: str, value: Any) -> list[str]:
    return pairs(name, value, "repeat", sends_empty=False)


def _body(cancel: HttpCancelConfig, known: Mapping[str, Any]) -> tuple[bytes | None, str | None]:
    """Of a cancel, with its type."""
    if cancel.form is not None:
        return body_of(BodyPlan("form", fixed=Template(cancel.form).filled(known)), (), known)
    if cancel.body is not None:
        return body_of(BodyPlan(template=Template(cancel.body)), (), known)
    return None, None


def _good(answer: Answer, doing: str) -> Answer:
    if answer.status >= 300:
        raise BackendError(
            f"The service answered {answer.status_line} to {doing}",
            reason=f"upstream {answer.status}",
        )
    return answer


def _request(
    template: str, values: Mapping[str, str], parents: Mapping[str, str], started: Outgoing
) -> Outgoing:
    path = template
    for name, written in parents.items():
        path = path.replace(f"{{{name}}}", written)
    for name, value in values.items():
        try:
            path = path.replace(f"{{{name}}}", path_text(value))
        except ValueError:  # would be another endpoint
            shown = repr(value[:100])
            raise BackendError(
                f"The service started a job with {name} = {shown}, which cannot be part of a path"
            ) from None
    headers = {
        name: value for name, value in started.headers.items() if name.lower() != "content-type"
    }
    return Outgoing(
        "GET",
        path,
        [],
        headers,
        None,
        is_repeatable=True,
        wants=started.wants,
        max_bytes=started.max_bytes,
    )
