"""References (`${…}`) in the values of a suite: variables, the environment, secrets, files.

${order.id}       JMESPath over the variables of the case; as the whole text, it keeps the value's type
${env:NAME}       an environment variable; ${env:NAME:-default} if it may be unset or empty
${secret:NAME}    an environment variable whose value is redacted in all output
${file:path}      the text of a file in the suite's folder or below
${unique}         a text that is unique for one run of one case
$${               a literal ${
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import jmespath
from jmespath import exceptions

from roundgate.errors import UnresolvedReference
from roundgate.settings import Expression, parts
from roundgate.settings.redacting import MIN_CHARS, Secrets

_BROKEN: Final = "${ does not begin a valid reference: write $${ for a literal ${"
MAX_FILE_BYTES: Final = 8 * 1024 * 1024
BUILT_IN: Final = frozenset({"unique", "port"})
"""The names of variables that a suite cannot define."""


@lru_cache(maxsize=1_024)
def compile_path(expression: str) -> Any:
    """Compile a JMESPath expression.

    Raises:
        ValueError: the expression is invalid.
    """
    try:
        return jmespath.compile(expression)
    except exceptions.JMESPathError as error:
        raise ValueError(f"is not JMESPath: {_first_line(error)}") from None


def search(expression: str, document: Any) -> Any:
    """Return the value that a JMESPath expression finds in a document, or `None`.

    Raises:
        ValueError: the expression is invalid, or cannot be applied to the document.
    """
    try:
        return compile_path(expression).search(document)
    except exceptions.JMESPathError as error:
        raise ValueError(f"{expression}: {_first_line(error)}") from None


def _first_name(expression: str) -> str:
    """Return the variable at the start of an expression, such as `order` of `order.items[0].id`, or
    "".

    Raises:
        ValueError: the expression is invalid.
    """
    node = compile_path(expression).parsed
    while node.get("children") and node["type"] != "field":
        node = node["children"][0]
    return str(node["value"]) if node["type"] == "field" else ""


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200]


class Variables:
    """The variables of one case, and the resolution of references to them."""

    def __init__(
        self, values: Mapping[str, Any], folder: Path, environ: Mapping[str, str], secrets: Secrets
    ) -> None:
        self.values = dict(values)
        self._folder = folder
        self._environ = environ
        self._secrets = secrets

    def define(self, definitions: Mapping[str, Any]) -> None:
        """Add variables. Each may refer to those before it.

        Raises:
            ValueError: a reference cannot be resolved.
        """
        for name, value in definitions.items():
            self.values[name] = self.filled(value)

    def filled(self, value: Any) -> Any:
        """Return a value with all references in its texts and keys replaced.

        Raises:
            ValueError: a reference cannot be resolved.
        """
        match value:
            case dict():
                return {self.text(key): self.filled(item) for key, item in value.items()}
            case list():
                return [self.filled(item) for item in value]
            case str():
                references = _parts(value)
                is_one = len(references) == 1 and isinstance(references[0], Expression)
                return self._resolved(references[0]) if is_one else self.text(value)
            case _:
                return value

    def text(self, value: str) -> str:
        """Return a text with its references replaced by texts.

        Raises:
            ValueError: a reference cannot be resolved.
        """
        return "".join(as_text(self._resolved(part)) for part in _parts(value))

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
                raise ValueError(
                    f"${{ssm:{name}}}: a suite cannot read values at AWS; use ${{env:NAME}}"
                )
        value = search(name, self.values)
        if value is None and _first_name(name) not in self.values:
            raise ValueError(
                f"there is no variable {name}: define it in `variables` or with `save`"
            )
        if value is None and not re.fullmatch(r"\w+", name):
            raise ValueError(f"{name} has no value in this case: set it, or correct the expression")
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
                    f"the secret {name} has fewer than {MIN_CHARS} characters, too few to redact it "
                    "in reports: use a longer secret, or ${env:…} if the value is not secret"
                )
            self._secrets.add(value)
        return value

    def _file(self, name: str) -> str:
        folder, place = self._folder.resolve(), (self._folder / name).resolve()
        if not place.is_relative_to(folder):
            raise ValueError(f"the file {name}: is not in the suite's folder or below")
        try:
            with place.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            text = data.decode()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "is not text"
            raise ValueError(f"the file {name}: {reason}") from None
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(
                f"the file {name} has more than {MAX_FILE_BYTES} bytes; use a smaller file"
            )
        return text


def problems(
    value: Any, known: set[str], loc: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the references in a value that cannot be resolved, each as a location in the value and
    a sentence. `known` are the variables defined at this place of the suite, without `unique`,
    which is always defined."""
    match value:
        case dict():
            for key, item in value.items():
                yield from problems(item, known, (*loc, key))
        case list():
            for index, item in enumerate(value):
                yield from problems(item, known, (*loc, index))
        case str():
            try:
                references = _parts(value)
            except ValueError as error:
                yield loc, str(error)
                return
            for part in references:
                problem = _problem(part, known | {"unique"})
                if problem is not None:
                    yield loc, problem


def _parts(text: str) -> list[str | Expression]:
    try:
        return parts(text)
    except UnresolvedReference:
        raise ValueError(_BROKEN) from None


def _problem(part: str | Expression, known: set[str]) -> str | None:
    if isinstance(part, str) or part.source:
        return None
    try:
        name = _first_name(part.name)
    except ValueError as error:
        return f"${{{part.name}}} {error}"
    if name in known:
        return None
    names = ", ".join(sorted(known))
    return f"the variable {name or part.name} is not defined here; defined are {names}"


def as_text(value: Any) -> str:
    """Return a text unchanged, and any other value as JSON on one line."""
    return value if isinstance(value, str) else as_json(value)


def as_json(value: Any) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)
