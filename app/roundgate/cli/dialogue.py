"""Terminal prompts for the questions of a server, with prompt_toolkit.

Prompts go to standard error, so standard output holds only the result of the call. Control and
format characters in the server's texts are escaped.
"""

from __future__ import annotations

import asyncio
import json
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.document import Document
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.shortcuts.choice_input import ChoiceInput
from prompt_toolkit.validation import ValidationError, Validator

from roundgate.cli.output import say
from roundgate.client import CANCEL, DECLINE, Kind, Question
from roundgate.observability import escaped
from roundgate.protocol.forms import Field, fields_of

DONE: Final = "That is all"
NO_ANSWER: Final = "(no answer)"
SEND: Final = "Send"
CHANGE: Final = "Change an answer"
DECLINED: Final = "Decline: the answer is no"
DISMISSED: Final = "Dismiss: no answer"
OPEN: Final = "Open it in the browser"
OPENED: Final = "I have opened it myself"
MAX_SHOWN_CHARS: Final = 4_000
_INDENT: Final = "  "

Check = Callable[[str], str | None]
"""A function that returns the problem of a typed text, or `None` if the text is valid."""


class Prompts:
    """Prompts on the terminal.

    Ctrl-C raises `KeyboardInterrupt`; Ctrl-D on an empty line raises `EOFError`.

    Args:
        keys: the source of keystrokes; the terminal by default.
        screen: the output for prompts; standard error by default.
    """

    def __init__(self, keys: Input | None = None, screen: Output | None = None) -> None:
        self._keys = keys or create_input()
        self._screen = screen or create_output(stdout=sys.stderr)

    def say(self, text: str) -> None:
        """Print a text with its control characters escaped, except line ends."""
        for line in text.split("\n"):
            say(line, to=sys.stderr)

    async def text(
        self,
        label: str,
        default: str = "",
        check: Check = lambda text: None,
        *,
        is_secret: bool = False,
    ) -> str:
        """Ask for a text until `check` accepts it. Alt-Enter starts a new line; a secret is shown
        as asterisks."""
        with create_app_session(self._keys, self._screen):
            session: PromptSession[str] = PromptSession(key_bindings=_newlines(), multiline=False)
            return await session.prompt_async(
                f"{_INDENT}{escaped(label)}: ",
                default=default,
                validator=_Checked(check),
                validate_while_typing=False,
                is_password=is_secret,
            )

    async def choice(self, label: str, options: Sequence[str], default: int = 0) -> int:
        """Ask for one option and return its index."""
        shown = [(index, escaped(option)) for index, option in enumerate(options)]
        with create_app_session(self._keys, self._screen):
            prompt: ChoiceInput[int] = ChoiceInput(
                message=escaped(label), options=shown, default=default
            )
            return await prompt.prompt_async()

    async def choices(
        self,
        label: str,
        options: Sequence[str],
        chosen: set[int],
        check: Callable[[set[int]], str | None],
    ) -> set[int]:
        """Ask for any number of options and return their indexes. Enter toggles an option; the last
        entry ends the selection if `check` accepts it."""
        at = 0
        while True:
            marks = [
                f"[{'x' if index in chosen else ' '}] {option}"
                for index, option in enumerate(options)
            ]
            at = await self.choice(label, [*marks, DONE], at)
            if at < len(options):
                chosen ^= {at}
            elif (problem := check(chosen)) is None:
                return chosen
            else:
                self.say(f"{_INDENT}! {problem}")


def _newlines() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


class _Checked(Validator):
    """A prompt_toolkit validator that uses a `Check`."""

    def __init__(self, check: Check) -> None:
        self._check = check

    def validate(self, document: Document) -> None:
        if (problem := self._check(document.text)) is not None:
            raise ValidationError(len(document.text), problem)


