"""What can be asked on a terminal: text, one of several, several of several.
prompt_toolkit does the work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.document import Document
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.shortcuts.choice_input import ChoiceInput
from prompt_toolkit.validation import ValidationError, Validator

from roundgate.cli.output import say
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
