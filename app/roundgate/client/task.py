"""A task at a server: to wait for, look at, answer, cancel; and its handle, by
which another process goes on.

A handle is the server's URL with the task's id behind `#task=`. It is no secret by itself: without
the credentials of the caller who started the task it opens nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from roundgate.client.answers import AnswersLike
from roundgate.client.older import read_older_task
from roundgate.client.questions import Question, response_to
from roundgate.client.types import CallResult, TaskState
from roundgate.errors import WrongHandle

if TYPE_CHECKING:
    from roundgate.client.session import Client

_MARK = "#task="


def handle_of(url: str, task_id: str) -> str:
    """`https://host/mcp#task=786512e2`"""
    return f"{url}{_MARK}{quote(task_id, safe='')}"


def split_handle(handle: str) -> tuple[str, str]:
    """The URL of the server, and the id of the task.

    Raises:
        WrongHandle: it is no handle.
    """
    url, mark, task_id = handle.partition(_MARK)
    if not mark or not task_id or not url.startswith(("http://", "https://")):
        raise WrongHandle("This is no handle of a task: they look like https://host/mcp#task=…")
    return url, unquote(task_id)


class Task:
    """A task that was started or resumed. One whose call ended at once is over from the
    beginning, and has no id."""

    def __init__(
        self,
        client: Client,
        state: TaskState | None,
        *,
        task_id: str = "",
        result: CallResult | None = None,
        target: str = "",
    ) -> None:
        self._client = client
        self._target = target
        self._result = result
        self.state = state
        """What was last seen of it; `None` before the first look at a resumed one."""
        self.id = task_id if state is None else state.task_id

    @property
    def handle(self) -> str | None:
        """What `Client.resume` takes, in this process or another; `None` if the
        call ended without a task."""
        return handle_of(self._client.url, self.id) if self.id else None

    @property
    def is_over(self) -> bool:
        return self._result is not None or (self.state is not None and self.state.is_over)

    async def wait(
        self,
        *,
        answers: AnswersLike = None,
        timeout_s: float | None = None,
        on_task: Callable[[TaskState], Any] | None = None,
    ) -> CallResult:
        """Its result, once it has one; what it asks meanwhile is answered from
        `answers`, then from the client's.

        Raises:
            TaskEnded: it failed or was cancelled.
            Unanswered: it asks, and nothing answers. The task stays as it is.
            TimedOut: `timeout_s` passed. The task goes on.
        """
        if self._result is None:
            self._result = await self._client._follow(self, answers, timeout_s, on_task)
        return self._result

    async def get(self) -> TaskState:
        """Its state now."""
        found = await self._client.request("tasks/get", {"taskId": self.id})
        server = await self._client.connect()
        read = TaskState.read if server.is_modern else read_older_task
        self.state = read(found, self.id)
        return self.state

    async def update(self, answers: Mapping[str, Any]) -> None:
        """Answer questions by key, each as `response_to` takes it.

        Raises:
            AnswerInvalid: an answer does not fit its question.
        """
        state = self.state if self.state is not None and self.state.requests else await self.get()
        asked = {key: Question.read(key, one, self._target) for key, one in state.requests.items()}
        responses = {
            key: response_to(asked[key], one) if key in asked else one
            for key, one in answers.items()
        }
        await self._client.request("tasks/update", {"taskId": self.id, "inputResponses": responses})

    async def cancel(self) -> None:
        """Ask the server to end it. It need not: `wait` or `get` tell how it ended."""
        await self._client.request("tasks/cancel", {"taskId": self.id})

    def __repr__(self) -> str:
        status = (
            "completed"
            if self._result is not None
            else "not looked at"
            if self.state is None
            else self.state.status
        )
        return f"Task({self.id!r}, {status})"
