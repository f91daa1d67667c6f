"""The back end of the kind `python`: the functions of a module with the decorators of `declare`, as
tools, prompts and resources; and the pages of its tools (MCP Apps): HTML files beside the module,
read at the start and served as `ui://` resources.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, Literal
from urllib.parse import quote

from msgspec.structs import replace
from pydantic import Field, TypeAdapter, ValidationError, model_validator

import roundgate
from roundgate import declare
from roundgate.aio import Threads
from roundgate.auth import Principal
from roundgate.backends import modules
from roundgate.backends.base import (
    Complete,
    DirectCall,
    Offering,
    Prompt,
    Resource,
    Shared,
    Tool,
)
from roundgate.backends.config import BackendConfig
from roundgate.backends.modules import Modules
from roundgate.backends.python.versions import Versions
from roundgate.backends.signature import (
    Callee,
    PythonTool,
    ToolReturn,
    completion,
    describe,
    prompt_messages,
    resource_contents,
)
from roundgate.declare import (
    Completer,
    Declaration,
    read_declarations,
)
from roundgate.errors import ConfigError, Inside, InvalidParams, Problem, ResourceNotFound
from roundgate.observability import innermost
from roundgate.protocol import (
    Completion,
    PromptMessage,
    ResourceContents,
    TextResourceContents,
    without_none,
)
from roundgate.protocol.apps import HTML, SCHEME, App
from roundgate.replay import Context
from roundgate.settings import Origin


class PythonBackendConfig(BackendConfig):
    """A module whose functions have the decorators @tool, @prompt and @resource."""

    kind: Literal["python"]
    path: str | None = Field(None, description="Python file, relative to gateway.yaml.")
    module: str | None = Field(
        None, description="Dotted name of an importable module, instead of path."
    )

    @property
    def module_name(self) -> str:
        """The module's name in `sys.modules`."""
        return self.module or f"roundgate_backend_{self.name}"

    @property
    def packed_files(self) -> tuple[str, ...]:
        return () if self.path is None else (self.path,)

    @property
    def packed_modules(self) -> tuple[str, ...]:
        return () if self.module is None else (self.module,)

    @model_validator(mode="after")
    def _one_source(self) -> PythonBackendConfig:
        if (self.path is None) == (self.module is None):
            raise ValueError("give either path (a file) or module (a dotted name)")
        return self


class PythonBackend:
    """The back end of one module. Plain functions run in threads, async ones in the event loop."""

    def __init__(self, config: PythonBackendConfig, origin: Origin, shared: Shared) -> None:
        """Import the module, in the serving thread because its objects may belong to a thread
        (sqlite3).

        Raises:
            ConfigError: the module cannot be imported.
        """
        self._config = config
        self._origin = origin
        self._threads = shared.threads
        self._module = self._import(shared.modules)

    async def offer(self) -> Offering:
        """Return the module's declarations, in the order of their definitions; raise ConfigError
        with the problems of all invalid declarations."""
        tools: list[Tool] = []
        prompts: list[Prompt] = []
        resources: list[Resource] = []
        problems: list[Problem] = []
        pages, versions = PythonPages(self._config.name), Versions()
        for function, declaration in declared_in(self._module):
            if faults := self._faults(function, declaration):
                problems += faults
                continue
            try:
                callee = Callee(function, describe(function), self._threads, versions.of(function))
                match declaration.decorator:
                    case "tool":
                        tools.append(_tool(callee, _with_page(declaration, pages)))
                    case "prompt":
                        prompts.append(_prompt(callee, declaration.options))
                    case "resource":
                        resources.append(_resource(callee, declaration))
            except UnusablePage as error:
                problems.append(
                    _option_problem(function, declaration, "ui", str(error), error.remedy)
                )
            except Exception as error:  # pydantic alone raises half a dozen types
                problems.append(self._declaration_problem(function, error))
        if problems:
            raise ConfigError(problems)
        return Offering(
            tools, prompts, [*resources, *pages.resources], files=frozenset(pages.files)
        )

    async def aclose(self) -> None: ...

    def _import(self, loaded: Modules) -> ModuleType:
        base = self._origin.base_dir
        try:
            if self._config.path is None:
                return loaded.named(str(self._config.module), base)
            return loaded.of_file(base / self._config.path, self._config.module_name)
        except KeyboardInterrupt:
            raise  # Ctrl-C ends the gateway
        # SystemExit too: a script that exits, or ends a test, must not end the gateway
        except BaseException as error:
            problem = self._origin.problem(
                f"cannot be imported: {type(error).__name__}: {error}{_place(error)}",
                remedy_for(error, self._config, base),
            )
            at = innermost(error)  # the user's own line, even if it is in an imported module
            raise ConfigError(
                [problem if at is None else replace(problem, file=at[0], line=at[1])]
            ) from error

    def _faults(self, function: Callable[..., Any], declaration: Declaration) -> list[Problem]:
        """Return a problem for each option with an invalid value, at the line of the decorator."""
        try:
            _adapter(declaration.decorator).validate_python(declaration.options)
        except ValidationError as error:
            faults = {
                str(error_details["loc"][0]): error_details
                for error_details in reversed(error.errors())
            }
        else:
            return []
        return [
            _option_problem(
                function,
                declaration,
                option,
                f"is {declaration.options[option]!r:.60}: {detail['msg']}",
                _REMEDIES.get(detail["type"], "see `roundgate docs reference`, or leave it out"),
            )
            for option, detail in faults.items()
        ]

    def _declaration_problem(self, function: Callable[..., Any], error: Exception) -> Problem:
        code = getattr(inspect.unwrap(function), "__code__", None)
        name = getattr(function, "__name__", type(function).__name__)
        message = str(error).partition("\n")[0]
        remedy = "change the function's signature or its decorator's arguments"
        if code is None:  # not a function
            return self._origin.problem(f"{name}: {message}", remedy)
        return Problem(code.co_filename, f"{name}()", message, remedy, code.co_firstlineno)