class Person:
    """An answerer that asks the person at the terminal, one question at a time."""

    def __init__(self, prompts: Prompts | None = None) -> None:
        self._prompts = prompts or Prompts()
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self, question: Question) -> Any:
        """Return the person's answer, which may be `DECLINE` or `CANCEL`. Ctrl-D returns `CANCEL`
        for a form or URL, otherwise `None`."""
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
        fields = [_Field(field, question) for field in fields_of(question.schema)]
        content: dict[str, Any] = {}
        for field in fields:
            await self._fill(field, content)
        while True:
            problems = question.problems(content)
            for problem in problems:
                self._prompts.say(f"  ! {problem}")
            can_send, can_change = not problems, bool(fields)
            ways = [SEND] * can_send + [CHANGE] * can_change + [DECLINED, DISMISSED]
            chosen = ways[await self._prompts.choice("", ways)]
            if chosen == CHANGE:
                at = await self._prompts.choice("Which?", [field.title for field in fields])
                await self._fill(fields[at], content)
            else:
                return {SEND: content, DECLINED: DECLINE, DISMISSED: CANCEL}[chosen]

    async def _fill(self, field: _Field, content: dict[str, Any]) -> None:
        value = await field.ask(self._prompts, content.get(field.name))
        content.pop(field.name, None)
        if value is not None:
            content[field.name] = value

    async def _url(self, question: Question) -> Any:
        """Ask for consent before opening a URL. Show the host separately, because a long URL can
        hide it."""
        url = question.url or ""
        self._prompts.say(_bounded(question.message))
        self._prompts.say(f"  URL to open: {_bounded(url)}")
        self._prompts.say(f"  host:        {question.host}")
        ways = [OPEN, OPENED, DECLINED, DISMISSED]
        chosen = ways[await self._prompts.choice("", ways, ways.index(DECLINED))]
        if chosen == OPEN and not await asyncio.to_thread(webbrowser.open, url):
            self._prompts.say("  No browser could be opened. Open the URL yourself, then continue.")
            await self._prompts.text("Press Enter when you have opened it")
        return {OPEN: True, OPENED: True, DECLINED: DECLINE, DISMISSED: CANCEL}[chosen]

    async def _sample(self, question: Question) -> Any:
        """Ask the person for the text that a model would write."""
        if system := question.params.get("systemPrompt"):
            self._prompts.say(f"  system: {_bounded(str(system))}")
        for message in question.params["messages"]:
            content = message.get("content") if isinstance(message, dict) else message
            text = content.get("text") if isinstance(content, dict) else None
            role = message.get("role") if isinstance(message, dict) else "?"
            shown = _bounded(text if isinstance(text, str) else json.dumps(content))
            self._prompts.say(f"  {role}: {shown}")
        return await self._prompts.text("Answer as the model (Alt-Enter: new line)")

    async def _roots(self, question: Question) -> Any:
        """Ask for the folders that the server may know. An empty list is a valid answer."""

        def check(text: str) -> str | None:
            is_usable = not text or Path(text).expanduser().is_dir()
            return None if is_usable else "There is no such folder"

        self._prompts.say(
            "  Which folders may the server know? One per line; an empty line ends the list."
        )
        roots: list[str] = []
        default = str(Path.cwd())
        while text := await self._prompts.text("Folder", default, check):
            roots.append(_uri(text))
            default = ""
        return roots


def _uri(folder: str) -> str:
    return Path(folder).expanduser().resolve().as_uri()


def _bounded(text: str) -> str:
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    return f"{text[:MAX_SHOWN_CHARS]} … ({len(text)} characters)"


class _Field:
    """One field of a form."""

    def __init__(self, field: Field, question: Question) -> None:
        self.name = field.name
        self.title = field.label
        self._field = field
        self._question = question
        self._label = self.title if field.is_required else f"{self.title} (optional)"

    async def ask(self, prompts: Prompts, current: Any) -> Any:
        """Return the person's value, or `None` for no value. `current` is the previous answer."""
        if description := self._field.description:
            prompts.say(f"  {description[:1_000]}")
        default = self._field.default if current is None else current
        if self._field.kind == "choices":
            return await self._ask_several(prompts, default)
        if self._field.kind == "choice":
            return await self._ask_one(prompts, default)
        return await self._ask_text(prompts, default)

    async def _ask_one(self, prompts: Prompts, default: Any) -> Any:
        options = list(self._field.options)
        if not self._field.is_required:
            options.append((None, NO_ANSWER))
        at = next((index for index, (value, _) in enumerate(options) if value == default), 0)
        labels = [label for _, label in options]
        return options[await prompts.choice(self._label, labels, at)][0]

    async def _ask_several(self, prompts: Prompts, default: Any) -> list[Any] | None:
        values = [value for value, _ in self._field.options]
        before = default if isinstance(default, list) else []

        def picked(chosen: set[int]) -> list[Any]:
            return [values[index] for index in sorted(chosen)]

        def check(chosen: set[int]) -> str | None:
            return self._problem(picked(chosen)) if chosen or self._field.is_required else None

        chosen = {index for index, value in enumerate(values) if value in before}
        labels = [label for _, label in self._field.options]
        chosen = await prompts.choices(self._label, labels, chosen, check)
        return picked(chosen) if chosen or self._field.is_required else None

    async def _ask_text(self, prompts: Prompts, default: Any) -> Any:
        def check(text: str) -> str | None:
            if not text and not self._field.is_required:
                return None
            try:
                return self._problem(self._field.value(text))
            except ValueError as error:
                return str(error)

        shown = "" if default is None else self._field.text(default)
        text = await prompts.text(self._label, shown, check, is_secret=self._field.is_secret)
        return None if not text and not self._field.is_required else self._field.value(text)

    def _problem(self, value: Any) -> str | None:
        """Return the first problem that the form's schema reports for a value of this field, or
        `None`."""
        place = f"answer.{self.name}"
        for problem in self._question.problems({self.name: value}):
            where, _, what = problem.partition(": ")
            if where == place or where.startswith((f"{place}.", f"{place}[")):
                return what
        return None
