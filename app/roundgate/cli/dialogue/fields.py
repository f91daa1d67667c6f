"""The fields of a form, each asked in the way that its schema wants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from roundgate.cli.dialogue.prompts import Prompts
from roundgate.client import Question

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
