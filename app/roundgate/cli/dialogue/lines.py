"""The prompt of the shell: a line with completion and history. prompt_toolkit does the work."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.output import Output, create_output

from roundgate.cli.dialogue.history import FileHistory, default_path
from roundgate.cli.suggesting import Suggesting, Suggestion
from roundgate.observability import escaped

_MAX_NAME: Final = 24


class Lines:
    """Reads lines from the terminal that standard error is; Tab completes.

    Ctrl-C raises `KeyboardInterrupt`, Ctrl-D on an empty line `EOFError`.
    """

    def __init__(
        self,
        name: str,
        suggesting: Suggesting,
        history: FileHistory | None = None,
        keys: Input | None = None,
        screen: Output | None = None,
    ) -> None:
        self._suggesting = suggesting
        self._history = history or FileHistory(default_path())
        self._session: PromptSession[str] = PromptSession(
            f"{escaped(name)[:_MAX_NAME]}> ",
            history=self._history,
            completer=_Completer(suggesting.of),
            complete_while_typing=False,
            enable_history_search=True,
            input=keys or create_input(),
            output=screen or create_output(stdout=sys.stderr),
        )

    @property
    def typed(self) -> str:
        """What stands in the line now."""
        return self._session.default_buffer.text

    async def next(self) -> str:
        """What was typed."""
        line = await self._session.prompt_async()
        if not await self._suggesting.is_secret(line):
            self._history.keep(line)
        return line


class _Completer(Completer):
    def __init__(self, suggest: Callable[[str], Awaitable[list[Suggestion]]]) -> None:
        self._suggest = suggest

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Nothing: suggestions may have to ask the server."""
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Those for the text before the cursor."""
        for one in await self._suggest(document.text_before_cursor):
            yield Completion(
                one.text,
                start_position=-one.replaces,
                display=escaped(one.text),
                display_meta=escaped(one.about),
            )