def _option_problem(
    function: Callable[..., Any], declaration: Declaration, option: str, message: str, remedy: str
) -> Problem:
    name = getattr(function, "__name__", type(function).__name__)
    file, line = declaration.place
    place = f"{name}(): @{declaration.decorator}({option}=…)"
    return Problem(file, place, message, remedy, line)


def _with_page(declaration: Declaration, pages: PythonPages) -> Mapping[str, Any]:
    """Return the options of a tool; if it has a page, `meta` names the page.

    Raises:
        UnusablePage: the page cannot be served.
    """
    options = declaration.options
    if (declared := options.get("ui")) is None:
        return options
    folder = Path(declaration.place[0]).absolute().parent
    meta = options.get("meta") or {}
    return {**options, "meta": {**meta, "ui": pages.tool_meta(declared, folder)}}


def declared_in(module: ModuleType) -> Iterator[tuple[Callable[..., Any], Declaration]]:
    """Yield the decorated functions of a module, each with its declarations, in the module's
    order."""
    seen: set[int] = set()
    for value in list(vars(module).values()):
        if id(value) not in seen:
            seen.add(id(value))
            for declaration in read_declarations(value):
                yield value, declaration


def _tool(callee: Callee, options: Mapping[str, Any]) -> Tool:
    signature = callee.signature
    schema, output_schema = options.get("input_schema"), options.get("output_schema")
    verbatim = None if output_schema is None else dict(output_schema)
    returns = ToolReturn.of(signature.returns, verbatim)
    definition = {
        **_described(callee, options),
        "inputSchema": signature.input_schema if schema is None else dict(schema),
        **without_none(
            outputSchema=returns.schema,
            annotations=without_none(
                readOnlyHint=options.get("read_only"),
                destructiveHint=options.get("destructive"),
                idempotentHint=options.get("idempotent"),
                openWorldHint=options.get("open_world"),
            )
            or None,
            _meta=options.get("meta"),
        ),
    }

    task = options.get("task", "forbidden")
    is_direct = signature.takes_context is None and task == "forbidden"
    # without a context the function cannot call `continue_as_task` itself
    becomes_task_at_once = signature.takes_context is None and not is_direct
    declared = None if schema is None else definition["inputSchema"]
    calls = PythonTool(callee, returns, declared, becomes_task_at_once)
    return Tool(
        definition,
        DirectCall(calls) if is_direct else calls,
        bind=calls.bind,
        unreadable=lambda: signature.names.unreadable,
        requires=options.get("requires") or {},
        scopes=frozenset(options.get("scopes", ())),
        once=options.get("once", False),
        task=task,
        begins_as_task=becomes_task_at_once,
        unasked_answers=options.get("unasked_answers", False),
        approval=options.get("approval"),
        may_ask=signature.takes_context is not None and may_ask(callee.function),
        compiled=signature.compiled if schema is None else None,
    )


def _prompt(callee: Callee, options: Mapping[str, Any]) -> Prompt:
    signature = callee.signature
    arguments = [
        {"name": p.name, **without_none(description=p.description), "required": p.required}
        for p in signature.parameters
    ]
    definition = {
        **_described(callee, options),
        **without_none(arguments=arguments or None, _meta=options.get("meta")),
    }

    async def get(context: Context, arguments: dict[str, str]) -> Sequence[PromptMessage]:
        try:
            keywords = signature.bind(arguments)
        except ValueError as error:
            raise InvalidParams(f"Invalid params: {error}") from None
        return prompt_messages(await callee(context, keywords))

    _check_names("complete", options.get("complete") or {}, [p.name for p in signature.parameters])
    return Prompt(definition, get, _completers(options.get("complete"), callee.threads))


