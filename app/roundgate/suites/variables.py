"""`${…}` in the values of a suite: variables, the environment, secrets, files.

${order.id}              JMESPath over the variables of the case; a text that is nothing else keeps the value's type
${env:NAME}              a variable of the environment; ${env:NAME:-default}
${secret:NAME}           the same, kept out of everything that is shown or written
${file:path}             the text of a file beside the suite
${unique}                a text that no other case and no other run has
$${                      a plain ${
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from roundgate.errors import UnresolvedReference
from roundgate.settings import Expression, parts
from roundgate.settings.spellings import in_base64, in_escapes, spellings
from roundgate.suites import paths

MAX_FILE_BYTES: Final = 8 * 1024 * 1024
GIVEN: Final = frozenset({"unique", "port"})
"""Variables that are there without being said."""


class Variables:
    """What references of one case lead to."""

    def __init__(
        self,
        values: Mapping[str, Any],
        folder: Path,
        environ: Mapping[str, str],
        secrets: Secrets,
    ) -> None:
        self.values = dict(values)
        self._folder = folder
        self._environ = environ
        self._secrets = secrets

    def define(self, given: Mapping[str, Any]) -> None:
        """Make variables, each of which may refer to those before it.

        Raises:
            ValueError: as `filled`.
        """
        for name, value in given.items():
            self.values[name] = self.filled(value)

    def filled(self, value: Any) -> Any:
        """A value with every reference in its texts, and in its keys, replaced.

        Raises:
            ValueError: one leads to nothing; the text says which, and what to do.
        """
        match value:
            case dict():
                return {self._text(key): self.filled(item) for key, item in value.items()}
            case list():
                return [self.filled(item) for item in value]
            case str() if "${" in value:
                found = _parts(value)
                is_one = len(found) == 1 and isinstance(found[0], Expression)
                return self._resolved(found[0]) if is_one else self._text(value)
            case _:
                return value

    def text(self, value: str) -> str:
        """A text with its references replaced, whatever type they have.

        Raises:
            ValueError: as `filled`.
        """
        filled: str = self._text(value)
        return filled

    def _text(self, value: Any) -> Any:
        if not isinstance(value, str) or "${" not in value:
            return value
        return "".join(_as_text(self._resolved(part)) for part in _parts(value))

    def _resolved(self, part: str | Expression) -> Any:
        if isinstance(part, str):
            return part
        name = part.name
        match part.source:
            case "file":
                return self._file(name)
            case "env" | "secret":
                return self._environment(name, part.default, part.source)
            case "ssm":
                raise ValueError(f"${{ssm:{name}}}: a suite reads nothing from AWS")
        value = paths.found(name, self.values)
        if value is None and paths.first_name(name) not in self.values:
            raise ValueError(f"there is no variable {name}: `variables` or `save` make one")
        if value is None and not _is_plain(name):
            raise ValueError(f"{name} leads to nothing in the variables of this case")
        return value

    def _environment(self, name: str, default: str | None, source: str) -> str:
        value = self._environ.get(name) or default
        if value is None:
            raise ValueError(
                f"the environment variable {name} is not set: set it, or write "
                f"${{{source}:{name}:-default}}"
            )
        if source == "secret":
            if len(value) < MIN_CHARS:
                raise ValueError(
                    f"the secret {name} has fewer than {MIN_CHARS} characters, too few to keep it "
                    "out of reports: take a longer one, or ${env:…} if it is none"
                )
            self._secrets.add(value)
        return value

    def _file(self, name: str) -> str:
        folder, place = self._folder.resolve(), (self._folder / name).resolve()
        if not place.is_relative_to(folder):
            raise ValueError(f"the file {name}: is not beside the suite or below its folder")
        try:
            with place.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            text = data.decode()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "is not text"
            raise ValueError(f"the file {name}: {reason}") from None
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"the file {name} has more than {MAX_FILE_BYTES} bytes")
        return text


def problems(
    value: Any, known: frozenset[str] | set[str], loc: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What is wrong with the references of a value before anything is run: the place
    within it, and a sentence.

    Args:
        known: the variables that are there by then.
    """
    match value:
        case dict():
            for key, item in value.items():
                yield from problems(item, known, (*loc, key))
        case list():
            for index, item in enumerate(value):
                yield from problems(item, known, (*loc, index))
        case str() if "${" in value:
            try:
                found = _parts(value)
            except ValueError as error:
                yield loc, str(error)
                return
            for part in found:
                if isinstance(part, Expression) and (what := _wrong(part, known)) is not None:
                    yield loc, what


def _parts(text: str) -> list[str | Expression]:
    try:
        return parts(text)
    except UnresolvedReference:
        message = "${ begins something that is no reference: $${ is a plain one"
        raise ValueError(message) from None


def _wrong(part: Expression, known: frozenset[str] | set[str]) -> str | None:
    if part.source:
        return None
    try:
        name = paths.first_name(part.name)
    except ValueError as error:
        return f"${{{part.name}}} {error}"
    if name in known or name in GIVEN:
        return None
    there = ", ".join(sorted(known | GIVEN))
    return f"there is no variable {name or part.name} by then; there are {there}"


def _is_plain(name: str) -> bool:
    return re.fullmatch(r"\w+", name) is not None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


SHOWN: Final = "***"
CUT: Final = "…"
"""What stands where a long text was cut."""
MIN_CHARS: Final = 4
"""Shorter values are not looked for: they would be found in every second word."""


class Secrets:
    """What has to be kept secret, and how a text or a value looks without it."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._forms: set[str] = set()
        self._in_base64: dict[str, re.Pattern[str]] = {}
        self._escaped: dict[str, re.Pattern[str]] = {}
        for value in values:
            self.add(value)

    def add(self, value: Any) -> None:
        """Keep a value secret from now on, and each text in it."""
        if isinstance(value, dict):
            for member in value.values():
                self.add(member)
        elif isinstance(value, list):
            for item in value:
                self.add(item)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            text = str(value)
            if len(text) >= MIN_CHARS:
                # Python's errors quote with `repr`
                self._forms |= {repr(text)[1:-1], *spellings(text)}
                self._escaped[text] = re.compile(in_escapes(text))
                for core, pattern in in_base64(text):
                    self._in_base64[core] = re.compile(pattern)

    def hidden(self, text: str) -> str:
        """A text without the secrets in it, and without the beginning of one
        behind which it was cut."""
        for core, pattern in self._in_base64.items():
            if core in text:
                text = pattern.sub(SHOWN, text)
        for pattern in self._escaped.values():
            text = pattern.sub(SHOWN, text)
        for form in sorted(self._forms, key=len, reverse=True):
            text = text.replace(form, SHOWN)
            for length in range(min(len(form) - 1, len(text)), MIN_CHARS - 1, -1):
                begun = form[:length]
                text = text.replace(f"{begun}{CUT}", f"{SHOWN}{CUT}")
                if text.endswith(begun):
                    text = f"{text[:-length]}{SHOWN}"
        return text

    def without(self, value: Any) -> Any:
        """A JSON value without the secrets in it."""
        match value:
            case str():
                return self.hidden(value)
            case dict():
                return {self.hidden(str(key)): self.without(item) for key, item in value.items()}
            case list():
                return [self.without(item) for item in value]
            case int() | float() if not isinstance(value, bool) and str(value) in self._forms:
                return SHOWN
            case _:
                return value
