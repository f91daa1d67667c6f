"""Jobs of HTTP services: a request starts one, GET requests follow it, another fetches
its result or cancels it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from roundgate.backends.exchange import AnsweredJob
from roundgate.backends.http.arguments import PATH_VARIABLE, Argument
from roundgate.backends.http.config import HttpCancelConfig, HttpJobConfig
from roundgate.backends.http.keys import Key, with_key
from roundgate.backends.http.lists import pairs, text
from roundgate.backends.http.messages import Answer, Outgoing, Send
from roundgate.backends.http.paths import path_text
from roundgate.backends.http.template import Template
from roundgate.backends.http.writing import BodyPlan, body_of
from roundgate.errors import BackendError, NotNow, ToolError, UnexpectedAnswer
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
class Requests:
    """The requests about a job of one call."""

    config: HttpJobConfig
    send: Send
    started: Outgoing
    """The request that starts the job, without its key."""
    key: Key | None
    parents: Mapping[str, str]
    """The arguments of the call that paths need, as they stand there."""
    query: Sequence[tuple[str, str]]
    """The query of every request, such as the version of the service's API."""
    arguments: Mapping[str, Any]
    """The arguments of the call, for query and body of a cancel."""

    def job(self) -> AnsweredJob:
        """Return the job."""
        config, start = self.config, with_key(self.started, self.key)
        return AnsweredJob(
            config,
            "service",
            begin=lambda: self.send(start),
            look=partial(self._get, config.poll),
            result=None if config.fetch is None else partial(self._get, config.fetch),
            end=None if config.cancel is None else partial(self._cancel, config.cancel),
            starts_once=start.is_repeatable,
        )

    async def _get(self, template: str, values: Mapping[str, str]) -> Answer:
        request = _request(template, values, self.parents, self.started)
        try:
            return await self.send(replace(request, query=list(self.query)))
        except UnexpectedAnswer:
            raise  # it would be the same the next time
        except BackendError as error:
            raise NotNow(str(error)) from None

    async def _cancel(self, cancel: HttpCancelConfig, values: Mapping[str, str]) -> Answer:
        known = {**self.arguments, **values}
        request = _request(cancel.path, values, self.parents, self.started)
        named = Template(cancel.query).filled(known).items()
        raw_query = [one for name, value in named for one in _pairs(name, value)]
        body, content_type = _body(cancel, known)
        typed = {} if content_type is None else {"content-type": content_type}
        sent = replace(
            request,
            method=cancel.method,
            query=list(self.query),
            raw_query="&".join(raw_query),
            headers={**request.headers, **typed},
            body=body,
        )
        return await self.send(sent)


def _pairs(name: str, value: Any) -> list[str]:
    return pairs(name, value, "repeat", sends_empty=False)


def _body(cancel: HttpCancelConfig, known: Mapping[str, Any]) -> tuple[bytes | None, str | None]:
    """Of a cancel, with its type."""
    if cancel.form is not None:
        return body_of(BodyPlan("form", fixed=Template(cancel.form).filled(known)), (), known)
    if cancel.body is not None:
        return body_of(BodyPlan(template=Template(cancel.body)), (), known)
    return None, None


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