def _resource(callee: Callee, declaration: Declaration) -> Resource:
    signature, options = callee.signature, declaration.options
    if not isinstance(declaration.uri, str) or not declaration.uri.strip():
        raise TypeError("the URI of a resource must be a non-empty string")
    from roundgate.protocol.uri_template import UriTemplate

    template = UriTemplate.parse(declaration.uri)
    names = [p.name for p in signature.parameters]
    if not signature.takes_any and set(names) != set(template.variables):
        raise ValueError(
            f"parameters {names} must be the variables of {declaration.uri!r}: {list(template.variables)}"
        )
    _check_names("complete", options.get("complete") or {}, template.variables)
    annotations, mime_type = options.get("annotations"), options.get("mime_type")
    definition = {
        "uriTemplate" if template.variables else "uri": declaration.uri,
        **_described(callee, options),
        **without_none(
            mimeType=mime_type,
            size=options.get("size"),
            annotations=None if annotations is None else annotations.to_wire(),
            _meta=options.get("meta"),
        ),
    }

    async def read(
        context: Context, uri: str, values: Mapping[str, Any]
    ) -> Sequence[ResourceContents]:
        try:
            keywords = signature.bind(values)
        except ValueError:
            raise ResourceNotFound(uri) from None
        return resource_contents(await callee(context, keywords), uri, mime_type)

    return Resource(definition, read, _completers(options.get("complete"), callee.threads))


def _described(callee: Callee, options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": options.get("name") or callee.function.__name__,
        **without_none(
            title=options.get("title"),
            description=options.get("description") or callee.signature.summary,
            icons=[icon.to_wire() for icon in options.get("icons", ())] or None,
        ),
    }


def _completers(declared: Mapping[str, Completer] | None, threads: Threads) -> dict[str, Complete]:
    return {name: _completer(completer, threads) for name, completer in (declared or {}).items()}


def _completer(completer: Completer, threads: Threads) -> Complete:
    if not callable(completer):
        values = list(completer)

        async def choose(caller: Principal, typed: str, others: Mapping[str, str]) -> Completion:
            return Completion([value for value in values if value.startswith(typed)])

        return choose
    function = completer

    async def ask(caller: Principal, typed: str, others: Mapping[str, str]) -> Completion:
        if inspect.iscoroutinefunction(function):
            return completion(await function(typed))
        value = await threads.run(lambda: function(typed), caller)
        # a plain function may return the coroutine of an async one
        return completion(await value if inspect.isawaitable(value) else value)

    return ask


def _check_names(what: str, completers: Mapping[str, Any], known: Sequence[str]) -> None:
    if unknown := sorted(set(completers) - set(known)):
        raise ValueError(f"{what} names {unknown}, but there are only {list(known)}")


def _place(error: BaseException) -> str:
    """Return the place in a user's module where an import failed, as ` (tools.py:12)`; empty if the
    error's text has the place."""
    if isinstance(error, SyntaxError):
        return ""  # the error's text has the place
    frames = traceback.extract_tb(error.__traceback__)
    ours = max(
        index
        for index, frame in enumerate(frames)
        if frame.filename in (__file__, modules.__file__)
    )
    theirs = [
        frame
        for frame in frames[ours + 1 :]
        if "importlib" not in frame.filename and frame.filename != declare.__file__
    ]
    return f" ({Path(theirs[-1].filename).name}:{theirs[-1].lineno})" if theirs else ""


_ASKING: Final = frozenset({"elicit", "elicit_url", "sample", "roots", "ask", "request_input"})
"""The methods of `Context` that ask the client."""


def may_ask(function: Callable[..., Any]) -> bool:
    """Return whether a function uses the name of one of `Context`'s asking methods.

    The functions that it calls are not examined. A function that checks `ctx.supports` can work
    without an answer, so it does not count.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    names = frozenset(_names(code)) if isinstance(code, CodeType) else frozenset()
    return bool(names & _ASKING) and "supports" not in names


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names and attributes that a function and the functions defined in it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


_USUAL: Final = (
    "correct the module, or point `path` (a file beside gateway.yaml) or `module` (a dotted name)"
    " at another"
)
_REMEDIES: Final = {
    "sequence_str": 'write a list: ["a", "b"]',
    "bool_type": "write True or False",
    "dict_type": 'write a mapping: {"name": value}',
}
"""Remedies for wrong options, by the type of pydantic's error."""


@cache
def _adapter(decorator: str) -> TypeAdapter[Any]:
    return TypeAdapter(declare.OPTIONS[decorator])


