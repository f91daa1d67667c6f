"""What the code says, read out of its source: messages of the log, texts of
errors, names of metrics.

A message is a template: "…" stands wherever something is put in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TypeVar

from tests.support.documents import ROOT
from tests.support.sources import Source, sources

_LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})


@dataclass(frozen=True)
class Said:
    """One message: `kind` is the level of a log message, or what is called with the text."""

    kind: str
    template: str
    at: str


@dataclass(frozen=True)
class Module:
    """One source file."""

    source: Source

    def place(self, node: ast.AST) -> str:
        """As a reader finds it: file and line."""
        return f"{self.source.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"

    @cached_property
    def calls(self) -> list[tuple[str, ast.Call]]:
        """Each call of a name or an attribute, with its last name."""
        nodes = self.source.nodes(ast.Call)
        return [(name, node) for node in nodes if (name := last_name(node.func))]

    def templates(self, value: ast.expr, depth: int = 5) -> list[str]:
        """The texts that an expression may be; a name is looked up in its function and among the constants of the
        file, a function of the file by what it returns."""
        match value:
            case ast.Constant(value=str() as text):
                return [_holes(text)]
            case ast.JoinedStr(values=parts):
                texts = [part.value if isinstance(part, ast.Constant) else "…" for part in parts]
                return [re.sub("…+", "…", "".join(map(str, texts)))]
            case ast.IfExp(body=body, orelse=orelse):
                return self.templates(body, depth) + self.templates(orelse, depth)
            case ast.BinOp(left=left, op=ast.Add()):
                return [f"{text}…" for text in self.templates(left, depth)]
            case ast.Name(id=name) if depth:
                return [
                    text
                    for one in self._assigned(name, value)
                    for text in self.templates(one, depth - 1)
                ]
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if depth:
                return [
                    text
                    for where, one in self._fields(name, value)
                    for text in where.templates(one, depth - 1)
                ]
            case ast.Call(
                func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name)
            ) if depth:
                return [
                    text for one in self._returned(name) for text in self.templates(one, depth - 1)
                ]
            case ast.Call(func=ast.Attribute(value=ast.Name() as constant, attr="format")):
                return [re.sub(r"\{\w*\}", "…", text) for text in self.templates(constant, depth)]
        return []

    def _assigned(self, name: str, used: ast.Name) -> Iterator[ast.expr]:
        around = _around(used, self.source.functions)
        for function in around[-1:]:
            yield from self._given(name, function)
        nodes = [node for one in around[-1:] for node in ast.walk(one)] + self.source.tree.body
        for node in nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                    yield value
                case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if (
                    found == name
                ):
                    yield value
                case ast.NamedExpr(target=ast.Name(id=found), value=value) if found == name:
                    yield value

    def _given(
        self, name: str, function: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> Iterator[ast.expr]:
        """What callers in this file give for a parameter."""
        parameters = [one.arg for one in function.args.args if one.arg != "self"]
        if name in parameters and function.name != "__init__":
            for called, call in self.calls:
                if called == function.name:
                    yield from call.args[parameters.index(name) :][:1]
                    yield from (keyword.value for keyword in call.keywords if keyword.arg == name)

    def _fields(self, name: str, used: ast.Attribute) -> Iterator[tuple[Module, ast.expr]]:
        """The default of a field of the class around, and what is given for it wherever one is made."""
        for cls in _around(used, self.source.nodes(ast.ClassDef))[-1:]:
            fields = [
                one
                for one in cls.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            ]
            names = [ast.unparse(one.target) for one in fields]
            yield from (
                (self, one.value) for one in fields if ast.unparse(one.target) == name and one.value
            )
            for module in modules() if name in names else ():
                for called, call in module.calls:
                    if called == cls.name:
                        given = call.args[names.index(name) :][:1]
                        given += [keyword.value for keyword in call.keywords if keyword.arg == name]
                        yield from ((module, one) for one in given)

    def _returned(self, name: str) -> Iterator[ast.expr]:
        for function in self.source.functions:
            if function.name == name:
                yield from (
                    one.value
                    for one in ast.walk(function)
                    if isinstance(one, ast.Return) and one.value
                )


Node = TypeVar("Node", bound=ast.stmt)


def _around(used: ast.expr, nodes: Sequence[Node]) -> list[Node]:
    """Those around an expression, from the outermost to the innermost."""
    return [one for one in nodes if one.lineno <= used.lineno <= (one.end_lineno or 0)]


def last_name(value: ast.expr) -> str | None:
    """Of a name or an attribute."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def _holes(text: str) -> str:
    return re.sub(r"%(?:\.\d+)?[srd]", "…", text)


@cache
def modules() -> tuple[Module, ...]:
    """All of the product."""
    return tuple(map(Module, sources(ROOT / "app")))


