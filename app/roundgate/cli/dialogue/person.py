"""A person who answers: each question of a server is shown on the terminal, and what is
typed becomes its answer.

Prompts go to standard error, so that standard output holds nothing but the result of the call.
Whatever a server says is shown with control and format characters escaped.
"""

from __future__ import annotations

import asyncio
import json
import webbrowser
from pathlib import Path
from typing import Any, Final

from roundgate.cli.dialogue.fields import Field
from roundgate.cli.dialogue.prompts import Prompts
from roundgate.client import CANCEL, DECLINE, Kind, Question

SEND: Final = "Send"
CHANGE: Final = "Change an answer"
DECLINED: Final = "Decline: the answer is no"
DISMISSED: Final = "Dismiss: no answer"
OPEN: Final = "Open it in the browser"
OPENED: Final = "I have opened it myself"
MAX_SHOWN_CHARS: Final = 4_000


class Person:
    """Answers questions by asking whoever sits at the terminal, one question at a time."""

    def __init__(self, prompts: Prompts | None = None) -> None:
        self._prompts = prompts or Prompts()
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self, question: Question) -> Any:
        """The answer of a person; `DECLINE` and `CANCEL` are answers, too.
        Ctrl-D dismisses a question."""
        ask = {
            Kind.FORM: self._form,
            Kind.URL: self._url,
            Kind.SAMPLING: self._sample,
            Kind.ROOTS: self._roots,
        }[question.kind]
        async with self._one_at_a_time:
            self._prompts.say(f"\n{question.target or 'The server'} asks:")
            try:
                return await ask(question)
            except EOFError:
                return CANCEL if question.kind in (Kind.FORM, Kind.URL) else None

    async def _form(self, question: Question) -> Any:
        self._prompts.say(_bounded(question.message))
        fields = Field.all_of(question)
        content: dict[str, Any] = {}
        for field in fields:
            await self._fill(field, content)
        while True:
            problems = question.problems(content)
            for problem in problems:
                self._prompts.say(f"  ! {problem}")
            ways = [
                *([] if problems else [SEND]),
                *([CHANGE] if fields else []),
                DECLINED,
                DISMISSED,
            ]
            chosen = ways[await self._prompts.choice("", ways)]
            if chosen == CHANGE:
                at = await self._prompts.choice("Which?", [field.title for field in fields])
                await self._fill(fields[at], content)
            else:
                return {SEND: content, DECLINED: DECLINE, DISMISSED: CANCEL}[chosen]

    async def _fill(self, field: Field, content: dict[str, Any]) -> None:
        value = await field.ask(self._prompts, content.get(field.name))
        content.pop(field.name, None)
        if value is not None:
            content[field.name] = value

    async def _url(self, question: Question) -> Any:
        """Nothing is opened without consent, and the host is said apart: a
        long address may hide it."""
        url = question.url or ""
        self._prompts.say(_bounded(question.message))
        self._prompts.say(f"  to be opened: {_bounded(url)}")
        self._prompts.say(f"  at the host:  {question.host}")
        ways = [OPEN, OPENED, DECLINED, DISMISSED]
        chosen = ways[await self._prompts.choice("", ways, ways.index(DECLINED))]
        if chosen == OPEN and not await asyncio.to_thread(webbrowser.open, url):
            self._prompts.say(
                "  No browser could be opened. Open the address yourself, then go on."
            )
            await self._prompts.text("Enter when that is done")
        return {OPEN: True, OPENED: True, DECLINED: DECLINE, DISMISSED: CANCEL}[chosen]

    async def _sample(self, question: Question) -> Any:
        """The person stands in for the model."""
        if system := question.params.get("systemPrompt"):
            self._prompts.say(f"  system: {_bounded(str(system))}")
        for message in question.params["messages"]:
            said = message.get("content") if isinstance(message, dict) else message
            text = said.get("text") if isinstance(said, dict) else None
            role = message.get("role") if isinstance(message, dict) else "?"
            self._prompts.say(
                f"  {role}: {_bounded(text if isinstance(text, str) else json.dumps(said))}"
            )
        return await self._prompts.text("Answer as the model (Alt-Enter: new line)")

    async def _roots(self, question: Question) -> Any:
        """Folders that the server may know of; none is an answer."""
        self._prompts.say("  Which folders may it know of? One a line; an empty line ends.")
        found: list[str] = []
        while text := await self._prompts.text(
            "Folder", "" if found else str(Path.cwd()), _no_folder
        ):
            found.append(_uri(text))
        return found


def _uri(folder: str) -> str:
    return Path(folder).expanduser().resolve().as_uri()


def _no_folder(text: str) -> str | None:
    return None if not text or Path(text).expanduser().is_dir() else "There is no such folder"


def _bounded(text: str) -> str:
    return (
        text
        if len(text) <= MAX_SHOWN_CHARS
        else f"{text[:MAX_SHOWN_CHARS]} … ({len(text)} characters)"
    )
