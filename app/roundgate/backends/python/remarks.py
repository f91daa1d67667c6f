"""The remarks of `roundgate check` on a module: parts that can be served but are probably
mistakes."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from roundgate.backends.python.backend import PythonBackendConfig, declared_in
from roundgate.declare import Declaration, read_declarations
from roundgate.errors import Problem
from roundgate.settings import Origin

_DECORATORS = ("tool", "prompt", "resource")


def remarks(
    config: PythonBackendConfig, origin: Origin, fetched: Mapping[str, bytes]
) -> list[Problem]:
    """Return remarks on the loaded module of a back end."""
    module = sys.modules.get(config.module_name)
    if module is None:
        return []
    served = list(declared_in(module))
    problems = [*_methods(module, served), *_hidden(module)]
    if not served and not problems:
        remedy = "put @tool, @prompt or @resource in front of a function of the module"
        return [origin.problem("has no tools, prompts or resources", remedy)]
    for function, declaration in served:
        if declaration.decorator == "tool":
            problems += _of_tool(function, declaration)
    return problems


def _methods(
    module: ModuleType, served: Sequence[tuple[Callable[..., Any], Declaration]]
) -> Iterator[Problem]:
    bound = [getattr(function, "__func__", function) for function, _ in served]
    for owner in list(vars(module).values()):
        if not inspect.isclass(owner) or owner.__module__ != module.__name__:
            continue
        for name, value in list(vars(owner).items()):
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if not inspect.isfunction(function):
                continue  # an incomplete pydantic model has attributes that raise
            if read_declarations(function) and function not in bound:
                message = "is in a class, so it is not served; only functions of the module are"
                remedy = f"move it out of the class, or bind it: {name} = {owner.__name__}().{name}"
                yield _at(function, f"{owner.__name__}.{name}()", message, remedy)


def _hidden(module: ModuleType) -> Iterator[Problem]:
    """Yield a problem for each decorated function that a later function of the same name
    replaces."""
    file = Path(str(module.__file__))
    lines: dict[str, int] = {}
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name in lines:
                message = f"is not served: {node.name} is defined again on line {node.lineno}"
                yield Problem(
                    str(file), f"{node.name}()", message, "rename one of them", lines.pop(node.name)
                )
            if any(map(_is_ours, node.decorator_list)):
                lines[node.name] = node.lineno


def _is_ours(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in _DECORATORS


def _of_tool(function: Callable[..., Any], declaration: Declaration) -> Iterator[Problem]:
    path = f"{getattr(function, '__name__', '')}()"
    if not (declaration.options.get("description") or inspect.getdoc(function)):
        message = "has no description, by which models choose tools"
        yield _at(function, path, message, "write a docstring with its purpose and when to use it")
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if name not in hints and "input_schema" not in declaration.options:
            message = f"parameter {name!r} has no annotation, so it accepts any value"
            is_open = parameter.default is parameter.empty or parameter.default is None
            kind = "str" if is_open else type(parameter.default).__name__
            yield _at(function, path, message, f"write its type: {name}: {kind}")
        elif not _fits(parameter.default, hints.get(name, Any)):
            message = f"parameter {name!r} has a default that its type does not allow"
            yield _at(function, path, message, f"give another, or write {name}: … | None = None")


def _fits(default: Any, hint: Any) -> bool:
    if default is inspect.Parameter.empty:
        return True
    try:
        TypeAdapter(hint).validate_python(default)
    except ValidationError:
        return False
    except Exception:  # the type has no schema, so the default cannot be checked
        return True
    return True


def _at(function: Callable[..., Any], path: str, message: str, remedy: str) -> Problem:
    code = inspect.unwrap(function).__code__
    return Problem(code.co_filename, path, message, remedy, code.co_firstlineno)