def logged() -> Iterator[Said]:
    """Every message of every logger.

    Raises:
        AssertionError: one whose text is not in its file, so nobody could look it up.
    """
    for module in modules():
        loggers = set(_loggers(module)) if "getLogger" in module.source.text else ()
        for name, call in module.calls if loggers else ():
            if (
                name in _LEVELS
                and isinstance(call.func, ast.Attribute)
                and ast.unparse(call.func.value) in loggers
            ):
                templates = module.templates(call.args[0])
                assert templates, (
                    f"{module.place(call)}: log a text that stands in this file, so that it can be found"
                )
                yield from (Said(name, template, module.place(call)) for template in templates)


def _loggers(module: Module) -> Iterator[str]:
    for node in (*module.source.nodes(ast.Assign), *module.source.nodes(ast.AnnAssign)):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=ast.Attribute(attr="getLogger"))
            ):
                yield name
            case ast.AnnAssign(
                target=ast.Name(id=name), value=ast.Call(func=ast.Attribute(attr="getLogger"))
            ):
                yield name


def measured() -> Iterator[Said]:
    """Every instrument of OpenTelemetry: `kind` is "counter", "histogram" or "gauge"."""
    for module in modules():
        for name, call in module.calls if "create_" in module.source.text else ():
            kind = name.removeprefix("create_")
            if name != kind and kind in {"counter", "histogram", "gauge", "up_down_counter"}:
                yield from (
                    Said(kind, text, module.place(call)) for text in module.templates(call.args[0])
                )


_ROOTS = {
    name: name
    for name in (
        "ProtocolError",
        "TransportError",
        "Unavailable",
        "AuthError",
        "InternalError",
        "ToolError",
    )
}
"""The classes of errors whose text a caller gets."""
_PASSED_ON = re.compile(r"str\(\w+(\[0\])?\)|message")
"""An argument that is the text of another error."""


@cache
def parents() -> dict[str, str]:
    """Each class of error whose text a caller gets, under its parent."""
    bases = {
        node.name: base.id
        for module in modules()
        for node in module.source.nodes(ast.ClassDef)
        for base in node.bases[:1]
        if isinstance(base, ast.Name)
    }
    found = dict(_ROOTS)
    while more := {
        name: base for name, base in bases.items() if base in found and name not in found
    }:
        found |= more
    return found


@cache
def told() -> tuple[Said, ...]:
    """Every text that a caller may get as an error: `kind` is its class.

    Raises:
        AssertionError: one whose text is not in its file, so nobody could look it up.
    """
    return tuple(_told())


def _told() -> Iterator[Said]:
    composed = list(_texts_of_classes())
    own = {said.kind for said in composed}
    yield from composed
    for module in modules():
        for kind, call in _tellings(module):
            if kind == last_name(call.func) and kind in own:
                continue
            texts = [text for one in call.args for text in module.templates(one) if " " in text]
            is_passed_on = any(_PASSED_ON.fullmatch(ast.unparse(one)) for one in call.args)
            at = module.place(call)
            assert texts or is_passed_on, (
                f"{at}: say a text that stands in this file, so that it can be found"
            )
            yield from (Said(kind, text.replace("\n", " "), at) for text in texts)


def _tellings(module: Module) -> Iterator[tuple[str, ast.Call]]:
    """Calls that make an error, each with its class; a class of this file that becomes another counts as that."""
    become = dict(_translations(module))
    for name, call in module.calls:
        if name in parents():
            yield name, call
        elif name in become:
            yield become[name], call
        elif name == "error" and ast.unparse(call.func) == "ToolResult.error":
            yield "ToolError", call
        elif name == "error_response" and isinstance(
            call.args[1], ast.UnaryOp
        ):  # a code that is written out
            yield "InternalError", call


def _translations(module: Module) -> Iterator[tuple[str, str]]:
    """Classes that are caught to raise an error with their text: `except Broken as it: raise BackendError(str(it))`."""
    for node in module.source.nodes(ast.ExceptHandler):
        match node:
            case ast.ExceptHandler(type=ast.Name(id=caught), name=str() as name) if (
                caught not in parents()
            ):
                for call in (one for one in ast.walk(node) if isinstance(one, ast.Call)):
                    kind = last_name(call.func)
                    if kind in parents() and f"str({name})" in map(ast.unparse, call.args):
                        yield caught, kind
            case _:
                pass


def _texts_of_classes() -> Iterator[Said]:
    """What classes say that put their text together themselves."""
    for module in modules():
        for node in module.source.nodes(ast.ClassDef):
            if node.name in parents():
                calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
                composed = [one for one in calls if ast.unparse(one.func) == "super().__init__"]
                texts = [
                    text for one in composed for part in one.args for text in module.templates(part)
                ]
                yield from (
                    Said(node.name, text, module.place(node)) for text in texts if " " in text
                )
