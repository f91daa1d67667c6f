"""`Context` for a handler that is a plain function: it runs in a thread, and each method blocks until it is done."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar, overload

from anyio import from_thread
from pydantic import BaseModel

from app.auth.principal import Principal
from app.clock import Deadline
from app.protocol.content import PromptMessage
from app.replay.context import Context
from app.replay.questions import Answer, Question, Root, Sampled

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


class SyncContext:
    """The same call, the same names; see `Context` for what each does."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def principal(self) -> Principal:
        """Who is calling."""
        return self._context.principal

    @property
    def deadline(self) -> Deadline:
        """When this round has to be over."""
        return self._context.deadline

    @property
    def task_id(self) -> str | None:
        """The id of the task that this call has become, if it has."""
        return self._context.task_id

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled."""
        return self._context.cancelled

    @property
    def client_capabilities(self) -> Mapping[str, Any]:
        """The capabilities this request declares."""
        return self._context.client_capabilities

    @property
    def client_info(self) -> Mapping[str, Any] | None:
        """The client's name and version as it gives them."""
        return self._context.client_info

    @property
    def state(self) -> dict[str, Any]:
        """Continuation data of the handler's own."""
        return self._context.state

    def supports(self, *required: Question | Mapping[str, Any]) -> bool:
        """Whether the client can be asked these questions, or has these capabilities."""
        return self._context.supports(*required)

    def input_response(self, key: str) -> Any:
        """The client's last response under a key as it came, or `None`."""
        return self._context.input_response(key)

    @overload
    def elicit(self, name: str, message: str, fields: type[M]) -> M: ...
    @overload
    def elicit(self, name: str, message: str, fields: Mapping[str, Any]) -> dict[str, Any]: ...
    def elicit(self, name: str, message: str, fields: Any) -> Any:
        """`Context.elicit`, blocking."""
        return _wait(self._context.elicit, name, message, fields)

    def elicit_url(self, name: str, message: str, url: str) -> None:
        """`Context.elicit_url`, blocking."""
        _wait(self._context.elicit_url, name, message, url)

    def sample(
        self, name: str, messages: str | Sequence[PromptMessage | Mapping[str, Any]], *, max_tokens: int, **more: Any
    ) -> Sampled:
        """`Context.sample`, blocking."""
        return _wait(partial(self._context.sample, name, messages, max_tokens=max_tokens, **more))

    def roots(self, name: str = "roots") -> list[Root]:
        """`Context.roots`, blocking."""
        return _wait(self._context.roots, name)

    def ask(self, questions: Mapping[str, Question]) -> dict[str, Answer]:
        """`Context.ask`, blocking."""
        return _wait(self._context.ask, questions)

    def request_input(self, requests: Mapping[str, Mapping[str, Any]]) -> NoReturn:
        """`Context.request_input`, blocking."""
        _wait(self._context.request_input, requests)
        raise AssertionError("request_input always ends the round")

    def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`Context.step`, blocking."""
        return _wait(partial(self._context.step, name, function, *args, **kwargs))

    def shed(self, name: str = "shed") -> None:
        """`Context.shed`, blocking."""
        _wait(self._context.shed, name)

    def continue_as_task(self) -> None:
        """`Context.continue_as_task`, blocking."""
        _wait(self._context.continue_as_task)

    def sleep(self, seconds: float, name: str = "sleep") -> None:
        """`Context.sleep`, blocking."""
        _wait(self._context.sleep, seconds, name)

    def poll(self, name: str, function: Callable[..., Any], *args: Any, every_s: float) -> Any:
        """`Context.poll`, blocking."""
        return _wait(partial(self._context.poll, name, function, *args, every_s=every_s))

    def status(self, message: str) -> None:
        """`Context.status`, blocking."""
        _wait(self._context.status, message)

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """`Context.progress`, blocking."""
        _wait(self._context.progress, progress, total, message)

    def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """`Context.log`, blocking."""
        _wait(self._context.log, level, data, logger)

    def tools_changed(self) -> None:
        """`Context.tools_changed`, blocking."""
        _wait(self._context.tools_changed)

    def prompts_changed(self) -> None:
        """`Context.prompts_changed`, blocking."""
        _wait(self._context.prompts_changed)

    def resources_changed(self) -> None:
        """`Context.resources_changed`, blocking."""
        _wait(self._context.resources_changed)

    def resource_updated(self, uri: str) -> None:
        """`Context.resource_updated`, blocking."""
        _wait(self._context.resource_updated, uri)


def _wait(function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    return from_thread.run(function, *args)