def remedy_for(error: BaseException, config: PythonBackendConfig, base: Path) -> str:
    message = str(error)
    match error:
        case TypeError() if "unexpected keyword argument" in message and "(@" in message:
            return "correct the option of the decorator"
        case ModuleNotFoundError() if (config.module or "").endswith(".py"):
            return f"a module is a dotted name: write path: {config.module}"
        case ModuleNotFoundError():
            return "install it and add it to your dependencies, or correct its name"
        case ImportError() if "relative import" in message:
            return (
                "import modules that are beside it by their names (import other), or name the package: module:"
                " package.module in place of path"
            )
        case ImportError(name="roundgate") if match := re.match(r".*?name '(\w+)'", message):
            from difflib import get_close_matches

            near = get_close_matches(match[1].lower(), _exported_names(), 1)
            return (
                f"did you mean {near[0]}?"
                if near
                else "see `roundgate docs reference` for the available names"
            )
        case FileNotFoundError() if config.path and (base / f"{config.path}.py").is_file():
            return f"write path: {config.path}.py"
        case FileNotFoundError() if re.search(r"\$\w", config.path or ""):
            return "write a variable in braces: ${NAME}"
        case SystemExit():
            return 'put the code of a script below `if __name__ == "__main__":`'
    return _USUAL


def _exported_names() -> list[str]:
    return [name for name, value in vars(roundgate).items() if not isinstance(value, ModuleType)]


MAX_BYTES: Final = 4_000_000
"""The maximum size of a page in bytes. A response of AWS Lambda is limited to 6 MB, in which quotes
are escaped."""


class UnusablePage(Inside):
    """A page that cannot be served, with the remedy."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class PythonPages:
    """The pages of one back end, each read once."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._apps: dict[str, tuple[App, Path]] = {}
        self.resources: list[Resource] = []
        self.files: set[Path] = set()

    def tool_meta(self, declared: App | str, folder: Path) -> dict[str, Any]:
        """Return the `_meta.ui` of a tool, and add the resource of its page.

        Args:
            declared: the value of `@tool(ui=…)`.
            folder: the folder of the tool's module.

        Raises:
            UnusablePage: the file cannot be served.
        """
        app = App(declared) if isinstance(declared, str) else declared
        if app.file is None:
            return app.tool_meta(None)
        path = _path_in(folder, app.file)
        uri = f"{SCHEME}{self._backend}/{quote(path.relative_to(folder).as_posix())}"
        known = self._apps.get(uri)
        if known is None:
            self.files.add(path)
            self.resources.append(_page_resource(uri, app, _read(path)))
            self._apps[uri] = app, path
        elif known[1] != path:
            raise UnusablePage(
                f"{path} has the URI of {known[1]}, {uri}", "give one of the files another name"
            )
        elif known[0].page_meta() != app.page_meta():
            raise UnusablePage(
                f"{app.file} is the page of another tool, with other options",
                "give both tools the same csp, permissions, domain and prefers_border",
            )
        return app.tool_meta(uri)


def _path_in(folder: Path, name: str) -> Path:
    """Return the path of a file below a folder.

    Raises:
        UnusablePage: the file is outside of the folder; a symbolic link counts as its target.
    """
    try:
        path = folder / name
        is_inside = path.resolve().is_relative_to(folder.resolve())
        relative = Path(name)
        if is_inside and not relative.is_absolute() and ".." not in relative.parts:
            return path
    except (ValueError, OSError, RuntimeError):  # a NUL byte, a loop of links
        pass
    raise UnusablePage(
        f"{name!r} is not a path below {folder}",
        "write a relative path of a file beside the module",
    )


def _read(path: Path) -> str:
    """Return the text of a page.

    Raises:
        UnusablePage: the file is missing, unreadable or too large, or is not UTF-8.
    """
    try:
        if not path.is_file():
            raise FileNotFoundError(2, "there is no such file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UnusablePage(
            f"{path} cannot be read: {error.strerror or error}",
            "correct the path, which is relative to the module; a package for AWS Lambda needs the file in"
            " `package: {include: […]}`",
        ) from None
    if len(content) > MAX_BYTES:
        raise UnusablePage(
            f"{path} has more than {MAX_BYTES:,} bytes",
            "make the page smaller, or load parts of it from an origin in csp.resourceDomains",
        )
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UnusablePage(f"{path} is not UTF-8", "save the page as UTF-8") from None


def _page_resource(uri: str, app: App, text: str) -> Resource:
    page_meta = app.page_meta()
    meta = {"ui": page_meta} if page_meta else None
    contents = [TextResourceContents(uri, text, HTML, meta)]

    async def read(
        context: Context, uri: str, values: Mapping[str, Any]
    ) -> Sequence[ResourceContents]:
        return contents

    definition = {
        "uri": uri,
        "name": app.file,
        "mimeType": HTML,
        **({"_meta": meta} if meta else {}),
    }
    return Resource(definition, read)
