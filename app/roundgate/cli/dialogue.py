"""The person at a terminal: each question of a server is shown, and what is typed becomes its answer.

Prompts go to standard error, so that standard output holds nothing but the result of the call.
Whatever a server says is shown with control and format characters escaped. prompt_toolkit draws
and reads.
"""

from __future__ import annotations

import asyncio
import json
import sys
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

DONE: Final = "That is all"
_INDENT: Final = "  "

Check = Callable[[str], str | None]
"""What is wrong with a text that was typed, `None` if nothing is."""


class Prompts:
    """Asks on the terminal that standard error is.

    Ctrl-C raises `KeyboardInterrupt`, Ctrl-D on an empty line `EOFError`.

    Args:
        keys: where keys come from; the terminal unless given.
        screen: where prompts are drawn; standard error unless given.
    """

    def __init__(self, keys: Input | None = None, screen: Output | None = None) -> None:
        self._keys = keys or create_input()
        self._screen = screen or create_output(stdout=sys.stderr)

    def say(self, text: str) -> None:
        """Show lines of text, characters that a terminal would act on escaped."""
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
        """One text; Alt-Enter begins a new line in it.

        Args:
            label: stands before what is typed.
            default: what is there already.
            check: returns what is wrong with a text, `None` if nothing is.
            is_secret: stars are shown in place of what is typed.
        """
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
        """The index of the option that is chosen with the arrow keys and Enter."""
        shown = [(index, escaped(option)) for index, option in enumerate(options)]
        with create_app_session(self._keys, self._screen):
            asked: ChoiceInput[int] = ChoiceInput(
                message=escaped(label), options=shown, default=default
            )
            return await asked.prompt_async()

    async def choices(
        self, label: str, options: Sequence[str], chosen: set[int], check: Check
    ) -> set[int]:
        """The indexes of all options that are chosen, each with Enter; the last entry ends it."""
        at = 0
        while True:
            marks = [
                f"[{'x' if index in chosen else ' '}] {option}"
                for index, option in enumerate(options)
            ]
            at = await self.choice(label, [*marks, DONE], at)
            if at < len(options):
                chosen ^= {at}
            elif (problem := check("")) is None:
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
    def __init__(self, check: Check) -> None:
        self._check = check

    def validate(self, document: Document) -> None:
        if (problem := self._check(document.text)) is not None:
            raise ValidationError(len(document.text), problem)


NO_ANSWER: Final = "(no answer)"
_NUMBERS: Final = {"integer": (int,), "number": (int, float)}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form.

    `options` are the values that it may have, each with what is shown for it;
    none if it is not a choice.
    """

    name: str
    schema: Mapping[str, Any]
    question: Question
    is_required: bool
    takes_several: bool
    options: tuple[tuple[Any, str], ...]

    @classmethod
    def all_of(cls, question: Question) -> list[Field]:
        """The fields of a form in its order."""
        required = question.schema.get("required")
        needed = required if isinstance(required, list) else []
        return [
            cls._of(name, one, question, name in needed) for name, one in question.fields.items()
        ]

    @classmethod
    def _of(
        cls, name: str, schema: Mapping[str, Any], question: Question, is_required: bool
    ) -> Field:
        several = schema.get("type") == "array"
        items = schema.get("items") if several else schema
        options = _options(items) if isinstance(items, Mapping) else ()
        return cls(name, schema, question, is_required, several, options)

    @property
    def title(self) -> str:
        return str(self.schema.get("title") or self.name)

    async def ask(self, prompts: Prompts, current: Any) -> Any:
        """The value that a person gives, `None` for none. `current` is what was given before."""
        if described := self.schema.get("description"):
            prompts.say(f"  {str(described)[:1_000]}")
        default = self.schema.get("default") if current is None else current
        if not self.options:
            return await self._text(prompts, default)
        return await (
            self._several(prompts, default) if self.takes_several else self._one(prompts, default)
        )

    async def _one(self, prompts: Prompts, default: Any) -> Any:
        values = [value for value, _ in self.options]
        labels = [label for _, label in self.options]
        if not self.is_required:
            values.append(None)
            labels.append(NO_ANSWER)
        at = next((index for index, value in enumerate(values) if value == default), 0)
        return values[await prompts.choice(self._label(), labels, at)]

    async def _several(self, prompts: Prompts, default: Any) -> list[Any] | None:
        values = [value for value, _ in self.options]
        before = default if isinstance(default, list) else []
        chosen = {index for index, value in enumerate(values) if value in before}

        def check(_: str) -> str | None:
            picked = [values[index] for index in sorted(chosen)]
            return self._problem(picked) if picked or self.is_required else None

        await prompts.choices(self._label(), [label for _, label in self.options], chosen, check)
        picked = [values[index] for index in sorted(chosen)]
        return picked if picked or self.is_required else None

    async def _text(self, prompts: Prompts, default: Any) -> Any:
        def check(text: str) -> str | None:
            if not text and not self.is_required:
                return None
            try:
                return self._problem(self._value(text))
            except ValueError as error:
                return str(error)

        shown = (
            default if isinstance(default, str) else "" if default is None else json.dumps(default)
        )
        is_secret = self.schema.get("format") == "password" or self.schema.get("writeOnly") is True
        text = await prompts.text(self._label(), shown, check, is_secret=is_secret)
        return None if not text and not self.is_required else self._value(text)

    def _label(self) -> str:
        return self.title if self.is_required else f"{self.title} (optional)"

    def _value(self, text: str) -> Any:
        """What was typed, in the type of the field.

        Raises:
            ValueError: it is of another; the text says which is wanted.
        """
        kind = self.schema.get("type")
        if kind not in (*_NUMBERS, "array", "object"):
            return text
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if kind in _NUMBERS and (isinstance(found, bool) or not isinstance(found, _NUMBERS[kind])):
            raise ValueError("Type a whole number" if kind == "integer" else "Type a number")
        return found

    def _problem(self, value: Any) -> str | None:
        """What the form's own schema says against a value of this field."""
        place = f"answer.{self.name}"
        for problem in self.question.problems({self.name: value}):
            where, _, what = problem.partition(": ")
            if where == place or where.startswith((f"{place}.", f"{place}[")):
                return what
        return None


def _options(schema: Mapping[str, Any]) -> tuple[tuple[Any, str], ...]:
    """The values of a choice with their titles: `enum` with `enumNames`, `oneOf` or `anyOf`
    of constants, a boolean."""
    if schema.get("type") == "boolean":
        return (True, "yes"), (False, "no")
    if isinstance(values := schema.get("enum"), list):
        names = schema.get("enumNames")
        titles = names if isinstance(names, list) and len(names) == len(values) else values
        return tuple((value, str(title)) for value, title in zip(values, titles, strict=True))
    for word in ("oneOf", "anyOf"):
        listed = schema.get(word)
        if isinstance(listed, list) and all(
            isinstance(one, Mapping) and "const" in one for one in listed
        ):
            return tuple((one["const"], str(one.get("title", one["const"]))) for one in listed)
    return ()


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
