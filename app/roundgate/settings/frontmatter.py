"""The frontmatter of a SKILL.md as JSON.

Hosts parse the same text and compare it with the entry. Values therefore follow the core schema of
YAML 1.2, in which dates and `yes` are text. A value without a JSON form is refused.
"""

from __future__ import annotations

import re
from typing import Any, Final

from roundgate.errors import YamlTooCostly
from roundgate.settings.yaml_file import check_cost

MAX_CHARS: Final = 65_536
"""The maximum length of a frontmatter, in characters."""
MAX_VALUES: Final = 2_000
_BLOCK: Final = re.compile(r"---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_NULL: Final = ("", "~", "null", "Null", "NULL")
_BOOLEANS: Final = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_TAG: Final = "tag:yaml.org,2002:"


def read_frontmatter(text: str) -> dict[str, Any]:
    """Return the frontmatter of a SKILL.md.

    Raises:
        ValueError: the frontmatter is missing, or is not YAML with values that JSON has. The
            text continues a sentence about the file.
    """
    block = _BLOCK.match(text[: MAX_CHARS + 1])
    if block is None:
        if text.startswith("\ufeff"):
            raise ValueError(
                "begins with a byte order mark: save the file without a byte order mark"
            )
        raise ValueError(
            "does not begin with frontmatter: a line `---`, `name: …` and `description: …`, and a line `---`"
        )
    values = _read(block[1])
    if not isinstance(values, dict):
        raise ValueError("has a frontmatter that is not a mapping")
    return values


def _read(text: str) -> Any:
    import yaml  # here, because few configurations have skills

    try:
        check_cost(text.encode(), max_values=MAX_VALUES, max_aliased=0)
        return _value(yaml.compose(text, Loader=yaml.BaseLoader))
    except YamlTooCostly as error:
        raise ValueError(f"has a frontmatter that {error}") from None
    except yaml.YAMLError as error:
        complaint = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ValueError(f"has a frontmatter that is not YAML: {complaint}") from None


def _value(node: Any) -> Any:
    """Return the value of a node. Raise ValueError if the value has no JSON form."""
    match node:
        case None:
            return None
        case _ if node.tag not in (f"{_TAG}{kind}" for kind in ("str", "seq", "map")):
            raise ValueError(f"has a frontmatter with the tag {node.tag[:80]}: remove the tag")
        case _ if node.id == "sequence":
            return [_value(item) for item in node.value]
        case _ if node.id == "mapping":
            return _mapping(node)
    return node.value if node.style else _plain(node.value)


def _mapping(node: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _value(key_node)
        if not isinstance(key, str):
            raise ValueError(f"has a frontmatter with the key {key!r:.80}: put it in quotes")
        if key in values:
            raise ValueError(f"has a frontmatter with the key {key[:80]!r} twice")
        values[key] = _value(value_node)
    return values


def _plain(text: str) -> Any:
    """Return the value of an unquoted scalar (core schema of YAML 1.2). Raise ValueError if the
    value has no JSON form."""
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"has a frontmatter with {text}, which has no JSON form: put it in quotes")
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    return _number(text) if _FLOAT.fullmatch(text) else text


def _number(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"has a frontmatter with the number {text}, which is too large")
    return number
