"""Writes docs/reference.md: the public names with their signatures and docstrings, from the source.

    scripts/tools reference

The groups of names are in the page's own headings below. `tests/test_documents.py` holds the page to the source.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Final, NamedTuple, TypeAlias

PAGE: Final = Path(__file__).resolve().parents[1] / "reference.md"
GROUPS: Final[Mapping[str, tuple[str, str]]] = {
    "Declaring": (
        "roundgate",
        "tool prompt resource ToolOptions PromptOptions ResourceOptions App",
    ),
    "The context of a call": (
        "roundgate",
        "Context SyncContext ExternalEvent SyncExternalEvent Deadline Principal",
    ),
    "Questions": ("roundgate", "Form Url Sample Roots Answer Sampled Root"),
    "Results and content": (
        "roundgate",
        "ToolResult TextContent ImageContent AudioContent ResourceLink EmbeddedResource "
        "TextResourceContents BlobResourceContents Annotations Icon PromptMessage Completion ",
    ),
    "Errors": (
        "roundgate",
        "ToolError InvalidParams ResourceNotFound Declined StepFailed StepTimeout OutcomeUnknown "
        "NotJson ",
    ),
    "Client: calling": (
        "roundgate.client",
        "Client Task CallResult ServerInfo Skill SkillFile handle_of split_handle",
    ),
    "Client: questions and answers": (
        "roundgate.client",
        "Question Kind Answers Answerer AnswersLike answer_all by_schema defaults ACCEPT DECLINE "
        "CANCEL ",
    ),
    "Client: what servers offer": (
        "roundgate.client",
        "Tool Prompt PromptResult Resource ReadResult Completion",
    ),
    "Client: what happens meanwhile": ("roundgate.client", "Progress Log TaskState Change"),
    "Client: how it sends": (
        "roundgate.client",
        "VERSIONS Observer Auth Bearer Limits Transport HttpxTransport Url EventReader message "
        "envelope headers_of of_request HttpRequest HttpResponse ",
    ),
    "Client: rounds by hand": (
        "roundgate.client",
        "InputRequest InputResponse InputRequiredResult recognize_input_required collect_responses "
        "build_retry_params run_elicitation_chain ",
    ),
}
"""By heading: the package, and its names in their order."""
_HEAD: Final = """# API reference

The names in `roundgate` and `roundgate.client`, with their signatures and docstrings. `scripts/tools reference` writes
this page from the source.
"""
_SECTION: Final = re.compile(r"^(Args|Raises|Returns|Yields):$")
_ENTRY: Final = re.compile(r"^ {4}(\S[^:]*): (.*)$")

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """Where a name is defined: the statement, and the statement after it, which may be its docstring."""

    module: str
    node: ast.stmt
    after: ast.stmt | None


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for heading, (package, names) in GROUPS.items():
        parts.append(f"## {heading}\n")
        for name in names.split():
            parts += _entry(package, name)
    return _formatted("\n".join(parts))


@cache
def _statements(module: str) -> list[ast.stmt]:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).read_text("utf-8")).body


def _defined(module: str, name: str) -> Place:
    """Return where a name is defined; follow imports."""
    body = _statements(module)
    pairs = list(zip(body, [*body[1:], None], strict=True))
    for node, after in reversed(pairs):  # the last of a function's definitions is no overload
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == name:
                return Place(module, node, after)
            case ast.AnnAssign(target=ast.Name(id=target)) if target == name:
                return Place(module, node, after)
            case ast.ImportFrom(module=str(source)):
                for alias in node.names:
                    if (alias.asname or alias.name) == name and source.startswith("roundgate"):
                        return _defined(source, alias.name)
    raise LookupError(f"{module} has no {name}")


def _entry(package: str, name: str) -> Iterator[str]:
    place = _defined(package, name)
    yield f"### `{package}.{name}`\n"
    match place.node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() as node:
            yield _code(_signature(node))
            yield _text(ast.get_docstring(node))
        case ast.ClassDef() as node:
            yield _code(_class_stub(node))
            yield _text(ast.get_docstring(node))
            yield from _members(place)
        case node:
            yield _code(ast.unparse(node))
            yield _text(_docstring_after(place.after))


def _class_stub(node: ast.ClassDef) -> str:
    """Return the line of a class, with its constructor if programs call it."""
    bases = [ast.unparse(base) for base in node.bases]
    named = ", ".join(base for base in bases if not base.startswith(("Struct", "Value", "_")))
    line = f"class {node.name}({named}):" if named else f"class {node.name}:"
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            first = member.args.args[1:2]
            if not (first and ast.unparse(first[0]) == "run: Run"):  # the engine makes it
                return f"{line}\n    {_signature(member)}"
    return f"{line} ..."


def _members(place: Place) -> Iterator[str]:
    """Yield the public attributes of a class in a list, and its documented methods."""
    classes = list(_with_bases(place))
    if fields := [field for node in classes for field in _fields(node)]:
        yield "\n".join(fields) + "\n"
    for node in reversed(classes):
        for member in node.body:
            if isinstance(member, Function) and not member.name.startswith("_"):
                text = ast.get_docstring(member)
                if text is not None:
                    yield f"#### `{classes[-1].name}.{member.name}`\n"
                    yield _code(_signature(member))
                    yield _text(text)


def _with_bases(place: Place) -> Iterator[ast.ClassDef]:
    """Yield the bases of a class that have no entry of their own, and the class."""
    assert isinstance(place.node, ast.ClassDef)
    for base in place.node.bases:
        name = ast.unparse(base)
        if name.isidentifier() and not any(name in names.split() for _, names in GROUPS.values()):
            with suppress(LookupError):
                yield from _with_bases(_defined(place.module, name))
    yield place.node


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for member, after in zip(node.body, [*node.body[1:], None], strict=True):
        match member:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)])
            ) if not name.startswith("_"):
                text = _docstring_after(after)
                line = f"- `{_one_line(ast.unparse(member))}`"
                entry = line if text is None else f"{line}: {_one_line(text)}"
                yield fill(
                    entry,
                    120,
                    subsequent_indent="  ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )


def _docstring_after(statement: ast.stmt | None) -> str | None:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
    return None


def _signature(node: Function) -> str:
    """Return a function as a stub, with the decorators that change how it is used."""
    shown = type(node)(**{**vars(node), "body": [ast.Expr(ast.Constant(...))]})
    shown.decorator_list = [
        decorator
        for decorator in node.decorator_list
        if ast.unparse(decorator) in ("property", "classmethod", "staticmethod")
    ]
    return ast.unparse(shown).replace(":\n    ...", ": ...")


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _text(docstring: str | None) -> str:
    """Return a docstring in Markdown: its sections as lists."""
    lines: list[str] = []
    is_section = False
    for line in (docstring or "").splitlines():
        if (section := _SECTION.match(line)) is not None:
            is_section = True
            lines += [f"{section[1]}:", ""]
        elif is_section and (entry := _ENTRY.match(line)) is not None:
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif is_section and line.startswith("    "):
            lines.append(f"  {line.strip()}")
        else:
            is_section = is_section and not line
            lines.append(line)
    return "\n".join(lines) + "\n" if lines else ""


def _formatted(text: str) -> str:
    """Return the page with its signatures wrapped as ruff wraps a stub."""
    code = re.findall(r"```python\n(.*?)\n```", text, re.DOTALL)
    mark = "\n\n_END_OF_ONE = 0\n\n"
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "100", "--stdin-filename=x.pyi", "-"],
        input=mark.join(code),
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    wrapped = iter(re.split(r"\s*_END_OF_ONE = 0\s*", done.stdout.strip()))
    text = re.sub(
        r"```python\n.*?\n```", lambda _: f"```python\n{next(wrapped)}\n```", text, flags=re.DOTALL
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
